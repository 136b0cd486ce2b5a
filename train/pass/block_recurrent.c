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

static size_t first_width(const fm_recurrence *r) /* of rin */
{
    return r->kind == FM_RECURS_DELTA ? r->channels : r->in;
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
                         .ldx = first_width(r),
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
                                .lddx = first_width(r),
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

/* ---- the gated delta rule: a slot has q, k, v before the convolution in rin, z, b, a ---- */
fm_delta fmt_recurrent_delta(const fmt_pass *p, uint32_t rows)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    return (fm_delta){
        .rows = {.m = rows}, .hk = r->groups, .hv = r->heads, .dk = r->n, .dv = r->hd};
}

static fm_delta delta_of(const fmt_pass *p, const fmt_part *part, uint32_t layer, const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    fm_delta d = fmt_recurrent_delta(p, part->count);
    d.rows = rows_of(p, part);
    d.y = s->ry;
    d.ldy = r->inner;
    d.q = p->rmix;
    d.k = d.q + (size_t)r->groups * r->n;
    d.v = d.k + (size_t)r->groups * r->n;
    d.ldx = r->channels;
    d.a = s->ra;
    d.b = s->rb;
    d.lda = r->heads;
    d.a_log = vector_of(part, layer, FMT_RATES)->gain;
    d.dt_bias = vector_of(part, layer, FMT_DT_B)->gain;
    return d;
}

static void delta_grad(fmt_pass *p, const fmt_part *part, uint32_t layer, const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    fm_delta_grad g = {.d = delta_of(p, part, layer, s),
                       .dy = p->dry,
                       .lddy = r->inner,
                       .dq = p->drmix,
                       .lddx = r->channels,
                       .da = p->dra,
                       .db = p->drb,
                       .ldda = r->heads,
                       .da_log = grad_of(part, layer, FMT_RATES),
                       .ddt_bias = grad_of(part, layer, FMT_DT_B),
                       .work = p->rwork};
    g.dk = g.dq + (size_t)r->groups * r->n;
    g.dv = g.dk + (size_t)r->groups * r->n;
    p->be->delta_grad(p->be, &g);
}

/* A piece of one group in products that have (q, k, v.., z..) and (b.., a..) of each in turn. */
typedef struct dealt {
    float *apart, *all;
    size_t ld, ld_all;
    uint32_t n;
} dealt;

/* Copies them apart, or their gradients back. */
static void deal_groups(fmt_pass *p, uint32_t rows, float *qkv, float *z, float *b, float *a,
                        bool back)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    uint32_t share = r->heads / r->groups, wide = share * r->hd, n = r->n;
    size_t keys = (size_t)r->groups * n, ba = 2 * (size_t)r->heads;
    for (size_t g = 0; g < r->groups; g++) {
        float *all = p->rdeal + g * (2 * (size_t)n + 2 * (size_t)wide);
        float *gates = p->rdeal_ba + 2 * g * share;
        const dealt part[] = {
            {qkv + g * n, all, r->channels, r->in, n},
            {qkv + keys + g * n, all + n, r->channels, r->in, n},
            {qkv + 2 * keys + g * wide, all + 2 * (size_t)n, r->channels, r->in, wide},
            {z + g * wide, all + 2 * (size_t)n + wide, r->inner, r->in, wide},
            {b + g * share, gates, r->heads, ba, share},
            {a + g * share, gates + share, r->heads, ba, share}};
        for (size_t i = 0; i < FM_ARRAY_LEN(part); i++)
            if (back)
                p->be->copy_rows(p->be, part[i].all, part[i].ld_all, part[i].apart, part[i].ld,
                                 NULL, rows, part[i].n);
            else
                p->be->copy_rows(p->be, part[i].apart, part[i].ld, part[i].all, part[i].ld_all,
                                 NULL, rows, part[i].n);
    }
}

/* The first products of a layer, or their gradients; returns how many there are. */
static uint32_t delta_products(const fmt_pass *p, fmt_out *out, float *qkv, float *z, float *b,
                               float *a)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    out[0] = (fmt_out){FMT_REC_IN, r->by_groups ? p->rdeal : qkv, r->in};
    out[1] = (fmt_out){FMT_REC_BETA, r->by_groups ? p->rdeal_ba : b,
                       r->by_groups ? 2 * (size_t)r->heads : r->heads};
    out[2] = (fmt_out){FMT_REC_Z, z, r->inner};
    out[3] = (fmt_out){FMT_REC_ALPHA, a, r->heads};
    return r->by_groups ? 2 : 4;
}

/* Norms of each head: rgate from ry, or in dry the gradient in its place. */
static void delta_norm(fmt_pass *p, fmt_parts ps, uint32_t layer, const fmt_slot *s, bool grad)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    for (uint32_t i = 0; i < ps.n; i++) {
        const fmt_part *part = &ps.p[i];
        size_t at = (size_t)part->begin * r->inner;
        const float *gain = vector_of(part, layer, FMT_REC_NORM)->gain;
        float *rstd = p->rrstd + (size_t)part->begin * r->heads;
        uint32_t m = part->count * r->heads;
        if (grad)
            p->be->rmsnorm_grad(p->be, p->dry + at, grad_of(part, layer, FMT_REC_NORM), p->dry + at,
                                s->ry + at, gain, rstd, m, r->hd, r->hd, false);
        else
            p->be->rmsnorm(p->be, p->rgate + at, s->ry + at, gain, rstd, m, r->hd, r->hd,
                           p->arch.eps);
    }
}

static void delta_gate(fmt_pass *p, fmt_parts ps, uint32_t layer, const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    size_t at = (size_t)ps.p[0].begin * r->inner;
    delta_norm(p, ps, layer, s, false);
    p->be->act(p->be, FM_ACT_SILU, p->rout + at, r->inner, s->rz + at, r->inner, p->rgate + at,
               r->inner, ps.rows, r->inner);
}

static fm_status delta_rule(fmt_pass *p, fmt_parts ps, uint32_t layer, const fmt_slot *s)
{
    silu_conv(p, ps, layer, s);
    for (uint32_t i = 0; i < ps.n; i++) {
        const fm_delta d = delta_of(p, &ps.p[i], layer, s);
        p->be->delta(p->be, &d);
    }
    delta_gate(p, ps, layer, s);
    return FM_OK;
}

static fm_status delta_rule_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    size_t at = (size_t)ps.p[0].begin * r->inner;
    p->be->act_grad(p->be, FM_ACT_SILU, p->drz + at, r->inner, p->dry + at, r->inner, p->drout + at,
                    r->inner, s->rz + at, r->inner, p->rgate + at, r->inner, ps.rows, r->inner);
    delta_norm(p, ps, layer, s, true);
    for (uint32_t i = 0; i < ps.n; i++) {
        delta_grad(p, &ps.p[i], layer, s);
        silu_conv_grad(p, &ps.p[i], layer, s);
    }
    if (r->by_groups)
        deal_groups(p, ps.rows, p->drin, p->drz, p->drb, p->dra, true);
    return FM_OK;
}

/* ---- the branch ---- */
/* The first products: theirs, or (grad) their gradients' places. */
static uint32_t first_products(const fmt_pass *p, fmt_out *out, const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    if (r->kind == FM_RECURS_DELTA)
        return s ? delta_products(p, out, s->rin, s->rz, s->rb, s->ra)
                 : delta_products(p, out, p->drin, p->drz, p->drb, p->dra);
    out[0] = (fmt_out){FMT_REC_IN, s ? s->rin : p->drin, r->in};
    return 1;
}

/* From the first products to what the last one reads, and back. */
static fm_status recur(fmt_pass *p, fmt_parts ps, uint32_t layer, const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    for (uint32_t i = 0; r->kind == FM_RECURS_CONV && i < ps.n; i++)
        short_conv(p, &ps.p[i], layer, s);
    if (r->by_groups)
        deal_groups(p, ps.rows, s->rin, s->rz, s->rb, s->ra, false);
    if (r->kind == FM_RECURS_DELTA)
        return delta_rule(p, ps, layer, s);
    return r->kind == FM_RECURS_CONV ? FM_OK : mamba(p, ps, layer, s);
}

static fm_status recur_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, const fmt_slot *s)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    for (uint32_t i = 0; r->kind == FM_RECURS_CONV && i < ps.n; i++)
        short_conv_grad(p, &ps.p[i], layer, s);
    if (r->kind == FM_RECURS_DELTA)
        return delta_rule_grad(p, ps, layer, s);
    return r->kind == FM_RECURS_CONV ? FM_OK : mamba_grad(p, ps, layer, s);
}

static const float *made_of(const fmt_pass *p, const fmt_slot *s)
{
    return p->arch.sw.rec.kind == FM_RECURS_CONV ? s->rout : p->rout;
}

fm_status fmt_recurrent_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *x, float *y)
{
    const fmt_slot *s = fmt_slot_of(p, layer);
    const fmt_out out = {FMT_REC_OUT, y, p->arch.hidden};
    fmt_out in[4];
    uint32_t n = first_products(p, in, s);
    FM_TRY(fmt_linears_forward(p, ps, (int32_t)layer, x, p->arch.hidden, in, n));
    FM_TRY(recur(p, ps, layer, s));
    return fmt_linears_forward(p, ps, (int32_t)layer, made_of(p, s), p->arch.sw.rec.inner, &out, 1);
}

fm_status fmt_recurrent_backward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *dy)
{
    const fm_recurrence *r = &p->arch.sw.rec;
    const fmt_slot *s = fmt_slot_of(p, layer);
    const fmt_out out = {FMT_REC_OUT, (float *)(uintptr_t)dy, p->arch.hidden};
    if (r->kind != FM_RECURS_CONV)
        silu_conv(p, ps, layer, s);
    if (r->kind == FM_RECURS_DELTA)
        delta_gate(p, ps, layer, s);
    else if (r->kind != FM_RECURS_CONV)
        mamba_gate(p, ps, layer, s);
    FM_TRY(fmt_linears_grad(p, ps, (int32_t)layer, p->drout, r->inner, false, made_of(p, s),
                            r->inner, &out, 1));
    return recur_grad(p, ps, layer, s);
}

fm_status fmt_recurrent_input_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, float *dh,
                                   const float *x)
{
    fmt_out in[4];
    uint32_t n = first_products(p, in, NULL);
    return fmt_linears_grad(p, ps, (int32_t)layer, dh, p->arch.hidden, false, x, p->arch.hidden, in,
                            n);
}

/* A linear that the layer lacks trains nothing. */
bool fmt_recurrent_input_trains(fmt_parts ps, uint32_t layer)
{
    const fmt_out in[] = {{FMT_REC_IN, NULL, 0},
                          {FMT_REC_BETA, NULL, 0},
                          {FMT_REC_Z, NULL, 0},
                          {FMT_REC_ALPHA, NULL, 0}};
    return fmt_linears_train(ps, (int32_t)layer, in, FM_ARRAY_LEN(in));
}
