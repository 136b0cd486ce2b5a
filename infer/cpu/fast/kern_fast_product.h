/* kern_fast_product.h - packing of rows and the register tiles of mode fast; part of kern_fast.c.
 *
 * A tile walks all k of a panel once: a row's sum is one chain over blocks (or pairs), whatever
 * other rows are in the tile, so its bits depend on its row and its output alone. */
#if defined(FMI_ISA_AVX512)
#define TILE_INT8 12 /* 12 int32 sums and 12 float sums in 32 registers */
#define TILE_BF16 12 /* 12 x 32: 24 sums */
#define TILE_BF16_VF 2
#elif defined(FMI_ISA_AVX2)
#define TILE_INT8 3 /* 3 x 16 of each kind in 16 registers */
#define TILE_BF16 4
#define TILE_BF16_VF 1
#else
#define TILE_INT8 2
#define TILE_BF16 4
#define TILE_BF16_VF 1
#endif
#define PREFETCH_BYTES 2048

FMI_INLINE size_t row_number(const int32_t *rows, uint32_t first, uint32_t i)
{
    return rows ? (size_t)rows[i] : (size_t)first + i;
}

/* ---- results ---- */

FMI_INLINE void tile_finish(const fmi_fast_out *o, uint32_t r, uint32_t column, vf sum)
{
    float *y = o->y + row_number(o->rows, o->first, r) * o->ldy + column;
    uint32_t n = o->n - column;

    if (o->add)
        sum = vf_add(vf_load_upto(y, n), sum);
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

FMI_INLINE fmi_fast_out out_columns(const fmi_fast_out *o, uint32_t j)
{
    fmi_fast_out t = *o;

    t.y += j;
    t.n -= j;
    t.bias = o->bias ? o->bias + j : NULL;
    return t;
}

/* ---- rows as int8 ---- */

/* As integers, |x| of floats is ordered with infinities and NaN at the top. n: 16 or 32 */
FMI_INLINE uint32_t amax_bits(const float *x, const uint32_t n)
{
#if defined(FMI_ISA_AVX512)
    __m512i mask = _mm512_set1_epi32(0x7fffffff);
    __m512i a = _mm512_and_si512(_mm512_loadu_si512(x), mask);
    if (n == 32)
        a = _mm512_max_epu32(a, _mm512_and_si512(_mm512_loadu_si512(x + 16), mask));
    return _mm512_reduce_max_epu32(a);
#else
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most;
#endif
}

/* q = rne(x * r), |q| <= 127; returns the sum of all n. */
FMI_INLINE int32_t quantise(int32_t *quad, const float *x, float r, const uint32_t n)
{
#if defined(FMI_ISA_AVX512)
    __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(r)));
    _mm_storeu_si128((void *)quad, _mm512_cvtepi32_epi8(a));
    if (n == 32) {
        __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), _mm512_set1_ps(r)));
        _mm_storeu_si128((void *)(quad + 4), _mm512_cvtepi32_epi8(b));
        a = _mm512_add_epi32(a, b);
    }
    return _mm512_reduce_add_epi32(a);
#else
    int8_t q[FMI_BLOCK];
    int32_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        float t = x[i] * r + 12582912.0f; /* 1.5 * 2^23: the low bits are the rounded value */
        uint32_t bits;
        memcpy(&bits, &t, sizeof bits);
        q[i] = (int8_t)((int32_t)bits - 0x4b400000);
        sum += q[i];
    }
    memcpy(quad, q, n);
    return sum;
#endif
}

/* Stores row r's part of a packed block. */
FMI_INLINE void put_block(uint8_t *dst, const int32_t *quad, float scale, int32_t sum, uint32_t r,
                          uint32_t rows, const uint32_t quads, int32_t offset)
{
    const float total = scale * (float)sum;
    const int32_t start = sum * offset;

    for (uint32_t j = 0; j < quads; j++)
        memcpy(dst + 4 * (j * rows + r), &quad[j], 4);
    memcpy(dst + 4 * (quads * rows + r), &scale, 4);
    if (offset != 0)
        memcpy(dst + 4 * ((quads + 1) * rows + r), &start, 4);
    else
        memcpy(dst + 4 * ((quads + 1) * rows + r), &total, 4);
}

FMI_INLINE void pack_block(uint8_t *dst, const float *x, uint32_t r, uint32_t rows,
                           const uint32_t quads, int32_t offset)
{
    const uint32_t bits = amax_bits(x, 4 * quads);
    int32_t quad[8] = {0}, sum = 0;
    float amax, scale = bits < 0x7f800000u ? 0.0f : NAN;

    memcpy(&amax, &bits, sizeof amax);
    if (amax >= 0x1p-100f && bits < 0x7f800000u) {
        sum = quantise(quad, x, 127.0f / amax, 4 * quads);
        scale = amax / 127.0f;
    }
    put_block(dst, quad, scale, sum, r, rows, quads, offset);
}

#if defined(FMI_ISA_AVX512)
/* Lanes 4 i .. 4 i + 3 of the result are all sixteen of the i-th argument, folded. */
#define FOLD4(name, op)                                                                            \
    FMI_INLINE __m512i name(__m512i a, __m512i b, __m512i c, __m512i d)                            \
    {                                                                                              \
        a = op(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));                \
        c = op(_mm512_shuffle_i32x4(c, d, 0x44), _mm512_shuffle_i32x4(c, d, 0xee));                \
        a = op(_mm512_shuffle_i32x4(a, c, 0x88), _mm512_shuffle_i32x4(a, c, 0xdd));                \
        a = op(a, _mm512_shuffle_epi32(a, (_MM_PERM_ENUM)0x4e));                                   \
        return op(a, _mm512_shuffle_epi32(a, (_MM_PERM_ENUM)0xb1));                                \
    }
FOLD4(fold4_max, _mm512_max_epu32)
FOLD4(fold4_add, _mm512_add_epi32)
#undef FOLD4

FMI_INLINE __m512i amax_lanes(const float *x)
{
    __m512i mask = _mm512_set1_epi32(0x7fffffff);
    return _mm512_max_epu32(_mm512_and_si512(_mm512_loadu_si512(x), mask),
                            _mm512_and_si512(_mm512_loadu_si512(x + 16), mask));
}

/* Four blocks of 32: lane j of low is quad j of all four, of high quad 4 + j. */
typedef struct four_blocks {
    __m512i low, high;
    float scale[4];
    int32_t sum[4];
} four_blocks;

FMI_INLINE __m512i quantise_lanes(const float *x, __m512 r)
{
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), r));
}
/* Packing by lanes of 128 bits also transposes 4 x 4 quads. */
FMI_INLINE __m512i pack_lanes(__m512i a, __m512i b, __m512i c, __m512i d)
{
    return _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
}
FMI_INLINE __m128i every_fourth(__m512i v)
{
    const __m512i at = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    return _mm512_castsi512_si128(_mm512_permutexvar_epi32(at, v));
}

/* The bits of pack_block, in a fraction of its time. */
FMI_INLINE void quantise_four(four_blocks *q, const float *const x[4])
{
    const __m512 full = _mm512_set1_ps(127.0f);
    __m512i bits =
        fold4_max(amax_lanes(x[0]), amax_lanes(x[1]), amax_lanes(x[2]), amax_lanes(x[3]));
    __m512 amax = _mm512_castsi512_ps(bits);
    __mmask16 finite = _mm512_cmplt_epu32_mask(bits, _mm512_set1_epi32(0x7f800000));
    __mmask16 ok = _mm512_mask_cmp_ps_mask(finite, amax, _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ);
    __m512 inverse = _mm512_maskz_div_ps(ok, full, amax);
    __m512 scale =
        _mm512_mask_blend_ps(finite, _mm512_set1_ps(NAN), _mm512_maskz_div_ps(ok, amax, full));
    __m512 r[4] = {
        _mm512_shuffle_f32x4(inverse, inverse, 0x00), _mm512_shuffle_f32x4(inverse, inverse, 0x55),
        _mm512_shuffle_f32x4(inverse, inverse, 0xaa), _mm512_shuffle_f32x4(inverse, inverse, 0xff)};
    __m512i a[4], b[4];

#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++) {
        a[i] = quantise_lanes(x[i], r[i]);
        b[i] = quantise_lanes(x[i] + 16, r[i]);
    }
    q->low = pack_lanes(a[0], a[1], a[2], a[3]);
    q->high = pack_lanes(b[0], b[1], b[2], b[3]);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++)
        a[i] = _mm512_add_epi32(a[i], b[i]);
    /* The sum of a block that is not ok may contain INT32_MIN, which NaN became: it is set to 0. */
    a[0] = _mm512_maskz_mov_epi32(ok, fold4_add(a[0], a[1], a[2], a[3]));
    _mm_storeu_si128((void *)q->sum, every_fourth(a[0]));
    _mm_storeu_si128((void *)q->scale, every_fourth(_mm512_castps_si512(scale)));
}

/* Packs four blocks of one row. */
FMI_INLINE void pack_along(uint8_t *dst, const float *x, uint32_t r, uint32_t rows, int32_t offset)
{
    const float *const at[4] = {x, x + 32, x + 64, x + 96};
    int32_t quad[8][4];
    four_blocks q;

    quantise_four(&q, at);
    _mm512_storeu_si512(quad[0], q.low);
    _mm512_storeu_si512(quad[4], q.high);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++, dst += (size_t)FMI_ROW_BLOCK_BYTES(8) * rows) {
        int32_t one[8];
#pragma GCC unroll 8
        for (uint32_t j = 0; j < 8; j++)
            one[j] = quad[j][i];
        put_block(dst, one, q.scale[i], q.sum[i], r, rows, 8, offset);
    }
}

/* Packs one block of rows r .. r + 3. */
FMI_INLINE void pack_across(uint8_t *dst, const float *const x[4], uint32_t r, uint32_t rows,
                            int32_t offset)
{
    four_blocks q;
    __m128i start, scale;

    quantise_four(&q, x);
    dst += (size_t)4 * r;
    rows *= 4;
    _mm_storeu_si128((void *)dst, _mm512_extracti32x4_epi32(q.low, 0));
    _mm_storeu_si128((void *)(dst + rows), _mm512_extracti32x4_epi32(q.low, 1));
    _mm_storeu_si128((void *)(dst + 2 * rows), _mm512_extracti32x4_epi32(q.low, 2));
    _mm_storeu_si128((void *)(dst + 3 * rows), _mm512_extracti32x4_epi32(q.low, 3));
    _mm_storeu_si128((void *)(dst + 4 * rows), _mm512_extracti32x4_epi32(q.high, 0));
    _mm_storeu_si128((void *)(dst + 5 * rows), _mm512_extracti32x4_epi32(q.high, 1));
    _mm_storeu_si128((void *)(dst + 6 * rows), _mm512_extracti32x4_epi32(q.high, 2));
    _mm_storeu_si128((void *)(dst + 7 * rows), _mm512_extracti32x4_epi32(q.high, 3));
    start = _mm_loadu_si128((const void *)q.sum);
    scale = _mm_loadu_si128((const void *)q.scale);
    if (offset != 0)
        start = _mm_mullo_epi32(start, _mm_set1_epi32(offset));
    else
        start = _mm_castps_si128(_mm_mul_ps(_mm_castsi128_ps(scale), _mm_cvtepi32_ps(start)));
    _mm_storeu_si128((void *)(dst + 8 * rows), scale);
    _mm_storeu_si128((void *)(dst + 9 * rows), start);
}
#endif

FMI_INLINE void pack_row(uint8_t *dst, const float *x, uint32_t r, uint32_t rows, uint32_t blocks,
                         const uint32_t quads, int32_t offset)
{
    uint32_t b = 0;

#if defined(FMI_ISA_AVX512)
    for (; quads == 8 && b + 4 <= blocks; b += 4) {
        pack_along(dst, x, r, rows, offset);
        x += 128;
        dst += (size_t)4 * FMI_ROW_BLOCK_BYTES(8) * rows;
    }
#endif
    for (; b < blocks; b++) {
        pack_block(dst, x, r, rows, quads, offset);
        x += (size_t)4 * quads;
        dst += (size_t)FMI_ROW_BLOCK_BYTES(quads) * rows;
    }
}

/* Packs a tile of n rows. */
static void pack_tile(uint8_t *dst, const float *const *row, uint32_t n, uint32_t blocks,
                      uint32_t quads, int32_t offset)
{
    uint32_t r = 0;

#if defined(FMI_ISA_AVX512)
    for (; quads == 8 && r + 4 <= n; r += 4)
        for (uint32_t b = 0; b < blocks; b++) {
            const float *const at[4] = {row[r] + b * 32, row[r + 1] + b * 32, row[r + 2] + b * 32,
                                        row[r + 3] + b * 32};
            pack_across(dst + (size_t)FMI_ROW_BLOCK_BYTES(8) * n * b, at, r, n, offset);
        }
#endif
    for (; r < n; r++) {
        if (quads == 8)
            pack_row(dst, row[r], r, n, blocks, 8, offset);
        else
            pack_row(dst, row[r], r, n, blocks, 4, offset);
    }
}

/* Packs row r of a tile whose elements are whole numbers times 1 / grain. */
static void pack_whole(uint8_t *dst, const float *x, float grain, uint32_t r, uint32_t rows,
                       uint32_t blocks, uint32_t quads, int32_t offset)
{
    for (uint32_t b = 0; b < blocks; b++) {
        int32_t quad[8] = {0};
        const int32_t sum =
            quads == 8 ? quantise(quad, x, grain, 32) : quantise(quad, x, grain, 16);
        put_block(dst, quad, 1.0f / grain, sum, r, rows, quads, offset);
        x += (size_t)4 * quads;
        dst += (size_t)FMI_ROW_BLOCK_BYTES(quads) * rows;
    }
}

static void k_pack_int8(void *dst_bytes, const float *x, size_t ldx, const int32_t *rows,
                        uint32_t first, uint32_t m, uint32_t blocks, uint32_t quads, int32_t offset,
                        const float *grain)
{
    uint32_t tiles = tile_count(m, TILE_INT8), at = 0;
    uint8_t *dst = dst_bytes;

    for (uint32_t t = 0; t < tiles; t++) {
        const uint32_t n = tile_rows_at(m, t, tiles);
        const float *row[TILE_INT8];
        for (uint32_t r = 0; r < n; r++)
            row[r] = x + row_number(rows, first, at + r) * ldx;
        for (uint32_t r = 0; grain && r < n; r++)
            pack_whole(dst, row[r], grain[row_number(rows, first, at + r)], r, n, blocks, quads,
                       offset);
        if (!grain)
            pack_tile(dst, row, n, blocks, quads, offset);
        dst += (size_t)FMI_ROW_BLOCK_BYTES(quads) * n * blocks;
        at += n;
    }
}

/* ---- blocks of weights ---- */

static const uint8_t iq4_nl_plus_128[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                            129, 141, 153, 166, 181, 197, 217, 241};
/* E2M1, doubled to whole numbers. */
static const uint8_t mxfp4_plus_128[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                           128, 127, 126, 125, 124, 122, 120, 116};

FMI_INLINE bool is_unpacked(fmi_fast_block kind)
{
    return kind <= FMI_UNPACKED_16_MIN;
}
FMI_INLINE uint32_t block_quads(fmi_fast_block kind)
{
    return kind == FMI_UNPACKED_16 || kind == FMI_UNPACKED_16_MIN ? 4 : 8;
}
FMI_INLINE bool block_is_pairs(fmi_fast_block kind)
{
    return kind == FMI_Q2_K || kind == FMI_Q3_K;
}
FMI_INLINE uint32_t block_q_bytes(fmi_fast_block kind)
{
    if (is_unpacked(kind) || kind == FMI_Q8_0)
        return 64 * block_quads(kind);
    if (kind == FMI_Q6_K)
        return 384;
    if (block_is_pairs(kind))
        return kind == FMI_Q2_K ? 128 : 192;
    return kind == FMI_Q5_0 || kind == FMI_Q5_1 || kind == FMI_Q5_K ? 320 : 256;
}
FMI_INLINE bool block_has_min(fmi_fast_block kind)
{
    return kind == FMI_UNPACKED_MIN || kind == FMI_UNPACKED_16_MIN || kind == FMI_Q4_1 ||
           kind == FMI_Q5_1;
}
FMI_INLINE uint32_t block_scale_bytes(fmi_fast_block kind)
{
    uint32_t one = is_unpacked(kind) ? 64 : kind == FMI_MXFP4 ? 16 : 32;
    return block_has_min(kind) ? 2 * one : one;
}
FMI_INLINE vf block_scale(fmi_fast_block kind, const uint8_t *s)
{
    if (kind == FMI_MXFP4)
        return vf_load_half_power(s);
    return is_unpacked(kind) ? vf_load((const void *)s) : vf_load_f16(s);
}
FMI_INLINE vf block_min(fmi_fast_block kind, const uint8_t *s)
{
    return block_scale(kind, s + block_scale_bytes(kind) / 2);
}

/* The lines of quads j and j + 4; but for pairs of bits, their nibbles share bytes. */
FMI_INLINE void block_nibbles(fmi_fast_block kind, const uint8_t *q, uint32_t j, vi *low, vi *high)
{
    if (block_is_pairs(kind)) {
        *low = line_pair(vi_load(q), j);
        *high = line_pair(vi_load(q + 64), j);
        if (kind == FMI_Q3_K) {
            vi third = vi_load(q + 128);
            *low = line_or(*low, line_third(third, j));
            *high = line_or(*high, line_third(third, j + 4));
        }
        return;
    }
    vi line = vi_load(q + 64 * j);

    *low = line_low(line);
    *high = line_high(line);
    if (kind == FMI_Q6_K) {
        *low = line_or(*low, line_two_bits(vi_load(q + 256), j));
        *high = line_or(*high, line_two_bits(vi_load(q + 320), j));
    } else if (kind == FMI_Q5_0 || kind == FMI_Q5_1 || kind == FMI_Q5_K) {
        vi fifth = vi_load(q + 256);
        *low = line_or(*low, line_bit(fifth, j));
        *high = line_or(*high, line_bit(fifth, j + 4));
    } else if (kind == FMI_IQ4_NL || kind == FMI_IQ4_XS) {
        *low = line_look_up(*low, iq4_nl_plus_128);
        *high = line_look_up(*high, iq4_nl_plus_128);
    } else if (kind == FMI_MXFP4) {
        *low = line_look_up(*low, mxfp4_plus_128);
        *high = line_look_up(*high, mxfp4_plus_128);
    }
}

FMI_INLINE void unpack_lines(uint8_t *q_out, const fmi_fast_block kind, const uint8_t *q)
{
    for (uint32_t j = 0; j < 4; j++) {
        vi low, high;
        block_nibbles(kind, q, j, &low, &high);
        vi_store(q_out + 64 * j, low);
        vi_store(q_out + 64 * (j + 4), high);
    }
}

FMI_INLINE void unpack(uint8_t *q_out, float *scale_out, const fmi_fast_block kind,
                       const uint8_t *q, const uint8_t *s, uint32_t blocks)
{
    for (uint32_t b = 0; b < blocks; b++) {
        unpack_lines(q_out, kind, q);
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

/* The scales of 256 k, from whole numbers in planes of 16 outputs. */
typedef uint8_t b16 __attribute__((vector_size(16)));

FMI_INLINE b16 plane(const uint8_t *planes, uint32_t i)
{
    b16 v;
    memcpy(&v, planes + 16 * i, sizeof v);
    return v;
}
FMI_INLINE void put_scale(float *out, vf d, b16 n)
{
    vf_store(out, vf_mul(d, vf_of_int8(&n)));
}
FMI_INLINE vf minus(vf v)
{
    return vf_mul(v, vf_set1(-1.0f));
}

/* Q4_K, Q5_K: d, dmin, then twelve planes: eight pairs of six bits. */
static void six_bit_scales(float *out, const uint8_t *s)
{
    const vf d = vf_load_f16(s), dmin = minus(vf_load_f16(s + 32));

    for (uint32_t j = 0; j < 4; j++, out += 2 * VF_LANES) { /* pairs j and j + 4 */
        const b16 a = plane(s + 64, j), b = plane(s + 64, j + 4), c = plane(s + 64, j + 8);
        put_scale(out, d, a & 63);
        put_scale(out + VF_LANES, dmin, b & 63);
        put_scale(out + 8 * VF_LANES, d, (c & 15) | (a >> 6 << 4));
        put_scale(out + 9 * VF_LANES, dmin, c >> 4 | (b >> 6 << 4));
    }
}

/* Q6_K: d, then 16 planes of int8 scales. */
static void byte_scales(float *out, const uint8_t *s)
{
    const vf d = vf_load_f16(s);

    for (uint32_t j = 0; j < 16; j++, out += VF_LANES)
        put_scale(out, d, plane(s + 32, j));
}

/* Q3_K: d, then 12 planes: sixteen scales of six bits, less 32. */
static void third_scales(float *out, const uint8_t *s)
{
    const vf d = vf_load_f16(s);

    for (uint32_t j = 0; j < 4; j++, out += VF_LANES) { /* scales j, j + 4, j + 8, j + 12 */
        const b16 a = plane(s + 32, j), b = plane(s + 32, j + 4), c = plane(s + 32, j + 8);
        put_scale(out, d, ((a & 15) | (c << 4 & 48)) - 32);
        put_scale(out + 4 * VF_LANES, d, ((b & 15) | (c << 2 & 48)) - 32);
        put_scale(out + 8 * VF_LANES, d, (a >> 4 | (c & 48)) - 32);
        put_scale(out + 12 * VF_LANES, d, (b >> 4 | (c >> 2 & 48)) - 32);
    }
}

/* Q2_K: d, dmin, then 16 planes of a scale and a minimum, four bits each. */
static void nibble_scales(float *out, const uint8_t *s)
{
    const vf d = vf_load_f16(s), dmin = minus(vf_load_f16(s + 32));

    for (uint32_t j = 0; j < 16; j++, out += 2 * VF_LANES) {
        const b16 both = plane(s + 64, j);
        put_scale(out, d, both & 15);
        put_scale(out + VF_LANES, dmin, both >> 4);
    }
}

/* IQ4_XS: d, two planes of bit pairs, four of nibbles: eight scales of six bits, less 32. */
static void split_scales(float *out, const uint8_t *s)
{
    const vf d = vf_load_f16(s);

    for (uint32_t j = 0; j < 4; j++, out += 2 * VF_LANES) { /* scales 2 j and 2 j + 1 */
        const b16 low = plane(s + 64, j), high = plane(s + 32, j / 2) >> (uint8_t)(j % 2 * 4);
        put_scale(out, d, ((low & 15) | (high << 4 & 48)) - 32);
        put_scale(out + VF_LANES, d, (low >> 4 | (high << 2 & 48)) - 32);
    }
}

/* The scales of 256 k as float32. */
FMI_INLINE void wide_scales(float *scale_out, const fmi_fast_block kind, const uint8_t *s)
{
    if (kind == FMI_Q2_K)
        nibble_scales(scale_out, s);
    else if (kind == FMI_Q3_K)
        third_scales(scale_out, s);
    else if (kind == FMI_IQ4_XS)
        split_scales(scale_out, s);
    else if (kind == FMI_Q6_K)
        byte_scales(scale_out, s);
    else
        six_bit_scales(scale_out, s);
}
/* How many vectors those are. */
FMI_INLINE uint32_t wide_scale_count(const fmi_fast_block kind)
{
    return kind == FMI_Q2_K ? 32 : kind == FMI_IQ4_XS ? 8 : 16;
}
/* Their bytes as stored. */
FMI_INLINE uint32_t wide_scale_bytes(const fmi_fast_block kind)
{
    if (kind == FMI_Q2_K)
        return 320;
    if (kind == FMI_Q3_K)
        return 224;
    if (kind == FMI_IQ4_XS)
        return 128;
    return kind == FMI_Q6_K ? 288 : 256;
}

/* blocks of 32 k: a multiple of 8 */
FMI_INLINE void unpack_k(uint8_t *q_out, float *scale_out, const fmi_fast_block kind,
                         const uint8_t *q, const uint8_t *s, uint32_t blocks)
{
    for (uint32_t b = 0; b < blocks; b++) {
        unpack_lines(q_out, kind, q);
        __builtin_prefetch(q + PREFETCH_BYTES, 0, 3);
        if (b % 8 == 0) {
            wide_scales(scale_out, kind, s);
            scale_out += (size_t)wide_scale_count(kind) * VF_LANES;
            s += wide_scale_bytes(kind);
        }
        q_out += 512;
        q += block_q_bytes(kind);
    }
}

static void k_unpack(void *q_out, float *scale_out, fmi_fast_block kind, const void *q,
                     const void *scale, uint32_t blocks)
{
#define UNPACK(kind, how)                                                                          \
    case FMI_##kind:                                                                               \
        how(q_out, scale_out, FMI_##kind, q, scale, blocks);                                       \
        break;
    switch (kind) {
        UNPACK(Q4_0, unpack)
        UNPACK(Q4_1, unpack)
        UNPACK(Q5_0, unpack)
        UNPACK(Q5_1, unpack)
        UNPACK(IQ4_NL, unpack)
        UNPACK(MXFP4, unpack)
        UNPACK(IQ4_XS, unpack_k)
        UNPACK(Q2_K, unpack_k)
        UNPACK(Q3_K, unpack_k)
        UNPACK(Q4_K, unpack_k)
        UNPACK(Q5_K, unpack_k)
        UNPACK(Q6_K, unpack_k)
    case FMI_UNPACKED:
    case FMI_UNPACKED_MIN:
    case FMI_UNPACKED_16:
    case FMI_UNPACKED_16_MIN:
    case FMI_Q8_0:
        break; /* these are unpacked during the product */
    }
#undef UNPACK
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
    if (is_unpacked(kind) || kind == FMI_Q8_0) {
#pragma GCC unroll 8
        for (uint32_t j = 0; j < block_quads(kind); j++) {
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
    const uint32_t quads = block_quads(kind);
    vf sum[TILE_INT8];

#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
        sum[r] = vf_zero();
    for (uint32_t b = 0; b < blocks; b++) {
        vi dot[TILE_INT8];
#pragma GCC unroll 12
        for (uint32_t r = 0; r < m; r++)
            dot[r] = vi_set1(min ? 0 : quad_at(x, (quads + 1) * m + r));
        dot_block(m, kind, dot, q, x);
        vf scale = block_scale(kind, s);
#pragma GCC unroll 12
        for (uint32_t r = 0; r < m; r++)
            sum[r] = vf_fma(vf_of_int(dot[r]), vf_mul(scale, vf_set1(float_at(x, quads * m + r))),
                            sum[r]);
        if (min) {
            vf least = block_min(kind, s);
#pragma GCC unroll 12
            for (uint32_t r = 0; r < m; r++)
                sum[r] = vf_fma(least, vf_set1(float_at(x, (quads + 1) * m + r)), sum[r]);
        }
        x += FMI_ROW_BLOCK_BYTES(quads) * m;
        q += block_q_bytes(kind);
        s += block_scale_bytes(kind);
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
        tile_finish(o, r, 0, sum[r]);
}

/* Adds the m dot products of a block to the sums. scale: of 16 outputs, then their minima. */
FMI_INLINE void add_block(const uint32_t m, const bool min, vf *sum, const vi *dot,
                          const float *scale, const uint8_t *x, const uint32_t quads)
{
    const vf of = vf_load(scale);
#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
        sum[r] = vf_fma(vf_of_int(dot[r]), vf_mul(of, vf_set1(float_at(x, quads * m + r))), sum[r]);
    if (!min)
        return;
    const vf least = vf_load(scale + VF_LANES);
#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
        sum[r] = vf_fma(least, vf_set1(float_at(x, (quads + 1) * m + r)), sum[r]);
}

/* 32 k of a type of 256 k, or the `half` of them that shares scales. */
FMI_INLINE void wide_scaled(const uint32_t m, const fmi_fast_block kind, const uint32_t quads,
                            const uint32_t half, vf *sum, const float *scale, const uint8_t *q,
                            const uint8_t *x)
{
    const bool min = kind == FMI_Q2_K || kind == FMI_Q4_K || kind == FMI_Q5_K;
    vi dot[TILE_INT8];

#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
        dot[r] = vi_set1(min ? 0 : quad_at(x, (quads + 1) * m + r));
#pragma GCC unroll 4
    for (uint32_t j = 0; j < 4; j++) {
        vi low, high;
        block_nibbles(kind, q, j, &low, &high);
        if (half == 0)
            dot_rows(m, dot, low, x, j);
        if (quads == 8 || half == 1)
            dot_rows(m, dot, high, x, quads == 8 ? j + 4 : j);
    }
    add_block(m, min, sum, dot, scale, x, quads);
}

/* 32 k of a type of 256 k; returns the rows behind them. Scales of 16 k: the low lines, then the
 * high ones. */
FMI_INLINE const uint8_t *wide_block(const uint32_t m, const fmi_fast_block kind, vf *sum,
                                     const float *scale, const uint8_t *q, const uint8_t *x)
{
    const bool min = kind == FMI_Q2_K || kind == FMI_Q4_K || kind == FMI_Q5_K;
    const uint32_t quads = block_is_pairs(kind) || kind == FMI_Q6_K ? 4 : 8;

    wide_scaled(m, kind, quads, 0, sum, scale, q, x);
    x += (size_t)FMI_ROW_BLOCK_BYTES(quads) * m;
    if (quads == 8)
        return x;
    wide_scaled(m, kind, quads, 1, sum, scale + (min ? 2 * VF_LANES : VF_LANES), q, x);
    return x + (size_t)FMI_ROW_BLOCK_BYTES(quads) * m;
}

/* A type of 256 k without unpacking; the bits of the unpacked form. blocks: a multiple of 8 */
FMI_INLINE void tile_wide(const uint32_t m, const fmi_fast_block kind, const uint8_t *x,
                          const uint8_t *q, const uint8_t *s, uint32_t blocks,
                          const fmi_fast_out *o)
{
    vf sum[TILE_INT8];

#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
        sum[r] = vf_zero();
    for (uint32_t b = 0; b < blocks; b += 8) {
        float scale[32 * VF_LANES];
        wide_scales(scale, kind, s);
        for (uint32_t i = 0; i < 8; i++) {
            for (uint32_t at = 0; at < block_q_bytes(kind); at += 64)
                __builtin_prefetch(q + at + PREFETCH_BYTES, 0, 3);
            x = wide_block(m, kind, sum, scale + i * (wide_scale_count(kind) / 8) * VF_LANES, q, x);
            q += block_q_bytes(kind);
        }
        s += wide_scale_bytes(kind);
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < m; r++)
        tile_finish(o, r, 0, sum[r]);
}

typedef void (*int8_fn)(const uint8_t *x, const uint8_t *q, const uint8_t *s, uint32_t blocks,
                        const fmi_fast_out *o);
#define INT8_TABLE(kind, tile)                                                                     \
    FMI_TILE_TABLE(TILE_INT8, int8_##kind,                                                         \
                   (const uint8_t *x, const uint8_t *q, const uint8_t *s, uint32_t blocks,         \
                    const fmi_fast_out *o),                                                        \
                   tile, FMI_##kind, x, q, s, blocks, o);
#define INT8(kind) INT8_TABLE(kind, tile_int8)
#define WIDE(kind) INT8_TABLE(kind, tile_wide)
/* clang-format off */
#define INT8_KINDS(X)                                                                              \
    X(UNPACKED) X(UNPACKED_MIN) X(UNPACKED_16) X(UNPACKED_16_MIN)                                  \
    X(Q8_0) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(IQ4_NL) X(MXFP4)
#define WIDE_KINDS(X) X(IQ4_XS) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K)
/* clang-format on */
INT8_KINDS(INT8)
WIDE_KINDS(WIDE)
#define INT8_NAME(kind) [FMI_##kind] = int8_##kind,
static const int8_fn *const int8_tile[] = {INT8_KINDS(INT8_NAME) WIDE_KINDS(INT8_NAME)};

/* Bytes of a packed row that meets blocks of this kind. */
FMI_INLINE size_t row_blocks_bytes(fmi_fast_block kind, uint32_t blocks)
{
    if (block_is_pairs(kind) || kind == FMI_Q6_K)
        return (size_t)FMI_ROW_BLOCK_BYTES(4) * 2 * blocks;
    return (size_t)FMI_ROW_BLOCK_BYTES(block_quads(kind)) * blocks;
}

static void k_product_int8(const fmi_fast_out *out, const void *packed, uint32_t m,
                           fmi_fast_block kind, const void *q, const void *scale, uint32_t blocks)
{
    uint32_t tiles = tile_count(m, TILE_INT8), at = 0;
    const uint8_t *x = packed;

    for (uint32_t t = 0; t < tiles; t++) {
        uint32_t n = tile_rows_at(m, t, tiles);
        fmi_fast_out o = out_from(out, at);
        int8_tile[kind][n](x, q, scale, blocks, &o);
        x += row_blocks_bytes(kind, blocks) * n;
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

/* Packs one row, each pair `rows` pairs behind the one before. */
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

/* The same for the remainder of rounding; an infinity or NaN is in the rounded part already. */
FMI_INLINE void pack_rests(uint32_t *dst, const float *x, uint32_t k, uint32_t rows)
{
    for (uint32_t i = 0; i < k; i += 32) {
        float rest[32] = {0};
        uint32_t n = FMI_MIN2(k - i, 32u);
        for (uint32_t j = 0; j < n; j++) {
            float r = x[i + j] - float_of_bits(bf16_of(x[i + j]) << 16);
            rest[j] = r - r == 0.0f ? r : 0.0f;
        }
        pack_pairs(dst + i / 2 * (size_t)rows, rest, n, rows);
    }
}

static void k_pack_bf16(void *dst_bytes, const float *x, size_t ldx, const int32_t *rows,
                        uint32_t first, uint32_t m, uint32_t k, bool rest)
{
    uint32_t tiles = tile_count(m, TILE_BF16), at = 0;
    uint32_t *dst = dst_bytes;

    for (uint32_t t = 0; t < tiles; t++) {
        uint32_t n = tile_rows_at(m, t, tiles);
        for (uint32_t r = 0; r < n; r++) {
            const float *row = x + row_number(rows, first, at + r) * ldx;
            if (rest)
                pack_rests(dst + r, row, k, n);
            else
                pack_pairs(dst + r, row, k, n);
        }
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

#define BF16_PARAMS                                                                                \
    (const uint32_t *x, const uint32_t *w, uint32_t width, uint32_t pairs, const fmi_fast_out *o)
FMI_TILE_TABLE(TILE_BF16, bf16_half, BF16_PARAMS, tile_bf16, 1, x, w, width, pairs, o);
#if TILE_BF16_VF == 2
FMI_TILE_TABLE(TILE_BF16, bf16_wide, BF16_PARAMS, tile_bf16, 2, x, w, width, pairs, o);
#else
#define bf16_wide bf16_half
#endif

static void k_product_bf16(const fmi_fast_out *out, const void *packed, uint32_t m,
                           const void *panel, uint32_t width, uint32_t pairs)
{
    uint32_t tiles = tile_count(m, TILE_BF16), at = 0;
    const uint32_t *x = packed, *w = panel;

    for (uint32_t t = 0; t < tiles; t++) {
        uint32_t n = tile_rows_at(m, t, tiles);
        fmi_fast_out o = out_from(out, at);
        for (uint32_t j = 0; j < out->n; j += TILE_BF16_VF * VF_LANES) {
            fmi_fast_out part = out_columns(&o, j);
            (part.n > VF_LANES ? bf16_wide : bf16_half)[n](x, w + j, width, pairs, &part);
        }
        x += (size_t)n * pairs;
        at += n;
    }
}
