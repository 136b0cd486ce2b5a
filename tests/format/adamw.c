/* AdamW's recurrence against PyTorch's own steps (golden/make_adamw.py) and against the kernel of
 * our trainer. */
#include "tests/testkit.h"

#include <math.h>
#include <string.h>

#include "infer/cpu/cpu.h"
#include "store/recipe/adamw.h"
#include "store/base/math/rng.h"

enum { W0, M0, V0, W1, M1, V1, ARRAYS };

typedef struct step {
    float *x[ARRAYS];
    size_t n;
} step;

static void fit(fms_adamw_fit *f, const step *s)
{
    memset(f, 0, sizeof *f);
    fms_adamw_fit_v(f, s->x[V1], s->x[V0], s->x[M0], s->x[M1], s->n);
    fms_adamw_fit_w(f, s->x[W1], s->x[W0], s->x[M1], s->x[V1], s->n);
}

TEST(pytorchs_steps_follow_from_the_first_moment)
{
    char *path = tk_source("tests/format/golden/adamw_torch.bin");
    fm_buf file;
    fm_buf_init(&file, 0);
    tk_ok(fm_read_file(&file, path, 1 << 20));
    const uint8_t *at = file.data;
    for (int k = 0; k < 2; k++) {
        step s = {.n = fm_get_u32(at)};
        fms_adamw_fit f;
        at += 4;
        for (int a = 0; a < ARRAYS; a++, at += 4 * s.n)
            s.x[a] = fm_memdup(at, 4 * s.n);
        fit(&f, &s);
        assert_true(f.s.beta2 == 0.99f && f.s.one_less_beta1 == (float)(1.0 - 0.9));
        if (k == 0) /* later numbers differ by less than PyTorch's square root */
            tk_assert_le(fabs((double)f.s.root - sqrt(1.0 - pow(0.99, 21.0))), 1e-7, "root");
        assert_true(f.s.eps == 1e-8f);
        assert_true(f.exact_v * 100 > 80 * s.n);
        assert_true(f.exact_w * 100 > 98 * s.n);
        for (int a = 0; a < ARRAYS; a++)
            fm_free(s.x[a]);
    }
    assert_ptr_equal(at, file.data + file.len);
    fm_buf_release(&file);
    fm_free(path);
}

/* Gradients of uneven sizes, some zero for ever, as an embedding's are. */
TEST(our_trainers_weights_follow_exactly)
{
    enum { N = 5000, STEPS = 40 };
    step s = {.n = N};
    float *g = fm_calloc(N, sizeof *g);
    fm_backend *be = NULL;
    fm_pool *pool = NULL;
    fms_adamw_fit f;
    tk_ok(fm_pool_new(&pool, 1));
    tk_ok(fmi_cpu_open_isa(&be, pool, NULL));
    for (int a = 0; a < ARRAYS; a++)
        s.x[a] = fm_calloc(N, sizeof(float));
    for (size_t i = 0; i < N; i++)
        s.x[W1][i] = (float)fm_rng_normal(3, 0, i) * 0.05f;
    for (uint64_t t = 1; t <= STEPS; t++) {
        for (int a = 0; a < 3; a++)
            memcpy(s.x[a], s.x[a + 3], N * sizeof(float));
        for (size_t i = 0; i < N; i++)
            g[i] = i % 50 == 0 ? 0.0f : (float)fm_rng_normal(4, t, i) * (float)(1 + i % 9) * 1e-3f;
        be->adamw(be, s.x[W1], s.x[M1], s.x[V1], g, N, 3e-4f, 0.9f, 0.999f, 1e-8f, 0.1f, t, 0.7f);
    }
    fit(&f, &s);
    assert_true(f.exact_v * 100 > 85 * N);
    assert_true(f.exact_w * 1000 > 999 * N);
    fm_backend_close(be);
    fm_pool_free(pool);
    for (int a = 0; a < ARRAYS; a++)
        fm_free(s.x[a]);
    fm_free(g);
}

TEST(noise_fits_nothing_and_breaks_nothing)
{
    enum { N = 1000 };
    step s = {.n = N};
    fms_adamw_fit f;
    for (uint64_t round = 0; round < 4; round++) {
        for (uint64_t a = 0; a < ARRAYS; a++) {
            s.x[a] = fm_calloc(N, sizeof(float));
            for (size_t i = 0; i < N && round > 0; i++) {
                const uint32_t u = (uint32_t)fm_rng_u64(7, a + 8 * round, i);
                memcpy(&s.x[a][i], &u, 4);
                if (round == 2)
                    s.x[a][i] = (float)fm_rng_normal(8, a, i);
            }
        }
        fit(&f, &s);
        assert_true(round == 0 || f.exact_w < N / 4);
        for (int a = 0; a < ARRAYS; a++)
            fm_free(s.x[a]);
    }
}

TEST(parameters_come_back_and_bad_ones_do_not)
{
    const fms_adamw_scalars s = {0.1f, 0.999f, 0.001f, 1.0f, 1e-3f, 0.5f, 1e-8f};
    fms_adamw_scalars back;
    uint8_t bytes[FMS_ADAMW_BYTES];
    fms_adamw_put(bytes, &s);
    tk_ok(fms_adamw_get(&back, fm_span_of(bytes, sizeof bytes)));
    assert_memory_equal(&back, &s, sizeof s);
    tk_fails(fms_adamw_get(&back, fm_span_of(bytes, 27)), FM_ECORRUPT, "27");
    fm_put_u32(bytes + 12, 0x7f800000u);
    tk_fails(fms_adamw_get(&back, fm_span_of(bytes, 28)), FM_ECORRUPT, "parameter 3");
    fm_put_u32(bytes + 12, 0);
    fm_put_u32(bytes, 0);
    tk_fails(fms_adamw_get(&back, fm_span_of(bytes, 28)), FM_ECORRUPT, "beta1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pytorchs_steps_follow_from_the_first_moment),
        cmocka_unit_test(our_trainers_weights_follow_exactly),
        cmocka_unit_test(noise_fits_nothing_and_breaks_nothing),
        cmocka_unit_test(parameters_come_back_and_bad_ones_do_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
