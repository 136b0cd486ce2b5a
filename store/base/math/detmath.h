/* detmath.h - exp, log, log1p, sin, cos, pow in double, the same bits on every CPU and C library.
 *
 * Built only from IEEE basic operations and explicit fma (a C library picks its code by CPU, so its
 * last bit does change). The relative error is below 4e-16 in the ranges used; tests compare with
 * long double. These functions serve tables and scalars; vector kernels have float versions of
 * their own. */
#ifndef FM_BASE_DETMATH_H
#define FM_BASE_DETMATH_H

#include "store/base/fm.h"

FM_BEGIN_DECLS
double fm_exp(double x);
double fm_log(double x);                                    /* x > 0; 0 gives -inf, negative NaN */
double fm_log1p(double x);                                  /* log(1 + x); x as of fm_log */
double fm_pow(double base, double exponent);                /* base > 0 */
void fm_sincos(double *sin_out, double *cos_out, double x); /* |x| <= 1e9 */
FM_END_DECLS
#endif
