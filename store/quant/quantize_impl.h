/* quantize_impl.h - what quantize.c and quantize_k.c share; inside store only.
 *
 * Functions here are forced inline, with `how` a constant, so that each target (the baseline, and
 * x86 with AVX2 and FMA) gets its own loops from one source, with the same bits. */
#ifndef FM_STORE_QUANTIZE_IMPL_H
#define FM_STORE_QUANTIZE_IMPL_H

#include <math.h>
#include <string.h>

#include "store/quant/quantize.h"

#define FMS_INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__) && defined(__GNUC__)
#define FMS_QUANT_X86 1
#define FMS_TARGET_AVX2 __attribute__((target("avx2,fma")))
#endif

/* dst: blocks * block_bytes; src: blocks * block_elems. */
typedef void fms_quant_fn(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
                          fm_quant_variant how);
fms_quant_fn fms_quantize_k; /* Q4_K, Q5_K, Q6_K */
/* Without the CPU's extensions; a test compares the others with these. */
fms_quant_fn fms_quantize_32_base, fms_quantize_k_base;

FMS_INLINE uint32_t fms_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* a * b + c in one expression: one rounding where the compiler fuses, else two. */
FMS_INLINE float fms_mad(float a, float b, float c, fm_quant_variant how)
{
    return how != FM_QUANT_PLAIN ? fmaf(a, b, c) : a * b + c;
}

/* The same where the product and the sum stand in two statements. */
FMS_INLINE float fms_mad_apart(float a, float b, float c, fm_quant_variant how)
{
    return how == FM_QUANT_GCC ? fmaf(a, b, c) : a * b + c;
}

/* Rounds to nearest even by adding 1.5 * 2^23 and reading the low bits; for |v| > 2^22 the result
 * is whatever these bits are, as in ggml without assertions. */
#define FMS_NEAREST_ADD 12582912.0f
FMS_INLINE int32_t fms_nearest_of(float sum)
{
    return (int32_t)(fms_bits(sum) & 0x7fffffu) - 0x400000;
}

FMS_INLINE int32_t fms_nearest(float v)
{
    return fms_nearest_of(v + FMS_NEAREST_ADD);
}

FMS_INLINE int32_t fms_nearest_product(float a, float b, fm_quant_variant how)
{
    return fms_nearest_of(fms_mad_apart(a, b, FMS_NEAREST_ADD, how));
}

/* ggml's float16 of a NaN has no payload. */
FMS_INLINE uint16_t fms_half(float v)
{
    const uint16_t h = fm_f32_to_f16(v);
    return (h & 0x7fffu) > 0x7c00u ? (uint16_t)(h & 0xfe00u) : h;
}

#endif
