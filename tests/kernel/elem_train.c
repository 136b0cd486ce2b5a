/* ctest: card */
/* Gradients of layer norm, activations, caps and scales, dot products of rows, dropout: the oracle,
 * odd sizes and strides, limits. */
#include "tests/kernel/kernel_kit.h"

#define TOL_ELEM 1e-6
#define TOL_SUM 3e-6
/* sigmoid's slope s (1 - s) loses what 1 - s loses: 2^-24 of values up to 1. */
#define TOL_SLOPE 2e-6

/* dim: m, h, padding, accumulate */
static void case_layernorm(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], h = dim[1], ld = h + dim[2];
    float *x = kk_in(k, (size_t)m * ld, 3.0), *gain = kk_in(k, h, 2.0);
    float *dy = kk_in(k, (size_t)m * ld, 1.0), *dx = kk_out(k, (size_t)m * ld, 1.0);
    float *dgain = kk_out(k, h, 1.0), *dbias = kk_out(k, h, 1.0), *only = kk_out(k, h, 1.0);
    float *own = kk_out(k, (size_t)m * ld, 1.0);

    k->be->layernorm_grad(k->be, dx, dgain, dbias, dy, x, gain, m, h, ld, 1e-5f, dim[3]);
    k->be->layernorm_grad(k->be, own, NULL, only, own, x, NULL, m, h, ld, 1e-5f, false);
    k->be->layernorm_grad(k->be, NULL, dgain, NULL, dy, x, gain, m, h, ld, 1e-5f, false);
}

TEST(layer_norm_equals_the_oracle)
{
    static const uint32_t dims[][4] = {{3, 17, 2, 0},    {40, 576, 0, 1}, {70, 33, 1, 0},
                                       {130, 512, 0, 1}, {5, 4099, 0, 0}, {2, 16, 0, 1},
                                       {300, 725, 3, 1}, {2, 8197, 3, 1}, {1, 9000, 0, 0}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("layernorm_grad", case_layernorm, dims[i], TOL_SUM);
}

/* dim: function, m, n, padding */
static void case_act(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[1], n = dim[2], ld = n + dim[3];
    fm_act f = (fm_act)dim[0];
    float *gate = kk_in(k, (size_t)m * ld, 6.0), *up = kk_in(k, (size_t)m * n, 2.0);
    float *dy = kk_in(k, (size_t)m * ld, 1.0), *dgate = kk_out(k, (size_t)m * ld, 1.0);
    float *dup = kk_out(k, (size_t)m * n, 1.0), *plain = kk_out(k, (size_t)m * n, 1.0);
    float *fused = kk_out(k, (size_t)m * 2 * n, 4.0);

    k->be->act_grad(k->be, f, dgate, ld, dup, n, dy, ld, gate, ld, up, n, m, n);
    k->be->act_grad(k->be, f, plain, n, NULL, 0, dy, ld, gate, ld, NULL, 0, m, n);
    k->be->act_grad(k->be, f, fused, 2 * n, fused + n, 2 * n, dy, ld, gate, ld, up, n, m, n);
}

TEST(activations_equal_the_oracle)
{
    static const uint32_t sizes[][3] = {{1, 1, 0}, {3, 16, 1}, {5, 33, 0}, {40, 1537, 3}};

    for (uint32_t f = FM_ACT_SILU; f <= FM_ACT_SIGMOID; f++)
        for (size_t i = 0; i < FM_ARRAY_LEN(sizes); i++) {
            const uint32_t dim[] = {f, sizes[i][0], sizes[i][1], sizes[i][2]};
            kk_check("act_grad", case_act, dim, TOL_SLOPE);
        }
}

/* dim: m, n, padding */
static void case_scales(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], n = dim[1], ld = n + dim[2];
    float *x = kk_in(k, (size_t)m * ld, 2.0), *dy = kk_in(k, (size_t)m * n, 1.0);
    float *scale = kk_in(k, n, 1.0), *w = kk_in(k, m, 1.0);
    float *dx = kk_out(k, (size_t)m * n, 1.0), *dscale = kk_out(k, n, 1.0);
    float *own = kk_out(k, (size_t)m * n, 1.0), *y = kk_out(k, (size_t)m * ld, 1.0);
    float *capped = kk_out(k, (size_t)m * ld, 1.0);

    k->be->scale_grad(k->be, dx, n, dscale, dy, n, x, ld, scale, m, n);
    k->be->scale_grad(k->be, own, n, NULL, own, n, x, ld, scale, m, n);
    k->be->scale_rows(k->be, y, ld, x, ld, w, m, n);
    k->be->scale_rows(k->be, y, ld, y, ld, w, m, n);
    k->be->softcap_grad(k->be, capped, ld, x, ld, m, n, 2.5f);
}

/* dim: m, n, padding. Products of one sign: random signs would leave a small sum of large ones. */
static void case_dots(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], n = dim[1], ld = n + dim[2];
    float *a = kk_in(k, (size_t)m * ld, 2.0), *b = kk_in(k, (size_t)m * n, 1.0);
    float *plain = kk_out(k, m, 1.0), *picked = kk_out(k, m, 1.0);
    int32_t *rows = kk_shuffled(k, m);

    for (size_t i = 0; i < (size_t)m * ld; i++)
        a[i] = fabsf(a[i]);
    for (size_t i = 0; i < (size_t)m * n; i++)
        b[i] = fabsf(b[i]);
    k->be->row_dots(k->be, plain, a, ld, b, n, NULL, m, n);
    k->be->row_dots(k->be, picked, a, ld, b, n, rows, m, n);
}

TEST(scales_and_dots_equal_the_oracle)
{
    static const uint32_t dims[][3] = {{1, 1, 0},    {5, 17, 3},   {70, 576, 0},
                                       {300, 33, 1}, {2, 4101, 3}, {3, 1441, 0}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++) {
        kk_check("scale_grad, scale_rows, softcap_grad", case_scales, dims[i], TOL_SUM);
        kk_check("row_dots", case_dots, dims[i], TOL_SUM);
    }
}

/* dim: m, n, padding, accumulate */
static void case_dropout(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], n = dim[1], ld = n + dim[2];
    float *x = kk_in(k, (size_t)m * ld, 2.0), *y = kk_out(k, (size_t)m * n, 1.0);
    const uint64_t far_row = ((uint64_t)1 << 39) + 12345;

    k->be->dropout(k->be, y, n, x, ld, m, n, 0.25f, 0x123456789abcdefu, 42, 7, dim[3]);
    float *late = kk_out(k, (size_t)m * n, 1.0);
    k->be->dropout(k->be, late, n, x, ld, m, n, 0.05f, 1, UINT64_MAX, far_row, false);
}

TEST(dropout_equals_the_generator)
{
    static const uint32_t dims[][4] = {
        {1, 1, 0, 0}, {3, 127, 2, 1}, {4, 128, 0, 0}, {2, 129, 1, 1}, {50, 576, 0, 0}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("dropout", case_dropout, dims[i], TOL_ELEM);
}

/* The share that is dropped, the mean that is kept; rows in one call or in two: the same mask; p =
 * 0 keeps every bit, NaN and infinity are dropped like anything else. */
TEST(dropout_keeps_the_mean)
{
    enum { M = 200, N = 600 };
    fm_backend *be = kk_open_exact(NULL);
    kk k = {.be = be};
    float *x = kk_in(&k, M * N, 1.0), *y = kk_in(&k, M * N, 1.0), *z = kk_in(&k, M * N, 1.0);
    double sum = 0.0;
    size_t dropped = 0;

    be->dropout(be, y, N, x, N, M, N, 0.0f, 3, 4, 0, false);
    tk_ok(be->sync(be));
    assert_memory_equal(x, y, M * N * sizeof *x);
    for (size_t i = 0; i < M * N; i++)
        x[i] = 1.0f;
    be->dropout(be, y, N, x, N, M, N, 0.1f, 3, 4, 1000, false);
    be->dropout(be, z, N, x, N, 77, N, 0.1f, 3, 4, 1000, false);
    be->dropout(be, z + 77 * N, N, x, N, M - 77, N, 0.1f, 3, 4, 1077, false);
    tk_ok(be->sync(be));
    for (size_t i = 0; i < M * N; i++) {
        dropped += y[i] == 0.0f;
        sum += (double)y[i];
    }
    /* 120,000 draws: one standard deviation of the share is 8.7e-4. */
    tk_assert_le(fabs((double)dropped / (M * N) - 0.1), 4 * 8.7e-4, "share dropped");
    tk_assert_le(fabs(sum / (M * N) - 1.0), 4 * 9.7e-4, "mean");
    assert_memory_equal(y, z, M * N * sizeof *y);
    for (size_t i = 0; i < M * N; i++)
        x[i] = i % 2 ? NAN : INFINITY;
    be->dropout(be, z, N, x, N, M, N, 0.1f, 3, 4, 1000, false);
    tk_ok(be->sync(be));
    for (size_t i = 0; i < M * N; i++)
        assert_true(y[i] == 0.0f ? z[i] == 0.0f : !isfinite(z[i]));
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
}

TEST(slopes_keep_their_limits)
{
    static const float limits[] = {INFINITY, -INFINITY, 1e30f, -1e30f, 90.0f, -90.0f, NAN};
    enum { N = sizeof limits / sizeof *limits };
    fm_backend *be = kk_open_exact(NULL);
    kk k = {.be = be};
    float *one = kk_in(&k, N, 1.0), *at = kk_in(&k, N, 1.0), *d = kk_in(&k, N, 1.0);

    memcpy(at, limits, sizeof limits);
    for (size_t i = 0; i < N; i++)
        one[i] = 1.0f;
    for (fm_act f = FM_ACT_GELU_TANH; f <= FM_ACT_RELU; f++) {
        be->act_grad(be, f, d, N, NULL, 0, one, N, at, N, NULL, 0, 1, N);
        tk_ok(be->sync(be));
        for (size_t i = 0; i + 1 < N; i++)
            assert_true(d[i] == (at[i] > 0.0f ? 1.0f : 0.0f));
        assert_true(f == FM_ACT_RELU || isnan(d[N - 1]));
    }
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_norm_equals_the_oracle),
        cmocka_unit_test(activations_equal_the_oracle),
        cmocka_unit_test(scales_and_dots_equal_the_oracle),
        cmocka_unit_test(dropout_equals_the_generator),
        cmocka_unit_test(dropout_keeps_the_mean),
        cmocka_unit_test(slopes_keep_their_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
