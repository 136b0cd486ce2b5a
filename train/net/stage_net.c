/* stage_net.c - the part of a net that a stage holds. */
#include "train/net/stage_net.h"

#include "store/base/mem.h"
#include "train/net/method.h"

#include <string.h>

/* ---- which stage a parameter belongs to ---- */
static void note(fmt_params *ps, int32_t param, uint32_t stage)
{
    if (param >= 0)
        ps->item[param].stage = stage;
}

static void note_linear(fmt_params *ps, const fmt_linear *l, uint32_t stage)
{
    note(ps, l->w_param, stage);
    note(ps, l->bias_param, stage);
    note(ps, l->in_scale.param, stage);
    note(ps, l->out_scale.param, stage);
    for (size_t i = 0; i < l->terms; i++) {
        note(ps, l->term[i].a_param, stage);
        note(ps, l->term[i].b_param, stage);
    }
    if (l->dora)
        note(ps, l->dora->magnitude, stage);
    for (size_t i = 0; l->fold && i < FM_FOLD_PARTS; i++)
        note(ps, l->fold->param[i], stage);
}

static void note_norm(fmt_params *ps, const fmt_norm *n, uint32_t stage)
{
    note(ps, n->param, stage);
    note(ps, n->bias_param, stage);
}

static bool is_behind(uint32_t which)
{
    return which == FMT_HEAD || which == FMT_DENSE || which == FMT_SCORE;
}

void fmt_stage_note(const fmt_stage *s, const fmt_net *net, fmt_params *ps)
{
    uint32_t last = s->stages - 1;

    for (uint32_t l = 0; l < net->arch.layers; l++) {
        uint32_t stage = fmi_stage_split_stage(&s->split, l);
        for (uint32_t k = 0; k < net->lins; k++)
            note_linear(ps, &net->block[l].lin[k], stage);
        for (uint32_t k = 0; k < FMT_NORMS; k++)
            note_norm(ps, &net->block[l].norm[k], stage);
    }
    for (uint32_t k = 0; k < FMT_OUTER; k++)
        note_linear(ps, &net->outer[k], is_behind(k) ? last : 0);
    note_norm(ps, &net->outer_norm[FMT_EMBED_NORM], 0);
    note_norm(ps, &net->outer_norm[FMT_NORM], last);
    note(ps, net->virt_param, 0);
    if (net->virt_param >= 0 && net->virt_kind == FMT_VIRTUAL_KV)
        ps->item[net->virt_param].per_layer = ps->item[net->virt_param].n / net->arch.layers;
}

/* ---- modules of other stages ---- */
static void leave_linear(fmt_net *net, fmt_linear *l)
{
    net->doras -= l->dora != NULL;
    fmt_dora_free(l->dora);
    net->folds -= l->fold != NULL;
    fmt_fold_free(l->fold);
    fm_free(l->term);
    memset(l, 0, sizeof(*l));
    l->w_param = l->bias_param = l->in_scale.param = l->out_scale.param = -1;
}

static void leave_norm(fmt_norm *n)
{
    memset(n, 0, sizeof(*n));
    n->param = n->bias_param = -1;
}

void fmt_stage_leave(fmt_net *net)
{
    net->staged = true;
    for (uint32_t l = 0; l < net->arch.layers; l++) {
        if (l >= net->begin && l < net->end)
            continue;
        for (uint32_t k = 0; k < net->lins; k++)
            leave_linear(net, &net->block[l].lin[k]);
        for (uint32_t k = 0; k < FMT_NORMS; k++)
            leave_norm(&net->block[l].norm[k]);
        net->block[l].present = 0;
    }
    for (uint32_t k = 0; k < FMT_OUTER; k++)
        if (is_behind(k) ? net->end < net->arch.layers : net->begin > 0)
            leave_linear(net, &net->outer[k]);
    if (net->begin > 0)
        leave_norm(&net->outer_norm[FMT_EMBED_NORM]);
    if (net->end < net->arch.layers)
        leave_norm(&net->outer_norm[FMT_NORM]);
}

bool fmt_stage_ties(const fmt_net *net)
{
    const fmt_linear *head = &net->outer[FMT_HEAD], *embed = &net->outer[FMT_EMBED];

    return net->arch.tied && embed->w_param >= 0 && !net->frozen &&
           (head->w_param < 0 || head->w_param == embed->w_param);
}

fm_status fmt_stage_keep(fmt_stage *s, fmt_net *net, fmt_params *ps)
{
    fmt_linear *embed = &net->outer[FMT_EMBED], *head = &net->outer[FMT_HEAD];

    ps->stage = s;
    fmt_stage_note(s, net, ps);
    net->depth = fmt_net_depth(net);
    /* Ties them as fmt_net_bind does: where nothing is frozen the head has no weight yet. In a
     * frozen stem only the last stage sees the head, so the parameters decide here, not the weights
     * that are bound. */
    bool tied = fmt_stage_ties(net);
    ps->tied = tied ? embed->w_param : -1;
    if (tied)
        head->w_param = embed->w_param;
    if (net->virt_param >= 0)
        net->virt_from = net->virt_kind == FMT_VIRTUAL_KV ? net->begin : 0;
    fm_status rc = fmt_stage_place(ps);
    fmt_stage_leave(net);
    return rc;
}
