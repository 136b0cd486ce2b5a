/* scheduler.c - continuous batching: one step over whatever runs.
 *
 * Decode rows come first, then prompts in the order of their start, as many rows as
 * prefill_budget.h allows. fair_queue.h decides which request starts next. A prompt that goes
 * through the same blocks as one before it in the step waits for those blocks and finds them in the
 * cache. When KV pages run out, the request that began last gives its pages back and waits; it is
 * computed again later, and since bits do not depend on how a prompt was cut, its answer goes on
 * unchanged. A failing request ends alone.
 *
 * Where the device picks tokens (fmi_queues), step t + 1 is queued before the tokens of step t are
 * on the host: a stream's next row takes its token from device memory. A request that turns out to
 * have ended had one row for nothing. Whatever needs more than that (logits on the host, pages that
 * another request must give back first, a failure) waits for the queued step. */
#include "infer/sched/scheduler.h"

#include "infer/comm.h"
#include "infer/sched/fair_queue.h"
#include "infer/sched/inflight.h"
#include "infer/sched/prefill_budget.h"

#include <string.h>

#include "store/base/mem.h"
#include "store/base/os/clock.h"

#define MAX_WAITING 65536u
#define ANEW_MOST 3u

struct fm_scheduler {
    fm_engine *e;
    fm_sampler *sampler;
    uint32_t sampler_vocab;
    fmi_request **run; /* [max_running] in order of their start */
    uint32_t running, max_running;
    fmi_fair_queue fair;     /* waiting requests */
    fm_row *row;             /* [max_rows] */
    uint32_t rows, decoding; /* of this step; the first `decoding` rows are decode rows */
    uint64_t next_id;
    fmi_prefill_budget pace;
    fmi_clock now;
    void *now_ctx;
    /* Where steps are queued: the queued step, if any, is inflight[up]. */
    fmi_inflight inflight[2];
    fmi_row_pick *ask; /* [max_rows] */
    uint32_t up;
    bool picks, queues; /* fmi_picks, fmi_queues */
    bool stuck;         /* no page is free before that step is collected */
    double landed;
};

static double system_clock(void *ctx)
{
    (void)ctx;
    return fm_now_s();
}

void fmi_scheduler_clock(fm_scheduler *s, fmi_clock now, void *ctx)
{
    s->now = now ? now : system_clock;
    s->now_ctx = ctx;
}

uint64_t fmi_scheduler_served(const fm_scheduler *s, const fm_model *m)
{
    fm_digest id = fm_model_digest(m);
    for (const fmi_flow *w = s->fair.flows; w; w = w->next)
        if (fm_digest_eq(&w->id, &id))
            return w->served;
    return 0;
}

fm_status fm_scheduler_new(fm_scheduler **out, fm_engine *e, uint32_t max_running)
{
    *out = NULL;
    if (max_running < 1)
        return fm_fail(FM_EINVAL, "scheduler: max_running must be at least 1");
    fm_scheduler *s = fm_calloc(1, sizeof(*s));
    if (!s)
        return FM_ENOMEM;
    s->e = e;
    s->max_running = FM_MIN(max_running, e->opts.max_rows);
    s->next_id = 1;
    s->now = system_clock;
    fmi_prefill_budget_init(&s->pace);
    s->run = fm_calloc(s->max_running, sizeof(fmi_request *));
    s->row = fm_calloc(e->opts.max_rows, sizeof(fm_row));
    fm_status rc = s->run && s->row ? FM_OK : FM_ENOMEM;
    s->picks = fmi_picks(e);
    s->queues = fmi_queues(e);
    if (s->picks) {
        s->ask = fm_calloc(e->opts.max_rows, sizeof(fmi_row_pick));
        if (!s->ask)
            rc = FM_ENOMEM;
        for (size_t i = 0; i < (s->queues ? 2 : 1) && rc == FM_OK; i++)
            rc = fmi_inflight_init(&s->inflight[i], e, s->max_running);
    }
    if (rc != FM_OK) {
        fm_scheduler_free(s);
        return rc;
    }
    *out = s;
    return FM_OK;
}

void fm_scheduler_free(fm_scheduler *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < 2; i++)
        fmi_inflight_release(&s->inflight[i], s->e);
    for (uint32_t i = 0; i < s->running; i++) {
        fmi_request_finish(s->run[i], "cancelled", NULL);
        fmi_request_free(s->run[i]);
    }
    for (fmi_flow *w; (w = fmi_fair_queue_next(&s->fair)) != NULL;) {
        fmi_request *r = fmi_fair_queue_first(&s->fair, w);
        fmi_request_finish(r, "cancelled", NULL);
        fmi_request_free(r);
    }
    fmi_fair_queue_release(&s->fair);
    fm_sampler_free(s->sampler);
    fm_free(s->run);
    fm_free(s->row);
    fm_free(s->ask);
    fm_free(s);
}

/* ==== queue ==== */

static fm_status sampler_for(fm_scheduler *s, uint32_t vocab)
{
    if (vocab <= s->sampler_vocab)
        return FM_OK;
    fm_sampler *fresh = NULL;
    FM_TRY(fm_sampler_new(&fresh, vocab));
    fm_sampler_free(s->sampler);
    s->sampler = fresh;
    s->sampler_vocab = vocab;
    return FM_OK;
}

fm_status fm_scheduler_add(fm_scheduler *s, const fm_gen_request *req, uint64_t *id_out)
{
    fmi_request *r = NULL;
    if (id_out)
        *id_out = 0;
    if (req->model && req->model->engine != s->e)
        return fm_fail(FM_EINVAL, "request: 'model' belongs to another engine");
    if (s->fair.waiting >= MAX_WAITING)
        return fm_fail(FM_ELIMIT, "scheduler: %u requests are waiting already", s->fair.waiting);
    fm_status rc = fmi_request_new(&r, req, s->next_id);
    FM_THEN(rc, sampler_for(s, fm_model_arch(req->model)->vocab));
    if (rc == FM_OK) {
        r->flow = fmi_fair_queue_flow(&s->fair, req->model);
        rc = r->flow ? FM_OK : FM_ENOMEM;
    }
    if (rc != FM_OK) {
        fmi_request_free(r);
        return rc;
    }
    s->next_id++;
    fmi_fair_queue_wait(&s->fair, r, false);
    if (id_out)
        *id_out = r->id;
    return FM_OK;
}

bool fm_scheduler_cancel(fm_scheduler *s, uint64_t id)
{
    fmi_request *found = NULL;
    for (uint32_t i = 0; i < s->running; i++)
        if (s->run[i]->id == id)
            found = s->run[i];
    for (fmi_flow *w = s->fair.flows; w && !found; w = w->next)
        for (fmi_request *r = w->wait; r; r = r->next)
            if (r->id == id)
                found = r;
    if (!found || found->done)
        return false;
    found->cancelled = true; /* its last event comes with the next step; its pages are free now */
    found->rows = 0;
    fm_seq_close(found->seq);
    found->seq = NULL;
    return true;
}

uint32_t fm_scheduler_running(const fm_scheduler *s)
{
    return s->running;
}

uint32_t fm_scheduler_waiting(const fm_scheduler *s)
{
    return s->fair.waiting;
}

static void sweep_waiting(fm_scheduler *s)
{
    for (fmi_request *r; (r = fmi_fair_queue_cancelled(&s->fair)) != NULL;) {
        fmi_request_finish(r, "cancelled", NULL);
        fmi_request_free(r);
    }
}

static void sweep_running(fm_scheduler *s)
{
    uint32_t keep = 0;
    for (uint32_t i = 0; i < s->running; i++) {
        fmi_request *r = s->run[i];
        if (r->cancelled)
            fmi_request_finish(r, "cancelled", NULL);
        if (r->done) {
            r->flow->running--;
            fmi_inflight_forget(&s->inflight[0], r);
            fmi_inflight_forget(&s->inflight[1], r);
            fmi_request_free(r);
        } else {
            s->run[keep++] = r;
        }
    }
    s->running = keep;
}

/* Whether there are pages for the whole prompt and its states, or no other request runs. */
static bool has_room(const fm_scheduler *s, const fmi_request *r)
{
    const fm_model *m = r->ask.model;
    const fmi_geom *g = fmi_priv(m)->geom;
    uint64_t pages = (m->virtual_len + r->count) / FM_KV_PAGE + 1;
    bool room = true;
    if (m->source) { /* one stage, one pool or two: the encoder's pages go first */
        uint64_t source = r->source_len / FM_KV_PAGE + 1, layers = m->source->arch.layers;
        room = fmi_kv_room(fmi_priv(m->source)->geom->lane[0]) >= source * layers;
        pages += source;
    }
    bool alone = g->recurs || fm_layers_uneven(&g->sw); /* one stage */
    if (alone)
        room = room && fmi_kv_room(g->lane[0]) >= pages * (g->attending - g->at_full) &&
               (!g->full || fmi_kv_room(g->full) >= pages * g->at_full);
    if (g->recurs) /* states before, behind and between the steps under way */
        room = room && fmi_kv_room(g->states) >= 3 * (uint64_t)g->recurs;
    for (uint32_t i = 0; i < g->split.stages && !alone && room; i++)
        room = fmi_kv_room(g->lane[i]) >= pages * (g->split.begin[i + 1] - g->split.begin[i]);
    return s->running == 0 || room;
}

/* Opens the request's sequence: tables for the whole answer, cached blocks of the prompt. */
static fm_status begin(fmi_request *r)
{
    FM_TRY(fm_seq_open(&r->seq, r->ask.model));
    if (r->source_len)
        FM_TRY(fm_seq_source(r->seq, r->source, r->source_len));
    FM_TRY(fmi_seq_expect(r->seq, (uint32_t)r->room));
    for (uint32_t i = 0; i < r->count; i++)
        fmi_seq_tell(r->seq, i, r->token[i]);
    return FM_OK;
}

/* With several ranks a failure may come from another rank and be over: a rank that lacked the
 * memory to open a sequence, say, lacks that sequence for good, but not the next one. So a request
 * begins anew a few times before it fails. */
static bool may_begin_anew(const fm_scheduler *s, fmi_request *r)
{
    return fm_engine_ranks(s->e) > 1 && fm_comm_state(s->e->comm) == FM_OK && r->anew++ < ANEW_MOST;
}

/* Begins the request anew: its tokens so far are computed again. FM_OK, or why it cannot. */
static fm_status begin_anew(const fm_scheduler *s, fmi_request *r, fm_status rc)
{
    while (rc != FM_OK && may_begin_anew(s, r)) {
        r->rows = 0;
        r->pick = -1;
        fm_seq_close(r->seq);
        r->seq = NULL;
        rc = begin(r);
    }
    return rc;
}

/* Begins requests anew whose text outgrew their model's positions, with the model of longer texts.
 * A queued step is collected before (stuck). */
static void lengthen(fm_scheduler *s)
{
    for (uint32_t i = 0; i < s->running && !s->stuck; i++) {
        fmi_request *r = s->run[i];
        fm_model *by = fm_model_for_length(r->ask.model, (uint32_t)r->count + (r->pick >= 0));
        if (r->done || by == r->ask.model)
            continue;
        s->stuck = s->inflight[s->up].up;
        if (s->stuck)
            return;
        fm_seq_close(r->seq);
        r->seq = NULL;
        r->ask.model = by;
        if (begin(r) != FM_OK)
            fmi_request_finish(r, "error", fm_error_text());
    }
}

static void start_waiting(fm_scheduler *s)
{
    for (fmi_flow *w; s->running < s->max_running && (w = fmi_fair_queue_next(&s->fair)) != NULL;) {
        if (!has_room(s, w->wait))
            return;
        fmi_request *r = fmi_fair_queue_first(&s->fair, w);
        fm_status rc = begin(r);
        if (rc == FM_ELIMIT && r->source && s->running > 0) { /* no pages for the source yet */
            fm_seq_close(r->seq);
            r->seq = NULL;
            fm_error_clear();
            fmi_fair_queue_wait(&s->fair, r, true);
            return;
        }
        if (begin_anew(s, r, rc) != FM_OK) {
            fmi_request_finish(r, "error", fm_error_text());
            fmi_request_free(r);
            continue;
        }
        fmi_seq_adopt(r->seq);
        if (!r->charged)
            w->served += FMI_PROMPT_COST * (r->source_len + r->count - fm_seq_len(r->seq));
        r->charged = true;
        w->running++;
        s->run[s->running++] = r;
    }
}

/* Takes the pages of the request that began last and puts it back at the head of its queue. */
static void preempt_last(fm_scheduler *s)
{
    fmi_request *r = s->run[--s->running];
    r->rows = 0;
    fm_seq_close(r->seq);
    r->seq = NULL;
    fmi_fair_queue_wait(&s->fair, r, true);
    r->flow->running--;
}

/* ==== rows of a step ==== */

/* Tokens of r that can go through the step. While the queued step still picks its next token, that
 * one alone can, unless it is the answer's last. */
static uint32_t tokens_left(const fmi_request *r)
{
    if (r->pick >= 0)
        return r->count + 1 < r->room;
    return (uint32_t)(r->count - fm_seq_len(r->seq));
}

static void put_rows(fm_scheduler *s, fmi_request *r, uint32_t n)
{
    uint32_t at = fm_seq_len(r->seq);
    r->row0 = s->rows;
    r->rows = n;
    r->wants = r->pick >= 0 || at + n == r->count;
    for (uint32_t i = 0; i < n; i++)
        s->row[s->rows++] = (fm_row){.seq = r->seq,
                                     .token = r->pick >= 0 ? -1 - r->pick : r->token[at + i],
                                     .want_logits = r->wants && i + 1 == n};
}

/* Reserves pages for n rows of run[i] and adds the rows. With may_preempt, requests behind it may
 * lose their pages. False: the request has to wait, or (done) has failed. */
static bool offer(fm_scheduler *s, uint32_t i, uint32_t n, bool may_preempt)
{
    fmi_request *r = s->run[i];
    uint32_t known = (uint32_t)r->count + (r->pick >= 0); /* logits of the last one are wanted */
    fmi_seq_want(r->seq, known - 1, known);
    for (;;) {
        fm_status rc = fmi_seq_reserve(r->seq, fm_seq_len(r->seq) + n);
        if (rc == FM_OK) {
            put_rows(s, r, n);
            return true;
        }
        s->stuck = s->inflight[s->up].up;
        if (s->stuck)
            return false;
        if (rc != FM_ELIMIT || s->running == 1) {
            fmi_request_finish(r, "error", fm_error_text());
            return false;
        }
        if (!may_preempt)
            return false;
        preempt_last(s);
        if (i == s->running) /* the request itself was preempted */
            return false;
    }
}

/* Whether the next block of run[i] goes through the step already, in a request before it. */
static bool is_underway(const fm_scheduler *s, uint32_t i)
{
    const fmi_request *r = s->run[i];
    uint32_t at = fm_seq_len(r->seq), end = at + FM_KV_PAGE;
    if (at != r->seq->whole || end >= r->count)
        return false;
    for (uint32_t k = 0; k < i; k++) {
        const fmi_request *o = s->run[k];
        if (o->rows && !o->done && o->count >= end && o->seq->whole < end &&
            fmi_leaves_for(o->ask.model, r->ask.model) &&
            memcmp(o->token, r->token, end * sizeof(int32_t)) == 0)
            return true;
    }
    return false;
}

static void gather_prompts(fm_scheduler *s, uint32_t most)
{
    uint32_t left = fmi_prefill_budget_rows(&s->pace, s->rows, most - s->rows);
    s->decoding = s->rows;
    for (uint32_t i = 0; i < s->running && left > 0 && !s->stuck; i++) {
        fmi_request *r = s->run[i];
        if (r->done || r->rows || tokens_left(r) < 2)
            continue;
        fmi_seq_adopt(r->seq);
        if (is_underway(s, i))
            continue;
        uint32_t n = FM_MIN(tokens_left(r), left);
        if (offer(s, i, n, s->rows == 0))
            left -= n;
    }
}

static void gather(fm_scheduler *s)
{
    s->rows = 0;
    s->stuck = false;
    for (uint32_t i = 0; i < s->running; i++)
        s->run[i]->rows = 0;
    lengthen(s);
    for (uint32_t i = 0; i < s->running && !s->stuck; i++) /* requests behind i have no rows yet */
        if (!s->run[i]->done && tokens_left(s->run[i]) == 1)
            (void)offer(s, i, 1, true);
    gather_prompts(s, s->e->opts.max_rows);
}

/* ==== outcomes ==== */

static void take_token(fm_scheduler *s, fmi_request *r, uint32_t row)
{
    const float *logits = fm_engine_logits(s->e, row);
    uint32_t vocab = fm_model_arch(r->ask.model)->vocab;
    int32_t token = -1;
    float logprob = 0;
    uint32_t top = r->ask.want_logprobs ? r->ask.top_logprobs : 0;
    const uint64_t *allowed;
    r->seen_whole = false; /* the host picks, so the device's set lacks this token */
    fm_status rc = fmi_request_allowed(r, &allowed);
    FM_THEN(rc, fm_sampler_pick_allowed(&token, s->sampler, logits, vocab, &r->ask.sampling,
                                        allowed, r->token, r->count, r->count - r->prompt_len));
    if (rc == FM_OK && r->ask.want_logprobs)
        rc = fm_logprobs(&logprob, r->top, top, logits, vocab, token);
    if (rc != FM_OK)
        fmi_request_finish(r, "error", fm_error_text());
    else {
        r->flow->served += FMI_ANSWER_COST;
        fmi_request_token(r, token, logprob, top);
    }
}

/* The joint step failed: runs each request alone, so that only the failing one ends. */
static void step_alone(fm_scheduler *s)
{
    for (uint32_t i = 0; i < s->running; i++) {
        fmi_request *r = s->run[i];
        if (!r->rows || r->done)
            continue;
        fm_status rc = fm_engine_step(s->e, s->row + r->row0, r->rows);
        if (rc == FM_OK && r->wants)
            take_token(s, r, r->rows - 1);
        if (rc != FM_OK && begin_anew(s, r, rc) != FM_OK)
            fmi_request_finish(r, "error", fm_error_text());
    }
}

static void step_together(fm_scheduler *s)
{
    double begun = s->now(s->now_ctx);
    fm_status rc = s->picks ? fmi_inflight_step(&s->inflight[0], s->e, s->run, s->running, s->row,
                                                s->rows, s->ask)
                            : fm_engine_step(s->e, s->row, s->rows);
    if (rc != FM_OK) {
        step_alone(s);
        return;
    }
    fmi_prefill_budget_note(&s->pace, s->decoding, s->rows - s->decoding,
                            s->now(s->now_ctx) - begun);
    for (uint32_t i = 0; i < s->running; i++) {
        fmi_request *r = s->run[i];
        if (r->rows && r->wants && !r->done && (!s->picks || !s->ask[r->row0 + r->rows - 1].how))
            take_token(s, r, r->row0 + r->rows - 1);
    }
}

/* ==== steps that are queued ==== */

/* A queued step failed: undoes the queued steps and computes them again, each request alone. */
static void recover(fm_scheduler *s)
{
    fmi_inflight_undo(&s->inflight[1 - s->up], s->e); /* the later of two steps first */
    fmi_inflight_undo(&s->inflight[s->up], s->e);
    fm_error_clear();
    sweep_running(s);
    gather(s);
    step_alone(s);
}

static fm_status land(fm_scheduler *s, fmi_inflight *f)
{
    fm_status rc = fmi_inflight_land(f, s->e);
    double now = s->now(s->now_ctx), since = FM_MAX(f->begun, s->landed);
    bool last = !s->inflight[0].up && !s->inflight[1].up;
    for (uint32_t i = 0; last && i < s->running; i++)
        s->run[i]->pick = -1;
    s->landed = now;
    if (rc == FM_OK)
        fmi_prefill_budget_note(&s->pace, f->decoding, f->prompts, now - since);
    return rc;
}

/* Queues the rows that were gathered, then collects the step before. */
static fm_status launch_and_land(fm_scheduler *s)
{
    fmi_inflight *before = &s->inflight[s->up], *f = &s->inflight[1 - s->up];
    fm_status rc = FM_OK;
    if (s->rows > 0) {
        f->begun = s->now(s->now_ctx);
        f->decoding = s->decoding;
        f->prompts = s->rows - s->decoding;
        rc = fmi_inflight_launch(f, s->e, s->run, s->running, s->row, s->rows, s->ask);
    }
    if (rc == FM_OK && before->up)
        rc = land(s, before);
    if (rc == FM_OK && f->up)
        s->up = 1 - s->up;
    if (rc != FM_OK || !f->up || !f->hosts)
        return rc;
    rc = land(s, f); /* the host has to choose some of the tokens */
    for (uint32_t i = 0; i < f->count && rc == FM_OK; i++) {
        fmi_request *r = f->of[i].r;
        if (f->of[i].host && r && !r->done && !r->cancelled)
            take_token(s, r, r->row0 + r->rows - 1);
    }
    return rc;
}

static void step_ahead(fm_scheduler *s)
{
    gather(s);
    if (s->stuck && land(s, &s->inflight[s->up]) != FM_OK) {
        recover(s);
        return;
    }
    if (s->stuck) {
        sweep_running(s);
        gather(s);
    }
    if (launch_and_land(s) != FM_OK)
        recover(s);
}

fm_status fm_scheduler_step(fm_scheduler *s, bool *busy)
{
    sweep_waiting(s);
    sweep_running(s);
    start_waiting(s);
    if (s->queues) {
        step_ahead(s);
    } else {
        gather(s);
        if (s->rows > 0)
            step_together(s);
    }
    sweep_running(s);
    *busy = s->running > 0 || s->fair.waiting > 0;
    return FM_OK;
}
