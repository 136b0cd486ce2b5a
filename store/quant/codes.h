/* codes.h - the layouts FM_CODE2_*, FM_CODE4_* and FM_CODE8_* of weights in memory: codes.
 *
 * A block holds what a checkpoint of GPTQ, AWQ, bitsandbytes, BitNet or compressed-tensors has for
 * its elements, and says how its library makes floats of it, with the rounding at the end, so that
 * a widened block has the library's very floats:
 *
 *   u8   how     kind | rounding
 *   u8   zero    of kind INT
 *   f32  scale
 *   u8   codes   4 bits: element 2 i in the low half of byte i, element 2 i + 1 in the high one;
 *                2 bits: elements 4 i .. 4 i + 3 from the low bits of byte i on
 *
 * No file has these layouts: a view of a checkpoint makes them (store/scaled.h). */
#ifndef FM_STORE_CODES_H
#define FM_STORE_CODES_H

#include "store/tensor.h"

FM_BEGIN_DECLS

enum {
    FMS_CODE_INT = 0,  /* (code - zero) * scale */
    FMS_CODE_NF4 = 1,  /* bitsandbytes' normal floats of 4 bits, times scale */
    FMS_CODE_FP4 = 2,  /* bitsandbytes' floats of 4 bits, times scale */
    FMS_CODE_INT8 = 3, /* bitsandbytes' LLM.int8: (code - 128) * scale * (1 / 127) */
    FMS_CODE_ADD = 4,  /* (code - 8) * scale + add; in no block: add has no place there */
    FMS_CODE_KIND = 15,
    FMS_CODE_F32 = 0, /* what the product is rounded to */
    FMS_CODE_F16 = 16,
    FMS_CODE_BF16 = 32,
    FMS_CODE_ROUNDING = 48,
    FMS_CODE_HEAD_BYTES = 6
};

#define FMS_CODE_127TH 0x1.020408p-7f /* 1 / 127 */

typedef struct fms_code_block {
    uint8_t how, zero;
    float scale;
    float add; /* of kind ADD */
} fms_code_block;

/* The rounding to a dtype: F32, F16, BF16. */
uint8_t fms_code_rounding(fm_dtype dtype);
/* The float of one code. */
float fms_code_value(const fms_code_block *b, uint8_t code);
/* Writes a block of a layout from one byte a code. */
void fms_code_put(uint8_t *dst, fm_dtype layout, const fms_code_block *b, const uint8_t *code);
/* fm_to_f32 of a layout. */
void fms_codes_widen(float *dst, fm_dtype layout, const uint8_t *src, uint64_t blocks);

FM_END_DECLS
#endif
