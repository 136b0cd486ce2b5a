/* block_recurrent.c - the recurrent branch of a layer, forward and backward: a product, the
 * recurrence, a product. Mirrors infer's. Each lane's rows are a call of their own, since gradients
 * of vectors are sums over one lane; a sequence begins with a state of zeros. */
#include "train/pass/pass.h"

static const fmt_norm *vector_of(const fmt_part *part, uint32_t layer, uint32_t which)
{
    return fmt_net_norm_at(part->lane->net, (int32_t)layer, which);
}

static fm_state_rows rows_of(const fmt_pass *p, const fmt_part *part)
{
    const int32_t *row = p->states + part->begin;
    return (fm_state_rows){
        .row = row, .from = row + p->rows, .to = row + 2 * (size_t)p->rows, .m = part->count};
}

/* ---- the short convolution: rin has (b, c, x), rout = c * conv(b * x) ---- */
static fm_convolve short_conv_of(const fmt_pass *p, const fmt_part *part, uint32_t layer,
                                 const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    const fmt_norm *conv = vector_of(part, layer, FMT_CONV);
    return (fm_convolve){.rows = rows_of(p, part),
                         .y = s->rout,
                         .ldy = r->inner,
                         .x = s->rin + 2 * (size_t)r->inner,
                         .before = s->rin,
                         .after = s->rin + r->inner,
                         .ldx = r->in,
                         .weight = conv->gain,
                         .bias = conv->bias,
                         .channels = r->channels,
                         .kernel = r->kernel};
}

static void short_conv(fmt_pass *p, const fmt_part *part, uint32_t layer, const fmt_slot *s)
{
    const fm_convolve c = short_conv_of(p, part, layer, s);
    p->be->convolve(p->be, &c);
}

static void short_conv_grad(fmt_pass *p, const fmt_part *part, uint32_t layer, const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    const fmt_norm *conv = vector_of(part, layer, FMT_CONV);
    const fm_convolve_grad g = {.c = short_conv_of(p, part, layer, s),
                                .dy = p->drout,
                                .lddy = r->inner,
                                .dx = p->drin + 2 * (size_t)r->inner,
                                .dbefore = p->drin,
                                .dafter = p->drin + r->inner,
                                .lddx = r->in,
                                .dweight = fmt_lane_grad(part->lane, conv->param),
                                .dbias = fmt_lane_grad(part->lane, conv->bias_param)};
    p->be->convolve_grad(p->be, &g);
}

/* ---- the branch ---- */
fm_status fmt_recurrent_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *x, float *y)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    const fmt_slot *s = fmt_slot_of(p, layer);
    const fmt_out in = {FMT_REC_IN, s->rin, r->in}, out = {FMT_REC_OUT, y, p->arch.hidden};
    FM_TRY(fmt_linears_forward(p, ps, (int32_t)layer, x, p->arch.hidden, &in, 1));
    for (uint32_t i = 0; i < ps.n; i++)
        short_conv(p, &ps.p[i], layer, s);
    return fmt_linears_forward(p, ps, (int32_t)layer, s->rout, r->inner, &out, 1);
}

fm_status fmt_recurrent_backward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *dy)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    const fmt_slot *s = fmt_slot_of(p, layer);
    const fmt_out out = {FMT_REC_OUT, (float *)(uintptr_t)dy, p->arch.hidden};
    FM_TRY(fmt_linears_grad(p, ps, (int32_t)layer, p->drout, r->inner, false, s->rout, r->inner,
                            &out, 1));
    for (uint32_t i = 0; i < ps.n; i++)
        short_conv_grad(p, &ps.p[i], layer, s);
    return FM_OK;
}

fm_status fmt_recurrent_input_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, float *dh,
                                   const float *x)
{
    const fmt_out in = {FMT_REC_IN, p->drin, p->arch.sw.rec.in};
    return fmt_linears_grad(p, ps, (int32_t)layer, dh, p->arch.hidden, false, x, p->arch.hidden,
                            &in, 1);
}

bool fmt_recurrent_input_trains(fmt_parts ps, uint32_t layer)
{
    const fmt_out in = {FMT_REC_IN, NULL, 0};
    return fmt_linears_train(ps, (int32_t)layer, &in, 1);
}
