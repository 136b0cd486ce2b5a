/* block_moe.c - the feed-forward branch of a layer with experts, forward and backward.
 *
 * As infer's: the router's scores choose on the host, rows are laid out once for each choice,
 * sorted by expert (rows ascending inside), and each expert's stretch goes through the same grouped
 * products as any linear layer. Lanes that the backward leaves out stand behind the others, so of
 * every stretch it needs the first part. The gradient of a weight goes through the softmax over
 * the chosen (renormalised) or over all experts, on the host in double; the choice itself has
 * none. */
#include "infer/route.h"
#include "train/pass.h"

#include <math.h>

#include "store/base/detmath.h"
#include "store/base/mem.h"

/* Of one slot. The device's arrays have rows * chosen entries. */
struct fmi_deal {
    fmi_choice *pick; /* [rows, chosen] experts ascending */
    float *score;     /* [rows, experts] */
    float *gate;      /* [rows] of the shared expert */
    int32_t *order;   /* [rows * chosen] slot -> row */
    uint32_t *begin;  /* [experts + 1] first slot of each expert */
    uint32_t slots;
    int32_t *dev_order, *dev_slot;   /* slot -> row, (row, choice) -> slot */
    float *dev_weight, *slot_weight; /* by (row, choice), by slot */
    float *dev_gate;                 /* [rows] */
};

struct fmi_moe {
    struct fmi_deal *deal; /* [deals] */
    uint32_t deals;
    void *ints; /* device */
    fmi_part *part;
    double *share;
    int32_t *slot;                  /* host, of the layer in hand: (row, choice) -> slot */
    float *weight, *by_slot, *back; /* host likewise; back: what is uploaded as a gradient */
    float *router, *drouter;        /* device [rows, experts] */
    float *xr, *dyr, *dxr;          /* device [rows * chosen, hidden] */
    float *dweight, *ones;          /* device [rows * chosen] */
    float *shared, *dswitch;        /* device [rows, hidden], [rows] */
    const float *dy;                /* of the layer in hand, from backward to input_grad */
};

static uint64_t entries(const fmi_pass *p)
{
    return (uint64_t)p->cap.rows * p->arch.sw.chosen;
}

/* ---- memory ---- */
static fm_status new_deal(fmi_pass *p, struct fmi_deal *d, int32_t *ints)
{
    size_t rows = p->cap.rows, n = (size_t)entries(p), experts = p->arch.sw.experts;

    d->pick = fm_calloc(n, sizeof(*d->pick));
    d->score = fm_calloc(rows * experts, sizeof(float));
    d->gate = fm_calloc(rows, sizeof(float));
    d->order = fm_calloc(n, sizeof(int32_t));
    d->begin = fm_calloc(experts + 1, sizeof(uint32_t));
    d->dev_order = ints;
    d->dev_slot = ints + n;
    return d->pick && d->score && d->gate && d->order && d->begin ? FM_OK : FM_ENOMEM;
}

fm_status fmi_moe_new(fmi_pass *p, uint32_t slots)
{
    struct fmi_moe *x = fm_calloc(1, sizeof(*x));
    size_t n = (size_t)entries(p), rows = p->cap.rows;
    fm_status rc = FM_OK;

    if (!x)
        return FM_ENOMEM;
    p->moe = x;
    x->deals = p->recompute ? 1 : slots;
    x->deal = fm_calloc(x->deals, sizeof(*x->deal));
    x->part = fm_calloc(p->room, sizeof(*x->part));
    x->share = fm_calloc(p->arch.sw.experts, sizeof(double));
    x->slot = fm_calloc(n, sizeof(int32_t));
    x->weight = fm_calloc(n, sizeof(float));
    x->by_slot = fm_calloc(n, sizeof(float));
    x->back = fm_calloc(FM_MAX(n, rows * p->arch.sw.experts), sizeof(float));
    bool all = x->deal && x->part && x->share && x->slot && x->weight && x->by_slot && x->back;
    if (all)
        rc = p->be->alloc(p->be, &x->ints, 2 * n * x->deals * sizeof(int32_t));
    for (uint32_t i = 0; all && rc == FM_OK && i < x->deals; i++)
        rc = new_deal(p, &x->deal[i], (int32_t *)x->ints + 2 * n * i);
    for (uint32_t i = 0; all && i < slots; i++)
        p->slot[i].deal = &x->deal[p->recompute ? 0 : i];
    return all ? rc : FM_ENOMEM;
}

void fmi_moe_free(fmi_pass *p)
{
    struct fmi_moe *x = p->moe;

    if (!x)
        return;
    for (uint32_t i = 0; x->deal && i < x->deals; i++) {
        struct fmi_deal *d = &x->deal[i];
        fm_free(d->pick);
        fm_free(d->score);
        fm_free(d->gate);
        fm_free(d->order);
        fm_free(d->begin);
    }
    if (x->ints)
        p->be->free(p->be, x->ints);
    fm_free(x->deal);
    fm_free(x->part);
    fm_free(x->share);
    fm_free(x->slot);
    fm_free(x->weight);
    fm_free(x->by_slot);
    fm_free(x->back);
    fm_free(x);
    p->moe = NULL;
}

uint64_t fmi_moe_plan(fmi_pass *p, float *base, uint64_t at)
{
    struct fmi_moe *x = p->moe;
    uint64_t n = entries(p), rows = p->cap.rows, h = p->arch.hidden;

    if (!x)
        return at;
    for (uint32_t i = 0; i < x->deals; i++) {
        x->deal[i].dev_weight = fmi_plan_take(base, &at, n);
        x->deal[i].slot_weight = fmi_plan_take(base, &at, n);
        x->deal[i].dev_gate = fmi_plan_take(base, &at, rows);
    }
    x->router = fmi_plan_take(base, &at, rows * p->arch.sw.experts);
    x->drouter = fmi_plan_take(base, &at, rows * p->arch.sw.experts);
    x->xr = fmi_plan_take(base, &at, n * h);
    x->dyr = fmi_plan_take(base, &at, n * h);
    x->dxr = fmi_plan_take(base, &at, n * h);
    x->dweight = fmi_plan_take(base, &at, n);
    x->ones = fmi_plan_take(base, &at, n);
    if (p->arch.sw.shared_expert) {
        x->shared = fmi_plan_take(base, &at, rows * h);
        x->dswitch = fmi_plan_take(base, &at, rows);
    }
    return at;
}

static fm_status upload(fmi_pass *p, void *dst, const void *src, size_t n)
{
    return p->be->upload(p->be, dst, src, n * sizeof(float));
}

fm_status fmi_moe_ready(fmi_pass *p)
{
    size_t n = (size_t)entries(p);

    if (!p->moe)
        return FM_OK;
    for (size_t i = 0; i < n; i++)
        p->moe->weight[i] = 1.0f;
    return upload(p, p->moe->ones, p->moe->weight, n);
}

/* ---- choosing ---- */

/* Slots sorted by expert, rows ascending inside. */
static fm_status deal(fmi_pass *p, struct fmi_deal *d, uint32_t rows)
{
    const fm_switches *sw = &p->arch.sw;
    struct fmi_moe *x = p->moe;
    uint32_t at = 0, n = rows * sw->chosen;

    for (uint32_t e = 0; e <= sw->experts; e++)
        d->begin[e] = 0;
    for (uint32_t i = 0; i < n; i++)
        d->begin[d->pick[i].expert]++;
    for (uint32_t e = 0; e <= sw->experts; e++) {
        uint32_t some = e < sw->experts ? d->begin[e] : 0;
        d->begin[e] = at;
        at += some;
    }
    for (uint32_t i = 0; i < n; i++) { /* begin[e] runs to the end of e, then is put back */
        uint32_t slot = d->begin[d->pick[i].expert]++;
        d->order[slot] = (int32_t)(i / sw->chosen);
        x->slot[i] = (int32_t)slot;
        x->weight[i] = x->by_slot[slot] = d->pick[i].weight;
    }
    for (uint32_t e = sw->experts; e > 0; e--)
        d->begin[e] = d->begin[e - 1];
    d->begin[0] = 0;
    d->slots = n;
    fm_status rc = upload(p, d->dev_order, d->order, n);
    if (rc == FM_OK)
        rc = upload(p, d->dev_slot, x->slot, n);
    if (rc == FM_OK)
        rc = upload(p, d->dev_weight, x->weight, n);
    return rc == FM_OK ? upload(p, d->slot_weight, x->by_slot, n) : rc;
}

static fm_status choose(fmi_pass *p, struct fmi_deal *d, uint32_t rows)
{
    const fm_switches *sw = &p->arch.sw;
    fm_status rc = p->be->download(p->be, d->score, p->moe->router,
                                   (size_t)rows * sw->experts * sizeof(float));

    for (uint32_t i = 0; rc == FM_OK && i < rows; i++)
        fmi_route(sw, d->score + (size_t)i * sw->experts, p->moe->share,
                  d->pick + (size_t)i * sw->chosen);
    return rc == FM_OK ? deal(p, d, rows) : rc;
}

/* ---- experts ---- */
/* The slots of expert e that are of rows of ps, one part a lane. */
static fmi_parts parts_of(fmi_pass *p, fmi_parts ps, const struct fmi_deal *d, uint32_t e)
{
    fmi_parts out = {p->moe->part, 0, 0};
    uint32_t at = d->begin[e], end = d->begin[e + 1];

    for (uint32_t i = 0; i < ps.n && at < end; i++) {
        uint32_t first = at, stop = ps.p[i].begin + ps.p[i].count;
        while (at < end && (uint32_t)d->order[at] < stop)
            at++;
        if (at == first)
            continue;
        p->moe->part[out.n] = ps.p[i];
        p->moe->part[out.n].begin = first;
        p->moe->part[out.n].count = at - first;
        p->moe->part[out.n++].u0 = 0;
        out.rows += at - first;
    }
    return out;
}

static uint32_t of_expert(uint32_t e, uint32_t which)
{
    return FMI_EXPERTS + 3 * e + which;
}

static fm_status expert_forward(fmi_pass *p, fmi_parts ps, uint32_t layer, fmi_slot *s, uint32_t e)
{
    const fm_switches *sw = &p->arch.sw;
    uint32_t n = sw->expert_inter, h = p->arch.hidden;
    fmi_parts mine = parts_of(p, ps, s->deal, e);
    const fmi_out in[] = {{of_expert(e, 0), s->xgate, n}, {of_expert(e, 1), s->xup, n}};
    const fmi_out out = {of_expert(e, 2), s->xout, h};

    if (mine.n == 0)
        return FM_OK;
    fm_status rc = fmi_linears_forward(p, mine, (int32_t)layer, p->moe->xr, h, in, 2);
    if (rc < 0)
        return rc;
    size_t at = (size_t)s->deal->begin[e] * n;
    p->be->act(p->be, sw->act, p->act + at, n, s->xgate + at, n, s->xup + at, n, mine.rows, n);
    return fmi_linears_forward(p, mine, (int32_t)layer, p->act, n, &out, 1);
}

/* y += sigmoid(switch x) * down(f(gate x) * up x) */
static fm_status shared_forward(fmi_pass *p, fmi_parts ps, uint32_t layer, fmi_slot *s,
                                const float *x, float *y)
{
    const fm_switches *sw = &p->arch.sw;
    struct fmi_deal *d = s->deal;
    uint32_t n = sw->shared_inter, h = p->arch.hidden;
    const fmi_out in[] = {
        {FMI_S_GATE, s->sgate, n}, {FMI_S_UP, s->sup, n}, {FMI_S_SWITCH, s->sswitch, 1}};
    const fmi_out out = {FMI_S_DOWN, s->sout, h};
    fm_status rc = fmi_linears_forward(p, ps, (int32_t)layer, x, h, in, 3);

    if (rc < 0)
        return rc;
    p->be->act(p->be, sw->act, p->act, n, s->sgate, n, s->sup, n, ps.rows, n);
    rc = fmi_linears_forward(p, ps, (int32_t)layer, p->act, n, &out, 1);
    if (rc == FM_OK)
        rc = p->be->download(p->be, d->gate, s->sswitch, ps.rows * sizeof(float));
    for (uint32_t i = 0; rc == FM_OK && i < ps.rows; i++)
        d->gate[i] = (float)(1.0 / (1.0 + fm_exp(-(double)d->gate[i])));
    if (rc == FM_OK)
        rc = upload(p, d->dev_gate, d->gate, ps.rows);
    if (rc < 0)
        return rc;
    p->be->scale_rows(p->be, p->moe->shared, h, s->sout, h, d->dev_gate, ps.rows, h);
    p->be->add(p->be, y, p->moe->shared, (uint64_t)ps.rows * h);
    return FM_OK;
}

fm_status fmi_moe_forward(fmi_pass *p, fmi_parts ps, uint32_t layer, const float *x, float *y)
{
    const fm_switches *sw = &p->arch.sw;
    fmi_slot *s = fmi_slot_of(p, layer);
    struct fmi_moe *moe = p->moe;
    uint32_t h = p->arch.hidden;
    const fmi_out router = {FMI_ROUTER, moe->router, sw->experts};
    fm_status rc = fmi_linears_forward(p, ps, (int32_t)layer, x, h, &router, 1);

    if (rc == FM_OK)
        rc = choose(p, s->deal, ps.rows);
    if (rc < 0)
        return rc;
    p->be->copy_rows(p->be, moe->xr, h, x, h, s->deal->dev_order, s->deal->slots, h);
    for (uint32_t e = 0; e < sw->experts && rc == FM_OK; e++)
        rc = expert_forward(p, ps, layer, s, e);
    if (rc < 0)
        return rc;
    p->be->mix_rows(p->be, y, h, s->xout, h, s->deal->dev_slot, s->deal->dev_weight, sw->chosen,
                    ps.rows, h);
    return sw->shared_expert ? shared_forward(p, ps, layer, s, x, y) : FM_OK;
}

/* ---- backward ---- */
/* Scores' gradients of one row from those of its weights. */
static void route_grad(const fm_switches *sw, const float *score, const fmi_choice *pick,
                       const double *dweight, double *share, float *dscore)
{
    double max = (double)score[0], sum = 0.0, kept = 0.0, mean = 0.0;

    for (uint32_t i = 1; i < sw->experts; i++)
        max = FM_MAX(max, (double)score[i]);
    for (uint32_t i = 0; i < sw->experts; i++) {
        share[i] = fm_exp((double)score[i] - max);
        sum += share[i];
        dscore[i] = 0.0f;
    }
    for (uint32_t k = 0; k < sw->chosen; k++)
        kept += share[pick[k].expert];
    double whole = sw->renormalise ? kept : sum;
    for (uint32_t k = 0; k < sw->chosen; k++)
        mean += share[pick[k].expert] / whole * dweight[k];
    for (uint32_t i = 0; i < sw->experts && !sw->renormalise; i++)
        dscore[i] = (float)(-mean * share[i] / whole);
    for (uint32_t k = 0; k < sw->chosen; k++) {
        uint32_t e = pick[k].expert;
        dscore[e] = (float)(share[e] / whole * (dweight[k] - mean));
    }
}

/* Gradients of the weights, of what the experts gave, of the router's scores. */
static fm_status weights_grad(fmi_pass *p, fmi_slot *s, uint32_t rows, const float *dy)
{
    const fm_switches *sw = &p->arch.sw;
    struct fmi_moe *x = p->moe;
    struct fmi_deal *d = s->deal;
    uint32_t h = p->arch.hidden;
    double dweight[FM_MAX_EXPERTS];

    p->be->copy_rows(p->be, x->dyr, h, dy, h, d->dev_order, d->slots, h);
    p->be->row_dots(p->be, x->dweight, s->xout, h, x->dyr, h, NULL, d->slots, h);
    p->be->scale_rows(p->be, x->dyr, h, x->dyr, h, d->slot_weight, d->slots, h);
    fm_status rc = p->be->download(p->be, x->by_slot, x->dweight, d->slots * sizeof(float));
    if (rc == FM_OK)
        rc = p->be->download(p->be, x->slot, d->dev_slot, d->slots * sizeof(int32_t));
    for (uint32_t i = 0; rc == FM_OK && i < rows; i++) {
        size_t at = (size_t)i * sw->chosen, row = (size_t)i * sw->experts;
        for (uint32_t k = 0; k < sw->chosen; k++)
            dweight[k] = (double)x->by_slot[x->slot[at + k]];
        route_grad(sw, d->score + row, d->pick + at, dweight, x->share, x->back + row);
    }
    return rc == FM_OK ? upload(p, x->drouter, x->back, (size_t)rows * sw->experts) : rc;
}

static fm_status expert_backward(fmi_pass *p, fmi_parts ps, uint32_t layer, fmi_slot *s, uint32_t e)
{
    const fm_switches *sw = &p->arch.sw;
    uint32_t n = sw->expert_inter, h = p->arch.hidden;
    fmi_parts mine = parts_of(p, ps, s->deal, e);
    const fmi_out out = {of_expert(e, 2), p->moe->dyr, h};
    size_t at = (size_t)s->deal->begin[e] * n;

    if (mine.n == 0)
        return FM_OK;
    if (fmi_linears_train(mine, (int32_t)layer, &out, 1))
        p->be->act(p->be, sw->act, p->act + at, n, s->xgate + at, n, s->xup + at, n, mine.rows, n);
    fm_status rc = fmi_linears_grad(p, mine, (int32_t)layer, p->dact, n, false, p->act, n, &out, 1);
    if (rc == FM_OK)
        p->be->act_grad(p->be, sw->act, p->dgate + at, n, p->dup + at, n, p->dact + at, n,
                        s->xgate + at, n, s->xup + at, n, mine.rows, n);
    return rc;
}

static fm_status expert_input_grad(fmi_pass *p, fmi_parts ps, uint32_t layer, fmi_slot *s,
                                   uint32_t e)
{
    uint32_t n = p->arch.sw.expert_inter, h = p->arch.hidden;
    fmi_parts mine = parts_of(p, ps, s->deal, e);
    const fmi_out in[] = {{of_expert(e, 0), p->dgate, n}, {of_expert(e, 1), p->dup, n}};

    if (mine.n == 0)
        return FM_OK;
    return fmi_linears_grad(p, mine, (int32_t)layer, p->moe->dxr, h, false, p->moe->xr, h, in, 2);
}

/* The shared expert, whole: it adds to dh. Its buffers are those of the others, which are done. */
static fm_status shared_backward(fmi_pass *p, fmi_parts ps, uint32_t layer, fmi_slot *s,
                                 const float *dy, float *dh, const float *x)
{
    const fm_switches *sw = &p->arch.sw;
    struct fmi_moe *moe = p->moe;
    struct fmi_deal *d = s->deal;
    uint32_t n = sw->shared_inter, h = p->arch.hidden;
    const fmi_out out = {FMI_S_DOWN, moe->shared, h};
    const fmi_out in[] = {
        {FMI_S_GATE, p->dgate, n}, {FMI_S_UP, p->dup, n}, {FMI_S_SWITCH, moe->dswitch, 1}};

    p->be->row_dots(p->be, moe->dswitch, s->sout, h, dy, h, NULL, ps.rows, h);
    p->be->scale_rows(p->be, moe->shared, h, dy, h, d->dev_gate, ps.rows, h);
    fm_status rc = p->be->download(p->be, moe->back, moe->dswitch, ps.rows * sizeof(float));
    for (uint32_t i = 0; rc == FM_OK && i < ps.rows; i++) {
        double w = (double)d->gate[i];
        moe->back[i] = (float)((double)moe->back[i] * w * (1.0 - w));
    }
    if (rc == FM_OK)
        rc = upload(p, moe->dswitch, moe->back, ps.rows);
    if (rc < 0)
        return rc;
    if (fmi_linears_train(ps, (int32_t)layer, &out, 1))
        p->be->act(p->be, sw->act, p->act, n, s->sgate, n, s->sup, n, ps.rows, n);
    rc = fmi_linears_grad(p, ps, (int32_t)layer, p->dact, n, false, p->act, n, &out, 1);
    if (rc < 0)
        return rc;
    p->be->act_grad(p->be, sw->act, p->dgate, n, p->dup, n, p->dact, n, s->sgate, n, s->sup, n,
                    ps.rows, n);
    return fmi_linears_grad(p, ps, (int32_t)layer, dh, h, true, x, h, in, 3);
}

/* dy -> gradients of the experts' first products and of the scores; dy itself stays in hand. */
fm_status fmi_moe_backward(fmi_pass *p, fmi_parts ps, uint32_t layer, const float *dy)
{
    fmi_slot *s = fmi_slot_of(p, layer);
    fm_status rc = weights_grad(p, s, ps.rows, dy);

    for (uint32_t e = 0; e < p->arch.sw.experts && rc == FM_OK; e++)
        rc = expert_backward(p, ps, layer, s, e);
    p->moe->dy = dy;
    return rc;
}

fm_status fmi_moe_input_grad(fmi_pass *p, fmi_parts ps, uint32_t layer, float *dh, const float *x)
{
    const fm_switches *sw = &p->arch.sw;
    struct fmi_moe *moe = p->moe;
    fmi_slot *s = fmi_slot_of(p, layer);
    uint32_t h = p->arch.hidden;
    const fmi_out router = {FMI_ROUTER, moe->drouter, sw->experts};
    fm_status rc = FM_OK;

    if (fmi_moe_input_trains(p, ps, layer))
        p->be->copy_rows(p->be, moe->xr, h, x, h, s->deal->dev_order, s->deal->slots, h);
    for (uint32_t e = 0; e < sw->experts && rc == FM_OK; e++)
        rc = expert_input_grad(p, ps, layer, s, e);
    if (rc < 0)
        return rc;
    p->be->mix_rows(p->be, dh, h, moe->dxr, h, s->deal->dev_slot, moe->ones, sw->chosen, ps.rows,
                    h);
    rc = fmi_linears_grad(p, ps, (int32_t)layer, dh, h, true, x, h, &router, 1);
    return rc == FM_OK && sw->shared_expert ? shared_backward(p, ps, layer, s, moe->dy, dh, x) : rc;
}

bool fmi_moe_input_trains(const fmi_pass *p, fmi_parts ps, uint32_t layer)
{
    const fmi_out rest[] = {
        {FMI_ROUTER, NULL, 0}, {FMI_S_GATE, NULL, 0}, {FMI_S_UP, NULL, 0}, {FMI_S_SWITCH, NULL, 0}};
    bool any = fmi_linears_train(ps, (int32_t)layer, rest, 4);

    for (uint32_t e = 0; e < p->arch.sw.experts && !any; e++) {
        const fmi_out in[] = {{of_expert(e, 0), NULL, 0}, {of_expert(e, 1), NULL, 0}};
        any = fmi_linears_train(ps, (int32_t)layer, in, 2);
    }
    return any;
}
