/* cdelta.h - codec 8: a child's floats as changes of the parent's; contexts by exponent and row.
 *
 * A step of training moves the elements of a row by a similar absolute amount, so in units of the
 * last place an element's change is about (row's mean change) / (ulp at the parent's exponent).
 * That ratio, in half octaves, is the context of a static rANS; the rows' means are stored, the
 * exponents are the parent's. Rows that moved by one ulp at most (tokens that training never saw:
 * weight decay alone) have contexts of their own. Changes are counted away from zero, so that decay
 * has one sign. FORMAT.md "Contexts" is the byte level. */
#ifndef FM_STORE_CODEC_CDELTA_H
#define FM_STORE_CODEC_CDELTA_H

#include "store/codec/codec.h"
#include "store/entropy/crans.h"

FM_BEGIN_DECLS

typedef struct fms_cdelta fms_cdelta; /* work memory of one thread, about 3 MiB */
FM_CHECKED fm_status fms_cdelta_new(fms_cdelta **out);
void fms_cdelta_free(fms_cdelta *w);

/* For F32, BF16, F16 leaves of at least this many elements; fewer do not pay for the 32 states. */
#define FMS_CDELTA_MIN 4096u
bool fms_cdelta_applies(const fms_leaf_at *at, size_t bytes);
/* Appends the coded leaf; parent has leaf.len bytes. */
void fms_cdelta_encode(fms_cdelta *w, fm_buf *out, const fms_leaf_at *at, fm_span leaf,
                       const uint8_t *parent);
/* dst may not be parent. FM_ECORRUPT: malformed. */
FM_CHECKED fm_status fms_cdelta_decode(fms_cdelta *w, uint8_t *dst, size_t bytes, fm_dtype dtype,
                                       fm_span coded, const uint8_t *parent);

FM_END_DECLS
#endif
