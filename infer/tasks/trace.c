/* trace.c - activation patching: at which layer and token another model's state changes an answer.
 *
 * A lane is one row of the grid: a sequence that is run over the common tokens once, and then, for
 * each column from the last to the first, rewound to that column and run on with the states of the
 * other model in it. So a column costs only the tokens behind it, and the tokens before it were
 * never patched. Lanes go through the steps together. */
#include "infer/trace.h"

#include <string.h>

#include "infer/engine/engine.h"
#include "store/base/mem.h"

#define LOGIT_FLOATS (16u << 20)  /* of one step: 64 MiB */
#define STATE_FLOATS (256u << 20) /* states of the other model: 1 GiB */
#define LANES_MAX 64u

typedef struct lane {
    fm_seq *seq;
    fm_hook hook;
    const float *state; /* [common, hidden] the states to put in */
    double margin;
    double *effect; /* [columns] */
} lane;

typedef struct trace {
    const fm_trace_ask *q;
    fm_trace *out;
    fm_engine *e;
    uint32_t limit; /* rows of a step */
    fm_row *row;    /* [limit] */
    float *states;  /* [rows of all sites, common, hidden] */
    lane *lane;     /* [rows of all sites] */
    uint32_t lanes;
    uint64_t total; /* rows, estimated */
} trace;

/* ---- shapes ---- */

static fm_status check(const trace *t)
{
    const fm_trace_ask *q = t->q;
    const fm_arch *a = fm_model_arch(q->to), *b = fm_model_arch(q->from);
    size_t longest = FM_MAX(q->wrong_len, q->right_len);
    uint32_t positions = FM_MIN(fmi_positions(q->to), fmi_positions(q->from));
    if (q->to->engine != q->from->engine)
        return fm_fail(FM_EINVAL, "trace: the models belong to two engines");
    if (a->sw.encoder || b->sw.encoder || a->headless || b->headless)
        return fm_fail(FM_EUNSUPPORTED, "trace: it takes models that write text");
    if (a->layers != b->layers || a->hidden != b->hidden || a->vocab != b->vocab)
        return fm_fail(FM_EUNSUPPORTED,
                       "trace: %u layers of %u against %u of %u, vocabularies of %u and %u: states "
                       "of one mean nothing in the other",
                       a->layers, a->hidden, b->layers, b->hidden, a->vocab, b->vocab);
    if (longest > positions)
        return fm_fail(FM_EINVAL, "trace: %zu tokens, the models take %u", longest, positions);
    for (size_t i = 0; i < q->wrong_len + q->right_len; i++) {
        int32_t id = i < q->wrong_len ? q->wrong[i] : q->right[i - q->wrong_len];
        if (id < 0 || (uint32_t)id >= a->vocab)
            return fm_fail(FM_EINVAL, "trace: token %d is outside of the vocabulary (%u)", id,
                           a->vocab);
    }
    return FM_OK;
}

static fm_status find_common(trace *t)
{
    const fm_trace_ask *q = t->q;
    size_t n = 0, most = FM_MIN(q->wrong_len, q->right_len);
    while (n < most && q->wrong[n] == q->right[n])
        n++;
    t->out->common = (uint32_t)n;
    if (n == 0)
        return fm_fail(FM_EINVAL, "trace: the texts have no token in common");
    if (n == most)
        return fm_fail(FM_EINVAL, "trace: one text begins with all of the other: they do not part");
    return FM_OK;
}

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

/* Layers of a site when each step-th is taken, the last always. */
static uint32_t rows_of(const trace *t, unsigned site, uint32_t step)
{
    uint32_t n = fm_model_arch(t->q->to)->layers + (site == FM_SITE_RESIDUAL);
    return t->q->sites & 1u << site ? ceil_div(n - 1, step) + 1 : 0;
}

static uint64_t cost(const trace *t, uint32_t span, uint32_t step)
{
    const fm_trace_ask *q = t->q;
    uint64_t rows = 0, columns = ceil_div(t->out->common, span), lanes = 0;
    for (unsigned s = 0; s < FM_SITES; s++)
        lanes += rows_of(t, s, step);
    for (uint64_t c = 0; c < columns; c++)
        rows += q->wrong_len - 1 - c * span;
    rows += columns * (q->right_len - 1 - t->out->common);
    return lanes * (rows + t->out->common);
}

static fm_status shape(trace *t)
{
    fm_trace *o = t->out;
    uint32_t span = 1, step = 1, layers = fm_model_arch(t->q->to)->layers;
    while (t->q->rows_max && cost(t, span, step) > t->q->rows_max &&
           (span < o->common || step < layers)) {
        if (step < layers && (step < span || span >= o->common))
            step++;
        else
            span++;
    }
    t->total = cost(t, span, step);
    o->columns = ceil_div(o->common, span);
    t->lanes = 0;
    for (unsigned s = 0; s < FM_SITES; s++)
        t->lanes += o->rows[s] = rows_of(t, s, step);
    size_t numbers = (size_t)t->lanes * o->columns;
    o->memory = fm_calloc(
        numbers * sizeof(double) + ((size_t)t->lanes + o->columns + 1) * sizeof(uint32_t), 1);
    if (!o->memory)
        return FM_ENOMEM;
    double *effect = o->memory;
    uint32_t *number = (uint32_t *)(void *)(effect + numbers);
    o->begin = number;
    number += o->columns + 1;
    for (uint32_t c = 0; c <= o->columns; c++)
        o->begin[c] = FM_MIN(c * span, o->common);
    for (unsigned s = 0; s < FM_SITES; s++) {
        uint32_t last = layers - 1 + (s == FM_SITE_RESIDUAL);
        o->layer[s] = number;
        o->effect[s] = effect;
        for (uint32_t i = 0; i < o->rows[s]; i++)
            number[i] = FM_MIN(i * step, last);
        number += o->rows[s];
        effect += (size_t)o->rows[s] * o->columns;
    }
    return FM_OK;
}

/* ---- running ---- */

static void take(const trace *t, lane *l, const int32_t *ids, size_t len, uint32_t at, uint32_t row,
                 double sign)
{
    const fm_trace_ask *q = t->q;
    const float *logits = fm_engine_logits(t->e, row);
    double lse = (double)fmi_engine_lse_of(t->e, row);
    if (at + 1 < len)
        l->margin += sign * ((double)logits[ids[at + 1]] - lse);
    if (at + 1 == t->out->common && sign > 0) /* where the texts part one row scores both */
        l->margin -= (double)logits[q->right[at + 1]] - lse;
}

/* Runs tokens [from, len - 1) of ids in each lane and adds sign times their log P to its margin. */
static fm_status feed(trace *t, lane *l, uint32_t lanes, const int32_t *ids, size_t len,
                      uint32_t from, double sign)
{
    uint32_t each = (uint32_t)len - 1 - from, part = t->out->common - 1;
    uint64_t total = (uint64_t)each * lanes;
    fm_status rc = FM_OK;
    for (uint64_t at = 0, k; rc == FM_OK && at < total; at += k) {
        bool wants = false;
        k = FM_MIN((uint64_t)t->limit, total - at);
        for (uint64_t i = 0; i < k; i++) {
            uint32_t pos = from + (uint32_t)((at + i) % each);
            t->row[i] = (fm_row){l[(at + i) / each].seq, ids[pos], pos >= part};
            wants = wants || pos >= part;
        }
        rc = fm_engine_step(t->e, t->row, (uint32_t)k);
        if (rc == FM_OK && wants)
            rc = fmi_engine_lse(t->e);
        for (uint64_t i = 0; rc == FM_OK && wants && i < k; i++) {
            uint32_t pos = from + (uint32_t)((at + i) % each);
            if (pos >= part)
                take(t, &l[(at + i) / each], ids, len, pos, (uint32_t)i, sign);
        }
        t->out->run_rows += k;
    }
    return rc;
}

/* Runs the lanes from token `from` to the ends of both texts. */
static fm_status both_ends(trace *t, lane *l, uint32_t lanes, uint32_t from)
{
    const fm_trace_ask *q = t->q;
    uint32_t common = t->out->common;
    for (uint32_t i = 0; i < lanes; i++)
        l[i].margin = 0;
    fm_status rc = feed(t, l, lanes, q->wrong, q->wrong_len, from, 1);
    for (uint32_t i = 0; rc == FM_OK && i < lanes && common + 1 < q->right_len; i++)
        rc = fm_seq_rewind(l[i].seq, common);
    return rc == FM_OK && common + 1 < q->right_len
               ? feed(t, l, lanes, q->right, q->right_len, common, -1)
               : rc;
}

/* Runs a model without patches; hook: reads the states of the common tokens. */
static fm_status alone(trace *t, fm_model *m, const fm_hook *hook, size_t hooks, double *margin)
{
    lane l = {0};
    fm_status rc = fm_seq_open(&l.seq, m);
    FM_THEN(rc, fm_seq_hooks(l.seq, hook, hooks));
    FM_THEN(rc, both_ends(t, &l, 1, 0));
    fm_seq_close(l.seq);
    *margin = l.margin;
    return rc;
}

static fm_status capture(trace *t)
{
    fm_trace *o = t->out;
    size_t h = fm_model_arch(t->q->to)->hidden, size = (size_t)o->common * h;
    if ((uint64_t)t->lanes * size > STATE_FLOATS)
        return fm_fail(FM_ELIMIT,
                       "trace: the states of %u tokens in %u places take more than 1 GiB; "
                       "ask for fewer rows",
                       o->common, t->lanes);
    t->states = fm_calloc((size_t)t->lanes * size, sizeof *t->states);
    t->lane = fm_calloc(t->lanes, sizeof *t->lane);
    fm_hook *hook = fm_calloc(t->lanes, sizeof *hook);
    fm_status rc = t->states && t->lane && hook ? FM_OK : FM_ENOMEM;
    for (unsigned s = 0, n = 0; rc == FM_OK && s < FM_SITES; s++)
        for (uint32_t i = 0; i < o->rows[s]; i++, n++) {
            hook[n] = (fm_hook){.site = (fm_site)s,
                                .layer = o->layer[s][i],
                                .tokens = o->common,
                                .read = t->states + n * size};
            t->lane[n] = (lane){.hook = hook[n],
                                .state = t->states + n * size,
                                .effect = o->effect[s] + (size_t)i * o->columns};
            t->lane[n].hook.read = NULL;
        }
    FM_THEN(rc, alone(t, t->q->from, hook, t->lanes, &o->from_margin));
    fm_free(hook);
    return rc;
}

static fm_status column(trace *t, lane *l, uint32_t lanes, uint32_t c)
{
    const fm_trace *o = t->out;
    size_t h = fm_model_arch(t->q->to)->hidden;

    for (uint32_t i = 0; i < lanes; i++) {
        l[i].hook.token = o->begin[c];
        l[i].hook.tokens = o->begin[c + 1] - o->begin[c];
        l[i].hook.write = l[i].state + o->begin[c] * h;
        FM_TRY(fm_seq_hooks(l[i].seq, &l[i].hook, 1));
        FM_TRY(fm_seq_rewind(l[i].seq, o->begin[c]));
    }
    FM_TRY(both_ends(t, l, lanes, o->begin[c]));
    for (uint32_t i = 0; i < lanes; i++)
        l[i].effect[c] = l[i].margin;
    if (t->q->progress && t->q->progress(t->q->ctx, FM_MIN(o->run_rows, t->total), t->total))
        return fm_fail(FM_ECANCELLED, "trace: stopped");
    return FM_OK;
}

static fm_status run_lanes(trace *t, lane *l, uint32_t lanes)
{
    fm_trace *o = t->out;
    fm_status rc = FM_OK;
    const fm_hook none = {.site = FM_SITE_RESIDUAL}; /* no token: it marks the sequence only */
    for (uint32_t i = 0; rc == FM_OK && i < lanes; i++) {
        rc = fm_seq_open(&l[i].seq, t->q->to);
        FM_THEN(rc, fm_seq_hooks(l[i].seq, &none, 1));
    }
    if (rc == FM_OK && o->columns > 1)
        rc = feed(t, l, lanes, t->q->wrong, (size_t)o->begin[o->columns - 1] + 1, 0, 1);
    for (uint32_t c = o->columns; rc == FM_OK && c-- > 0;)
        rc = column(t, l, lanes, c);
    for (uint32_t i = 0; i < lanes; i++) {
        fm_seq_close(l[i].seq);
        l[i].seq = NULL;
    }
    return rc;
}

static fm_status run(trace *t)
{
    uint32_t longest = (uint32_t)FM_MAX(t->q->wrong_len, t->q->right_len);
    uint32_t at_once = FM_MIN(FM_MAX(2 * t->limit / longest, 1u), LANES_MAX);
    fm_status rc = alone(t, t->q->to, NULL, 0, &t->out->margin);
    for (uint32_t at = 0, k; rc == FM_OK && at < t->lanes; at += k) {
        k = FM_MIN(at_once, t->lanes - at);
        rc = run_lanes(t, t->lane + at, k);
        if (rc == FM_ELIMIT && k > 1) { /* KV memory: fewer at a time */
            fm_error_clear();
            at_once = k / 2;
            k = 0;
            rc = FM_OK;
        }
    }
    return rc;
}

fm_status fm_trace_grid(fm_trace *out, const fm_trace_ask *q)
{
    trace t = {.q = q, .out = out, .e = q->to->engine};
    memset(out, 0, sizeof *out);
    fm_status rc = check(&t);
    FM_THEN(rc, find_common(&t));
    FM_THEN(rc, shape(&t));
    if (rc == FM_OK) {
        uint32_t vocab = fm_model_arch(q->to)->vocab;
        t.limit = FM_MIN(t.e->opts.max_rows, FM_MAX(LOGIT_FLOATS / vocab, 1u));
        t.row = fm_calloc(t.limit, sizeof *t.row);
        rc = t.row ? capture(&t) : FM_ENOMEM;
    }
    FM_THEN(rc, run(&t));
    fm_free(t.row);
    fm_free(t.states);
    fm_free(t.lane);
    if (rc < 0)
        fm_trace_release(out);
    return rc;
}

void fm_trace_release(fm_trace *t)
{
    fm_free(t->memory);
    memset(t, 0, sizeof *t);
}
