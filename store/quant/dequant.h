/* dequant.h - block types to float32, one function per type; inside store only. */
#ifndef FM_STORE_DEQUANT_H
#define FM_STORE_DEQUANT_H

#include "store/tensor.h"

/* dst: blocks * block_elems floats; src: blocks * block_bytes bytes, not necessarily aligned. */
typedef void fm_dequant_fn(float *dst, const uint8_t *src, uint64_t blocks);

fm_dequant_fn fm_dequant_q8_0, fm_dequant_q4_0, fm_dequant_q4_1, fm_dequant_q5_0, fm_dequant_q5_1;
fm_dequant_fn fm_dequant_iq4_nl, fm_dequant_q4_k, fm_dequant_q5_k, fm_dequant_q6_k;

#endif
