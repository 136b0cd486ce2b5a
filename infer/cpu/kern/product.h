/* product.h - packing and the register tile of every matrix product; part of kern.c.
 *
 * A tile keeps up to FMI_TILE_ROWS x (FMI_TILE_VF * 16) sums in registers and walks k upwards: one
 * fmaf per sum and k, started at +0, so that a sum's bits depend on its row and its column alone. A
 * panel of 512 k is 64 KiB and streams from L2; the packed rows of a tile (24 KiB at 12 rows) stay
 * in L1, which is why rows, not outputs, are the inner loop of a panel. With few rows the panel
 * itself comes from memory, which takes about as long as the sums: each step of k prefetches a
 * share of the next panel, so that loading and computing overlap. */
#if defined(FMI_ISA_AVX512)
#define FMI_TILE_ROWS 12 /* 24 sums + 2 outputs + broadcasts in 32 registers */
#define FMI_TILE_VF 2
#elif defined(FMI_ISA_AVX2)
#define FMI_TILE_ROWS 6 /* 6 x 16: 12 sums in 16 registers */
#define FMI_TILE_VF 1
#else
#define FMI_TILE_ROWS 6
#define FMI_TILE_VF 1
#endif

typedef float v4 __attribute__((vector_size(16)));

FMI_INLINE v4 v4_load(const float *p)
{
    v4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* dst[k * ld_dst + i] = src[i * ld_src + k], 4 x 4 */
FMI_INLINE void transpose4(float *dst, size_t ld_dst, const float *r0, const float *r1,
                           const float *r2, const float *r3)
{
    v4 a = v4_load(r0), b = v4_load(r1), c = v4_load(r2), d = v4_load(r3);
    v4 ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    v4 ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    v4 cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    v4 cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    v4 t[4];

    t[0] = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5);
    t[1] = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
    t[2] = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5);
    t[3] = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
    for (uint32_t i = 0; i < 4; i++)
        memcpy(dst + i * ld_dst, &t[i], sizeof t[i]);
}

static void k_transpose(float *dst, size_t ld_dst, const float *src, size_t ld_src, uint32_t n,
                        uint32_t kc)
{
    uint32_t i = 0;

    for (; i + 4 <= n; i += 4) {
        const float *s = src + i * ld_src;
        uint32_t k = 0;
        for (; k + 4 <= kc; k += 4)
            transpose4(dst + k * ld_dst + i, ld_dst, s + k, s + ld_src + k, s + 2 * ld_src + k,
                       s + 3 * ld_src + k);
        for (; k < kc; k++)
            for (uint32_t r = 0; r < 4; r++)
                dst[k * ld_dst + i + r] = s[r * ld_src + k];
    }
    for (; i < n; i++)
        for (uint32_t k = 0; k < kc; k++)
            dst[k * ld_dst + i] = src[i * ld_src + k];
}

static void k_copy_panel(float *dst, const float *src, size_t ld_src, uint32_t n, uint32_t kc)
{
    for (uint32_t k = 0; k < kc; k++, src += ld_src, dst += FMI_PANEL) {
        if (n == FMI_PANEL)
            memcpy(dst, src, FMI_PANEL * sizeof *dst); /* a constant: inlined */
        else
            memcpy(dst, src, n * sizeof *dst);
    }
}

/* Packs rows that already lie side by side: [k][i .. i + rows). */
static void pack_tile_ta(float *dst, const float *a, size_t lda, uint32_t rows, uint32_t kc)
{
    for (uint32_t k = 0; k < kc; k++, a += lda, dst += rows) {
        if (rows == FMI_TILE_ROWS)
            memcpy(dst, a, FMI_TILE_ROWS * sizeof *dst);
        else
            for (uint32_t r = 0; r < rows; r++)
                dst[r] = a[r];
    }
}

/* Packs rows i .. i + rows of a as [kc, rows], gathered by row number. */
static void pack_tile(float *dst, const float *a, size_t lda, const int32_t *row, uint32_t rows,
                      uint32_t kc)
{
    uint32_t r = 0;

    for (; r + 4 <= rows; r += 4) {
        const float *s0 = a + (size_t)row[r] * lda, *s1 = a + (size_t)row[r + 1] * lda;
        const float *s2 = a + (size_t)row[r + 2] * lda, *s3 = a + (size_t)row[r + 3] * lda;
        uint32_t k = 0;
        for (; k + 4 <= kc; k += 4)
            transpose4(dst + k * rows + r, rows, s0 + k, s1 + k, s2 + k, s3 + k);
        for (; k < kc; k++) {
            dst[k * rows + r] = s0[k];
            dst[k * rows + r + 1] = s1[k];
            dst[k * rows + r + 2] = s2[k];
            dst[k * rows + r + 3] = s3[k];
        }
    }
    for (; r < rows; r++) {
        const float *s = a + (size_t)row[r] * lda;
        if (rows == 1) {
            memcpy(dst, s, kc * sizeof *dst);
            continue;
        }
        for (uint32_t k = 0; k < kc; k++)
            dst[k * rows + r] = s[k];
    }
}

static void k_pack_a(float *dst, const float *a, size_t lda, const int32_t *rows, bool ta,
                     uint32_t m, uint32_t kc)
{
    uint32_t tiles = tile_count(m, FMI_TILE_ROWS), i = 0;

    for (uint32_t t = 0; t < tiles; t++) {
        uint32_t n = tile_rows_at(m, t, tiles);
        if (ta) {
            pack_tile_ta(dst, a + i, lda, n, kc);
        } else {
            int32_t row[FMI_TILE_ROWS];
            for (uint32_t r = 0; r < n; r++)
                row[r] = rows ? rows[i + r] : (int32_t)(i + r);
            pack_tile(dst, a, lda, row, n, kc);
        }
        dst += (size_t)n * kc;
        i += n;
    }
}

typedef struct tile_out {
    float *c;
    size_t ldc;
    const int32_t *rows; /* row numbers of this tile; NULL: first .. */
    uint32_t first;
    uint32_t n; /* outputs that exist from c's column on */
    const fmi_epilogue *epi;
    const float *bias;
    uintptr_t next; /* prefetched at each k, `ahead` bytes further each time */
    uint32_t ahead;
} tile_out;

FMI_INLINE void tile_finish(const tile_out *o, uint32_t r, uint32_t column, vf sum)
{
    size_t row = o->rows ? (size_t)o->rows[r] : o->first + r;
    float *c = o->c + row * o->ldc + column;
    uint32_t n = o->n - column; /* >= 1: a tile is no wider than its outputs need */

    sum = vf_mul(sum, vf_set1(o->epi->alpha));
    if (o->epi->add)
        sum = vf_add(vf_load_upto(c, n), sum);
    if (o->bias)
        sum = vf_add(sum, vf_load_upto(o->bias + column, n));
    vf_store_upto(c, sum, n);
}

/* m and nvf are constants in each caller, so that the sums live in registers. */
FMI_INLINE void tile(const uint32_t m, const uint32_t nvf, const float *a, const float *b,
                     uint32_t kc, const tile_out *o)
{
    vf sum[FMI_TILE_ROWS][FMI_TILE_VF];
    uintptr_t next = o->next;
    const uint32_t ahead = o->ahead;

#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
#pragma GCC unroll 2
        for (uint32_t j = 0; j < nvf; j++)
            sum[r][j] = vf_zero();
    for (uint32_t k = 0; k < kc; k++) {
        vf out[FMI_TILE_VF];
#pragma GCC unroll 2
        for (uint32_t j = 0; j < nvf; j++) {
            out[j] = vf_load(b + j * VF_LANES);
            __builtin_prefetch((const void *)(next + 64 * j), 0, 2);
        }
        next += ahead;
#pragma GCC unroll 12
        for (uint32_t r = 0; r < m; r++) {
            vf x = vf_set1(a[r]);
#pragma GCC unroll 2
            for (uint32_t j = 0; j < nvf; j++)
                sum[r][j] = vf_fma(x, out[j], sum[r][j]);
        }
        a += m;
        b += FMI_PANEL;
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
#pragma GCC unroll 2
        for (uint32_t j = 0; j < nvf; j++)
            tile_finish(o, r, j * VF_LANES, sum[r][j]);
}

#define TILE_PARAMS (const float *a, const float *b, uint32_t kc, const tile_out *o)
FMI_TILE_TABLE(FMI_TILE_ROWS, tile_half, TILE_PARAMS, tile, 1, a, b, kc, o);
#if FMI_TILE_VF == 2
FMI_TILE_TABLE(FMI_TILE_ROWS, tile_wide, TILE_PARAMS, tile, 2, a, b, kc, o);
#else
#define tile_wide tile_half
#endif

#define PANEL_BYTES (FMI_PANEL * 4u) /* bytes of one k */
static void k_product(float *c, size_t ldc, const int32_t *rows, const float *apack, uint32_t m,
                      const float *panel, uint32_t n, uint32_t kc, const fmi_epilogue *epi)
{
    uint32_t tiles = tile_count(m, FMI_TILE_ROWS);
    tile_out o = {.c = c, .ldc = ldc, .n = n, .epi = epi, .bias = epi->bias};
    const uint32_t passes = tiles * tile_count(n, FMI_TILE_VF * VF_LANES);

    o.next = (uintptr_t)(epi->next ? epi->next : panel);
    o.ahead = epi->next ? (PANEL_BYTES + passes - 1) / passes : 0;
    for (uint32_t t = 0; t < tiles; t++) {
        uint32_t r = tile_rows_at(m, t, tiles);
        o.rows = rows ? rows + o.first : NULL;
        for (uint32_t j = 0; j < n; j += FMI_TILE_VF * VF_LANES) {
            tile_out part = o;
            part.c = c + j;
            part.n = n - j;
            part.bias = epi->bias ? epi->bias + j : NULL;
            (part.n > VF_LANES ? tile_wide : tile_half)[r](apack, panel + j, kc, &part);
            o.next += (size_t)o.ahead * kc;
        }
        apack += (size_t)r * kc;
        o.first += r;
    }
}

/* The chains of eight outputs run in parallel in scalars: as fast as a vector of transposed
 * outputs, which would wait for the latency of its one chain. */
FMI_INLINE void row_chains(const uint32_t count, float *c, const float *a, const float *b,
                           size_t ldb, uint32_t kc, const fmi_epilogue *epi)
{
    float sum[8];

#pragma GCC unroll 8
    for (uint32_t i = 0; i < count; i++)
        sum[i] = 0.0f;
    for (uint32_t k = 0; k < kc; k++) {
        float x = a[k];
#pragma GCC unroll 8
        for (uint32_t i = 0; i < count; i++)
            sum[i] = fmaf(x, b[i * ldb + k], sum[i]);
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < count; i++) {
        float s = sum[i] * epi->alpha;
        c[i] = epi->add ? c[i] + s : s;
    }
}

static void k_row_product(float *c, const float *a, const float *b, size_t ldb, uint32_t n,
                          uint32_t kc, const fmi_epilogue *epi)
{
    uint32_t j = 0;

    for (; j + 8 <= n; j += 8)
        row_chains(8, c + j, a, b + j * ldb, ldb, kc, epi);
    for (; j < n; j++)
        row_chains(1, c + j, a, b + j * ldb, ldb, kc, epi);
}
