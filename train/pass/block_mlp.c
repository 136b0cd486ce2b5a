/* block_mlp.c - the feed-forward branch of a layer, forward and backward: down(f(gate x) * up x),
 * gate and up in one product, or no gate at all. */
#include "train/pass/pass.h"

/* Whether the activation is swiglu on rows that lie one behind another. */
static bool is_swiglu(const fm_switches *sw)
{
    return !sw->plain_mlp && !sw->fused_mlp && sw->act == FM_ACT_SILU;
}

static fm_swiglu swiglu_of(const fmt_pass *p, const fmt_slot *s, uint32_t rows)
{
    return (fm_swiglu){p->act, s->gate, s->up, (uint64_t)rows * p->arch.inter};
}

/* xIELU of the rows of each part, or its gradient. */
static void run_xielu(fmt_pass *p, const fmt_slot *s, fmt_parts ps, uint32_t layer, bool grad)
{
    uint32_t n = p->arch.inter;

    for (uint32_t i = 0; i < ps.n; i++) {
        const float *param = ps.p[i].lane->net->block[layer].xielu;
        size_t at = (size_t)ps.p[i].begin * n;
        uint32_t m = ps.p[i].count;
        if (grad)
            p->be->xielu_grad(p->be, p->dup + at, n, p->dact + at, n, s->up + at, n, param, m, n);
        else
            p->be->xielu(p->be, p->act + at, n, s->up + at, n, param, m, n);
    }
}

static void activate(fmt_pass *p, const fmt_slot *s, fmt_parts ps, uint32_t layer)
{
    uint32_t rows = ps.rows;
    const fm_switches *sw = &p->arch.sw;
    fm_backend *be = p->be;
    uint32_t n = p->arch.inter;

    if (sw->xielu)
        run_xielu(p, s, ps, layer, false);
    else if (sw->plain_mlp)
        be->act(be, sw->act, p->act, n, s->up, n, NULL, 0, rows, n);
    else if (sw->fused_mlp)
        be->act(be, sw->act, p->act, n, s->gate, 2 * (size_t)n, s->up, 2 * (size_t)n, rows, n);
    else if (sw->act == FM_ACT_SILU)
        be->swiglu(be, p->act, s->gate, s->up, (uint64_t)rows * n);
    else
        be->act(be, sw->act, p->act, n, s->gate, n, s->up, n, rows, n);
}

static void activate_grad(fmt_pass *p, const fmt_slot *s, fmt_parts ps, uint32_t layer)
{
    uint32_t rows = ps.rows;
    const fm_switches *sw = &p->arch.sw;
    fm_backend *be = p->be;
    uint32_t n = p->arch.inter;
    size_t two = 2 * (size_t)n;

    if (sw->xielu)
        run_xielu(p, s, ps, layer, true);
    else if (sw->plain_mlp)
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

/* Lists the products that read the branch's input; y is their output or its gradient. */
static uint32_t inputs(const fm_arch *a, fmt_out out[2], float *gate, float *up)
{
    if (a->sw.plain_mlp) {
        out[0] = (fmt_out){FMT_UP, up, a->inter};
        return 1;
    }
    out[0] = (fmt_out){FMT_GATE, gate, a->sw.fused_mlp ? 2 * (size_t)a->inter : a->inter};
    out[1] = (fmt_out){FMT_UP, up, a->inter};
    return a->sw.fused_mlp ? 1 : 2;
}

fm_status fmt_mlp_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *x, float *y)
{
    const fm_arch *a = &p->arch;
    fmt_slot *s = fmt_slot_of(p, layer);
    const fmt_out out = {FMT_DOWN, y, a->hidden};
    fmt_out in[2];
    uint32_t n = inputs(a, in, s->gate, s->up);
    FM_TRY(fmt_linears_forward(p, ps, (int32_t)layer, x, a->hidden, in, n));
    const fm_swiglu made = swiglu_of(p, s, ps.rows);
    if (is_swiglu(&a->sw))
        return fmt_linears_made(p, ps, (int32_t)layer, &made, a->inter, &out);
    activate(p, s, ps, layer);
    return fmt_linears_forward(p, ps, (int32_t)layer, p->act, a->inter, &out, 1);
}

/* Goes from dy to the gradients of gate and up. */
fm_status fmt_mlp_backward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *dy)
{
    const fm_arch *a = &p->arch;
    fmt_slot *s = fmt_slot_of(p, layer);
    const fmt_out out = {FMT_DOWN, (float *)(uintptr_t)dy, a->hidden};

    bool trains = fmt_linears_train(ps, (int32_t)layer, &out, 1);
    const fm_swiglu made = swiglu_of(p, s, ps.rows);

    if (trains && is_swiglu(&a->sw)) { /* cheap to compute again, large to keep */
        FM_TRY(
            fmt_linears_made_grad(p, ps, (int32_t)layer, p->dact, a->inter, &made, a->inter, &out));
    } else {
        if (trains)
            activate(p, s, ps, layer);
        FM_TRY(fmt_linears_grad(p, ps, (int32_t)layer, p->dact, a->inter, false, p->act, a->inter,
                                &out, 1));
    }
    activate_grad(p, s, ps, layer);
    return FM_OK;
}

fm_status fmt_mlp_input_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, float *dh, const float *x)
{
    const fm_arch *a = &p->arch;
    fmt_out in[2];
    uint32_t n = inputs(a, in, p->dgate, p->dup);

    return fmt_linears_grad(p, ps, (int32_t)layer, dh, a->hidden, false, x, a->hidden, in, n);
}

bool fmt_mlp_input_trains(fmt_parts ps, uint32_t layer)
{
    const fmt_out in[] = {{FMT_GATE, NULL, 0}, {FMT_UP, NULL, 0}};
    return fmt_linears_train(ps, (int32_t)layer, in, 2);
}
