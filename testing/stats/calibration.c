/* calibration.c - whether a model is as often right as it is confident. */
#include "testing/stats.h"

#include <math.h>

#define BINS_MAX 1000u

typedef struct said {
    const double *confidence;
    const bool *right;
    uint32_t bins;
} said;

static uint32_t bin_of(double confidence, uint32_t bins)
{
    double at = ceil(confidence * bins) - 1;
    return at < 0 ? 0 : at >= bins ? bins - 1 : (uint32_t)at;
}

static double calibration_error(const void *ctx, const uint32_t *pick, size_t n)
{
    const said *s = ctx;
    double gap[BINS_MAX] = {0}, sum = 0; /* per bin: right minus confidence, summed over cases */
    for (size_t i = 0; i < n; i++) {
        double c = s->confidence[pick[i]];
        gap[bin_of(c, s->bins)] += (s->right[pick[i]] ? 1 : 0) - c;
    }
    for (uint32_t b = 0; b < s->bins; b++)
        sum += fabs(gap[b]);
    return sum / (double)n;
}

static fm_status of_confidences(fm_estimate *out, fm_statistic_fn f, const said *s, size_t n,
                                const fm_bootstrap *how)
{
    *out = (fm_estimate){(double)NAN, (double)NAN, (double)NAN};
    if (n == 0)
        return fm_fail(FM_EINVAL, "calibration: no case has a confidence");
    if (s->bins < 1 || s->bins > BINS_MAX)
        return fm_fail(FM_EINVAL, "calibration: %u bins; want 1 to %u", s->bins, BINS_MAX);
    for (size_t i = 0; i < n; i++)
        if (!(s->confidence[i] >= 0 && s->confidence[i] <= 1))
            return fm_fail(FM_EINVAL, "calibration: confidence %g of case %zu is not in [0, 1]",
                           s->confidence[i], i);
    return fm_bootstrap_of(out, f, s, n, how);
}

fm_status fm_expected_calibration_error(fm_estimate *out, const double *confidence,
                                        const bool *right, size_t n, uint32_t bins,
                                        const fm_bootstrap *how)
{
    return of_confidences(out, calibration_error, &(said){confidence, right, bins}, n, how);
}
