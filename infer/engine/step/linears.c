/* linears.c - linear layers over rows of many models: grouping by weight, low-rank terms, scales.
 *
 * The runs that hold the same weight and bias go through one product, whatever their models;
 * all products that share x (q, k, v of every group) are one call. Low-rank terms follow, each
 * over the rows that have it, with its own rank, and last the scales of IA3 and DoRA. A group that
 * is no single segment of rows gets a list of row numbers; lists are made once per step and
 * content, since most layers of a family split the rows in the same way. A row's result does not
 * depend on any of this: every operation computes a row from that row alone. */
#include "infer/engine/step/step.h"

#include <string.h>

#include "infer/comm.h"
#include "store/base/cancel.h"
#include "store/base/mem.h"

/* ==== row lists ==== */

static fm_status next_chunk(fmi_step *s)
{
    fmi_lists *l = s->lists;
    fmi_chunk *c = l->now ? l->now->next : l->chunks;
    if (!c) {
        size_t bytes = (size_t)s->max_rows * 8 * sizeof(int32_t);
        c = fm_calloc(1, sizeof(*c));
        if (!c)
            return FM_ENOMEM;
        void *dev = NULL;
        c->host = fm_malloc(bytes);
        fm_status rc = c->host ? s->e->be->alloc(s->e->be, &dev, bytes) : FM_ENOMEM;
        if (rc != FM_OK) {
            fm_free(c->host);
            fm_free(c);
            return rc;
        }
        c->dev = dev;
        if (l->now)
            l->now->next = c;
        else
            l->chunks = c;
    }
    c->used = 0;
    l->now = c;
    return FM_OK;
}

void fmi_lists_clear(fmi_lists *l)
{
    l->count = 0;
    l->now = NULL;
}

void fmi_lists_release(fm_engine *e, fmi_lists *l)
{
    fmi_chunk *next;
    for (fmi_chunk *c = l->chunks; c; c = next) {
        next = c->next;
        fm_free(c->host);
        if (c->dev)
            e->be->free(e->be, c->dev);
        fm_free(c);
    }
    fm_free(l->list);
    *l = (fmi_lists){0};
}

static const int32_t *known_list(const fmi_lists *all, const int32_t *rows, uint32_t count)
{
    for (size_t i = 0; i < all->count; i++) {
        const fmi_list *l = &all->list[i];
        if (l->count == count && memcmp(l->c->host + l->at, rows, count * sizeof(int32_t)) == 0)
            return l->c->dev + l->at;
    }
    return NULL;
}

fm_status fmi_list_room(fmi_step *s, uint32_t count)
{
    const fmi_chunk *c = s->lists->now;
    if (c && c->used + count <= s->max_rows * 8)
        return FM_OK;
    return next_chunk(s);
}

/* Makes the last `count` numbers of the chunk a list, or finds an equal list. */
static fm_status close_list(fmi_step *s, fmi_rows *out, uint32_t count)
{
    fmi_lists *l = s->lists;
    fmi_chunk *c = l->now;
    int32_t *rows = c->host + c->used;
    *out = (fmi_rows){.count = count, .list = known_list(l, rows, count)};
    if (out->list)
        return FM_OK;
    FM_TRY(fm_grow(&l->list, &l->cap, l->count + 1, sizeof(fmi_list)));
    FM_TRY(s->e->be->upload(s->e->be, c->dev + c->used, rows, count * sizeof(int32_t)));
    l->list[l->count++] = (fmi_list){.c = c, .at = c->used, .count = count};
    out->list = c->dev + c->used;
    c->used += count;
    return FM_OK;
}

fm_status fmi_row_list(fmi_step *s, fmi_rows *out, const int32_t *rows, uint32_t count)
{
    FM_TRY(fmi_list_room(s, count));
    memcpy(s->lists->now->host + s->lists->now->used, rows, count * sizeof(int32_t));
    return close_list(s, out, count);
}

/* The rows of the member parts, as a segment where they are one, else as a device list. */
static fm_status rows_of(fmi_step *s, fmi_rows *out, const fmi_part *p, const uint32_t *member,
                         uint32_t n)
{
    uint32_t count = 0;
    bool segment = true;
    for (uint32_t i = 0; i < n; i++) {
        segment = segment && p[member[i]].begin == p[member[0]].begin + count;
        count += p[member[i]].count;
    }
    *out = (fmi_rows){.begin = p[member[0]].begin, .count = count};
    if (segment)
        return FM_OK;
    FM_TRY(fmi_list_room(s, count));
    int32_t *rows = s->lists->now->host + s->lists->now->used;
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < p[member[i]].count; r++)
            rows[at++] = (int32_t)(p[member[i]].begin + r);
    return close_list(s, out, count);
}

/* ==== products ==== */

/* Which parts a call is for: those whose linear scales its input, or those whose does not. */
typedef struct job {
    fmi_pass *p;
    fmi_parts ps;
    fmi_matrix x;
    uint32_t layer;
    bool scaled;
} job;

/* Writes the linear of every part to s->lin, NULL where it is left out; returns the
 * highest number of terms. */
static uint32_t pick_all(const job *j, const fmi_out *o)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < j->ps.n; i++) {
        const fm_linear *lin = o->pick(j->ps.p[i].model, j->layer);
        if (lin && (lin->in_scale != NULL) != j->scaled)
            lin = NULL;
        j->p->s->lin[i] = lin;
        if (lin)
            most = FM_MAX(most, lin->lora_count);
    }
    return most;
}

static fm_status add_products(const job *j, const fmi_out *o, uint32_t *count)
{
    fmi_step *s = j->p->s;
    for (uint32_t i = 0; i < j->ps.n; i++) {
        const fm_linear *lin = s->lin[i];
        uint32_t n = 0;
        if (!lin)
            continue;
        for (uint32_t k = i; k < j->ps.n; k++)
            if (s->lin[k] && s->lin[k]->w == lin->w && s->lin[k]->bias == lin->bias) {
                s->lin[k] = NULL;
                s->member[n++] = k;
            }
        fmi_rows rs;
        FM_TRY(rows_of(s, &rs, j->ps.p, s->member, n));
        s->product[(*count)++] = (fm_product){.y = o->y.p,
                                              .ldy = o->y.ld,
                                              .w = lin->w,
                                              .bias = lin->bias,
                                              .first = rs.begin,
                                              .m = rs.count,
                                              .rows = rs.list,
                                              .split = lin->split,
                                              .grain = lin->rounds ? j->p->grain : NULL};
    }
    return FM_OK;
}

static bool same_term(const fm_lora_term *a, const fm_lora_term *b)
{
    return a->a == b->a && a->b == b->b && memcmp(&a->scale, &b->scale, sizeof(float)) == 0;
}

/* Lists the t-th low-rank term of every part that has one. */
static fm_status add_terms(const job *j, const fmi_out *o, uint32_t t, uint32_t *count)
{
    fmi_step *s = j->p->s;
    for (uint32_t i = 0; i < j->ps.n; i++) {
        const fm_linear *lin = s->lin[i];
        uint32_t n = 0;
        if (!lin || lin->lora_count <= t)
            continue;
        const fm_lora_term *term = &lin->lora[t];
        for (uint32_t k = i; k < j->ps.n; k++)
            if (s->lin[k] && s->lin[k]->lora_count > t && same_term(&s->lin[k]->lora[t], term)) {
                s->lin[k] = NULL;
                s->member[n++] = k;
            }
        fmi_rows rs;
        FM_TRY(rows_of(s, &rs, j->ps.p, s->member, n));
        s->lora[(*count)++] = (fm_lora){.y = o->y.p,
                                        .ldy = o->y.ld,
                                        .a = term->a,
                                        .b = term->b,
                                        .scale = term->scale,
                                        .first = rs.begin,
                                        .m = rs.count,
                                        .rows = rs.list};
    }
    return FM_OK;
}

/* The rows that products of `in` inputs read: x, or these rows rounded. Low-rank terms read x. */
static fmi_matrix inputs_of(const job *j, uint32_t in)
{
    fmi_pass *p = j->p;
    if (!p->s->product[0].grain)
        return j->x;
    for (uint32_t i = 0; i < j->ps.n; i++) {
        const fmi_part *part = &j->ps.p[i];
        p->e->be->round_rows(p->e->be, p->rounded + (size_t)part->begin * in, in,
                             p->grain + part->begin, j->x.p + part->begin * j->x.ld, j->x.ld,
                             part->count, in);
    }
    return (fmi_matrix){p->rounded, in};
}

static fm_status multiply(const job *j, const fmi_out *out, uint32_t outs)
{
    fmi_pass *p = j->p;
    fm_backend *be = p->e->be;
    uint32_t count = 0, most = 0, in = 0;
    fm_status rc = FM_OK;
    for (uint32_t o = 0; o < outs && rc == FM_OK; o++) {
        most = FM_MAX(most, pick_all(j, &out[o]));
        for (uint32_t i = 0; i < j->ps.n && !in; i++)
            in = p->s->lin[i] ? p->s->lin[i]->in : 0;
        rc = add_products(j, &out[o], &count);
    }
    if (rc != FM_OK || count == 0)
        return rc;
    const fmi_matrix x = inputs_of(j, in);
    be->products(be, x.p, x.ld, in, p->s->product, count);
    p->e->gemm_groups += count;
    for (uint32_t t = 0; t < most && rc == FM_OK; t++) {
        count = 0;
        for (uint32_t o = 0; o < outs && rc == FM_OK; o++) {
            (void)pick_all(j, &out[o]);
            rc = add_terms(j, &out[o], t, &count);
        }
        if (rc == FM_OK && count > 0)
            be->lora(be, j->x.p, j->x.ld, in, p->s->lora, count);
    }
    return rc;
}

/* ==== scales ==== */

/* Parts whose linear scales its input (IA3): scales their rows of x, one linear after another. */
static fm_status multiply_scaled(job *j, const fmi_out *o)
{
    fmi_pass *p = j->p;
    fm_backend *be = p->e->be;
    fmi_matrix x = j->x;
    j->x = (fmi_matrix){p->scaled, 0};
    for (uint32_t i = 0; i < j->ps.n; i++) {
        const fmi_part *part = &j->ps.p[i];
        const fm_linear *lin = o->pick(part->model, j->layer);
        if (!lin || !lin->in_scale)
            continue;
        j->x.ld = lin->in;
        be->copy_rows(be, j->x.p + (size_t)part->begin * lin->in, lin->in, x.p + part->begin * x.ld,
                      x.ld, NULL, part->count, lin->in);
        be->affine(be, j->x.p, lin->in, lin->in, lin->in_scale, NULL, part->begin, part->count,
                   NULL);
    }
    j->scaled = true;
    fm_status rc = j->x.ld ? multiply(j, o, 1) : FM_OK;
    j->scaled = false;
    j->x = x;
    return rc;
}

static void scale_outputs(const job *j, const fmi_out *o)
{
    fm_backend *be = j->p->e->be;
    for (uint32_t i = 0; i < j->ps.n; i++) {
        const fmi_part *part = &j->ps.p[i];
        const fm_linear *lin = o->pick(part->model, j->layer);
        if (lin && (lin->out_scale || lin->bias_after))
            be->affine(be, o->y.p, o->y.ld, lin->out, lin->out_scale, lin->bias_after, part->begin,
                       part->count, NULL);
    }
}

fm_status fmi_linears(fmi_pass *p, fmi_parts ps, fmi_matrix x, uint32_t layer, const fmi_out *out,
                      uint32_t outs)
{
    job j = {.p = p, .ps = ps, .x = x, .layer = layer};
    if (fm_comm_size(p->e->group) <= 1 && p->e->stages <= 1) /* ranks end a step together */
        FM_TRY(fm_go_on());
    FM_TRY(multiply(&j, out, outs));
    for (uint32_t o = 0; o < outs; o++) {
        FM_TRY(multiply_scaled(&j, &out[o]));
        scale_outputs(&j, &out[o]);
    }
    return FM_OK;
}
