/* attend.h - parts of attention on tensor cores: a warp has 16 rows of queries (or of positions),
 * tiles of the other side are in shared memory as lines of 16-bit elements.
 *
 * Fragments are mma's: of 16 rows by 8 columns a thread has rows g, g + 8 (g = lane / 4) and
 * columns 2 t, 2 t + 1 (t = lane % 4), so four floats. The sums of a product are the next product's
 * first operand without a shuffle. */
#ifndef FM_INFER_CUDA_FAST_ATTEND_H
#define FM_INFER_CUDA_FAST_ATTEND_H

#include "infer/cuda/exact/attend.h"
#include "infer/cuda/lanes.h"
#include "infer/cuda/ptx.h"

#define FMC_LOG2E 0x1.715476p+0f
#define FMC_WARP_ROWS 16u

template <int HD> struct tiles {
    static constexpr uint32_t positions = HD <= 128 ? 64 : 32;
    static constexpr uint32_t ld = HD * 2 + 16; /* bytes: adjacent lines are in different banks */
    static constexpr uint32_t matrix = positions * ld;
};

/* A warp's 16 lines of HD elements as first operand: in registers, or read again each time. */
template <int HD, bool KEPT> struct lines16 {
    uint32_t f[KEPT ? HD / 16 : 1][4];
    const unsigned char *at; /* address of the first line; KEPT: unused */
};

template <int HD> FMC_DEVICE void read_lines(uint32_t a[4], const unsigned char *at, uint32_t k)
{
    uint32_t lane = threadIdx.x % 32;
    fmc_load_matrix4(a, at + lane % 16 * tiles<HD>::ld + lane / 16 * 16 + 32 * k);
}

/* Sets the lines from shared memory, which must stay unchanged unless KEPT. */
template <int HD, bool KEPT>
FMC_DEVICE void set_lines(lines16<HD, KEPT> *a, const unsigned char *from)
{
    a->at = from;
    if constexpr (KEPT) {
#pragma unroll
        for (uint32_t k = 0; k < HD / 16; k++)
            read_lines<HD>(a->f[k], from, k);
    }
}

/* Elements 16 k .. as first operand. */
template <int HD, bool KEPT>
FMC_DEVICE void get_lines(uint32_t f[4], const lines16<HD, KEPT> *a, uint32_t k)
{
    if constexpr (KEPT) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            f[i] = a->f[k][i];
    } else {
        read_lines<HD>(f, a->at, k);
    }
}

/* s[4 n ..]: products of the warp's lines with lines 8 n .. of b, over HD. */
template <int HD, int LINES, bool F16, bool KEPT>
FMC_DEVICE void line_products(float s[LINES / 2], const lines16<HD, KEPT> *a,
                              const unsigned char *b)
{
    uint32_t lane = threadIdx.x % 32;
    const unsigned char *from = b + (lane / 16 * 8 + lane % 8) * tiles<HD>::ld + lane / 8 % 2 * 16;
#pragma unroll
    for (int i = 0; i < LINES / 2; i++)
        s[i] = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < HD / 16; k++) {
        uint32_t f[4];
        get_lines(f, a, k);
#pragma unroll
        for (uint32_t n = 0; n < LINES / 16; n++) {
            uint32_t m[4];
            fmc_load_matrix4(m, from + 16 * n * tiles<HD>::ld + 32 * k);
            if constexpr (F16) {
                fmc_mma_f16(s + 8 * n, f, m);
                fmc_mma_f16(s + 8 * n + 4, f, m + 2);
            } else {
                fmc_mma_bf16(s + 8 * n, f, m);
                fmc_mma_bf16(s + 8 * n + 4, f, m + 2);
            }
        }
    }
}

/* Sums of lines 16 k .. as bf16 first operand. */
FMC_DEVICE void weights_operand(uint32_t p[4], const float *s, uint32_t k)
{
    p[0] = fmc_pack_bf16(s[8 * k], s[8 * k + 1]);
    p[1] = fmc_pack_bf16(s[8 * k + 2], s[8 * k + 3]);
    p[2] = fmc_pack_bf16(s[8 * k + 4], s[8 * k + 5]);
    p[3] = fmc_pack_bf16(s[8 * k + 6], s[8 * k + 7]);
}

/* o[4 n ..] += weights of LINES lines times their elements 8 n .. of OUT. */
template <int HD, int LINES, int OUT>
FMC_DEVICE void add_lines(float o[OUT / 2], const float s[LINES / 2], const unsigned char *lines)
{
    uint32_t lane = threadIdx.x % 32;
    const unsigned char *from = lines + lane % 16 * tiles<HD>::ld + lane / 16 * 16;
#pragma unroll
    for (uint32_t k = 0; k < LINES / 16; k++) {
        uint32_t p[4];
        weights_operand(p, s, k);
#pragma unroll
        for (uint32_t n = 0; n < OUT / 16; n++) {
            uint32_t b[4];
            fmc_load_matrix4_t(b, from + 16 * k * tiles<HD>::ld + 32 * n);
            fmc_mma_bf16(o + 8 * n, p, b);
            fmc_mma_bf16(o + 8 * n + 4, p, b + 2);
        }
    }
}

/* A split's part for this warp's 16 rows: o[4 n ..] in mma's layout, columns 8 n ..; l is the first
 * column of the product with ones. */
template <int HD> struct part {
    float o[HD / 2], l[4];
    float m[2];
};

template <int HD> FMC_DEVICE void clear_sums(part<HD> *s)
{
#pragma unroll
    for (int i = 0; i < HD / 2; i++)
        s->o[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++)
        s->l[i] = 0.0f;
}

template <int HD> FMC_DEVICE void clear_part(part<HD> *s)
{
    clear_sums(s);
    s->m[0] = s->m[1] = -INFINITY;
}

/* tanh within 2e-7, absolute. */
FMC_DEVICE float cap_tanh(float x)
{
    return 1.0f - 2.0f / (1.0f + fmc_exp2(2.0f * FMC_LOG2E * x));
}

/* Updates the maxima and turns scores into weights; f: the sums' factor, for rows g and g + 8. */
template <int HD>
FMC_DEVICE void weigh_scores(part<HD> *part, float s[tiles<HD>::positions / 2], float f[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float m = part->m[i];
#pragma unroll
        for (uint32_t n = 0; n < tiles<HD>::positions / 8; n++)
            m = fmaxf(s[4 * n + 2 * i], fmaxf(s[4 * n + 2 * i + 1], m)); /* ignores NaN */
        m = fmaxf(__shfl_xor_sync(0xffffffffu, m, 1), m);
        m = fmaxf(__shfl_xor_sync(0xffffffffu, m, 2), m);
        float safe = m == -INFINITY ? 0.0f : m;
        f[i] = fmc_exp2(part->m[i] - safe);
        part->m[i] = m;
#pragma unroll
        for (uint32_t n = 0; n < tiles<HD>::positions / 8; n++) {
            s[4 * n + 2 * i] = fmc_exp2(s[4 * n + 2 * i] - safe);
            s[4 * n + 2 * i + 1] = fmc_exp2(s[4 * n + 2 * i + 1] - safe);
        }
    }
}

template <int HD> FMC_DEVICE void scale_part(part<HD> *part, const float f[2])
{
#pragma unroll
    for (int i = 0; i < HD / 2; i++)
        part->o[i] = part->o[i] * f[i / 2 % 2];
#pragma unroll
    for (int i = 0; i < 4; i++)
        part->l[i] = part->l[i] * f[i / 2];
}

template <int HD> FMC_DEVICE void soften(part<HD> *part, float s[tiles<HD>::positions / 2])
{
    float f[2];
    weigh_scores(part, s, f);
    scale_part(part, f);
}

/* o, l += the weights times the tile's values, and times ones. */
template <int HD>
FMC_DEVICE void add_values(part<HD> *part, const float s[tiles<HD>::positions / 2],
                           const unsigned char *values)
{
    const uint32_t ones[2] = {0x3f803f80u, 0x3f803f80u};
#pragma unroll
    for (uint32_t k = 0; k < tiles<HD>::positions / 16; k++) {
        uint32_t p[4];
        weights_operand(p, s, k);
        fmc_mma_bf16(part->l, p, ones);
    }
    add_lines<HD, tiles<HD>::positions, HD>(part->o, s, values);
}

/* ---- data that distinguish one rounding from another ---- */

FMC_DEVICE uint32_t fmc_hash(uint32_t a, uint32_t b)
{
    uint32_t h = a * 2654435761u ^ b * 2246822519u;
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    return h ^ h >> 16;
}

/* 1 .. 2 times 2^-i, i below `sizes`, of either sign. */
FMC_DEVICE float fmc_telling(uint32_t h, uint32_t sizes)
{
    return __uint_as_float((h & 0x807fffffu) | (127u - (h >> 24) % sizes) << 23);
}

#endif
