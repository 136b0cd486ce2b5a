/* stats.h - statistics of the outcomes of suites: intervals, tests, power, early stopping.
 *
 * Pure functions in double precision: equal input gives equal bits on every machine (exp, log and
 * random numbers are those of store/base; nothing reads a clock or a locale). Counts are of cases;
 * rates, confidences (0.95) and error rates (alpha 0.05) are in [0, 1]. A value that does not exist
 * is NaN: a rate of no cases, an effect that no outcome of n cases could show.
 * tests/peer/stats_reference.py checks everything against SciPy and statsmodels. */
#ifndef FM_TESTING_STATS_H
#define FM_TESTING_STATS_H

#include "store/base/error.h"

FM_BEGIN_DECLS

typedef struct fm_interval {
    double low, high;
} fm_interval;
typedef struct fm_estimate {
    double value, low, high;
} fm_estimate;

/* ---- functions that the others use (stats/special.c) ---- */
double fm_log_gamma(double x);                         /* x > 0 */
double fm_beta_cdf(double x, double a, double b);      /* regularised incomplete; a, b > 0 */
double fm_beta_quantile(double p, double a, double b); /* least x whose cdf reaches p */
double fm_normal_cdf(double z);
double fm_normal_quantile(double p); /* 0: -inf, 1: inf */
/* k of n draws succeed when each does with probability p; k beyond 0..n has no mass. */
double fm_binom_pmf(int64_t k, int64_t n, double p);
double fm_binom_cdf(int64_t k, int64_t n, double p); /* P[X <= k] */
double fm_binom_sf(int64_t k, int64_t n, double p);  /* P[X >= k] */
/* P[k marked among n drawn without replacement from `population` with `marked` marked]. */
double fm_hypergeom_pmf(int64_t k, int64_t population, int64_t marked, int64_t n);
/* Least x in [low, high] at which the growing f is >= 0, to the last bit; high if none. */
typedef double (*fm_root_fn)(const void *ctx, double x);
double fm_root(fm_root_fn f, const void *ctx, double low, double high);

/* ---- one rate (stats/rates.c): k of n ---- */
/* Wilson 1927, without continuity correction: what reports print. [0, 1] for n = 0. */
fm_interval fm_wilson(size_t k, size_t n, double confidence);

/* ---- two rates (stats/rates.c): a = k1/n1, b = k2/n2, independent; all compare b with a ---- */
/* b - a, Newcombe 1998 method 10: the Wilson limits of both, combined. */
fm_estimate fm_rate_difference(size_t k1, size_t n1, size_t k2, size_t n2, double confidence);
/* b / a, the score interval of Koopman 1984; value NaN and high inf where k1 = 0. */
fm_estimate fm_rate_ratio(size_t k1, size_t n1, size_t k2, size_t n2, double confidence);

/* ---- the same cases on two models (stats/paired.c) ---- */
/* Exact two-sided McNemar test: without a difference the b + c flips are fair coins. */
double fm_mcnemar(size_t b, size_t c);
/* The difference of two pass rates over the same cases, later minus earlier: fixed, broken, both
 * pass, both fail. Newcombe 1998 (Statistics in Medicine 17:2635) method 10: Wilson limits and the
 * correlation of the pairs. */
fm_estimate fm_paired_difference(size_t fixed, size_t broken, size_t both_pass, size_t both_fail,
                                 double confidence);
/* Two-sided permutation test of whether differences of pairs are as likely to go either way: it
 * flips signs, in all ways for up to 16 differences that are not 0, else in `resamples` random ways
 * (then the p-value counts the sample itself and is never 0). */
double fm_permutation_paired(const double *difference, size_t n, uint32_t resamples, uint64_t seed);

/* ---- bootstrap (stats/bootstrap.c) ---- */
#define FM_BOOTSTRAP_RESAMPLES 2000u
typedef struct fm_bootstrap {
    uint32_t resamples;
    uint64_t seed;     /* the same seed draws the same cases */
    double confidence; /* of the interval */
    bool bca;          /* bias-corrected and accelerated (Efron 1987), else percentiles */
} fm_bootstrap;
/* {2000, 0, 0.95, true} */
fm_bootstrap fm_bootstrap_defaults(void);
/* A statistic of the cases pick[0..n), which may repeat. It must not depend on their order. */
typedef double (*fm_statistic_fn)(const void *ctx, const uint32_t *pick, size_t n);
/* value: the statistic of the cases themselves, each once. Quantiles are linear, as NumPy's
 * default. BCa falls back on percentiles where it is not defined (all resamples alike). n >= 1. */
FM_CHECKED fm_status fm_bootstrap_of(fm_estimate *out, fm_statistic_fn f, const void *ctx, size_t n,
                                     const fm_bootstrap *how);
/* The mean of x; with x[i] = later[i] - earlier[i] the paired bootstrap of a difference. */
FM_CHECKED fm_status fm_bootstrap_mean(fm_estimate *out, const double *x, size_t n,
                                       const fm_bootstrap *how);

/* ---- many tests at once (stats/many.c): out[n] adjusted p-values, may be p itself ---- */
/* Holm 1979: any false alarm has probability <= alpha, however the tests depend. */
FM_CHECKED fm_status fm_adjust_holm(double *out, const double *p, size_t n);
/* Benjamini & Hochberg 1995: an expected share <= alpha of the reported tests is false. */
FM_CHECKED fm_status fm_adjust_bh(double *out, const double *p, size_t n);

/* ---- stopping early (stats/sequential.c) ----
 * Does the pass rate of `population` cases (0: of an endless supply) reach a threshold? Cases are
 * asked in random order, without repeats, and the decision may be read after any of them.
 * The evidence against a rate is the e-value prior / posterior of that rate under a uniform prior
 * (Waudby-Smith & Ramdas 2020, prior-posterior ratio): under the true rate it is a martingale of
 * mean 1, so it ever reaches 1/alpha with probability <= alpha (Ville). Chosen over Wald's SPRT
 * because it needs no second rate to test against, is exact for a finite suite asked without
 * replacement, and so is certain at the latest when the rest cannot change the answer. */
typedef enum fm_decision { FM_UNDECIDED, FM_REACHED, FM_MISSED } fm_decision;
typedef struct fm_sequential {
    double threshold;  /* is rate >= threshold? */
    double alpha;      /* probability of a wrong answer of each kind, over all looks */
    size_t population; /* number of all cases; 0: endless */
} fm_sequential;
/* After n cases of which k passed. An alpha of 0 stops only when the answer is certain. */
fm_decision fm_sequential_look(const fm_sequential *s, size_t k, size_t n);
/* Rates that the evidence has not ruled out; valid for all looks together. */
fm_interval fm_confidence_sequence(const fm_sequential *s, size_t k, size_t n);

/* ---- what n cases can show (stats/power.c) ---- */
/* The least drop of a pass rate from `rate` that n cases show with this power, by the exact
 * one-sided binomial test; NaN: they do not even show a drop to 0. */
double fm_detectable_drop(size_t n, double rate, double alpha, double power);
/* The least share of net losses (broken less fixed) on n paired cases that exact McNemar shows with
 * this power, where a share `churn` of all cases flips without a cause, half of it each way (0:
 * none); NaN: no share can be shown. */
double fm_detectable_flips(size_t n, double churn, double alpha, double power);
/* The power of that test when shares `fixed` and `broken` flip. */
double fm_mcnemar_power(size_t n, double fixed, double broken, double alpha);

/* ---- calibration (stats/calibration.c): confidence[i] in [0, 1] that case i is right ---- */
/* Sum over `bins` equal-width bins of |share right - mean confidence|, weighted by cases (Naeini
 * 2015). A confidence on a boundary belongs to the bin below. */
FM_CHECKED fm_status fm_expected_calibration_error(fm_estimate *out, const double *confidence,
                                                   const bool *right, size_t n, uint32_t bins,
                                                   const fm_bootstrap *how);

FM_END_DECLS
#endif
