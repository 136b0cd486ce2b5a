/* cdelta_simd.c - cdelta.c's loops with AVX-512; they give the same bytes. */
#include "store/codec/cdelta_kern.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2")))

WIDE static inline __attribute__((always_inline)) void
measure(fms_cdelta *w, layout l, fm_span leaf, const uint8_t *parent, const fms_rows *g, size_t n)
{
    for (size_t k = 0, from = 0; k < g->count; k++) {
        size_t to = fms_rows_end(g, k, n);
        uint32_t most = changes(w->z, l, leaf.data, parent, from, to);
        w->scale[k] = most <= 2 ? INT32_MIN : row_scale(w->z, l, parent, from, to);
        from = to;
    }
}

/* In each branch the layout is a constant for the compiler. */
WIDE void fms_cdelta_measure_wide(fms_cdelta *w, fm_dtype dtype, fm_span leaf,
                                  const uint8_t *parent, const fms_rows *g, size_t n)
{
    const layout f32 = {4, 23, 255, 0x80000000u, 0xffffffffu};
    const layout bf16 = {2, 7, 255, 0x8000u, 0xffffu}, f16 = {2, 10, 31, 0x8000u, 0xffffu};
    if (dtype == FM_F32)
        measure(w, f32, leaf, parent, g, n);
    else if (dtype == FM_BF16)
        measure(w, bf16, leaf, parent, g, n);
    else
        measure(w, f16, leaf, parent, g, n);
}

WIDE static inline __m512i load_some(const uint8_t *p, size_t i, __mmask32 some)
{
    return _mm512_maskz_loadu_epi16(some, p + 2 * i);
}

WIDE static inline __m256i exponents(__m512i v, layout l)
{
    __m512i e = _mm512_srl_epi16(v, _mm_cvtsi32_si128((int)l.exp_shift));
    e = _mm512_and_si512(e, _mm512_set1_epi16((short)l.exp_mask));
    return _mm512_cvtepi16_epi8(_mm512_max_epu16(e, _mm512_set1_epi16(1)));
}

WIDE void fms_cdelta_contexts_wide(fms_cdelta *w, int32_t base, layout l, const uint8_t *parent,
                                   const fms_rows *g, size_t n)
{
    for (size_t k = 0, from = 0; k < g->count; k++) {
        size_t to = fms_rows_end(g, k, n);
        const uint8_t *of = row_tables(w, w->coded_scale[k], base);
        __m512i a = _mm512_loadu_si512(of), b = _mm512_loadu_si512(of + 64);
        __m512i c = _mm512_loadu_si512(of + 128), d = _mm512_loadu_si512(of + 192);
        for (size_t i = from; i < to; i += 64) {
            __mmask64 some = to - i >= 64 ? ~0ull : (1ull << (to - i)) - 1;
            __m256i e0 = exponents(load_some(parent, i, (__mmask32)some), l);
            __m256i e1 = exponents(load_some(parent, i + 32, (__mmask32)(some >> 32)), l);
            __m512i e = _mm512_inserti64x4(_mm512_castsi256_si512(e0), e1, 1);
            __m512i low = _mm512_permutex2var_epi8(a, e, b);
            __m512i high = _mm512_permutex2var_epi8(c, e, d);
            __m512i t = _mm512_mask_blend_epi8(_mm512_movepi8_mask(e), low, high);
            _mm512_mask_storeu_epi8(w->table + i, some, t);
        }
        from = to;
    }
}

WIDE size_t fms_cdelta_symbols_wide(fms_cdelta *w, tail_writer *t, size_t n)
{
    const uint16_t *z = (const uint16_t *)(const void *)w->z;
    uint32_t *counts = w->histogram[0], *odd = w->histogram[1];
    uint16_t where[32];
    size_t i = 0;
    for (; n - i >= 32; i += 32) {
        __m512i v = _mm512_loadu_si512(z + i);
        __m256i s = _mm512_cvtepi16_epi8(v);
        __mmask32 tails = _mm512_cmpge_epu16_mask(v, _mm512_set1_epi16(DIRECT));
        _mm256_storeu_si256((__m256i *)(void *)(w->symbol + i), s);
        for (; tails; tails &= tails - 1) {
            size_t k = i + (unsigned)__builtin_ctz(tails);
            w->symbol[k] = symbol_of(z[k]);
            put_tail(t, z[k], w->symbol[k]);
        }
        s = _mm256_loadu_si256((const __m256i *)(const void *)(w->symbol + i));
        __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(w->table + i));
        __m512i at = _mm512_slli_epi16(_mm512_cvtepu8_epi16(c), 7);
        _mm512_storeu_si512(where, _mm512_or_si512(at, _mm512_cvtepu8_epi16(s)));
        __asm__ volatile("" ::: "memory"); /* else each index is extracted from a register */
        for (unsigned k = 0; k < 32; k += 2) {
            counts[where[k]]++;
            odd[where[k + 1]]++;
        }
    }
    return i;
}

WIDE size_t fms_cdelta_apply_wide(uint8_t *dst, const uint8_t *symbol, fm_span tails, uint64_t *at,
                                  const uint8_t *parent, size_t n)
{
    const __m512i one = _mm512_set1_epi16(1), magnitude = _mm512_set1_epi16(0x7fff);
    size_t i = 0;
    for (; n - i >= 32; i += 32) {
        __m256i s = _mm256_loadu_si256((const __m256i *)(const void *)(symbol + i));
        __m512i z = _mm512_cvtepu8_epi16(s);
        __mmask32 with = _mm256_cmpge_epu8_mask(s, _mm256_set1_epi8(DIRECT));
        if (with) {
            uint16_t some[32];
            _mm512_storeu_si512(some, z);
            for (; with; with &= with - 1) {
                unsigned k = (unsigned)__builtin_ctz(with);
                some[k] = (uint16_t)take_tail(symbol[i + k], tails, at);
            }
            z = _mm512_loadu_si512(some);
        }
        __m512i p = _mm512_loadu_si512(parent + 2 * i);
        __m512i odd = _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_and_si512(z, one));
        __m512i u = _mm512_xor_si512(_mm512_srli_epi16(z, 1), odd);
        __m512i m = _mm512_add_epi16(_mm512_and_si512(p, magnitude), u);
        m = _mm512_xor_si512(m, _mm512_and_si512(_mm512_srai_epi16(m, 15), magnitude));
        m = _mm512_xor_si512(m, _mm512_andnot_si512(magnitude, p));
        _mm512_storeu_si512(dst + 2 * i, m);
    }
    return i;
}
#else
void fms_cdelta_measure_wide(fms_cdelta *w, fm_dtype dtype, fm_span leaf, const uint8_t *parent,
                             const fms_rows *g, size_t n)
{
    (void)w, (void)dtype, (void)leaf, (void)parent, (void)g, (void)n;
}

void fms_cdelta_contexts_wide(fms_cdelta *w, int32_t base, layout l, const uint8_t *parent,
                              const fms_rows *g, size_t n)
{
    (void)w, (void)base, (void)l, (void)parent, (void)g, (void)n;
}

size_t fms_cdelta_symbols_wide(fms_cdelta *w, tail_writer *t, size_t n)
{
    (void)w, (void)t, (void)n;
    return 0;
}

size_t fms_cdelta_apply_wide(uint8_t *dst, const uint8_t *symbol, fm_span tails, uint64_t *at,
                             const uint8_t *parent, size_t n)
{
    (void)dst, (void)symbol, (void)tails, (void)at, (void)parent, (void)n;
    return 0;
}
#endif
