/* fidelity.c - measures the rankings: the step is trained again without groups of examples, and the
 * change of the case's margin is the effect of the group.
 *
 * In this order, as far as the budget goes: each method's first group, one random group, each
 * method's last group; the rest of the budget goes to random halves of the data, whose changes are
 * compared with the sums of scores (LDS: Ilyas et al. 2022; Park et al. 2023). Equal groups train
 * once. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ops/blame/blame.h"
#include "cli/ops/base/say.h"
#include "store/base/mem.h"
#include "store/base/math/rng.h"

enum { BUDGET = 12, HALVES_LEAST = 4 };

typedef struct groups {
    bool **without;
    double *margin;
    size_t count, cap, n;
    uint64_t budget;
} groups;

static void groups_release(groups *g)
{
    for (size_t i = 0; i < g->count; i++)
        fm_free(g->without[i]);
    fm_free(g->without);
    fm_free(g->margin);
}

/* Adds a group and takes ownership of take; *at: its index, or -1 if the budget is used up. */
static fm_status add_group(groups *g, bool *take, long *at)
{
    *at = -1;
    if (!take)
        return FM_ENOMEM;
    for (size_t i = 0; i < g->count && *at < 0; i++)
        if (memcmp(g->without[i], take, g->n * sizeof *take) == 0)
            *at = (long)i;
    if (*at >= 0 || g->count >= g->budget) {
        fm_free(take);
        return FM_OK;
    }
    *at = (long)g->count;
    g->without[g->count++] = take;
    return FM_OK;
}

static bool *of_ranking(const fmo_blame_data_section *d, const fmo_blame_ranking *r, bool last)
{
    bool *take = fm_calloc(d->count, sizeof *take);
    for (size_t i = 0; take && i < d->count; i++)
        take[i] = last ? r->rank[i] >= d->count - d->group : r->rank[i] < d->group;
    return take;
}

/* Draws `size` of n examples, every subset equally likely (selection sampling). */
static bool *at_random(size_t n, size_t size, uint64_t draw)
{
    bool *take = fm_calloc(n, sizeof *take);
    size_t left = size;
    for (size_t i = 0; take && i < n && left > 0; i++) {
        double u = fm_rng_uniform(draw, 0, i);
        take[i] = u * (double)(n - i) < (double)left;
        left -= take[i];
    }
    return take;
}

static double change(const fmo_blame_data_section *d, const groups *g, long at)
{
    return at < 0 ? (double)NAN : d->margin - g->margin[at];
}

static double lds(const fmo_blame_data_section *d, const groups *g, const fmo_blame_ranking *r,
                  size_t first)
{
    size_t m = g->count - first;
    double *sum = fm_calloc(2 * m, sizeof *sum);
    double out = (double)NAN;
    for (size_t k = 0; sum && k < m; k++) {
        for (size_t i = 0; i < d->count; i++)
            sum[k] += g->without[first + k][i] ? r->score[i] : 0.0;
        sum[m + k] = change(d, g, (long)(first + k));
    }
    if (sum && m >= HALVES_LEAST)
        out = fm_spearman(sum, sum + m, m);
    fm_free(sum);
    return out;
}

static int by_fidelity(const void *x, const void *y)
{
    double a = ((const fmo_blame_ranking *)x)->fidelity.top;
    double b = ((const fmo_blame_ranking *)y)->fidelity.top;
    if (isnan(a) || isnan(b))
        return isnan(a) - isnan(b);
    return a < b ? 1 : a > b ? -1 : 0;
}

static fm_status say_cost(const fm_ops *c, const fm_attribution_in *in, const groups *g)
{
    fm_plan plan;
    FM_TRY(fm_train_plan(in->e, in->p, in->job, 1, &plan));
    fmo_ui_say(c, FM_UI_NOTE,
               "  fidelity: the step is trained again %zu times, %u steps each; about %.0f s in "
               "all (--trainings N bounds it)",
               g->count, plan.steps, plan.seconds * (double)g->count);
    return FM_OK;
}

static fm_status train(const fm_ops *c, fmo_blame_data_section *d, const fm_attribution_in *in,
                       groups *g)
{
    fm_status rc = say_cost(c, in, g);
    d->trainings = (uint32_t)g->count;
    FM_THEN(rc, fm_attribution_margin(in, &d->margin));
    return rc == FM_OK
               ? fm_attribution_retrain(in, (const bool *const *)g->without, g->count, g->margin)
               : rc;
}

/* The size of a group: the number of examples that stand out in the default ranking, within bounds.
 * Causes that replace each other show only if they are left out together. */
static size_t group_size(const fmo_blame_data_section *d)
{
    size_t least = FM_MAX((size_t)1, d->count / 20), most = FM_MAX((size_t)1, d->count / 4);
    return FM_MIN(FM_MAX(d->ranking[0].outstanding, least), most);
}

fm_status fmo_blame_data_fidelity(fmo_blame *b, const fm_attribution_in *in)
{
    fmo_blame_data_section *d = &b->data;
    uint64_t budget = d->opts.budget ? d->opts.budget : BUDGET;
    groups g = {.n = d->count, .budget = budget, .cap = (size_t)budget};
    long first[FM_ATTRIBUTIONS], last[FM_ATTRIBUTIONS], random = -1, half;
    fm_status rc = FM_OK;
    d->group = group_size(d);
    if (d->count < 2)
        return fm_fail(FM_EINVAL, "--fidelity wants at least two examples");
    g.without = fm_calloc(g.cap, sizeof *g.without);
    g.margin = fm_calloc(g.cap, sizeof *g.margin);
    if (!g.without || !g.margin)
        rc = FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < d->rankings; i++)
        rc = add_group(&g, of_ranking(d, &d->ranking[i], false), &first[i]);
    FM_THEN(rc, add_group(&g, at_random(d->count, d->group, 0), &random));
    for (size_t i = 0; rc == FM_OK && i < d->rankings; i++)
        rc = add_group(&g, of_ranking(d, &d->ranking[i], true), &last[i]);
    size_t halves = g.count;
    size_t wanted = g.cap - g.count;
    for (size_t draw = 0; rc == FM_OK && draw < wanted; draw++)
        rc = add_group(&g, at_random(d->count, d->count / 2, 2 + draw), &half);
    d->halves = g.count - halves;
    FM_THEN(rc, train(b->c, d, in, &g));
    for (size_t i = 0; rc == FM_OK && i < d->rankings; i++) {
        fmo_blame_fidelity *f = &d->ranking[i].fidelity;
        f->top = change(d, &g, first[i]);
        f->bottom = change(d, &g, last[i]);
        f->lds = lds(d, &g, &d->ranking[i], halves);
    }
    d->random = rc == FM_OK ? change(d, &g, random) : (double)NAN;
    if (rc == FM_OK)
        qsort(d->ranking, d->rankings, sizeof *d->ranking, by_fidelity);
    groups_release(&g);
    return rc;
}
