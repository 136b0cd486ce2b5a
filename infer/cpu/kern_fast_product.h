/* kern_fast_product.h - packing of rows and the register tiles of mode fast; part of kern_fast.c.
 *
 * A tile walks all k of a panel once: a row's sum is one chain over blocks (or pairs), whatever
 * else is in the tile, so its bits depend on its row and its output alone. */
#if defined(FMI_ISA_AVX512)
#define TILE_INT8 12u /* 12 int32 sums and 12 float sums in 32 registers */
#define TILE_BF16 12u /* 12 x 32: 24 sums */
#define TILE_BF16_VF 2u
#elif defined(FMI_ISA_AVX2)
#define TILE_INT8 3u /* 3 x 16 of both in 16 registers */
#define TILE_BF16 4u
#define TILE_BF16_VF 1u
#else
#define TILE_INT8 2u
#define TILE_BF16 4u
#define TILE_BF16_VF 1u
#endif
#define PREFETCH_BYTES 2048

FMI_INLINE uint32_t tile_count(uint32_t m, uint32_t rows)
{
    return (m + rows - 1) / rows;
}
/* 13 rows are tiles of 7 and 6. */
FMI_INLINE uint32_t tile_rows_at(uint32_t m, uint32_t tile, uint32_t tiles)
{
    return m / tiles + (tile < m % tiles ? 1u : 0u);
}
FMI_INLINE size_t row_number(const int32_t *rows, uint32_t first, uint32_t i)
{
    return rows ? (size_t)rows[i] : (size_t)first + i;
}

/* ---- results ---- */

FMI_INLINE void tile_finish(const fmi_fast_out *o, uint32_t r, uint32_t column, vf sum)
{
    float *y = o->y + row_number(o->rows, o->first, r) * o->ldy + column;
    uint32_t n = o->n - column;

    if (o->bias)
        sum = vf_add(sum, vf_load_upto(o->bias + column, n));
    vf_store_upto(y, sum, n);
}

FMI_INLINE fmi_fast_out out_from(const fmi_fast_out *o, uint32_t row)
{
    fmi_fast_out t = *o;

    t.first += o->rows ? 0 : row;
    t.rows = o->rows ? o->rows + row : NULL;
    return t;
}

/* ---- rows as int8 ---- */

/* As integers, |x| of floats is ordered with infinities and NaN at the top. */
FMI_INLINE uint32_t amax_bits(const float *x)
{
#if defined(FMI_ISA_AVX512)
    __m512i mask = _mm512_set1_epi32(0x7fffffff);
    __m512i a = _mm512_and_si512(_mm512_loadu_si512(x), mask);
    __m512i b = _mm512_and_si512(_mm512_loadu_si512(x + 16), mask);
    return _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
#else
    uint32_t most = 0;
    for (uint32_t i = 0; i < FMI_BLOCK; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most;
#endif
}

/* q = rne(x * r), |q| <= 127; the sum of all 32. */
FMI_INLINE int32_t quantise(int32_t *quad, const float *x, float r)
{
#if defined(FMI_ISA_AVX512)
    __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(r)));
    __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), _mm512_set1_ps(r)));
    _mm_storeu_si128((void *)quad, _mm512_cvtepi32_epi8(a));
    _mm_storeu_si128((void *)(quad + 4), _mm512_cvtepi32_epi8(b));
    return _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
#else
    int8_t q[FMI_BLOCK];
    int32_t sum = 0;
    for (uint32_t i = 0; i < FMI_BLOCK; i++) {
        float t = x[i] * r + 12582912.0f; /* 1.5 * 2^23: the low bits are the rounded value */
        uint32_t bits;
        memcpy(&bits, &t, sizeof bits);
        q[i] = (int8_t)((int32_t)bits - 0x4b400000);
        sum += q[i];
    }
    memcpy(quad, q, sizeof q);
    return sum;
#endif
}

FMI_INLINE void pack_block(uint8_t *dst, const float *x, uint32_t r, uint32_t rows, int32_t offset)
{
    const uint32_t bits = amax_bits(x);
    int32_t quad[8], sum;
    float amax, scale, total;

    memcpy(&amax, &bits, sizeof amax);
    if (amax >= 0x1p-100f && bits < 0x7f800000u) {
        sum = quantise(quad, x, 127.0f / amax);
        scale = amax / 127.0f;
    } else {
        memset(quad, 0, sizeof quad);
        sum = 0;
        scale = bits < 0x7f800000u ? 0.0f : NAN;
    }
    for (uint32_t j = 0; j < 8; j++)
        memcpy(dst + 4 * (j * rows + r), &quad[j], 4);
    memcpy(dst + 4 * (8 * rows + r), &scale, 4);
    total = scale * (float)sum;
    sum *= offset;
    if (offset != 0)
        memcpy(dst + 4 * (9 * rows + r), &sum, 4);
    else
        memcpy(dst + 4 * (9 * rows + r), &total, 4);
}

static void k_pack_int8(void *dst_bytes, const float *x, size_t ldx, const int32_t *rows,
                        uint32_t first, uint32_t m, uint32_t blocks, int32_t offset)
{
    uint32_t tiles = tile_count(m, TILE_INT8), at = 0;
    uint8_t *dst = dst_bytes;

    for (uint32_t t = 0; t < tiles; t++) {
        uint32_t n = tile_rows_at(m, t, tiles);
        for (uint32_t r = 0; r < n; r++) {
            const float *row = x + row_number(rows, first, at + r) * ldx;
            uint8_t *to = dst;
            for (uint32_t b = 0; b < blocks; b++) {
                pack_block(to, row + b * FMI_BLOCK, r, n, offset);
                to += FMI_TILE_BLOCK_BYTES * n;
            }
        }
        dst += (size_t)FMI_TILE_BLOCK_BYTES * n * blocks;
        at += n;
    }
}

/* ---- blocks of weights ---- */

static const uint8_t iq4_nl_plus_128[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                            129, 141, 153, 166, 181, 197, 217, 241};

FMI_INLINE uint32_t block_q_bytes(fmi_fast_block kind)
{
    if (kind == FMI_UNPACKED || kind == FMI_UNPACKED_MIN || kind == FMI_Q8_0)
        return 512;
    return kind == FMI_Q5_0 || kind == FMI_Q5_1 ? 320 : 256;
}
FMI_INLINE bool block_has_min(fmi_fast_block kind)
{
    return kind == FMI_UNPACKED_MIN || kind == FMI_Q4_1 || kind == FMI_Q5_1;
}
FMI_INLINE uint32_t block_scale_bytes(fmi_fast_block kind)
{
    uint32_t one = kind == FMI_UNPACKED || kind == FMI_UNPACKED_MIN ? 64 : 32;
    return block_has_min(kind) ? 2 * one : one;
}
FMI_INLINE vf block_scale(fmi_fast_block kind, const uint8_t *s)
{
    if (kind == FMI_UNPACKED || kind == FMI_UNPACKED_MIN)
        return vf_load((const void *)s);
    return vf_load_f16(s);
}
FMI_INLINE vf block_min(fmi_fast_block kind, const uint8_t *s)
{
    return block_scale(kind, s + block_scale_bytes(kind) / 2);
}

/* The line of quads j and j + 4 of a block whose nibbles lie together. */
FMI_INLINE void block_nibbles(fmi_fast_block kind, const uint8_t *q, uint32_t j, vi *low, vi *high)
{
    vi line = vi_load(q + 64 * j);

    *low = line_low(line);
    *high = line_high(line);
    if (kind == FMI_Q5_0 || kind == FMI_Q5_1) {
        vi fifth = vi_load(q + 256);
        *low = line_or(*low, line_bit(fifth, j));
        *high = line_or(*high, line_bit(fifth, j + 4));
    } else if (kind == FMI_IQ4_NL) {
        *low = line_look_up(*low, iq4_nl_plus_128);
        *high = line_look_up(*high, iq4_nl_plus_128);
    }
}

FMI_INLINE void unpack(uint8_t *q_out, float *scale_out, const fmi_fast_block kind,
                       const uint8_t *q, const uint8_t *s, uint32_t blocks)
{
    for (uint32_t b = 0; b < blocks; b++) {
        for (uint32_t j = 0; j < 4; j++) {
            vi low, high;
            block_nibbles(kind, q, j, &low, &high);
            vi_store(q_out + 64 * j, low);
            vi_store(q_out + 64 * (j + 4), high);
        }
        vf_store(scale_out, block_scale(kind, s));
        scale_out += VF_LANES;
        if (block_has_min(kind)) {
            vf_store(scale_out, block_min(kind, s));
            scale_out += VF_LANES;
        }
        q_out += 512;
        q += block_q_bytes(kind);
        s += block_scale_bytes(kind);
    }
}

static void k_unpack(void *q_out, float *scale_out, fmi_fast_block kind, const void *q,
                     const void *scale, uint32_t blocks)
{
    if (kind == FMI_Q4_0 || kind == FMI_IQ4_NL || kind == FMI_Q5_0) {
        if (kind == FMI_Q4_0)
            unpack(q_out, scale_out, FMI_Q4_0, q, scale, blocks);
        else if (kind == FMI_IQ4_NL)
            unpack(q_out, scale_out, FMI_IQ4_NL, q, scale, blocks);
        else
            unpack(q_out, scale_out, FMI_Q5_0, q, scale, blocks);
    } else if (kind == FMI_Q4_1) {
        unpack(q_out, scale_out, FMI_Q4_1, q, scale, blocks);
    } else if (kind == FMI_Q5_1) {
        unpack(q_out, scale_out, FMI_Q5_1, q, scale, blocks);
    }
}

/* ---- the int8 tile ---- */

FMI_INLINE int32_t quad_at(const uint8_t *x, uint32_t i)
{
    int32_t v;
    memcpy(&v, x + 4 * i, sizeof v);
    return v;
}
FMI_INLINE float float_at(const uint8_t *x, uint32_t i)
{
    float v;
    memcpy(&v, x + 4 * i, sizeof v);
    return v;
}

/* sum[r] += line . quad of row r */
FMI_INLINE void dot_rows(const uint32_t m, vi *sum, vi line, const uint8_t *x, uint32_t quad)
{
    vq w = vq_of(line);
#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
        sum[r] = vi_dot(sum[r], w, quad_at(x, quad * m + r));
}

/* All eight quads of a block. */
FMI_INLINE void dot_block(const uint32_t m, const fmi_fast_block kind, vi *sum, const uint8_t *q,
                          const uint8_t *x)
{
    if (block_q_bytes(kind) == 512) {
#pragma GCC unroll 8
        for (uint32_t j = 0; j < 8; j++) {
            if (kind == FMI_Q8_0)
                __builtin_prefetch(q + 64 * j + PREFETCH_BYTES, 0, 3);
            dot_rows(m, sum, vi_load(q + 64 * j), x, j);
        }
        return;
    }
#pragma GCC unroll 4
    for (uint32_t j = 0; j < 4; j++) {
        vi low, high;
        __builtin_prefetch(q + 64 * j + PREFETCH_BYTES, 0, 3);
        block_nibbles(kind, q, j, &low, &high);
        dot_rows(m, sum, low, x, j);
        dot_rows(m, sum, high, x, j + 4);
    }
}

/* m and kind are constants in each caller. */
FMI_INLINE void tile_int8(const uint32_t m, const fmi_fast_block kind, const uint8_t *x,
                          const uint8_t *q, const uint8_t *s, uint32_t blocks,
                          const fmi_fast_out *o)
{
    const bool min = block_has_min(kind);
    vf sum[TILE_INT8];

#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
        sum[r] = vf_zero();
    for (uint32_t b = 0; b < blocks; b++) {
        vi dot[TILE_INT8];
#pragma GCC unroll 12
        for (uint32_t r = 0; r < m; r++)
            dot[r] = vi_set1(min ? 0 : quad_at(x, 9 * m + r));
        dot_block(m, kind, dot, q, x);
        vf scale = block_scale(kind, s);
#pragma GCC unroll 12
        for (uint32_t r = 0; r < m; r++)
            sum[r] =
                vf_fma(vf_of_int(dot[r]), vf_mul(scale, vf_set1(float_at(x, 8 * m + r))), sum[r]);
        if (min) {
            vf least = block_min(kind, s);
#pragma GCC unroll 12
            for (uint32_t r = 0; r < m; r++)
                sum[r] = vf_fma(least, vf_set1(float_at(x, 9 * m + r)), sum[r]);
        }
        x += FMI_TILE_BLOCK_BYTES * m;
        q += block_q_bytes(kind);
        s += block_scale_bytes(kind);
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
        tile_finish(o, r, 0, sum[r]);
}

typedef void (*int8_fn)(const uint8_t *x, const uint8_t *q, const uint8_t *s, uint32_t blocks,
                        const fmi_fast_out *o);
#define TILE(m, kind)                                                                              \
    static void int8_##kind##_##m(const uint8_t *x, const uint8_t *q, const uint8_t *s,            \
                                  uint32_t blocks, const fmi_fast_out *o)                          \
    {                                                                                              \
        tile_int8(m, FMI_##kind, x, q, s, blocks, o);                                              \
    }
/* clang-format off: it takes the instances for one endless statement */
#if defined(FMI_ISA_AVX512)
#define TILES(kind)                                                                                \
    TILE(1, kind)                                                                                  \
    TILE(2, kind)                                                                                  \
    TILE(3, kind)                                                                                  \
    TILE(4, kind) TILE(5, kind) TILE(6, kind) TILE(7, kind) TILE(8, kind) TILE(9, kind)            \
        TILE(10, kind) TILE(11, kind) TILE(12, kind)
#define TILE_NAMES(kind)                                                                           \
    {                                                                                              \
        NULL, int8_##kind##_1, int8_##kind##_2, int8_##kind##_3, int8_##kind##_4, int8_##kind##_5, \
            int8_##kind##_6, int8_##kind##_7, int8_##kind##_8, int8_##kind##_9, int8_##kind##_10,  \
            int8_##kind##_11, int8_##kind##_12                                                     \
    }
#elif defined(FMI_ISA_AVX2)
#define TILES(kind) TILE(1, kind) TILE(2, kind) TILE(3, kind)
#define TILE_NAMES(kind)                                                                           \
    {                                                                                              \
        NULL, int8_##kind##_1, int8_##kind##_2, int8_##kind##_3                                    \
    }
#else
#define TILES(kind) TILE(1, kind) TILE(2, kind)
#define TILE_NAMES(kind)                                                                           \
    {                                                                                              \
        NULL, int8_##kind##_1, int8_##kind##_2                                                     \
    }
#endif
TILES(UNPACKED)
TILES(UNPACKED_MIN)
TILES(Q8_0)
TILES(Q4_0) TILES(Q4_1) TILES(Q5_0) TILES(Q5_1) TILES(IQ4_NL)

    static const int8_fn int8_tile[][TILE_INT8 + 1] = {
        [FMI_UNPACKED] = TILE_NAMES(UNPACKED), [FMI_UNPACKED_MIN] = TILE_NAMES(UNPACKED_MIN),
        [FMI_Q8_0] = TILE_NAMES(Q8_0),         [FMI_Q4_0] = TILE_NAMES(Q4_0),
        [FMI_Q4_1] = TILE_NAMES(Q4_1),         [FMI_Q5_0] = TILE_NAMES(Q5_0),
        [FMI_Q5_1] = TILE_NAMES(Q5_1),         [FMI_IQ4_NL] = TILE_NAMES(IQ4_NL),
};
/* clang-format on */
#undef TILE
#undef TILES
#undef TILE_NAMES

static void k_product_int8(const fmi_fast_out *out, const void *packed, uint32_t m,
                           fmi_fast_block kind, const void *q, const void *scale, uint32_t blocks)
{
    uint32_t tiles = tile_count(m, TILE_INT8), at = 0;
    const uint8_t *x = packed;

    for (uint32_t t = 0; t < tiles; t++) {
        uint32_t n = tile_rows_at(m, t, tiles);
        fmi_fast_out o = out_from(out, at);
        int8_tile[kind][n](x, q, scale, blocks, &o);
        x += (size_t)FMI_TILE_BLOCK_BYTES * n * blocks;
        at += n;
    }
}

/* ---- bf16 ---- */

/* Rounded to nearest even; NaN stays NaN. */
FMI_INLINE uint32_t bf16_of(float v)
{
    uint32_t u;

    memcpy(&u, &v, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return u >> 16 | 0x40u;
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
FMI_INLINE uint32_t bf16_pair(float even, float odd)
{
    return bf16_of(odd) << 16 | bf16_of(even);
}
static void k_round_row(uint16_t *dst, const float *x, uint32_t k, uint32_t kp)
{
    uint32_t i = 0;

#if defined(FMI_FAST_BF16)
    for (; i + 32 <= k; i += 32)
        _mm512_storeu_si512(dst + i, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + 16),
                                                                  _mm512_loadu_ps(x + i)));
#endif
    for (; i < k; i++)
        dst[i] = (uint16_t)bf16_of(x[i]);
    for (; i < kp; i++)
        dst[i] = 0;
}

/* One row as every rows-th pair. */
FMI_INLINE void pack_pairs(uint32_t *dst, const float *x, uint32_t k, uint32_t rows)
{
    uint32_t i = 0;

    for (; i + 32 <= k; i += 32) {
        uint16_t half[32];
        uint32_t pair[16];
        k_round_row(half, x + i, 32, 32);
        memcpy(pair, half, sizeof pair);
        for (uint32_t j = 0; j < 16; j++)
            dst[(i / 2 + j) * (size_t)rows] = pair[j];
    }
    for (; i < k; i += 2)
        dst[i / 2 * (size_t)rows] = bf16_pair(x[i], i + 1 < k ? x[i + 1] : 0.0f);
}

static void k_pack_bf16(void *dst_bytes, const float *x, size_t ldx, const int32_t *rows,
                        uint32_t first, uint32_t m, uint32_t k)
{
    uint32_t tiles = tile_count(m, TILE_BF16), at = 0;
    uint32_t *dst = dst_bytes;

    for (uint32_t t = 0; t < tiles; t++) {
        uint32_t n = tile_rows_at(m, t, tiles);
        for (uint32_t r = 0; r < n; r++)
            pack_pairs(dst + r, x + row_number(rows, first, at + r) * ldx, k, n);
        dst += (size_t)n * ((k + 1) / 2);
        at += n;
    }
}

/* m and nvf are constants in each caller; width: outputs from one pair to the next. */
FMI_INLINE void tile_bf16(const uint32_t m, const uint32_t nvf, const uint32_t *x,
                          const uint32_t *w, uint32_t width, uint32_t pairs, const fmi_fast_out *o)
{
    vf sum[TILE_BF16][TILE_BF16_VF];

#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
#pragma GCC unroll 2
        for (uint32_t j = 0; j < nvf; j++)
            sum[r][j] = vf_zero();
    for (uint32_t k = 0; k < pairs; k++) {
        vb out[TILE_BF16_VF];
#pragma GCC unroll 2
        for (uint32_t j = 0; j < nvf; j++) {
            out[j] = vb_load(w + j * VF_LANES);
            __builtin_prefetch(w + j * VF_LANES + PREFETCH_BYTES / 4, 0, 3);
        }
#pragma GCC unroll 12
        for (uint32_t r = 0; r < m; r++) {
            vb v = vb_set1(x[r]);
#pragma GCC unroll 2
            for (uint32_t j = 0; j < nvf; j++)
                sum[r][j] = vb_dot(sum[r][j], out[j], v);
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

typedef void (*bf16_fn)(const uint32_t *x, const uint32_t *w, uint32_t width, uint32_t pairs,
                        const fmi_fast_out *o);
#define TILE(m, nvf)                                                                               \
    static void bf16_##m##_##nvf(const uint32_t *x, const uint32_t *w, uint32_t width,             \
                                 uint32_t pairs, const fmi_fast_out *o)                            \
    {                                                                                              \
        tile_bf16(m, nvf, x, w, width, pairs, o);                                                  \
    }
/* clang-format off: it takes the instances for one endless statement */
TILE(1, 1)
TILE(2, 1)
TILE(3, 1)
TILE(4, 1)
#if TILE_BF16_VF == 2
    TILE(5, 1) TILE(6, 1) TILE(7, 1) TILE(8, 1) TILE(9, 1) TILE(10, 1) TILE(11, 1) TILE(12, 1)
        TILE(1, 2) TILE(2, 2) TILE(3, 2) TILE(4, 2) TILE(5, 2) TILE(6, 2) TILE(7, 2) TILE(8, 2)
            TILE(9, 2) TILE(10, 2) TILE(11, 2) TILE(12, 2)
#endif
/* clang-format on */
#undef TILE

                static const bf16_fn bf16_half[TILE_BF16 + 1] = {
                    NULL,      bf16_1_1,  bf16_2_1,  bf16_3_1, bf16_4_1,
#if TILE_BF16_VF == 2
                    bf16_5_1,  bf16_6_1,  bf16_7_1,  bf16_8_1, bf16_9_1,
                    bf16_10_1, bf16_11_1, bf16_12_1,
#endif
};
#if TILE_BF16_VF == 2
static const bf16_fn bf16_full[TILE_BF16 + 1] = {
    NULL,     bf16_1_2, bf16_2_2, bf16_3_2,  bf16_4_2,  bf16_5_2,  bf16_6_2,
    bf16_7_2, bf16_8_2, bf16_9_2, bf16_10_2, bf16_11_2, bf16_12_2,
};
#endif

static void k_product_bf16(const fmi_fast_out *out, const void *packed, uint32_t m,
                           const void *panel, uint32_t width, uint32_t pairs)
{
    uint32_t tiles = tile_count(m, TILE_BF16), at = 0;
    const uint32_t *x = packed, *w = panel;

    for (uint32_t t = 0; t < tiles; t++) {
        uint32_t n = tile_rows_at(m, t, tiles);
        fmi_fast_out o = out_from(out, at);
#if TILE_BF16_VF == 2
        if (out->n > VF_LANES)
            bf16_full[n](x, w, width, pairs, &o);
        else
            bf16_half[n](x, w, width, pairs, &o);
#else
        for (uint32_t j = 0; j < out->n; j += VF_LANES) {
            fmi_fast_out half = o;
            half.y += j;
            half.n -= j;
            half.bias = o.bias ? o.bias + j : NULL;
            bf16_half[n](x, w + j, width, pairs, &half);
        }
#endif
        x += (size_t)n * pairs;
        at += n;
    }
}
