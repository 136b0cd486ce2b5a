/* ctest: card */
/* The distillation loss: kernels against the oracle, the oracle and the kernels against a loss
 * written down once more in double and its finite differences. */
#include "tests/kernel/kernel_kit.h"

#define TOL 3e-6

/* dim: m, v, padding, temperature in sixteenths, weight in sixteenths */
static void case_distill(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], v = dim[1], ld = v + dim[2], ldt = v + 2 * dim[2];
    int32_t *label = kk_shuffled(k, m);
    float *t = kk_in(k, (size_t)m * ldt, 9.0);
    float *loss = kk_out(k, m, 1.0), *z = kk_out(k, (size_t)m * ld, 9.0);

    for (uint32_t i = 0; i < m; i++)
        label[i] = i % 3 == 2 ? -1 - label[i] : (int32_t)((uint32_t)label[i] * 31u % v);
    k->be->distill(k->be, loss, z, ld, t, ldt, label, m, v, (float)dim[3] / 16.0f,
                   (float)dim[4] / 16.0f, 0.125f);
}

TEST(equals_the_oracle)
{
    static const uint32_t dims[][5] = {
        {2, 2, 0, 32, 8},     {3, 7, 1, 16, 16}, {3, 16, 1, 16, 4},    {5, 33, 0, 40, 12},
        {9, 1000, 3, 64, 16}, {7, 47, 2, 8, 8},  {4, 49152, 0, 32, 8}, {3, 2049, 3, 24, 8}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("distill", case_distill, dims[i], TOL);
}

/* ==== against the definition ==== */

#define M 4u
#define V 45u

typedef struct row {
    double z[V], t[V];
    int32_t label;
    double temperature, weight;
} row;

static double log_sum(const double *x, double t)
{
    double sum = 0.0;
    for (uint32_t j = 0; j < V; j++)
        sum += exp(x[j] / t);
    return log(sum);
}

static double loss_of(const row *r)
{
    double t = r->temperature, kl = 0.0;
    double own = log_sum(r->z, 1.0) - r->z[r->label];
    double ls = log_sum(r->z, t), lt = log_sum(r->t, t);
    for (uint32_t j = 0; j < V; j++)
        kl += exp(r->t[j] / t - lt) * ((r->t[j] / t - lt) - (r->z[j] / t - ls));
    return (1.0 - r->weight) * own + r->weight * t * t * kl;
}

static double slope_of(row *r, uint32_t j)
{
    const double h = 1e-4;
    double at = r->z[j], s;
    r->z[j] = at + h;
    s = 8.0 * loss_of(r);
    r->z[j] = at - h;
    s -= 8.0 * loss_of(r);
    r->z[j] = at + 2.0 * h;
    s -= loss_of(r);
    r->z[j] = at - 2.0 * h;
    s += loss_of(r);
    r->z[j] = at;
    return s / (12.0 * h);
}

static void check_rows(fm_backend *be, double temperature, double weight)
{
    kk k = {.be = be};
    float *z = kk_in(&k, (size_t)M * V, 4.0), *t = kk_in(&k, (size_t)M * V, 4.0);
    float *before = kk_in(&k, (size_t)M * V, 0.0), *loss = kk_in(&k, M, 1.0);
    static const int32_t labels[M] = {3, 44, -100, 0};
    int32_t *label = kk_alloc(&k, sizeof labels);

    memcpy(label, labels, sizeof labels);
    memcpy(before, z, (size_t)M * V * sizeof *z);
    be->distill(be, loss, z, V, t, V, label, M, V, (float)temperature, (float)weight, 0.5f);
    tk_ok(be->sync(be));
    for (uint32_t i = 0; i < M; i++) {
        row r = {.label = label[i], .temperature = temperature, .weight = weight};
        for (uint32_t j = 0; j < V; j++) {
            r.z[j] = (double)before[i * V + j];
            r.t[j] = (double)t[i * V + j];
        }
        tk_assert_le(fabs((double)loss[i] - (label[i] < 0 ? 0.0 : loss_of(&r))), 2e-6, "loss");
        for (uint32_t j = 0; j < V; j++) {
            double want = label[i] < 0 ? 0.0 : 0.5 * slope_of(&r, j);
            tk_assert_le(fabs((double)z[i * V + j] - want), 1e-6, "gradient");
        }
    }
    kk_gather(&k);
    fm_free(k.result);
}

TEST(has_the_right_slopes)
{
    static const double how[][2] = {{1.0, 1.0}, {2.0, 0.5}, {0.5, 0.25}, {4.0, 1.0}, {1.0, 0.75}};
    fm_backend *be[2];

    tk_ok(fm_backend_cpu_ref(&be[0]));
    be[1] = kk_open_exact(NULL);
    for (size_t b = 0; b < 2; b++) {
        for (size_t i = 0; i < FM_ARRAY_LEN(how); i++)
            check_rows(be[b], how[i][0], how[i][1]);
        fm_backend_close(be[b]);
    }
}

/* ==== limits ==== */

TEST(equal_rows_give_exactly_nothing)
{
    static const float temperature[] = {1.0f, 3.0f, 0.7f};
    fm_backend *be = kk_open_exact(NULL);
    kk k = {.be = be};
    float *z = kk_in(&k, (size_t)M * 1000u, 20.0), *t = kk_in(&k, (size_t)M * 1000u, 0.0);
    float *loss = kk_in(&k, M, 1.0);
    static const int32_t labels[M] = {0, 17, 999, 5};
    int32_t *label = kk_alloc(&k, sizeof labels);

    memcpy(label, labels, sizeof labels);
    memcpy(t, z, (size_t)M * 1000u * sizeof *t);
    for (size_t n = 0; n < FM_ARRAY_LEN(temperature); n++) {
        memcpy(z, t, (size_t)M * 1000u * sizeof *t);
        be->distill(be, loss, z, 1000, t, 1000, label, M, 1000, temperature[n], 1.0f, 0.25f);
        tk_ok(be->sync(be));
        for (uint32_t i = 0; i < M; i++)
            assert_true(loss[i] == 0.0f);
        for (uint32_t i = 0; i < M * 1000u; i++)
            assert_true(z[i] == 0.0f);
    }
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
}

TEST(without_weight_it_is_cross_entropy)
{
    fm_backend *be = kk_open_exact(NULL);
    kk k = {.be = be};
    float *z = kk_in(&k, (size_t)M * 1000u, 20.0), *t = kk_in(&k, (size_t)M * 1000u, 9.0);
    float *x = kk_in(&k, (size_t)M * 1000u, 0.0), *loss = kk_in(&k, M, 1.0);
    float *want = kk_in(&k, M, 1.0);
    static const int32_t labels[M] = {0, 17, -1, 5};
    int32_t *label = kk_alloc(&k, sizeof labels);

    memcpy(label, labels, sizeof labels);
    memcpy(x, z, (size_t)M * 1000u * sizeof *t);
    be->distill(be, loss, z, 1000, t, 1000, label, M, 1000, 2.0f, 0.0f, 0.25f);
    be->cross_entropy(be, want, x, 1000, label, M, 1000, 0.25f);
    tk_ok(be->sync(be));
    assert_memory_equal(loss, want, M * sizeof *loss);
    assert_memory_equal(z, x, (size_t)M * 1000u * sizeof *z);
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_oracle),
        cmocka_unit_test(has_the_right_slopes),
        cmocka_unit_test(equal_rows_give_exactly_nothing),
        cmocka_unit_test(without_weight_it_is_cross_entropy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
