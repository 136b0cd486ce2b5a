/* dequant.h - block types to float32, one function per type; inside store only. */
#ifndef FM_STORE_DEQUANT_H
#define FM_STORE_DEQUANT_H

#include "store/tensor.h"

/* dst: blocks * block_elems floats; src: blocks * block_bytes bytes, not necessarily aligned. */
typedef void fm_dequant_fn(float *dst, const uint8_t *src, uint64_t blocks);

fm_dequant_fn fm_dequant_q8_0, fm_dequant_q4_0, fm_dequant_q4_1, fm_dequant_q5_0, fm_dequant_q5_1;
fm_dequant_fn fm_dequant_q2_k, fm_dequant_q3_k, fm_dequant_q4_k, fm_dequant_q5_k, fm_dequant_q6_k;
fm_dequant_fn fm_dequant_q8_k, fm_dequant_iq1_s, fm_dequant_iq1_m, fm_dequant_iq2_xxs;
fm_dequant_fn fm_dequant_iq2_xs, fm_dequant_iq2_s, fm_dequant_iq3_xxs, fm_dequant_iq3_s;
fm_dequant_fn fm_dequant_iq4_nl, fm_dequant_iq4_xs, fm_dequant_tq1_0, fm_dequant_tq2_0;
fm_dequant_fn fm_dequant_q1_0, fm_dequant_q2_0, fm_dequant_mxfp4, fm_dequant_nvfp4;

/* 32 elements of IQ4's sixteen values times d: element i in the low nibble of byte i, element i +
 * 16 in its high one. */
void fms_put_iq4(float *dst, const uint8_t *q, float d);

extern const uint16_t fms_grid_iq2_xxs[256], fms_grid_iq2_xs[512], fms_grid_iq2_s[1024];
extern const uint16_t fms_grid_iq3_xxs[256], fms_grid_iq3_s[512], fms_grid_iq1[2048];

#endif
