/* mixed.h - codec 13, the slow level of a child's floats: the changes of codec 8, bit by bit,
 * each bit's probability mixed from six adaptive predictions.
 *
 * Besides codec 8's context (exponent and row) the predictions use the neighbours to the left and
 * above, how the row and the column went so far, and the parent's mantissa. Mixing is logistic, in
 * integers alone. About 20 MB/s both ways, so it is tried only where fms_leaf_at.slow is set.
 * Method: M. Mahoney, "Adaptive weighing of context models", 2005. FORMAT.md "Mixed". */
#ifndef FM_STORE_CODEC_MIXED_H
#define FM_STORE_CODEC_MIXED_H

#include "store/codec/cdelta.h"

FM_BEGIN_DECLS

typedef struct fms_mixed fms_mixed; /* about 6 MiB */
FM_CHECKED fm_status fms_mixed_new(fms_mixed **out);
void fms_mixed_free(fms_mixed *m);

/* As fms_cdelta_encode and _decode, with their work memory too; where fms_cdelta_applies. */
void fms_mixed_encode(fms_mixed *m, fms_cdelta *w, fm_buf *out, const fms_leaf_at *at, fm_span leaf,
                      const uint8_t *parent);
FM_CHECKED fm_status fms_mixed_decode(fms_mixed *m, fms_cdelta *w, uint8_t *dst, size_t bytes,
                                      fm_dtype dtype, fm_span coded, const uint8_t *parent);

FM_END_DECLS
#endif
