/* mixed.h - codec 13, the slow level of a child's floats: the changes of codec 8, bit by bit,
 * each bit's probability mixed from six adaptive predictions.
 *
 * Beside codec 8's context (exponent and row) the predictions know the neighbours to the left and
 * above, how the row and the column went so far, and the parent's mantissa. Mixing is logistic, in
 * integers alone. About 20 MB/s both ways, so it is only chosen where fmi_leaf_at asks for it.
 * Method: M. Mahoney, "Adaptive weighing of context models", 2005. FORMAT.md "Mixed". */
#ifndef FM_STORE_CODEC_MIXED_H
#define FM_STORE_CODEC_MIXED_H

#include "store/codec/cdelta.h"

FM_BEGIN_DECLS

typedef struct fmi_mixed fmi_mixed; /* about 6 MiB */
FM_CHECKED fm_status fmi_mixed_new(fmi_mixed **out);
void fmi_mixed_free(fmi_mixed *m);

/* As fmi_cdelta_encode and _decode, whose work memory they use; where fmi_cdelta_applies. */
void fmi_mixed_encode(fmi_mixed *m, fmi_cdelta *w, fm_buf *out, const fmi_leaf_at *at, fm_span leaf,
                      const uint8_t *parent);
FM_CHECKED fm_status fmi_mixed_decode(fmi_mixed *m, fmi_cdelta *w, uint8_t *dst, size_t bytes,
                                      fm_dtype dtype, fm_span coded, const uint8_t *parent);

FM_END_DECLS
#endif
