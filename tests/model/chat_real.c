/* A real model's chat template and tokenizer, together, against Hugging Face's text and ids. */
#include "infer/chat.h"
#include "infer/text/special_escape.h"
#include "tests/testkit.h"

static size_t guarded_same; /* cases without marks */

static void load(fm_buf *b, const char *rel)
{
    char *path = tk_shared(rel);

    fm_buf_init(b, 0);
    if (path)
        tk_ok(fm_read_file(b, path, (size_t)1 << 26));
    fm_free(path);
}

/* Through the guard: the same ids, but for special tokens that people wrote. */
static void check_guarded(const fm_chat_template *t, const fm_tokenizer *tok, const fm_json *c,
                          const fm_json *extra, const fm_ids *want)
{
    const fm_json *messages = fm_json_get(c, "messages");
    fmi_special_escape g;
    fm_json *marked;
    fm_ids ids = {0};
    fm_buf text;

    fm_buf_init(&text, 0);
    tk_ok(fmi_special_escape_init(&g, tok, &messages, 1));
    tk_ok(fmi_special_escape_value(&g, &marked, messages));
    tk_ok(fm_chat_render(&text, t, marked, NULL,
                         fm_json_bool(fm_json_get(c, "add_generation_prompt"), false), extra));
    tk_ok(fmi_special_escape_strip(&g, &text));
    assert_string_equal(fm_buf_cstr(&text), fm_json_cstr(fm_json_get(c, "text"), ""));
    tk_ok(fm_tokenizer_encode_marked(tok, fm_buf_span(&text), g.at, g.count, &ids));
    if (!g.marked) {
        assert_int_equal(ids.count, want->count);
        assert_memory_equal(ids.id, want->id, ids.count * sizeof(*ids.id));
    }
    guarded_same += !g.marked;
    fm_ids_release(&ids);
    fm_json_free(marked);
    fmi_special_escape_release(&g);
    fm_buf_release(&text);
}

static void check_case(const fm_chat_template *t, const fm_tokenizer *tok, const fm_json *c)
{
    fm_json *extra;
    fm_ids ids = {0};
    fm_buf text;
    const fm_json *want = fm_json_get(c, "ids");

    fm_buf_init(&text, 0);
    tk_ok(fm_chat_extra_new(&extra, tok));
    tk_ok(fm_chat_render(&text, t, fm_json_get(c, "messages"), NULL,
                         fm_json_bool(fm_json_get(c, "add_generation_prompt"), false), extra));
    assert_string_equal(fm_buf_cstr(&text), fm_json_cstr(fm_json_get(c, "text"), ""));
    tk_ok(fm_tokenizer_encode(tok, fm_buf_span(&text), false, &ids));
    assert_int_equal(ids.count, fm_json_count(want));
    for (size_t i = 0; i < ids.count; i++)
        assert_int_equal(ids.id[i], fm_json_int(fm_json_at(want, i), -1));
    check_guarded(t, tok, c, extra, &ids);
    fm_ids_release(&ids);
    fm_json_free(extra);
    fm_buf_release(&text);
}

TEST(text_and_ids_equal_those_of_hugging_face)
{
    fm_buf json, config, source, cases_text;
    fm_tokenizer *tok;
    fm_chat_template *t;
    fm_json *cases;

    load(&json, "smollm2/tokenizer.json");
    load(&config, "smollm2/tokenizer_config.json");
    load(&source, "smollm2/chat_template.jinja");
    load(&cases_text, "smollm2/chat_cases.json");
    tk_ok(fm_tokenizer_open(&tok, fm_buf_span(&json), fm_buf_span(&config), "smollm2"));
    tk_ok(fm_chat_template_open(&t, fm_buf_span(&source), "smollm2"));
    tk_ok(fm_json_parse(&cases, fm_buf_span(&cases_text), "chat_cases.json"));
    assert_true(fm_json_count(cases) >= 8);
    for (size_t i = 0; i < fm_json_count(cases); i++)
        check_case(t, tok, fm_json_at(cases, i));
    assert_true(guarded_same >= 6);
    fm_json_free(cases);
    fm_chat_template_close(t);
    fm_tokenizer_close(tok);
    fm_buf_release(&json);
    fm_buf_release(&config);
    fm_buf_release(&source);
    fm_buf_release(&cases_text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_and_ids_equal_those_of_hugging_face),
    };
    char *probe = tk_shared("smollm2/chat_cases.json");

    if (!probe)
        return tk_skip("no ../shared/data/smollm2");
    fm_free(probe);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
