/* exponents_kern.h - loops of exponents.c, in a header so that exponents_simd.c can compile them
 * for wider vectors too. The _wide forms give the same results; they need FMS_SIMD_AVX512. */
#ifndef FM_STORE_EXPONENTS_KERN_H
#define FM_STORE_EXPONENTS_KERN_H

#include "store/base/cursor.h"

/* Rotates elements left by one bit; top gets the top byte of each, rest the others as planes. */
static inline __attribute__((always_inline)) void
fms_exponents_split(uint8_t *top, uint8_t *rest, const uint8_t *src, size_t width, size_t n)
{
    if (width == 2) {
        for (size_t i = 0; i < n; i++) {
            uint32_t v = fm_get_u16(src + 2 * i);
            top[i] = (uint8_t)(v >> 7);
            rest[i] = (uint8_t)(v << 1 | v >> 15);
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t v = fm_get_u32(src + 4 * i);
        top[i] = (uint8_t)(v >> 23);
        rest[i] = (uint8_t)(v << 1 | v >> 31);
        rest[n + i] = (uint8_t)(v >> 7);
        rest[2 * n + i] = (uint8_t)(v >> 15);
    }
}

static inline __attribute__((always_inline)) void
fms_exponents_join(uint8_t *dst, const uint8_t *symbol, const uint8_t *rest, size_t width, size_t n,
                   uint8_t lowest)
{
    const uint8_t add = (uint8_t)(lowest - 1);
    if (width == 2) {
        for (size_t i = 0; i < n; i++) {
            uint8_t t = (uint8_t)(symbol[i] ? symbol[i] + add : 0);
            fm_put_u16(dst + 2 * i,
                       (uint16_t)((uint32_t)t << 7 | rest[i] >> 1u | (rest[i] & 1u) << 15));
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint8_t t = (uint8_t)(symbol[i] ? symbol[i] + add : 0);
        fm_put_u32(dst + 4 * i, (uint32_t)t << 23 | (uint32_t)rest[2 * n + i] << 15 |
                                    (uint32_t)rest[n + i] << 7 | rest[i] >> 1u |
                                    (rest[i] & 1u) << 31);
    }
}

static inline __attribute__((always_inline)) uint32_t fms_exponents_sum(const uint8_t *s, size_t n)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += s[i];
    return sum;
}

static inline __attribute__((always_inline)) void fms_exponents_add(uint32_t *sum, const uint8_t *s,
                                                                    size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += s[i];
}

/* The tables of one row's elements: of[row class + column class]. */
static inline void fms_exponents_contexts(uint8_t *table, const uint8_t *column, uint8_t row,
                                          const uint8_t of[256], size_t n)
{
    for (size_t i = 0; i < n; i++)
        table[i] = of[(uint8_t)(column[i] + row)];
}

void fms_exponents_split_wide(uint8_t *top, uint8_t *rest, const uint8_t *src, size_t width,
                              size_t n);
void fms_exponents_join_wide(uint8_t *dst, const uint8_t *symbol, const uint8_t *rest, size_t width,
                             size_t n, uint8_t lowest);
uint32_t fms_exponents_sum_wide(const uint8_t *s, size_t n);
void fms_exponents_add_wide(uint32_t *sum, const uint8_t *s, size_t n);
void fms_exponents_contexts_wide(uint8_t *table, const uint8_t *column, uint8_t row,
                                 const uint8_t of[256], size_t n);
/* Counts (table, symbol) into four histograms, `each` counters apart; returns elements done. */
size_t fms_exponents_count_wide(uint32_t *counts, size_t each, const uint8_t *table,
                                const uint8_t *symbol, size_t n);

#endif
