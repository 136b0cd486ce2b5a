/* ctest: card cuda_cost=20 */
/* Mode fast's weights and products on a GPU (KK_DEVICE=cuda; emulated or real): every stored type
 * against sums in double, and a row's bits in whatever company it is.
 *
 * Held tightly: sums of the inputs rounded as KERNELS.md says, here anew. Held loosely: sums of the
 * inputs as they came. */
#include "tests/kernel/product_kit.h"

/* Rounded inputs: a GPU's mma cuts what it aligns to 2^-24 or so of the largest product of 16, and
 * sums of it are float32. With minima the values themselves are rounded twice. */
#define TOL_SUM 1e-5
#define TOL_MIN 2e-4
#define TOL_LOOSE 4e-3  /* x and W rounded to 8 bits: 0.1 to 0.2 % each */
#define TOL_INT8 1.2e-2 /* x rounded to amax / 127: as on the CPU */
#define TOL_SPLIT 3e-5  /* x as two of those: 16 bits */

static const fm_dtype dtypes[] = {FM_BF16, FM_F16,    FM_F32,     FM_Q8_0,   FM_Q4_0,
                                  FM_Q4_1, FM_Q4_K,   FM_Q6_K,    FM_Q5_0,   FM_Q5_1,
                                  FM_Q5_K, FM_IQ4_NL, FM_F8_E4M3, FM_F8_E5M2};

static fm_backend *card(void)
{
    fm_backend *be = kk_card("fast");
    if (!be)
        skip();
    return be;
}

/* Products of whole numbers. */
static bool is_int8(fm_dtype d)
{
    return d == FM_Q8_0 || d == FM_Q4_0;
}

/* x and W as the product meets them. */
static float *met_x(const float *x, size_t rows, uint32_t k, fm_dtype d)
{
    float *r = fm_memdup(x, rows * k * sizeof *x);

    assert_non_null(r);
    if (is_int8(d))
        round_to_int8(r, rows, k, d);
    for (size_t i = 0; i < rows * k && !is_int8(d); i++)
        /* f16: of values below 2, 2^-14 of which is no subnormal */
        r[i] = d == FM_F16 ? fm_f16_to_f32(fm_f32_to_f16(x[i])) : bf16(x[i]);
    return r;
}

static float *met_w(const matrix *m)
{
    size_t n = (size_t)m->n * m->k;
    float *r = fm_memdup(m->f, n * sizeof *r);

    assert_non_null(r);
    for (size_t i = 0; i < n; i++)
        if (m->dtype == FM_F32)
            r[i] = bf16(r[i]) + bf16(r[i] - bf16(r[i]));
        else if (m->dtype != FM_F16 && !is_int8(m->dtype))
            r[i] = bf16(r[i]);
    return r;
}

/* Types that have a product of their own; the rest of x is for the others. */
static bool kept_as_blocks(fm_dtype d)
{
    return is_int8(d) || d == FM_Q4_1 || d == FM_Q4_K || d == FM_Q6_K;
}

static void check_product(const product_case *c)
{
    const fm_dtype d = c->w.dtype;
    const char *name = fm_dtype_get(d)->name;
    const uint32_t n = c->w.n, k = c->w.k;
    const bool minima = d == FM_Q4_1 || d == FM_Q4_K || d == FM_Q5_1 || d == FM_Q5_K;
    float *want = random_floats((size_t)c->m * n, 1.0), *got = random_floats((size_t)c->m * n, 1.0);
    float *x = met_x(c->x, c->m + 3, k, d), *w = met_w(&c->w);

    run_product(c, c->be, got);
    if (!c->split || kept_as_blocks(d)) {
        reference(want, x, w, n, k, c->bias, c->rows, c->m);
        close_to(got, want, (size_t)c->m * n, minima ? TOL_MIN : TOL_SUM, name);
    }
    reference(want, c->x, c->w.f, n, k, c->bias, c->rows, c->m);
    if (c->m * n >= 100) /* a single sum may cancel */
        close_to(got, want, (size_t)c->m * n,
                 is_int8(d)                                                 ? TOL_INT8
                 : c->split && (d == FM_BF16 || d == FM_F16 || d == FM_F32) ? TOL_SPLIT
                                                                            : TOL_LOOSE,
                 name);
    fm_free(want);
    fm_free(got);
    fm_free(x);
    fm_free(w);
}

TEST(products_equal_the_reference)
{
    fm_backend *be = card();

    each_product(be, dtypes, FM_ARRAY_LEN(dtypes), check_product);
    be->close(be);
}

/* What is whole numbers and fmaf has the CPU's bits: every kernel, rings that wrap, rows rounded on
 * the way and before, blocks of zeros and of values too small to be divided by. */
TEST(whole_numbers_have_the_bits_of_the_cpu)
{
    static const fm_dtype types[] = {FM_Q8_0, FM_Q4_0};
    static const uint32_t dims[][3] = {/* m, n, blocks of 32 */
                                       {1, 20, 129}, {2, 17, 70},   {5, 18, 129},
                                       {8, 33, 8},   {9, 33, 40},   {16, 16, 17},
                                       {40, 20, 34}, {140, 130, 8}, {70, 100, 9}};
    fm_backend *be = card(), *cpu;

    tk_ok(fm_backend_open(&cpu, "fast", NULL));
    for (size_t d = 0; d < FM_ARRAY_LEN(types); d++)
        for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++) {
            uint32_t m = dims[i][0], n = dims[i][1], unit = fm_dtype_get(types[d])->block_elems;
            uint32_t k = (dims[i][2] * 32 + unit - 1) / unit * unit;
            product_case c = product_case_new(be, types[d], m, n, k, i % 2, i % 3 == 1);
            float *want = random_floats((size_t)m * n, 1.0);
            float *got = random_floats((size_t)m * n, 1.0);
            for (uint32_t e = 0; e < 32; e++) {
                c.x[32 + e] = 0.0f;
                c.x[k + e] *= 0x1p-110f;
                c.x[k + 64 + e] *= 0x1p60f;
            }
            run_product(&c, cpu, want);
            run_product(&c, be, got);
            same_floats(got, want, (size_t)m * n, fm_dtype_get(types[d])->name, "as on the CPU");
            fm_free(want);
            fm_free(got);
            product_case_free(&c);
        }
    fm_backend_close(cpu);
    be->close(be);
}

/* RTX 30 and 40 give a block 99 KB: rings of two stages, or smaller tiles. (Only the emulator can
 * be made smaller; a GPU is compared with itself.) */
TEST(less_shared_memory_gives_the_same_bits)
{
    static const fm_dtype types[] = {FM_BF16, FM_F16, FM_F32, FM_Q8_0, FM_Q4_K, FM_Q6_K};
    static const uint32_t ms[] = {3, 12, 40, 140};
    enum { N = 40, DEEP = 1024 };
    float *got = random_floats(140 * N, 1.0), *want = random_floats(140 * N, 1.0);

    for (size_t d = 0; d < FM_ARRAY_LEN(types); d++)
        for (size_t i = 0; i < 2 * FM_ARRAY_LEN(ms); i++) {
            uint32_t m = ms[i / 2];
            fm_backend *be = card();
            product_case c = product_case_new(be, types[d], m, N, DEEP, true, false);
            c.split = i % 2;
            run_product(&c, be, want);
            setenv("SIMT_SHARED", "101376", 1);
            fm_backend *small = card();
            run_product(&c, small, got);
            unsetenv("SIMT_SHARED");
            same_floats(got, want, (size_t)m * N, fm_dtype_get(types[d])->name, "with 99 KB");
            small->close(small);
            product_case_free(&c);
            be->close(be);
        }
    fm_free(got);
    fm_free(want);
}

/* Every float8, subnormal ones and zeros of both signs among them; then the infinities and NaN as
 * well. Bits are those of the same values stored as bf16. */
TEST(float8_has_the_bits_of_bf16)
{
    static const fm_dtype types[] = {FM_F8_E4M3, FM_F8_E5M2};
    static const uint32_t ms[] = {3, 12, 40, 70};
    enum { N = 24, SIZE = 256, MOST = 70 };
    fm_backend *be = card();
    float *got = random_floats(MOST * N, 1.0), *want = random_floats(MOST * N, 1.0);

    for (size_t d = 0; d < FM_ARRAY_LEN(types); d++)
        for (int finite = 0; finite < 2; finite++) {
            product_case c = product_case_new(be, types[d], MOST, N, SIZE, true, false);
            uint64_t bytes;
            for (uint32_t i = 0; i < N * SIZE; i++) {
                uint8_t b = (uint8_t)(i + i / SIZE * 37), top = d ? 0x7bu : 0x7eu;
                c.w.bytes[i] = finite && (b & 0x7fu) > top ? b & 0x83u : b;
            }
            tk_ok(fm_to_f32(c.w.f, types[d], c.w.bytes, N * SIZE));
            product_case wide = c;
            uint16_t half[N * SIZE];
            wide.w.dtype = FM_BF16;
            wide.w.bytes = (uint8_t *)half;
            tk_ok(fm_from_f32(half, FM_BF16, c.w.f, N * SIZE));
            for (size_t i = 0; i < 2 * FM_ARRAY_LEN(ms); i++) {
                c.m = wide.m = ms[i / 2];
                c.split = wide.split = i % 2;
                run_product(&c, be, got);
                run_product(&wide, be, want);
                same_floats(got, want, (size_t)c.m * N, fm_dtype_get(types[d])->name, "as bf16");
            }
            fm_weight *w = weight(be, FM_ROLE_LINEAR, &c.w);
            tk_ok(be->weight_image_bytes(be, &bytes, FM_ROLE_LINEAR, types[d], N, SIZE));
            assert_int_equal(bytes, 32 * SIZE);
            assert_int_equal(be->weight_bytes(w), finite ? bytes : 2 * bytes);
            be->weight_free(be, w);
            product_case_free(&c);
        }
    fm_free(got);
    fm_free(want);
    be->close(be);
}

/* f16 rows are brought to one size first: values that f16 does not hold, large and small. */
TEST(size_of_x_does_not_matter_to_f16)
{
    enum { M = 4, N = 16, K = 96 };
    fm_backend *be = card();
    product_case c = {.be = be, .m = M, .x = shared_floats(be, (M + 3) * K, 1.0)};
    float got[M * N], want[M * N];

    for (int i = 0; i < M * K; i++)
        c.x[i] *= i / K == 1 ? 0x1p60f : i / K == 2 ? 0x1p-60f : i / K == 3 ? 0.0f : 1.0f;
    c.w = random_matrix(FM_F16, N, K);
    run_product(&c, be, got);
    reference(want, c.x, c.w.f, N, K, NULL, NULL, M);
    for (int i = 0; i < M; i++)
        if (i < 3)
            close_to(got + i * N, want + i * N, N, 1e-3, "f16");
        else
            assert_memory_equal(got + i * N, want + i * N, N * sizeof *got);
    matrix_free(&c.w);
    be->host_free(be, c.x);
    be->close(be);
}

/* Rows whose scales a launch of their own finds, since several blocks pack each, have the bits of
 * few rows, whose blocks look for themselves. */
TEST(scales_are_found_once)
{
    enum { M = 264, FEW = 20, N = 16, K = 1100 };
    fm_backend *be = card();
    product_case c = {.be = be, .m = M, .x = shared_floats(be, (M + 3) * K, 1.0)};
    float *all = fm_malloc(sizeof(float) * M * N), few[FEW * N], *x = c.x;

    assert_non_null(all);
    for (int i = 0; i < M * K;
         i++) /* the largest of a row stands in its last block, or its first */
        x[i] *= ldexpf(1.0f, i / K % 40 - 20 + (i % K > 1024) * (i / K % 5));
    c.w = random_matrix(FM_F16, N, K);
    run_product(&c, be, all);
    for (int at = 0; at < M; at += 4 * FEW) {
        c.x = x + (size_t)at * K;
        c.m = (uint32_t)(at + FEW < M ? FEW : M - at);
        run_product(&c, be, few);
        same_floats(all + (size_t)at * N, few, (size_t)c.m * N, "264 rows", "20 rows");
    }
    matrix_free(&c.w);
    fm_free(all);
    be->host_free(be, x);
    be->close(be);
}

/* ---- a row alone and in company ---- */

/* Of k two parts; rows that are looked at: each EVERYth. */
enum { ROWS = 134, K = 256, EVERY = 7 };

/* Every row of y for m rows in the order of `rows` is what it is alone. */
static void check_company(fm_backend *be, fm_weight *w, uint32_t n, const float *x,
                          const int32_t *rows, uint32_t m, const float *alone, bool split)
{
    float *y = shared_floats(be, (size_t)ROWS * n, 1.0);
    const fm_product p = {.y = y, .ldy = n, .w = w, .m = m, .rows = rows, .split = split};
    char what[64];

    snprintf(what, sizeof what, "%u rows%s", m, split ? ", split" : "");
    be->products(be, x, K, K, &p, 1);
    tk_ok(be->sync(be));
    for (uint32_t i = 0; i < m; i++) {
        size_t row = rows ? (size_t)rows[i] : i;
        if (row % EVERY == 0)
            same_floats(y + row * n, alone + row * n, n, what, "alone");
    }
    be->host_free(be, y);
}

TEST(a_row_has_its_bits_in_any_company)
{
    static const fm_dtype some[] = {FM_BF16, FM_F16, FM_F32, FM_Q8_0, FM_Q4_0, FM_Q4_K, FM_Q6_K};
    static const uint32_t ms[] = {8, 11, 50, 67, ROWS};
    /* four blocks of the largest kernel: on a GPU of four multiprocessors (the emulated one) the
     * parts of k follow one another then, and are blocks of their own else */
    enum { N = 136 };
    fm_backend *be = card();
    float *x = shared_floats(be, ROWS * K, 1.0), *alone = shared_floats(be, ROWS * N, 1.0);
    int32_t *rows = shared_rows(be, ROWS);

    for (size_t d = 0; d < FM_ARRAY_LEN(some); d++)
        for (int split = 0; split < 2; split++) {
            matrix m = random_matrix(some[d], N, K);
            fm_weight *w = weight(be, FM_ROLE_LINEAR, &m);
            for (uint32_t i = 0; i < ROWS; i += EVERY) {
                const fm_product p = {
                    .y = alone, .ldy = N, .w = w, .first = i, .m = 1, .split = split};
                be->products(be, x, K, K, &p, 1);
            }
            tk_ok(be->sync(be));
            for (size_t i = 0; i < FM_ARRAY_LEN(ms); i++)
                check_company(be, w, N, x, i % 2 ? rows : NULL, ms[i], alone, split);
            be->weight_free(be, w);
            matrix_free(&m);
            if (fm_dtype_get(some[d])->is_block)
                break;
        }
    be->host_free(be, x);
    be->host_free(be, alone);
    be->host_free(be, rows);
    be->close(be);
}

/* Lists: neighbours of other weights, types, rows and numbers of rows. */
TEST(a_list_gives_each_row_its_own_result)
{
    static const uint32_t ns[] = {48, 17, 33, 16, 100, 30};
    static const fm_dtype mix[] = {FM_Q4_1, FM_Q8_0, FM_BF16, FM_F32, FM_BF16, FM_F16};
    fm_backend *be = card();
    float *x = shared_floats(be, ROWS * K, 1.0), *y[6], *alone = shared_floats(be, 100, 1.0);
    int32_t *rows = shared_rows(be, ROWS);
    fm_weight *w[6];

    for (int i = 0; i < 6; i++) {
        matrix m = random_matrix(mix[i], ns[i], K);
        w[i] = weight(be, FM_ROLE_LINEAR, &m);
        matrix_free(&m);
        y[i] = shared_floats(be, (size_t)ROWS * ns[i], 1.0);
    }
    const fm_product list[] = {
        {.y = y[0], .ldy = ns[0], .w = w[0], .first = 0, .m = 5, .rows = rows},
        {.y = y[1], .ldy = ns[1], .w = w[1], .first = 0, .m = 5, .rows = rows},
        {.y = y[2], .ldy = ns[2], .w = w[2], .first = 0, .m = 0, .rows = NULL}, /* none */
        {.y = y[2], .ldy = ns[2], .w = w[2], .first = 0, .m = 9, .rows = rows + 5},
        {.y = y[3], .ldy = ns[3], .w = w[3], .first = 7, .m = 30, .rows = NULL},
        {.y = y[4], .ldy = ns[4], .w = w[4], .first = 7, .m = ROWS - 7, .rows = NULL},
        {.y = y[5], .ldy = ns[5], .w = w[5], .first = 3, .m = 12, .rows = NULL},
        {.y = y[4], .ldy = ns[4], .w = w[4], .first = 0, .m = 6, .rows = NULL},
    };
    be->products(be, x, K, K, list, FM_ARRAY_LEN(list));
    tk_ok(be->sync(be));
    for (size_t p = 0; p < FM_ARRAY_LEN(list); p++)
        for (uint32_t i = 0; i < list[p].m; i += 5) {
            size_t row = list[p].rows ? (size_t)list[p].rows[i] : list[p].first + i,
                   n = list[p].ldy;
            be->linear(be, alone, n, x + row * K, K, list[p].w, NULL, NULL, 1);
            tk_ok(be->sync(be));
            same_floats(list[p].y + row * n, alone, n, "a list", "alone");
        }
    for (int i = 0; i < 6; i++) {
        be->weight_free(be, w[i]);
        be->host_free(be, y[i]);
    }
    be->host_free(be, x);
    be->host_free(be, alone);
    be->host_free(be, rows);
    be->close(be);
}

/* ---- low-rank terms ---- */

TEST(lora_terms_equal_the_reference)
{
    fm_backend *be = card();
    float *x = shared_floats(be, LR * LK, 1.0), *y = shared_floats(be, LR * LN, 1.0);
    float *y0 = fm_memdup(y, LR * LN * sizeof *y), *want = fm_memdup(y, LR * LN * sizeof *y);
    float *first = random_floats(LR * LN, 1.0), *xr = met_x(x, LR, LK, FM_BF16);
    int32_t *rows = shared_rows(be, LR);
    matrix a[TERMS], b[TERMS];

    for (int i = 0; i < TERMS; i++) {
        a[i] = random_matrix(FM_BF16, lora_ranks[i], LK);
        b[i] = random_matrix(FM_BF16, LN, lora_ranks[i]);
    }
    run_lora(be, x, rows, a, b, y, false);
    memcpy(first, y, LR * LN * sizeof *y);
    memcpy(y, y0, LR * LN * sizeof *y);
    run_lora(be, x, rows, a, b, y, true);
    same_floats(first, y, LR * LN, "lora", "alone");
    reference_lora(want, xr, rows, a, b);
    close_to(first, want, LR * LN, 1e-5, "lora"); /* u as two bf16: 2^-17 each */
    memcpy(want, y0, LR * LN * sizeof *y);
    reference_lora(want, x, rows, a, b);
    close_to(first, want, LR * LN, TOL_LOOSE, "lora, x unrounded");
    for (int i = 0; i < TERMS; i++) {
        matrix_free(&a[i]);
        matrix_free(&b[i]);
    }
    fm_free(y0);
    fm_free(want);
    fm_free(first);
    fm_free(xr);
    be->host_free(be, x);
    be->host_free(be, y);
    be->host_free(be, rows);
    be->close(be);
}

/* ---- what is no number; rows read back; what is refused ---- */

TEST(not_a_number_stays_in_its_row)
{
    static const uint32_t ms[] = {3, 12, 40, 70};
    enum { N = 20, SMALL = 64 };
    fm_backend *be = card();
    float *x = shared_floats(be, 70 * SMALL, 1.0), *y = shared_floats(be, 70 * N, 1.0);

    for (size_t d = 0; d < 6; d++)
        for (size_t i = 0; i < 2 * FM_ARRAY_LEN(ms); i++) {
            matrix m = random_matrix(dtypes[d], N, SMALL);
            fm_weight *w = weight(be, FM_ROLE_LINEAR, &m);
            const fm_product p = {.y = y, .ldy = N, .w = w, .m = ms[i / 2], .split = d < 3};
            x[SMALL + 33] = i % 2 ? INFINITY : NAN;
            be->products(be, x, SMALL, SMALL, &p, 1);
            tk_ok(be->sync(be));
            for (uint32_t j = 0; j < ms[i / 2] * N; j++)
                assert_true(isfinite((double)y[j]) ? j / N != 1 : j / N == 1);
            be->weight_free(be, w);
            matrix_free(&m);
        }
    be->host_free(be, x);
    be->host_free(be, y);
    be->close(be);
}

TEST(rows_are_read_back)
{
    static const int32_t ids[] = {36, 0, 17, 31, 32};
    enum { N = 37 };
    fm_backend *be = card();
    float *y = shared_floats(be, 7 * K, 1.0);
    int32_t *at = shared_rows(be, 7), *row = shared_rows(be, 7);

    for (int i = 0; i < 5; i++) {
        row[i] = 6 - i;
        at[row[i]] = ids[i];
    }
    for (size_t d = 0; d < FM_ARRAY_LEN(dtypes); d++) {
        uint32_t k = fm_dtype_get(dtypes[d])->block_elems == 1 ? 203 : 256;
        matrix m = random_matrix(dtypes[d], N, k);
        float *met =
            kept_as_blocks(m.dtype) ? fm_memdup(m.f, (size_t)N * k * sizeof *met) : met_w(&m);
        float *want = random_floats(k, 1.0);
        uint64_t bytes;
        fm_weight *w = weight(be, FM_ROLE_LINEAR, &m);
        tk_ok(be->weight_image_bytes(be, &bytes, FM_ROLE_LINEAR, m.dtype, N, k));
        assert_int_equal(bytes, be->weight_bytes(w));
        be->embed(be, y, K, w, at, row, 5);
        tk_ok(be->sync(be));
        for (int i = 0; i < 5; i++) {
            memcpy(want, met + (size_t)ids[i] * k, k * sizeof *want);
            /* -0 may be 0 */
            assert_true(tk_max_abs_diff(y + row[i] * K, want, k) == 0.0);
        }
        be->weight_free(be, w);
        fm_free(met);
        fm_free(want);
        matrix_free(&m);
    }
    be->host_free(be, y);
    be->host_free(be, at);
    be->host_free(be, row);
    be->close(be);
}

TEST(weights_are_hardly_larger_than_their_files)
{
    fm_backend *be = card();

    for (size_t d = 0; d < FM_ARRAY_LEN(dtypes); d++) {
        if (dtypes[d] == FM_Q5_0 || dtypes[d] == FM_Q5_1 || dtypes[d] == FM_Q5_K ||
            dtypes[d] == FM_IQ4_NL) /* kept as bf16 */
            continue;
        const fm_dtype_info *info = fm_dtype_get(dtypes[d]);
        uint64_t file = 64ull * 1536 / info->block_elems * info->block_bytes;
        matrix m = random_matrix(dtypes[d], 64, 1536);
        fm_weight *w = weight(be, FM_ROLE_LINEAR, &m);
        assert_in_range(be->weight_bytes(w), file, file + file / 30);
        be->weight_free(be, w);
        matrix_free(&m);
    }
    be->close(be);
}

TEST(what_does_not_fit_is_refused)
{
    fm_backend *be = card();
    fm_weight *w;
    float x[40] = {0};

    assert_string_equal(be->mode, "fast");
    assert_non_null(strstr(be->kernel_class, "cuda-fast-2.sm"));
    assert_false(be->weight_new(be, &w, FM_ROLE_LINEAR, FM_F32, 0, 4, x) == FM_OK);
    assert_int_equal(be->weight_new(be, &w, FM_ROLE_LINEAR, FM_I32, 2, 4, x), FM_EUNSUPPORTED);
    assert_int_equal(be->weight_new(be, &w, FM_ROLE_LINEAR, FM_F64, 2, 4, x), FM_EUNSUPPORTED);
    assert_int_equal(be->weight_new(be, &w, FM_ROLE_LINEAR, FM_Q8_0, 1, 33, x), FM_EINVAL);
    assert_null(w);
    assert_non_null(fm_backend_lacks(be, true));
    be->close(be);
}

int main(void)
{

    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(rows_are_read_back),
        cmocka_unit_test(weights_are_hardly_larger_than_their_files),
        cmocka_unit_test(not_a_number_stays_in_its_row),
        cmocka_unit_test(products_equal_the_reference),
        cmocka_unit_test(whole_numbers_have_the_bits_of_the_cpu),
        cmocka_unit_test(less_shared_memory_gives_the_same_bits),
        cmocka_unit_test(float8_has_the_bits_of_bf16),
        cmocka_unit_test(size_of_x_does_not_matter_to_f16),
        cmocka_unit_test(scales_are_found_once),
        cmocka_unit_test(a_row_has_its_bits_in_any_company),
        cmocka_unit_test(a_list_gives_each_row_its_own_result),
        cmocka_unit_test(lora_terms_equal_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
