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

static const fm_linear *pick_x(const fm_model *m, uint32_t l)
{
    return &m->layers[l].rec->x;
}
static const fm_linear *pick_dt(const fm_model *m, uint32_t l)
{
    return &m->layers[l].rec->dt;
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

/* The end of the parts from i on with part i's vectors in the recurrent block; *rows: their rows. */
static uint32_t same_vectors(const fmi_pass *p, uint32_t l, uint32_t i, uint32_t *rows)
{
    const fm_recurrent *x = p->all.p[i].model->layers[l].rec;
    uint32_t j = i;
    for (*rows = 0; j < p->all.n; j++) {
        const fm_recurrent *y = p->all.p[j].model->layers[l].rec;
        if (y->conv != x->conv || y->conv_b != x->conv_b || y->rates != x->rates ||
            y->skip != x->skip || y->dt_b != x->dt_b || y->norm != x->norm)
            break;
        *rows += p->all.p[j].count;
    }
    return j;
}

/* The states of m rows from place `at` of the list on; a part has the same places in the list as
 * among the rows. The scan's state stands behind the convolution's. */
static fm_state_rows part_of(const fmi_pass *p, uint32_t l, uint32_t at, uint32_t m, bool scan)
{
    const fm_recurrence *r = &p->g->sw.rec;
    fm_state_rows s = states_of(p, l);
    s.pages += scan ? (size_t)(r->kernel - 1) * r->channels : 0;
    s.row += at;
    s.from += at;
    s.to += at;
    s.m = m;
    return s;
}

static void convolve(fmi_pass *p, uint32_t l, const fm_convolve *all)
{
    for (uint32_t i = 0, j, m; i < p->all.n; i = j) {
        const fm_recurrent *x = p->all.p[i].model->layers[l].rec;
        fm_convolve c = *all;
        j = same_vectors(p, l, i, &m);
        c.weight = x->conv;
        c.bias = x->conv_b;
        c.rows = part_of(p, l, p->all.p[i].begin, m, false);
        p->e->be->convolve(p->e->be, &c);
    }
}

static void scan(fmi_pass *p, uint32_t l, const fm_scan *all)
{
    for (uint32_t i = 0, j, m; i < p->all.n; i = j) {
        const fm_recurrent *x = p->all.p[i].model->layers[l].rec;
        fm_scan s = *all;
        j = same_vectors(p, l, i, &m);
        s.a_log = x->rates;
        s.d = x->skip;
        s.dt_bias = x->dt_b;
        s.rows = part_of(p, l, p->all.p[i].begin, m, true);
        p->e->be->scan(p->e->be, &s);
    }
}

/* x = norm(x) of each group of inner columns, in place; rows ld apart. */
static void norm_groups(fmi_pass *p, uint32_t l, float *x, size_t ld)
{
    const fm_recurrence *r = &p->g->sw.rec;
    uint32_t wide = r->inner / r->groups;
    for (uint32_t i = 0, j, m; i < p->all.n; i = j) {
        const float *gain = p->all.p[i].model->layers[l].rec->norm;
        float *rows = x + p->all.p[i].begin * ld;
        j = same_vectors(p, l, i, &m);
        for (uint32_t g = 0; g < r->groups; g++)
            p->e->be->rmsnorm(p->e->be, rows + (size_t)g * wide, rows + (size_t)g * wide,
                              gain + (size_t)g * wide, NULL, m, wide, ld, p->g->eps);
    }
}

/* From the first product in p->fused to what the last one reads, [m, inner], in *y. */
static fm_status short_conv(fmi_pass *p, uint32_t l, float **y)
{
    const fm_recurrence *r = &p->g->sw.rec;
    const fm_convolve c = {.y = p->att,
                           .ldy = r->inner,
                           .x = p->fused + 2 * (size_t)r->inner,
                           .before = p->fused,
                           .after = p->fused + r->inner,
                           .ldx = r->in,
                           .channels = r->channels,
                           .kernel = r->kernel};
    convolve(p, l, &c);
    *y = p->att;
    return FM_OK;
}

static fm_convolve silu_conv(const fmi_pass *p, size_t at)
{
    const fm_recurrence *r = &p->g->sw.rec;
    return (fm_convolve){.y = p->mixed,
                         .ldy = r->channels,
                         .x = p->fused + at,
                         .ldx = r->in,
                         .channels = r->channels,
                         .kernel = r->kernel,
                         .silu = true};
}

static fm_scan scan_of(const fmi_pass *p)
{
    const fm_recurrence *r = &p->g->sw.rec;
    return (fm_scan){.y = p->att,
                     .ldy = r->inner,
                     .x = p->mixed,
                     .ldx = r->channels,
                     .heads = r->heads,
                     .hd = r->hd,
                     .groups = r->groups,
                     .n = r->n,
                     .dt_min = r->dt_min,
                     .dt_max = r->dt_max};
}

static fm_status mamba(fmi_pass *p, uint32_t l, float **y)
{
    fm_backend *be = p->e->be;
    const fm_recurrence *r = &p->g->sw.rec;
    size_t wide = r->rank + 2 * (size_t)r->n;
    float *dt = p->steps + wide * p->rows;
    const fmi_out x = {pick_x, {p->steps, wide}}, step = {pick_dt, {dt, r->inner}};
    const fm_convolve c = silu_conv(p, 0);
    fm_scan s = scan_of(p);
    convolve(p, l, &c);
    FM_TRY(fmi_linears(p, p->all, (fmi_matrix){p->mixed, r->inner}, l, &x, 1));
    FM_TRY(fmi_linears(p, p->all, (fmi_matrix){p->steps, wide}, l, &step, 1));
    s.b = p->steps + r->rank;
    s.c = s.b + r->n;
    s.ldb = wide;
    s.dt = dt;
    s.lddt = r->inner;
    s.by_channel = true;
    scan(p, l, &s);
    be->act(be, FM_ACT_SILU, p->mixed, r->inner, p->fused + r->inner, r->in, p->att, r->inner, p->m,
            r->inner);
    *y = p->mixed;
    return FM_OK;
}

static fm_status mamba2(fmi_pass *p, uint32_t l, float **y)
{
    fm_backend *be = p->e->be;
    const fm_recurrence *r = &p->g->sw.rec;
    const fm_convolve c = silu_conv(p, r->inner);
    fm_scan s = scan_of(p);
    convolve(p, l, &c);
    s.b = p->mixed + r->inner;
    s.c = s.b + (size_t)r->groups * r->n;
    s.ldb = r->channels;
    s.dt = p->fused + r->inner + r->channels;
    s.lddt = r->in;
    scan(p, l, &s);
    be->act(be, FM_ACT_SILU, p->mixed, r->inner, p->fused, r->in, p->att, r->inner, p->m, r->inner);
    norm_groups(p, l, p->mixed, r->inner);
    *y = p->mixed;
    return FM_OK;
}

fm_status fmi_recurrent(fmi_pass *p, uint32_t l, float *x, float *y)
{
    static fm_status (*const block[])(fmi_pass *, uint32_t, float **) = {
        [FM_RECURS_CONV] = short_conv, [FM_RECURS_MAMBA] = mamba, [FM_RECURS_MAMBA2] = mamba2};
    const fm_recurrence *r = &p->g->sw.rec;
    const fmi_out in = {pick_in, {p->fused, r->in}}, out = {pick_out, {y, p->g->hidden}};
    float *made = NULL;
    FM_TRY(fmi_linears(p, p->all, (fmi_matrix){x, p->g->hidden}, l, &in, 1));
    FM_TRY(block[r->kind](p, l, &made));
    return fmi_linears(p, p->all, (fmi_matrix){made, r->inner}, l, &out, 1);
}
