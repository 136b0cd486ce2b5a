/* pass_util.c - what every part of a pass leans on: the rows of a layer, what it saves, the gradient
 * of a parameter. */
#include "train/pass/pass.h"

float *fmi_lane_grad(const fmi_lane *lane, int32_t param)
{
    return param >= 0 && lane->ps ? lane->ps->g + lane->ps->item[param].at : NULL;
}

fmi_slot *fmi_slot_of(fmi_pass *p, uint32_t layer)
{
    return &p->slot[layer > p->low ? layer - p->low : 0];
}

static fmi_parts parts_while(fmi_pass *p, uint32_t layer)
{
    fmi_parts ps = {p->part, 0, 0};

    for (size_t i = 0; i < p->lanes && p->lane[i]->first <= layer; i++) {
        fmi_lane *l = p->lane[i];
        p->part[ps.n++] =
            (fmi_part){.lane = l, .begin = l->row0, .count = l->batch.rows, .deeper = true};
        ps.rows += l->batch.rows;
    }
    return ps;
}

fmi_parts fmi_parts_all(fmi_pass *p)
{
    return parts_while(p, UINT32_MAX);
}

fmi_parts fmi_parts_from(fmi_pass *p, uint32_t layer)
{
    return parts_while(p, layer);
}

fmi_parts fmi_parts_below(fmi_pass *p, uint32_t layer)
{
    fmi_parts ps = parts_while(p, layer);

    for (uint32_t i = 0; i < ps.n; i++) {
        const fmi_lane *l = ps.p[i].lane;
        const fmi_norm *n = fmi_net_norm_at(l->net, (int32_t)layer, FMI_ATTN_NORM);
        const fmi_norm *other = fmi_net_norm_at(l->net, (int32_t)layer, FMI_MLP_NORM);
        bool trains = n->param >= 0 || n->bias_param >= 0;
        if (p->arch.sw.order == FM_BLOCK_PARALLEL)
            trains = trains || other->param >= 0 || other->bias_param >= 0;
        p->part[i].deeper = layer > l->first || l->embed_trains || trains;
    }
    return ps;
}
