/* kern_fast_line.h - cpu/kern/vec.h's sixteen lanes for mode fast: 64-byte lines, int8 and bf16 dot
 * products.
 *
 * The int8 dot product is exact on every instruction set: unsigned bytes times signed bytes, sums
 * of four into int32. The bf16 one is fmaf of the odd element, then of the even one; VDPBF16PS
 * gives the same but treats subnormals as zeros. Included by kern_fast.c alone. */
#ifndef FM_INFER_CPU_KERN_FAST_LINE_H
#define FM_INFER_CPU_KERN_FAST_LINE_H

#include "infer/cpu/kern/vec.h"
#include "store/tensor.h"

FMI_INLINE float float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

#if defined(FMI_ISA_AVX512)

typedef __m512i vi; /* 16 int32, or a line of 64 bytes */

FMI_INLINE vi vi_set1(int32_t v)
{
    return _mm512_set1_epi32(v);
}
FMI_INLINE vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
FMI_INLINE void vi_store(void *p, vi v)
{
    _mm512_storeu_si512(p, v);
}
FMI_INLINE vf vf_of_int(vi v)
{
    return _mm512_cvtepi32_ps(v);
}
FMI_INLINE vf vf_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
FMI_INLINE vi line_low(vi v)
{
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}
FMI_INLINE vi line_high(vi v)
{
    return line_low(_mm512_srli_epi16(v, 4));
}
FMI_INLINE vi line_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
/* Bit b of every byte as 16 or 0. */
FMI_INLINE vi line_bit(vi v, uint32_t b)
{
    v = b < 4 ? _mm512_sll_epi16(v, _mm_cvtsi32_si128((int)(4 - b)))
              : _mm512_srl_epi16(v, _mm_cvtsi32_si128((int)(b - 4)));
    return _mm512_and_si512(v, _mm512_set1_epi8(16));
}
/* Bits 2 b and 2 b + 1 of every byte as a multiple of 16. */
FMI_INLINE vi line_two_bits(vi v, uint32_t b)
{
    v = b < 2 ? _mm512_sll_epi16(v, _mm_cvtsi32_si128((int)(4 - 2 * b)))
              : _mm512_srl_epi16(v, _mm_cvtsi32_si128((int)(2 * b - 4)));
    return _mm512_and_si512(v, _mm512_set1_epi8(48));
}
/* Bits 2 b and 2 b + 1 of every byte. */
FMI_INLINE vi line_pair(vi v, uint32_t b)
{
    return _mm512_and_si512(_mm512_srl_epi16(v, _mm_cvtsi32_si128((int)(2 * b))),
                            _mm512_set1_epi8(3));
}
/* Bit b of every byte as 4 or 0. */
FMI_INLINE vi line_third(vi v, uint32_t b)
{
    v = b < 2 ? _mm512_sll_epi16(v, _mm_cvtsi32_si128((int)(2 - b)))
              : _mm512_srl_epi16(v, _mm_cvtsi32_si128((int)(b - 2)));
    return _mm512_and_si512(v, _mm512_set1_epi8(4));
}
FMI_INLINE vf vf_of_int8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}
/* Half of 2^(byte - 127), of sixteen bytes. */
FMI_INLINE vf vf_load_half_power(const void *p)
{
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(p));
    __m512i wide = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __mmask16 small = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(
        _mm512_mask_sllv_epi32(wide, small, _mm512_set1_epi32(0x00200000), e));
}
/* table[byte] of bytes below 16 */
FMI_INLINE vi line_look_up(vi v, const uint8_t *table)
{
    __m128i t = _mm_loadu_si128((const void *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), v);
}

#if defined(FMI_FAST_VNNI)
typedef __m512i vq; /* unsigned weights, ready to be multiplied */

FMI_INLINE vq vq_of(vi line)
{
    return line;
}
FMI_INLINE vi vi_dot(vi sum, vq w, int32_t x)
{
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(x));
}
#else
typedef struct vq {
    __m512i even, odd;
} vq;

FMI_INLINE vq vq_of(vi line)
{
    return (vq){_mm512_and_si512(line, _mm512_set1_epi16(255)), _mm512_srli_epi16(line, 8)};
}
FMI_INLINE vi vi_dot(vi sum, vq w, int32_t x)
{
    vi v = _mm512_set1_epi32(x);
    vi even = _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8), odd = _mm512_srai_epi16(v, 8);
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(w.even, even));
    return _mm512_add_epi32(sum, _mm512_madd_epi16(w.odd, odd));
}
#endif

#if defined(FMI_FAST_BF16)
typedef __m512i vb; /* sixteen pairs of bf16 */

FMI_INLINE vb vb_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
FMI_INLINE vb vb_set1(uint32_t pair)
{
    return _mm512_set1_epi32((int32_t)pair);
}
FMI_INLINE vf vb_dot(vf sum, vb a, vb b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
#else
typedef struct vb {
    vf even, odd;
} vb;

FMI_INLINE vb vb_of(__m512i v)
{
    __m512i high = _mm512_and_si512(v, _mm512_set1_epi32((int32_t)0xffff0000u));
    return (vb){_mm512_castsi512_ps(_mm512_slli_epi32(v, 16)), _mm512_castsi512_ps(high)};
}
FMI_INLINE vb vb_load(const void *p)
{
    return vb_of(_mm512_loadu_si512(p));
}
FMI_INLINE vb vb_set1(uint32_t pair)
{
    return vb_of(_mm512_set1_epi32((int32_t)pair));
}
FMI_INLINE vf vb_dot(vf sum, vb a, vb b)
{
    return vf_fma(a.even, b.even, vf_fma(a.odd, b.odd, sum));
}
#endif

#elif defined(FMI_ISA_AVX2)

typedef struct vi {
    __m256i lo, hi;
} vi;

#define FMI_VI1(name, type, expr_lo, expr_hi)                                                      \
    FMI_INLINE type name(vi v)                                                                     \
    {                                                                                              \
        return (type){expr_lo, expr_hi};                                                           \
    }
FMI_INLINE vi vi_set1(int32_t v)
{
    return (vi){_mm256_set1_epi32(v), _mm256_set1_epi32(v)};
}
FMI_INLINE vi vi_load(const void *p)
{
    const uint8_t *b = p;
    return (vi){_mm256_loadu_si256((const void *)b), _mm256_loadu_si256((const void *)(b + 32))};
}
FMI_INLINE void vi_store(void *p, vi v)
{
    uint8_t *b = p;
    _mm256_storeu_si256((void *)b, v.lo);
    _mm256_storeu_si256((void *)(b + 32), v.hi);
}
FMI_VI1(vf_of_int, vf, _mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi))
FMI_INLINE vf vf_load_f16(const void *p)
{
    const uint8_t *b = p;
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const void *)b)),
                _mm256_cvtph_ps(_mm_loadu_si128((const void *)(b + 16)))};
}
FMI_INLINE __m256i low_half(__m256i v)
{
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}
FMI_VI1(line_low, vi, low_half(v.lo), low_half(v.hi))
FMI_VI1(line_high, vi, low_half(_mm256_srli_epi16(v.lo, 4)), low_half(_mm256_srli_epi16(v.hi, 4)))
FMI_INLINE vi line_or(vi a, vi b)
{
    return (vi){_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
FMI_INLINE __m256i bit_half(__m256i v, uint32_t b)
{
    v = b < 4 ? _mm256_slli_epi16(v, (int)(4 - b)) : _mm256_srli_epi16(v, (int)(b - 4));
    return _mm256_and_si256(v, _mm256_set1_epi8(16));
}
FMI_INLINE vi line_bit(vi v, uint32_t b)
{
    return (vi){bit_half(v.lo, b), bit_half(v.hi, b)};
}
FMI_INLINE __m256i two_bits_half(__m256i v, uint32_t b)
{
    v = b < 2 ? _mm256_slli_epi16(v, (int)(4 - 2 * b)) : _mm256_srli_epi16(v, (int)(2 * b - 4));
    return _mm256_and_si256(v, _mm256_set1_epi8(48));
}
FMI_INLINE vi line_two_bits(vi v, uint32_t b)
{
    return (vi){two_bits_half(v.lo, b), two_bits_half(v.hi, b)};
}
FMI_INLINE __m256i pair_half(__m256i v, uint32_t b)
{
    return _mm256_and_si256(_mm256_srli_epi16(v, (int)(2 * b)), _mm256_set1_epi8(3));
}
FMI_INLINE vi line_pair(vi v, uint32_t b)
{
    return (vi){pair_half(v.lo, b), pair_half(v.hi, b)};
}
FMI_INLINE __m256i third_half(__m256i v, uint32_t b)
{
    v = b < 2 ? _mm256_slli_epi16(v, (int)(2 - b)) : _mm256_srli_epi16(v, (int)(b - 2));
    return _mm256_and_si256(v, _mm256_set1_epi8(4));
}
FMI_INLINE vi line_third(vi v, uint32_t b)
{
    return (vi){third_half(v.lo, b), third_half(v.hi, b)};
}
FMI_INLINE vf vf_of_int8(const void *p)
{
    const __m128i b = _mm_loadu_si128(p);
    return (vf){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))};
}
FMI_INLINE __m256 half_power_half(const uint8_t *p)
{
    __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
    __m256i wide = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(wide, tiny, small));
}
FMI_INLINE vf vf_load_half_power(const void *p)
{
    const uint8_t *b = p;
    return (vf){half_power_half(b), half_power_half(b + 8)};
}
FMI_INLINE vi line_look_up(vi v, const uint8_t *table)
{
    __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table));
    return (vi){_mm256_shuffle_epi8(t, v.lo), _mm256_shuffle_epi8(t, v.hi)};
}

typedef struct vq {
    vi even, odd;
} vq;

FMI_INLINE vq vq_of(vi line)
{
    __m256i mask = _mm256_set1_epi16(255);
    return (vq){{_mm256_and_si256(line.lo, mask), _mm256_and_si256(line.hi, mask)},
                {_mm256_srli_epi16(line.lo, 8), _mm256_srli_epi16(line.hi, 8)}};
}
FMI_INLINE vi vi_dot(vi sum, vq w, int32_t x)
{
    __m256i v = _mm256_set1_epi32(x), odd = _mm256_srai_epi16(v, 8);
    __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
    sum.lo = _mm256_add_epi32(sum.lo, _mm256_madd_epi16(w.even.lo, even));
    sum.hi = _mm256_add_epi32(sum.hi, _mm256_madd_epi16(w.even.hi, even));
    sum.lo = _mm256_add_epi32(sum.lo, _mm256_madd_epi16(w.odd.lo, odd));
    sum.hi = _mm256_add_epi32(sum.hi, _mm256_madd_epi16(w.odd.hi, odd));
    return sum;
}

typedef struct vb {
    vf even, odd;
} vb;

FMI_INLINE __m256 even_half(__m256i v)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}
FMI_INLINE __m256 odd_half(__m256i v)
{
    return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int32_t)0xffff0000u)));
}
FMI_INLINE vb vb_load(const void *p)
{
    vi v = vi_load(p);
    return (vb){{even_half(v.lo), even_half(v.hi)}, {odd_half(v.lo), odd_half(v.hi)}};
}
FMI_INLINE vb vb_set1(uint32_t pair)
{
    __m256i v = _mm256_set1_epi32((int32_t)pair);
    return (vb){{even_half(v), even_half(v)}, {odd_half(v), odd_half(v)}};
}
FMI_INLINE vf vb_dot(vf sum, vb a, vb b)
{
    return vf_fma(a.even, b.even, vf_fma(a.odd, b.odd, sum));
}
#undef FMI_VI1

#else /* plain C */

typedef union vi {
    int32_t i[VF_LANES];
    uint8_t b[64];
} vi;

FMI_LANES vi vi_set1(int32_t v)
{
    vi r;
    for (uint32_t i = 0; i < VF_LANES; i++)
        r.i[i] = v;
    return r;
}
FMI_LANES vi vi_load(const void *p)
{
    vi r;
    memcpy(&r, p, sizeof r);
    return r;
}
FMI_LANES void vi_store(void *p, vi v)
{
    memcpy(p, &v, sizeof v);
}
FMI_LANES vf vf_of_int(vi v)
{
    vf r;
    for (uint32_t i = 0; i < VF_LANES; i++)
        r.f[i] = (float)v.i[i];
    return r;
}
FMI_LANES vf vf_load_f16(const void *p)
{
    const uint8_t *b = p;
    vf r;
    for (uint32_t i = 0; i < VF_LANES; i++) {
        uint16_t h;
        memcpy(&h, b + 2 * i, sizeof h);
        r.f[i] = fm_f16_to_f32(h);
    }
    return r;
}
FMI_LANES vf vf_of_int8(const void *p)
{
    const int8_t *b = p;
    vf r;
    for (uint32_t i = 0; i < VF_LANES; i++)
        r.f[i] = (float)b[i];
    return r;
}
FMI_LANES vf vf_load_half_power(const void *p)
{
    const uint8_t *b = p;
    vf r;
    for (uint32_t i = 0; i < VF_LANES; i++)
        r.f[i] = float_of_bits(b[i] < 2 ? 0x00200000u << b[i] : (uint32_t)(b[i] - 1) << 23);
    return r;
}
#define FMI_LINE(name, expr)                                                                       \
    FMI_LANES vi name                                                                              \
    {                                                                                              \
        vi r;                                                                                      \
        for (uint32_t i = 0; i < 64; i++)                                                          \
            r.b[i] = (uint8_t)(expr);                                                              \
        return r;                                                                                  \
    }
FMI_LINE(line_low(vi v), v.b[i] & 15u)
FMI_LINE(line_high(vi v), v.b[i] >> 4)
FMI_LINE(line_or(vi v, vi w), v.b[i] | w.b[i])
FMI_LINE(line_bit(vi v, uint32_t b), ((uint32_t)v.b[i] >> b & 1u) << 4)
FMI_LINE(line_two_bits(vi v, uint32_t b), ((uint32_t)v.b[i] >> (2 * b) & 3u) << 4)
FMI_LINE(line_pair(vi v, uint32_t b), (uint32_t)v.b[i] >> (2 * b) & 3u)
FMI_LINE(line_third(vi v, uint32_t b), ((uint32_t)v.b[i] >> b & 1u) << 2)
FMI_LINE(line_look_up(vi v, const uint8_t *table), table[v.b[i] & 15u])
#undef FMI_LINE

typedef vi vq;

FMI_LANES vq vq_of(vi line)
{
    return line;
}
FMI_LANES vi vi_dot(vi sum, vq w, int32_t x)
{
    const uint32_t u = (uint32_t)x;
    const int32_t x0 = (int8_t)(u & 255u), x1 = (int8_t)(u >> 8 & 255u);
    const int32_t x2 = (int8_t)(u >> 16 & 255u), x3 = (int8_t)(u >> 24);

    for (uint32_t i = 0; i < VF_LANES; i++)
        sum.i[i] +=
            w.b[4 * i] * x0 + w.b[4 * i + 1] * x1 + w.b[4 * i + 2] * x2 + w.b[4 * i + 3] * x3;
    return sum;
}

typedef struct vb {
    vf even, odd;
} vb;

FMI_LANES vb vb_load(const void *p)
{
    uint32_t v[VF_LANES];
    vb r;
    memcpy(v, p, sizeof v);
    for (uint32_t i = 0; i < VF_LANES; i++) {
        r.even.f[i] = float_of_bits(v[i] << 16);
        r.odd.f[i] = float_of_bits(v[i] & 0xffff0000u);
    }
    return r;
}
FMI_LANES vb vb_set1(uint32_t pair)
{
    return (vb){vf_set1(float_of_bits(pair << 16)), vf_set1(float_of_bits(pair & 0xffff0000u))};
}
FMI_LANES vf vb_dot(vf sum, vb a, vb b)
{
    return vf_fma(a.even, b.even, vf_fma(a.odd, b.odd, sum));
}
#endif

#endif
