/* block_mlp.c - the feed-forward branch of a layer, forward and backward: down(f(gate x) * up x),
 * gate and up in one product, or no gate at all. */
#include "train/pass/pass.h"

/* The activation is swiglu's, of rows that lie one behind the other. */
static bool is_swiglu(const fm_switches *sw)
{
    return !sw->plain_mlp && !sw->fused_mlp && sw->act == FM_ACT_SILU;
}

static fm_swiglu swiglu_of(const fmi_pass *p, const fmi_slot *s, uint32_t rows)
{
    return (fm_swiglu){p->act, s->gate, s->up, (uint64_t)rows * p->arch.inter};
}

static void activate(fmi_pass *p, const fmi_slot *s, uint32_t rows)
{
    const fm_switches *sw = &p->arch.sw;
    fm_backend *be = p->be;
    uint32_t n = p->arch.inter;

    if (sw->plain_mlp)
        be->act(be, sw->act, p->act, n, s->up, n, NULL, 0, rows, n);
    else if (sw->fused_mlp)
        be->act(be, sw->act, p->act, n, s->gate, 2 * (size_t)n, s->up, 2 * (size_t)n, rows, n);
    else if (sw->act == FM_ACT_SILU)
        be->swiglu(be, p->act, s->gate, s->up, (uint64_t)rows * n);
    else
        be->act(be, sw->act, p->act, n, s->gate, n, s->up, n, rows, n);
}

static void activate_grad(fmi_pass *p, const fmi_slot *s, uint32_t rows)
{
    const fm_switches *sw = &p->arch.sw;
    fm_backend *be = p->be;
    uint32_t n = p->arch.inter;
    size_t two = 2 * (size_t)n;

    if (sw->plain_mlp)
        be->act_grad(be, sw->act, p->dup, n, NULL, 0, p->dact, n, s->up, n, NULL, 0, rows, n);
    else if (sw->fused_mlp)
        be->act_grad(be, sw->act, p->dgate, two, p->dgate + n, two, p->dact, n, s->gate, two, s->up,
                     two, rows, n);
    else if (sw->act == FM_ACT_SILU)
        be->swiglu_grad(be, p->dgate, p->dup, p->dact, s->gate, s->up, (uint64_t)rows * n);
    else
        be->act_grad(be, sw->act, p->dgate, n, p->dup, n, p->dact, n, s->gate, n, s->up, n, rows,
                     n);
}

/* The products that read the branch's input, with y of the forward or of the gradient. */
static uint32_t inputs(const fm_arch *a, fmi_out out[2], float *gate, float *up)
{
    if (a->sw.plain_mlp) {
        out[0] = (fmi_out){FMI_UP, up, a->inter};
        return 1;
    }
    out[0] = (fmi_out){FMI_GATE, gate, a->sw.fused_mlp ? 2 * (size_t)a->inter : a->inter};
    out[1] = (fmi_out){FMI_UP, up, a->inter};
    return a->sw.fused_mlp ? 1 : 2;
}

fm_status fmi_mlp_forward(fmi_pass *p, fmi_parts ps, uint32_t layer, const float *x, float *y)
{
    const fm_arch *a = &p->arch;
    fmi_slot *s = fmi_slot_of(p, layer);
    const fmi_out out = {FMI_DOWN, y, a->hidden};
    fmi_out in[2];
    uint32_t n = inputs(a, in, s->gate, s->up);
    fm_status rc = fmi_linears_forward(p, ps, (int32_t)layer, x, a->hidden, in, n);

    if (rc < 0)
        return rc;
    const fm_swiglu made = swiglu_of(p, s, ps.rows);
    if (is_swiglu(&a->sw))
        return fmi_linears_made(p, ps, (int32_t)layer, &made, a->inter, &out);
    activate(p, s, ps.rows);
    return fmi_linears_forward(p, ps, (int32_t)layer, p->act, a->inter, &out, 1);
}

/* dy -> gradients of gate and up. */
fm_status fmi_mlp_backward(fmi_pass *p, fmi_parts ps, uint32_t layer, const float *dy)
{
    const fm_arch *a = &p->arch;
    fmi_slot *s = fmi_slot_of(p, layer);
    const fmi_out out = {FMI_DOWN, (float *)(uintptr_t)dy, a->hidden};

    bool trains = fmi_linears_train(ps, (int32_t)layer, &out, 1);
    const fm_swiglu made = swiglu_of(p, s, ps.rows);
    fm_status rc;
    if (trains && is_swiglu(&a->sw)) { /* cheap to make, large to keep */
        rc = fmi_linears_made_grad(p, ps, (int32_t)layer, p->dact, a->inter, &made, a->inter, &out);
    } else {
        if (trains)
            activate(p, s, ps.rows);
        rc = fmi_linears_grad(p, ps, (int32_t)layer, p->dact, a->inter, false, p->act, a->inter,
                              &out, 1);
    }
    if (rc == FM_OK)
        activate_grad(p, s, ps.rows);
    return rc;
}

fm_status fmi_mlp_input_grad(fmi_pass *p, fmi_parts ps, uint32_t layer, float *dh, const float *x)
{
    const fm_arch *a = &p->arch;
    fmi_out in[2];
    uint32_t n = inputs(a, in, p->dgate, p->dup);

    return fmi_linears_grad(p, ps, (int32_t)layer, dh, a->hidden, false, x, a->hidden, in, n);
}

bool fmi_mlp_input_trains(fmi_parts ps, uint32_t layer)
{
    const fmi_out in[] = {{FMI_GATE, NULL, 0}, {FMI_UP, NULL, 0}};
    return fmi_linears_train(ps, (int32_t)layer, in, 2);
}
