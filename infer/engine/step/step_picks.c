/* step_picks.c - tokens of a step's rows picked on the device, and the logits of rows that have no
 * pick. */
#include "infer/engine/step/step.h"

#include "store/base/mem.h"

fm_status fmi_pick_room(fmi_step *s)
{
    fm_backend *be = s->e->be;
    size_t ints = 4 * (size_t)s->max_rows;
    void *dev = NULL;
    if (s->pick)
        return FM_OK;
    s->picked_host = s->picked_host ? s->picked_host : fm_calloc(ints, sizeof(int32_t));
    s->pick_host = s->pick_host ? s->pick_host : fm_calloc(s->max_rows, sizeof(fm_pick));
    if (!s->picked_host || !s->pick_host)
        return FM_ENOMEM;
    FM_TRY(s->picked ? FM_OK : be->alloc(be, &dev, ints * sizeof(int32_t)));
    if (dev)
        s->picked = dev;
    FM_TRY(be->alloc(be, &dev, s->max_rows * sizeof(fm_pick)));
    s->pick = dev;
    return FM_OK;
}

fm_status fmi_pick_tokens(fmi_step *s, fmi_queued *q, const fm_row *rows, uint32_t n,
                          fmi_row_pick *ask)
{
    fm_backend *be = s->e->be;
    uint32_t count = 0, widest = 0;
    for (uint32_t i = 0; i < n; i++) {
        const fm_sample_params *how = ask[i].how;
        if (!rows[i].want_logits || !how)
            continue;
        uint32_t vocab = rows[i].seq->model->arch.vocab;
        widest = FM_MAX(widest, vocab);
        ask[i].pick = (int32_t)count;
        s->pick_host[count++] = (fm_pick){.seed = how->seed,
                                          .index = ask[i].index,
                                          .seen = ask[i].seen,
                                          .row = (uint32_t)s->logit_row[i],
                                          .vocab = vocab,
                                          .top_k = how->top_k,
                                          .temperature = how->temperature,
                                          .top_p = how->top_p,
                                          .min_p = how->min_p,
                                          .repetition_penalty = how->repetition_penalty};
    }
    s->picks = q->picks = count;
    if (count == 0)
        return FM_OK;
    FM_TRY(be->upload(be, s->pick, s->pick_host, count * sizeof(fm_pick)));
    be->sample(be, s->picked, s->picked + count, s->logits, s->ld, s->pick, count, widest);
    return FM_OK;
}

fm_status fmi_fetch_logits(fmi_step *s, const fm_row *rows, uint32_t n, const fmi_row_pick *ask)
{
    fm_backend *be = s->e->be;

    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        if (!rows[i].want_logits || ask[i].how || s->headless[i])
            continue;
        size_t at = (size_t)s->logit_row[i] * s->ld;
        any = true;
        FM_TRY(be->download(be, s->logits_host + at, s->logits + at,
                            rows[i].seq->model->arch.vocab * sizeof(float)));
    }
    if (any)
        s->last_n = n;
    return FM_OK;
}

fm_status fmi_collect_picks(fmi_step *s)
{
    const fmi_picking *p = s->picking;
    fm_backend *be = s->e->be;
    fm_status rc = fmi_pick_room(s);
    FM_THEN(rc, fmi_pick_tokens(s, p->q, p->rows, p->n, p->ask));
    FM_THEN(rc, be->fetch(be, p->q->picked, s->picked, 2 * (size_t)p->q->picks * sizeof(int32_t),
                          &p->q->ticket));
    FM_THEN(rc, be->wait(be, p->q->ticket));
    p->q->ticket = 0;
    return rc == FM_OK ? fmi_fetch_logits(s, p->rows, p->n, p->ask) : rc;
}

fm_status fmi_pick_status(int32_t bad)
{
    if (bad == 0)
        return FM_OK;
    if (bad == -1)
        return fm_fail(FM_ECORRUPT, "no logit is finite");
    return fm_fail(FM_ECORRUPT, "logit %d is %s: the model's weights are broken",
                   bad > 0 ? bad - 1 : -bad - 2, bad > 0 ? "NaN" : "infinite");
}
