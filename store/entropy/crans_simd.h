/* crans_simd.h - the vector forms of crans.c's loops; they give the same bytes. */
#ifndef FM_STORE_CODEC_CRANS_SIMD_H
#define FM_STORE_CODEC_CRANS_SIMD_H

#include "store/base/fm.h"

FM_BEGIN_DECLS

int fms_crans_simd_level(void); /* what this machine has: FMS_SIMD_NONE, _AVX2 or _AVX512 */
/* Decodes whole groups of 32 symbols while a group's words cannot run out: returns how many
 * symbols, moves *words, updates x. _simd needs the level AVX512, _avx2 the level AVX2. */
size_t fms_crans_decode_simd(const uint32_t *slot, uint8_t *symbol, const uint8_t *table, size_t n,
                             uint32_t x[32], const uint8_t **words, const uint8_t *end);
size_t fms_crans_decode_avx2(const uint32_t *slot, uint8_t *symbol, const uint8_t *table, size_t n,
                             uint32_t x[32], const uint8_t **words, const uint8_t *end);
/* Encodes symbols [0, n), n a multiple of 32, the last first; words go down from p; returns new
 * p. */
uint8_t *fms_crans_encode_simd(const uint32_t *pair, uint32_t x[32], uint8_t *p,
                               const uint8_t *symbol, const uint8_t *table, size_t n);
uint8_t *fms_crans_encode_avx2(const uint32_t *pair, uint32_t x[32], uint8_t *p,
                               const uint8_t *symbol, const uint8_t *table, size_t n);

FM_END_DECLS
#endif
