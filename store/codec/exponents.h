/* exponents.h - codec 7: floats without a parent. Exponents by rANS with contexts, the rest raw.
 *
 * Sign and mantissa of trained weights are noise; exponents cost about 2.6 bits, fewer where the
 * rows and columns of a matrix have scales of their own. The mean exponent of each row and column
 * is stored (a byte, entropy-coded); their sum gives an element's context. FORMAT.md
 * "Exponents". */
#ifndef FM_STORE_EXPONENTS_H
#define FM_STORE_EXPONENTS_H

#include "store/codec/codec.h"

FM_BEGIN_DECLS

typedef struct fms_exponents fms_exponents; /* work memory of one thread, about 2 MiB */
FM_CHECKED fm_status fms_exponents_new(fms_exponents **out);
void fms_exponents_free(fms_exponents *w);

/* Appends the coded leaf. False, and nothing appended: not F32, BF16 or F16, too short, a mantissa
 * that does not look like noise, or exponents of more than 127 values. */
bool fms_exponents_encode(fms_exponents *w, fm_buf *out, const fms_leaf_at *at, fm_span leaf);
/* FM_ECORRUPT: malformed. */
FM_CHECKED fm_status fms_exponents_decode(fms_exponents *w, uint8_t *dst, size_t bytes,
                                          fm_span coded);

FM_END_DECLS
#endif
