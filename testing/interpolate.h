/* interpolate.h - how much of a change can stay: the smallest move back that makes a case pass. */
#ifndef FM_TESTING_INTERPOLATE_H
#define FM_TESTING_INTERPOLATE_H

#include "store/base/error.h"

FM_BEGIN_DECLS

/* Sets whether the case passes with share alpha of the change (0: the parent, 1: the child). */
typedef fm_status (*fm_interpolate_fn)(void *ctx, double alpha, bool *passes);
typedef struct fm_interpolation {
    bool found;    /* false: the case does not pass at 0 either */
    double alpha;  /* the case was run at this alpha and passed */
    double fails;  /* least larger alpha that failed; 1 + 1/2^halvings: 1 passes */
    uint32_t runs; /* runs of the oracle */
} fm_interpolation;
/* Bisection between 0, where the case must pass, and 1. If the oracle is not monotone the result is
 * one border of several; the case was always run and passed at alpha itself. */
FM_CHECKED fm_status fm_blame_interpolate(fm_interpolation *out, unsigned halvings,
                                          fm_interpolate_fn passes, void *ctx);

FM_END_DECLS
#endif
