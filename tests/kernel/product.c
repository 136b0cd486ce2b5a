/* ctest: card */
/* Matrix products: bad weights, the oracle, the stated order bit for bit, rows that do not know
 * their neighbours, and a failed allocation that sync reports. */
#include "tests/kernel/kernel_kit.h"

/* A chain of k roundings of random signs errs by about sqrt(k) half-ulps of its largest partial
 * sum: 1e-6 of the norm at k = 1,536; five times that is allowed. */
#define TOL_SUM 5e-6

/* ---- the order, stated in scalar ---- */

static float chain(const float *a, size_t step_a, const float *b, size_t step_b, uint32_t k,
                   float alpha, const float *start)
{
    float total = 0.0f;

    for (uint32_t k0 = 0; k0 < k; k0 += FM_K_BLOCK) {
        float sum = 0.0f;
        for (uint32_t i = k0; i < k && i < k0 + FM_K_BLOCK; i++)
            sum = fmaf(a[i * step_a], b[i * step_b], sum);
        sum = sum * alpha;
        if (k0 == 0)
            total = start ? *start + sum : sum;
        else
            total = total + sum;
    }
    return total;
}

/* ---- bad arguments ---- */

TEST(weight_refuses_what_it_cannot_hold)
{
    fm_backend *be;
    fm_weight *w = (fm_weight *)&be;
    float x[40] = {0};

    be = kk_open_exact(NULL);
    tk_fails(be->weight_new(be, &w, FM_ROLE_LINEAR, FM_F32, 0, 4, x), FM_EINVAL, "no elements");
    assert_null(w);
    tk_fails(be->weight_new(be, &w, FM_ROLE_LINEAR, FM_I32, 2, 4, x), FM_EUNSUPPORTED, "I32");
    tk_fails(be->weight_new(be, &w, FM_ROLE_LINEAR, FM_Q8_0, 1, 33, x), FM_EINVAL, NULL);
    assert_null(w);
    fm_backend_close(be);
    fm_backend_close(NULL);
}

TEST(a_missing_operation_is_named)
{
    fm_backend *be;

    kk_cpu_only();
    tk_ok(fm_backend_open(&be, "exact", NULL));
    assert_null(fm_backend_lacks(be, true));
    be->gemm = NULL;
    assert_null(fm_backend_lacks(be, false));
    assert_string_equal(fm_backend_lacks(be, true), "gemm");
    fm_backend_close(be);
}

TEST(unknown_isa_is_refused)
{
    fm_backend *be;

    kk_cpu_only();
    tk_fails(fmi_cpu_open_isa(&be, NULL, "mmx"), FM_EUNSUPPORTED, "mmx");
    assert_null(be);
}

/* ---- against the oracle, all variants, all thread counts ---- */

/* dim: m, n, k, bias?, rows given?, padding of rows */
static void case_linear(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], n = dim[1], kd = dim[2], pad = dim[5];
    float *w = kk_in(k, (size_t)n * kd, 0.1), *x = kk_in(k, (size_t)(m + 3) * (kd + pad), 1.0);
    float *bias = dim[3] ? kk_in(k, n, 1.0) : NULL;
    int32_t *rows = dim[4] ? kk_shuffled(k, m + 3) : NULL;
    float *y = kk_out(k, (size_t)(m + 3) * (n + pad), 1.0);
    fm_weight *weight = kk_weight(k, w, n, kd);

    k->be->linear(k->be, y, n + pad, x, kd + pad, weight, bias, rows, m);
    k->be->weight_free(k->be, weight);
}

TEST(linear_equals_the_oracle)
{
    static const uint32_t dims[][6] = {
        {1, 1, 1, 0, 0, 0},       {1, 33, 5, 1, 0, 0},      {2, 31, 512, 0, 1, 3},
        {3, 32, 513, 1, 1, 1},    {7, 64, 511, 0, 0, 0},    {12, 65, 1024, 1, 0, 5},
        {13, 96, 1100, 1, 1, 0},  {37, 47, 1537, 1, 1, 7},  {64, 160, 576, 0, 0, 0},
        {130, 70, 600, 0, 1, 0},  {260, 40, 33, 1, 0, 2},   {1, 200, 2800, 0, 0, 0},
        {5, 17, 2731, 1, 1, 0},   {300, 33, 2800, 0, 0, 0}, {0, 7, 9, 1, 1, 0},
        {260, 300, 520, 1, 1, 1}, {33, 70, 513, 1, 0, 0},   {4, 33, 4700, 1, 1, 4},
    };

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("linear", case_linear, dims[i], TOL_SUM);
}

/* dim: m, n, k, r, rows given? */
static void case_lora(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], n = dim[1], kd = dim[2], r = dim[3];
    float *a = kk_in(k, (size_t)r * kd, 0.1), *b = kk_in(k, (size_t)n * r, 0.5);
    float *x = kk_in(k, (size_t)(m + 2) * kd, 1.0);
    int32_t *rows = dim[4] ? kk_shuffled(k, m + 2) : NULL;
    float *y = kk_out(k, (size_t)(m + 2) * (n + 1), 1.0);

    fm_lora term = kk_lora(k->be, y, n + 1, a, b, n, kd, r);
    term.scale = 1.75f;
    term.m = m;
    term.rows = rows;
    k->be->lora(k->be, x, kd, kd, &term, 1);
    kk_lora_free(k->be, &term);
}

/* dim: n, k, threads' worth of rows: terms of several ranks and lengths over shuffled rows */
static void case_lora_list(kk *k, const uint32_t *dim)
{
    static const uint32_t count[] = {1, 2, 3, 40, 1, 5}, rank[] = {8, 1, 17, 4, 600, 2};
    uint32_t n = dim[0], kd = dim[1], at = 0;
    fm_lora term[FM_ARRAY_LEN(count)];
    float *x = kk_in(k, (size_t)52 * kd, 1.0), *y = kk_out(k, (size_t)52 * n, 1.0);
    int32_t *rows = kk_shuffled(k, 52);

    for (size_t i = 0; i < FM_ARRAY_LEN(count); at += count[i++]) {
        float *a = kk_in(k, (size_t)rank[i] * kd, 0.1), *b = kk_in(k, (size_t)n * rank[i], 0.5);
        term[i] = kk_lora(k->be, y, n, a, b, n, kd, rank[i]);
        term[i].scale = 0.25f + (float)i;
        term[i].m = count[i];
        term[i].rows = rows + at;
    }
    assert_int_equal(at, 52);
    k->be->lora(k->be, x, kd, kd, term, FM_ARRAY_LEN(count));
    for (size_t i = 0; i < FM_ARRAY_LEN(count); i++)
        kk_lora_free(k->be, &term[i]);
}

TEST(a_list_of_lora_terms_equals_the_oracle)
{
    static const uint32_t dims[][2] = {{576, 576}, {5, 3}, {33, 600}, {97, 1100}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("lora list", case_lora_list, dims[i], TOL_SUM);
}

TEST(lora_equals_the_oracle)
{
    static const uint32_t dims[][5] = {
        {1, 576, 576, 8, 0},  {1, 5, 3, 1, 0},      {3, 33, 600, 16, 1}, {8, 192, 576, 4, 1},
        {37, 65, 700, 17, 1}, {300, 40, 64, 32, 0}, {600, 33, 70, 3, 1}, {4, 20, 600, 520, 0},
    };

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("lora", case_lora, dims[i], TOL_SUM);
}

/* dim: m, n, k, ta, tb, accumulate, padding */
static void case_gemm(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], n = dim[1], kd = dim[2], pad = dim[6];
    size_t lda = (dim[3] ? m : kd) + pad, ldb = (dim[4] ? kd : n) + pad;
    float *a = kk_in(k, lda * (dim[3] ? kd : m), 1.0), *b = kk_in(k, ldb * (dim[4] ? n : kd), 0.1);
    float *c = kk_out(k, (size_t)m * (n + pad), 1.0);

    k->be->gemm(k->be, c, n + pad, a, lda, dim[3], b, ldb, dim[4], m, n, kd, 0.75f, dim[5]);
}

TEST(gemm_equals_the_oracle)
{
    static const uint32_t sizes[][3] = {{1, 1, 1},     {3, 35, 7},     {16, 16, 512},
                                        {33, 63, 513}, {65, 31, 1030}, {1100, 20, 40},
                                        {8, 96, 1200}, {70, 8, 600},   {140, 130, 520}};

    for (size_t i = 0; i < FM_ARRAY_LEN(sizes); i++)
        for (uint32_t form = 0; form < 8; form++) {
            uint32_t dim[] = {sizes[i][0],   sizes[i][1], sizes[i][2], form & 1,
                              form >> 1 & 1, form >> 2,   form % 3};
            kk_check("gemm", case_gemm, dim, TOL_SUM);
        }
}

/* dim: m, n, k, accumulate */
static void case_linear_dx(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], n = dim[1], kd = dim[2];
    float *w = kk_in(k, (size_t)n * kd, 0.1), *dy = kk_in(k, (size_t)m * (n + 2), 1.0);
    float *dx = kk_out(k, (size_t)m * (kd + 1), 1.0);
    fm_weight *weight = kk_weight(k, w, n, kd);

    k->be->linear_dx(k->be, dx, kd + 1, dy, n + 2, weight, m, dim[3]);
    k->be->weight_free(k->be, weight);
}

TEST(linear_dx_equals_the_oracle)
{
    static const uint32_t dims[][4] = {{1, 1, 1, 0},    {2, 33, 31, 1},    {13, 512, 64, 0},
                                       {9, 513, 65, 1}, {40, 1100, 48, 0}, {130, 40, 700, 1}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("linear_dx", case_linear_dx, dims[i], TOL_SUM);
}

/* dim: n, k, m; the weight is updated before it is read */
static void case_embed(kk *k, const uint32_t *dim)
{
    uint32_t n = dim[0], kd = dim[1], m = dim[2];
    float *first = kk_in(k, (size_t)n * kd, 1.0), *second = kk_in(k, (size_t)n * kd, 1.0);
    int32_t *ids = kk_shuffled(k, n), *rows = kk_shuffled(k, m);
    float *y = kk_out(k, (size_t)m * (kd + 1), 1.0), *z = kk_out(k, (size_t)m * kd, 1.0);
    fm_weight *weight = kk_weight(k, first, n, kd);

    k->be->embed(k->be, y, kd + 1, weight, ids, rows, m);
    k->be->weight_update(k->be, weight, second);
    k->be->embed(k->be, z, kd, weight, ids, NULL, m);
    k->be->weight_free(k->be, weight);
}

TEST(embed_and_update_copy_rows)
{
    static const uint32_t dims[][3] = {{1, 1, 1}, {33, 17, 20}, {100, 64, 100}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("embed", case_embed, dims[i], 0.0);
}

TEST(half_types_and_blocks_widen_exactly)
{
    fm_backend *be = kk_open_exact(NULL);
    kk k = {.be = be};
    fm_weight *w;
    uint16_t half[3 * 40];
    unsigned char q8[2 * 34] = {0};
    int32_t *ids = kk_alloc(&k, 3 * sizeof *ids);
    float *y = kk_in(&k, 3 * 40, 0.0), want[64];

    memcpy(ids, (int32_t[]){2, 0, 1}, 3 * sizeof *ids);
    for (uint16_t i = 0; i < 3 * 40; i++)
        half[i] = (uint16_t)(0x3c00 + 37 * i);
    tk_ok(be->weight_new(be, &w, FM_ROLE_LINEAR, FM_F16, 3, 40, half));
    be->embed(be, y, 40, w, ids, NULL, 3);
    tk_ok(be->sync(be));
    for (size_t i = 0; i < 40; i++) {
        assert_true(y[i] == fm_f16_to_f32(half[80 + i]));
        assert_true(y[40 + i] == fm_f16_to_f32(half[i]));
    }
    be->weight_free(be, w);
    for (size_t i = 0; i < sizeof q8; i++)
        q8[i] = (unsigned char)(i % 34 < 2 ? 0x3c : 5 * i);
    tk_ok(fm_to_f32(want, FM_Q8_0, q8, 64));
    tk_ok(be->weight_new(be, &w, FM_ROLE_LINEAR, FM_Q8_0, 2, 32, q8));
    be->embed(be, y, 32, w, ids + 1, NULL, 2);
    tk_ok(be->sync(be));
    assert_memory_equal(y, want, sizeof want);
    be->weight_free(be, w);
    be->weight_free(be, NULL);
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
}

/* dim: k, what is wrong: the places of NaN and infinities come out, never their bits. */
static void case_not_finite(kk *k, const uint32_t *dim)
{
    enum { M = 3, N = 40 };
    const float odd[] = {INFINITY, -INFINITY, NAN, -0.0f, 1e-40f, 3e38f};
    uint32_t kd = dim[0];
    float *w = kk_in(k, (size_t)N * kd, 1.0), *x = kk_in(k, (size_t)M * kd, 1.0);
    float *y = kk_out(k, M * N, 0.0);
    fm_weight *weight;

    for (uint32_t i = 0; i < 20; i++) {
        x[(size_t)(i % 2) * kd + i * 37 % kd] = odd[(i + dim[1]) % FM_ARRAY_LEN(odd)];
        w[(size_t)(i % N) * kd + i * 11 % kd] = odd[(i * 5 + dim[1]) % FM_ARRAY_LEN(odd)];
    }
    weight = kk_weight(k, w, N, kd);
    k->be->linear(k->be, y, N, x, kd, weight, NULL, NULL, M);
    k->be->linear(k->be, y + N, N, x + kd, kd, weight, NULL, NULL, 1);
    tk_ok(k->be->sync(k->be));
    for (size_t i = 0; i < M * N; i++)
        if (isnan(y[i]) || isinf(y[i]))
            y[i] = isnan(y[i]) ? 1.0f : y[i] > 0 ? 2.0f : 3.0f;
    k->be->weight_free(k->be, weight);
}

TEST(what_is_not_finite_stays_in_its_row)
{
    static const uint32_t dims[][2] = {{1, 0}, {3, 2}, {37, 3}, {600, 1}, {1030, 4}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("not finite", case_not_finite, dims[i], TOL_SUM);
}

/* dim: k: products of several types, counts of rows and ways to name them, of one x */
static void case_products(kk *k, const uint32_t *dim)
{
    static const uint32_t n[] = {33, 5, 70, 32, 1, 40, 64}, m[] = {1, 3, 40, 0, 7, 50, 8};
    enum { LIST = FM_ARRAY_LEN(n), ROWS = 50 };
    uint32_t kd = dim[0];
    float *w = kk_in(k, (size_t)70 * kd, 0.1), *x = kk_in(k, (size_t)ROWS * kd, 1.0);
    float *bias = kk_in(k, 70, 1.0), *y = kk_out(k, (size_t)ROWS * LIST * 70, 1.0);
    uint16_t *half = kk_alloc(k, (size_t)70 * kd * sizeof *half);
    int32_t *rows = kk_shuffled(k, ROWS);
    fm_product list[LIST] = {0};
    fm_weight *weight[LIST];

    tk_ok(fm_from_f32(half, FM_BF16, w, (uint64_t)70 * kd));
    for (uint32_t i = 0; i < LIST; i++) {
        tk_ok(k->be->weight_new(k->be, &weight[i], FM_ROLE_LINEAR, i % 3 == 1 ? FM_BF16 : FM_F32,
                                n[i], kd, i % 3 == 1 ? (const void *)half : w));
        list[i].y = y + 70 * i;
        list[i].ldy = LIST * 70;
        list[i].w = weight[i];
        list[i].bias = i % 2 ? bias : NULL;
        list[i].m = m[i];
        list[i].first = i % 4 == 0 ? ROWS - m[i] : 0;
        list[i].rows = i % 4 == 0 ? NULL : rows + ROWS - m[i];
    }
    k->be->products(k->be, x, kd, kd, list, LIST);
    for (uint32_t i = 0; i < LIST; i++)
        k->be->weight_free(k->be, weight[i]);
}

TEST(a_list_of_products_equals_the_oracle)
{
    static const uint32_t dims[][1] = {{1}, {64}, {513}, {1100}};

    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
        kk_check("products", case_products, dims[i], TOL_SUM);
}

/* dim: terms: more than one copy to a GPU holds, each of one row */
static void case_long_list(kk *k, const uint32_t *dim)
{
    enum { N = 2, K = 3 };
    float *a = kk_in(k, K, 1.0), *b = kk_in(k, N, 1.0), *x = kk_in(k, (size_t)dim[0] * K, 1.0);
    float *y = kk_out(k, (size_t)dim[0] * N, 1.0);
    fm_lora base = kk_lora(k->be, y, N, a, b, N, K, 1), *term = fm_calloc(dim[0], sizeof *term);

    for (uint32_t i = 0; i < dim[0]; i++) {
        term[i] = base;
        term[i].first = i;
        term[i].m = 1;
    }
    k->be->lora(k->be, x, K, K, term, dim[0]);
    kk_lora_free(k->be, &base);
    fm_free(term);
}

TEST(long_lists_of_terms_equal_the_oracle)
{
    kk_check("long list", case_long_list, (uint32_t[]){500}, TOL_SUM);
    kk_check("longer list", case_long_list, (uint32_t[]){9000}, TOL_SUM);
}

/* ---- the stated order, bit for bit ---- */

TEST(products_follow_the_stated_order)
{
    enum { M = 15, N = 70, K = 1300, R = 6 };
    fm_backend *be = kk_open_exact(NULL);
    kk k = {.be = be};
    float *x = kk_in(&k, M * K, 1.0), *w = kk_in(&k, N * K, 1.0), *bias = kk_in(&k, N, 1.0);
    float *a = kk_in(&k, R * K, 1.0), *b = kk_in(&k, N * R, 1.0), *y = kk_in(&k, M * N, 1.0);
    float *c = kk_in(&k, M * N, 1.0), *c0 = kk_in(&k, M * N, 1.0), *t = kk_in(&k, M * R, 1.0);
    float floats[R * K];
    fm_weight *weight;

    tk_ok(be->weight_new(be, &weight, FM_ROLE_LINEAR, FM_F32, N, K, w));
    be->linear(be, y, N, x, K, weight, bias, NULL, M);
    memcpy(c, c0, M * N * sizeof *c);
    be->gemm(be, c, N, x, K, false, w, K, true, M, N, K, 0.3f, true);
    tk_ok(be->sync(be));
    for (size_t i = 0; i < M; i++)
        for (size_t n = 0; n < N; n++) {
            assert_true(y[i * N + n] == chain(x + i * K, 1, w + n * K, 1, K, 1.0f, NULL) + bias[n]);
            assert_true(c[i * N + n] == chain(x + i * K, 1, w + n * K, 1, K, 0.3f, &c0[i * N + n]));
        }
    memcpy(c, c0, M * N * sizeof *c);
    fm_lora all = kk_lora(be, c, N, a, b, N, K, R);
    all.scale = 0.7f;
    all.m = M;
    be->lora(be, x, K, K, &all, 1);
    tk_ok(be->download(be, floats, be->weight_floats(all.a), sizeof floats));
    assert_memory_equal(floats, a, sizeof floats);
    kk_lora_free(be, &all);
    for (size_t i = 0; i < M * R; i++)
        t[i] = chain(x + i / R * K, 1, a + i % R * K, 1, K, 1.0f, NULL);
    for (size_t i = 0; i < M * N; i++)
        assert_true(c[i] == chain(t + i / N * R, 1, b + i % N * R, 1, R, 0.7f, &c0[i]));
    be->linear_dx(be, x, K, y, N, weight, M, false);
    tk_ok(be->sync(be));
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < K; j++)
            assert_true(x[i * K + j] == chain(y + i * N, 1, w + j, K, N, 1.0f, NULL));
    be->weight_free(be, weight);
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
}

TEST(a_row_does_not_know_its_neighbours)
{
    enum { M = 37, N = 100, K = 700, R = 5 };
    fm_pool *pool;
    tk_ok(fm_pool_new(&pool, 2));
    fm_backend *be = kk_open_exact(pool);
    kk k = {.be = be};
    float *x = kk_in(&k, M * K, 1.0), *w = kk_in(&k, N * K, 1.0), *all = kk_in(&k, M * N, 1.0);
    float *a = kk_in(&k, R * K, 1.0), *b = kk_in(&k, N * R, 1.0), *one = kk_in(&k, M * N, 1.0);
    int32_t *rows = kk_shuffled(&k, M);
    fm_weight *weight;

    tk_ok(be->weight_new(be, &weight, FM_ROLE_LINEAR, FM_F32, N, K, w));
    be->linear(be, all, N, x, K, weight, NULL, rows, M);
    fm_lora term = kk_lora(be, all, N, a, b, N, K, R);
    term.scale = 0.5f;
    term.m = M;
    term.rows = rows;
    be->lora(be, x, K, K, &term, 1);
    term.y = one;
    for (int32_t i = 0; i < M; i++) {
        be->linear(be, one + i * N, N, x + i * K, K, weight, NULL, NULL, 1);
        fm_lora row = term;
        row.rows = NULL;
        row.first = (uint32_t)i;
        row.m = 1;
        be->lora(be, x, K, K, &row, 1);
    }
    tk_ok(be->sync(be));
    assert_memory_equal(all, one, M * N * sizeof *all);
    for (uint32_t m = 1; m < M; m += 5) {
        be->linear(be, one, N, x, K, weight, NULL, rows, m);
        term.m = m;
        be->lora(be, x, K, K, &term, 1);
        tk_ok(be->sync(be));
        assert_memory_equal(all, one, M * N * sizeof *all);
    }
    kk_lora_free(be, &term);
    be->weight_free(be, weight);
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
    fm_pool_free(pool);
}

/* ---- faults ---- */

TEST(a_failed_allocation_waits_for_sync)
{
    enum { M = 40, N = 64, K = 600 };
    fm_backend *be;
    kk k = {0};
    float *x = kk_in(&k, M * K, 1.0), *w = kk_in(&k, N * K, 1.0), *y = kk_in(&k, M * N, 1.0);
    fm_weight *weight;

    kk_cpu_only();
    tk_ok(fm_backend_open(&be, "exact", NULL));
    for (uint64_t nth = 1; nth <= 3; nth++) {
        fm_mem_fail_at(nth, false);
        fm_status rc = be->weight_new(be, &weight, FM_ROLE_LINEAR, FM_F32, N, K, w);
        fm_mem_fail_at(0, false);
        assert_int_equal(rc, FM_ENOMEM);
        assert_null(weight);
    }
    tk_ok(be->weight_new(be, &weight, FM_ROLE_LINEAR, FM_F32, N, K, w));
    fm_mem_fail_at(1, true);
    be->linear(be, y, N, x, K, weight, NULL, NULL, M);
    be->add(be, y, y, M);
    fm_mem_fail_at(0, false);
    fm_error_clear();
    assert_int_equal(be->sync(be), FM_ENOMEM);
    assert_true(fm_error_text()[0] != 0);
    be->linear(be, y, N, x, K, weight, NULL, NULL, M);
    tk_ok(be->sync(be));
    assert_true(y[5] == chain(x, 1, w + 5 * K, 1, K, 1.0f, NULL));
    be->weight_free(be, weight);
    fm_backend_close(be);
    kk_gather(&k);
    fm_free(k.result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weight_refuses_what_it_cannot_hold),
        cmocka_unit_test(a_missing_operation_is_named),
        cmocka_unit_test(unknown_isa_is_refused),
        cmocka_unit_test(linear_equals_the_oracle),
        cmocka_unit_test(lora_equals_the_oracle),
        cmocka_unit_test(a_list_of_lora_terms_equals_the_oracle),
        cmocka_unit_test(long_lists_of_terms_equal_the_oracle),
        cmocka_unit_test(a_list_of_products_equals_the_oracle),
        cmocka_unit_test(what_is_not_finite_stays_in_its_row),
        cmocka_unit_test(gemm_equals_the_oracle),
        cmocka_unit_test(linear_dx_equals_the_oracle),
        cmocka_unit_test(embed_and_update_copy_rows),
        cmocka_unit_test(half_types_and_blocks_widen_exactly),
        cmocka_unit_test(products_follow_the_stated_order),
        cmocka_unit_test(a_row_does_not_know_its_neighbours),
        cmocka_unit_test(a_failed_allocation_waits_for_sync),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
