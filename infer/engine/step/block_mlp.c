/* block_mlp.c - the feed-forward branch of a layer. */
#include "infer/engine/step/step.h"

static const fm_linear *pick_gate(const fm_model *m, uint32_t l)
{
    return &m->layers[l].gate;
}
static const fm_linear *pick_up(const fm_model *m, uint32_t l)
{
    return &m->layers[l].up;
}
static const fm_linear *pick_down(const fm_model *m, uint32_t l)
{
    return &m->layers[l].down;
}

static fmi_gain sub_norm(const fm_model *m, uint32_t l)
{
    return (fmi_gain){m->layers[l].mlp_sub, NULL};
}

/* xIELU of up's rows, by neighbouring runs with the same numbers. */
static void run_xielu(fmi_pass *p, uint32_t l)
{
    fm_backend *be = p->e->be;
    uint32_t n = p->g->inter;
    for (uint32_t i = 0, j, m; i < p->all.n; i = j) {
        const float *param = p->all.p[i].model->layers[l].xielu;
        size_t at = (size_t)p->all.p[i].begin * n;
        for (j = i, m = 0; j < p->all.n && p->all.p[j].model->layers[l].xielu == param; j++)
            m += p->all.p[j].count;
        be->xielu(be, p->gate + at, n, p->up + at, n, param, m, n);
    }
}

/* down(f(gate x) * up x); gate and up may be one product, or there is no gate. */
fm_status fmi_mlp(fmi_pass *p, uint32_t l, float *x, float *y)
{
    fm_backend *be = p->e->be;
    const fmi_geom *g = p->g;
    const fm_switches *sw = &g->sw;
    uint32_t inter = fm_layer_inter(sw, g->inter, l);
    fmi_matrix in = {x, g->hidden}, mid = {p->gate, inter};
    const fmi_out both[] = {{pick_gate, {p->gate, inter}}, {pick_up, {p->up, inter}}};
    const fmi_out fused = {pick_gate, {p->gate, 2 * (size_t)inter}};
    const fmi_out down = {pick_down, {y, g->hidden}};
    FM_TRY(sw->plain_mlp   ? fmi_linears(p, p->all, in, l, &both[1], 1)
           : sw->fused_mlp ? fmi_linears(p, p->all, in, l, &fused, 1)
                           : fmi_linears(p, p->all, in, l, both, 2));
    if (sw->xielu) {
        run_xielu(p, l);
    } else if (sw->plain_mlp) {
        be->act(be, sw->act, p->gate, inter, p->up, inter, NULL, 0, p->m, inter);
    } else if (sw->fused_mlp) {
        be->act(be, sw->act, p->up, inter, p->gate, 2 * (size_t)inter, p->gate + inter,
                2 * (size_t)inter, p->m, inter);
        mid.p = p->up;
    } else if (sw->act == FM_ACT_SILU) {
        be->swiglu(be, p->gate, p->gate, p->up, (uint64_t)p->m * inter);
    } else {
        be->act(be, sw->act, p->gate, inter, p->gate, inter, p->up, inter, p->m, inter);
    }
    if (sw->sub_norms)
        fmi_norm(p, p->all, sw->norm, sub_norm, l, mid.p, mid.p, 1, g->inter);
    return fmi_linears(p, p->all, mid, l, &down, 1);
}
