/* Mode fast's weights and products on a card (KK_DEVICE=cuda; emulated or real): every stored type
 * against sums in double, and a row's bits in whatever company it is.
 *
 * Held tightly: sums of the inputs rounded as KERNELS.md says, here anew. Held loosely: sums of the
 * inputs as they came. */
#include "tests/kernel/matrix_kit.h"

#include <unistd.h>

/* Rounded inputs: a card's mma cuts what it aligns to 2^-24 or so of the largest product of 16, and
 * sums of it are float32. With minima the values themselves are rounded twice. */
#define TOL_SUM 1e-5
#define TOL_MIN 2e-4
#define TOL_LOOSE 4e-3 /* x and W rounded to 8 bits: 0.1 to 0.2 % each */
#define TOL_SPLIT 3e-5 /* x as two of those: 16 bits */

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

static float bf16(float v)
{
    return fm_bf16_to_f32(fm_f32_to_bf16(v));
}

/* Memory that host and card touch: inputs and outputs of a test. */
static float *shared_floats(fm_backend *be, size_t n, double size)
{
    void *p;
    float *from = random_floats(n, size);

    tk_ok(be->host_alloc(be, &p, (n + 1) * sizeof(float)));
    memcpy(p, from, n * sizeof(float));
    fm_free(from);
    return p;
}

static int32_t *shared_rows(fm_backend *be, uint32_t n)
{
    void *p;

    tk_ok(be->host_alloc(be, &p, (n + 1) * sizeof(int32_t)));
    fm_rng_permutation(p, n, 13, ++stream_now);
    return p;
}

static fm_weight *weight(fm_backend *be, const matrix *m)
{
    fm_weight *w;

    tk_ok(be->weight_new(be, &w, FM_ROLE_LINEAR, m->dtype, m->n, m->k, m->bytes));
    return w;
}

static void close_to(const float *got, const float *want, size_t n, double tol, const char *what)
{
    double rel = tk_rel_norm(got, want, n), norm = 0.0, worst = tk_max_abs_diff(got, want, n);

    for (size_t i = 0; i < n; i++)
        norm = fmax(norm, fabs((double)want[i]));
    if (!(rel <= tol) || !(worst <= 8.0 * tol * norm))
        fail_msg("%s: relative error %g, largest %g of %g, allowed %g", what, rel, worst, norm,
                 tol);
}

/* x and W as the product meets them. */
static float *met_x(const float *x, size_t n, fm_dtype d)
{
    float *r = fm_memdup(x, n * sizeof *x);

    assert_non_null(r);
    for (size_t i = 0; i < n; i++) /* f16: of values below 2, 2^-14 of which is no subnormal */
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
        else if (m->dtype != FM_F16)
            r[i] = bf16(r[i]);
    return r;
}

/* Types that have a product of their own; the rest of x is for the others. */
static bool kept_as_blocks(fm_dtype d)
{
    return d == FM_Q8_0 || d == FM_Q4_0 || d == FM_Q4_1 || d == FM_Q4_K || d == FM_Q6_K;
}

/* want[i, j] = x[row] . w[j] (+ bias) */
static void reference(float *want, const float *x, const float *w, uint32_t n, uint32_t k,
                      const float *bias, const int32_t *rows, uint32_t m)
{
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++) {
            size_t row = rows ? (size_t)rows[i] : i;
            want[(size_t)i * n + j] =
                (float)(dot(x + row * k, w + (size_t)j * k, k) + (bias ? (double)bias[j] : 0.0));
        }
}

typedef struct product_case {
    fm_backend *be;
    matrix w;
    uint32_t m;
    float *x, *bias;
    int32_t *rows; /* a permutation of m + 3, or NULL */
    bool split;
} product_case;

static void run(const product_case *c, float *y /* [m, n] */)
{
    const uint32_t n = c->w.n, ld = n + 3, all = c->m + 3;
    float *wide = shared_floats(c->be, (size_t)all * ld, 1.0);
    fm_weight *w = weight(c->be, &c->w);

    for (size_t i = 0; i < (size_t)all * ld; i++)
        wide[i] = KK_GUARD_VALUE;
    const fm_product p = {.y = wide,
                          .ldy = ld,
                          .w = w,
                          .bias = c->bias,
                          .m = c->m,
                          .rows = c->rows,
                          .split = c->split};
    if (c->split)
        c->be->products(c->be, c->x, c->w.k, c->w.k, &p, 1);
    else
        c->be->linear(c->be, wide, ld, c->x, c->w.k, w, c->bias, c->rows, c->m);
    tk_ok(c->be->sync(c->be));
    for (uint32_t i = 0; i < c->m; i++) {
        float *row = wide + (c->rows ? (size_t)c->rows[i] : i) * ld;
        memcpy(y + (size_t)i * n, row, n * sizeof *y);
        for (uint32_t j = 0; j < n; j++)
            row[j] = KK_GUARD_VALUE;
    }
    for (size_t i = 0; i < (size_t)all * ld; i++)
        assert_true(wide[i] == KK_GUARD_VALUE); /* nothing else was written */
    c->be->weight_free(c->be, w);
    c->be->host_free(c->be, wide);
}

static void check_product(const product_case *c)
{
    const fm_dtype d = c->w.dtype;
    const char *name = fm_dtype_get(d)->name;
    const uint32_t n = c->w.n, k = c->w.k;
    const bool minima = d == FM_Q4_1 || d == FM_Q4_K || d == FM_Q5_1 || d == FM_Q5_K;
    float *want = random_floats((size_t)c->m * n, 1.0), *got = random_floats((size_t)c->m * n, 1.0);
    float *x = met_x(c->x, (size_t)(c->m + 3) * k, d), *w = met_w(&c->w);

    run(c, got);
    if (!c->split || kept_as_blocks(d)) {
        reference(want, x, w, n, k, c->bias, c->rows, c->m);
        close_to(got, want, (size_t)c->m * n, minima ? TOL_MIN : TOL_SUM, name);
    }
    reference(want, c->x, c->w.f, n, k, c->bias, c->rows, c->m);
    if (c->m * n >= 100) /* a single sum may cancel */
        close_to(got, want, (size_t)c->m * n,
                 c->split && (d == FM_BF16 || d == FM_F16 || d == FM_F32) ? TOL_SPLIT : TOL_LOOSE,
                 name);
    fm_free(want);
    fm_free(got);
    fm_free(x);
    fm_free(w);
}

static void products_equal_the_reference(void **state)
{
    static const uint32_t dims[][5] = {
        /* m, n, blocks of k, bias?, rows? */
        {1, 1, 1, 0, 0},   {3, 33, 2, 1, 0},  {8, 31, 1, 1, 1},  {9, 16, 3, 0, 1},
        {16, 40, 2, 1, 0}, {33, 50, 1, 0, 1}, {70, 37, 2, 1, 1},
    };
    fm_backend *be = card();

    (void)state;
    for (size_t d = 0; d < FM_ARRAY_LEN(dtypes); d++)
        for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++) {
            uint32_t unit = fm_dtype_get(dtypes[d])->block_elems, k = dims[i][2] * unit;
            if (unit == 1) /* odd k, and more parts than one */
                k = dims[i][2] * 229 + (uint32_t)(i % 2);
            product_case c = {.be = be, .m = dims[i][0]};
            c.w = random_matrix(dtypes[d], dims[i][1], k);
            c.x = shared_floats(be, (size_t)(c.m + 3) * k, 1.9);
            c.bias = dims[i][3] ? shared_floats(be, dims[i][1], 1.0) : NULL;
            c.rows = dims[i][4] ? shared_rows(be, c.m + 3) : NULL;
            check_product(&c);
            c.split = true;
            check_product(&c);
            matrix_free(&c.w);
            be->host_free(be, c.x);
            be->host_free(be, c.bias);
            be->host_free(be, c.rows);
        }
    be->close(be);
}

/* f16 rows are brought to one size first: values that f16 does not hold, large and small. */
static void size_of_x_does_not_matter_to_f16(void **state)
{
    enum { M = 4, N = 16, K = 96 };
    fm_backend *be = card();
    product_case c = {.be = be, .m = M, .x = shared_floats(be, (M + 3) * K, 1.0)};
    float got[M * N], want[M * N];

    (void)state;
    for (int i = 0; i < M * K; i++)
        c.x[i] *= i / K == 1 ? 0x1p60f : i / K == 2 ? 0x1p-60f : i / K == 3 ? 0.0f : 1.0f;
    c.w = random_matrix(FM_F16, N, K);
    run(&c, got);
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

/* ---- a row alone and in company ---- */

/* Of k two parts; rows that are looked at: each EVERYth. */
enum { ROWS = 134, K = 256, EVERY = 7 };

static void same_bits(const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got) != 0)
            fail_msg("%s: %a at %zu, alone %a", what, (double)got[i], i, (double)want[i]);
}

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
            same_bits(y + row * n, alone + row * n, n, what);
    }
    be->host_free(be, y);
}

static void a_row_has_its_bits_in_any_company(void **state)
{
    static const fm_dtype some[] = {FM_BF16, FM_F16, FM_F32, FM_Q8_0, FM_Q4_K, FM_Q6_K};
    static const uint32_t ms[] = {8, 11, 50, 67, ROWS};
    /* four blocks of the largest kernel: on a card of four multiprocessors (the emulated one) the
     * parts of k follow one another then, and are blocks of their own else */
    enum { N = 136 };
    fm_backend *be = card();
    float *x = shared_floats(be, ROWS * K, 1.0), *alone = shared_floats(be, ROWS * N, 1.0);
    int32_t *rows = shared_rows(be, ROWS);

    (void)state;
    for (size_t d = 0; d < FM_ARRAY_LEN(some); d++)
        for (int split = 0; split < 2; split++) {
            matrix m = random_matrix(some[d], N, K);
            fm_weight *w = weight(be, &m);
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
static void a_list_gives_each_row_its_own_result(void **state)
{
    static const uint32_t ns[] = {48, 17, 33, 16, 100, 30};
    static const fm_dtype mix[] = {FM_Q4_1, FM_Q8_0, FM_BF16, FM_F32, FM_BF16, FM_F16};
    fm_backend *be = card();
    float *x = shared_floats(be, ROWS * K, 1.0), *y[6], *alone = shared_floats(be, 100, 1.0);
    int32_t *rows = shared_rows(be, ROWS);
    fm_weight *w[6];

    (void)state;
    for (int i = 0; i < 6; i++) {
        matrix m = random_matrix(mix[i], ns[i], K);
        w[i] = weight(be, &m);
        matrix_free(&m);
        y[i] = shared_floats(be, (size_t)ROWS * ns[i], 1.0);
    }
    const fm_product list[] = {
        {y[0], ns[0], w[0], NULL, 0, 5, rows, false},
        {y[1], ns[1], w[1], NULL, 0, 5, rows, false},
        {y[2], ns[2], w[2], NULL, 0, 0, NULL, false}, /* none */
        {y[2], ns[2], w[2], NULL, 0, 9, rows + 5, false},
        {y[3], ns[3], w[3], NULL, 7, 30, NULL, false},
        {y[4], ns[4], w[4], NULL, 7, ROWS - 7, NULL, false},
        {y[5], ns[5], w[5], NULL, 3, 12, NULL, false},
        {y[4], ns[4], w[4], NULL, 0, 6, NULL, false},
    };
    be->products(be, x, K, K, list, FM_ARRAY_LEN(list));
    tk_ok(be->sync(be));
    for (size_t p = 0; p < FM_ARRAY_LEN(list); p++)
        for (uint32_t i = 0; i < list[p].m; i += 5) {
            size_t row = list[p].rows ? (size_t)list[p].rows[i] : list[p].first + i,
                   n = list[p].ldy;
            be->linear(be, alone, n, x + row * K, K, list[p].w, NULL, NULL, 1);
            tk_ok(be->sync(be));
            same_bits(list[p].y + row * n, alone, n, "a list");
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

enum { LR = 94, LN = 53, LK = 75, TERMS = 8 }; /* rows, outputs, k: multiples of nothing */
static const uint32_t lora_ranks[TERMS] = {1, 2, 7, 8, 9, 16, 33, 80};
static const uint32_t lora_rows[TERMS] = {1, 1, 2, 3, 1, 9, 0, 77};

static void run_lora(fm_backend *be, const float *x, const int32_t *rows, const matrix *a,
                     const matrix *b, float *y, bool one_by_one)
{
    fm_lora term[TERMS];
    fm_weight *w[2 * TERMS];
    uint32_t at = 0;

    for (int i = 0; i < TERMS; at += lora_rows[i++]) {
        tk_ok(
            be->weight_new(be, &w[2 * i], FM_ROLE_LORA_A, a[i].dtype, a[i].n, a[i].k, a[i].bytes));
        tk_ok(be->weight_new(be, &w[2 * i + 1], FM_ROLE_LORA_B, b[i].dtype, b[i].n, b[i].k,
                             b[i].bytes));
        term[i] = (fm_lora){.y = y,
                            .ldy = LN,
                            .a = w[2 * i],
                            .b = w[2 * i + 1],
                            .scale = 0.5f + (float)i,
                            .m = lora_rows[i],
                            .rows = rows + at};
    }
    assert_int_equal(at, LR);
    if (!one_by_one)
        be->lora(be, x, LK, LK, term, TERMS);
    for (int i = 0; i < TERMS && one_by_one; i++)
        for (uint32_t row = 0; row < lora_rows[i]; row++) {
            fm_lora single = term[i];
            single.rows = NULL;
            single.first = (uint32_t)term[i].rows[row];
            single.m = 1;
            be->lora(be, x, LK, LK, &single, 1);
        }
    tk_ok(be->sync(be));
    for (int i = 0; i < 2 * TERMS; i++)
        be->weight_free(be, w[i]);
}

static void reference_lora(float *y, const float *x, const int32_t *rows, const matrix *a,
                           const matrix *b)
{
    uint32_t at = 0;

    for (int i = 0; i < TERMS; i++)
        for (uint32_t row = 0; row < lora_rows[i]; row++, at++)
            for (uint32_t n = 0; n < LN; n++) {
                double s = 0.0;
                for (uint32_t l = 0; l < lora_ranks[i]; l++)
                    s += dot(x + (size_t)rows[at] * LK, a[i].f + l * LK, LK) *
                         (double)b[i].f[n * lora_ranks[i] + l];
                size_t o = (size_t)rows[at] * LN + n;
                y[o] = (float)((double)y[o] + (0.5 + i) * s);
            }
}

static void lora_terms_equal_the_reference(void **state)
{
    fm_backend *be = card();
    float *x = shared_floats(be, LR * LK, 1.0), *y = shared_floats(be, LR * LN, 1.0);
    float *y0 = fm_memdup(y, LR * LN * sizeof *y), *want = fm_memdup(y, LR * LN * sizeof *y);
    float *first = random_floats(LR * LN, 1.0), *xr = met_x(x, LR * LK, FM_BF16);
    int32_t *rows = shared_rows(be, LR);
    matrix a[TERMS], b[TERMS];

    (void)state;
    for (int i = 0; i < TERMS; i++) {
        a[i] = random_matrix(FM_BF16, lora_ranks[i], LK);
        b[i] = random_matrix(FM_BF16, LN, lora_ranks[i]);
    }
    run_lora(be, x, rows, a, b, y, false);
    memcpy(first, y, LR * LN * sizeof *y);
    memcpy(y, y0, LR * LN * sizeof *y);
    run_lora(be, x, rows, a, b, y, true);
    same_bits(first, y, LR * LN, "lora");
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

/* ---- a library's products ---- */

static size_t lines_of(const char *path)
{
    FILE *f = fopen(path, "r");
    size_t n = 0;

    for (int c; f && (c = fgetc(f)) != EOF;)
        n += c == '\n';
    if (f)
        fclose(f);
    return n;
}

/* With the emulator's library (tests/cuda/library.cpp): one whose sums are ours is used, one whose
 * sums are others' is not, and the bits are the same with either and without. */
static void a_library_is_used_where_its_bits_are_ours(void **state)
{
    enum { M = 520, N = 24, KL = 264 }; /* three parts of k */
    static const char *const how[] = {"none", "same", "other"};
    char log[] = "/tmp/fm_library_XXXXXX";
    int fd = mkstemp(log);
    float *first = NULL;

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    matrix m = random_matrix(FM_BF16, N, KL);
    for (size_t i = 0; i < FM_ARRAY_LEN(how); i++) {
        setenv("SIMT_LIBRARY", how[i], 1);
        setenv("SIMT_LIBRARY_LOG", log, 1);
        stream_now = 1000;
        fm_backend *be = card();
        float *x = shared_floats(be, (M + 1) * KL, 1.0), *bias = shared_floats(be, N, 1.0);
        float *y = shared_floats(be, (M + 1) * N, 1.0);
        fm_weight *w = weight(be, &m);
        const fm_product p = {.y = y, .ldy = N, .w = w, .bias = bias, .first = 1, .m = M};
        for (int time = 0; time < 2; time++) {
            be->products(be, x, KL, KL, &p, 1);
            tk_ok(be->sync(be));
        }
        if (!first)
            first = fm_memdup(y, (M + 1) * N * sizeof *y);
        same_bits(y, first, (M + 1) * N, how[i]);
        be->weight_free(be, w);
        be->host_free(be, x);
        be->host_free(be, y);
        be->host_free(be, bias);
        be->close(be);
        /* the emulator's alone has a log: two tries and two products, then one try */
        const char *module = getenv("FMSTORE_CUDA_MODULE");
        if (module && strstr(module, "emulated"))
            assert_int_equal(lines_of(log), i == 0 ? 0 : i == 1 ? 12 : 15);
    }
    unsetenv("SIMT_LIBRARY");
    (void)remove(log);
    fm_free(first);
    matrix_free(&m);
}

/* ---- what is no number; rows read back; what is refused ---- */

static void not_a_number_stays_in_its_row(void **state)
{
    static const uint32_t ms[] = {3, 12, 40, 70};
    enum { N = 20, SMALL = 64 };
    fm_backend *be = card();
    float *x = shared_floats(be, 70 * SMALL, 1.0), *y = shared_floats(be, 70 * N, 1.0);

    (void)state;
    for (size_t d = 0; d < 6; d++)
        for (size_t i = 0; i < 2 * FM_ARRAY_LEN(ms); i++) {
            matrix m = random_matrix(dtypes[d], N, SMALL);
            fm_weight *w = weight(be, &m);
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

static void rows_are_read_back(void **state)
{
    static const int32_t ids[] = {36, 0, 17, 31, 32};
    enum { N = 37 };
    fm_backend *be = card();
    float *y = shared_floats(be, 7 * K, 1.0);
    int32_t *at = shared_rows(be, 7), *row = shared_rows(be, 7);

    (void)state;
    for (int i = 0; i < 5; i++) {
        row[i] = 6 - i;
        at[row[i]] = ids[i];
    }
    for (size_t d = 0; d < FM_ARRAY_LEN(dtypes); d++) {
        uint32_t k = fm_dtype_get(dtypes[d])->block_elems == 1 ? 203 : 256;
        matrix m = random_matrix(dtypes[d], N, k);
        float *met = met_w(&m), *want = random_floats(k, 1.0);
        uint64_t bytes;
        fm_weight *w = weight(be, &m);
        tk_ok(be->weight_image_bytes(be, &bytes, FM_ROLE_LINEAR, m.dtype, N, k));
        assert_int_equal(bytes, be->weight_bytes(w));
        be->embed(be, y, K, w, at, row, 5);
        tk_ok(be->sync(be));
        for (int i = 0; i < 5; i++) {
            memcpy(want, met + (size_t)ids[i] * k, k * sizeof *want);
            close_to(y + row[i] * K, want, k, 1e-3, fm_dtype_get(m.dtype)->name);
            if (m.dtype != FM_Q4_1 && m.dtype != FM_Q4_K && m.dtype != FM_Q5_1 &&
                m.dtype != FM_Q5_K) /* rounded once, so equal; -0 may be 0 */
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

static void weights_are_hardly_larger_than_their_files(void **state)
{
    fm_backend *be = card();

    (void)state;
    for (size_t d = 0; d < 8; d++) {
        const fm_dtype_info *info = fm_dtype_get(dtypes[d]);
        uint64_t file = 64ull * 1536 / info->block_elems * info->block_bytes;
        matrix m = random_matrix(dtypes[d], 64, 1536);
        fm_weight *w = weight(be, &m);
        assert_in_range(be->weight_bytes(w), file, file + file / 30);
        be->weight_free(be, w);
        matrix_free(&m);
    }
    be->close(be);
}

static void what_does_not_fit_is_refused(void **state)
{
    fm_backend *be = card();
    fm_weight *w;
    float x[40] = {0};

    (void)state;
    assert_string_equal(be->mode, "fast");
    assert_non_null(strstr(be->kernel_class, "cuda-fast-1.sm"));
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
        cmocka_unit_test(size_of_x_does_not_matter_to_f16),
        cmocka_unit_test(a_row_has_its_bits_in_any_company),
        cmocka_unit_test(a_list_gives_each_row_its_own_result),
        cmocka_unit_test(lora_terms_equal_the_reference),
        cmocka_unit_test(a_library_is_used_where_its_bits_are_ours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
