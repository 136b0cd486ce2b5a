/* power.c - the effects that n cases can show, by the exact distributions of the tests. */
#include "testing/stats.h"

#include <math.h>

/* Most passes at which a rate is called too low: the largest k with P[X <= k | rate] <= alpha. */
static int64_t too_few(int64_t n, double rate, double alpha)
{
    int64_t in = -1, out = n;
    while (out - in > 1) {
        int64_t mid = in + (out - in) / 2;
        if (fm_binom_cdf(mid, n, rate) <= alpha)
            in = mid;
        else
            out = mid;
    }
    return in;
}

double fm_detectable_drop(size_t n, double rate, double alpha, double power)
{
    int64_t most = n ? too_few((int64_t)n, rate, alpha) : -1;
    if (most < 0)
        return (double)NAN;
    return rate - fm_beta_quantile(1 - power, (double)most + 1, (double)((int64_t)n - most));
}

/* Least x > d / 2 of d fair coins whose two-sided p-value is <= alpha, from `from` upwards; beyond
 * d: none. */
static int64_t enough_broken(int64_t d, int64_t from, double alpha)
{
    int64_t x = from > d / 2 + 1 ? from : d / 2 + 1;
    while (x <= d && 2 * fm_binom_sf(x, d, 0.5) > alpha)
        x++;
    return x;
}

/* Sums the probability of d flips among n, times the power given d; values of d beyond nine
 * deviations are left out. */
double fm_mcnemar_power(size_t n, double fixed, double broken, double alpha)
{
    double flips = fixed + broken, m = (double)n, power = 0;
    if (!(flips > 0))
        return 0;
    double middle = m * flips, reach = 9 * sqrt(middle * fmax(0, 1 - flips)) + 20;
    int64_t from = middle > reach ? (int64_t)(middle - reach) : 0;
    int64_t to = middle + reach < m ? (int64_t)(middle + reach) : (int64_t)n;
    int64_t x =
        from > 0
            ? from / 2 + (int64_t)(fm_normal_quantile(1 - alpha / 2) * 0.4 * sqrt((double)from))
            : 0;
    for (int64_t d = from; d <= to; d++) {
        x = enough_broken(d, x, alpha);
        if (x <= d)
            power += fm_binom_pmf(d, (int64_t)n, flips) * fm_binom_sf(x, d, broken / flips);
    }
    return power;
}

double fm_detectable_flips(size_t n, double churn, double alpha, double power)
{
    double each = churn / 2, low = 0, high = 1 - churn;
    if (n == 0 || !(high > 0) || fm_mcnemar_power(n, each, each + high, alpha) < power)
        return (double)NAN;
    while (high - low > 1e-9) { /* a billionth: far less than one case */
        double mid = low + (high - low) / 2;
        if (fm_mcnemar_power(n, each, each + mid, alpha) >= power)
            high = mid;
        else
            low = mid;
    }
    return high;
}
