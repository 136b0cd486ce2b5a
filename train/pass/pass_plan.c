/* pass_plan.c - the buffer of a pass: one table of sizes, walked to measure and to carve. */
#include "train/pass/pass.h"

static float *behind(float *p, uint64_t n)
{
    return p ? p + n : NULL;
}

/* Kinds of layers that a slot may hold: layers up to p->low, or all layers, share the first. */
typedef struct kinds {
    bool dense, sparse, attends, recurs;
} kinds;

static kinds kinds_of(const fmt_pass *p, uint32_t slot)
{
    const fm_arch *a = &p->arch;
    uint32_t from = slot == 0 ? p->begin : p->low + slot;
    uint32_t to = p->recompute ? p->end - 1 : p->low + slot;
    kinds k = {0};

    for (uint32_t l = from; l <= to && l < p->end; l++) {
        bool sparse = a->sw.layer[l] & FM_LAYER_SPARSE;
        k.sparse = k.sparse || sparse;
        k.dense = k.dense || !(sparse || (a->sw.layer[l] & FM_LAYER_NO_MLP));
        k.attends = k.attends || fm_layer_attends(&a->sw, l);
        k.recurs = k.recurs || fm_layer_recurs(&a->sw, l);
    }
    return k;
}

static void plan_attention(fmt_slot *s, float *base, uint64_t *at, const fm_arch *a, uint64_t m)
{
    uint64_t q = (uint64_t)a->heads * a->head_dim;
    uint64_t kv = (uint64_t)a->kv_heads * a->head_dim;

    if (a->sw.fused == FM_FUSED_QKV) {
        s->fused = fmt_plan_take(base, at, m * (q + 2 * kv));
    } else {
        s->q = fmt_plan_take(base, at, m * q);
        s->k = fmt_plan_take(base, at, m * kv);
        s->v = fmt_plan_take(base, at, m * kv);
    }
    if (a->sw.qk != FM_QK_NONE) {
        s->qraw = fmt_plan_take(base, at, m * q);
        s->kraw = fmt_plan_take(base, at, m * kv);
        s->qrstd = fmt_plan_take(base, at, m * a->heads);
        s->krstd = fmt_plan_take(base, at, m * a->kv_heads);
    }
    if (a->sw.attn_gate)
        s->agate = fmt_plan_take(base, at, m * q);
    s->attn = fmt_plan_take(base, at, m * q);
    s->lse = fmt_plan_take(base, at, m * a->heads);
}

static void plan_recurrent(fmt_slot *s, float *base, uint64_t *at, const fm_arch *a, uint64_t m)
{
    const fm_recurrence *r = &a->sw.rec;

    s->rin = fmt_plan_take(base, at, m * (r->kind == FM_RECURS_DELTA ? r->channels : r->in));
    if (r->kind == FM_RECURS_CONV) {
        s->rout = fmt_plan_take(base, at, m * r->inner);
        return;
    }
    s->ry = fmt_plan_take(base, at, m * r->inner);
    if (r->kind == FM_RECURS_MAMBA) {
        s->rsteps = fmt_plan_take(base, at, m * (r->rank + 2 * (uint64_t)r->n));
        s->rdt = fmt_plan_take(base, at, m * r->inner);
    }
    if (r->kind == FM_RECURS_DELTA) {
        s->rz = fmt_plan_take(base, at, m * r->inner);
        s->rb = fmt_plan_take(base, at, m * r->heads);
        s->ra = fmt_plan_take(base, at, m * r->heads);
    }
}

static void plan_experts(fmt_slot *s, float *base, uint64_t *at, const fm_arch *a, uint64_t m)
{
    const fm_switches *sw = &a->sw;
    uint64_t n = m * sw->chosen;

    s->xgate = fmt_plan_take(base, at, n * sw->expert_inter);
    s->xup = fmt_plan_take(base, at, n * sw->expert_inter);
    s->xout = fmt_plan_take(base, at, n * a->hidden);
    if (!sw->shared_expert)
        return;
    s->sgate = fmt_plan_take(base, at, m * sw->shared_inter);
    s->sup = fmt_plan_take(base, at, m * sw->shared_inter);
    s->sout = fmt_plan_take(base, at, m * a->hidden);
    s->sswitch = fmt_plan_take(base, at, m);
}

/* Lays out all fields of a slot but the layer's input. */
static void plan_slot(fmt_slot *s, float *base, uint64_t *at, const fm_arch *a, uint64_t m, kinds k)
{
    const fm_switches *sw = &a->sw;

    s->rstd1 = fmt_plan_take(base, at, m);
    if (k.attends)
        plan_attention(s, base, at, a, m);
    if (k.recurs)
        plan_recurrent(s, base, at, a, m);
    s->xmid = fmt_plan_take(base, at, m * a->hidden);
    s->rstd2 = fmt_plan_take(base, at, m);
    if (k.dense) {
        s->gate =
            fmt_plan_take(base, at, sw->plain_mlp ? 0 : m * a->inter * (sw->fused_mlp ? 2 : 1));
        s->up = sw->fused_mlp ? behind(s->gate, a->inter) : fmt_plan_take(base, at, m * a->inter);
    }
    if (k.sparse)
        plan_experts(s, base, at, a, m);
    if (sw->order == FM_BLOCK_PRE || sw->order == FM_BLOCK_PARALLEL)
        return;
    s->araw = fmt_plan_take(base, at, m * a->hidden);
    s->arstd = fmt_plan_take(base, at, m);
    s->mraw = fmt_plan_take(base, at, m * a->hidden);
    s->mrstd = fmt_plan_take(base, at, m);
}

static void one_slot(const void *ctx, fmt_slot *s, float *base, uint64_t *at, uint64_t m)
{
    plan_slot(s, base, at, ctx, m, (kinds){.dense = true, .attends = true});
}

/* Whether slots share memory: some rows are saved by fewer layers than others. Rows of experts
 * stand in another order; layers that recur have other fields than those that attend. */
static bool shares(const fmt_pass *p, uint32_t slots)
{
    return !p->recompute && slots > 1 && p->arch.sw.experts == 0 && !fm_arch_recurs(&p->arch) &&
           p->saved[0] < p->cap.rows;
}

static fm_status plan_slots(fmt_pass *p, float *base, uint64_t *at)
{
    const fm_arch *a = &p->arch;
    uint32_t slots = fmt_pass_slots(p);
    uint64_t m = p->cap.rows;

    if (shares(p, slots)) {
        fm_status rc = fmt_plan_shared(p, slots, base, at, one_slot, a);
        for (uint32_t i = 0; i < slots; i++)
            p->slot[i].xin = fmt_plan_take(base, at, m * a->hidden);
        return rc;
    }
    for (uint32_t i = 0; i < slots; i++) {
        if (i > 0 && p->recompute)
            p->slot[i] = p->slot[0];
        else
            plan_slot(&p->slot[i], base, at, a, m, kinds_of(p, i));
        p->slot[i].xin = fmt_plan_take(base, at, m * a->hidden);
    }
    return FM_OK;
}

/* The widest inner activation of a row: dense, all chosen experts, the shared expert. */
static uint64_t widest_inter(const fmt_pass *p)
{
    const fm_switches *sw = &p->arch.sw;
    uint64_t experts = (uint64_t)sw->chosen * sw->expert_inter;
    return FM_MAX(FM_MAX((uint64_t)p->arch.inter, experts), (uint64_t)sw->shared_inter);
}

static void plan_recurrent_gradients(fmt_pass *p, float *base, uint64_t *at)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    uint64_t m = p->cap.rows;

    if (!fm_arch_recurs(&p->arch))
        return;
    p->drin = fmt_plan_take(base, at, m * (r->kind == FM_RECURS_DELTA ? r->channels : r->in));
    p->drout = fmt_plan_take(base, at, m * r->inner);
    if (r->kind == FM_RECURS_CONV)
        return;
    p->dry = fmt_plan_take(base, at, m * r->inner);
    p->drmix = fmt_plan_take(base, at, m * r->channels);
    if (r->kind == FM_RECURS_MAMBA) {
        p->drsteps = fmt_plan_take(base, at, m * (r->rank + 2 * (uint64_t)r->n));
        p->drdt = fmt_plan_take(base, at, m * r->inner);
    }
    if (r->kind == FM_RECURS_DELTA) {
        const fm_delta delta = fmt_recurrent_delta(p, p->cap.rows);
        p->drz = fmt_plan_take(base, at, m * r->inner);
        p->drb = fmt_plan_take(base, at, m * r->heads);
        p->dra = fmt_plan_take(base, at, m * r->heads);
        p->rwork = fmt_plan_take(base, at, fm_delta_grad_floats(&delta));
        return;
    }
    const fm_scan scan = fmt_recurrent_scan(p, p->cap.rows);
    p->rwork = fmt_plan_take(base, at, fm_scan_grad_floats(&scan));
}

/* What forward and backward compute alike, and no slot keeps. */
static void plan_recurrent_work(fmt_pass *p, float *base, uint64_t *at)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    uint64_t m = p->cap.rows;

    if (!fm_arch_recurs(&p->arch) || r->kind == FM_RECURS_CONV)
        return;
    p->rmix = fmt_plan_take(base, at, m * r->channels);
    p->rout = fmt_plan_take(base, at, m * r->inner);
    if (r->kind == FM_RECURS_MAMBA)
        return;
    p->rgate = fmt_plan_take(base, at, m * r->inner);
    p->rrstd = fmt_plan_take(base, at, m * FM_MAX(r->groups, r->heads));
    if (!r->by_groups)
        return;
    p->rdeal = fmt_plan_take(base, at, m * r->in);
    p->rdeal_ba = fmt_plan_take(base, at, m * 2 * r->heads);
}

static void plan_gated(fmt_pass *p, float *base, uint64_t *at)
{
    uint64_t q = p->cap.rows * (uint64_t)p->arch.heads * p->arch.head_dim;

    if (!p->arch.sw.attn_gate)
        return;
    p->gated = fmt_plan_take(base, at, 2 * q);
    p->amade = fmt_plan_take(base, at, q);
    if (p->frozen)
        return;
    p->dagate = fmt_plan_take(base, at, q);
    p->damade = fmt_plan_take(base, at, q);
}

static void plan_gradients(fmt_pass *p, float *base, uint64_t *at)
{
    const fm_arch *a = &p->arch;
    uint64_t m = p->cap.rows;
    uint64_t q = (uint64_t)a->heads * a->head_dim;
    uint64_t kv = (uint64_t)a->kv_heads * a->head_dim;

    uint64_t inter = widest_inter(p) * m;
    bool fused = a->sw.fused == FM_FUSED_QKV;

    p->du = fmt_plan_take(base, at, p->du_floats);
    for (size_t i = 0; i < FM_ARRAY_LEN(p->alone); i++)
        p->alone[i] = fmt_plan_take(base, at, p->alone_floats);
    if (p->frozen)
        return;
    p->dx = fmt_plan_take(base, at, m * a->hidden);
    p->dh = fmt_plan_take(base, at, m * a->hidden);
    p->dact = fmt_plan_take(base, at, inter);
    p->dgate = fmt_plan_take(base, at, a->sw.fused_mlp ? 2 * inter : inter);
    p->dup = fmt_plan_take(base, at, inter);
    plan_recurrent_gradients(p, base, at);
    p->dattn = fmt_plan_take(base, at, m * q);
    if (a->sw.fused != FM_FUSED_NONE)
        p->dfused = fmt_plan_take(base, at, m * (q + 2 * kv));
    p->dq = fused ? p->dfused : fmt_plan_take(base, at, m * q);
    p->dk = fused ? behind(p->dfused, q) : fmt_plan_take(base, at, m * kv);
    p->dv = fused ? behind(p->dfused, q + kv) : fmt_plan_take(base, at, m * kv);
    p->dqraw = a->sw.qk != FM_QK_NONE ? fmt_plan_take(base, at, m * q) : p->dq;
    p->dkraw = a->sw.qk != FM_QK_NONE ? fmt_plan_take(base, at, m * kv) : p->dk;
}

static bool any_slides(const fm_arch *a)
{
    for (uint32_t l = 0; l < a->layers; l++)
        if (a->sw.layer[l] & FM_LAYER_SLIDES)
            return true;
    return false;
}

/* Fields that only some families have. */
static void plan_extras(fmt_pass *p, float *base, uint64_t *at)
{
    const fm_arch *a = &p->arch;
    const fm_switches *sw = &a->sw;
    uint64_t m = p->cap.rows, half = sw->rotary_dim / 2;
    uint64_t qkv = ((uint64_t)a->heads + 2 * (uint64_t)a->kv_heads) * a->head_dim;

    if (!sw->no_rope) {
        p->cos = fmt_plan_take(base, at, p->cap.longest * half);
        p->sin = fmt_plan_take(base, at, p->cap.longest * half);
    }
    if (!sw->no_rope && any_slides(a)) {
        p->cos_slide = fmt_plan_take(base, at, p->cap.longest * half);
        p->sin_slide = fmt_plan_take(base, at, p->cap.longest * half);
    }
    if (sw->grow.every) {
        p->grow = fmt_plan_take(base, at, p->cap.longest);
        p->grow_zero = fmt_plan_take(base, at, p->cap.longest);
    }
    if (sw->fused == FM_FUSED_QKV_HEADS)
        p->fused = fmt_plan_take(base, at, m * qkv);
    if (sw->order != FM_BLOCK_PRE || sw->residual_scale != 1.0f)
        p->branch = fmt_plan_take(base, at, m * a->hidden);
}

/* Fields of the head, if this stage has it. */
static void plan_head(fmt_pass *p, float *base, uint64_t *at)
{
    const fm_arch *a = &p->arch;
    uint64_t r = p->cap.labels;

    if (p->end < a->layers)
        return;
    p->xl = fmt_plan_take(base, at, r * a->hidden);
    p->hl = fmt_plan_take(base, at, (r + 1) * a->hidden);
    p->rstdl = fmt_plan_take(base, at, r);
    p->dl = fmt_plan_take(base, at, r * a->hidden);
    p->zero = fmt_plan_take(base, at, a->hidden);
    p->logits = fmt_plan_take(base, at, (uint64_t)p->chunk * a->vocab);
    p->taught = p->taught_rows ? fmt_plan_take(base, at, (uint64_t)p->chunk * a->vocab) : NULL;
    p->loss = fmt_plan_take(base, at, r);
    if (a->sw.logit_softcap > 0.0f)
        p->capped = fmt_plan_take(base, at, (uint64_t)p->chunk * a->vocab);
}

/* Fields besides the slots that the backward reads. */
static void plan_embed(fmt_pass *p, float *base, uint64_t *at)
{
    uint64_t m = p->cap.rows;

    if (!p->arch.sw.embed_norm || p->begin > 0)
        return;
    p->xembed = fmt_plan_take(base, at, m * p->arch.hidden);
    p->embed_rstd = fmt_plan_take(base, at, m);
}

static void borrow(fmt_pass *p)
{
    const fmt_pass *k = p->kin;

    p->xout = k->xout, p->h = k->h, p->act = k->act;
    p->du = k->du;
    for (size_t i = 0; i < FM_ARRAY_LEN(p->alone); i++)
        p->alone[i] = k->alone[i];
    p->dx = k->dx, p->dh = k->dh;
    p->dact = k->dact, p->dgate = k->dgate, p->dup = k->dup;
    p->dattn = k->dattn, p->dq = k->dq, p->dqraw = k->dqraw;
    p->dk = k->dk, p->dkraw = k->dkraw, p->dv = k->dv;
    p->xl = k->xl, p->hl = k->hl, p->rstdl = k->rstdl, p->dl = k->dl, p->zero = k->zero;
    p->logits = k->logits, p->loss = k->loss, p->taught = k->taught, p->capped = k->capped;
    p->cos = k->cos, p->sin = k->sin, p->cos_slide = k->cos_slide, p->sin_slide = k->sin_slide;
    p->grow = k->grow, p->grow_zero = k->grow_zero;
    p->fused = k->fused, p->dfused = k->dfused, p->branch = k->branch;
    p->drin = k->drin, p->drout = k->drout;
    p->drsteps = k->drsteps, p->drdt = k->drdt, p->dry = k->dry;
    p->rmix = k->rmix, p->rout = k->rout, p->rgate = k->rgate, p->rrstd = k->rrstd;
    p->drmix = k->drmix, p->rwork = k->rwork;
    p->rdeal = k->rdeal, p->rdeal_ba = k->rdeal_ba;
    p->drz = k->drz, p->drb = k->drb, p->dra = k->dra;
    p->gated = k->gated, p->amade = k->amade, p->dagate = k->dagate, p->damade = k->damade;
}

fm_status fmt_pass_plan(fmt_pass *p, float *base, uint64_t *floats)
{
    const fm_arch *a = &p->arch;
    uint64_t m = p->cap.rows;
    uint64_t at = 0;

    fm_status rc = plan_slots(p, base, &at);
    if (p->kin) {
        borrow(p);
    } else {
        p->xout = fmt_plan_take(base, &at, m * a->hidden);
        p->h = fmt_plan_take(base, &at, m * a->hidden);
        p->act = fmt_plan_take(base, &at, m * widest_inter(p));
        plan_recurrent_work(p, base, &at);
        plan_gated(p, base, &at);
        plan_gradients(p, base, &at);
        plan_head(p, base, &at);
        plan_extras(p, base, &at);
    }
    plan_embed(p, base, &at);
    at = fmt_moe_plan(p, base, at);
    *floats = at;
    return rc;
}

uint64_t fmt_lane_plan(fmt_lane *lane, float *base)
{
    uint64_t at = 0;
    fmt_linear *l;

    for (size_t i = 0; lane->ps && (l = fmt_net_linear(lane->net, i)); i++) {
        uint64_t rows = l == &lane->net->outer[FMT_HEAD] ? lane->most.labels : lane->most.rows;
        for (size_t t = 0; t < l->terms; t++)
            if (l->term[t].b_param >= 0 || l->term[t].made)
                l->term[t].u = fmt_plan_take(base, &at, rows * l->term[t].r);
        if (l->out_scale.param >= 0 || l->dora)
            l->kept = fmt_plan_take(base, &at, rows * l->out);
    }
    return at;
}
