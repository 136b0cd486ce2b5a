/* int8.h - products of whole numbers in mode fast: x rounded to int8, and the first operand of mma,
 * made from the tiles of tile.h.
 *
 * The sum is that of mode fast on a CPU (KERNELS.md), bit for bit: for each block of 32 k the
 * product of int8 is exact in any order, so mma's order does not matter; then there is one fmaf for
 * each block, ascending from +0. The k of mma are assigned as in the tiles: a lane has 2t, 2t + 8,
 * 2t + 1, 2t + 9 of each 16 k of both operands.
 *
 * A tile of x, 8 rows by 64 k: 16 bytes a lane, four elements of each step; then for each row the
 * scales of both blocks of 32. */
#ifndef FM_INFER_CUDA_FAST_INT8_H
#define FM_INFER_CUDA_FAST_INT8_H

#include "infer/cuda/mma/tile.h"

/* A whole number from here on is the float 1.5 * 2^23 + it: exact below 2^22. */
#define FMC_WHOLE_START 0x4b400000
#define FMC_WHOLE_ZERO 12582912.0f

/* The start of mma's sums, so that their bits are those of a float: that float minus `zero` is the
 * dot product. Q4_0's first operand is 16 times its value, so its start is 2^-4 of the others' and
 * its steps are sixteenths. */
template <int kind> struct fmc_dot_of {
    static constexpr int32_t start = kind == FMC_Q4_0 ? 0x49400000 : FMC_WHOLE_START;
    static constexpr float zero = kind == FMC_Q4_0 ? 786432.0f : FMC_WHOLE_ZERO;
};

template <int kind> FMC_DEVICE float fmc_dot(int32_t d)
{
    return __uint_as_float((uint32_t)d) - fmc_dot_of<kind>::zero;
}

/* Element e of the eight that a lane has of a block of 32. */
FMC_DEVICE uint32_t fmc_k8(unsigned t, unsigned e)
{
    return 16 * (e / 4) + 2 * t + 8 * (e % 2) + e / 2 % 2;
}

/* Rounds a block of 32 of x, eight elements by each lane of a quad, to two words; returns its
 * scale: 0 for a block below 2^-100, NaN where an element is not finite. */
FMC_DEVICE float fmc_quantise(uint32_t q[2], const float v[8])
{
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t bits = __float_as_uint(v[i]) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
#pragma unroll
    for (int by = 1; by < 4; by *= 2) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, most, by);
        most = other > most ? other : most;
    }
    float amax = __uint_as_float(most);
    q[0] = q[1] = 0;
    if (most >= 0x7f800000u)
        return __uint_as_float(0x7fc00000u);
    if (amax < 0x1p-100f)
        return 0.0f;
    float r = 127.0f / amax;
#pragma unroll
    for (int i = 0; i < 8; i++) /* to nearest even; the low byte of the sum's bits is the quant */
        q[i / 4] |= (__float_as_uint(v[i] * r + FMC_WHOLE_ZERO) & 255u) << (8 * (i % 4));
    return amax / 127.0f;
}

/* A lane's part of a tile of W (or of 64 k of blocks with minima, to be read back): quants, and
 * their scales and minima by block of 32. */
typedef struct fmc_lane8 {
    uint32_t q[8];
    float scale[2][2], min[2][2]; /* [output g, g + 8][block] */
} fmc_lane8;

template <int kind>
FMC_DEVICE void fmc_lane8_load(fmc_lane8 *l, const unsigned char *head, const unsigned char *body,
                               unsigned lane)
{
    const unsigned char *scales = body + (kind == FMC_Q8_0 ? 1024 : 512);
    fmc_put_words(l->q, fmc_words(body + 16 * lane));
    if (kind == FMC_Q8_0)
        fmc_put_words(l->q + 4, fmc_words(body + 512 + 16 * lane));
#pragma unroll
    for (unsigned h = 0; h < 2; h++) {
        unsigned output = lane / 4 + 8 * h;
        uint32_t s = fmc_word(scales + 4 * output), m = 0;
        float d = 0.0f, dmin = 0.0f;
        if (kind == FMC_Q4_1)
            m = fmc_word(scales + 64 + 4 * output);
        if (kind == FMC_Q4_K) {
            uint32_t both = fmc_word(head + 4 * output);
            d = fmc_from_f16(both);
            dmin = fmc_from_f16(both >> 16);
        }
#pragma unroll
        for (unsigned b = 0; b < 2; b++) {
            if (kind == FMC_Q4_K) {
                l->scale[h][b] = d * (float)(s >> (16 * b) & 255u);
                l->min[h][b] = -(dmin * (float)(s >> (16 * b + 8) & 255u));
            } else {
                l->scale[h][b] = fmc_from_f16(s >> (16 * b));
                l->min[h][b] = kind == FMC_Q4_1 ? fmc_from_f16(m >> (16 * b)) : 0.0f;
            }
        }
    }
}

/* The first operand of the mma over block 0 or 1 of the tile; for Q4_0 times 16. */
template <int kind> FMC_DEVICE void fmc_operand8(uint32_t a[4], const fmc_lane8 *l, unsigned block)
{
#pragma unroll
    for (unsigned i = 0; i < 2; i++) {
        unsigned step = 2 * block + i;
        uint32_t q = l->q[step];
        if (kind == FMC_Q8_0) { /* k 2t, 2t + 1, 2t + 8, 2t + 9 */
            a[2 * i] = __byte_perm(q, 0, 0x3120) ^ 0x80808080u;
            a[2 * i + 1] = __byte_perm(l->q[4 + step], 0, 0x3120) ^ 0x80808080u;
        } else {
            a[2 * i] = (q << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
            a[2 * i + 1] = (q & 0xf0f0f0f0u) ^ 0x80808080u;
        }
    }
}

#endif
