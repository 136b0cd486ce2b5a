/* step_queue.c - steps that are queued on a device which picks their tokens itself, and collected
 * later: while the GPU runs step t, the host plans step t + 1, whose rows take the tokens that step
 * t puts into device memory.
 *
 * The device keeps [tokens, bad] of the last queued step; the ids of the next one are gathered from
 * these and from the ids that the host knows. All operations are in one stream, so none overtakes
 * another: pages that are given back while a step still reads them are written by later steps only.
 */
#include "infer/engine/step/step.h"

#include <string.h>

#include "infer/comm.h"
#include "infer/engine/watchdog.h"
#include "store/base/mem.h"

bool fmi_picks(const fm_engine *e)
{
    const fm_backend *be = e->be;
    return be->sample && be->fetch && be->wait && be->host_alloc && be->host_free && !e->tap;
}

bool fmi_queues(const fm_engine *e)
{
    return fmi_picks(e) && fm_comm_size(e->comm) <= 1; /* other ranks' hosts lack the tokens */
}

fm_status fmi_queued_init(fmi_queued *q, fm_engine *e)
{
    void *p = NULL;
    memset(q, 0, sizeof(*q));
    fm_status rc = e->be->host_alloc(e->be, &p, 2 * (size_t)e->opts.max_rows * sizeof(int32_t));
    q->picked = p;
    return rc;
}

void fmi_queued_release(fmi_queued *q, fm_engine *e)
{
    if (!q->picked)
        return;
    if (q->ticket)
        fm_ignore(fmi_step_wait(e, q), "nobody wants its tokens");
    e->be->host_free(e->be, q->picked);
    memset(q, 0, sizeof(*q));
}

/* ==== the step ==== */

/* Gathers the ids of the step on the device, where only the device knows some of them. */
static fm_status gather_ids(fmi_step *s, const fm_row *rows, uint32_t n)
{
    fm_backend *be = s->e->be;
    int32_t *known = s->picked_host + 2 * (size_t)s->max_rows, *place = known + n;
    for (uint32_t i = 0; i < n; i++) {
        int32_t token = rows[s->order[i]].token;
        known[i] = FM_MAX(token, 0);
        place[i] = token < 0 ? -(token + 1) : (int32_t)(2 * s->max_rows + i);
    }
    int32_t *dev = s->picked + 2 * (size_t)s->max_rows;
    fm_status rc = be->upload(be, dev, known, 2 * (size_t)n * sizeof(int32_t));
    if (rc == FM_OK) /* copies integers as floats: copy_rows keeps their bits */
        be->copy_rows(be, (float *)(void *)s->dev, 1, (const float *)(const void *)s->picked, 1,
                      dev + n, n, 1);
    return rc;
}

static fm_status run(fmi_step *s, fmi_queued *q, const fm_row *rows, uint32_t n, fmi_row_pick *ask)
{
    fm_backend *be = s->e->be;
    FM_TRY(fmi_pick_room(s));
    FM_TRY(fmi_step_plan(s, rows, n));
    FM_TRY(gather_ids(s, rows, n));
    FM_TRY(fmi_step_graph_passes(s, n));
    FM_TRY(fmi_pick_tokens(s, q, rows, n, ask));
    FM_TRY(be->fetch(be, q->picked, s->picked, 2 * (size_t)q->picks * sizeof(int32_t), &q->ticket));
    return fmi_fetch_logits(s, rows, n, ask);
}

fm_status fmi_step_queue(fm_engine *e, fmi_queued *q, const fm_row *rows, uint32_t n,
                         fmi_row_pick *ask)
{
    fmi_step *s = e->step;
    fm_assert(q->ticket == 0);
    q->failures = e->failures;
    s->seqs = 0;
    s->queued = true;
    fmi_watchdog_begin(e->watchdog);
    fm_status rc = run(s, q, rows, n, ask);
    s->queued = false;
    if (rc != FM_OK)
        fmi_step_undo(s);
    fmi_watchdog_end(e->watchdog);
    if (rc != FM_OK) {
        q->ticket = 0;
        return rc;
    }
    for (uint32_t i = 0; i < s->seqs; i++)
        fmi_seq_queue(s->seq[i], s->seq[i]->pending);
    e->steps++;
    e->rows += n;
    return FM_OK;
}

fm_status fmi_step_wait(fm_engine *e, fmi_queued *q)
{
    fmi_watchdog_begin(e->watchdog);
    fm_status rc = e->be->wait(e->be, q->ticket);
    fmi_watchdog_end(e->watchdog);
    q->ticket = 0;
    if (rc != FM_OK)
        e->failures++;
    else if (q->failures != e->failures)
        rc = fm_fail(FM_EIO, "device %s: an operation before this step failed", e->be->name);
    return rc;
}

fm_status fmi_step_picked(fm_engine *e, fmi_queued *q, const fm_row *rows, uint32_t n,
                          fmi_row_pick *ask)
{
    const fmi_picking p = {q, rows, n, ask};
    fm_assert(q->ticket == 0);
    e->step->picking = &p;
    fm_status rc = fm_engine_step(e, rows, n);
    e->step->picking = NULL;
    return rc;
}
