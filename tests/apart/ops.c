/* ops.c - the operations of the device apart: what each was given is copied and translated, and put
 * in line. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/mem.h"
#include "tests/apart/inside.h"

/* ==== operations of plain arguments: D is device memory, V is by value ==== */

#define E1(m, x) m x
#define E2(m, x, ...) m x E1(m, __VA_ARGS__)
#define E3(m, x, ...) m x E2(m, __VA_ARGS__)
#define E4(m, x, ...) m x E3(m, __VA_ARGS__)
#define E5(m, x, ...) m x E4(m, __VA_ARGS__)
#define E6(m, x, ...) m x E5(m, __VA_ARGS__)
#define E7(m, x, ...) m x E6(m, __VA_ARGS__)
#define E8(m, x, ...) m x E7(m, __VA_ARGS__)
#define E9(m, x, ...) m x E8(m, __VA_ARGS__)
#define E10(m, x, ...) m x E9(m, __VA_ARGS__)
#define E11(m, x, ...) m x E10(m, __VA_ARGS__)
#define E12(m, x, ...) m x E11(m, __VA_ARGS__)
#define E13(m, x, ...) m x E12(m, __VA_ARGS__)
#define E14(m, x, ...) m x E13(m, __VA_ARGS__)
#define NTH(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, ...) o
#define COUNT(...) NTH(__VA_ARGS__, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define EACH(m, ...) JOIN(E, COUNT(__VA_ARGS__))(m, __VA_ARGS__)

#define FIELD(kind, type, n) type n;
#define PARAM(kind, type, n) , type n
#define ARG(kind, type, n) , args_->n
#define SET(kind, type, n) args.n = TO_##kind(type, n);
#define TO_D(type, n) (type)(uintptr_t) apart_at(dev_, n, op)
#define TO_V(type, n) n

#define DEFINE(name, ...)                                                                          \
    typedef struct name##_args {                                                                   \
        EACH(FIELD, __VA_ARGS__)                                                                   \
    } name##_args;                                                                                 \
    static void run_##name(fm_backend *in, const void *v)                                          \
    {                                                                                              \
        const name##_args *args_ = v;                                                              \
        in->name(in EACH(ARG, __VA_ARGS__));                                                       \
    }                                                                                              \
    static void op_##name(fm_backend *be EACH(PARAM, __VA_ARGS__))                                 \
    {                                                                                              \
        static const char op[] = "=" #name;                                                        \
        apart *dev_ = apart_of(be);                                                                \
        name##_args args;                                                                          \
        memset(&args, 0, sizeof(args));                                                            \
        EACH(SET, __VA_ARGS__)                                                                     \
        apart_push(dev_, run_##name, op, &args, sizeof(args));                                     \
    }

#define F(n) (D, float *, n)
#define CF(n) (D, const float *, n)
#define CI(n) (D, const int32_t *, n)
#define U32(n) (V, uint32_t, n)
#define U64(n) (V, uint64_t, n)
#define LD(n) (V, size_t, n)
#define FL(n) (V, float, n)
#define BO(n) (V, bool, n)
#define WT(n) (V, const fm_weight *, n)

#define OPS(X)                                                                                     \
    X(weight_update, (V, fm_weight *, w), CF(src))                                                 \
    X(linear, F(y), LD(ldy), CF(x), LD(ldx), WT(w), CF(bias), CI(rows), U32(m))                    \
    X(affine, F(y), LD(ldy), U32(n), CF(scale), CF(bias), U32(first), U32(m), CI(rows))            \
    X(embed, F(y), LD(ldy), WT(w), CI(ids), CI(rows), U32(m))                                      \
    X(rmsnorm, F(y), CF(x), CF(gain), F(rstd_out), U32(m), U32(h), LD(ldx), FL(eps))               \
    X(rope, F(x), LD(ldx), CI(pos), CF(cos), CF(sin), U32(m), U32(heads), U32(hd), BO(pairs),      \
      BO(inverse))                                                                                 \
    X(layernorm, F(y), CF(x), CF(gain), CF(bias), U32(m), U32(h), LD(ldx), FL(eps))                \
    X(swiglu, F(y), CF(gate), CF(up), U64(n))                                                      \
    X(act, (V, fm_act, f), F(y), LD(ldy), CF(gate), LD(ldg), CF(up), LD(ldu), U32(m), U32(n))      \
    X(softcap, F(y), LD(ldy), U32(m), U32(n), FL(cap))                                             \
    X(xielu, F(y), LD(ldy), CF(x), LD(ldx), CF(param), U32(m), U32(n))                             \
    X(round_rows, F(y), LD(ldy), F(grain), CF(x), LD(ldx), U32(m), U32(n))                         \
    X(mix_rows, F(y), LD(ldy), CF(x), LD(ldx), CI(row), CF(weight), U32(per), U32(m), U32(n))      \
    X(sigmoid, F(y), CF(x), U64(n))                                                                \
    X(add, F(y), CF(x), U64(n))                                                                    \
    X(scale, F(y), FL(s), U64(n))                                                                  \
    X(copy_rows, F(y), LD(ldy), CF(x), LD(ldx), CI(rows_of_x), U32(m), U32(n))                     \
    X(logsumexp, F(lse), CF(logits), LD(ld), U32(m), U32(v))                                       \
    X(gemm, F(c), LD(ldc), CF(a), LD(lda), BO(ta), CF(b), LD(ldb), BO(tb), U32(m), U32(n), U32(k), \
      FL(alpha), BO(accumulate))                                                                   \
    X(linear_dx, F(dx), LD(lddx), CF(dy), LD(lddy), WT(w), U32(m), BO(accumulate))                 \
    X(bias_grad, F(db), CF(dy), LD(lddy), U32(m), U32(n))                                          \
    X(embed_grad, F(dw), CF(dy), LD(lddy), CI(ids), U32(m), U32(h))                                \
    X(rmsnorm_grad, F(dx), F(dgain), CF(dy), CF(x), CF(gain), CF(rstd), U32(m), U32(h), LD(ldx),   \
      BO(accumulate_dx))                                                                           \
    X(swiglu_grad, F(dgate), F(dup), CF(dy), CF(gate), CF(up), U64(n))                             \
    X(linear_dw, F(dw), CF(dy), LD(lddy), CF(x), LD(ldx), U32(m), U32(n), U32(k), BO(stored_kn))   \
    X(layernorm_grad, F(dx), F(dgain), F(dbias), CF(dy), CF(x), CF(gain), U32(m), U32(h), LD(ldx), \
      FL(eps), BO(accumulate_dx))                                                                  \
    X(act_grad, (V, fm_act, f), F(dgate), LD(lddg), F(dup), LD(lddu), CF(dy), LD(lddy), CF(gate),  \
      LD(ldg), CF(up), LD(ldu), U32(m), U32(n))                                                    \
    X(softcap_grad, F(dy), LD(lddy), CF(y), LD(ldy), U32(m), U32(n), FL(cap))                      \
    X(xielu_grad, F(dx), LD(lddx), CF(dy), LD(lddy), CF(x), LD(ldx), CF(param), U32(m), U32(n))    \
    X(scale_grad, F(dx), LD(lddx), F(dscale), CF(dy), LD(lddy), CF(x), LD(ldx), CF(scale), U32(m), \
      U32(n))                                                                                      \
    X(dropout, F(y), LD(ldy), CF(x), LD(ldx), U32(m), U32(n), FL(p), U64(seed), U64(stream),       \
      U64(row0), BO(accumulate))                                                                   \
    X(row_dots, F(out), CF(a), LD(lda), CF(b), LD(ldb), CI(rows_of_b), U32(m), U32(n))             \
    X(scale_rows, F(y), LD(ldy), CF(x), LD(ldx), CF(w), U32(m), U32(n))                            \
    X(sigmoid_grad, F(dx), CF(dy), CF(y), U64(n))                                                  \
    X(cross_entropy, F(loss), F(logits), LD(ld), CI(label), U32(m), U32(v), FL(dloss))             \
    X(distill, F(loss), F(logits), LD(ld), CF(teacher), LD(ldt), CI(label), U32(m), U32(v),        \
      FL(temperature), FL(weight), FL(dloss))                                                      \
    X(sum_squares, (D, double *, out), CF(x), U64(n))                                              \
    X(block_squares, (D, double *, out), CF(x), U64(n))                                            \
    X(adamw, F(p), F(m), F(v), CF(g), U64(n), FL(lr), FL(beta1), FL(beta2), FL(eps),               \
      FL(weight_decay), U64(step), FL(g_scale))

OPS(DEFINE)

/* ==== operations with structures and lists ==== */

#define TO(field) (field) = (void *)(uintptr_t)apart_at(a, field, op)

typedef struct listed { /* the list follows */
    const float *x;
    size_t ldx;
    uint32_t k, count;
} listed;

#define LIST(name, element, translate)                                                             \
    static void run_##name(fm_backend *in, const void *v)                                          \
    {                                                                                              \
        const listed *l = v;                                                                       \
        in->name(in, l->x, l->ldx, l->k, (const element *)(const void *)(l + 1), l->count);        \
    }                                                                                              \
    static void op_##name(fm_backend *be, const float *x, size_t ldx, uint32_t k,                  \
                          const element *list, uint32_t count)                                     \
    {                                                                                              \
        static const char op[] = "=" #name;                                                        \
        apart *a = apart_of(be);                                                                   \
        task *t = apart_task(run_##name, op, sizeof(listed) + count * sizeof(*list));              \
        listed *l = (listed *)(void *)t->args;                                                     \
        *l = (listed){apart_at(a, x, op), ldx, k, count};                                          \
        element *e = (element *)(void *)(l + 1);                                                   \
        memcpy(e, list, count * sizeof(*list));                                                    \
        for (uint32_t i = 0; i < count; i++, e++)                                                  \
            translate;                                                                             \
        a->stats.ops++;                                                                            \
        (void)apart_enqueue(a, t);                                                                 \
    }

LIST(products, fm_product,
     (TO(e->y), TO(e->bias), TO(e->rows), TO(e->from), TO(e->to), TO(e->grain)))
LIST(lora, fm_lora, (TO(e->y), TO(e->rows), TO(e->from), TO(e->to)))

static void run_scalings(fm_backend *in, const void *v)
{
    const listed *l = v;
    in->scalings(in, (const fm_scaling *)(const void *)(l + 1), l->count);
}

static void op_scalings(fm_backend *be, const fm_scaling *list, uint32_t count)
{
    static const char op[] = "=scalings";
    apart *a = apart_of(be);
    task *t = apart_task(run_scalings, op, sizeof(listed) + count * sizeof(*list));
    listed *l = (listed *)(void *)t->args;
    *l = (listed){.count = count};
    fm_scaling *e = (fm_scaling *)(void *)(l + 1);
    memcpy(e, list, count * sizeof(*list));
    for (uint32_t i = 0; i < count; i++, e++)
        (TO(e->y), TO(e->scale), TO(e->bias), TO(e->rows), TO(e->from), TO(e->to));
    a->stats.ops++;
    (void)apart_enqueue(a, t);
}

static void run_route(fm_backend *in, const void *v)
{
    in->route(in, v);
}

static void op_route(fm_backend *be, const fm_route *ask)
{
    static const char op[] = "=route";
    apart *a = apart_of(be);
    fm_route t = *ask;
    TO(t.score);
    TO(t.bias);
    TO(t.bound);
    TO(t.weight);
    TO(t.expert);
    TO(t.list);
    TO(t.begin);
    TO(t.slot);
    apart_push(a, run_route, op, &t, sizeof(t));
}

typedef struct route_grad_args {
    fm_route r;
    float *dscore;
    const float *dweight;
} route_grad_args;

static void run_route_grad(fm_backend *in, const void *v)
{
    const route_grad_args *t = v;
    in->route_grad(in, &t->r, t->dscore, t->dweight);
}

static void op_route_grad(fm_backend *be, const fm_route *ask, float *dscore, const float *dweight)
{
    static const char op[] = "=route_grad";
    apart *a = apart_of(be);
    route_grad_args t = {*ask, dscore, dweight};
    TO(t.r.score);
    TO(t.r.expert);
    TO(t.r.slot);
    TO(t.dscore);
    TO(t.dweight);
    apart_push(a, run_route_grad, op, &t, sizeof(t));
}

static void run_attention(fm_backend *in, const void *v)
{
    in->attention(in, v);
}

static void op_attention(fm_backend *be, const fm_attn *ask)
{
    static const char op[] = "=attention";
    apart *a = apart_of(be);
    fm_attn t = *ask;
    TO(t.out);
    TO(t.q);
    TO(t.kv.k);
    TO(t.kv.v);
    TO(t.table);
    TO(t.seq);
    TO(t.pos);
    TO(t.sink);
    TO(t.first);
    TO(t.bias);
    TO(t.own);
    apart_push(a, run_attention, op, &t, sizeof(t));
}

static void states_args(apart *a, fm_state_rows *r, const char *op)
{
    TO(r->pages);
    TO(r->row);
    TO(r->from);
    TO(r->to);
}

static void convolve_args(apart *a, fm_convolve *c, const char *op)
{
    states_args(a, &c->rows, op);
    TO(c->y);
    TO(c->x);
    TO(c->before);
    TO(c->after);
    TO(c->weight);
    TO(c->bias);
}

static void run_convolve(fm_backend *in, const void *v)
{
    in->convolve(in, v);
}

static void op_convolve(fm_backend *be, const fm_convolve *ask)
{
    static const char op[] = "=convolve";
    apart *a = apart_of(be);
    fm_convolve t = *ask;
    convolve_args(a, &t, op);
    apart_push(a, run_convolve, op, &t, sizeof(t));
}

static void run_convolve_grad(fm_backend *in, const void *v)
{
    in->convolve_grad(in, v);
}

static void op_convolve_grad(fm_backend *be, const fm_convolve_grad *ask)
{
    static const char op[] = "=convolve_grad";
    apart *a = apart_of(be);
    fm_convolve_grad t = *ask;
    convolve_args(a, &t.c, op);
    TO(t.dy);
    TO(t.dx);
    TO(t.dbefore);
    TO(t.dafter);
    TO(t.dweight);
    TO(t.dbias);
    apart_push(a, run_convolve_grad, op, &t, sizeof(t));
}

static void scan_args(apart *a, fm_scan *s, const char *op)
{
    states_args(a, &s->rows, op);
    TO(s->y);
    TO(s->x);
    TO(s->b);
    TO(s->c);
    TO(s->dt);
    TO(s->a_log);
    TO(s->d);
    TO(s->dt_bias);
}

static void run_scan_grad(fm_backend *in, const void *v)
{
    in->scan_grad(in, v);
}

static void op_scan_grad(fm_backend *be, const fm_scan_grad *ask)
{
    static const char op[] = "=scan_grad";
    apart *a = apart_of(be);
    fm_scan_grad t = *ask;
    scan_args(a, &t.s, op);
    TO(t.dy);
    TO(t.dx);
    TO(t.db);
    TO(t.dc);
    TO(t.ddt);
    TO(t.da_log);
    TO(t.dd);
    TO(t.ddt_bias);
    TO(t.work);
    apart_push(a, run_scan_grad, op, &t, sizeof(t));
}

static void run_scan(fm_backend *in, const void *v)
{
    in->scan(in, v);
}

static void op_scan(fm_backend *be, const fm_scan *ask)
{
    static const char op[] = "=scan";
    apart *a = apart_of(be);
    fm_scan t = *ask;
    scan_args(a, &t, op);
    apart_push(a, run_scan, op, &t, sizeof(t));
}

static void run_delta(fm_backend *in, const void *v)
{
    in->delta(in, v);
}

static void delta_args(apart *a, fm_delta *d, const char *op)
{
    states_args(a, &d->rows, op);
    TO(d->y);
    TO(d->q);
    TO(d->k);
    TO(d->v);
    TO(d->a);
    TO(d->b);
    TO(d->a_log);
    TO(d->dt_bias);
}

static void run_delta_grad(fm_backend *in, const void *v)
{
    in->delta_grad(in, v);
}

static void op_delta_grad(fm_backend *be, const fm_delta_grad *ask)
{
    static const char op[] = "=delta_grad";
    apart *a = apart_of(be);
    fm_delta_grad t = *ask;
    delta_args(a, &t.d, op);
    TO(t.dy);
    TO(t.dq);
    TO(t.dk);
    TO(t.dv);
    TO(t.da);
    TO(t.db);
    TO(t.da_log);
    TO(t.ddt_bias);
    TO(t.work);
    apart_push(a, run_delta_grad, op, &t, sizeof(t));
}

static void op_delta(fm_backend *be, const fm_delta *ask)
{
    static const char op[] = "=delta";
    apart *a = apart_of(be);
    fm_delta t = *ask;
    delta_args(a, &t, op);
    apart_push(a, run_delta, op, &t, sizeof(t));
}

typedef struct kv_args {
    fm_kv_view kv;
    const float *k, *v;
    size_t ldk, ldv;
    const int32_t *slot;
    int32_t dst, src;
    uint32_t m, nkv, hd;
} kv_args;

static void run_kv_copy(fm_backend *in, const void *v)
{
    const kv_args *t = v;
    in->kv_copy(in, t->kv, t->dst, t->src, t->nkv, t->hd);
}

static void op_kv_copy(fm_backend *be, fm_kv_view kv, int32_t dst, int32_t src, uint32_t nkv,
                       uint32_t hd)
{
    static const char op[] = "=kv_copy";
    apart *a = apart_of(be);
    kv_args t = {.kv = kv, .dst = dst, .src = src, .nkv = nkv, .hd = hd};
    TO(t.kv.k);
    TO(t.kv.v);
    apart_push(a, run_kv_copy, op, &t, sizeof(t));
}

static void run_kv_write(fm_backend *in, const void *v)
{
    const kv_args *t = v;
    in->kv_write(in, t->kv, t->k, t->ldk, t->v, t->ldv, t->slot, t->m, t->nkv, t->hd);
}

static void op_kv_write(fm_backend *be, fm_kv_view kv, const float *k, size_t ldk, const float *v,
                        size_t ldv, const int32_t *slot, uint32_t m, uint32_t nkv, uint32_t hd)
{
    static const char op[] = "=kv_write";
    apart *a = apart_of(be);
    kv_args t = {kv, k, v, ldk, ldv, slot, 0, 0, m, nkv, hd};
    TO(t.kv.k);
    TO(t.kv.v);
    TO(t.k);
    TO(t.v);
    TO(t.slot);
    apart_push(a, run_kv_write, op, &t, sizeof(t));
}

/* The sequences follow. */
static void train_args(apart *a, task *t, const fm_attn_train *ask, const char *op)
{
    fm_attn_train *c = (fm_attn_train *)(void *)t->args;
    fm_train_seq *seq = (fm_train_seq *)(void *)(c + 1);
    *c = *ask;
    TO(c->q);
    TO(c->k);
    TO(c->v);
    TO(c->out);
    TO(c->lse);
    TO(c->dout);
    TO(c->dq);
    TO(c->dk);
    TO(c->dv);
    memcpy(seq, ask->seq, ask->seqs * sizeof(*seq));
    for (uint32_t i = 0; i < ask->seqs; i++) {
        TO(seq[i].vk);
        TO(seq[i].vv);
        TO(seq[i].dvk);
        TO(seq[i].dvv);
        TO(seq[i].sink);
        TO(seq[i].dsink);
        TO(seq[i].bias);
    }
}

static void terms_args(apart *a, fm_term *e, uint32_t count, const char *op)
{
    for (uint32_t i = 0; i < count; i++, e++) {
        TO(e->a);
        TO(e->b);
        TO(e->x);
        TO(e->y);
        TO(e->u);
        TO(e->dy);
        TO(e->du);
        TO(e->da);
        TO(e->db);
        TO(e->dx);
    }
}

#define ATTENTION(name)                                                                            \
    static void run_##name(fm_backend *in, const void *v)                                          \
    {                                                                                              \
        fm_attn_train c;                                                                           \
        memcpy(&c, v, sizeof(c));                                                                  \
        c.seq = (const fm_train_seq *)(const void *)((const uint8_t *)v + sizeof(c));              \
        in->name(in, &c);                                                                          \
    }                                                                                              \
    static void op_##name(fm_backend *be, const fm_attn_train *ask)                                \
    {                                                                                              \
        static const char op[] = "=" #name;                                                        \
        task *t = apart_task(run_##name, op, sizeof(*ask) + ask->seqs * sizeof(*ask->seq));        \
        train_args(apart_of(be), t, ask, op);                                                      \
        apart_of(be)->stats.ops++;                                                                 \
        (void)apart_enqueue(apart_of(be), t);                                                      \
    }
#define TERMS(name)                                                                                \
    static void run_##name(fm_backend *in, const void *v)                                          \
    {                                                                                              \
        const listed *l = v;                                                                       \
        in->name(in, (const fm_term *)(const void *)(l + 1), l->count);                            \
    }                                                                                              \
    static void op_##name(fm_backend *be, const fm_term *list, uint32_t count)                     \
    {                                                                                              \
        static const char op[] = "=" #name;                                                        \
        task *t = apart_task(run_##name, op, sizeof(listed) + count * sizeof(*list));              \
        listed *l = (listed *)(void *)t->args;                                                     \
        *l = (listed){.count = count};                                                             \
        memcpy(l + 1, list, count * sizeof(*list));                                                \
        terms_args(apart_of(be), (fm_term *)(void *)(l + 1), count, op);                           \
        apart_of(be)->stats.ops++;                                                                 \
        (void)apart_enqueue(apart_of(be), t);                                                      \
    }

ATTENTION(self_attention)
ATTENTION(self_attention_grad)
TERMS(terms)
TERMS(terms_grad)

/* clang-format off */
#define LISTED(X)                                                                                  \
    X(products, ) X(lora, ) X(scalings, ) X(route, ) X(route_grad, ) X(attention, ) X(kv_copy, )   \
    X(kv_write, ) X(self_attention, ) X(self_attention_grad, ) X(terms, ) X(terms_grad, )          \
    X(convolve, ) X(convolve_grad, ) X(scan, ) X(scan_grad, ) X(delta, ) X(delta_grad, )
/* clang-format on */

/* ==== sampling, by the host's sampler ==== */

typedef struct sample_args {
    apart *a;
    int32_t *token, *bad;
    const float *logits;
    size_t ld;
    const fm_pick *pick;
    uint32_t count;
} sample_args;

static void sample_one(apart *a, const sample_args *s, uint32_t i)
{
    const fm_pick *k = &s->pick[i];
    const fm_sample_params p = {k->temperature,        k->top_k, k->top_p, k->min_p,
                                k->repetition_penalty, k->seed};
    uint64_t *seen = apart_at(a, k->seen, "sample");
    int32_t *history = malloc(((size_t)k->vocab + 1) * sizeof(*history));
    size_t n = 0;
    for (uint32_t t = 0; seen && t < k->vocab; t++)
        if (seen[t / 64] >> (t % 64) & 1)
            history[n++] = (int32_t)t;
    if (k->vocab > a->sampler_vocab) {
        fm_sampler_free(a->sampler);
        if (fm_sampler_new(&a->sampler, k->vocab) != FM_OK)
            apart_stop("sample", "no memory", NULL);
        a->sampler_vocab = k->vocab;
    }
    const float *row = s->logits + k->row * s->ld;
    s->bad[i] = 0;
    if (fm_sampler_pick(&s->token[i], a->sampler, row, k->vocab, &p, history, n, k->index) !=
        FM_OK) {
        uint32_t at = 0;
        while (at < k->vocab && row[at] < INFINITY)
            at++;
        s->token[i] = 0;
        s->bad[i] = at == k->vocab ? -1 : isnan(row[at]) ? 1 + (int32_t)at : -2 - (int32_t)at;
    } else if (seen) {
        seen[s->token[i] / 64] |= (uint64_t)1 << (s->token[i] % 64);
    }
    fm_error_clear();
    free(history);
}

static void run_sample(fm_backend *in, const void *v)
{
    const sample_args *s = v;
    (void)in;
    for (uint32_t i = 0; i < s->count; i++)
        sample_one(s->a, s, i);
}

static void op_sample(fm_backend *be, int32_t *token, int32_t *bad, const float *logits, size_t ld,
                      const fm_pick *pick, uint32_t count, uint32_t vocab_max)
{
    static const char op[] = "=sample";
    apart *a = apart_of(be);
    sample_args s = {a, token, bad, logits, ld, pick, count};
    (void)vocab_max;
    TO(s.token);
    TO(s.bad);
    TO(s.logits);
    TO(s.pick);
    a->stats.samples += count;
    apart_push(a, run_sample, op, &s, sizeof(s));
}

void apart_install_ops(apart *a)
{
    fm_backend *be = &a->be;
    const fm_backend *in = a->in;
#define INSTALL(name, ...) be->name = in->name ? op_##name : NULL;
    OPS(INSTALL)
    LISTED(INSTALL)
    be->sample = op_sample;
}
