/* forward.c - runs the passes of a step; a pass takes rows of one shape class through the layers.
 *
 * Families differ by switches (arch/table.c), not by code paths of their own: where norms stand,
 * how positions enter, what a branch computes. Linear layers go through linears.c, which groups
 * rows by weight. Norms, rotary tables and embeddings go by neighbouring runs with the same
 * pointer, since splitting them costs nothing. */
#include "infer/engine/pipeline.h"

#include <math.h>
#include <string.h>

#include "infer/device/room.h"
#include "store/base/mem.h"

static const fm_linear *pick_head(const fm_model *m, uint32_t l)
{
    (void)l;
    return m->head.w ? &m->head : NULL;
}
static fmi_gain gain_attn(const fm_model *m, uint32_t l)
{
    return (fmi_gain){m->layers[l].attn_norm, m->layers[l].attn_norm_b};
}
static fmi_gain gain_mlp(const fm_model *m, uint32_t l)
{
    return (fmi_gain){m->layers[l].mlp_norm, m->layers[l].mlp_norm_b};
}
/* The norm in front of the layer's first branch. */
static fmi_gain gain_first(const fm_model *m, uint32_t l)
{
    return fm_layer_mixes(&m->arch.sw, l) ? gain_attn(m, l) : gain_mlp(m, l);
}
static fmi_gain gain_attn_post(const fm_model *m, uint32_t l)
{
    return (fmi_gain){m->layers[l].attn_post, m->layers[l].attn_post_b};
}
static fmi_gain gain_mlp_post(const fm_model *m, uint32_t l)
{
    return (fmi_gain){m->layers[l].mlp_post, m->layers[l].mlp_post_b};
}
static fmi_gain gain_cross(const fm_model *m, uint32_t l)
{
    return (fmi_gain){m->layers[l].cross_norm, m->layers[l].cross_norm_b};
}
static fmi_gain gain_cross_post(const fm_model *m, uint32_t l)
{
    return (fmi_gain){m->layers[l].cross_post, m->layers[l].cross_post_b};
}
static fmi_gain gain_final(const fm_model *m, uint32_t l)
{
    (void)l;
    return (fmi_gain){m->norm, m->norm_b};
}
static fmi_gain gain_embed(const fm_model *m, uint32_t l)
{
    (void)l;
    return (fmi_gain){m->embed_norm, m->embed_norm_b};
}

static const fm_linear *pick_embed_map(const fm_model *m, uint32_t l)
{
    (void)l;
    return &m->embed_map;
}

static const fm_linear *pick_per_map(const fm_model *m, uint32_t l)
{
    (void)l;
    return &m->per_map;
}
static const fm_linear *pick_per_gate(const fm_model *m, uint32_t l)
{
    return &m->layers[l].per_gate;
}
static const fm_linear *pick_per_out(const fm_model *m, uint32_t l)
{
    return &m->layers[l].per_out;
}
static fmi_gain gain_per(const fm_model *m, uint32_t l)
{
    (void)l;
    return (fmi_gain){m->per_norm, NULL};
}
static fmi_gain gain_per_post(const fm_model *m, uint32_t l)
{
    return (fmi_gain){m->layers[l].per_post, NULL};
}

/* ==== embedding ==== */

static const fm_weight *table_embed(const fm_model *m)
{
    return m->embed.w;
}
static const fm_weight *table_positions(const fm_model *m)
{
    return m->positions.w;
}
static const fm_weight *table_per(const fm_model *m)
{
    return m->per_embed.w;
}

/* Looks rows of each model's table up. */
static void look_up(fmi_pass *p, const fm_weight *(*table)(const fm_model *m), const int32_t *ids,
                    float *y, size_t h)
{
    fm_backend *be = p->e->be;
    for (uint32_t i = 0, j; i < p->all.n; i = j) {
        const fmi_part *first = &p->all.p[i];
        const fm_weight *w = table(first->model);
        uint32_t m = 0;
        for (j = i; j < p->all.n && table(p->all.p[j].model) == w; j++)
            m += p->all.p[j].count;
        be->embed(be, y + first->begin * h, h, w, ids + first->begin, NULL, m);
    }
}

/* Adds low-rank terms of the embedding to x, one after another; xn and other are still unused. */
static void embed_terms(fmi_pass *p, float *x, float *other, uint32_t h)
{
    fm_backend *be = p->e->be;
    for (uint32_t i = 0; i < p->all.n; i++) {
        const fmi_part *part = &p->all.p[i];
        const fm_linear *lin = &part->model->embed;
        size_t at = (size_t)part->begin * h;
        uint64_t n = (uint64_t)part->count * h;
        for (uint32_t t = 0; t < lin->lora_count; t++) {
            const fm_lora_term *term = &lin->lora[t];
            const fm_product one = {
                .y = other, .ldy = h, .w = term->b, .first = part->begin, .m = part->count};
            be->embed(be, p->xn + at, h, term->a, p->ids + part->begin, NULL, part->count);
            be->products(be, p->xn, h, term->r, &one, 1);
            be->scale(be, other + at, term->scale, n);
            be->add(be, x + at, other + at, n);
        }
    }
}

/* Computes the embeddings. Given rows (one sequence in its order, engine/virtual_tokens.c) take the
 * place of scaled embeddings. */
static fm_status embed(fmi_pass *p)
{
    fm_backend *be = p->e->be;
    const fm_switches *sw = &p->g->sw;
    uint32_t h = sw->embed_width ? sw->embed_width : p->g->hidden;
    float *x = sw->embed_width ? p->o : p->x, *other = sw->embed_width ? p->x : p->o;
    const fmi_out map = {pick_embed_map, {p->x, p->g->hidden}};
    fm_status rc = FM_OK;
    if (p->s->given)
        rc = be->upload(be, x, p->s->given + (size_t)p->row0 * h, (size_t)p->m * h * sizeof(float));
    else
        look_up(p, table_embed, p->ids, x, h);
    if (!p->s->given)
        embed_terms(p, x, other, h);
    if (rc == FM_OK && !p->s->given)
        rc = fmi_join_ranks(p, x);
    if (!p->s->given && sw->embed_scale != 1.0f)
        be->scale(be, x, sw->embed_scale, (uint64_t)p->m * h);
    for (uint32_t i = 0; sw->types && i < p->all.n; i++) {
        const fmi_part *part = &p->all.p[i];
        be->affine(be, x, h, h, NULL, part->model->types, part->begin, part->count, NULL);
    }
    if (sw->positions) {
        look_up(p, table_positions, p->place, other, h);
        be->add(be, x, other, (uint64_t)p->m * h);
    }
    if (sw->embed_norm)
        fmi_norm(p, p->all, sw->norm, gain_embed, 0, x, x, 1, h);
    if (sw->embed_width)
        FM_THEN(rc, fmi_linears(p, p->all, (fmi_matrix){x, h}, 0, &map, 1));
    return rc;
}

/* Computes what each layer reads of its own, for all rows of the pass, also those that begin at an
 * upper layer: (norm(map(embedding)) + row of the table) / sqrt(2). */
static fm_status embed_layers(const fmi_pass *pass)
{
    fmi_pass p = *pass;
    fm_backend *be = p.e->be;
    const fm_switches *sw = &p.g->sw;
    uint32_t h = p.g->hidden, wide = p.g->layers * sw->per_layer;
    const fmi_out map = {pick_per_map, {p.per, wide}};
    if (!sw->per_layer)
        return FM_OK;
    for (uint32_t i = 0; i < p.part_count; i++)
        p.parts[i].begin = p.parts[i].at;
    p.all = (fmi_parts){p.parts, p.part_count};
    p.m = p.rows;
    p.x = p.x0;
    p.ids = p.ints + p.row0;
    uint64_t n = (uint64_t)p.m * wide;
    FM_TRY(embed(&p));
    FM_TRY(fmi_linears(&p, p.all, (fmi_matrix){p.x, h}, 0, &map, 1));
    be->scale(be, p.per, (float)(1.0 / sqrt((double)h)), n);
    fmi_norm(&p, p.all, FM_NORM_RMS, gain_per, 0, p.per, p.per, p.g->layers, sw->per_layer);
    look_up(&p, table_per, p.ids, p.per_map, wide);
    be->scale(be, p.per_map, sw->per_layer_scale, n);
    be->add(be, p.per, p.per_map, n);
    be->scale(be, p.per, (float)(1.0 / sqrt(2.0)), n);
    return FM_OK;
}

/* ==== layers ==== */

/* Whether every row of the pass wants its logits, as in a step of decoding streams. */
static bool all_wanted(const fmi_pass *p)
{
    return p->w == p->rows && p->m == p->rows;
}

/* Whether xn may be computed together with x: the next layer reads the same rows, and no hook
 * changes them before. next_layer: layers for the final norm. */
static bool norm_follows(const fmi_pass *p, uint32_t next_layer)
{
    const fm_switches *sw = &p->g->sw;
    bool here = next_layer < p->g->split.begin[p->e->stage + 1];
    if (next_layer == p->g->layers)
        here = all_wanted(p) && !p->e->tap && fm_ends_normed(sw);
    return here && p->e->be->add_rmsnorm && sw->norm == FM_NORM_RMS &&
           sw->order != FM_BLOCK_AFTER && sw->order != FM_BLOCK_POST && p->s->hooked_count == 0 &&
           p->m == p->rows;
}

/* x = x + branch and xn = norm(x), by neighbouring runs with the same gain. */
static void add_and_norm(fmi_pass *p, float *branch, fmi_gain_fn gain, uint32_t layer)
{
    fm_backend *be = p->e->be;
    uint32_t h = p->g->hidden;
    for (uint32_t i = 0, j, m; i < p->all.n; i = j) {
        const float *g = gain(p->all.p[i].model, layer).gain;
        size_t at = (size_t)p->all.p[i].begin * h;
        for (j = i, m = 0; j < p->all.n && gain(p->all.p[j].model, layer).gain == g; j++)
            m += p->all.p[j].count;
        be->add_rmsnorm(be, p->xn + at, p->x + at, branch + at, g, m, h, p->g->eps);
    }
    p->normed = true;
}

/* x = x + branch, with the family's norm or scale of the branch before, or norm of the sum after
 * it. next: the norm in front of the next branch, in next_layer; NULL: x is not yet its input. */
static void join(fmi_pass *p, uint32_t l, float *branch, fmi_gain_fn post, fmi_gain_fn next,
                 uint32_t next_layer)
{
    fm_backend *be = p->e->be;
    const fm_switches *sw = &p->g->sw;
    uint32_t h = p->g->hidden;
    uint64_t n = (uint64_t)p->m * h;
    if (sw->order == FM_BLOCK_SANDWICH || sw->order == FM_BLOCK_AFTER)
        fmi_norm(p, p->all, sw->norm, post, l, branch, branch, 1, h);
    if (sw->residual_scale != 1.0f)
        be->scale(be, branch, sw->residual_scale, n);
    if (next && norm_follows(p, next_layer)) {
        add_and_norm(p, branch, next, next_layer);
        return;
    }
    be->add(be, p->x, branch, n);
    if (sw->order == FM_BLOCK_POST)
        fmi_norm(p, p->all, sw->norm, post, l, p->x, p->x, 1, h);
}

/* The input of a branch: x, or its norm in xn. */
static float *input_of(fmi_pass *p, uint32_t l, fmi_gain_fn gain)
{
    const fm_switches *sw = &p->g->sw;
    if (sw->order == FM_BLOCK_AFTER || sw->order == FM_BLOCK_POST ||
        (gain == gain_attn && (sw->layer[l] & FM_LAYER_NO_INPUT_NORM)))
        return p->x;
    if (!p->normed)
        fmi_norm(p, p->all, sw->norm, gain, l, p->xn, p->x, 1, p->g->hidden);
    p->normed = false;
    return p->xn;
}

static fm_status feed_forward(fmi_pass *p, uint32_t l, float *x, float *y)
{
    bool sparse = p->g->sw.layer[l] & FM_LAYER_SPARSE, beside = sparse && p->g->sw.mlp_too;
    FM_TRY(beside   ? fmi_moe_beside(p, l, x, y)
           : sparse ? fmi_moe(p, l, x, y)
                    : fmi_mlp(p, l, x, y));
    return fmi_join_ranks(p, y);
}

/* The branch that mixes positions. */
static fm_status mixing(fmi_pass *p, uint32_t l, float *x, float *y)
{
    if (p->g->sw.beside && fm_layer_recurs(&p->g->sw, l)) {
        FM_TRY(fmi_recurrent(p, l, x, p->other));
        FM_TRY(fmi_attention(p, l, x, y));
        p->e->be->add(p->e->be, y, p->other, (uint64_t)p->m * p->g->hidden);
        return FM_OK;
    }
    return fm_layer_attends(&p->g->sw, l) ? fmi_attention(p, l, x, y) : fmi_recurrent(p, l, x, y);
}

/* What stands behind the branches: x + norm(out(act(gate(x)) * the layer's own input)), and the
 * layer's number. */
static fm_status finish_layer(fmi_pass *p, uint32_t l)
{
    fm_backend *be = p->e->be;
    const fm_switches *sw = &p->g->sw;
    uint32_t h = p->g->hidden, n = sw->per_layer;
    size_t wide = (size_t)p->g->layers * n, row = (size_t)(p->x - p->x0) / h;
    const fmi_out gate = {pick_per_gate, {p->gate, n}}, out = {pick_per_out, {p->o, h}};
    if (n) {
        FM_TRY(fmi_linears(p, p->all, (fmi_matrix){p->x, h}, l, &gate, 1));
        be->act(be, sw->act, p->gate, n, p->gate, n, p->per + row * wide + (size_t)l * n, wide,
                p->m, n);
        FM_TRY(fmi_linears(p, p->all, (fmi_matrix){p->gate, n}, l, &out, 1));
        fmi_norm(p, p->all, sw->norm, gain_per_post, l, p->o, p->o, 1, h);
        be->add(be, p->x, p->o, (uint64_t)p->m * h);
    }
    for (uint32_t i = 0; sw->layer_scale && i < p->all.n; i++) {
        const fmi_part *part = &p->all.p[i];
        be->affine(be, p->x, h, h, part->model->layers[l].scale, NULL, part->begin, part->count,
                   NULL);
    }
    return FM_OK;
}

/* The feed-forward branch behind, or without, one that mixes positions. */
static fm_status second_branch(fmi_pass *p, uint32_t l, fmi_gain_fn after)
{
    FM_TRY(feed_forward(p, l, input_of(p, l, gain_mlp), p->o));
    FM_TRY(fmi_hooks(p, FM_SITE_MLP, l, p->o));
    join(p, l, p->o, gain_mlp_post, after, l + 1);
    return FM_OK;
}

static fm_status layer(fmi_pass *p, uint32_t l)
{
    fm_backend *be = p->e->be;
    bool more = p->g->sw.per_layer || p->g->sw.layer_scale;
    fmi_gain_fn after = more ? NULL : l + 1 < p->g->layers ? gain_first : gain_final;
    if (!fm_layer_mixes(&p->g->sw, l))
        return second_branch(p, l, after);
    FM_TRY(mixing(p, l, input_of(p, l, gain_attn), p->o));
    FM_TRY(fmi_join_ranks(p, p->o));
    FM_TRY(fmi_hooks(p, FM_SITE_ATTENTION, l, p->o));
    if (p->g->sw.order == FM_BLOCK_PARALLEL) {
        float *in = p->g->sw.one_norm ? p->xn : input_of(p, l, gain_mlp);
        FM_TRY(feed_forward(p, l, in, p->other));
        FM_TRY(fmi_hooks(p, FM_SITE_MLP, l, p->other));
        be->add(be, p->o, p->other, (uint64_t)p->m * p->g->hidden);
        join(p, l, p->o, gain_mlp_post, after, l + 1);
        return FM_OK;
    }
    if (p->g->sw.layer[l] & FM_LAYER_NO_MLP) {
        join(p, l, p->o, gain_attn_post, after, l + 1);
        return FM_OK;
    }
    join(p, l, p->o, gain_attn_post, p->g->sw.cross ? gain_cross : gain_mlp, l);
    if (p->g->sw.cross) {
        FM_TRY(fmi_cross(p, l, input_of(p, l, gain_cross), p->o));
        join(p, l, p->o, gain_cross_post, gain_mlp, l);
    }
    FM_TRY(second_branch(p, l, after));
    return more ? finish_layer(p, l) : FM_OK;
}

/* ==== the ends ==== */

/* Gives the rows of x to the tap, in the caller's order. */
static fm_status tap(fmi_pass *p, uint32_t layer_number, const float *x)
{
    fmi_step *s = p->s;
    fm_backend *be = p->e->be;
    uint32_t h = p->g->hidden;
    if (!p->e->tap)
        return FM_OK;
    size_t floats = (size_t)p->m * h;
    FM_TRY(fm_grow(&s->tap_host, &s->tap_floats, 2 * floats, sizeof(float)));
    FM_TRY(be->download(be, s->tap_host, x, floats * sizeof(float)));
    float *sorted = s->tap_host + floats;
    const uint32_t *order = s->order + p->row0;
    for (uint32_t i = 0; i < p->m; i++) {
        uint32_t rank = 0; /* place of row i among the caller's rows of this pass */
        for (uint32_t j = 0; j < p->m; j++)
            rank += order[j] < order[i];
        memcpy(sorted + (size_t)rank * h, s->tap_host + (size_t)i * h, h * sizeof(float));
    }
    p->e->tap(p->e->tap_ctx, layer_number, sorted, p->m, h);
    return FM_OK;
}

/* Each rank has its rows of the vocabulary; rank 0 gets all of their logits. */
static fm_status head_of_ranks(fmi_pass *p, float *states)
{
    fmi_step *s = p->s;
    bool later = p->e->stages > 1; /* all passes at once: fmi_pipe_deliver */
    size_t ld = later ? fmi_pipe_shard_ld(s) : fmi_logits_here(p);
    size_t rooms = fm_comm_rank(p->e->group) ? 1 : fm_comm_size(p->e->group);
    if (ld == 0)
        return FM_OK;
    fm_status rc = fmi_float_room(p->e->be, &s->shard, &s->shard_floats,
                                  (later ? s->wanted : rooms * p->w) * ld);
    const fmi_out head = {pick_head, {s->shard + (later ? p->want0 * ld : 0), ld}};
    FM_THEN(rc, fmi_linears(p, p->want, (fmi_matrix){states, p->g->hidden}, 0, &head, 1));
    return rc == FM_OK && !later ? fmi_gather_logits(p, s->shard, ld) : rc;
}

/* Writes the final states of the rows that want logits to the step's hidden, then their logits. */
static fm_status logits(fmi_pass *p)
{
    fm_backend *be = p->e->be;
    fmi_step *s = p->s;
    const fm_switches *sw = &p->g->sw;
    uint32_t h = p->g->hidden;
    if (p->w == 0)
        return FM_OK;
    float *states = s->hidden + p->want0 * s->hidden_ld;
    float *normed = all_wanted(p) ? p->x : p->o;
    if (!all_wanted(p))
        be->copy_rows(be, p->o, h, p->x, h, p->gather, p->w, h);
    if (fm_ends_normed(sw)) {
        if (!p->normed)
            fmi_norm(p, p->want, sw->norm, gain_final, 0, p->xn, normed, 1, h);
        p->normed = false;
        normed = p->xn;
    }
    be->copy_rows(be, states, s->hidden_ld, normed, h, NULL, p->w, h);

    bool cut = fm_comm_size(p->e->group) > 1;
    if (cut) {
        FM_TRY(head_of_ranks(p, normed));
    } else {
        const fmi_out head = {pick_head, {s->logits + p->want0 * s->ld, s->ld}};
        FM_TRY(fmi_linears(p, p->want, (fmi_matrix){normed, h}, 0, &head, 1));
    }
    for (uint32_t i = 0; i < p->want.n && !(cut && p->e->stages > 1); i++)
        fmi_finish_logits(s, p->want.p[i].model, p->want0 + (size_t)p->want.p[i].begin,
                          p->want.p[i].count);
    return FM_OK;
}

/* Prepares x for this rank's first layer: the embeddings, or rows from the stage before. */
static fm_status beginning(fmi_pass *p, uint32_t begin)
{
    if (begin > 0)
        return fmi_pipe_receive(p, begin);
    FM_TRY(embed_layers(p));
    fmi_pass_enter(p, 0);
    FM_TRY(embed(p));
    FM_TRY(tap(p, 0, p->x));
    return fmi_hooks(p, FM_SITE_RESIDUAL, 0, p->x);
}

static fm_status forward(fmi_pass *p)
{
    const uint32_t *deal = p->g->split.begin + p->e->stage;
    uint32_t layers = p->g->layers, end = deal[1];
    fm_status rc = beginning(p, deal[0]);
    p->e->layer_rows += fmi_pipe_rows_elsewhere(p);
    for (uint32_t l = deal[0]; l < end && rc == FM_OK; l++) {
        if (l > 0)
            fmi_pass_enter(p, l);
        if (p->m == 0)
            continue;
        rc = layer(p, l);
        FM_THEN(rc, fmi_hooks(p, FM_SITE_RESIDUAL, l + 1, p->x));
        if (rc == FM_OK && l + 1 < layers)
            rc = tap(p, l + 1, p->x);
    }
    if (end < layers)
        return rc == FM_OK ? fmi_pipe_send(p, end) : rc;
    fmi_pass_enter(p, layers);
    bool normed = fm_ends_normed(&p->g->sw);
    if (rc == FM_OK && p->e->tap && normed)
        fmi_norm(p, p->all, p->g->sw.norm, gain_final, 0, p->xn, p->x, 1, p->g->hidden);
    if (rc == FM_OK && p->e->tap)
        rc = tap(p, layers, normed ? p->xn : p->x);
    return rc == FM_OK ? logits(p) : rc;
}

/* ==== the passes of a step ==== */

/* Where the slots, tables and logits of a pass begin in the step's. */
typedef struct cursor {
    uint32_t want0;
    size_t slot, table;
} cursor;

/* Runs one pass over runs [i, j) of m rows. */
static fm_status run_pass(fmi_step *s, uint32_t n, uint32_t i, uint32_t j, uint32_t m, cursor *at)
{
    const fmi_geom *g = fmi_geom_of_run(s, i);
    uint32_t wants = 0, w = 0, row0 = s->run[i].row0;
    for (uint32_t r = i; r < j; r++)
        if (s->run[r].wanted) {
            s->want[wants++] =
                (fmi_part){.model = s->run[r].model, .begin = w, .count = s->run[r].wanted};
            w += s->run[r].wanted;
        }
    fmi_pass p = {.s = s,
                  .e = s->e,
                  .g = g,
                  .parts = s->run + i,
                  .part_count = j - i,
                  .want = {s->want, wants},
                  .row0 = row0,
                  .rows = m,
                  .want0 = at->want0,
                  .w = w,
                  .table_stride = s->table_stride,
                  .ints = s->dev,
                  .step_rows = n,
                  .gather = s->dev + 2 * (size_t)n + at->want0,
                  .slots = s->dev + 4 * (size_t)n + at->slot,
                  .tables = s->table + at->table,
                  .seqs = g->seqs};
    fmi_carve(&p);
    p.x0 = p.x;
    at->want0 += w;
    at->slot += fmi_row_ints(g) * m;
    at->table += j == fmi_class_end(s, i) ? fmi_table_ints(s, g) : 0;
    return forward(&p);
}

fm_status fmi_step_passes(fmi_step *s, uint32_t n)
{
    cursor at = {0};
    for (uint32_t i = 0, j, m; i < s->runs; i = j) {
        j = fmi_pass_end(s, i, &m);
        FM_TRY(run_pass(s, n, i, j, m, &at));
    }
    return FM_OK;
}
