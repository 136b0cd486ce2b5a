/* narrow.h - F32 leaves whose values all fit a narrower type, as bytes of that type: a model saved
 * wider than it was trained takes no more space than the unwidened one. */
#ifndef FM_STORE_CODEC_NARROW_H
#define FM_STORE_CODEC_NARROW_H

#include "store/tensor.h"

FM_BEGIN_DECLS

/* FM_BF16 or FM_F16 where every value of the F32 leaf is one of that type, bit for bit; else
 * FM_DTYPE_NONE, mostly after the first values. */
fm_dtype fms_narrow_find(const uint8_t *leaf, size_t bytes);
/* to: dst[0..bytes / 2) = the F32 values rounded to the narrower type (any bits give some result,
 * the same on every machine). from: the inverse; bytes is the size of the F32 side in both. */
void fms_narrow_to(uint8_t *dst, fm_dtype type, const uint8_t *src, size_t bytes);
void fms_narrow_from(uint8_t *dst, fm_dtype type, const uint8_t *src, size_t bytes);

FM_END_DECLS
#endif
