/* kern_fast_lora.h - low-rank terms of mode fast; part of kern_fast.c.
 *
 * x A^T runs along k, because ranks are too small to be panels: lane i of sixteen sums the pairs i,
 * i + 16, .. of the row (in a pair the odd k first), and lanes are folded by halves. A tile of
 * several rows and several ranks reuses its lines; each sum is its own chain, so a row's bits do not
 * depend on the tile. */
#if defined(FMI_ISA_AVX512)
#define DOWN_ROWS 3u
#define DOWN_RANKS 8u
#else
#define DOWN_ROWS 1u
#define DOWN_RANKS 4u
#endif
#define UP_ROWS 8u

FMI_INLINE void tile_down(const uint32_t m, const uint32_t n, float *t, uint32_t ldt,
                          const uint16_t *x, const uint16_t *a, uint32_t kp)
{
    vf sum[DOWN_ROWS][DOWN_RANKS];

#pragma GCC unroll 3
    for (uint32_t i = 0; i < m; i++)
#pragma GCC unroll 8
        for (uint32_t j = 0; j < n; j++)
            sum[i][j] = vf_zero();
    for (uint32_t k = 0; k < kp; k += 32) {
        vb row[DOWN_ROWS];
#pragma GCC unroll 3
        for (uint32_t i = 0; i < m; i++)
            row[i] = vb_load(x + (size_t)i * kp + k);
#pragma GCC unroll 8
        for (uint32_t j = 0; j < n; j++) {
            vb line = vb_load(a + (size_t)j * kp + k);
#pragma GCC unroll 3
            for (uint32_t i = 0; i < m; i++)
                sum[i][j] = vb_dot(sum[i][j], line, row[i]);
        }
    }
#pragma GCC unroll 3
    for (uint32_t i = 0; i < m; i++)
#pragma GCC unroll 8
        for (uint32_t j = 0; j < n; j++)
            t[i * ldt + j] = vf_fold_add(sum[i][j]);
}

static void down_rows(uint32_t m, float *t, const uint16_t *x, const uint16_t *a, uint32_t r,
                      uint32_t kp)
{
    uint32_t j = 0;

    for (; j + DOWN_RANKS <= r; j += DOWN_RANKS) {
        const uint16_t *b = a + (size_t)j * kp;
        if (m == 1)
            tile_down(1, DOWN_RANKS, t + j, r, x, b, kp);
        else if (m == 2)
            tile_down(FMI_MIN2(2, DOWN_ROWS), DOWN_RANKS, t + j, r, x, b, kp);
        else
            tile_down(DOWN_ROWS, DOWN_RANKS, t + j, r, x, b, kp);
    }
    for (; j < r; j++)
        for (uint32_t i = 0; i < m; i++)
            tile_down(1, 1, t + i * r + j, r, x + (size_t)i * kp, a + (size_t)j * kp, kp);
}

static void k_lora_down(float *t, const uint16_t *x, uint32_t m, const uint16_t *a, uint32_t r,
                        uint32_t kp)
{
    for (uint32_t i = 0; i < m; i += DOWN_ROWS)
        down_rows(m - i < DOWN_ROWS ? m - i : DOWN_ROWS, t + (size_t)i * r, x + (size_t)i * kp, a,
                  r, kp);
}

/* t * scale of n rows as pairs of two bf16 parts: [pair][high, low][n] */
FMI_INLINE void split_rows(uint32_t *dst, const float *t, float scale, uint32_t n, uint32_t r)
{
    for (uint32_t p = 0; p < (r + 1) / 2; p++)
        for (uint32_t i = 0; i < n; i++) {
            float v[2] = {t[(size_t)i * r + 2 * p] * scale, 0.0f}, low[2];
            if (2 * p + 1 < r)
                v[1] = t[(size_t)i * r + 2 * p + 1] * scale;
            for (uint32_t e = 0; e < 2; e++)
                low[e] = v[e] - fm_bf16_to_f32(fm_f32_to_bf16(v[e]));
            dst[(size_t)(2 * p) * n + i] = bf16_pair(v[0], v[1]);
            dst[(size_t)(2 * p + 1) * n + i] = bf16_pair(low[0], low[1]);
        }
}

FMI_INLINE void tile_up(const uint32_t m, const uint32_t *x, const uint32_t *b, uint32_t pairs,
                        const fmi_fast_out *o)
{
    vf sum[UP_ROWS];

#pragma GCC unroll 8
    for (uint32_t r = 0; r < m; r++)
        sum[r] = vf_zero();
    for (uint32_t p = 0; p < pairs; p++) {
        vb line = vb_load(b);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < m; r++)
            sum[r] = vb_dot(vb_dot(sum[r], line, vb_set1(x[r])), line, vb_set1(x[m + r]));
        x += 2 * m;
        b += VF_LANES;
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < m; r++) {
        float *y = o->y + row_number(o->rows, o->first, r) * o->ldy;
        vf_store_upto(y, vf_add(vf_load_upto(y, o->n), sum[r]), o->n);
    }
}

typedef void (*up_fn)(const uint32_t *x, const uint32_t *b, uint32_t pairs, const fmi_fast_out *o);
#define TILE(m)                                                                                    \
    static void up_##m(const uint32_t *x, const uint32_t *b, uint32_t pairs,                       \
                       const fmi_fast_out *o)                                                      \
    {                                                                                              \
        tile_up(m, x, b, pairs, o);                                                                \
    }
/* clang-format off: it takes the instances for one endless statement */
TILE(1)
TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) TILE(7) TILE(8)
/* clang-format on */
#undef TILE

    static const up_fn up_tile[UP_ROWS + 1] = {NULL, up_1, up_2, up_3, up_4,
                                               up_5, up_6, up_7, up_8};

static void k_lora_up(const fmi_fast_out *out, const float *t, float scale, uint32_t m,
                      const void *b, uint32_t r, uint32_t *wide)
{
    const uint32_t tiles = tile_count(m, UP_ROWS), pairs = (r + 1) / 2;
    uint32_t at = 0;

    for (uint32_t i = 0; i < tiles; i++) {
        uint32_t n = tile_rows_at(m, i, tiles);
        split_rows(wide + (size_t)at * pairs * 2, t + (size_t)at * r, scale, n, r);
        at += n;
    }
    for (uint32_t j = 0; j < out->n; j += VF_LANES) {
        const uint32_t *panel = (const uint32_t *)b + (size_t)j * pairs;
        at = 0;
        for (uint32_t i = 0; i < tiles; i++) {
            uint32_t n = tile_rows_at(m, i, tiles);
            fmi_fast_out o = out_from(out, at);
            o.y += j;
            o.n -= j;
            up_tile[n](wide + (size_t)at * pairs * 2, panel, pairs, &o);
            at += n;
        }
    }
}
