/* models.c - loads and closes models: architecture, tensors (model/bind.c), adapters, tokenizer. */
#include "infer/comm.h"
#include "infer/engine/engine.h"
#include "infer/model/fixed.h"
#include "infer/model/shard.h"

#include <math.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/scaled.h"

/* Refuses what this device and mode do not compute. */
static fm_status check_device(const fmi_binder *b)
{
    const fm_backend *be = b->m->engine->be;
    const fm_arch *a = &b->m->arch;
    const char *lacks = NULL;
    if (FM_MAX(a->head_dim, a->sw.full_head_dim) > 256 && !(be->attends & FM_ATTENDS_WIDE))
        lacks = "attention with heads of more than 256 elements";
    if (a->sw.sinks && !(be->attends & FM_ATTENDS_SINK))
        lacks = "attention with sinks";
    if (fmi_near_ld(a) && !(be->attends & FM_ATTENDS_BIAS))
        lacks = "attention with biases by distance";
    if (a->sw.encoder && a->window && !(be->attends & FM_ATTENDS_FIRST))
        lacks = "attention with a window to both sides";
    if (a->sw.chunk && !(be->attends & FM_ATTENDS_FIRST))
        lacks = "attention in chunks";
    if (a->sw.cross && !be->host_visible)
        lacks = "attention to a source";
    if (a->sw.rec.kind != FM_RECURS_NOT && !be->convolve)
        lacks = "short convolutions";
    if (a->sw.rec.kind == FM_RECURS_DELTA ? !be->delta
                                          : a->sw.rec.kind > FM_RECURS_CONV && !be->scan)
        lacks = a->sw.rec.kind == FM_RECURS_DELTA ? "gated delta rules" : "state-space layers";
    if (lacks)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: mode %s on %s has no %s, which %s needs; use mode exact, or the CPU",
                       b->what, be->mode, be->name, lacks, a->family);
    return FM_OK;
}

/* Makes the table of biases of this rank's heads, of the model or its encoder. */
static fm_status bind_near(fmi_binder *b, fm_model *m)
{
    float *all = NULL;
    uint32_t heads = fmi_priv(m)->local.heads, ld = fmi_near_ld(&m->arch);
    size_t first = (size_t)fm_comm_rank(m->engine->group) * heads * ld;
    FM_TRY(fmi_near_make(&all, &m->arch, b->tree, b->p, b->what));
    fm_status rc = all ? fmi_own(b->m, &m->near, all + first, heads * ld) : FM_OK;
    fm_free(all);
    return rc;
}

/* Numbers of the activations; only the layers that are here compute with theirs. */
static fm_status bind_xielu(fmi_binder *b)
{
    fm_model *m = b->m;
    for (uint32_t l = 0; m->arch.sw.xielu && l < m->arch.layers; l++) {
        float host[4];
        FM_TRY(fmi_xielu_make(host, &m->arch, l, b->tree, b->p, b->what));
        FM_TRY(fmi_own(m, &m->layers[l].xielu, host, 4));
    }
    return FM_OK;
}

/* Norms without parameters have gains of 1. */
static fm_status bind_bare(fmi_binder *b)
{
    fm_model *m = b->m;
    const float *ones = NULL;
    uint32_t n = FM_MAX(m->arch.hidden, m->arch.head_dim);
    float *host = fm_malloc(n * sizeof(float));
    for (uint32_t i = 0; host && i < n; i++)
        host[i] = 1.0f;
    fm_status rc = host ? fmi_own(m, &ones, host, n) : FM_ENOMEM;
    fm_free(host);
    if (m->arch.sw.bare_norms)
        m->norm = m->embed_norm = ones;
    for (uint32_t l = 0; l < m->arch.layers; l++) {
        fm_layer *y = &m->layers[l];
        y->q_norm = y->k_norm = ones;
        if (m->arch.sw.bare_norms)
            y->attn_norm = y->mlp_norm = ones;
    }
    return rc;
}

/* A layer's number as a row, or the gain of what its router reads. */
static fm_status bind_made(fmi_binder *b, const fm_param *p, float *row)
{
    fm_model *m = b->m;
    fm_layer *y = &m->layers[p->layer];
    bool one = p->place == FM_P_LAYER_SCALE;
    uint32_t n = m->arch.hidden;
    float *from = NULL, root = (float)(1.0 / sqrt((double)n));
    FM_TRY(fmi_fixed_floats(&from, one ? 1 : n, p->name, b->tree, b->p, b->what));
    for (uint32_t i = 0; i < n; i++)
        row[i] = one ? from[0] : from[i] * root;
    fm_free(from);
    return fmi_own(m, one ? &y->scale : &y->experts->router_norm, row, n);
}

/* Gains of 1 for values' norms, and what is made of parameters. */
static fm_status bind_uneven(fmi_binder *b)
{
    fm_model *m = b->m;
    const fm_switches *s = &m->arch.sw;
    uint32_t n = FM_MAX(m->arch.hidden, FM_MAX(m->arch.head_dim, s->full_head_dim));
    float *host = fm_malloc(n * sizeof(float));
    fm_status rc = host ? FM_OK : FM_ENOMEM;
    fm_param p;
    for (uint32_t i = 0; host && i < n; i++)
        host[i] = 1.0f;
    if (rc == FM_OK && s->v_norm)
        rc = fmi_own(m, &m->ones, host, n);
    for (uint32_t i = 0; rc == FM_OK && fm_arch_param(&m->arch, i, &p); i++)
        if (p.place == FM_P_LAYER_SCALE || p.place == FM_P_ROUTER_GAIN)
            rc = bind_made(b, &p, host);
    fm_free(host);
    return rc;
}

/* Makes what a model of this architecture is bound into. */
static fm_status make_shape(fm_model *m, const char *what)
{
    fmi_model_priv *p = fmi_priv(m);
    fm_status rc = fmi_shard_arch(&p->local, &m->arch, fm_comm_size(m->engine->group), what);
    FM_THEN(rc, fmi_stage_split_of(&p->split, &m->arch, m->engine->stages, what));
    uint32_t most = fmi_stage_split_most(&p->split);
    FM_THEN(rc, fmi_rope_of(m->engine, &p->rope, &p->local, 0, most));
    FM_THEN(rc, fmi_rope_of(m->engine, &p->rope_slide, &p->local, 1, most));
    FM_THEN(rc, fmi_rope_of(m->engine, &p->grow, &p->local, FMI_GROWTH, most));
    if (rc != FM_OK)
        return rc;
    m->cos = p->rope->cos;
    m->sin = p->rope->sin;
    return fmi_layers_new(m);
}

/* Makes the encoder of m. */
static fm_status make_source(fm_model *m, const char *what)
{
    fm_model *s = fm_calloc(1, sizeof(*s));
    fmi_model_priv *p = fm_calloc(1, sizeof(*p));
    if (!s || !p) {
        fm_free(s);
        fm_free(p);
        return FM_ENOMEM;
    }
    s->engine = m->engine;
    s->priv = p;
    m->source = s;
    fm_arch_source(&s->arch, &m->arch);
    return make_shape(s, what);
}

static fm_status bind_shape(fmi_binder *b)
{
    fm_model *m = b->m;
    fm_status rc = fm_arch_of_tree(&m->arch, b->tree, b->p, b->what);
    if (rc == FM_OK && b->longer)
        fm_arch_lengthen(&m->arch);
    FM_THEN(rc, check_device(b));
    FM_THEN(rc, make_shape(m, b->what));
    return rc == FM_OK && m->arch.sw.cross ? make_source(m, b->what) : rc;
}

/* Gives the encoder what it shares with the decoder. */
static fm_status bind_source(fmi_binder *b)
{
    fm_model *s = b->m->source;
    if (!s)
        return FM_OK;
    if (b->m->embed.lora_count || b->m->virtual_len)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: %s of a model with two stacks are not supported by adapters", b->what,
                       b->m->virtual_len ? "virtual tokens" : "low-rank terms on the embedding");
    s->embed = b->m->embed;
    return bind_near(b, s);
}

static fm_status bind(fmi_binder *b)
{
    fm_hasher *digest = NULL;
    fm_status rc = bind_shape(b);
    FM_THEN(rc, fm_map_new(&b->replaced));
    FM_THEN(rc, fmi_adapters_find(b));
    FM_THEN(rc, fm_hasher_new(&digest));
    FM_THEN(rc, fmi_bind_weights(b, digest));
    FM_THEN(rc, bind_near(b, b->m));
    FM_THEN(rc, bind_source(b));
    FM_THEN(rc, bind_xielu(b));
    if (rc == FM_OK && (b->m->arch.sw.bare_norms || b->m->arch.sw.qk_bare))
        rc = bind_bare(b);
    if (rc == FM_OK && fm_layers_uneven(&b->m->arch.sw))
        rc = bind_uneven(b);
    FM_THEN(rc, fmi_text_bind(b));
    FM_THEN(rc, fmi_pooling_bind(b));
    FM_THEN(rc, fmi_ask_digests(b));
    fm_hasher_free(digest);
    fmi_adapters_release(b);
    fm_map_free(b->replaced);
    return rc;
}

/* The types of quantized weights: those that the device has products for. */
static fm_plain_as plain_as(const fm_engine *e)
{
    uint64_t bytes = 0;
    const bool fast = strcmp(e->be->mode, "fast") == 0;
    fm_status rc = e->be->weight_image_bytes(e->be, &bytes, FM_ROLE_LINEAR,
                                             fast ? FM_Q2_K : FM_CODE4_32, 32, fast ? 256 : 32);
    if (rc != FM_OK)
        fm_error_clear();
    if (fast)
        return rc == FM_OK ? FM_PLAIN_INTEGERS : FM_PLAIN_INTEGERS_4;
    return rc == FM_OK ? FM_PLAIN_CODES : FM_PLAIN_WIDE;
}

/* pool: threads that may read, NULL = this one. Uses only those parts of the engine that lock. */
static fm_status prepare_one(fm_model **out, fm_engine *e, const fm_tree *tree,
                             const fm_provider *p, const char *what, fm_pool *pool, bool longer)
{
    *out = NULL;
    fm_model *m = fm_calloc(1, sizeof(*m));
    fmi_model_priv *priv = fm_calloc(1, sizeof(*priv));
    if (!m || !priv) {
        fm_free(m);
        fm_free(priv);
        return FM_ENOMEM;
    }
    m->engine = e;
    m->priv = priv;
    fm_model_view *seen = NULL;
    fm_status rc = fm_model_view_open(&seen, tree, p, what, plain_as(e));
    if (rc == FM_OK) {
        fmi_binder b = {.m = m,
                        .tree = fm_model_view_tree(seen),
                        .p = fm_model_view_provider(seen),
                        .what = what,
                        .pool = pool,
                        .longer = longer};
        rc = bind(&b);
    }
    fm_model_view_close(seen);
    if (rc == FM_OK && e->log)
        rc = e->log->prepare(m, tree, what);
    if (rc != FM_OK) {
        fm_model_close(m);
        return rc;
    }
    *out = m;
    return FM_OK;
}

static fm_status prepare(fm_model **out, fm_engine *e, const fm_tree *tree, const fm_provider *p,
                         const char *what, fm_pool *pool)
{
    FM_TRY(prepare_one(out, e, tree, p, what, pool, false));
    if (!(*out)->arch.long_positions || fm_engine_ranks(e) > 1)
        return FM_OK;
    fm_status rc = prepare_one(&fmi_priv(*out)->longer, e, tree, p, what, pool, true);
    if (rc != FM_OK) {
        fm_model_close(*out);
        *out = NULL;
        return rc;
    }
    fmi_model_priv *longer = fmi_priv(fmi_priv(*out)->longer);
    longer->beside = true;
    longer->bytes_alone = 0; /* its weights are the other's */
    return FM_OK;
}

fm_status fm_model_prepare(fm_model **out, fm_engine *e, const fm_tree *tree, const fm_provider *p,
                           const char *what, unsigned threads)
{
    fm_pool *pool = NULL;
    *out = NULL;
    fm_status rc = threads > 1 ? fm_pool_new(&pool, threads) : FM_OK;
    FM_THEN(rc, prepare(out, e, tree, p, what, pool));
    fm_pool_free(pool);
    return rc;
}

fm_status fm_model_adopt(fm_model *m)
{
    fmi_model_priv *p = fmi_priv(m);
    fm_assert(!p->adopted);
    FM_TRY(p->longer ? fm_model_adopt(p->longer) : FM_OK);
    FM_TRY(fmi_geom_of(m->engine, &p->geom, &p->local, &p->split));
    if (m->source) {
        fmi_model_priv *s = fmi_priv(m->source);
        FM_TRY(fmi_geom_of(m->engine, &s->geom, &s->local, &s->split));
    }
    if (m->engine->prefix && !m->source)
        FM_TRY(fmi_layer_keys(m));
    if (m->engine->log)
        FM_TRY(m->engine->log->adopt(m));
    m->engine->models += !p->beside;
    p->serial = ++m->engine->model_clock;
    m->engine->bytes_unshared += p->bytes_alone;
    p->adopted = true;
    return FM_OK;
}

fm_status fm_model_load(fm_model **out, fm_engine *e, const fm_tree *tree, const fm_provider *p,
                        const char *what)
{
    fm_status rc = prepare(out, e, tree, p, what, e->pool);
    FM_THEN(rc, fm_model_adopt(*out));
    if (rc != FM_OK) {
        fm_model_close(*out);
        *out = NULL;
    }
    return rc;
}

static void close_source(fm_engine *e, fm_model *m)
{
    if (!m)
        return;
    fmi_model_priv *p = fmi_priv(m);
    fm_assert(p->seqs == 0);
    fmi_rope_drop(e, p->rope);
    fmi_rope_drop(e, p->rope_slide);
    fmi_layers_free(m);
    fm_free(p);
    fm_free(m);
}

void fm_model_close(fm_model *m)
{
    if (!m)
        return;
    fm_engine *e = m->engine;
    fmi_model_priv *p = fmi_priv(m);
    fm_model_close(p->longer);
    fm_assert(p->seqs == 0); /* sequences are closed first */
    close_source(e, m->source);
    if (e->log)
        e->log->close(m);
    fm_free(m->head.lora);
    fm_free(m->embed.lora);
    fm_free(m->embed_map.lora);
    fm_free(m->per_map.lora);
    for (size_t i = 0; i < p->held_count; i++)
        fmi_weights_drop(e->weights, p->held[i]);
    fm_free(p->held);
    for (size_t i = 0; i < p->own_count; i++)
        e->be->free(e->be, p->own[i]);
    fm_free(p->own);
    fmi_virtual_drop(m);
    fmi_layer_keys_drop(m);
    fm_free(m->virtual_rows);
    fmi_rope_drop(e, p->rope);
    fmi_rope_drop(e, p->rope_slide);
    fmi_rope_drop(e, p->grow);
    if (p->adopted) {
        e->bytes_unshared -= p->bytes_alone;
        e->models -= !p->beside;
    }
    fmi_text_drop(e, p->text);
    fmi_class_head_release(&p->classifier);
    fmi_pooling_release(&p->pooling);
    fmi_layers_free(m);
    fm_free(p);
    fm_free(m);
}

fm_model *fm_model_for_length(fm_model *m, uint32_t len)
{
    fm_model *longer = fmi_priv(m)->longer;
    return longer && len > fmi_positions(m) ? longer : m;
}

const fm_arch *fm_model_arch(const fm_model *m)
{
    return &m->arch;
}

const fm_tokenizer *fm_model_tokenizer(const fm_model *m)
{
    return m->tokenizer;
}

const fm_chat_template *fm_model_chat_template(const fm_model *m)
{
    return m->chat;
}

fm_digest fm_model_digest(const fm_model *m)
{
    return m->digest;
}

fm_digest fm_model_text_digest(const fm_model *m)
{
    return m->text_digest;
}

fm_engine *fm_model_engine(const fm_model *m)
{
    return m->engine;
}
