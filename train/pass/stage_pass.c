/* stage_pass.c - a pass over a stage's layers: rows and gradients from and to its neighbours. */
#include "train/pass/stage_pass.h"

static uint64_t rows_of(const fmt_pass *p, const fmt_lane *const *lane, size_t n, uint32_t below)
{
    uint64_t rows = 0;

    for (size_t i = 0; i < n; i++)
        rows += lane[i]->first < below ? lane[i]->batch.rows : 0;
    return rows * p->arch.hidden;
}

fmt_rows_to fmt_stage_rows(const fmt_pass *p, const fmt_lane *const *lane, size_t n, uint32_t layer)
{
    return (fmt_rows_to){
        .on = (size_t)rows_of(p, lane, n, UINT32_MAX) * sizeof(float),
        .back = (size_t)rows_of(p, lane, n, layer) * sizeof(float),
    };
}

fm_status fmt_stage_swap(const fmt_stage *s, bool next, const float *send, size_t to, float *recv,
                         size_t from)
{
    uint32_t peer = next ? s->rank + s->wide : s->rank - s->wide;
    const void *part[FM_COMM_MAX_RANKS] = {NULL};
    void *got[FM_COMM_MAX_RANKS] = {NULL};
    size_t out[FM_COMM_MAX_RANKS] = {0}, in[FM_COMM_MAX_RANKS] = {0};

    part[peer] = send;
    out[peer] = to;
    got[peer] = recv;
    in[peer] = from;
    return fm_comm_exchange(s->all, part, out, got, in);
}

/* ---- a tied embedding that trains ---- */
/* Sends or receives the tied gradient, between first and last stage, for each lane with one. */
static fm_status pass_tied(fmt_pass *p, bool send, bool others_follow)
{
    const fmt_stage *s = p->stage;
    uint32_t peer =
        s->mine == 0 ? fmt_stage_end_rank(s) + s->rank : s->rank - fmt_stage_end_rank(s);

    for (size_t i = 0; i < p->lanes; i++) {
        fmt_lane *l = p->lane[i];
        if (!l->ps || l->ps->tied < 0 || (others_follow && !l->goes_on))
            continue;
        const fmt_param *tied = &l->ps->item[l->ps->tied];
        float *g = l->ps->g + tied->at;
        size_t bytes = (size_t)tied->n * sizeof(float);
        FM_TRY(send ? fm_comm_send(s->all, g, bytes, peer) : fm_comm_recv(s->all, g, bytes, peer));
    }
    return FM_OK;
}

/* On the last stage, before the head: receives the gradient of the earlier passes. */
static fm_status take_tied(fmt_pass *p)
{
    const fmt_stage *s = p->stage;

    for (size_t i = 0; i < p->lanes; i++) {
        fmt_lane *l = p->lane[i];
        if (!l->ps || l->ps->tied < 0 || !l->went_before)
            continue;
        const fmt_param *tied = &l->ps->item[l->ps->tied];
        FM_TRY(fm_comm_recv(s->all, l->ps->g + tied->at, (size_t)tied->n * sizeof(float),
                            s->rank - fmt_stage_end_rank(s)));
    }
    return FM_OK;
}

fm_status fmt_stage_head_and_layers(fmt_pass *p)
{
    bool last = fmt_stage_is_last(p->stage);
    FM_TRY(last ? take_tied(p) : FM_OK);

    if (last)
        FM_TRY(fmt_head(p));
    return fmt_layers_backward(p);
}

/* The last stage sends its part after its rows' gradient, which the first awaits first. */
fm_status fmt_stage_embed(fmt_pass *p)
{
    if (fmt_stage_is_last(p->stage))
        return pass_tied(p, true, false);
    if (p->begin > 0)
        return FM_OK;
    FM_TRY(pass_tied(p, false, false));
    fmt_embed_backward(p);
    return pass_tied(p, true, true);
}

/* ---- one pass after the other ---- */
static fmt_rows_to rows_at(const fmt_pass *p, uint32_t layer)
{
    return fmt_stage_rows(p, (const fmt_lane *const *)p->lane, p->lanes, layer);
}

fm_status fmt_stage_forward(fmt_pass *p)
{
    if (p->begin > 0)
        FM_TRY(fmt_stage_swap(p->stage, false, NULL, 0, fmt_slot_of(p, p->begin)->xin,
                              rows_at(p, p->begin).on));
    FM_TRY(fmt_layers_forward(p));
    if (p->end < p->arch.layers)
        FM_TRY(fmt_stage_swap(p->stage, true, p->xout, rows_at(p, p->end).on, NULL, 0));
    return FM_OK;
}

fm_status fmt_stage_backward(fmt_pass *p)
{
    if (p->end < p->arch.layers)
        FM_TRY(fmt_stage_swap(p->stage, true, NULL, 0, p->dx, rows_at(p, p->end).back));
    FM_TRY(fmt_stage_head_and_layers(p));
    if (p->begin > 0)
        FM_TRY(fmt_stage_swap(p->stage, false, p->dx, rows_at(p, p->begin).back, NULL, 0));
    return fmt_stage_embed(p);
}
