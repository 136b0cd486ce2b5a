/* rates.c - one pass rate, and two rates of different cases. */
#include "testing/stats.h"

#include <math.h>

static double z_of(double confidence)
{
    return fm_normal_quantile(0.5 + confidence / 2);
}

fm_interval fm_wilson(size_t k, size_t n, double confidence)
{
    if (n == 0)
        return (fm_interval){0, 1};
    double z = z_of(confidence), m = (double)n, p = (double)k / m;
    double scale = 1 + z * z / m, middle = p + z * z / (2 * m);
    double half = z * sqrt(p * (1 - p) / m + z * z / (4 * m * m));
    return (fm_interval){k == 0 ? 0 : (middle - half) / scale,
                         k == n ? 1 : (middle + half) / scale};
}

fm_estimate fm_rate_difference(size_t k1, size_t n1, size_t k2, size_t n2, double confidence)
{
    if (n1 == 0 || n2 == 0)
        return (fm_estimate){(double)NAN, -1, 1};
    fm_interval a = fm_wilson(k1, n1, confidence), b = fm_wilson(k2, n2, confidence);
    double p1 = (double)k1 / (double)n1, p2 = (double)k2 / (double)n2, d = p2 - p1;
    return (fm_estimate){d, d - sqrt((p2 - b.low) * (p2 - b.low) + (a.high - p1) * (a.high - p1)),
                         d + sqrt((b.high - p2) * (b.high - p2) + (p1 - a.low) * (p1 - a.low))};
}

/* For the score statistic of the hypothesis p2 = ratio p1, signed like p2 - ratio p1. The likeliest
 * p1 solves a quadratic (Koopman 1984; Miettinen & Nurminen 1985). */
typedef struct ratio_aim {
    double k1, n1, k2, n2, z;
    bool up; /* towards the upper limit */
} ratio_aim;

static double ratio_score(const ratio_aim *t, double ratio)
{
    double a = (t->n1 + t->n2) * ratio, b = -(t->k1 + t->n2) * ratio - (t->k2 + t->n1);
    double c = t->k1 + t->k2, root = sqrt(fmax(0, b * b - 4 * a * c));
    double p1 = 2 * c / (-b + root), p2 = p1 * ratio;
    double gap = t->k2 / t->n2 - ratio * (t->k1 / t->n1);
    double var = p2 * fmax(0, 1 - p2) / t->n2 + ratio * ratio * p1 * fmax(0, 1 - p1) / t->n1;
    if (!(var > 0))
        return gap > 0 ? (double)INFINITY : gap < 0 ? -(double)INFINITY : 0;
    return gap / sqrt(var);
}

/* Grows with log ratio; 0 at the wanted limit. */
static double ratio_gap(const void *ctx, double x)
{
    const ratio_aim *t = ctx;
    double score = ratio_score(t, x);
    return t->up ? -t->z - score : t->z - score;
}

fm_estimate fm_rate_ratio(size_t k1, size_t n1, size_t k2, size_t n2, double confidence)
{
    ratio_aim t = {(double)k1, (double)n1, (double)k2, (double)n2, z_of(confidence), false};
    fm_estimate r = {(double)NAN, 0, (double)INFINITY};
    if (n1 == 0 || n2 == 0 || (k1 == 0 && k2 == 0))
        return r;
    if (k1)
        r.value = (t.k2 / t.n2) / (t.k1 / t.n1);
    if (k2)
        r.low = fm_root(ratio_gap, &t, 0, 1e12);
    t.up = true;
    if (k1)
        r.high = fm_root(ratio_gap, &t, 0, 1e12);
    return r;
}
