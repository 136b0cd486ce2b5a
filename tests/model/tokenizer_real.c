/* Token ids and texts of a real tokenizer, against those of Hugging Face. */
#include "infer/chat.h"
#include "store/source.h"
#include "tests/testkit.h"

#include <string.h>

typedef struct real {
    fm_tokenizer *t;
    fm_json *cases;
} real;

static fm_json *load_json(const char *rel)
{
    char *path = tk_shared(rel);
    fm_json *v = NULL;

    if (path)
        tk_ok(fm_json_parse_file(&v, path, (size_t)1 << 26));
    fm_free(path);
    return v;
}

static void load_bytes(fm_buf *b, const char *rel)
{
    char *path = tk_shared(rel);

    fm_buf_init(b, 0);
    if (path)
        tk_ok(fm_read_file(b, path, (size_t)1 << 26));
    fm_free(path);
}

static int setup(void **state)
{
    real *r = fm_calloc(1, sizeof *r);
    fm_buf json, config;

    load_bytes(&json, "smollm2/tokenizer.json");
    load_bytes(&config, "smollm2/tokenizer_config.json");
    tk_ok(fm_tokenizer_open(&r->t, fm_buf_span(&json), fm_buf_span(&config), "smollm2"));
    r->cases = load_json("smollm2/tokenizer_cases.json");
    fm_buf_release(&json);
    fm_buf_release(&config);
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    real *r = *state;

    fm_tokenizer_close(r->t);
    fm_json_free(r->cases);
    fm_free(r);
    return 0;
}

static void check_ids(const fm_ids *got, const fm_json *want)
{
    assert_int_equal(got->count, fm_json_count(want));
    for (size_t i = 0; i < got->count; i++)
        assert_int_equal(got->id[i], fm_json_int(fm_json_at(want, i), -1));
}

static void ids_equal_those_of_hugging_face(void **state)
{
    const real *r = *state;

    assert_true(fm_json_count(r->cases) >= 100);
    for (size_t i = 0; i < fm_json_count(r->cases); i++) {
        const fm_json *c = fm_json_at(r->cases, i);
        fm_ids ids = {0};
        tk_ok(fm_tokenizer_encode(r->t, fm_json_str(fm_json_get(c, "text")), true, &ids));
        check_ids(&ids, fm_json_get(c, "ids"));
        fm_ids_release(&ids);
    }
}

static void decoding_gives_hugging_faces_text(void **state)
{
    const real *r = *state;

    for (size_t i = 0; i < fm_json_count(r->cases); i++) {
        const fm_json *c = fm_json_at(r->cases, i);
        fm_ids ids = {0};
        fm_buf out;
        fm_buf_init(&out, 0);
        for (size_t k = 0; k < fm_json_count(fm_json_get(c, "ids")); k++)
            tk_ok(
                fm_ids_push(&ids, (int32_t)fm_json_int(fm_json_at(fm_json_get(c, "ids"), k), -1)));
        tk_ok(fm_tokenizer_decode(r->t, ids.id, ids.count, false, &out));
        assert_true(fm_span_eq(fm_buf_span(&out), fm_json_str(fm_json_get(c, "decoded"))));
        fm_buf_release(&out);
        fm_ids_release(&ids);
    }
}

static void streamed_pieces_are_whole_code_points_and_join_to_the_text(void **state)
{
    const real *r = *state;

    for (size_t i = 0; i < fm_json_count(r->cases); i++) {
        const fm_json *ids = fm_json_get(fm_json_at(r->cases, i), "ids");
        fm_tok_stream s;
        fm_buf out;
        fm_buf_init(&out, 0);
        fm_tok_stream_init(&s, r->t, false);
        for (size_t k = 0; k < fm_json_count(ids); k++) {
            fm_json *piece;
            size_t before = out.len;
            int32_t id = (int32_t)fm_json_int(fm_json_at(ids, k), -1);
            tk_ok(fm_tok_stream_push(&s, r->t, id, &out));
            piece = fm_json_new_strn(fm_buf_cstr(&out) + before, out.len - before);
            assert_int_equal(fm_json_str(piece).len, out.len - before); /* valid UTF-8 */
            fm_json_free(piece);
        }
        tk_ok(fm_tok_stream_finish(&s, r->t, &out));
        assert_true(fm_span_eq(fm_buf_span(&out),
                               fm_json_str(fm_json_get(fm_json_at(r->cases, i), "decoded"))));
        fm_buf_release(&out);
    }
}

static void special_ids_come_from_the_config(void **state)
{
    const real *r = *state;

    assert_int_equal(fm_tokenizer_vocab_size(r->t), 49152);
    assert_int_equal(fm_tokenizer_bos(r->t), 1);
    assert_int_equal(fm_tokenizer_eos(r->t), 2);
    assert_int_equal(fm_tokenizer_pad(r->t), 2);
    assert_int_equal(fm_tokenizer_unk(r->t), 0);
    assert_true(fm_tokenizer_is_special(r->t, 2));
    assert_false(fm_tokenizer_is_special(r->t, 100));
}

static void read_entry(fm_buf *out, const fm_source *src, const char *path)
{
    const fm_entry *e = fm_tree_find(fm_source_tree(src), path);
    fm_provider p = fm_source_provider(src);

    fm_buf_init(out, 0);
    if (!e)
        fail_msg("the imported tree lacks %s", path);
    else
        tk_ok(fm_entry_read(out, &p, e));
}

static fm_source *open_gguf(void)
{
    char *path = tk_smollm2_gguf();
    fm_source *src = NULL;

    if (path)
        tk_ok(fm_source_open(&src, path));
    fm_free(path);
    return src;
}

static void the_tokenizer_out_of_the_gguf_gives_the_same_ids(void **state)
{
    real r = *(const real *)*state;
    void *inner = &r;
    fm_source *src = open_gguf();
    fm_buf json, config;

    if (!src)
        skip(); /* no download here */
    read_entry(&json, src, "tokenizer/tokenizer.json");
    read_entry(&config, src, "tokenizer/tokenizer_config.json");
    tk_ok(fm_tokenizer_open(&r.t, fm_buf_span(&json), fm_buf_span(&config), "gguf"));
    ids_equal_those_of_hugging_face(&inner);
    decoding_gives_hugging_faces_text(&inner);
    special_ids_come_from_the_config(&inner);
    fm_tokenizer_close(r.t);
    fm_buf_release(&json);
    fm_buf_release(&config);
    fm_source_close(src);
}

static void the_template_out_of_the_gguf_gives_the_same_text(void **state)
{
    fm_source *src = open_gguf();
    fm_json *cases, *extra;
    fm_chat_template *t;
    fm_buf source, text;
    const real *r = *state;

    if (!src)
        skip();
    read_entry(&source, src, "tokenizer/chat_template.jinja");
    cases = load_json("smollm2/chat_cases.json");
    tk_ok(fm_chat_template_open(&t, fm_buf_span(&source), "gguf"));
    tk_ok(fm_chat_extra_new(&extra, r->t));
    fm_buf_init(&text, 0);
    for (size_t i = 0; i < fm_json_count(cases); i++) {
        const fm_json *c = fm_json_at(cases, i);
        fm_buf_clear(&text);
        tk_ok(fm_chat_render(&text, t, fm_json_get(c, "messages"), NULL,
                             fm_json_bool(fm_json_get(c, "add_generation_prompt"), false), extra));
        assert_string_equal(fm_buf_cstr(&text), fm_json_cstr(fm_json_get(c, "text"), ""));
    }
    fm_chat_template_close(t);
    fm_json_free(cases);
    fm_json_free(extra);
    fm_buf_release(&text);
    fm_buf_release(&source);
    fm_source_close(src);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_those_of_hugging_face),
        cmocka_unit_test(decoding_gives_hugging_faces_text),
        cmocka_unit_test(streamed_pieces_are_whole_code_points_and_join_to_the_text),
        cmocka_unit_test(special_ids_come_from_the_config),
        cmocka_unit_test(the_tokenizer_out_of_the_gguf_gives_the_same_ids),
        cmocka_unit_test(the_template_out_of_the_gguf_gives_the_same_text),
    };
    char *probe = tk_shared("smollm2/tokenizer.json");

    if (!probe)
        return tk_skip("no ../shared/data/smollm2");
    fm_free(probe);
    return cmocka_run_group_tests(tests, setup, teardown);
}
