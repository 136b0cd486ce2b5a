/* shard.c - which part of a model a rank holds, and the tensors of that part. */
#include "infer/model/shard.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

/* ==== sizes ==== */

static fm_status divide(uint32_t *n, uint32_t ranks, const char *of, const char *what)
{
    if (*n % ranks != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: %u %s do not go into %u equal parts; choose another number of ranks",
                       what, *n, of, ranks);
    *n /= ranks;
    return FM_OK;
}

fm_status fmi_shard_arch(fm_arch *local, const fm_arch *whole, uint32_t ranks, const char *what)
{
    memcpy(local, whole, sizeof(*local)); /* with padding: shapes are compared bytewise */
    if (ranks <= 1)
        return FM_OK;
    if (fm_arch_recurs(whole))
        return fm_fail(
            FM_EUNSUPPORTED,
            "%s: %s has recurrent layers, which cannot be split over ranks; use one rank", what,
            whole->family);
    if (whole->sw.cross || whole->of_source)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: the two stacks of %s are not split over ranks; use one", what,
                       whole->family);
    if (fm_layers_uneven(&whole->sw))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: %s has layers with heads or inputs of their own, which are not split "
                       "over ranks; use one rank",
                       what, whole->family);
    if (whole->sw.embed_width)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: %s makes its embeddings as wide as its layers, which is not split over "
                       "ranks; use one",
                       what, whole->family);
    if (whole->sw.sub_norms || whole->sw.rounds)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: %s %s whole rows before its products, which no rank has; use one rank",
                       what, whole->family, whole->sw.rounds ? "rounds" : "normalises");
    if (whole->sw.qk == FM_QK_ALL)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: %s normalises queries and keys over all heads, which no rank has; use "
                       "one rank",
                       what, whole->family);
    fm_status rc = divide(&local->heads, ranks, "query heads", what);
    if (rc == FM_OK && whole->kv_heads % ranks != 0 && ranks % whole->kv_heads != 0)
        rc = fm_fail(FM_EUNSUPPORTED,
                     "%s: %u heads of keys and values and %u ranks: one must divide the other",
                     what, whole->kv_heads, ranks);
    if (rc == FM_OK && whole->sw.fused == FM_FUSED_QKV_HEADS)
        rc = divide(&local->kv_heads, ranks, "heads of keys and values", what);
    local->kv_heads = FM_MAX(1u, whole->kv_heads / ranks);
    FM_THEN(rc, divide(&local->inter, ranks, "columns of the feed-forward branch", what));
    FM_THEN(rc, divide(&local->sw.expert_inter, ranks, "columns of an expert", what));
    FM_THEN(rc, divide(&local->sw.shared_inter, ranks, "columns of the shared expert", what));
    return rc;
}

/* ==== cuts ==== */

static void add_part(fmi_cut *c, uint64_t begin, uint64_t count)
{
    c->begin[c->parts] = begin;
    c->count[c->parts++] = count;
}

/* Adds part `rank` of [first, first + n). */
static void add_equal(fmi_cut *c, uint64_t first, uint64_t n, uint32_t rank, uint32_t ranks)
{
    add_part(c, first + n / ranks * rank, n / ranks);
}

static void add_kv(fmi_cut *c, uint64_t first, const fm_arch *a, uint32_t rank, uint32_t ranks)
{
    uint64_t mine = FM_MAX(1u, a->kv_heads / ranks);
    uint64_t head = ranks > a->kv_heads ? rank / (ranks / a->kv_heads) : rank * mine;
    add_part(c, first + head * a->head_dim, mine * a->head_dim);
}

static void cut_q(fmi_cut *c, const fm_arch *a, uint32_t rank, uint32_t ranks)
{
    uint64_t q = (uint64_t)a->heads * a->head_dim, kv = (uint64_t)a->kv_heads * a->head_dim;
    if (a->sw.fused == FM_FUSED_NONE) {
        add_equal(c, 0, q, rank, ranks);
    } else if (a->sw.fused == FM_FUSED_QKV) {
        add_equal(c, 0, q, rank, ranks);
        add_kv(c, q, a, rank, ranks);
        add_kv(c, q + kv, a, rank, ranks);
    } else {
        add_equal(c, 0, q + 2 * kv, rank, ranks); /* (q.., k, v) of one head after another */
    }
}

static void cut_vocabulary(fmi_cut *c, uint64_t vocab, uint32_t rank, uint32_t ranks)
{
    uint64_t per = (vocab + ranks - 1) / ranks, begin = FM_MIN(vocab, per * rank);
    add_part(c, begin, FM_MIN(per, vocab - begin));
    c->zeros = per + 1 - c->count[0];
}

static void cut_gate(fmi_cut *c, const fm_arch *a, uint32_t rank, uint32_t ranks)
{
    add_equal(c, 0, a->inter, rank, ranks);
    if (a->sw.fused_mlp)
        add_equal(c, a->inter, a->inter, rank, ranks);
}

static void cut_inputs(fmi_cut *c, uint64_t n, uint32_t rank, uint32_t ranks)
{
    c->of_inputs = true;
    add_equal(c, 0, n, rank, ranks);
}

fmi_cut fmi_cut_of(const fm_arch *a, fm_place place, uint32_t rank, uint32_t ranks)
{
    fmi_cut c = {0};
    if (ranks <= 1)
        return c;
    if (place == FM_P_EMBED || place == FM_P_HEAD || place == FM_P_HEAD_B)
        cut_vocabulary(&c, a->vocab, rank, ranks);
    else if (place == FM_P_Q || place == FM_P_Q_B)
        cut_q(&c, a, rank, ranks);
    else if (a->sw.kv_rank && (place == FM_P_K || place == FM_P_K_B))
        return c; /* every rank has the latent vector whole */
    else if (a->sw.kv_rank && place == FM_P_V)
        add_equal(&c, 0, (uint64_t)a->heads * (a->sw.nope + a->sw.v_dim), rank, ranks);
    else if (a->sw.kv_rank && (place == FM_P_O || place == FM_P_O_B))
        cut_inputs(&c, (uint64_t)a->heads * a->sw.v_dim, rank, ranks);
    else if (place == FM_P_K || place == FM_P_K_B || place == FM_P_V || place == FM_P_V_B)
        add_kv(&c, 0, a, rank, ranks);
    else if (place == FM_P_O || place == FM_P_O_B)
        cut_inputs(&c, (uint64_t)a->heads * a->head_dim, rank, ranks);
    else if (place == FM_P_GATE || place == FM_P_GATE_B)
        cut_gate(&c, a, rank, ranks);
    else if (place == FM_P_UP || place == FM_P_UP_B)
        add_equal(&c, 0, a->inter, rank, ranks);
    else if (place == FM_P_DOWN || place == FM_P_DOWN_B)
        cut_inputs(&c, a->inter, rank, ranks);
    else if (place == FM_P_SINKS)
        add_equal(&c, 0, a->heads, rank, ranks);
    else if (place == FM_P_X_GATE || place == FM_P_X_GATE_B || place == FM_P_X_UP ||
             place == FM_P_X_UP_B)
        add_equal(&c, 0, a->sw.expert_inter, rank, ranks);
    else if (place == FM_P_X_DOWN || place == FM_P_X_DOWN_B)
        cut_inputs(&c, a->sw.expert_inter, rank, ranks);
    else if (place == FM_P_S_GATE || place == FM_P_S_UP)
        add_equal(&c, 0, a->sw.shared_inter, rank, ranks);
    else if (place == FM_P_S_DOWN)
        cut_inputs(&c, a->sw.shared_inter, rank, ranks);
    return c;
}

/* Finds the place of lin in a layer; false: it is none of the layer's. */
static bool place_in_layer(fm_place *place, const fm_layer *l, uint32_t experts,
                           const fm_linear *lin)
{
    const fm_linear *dense[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down, &l->q_a};
    const fm_place name[] = {FM_P_Q,    FM_P_K,  FM_P_V,    FM_P_O,
                             FM_P_GATE, FM_P_UP, FM_P_DOWN, FM_P_Q_A};
    for (size_t i = 0; i < FM_ARRAY_LEN(dense); i++)
        if (dense[i] == lin) {
            *place = name[i];
            return true;
        }
    const fm_experts *x = l->experts;
    if (!x)
        return false;
    const fm_linear *one[] = {&x->router,   &x->s_gate, &x->s_up, &x->s_down,
                              &x->s_switch, &x->into,   &x->from};
    const fm_place own[] = {FM_P_ROUTER,   FM_P_S_GATE, FM_P_S_UP,  FM_P_S_DOWN,
                            FM_P_S_SWITCH, FM_P_X_INTO, FM_P_X_FROM};
    for (size_t i = 0; i < FM_ARRAY_LEN(one); i++)
        if (one[i] == lin) {
            *place = own[i];
            return true;
        }
    if (lin < x->gate || lin >= x->gate + 3 * (size_t)experts)
        return false;
    *place = lin < x->up ? FM_P_X_GATE : lin < x->down ? FM_P_X_UP : FM_P_X_DOWN;
    return true;
}

bool fmi_layer_has(const fm_layer *l, uint32_t experts, const fm_linear *lin)
{
    fm_place place;
    return place_in_layer(&place, l, experts, lin);
}

fmi_cut fmi_cut_of_linear(const fm_model *m, const fm_linear *lin)
{
    uint32_t rank = fm_comm_rank(m->engine->group), ranks = fm_comm_size(m->engine->group);
    fm_place place = FM_P_ROUTER; /* whole */
    if (lin == &m->embed)
        place = FM_P_EMBED;
    else if (lin == &m->head)
        place = FM_P_HEAD;
    for (uint32_t l = 0; ranks > 1 && place == FM_P_ROUTER && l < m->arch.layers; l++)
        if (place_in_layer(&place, &m->layers[l], m->arch.sw.experts, lin))
            break;
    fmi_cut c = fmi_cut_of(&m->arch, place, rank, ranks);
    c.elsewhere = !fmi_pipe_holds_linear(m, lin);
    return c;
}

uint64_t fmi_cut_total(const fmi_cut *c)
{
    uint64_t n = c->zeros;
    for (uint32_t i = 0; i < c->parts; i++)
        n += c->count[i];
    return n;
}

/* Every rank has an equal part, except of the vocabulary and of heads that neighbours share. */
static uint32_t whole_of(const fm_model *m, const fm_linear *lin, bool inputs)
{
    uint32_t here = inputs ? lin->in : lin->out;
    fmi_cut c = fmi_cut_of_linear(m, lin);
    const fm_arch *a = &m->arch;
    uint32_t ranks = fm_comm_size(m->engine->group);
    if (c.parts == 0 || c.of_inputs != inputs)
        return here;
    if (lin == &m->embed || lin == &m->head)
        return a->vocab;
    for (uint32_t l = 0; l < a->layers; l++) {
        if (!a->sw.kv_rank && (lin == &m->layers[l].k || lin == &m->layers[l].v))
            return a->kv_heads * a->head_dim;
        if (lin == &m->layers[l].q && a->sw.fused == FM_FUSED_QKV)
            return (a->heads + 2 * a->kv_heads) * a->head_dim;
    }
    return here * ranks;
}

uint32_t fmi_whole_in(const fm_model *m, const fm_linear *lin)
{
    return whole_of(m, lin, true);
}

uint32_t fmi_whole_out(const fm_model *m, const fm_linear *lin)
{
    return whole_of(m, lin, false);
}

/* ==== slices of tensors ==== */

fmi_slice fmi_slice_of(const fmi_cut *c, bool inputs, uint32_t axis)
{
    fmi_slice s = {.axis = axis, .elsewhere = c->elsewhere};
    if (c->parts == 0 || c->of_inputs != inputs)
        return s;
    s.parts = c->parts;
    s.zeros = c->zeros;
    memcpy(s.begin, c->begin, sizeof(s.begin));
    memcpy(s.count, c->count, sizeof(s.count));
    return s;
}

fmi_slice fmi_slice_of_param(const fm_model *m, const fm_param *p)
{
    const fm_comm *comm = m->engine->group;
    fmi_cut c = fmi_cut_of(&m->arch, p->place, fm_comm_rank(comm), fm_comm_size(comm));
    c.elsewhere = !fmi_pipe_holds(m, fmi_pipe_place(p));
    if (!p->is_matrix)
        return fmi_slice_of(&c, false, 0);
    return fmi_slice_of(&c, c.of_inputs, c.of_inputs != p->transposed ? 1 : 0);
}

bool fmi_param_is_here(const fm_model *m, const fm_param *p)
{
    const fm_comm *comm = m->engine->group;
    fmi_cut c = fmi_cut_of(&m->arch, p->place, fm_comm_rank(comm), fm_comm_size(comm));
    return p->is_matrix || !c.of_inputs || fm_comm_rank(comm) == 0;
}

fm_shape fmi_slice_shape(const fm_shape *s, const fmi_slice *c)
{
    fm_shape out = *s;
    uint64_t n = c->zeros;
    for (uint32_t i = 0; i < c->parts; i++)
        n += c->count[i];
    if (c->parts)
        out.dim[c->axis] = n;
    return out;
}

fm_status fmi_slice_id(fm_digest *out, const fm_entry *e, const fmi_slice *s)
{
    uint8_t text[16 + FM_DIGEST_BYTES + 8 * (3 + 2 * FMI_CUTS)] = "fmstore slice 1";
    uint8_t *at = text + 16 + FM_DIGEST_BYTES;
    if (s->parts == 0) {
        *out = e->id;
        return FM_OK;
    }
    memcpy(text + 16, e->id.b, FM_DIGEST_BYTES);
    fm_put_u64(at, s->axis);
    fm_put_u64(at + 8, s->parts);
    fm_put_u64(at + 16, s->zeros);
    for (uint32_t i = 0; i < s->parts; i++) {
        fm_put_u64(at + 24 + 16 * i, s->begin[i]);
        fm_put_u64(at + 32 + 16 * i, s->count[i]);
    }
    return fm_sha256(out, text, sizeof(text));
}

typedef struct reader { /* a provider of one slice */
    const fm_provider *p;
    const fm_entry *whole;
    const fmi_slice *slice;
} reader;

static fm_status row_bytes(uint64_t *out, const fm_entry *e, uint64_t elems)
{
    fm_shape row = {.rank = 1, .dim = {elems}};
    return fm_tensor_bytes(out, e->dtype, &row, e->name);
}

/* Reads a slice of rows: whole rows lie one after another. */
static fm_status read_rows(const reader *r, uint8_t *dst)
{
    const fm_entry *e = r->whole;
    const fmi_slice *s = r->slice;
    uint64_t bytes = 0;
    fm_status rc = row_bytes(&bytes, e, e->shape.rank == 2 ? e->shape.dim[1] : 1);
    for (uint32_t i = 0; rc == FM_OK && i < s->parts; i++) {
        uint64_t n = s->count[i] * bytes;
        if (n)
            rc = fm_entry_read_range(r->p, e, s->begin[i] * bytes, n, dst, 0);
        dst += n;
    }
    if (rc == FM_OK)
        memset(dst, 0, (size_t)(s->zeros * bytes));
    return rc;
}

static fm_status read_columns(const reader *r, uint8_t *dst)
{
    const fm_entry *e = r->whole;
    const fmi_slice *s = r->slice;
    uint64_t line = 0, from[FMI_CUTS] = {0}, n[FMI_CUTS] = {0}, zeros = 0;
    fm_status rc = row_bytes(&line, e, e->shape.dim[1]);
    for (uint32_t i = 0; rc == FM_OK && i < s->parts; i++) {
        rc = row_bytes(&from[i], e, s->begin[i]);
        FM_THEN(rc, row_bytes(&n[i], e, s->count[i]));
    }
    FM_THEN(rc, row_bytes(&zeros, e, s->zeros));
    if (rc != FM_OK)
        return fm_error_prefix(rc, "a rank's columns (another number of ranks may cut between "
                                   "blocks)");
    uint8_t *whole = fm_aligned_alloc(64, (size_t)e->bytes);
    rc = whole ? r->p->read(r->p->ctx, e, whole) : FM_ENOMEM;
    for (uint64_t row = 0; rc == FM_OK && row < e->shape.dim[0]; row++) {
        for (uint32_t i = 0; i < s->parts; i++) {
            memcpy(dst, whole + row * line + from[i], (size_t)n[i]);
            dst += n[i];
        }
        memset(dst, 0, (size_t)zeros);
        dst += zeros;
    }
    fm_free(whole);
    return rc;
}

static fm_status read_slice(void *ctx, const fm_entry *e, void *dst)
{
    const reader *r = ctx;
    (void)e;
    return r->slice->axis == 0 ? read_rows(r, dst) : read_columns(r, dst);
}

fm_status fmi_take_slice(fmi_weights *c, fmi_cached **out, const fm_entry *e, fmi_form form,
                         const fm_provider *p, const fmi_slice *slice)
{
    form = fmi_form_here(form, slice);
    if (slice->parts == 0)
        return fmi_weights_take(c, out, e, form, p);
    fm_entry part = *e;
    *out = NULL;
    if (e->kind != FM_ENTRY_TENSOR)
        return fm_fail(FM_ECORRUPT, "%s: is no tensor", e->path);
    part.shape = fmi_slice_shape(&e->shape, slice);
    fm_status rc = fmi_slice_id(&part.id, e, slice);
    FM_THEN(rc, fm_tensor_bytes(&part.bytes, e->dtype, &part.shape, e->name));
    if (rc != FM_OK)
        return fm_error_prefix(rc, "a rank's part");
    reader r = {p, e, slice};
    fm_provider own = {.ctx = &r, .read = read_slice};
    return fmi_weights_take(c, out, &part, form, &own);
}

fm_status fmi_cut_floats(float **out, const float *whole, const fmi_cut *c, uint64_t n)
{
    bool cut = c->parts && !c->of_inputs;
    uint64_t at = 0, total = cut ? fmi_cut_total(c) : n;
    float *x = fm_calloc((size_t)total, sizeof(float));
    *out = x;
    if (!x)
        return FM_ENOMEM;
    if (!cut)
        memcpy(x, whole, (size_t)n * sizeof(float));
    for (uint32_t i = 0; cut && i < c->parts; i++) {
        memcpy(x + at, whole + c->begin[i], (size_t)c->count[i] * sizeof(float));
        at += c->count[i];
    }
    return FM_OK;
}

void fmi_cut_virtual(const fm_model *m, float *rows, uint32_t len)
{
    const fm_comm *comm = m->engine->group;
    const fm_arch *a = &m->arch;
    fmi_cut c = fmi_cut_of(a, FM_P_K, fm_comm_rank(comm), fm_comm_size(comm));
    size_t wide = (size_t)a->kv_heads * a->head_dim, n = (size_t)len * a->layers * 2;
    for (size_t i = 0; c.parts && i < n; i++)
        memmove(rows + i * c.count[0], rows + i * wide + c.begin[0],
                (size_t)c.count[0] * sizeof(float));
}

int32_t fmi_token_here(const fm_model *m, int32_t token)
{
    const fm_comm *comm = m->engine->group;
    uint32_t ranks = fm_comm_size(comm);
    if (ranks <= 1)
        return token;
    int32_t per = (int32_t)((m->arch.vocab + ranks - 1) / ranks);
    int32_t begin = per * (int32_t)fm_comm_rank(comm);
    return token >= begin && token < begin + per ? token - begin : per;
}

/* ==== what a stage holds ==== */

int32_t fmi_pipe_place(const fm_param *p)
{
    if (p->source) /* one stage */
        return FMI_BEFORE_LAYERS;
    if (p->layer >= 0)
        return p->layer;
    return p->place == FM_P_NORM || p->place == FM_P_NORM_B || p->place == FM_P_HEAD ||
                   p->place == FM_P_HEAD_B
               ? FMI_BEHIND_LAYERS
               : FMI_BEFORE_LAYERS;
}

bool fmi_pipe_holds(const fm_model *m, int32_t place)
{
    const fm_engine *e = m->engine;
    if (place == FMI_BEFORE_LAYERS)
        return e->stage == 0;
    if (place == FMI_BEHIND_LAYERS)
        return e->stage + 1 == e->stages;
    return fmi_stage_split_stage(&fmi_priv(m)->split, (uint32_t)place) == e->stage;
}

bool fmi_pipe_holds_linear(const fm_model *m, const fm_linear *lin)
{
    if (m->engine->stages == 1)
        return true;
    if (lin == &m->head)
        return fmi_pipe_holds(m, FMI_BEHIND_LAYERS);
    if (lin == &m->embed || lin == &m->positions)
        return fmi_pipe_holds(m, FMI_BEFORE_LAYERS);
    for (uint32_t l = 0; l < m->arch.layers; l++)
        if (fmi_layer_has(&m->layers[l], m->arch.sw.experts, lin))
            return fmi_pipe_holds(m, (int32_t)l);
    return true;
}
