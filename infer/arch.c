/* arch.c - HF config.json to fm_arch.
 *
 * A config is read by exclusion: a key that is neither understood here nor on the list of keys that
 * cannot change a forward pass is refused by name. A wrong guess would give plausible, wrong text;
 * a refusal costs one line here once the field is understood. Absent keys get the defaults of the
 * config classes in `transformers`, which writes only what differs from them in older versions. */
#include "infer/arch.h"
#include "infer/backend.h"

#include <string.h>

/* What each model type means where its config is silent. */
typedef struct family {
    const char *name;
    uint32_t kv_heads; /* 0: as many as heads */
    uint32_t head_dim; /* 0: hidden / heads */
    uint32_t max_positions;
    uint32_t window;    /* where sliding_window is absent */
    bool window_switch; /* sliding_window counts only with use_sliding_window */
    bool qkv_bias;      /* always there, no key says so */
    bool bias_key;      /* attention_bias is read */
    bool qk_norm;
} family;

static const family families[] = {
    {.name = "llama", .max_positions = 2048, .bias_key = true},
    {.name = "mistral", .kv_heads = 8, .max_positions = 131072, .window = 4096},
    {.name = "qwen2",
     .kv_heads = 32,
     .max_positions = 32768,
     .window = 4096,
     .window_switch = true,
     .qkv_bias = true},
    {.name = "qwen3",
     .kv_heads = 32,
     .head_dim = 128,
     .max_positions = 32768,
     .window = 4096,
     .window_switch = true,
     .bias_key = true,
     .qk_norm = true},
};

/* Read below, or checked to have the only value that we compute. */
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
};

/* Cannot change what a forward pass at inference gives (pretraining_tp splits a product and sums
 * the parts: the same value in exact arithmetic). */
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
};

static bool listed(const char *const *list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], key) == 0)
            return true;
    return false;
}

static bool absent(const fm_json *v)
{
    return fm_json_typeof(v) == FM_JSON_NULL;
}

/* An integer in [low, high]; dflt where absent or null; dflt < 0: required. */
static fm_status take_u32(uint32_t *out, const fm_json *c, const char *key, int64_t dflt,
                          int64_t low, int64_t high, const char *what)
{
    const fm_json *v = fm_json_get(c, key);
    int64_t n = dflt;
    if (!absent(v)) {
        if (!fm_json_is(v, FM_JSON_INT))
            return fm_fail(FM_EINVAL, "%s: config field '%s' must be an integer", what, key);
        n = fm_json_int(v, 0);
    } else if (dflt < 0) {
        return fm_fail(FM_EINVAL, "%s: config field '%s' is missing", what, key);
    }
    if (n < low || n > high)
        return fm_fail(FM_EINVAL, "%s: config field '%s' is %lld, allowed are %lld to %lld", what,
                       key, (long long)n, (long long)low, (long long)high);
    *out = (uint32_t)n;
    return FM_OK;
}

/* A finite number in (0, 1e12]. */
static fm_status take_positive(double *out, const fm_json *c, const char *key, double dflt,
                               const char *what)
{
    const fm_json *v = fm_json_get(c, key);
    double x = dflt;
    if (!absent(v)) {
        if (!fm_json_is(v, FM_JSON_INT) && !fm_json_is(v, FM_JSON_REAL))
            return fm_fail(FM_EINVAL, "%s: config field '%s' must be a number", what, key);
        x = fm_json_real(v, 0);
    }
    if (!(x > 0.0 && x <= 1e12))
        return fm_fail(FM_EINVAL, "%s: config field '%s' must be a positive number", what, key);
    *out = x;
    return FM_OK;
}

static fm_status take_bool(bool *out, const fm_json *c, const char *key, bool dflt,
                           const char *what)
{
    const fm_json *v = fm_json_get(c, key);
    if (!absent(v) && !fm_json_is(v, FM_JSON_BOOL))
        return fm_fail(FM_EINVAL, "%s: config field '%s' must be true or false", what, key);
    *out = fm_json_bool(v, dflt);
    return FM_OK;
}

static fm_status check_keys(const fm_json *c, const char *what)
{
    for (void *it = fm_json_iter(c); it; it = fm_json_next(c, it)) {
        const char *key = fm_json_iter_key(it);
        if (absent(fm_json_iter_value(it)) || listed(understood, FM_ARRAY_LEN(understood), key) ||
            listed(harmless, FM_ARRAY_LEN(harmless), key))
            continue;
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: config field '%s' is not understood and may change the result", what,
                       key);
    }
    return FM_OK;
}

/* Values for which only one computation is there. */
static fm_status check_fixed(const fm_json *c, const char *what)
{
    const char *act = fm_json_cstr(fm_json_get(c, "hidden_act"), "silu");
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return fm_fail(FM_EUNSUPPORTED, "%s: hidden_act '%s' is not supported, silu is", what, act);
    const fm_json *part = fm_json_get(c, "partial_rotary_factor");
    if (!absent(part) && fm_json_real(part, 0) != 1.0)
        return fm_fail(FM_EUNSUPPORTED, "%s: partial_rotary_factor other than 1", what);
    const fm_json *inter = fm_json_get(c, "rope_interleaved");
    if (!absent(inter) && (!fm_json_is(inter, FM_JSON_BOOL) || fm_json_bool(inter, true)))
        return fm_fail(FM_EUNSUPPORTED, "%s: rope_interleaved is not supported", what);
    return FM_OK;
}

/* ==== rotary embedding ==== */

static fm_status rope_llama3(fm_arch *a, const fm_json *r, const char *what)
{
    fm_status rc;
    static const char *const need[] = {"factor", "low_freq_factor", "high_freq_factor",
                                       "original_max_position_embeddings"};
    for (size_t i = 0; i < FM_ARRAY_LEN(need); i++)
        if (absent(fm_json_get(r, need[i])))
            return fm_fail(FM_EINVAL, "%s: rope type llama3 lacks '%s'", what, need[i]);
    if ((rc = take_positive(&a->rope_factor, r, need[0], 1, what)) != FM_OK ||
        (rc = take_positive(&a->rope_low, r, need[1], 1, what)) != FM_OK ||
        (rc = take_positive(&a->rope_high, r, need[2], 1, what)) != FM_OK ||
        (rc = take_u32(&a->rope_original, r, need[3], -1, 1, 1 << 28, what)) != FM_OK)
        return rc;
    if (!(a->rope_high > a->rope_low))
        return fm_fail(FM_EINVAL, "%s: rope high_freq_factor must be above low_freq_factor", what);
    a->rope_llama3 = true;
    return FM_OK;
}

static fm_status rope_fields(fm_arch *a, const fm_json *r, const char *what)
{
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "factor",
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        "original_max_position_embeddings",
                                        "partial_rotary_factor"};
    if (!fm_json_is(r, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: the config's rope settings must be an object", what);
    for (void *it = fm_json_iter(r); it; it = fm_json_next(r, it))
        if (!absent(fm_json_iter_value(it)) &&
            !listed(known, FM_ARRAY_LEN(known), fm_json_iter_key(it)))
            return fm_fail(FM_EUNSUPPORTED, "%s: rope setting '%s' is not understood", what,
                           fm_json_iter_key(it));
    const fm_json *part = fm_json_get(r, "partial_rotary_factor");
    if (!absent(part) && fm_json_real(part, 0) != 1.0)
        return fm_fail(FM_EUNSUPPORTED, "%s: partial_rotary_factor other than 1", what);
    fm_status rc = take_positive(&a->rope_theta, r, "rope_theta", a->rope_theta, what);
    if (rc != FM_OK)
        return rc;
    const char *type = fm_json_cstr(fm_json_get(r, "rope_type"), NULL);
    if (!type)
        type = fm_json_cstr(fm_json_get(r, "type"), "default");
    if (strcmp(type, "default") == 0)
        return FM_OK;
    if (strcmp(type, "llama3") == 0)
        return rope_llama3(a, r, what);
    return fm_fail(FM_EUNSUPPORTED, "%s: rope type '%s' is not supported, default and llama3 are",
                   what, type);
}

static fm_status read_rope(fm_arch *a, const fm_json *c, const char *what)
{
    fm_status rc = take_positive(&a->rope_theta, c, "rope_theta", 10000.0, what);
    if (rc != FM_OK)
        return rc;
    const fm_json *r = fm_json_get(c, "rope_parameters");
    if (absent(r))
        r = fm_json_get(c, "rope_scaling");
    return absent(r) ? FM_OK : rope_fields(a, r, what);
}

/* ==== sliding window ==== */

/* 0: no layer slides, 1: all do; mixtures are refused. */
static fm_status window_by_types(bool *slides, const fm_arch *a, const fm_json *types,
                                 const char *what)
{
    if (!fm_json_is(types, FM_JSON_ARRAY) || fm_json_count(types) != a->layers)
        return fm_fail(FM_EINVAL, "%s: layer_types must list %u layers", what, a->layers);
    const char *first = fm_json_cstr(fm_json_at(types, 0), "");
    for (size_t i = 0; i < a->layers; i++) {
        const char *t = fm_json_cstr(fm_json_at(types, i), "");
        if (strcmp(t, "full_attention") != 0 && strcmp(t, "sliding_attention") != 0)
            return fm_fail(FM_EUNSUPPORTED, "%s: layer type '%s' is not supported", what, t);
        if (strcmp(t, first) != 0)
            return fm_fail(FM_EUNSUPPORTED, "%s: layer_types mixes full and sliding attention",
                           what);
    }
    *slides = strcmp(first, "sliding_attention") == 0;
    return FM_OK;
}

static fm_status read_window(fm_arch *a, const family *f, const fm_json *c, const char *what)
{
    const fm_json *v = fm_json_get(c, "sliding_window");
    bool use = true, written = v != NULL;
    fm_status rc = take_bool(&use, c, "use_sliding_window", false, what);
    if (rc != FM_OK)
        return rc;
    if (!f->window_switch)
        use = f->window > 0 || !absent(v);
    uint32_t window = written ? 0 : f->window;
    if (!absent(v) && (rc = take_u32(&window, c, "sliding_window", -1, 1, 1 << 28, what)) != FM_OK)
        return rc;
    bool slides = use && window > 0;
    const fm_json *types = fm_json_get(c, "layer_types");
    if (!absent(types)) {
        if ((rc = window_by_types(&slides, a, types, what)) != FM_OK)
            return rc;
        if (slides && !window)
            return fm_fail(FM_EINVAL, "%s: layer_types slide but sliding_window is missing", what);
    } else if (slides && f->window_switch) {
        uint32_t from = 0; /* layers below it attend to everything */
        if ((rc = take_u32(&from, c, "max_window_layers", 28, 0, 1 << 20, what)) != FM_OK)
            return rc;
        if (from > 0 && from < a->layers)
            return fm_fail(FM_EUNSUPPORTED, "%s: max_window_layers mixes full and sliding layers",
                           what);
        slides = from == 0;
    }
    a->window = slides ? window : 0;
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

/* generation_config says what ends a text; config is asked where it is silent. */
static fm_status read_ids(fm_arch *a, const fm_json *c, const fm_json *g, const char *what)
{
    fm_status rc;
    a->bos = a->pad = -1;
    const fm_json *v = fm_json_get(c, "bos_token_id");
    if (!absent(v) && (rc = take_id(&a->bos, v, a, "bos_token_id", what)) != FM_OK)
        return rc;
    v = fm_json_get(c, "pad_token_id");
    if (!absent(v) && (rc = take_id(&a->pad, v, a, "pad_token_id", what)) != FM_OK)
        return rc;
    v = fm_json_get(g, "eos_token_id");
    if (absent(v))
        v = fm_json_get(c, "eos_token_id");
    if (absent(v))
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

/* ==== the whole ==== */

static fm_status find_family(const family **out, const fm_json *c, const char *what)
{
    const char *type = fm_json_cstr(fm_json_get(c, "model_type"), NULL);
    if (!type)
        return fm_fail(FM_EINVAL, "%s: config field 'model_type' is missing", what);
    for (size_t i = 0; i < FM_ARRAY_LEN(families); i++)
        if (strcmp(families[i].name, type) == 0) {
            *out = &families[i];
            return FM_OK;
        }
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: model_type '%s' is not supported; llama, mistral, qwen2, qwen3 are", what,
                   type);
}

static fm_status read_sizes(fm_arch *a, const family *f, const fm_json *c, const char *what)
{
    fm_status rc;
    const int64_t wide = 1 << 20;
    if ((rc = take_u32(&a->vocab, c, "vocab_size", -1, 1, FM_MAX_VOCAB, what)) != FM_OK ||
        (rc = take_u32(&a->hidden, c, "hidden_size", -1, 1, wide, what)) != FM_OK ||
        (rc = take_u32(&a->inter, c, "intermediate_size", -1, 1, wide, what)) != FM_OK ||
        (rc = take_u32(&a->layers, c, "num_hidden_layers", -1, 1, FM_MAX_LAYERS, what)) != FM_OK ||
        (rc = take_u32(&a->heads, c, "num_attention_heads", -1, 1, 4096, what)) != FM_OK ||
        (rc = take_u32(&a->max_positions, c, "max_position_embeddings", f->max_positions, 1,
                       1 << 28, what)) != FM_OK)
        return rc;
    bool null_kv = fm_json_get(c, "num_key_value_heads") != NULL; /* null means as many as heads */
    int64_t kv = f->kv_heads && !null_kv ? f->kv_heads : a->heads;
    int64_t hd = f->head_dim && !fm_json_get(c, "head_dim") ? f->head_dim : a->hidden / a->heads;
    if ((rc = take_u32(&a->kv_heads, c, "num_key_value_heads", kv, 1, 4096, what)) != FM_OK ||
        (rc = take_u32(&a->head_dim, c, "head_dim", hd, 2, FM_K_BLOCK, what)) != FM_OK)
        return rc;
    if (a->heads % a->kv_heads != 0)
        return fm_fail(FM_EINVAL, "%s: %u attention heads cannot share %u key/value heads", what,
                       a->heads, a->kv_heads);
    if (a->head_dim % 2 != 0)
        return fm_fail(FM_EINVAL, "%s: head_dim %u is odd, rotary positions need pairs", what,
                       a->head_dim);
    return FM_OK;
}

static fm_status read_config(fm_arch *a, const fm_json *c, const fm_json *g, const char *what)
{
    const family *f = NULL;
    double eps = 0;
    bool bias = false;
    fm_status rc;
    if ((rc = find_family(&f, c, what)) != FM_OK || (rc = check_keys(c, what)) != FM_OK ||
        (rc = check_fixed(c, what)) != FM_OK || (rc = read_sizes(a, f, c, what)) != FM_OK ||
        (rc = take_positive(&eps, c, "rms_norm_eps", 1e-6, what)) != FM_OK ||
        (rc = take_bool(&a->tied, c, "tie_word_embeddings", false, what)) != FM_OK ||
        (rc = take_bool(&bias, c, "attention_bias", false, what)) != FM_OK ||
        (rc = take_bool(&a->mlp_bias, c, "mlp_bias", false, what)) != FM_OK ||
        (rc = read_rope(a, c, what)) != FM_OK || (rc = read_window(a, f, c, what)) != FM_OK ||
        (rc = read_ids(a, c, g, what)) != FM_OK)
        return rc;
    if ((bias && !f->bias_key) || (a->mlp_bias && strcmp(f->name, "llama") != 0))
        return fm_fail(FM_EUNSUPPORTED, "%s: %s has no biases that a config could switch on", what,
                       f->name);
    memcpy(a->family, f->name, strlen(f->name) + 1);
    a->eps = (float)eps;
    a->qk_norm = f->qk_norm;
    a->qkv_bias = f->qkv_bias || bias;
    a->o_bias = bias;
    return FM_OK;
}

fm_status fm_arch_from_json(fm_arch *out, const fm_json *model_json, const char *what)
{
    memset(out, 0, sizeof(*out));
    const fm_json *config = fm_json_get(model_json, "config");
    if (!fm_json_is(config, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: model.json has no 'config' object", what);
    fm_arch a = {0};
    fm_status rc = read_config(&a, config, fm_json_get(model_json, "generation_config"), what);
    if (rc == FM_OK)
        *out = a;
    return rc;
}

fm_status fm_arch_of_tree(fm_arch *out, const fm_tree *tree, const char *what)
{
    memset(out, 0, sizeof(*out));
    const fm_entry *e = fm_tree_find(tree, "model.json");
    if (!e)
        return fm_fail(FM_ENOTFOUND,
                       "%s: no model.json in the tree; import a folder with config.json", what);
    if (e->kind != FM_ENTRY_FILE)
        return fm_fail(FM_ECORRUPT, "%s: model.json is not a plain file", what);
    fm_json *v = NULL;
    fm_status rc = fm_json_parse(&v, fm_span_of(e->data, (size_t)e->bytes), "model.json");
    if (rc != FM_OK)
        return fm_error_prefix(rc, "%s", what);
    rc = fm_arch_from_json(out, v, what);
    fm_json_free(v);
    return rc;
}
