/* sequential.c - tests of a pass rate while it is measured, valid at every look. */
#include "testing/stats.h"

#include <math.h>

/* Least number of passes of N cases that reaches the threshold; an excess of a rounding error over
 * a whole number is ignored (0.7 of 10 is 7). */
static int64_t passes_needed(const fm_sequential *s)
{
    double need = ceil(s->threshold * (double)s->population - 1e-9);
    return need > 0 ? (int64_t)need : 0;
}

/* Ratio of the uniform prior and the posterior at the rate: 1 / ((n + 1) P[k | rate]); infinite
 * where the rate is impossible. */
static double e_value(int64_t k, int64_t n, double rate)
{
    return 1 / ((double)(n + 1) * fm_binom_pmf(k, n, rate));
}

static double e_value_of(const fm_sequential *s, int64_t k, int64_t n, int64_t passes)
{
    return 1 / ((double)(n + 1) * fm_hypergeom_pmf(k, (int64_t)s->population, passes, n));
}

/* The posterior has one mode. So the e-value of all rates below the threshold is that of the
 * nearest one if the mode is above the threshold, and the other way round. */
static fm_decision look_finite(const fm_sequential *s, int64_t k, int64_t n)
{
    int64_t all = (int64_t)s->population, need = passes_needed(s);
    if (k >= need)
        return FM_REACHED;
    if (all - (n - k) < need)
        return FM_MISSED;
    if (!(s->alpha > 0) || n == 0)
        return FM_UNDECIDED;
    double share = (double)k / (double)n, at = (double)need / (double)all;
    if (share >= at)
        return e_value_of(s, k, n, need - 1) * s->alpha >= 1 ? FM_REACHED : FM_UNDECIDED;
    return e_value_of(s, k, n, need) * s->alpha >= 1 ? FM_MISSED : FM_UNDECIDED;
}

fm_decision fm_sequential_look(const fm_sequential *s, size_t k, size_t n)
{
    int64_t passes = (int64_t)k, cases = (int64_t)n;
    if (s->population)
        return look_finite(s, passes, cases);
    if (n == 0 || !(s->alpha > 0))
        return FM_UNDECIDED;
    if (e_value(passes, cases, s->threshold) * s->alpha < 1)
        return FM_UNDECIDED;
    return (double)k >= s->threshold * (double)n ? FM_REACHED : FM_MISSED;
}

typedef struct edge {
    int64_t k, n;
    double alpha, sign;
} edge;

/* Grows towards k / n from either side; >= 0 where the rate is not ruled out. */
static double edge_gap(const void *ctx, double x)
{
    const edge *e = ctx;
    return 1 / e->alpha - e_value(e->k, e->n, e->sign * x);
}

/* The last number of passes, from `inside` outwards to `end`, that is not ruled out. */
static int64_t last_left(const fm_sequential *s, int64_t k, int64_t n, int64_t inside, int64_t end)
{
    while (inside != end) {
        int64_t out = end > inside, mid = inside + (end - inside + (out ? 1 : -1)) / 2;
        if (e_value_of(s, k, n, mid) * s->alpha < 1)
            inside = mid;
        else
            end = out ? mid - 1 : mid + 1;
    }
    return inside;
}

fm_interval fm_confidence_sequence(const fm_sequential *s, size_t k, size_t n)
{
    edge e = {(int64_t)k, (int64_t)n, s->alpha, 1};
    double share = n ? (double)k / (double)n : 0;
    if (s->population) {
        int64_t low = e.k, high = (int64_t)s->population - (e.n - e.k);
        int64_t mode = low + (int64_t)(share * (double)(high - low));
        if (n && s->alpha > 0) {
            low = last_left(s, e.k, e.n, mode, low);
            high = last_left(s, e.k, e.n, mode, high);
        }
        return (fm_interval){(double)low / (double)s->population,
                             (double)high / (double)s->population};
    }
    if (n == 0 || !(s->alpha > 0))
        return (fm_interval){0, 1};
    fm_interval left = {fm_root(edge_gap, &e, 0, share), 1};
    e.sign = -1;
    left.high = -fm_root(edge_gap, &e, -1, -share);
    return left;
}
