/* forward.c - one pass: rows of one shape class through the Llama family.
 *
 * Linear layers go through linears.c, which groups rows by weight. Norms, rotary tables and
 * embeddings go by neighbouring runs with the same pointer, since splitting them costs nothing. */
#include "infer/step.h"

#include <math.h>
#include <string.h>

#include "store/base/mem.h"

typedef const float *(*gain_fn)(const fm_model *m, uint32_t layer);

/* y = rmsnorm(x), each row with its own model's gain; per_row vectors of h to a row. */
static void norm(fmi_pass *p, fmi_parts ps, gain_fn gain, uint32_t layer, float *y, const float *x,
                 uint32_t per_row, uint32_t h)
{
    fm_backend *be = p->e->be;
    for (uint32_t i = 0, j; i < ps.n; i = j) {
        const float *g = gain(ps.p[i].model, layer);
        uint32_t m = 0;
        for (j = i; j < ps.n && gain(ps.p[j].model, layer) == g; j++)
            m += ps.p[j].count;
        size_t at = (size_t)ps.p[i].begin * per_row * h;
        be->rmsnorm(be, y + at, x + at, g, NULL, m * per_row, h, h, p->g->eps);
    }
}

static void rotate(fmi_pass *p, float *x, uint32_t heads)
{
    fm_backend *be = p->e->be;
    uint32_t hd = p->g->head_dim;
    size_t ld = (size_t)heads * hd;
    for (uint32_t i = 0, j; i < p->all.n; i = j) {
        const fmi_part *first = &p->all.p[i];
        const fmi_rope *r = fmi_priv(first->model)->rope;
        uint32_t m = 0;
        for (j = i; j < p->all.n && fmi_priv(p->all.p[j].model)->rope == r; j++)
            m += p->all.p[j].count;
        be->rope(be, x + first->begin * ld, ld, p->pos + first->begin, r->cos, r->sin, m, heads, hd,
                 false);
    }
}

/* ==== forward ==== */

static const fm_linear *pick_q(const fm_model *m, uint32_t l)
{
    return &m->layers[l].q;
}
static const fm_linear *pick_k(const fm_model *m, uint32_t l)
{
    return &m->layers[l].k;
}
static const fm_linear *pick_v(const fm_model *m, uint32_t l)
{
    return &m->layers[l].v;
}
static const fm_linear *pick_o(const fm_model *m, uint32_t l)
{
    return &m->layers[l].o;
}
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
static const fm_linear *pick_head(const fm_model *m, uint32_t l)
{
    (void)l;
    return &m->head;
}
static const float *gain_attn(const fm_model *m, uint32_t l)
{
    return m->layers[l].attn_norm;
}
static const float *gain_mlp(const fm_model *m, uint32_t l)
{
    return m->layers[l].mlp_norm;
}
static const float *gain_q(const fm_model *m, uint32_t l)
{
    return m->layers[l].q_norm;
}
static const float *gain_k(const fm_model *m, uint32_t l)
{
    return m->layers[l].k_norm;
}
static const float *gain_final(const fm_model *m, uint32_t l)
{
    (void)l;
    return m->norm;
}

static void embed(fmi_pass *p)
{
    fm_backend *be = p->e->be;
    size_t h = p->g->hidden;
    for (uint32_t i = 0, j; i < p->all.n; i = j) {
        const fmi_part *first = &p->all.p[i];
        const fm_weight *w = first->model->embed.w;
        uint32_t m = 0;
        for (j = i; j < p->all.n && p->all.p[j].model->embed.w == w; j++)
            m += p->all.p[j].count;
        be->embed(be, p->x + first->begin * h, h, w, p->ids + first->begin, NULL, m);
    }
}

static fm_status attention_block(fmi_pass *p, uint32_t l)
{
    fm_backend *be = p->e->be;
    const fmi_geom *g = p->g;
    size_t qd = (size_t)g->heads * g->head_dim, kvd = (size_t)g->kv_heads * g->head_dim;
    const fmi_out qkv[] = {{pick_q, {p->q, qd}}, {pick_k, {p->k, kvd}}, {pick_v, {p->v, kvd}}};
    norm(p, p->all, gain_attn, l, p->xn, p->x, 1, g->hidden);
    fm_status rc = fmi_linears(p, p->all, (fmi_matrix){p->xn, g->hidden}, l, qkv, 3);
    if (rc != FM_OK)
        return rc;
    if (g->qk_norm) {
        norm(p, p->all, gain_q, l, p->q, p->q, g->heads, g->head_dim);
        norm(p, p->all, gain_k, l, p->k, p->k, g->kv_heads, g->head_dim);
    }
    rotate(p, p->q, g->heads);
    rotate(p, p->k, g->kv_heads);
    fm_kv_view kv = fmi_kv_view(g->pool);
    be->kv_write(be, kv, p->k, kvd, p->v, kvd, p->slot, p->m, g->kv_heads, g->head_dim);
    const fm_attn att = {.out = p->att,
                         .ldo = qd,
                         .q = p->q,
                         .ldq = qd,
                         .kv = kv,
                         .table = p->table,
                         .table_stride = p->table_stride,
                         .seq = p->seq,
                         .pos = p->pos,
                         .m = p->m,
                         .nh = g->heads,
                         .nkv = g->kv_heads,
                         .hd = g->head_dim,
                         .window = g->window,
                         .scale = (float)(1.0 / sqrt((double)g->head_dim))};
    be->attention(be, &att);
    const fmi_out o = {pick_o, {p->o, g->hidden}};
    rc = fmi_linears(p, p->all, (fmi_matrix){p->att, qd}, l, &o, 1);
    if (rc == FM_OK)
        be->add(be, p->x, p->o, (uint64_t)p->m * g->hidden);
    return rc;
}

static fm_status mlp_block(fmi_pass *p, uint32_t l)
{
    fm_backend *be = p->e->be;
    const fmi_geom *g = p->g;
    const fmi_out both[] = {{pick_gate, {p->gate, g->inter}}, {pick_up, {p->up, g->inter}}};
    norm(p, p->all, gain_mlp, l, p->xn, p->x, 1, g->hidden);
    fm_status rc = fmi_linears(p, p->all, (fmi_matrix){p->xn, g->hidden}, l, both, 2);
    if (rc != FM_OK)
        return rc;
    be->swiglu(be, p->gate, p->gate, p->up, (uint64_t)p->m * g->inter);
    const fmi_out down = {pick_down, {p->o, g->hidden}};
    rc = fmi_linears(p, p->all, (fmi_matrix){p->gate, g->inter}, l, &down, 1);
    if (rc == FM_OK)
        be->add(be, p->x, p->o, (uint64_t)p->m * g->hidden);
    return rc;
}

/* Rows of x in the caller's order to whoever listens. */
static fm_status tap(fmi_pass *p, uint32_t layer, const float *x)
{
    fmi_step *s = p->s;
    fm_backend *be = p->e->be;
    uint32_t h = p->g->hidden;
    if (!p->e->tap)
        return FM_OK;
    size_t floats = (size_t)p->m * h;
    fm_status rc = fm_grow(&s->tap_host, &s->tap_floats, 2 * floats, sizeof(float));
    if (rc == FM_OK)
        rc = be->download(be, s->tap_host, x, floats * sizeof(float));
    if (rc != FM_OK)
        return rc;
    float *sorted = s->tap_host + floats;
    const uint32_t *order = s->order + p->row0;
    for (uint32_t i = 0; i < p->m; i++) {
        uint32_t rank = 0; /* of row i among the caller's rows of this fmi_pass */
        for (uint32_t j = 0; j < p->m; j++)
            rank += order[j] < order[i];
        memcpy(sorted + (size_t)rank * h, s->tap_host + (size_t)i * h, h * sizeof(float));
    }
    p->e->tap(p->e->tap_ctx, layer, sorted, p->m, h);
    return FM_OK;
}

static fm_status logits(fmi_pass *p)
{
    fm_backend *be = p->e->be;
    fmi_step *s = p->s;
    uint32_t h = p->g->hidden;
    if (p->w == 0)
        return FM_OK;
    be->copy_rows(be, p->o, h, p->x, h, p->gather, p->w, h);
    norm(p, p->want, gain_final, 0, p->xn, p->o, 1, h);
    const fmi_out head = {pick_head, {s->logits + p->want0 * s->ld, s->ld}};
    return fmi_linears(p, p->want, (fmi_matrix){p->xn, h}, 0, &head, 1);
}

fm_status fmi_forward(fmi_pass *p)
{
    fm_status rc = FM_OK;
    fmi_pass_enter(p, 0);
    if (p->s->given) /* one pass of one sequence: virtual.c */
        rc = p->e->be->upload(p->e->be, p->x, p->s->given,
                              (size_t)p->m * p->g->hidden * sizeof(float));
    else
        embed(p);
    if (rc == FM_OK)
        rc = tap(p, 0, p->x);
    for (uint32_t l = 0; l < p->g->layers && rc == FM_OK; l++) {
        if (l > 0)
            fmi_pass_enter(p, l);
        if (p->m == 0)
            continue;
        rc = attention_block(p, l);
        if (rc == FM_OK)
            rc = mlp_block(p, l);
        if (rc == FM_OK && l + 1 < p->g->layers)
            rc = tap(p, l + 1, p->x);
    }
    fmi_pass_enter(p, p->g->layers);
    if (rc == FM_OK && p->e->tap) {
        norm(p, p->all, gain_final, 0, p->xn, p->x, 1, p->g->hidden);
        rc = tap(p, p->g->layers, p->xn);
    }
    return rc == FM_OK ? logits(p) : rc;
}
