/* forward.c - one pass: rows of one shape class through the Llama family.
 *
 * Layer by layer and linear by linear, the runs that hold the same weight go through one product,
 * whoever's models they are; each low-rank term then goes over the rows that have it. A group that
 * is no single stretch of rows gets a list of row numbers; lists are made once per step and
 * content, since most layers of a family split the rows in the same way. A row's result does
 * not depend on any of this: every operation computes a row from that row alone. */
#include "infer/step.h"

#include <math.h>
#include <string.h>

#include "store/base/mem.h"

typedef struct rowset { /* rows begin.. (list NULL), or the listed ones */
    uint32_t begin, count;
    const int32_t *list; /* device */
} rowset;

/* ==== row lists ==== */

static fm_status next_chunk(fmi_step *s)
{
    fmi_chunk *c = s->chunk_now ? s->chunk_now->next : s->chunks;
    if (!c) {
        size_t bytes = (size_t)s->max_rows * 8 * sizeof(int32_t);
        c = fm_calloc(1, sizeof(*c));
        if (!c)
            return FM_ENOMEM;
        void *dev = NULL;
        c->host = fm_malloc(bytes);
        fm_status rc = c->host ? s->e->be->alloc(s->e->be, &dev, bytes) : FM_ENOMEM;
        if (rc != FM_OK) {
            fm_free(c->host);
            fm_free(c);
            return rc;
        }
        c->dev = dev;
        if (s->chunk_now)
            s->chunk_now->next = c;
        else
            s->chunks = c;
    }
    c->used = 0;
    s->chunk_now = c;
    return FM_OK;
}

static const int32_t *known_list(const fmi_step *s, const int32_t *rows, uint32_t count)
{
    for (size_t i = 0; i < s->list_count; i++) {
        const fmi_list *l = &s->lists[i];
        if (l->count == count && memcmp(l->c->host + l->at, rows, count * sizeof(int32_t)) == 0)
            return l->c->dev + l->at;
    }
    return NULL;
}

/* The rows of the member parts, as a stretch where they are one, else as a device list. */
static fm_status rows_of(fmi_step *s, rowset *out, const fmi_part *p, const uint32_t *member,
                         uint32_t n)
{
    uint32_t count = 0;
    bool stretch = true;
    for (uint32_t i = 0; i < n; i++) {
        stretch = stretch && p[member[i]].begin == p[member[0]].begin + count;
        count += p[member[i]].count;
    }
    *out = (rowset){.begin = p[member[0]].begin, .count = count};
    if (stretch)
        return FM_OK;
    out->begin = 0;
    fm_status rc;
    if ((!s->chunk_now || s->chunk_now->used + count > s->max_rows * 8) &&
        (rc = next_chunk(s)) != FM_OK)
        return rc;
    fmi_chunk *c = s->chunk_now;
    int32_t *rows = c->host + c->used;
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < p[member[i]].count; r++)
            rows[at++] = (int32_t)(p[member[i]].begin + r);
    out->list = known_list(s, rows, count);
    if (out->list)
        return FM_OK;
    rc = fm_grow(&s->lists, &s->list_cap, s->list_count + 1, sizeof(fmi_list));
    if (rc == FM_OK)
        rc = s->e->be->upload(s->e->be, c->dev + c->used, rows, count * sizeof(int32_t));
    if (rc != FM_OK)
        return rc;
    s->lists[s->list_count++] = (fmi_list){.c = c, .at = c->used, .count = count};
    out->list = c->dev + c->used;
    c->used += count;
    return FM_OK;
}

/* ==== grouped operations ==== */

typedef struct matrix { /* rows of activations */
    float *p;
    size_t ld;
} matrix;

static fm_status products(fmi_pass *p, fmi_parts ps, matrix y, matrix x)
{
    fmi_step *s = p->s;
    fm_backend *be = p->e->be;
    memset(s->done, 0, ps.n * sizeof(bool));
    for (uint32_t i = 0; i < ps.n; i++) {
        if (s->done[i])
            continue;
        const fm_linear *lin = s->lin[i];
        uint32_t n = 0;
        for (uint32_t j = i; j < ps.n; j++)
            if (s->lin[j]->w == lin->w && s->lin[j]->bias == lin->bias) {
                s->done[j] = true;
                s->member[n++] = j;
            }
        rowset rs;
        fm_status rc = rows_of(s, &rs, ps.p, s->member, n);
        if (rc != FM_OK)
            return rc;
        be->linear(be, y.p + rs.begin * y.ld, y.ld, x.p + rs.begin * x.ld, x.ld, lin->w, lin->bias,
                   rs.list, rs.count);
        p->e->gemm_groups++;
    }
    return FM_OK;
}

static bool same_term(const fm_lora_term *a, const fm_lora_term *b)
{
    return a->a == b->a && a->b == b->b && memcmp(&a->scale, &b->scale, sizeof(float)) == 0;
}

/* The t-th low-rank term of every part that has so many. */
static fm_status terms(fmi_pass *p, fmi_parts ps, matrix y, matrix x, uint32_t t)
{
    fmi_step *s = p->s;
    fm_backend *be = p->e->be;
    uint32_t count = 0, out = 0, in = s->lin[0]->in;
    for (uint32_t i = 0; i < ps.n; i++)
        s->done[i] = s->lin[i]->lora_count <= t;
    for (uint32_t i = 0; i < ps.n; i++) {
        if (s->done[i])
            continue;
        const fm_lora_term *term = &s->lin[i]->lora[t];
        if (count > 0 && s->lin[i]->out != out) { /* heads: vocabularies may differ */
            be->lora(be, y.p, y.ld, x.p, x.ld, out, in, s->lora, count);
            count = 0;
        }
        out = s->lin[i]->out;
        uint32_t n = 0;
        for (uint32_t j = i; j < ps.n; j++)
            if (!s->done[j] && same_term(&s->lin[j]->lora[t], term)) {
                s->done[j] = true;
                s->member[n++] = j;
            }
        rowset rs;
        fm_status rc = rows_of(s, &rs, ps.p, s->member, n);
        if (rc != FM_OK)
            return rc;
        s->lora[count++] = (fm_lora){.a = term->a,
                                     .b = term->b,
                                     .r = term->r,
                                     .scale = term->scale,
                                     .first = rs.begin,
                                     .m = rs.count,
                                     .rows = rs.list};
    }
    if (count > 0)
        be->lora(be, y.p, y.ld, x.p, x.ld, out, in, s->lora, count);
    return FM_OK;
}

typedef const fm_linear *(*pick_fn)(const fm_model *m, uint32_t layer);

static fm_status linear(fmi_pass *p, fmi_parts ps, pick_fn pick, uint32_t layer, matrix y, matrix x)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < ps.n; i++) {
        const fm_linear *lin = pick(ps.p[i].model, layer);
        p->s->lin[i] = lin;
        most = FM_MAX(most, lin->lora_count);
    }
    fm_status rc = products(p, ps, y, x);
    for (uint32_t t = 0; t < most && rc == FM_OK; t++)
        rc = terms(p, ps, y, x, t);
    return rc;
}

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
    matrix x = {p->xn, g->hidden}, q = {p->q, qd}, k = {p->k, kvd}, v = {p->v, kvd};
    norm(p, p->all, gain_attn, l, p->xn, p->x, 1, g->hidden);
    fm_status rc = linear(p, p->all, pick_q, l, q, x);
    if (rc == FM_OK)
        rc = linear(p, p->all, pick_k, l, k, x);
    if (rc == FM_OK)
        rc = linear(p, p->all, pick_v, l, v, x);
    if (rc != FM_OK)
        return rc;
    if (g->qk_norm) {
        norm(p, p->all, gain_q, l, p->q, p->q, g->heads, g->head_dim);
        norm(p, p->all, gain_k, l, p->k, p->k, g->kv_heads, g->head_dim);
    }
    rotate(p, p->q, g->heads);
    rotate(p, p->k, g->kv_heads);
    fm_kv_view kv = fmi_kv_layer(g->pool, l);
    be->kv_write(be, kv, p->k, kvd, p->v, kvd, p->slot, p->m, g->kv_heads, g->head_dim);
    be->attention(be, p->att, qd, p->q, qd, kv, p->table, p->table_stride, p->pos, p->m, g->heads,
                  g->kv_heads, g->head_dim, g->window, (float)(1.0 / sqrt((double)g->head_dim)));
    rc = linear(p, p->all, pick_o, l, (matrix){p->o, g->hidden}, (matrix){p->att, qd});
    if (rc == FM_OK)
        be->add(be, p->x, p->o, (uint64_t)p->m * g->hidden);
    return rc;
}

static fm_status mlp_block(fmi_pass *p, uint32_t l)
{
    fm_backend *be = p->e->be;
    const fmi_geom *g = p->g;
    matrix x = {p->xn, g->hidden}, gate = {p->gate, g->inter}, up = {p->up, g->inter};
    norm(p, p->all, gain_mlp, l, p->xn, p->x, 1, g->hidden);
    fm_status rc = linear(p, p->all, pick_gate, l, gate, x);
    if (rc == FM_OK)
        rc = linear(p, p->all, pick_up, l, up, x);
    if (rc != FM_OK)
        return rc;
    be->swiglu(be, p->gate, p->gate, p->up, (uint64_t)p->m * g->inter);
    rc = linear(p, p->all, pick_down, l, (matrix){p->o, g->hidden}, gate);
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
    return linear(p, p->want, pick_head, 0, (matrix){s->logits + p->want0 * s->ld, s->ld},
                  (matrix){p->xn, h});
}

fm_status fmi_forward(fmi_pass *p)
{
    embed(p);
    fm_status rc = tap(p, 0, p->x);
    for (uint32_t l = 0; l < p->g->layers && rc == FM_OK; l++) {
        rc = attention_block(p, l);
        if (rc == FM_OK)
            rc = mlp_block(p, l);
        if (rc == FM_OK && l + 1 < p->g->layers)
            rc = tap(p, l + 1, p->x);
    }
    if (rc == FM_OK && p->e->tap) {
        norm(p, p->all, gain_final, 0, p->xn, p->x, 1, p->g->hidden);
        rc = tap(p, p->g->layers, p->xn);
    }
    return rc == FM_OK ? logits(p) : rc;
}
