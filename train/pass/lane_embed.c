/* lane_embed.c - what a lane adds to its embeddings: a low-rank term, rows of virtual tokens
 * (prompt tuning); and virtual keys and values in each layer (prefix tuning). */
#include "train/pass/pass.h"

/* Calls fn for each segment of rows that are tokens: all of the lane's, or those behind the virtual
 * rows of each sequence. */
static void each_segment(fmt_pass *p, fmt_lane *lane,
                         void (*fn)(fmt_pass *p, fmt_lane *lane, float *x, uint32_t row,
                                    uint32_t count),
                         float *x)
{
    uint32_t virt = lane->net->virt_kind == FMT_VIRTUAL_ROWS ? lane->net->virt : 0;
    uint32_t row = 0;

    if (virt == 0) {
        fn(p, lane, x, 0, lane->batch.rows);
        return;
    }
    for (uint32_t s = 0; s < lane->batch.seqs; s++) {
        fn(p, lane, x, row + virt, lane->batch.len[s] - virt);
        row += lane->batch.len[s];
    }
}

static void terms(fmt_pass *p, fmt_lane *lane, float *x, uint32_t row, uint32_t count)
{
    const fmt_linear *l = &lane->net->outer[FMT_EMBED];
    size_t h = p->arch.hidden;

    for (size_t k = 0; k < l->terms; k++) {
        const fmt_term *t = &l->term[k];
        float *u = t->u ? t->u + (size_t)row * t->r : p->du;
        p->be->copy_rows(p->be, u, t->r, t->a, t->r, p->ids + lane->row0 + row, count, t->r);
        p->be->gemm(p->be, x + (lane->row0 + row) * h, h, u, t->r, false, t->b, t->r, true, count,
                    (uint32_t)h, t->r, t->scale, true);
    }
}

void fmt_embed_terms(fmt_pass *p, fmt_lane *lane, float *x)
{
    if (lane->net->outer[FMT_EMBED].terms > 0)
        each_segment(p, lane, terms, x);
}

/* Copies the rows of virtual tokens into x; they take the place of scaled embeddings. */
void fmt_virtual_rows(fmt_pass *p, fmt_lane *lane, float *x)
{
    const fmt_net *net = lane->net;
    size_t h = p->arch.hidden;
    uint32_t row = lane->row0;

    for (uint32_t s = 0; net->virt_kind == FMT_VIRTUAL_ROWS && s < lane->batch.seqs; s++) {
        p->be->copy_rows(p->be, x + row * h, h, net->virt_rows, h, NULL, net->virt, (uint32_t)h);
        row += lane->batch.len[s];
    }
}

void fmt_virtual_rows_grad(fmt_pass *p, fmt_lane *lane, const float *dx)
{
    const fmt_net *net = lane->net;
    size_t h = p->arch.hidden;
    float *dv = net->virt_kind == FMT_VIRTUAL_ROWS ? fmt_lane_grad(lane, net->virt_param) : NULL;
    uint32_t row = lane->row0;

    for (uint32_t s = 0; dv && s < lane->batch.seqs; s++) {
        p->be->add(p->be, dv, dx + row * h, net->virt * h);
        row += lane->batch.len[s];
    }
}

static void tokens_grad(fmt_pass *p, fmt_lane *lane, float *dx, uint32_t row, uint32_t count)
{
    const fmt_linear *l = &lane->net->outer[FMT_EMBED];
    fm_backend *be = p->be;
    uint32_t h = p->arch.hidden;
    const float *dy = dx + (size_t)(lane->row0 + row) * h;
    const int32_t *ids = p->ids + lane->row0 + row;

    if (l->w_param >= 0)
        be->embed_grad(be, fmt_lane_grad(lane, l->w_param), dy, h, ids, count, h);
    for (size_t k = 0; k < l->terms; k++) {
        const fmt_term *t = &l->term[k];
        if (t->b_param < 0)
            continue;
        const float *u = t->u + (size_t)row * t->r;
        be->gemm(be, fmt_lane_grad(lane, t->b_param), t->r, dy, h, true, u, t->r, false, h, t->r,
                 count, t->scale, true);
        be->gemm(be, p->du, t->r, dy, h, false, t->b, t->r, false, count, t->r, h, t->scale, false);
        be->embed_grad(be, fmt_lane_grad(lane, t->a_param), p->du, t->r, ids, count, t->r);
    }
}

void fmt_embed_tokens_grad(fmt_pass *p, fmt_lane *lane, float *dx)
{
    if (fmt_linear_trains(&lane->net->outer[FMT_EMBED]))
        each_segment(p, lane, tokens_grad, dx);
}

void fmt_virtual_layer(fmt_pass *p, fmt_parts ps, uint32_t layer, bool grad)
{
    size_t kv = (size_t)p->arch.kv_heads * p->arch.head_dim;

    for (uint32_t i = 0; i < ps.n; i++) {
        const fmt_lane *lane = ps.p[i].lane;
        const fmt_net *net = lane->net;
        size_t n = net->virt * kv;
        size_t at = 2 * (layer - net->virt_from) * n;
        if (net->virt_kind != FMT_VIRTUAL_KV)
            continue;
        float *g = grad ? fmt_lane_grad(lane, net->virt_param) : NULL;
        for (uint32_t s = 0; s < lane->batch.seqs; s++) {
            fm_train_seq *q = &p->seq[lane->seq0 + s];
            q->virt = net->virt;
            q->vk = net->virt_rows + at;
            q->vv = net->virt_rows + at + n;
            q->dvk = g ? g + at : NULL;
            q->dvv = g ? g + at + n : NULL;
        }
    }
}
