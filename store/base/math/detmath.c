/* detmath.c - elementary functions from IEEE basic operations and explicit fma alone.
 *
 * Argument reduction in two doubles (Cody and Waite), then plain Taylor polynomials: on ranges this
 * short they need only two or three terms more than minimax ones and every coefficient can be
 * checked by eye. fma() is exact by definition, so a CPU without the instruction gives the same
 * bits, slowly. The rounding mode must be to nearest. */
#include "store/base/math/detmath.h"

#include <math.h>
#include <string.h>

#define ROUND_MAGIC 0x1.8p52   /* adding and subtracting it rounds |x| < 2^51 to an integer */
#define LN2_HI 0x1.62e42feep-1 /* 32 bits: times any exponent it is exact */
#define LN2_LO 0x1.a39ef35793c76p-33
#define LOG2_E 0x1.71547652b82fep+0
#define TWO_OVER_PI 0x1.45f306dc9c883p-1
#define PIO2_1 0x1.921fb54442d18p+0 /* pi/2 in three doubles */
#define PIO2_2 0x1.1a62633145c07p-54
#define PIO2_3 -0x1.f1976b7ed8fbcp-110
#define EXP_MAX 709.782712893384
#define EXP_MIN -745.1332191019412

typedef struct dd { /* hi + lo, |lo| <= ulp(hi) / 2 */
    double hi, lo;
} dd;

static dd two_sum(double a, double b)
{
    double s = a + b;
    double t = s - a;
    dd r = {s, (a - (s - t)) + (b - t)};
    return r;
}

static uint64_t bits_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

static double pow2(int n) /* -1022 <= n <= 1023 */
{
    uint64_t u = (uint64_t)(n + 1023) << 52;
    double x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

/* (exp(r) - 1 - r) / r^2 for |r| <= 0.35; the first term left out is below 4e-18. */
static double exp_tail(double r)
{
    static const double c[] = {1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,
                               1.0 / 720,     1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
                               1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};
    double p = c[FM_ARRAY_LEN(c) - 1];

    for (size_t i = FM_ARRAY_LEN(c) - 1; i-- > 0;)
        p = fma(p, r, c[i]);
    return p;
}

/* exp(x + extra), where extra is tiny compared with x or with 1. */
static double exp_dd(double x, double extra)
{
    if (x != x)
        return x;
    if (x > EXP_MAX + 1)
        return (double)INFINITY;
    if (x < EXP_MIN - 1)
        return 0.0;
    double n = (x * LOG2_E + ROUND_MAGIC) - ROUND_MAGIC;
    double r0 = fma(-n, LN2_HI, x);
    dd r1 = two_sum(r0, -n * LN2_LO);
    double lost = -fma(n, LN2_LO, -(n * LN2_LO)); /* the rounding error of n * LN2_LO */
    dd r = two_sum(r1.hi, r1.lo + lost + extra);
    double y = 1.0 + (r.hi + fma(r.hi * r.hi, exp_tail(r.hi), r.lo));
    int k = (int)n;
    int half = k / 2; /* two steps: 2^k alone may be out of range where the result is not */
    return y * pow2(half) * pow2(k - half);
}

double fm_exp(double x)
{
    return exp_dd(x, 0.0);
}

/* x = 2^e * m with m in [sqrt(1/2), sqrt(2)); x positive and finite. */
static double split(int *e, double x)
{
    int k = 0;

    if (x < 0x1p-1022) {
        x *= 0x1p54;
        k = -54;
    }
    uint64_t u = bits_of(x);
    k += (int)(u >> 52) - 1023;
    u = (u & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &u, sizeof(m));
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        k++;
    }
    *e = k;
    return m;
}

/* (log((1+s)/(1-s)) - 2s - 2s^3/3) / s^5 as a polynomial in z = s^2 <= 0.0295. */
static double log_tail(double z)
{
    static const double c[] = {2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11, 2.0 / 13,
                               2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21, 2.0 / 23};
    double p = c[FM_ARRAY_LEN(c) - 1];

    for (size_t i = FM_ARRAY_LEN(c) - 1; i-- > 0;)
        p = fma(p, z, c[i]);
    return p;
}

static dd mul_dd(dd a, dd b)
{
    double hi = a.hi * b.hi;
    double lo = fma(a.hi, b.hi, -hi) + (a.hi * b.lo + a.lo * b.hi);
    return two_sum(hi, lo);
}

static dd add_dd(dd a, dd b)
{
    dd s = two_sum(a.hi, b.hi);
    return two_sum(s.hi, s.lo + (a.lo + b.lo));
}

/* log(x) to about 2^-65 relative, for pow: its exponent multiplies the error up to 700 times. */
static dd log_dd(double x)
{
    static const dd two_thirds = {2.0 / 3, 0x1.5555555555555p-55};
    int e;
    double f = split(&e, x) - 1.0; /* exact */
    dd den = two_sum(2.0, f);
    dd s = {f / den.hi, 0.0};
    s.lo = (fma(-s.hi, den.hi, f) - s.hi * den.lo) / den.hi;
    dd z = mul_dd(s, s);
    dd s3 = mul_dd(mul_dd(s, z), two_thirds);
    double rest = s.hi * z.hi * z.hi * log_tail(z.hi);
    dd twice = {2.0 * s.hi, 2.0 * s.lo};
    dd base = two_sum((double)e * LN2_HI, (double)e * LN2_LO);
    dd tail = {rest, 0.0};
    return add_dd(base, add_dd(twice, add_dd(s3, tail)));
}

/* True where log(x) needs no arithmetic: x is zero, negative, infinite or NaN. */
static bool log_special(double *out, double x)
{
    if (x > 0.0 && x < (double)INFINITY)
        return false;
    if (x == 0.0)
        *out = -(double)INFINITY;
    else
        *out = x > 0.0 ? x : (double)NAN;
    return true;
}

double fm_log(double x)
{
    double special;

    if (log_special(&special, x))
        return special;
    dd l = log_dd(x);
    return l.hi + l.lo;
}

/* What rounding 1 + x loses is added to the first order (Goldberg 1991, theorem 4). */
double fm_log1p(double x)
{
    double one = 1.0 + x;

    if (!(one > 0.0 && one < (double)INFINITY))
        return fm_log(one);
    dd s = two_sum(1.0, x);
    return fm_log(one) + s.lo / one;
}

double fm_pow(double base, double exponent)
{
    double special;

    if (base != base || exponent != exponent)
        return base + exponent;
    if (exponent == 0.0 || base == 1.0)
        return 1.0;
    if (log_special(&special, base))
        return fm_exp(exponent * special);
    dd l = log_dd(base);
    double hi = exponent * l.hi;
    if (!(hi < EXP_MAX + 1 && hi > EXP_MIN - 1))
        return fm_exp(hi);
    return exp_dd(hi, fma(exponent, l.hi, -hi) + exponent * l.lo);
}

/* sin(r.hi + r.lo) for |r| <= pi/4. */
static double sin_core(dd r)
{
    static const double c[] = {-1.0 / 6,
                               1.0 / 120,
                               -1.0 / 5040,
                               1.0 / 362880,
                               -1.0 / 39916800,
                               1.0 / 6227020800.0,
                               -1.0 / 1307674368000.0,
                               1.0 / 355687428096000.0};
    double z = r.hi * r.hi;
    double p = c[FM_ARRAY_LEN(c) - 1];

    for (size_t i = FM_ARRAY_LEN(c) - 1; i-- > 0;)
        p = fma(p, z, c[i]);
    return r.hi + fma(r.hi * z, p, r.lo * fma(-0.5, z, 1.0));
}

static double cos_core(dd r)
{
    static const double c[] = {1.0 / 24,
                               -1.0 / 720,
                               1.0 / 40320,
                               -1.0 / 3628800,
                               1.0 / 479001600,
                               -1.0 / 87178291200.0,
                               1.0 / 20922789888000.0,
                               -1.0 / 6402373705728000.0};
    double z = r.hi * r.hi;
    double z_lo = fma(r.hi, r.hi, -z);
    double p = c[FM_ARRAY_LEN(c) - 1];

    for (size_t i = FM_ARRAY_LEN(c) - 1; i-- > 0;)
        p = fma(p, z, c[i]);
    dd w = two_sum(1.0, -0.5 * z);
    return w.hi + (w.lo + (fma(z * z, p, -0.5 * z_lo) - r.hi * r.lo));
}

void fm_sincos(double *sin_out, double *cos_out, double x)
{
    *sin_out = *cos_out = (double)NAN;
    if (!(x <= 1e9 && x >= -1e9))
        return;
    double n = (x * TWO_OVER_PI + ROUND_MAGIC) - ROUND_MAGIC;
    double w = n * PIO2_2;
    dd r = two_sum(fma(-n, PIO2_1, x), -w); /* the fma is exact: its bits all lie above 2^-53 */
    r = two_sum(r.hi, r.lo - fma(n, PIO2_2, -w) - n * PIO2_3);
    double s = sin_core(r);
    double c = cos_core(r);
    switch ((unsigned)((int64_t)n & 3)) {
    case 0:
        *sin_out = s, *cos_out = c;
        break;
    case 1:
        *sin_out = c, *cos_out = -s;
        break;
    case 2:
        *sin_out = -s, *cos_out = -c;
        break;
    default:
        *sin_out = -c, *cos_out = s;
        break;
    }
}
