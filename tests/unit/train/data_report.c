/* train_data_report.c - what the report finds in data made to hold exactly that. */
#include "tests/kit/train_kit.h"

#include <stdio.h>
#include <string.h>

#include "train/train.h"

static fm_tokenizer *tok;
static fm_chat_template *chat;

typedef struct made {
    fm_dataset *d;
    fm_data_report r;
} made;

static fm_status report(made *m, const char *text, const fm_train_config *c,
                        const fm_data_report_opts *opts)
{
    fm_data_report_opts none = {0};

    memset(m, 0, sizeof *m);
    tk_ok(fm_dataset_open(&m->d, fm_span_str(text), "d.jsonl", tok, chat, c, NULL, 0));
    return fm_dataset_report(&m->r, m->d, tok, c, opts ? opts : &none);
}

static void release(made *m)
{
    fm_data_report_release(&m->r);
    fm_dataset_close(m->d);
}

static void has_line(const made *m, const char *line)
{
    if (!strstr(m->r.text, line))
        fail_msg("'%s' is not in:\n%s", line, m->r.text);
}

static int64_t number(const made *m, const char *path)
{
    return fm_json_int(fm_json_path(m->r.json, path), -1);
}

static int64_t record(const made *m, const char *list, size_t i, const char *key)
{
    const fm_json *records = fm_json_get(fm_json_get(m->r.json, list), "records");
    return fm_json_int(fm_json_path(fm_json_at(records, i), key), -1);
}

static fm_train_config settings(fm_objective objective, uint32_t max_tokens)
{
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);

    c.objective = objective;
    c.max_tokens = max_tokens;
    return c;
}

TEST(counts_tokens_masks_cuts_and_ends)
{
    fm_train_config c = settings(FM_OBJECTIVE_NEXT_TOKEN, 8);
    made m;

    tk_ok(report(&m,
                 "{\"prompt\":\"ab\",\"completion\":\"c\"}\n"          /* 2 + 1 + end */
                 "{\"prompt\":\"ab\",\"completion\":\"cdefghijk\"}\n"  /* 2 + 9 + end, 4 lost */
                 "{\"prompt\":\"abcdefghij\",\"completion\":\"k\"}\n", /* nothing to learn */
                 &c, NULL));
    assert_int_equal(m.r.examples, 2);
    assert_int_equal(m.r.tokens, 12);
    assert_int_equal(m.r.counted, 8);
    assert_int_equal(m.r.lost, 4);
    assert_int_equal(m.r.truncated, 1);
    assert_int_equal(m.r.no_stop, 1);
    assert_int_equal(m.r.without_target, 1);
    assert_int_equal(m.r.conflicts, 1);
    assert_int_equal(m.r.duplicates, 0);
    assert_int_equal(m.r.errors, 0);
    assert_int_equal(record(&m, "truncated", 0, "record"), 1);
    assert_int_equal(record(&m, "truncated", 0, "lost"), 4);
    assert_int_equal(record(&m, "no_stop", 0, "record"), 1);
    assert_int_equal(record(&m, "conflicts", 0, "record"), 1);
    assert_int_equal(record(&m, "conflicts", 0, "of.record"), 0);
    has_line(&m, "data: 2 examples, 12 tokens, 33.3 % of them masked, 4 more beyond max_tokens\n");
    has_line(&m, "  d.jsonl: completion, 3 records, 2 used\n");
    has_line(&m, "  nothing to learn in 1 record: record 2 of d.jsonl\n");
    has_line(&m, "  1 cut: record 1 (4 lost)\n");
    has_line(&m, "  warning: 1 of 2 answers do not end with an end token of the model\n");
    has_line(&m,
             "  first example, record 0 ([in brackets]: read, not learnt):\n  | [ab]c<|end|>\n");
    release(&m);
}

TEST(an_end_token_may_have_blanks_behind_it_and_each_turn_needs_one)
{
    static const char blank[] = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}<|end|>\n"
                                "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
    static const char none[] = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n"
                               "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
    static const char text[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
                               "\"assistant\",\"content\":\"b\"}]}";
    fm_train_config c = settings(FM_OBJECTIVE_NEXT_TOKEN, 100);
    fm_chat_template *kept = chat;
    made m;

    tk_ok(fm_chat_template_open(&chat, fm_span_str(blank), "blank"));
    tk_ok(report(&m, text, &c, NULL));
    assert_int_equal(m.r.no_stop, 0);
    has_line(&m, "every answer ends with an end token");
    release(&m);
    /* another model's end token: this one would never be learnt */
    tk_ok(report(&m, text, &c, &(fm_data_report_opts){.end = (const int32_t[]){256}, .ends = 1}));
    assert_int_equal(m.r.no_stop, 1);
    assert_int_equal(m.r.errors, 1);
    release(&m);
    fm_chat_template_close(chat);

    tk_ok(fm_chat_template_open(&chat, fm_span_str(none), "none"));
    tk_ok(report(&m, text, &c, NULL));
    assert_int_equal(m.r.errors, 1);
    has_line(&m, "error: no answer ends with an end token");
    release(&m);
    fm_chat_template_close(chat);

    /* The first turn lacks its end, the last has it. */
    tk_ok(fm_chat_template_open(
        &chat,
        fm_span_str("{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}{% if "
                    "m['content'] != 'b' %}<|end|>{% endif %}{% endfor %}{% if "
                    "add_generation_prompt %}assistant:{% endif %}"),
        "first"));
    tk_ok(report(&m,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
                 "\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"},{\"role\":"
                 "\"assistant\",\"content\":\"d\"}]}",
                 &c, NULL));
    assert_int_equal(m.r.no_stop, 1);
    release(&m);
    fm_chat_template_close(chat);
    chat = kept;
}

TEST(repeats_and_contradictions_are_named)
{
    fm_train_config c = settings(FM_OBJECTIVE_NEXT_TOKEN, 100);
    made m;

    tk_ok(report(&m,
                 "{\"instruction\":\"a\",\"output\":\"b\"}\n"
                 "{\"instruction\":\"x\",\"output\":\"b\"}\n"
                 "{\"output\":\"b\",\"instruction\":\"a\"}\n"
                 "{\"instruction\":\"a\",\"output\":\"c\"}\n"
                 "{\"instruction\":\"a\",\"output\":\"b\",\"id\":7}\n",
                 &c, NULL));
    assert_int_equal(m.r.duplicates, 1);
    assert_int_equal(record(&m, "duplicates", 0, "record"), 2);
    assert_int_equal(record(&m, "duplicates", 0, "of.record"), 0);
    assert_int_equal(m.r.conflicts, 1);
    assert_int_equal(record(&m, "conflicts", 0, "record"), 3);
    has_line(&m, "  1 repeated: record 2 as record 0\n");
    release(&m);
    c.objective = FM_OBJECTIVE_DPO; /* several pairs for one prompt are no contradiction */
    tk_ok(report(&m,
                 "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}\n"
                 "{\"prompt\":\"a\",\"chosen\":\"d\",\"rejected\":\"c\"}\n",
                 &c, NULL));
    assert_int_equal(m.r.conflicts, 0);
    has_line(&m, "  chosen:\n  | [a]b<|end|>\n  rejected:\n  | [a]c<|end|>\n");
    release(&m);
    c.objective = FM_OBJECTIVE_CLASSIFY; /* one text in two classes is */
    tk_ok(report(&m, "{\"text\":\"a\",\"label\":\"x\"}\n{\"text\":\"a\",\"label\":\"y\"}\n", &c,
                 NULL));
    assert_int_equal(m.r.conflicts, 1);
    has_line(&m, "  class x: 1 example\n");
    has_line(&m, "  | a\n  class x\n");
    release(&m);
}

TEST(texts_of_suites_are_found_by_words)
{
    static const fm_data_probe probe[] = {
        {"geo/capital", {(const uint8_t *)"What is the capital of France?", 30}},
        {"geo/yes", {(const uint8_t *)"Yes.", 4}},
        {"geo/long",
         {(const uint8_t
               *)"one two three four five six seven eight nine ten eleven twelve thirteen "
                 "fourteen fifteen",
          88}},
    };
    fm_train_config c = settings(FM_OBJECTIVE_NEXT_TOKEN, 1000);
    fm_data_report_opts opts = {.probe = probe, .probes = 3};
    made m;

    tk_ok(report(&m,
                 "{\"text\":\"Tell me: WHAT is, the capital - of france\"}\n"
                 "{\"text\":\"What is the capital of Spain? Yes.\"}\n"
                 "{\"text\":\"x three four five six seven eight nine ten eleven twelve thirteen "
                 "fourteen fifteen\"}\n"
                 "{\"text\":\"four five six seven eight nine ten eleven twelve thirteen fourteen "
                 "fifteen\"}\n",
                 &c, &opts));
    assert_int_equal(m.r.contaminated, 2);
    assert_int_equal(record(&m, "contaminated", 0, "record"), 0);
    assert_int_equal(record(&m, "contaminated", 1, "record"), 2);
    assert_int_equal(number(&m, "probes_too_short"), 1);
    has_line(&m, "3 texts of suites looked for (1 of fewer than 4 words are not), found in 2 "
                 "examples: record 0 (geo/capital), record 2 (geo/long)\n");
    release(&m);
}

TEST(what_makes_training_meaningless_is_an_error)
{
    static const struct {
        fm_objective objective;
        const char *text, *says;
    } bad[] = {
        {FM_OBJECTIVE_CLASSIFY, "{\"text\":\"a\",\"label\":0}\n{\"text\":\"b\",\"label\":0}",
         "of one class"},
        {FM_OBJECTIVE_CLASSIFY, "{\"text\":\"a\",\"label\":1}\n{\"text\":\"b\",\"label\":1}",
         "of one class"},
        {FM_OBJECTIVE_CONTRASTIVE, "{\"anchor\":\"a\",\"positive\":\"b\"}", "raise batch"},
        {FM_OBJECTIVE_NEXT_TOKEN,
         "{\"prompt\":\"aaaaaaaaaa\",\"completion\":\"k\"}\n{\"prompt\":\"b\",\"completion\":\"k\"}"
         "\n{\"prompt\":\"bbbbbbbbbb\",\"completion\":\"k\"}",
         "2 of 3 records have nothing to learn"},
    };

    for (size_t i = 0; i < FM_ARRAY_LEN(bad); i++) {
        fm_train_config c = settings(bad[i].objective, 8);
        made m;
        tk_ok(report(&m, bad[i].text, &c, NULL));
        assert_int_equal(m.r.errors, 1);
        has_line(&m, "  error: ");
        has_line(&m, bad[i].says);
        release(&m);
    }
}

TEST(the_histogram_and_a_long_example_stay_readable)
{
    fm_train_config c = settings(FM_OBJECTIVE_NEXT_TOKEN, 10000);
    fm_buf text;
    made m;

    fm_buf_init(&text, 0);
    fm_buf_str(&text, "{\"prompt\":\"\\u001b[2J\",\"completion\":\"");
    for (int i = 0; i < 4000; i++)
        fm_buf_str(&text, "\xC3\xA4");
    fm_buf_str(&text, "\"}\n{\"prompt\":\"a\",\"completion\":\"123456789012345\"}\n"
                      "{\"prompt\":\"a\",\"completion\":\"12345678901234\"}\n");
    tk_ok(report(&m, fm_buf_cstr(&text), &c, NULL));
    has_line(&m, "        16 tokens or less        1  ####");
    has_line(&m, "        32 tokens or less        1  ####");
    has_line(&m, "      8192 tokens or less        1  ####");
    has_line(&m, "  | [\\x1b[2J]\xC3\xA4");
    has_line(&m, " bytes ... \xC3\xA4");
    assert_null(strchr(m.r.text, 0x1b));
    assert_true(strlen(m.r.text) < 4000);
    fm_json *copy = NULL;
    fm_buf out;
    fm_buf_init(&out, 0);
    tk_ok(fm_json_write(&out, m.r.json, FM_JSON_CANONICAL));
    tk_ok(fm_json_parse(&copy, fm_buf_span(&out), "report"));
    assert_int_equal(fm_json_count(fm_json_get(copy, "lengths")), 3);
    fm_json_free(copy);
    fm_buf_release(&out);
    release(&m);
    fm_buf_release(&text);
}

TEST(no_allocation_failure_is_mistaken)
{
    static const fm_data_probe probe[] = {{"a/b", {(const uint8_t *)"one two three four", 18}}};
    fm_train_config c = settings(FM_OBJECTIVE_NEXT_TOKEN, 12);
    fm_data_report_opts opts = {.probe = probe, .probes = 1};
    fm_status rc = FM_ENOMEM;
    made m;

    tk_ok(
        report(&m,
               "{\"instruction\":\"a\",\"output\":\"one two three four\"}\n"
               "{\"prompt\":\"a\",\"completion\":\"b\"}\n{\"prompt\":\"a\",\"completion\":\"b\"}\n"
               "{\"prompt\":\"a\",\"completion\":\"one two three\"}\n",
               &c, &opts));
    for (uint64_t n = 1; rc == FM_ENOMEM || n == 1; n++) {
        fm_data_report_release(&m.r);
        fm_mem_fail_at(n, false);
        rc = fm_dataset_report(&m.r, m.d, tok, &c, &opts);
        fm_mem_fail_at(0, false);
        assert_true(rc == FM_OK || (rc == FM_ENOMEM && !m.r.json && !m.r.text));
    }
    release(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_tokens_masks_cuts_and_ends),
        cmocka_unit_test(an_end_token_may_have_blanks_behind_it_and_each_turn_needs_one),
        cmocka_unit_test(repeats_and_contradictions_are_named),
        cmocka_unit_test(texts_of_suites_are_found_by_words),
        cmocka_unit_test(what_makes_training_meaningless_is_an_error),
        cmocka_unit_test(the_histogram_and_a_long_example_stay_readable),
        cmocka_unit_test(no_allocation_failure_is_mistaken),
    };

    tok = kit_tokenizer();
    chat = kit_chat();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_chat_template_close(chat);
    fm_tokenizer_close(tok);
    return failed;
}
