/* linears_alone.c - what a linear layer does besides its product and plain low-rank terms: scales
 * of its input (IA3) and output (IA3, DoRA), and terms with dropout on their input. It goes part
 * by part, since each part has its own x or dy:
 *   y = ((x * in_scale) W^T + bias + terms) * out_scale + bias_after
 * DoRA with dropout is PEFT's, xd = drop(x):
 *   y = (xd W^T + terms(xd)) * out_scale + (x - xd) W^T + bias
 * DoRA's norm is a constant of the gradient (PEFT detaches it); the gradient of its magnitude is
 * the sum of dy times the value that is scaled, divided by the norm. */
#include "train/pass/pass.h"

#include "store/base/math/rng.h"
#include "train/net/method.h"

static bool drops_out(const fmt_linear *l)
{
    for (size_t t = 0; t < l->terms; t++)
        if (l->term[t].dropout > 0.0f)
            return true;
    return false;
}

static bool dora_drops(const fmt_linear *l)
{
    return l->dora && drops_out(l);
}

bool fmt_scales_input(const fmt_linear *l)
{
    return l->in_scale.s || dora_drops(l);
}

bool fmt_goes_alone(const fmt_linear *l)
{
    return l->in_scale.s || l->out_scale.s || l->bias_after || drops_out(l);
}

uint64_t fmt_alone_floats(const fmt_lane *lane)
{
    const fmt_linear *head = &lane->net->outer[FMT_HEAD];
    uint64_t most = 0;
    fmt_linear *l;

    for (size_t i = 0; (l = fmt_net_linear(lane->net, i)); i++) {
        uint64_t rows = l == head ? lane->most.labels : lane->most.rows;
        if (fmt_goes_alone(l))
            most = FM_MAX(most, rows * FM_MAX(l->in, l->out));
    }
    return most;
}

/* Dropout: the mask is a function of the child's seed, the module, the step, row and column. */
static void drop(fmt_pass *p, const fmt_part *part, const fmt_term *t, float *y, size_t ldy,
                 const float *x, size_t ldx, uint32_t n, bool accumulate)
{
    const fmt_lane *lane = part->lane;
    uint64_t stream = fm_rng_u64(t->stream, lane->step, 0);

    p->be->dropout(p->be, y, ldy, x, ldx, part->count, n, t->dropout, lane->c->seed, stream,
                   lane->row_base + part->u0, accumulate);
}

/* ---- forward ---- */
static void term_forward(fmt_pass *p, const fmt_part *part, const fmt_linear *l, const fmt_term *t,
                         const float *x, size_t ldx, float *y, size_t ldy)
{
    uint64_t at = 0;

    if (t->dropout > 0.0f) {
        drop(p, part, t, p->alone[1], l->in, x, ldx, l->in, false);
        x = p->alone[1];
        ldx = l->in;
    }
    fm_term one = fmt_term_on(part, l, t, x, ldx);
    one.y = y;
    one.ldy = ldy;
    one.u = fmt_place_u(p, t, part, &at);
    p->be->terms(p->be, &one, 1);
}

/* Scales the output, and before that copies what the gradient of the scale needs. */
static void scale_output(fmt_pass *p, const fmt_part *part, const fmt_linear *l, float *y,
                         size_t ldy, const float *bias)
{
    fm_backend *be = p->be;

    if (l->kept) {
        float *kept = l->kept + (size_t)part->u0 * l->out;
        be->copy_rows(be, kept, l->out, y, ldy, NULL, part->count, l->out);
        if (l->dora)
            be->affine(be, kept, l->out, l->out, l->dora->inv, NULL, 0, part->count, NULL);
    }
    if (l->out_scale.s || bias)
        be->affine(be, y, ldy, l->out, l->out_scale.s, bias, 0, part->count, NULL);
}

/* y[m, n] += x[m, n], with any strides. */
static void add_rows(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx, uint32_t m,
                     uint32_t n)
{
    if (ldy == n && ldx == n)
        be->add(be, y, x, (uint64_t)m * n);
    for (uint32_t i = 0; (ldy != n || ldx != n) && i < m; i++)
        be->add(be, y + i * ldy, x + i * ldx, n);
}

static void dora_forward(fmt_pass *p, const fmt_part *part, const fmt_linear *l, const float *x,
                         size_t ldx, float *y, size_t ldy)
{
    fm_backend *be = p->be;
    const fmt_term *t = &l->term[l->dora->term];
    float *xd = p->alone[1];
    float *rest = p->alone[2];
    const fm_product dropped = {.y = y, .ldy = ldy, .w = l->w, .m = part->count};
    const fm_product other = {
        .y = p->alone[0], .ldy = l->out, .w = l->w, .bias = l->bias_after, .m = part->count};
    fmt_term plain = *t;

    drop(p, part, t, xd, l->in, x, ldx, l->in, false);
    be->copy_rows(be, rest, l->in, xd, l->in, NULL, part->count, l->in);
    be->scale(be, rest, -1.0f, (uint64_t)part->count * l->in);
    add_rows(be, rest, l->in, x, ldx, part->count, l->in);
    be->products(be, xd, l->in, l->in, &dropped, 1);
    plain.dropout = 0.0f;
    term_forward(p, part, l, &plain, xd, l->in, y, ldy);
    scale_output(p, part, l, y, ldy, NULL);
    be->products(be, rest, l->in, l->in, &other, 1);
    add_rows(be, y, ldy, p->alone[0], l->out, part->count, l->out);
}

fm_status fmt_alone_forward(fmt_pass *p, fmt_parts ps, int32_t layer, const float *x, size_t ldx,
                            const fmt_out *out)
{
    fm_backend *be = p->be;

    for (uint32_t i = 0; i < ps.n; i++) {
        const fmt_part *part = &ps.p[i];
        const fmt_linear *l = fmt_net_at(part->lane->net, layer, out->which);
        const float *in = x + part->begin * ldx;
        float *y = out->y + part->begin * out->ldy;
        size_t ldin = ldx;
        if (!fmt_goes_alone(l))
            continue;
        if (dora_drops(l)) {
            dora_forward(p, part, l, in, ldx, y, out->ldy);
            continue;
        }
        if (l->in_scale.s) {
            be->copy_rows(be, p->alone[0], l->in, in, ldx, NULL, part->count, l->in);
            be->affine(be, p->alone[0], l->in, l->in, l->in_scale.s, NULL, 0, part->count, NULL);
            in = p->alone[0];
            ldin = l->in;
            fm_product one = {
                .y = y, .ldy = out->ldy, .w = l->w, .bias = l->bias, .m = part->count};
            be->products(be, in, ldin, l->in, &one, 1);
        }
        for (size_t t = 0; t < l->terms; t++)
            if (l->in_scale.s || l->term[t].dropout > 0.0f)
                term_forward(p, part, l, &l->term[t], in, ldin, y, out->ldy);
        scale_output(p, part, l, y, out->ldy, l->bias_after);
    }
    return FM_OK;
}

/* ---- backward ---- */
/* Gradients of one part: dy behind the output's scale, dx before the input's scale. */
typedef struct grads {
    const float *dy;
    size_t lddy;
    float *dx; /* NULL: not wanted */
    size_t lddx;
    bool add;
} grads;

/* Sets the wanted gradient to dense [m, n], or adds dense to it. */
static void give_dx(fm_backend *be, const grads *g, const float *dense, uint32_t m, uint32_t n)
{
    if (g->add)
        add_rows(be, g->dx, g->lddx, dense, n, m, n);
    else
        be->copy_rows(be, g->dx, g->lddx, dense, n, NULL, m, n);
}

static void term_backward(fmt_pass *p, const fmt_part *part, const fmt_linear *l, const fmt_term *t,
                          const grads *g, const float *x, size_t ldx)
{
    bool dropped = t->dropout > 0.0f;
    float *da = fmt_factor_grad(part->lane, t->a_param, t->da);

    if (dropped && da) {
        drop(p, part, t, p->alone[2], l->in, x, ldx, l->in, false);
        x = p->alone[2];
        ldx = l->in;
    }
    fm_term one = fmt_term_on(part, l, t, x, ldx);
    one.u = t->u ? t->u + (size_t)part->u0 * t->r : NULL;
    one.dy = g->dy;
    one.lddy = g->lddy;
    one.du = p->du;
    one.da = da;
    one.db = fmt_factor_grad(part->lane, t->b_param, t->db);
    one.dx = dropped ? NULL : g->dx;
    one.lddx = g->lddx;
    p->be->terms_grad(p->be, &one, 1);
    if (!dropped || !g->dx)
        return;
    if (!da) /* else du is already computed */
        p->be->gemm(p->be, p->du, t->r, g->dy, g->lddy, false, t->b, t->r, false, part->count, t->r,
                    l->out, t->scale, false);
    p->be->gemm(p->be, p->alone[2], l->in, p->du, t->r, false, t->a, l->in, false, part->count,
                l->in, t->r, 1.0f, false);
    drop(p, part, t, g->dx, g->lddx, p->alone[2], l->in, l->in, true);
}

/* Goes from dy behind the output's scale to dy before it, and adds the gradient of the scale. */
static void unscale_output(fmt_pass *p, const fmt_part *part, const fmt_linear *l, grads *g)
{
    int32_t param = l->dora ? l->dora->magnitude : l->out_scale.param;

    if (!l->out_scale.s)
        return;
    p->be->scale_grad(p->be, p->alone[0], l->out, fmt_lane_grad(part->lane, param), g->dy, g->lddy,
                      l->kept ? l->kept + (size_t)part->u0 * l->out : NULL, l->out, l->out_scale.s,
                      part->count, l->out);
    g->dy = p->alone[0];
    g->lddy = l->out;
}

/* dx = dy W + drop(dy' (W + terms) - dy W), dy' being dy before the scale. */
static void dora_backward(fmt_pass *p, const fmt_part *part, const fmt_linear *l, const grads *g,
                          const float *x, size_t ldx)
{
    fm_backend *be = p->be;
    const fmt_term *t = &l->term[l->dora->term];
    float *xd = p->alone[2];
    float *d = p->alone[1];
    uint64_t n = (uint64_t)part->count * l->in;
    fmt_term plain = *t;
    grads own = *g;

    plain.dropout = 0.0f;
    unscale_output(p, part, l, &own); /* in alone[0] */
    own.dx = g->dx ? d : NULL;
    own.lddx = l->in;
    if (g->dx)
        be->linear_dx(be, d, l->in, own.dy, own.lddy, l->w, part->count, false);
    drop(p, part, t, xd, l->in, x, ldx, l->in, false);
    term_backward(p, part, l, &plain, &own, xd, l->in);
    if (!g->dx)
        return;
    float *direct = p->alone[0];
    be->linear_dx(be, direct, l->in, g->dy, g->lddy, l->w, part->count, false);
    give_dx(be, g, direct, part->count, l->in);
    be->scale(be, direct, -1.0f, n);
    be->add(be, d, direct, n);
    drop(p, part, t, g->dx, g->lddx, d, l->in, l->in, true);
}

static void part_backward(fmt_pass *p, const fmt_part *part, const fmt_linear *l, grads *g,
                          const float *x, size_t ldx)
{
    fm_backend *be = p->be;
    grads own = *g;
    float *dbias = fmt_lane_grad(part->lane, l->bias_param);
    float *dscale = fmt_lane_grad(part->lane, l->in_scale.param);

    if (dbias && l->bias_after)
        be->bias_grad(be, dbias, own.dy, own.lddy, part->count, l->out);
    if (dora_drops(l)) {
        dora_backward(p, part, l, g, x, ldx);
        return;
    }
    unscale_output(p, part, l, &own);
    if (dbias && !l->bias_after)
        be->bias_grad(be, dbias, own.dy, own.lddy, part->count, l->out);
    if (l->w_param >= 0)
        be->linear_dw(be, fmt_lane_grad(part->lane, l->w_param), own.dy, own.lddy, x, ldx,
                      part->count, l->out, l->in, l->transposed);
    if (l->in_scale.s) {
        own.dx = g->dx || dscale ? p->alone[1] : NULL;
        own.lddx = l->in;
        own.add = false;
    }
    if (own.dx)
        be->linear_dx(be, own.dx, own.lddx, own.dy, own.lddy, l->w, part->count, own.add);
    for (size_t t = 0; t < l->terms; t++)
        term_backward(p, part, l, &l->term[t], &own, x, ldx);
    if (!l->in_scale.s || !own.dx)
        return;
    be->scale_grad(be, g->dx ? own.dx : NULL, l->in, dscale, own.dx, l->in, x, ldx, l->in_scale.s,
                   part->count, l->in);
    if (g->dx)
        give_dx(be, g, own.dx, part->count, l->in);
}

fm_status fmt_alone_backward(fmt_pass *p, fmt_parts ps, int32_t layer, float *dx, size_t lddx,
                             bool add, const float *x, size_t ldx, const fmt_out *out)
{
    for (uint32_t i = 0; i < ps.n; i++) {
        const fmt_part *part = &ps.p[i];
        const fmt_linear *l = fmt_net_at(part->lane->net, layer, out->which);
        if (!fmt_goes_alone(l))
            continue;
        grads g = {.dy = out->y + part->begin * out->ldy,
                   .lddy = out->ldy,
                   .dx = dx && part->deeper ? dx + part->begin * lddx : NULL,
                   .lddx = lddx,
                   .add = add};
        part_backward(p, part, l, &g, x ? x + part->begin * ldx : NULL, ldx);
    }
    return FM_OK;
}
