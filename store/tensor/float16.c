/* float16.c - float16, bfloat16 and float8 to float32 and back, by integer arithmetic.
 *
 * So the bits do not depend on the CPU's conversion instructions. Widening is exact and keeps NaN
 * payloads; narrowing rounds to nearest, ties to even, and makes a signalling NaN quiet. */
#include "store/tensor/float16.h"

#include <string.h>

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

float fm_bf16_to_f32(uint16_t v)
{
    return from_bits((uint32_t)v << 16);
}

uint16_t fm_f32_to_bf16(float v)
{
    const uint32_t u = to_bits(v);

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u); /* a payload in the low half must not become infinity */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float fm_f16_to_f32(uint16_t v)
{
    const uint32_t sign = (uint32_t)(v & 0x8000u) << 16;
    const uint32_t exp = v >> 10 & 31u, frac = v & 0x3ffu;

    if (exp == 31)
        return from_bits(sign | 0x7f800000u | frac << 13);
    if (exp != 0)
        return from_bits(sign | (exp + 112u) << 23 | frac << 13);
    /* Subnormal or zero: frac * 2^-24, exact in float32. */
    const float mag = (float)frac * 0x1p-24f;
    return from_bits(sign | to_bits(mag));
}

/* Bits of a float16 below the normal range: the magnitude in units of 2^-24, rounded to even. */
static uint32_t f16_subnormal(uint32_t mag)
{
    const uint32_t exp = mag >> 23;

    if (exp < 102) /* below half of the smallest subnormal; 2^-25 itself is exp 102, a tie to 0 */
        return 0;
    const uint32_t frac = (mag & 0x7fffffu) | 0x800000u;
    const uint32_t shift = 126u - exp; /* 14 .. 24 */
    const uint32_t half = 1u << (shift - 1), rest = frac & ((1u << shift) - 1);
    const uint32_t q = frac >> shift;
    return q + (rest > half || (rest == half && (q & 1u)));
}

uint16_t fm_f32_to_f16(float v)
{
    const uint32_t u = to_bits(v), mag = u & 0x7fffffffu;
    const uint32_t sign = u >> 16 & 0x8000u;

    if (mag > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (mag >> 13 & 0x1ffu));
    if (mag >= 0x477ff000u) /* 65520: halfway to 2^16 rounds to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (mag < 0x38800000u) /* 2^-14 */
        return (uint16_t)(sign | f16_subnormal(mag));
    return (uint16_t)(sign | (mag - 0x38000000u + 0xfffu + (mag >> 13 & 1u)) >> 13);
}

/* E4M3 as ML uses it: bias 7, no infinity, NaN only where all bits but the sign are one. */
static float e4m3_to_f32(uint8_t v)
{
    const uint32_t sign = (uint32_t)(v & 0x80u) << 24;
    const uint32_t exp = v >> 3 & 15u, frac = v & 7u;

    if ((v & 0x7fu) == 0x7fu)
        return from_bits(sign | 0x7fc00000u);
    if (exp != 0)
        return from_bits(sign | (exp + 120u) << 23 | frac << 20);
    return from_bits(sign | to_bits((float)frac * 0x1p-9f));
}

fm_status fms_widen_plain(float *dst, fm_dtype dtype, const uint8_t *src, uint64_t n)
{
    if (dtype == FM_F32) {
        memcpy(dst, src, n * sizeof *dst);
    } else if (dtype == FM_BF16) {
        for (uint64_t i = 0; i < n; i++)
            dst[i] = fm_bf16_to_f32(fm_get_u16(src + 2 * i));
    } else if (dtype == FM_F16) {
        for (uint64_t i = 0; i < n; i++)
            dst[i] = fm_f16_to_f32(fm_get_u16(src + 2 * i));
    } else if (dtype == FM_F8_E4M3) {
        for (uint64_t i = 0; i < n; i++)
            dst[i] = e4m3_to_f32(src[i]);
    } else if (dtype == FM_F8_E5M2) {
        for (uint64_t i = 0; i < n; i++) /* E5M2 is the upper byte of a float16 */
            dst[i] = fm_f16_to_f32((uint16_t)(src[i] << 8));
    } else {
        return fm_fail(FM_EUNSUPPORTED, "%s values cannot be widened to float32",
                       fm_dtype_get(dtype)->name);
    }
    return FM_OK;
}

fm_status fm_from_f32(void *dst, fm_dtype dtype, const float *src, uint64_t n)
{
    uint8_t *out = dst;

    if (dtype == FM_F32) {
        if (n > 0)
            memcpy(out, src, n * sizeof *src);
    } else if (dtype == FM_BF16) {
        for (uint64_t i = 0; i < n; i++)
            fm_put_u16(out + 2 * i, fm_f32_to_bf16(src[i]));
    } else if (dtype == FM_F16) {
        for (uint64_t i = 0; i < n; i++)
            fm_put_u16(out + 2 * i, fm_f32_to_f16(src[i]));
    } else {
        return fm_fail(FM_EUNSUPPORTED, "cannot round float32 to %s; use F32, BF16 or F16",
                       fm_dtype_get(dtype)->name);
    }
    return FM_OK;
}
