/* layers.c - embeddings and layers of a pass, forward and backward.
 *
 * Mirrors the forward of infer: the same operations in the same order, so that a trained model's
 * loss is what its inference gives. The backward computes the norms' outputs and the activation
 * again: they are cheap to compute and large to keep. */
#include "train/pass/pass.h"

/* ---- embedding ---- */
/* Looks up rows of a table: ids in the embedding, places in the positions. */
static void look_up(fmt_pass *p, uint32_t which, const int32_t *ids, float *x)
{
    fmt_parts ps = fmt_parts_all(p);
    size_t h = p->arch.hidden;

    for (uint32_t i = 0, j; i < ps.n; i = j) {
        const fm_weight *w = ps.p[i].lane->net->outer[which].w;
        uint32_t rows = 0;
        for (j = i; j < ps.n && ps.p[j].lane->net->outer[which].w == w; j++)
            rows += ps.p[j].count;
        p->be->embed(p->be, x + ps.p[i].begin * h, h, w, ids + ps.p[i].begin, NULL, rows);
    }
}

static void embed(fmt_pass *p, float *out)
{
    const fm_switches *sw = &p->arch.sw;
    fmt_parts ps = fmt_parts_all(p);
    uint32_t h = p->arch.hidden;
    uint64_t n = (uint64_t)ps.rows * h;
    float *x = sw->embed_norm ? p->xembed : out;

    look_up(p, FMT_EMBED, p->ids, x);
    for (size_t i = 0; i < p->lanes; i++)
        fmt_embed_terms(p, p->lane[i], x);
    if (sw->embed_scale != 1.0f)
        p->be->scale(p->be, x, sw->embed_scale, n);
    for (size_t i = 0; i < p->lanes; i++)
        fmt_virtual_rows(p, p->lane[i], x);
    for (uint32_t i = 0; sw->types && i < ps.n; i++)
        p->be->affine(p->be, x, h, h, NULL, ps.p[i].lane->net->outer[FMT_TYPES].bias, ps.p[i].begin,
                      ps.p[i].count, NULL);
    if (sw->positions) {
        look_up(p, FMT_POSITIONS, p->place, p->h);
        p->be->add(p->be, x, p->h, n);
    }
    if (sw->embed_norm)
        fmt_norms(p, ps, FMT_OUTSIDE, FMT_EMBED_NORM, out, x, p->embed_rstd, 1, h);
}

static float *grad_at(const fmt_lane *l, int32_t param)
{
    return l->ps->g + l->ps->item[param].at;
}

/* Adds a lane's gradients of the embeddings, from dx before their norm. */
static void embed_params(fmt_pass *p, fmt_lane *l)
{
    const fmt_linear *outer = l->net->outer;
    uint32_t h = p->arch.hidden, rows = l->batch.rows;
    float *dx = p->dx + (size_t)l->row0 * h;
    fm_backend *be = p->be;

    fmt_virtual_rows_grad(p, l, p->dx);
    if (outer[FMT_POSITIONS].w_param >= 0)
        be->embed_grad(be, grad_at(l, outer[FMT_POSITIONS].w_param), dx, h, p->place + l->row0,
                       rows, h);
    if (outer[FMT_TYPES].w_param >= 0) /* only its first row is used */
        be->bias_grad(be, grad_at(l, outer[FMT_TYPES].w_param), dx, h, rows, h);
    if (p->arch.sw.embed_scale != 1.0f)
        be->scale(be, dx, p->arch.sw.embed_scale, (uint64_t)rows * h);
    fmt_embed_tokens_grad(p, l, p->dx);
}

void fmt_embed_backward(fmt_pass *p)
{
    if (p->arch.sw.embed_norm) {
        fmt_parts ps = fmt_parts_from(p, 0);
        for (uint32_t i = 0; i < ps.n; i++)
            p->part[i].deeper = ps.p[i].lane->embed_trains;
        fmt_norms_grad(p, ps, FMT_OUTSIDE, FMT_EMBED_NORM, p->dx, false, p->dx, p->xembed,
                       p->embed_rstd, 1, p->arch.hidden);
    }
    for (size_t i = 0; i < p->lanes; i++)
        if (p->lane[i]->embed_trains)
            embed_params(p, p->lane[i]);
}

/* ---- a branch and its place in the layer ---- */
/* Whether a norm stands behind the branch or behind the sum. */
static bool has_post(const fmt_pass *p)
{
    fm_block_order o = p->arch.sw.order;
    return o == FM_BLOCK_SANDWICH || o == FM_BLOCK_AFTER || o == FM_BLOCK_POST;
}

static bool has_input_norm(const fmt_pass *p, uint32_t layer, uint32_t which)
{
    fm_block_order o = p->arch.sw.order;
    bool first = which == FMT_ATTN_NORM;
    return o != FM_BLOCK_AFTER && o != FM_BLOCK_POST &&
           !(first && (p->arch.sw.layer[layer] & FM_LAYER_NO_INPUT_NORM));
}

/* The input of a branch: x, or its norm in p->h. */
static const float *input_of(fmt_pass *p, fmt_parts ps, uint32_t layer, uint32_t which,
                             const float *x, float *rstd)
{
    if (!has_input_norm(p, layer, which))
        return x;
    fmt_norms(p, ps, (int32_t)layer, which, p->h, x, rstd, 1, p->arch.hidden);
    return p->h;
}

/* out = x + branch, with the norm or scale that the family applies to the branch before or to the
 * sum afterwards. The branch is in raw where a norm follows (and stays for the gradient), else in
 * out. */
static void join(fmt_pass *p, fmt_parts ps, uint32_t layer, uint32_t post, float *out,
                 const float *x, float *raw, float *rstd)
{
    const fm_switches *sw = &p->arch.sw;
    uint32_t h = p->arch.hidden;
    uint64_t n = (uint64_t)ps.rows * h;
    float *sum = sw->order == FM_BLOCK_POST ? raw : out;

    if (sw->order == FM_BLOCK_SANDWICH || sw->order == FM_BLOCK_AFTER)
        fmt_norms(p, ps, (int32_t)layer, post, out, raw, rstd, 1, h);
    if (sw->residual_scale != 1.0f)
        p->be->scale(p->be, sum, sw->residual_scale, n);
    p->be->add(p->be, sum, x, n);
    if (sw->order == FM_BLOCK_POST)
        fmt_norms(p, ps, (int32_t)layer, post, out, raw, rstd, 1, h);
}

/* Turns dx from the gradient of the sum into that of x; returns the gradient of the branch. */
static const float *split(fmt_pass *p, fmt_parts ps, uint32_t layer, uint32_t post,
                          const float *raw, const float *rstd)
{
    const fm_switches *sw = &p->arch.sw;
    uint32_t h = p->arch.hidden;
    uint64_t n = (uint64_t)ps.rows * h;
    const float *d = p->dx;

    if (sw->order == FM_BLOCK_POST)
        fmt_norms_grad(p, ps, (int32_t)layer, post, p->dx, false, p->dx, raw, rstd, 1, h);
    if (sw->residual_scale != 1.0f) {
        p->be->copy_rows(p->be, p->branch, h, p->dx, h, NULL, ps.rows, h);
        p->be->scale(p->be, p->branch, sw->residual_scale, n);
        d = p->branch;
    }
    if (sw->order == FM_BLOCK_SANDWICH || sw->order == FM_BLOCK_AFTER) {
        fmt_norms_grad(p, ps, (int32_t)layer, post, p->branch, false, d, raw, rstd, 1, h);
        d = p->branch;
    }
    return d;
}

/* Adds to dx the gradient that the branch's input has in dh. */
static void input_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, uint32_t which, const float *x,
                       const float *rstd)
{
    uint32_t h = p->arch.hidden;

    if (has_input_norm(p, layer, which))
        fmt_norms_grad(p, ps, (int32_t)layer, which, p->dx, true, p->dh, x, rstd, 1, h);
    else
        p->be->add(p->be, p->dx, p->dh, (uint64_t)ps.rows * h);
}

/* ---- the first branch: attention, or a recurrent block ---- */
static bool recurs(const fmt_pass *p, uint32_t layer)
{
    return fm_layer_recurs(&p->arch.sw, layer);
}

static fm_status mixer_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *x, float *y)
{
    return recurs(p, layer) ? fmt_recurrent_forward(p, ps, layer, x, y)
                            : fmt_attention_forward(p, ps, layer, x, y);
}

static fm_status mixer_backward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *dy)
{
    return recurs(p, layer) ? fmt_recurrent_backward(p, ps, layer, dy)
                            : fmt_attention_backward(p, ps, layer, dy);
}

static bool mixer_input_trains(fmt_pass *p, fmt_parts ps, uint32_t layer)
{
    return recurs(p, layer) ? fmt_recurrent_input_trains(ps, layer)
                            : fmt_attention_input_trains(ps, layer);
}

/* ---- the feed-forward branch: dense, or of experts ---- */
static bool is_sparse(const fmt_pass *p, uint32_t layer)
{
    return p->arch.sw.layer[layer] & FM_LAYER_SPARSE;
}

static fm_status mlp_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *x, float *y)
{
    return is_sparse(p, layer) ? fmt_moe_forward(p, ps, layer, x, y)
                               : fmt_mlp_forward(p, ps, layer, x, y);
}

static fm_status mlp_backward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *dy)
{
    return is_sparse(p, layer) ? fmt_moe_backward(p, ps, layer, dy)
                               : fmt_mlp_backward(p, ps, layer, dy);
}

static bool has_mlp(const fmt_pass *p, uint32_t layer)
{
    return !(p->arch.sw.layer[layer] & FM_LAYER_NO_MLP);
}

/* The norm in front of the feed-forward branch. */
static uint32_t mlp_norm(const fmt_pass *p)
{
    return p->arch.sw.one_norm ? FMT_ATTN_NORM : FMT_MLP_NORM;
}

/* From the gradients of the branch's first products to dx; x is the branch's or norm's input. */
static fm_status mlp_input_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *x,
                                const float *rstd)
{
    bool sparse = is_sparse(p, layer);
    bool trains = sparse ? fmt_moe_input_trains(p, ps, layer) : fmt_mlp_input_trains(ps, layer);
    const float *in = trains ? input_of(p, ps, layer, mlp_norm(p), x, NULL) : p->h;
    FM_TRY(sparse ? fmt_moe_input_grad(p, ps, layer, p->dh, in)
                  : fmt_mlp_input_grad(p, ps, layer, p->dh, in));

    input_grad(p, ps, layer, mlp_norm(p), x, rstd);
    return FM_OK;
}

static fm_status mixer_input_grad(fmt_pass *p, uint32_t layer)
{
    fmt_slot *s = fmt_slot_of(p, layer);
    fmt_parts ps = fmt_parts_from(p, layer);
    const float *in = mixer_input_trains(p, ps, layer)
                          ? input_of(p, ps, layer, FMT_ATTN_NORM, s->xin, NULL)
                          : p->h;

    ps = fmt_parts_below(p, layer);
    FM_TRY(recurs(p, layer) ? fmt_recurrent_input_grad(p, ps, layer, p->dh, in)
                            : fmt_attention_input_grad(p, ps, layer, p->dh, in));
    input_grad(p, ps, layer, FMT_ATTN_NORM, s->xin, s->rstd1);
    return FM_OK;
}

/* ---- layers ---- */
/* x + attention(norm(x)) + mlp(norm'(x)) */
static fm_status parallel_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, float *out)
{
    fmt_slot *s = fmt_slot_of(p, layer);
    uint32_t h = p->arch.hidden;
    const float *x = input_of(p, ps, layer, FMT_ATTN_NORM, s->xin, s->rstd1);
    FM_TRY(mixer_forward(p, ps, layer, x, s->xmid));

    FM_TRY(mlp_forward(p, ps, layer, input_of(p, ps, layer, mlp_norm(p), s->xin, s->rstd2),
                       p->branch));
    p->be->add(p->be, s->xmid, p->branch, (uint64_t)ps.rows * h);
    join(p, ps, layer, FMT_MLP_POST, s->xmid, s->xin, NULL, NULL);
    p->be->copy_rows(p->be, out, h, s->xmid, h, NULL, ps.rows, h);
    return FM_OK;
}

/* The feed-forward branch of a layer, from what it adds to; alone or behind the mixer. */
static fm_status mlp_layer_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, float *from,
                                   float *out)
{
    fmt_slot *s = fmt_slot_of(p, layer);
    const float *x = input_of(p, ps, layer, FMT_MLP_NORM, from, s->rstd2);
    FM_TRY(mlp_forward(p, ps, layer, x, has_post(p) ? s->mraw : out));
    join(p, ps, layer, FMT_MLP_POST, out, from, s->mraw, s->mrstd);
    return FM_OK;
}

static fm_status layer_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, float *out)
{
    fmt_slot *s = fmt_slot_of(p, layer);
    bool post = has_post(p);

    if (p->arch.sw.order == FM_BLOCK_PARALLEL)
        return parallel_forward(p, ps, layer, out);
    if (!fm_layer_mixes(&p->arch.sw, layer))
        return mlp_layer_forward(p, ps, layer, s->xin, out);
    const float *x = input_of(p, ps, layer, FMT_ATTN_NORM, s->xin, s->rstd1);
    float *sum = has_mlp(p, layer) ? s->xmid : out;
    FM_TRY(mixer_forward(p, ps, layer, x, post ? s->araw : sum));
    join(p, ps, layer, FMT_ATTN_POST, sum, s->xin, s->araw, s->arstd);
    return has_mlp(p, layer) ? mlp_layer_forward(p, ps, layer, s->xmid, out) : FM_OK;
}

fm_status fmt_layers_forward(fmt_pass *p)
{
    if (p->begin == 0)
        embed(p, fmt_slot_of(p, 0)->xin);
    for (uint32_t l = p->begin; l < p->end; l++) {
        float *out = l + 1 < p->end ? fmt_slot_of(p, l + 1)->xin : p->xout;
        FM_TRY(layer_forward(p, fmt_parts_all(p), l, out));
    }
    return FM_OK;
}

static fm_status parallel_backward(fmt_pass *p, uint32_t layer)
{
    fmt_slot *s = fmt_slot_of(p, layer);
    fmt_parts ps = fmt_parts_from(p, layer);
    const float *d = split(p, ps, layer, FMT_MLP_POST, NULL, NULL);
    fm_status rc = mlp_backward(p, ps, layer, d);

    FM_THEN(rc, mixer_backward(p, ps, layer, d));
    if (rc == FM_OK) /* dx changes only now: d may be dx */
        rc = mlp_input_grad(p, ps, layer, s->xin, s->rstd2);
    return rc == FM_OK ? mixer_input_grad(p, layer) : rc;
}

/* Turns dx from the gradient behind the layer into the gradient before it. */
static fm_status layer_backward(fmt_pass *p, uint32_t layer)
{
    fmt_slot *s = fmt_slot_of(p, layer);
    fmt_parts ps = fmt_parts_from(p, layer);

    if (p->arch.sw.order == FM_BLOCK_PARALLEL)
        return parallel_backward(p, layer);
    const float *d;
    bool mixes = fm_layer_mixes(&p->arch.sw, layer);
    if (has_mlp(p, layer)) {
        d = split(p, ps, layer, FMT_MLP_POST, s->mraw, s->mrstd);
        FM_TRY(mlp_backward(p, ps, layer, d));
        FM_TRY(mlp_input_grad(p, ps, layer, mixes ? s->xmid : s->xin, s->rstd2));
    }
    if (!mixes)
        return FM_OK;
    d = split(p, ps, layer, FMT_ATTN_POST, s->araw, s->arstd);
    FM_TRY(mixer_backward(p, ps, layer, d));
    return mixer_input_grad(p, layer);
}

static fm_status leave(fmt_pass *p, uint32_t layer)
{
    return p->left ? p->left(p->left_ctx, p, layer) : FM_OK;
}

fm_status fmt_layers_backward(fmt_pass *p)
{
    FM_TRY(leave(p, p->arch.layers));

    for (uint32_t l = p->end; l-- > FM_MAX(p->lowest, p->begin);) {
        fmt_parts ps = fmt_parts_from(p, l);
        if (ps.n == 0)
            continue;
        if (p->recompute && l + 1 < p->end)
            FM_TRY(layer_forward(p, ps, l, p->xout));
        FM_TRY(layer_backward(p, l));
        FM_TRY(leave(p, l));
    }
    return FM_OK;
}
