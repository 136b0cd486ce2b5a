/* paired.c - comparisons of two models on the same cases. */
#include "testing/stats.h"

#include <math.h>

#include "store/base/mem.h"
#include "store/base/math/rng.h"

#define SIGNS_MAX 16u /* up to so many differences all signs are tried */

/* Up to EXACT_FLIPS the coefficients are summed as whole numbers and scaled once: p-values of few
 * flips, which gates compare with bounds, are exact fractions. */
#define EXACT_FLIPS 1000u

double fm_mcnemar(size_t b, size_t c)
{
    size_t n = b + c, k = b < c ? b : c;
    double ways = 1, sum = 0;
    if (n > EXACT_FLIPS)
        return fmin(1, 2 * fm_binom_cdf((int64_t)k, (int64_t)n, 0.5));
    for (size_t i = 0; i <= k; i++) {
        sum += ways;
        ways = ways * (double)(n - i) / (double)(i + 1);
    }
    return fmin(1, ldexp(sum, 1 - (int)n));
}

fm_estimate fm_paired_difference(size_t fixed, size_t broken, size_t both_pass, size_t both_fail,
                                 double confidence)
{
    double a = (double)both_pass, b = (double)broken, c = (double)fixed, d = (double)both_fail;
    size_t n = fixed + broken + both_pass + both_fail;
    if (n == 0)
        return (fm_estimate){(double)NAN, -1, 1};
    fm_interval was = fm_wilson(both_pass + broken, n, confidence);
    fm_interval is = fm_wilson(both_pass + fixed, n, confidence);
    double p1 = (a + b) / (double)n, p2 = (a + c) / (double)n, diff = (c - b) / (double)n;
    double margins = (a + b) * (c + d) * (a + c) * (b + d), odds = a * d - b * c;
    if (odds > 0) /* as in Newcombe: positive correlation is taken as slightly weaker */
        odds = fmax(odds - (double)n / 2, 0);
    double phi = margins > 0 ? odds / sqrt(margins) : 0;
    double down1 = p1 - was.low, up1 = was.high - p1, down2 = p2 - is.low, up2 = is.high - p2;
    double low = up1 * up1 - 2 * phi * up1 * down2 + down2 * down2;
    double high = down1 * down1 - 2 * phi * down1 * up2 + up2 * up2;
    return (fm_estimate){diff, diff - sqrt(fmax(0, low)), diff + sqrt(fmax(0, high))};
}

/* The share of sign patterns whose sum is at least as far from 0. A margin includes sums that
 * differ by rounding only. */
static double all_signs(const double *x, unsigned n, double seen)
{
    uint32_t patterns = 1u << n, as_far = 0;
    for (uint32_t s = 0; s < patterns; s++) {
        double sum = 0;
        for (unsigned i = 0; i < n; i++)
            sum += s >> i & 1 ? -x[i] : x[i];
        as_far += fabs(sum) >= seen;
    }
    return (double)as_far / (double)patterns;
}

double fm_permutation_paired(const double *difference, size_t n, uint32_t resamples, uint64_t seed)
{
    double few[SIGNS_MAX], sum = 0, size = 0;
    unsigned count = 0;
    for (size_t i = 0; i < n; i++) {
        sum += difference[i];
        size += fabs(difference[i]);
        if (fabs(difference[i]) > 0 && count <= SIGNS_MAX && count++ < SIGNS_MAX)
            few[count - 1] = difference[i];
    }
    double seen = fabs(sum) - size * 1e-14;
    if (count <= SIGNS_MAX)
        return all_signs(few, count, seen);
    uint64_t as_far = 1;
    for (uint32_t r = 0; r < resamples; r++) {
        double total = 0;
        fm_u32x4 bits = {{0}};
        for (size_t i = 0; i < n; i++) {
            if (i % 128 == 0)
                bits = fm_philox(seed, r, i / 128);
            total += bits.v[i % 128 / 32] >> (i % 32) & 1 ? -difference[i] : difference[i];
        }
        as_far += fabs(total) >= seen;
    }
    return (double)as_far / ((double)resamples + 1);
}
