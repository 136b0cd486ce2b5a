/* block_attention.c - the attention branch of a layer, forward and backward. */
#include "train/pass.h"

static fm_attn_train attention_of(const fmi_pass *p, const fmi_slot *s, uint32_t layer)
{
    const fm_arch *a = &p->arch;
    size_t kv = (size_t)a->kv_heads * a->head_dim;

    return (fm_attn_train){.nh = a->heads,
                           .nkv = a->kv_heads,
                           .hd = a->head_dim,
                           .window = a->sw.layer[layer] & FM_LAYER_SLIDES ? a->window : 0,
                           .scale = a->sw.attn_scale,
                           .seq = p->seq,
                           .q = s->q,
                           .k = s->k,
                           .v = s->v,
                           .ldq = (size_t)a->heads * a->head_dim,
                           .ldk = kv,
                           .out = s->attn,
                           .lse = s->lse};
}

static uint32_t seqs_of(fmi_parts ps)
{
    const fmi_lane *last = ps.p[ps.n - 1].lane;
    return last->seq0 + last->batch.seqs;
}

static void rotate(fmi_pass *p, float *x, uint32_t rows, uint32_t heads, bool inverse)
{
    uint32_t hd = p->arch.head_dim;
    p->be->rope(p->be, x, (size_t)heads * hd, p->pos, p->cos, p->sin, rows, heads, hd, inverse);
}

fm_status fmi_attention_forward(fmi_pass *p, fmi_parts ps, uint32_t layer, const float *x, float *y)
{
    const fm_arch *a = &p->arch;
    fmi_slot *s = fmi_slot_of(p, layer);
    int32_t l = (int32_t)layer;
    size_t q = (size_t)a->heads * a->head_dim;
    size_t kv = (size_t)a->kv_heads * a->head_dim;
    const fmi_out in[] = {{FMI_Q, a->qk_norm ? s->qraw : s->q, q},
                          {FMI_K, a->qk_norm ? s->kraw : s->k, kv},
                          {FMI_V, s->v, kv}};
    const fmi_out out = {FMI_O, y, a->hidden};
    fm_status rc = fmi_linears_forward(p, ps, l, x, a->hidden, in, 3);

    if (rc < 0)
        return rc;
    if (a->qk_norm) {
        fmi_norms(p, ps, l, FMI_Q_NORM, s->q, s->qraw, s->qrstd, a->heads, a->head_dim);
        fmi_norms(p, ps, l, FMI_K_NORM, s->k, s->kraw, s->krstd, a->kv_heads, a->head_dim);
    }
    rotate(p, s->q, ps.rows, a->heads, false);
    rotate(p, s->k, ps.rows, a->kv_heads, false);
    fm_attn_train t = attention_of(p, s, layer);
    t.rows = ps.rows;
    t.seqs = seqs_of(ps);
    fmi_virtual_layer(p, ps, layer, false);
    p->be->self_attention(p->be, &t);
    return fmi_linears_forward(p, ps, l, s->attn, q, &out, 1);
}

fm_status fmi_attention_backward(fmi_pass *p, fmi_parts ps, uint32_t layer, const float *dy)
{
    const fm_arch *a = &p->arch;
    fmi_slot *s = fmi_slot_of(p, layer);
    int32_t l = (int32_t)layer;
    size_t q = (size_t)a->heads * a->head_dim;
    const fmi_out out = {FMI_O, (float *)(uintptr_t)dy, a->hidden};
    fm_status rc = fmi_linears_grad(p, ps, l, p->dattn, q, false, s->attn, q, &out, 1);

    if (rc < 0)
        return rc;
    fm_attn_train t = attention_of(p, s, layer);
    t.rows = ps.rows;
    t.seqs = seqs_of(ps);
    t.dout = p->dattn;
    t.dq = p->dq;
    t.dk = p->dk;
    t.dv = p->dv;
    fmi_virtual_layer(p, ps, layer, true);
    p->be->self_attention_grad(p->be, &t);
    rotate(p, p->dq, ps.rows, a->heads, true);
    rotate(p, p->dk, ps.rows, a->kv_heads, true);
    if (a->qk_norm) {
        fmi_norms_grad(p, ps, l, FMI_Q_NORM, p->dqraw, false, p->dq, s->qraw, s->qrstd, a->heads,
                       a->head_dim);
        fmi_norms_grad(p, ps, l, FMI_K_NORM, p->dkraw, false, p->dk, s->kraw, s->krstd, a->kv_heads,
                       a->head_dim);
    }
    return FM_OK;
}

/* Gradients of q, k and v to their input: dh set, and what trains. */
fm_status fmi_attention_input_grad(fmi_pass *p, fmi_parts ps, uint32_t layer, float *dh,
                                   const float *x)
{
    const fm_arch *a = &p->arch;
    size_t kv = (size_t)a->kv_heads * a->head_dim;
    const fmi_out in[] = {{FMI_Q, p->dqraw, (size_t)a->heads * a->head_dim},
                          {FMI_K, p->dkraw, kv},
                          {FMI_V, p->dv, kv}};

    return fmi_linears_grad(p, ps, (int32_t)layer, dh, a->hidden, false, x, a->hidden, in, 3);
}

bool fmi_attention_input_trains(fmi_parts ps, uint32_t layer)
{
    const fmi_out in[] = {{FMI_Q, NULL, 0}, {FMI_K, NULL, 0}, {FMI_V, NULL, 0}};
    return fmi_linears_train(ps, (int32_t)layer, in, 3);
}
