/* blame.c - where in history a case began to fail: a noisy search on the graph of versions.
 *
 * Each round of asks is chosen to tell most about the verdict (hypotheses.c), until one verdict has
 * the wanted posterior, the runs are used up, or nothing is left to learn. */
#include <math.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/search/hypotheses.h"

#define MEASURE_ASKS 12u /* asks of node 0 to measure the flip rate */
#define FLIP_LEAST 0.01  /* a measured rate is never taken as 0 */
#define FLIP_MOST 0.2    /* highest rate taken from a measurement; above it the case is flaky */
#define FLIP_STATED_MOST 0.45

const char *fm_blame_class_word(fm_blame_class c)
{
    static const char *const word[] = {"passes",  "inherited",   "introduced", "reintroduced",
                                       "exposed", "interaction", "flaky",      "cannot tell"};
    return word[c];
}

/* ---- the first round ---- */

static fm_status ask_first(fmv_search *s)
{
    bool measure = s->opts.flip_rate < 0;
    size_t n = measure ? MEASURE_ASKS : 1;
    if (s->opts.all_versions)
        n = FM_MAX(n, (size_t)1) + s->count - 1;
    size_t *node = fm_calloc(n, sizeof *node);
    if (!node)
        return FM_ENOMEM;
    for (size_t i = 0; s->opts.all_versions && i + 1 < s->count; i++)
        node[i] = i + 1; /* the rest of the array is node 0 */
    fm_status rc = fmv_ask_nodes(s, node, n);
    fm_free(node);
    if (rc == FM_OK && measure) {
        double few = FM_MIN(s->failed[0], s->passed[0]), all = s->failed[0] + s->passed[0];
        s->opts.flip_rate = FM_MIN(FM_MAX((few + 0.5) / (all + 1), FLIP_LEAST), FLIP_MOST);
    }
    s->out->flip_rate = s->opts.flip_rate;
    return rc;
}

static fm_status open_worlds(fmv_search *s)
{
    FM_TRY(fmv_hypotheses_init(&s->w, s->node, s->count, s->opts.flip_rate));
    for (size_t i = 0; i < s->out->evidence_count; i++) {
        const fm_blame_evidence *e = &s->out->evidence[i];
        if (e->said.verdict != FM_ERROR_CASE)
            fmv_hypotheses_learn(&s->w, e->node, e->said.verdict == FM_FAIL);
    }
    fmv_hypotheses_normalize(&s->w);
    return FM_OK;
}

/* ---- the end ---- */

/* Reads the verdict from the outcomes. Without noise, and with every version asked, nothing is left
 * to infer; there may even be too few worlds, where history broke more than three times. A version
 * that could not be asked is taken to be as its first parent, and the doubt is reported. */
static fm_status read_outcomes(fmv_search *s, fmv_observation *top)
{
    uint64_t *row = fm_calloc(s->w.words, sizeof *row);
    bool *reached = fm_calloc(s->count, sizeof *reached), doubt = false;
    if (row && reached) {
        for (size_t i = s->count; i-- > 0;) {
            bool fails = s->failed[i] > s->passed[i];
            if (s->unasked[i] && s->node[i].parent_count)
                fails = fmv_bit(row, s->node[i].parent[0]);
            doubt = doubt || s->unasked[i];
            row[i / 64] |= (uint64_t)fails << (i % 64);
        }
        *top = fmv_hypotheses_classify(&s->w, row, reached);
        top->posterior = doubt ? 0.5 : 1;
        s->out->share[top->culprit] = top->posterior;
    }
    for (size_t i = 0; row && i < s->count; i++)
        s->out->fails[i] = fmv_bit(row, i);
    fm_status rc = row && reached ? FM_OK : FM_ENOMEM;
    fm_free(row);
    fm_free(reached);
    return rc;
}

static fm_status ask_the_rest(fmv_search *s)
{
    size_t n = 0, *node = fm_calloc(s->count, sizeof *node);
    if (!node)
        return FM_ENOMEM;
    for (size_t i = 0; i < s->count; i++)
        if (!s->out->asks[i])
            node[n++] = i;
    fm_status rc = fmv_ask_nodes(s, node, n);
    fm_free(node);
    return rc;
}

static bool all_asked(const fmv_search *s)
{
    for (size_t i = 0; i < s->count; i++)
        if (!s->out->asks[i])
            return false;
    return true;
}

static bool none_unasked(const fmv_search *s)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->unasked[i])
            return false;
    return true;
}

static fm_status conclude(fmv_search *s, fmv_observation *top)
{
    bool still = s->opts.flip_rate == 0;
    if (!s->w.alive)
        FM_TRY(ask_the_rest(s));
    if (!s->w.alive || (still && all_asked(s) && none_unasked(s)))
        return read_outcomes(s, top);
    *top = fmv_hypotheses_top(&s->w);
    fmv_hypotheses_marginals(&s->w, NULL, s->out->fails, s->out->share);
    return FM_OK;
}

static void fill_outcomes(fmv_search *s)
{
    fm_blame_history *out = s->out;
    for (size_t i = 0; i < s->count; i++) {
        bool fails =
            s->failed[i] == s->passed[i] ? out->fails[i] > 0.5 : s->failed[i] > s->passed[i];
        out->at[i] = s->unasked[i] ? FM_ERROR_CASE : fails ? FM_FAIL : FM_PASS;
    }
    for (size_t i = 0; i < s->count; i++) {
        const fm_blame_node *c = &s->node[out->culprit];
        if (!s->unasked[i])
            continue;
        out->uncertain = out->uncertain || out->share[i] > 0.01;
        for (size_t p = 0; p < c->parent_count; p++)
            out->uncertain = out->uncertain || c->parent[p] == i;
    }
}

/* An inherited failure is a claim about every version: those not asked yet are asked once, in one
 * batch, before it is believed. */
static fm_status look_between(fmv_search *s, size_t *asked)
{
    size_t *node = fm_calloc(s->count, sizeof *node);
    *asked = 0;
    if (!node)
        return FM_ENOMEM;
    for (size_t i = 0; i < s->count; i++)
        if (s->can[i] && !s->out->asks[i])
            node[(*asked)++] = i;
    fm_status rc = fmv_ask_nodes(s, node, *asked);
    fm_free(node);
    return rc;
}

/* Stops a little above the wanted confidence: a posterior is no better than its prior. */
static fm_status run_rounds(fmv_search *s)
{
    double enough = 1 - (s->opts.flip_rate > 0 ? 0.3 : 0.5) * (1 - s->opts.confidence);
    size_t pick[FMV_BATCH_MAX], n = 1;

    while (n && s->w.alive && s->out->runs < s->opts.max_runs) {
        fmv_observation top = fmv_hypotheses_top(&s->w);
        if (top.posterior >= enough) {
            if (top.kind != FMV_ANSWER_INHERITED)
                break;
            FM_TRY(look_between(s, &n));
        } else {
            FM_TRY(fmv_hypotheses_pick(&s->w, s->can, s->opts.round, pick, &n));
            if (n)
                FM_TRY(fmv_ask_nodes(s, pick, n));
        }
    }
    return FM_OK;
}

static fm_status search_open(fmv_search *s)
{
    fm_blame_history *out = s->out;
    size_t count = s->count;
    out->source = SIZE_MAX;
    out->at = fm_calloc(count, sizeof *out->at);
    out->asks = fm_calloc(count, sizeof *out->asks);
    out->fails = fm_calloc(count, sizeof *out->fails);
    out->share = fm_calloc(count, sizeof *out->share);
    s->failed = fm_calloc(count, sizeof *s->failed);
    s->passed = fm_calloc(count, sizeof *s->passed);
    s->can = fm_calloc(count, sizeof *s->can);
    s->unasked = fm_calloc(count, sizeof *s->unasked);
    if (!out->at || !out->asks || !out->fails || !out->share || !s->failed || !s->passed ||
        !s->can || !s->unasked)
        return FM_ENOMEM;
    memset(s->can, 1, count * sizeof *s->can);
    return FM_OK;
}

static fm_status settle_opts(fm_blame_opts *o)
{
    if (!(o->flip_rate == FM_BLAME_MEASURE ||
          (o->flip_rate >= 0 && o->flip_rate <= FLIP_STATED_MOST)))
        return fm_fail(FM_EINVAL, "a flip rate is from 0 to %.2f, got %g", FLIP_STATED_MOST,
                       o->flip_rate);
    if (!(o->confidence >= 0 && o->confidence < 1))
        return fm_fail(FM_EINVAL, "a confidence is from 0 to below 1, got %g", o->confidence);
    if (o->confidence == 0)
        o->confidence = 0.95;
    if (o->max_runs == 0)
        o->max_runs = 1000;
    if (o->round == 0)
        o->round = o->flip_rate == 0 ? 1 : 2;
    o->round = FM_MIN(o->round, (uint32_t)FMV_BATCH_MAX);
    return FM_OK;
}

void fm_blame_history_release(fm_blame_history *h)
{
    fm_free(h->at);
    fm_free(h->asks);
    fm_free(h->fails);
    fm_free(h->share);
    fm_free(h->partner);
    fm_free(h->evidence);
    fm_free(h->steps);
    memset(h, 0, sizeof *h);
}

fm_status fm_blame_search(fm_blame_history *out, const fm_blame_node *nodes, size_t count,
                          const fm_blame_oracle *oracle, const fm_blame_opts *opts)
{
    fmv_search s = {.node = nodes, .count = count, .oracle = oracle, .opts = *opts, .out = out};
    fmv_observation top = {FMV_ANSWER_PASSES, 0, 0};
    memset(out, 0, sizeof *out);
    fm_assert(count > 0);
    fm_status rc = settle_opts(&s.opts);
    FM_THEN(rc, search_open(&s));
    FM_THEN(rc, ask_first(&s));
    FM_THEN(rc, open_worlds(&s));
    FM_THEN(rc, run_rounds(&s));
    FM_THEN(rc, conclude(&s, &top));
    FM_THEN(rc, fmv_blame_decide(&s, &top));
    if (rc == FM_OK)
        fill_outcomes(&s);
    fmv_hypotheses_release(&s.w);
    fm_free(s.failed);
    fm_free(s.passed);
    fm_free(s.can);
    fm_free(s.unasked);
    if (rc < 0)
        fm_blame_history_release(out);
    return rc;
}
