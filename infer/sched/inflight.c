/* inflight.c - see inflight.h. */
#include "infer/sched/inflight.h"

#include <string.h>

#include "infer/sched/fair_queue.h"
#include "store/base/mem.h"

fm_status fmi_inflight_init(fmi_inflight *f, fm_engine *e, uint32_t max_running)
{
    memset(f, 0, sizeof(*f));
    f->of = fm_calloc(max_running, sizeof(fmi_aboard));
    return f->of ? fmi_queued_init(&f->q, e) : FM_ENOMEM;
}

void fmi_inflight_release(fmi_inflight *f, fm_engine *e)
{
    fmi_queued_release(&f->q, e);
    fm_free(f->of);
    memset(f, 0, sizeof(*f));
}

/* ==== what the device is asked ==== */

/* Uploads the tokens so far as a set of bits, once; then the device adds those that it picks. */
static fm_status fill_seen(fmi_request *r, fm_engine *e)
{
    fm_backend *be = e->be;
    uint32_t vocab = fm_model_arch(r->ask.model)->vocab;
    size_t bytes = ((size_t)vocab / 64 + 1) * sizeof(uint64_t);
    void *dev = r->seen;
    fm_status rc = dev ? FM_OK : be->alloc(be, &dev, bytes);
    r->seen = dev;
    r->be = be;
    uint64_t *host = rc == FM_OK ? fm_calloc(1, bytes) : NULL;
    if (!host)
        return rc == FM_OK ? FM_ENOMEM : rc;
    for (size_t i = 0; i < r->count; i++)
        host[r->token[i] / 64] |= (uint64_t)1 << (r->token[i] % 64);
    rc = be->upload(be, r->seen, host, bytes);
    fm_free(host);
    r->seen_whole = rc == FM_OK;
    return rc;
}

/* Grammars and log-probabilities need the logits on the host. */
static fm_status ask_of(fmi_request *r, fm_engine *e, fmi_row_pick *ask)
{
    const fm_sample_params *p = &r->ask.sampling;
    bool penal = p->repetition_penalty < 1.0f || p->repetition_penalty > 1.0f;
    fm_status rc = FM_OK;
    *ask = (fmi_row_pick){0};
    if (r->form || r->ask.want_logprobs) {
        r->seen_whole = false;
        return FM_OK;
    }
    if (penal && !r->seen_whole)
        rc = fill_seen(r, e);
    *ask = (fmi_row_pick){.how = p,
                          .index = r->count - r->prompt_len + (r->pick >= 0),
                          .seen = penal ? r->seen : NULL};
    return rc;
}

/* Notes the requests that have rows in the step, and how the device picks their tokens. */
static fm_status board(fmi_inflight *f, fm_engine *e, fmi_request *const *run, uint32_t running,
                       uint32_t n, fmi_row_pick *ask)
{
    fm_status rc = FM_OK;
    f->count = f->hosts = 0;
    memset(ask, 0, n * sizeof(*ask));
    for (uint32_t i = 0; i < running && rc == FM_OK; i++) {
        fmi_request *r = run[i];
        if (!r->rows || r->done)
            continue;
        uint32_t last = r->row0 + r->rows - 1, len = fm_seq_len(r->seq);
        fmi_aboard *a = &f->of[f->count++];
        *a = (fmi_aboard){.r = r, .seq = r->seq, .begin = len, .end = len + r->rows, .pick = -1};
        if (r->wants)
            rc = ask_of(r, e, &ask[last]);
        a->host = r->wants && !ask[last].how;
        f->hosts += a->host;
    }
    return rc;
}

static void leave(fmi_inflight *f)
{
    for (uint32_t i = 0; i < f->count; i++) /* the device may have added a token already */
        f->of[i].r->seen_whole = false;
    f->count = f->hosts = 0;
}

/* Gives each request the number of its pick; picks go by row, in the order of requests. */
static void number_picks(fmi_inflight *f, const fmi_row_pick *ask)
{
    for (uint32_t i = 0; i < f->count; i++) {
        fmi_aboard *a = &f->of[i];
        if (a->r->wants && !a->host)
            a->pick = ask[a->r->row0 + a->r->rows - 1].pick;
    }
}

fm_status fmi_inflight_launch(fmi_inflight *f, fm_engine *e, fmi_request *const *run,
                              uint32_t running, const fm_row *row, uint32_t n, fmi_row_pick *ask)
{
    fm_status rc = board(f, e, run, running, n, ask);
    FM_THEN(rc, fmi_step_queue(e, &f->q, row, n, ask));
    if (rc != FM_OK) {
        leave(f);
        return rc;
    }
    number_picks(f, ask);
    for (uint32_t i = 0; i < running; i++)
        run[i]->pick = -1;
    for (uint32_t i = 0; i < f->count; i++)
        f->of[i].r->pick = f->of[i].pick;
    f->up = true;
    return FM_OK;
}

/* ==== landing ==== */

/* Gives a request its token. ahead: the step was queued, so its rows are not confirmed yet. */
static void hand_over(fmi_inflight *f, const fmi_aboard *a, bool ahead)
{
    fmi_request *r = a->r;
    int32_t token = f->q.picked[a->pick];
    if (fmi_pick_status(f->q.picked[f->q.picks + (uint32_t)a->pick]) != FM_OK) {
        fmi_request_finish(r, "error", fm_error_text());
        return;
    }
    if (ahead) {
        fmi_seq_learn(r->seq, (uint32_t)r->count, token);
        fmi_seq_confirm(r->seq, a->end);
    }
    r->flow->served += FMI_ANSWER_COST;
    fmi_request_token(r, token, 0, 0);
}

fm_status fmi_inflight_land(fmi_inflight *f, fm_engine *e)
{
    FM_TRY(fmi_step_wait(e, &f->q));
    f->up = false;
    for (uint32_t i = 0; i < f->count; i++) {
        const fmi_aboard *a = &f->of[i];
        if (!a->r || a->r->done || a->r->cancelled || a->r->seq != a->seq)
            continue;
        if (a->pick >= 0)
            hand_over(f, a, true);
        else
            fmi_seq_confirm(a->seq, a->end);
    }
    return FM_OK;
}

fm_status fmi_inflight_step(fmi_inflight *f, fm_engine *e, fmi_request *const *run,
                            uint32_t running, const fm_row *row, uint32_t n, fmi_row_pick *ask)
{
    fm_status rc = board(f, e, run, running, n, ask);
    FM_THEN(rc, fmi_step_picked(e, &f->q, row, n, ask));
    if (rc != FM_OK) {
        leave(f);
        return rc;
    }
    number_picks(f, ask);
    for (uint32_t i = 0; i < f->count; i++)
        if (f->of[i].pick >= 0)
            hand_over(f, &f->of[i], false);
    return FM_OK;
}

void fmi_inflight_undo(fmi_inflight *f, fm_engine *e)
{
    if (f->up && f->q.ticket)
        fm_ignore(fmi_step_wait(e, &f->q), "its rows are computed again");
    for (uint32_t i = 0; f->up && i < f->count; i++) {
        const fmi_aboard *a = &f->of[i];
        if (!a->r || a->r->seq != a->seq)
            continue;
        fm_ignore(fm_seq_rewind(a->seq, a->begin), "it was that long");
        a->r->pick = -1;
        a->r->seen_whole = false;
    }
    f->up = false;
    f->count = f->hosts = 0;
}

void fmi_inflight_forget(fmi_inflight *f, const fmi_request *r)
{
    for (uint32_t i = 0; i < f->count; i++)
        if (f->of[i].r == r)
            f->of[i].r = NULL;
}
