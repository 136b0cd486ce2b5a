/* product_kit.h - what the tests of mode fast's products share, on the CPU and on a GPU: one table
 * of shapes, one way to run a product between guards, the sums in double. */
#ifndef FM_TESTS_PRODUCT_KIT_H
#define FM_TESTS_PRODUCT_KIT_H

#include "tests/kernel/matrix_kit.h"

/* ---- memory that a backend and the test both touch; be NULL: the CPU's ---- */

static inline void *shared_bytes(fm_backend *be, size_t bytes)
{
    void *p;

    if (be && be->host_alloc)
        tk_ok(be->host_alloc(be, &p, bytes));
    else
        p = fm_malloc(bytes);
    assert_non_null(p);
    return p;
}

static inline void shared_free(fm_backend *be, void *p)
{
    if (be && be->host_free)
        be->host_free(be, p);
    else
        fm_free(p);
}

static inline float *shared_floats(fm_backend *be, size_t n, double size)
{
    float *from = random_floats(n, size), *p = shared_bytes(be, (n + 1) * sizeof *p);

    memcpy(p, from, n * sizeof *p);
    fm_free(from);
    return p;
}

/* 0 .. n-1 shuffled. */
static inline int32_t *shared_rows(fm_backend *be, uint32_t n)
{
    int32_t *p = shared_bytes(be, (n + 1u) * sizeof *p);

    fm_rng_permutation((uint32_t *)(void *)p, n, 13, ++stream_now);
    return p;
}

static inline fm_weight *weight(fm_backend *be, fm_role role, const matrix *m)
{
    fm_weight *w;

    tk_ok(be->weight_new(be, &w, role, m->dtype, m->n, m->k, m->bytes));
    return w;
}

/* ---- comparing ---- */

static inline void same_floats(const float *got, const float *want, size_t n, const char *what,
                               const char *where)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got) != 0)
            fail_msg("%s, %s: %a at %zu, expected %a", what, where, (double)got[i], i,
                     (double)want[i]);
}

static inline void close_to(const float *got, const float *want, size_t n, double tol,
                            const char *what)
{
    double rel = tk_rel_norm(got, want, n), norm = 0.0, worst = tk_max_abs_diff(got, want, n);

    for (size_t i = 0; i < n; i++)
        norm = fmax(norm, fabs((double)want[i]));
    if (!(rel <= tol) || !(worst <= 8.0 * tol * norm))
        fail_msg("%s: relative error %g, largest %g of %g, allowed %g", what, rel, worst, norm,
                 tol);
}

static inline float bf16(float v)
{
    return fm_bf16_to_f32(fm_f32_to_bf16(v));
}

/* x [rows, k] as a product of whole numbers meets it: int8 by blocks of 32, or of 16. */
static inline void round_to_int8(float *x, size_t rows, uint32_t k, fm_dtype d)
{
    const size_t block = d == FM_Q2_K || d == FM_Q3_K || d == FM_Q6_K ? 16 : 32;

    for (size_t b = 0; b < rows * k / block; b++) {
        float *v = x + b * block, amax = 0.0f;
        for (size_t i = 0; i < block; i++)
            amax = fmaxf(amax, fabsf(v[i]));
        for (size_t i = 0; i < block; i++)
            v[i] =
                amax > 0
                    ? (float)(nearbyint((double)(v[i] * (127.0f / amax))) * (double)(amax / 127.0f))
                    : 0.0f;
    }
}

/* ---- one product ---- */

typedef struct product_case {
    fm_backend *be; /* whose memory x, bias and rows are */
    matrix w;
    uint32_t m;
    float *x, *bias; /* x [m + 3, k] */
    int32_t *rows;   /* a permutation of m + 3, or NULL */
    bool split;      /* fm_product.split */
} product_case;

static inline void run_product(const product_case *c, fm_backend *be, float *y /* [m, n] */)
{
    const uint32_t n = c->w.n, ld = n + 3, all = c->m + 3;
    float *wide = shared_bytes(be, (size_t)all * ld * sizeof *wide);
    fm_weight *w = weight(be, FM_ROLE_LINEAR, &c->w);

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
        be->products(be, c->x, c->w.k, c->w.k, &p, 1);
    else
        be->linear(be, wide, ld, c->x, c->w.k, w, c->bias, c->rows, c->m);
    tk_ok(be->sync(be));
    for (uint32_t i = 0; i < c->m; i++) {
        float *row = wide + (c->rows ? (size_t)c->rows[i] : i) * ld;
        memcpy(y + (size_t)i * n, row, n * sizeof *y);
        for (uint32_t j = 0; j < n; j++)
            row[j] = KK_GUARD_VALUE;
    }
    for (size_t i = 0; i < (size_t)all * ld; i++)
        assert_true(wide[i] == KK_GUARD_VALUE); /* nothing else was written */
    be->weight_free(be, w);
    shared_free(be, wide);
}

/* want[i, j] = x[row] . w[j] (+ bias), w [n, k], in double. */
static inline void reference(float *want, const float *x, const float *w, uint32_t n, uint32_t k,
                             const float *bias, const int32_t *rows, uint32_t m)
{
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < n; j++) {
            size_t row = rows ? (size_t)rows[i] : i;
            want[(size_t)i * n + j] =
                (float)(dot(x + row * k, w + (size_t)j * k, k) + (bias ? (double)bias[j] : 0.0));
        }
}

static inline product_case product_case_new(fm_backend *be, fm_dtype d, uint32_t m, uint32_t n,
                                            uint32_t k, bool bias, bool rows)
{
    product_case c = {.be = be, .m = m};

    c.w = random_matrix(d, n, k);
    c.x = shared_floats(be, (size_t)(m + 3) * k, 1.9);
    c.bias = bias ? shared_floats(be, n, 1.0) : NULL;
    c.rows = rows ? shared_rows(be, m + 3) : NULL;
    return c;
}

static inline void product_case_free(product_case *c)
{
    matrix_free(&c->w);
    shared_free(c->be, c->x);
    shared_free(c->be, c->bias);
    shared_free(c->be, c->rows);
}

/* Every type in every shape, without and with split. */
static inline void each_product(fm_backend *be, const fm_dtype *types, size_t count,
                                void (*check)(const product_case *c))
{
    static const uint32_t dims[][5] = {
        /* m, n, blocks of k, bias?, rows? */
        {1, 1, 1, 0, 0},   {1, 33, 2, 1, 0},   {2, 16, 3, 0, 1},   {3, 31, 1, 1, 1},
        {7, 48, 2, 0, 0},  {12, 65, 1, 1, 0},  {13, 17, 3, 0, 1},  {25, 40, 2, 1, 1},
        {40, 50, 1, 0, 0}, {130, 49, 1, 1, 1}, {210, 20, 2, 0, 0},
    };

    for (size_t d = 0; d < count; d++)
        for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++) {
            uint32_t unit = fm_dtype_get(types[d])->block_elems, k = dims[i][2] * unit;
            if (unit == 1) /* odd k, and more than one block of 512 */
                k = dims[i][2] * 229 + (uint32_t)(i % 2);
            product_case c =
                product_case_new(be, types[d], dims[i][0], dims[i][1], k, dims[i][3], dims[i][4]);
            check(&c);
            c.split = true;
            check(&c);
            product_case_free(&c);
        }
}

/* ---- low-rank terms: eight of one list, whose rows are split over them ---- */

enum { LR = 94, LN = 53, LK = 75, TERMS = 8 }; /* rows, outputs, k: multiples of nothing */
static const uint32_t lora_ranks[TERMS] = {1, 2, 7, 24, 9, 16, 33, 80};
static const uint32_t lora_rows[TERMS] = {1, 1, 2, 3, 1, 9, 0, 77};

static inline void run_lora(fm_backend *be, const float *x, const int32_t *rows, const matrix *a,
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

static inline void reference_lora(float *y, const float *x, const int32_t *rows, const matrix *a,
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

#endif
