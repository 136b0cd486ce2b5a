/* Mode fast's weights and products: every type, odd shapes, lists of rows and of products, low-rank
 * terms, on every instruction set that this machine has and on 1 to 3 threads.
 *
 * The reference is naive and in double. Held tightly against it: sums of the same quantised inputs
 * (quantised here anew, from KERNELS.md). Held loosely: sums of the inputs as they came. The same
 * bits are asked of every instruction set, number of threads, batch and list. */
#include "tests/kernel/product_kit.h"

#include "infer/cpu/fast/fast.h"

#define TOL_SUM 3e-6    /* roundings of a float32 chain, as in kernel/product.c */
#define TOL_INT8 1.2e-2 /* x rounded to amax / 127: 0.4 % of uniform x; with outliers more */
#define TOL_BF16 4e-3   /* x rounded to 8 bits: 0.1 to 0.2 % */
#define TOL_SPLIT 2e-5  /* x as two of those: 16 bits */

static const char *const isas[] = {"generic", "avx2", "avx512", "avx512vnni", "avx512bf16"};
static const fm_dtype dtypes[] = {FM_Q8_0,    FM_Q4_0,  FM_Q4_1,   FM_Q5_0, FM_Q5_1, FM_IQ4_NL,
                                  FM_BF16,    FM_F32,   FM_F16,    FM_Q4_K, FM_Q5_K, FM_Q6_K,
                                  FM_F8_E4M3, FM_MXFP4, FM_IQ4_XS, FM_Q2_K, FM_Q3_K};

static bool is_int8(fm_dtype d)
{
    return fm_dtype_get(d)->is_block;
}

/* x as a weight of this type meets it. */
static float *rounded(const float *x, size_t rows, uint32_t k, fm_dtype d)
{
    float *r = fm_memdup(x, rows * k * sizeof *x);

    assert_non_null(r);
    for (size_t i = 0; i < rows * k && d == FM_BF16; i++)
        r[i] = bf16(r[i]);
    if (is_int8(d))
        round_to_int8(r, rows, k, d);
    return r;
}

/* ---- backends ---- */

typedef struct rig {
    fm_pool *pool;
    fm_backend *be;
} rig;

static bool rig_open(rig *r, const char *isa, unsigned threads)
{
    fm_status rc;

    tk_ok(fm_pool_new(&r->pool, threads));
    rc = fmi_cpu_open_fast(&r->be, r->pool, isa);
    if (rc == FM_EUNSUPPORTED && isa) {
        fm_pool_free(r->pool);
        return false;
    }
    assert_int_equal(rc, FM_OK);
    return true;
}

static void rig_close(rig *r)
{
    tk_ok(r->be->sync(r->be));
    fm_backend_close(r->be);
    fm_pool_free(r->pool);
}

static void check_product(const product_case *c)
{
    const char *name = fm_dtype_get(c->w.dtype)->name;
    size_t count = (size_t)c->m * c->w.n;
    float *want = fm_malloc((count + 1) * sizeof *want),
          *got = fm_malloc((count + 1) * sizeof *got);
    float *first = NULL, *x = rounded(c->x, c->m + 3, c->w.k, c->w.dtype);
    rig r;

    for (unsigned threads = 1; threads <= 3; threads++)
        for (size_t i = 0; i < FM_ARRAY_LEN(isas); i++) {
            if (!rig_open(&r, isas[i], threads))
                continue;
            run_product(c, r.be, got);
            if (first)
                same_floats(got, first, count, name, isas[i]);
            else
                first = fm_memdup(got, count * sizeof *got);
            rig_close(&r);
        }
    if (!c->split || c->w.dtype != FM_BF16) {
        reference(want, x, c->w.f, c->w.n, c->w.k, c->bias, c->rows, c->m);
        close_to(first, want, count, TOL_SUM, name);
    }
    /* In a single sum nearly all may cancel, and the error of rounding x stays. */
    reference(want, c->x, c->w.f, c->w.n, c->w.k, c->bias, c->rows, c->m);
    close_to(first, want, count < 8 ? 0 : count,
             is_int8(c->w.dtype)     ? TOL_INT8
             : c->w.dtype != FM_BF16 ? TOL_SUM
             : c->split              ? TOL_SPLIT
                                     : TOL_BF16,
             name);
    fm_free(want);
    fm_free(got);
    fm_free(first);
    fm_free(x);
}

TEST(products_equal_the_reference)
{
    each_product(NULL, dtypes, FM_ARRAY_LEN(dtypes), check_product);
}

/* What nothing rounds has mode exact's bits. */
TEST(stored_floats_give_the_bits_of_exact)
{
    static const fm_dtype some[] = {FM_F32, FM_F16, FM_F8_E4M3};
    enum { M = 15, N = 70, K = 1100 };
    float *x = random_floats((M + 3) * K, 1.0), *y = random_floats(M * N, 1.0);
    float *want = random_floats(M * N, 1.0);

    for (size_t d = 0; d < FM_ARRAY_LEN(some); d++) {
        product_case c = {.m = M, .x = x, .bias = random_floats(N, 1.0)};
        c.w = random_matrix(some[d], N, K);
        for (size_t i = 0; i < FM_ARRAY_LEN(isas); i++) {
            fm_backend *exact;
            rig r;
            if (!rig_open(&r, isas[i], 2))
                continue;
            tk_ok(fm_backend_open(&exact, "exact", NULL));
            run_product(&c, exact, want);
            run_product(&c, r.be, y);
            same_floats(y, want, M * N, fm_dtype_get(some[d])->name, isas[i]);
            fm_backend_close(exact);
            rig_close(&r);
        }
        matrix_free(&c.w);
        fm_free(c.bias);
    }
    fm_free(x);
    fm_free(y);
    fm_free(want);
}

/* ---- rows alone and in company; lists ---- */

/* Every row of a list of products over three groups of rows is what linear gives that row alone. */
TEST(a_list_gives_each_row_its_own_result)
{
    enum { ROWS = 150, K = 256 };
    static const uint32_t ns[] = {48, 17, 33, 16, 100};
    static const fm_dtype mix[] = {FM_Q4_1, FM_Q8_0, FM_BF16, FM_F32, FM_Q5_1};
    float *x = random_floats(ROWS * K, 1.0), *y[5], *alone = fm_malloc(100 * sizeof *alone);
    int32_t *rows = shared_rows(NULL, ROWS);
    rig r;

    for (unsigned threads = 1; threads <= 3; threads++) {
        fm_weight *w[5];
        assert_true(rig_open(&r, NULL, threads));
        for (int i = 0; i < 5; i++) {
            matrix m = random_matrix(mix[i], ns[i], K);
            w[i] = weight(r.be, FM_ROLE_LINEAR, &m);
            matrix_free(&m);
            y[i] = random_floats((size_t)ROWS * ns[i], 1.0);
        }
        const fm_product list[] = {
            /* two of the same rows, one of others, two long ones */
            {.y = y[0], .ldy = ns[0], .w = w[0], .first = 0, .m = 5, .rows = rows},
            {.y = y[1], .ldy = ns[1], .w = w[1], .first = 0, .m = 5, .rows = rows},
            {.y = y[2], .ldy = ns[2], .w = w[2], .first = 0, .m = 9, .rows = rows + 5},
            {.y = y[3], .ldy = ns[3], .w = w[3], .first = 7, .m = ROWS - 7, .rows = NULL},
            {.y = y[4], .ldy = ns[4], .w = w[4], .first = 7, .m = ROWS - 7, .rows = NULL}};
        r.be->products(r.be, x, K, K, list, FM_ARRAY_LEN(list));
        tk_ok(r.be->sync(r.be));
        for (size_t p = 0; p < FM_ARRAY_LEN(list); p++)
            for (uint32_t i = 0; i < list[p].m; i++) {
                size_t row = list[p].rows ? (size_t)list[p].rows[i] : list[p].first + i;
                r.be->linear(r.be, alone, ns[p], x + row * K, K, w[p], NULL, NULL, 1);
                same_floats(y[p] + row * ns[p], alone, ns[p], "row alone", "best");
            }
        for (int i = 0; i < 5; i++) {
            r.be->weight_free(r.be, w[i]);
            fm_free(y[i]);
        }
        rig_close(&r);
    }
    fm_free(x);
    fm_free(rows);
    fm_free(alone);
}

/* ---- low-rank terms ---- */

TEST(lora_terms_equal_the_reference)
{
    float *x = random_floats(LR * LK, 1.0), *y0 = random_floats(LR * LN, 1.0);
    float *xr = rounded(x, LR, LK, FM_BF16), *y = random_floats(LR * LN, 1.0);
    float *want = random_floats(LR * LN, 1.0), *first = NULL;
    int32_t *rows = shared_rows(NULL, LR);
    matrix a[TERMS], b[TERMS];
    rig r;

    for (int i = 0; i < TERMS; i++) {
        a[i] = random_matrix(FM_BF16, lora_ranks[i], LK);
        b[i] = random_matrix(FM_BF16, LN, lora_ranks[i]);
    }
    for (unsigned threads = 1; threads <= 3; threads++)
        for (size_t i = 0; i < FM_ARRAY_LEN(isas); i++) {
            if (!rig_open(&r, isas[i], threads))
                continue;
            for (int way = 0; way < 2; way++) {
                memcpy(y, y0, LR * LN * sizeof *y);
                run_lora(r.be, x, rows, a, b, y, way == 1);
                if (first)
                    same_floats(y, first, LR * LN, way ? "lora alone" : "lora", isas[i]);
                else
                    first = fm_memdup(y, LR * LN * sizeof *y);
            }
            rig_close(&r);
        }
    memcpy(want, y0, LR * LN * sizeof *want);
    reference_lora(want, xr, rows, a, b);
    close_to(first, want, LR * LN, 1e-5, "lora"); /* t as two bf16: 2^-17 each */
    memcpy(want, y0, LR * LN * sizeof *want);
    reference_lora(want, x, rows, a, b);
    close_to(first, want, LR * LN, TOL_BF16, "lora, x unrounded");
    for (int i = 0; i < TERMS; i++) {
        matrix_free(&a[i]);
        matrix_free(&b[i]);
    }
    fm_free(x);
    fm_free(y0);
    fm_free(xr);
    fm_free(y);
    fm_free(want);
    fm_free(first);
    fm_free(rows);
}

/* ---- images, rows read back, sizes, what is refused ---- */

TEST(images_are_what_is_resident)
{
    rig r;

    assert_true(rig_open(&r, NULL, 1));
    for (size_t d = 0; d < FM_ARRAY_LEN(dtypes); d++) {
        matrix m = random_matrix(dtypes[d], 37, 256);
        static const int32_t ids[] = {36, 0, 17, 31, 32};
        float y[5 * 256], x[256];
        uint64_t bytes;
        fm_weight *own = weight(r.be, FM_ROLE_LINEAR, &m), *mapped;
        tk_ok(r.be->weight_image_bytes(r.be, &bytes, FM_ROLE_LINEAR, m.dtype, 37, 256));
        uint8_t *image = fm_aligned_alloc(64, bytes), *moved = fm_aligned_alloc(64, bytes);
        memset(image, 0xee, bytes);
        tk_ok(r.be->weight_image(r.be, image, FM_ROLE_LINEAR, m.dtype, 37, 256, m.bytes));
        memcpy(moved, image, bytes);
        memset(image, 0xee, bytes);
        tk_ok(r.be->weight_map(r.be, &mapped, FM_ROLE_LINEAR, m.dtype, 37, 256, moved));
        assert_memory_equal(fmi_cpu_weight_of(own)->panel, moved, bytes);
        assert_in_range(r.be->weight_bytes(mapped), bytes, bytes + 256);
        r.be->embed(r.be, y, 256, mapped, ids, NULL, 5);
        for (int i = 0; i < 5; i++)
            assert_memory_equal(y + i * 256, m.f + ids[i] * 256, 256 * sizeof *y);
        memcpy(x, m.f, sizeof x);
        r.be->linear(r.be, y, 37, x, 256, own, NULL, NULL, 1);
        r.be->linear(r.be, y + 256, 37, x, 256, mapped, NULL, NULL, 1);
        assert_memory_equal(y, y + 256, 37 * sizeof *y);
        r.be->weight_free(r.be, own);
        r.be->weight_free(r.be, mapped);
        fm_free(image);
        fm_free(moved);
        matrix_free(&m);
    }
    rig_close(&r);
}

TEST(weights_are_no_larger_than_their_files)
{
    rig r;

    assert_true(rig_open(&r, NULL, 1));
    for (size_t d = 0; d < FM_ARRAY_LEN(dtypes); d++) {
        const fm_dtype_info *info = fm_dtype_get(dtypes[d]);
        uint64_t bytes, file = 576ull * 1536 / info->block_elems * info->block_bytes;
        tk_ok(r.be->weight_image_bytes(r.be, &bytes, FM_ROLE_LINEAR, dtypes[d], 576, 1536));
        assert_in_range(bytes, file, file + file / 50);
    }
    rig_close(&r);
}

TEST(not_a_number_stays_in_its_row)
{
    static const fm_dtype some[] = {FM_Q8_0, FM_Q4_1, FM_BF16, FM_F32};
    rig r;

    assert_true(rig_open(&r, NULL, 1));
    for (size_t d = 0; d < FM_ARRAY_LEN(some); d++)
        for (int inf = 0; inf < 2; inf++) {
            matrix m = random_matrix(some[d], 20, 64);
            fm_weight *w = weight(r.be, FM_ROLE_LINEAR, &m);
            float *x = random_floats(3 * 64, 1.0), y[60];
            x[64 + 33] = inf ? INFINITY : NAN;
            r.be->linear(r.be, y, 20, x, 64, w, NULL, NULL, 3);
            for (int i = 0; i < 60; i++)
                assert_true(isfinite((double)y[i]) ? i / 20 != 1 : i / 20 == 1);
            r.be->weight_free(r.be, w);
            matrix_free(&m);
            fm_free(x);
        }
    rig_close(&r);
}

/* Rows that round_rows made lose nothing more: products of them are sums of their very numbers. */
static void check_rounded(fm_dtype d, uint32_t rows)
{
    enum { N = 35, K = 512 };
    matrix m = random_matrix(d, N, K);
    float *x = random_floats((size_t)rows * K, 3.0), *first = NULL;
    float *y = fm_malloc((size_t)rows * (K + N + N + 1) * sizeof *y);
    float *got = y + (size_t)rows * K, *want = got + (size_t)rows * N, *grain = want + rows * N;
    rig r;

    for (uint32_t i = 0; i < rows * K; i++)
        x[i] *= i / 32 % 3 == 0 ? 0.07f : 1.0f; /* blocks without the largest number of their row */
    for (size_t i = 0; i < FM_ARRAY_LEN(isas); i++) {
        if (!rig_open(&r, isas[i], 2))
            continue;
        fm_weight *w = weight(r.be, FM_ROLE_LINEAR, &m);
        r.be->round_rows(r.be, y, K, grain, x, K, rows, K);
        const fm_product p = {.y = got, .ldy = N, .w = w, .m = rows, .grain = grain};
        r.be->products(r.be, y, K, K, &p, 1);
        tk_ok(r.be->sync(r.be));
        if (first)
            same_floats(got, first, (size_t)rows * N, fm_dtype_get(d)->name, isas[i]);
        else
            first = fm_memdup(got, (size_t)rows * N * sizeof *got);
        reference(want, y, m.f, N, K, NULL, NULL, rows);
        close_to(got, want, (size_t)rows * N, TOL_SUM, fm_dtype_get(d)->name);
        r.be->weight_free(r.be, w);
        rig_close(&r);
    }
    matrix_free(&m);
    fm_free(x);
    fm_free(y);
    fm_free(first);
}

TEST(rounded_rows_are_multiplied_as_they_are)
{
    static const fm_dtype some[] = {FM_Q2_K, FM_Q4_0, FM_Q8_0, FM_Q4_1, FM_Q6_K};
    for (size_t d = 0; d < FM_ARRAY_LEN(some); d++) {
        check_rounded(some[d], 1);
        check_rounded(some[d], 3);
        check_rounded(some[d], 61);
    }
}

TEST(what_does_not_fit_is_refused)
{
    fm_weight *w;
    float x[40] = {0};
    rig r;

    tk_fails(fmi_cpu_open_fast(&r.be, NULL, "mmx"), FM_EUNSUPPORTED, "mmx");
    assert_true(rig_open(&r, NULL, 1));
    assert_string_equal(r.be->mode, "fast");
    tk_fails(r.be->weight_new(r.be, &w, FM_ROLE_LINEAR, FM_F32, 0, 4, x), FM_EINVAL, "no elements");
    tk_fails(r.be->weight_new(r.be, &w, FM_ROLE_LINEAR, FM_I32, 2, 4, x), FM_EUNSUPPORTED, "I32");
    tk_fails(r.be->weight_new(r.be, &w, FM_ROLE_LINEAR, FM_F64, 2, 4, x), FM_EUNSUPPORTED, "F64");
    tk_fails(r.be->weight_new(r.be, &w, FM_ROLE_LINEAR, FM_Q8_0, 1, 33, x), FM_EINVAL, NULL);
    tk_fails(r.be->weight_new(r.be, &w, FM_ROLE_LORA_A, FM_Q8_0, 1, 33, x), FM_EINVAL, NULL);
    assert_null(w);
    assert_null(fm_backend_lacks(r.be, false));
    assert_non_null(fm_backend_lacks(r.be, true));
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(images_are_what_is_resident),
        cmocka_unit_test(weights_are_no_larger_than_their_files),
        cmocka_unit_test(not_a_number_stays_in_its_row),
        cmocka_unit_test(rounded_rows_are_multiplied_as_they_are),
        cmocka_unit_test(products_equal_the_reference),
        cmocka_unit_test(stored_floats_give_the_bits_of_exact),
        cmocka_unit_test(a_list_gives_each_row_its_own_result),
        cmocka_unit_test(lora_terms_equal_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
