/* kern_fast_half.h - float16 weights in mode fast; part of kern_fast.c.
 *
 * Neither x nor the weight is rounded: a float16 widens exactly, and the sums are mode exact's, block
 * by block of 512 k, so that only memory is saved. The tile is as large as that of bf16. */
#define F16_K_BLOCK 512u

static void k_pack_f32(void *dst_bytes, const float *x, size_t ldx, const int32_t *rows,
                       uint32_t first, uint32_t m, uint32_t k)
{
    uint32_t tiles = tile_count(m, TILE_BF16), at = 0;
    float *dst = dst_bytes;

    for (uint32_t t = 0; t < tiles; t++) {
        uint32_t n = tile_rows_at(m, t, tiles);
        for (uint32_t r = 0; r < n; r++) {
            const float *row = x + row_number(rows, first, at + r) * ldx;
            for (uint32_t i = 0; i < k; i++)
                dst[(size_t)i * n + r] = row[i];
        }
        dst += (size_t)n * k;
        at += n;
    }
}

/* What comes after a block's sum. */
typedef struct f16_after {
    const fmi_fast_out *out;
    bool add, last;
} f16_after;

FMI_INLINE void f16_finish(const f16_after *e, uint32_t r, uint32_t column, vf sum)
{
    const fmi_fast_out *o = e->out;
    float *y = o->y + row_number(o->rows, o->first, r) * o->ldy + column;
    uint32_t n = o->n - column;

    if (e->add)
        sum = vf_add(vf_load_upto(y, n), sum);
    if (e->last && o->bias)
        sum = vf_add(sum, vf_load_upto(o->bias + column, n));
    vf_store_upto(y, sum, n);
}

/* m and nvf are constants in each caller; width: outputs from one k to the next. */
FMI_INLINE void tile_f16(const uint32_t m, const uint32_t nvf, const float *x, const uint16_t *w,
                         uint32_t width, uint32_t kc, const f16_after *e)
{
    vf sum[TILE_BF16][TILE_BF16_VF];

#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
#pragma GCC unroll 2
        for (uint32_t j = 0; j < nvf; j++)
            sum[r][j] = vf_zero();
    for (uint32_t k = 0; k < kc; k++) {
        vf out[TILE_BF16_VF];
        __builtin_prefetch(w + PREFETCH_BYTES / 2, 0, 3);
#pragma GCC unroll 2
        for (uint32_t j = 0; j < nvf; j++)
            out[j] = vf_load_f16(w + j * VF_LANES);
#pragma GCC unroll 12
        for (uint32_t r = 0; r < m; r++) {
            vf v = vf_set1(x[r]);
#pragma GCC unroll 2
            for (uint32_t j = 0; j < nvf; j++)
                sum[r][j] = vf_fma(v, out[j], sum[r][j]);
        }
        x += m;
        w += width;
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
#pragma GCC unroll 2
        for (uint32_t j = 0; j < nvf; j++)
            f16_finish(e, r, j * VF_LANES, sum[r][j]);
}

typedef void (*f16_fn)(const float *x, const uint16_t *w, uint32_t width, uint32_t kc,
                       const f16_after *e);
#define TILE(m, nvf)                                                                               \
    static void f16_##m##_##nvf(const float *x, const uint16_t *w, uint32_t width, uint32_t kc,    \
                                const f16_after *e)                                                \
    {                                                                                              \
        tile_f16(m, nvf, x, w, width, kc, e);                                                      \
    }
/* clang-format off */
TILE(1, 1) TILE(2, 1) TILE(3, 1) TILE(4, 1)
#if TILE_BF16_VF == 2
TILE(5, 1) TILE(6, 1) TILE(7, 1) TILE(8, 1) TILE(9, 1) TILE(10, 1) TILE(11, 1) TILE(12, 1)
TILE(1, 2) TILE(2, 2) TILE(3, 2) TILE(4, 2) TILE(5, 2) TILE(6, 2)
TILE(7, 2) TILE(8, 2) TILE(9, 2) TILE(10, 2) TILE(11, 2) TILE(12, 2)
#endif

static const f16_fn f16_tile[TILE_BF16_VF][TILE_BF16 + 1] = {
#if TILE_BF16_VF == 2
    {NULL, f16_1_1, f16_2_1, f16_3_1, f16_4_1, f16_5_1, f16_6_1, f16_7_1, f16_8_1, f16_9_1,
     f16_10_1, f16_11_1, f16_12_1},
    {NULL, f16_1_2, f16_2_2, f16_3_2, f16_4_2, f16_5_2, f16_6_2, f16_7_2, f16_8_2, f16_9_2,
     f16_10_2, f16_11_2, f16_12_2},
#else
    {NULL, f16_1_1, f16_2_1, f16_3_1, f16_4_1},
#endif
};
/* clang-format on */
#undef TILE

/* A tile of n rows against one panel. */
static void f16_panel(const fmi_fast_out *o, const float *x, uint32_t n, const uint16_t *w,
                      uint32_t width, uint32_t k)
{
    for (uint32_t k0 = 0; k0 < k; k0 += F16_K_BLOCK) {
        uint32_t kc = FMI_MIN2(k - k0, F16_K_BLOCK);
        for (uint32_t j = 0; j < o->n; j += TILE_BF16_VF * VF_LANES) {
            fmi_fast_out part = *o;
            f16_after e = {&part, k0 > 0, k0 + kc == k};
            part.y += j;
            part.n -= j;
            part.bias = o->bias ? o->bias + j : NULL;
            f16_tile[part.n > VF_LANES ? TILE_BF16_VF - 1 : 0][n](
                x + (size_t)k0 * n, w + (size_t)k0 * width + j, width, kc, &e);
        }
    }
}

static void k_product_f16(const fmi_fast_out *out, const void *packed, uint32_t m,
                          const void *panel, uint32_t width, uint32_t k)
{
    uint32_t tiles = tile_count(m, TILE_BF16), at = 0;
    const float *x = packed;

    for (uint32_t t = 0; t < tiles; t++) {
        uint32_t n = tile_rows_at(m, t, tiles);
        fmi_fast_out o = out_from(out, at);
        f16_panel(&o, x, n, panel, width, k);
        x += (size_t)n * k;
        at += n;
    }
}
