/* train_data_real.c - SmolLM2's tokenizer and template on 999 real instructions: what is masked,
 * said by hand, and the same records in every dialect and format. Ids of a whole conversation are
 * those that Hugging Face's apply_chat_template recorded. */
#include "tests/testkit.h"

#include <stdio.h>
#include <string.h>

#include "train/train.h"

#define SYSTEM                                                                                     \
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "         \
    "Face<|im_end|>\n"

static fm_tokenizer *tok;
static fm_chat_template *chat;
static fm_json *alpaca; /* [{"instruction","input","output"}] */
static fm_buf alpaca_bytes;

static fm_train_config settings(void)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);

    c.max_tokens = 4096;
    return c;
}

static fm_dataset *opened(const char *name, fm_span bytes)
{
    fm_train_config c = settings();
    fm_dataset *d = NULL;

    tk_ok(fm_dataset_open(&d, bytes, name, tok, chat, &c, NULL, 0));
    return d;
}

static const char *field(size_t record, const char *name)
{
    return fm_json_cstr(fm_json_get(fm_json_at(alpaca, record), name), "");
}

static void append_prompt(fm_ids *ids, size_t record)
{
    const char *input = field(record, "input");
    fm_buf text;

    fm_buf_init(&text, 0);
    fm_buf_printf(&text, "%s<|im_start|>user\n%s%s%s<|im_end|>\n<|im_start|>assistant\n", SYSTEM,
                  field(record, "instruction"), *input ? "\n" : "", input);
    tk_ok(fm_tokenizer_encode(tok, fm_buf_span(&text), false, ids));
    fm_buf_release(&text);
}

static void append_answer(fm_ids *ids, size_t record)
{
    fm_buf text;

    fm_buf_init(&text, 0);
    fm_buf_printf(&text, "%s<|im_end|>\n", field(record, "output"));
    tk_ok(fm_tokenizer_encode(tok, fm_buf_span(&text), false, ids));
    fm_buf_release(&text);
}

TEST(the_template_masks_all_but_the_answer_and_its_end)
{
    fm_dataset *d = opened("alpaca_en_demo.json", fm_buf_span(&alpaca_bytes));

    assert_int_equal(fm_dataset_count(d), 999);
    for (size_t i = 0; i < 999; i++) {
        const fm_example *e = fm_dataset_at(d, i);
        fm_ids want = {0};
        append_prompt(&want, i);
        size_t prompt = want.count;
        append_answer(&want, i);
        assert_int_equal(e->index, i);
        assert_int_equal(e->len, want.count);
        for (size_t k = 0; k < want.count; k++) {
            assert_int_equal(e->ids[k], want.id[k]);
            assert_int_equal(e->labels[k], k < prompt ? -100 : want.id[k]);
        }
        assert_int_equal(e->labels[e->len - 2], 2); /* <|im_end|> is learnt */
        fm_ids_release(&want);
    }
    fm_dataset_close(d);
}

TEST(a_conversation_has_the_ids_of_hugging_face)
{
    char *path = tk_shared("smollm2/chat_cases.json");
    fm_json *cases = NULL;
    size_t checked = 0;

    assert_non_null(path);
    tk_ok(fm_json_parse_file(&cases, path, (size_t)1 << 20));
    for (size_t i = 0; i < fm_json_count(cases); i++) {
        const fm_json *c = fm_json_at(cases, i);
        const fm_json *ids = fm_json_get(c, "ids");
        const fm_json *messages = fm_json_get(c, "messages");
        size_t last = fm_json_count(messages);
        fm_buf text;
        while (last > 0 &&
               strcmp(fm_json_cstr(fm_json_get(fm_json_at(messages, last - 1), "role"), ""),
                      "assistant") != 0)
            last--;
        if (last == 0)
            continue;
        fm_json *record = fm_json_new_object();
        tk_ok(fm_json_set(record, "messages", fm_json_ref(messages)));
        fm_buf_init(&text, 0);
        tk_ok(fm_json_write(&text, record, FM_JSON_COMPACT));
        fm_dataset *d = opened("case.jsonl", fm_buf_span(&text));
        const fm_example *e = fm_dataset_at(d, 0);
        assert_true(e->len <= fm_json_count(ids));
        for (uint32_t k = 0; k < e->len; k++)
            assert_int_equal(e->ids[k], fm_json_int(fm_json_at(ids, k), -1));
        assert_int_equal(e->labels[e->len - 2], 2);
        fm_dataset_close(d);
        fm_buf_release(&text);
        fm_json_free(record);
        checked++;
    }
    assert_true(checked >= 2);
    fm_json_free(cases);
    fm_free(path);
}

/* ---- the same records in other clothes ---- */
static void user_text(fm_buf *b, size_t i)
{
    fm_buf_clear(b);
    fm_buf_printf(b, "%s%s%s", field(i, "instruction"), *field(i, "input") ? "\n" : "",
                  field(i, "input"));
}

static void write_string(fm_buf *b, const char *text)
{
    fm_json *s = fm_json_new_str(text);

    tk_ok(fm_json_write(b, s, FM_JSON_COMPACT));
    fm_json_free(s);
}

static void write_cell(fm_buf *b, const char *text)
{
    fm_buf_char(b, '"');
    for (; *text; text++) {
        fm_buf_char(b, *text);
        if (*text == '"')
            fm_buf_char(b, '"');
    }
    fm_buf_char(b, '"');
}

static void as_messages(fm_buf *out, size_t i, const char *user)
{
    fm_buf_str(out, "{\"messages\":[{\"role\":\"user\",\"content\":");
    write_string(out, user);
    fm_buf_str(out, "},{\"role\":\"assistant\",\"content\":");
    write_string(out, field(i, "output"));
    fm_buf_str(out, "}]}\n");
}

static void as_sharegpt(fm_buf *out, size_t i, const char *user)
{
    fm_buf_str(out, "{\"conversations\":[{\"from\":\"human\",\"value\":");
    write_string(out, user);
    fm_buf_str(out, "},{\"from\":\"gpt\",\"value\":");
    write_string(out, field(i, "output"));
    fm_buf_str(out, "}]}\n");
}

static void as_completion(fm_buf *out, size_t i, const char *user)
{
    fm_buf_str(out, "{\"prompt\":[{\"role\":\"user\",\"content\":");
    write_string(out, user);
    fm_buf_str(out, "}],\"completion\":");
    write_string(out, field(i, "output"));
    fm_buf_str(out, "}\n");
}

static void as_row(fm_buf *out, size_t i, const char *user)
{
    (void)user;
    if (i == 0)
        fm_buf_str(out, "id,output,input,instruction\r\n");
    fm_buf_printf(out, "%zu,", i);
    write_cell(out, field(i, "output"));
    fm_buf_char(out, ',');
    write_cell(out, field(i, "input"));
    fm_buf_char(out, ',');
    write_cell(out, field(i, "instruction"));
    fm_buf_str(out, "\r\n");
}

static void as_tokens(fm_buf *out, size_t i, const char *user)
{
    fm_ids ids = {0};

    (void)user;
    append_prompt(&ids, i);
    size_t prompt = ids.count;
    append_answer(&ids, i);
    for (int labels = 0; labels < 2; labels++) {
        fm_buf_str(out, labels ? "],\"labels\":[" : "{\"input_ids\":[");
        for (size_t k = 0; k < ids.count; k++)
            fm_buf_printf(out, "%s%d", k ? "," : "", labels && k < prompt ? -100 : ids.id[k]);
    }
    fm_buf_str(out, "]}\n");
    fm_ids_release(&ids);
}

TEST(every_dialect_and_format_gives_the_same_examples)
{
    static const struct {
        const char *name;
        void (*write)(fm_buf *out, size_t i, const char *user);
    } clothes[] = {{"messages.jsonl", as_messages},
                   {"sharegpt.jsonl", as_sharegpt},
                   {"completion.jsonl", as_completion},
                   {"table.csv", as_row},
                   {"tokens.jsonl", as_tokens}};
    fm_dataset *want = opened("alpaca_en_demo.json", fm_buf_span(&alpaca_bytes));

    for (size_t c = 0; c < FM_ARRAY_LEN(clothes); c++) {
        fm_buf text;
        fm_buf user;
        fm_buf_init(&text, 0);
        fm_buf_init(&user, 0);
        for (size_t i = 0; i < 999; i++) {
            user_text(&user, i);
            clothes[c].write(&text, i, fm_buf_cstr(&user));
        }
        fm_dataset *d = opened(clothes[c].name, fm_buf_span(&text));
        assert_int_equal(fm_dataset_count(d), 999);
        for (size_t i = 0; i < 999; i++) {
            const fm_example *a = fm_dataset_at(want, i);
            const fm_example *b = fm_dataset_at(d, i);
            if (a->len != b->len || memcmp(a->ids, b->ids, a->len * sizeof(int32_t)) != 0 ||
                memcmp(a->labels, b->labels, a->len * sizeof(int32_t)) != 0)
                fail_msg("%s: record %zu differs", clothes[c].name, i);
        }
        fm_dataset_close(d);
        fm_buf_release(&user);
        fm_buf_release(&text);
    }
    fm_dataset_close(want);
}

/* 14 records repeat another, and no instruction with its input has two answers: counted over the
 * file by another program. */
TEST(the_report_knows_the_file)
{
    static const fm_data_probe probe[] = {
        {"kitchen/crepes", {(const uint8_t *)"Describe a process of making crepes.", 36}},
        {"kitchen/none", {(const uint8_t *)"Describe a process of making violins.", 37}}};
    fm_train_config c = settings();
    fm_dataset *d = opened("alpaca_en_demo.json", fm_buf_span(&alpaca_bytes));
    fm_data_report_opts opts = {.probe = probe, .probes = 2};
    fm_data_report r;

    tk_ok(fm_dataset_report(&r, d, tok, &c, &opts));
    assert_int_equal(r.examples, 999);
    assert_int_equal(r.duplicates, 14);
    assert_int_equal(r.conflicts, 0);
    assert_int_equal(r.truncated, 0);
    assert_int_equal(r.no_stop, 0);
    assert_int_equal(r.contaminated, 1);
    assert_int_equal(r.errors, 0);
    assert_non_null(strstr(r.text, "found in 1 example: record 0 (kitchen/crepes)\n"));
    assert_non_null(strstr(r.text, "  | [<|im_start|>system\n  | You are a helpful"));
    assert_non_null(strstr(r.text, "  | <|im_start|>assistant\n  | ]Making crepes is an easy"));
    fm_data_report_release(&r);
    fm_dataset_close(d);
}

static bool read_shared(fm_buf *out, const char *name)
{
    char *path = tk_shared(name);

    fm_buf_init(out, 0);
    if (path)
        tk_ok(fm_read_file(out, path, (size_t)64 << 20));
    fm_free(path);
    return out->len > 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_template_masks_all_but_the_answer_and_its_end),
        cmocka_unit_test(a_conversation_has_the_ids_of_hugging_face),
        cmocka_unit_test(every_dialect_and_format_gives_the_same_examples),
        cmocka_unit_test(the_report_knows_the_file),
    };
    fm_buf file;
    fm_buf config;
    fm_buf source;
    bool all = read_shared(&file, "smollm2/tokenizer.json") &&
               read_shared(&config, "smollm2/tokenizer_config.json") &&
               read_shared(&source, "smollm2/chat_template.jinja") &&
               read_shared(&alpaca_bytes, "text/alpaca_en_demo.json");

    if (!all)
        return tk_skip("SmolLM2's tokenizer or the instructions are not here (FM_SHARED_DATA)");
    tk_ok(fm_tokenizer_open(&tok, fm_buf_span(&file), fm_buf_span(&config), "smollm2"));
    tk_ok(fm_chat_template_open(&chat, fm_buf_span(&source), "smollm2"));
    tk_ok(fm_json_parse(&alpaca, fm_buf_span(&alpaca_bytes), "alpaca"));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_chat_template_close(chat);
    fm_tokenizer_close(tok);
    fm_json_free(alpaca);
    fm_buf_release(&file);
    fm_buf_release(&config);
    fm_buf_release(&source);
    fm_buf_release(&alpaca_bytes);
    return failed;
}
