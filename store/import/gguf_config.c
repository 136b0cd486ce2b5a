/* gguf_config.c - config.json from GGUF metadata.
 *
 * A field below the architecture's prefix that is not known here may change what the model
 * computes, so it is refused by name and not dropped. */
#include "store/import/gguf_canon.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/math/detmath.h"

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
};

static bool is_setting(const gguf_arch *arch, const char *key)
{
    for (const gguf_setting *s = arch->settings; s && s->key; s++)
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
        known = known || is_setting(d->arch, key + n + 1) ||
                strcmp(key + n + 1, gguf_eps_key(d->arch)) == 0;
        if (!known)
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: field '%.100s' is not known and may change what "
                           "the model computes",
                           fm_gguf_what(g), key);
    }
    return FM_OK;
}

/* The shortest decimal that reads back as the same float32: 1e-05, not 9.99999974e-06. */
static double shortest(double v)
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
        *out = shortest(*out);
    return FM_OK;
}

static fm_status set_int(fm_json *o, const char *key, uint64_t v)
{
    return fm_json_set(o, key, fm_json_new_int((int64_t)v));
}

static fm_status set_sizes(fm_json *o, const gguf_dims *d)
{
    const struct {
        const char *key;
        uint64_t value;
    } field[] = {{"hidden_size", d->hidden},
                 {"intermediate_size", d->inter},
                 {"num_hidden_layers", d->layers},
                 {"num_attention_heads", d->heads},
                 {"num_key_value_heads", d->kv_heads},
                 {"head_dim", d->head_dim},
                 {"max_position_embeddings", d->context},
                 {"vocab_size", d->vocab}};

    for (size_t i = 0; i < FM_ARRAY_LEN(field); i++)
        FM_TRY(set_int(o, field[i].key, field[i].value));
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
            FM_TRY(set_int(o, pair[i][1], id));
    }
    return FM_OK;
}

/* Sets the model's type and class; a llama file with a sliding window is a Mistral. */
static fm_status set_identity(fm_json *o, const gguf_dims *d, const fm_gguf *g)
{
    const char *type = d->arch->model_type, *class_name = d->arch->class_name;
    char key[128];
    uint64_t window = 0;
    bool found = false, mistral = strcmp(type, "llama") == 0;
    fm_json *list = fm_json_new_array();
    fm_status rc =
        fm_gguf_u64(g, gguf_key(d->arch, "attention.sliding_window", key), &window, &found);

    if (rc == FM_OK && !list)
        rc = FM_ENOMEM;
    if (rc == FM_OK && window > 0 && !mistral && !(d->arch->has & GGUF_WINDOW))
        rc = fm_fail(FM_EUNSUPPORTED, "%s: field '%s' is not supported", fm_gguf_what(g), key);
    if (window > 0 && mistral) {
        type = "mistral";
        class_name = "MistralForCausalLM";
    }
    FM_THEN(rc, fm_json_push(list, fm_json_new_str(class_name)));
    FM_THEN(rc, fm_json_set(o, "architectures", fm_json_ref(list)));
    FM_THEN(rc, fm_json_set(o, "model_type", fm_json_new_str(type)));
    if (rc == FM_OK && window > 0)
        rc = set_int(o, "sliding_window", window);
    else if (rc == FM_OK && (d->arch->has & GGUF_WINDOW))
        rc = fm_json_set(o, "sliding_window", fm_json_new_null());
    fm_json_free(list);
    return rc;
}

/* Whether layer 0 has the parameter. */
static fm_json *has_param(const gguf_dims *d, const char *name)
{
    return fm_json_new_bool(gguf_find(d->parts, name, NULL) != NULL);
}

static fm_status set_setting(fm_json *o, const gguf_dims *d, const fm_gguf *g,
                             const gguf_setting *s)
{
    char key[128];
    uint64_t u = 0;
    double r = 0;
    bool b = false, found = false;

    gguf_key(d->arch, s->key, key);
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
                       : s->kind == GGUF_REAL ? fm_json_new_real(shortest(r))
                                              : fm_json_new_bool(b));
}

/* What no file says: hidden_act, then the switches of biases, then the rest of `fixed`. */
static fm_status set_fixed(fm_json *o, const gguf_dims *d)
{
    const gguf_arch *a = d->arch;
    fm_json *fixed = NULL;
    fm_status rc = fm_json_parse(&fixed, fm_span_str(a->fixed), a->prefix);

    for (void *it = rc == FM_OK ? fm_json_iter(fixed) : NULL; rc == FM_OK && it;
         it = fm_json_next(fixed, it)) {
        const bool first = strcmp(fm_json_iter_key(it), "hidden_act") == 0;
        rc = fm_json_set(o, fm_json_iter_key(it), fm_json_ref(fm_json_iter_value(it)));
        if (rc == FM_OK && first && a->bias)
            rc = fm_json_set(o, a->bias, has_param(d, "blk.0.attn_q.bias"));
        if (rc == FM_OK && first && a->mlp_bias)
            rc = fm_json_set(o, a->mlp_bias, has_param(d, "blk.0.ffn_up.bias"));
    }
    fm_json_free(fixed);
    return rc;
}

static fm_status set_flags(fm_json *o, const gguf_dims *d, const fm_gguf *g)
{
    const gguf_arch *a = d->arch;

    FM_TRY(set_fixed(o, d));
    for (const gguf_setting *s = a->settings; s && s->key; s++)
        FM_TRY(set_setting(o, d, g, s));
    if (a->has & GGUF_GEMMA)
        FM_TRY(set_int(o, "query_pre_attn_scalar",
                       gguf_gemma_scalar(a, d->layers, d->hidden / d->heads, d->head_dim)));
    if (d->rotary != d->head_dim)
        FM_TRY(fm_json_set(o, "partial_rotary_factor",
                           fm_json_new_real((double)d->rotary / (double)d->head_dim)));
    FM_TRY(fm_json_set(o, "tie_word_embeddings", fm_json_new_bool(d->tied)));
    return fm_json_set(o, "dtype", fm_json_new_str("float32"));
}

fm_status gguf_config(fm_json **out, const gguf_dims *d, const fm_gguf *g)
{
    fm_json *o = fm_json_new_object();
    double theta = d->arch->theta > 0 ? d->arch->theta : 10000, eps = -1;
    fm_status rc = o ? check_fields(d, g) : FM_ENOMEM;

    *out = NULL;
    FM_THEN(rc, real_or(d, g, "rope.freq_base", &theta));
    FM_THEN(rc, real_or(d, g, gguf_eps_key(d->arch), &eps));
    if (rc == FM_OK && !(eps >= 0 && theta > 0))
        rc = fm_fail(FM_ECORRUPT,
                     "%s: field '%s.%s' is missing, or it or '%s.rope.freq_base' is out of range",
                     fm_gguf_what(g), d->arch->prefix, gguf_eps_key(d->arch), d->arch->prefix);
    FM_THEN(rc, set_identity(o, d, g));
    FM_THEN(rc, set_sizes(o, d));
    FM_THEN(rc,
            fm_json_set(o, d->arch->eps ? d->arch->eps : "rms_norm_eps", fm_json_new_real(eps)));
    FM_THEN(rc, fm_json_set(o, "rope_theta", fm_json_new_real(theta)));
    FM_THEN(rc, gguf_rope_scaling(o, d, g, theta));
    FM_THEN(rc, set_token_ids(o, g));
    FM_THEN(rc, set_flags(o, d, g));
    if (rc < 0) {
        fm_json_free(o);
        return rc;
    }
    *out = o;
    return FM_OK;
}

/* ---- rope scaling ---- */

static double llama3_factor(double wavelen, double factor, double original)
{
    const double low = 1.0, high = 4.0;
    double smooth;

    if (wavelen < original / high)
        return 1.0;
    if (wavelen > original / low)
        return factor;
    smooth = (original / wavelen - low) / (high - low);
    return 1.0 / ((1.0 - smooth) / factor + smooth);
}

/* GGUF has Llama 3's scaling as a table of divisors, without its parameters. The models in use have
 * low 1 and high 4; the factor is the table's largest value. These are used only if they give the
 * whole table back. */
static bool fits_llama3(const float *table, const gguf_dims *d, double theta, double factor,
                        double original)
{
    const double pi = 3.14159265358979323846;

    for (uint64_t i = 0; i < d->head_dim / 2; i++) {
        double wavelen = 2 * pi * fm_pow(theta, (double)(2 * i) / (double)d->head_dim);
        double want = llama3_factor(wavelen, factor, original);
        if (!(fabs((double)table[i] - want) <= 1e-4 * want))
            return false;
    }
    return true;
}

static fm_status set_llama3(fm_json *config, double factor, double original)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;

    FM_THEN(rc, fm_json_set(o, "rope_type", fm_json_new_str("llama3")));
    FM_THEN(rc, fm_json_set(o, "factor", fm_json_new_real(factor)));
    FM_THEN(rc, fm_json_set(o, "low_freq_factor", fm_json_new_real(1)));
    FM_THEN(rc, fm_json_set(o, "high_freq_factor", fm_json_new_real(4)));
    FM_THEN(rc, set_int(o, "original_max_position_embeddings", (uint64_t)original));
    FM_THEN(rc, fm_json_set(config, "rope_scaling", fm_json_ref(o)));
    fm_json_free(o);
    return rc;
}

static fm_status from_rope_freqs(fm_json *config, const gguf_dims *d, const fm_gguf *g,
                                 const fm_gguf_tensor *t, double theta)
{
    float *table = NULL;
    double factor = 0;
    uint64_t n = d->head_dim / 2;

    if (t->dtype != FM_F32 || t->shape.rank != 1 || t->shape.dim[0] != n)
        return fm_fail(FM_ECORRUPT, "%s: tensor 'rope_freqs.weight' must be %llu F32 values",
                       fm_gguf_what(g), (unsigned long long)n);
    table = fm_malloc((size_t)t->bytes);
    if (!table)
        return FM_ENOMEM;
    memcpy(table, fm_gguf_bytes(g, t).data, (size_t)t->bytes);
    for (uint64_t i = 0; i < n; i++)
        factor = (double)table[i] > factor ? (double)table[i] : factor;
    for (double original = 64; original <= 262144; original *= 2)
        if (fits_llama3(table, d, theta, factor, original)) {
            fm_free(table);
            return set_llama3(config, factor, original);
        }
    fm_free(table);
    return fm_fail(FM_EUNSUPPORTED, "%s: tensor 'rope_freqs.weight' is no Llama 3 scaling table",
                   fm_gguf_what(g));
}

static fm_status set_simple(fm_json *config, const gguf_dims *d, const fm_gguf *g, const char *type)
{
    char key[128];
    double factor = 0;
    uint64_t original = 0;
    bool found = false, has_original = false;
    fm_json *o = fm_json_new_object();
    fm_status rc =
        o ? fm_gguf_f64(g, gguf_key(d->arch, "rope.scaling.factor", key), &factor, &found)
          : FM_ENOMEM;

    if (rc == FM_OK && (!found || !(factor > 0)))
        rc = fm_fail(FM_ECORRUPT, "%s: field '%s' is missing or not above 0", fm_gguf_what(g), key);
    FM_THEN(rc, fm_gguf_u64(g, gguf_key(d->arch, "rope.scaling.original_context_length", key),
                            &original, &has_original));
    FM_THEN(rc, fm_json_set(o, "rope_type", fm_json_new_str(type)));
    FM_THEN(rc, fm_json_set(o, "factor", fm_json_new_real(shortest(factor))));
    if (rc == FM_OK && has_original)
        rc = set_int(o, "original_max_position_embeddings", original);
    FM_THEN(rc, fm_json_set(config, "rope_scaling", fm_json_ref(o)));
    fm_json_free(o);
    return rc;
}

static fm_status factors_json(fm_json **out, const gguf_dims *d, const char *name)
{
    const fm_gguf *g = NULL;
    const fm_gguf_tensor *t = gguf_find(d->parts, name, &g);
    fm_status rc;

    if (!t || t->dtype != FM_F32 || t->shape.rank != 1 || t->shape.dim[0] != d->rotary / 2)
        return fm_fail(FM_ECORRUPT, "%s: tensor '%s' must be %llu F32 values",
                       fm_gguf_what(d->parts->g[0]), name, (unsigned long long)(d->rotary / 2));
    *out = fm_json_new_array();
    rc = *out ? FM_OK : FM_ENOMEM;
    for (uint64_t i = 0; rc == FM_OK && i < d->rotary / 2; i++) {
        float v;
        memcpy(&v, fm_gguf_bytes(g, t).data + i * sizeof v, sizeof v);
        rc = isfinite(v) ? fm_json_push(*out, fm_json_new_real(shortest((double)v)))
                         : fm_fail(FM_ECORRUPT, "%s: tensor '%s' holds a value that is not finite",
                                   fm_gguf_what(g), name);
    }
    return rc;
}

/* longrope: the factors are tensors, and the length that it was trained with a field. */
static fm_status set_longrope(fm_json *config, const gguf_dims *d, const fm_gguf *g)
{
    char key[128];
    double attention = 0;
    uint64_t original = 0;
    bool found = false, has_attention = false;
    fm_json *o = fm_json_new_object(), *lengths[2] = {NULL, NULL};
    fm_status rc = o ? fm_gguf_f64(g, gguf_key(d->arch, "rope.scaling.attn_factor", key),
                                   &attention, &has_attention)
                     : FM_ENOMEM;

    FM_THEN(rc, fm_gguf_u64(g, gguf_key(d->arch, "rope.scaling.original_context_length", key),
                            &original, &found));
    if (rc == FM_OK && found)
        rc = set_int(config, "original_max_position_embeddings", original);
    if (rc == FM_OK && gguf_find(d->parts, GGUF_FACTORS_SHORT, NULL)) {
        rc = factors_json(&lengths[0], d, GGUF_FACTORS_SHORT);
        FM_THEN(rc, factors_json(&lengths[1], d, GGUF_FACTORS_LONG));
        FM_THEN(rc, fm_json_set(o, "rope_type", fm_json_new_str("longrope")));
        FM_THEN(rc, fm_json_set(o, "short_factor", fm_json_ref(lengths[0])));
        FM_THEN(rc, fm_json_set(o, "long_factor", fm_json_ref(lengths[1])));
        if (rc == FM_OK && has_attention)
            rc = fm_json_set(o, "attention_factor", fm_json_new_real(shortest(attention)));
        FM_THEN(rc, fm_json_set(config, "rope_scaling", fm_json_ref(o)));
    }
    fm_json_free(lengths[0]);
    fm_json_free(lengths[1]);
    fm_json_free(o);
    return rc;
}

fm_status gguf_rope_scaling(fm_json *config, const gguf_dims *d, const fm_gguf *g, double theta)
{
    const fm_gguf *in = NULL;
    const fm_gguf_tensor *freqs = gguf_find(d->parts, "rope_freqs.weight", &in);
    char key[128];
    fm_span type = {NULL, 0};
    bool found = false;
    if (d->arch->has & GGUF_LONGROPE)
        return set_longrope(config, d, g);
    if (fm_gguf_get(g, gguf_key(d->arch, "rope.scaling.attn_factor", key)))
        return fm_fail(FM_EUNSUPPORTED, "%s: field '%s' is not supported", fm_gguf_what(g), key);
    FM_TRY(fm_gguf_str(g, gguf_key(d->arch, "rope.scaling.type", key), &type, &found));
    if (!found || fm_span_eq_str(type, "none")) {
        if (fm_gguf_get(g, gguf_key(d->arch, "rope.scale_linear", key)))
            return fm_fail(FM_EUNSUPPORTED, "%s: field '%s' is not supported", fm_gguf_what(g),
                           key);
        return freqs ? from_rope_freqs(config, d, in, freqs, theta) : FM_OK;
    }
    if (freqs)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: field '%s' beside tensor 'rope_freqs.weight' is not "
                       "supported",
                       fm_gguf_what(g), key);
    if (fm_span_eq_str(type, "linear"))
        return set_simple(config, d, g, "linear");
    if (fm_span_eq_str(type, "yarn"))
        return set_simple(config, d, g, "yarn");
    return fm_fail(FM_EUNSUPPORTED, "%s: field '%s': '%.*s' is not supported", fm_gguf_what(g), key,
                   (int)FM_MIN(type.len, 40u), (const char *)type.data);
}
