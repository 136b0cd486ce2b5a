/* block_attention.c - the attention branch of a layer, forward and backward: products (apart or
 * fused), head norms, rotary positions, attention, the output product. Mirrors infer's. */
#include "train/pass/pass.h"

#include "infer/model/fixed.h"

/* Where q, k and v of all rows lie, or their gradients. */
typedef struct qkv {
    float *q, *k, *v;
    size_t ldq, ldk;
} qkv;

static size_t q_width(const fm_arch *a)
{
    return (size_t)a->heads * a->head_dim;
}
static size_t kv_width(const fm_arch *a)
{
    return (size_t)a->kv_heads * a->head_dim;
}
static size_t fused_width(const fm_arch *a)
{
    return q_width(a) + 2 * kv_width(a);
}

static qkv saved(const fm_arch *a, const fmt_slot *s)
{
    size_t q = q_width(a), kv = kv_width(a), ld = fused_width(a);

    if (a->sw.fused == FM_FUSED_QKV)
        return (qkv){s->fused, s->fused + q, s->fused + q + kv, ld, ld};
    return (qkv){s->q, s->k, s->v, q, kv};
}

static qkv gradients(const fmt_pass *p)
{
    const fm_arch *a = &p->arch;
    bool fused = a->sw.fused == FM_FUSED_QKV;
    size_t ld = fused_width(a);

    return (qkv){p->dq, p->dk, p->dv, fused ? ld : q_width(a), fused ? ld : kv_width(a)};
}

static fm_attn_train attention_of(const fmt_pass *p, const fmt_slot *s, uint32_t layer)
{
    const fm_arch *a = &p->arch;
    qkv t = saved(a, s);
    bool slides = a->sw.layer[layer] & FM_LAYER_SLIDES;

    return (fm_attn_train){.nh = a->heads,
                           .nkv = a->kv_heads,
                           .hd = a->head_dim,
                           .window = slides ? a->window : 0,
                           .encoder = a->sw.encoder,
                           .scale = a->sw.attn_scale,
                           .softcap = a->sw.attn_softcap,
                           .bias_ld = fmi_near_ld(a),
                           .bias_zero = fmi_near_zero(a),
                           .seq = p->seq,
                           .q = t.q,
                           .k = t.k,
                           .v = t.v,
                           .ldq = t.ldq,
                           .ldk = t.ldk,
                           .out = s->attn,
                           .lse = s->lse};
}

/* Sets the sinks of this layer, where there are any. */
static void sinks_of(fmt_pass *p, fmt_parts ps, uint32_t layer, bool grad)
{
    for (uint32_t i = 0; p->arch.sw.sinks && i < ps.n; i++) {
        const fmt_lane *lane = ps.p[i].lane;
        const fmt_norm *n = fmt_net_norm_at(lane->net, (int32_t)layer, FMT_SINKS);
        for (uint32_t s = 0; s < lane->batch.seqs; s++) {
            fm_train_seq *q = &p->seq[lane->seq0 + s];
            q->sink = n->gain;
            q->dsink = grad && n->param >= 0 ? fmt_lane_grad(lane, n->param) : NULL;
        }
    }
}

static uint32_t seqs_of(fmt_parts ps)
{
    const fmt_lane *last = ps.p[ps.n - 1].lane;
    return last->seq0 + last->batch.seqs;
}

/* Applies rope; head by head where only the first elements of a head turn. */
static void rotate(fmt_pass *p, uint32_t layer, float *x, size_t ld, uint32_t rows, uint32_t heads,
                   bool inverse)
{
    const fm_switches *sw = &p->arch.sw;
    uint32_t hd = p->arch.head_dim, turns = sw->rotary_dim;
    bool slides = sw->layer[layer] & FM_LAYER_SLIDES;
    const float *cos = slides ? p->cos_slide : p->cos, *sin = slides ? p->sin_slide : p->sin;

    if (sw->no_rope || (sw->layer[layer] & FM_LAYER_NO_ROPE))
        return;
    if (turns == hd)
        p->be->rope(p->be, x, ld, p->pos, cos, sin, rows, heads, hd, sw->pairs, inverse);
    for (uint32_t h = 0; turns < hd && h < heads; h++)
        p->be->rope(p->be, x + (size_t)h * hd, ld, p->pos, cos, sin, rows, 1, turns, sw->pairs,
                    inverse);
}

/* Multiplies queries, or their gradients, by what their positions say; mirrors infer's. */
static void grow(fmt_pass *p, uint32_t layer, float *q, size_t ld, uint32_t rows)
{
    if (fm_layer_grows(&p->arch.sw, layer))
        p->be->rope(p->be, q, ld, p->pos, p->grow, p->grow_zero, rows,
                    p->arch.heads * p->arch.head_dim / 2, 2, false, false);
}

/* A product that gives (q.., k, v) of each head of keys in turn: copies them apart, or back. */
static void deal_heads(fmt_pass *p, const qkv *t, float *fused, uint32_t rows, bool back)
{
    uint32_t hd = p->arch.head_dim, qd = p->arch.heads / p->arch.kv_heads * hd;
    size_t ld = t->ldq + 2 * t->ldk;

    for (uint32_t h = 0; h < p->arch.kv_heads; h++) {
        float *all = fused + (size_t)h * (qd + 2 * hd);
        const struct {
            float *one, *at;
            size_t ld;
            uint32_t n;
        } apart[] = {{t->q + (size_t)h * qd, all, t->ldq, qd},
                     {t->k + (size_t)h * hd, all + qd, t->ldk, hd},
                     {t->v + (size_t)h * hd, all + qd + hd, t->ldk, hd}};
        for (uint32_t i = 0; i < FM_ARRAY_LEN(apart); i++)
            if (back)
                p->be->copy_rows(p->be, apart[i].at, ld, apart[i].one, apart[i].ld, NULL, rows,
                                 apart[i].n);
            else
                p->be->copy_rows(p->be, apart[i].one, apart[i].ld, apart[i].at, ld, NULL, rows,
                                 apart[i].n);
    }
}

/* A product that has (query, gate) of each head: copies them apart, or their gradients back. */
static void deal_gates(fmt_pass *p, float *q, float *gate, uint32_t rows, bool back)
{
    uint32_t hd = p->arch.head_dim;
    size_t ld = q_width(&p->arch);

    for (size_t h = 0; h < 2 * (size_t)p->arch.heads; h++) {
        float *one = (h % 2 ? gate : q) + h / 2 * hd, *all = p->gated + h * hd;
        if (back)
            p->be->copy_rows(p->be, all, 2 * ld, one, ld, NULL, rows, hd);
        else
            p->be->copy_rows(p->be, one, ld, all, 2 * ld, NULL, rows, hd);
    }
}

/* What the output product reads: attention's result, gated where the family does so. */
static const float *made_of(fmt_pass *p, const fmt_slot *s, uint32_t rows)
{
    size_t q = q_width(&p->arch);

    if (!p->arch.sw.attn_gate)
        return s->attn;
    p->be->act(p->be, FM_ACT_SIGMOID, p->amade, q, s->agate, q, s->attn, q, rows, (uint32_t)q);
    return p->amade;
}

static fm_status project(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *x)
{
    const fm_arch *a = &p->arch;
    fmt_slot *s = fmt_slot_of(p, layer);
    bool normed = a->sw.qk != FM_QK_NONE, heads = a->sw.fused == FM_FUSED_QKV_HEADS;
    float *q = normed ? s->qraw : s->q;
    bool gated = a->sw.attn_gate;
    const fmt_out apart[] = {{FMT_Q, gated ? p->gated : q, q_width(a) * (gated ? 2 : 1)},
                             {FMT_K, normed ? s->kraw : s->k, kv_width(a)},
                             {FMT_V, s->v, kv_width(a)}};
    const fmt_out fused = {FMT_Q, heads ? p->fused : s->fused, fused_width(a)};
    qkv t = saved(a, s);

    if (a->sw.fused == FM_FUSED_NONE) {
        FM_TRY(fmt_linears_forward(p, ps, (int32_t)layer, x, a->hidden, apart, 3));
        if (gated)
            deal_gates(p, q, s->agate, ps.rows, false);
        return FM_OK;
    }
    FM_TRY(fmt_linears_forward(p, ps, (int32_t)layer, x, a->hidden, &fused, 1));
    if (heads)
        deal_heads(p, &t, p->fused, ps.rows, false);
    return FM_OK;
}

static void norm_heads(fmt_pass *p, fmt_parts ps, int32_t l, fmt_slot *s)
{
    const fm_arch *a = &p->arch;
    bool whole = a->sw.qk == FM_QK_ALL;
    uint32_t hd = a->head_dim, q = whole ? 1 : a->heads, k = whole ? 1 : a->kv_heads;

    if (a->sw.qk == FM_QK_NONE)
        return;
    fmt_norms(p, ps, l, FMT_Q_NORM, s->q, s->qraw, s->qrstd, q, whole ? a->heads * hd : hd);
    fmt_norms(p, ps, l, FMT_K_NORM, s->k, s->kraw, s->krstd, k, whole ? a->kv_heads * hd : hd);
}

static void norm_heads_grad(fmt_pass *p, fmt_parts ps, int32_t l, fmt_slot *s)
{
    const fm_arch *a = &p->arch;
    bool whole = a->sw.qk == FM_QK_ALL;
    uint32_t hd = a->head_dim, q = whole ? 1 : a->heads, k = whole ? 1 : a->kv_heads;

    if (a->sw.qk == FM_QK_NONE)
        return;
    fmt_norms_grad(p, ps, l, FMT_Q_NORM, p->dqraw, false, p->dq, s->qraw, s->qrstd, q,
                   whole ? a->heads * hd : hd);
    fmt_norms_grad(p, ps, l, FMT_K_NORM, p->dkraw, false, p->dk, s->kraw, s->krstd, k,
                   whole ? a->kv_heads * hd : hd);
}

fm_status fmt_attention_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *x, float *y)
{
    const fm_arch *a = &p->arch;
    fmt_slot *s = fmt_slot_of(p, layer);
    qkv at = saved(a, s);
    const fmt_out out = {FMT_O, y, a->hidden};
    bool after = a->sw.qk_after;
    FM_TRY(project(p, ps, layer, x));
    if (!after)
        norm_heads(p, ps, (int32_t)layer, s);
    rotate(p, layer, after ? s->qraw : at.q, at.ldq, ps.rows, a->heads, false);
    rotate(p, layer, after ? s->kraw : at.k, at.ldk, ps.rows, a->kv_heads, false);
    if (after)
        norm_heads(p, ps, (int32_t)layer, s);
    grow(p, layer, at.q, at.ldq, ps.rows);
    fm_attn_train t = attention_of(p, s, layer);
    t.rows = ps.rows;
    t.seqs = seqs_of(ps);
    fmt_virtual_layer(p, ps, layer, false);
    sinks_of(p, ps, layer, false);
    p->be->self_attention(p->be, &t);
    return fmt_linears_forward(p, ps, (int32_t)layer, made_of(p, s, ps.rows), q_width(a), &out, 1);
}

fm_status fmt_attention_backward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *dy)
{
    const fm_arch *a = &p->arch;
    fmt_slot *s = fmt_slot_of(p, layer);
    qkv d = gradients(p);
    size_t q = q_width(a);
    const fmt_out out = {FMT_O, (float *)(uintptr_t)dy, a->hidden};
    bool gated = a->sw.attn_gate;
    FM_TRY(fmt_linears_grad(p, ps, (int32_t)layer, gated ? p->damade : p->dattn, q, false,
                            made_of(p, s, ps.rows), q, &out, 1));
    if (gated)
        p->be->act_grad(p->be, FM_ACT_SIGMOID, p->dagate, q, p->dattn, q, p->damade, q, s->agate, q,
                        s->attn, q, ps.rows, (uint32_t)q);
    fm_attn_train t = attention_of(p, s, layer);
    t.rows = ps.rows;
    t.seqs = seqs_of(ps);
    t.dout = p->dattn;
    t.dq = d.q;
    t.dk = d.k;
    t.dv = d.v;
    fmt_virtual_layer(p, ps, layer, true);
    sinks_of(p, ps, layer, true);
    p->be->self_attention_grad(p->be, &t);
    grow(p, layer, d.q, d.ldq, ps.rows);
    bool after = a->sw.qk_after;
    if (after)
        norm_heads_grad(p, ps, (int32_t)layer, s);
    rotate(p, layer, after ? p->dqraw : d.q, d.ldq, ps.rows, a->heads, true);
    rotate(p, layer, after ? p->dkraw : d.k, d.ldk, ps.rows, a->kv_heads, true);
    if (!after)
        norm_heads_grad(p, ps, (int32_t)layer, s);
    if (a->sw.fused == FM_FUSED_QKV_HEADS)
        deal_heads(p, &d, p->dfused, ps.rows, true);
    if (gated)
        deal_gates(p, p->dqraw, p->dagate, ps.rows, true);
    return FM_OK;
}

/* From the gradients of q, k and v: sets dh, adds the gradients of parameters. */
fm_status fmt_attention_input_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, float *dh,
                                   const float *x)
{
    const fm_arch *a = &p->arch;
    bool gated = a->sw.attn_gate;
    const fmt_out apart[] = {{FMT_Q, gated ? p->gated : p->dqraw, q_width(a) * (gated ? 2 : 1)},
                             {FMT_K, p->dkraw, kv_width(a)},
                             {FMT_V, p->dv, kv_width(a)}};
    const fmt_out fused = {FMT_Q, p->dfused, fused_width(a)};
    bool one = a->sw.fused != FM_FUSED_NONE;

    return fmt_linears_grad(p, ps, (int32_t)layer, dh, a->hidden, false, x, a->hidden,
                            one ? &fused : apart, one ? 1 : 3);
}

/* A linear that the layer lacks trains nothing. */
bool fmt_attention_input_trains(fmt_parts ps, uint32_t layer)
{
    const fmt_out in[] = {{FMT_Q, NULL, 0}, {FMT_K, NULL, 0}, {FMT_V, NULL, 0}};
    return fmt_linears_train(ps, (int32_t)layer, in, 3);
}
