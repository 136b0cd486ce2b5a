/* ctest: card */
/* Operations on rows at the edges of float: signed zeros, subnormal numbers, overflow, infinities,
 * NaN. Every instruction set and number of threads (or the GPU) gives one result; that it is the
 * right one where that is known is said here too. */
#include "tests/kernel/kernel_kit.h"

#define ROWS 9u

/* Rows of their own kind each; every third element of the last ones is something odd. */
static void make_odd(float *x, uint32_t n, size_t ld)
{
    static const float odd[] = {NAN,     INFINITY, -INFINITY, 0.0f,   -0.0f, 1e-40f,
                                -3e-45f, 1.5e-38f, 3e38f,     -3e38f, 88.8f, -104.5f};

    for (uint32_t i = 0; i < n; i++) {
        x[0 * ld + i] = -0.0f;
        x[1 * ld + i] = i % 2 ? 1e-40f : -1e-42f;
        x[2 * ld + i] = 1e-23f * x[2 * ld + i]; /* squares underflow */
        x[3 * ld + i] = 1e30f * x[3 * ld + i];  /* squares overflow */
        if (i == n / 2)
            x[4 * ld + i] = NAN;
        if (i == n - 1)
            x[5 * ld + i] = INFINITY;
        if (i % 3 == 0)
            x[6 * ld + i] = -INFINITY;
        if (i % 3 == 1)
            x[7 * ld + i] = odd[i / 3 % FM_ARRAY_LEN(odd)];
        x[8 * ld + i] = odd[(5 * i + 1) % FM_ARRAY_LEN(odd)];
    }
}

static float *odd_in(kk *k, uint32_t n, size_t ld)
{
    float *x = kk_in(k, ROWS * ld, 3.0);
    make_odd(x, n, ld);
    return x;
}

static float *odd_out(kk *k, uint32_t n, size_t ld)
{
    float *x = kk_out(k, ROWS * ld, 3.0);
    make_odd(x, n, ld);
    return x;
}

/* Odd numbers against odd ones: another row of them for each. */
static float *other_in(kk *k, uint32_t n, size_t ld, uint32_t shift)
{
    float *x = odd_in(k, n, ld), *y = kk_in(k, ROWS * ld, 1.0);

    for (uint32_t row = 0; row < ROWS; row++)
        memcpy(y + row * ld, x + (row + shift) % ROWS * ld, ld * sizeof *y);
    return y;
}

/* dim: n, padding */
static void case_norms(kk *k, const uint32_t *dim)
{
    uint32_t n = dim[0];
    size_t ld = n + dim[1];
    float *x = odd_in(k, n, ld), *gain = other_in(k, n, ld, 2) + 8 * ld;
    float *y = kk_out(k, ROWS * ld, 1.0), *rstd = kk_out(k, ROWS, 1.0);
    float *plain = kk_out(k, ROWS * ld, 1.0), *all = kk_out(k, ROWS * ld, 1.0);

    k->be->rmsnorm(k->be, y, x, gain, rstd, ROWS, n, ld, 0.0f);
    k->be->layernorm(k->be, plain, x, NULL, NULL, ROWS, n, ld, 0.0f);
    k->be->layernorm(k->be, all, x, gain, x + 7 * ld, ROWS, n, ld, 1e-5f);
}

static void case_norm_gradients(kk *k, const uint32_t *dim)
{
    uint32_t n = dim[0];
    size_t ld = n + dim[1];
    float *x = odd_in(k, n, ld), *dy = other_in(k, n, ld, 3), *gain = kk_in(k, n, 1.0);
    float *rstd = kk_in(k, ROWS, 1.0), *dx = odd_out(k, n, ld), *dgain = odd_out(k, n, ld);
    float *dlx = kk_out(k, ROWS * ld, 1.0), *dlgain = kk_out(k, n, 1.0);
    float *dbias = kk_out(k, n, 1.0);

    rstd[1] = INFINITY;
    rstd[2] = 1e25f;
    k->be->rmsnorm_grad(k->be, dx, dgain, dy, x, gain, rstd, ROWS, n, ld, true);
    k->be->layernorm_grad(k->be, dlx, dlgain, dbias, dy, x, gain, ROWS, n, ld, 0.0f, false);
}

static void case_elements(kk *k, const uint32_t *dim)
{
    uint32_t n = dim[0];
    size_t ld = n + dim[1];
    float *x = odd_in(k, n, ld), *up = other_in(k, n, ld, 1), *dy = other_in(k, n, ld, 4);
    float *y = kk_out(k, ROWS * ld, 1.0), *dgate = kk_out(k, ROWS * ld, 1.0);
    float *dup = kk_out(k, ROWS * ld, 1.0), *capped = odd_out(k, n, ld);
    fm_act f = (fm_act)dim[2];

    k->be->act(k->be, f, y, ld, x, ld, dim[3] ? up : NULL, ld, ROWS, n);
    k->be->act_grad(k->be, f, dgate, ld, dim[3] ? dup : NULL, ld, dy, ld, x, ld, dim[3] ? up : NULL,
                    ld, ROWS, n);
    k->be->softcap(k->be, capped, ld, ROWS, n, 30.0f);
    k->be->softcap_grad(k->be, capped, ld, x, ld, ROWS, n, 30.0f);
}

static void case_simple(kk *k, const uint32_t *dim)
{
    uint32_t n = dim[0];
    size_t ld = n + dim[1];
    float *x = odd_in(k, n, ld), *by = other_in(k, n, ld, 5);
    float *sum = odd_out(k, n, ld), *product = odd_out(k, n, ld), *dots = kk_out(k, ROWS, 1.0);
    float *db = odd_out(k, n, ld), *dropped = odd_out(k, n, ld), *scaled = odd_out(k, n, ld);
    float *gate = kk_out(k, ROWS * ld, 1.0), *w = odd_in(k, 1, 1);
    int32_t *row = kk_shuffled(k, ROWS);

    k->be->add(k->be, sum, by, ROWS * ld);
    k->be->scale(k->be, sum, -0.0f, ld);
    k->be->affine(k->be, product, ld, n, by + 7 * ld, x + 8 * ld, 0, ROWS, NULL);
    k->be->row_dots(k->be, dots, x, ld, by, ld, row, ROWS, n);
    k->be->bias_grad(k->be, db, by, ld, ROWS, n);
    k->be->bias_grad(k->be, db + ld, by, ld, 0, n);
    k->be->dropout(k->be, dropped, ld, x, ld, ROWS, n, 0.5f, 3, 4, 5, true);
    k->be->scale_rows(k->be, scaled, ld, by, ld, w, ROWS, n);
    k->be->swiglu(k->be, gate, x, by, ROWS * ld);
}

static void case_mixtures(kk *k, const uint32_t *dim)
{
    uint32_t n = dim[0];
    size_t ld = n + dim[1];
    float *x = odd_in(k, n, ld), *weight = kk_in(k, 2 * ROWS, 1.0);
    float *y = kk_out(k, ROWS * ld, 1.0), *turned = odd_out(k, n / 2 * 2, ld);
    int32_t *row = kk_shuffled(k, 2 * ROWS), *pos = kk_shuffled(k, ROWS);
    float *table = other_in(k, n, ld, 2);

    for (uint32_t i = 0; i < 2 * ROWS; i++)
        row[i] %= (int32_t)ROWS;
    weight[1] = -0.0f;
    weight[4] = INFINITY;
    k->be->mix_rows(k->be, y, ld, x, ld, row, weight, 2, ROWS, n);
    k->be->rope(k->be, turned, ld, pos, table, table + ld, ROWS - 1, 1, n / 2 * 2, false, true);
}

/* Rows 0 .. 5 and 7: all -inf would be no distribution. */
static void case_losses(kk *k, const uint32_t *dim)
{
    uint32_t n = dim[0];
    size_t ld = n + dim[1];
    float *t = other_in(k, n, ld, 1), *lse = kk_out(k, ROWS, 1.0), *loss = kk_out(k, ROWS, 1.0);
    float *x = odd_out(k, n, ld), *z = odd_out(k, n, ld), *taught = kk_out(k, ROWS, 1.0);
    int32_t *label = kk_shuffled(k, ROWS);

    for (uint32_t i = 0; i < ROWS; i++)
        label[i] = i == 3 ? -1 : (int32_t)((uint32_t)label[i] % n);
    k->be->logsumexp(k->be, lse, x, ld, ROWS, n);
    k->be->cross_entropy(k->be, loss, x, ld, label, ROWS, n, 0.125f);
    k->be->distill(k->be, taught, z, ld, t, ld, label, ROWS, n, 2.0f, 0.25f, 0.5f);
}

static void case_optimizer(kk *k, const uint32_t *dim)
{
    uint32_t n = dim[0];
    float *g = odd_in(k, n, n), *p = odd_out(k, n, n), *m = kk_out(k, ROWS * n, 0.1);
    float *v = kk_out(k, ROWS * n, 0.1), *sum = kk_out(k, ROWS, 1.0);
    double *total = kk_zeros(k, ROWS * sizeof *total);

    for (uint32_t i = 0; i < ROWS * n; i++)
        v[i] = fabsf(v[i]);
    k->be->adamw(k->be, p, m, v, g, ROWS * n, 1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 3, 0.5f);
    k->be->adamw(k->be, p, m, v, g, n, 1e-2f, 0.0f, 0.999f, 0.0f, 0.0f, 1, 1.0f);
    for (uint32_t i = 0; i < ROWS; i++)
        k->be->sum_squares(k->be, total + i, g + i * n, n);
    tk_ok(k->be->sync(k->be));
    for (uint32_t i = 0; i < ROWS; i++)
        sum[i] = (float)total[i];
}

TEST(one_result_everywhere)
{
    static const struct {
        const char *what;
        kk_case run;
    } cases[] = {{"norms", case_norms},
                 {"gradients of norms", case_norm_gradients},
                 {"sums and products", case_simple},
                 {"mixtures, rope", case_mixtures},
                 {"losses", case_losses},
                 {"optimizer", case_optimizer}};
    static const uint32_t dims[][2] = {{1, 0}, {2, 3}, {15, 1}, {16, 0}, {33, 3}, {1500, 0}};

    for (size_t d = 0; d < FM_ARRAY_LEN(dims); d++) {
        for (size_t c = 0; c < FM_ARRAY_LEN(cases); c++) {
            kk got = kk_check_bits(cases[c].what, cases[c].run, dims[d]);
            fm_free(got.result);
        }
        for (uint32_t f = FM_ACT_SILU; f <= FM_ACT_SIGMOID; f++)
            for (uint32_t gated = 0; gated < 2; gated++) {
                const uint32_t dim[] = {dims[d][0], dims[d][1], f, gated};
                kk got = kk_check_bits("activations", case_elements, dim);
                fm_free(got.result);
            }
    }
}

/* A NaN or infinity in one row is in no other; -0 + +0 is +0, and a masked row is cleared. */
TEST(rows_keep_to_themselves)
{
    enum { N = 40 };
    fm_backend *be = kk_open_exact(NULL);
    kk k = {.be = be};
    float *x = odd_in(&k, N, N), *gain = kk_in(&k, N, 1.0), *y = kk_in(&k, (size_t)ROWS * N, 1.0);
    float *db = kk_in(&k, N, 1.0), *loss = kk_in(&k, ROWS, 1.0);
    int32_t *label = kk_zeros(&k, ROWS * sizeof *label);

    for (uint32_t i = 0; i < N; i++)
        db[i] = -0.0f;
    label[8] = -5;
    be->rmsnorm(be, y, x, gain, NULL, ROWS, N, N, 1e-5f);
    be->bias_grad(be, db, x, N, 1, N);
    tk_ok(be->sync(be));
    for (uint32_t i = 0; i < N; i++) {
        assert_true(y[i] == 0.0f && isfinite(y[N + i]) && isfinite(y[2 * N + i]));
        assert_true(isnan(y[4 * N + i]));
        assert_true(db[i] == 0.0f && !signbit(db[i]));
    }
    be->cross_entropy(be, loss, x, N, label, ROWS, N, 1.0f);
    tk_ok(be->sync(be));
    assert_true(isfinite(loss[0]) && isfinite(loss[2]) && isnan(loss[4]) && loss[8] == 0.0f);
    for (uint32_t i = 0; i < N; i++)
        assert_true(x[8 * N + i] == 0.0f && isnan(x[4 * N + i]));
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_result_everywhere),
        cmocka_unit_test(rows_keep_to_themselves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
