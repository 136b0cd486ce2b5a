/* dequant_k.c - GGUF's 256-element "K" block types to float32.
 *
 * A block has float16 super-scales and small integer scales for its 8 or 16 sub-blocks; the
 * product super-scale x scale is rounded to float32 before it meets the element, as in ggml. */
#include "store/quant/dequant.h"

#include <string.h>

#define BLOCK 256u
#define SUB 32u

/* 8 pairs of 6-bit (scale, min) in 12 bytes: pairs 0-3 in the low six bits of bytes j and j + 4;
 * pairs 4-7 have their low nibbles in byte j + 4, the high two bits atop bytes j - 4 and j. */
static void scale_min(const uint8_t *s, unsigned j, unsigned *scale, unsigned *min)
{
    if (j < 4) {
        *scale = s[j] & 63u;
        *min = s[j + 4] & 63u;
    } else {
        *scale = (s[j + 4] & 15u) | (unsigned)(s[j - 4] >> 6) << 4;
        *min = (unsigned)(s[j + 4] >> 4) | (unsigned)(s[j] >> 6) << 4;
    }
}

/* 16 pairs of nibbles (scale, min) of 16 elements, then 64 bytes of bit pairs. */
void fm_dequant_q2_k(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 84, dst += BLOCK) {
        const float d = fm_f16_to_f32(fm_get_u16(src + 80));
        const float dmin = fm_f16_to_f32(fm_get_u16(src + 82));
        for (unsigned e = 0; e < BLOCK; e++) {
            const uint8_t sm = src[e / 16];
            const unsigned v =
                (unsigned)src[16 + e / 128 * SUB + e % SUB] >> e % 128 / SUB * 2 & 3u;
            const float ds = d * (float)(sm & 15), ms = dmin * (float)(sm >> 4);
            dst[e] = ds * (float)v - ms;
        }
    }
}

/* 32 bytes of third bits (set: 4 is not taken off), 64 of bit pairs, 16 scales of six bits: the low
 * nibbles of scales 0-7 and 8-15 in bytes 0-7, then the high pairs of j, j + 4, j + 8, j + 12. */
void fm_dequant_q3_k(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 110, dst += BLOCK) {
        const float d = fm_f16_to_f32(fm_get_u16(src + 108));
        const uint8_t *s = src + 96;
        for (unsigned e = 0; e < BLOCK; e++) {
            const unsigned j = e / 16;
            const unsigned scale = (s[j % 8] >> j / 8 * 4 & 15u) | (s[8 + j % 4] >> j / 4 * 2 & 3u)
                                                                       << 4;
            const unsigned low =
                (unsigned)src[32 + e / 128 * SUB + e % SUB] >> e % 128 / SUB * 2 & 3u;
            const unsigned third = (unsigned)src[e % SUB] >> e / SUB & 1u;
            const float ds = d * (float)((int)scale - 32);
            dst[e] = ds * (float)((int)low - (third ? 0 : 4));
        }
    }
}

void fm_dequant_q4_k(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 144, dst += BLOCK) {
        const float d = fm_f16_to_f32(fm_get_u16(src));
        const float dmin = fm_f16_to_f32(fm_get_u16(src + 2));
        for (unsigned j = 0; j < 8; j++) {
            const uint8_t *q = src + 16 + j / 2 * SUB; /* 32 bytes hold two sub-blocks */
            const unsigned shift = j % 2 * 4;
            unsigned sc, m;
            scale_min(src + 4, j, &sc, &m);
            const float ds = d * (float)sc, ms = dmin * (float)m;
            for (unsigned i = 0; i < SUB; i++)
                dst[j * SUB + i] = ds * (float)(q[i] >> shift & 15) - ms;
        }
    }
}

void fm_dequant_q5_k(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 176, dst += BLOCK) {
        const float d = fm_f16_to_f32(fm_get_u16(src));
        const float dmin = fm_f16_to_f32(fm_get_u16(src + 2));
        const uint8_t *high = src + 16; /* bit j of byte i: fifth bit of element i of sub-block j */
        for (unsigned j = 0; j < 8; j++) {
            const uint8_t *q = src + 48 + j / 2 * SUB;
            const unsigned shift = j % 2 * 4;
            unsigned sc, m;
            scale_min(src + 4, j, &sc, &m);
            const float ds = d * (float)sc, ms = dmin * (float)m;
            for (unsigned i = 0; i < SUB; i++) {
                const unsigned v = (q[i] >> shift & 15u) | (high[i] >> j & 1u) << 4;
                dst[j * SUB + i] = ds * (float)v - ms;
            }
        }
    }
}

/* 128 low nibbles, 64 bytes of high bit pairs, 16 signed scales of 16 elements, one super-scale.
 * Each half of 128 elements uses 64 low bytes and 32 high bytes. */
void fm_dequant_q6_k(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 210, dst += BLOCK) {
        const float d = fm_f16_to_f32(fm_get_u16(src + 208));
        for (unsigned e = 0; e < BLOCK; e++) {
            const unsigned half = e / 128, quarter = e % 128 / SUB, i = e % SUB;
            const uint8_t low = src[half * 64 + quarter % 2 * SUB + i];
            const uint8_t high = src[128 + half * SUB + i];
            const unsigned v =
                (quarter < 2 ? low & 15u : (unsigned)low >> 4) | (high >> (2 * quarter) & 3u) << 4;
            const float ds = d * (float)(int8_t)src[192 + e / 16];
            dst[e] = ds * (float)((int)v - 32);
        }
    }
}

/* A float32 scale and 256 bytes; the sums that follow serve products alone. */
void fm_dequant_q8_k(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 292, dst += BLOCK) {
        float d;
        memcpy(&d, src, sizeof d);
        for (unsigned e = 0; e < BLOCK; e++)
            dst[e] = d * (float)(int8_t)src[4 + e];
    }
}
