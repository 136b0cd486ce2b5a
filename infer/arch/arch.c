/* arch.c - HF config.json to fm_arch.
 *
 * A config is read by exclusion: a key that is neither understood here nor on the list of keys that
 * cannot change a forward pass is refused by name. A wrong guess would give plausible, wrong text;
 * a refusal costs one line here once the field is understood. Absent keys get the defaults of the
 * config classes in `transformers`, which writes only what differs from them in older versions.
 * What families differ by is in table.c. */
#include "infer/arch/table.h"
#include "store/scaled.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Keys of every rotary decoder that are read below, or checked to have the only supported value. */
static const char *const understood[] = {
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "max_position_embeddings",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "hidden_act",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "partial_rotary_factor",
    "rope_interleaved",
    "quantization_config",
    NULL,
};

/* Keys that cannot change the result of a forward pass at inference (pretraining_tp splits a
 * product and sums the parts: the same value in exact arithmetic). */
static const char *const harmless[] = {
    "architectures",
    "attention_dropout",
    "hidden_dropout",
    "initializer_range",
    "pretraining_tp",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "use_cache",
    "_name_or_path",
    "name_or_path",
    "auto_map",
    "is_llama_config",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "transformers.js_config",
    "unsloth_version",
    "unsloth_fixed",
    "chunk_size_feed_forward",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "task_specific_params",
    "tokenizer_class",
    "unk_token_id",
    "_attn_implementation_autoset",
    "attn_implementation",
    "_attn_implementation",
    "resid_pdrop",
    "embd_pdrop",
    "max_length",
    "temperature",
    "top_p",
    "top_k",
    "do_sample",
    "repetition_penalty",
    "_commit_hash",
    "finetuning_task",
    "gradient_checkpointing",
    "model_max_length",
    NULL,
};

/* Keys next to text_config in the config of a model with vision. */
static const char *const beside_text[] = {
    "model_type",
    "text_config",
    "vision_config",
    "mm_tokens_per_image",
    "boi_token_index",
    "eoi_token_index",
    "eos_token_id",
    "image_token_index",
    "image_token_id",
    "tie_word_embeddings",
    "boi_token_id",
    "eoi_token_id",
    "bos_token_id",
    "pad_token_id",
    "quantizer_config",
    "quantization_config",
    "projector_hidden_act",
    "vision_feature_layer",
    "multimodal_projector_bias",
    "spatial_merge_size",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "audio_config",
    "audio_token_id",
    "boa_token_id",
    "eoa_token_id",
    "eoa_token_index",
    "vision_soft_tokens_per_image",
    "audio_soft_tokens_per_image",
    NULL,
};

static bool listed(const char *const *list, const char *key)
{
    for (; list && *list; list++)
        if (strcmp(*list, key) == 0)
            return true;
    return false;
}

static fm_status check_keys(const fm_json *c, const fmi_family *f, const char *what)
{
    for (void *it = fm_json_iter(c); it; it = fm_json_next(c, it)) {
        const char *key = fm_json_iter_key(it);
        if (fmi_absent(fm_json_iter_value(it)) || (!f->alone && listed(understood, key)) ||
            listed(f->keys, key) || listed(harmless, key) || listed(f->harmless, key))
            continue;
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: config field '%s' is not understood and may change the result", what,
                       key);
    }
    return FM_OK;
}

/* Checks settings of which only one value is supported. */
static fm_status check_fixed(const fm_json *c, const fmi_family *f, const char *what)
{
    static const struct {
        const char *key;
        bool want;
    } fixed[] = {{"rope_interleaved", false},
                 {"is_decoder", false},
                 {"add_cross_attention", false},
                 {"use_bidirectional_attention", false},
                 {"scale_attn_weights", true},
                 {"scale_attn_by_inverse_layer_idx", false},
                 {"qk_layernorm", false},
                 {"use_qk_norm", false},
                 {"alibi", false},
                 {"apply_residual_connection_post_layernorm", false},
                 {"no_bias", true},
                 {"do_layer_norm_before", true},
                 {"_remove_final_layer_norm", false},
                 {"enable_bias", true},
                 {"layer_norm_elementwise_affine", true}};
    for (size_t i = 0; i < FM_ARRAY_LEN(fixed); i++) {
        const fm_json *v = fm_json_get(c, fixed[i].key);
        bool read = ((f->has & F_QK_NORM_KEY) && strcmp(fixed[i].key, "use_qk_norm") == 0) ||
                    (((f->has & F_BOTH_WAYS_KEY) || (f->more & M_GEMMA4)) &&
                     strcmp(fixed[i].key, "use_bidirectional_attention") == 0);
        if (!fmi_absent(v) && !read && !listed(f->harmless, fixed[i].key) &&
            (!fm_json_is(v, FM_JSON_BOOL) || fm_json_bool(v, !fixed[i].want) != fixed[i].want))
            return fm_fail(FM_EUNSUPPORTED, "%s: %s other than %s is not supported", what,
                           fixed[i].key, fixed[i].want ? "true" : "false");
    }
    static const struct {
        const char *key, *want;
    } words[] = {{"position_embedding_type", "absolute"},
                 {"mlp_type", "default"},
                 {"norm_type", "layer_norm"}};
    for (size_t i = 0; i < FM_ARRAY_LEN(words); i++) {
        const char *v = fm_json_cstr(fm_json_get(c, words[i].key), words[i].want);
        if (strcmp(v, words[i].want) != 0 && !listed(f->harmless, words[i].key))
            return fm_fail(FM_EUNSUPPORTED, "%s: %s '%s' is not supported, %s is", what,
                           words[i].key, v, words[i].want);
    }
    return FM_OK;
}

/* ==== token ids ==== */

static fm_status take_id(int32_t *out, const fm_json *v, const fm_arch *a, const char *key,
                         const char *what)
{
    int64_t n = fm_json_int(v, -2);
    if (!fm_json_is(v, FM_JSON_INT) || n < -1 || n >= a->vocab)
        return fm_fail(FM_EINVAL, "%s: '%s' is no token of this vocabulary (%u)", what, key,
                       a->vocab);
    *out = (int32_t)n;
    return FM_OK;
}

/* Reads token ids: generation_config says which tokens end a text, else the config. */
static fm_status read_ids(fm_arch *a, const fm_json *c, const fm_json *g, const char *what)
{
    fm_status rc;
    a->bos = a->pad = -1;
    const fm_json *v = fm_json_get(c, "bos_token_id");
    if (!fmi_absent(v) && (rc = take_id(&a->bos, v, a, "bos_token_id", what)) != FM_OK)
        return rc;
    v = fm_json_get(c, "pad_token_id");
    if (!fmi_absent(v) && (rc = take_id(&a->pad, v, a, "pad_token_id", what)) != FM_OK)
        return rc;
    v = fm_json_get(g, "eos_token_id");
    if (fmi_absent(v))
        v = fm_json_get(c, "eos_token_id");
    if (fmi_absent(v))
        return FM_OK;
    bool list = fm_json_is(v, FM_JSON_ARRAY);
    size_t n = list ? fm_json_count(v) : 1;
    if (n > FM_ARRAY_LEN(a->eos))
        return fm_fail(FM_ELIMIT, "%s: eos_token_id lists %zu tokens, at most %zu are supported",
                       what, n, FM_ARRAY_LEN(a->eos));
    for (size_t i = 0; i < n; i++) {
        const fm_json *id = list ? fm_json_at(v, i) : v;
        if ((rc = take_id(&a->eos[a->eos_count], id, a, "eos_token_id", what)) != FM_OK)
            return rc;
        if (a->eos[a->eos_count] >= 0)
            a->eos_count++;
    }
    return FM_OK;
}

/* ==== sizes ==== */

static bool is_named(const fmi_family *f, const char *type)
{
    return strcmp(f->name, type) == 0 || (f->also && strcmp(f->also, type) == 0);
}

static fm_status find_family(fm_arch *a, const fm_json *c, const char *what)
{
    const char *type = fm_json_cstr(fm_json_get(c, "model_type"), NULL);
    if (!type)
        return fm_fail(FM_EINVAL, "%s: config field 'model_type' is missing", what);
    for (size_t i = 0; fmi_family_at(i); i++)
        if (is_named(fmi_family_at(i), type)) {
            a->row = (uint8_t)i;
            return FM_OK;
        }
    char names[1024];
    fmi_family_names(names, sizeof(names));
    return fm_fail(FM_EUNSUPPORTED, "%s: model_type '%.40s' is not supported; %s are", what, type,
                   names);
}

static const char *key_or(const char *own, const char *usual)
{
    return own ? own : usual;
}

static int64_t or_required(uint32_t dflt)
{
    return dflt ? (int64_t)dflt : -1;
}

static fm_status read_heads(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    fm_status rc;
    /* A family without shared key/value heads has no config key for their number. */
    bool shares = !f->alone || f->k_kv_heads;
    if (f->has & F_MAMBA) { /* no attention; head_dim is the recurrent block's */
        a->kv_heads = 1;
        a->head_dim = 2;
        return FM_OK;
    }
    const char *shared = key_or(f->k_kv_heads, "num_key_value_heads");
    bool null_kv = fm_json_get(c, shared) != NULL; /* null: as many as heads */
    int64_t kv = f->kv_heads && !null_kv ? f->kv_heads : a->heads;
    const char *width = key_or(f->k_head_dim, "head_dim");
    int64_t hd = f->head_dim && !fm_json_get(c, width) ? f->head_dim : a->hidden / a->heads;
    if (!shares) {
        a->kv_heads = a->heads;
        a->head_dim = (uint32_t)hd;
    } else if ((rc = fmi_take_u32(&a->kv_heads, c, shared, kv, 1, 4096, what)) != FM_OK ||
               (rc = fmi_take_u32(&a->head_dim, c, width, hd, 2, FM_MAX_HEAD_DIM, what)) != FM_OK) {
        return rc;
    }
    if (a->head_dim < 2 || a->head_dim > FM_MAX_HEAD_DIM || (!shares && a->hidden % a->heads != 0))
        return fm_fail(FM_EINVAL, "%s: %u elements cannot be split over %u attention heads", what,
                       a->hidden, a->heads);
    if ((f->has & F_WHOLE_HEADS) && a->heads * a->head_dim != a->hidden)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: %u heads of %u elements beside hidden_size %u are not supported for %s",
                       what, a->heads, a->head_dim, a->hidden, f->name);
    if (a->heads % a->kv_heads != 0)
        return fm_fail(FM_EINVAL, "%s: %u attention heads cannot share %u key/value heads", what,
                       a->heads, a->kv_heads);
    if (f->sw.fused == FM_FUSED_QKV_HEADS && a->kv_heads != a->heads)
        return fm_fail(FM_EUNSUPPORTED, "%s: %s shares no key/value heads", what, f->name);
    return FM_OK;
}

/* How Falcon's fused product and its norms are laid out: the first models (one head of keys), those
 * without it, and the new architecture (groups of heads). */
static fm_status falcon_layout(fm_arch *a, const fm_json *c, const char *what)
{
    bool groups = false, one = true, parallel = true;
    uint32_t norms = 0;
    FM_TRY(fmi_take_bool(&groups, c, "new_decoder_architecture", false, what));
    FM_TRY(fmi_take_bool(&one, c, "multi_query", true, what));
    FM_TRY(fmi_take_bool(&parallel, c, "parallel_attn", true, what));
    FM_TRY(fmi_take_u32(&norms, c, "num_ln_in_parallel_attn", groups ? 2 : 1, 1, 2, what));
    if (groups ? !parallel : norms != 1)
        return fm_fail(FM_EUNSUPPORTED, "%s: %s is not supported with new_decoder_architecture %s",
                       what, groups ? "parallel_attn false" : "num_ln_in_parallel_attn 2",
                       groups ? "true" : "false");
    a->sw.order = parallel ? FM_BLOCK_PARALLEL : FM_BLOCK_PRE;
    a->sw.one_norm = parallel && norms == 1;
    a->sw.fused = one && !groups ? FM_FUSED_QKV : FM_FUSED_QKV_HEADS;
    if (!groups)
        a->kv_heads = one ? 1 : a->heads;
    return FM_OK;
}

/* ALBERT's: num_hidden_groups of inner_group_num layers each, and each group is repeated. */
static fm_status shared_layers(fm_arch *a, const fm_json *c, const char *what)
{
    FM_TRY(fmi_take_u32(&a->sw.groups, c, "num_hidden_groups", 1, 1, a->layers, what));
    FM_TRY(fmi_take_u32(&a->sw.inner, c, "inner_group_num", 1, 1, FM_MAX_LAYERS / a->layers, what));
    a->layers *= a->sw.inner;
    return FM_OK;
}

/* Settings that change how tensors are laid out. */
static fm_status read_layout(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    bool one = true;
    if (f->has & F_FALCON)
        return falcon_layout(a, c, what);
    if (f->has & F_LATENT)
        return fmi_read_latent(a, c, what);
    if (f->has & F_MULTI_QUERY) {
        FM_TRY(fmi_take_bool(&one, c, "multi_query", true, what));
        a->sw.fused = one ? FM_FUSED_QKV : FM_FUSED_QKV_HEADS;
        a->kv_heads = one ? 1 : a->heads;
    }
    if (f->inner)
        FM_TRY(shared_layers(a, c, what));
    if (f->k_embed) {
        uint32_t wide = 0, dflt = f->embed ? f->embed : a->hidden;
        FM_TRY(fmi_take_u32(&wide, c, f->k_embed, dflt, 1, 1 << 20, what));
        if (f->has & F_EMBED_MAP)
            a->sw.embed_width = f->inner || wide != a->hidden ? wide : 0;
        else if (wide != a->hidden)
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: %s is %u, other than the hidden size (%u), which "
                           "is not supported",
                           what, f->k_embed, wide, a->hidden);
    }
    if (f->has & F_POSITIONS_2) {
        a->position_rows += 2;
        a->sw.position_offset = 2;
    }
    return FM_OK;
}

/* A list of kinds says how many layers there are, whatever num_hidden_layers is. */
static fm_status read_layers(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    if (f->has & F_ONE_BLOCK)
        return fmi_read_blocks(a, c, what);
    return fmi_take_u32(&a->layers, c, key_or(f->k_layers, "num_hidden_layers"), -1, 1,
                        FM_MAX_LAYERS, what);
}

static fm_status read_sizes(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    fm_status rc;
    const int64_t wide = 1 << 20;
    const char *inter = key_or(f->k_inter, "intermediate_size");
    if ((f->has & F_LFM2) && !fmi_absent(fm_json_get(c, "block_ff_dim")))
        inter = "block_ff_dim"; /* its older name, which wins */
    const char *hidden = key_or(f->k_hidden, "hidden_size");
    if (f->k_hidden_else && !fmi_absent(fm_json_get(c, f->k_hidden_else)))
        hidden = f->k_hidden_else;
    if ((rc = fmi_take_u32(&a->vocab, c, "vocab_size", or_required(f->vocab), 1, FM_MAX_VOCAB,
                           what)) != FM_OK ||
        (rc = fmi_take_u32(&a->hidden, c, hidden, -1, 1, wide, what)) != FM_OK)
        return rc;
    int64_t inter_dflt = f->k_inter ? 4 * (int64_t)a->hidden : -1; /* optional in GPT-2 alone */
    if ((f->has & F_DELTA) && (f->has & F_QWEN_EXPERTS))
        inter_dflt = 5632;  /* of layers without experts */
    if (f->has & F_LLAMA_4)
        inter_dflt = 16384; /* likewise */
    if (f->more & M_T5)
        inter_dflt = -1;
    if (f->has & F_ONE_BLOCK)
        inter_dflt = 21504;
    if (f->has & F_MAMBA) { /* no feed-forward branch; intermediate_size is the block's */
        inter = "";
        inter_dflt = 1;
    }
    if ((rc = fmi_take_u32(&a->inter, c, inter, inter_dflt, 1, 4 * wide, what)) != FM_OK ||
        (rc = read_layers(a, f, c, what)) != FM_OK ||
        (rc = fmi_take_u32(&a->heads, c, key_or(f->k_heads, "num_attention_heads"),
                           or_required(f->heads), 1, 4096, what)) != FM_OK ||
        (rc = fmi_take_u32(&a->max_positions, c, key_or(f->k_positions, "max_position_embeddings"),
                           f->max_positions, 1, 1 << 28, what)) != FM_OK ||
        (rc = read_heads(a, f, c, what)) != FM_OK)
        return rc;
    a->position_rows = f->sw.positions ? a->max_positions : 0;
    FM_TRY(read_layout(a, f, c, what));
    if (f->sw.types)
        rc = fmi_take_u32(&a->type_vocab, c, "type_vocab_size", 2, 1, 1 << 16, what);
    return rc;
}

/* ==== sliding window ==== */

static fm_status window_by_types(fm_arch *a, const fm_json *types, const char *what)
{
    if (!fm_json_is(types, FM_JSON_ARRAY) || fm_json_count(types) != a->layers)
        return fm_fail(FM_EINVAL, "%s: layer_types must list %u layers", what, a->layers);
    for (size_t i = 0; i < a->layers; i++) {
        const char *t = fm_json_cstr(fm_json_at(types, i), "");
        if (strcmp(t, a->sw.chunk ? "chunked_attention" : "sliding_attention") == 0)
            a->sw.layer[i] |= FM_LAYER_SLIDES;
        else if (strcmp(t, "full_attention") != 0 && fm_layer_attends(&a->sw, (uint32_t)i) &&
                 !(fm_arch_recurs(a) && strcmp(t, "attention") == 0))
            return fm_fail(FM_EUNSUPPORTED, "%s: layer type '%.40s' is not supported", what, t);
    }
    return FM_OK;
}

/* Marks the layers that slide where the config does not list them. */
static fm_status window_by_rule(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    uint32_t from = 0, pattern = f->slide_pattern, below = f->full_below ? f->full_below : 28;

    if (f->has & (F_WINDOW_SWITCH | F_WINDOW_FROM)) /* layers below it attend to everything */
        FM_TRY(fmi_take_u32(&from, c, "max_window_layers", below, 0, 1 << 20, what));
    if (f->has & (F_ROPE_BY_TYPE | F_PATTERN_KEY)) {
        const char *key = fmi_absent(fm_json_get(c, "sliding_window_pattern"))
                              ? "_sliding_window_pattern"
                              : "sliding_window_pattern";
        FM_TRY(fmi_take_u32(&pattern, c, key, pattern, 1, FM_MAX_LAYERS + 1, what));
    }
    for (uint32_t i = from; i < a->layers; i++)
        if (!pattern || (i + 1) % pattern != 0)
            a->sw.layer[i] |= FM_LAYER_SLIDES;
    return FM_OK;
}

/* ModernBERT: every n-th layer sees the whole text, the others half of local_attention to each
 * side; the first one's attention has no norm in front. */
static fm_status read_modernbert(fm_arch *a, const fm_json *c, const char *what)
{
    const fm_json *types = fm_json_get(c, "layer_types");
    uint32_t every = 3, local = 128;
    bool any = false;
    FM_TRY(fmi_take_u32(&every, c, "global_attn_every_n_layers", 3, 1, 1 << 20, what));
    FM_TRY(fmi_take_u32(&local, c, "local_attention", 128, 0, 1 << 28, what));
    FM_TRY(fmi_take_bool(&a->sw.norm_bias, c, "norm_bias", false, what));
    for (uint32_t i = 0; fmi_absent(types) && i < a->layers; i++)
        if (i % every != 0)
            a->sw.layer[i] |= FM_LAYER_SLIDES;
    if (!fmi_absent(types))
        FM_TRY(window_by_types(a, types, what));
    for (uint32_t i = 0; i < a->layers; i++)
        any = any || (a->sw.layer[i] & FM_LAYER_SLIDES);
    a->window = any ? local / 2 + 1 : 0;
    a->sw.layer[0] |= FM_LAYER_NO_INPUT_NORM;
    return FM_OK;
}

static void chunks_where_turned(fm_arch *a)
{
    for (uint32_t i = 0; i < a->layers; i++)
        if (!(a->sw.layer[i] & FM_LAYER_NO_ROPE))
            a->sw.layer[i] |= FM_LAYER_SLIDES;
}

static fm_status read_window(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    if (f->alone)
        return FM_OK;
    if (f->has & F_MODERNBERT)
        return read_modernbert(a, c, what);
    const fm_json *v = fm_json_get(c, "sliding_window");
    bool use = true, written = v != NULL;
    fm_status rc = fmi_take_bool(&use, c, "use_sliding_window", false, what);
    if (rc != FM_OK)
        return rc;
    if (use && (f->has & F_NO_WINDOW))
        return fm_fail(FM_EUNSUPPORTED, "%s: use_sliding_window is not supported for %s", what,
                       f->name);
    if (!(f->has & (F_WINDOW_SWITCH | F_NO_WINDOW)))
        use = f->window > 0 || !fmi_absent(v);
    uint32_t window = written ? 0 : f->window;
    if (!fmi_absent(v) &&
        (rc = fmi_take_u32(&window, c, "sliding_window", -1, use ? 1 : 0, 1 << 28, what)) != FM_OK)
        return rc;
    const fm_json *types = fm_json_get(c, "layer_types");
    if (a->sw.chunk) /* a sliding_window has no effect */
        window = a->sw.chunk;
    if (fmi_absent(types) && a->sw.chunk)
        chunks_where_turned(a);
    else if (!fmi_absent(types))
        rc = window_by_types(a, types, what);
    else if (use && window > 0)
        rc = window_by_rule(a, f, c, what);
    bool any = false;
    for (uint32_t i = 0; i < a->layers; i++)
        any = any || (a->sw.layer[i] & FM_LAYER_SLIDES);
    if (rc == FM_OK && any && !window)
        return fm_fail(FM_EINVAL, "%s: layer_types slide but sliding_window is missing", what);
    bool fixed = (f->has & F_FULL_NO_ROPE) && (window || !(f->has & F_ELSE_ROPE));
    for (uint32_t i = 0; fixed && i < a->layers; i++)
        if (!(a->sw.layer[i] & FM_LAYER_SLIDES))
            a->sw.layer[i] |= FM_LAYER_NO_ROPE;
    if (a->sw.encoder) /* one position less than half of the window to each side */
        window = window / 2 + 1;
    a->window = any ? window : 0;
    return rc;
}

/* ==== switches ==== */

static fm_status read_act(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    static const struct {
        const char *name;
        fm_act act;
    } known[] = {{"silu", FM_ACT_SILU},           {"swish", FM_ACT_SILU},
                 {"gelu", FM_ACT_GELU},           {"gelu_new", FM_ACT_GELU_TANH},
                 {"gelu_fast", FM_ACT_GELU_TANH}, {"gelu_pytorch_tanh", FM_ACT_GELU_TANH},
                 {"relu", FM_ACT_RELU},           {"relu2", FM_ACT_RELU2}};
    const char *key = key_or(f->k_act, "hidden_act");
    const char *act = fm_json_cstr(fm_json_get(c, key), key_or(f->act, "silu"));
    if (f->sw.act != FM_ACT_SILU) /* no setting */
        return FM_OK;
    if (f->sw.xielu && strcmp(act, "xielu") == 0)
        return FM_OK;
    if (f->sw.xielu)
        return fm_fail(FM_EUNSUPPORTED, "%s: %s '%.40s' is not supported for %s, xielu is", what,
                       key, act, f->name);
    if (f->more & M_T5) {
        bool gated = false;
        act = fmi_t5_act(act, &gated);
        a->sw.plain_mlp = !gated;
    }
    if ((f->has & F_GELU_IS_TANH) && strcmp(act, "gelu") == 0)
        act = "gelu_pytorch_tanh";
    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (strcmp(known[i].name, act) == 0) {
            a->sw.act = known[i].act;
            return FM_OK;
        }
    return fm_fail(FM_EUNSUPPORTED, "%s: %s '%.40s' is not supported; silu, gelu, relu, relu2 are",
                   what, key, act);
}

static fm_status read_biases(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    bool bias = false, mlp = false, all = true, qkv = true;
    fm_status rc;
    a->qkv_bias = f->qkv_bias;
    a->o_bias = f->o_bias;
    a->mlp_bias = f->mlp_bias;
    bool usual = f->has & F_BIAS_KEY ? f->qkv_bias : f->o_bias;
    if ((rc = fmi_take_bool(&bias, c, "attention_bias", usual, what)) != FM_OK ||
        (rc = fmi_take_bool(&mlp, c, "mlp_bias", f->mlp_bias, what)) != FM_OK ||
        (rc = fmi_take_bool(&all, c, f->has & F_FALCON ? "bias" : "use_bias", f->qkv_bias, what)) !=
            FM_OK)
        return rc;
    if ((f->has & F_BIAS_NAMES) &&
        ((rc = fmi_take_bool(&bias, c, "qkv_bias", bias, what)) != FM_OK ||
         (rc = fmi_take_bool(&mlp, c, "bias", mlp, what)) != FM_OK))
        return rc;
    if ((bias != f->o_bias && !(f->has & F_BIAS_KEY)) ||
        (mlp != f->mlp_bias && !(f->has & F_MLP_BIAS_KEY)))
        return fm_fail(FM_EUNSUPPORTED, "%s: %s has no biases that a config could switch on", what,
                       f->name);
    if (f->has & F_BIAS_KEY)
        a->qkv_bias = bias;
    if ((f->has & F_BIAS_KEY) && !(f->has & F_BIAS_NOT_O))
        a->o_bias = bias;
    if ((f->has & F_OUT_BIAS_KEY) &&
        (rc = fmi_take_bool(&a->o_bias, c, "attention_out_bias", false, what)) != FM_OK)
        return rc;
    if (f->has & F_MLP_BIAS_KEY)
        a->mlp_bias = mlp;
    if (f->has & F_USE_BIAS)
        a->qkv_bias = a->o_bias = a->mlp_bias = all;
    if (f->has & (F_USE_QKV_BIAS | F_QKV_BIAS_KEY)) {
        bool old = f->has & F_USE_QKV_BIAS;
        rc = fmi_take_bool(&qkv, c, old ? "use_qkv_bias" : "qkv_bias", !old, what);
        a->qkv_bias = qkv;
    }
    return rc;
}

/* Reads a softcap: an absent key means the family's value, null none. */
static fm_status take_cap(float *out, const fm_json *c, const char *key, const char *what)
{
    double cap = 0;
    if (fm_json_get(c, key) && fmi_absent(fm_json_get(c, key))) {
        *out = 0;
        return FM_OK;
    }
    if (!fm_json_get(c, key))
        return FM_OK;
    fm_status rc = fmi_take_positive(&cap, c, key, 1, what);
    *out = (float)cap;
    return rc;
}

/* Gemma multiplies its embedding by sqrt(hidden) rounded to the weights' type, which is the
 * config's dtype. bfloat16: the upper half of a float32, rounded to nearest even. */
static float rounded_to_dtype(float x, const fm_json *c)
{
    const char *dtype = fm_json_cstr(fm_json_get(c, "dtype"), NULL);
    if (!dtype)
        dtype = fm_json_cstr(fm_json_get(c, "torch_dtype"), "float32");
    int drop = strcmp(dtype, "bfloat16") == 0 ? 16 : strcmp(dtype, "float16") == 0 ? 13 : 0;
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (drop) {
        uint32_t half = 1u << (drop - 1);
        bits += half - 1 + ((bits >> drop) & 1u);
        bits &= ~((1u << drop) - 1u);
    }
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static fm_status read_gemma(fm_arch *a, const fm_json *c, const char *what)
{
    double scalar = 256;
    fm_status rc;
    if ((rc = fmi_take_positive(&scalar, c, "query_pre_attn_scalar", 256, what)) != FM_OK ||
        (rc = take_cap(&a->sw.attn_softcap, c, "attn_logit_softcapping", what)) != FM_OK ||
        (rc = take_cap(&a->sw.logit_softcap, c, "final_logit_softcapping", what)) != FM_OK)
        return rc;
    a->sw.attn_scale = (float)(1.0 / sqrt(scalar));
    return FM_OK;
}

static fm_status read_granite(fm_arch *a, const fm_json *c, const char *what)
{
    double embed = 1, residual = 1, attn = 1, logits = 1;
    bool clova = fmi_family_of(a)->has & F_CLOVA, posts = true;
    fm_status rc;
    if (clova) {
        attn = 1.0 / sqrt((double)a->head_dim);
        FM_TRY(fmi_take_bool(&posts, c, "use_post_norm", true, what));
        a->sw.order = posts ? FM_BLOCK_SANDWICH : FM_BLOCK_PRE;
    }
    if ((rc = fmi_take_positive(&embed, c, "embedding_multiplier", 1, what)) != FM_OK ||
        (rc = fmi_take_positive(&residual, c, "residual_multiplier", 1, what)) != FM_OK ||
        (rc = fmi_take_positive(&attn, c, "attention_multiplier", attn, what)) != FM_OK ||
        (rc = fmi_take_positive(&logits, c, "logits_scaling", 1, what)) != FM_OK)
        return rc;
    a->sw.embed_scale = (float)embed;
    a->sw.residual_scale = (float)residual;
    a->sw.attn_scale = (float)attn;
    a->sw.logit_divisor = (float)(clova ? 1.0 / logits : logits);
    return FM_OK;
}

static fm_status read_no_rope(fm_arch *a, const fm_json *c, const char *what)
{
    uint32_t interval = 4;
    fm_status rc = fmi_take_u32(&interval, c, "no_rope_layer_interval", 4, 1, 1 << 20, what);
    const fm_json *list = fm_json_get(c, "no_rope_layers");
    if (rc != FM_OK)
        return rc;
    if (fmi_absent(list) || ((fmi_family_of(a)->has & F_LLAMA_4) && fm_json_count(list) == 0))
        list = NULL; /* Llama 4 takes an empty list for none */
    if (list && (!fm_json_is(list, FM_JSON_ARRAY) || fm_json_count(list) < a->layers))
        return fm_fail(FM_EINVAL, "%s: no_rope_layers must list %u layers", what, a->layers);
    for (uint32_t i = 0; i < a->layers; i++) {
        bool turns = !list ? (i + 1) % interval != 0 : fm_json_int(fm_json_at(list, i), 0) != 0;
        if (!turns)
            a->sw.layer[i] |= FM_LAYER_NO_ROPE;
    }
    return FM_OK;
}

/* Llama 4: layers that turn see their chunk of the text, queries of the others grow. */
static fm_status read_llama4(fm_arch *a, const fm_json *c, const char *what)
{
    const fm_json *tuned = fm_json_get(c, "attn_temperature_tuning");
    fm_growth *g = &a->sw.grow;
    double by = 0.1;
    uint32_t chunk = 0, every = 0;
    bool grows = fmi_absent(tuned) || fm_json_bool(tuned, fm_json_int(tuned, 0) != 0);
    if (fm_json_get(c, "attention_chunk_size") &&
        fmi_absent(fm_json_get(c, "attention_chunk_size")))
        return fm_fail(FM_EUNSUPPORTED, "%s: attention_chunk_size null is not supported", what);
    FM_TRY(fmi_take_u32(&chunk, c, "attention_chunk_size", 8192, 1, 1 << 28, what));
    FM_TRY(fmi_take_u32(&every, c, "floor_scale", 8192, 1, 1 << 28, what));
    FM_TRY(fmi_take_positive(&by, c, "attn_scale", by, what));
    if (!fmi_absent(tuned) && !fm_json_is(tuned, FM_JSON_BOOL) && !fm_json_is(tuned, FM_JSON_INT))
        return fm_fail(FM_EINVAL, "%s: attn_temperature_tuning must be true or false", what);
    a->sw.chunk = chunk;
    if (grows)
        *g = (fm_growth){.every = every, .by = (float)by, .next = true, .unturned = true};
    return FM_OK;
}

/* The clamp of gpt-oss is a constant here. */
static fm_status check_clamp(const fm_json *c, const char *what)
{
    double limit = 0, alpha = 0;
    FM_TRY(fmi_take_positive(&limit, c, "swiglu_limit", (double)7.0, what));
    FM_TRY(fmi_take_positive(&alpha, c, "swiglu_alpha", 1.702, what));
    if (limit != (double)FM_ACT_LIMIT || (float)alpha != FM_ACT_ALPHA)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: swiglu_limit %g and swiglu_alpha %g are not supported, 7 and 1.702 are",
                       what, limit, alpha);
    return FM_OK;
}

/* Every text sees itself whole, and there is no head: the config says so of a decoder. */
static fm_status read_both_ways(fm_arch *a, const fm_json *c, const char *what)
{
    bool both = false;
    FM_TRY(fmi_take_bool(&both, c, "use_bidirectional_attention", false, what));
    a->sw.encoder = both;
    a->headless = both;
    return FM_OK;
}

/* MPT's attn_config. clip_qkv and norms of q and k are not computed here. */
static fm_status read_mpt(fm_arch *a, const fm_json *c, const char *what)
{
    static const char *const off[] = {"clip_qkv", "qk_ln", "prefix_lm", "attn_uses_sequence_id"};
    const fm_json *attn = fm_json_get(c, "attn_config");
    bool alibi = true;
    double scale = (double)a->sw.attn_scale, most = 8;
    for (size_t i = 0; i < FM_ARRAY_LEN(off); i++) {
        const fm_json *v = fm_json_get(attn, off[i]);
        if (!fmi_absent(v) && (!fm_json_is(v, FM_JSON_BOOL) || fm_json_bool(v, true)))
            return fm_fail(FM_EUNSUPPORTED, "%s: attn_config: %s is not supported", what, off[i]);
    }
    FM_TRY(fmi_take_bool(&alibi, attn, "alibi", true, what));
    FM_TRY(fmi_take_positive(&scale, attn, "softmax_scale", scale, what));
    FM_TRY(fmi_take_positive(&most, attn, "alibi_bias_max", most, what));
    const char *type = fm_json_cstr(fm_json_get(attn, "attn_type"), "multihead_attention");
    if (!alibi || most != 8 || strcmp(type, "multihead_attention") != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: attn_config: only multihead_attention with alibi and alibi_bias_max 8 "
                       "is supported",
                       what);
    a->sw.attn_scale = (float)scale;
    return FM_OK;
}

static fm_status read_switches(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    fm_status rc = read_act(a, f, c, what);
    bool parallel = f->has & F_PARALLEL_KEY;
    a->sw.embed_scale = a->sw.residual_scale = a->sw.logit_divisor = 1.0f;
    a->sw.attn_scale = (float)(1.0 / sqrt((double)a->head_dim));
    FM_THEN(rc, fmi_take_bool(&parallel, c, "use_parallel_residual", parallel, what));
    if (rc == FM_OK && parallel && !(f->has & F_PARALLEL_KEY))
        return fm_fail(FM_EUNSUPPORTED, "%s: use_parallel_residual is not supported for %s", what,
                       f->name);
    if (f->has & F_PARALLEL_KEY)
        a->sw.order = parallel ? FM_BLOCK_PARALLEL : FM_BLOCK_PRE;
    if (f->has & (F_GEMMA | F_EMBED_SCALE))
        a->sw.embed_scale = rounded_to_dtype((float)sqrt((double)a->hidden), c);
    if (rc == FM_OK && (f->has & F_GEMMA))
        rc = read_gemma(a, c, what);
    if (rc == FM_OK && (f->has & F_GRANITE))
        rc = read_granite(a, c, what);
    if (rc == FM_OK && (f->has & F_LOGIT_SCALE)) {
        double scale = 0.0625;
        rc = fmi_take_positive(&scale, c, "logit_scale", scale, what);
        a->sw.logit_divisor = (float)(1.0 / scale);
    }
    if (rc == FM_OK && (f->has & F_NO_ROPE_LAYERS))
        rc = read_no_rope(a, c, what);
    if (rc == FM_OK && (f->has & F_CLAMPED))
        rc = check_clamp(c, what);
    if (rc == FM_OK && (f->has & F_LOGIT_CAP))
        rc = take_cap(&a->sw.logit_softcap, c, "final_logit_softcapping", what);
    if (rc == FM_OK && (f->has & F_BOTH_WAYS_KEY))
        rc = read_both_ways(a, c, what);
    if (rc == FM_OK && (f->has & F_MPT))
        rc = read_mpt(a, c, what);
    if (rc == FM_OK && (f->has & F_DEEPSEEK_3))
        rc = fmi_take_bool(&a->sw.pairs, c, "rope_interleave", true, what);
    if (rc == FM_OK && (f->has & F_LLAMA_4))
        rc = read_llama4(a, c, what);
    if (rc == FM_OK && (f->more & M_GEMMA4))
        rc = fmi_read_gemma4(a, c, what);
    a->sw.per_layer_scale = rounded_to_dtype((float)sqrt((double)a->sw.per_layer), c);
    bool qk = a->sw.qk == FM_QK_HEAD;
    if (rc == FM_OK && (f->has & F_QK_NORM_KEY))
        rc = fmi_take_bool(&qk, c, "use_qk_norm", qk, what);
    if (f->has & F_QK_NORM_KEY)
        a->sw.qk = qk ? FM_QK_HEAD : FM_QK_NONE;
    if (rc == FM_OK && (f->has & F_MORE_LAYERS))
        rc = fmi_take_u32(&a->more_layers, c, "num_nextn_predict_layers", 1, 0, 64, what);
    return rc == FM_OK ? fmi_read_experts(a, f, c, what) : rc;
}

/* RoBERTa counts positions from behind the id of its padding. */
static fm_status offset_positions(fm_arch *a, const char *what)
{
    uint32_t pad = a->pad >= 0 && !(fmi_family_of(a)->has & F_PAD_1) ? (uint32_t)a->pad : 1;
    if (a->position_rows <= pad + 1)
        return fm_fail(FM_EINVAL, "%s: max_position_embeddings is %u, pad_token_id %u", what,
                       a->position_rows, pad);
    a->sw.position_offset = pad + 1;
    a->max_positions = a->position_rows - pad - 1;
    return FM_OK;
}

/* BitNet's checkpoints: what linear layers read is rounded to integers of 8 bits. */
static fm_status read_rounding(fm_arch *a, const fm_json *c, const char *what)
{
    const fm_json *q = fm_json_get(c, "quantization_config");
    const fm_switches *s = &a->sw;
    if (strcmp(fm_json_cstr(fm_json_get(q, "quant_method"), ""), "bitnet") != 0)
        return FM_OK;
    if (s->experts || s->kv_rank || s->encoder || s->embed_width || fm_arch_recurs(a))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: config field 'quantization_config' has quant_method bitnet, which is "
                       "not supported for %s",
                       what, fmi_family_of(a)->name);
    a->sw.rounds = true;
    return FM_OK;
}

/* ==== the whole ==== */

static fm_status read_config(fm_arch *a, const fm_json *c, const fm_json *g, const char *what)
{
    double eps = 0;
    fm_status rc = find_family(a, c, what);
    if (rc != FM_OK)
        return rc;
    const fmi_family *f = fmi_family_of(a);
    a->sw = f->sw;
    if ((rc = check_keys(c, f, what)) != FM_OK || (rc = check_fixed(c, f, what)) != FM_OK ||
        (rc = read_sizes(a, f, c, what)) != FM_OK ||
        (rc = fmi_take_positive(&eps, c, key_or(f->k_eps, "rms_norm_eps"),
                                f->eps > 0 ? f->eps : 1e-6, what)) != FM_OK ||
        (rc = read_biases(a, f, c, what)) != FM_OK ||
        (rc = read_switches(a, f, c, what)) != FM_OK ||
        (rc = fmi_read_recurrence(a, f, c, what)) != FM_OK ||
        (rc = fmi_read_rope(a, f, c, what)) != FM_OK ||
        (rc = read_window(a, f, c, what)) != FM_OK || (rc = read_rounding(a, c, what)) != FM_OK ||
        (rc = read_ids(a, c, g, what)) != FM_OK)
        return rc;
    if (f->more & M_GEMMA4)
        FM_TRY(fmi_read_gemma4_layers(a, c, what));
    if (!a->sw.encoder && !(f->has & F_ONE_BLOCK)) /* transformers never ties Nemotron-H */
        rc = fmi_take_bool(&a->tied, c, "tie_word_embeddings", f->tied, what);
    if (rc == FM_OK && (f->has & F_LFM2))
        rc = fmi_take_bool(&a->tied, c, "tie_embedding", a->tied, what);
    if (rc == FM_OK && (f->has & F_PAD_OFFSET))
        rc = offset_positions(a, what);
    FM_THEN(rc, fmi_read_stacks(a, f, c, g, what));
    memcpy(a->family, f->name, strlen(f->name) + 1);
    memcpy(a->prefix, f->prefix[0], strlen(f->prefix[0]) + 1);
    memcpy(a->head_name, f->head_name, strlen(f->head_name) + 1);
    a->eps = (float)eps;
    a->qk_norm = a->sw.qk != FM_QK_NONE;
    return rc;
}

/* Takes the text part of a model with vision: without tokens for pictures it cannot get any.
 * *tied: the whole model's setting, where it is beside the text part. */
static fm_status text_part(const fm_json **config, bool *tied, const char *what)
{
    static const struct {
        const char *type;
        bool flat, tied; /* the text's settings may stand in the config itself; the default */
    } known[] = {{"gemma3", false, true},       {"mistral3", false, true},
                 {"gemma4", false, true},       {"llama4", false, false},
                 {"qwen3_5", false, false},
                 {"qwen3_5_moe", false, false}, {"qwen2_vl", true, false},
                 {"qwen2_5_vl", true, false}};
    const fm_json *whole = *config, *text = fm_json_get(whole, "text_config");
    const char *type = fm_json_cstr(fm_json_get(whole, "model_type"), "");
    size_t i = 0;
    while (i < FM_ARRAY_LEN(known) && strcmp(known[i].type, type) != 0)
        i++;
    if (i == FM_ARRAY_LEN(known) || (known[i].flat && fmi_absent(text)))
        return FM_OK;
    if (!fm_json_is(text, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: config field 'text_config' is missing", what);
    for (void *it = fm_json_iter(whole); it; it = fm_json_next(whole, it)) {
        const char *key = fm_json_iter_key(it);
        if (!listed(beside_text, key) && !listed(harmless, key))
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: config field '%s' is not understood and may change the result",
                           what, key);
    }
    *config = text;
    FM_TRY(fmi_take_bool(tied, text, "tie_word_embeddings", known[i].tied, what));
    return fmi_take_bool(tied, whole, "tie_word_embeddings", *tied, what);
}

fm_status fm_arch_from_json(fm_arch *out, const fm_json *model_json, const char *what)
{
    memset(out, 0, sizeof(*out));
    const fm_json *config = fm_json_get(model_json, "config");
    if (!fm_json_is(config, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: model.json has no 'config' object", what);
    const fm_json *whole = config;
    bool tied = false;
    fm_status rc = fm_plain_config_check(config, what); /* fm_plain_open does the rest */
    FM_THEN(rc, text_part(&config, &tied, what));
    FM_THEN(rc, read_config(out, config, fm_json_get(model_json, "generation_config"), what));
    if (config != whole && !out->sw.encoder)
        out->tied = tied;
    if (rc != FM_OK)
        memset(out, 0, sizeof(*out));
    return rc;
}

static fm_status has_tensor(bool *there, const fm_tree *tree, const char *name)
{
    fm_buf path;
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = fm_tensor_path(&path, "tensors", name);
    *there = rc == FM_OK && fm_tree_find(tree, fm_buf_cstr(&path));
    fm_buf_release(&path);
    return rc;
}

/* Sets head_name, which stands behind the prefix of a text beside pictures, and headless:
 * transformers' ...ForSequenceClassification has a `score` for a language head, and a base model,
 * whose names have no prefix, has neither. */
static fm_status find_head(fm_arch *a, const fm_tree *tree)
{
    static const char inner[] = "language_model.";
    char name[sizeof(inner) + sizeof(a->head_name) + 8];
    bool head = true, score = false;
    if (a->sw.encoder)
        return FM_OK;
    if (a->sw.cross) {
        (void)snprintf(name, sizeof(name), "%s.weight", a->head_name);
        FM_TRY(has_tensor(&head, tree, name));
        a->tied = !head; /* whatever the config says: so does transformers */
        return has_tensor(&a->head_bias, tree, "final_logits_bias");
    }
    (void)snprintf(name, sizeof(name), "%s%s.weight", inner, a->head_name);
    FM_TRY(has_tensor(&head, tree, name));
    if (head && strlen(name) - strlen(".weight") < sizeof(a->head_name))
        (void)snprintf(a->head_name, sizeof(a->head_name), "%.*s",
                       (int)(strlen(name) - strlen(".weight")), name);
    (void)snprintf(name, sizeof(name), "%s.weight", a->head_name);
    FM_TRY(has_tensor(&head, tree, name));
    FM_TRY(has_tensor(&score, tree, "score.weight"));
    a->headless = !a->tied && !head && (score || !a->prefix[0]);
    return FM_OK;
}

/* The prefix under which the tree has the embedding; the default where none does. */
static fm_status choose_prefix(fm_arch *a, const fm_tree *tree)
{
    const fmi_family *f = fmi_family_of(a);
    for (size_t i = 0; i < FM_ARRAY_LEN(f->prefix) && f->prefix[i]; i++) {
        char name[128];
        bool there = false;
        (void)snprintf(name, sizeof(name), "%s%s", f->prefix[i], f->first[0].name);
        FM_TRY(has_tensor(&there, tree, name));
        if (there) {
            memcpy(a->prefix, f->prefix[i], strlen(f->prefix[i]) + 1);
            return FM_OK;
        }
    }
    return FM_OK;
}

/* A tree with the encoder alone (transformers' T5EncoderModel) is that encoder. */
static fm_status choose_stack(fm_arch *a, const fm_tree *tree)
{
    const fmi_family *f = fmi_family_of(a);
    char name[160];
    bool decoder = true, source = false;
    if (!a->sw.cross)
        return FM_OK;
    (void)snprintf(name, sizeof(name), "%s%s0.%s", a->prefix, f->layers, f->layer[0].name);
    FM_TRY(has_tensor(&decoder, tree, name));
    (void)snprintf(name, sizeof(name), "%s%s0.%s", a->prefix, f->source->layers,
                   f->source->layer[0].name);
    FM_TRY(has_tensor(&source, tree, name));
    if (source && !decoder) {
        fm_arch whole = *a;
        fm_arch_source(a, &whole);
    }
    return FM_OK;
}

fm_status fm_model_json_of_tree(fm_json **out, const fm_tree *tree, const fm_provider *p,
                                const char *what)
{
    fm_buf text;
    *out = NULL;
    const fm_entry *e = fm_tree_find(tree, "model.json");
    if (!e)
        return fm_fail(FM_ENOTFOUND,
                       "%s: no model.json in the tree: the version is kept and cannot run (its "
                       "source/source.json may say why, under 'kept')",
                       what);
    if (e->kind == FM_ENTRY_TENSOR)
        return fm_fail(FM_ECORRUPT, "%s: model.json is a tensor", what);
    fm_buf_init(&text, 0);
    fm_status rc = fm_entry_read(&text, p, e);
    FM_THEN(rc, fm_json_parse(out, fm_buf_span(&text), "model.json"));
    fm_buf_release(&text);
    return rc == FM_OK ? rc : fm_error_prefix(rc, "%s", what);
}

fm_status fm_arch_of_tree(fm_arch *out, const fm_tree *tree, const fm_provider *p, const char *what)
{
    fm_json *v = NULL;
    memset(out, 0, sizeof(*out));
    FM_TRY(fm_model_json_of_tree(&v, tree, p, what));
    fm_status rc = fm_arch_from_json(out, v, what);
    fm_json_free(v);
    FM_THEN(rc, choose_prefix(out, tree));
    FM_THEN(rc, choose_stack(out, tree));
    return rc == FM_OK ? find_head(out, tree) : rc;
}

const char *fm_arch_beyond_llama(const fm_arch *a)
{
    const fm_switches *s = &a->sw;
    if (s->cross || a->of_source)
        return "two stacks";
    if (fm_arch_recurs(a))
        return "recurrent layers";
    if (a->rope[0].kind != FM_ROPE_DEFAULT && a->rope[0].kind != FM_ROPE_LLAMA3)
        return "this rope scaling";
    for (uint32_t i = 0; i < a->layers; i++)
        if (s->layer[i] != s->layer[0] || (s->layer[i] & ~FM_LAYER_SLIDES))
            return "layers that differ";
    if (s->rounds)
        return "rounded inputs of products";
    if (s->sinks)
        return "sinks";
    if (s->grow.every)
        return "growing queries";
    if (s->kv_rank)
        return "latent keys and values";
    if (s->norm != FM_NORM_RMS || s->order != FM_BLOCK_PRE || s->qk == FM_QK_ALL || s->qk_after ||
        s->sub_norms)
        return "this family's norms";
    if (s->act != FM_ACT_SILU || s->plain_mlp)
        return "this activation";
    if (s->fused != FM_FUSED_NONE || s->fused_mlp)
        return "fused projections";
    if (s->alibi != FM_ALIBI_NONE || s->no_rope || s->positions || s->encoder || s->pairs ||
        s->rotary_dim != a->head_dim)
        return "this kind of positions";
    if (s->embed_scale != 1.0f || s->residual_scale != 1.0f || s->logit_divisor != 1.0f ||
        s->attn_softcap > 0 || s->logit_softcap > 0 ||
        s->attn_scale != (float)(1.0 / sqrt((double)a->head_dim)))
        return "multipliers and softcaps";
    return NULL;
}
