/* pass_util.c - helpers of a pass: the rows of a layer, its slot, a parameter's gradient. */
#include "train/pass/pass.h"

float *fmt_lane_grad(const fmt_lane *lane, int32_t param)
{
    return param >= 0 && lane->ps ? lane->ps->g + lane->ps->item[param].at : NULL;
}

float *fmt_factor_grad(const fmt_lane *lane, int32_t param, float *made)
{
    return made && lane->ps ? made : fmt_lane_grad(lane, param);
}

fmt_slot *fmt_slot_of(fmt_pass *p, uint32_t layer)
{
    return &p->slot[layer > p->low ? layer - p->low : 0];
}

static fmt_parts parts_while(fmt_pass *p, uint32_t layer)
{
    fmt_parts ps = {p->part, 0, 0};

    for (size_t i = 0; i < p->lanes && p->lane[i]->first <= layer; i++) {
        fmt_lane *l = p->lane[i];
        p->part[ps.n++] =
            (fmt_part){.lane = l, .begin = l->row0, .count = l->batch.rows, .deeper = true};
        ps.rows += l->batch.rows;
    }
    return ps;
}

fmt_parts fmt_parts_all(fmt_pass *p)
{
    return parts_while(p, UINT32_MAX);
}

fmt_parts fmt_parts_from(fmt_pass *p, uint32_t layer)
{
    return parts_while(p, layer);
}

fmt_parts fmt_parts_below(fmt_pass *p, uint32_t layer)
{
    fmt_parts ps = parts_while(p, layer);

    for (uint32_t i = 0; i < ps.n; i++) {
        const fmt_lane *l = ps.p[i].lane;
        const fmt_norm *n = fmt_net_norm_at(l->net, (int32_t)layer, FMT_ATTN_NORM);
        const fmt_norm *other = fmt_net_norm_at(l->net, (int32_t)layer, FMT_MLP_NORM);
        bool trains = n->param >= 0 || n->bias_param >= 0;
        if (p->arch.sw.order == FM_BLOCK_PARALLEL)
            trains = trains || other->param >= 0 || other->bias_param >= 0;
        p->part[i].deeper = layer > l->first || l->embed_trains || trains;
    }
    return ps;
}

float *fmt_plan_take(float *base, uint64_t *at, uint64_t n)
{
    float *p = base ? base + *at : NULL;
    *at += (n + 15u) & ~(uint64_t)15u;
    return p;
}

/* Kept memory where the gradient needs it; else p->du, a piece for each term of the call. */
float *fmt_place_u(fmt_pass *p, const fmt_term *t, const fmt_part *part, uint64_t *at)
{
    if (t->u && part->lane->ps)
        return t->u + (size_t)part->u0 * t->r;
    float *u = p->du + *at;
    *at += (uint64_t)part->count * t->r;
    fm_assert(*at <= p->du_floats);
    return u;
}

fm_term fmt_term_on(const fmt_part *part, const fmt_linear *l, const fmt_term *t, const float *x,
                    size_t ldx)
{
    return (fm_term){.a = t->a,
                     .b = t->b,
                     .in = l->in,
                     .out = l->out,
                     .r = t->r,
                     .m = part->count,
                     .scale = t->scale,
                     .x = x,
                     .ldx = ldx};
}
