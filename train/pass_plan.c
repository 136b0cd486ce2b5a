/* pass_plan.c - what a pass holds: one table of sizes, walked twice (to measure, then to carve). */
#include "train/pass.h"

static float *take(float *base, uint64_t *at, uint64_t n)
{
    float *p = base ? base + *at : NULL;
    *at += (n + 15u) & ~(uint64_t)15u;
    return p;
}

/* Everything of a layer but its input. */
static void plan_slot(fmi_slot *s, float *base, uint64_t *at, const fm_arch *a, uint64_t m)
{
    uint64_t q = (uint64_t)a->heads * a->head_dim;
    uint64_t kv = (uint64_t)a->kv_heads * a->head_dim;

    s->rstd1 = take(base, at, m);
    s->q = take(base, at, m * q);
    s->k = take(base, at, m * kv);
    s->v = take(base, at, m * kv);
    if (a->qk_norm) {
        s->qraw = take(base, at, m * q);
        s->kraw = take(base, at, m * kv);
        s->qrstd = take(base, at, m * a->heads);
        s->krstd = take(base, at, m * a->kv_heads);
    }
    s->attn = take(base, at, m * q);
    s->lse = take(base, at, m * a->heads);
    s->xmid = take(base, at, m * a->hidden);
    s->rstd2 = take(base, at, m);
    s->gate = take(base, at, m * a->inter);
    s->up = take(base, at, m * a->inter);
}

static void one_slot(const void *ctx, fmi_slot *s, float *base, uint64_t *at, uint64_t m)
{
    plan_slot(s, base, at, ctx, m);
}

/* Some rows are saved by fewer layers than others. Experts' rows stand in another order. */
static bool shares(const fmi_pass *p, uint32_t slots)
{
    return !p->recompute && slots > 1 && p->arch.sw.experts == 0 && p->saved[0] < p->cap.rows;
}

static fm_status plan_slots(fmi_pass *p, float *base, uint64_t *at)
{
    const fm_arch *a = &p->arch;
    uint32_t slots = FM_MAX(a->layers - p->lowest, 1u);
    uint64_t m = p->cap.rows;

    if (shares(p, slots)) {
        fm_status rc = fmi_plan_shared(p, slots, base, at, one_slot, a);
        for (uint32_t i = 0; i < slots; i++)
            p->slot[i].xin = take(base, at, m * a->hidden);
        return rc;
    }
    for (uint32_t i = 0; i < slots; i++) {
        if (i > 0 && p->recompute)
            p->slot[i] = p->slot[0];
        else
            plan_slot(&p->slot[i], base, at, a, m);
        p->slot[i].xin = take(base, at, m * a->hidden);
    }
    return FM_OK;
}

static void plan_gradients(fmi_pass *p, float *base, uint64_t *at)
{
    const fm_arch *a = &p->arch;
    uint64_t m = p->cap.rows;
    uint64_t q = (uint64_t)a->heads * a->head_dim;
    uint64_t kv = (uint64_t)a->kv_heads * a->head_dim;

    p->du = take(base, at, p->du_floats);
    if (p->frozen)
        return;
    p->dx = take(base, at, m * a->hidden);
    p->dh = take(base, at, m * a->hidden);
    p->dact = take(base, at, m * a->inter);
    p->dgate = take(base, at, m * a->inter);
    p->dup = take(base, at, m * a->inter);
    p->dattn = take(base, at, m * q);
    p->dq = take(base, at, m * q);
    p->dqraw = a->qk_norm ? take(base, at, m * q) : p->dq;
    p->dk = take(base, at, m * kv);
    p->dkraw = a->qk_norm ? take(base, at, m * kv) : p->dk;
    p->dv = take(base, at, m * kv);
}

fm_status fmi_pass_plan(fmi_pass *p, float *base, uint64_t *floats)
{
    const fm_arch *a = &p->arch;
    uint64_t m = p->cap.rows;
    uint64_t r = p->cap.labels;
    uint64_t at = 0;

    fm_status rc = plan_slots(p, base, &at);
    p->xout = take(base, &at, m * a->hidden);
    p->h = take(base, &at, m * a->hidden);
    p->act = take(base, &at, m * a->inter);
    plan_gradients(p, base, &at);
    p->xl = take(base, &at, r * a->hidden);
    p->hl = take(base, &at, (r + 1) * a->hidden);
    p->rstdl = take(base, &at, r);
    p->dl = take(base, &at, r * a->hidden);
    p->logits = take(base, &at, (uint64_t)p->chunk * a->vocab);
    p->taught = p->taught_rows ? take(base, &at, (uint64_t)p->chunk * a->vocab) : NULL;
    p->capped = a->sw.logit_softcap > 0.0f ? take(base, &at, (uint64_t)p->chunk * a->vocab) : NULL;
    p->loss = take(base, &at, r);
    p->cos = take(base, &at, (uint64_t)p->cap.longest * (a->head_dim / 2));
    p->sin = take(base, &at, (uint64_t)p->cap.longest * (a->head_dim / 2));
    *floats = at;
    return rc;
}

uint64_t fmi_lane_plan(fmi_lane *lane, float *base)
{
    uint64_t at = 0;
    fmi_linear *l;

    for (size_t i = 0; lane->ps && (l = fmi_net_linear(lane->net, i)); i++) {
        uint64_t rows = l == &lane->net->outer[FMI_HEAD] ? lane->most.labels : lane->most.rows;
        for (size_t t = 0; t < l->terms; t++)
            if (l->term[t].b_param >= 0)
                l->term[t].u = take(base, &at, rows * l->term[t].r);
    }
    return at;
}
