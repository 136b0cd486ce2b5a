/* mxfp4.h - the blocks of FM_MXFP4 from gpt-oss' pairs of tensors. */
#ifndef FM_STORE_QUANT_MXFP4_H
#define FM_STORE_QUANT_MXFP4_H

#include "store/tensor.h"

/* Writes n blocks of FM_MXFP4 (17 bytes each; fm_to_f32 widens them). blocks: 16 bytes of each, in
 * which elements 2 i and 2 i + 1 share byte i, the former in the low half; scales: a byte of each,
 * the power of two plus 127. */
void fms_mxfp4_join(uint8_t *dst, const uint8_t *blocks, const uint8_t *scales, uint64_t n);

#endif
