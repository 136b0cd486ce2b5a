/* pass.c - forward with saved activations, and the backward of the Llama family by hand.
 *
 * Mirrors the forward of infer: the same operations in the same order, so that a trained model's
 * loss is what its inference gives. Rows are the valid tokens of all sequences one after another;
 * attention runs sequence by sequence. Saved per layer: the residual before each half, q, k, v
 * after rotation, attention's output, gate and up. The norms' outputs and the activation are made
 * again in the backward (cheap per element, large in memory). Logits exist for a chunk of labelled
 * rows at a time and become their gradient in place. Nothing is computed below the lowest module
 * that trains, and no weight gradient of a frozen weight. */
#include "train/internal.h"

#include "store/base/mem.h"

#include <math.h>
#include <string.h>

#define LOGIT_CHUNK_FLOATS ((uint64_t)1 << 23) /* 32 MiB of logits at a time */

typedef struct slot { /* one layer's saved activations */
    float *xin, *rstd1, *qraw, *kraw, *qrstd, *krstd, *q, *k, *v, *attn, *lse;
    float *xmid, *rstd2, *gate, *up;
} slot;

struct fmi_pass {
    fmi_net *net;
    fmi_params *ps;
    fm_backend *be;
    fmi_pass_size size;
    uint32_t first;    /* lowest layer with something to train in or below it */
    bool embed_trains; /* then every layer passes its gradient down */
    uint32_t chunk;    /* labelled rows of one piece of logits */
    float *mem;
    uint64_t floats;
    slot *slot;                  /* [layers - first], the layers below share the first */
    float *xout;                 /* [M, H] after the last layer */
    float *h, *act;              /* [M, H], [M, I] */
    float *dx, *dh;              /* [M, H] */
    float *dact, *dgate, *dup;   /* [M, I] */
    float *dattn, *dq, *dqraw;   /* [M, NH*HD] */
    float *dk, *dkraw, *dv;      /* [M, NKV*HD] */
    float *du;                   /* [M, largest r] */
    float *xl, *hl, *rstdl, *dl; /* labelled rows: [R, H], [R + 1, H], [R], [R, H] */
    float *logits, *loss;        /* [chunk, V], [R] */
    float *cos, *sin;
    int32_t *imem;
    int32_t *ids, *pos, *back, *label_row, *label, *len; /* device */
    float *host_loss;                                    /* [R] */
};

/* ---- plan: one table of sizes, walked twice (to measure, then to carve) ---- */
static float *take(float *base, uint64_t *at, uint64_t n)
{
    float *p = base ? base + *at : NULL;
    *at += (n + 15u) & ~(uint64_t)15u;
    return p;
}

static void plan_slot(slot *s, float *base, uint64_t *at, const fm_arch *a, uint64_t m)
{
    uint64_t q = (uint64_t)a->heads * a->head_dim;
    uint64_t kv = (uint64_t)a->kv_heads * a->head_dim;

    s->xin = take(base, at, m * a->hidden);
    s->rstd1 = take(base, at, m);
    s->q = take(base, at, m * q);
    s->k = take(base, at, m * kv);
    s->v = take(base, at, m * kv);
    if (a->qk_norm) {
        s->qraw = take(base, at, m * q);
        s->kraw = take(base, at, m * kv);
        s->qrstd = take(base, at, m * a->heads);
        s->krstd = take(base, at, m * a->kv_heads);
    }
    s->attn = take(base, at, m * q);
    s->lse = take(base, at, m * a->heads);
    s->xmid = take(base, at, m * a->hidden);
    s->rstd2 = take(base, at, m);
    s->gate = take(base, at, m * a->inter);
    s->up = take(base, at, m * a->inter);
}

static uint32_t plan_terms(fmi_pass *p, float *base, uint64_t *at)
{
    uint32_t widest = 1;
    fmi_linear *l;

    for (size_t i = 0; (l = fmi_net_linear(p->net, i)); i++) {
        uint64_t rows = l == &p->net->head ? p->size.labels : p->size.rows;
        for (size_t t = 0; t < l->terms; t++) {
            widest = FM_MAX(widest, l->term[t].r);
            if (l->term[t].b_param >= 0)
                l->term[t].u = take(base, at, rows * l->term[t].r);
        }
    }
    return widest;
}

static uint64_t plan(fmi_pass *p, float *base)
{
    const fm_arch *a = &p->net->arch;
    uint64_t m = p->size.rows;
    uint64_t r = p->size.labels;
    uint64_t q = (uint64_t)a->heads * a->head_dim;
    uint64_t kv = (uint64_t)a->kv_heads * a->head_dim;
    uint64_t at = 0;

    for (uint32_t l = p->first; l < a->layers; l++)
        plan_slot(&p->slot[l - p->first], base, &at, a, m);
    if (p->first == a->layers)
        plan_slot(&p->slot[0], base, &at, a, m);
    uint32_t widest = plan_terms(p, base, &at);
    p->xout = take(base, &at, m * a->hidden);
    p->h = take(base, &at, m * a->hidden);
    p->act = take(base, &at, m * a->inter);
    p->dx = take(base, &at, m * a->hidden);
    p->dh = take(base, &at, m * a->hidden);
    p->dact = take(base, &at, m * a->inter);
    p->dgate = take(base, &at, m * a->inter);
    p->dup = take(base, &at, m * a->inter);
    p->dattn = take(base, &at, m * q);
    p->dq = take(base, &at, m * q);
    p->dqraw = a->qk_norm ? take(base, &at, m * q) : p->dq;
    p->dk = take(base, &at, m * kv);
    p->dkraw = a->qk_norm ? take(base, &at, m * kv) : p->dk;
    p->dv = take(base, &at, m * kv);
    p->du = take(base, &at, FM_MAX(m, r) * widest);
    p->xl = take(base, &at, r * a->hidden);
    p->hl = take(base, &at, (r + 1) * a->hidden);
    p->rstdl = take(base, &at, r);
    p->dl = take(base, &at, r * a->hidden);
    p->logits = take(base, &at, (uint64_t)p->chunk * a->vocab);
    p->loss = take(base, &at, r);
    p->cos = take(base, &at, (uint64_t)p->size.longest * (a->head_dim / 2));
    p->sin = take(base, &at, (uint64_t)p->size.longest * (a->head_dim / 2));
    return at;
}

static fm_status put_rope(fmi_pass *p)
{
    const fm_arch *a = &p->net->arch;
    size_t n = (size_t)p->size.longest * (a->head_dim / 2);
    float *host = fm_calloc(2 * n, sizeof(float));
    fm_status rc = host ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK)
        rc = fm_arch_rope(a, 0, p->size.longest, host, host + n);
    if (rc == FM_OK)
        rc = p->be->upload(p->be, p->cos, host, n * sizeof(float));
    if (rc == FM_OK)
        rc = p->be->upload(p->be, p->sin, host + n, n * sizeof(float));
    fm_free(host);
    return rc;
}

static bool linear_trains(const fmi_linear *l)
{
    bool any = l->w_param >= 0 || l->bias_param >= 0;

    for (size_t i = 0; i < l->terms; i++)
        any = any || l->term[i].a_param >= 0 || l->term[i].b_param >= 0;
    return any;
}

static bool block_trains(const fmi_block *b)
{
    bool any = false;

    for (uint32_t i = 0; i < FMI_LINEARS; i++)
        any = any || linear_trains(&b->lin[i]);
    for (uint32_t i = 0; i < FMI_NORMS; i++)
        any = any || b->norm[i].param >= 0;
    return any;
}

static fm_status plan_indexes(fmi_pass *p)
{
    size_t m = p->size.rows;
    size_t r = p->size.labels;
    void *mem = NULL;
    fm_status rc = p->be->alloc(p->be, &mem, (3 * m + 2 * r + p->size.seqs) * sizeof(int32_t));

    if (rc < 0)
        return rc;
    p->imem = mem;
    p->ids = p->imem;
    p->pos = p->ids + m;
    p->back = p->pos + m;
    p->label_row = p->back + m;
    p->label = p->label_row + r;
    p->len = p->label + r;
    return FM_OK;
}

fm_status fmi_pass_new(fmi_pass **out, fmi_net *net, fmi_params *ps, const fmi_pass_size *size)
{
    fmi_pass *p = fm_calloc(1, sizeof(*p));
    const fm_arch *a = &net->arch;
    void *mem = NULL;
    fm_status rc = FM_ENOMEM;

    *out = NULL;
    if (!p)
        return rc;
    p->net = net;
    p->ps = ps;
    p->be = net->be;
    p->size = *size;
    p->embed_trains = linear_trains(&net->embed) && net->embed.w_param >= 0;
    while (!p->embed_trains && p->first < a->layers && !block_trains(&net->block[p->first]))
        p->first++;
    uint64_t fit = FM_MAX(LOGIT_CHUNK_FLOATS / a->vocab, 1u);
    p->chunk = (uint32_t)FM_MIN(fit, FM_MAX(size->labels, 1u));
    p->slot = fm_calloc(a->layers - p->first + 1, sizeof(*p->slot));
    p->host_loss = fm_calloc(size->labels, sizeof(float));
    if (!p->slot || !p->host_loss)
        goto fail;
    p->floats = plan(p, NULL);
    rc = p->be->alloc(p->be, &mem, (size_t)p->floats * sizeof(float));
    if (rc < 0)
        goto fail;
    p->mem = mem;
    (void)plan(p, p->mem);
    rc = plan_indexes(p);
    if (rc == FM_OK)
        rc = put_rope(p);
    if (rc < 0)
        goto fail;
    *out = p;
    return FM_OK;
fail:
    fmi_pass_free(p);
    return rc;
}

void fmi_pass_free(fmi_pass *p)
{
    if (!p)
        return;
    if (p->mem)
        p->be->free(p->be, p->mem);
    if (p->imem)
        p->be->free(p->be, p->imem);
    fm_free(p->slot);
    fm_free(p->host_loss);
    fm_free(p);
}

uint64_t fmi_pass_bytes(const fmi_pass *p)
{
    return p->floats * sizeof(float);
}

/* ---- linear layers ---- */
static void linear(fmi_pass *p, float *y, const float *x, const fmi_linear *l, uint32_t m,
                   size_t u_row)
{
    fm_backend *be = p->be;

    be->linear(be, y, l->out, x, l->in, l->w, l->bias, NULL, m);
    for (size_t i = 0; i < l->terms; i++) {
        const fmi_term *t = &l->term[i];
        float *u = t->u ? t->u + u_row * t->r : p->du; /* kept for the gradient, or not */
        be->gemm(be, u, t->r, x, l->in, false, t->a, l->in, true, m, t->r, l->in, 1.0f, false);
        be->gemm(be, y, l->out, u, t->r, false, t->b, t->r, true, m, l->out, t->r, t->scale, true);
    }
}

static float *grad(const fmi_pass *p, int32_t param)
{
    return p->ps->g + p->ps->item[param].at;
}

static void term_grad(fmi_pass *p, float *dx, const float *dy, const float *x, const fmi_linear *l,
                      const fmi_term *t, uint32_t m, size_t u_row)
{
    fm_backend *be = p->be;

    if (t->b_param >= 0)
        be->gemm(be, grad(p, t->b_param), t->r, dy, l->out, true, t->u + u_row * t->r, t->r, false,
                 l->out, t->r, m, t->scale, true);
    if (t->a_param < 0 && !dx)
        return;
    be->gemm(be, p->du, t->r, dy, l->out, false, t->b, t->r, false, m, t->r, l->out, t->scale,
             false);
    if (t->a_param >= 0)
        be->gemm(be, grad(p, t->a_param), l->in, p->du, t->r, true, x, l->in, false, t->r, l->in, m,
                 1.0f, true);
    if (dx)
        be->gemm(be, dx, l->in, p->du, t->r, false, t->a, l->in, false, m, l->in, t->r, 1.0f, true);
}

/* dx (NULL: nobody below needs it) is set, or added to; x is the layer's input, needed only where
 * linear_trains. */
static void linear_grad(fmi_pass *p, float *dx, bool add, const float *dy, const float *x,
                        const fmi_linear *l, uint32_t m, size_t u_row)
{
    fm_backend *be = p->be;

    if (dx)
        be->linear_dx(be, dx, l->in, dy, l->out, l->w, m, add);
    if (l->w_param >= 0)
        be->gemm(be, grad(p, l->w_param), l->in, dy, l->out, true, x, l->in, false, l->out, l->in,
                 m, 1.0f, true);
    if (l->bias_param >= 0)
        be->bias_grad(be, grad(p, l->bias_param), dy, l->out, m, l->out);
    for (size_t i = 0; i < l->terms; i++)
        term_grad(p, dx, dy, x, l, &l->term[i], m, u_row);
}

static void norm_grad(fmi_pass *p, float *dx, bool add, const float *dy, const float *x,
                      const float *rstd, const fmi_norm *n, uint32_t m)
{
    float *dgain = n->param >= 0 ? grad(p, n->param) : NULL;

    p->be->rmsnorm_grad(p->be, dx, dgain, dy, x, n->gain, rstd, m, n->n, n->n, add);
}

/* ---- forward ---- */
static slot *slot_of(fmi_pass *p, uint32_t layer)
{
    return &p->slot[layer > p->first ? layer - p->first : 0];
}

/* Rounded as infer does it: in float all along, 96 and 112 would be one bit off. */
static float attention_scale(const fm_arch *a)
{
    return (float)(1.0 / sqrt((double)a->head_dim));
}

static void attention_forward(fmi_pass *p, slot *s, const fmi_batch *b)
{
    const fm_arch *a = &p->net->arch;
    size_t q = (size_t)a->heads * a->head_dim;
    size_t kv = (size_t)a->kv_heads * a->head_dim;
    float scale = attention_scale(a);
    size_t row = 0;

    for (uint32_t i = 0; i < b->seqs; i++) {
        uint32_t t = (uint32_t)b->len[i];
        p->be->attention_train(p->be, s->attn + row * q, s->lse + row * a->heads, s->q + row * q,
                               s->k + row * kv, s->v + row * kv, p->len + i, 1, t, a->heads,
                               a->kv_heads, a->head_dim, a->window, scale);
        row += t;
    }
}

static void qk_forward(fmi_pass *p, slot *s, const fmi_block *blk, uint32_t m)
{
    const fm_arch *a = &p->net->arch;
    fm_backend *be = p->be;
    uint32_t nq = a->heads;
    uint32_t nk = a->kv_heads;
    uint32_t hd = a->head_dim;
    float *q = a->qk_norm ? s->qraw : s->q;
    float *k = a->qk_norm ? s->kraw : s->k;

    linear(p, q, p->h, &blk->lin[FMI_Q], m, 0);
    linear(p, k, p->h, &blk->lin[FMI_K], m, 0);
    if (a->qk_norm) {
        be->rmsnorm(be, s->q, q, blk->norm[FMI_Q_NORM].gain, s->qrstd, m * nq, hd, hd, a->eps);
        be->rmsnorm(be, s->k, k, blk->norm[FMI_K_NORM].gain, s->krstd, m * nk, hd, hd, a->eps);
    }
    be->rope(be, s->q, (size_t)nq * hd, p->pos, p->cos, p->sin, m, nq, hd, false);
    be->rope(be, s->k, (size_t)nk * hd, p->pos, p->cos, p->sin, m, nk, hd, false);
}

static void block_forward(fmi_pass *p, uint32_t layer, float *out, const fmi_batch *b)
{
    const fmi_block *blk = &p->net->block[layer];
    const fm_arch *a = &p->net->arch;
    fm_backend *be = p->be;
    slot *s = slot_of(p, layer);
    uint32_t m = b->rows;

    be->rmsnorm(be, p->h, s->xin, blk->norm[FMI_ATTN_NORM].gain, s->rstd1, m, a->hidden, a->hidden,
                a->eps);
    qk_forward(p, s, blk, m);
    linear(p, s->v, p->h, &blk->lin[FMI_V], m, 0);
    attention_forward(p, s, b);
    linear(p, s->xmid, s->attn, &blk->lin[FMI_O], m, 0);
    be->add(be, s->xmid, s->xin, (uint64_t)m * a->hidden);
    be->rmsnorm(be, p->h, s->xmid, blk->norm[FMI_MLP_NORM].gain, s->rstd2, m, a->hidden, a->hidden,
                a->eps);
    linear(p, s->gate, p->h, &blk->lin[FMI_GATE], m, 0);
    linear(p, s->up, p->h, &blk->lin[FMI_UP], m, 0);
    be->swiglu(be, p->act, s->gate, s->up, (uint64_t)m * a->inter);
    linear(p, out, p->act, &blk->lin[FMI_DOWN], m, 0);
    be->add(be, out, s->xmid, (uint64_t)m * a->hidden);
}

/* ---- loss: forward and backward of the head, a chunk of labelled rows at a time ---- */
static void head_pass(fmi_pass *p, const fmi_batch *b, float dloss)
{
    const fmi_net *net = p->net;
    const fm_arch *a = &net->arch;
    fm_backend *be = p->be;
    uint32_t r = b->labels;
    bool deeper = p->embed_trains || p->first < a->layers || net->norm.param >= 0;

    be->copy_rows(be, p->xl, a->hidden, p->xout, a->hidden, p->label_row, r, a->hidden);
    be->rmsnorm(be, p->hl, p->xl, net->norm.gain, p->rstdl, r, a->hidden, a->hidden, a->eps);
    for (uint32_t at = 0; at < r; at += p->chunk) {
        uint32_t n = FM_MIN(p->chunk, r - at);
        const float *h = p->hl + (size_t)at * a->hidden;
        linear(p, p->logits, h, &net->head, n, at);
        be->cross_entropy(be, p->loss + at, p->logits, a->vocab, p->label + at, n, a->vocab, dloss);
        linear_grad(p, deeper ? p->dl + (size_t)at * a->hidden : NULL, false, p->logits, h,
                    &net->head, n, at);
    }
    if (!deeper)
        return;
    /* dl -> gradient of xl, in hl (no longer needed), then back to all rows: those without a
     * target take the row of zeros that follows. */
    norm_grad(p, p->hl, false, p->dl, p->xl, p->rstdl, &net->norm, r);
    be->scale(be, p->hl + (size_t)r * a->hidden, 0.0f, a->hidden);
    be->copy_rows(be, p->dx, a->hidden, p->hl, a->hidden, p->back, b->rows, a->hidden);
}

/* ---- backward ---- */
/* deeper: something below the MLP's norm needs the gradient. */
static void mlp_backward(fmi_pass *p, const fmi_block *blk, slot *s, uint32_t m, bool deeper)
{
    const fm_arch *a = &p->net->arch;
    fm_backend *be = p->be;
    uint64_t n = (uint64_t)m * a->inter;

    if (linear_trains(&blk->lin[FMI_DOWN]))
        be->swiglu(be, p->act, s->gate, s->up, n);
    linear_grad(p, p->dact, false, p->dx, p->act, &blk->lin[FMI_DOWN], m, 0);
    be->swiglu_grad(be, p->dgate, p->dup, p->dact, s->gate, s->up, n);
    if (linear_trains(&blk->lin[FMI_GATE]) || linear_trains(&blk->lin[FMI_UP]))
        be->rmsnorm(be, p->h, s->xmid, blk->norm[FMI_MLP_NORM].gain, NULL, m, a->hidden, a->hidden,
                    a->eps);
    float *dh = deeper || blk->norm[FMI_MLP_NORM].param >= 0 ? p->dh : NULL;
    linear_grad(p, dh, false, p->dgate, p->h, &blk->lin[FMI_GATE], m, 0);
    linear_grad(p, dh, true, p->dup, p->h, &blk->lin[FMI_UP], m, 0);
    if (dh)
        norm_grad(p, p->dx, true, dh, s->xmid, s->rstd2, &blk->norm[FMI_MLP_NORM], m);
}

static void attention_backward(fmi_pass *p, slot *s, const fmi_batch *b)
{
    const fm_arch *a = &p->net->arch;
    size_t q = (size_t)a->heads * a->head_dim;
    size_t kv = (size_t)a->kv_heads * a->head_dim;
    float scale = attention_scale(a);
    size_t row = 0;

    for (uint32_t i = 0; i < b->seqs; i++) {
        uint32_t t = (uint32_t)b->len[i];
        size_t at = row * q;
        size_t kat = row * kv;
        p->be->attention_grad(p->be, p->dq + at, p->dk + kat, p->dv + kat, p->dattn + at, s->q + at,
                              s->k + kat, s->v + kat, s->attn + at, s->lse + row * a->heads,
                              p->len + i, 1, t, a->heads, a->kv_heads, a->head_dim, a->window,
                              scale);
        row += t;
    }
    p->be->rope(p->be, p->dq, q, p->pos, p->cos, p->sin, b->rows, a->heads, a->head_dim, true);
    p->be->rope(p->be, p->dk, kv, p->pos, p->cos, p->sin, b->rows, a->kv_heads, a->head_dim, true);
}

/* deeper: what lies below this layer's attention norm needs the gradient, or the norm itself. */
static void attn_backward(fmi_pass *p, const fmi_block *blk, slot *s, const fmi_batch *b,
                          bool deeper)
{
    const fm_arch *a = &p->net->arch;
    uint32_t m = b->rows;
    bool norm_trains = blk->norm[FMI_ATTN_NORM].param >= 0;
    float *dh = deeper || norm_trains ? p->dh : NULL;

    linear_grad(p, p->dattn, false, p->dx, s->attn, &blk->lin[FMI_O], m, 0);
    attention_backward(p, s, b);
    if (a->qk_norm) {
        norm_grad(p, p->dqraw, false, p->dq, s->qraw, s->qrstd, &blk->norm[FMI_Q_NORM],
                  m * a->heads);
        norm_grad(p, p->dkraw, false, p->dk, s->kraw, s->krstd, &blk->norm[FMI_K_NORM],
                  m * a->kv_heads);
    }
    if (linear_trains(&blk->lin[FMI_Q]) || linear_trains(&blk->lin[FMI_K]) ||
        linear_trains(&blk->lin[FMI_V]))
        p->be->rmsnorm(p->be, p->h, s->xin, blk->norm[FMI_ATTN_NORM].gain, NULL, m, a->hidden,
                       a->hidden, a->eps);
    linear_grad(p, dh, false, p->dqraw, p->h, &blk->lin[FMI_Q], m, 0);
    linear_grad(p, dh, true, p->dkraw, p->h, &blk->lin[FMI_K], m, 0);
    linear_grad(p, dh, true, p->dv, p->h, &blk->lin[FMI_V], m, 0);
    if (dh)
        norm_grad(p, p->dx, true, dh, s->xin, s->rstd1, &blk->norm[FMI_ATTN_NORM], m);
}

static bool attn_trains(const fmi_block *b)
{
    bool any = b->norm[FMI_ATTN_NORM].param >= 0 || b->norm[FMI_Q_NORM].param >= 0 ||
               b->norm[FMI_K_NORM].param >= 0;

    for (uint32_t i = FMI_Q; i <= FMI_O; i++)
        any = any || linear_trains(&b->lin[i]);
    return any;
}

static void backward(fmi_pass *p, const fmi_batch *b)
{
    const fmi_net *net = p->net;

    for (uint32_t l = net->arch.layers; l-- > p->first;) {
        bool deeper = l > p->first || p->embed_trains;
        bool attn = deeper || attn_trains(&net->block[l]);
        mlp_backward(p, &net->block[l], slot_of(p, l), b->rows, attn);
        if (attn)
            attn_backward(p, &net->block[l], slot_of(p, l), b, deeper);
    }
    if (p->embed_trains)
        p->be->embed_grad(p->be, grad(p, net->embed.w_param), p->dx, net->arch.hidden, p->ids,
                          b->rows, net->arch.hidden);
}

static fm_status put_batch(fmi_pass *p, const fmi_batch *b)
{
    const struct {
        int32_t *to;
        const int32_t *from;
        size_t n;
    } part[] = {{p->ids, b->ids, b->rows},       {p->pos, b->pos, b->rows},
                {p->back, b->back, b->rows},     {p->label_row, b->label_row, b->labels},
                {p->label, b->label, b->labels}, {p->len, b->len, b->seqs}};
    fm_status rc = FM_OK;

    for (size_t i = 0; i < FM_ARRAY_LEN(part) && rc == FM_OK; i++)
        rc = p->be->upload(p->be, part[i].to, part[i].from, part[i].n * sizeof(int32_t));
    return rc;
}

fm_status fmi_pass_run(fmi_pass *p, const fmi_batch *b, float dloss, double *loss_sum)
{
    const fm_arch *a = &p->net->arch;

    fm_assert(b->rows <= p->size.rows && b->labels <= p->size.labels);
    fm_assert(b->seqs <= p->size.seqs && b->longest <= p->size.longest);
    if (b->rows == 0)
        return FM_OK;
    fm_status rc = put_batch(p, b);
    if (rc < 0)
        return rc;
    p->be->embed(p->be, slot_of(p, 0)->xin, a->hidden, p->net->embed.w, p->ids, NULL, b->rows);
    for (uint32_t l = 0; l < a->layers; l++) {
        float *out = l + 1 < a->layers ? slot_of(p, l + 1)->xin : p->xout;
        block_forward(p, l, out, b);
    }
    head_pass(p, b, dloss);
    backward(p, b);
    rc = p->be->download(p->be, p->host_loss, p->loss, b->labels * sizeof(float));
    if (rc == FM_OK)
        rc = p->be->sync(p->be);
    for (uint32_t i = 0; i < b->labels && rc == FM_OK; i++)
        *loss_sum += (double)p->host_loss[i];
    return rc;
}
