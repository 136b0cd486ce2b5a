/* sorted_delta.h - the conditional integer delta: a child's floats as small numbers, sorted so that
 * numbers of similar size are together.
 *
 * A float's bits are mapped to an ordered integer (a bijection: NaN, Inf and -0.0 survive), the
 * parent's is subtracted (modulo 2^width) and the result zigzagged. A step of training has a
 * roughly constant absolute size, so the size of that integer is set by the parent's exponent,
 * which the decoder has: elements are put in the order of the parent's exponent (stable counting
 * sort), and each run of exponents gets statistics of its own. Sorting, rather than a coder that
 * switches tables, lets any byte coder be the last stage. */
#ifndef FM_STORE_SORTED_DELTA_H
#define FM_STORE_SORTED_DELTA_H

#include "store/tensor.h"

FM_BEGIN_DECLS

#define FMS_DELTA_MAX_WIDTH 4u

bool fms_delta_applies(fm_dtype dtype); /* F32, BF16, F16 */
size_t fms_delta_width(fm_dtype dtype); /* bytes of an element */

/* count[e] = the number of the parent's elements with exponent e. */
void fms_delta_count(uint32_t count[256], fm_dtype dtype, const uint8_t *parent, size_t n);
/* plane[b] gets n bytes: byte b of each zigzagged difference, in order of the parent's exponent. */
void fms_delta_split(uint8_t *const plane[FMS_DELTA_MAX_WIDTH], fm_dtype dtype,
                     const uint8_t *child, const uint8_t *parent, const uint32_t count[256],
                     size_t n);
/* The inverse; child and parent may be the same memory. */
void fms_delta_join(uint8_t *child, fm_dtype dtype, const uint8_t *const plane[FMS_DELTA_MAX_WIDTH],
                    const uint8_t *parent, const uint32_t count[256], size_t n);

FM_END_DECLS
#endif
