/* minimal.c - a minimal set of units whose child values make a case fail.
 *
 * Level by level (layers, modules, tensors, ...), within the units that the level above kept: of
 * the candidates in the order of their expected effect, the shortest prefix that fails is found by
 * halving; its last candidate is needed together with the earlier ones, and the search goes on
 * before it (QuickXplain, Junker 2004). Halves are halves of expected effect: the sizes of the
 * changes, corrected by the scores of the prefixes run so far. At the end each unit is left out
 * once, and units that can be left out are, so that the set is 1-minimal whatever the oracle does.
 * Mixtures are remembered by their bit set. With noise a mixture is repeated until the odds of its
 * outcome are clear: loosely on the way, strictly for a claim. */
#include <math.h>
#include <string.h>

#include "store/base/map.h"
#include "store/base/math/detmath.h"
#include "store/base/mem.h"
#include "testing/blame.h"

#define ON_THE_WAY 0.97 /* confidence of a decision that a later one may correct */
#define SEARCHES_MAX 3u /* a set that fails the strict test is searched again, strictly */
#define END_RUNS 3u     /* none taken, all taken, child without the set: always run */

typedef struct tally {
    uint32_t fails, passes;
    uint32_t due; /* asks in the current round */
    bool placed;  /* already placed among them */
    bool unasked;
    double score; /* sum over asks */
} tally;

typedef struct dd {
    const fm_blame_units *u;
    fm_mixture_fn oracle;
    void *ctx;
    fm_minimal_opts o;
    fm_map *seen; /* bit set -> tally */
    fm_arena *arena;
    uint32_t runs, rounds, max_runs;
    double odds_of_one; /* log odds that one ask brings; INFINITY without noise */
    bool exhausted;
} dd;

/* ---- outcomes ---- */

static fm_status tally_of(dd *d, const bool *take, tally **out)
{
    size_t bytes = d->u->count * sizeof *take;
    *out = fm_map_get(d->seen, take, bytes);
    if (*out)
        return FM_OK;
    *out = fm_arena_alloc(d->arena, sizeof **out);
    return *out ? fm_map_put(d->seen, take, bytes, *out, NULL) : FM_ENOMEM;
}

static double log_odds(const dd *d, const tally *t)
{
    double lead = (double)t->fails - (double)t->passes;
    return lead == 0 ? 0 : lead * d->odds_of_one;
}

/* How many more asks settle a mixture, if they agree. A mixture that cannot be asked is settled. */
static uint32_t asks_due(const dd *d, const tally *t, double bound)
{
    double want = fm_log(bound / (1 - bound)) - fabs(log_odds(d, t));
    if (t->unasked || want <= 0)
        return 0;
    return isinf(d->odds_of_one) ? 1 : (uint32_t)ceil(want / d->odds_of_one);
}

/* Asks one batch: mixtures that are not settled, as often as due, equal ones once. */
static fm_status ask_round(dd *d, const bool *takes, tally *const *t, size_t n, size_t asks)
{
    size_t at = 0, units = d->u->count;
    fm_mixture *mix = fm_calloc(asks, sizeof *mix);
    fm_mixture_reply *said = fm_calloc(asks, sizeof *said);
    fm_status rc = mix && said ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        for (uint32_t r = 0; !t[i]->placed && r < t[i]->due && at < asks; r++)
            mix[at++] = (fm_mixture){takes + i * units, t[i]->fails + t[i]->passes + r};
        t[i]->placed = true;
    }
    fm_assert(rc < 0 || at == asks);
    FM_THEN(rc, d->oracle(d->ctx, mix, asks, said));
    d->runs += (uint32_t)asks;
    d->rounds++;
    for (size_t i = 0, k = 0; rc == FM_OK && i < n; i++) {
        for (; t[i]->due && k < asks; t[i]->due--, k++) {
            t[i]->unasked = t[i]->unasked || said[k].unasked;
            t[i]->fails += !said[k].unasked && said[k].fails;
            t[i]->passes += !said[k].unasked && !said[k].fails;
            t[i]->score += said[k].unasked ? (double)NAN : said[k].score;
        }
        t[i]->due = 0;
        t[i]->placed = false;
    }
    fm_free(mix);
    fm_free(said);
    return rc;
}

/* Finds which of n mixtures fail. A mixture that cannot be asked, or was never asked because the
 * runs are used up, does not fail: the result so far stays. */
static fm_status decide(dd *d, const bool *takes, size_t n, double bound, bool *fails)
{
    tally **t = fm_calloc(n, sizeof *t);
    fm_status rc = t ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        rc = tally_of(d, takes + i * d->u->count, &t[i]);
    while (rc == FM_OK) {
        size_t asks = 0, left = d->max_runs > d->runs ? d->max_runs - d->runs : 0;
        for (size_t i = 0; i < n; i++)
            if (!t[i]->due)
                asks += t[i]->due = asks_due(d, t[i], bound);
        if (!asks)
            break;
        d->exhausted = d->exhausted || asks > left;
        if (left)
            rc = ask_round(d, takes, t, n, FM_MIN(asks, left));
        for (size_t i = 0; i < n; i++)
            t[i]->due = 0;
        if (!left)
            break;
    }
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        fails[i] = !t[i]->unasked && t[i]->fails > t[i]->passes;
    fm_free(t);
    return rc;
}

/* Mean score of a mixture that was asked; NaN = none. */
static double score_of(const dd *d, const bool *take)
{
    const tally *t = fm_map_get(d->seen, take, d->u->count * sizeof *take);
    uint32_t asks = t ? t->fails + t->passes : 0;
    return asks ? t->score / asks : (double)NAN;
}

/* The probability that the decision on a mixture is right. */
static double surety(dd *d, const bool *take)
{
    const tally *t = fm_map_get(d->seen, take, d->u->count * sizeof *take);
    if (!t || t->unasked || isinf(d->odds_of_one))
        return t ? 1 : 0.5;
    return 1 / (1 + fm_exp(-fabs(log_odds(d, t))));
}

/* ---- one level ---- */

typedef struct level {
    size_t n;       /* number of candidates, which are tried in order */
    size_t *rank;   /* [units] candidate of a unit; SIZE_MAX = not in the search */
    double *weight; /* [n] expected effect */
    bool *need;     /* [n] */
    bool *take;     /* scratch: [batch][units] */
    double bound;
    bool dense; /* the last candidate of the prefix was needed: the one before may be too */
} level;

static void prefix(const dd *d, const level *l, size_t p, bool *take)
{
    for (size_t u = 0; u < d->u->count; u++)
        take[u] = l->rank[u] != SIZE_MAX && (l->rank[u] < p || l->need[l->rank[u]]);
}

/* The p in (lo, hi) up to which `part` of the effect expected between lo and hi lies. */
static size_t split(const level *l, size_t lo, size_t hi, double part)
{
    double sum = 0, at = 0;
    size_t p = lo;
    for (size_t i = lo; i < hi; i++)
        sum += l->weight[i];
    while (p < hi && at < part * sum)
        at += l->weight[p++];
    return FM_MIN(FM_MAX(p, lo + 1), hi - 1);
}

/* Corrects the expected effects between lo and hi by the scores at lo, mid and hi. */
static void learn(const dd *d, level *l, size_t lo, size_t mid, size_t hi)
{
    double s[3], drop[2], sum[2] = {0, 0};
    const size_t at[3] = {lo, mid, hi};
    for (int i = 0; i < 3; i++) {
        prefix(d, l, at[i], l->take);
        s[i] = score_of(d, l->take);
    }
    if (!isfinite(s[0]) || !isfinite(s[1]) || !isfinite(s[2]) || s[0] <= s[2])
        return;
    for (int i = 0; i < 2; i++) {
        drop[i] = FM_MIN(FM_MAX((s[i] - s[i + 1]) / (s[0] - s[2]), 0.05), 0.95);
        for (size_t k = at[i]; k < at[i + 1]; k++)
            sum[i] += l->weight[k];
    }
    double all = sum[0] + sum[1];
    for (int i = 0; i < 2; i++)
        for (size_t k = at[i]; k < at[i + 1] && sum[i] > 0; k++)
            l->weight[k] *= drop[i] * all / sum[i];
}

/* Finds the shortest prefix that fails with the needed candidates; that of *hi does. */
static fm_status shortest(dd *d, level *l, size_t *hi)
{
    size_t lo = 0, at[FM_BLAME_LEVELS_MAX], n;
    bool fails[FM_BLAME_LEVELS_MAX], none;
    prefix(d, l, 0, l->take);
    fm_status rc = decide(d, l->take, 1, l->bound, &none);
    if (rc == FM_OK && none)
        *hi = 0;
    while (rc == FM_OK && *hi > lo + 1 && !d->exhausted) {
        n = 0;
        for (size_t k = 1; k <= d->o.batch; k++) {
            size_t p = split(l, lo, *hi, (double)k / (d->o.batch + 1.0));
            if (l->dense && k == d->o.batch)
                p = *hi - 1;
            if (n && p <= at[n - 1])
                continue;
            at[n++] = p;
        }
        for (size_t k = 0; k < n; k++)
            prefix(d, l, at[k], l->take + k * d->u->count);
        rc = decide(d, l->take, n, l->bound, fails);
        size_t end = *hi, begin = lo;
        for (size_t k = n; rc == FM_OK && k-- > 0;) {
            if (fails[k])
                end = at[k];
            learn(d, l, lo, at[k], *hi);
        }
        for (size_t k = 0; k < n; k++)
            if (at[k] < end)
                begin = at[k];
        l->dense = false; /* one guess, then halves */
        if (!d->exhausted || end < *hi) {
            *hi = end;
            lo = begin;
        }
    }
    return rc;
}

/* Shrinks take, the set so far, which fails, to the candidates that are needed. */
static fm_status search_level(dd *d, level *l, bool *take)
{
    size_t hi = l->n;
    fm_status rc = FM_OK;
    while (rc == FM_OK && hi && !d->exhausted) {
        size_t before = hi;
        rc = shortest(d, l, &hi);
        l->dense = hi == before;
        if (rc == FM_OK && hi && !d->exhausted)
            l->need[--hi] = true;
    }
    if (rc == FM_OK)
        prefix(d, l, hi, take);
    return rc;
}

typedef struct order {
    size_t group;
    double weight;
} order;

/* Lists the candidates of a level: the groups of the units that are still in, heaviest first. */
static fm_status open_level(dd *d, level *l, const size_t *group_of, const bool *take)
{
    size_t units = d->u->count;
    order *o = fm_calloc(units, sizeof *o);
    if (!o)
        return FM_ENOMEM;
    l->n = 0;
    l->dense = false;
    memset(l->need, 0, units * sizeof *l->need);
    for (size_t u = 0; u < units; u++) {
        size_t group = group_of ? group_of[u] : u, k = 0;
        if (!take[u])
            continue;
        fm_assert(group < units);
        while (k < l->n && o[k].group != group)
            k++;
        l->n += k == l->n;
        o[k].group = group;
        o[k].weight += d->u->weight ? d->u->weight[u] : 1;
    }
    for (size_t i = 1; i < l->n && d->u->weight; i++)
        for (size_t k = i; k > 0 && o[k].weight > o[k - 1].weight; k--) {
            order t = o[k];
            o[k] = o[k - 1];
            o[k - 1] = t;
        }
    for (size_t u = 0; u < units; u++) {
        l->rank[u] = SIZE_MAX;
        for (size_t k = 0; take[u] && k < l->n; k++)
            if (o[k].group == (group_of ? group_of[u] : u))
                l->rank[u] = k;
    }
    for (size_t k = 0; k < l->n; k++)
        l->weight[k] = d->u->weight ? FM_MAX(o[k].weight, 1e-12) : 1;
    fm_free(o);
    return FM_OK;
}

static fm_status search_levels(dd *d, double bound, bool *take)
{
    size_t units = d->u->count;
    level l = {.bound = bound};
    l.rank = fm_calloc(units, sizeof *l.rank);
    l.weight = fm_calloc(units, sizeof *l.weight);
    l.need = fm_calloc(units, sizeof *l.need);
    l.take = fm_calloc(units * d->o.batch, sizeof *l.take);
    fm_status rc = l.rank && l.weight && l.need && l.take ? FM_OK : FM_ENOMEM;
    memset(take, 1, units * sizeof *take);
    for (size_t k = 0; rc == FM_OK && k <= d->u->levels && !d->exhausted; k++) {
        rc = open_level(d, &l, k < d->u->levels ? d->u->group_of[k] : NULL, take);
        FM_THEN(rc, search_level(d, &l, take));
    }
    fm_free(l.rank);
    fm_free(l.weight);
    fm_free(l.need);
    fm_free(l.take);
    return rc;
}

/* ---- claims ---- */

static size_t size_of(const dd *d, const bool *take)
{
    size_t n = 0;
    for (size_t u = 0; u < d->u->count; u++)
        n += take[u];
    return n;
}

/* Leaves out units that can be left out, one at a time, until none can. */
static fm_status leave_out(dd *d, bool *take, double bound, fm_minimal_set *out)
{
    size_t units = d->u->count, n = size_of(d, take), *unit = fm_calloc(n + 1, sizeof *unit);
    bool *less = fm_calloc(n * units + 1, sizeof *less), *fails = fm_calloc(n + 1, sizeof *fails);
    bool again = n > 0;
    fm_status rc = unit && less && fails ? FM_OK : FM_ENOMEM;
    while (rc == FM_OK && again) {
        n = 0;
        for (size_t u = 0; u < units; u++) {
            if (!take[u])
                continue;
            memcpy(less + n * units, take, units * sizeof *take);
            less[n * units + u] = false;
            unit[n++] = u;
        }
        again = false;
        rc = decide(d, less, n, bound, fails);
        for (size_t k = 0; rc == FM_OK && k < n && !again; k++)
            if (fails[k]) {
                take[unit[k]] = false;
                again = n > 1;
            }
    }
    for (size_t k = 0; rc == FM_OK && k < n; k++)
        if (take[unit[k]])
            out->posterior *= surety(d, less + k * units);
    fm_free(unit);
    fm_free(less);
    fm_free(fails);
    return rc;
}

/* Searches loosely; if the result fails the strict test, searches again strictly. */
static fm_status find_cause(dd *d, bool *take, double strict, fm_minimal_set *out)
{
    bool fails = false;
    fm_status rc = FM_OK;
    for (uint32_t k = 0; rc == FM_OK && k < SEARCHES_MAX && !fails; k++) {
        rc = search_levels(d, k ? strict : FM_MIN(ON_THE_WAY, strict), take);
        FM_THEN(rc, decide(d, take, 1, strict, &fails));
        if (d->exhausted)
            break;
    }
    out->sufficient = fails;
    out->posterior *= surety(d, take);
    if (rc == FM_OK && !d->exhausted && fails)
        rc = leave_out(d, take, strict, out);
    out->minimal = fails && !d->exhausted;
    return rc;
}

static fm_status run_search(dd *d, fm_minimal_set *out)
{
    size_t units = d->u->count;
    double strict = 1 - (1 - d->o.confidence) / 6;
    bool *both = fm_calloc(2 * units + 1, sizeof *both), fails[2] = {false, false};
    if (!both)
        return FM_ENOMEM;
    memset(both + units, 1, units * sizeof *both);
    fm_status rc = decide(d, both, units ? 2 : 1, strict, fails);
    fails[1] = units ? fails[1] : fails[0];
    out->posterior = surety(d, both) * (units ? surety(d, both + units) : 1);
    if (fails[0]) { /* the failure is not in the units */
        out->sufficient = out->minimal = true;
    } else if (!fails[1]) {
        memset(out->take, 1, units * sizeof *out->take);
    } else if (rc == FM_OK) {
        rc = find_cause(d, out->take, strict, out);
    }
    out->size = size_of(d, out->take);
    for (size_t u = 0; u < units; u++)
        both[u] = !out->take[u];
    d->max_runs = UINT32_MAX; /* this decision may use the run that was kept back */
    bool was = d->exhausted;
    FM_THEN(rc, decide(d, both, 1, was ? ON_THE_WAY : strict, fails));
    out->necessary = rc == FM_OK && !fails[0];
    out->posterior *= surety(d, both);
    fm_free(both);
    return rc;
}

fm_status fm_blame_minimal(fm_minimal_set *out, const fm_blame_units *units, fm_mixture_fn oracle,
                           void *ctx, const fm_minimal_opts *opts)
{
    dd d = {.u = units, .oracle = oracle, .ctx = ctx, .o = *opts};
    memset(out, 0, sizeof *out);
    if (!(opts->flip_rate >= 0 && opts->flip_rate <= 0.45))
        return fm_fail(FM_EINVAL, "a flip rate is from 0 to 0.45, got %g", opts->flip_rate);
    d.o.confidence = opts->confidence > 0 ? opts->confidence : 0.95;
    d.o.batch = FM_MIN(FM_MAX(opts->batch, 1u), (uint32_t)FM_BLAME_LEVELS_MAX);
    d.odds_of_one =
        opts->flip_rate > 0 ? fm_log((1 - opts->flip_rate) / opts->flip_rate) : (double)INFINITY;
    /* The last of the end runs comes after the search: kept back for it. */
    d.max_runs = FM_MAX(opts->max_runs ? opts->max_runs : 400, END_RUNS) - 1;
    out->take = fm_calloc(units->count, sizeof *out->take);
    fm_status rc = out->take ? fm_map_new(&d.seen) : FM_ENOMEM;
    FM_THEN(rc, fm_arena_new(&d.arena));
    FM_THEN(rc, run_search(&d, out));
    out->runs = d.runs;
    out->rounds = d.rounds;
    fm_map_free(d.seen);
    fm_arena_free(d.arena);
    if (rc < 0) {
        fm_free(out->take);
        memset(out, 0, sizeof *out);
    }
    return rc;
}
