/* block_moe.c - the feed-forward branch of a layer with experts.
 *
 * The router's product gives each row a score per expert; the softmax over all of them, the choice
 * and the weights are made on the host, in double, from that row's scores alone. Then the rows are
 * laid out once for each choice, sorted by expert, and every expert's stretch goes through the same
 * grouped products as any linear layer (so adapters and shared weights work as they do elsewhere).
 * A row's parts are added in ascending order of experts. Ties go to the lower expert. */
#include "infer/route.h"
#include "infer/step.h"

#include <string.h>

#include "store/base/detmath.h"
#include "store/base/mem.h"

/* Sized by the widest shape so far; the device's arrays have max_rows * chosen entries. */
struct fmi_routes {
    uint32_t chosen, experts;
    fmi_choice *pick; /* [max_rows, chosen], experts ascending */
    float *scores;    /* [max_rows, experts + 1] host */
    double *share;    /* [experts] */
    int32_t *order;   /* [max_rows * chosen] slot -> row */
    int32_t *slot;    /* [max_rows * chosen] (row, choice) -> slot */
    float *weight;    /* [max_rows * chosen] (row, choice) -> weight */
    fmi_part *part;   /* [max_rows] of one expert */
    uint32_t *begin;  /* [experts + 1] first slot of each expert */
    int32_t *dev_order, *dev_slot;
    float *dev_weight;
};

static void release(fm_engine *e, fmi_routes *r)
{
    void *host[] = {r->pick, r->scores, r->share, r->order, r->slot, r->weight, r->part, r->begin};
    void *dev[] = {r->dev_order, r->dev_slot, r->dev_weight};
    for (size_t i = 0; i < FM_ARRAY_LEN(host); i++)
        fm_free(host[i]);
    for (size_t i = 0; i < FM_ARRAY_LEN(dev); i++)
        if (dev[i])
            e->be->free(e->be, dev[i]);
    fm_free(r);
}

void fmi_routes_free(fmi_step *s)
{
    if (s->routes)
        release(s->e, s->routes);
    s->routes = NULL;
}

static fm_status device_ints(fm_backend *be, void *out, size_t n)
{
    void *p = NULL;
    fm_status rc = be->alloc(be, &p, n * sizeof(int32_t));
    memcpy(out, &p, sizeof(p));
    return rc;
}

static fm_status routes_of(fmi_step *s, const fm_switches *sw)
{
    if (s->routes && s->routes->chosen >= sw->chosen && s->routes->experts >= sw->experts)
        return FM_OK;
    uint32_t k = FM_MAX(sw->chosen, s->routes ? s->routes->chosen : 0);
    uint32_t n = FM_MAX(sw->experts, s->routes ? s->routes->experts : 0);
    size_t rows = s->max_rows, all = rows * k;
    fm_backend *be = s->e->be;
    fmi_routes *r = fm_calloc(1, sizeof(*r));
    if (!r)
        return FM_ENOMEM;
    *r = (fmi_routes){.chosen = k,
                      .experts = n,
                      .pick = fm_calloc(all, sizeof(fmi_choice)),
                      .scores = fm_calloc(rows * (n + 1), sizeof(float)),
                      .share = fm_calloc(n, sizeof(double)),
                      .order = fm_calloc(all, sizeof(int32_t)),
                      .slot = fm_calloc(all, sizeof(int32_t)),
                      .weight = fm_calloc(all, sizeof(float)),
                      .part = fm_calloc(rows, sizeof(fmi_part)),
                      .begin = fm_calloc((size_t)n + 1, sizeof(uint32_t))};
    bool there =
        r->pick && r->scores && r->share && r->order && r->slot && r->weight && r->part && r->begin;
    fm_status rc = there ? device_ints(be, &r->dev_order, all) : FM_ENOMEM;
    if (rc == FM_OK)
        rc = device_ints(be, &r->dev_slot, all);
    if (rc == FM_OK)
        rc = device_ints(be, &r->dev_weight, all);
    if (rc != FM_OK) {
        release(s->e, r);
        return rc;
    }
    fmi_routes_free(s);
    s->routes = r;
    return FM_OK;
}

/* ==== choosing ==== */

/* Slots sorted by expert, rows ascending inside; uploads what the device needs. */
static fm_status deal(fmi_pass *p)
{
    const fm_switches *sw = &p->g->sw;
    fmi_routes *r = p->s->routes;
    fm_backend *be = p->e->be;
    uint32_t k = sw->chosen, at = 0, all = p->m * k;
    memset(r->begin, 0, ((size_t)sw->experts + 1) * sizeof(uint32_t));
    for (uint32_t i = 0; i < all; i++)
        r->begin[r->pick[i].expert]++;
    for (uint32_t e = 0; e <= sw->experts; e++) {
        uint32_t n = e < sw->experts ? r->begin[e] : 0;
        r->begin[e] = at;
        at += n;
    }
    for (uint32_t i = 0; i < all; i++) { /* begin[e] runs to the end of e, then is put back */
        uint32_t slot = r->begin[r->pick[i].expert]++;
        r->order[slot] = (int32_t)(i / k);
        r->slot[i] = (int32_t)slot;
        r->weight[i] = r->pick[i].weight;
    }
    memmove(r->begin + 1, r->begin, sw->experts * sizeof(uint32_t));
    r->begin[0] = 0;
    size_t bytes = (size_t)all * sizeof(int32_t);
    fm_status rc = be->upload(be, r->dev_order, r->order, bytes);
    if (rc == FM_OK)
        rc = be->upload(be, r->dev_slot, r->slot, bytes);
    return rc == FM_OK ? be->upload(be, r->dev_weight, r->weight, bytes) : rc;
}

/* ==== experts ==== */

/* The layer in the low bits, the expert above: what fmi_linears hands to a pick. */
#define EXPERT_SHIFT 16u

static const fm_experts *experts_of(const fm_model *m, uint32_t le)
{
    return m->layers[le & ((1u << EXPERT_SHIFT) - 1u)].experts;
}
static const fm_linear *pick_router(const fm_model *m, uint32_t l)
{
    return &m->layers[l].experts->router;
}
static const fm_linear *pick_gate(const fm_model *m, uint32_t le)
{
    return &experts_of(m, le)->gate[le >> EXPERT_SHIFT];
}
static const fm_linear *pick_up(const fm_model *m, uint32_t le)
{
    return &experts_of(m, le)->up[le >> EXPERT_SHIFT];
}
static const fm_linear *pick_down(const fm_model *m, uint32_t le)
{
    return &experts_of(m, le)->down[le >> EXPERT_SHIFT];
}
static const fm_linear *pick_s_gate(const fm_model *m, uint32_t l)
{
    return &m->layers[l].experts->s_gate;
}
static const fm_linear *pick_s_up(const fm_model *m, uint32_t l)
{
    return &m->layers[l].experts->s_up;
}
static const fm_linear *pick_s_down(const fm_model *m, uint32_t l)
{
    return &m->layers[l].experts->s_down;
}
static const fm_linear *pick_s_switch(const fm_model *m, uint32_t l)
{
    return &m->layers[l].experts->s_switch;
}

/* The slots of expert e as runs of one model each: rows are ascending, and so are models. */
static fmi_parts parts_of(const fmi_pass *p, uint32_t e)
{
    const fmi_routes *r = p->s->routes;
    uint32_t n = 0, run = 0, end = r->begin[e + 1];
    for (uint32_t at = r->begin[e]; at < end;) {
        uint32_t row = (uint32_t)r->order[at], first = at;
        while (row >= p->all.p[run].begin + p->all.p[run].count)
            run++;
        const fmi_part *part = &p->all.p[run];
        while (at < end && (uint32_t)r->order[at] < part->begin + part->count)
            at++;
        r->part[n++] = (fmi_part){.model = part->model, .begin = first, .count = at - first};
    }
    return (fmi_parts){r->part, n};
}

static fm_status run_expert(fmi_pass *p, uint32_t l, uint32_t e)
{
    fm_backend *be = p->e->be;
    const fm_switches *sw = &p->g->sw;
    fmi_parts ps = parts_of(p, e);
    uint32_t le = l | e << EXPERT_SHIFT, inter = sw->expert_inter, h = p->g->hidden;
    if (ps.n == 0)
        return FM_OK;
    const fmi_out both[] = {{pick_gate, {p->gate, inter}}, {pick_up, {p->up, inter}}};
    const fmi_out down = {pick_down, {p->yr, h}};
    fm_status rc = fmi_linears(p, ps, (fmi_matrix){p->xr, h}, le, both, 2);
    if (rc != FM_OK)
        return rc;
    uint32_t first = p->s->routes->begin[e], n = p->s->routes->begin[e + 1] - first;
    float *gate = p->gate + (size_t)first * inter, *up = p->up + (size_t)first * inter;
    be->act(be, sw->act, gate, inter, gate, inter, up, inter, n, inter);
    return fmi_linears(p, ps, (fmi_matrix){p->gate, inter}, le, &down, 1);
}

/* y += sigmoid(switch x) * down(f(gate x) * up x) */
static fm_status run_shared(fmi_pass *p, uint32_t l, float *x, float *y)
{
    fm_backend *be = p->e->be;
    const fm_switches *sw = &p->g->sw;
    fmi_routes *r = p->s->routes;
    uint32_t inter = sw->shared_inter, h = p->g->hidden;
    float *switches = p->router;
    const fmi_out first[] = {{pick_s_gate, {p->gate, inter}},
                             {pick_s_up, {p->up, inter}},
                             {pick_s_switch, {switches, 1}}};
    const fmi_out down = {pick_s_down, {p->yr, h}};
    fm_status rc = fmi_linears(p, p->all, (fmi_matrix){x, h}, l, first, 3);
    if (rc != FM_OK)
        return rc;
    be->act(be, sw->act, p->gate, inter, p->gate, inter, p->up, inter, p->m, inter);
    rc = fmi_linears(p, p->all, (fmi_matrix){p->gate, inter}, l, &down, 1);
    if (rc == FM_OK)
        rc = be->download(be, r->scores, switches, p->m * sizeof(float));
    for (uint32_t i = 0; rc == FM_OK && i < p->m; i++) {
        r->weight[i] = (float)(1.0 / (1.0 + fm_exp(-(double)r->scores[i])));
        r->order[i] = (int32_t)i;
    }
    if (rc == FM_OK)
        rc = be->upload(be, r->dev_weight, r->weight, p->m * sizeof(float));
    if (rc == FM_OK)
        rc = be->upload(be, r->dev_order, r->order, p->m * sizeof(int32_t));
    if (rc != FM_OK)
        return rc;
    be->mix_rows(be, p->xr, h, p->yr, h, r->dev_order, r->dev_weight, 1, p->m, h);
    be->add(be, y, p->xr, (uint64_t)p->m * h);
    return FM_OK;
}

fm_status fmi_moe(fmi_pass *p, uint32_t l, float *x, float *y)
{
    fm_backend *be = p->e->be;
    const fm_switches *sw = &p->g->sw;
    uint32_t h = p->g->hidden, n = sw->experts;
    const fmi_out router = {pick_router, {p->router, n}};
    fm_status rc = routes_of(p->s, sw);
    if (rc == FM_OK)
        rc = fmi_linears(p, p->all, (fmi_matrix){x, h}, l, &router, 1);
    if (rc != FM_OK)
        return rc;
    fmi_routes *r = p->s->routes;
    rc = be->download(be, r->scores, p->router, (size_t)p->m * n * sizeof(float));
    for (uint32_t i = 0; rc == FM_OK && i < p->m; i++)
        fmi_route(sw, r->scores + (size_t)i * n, r->share, r->pick + (size_t)i * sw->chosen);
    if (rc == FM_OK)
        rc = deal(p);
    if (rc != FM_OK)
        return rc;
    be->copy_rows(be, p->xr, h, x, h, r->dev_order, p->m * sw->chosen, h);
    for (uint32_t e = 0; e < n && rc == FM_OK; e++)
        rc = run_expert(p, l, e);
    if (rc != FM_OK)
        return rc;
    be->mix_rows(be, y, h, p->yr, h, r->dev_slot, r->dev_weight, sw->chosen, p->m, h);
    return sw->shared_expert ? run_shared(p, l, x, y) : FM_OK;
}
