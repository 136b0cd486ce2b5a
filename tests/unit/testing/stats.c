/* Statistics of suites against SciPy, statsmodels and brute force, as recorded by
 * tests/peer/stats_reference.py; error rates of the sequential test by simulation. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "testing/stats.h"
#include "tests/testkit.h"

#define IN_MAX 128
#define OUT_MAX 8

typedef struct args {
    double in[IN_MAX];
    size_t count;
} args;

static size_t whole(const args *a, size_t i)
{
    return (size_t)a->in[i];
}

static int64_t integer(const args *a, size_t i)
{
    return (int64_t)a->in[i];
}

static size_t give(double *out, fm_interval i)
{
    out[0] = i.low;
    out[1] = i.high;
    return 2;
}

static size_t give3(double *out, fm_estimate e)
{
    out[0] = e.value;
    return 1 + give(out + 1, (fm_interval){e.low, e.high});
}

static size_t one(double *out, double v)
{
    out[0] = v;
    return 1;
}

static size_t special_of(const char *f, const args *a, double *out)
{
    const double *in = a->in;
    if (strcmp(f, "log_gamma") == 0)
        return one(out, fm_log_gamma(in[0]));
    if (strcmp(f, "beta_cdf") == 0)
        return one(out, fm_beta_cdf(in[0], in[1], in[2]));
    if (strcmp(f, "beta_quantile") == 0)
        return one(out, fm_beta_quantile(in[0], in[1], in[2]));
    if (strcmp(f, "normal_cdf") == 0)
        return one(out, fm_normal_cdf(in[0]));
    if (strcmp(f, "normal_quantile") == 0)
        return one(out, fm_normal_quantile(in[0]));
    if (strcmp(f, "binom_pmf") == 0)
        return one(out, fm_binom_pmf(integer(a, 0), integer(a, 1), in[2]));
    if (strcmp(f, "binom_cdf") == 0)
        return one(out, fm_binom_cdf(integer(a, 0), integer(a, 1), in[2]));
    if (strcmp(f, "binom_sf") == 0)
        return one(out, fm_binom_sf(integer(a, 0), integer(a, 1), in[2]));
    if (strcmp(f, "hypergeom_pmf") == 0)
        return one(out,
                   fm_hypergeom_pmf(integer(a, 0), integer(a, 1), integer(a, 2), integer(a, 3)));
    return 0;
}

static size_t rates_of(const char *f, const args *a, double *out)
{
    size_t v[4] = {0};
    for (size_t i = 0; i < 4 && i < a->count; i++)
        v[i] = whole(a, i);
    if (strcmp(f, "wilson") == 0)
        return give(out, fm_wilson(v[0], v[1], a->in[2]));
    if (strcmp(f, "rate_difference") == 0)
        return give3(out, fm_rate_difference(v[0], v[1], v[2], v[3], a->in[4]));
    if (strcmp(f, "rate_ratio") == 0)
        return give3(out, fm_rate_ratio(v[0], v[1], v[2], v[3], a->in[4]));
    if (strcmp(f, "mcnemar") == 0)
        return one(out, fm_mcnemar(v[0], v[1]));
    if (strcmp(f, "paired_difference") == 0)
        return give3(out, fm_paired_difference(v[0], v[1], v[2], v[3], a->in[4]));
    if (strcmp(f, "permutation_paired") == 0)
        return one(out, fm_permutation_paired(a->in, a->count, 1000, 1));
    return 0;
}

static size_t many_of(const char *f, const args *a, double *out)
{
    if (strcmp(f, "holm") == 0)
        tk_ok(fm_adjust_holm(out, a->in, a->count));
    else if (strcmp(f, "bh") == 0)
        tk_ok(fm_adjust_bh(out, a->in, a->count));
    else
        return 0;
    return a->count;
}

static size_t resampled(const char *f, const args *a, double *out)
{
    fm_bootstrap how = {(uint32_t)a->in[0], (uint64_t)a->in[1], a->in[2], strlen(f) > 14};
    double confidence[IN_MAX];
    bool right[IN_MAX];
    fm_estimate e = {0};
    if (strncmp(f, "bootstrap_mean", 14) == 0) {
        tk_ok(fm_bootstrap_mean(&e, a->in + 3, a->count - 3, &how));
        return give3(out, e);
    }
    if (strcmp(f, "ece") != 0)
        return 0;
    size_t n = (a->count - 3) / 2;
    for (size_t i = 0; i < n; i++) {
        confidence[i] = a->in[3 + 2 * i];
        right[i] = a->in[4 + 2 * i] > 0.5;
    }
    how = (fm_bootstrap){(uint32_t)a->in[1], (uint64_t)a->in[2], 0.95, true};
    tk_ok(fm_expected_calibration_error(&e, confidence, right, n, (uint32_t)a->in[0], &how));
    return give3(out, e);
}

static size_t planned(const char *f, const args *a, double *out)
{
    const double *in = a->in;
    if (strcmp(f, "detectable_drop") == 0)
        return one(out, fm_detectable_drop(whole(a, 0), in[1], in[2], in[3]));
    if (strcmp(f, "detectable_flips") == 0)
        return one(out, fm_detectable_flips(whole(a, 0), in[1], in[2], in[3]));
    if (strcmp(f, "mcnemar_power") == 0)
        return one(out, fm_mcnemar_power(whole(a, 0), in[1], in[2], in[3]));
    if (strcmp(f, "sequential") != 0)
        return 0;
    fm_sequential s = {in[3], in[4], whole(a, 2)};
    out[0] = fm_sequential_look(&s, whole(a, 1), whole(a, 0));
    return 1 + give(out + 1, fm_confidence_sequence(&s, whole(a, 1), whole(a, 0)));
}

static double recorded(const fm_json *v)
{
    const char *word = fm_json_cstr(v, "");
    if (strcmp(word, "nan") == 0)
        return (double)NAN;
    if (strcmp(word, "inf") == 0)
        return (double)INFINITY;
    return strcmp(word, "-inf") == 0 ? -(double)INFINITY : fm_json_real(v, -12345);
}

/* Relative where the value is large or is a small mass, absolute near what rounding of 1 allows. */
static bool near(double got, double want, double tol)
{
    if (isnan(want) || isinf(want))
        return isnan(want) ? isnan(got) : isinf(got) && signbit(got) == signbit(want);
    return fabs(got - want) <= tol * fabs(want) || fabs(got - want) <= tol * 1e-3;
}

static size_t compare_case(const fm_json *c)
{
    const char *f = fm_json_cstr(fm_json_get(c, "f"), "");
    const fm_json *in = fm_json_get(c, "in"), *want = fm_json_get(c, "out");
    double out[OUT_MAX], tol = fm_json_real(fm_json_get(c, "tol"), 0);
    args a = {.count = fm_json_count(in)};
    size_t bad = 0;
    assert_true(a.count <= IN_MAX && fm_json_count(want) <= OUT_MAX && tol > 0);
    for (size_t i = 0; i < a.count; i++)
        a.in[i] = fm_json_real(fm_json_at(in, i), 0);
    size_t n = special_of(f, &a, out);
    n = n ? n : rates_of(f, &a, out);
    n = n ? n : many_of(f, &a, out);
    n = n ? n : resampled(f, &a, out);
    n = n ? n : planned(f, &a, out);
    if (n != fm_json_count(want))
        fail_msg("%s gives %zu values, %zu are recorded", f, n, fm_json_count(want));
    for (size_t i = 0; i < n; i++)
        if (!near(out[i], recorded(fm_json_at(want, i)), tol)) {
            print_error("%s(%.17g, %.17g, %.17g, %.17g ...)[%zu] = %.17g, recorded %.17g\n", f,
                        a.in[0], a.in[1], a.in[2], a.in[3], i, out[i],
                        recorded(fm_json_at(want, i)));
            bad++;
        }
    return bad;
}

TEST(agrees_with_scipy_and_statsmodels)
{
    char *path = tk_source("tests/unit/testing/stats_cases.json");
    fm_json *doc = NULL;
    size_t bad = 0;
    tk_ok(fm_json_parse_file(&doc, path, 1 << 20));
    const fm_json *cases = fm_json_get(doc, "cases");
    assert_true(fm_json_count(cases) > 300);
    for (size_t i = 0; i < fm_json_count(cases); i++)
        bad += compare_case(fm_json_at(cases, i));
    assert_int_equal(bad, 0);
    fm_json_free(doc);
    fm_free(path);
}

/* Random relabellings against all of them: 3 of 7 values, 35 ways. */
TEST(permutation_of_two_samples_is_near_the_exact_one)
{
    double pairs[24];
    for (size_t i = 0; i < 24; i++)
        pairs[i] = i < 17 ? 1 : -1; /* P[|Bin(24, 1/2) - 12| >= 5] */
    double exact = 2 * fm_binom_sf(17, 24, 0.5);
    assert_true(fabs(fm_permutation_paired(pairs, 24, 20000, 2) - exact) < 4 * sqrt(exact / 20000));
}

/* A look after every case of many random orders: how often is the answer wrong? */
static double wrong_share(const fm_sequential *s, size_t passes, fm_decision wrong, double *mean)
{
    enum { RUNS = 2000 };
    static uint32_t order[RUNS];
    size_t errors = 0, looks = 0;
    for (uint64_t run = 0; run < RUNS; run++) {
        size_t k = 0, n = 0;
        fm_decision d = FM_UNDECIDED;
        fm_rng_permutation(order, (uint32_t)s->population, 77, run);
        while (d == FM_UNDECIDED) {
            k += order[n++] < passes;
            d = fm_sequential_look(s, k, n);
        }
        errors += d == wrong;
        looks += n;
    }
    *mean = (double)looks / RUNS;
    return (double)errors / RUNS;
}

/* On the wrong side by one case alone, the hardest: at most alpha, here with four standard errors.
 * */
TEST(sequential_test_keeps_its_error_rates)
{
    const fm_sequential s = {0.8, 0.05, 200};
    const double limit = 0.05 + 4 * sqrt(0.05 * 0.95 / 2000);
    double mean, least;
    assert_true(wrong_share(&s, 159, FM_REACHED, &mean) <= limit);
    assert_true(wrong_share(&s, 160, FM_MISSED, &mean) <= limit);
    assert_true(wrong_share(&s, 200, FM_MISSED, &least) <= 0);
    assert_true(least < 40);
    assert_true(wrong_share(&s, 100, FM_REACHED, &least) <= limit);
    assert_true(least < 40);
    print_message("cases asked of 200 at a threshold of 0.8: all pass and half pass < 40, last of "
                  "160: %.0f\n",
                  mean);
    const fm_sequential sure = {0.8, 0, 200}; /* stops when the rest cannot change the answer */
    assert_true(wrong_share(&sure, 160, FM_MISSED, &mean) <= 0 && mean > 150 && mean <= 200);
}

/* All looks together: the true number of passes is left out at some look in at most alpha of runs.
 * */
TEST(confidence_sequence_covers_at_every_look)
{
    enum { RUNS = 400, CASES = 120, PASSES = 96 };
    const fm_sequential s = {0.5, 0.1, CASES}, endless = {0.5, 0.1, 0};
    uint32_t order[CASES];
    size_t missed = 0, missed_endless = 0;
    for (uint64_t run = 0; run < RUNS; run++) {
        bool out = false, out_endless = false;
        size_t k = 0, j = 0;
        fm_rng_permutation(order, CASES, 5, run);
        for (size_t n = 1; n <= CASES; n++) {
            k += order[n - 1] < PASSES;
            j += fm_rng_uniform(6, run, n) < 0.8;
            fm_interval all = fm_confidence_sequence(&s, k, n);
            out |= all.low > 0.8 + 1e-12 || all.high < 0.8 - 1e-12;
            if (n % 10 == 0) {
                fm_interval i = fm_confidence_sequence(&endless, j, n);
                out_endless |= i.low > 0.8 || i.high < 0.8;
            }
        }
        missed += out;
        missed_endless += out_endless;
    }
    assert_true((double)missed / RUNS <= 0.1 + 4 * 0.015);
    assert_true((double)missed_endless / RUNS <= 0.1 + 4 * 0.015);
}

TEST(what_has_no_answer_is_nan_and_not_a_guess)
{
    double c[] = {0.5, 1.5};
    bool right[] = {true, false};
    fm_estimate e;
    fm_bootstrap how = fm_bootstrap_defaults();
    assert_true(fm_wilson(0, 0, 0.95).low <= 0 && fm_wilson(0, 0, 0.95).high >= 1);
    assert_true(isnan(fm_rate_difference(0, 0, 1, 2, 0.95).value));
    assert_true(isnan(fm_detectable_drop(0, 0.9, 0.05, 0.8)));
    assert_true(isnan(fm_log_gamma(0)) && isnan(fm_beta_cdf(0.5, 0, 1)));
    tk_fails(fm_expected_calibration_error(&e, c, right, 2, 1, &how), FM_EINVAL,
             "confidence 1.5 of case 1");
    tk_fails(fm_expected_calibration_error(&e, c, right, 0, 1, &how), FM_EINVAL, "no case");
    tk_fails(fm_expected_calibration_error(&e, c, right, 1, 0, &how), FM_EINVAL, "0 bins");
    tk_ok(fm_bootstrap_mean(&e, (double[]){0, 0, 0}, 3, &how)); /* BCa is not defined */
    assert_true(fabs(e.low) <= 0 && fabs(e.high) <= 0);
}

TEST(an_allocation_that_fails_is_reported)
{
    double p[] = {0.1, 0.2}, out[2];
    fm_estimate e;
    fm_bootstrap how = fm_bootstrap_defaults();
    for (uint64_t nth = 1; nth <= 3; nth++) {
        fm_mem_fail_at(nth, false);
        tk_fails(fm_bootstrap_mean(&e, p, 2, &how), FM_ENOMEM, NULL);
    }
    fm_mem_fail_at(1, false);
    tk_fails(fm_adjust_holm(out, p, 2), FM_ENOMEM, NULL);
    fm_mem_fail_at(1, false);
    tk_fails(fm_adjust_bh(out, p, 2), FM_ENOMEM, NULL);
    fm_mem_fail_at(0, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_scipy_and_statsmodels),
        cmocka_unit_test(permutation_of_two_samples_is_near_the_exact_one),
        cmocka_unit_test(sequential_test_keeps_its_error_rates),
        cmocka_unit_test(confidence_sequence_covers_at_every_look),
        cmocka_unit_test(what_has_no_answer_is_nan_and_not_a_guess),
        cmocka_unit_test(an_allocation_that_fails_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
