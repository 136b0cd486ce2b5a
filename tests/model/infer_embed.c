/* ctest: apart */
/* Embeddings: the tiny BERT's pooled states, settings of a folder, decoders, batches and cuts. */
#include "tests/model/infer_kit.h"

#include <math.h>

#define H 48

static fm_model *with_settings(fm_engine *e, const fm_source *src, const char *modules,
                               const char *pooling, const char *limits)
{
    fm_provider p = fm_source_provider(src);
    fm_tree *tree = NULL;
    fm_model *m = NULL;
    tk_ok(fm_tree_copy(&tree, fm_source_tree(src)));
    if (modules)
        tk_ok(fm_tree_put_file(tree, "source/files/modules.json", fm_span_str(modules)));
    if (pooling)
        tk_ok(fm_tree_put_file(tree, "source/files/1_Pooling/config.json", fm_span_str(pooling)));
    if (limits)
        tk_ok(
            fm_tree_put_file(tree, "source/files/sentence_bert_config.json", fm_span_str(limits)));
    tk_ok(fm_model_load(&m, e, tree, &p, "m"));
    fm_tree_free(tree);
    return m;
}

#define MODULE(type, path)                                                                         \
    "{\"idx\":0,\"path\":\"" path "\",\"type\":\"sentence_transformers.models." type "\"}"
#define PLAIN "[" MODULE("Transformer", "") "," MODULE("Pooling", "1_Pooling") "]"
#define NORMED                                                                                     \
    "[" MODULE("Transformer", "") "," MODULE("Pooling", "1_Pooling") "," MODULE("Normalize",       \
                                                                                "2_Normalize") "]"

static fm_source *src;
static ik_ref ref;
static int32_t *ids;
static float *hidden, *pooled;

static uint32_t length_of(uint32_t b)
{
    return b ? 19 : 24; /* the mask of the reference */
}

static void one(fm_model *m, uint32_t b, float *out)
{
    fm_embed_request q = {m, ids + 24 * b, length_of(b), out};
    tk_ok(fm_embed_many(fm_model_engine(m), &q, 1));
}

TEST(mean_and_norm_match_the_reference)
{
    fm_engine *e = ik_engine(1, 64);
    fm_model *m = ik_model(e, src, "bert"),
             *named = with_settings(e, src, NORMED, "{\"pooling_mode_mean_tokens\":true}",
                                    "{\"max_seq_length\":20,\"do_lower_case\":false}");
    float out[2][H], alone[H];
    fm_embed_request both[] = {{m, ids, 24, out[0]}, {named, ids + 24, 19, out[1]}};
    tk_ok(fm_embed_many(e, both, 2));
    for (uint32_t b = 0; b < 2; b++) {
        tk_assert_le(tk_rel_norm(out[b], pooled + b * H, H), 1e-6, "pooled");
        one(m, b, alone);
        assert_memory_equal(alone, out[b], sizeof(alone));
    }
    assert_int_equal(fm_embed_tokens_max(named), 20);
    assert_int_equal(fm_embed_tokens_max(m), 256);
    fm_model_close(m);
    fm_model_close(named);
    fm_engine_free(e);
}

TEST(other_poolings_follow_the_folder)
{
    fm_engine *e = ik_engine(1, 64);
    fm_model *cls = with_settings(e, src, PLAIN, "{\"pooling_mode_cls_token\":true}", NULL);
    fm_model *last = with_settings(e, src, PLAIN, "{\"pooling_mode\":\"lasttoken\"}", NULL);
    fm_model *bad = with_settings(e, src, PLAIN, "{\"pooling_mode_max_tokens\":true}", NULL);
    fm_model *two = with_settings(
        e, src, PLAIN, "{\"pooling_mode_mean_tokens\":true,\"pooling_mode_cls_token\":true}", NULL);
    fm_model *dense = with_settings(e, src, "[" MODULE("Dense", "3_Dense") "]", NULL, NULL);
    fm_model *gone = with_settings(e, src, PLAIN, NULL, NULL);
    float out[H];
    one(cls, 1, out);
    tk_assert_le(tk_rel_norm(out, hidden + 24 * H, H), 1e-5, "cls");
    one(last, 1, out);
    tk_assert_le(tk_rel_norm(out, hidden + (24 + 18) * H, H), 1e-5, "last");
    fm_embed_request q = {bad, ids, 4, out};
    tk_fails(fm_embed_many(e, &q, 1), FM_EUNSUPPORTED, "pooling_mode_max_tokens");
    q.model = two;
    tk_fails(fm_embed_many(e, &q, 1), FM_EUNSUPPORTED, "one of");
    q.model = dense;
    tk_fails(fm_embed_many(e, &q, 1), FM_EUNSUPPORTED, "3_Dense/config.json");
    q.model = gone;
    tk_fails(fm_embed_many(e, &q, 1), FM_EUNSUPPORTED, "1_Pooling/config.json");
    fm_model *all[] = {cls, last, bad, two, dense, gone};
    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++)
        fm_model_close(all[i]);
    fm_engine_free(e);
}

/* The Dense modules of golden/dense (make_dense.py) behind the pooling of a Gemma that sees both
 * ways, as EmbeddingGemma's. */
TEST(dense_modules_follow_the_pooling)
{
    char *dir = fm_asprintf("%s/tests/model/golden/dense", FM_SOURCE_DIR);
    fm_source *folder = NULL, *want_src = NULL;
    char *file = fm_asprintf("%s/ref.safetensors", dir);
    tk_ok(fm_source_open(&folder, dir));
    tk_ok(fm_source_open(&want_src, file));
    ik_ref made = {want_src};
    fm_engine *e = ik_engine(2, 64);
    fm_model *m = ik_model(e, folder, "dense");
    size_t n = 0, h = 0;
    int32_t *text = ik_ref_get(&made, "input_ids", &n);
    float *want = ik_ref_get(&made, "embedding", &h), out[H];
    fm_embed_request q = {m, text, n, out};
    assert_int_equal(h, fm_model_arch(m)->hidden);
    tk_ok(fm_embed_many(e, &q, 1));
    tk_assert_le(tk_rel_norm(out, want, h), 2e-6, "dense");
    fm_digest own = fm_model_digest_for(m, FM_ASK_EMBED);
    fm_model_close(m);

    fm_model *bare = with_settings(e, folder, PLAIN, NULL, NULL);
    fm_digest other = fm_model_digest_for(bare, FM_ASK_EMBED);
    assert_false(fm_digest_eq(&own, &other));
    fm_model_close(bare);
    fm_model *narrow = with_settings(
        e, folder, "[" MODULE("Pooling", "1_Pooling") "," MODULE("Dense", "2_Dense") "]", NULL,
        NULL);
    q.model = narrow;
    tk_fails(fm_embed_many(e, &q, 1), FM_EUNSUPPORTED, "end with 24 numbers");
    fm_model_close(narrow);
    fm_engine_free(e);
    fm_free(text);
    fm_free(want);
    fm_source_close(want_src);
    fm_source_close(folder);
    fm_free(file);
    fm_free(dir);
}

TEST(limits_are_named)
{
    fm_engine *e = ik_engine(1, 16);
    fm_model *m = ik_model(e, src, "bert");
    int32_t wrong = 160;
    float out[H];
    fm_embed_request q = {m, ids, 24, out};
    fm_ids got = {0};
    tk_fails(fm_embed_many(e, &q, 1), FM_ELIMIT, "16");
    q.n = 0;
    tk_fails(fm_embed_many(e, &q, 1), FM_EINVAL, "no tokens");
    q = (fm_embed_request){m, &wrong, 1, out};
    tk_fails(fm_embed_many(e, &q, 1), FM_EINVAL, "160");
    tk_fails(fm_embed_encode(m, fm_span_str("a"), &got), FM_EUNSUPPORTED, "tokenizer");
    fm_model_close(m);
    fm_engine_free(e);
}

/* More texts than a step holds, of a decoder and in pieces: the state that its tap shows. */
typedef struct seen {
    uint32_t layer;
    float last[H];
} seen;

static void keep_last(void *ctx, uint32_t layer, const float *x, uint32_t n, uint32_t h)
{
    seen *s = ctx;
    if (layer == s->layer)
        memcpy(s->last, x + (size_t)(n - 1) * h, h * sizeof(float));
}

TEST(a_decoder_gives_its_last_state)
{
    fm_source *llama = ik_source("arch/llama");
    if (!llama)
        skip();
    fm_engine *e = ik_engine(2, 16);
    fm_model *m = ik_model(e, llama, "llama");
    float out[5][H];
    int32_t text[40];
    fm_embed_request q[5];
    for (int i = 0; i < 40; i++)
        text[i] = 3 + (i * 31) % 150;
    for (size_t i = 0; i < 5; i++)
        q[i] = (fm_embed_request){m, text + i, i == 2 ? 37 : 7 + i, out[i]};
    tk_ok(fm_embed_many(e, q, 5));
    for (size_t i = 0; i < 5; i++) {
        seen s = {.layer = 2};
        fm_engine_tap(e, keep_last, &s);
        fm_seq *seq = NULL;
        fm_row row;
        tk_ok(fm_seq_open(&seq, m));
        for (size_t k = 0; k < q[i].n; k++) {
            row = (fm_row){seq, q[i].ids[k], false};
            tk_ok(fm_engine_step(e, &row, 1));
        }
        fm_seq_close(seq);
        fm_engine_tap(e, NULL, NULL);
        assert_memory_equal(out[i], s.last, sizeof(s.last));
    }
    fm_model_close(m);
    fm_engine_free(e);
    fm_source_close(llama);
}

int main(void)
{
    if (!ik_ref_open(&ref, "arch/bert/ref.safetensors"))
        return tk_skip("no reference data");
    src = ik_source("arch/bert");
    ids = ik_ref_get(&ref, "input_ids", NULL);
    hidden = ik_ref_get(&ref, "hidden", NULL);
    pooled = ik_ref_get(&ref, "mean_pooled_normalized", NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mean_and_norm_match_the_reference),
        cmocka_unit_test(other_poolings_follow_the_folder),
        cmocka_unit_test(dense_modules_follow_the_pooling),
        cmocka_unit_test(limits_are_named),
        cmocka_unit_test(a_decoder_gives_its_last_state),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fm_free(ids);
    fm_free(hidden);
    fm_free(pooled);
    fm_source_close(src);
    fm_source_close(ref.src);
    return failed;
}
