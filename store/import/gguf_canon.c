/* gguf_canon.c - sizes and tensor names of a GGUF in Hugging Face's words.
 *
 * Only architectures whose mapping is known are accepted: a wrong guess would give a model that
 * runs and answers nonsense. */
#include "store/import/gguf_canon.h"

#include <inttypes.h>
#include <string.h>

static const gguf_arch ARCHES[] = {
    {"llama", "llama", "LlamaForCausalLM", true},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", false},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", false},
};

static fm_status find_arch(const gguf_arch **out, const fm_gguf *g)
{
    fm_span name = {NULL, 0};
    bool found = false;
    FM_TRY(fm_gguf_str(g, "general.architecture", &name, &found));

    if (!found)
        return fm_fail(FM_EUNSUPPORTED, "%s: field 'general.architecture' is missing",
                       fm_gguf_what(g));
    for (size_t i = 0; i < FM_ARRAY_LEN(ARCHES); i++)
        if (fm_span_eq_str(name, ARCHES[i].prefix)) {
            *out = &ARCHES[i];
            return FM_OK;
        }
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: field 'general.architecture': '%.*s' is not supported "
                   "(llama, qwen2, qwen3 are)",
                   fm_gguf_what(g), (int)FM_MIN(name.len, 60u), (const char *)name.data);
}

static fm_status need(const gguf_dims *d, const fm_gguf *g, const char *key, uint64_t *out)
{
    char full[128];
    bool found = false;
    FM_TRY(fm_gguf_u64(g, gguf_key(d, key, full), out, &found));

    if (!found || *out == 0 || *out > 1u << 30)
        return fm_fail(FM_ECORRUPT, "%s: field '%s' is missing, 0 or absurd", fm_gguf_what(g),
                       full);
    return FM_OK;
}

static fm_status optional(const gguf_dims *d, const fm_gguf *g, const char *key, uint64_t *out)
{
    char full[128];
    bool found = false;

    return fm_gguf_u64(g, gguf_key(d, key, full), out, &found);
}

static fm_status check_dims(const gguf_dims *d, const fm_gguf *g)
{
    uint64_t value_dim = d->head_dim, rot = d->head_dim, experts = 0;
    FM_TRY(optional(d, g, "attention.value_length", &value_dim));

    FM_TRY(optional(d, g, "rope.dimension_count", &rot));
    FM_TRY(optional(d, g, "expert_count", &experts));
    if (d->layers > FM_GGUF_MAX_LAYERS || d->kv_heads > d->heads || d->heads % d->kv_heads != 0)
        return fm_fail(FM_ECORRUPT,
                       "%s: %" PRIu64 " layers, %" PRIu64 " heads, %" PRIu64
                       " key-value heads do not go together",
                       fm_gguf_what(g), d->layers, d->heads, d->kv_heads);
    if (value_dim != d->head_dim || rot != d->head_dim || d->head_dim % 2 != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: fields '%s.attention.value_length' %" PRIu64
                       " and '%s.rope.dimension_count' %" PRIu64 " must equal the head's %" PRIu64,
                       fm_gguf_what(g), d->arch->prefix, value_dim, d->arch->prefix, rot,
                       d->head_dim);
    if (experts > 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: field '%s.expert_count': mixtures of experts are not "
                       "supported in GGUF",
                       fm_gguf_what(g), d->arch->prefix);
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
    FM_TRY(find_arch(&d->arch, g));
    FM_TRY(need(d, g, "block_count", &d->layers));
    FM_TRY(need(d, g, "embedding_length", &d->hidden));
    FM_TRY(need(d, g, "feed_forward_length", &d->inter));
    FM_TRY(need(d, g, "attention.head_count", &d->heads));
    FM_TRY(need(d, g, "context_length", &d->context));
    d->kv_heads = d->heads;
    d->head_dim = d->hidden / d->heads;
    FM_TRY(optional(d, g, "attention.head_count_kv", &d->kv_heads));
    FM_TRY(optional(d, g, "attention.key_length", &d->head_dim));
    if (d->kv_heads == 0 || d->head_dim == 0)
        return fm_fail(FM_ECORRUPT, "%s: a head count or head length is 0", fm_gguf_what(g));
    FM_TRY(check_dims(d, g));
    if (!embd || embd->shape.rank != 2)
        return fm_fail(FM_ECORRUPT, "%s: tensor 'token_embd.weight' is missing or no matrix",
                       fm_gguf_what(g));
    d->vocab = embd->shape.dim[0];
    d->tied = gguf_find(p, "output.weight", NULL) == NULL;
    return FM_OK;
}

/* ---- names ---- */

static const char *const TOP[][2] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};
static const char *const BLOCK[][2] = {
    {"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

static const char *lookup(const char *const (*table)[2], size_t count, const char *stem, size_t len)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i][0]) == len && memcmp(table[i][0], stem, len) == 0)
            return table[i][1];
    return NULL;
}

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

static fm_status rotary_heads(uint32_t *heads, const gguf_dims *d, const fm_gguf *g,
                              const fm_gguf_tensor *t, const char *hf)
{
    bool q = strcmp(hf, "self_attn.q_proj") == 0, k = strcmp(hf, "self_attn.k_proj") == 0;

    *heads = 0;
    if (!d->arch->permutes || (!q && !k))
        return FM_OK;
    *heads = (uint32_t)(q ? d->heads : d->kv_heads);
    if (t->shape.rank == 0 || t->shape.dim[0] != *heads * d->head_dim ||
        (t->shape.rank == 1 && fm_dtype_get(t->dtype)->is_block))
        return fm_fail(FM_ECORRUPT,
                       "%s: tensor '%s' has %" PRIu64 " rows, %" PRIu32 " heads of %" PRIu64
                       " need %" PRIu64,
                       fm_gguf_what(g), t->name, t->shape.rank > 0 ? t->shape.dim[0] : 0, *heads,
                       d->head_dim, *heads * d->head_dim);
    return FM_OK;
}

fm_status gguf_hf_name(fm_buf *out, uint32_t *heads, const gguf_dims *d, const fm_gguf *g,
                       const fm_gguf_tensor *t)
{
    const char *stem = t->name, *dot = strrchr(t->name, '.'), *hf;
    uint64_t layer = 0;

    *heads = 0;
    if (strcmp(t->name, "rope_freqs.weight") == 0)
        return FM_OK;
    if (!dot || (strcmp(dot, ".weight") != 0 && strcmp(dot, ".bias") != 0))
        return unknown_name(g, d, t->name);
    if (strncmp(t->name, "blk.", 4) != 0) {
        hf = lookup(TOP, FM_ARRAY_LEN(TOP), stem, (size_t)(dot - stem));
        if (!hf)
            return unknown_name(g, d, t->name);
        fm_buf_printf(out, "%s%s", hf, dot);
        return fm_buf_ok(out);
    }
    stem = block_number(t->name, &layer);
    if (!stem || stem > dot || layer >= d->layers)
        return unknown_name(g, d, t->name);
    hf = lookup(BLOCK, FM_ARRAY_LEN(BLOCK), stem, (size_t)(dot - stem));
    if (!hf)
        return unknown_name(g, d, t->name);
    fm_buf_printf(out, "model.layers.%" PRIu64 ".%s%s", layer, hf, dot);
    return rotary_heads(heads, d, g, t, hf);
}
