/* detmath.h - logarithm and power in double with the bits of store/base/math/detmath.c, operation
 * for operation, on the GPU and on the host (this module is linked against no library of fmstore).
 * That file explains the steps. */
#ifndef FM_INFER_CUDA_DETMATH_H
#define FM_INFER_CUDA_DETMATH_H

#include <string.h>

#include "infer/cuda/device.h"

#define FMC_BOTH static __host__ __device__ __forceinline__
#define FMC_LN2_HI 0x1.62e42feep-1
#define FMC_LN2_LO 0x1.a39ef35793c76p-33

struct fmc_dd { /* hi + lo, |lo| <= ulp(hi) / 2 */
    double hi, lo;
};

FMC_BOTH fmc_dd fmc_two_sum(double a, double b)
{
    double s = a + b;
    double t = s - a;
    return fmc_dd{s, (a - (s - t)) + (b - t)};
}

FMC_BOTH fmc_dd fmc_mul_dd(fmc_dd a, fmc_dd b)
{
    double hi = a.hi * b.hi;
    double lo = fma(a.hi, b.hi, -hi) + (a.hi * b.lo + a.lo * b.hi);
    return fmc_two_sum(hi, lo);
}

FMC_BOTH fmc_dd fmc_add_dd(fmc_dd a, fmc_dd b)
{
    fmc_dd s = fmc_two_sum(a.hi, b.hi);
    return fmc_two_sum(s.hi, s.lo + (a.lo + b.lo));
}

FMC_BOTH double fmc_pow2d(int n) /* -1022 <= n <= 1023 */
{
    uint64_t u = (uint64_t)(n + 1023) << 52;
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* x = 2^e * m with m in [sqrt(1/2), sqrt(2)); x positive and finite. */
FMC_BOTH double fmc_split(int *e, double x)
{
    int k = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        k = -54;
    }
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    k += (int)(u >> 52) - 1023;
    u = (u & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &u, sizeof m);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        k++;
    }
    *e = k;
    return m;
}

FMC_BOTH double fmc_log_tail(double z)
{
    double p = 2.0 / 23;
    p = fma(p, z, 2.0 / 21);
    p = fma(p, z, 2.0 / 19);
    p = fma(p, z, 2.0 / 17);
    p = fma(p, z, 2.0 / 15);
    p = fma(p, z, 2.0 / 13);
    p = fma(p, z, 2.0 / 11);
    p = fma(p, z, 2.0 / 9);
    p = fma(p, z, 2.0 / 7);
    return fma(p, z, 2.0 / 5);
}

FMC_BOTH fmc_dd fmc_log_dd(double x)
{
    const fmc_dd two_thirds = {2.0 / 3, 0x1.5555555555555p-55};
    int e;
    double f = fmc_split(&e, x) - 1.0;
    fmc_dd den = fmc_two_sum(2.0, f);
    fmc_dd s = {f / den.hi, 0.0};
    s.lo = (fma(-s.hi, den.hi, f) - s.hi * den.lo) / den.hi;
    fmc_dd z = fmc_mul_dd(s, s);
    fmc_dd s3 = fmc_mul_dd(fmc_mul_dd(s, z), two_thirds);
    double rest = s.hi * z.hi * z.hi * fmc_log_tail(z.hi);
    fmc_dd twice = {2.0 * s.hi, 2.0 * s.lo};
    fmc_dd base = fmc_two_sum((double)e * FMC_LN2_HI, (double)e * FMC_LN2_LO);
    fmc_dd tail = {rest, 0.0};
    return fmc_add_dd(base, fmc_add_dd(twice, fmc_add_dd(s3, tail)));
}

/* fm_log: 0 gives -inf, a negative number NaN. */
FMC_BOTH double fmc_log(double x)
{
    if (!(x > 0.0 && x < (double)INFINITY))
        return x == 0.0 ? -(double)INFINITY : x > 0.0 ? x : (double)NAN;
    fmc_dd l = fmc_log_dd(x);
    return l.hi + l.lo;
}

FMC_BOTH double fmc_exp_tail(double r)
{
    double p = 1.0 / 6227020800.0;
    p = fma(p, r, 1.0 / 479001600);
    p = fma(p, r, 1.0 / 39916800);
    p = fma(p, r, 1.0 / 3628800);
    p = fma(p, r, 1.0 / 362880);
    p = fma(p, r, 1.0 / 40320);
    p = fma(p, r, 1.0 / 5040);
    p = fma(p, r, 1.0 / 720);
    p = fma(p, r, 1.0 / 120);
    p = fma(p, r, 1.0 / 24);
    p = fma(p, r, 1.0 / 6);
    return fma(p, r, 1.0 / 2);
}

#define FMC_EXP_MAX 709.782712893384
#define FMC_EXP_MIN -745.1332191019412

/* exp(x + extra), extra tiny against x or against 1. */
FMC_BOTH double fmc_exp_dd(double x, double extra)
{
    if (x != x)
        return x;
    if (x > FMC_EXP_MAX + 1)
        return (double)INFINITY;
    if (x < FMC_EXP_MIN - 1)
        return 0.0;
    double n = (x * 0x1.71547652b82fep+0 + 0x1.8p52) - 0x1.8p52;
    double r0 = fma(-n, FMC_LN2_HI, x);
    fmc_dd r1 = fmc_two_sum(r0, -n * FMC_LN2_LO);
    double lost = -fma(n, FMC_LN2_LO, -(n * FMC_LN2_LO));
    fmc_dd r = fmc_two_sum(r1.hi, r1.lo + lost + extra);
    double y = 1.0 + (r.hi + fma(r.hi * r.hi, fmc_exp_tail(r.hi), r.lo));
    int k = (int)n, half = k / 2;
    return y * fmc_pow2d(half) * fmc_pow2d(k - half);
}

FMC_BOTH double fmc_pow(double base, double exponent)
{
    if (base != base || exponent != exponent)
        return base + exponent;
    if (exponent == 0.0 || base == 1.0)
        return 1.0;
    if (!(base > 0.0 && base < (double)INFINITY))
        return fmc_exp_dd(exponent * fmc_log(base), 0.0);
    fmc_dd l = fmc_log_dd(base);
    double hi = exponent * l.hi;
    if (!(hi < FMC_EXP_MAX + 1 && hi > FMC_EXP_MIN - 1))
        return fmc_exp_dd(hi, 0.0);
    return fmc_exp_dd(hi, fma(exponent, l.hi, -hi) + exponent * l.lo);
}

#endif
