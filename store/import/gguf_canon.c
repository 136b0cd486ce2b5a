/* gguf_canon.c - a GGUF as a source: Hugging Face names and row order, config, tokenizer.
 *
 * Only architectures whose mapping is known are accepted: a wrong guess would give a model that
 * runs and answers nonsense. Blocks keep their bytes; rotary rows are whole rows of blocks, so
 * putting them back in Hugging Face's order moves bytes and changes none. */
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
    uint64_t parts = 0;
    bool found = false;
    FM_TRY(fm_gguf_u64(g, "split.count", &parts, &found));

    if (found && parts > 1)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: field 'split.count' is %" PRIu64
                       "; join the parts with llama-gguf-split --merge first",
                       fm_gguf_what(g), parts);
    FM_TRY(fm_gguf_str(g, "general.architecture", &name, &found));
    if (!found)
        return fm_fail(FM_ECORRUPT, "%s: field 'general.architecture' is missing", fm_gguf_what(g));
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

fm_status gguf_read_dims(gguf_dims *d, const fm_gguf *g)
{
    const fm_gguf_tensor *embd = fm_gguf_find(g, "token_embd.weight");

    memset(d, 0, sizeof *d);
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
    d->tied = fm_gguf_find(g, "output.weight") == NULL;
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

/* ---- the source ---- */

static fm_status add_tensor(fm_source *src, src_file *f, const gguf_dims *d, const fm_gguf *g,
                            const fm_gguf_tensor *t)
{
    uint32_t heads = 0;
    fm_buf name;
    fm_status rc;

    fm_buf_init(&name, 0);
    rc = gguf_hf_name(&name, &heads, d, g, t);
    if (rc == FM_OK && name.len == 0)
        rc = src_add_literal(src, f, fm_gguf_bytes(g, t));
    else if (rc == FM_OK)
        rc = src_add_tensor(src, f, "tensors", fm_buf_cstr(&name), t->dtype, &t->shape,
                            fm_gguf_bytes(g, t), heads);
    fm_buf_release(&name);
    return rc;
}

/* Adds the head in front of the tensors. A long array (the vocabulary) becomes an object of its
 * own: it is the same in every quantized copy of a model, and stored once. */
static fm_status add_head(fm_source *src, src_file *f, const fm_gguf *g, uint64_t end)
{
    uint64_t at = 0;

    for (size_t i = 0; i < fm_gguf_kv_count(g); i++) {
        const fm_gguf_kv *kv = fm_gguf_kv_at(g, i);
        uint64_t from = (uint64_t)(kv->data.data - f->map.data);
        if (kv->type != FM_GGUF_ARRAY || kv->data.len <= FM_INLINE_MAX_BYTES || from < at)
            continue;
        FM_TRY(src_add_literal(src, f, fm_span_of(f->map.data + at, (size_t)(from - at))));
        at = from + kv->data.len;
        FM_TRY(src_add_segment(src, f, from, at));
    }
    return src_add_literal(src, f, fm_span_of(f->map.data + at, (size_t)(end - at)));
}

/* Adds the tensors and the bytes between them. */
static fm_status add_all(fm_source *src, src_file *f, const gguf_dims *d, const fm_gguf *g)
{
    uint64_t at = fm_gguf_count(g) > 0 ? fm_gguf_at(g, 0)->at : f->map.len;
    FM_TRY(add_head(src, f, g, at));

    for (size_t i = 0; i < fm_gguf_count(g); i++) {
        const fm_gguf_tensor *t = fm_gguf_at(g, i);
        FM_TRY(src_add_literal(src, f, fm_span_of(f->map.data + at, (size_t)(t->at - at))));
        FM_TRY(add_tensor(src, f, d, g, t));
        at = t->at + t->bytes;
    }

    return src_add_literal(src, f, fm_span_of(f->map.data + at, f->map.len - (size_t)at));
}

static fm_status put_model(fm_source *src, const gguf_dims *d, const fm_gguf *g)
{
    fm_json *config = NULL, *model = fm_json_new_object();
    fm_status rc = model ? gguf_config(&config, d, g) : FM_ENOMEM;

    FM_THEN(rc, fm_json_set(model, "format", fm_json_new_int(1)));
    FM_THEN(rc, fm_json_set(model, "architecture", fm_json_ref(fm_json_get(config, "model_type"))));
    FM_THEN(rc, fm_json_set(model, "config", fm_json_ref(config)));
    FM_THEN(rc, src_put_json(src, "model.json", model, FM_JSON_PRETTY));
    fm_json_free(config);
    fm_json_free(model);
    return rc;
}

fm_status src_open_gguf(fm_source *src)
{
    src_file *f = NULL;
    fm_gguf *g = NULL;
    gguf_dims d;
    fm_status rc = src_add_file(&f, src, NULL, fm_path_base(src->path));

    src->kind = FM_SOURCE_GGUF;
    FM_THEN(rc, fm_gguf_parse(&g, fm_span_of(f->map.data, f->map.len), src->path));
    FM_THEN(rc, gguf_read_dims(&d, g));
    FM_THEN(rc, put_model(src, &d, g));
    FM_THEN(rc, gguf_tokenizer(src, g));
    FM_THEN(rc, add_all(src, f, &d, g));
    fm_gguf_close(g);
    return rc;
}
