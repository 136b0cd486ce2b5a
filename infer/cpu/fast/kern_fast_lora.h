/* kern_fast_lora.h - low-rank terms of mode fast; part of kern_fast.c.
 *
 * x A^T runs along k, because ranks are too small to be panels: lane i of sixteen sums the pairs i,
 * i + 16, .. of the row (in a pair the odd k first), and lanes are folded by halves. A tile of
 * several rows and several ranks reuses its lines; each sum is its own chain, so a row's bits do
 * not depend on the tile. */
#if defined(FMI_ISA_AVX512)
#define DOWN_ROWS 3
#define DOWN_RANKS 8
#define UP_ROWS 8
#else
#define DOWN_ROWS 1
#define DOWN_RANKS 4
#define UP_ROWS 4
#endif

/* Lanes folded by halves: l += l + 8, then 4, 2, 1. */
FMI_INLINE float fold(vf v)
{
#if defined(FMI_ISA_AVX512) || defined(FMI_ISA_AVX2)
#if defined(FMI_ISA_AVX512)
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#else
    __m256 h = _mm256_add_ps(v.lo, v.hi);
#endif
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
#else
    return vf_fold_add(v);
#endif
}

/* Prefetches a few lines of the next operand for each line of the current one: a factor is too
 * short for the hardware's prefetchers to get going, and a step has hundreds of factors. */
FMI_INLINE const uint8_t *prefetch_next(const uint8_t *next, uint32_t lines)
{
    for (uint32_t i = 0; i < lines; i++)
        __builtin_prefetch(next + 64 * (size_t)i, 0, 2);
    return next + 64 * (size_t)lines;
}

FMI_INLINE const uint8_t *tile_down(const uint32_t m, const uint32_t n, float *t, uint32_t ldt,
                                    const uint16_t *x, const uint16_t *a, uint32_t kp,
                                    const uint8_t *next, uint32_t lines)
{
    vf sum[DOWN_ROWS][DOWN_RANKS];

#pragma GCC unroll 3
    for (uint32_t i = 0; i < m; i++)
#pragma GCC unroll 8
        for (uint32_t j = 0; j < n; j++)
            sum[i][j] = vf_zero();
    for (uint32_t k = 0; k < kp; k += 32) {
        vb row[DOWN_ROWS];
        next = prefetch_next(next, lines);
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
            t[i * ldt + j] = fold(sum[i][j]);
    return next;
}

/* n ranks of m rows; m and n are constants after inlining */
FMI_INLINE const uint8_t *down_ranks(uint32_t m, const uint32_t n, float *t, uint32_t r,
                                     const uint16_t *x, const uint16_t *a, uint32_t kp,
                                     const uint8_t *next, uint32_t lines)
{
    if (m == 1)
        return tile_down(1, n, t, r, x, a, kp, next, lines);
    if (m == 2)
        return tile_down(FMI_MIN2(2, DOWN_ROWS), n, t, r, x, a, kp, next, lines);
    return tile_down(DOWN_ROWS, n, t, r, x, a, kp, next, lines);
}

static void down_rows(uint32_t m, float *t, const uint16_t *x, const uint16_t *a, uint32_t r,
                      uint32_t kp, const uint8_t *next, uint32_t lines)
{
    uint32_t j = 0;

    for (; j + DOWN_RANKS <= r; j += DOWN_RANKS)
        next = down_ranks(m, DOWN_RANKS, t + j, r, x, a + (size_t)j * kp, kp, next, lines);
    if (DOWN_RANKS > 4 && j + 4 <= r) {
        next = down_ranks(m, 4, t + j, r, x, a + (size_t)j * kp, kp, next, lines);
        j += 4;
    }
    if (j + 2 <= r) {
        next = down_ranks(m, 2, t + j, r, x, a + (size_t)j * kp, kp, next, lines);
        j += 2;
    }
    if (j < r)
        down_ranks(m, 1, t + j, r, x, a + (size_t)j * kp, kp, next, lines);
}

static void k_lora_down(float *t, const uint16_t *x, uint32_t m, const uint16_t *a, uint32_t r,
                        uint32_t kp, const void *next, size_t next_bytes)
{
    uint32_t tail = r % DOWN_RANKS;
    size_t steps =
        (r / DOWN_RANKS + (tail >> 2) + (tail >> 1 & 1u) + (tail & 1u)) * (size_t)(kp / 32);
    uint32_t lines = (uint32_t)((next_bytes / 64 + steps - 1) / steps);

    for (uint32_t i = 0; i < m; i += DOWN_ROWS, lines = 0)
        down_rows(m - i < DOWN_ROWS ? m - i : DOWN_ROWS, t + (size_t)i * r, x + (size_t)i * kp, a,
                  r, kp, next, lines);
}

/* t * scale of n rows as pairs of two bf16 parts: [pair][high, low][n] */
FMI_INLINE void split_rows(uint32_t *dst, const float *t, float scale, uint32_t n, uint32_t r)
{
    for (uint32_t p = 0; p < (r + 1) / 2; p++)
        for (uint32_t i = 0; i < n; i++) {
            float v[2] = {t[(size_t)i * r + 2 * p] * scale, 0.0f}, low[2];
            if (2 * p + 1 < r)
                v[1] = t[(size_t)i * r + 2 * p + 1] * scale;
            uint32_t high = bf16_pair(v[0], v[1]);
            low[0] = v[0] - float_of_bits(high << 16);
            low[1] = v[1] - float_of_bits(high & 0xffff0000u);
            dst[(size_t)(2 * p) * n + i] = high;
            dst[(size_t)(2 * p + 1) * n + i] = bf16_pair(low[0], low[1]);
        }
}

/* A tile of rows against all panels. High and low parts are two chains, added at the end. */
FMI_INLINE void tile_up(const uint32_t m, const uint32_t *x, const uint32_t *b, uint32_t pairs,
                        const fmi_fast_out *o, const uint8_t *next, uint32_t lines)
{
    float *y[UP_ROWS];

#pragma GCC unroll 8
    for (uint32_t r = 0; r < m; r++)
        y[r] = o->y + row_number(o->rows, o->first, r) * o->ldy;
    for (uint32_t j = 0; j < o->n; j += VF_LANES) {
        const uint32_t n = o->n - j, *t = x;
        vf high[UP_ROWS], low[UP_ROWS];
        next = prefetch_next(next, lines);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < m; r++)
            high[r] = low[r] = vf_zero();
        for (uint32_t p = 0; p < pairs; p++) {
            vb line = vb_load(b);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < m; r++) {
                high[r] = vb_dot(high[r], line, vb_set1(t[r]));
                low[r] = vb_dot(low[r], line, vb_set1(t[m + r]));
            }
            t += 2 * m;
            b += VF_LANES;
        }
#pragma GCC unroll 8
        for (uint32_t r = 0; r < m; r++)
            vf_store_upto(y[r] + j, vf_add(vf_load_upto(y[r] + j, n), vf_add(high[r], low[r])), n);
    }
}

FMI_TILE_TABLE(UP_ROWS, up_tile,
               (const uint32_t *x, const uint32_t *b, uint32_t pairs, const fmi_fast_out *o,
                const uint8_t *next, uint32_t lines),
               tile_up, x, b, pairs, o, next, lines);

static void k_lora_up(const fmi_fast_out *out, const float *t, float scale, uint32_t m,
                      const void *b, uint32_t r, uint32_t *wide, const void *next,
                      size_t next_bytes)
{
    const uint32_t tiles = tile_count(m, UP_ROWS), pairs = (r + 1) / 2;
    const uint32_t panels = tile_count(out->n, VF_LANES);
    uint32_t lines = (uint32_t)((next_bytes / 64 + panels - 1) / panels), at = 0;

    for (uint32_t i = 0; i < tiles; i++, lines = 0) {
        uint32_t n = tile_rows_at(m, i, tiles);
        fmi_fast_out o = out_from(out, at);
        split_rows(wide, t + (size_t)at * r, scale, n, r);
        up_tile[n](wide, b, pairs, &o, next, lines);
        at += n;
    }
}
