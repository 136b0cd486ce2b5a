/* bind.c - the tensors of a tree bound to a model, by name.
 *
 * Every parameter that the architecture names must be there with its shape, and every tensor of the
 * tree must be used or be known to be without effect: a leftover tensor would mean that the result
 * differs from that of the model's author. Adapter parsing is in adapter.c. */
#include "infer/model/shard.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "infer/arch/table.h"
#include "store/adapted.h"
#include "store/base/mem.h"

static fm_status check_shape(const fmi_binder *b, const fm_entry *e, const fm_param *p)
{
    if (fm_shape_eq(&e->shape, &p->shape))
        return FM_OK;
    char have[96], want[96];
    fm_shape_text(&e->shape, have, sizeof(have));
    fm_shape_text(&p->shape, want, sizeof(want));
    return fm_fail(FM_EBASE, "%s: tensor '%s' has shape %s, the config says %s", b->what, p->name,
                   have, want);
}

/* ==== places of parameters ==== */

static void set_linear(fm_model *m, fm_linear *lin, const fmi_cached *w, const fm_param *p)
{
    const fmi_slice slice = fmi_slice_of_param(m, p);
    const fm_shape here = fmi_slice_shape(&p->shape, &slice);
    lin->w = w->w;
    lin->id = w->id;
    lin->transposed = p->transposed;
    lin->rounds = m->arch.sw.rounds && p->layer >= 0;
    lin->out = (uint32_t)here.dim[p->transposed ? 1 : 0];
    lin->in = (uint32_t)here.dim[p->transposed ? 0 : 1];
}

static void set_param(fm_model *m, const fm_param *p, const fmi_cached *w)
{
    fm_linear *lin = fmi_linear_at(m, p);
    if (!lin)
        *fmi_vector_at(m, p) = w->v;
    else if (p->is_matrix)
        set_linear(m, lin, w, p);
    else
        lin->bias = w->v;
    m = p->source ? m->source : m;
    if (p->place == FM_P_ATTN_NORM)
        m->layers[p->layer].attn_norm_id = w->id;
    if (p->place == FM_P_MLP_NORM)
        m->layers[p->layer].mlp_norm_id = w->id;
}

static fm_status bind_param(fmi_binder *b, const fm_param *p, fm_hasher *digest)
{
    const fm_entry *e = NULL;
    fmi_cached *w = NULL;
    fm_status rc = fmi_find_entry(b, &e, p->name);
    FM_THEN(rc, check_shape(b, e, p));
    const fmi_slice slice = fmi_slice_of_param(b->m, p);
    bool here = fmi_param_is_here(b->m, p);
    if (rc == FM_OK && here)
        rc = fmi_hold_slice(b, &w, e, fmi_form_of(&b->m->arch, p), &slice);
    FM_THEN(rc, fm_hasher_update(digest, e->id.b, sizeof(e->id.b)));
    if (rc == FM_OK && here)
        set_param(b->m, p, w);
    return rc;
}

/* A tied head is the base's embedding, unless an adapter has a head; an embedding that an adapter
 * replaced does not change the head (PEFT keeps the original module tied). */
static fm_status bind_tied_head(fmi_binder *b, fm_hasher *digest)
{
    fm_param p;
    bool there = fm_arch_param(&b->m->arch, 0, &p);
    fm_assert(there);
    char own[40];
    (void)snprintf(own, sizeof(own), "%s.weight", b->m->arch.head_name);
    const fm_entry *e = fm_map_get(b->replaced, own, strlen(own));
    fm_buf path;
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = fm_tensor_path(&path, "tensors", p.name);
    if (rc == FM_OK && !e)
        e = fm_tree_find(b->tree, fm_buf_cstr(&path));
    fm_buf_release(&path);
    if (rc == FM_OK && !e)
        rc = fm_fail(FM_ENOTFOUND, "%s: tensor '%s' is missing", b->what, p.name);
    fmi_cached *w = NULL;
    FM_THEN(rc, check_shape(b, e, &p));
    fmi_slice slice = fmi_slice_of_param(b->m, &p); /* as the embedding, but in the last stage */
    slice.elsewhere = !fmi_pipe_holds(b->m, FMI_BEHIND_LAYERS);
    FM_THEN(rc, fmi_hold_slice(b, &w, e, FMI_MATRIX, &slice));
    FM_THEN(rc, fm_hasher_update(digest, e->id.b, sizeof(e->id.b)));
    if (rc == FM_OK)
        set_linear(b->m, &b->m->head, w, &p);
    return rc;
}

/* ==== leftovers ==== */

static bool is_head(const fm_arch *a, const char *name, size_t len)
{
    size_t n = strlen(a->head_name);
    return n > 0 && len == n + 7 && memcmp(name, a->head_name, n) == 0 &&
           memcmp(name + n, ".weight", 7) == 0;
}

/* The model does not read a head where the embedding is tied, and computes rotary frequencies. */
static bool without_effect(const fm_arch *a, const char *name)
{
    return (a->tied && is_head(a, name, strlen(name))) || fmi_family_ignores(a, name);
}

/* Files of two stacks may hold the embedding again for each of them. */
static bool is_copy(const fm_entry *e, const fm_entry *embed, const fm_arch *a)
{
    static const char copy[] = "embed_tokens.weight";
    size_t n = strlen(e->name), k = sizeof(copy) - 1;
    return (a->sw.cross || a->of_source) && embed && n > k && strcmp(e->name + n - k, copy) == 0 &&
           fm_digest_eq(&e->id, &embed->id);
}

static fm_status check_leftovers(fmi_binder *b)
{
    const fm_entry *embed = NULL;
    fm_map *known = NULL;
    fm_status rc = fm_map_new(&known);
    fm_param p;
    for (uint32_t i = 0; rc == FM_OK && fm_arch_param(&b->m->arch, i, &p); i++)
        rc = fm_map_put(known, p.name, strlen(p.name), b, NULL);
    size_t begin = 0, end = 0;
    for (size_t i = 0; rc == FM_OK && i < fm_tree_count(b->tree); i++) {
        rc = fm_entry_check_name(fm_tree_at(b->tree, i));
        if (rc != FM_OK)
            rc = fm_error_prefix(rc, "%s", b->what);
    }
    if (rc == FM_OK && fm_arch_param(&b->m->arch, 0, &p))
        rc = fmi_find_entry(b, &embed, p.name);
    fm_tree_range(b->tree, "tensors/", &begin, &end);
    for (size_t i = begin; rc == FM_OK && i < end; i++) {
        const fm_entry *e = fm_tree_at(b->tree, i);
        if (e->kind != FM_ENTRY_TENSOR)
            rc = fm_fail(FM_ECORRUPT, "%s: %s is no tensor", b->what, e->path);
        else if (!fm_map_has(known, e->name, strlen(e->name)) &&
                 !fmi_class_tensor(&b->m->arch, e->name) && !without_effect(&b->m->arch, e->name) &&
                 !is_copy(e, embed, &b->m->arch))
            rc =
                fm_fail(FM_EUNSUPPORTED, "%s: tensor '%s' belongs to nothing that %s computes here",
                        b->what, e->name, b->m->arch.family);
    }
    for (size_t i = 0; rc == FM_OK && i < fm_map_count(b->replaced); i++) {
        fm_span name = fm_map_key_at(b->replaced, i);
        char text[FM_MAX_NAME_BYTES + 1];
        (void)snprintf(text, sizeof(text), "%.*s", (int)name.len, (const char *)name.data);
        bool head = is_head(&b->m->arch, text, name.len) || /* a tied head that is stored */
                    fmi_class_tensor(&b->m->arch, text);
        if (!head && !fm_map_has(known, name.data, name.len))
            rc = fm_fail(FM_EBASE, "%s: an adapter replaces '%.*s', which the model lacks", b->what,
                         (int)name.len, (const char *)name.data);
    }
    fm_map_free(known);
    return rc;
}

/* ==== digest ==== */

/* The digest's text of architectures like Llama. It must not change, or stored results are lost. */
static int digest_llama(char *text, size_t cap, const fm_arch *a)
{
    const fm_rope *r = &a->rope[0];
    bool llama3 = r->kind == FM_ROPE_LLAMA3;
    return snprintf(text, cap,
                    "fmstore forward 1\n%s %u %u %u %u %u %u %u %u %u\n%a %d%d%d%d%d\n"
                    "%a %d %a %a %a %u\n%d %d\n",
                    a->family, a->vocab, a->hidden, a->inter, a->layers, a->heads, a->kv_heads,
                    a->head_dim, a->max_positions, a->window, (double)a->eps, a->tied, a->qkv_bias,
                    a->o_bias, a->mlp_bias, a->qk_norm, r->theta, llama3, r->factor, r->low,
                    r->high, r->original, a->bos, a->pad);
}

/* Adds text, formatted as printf does. */
static fm_status digest_text(fm_hasher *h, const char *format, ...) FM_PRINTF(2, 3);
static fm_status digest_text(fm_hasher *h, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fm_assert(n > 0 && (size_t)n < sizeof(text));
    return fm_hasher_update(h, text, (size_t)n);
}

static fm_status digest_rope(fm_hasher *h, const fm_rope *r)
{
    FM_TRY(digest_text(h, "rope %d %u %a %a %a %a %a%s", (int)r->kind, r->original, r->theta,
                       r->factor, r->low, r->high, r->attention, r->back ? " back" : ""));
    for (size_t i = 0; r->kind == FM_ROPE_LONG && i < FM_ARRAY_LEN(r->divisor); i++)
        FM_TRY(digest_text(h, " %a", (double)r->divisor[i]));
    return FM_OK;
}

static fm_status digest_beside(fm_hasher *h, const fm_switches *s)
{
    const fm_multipliers *y = &s->by;
    FM_TRY(digest_text(h, "beside %d%d%d %a %a %a %a %a %a %a", s->rec.out_bias, s->rec.bare,
                       s->rec.norm_first, (double)y->attn_in, (double)y->key, (double)y->attn_out,
                       (double)y->gate, (double)y->down, (double)y->ssm_in, (double)y->ssm_out));
    for (size_t i = 0; i < FM_ARRAY_LEN(y->ssm); i++)
        FM_TRY(digest_text(h, " %a", (double)y->ssm[i]));
    return digest_text(h, "\n");
}

/* Switches that came later: nothing is added where all are off, or stored results are lost. */
static fm_status digest_later_switches(fm_hasher *h, const fm_arch *a)
{
    const fm_switches *s = &a->sw;
    const fm_recurrence *r = &s->rec;
    if (s->pairs || s->qk_after || s->one_norm)
        FM_TRY(digest_text(h, "more %d%d%d\n", s->pairs, s->qk_after, s->one_norm));
    if (s->kv_rank || s->router_groups_best)
        FM_TRY(digest_text(h, "latent %u %u %u %u %d\n", s->kv_rank, s->q_rank, s->nope, s->v_dim,
                           s->router_groups_best));
    if (s->shared_plain || s->router_sigmoid || s->router_bias || s->router_groups ||
        s->router_scale != 0.0f)
        FM_TRY(digest_text(h, "router %d%d%d %u %u %a %a\n", s->shared_plain, s->router_sigmoid,
                           s->router_bias, s->router_groups, s->router_groups_kept,
                           (double)s->router_scale, s->router_least));
    if (s->embed_width || s->groups)
        FM_TRY(digest_text(h, "shared %u %u %u\n", s->embed_width, s->groups, s->inner));
    if (s->expert_in)
        FM_TRY(digest_text(h, "experts in %u\n", s->expert_in));
    if (s->router_more > 0)
        FM_TRY(digest_text(h, "router more %a\n", s->router_more));
    if (fm_arch_recurs(a))
        FM_TRY(digest_text(h, "recurs %d %u %u %u %u %u %u %u %u %u %d%d%d %a %a\n", (int)r->kind,
                           r->kernel, r->channels, r->in, r->inner, r->heads, r->hd, r->n,
                           r->groups, r->rank, r->bias, r->conv_bias, s->attn_gate,
                           (double)r->dt_min, (double)r->dt_max));
    if (s->chunk || s->qk_bare || s->router_first)
        FM_TRY(digest_text(h, "chunks %u %d%d\n", s->chunk, s->qk_bare, s->router_first));
    if (s->norm_bias)
        FM_TRY(digest_text(h, "norm bias\n"));
    if (s->grow.every)
        FM_TRY(digest_text(h, "grows %u %a %d%d\n", s->grow.every, (double)s->grow.by, s->grow.next,
                           s->grow.unturned));
    if (s->beside)
        FM_TRY(digest_beside(h, s));
    if (s->sinks)
        FM_TRY(digest_text(h, "sinks\n"));
    if (s->sub_norms || s->rounds)
        FM_TRY(digest_text(h, "ternary %d%d\n", s->sub_norms, s->rounds));
    if (s->router_jitter != 0.0f)
        FM_TRY(digest_text(h, "mixer %a %d\n", (double)s->router_jitter, a->head_bias));
    if (s->xielu)
        FM_TRY(digest_text(h, "xielu\n"));
    if (s->bare_norms)
        FM_TRY(digest_text(h, "bare\n"));
    if (s->cross || a->of_source)
        FM_TRY(digest_text(h, "stacks %d %u %u %u %u %d %d\n", s->cross, a->source_layers,
                           a->source_heads, a->source_inter, s->bucket_far, a->start[0],
                           a->start[1]));
    if (fm_layers_uneven(s))
        FM_TRY(digest_text(h, "uneven %u %u %d%d%d%d%d %u %u %u %a\n", s->full_head_dim,
                           s->full_kv_heads, s->full_k_is_v, s->v_norm, s->layer_scale,
                           s->wide_shared, s->mlp_too, s->kv_shared, s->per_layer,
                           s->per_layer_vocab, (double)s->per_layer_scale));
    if (s->alibi != FM_ALIBI_NONE || s->buckets || (s->encoder && a->window))
        FM_TRY(digest_text(h, "near %d %u %u\n", (int)s->alibi, s->buckets,
                           s->encoder ? a->window : 0));
    return FM_OK;
}

static fm_status digest_switches(fm_hasher *h, const fm_arch *a)
{
    const fm_switches *s = &a->sw;
    FM_TRY(digest_text(
        h, "switches %d %d %d %d %d %d%d%d%d%d%d%d%d%d %u %u %u %u %u %u %a %a %a %a %a %a\n",
        (int)s->norm, (int)s->order, (int)s->act, (int)s->qk, (int)s->fused, s->plain_mlp,
        s->fused_mlp, s->no_rope, s->positions, s->types, s->embed_norm, s->encoder, s->renormalise,
        s->shared_expert, s->rotary_dim, s->position_offset, s->experts, s->chosen, s->expert_inter,
        s->shared_inter, (double)s->embed_scale, (double)s->residual_scale, (double)s->attn_scale,
        (double)s->attn_softcap, (double)s->logit_softcap, (double)s->logit_divisor));
    FM_TRY(digest_later_switches(h, a));
    FM_TRY(fm_hasher_update(h, s->layer, a->layers));
    for (size_t i = 0; i < FM_ARRAY_LEN(a->rope); i++)
        FM_TRY(digest_rope(h, &a->rope[i]));
    return a->long_positions ? digest_rope(h, &a->rope_long) : FM_OK;
}

fm_status fmi_digest_arch(fm_hasher *h, const fm_arch *a)
{
    char text[1024];
    int n = digest_llama(text, sizeof(text), a);
    fm_assert(n > 0 && (size_t)n < sizeof(text));
    fm_status rc = fm_hasher_update(h, text, (size_t)n);
    for (uint32_t i = 0; i < a->eos_count && rc == FM_OK; i++) {
        uint8_t id[4];
        fm_put_u32(id, (uint32_t)a->eos[i]);
        rc = fm_hasher_update(h, id, sizeof(id));
    }
    return rc == FM_OK && fm_arch_beyond_llama(a) ? digest_switches(h, a) : rc;
}

/* ==== the whole ==== */

fm_status fmi_bind_weights(fmi_binder *b, fm_hasher *digest)
{
    fm_param p;
    fm_status rc = fmi_digest_arch(digest, &b->m->arch);
    if (rc == FM_OK && fm_pool_threads(b->pool) > 1)
        fmi_read_ahead(b);
    for (uint32_t i = 0; rc == FM_OK && fm_arch_param(&b->m->arch, i, &p); i++)
        rc = bind_param(b, &p, digest);
    if (rc == FM_OK && b->m->arch.tied)
        rc = bind_tied_head(b, digest);
    b->m->head.split = true;
    FM_THEN(rc, check_leftovers(b));
    FM_THEN(rc, fmi_multipliers_bind(b));
    FM_THEN(rc, fmi_adapters_bind(b, digest));
    FM_THEN(rc, fmi_layers_share(b->m));
    FM_THEN(rc, fm_hasher_peek(digest, &fmi_priv(b->m)->asked[FM_ASK_TEXT]));
    FM_THEN(rc, fmi_class_bind(b, digest));
    return rc == FM_OK ? fm_hasher_final(digest, &b->m->digest) : rc;
}

static fm_status check_params(fmi_binder *b)
{
    fm_param p;
    FM_TRY(fm_arch_of_tree(&b->m->arch, b->tree, b->p, b->what));
    FM_TRY(fmi_adapters_find(b));
    for (uint32_t i = 0; fm_arch_param(&b->m->arch, i, &p); i++) {
        const fm_entry *e = NULL;
        FM_TRY(fmi_find_entry(b, &e, p.name));
        FM_TRY(check_shape(b, e, &p));
    }
    return check_leftovers(b);
}

fm_status fm_model_check(const fm_tree *tree, const fm_provider *p, const char *what)
{
    fm_model_view *seen = NULL;
    fm_model *m = fm_calloc(1, sizeof(*m));
    fm_status rc = m ? fm_model_view_open(&seen, tree, p, what, FM_PLAIN_WIDE) : FM_ENOMEM;
    if (rc == FM_OK) {
        fmi_binder b = {.m = m,
                        .tree = fm_model_view_tree(seen),
                        .p = fm_model_view_provider(seen),
                        .what = what};
        rc = fm_map_new(&b.replaced);
        FM_THEN(rc, check_params(&b));
        fmi_adapters_release(&b);
        fm_map_free(b.replaced);
    }
    fm_model_view_close(seen);
    fm_free(m);
    return rc;
}
