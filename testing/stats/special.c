/* special.c - gamma, beta, normal and binomial functions.
 *
 * Masses of binomials are computed by the saddle-point form (Loader 2000): differences of large
 * log-gammas would cost ten digits at 100,000 cases. The incomplete beta is its continued fraction
 * (Lentz's method) times such a mass; quantiles are roots of the cdf, found by halving to the last
 * bit, since they are asked for a few times a report and never in a loop over cases. */
#include "testing/stats.h"

#include <math.h>

#include "store/base/math/detmath.h"

#define PI 3.14159265358979323846
#define LOG_SQRT_2PI 0.91893853320467274178
#define LEAST 1e-300

/* log Gamma(x) - ((x - 1/2) log x - x + log sqrt(2 pi)) for x >= 16. */
static double stirling_tail(double x)
{
    double y = 1 / (x * x);
    return (1.0 / 12 -
            y * (1.0 / 360 -
                 y * (1.0 / 1260 - y * (1.0 / 1680 - y * (1.0 / 1188 - y * (691.0 / 360360)))))) /
           x;
}

double fm_log_gamma(double x)
{
    double product = 1;
    if (!(x > 0))
        return (double)NAN;
    for (; x < 16; x++)
        product *= x;
    return (x - 0.5) * fm_log(x) - x + LOG_SQRT_2PI + stirling_tail(x) - fm_log(product);
}

/* log n! - log(sqrt(2 pi n) (n/e)^n), n > 0: the error of Stirling's formula. */
static double stirling_error(double n)
{
    if (n >= 16)
        return stirling_tail(n);
    return fm_log_gamma(n + 1) - (n + 0.5) * fm_log(n) + n - LOG_SQRT_2PI;
}

/* x log(x / m) + m - x, without cancellation where x is near m. */
static double deviance(double x, double m)
{
    double v = (x - m) / (x + m);
    if (!(fabs(v) < 0.1))
        return x * fm_log(x / m) + m - x;
    double sum = (x - m) * v, term = 2 * x * v;
    for (int j = 1; j < 1000; j++) {
        term *= v * v;
        double next = sum + term / (2 * j + 1);
        if (next == sum)
            break;
        sum = next;
    }
    return sum;
}

/* log(1 - less), where rest is 1 - less. */
static double log_rest(double less, double rest)
{
    return less < 1e-4 ? -less * (1 + less * (1.0 / 2 + less * (1.0 / 3 + less / 4)))
                       : fm_log(rest);
}

/* Gamma(n+1) / (Gamma(k+1) Gamma(n-k+1)) p^k q^(n-k) for real 0 <= k <= n, q = 1 - p. */
static double mass(double k, double n, double p, double q)
{
    if (p <= 0)
        return k <= 0 ? 1 : 0;
    if (q <= 0)
        return k >= n ? 1 : 0;
    if (k <= 0 || k >= n)
        return fm_exp(k <= 0 ? n * log_rest(p, q) : n * log_rest(q, p));
    double tail = stirling_error(n) - stirling_error(k) - stirling_error(n - k) -
                  deviance(k, n * p) - deviance(n - k, n * q);
    return fm_exp(tail) * sqrt(n / (2 * PI * k * (n - k)));
}

double fm_binom_pmf(int64_t k, int64_t n, double p)
{
    return k < 0 || k > n ? 0 : mass((double)k, (double)n, p, 1 - p);
}

/* The continued fraction of I_x(a, b) without its front factor; converges quickly for
 * x < (a + 1) / (a + b + 2), in about sqrt(max(a, b)) steps. */
static double beta_fraction(double x, double a, double b)
{
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < LEAST ? LEAST : d);
    double h = d;
    for (int i = 1; i < 100000; i++) {
        double m = i, even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        d = 1 + even * d;
        c = 1 + even / c;
        d = 1 / (fabs(d) < LEAST ? LEAST : d);
        c = fabs(c) < LEAST ? LEAST : c;
        h *= d * c;
        double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        d = 1 + odd * d;
        c = 1 + odd / c;
        d = 1 / (fabs(d) < LEAST ? LEAST : d);
        c = fabs(c) < LEAST ? LEAST : c;
        h *= d * c;
        if (fabs(d * c - 1) < 4e-16)
            break;
    }
    return h;
}

/* I_x(a, b) with y = 1 - x given, so that neither end loses digits. */
static double beta_cdf(double x, double y, double a, double b)
{
    if (!(x > 0))
        return 0;
    if (!(y > 0))
        return 1;
    double front = a * b / (a + b) * mass(a, a + b, x, y); /* x^a y^b / B(a, b) */
    if (x < (a + 1) / (a + b + 2))
        return front * beta_fraction(x, a, b) / a;
    return 1 - front * beta_fraction(y, b, a) / b;
}

double fm_beta_cdf(double x, double a, double b)
{
    return a > 0 && b > 0 && !isnan(x) ? beta_cdf(x, 1 - x, a, b) : (double)NAN;
}

double fm_binom_cdf(int64_t k, int64_t n, double p)
{
    if (k < 0 || k >= n)
        return k < 0 ? 0 : 1;
    return beta_cdf(1 - p, p, (double)(n - k), (double)k + 1);
}

double fm_binom_sf(int64_t k, int64_t n, double p)
{
    if (k <= 0 || k > n)
        return k <= 0 ? 1 : 0;
    return beta_cdf(p, 1 - p, (double)k, (double)(n - k) + 1);
}

double fm_hypergeom_pmf(int64_t k, int64_t population, int64_t marked, int64_t n)
{
    int64_t rest = population - marked;
    if (k < 0 || k > marked || n - k < 0 || n - k > rest)
        return 0;
    if (population == 0)
        return 1;
    double p = (double)n / (double)population, q = (double)(population - n) / (double)population;
    return mass((double)k, (double)marked, p, q) * mass((double)(n - k), (double)rest, p, q) /
           mass((double)n, (double)population, p, q);
}

double fm_root(fm_root_fn f, const void *ctx, double low, double high)
{
    if (f(ctx, low) >= 0)
        return low;
    for (int i = 0; i < 2200; i++) {
        double mid = low + (high - low) / 2;
        if (!(mid > low && mid < high))
            break;
        if (f(ctx, mid) >= 0)
            high = mid;
        else
            low = mid;
    }
    return high;
}

typedef struct beta_aim {
    double p, a, b;
} beta_aim;

static double beta_gap(const void *ctx, double x)
{
    const beta_aim *t = ctx;
    return fm_beta_cdf(x, t->a, t->b) - t->p;
}

double fm_beta_quantile(double p, double a, double b)
{
    if (!(p >= 0 && p <= 1 && a > 0 && b > 0))
        return (double)NAN;
    return p < 1 ? fm_root(beta_gap, &(beta_aim){p, a, b}, 0, 1) : 1;
}

/* Uses the power series near 0, further out the continued fraction of the tail (Laplace). */
double fm_normal_cdf(double z)
{
    double density = fm_exp(-z * z / 2 - LOG_SQRT_2PI), far = fabs(z);
    if (isnan(z))
        return z;
    if (far < 3) {
        double term = z, sum = z;
        for (int i = 1; i < 200 && fabs(term) > fabs(sum) * 1e-18; i++) {
            term *= z * z / (2 * i + 1);
            sum += term;
        }
        return 0.5 + density * sum;
    }
    double tail = far;
    for (int i = 150; i >= 1; i--)
        tail = far + i / tail;
    return z < 0 ? density / tail : 1 - density / tail;
}

static double normal_gap(const void *ctx, double z)
{
    return fm_normal_cdf(z) - *(const double *)ctx;
}

double fm_normal_quantile(double p)
{
    if (!(p >= 0 && p <= 1))
        return (double)NAN;
    if (p <= 0 || p >= 1)
        return p <= 0 ? -(double)INFINITY : (double)INFINITY;
    if (p > 0.5) { /* in the upper tail only 1 - p keeps the digits */
        double q = 1 - p;
        return -fm_root(normal_gap, &q, -40, 0);
    }
    return fm_root(normal_gap, &p, -40, 0);
}
