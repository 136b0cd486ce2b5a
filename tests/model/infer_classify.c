/* ctest: apart stages=2:4 */
/* Classification heads: four of transformers' and an adapter of PEFT's against their logits. */
#include "tests/model/infer_kit.h"

#include <math.h>

#define CLASSES 3
#define ROOM 12 /* tokens of a row of the references */

typedef struct golden {
    fm_source *src, *ref_src;
    ik_ref ref;
    int32_t *ids, *len;
    float *logits;
    size_t rows;
} golden;

static fm_source *open_golden(const char *relative)
{
    fm_source *src = NULL;
    char *path = fm_asprintf("%s/tests/model/golden/objectives/%s", FM_SOURCE_DIR, relative);
    tk_ok(fm_source_open(&src, path));
    fm_free(path);
    return src;
}

static void golden_open(golden *g, const char *name)
{
    char path[64];
    g->src = open_golden(name);
    (void)snprintf(path, sizeof(path), "%s/ref.safetensors", name);
    g->ref.src = open_golden(path);
    g->ids = ik_ref_get(&g->ref, "input_ids", NULL);
    g->len = ik_ref_get(&g->ref, "len", &g->rows);
    g->logits = ik_ref_get(&g->ref, "logits", NULL);
}

static void golden_close(golden *g)
{
    fm_free(g->ids);
    fm_free(g->len);
    fm_free(g->logits);
    fm_source_close(g->ref.src);
    fm_source_close(g->src);
}

static void compare(const float *have, const float *logits)
{
    double sum = 0.0;
    for (size_t i = 0; i < CLASSES; i++)
        sum += exp((double)logits[i]);
    for (size_t i = 0; i < CLASSES; i++)
        tk_assert_le(fabs((double)have[i] - ((double)logits[i] - log(sum))), 2e-6, "logprob");
}

static void compare_all(fm_engine *e, fm_model *m, const golden *g, const float *logits)
{
    float *lp = fm_calloc(g->rows * CLASSES, sizeof(float)), alone[CLASSES];
    fm_classify_request *q = fm_calloc(g->rows, sizeof(*q));
    for (size_t i = 0; i < g->rows; i++)
        q[i] = (fm_classify_request){m, g->ids + i * ROOM, (size_t)g->len[i], lp + i * CLASSES};
    tk_ok(fm_classify_many(e, q, g->rows));
    for (size_t i = 0; i < g->rows; i++) {
        compare(lp + i * CLASSES, logits + i * CLASSES);
        q[i].logprobs = alone;
        tk_ok(fm_classify_many(e, &q[i], 1));
        assert_memory_equal(alone, lp + i * CLASSES, sizeof(alone));
    }
    fm_free(q);
    fm_free(lp);
}

TEST(heads_match_transformers)
{
    static const char *const name[] = {"classify-llama", "classify-gpt2", "classify-bert",
                                       "classify-roberta", "classify-distilbert"};
    for (size_t i = 0; i < FM_ARRAY_LEN(name); i++) {
        golden g;
        fm_engine *e = ik_engine(2, 32);
        golden_open(&g, name[i]);
        fm_model *m = ik_model(e, g.src, name[i]);
        assert_int_equal(fm_model_classes(m), CLASSES);
        assert_string_equal(fm_model_label(m, 1), "perhaps");
        assert_null(fm_model_label(m, CLASSES));
        compare_all(e, m, &g, g.logits);
        fm_model_close(m);
        fm_engine_free(e);
        golden_close(&g);
    }
}

/* Whether the model is one that stages refuse, and this test runs over stages: then it does so,
 * and what the caller opened is closed. */
static bool refused_over_stages(golden *g, fm_engine *e, const char *name)
{
    fm_provider p = fm_source_provider(g->src);
    fm_model *m = NULL;

    if (!ik_on_stages() || strcmp(name, "score-albert") != 0)
        return false;
    tk_fails(fm_model_load(&m, e, fm_source_tree(g->src), &p, name), FM_EUNSUPPORTED,
             "over stages; use one");
    fm_engine_free(e);
    golden_close(g);
    return true;
}

/* A reranker's or a regression's output is what transformers' logit is. */
TEST(a_head_of_one_output_gives_it)
{
    static const char *const name[] = {"score-qwen3",      "score-bert",
                                       "score-albert",     "score-xlm-roberta",
                                       "score-modernbert", "score-modernbert-mean"};
    for (size_t i = 0; i < FM_ARRAY_LEN(name); i++) {
        golden g;
        fm_engine *e = ik_engine(2, 32);
        golden_open(&g, name[i]);
        if (refused_over_stages(&g, e, name[i]))
            continue;
        fm_model *m = ik_model(e, g.src, name[i]);
        float *out = fm_calloc(g.rows, sizeof(float)), alone;
        fm_classify_request *q = fm_calloc(g.rows, sizeof(*q));
        assert_true(fm_model_scores(m) && fm_model_classes(m) == 1);
        for (size_t r = 0; r < g.rows; r++)
            q[r] = (fm_classify_request){m, g.ids + r * ROOM, (size_t)g.len[r], out + r};
        tk_ok(fm_classify_many(e, q, g.rows));
        for (size_t r = 0; r < g.rows; r++) {
            tk_assert_le(fabs((double)out[r] - (double)g.logits[r]), 2e-6, name[i]);
            q[r].logprobs = &alone;
            tk_ok(fm_classify_many(e, &q[r], 1));
            assert_memory_equal(&alone, out + r, sizeof(alone));
        }
        fm_free(q);
        fm_free(out);
        fm_model_close(m);
        fm_engine_free(e);
        golden_close(&g);
    }
}

TEST(an_adapter_brings_its_head)
{
    golden g;
    fm_engine *e = ik_engine(1, 64);
    fm_source *adapter = open_golden("classify-llama/peft");
    ik_ref ref = {open_golden("classify-llama/peft/ref.safetensors")};
    float *logits = ik_ref_get(&ref, "logits", NULL);
    fm_tree *tree = NULL, *bare = NULL;
    fm_model *m = NULL;
    ik_mem both = {.behind_count = 2};
    fm_provider p;

    golden_open(&g, "classify-llama");
    both.behind[0] = fm_source_provider(g.src);
    both.behind[1] = fm_source_provider(adapter);
    p = ik_provider(&both);
    tk_ok(fm_adapter_apply(&tree, fm_source_tree(g.src), fm_source_tree(adapter), "base", NULL));
    tk_ok(fm_model_load(&m, e, tree, &p, "adapted"));
    compare_all(e, m, &g, logits);
    fm_model_close(m);
    /* The base may be a language model that knows of no classes. */
    const float head[48 * 16] = {0};
    tk_ok(fm_tree_copy(&bare, tree));
    tk_ok(fm_tree_remove(bare, "tensors/score.weight"));
    ik_put(&both, bare, "tensors", "lm_head.weight", head, 2, 48, 16);
    tk_ok(fm_model_load(&m, e, bare, &p, "adapted"));
    compare_all(e, m, &g, logits);
    fm_model_close(m);
    fm_tree_free(bare);
    fm_tree_free(tree);
    fm_free(logits);
    ik_mem_free(&both);
    fm_source_close(ref.src);
    fm_source_close(adapter);
    golden_close(&g);
    fm_engine_free(e);
}

/* transformers reads the last token that is no padding. */
TEST(padding_changes_nothing)
{
    golden g;
    fm_engine *e = ik_engine(1, 64);
    float plain[CLASSES], padded[CLASSES];
    int32_t ids[ROOM + 3] = {0};

    golden_open(&g, "classify-llama");
    fm_model *m = ik_model(e, g.src, "llama");
    fm_classify_request q = {m, g.ids, (size_t)g.len[0], plain};
    tk_ok(fm_classify_many(e, &q, 1));
    memcpy(ids, g.ids, (size_t)g.len[0] * sizeof(ids[0]));
    q = (fm_classify_request){m, ids, (size_t)g.len[0] + 3, padded};
    tk_ok(fm_classify_many(e, &q, 1));
    assert_memory_equal(plain, padded, sizeof(plain));
    fm_model_close(m);
    golden_close(&g);
    fm_engine_free(e);
}

static fm_model *with_config(fm_engine *e, const golden *g, const char *config)
{
    fm_provider p = fm_source_provider(g->src);
    fm_tree *tree = NULL;
    fm_model *m = NULL;
    tk_ok(fm_tree_copy(&tree, fm_source_tree(g->src)));
    tk_ok(fm_tree_put_file(tree, "model.json", fm_span_str(config)));
    tk_ok(fm_model_load(&m, e, tree, &p, "m"));
    fm_tree_free(tree);
    return m;
}

#define CONFIG(more)                                                                               \
    "{\"config\":{\"model_type\":\"llama\",\"vocab_size\":48,\"hidden_size\":16,"                  \
    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,"                 \
    "\"intermediate_size\":24,\"max_position_embeddings\":32,\"pad_token_id\":0,"                  \
    "\"tie_word_embeddings\":true" more "}}"

TEST(what_is_no_choice_is_refused)
{
    golden g;
    fm_engine *e = ik_engine(1, 64);
    float out[CLASSES];
    fm_tree *tree = NULL;
    fm_model *m = NULL;
    ik_mem mem = {.behind_count = 1};
    fm_provider p = ik_provider(&mem);
    const float head[48 * 16] = {0};

    golden_open(&g, "classify-llama");
    mem.behind[0] = fm_source_provider(g.src);
    m = with_config(e, &g, CONFIG(",\"problem_type\":\"multi_label_classification\""));
    fm_classify_request q = {m, g.ids, 4, out};
    tk_fails(fm_classify_many(e, &q, 1), FM_EUNSUPPORTED, "multi_label");
    fm_model_close(m);
    m = with_config(e, &g, CONFIG(""));
    assert_string_equal(fm_model_label(m, 2), "LABEL_2");
    q = (fm_classify_request){m, g.ids, 0, out};
    tk_fails(fm_classify_many(e, &q, 1), FM_EINVAL, "no tokens");
    fm_model_close(m);
    /* it gives no text; with both heads and without the classes it is three models */
    float lp[4];
    m = ik_model(e, g.src, "classes");
    tk_fails(fm_score(m, g.ids, 4, lp, NULL, 0), FM_EUNSUPPORTED, "classifier");
    fm_digest alone = fm_model_digest(m);
    fm_model_close(m);
    tk_ok(fm_tree_copy(&tree, fm_source_tree(g.src)));
    ik_put(&mem, tree, "tensors", "lm_head.weight", head, 2, 48, 16);
    tk_ok(fm_model_load(&m, e, tree, &p, "both"));
    tk_ok(fm_score(m, g.ids, 4, lp, NULL, 0));
    fm_digest with = fm_model_digest(m);
    assert_false(fm_digest_eq(&with, &alone));
    fm_model_close(m);
    tk_ok(fm_tree_remove(tree, "tensors/score.weight"));
    tk_ok(fm_model_load(&m, e, tree, &p, "without"));
    fm_digest without = fm_model_digest(m);
    assert_false(fm_digest_eq(&with, &without));
    assert_int_equal(fm_model_classes(m), 0);
    q = (fm_classify_request){m, g.ids, 4, out};
    tk_fails(fm_classify_many(e, &q, 1), FM_EUNSUPPORTED, "no classification head");
    fm_model_close(m);
    fm_tree_free(tree);
    ik_mem_free(&mem);
    golden_close(&g);
    fm_engine_free(e);
}

/* Loads the model with a config of its sizes and `with`. */
static fm_status load_modern(fm_model **m, fm_engine *e, golden *g, const char *with)
{
    fm_tree *tree = NULL;
    ik_mem mem = {.behind = {fm_source_provider(g->src)}, .behind_count = 1};
    const fm_provider p = ik_provider(&mem);
    char *config = fm_asprintf(
        "{\"config\":{\"model_type\":\"modernbert\",\"vocab_size\":48,\"hidden_size\":16,"
        "\"intermediate_size\":24,\"num_hidden_layers\":2,\"num_attention_heads\":2,"
        "\"max_position_embeddings\":32,\"local_attention\":6%s}}",
        with);
    tk_ok(fm_tree_copy(&tree, fm_source_tree(g->src)));
    tk_ok(fm_tree_put_file(tree, "model.json", fm_span_str(config)));
    fm_status rc = fm_model_load(m, e, tree, &p, "m");
    fm_free(config);
    fm_tree_free(tree);
    ik_mem_free(&mem);
    return rc;
}

TEST(settings_of_a_head_with_a_norm_are_read)
{
    golden g;
    fm_engine *e = ik_engine(1, 64);
    float out[1], mean[1];
    fm_model *m = NULL;

    golden_open(&g, "score-modernbert");
    tk_fails(load_modern(&m, e, &g, ",\"classifier_activation\":\"mish\""), FM_EUNSUPPORTED,
             "classifier_activation 'mish'");
    tk_fails(load_modern(&m, e, &g, ",\"classifier_pooling\":\"max\""), FM_EUNSUPPORTED,
             "classifier_pooling 'max'");
    tk_ok(load_modern(&m, e, &g, ",\"architectures\":[\"ModernBertForTokenClassification\"]"));
    fm_classify_request q = {m, g.ids, 4, out};
    tk_fails(fm_classify_many(e, &q, 1), FM_EUNSUPPORTED, "ModernBertForTokenClassification");
    fm_model_close(m);
    tk_ok(load_modern(&m, e, &g, ""));
    fm_digest first = fm_model_digest(m);
    q.model = m;
    tk_ok(fm_classify_many(e, &q, 1));
    fm_model_close(m);
    tk_ok(load_modern(&m, e, &g, ",\"classifier_pooling\":\"mean\""));
    fm_digest other = fm_model_digest(m);
    q = (fm_classify_request){m, g.ids, 4, mean};
    tk_ok(fm_classify_many(e, &q, 1));
    assert_true(!fm_digest_eq(&first, &other) && memcmp(out, mean, sizeof(out)) != 0);
    fm_model_close(m);
    golden_close(&g);
    fm_engine_free(e);
}

TEST(a_head_of_another_width_is_an_error)
{
    golden g;
    fm_engine *e = ik_engine(1, 64);
    fm_tree *tree = NULL;
    fm_model *m = NULL;
    ik_mem mem = {.behind_count = 1};
    const float wrong[3 * 15] = {0};

    golden_open(&g, "classify-llama");
    mem.behind[0] = fm_source_provider(g.src);
    fm_provider p = ik_provider(&mem);
    tk_ok(fm_tree_copy(&tree, fm_source_tree(g.src)));
    ik_put(&mem, tree, "tensors", "score.weight", wrong, 2, 3, 15);
    tk_fails(fm_model_load(&m, e, tree, &p, "m"), FM_EBASE, "score.weight");
    fm_tree_free(tree);
    ik_mem_free(&mem);
    golden_close(&g);
    fm_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_match_transformers),
        cmocka_unit_test(a_head_of_one_output_gives_it),
        cmocka_unit_test(an_adapter_brings_its_head),
        cmocka_unit_test(padding_changes_nothing),
        cmocka_unit_test(what_is_no_choice_is_refused),
        cmocka_unit_test(settings_of_a_head_with_a_norm_are_read),
        cmocka_unit_test(a_head_of_another_width_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
