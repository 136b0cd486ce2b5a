/* compare.c - two runs of one suite, case by case. */
#include <math.h>

#include "testing/internal.h"

/* Exact two-sided McNemar test (McNemar 1947): under no difference the b + c flips are fair coins.
 * p = min(1, 2 * P[X <= min(b, c)]), X ~ Binomial(b + c, 1/2). */
static double mcnemar(size_t b, size_t c)
{
    size_t n = b + c, k = b < c ? b : c;
    double term = -(double)n * 0.6931471805599453, sum = 0; /* log of C(n,0) / 2^n */
    if (n == 0)
        return 1;
    for (size_t i = 0; i <= k; i++) {
        sum += exp(term);
        term += log((double)(n - i)) - log((double)(i + 1));
    }
    return fmin(1, 2 * sum);
}

fm_comparison fm_suite_compare(const fm_suite_run *a, const fm_suite_run *b)
{
    fm_comparison c = {0};
    size_t n = FM_MIN(a->count, b->count);
    for (size_t i = 0; i < n; i++) {
        bool was = a->result[i].verdict == FM_PASS, is = b->result[i].verdict == FM_PASS;
        c.fixed += !was && is;
        c.broken += was && !is;
        c.both_pass += was && is;
        c.both_fail += !was && !is;
    }
    c.p_value = mcnemar(c.fixed, c.broken);
    return c;
}
