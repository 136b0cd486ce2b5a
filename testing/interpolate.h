/* interpolate.h - how much of a change can stay: the smallest move back that makes a case pass. */
#ifndef FM_TESTING_INTERPOLATE_H
#define FM_TESTING_INTERPOLATE_H

#include "store/base/error.h"

FM_BEGIN_DECLS

/* Does the case pass with the share alpha of the change (0 = the parent's value, 1 = the
 * child's)? */
typedef fm_status (*fm_interpolate_fn)(void *ctx, double alpha, bool *passes);
typedef struct fm_interpolation {
    bool found;   /* false: it does not pass at 0 either */
    double alpha; /* it was seen to pass there */
    double
        fails; /* the least larger alpha that was seen to fail; 1 + 1/2^halvings: it passes at 1 */
    uint32_t runs; /* of the oracle */
} fm_interpolation;
/* Bisection between 0, which must pass, and 1. Where the oracle is not monotone the answer is one
 * border of several; alpha itself was asked and passed, always. */
FM_CHECKED fm_status fm_blame_interpolate(fm_interpolation *out, unsigned halvings,
                                          fm_interpolate_fn passes, void *ctx);

FM_END_DECLS
#endif
