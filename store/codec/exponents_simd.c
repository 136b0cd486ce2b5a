/* exponents_simd.c - exponents.c's loops with AVX-512; they give the same results. */
#include "store/codec/exponents_kern.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2")))

WIDE void fms_exponents_contexts_wide(uint8_t *table, const uint8_t *column, uint8_t row,
                                      const uint8_t of[256], size_t n)
{
    __m512i a = _mm512_loadu_si512(of), b = _mm512_loadu_si512(of + 64);
    __m512i c = _mm512_loadu_si512(of + 128), d = _mm512_loadu_si512(of + 192);
    __m512i r = _mm512_set1_epi8((char)row);
    for (size_t i = 0; i < n; i += 64) {
        __mmask64 some = n - i >= 64 ? ~0ull : (1ull << (n - i)) - 1;
        __m512i k = _mm512_add_epi8(_mm512_maskz_loadu_epi8(some, column + i), r);
        __m512i low = _mm512_permutex2var_epi8(a, k, b);
        __m512i high = _mm512_permutex2var_epi8(c, k, d);
        __m512i t = _mm512_mask_blend_epi8(_mm512_movepi8_mask(k), low, high);
        _mm512_mask_storeu_epi8(table + i, some, t);
    }
}

WIDE size_t fms_exponents_count_wide(uint32_t *counts, size_t each, const uint8_t *table,
                                     const uint8_t *symbol, size_t n)
{
    uint16_t where[32];
    size_t i = 0;
    for (; n - i >= 32; i += 32) {
        __m256i s = _mm256_loadu_si256((const __m256i *)(const void *)(symbol + i));
        __m256i t = _mm256_loadu_si256((const __m256i *)(const void *)(table + i));
        __m512i at = _mm512_slli_epi16(_mm512_cvtepu8_epi16(t), 7);
        _mm512_storeu_si512(where, _mm512_or_si512(at, _mm512_cvtepu8_epi16(s)));
        __asm__ volatile("" ::: "memory"); /* else each index is extracted from a register */
        for (unsigned k = 0; k < 32; k += 4) {
            counts[where[k]]++;
            counts[each + where[k + 1]]++;
            counts[2 * each + where[k + 2]]++;
            counts[3 * each + where[k + 3]]++;
        }
    }
    return i;
}
#else
#define WIDE
size_t fms_exponents_count_wide(uint32_t *counts, size_t each, const uint8_t *table,
                                const uint8_t *symbol, size_t n)
{
    (void)counts, (void)each, (void)table, (void)symbol, (void)n;
    return 0;
}

void fms_exponents_contexts_wide(uint8_t *table, const uint8_t *column, uint8_t row,
                                 const uint8_t of[256], size_t n)
{
    fms_exponents_contexts(table, column, row, of, n);
}
#endif

WIDE void fms_exponents_split_wide(uint8_t *top, uint8_t *rest, const uint8_t *src, size_t width,
                                   size_t n)
{
    if (width == 2) /* two calls, so that the width is a constant in each */
        fms_exponents_split(top, rest, src, 2, n);
    else
        fms_exponents_split(top, rest, src, 4, n);
}

WIDE void fms_exponents_join_wide(uint8_t *dst, const uint8_t *symbol, const uint8_t *rest,
                                  size_t width, size_t n, uint8_t lowest)
{
    if (width == 2)
        fms_exponents_join(dst, symbol, rest, 2, n, lowest);
    else
        fms_exponents_join(dst, symbol, rest, 4, n, lowest);
}

WIDE uint32_t fms_exponents_sum_wide(const uint8_t *s, size_t n)
{
    return fms_exponents_sum(s, n);
}

WIDE void fms_exponents_add_wide(uint32_t *sum, const uint8_t *s, size_t n)
{
    fms_exponents_add(sum, s, n);
}
