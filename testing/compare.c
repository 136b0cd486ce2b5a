/* compare.c - two runs of one suite, case by case. */
#include <math.h>
#include <string.h>

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

/* The result of that name, first looked for where a run of the same cases has it. */
static const fm_case_result *pair_of(const fm_case_result *r, const fm_suite_run *in, size_t at)
{
    if (at < in->count && strcmp(in->result[at].name, r->name) == 0)
        return &in->result[at];
    for (size_t i = 0; i < in->count; i++)
        if (strcmp(in->result[i].name, r->name) == 0)
            return &in->result[i];
    return NULL;
}

/* A case that could not be run has not passed. */
fm_comparison fm_suite_compare(const fm_suite_run *a, const fm_suite_run *b)
{
    fm_comparison c = {0};
    for (size_t i = 0; i < a->count; i++) {
        const fm_case_result *other = pair_of(&a->result[i], b, i);
        if (!other)
            continue;
        bool was = a->result[i].verdict == FM_PASS, is = other->verdict == FM_PASS;
        c.fixed += !was && is;
        c.broken += was && !is;
        c.both_pass += was && is;
        c.both_fail += !was && !is;
    }
    c.p_value = mcnemar(c.fixed, c.broken);
    return c;
}
