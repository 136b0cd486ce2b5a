/* block_attention.c - the attention branch of a layer: products, head norms, rotary positions, the
 * cache, attention, the output product. */
#include "infer/engine/step/step.h"

#include "infer/model/fixed.h"

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

static fmi_gain gain_v(const fm_model *m, uint32_t l)
{
    (void)l;
    return (fmi_gain){m->ones, NULL};
}

/* Where q, k and v of all rows lie. */
typedef struct qkv {
    float *q, *k, *v;
    size_t ldq, ldk;
} qkv;

static const fmi_rope *rope_of(const fmi_pass *p, uint32_t l, uint32_t part)
{
    const fmi_model_priv *m = fmi_priv(p->all.p[part].model);
    return p->g->sw.layer[l] & FM_LAYER_SLIDES ? m->rope_slide : m->rope;
}

/* The end of the parts from i on that have part i's rotary table; *rows: their rows. */
static uint32_t same_rope(const fmi_pass *p, uint32_t l, uint32_t i, uint32_t *rows)
{
    uint32_t j = i;
    for (*rows = 0; j < p->all.n && rope_of(p, l, j) == rope_of(p, l, i); j++)
        *rows += p->all.p[j].count;
    return j;
}

static uint32_t head_dim(const fmi_pass *p, uint32_t l)
{
    return fm_layer_head_dim(&p->g->sw, p->g->head_dim, l);
}
static uint32_t kv_heads(const fmi_pass *p, uint32_t l)
{
    return fm_layer_kv_heads(&p->g->sw, p->g->kv_heads, l);
}
static uint32_t turns_of(const fmi_pass *p, uint32_t l)
{
    const fm_switches *sw = &p->g->sw;
    return sw->full_head_dim && fm_layer_is_full(sw, l) ? sw->full_head_dim : sw->rotary_dim;
}

/* Rotates `heads` heads of head_dim; where only the first elements turn, head by head. */
static void rotate(fmi_pass *p, uint32_t l, float *x, size_t ld, uint32_t heads)
{
    fm_backend *be = p->e->be;
    uint32_t hd = head_dim(p, l), turns = turns_of(p, l);
    bool pairs = p->g->sw.pairs;
    for (uint32_t i = 0, j, m; i < p->all.n; i = j) {
        const fmi_rope *r = rope_of(p, l, i);
        j = same_rope(p, l, i, &m);
        float *rows = x + p->all.p[i].begin * ld;
        const int32_t *pos = p->pos + p->all.p[i].begin;
        if (turns == hd)
            be->rope(be, rows, ld, pos, r->cos, r->sin, m, heads, hd, pairs, false);
        for (uint32_t h = 0; turns < hd && h < heads; h++)
            be->rope(be, rows + (size_t)h * hd, ld, pos, r->cos, r->sin, m, 1, turns, pairs, false);
    }
}

void fmi_rotate(fmi_pass *p, uint32_t l, float *x, size_t ld, uint32_t turns)
{
    fm_backend *be = p->e->be;
    for (uint32_t i = 0, j, m; i < p->all.n; i = j) {
        const fmi_rope *r = rope_of(p, l, i);
        size_t at = p->all.p[i].begin;
        j = same_rope(p, l, i, &m);
        be->rope(be, x + at * ld, ld, p->pos + at, r->cos, r->sin, m, 1, turns, p->g->sw.pairs,
                 false);
    }
}

/* Multiplies queries by what their positions say: pairs that turn by nothing are made longer. */
static void grow(fmi_pass *p, uint32_t l, const qkv *t)
{
    fm_backend *be = p->e->be;
    uint32_t pairs = p->g->heads * p->g->head_dim / 2;
    for (uint32_t i = 0; fm_layer_grows(&p->g->sw, l) && i < p->all.n; i++) {
        const fmi_rope *r = fmi_priv(p->all.p[i].model)->grow;
        size_t at = p->all.p[i].begin;
        be->rope(be, t->q + at * t->ldq, t->ldq, p->pos + at, r->cos, r->sin, p->all.p[i].count,
                 pairs, 2, false, false);
    }
}

/* Splits a fused product that has (q.., k, v) of one head of keys after another. */
static void deal_heads(fmi_pass *p, const qkv *t)
{
    fm_backend *be = p->e->be;
    uint32_t hd = p->g->head_dim, qd = p->g->heads / p->g->kv_heads * hd;
    size_t ld = t->ldq + 2 * t->ldk;
    for (uint32_t h = 0; h < p->g->kv_heads; h++) {
        const float *from = p->fused + (size_t)h * (qd + 2 * hd);
        size_t to = (size_t)h * hd;
        be->copy_rows(be, t->q + (size_t)h * qd, t->ldq, from, ld, NULL, p->m, qd);
        be->copy_rows(be, t->k + to, t->ldk, from + qd, ld, NULL, p->m, hd);
        be->copy_rows(be, t->v + to, t->ldk, from + qd + hd, ld, NULL, p->m, hd);
    }
}

/* Splits a product that has (query, gate) of each head. */
static fm_status project_gated(fmi_pass *p, uint32_t l, float *x, const qkv *t)
{
    fm_backend *be = p->e->be;
    uint32_t hd = p->g->head_dim;
    size_t ld = 2 * t->ldq;
    const fmi_out all[] = {
        {pick_q, {p->fused, ld}}, {pick_k, {t->k, t->ldk}}, {pick_v, {t->v, t->ldk}}};
    FM_TRY(fmi_linears(p, p->all, (fmi_matrix){x, p->g->hidden}, l, all, 3));
    for (size_t h = 0; h < p->g->heads; h++) {
        const float *from = p->fused + 2 * h * hd;
        be->copy_rows(be, t->q + h * hd, t->ldq, from, ld, NULL, p->m, hd);
        be->copy_rows(be, p->steps + h * hd, t->ldq, from + hd, ld, NULL, p->m, hd);
    }
    return FM_OK;
}

static fm_status project(fmi_pass *p, uint32_t l, float *x, qkv *t)
{
    const fmi_geom *g = p->g;
    size_t qd = (size_t)g->heads * head_dim(p, l), kvd = (size_t)kv_heads(p, l) * head_dim(p, l);
    fm_fused fused = g->sw.fused;
    bool k_is_v = g->sw.full_k_is_v && fm_layer_is_full(&g->sw, l);
    *t = (qkv){p->q, p->k, p->v, qd, kvd};
    if (g->sw.attn_gate)
        return project_gated(p, l, x, t);
    if (fused == FM_FUSED_NONE) {
        const fmi_out all[] = {{pick_q, {t->q, qd}}, {pick_k, {t->k, kvd}}, {pick_v, {t->v, kvd}}};
        FM_TRY(fmi_linears(p, p->all, (fmi_matrix){x, g->hidden}, l, all, k_is_v ? 2 : 3));
        if (k_is_v)
            p->e->be->copy_rows(p->e->be, t->v, kvd, t->k, kvd, NULL, p->m, (uint32_t)kvd);
        return FM_OK;
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
    uint32_t hd = head_dim(p, l), q = g->heads, k = kv_heads(p, l);
    if (g->sw.v_norm)
        fmi_norm(p, p->all, FM_NORM_RMS, gain_v, l, t->v, t->v, k, hd);
    if (g->sw.qk_bare && (g->sw.layer[l] & FM_LAYER_NO_ROPE))
        return;
    if (g->sw.qk == FM_QK_HEAD) {
        fmi_norm(p, p->all, FM_NORM_RMS, gain_q, l, t->q, t->q, q, hd);
        fmi_norm(p, p->all, FM_NORM_RMS, gain_k, l, t->k, t->k, k, hd);
    } else if (g->sw.qk == FM_QK_ALL) {
        fmi_norm(p, p->all, FM_NORM_RMS, gain_q, l, t->q, t->q, 1, q * hd);
        fmi_norm(p, p->all, FM_NORM_RMS, gain_k, l, t->k, t->k, 1, k * hd);
    }
}

/* Rotates q and k, and writes k and v to their pages. */
static void keep(fmi_pass *p, uint32_t l, const qkv *t, fm_kv_view kv)
{
    fm_backend *be = p->e->be;
    const fmi_geom *g = p->g;
    bool turns = !g->sw.no_rope && !(g->sw.layer[l] & FM_LAYER_NO_ROPE);
    bool at_once = turns && be->keep_rows && !g->sw.pairs && !g->sw.qk_after;
    for (uint32_t i = 0, j, m; at_once && i < p->all.n; i = j) {
        const fmi_rope *r = rope_of(p, l, i);
        size_t at = p->all.p[i].begin;
        j = same_rope(p, l, i, &m);
        const fm_new_rows rows = {.kv = kv,
                                  .q = t->q + at * t->ldq,
                                  .ldq = t->ldq,
                                  .k = t->k + at * t->ldk,
                                  .ldk = t->ldk,
                                  .v = t->v + at * t->ldk,
                                  .ldv = t->ldk,
                                  .slot = p->slot + at,
                                  .pos = p->pos + at,
                                  .cos = r->cos,
                                  .sin = r->sin,
                                  .m = m,
                                  .nh = g->heads,
                                  .nkv = kv_heads(p, l),
                                  .hd = head_dim(p, l),
                                  .turns = turns_of(p, l)};
        be->keep_rows(be, &rows);
    }
    if (at_once)
        return;
    if (turns) {
        rotate(p, l, t->q, t->ldq, g->heads);
        rotate(p, l, t->k, t->ldk, kv_heads(p, l));
    }
    if (g->sw.qk_after)
        norm_heads(p, l, t);
    be->kv_write(be, kv, t->k, t->ldk, t->v, t->ldk, p->slot, p->m, kv_heads(p, l), head_dim(p, l));
}

/* The end of the parts from i on that have part i's sinks and biases; *rows: their rows. */
static uint32_t attends_alike(const fmi_pass *p, uint32_t l, uint32_t i, uint32_t *rows)
{
    const fm_model *m = p->all.p[i].model;
    uint32_t j = i;
    for (*rows = 0; j < p->all.n; j++) {
        const fm_model *o = p->all.p[j].model;
        if (o->near != m->near || o->layers[l].sinks != m->layers[l].sinks)
            break;
        *rows += p->all.p[j].count;
    }
    return j;
}

/* One call, or where models have other sinks or biases one for each of these. */
static void attend(fmi_pass *p, uint32_t l, const fm_attn *all)
{
    fm_backend *be = p->e->be;
    for (uint32_t i = 0, j, m; i < p->all.n; i = j) {
        const fm_model *model = p->all.p[i].model;
        size_t at = p->all.p[i].begin;
        j = attends_alike(p, l, i, &m);
        fm_attn a = *all;
        a.out += at * a.ldo;
        a.q += at * a.ldq;
        a.seq += at;
        a.pos += at;
        a.own = a.own ? a.own + at : NULL;
        a.first = a.first ? a.first + at : NULL;
        a.m = m;
        a.sink = model->layers[l].sinks;
        a.bias = model->near;
        be->attention(be, &a);
    }
}

/* Sets t's queries in a layer that reads the keys and values of another. */
static fm_status queries_alone(fmi_pass *p, uint32_t l, float *x, qkv *t)
{
    uint32_t hd = head_dim(p, l), heads = p->g->heads;
    size_t qd = (size_t)heads * hd;
    const fmi_out out = {pick_q, {p->q, qd}};
    *t = (qkv){.q = p->q, .ldq = qd};
    FM_TRY(fmi_linears(p, p->all, (fmi_matrix){x, p->g->hidden}, l, &out, 1));
    if (p->g->sw.qk == FM_QK_HEAD)
        fmi_norm(p, p->all, FM_NORM_RMS, gain_q, l, t->q, t->q, heads, hd);
    rotate(p, l, t->q, qd, heads);
    return FM_OK;
}

/* Sets t, and writes keys and values to their pages. */
static fm_status prepare(fmi_pass *p, uint32_t l, float *x, qkv *t, fm_kv_view kv)
{
    fm_backend *be = p->e->be;
    const fmi_geom *g = p->g;
    if (g->sw.kv_rank) {
        size_t wide = (size_t)g->heads * g->head_dim;
        *t = (qkv){p->q, p->k, p->v, wide, wide};
        FM_TRY(fmi_latent(p, l, x));
        be->kv_write(be, kv, t->k, wide, t->v, wide, p->slot, p->m, g->kv_heads, g->head_dim);
        return FM_OK;
    }
    if (!fm_layer_keeps(&g->sw, l))
        return queries_alone(p, l, x, t);
    FM_TRY(project(p, l, x, t));
    if (!g->sw.qk_after)
        norm_heads(p, l, t);
    keep(p, l, t, kv);
    grow(p, l, t);
    return FM_OK;
}

static fmi_gain sub_norm(const fm_model *m, uint32_t l)
{
    return (fmi_gain){m->layers[l].attn_sub, NULL};
}

fm_status fmi_attention(fmi_pass *p, uint32_t l, float *x, float *y)
{
    fm_backend *be = p->e->be;
    const fmi_geom *g = p->g;
    size_t qd = (size_t)g->heads * head_dim(p, l);
    uint32_t from_layer = fm_layer_kv_of(&g->sw, l) - g->begin;
    fm_kv_view kv = fmi_kv_view(fmi_pool_at(g, l));
    bool slides = g->sw.layer[l] & FM_LAYER_SLIDES, both = g->sw.encoder && slides && g->window;
    bool chunk = g->sw.chunk && slides;
    const fm_arch *arch = &p->all.p[0].model->arch;
    qkv t;
    FM_TRY(prepare(p, l, x, &t, kv));
    const fm_attn att = {.out = p->att,
                         .ldo = qd,
                         .q = t.q,
                         .ldq = t.ldq,
                         .kv = kv,
                         .table = p->tables + (size_t)from_layer * p->seqs * p->table_stride,
                         .table_stride = p->table_stride,
                         .seq = p->seq,
                         .pos = both            ? p->to
                                : g->sw.encoder ? p->seen
                                                : p->pos,
                         .first = both || chunk ? p->from : NULL,
                         .own = p->pos,
                         .bias_ld = fmi_near_ld(arch),
                         .bias_zero = fmi_near_zero(arch),
                         .m = p->m,
                         .nh = g->heads,
                         .nkv = kv_heads(p, l),
                         .hd = head_dim(p, l),
                         .window = slides && !g->sw.encoder && !chunk ? g->window : 0,
                         .scale = g->sw.attn_scale,
                         .softcap = g->sw.attn_softcap,
                         .single = p->s->seqs == p->step_rows};
    attend(p, l, &att);
    float *made = g->sw.attn_gate ? p->q : p->att;
    if (g->sw.attn_gate)
        be->act(be, FM_ACT_SIGMOID, made, qd, p->steps, qd, p->att, qd, p->m, (uint32_t)qd);
    if (g->sw.sub_norms)
        fmi_norm(p, p->all, g->sw.norm, sub_norm, l, made, made, 1, (uint32_t)qd);
    const fmi_out o = {pick_o, {y, g->hidden}};
    const fmi_matrix from = g->sw.kv_rank ? fmi_latent_out(p) : (fmi_matrix){made, qd};
    return fmi_linears(p, p->all, from, l, &o, 1);
}
