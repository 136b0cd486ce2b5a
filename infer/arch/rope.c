/* rope.c - rotary positions: reads the settings in every spelling and computes the tables.
 *
 * Kinds (names as in transformers' modeling_rope_utils): default, linear (Kaiokendev), llama3, yarn
 * (Peng et al. 2023), dynamic (NTK) and longrope (Ding et al. 2024). The last two change the
 * frequencies with the length of the text. longrope has two sets: the long factors turn every
 * position of a text that is longer than max_positions, the short ones those of all others, and a
 * text that grows past that length is computed anew (fm_model_for_length). dynamic changes with
 * each token, and in Hugging Face keys that are cached keep the frequencies of their own step: a
 * row's bits would depend on how the text came. So such a text ends where they begin to change. */
#include "infer/arch/table.h"

#include <math.h>
#include <string.h>

#include "store/base/cancel.h"
#include "store/base/math/detmath.h"

#define PI 3.14159265358979323846
#define TWO_PI 6.283185307179586476925286766559

static bool in(const char *const *list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], key) == 0)
            return true;
    return false;
}

static fm_status check_fields(const fm_json *r, const fmi_family *f, const char *what)
{
    static const char *const scaled[] = {"llama_4_scaling_beta", "max_position_embeddings"};
    static const char *const mixed[] = {"short_mscale", "long_mscale"};
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "factor",
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        "original_max_position_embeddings",
                                        "partial_rotary_factor",
                                        "attention_factor",
                                        "beta_fast",
                                        "beta_slow",
                                        "mscale",
                                        "mscale_all_dim",
                                        "truncate",
                                        "short_factor",
                                        "long_factor"};
    if (!fm_json_is(r, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "%s: the config's rope settings must be an object", what);
    for (void *it = fm_json_iter(r); it; it = fm_json_next(r, it))
        if (!fmi_absent(fm_json_iter_value(it)) &&
            !in(known, FM_ARRAY_LEN(known), fm_json_iter_key(it)) &&
            !((f->has & F_QUERY_SCALE) && in(scaled, 2, fm_json_iter_key(it))) &&
            !((f->has & F_PHIMOE) && in(mixed, 2, fm_json_iter_key(it))) &&
            !((f->has & F_NTK_ALPHA) && strcmp(fm_json_iter_key(it), "alpha") == 0) &&
            !((f->has & (F_MROPE | F_DELTA)) && strncmp(fm_json_iter_key(it), "mrope_", 6) == 0))
            return fm_fail(FM_EUNSUPPORTED, "%s: rope setting '%s' is not understood", what,
                           fm_json_iter_key(it));
    return FM_OK;
}

/* ==== kinds ==== */

static fm_status rope_llama3(fm_rope *o, const fm_json *r, const char *what)
{
    fm_status rc;
    static const char *const need[] = {"factor", "low_freq_factor", "high_freq_factor",
                                       "original_max_position_embeddings"};
    for (size_t i = 0; i < FM_ARRAY_LEN(need); i++)
        if (fmi_absent(fm_json_get(r, need[i])))
            return fm_fail(FM_EINVAL, "%s: rope type llama3 lacks '%s'", what, need[i]);
    if ((rc = fmi_take_positive(&o->factor, r, need[0], 1, what)) != FM_OK ||
        (rc = fmi_take_positive(&o->low, r, need[1], 1, what)) != FM_OK ||
        (rc = fmi_take_positive(&o->high, r, need[2], 1, what)) != FM_OK ||
        (rc = fmi_take_u32(&o->original, r, need[3], -1, 1, 1 << 28, what)) != FM_OK)
        return rc;
    if (!(o->high > o->low))
        return fm_fail(FM_EINVAL, "%s: rope high_freq_factor must be above low_freq_factor", what);
    o->kind = FM_ROPE_LLAMA3;
    return FM_OK;
}

/* The dimension that turns `turns` times over the original length. */
static double correction_dim(double turns, double dim, double base, double original)
{
    return dim * fm_log(original / (turns * 2.0 * PI)) / (2.0 * fm_log(base));
}

static double yarn_mscale(double scale, double m)
{
    return scale <= 1.0 ? 1.0 : 0.1 * m * fm_log(scale) + 1.0;
}

static fm_status yarn_attention(fm_rope *o, const fm_json *r, const char *what)
{
    double m = 0, all = 0;
    fm_status rc;
    if (!fmi_absent(fm_json_get(r, "attention_factor")))
        return fmi_take_positive(&o->attention, r, "attention_factor", 1, what);
    bool both = fm_json_real(fm_json_get(r, "mscale"), 0) != 0 &&
                fm_json_real(fm_json_get(r, "mscale_all_dim"), 0) != 0;
    if (!both) {
        o->attention = yarn_mscale(o->factor, 1.0);
        return FM_OK;
    }
    if ((rc = fmi_take_positive(&m, r, "mscale", 1, what)) != FM_OK ||
        (rc = fmi_take_positive(&all, r, "mscale_all_dim", 1, what)) != FM_OK)
        return rc;
    o->attention = yarn_mscale(o->factor, m) / yarn_mscale(o->factor, all);
    return FM_OK;
}

static fm_status rope_yarn(fm_rope *o, fm_arch *a, const fm_json *r, const char *what)
{
    double fast = 32, slow = 1, dim = a->sw.rotary_dim;
    bool truncate = true;
    fm_status rc;
    if ((rc = fmi_take_u32(&o->original, r, "original_max_position_embeddings", a->max_positions, 1,
                           1 << 28, what)) != FM_OK ||
        (rc = fmi_take_positive(&o->factor, r, "factor",
                                (double)a->max_positions / (double)o->original, what)) != FM_OK ||
        (rc = fmi_take_positive(&fast, r, "beta_fast", 32, what)) != FM_OK ||
        (rc = fmi_take_positive(&slow, r, "beta_slow", 1, what)) != FM_OK ||
        (rc = fmi_take_bool(&truncate, r, "truncate", true, what)) != FM_OK ||
        (rc = yarn_attention(o, r, what)) != FM_OK)
        return rc;
    if (!(o->theta > 1.0) || !(o->factor >= 1.0 && o->factor <= 65536.0) || fast < slow)
        return fm_fail(FM_EINVAL,
                       "%s: rope type yarn wants rope_theta > 1, factor from 1 to 65536 and "
                       "beta_fast >= beta_slow",
                       what);
    double low = correction_dim(fast, dim, o->theta, (double)o->original);
    double high = correction_dim(slow, dim, o->theta, (double)o->original);
    if (truncate) {
        low = floor(low);
        high = ceil(high);
    }
    o->low = FM_MAX(low, 0.0);
    o->high = FM_MIN(high, dim - 1.0);
    if (o->low == o->high)
        o->high += 0.001; /* as Hugging Face, against a division by zero */
    double reach = FM_MIN((double)o->original * o->factor, (double)(1 << 28));
    a->max_positions = FM_MAX(a->max_positions, (uint32_t)reach); /* yarn extends the length */
    o->kind = FM_ROPE_YARN;
    return FM_OK;
}

static fm_status take_factors(fm_rope *o, const fm_json *r, const char *key, uint32_t half,
                              const char *what)
{
    const fm_json *list = fm_json_get(r, key);
    if (!fm_json_is(list, FM_JSON_ARRAY) || fm_json_count(list) != half)
        return fm_fail(FM_EINVAL, "%s: rope %s must list %u numbers", what, key, half);
    for (uint32_t i = 0; i < half; i++) {
        double x = fm_json_real(fm_json_at(list, i), 0);
        if (!(x > 0 && x <= 1e12))
            return fm_fail(FM_EINVAL, "%s: rope %s[%u] must be a positive number", what, key, i);
        o->divisor[i] = (float)x;
    }
    return FM_OK;
}

/* PhiMoE's class turns long texts by the short factors, which nobody trained with: its texts end
 * at the original length. */
static fm_status lengthened(fm_arch *a, const fm_rope *o, const fm_json *r, const char *what)
{
    if (a->max_positions <= o->original || !fmi_absent(fm_json_get(r, "short_mscale")) ||
        fmi_absent(fm_json_get(r, "long_factor")))
        return FM_OK;
    a->rope_long = *o;
    a->long_positions = a->max_positions;
    return take_factors(&a->rope_long, r, "long_factor", a->sw.rotary_dim / 2, what);
}

static fm_status rope_long(fm_rope *o, fm_arch *a, const fm_json *c, const fm_json *r,
                           const char *what)
{
    const fm_json *beside = fm_json_get(c, "original_max_position_embeddings");
    fm_status rc;
    rc = fmi_take_u32(&o->original, fmi_absent(beside) ? r : c, "original_max_position_embeddings",
                      a->max_positions, 1, 1 << 28, what);
    if (rc != FM_OK)
        return rc;
    FM_TRY(take_factors(o, r, "short_factor", a->sw.rotary_dim / 2, what));
    double factor = (double)a->max_positions / (double)o->original;
    if ((rc = fmi_take_positive(&factor, r, "factor", factor, what)) != FM_OK)
        return rc;
    o->attention = factor <= 1.0 || o->original < 2
                       ? 1.0
                       : sqrt(1.0 + fm_log(factor) / fm_log((double)o->original));
    if (!fmi_absent(fm_json_get(r, "attention_factor")))
        rc = fmi_take_positive(&o->attention, r, "attention_factor", 1, what);
    if (rc == FM_OK && !fmi_absent(fm_json_get(r, "short_mscale"))) /* PhiMoE's */
        rc = fmi_take_positive(&o->attention, r, "short_mscale", 1, what);
    o->kind = FM_ROPE_LONG;
    FM_THEN(rc, lengthened(a, o, r, what));
    a->max_positions = FM_MIN(a->max_positions, o->original);
    return rc;
}

void fm_arch_lengthen(fm_arch *a)
{
    fm_assert(a->long_positions > 0);
    a->rope[0] = a->rope[1] = a->rope_long;
    a->max_positions = a->long_positions;
    a->long_positions = 0;
}

/* Proportional: the frequencies are those of whole heads, of which only the first part turns. */
static fm_status rope_part(fm_rope *o, const fm_arch *a, const fm_json *r, const char *what)
{
    double part = 1, dim = fm_arch_turns(a, o == &a->rope[0] ? 0 : 1);
    o->factor = 1.0;
    FM_TRY(fmi_take_positive(&o->factor, r, "factor", 1, what));
    FM_TRY(fmi_take_positive(&part, r, "partial_rotary_factor", 1, what));
    if (part > 1.0)
        return fm_fail(FM_EINVAL, "%s: partial_rotary_factor is above 1", what);
    o->low = floor(part * dim / 2.0);
    o->kind = FM_ROPE_PART;
    return FM_OK;
}

static fm_status rope_linear(fm_rope *o, const fm_json *r, const char *what)
{
    if (fmi_absent(fm_json_get(r, "factor")))
        return fm_fail(FM_EINVAL, "%s: rope type linear lacks 'factor'", what);
    o->kind = FM_ROPE_LINEAR;
    return fmi_take_positive(&o->factor, r, "factor", 1, what);
}

/* Dynamic is the default kind up to the length of training; see the head of this file. */
static fm_status rope_dynamic(fm_rope *o, fm_arch *a, const fmi_family *f, const fm_json *r,
                              const char *what)
{
    uint32_t original = 0;
    double alpha = fm_json_real(fm_json_get(r, "alpha"), 0), dim = a->head_dim;
    if ((f->has & F_NTK_ALPHA) && alpha != 0) { /* a fixed change, whatever the length */
        FM_TRY(fmi_take_positive(&alpha, r, "alpha", 1, what));
        o->theta *= fm_pow(alpha, dim / FM_MAX(dim - 2.0, 1.0));
        return FM_OK;
    }
    fm_status rc = fmi_take_u32(&original, r, "original_max_position_embeddings", a->max_positions,
                                1, 1 << 28, what);
    a->max_positions = FM_MIN(a->max_positions, original);
    return rc;
}

/* ==== settings ==== */

static fm_status rope_fields(fm_rope *o, fm_arch *a, const fmi_family *f, const fm_json *c,
                             const fm_json *r, const char *what)
{
    FM_TRY(check_fields(r, f, what));
    FM_TRY(fmi_take_positive(&o->theta, r, "rope_theta", o->theta, what));
    const char *type = fm_json_cstr(fm_json_get(r, "rope_type"), NULL);
    if (!type)
        type = fm_json_cstr(fm_json_get(r, "type"), "default");
    bool old_phi =
        (f->has & F_ORIGINAL_KEY) && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0);
    if (strcmp(type, "default") == 0 ||
        ((f->has & (F_MROPE | F_DELTA)) && strcmp(type, "mrope") == 0))
        return FM_OK;
    if ((f->more & M_GEMMA4) && strcmp(type, "proportional") == 0)
        return rope_part(o, a, r, what);
    if (f->more & M_GEMMA4)
        return fm_fail(
            FM_EUNSUPPORTED,
            "%s: rope type '%.40s' is not supported for %s; default and proportional are", what,
            type, f->name);
    if (strcmp(type, "linear") == 0)
        return rope_linear(o, r, what);
    if (strcmp(type, "llama3") == 0)
        return rope_llama3(o, r, what);
    if (strcmp(type, "dynamic") == 0)
        return rope_dynamic(o, a, f, r, what);
    if (strcmp(type, "longrope") == 0 || old_phi)
        return rope_long(o, a, c, r, what);
    if (strcmp(type, "yarn") == 0)
        return rope_yarn(o, a, r, what);
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: rope type '%.40s' is not supported; default, linear, dynamic, yarn, "
                   "longrope and llama3 are",
                   what, type);
}

/* Ministral 3: queries grow with the logarithm of position / original length. */
static fm_status query_scale(fm_arch *a, const fm_json *r, const char *what)
{
    double beta = 0;
    if (fm_json_real(fm_json_get(r, "llama_4_scaling_beta"), 0) == 0)
        return fm_fail(FM_EUNSUPPORTED, "%s: rope settings without llama_4_scaling_beta", what);
    FM_TRY(fmi_take_positive(&beta, r, "llama_4_scaling_beta", 0, what));
    a->sw.grow.by = (float)beta;
    return fmi_take_u32(&a->sw.grow.every, r, "original_max_position_embeddings", -1, 1, 1 << 28,
                        what);
}

/* Sets how many leading elements of a head turn. */
static fm_status rotary_dim(fm_arch *a, const fmi_family *f, const fm_json *c, const fm_json *r,
                            const char *what)
{
    static const char *const keys[] = {"rotary_pct", "partial_rotary_factor"};
    double part = f->partial > 0 ? f->partial : 1.0;

    for (size_t i = 0; i < FM_ARRAY_LEN(keys); i++)
        FM_TRY(fmi_take_positive(&part, c, keys[i], part, what));
    if (fm_json_is(r, FM_JSON_OBJECT))
        FM_TRY(fmi_take_positive(&part, r, keys[1], part, what));
    if (part > 1.0)
        return fm_fail(FM_EINVAL, "%s: partial_rotary_factor is above 1", what);
    if ((f->more & M_GEMMA4) && (part != 1.0 || !fmi_absent(fm_json_get(c, "rope_scaling"))))
        return fm_fail(FM_EUNSUPPORTED, "%s: rotary settings outside of rope_parameters", what);
    a->sw.rotary_dim = (uint32_t)((double)a->head_dim * part);
    if ((f->has & F_LATENT) && part != 1.0)
        return fm_fail(FM_EUNSUPPORTED, "%s: partial_rotary_factor %g beside qk_rope_head_dim",
                       what, part);
    if (f->has & F_LATENT)
        a->sw.rotary_dim = a->head_dim - a->sw.nope;
    if ((f->has & F_ROTARY_DIM) || !fmi_absent(fm_json_get(c, "rotary_dim")))
        FM_TRY(fmi_take_u32(&a->sw.rotary_dim, c, "rotary_dim", 64, 2, a->head_dim, what));
    if (a->sw.rotary_dim < 2 || a->sw.rotary_dim % 2 != 0)
        return fm_fail(FM_EINVAL,
                       "%s: %u elements of a head_dim of %u turn, rotary positions need pairs",
                       what, a->sw.rotary_dim, a->head_dim);
    return FM_OK;
}

/* Gemma 3: reads the settings of full layers and of sliding ones. */
static fm_status by_type(fm_arch *a, const fmi_family *f, const fm_json *c, const fm_json *r,
                         const char *what)
{
    const fm_json *full = fm_json_get(r, "full_attention");
    const fm_json *slide = fm_json_get(r, "sliding_attention");
    bool modern = f->has & F_MODERNBERT;
    const char *local = modern ? "local_rope_theta" : "rope_local_base_freq";
    fm_status rc = FM_OK;
    a->rope[1] = (fm_rope){.theta = f->local_theta, .attention = 1.0};
    FM_THEN(rc, fmi_take_positive(&a->rope[1].theta, c, local, f->local_theta, what));
    if (fmi_absent(r) || rc != FM_OK)
        return rc;
    if (modern && fmi_absent(full) && fmi_absent(slide))
        return fm_fail(FM_EUNSUPPORTED, "%s: rope settings that are not by layer type", what);
    if (fmi_absent(full) && fmi_absent(slide) && !(f->more & M_GEMMA4))
        return rope_fields(&a->rope[0], a, f, c, r, what);
    for (void *it = fm_json_iter(r); it; it = fm_json_next(r, it))
        if (strcmp(fm_json_iter_key(it), "full_attention") != 0 &&
            strcmp(fm_json_iter_key(it), "sliding_attention") != 0)
            return fm_fail(FM_EUNSUPPORTED, "%s: rope setting '%s' is not understood", what,
                           fm_json_iter_key(it));
    if ((f->more & M_GEMMA4) && (fmi_absent(fm_json_get(full, "rope_theta")) ||
                                 fmi_absent(fm_json_get(slide, "rope_theta"))))
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: rope_parameters without a rope_theta of full and of sliding layers are "
                       "not supported",
                       what);
    if (!fmi_absent(full))
        rc = rope_fields(&a->rope[0], a, f, c, full, what);
    if (rc == FM_OK && !fmi_absent(slide))
        rc = rope_fields(&a->rope[1], a, f, c, slide, what);
    return rc;
}

static fm_status read_settings(fm_arch *a, const fmi_family *f, const fm_json *c, const fm_json *r,
                               const char *what)
{
    if (fmi_absent(r) && (f->has & F_ROPE_NEEDED))
        return fm_fail(FM_EUNSUPPORTED, "%s: a %s without rotary settings is not supported", what,
                       f->name);
    const char *theta =
        fmi_absent(fm_json_get(c, "rotary_emb_base")) ? "rope_theta" : "rotary_emb_base";
    if (f->has & F_MODERNBERT)
        theta = "global_rope_theta";
    fm_status rc = fmi_take_positive(&a->rope[0].theta, c, theta, a->rope[0].theta, what);
    FM_THEN(rc, rotary_dim(a, f, c, r, what));
    if (rc == FM_OK && (f->has & F_ROPE_BY_TYPE))
        return by_type(a, f, c, r, what);
    if (rc == FM_OK && !fmi_absent(r))
        rc = rope_fields(&a->rope[0], a, f, c, r, what);
    if (rc == FM_OK && (f->has & F_QUERY_SCALE))
        rc = query_scale(a, r, what);
    a->rope[0].back = f->has & F_TURNS_BACK;
    if (rc == FM_OK && (f->has & F_LATENT))
        rc = fmi_latent_scale(a, r, what);
    a->rope[1] = a->rope[0];
    return rc;
}

fm_status fmi_read_rope(fm_arch *a, const fmi_family *f, const fm_json *c, const char *what)
{
    fm_json *usual = NULL;
    a->rope[0] = (fm_rope){.theta = f->theta > 0 ? f->theta : 10000.0, .attention = 1.0};
    if (f->sw.no_rope) {
        a->sw.rotary_dim = a->head_dim;
        a->rope[1] = a->rope[0];
        return FM_OK;
    }
    const fm_json *r = fm_json_get(c, "rope_parameters");
    if (fmi_absent(r))
        r = fm_json_get(c, "rope_scaling");
    if (fmi_absent(r) && f->rope) {
        FM_TRY(fm_json_parse(&usual, fm_span_str(f->rope), "the family's rope settings"));
        r = usual;
    }
    fm_status rc = read_settings(a, f, c, r, what);
    fm_json_free(usual);
    return rc;
}

/* ==== tables ==== */

void fm_arch_growth(const fm_growth *g, uint32_t positions, float *factor, float *zero)
{
    for (uint32_t p = 0; p < positions; p++) {
        float n = (float)p + (g->next ? 1.0f : 0.0f);
        float whole = (float)floor((double)(n / (float)g->every));
        factor[p] = 1.0f + g->by * (float)fm_log1p((double)whole);
        zero[p] = 0.0f;
    }
}

static float llama3_freq(const fm_rope *r, float inv)
{
    float factor = (float)r->factor, low = (float)r->low, high = (float)r->high;
    float old_len = (float)r->original;
    float wavelen = (float)TWO_PI / inv;
    if (wavelen > (float)(r->original / r->low))
        return inv / factor;
    if (wavelen < (float)(r->original / r->high))
        return inv;
    float smooth = (old_len / wavelen - low) / (high - low);
    return (1.0f - smooth) * inv / factor + smooth * inv;
}

static float yarn_freq(const fm_rope *r, float pos_freq, uint32_t i)
{
    float ramp = ((float)i - (float)r->low) / (float)(r->high - r->low);
    ramp = ramp < 0.0f ? 0.0f : ramp > 1.0f ? 1.0f : ramp;
    float keep = 1.0f - ramp;
    float inter = 1.0f / ((float)r->factor * pos_freq), extra = 1.0f / pos_freq;
    return inter * (1.0f - keep) + extra * keep;
}

/* One inverse frequency. Hugging Face computes each operation on float32 tensors; the roundings
 * between them are kept, only pow is taken in double and rounded once. */
static float inv_freq(const fm_rope *r, uint32_t dim, uint32_t i)
{
    float exponent = (float)(2 * i) / (float)dim;
    float pos_freq = (float)fm_pow(r->theta, (double)exponent);
    float inv = 1.0f / pos_freq;
    switch (r->kind) {
    case FM_ROPE_LINEAR:
        return inv / (float)r->factor;
    case FM_ROPE_LLAMA3:
        return llama3_freq(r, inv);
    case FM_ROPE_YARN:
        return yarn_freq(r, pos_freq, i);
    case FM_ROPE_LONG:
        return 1.0f / (r->divisor[i] * pos_freq);
    case FM_ROPE_PART:
        return (double)i < r->low ? inv / (float)r->factor : 0.0f;
    case FM_ROPE_DEFAULT:
        break;
    }
    return inv;
}

fm_status fm_arch_rope(const fm_arch *a, uint32_t which, uint32_t positions, float *cos, float *sin)
{
    const fm_rope *r = &a->rope[which];
    uint32_t dim = fm_arch_turns(a, which), half = dim / 2;
    float scale = (float)r->attention;
    if (positions > a->max_positions)
        return fm_fail(FM_ELIMIT, "rope: %u positions asked for, the model has %u", positions,
                       a->max_positions);
    for (uint32_t i = 0; i < half; i++) {
        float f = inv_freq(r, dim, i);
        size_t next = 0;
        for (uint32_t p = 0; p < positions; p++) {
            FM_TRY(fm_go_on_at(p, &next));
            float angle = (float)p * f;
            double s = 0, c = 0;
            fm_sincos(&s, &c, (double)angle);
            cos[(size_t)p * half + i] = (float)c * scale;
            sin[(size_t)p * half + i] = r->back ? -((float)s * scale) : (float)s * scale;
        }
    }
    return FM_OK;
}
