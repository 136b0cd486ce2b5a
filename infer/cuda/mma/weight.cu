/* weight.cu - weights of modes fast and bf16: stored bytes become tiles (tile.h) on the GPU, some
 * rows at a time through a staging buffer, on a separate stream: a model can be loaded while
 * another one decodes. */
#include "infer/cuda/mma/int8.h"

#include <string.h>

#include <new>

/* ---- the store's types ---- */

typedef struct stored_type {
    fm_dtype dtype;
    uint32_t elems, bytes; /* of a block */
    fmc_kind kind;
} stored_type;

/* Types without a product of their own become bf16. */
static const stored_type types[] = {
    {FM_BF16, 1, 2, FMC_BF16},     {FM_F16, 1, 2, FMC_F16},       {FM_F32, 1, 4, FMC_PAIR},
    {FM_Q8_0, 32, 34, FMC_Q8_0},   {FM_Q4_0, 32, 18, FMC_Q4_0},   {FM_Q4_1, 32, 20, FMC_Q4_1},
    {FM_Q4_K, 256, 144, FMC_Q4_K}, {FM_Q6_K, 256, 210, FMC_Q6_K}, {FM_Q5_0, 32, 22, FMC_BF16},
    {FM_Q5_1, 32, 24, FMC_BF16},   {FM_Q5_K, 256, 176, FMC_BF16}, {FM_IQ4_NL, 32, 18, FMC_BF16},
    {FM_F8_E4M3, 1, 1, FMC_E4M3},  {FM_F8_E5M2, 1, 1, FMC_E5M2},
};

static const stored_type *type_of(fm_dtype dtype)
{
    for (const stored_type &t : types)
        if (t.dtype == dtype)
            return &t;
    return NULL;
}

FMC_DEVICE uint32_t half_at(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}
FMC_DEVICE float f16_at(const unsigned char *p)
{
    return fmc_from_f16(half_at(p));
}
FMC_DEVICE uint32_t word_at(const unsigned char *p)
{
    return half_at(p) | half_at(p + 2) << 16;
}

/* The six-bit scale (and minimum) of 32 of Q4_K's and Q5_K's 256, from their 12 bytes. */
FMC_DEVICE uint32_t k_scale(const unsigned char *s, unsigned j)
{
    return j < 4 ? s[j] & 63u : (s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4;
}
FMC_DEVICE uint32_t k_min(const unsigned char *s, unsigned j)
{
    return j < 4 ? s[j + 4] & 63u : (uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4;
}
/* Nibble e of a block of 32 whose halves share bytes. */
FMC_DEVICE uint32_t nibble32(const unsigned char *q, unsigned e)
{
    return q[e % 16] >> (e / 16 * 4) & 15u;
}
/* Likewise of a block of 256, in groups of 64. */
FMC_DEVICE uint32_t nibble256(const unsigned char *q, unsigned e)
{
    return q[e / 64 * 32 + e % 32] >> (e % 64 / 32 * 4) & 15u;
}

FMC_DEVICE float f8_value(uint32_t b, unsigned fraction)
{
    uint32_t e = (b & 127u) >> fraction, m = b & ((1u << fraction) - 1u);
    int bias = fraction == 3 ? 7 : 15;
    bool nan = fraction == 3 ? (b & 127u) == 127u : e == 31 && m != 0;
    float v;
    if (nan)
        return __uint_as_float(0x7fc00000u);
    if (fraction == 2 && e == 31)
        v = __uint_as_float(0x7f800000u);
    else if (e == 0)
        v = (float)m * __uint_as_float((uint32_t)(127 + 1 - bias - (int)fraction) << 23);
    else
        v = __uint_as_float((uint32_t)((int)e - bias + 127) << 23 | m << (23 - fraction));
    return b & 128u ? -v : v;
}

FMC_DEVICE float iq4_value(uint32_t q)
{
    /* + 128, a byte each */
    const uint64_t low = 0x766a5d4f3f2d1801u, high = 0xf1d9c5b5a6998d81u;
    return (float)(int)((q < 8 ? low >> (8 * q) : high >> (8 * (q - 8))) & 255u) - 128.0f;
}

/* The quant of (row, k), unsigned; 0 outside. */
template <int kind>
FMC_DEVICE uint32_t quant(const unsigned char *src, size_t row_bytes, uint32_t n, uint32_t kdim,
                          uint32_t row, uint32_t k)
{
    if (row >= n || k >= kdim)
        return 0;
    src += row * row_bytes;
    if (fmc_f8_of<kind>::yes)
        return src[k];
    if (kind == FMC_Q8_0)
        return (uint32_t)(src[(size_t)(k / 32) * 34 + 2 + k % 32] ^ 128u);
    if (kind == FMC_Q4_0)
        return nibble32(src + (size_t)(k / 32) * 18 + 2, k % 32);
    if (kind == FMC_Q4_1)
        return nibble32(src + (size_t)(k / 32) * 20 + 4, k % 32);
    if (kind == FMC_Q4_K)
        return nibble256(src + (size_t)(k / 256) * 144 + 16, k % 256);
    const unsigned char *b = src + (size_t)(k / 256) * 210 + k % 256 / 128 * 64;
    unsigned e = k % 128;
    uint32_t low = b[e % 64] >> (e / 64 * 4) & 15u;
    const unsigned char *high = src + (size_t)(k / 256) * 210 + 128 + k % 256 / 128 * 32;
    return low | (uint32_t)(high[e % 32] >> (e / 32 * 2) & 3u) << 4;
}

/* Element k of a stored row. */
FMC_DEVICE float stored_value(fm_dtype dtype, const unsigned char *row, uint32_t k)
{
    switch (dtype) {
    case FM_F32:
        return __uint_as_float(word_at(row + 4 * (size_t)k));
    case FM_F16:
        return f16_at(row + 2 * (size_t)k);
    case FM_BF16:
        return __uint_as_float(half_at(row + 2 * (size_t)k) << 16);
    case FM_F8_E4M3:
        return f8_value(row[k], 3);
    case FM_F8_E5M2:
        return f8_value(row[k], 2);
    case FM_Q5_0: {
        const unsigned char *b = row + (size_t)(k / 32) * 22;
        uint32_t q = nibble32(b + 6, k % 32) | (word_at(b + 2) >> (k % 32) & 1u) << 4;
        return f16_at(b) * (float)((int)q - 16);
    }
    case FM_Q5_1: {
        const unsigned char *b = row + (size_t)(k / 32) * 24;
        uint32_t q = nibble32(b + 8, k % 32) | (word_at(b + 4) >> (k % 32) & 1u) << 4;
        return fmaf(f16_at(b), (float)q, f16_at(b + 2));
    }
    case FM_IQ4_NL: {
        const unsigned char *b = row + (size_t)(k / 32) * 18;
        return f16_at(b) * iq4_value(nibble32(b + 2, k % 32));
    }
    case FM_Q8_0:
        return f16_at(row + (size_t)(k / 32) * 34) *
               (float)((int)quant<FMC_Q8_0>(row, 0, 1, k + 1, 0, k) - 128);
    case FM_Q4_0:
        return f16_at(row + (size_t)(k / 32) * 18) *
               (float)((int)quant<FMC_Q4_0>(row, 0, 1, k + 1, 0, k) - 8);
    case FM_Q4_1: {
        const unsigned char *b = row + (size_t)(k / 32) * 20;
        return fmaf(f16_at(b), (float)quant<FMC_Q4_1>(row, 0, 1, k + 1, 0, k), f16_at(b + 2));
    }
    case FM_Q6_K: {
        const unsigned char *b = row + (size_t)(k / 256) * 210;
        float d = f16_at(b + 208) * (float)(int8_t)b[192 + k % 256 / 16];
        return d * (float)((int)quant<FMC_Q6_K>(row, 0, 1, k + 1, 0, k) - 32);
    }
    case FM_Q4_K: {
        const unsigned char *b = row + (size_t)(k / 256) * 144;
        unsigned j = k % 256 / 32;
        float low = f16_at(b + 2) * (float)k_min(b + 4, j);
        return fmaf(f16_at(b) * (float)k_scale(b + 4, j),
                    (float)quant<FMC_Q4_K>(row, 0, 1, k + 1, 0, k), -low);
    }
    default: { /* FM_Q5_K */
        const unsigned char *b = row + (size_t)(k / 256) * 176;
        unsigned e = k % 256, j = e / 32;
        uint32_t q = nibble256(b + 48, e) | (uint32_t)(b[16 + e % 32] >> j & 1u) << 4;
        float low = f16_at(b + 2) * (float)k_min(b + 4, j);
        return fmaf(f16_at(b) * (float)k_scale(b + 4, j), (float)q, -low);
    }
    }
}

/* ---- tiles of plain numbers ---- */

/* The source of the numbers: stored rows, or f32 (turned: [k, n]). */
typedef struct plain_source {
    const unsigned char *bytes;
    size_t row_bytes;
    const float *floats;
    size_t ld;
    fm_dtype dtype;
    bool turned;
} plain_source;

FMC_DEVICE float plain_value(const plain_source *s, uint32_t row, uint32_t k)
{
    if (!s->floats)
        return stored_value(s->dtype, s->bytes + row * s->row_bytes, k);
    return s->turned ? s->floats[k * s->ld + row] : s->floats[row * s->ld + k];
}

FMC_DEVICE float bf16_rest(float v)
{
    float r = v - __uint_as_float(fmc_pack_bf16(0.0f, v) & 0xffff0000u);
    return isfinite(r) ? r : 0.0f;
}

/* A warp makes one step of 16 k of a panel; steps: steps of a panel in `to`. */
template <int kind>
__global__ void k_fast_store_plain(unsigned char *to, plain_source s, uint32_t n, uint32_t k,
                                   uint32_t steps, uint64_t all)
{
    unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (uint64_t i = fmc_index() / 32; i < all; i += fmc_stride() / 32) {
        uint32_t panel = (uint32_t)(i / steps), step = (uint32_t)(i % steps), r[4], rest[4];
        for (unsigned j = 0; j < 4; j++) {
            uint32_t row = panel * FMC_OUTPUTS + g + 8 * (j % 2),
                     at = 16 * step + 2 * t + 8 * (j / 2);
            float v[2];
            for (unsigned e = 0; e < 2; e++)
                v[e] = row < n && at + e < k ? plain_value(&s, row, at + e) : 0.0f;
            r[j] = kind == FMC_F16 ? fmc_pack_f16(v[0], v[1]) : fmc_pack_bf16(v[0], v[1]);
            rest[j] = fmc_pack_bf16(bf16_rest(v[0]), bf16_rest(v[1]));
        }
        unsigned char *at = to + i * 512;
        if (kind == FMC_PAIR)
            at = to + ((size_t)panel * (steps / 4) + step / 4) * 4096 + step % 4 * 512;
        *(uint4 *)(void *)(at + 16 * lane) = make_uint4(r[0], r[1], r[2], r[3]);
        if (kind == FMC_PAIR)
            *(uint4 *)(void *)(at + 2048 + 16 * lane) =
                make_uint4(rest[0], rest[1], rest[2], rest[3]);
    }
}

static void store_plain(cudaStream_t stream, fmc_kind kind, unsigned char *to,
                        const plain_source *s, uint32_t n, uint32_t k, uint32_t steps)
{
    uint64_t all = (uint64_t)fmc_ceil(n, FMC_OUTPUTS) * steps;
    unsigned blocks = fmc_blocks(all, FMC_THREADS / 32);
    if (kind == FMC_BF16)
        FMC_LAUNCH((k_fast_store_plain<FMC_BF16>), blocks, FMC_THREADS, 0, stream, to, *s, n, k,
                   steps, all);
    else if (kind == FMC_F16)
        FMC_LAUNCH((k_fast_store_plain<FMC_F16>), blocks, FMC_THREADS, 0, stream, to, *s, n, k,
                   steps, all);
    else
        FMC_LAUNCH((k_fast_store_plain<FMC_PAIR>), blocks, FMC_THREADS, 0, stream, to, *s, n, k,
                   steps, all);
}

/* ---- tiles of blocks ---- */

/* The scales and minima of one output in a tile; 0 outside. */
template <int kind>
FMC_DEVICE uint2 scales_of(const unsigned char *src, size_t row_bytes, uint32_t n, uint32_t kdim,
                           uint32_t row, uint32_t k)
{
    uint2 r = make_uint2(0, 0);
    if (row >= n)
        return r;
    src += row * row_bytes;
    if (kind == FMC_Q4_K || kind == FMC_Q6_K) {
        const unsigned char *b = src + (size_t)(k / 256) * (kind == FMC_Q4_K ? 144 : 210);
        unsigned j = k % 256 / 32;
        if (kind == FMC_Q6_K)
            r.x = word_at(b + 192 + k % 256 / 16);
        else
            r.x = k_scale(b + 4, j) | k_min(b + 4, j) << 8 | k_scale(b + 4, j + 1) << 16 |
                  k_min(b + 4, j + 1) << 24;
        return r;
    }
    unsigned bytes = kind == FMC_Q8_0 ? 34 : kind == FMC_Q4_0 ? 18 : 20;
    for (unsigned i = 0; i < 2 && k + 32 * i < kdim; i++) {
        const unsigned char *b = src + (size_t)(k / 32 + i) * bytes;
        r.x |= half_at(b) << (16 * i);
        if (kind == FMC_Q4_1)
            r.y |= half_at(b + 2) << (16 * i);
    }
    return r;
}

/* A warp stores the quants of one tile; sets *special where one is not finite. */
template <int kind>
FMC_DEVICE void store_quants(unsigned *special, unsigned char *body, const unsigned char *src,
                             size_t row_bytes, uint32_t n, uint32_t kdim, uint32_t panel,
                             uint32_t tile)
{
    unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t low[8] = {0}, high[2] = {0};
    for (unsigned step = 0; step < 4; step++)
        for (unsigned i = 0; i < 4; i++)
            for (unsigned e = 0; e < 2; e++) {
                uint32_t row = panel * FMC_OUTPUTS + g + 8 * (i % 2);
                uint32_t k = tile * FMC_TILE_K + 16 * step + 2 * t + 8 * (i / 2) + e;
                uint32_t q = quant<kind>(src, row_bytes, n, kdim, row, k);
                if (fmc_f8_of<kind>::yes && (q & 127u) >= (kind == FMC_E4M3 ? 127u : 124u))
                    (void)atomicOr(special, 1u);
                if (kind == FMC_Q8_0 || fmc_f8_of<kind>::yes)
                    low[4 * (i % 2) + step] |= q << (8 * ((i & 2u) + e));
                else
                    low[step] |= (q & 15u) << (4 * i + 16 * e);
                if (kind == FMC_Q6_K)
                    high[step / 2] |= (q >> 4) << (8 * (step % 2) + 2 * i + 16 * e);
            }
    uint4 *out = (uint4 *)(void *)body;
    out[lane] = make_uint4(low[0], low[1], low[2], low[3]);
    if (kind == FMC_Q8_0 || fmc_f8_of<kind>::yes)
        out[32 + lane] = make_uint4(low[4], low[5], low[6], low[7]);
    if (kind == FMC_Q6_K)
        ((uint2 *)(void *)(body + 512))[lane] = make_uint2(high[0], high[1]);
}

template <int kind>
__global__ void k_fast_store_blocks(unsigned *special, unsigned char *to, const unsigned char *src,
                                    size_t row_bytes, uint32_t n, uint32_t kdim, uint32_t tiles,
                                    uint64_t all)
{
    constexpr unsigned head = fmc_tile<kind>::head, bodies = fmc_tile<kind>::bodies;
    unsigned lane = threadIdx.x % 32;
    for (uint64_t i = fmc_index() / 32; i < all; i += fmc_stride() / 32) {
        uint32_t panel = (uint32_t)(i / tiles), tile = (uint32_t)(i % tiles);
        unsigned char *unit = const_cast<unsigned char *>(fmc_unit<kind>(to, panel, tiles, tile));
        unsigned char *body = unit + head + tile % bodies * fmc_tile<kind>::body;
        store_quants<kind>(special, body, src, row_bytes, n, kdim, panel, tile);
        if (lane < FMC_OUTPUTS && !fmc_f8_of<kind>::yes) {
            uint32_t row = panel * FMC_OUTPUTS + lane, k = tile * FMC_TILE_K;
            unsigned char *after = body + (kind == FMC_Q8_0 ? 1024 : kind == FMC_Q6_K ? 768 : 512);
            uint2 s = scales_of<kind>(src, row_bytes, n, kdim, row, k);
            ((uint32_t *)(void *)after)[lane] = s.x;
            if (kind == FMC_Q4_1)
                ((uint32_t *)(void *)after)[16 + lane] = s.y;
            const unsigned char *b = src + row * row_bytes;
            if (kind == FMC_Q4_K && tile % bodies == 0)
                ((uint32_t *)(void *)unit)[lane] =
                    row < n ? word_at(b + (size_t)(k / 256) * 144) : 0;
            if (kind == FMC_Q6_K && tile % bodies == 0)
                ((uint16_t *)(void *)unit)[lane] =
                    (uint16_t)(row < n ? half_at(b + (size_t)(k / 256) * 210 + 208) : 0);
        }
    }
}

template <int kind>
static void store_blocks_of(fmc_fast *f, unsigned char *to, const unsigned char *src,
                            size_t row_bytes, uint32_t n, uint32_t k)
{
    uint32_t tiles = fmc_ceil(k, FMC_TILE_K);
    uint64_t all = (uint64_t)fmc_ceil(n, FMC_OUTPUTS) * tiles;
    FMC_LAUNCH((k_fast_store_blocks<kind>), fmc_blocks(all, FMC_THREADS / 32), FMC_THREADS, 0,
               f->stream, f->special, to, src, row_bytes, n, k, tiles, all);
}

static void store_blocks(fmc_fast *f, fmc_kind kind, unsigned char *to, const unsigned char *src,
                         size_t row_bytes, uint32_t n, uint32_t k)
{
    static void (*const of[FMC_KINDS])(fmc_fast *, unsigned char *, const unsigned char *, size_t,
                                       uint32_t, uint32_t) = {NULL,
                                                              NULL,
                                                              NULL,
                                                              store_blocks_of<FMC_Q8_0>,
                                                              store_blocks_of<FMC_Q4_0>,
                                                              store_blocks_of<FMC_Q4_1>,
                                                              store_blocks_of<FMC_Q4_K>,
                                                              store_blocks_of<FMC_Q6_K>,
                                                              store_blocks_of<FMC_E4M3>,
                                                              store_blocks_of<FMC_E5M2>};
    of[kind](f, to, src, row_bytes, n, k);
}

/* Bytes of one panel. */
template <int kind> static uint64_t unit_bytes(void)
{
    return fmc_tile<kind>::head + (uint64_t)fmc_tile<kind>::bodies * fmc_tile<kind>::body;
}

static uint64_t panel_bytes(fmc_kind kind, uint32_t k)
{
    uint32_t tiles = fmc_ceil(k, FMC_TILE_K);
    switch (kind) {
    case FMC_PAIR:
        return tiles * unit_bytes<FMC_PAIR>();
    case FMC_E4M3:
    case FMC_E5M2:
        return tiles * unit_bytes<FMC_E4M3>();
    case FMC_Q8_0:
        return tiles * unit_bytes<FMC_Q8_0>();
    case FMC_Q4_0:
        return tiles * unit_bytes<FMC_Q4_0>();
    case FMC_Q4_1:
        return tiles * unit_bytes<FMC_Q4_1>();
    case FMC_Q4_K:
        return fmc_ceil(tiles, 4) * unit_bytes<FMC_Q4_K>();
    case FMC_Q6_K:
        return fmc_ceil(tiles, 4) * unit_bytes<FMC_Q6_K>();
    default:
        return tiles * unit_bytes<FMC_BF16>();
    }
}

uint64_t fmc_tiles_bytes(fmc_kind kind, uint32_t n, uint32_t k)
{
    return fmc_ceil(n, FMC_OUTPUTS) * panel_bytes(kind, k);
}

void fmc_tiles_from_floats(fmc_device *d, fmc_kind kind, unsigned char *tiles, const float *src,
                           size_t ld, bool turned, uint32_t n, uint32_t k)
{
    plain_source s = {NULL, 0, src, ld, FM_F32, turned};
    if (d->failed != FM_OK)
        return;
    fmc_enter(d);
    store_plain(d->stream, kind, tiles, &s, n, k, 4 * fmc_ceil(k, FMC_TILE_K));
    fmc_launched(d, "k_fast_store_plain");
}

/* ---- W^T ---- */

FMC_DEVICE uint32_t tile_element(const unsigned char *tiles, uint32_t steps, uint32_t n, uint32_t k)
{
    unsigned lane = n % 8 * 4 + k % 8 / 2, reg = n % 16 / 8 + k % 16 / 8 * 2;
    size_t at = ((size_t)(n / 16) * steps + k / 16) * 512 + 16 * lane + 4 * reg + 2 * (k % 2);
    return *(const uint16_t *)(const void *)(tiles + at);
}

__global__ void k_fast_turn(unsigned char *to, const unsigned char *from, uint32_t n, uint32_t k,
                            uint32_t to_steps, uint32_t from_steps, uint64_t all)
{
    unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (uint64_t i = fmc_index() / 32; i < all; i += fmc_stride() / 32) {
        uint32_t panel = (uint32_t)(i / to_steps), step = (uint32_t)(i % to_steps), r[4];
        for (unsigned j = 0; j < 4; j++) {
            uint32_t row = panel * 16 + g + 8 * (j % 2), at = 16 * step + 2 * t + 8 * (j / 2);
            r[j] = 0;
            for (unsigned e = 0; e < 2; e++)
                if (row < k && at + e < n)
                    r[j] |= tile_element(from, from_steps, at + e, row) << (16 * e);
        }
        ((uint4 *)(void *)(to + i * 512))[lane] = make_uint4(r[0], r[1], r[2], r[3]);
    }
}

void fmc_tiles_turn(fmc_device *d, unsigned char *to, const unsigned char *tiles, uint32_t n,
                    uint32_t k)
{
    uint32_t to_steps = 4 * fmc_ceil(n, FMC_TILE_K);
    uint64_t all = (uint64_t)fmc_ceil(k, FMC_OUTPUTS) * to_steps;
    FMC_RUN(d, k_fast_turn, fmc_blocks(all, FMC_THREADS / 32), FMC_THREADS, 0, to, tiles, n, k,
            to_steps, 4 * fmc_ceil(k, FMC_TILE_K), all);
}

/* ---- rows read back ---- */

/* A lane's four elements of a step of plain numbers, for output g + 8 h. */
template <int kind>
FMC_DEVICE void plain_four(float v[4], const unsigned char *body, unsigned lane, unsigned step,
                           unsigned h)
{
    uint32_t a[4], rest[4] = {0, 0, 0, 0};
    fmc_lane l;
    fmc_lane_load<kind>(&l, body, body, lane);
    fmc_operand<kind>(a, &l, body, lane, step, false);
    if (kind == FMC_PAIR)
        fmc_operand<kind>(rest, &l, body, lane, step, true);
    for (unsigned j = 0; j < 4; j++) {
        uint32_t bits = a[h + 2 * (j / 2)] >> (16 * (j % 2)) & 0xffffu;
        uint32_t low = rest[h + 2 * (j / 2)] >> (16 * (j % 2)) & 0xffffu;
        v[j] = kind == FMC_F16 ? fmc_from_f16(bits) : __uint_as_float(bits << 16);
        if (kind == FMC_PAIR)
            v[j] = v[j] + __uint_as_float(low << 16);
    }
}

/* Likewise for blocks: the stored values, rounded as the store does. */
template <int kind>
FMC_DEVICE void block_four(float v[4], const unsigned char *unit, const unsigned char *body,
                           unsigned lane, unsigned step, unsigned h)
{
    fmc_lane l;
    fmc_lane8 l8;
    if (kind == FMC_Q6_K)
        fmc_lane_load<kind>(&l, unit, body, lane);
    else
        fmc_lane8_load<kind>(&l8, unit, body, lane);
    for (unsigned j = 0; j < 4; j++) {
        if (kind == FMC_Q8_0) {
            v[j] =
                l8.scale[h][step / 2] * (float)((int)(l8.q[4 * h + step] >> (8 * j) & 255u) - 128);
            continue;
        }
        unsigned i = h + 2 * (j / 2), odd = j % 2;
        uint32_t q = (kind == FMC_Q6_K ? l.q : l8.q)[step] >> (4 * i + 16 * odd) & 15u;
        if (kind == FMC_Q6_K) {
            q |= (l.q[4 + step / 2] >> (8 * (step % 2) + 2 * i + 16 * odd) & 3u) << 4;
            v[j] = l.scale[h][step] * (float)((int)q - 32);
        } else if (kind == FMC_Q4_0) {
            v[j] = l8.scale[h][step / 2] * (float)((int)q - 8);
        } else {
            v[j] = fmaf(l8.scale[h][step / 2], (float)q, l8.min[h][step / 2]);
        }
    }
}

/* A thread writes 16 elements: four of each step of one tile. */
template <int kind>
__global__ void k_fast_embed(float *y, size_t ldy, const unsigned char *w, const int32_t *ids,
                             const int32_t *rows, uint32_t n, uint32_t k, uint32_t tiles,
                             uint64_t all)
{
    for (uint64_t i = fmc_index(); i < all; i += fmc_stride()) {
        uint32_t t = (uint32_t)(i % 4), tile = (uint32_t)(i / 4 % tiles);
        uint64_t at = i / 4 / tiles;
        size_t row = rows ? (size_t)rows[at] : at;
        uint32_t id = (uint32_t)ids[row], lane = id % 8 * 4 + t, h = id % 16 / 8;
        if (id >= n)
            continue;
        const unsigned char *unit = fmc_unit<kind>(w, id / FMC_OUTPUTS, tiles, tile);
        const unsigned char *body =
            unit + fmc_tile<kind>::head + tile % fmc_tile<kind>::bodies * fmc_tile<kind>::body;
        for (unsigned step = 0; step < 4; step++) {
            float v[4];
            if constexpr (fmc_plain_of<kind>::yes)
                plain_four<kind>(v, body, lane, step, h);
            else
                block_four<kind>(v, unit, body, lane, step, h);
            for (unsigned j = 0; j < 4; j++) {
                uint32_t e = tile * FMC_TILE_K + 16 * step + 8 * (j / 2) + 2 * t + j % 2;
                if (e < k)
                    y[row * ldy + e] = v[j];
            }
        }
    }
}

template <int kind>
static void embed_of(fmc_device *d, float *y, size_t ldy, const fmc_fast_weight *w,
                     const int32_t *ids, const int32_t *rows, uint32_t m)
{
    uint32_t tiles = fmc_ceil(w->k, FMC_TILE_K);
    uint64_t all = (uint64_t)m * tiles * 4;
    FMC_RUN(d, (k_fast_embed<kind>), fmc_blocks(all, FMC_THREADS), FMC_THREADS, 0, y, ldy, w->tiles,
            ids, rows, w->n, w->k, tiles, all);
}

static void embed(fm_backend *be, float *y, size_t ldy, const fm_weight *weight, const int32_t *ids,
                  const int32_t *rows, uint32_t m)
{
    static void (*const of[FMC_KINDS])(fmc_device *, float *, size_t, const fmc_fast_weight *,
                                       const int32_t *, const int32_t *, uint32_t) = {
        embed_of<FMC_BF16>, embed_of<FMC_F16>,  embed_of<FMC_PAIR>, embed_of<FMC_Q8_0>,
        embed_of<FMC_Q4_0>, embed_of<FMC_Q4_1>, embed_of<FMC_Q4_K>, embed_of<FMC_Q6_K>,
        embed_of<FMC_E4M3>, embed_of<FMC_E5M2>};
    const fmc_fast_weight *w = fmc_fast_weight_of(weight);
    if (m > 0)
        of[w->kind](fmc_of(be), y, ldy, w, ids, rows, m);
}

/* ---- life ---- */

/* Steps of a panel: whole tiles, except for the second factor of a low-rank term. */
static uint32_t steps_of(fm_role role, uint32_t k)
{
    return role == FM_ROLE_LORA_B ? fmc_ceil(k, 16) : 4 * fmc_ceil(k, FMC_TILE_K);
}

static uint64_t bytes_of(fm_role role, fmc_kind kind, uint32_t n, uint32_t k)
{
    return role == FM_ROLE_LORA_B ? (uint64_t)fmc_ceil(n, FMC_OUTPUTS) * steps_of(role, k) * 512
                                  : fmc_tiles_bytes(kind, n, k);
}

static bool is_training(const fm_backend *be)
{
    return be->mode[0] == 'b';
}

/* Low-rank factors, and in mode bf16 all weights, become bf16 whatever their stored type. */
static fmc_kind kind_of(const fm_backend *be, fm_role role, const stored_type *t)
{
    return role == FM_ROLE_LINEAR && !is_training(be) ? t->kind : FMC_BF16;
}

/* Allocates tiles of w->kind and fills them from the host's bytes. */
static cudaError_t fill(fmc_fast *f, fmc_fast_weight *w, const stored_type *t,
                        const unsigned char *src)
{
    size_t row_bytes = (size_t)w->k / t->elems * t->bytes, panel = panel_bytes(w->kind, w->k);
    uint32_t most = (uint32_t)(FMC_STAGING_BYTES / row_bytes / FMC_OUTPUTS * FMC_OUTPUTS);
    void *tiles = NULL;
    w->bytes = bytes_of(w->role, w->kind, w->n, w->k);
    cudaError_t e = cudaMalloc(&tiles, w->bytes);
    w->tiles = (unsigned char *)tiles;
    if (w->role == FM_ROLE_LORA_B)
        panel = (size_t)steps_of(w->role, w->k) * 512;
    for (uint32_t row = 0; row < w->n && e == cudaSuccess; row += most) {
        uint32_t n = w->n - row < most ? w->n - row : most;
        unsigned char *to = w->tiles + row / FMC_OUTPUTS * panel;
        const unsigned char *from = (const unsigned char *)f->staging;
        e = cudaMemcpyAsync(f->staging, src + row * row_bytes, n * row_bytes,
                            cudaMemcpyHostToDevice, f->stream);
        if (e != cudaSuccess)
            break;
        if (w->kind == FMC_BF16 || w->kind == FMC_F16 || w->kind == FMC_PAIR) {
            plain_source s = {from, row_bytes, NULL, 0, t->dtype, false};
            store_plain(f->stream, w->kind, to, &s, n, w->k, steps_of(w->role, w->k));
        } else {
            store_blocks(f, w->kind, to, from, row_bytes, n, w->k);
        }
        e = cudaGetLastError();
        if (e == cudaSuccess)
            e = cudaStreamSynchronize(f->stream);
    }
    return e;
}

/* Tiles of F8 cannot hold infinities and NaN: such a weight is kept as bf16, in twice the bytes. */
static cudaError_t fill_finite(fmc_fast *f, fmc_fast_weight *w, const stored_type *t,
                               const unsigned char *src)
{
    unsigned special = 0;
    cudaError_t e = cudaMemsetAsync(f->special, 0, sizeof special, f->stream);
    if (e == cudaSuccess)
        e = fill(f, w, t, src);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(&special, f->special, sizeof special, cudaMemcpyDeviceToHost,
                            f->stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(f->stream);
    if (e != cudaSuccess || special == 0)
        return e;
    (void)cudaFree(w->tiles);
    w->tiles = NULL;
    w->kind = FMC_BF16;
    return fill(f, w, t, src);
}

static fm_status check(const stored_type *t, fm_dtype dtype, uint32_t n, uint32_t k)
{
    if (!t)
        return fmc_fail(FM_EUNSUPPORTED,
                        "a weight of type number %d cannot be used on a GPU in this mode; floats "
                        "and GGUF's blocks can",
                        (int)dtype);
    if (n == 0 || k == 0)
        return fmc_fail(FM_EINVAL, "a weight of %u x %u has no elements", n, k);
    if (k % t->elems)
        return fmc_fail(FM_EINVAL, "rows of %u are no whole number of blocks of %u", k, t->elems);
    if ((uint64_t)k / t->elems * t->bytes * FMC_OUTPUTS > FMC_STAGING_BYTES)
        return fmc_fail(FM_ELIMIT, "rows of %u elements are too long for this mode on a GPU", k);
    return FM_OK;
}

static fm_status make(fm_backend *be, fm_weight **out, fm_role role, const stored_type *t,
                      fmc_kind kind, uint32_t n, uint32_t k, const void *host_bytes)
{
    fmc_fast *f = fmc_fast_of(be);
    fmc_fast_weight *w = new (std::nothrow) fmc_fast_weight();
    if (!w)
        return fmc_fail(FM_ENOMEM, "out of memory");
    w->n = n;
    w->k = k;
    w->role = role;
    w->kind = kind;
    fmc_enter(fmc_of(be));
    pthread_mutex_lock(&f->lock);
    bool f8 = kind == FMC_E4M3 || kind == FMC_E5M2;
    cudaError_t e = f8 ? fill_finite(f, w, t, (const unsigned char *)host_bytes)
                       : fill(f, w, t, (const unsigned char *)host_bytes);
    pthread_mutex_unlock(&f->lock);
    if (e != cudaSuccess) {
        be->weight_free(be, (fm_weight *)(void *)w);
        return fmc_status(e, "a weight");
    }
    *out = (fm_weight *)(void *)w;
    return FM_OK;
}

/* A factor in mode bf16: mode exact's weight inside a weight of this mode. */
static fm_status wrap(fm_backend *be, fm_weight **out, fm_role role, fm_dtype dtype, uint32_t n,
                      uint32_t k, const void *host_bytes)
{
    const fm_backend *exact = &fmc_fast_of(be)->exact;
    if (!exact->weight_new)
        return fmc_fail(FM_EUNSUPPORTED, "factors of low-rank terms need mode exact's weights");
    fmc_fast_weight *w = new (std::nothrow) fmc_fast_weight();
    if (!w)
        return fmc_fail(FM_ENOMEM, "out of memory");
    fm_status rc = exact->weight_new(be, &w->exact, role, dtype, n, k, host_bytes);
    if (rc != FM_OK) {
        delete w;
        return rc;
    }
    w->n = n;
    w->k = k;
    w->role = role;
    w->bytes = exact->weight_bytes(w->exact);
    w->exact_floats = exact->weight_floats;
    *out = (fm_weight *)(void *)w;
    return FM_OK;
}

static fm_status weight_new(fm_backend *be, fm_weight **out, fm_role role, fm_dtype dtype,
                            uint32_t n, uint32_t k, const void *host_bytes)
{
    const stored_type *t = type_of(dtype);
    *out = NULL;
    if (role != FM_ROLE_LINEAR && is_training(be))
        return wrap(be, out, role, dtype, n, k, host_bytes);
    fm_status rc = check(t, dtype, n, k);
    if (rc != FM_OK)
        return rc;
    return make(be, out, role, t, kind_of(be, role, t), n, k, host_bytes);
}

static void weight_free(fm_backend *be, fm_weight *weight)
{
    fmc_fast_weight *w = fmc_fast_weight_of(weight);
    if (!w)
        return;
    fmc_enter(fmc_of(be));
    (void)cudaFree(w->tiles);
    (void)cudaFree(w->turned);
    if (w->exact)
        fmc_fast_of(be)->exact.weight_free(be, w->exact);
    delete w;
}

static uint64_t weight_bytes(const fm_weight *weight)
{
    return fmc_fast_weight_of(weight)->bytes;
}

static fm_status weight_image_bytes(fm_backend *be, uint64_t *out, fm_role role, fm_dtype dtype,
                                    uint32_t n, uint32_t k)
{
    const stored_type *t = type_of(dtype);
    if (role != FM_ROLE_LINEAR && is_training(be))
        return fmc_fast_of(be)->exact.weight_image_bytes(be, out, role, dtype, n, k);
    fm_status rc = check(t, dtype, n, k);
    *out = rc == FM_OK ? bytes_of(role, kind_of(be, role, t), n, k) : 0;
    return rc;
}

void fmc_fast_weight_install(fm_backend *be)
{
    be->weight_new = weight_new;
    be->weight_map = NULL;
    be->weight_image = NULL;
    be->weight_image_bytes = weight_image_bytes;
    be->weight_free = weight_free;
    be->weight_bytes = weight_bytes;
    be->keep_stored = NULL;
    be->embed = embed;
}
