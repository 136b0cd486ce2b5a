/* ctest: card */
/* Norms, rope, activations, losses, optimizer: the oracle, the lane order, exp's accuracy, limits
 * (infinities, NaN, masked labels). */
#include "tests/kernel/kernel_kit.h"

#include "store/base/math/detmath.h"
#define FMI_ISA_GENERIC
#include "infer/cpu/kern/vec.h"

/* One to a few roundings per element, against the exact value. */
#define TOL_ELEM 1e-6
/* Sums in 16 lanes add at most the rounding of n / 16 additions, random signs or decaying terms. */
#define TOL_SUM 3e-6

/* ---- exp ---- */

static float exp1(float x)
{
    float out[VF_LANES];

    vf_store(out, vf_exp(vf_set1(x)));
    return out[0];
}

TEST(exp_is_within_about_one_ulp)
{
    double worst = 0.0;

    for (int i = -1040000; i <= 887000; i++) {
        float x = (float)i * 1e-4f, y = exp1(x);
        double want = exp((double)x);
        double ulp = want < 1.17549435e-38 ? 0x1p-149 : ldexp(1.0, ilogb(want) - 23);
        worst = fmax(worst, fabs((double)y - want) / ulp);
    }
    tk_assert_le(worst, 1.01, "ulp of exp"); /* measured 1.003, subnormal results included */
}

TEST(exp_keeps_its_limits)
{
    assert_true(exp1(0.0f) == 1.0f && exp1(-0.0f) == 1.0f);
    assert_true(exp1(INFINITY) == INFINITY && exp1(89.0f) == INFINITY && exp1(1e30f) == INFINITY);
    assert_true(exp1(-INFINITY) == 0.0f && exp1(-105.0f) == 0.0f && exp1(-1e30f) == 0.0f);
    assert_true(isnan(exp1(NAN)));
    assert_true(exp1(88.7f) < INFINITY && exp1(-103.0f) > 0.0f);
}

/* ---- against the oracle ---- */

/* dim: m, h, padding */
static void case_rmsnorm(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], h = dim[1], ld = h + dim[2];
    float *x = kk_in(k, (size_t)m * ld, 3.0), *gain = kk_in(k, h, 2.0);
    float *y = kk_out(k, (size_t)m * ld, 1.0), *rstd = kk_out(k, m, 1.0);
    float *own = kk_out(k, (size_t)m * ld, 1.0);

    k->be->rmsnorm(k->be, y, x, gain, rstd, m, h, ld, 1e-5f);
    k->be->rmsnorm(k->be, own, own, gain, NULL, m, h, ld, 1e-5f);
}

/* dim: m, h, padding, accumulate */
static void case_rmsnorm_grad(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], h = dim[1], ld = h + dim[2];
    float *x = kk_in(k, (size_t)m * ld, 3.0), *gain = kk_in(k, h, 2.0);
    float *dy = kk_in(k, (size_t)m * ld, 1.0), *y = kk_in(k, (size_t)m * ld, 1.0);
    float *rstd = kk_in(k, m, 1.0), *dx = kk_out(k, (size_t)m * ld, 1.0);
    float *dgain = kk_out(k, h, 1.0);

    k->be->rmsnorm(k->be, y, x, gain, rstd, m, h, ld, 1e-5f);
    k->be->rmsnorm_grad(k->be, dx, dgain, dy, x, gain, rstd, m, h, ld, dim[3]);
    k->be->rmsnorm_grad(k->be, y, NULL, dy, x, gain, rstd, m, h, ld, false);
}

TEST(norms_equal_the_oracle)
{
    static const uint32_t dims[][4] = {{1, 1, 0, 0},    {1, 16, 0, 1},  {3, 17, 2, 0},
                                       {40, 576, 0, 1}, {70, 33, 1, 0}, {130, 512, 0, 1},
                                       {5, 4099, 0, 0}, {3, 721, 3, 1}, {2, 1441, 3, 0},
                                       {2, 8197, 3, 1}, {2, 8192, 4, 0}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++) {
        kk_check("rmsnorm", case_rmsnorm, dims[i], TOL_SUM);
        kk_check("rmsnorm_grad", case_rmsnorm_grad, dims[i], TOL_SUM);
    }
}

/* dim: m, heads, hd, inverse, padding, pairs */
static void case_rope(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], heads = dim[1], hd = dim[2], ld = heads * hd + dim[4];
    float *cos_table = kk_in(k, (size_t)m * hd / 2, 1.0);
    float *sin_table = kk_in(k, (size_t)m * hd / 2, 1.0);
    int32_t *pos = kk_shuffled(k, m);
    float *x = kk_out(k, (size_t)m * ld, 2.0);

    k->be->rope(k->be, x, ld, pos, cos_table, sin_table, m, heads, hd, dim[5], dim[3]);
}

TEST(rope_equals_the_oracle)
{
    static const uint32_t dims[][6] = {
        {1, 1, 2, 0, 0, 0},   {7, 3, 8, 1, 1, 0},  {33, 9, 64, 0, 0, 0}, {33, 9, 64, 1, 5, 0},
        {50, 2, 96, 0, 0, 0}, {3, 4, 34, 1, 0, 0}, {1, 1, 2, 0, 0, 1},   {33, 9, 64, 0, 0, 1},
        {33, 9, 64, 1, 5, 1}, {3, 4, 34, 1, 0, 1}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("rope", case_rope, dims[i], TOL_ELEM);
}

static void case_swiglu(kk *k, const uint32_t *dim)
{
    float *gate = kk_in(k, dim[0], 20.0), *up = kk_in(k, dim[0], 2.0), *dy = kk_in(k, dim[0], 1.0);
    float *y = kk_out(k, dim[0], 1.0), *dgate = kk_out(k, dim[0], 1.0);
    float *dup = kk_out(k, dim[0], 1.0), *sum = kk_out(k, dim[0], 1.0);

    k->be->swiglu(k->be, y, gate, up, dim[0]);
    k->be->swiglu_grad(k->be, dgate, dup, dy, gate, up, dim[0]);
    k->be->add(k->be, sum, gate, dim[0]);
    k->be->scale(k->be, sum, 0.3f, dim[0]);
}

TEST(elements_equal_the_oracle)
{
    static const uint32_t dims[][1] = {{1}, {15}, {16}, {17}, {1000}, {70001}, {200003}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("swiglu, its gradient, add, scale", case_swiglu, dims[i], TOL_ELEM);
}

/* dim: m, n, vocabulary of embed_grad */
static void case_columns(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], n = dim[1], v = dim[2];
    float *dy = kk_in(k, (size_t)m * (n + 1), 1.0), *db = kk_out(k, n, 1.0);
    float *dw = kk_out(k, (size_t)v * n, 1.0), *y = kk_out(k, (size_t)m * (n + 2), 1.0);
    int32_t *ids = kk_shuffled(k, m), *rows = kk_shuffled(k, m);

    for (uint32_t i = 0; i < m; i++)
        ids[i] = (int32_t)((uint32_t)ids[i] % v);
    k->be->bias_grad(k->be, db, dy, n + 1, m, n);
    k->be->embed_grad(k->be, dw, dy, n + 1, ids, m, n);
    k->be->copy_rows(k->be, y, n + 2, dy, n + 1, rows, m, n);
}

TEST(sums_over_rows_equal_the_oracle)
{
    static const uint32_t dims[][3] = {{1, 1, 1},       {300, 33, 7},   {70, 576, 50},
                                       {513, 130, 300}, {5000, 3, 400}, {1500, 4, 2}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("bias_grad, embed_grad, copy_rows", case_columns, dims[i], TOL_SUM);
}

/* dim: m, n, padding */
static void case_affine(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], n = dim[1], ld = n + dim[2];
    float *scale = kk_in(k, n, 2.0), *bias = kk_in(k, n, 1.0);
    float *both = kk_out(k, (size_t)m * ld, 1.0), *one = kk_out(k, (size_t)(m + 3) * ld, 1.0);
    float *other = kk_out(k, (size_t)2 * m * ld, 1.0);
    int32_t *rows = kk_shuffled(k, 2 * m);

    k->be->affine(k->be, both, ld, n, scale, bias, 0, m, NULL);
    k->be->affine(k->be, one, ld, n, scale, NULL, 3, m, NULL);
    k->be->affine(k->be, one, ld, n, NULL, NULL, 0, m, NULL);
    k->be->affine(k->be, other, ld, n, NULL, bias, 7, m, rows);
}

TEST(affine_equals_the_oracle)
{
    static const uint32_t dims[][3] = {{1, 1, 0}, {5, 17, 3}, {40, 576, 0}, {300, 33, 1}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("affine", case_affine, dims[i], TOL_ELEM);
}

/* dim: m, nkv, hd, first slot, rows of one page that stand together. Pages as mode exact has them,
 * so whole pages are outputs. */
static void case_pages(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], nkv = dim[1], hd = dim[2], n = nkv * hd, slots = m + dim[3] + 1;
    uint32_t pages = (slots + FM_KV_PAGE - 1) / FM_KV_PAGE + 1;
    size_t floats = (size_t)pages * n * FM_KV_PAGE;
    fm_kv_view kv = {kk_out(k, floats, 1.0), kk_out(k, floats, 1.0)};
    float *key = kk_in(k, (size_t)m * (n + 3), 2.0), *v = kk_in(k, (size_t)m * n, 2.0);
    int32_t *slot = kk_shuffled(k, m);

    assert_int_equal(k->be->kv_page_bytes(k->be, nkv, hd), n * FM_KV_PAGE * sizeof(float));
    for (uint32_t i = 0; i < m; i++)
        slot[i] = (int32_t)(dim[3] + (dim[4] ? i : (uint32_t)slot[i]));
    k->be->kv_write(k->be, kv, key, n + 3, v, n, slot, m, nkv, hd);
    k->be->kv_copy(k->be, kv, (int32_t)pages - 1, 0, nkv, hd);
}

TEST(pages_equal_the_oracle)
{
    static const uint32_t dims[][5] = {{1, 1, 1, 0, 1},
                                       {1, 2, 64, 77, 1},
                                       {70, 3, 20, 5, 1},
                                       {33, 1, 32, 0, 0},
                                       {100, 2, 33, 3, 0}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("kv_write, kv_copy", case_pages, dims[i], TOL_ELEM);
}

/* dim: m, v, padding */
static void case_loss(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], v = dim[1], ld = v + dim[2];
    int32_t *label = kk_shuffled(k, m);
    float *loss = kk_out(k, m, 1.0), *lse = kk_out(k, m, 1.0);
    float *x = kk_out(k, (size_t)m * ld, 12.0);

    for (uint32_t i = 0; i < m; i++)
        label[i] = i % 3 == 2 ? -1 - label[i] : (int32_t)((uint32_t)label[i] * 31u % v);
    k->be->logsumexp(k->be, lse, x, ld, m, v);
    k->be->cross_entropy(k->be, loss, x, ld, label, m, v, 0.125f);
}

TEST(losses_equal_the_oracle)
{
    static const uint32_t dims[][3] = {{1, 1, 0},    {2, 7, 0},     {3, 16, 1},  {5, 33, 0},
                                       {9, 1000, 3}, {4, 49152, 0}, {2, 8195, 1}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("logsumexp, cross_entropy", case_loss, dims[i], TOL_SUM);
}

static void case_optimizer(kk *k, const uint32_t *dim)
{
    uint32_t n = dim[0];
    float *g = kk_in(k, n, 1.0), *p = kk_out(k, n, 1.0), *m = kk_out(k, n, 0.1);
    float *v = kk_out(k, n, 0.1), *sum = kk_out(k, 1, 1.0);
    double *total = kk_alloc(k, sizeof *total);

    for (uint32_t i = 0; i < n; i++)
        v[i] = fabsf(v[i]);
    *total = 0.5;
    k->be->sum_squares(k->be, total, g, n);
    tk_ok(k->be->sync(k->be));
    *sum = (float)*total;
    for (uint64_t step = 1; step <= 5; step++)
        k->be->adamw(k->be, p, m, v, g, n, 1e-2f, 0.9f, 0.999f, 1e-8f, 0.1f, step, 0.5f);
}

TEST(optimizer_equals_the_oracle)
{
    static const uint32_t dims[][1] = {{1}, {17}, {4096}, {200001}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("adamw, sum_squares", case_optimizer, dims[i], TOL_SUM);
}

/* ---- the lane order, in scalar ---- */

TEST(rmsnorm_sums_in_lanes)
{
    enum { H = 603 };
    fm_backend *be = kk_open_exact(NULL);
    kk k = {.be = be};
    float *x = kk_in(&k, H, 3.0), *gain = kk_in(&k, H, 1.0), *y = kk_in(&k, H, 1.0);
    float lane[FM_LANES] = {0};

    be->rmsnorm(be, y, x, gain, NULL, 1, H, H, 1e-6f);
    tk_ok(be->sync(be));
    for (size_t i = 0; i < H; i++)
        lane[i % FM_LANES] = fmaf(x[i], x[i], lane[i % FM_LANES]);
    for (size_t half = FM_LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            lane[i] = lane[i] + lane[i + half];
    float rstd = 1.0f / sqrtf(lane[0] / (float)H + 1e-6f);
    for (size_t i = 0; i < H; i++)
        assert_true(y[i] == (x[i] * rstd) * gain[i]);
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
}

TEST(sum_squares_adds_blocks_in_order)
{
    enum { N = 65536 * 2 + 77 };
    fm_backend *be = kk_open_exact(NULL);
    kk k = {.be = be};
    float *x = kk_in(&k, N, 3.0);
    double total = 1.0, *got = kk_alloc(&k, sizeof *got);

    *got = 1.0;
    be->sum_squares(be, got, x, N);
    tk_ok(be->sync(be));
    double sum = 0.0;
    for (size_t at = 0; at < N; at += 65536) {
        double lane[FM_LANES] = {0};
        for (size_t i = at; i < N && i < at + 65536; i++)
            lane[i % FM_LANES] += (double)x[i] * (double)x[i];
        for (size_t half = FM_LANES / 2; half > 0; half /= 2)
            for (size_t i = 0; i < half; i++)
                lane[i] += lane[i + half];
        sum += lane[0];
    }
    total += sum;
    assert_true(total == *got);
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
}

/* One call for all of a slice: neither another sum, nor a double behind the last. */
TEST(block_squares_are_what_sum_squares_adds)
{
    static const uint32_t size[] = {1, 15, 65535, 65536, 65537, 65536 * 3 + 1234};
    fm_backend *be = kk_open_exact(NULL);

    for (size_t s = 0; s < FM_ARRAY_LEN(size); s++) {
        kk k = {.be = be};
        uint32_t n = size[s], blocks = (n + 65535) / 65536;
        float *x = kk_in(&k, n, 3.0);
        double *got = kk_alloc(&k, (blocks + 1) * sizeof *got);
        x[n / 2] = s == 3 ? -INFINITY : x[n / 2];
        for (uint32_t b = 0; b <= blocks; b++)
            got[b] = -7.0;
        be->block_squares(be, got, x, n);
        tk_ok(be->sync(be));
        for (uint32_t b = 0; b < blocks; b++) {
            double lane[FM_LANES] = {0};
            for (size_t i = (size_t)b * 65536; i < n && i < (b + 1) * (size_t)65536; i++)
                lane[i % FM_LANES] += (double)x[i] * (double)x[i];
            for (size_t half = FM_LANES / 2; half > 0; half /= 2)
                for (size_t i = 0; i < half; i++)
                    lane[i] += lane[i + half];
            assert_memory_equal(&lane[0], &got[b], sizeof *got);
        }
        assert_true(got[blocks] == -7.0);
        kk_gather(&k);
        fm_free(k.result);
    }
    fm_backend_close(be);
}

/* ---- limits ---- */

TEST(losses_survive_large_logits_and_tell_nan)
{
    fm_backend *be = kk_open_exact(NULL);
    kk k = {.be = be};
    float *x = kk_in(&k, 40, 1.0), *lse = kk_in(&k, 3, 1.0), *loss = kk_in(&k, 1, 1.0);
    int32_t *label = kk_alloc(&k, sizeof *label);

    *label = 3;
    for (size_t i = 0; i < 40; i++)
        x[i] = i == 3 ? 3e38f : -3e38f;
    be->logsumexp(be, lse, x, 40, 1, 40);
    be->cross_entropy(be, loss, x, 40, label, 1, 40, 1.0f);
    tk_ok(be->sync(be));
    assert_true(*lse == 3e38f && *loss == 0.0f && x[3] == 0.0f && x[4] == 0.0f);
    x[35] = NAN;
    be->logsumexp(be, lse, x, 40, 1, 40);
    tk_ok(be->sync(be));
    assert_true(isnan(*lse));
    x[35] = -INFINITY; /* a banned token */
    be->logsumexp(be, lse, x, 40, 1, 40);
    tk_ok(be->sync(be));
    assert_true(fabsf(*lse - logf(39.0f)) < 1e-6f);
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
}

TEST(empty_calls_touch_nothing)
{
    fm_backend *be = kk_open_exact(NULL);
    kk k = {.be = be};
    float *y = kk_in(&k, 2, 1.0);
    double *sum = kk_alloc(&k, sizeof *sum);

    y[0] = 5.0f, y[1] = 6.0f;
    *sum = 2.0;
    be->add(be, y, y, 0);
    be->scale(be, y, 0.0f, 0);
    be->swiglu(be, y, y, y, 0);
    be->rmsnorm(be, y, y, y, NULL, 0, 2, 2, 1e-5f);
    be->layernorm(be, y, y, y, NULL, 0, 2, 2, 1e-5f);
    be->softcap(be, y, 2, 0, 2, 1.0f);
    be->copy_rows(be, y, 1, y + 1, 1, NULL, 0, 1);
    be->copy_rows(be, y, 1, y + 1, 1, NULL, 1, 0);
    be->embed_grad(be, y, y, 1, NULL, 0, 1);
    be->adamw(be, y, y, y, y, 0, 1.0f, 0.9f, 0.9f, 1.0f, 0.5f, 1, 1.0f);
    be->sum_squares(be, sum, y, 0);
    be->affine(be, y, 1, 1, y, y, 0, 0, NULL);
    tk_ok(be->sync(be));
    assert_true(y[0] == 5.0f && y[1] == 6.0f && *sum == 2.0);
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
}

TEST(empty_products_touch_nothing)
{
    fm_backend *be = kk_open_exact(NULL);
    kk k = {.be = be};
    float *y = kk_in(&k, 2, 1.0);

    y[0] = 5.0f, y[1] = 6.0f;
    fm_lora none = kk_lora(be, y, 1, y, y, 1, 1, 1);
    be->lora(be, y, 1, 1, &none, 1);
    be->lora(be, y, 1, 1, NULL, 0);
    be->products(be, y, 1, 1, NULL, 0);
    kk_lora_free(be, &none);
    be->gemm(be, y, 1, y, 1, false, y, 1, false, 0, 1, 1, 1.0f, true);
    tk_ok(be->sync(be));
    assert_true(y[0] == 5.0f && y[1] == 6.0f);
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_about_one_ulp),
        cmocka_unit_test(exp_keeps_its_limits),
        cmocka_unit_test(norms_equal_the_oracle),
        cmocka_unit_test(rope_equals_the_oracle),
        cmocka_unit_test(elements_equal_the_oracle),
        cmocka_unit_test(sums_over_rows_equal_the_oracle),
        cmocka_unit_test(affine_equals_the_oracle),
        cmocka_unit_test(pages_equal_the_oracle),
        cmocka_unit_test(losses_equal_the_oracle),
        cmocka_unit_test(optimizer_equals_the_oracle),
        cmocka_unit_test(rmsnorm_sums_in_lanes),
        cmocka_unit_test(sum_squares_adds_blocks_in_order),
        cmocka_unit_test(block_squares_are_what_sum_squares_adds),
        cmocka_unit_test(losses_survive_large_logits_and_tell_nan),
        cmocka_unit_test(empty_calls_touch_nothing),
        cmocka_unit_test(empty_products_touch_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
