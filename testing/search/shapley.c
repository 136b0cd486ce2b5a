/* shapley.c - what each unit adds, on average over all orders of adding them (Shapley 1953).
 *
 * With few units every coalition is valued once, weighted by the number of orders that contain it.
 * With more units random orders from a counter generator are taken, each with its reverse, whose
 * error goes the other way (antithetic pairs); a pair's mean is one sample of an interval by
 * Student's t. Values of coalitions are remembered: none is computed twice. */
#include <math.h>
#include <string.h>

#include "store/base/map.h"
#include "store/base/mem.h"
#include "store/base/math/rng.h"
#include "testing/blame.h"
#include "testing/stats.h"

#define EXACT_MOST 16u
#define UNITS_MOST 64u

typedef struct game {
    size_t units;
    fm_value_fn value;
    void *ctx;
    fm_map *seen; /* uint64_t bits -> double in arena */
    fm_arena *arena;
    bool *take; /* scratch [cap][units] */
    double *got;
    uint64_t *ask; /* scratch [cap] */
    size_t cap;
    uint32_t runs;
} game;

static const double *value_of(const game *g, uint64_t set)
{
    return fm_map_get(g->seen, &set, sizeof set);
}

/* Computes the values of those of n coalitions that are not yet known, in one call. */
static fm_status learn(game *g, const uint64_t *set, size_t n)
{
    size_t asks = 0;
    fm_status rc = FM_OK;
    for (size_t i = 0; i < n && rc == FM_OK; i++) {
        double *room;
        if (value_of(g, set[i]))
            continue;
        if (!(room = fm_arena_alloc(g->arena, sizeof *room)))
            return FM_ENOMEM;
        rc = fm_map_put(g->seen, &set[i], sizeof set[i], room, NULL);
        for (size_t u = 0; u < g->units; u++)
            g->take[asks * g->units + u] = set[i] >> u & 1;
        g->ask[asks++] = set[i];
    }
    if (rc == FM_OK && asks)
        rc = g->value(g->ctx, g->take, asks, g->got);
    for (size_t i = 0; rc == FM_OK && i < asks; i++) {
        double *room = fm_map_get(g->seen, &g->ask[i], sizeof g->ask[i]);
        *room = g->got[i];
        if (!isfinite(*room))
            rc = fm_fail(FM_EINVAL, "Shapley values: a coalition's value is %g", *room);
    }
    g->runs += (uint32_t)asks;
    return rc;
}

static fm_status game_open(game *g, size_t cap)
{
    g->cap = cap;
    g->take = fm_calloc(cap * FM_MAX(g->units, (size_t)1), sizeof *g->take);
    g->got = fm_calloc(cap, sizeof *g->got);
    g->ask = fm_calloc(cap, sizeof *g->ask);
    FM_TRY(g->take && g->got && g->ask ? fm_map_new(&g->seen) : FM_ENOMEM);
    return fm_arena_new(&g->arena);
}

static void game_close(game *g)
{
    fm_free(g->take);
    fm_free(g->got);
    fm_free(g->ask);
    fm_map_free(g->seen);
    fm_arena_free(g->arena);
}

/* ---- exact ---- */

static fm_status exact(game *g, fm_shapley *out)
{
    size_t n = g->units, all = (size_t)1 << n;
    double weight[EXACT_MOST]; /* weight of a coalition of s others: s! (n-1-s)! / n! */
    uint64_t *set = fm_calloc(all, sizeof *set);
    if (!set)
        return FM_ENOMEM;
    for (size_t s = 0; s < all; s++)
        set[s] = s;
    fm_status rc = learn(g, set, all);
    for (size_t s = 0; s < n; s++)
        weight[s] = s ? weight[s - 1] * (double)s / (double)(n - s) : 1 / (double)n;
    for (size_t u = 0; rc == FM_OK && u < n; u++) {
        for (uint64_t s = 0; s < all; s++)
            if (!(s >> u & 1))
                out->value[u] += weight[__builtin_popcountll(s)] *
                                 (*value_of(g, s | (uint64_t)1 << u) - *value_of(g, s));
        out->low[u] = out->high[u] = out->value[u];
    }
    out->exact = true;
    fm_free(set);
    return rc;
}

/* ---- sampled ---- */

/* Quantile of Student's t, p >= 0.5; the two tails of t are one of a beta distribution. */
static double student_quantile(double p, double df)
{
    if (df > 1000)
        return fm_normal_quantile(p);
    double x = fm_beta_quantile(2 * (1 - p), df / 2, 0.5);
    return sqrt(df * (1 - x) / x);
}

/* Adds the marginal contributions of one order to add[]; set: scratch [units + 1]. */
static fm_status one_order(game *g, const uint32_t *order, bool reverse, uint64_t *set, double *add)
{
    size_t n = g->units;
    set[0] = 0;
    for (size_t k = 0; k < n; k++)
        set[k + 1] = set[k] | (uint64_t)1 << order[reverse ? n - 1 - k : k];
    FM_TRY(learn(g, set, n + 1));
    for (size_t k = 0; k < n; k++)
        add[order[reverse ? n - 1 - k : k]] += *value_of(g, set[k + 1]) - *value_of(g, set[k]);
    return FM_OK;
}

static fm_status sampled(game *g, fm_shapley *out, const fm_shapley_opts *o, uint32_t max_runs)
{
    size_t n = g->units;
    uint32_t *order = fm_calloc(n, sizeof *order);
    uint64_t *set = fm_calloc(n + 1, sizeof *set);
    double *add = fm_calloc(n, sizeof *add), *square = fm_calloc(n, sizeof *square);
    double pairs = 0, confidence = o->confidence > 0 ? o->confidence : 0.95;
    fm_status rc = order && set && add && square ? FM_OK : FM_ENOMEM;
    /* A pair values at most 2 (n - 1) coalitions besides the two ends. Where most are already known
     * pairs cost nothing, so their number is bounded too. */
    while (rc == FM_OK && g->runs + 2 * (n - 1) <= max_runs && pairs < max_runs) {
        fm_rng_permutation(order, (uint32_t)n, o->seed, (uint64_t)pairs);
        memset(add, 0, n * sizeof *add);
        rc = one_order(g, order, false, set, add);
        FM_THEN(rc, one_order(g, order, true, set, add));
        for (size_t u = 0; rc == FM_OK && u < n; u++) {
            out->value[u] += add[u] / 2;
            square[u] += add[u] * add[u] / 4;
        }
        pairs += rc == FM_OK;
    }
    double t = pairs > 1 ? student_quantile(0.5 + confidence / 2, pairs - 1) : (double)INFINITY;
    for (size_t u = 0; rc == FM_OK && u < n; u++) {
        double mean = out->value[u] / pairs;
        double var = pairs > 1 ? FM_MAX(square[u] / pairs - mean * mean, 0) / (pairs - 1) : 0;
        double half = pairs > 1 ? t * sqrt(var) : (double)INFINITY;
        out->value[u] = mean;
        out->low[u] = mean - half;
        out->high[u] = mean + half;
    }
    out->permutations = 2 * (uint32_t)pairs;
    fm_free(order);
    fm_free(set);
    fm_free(add);
    fm_free(square);
    return rc;
}

void fm_shapley_release(fm_shapley *s)
{
    fm_free(s->value);
    fm_free(s->low);
    fm_free(s->high);
    memset(s, 0, sizeof *s);
}

fm_status fm_shapley_values(fm_shapley *out, size_t units, fm_value_fn value, void *ctx,
                            const fm_shapley_opts *opts)
{
    uint32_t max_runs = opts->max_runs ? opts->max_runs : 1000;
    uint32_t exact_max = FM_MIN(opts->exact_max ? opts->exact_max : 8, EXACT_MOST);
    game g = {.units = units, .value = value, .ctx = ctx};
    memset(out, 0, sizeof *out);
    fm_assert(units <= UNITS_MOST);
    bool all = units <= exact_max && (uint64_t)1 << units <= max_runs;
    if (!all && max_runs < 2 * units)
        return fm_fail(FM_EINVAL,
                       "Shapley values of %zu units want %zu runs at least, and %u are allowed",
                       units, 2 * units, max_runs);
    out->units = units;
    out->value = fm_calloc(units, sizeof *out->value);
    out->low = fm_calloc(units, sizeof *out->low);
    out->high = fm_calloc(units, sizeof *out->high);
    fm_status rc = out->value && out->low && out->high ? FM_OK : FM_ENOMEM;
    const uint64_t full = units == UNITS_MOST ? UINT64_MAX : ((uint64_t)1 << units) - 1;
    const uint64_t ends[2] = {0, full};
    FM_THEN(rc, game_open(&g, all ? (size_t)1 << units : FM_MAX(units + 1, (size_t)2)));
    FM_THEN(rc, learn(&g, ends, 2));
    if (rc == FM_OK) {
        out->nothing = *value_of(&g, 0);
        out->whole = *value_of(&g, full);
        rc = all ? exact(&g, out) : sampled(&g, out, opts, max_runs);
    }
    out->runs = g.runs;
    game_close(&g);
    if (rc < 0)
        fm_shapley_release(out);
    return rc;
}
