/* float16.h - values of plain (not block) types as float32; inside store only. */
#ifndef FM_STORE_FLOAT16_H
#define FM_STORE_FLOAT16_H

#include "store/tensor.h"

/* src: n values, not necessarily aligned. FM_EUNSUPPORTED: a type that cannot be widened. */
FM_CHECKED fm_status fms_widen_plain(float *dst, fm_dtype dtype, const uint8_t *src, uint64_t n);

#endif
