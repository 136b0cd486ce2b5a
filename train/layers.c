/* layers.c - embeddings and layers of a pass, forward and backward.
 *
 * Mirrors the forward of infer: the same operations in the same order, so that a trained model's
 * loss is what its inference gives. The norms' outputs and the activation are made again in the
 * backward: cheap an element, large in memory. */
#include "train/pass.h"

/* ---- embedding ---- */
static void embed(fmi_pass *p, float *x)
{
    fmi_parts ps = fmi_parts_all(p);
    size_t h = p->arch.hidden;

    for (uint32_t i = 0, j; i < ps.n; i = j) {
        const fm_weight *w = ps.p[i].lane->net->outer[FMI_EMBED].w;
        uint32_t rows = 0;
        for (j = i; j < ps.n && ps.p[j].lane->net->outer[FMI_EMBED].w == w; j++)
            rows += ps.p[j].count;
        p->be->embed(p->be, x + ps.p[i].begin * h, h, w, p->ids + ps.p[i].begin, NULL, rows);
    }
    for (size_t i = 0; i < p->lanes; i++)
        fmi_embed_extras(p, p->lane[i], x);
}

static void embed_backward(fmi_pass *p)
{
    for (size_t i = 0; i < p->lanes; i++)
        if (p->lane[i]->embed_trains)
            fmi_embed_extras_grad(p, p->lane[i], p->dx);
}

/* ---- layers ---- */
static fm_status layer_forward(fmi_pass *p, fmi_parts ps, uint32_t layer, float *out)
{
    const fm_arch *a = &p->arch;
    fmi_slot *s = fmi_slot_of(p, layer);
    uint64_t n = (uint64_t)ps.rows * a->hidden;
    int32_t l = (int32_t)layer;

    fmi_norms(p, ps, l, FMI_ATTN_NORM, p->h, s->xin, s->rstd1, 1, a->hidden);
    fm_status rc = fmi_attention_forward(p, ps, layer, p->h, s->xmid);
    if (rc < 0)
        return rc;
    p->be->add(p->be, s->xmid, s->xin, n);
    fmi_norms(p, ps, l, FMI_MLP_NORM, p->h, s->xmid, s->rstd2, 1, a->hidden);
    rc = fmi_mlp_forward(p, ps, layer, p->h, out);
    if (rc == FM_OK)
        p->be->add(p->be, out, s->xmid, n);
    return rc;
}

fm_status fmi_layers_forward(fmi_pass *p)
{
    const fm_arch *a = &p->arch;
    fm_status rc = FM_OK;

    embed(p, fmi_slot_of(p, 0)->xin);
    for (uint32_t l = 0; l < a->layers && rc == FM_OK; l++) {
        float *out = l + 1 < a->layers ? fmi_slot_of(p, l + 1)->xin : p->xout;
        rc = layer_forward(p, fmi_parts_all(p), l, out);
    }
    return rc;
}

/* dx, the gradient behind the layer, becomes the one before it. */
static fm_status layer_backward(fmi_pass *p, uint32_t layer)
{
    const fm_arch *a = &p->arch;
    fmi_slot *s = fmi_slot_of(p, layer);
    int32_t l = (int32_t)layer;
    fmi_parts ps = fmi_parts_from(p, layer);
    fm_status rc = fmi_mlp_backward(p, ps, layer, p->dx);

    if (rc == FM_OK && fmi_mlp_input_trains(ps, layer))
        fmi_norms(p, ps, l, FMI_MLP_NORM, p->h, s->xmid, NULL, 1, a->hidden);
    if (rc == FM_OK)
        rc = fmi_mlp_input_grad(p, ps, layer, p->dh, p->h);
    if (rc < 0)
        return rc;
    fmi_norms_grad(p, ps, l, FMI_MLP_NORM, p->dx, true, p->dh, s->xmid, s->rstd2, 1, a->hidden);
    rc = fmi_attention_backward(p, ps, layer, p->dx);
    if (rc == FM_OK && fmi_attention_input_trains(ps, layer))
        fmi_norms(p, ps, l, FMI_ATTN_NORM, p->h, s->xin, NULL, 1, a->hidden);
    ps = fmi_parts_below(p, layer);
    if (rc == FM_OK)
        rc = fmi_attention_input_grad(p, ps, layer, p->dh, p->h);
    if (rc == FM_OK)
        fmi_norms_grad(p, ps, l, FMI_ATTN_NORM, p->dx, true, p->dh, s->xin, s->rstd1, 1, a->hidden);
    return rc;
}

fm_status fmi_layers_backward(fmi_pass *p)
{
    fm_status rc = FM_OK;

    for (uint32_t l = p->arch.layers; l-- > p->lowest && rc == FM_OK;) {
        fmi_parts ps = fmi_parts_from(p, l);
        if (ps.n == 0)
            continue;
        if (p->recompute && l + 1 < p->arch.layers)
            rc = layer_forward(p, ps, l, p->xout);
        if (rc == FM_OK)
            rc = layer_backward(p, l);
    }
    if (rc == FM_OK)
        embed_backward(p);
    return rc;
}
