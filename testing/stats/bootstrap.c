/* bootstrap.c - intervals of any statistic of cases, by resampling. */
#include "testing/stats.h"

#include <math.h>
#include <stdlib.h>

#include "store/base/mem.h"
#include "store/base/math/rng.h"

fm_bootstrap fm_bootstrap_defaults(void)
{
    return (fm_bootstrap){FM_BOOTSTRAP_RESAMPLES, 0, 0.95, true};
}

/* The high half of a 64-bit number times n: uniform in [0, n) up to an error of n / 2^64. */
static uint32_t below(uint32_t low, uint32_t high, uint32_t n)
{
    return (uint32_t)(((uint64_t)high * n + ((uint64_t)low * n >> 32)) >> 32);
}

/* Draws the cases of resample r: words (0, 1) of block i are draw 2i, words (2, 3) draw 2i + 1. */
static void draw(uint32_t *pick, size_t n, uint64_t seed, uint32_t r)
{
    for (size_t i = 0; i < n; i += 2) {
        fm_u32x4 x = fm_philox(seed, r, i / 2);
        pick[i] = below(x.v[0], x.v[1], (uint32_t)n);
        if (i + 1 < n)
            pick[i + 1] = below(x.v[2], x.v[3], (uint32_t)n);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, size_t n, double p)
{
    double at = p * (double)(n - 1), floor_at = floor(at);
    size_t i = (size_t)floor_at;
    if (i + 1 >= n)
        return sorted[n - 1];
    return sorted[i] + (at - floor_at) * (sorted[i + 1] - sorted[i]);
}

/* BCa's acceleration: third moment of the jackknife's influence over its second, divided by 6. pick
 * is scratch of n. NaN where every case has the same weight. */
static double acceleration(fm_statistic_fn f, const void *ctx, uint32_t *pick, double *left,
                           size_t n)
{
    double mean = 0, square = 0, cube = 0;
    for (size_t i = 1; i < n; i++)
        pick[i - 1] = (uint32_t)i;
    for (size_t i = 0; i < n; i++) { /* all cases but i */
        left[i] = f(ctx, pick, n - 1);
        mean += left[i] / (double)n;
        if (i + 1 < n)
            pick[i] = (uint32_t)i;
    }
    for (size_t i = 0; i < n; i++) {
        double d = mean - left[i];
        square += d * d;
        cube += d * d * d;
    }
    return square > 0 ? cube / (6 * square * sqrt(square)) : (double)NAN;
}

/* Chooses percentiles (Efron 1987). The bias comes from the share of resamples below the value
 * (ties count half). Percentiles stay as they are where that share is 0 or 1. */
static void shift_tails(double tail[2], double share, double a)
{
    double z0 = fm_normal_quantile(share);
    if (!isfinite(z0) || isnan(a))
        return;
    for (int i = 0; i < 2; i++) {
        double z = z0 + fm_normal_quantile(tail[i]), scale = 1 - a * z;
        if (scale > 0)
            tail[i] = fm_normal_cdf(z0 + z / scale);
    }
}

/* A general statistic costs n for each case left out; above this n the acceleration is taken as 0,
 * which it approaches as 1 / sqrt(n). */
#define JACKKNIFE_MAX 5000u

static double share_below(const double *stat, size_t n, double value)
{
    double share = 0;
    for (size_t i = 0; i < n; i++)
        share += stat[i] < value ? 1 : stat[i] > value ? 0 : 0.5;
    return share / (double)n;
}

static void interval(fm_estimate *out, double *stat, const fm_bootstrap *how, double a)
{
    double tail[2] = {(1 - how->confidence) / 2, (1 + how->confidence) / 2};
    if (how->bca)
        shift_tails(tail, share_below(stat, how->resamples, out->value), a);
    qsort(stat, how->resamples, sizeof *stat, by_value);
    out->low = quantile(stat, how->resamples, tail[0]);
    out->high = quantile(stat, how->resamples, tail[1]);
}

fm_status fm_bootstrap_of(fm_estimate *out, fm_statistic_fn f, const void *ctx, size_t n,
                          const fm_bootstrap *how)
{
    fm_assert(n >= 1 && n < UINT32_MAX && how->resamples >= 1);
    uint32_t *pick = fm_calloc(n, sizeof *pick);
    double *stat = fm_calloc(how->resamples, sizeof *stat), *left = fm_calloc(n, sizeof *left);
    fm_status rc = pick && stat && left ? FM_OK : FM_ENOMEM;
    *out = (fm_estimate){(double)NAN, (double)NAN, (double)NAN};
    if (rc == FM_OK) {
        double a = 0;
        for (size_t i = 0; i < n; i++)
            pick[i] = (uint32_t)i;
        out->value = f(ctx, pick, n);
        for (uint32_t r = 0; r < how->resamples; r++) {
            draw(pick, n, how->seed, r);
            stat[r] = f(ctx, pick, n);
        }
        if (how->bca && n > 1 && n <= JACKKNIFE_MAX)
            a = acceleration(f, ctx, pick, left, n);
        interval(out, stat, how, a);
    }
    fm_free(pick);
    fm_free(stat);
    fm_free(left);
    return rc;
}

static double mean_of(const void *ctx, const uint32_t *pick, size_t n)
{
    const double *x = ctx;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[pick[i]];
    return sum / (double)n;
}

fm_status fm_bootstrap_mean(fm_estimate *out, const double *x, size_t n, const fm_bootstrap *how)
{
    return fm_bootstrap_of(out, mean_of, x, n, how);
}
