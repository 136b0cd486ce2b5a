/* quantize_impl.h - what the files of the quantizers share; inside store only.
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
FMS_INLINE bool fms_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

/* dst: blocks * block_bytes; src: blocks * block_elems. */
typedef void fms_quant_fn(uint8_t *dst, fm_dtype type, const float *src, uint64_t blocks,
                          fm_quant_variant how);
fms_quant_fn fms_quantize_k; /* Q4_K, Q5_K, Q6_K */
/* Without the CPU's extensions; a test compares the others with these. */
fms_quant_fn fms_quantize_32_base, fms_quantize_k_base;

/* A row of elems floats, whole blocks, without fusing. importance: elems weights, or NULL where it
 * says so. */
typedef void fms_gguf_fn(uint8_t *dst, fm_dtype type, const float *src, uint64_t elems,
                         const float *importance);
fms_gguf_fn fms_weighted_k;      /* Q4_K, Q5_K, Q6_K */
fms_gguf_fn fms_weighted_32;     /* Q4_0, Q4_1, Q5_0, Q5_1; IQ4_NL, or NULL */
fms_gguf_fn fms_quantize_low;    /* Q2_K, Q3_K, or NULL */
fms_gguf_fn fms_quantize_iq4_xs; /* or NULL */
fms_gguf_fn fms_weighted_k_base, fms_weighted_32_base, fms_quantize_low_base;
fms_gguf_fn fms_quantize_iq4_xs_base;

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

/* Two codes a byte: element i of 32 low, element i + 16 high. */
FMS_INLINE void fms_nibbles(uint8_t *dst, const uint8_t *code)
{
    for (unsigned i = 0; i < 16; i++)
        dst[i] = (uint8_t)((code[i] & 15u) | (unsigned)code[i + 16] << 4);
}

/* Bit 4 of each of 32 codes. */
FMS_INLINE uint32_t fms_fifth_bits(const uint8_t *code)
{
    uint32_t high = 0;

    for (unsigned i = 0; i < 32; i++)
        high |= (uint32_t)(code[i] >> 4 & 1u) << i;
    return high;
}

/* ggml's float16 of a NaN has no payload. */
FMS_INLINE uint16_t fms_half(float v)
{
    const uint16_t h = fm_f32_to_f16(v);
    return (h & 0x7fffu) > 0x7c00u ? (uint16_t)(h & 0xfe00u) : h;
}

#endif
