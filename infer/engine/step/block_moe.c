/* block_moe.c - the feed-forward branch of a layer with experts.
 *
 * The router's product gives each row a score per expert. The device makes the choice, the weights
 * and the lists of rows by expert (fm_backend.route), so the host waits for nothing, and a step has
 * the same operations whatever the choices are. Rows are laid out once for each choice, row by row.
 * An expert's products, low-rank terms and scales go over segments of a list that only the device
 * knows; all experts are one call. Neighbouring models that hold the same weight share a segment. A
 * row's parts are added in ascending order of experts. */
#include "infer/engine/step/step.h"

#include <string.h>

#include "store/base/mem.h"

/* Buffers for layers with so many experts, so many of them chosen. They are on the device unless
 * marked, and never move. */
struct fmi_routes {
    uint32_t chosen, experts;
    int32_t *row, *number;  /* [max_rows * chosen] i / chosen, i */
    int32_t *expert, *list; /* [max_rows * chosen] as in fm_route */
    int32_t *begin;         /* [experts * max_rows + 1] */
    float *weight, *ones;   /* [max_rows * chosen] */
    int32_t *first;         /* host [max_rows + 1] */
    fm_product *product;    /* host: this and the next two are the lists of one call */
    fm_lora *term;
    fm_scaling *scaling;
    size_t product_cap, term_cap, scaling_cap;
    struct fmi_routes *next;
};

static void release(fm_engine *e, fmi_routes *r)
{
    void *dev[] = {r->row, r->number, r->expert, r->list, r->begin, r->weight, r->ones};
    for (size_t i = 0; i < FM_ARRAY_LEN(dev); i++)
        if (dev[i])
            e->be->free(e->be, dev[i]);
    fm_free(r->first);
    fm_free(r->product);
    fm_free(r->term);
    fm_free(r->scaling);
    fm_free(r);
}

void fmi_routes_free(fmi_step *s)
{
    for (fmi_routes *next; s->routes; s->routes = next) {
        next = s->routes->next;
        release(s->e, s->routes);
    }
}

static fm_status device_ints(fm_backend *be, void *out, size_t n)
{
    void *p = NULL;
    fm_status rc = be->alloc(be, &p, n * sizeof(int32_t));
    memcpy(out, &p, sizeof(p));
    return rc;
}

/* Fills row, number and ones, whose values depend on the index alone. */
static fm_status fill(fm_backend *be, const fmi_routes *r, size_t all)
{
    int32_t *host = fm_malloc(2 * all * sizeof(int32_t));
    if (!host)
        return FM_ENOMEM;
    for (size_t i = 0; i < all; i++) {
        host[i] = (int32_t)(i / r->chosen);
        host[all + i] = (int32_t)i;
    }
    fm_status rc = be->upload(be, r->row, host, all * sizeof(int32_t));
    FM_THEN(rc, be->upload(be, r->number, host + all, all * sizeof(int32_t)));
    float *ones = (float *)(void *)host;
    for (size_t i = 0; i < all; i++)
        ones[i] = 1.0f;
    FM_THEN(rc, be->upload(be, r->ones, ones, all * sizeof(float)));
    fm_free(host);
    return rc;
}

static fm_status routes_of(fmi_step *s, const fm_switches *sw, fmi_routes **out)
{
    fm_backend *be = s->e->be;
    size_t all = (size_t)s->max_rows * sw->chosen;
    for (*out = s->routes; *out; *out = (*out)->next)
        if ((*out)->chosen == sw->chosen && (*out)->experts == sw->experts)
            return FM_OK;
    fmi_routes *r = fm_calloc(1, sizeof(*r));
    if (!r)
        return FM_ENOMEM;
    r->chosen = sw->chosen;
    r->experts = sw->experts;
    void *const ints[] = {&r->row, &r->number, &r->expert, &r->list, &r->weight, &r->ones};
    r->first = fm_calloc((size_t)s->max_rows + 1, sizeof(int32_t));
    fm_status rc =
        r->first ? device_ints(be, &r->begin, (size_t)sw->experts * s->max_rows + 1) : FM_ENOMEM;
    for (size_t i = 0; i < FM_ARRAY_LEN(ints) && rc == FM_OK; i++)
        rc = device_ints(be, ints[i], all);
    FM_THEN(rc, fill(be, r, all));
    if (rc != FM_OK) {
        release(s->e, r);
        return rc;
    }
    r->next = s->routes;
    *out = s->routes = r;
    return FM_OK;
}

/* ==== choosing ==== */

/* Lays the models' biases out by rows, behind the scores. */
static float *bias_rows(fmi_pass *p, uint32_t l)
{
    fm_backend *be = p->e->be;
    uint32_t n = p->g->sw.experts;
    float *bias = p->router + (size_t)p->m * n;
    for (uint32_t i = 0, j, m; i < p->all.n; i = j) {
        const float *b = p->all.p[i].model->layers[l].experts->choice_bias;
        for (j = i, m = 0; j < p->all.n; j++) {
            if (p->all.p[j].model->layers[l].experts->choice_bias != b)
                break;
            m += p->all.p[j].count;
        }
        be->copy_rows(be, bias + (size_t)p->all.p[i].begin * n, n, b, 0, NULL, m, n);
    }
    return bias;
}

static fm_status choose(fmi_pass *p, fmi_routes *r, uint32_t l)
{
    const fm_switches *sw = &p->g->sw;
    fmi_step *s = p->s;
    fmi_rows bound;
    for (uint32_t i = 0; i < p->all.n; i++)
        r->first[i] = (int32_t)p->all.p[i].begin;
    r->first[p->all.n] = (int32_t)p->m;
    FM_TRY(fmi_row_list(s, &bound, r->first, p->all.n + 1));
    p->e->be->route(p->e->be, &(fm_route){.score = p->router,
                                          .ld = sw->experts,
                                          .m = p->m,
                                          .experts = sw->experts,
                                          .chosen = sw->chosen,
                                          .renormalise = sw->renormalise,
                                          .sigmoid = sw->router_sigmoid,
                                          .by_score = sw->router_first,
                                          .groups = sw->router_groups,
                                          .groups_kept = sw->router_groups_kept,
                                          .groups_best = sw->router_groups_best,
                                          .bias = sw->router_bias ? bias_rows(p, l) : NULL,
                                          .least = sw->router_least,
                                          .more = sw->router_more,
                                          .scale = sw->router_scale,
                                          .jitter = sw->router_jitter,
                                          .bound = bound.list,
                                          .parts = p->all.n,
                                          .weight = r->weight,
                                          .expert = r->expert,
                                          .list = r->list,
                                          .begin = r->begin});
    return FM_OK;
}

/* ==== experts ==== */

typedef enum which { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN } which;

/* Linears of all experts of a layer on the same x; rows of x and y are numbered as in fm_route. */
typedef struct job {
    fmi_pass *p;
    const fmi_routes *r;
    uint32_t layer, in;
    fmi_matrix x;
    bool scaled; /* only models whose linear scales its input, or only the others */
} job;

typedef struct expert_out {
    which which;
    fmi_matrix y;
} expert_out;

static const fm_linear *linear_of(const job *j, const expert_out *o, uint32_t e, uint32_t part)
{
    const fm_experts *x = j->p->all.p[part].model->layers[j->layer].experts;
    return o->which == EXPERT_GATE ? &x->gate[e] : o->which == EXPERT_UP ? &x->up[e] : &x->down[e];
}

/* Where the rows of expert e and of parts [i, j) stand in the list, and how many at most. */
typedef struct segment {
    const int32_t *from, *to;
    uint32_t m;
} segment;

static segment segment_of(const job *j, uint32_t e, uint32_t part, uint32_t end)
{
    const fmi_parts *all = &j->p->all;
    const int32_t *at = j->r->begin + (size_t)e * all->n;
    segment s = {at + part, at + end, 0};
    for (; part < end; part++)
        s.m += all->p[part].count;
    return s;
}

static fm_status add_products(const job *j, fmi_routes *r, const expert_out *o, uint32_t *count)
{
    const uint32_t parts = j->p->all.n;
    for (uint32_t e = 0; e < r->experts; e++)
        for (uint32_t i = 0, end; i < parts; i = end) {
            const fm_linear *lin = linear_of(j, o, e, i), *next;
            for (end = i + 1; end < parts; end++) {
                next = linear_of(j, o, e, end);
                if (next->w != lin->w || next->bias != lin->bias ||
                    !next->in_scale != !lin->in_scale)
                    break;
            }
            if ((lin->in_scale != NULL) != j->scaled)
                continue;
            FM_TRY(fm_grow(&r->product, &r->product_cap, *count + (size_t)1, sizeof(fm_product)));

            segment s = segment_of(j, e, i, end);
            r->product[(*count)++] = (fm_product){.y = o->y.p,
                                                  .ldy = o->y.ld,
                                                  .w = lin->w,
                                                  .bias = lin->bias,
                                                  .m = s.m,
                                                  .rows = r->list,
                                                  .from = s.from,
                                                  .to = s.to,
                                                  .listed = j->p->m * r->chosen,
                                                  .split = lin->split};
        }
    return FM_OK;
}

static bool has_term(const job *j, const fm_linear *lin, uint32_t t)
{
    return (lin->in_scale != NULL) == j->scaled && lin->lora_count > t;
}

static bool same_term(const fm_lora_term *a, const fm_lora_term *b)
{
    return a->a == b->a && a->b == b->b && memcmp(&a->scale, &b->scale, sizeof(float)) == 0;
}

/* Lists the t-th low-rank terms of all experts. */
static fm_status add_terms(const job *j, fmi_routes *r, const expert_out *o, uint32_t t,
                           uint32_t *count)
{
    const uint32_t parts = j->p->all.n;
    for (uint32_t e = 0; e < r->experts; e++)
        for (uint32_t i = 0, end; i < parts; i = end) {
            const fm_linear *lin = linear_of(j, o, e, i);
            end = i + 1;
            if (!has_term(j, lin, t))
                continue;
            for (; end < parts; end++) {
                const fm_linear *next = linear_of(j, o, e, end);
                if (!has_term(j, next, t) || !same_term(&next->lora[t], &lin->lora[t]))
                    break;
            }
            FM_TRY(fm_grow(&r->term, &r->term_cap, *count + (size_t)1, sizeof(fm_lora)));

            segment s = segment_of(j, e, i, end);
            r->term[(*count)++] = (fm_lora){.y = o->y.p,
                                            .ldy = o->y.ld,
                                            .a = lin->lora[t].a,
                                            .b = lin->lora[t].b,
                                            .scale = lin->lora[t].scale,
                                            .m = s.m,
                                            .rows = r->list,
                                            .from = s.from,
                                            .to = s.to,
                                            .listed = j->p->m * r->chosen};
        }
    return FM_OK;
}

static uint32_t most_terms(const job *j, const expert_out *o)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < j->p->all.n; i++)
        for (uint32_t e = 0; e < j->r->experts; e++)
            most = FM_MAX(most, linear_of(j, o, e, i)->lora_count);
    return most;
}

static fm_status multiply(const job *j, fmi_routes *r, const expert_out *out, uint32_t outs)
{
    fm_backend *be = j->p->e->be;
    uint32_t count = 0, most = 0;
    fm_status rc = FM_OK;
    for (uint32_t o = 0; o < outs && rc == FM_OK; o++) {
        most = FM_MAX(most, most_terms(j, &out[o]));
        rc = add_products(j, r, &out[o], &count);
    }
    if (rc != FM_OK || count == 0)
        return rc;
    be->products(be, j->x.p, j->x.ld, j->in, r->product, count);
    j->p->e->gemm_groups += count;
    for (uint32_t t = 0; t < most && rc == FM_OK; t++) {
        count = 0;
        for (uint32_t o = 0; o < outs && rc == FM_OK; o++)
            rc = add_terms(j, r, &out[o], t, &count);
        if (rc == FM_OK && count > 0)
            be->lora(be, j->x.p, j->x.ld, j->in, r->term, count);
    }
    return rc;
}

/* ==== scales ==== */

/* Scales the rows of each part: the input by in_scale, or the output by out_scale and bias. */
static fm_status scale(const job *j, fmi_routes *r, const expert_out *o, bool input)
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < r->experts; e++)
        for (uint32_t i = 0; i < j->p->all.n; i++) {
            const fm_linear *lin = linear_of(j, o, e, i);
            if (input ? !lin->in_scale : !lin->out_scale && !lin->bias_after)
                continue;
            FM_TRY(fm_grow(&r->scaling, &r->scaling_cap, count + (size_t)1, sizeof(fm_scaling)));

            segment s = segment_of(j, e, i, i + 1);
            r->scaling[count++] = (fm_scaling){.y = input ? j->x.p : o->y.p,
                                               .ldy = input ? j->x.ld : o->y.ld,
                                               .n = input ? lin->in : lin->out,
                                               .scale = input ? lin->in_scale : lin->out_scale,
                                               .bias = input ? NULL : lin->bias_after,
                                               .m = s.m,
                                               .rows = r->list,
                                               .from = s.from,
                                               .to = s.to};
        }
    if (count > 0)
        j->p->e->be->scalings(j->p->e->be, r->scaling, count);
    return FM_OK;
}

static bool scales_input(const job *j, const expert_out *o)
{
    for (uint32_t i = 0; i < j->p->all.n; i++)
        for (uint32_t e = 0; e < j->r->experts; e++)
            if (linear_of(j, o, e, i)->in_scale)
                return true;
    return false;
}

static fm_status linears(fmi_pass *p, fmi_routes *r, uint32_t l, uint32_t in, fmi_matrix x,
                         const expert_out *out, uint32_t outs)
{
    fm_backend *be = p->e->be;
    job j = {.p = p, .r = r, .layer = l, .in = in, .x = x};
    FM_TRY(multiply(&j, r, out, outs));
    for (uint32_t o = 0; o < outs; o++) {
        if (scales_input(&j, &out[o])) {
            job s = {.p = p, .r = r, .layer = l, .in = in, .x = {p->scaled, in}, .scaled = true};
            be->copy_rows(be, p->scaled, in, x.p, x.ld, NULL, p->m * r->chosen, in);
            FM_TRY(scale(&s, r, &out[o], true));
            FM_TRY(multiply(&s, r, &out[o], 1));
        }
        FM_TRY(scale(&j, r, &out[o], false));
    }
    return FM_OK;
}

/* ==== the branch ==== */

static const fm_linear *pick_router(const fm_model *m, uint32_t l)
{
    return &m->layers[l].experts->router;
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

static const fm_linear *pick_into(const fm_model *m, uint32_t l)
{
    return &m->layers[l].experts->into;
}
static const fm_linear *pick_from(const fm_model *m, uint32_t l)
{
    return &m->layers[l].experts->from;
}

/* gate = f(gate) * up, or without gates f(up). */
static void activate(fmi_pass *p, uint32_t rows, uint32_t inter)
{
    fm_backend *be = p->e->be;
    const fm_switches *sw = &p->g->sw;
    if (sw->plain_mlp)
        be->act(be, sw->act, p->gate, inter, p->up, inter, NULL, 0, rows, inter);
    else
        be->act(be, sw->act, p->gate, inter, p->gate, inter, p->up, inter, rows, inter);
}

/* y += sigmoid(switch x) * down(f(gate x) * up x); without a switch it is 1. */
static fm_status run_shared(fmi_pass *p, const fmi_routes *r, uint32_t l, float *x, float *y)
{
    fm_backend *be = p->e->be;
    const fm_switches *sw = &p->g->sw;
    uint32_t inter = sw->shared_inter, h = p->g->hidden;
    float *switches = p->router;
    const fmi_out first[] = {{pick_s_gate, {p->gate, inter}},
                             {pick_s_up, {p->up, inter}},
                             {pick_s_switch, {switches, 1}}};
    const fmi_out down = {pick_s_down, {p->yr, h}};
    uint32_t skip = sw->plain_mlp ? 1 : 0, outs = sw->shared_plain ? 2 : 3;
    FM_TRY(fmi_linears(p, p->all, (fmi_matrix){x, h}, l, first + skip, outs - skip));
    activate(p, p->m, inter);
    FM_TRY(fmi_linears(p, p->all, (fmi_matrix){p->gate, inter}, l, &down, 1));
    if (sw->shared_plain) {
        be->add(be, y, p->yr, (uint64_t)p->m * h);
        return FM_OK;
    }
    be->sigmoid(be, r->weight, switches, p->m);
    be->mix_rows(be, p->xr, h, p->yr, h, r->number, r->weight, 1, p->m, h);
    be->add(be, y, p->xr, (uint64_t)p->m * h);
    return FM_OK;
}

/* Chooses experts for the rows of x. */
static fm_status choose_by(fmi_pass *p, fmi_routes *r, uint32_t l, float *x)
{
    const fmi_out router = {pick_router, {p->router, p->g->sw.experts}};
    FM_TRY(fmi_linears(p, p->all, (fmi_matrix){x, p->g->hidden}, l, &router, 1));
    return choose(p, r, l);
}

/* y = the sum of what the chosen experts make of x, with these weights. */
static fm_status run_experts(fmi_pass *p, fmi_routes *r, uint32_t l, float *x, const float *weight,
                             float *y)
{
    fm_backend *be = p->e->be;
    const fm_switches *sw = &p->g->sw;
    uint32_t h = p->g->hidden, inter = sw->expert_inter, all = p->m * sw->chosen;
    uint32_t wide = sw->expert_in ? sw->expert_in : h, skip = sw->plain_mlp ? 1 : 0;
    float *in = sw->expert_in ? p->latent : x, *sum = sw->expert_in ? p->latent : y;
    const fmi_out into = {pick_into, {p->latent, wide}}, from = {pick_from, {y, h}};
    const expert_out both[] = {{EXPERT_GATE, {p->gate, inter}}, {EXPERT_UP, {p->up, inter}}};
    const expert_out down = {EXPERT_DOWN, {p->yr, wide}};
    if (sw->expert_in)
        FM_TRY(fmi_linears(p, p->all, (fmi_matrix){x, h}, l, &into, 1));
    if (sw->router_first)
        be->mix_rows(be, p->xr, wide, in, wide, r->row, weight, 1, all, wide);
    else
        be->copy_rows(be, p->xr, wide, in, wide, r->row, all, wide);
    FM_TRY(linears(p, r, l, wide, (fmi_matrix){p->xr, wide}, both + skip, 2 - skip));
    activate(p, all, inter);
    FM_TRY(linears(p, r, l, inter, (fmi_matrix){p->gate, inter}, &down, 1));
    weight = sw->router_first ? r->ones : weight;
    be->mix_rows(be, sum, wide, p->yr, wide, r->number, weight, sw->chosen, p->m, wide);
    return sw->expert_in ? fmi_linears(p, p->all, (fmi_matrix){sum, wide}, l, &from, 1) : FM_OK;
}

fm_status fmi_moe(fmi_pass *p, uint32_t l, float *x, float *y)
{
    const fm_switches *sw = &p->g->sw;
    fmi_routes *r;
    FM_TRY(routes_of(p->s, sw, &r));
    FM_TRY(choose_by(p, r, l, x));
    FM_TRY(run_experts(p, r, l, x, r->weight, y));
    return sw->shared_expert ? run_shared(p, r, l, x, y) : FM_OK;
}

/* ==== beside a feed-forward branch ==== */

static fmi_gain gain_mlp_sum(const fm_model *m, uint32_t l)
{
    return (fmi_gain){m->layers[l].experts->mlp_sum, NULL};
}
static fmi_gain gain_post(const fm_model *m, uint32_t l)
{
    return (fmi_gain){m->layers[l].experts->post, NULL};
}
static fmi_gain gain_norm(const fm_model *m, uint32_t l)
{
    return (fmi_gain){m->layers[l].experts->norm, NULL};
}
static fmi_gain gain_router(const fm_model *m, uint32_t l)
{
    return (fmi_gain){m->layers[l].experts->router_norm, NULL};
}

/* Writes each choice's weight times its expert's number to w, by neighbouring runs. */
static void scale_weights(fmi_pass *p, const fmi_routes *r, uint32_t l, float *w)
{
    fm_backend *be = p->e->be;
    for (uint32_t i = 0, j, m; i < p->all.n; i = j) {
        const float *scale = p->all.p[i].model->layers[l].experts->scale;
        size_t at = (size_t)p->all.p[i].begin * r->chosen;
        for (j = i, m = 0; j < p->all.n; j++) {
            if (p->all.p[j].model->layers[l].experts->scale != scale)
                break;
            m += p->all.p[j].count;
        }
        be->mix_rows(be, w + at, 1, scale, 1, r->expert + at, r->weight + at, 1, m * r->chosen, 1);
    }
}

fm_status fmi_moe_beside(fmi_pass *p, uint32_t l, float *x, float *y)
{
    fm_backend *be = p->e->be;
    uint32_t h = p->g->hidden;
    float *weight = p->router; /* the scores are read by then */
    fmi_routes *r;
    FM_TRY(routes_of(p->s, &p->g->sw, &r));
    FM_TRY(fmi_mlp(p, l, x, y));
    fmi_norm(p, p->all, FM_NORM_RMS, gain_mlp_sum, l, y, y, 1, h);
    fmi_norm(p, p->all, FM_NORM_RMS, gain_router, l, p->xn, p->x, 1, h);
    FM_TRY(choose_by(p, r, l, p->xn));
    scale_weights(p, r, l, weight);
    fmi_norm(p, p->all, FM_NORM_RMS, gain_norm, l, p->xn, p->x, 1, h);
    FM_TRY(run_experts(p, r, l, p->xn, weight, p->other));
    fmi_norm(p, p->all, FM_NORM_RMS, gain_post, l, p->other, p->other, 1, h);
    be->add(be, y, p->other, (uint64_t)p->m * h);
    return FM_OK;
}
