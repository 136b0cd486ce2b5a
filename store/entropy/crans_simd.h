/* crans_simd.h - between crans.c and its vector form: the same bytes, sooner. */
#ifndef FM_STORE_CODEC_CRANS_SIMD_H
#define FM_STORE_CODEC_CRANS_SIMD_H

#include "store/base/fm.h"

FM_BEGIN_DECLS

int fms_crans_simd_level(
    void); /* 1: this machine decodes with AVX-512 (Zen 4, Ice Lake and later) */
/* Whole groups of 32 symbols while their words are surely there: returns how many symbols, moves
 * *words, updates x. Call only where the level allows it. */
size_t fms_crans_decode_simd(const uint32_t *slot, uint8_t *symbol, const uint8_t *table, size_t n,
                             uint32_t x[32], const uint8_t **words, const uint8_t *end);
size_t fms_crans_decode_avx2(const uint32_t *slot, uint8_t *symbol, const uint8_t *table, size_t n,
                             uint32_t x[32], const uint8_t **words, const uint8_t *end);
/* Symbols [0, n), n a multiple of 32, the last first; words go down from p, the new p returns. */
uint8_t *fms_crans_encode_simd(const uint32_t *pair, uint32_t x[32], uint8_t *p,
                               const uint8_t *symbol, const uint8_t *table, size_t n);
uint8_t *fms_crans_encode_avx2(const uint32_t *pair, uint32_t x[32], uint8_t *p,
                               const uint8_t *symbol, const uint8_t *table, size_t n);

FM_END_DECLS
#endif
