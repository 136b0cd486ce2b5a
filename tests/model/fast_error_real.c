/* ctest: cost=25 */
/* Mode fast against mode exact on 160 tokens of real text (FM_ROWS=n: that many, 512 in ./check
 * --long): SmolLM2 as its Q4_1 file holds it, and with its matrices as Q4_0, Q8_0 and bf16.
 * `bench_infer --error` prints the same over 4,096 tokens beside llama.cpp's own error; the bounds
 * here keep it from growing unseen. */
#include "tests/model/error_kit.h"

typedef struct bounds {
    const char *name;
    fm_dtype dtype; /* NONE: as the file holds them */
    double kl_mean, kl_p99, change, top1;
} bounds;

/* Twice what the avx512bf16 kernels measured: mean KL 2.8e-3, 3.4e-3, 3.0e-3, 9.8e-5; top-1 96.5,
 * 95.9, 96.1, 99.6 %. llama.cpp's own error is as large (`bench_infer --error`). */
static const bounds limits[] = {
    {"Q4_1", FM_DTYPE_NONE, 5.6e-3, 2.5e-2, 0.75, 0.930},
    {"Q4_0", FM_Q4_0, 6.9e-3, 3.1e-2, 0.95, 0.918},
    {"Q8_0", FM_Q8_0, 6.1e-3, 2.9e-2, 0.95, 0.922},
    {"bf16", FM_BF16, 2.0e-4, 8.1e-4, 0.18, 0.990},
};

typedef struct world {
    fm_source *src;
    int32_t ids[EK_PIECE + 1];
    uint32_t rows; /* of the step, at most EK_PIECE */
} world;

static fm_engine *engine(const char *mode)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    o.mode = mode;
    o.max_rows = EK_PIECE;
    fm_status rc = fm_engine_new(&e, &o);
    if (rc != FM_EUNSUPPORTED)
        tk_ok(rc);
    return e;
}

static fm_model *load(fm_engine *e, ek_recast *c)
{
    fm_model *m = NULL;
    fm_tree *t = ek_recast_tree(c);
    fm_provider p = {.ctx = c, .read = ek_recast_read};
    tk_ok(fm_model_load(&m, e, t, &p, "smollm2"));
    fm_tree_free(t);
    return m;
}

static void check(world *w, const bounds *b)
{
    static ek_gap g;
    static const float *want[EK_PIECE], *got[EK_PIECE];
    ek_recast c = {w->src, b->dtype};
    fm_engine *exact = engine("exact"), *fast = engine("fast");
    fm_model *me = load(exact, &c), *mf = load(fast, &c);
    tk_ok(ek_step(me, w->ids, w->rows, want));
    tk_ok(ek_step(mf, w->ids, w->rows, got));
    g = (ek_gap){0};
    for (uint32_t i = 0; i < w->rows; i++) {
        ek_row r = ek_compare(want[i], got[i], fm_model_arch(me)->vocab, w->ids[i + 1]);
        ek_add(&g, &r);
    }
    double mean = ek_mean(&g), p99 = ek_share(&g, 0.99), top1 = (double)g.agree / g.n;
    printf("%s: KL mean %.3e p99 %.3e, largest change %.3f, top-1 %.4f\n", b->name, mean, p99,
           g.worst, top1);
    tk_assert_le(mean, b->kl_mean, "mean KL");
    tk_assert_le(p99, b->kl_p99, "p99 of KL");
    tk_assert_le(g.worst, b->change, "largest change of a log-probability");
    /* of few rows, two near ties more than the bound of many has */
    double slack = g.n < EK_PIECE ? 2.0 / g.n : 0;
    tk_assert_le(b->top1 - slack, top1, "top-1 agreement (the bound comes first)");
    fm_model_close(me);
    fm_model_close(mf);
    fm_engine_free(exact);
    fm_engine_free(fast);
}

static void q4_1_stays_near_exact(void **state)
{
    check(*state, &limits[0]);
}

static void q4_0_stays_near_exact(void **state)
{
    check(*state, &limits[1]);
}

static void q8_0_stays_near_exact(void **state)
{
    check(*state, &limits[2]);
}

static void bf16_stays_near_exact(void **state)
{
    check(*state, &limits[3]);
}

static int setup(void **state)
{
    static world w;
    char *path = tk_smollm2_gguf();
    const char *rows = getenv("FM_ROWS");
    w.rows = rows ? FM_MIN((uint32_t)strtoul(rows, NULL, 10), EK_PIECE) : 160;
    tk_ok(fm_source_open(&w.src, path));
    fm_free(path);
    fm_engine *e = engine("exact");
    fm_model *m = ik_model(e, w.src, "smollm2");
    assert_true(ek_text(w.ids, EK_PIECE + 1, fm_model_tokenizer(m)));
    fm_model_close(m);
    fm_engine_free(e);
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    fm_source_close(w->src);
    return 0;
}

int main(void)
{
    char *gguf = tk_smollm2_gguf(), *text = tk_shared("text/tinyshakespeare.txt");
    bool there = gguf && text;
    fm_free(gguf);
    fm_free(text);
    if (!there)
        return tk_skip("SmolLM2 or the text is not on this machine");
    fm_engine *fast = engine("fast");
    if (!fast)
        return tk_skip("this build has no mode fast");
    fm_engine_free(fast);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q4_1_stays_near_exact),
        cmocka_unit_test(q4_0_stays_near_exact),
        cmocka_unit_test(q8_0_stays_near_exact),
        cmocka_unit_test(bf16_stays_near_exact),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
