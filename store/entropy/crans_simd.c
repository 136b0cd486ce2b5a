/* crans_simd.c - 32 states in two AVX-512 registers, or four of AVX2. A lane that runs low
 * takes the next word: expanding a mask's worth of consecutive words into lanes is one
 * instruction (VBMI2). */
#include "store/entropy/crans_simd.h"

#include "store/entropy/crans.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2")))

#define NARROW __attribute__((target("avx2,bmi2,popcnt")))

int fms_crans_simd_level(void)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2"))
        return FMS_SIMD_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("popcnt"))
        return FMS_SIMD_AVX2;
    return FMS_SIMD_NONE;
}

/* Decodes from eight states; words are read by 16 bytes. The k-th lane that runs low takes word k:
 * pdep puts the numbers 0, 1, ... into the bytes of these lanes. */
NARROW static inline __m256i step8(__m256i x, __m256i *entry, const uint32_t *slot,
                                   const uint8_t *table, const uint8_t **words)
{
    __m256i t = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)table));
    __m256i at = _mm256_and_si256(x, _mm256_set1_epi32(FMS_CRANS_SCALE - 1));
    at = _mm256_or_si256(at, _mm256_slli_epi32(t, FMS_CRANS_BITS));
    __m256i e = _mm256_i32gather_epi32((const int *)(const void *)slot, at, 4);
    __m256i f = _mm256_and_si256(_mm256_srli_epi32(e, 8), _mm256_set1_epi32(0xfff));
    __m256i h = _mm256_srli_epi32(x, FMS_CRANS_BITS);
    __m256i v = _mm256_add_epi32(_mm256_mullo_epi32(f, h), h);
    v = _mm256_add_epi32(v, _mm256_srli_epi32(e, 20));
    __m256i low = _mm256_cmpeq_epi32(_mm256_srli_epi32(v, 16), _mm256_setzero_si256());
    unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(low));
    uint64_t lanes = _pdep_u64(mask, 0x0101010101010101ull) * 255;
    uint64_t from = _pdep_u64(0x0706050403020100ull, lanes);
    __m256i which = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)from));
    __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)*words));
    w = _mm256_permutevar8x32_epi32(w, which);
    *words += 2 * __builtin_popcount(mask);
    *entry = e;
    return _mm256_blendv_epi8(v, _mm256_or_si256(_mm256_slli_epi32(v, 16), w), low);
}

NARROW size_t fms_crans_decode_avx2(const uint32_t *slot, uint8_t *symbol, const uint8_t *table,
                                    size_t n, uint32_t x[32], const uint8_t **words,
                                    const uint8_t *end)
{
    const __m256i byte = _mm256_set1_epi32(255), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const uint8_t *p = *words;
    __m256i s[4], e[4];
    for (int k = 0; k < 4; k++)
        s[k] = _mm256_loadu_si256((const __m256i *)(const void *)(x + 8 * k));
    size_t i = 0;
    for (; n - i >= 32 && end - p >= 64; i += 32) {
        for (int k = 0; k < 4; k++) {
            s[k] = step8(s[k], &e[k], slot, table + i + 8 * k, &p);
            e[k] = _mm256_and_si256(e[k], byte);
        }
        __m256i a = _mm256_packus_epi32(e[0], e[1]), b = _mm256_packus_epi32(e[2], e[3]);
        __m256i all = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order);
        _mm256_storeu_si256((__m256i *)(void *)(symbol + i), all);
    }
    for (int k = 0; k < 4; k++)
        _mm256_storeu_si256((__m256i *)(void *)(x + 8 * k), s[k]);
    *words = p;
    return i;
}

/* x -> (x / f) * 2048 + x mod f + start for eight states; the words of full states go below *p. */
NARROW static inline __m256i push8(__m256i x, __m256i e, uint8_t **p)
{
    const __m256i low16 = _mm256_set1_epi32(0xffff), one = _mm256_set1_epi32(1);
    __m256i f = _mm256_and_si256(e, low16);
    __m256i fits = _mm256_cmpgt_epi32(f, _mm256_srli_epi32(x, 32 - FMS_CRANS_BITS));
    unsigned mask = 255u & ~(unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(fits));
    /* The full lanes' numbers in order at the upper end: what is stored below is overwritten
     * later. */
    size_t count = (size_t)__builtin_popcount(mask);
    uint64_t full = _pdep_u64(mask, 0x0101010101010101ull) * 255;
    uint64_t from = _pext_u64(0x0706050403020100ull, full) << (4 * (8 - count));
    from <<= 4 * (8 - count); /* in two steps: a shift by 64 is undefined */
    __m256i which = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)from));
    __m256i w = _mm256_and_si256(_mm256_permutevar8x32_epi32(x, which), low16);
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    _mm_storeu_si128((__m128i *)(void *)(*p - 16), words);
    *p -= 2 * count;
    x = _mm256_blendv_epi8(_mm256_srli_epi32(x, 16), x, fits);
    /* Three roundings, in any direction, change a quotient below 2^21 by less than 1: it is right
     * or one off, and the remainder shows which. */
    __m256 high = _mm256_cvtepi32_ps(_mm256_srli_epi32(x, 16));
    __m256 whole = _mm256_add_ps(_mm256_mul_ps(high, _mm256_set1_ps(65536.0f)),
                                 _mm256_cvtepi32_ps(_mm256_and_si256(x, low16)));
    __m256 inverse = _mm256_div_ps(_mm256_set1_ps(1.0f), _mm256_cvtepi32_ps(f));
    __m256i q = _mm256_cvttps_epi32(_mm256_mul_ps(whole, inverse));
    __m256i r = _mm256_sub_epi32(x, _mm256_mullo_epi32(q, f));
    __m256i above = _mm256_srai_epi32(r, 31); /* the quotient was one too high */
    q = _mm256_add_epi32(q, above);
    r = _mm256_add_epi32(r, _mm256_and_si256(above, f));
    __m256i below = _mm256_cmpgt_epi32(f, r); /* 0: the quotient was one too low */
    q = _mm256_add_epi32(q, _mm256_add_epi32(below, one));
    r = _mm256_sub_epi32(r, _mm256_andnot_si256(below, f));
    r = _mm256_add_epi32(r, _mm256_srli_epi32(e, 16));
    return _mm256_add_epi32(_mm256_slli_epi32(q, FMS_CRANS_BITS), r);
}

NARROW uint8_t *fms_crans_encode_avx2(const uint32_t *pair, uint32_t x[32], uint8_t *p,
                                      const uint8_t *symbol, const uint8_t *table, size_t n)
{
    __m256i s[4];
    for (int k = 0; k < 4; k++)
        s[k] = _mm256_loadu_si256((const __m256i *)(const void *)(x + 8 * k));
    for (size_t i = n; i > 0; i -= 32)
        for (size_t k = 4; k-- > 0;) {
            size_t at = i - 32 + 8 * k;
            __m256i t =
                _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(table + at)));
            __m256i y =
                _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(symbol + at)));
            y = _mm256_or_si256(_mm256_slli_epi32(t, 7), y);
            s[k] = push8(s[k], _mm256_i32gather_epi32((const int *)(const void *)pair, y, 4), &p);
        }
    for (int k = 0; k < 4; k++)
        _mm256_storeu_si256((__m256i *)(void *)(x + 8 * k), s[k]);
    return p;
}

/* Decodes from sixteen states. An entry's low byte is the symbol; words are read by 32 bytes. */
WIDE static inline __m512i step(__m512i x, __m512i *entry, const uint32_t *slot,
                                const uint8_t *table, const uint8_t **words)
{
    __m512i t = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)table));
    __m512i at = _mm512_and_si512(x, _mm512_set1_epi32(FMS_CRANS_SCALE - 1));
    at = _mm512_or_si512(at, _mm512_slli_epi32(t, FMS_CRANS_BITS));
    __m512i e = _mm512_i32gather_epi32(at, slot, 4);
    __m512i f = _mm512_and_si512(_mm512_srli_epi32(e, 8), _mm512_set1_epi32(0xfff));
    __m512i h = _mm512_srli_epi32(x, FMS_CRANS_BITS);
    /* f holds freq - 1, so (f + 1) * h = f * h + h; h is below 2^21, f + 1 below 2^12. */
    __m512i v = _mm512_add_epi32(_mm512_mullo_epi32(f, h), h);
    v = _mm512_add_epi32(v, _mm512_srli_epi32(e, 20));
    __mmask16 low = _mm512_cmplt_epu32_mask(v, _mm512_set1_epi32(1 << 16));
    __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)*words);
    __asm__("" : "+v"(w)); /* expanding from memory is microcode on Zen 4 */
    __m512i in = _mm512_cvtepu16_epi32(_mm256_maskz_expand_epi16(low, w));
    *words += 2 * __builtin_popcount(low);
    *entry = e;
    return _mm512_or_si512(_mm512_mask_slli_epi32(v, low, v, 16), in);
}

WIDE size_t fms_crans_decode_simd(const uint32_t *slot, uint8_t *symbol, const uint8_t *table,
                                  size_t n, uint32_t x[32], const uint8_t **words,
                                  const uint8_t *end)
{
    const uint8_t *p = *words;
    __m512i a = _mm512_loadu_si512(x), b = _mm512_loadu_si512(x + 16);
    size_t i = 0;
    for (; n - i >= 32 && end - p >= 64; i += 32) {
        __m512i ea, eb;
        a = step(a, &ea, slot, table + i, &p);
        b = step(b, &eb, slot, table + i + 16, &p);
        _mm_storeu_si128((__m128i *)(void *)(symbol + i), _mm512_cvtepi32_epi8(ea));
        _mm_storeu_si128((__m128i *)(void *)(symbol + i + 16), _mm512_cvtepi32_epi8(eb));
    }
    _mm512_storeu_si512(x, a);
    _mm512_storeu_si512(x + 16, b);
    *words = p;
    return i;
}
static const uint16_t ascend[32] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                                    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* x -> (x / f) * 2048 + x mod f + start. The quotient is below 2^21, so the quotient of floats
 * rounded towards zero is right or one too low, and the remainder shows which. */
WIDE static inline __m512i push(__m512i x, __m512i e, uint8_t **p)
{
    __m512i f = _mm512_and_si512(e, _mm512_set1_epi32(0xffff));
    __mmask16 full = _mm512_cmpge_epu32_mask(_mm512_srli_epi32(x, 32 - FMS_CRANS_BITS), f);
    __m256i words = _mm256_maskz_compress_epi16(full, _mm512_cvtepi32_epi16(x));
    /* The words go to the upper end: what is stored below them is overwritten later. */
    size_t count = (size_t)__builtin_popcount(full);
    __m256i up = _mm256_loadu_si256((const __m256i *)(const void *)(ascend + count));
    _mm256_storeu_si256((__m256i *)(void *)(*p - 32), _mm256_permutexvar_epi16(up, words));
    *p -= 2 * count;
    x = _mm512_mask_srli_epi32(x, full, x, 16);
    /* The inverse does not depend on x; three roundings towards zero lose less than 1 of 2^21. */
    enum { down = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC };
    __m512 inverse = _mm512_div_round_ps(_mm512_set1_ps(1.0f), _mm512_cvtepi32_ps(f), down);
    __m512 ratio = _mm512_mul_round_ps(_mm512_cvt_roundepu32_ps(x, down), inverse, down);
    __m512i q = _mm512_cvttps_epu32(ratio);
    __m512i r = _mm512_sub_epi32(x, _mm512_mullo_epi32(q, f));
    __mmask16 below = _mm512_cmpge_epu32_mask(r, f);
    r = _mm512_mask_sub_epi32(r, below, r, f);
    q = _mm512_mask_add_epi32(q, below, q, _mm512_set1_epi32(1));
    r = _mm512_add_epi32(r, _mm512_srli_epi32(e, 16));
    return _mm512_add_epi32(_mm512_slli_epi32(q, FMS_CRANS_BITS), r);
}

WIDE static inline __m512i entries(const uint32_t *pair, const uint8_t *symbol,
                                   const uint8_t *table)
{
    __m512i t = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)table));
    __m512i s = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)symbol));
    return _mm512_i32gather_epi32(_mm512_or_si512(_mm512_slli_epi32(t, 7), s), pair, 4);
}

WIDE uint8_t *fms_crans_encode_simd(const uint32_t *pair, uint32_t x[32], uint8_t *p,
                                    const uint8_t *symbol, const uint8_t *table, size_t n)
{
    __m512i a = _mm512_loadu_si512(x), b = _mm512_loadu_si512(x + 16);
    for (size_t i = n; i > 0; i -= 32) {
        b = push(b, entries(pair, symbol + i - 16, table + i - 16), &p);
        a = push(a, entries(pair, symbol + i - 32, table + i - 32), &p);
    }
    _mm512_storeu_si512(x, a);
    _mm512_storeu_si512(x + 16, b);
    return p;
}
#else
uint8_t *fms_crans_encode_avx2(const uint32_t *pair, uint32_t x[32], uint8_t *p,
                               const uint8_t *symbol, const uint8_t *table, size_t n)
{
    (void)pair, (void)x, (void)symbol, (void)table, (void)n;
    return p;
}

uint8_t *fms_crans_encode_simd(const uint32_t *pair, uint32_t x[32], uint8_t *p,
                               const uint8_t *symbol, const uint8_t *table, size_t n)
{
    (void)pair, (void)x, (void)symbol, (void)table, (void)n;
    return p;
}

int fms_crans_simd_level(void)
{
    return FMS_SIMD_NONE;
}

size_t fms_crans_decode_avx2(const uint32_t *slot, uint8_t *symbol, const uint8_t *table, size_t n,
                             uint32_t x[32], const uint8_t **words, const uint8_t *end)
{
    (void)slot, (void)symbol, (void)table, (void)n, (void)x, (void)words, (void)end;
    return 0;
}

size_t fms_crans_decode_simd(const uint32_t *slot, uint8_t *symbol, const uint8_t *table, size_t n,
                             uint32_t x[32], const uint8_t **words, const uint8_t *end)
{
    (void)slot, (void)symbol, (void)table, (void)n, (void)x, (void)words, (void)end;
    return 0;
}
#endif
