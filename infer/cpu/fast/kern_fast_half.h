/* kern_fast_half.h - float16 weights in mode fast; part of kern_fast.c.
 *
 * Neither x nor the weight is rounded: a float16 widens exactly, and the sums are mode exact's,
 * block by block of 512 k, so that only memory is saved. The tile is as large as that of bf16. */
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

/* m and nvf are constants in each caller; width: outputs from one k to the next. */
FMI_INLINE void tile_f16(const uint32_t m, const uint32_t nvf, const float *x, const uint16_t *w,
                         uint32_t width, uint32_t kc, const fmi_fast_out *o)
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
            tile_finish(o, r, j * VF_LANES, sum[r][j]);
}

#define F16_PARAMS                                                                                 \
    (const float *x, const uint16_t *w, uint32_t width, uint32_t kc, const fmi_fast_out *o)
FMI_TILE_TABLE(TILE_BF16, f16_half, F16_PARAMS, tile_f16, 1, x, w, width, kc, o);
#if TILE_BF16_VF == 2
FMI_TILE_TABLE(TILE_BF16, f16_wide, F16_PARAMS, tile_f16, 2, x, w, width, kc, o);
#else
#define f16_wide f16_half
#endif

/* A tile of n rows against one panel. */
static void f16_panel(const fmi_fast_out *o, const float *x, uint32_t n, const uint16_t *w,
                      uint32_t width, uint32_t k)
{
    for (uint32_t k0 = 0; k0 < k; k0 += F16_K_BLOCK) {
        uint32_t kc = FMI_MIN2(k - k0, F16_K_BLOCK);
        for (uint32_t j = 0; j < o->n; j += TILE_BF16_VF * VF_LANES) {
            fmi_fast_out part = out_columns(o, j);
            part.add = k0 > 0;
            if (k0 + kc < k)
                part.bias = NULL; /* added after the last block */
            (part.n > VF_LANES ? f16_wide : f16_half)[n](
                x + (size_t)k0 * n, w + (size_t)k0 * width + j, width, kc, &part);
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
