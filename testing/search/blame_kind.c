/* blame_kind.c - the kind of a failure, once history has named a version.
 *
 * If something older fails too: with the same answer the fault is that old and was exposed; with
 * another answer it is a second fault. If nothing older fails, other forms of the case are asked of
 * older versions, and the step's change is tried alone on the base, where the oracle can do so. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/math/detmath.h"
#include "store/base/mem.h"
#include "testing/search/hypotheses.h"
#include "testing/stats.h"

/* that an introduced-looking failure is older, before other forms are asked */
#define PRIOR_EXPOSED 0.1
#define CHANCE_LEAST 0.02 /* that a sound version gives the very same wrong answer to a form */
#define FAULT_LEAST 0.25  /* that a version with the fault gives it */
#define MIX_REPEATS_MAX 64u

static void note(fmv_search *s, const char *text)
{
    if (!s->out->note[0])
        snprintf(s->out->note, sizeof s->out->note, "%s", text);
}

/* The answer of a node that fails according to history; asks it if it has none yet. */
static fm_status hear_answer(fmv_search *s, size_t node, uint64_t *out)
{
    fm_status rc = FM_OK;
    unsigned tries = s->opts.flip_rate > 0 ? 4 : 1;
    *out = fmv_wrong_answer(s, node);
    for (unsigned i = 0; rc == FM_OK && i < tries && !*out && !s->unasked[node]; i++) {
        if (s->opts.flip_rate == 0 && s->out->asks[node])
            break;
        rc = fmv_ask_nodes(s, &node, 1);
        *out = fmv_wrong_answer(s, node);
    }
    return rc;
}

/* ---- something older fails ---- */

static fm_status decide_older(fmv_search *s, const fmv_observation *top)
{
    fm_blame_history *out = s->out;
    const uint64_t *anc = s->w.ancestors + top->culprit * s->w.words;
    double *fails = fm_calloc(s->count, sizeof *fails), *share = fm_calloc(s->count, sizeof *share);
    uint64_t mine = 0, its = 0;
    bool told = true, follows = false;
    fm_status rc = fails && share ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK && s->w.alive)
        fmv_hypotheses_marginals(&s->w, top, fails, share);
    else if (rc == FM_OK)
        memcpy(fails, out->fails, s->count * sizeof *fails);
    FM_THEN(rc, hear_answer(s, top->culprit, &mine));
    out->likely = FM_BLAME_REINTRODUCED;
    for (size_t p = 0; rc == FM_OK && p < s->node[top->culprit].parent_count; p++)
        follows = follows || fails[s->node[top->culprit].parent[p]] > 0.5;
    for (size_t i = top->culprit + 1; rc == FM_OK && i < s->count; i++) {
        if (!fmv_bit(anc, i) || fails[i] <= 0.5)
            continue;
        /* The nearest node is asked for its answer; of the others only known answers count. */
        if (out->source == SIZE_MAX)
            rc = hear_answer(s, i, &its);
        else
            its = fmv_wrong_answer(s, i);
        told = told && its;
        if (its && mine && its == mine && !follows) {
            out->likely = FM_BLAME_EXPOSED;
            out->source = i;
        } else if (out->source == SIZE_MAX) {
            out->source = i;
        }
    }
    if (rc == FM_OK && out->likely == FM_BLAME_REINTRODUCED && !told && !follows)
        note(s,
             "an older version that is likely to fail too was not heard: it may give this answer");
    fm_free(fails);
    fm_free(share);
    return rc;
}

/* ---- nothing older fails: other forms of the case ---- */

/* Odds of "this version has the fault" against "it answers so by chance", from `same` of `asked`:
 * with the fault all rates from FAULT_LEAST on are equally likely. The mean of the binomial's mass
 * over these rates is a tail of the beta distribution. */
static double fault_odds(const fm_blame_forms *f, double chance)
{
    double least = FM_MAX(chance, FAULT_LEAST), k = f->same, n = f->asked;
    double mean = fm_beta_cdf(1 - least, n - k + 1, k + 1) / ((n + 1) * (1 - least));
    return mean / fm_binom_pmf(f->same, f->asked, chance);
}

static fm_status ask_forms(fmv_search *s, const size_t *node, size_t n, uint64_t wrong,
                           fm_blame_forms *forms)
{
    fm_status rc = s->oracle->forms(s->oracle->ctx, node, n, wrong, forms);
    s->out->rounds += rc == FM_OK;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        const fm_blame_evidence e = {
            .kind = FM_BLAME_FORM, .node = node[i], .forms = forms[i], .round = s->out->rounds};
        s->out->runs += forms[i].asked;
        rc = fmv_keep_evidence(s, &e);
    }
    return rc;
}

/* The line of first parents from the culprit, out[0], to the base; returns its length. */
static size_t first_line(const fmv_search *s, size_t culprit, size_t *out)
{
    size_t n = 0;
    for (size_t at = culprit;; at = s->node[at].parent[0]) {
        out[n++] = at;
        if (!s->node[at].parent_count)
            return n;
    }
}

/* The odds that some of n versions have the fault; *source: the last of them that shows it. */
static fm_status odds_of_forms(fmv_search *s, const size_t *node, size_t n, uint64_t wrong,
                               double *best, size_t *source, bool *sign)
{
    fm_blame_forms *forms = fm_calloc(n, sizeof *forms);
    fm_status rc = forms ? ask_forms(s, node, n, wrong, forms) : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        double chance = FM_MAX(forms[i].chance + s->opts.flip_rate, CHANCE_LEAST);
        if (!forms[i].asked || chance >= 1)
            continue;
        double odds = PRIOR_EXPOSED / (1 - PRIOR_EXPOSED) * fault_odds(&forms[i], chance);
        *best = FM_MAX(*best, odds);
        *sign = *sign || forms[i].same;
        if (odds > 1)
            *source = node[i];
    }
    fm_free(forms);
    return rc;
}

/* The posterior that the fault is older. The culprit's parents are asked first, since what its step
 * exposes is there; if they show a sign of the fault the base is asked too, to date it. */
static fm_status older_by_forms(fmv_search *s, const size_t *line, size_t n, uint64_t wrong,
                                double *posterior, size_t *source)
{
    const fm_blame_node *c = &s->node[line[0]];
    size_t *node = fm_calloc(c->parent_count, sizeof *node), m = 0, base = line[n - 1];
    double best = 0;
    bool sign = false;
    fm_status rc = node ? FM_OK : FM_ENOMEM;
    for (size_t p = 0; rc == FM_OK && p < c->parent_count; p++)
        if (!s->unasked[c->parent[p]])
            node[m++] = c->parent[p];
    if (rc == FM_OK && m)
        rc = odds_of_forms(s, node, m, wrong, &best, source, &sign);
    if (rc == FM_OK && sign && n > 2 && !s->unasked[base] && s->out->runs < s->opts.max_runs)
        rc = odds_of_forms(s, &base, 1, wrong, &best, source, &sign);
    *posterior = best / (1 + best);
    fm_free(node);
    return rc;
}

/* ---- the step alone on the base ---- */

/* The units are the steps between base and culprit; the culprit's own step is always included. */
typedef struct steps {
    fmv_search *s;
    const size_t *line; /* [0] the culprit */
    size_t between;     /* line[1 ... between] may be left out */
    bool impossible;
} steps;

static fm_status keep_steps(fmv_search *s, const fm_blame_mix *mix, const fm_blame_reply *said)
{
    fm_blame_history *out = s->out;
    fm_blame_evidence e = {.kind = FM_BLAME_MIX,
                           .node = mix->step[0],
                           .repeat = mix->repeat,
                           .said = *said,
                           .step_begin = s->steps_count,
                           .step_count = mix->count,
                           .round = out->rounds};
    FM_TRY(fm_grow(&out->steps, &s->steps_cap, s->steps_count + mix->count, sizeof *out->steps));
    memcpy(out->steps + s->steps_count, mix->step, mix->count * sizeof *mix->step);
    s->steps_count += mix->count;
    return fmv_keep_evidence(s, &e);
}

static fm_status run_steps(void *ctx, const fm_mixture *m, size_t n, fm_mixture_reply *out)
{
    steps *st = ctx;
    fmv_search *s = st->s;
    fm_blame_mix *mix = fm_calloc(n, sizeof *mix);
    fm_blame_reply *said = fm_calloc(n, sizeof *said);
    size_t *room = fm_calloc(n * (st->between + 1), sizeof *room), *at = room;
    fm_status rc = mix && said && room ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        mix[i] = (fm_blame_mix){at, 1, m[i].repeat};
        *at++ = st->line[0];
        for (size_t u = 0; u < st->between; u++)
            if (m[i].take[u]) {
                *at++ = st->line[u + 1];
                mix[i].count++;
            }
    }
    FM_THEN(rc, s->oracle->mix(s->oracle->ctx, mix, n, said));
    s->out->rounds += rc == FM_OK;
    s->out->runs += rc == FM_OK ? (uint32_t)n : 0;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        out[i] = (fm_mixture_reply){.fails = said[i].verdict == FM_FAIL,
                                    .unasked = said[i].verdict == FM_ERROR_CASE,
                                    .score = said[i].score};
        st->impossible = st->impossible || out[i].unasked;
        rc = keep_steps(s, &mix[i], &said[i]);
    }
    fm_free(mix);
    fm_free(said);
    fm_free(room);
    return rc;
}

/* Sets whether the culprit's step alone on the base fails; repeated until the odds are clear. */
static fm_status step_alone(steps *st, bool *fails, bool *possible)
{
    const fm_blame_opts *o = &st->s->opts;
    bool *none = fm_calloc(FM_MAX(st->between, (size_t)1), sizeof *none);
    double step = o->flip_rate > 0 ? fm_log((1 - o->flip_rate) / o->flip_rate) : (double)INFINITY;
    double odds = 0, enough = fm_log(2 / (1 - o->confidence));
    fm_status rc = none ? FM_OK : FM_ENOMEM;
    *possible = false;
    for (uint32_t r = 0; rc == FM_OK && r < MIX_REPEATS_MAX && fabs(odds) < enough; r++) {
        const fm_mixture m = {none, r};
        fm_mixture_reply said;
        if (st->s->out->runs >= o->max_runs) {
            *possible = false;
            break;
        }
        rc = run_steps(st, &m, 1, &said);
        if (rc < 0 || said.unasked)
            break;
        *possible = true;
        odds += said.fails ? step : -step;
    }
    *fails = odds > 0;
    fm_free(none);
    return rc;
}

/* Finds the earlier steps that the culprit's needs; all of them make the culprit itself. */
static fm_status needed_steps(steps *st, double *posterior)
{
    fmv_search *s = st->s;
    fm_blame_history *out = s->out;
    fm_minimal_set set;
    const fm_blame_units units = {.count = st->between};
    const fm_minimal_opts opts = {.flip_rate = s->opts.flip_rate,
                                  .confidence = s->opts.confidence,
                                  .max_runs = s->opts.max_runs - out->runs};
    fm_status rc = fm_blame_minimal(&set, &units, run_steps, st, &opts);
    if (rc < 0)
        return rc;
    if (!set.sufficient) {
        note(s,
             "the steps added up on the base do not fail, so that it is open whether the failure "
             "needs an earlier one");
    } else if (set.size) {
        out->partner = fm_calloc(set.size, sizeof *out->partner);
        for (size_t u = 0; out->partner && u < st->between; u++)
            if (set.take[u])
                out->partner[out->partner_count++] = st->line[u + 1];
        rc = out->partner ? FM_OK : FM_ENOMEM;
        out->likely = FM_BLAME_INTERACTION;
        *posterior *= set.posterior;
    }
    fm_free(set.take);
    return rc;
}

static fm_status decide_steps(fmv_search *s, const size_t *line, size_t n, double *posterior)
{
    steps st = {s, line, n - 2, false};
    bool fails, possible;
    FM_TRY(step_alone(&st, &fails, &possible));
    if (possible && !fails && s->out->runs < s->opts.max_runs)
        FM_TRY(needed_steps(&st, posterior));
    if (!possible || st.impossible)
        note(s,
             "the steps of this line cannot be added up one by one, so that it is open whether the "
             "failure needs an earlier one");
    return FM_OK;
}

static fm_status decide_step(fmv_search *s, const fmv_observation *top, double *posterior)
{
    fm_blame_history *out = s->out;
    size_t *line = fm_calloc(s->count, sizeof *line), n = 0;
    uint64_t wrong = 0;
    double older = 0;
    fm_status rc = line ? hear_answer(s, top->culprit, &wrong) : FM_ENOMEM;
    out->likely = FM_BLAME_INTRODUCED;
    if (rc == FM_OK)
        n = first_line(s, top->culprit, line);
    if (rc == FM_OK && s->oracle->forms && wrong && out->runs < s->opts.max_runs) {
        size_t source = SIZE_MAX;
        rc = older_by_forms(s, line, n, wrong, &older, &source);
        if (rc == FM_OK && older > 0.5) {
            out->likely = FM_BLAME_EXPOSED;
            out->source = source;
        }
        /* Forms that speak against an older fault, or tell little, leave the verdict of history. */
        *posterior *= older > PRIOR_EXPOSED ? FM_MAX(older, 1 - older) : 1;
    }
    if (rc == FM_OK && out->likely == FM_BLAME_INTRODUCED && s->oracle->mix && n > 2 &&
        out->runs + 3 <= s->opts.max_runs)
        rc = decide_steps(s, line, n, posterior);
    fm_free(line);
    return rc;
}

fm_status fmv_blame_decide(fmv_search *s, const fmv_observation *top)
{
    static const fm_blame_class class[] = {
        [FMV_ANSWER_PASSES] = FM_BLAME_PASSES,      [FMV_ANSWER_INHERITED] = FM_BLAME_INHERITED,
        [FMV_ANSWER_BREAK] = FM_BLAME_INTRODUCED,   [FMV_ANSWER_MERGE] = FM_BLAME_INTERACTION,
        [FMV_ANSWER_OLDER] = FM_BLAME_REINTRODUCED, [FMV_ANSWER_FLAKY] = FM_BLAME_FLAKY};
    fm_blame_history *out = s->out;
    double posterior = top->posterior;
    fm_status rc = FM_OK;
    out->culprit = top->culprit;
    out->likely = class[top->kind];
    if (posterior >= s->opts.confidence && top->kind == FMV_ANSWER_OLDER)
        rc = decide_older(s, top);
    if (posterior >= s->opts.confidence && top->kind == FMV_ANSWER_BREAK)
        rc = decide_step(s, top, &posterior);
    out->posterior = posterior;
    out->verdict = posterior >= s->opts.confidence ? out->likely : FM_BLAME_CANNOT_TELL;
    if (rc == FM_OK && out->verdict == FM_BLAME_CANNOT_TELL) {
        bool in_the_way = false;
        for (size_t i = 0; i < s->count; i++)
            in_the_way = in_the_way || s->unasked[i];
        if (out->runs >= s->opts.max_runs)
            note(s, "the runs were used up below the wanted confidence");
        else if (in_the_way)
            note(s, "versions that could not be asked stand in the way");
    }
    return rc;
}
