/* gguf_config.c - config.json from GGUF metadata.
 *
 * A field below the architecture's prefix that is not known here may change what the model
 * computes, so it is refused by name and not dropped. */
#include "store/import/gguf_canon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATTERN_KEY "attention.sliding_window_pattern"

static const char *const KNOWN[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scale_linear",
    "expert_count",
    "expert_used_count",
    "rope.scaling.attn_factor",
    "pooling_type",
};

static bool is_listed(const gguf_setting *s, const char *key)
{
    for (; s && s->key; s++)
        if (strcmp(s->key, key) == 0)
            return true;
    return false;
}

static fm_status check_fields(const gguf_dims *d, const fm_gguf *g)
{
    size_t n = strlen(d->arch->prefix);

    for (size_t i = 0; i < fm_gguf_kv_count(g); i++) {
        const char *key = fm_gguf_kv_at(g, i)->key;
        bool known = strncmp(key, d->arch->prefix, n) != 0 || key[n] != '.';
        for (size_t k = 0; !known && k < FM_ARRAY_LEN(KNOWN); k++)
            known = strcmp(key + n + 1, KNOWN[k]) == 0;
        known = known || is_listed(d->arch->settings, key + n + 1) ||
                is_listed(gguf_yarn, key + n + 1) ||
                strcmp(key + n + 1, gguf_eps_key(d->arch)) == 0 ||
                ((d->arch->has & GGUF_PATTERN) && strcmp(key + n + 1, PATTERN_KEY) == 0);
        if (!known)
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: field '%.100s' is not known and may change what "
                           "the model computes",
                           fm_gguf_what(g), key);
    }
    return FM_OK;
}

double gguf_shortest(double v)
{
    char text[40];

    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if ((double)(float)strtod(text, NULL) == v)
            return strtod(text, NULL);
    }
    return v;
}

static fm_status real_or(const gguf_dims *d, const fm_gguf *g, const char *key, double *out)
{
    char full[128];
    bool found = false;
    FM_TRY(fm_gguf_f64(g, gguf_key(d->arch, key, full), out, &found));

    if (found)
        *out = gguf_shortest(*out);
    return FM_OK;
}

fm_status gguf_set_int(fm_json *o, const char *key, uint64_t v)
{
    return fm_json_set(o, key, fm_json_new_int((int64_t)v));
}

static fm_status set_sizes(fm_json *o, const gguf_dims *d)
{
    const gguf_words *w = gguf_words_of(d->arch);
    const struct {
        const char *key;
        uint64_t value;
    } field[] = {{w->hidden, d->hidden},     {w->inter, d->inter},       {w->layers, d->layers},
                 {w->heads, d->heads},       {w->kv_heads, d->kv_heads}, {w->head_dim, d->head_dim},
                 {w->positions, d->context}, {"vocab_size", d->vocab}};

    for (size_t i = 0; i < FM_ARRAY_LEN(field); i++)
        if (field[i].key)
            FM_TRY(gguf_set_int(o, field[i].key, field[i].value));
    return FM_OK;
}

static fm_status set_token_ids(fm_json *o, const fm_gguf *g)
{
    static const char *const pair[][2] = {
        {"tokenizer.ggml.bos_token_id", "bos_token_id"},
        {"tokenizer.ggml.eos_token_id", "eos_token_id"},
        {"tokenizer.ggml.padding_token_id", "pad_token_id"},
    };

    for (size_t i = 0; i < FM_ARRAY_LEN(pair); i++) {
        uint64_t id = 0;
        bool found = false;
        FM_TRY(fm_gguf_u64(g, pair[i][0], &id, &found));
        if (found)
            FM_TRY(gguf_set_int(o, pair[i][1], id));
    }
    return FM_OK;
}

static fm_status set_identity(fm_json *o, const gguf_dims *d)
{
    fm_json *list = fm_json_new_array();
    fm_status rc = list ? fm_json_push(list, fm_json_new_str(d->arch->class_name)) : FM_ENOMEM;

    FM_THEN(rc, fm_json_set(o, "architectures", fm_json_ref(list)));
    FM_THEN(rc, fm_json_set(o, "model_type", fm_json_new_str(d->arch->model_type)));
    fm_json_free(list);
    return rc;
}

/* Which layers slide, where the file lists them; without a window none does. */
static fm_status set_layers(fm_json *o, const gguf_dims *d, const fm_gguf *g, bool window)
{
    char key[128];
    const fm_gguf_kv *kv = fm_gguf_get(g, gguf_key(d->arch, PATTERN_KEY, key));
    fm_json *types;
    fm_status rc = FM_OK;

    if (!(d->arch->has & GGUF_PATTERN) || (window && !kv))
        return FM_OK;
    if (window && (kv->type != FM_GGUF_ARRAY || kv->elem != FM_GGUF_BOOL || kv->count != d->layers))
        return fm_fail(FM_EUNSUPPORTED, "%s: field '%s' must say yes or no for each layer",
                       fm_gguf_what(g), key);
    types = fm_json_new_array();
    if (!types)
        return FM_ENOMEM;
    for (uint64_t i = 0; rc == FM_OK && i < d->layers; i++)
        rc = fm_json_push(types, fm_json_new_str(window && kv->data.data[i] ? "sliding_attention"
                                                                            : "full_attention"));
    FM_THEN(rc, fm_json_set(o, "layer_types", fm_json_ref(types)));
    fm_json_free(types);
    return rc;
}

static fm_status set_window(fm_json *o, const gguf_dims *d, const fm_gguf *g)
{
    char key[128];
    uint64_t window = 0;
    bool found = false;

    FM_TRY(fm_gguf_u64(g, gguf_key(d->arch, "attention.sliding_window", key), &window, &found));
    if (window > 0 && !(d->arch->has & GGUF_WINDOW))
        return fm_fail(FM_EUNSUPPORTED, "%s: field '%s' is not supported", fm_gguf_what(g), key);
    if (window > 0)
        FM_TRY(gguf_set_int(o, "sliding_window", window));
    else if (d->arch->has & GGUF_WINDOW)
        FM_TRY(fm_json_set(o, "sliding_window", fm_json_new_null()));
    return set_layers(o, d, g, window > 0);
}

/* Whether layer 0 has the parameter. */
static fm_json *has_param(const gguf_dims *d, const char *name)
{
    return fm_json_new_bool(gguf_find(d->parts, name, NULL) != NULL);
}

/* A text that can only be one. */
static fm_status check_word(const gguf_dims *d, const fm_gguf *g, const gguf_setting *s)
{
    char key[128];
    fm_span text = {NULL, 0};
    bool found = false;

    FM_TRY(fm_gguf_str(g, gguf_key(d->arch, s->key, key), &text, &found));
    if (found && !fm_span_eq_str(text, s->name))
        return fm_fail(FM_EUNSUPPORTED, "%s: field '%s' is other than '%s'", fm_gguf_what(g), key,
                       s->name);
    return FM_OK;
}

static fm_status check_false(const fm_gguf *g, const char *key)
{
    bool is = false, found = false;

    FM_TRY(fm_gguf_bool(g, key, &is, &found));
    return is ? fm_fail(FM_EUNSUPPORTED, "%s: field '%s' is other than false", fm_gguf_what(g), key)
              : FM_OK;
}

fm_status gguf_set_setting(fm_json *o, const gguf_dims *d, const fm_gguf *g, const gguf_setting *s)
{
    char key[128];
    uint64_t u = 0;
    double r = 0;
    bool b = false, found = false;

    gguf_key(d->arch, s->key, key);
    if (s->kind == GGUF_WORD)
        return check_word(d, g, s);
    if (s->kind == GGUF_FALSE)
        return check_false(g, key);
    if (s->kind == GGUF_INT)
        FM_TRY(fm_gguf_u64(g, key, &u, &found));
    else if (s->kind == GGUF_REAL)
        FM_TRY(fm_gguf_f64(g, key, &r, &found));
    else
        FM_TRY(fm_gguf_bool(g, key, &b, &found));
    if (!found)
        return FM_OK;
    return fm_json_set(o, s->name,
                       s->kind == GGUF_INT    ? fm_json_new_int((int64_t)u)
                       : s->kind == GGUF_REAL ? fm_json_new_real(gguf_shortest(r))
                                              : fm_json_new_bool(b));
}

static fm_status set_biases(fm_json *o, const gguf_dims *d)
{
    const char *const field[][2] = {{d->arch->bias, "blk.0.attn_q.bias"},
                                    {d->arch->o_bias, "blk.0.attn_output.bias"},
                                    {d->arch->mlp_bias, "blk.0.ffn_up.bias"}};

    for (size_t i = 0; i < FM_ARRAY_LEN(field); i++)
        if (field[i][0])
            FM_TRY(fm_json_set(o, field[i][0], has_param(d, field[i][1])));
    return FM_OK;
}

/* What no file says: the activation, then the switches of biases, then the rest of `fixed`. */
static fm_status set_fixed(fm_json *o, const gguf_dims *d)
{
    const gguf_arch *a = d->arch;
    bool first = true;
    fm_json *fixed = NULL;
    fm_status rc = fm_json_parse(&fixed, fm_span_str(a->fixed), a->prefix);

    for (void *it = rc == FM_OK ? fm_json_iter(fixed) : NULL; rc == FM_OK && it;
         it = fm_json_next(fixed, it)) {
        const fm_json *v = fm_json_iter_value(it);
        v = fm_json_is(v, FM_JSON_ARRAY) ? fm_json_at(v, 0) : v;
        rc = fm_json_set(o, fm_json_iter_key(it), fm_json_ref(v));
        if (rc == FM_OK && first)
            rc = set_biases(o, d);
        first = false;
    }
    fm_json_free(fixed);
    return rc;
}

static fm_status set_flags(fm_json *o, const gguf_dims *d, const fm_gguf *g)
{
    const gguf_arch *a = d->arch;

    FM_TRY(set_fixed(o, d));
    for (const gguf_setting *s = a->settings; s && s->key; s++)
        if (!(a->has & GGUF_BY_TYPE) || strcmp(s->key, "rope.freq_base_swa") != 0)
            FM_TRY(gguf_set_setting(o, d, g, s));
    if (a->has & GGUF_GEMMA)
        FM_TRY(gguf_set_int(o, "query_pre_attn_scalar",
                            gguf_gemma_scalar(a, d->layers, d->hidden / d->heads, d->head_dim)));
    if (a->has & GGUF_PARTIAL)
        FM_TRY(fm_json_set(o, gguf_words_of(a)->partial,
                           fm_json_new_real((double)d->rotary / (double)d->head_dim)));
    if (a->has & GGUF_TYPES)
        FM_TRY(gguf_set_int(o, "type_vocab_size", d->types));
    FM_TRY(fm_json_set(o, "tie_word_embeddings", fm_json_new_bool(d->tied)));
    return fm_json_set(o, "dtype", fm_json_new_str("float32"));
}

/* Sliding layers turn by a base of their own, and are not scaled. */
static fm_status set_by_type(fm_json *o, const fm_json *scaling, const gguf_dims *d,
                             const fm_gguf *g, double theta)
{
    fm_json *both = fm_json_new_object(),
            *full = scaling ? fm_json_copy(scaling) : fm_json_new_object();
    fm_json *slide = fm_json_new_object();
    double base = theta;
    fm_status rc = both && full && slide ? real_or(d, g, "rope.freq_base_swa", &base) : FM_ENOMEM;

    if (rc == FM_OK && !scaling)
        rc = fm_json_set(full, "rope_type", fm_json_new_str("default"));
    FM_THEN(rc, fm_json_set(full, "rope_theta", fm_json_new_real(theta)));
    FM_THEN(rc, fm_json_set(slide, "rope_type", fm_json_new_str("default")));
    FM_THEN(rc, fm_json_set(slide, "rope_theta", fm_json_new_real(base)));
    FM_THEN(rc, fm_json_set(both, "full_attention", fm_json_ref(full)));
    FM_THEN(rc, fm_json_set(both, "sliding_attention", fm_json_ref(slide)));
    FM_THEN(rc, fm_json_set(o, "rope_parameters", fm_json_ref(both)));
    fm_json_free(slide);
    fm_json_free(full);
    fm_json_free(both);
    return rc;
}

static fm_status set_rope(fm_json *o, const gguf_dims *d, const fm_gguf *g, double theta)
{
    fm_json *scaling;
    fm_status rc;

    const char *name = gguf_words_of(d->arch)->theta;

    if (!name)
        return FM_OK;
    if (!(d->arch->has & GGUF_BY_TYPE)) {
        FM_TRY(fm_json_set(o, name, fm_json_new_real(theta)));
        return gguf_rope_scaling(o, d, g, theta);
    }
    scaling = fm_json_new_object();
    rc = scaling ? gguf_rope_scaling(scaling, d, g, theta) : FM_ENOMEM;
    FM_THEN(rc, set_by_type(o, fm_json_get(scaling, "rope_scaling"), d, g, theta));
    fm_json_free(scaling);
    return rc;
}

static fm_status set_eps(fm_json *o, const gguf_dims *d, const fm_gguf *g, double eps)
{
    const gguf_arch *a = d->arch;

    if (a->fixed_eps == 0)
        return fm_json_set(o, a->eps ? a->eps : "rms_norm_eps", fm_json_new_real(eps));
    if (eps != a->fixed_eps)
        return fm_fail(FM_EUNSUPPORTED, "%s: field '%s.%s' is other than %g", fm_gguf_what(g),
                       a->prefix, gguf_eps_key(a), a->fixed_eps);
    return FM_OK;
}

fm_status gguf_config(fm_json **out, const gguf_dims *d, const fm_gguf *g)
{
    fm_json *o = fm_json_new_object();
    double theta = 10000, eps = -1;
    fm_status rc = o ? check_fields(d, g) : FM_ENOMEM;

    *out = NULL;
    FM_THEN(rc, real_or(d, g, "rope.freq_base", &theta));
    FM_THEN(rc, real_or(d, g, gguf_eps_key(d->arch), &eps));
    if (rc == FM_OK && !(eps >= 0 && theta > 0))
        rc = fm_fail(FM_ECORRUPT,
                     "%s: field '%s.%s' is missing, or it or '%s.rope.freq_base' is out of range",
                     fm_gguf_what(g), d->arch->prefix, gguf_eps_key(d->arch), d->arch->prefix);
    FM_THEN(rc, set_identity(o, d));
    FM_THEN(rc, set_window(o, d, g));
    FM_THEN(rc, set_sizes(o, d));
    FM_THEN(rc, set_eps(o, d, g, eps));
    FM_THEN(rc, set_rope(o, d, g, theta));
    FM_THEN(rc, set_token_ids(o, g));
    FM_THEN(rc, set_flags(o, d, g));
    if (rc < 0) {
        fm_json_free(o);
        return rc;
    }
    *out = o;
    return FM_OK;
}
