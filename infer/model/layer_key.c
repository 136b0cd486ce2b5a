/* layer_key.c - what the K and V of a layer are computed from, as one digest.
 *
 *   stream[0]     mode and kernel class, the architecture, embeddings, virtual positions
 *   kv[l]         stream[l], the layer's own attention norm, K and V projections, k norm; its
 *                 recurrent block, whose state has the same key
 *   stream[l + 1] kv[l] and everything else of layer l
 *
 * So two models with equal kv[l] have the same K and V in layer l for the same tokens, bit for bit,
 * and two with equal stream[l] the same residual stream before it. Weights are hashed by their ids,
 * vectors without an id (computed scales) by their values. Of the settings the whole fm_arch is
 * hashed, except the fields below. A field that is added to a layer stops the build here. */
#include "infer/model/model_bind.h"

#include <stdlib.h>
#include <string.h>

#include "store/base/mem.h"

/* Each field is hashed below or known to be without effect (fm_lora_term.r, .adapter; .transposed,
 * .rounds follow from the architecture). */
_Static_assert(sizeof(fm_lora_term) == 32, "hash the new field of fm_lora_term in put_linear");
_Static_assert(sizeof(fm_linear) == 104, "hash the new field of fm_linear in put_linear");
_Static_assert(sizeof(fm_experts) == 7 * 104 + 10 * 8, "hash the new field of fm_experts");
_Static_assert(sizeof(fm_recurrent) == 7 * 104 + 6 * 8, "hash the new field of fm_recurrent");
_Static_assert(sizeof(fm_layer) == 23 * 8 + 2 * 32 + 14 * 104 + 2 * 8,
               "hash the new field of fm_layer in put_kv, or in put_rest");

typedef struct keyer {
    fm_model *m;
    fm_hasher *h;
    const fmi_cached **by_address; /* the model's weights, sorted by address */
    float *host;                   /* buffer for a vector without an id */
    size_t host_floats;
    fm_status rc;
} keyer;

static const void *address(const fmi_cached *c)
{
    return c->w ? (const void *)c->w : (const void *)c->v;
}

static int by_address(const void *a, const void *b)
{
    const fmi_cached *const *x = a, *const *y = b;
    uintptr_t p = (uintptr_t)address(*x), q = (uintptr_t)address(*y);
    return p < q ? -1 : p > q;
}

static const fmi_cached *held_at(const keyer *k, const void *p)
{
    size_t low = 0, high = fmi_priv(k->m)->held_count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if ((uintptr_t)address(k->by_address[mid]) < (uintptr_t)p)
            low = mid + 1;
        else
            high = mid;
    }
    return low < fmi_priv(k->m)->held_count && address(k->by_address[low]) == p ? k->by_address[low]
                                                                                : NULL;
}

/* ==== parts ==== */

static void put(keyer *k, const void *data, size_t n)
{
    FM_THEN(k->rc, fm_hasher_update(k->h, data, n));
}

static void put_u32(keyer *k, uint32_t x)
{
    uint8_t le[4];
    fm_put_u32(le, x);
    put(k, le, sizeof(le));
}

static void put_matrix(keyer *k, const fm_weight *w)
{
    const fmi_cached *c = held_at(k, w);
    put_u32(k, w != NULL);
    if (w && !c && k->rc == FM_OK) /* without an id its key could equal another weight's */
        k->rc = fm_fail(FM_EUNSUPPORTED, "a weight that the model does not hold");
    if (c)
        put(k, c->id.b, sizeof(c->id.b));
}

static void put_vector(keyer *k, const float *v, uint32_t n)
{
    const fmi_cached *c = held_at(k, v);
    put_u32(k, !v ? 0 : c ? 1 : 2);
    if (!v || k->rc != FM_OK)
        return;
    if (c) {
        put(k, c->id.b, sizeof(c->id.b));
        return;
    }
    fm_backend *be = k->m->engine->be;
    k->rc = fm_grow(&k->host, &k->host_floats, n, sizeof(float));
    FM_THEN(k->rc, be->download(be, k->host, v, n * sizeof(float)));
    put(k, k->host, n * sizeof(float));
}

static void put_linear(keyer *k, const fm_linear *lin)
{
    put_u32(k, lin->in);
    put_u32(k, lin->out);
    put_matrix(k, lin->w);
    put_vector(k, lin->bias, lin->out);
    put_u32(k, lin->lora_count);
    for (uint32_t i = 0; i < lin->lora_count; i++) {
        put_matrix(k, lin->lora[i].a);
        put_matrix(k, lin->lora[i].b);
        put(k, &lin->lora[i].scale, sizeof(float));
    }
    put_vector(k, lin->in_scale, lin->in);
    put_vector(k, lin->out_scale, lin->out);
    put_vector(k, lin->bias_after, lin->out);
}

static void put_norm(keyer *k, const float *gain, const float *bias)
{
    put_vector(k, gain, k->m->arch.hidden);
    put_vector(k, bias, k->m->arch.hidden);
}

static void put_recurrent(keyer *k, const fm_recurrent *x)
{
    const fm_recurrence *r = &k->m->arch.sw.rec;
    const fm_linear *all[] = {&x->in, &x->out, &x->x, &x->dt, &x->z, &x->beta, &x->alpha};
    uint32_t own = r->kind == FM_RECURS_MAMBA ? r->inner : r->heads;
    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++)
        put_linear(k, all[i]);
    put_vector(k, x->conv, r->channels * r->kernel);
    put_vector(k, x->conv_b, r->channels);
    put_vector(k, x->rates, r->kind == FM_RECURS_MAMBA ? own * r->n : own);
    put_vector(k, x->skip, own);
    put_vector(k, x->dt_b, own);
    put_vector(k, x->norm, r->kind == FM_RECURS_DELTA ? r->hd : r->inner);
}

/* Hashes what gives K, V and states; a fused q holds these too. */
static void put_kv(keyer *k, const fm_layer *y)
{
    const fm_arch *a = &k->m->arch;
    uint32_t hd = fm_layer_head_dim(&a->sw, a->head_dim, (uint32_t)(y - k->m->layers));
    put_norm(k, y->attn_norm, y->attn_norm_b);
    if (a->sw.fused != FM_FUSED_NONE)
        put_linear(k, &y->q);
    put_linear(k, &y->k);
    put_linear(k, &y->v);
    put_vector(k, y->k_norm,
               a->sw.kv_rank           ? a->sw.kv_rank
               : a->sw.qk == FM_QK_ALL ? a->kv_heads * a->head_dim
                                       : hd);
    if (y->rec)
        put_recurrent(k, y->rec);
}

static void put_experts(keyer *k, const fm_experts *x)
{
    const fm_linear *all[] = {&x->router,   &x->s_gate, &x->s_up, &x->s_down,
                              &x->s_switch, &x->into,   &x->from};
    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++)
        put_linear(k, all[i]);
    put_vector(k, x->choice_bias, k->m->arch.sw.experts);
    put_vector(k, x->scale, k->m->arch.sw.experts);
    put_norm(k, x->mlp_sum, x->post);
    put_norm(k, x->norm, x->router_gain); /* and so router_norm */
    for (size_t i = 0; i < 3 * (size_t)k->m->arch.sw.experts; i++) /* gate, up, down */
        put_linear(k, &x->gate[i]);
}

static void put_rest(keyer *k, const fm_layer *y)
{
    const fm_arch *a = &k->m->arch;
    uint32_t hd = fm_layer_head_dim(&a->sw, a->head_dim, (uint32_t)(y - k->m->layers));
    put_linear(k, &y->q);
    put_linear(k, &y->q_a);
    put_vector(k, y->q_norm,
               a->sw.q_rank            ? a->sw.q_rank
               : a->sw.qk == FM_QK_ALL ? a->heads * a->head_dim
                                       : hd);
    put_vector(k, y->sinks, a->heads);
    put_vector(k, y->attn_sub, a->heads * a->head_dim);
    put_vector(k, y->mlp_sub, a->inter);
    put_linear(k, &y->o);
    put_norm(k, y->attn_post, y->attn_post_b);
    put_norm(k, y->mlp_norm, y->mlp_norm_b);
    put_norm(k, y->mlp_post, y->mlp_post_b);
    put_linear(k, &y->gate);
    put_linear(k, &y->up);
    put_linear(k, &y->down);
    put_vector(k, y->xielu, 4);
    put_linear(k, &y->per_gate);
    put_linear(k, &y->per_out);
    put_norm(k, y->per_post, NULL);
    put_vector(k, y->scalar, 1); /* scale is made of it */
    if (a->sw.cross) { /* it never gets here: fmi_layer_keys */
        k->rc = fm_fail(FM_EUNSUPPORTED, "layers that attend to a source have no key");
        return;
    }
    if (y->experts)
        put_experts(k, y->experts);
}

/* Hashes the architecture, except fields of the head, the tokenizer and the number of layers. */
static void put_arch(keyer *k)
{
    fm_arch a;
    memcpy(&a, &k->m->arch, sizeof(a)); /* with padding, which was zeroed */
    a.layers = a.vocab = a.eos_count = 0;
    a.tied = false;
    a.bos = a.pad = 0;
    memset(a.eos, 0, sizeof(a.eos));
    put(k, &a, sizeof(a));
}

static void put_beginning(keyer *k)
{
    const fm_model *m = k->m;
    const fm_backend *be = m->engine->be;
    put(k, "fmstore layers 1", 17);
    put(k, be->mode, strlen(be->mode) + 1);
    put(k, be->kernel_class, strlen(be->kernel_class) + 1);
    put_arch(k);
    put_linear(k, &m->embed);
    put_linear(k, &m->positions);
    put_vector(k, m->types, fm_arch_embed_width(&m->arch));
    put_vector(k, m->embed_norm, fm_arch_embed_width(&m->arch));
    put_vector(k, m->embed_norm_b, fm_arch_embed_width(&m->arch));
    if (m->embed_map.w)
        put_linear(k, &m->embed_map);
    if (m->per_embed.w) {
        put_linear(k, &m->per_embed);
        put_linear(k, &m->per_map);
        put_vector(k, m->per_norm, m->arch.sw.per_layer);
    }
    put_u32(k, m->virtual_len);
    put_u32(k, m->virtual_is_kv);
    put(k, m->virtual_id.b, m->virtual_len ? sizeof(m->virtual_id.b) : 0);
}

/* ==== the chain ==== */

static void chain(keyer *k, fm_digest *kv, fm_digest *stream)
{
    put_beginning(k);
    FM_THEN(k->rc, fm_hasher_final(k->h, &stream[0]));
    for (uint32_t l = 0; l < k->m->arch.layers && k->rc == FM_OK; l++) {
        put(k, stream[l].b, sizeof(stream[l].b));
        put_kv(k, &k->m->layers[l]);
        FM_THEN(k->rc, fm_hasher_final(k->h, &kv[l]));
        put(k, kv[l].b, sizeof(kv[l].b));
        put_rest(k, &k->m->layers[l]);
        FM_THEN(k->rc, fm_hasher_final(k->h, &stream[l + 1]));
    }
}

/* ==== where models part ==== */

/* The last layer before which a and b have the same residual stream for the same tokens; 0: there
 * is none worth keeping. All digests behind it differ, so a binary search finds it. */
static uint32_t parting(const fm_model *a, const fm_model *b)
{
    const fm_digest *x = fmi_priv(a)->stream_key, *y = fmi_priv(b)->stream_key;
    uint32_t low = 0, high = FM_MIN(a->arch.layers, b->arch.layers) + 1;
    while (low + 1 < high) {
        uint32_t mid = (low + high) / 2;
        if (fm_digest_eq(&x[mid], &y[mid]))
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* Chooses the layers where most other models part from m, of equal ones the upper. */
static void choose(fm_model *m)
{
    fmi_model_priv *p = fmi_priv(m);
    p->saves = 0;
    for (uint32_t l = m->arch.layers; l-- > 1;) {
        uint32_t at = p->saves;
        if (p->parts[l] == 0)
            continue;
        while (at > 0 && p->parts[p->save[at - 1]] < p->parts[l])
            at--;
        if (at == FMI_SAVES - 1)
            continue;
        if (p->saves < FMI_SAVES - 1)
            p->saves++;
        for (uint32_t i = p->saves - 1; i > at; i--)
            p->save[i] = p->save[i - 1];
        p->save[at] = l;
    }
}

static void meet(fm_model *a, fm_model *b, bool joins)
{
    uint32_t l = parting(a, b);
    fm_model *both[] = {a, b};
    for (size_t i = 0; i < 2; i++)
        if (l > 0 && l < both[i]->arch.layers) {
            fmi_priv(both[i])->parts[l] += joins ? 1u : -1u;
            choose(both[i]);
        }
}

bool fmi_leaves_for(const fm_model *a, const fm_model *b)
{
    const fmi_model_priv *p = fmi_priv(a), *q = fmi_priv(b);
    if (!p->kv_key || !q->kv_key)
        return false;
    uint32_t top = a->arch.layers - 1;
    if (a->arch.layers == b->arch.layers && fm_digest_eq(&p->kv_key[top], &q->kv_key[top]))
        return true;
    if (fm_arch_recurs(&b->arch)) /* its rows begin at no upper layer */
        return false;
    for (uint32_t i = 0; i < q->saves; i++)
        if (q->save[i] < a->arch.layers &&
            fm_digest_eq(&p->stream_key[q->save[i]], &q->stream_key[q->save[i]]))
            return true;
    return false;
}

static void join(fm_model *m)
{
    fm_engine *e = m->engine;
    for (fm_model *o = e->first_model; o; o = fmi_priv(o)->next)
        meet(m, o, true);
    fmi_priv(m)->next = e->first_model;
    e->first_model = m;
}

void fmi_layer_keys_drop(fm_model *m)
{
    fm_engine *e = m->engine;
    fmi_model_priv *p = fmi_priv(m);
    if (p->kv_key && p->parts) {
        fm_model **at = &e->first_model;
        while (*at != m)
            at = &fmi_priv(*at)->next;
        *at = p->next;
        for (fm_model *o = e->first_model; o; o = fmi_priv(o)->next)
            meet(m, o, false);
    }
    fm_free(p->kv_key);
    fm_free(p->parts);
    p->kv_key = NULL;
    p->parts = NULL;
}

fm_status fmi_layer_keys(fm_model *m)
{
    fmi_model_priv *p = fmi_priv(m);
    keyer k = {.m = m};
    size_t layers = m->arch.layers, held = p->held_count;
    fm_digest *kv = fm_calloc(2 * layers + 1, sizeof(fm_digest));
    uint32_t *parts = fm_calloc(layers, sizeof(uint32_t));
    k.by_address = fm_calloc(FM_MAX(held, (size_t)1), sizeof(*k.by_address));
    k.rc = kv && parts && k.by_address ? fm_hasher_new(&k.h) : FM_ENOMEM;
    if (k.rc == FM_OK) {
        for (size_t i = 0; i < held; i++)
            k.by_address[i] = p->held[i];
        qsort(k.by_address, held, sizeof(*k.by_address), by_address);
        chain(&k, kv, kv + layers);
    }
    fm_hasher_free(k.h);
    fm_free(k.by_address);
    fm_free(k.host);
    if (k.rc != FM_OK) {
        fm_free(kv);
        fm_free(parts);
        return k.rc;
    }
    p->kv_key = kv;
    p->stream_key = kv + layers;
    p->parts = parts;
    join(m);
    return FM_OK;
}
