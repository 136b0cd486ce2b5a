/* hypotheses.c - the posterior over the true outcome of every version of a history.
 *
 * A world is one outcome per version. It comes from events: a root that fails, a step that breaks,
 * a step that mends; at most three in one history. Without an event a version has its parents'
 * outcome; where a merge's parents differ, either side may win. Each event has a prior in
 * proportion to the weight of its step. A flaky world has a single event, and its failing versions
 * fail at a rate of their own. All worlds are listed with their verdict, so that the posterior of a
 * verdict is a sum, and the question that tells most is found by counting. */
#include <math.h>
#include <string.h>

#include "store/base/math/detmath.h"
#include "store/base/mem.h"
#include "testing/search/hypotheses.h"

#define WORLDS_MAX 24000u
#define NODES_MAX 4096u
/* Priors for a whole history. */
#define PRIOR_FAILS 0.5 /* that node 0 fails, where the case is not flaky */
#define PRIOR_ROOT 0.3
#define PRIOR_BREAK 0.7
#define PRIOR_MEND 0.6
#define PRIOR_FLAKY 0.1
#define LN2 0.69314718055994530942
#define TINY 1e-9 /* bits: less is nothing to learn */

static const double flaky_rate[] = {0.3, 0.5, 0.7};

static double fail_rate(const fmv_hypotheses *w, uint8_t channel, bool fails)
{
    if (!fails)
        return w->flip;
    return channel ? flaky_rate[channel - 1] : 1 - w->flip;
}

/* ---- making worlds ---- */

typedef struct maker {
    fmv_hypotheses *w;
    unsigned events_max, mixed_max;
    uint64_t *row; /* [words] the row being filled, roots first */
    bool *reached; /* [count] */
    bool full;
} maker;

static fm_status add_world(fmv_hypotheses *w, const uint64_t *row, double logw, fmv_observation a,
                           uint8_t channel)
{
    if (w->n == w->cap) {
        size_t cap = FM_MAX(w->cap * 2, (size_t)256);
        void *state = fm_realloc(w->state, cap * w->words * sizeof *w->state);
        w->state = state ? state : w->state;
        void *log = state ? fm_realloc(w->logw, cap * sizeof *w->logw) : NULL;
        w->logw = log ? log : w->logw;
        void *answer = log ? fm_realloc(w->answer, cap * sizeof *w->answer) : NULL;
        w->answer = answer ? answer : w->answer;
        void *channels = answer ? fm_realloc(w->channel, cap) : NULL;
        w->channel = channels ? channels : w->channel;
        if (!channels)
            return FM_ENOMEM;
        w->cap = cap;
    }
    memcpy(w->state + w->n * w->words, row, w->words * sizeof *row);
    w->logw[w->n] = logw;
    w->answer[w->n] = (uint32_t)((size_t)a.kind * w->count + a.culprit);
    w->channel[w->n++] = channel;
    return FM_OK;
}

static fm_status emit(maker *m, unsigned events, double logp)
{
    fmv_hypotheses *w = m->w;
    fmv_observation a = fmv_hypotheses_classify(w, m->row, m->reached);
    size_t flaky =
        w->flip > 0 && events == 1 && a.kind != FMV_ANSWER_PASSES ? FM_ARRAY_LEN(flaky_rate) : 0;
    if (w->n + 1 + flaky > WORLDS_MAX) {
        m->full = true;
        return FM_OK;
    }
    FM_TRY(add_world(w, m->row, logp, a, 0));
    a.kind = FMV_ANSWER_FLAKY;
    for (size_t k = 0; k < flaky; k++)
        FM_TRY(add_world(w, m->row, logp, a, (uint8_t)(k + 1)));
    return FM_OK;
}

static fm_status fill(maker *m, size_t left, unsigned events, unsigned mixed, double logp);

static fm_status fill_with(maker *m, size_t i, bool fails, unsigned events, unsigned mixed,
                           double logp)
{
    uint64_t bit = (uint64_t)1 << (i % 64);
    if (fails)
        m->row[i / 64] |= bit;
    else
        m->row[i / 64] &= ~bit;
    return fill(m, i, events, mixed, logp);
}

/* Fills the nodes below `left`; nodes [left, count) are filled. */
static fm_status fill(maker *m, size_t left, unsigned events, unsigned mixed, double logp)
{
    const fmv_hypotheses *w = m->w;
    if (m->full)
        return FM_OK;
    if (left == 0)
        return emit(m, events, logp);
    size_t i = left - 1, failing = 0, parents = w->node[i].parent_count;
    for (size_t p = 0; p < parents; p++)
        failing += fmv_bit(m->row, w->node[i].parent[p]);
    if (failing && failing < parents) {
        if (mixed == m->mixed_max)
            return fill_with(m, i, true, events, mixed, logp);
        FM_TRY(fill_with(m, i, true, events, mixed + 1, logp + fm_log(0.5)));
        return fill_with(m, i, false, events, mixed + 1, logp + fm_log(0.5));
    }
    bool as_before = failing > 0;
    double p = as_before ? w->mends[i] : w->breaks[i];
    FM_TRY(fill_with(m, i, as_before, events, mixed, logp + fm_log1p(-p)));
    if (events < m->events_max)
        FM_TRY(fill_with(m, i, !as_before, events + 1, mixed, logp + fm_log(p)));
    return FM_OK;
}

/* Sets the prior mass of histories: node 0 fails or not, flaky or not. */
static void balance(fmv_hypotheses *w)
{
    double sum[3] = {0, 0, 0};
    const double flaky = w->flip > 0 ? PRIOR_FLAKY : 0;
    const double want[3] = {(1 - flaky) * (1 - PRIOR_FAILS), (1 - flaky) * PRIOR_FAILS, flaky};
    for (int pass = 0; pass < 2; pass++)
        for (size_t k = 0; k < w->n; k++) {
            size_t kind = w->answer[k] / w->count;
            size_t part = kind == FMV_ANSWER_PASSES ? 0 : kind == FMV_ANSWER_FLAKY ? 2 : 1;
            if (pass == 0)
                sum[part] += fm_exp(w->logw[k]);
            else
                w->logw[k] += fm_log(want[part] / sum[part]);
        }
}

static fm_status make_worlds(fmv_hypotheses *w)
{
    static const unsigned most[][2] = {{3, 3}, {2, 2}, {1, 1}, {1, 0}}; /* events, mixed merges */
    maker m = {.w = w};
    m.row = fm_calloc(w->words, sizeof *m.row);
    m.reached = fm_calloc(w->count, sizeof *m.reached);
    fm_status rc = m.row && m.reached ? FM_OK : FM_ENOMEM;
    for (size_t k = 0; rc == FM_OK && k < FM_ARRAY_LEN(most) && (k == 0 || m.full); k++) {
        m.events_max = most[k][0];
        m.mixed_max = most[k][1];
        m.full = false;
        w->n = 0;
        rc = fill(&m, w->count, 0, 0, 0.0);
    }
    fm_assert(rc < 0 || !m.full);
    fm_free(m.row);
    fm_free(m.reached);
    if (rc == FM_OK)
        balance(w);
    return rc;
}

static void set_priors(fmv_hypotheses *w)
{
    double sum = 0;
    for (size_t i = 0; i < w->count; i++)
        sum += w->node[i].weight > 0 ? w->node[i].weight : 1;
    for (size_t i = 0; i < w->count; i++) {
        double share = (w->node[i].weight > 0 ? w->node[i].weight : 1) / sum;
        bool root = w->node[i].parent_count == 0;
        w->breaks[i] = root ? PRIOR_ROOT : PRIOR_BREAK * share;
        w->mends[i] = PRIOR_MEND * share;
    }
}

fm_status fmv_hypotheses_init(fmv_hypotheses *w, const fm_blame_node *nodes, size_t count,
                              double flip)
{
    *w = (fmv_hypotheses){.node = nodes, .count = count, .words = (count + 63) / 64, .flip = flip};
    if (count > NODES_MAX)
        return fm_fail(FM_ELIMIT, "blame: %zu versions in this history, at most %u are searched",
                       count, NODES_MAX);
    w->ancestors = fm_calloc(count * w->words, sizeof *w->ancestors);
    w->scratch = fm_calloc(FMV_ANSWER_KINDS * count, sizeof *w->scratch);
    w->breaks = fm_calloc(count, sizeof *w->breaks);
    w->mends = fm_calloc(count, sizeof *w->mends);
    if (!w->ancestors || !w->scratch || !w->breaks || !w->mends)
        return FM_ENOMEM;
    for (size_t i = count; i-- > 0;)
        for (size_t p = 0; p < nodes[i].parent_count; p++) {
            size_t at = nodes[i].parent[p];
            fm_assert(at > i && at < count);
            w->ancestors[i * w->words + at / 64] |= (uint64_t)1 << (at % 64);
            for (size_t k = 0; k < w->words; k++)
                w->ancestors[i * w->words + k] |= w->ancestors[at * w->words + k];
        }
    set_priors(w);
    FM_TRY(make_worlds(w));
    w->mass = fm_calloc(w->n, sizeof *w->mass);
    if (!w->mass)
        return FM_ENOMEM;
    fmv_hypotheses_normalize(w);
    return FM_OK;
}

void fmv_hypotheses_release(fmv_hypotheses *w)
{
    fm_free(w->ancestors);
    fm_free(w->state);
    fm_free(w->logw);
    fm_free(w->mass);
    fm_free(w->answer);
    fm_free(w->channel);
    fm_free(w->breaks);
    fm_free(w->mends);
    fm_free(w->scratch);
    memset(w, 0, sizeof *w);
}

/* ---- their verdicts ---- */

static bool older_fails(const fmv_hypotheses *w, const uint64_t *row, size_t i)
{
    for (size_t k = 0; k < w->words; k++)
        if (w->ancestors[i * w->words + k] & row[k])
            return true;
    return false;
}

/* Follows the failure upwards along failing parents. A failing version none of whose parents fails
 * broke the case. A merge of a failing and a passing line has the failure from the failing line,
 * unless that line failed from its root on and the other had repaired it: then the repair was
 * lost. */
fmv_observation fmv_hypotheses_classify(const fmv_hypotheses *w, const uint64_t *row, bool *reached)
{
    size_t merge = SIZE_MAX, oldest = 0;
    if (!fmv_bit(row, 0))
        return (fmv_observation){FMV_ANSWER_PASSES, 0, 1};
    memset(reached, 0, w->count * sizeof *reached);
    reached[0] = true;
    for (size_t i = 0; i < w->count; i++) {
        const fm_blame_node *n = &w->node[i];
        size_t failing = 0;
        bool mended = false;
        if (!reached[i])
            continue;
        oldest = i;
        for (size_t p = 0; p < n->parent_count; p++) {
            bool fails = fmv_bit(row, n->parent[p]);
            failing += fails;
            reached[n->parent[p]] |= fails;
            mended = mended || (!fails && older_fails(w, row, n->parent[p]));
        }
        if (n->parent_count && !failing)
            return (fmv_observation){older_fails(w, row, i) ? FMV_ANSWER_OLDER
                                     : n->parent_count > 1  ? FMV_ANSWER_MERGE
                                                            : FMV_ANSWER_BREAK,
                                     i, 1};
        if (mended && merge == SIZE_MAX)
            merge = i;
    }
    if (merge != SIZE_MAX)
        return (fmv_observation){FMV_ANSWER_OLDER, merge, 1};
    return (fmv_observation){FMV_ANSWER_INHERITED, oldest, 1};
}

/* ---- learning ---- */

void fmv_hypotheses_learn(fmv_hypotheses *w, size_t node, bool fails)
{
    for (size_t k = 0; k < w->n; k++) {
        double p = fail_rate(w, w->channel[k], fmv_bit(w->state + k * w->words, node));
        p = fails ? p : 1 - p;
        w->logw[k] += p > 0 ? fm_log(p) : -(double)INFINITY;
    }
}

/* Refuted worlds, and worlds 1e13 times less likely than the best, are dropped. */
void fmv_hypotheses_normalize(fmv_hypotheses *w)
{
    double top = -(double)INFINITY, sum = 0;
    size_t kept = 0;
    for (size_t k = 0; k < w->n; k++)
        top = FM_MAX(top, w->logw[k]);
    w->alive = top > -(double)INFINITY;
    for (size_t k = 0; w->alive && k < w->n; k++) {
        if (w->logw[k] < top - 30)
            continue;
        memmove(w->state + kept * w->words, w->state + k * w->words, w->words * sizeof *w->state);
        w->logw[kept] = w->logw[k] - top;
        w->answer[kept] = w->answer[k];
        w->channel[kept++] = w->channel[k];
    }
    if (!w->alive)
        return;
    w->n = kept;
    for (size_t k = 0; k < w->n; k++)
        sum += w->mass[k] = fm_exp(w->logw[k]);
    for (size_t k = 0; k < w->n; k++)
        w->mass[k] /= sum;
}

/* The answer's row: FLAKY is one answer wherever it begins; others differ by kind and version. */
static size_t answer_row(const fmv_hypotheses *w, size_t k)
{
    size_t kind = w->answer[k] / w->count;
    return kind == FMV_ANSWER_FLAKY ? kind * w->count : w->answer[k];
}

fmv_observation fmv_hypotheses_top(const fmv_hypotheses *w)
{
    double best = 0, flaky_best = -1;
    size_t top = 0, rows = FMV_ANSWER_KINDS * w->count, begins = 0;
    double *sum = w->scratch;
    memset(sum, 0, rows * sizeof *sum);
    for (size_t k = 0; k < w->n; k++)
        sum[answer_row(w, k)] += w->mass[k];
    for (size_t r = 0; r < rows; r++)
        if (sum[r] > best) {
            best = sum[r];
            top = r;
        }
    if (top / w->count != FMV_ANSWER_FLAKY)
        return (fmv_observation){(fmv_answer_kind)(top / w->count), top % w->count, best};
    for (size_t k = 0; k < w->n; k++)
        if (w->answer[k] / w->count == FMV_ANSWER_FLAKY && w->mass[k] > flaky_best) {
            flaky_best = w->mass[k];
            begins = w->answer[k] % w->count;
        }
    return (fmv_observation){FMV_ANSWER_FLAKY, begins, best};
}

void fmv_hypotheses_marginals(const fmv_hypotheses *w, const fmv_observation *given, double *fails,
                              double *share)
{
    double sum = 0;
    memset(fails, 0, w->count * sizeof *fails);
    memset(share, 0, w->count * sizeof *share);
    for (size_t k = 0; k < w->n; k++) {
        size_t kind = w->answer[k] / w->count, at = w->answer[k] % w->count;
        if (given && (kind != given->kind || at != given->culprit))
            continue;
        sum += w->mass[k];
        for (size_t i = 0; i < w->count; i++)
            fails[i] += fmv_bit(w->state + k * w->words, i) ? w->mass[k] : 0;
        if (kind != FMV_ANSWER_PASSES && kind != FMV_ANSWER_FLAKY)
            share[at] += w->mass[k];
    }
    for (size_t i = 0; i < w->count && sum > 0; i++) {
        fails[i] /= sum;
        share[i] /= sum;
    }
}

/* ---- choosing ---- */

/* Live pairs of answer and channel: the rows of the tables below. */
typedef struct chooser {
    fmv_hypotheses *w;
    size_t rows;
    uint32_t *row_of;    /* [n] */
    size_t *answer_of;   /* [rows] */
    uint8_t *channel_of; /* [rows] */
    uint8_t *pattern;    /* [n] true outcomes of the nodes picked so far, a bit each */
    double *table;       /* [rows][1 << FMV_BATCH_MAX] */
    double *joint;       /* one answer's, [1 << FMV_BATCH_MAX] */
} chooser;

static double plogp(double p)
{
    return p > 0 ? p * (fm_log(p) / LN2) : 0;
}

/* Turns true outcomes into observed ones: each of the `bits` goes through the row's channel. */
static void through_channel(const fmv_hypotheses *w, double *cell, size_t bits, uint8_t channel)
{
    double fp = fail_rate(w, channel, false), ff = fail_rate(w, channel, true);
    for (size_t b = 0; b < bits; b++)
        for (size_t at = 0; at < (size_t)1 << bits; at++) {
            size_t with = at | (size_t)1 << b;
            if (at == with)
                continue;
            double pass = cell[at], fail = cell[with];
            cell[at] = pass * (1 - fp) + fail * (1 - ff);
            cell[with] = pass * fp + fail * ff;
        }
}

/* Expected entropy of the answer after the replies of the picks and of `node`, less a constant.
 * Rows of one answer are neighbours. */
static double expected_entropy(const chooser *c, size_t node, size_t picks)
{
    const fmv_hypotheses *w = c->w;
    size_t bits = picks + 1, cells = (size_t)1 << bits;
    double heard[1 << FMV_BATCH_MAX] = {0}, sum = 0;
    memset(c->table, 0, c->rows * cells * sizeof *c->table);
    for (size_t k = 0; k < w->n; k++) {
        size_t says = fmv_bit(w->state + k * w->words, node);
        c->table[c->row_of[k] * cells + (c->pattern[k] | says << picks)] += w->mass[k];
    }
    memset(c->joint, 0, cells * sizeof *c->joint);
    for (size_t r = 0; r < c->rows; r++) {
        double *cell = c->table + r * cells;
        bool last = r + 1 == c->rows || c->answer_of[r + 1] != c->answer_of[r];
        through_channel(w, cell, bits, c->channel_of[r]);
        for (size_t at = 0; at < cells; at++) {
            c->joint[at] += cell[at];
            heard[at] += cell[at];
            if (last) {
                sum -= plogp(c->joint[at]);
                c->joint[at] = 0;
            }
        }
    }
    for (size_t at = 0; at < cells; at++)
        sum += plogp(heard[at]);
    return sum;
}

static void index_rows(chooser *c, uint32_t *number)
{
    const fmv_hypotheses *w = c->w;
    size_t channels = FM_ARRAY_LEN(flaky_rate) + 1;
    size_t all = FMV_ANSWER_KINDS * w->count * channels;
    memset(number, 0, all * sizeof *number);
    for (size_t k = 0; k < w->n; k++)
        number[answer_row(w, k) * channels + w->channel[k]] = 1;
    for (size_t i = 0; i < all; i++)
        if (number[i]) {
            c->answer_of[c->rows] = i / channels;
            c->channel_of[c->rows] = (uint8_t)(i % channels);
            number[i] = (uint32_t)c->rows++;
        }
    for (size_t k = 0; k < w->n; k++)
        c->row_of[k] = number[answer_row(w, k) * channels + w->channel[k]];
}

static void choose(chooser *c, const bool *can, size_t want, size_t *pick, size_t *n)
{
    fmv_hypotheses *w = c->w;
    double before = 0;
    memset(w->scratch, 0, FMV_ANSWER_KINDS * w->count * sizeof *w->scratch);
    for (size_t k = 0; k < w->n; k++)
        w->scratch[answer_row(w, k)] += w->mass[k];
    for (size_t r = 0; r < FMV_ANSWER_KINDS * w->count; r++)
        before -= plogp(w->scratch[r]);
    for (*n = 0; *n < want; ++*n) {
        double least = before - TINY;
        size_t best = SIZE_MAX;
        for (size_t i = 0; i < w->count; i++) {
            double after = can[i] ? expected_entropy(c, i, *n) : (double)INFINITY;
            if (after < least - TINY || (best == SIZE_MAX && after < least)) {
                least = after;
                best = i;
            }
        }
        if (best == SIZE_MAX)
            return;
        pick[*n] = best;
        before = least;
        for (size_t k = 0; k < w->n; k++)
            c->pattern[k] |= (uint8_t)((unsigned)fmv_bit(w->state + k * w->words, best) << *n);
    }
}

fm_status fmv_hypotheses_pick(fmv_hypotheses *w, const bool *can, size_t want, size_t *pick,
                              size_t *n)
{
    size_t most = FMV_ANSWER_KINDS * w->count * (FM_ARRAY_LEN(flaky_rate) + 1);
    size_t rows = FM_MIN(most, w->n);
    chooser c = {.w = w};
    fm_assert(want <= FMV_BATCH_MAX);
    uint32_t *number = fm_calloc(most, sizeof *number);
    c.row_of = fm_calloc(w->n, sizeof *c.row_of);
    c.answer_of = fm_calloc(rows, sizeof *c.answer_of);
    c.channel_of = fm_calloc(rows, sizeof *c.channel_of);
    c.pattern = fm_calloc(w->n, sizeof *c.pattern);
    c.table = fm_calloc(rows << want, sizeof *c.table);
    c.joint = fm_calloc((size_t)1 << FMV_BATCH_MAX, sizeof *c.joint);
    bool ok = number && c.row_of && c.answer_of && c.channel_of && c.pattern && c.table && c.joint;
    if (ok) {
        index_rows(&c, number);
        choose(&c, can, want, pick, n);
    }
    fm_free(number);
    fm_free(c.row_of);
    fm_free(c.answer_of);
    fm_free(c.channel_of);
    fm_free(c.pattern);
    fm_free(c.table);
    fm_free(c.joint);
    return ok ? FM_OK : FM_ENOMEM;
}
