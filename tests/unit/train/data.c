/* train_data.c - files of training data: kinds, labels, cuts, manifests, refusals. */
#include "tests/kit/train_kit.h"

#include <string.h>

#include "train/train.h"

static fm_tokenizer *tok;
static fm_chat_template *chat;

static fm_status open_text(fm_dataset **d, const char *text, const fm_chat_template *with,
                           uint32_t max_tokens)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);

    c.max_tokens = max_tokens;
    return fm_dataset_open(d, fm_span_str(text), "d", tok, with, &c, NULL, 0);
}

/* The example as text, tokens that count in brackets: "<|start|>user:hi[yes]". */
static void check_example(const fm_example *e, const char *want)
{
    fm_buf b;
    bool inside = false;

    fm_buf_init(&b, 0);
    for (uint32_t i = 0; i < e->len; i++) {
        bool counts = e->labels[i] >= 0;
        if (counts != inside)
            fm_buf_char(&b, counts ? '[' : ']');
        inside = counts;
        if (counts)
            assert_int_equal(e->labels[i], e->ids[i]);
        else
            assert_int_equal(e->labels[i], -100);
        tk_ok(fm_tokenizer_decode(tok, &e->ids[i], 1, false, &b));
    }
    if (inside)
        fm_buf_char(&b, ']');
    assert_string_equal(fm_buf_cstr(&b), want);
    fm_buf_release(&b);
}

static void check_one(const char *text, const fm_chat_template *with, const char *want)
{
    fm_dataset *d = NULL;

    tk_ok(open_text(&d, text, with, 1000));
    assert_int_equal(fm_dataset_count(d), 1);
    check_example(fm_dataset_at(d, 0), want);
    assert_null(fm_dataset_at(d, 1));
    fm_dataset_close(d);
}

TEST(bad_files_are_refused_with_record_and_field)
{
    static const char *const bad[][2] = {
        {"", "empty"},
        {" \n\n", "empty"},
        {"[]", "no example"},
        {"{}", "record 0"},
        {"[1]", "object"},
        {"{\"text\":\"a\"}\n{\"text\":3}", "record 1"},
        {"{\"instruction\":\"a\",\"output\":1}", "output"},
        {"{\"instruction\":\"a\"}", "output"},
        {"{\"instruction\":3,\"output\":\"b\"}", "instruction"},
        {"{\"instruction\":\"a\",\"input\":4,\"output\":\"b\"}", "input"},
        {"{\"prompt\":\"a\"}", "completion"},
        {"{\"messages\":[]}", "messages"},
        {"{\"messages\":[{\"role\":\"user\"}]}", "messages"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "no example"},
    };
    fm_dataset *d = NULL;

    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        tk_fails(open_text(&d, bad[i][0], chat, 100), FM_EINVAL, bad[i][1]);
        assert_null(d);
    }
    tk_fails(open_text(&d, "{\"text\":\"a\"}\n{\"text\":", chat, 100), FM_ECORRUPT, "line 2 of");
    tk_fails(fm_dataset_open(&d, fm_span_of(" \0\0", 3), "d", tok, chat,
                             &(fm_train_config){.max_tokens = 1}, NULL, 0),
             FM_EINVAL, "max_tokens");
    tk_fails(open_text(&d, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", NULL, 100),
             FM_EUNSUPPORTED, "template");
}

TEST(each_kind_counts_the_answer_alone)
{
    check_one("[{\"instruction\":\"a\",\"input\":\"\",\"output\":\"bc\"}]", chat,
              "<|start|>user:a<|end|><|start|>assistant:[bc<|end|>]");
    check_one("{\"instruction\":\"a\",\"input\":\"x\",\"output\":\"b\"}", chat,
              "<|start|>user:a\nx<|end|><|start|>assistant:[b<|end|>]");
    check_one("{\n \"instruction\": \"a\",\n \"output\": \"b\", \"system\": \"s\"\n}", chat,
              "<|start|>system:s<|end|><|start|>user:a<|end|><|start|>assistant:[b<|end|>]");
    check_one("{\"instruction\":\"a\",\"output\":\"b\"}", NULL, "a\n[b<|end|>]");
    check_one("{\"prompt\":\"a\",\"completion\":\"b\"}", chat, "a[b<|end|>]");
    check_one("{\"text\":\"ab\"}", chat, "[ab<|end|>]");
    check_one("plain", chat, "[plain]");
}

TEST(every_assistant_turn_counts_and_what_follows_the_last_is_left_out)
{
    check_one("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
              "{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"},"
              "{\"role\":\"assistant\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"e\"}]}",
              chat,
              "<|start|>user:a<|end|><|start|>assistant:[b<|end|>]<|start|>user:c<|end|>"
              "<|start|>assistant:[d<|end|>]");
}

TEST(plain_text_is_packed_and_long_answers_are_cut)
{
    fm_dataset *d = NULL;

    tk_ok(open_text(&d, "abcdefghij", chat, 4));
    assert_int_equal(fm_dataset_count(d), 3);
    check_example(fm_dataset_at(d, 0), "[abcd]");
    check_example(fm_dataset_at(d, 2), "[ij]");
    fm_dataset_close(d);
    tk_ok(open_text(&d, "{\"prompt\":\"abc\",\"completion\":\"defg\"}", chat, 5));
    check_example(fm_dataset_at(d, 0), "abc[de]");
    fm_dataset_close(d);
}

TEST(the_manifest_tells_what_was_used)
{
    static const char text[] = "{\"prompt\":\"a\",\"completion\":\"b\"}\n\n"
                               "{\"prompt\":\"abcdef\",\"completion\":\"b\"}\n"
                               "{\"completion\":\"c\",\"prompt\":\"a\"}\n"
                               "{\"prompt\":\"a\",\"completion\":\"c\"}\r\n";
    static const uint32_t skip[] = {0};
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
    fm_dataset *d = NULL;

    c.max_tokens = 5;
    tk_ok(fm_dataset_open(&d, fm_span_str(text), "d.jsonl", tok, chat, &c, skip, 1));
    assert_int_equal(fm_dataset_count(d), 2);
    assert_int_equal(fm_dataset_at(d, 0)->index, 2);
    assert_string_equal(fm_dataset_at(d, 0)->preview, "a -> c");
    assert_true(fm_digest_eq(&fm_dataset_at(d, 0)->digest, &fm_dataset_at(d, 1)->digest));
    fm_json *m = fm_dataset_manifest(d);
    assert_string_equal(fm_json_cstr(fm_json_get(m, "name"), ""), "d.jsonl");
    assert_int_equal(strlen(fm_json_cstr(fm_json_get(m, "sha256"), "")), 64);
    assert_int_equal(fm_json_int(fm_json_get(m, "records"), -1), 4);
    assert_int_equal(fm_json_int(fm_json_get(m, "used"), -1), 2);
    assert_int_equal(fm_json_int(fm_json_get(m, "tokens"), -1), 6);
    assert_int_equal(fm_json_int(fm_json_at(fm_json_get(m, "skipped"), 0), -1), 0);
    assert_int_equal(fm_json_int(fm_json_at(fm_json_get(m, "without_target"), 0), -1), 1);
    fm_json_free(m);
    fm_dataset_close(d);
}

TEST(all_tokens_count_when_asked)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
    fm_dataset *d = NULL;

    c.answers_only = false;
    tk_ok(fm_dataset_open(&d, fm_span_str("{\"prompt\":\"ab\",\"completion\":\"c\"}"), "d", tok,
                          chat, &c, NULL, 0));
    check_example(fm_dataset_at(d, 0), "[abc<|end|>]");
    fm_dataset_close(d);
}

TEST(long_previews_end_at_whole_characters)
{
    fm_buf text;
    fm_dataset *d = NULL;

    fm_buf_init(&text, 0);
    fm_buf_str(&text, "{\"prompt\":\"");
    for (int i = 0; i < 100; i++)
        fm_buf_str(&text, "\xC3\xA4");
    fm_buf_str(&text, "\",\"completion\":\"b\"}");
    tk_ok(open_text(&d, fm_buf_cstr(&text), chat, 1000));
    const char *preview = fm_dataset_at(d, 0)->preview;
    assert_true(strlen(preview) <= 120 && strlen(preview) > 100);
    assert_non_null(strstr(preview, "\xC3\xA4 -> b"));
    fm_dataset_close(d);
    fm_buf_release(&text);
}

/* Every allocation may fail: an error, no leak, and the next try works. */
TEST(no_allocation_failure_is_mistaken)
{
    static const char text[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
                               "{\"role\":\"assistant\",\"content\":\"b\"}]}\n"
                               "{\"instruction\":\"a\",\"output\":\"b\"}";
    fm_status rc = FM_ENOMEM;

    for (uint64_t n = 1; rc == FM_ENOMEM; n++) {
        fm_dataset *d = NULL;
        fm_mem_fail_at(n, false);
        rc = open_text(&d, text, chat, 100);
        fm_mem_fail_at(0, false);
        assert_true(rc == FM_OK || rc == FM_ENOMEM);
        fm_dataset_close(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files_are_refused_with_record_and_field),
        cmocka_unit_test(each_kind_counts_the_answer_alone),
        cmocka_unit_test(every_assistant_turn_counts_and_what_follows_the_last_is_left_out),
        cmocka_unit_test(plain_text_is_packed_and_long_answers_are_cut),
        cmocka_unit_test(the_manifest_tells_what_was_used),
        cmocka_unit_test(all_tokens_count_when_asked),
        cmocka_unit_test(long_previews_end_at_whole_characters),
        cmocka_unit_test(no_allocation_failure_is_mistaken),
    };

    tok = kit_tokenizer();
    chat = kit_chat();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_chat_template_close(chat);
    fm_tokenizer_close(tok);
    return failed;
}
