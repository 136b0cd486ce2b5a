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
static const fm_linear *pick_z(const fm_model *m, uint32_t l)
{
    return &m->layers[l].rec->z;
}
static const fm_linear *pick_beta(const fm_model *m, uint32_t l)
{
    return &m->layers[l].rec->beta;
}
static const fm_linear *pick_alpha(const fm_model *m, uint32_t l)
{
    return &m->layers[l].rec->alpha;
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

/* The end of the parts from i on with part i's vectors in the recurrent block; *rows: theirs. */
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
    if (r->norm_first)
        norm_groups(p, l, p->att, r->inner);
    be->act(be, FM_ACT_SILU, p->mixed, r->inner, p->fused, r->in, p->att, r->inner, p->m, r->inner);
    if (!r->norm_first && !r->bare)
        norm_groups(p, l, p->mixed, r->inner);
    *y = p->mixed;
    return FM_OK;
}

static void delta(fmi_pass *p, uint32_t l, const fm_delta *all)
{
    for (uint32_t i = 0, j, m; i < p->all.n; i = j) {
        const fm_recurrent *x = p->all.p[i].model->layers[l].rec;
        fm_delta d = *all;
        j = same_vectors(p, l, i, &m);
        d.a_log = x->rates;
        d.dt_bias = x->dt_b;
        d.rows = part_of(p, l, p->all.p[i].begin, m, true);
        p->e->be->delta(p->e->be, &d);
    }
}

/* att = norm(att), head by head. */
static void norm_heads(fmi_pass *p, uint32_t l)
{
    const fm_recurrence *r = &p->g->sw.rec;
    for (uint32_t i = 0, j, m; i < p->all.n; i = j) {
        float *rows = p->att + p->all.p[i].begin * (size_t)r->inner;
        const float *gain = p->all.p[i].model->layers[l].rec->norm;
        j = same_vectors(p, l, i, &m);
        p->e->be->rmsnorm(p->e->be, rows, rows, gain, NULL, m * r->heads, r->hd, r->hd, p->g->eps);
    }
}

/* Where the products of a delta layer lie: what the convolution reads, z, b and a. */
typedef struct dealt {
    float *qkv, *z, *b, *a;
    size_t ldqkv;
} dealt;

/* Splits products that have (q, k, v.., z..) and (b.., a..) of one group after another. */
static void deal_groups(fmi_pass *p, const dealt *t, const float *ba)
{
    fm_backend *be = p->e->be;
    const fm_recurrence *r = &p->g->sw.rec;
    uint32_t share = r->heads / r->groups, wide = share * r->hd;
    size_t keys = (size_t)r->groups * r->n;
    for (size_t g = 0; g < r->groups; g++) {
        const float *from = p->fused + g * (2 * (size_t)r->n + 2 * (size_t)wide);
        const float *gates = ba + 2 * g * share;
        const struct {
            float *to;
            size_t ld;
            const float *from;
            uint32_t n;
        } part[] = {{t->qkv + g * r->n, t->ldqkv, from, r->n},
                    {t->qkv + keys + g * r->n, t->ldqkv, from + r->n, r->n},
                    {t->qkv + 2 * keys + g * wide, t->ldqkv, from + 2 * (size_t)r->n, wide},
                    {t->z + g * wide, r->inner, from + 2 * (size_t)r->n + wide, wide}};
        for (size_t i = 0; i < FM_ARRAY_LEN(part); i++)
            be->copy_rows(be, part[i].to, part[i].ld, part[i].from, r->in, NULL, p->m, part[i].n);
        be->copy_rows(be, t->b + g * share, r->heads, gates, 2 * (size_t)r->heads, NULL, p->m,
                      share);
        be->copy_rows(be, t->a + g * share, r->heads, gates + share, 2 * (size_t)r->heads, NULL,
                      p->m, share);
    }
}

static fm_status delta_products(fmi_pass *p, uint32_t l, float *x, dealt *t)
{
    const fm_recurrence *r = &p->g->sw.rec;
    size_t rows = p->rows;
    *t = (dealt){.qkv = p->fused, .ldqkv = r->in, .z = p->steps};
    t->b = t->z + rows * r->inner;
    t->a = t->b + rows * r->heads;
    float *ba = t->a + rows * r->heads;
    const fmi_out apart[] = {{pick_in, {p->fused, r->in}},
                             {pick_z, {t->z, r->inner}},
                             {pick_beta, {t->b, r->heads}},
                             {pick_alpha, {t->a, r->heads}}};
    const fmi_out groups[] = {{pick_in, {p->fused, r->in}},
                              {pick_beta, {ba, 2 * (size_t)r->heads}}};
    const fmi_matrix in = {x, p->g->hidden};
    if (!r->by_groups)
        return fmi_linears(p, p->all, in, l, apart, 4);
    FM_TRY(fmi_linears(p, p->all, in, l, groups, 2));
    t->qkv = p->fused + rows * r->in;
    t->ldqkv = r->channels;
    deal_groups(p, t, ba);
    return FM_OK;
}

static fm_status delta_rule(fmi_pass *p, uint32_t l, float *x, float **y)
{
    fm_backend *be = p->e->be;
    const fm_recurrence *r = &p->g->sw.rec;
    size_t keys = (size_t)r->groups * r->n;
    dealt t;
    FM_TRY(delta_products(p, l, x, &t));
    fm_convolve c = silu_conv(p, 0);
    c.x = t.qkv;
    c.ldx = t.ldqkv;
    convolve(p, l, &c);
    const fm_delta d = {.y = p->att,
                        .ldy = r->inner,
                        .q = p->mixed,
                        .k = p->mixed + keys,
                        .v = p->mixed + 2 * keys,
                        .ldx = r->channels,
                        .a = t.a,
                        .b = t.b,
                        .lda = r->heads,
                        .hk = r->groups,
                        .hv = r->heads,
                        .dk = r->n,
                        .dv = r->hd};
    delta(p, l, &d);
    norm_heads(p, l);
    be->act(be, FM_ACT_SILU, p->mixed, r->inner, t.z, r->inner, p->att, r->inner, p->m, r->inner);
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
    if (r->kind == FM_RECURS_DELTA) {
        FM_TRY(delta_rule(p, l, x, &made));
    } else {
        FM_TRY(fmi_linears(p, p->all, (fmi_matrix){x, p->g->hidden}, l, &in, 1));
        FM_TRY(block[r->kind](p, l, &made));
    }
    return fmi_linears(p, p->all, (fmi_matrix){made, r->inner}, l, &out, 1);
}
