/* scheduler.c - continuous batching: one step over whatever runs.
 *
 * Decode rows come first, then prompts fill the step in order of arrival, so that a long prompt
 * delays nobody's next token by more than one step. When KV pages run out, the request that began
 * last gives its pages back and waits; it is computed again later, and since bits do not depend on
 * how a prompt was cut, its answer goes on as if nothing had happened. A failing request ends
 * alone. */
#include "infer/request.h"

#include <string.h>

#include "store/base/mem.h"

#define MAX_WAITING 65536u

struct fm_scheduler {
    fm_engine *e;
    fm_sampler *sampler;
    uint32_t sampler_vocab;
    fmi_request **run; /* [max_running] in order of their start */
    uint32_t running, max_running;
    fmi_request *wait, **wait_end;
    uint32_t waiting;
    fm_row *row; /* [max_rows] */
    uint32_t rows;
    uint64_t next_id;
};

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
    s->wait_end = &s->wait;
    s->next_id = 1;
    s->run = fm_calloc(s->max_running, sizeof(fmi_request *));
    s->row = fm_calloc(e->opts.max_rows, sizeof(fm_row));
    if (!s->run || !s->row) {
        fm_scheduler_free(s);
        return FM_ENOMEM;
    }
    *out = s;
    return FM_OK;
}

void fm_scheduler_free(fm_scheduler *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->running; i++) {
        fmi_request_finish(s->run[i], "cancelled", NULL);
        fmi_request_free(s->run[i]);
    }
    fmi_request *next;
    for (fmi_request *r = s->wait; r; r = next) {
        next = r->next;
        fmi_request_finish(r, "cancelled", NULL);
        fmi_request_free(r);
    }
    fm_sampler_free(s->sampler);
    fm_free(s->run);
    fm_free(s->row);
    fm_free(s);
}

/* ==== queue ==== */

static fm_status sampler_for(fm_scheduler *s, uint32_t vocab)
{
    if (vocab <= s->sampler_vocab)
        return FM_OK;
    fm_sampler *fresh = NULL;
    fm_status rc = fm_sampler_new(&fresh, vocab);
    if (rc != FM_OK)
        return rc;
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
    if (s->waiting >= MAX_WAITING)
        return fm_fail(FM_ELIMIT, "scheduler: %u requests are waiting already", s->waiting);
    fm_status rc = fmi_request_new(&r, req, s->next_id);
    if (rc == FM_OK)
        rc = sampler_for(s, fm_model_arch(req->model)->vocab);
    if (rc != FM_OK) {
        fmi_request_free(r);
        return rc;
    }
    s->next_id++;
    *s->wait_end = r;
    s->wait_end = &r->next;
    s->waiting++;
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
    for (fmi_request *r = s->wait; r; r = r->next)
        if (r->id == id)
            found = r;
    if (!found || found->done)
        return false;
    found->cancelled = true; /* told at the next step */
    return true;
}

uint32_t fm_scheduler_running(const fm_scheduler *s)
{
    return s->running;
}

uint32_t fm_scheduler_waiting(const fm_scheduler *s)
{
    return s->waiting;
}

static void unlink_waiting(fm_scheduler *s, fmi_request **at)
{
    fmi_request *r = *at;
    *at = r->next;
    if (!*at)
        s->wait_end = at;
    r->next = NULL;
    s->waiting--;
}

static void sweep_waiting(fm_scheduler *s)
{
    for (fmi_request **at = &s->wait; *at;) {
        fmi_request *r = *at;
        if (!r->cancelled) {
            at = &r->next;
            continue;
        }
        unlink_waiting(s, at);
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
        if (r->done)
            fmi_request_free(r);
        else
            s->run[keep++] = r;
    }
    s->running = keep;
}

/* Pages for the whole prompt should be there, unless it has the engine to itself. */
static bool has_room(const fm_scheduler *s, const fmi_request *r)
{
    const fm_model *m = r->ask.model;
    uint64_t pages = (m->virtual_len + r->count) / FM_KV_PAGE + 1;
    return s->running == 0 || fmi_kv_room(fmi_priv(m)->geom->pool) >= pages * m->arch.layers;
}

static void start_waiting(fm_scheduler *s)
{
    while (s->wait && s->running < s->max_running && has_room(s, s->wait)) {
        fmi_request *r = s->wait;
        unlink_waiting(s, &s->wait);
        if (!r->seq && fm_seq_open(&r->seq, r->ask.model) != FM_OK) {
            fmi_request_finish(r, "error", fm_error_text());
            fmi_request_free(r);
            continue;
        }
        s->run[s->running++] = r;
    }
}

/* The request that began last goes back to the head of the queue without its pages. */
static void preempt_last(fm_scheduler *s)
{
    fmi_request *r = s->run[--s->running];
    r->rows = 0;
    fm_seq_close(r->seq);
    r->seq = NULL;
    r->next = s->wait;
    s->wait = r;
    if (!r->next)
        s->wait_end = &r->next;
    s->waiting++;
}

/* ==== rows of a step ==== */

static uint32_t tokens_left(const fmi_request *r)
{
    return (uint32_t)(r->count - fm_seq_len(r->seq));
}

static void put_rows(fm_scheduler *s, fmi_request *r, uint32_t n)
{
    uint32_t at = fm_seq_len(r->seq);
    r->row0 = s->rows;
    r->rows = n;
    r->wants = at + n == r->count;
    for (uint32_t i = 0; i < n; i++)
        s->row[s->rows++] = (fm_row){
            .seq = r->seq, .token = r->token[at + i], .want_logits = r->wants && i + 1 == n};
}

/* Reserves and puts n rows of run[i]. Requests behind it may lose their pages when may_preempt;
 * false: it has to wait, or (done) it failed. */
static bool offer(fm_scheduler *s, uint32_t i, uint32_t n, bool may_preempt)
{
    fmi_request *r = s->run[i];
    for (;;) {
        fm_status rc = fmi_seq_reserve(r->seq, fm_seq_len(r->seq) + n);
        if (rc == FM_OK) {
            put_rows(s, r, n);
            return true;
        }
        if (rc != FM_ELIMIT || s->running == 1) {
            fmi_request_finish(r, "error", fm_error_text());
            return false;
        }
        if (!may_preempt)
            return false;
        preempt_last(s);
        if (i == s->running) /* it was itself the last one */
            return false;
    }
}

static void gather(fm_scheduler *s)
{
    s->rows = 0;
    for (uint32_t i = 0; i < s->running; i++)
        s->run[i]->rows = 0;
    for (uint32_t i = 0; i < s->running; i++) /* nobody behind i has rows yet */
        if (!s->run[i]->done && tokens_left(s->run[i]) == 1)
            (void)offer(s, i, 1, true);
    for (uint32_t i = 0; i < s->running && s->rows < s->e->opts.max_rows; i++) {
        fmi_request *r = s->run[i];
        if (r->done || r->rows || tokens_left(r) < 2)
            continue;
        uint32_t n = FM_MIN(tokens_left(r), s->e->opts.max_rows - s->rows);
        (void)offer(s, i, n, s->rows == 0);
    }
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
    fm_status rc = fmi_request_allowed(r, &allowed);
    if (rc == FM_OK)
        rc = fm_sampler_pick_allowed(&token, s->sampler, logits, vocab, &r->ask.sampling, allowed,
                                     r->token, r->count, r->count - r->prompt_len);
    if (rc == FM_OK && r->ask.want_logprobs)
        rc = fm_logprobs(&logprob, r->top, top, logits, vocab, token);
    if (rc != FM_OK)
        fmi_request_finish(r, "error", fm_error_text());
    else
        fmi_request_token(r, token, logprob, top);
}

/* The joint step failed: each request alone, so that only the guilty ends. */
static void step_alone(fm_scheduler *s)
{
    for (uint32_t i = 0; i < s->running; i++) {
        fmi_request *r = s->run[i];
        if (!r->rows || r->done)
            continue;
        if (fm_engine_step(s->e, s->row + r->row0, r->rows) != FM_OK)
            fmi_request_finish(r, "error", fm_error_text());
        else if (r->wants)
            take_token(s, r, r->rows - 1);
    }
}

fm_status fm_scheduler_step(fm_scheduler *s, bool *busy)
{
    sweep_waiting(s);
    sweep_running(s);
    start_waiting(s);
    gather(s);
    if (s->rows > 0) {
        if (fm_engine_step(s->e, s->row, s->rows) != FM_OK)
            step_alone(s);
        else
            for (uint32_t i = 0; i < s->running; i++) {
                fmi_request *r = s->run[i];
                if (r->rows && r->wants && !r->done)
                    take_token(s, r, r->row0 + r->rows - 1);
            }
    }
    sweep_running(s);
    *busy = s->running > 0 || s->waiting > 0;
    return FM_OK;
}
