/* Mode bf16 runs whole models: logits near those of mode exact, the same on any number of threads
 * and however a text is cut, with an adapter too; weights at half the bytes; one cache of packed
 * weights for both modes. */
#include "tests/model/infer_kit.h"

#include <math.h>

#define TOKENS 24u
#define VOCAB_MOST 4096u
/* Both operands of every product rounded to 8 bits: 0.2 % of each, carried through the layers. */
#define TOL 3e-2

static fm_engine *engine(const char *mode, unsigned threads, const char *cache)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;

    o.mode = mode;
    o.threads = threads;
    o.max_rows = 32;
    o.cache_dir = cache;
    o.cache_min_bytes = 1;
    tk_ok(fm_engine_new(&e, &o));
    return e;
}

static uint32_t logits_of(float *out, fm_engine *e, const fm_tree *tree, const fm_provider *p,
                          uint32_t cut, uint64_t *weight_bytes)
{
    fm_model *m = NULL;
    int32_t ids[TOKENS];

    tk_ok(fm_model_load(&m, e, tree, p, "model"));
    uint32_t vocab = fm_model_arch(m)->vocab;
    assert_true(vocab <= VOCAB_MOST);
    for (uint32_t i = 0; i < TOKENS; i++)
        ids[i] = (int32_t)(i * 37u % (vocab - 8)) + 4;
    ik_logits(m, ids, TOKENS, cut, out);
    *weight_bytes = fm_engine_stats_of(e).weight_bytes;
    fm_model_close(m);
    return TOKENS * vocab;
}

static void check_model(const fm_tree *tree, const fm_provider *p, const char *what)
{
    static float want[TOKENS * VOCAB_MOST], got[TOKENS * VOCAB_MOST], again[TOKENS * VOCAB_MOST];
    fm_engine *exact = engine("exact", 1, NULL), *one = engine("bf16", 1, NULL);
    fm_engine *three = engine("bf16", 3, NULL);
    uint64_t exact_bytes, bytes;
    uint32_t n = logits_of(want, exact, tree, p, TOKENS, &exact_bytes);

    assert_int_equal(logits_of(got, one, tree, p, TOKENS, &bytes), n);
    assert_true(bytes < exact_bytes);
    double rel = tk_rel_norm(got, want, n);
    if (!(rel <= TOL) || !(rel > 0.0))
        fail_msg("%s: logits of bf16 are %g off, allowed more than 0 and %g", what, rel, TOL);
    (void)logits_of(again, three, tree, p, 5, &bytes);
    assert_memory_equal(again, got, n * sizeof(float));
    fm_engine_free(three);
    fm_engine_free(one);
    fm_engine_free(exact);
}

TEST(models_run_in_bf16)
{
    static const char *const folder[] = {"arch/llama", "arch/mixtral", "arch/gpt2", "arch/gemma3"};

    for (size_t i = 0; i < FM_ARRAY_LEN(folder); i++) {
        fm_source *src = ik_source(folder[i]);
        if (!src)
            skip();
        fm_provider p = fm_source_provider(src);
        check_model(fm_source_tree(src), &p, folder[i]);
        fm_source_close(src);
    }
}

TEST(an_adapter_runs_in_bf16)
{
    ik_adapted a;

    char *path = tk_shared("arch/llama/peft/lora");
    if (!path)
        skip();
    fm_free(path);
    ik_open_adapted(&a, "lora");
    fm_provider p = ik_provider(&a.both);
    check_model(a.tree, &p, "arch/llama with a LoRA");
    ik_close_adapted(&a);
}

/* Two modes, one folder of packed weights: each finds its own. */
TEST(modes_share_a_cache_folder)
{
    static const char *const mode[] = {"exact", "bf16", "exact", "bf16"};
    static float first[2][TOKENS * VOCAB_MOST], now[TOKENS * VOCAB_MOST];
    fm_source *src = ik_source("arch/llama");
    char *dir = tk_scratch();
    uint64_t bytes;

    if (!src)
        skip();
    fm_provider p = fm_source_provider(src);
    for (size_t i = 0; i < FM_ARRAY_LEN(mode); i++) {
        fm_engine *e = engine(mode[i], 2, dir);
        uint32_t n = logits_of(i < 2 ? first[i] : now, e, fm_source_tree(src), &p, TOKENS, &bytes);
        assert_int_equal(fm_engine_stats_of(e).packed_written > 0, i < 2);
        if (i >= 2)
            assert_memory_equal(now, first[i - 2], n * sizeof(float));
        fm_engine_free(e);
    }
    fm_source_close(src);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_run_in_bf16),
        cmocka_unit_test(an_adapter_runs_in_bf16),
        cmocka_unit_test(modes_share_a_cache_folder),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
