/* block_moe.c - the feed-forward branch of a layer with experts, forward and backward.
 *
 * As in infer the device chooses by the router's scores (fm_backend.route), rows are laid out once
 * for each choice, sorted by expert (rows ascending inside), and each expert's segment goes through
 * the same grouped products as any linear layer. Lanes that the backward leaves out stand behind
 * the others, so it needs the first part of every segment. The host waits once a layer, in the
 * forward, for the beginnings of the segments: a product has so many rows, and the operations
 * cannot take a number of rows that only the device knows. The gradient of a weight goes through
 * the softmax over the chosen (renormalised) or over all experts, in double; the choice has
 * none. */
#include "train/pass/pass.h"

#include <string.h>

#include "store/base/mem.h"

/* The choices of one slot, on the device but for begin. A row's choices have the numbers i * chosen
 * + j; slots are these numbers sorted by expert. */
struct fmt_choices {
    int32_t *begin; /* host [experts * parts + 1] first slots, as in fm_route */
    uint32_t parts, slots;
    float *score;                   /* [rows, experts] */
    int32_t *expert, *slot, *order; /* [rows * chosen]: expert and slot by number; row by slot */
    float *weight, *slot_weight;    /* [rows * chosen] by number, by slot */
    float *gate;                    /* [rows] gate of the shared expert */
};

struct fmt_moe {
    struct fmt_choices *choices; /* [choice_sets] */
    uint32_t choice_sets;
    void *ints;                          /* device */
    int32_t *bound, *begin, *list, *row; /* device: as in fm_route; number -> row */
    int32_t *host;                       /* [max(rows * chosen, room + 1)] data to upload */
    fmt_part *part;
    float *drouter;          /* device [rows, experts] */
    float *xr, *dyr, *dxr;   /* device [rows * chosen, hidden] */
    float *dweight, *ones;   /* device [rows * chosen] */
    float *shared, *dswitch; /* device [rows, hidden], [rows] */
    float *bias;             /* device [rows, experts]; NULL: the router has none */
    const float *dy;         /* of the current layer, from backward to input_grad */
};

static uint64_t entries(const fmt_pass *p)
{
    return (uint64_t)p->cap.rows * p->arch.sw.chosen;
}

/* ---- memory ---- */
static size_t begins(const fmt_pass *p)
{
    return p->arch.sw.experts * p->room + 1;
}

static fm_status device_ints(fmt_pass *p, struct fmt_moe *x)
{
    size_t n = (size_t)entries(p), shared = 2 * n + p->room + 1 + begins(p);
    fm_status rc =
        p->be->alloc(p->be, &x->ints, (3 * n * x->choice_sets + shared) * sizeof(int32_t));
    int32_t *at = x->ints;

    for (uint32_t i = 0; rc == FM_OK && i < x->choice_sets; i++, at += 3 * n) {
        x->choices[i].expert = at;
        x->choices[i].slot = at + n;
        x->choices[i].order = at + 2 * n;
    }
    x->list = at;
    x->row = at + n;
    x->bound = at + 2 * n;
    x->begin = x->bound + p->room + 1;
    return rc;
}

fm_status fmt_moe_new(fmt_pass *p, uint32_t slots)
{
    struct fmt_moe *x = fm_calloc(1, sizeof(*x));
    bool all;

    if (!x)
        return FM_ENOMEM;
    p->moe = x;
    x->choice_sets = p->recompute ? 1 : slots;
    x->choices = fm_calloc(x->choice_sets, sizeof(*x->choices));
    x->part = fm_calloc(p->room, sizeof(*x->part));
    x->host = fm_calloc(FM_MAX((size_t)entries(p), p->room + 1), sizeof(int32_t));
    all = x->choices && x->part && x->host;
    for (uint32_t i = 0; all && i < x->choice_sets; i++) {
        x->choices[i].begin = fm_calloc(begins(p), sizeof(int32_t));
        all = x->choices[i].begin != NULL;
    }
    for (uint32_t i = 0; all && i < slots; i++)
        p->slot[i].choices = &x->choices[p->recompute ? 0 : i];
    return all ? device_ints(p, x) : FM_ENOMEM;
}

void fmt_moe_free(fmt_pass *p)
{
    struct fmt_moe *x = p->moe;

    if (!x)
        return;
    for (uint32_t i = 0; x->choices && i < x->choice_sets; i++)
        fm_free(x->choices[i].begin);
    if (x->ints)
        p->be->free(p->be, x->ints);
    fm_free(x->choices);
    fm_free(x->part);
    fm_free(x->host);
    fm_free(x);
    p->moe = NULL;
}

uint64_t fmt_moe_plan(fmt_pass *p, float *base, uint64_t at)
{
    struct fmt_moe *x = p->moe;
    uint64_t n = entries(p), rows = p->cap.rows, h = p->arch.hidden;

    if (!x)
        return at;
    for (uint32_t i = 0; i < x->choice_sets; i++) {
        x->choices[i].score = fmt_plan_take(base, &at, rows * p->arch.sw.experts);
        x->choices[i].weight = fmt_plan_take(base, &at, n);
        x->choices[i].slot_weight = fmt_plan_take(base, &at, n);
        x->choices[i].gate = fmt_plan_take(base, &at, rows);
    }
    x->drouter = fmt_plan_take(base, &at, rows * p->arch.sw.experts);
    x->xr = fmt_plan_take(base, &at, n * h);
    x->dyr = fmt_plan_take(base, &at, n * h);
    x->dxr = fmt_plan_take(base, &at, n * h);
    x->dweight = fmt_plan_take(base, &at, n);
    x->ones = fmt_plan_take(base, &at, n);
    if (p->arch.sw.router_bias)
        x->bias = fmt_plan_take(base, &at, rows * p->arch.sw.experts);
    if (p->arch.sw.shared_expert) {
        x->shared = fmt_plan_take(base, &at, rows * h);
        x->dswitch = fmt_plan_take(base, &at, rows);
    }
    return at;
}

fm_status fmt_moe_ready(fmt_pass *p)
{
    struct fmt_moe *x = p->moe;
    size_t n = (size_t)entries(p);
    const float one = 1.0f;

    if (!x)
        return FM_OK;
    for (size_t i = 0; i < n; i++)
        memcpy(&x->host[i], &one, sizeof(one));
    fm_status rc = p->be->upload(p->be, x->ones, x->host, n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        x->host[i] = (int32_t)(i / p->arch.sw.chosen);
    return rc == FM_OK ? p->be->upload(p->be, x->row, x->host, n * sizeof(int32_t)) : rc;
}

/* ---- choosing ---- */
static fm_route route_of(const fmt_pass *p, const struct fmt_choices *d, uint32_t rows)
{
    const fm_switches *sw = &p->arch.sw;
    const struct fmt_moe *x = p->moe;

    return (fm_route){.score = d->score,
                      .ld = sw->experts,
                      .m = rows,
                      .experts = sw->experts,
                      .chosen = sw->chosen,
                      .renormalise = sw->renormalise,
                      .sigmoid = sw->router_sigmoid,
                      .groups = sw->router_groups,
                      .groups_kept = sw->router_groups_kept,
                      .groups_best = sw->router_groups_best,
                      .bias = x->bias,
                      .least = sw->router_least,
                      .more = sw->router_more,
                      .scale = sw->router_scale,
                      .jitter = sw->router_jitter,
                      .bound = x->bound,
                      .parts = d->parts,
                      .weight = d->weight,
                      .expert = d->expert,
                      .list = x->list,
                      .begin = x->begin,
                      .slot = d->slot};
}

/* Orders values by slot that are ordered by number. An int is copied as its 32 bits. */
static void by_slot(fmt_pass *p, const struct fmt_choices *d, void *out, const void *in)
{
    p->be->copy_rows(p->be, out, 1, in, 1, p->moe->list, d->slots, 1);
}

/* Lays the biases of the parts' routers out by rows. */
static void bias_rows(fmt_pass *p, fmt_parts ps, uint32_t layer)
{
    uint32_t n = p->arch.sw.experts;

    for (uint32_t i = 0; i < ps.n && p->moe->bias; i++)
        p->be->copy_rows(p->be, p->moe->bias + (size_t)ps.p[i].begin * n, n,
                         ps.p[i].lane->net->block[layer].choice_bias, 0, NULL, ps.p[i].count, n);
}

static fm_status choose(fmt_pass *p, fmt_parts ps, uint32_t layer, struct fmt_choices *d)
{
    const fm_switches *sw = &p->arch.sw;
    struct fmt_moe *x = p->moe;

    d->parts = ps.n;
    d->slots = ps.rows * sw->chosen;
    for (uint32_t i = 0; i < ps.n; i++)
        x->host[i] = (int32_t)ps.p[i].begin;
    x->host[ps.n] = (int32_t)ps.rows;
    fm_status rc = p->be->upload(p->be, x->bound, x->host, (ps.n + 1) * sizeof(int32_t));
    if (rc < 0)
        return rc;
    bias_rows(p, ps, layer);
    const fm_route r = route_of(p, d, ps.rows);
    p->be->route(p->be, &r);
    by_slot(p, d, d->slot_weight, d->weight);
    by_slot(p, d, d->order, x->row);
    return p->be->download(p->be, d->begin, x->begin,
                           ((size_t)sw->experts * ps.n + 1) * sizeof(int32_t));
}

/* ---- experts ---- */
static uint32_t first_slot(const struct fmt_choices *d, uint32_t e)
{
    return (uint32_t)d->begin[(size_t)e * d->parts];
}

/* The slots of expert e for the rows of ps, which are the first parts of the choice. */
static fmt_parts parts_of(fmt_pass *p, fmt_parts ps, const struct fmt_choices *d, uint32_t e)
{
    fmt_parts out = {p->moe->part, 0, 0};
    const int32_t *begin = d->begin + (size_t)e * d->parts;

    for (uint32_t i = 0; i < ps.n; i++) {
        uint32_t first = (uint32_t)begin[i], count = (uint32_t)begin[i + 1] - first;
        if (count == 0)
            continue;
        p->moe->part[out.n] = ps.p[i];
        p->moe->part[out.n].begin = first;
        p->moe->part[out.n].count = count;
        p->moe->part[out.n++].u0 = 0;
        out.rows += count;
    }
    return out;
}

static uint32_t of_expert(uint32_t e, uint32_t which)
{
    return FMT_EXPERTS + 3 * e + which;
}

static fm_status expert_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, fmt_slot *s, uint32_t e)
{
    const fm_switches *sw = &p->arch.sw;
    uint32_t n = sw->expert_inter, h = p->arch.hidden;
    fmt_parts mine = parts_of(p, ps, s->choices, e);
    const fmt_out in[] = {{of_expert(e, 0), s->xgate, n}, {of_expert(e, 1), s->xup, n}};
    const fmt_out out = {of_expert(e, 2), s->xout, h};

    if (mine.n == 0)
        return FM_OK;
    FM_TRY(fmt_linears_forward(p, mine, (int32_t)layer, p->moe->xr, h, in, 2));
    size_t at = (size_t)first_slot(s->choices, e) * n;
    p->be->act(p->be, sw->act, p->act + at, n, s->xgate + at, n, s->xup + at, n, mine.rows, n);
    return fmt_linears_forward(p, mine, (int32_t)layer, p->act, n, &out, 1);
}

/* y += sigmoid(switch x) * down(f(gate x) * up x); without a switch it is 1. */
static fm_status shared_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, fmt_slot *s,
                                const float *x, float *y)
{
    const fm_switches *sw = &p->arch.sw;
    struct fmt_choices *d = s->choices;
    uint32_t n = sw->shared_inter, h = p->arch.hidden;
    const fmt_out in[] = {
        {FMT_S_GATE, s->sgate, n}, {FMT_S_UP, s->sup, n}, {FMT_S_SWITCH, s->sswitch, 1}};
    const fmt_out out = {FMT_S_DOWN, s->sout, h};
    FM_TRY(fmt_linears_forward(p, ps, (int32_t)layer, x, h, in, sw->shared_plain ? 2 : 3));
    p->be->act(p->be, sw->act, p->act, n, s->sgate, n, s->sup, n, ps.rows, n);
    FM_TRY(fmt_linears_forward(p, ps, (int32_t)layer, p->act, n, &out, 1));
    if (sw->shared_plain) {
        p->be->add(p->be, y, s->sout, (uint64_t)ps.rows * h);
        return FM_OK;
    }
    p->be->sigmoid(p->be, d->gate, s->sswitch, ps.rows);
    p->be->scale_rows(p->be, p->moe->shared, h, s->sout, h, d->gate, ps.rows, h);
    p->be->add(p->be, y, p->moe->shared, (uint64_t)ps.rows * h);
    return FM_OK;
}

fm_status fmt_moe_forward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *x, float *y)
{
    const fm_switches *sw = &p->arch.sw;
    fmt_slot *s = fmt_slot_of(p, layer);
    struct fmt_moe *moe = p->moe;
    uint32_t h = p->arch.hidden;
    const fmt_out router = {FMT_ROUTER, s->choices->score, sw->experts};
    FM_TRY(fmt_linears_forward(p, ps, (int32_t)layer, x, h, &router, 1));

    FM_TRY(choose(p, ps, layer, s->choices));
    p->be->copy_rows(p->be, moe->xr, h, x, h, s->choices->order, s->choices->slots, h);
    for (uint32_t e = 0; e < sw->experts; e++)
        FM_TRY(expert_forward(p, ps, layer, s, e));
    p->be->mix_rows(p->be, y, h, s->xout, h, s->choices->slot, s->choices->weight, sw->chosen,
                    ps.rows, h);
    return sw->shared_expert ? shared_forward(p, ps, layer, s, x, y) : FM_OK;
}

/* ---- backward ---- */
/* Gradients of the choices' weights, of the experts' outputs and of the router's scores. */
static void weights_grad(fmt_pass *p, fmt_slot *s, uint32_t rows, const float *dy)
{
    struct fmt_moe *x = p->moe;
    struct fmt_choices *d = s->choices;
    uint32_t h = p->arch.hidden;
    const fm_route r = route_of(p, d, rows);

    p->be->copy_rows(p->be, x->dyr, h, dy, h, d->order, d->slots, h);
    p->be->row_dots(p->be, x->dweight, s->xout, h, x->dyr, h, NULL, d->slots, h);
    p->be->scale_rows(p->be, x->dyr, h, x->dyr, h, d->slot_weight, d->slots, h);
    p->be->route_grad(p->be, &r, x->drouter, x->dweight);
}

static fm_status expert_backward(fmt_pass *p, fmt_parts ps, uint32_t layer, fmt_slot *s, uint32_t e)
{
    const fm_switches *sw = &p->arch.sw;
    uint32_t n = sw->expert_inter, h = p->arch.hidden;
    fmt_parts mine = parts_of(p, ps, s->choices, e);
    const fmt_out out = {of_expert(e, 2), p->moe->dyr, h};
    size_t at = (size_t)first_slot(s->choices, e) * n;

    if (mine.n == 0)
        return FM_OK;
    if (fmt_linears_train(mine, (int32_t)layer, &out, 1))
        p->be->act(p->be, sw->act, p->act + at, n, s->xgate + at, n, s->xup + at, n, mine.rows, n);
    FM_TRY(fmt_linears_grad(p, mine, (int32_t)layer, p->dact, n, false, p->act, n, &out, 1));
    p->be->act_grad(p->be, sw->act, p->dgate + at, n, p->dup + at, n, p->dact + at, n,
                    s->xgate + at, n, s->xup + at, n, mine.rows, n);
    return FM_OK;
}

static fm_status expert_input_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, fmt_slot *s,
                                   uint32_t e)
{
    uint32_t n = p->arch.sw.expert_inter, h = p->arch.hidden;
    fmt_parts mine = parts_of(p, ps, s->choices, e);
    const fmt_out in[] = {{of_expert(e, 0), p->dgate, n}, {of_expert(e, 1), p->dup, n}};

    if (mine.n == 0)
        return FM_OK;
    return fmt_linears_grad(p, mine, (int32_t)layer, p->moe->dxr, h, false, p->moe->xr, h, in, 2);
}

/* The whole backward of the shared expert; adds to dh. It reuses the other experts' buffers. */
static fm_status shared_backward(fmt_pass *p, fmt_parts ps, uint32_t layer, fmt_slot *s,
                                 const float *dy, float *dh, const float *x)
{
    const fm_switches *sw = &p->arch.sw;
    struct fmt_moe *moe = p->moe;
    struct fmt_choices *d = s->choices;
    uint32_t n = sw->shared_inter, h = p->arch.hidden;
    const fmt_out out = {FMT_S_DOWN, moe->shared, h};
    const fmt_out in[] = {
        {FMT_S_GATE, p->dgate, n}, {FMT_S_UP, p->dup, n}, {FMT_S_SWITCH, moe->dswitch, 1}};

    if (sw->shared_plain) {
        p->be->copy_rows(p->be, moe->shared, h, dy, h, NULL, ps.rows, h);
    } else {
        p->be->row_dots(p->be, moe->dswitch, s->sout, h, dy, h, NULL, ps.rows, h);
        p->be->scale_rows(p->be, moe->shared, h, dy, h, d->gate, ps.rows, h);
        p->be->sigmoid_grad(p->be, moe->dswitch, moe->dswitch, d->gate, ps.rows);
    }
    if (fmt_linears_train(ps, (int32_t)layer, &out, 1))
        p->be->act(p->be, sw->act, p->act, n, s->sgate, n, s->sup, n, ps.rows, n);
    FM_TRY(fmt_linears_grad(p, ps, (int32_t)layer, p->dact, n, false, p->act, n, &out, 1));
    p->be->act_grad(p->be, sw->act, p->dgate, n, p->dup, n, p->dact, n, s->sgate, n, s->sup, n,
                    ps.rows, n);
    return fmt_linears_grad(p, ps, (int32_t)layer, dh, h, true, x, h, in, sw->shared_plain ? 2 : 3);
}

/* From dy to the gradients of the experts' first products and of the scores; keeps dy. */
fm_status fmt_moe_backward(fmt_pass *p, fmt_parts ps, uint32_t layer, const float *dy)
{
    fmt_slot *s = fmt_slot_of(p, layer);
    fm_status rc = FM_OK;

    weights_grad(p, s, ps.rows, dy);
    for (uint32_t e = 0; e < p->arch.sw.experts && rc == FM_OK; e++)
        rc = expert_backward(p, ps, layer, s, e);
    p->moe->dy = dy;
    return rc;
}

fm_status fmt_moe_input_grad(fmt_pass *p, fmt_parts ps, uint32_t layer, float *dh, const float *x)
{
    const fm_switches *sw = &p->arch.sw;
    struct fmt_moe *moe = p->moe;
    fmt_slot *s = fmt_slot_of(p, layer);
    uint32_t h = p->arch.hidden;
    const fmt_out router = {FMT_ROUTER, moe->drouter, sw->experts};

    if (fmt_moe_input_trains(p, ps, layer))
        p->be->copy_rows(p->be, moe->xr, h, x, h, s->choices->order, s->choices->slots, h);
    for (uint32_t e = 0; e < sw->experts; e++)
        FM_TRY(expert_input_grad(p, ps, layer, s, e));
    p->be->mix_rows(p->be, dh, h, moe->dxr, h, s->choices->slot, moe->ones, sw->chosen, ps.rows, h);
    fm_status rc = fmt_linears_grad(p, ps, (int32_t)layer, dh, h, true, x, h, &router, 1);
    return rc == FM_OK && sw->shared_expert ? shared_backward(p, ps, layer, s, moe->dy, dh, x) : rc;
}

bool fmt_moe_input_trains(const fmt_pass *p, fmt_parts ps, uint32_t layer)
{
    const fmt_out rest[] = {
        {FMT_ROUTER, NULL, 0}, {FMT_S_GATE, NULL, 0}, {FMT_S_UP, NULL, 0}, {FMT_S_SWITCH, NULL, 0}};
    bool any = fmt_linears_train(ps, (int32_t)layer, rest, 4);

    for (uint32_t e = 0; e < p->arch.sw.experts && !any; e++) {
        const fmt_out in[] = {{of_expert(e, 0), NULL, 0}, {of_expert(e, 1), NULL, 0}};
        any = fmt_linears_train(ps, (int32_t)layer, in, 2);
    }
    return any;
}
