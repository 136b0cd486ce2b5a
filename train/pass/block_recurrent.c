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

/* ---- Mamba, Mamba-2: as infer has them. A slot keeps products and what the scan gives; the
 * convolution and what follows the scan are cheap, and are computed again. ---- */
static size_t mamba_at(const fm_recurrence *r) /* in the first product: what is convolved */
{
    return r->kind == FM_RECURS_MAMBA2 ? r->inner : 0;
}

static size_t gate_at(const fm_recurrence *r)
{
    return r->kind == FM_RECURS_MAMBA2 ? 0 : r->inner;
}

static size_t steps_width(const fm_recurrence *r)
{
    return r->rank + 2 * (size_t)r->n;
}

static fm_convolve silu_conv_of(const fmt_pass *p, const fmt_part *part, uint32_t layer,
                                const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    const fmt_norm *conv = vector_of(part, layer, FMT_CONV);
    return (fm_convolve){.rows = rows_of(p, part),
                         .y = p->rmix,
                         .ldy = r->channels,
                         .x = s->rin + mamba_at(r),
                         .ldx = r->in,
                         .weight = conv->gain,
                         .bias = conv->bias,
                         .channels = r->channels,
                         .kernel = r->kernel,
                         .silu = true};
}

static void silu_conv(fmt_pass *p, fmt_parts ps, uint32_t layer, const fmt_slot *s)
{
    for (uint32_t i = 0; i < ps.n; i++) {
        const fm_convolve c = silu_conv_of(p, &ps.p[i], layer, s);
        p->be->convolve(p->be, &c);
    }
}

fm_scan fmt_recurrent_scan(const fmt_pass *p, uint32_t rows)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    return (fm_scan){.rows = {.m = rows},
                     .heads = r->heads,
                     .hd = r->hd,
                     .groups = r->groups,
                     .n = r->n,
                     .dt_min = r->dt_min,
                     .dt_max = r->dt_max,
                     .by_channel = r->kind == FM_RECURS_MAMBA};
}

static fm_scan scan_of(const fmt_pass *p, const fmt_part *part, uint32_t layer, const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    fm_scan t = fmt_recurrent_scan(p, part->count);
    t.rows = rows_of(p, part);
    t.y = s->ry;
    t.ldy = r->inner;
    t.x = p->rmix;
    t.ldx = r->channels;
    t.b = t.by_channel ? s->rsteps + r->rank : p->rmix + r->inner;
    t.c = t.b + (size_t)r->groups * r->n;
    t.ldb = t.by_channel ? steps_width(r) : r->channels;
    t.dt = t.by_channel ? s->rdt : s->rin + r->inner + r->channels;
    t.lddt = t.by_channel ? r->inner : r->in;
    t.a_log = vector_of(part, layer, FMT_RATES)->gain;
    t.d = vector_of(part, layer, FMT_SKIP)->gain;
    t.dt_bias = vector_of(part, layer, FMT_DT_B)->gain;
    return t;
}

static float *grad_of(const fmt_part *part, uint32_t layer, uint32_t which)
{
    return fmt_lane_grad(part->lane, vector_of(part, layer, which)->param);
}

static void scan_grad(fmt_pass *p, const fmt_part *part, uint32_t layer, const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    fm_scan_grad g = {.s = scan_of(p, part, layer, s),
                      .dy = p->dry,
                      .lddy = r->inner,
                      .dx = p->drmix,
                      .lddx = r->channels,
                      .da_log = grad_of(part, layer, FMT_RATES),
                      .dd = grad_of(part, layer, FMT_SKIP),
                      .ddt_bias = grad_of(part, layer, FMT_DT_B),
                      .work = p->rwork};
    bool mamba = g.s.by_channel;
    g.db = mamba ? p->drsteps + r->rank : p->drmix + r->inner;
    g.dc = g.db + (size_t)r->groups * r->n;
    g.lddb = g.s.ldb;
    g.ddt = mamba ? p->drdt : p->drin + r->inner + r->channels;
    g.ldddt = g.s.lddt;
    p->be->scan_grad(p->be, &g);
}

static void silu_conv_grad(fmt_pass *p, const fmt_part *part, uint32_t layer, const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    const fmt_norm *conv = vector_of(part, layer, FMT_CONV);
    const fm_convolve_grad g = {.c = silu_conv_of(p, part, layer, s),
                                .dy = p->drmix,
                                .lddy = r->channels,
                                .dx = p->drin + mamba_at(r),
                                .lddx = r->in,
                                .dweight = fmt_lane_grad(part->lane, conv->param),
                                .dbias = fmt_lane_grad(part->lane, conv->bias_param)};
    p->be->convolve_grad(p->be, &g);
}

/* Norms of each group of inner columns: rout from rgate, or drout's gradient in its place. */
static void norm_groups(fmt_pass *p, fmt_parts ps, uint32_t layer, bool grad)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    uint32_t wide = r->inner / r->groups;

    for (uint32_t i = 0; i < ps.n; i++)
        for (uint32_t g = 0; g < r->groups; g++) {
            const fmt_part *part = &ps.p[i];
            size_t at = (size_t)part->begin * r->inner + (size_t)g * wide;
            const float *gain = vector_of(part, layer, FMT_REC_NORM)->gain + (size_t)g * wide;
            float *rstd = p->rrstd + (size_t)g * p->cap.rows + part->begin;
            float *dgain = grad_of(part, layer, FMT_REC_NORM);
            if (grad)
                p->be->rmsnorm_grad(p->be, p->drout + at, dgain ? dgain + (size_t)g * wide : NULL,
                                    p->drout + at, p->rgate + at, gain, rstd, part->count, wide,
                                    r->inner, false);
            else
                p->be->rmsnorm(p->be, p->rout + at, p->rgate + at, gain, rstd, part->count, wide,
                               r->inner, p->arch.eps);
        }
}

/* From what the scan gives to what the last product reads. */
static void mamba_gate(fmt_pass *p, fmt_parts ps, uint32_t layer, const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    bool norm = r->kind == FM_RECURS_MAMBA2;
    size_t row = ps.p[0].begin;
    p->be->act(p->be, FM_ACT_SILU, (norm ? p->rgate : p->rout) + row * r->inner, r->inner,
               s->rin + row * r->in + gate_at(r), r->in, s->ry + row * r->inner, r->inner, ps.rows,
               r->inner);
    if (norm)
        norm_groups(p, ps, layer, false);
}

static fm_status mamba(fmt_pass *p, fmt_parts ps, uint32_t layer, const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    const fmt_out x = {FMT_REC_X, s->rsteps, steps_width(r)}, dt = {FMT_REC_DT, s->rdt, r->inner};
    silu_conv(p, ps, layer, s);
    if (r->kind == FM_RECURS_MAMBA) {
        FM_TRY(fmt_linears_forward(p, ps, (int32_t)layer, p->rmix, r->inner, &x, 1));
        FM_TRY(fmt_linears_forward(p, ps, (int32_t)layer, s->rsteps, steps_width(r), &dt, 1));
    }
    for (uint32_t i = 0; i < ps.n; i++) {
        const fm_scan t = scan_of(p, &ps.p[i], layer, s);
        p->be->scan(p->be, &t);
    }
    mamba_gate(p, ps, layer, s);
    return FM_OK;
}

static fm_status mamba_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    const fmt_out x = {FMT_REC_X, p->drsteps, steps_width(r)}, dt = {FMT_REC_DT, p->drdt, r->inner};
    size_t row = ps.p[0].begin;
    if (r->kind == FM_RECURS_MAMBA2)
        norm_groups(p, ps, layer, true);
    p->be->act_grad(p->be, FM_ACT_SILU, p->drin + row * r->in + gate_at(r), r->in,
                    p->dry + row * r->inner, r->inner, p->drout + row * r->inner, r->inner,
                    s->rin + row * r->in + gate_at(r), r->in, s->ry + row * r->inner, r->inner,
                    ps.rows, r->inner);
    for (uint32_t i = 0; i < ps.n; i++)
        scan_grad(p, &ps.p[i], layer, s);
    if (r->kind == FM_RECURS_MAMBA) {
        FM_TRY(fmt_linears_grad(p, ps, (int32_t)layer, p->drsteps, steps_width(r), false, s->rsteps,
                                steps_width(r), &dt, 1));
        FM_TRY(fmt_linears_grad(p, ps, (int32_t)layer, p->drmix, r->inner, true, p->rmix, r->inner,
                                &x, 1));
    }
    for (uint32_t i = 0; i < ps.n; i++)
        silu_conv_grad(p, &ps.p[i], layer, s);
    return FM_OK;
}

/* ---- the branch ---- */
static bool is_short_conv(const fmt_pass *p)
{
    return p->arch.sw.rec.kind == FM_RECURS_CONV;
}

fm_status fmt_recurrent_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *x, float *y)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    const fmt_slot *s = fmt_slot_of(p, layer);
    const fmt_out in = {FMT_REC_IN, s->rin, r->in}, out = {FMT_REC_OUT, y, p->arch.hidden};
    FM_TRY(fmt_linears_forward(p, ps, (int32_t)layer, x, p->arch.hidden, &in, 1));
    for (uint32_t i = 0; is_short_conv(p) && i < ps.n; i++)
        short_conv(p, &ps.p[i], layer, s);
    FM_TRY(is_short_conv(p) ? FM_OK : mamba(p, ps, layer, s));
    return fmt_linears_forward(p, ps, (int32_t)layer, is_short_conv(p) ? s->rout : p->rout,
                               r->inner, &out, 1);
}

fm_status fmt_recurrent_backward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *dy)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    const fmt_slot *s = fmt_slot_of(p, layer);
    const fmt_out out = {FMT_REC_OUT, (float *)(uintptr_t)dy, p->arch.hidden};
    if (!is_short_conv(p)) {
        silu_conv(p, ps, layer, s);
        mamba_gate(p, ps, layer, s);
    }
    FM_TRY(fmt_linears_grad(p, ps, (int32_t)layer, p->drout, r->inner, false,
                            is_short_conv(p) ? s->rout : p->rout, r->inner, &out, 1));
    for (uint32_t i = 0; is_short_conv(p) && i < ps.n; i++)
        short_conv_grad(p, &ps.p[i], layer, s);
    return is_short_conv(p) ? FM_OK : mamba_grad(p, ps, layer, s);
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
