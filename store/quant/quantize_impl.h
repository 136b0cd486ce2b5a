/* quantize_impl.h - what quantize.c and quantize_k.c share; inside store only.
 *
 * Functions here are forced inline with `how` a constant, so that each target (the baseline, and
 * x86 with AVX2 and FMA) gets its own loops from one text and the same bits. */
#ifndef FM_STORE_QUANTIZE_IMPL_H
#define FM_STORE_QUANTIZE_IMPL_H

#include <math.h>
#include <string.h>

#include "store/quant/quantize.h"

#define FMI_INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__) && defined(__GNUC__)
#define FMI_QUANT_X86 1
#define FMI_TARGET_AVX2 __attribute__((target("avx2,fma")))
#endif

/* dst: blocks * block_bytes; src: blocks * block_elems. */
typedef void fmi_quant_fn(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
                          fm_quant_variant how);
fmi_quant_fn fmi_quantize_k; /* Q4_K, Q5_K, Q6_K */
/* Without the CPU's extensions: what a test compares the fast ones with. */
fmi_quant_fn fmi_quantize_32_base, fmi_quantize_k_base;

FMI_INLINE uint32_t fmi_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* a * b + c in one expression: two roundings, or one. */
FMI_INLINE float fmi_mad(float a, float b, float c, fm_quant_variant how)
{
    return how != FM_QUANT_PLAIN ? fmaf(a, b, c) : a * b + c;
}

/* The same where the product and the sum stand in two statements. */
FMI_INLINE float fmi_mad_apart(float a, float b, float c, fm_quant_variant how)
{
    return how == FM_QUANT_GCC ? fmaf(a, b, c) : a * b + c;
}

/* Rounding to nearest even by adding 1.5 * 2^23 and reading the low bits; what comes out for
 * |v| > 2^22 is whatever those bits are, as in ggml without assertions. */
#define FMI_NEAREST_ADD 12582912.0f
FMI_INLINE int32_t fmi_nearest_of(float sum)
{
    return (int32_t)(fmi_bits(sum) & 0x7fffffu) - 0x400000;
}

FMI_INLINE int32_t fmi_nearest(float v)
{
    return fmi_nearest_of(v + FMI_NEAREST_ADD);
}

FMI_INLINE int32_t fmi_nearest_product(float a, float b, fm_quant_variant how)
{
    return fmi_nearest_of(fmi_mad_apart(a, b, FMI_NEAREST_ADD, how));
}

/* ggml's float16 of a NaN has no payload. */
FMI_INLINE uint16_t fmi_half(float v)
{
    const uint16_t h = fm_f32_to_f16(v);
    return (h & 0x7fffu) > 0x7c00u ? (uint16_t)(h & 0xfe00u) : h;
}

#endif
