/* tile.h - tiles of weights of modes fast and bf16: the layout of the bytes, and how a warp makes
 * the first operand of mma from them.
 *
 * A unit is 16 outputs by 64 k, or by 256 k for the types that have such blocks: a head (of a block
 * of 256) and one body for each 64 k. With g = lane / 4, t = lane % 4 a lane has the outputs g and
 * g + 8 and of each 16 k those at 2t, 2t + 1, 2t + 8, 2t + 9: "its four".
 *
 *   kind   head             body
 *   BF16   -                4 steps of 512: 16 bytes a lane, the registers of mma
 *   F16    -                likewise
 *   PAIR   -                BF16's of the rounded values, then of what the rounding took
 *   E4M3   -                two halves (g, g + 8) of 512: 16 bytes a lane, its four of 4 steps
 *   E5M2   -                likewise
 *   Q8_0   -                two halves (g, g + 8) of 512: 16 bytes a lane, its four of 4 steps,
 *                           each + 128; then [16] pairs of f16 scales
 *   Q4_0   -                512: a word of each step, nibble i + 4h (h: odd k): register i of mma;
 *                           then [16] pairs of f16 scales
 *   Q4_1   -                the same, then [16] pairs of minima
 *   Q4_K   [16] d, dmin     the same nibbles, then [16] of scale, min, scale, min (bytes)
 *   Q6_K   [16] d           the same nibbles; 8 bytes a lane of upper bits (2 words of two steps:
 *                           bits 8 (step % 2) + 2 i, + 16 for odd k); then [16] of 4 scales */
#ifndef FM_INFER_CUDA_FAST_TILE_H
#define FM_INFER_CUDA_FAST_TILE_H

#include "infer/cuda/mma/fast.h"
#include "infer/cuda/ptx.h"

template <int kind> struct fmc_f8_of {
    static constexpr bool yes = kind == FMC_E4M3 || kind == FMC_E5M2;
};
template <int kind> struct fmc_plain_of { /* as fmc_is_plain */
    static constexpr bool yes =
        kind == FMC_BF16 || kind == FMC_F16 || kind == FMC_PAIR || fmc_f8_of<kind>::yes;
};

template <int kind> struct fmc_tile;
template <> struct fmc_tile<FMC_BF16> {
    static constexpr unsigned head = 0, body = 2048, bodies = 1;
    static constexpr unsigned stage = head + body; /* what one tile of 64 k needs */
};
template <> struct fmc_tile<FMC_F16> {
    static constexpr unsigned head = 0, body = 2048, bodies = 1;
    static constexpr unsigned stage = head + body; /* what one tile of 64 k needs */
};
template <> struct fmc_tile<FMC_PAIR> {
    static constexpr unsigned head = 0, body = 4096, bodies = 1;
    static constexpr unsigned stage = head + body; /* what one tile of 64 k needs */
};
template <> struct fmc_tile<FMC_E4M3> {
    static constexpr unsigned head = 0, body = 1024, bodies = 1;
    static constexpr unsigned stage = head + body; /* what one tile of 64 k needs */
};
template <> struct fmc_tile<FMC_E5M2> {
    static constexpr unsigned head = 0, body = 1024, bodies = 1;
    static constexpr unsigned stage = head + body; /* what one tile of 64 k needs */
};
template <> struct fmc_tile<FMC_Q8_0> {
    static constexpr unsigned head = 0, body = 1024 + 64, bodies = 1;
    static constexpr unsigned stage = head + body; /* what one tile of 64 k needs */
};
template <> struct fmc_tile<FMC_Q4_0> {
    static constexpr unsigned head = 0, body = 512 + 64, bodies = 1;
    static constexpr unsigned stage = head + body; /* what one tile of 64 k needs */
};
template <> struct fmc_tile<FMC_Q4_1> {
    static constexpr unsigned head = 0, body = 512 + 128, bodies = 1;
    static constexpr unsigned stage = head + body; /* what one tile of 64 k needs */
};
template <> struct fmc_tile<FMC_Q4_K> {
    static constexpr unsigned head = 64, body = 512 + 64, bodies = 4;
    static constexpr unsigned stage = head + body; /* what one tile of 64 k needs */
};
template <> struct fmc_tile<FMC_Q6_K> {
    static constexpr unsigned head = 32, body = 512 + 256 + 64, bodies = 4;
    static constexpr unsigned stage = head + body; /* what one tile of 64 k needs */
};

template <int kind>
FMC_DEVICE const unsigned char *fmc_unit(const unsigned char *w, uint32_t panel, uint32_t tiles,
                                         uint32_t tile)
{
    constexpr unsigned bodies = fmc_tile<kind>::bodies;
    constexpr size_t bytes = fmc_tile<kind>::head + (size_t)bodies * fmc_tile<kind>::body;
    return w + ((size_t)panel * ((tiles + bodies - 1) / bodies) + tile / bodies) * bytes;
}

/* The source of the 16 bytes of piece i of a stage (head, then the tile's body). */
template <int kind>
FMC_DEVICE const unsigned char *fmc_piece(const unsigned char *unit, uint32_t tile, unsigned i)
{
    unsigned at = 16 * i;
    if (at + 1 > fmc_tile<kind>::head)
        at += tile % fmc_tile<kind>::bodies * fmc_tile<kind>::body;
    return unit + at;
}

/* What a lane holds of a stage while it walks its four steps. */
typedef struct fmc_lane {
    uint32_t q[8];                /* its quants */
    float scale[2][4], min[2][4]; /* of outputs g, g + 8: by 32 k (Q6_K: 16) */
} fmc_lane;

FMC_DEVICE uint32_t fmc_word(const unsigned char *at)
{
    return *(const uint32_t *)(const void *)at;
}
FMC_DEVICE uint4 fmc_words(const unsigned char *at)
{
    return *(const uint4 *)(const void *)at;
}

FMC_DEVICE void fmc_put_words(uint32_t to[4], uint4 v)
{
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}

template <int kind>
FMC_DEVICE void fmc_lane_load(fmc_lane *l, const unsigned char *head, const unsigned char *body,
                              unsigned lane)
{
    unsigned g = lane / 4;
    if (kind == FMC_BF16 || kind == FMC_F16 || kind == FMC_PAIR)
        return;
    fmc_put_words(l->q, fmc_words(body + 16 * lane));
    if (kind == FMC_Q8_0 || fmc_f8_of<kind>::yes)
        fmc_put_words(l->q + 4, fmc_words(body + 512 + 16 * lane));
    if (fmc_f8_of<kind>::yes)
        return;
    if (kind == FMC_Q6_K) {
        uint2 high = *(const uint2 *)(const void *)(body + 512 + 8 * lane);
        l->q[4] = high.x;
        l->q[5] = high.y;
    }
    const unsigned char *scales = body + (kind == FMC_Q8_0 ? 1024 : kind == FMC_Q6_K ? 768 : 512);
#pragma unroll
    for (unsigned h = 0; h < 2; h++) {
        uint32_t s = fmc_word(scales + 4 * (g + 8 * h));
        if (kind == FMC_Q6_K) {
            uint32_t pair = fmc_word(head + 4 * ((g + 8 * h) / 2));
            float d = fmc_from_f16(pair >> (g % 2 * 16));
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                l->scale[h][i] = d * (float)(int8_t)(s >> (8 * i));
                l->min[h][i] = l->scale[h][i] * -160.0f;
            }
            continue;
        }
        float d = 1.0f, dmin = 0.0f;
        uint32_t m = 0;
        if (kind == FMC_Q4_K) {
            uint32_t both = fmc_word(head + 4 * (g + 8 * h));
            d = fmc_from_f16(both);
            dmin = fmc_from_f16(both >> 16);
        }
        if (kind == FMC_Q4_1)
            m = fmc_word(scales + 64 + 4 * (g + 8 * h));
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            if (kind == FMC_Q4_K) {
                l->scale[h][i] = d * (float)(s >> (16 * i) & 255u);
                l->min[h][i] =
                    fmaf(l->scale[h][i], -128.0f, -(dmin * (float)(s >> (16 * i + 8) & 255u)));
            } else {
                l->scale[h][i] = fmc_from_f16(s >> (16 * i));
                l->min[h][i] = kind == FMC_Q4_1
                                   ? fmaf(l->scale[h][i], -128.0f, fmc_from_f16(m >> (16 * i)))
                                   : l->scale[h][i] * -136.0f;
            }
        }
    }
}

/* Turns two quants, 128 + q as bf16 in both halves, into their values rounded to bf16. */
FMC_DEVICE uint32_t fmc_values(uint32_t pair, float scale, float min)
{
    uint32_t biased = pair | 0x43004300u;
    float low = __uint_as_float(biased << 16), high = __uint_as_float(biased & 0xffff0000u);
    return fmc_pack_bf16(fmaf(low, scale, min), fmaf(high, scale, min));
}

/* Turns bytes at and at + 1 of a word, each + 128, into their values. */
FMC_DEVICE uint32_t fmc_bytes(uint32_t word, unsigned at, float scale)
{
    float low = __uint_as_float((word >> (8 * at) & 255u) | 0x4b000000u) - 8388736.0f;
    float high = __uint_as_float((word >> (8 * at + 8) & 255u) | 0x4b000000u) - 8388736.0f;
    return fmc_pack_bf16(low * scale, high * scale);
}

/* F8 at and at + 1 of a word as bf16, exactly: their bits are those of a bf16 with another exponent
 * bias, for subnormal ones too, so a power of two is the only factor. */
template <int kind> FMC_DEVICE uint32_t fmc_f8(uint32_t word, unsigned at)
{
    uint32_t pair = __byte_perm(word, 0, at ? 0x3424 : 0x1404); /* upper halves */
    uint32_t bits = kind == FMC_E4M3 ? pair >> 4 & 0x07f007f0u : pair >> 3 & 0x0fe00fe0u;
    return fmc_times_bf16((pair & 0x80008000u) | bits,
                          kind == FMC_E4M3 ? 0x7b807b80u : 0x77807780u); /* 2^120, 2^112 */
}

/* The first operand of mma for step 0 .. 3 of the tile; second: PAIR's other half. */
template <int kind>
FMC_DEVICE void fmc_operand(uint32_t a[4], const fmc_lane *l, const unsigned char *body,
                            unsigned lane, unsigned step, bool second)
{
    if (kind == FMC_BF16 || kind == FMC_F16 || kind == FMC_PAIR) {
        fmc_put_words(a, fmc_words(body + (second ? 2048 : 0) + 512 * step + 16 * lane));
        return;
    }
    unsigned at = kind == FMC_Q6_K ? step : step / 2;
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        unsigned h = i % 2;
        if (fmc_f8_of<kind>::yes) {
            a[i] = fmc_f8<kind>(l->q[4 * h + step], i & 2u);
        } else if (kind == FMC_Q8_0) {
            a[i] = fmc_bytes(l->q[4 * h + step], i & 2u, l->scale[h][at]);
        } else {
            uint32_t pair = l->q[step] >> (4 * i) & 0x000f000fu;
            if (kind == FMC_Q6_K)
                pair |= (l->q[4 + step / 2] >> (8 * (step % 2) + 2 * i) & 0x00030003u) << 4;
            a[i] = fmc_values(pair, l->scale[h][at], l->min[h][at]);
        }
    }
}

/* d += a b in the weight's type. */
template <int kind> FMC_DEVICE void fmc_mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    if (kind == FMC_F16)
        fmc_mma_f16(d, a, b);
    else
        fmc_mma_bf16(d, a, b);
}

#endif
