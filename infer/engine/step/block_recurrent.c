/* block_recurrent.c - the recurrent branch of a layer: a product, the recurrence, a product. */
#include "infer/engine/step/step.h"

static const fm_linear *pick_in(const fm_model *m, uint32_t l)
{
    return &m->layers[l].rec->in;
}
static const fm_linear *pick_out(const fm_model *m, uint32_t l)
{
    return &m->layers[l].rec->out;
}

/* The list of layer l's states; without rows. */
static fm_state_rows states_of(const fmi_pass *p, uint32_t l)
{
    const fmi_geom *g = p->g;
    size_t m = p->rows;
    const int32_t *row = p->slots + (size_t)g->here * m,
                  *from = row + m * (1 + 2 * (size_t)g->recur_at[l]);
    return (fm_state_rows){.pages = fmi_kv_view(g->states).k,
                           .page_floats = FM_MAX(fm_recurrence_floats(&g->sw.rec), (size_t)1),
                           .row = row,
                           .from = from,
                           .to = from + m};
}

/* Convolves the rows of neighbouring parts with the same weights; a part has the same places in the
 * list as among the rows. */
static void convolve(fmi_pass *p, uint32_t l, const fm_convolve *all)
{
    for (uint32_t i = 0, j, m; i < p->all.n; i = j) {
        const fm_recurrent *x = p->all.p[i].model->layers[l].rec;
        fm_convolve c = *all;
        uint32_t at = p->all.p[i].begin;
        for (j = i, m = 0; j < p->all.n; j++) {
            const fm_recurrent *y = p->all.p[j].model->layers[l].rec;
            if (y->conv != x->conv || y->conv_b != x->conv_b)
                break;
            m += p->all.p[j].count;
        }
        c.weight = x->conv;
        c.bias = x->conv_b;
        c.rows.row += at;
        c.rows.from += at;
        c.rows.to += at;
        c.rows.m = m;
        p->e->be->convolve(p->e->be, &c);
    }
}

fm_status fmi_recurrent(fmi_pass *p, uint32_t l, float *x, float *y)
{
    const fmi_geom *g = p->g;
    const fm_recurrence *r = &g->sw.rec;
    const fmi_out in = {pick_in, {p->fused, r->in}}, out = {pick_out, {y, g->hidden}};
    FM_TRY(fmi_linears(p, p->all, (fmi_matrix){x, g->hidden}, l, &in, 1));
    const fm_convolve c = {.rows = states_of(p, l),
                           .y = p->att,
                           .ldy = r->inner,
                           .x = p->fused + 2 * (size_t)r->inner,
                           .before = p->fused,
                           .after = p->fused + r->inner,
                           .ldx = r->in,
                           .channels = r->channels,
                           .kernel = r->kernel};
    convolve(p, l, &c);
    return fmi_linears(p, p->all, (fmi_matrix){p->att, r->inner}, l, &out, 1);
}
