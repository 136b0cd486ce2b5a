/* block_latent.c - queries, keys and values of a layer whose keys and values come from one latent
 * vector of a position (DeepSeek's multi-head latent attention).
 *
 *   q            = q_b(norm(q_a x)), or q x
 *   (c, r)       = k x                the latent vector, and the part of a key that turns
 *   (k_h, v_h).. = v norm(c)          of every head
 *
 * A head's query and key are `nope` elements as they are, then those that turn; r is the same for
 * all heads. Keys and values are kept as heads have them. A value is narrower than a key: the rest
 * of it repeats its key, so that it is as finite as the key, and is dropped behind attention. */
#include "infer/engine/step/step.h"

#define LATENT_EPS 1e-6f /* of both norms, whatever the config says of the others */

static const fm_linear *pick_q_a(const fm_model *m, uint32_t l)
{
    return &m->layers[l].q_a;
}
static const fm_linear *pick_q(const fm_model *m, uint32_t l)
{
    return &m->layers[l].q;
}
static const fm_linear *pick_kv_a(const fm_model *m, uint32_t l)
{
    return &m->layers[l].k;
}
static const fm_linear *pick_kv_b(const fm_model *m, uint32_t l)
{
    return &m->layers[l].v;
}

/* Norms the first n elements of rows ld apart, in place. */
static void norm(fmi_pass *p, uint32_t l, bool query, float *x, uint32_t n, size_t ld)
{
    fm_backend *be = p->e->be;
    for (uint32_t i = 0, j, m; i < p->all.n; i = j) {
        const fm_layer *y = &p->all.p[i].model->layers[l], *other;
        const float *gain = query ? y->q_norm : y->k_norm;
        for (j = i, m = 0; j < p->all.n; j++) {
            other = &p->all.p[j].model->layers[l];
            if ((query ? other->q_norm : other->k_norm) != gain)
                break;
            m += p->all.p[j].count;
        }
        float *rows = x + p->all.p[i].begin * ld;
        be->rmsnorm(be, rows, rows, gain, NULL, m, n, ld, LATENT_EPS);
    }
}

/* Turns the last elements of each head; heads are hd apart. */
static void turn(fmi_pass *p, uint32_t l, float *x, size_t ld, uint32_t heads)
{
    const fmi_geom *g = p->g;
    for (uint32_t h = 0; h < heads; h++)
        fmi_rotate(p, l, x + (size_t)h * g->head_dim, ld, g->sw.rotary_dim);
}

static fm_status queries(fmi_pass *p, uint32_t l, float *x)
{
    const fmi_geom *g = p->g;
    const uint32_t rank = g->sw.q_rank;
    const size_t qd = (size_t)g->heads * g->head_dim;
    fmi_matrix in = {x, g->hidden};
    if (rank) {
        const fmi_out a = {pick_q_a, {p->latent, rank}};
        FM_TRY(fmi_linears(p, p->all, in, l, &a, 1));
        norm(p, l, true, p->latent, rank, rank);
        in = (fmi_matrix){p->latent, rank};
    }
    const fmi_out q = {pick_q, {p->q, qd}};
    FM_TRY(fmi_linears(p, p->all, in, l, &q, 1));
    turn(p, l, p->q + g->sw.nope, qd, g->heads);
    return FM_OK;
}

fm_status fmi_latent(fmi_pass *p, uint32_t l, float *x)
{
    fm_backend *be = p->e->be;
    const fmi_geom *g = p->g;
    const uint32_t hd = g->head_dim, nope = g->sw.nope, v = g->sw.v_dim, turns = hd - nope;
    const uint32_t rank = g->sw.kv_rank, pairs = p->m * g->heads, each = nope + v;
    const size_t ld = (size_t)rank + turns, kd = (size_t)g->heads * hd;
    FM_TRY(queries(p, l, x));
    const fmi_out a = {pick_kv_a, {p->latent, ld}};
    const fmi_out b = {pick_kv_b, {p->fused, (size_t)g->heads * each}};
    FM_TRY(fmi_linears(p, p->all, (fmi_matrix){x, g->hidden}, l, &a, 1));
    norm(p, l, false, p->latent, rank, ld);
    FM_TRY(fmi_linears(p, p->all, (fmi_matrix){p->latent, ld}, l, &b, 1));
    turn(p, l, p->latent + rank, ld, 1);
    be->copy_rows(be, p->k + nope, kd, p->latent + rank, ld, NULL, p->m, turns);
    for (uint32_t n = 1; n < g->heads;
         n *= 2) /* to all heads; what lies between is written below */
        be->copy_rows(be, p->k + (size_t)n * hd, kd, p->k, kd, NULL, p->m,
                      FM_MIN(n, g->heads - n) * hd);
    be->copy_rows(be, p->k, hd, p->fused, each, NULL, pairs, nope);
    be->copy_rows(be, p->v, hd, p->fused + nope, each, NULL, pairs, v);
    if (v < hd)
        be->copy_rows(be, p->v + v, hd, p->k, hd, NULL, pairs, hd - v);
    return FM_OK;
}

fmi_matrix fmi_latent_out(fmi_pass *p)
{
    const fmi_geom *g = p->g;
    const uint32_t v = g->sw.v_dim;
    p->e->be->copy_rows(p->e->be, p->fused, v, p->att, g->head_dim, NULL, p->m * g->heads, v);
    return (fmi_matrix){p->fused, (size_t)g->heads * v};
}
