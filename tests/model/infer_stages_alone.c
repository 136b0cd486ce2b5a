/* ctest: ranks */
/* infer_stages_alone.c - a rank of a pipeline that lacks memory fails the step on all ranks, with
 * its text; what follows has the bits of one rank. Allocations of all ranks, which are threads
 * here, fail one after another. */
#include "tests/model/ranks_kit.h"

#define TOKENS 40u

static fm_status run(fm_model *m, const int32_t *ids, float *out)
{
    fm_engine *e = fm_model_engine(m);
    uint32_t vocab = fm_model_arch(m)->vocab;
    fm_seq *s = NULL;
    fm_row row[TOKENS];
    fm_status rc = fm_seq_open(&s, m);
    for (uint32_t i = 0; i < TOKENS && rc == FM_OK; i++)
        row[i] = (fm_row){s, ids[i], i % 4 == 3};
    if (rc == FM_OK)
        rc = fm_engine_step(e, row, TOKENS);
    for (uint32_t i = 3; i < TOKENS && rc == FM_OK; i += 4)
        memcpy(out + (i / 4) * vocab, fm_engine_logits(e, i), vocab * sizeof(float));
    fm_seq_close(s);
    return rc;
}

static void check(uint32_t stages, uint32_t split)
{
    char *path = tk_source("examples/atlas/base");
    fm_source *src = NULL;
    rk_ranks k[2];
    fm_model *m[2];
    int32_t ids[TOKENS];
    tk_ok(fm_source_open(&src, path));
    fm_provider p = fm_source_provider(src);
    for (uint32_t i = 0; i < 2; i++) { /* the reference: split ranks without stages */
        fm_engine_opts o = rk_opts("exact", 64);
        o.stages = i ? stages : 1;
        o.micro_rows = 7;
        rk_open(&k[i], o.stages * split, &o, &p);
        m[i] = ik_model(k[i].e, src, "atlas");
    }
    size_t floats = TOKENS / 4 * fm_model_arch(m[0])->vocab;
    float *want = fm_malloc(2 * floats * sizeof(float)), *got = want + floats;
    uint32_t failed = 0;
    for (uint32_t nth = 1; nth <= 60; nth += rk_card(0) ? 5 : 1) {
        for (uint32_t i = 0; i < TOKENS; i++) /* other texts: nothing of them is in the caches */
            ids[i] = (int32_t)(20 + (i * 7 + nth * (i + 3)) % 900);
        fm_mem_fail_at(nth, false);
        fm_status rc = run(m[1], ids, got);
        fm_mem_fail_at(0, false);
        if (rc != FM_OK && !strstr(fm_error_text(), "out of memory") &&
            !strstr(fm_error_text(), "a sequence of the step could not be opened"))
            fail_msg("allocation %u: %s", nth, fm_error_text());
        failed += rc != FM_OK;
        if (rc != FM_OK)
            tk_ok(run(m[1], ids, got));
        tk_ok(run(m[0], ids, want));
        assert_memory_equal(want, got, floats * sizeof(float));
    }
    assert_true(failed >= 3);
    for (uint32_t i = 0; i < 2; i++) {
        fm_model_close(m[i]);
        rk_close(&k[i]);
    }
    fm_free(want);
    fm_source_close(src);
    fm_free(path);
}

TEST(two_stages)
{
    check(2, 1);
}

TEST(three_stages)
{
    check(3, 1);
}

TEST(two_stages_of_two)
{
    check(2, 2);
}

/* The first opening of a model with virtual positions computes them on all ranks: where one fails
 * alone, no rank keeps what it has, and the next opening computes on all again. */
TEST(an_opening)
{
    static const char *const kind[] = {"prompt", "prefix"};
    for (uint32_t i = 0; i < FM_ARRAY_LEN(kind); i++) {
        ik_adapted a;
        ik_open_adapted(&a, kind[i]);
        fm_provider p = ik_provider(&a.both);
        uint32_t failed = 0, clean = 0;
        float want[24][160], got[24][160];
        int32_t ids[24];
        for (int32_t t = 0; t < 24; t++)
            ids[t] = 3 + 5 * t;
        for (uint32_t nth = 0; clean < 6 && nth < 200; nth++) {
            fm_engine_opts o = rk_opts("exact", 64);
            rk_ranks k;
            fm_model *m = NULL;
            fm_seq *s = NULL;
            o.stages = nth ? 2 : 1;
            rk_open(&k, o.stages, &o, &p);
            tk_ok(fm_model_load(&m, k.e, a.tree, &p, kind[i]));
            fm_mem_fail_at(nth, false);
            fm_status rc = fm_seq_open(&s, m);
            fm_mem_fail_at(0, false);
            failed += rc != FM_OK;
            clean = rc == FM_OK ? clean + 1 : 0;
            fm_seq_close(s);
            ik_logits(m, ids, 24, 24, nth ? got[0] : want[0]);
            if (nth)
                assert_memory_equal(got, want, sizeof(want));
            fm_model_close(m);
            rk_close(&k);
        }
        assert_true(failed >= 3);
        ik_close_adapted(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_stages), cmocka_unit_test(three_stages),
                                       cmocka_unit_test(two_stages_of_two),
                                       cmocka_unit_test(an_opening)};
    rk_only("two_stages_of_two");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
