/* stacks.c - a decoder beside an encoder (fm_model.source). The encoder takes the source of a
 * sequence in one step; the keys and values that each layer of the decoder makes of its states lie
 * in pages of that layer, which the sequence holds until it closes. Rows of the decoder find them
 * behind the tables of their own pages. */
#include "infer/engine/step/step.h"

#include "infer/device/room.h"
#include "store/base/mem.h"

static const fm_linear *pick_q(const fm_model *m, uint32_t l)
{
    return &m->layers[l].cross_q;
}
static const fm_linear *pick_k(const fm_model *m, uint32_t l)
{
    return &m->layers[l].cross_k;
}
static const fm_linear *pick_v(const fm_model *m, uint32_t l)
{
    return &m->layers[l].cross_v;
}
static const fm_linear *pick_o(const fm_model *m, uint32_t l)
{
    return &m->layers[l].cross_o;
}

/* ==== rows of the decoder ==== */

fm_status fmi_cross(fmi_pass *p, uint32_t l, float *x, float *y)
{
    fm_backend *be = p->e->be;
    const fmi_geom *g = p->g;
    size_t qd = (size_t)g->heads * g->head_dim;
    const fmi_out q = {pick_q, {p->q, qd}}, o = {pick_o, {y, g->hidden}};
    FM_TRY(fmi_linears(p, p->all, (fmi_matrix){x, g->hidden}, l, &q, 1));
    const fm_attn att = {.out = p->att,
                         .ldo = qd,
                         .q = p->q,
                         .ldq = qd,
                         .kv = fmi_kv_view(g->pool),
                         .table = p->tables + (size_t)(g->here + l) * p->seqs * p->table_stride,
                         .table_stride = p->table_stride,
                         .seq = p->seq,
                         .pos = p->seen,
                         .m = p->m,
                         .nh = g->heads,
                         .nkv = g->kv_heads,
                         .hd = g->head_dim,
                         .scale = g->sw.attn_scale,
                         .single = p->s->seqs == p->step_rows};
    be->attention(be, &att);
    return fmi_linears(p, p->all, (fmi_matrix){p->att, qd}, l, &o, 1);
}

/* ==== the source ==== */

void fmi_source_drop(fm_seq *s)
{
    const fmi_geom *g = fmi_priv(s->model)->geom;
    for (uint32_t i = 0; i < s->source_pages * g->layers; i++)
        fmi_kv_give(fmi_pool_at(g, i / s->source_pages), s->source_page[i]);
    fm_free(s->source_page);
    s->source_page = NULL;
    s->source_pages = s->source_len = 0;
}

/* Takes pages for n positions of each layer. */
static fm_status take_pages(fm_seq *s, uint32_t n)
{
    const fmi_geom *g = fmi_priv(s->model)->geom;
    uint32_t pages = (n + FM_KV_PAGE - 1) / FM_KV_PAGE, count = pages * g->layers;
    int32_t *page = fm_malloc((size_t)count * sizeof(int32_t));
    if (!page)
        return FM_ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        fm_status rc = fmi_kv_take(fmi_pool_at(g, i / pages), &page[i]);
        if (rc == FM_OK)
            continue;
        while (i-- > 0)
            fmi_kv_give(fmi_pool_at(g, i / pages), page[i]);
        fm_free(page);
        return rc;
    }
    s->source_page = page;
    s->source_pages = pages;
    return FM_OK;
}

/* Writes one layer's keys and values of the n states in the step's hidden. slot: [n] scratch. */
static fm_status write_layer(fmi_pass *p, const fm_seq *s, uint32_t l, uint32_t n, int32_t *slot)
{
    fm_backend *be = p->e->be;
    const fmi_geom *g = p->g;
    size_t kvd = (size_t)g->kv_heads * g->head_dim;
    const fmi_out both[] = {{pick_k, {p->k, kvd}}, {pick_v, {p->v, kvd}}};
    const fmi_matrix states = {p->s->hidden, p->s->hidden_ld};
    fmi_rows at;
    for (uint32_t i = 0; i < n; i++)
        slot[i] =
            s->source_page[(size_t)l * s->source_pages + i / FM_KV_PAGE] * (int32_t)FM_KV_PAGE +
            (int32_t)(i % FM_KV_PAGE);
    FM_TRY(fmi_row_list(p->s, &at, slot, n));
    FM_TRY(fmi_linears(p, p->all, states, l, both, 2));
    be->kv_write(be, fmi_kv_view(fmi_pool_at(g, l)), p->k, kvd, p->v, kvd, at.list, n, g->kv_heads,
                 g->head_dim);
    return FM_OK;
}

/* Writes keys and values of the states that the last step left in its hidden. */
static fm_status write_source(fm_seq *s, uint32_t n)
{
    fm_engine *e = s->model->engine;
    fmi_step *step = e->step;
    const fmi_geom *g = fmi_priv(s->model)->geom;
    fmi_part all = {.model = s->model, .count = n};
    fmi_pass p = {.s = step, .e = e, .g = g, .all = {&all, 1}, .m = n, .rows = n, .step_rows = n};
    int32_t *slot = fm_malloc(n * sizeof(int32_t));
    fm_status rc = slot ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, fmi_float_room(e->be, &step->act, &step->act_floats,
                               fmi_act_floats(g, step->max_rows)));
    step->lists = &step->own;
    fmi_lists_clear(step->lists);
    fmi_carve(&p);
    for (uint32_t l = 0; rc == FM_OK && l < g->layers; l++)
        rc = write_layer(&p, s, l, n, slot);
    FM_THEN(rc, e->be->sync(e->be));
    fm_free(slot);
    return rc;
}

/* Runs the encoder over the source in one step, whose states are left in the step's hidden. */
static fm_status run_encoder(fm_model *m, const int32_t *ids, uint32_t n)
{
    fm_seq *s = NULL;
    fm_row *row = fm_calloc(n, sizeof(*row));
    fm_status rc = row ? fmi_seq_new(&s, m) : FM_ENOMEM;
    for (uint32_t i = 0; rc == FM_OK && i < n; i++)
        row[i] = (fm_row){s, ids[i], true};
    FM_THEN(rc, fm_engine_step(m->engine, row, n));
    fm_seq_close(s);
    fm_free(row);
    return rc;
}

fm_status fmi_source_check(const fm_model *m, const int32_t *ids, size_t n)
{
    uint32_t rows = m->engine->opts.max_rows, positions = fmi_positions(m->source);
    if (n < 1)
        return fm_fail(FM_EINVAL, "the source is empty; %s makes its text from one",
                       m->arch.family);
    if (n > rows)
        return fm_fail(FM_ELIMIT,
                       "the source has %zu tokens; an encoder takes a text in one step, and a step "
                       "of this engine has at most %u rows",
                       n, rows);
    if (n > positions)
        return fm_fail(FM_EINVAL, "the source has %zu tokens, %s at most %u", n,
                       fmi_positions_limit(m->source), positions);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= m->arch.vocab)
            return fm_fail(FM_EINVAL, "token %zu of the source is %d, the vocabulary has %u", i,
                           ids[i], m->arch.vocab);
    return FM_OK;
}

fm_status fm_seq_source(fm_seq *s, const int32_t *ids, size_t n)
{
    fm_model *m = s->model;
    if (!m->source)
        return fm_fail(FM_EINVAL, "%s takes no source", m->arch.family);
    if (s->source_len || s->len)
        return fm_fail(FM_EINVAL, "a sequence has one source, which comes before its tokens");
    FM_TRY(fmi_source_check(m, ids, n));
    FM_TRY(run_encoder(m->source, ids, (uint32_t)n));
    FM_TRY(take_pages(s, (uint32_t)n));
    fm_status rc = write_source(s, (uint32_t)n);
    if (rc != FM_OK) {
        fmi_source_drop(s);
        return rc;
    }
    s->source_len = (uint32_t)n;
    s->version = ++m->engine->table_clock;
    return FM_OK;
}
