/* gguf_canon.c - sizes and tensor names of a GGUF in Hugging Face's words.
 *
 * Only architectures whose mapping is known are accepted: a wrong guess would give a model that
 * runs and answers nonsense. */
#include "store/import/gguf_canon.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Whether the file has what the row asks for. */
static fm_status holds(bool *out, const gguf_arch *arch, const gguf_parts *p)
{
    char key[128];
    uint64_t window = 0;
    bool found = false;

    uint64_t kv = 0;

    if (arch->when == GGUF_ONE_KEY)
        FM_TRY(fm_gguf_u64(p->g[0], gguf_key(arch, "attention.head_count_kv", key), &kv, &found));
    if (arch->when == GGUF_SLIDES)
        FM_TRY(
            fm_gguf_u64(p->g[0], gguf_key(arch, "attention.sliding_window", key), &window, &found));
    switch (arch->when) {
    case GGUF_ANY:
        *out = true;
        break;
    case GGUF_SLIDES:
        *out = window > 0;
        break;
    case GGUF_HAS_TYPES:
        *out = gguf_find(p, "token_types.weight", NULL) != NULL;
        break;
    case GGUF_NORM_2:
        *out = gguf_find(p, "blk.0.attn_norm_2.weight", NULL) != NULL;
        break;
    case GGUF_ONE_KEY:
        *out = kv == 1;
        break;
    case GGUF_SCALES:
        *out = fm_gguf_get(p->g[0], gguf_key(arch, "attention.temperature_scale", key)) != NULL;
        break;
    case GGUF_NEVER:
        *out = false;
        break;
    }
    return FM_OK;
}

static fm_status unknown_arch(const fm_gguf *g, fm_span name, bool experts)
{
    fm_buf known;

    fm_buf_init(&known, 0);
    gguf_arch_names(&known, false);
    fm_status rc = fm_fail(
        FM_EUNSUPPORTED, "%s: field 'general.architecture': '%.*s' %sdoes not run (%s do)",
        fm_gguf_what(g), (int)FM_MIN(name.len, 60u), (const char *)name.data,
        experts ? "with experts " : "", fm_buf_ok(&known) == FM_OK ? fm_buf_cstr(&known) : "");
    fm_buf_release(&known);
    return rc;
}

static fm_status find_arch(const gguf_arch **out, const gguf_parts *p)
{
    const fm_gguf *g = p->g[0];
    fm_span name = {NULL, 0};
    uint64_t experts = 0;
    char key[128];
    bool found = false;
    FM_TRY(fm_gguf_str(g, "general.architecture", &name, &found));

    if (!found)
        return fm_fail(FM_EUNSUPPORTED, "%s: field 'general.architecture' is missing",
                       fm_gguf_what(g));
    snprintf(key, sizeof key, "%.*s.expert_count", (int)FM_MIN(name.len, 60u),
             (const char *)name.data);
    FM_TRY(fm_gguf_u64(g, key, &experts, &found));
    for (size_t i = 0; (*out = gguf_arch_at(i)) != NULL; i++) {
        bool is =
            fm_span_eq_str(name, (*out)->prefix) && !((*out)->has & GGUF_EXPERTS) == !(experts > 0);
        if (is)
            FM_TRY(holds(&is, *out, p));
        if (is)
            return FM_OK;
    }
    return unknown_arch(g, name, experts > 0);
}

static fm_status need(const gguf_dims *d, const fm_gguf *g, const char *key, uint64_t *out)
{
    char full[128];
    bool found = false;
    FM_TRY(fm_gguf_u64(g, gguf_key(d->arch, key, full), out, &found));

    if (!found || *out == 0 || *out > 1u << 30)
        return fm_fail(FM_ECORRUPT, "%s: field '%s' is missing, 0 or absurd", fm_gguf_what(g),
                       full);
    return FM_OK;
}

static fm_status optional(const gguf_dims *d, const fm_gguf *g, const char *key, uint64_t *out)
{
    char full[128];
    bool found = false;

    return fm_gguf_u64(g, gguf_key(d->arch, key, full), out, &found);
}

static fm_status check_dims(const gguf_dims *d, const fm_gguf *g)
{
    uint64_t value_dim = d->head_dim;
    FM_TRY(optional(d, g, "attention.value_length", &value_dim));

    if (d->layers > FM_GGUF_MAX_LAYERS || d->kv_heads > d->heads || d->heads % d->kv_heads != 0)
        return fm_fail(FM_ECORRUPT,
                       "%s: %" PRIu64 " layers, %" PRIu64 " heads, %" PRIu64
                       " key-value heads do not go together",
                       fm_gguf_what(g), d->layers, d->heads, d->kv_heads);
    const bool fits = d->rotary == d->head_dim ||
                      ((d->arch->has & GGUF_PARTIAL) && d->rotary > 0 && d->rotary < d->head_dim);
    if (value_dim != d->head_dim || !fits || d->head_dim % 2 != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: fields '%s.attention.value_length' %" PRIu64
                       " and '%s.rope.dimension_count' %" PRIu64 " must equal the head's %" PRIu64,
                       fm_gguf_what(g), d->arch->prefix, value_dim, d->arch->prefix, d->rotary,
                       d->head_dim);
    return FM_OK;
}

const fm_gguf_tensor *gguf_find(const gguf_parts *p, const char *name, const fm_gguf **in)
{
    for (size_t i = 0; i < p->count; i++) {
        const fm_gguf_tensor *t = fm_gguf_find(p->g[i], name);
        if (t && in)
            *in = p->g[i];
        if (t)
            return t;
    }
    return NULL;
}

fm_status gguf_read_dims(gguf_dims *d, const gguf_parts *p)
{
    const fm_gguf *g = p->g[0];
    const fm_gguf_tensor *embd = gguf_find(p, "token_embd.weight", NULL);

    memset(d, 0, sizeof *d);
    d->parts = p;
    FM_TRY(find_arch(&d->arch, p));
    FM_TRY(need(d, g, "block_count", &d->layers));
    FM_TRY(need(d, g, "embedding_length", &d->hidden));
    FM_TRY(need(d, g, "feed_forward_length", &d->inter));
    FM_TRY(need(d, g, "attention.head_count", &d->heads));
    FM_TRY(need(d, g, "context_length", &d->context));
    d->kv_heads = d->heads;
    d->head_dim = d->hidden / d->heads;
    FM_TRY(optional(d, g, "attention.head_count_kv", &d->kv_heads));
    FM_TRY(optional(d, g, "attention.key_length", &d->head_dim));
    d->rotary = d->head_dim;
    FM_TRY(optional(d, g, "rope.dimension_count", &d->rotary));
    FM_TRY(optional(d, g, "expert_count", &d->experts));
    if (d->kv_heads == 0 || d->head_dim == 0)
        return fm_fail(FM_ECORRUPT, "%s: a head count or head length is 0", fm_gguf_what(g));
    FM_TRY(check_dims(d, g));
    if (!embd || embd->shape.rank != 2)
        return fm_fail(FM_ECORRUPT, "%s: tensor 'token_embd.weight' is missing or no matrix",
                       fm_gguf_what(g));
    d->vocab = embd->shape.dim[0];
    const fm_gguf_tensor *types = gguf_find(p, "token_types.weight", NULL);
    d->types = types && types->shape.rank == 2 ? types->shape.dim[0] : 0;
    d->tied = gguf_find(p, "output.weight", NULL) == NULL;
    return FM_OK;
}

/* ---- names ---- */

/* Reads the 12 of "blk.12." and returns where it ends; without leading zeros, so names are
 * unique. */
static const char *block_number(const char *name, uint64_t *out)
{
    const char *p = name + 4;
    uint64_t v = 0;

    while (*p >= '0' && *p <= '9' && v < FM_GGUF_MAX_LAYERS)
        v = v * 10 + (uint64_t)(*p++ - '0');
    if (p == name + 4 || *p != '.' || (name[4] == '0' && p != name + 5))
        return NULL;
    *out = v;
    return p + 1;
}

static fm_status unknown_name(const fm_gguf *g, const gguf_dims *d, const char *name)
{
    return fm_fail(FM_EUNSUPPORTED, "%s: tensor '%.100s' is not known in a %s model",
                   fm_gguf_what(g), name, d->arch->prefix);
}

/* The rows that move: those of Q and K by heads, those of a fused product by groups of heads. */
static fm_status row_order(src_order *out, const gguf_dims *d, const fm_gguf *g,
                           const fm_gguf_tensor *t, const char *hf)
{
    const bool q = strcmp(hf, "self_attn.q_proj") == 0, k = strcmp(hf, "self_attn.k_proj") == 0;
    const bool fused = strstr(t->name, ".attn_qkv.") != NULL;
    uint64_t rows = 0;

    if ((d->arch->has & GGUF_PERMUTES) && (q || k)) {
        out->heads = (uint32_t)(q ? d->heads : d->kv_heads);
        rows = out->heads * d->head_dim;
    } else if ((d->arch->has & GGUF_GROUPS) && fused && d->kv_heads > 1) {
        *out = (src_order){(uint32_t)d->kv_heads, (uint32_t)(d->heads / d->kv_heads)};
        rows = (d->heads + 2 * d->kv_heads) * d->head_dim;
    } else {
        return FM_OK;
    }
    if (t->shape.rank == 0 || t->shape.dim[0] != rows ||
        (t->shape.rank == 1 && fm_dtype_get(t->dtype)->is_block))
        return fm_fail(FM_ECORRUPT,
                       "%s: tensor '%s' has %" PRIu64 " rows, %" PRIu64 " heads (%" PRIu64
                       " of keys) of %" PRIu64 " need %" PRIu64,
                       fm_gguf_what(g), t->name, t->shape.rank > 0 ? t->shape.dim[0] : 0, d->heads,
                       d->kv_heads, d->head_dim, rows);
    return FM_OK;
}

/* A name's words of Hugging Face's (NULL: it is not known), its layer or GGUF_NO_LAYER, and where
 * its last dot is. */
static const char *words_of(const gguf_dims *d, const char *name, const char **end, uint64_t *layer)
{
    const char *dot = strrchr(name, '.'), *stem = name;
    const bool in_layer = strncmp(name, "blk.", 4) == 0;

    *end = dot;
    *layer = GGUF_NO_LAYER;
    if (!dot || (strcmp(dot, ".weight") != 0 && strcmp(dot, ".bias") != 0))
        return NULL;
    if (in_layer) {
        stem = block_number(name, layer);
        if (!stem || stem > dot || *layer >= d->layers)
            return NULL;
    }
    return gguf_words_of_stem(d->arch, in_layer, stem, (size_t)(dot - stem));
}

fm_status gguf_use_of(gguf_use *out, const gguf_dims *d, const fm_gguf *g, const fm_gguf_tensor *t)
{
    const bool factors = d->arch->has & GGUF_LONGROPE, freqs = d->arch->has & GGUF_FREQS;
    const char *end;
    uint64_t layer = 0;

    *out = (gguf_use){0};
    if ((freqs && strcmp(t->name, "rope_freqs.weight") == 0) ||
        (factors &&
         (strcmp(t->name, GGUF_FACTORS_LONG) == 0 || strcmp(t->name, GGUF_FACTORS_SHORT) == 0))) {
        out->no_weight = true;
        return FM_OK;
    }
    const char *hf = words_of(d, t->name, &end, &layer);
    if (!hf)
        return unknown_name(g, d, t->name);
    if (strstr(hf, "%u")) {
        if (t->shape.rank != 3 || t->shape.dim[0] != d->experts)
            return fm_fail(FM_ECORRUPT, "%s: tensor '%s' must hold the %" PRIu64 " experts",
                           fm_gguf_what(g), t->name, d->experts);
        out->experts = (uint32_t)d->experts;
    }
    const size_t n = (size_t)(end - t->name);
    out->minus_1 = (d->arch->has & GGUF_PLUS_1) && n > 5 && memcmp(end - 5, "_norm", 5) == 0 &&
                   strcmp(end, ".weight") == 0;
    if (out->minus_1 && t->dtype != FM_F32)
        return fm_fail(FM_EUNSUPPORTED, "%s: tensor '%s': a norm of type %s is not translated",
                       fm_gguf_what(g), t->name, fm_dtype_get(t->dtype)->name);
    return row_order(&out->order, d, g, t, hf);
}

fm_status gguf_hf_name(fm_buf *out, const gguf_dims *d, const fm_gguf_tensor *t, uint32_t expert)
{
    const char *end;
    uint64_t layer = 0;
    const char *words = words_of(d, t->name, &end, &layer);

    gguf_put_name(out, d->arch, words, layer, expert);
    fm_buf_str(out, end);
    return fm_buf_ok(out);
}
