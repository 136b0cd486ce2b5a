/* fair_queue.c - see fair_queue.h. Flows stay when they are empty, with their counters. Each
 * request searches the list of flows once, which takes no time compared with running it. */
#include "infer/sched/fair_queue.h"

#include "store/base/mem.h"

void fmi_fair_queue_release(fmi_fair_queue *f)
{
    fmi_flow *next;
    for (fmi_flow *w = f->flows; w; w = next) {
        next = w->next;
        fm_assert(!w->wait);
        fm_free(w);
    }
    f->flows = NULL;
}

fmi_flow *fmi_fair_queue_flow(fmi_fair_queue *f, const fm_model *m)
{
    fm_digest id = fm_model_digest(m);
    for (fmi_flow *w = f->flows; w; w = w->next)
        if (fm_digest_eq(&w->id, &id))
            return w;
    fmi_flow *w = fm_calloc(1, sizeof(*w));
    if (!w)
        return NULL;
    w->id = id;
    w->wait_end = &w->wait;
    w->next = f->flows;
    f->flows = w;
    return w;
}

/* Raises the counter of a flow that was idle to the least counter of the busy ones. */
static void lift(const fmi_fair_queue *f, fmi_flow *w)
{
    uint64_t least = UINT64_MAX;
    for (const fmi_flow *o = f->flows; o; o = o->next)
        if (o->waiting || o->running)
            least = FM_MIN(least, o->served);
    if (least != UINT64_MAX)
        w->served = FM_MAX(w->served, least);
}

void fmi_fair_queue_wait(fmi_fair_queue *f, fmi_request *r, bool front)
{
    fmi_flow *w = r->flow;
    if (!w->waiting && !w->running)
        lift(f, w);
    if (front) {
        r->next = w->wait;
        w->wait = r;
        if (!r->next)
            w->wait_end = &r->next;
    } else {
        r->next = NULL;
        *w->wait_end = r;
        w->wait_end = &r->next;
    }
    w->waiting++;
    f->waiting++;
}

fmi_flow *fmi_fair_queue_next(const fmi_fair_queue *f)
{
    fmi_flow *best = NULL;
    for (fmi_flow *w = f->flows; w; w = w->next)
        if (w->waiting && (!best || w->served < best->served ||
                           (w->served == best->served && w->wait->id < best->wait->id)))
            best = w;
    return best;
}

static fmi_request *take(fmi_fair_queue *f, fmi_flow *w, fmi_request **at)
{
    fmi_request *r = *at;
    *at = r->next;
    if (!*at)
        w->wait_end = at;
    r->next = NULL;
    w->waiting--;
    f->waiting--;
    return r;
}

fmi_request *fmi_fair_queue_first(fmi_fair_queue *f, fmi_flow *w)
{
    return take(f, w, &w->wait);
}

fmi_request *fmi_fair_queue_cancelled(fmi_fair_queue *f)
{
    for (fmi_flow *w = f->flows; w; w = w->next)
        for (fmi_request **at = &w->wait; *at; at = &(*at)->next)
            if ((*at)->cancelled)
                return take(f, w, at);
    return NULL;
}
