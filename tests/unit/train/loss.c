/* train_loss.c - pooling, InfoNCE and DPO: values against the definitions, slopes against finite
 * differences, limits. */
#include "tests/testkit.h"

#include <math.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "train/objective/objective.h"

static double uniform(uint64_t stream, uint64_t i)
{
    return 2.0 * fm_rng_uniform(5, stream, i) - 1.0;
}

/* ==== pooling ==== */

TEST(pools_and_hands_back)
{
    static const fmi_pool_mode mode[] = {FMI_POOL_MEAN, FMI_POOL_FIRST, FMI_POOL_LAST};
    float x[5 * 7], dx[5 * 7];
    double out[7], dout[7];

    for (size_t i = 0; i < FM_ARRAY_LEN(x); i++)
        x[i] = (float)uniform(1, i);
    for (size_t j = 0; j < 7; j++)
        dout[j] = uniform(2, j);
    for (size_t m = 0; m < 3; m++) {
        double sum = 0.0, dot = 0.0;
        fmt_pool_rows(out, x, 5, 7, mode[m]);
        fmt_pool_rows_grad(dx, dout, 5, 7, mode[m]);
        /* Pooling is linear: <dout, pool(x)> = <pool'(dout), x>. */
        for (size_t j = 0; j < 7; j++)
            sum += dout[j] * out[j];
        for (size_t i = 0; i < FM_ARRAY_LEN(x); i++)
            dot += (double)dx[i] * (double)x[i];
        tk_assert_le(fabs(sum - dot), 1e-7, "adjoint");
        double want =
            mode[m] == FMI_POOL_MEAN
                ? ((double)x[3] + (double)x[10] + (double)x[17] + (double)x[24] + (double)x[31]) /
                      5.0
                : (double)x[mode[m] == FMI_POOL_LAST ? 31 : 3];
        tk_assert_le(fabs(out[3] - want), 1e-15, "pooled");
    }
}

/* ==== InfoNCE ==== */

#define N 5u
#define C 8u
#define H 11u

typedef struct texts {
    double a[N * H], c[C * H], da[N * H], dc[C * H];
} texts;

static double cosine(const double *a, const double *b)
{
    double ab = 0.0, aa = 0.0, bb = 0.0;
    for (uint32_t k = 0; k < H; k++) {
        ab += a[k] * b[k];
        aa += a[k] * a[k];
        bb += b[k] * b[k];
    }
    return ab / sqrt(aa) / sqrt(bb);
}

/* By the definition, with the C library's functions. */
static double by_hand(const texts *t, double temperature, bool symmetric)
{
    double loss = 0.0, back = 0.0;
    for (uint32_t i = 0; i < N; i++) {
        double sum = 0.0, column = 0.0;
        for (uint32_t j = 0; j < C; j++)
            sum += exp(cosine(t->a + i * H, t->c + j * H) / temperature);
        for (uint32_t j = 0; j < N; j++)
            column += exp(cosine(t->a + j * H, t->c + i * H) / temperature);
        double own = cosine(t->a + i * H, t->c + i * H) / temperature;
        loss += log(sum) - own;
        back += log(column) - own;
    }
    return symmetric ? 0.5 * (loss + back) : loss;
}

static double slope_at(texts *t, double *x, double temperature, bool symmetric)
{
    const double h = 1e-4;
    double at = *x, s;
    *x = at + h;
    s = 8.0 * by_hand(t, temperature, symmetric);
    *x = at - h;
    s -= 8.0 * by_hand(t, temperature, symmetric);
    *x = at + 2.0 * h;
    s -= by_hand(t, temperature, symmetric);
    *x = at - 2.0 * h;
    s += by_hand(t, temperature, symmetric);
    *x = at;
    return s / (12.0 * h);
}

static void check_infonce(double temperature, bool symmetric)
{
    texts t;
    for (size_t i = 0; i < N * H; i++)
        t.a[i] = uniform(3, i);
    for (size_t i = 0; i < C * H; i++)
        t.c[i] = uniform(4, i) + (i < N * H ? 0.3 * t.a[i] : 0.0);
    fmt_infonce c = {.n = N,
                     .cands = C,
                     .h = H,
                     .anchor = t.a,
                     .cand = t.c,
                     .temperature = temperature,
                     .dloss = 0.25,
                     .symmetric = symmetric,
                     .danchor = t.da,
                     .dcand = t.dc};
    c.work = fm_calloc(fmt_infonce_work(N, C, H), sizeof(double));
    fmt_infonce_run(&c);
    tk_assert_le(fabs(c.loss - by_hand(&t, temperature, symmetric)), 1e-12, "InfoNCE");
    for (size_t i = 0; i < N * H; i++)
        tk_assert_le(fabs(t.da[i] - 0.25 * slope_at(&t, &t.a[i], temperature, symmetric)), 1e-8,
                     "slope by an anchor");
    for (size_t i = 0; i < C * H; i++)
        tk_assert_le(fabs(t.dc[i] - 0.25 * slope_at(&t, &t.c[i], temperature, symmetric)), 1e-8,
                     "slope by a candidate");
    uint32_t hits = 0;
    for (uint32_t i = 0; i < N; i++) {
        bool best = true;
        for (uint32_t j = 0; j < C; j++)
            best = best && cosine(t.a + i * H, t.c + j * H) <= cosine(t.a + i * H, t.c + i * H);
        hits += best;
    }
    assert_int_equal(c.hits, hits);
    c.danchor = NULL;
    c.dcand = NULL;
    double loss = c.loss;
    fmt_infonce_run(&c);
    assert_true(c.loss == loss);
    fm_free(c.work);
}

TEST(infonce_is_its_definition)
{
    check_infonce(1.0, false);
    check_infonce(0.05, false);
    check_infonce(0.3, true);
}

/* One anchor and its positive alone: nothing to tell apart. */
TEST(one_pair_has_no_loss)
{
    double a[3] = {1, 2, 3}, p[3] = {-1, 0, 2}, da[3], dp[3], work[64];
    fmt_infonce c = {.n = 1,
                     .cands = 1,
                     .h = 3,
                     .anchor = a,
                     .cand = p,
                     .temperature = 0.05,
                     .dloss = 1.0,
                     .symmetric = true,
                     .danchor = da,
                     .dcand = dp,
                     .work = work};
    assert_true(fmt_infonce_work(1, 1, 3) <= FM_ARRAY_LEN(work));
    fmt_infonce_run(&c);
    assert_true(c.loss == 0.0 && c.hits == 1);
    for (size_t i = 0; i < 3; i++)
        assert_true(da[i] == 0.0 && dp[i] == 0.0);
}

TEST(a_vector_of_zeros_is_finite)
{
    double a[4] = {0, 0, 1, 1}, p[4] = {0, 0, 1, 0}, da[4], dp[4], work[64];
    fmt_infonce c = {.n = 2,
                     .cands = 2,
                     .h = 2,
                     .anchor = a,
                     .cand = p,
                     .temperature = 0.05,
                     .dloss = 1.0,
                     .danchor = da,
                     .dcand = dp,
                     .work = work};
    fmt_infonce_run(&c);
    assert_true(isfinite(c.loss));
    for (size_t i = 0; i < 4; i++)
        assert_true(isfinite(da[i]) && isfinite(dp[i]));
}

/* ==== DPO ==== */

TEST(dpo_is_its_definition)
{
    static const double margin[] = {0.0, 1.0, -1.0, 12.5, -40.0, 3e-9};
    double slope;

    tk_assert_le(fabs(fmt_dpo_loss(0.0, 0.1, &slope) - log(2.0)), 1e-15, "log 2");
    tk_assert_le(fabs(slope + 0.05), 1e-15, "half of beta");
    for (size_t i = 0; i < FM_ARRAY_LEN(margin); i++) {
        double loss = fmt_dpo_loss(margin[i], 0.7, &slope), unused, h = 1e-4;
        double fd = (8.0 * (fmt_dpo_loss(margin[i] + h, 0.7, &unused) -
                            fmt_dpo_loss(margin[i] - h, 0.7, &unused)) -
                     fmt_dpo_loss(margin[i] + 2 * h, 0.7, &unused) +
                     fmt_dpo_loss(margin[i] - 2 * h, 0.7, &unused)) /
                    (12.0 * h);
        tk_assert_le(fabs(loss - log1p(exp(-0.7 * margin[i]))), 1e-13, "-log sigmoid");
        tk_assert_le(fabs(slope - fd), 1e-9, "slope");
    }
    assert_true(fmt_dpo_loss(1e6, 1.0, &slope) == 0.0 && slope == 0.0);
    assert_true(fmt_dpo_loss(-1e6, 1.0, &slope) == 1e6 && slope == -1.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pools_and_hands_back),  cmocka_unit_test(infonce_is_its_definition),
        cmocka_unit_test(one_pair_has_no_loss),  cmocka_unit_test(a_vector_of_zeros_is_finite),
        cmocka_unit_test(dpo_is_its_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
