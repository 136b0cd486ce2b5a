/* narrow.h - F32 leaves that hold values of a narrower type, and that type's bytes: a model
 * saved wider than it was trained costs what it would cost unwidened. */
#ifndef FM_STORE_CODEC_NARROW_H
#define FM_STORE_CODEC_NARROW_H

#include "store/tensor.h"

FM_BEGIN_DECLS

/* FM_BF16 or FM_F16 where every value of the F32 leaf is one of that type, bit for bit; else
 * FM_DTYPE_NONE. Cheap where it is not: the first values say so. */
fm_dtype fms_narrow_find(const uint8_t *leaf, size_t bytes);
/* dst[0..bytes / 2) = the F32 values in the narrower type, rounded to nearest where they are none
 * (any bits give some result, the same everywhere); and widened again. */
void fms_narrow_to(uint8_t *dst, fm_dtype type, const uint8_t *src, size_t bytes);
void fms_narrow_from(uint8_t *dst, fm_dtype type, const uint8_t *src, size_t bytes);

FM_END_DECLS
#endif
