/* terms.h - products with one dimension so small that packing an operand would cost more than
 * it saves; part of kern.c.
 *
 * A tile of sums lives in registers: rows of a are broadcast and columns of b loaded as vectors,
 * both unpacked, one fmaf per sum and k. Widths are 32, 16 and 8 columns (a rank of 8). */
#if defined(FMI_ISA_AVX512)
#define THIN_ROWS_32 12
#define THIN_ROWS_16 12
#define THIN_ROWS_8 12
#elif defined(FMI_ISA_AVX2)
#define THIN_ROWS_16 6
#define THIN_ROWS_8 12
#else
#define THIN_ROWS_16 6
#define THIN_ROWS_8 6
#endif
#define THIN_ROWS_MAX 12

/* ---- eight floats ---- */

#if defined(FMI_ISA_AVX512) || defined(FMI_ISA_AVX2)
typedef __m256 vh;
FMI_INLINE vh vh_set1(float v)
{
    return _mm256_set1_ps(v);
}
FMI_INLINE vh vh_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
FMI_INLINE void vh_store(float *p, vh v)
{
    _mm256_storeu_ps(p, v);
}
FMI_INLINE vh vh_fma(vh a, vh b, vh c)
{
    return _mm256_fmadd_ps(a, b, c);
}
FMI_INLINE vh vh_add(vh a, vh b)
{
    return _mm256_add_ps(a, b);
}
FMI_INLINE vh vh_mul(vh a, vh b)
{
    return _mm256_mul_ps(a, b);
}
#else
typedef struct vh {
    float f[8];
} vh;
FMI_LANES vh vh_set1(float v)
{
    vh r;
    for (uint32_t i = 0; i < 8; i++)
        r.f[i] = v;
    return r;
}
FMI_LANES vh vh_load(const float *p)
{
    vh r;
    memcpy(r.f, p, sizeof r.f);
    return r;
}
FMI_LANES void vh_store(float *p, vh v)
{
    memcpy(p, v.f, sizeof v.f);
}
FMI_LANES vh vh_fma(vh a, vh b, vh c)
{
    vh r;
    for (uint32_t i = 0; i < 8; i++)
        r.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
    return r;
}
FMI_LANES vh vh_add(vh a, vh b)
{
    vh r;
    for (uint32_t i = 0; i < 8; i++)
        r.f[i] = a.f[i] + b.f[i];
    return r;
}
FMI_LANES vh vh_mul(vh a, vh b)
{
    vh r;
    for (uint32_t i = 0; i < 8; i++)
        r.f[i] = a.f[i] * b.f[i];
    return r;
}
#endif

/* ---- tiles ---- */

typedef struct thin_out {
    float *c;
    size_t ldc;
    uint32_t n; /* columns that exist from c on; all of them in a tile of 16 or 32 */
    float alpha;
    bool add;
} thin_out;

/* Row r of a tile: four bases and one stride reach twelve rows without a register for each. */
FMI_INLINE const float *thin_row(const float *const base[4], size_t lda, uint32_t r)
{
    return base[r / 3] + (r % 3) * lda;
}

/* Stores fewer than eight columns. */
FMI_INLINE void thin_finish_some(float *c, uint32_t n, bool add, vh sum)
{
    float part[8] = {0};

    memcpy(part, c, n * sizeof *c);
    vh_store(part, add ? vh_add(vh_load(part), sum) : sum);
    memcpy(c, part, n * sizeof *c);
}

FMI_INLINE void thin_tile(const uint32_t m, const uint32_t nvf, const bool ta, const float *a,
                          size_t lda, const float *b, size_t ldb, uint32_t kc, const thin_out *o)
{
    const float *base[4] = {a, a + (ta || m <= 3 ? 0 : 3 * lda), a + (ta || m <= 6 ? 0 : 6 * lda),
                            a + (ta || m <= 9 ? 0 : 9 * lda)};
    vf sum[THIN_ROWS_MAX][2];

#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
#pragma GCC unroll 2
        for (uint32_t j = 0; j < nvf; j++)
            sum[r][j] = vf_zero();
    for (uint32_t k = 0; k < kc; k++, b += ldb) {
        vf out[2];
#pragma GCC unroll 2
        for (uint32_t j = 0; j < nvf; j++)
            out[j] = vf_load(b + j * VF_LANES);
#pragma GCC unroll 12
        for (uint32_t r = 0; r < m; r++) {
            vf x = vf_set1(ta ? a[r] : *thin_row(base, lda, r));
#pragma GCC unroll 2
            for (uint32_t j = 0; j < nvf; j++)
                sum[r][j] = vf_fma(x, out[j], sum[r][j]);
        }
        a += lda;
#pragma GCC unroll 4
        for (uint32_t r = 0; r < 4; r++)
            base[r]++;
    }
    const vf alpha = vf_set1(o->alpha);
    const size_t ldc = o->ldc;
    const bool add = o->add;
    float *c = o->c;
#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++, c += ldc)
#pragma GCC unroll 2
        for (uint32_t j = 0; j < nvf; j++) {
            vf v = vf_mul(sum[r][j], alpha);
            if (add)
                v = vf_add(vf_load(c + j * VF_LANES), v);
            vf_store(c + j * VF_LANES, v);
        }
}

FMI_INLINE void thin_tile8(const uint32_t m, const bool ta, const float *a, size_t lda,
                           const float *b, size_t ldb, uint32_t kc, const thin_out *o)
{
    const float *base[4] = {a, a + (ta || m <= 3 ? 0 : 3 * lda), a + (ta || m <= 6 ? 0 : 6 * lda),
                            a + (ta || m <= 9 ? 0 : 9 * lda)};
    vh sum[THIN_ROWS_MAX];

#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
        sum[r] = vh_set1(0.0f);
    for (uint32_t k = 0; k < kc; k++, b += ldb) {
        vh out = vh_load(b);
#pragma GCC unroll 12
        for (uint32_t r = 0; r < m; r++)
            sum[r] = vh_fma(vh_set1(ta ? a[r] : *thin_row(base, lda, r)), out, sum[r]);
        a += lda;
#pragma GCC unroll 4
        for (uint32_t r = 0; r < 4; r++)
            base[r]++;
    }
    const vh alpha = vh_set1(o->alpha);
    const size_t ldc = o->ldc;
    const uint32_t n = o->n;
    const bool add = o->add;
    float *c = o->c;
#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++, c += ldc) {
        vh v = vh_mul(sum[r], alpha);
        if (n < 8)
            thin_finish_some(c, n, add, v);
        else
            vh_store(c, add ? vh_add(vh_load(c), v) : v);
    }
}

typedef void (*thin_fn)(const float *a, size_t lda, const float *b, size_t ldb, uint32_t kc,
                        const thin_out *o);
#define THIN(rows, name, tile, ...)                                                                \
    FMI_TILE_TABLE(                                                                                \
        rows, name,                                                                                \
        (const float *a, size_t lda, const float *b, size_t ldb, uint32_t kc, const thin_out *o),  \
        tile, __VA_ARGS__, a, lda, b, ldb, kc, o)
THIN(THIN_ROWS_16, thin16, thin_tile, 1, false);
THIN(THIN_ROWS_16, thin16_t, thin_tile, 1, true);
THIN(THIN_ROWS_8, thin8, thin_tile8, false);
THIN(THIN_ROWS_8, thin8_t, thin_tile8, true);
#if defined(THIN_ROWS_32)
THIN(THIN_ROWS_32, thin32, thin_tile, 2, false);
THIN(THIN_ROWS_32, thin32_t, thin_tile, 2, true);
#endif

typedef struct thin_width {
    uint32_t columns, rows;
    const thin_fn *fn;
} thin_width;

static thin_width thin_width_of(const fmi_thin *t, uint32_t columns)
{
#if defined(THIN_ROWS_32)
    if (columns >= 32)
        return (thin_width){32, THIN_ROWS_32, t->ta ? thin32_t : thin32};
#endif
    return columns >= 16 ? (thin_width){16, THIN_ROWS_16, t->ta ? thin16_t : thin16}
                         : (thin_width){8, THIN_ROWS_8, t->ta ? thin8_t : thin8};
}

/* Rows i .. i + m by columns j .. of one width. */
static void thin_rows(const fmi_thin *t, const thin_width *w, uint32_t i, uint32_t m, uint32_t j)
{
    thin_out o = {
        .c = t->c + i * t->ldc + j, .ldc = t->ldc, .n = t->n - j, .alpha = t->alpha, .add = t->add};

    w->fn[m](t->a + (t->ta ? i : i * t->lda), t->lda, t->b + j, t->ldb, t->k, &o);
}

/* Rows are the inner loop: for a long k and a short b. */
static void thin_by_columns(const fmi_thin *t)
{
    for (uint32_t j = 0; j < t->n;) {
        thin_width w = thin_width_of(t, t->n - j);
        uint32_t tiles = tile_count(t->m, w.rows), i = 0;
        for (uint32_t tile = 0; tile < tiles; tile++) {
            uint32_t m = tile_rows_at(t->m, tile, tiles);
            thin_rows(t, &w, i, m, j);
            i += m;
        }
        j += w.columns;
    }
}

/* Columns are the inner loop: c is then written along its rows. */
static void thin_by_rows(const fmi_thin *t)
{
    const uint32_t most = thin_width_of(t, t->n).rows, tiles = tile_count(t->m, most);
    uint32_t i = 0;

    for (uint32_t tile = 0; tile < tiles; tile++) {
        uint32_t m = tile_rows_at(t->m, tile, tiles);
        for (uint32_t j = 0; j < t->n;) {
            thin_width w = thin_width_of(t, t->n - j);
            thin_rows(t, &w, i, m, j);
            j += w.columns;
        }
        i += m;
    }
}

static void k_thin(const fmi_thin *t)
{
    if (!t->ta && t->n > 64)
        thin_by_rows(t);
    else
        thin_by_columns(t);
}
