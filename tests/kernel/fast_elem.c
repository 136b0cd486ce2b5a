/* Element-wise operations of mode fast against double precision, and each instruction set and
 * number of threads with the same bits. */
#include "tests/kernel/kernel_kit.h"

#include "infer/cpu/fast/fast.h"

enum { N = 30011 };

/* Every magnitude, both signs, and what is no number. */
static void fill(float *gate, float *up)
{
    static const float special[] = {0.0f,  -0.0f,  1e-38f, -1e-38f, 87.0f, -87.0f,
                                    88.5f, -88.5f, 200.0f, -200.0f, 1e30f, NAN};
    for (size_t i = 0; i < N; i++) {
        double size = exp2(12.0 * fm_rng_uniform(1, 2, i) - 8.0);
        gate[i] = (float)((2.0 * fm_rng_uniform(1, 3, i) - 1.0) * size);
        up[i] = (float)(2.0 * fm_rng_uniform(1, 4, i) - 1.0);
    }
    memcpy(gate, special, sizeof special);
}

TEST(swiglu_equals_double_precision_on_every_instruction_set)
{
    static const char *const isas[] = {"avx512bf16", "avx512vnni", "avx512", "avx2", "generic"};
    static float gate[N], up[N], y[N + 1], first[N];

    fill(gate, up);
    for (unsigned n = 0; n < FM_ARRAY_LEN(isas) * 3; n++) {
        fm_pool *pool;
        fm_backend *be;
        tk_ok(fm_pool_new(&pool, 1 + n % 3));
        fm_status rc = fmi_cpu_open_fast(&be, pool, isas[n / 3]);
        if (rc == FM_OK) {
            y[N] = KK_GUARD_VALUE;
            be->swiglu(be, y, gate, up, N);
            tk_ok(be->sync(be));
            assert_true(y[N] == KK_GUARD_VALUE);
            for (size_t i = 0; i < N; i++) {
                double g = (double)gate[i], want = g / (1.0 + exp(-g)) * (double)up[i];
                /* the exponent's rounding grows with it; below 2^-126 e is 0 */
                double tol = 1e-6 * (1.0 + fabs(g) / 16.0) * fabs(want) + 2e-36;
                if (!(fabs((double)y[i] - want) <= tol) && !(isnan(gate[i]) && isnan(y[i])))
                    fail_msg("%s: swiglu(%g, %g) = %g, not %g", isas[n / 3], g, (double)up[i],
                             (double)y[i], want);
            }
            if (n == 0 || first[1000] == 0.0f)
                memcpy(first, y, sizeof first);
            for (size_t i = 0; i < N; i++)
                assert_true(isnan(y[i]) || memcmp(&first[i], &y[i], sizeof y[i]) == 0);
            memcpy(y, gate, sizeof gate); /* in place */
            be->swiglu(be, y, y, up, N);
            for (size_t i = 0; i < N; i++)
                assert_true(isnan(y[i]) || memcmp(&first[i], &y[i], sizeof y[i]) == 0);
            fm_backend_close(be);
        } else {
            assert_int_equal(rc, FM_EUNSUPPORTED);
        }
        fm_pool_free(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swiglu_equals_double_precision_on_every_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
