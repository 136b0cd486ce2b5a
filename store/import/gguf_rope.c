/* gguf_rope.c - rope_scaling of a config from GGUF metadata and tables. */
#include "store/import/gguf_canon.h"

#include <math.h>
#include <string.h>

#include "store/base/math/detmath.h"

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
    FM_THEN(rc, gguf_set_int(o, "original_max_position_embeddings", (uint64_t)original));
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

static fm_status set_yarn(fm_json *o, const gguf_dims *d, const fm_gguf *g)
{
    for (const gguf_setting *s = gguf_yarn; s->key; s++)
        FM_TRY(gguf_set_setting(o, d, g, s));
    if (fm_json_get(o, "mscale_all_dim")) /* llama.cpp divides 1's by it */
        return fm_json_set(o, "mscale", fm_json_new_real(1));
    return FM_OK;
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
    FM_THEN(rc, fm_json_set(o, "factor", fm_json_new_real(gguf_shortest(factor))));
    if (rc == FM_OK && has_original)
        rc = gguf_set_int(o, "original_max_position_embeddings", original);
    if (rc == FM_OK && strcmp(type, "yarn") == 0)
        rc = set_yarn(o, d, g);
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
        rc = isfinite(v) ? fm_json_push(*out, fm_json_new_real(gguf_shortest((double)v)))
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
        rc = gguf_set_int(config, "original_max_position_embeddings", original);
    if (rc == FM_OK && gguf_find(d->parts, GGUF_FACTORS_SHORT, NULL)) {
        rc = factors_json(&lengths[0], d, GGUF_FACTORS_SHORT);
        FM_THEN(rc, factors_json(&lengths[1], d, GGUF_FACTORS_LONG));
        FM_THEN(rc, fm_json_set(o, "rope_type", fm_json_new_str("longrope")));
        FM_THEN(rc, fm_json_set(o, "short_factor", fm_json_ref(lengths[0])));
        FM_THEN(rc, fm_json_set(o, "long_factor", fm_json_ref(lengths[1])));
        if (rc == FM_OK && has_attention)
            rc = fm_json_set(o, "attention_factor", fm_json_new_real(gguf_shortest(attention)));
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
