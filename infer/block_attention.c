/* block_attention.c - the attention branch of a layer: products, head norms, rotary positions, the
 * cache, attention, the output product. */
#include "infer/step.h"

#include <string.h>

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
static fmi_gain gain_q(const fm_model *m, uint32_t l)
{
    return (fmi_gain){m->layers[l].q_norm, NULL};
}
static fmi_gain gain_k(const fm_model *m, uint32_t l)
{
    return (fmi_gain){m->layers[l].k_norm, NULL};
}

/* q, k and v of all rows; where they lie. */
typedef struct qkv {
    float *q, *k, *v;
    size_t ldq, ldk;
} qkv;

/* Rotate `heads` heads of head_dim; where only the first elements turn, head by head. */
static void rotate(fmi_pass *p, uint32_t l, float *x, size_t ld, uint32_t heads)
{
    fm_backend *be = p->e->be;
    const fm_switches *sw = &p->g->sw;
    uint32_t hd = p->g->head_dim, turns = sw->rotary_dim;
    bool slides = sw->layer[l] & FM_LAYER_SLIDES;
    if (sw->no_rope || (sw->layer[l] & FM_LAYER_NO_ROPE))
        return;
    for (uint32_t i = 0, j; i < p->all.n; i = j) {
        const fmi_part *first = &p->all.p[i];
        const fmi_model_priv *a = fmi_priv(first->model);
        const fmi_rope *r = slides ? a->rope_slide : a->rope;
        uint32_t m = 0;
        for (j = i; j < p->all.n; j++) {
            const fmi_model_priv *b = fmi_priv(p->all.p[j].model);
            if ((slides ? b->rope_slide : b->rope) != r)
                break;
            m += p->all.p[j].count;
        }
        float *rows = x + first->begin * ld;
        const int32_t *pos = p->pos + first->begin;
        if (turns == hd)
            be->rope(be, rows, ld, pos, r->cos, r->sin, m, heads, hd, false);
        for (uint32_t h = 0; turns < hd && h < heads; h++)
            be->rope(be, rows + (size_t)h * hd, ld, pos, r->cos, r->sin, m, 1, turns, false);
    }
}

/* GPT-NeoX's product gives (q, k, v) of one head after another. */
static void deal_heads(fmi_pass *p, const qkv *t)
{
    fm_backend *be = p->e->be;
    uint32_t hd = p->g->head_dim;
    size_t ld = 3 * t->ldq;
    for (uint32_t h = 0; h < p->g->heads; h++) {
        size_t from = (size_t)h * 3 * hd, to = (size_t)h * hd;
        be->copy_rows(be, t->q + to, t->ldq, p->fused + from, ld, NULL, p->m, hd);
        be->copy_rows(be, t->k + to, t->ldk, p->fused + from + hd, ld, NULL, p->m, hd);
        be->copy_rows(be, t->v + to, t->ldk, p->fused + from + 2 * (size_t)hd, ld, NULL, p->m, hd);
    }
}

static fm_status project(fmi_pass *p, uint32_t l, float *x, qkv *t)
{
    const fmi_geom *g = p->g;
    size_t qd = (size_t)g->heads * g->head_dim, kvd = (size_t)g->kv_heads * g->head_dim;
    fm_fused fused = g->sw.fused;
    *t = (qkv){p->q, p->k, p->v, qd, kvd};
    if (fused == FM_FUSED_NONE) {
        const fmi_out all[] = {{pick_q, {t->q, qd}}, {pick_k, {t->k, kvd}}, {pick_v, {t->v, kvd}}};
        return fmi_linears(p, p->all, (fmi_matrix){x, g->hidden}, l, all, 3);
    }
    size_t ld = qd + 2 * kvd;
    const fmi_out one = {pick_q, {p->fused, ld}};
    fm_status rc = fmi_linears(p, p->all, (fmi_matrix){x, g->hidden}, l, &one, 1);
    if (fused == FM_FUSED_QKV)
        *t = (qkv){p->fused, p->fused + qd, p->fused + qd + kvd, ld, ld};
    else if (rc == FM_OK)
        deal_heads(p, t);
    return rc;
}

static void norm_heads(fmi_pass *p, uint32_t l, const qkv *t)
{
    const fmi_geom *g = p->g;
    uint32_t hd = g->head_dim, q = g->heads, k = g->kv_heads;
    if (g->sw.qk == FM_QK_HEAD) {
        fmi_norm(p, p->all, FM_NORM_RMS, gain_q, l, t->q, t->q, q, hd);
        fmi_norm(p, p->all, FM_NORM_RMS, gain_k, l, t->k, t->k, k, hd);
    } else if (g->sw.qk == FM_QK_ALL) {
        fmi_norm(p, p->all, FM_NORM_RMS, gain_q, l, t->q, t->q, 1, q * hd);
        fmi_norm(p, p->all, FM_NORM_RMS, gain_k, l, t->k, t->k, 1, k * hd);
    }
}

fm_status fmi_attention(fmi_pass *p, uint32_t l, float *x, float *y)
{
    fm_backend *be = p->e->be;
    const fmi_geom *g = p->g;
    size_t qd = (size_t)g->heads * g->head_dim;
    qkv t;
    fm_status rc = project(p, l, x, &t);
    if (rc != FM_OK)
        return rc;
    norm_heads(p, l, &t);
    rotate(p, l, t.q, t.ldq, g->heads);
    rotate(p, l, t.k, t.ldk, g->kv_heads);
    fm_kv_view kv = fmi_kv_view(g->pool);
    be->kv_write(be, kv, t.k, t.ldk, t.v, t.ldk, p->slot, p->m, g->kv_heads, g->head_dim);
    const fm_attn att = {.out = p->att,
                         .ldo = qd,
                         .q = t.q,
                         .ldq = t.ldq,
                         .kv = kv,
                         .table = p->table,
                         .table_stride = p->table_stride,
                         .seq = p->seq,
                         .pos = g->sw.encoder ? p->seen : p->pos,
                         .m = p->m,
                         .nh = g->heads,
                         .nkv = g->kv_heads,
                         .hd = g->head_dim,
                         .window = g->sw.layer[l] & FM_LAYER_SLIDES ? g->window : 0,
                         .scale = g->sw.attn_scale,
                         .softcap = g->sw.attn_softcap};
    be->attention(be, &att);
    const fmi_out o = {pick_o, {y, g->hidden}};
    return fmi_linears(p, p->all, (fmi_matrix){p->att, qd}, l, &o, 1);
}
