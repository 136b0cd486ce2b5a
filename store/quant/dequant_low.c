/* dequant_low.c - GGUF's ternary and binary types and its blocks of 4-bit floats to float32. */
#include "store/quant/dequant.h"

#include <string.h>

#define BLOCK 256u

/* ---- ternary: -1, 0 or 1 times the block's float16 scale ---- */

/* Five digits to base 3 lie in a byte as a fraction of 256: a digit is the whole part after the
 * fraction, moved by a power of three, is multiplied by 3. */
static float trit(uint8_t byte, unsigned digit, float d)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    const uint8_t moved = (uint8_t)(byte * power[digit]);
    return d * (float)((int)(moved * 3u >> 8) - 1);
}

/* 32 bytes of five digits, digit by digit, then 16 such, then four bytes of four digits. */
void fm_dequant_tq1_0(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 54, dst += BLOCK) {
        const float d = fm_f16_to_f32(fm_get_u16(src + 52));
        for (unsigned e = 0; e < 160; e++)
            dst[e] = trit(src[e % 32], e / 32, d);
        for (unsigned e = 0; e < 80; e++)
            dst[160 + e] = trit(src[32 + e % 16], e / 16, d);
        for (unsigned e = 0; e < 16; e++)
            dst[240 + e] = trit(src[48 + e % 4], e / 4, d);
    }
}

void fm_dequant_tq2_0(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 66, dst += BLOCK) {
        const float d = fm_f16_to_f32(fm_get_u16(src + 64));
        for (unsigned e = 0; e < BLOCK; e++)
            dst[e] = d * (float)((src[e / 128 * 32 + e % 32] >> e % 128 / 32 * 2 & 3) - 1);
    }
}

/* ---- one and two bits ---- */

/* The scale or its negative. */
void fm_dequant_q1_0(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 18, dst += 128) {
        const float d = fm_f16_to_f32(fm_get_u16(src));
        for (unsigned e = 0; e < 128; e++)
            dst[e] = src[2 + e / 8] >> e % 8 & 1 ? d : -d;
    }
}

/* -1, 0, 1 or 2 times the scale. */
void fm_dequant_q2_0(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 18, dst += 64) {
        const float d = fm_f16_to_f32(fm_get_u16(src));
        for (unsigned e = 0; e < 64; e++)
            dst[e] = d * (float)((src[2 + e / 4] >> e % 4 * 2 & 3) - 1);
    }
}

/* ---- 4-bit floats (E2M1, doubled to whole numbers) times a small float ---- */

static const float e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Half of 2^(x - 127), which pays for the doubled values. */
static float half_power(uint8_t x)
{
    const uint32_t bits = x < 2 ? 0x00200000u << x : (uint32_t)(x - 1) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

void fm_dequant_mxfp4(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 17, dst += 32) {
        const float d = half_power(src[0]);
        for (unsigned e = 0; e < 32; e++)
            dst[e] = d * e2m1[src[1 + e % 16] >> e / 16 * 4 & 15];
    }
}

/* Half of an E4M3 without sign; 0x7f, which would be NaN, is 0. */
static float half_ue4m3(uint8_t x)
{
    const unsigned exponent = x >> 3 & 15u, mantissa = x & 7u;

    if (x == 0 || x == 0x7f)
        return 0.0f;
    if (exponent == 0)
        return (float)mantissa * 0x1p-10f;
    return (float)(8 + mantissa) * 0x1p-11f * (float)(1u << exponent);
}

/* Four scales, then four times 8 bytes of 16 elements, the low nibbles first. */
void fm_dequant_nvfp4(float *dst, const uint8_t *src, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, src += 36, dst += 64)
        for (unsigned e = 0; e < 64; e++)
            dst[e] =
                half_ue4m3(src[e / 16]) * e2m1[src[4 + e / 16 * 8 + e % 8] >> e % 16 / 8 * 4 & 15];
}
