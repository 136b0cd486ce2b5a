/* linears.c - linear layers over the rows of several children, forward and backward.
 *
 * Neighbouring parts that hold the same weight and bias go through one product; all products that
 * share x are one call, and so are all low-rank terms. A row's result does not depend on how rows
 * are grouped. Gradients of parameters are sums over one lane's rows. */
#include "train/pass/pass.h"

#include "store/base/cancel.h"
#include "store/base/mem.h"
#include "train/net/method.h"

#define BACKS_MAX 64u

static fmt_linear *lin_of(const fmt_part *part, int32_t layer, uint32_t which)
{
    return fmt_net_at(part->lane->net, layer, which);
}

bool fmt_linears_train(fmt_parts ps, int32_t layer, const fmt_out *out, uint32_t outs)
{
    for (uint32_t i = 0; i < ps.n; i++)
        for (uint32_t o = 0; o < outs; o++)
            if (fmt_linear_trains(lin_of(&ps.p[i], layer, out[o].which)))
                return true;
    return false;
}

/* Finds the parts from i on that hold the same weight (and, forward, the same bias): one segment of
 * rows. Parts that fmt_goes_alone are left out and end it. */
static uint32_t same_weight(fmt_parts ps, uint32_t i, int32_t layer, uint32_t which, bool forward,
                            uint32_t *rows)
{
    const fmt_linear *first = lin_of(&ps.p[i], layer, which);
    uint32_t j = i;

    *rows = 0;
    for (; j < ps.n; j++) {
        const fmt_linear *l = lin_of(&ps.p[j], layer, which);
        bool alone = forward ? fmt_scales_input(l) : fmt_goes_alone(l);
        if (alone || l->w != first->w || (forward && l->bias != first->bias))
            break;
        *rows += ps.p[j].count;
    }
    return j;
}

/* ---- low-rank terms ---- */
static fm_status term_room(fmt_pass *p, size_t n)
{
    return fm_grow(&p->term, &p->term_cap, n, sizeof(*p->term));
}

static size_t most_terms(fmt_parts ps, int32_t layer, const fmt_out *out, uint32_t outs)
{
    size_t most = 0;

    for (uint32_t i = 0; i < ps.n; i++)
        for (uint32_t o = 0; o < outs; o++)
            most = FM_MAX(most, lin_of(&ps.p[i], layer, out[o].which)->terms);
    return most;
}

/* Lists the k-th terms of all linears in p->term; returns their number. */
static uint32_t list_terms(fmt_pass *p, fmt_parts ps, int32_t layer, const float *x, size_t ldx,
                           const fmt_out *out, uint32_t outs, size_t k)
{
    uint32_t n = 0;
    uint64_t at = 0;

    for (uint32_t o = 0; o < outs; o++) {
        for (uint32_t i = 0; i < ps.n; i++) {
            const fmt_part *part = &ps.p[i];
            const fmt_linear *l = lin_of(part, layer, out[o].which);
            if (l->terms <= k || fmt_scales_input(l) || l->term[k].dropout > 0.0f)
                continue;
            const fmt_term *t = &l->term[k];
            fm_term *one = &p->term[n++];
            *one = fmt_term_on(part, l, t, x + part->begin * ldx, ldx);
            one->y = out[o].y + part->begin * out[o].ldy;
            one->ldy = out[o].ldy;
            one->u = fmt_place_u(p, t, part, &at);
        }
    }
    return n;
}

/* Runs products and first terms of all linears, in one call if possible, then other terms. */
static fm_status products_and_terms(fmt_pass *p, fmt_parts ps, int32_t layer, const float *x,
                                    size_t ldx, uint32_t in, const fmt_out *out, uint32_t outs,
                                    uint32_t products, const fm_swiglu *made)
{
    fm_backend *be = p->be;
    size_t most = most_terms(ps, layer, out, outs);
    FM_TRY(most > 0 ? term_room(p, (size_t)ps.n * outs) : FM_OK);
    uint32_t n = most > 0 ? list_terms(p, ps, layer, x, ldx, out, outs, 0) : 0;
    if (n > 0 && products > 0 && be->products_terms) {
        be->products_terms(be, x, ldx, in, p->product, products, p->term, n, made);
    } else {
        if (made)
            be->swiglu(be, made->x, made->gate, made->up, made->n);
        if (products > 0)
            be->products(be, x, ldx, in, p->product, products);
        if (n > 0)
            be->terms(be, p->term, n);
    }
    for (size_t k = 1; k < most; k++)
        be->terms(be, p->term, list_terms(p, ps, layer, x, ldx, out, outs, k));
    return FM_OK;
}

static float *grad_of(const fmt_part *part, int32_t param)
{
    return fmt_lane_grad(part->lane, param);
}

/* A term's gradients over a part's rows; the caller sets du. */
static fm_term back_term(const fmt_part *part, const fmt_linear *l, const fmt_term *t, float *dx,
                         size_t lddx, const float *x, size_t ldx, const fmt_out *out)
{
    fm_term one = fmt_term_on(part, l, t, x ? x + part->begin * ldx : NULL, ldx);

    one.u = t->u ? t->u + (size_t)part->u0 * t->r : NULL;
    one.dy = out->y + part->begin * out->ldy;
    one.lddy = out->ldy;
    one.da = fmt_factor_grad(part->lane, t->a_param, t->da);
    one.db = fmt_factor_grad(part->lane, t->b_param, t->db);
    one.dx = dx && part->deeper ? dx + part->begin * lddx : NULL;
    one.lddx = lddx;
    return one;
}

static fm_status terms_backward(fmt_pass *p, fmt_parts ps, int32_t layer, float *dx, size_t lddx,
                                const float *x, size_t ldx, const fmt_out *out)
{
    size_t most = most_terms(ps, layer, out, 1);
    FM_TRY(most > 0 ? term_room(p, ps.n) : FM_OK);

    for (size_t k = 0; k < most; k++) {
        uint32_t n = 0;
        uint64_t at = 0;
        for (uint32_t i = 0; i < ps.n; i++) {
            const fmt_part *part = &ps.p[i];
            const fmt_linear *l = lin_of(part, layer, out->which);
            if (l->terms <= k || fmt_goes_alone(l))
                continue;
            const fmt_term *t = &l->term[k];
            fm_term *one = &p->term[n++];
            *one = back_term(part, l, t, dx, lddx, x, ldx, out);
            one->du = p->du + at;
            at += (uint64_t)part->count * t->r;
            fm_assert(at <= p->du_floats);
        }
        p->be->terms_grad(p->be, p->term, n);
    }
    return FM_OK;
}

static fm_status watch_out(fmt_pass *p, fmt_parts ps, int32_t layer, const char *what,
                           const fmt_out *out)
{
    const fmt_linear *l = lin_of(&ps.p[0], layer, out->which);
    return fmt_watch_rows(p, what, l->module, out->y + ps.p[0].begin * out->ldy, out->ldy, ps.rows,
                          l->out);
}

/* ---- forward ---- */
static fm_status forward(fmt_pass *p, fmt_parts ps, int32_t layer, const float *x, size_t ldx,
                         const fmt_out *out, uint32_t outs, const fm_swiglu *made)
{
    uint32_t n = 0;
    uint32_t in = 0;

    FM_TRY(fm_go_on());
    for (uint32_t o = 0; o < outs; o++) {
        for (uint32_t i = 0, j; i < ps.n; i = j) {
            const fmt_linear *l = lin_of(&ps.p[i], layer, out[o].which);
            uint32_t rows;
            in = l->in;
            j = same_weight(ps, i, layer, out[o].which, true, &rows);
            if (rows == 0) {
                j = i + 1;
                continue;
            }
            p->product[n++] = (fm_product){.y = out[o].y,
                                           .ldy = out[o].ldy,
                                           .w = l->w,
                                           .bias = l->bias,
                                           .first = ps.p[i].begin,
                                           .m = rows};
        }
    }
    FM_TRY(products_and_terms(p, ps, layer, x, ldx, in, out, outs, n, made));
    for (uint32_t o = 0; o < outs; o++)
        FM_TRY(fmt_alone_forward(p, ps, layer, x, ldx, &out[o]));
    for (uint32_t o = 0; p->watch && o < outs; o++)
        FM_TRY(watch_out(p, ps, layer, "the output", &out[o]));
    return FM_OK;
}

/* Whether only the product and the first term of these linears read x. */
static bool reads_once(fmt_parts ps, int32_t layer, const fmt_out *out)
{
    for (uint32_t i = 0; i < ps.n; i++) {
        const fmt_linear *l = lin_of(&ps.p[i], layer, out->which);
        if (l->terms > 1 || fmt_scales_input(l) || (l->terms > 0 && l->term[0].dropout > 0.0f))
            return false;
    }
    return true;
}

fm_status fmt_linears_made(fmt_pass *p, fmt_parts ps, int32_t layer, const fm_swiglu *x, size_t ldx,
                           const fmt_out *out)
{
    if (reads_once(ps, layer, out))
        return forward(p, ps, layer, x->x, ldx, out, 1, x);
    p->be->swiglu(p->be, x->x, x->gate, x->up, x->n);
    return forward(p, ps, layer, x->x, ldx, out, 1, NULL);
}

fm_status fmt_linears_forward(fmt_pass *p, fmt_parts ps, int32_t layer, const float *x, size_t ldx,
                              const fmt_out *out, uint32_t outs)
{
    return forward(p, ps, layer, x, ldx, out, outs, NULL);
}

/* ---- backward ---- */
/* Neighbouring parts of the same weight that want the gradient of x go through one product. */
static void dx_of(fmt_pass *p, fmt_parts ps, int32_t layer, float *dx, size_t lddx, bool add,
                  const fmt_out *out)
{
    for (uint32_t i = 0; i < ps.n;) {
        uint32_t end = i;
        while (end < ps.n && ps.p[end].deeper &&
               !fmt_goes_alone(lin_of(&ps.p[end], layer, out->which)))
            end++;
        fmt_parts want = {ps.p, end, 0};
        uint32_t rows;
        if (end == i) {
            i++;
            continue;
        }
        uint32_t j = same_weight(want, i, layer, out->which, false, &rows);
        size_t begin = ps.p[i].begin;
        p->be->linear_dx(p->be, dx + begin * lddx, lddx, out->y + begin * out->ldy, out->ldy,
                         lin_of(&ps.p[i], layer, out->which)->w, rows, add);
        i = j;
    }
}

static void weight_grads(fmt_pass *p, fmt_parts ps, int32_t layer, const float *x, size_t ldx,
                         const fmt_out *out)
{
    for (uint32_t i = 0; i < ps.n; i++) {
        const fmt_part *part = &ps.p[i];
        const fmt_linear *l = lin_of(part, layer, out->which);
        const float *dy = out->y + part->begin * out->ldy;
        if (!part->lane->ps || fmt_goes_alone(l))
            continue;
        float *dw = fmt_weight_grad(l, part->lane->ps);
        if (dw)
            p->be->linear_dw(p->be, dw, dy, out->ldy, x + part->begin * ldx, ldx, part->count,
                             l->out, l->in, l->transposed && !l->fold);
        if (l->bias_param >= 0)
            p->be->bias_grad(p->be, grad_of(part, l->bias_param), dy, out->ldy, part->count,
                             l->out);
    }
}

/* Whether the device takes products and terms of all outs in one call: it has the operation, and
 * every linear is plain with at most one term. Without any term the call gains nothing. */
static bool goes_at_once(const fmt_pass *p, fmt_parts ps, int32_t layer, const fmt_out *out,
                         uint32_t outs)
{
    bool any = false;

    if (!p->be->linears_dx || p->watch || (size_t)ps.n * outs > BACKS_MAX)
        return false;
    for (uint32_t i = 0; i < ps.n; i++)
        for (uint32_t o = 0; o < outs; o++) {
            const fmt_linear *l = lin_of(&ps.p[i], layer, out[o].which);
            if (!ps.p[i].deeper || fmt_goes_alone(l) || l->terms > 1)
                return false;
            any = any || l->terms > 0;
        }
    return any;
}

static void grad_at_once(fmt_pass *p, fmt_parts ps, int32_t layer, float *dx, size_t lddx, bool add,
                         const float *x, size_t ldx, const fmt_out *out, uint32_t outs,
                         const fm_swiglu *made)
{
    fm_back list[BACKS_MAX] = {0};
    uint64_t at = 0;
    uint32_t n = 0;

    for (uint32_t o = 0; o < outs; o++)
        for (uint32_t i = 0; i < ps.n; i++) {
            const fmt_part *part = &ps.p[i];
            const fmt_linear *l = lin_of(part, layer, out[o].which);
            fm_back *b = &list[n++];
            *b = (fm_back){.dy = out[o].y + part->begin * out[o].ldy,
                           .lddy = out[o].ldy,
                           .w = l->w,
                           .first = part->begin,
                           .m = part->count,
                           .add = add || o > 0};
            if (l->terms == 0)
                continue;
            b->term = back_term(part, l, &l->term[0], dx, lddx, x, ldx, &out[o]);
            b->term.du = p->du + at;
            at += (uint64_t)part->count * l->term[0].r;
            fm_assert(at <= p->du_floats);
        }
    p->be->linears_dx(p->be, dx, lddx, list, n, made);
    for (uint32_t o = 0; o < outs; o++)
        weight_grads(p, ps, layer, x, ldx, &out[o]);
}

fm_status fmt_linears_grad(fmt_pass *p, fmt_parts ps, int32_t layer, float *dx, size_t lddx,
                           bool add, const float *x, size_t ldx, const fmt_out *out, uint32_t outs)
{
    fm_status rc = FM_OK;

    FM_TRY(fm_go_on());
    if (dx && goes_at_once(p, ps, layer, out, outs)) {
        grad_at_once(p, ps, layer, dx, lddx, add, x, ldx, out, outs, NULL);
        return FM_OK;
    }
    for (uint32_t o = 0; o < outs && rc == FM_OK; o++) {
        if (p->watch)
            rc = watch_out(p, ps, layer, "the gradient of the output", &out[o]);
        if (dx)
            dx_of(p, ps, layer, dx, lddx, add || o > 0, &out[o]);
        weight_grads(p, ps, layer, x, ldx, &out[o]);
        FM_THEN(rc, terms_backward(p, ps, layer, dx, lddx, x, ldx, &out[o]));
        FM_THEN(rc, fmt_alone_backward(p, ps, layer, dx, lddx, add || o > 0, x, ldx, &out[o]));
    }
    return rc;
}

fm_status fmt_linears_made_grad(fmt_pass *p, fmt_parts ps, int32_t layer, float *dx, size_t lddx,
                                const fm_swiglu *x, size_t ldx, const fmt_out *out)
{
    bool trains = false;

    FM_TRY(fm_go_on());
    for (uint32_t i = 0; i < ps.n; i++) {
        const fmt_linear *l = lin_of(&ps.p[i], layer, out->which);
        trains = trains || (l->fold && l->fold->dw) || l->w_param >= 0;
    }
    if (!trains && goes_at_once(p, ps, layer, out, 1)) {
        grad_at_once(p, ps, layer, dx, lddx, false, x->x, ldx, out, 1, x);
        return FM_OK;
    }
    p->be->swiglu(p->be, x->x, x->gate, x->up, x->n);
    return fmt_linears_grad(p, ps, layer, dx, lddx, false, x->x, ldx, out, 1);
}

/* ---- norms ---- */
static fmt_norm *norm_of(const fmt_part *part, int32_t layer, uint32_t which)
{
    return fmt_net_norm_at(part->lane->net, layer, which);
}

/* Head norms are RMS in every family. */
static bool is_layernorm(const fmt_pass *p, uint32_t which, int32_t layer)
{
    bool head = layer != FMT_OUTSIDE && (which == FMT_Q_NORM || which == FMT_K_NORM);
    return fm_norm_is_layer(p->arch.sw.norm) && !head;
}

static bool same_norm(const fmt_norm *a, const fmt_norm *b)
{
    return a->gain == b->gain && a->bias == b->bias;
}

void fmt_norms(fmt_pass *p, fmt_parts ps, int32_t layer, uint32_t which, float *y, const float *x,
               float *rstd, uint32_t per_row, uint32_t h)
{
    for (uint32_t i = 0, j; i < ps.n; i = j) {
        const fmt_norm *n = norm_of(&ps.p[i], layer, which);
        uint32_t m = 0;
        for (j = i; j < ps.n && same_norm(norm_of(&ps.p[j], layer, which), n); j++)
            m += ps.p[j].count;
        size_t at = (size_t)ps.p[i].begin * per_row;
        if (is_layernorm(p, which, layer))
            p->be->layernorm(p->be, y + at * h, x + at * h, n->gain, n->bias, m * per_row, h, h,
                             p->arch.eps);
        else
            p->be->rmsnorm(p->be, y + at * h, x + at * h, n->gain, rstd ? rstd + at : NULL,
                           m * per_row, h, h, p->arch.eps);
    }
}

void fmt_norms_grad(fmt_pass *p, fmt_parts ps, int32_t layer, uint32_t which, float *dx, bool add,
                    const float *dy, const float *x, const float *rstd, uint32_t per_row,
                    uint32_t h)
{
    for (uint32_t i = 0, j; i < ps.n; i = j) {
        const fmt_norm *n = norm_of(&ps.p[i], layer, which);
        uint32_t m = 0;
        if (!ps.p[i].deeper) {
            j = i + 1;
            continue;
        }
        for (j = i; j < ps.n; j++) { /* the gradient of a parameter is summed over its lane alone */
            const fmt_norm *other = norm_of(&ps.p[j], layer, which);
            bool alone =
                n->param >= 0 || other->param >= 0 || n->bias_param >= 0 || other->bias_param >= 0;
            if (!same_norm(other, n) || !ps.p[j].deeper || (j > i && alone))
                break;
            m += ps.p[j].count;
        }
        size_t at = (size_t)ps.p[i].begin * per_row;
        float *dgain = grad_of(&ps.p[i], n->param);
        if (is_layernorm(p, which, layer))
            p->be->layernorm_grad(p->be, dx + at * h, dgain, grad_of(&ps.p[i], n->bias_param),
                                  dy + at * h, x + at * h, n->gain, m * per_row, h, h, p->arch.eps,
                                  add);
        else
            p->be->rmsnorm_grad(p->be, dx + at * h, dgain, dy + at * h, x + at * h, n->gain,
                                rstd + at, m * per_row, h, h, add);
    }
}
