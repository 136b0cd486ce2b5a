/* vec.h - sixteen floats as one value, with the same bits in four instruction sets.
 *
 * Every operation here is one correctly rounded IEEE operation per lane (or a selection), so code
 * written on it gives the same result with AVX-512, AVX2 + FMA, NEON and plain C; exp is built from
 * them. The kernel sources are compiled once per instruction set, with FMI_ISA_* naming it; nothing
 * here may have external linkage. vf_max(a, b) is a > b ? a : b and vf_min likewise: where either
 * is NaN the second operand is the result. */
#ifndef FM_INFER_CPU_VEC_H
#define FM_INFER_CPU_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define FMI_INLINE static inline __attribute__((always_inline, unused))
/* Plain C lanes are loops; inlining them into unrolled tiles takes the compiler minutes, and many
 * more with a sanitizer's checks, so they are calls. */
#if defined(FMI_CALLED_LANES)
#define FMI_LANES static __attribute__((noinline, unused))
#else
#define FMI_LANES FMI_INLINE
#endif
#define VF_LANES 16u

/* The variant that is being compiled, and the name of its table, which begins with stem. */
#if defined(FMI_FAST_BF16)
#define FMI_VARIANT avx512bf16
#elif defined(FMI_FAST_VNNI)
#define FMI_VARIANT avx512vnni
#elif defined(FMI_ISA_AVX512)
#define FMI_VARIANT avx512
#elif defined(FMI_ISA_AVX2)
#define FMI_VARIANT avx2
#elif defined(FMI_ISA_NEON)
#define FMI_VARIANT neon
#else
#define FMI_VARIANT generic
#endif
#define FMI_JOIN_(a, b) a##b
#define FMI_JOIN(a, b) FMI_JOIN_(a, b)
#define FMI_TABLE(stem) FMI_JOIN(stem, FMI_VARIANT)
#define FMI_TEXT_(x) #x
#define FMI_TEXT(x) FMI_TEXT_(x)
#define FMI_ISA FMI_TEXT(FMI_VARIANT)

#if defined(FMI_ISA_AVX512)
#include <immintrin.h>

typedef __m512 vf;

FMI_INLINE vf vf_set1(float v)
{
    return _mm512_set1_ps(v);
}
FMI_INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
FMI_INLINE void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}
/* The first n lanes, 1 <= n <= 16; the others load as 0 and are not stored. */
FMI_INLINE vf vf_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
}
FMI_INLINE void vf_store_n(float *p, vf v, uint32_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), v);
}
FMI_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
FMI_INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
FMI_INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
FMI_INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
FMI_INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
FMI_INLINE vf vf_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}
FMI_INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
FMI_INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
/* a > b ? x : y */
FMI_INLINE vf vf_pick(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
}
/* 2^n of lanes t = n + 1.5 * 2^23, n a whole number in [-126, 127]: the mantissa's low bits hold
 * n, and everything else is shifted out. */
FMI_INLINE vf vf_pow2_biased(vf t)
{
    __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3f800000)));
}

#elif defined(FMI_ISA_AVX2)
#include <immintrin.h>

typedef struct vf {
    __m256 lo, hi;
} vf;

FMI_INLINE vf vf_set1(float v)
{
    return (vf){_mm256_set1_ps(v), _mm256_set1_ps(v)};
}
FMI_INLINE vf vf_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
FMI_INLINE void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}
#define FMI_VF2(name, op)                                                                          \
    FMI_INLINE vf name(vf a, vf b)                                                                 \
    {                                                                                              \
        return (vf){op(a.lo, b.lo), op(a.hi, b.hi)};                                               \
    }
FMI_VF2(vf_add, _mm256_add_ps)
FMI_VF2(vf_sub, _mm256_sub_ps)
FMI_VF2(vf_mul, _mm256_mul_ps)
FMI_VF2(vf_div, _mm256_div_ps)
FMI_VF2(vf_max, _mm256_max_ps)
FMI_VF2(vf_min, _mm256_min_ps)
#undef FMI_VF2
FMI_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return (vf){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
FMI_INLINE vf vf_sqrt(vf a)
{
    return (vf){_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)};
}
FMI_INLINE vf vf_pick(vf a, vf b, vf x, vf y)
{
    return (vf){_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ)),
                _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))};
}
FMI_INLINE __m256 vf_pow2_half(__m256 t)
{
    __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3f800000)));
}
FMI_INLINE vf vf_pow2_biased(vf t)
{
    return (vf){vf_pow2_half(t.lo), vf_pow2_half(t.hi)};
}

#elif defined(FMI_ISA_NEON)
#include <arm_neon.h>

typedef struct vf {
    float32x4_t q[4];
} vf;

FMI_INLINE vf vf_set1(float v)
{
    float32x4_t q = vdupq_n_f32(v);
    return (vf){{q, q, q, q}};
}
FMI_INLINE vf vf_load(const float *p)
{
    return (vf){{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
FMI_INLINE void vf_store(float *p, vf v)
{
    for (uint32_t i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, v.q[i]);
}
#define FMI_VF2(name, expr)                                                                        \
    FMI_INLINE vf name(vf a, vf b)                                                                 \
    {                                                                                              \
        vf r;                                                                                      \
        for (uint32_t i = 0; i < 4; i++)                                                           \
            r.q[i] = expr;                                                                         \
        return r;                                                                                  \
    }
FMI_VF2(vf_add, vaddq_f32(a.q[i], b.q[i]))
FMI_VF2(vf_sub, vsubq_f32(a.q[i], b.q[i]))
FMI_VF2(vf_mul, vmulq_f32(a.q[i], b.q[i]))
FMI_VF2(vf_div, vdivq_f32(a.q[i], b.q[i]))
/* Not vmaxq: where one operand is NaN the second is wanted. */
FMI_VF2(vf_max, vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]))
FMI_VF2(vf_min, vbslq_f32(vcltq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]))
#undef FMI_VF2
FMI_INLINE vf vf_fma(vf a, vf b, vf c)
{
    vf r;
    for (uint32_t i = 0; i < 4; i++)
        r.q[i] = vfmaq_f32(c.q[i], a.q[i], b.q[i]);
    return r;
}
FMI_INLINE vf vf_sqrt(vf a)
{
    vf r;
    for (uint32_t i = 0; i < 4; i++)
        r.q[i] = vsqrtq_f32(a.q[i]);
    return r;
}
FMI_INLINE vf vf_pick(vf a, vf b, vf x, vf y)
{
    vf r;
    for (uint32_t i = 0; i < 4; i++)
        r.q[i] = vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), x.q[i], y.q[i]);
    return r;
}
FMI_INLINE vf vf_pow2_biased(vf t)
{
    vf r;
    for (uint32_t i = 0; i < 4; i++) {
        uint32x4_t bits = vshlq_n_u32(vreinterpretq_u32_f32(t.q[i]), 23);
        r.q[i] = vreinterpretq_f32_u32(vaddq_u32(bits, vdupq_n_u32(0x3f800000u)));
    }
    return r;
}

#else /* plain C: any CPU; fmaf is a call where the CPU has no such instruction */

typedef struct vf {
    float f[VF_LANES];
} vf;

FMI_LANES vf vf_set1(float v)
{
    vf r;
    for (uint32_t i = 0; i < VF_LANES; i++)
        r.f[i] = v;
    return r;
}
FMI_LANES vf vf_load(const float *p)
{
    vf r;
    memcpy(r.f, p, sizeof r.f);
    return r;
}
FMI_LANES void vf_store(float *p, vf v)
{
    memcpy(p, v.f, sizeof v.f);
}
FMI_LANES vf vf_load_n(const float *p, uint32_t n)
{
    vf r = {{0}};
    memcpy(r.f, p, n * sizeof *p);
    return r;
}
FMI_LANES void vf_store_n(float *p, vf v, uint32_t n)
{
    memcpy(p, v.f, n * sizeof *p);
}
#define FMI_VF2(name, expr)                                                                        \
    FMI_LANES vf name(vf a, vf b)                                                                  \
    {                                                                                              \
        vf r;                                                                                      \
        for (uint32_t i = 0; i < VF_LANES; i++)                                                    \
            r.f[i] = expr;                                                                         \
        return r;                                                                                  \
    }
FMI_VF2(vf_add, a.f[i] + b.f[i])
FMI_VF2(vf_sub, a.f[i] - b.f[i])
FMI_VF2(vf_mul, a.f[i] * b.f[i])
FMI_VF2(vf_div, a.f[i] / b.f[i])
FMI_VF2(vf_max, a.f[i] > b.f[i] ? a.f[i] : b.f[i])
FMI_VF2(vf_min, a.f[i] < b.f[i] ? a.f[i] : b.f[i])
#undef FMI_VF2
FMI_LANES vf vf_fma(vf a, vf b, vf c)
{
    vf r;
    for (uint32_t i = 0; i < VF_LANES; i++)
        r.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
    return r;
}
FMI_LANES vf vf_sqrt(vf a)
{
    vf r;
    for (uint32_t i = 0; i < VF_LANES; i++)
        r.f[i] = sqrtf(a.f[i]);
    return r;
}
FMI_LANES vf vf_pick(vf a, vf b, vf x, vf y)
{
    vf r;
    for (uint32_t i = 0; i < VF_LANES; i++)
        r.f[i] = a.f[i] > b.f[i] ? x.f[i] : y.f[i];
    return r;
}
FMI_LANES vf vf_pow2_biased(vf t)
{
    vf r;
    for (uint32_t i = 0; i < VF_LANES; i++) {
        uint32_t bits;
        memcpy(&bits, &t.f[i], sizeof bits);
        bits = (bits << 23) + 0x3f800000u;
        memcpy(&r.f[i], &bits, sizeof bits);
    }
    return r;
}
#endif

#if defined(FMI_ISA_AVX2) || defined(FMI_ISA_NEON)
FMI_INLINE vf vf_load_n(const float *p, uint32_t n)
{
    float tmp[VF_LANES] = {0};

    memcpy(tmp, p, n * sizeof *p);
    return vf_load(tmp);
}
FMI_INLINE void vf_store_n(float *p, vf v, uint32_t n)
{
    float tmp[VF_LANES];

    vf_store(tmp, v);
    memcpy(p, tmp, n * sizeof *p);
}
#endif

/* Sixteen unsigned numbers of 32 bits, for counters: integers, so with the same bits. */
typedef struct vu2 vu2;
#if defined(FMI_ISA_AVX512)
typedef __m512i vu;
struct vu2 {
    vu lo, hi;
};

FMI_INLINE vu vu_set1(uint32_t v)
{
    return _mm512_set1_epi32((int)v);
}
FMI_INLINE vu vu_iota(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
FMI_INLINE vu vu_add(vu a, vu b)
{
    return _mm512_add_epi32(a, b);
}
FMI_INLINE vu vu_xor(vu a, vu b)
{
    return _mm512_xor_si512(a, b);
}
/* Both halves of the 64-bit products with k. */
FMI_INLINE vu2 vu_product(vu a, uint32_t k)
{
    vu m = vu_set1(k), even = _mm512_mul_epu32(a, m);
    vu odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), m);
    return (vu2){_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32)),
                 _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd)};
}
/* The lower and upper 16 bits as floats. */
FMI_INLINE vf vu_low_half(vu a)
{
    return _mm512_cvtepi32_ps(_mm512_and_si512(a, vu_set1(0xffffu)));
}
FMI_INLINE vf vu_high_half(vu a)
{
    return _mm512_cvtepi32_ps(_mm512_srli_epi32(a, 16));
}

#elif defined(FMI_ISA_AVX2)
typedef struct vu {
    __m256i lo, hi;
} vu;
struct vu2 {
    vu lo, hi;
};

FMI_INLINE vu vu_set1(uint32_t v)
{
    return (vu){_mm256_set1_epi32((int)v), _mm256_set1_epi32((int)v)};
}
FMI_INLINE vu vu_iota(void)
{
    return (vu){_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
FMI_INLINE vu vu_add(vu a, vu b)
{
    return (vu){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
FMI_INLINE vu vu_xor(vu a, vu b)
{
    return (vu){_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
FMI_INLINE void vu_product_half(__m256i *lo, __m256i *hi, __m256i a, __m256i m)
{
    __m256i even = _mm256_mul_epu32(a, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), m);
    *lo = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *hi = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
FMI_INLINE vu2 vu_product(vu a, uint32_t k)
{
    __m256i m = _mm256_set1_epi32((int)k);
    vu2 r;
    vu_product_half(&r.lo.lo, &r.hi.lo, a.lo, m);
    vu_product_half(&r.lo.hi, &r.hi.hi, a.hi, m);
    return r;
}
FMI_INLINE vf vu_low_half(vu a)
{
    __m256i mask = _mm256_set1_epi32(0xffff);
    return (vf){_mm256_cvtepi32_ps(_mm256_and_si256(a.lo, mask)),
                _mm256_cvtepi32_ps(_mm256_and_si256(a.hi, mask))};
}
FMI_INLINE vf vu_high_half(vu a)
{
    return (vf){_mm256_cvtepi32_ps(_mm256_srli_epi32(a.lo, 16)),
                _mm256_cvtepi32_ps(_mm256_srli_epi32(a.hi, 16))};
}

#else /* NEON too: loops of sixteen vectorise */
typedef struct vu {
    uint32_t u[VF_LANES];
} vu;
struct vu2 {
    vu lo, hi;
};

FMI_LANES vu vu_set1(uint32_t v)
{
    vu r;
    for (uint32_t i = 0; i < VF_LANES; i++)
        r.u[i] = v;
    return r;
}
FMI_LANES vu vu_iota(void)
{
    vu r;
    for (uint32_t i = 0; i < VF_LANES; i++)
        r.u[i] = i;
    return r;
}
FMI_LANES vu vu_add(vu a, vu b)
{
    for (uint32_t i = 0; i < VF_LANES; i++)
        a.u[i] += b.u[i];
    return a;
}
FMI_LANES vu vu_xor(vu a, vu b)
{
    for (uint32_t i = 0; i < VF_LANES; i++)
        a.u[i] ^= b.u[i];
    return a;
}
FMI_LANES vu2 vu_product(vu a, uint32_t k)
{
    vu2 r;
    for (uint32_t i = 0; i < VF_LANES; i++) {
        uint64_t p = (uint64_t)a.u[i] * k;
        r.lo.u[i] = (uint32_t)p;
        r.hi.u[i] = (uint32_t)(p >> 32);
    }
    return r;
}
FMI_LANES vf vu_low_half(vu a)
{
    float f[VF_LANES];
    for (uint32_t i = 0; i < VF_LANES; i++)
        f[i] = (float)(a.u[i] & 0xffffu);
    return vf_load(f);
}
FMI_LANES vf vu_high_half(vu a)
{
    float f[VF_LANES];
    for (uint32_t i = 0; i < VF_LANES; i++)
        f[i] = (float)(a.u[i] >> 16);
    return vf_load(f);
}
#endif

FMI_INLINE vf vf_zero(void)
{
    return vf_set1(0.0f);
}
FMI_INLINE vf vf_load_upto(const float *p, uint32_t n)
{
    return n >= VF_LANES ? vf_load(p) : vf_load_n(p, n);
}
FMI_INLINE void vf_store_upto(float *p, vf v, uint32_t n)
{
    if (n >= VF_LANES)
        vf_store(p, v);
    else
        vf_store_n(p, v, n);
}

/* Lanes folded by halves: l += l + 8, then 4, 2, 1. */
FMI_INLINE float vf_fold_add(vf v)
{
    float f[VF_LANES];

    vf_store(f, v);
    for (uint32_t half = VF_LANES / 2; half > 0; half /= 2)
        for (uint32_t i = 0; i < half; i++)
            f[i] = f[i] + f[i + half];
    return f[0];
}
FMI_INLINE float vf_fold_max(vf v)
{
    float f[VF_LANES], best;

    vf_store(f, v);
    best = f[0];
    for (uint32_t i = 1; i < VF_LANES; i++)
        best = f[i] > best ? f[i] : best;
    return best;
}

/* e^x within 1.01 ulp, subnormal results included; exact at 0, +inf above 88.73, 0 below -104,
 * NaN stays NaN. x = n ln2 + r, |r| <= ln2 / 2, the polynomial for e^r is Cephes' expf; 2^n is
 * applied in two halves so that subnormal results are rounded once. */
FMI_INLINE vf vf_exp(vf x)
{
    const vf magic = vf_set1(12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number */
    vf n, r, q, half;

    x = vf_min(vf_set1(89.0f), vf_max(vf_set1(-104.0f), x));
    n = vf_sub(vf_fma(x, vf_set1(1.44269504088896341f), magic), magic);
    r = vf_fma(n, vf_set1(-0x1.62e43p-1f), x);
    r = vf_fma(n, vf_set1(0x1.05c610p-29f), r);
    q = vf_set1(1.9875691500e-4f);
    q = vf_fma(q, r, vf_set1(1.3981999507e-3f));
    q = vf_fma(q, r, vf_set1(8.3334519073e-3f));
    q = vf_fma(q, r, vf_set1(4.1665795894e-2f));
    q = vf_fma(q, r, vf_set1(1.6666665459e-1f));
    q = vf_fma(q, r, vf_set1(5.0000001201e-1f));
    q = vf_add(vf_fma(q, vf_mul(r, r), r), vf_set1(1.0f));
    half = vf_fma(n, vf_set1(0.5f), magic);
    n = vf_add(vf_sub(n, vf_sub(half, magic)), magic);
    return vf_mul(vf_mul(q, vf_pow2_biased(half)), vf_pow2_biased(n));
}
/* 1 / (1 + e^-x): two roundings and exp's error. 0 where e^-x overflows, below -88.73. */
FMI_INLINE vf vf_sigmoid(vf x)
{
    vf one = vf_set1(1.0f);
    return vf_div(one, vf_add(one, vf_exp(vf_sub(vf_zero(), x))));
}

/* tanh x: Cephes' polynomial below 0.625, else 1 - 2 / (e^2|x| + 1) with x's sign. Within 2 ulp. */
FMI_INLINE vf vf_tanh(vf x)
{
    const vf one = vf_set1(1.0f);
    vf neg = vf_sub(vf_zero(), x), size = vf_max(x, neg), z = vf_mul(x, x), p, big;

    p = vf_set1(-5.70498872745e-3f);
    p = vf_fma(p, z, vf_set1(2.06390887954e-2f));
    p = vf_fma(p, z, vf_set1(-5.37397155531e-2f));
    p = vf_fma(p, z, vf_set1(1.33314422036e-1f));
    p = vf_fma(p, z, vf_set1(-3.33332819422e-1f));
    p = vf_fma(vf_mul(p, z), x, x);
    big = vf_sub(one, vf_div(vf_set1(2.0f), vf_add(vf_exp(vf_add(size, size)), one)));
    big = vf_pick(x, vf_zero(), big, vf_sub(vf_zero(), big));
    return vf_pick(size, vf_set1(0.625f), big, p);
}
/* The share of a normal distribution below -|x|: e^(-x^2/2) s P(s) with s = 1 / (1 + 0.3 |x|), P of
 * degree 9 fitted to a relative error of 2.2e-8; the rounding of x^2 is put back. */
FMI_INLINE vf vf_normal_tail(vf x)
{
    const vf one = vf_set1(1.0f);
    vf size = vf_max(x, vf_sub(vf_zero(), x)), s, p, sq, low, e;

    size = vf_min(vf_set1(14.5f), size);
    s = vf_div(one, vf_fma(size, vf_set1(0.3f), one));
    p = vf_set1(-0x1.51e51a0000000p-6f);
    p = vf_fma(p, s, vf_set1(0x1.cc894a0000000p-4f));
    p = vf_fma(p, s, vf_set1(-0x1.d361a80000000p-3f));
    p = vf_fma(p, s, vf_set1(0x1.88c6540000000p-3f));
    p = vf_fma(p, s, vf_set1(-0x1.4551920000000p-4f));
    p = vf_fma(p, s, vf_set1(0x1.89dbc00000000p-4f));
    p = vf_fma(p, s, vf_set1(0x1.4115820000000p-4f));
    p = vf_fma(p, s, vf_set1(0x1.c386380000000p-4f));
    p = vf_fma(p, s, vf_set1(0x1.e9c4220000000p-4f));
    p = vf_fma(p, s, vf_set1(0x1.ea3c980000000p-4f));
    sq = vf_mul(size, size);
    low = vf_fma(size, size, vf_sub(vf_zero(), sq));
    e = vf_exp(vf_mul(sq, vf_set1(-0.5f)));
    e = vf_fma(vf_mul(e, vf_set1(-0.5f)), low, e);
    return vf_mul(e, vf_mul(p, s));
}
/* x times the normal distribution's share below x. */
FMI_INLINE vf vf_gelu(vf x)
{
    vf tail = vf_normal_tail(x);
    return vf_mul(x, vf_pick(x, vf_zero(), vf_sub(vf_set1(1.0f), tail), tail));
}
/* 1/2 (1 + tanh u) is sigmoid(2 u): nothing cancels. 2 sqrt(2 / pi) = 1.5957691. */
FMI_INLINE vf vf_gelu_tanh(vf x)
{
    vf u = vf_fma(vf_mul(vf_mul(x, x), x), vf_set1(0.044715f), x);
    return vf_mul(x, vf_sigmoid(vf_mul(u, vf_set1(1.5957691216057308f))));
}

#endif
