/* ctest: card */
/* Layer norm, activations, softcaps, mixtures of rows: the oracle, accuracy of tanh and gelu,
 * limits (infinities, NaN). */
#include "tests/kernel/kernel_kit.h"

#define FMI_ISA_GENERIC
#include "infer/cpu/kern/vec.h"

#define TOL_ELEM 1e-6
#define TOL_SUM 3e-6

static float one(vf (*f)(vf), float x)
{
    float out[VF_LANES];

    vf_store(out, f(vf_set1(x)));
    return out[0];
}
static vf tanh_of(vf x)
{
    return vf_tanh(x);
}
static vf gelu_of(vf x)
{
    return vf_gelu(x);
}
static vf gelu_tanh_of(vf x)
{
    return vf_gelu_tanh(x);
}

TEST(tanh_is_within_two_ulp)
{
    double worst = 0.0;

    for (int i = -120000; i <= 120000; i++) {
        float x = (float)i * 1e-4f;
        double want = tanh((double)x);
        double ulp = i ? ldexp(1.0, ilogb(want) - 23) : 0x1p-149;
        worst = fmax(worst, fabs((double)one(tanh_of, x) - want) / ulp);
    }
    tk_assert_le(worst, 2.0, "ulp of tanh");
    assert_true(one(tanh_of, INFINITY) == 1.0f && one(tanh_of, -INFINITY) == -1.0f);
    assert_true(one(tanh_of, 100.0f) == 1.0f && isnan(one(tanh_of, NAN)));
}

/* Relative, down to where the result leaves the normal numbers. */
TEST(gelus_are_accurate_in_their_tails)
{
    double erf_worst = 0.0, tanh_worst = 0.0;

    for (int i = -120000; i <= 120000; i++) {
        float x = (float)i * 1e-4f;
        double v = (double)x, want = 0.5 * v * erfc(-v * 0.70710678118654752440);
        if (i != 0)
            erf_worst = fmax(erf_worst, fabs((double)one(gelu_of, x) - want) / fabs(want));
        if (i < -50000 || i == 0)
            continue;
        double u = 0.79788456080286535588 * (v + 0.044715 * v * v * v);
        want = v / (1.0 + exp(-2.0 * u));
        tanh_worst = fmax(tanh_worst, fabs((double)one(gelu_tanh_of, x) - want) / fabs(want));
    }
    tk_assert_le(erf_worst, 5e-7, "relative error of gelu");
    tk_assert_le(tanh_worst, 3e-6, "relative error of gelu_tanh"); /* e^-2u at 2u of some 18 */
    assert_true(one(gelu_of, 30.0f) == 30.0f && one(gelu_of, -30.0f) == 0.0f);
    assert_true(one(gelu_tanh_of, 30.0f) == 30.0f && one(gelu_tanh_of, -30.0f) == 0.0f);
    assert_true(isnan(one(gelu_of, NAN)) && isnan(one(gelu_tanh_of, NAN)));
}

/* dim: m, h, padding */
static void case_layernorm(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], h = dim[1], ld = h + dim[2];
    float *x = kk_in(k, (size_t)m * ld, 3.0), *gain = kk_in(k, h, 2.0), *bias = kk_in(k, h, 1.0);
    float *y = kk_out(k, (size_t)m * ld, 1.0), *plain = kk_out(k, (size_t)m * ld, 1.0);
    float *own = kk_out(k, (size_t)m * ld, 1.0);

    k->be->layernorm(k->be, y, x, gain, bias, m, h, ld, 1e-5f);
    k->be->layernorm(k->be, plain, x, NULL, NULL, m, h, ld, 1e-12f);
    k->be->layernorm(k->be, own, own, gain, NULL, m, h, ld, 1e-5f);
}

/* dim: function, m, n, padding, gated */
static void case_act(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[1], n = dim[2], ld = n + dim[3];
    float *gate = kk_in(k, (size_t)m * ld, 6.0), *up = kk_in(k, (size_t)m * ld, 2.0);
    float *y = kk_out(k, (size_t)m * n, 1.0), *own = kk_out(k, (size_t)m * ld, 4.0);

    k->be->act(k->be, (fm_act)dim[0], y, n, gate, ld, dim[4] ? up : NULL, ld, m, n);
    k->be->act(k->be, (fm_act)dim[0], own, ld, own, ld, dim[4] ? up : NULL, ld, m, n);
}

/* dim: m, n, padding */
static void case_softcap(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], n = dim[1], ld = n + dim[2];
    float *y = kk_out(k, (size_t)m * ld, 90.0);

    k->be->softcap(k->be, y, ld, m, n, 30.0f);
}

/* dim: m, n, padding, per */
static void case_mix_rows(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], n = dim[1], ld = n + dim[2], per = dim[3];
    float *x = kk_in(k, (size_t)m * per * ld, 2.0), *weight = kk_in(k, (size_t)m * per, 1.0);
    int32_t *row = kk_shuffled(k, m * per);
    float *y = kk_out(k, (size_t)m * ld, 1.0);

    k->be->mix_rows(k->be, y, ld, x, ld, row, weight, per, m, n);
}

TEST(operations_equal_the_oracle)
{
    static const uint32_t dims[][4] = {{1, 1, 0, 1},    {1, 16, 0, 2},   {3, 17, 2, 3},
                                       {40, 384, 0, 8}, {70, 33, 1, 2},  {130, 512, 0, 1},
                                       {5, 4099, 0, 4}, {3, 1442, 2, 2}, {2, 8197, 3, 2}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++) {
        if (dims[i][1] > 1) /* of one element nothing is left */
            kk_check("layernorm", case_layernorm, dims[i], TOL_SUM);
        kk_check("softcap", case_softcap, dims[i], TOL_ELEM);
        kk_check("mix_rows", case_mix_rows, dims[i], TOL_ELEM);
        for (uint32_t f = FM_ACT_SILU; f <= FM_ACT_SIGMOID; f++)
            for (uint32_t gated = 0; gated < 2; gated++) {
                const uint32_t d[] = {f, dims[i][0], dims[i][1], dims[i][2], gated};
                kk_check("act", case_act, d, TOL_ELEM);
            }
    }
}

/* dim: rows, columns. Values on both sides of eps and of 0. */
static void case_xielu(kk *k, const uint32_t *dim)
{
    const uint32_t m = dim[0], n = dim[1];
    const size_t ld = n + 3;
    float *x = kk_in(k, m * ld, 4.0), *dy = kk_in(k, m * ld, 1.0), *param = kk_in(k, 4, 1.0);
    float *y = kk_out(k, m * ld, 1.0), *dx = kk_out(k, m * ld, 1.0);

    param[0] = 0.8f;
    param[1] = 1.1f;
    param[2] = 0.5f;
    param[3] = -1e-6f;
    for (size_t i = 0; i < m * ld; i += 5)
        x[i] = x[i] * 1e-6f;
    x[0] = 0.0f;
    k->be->xielu(k->be, y, ld, x, ld, param, m, n);
    k->be->xielu_grad(k->be, dx, ld, dy, ld, x, ld, param, m, n);
}

TEST(xielu_equals_the_oracle)
{
    static const uint32_t dims[][2] = {{1, 1}, {3, 37}, {9, 1030}};
    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("xielu", case_xielu, dims[i], TOL_ELEM);
}

/* dim: rows, columns. Rows of zeros, of one number, and with halves. */
static void case_round_rows(kk *k, const uint32_t *dim)
{
    const uint32_t m = dim[0], n = dim[1];
    const size_t ld = n + 3;
    float *x = kk_in(k, m * ld, 4.0);
    float *y = kk_out(k, m * ld, 1.0), *grain = kk_out(k, m, 1.0);

    for (uint32_t i = 0; i < n && m > 2; i++) {
        x[ld + i] = 0.0f;
        x[2 * ld + i] = i ? 0.5f * (float)(i % 7) - 1.5f : 127.0f;
    }
    k->be->round_rows(k->be, y, ld, grain, x, ld, m, n);
}

TEST(rounded_rows_equal_the_oracle)
{
    static const uint32_t dims[][2] = {{1, 1}, {3, 37}, {9, 1030}, {2, 5000}};
    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("round_rows", case_round_rows, dims[i], 0.0);
}

TEST(silu_with_a_gate_is_swiglu)
{
    fm_backend *be = kk_open_exact(NULL);
    kk k = {.be = be};
    float *a = kk_in(&k, 100, 18.0), *b = kk_in(&k, 100, 3.0);
    float *y = kk_in(&k, 100, 1.0), *z = kk_in(&k, 100, 1.0);

    be->swiglu(be, y, a, b, 100);
    be->act(be, FM_ACT_SILU, z, 50, a, 50, b, 50, 2, 50);
    tk_ok(be->sync(be));
    assert_memory_equal(y, z, 100 * sizeof *y);
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tanh_is_within_two_ulp),
        cmocka_unit_test(gelus_are_accurate_in_their_tails),
        cmocka_unit_test(operations_equal_the_oracle),
        cmocka_unit_test(xielu_equals_the_oracle),
        cmocka_unit_test(rounded_rows_equal_the_oracle),
        cmocka_unit_test(silu_with_a_gate_is_swiglu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
