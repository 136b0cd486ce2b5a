/* fixed.c - see fixed.h. Slopes are computed as transformers' classes do, in float32 where they
 * do. */
#include "infer/model/fixed.h"

#include <stdio.h>
#include <string.h>

#include "store/base/math/detmath.h"
#include "store/base/mem.h"

uint32_t fmi_near_ld(const fm_arch *a)
{
    if (a->sw.alibi == FM_ALIBI_NONE && !a->sw.buckets)
        return 0;
    return a->sw.encoder ? 2 * a->max_positions - 1 : a->max_positions;
}

uint32_t fmi_near_zero(const fm_arch *a)
{
    return a->max_positions - 1;
}

/* ==== ALiBi (Press et al. 2022) ==== */

static uint32_t power_below(uint32_t n)
{
    uint32_t p = 1;
    while (2 * p <= n)
        p *= 2;
    return p;
}

/* BLOOM: 2^(-8 (h + 1) / p) for the first p heads, p a power of 2; the others take every second of
 * the slopes that 2 p heads would have. */
static float bloom_slope(uint32_t h, uint32_t heads)
{
    uint32_t p = power_below(heads), n = h < p ? p : 2 * p, k = h < p ? h + 1 : 2 * (h - p) + 1;
    float base = (float)fm_pow(2.0, -8.0 / (double)n);
    return (float)fm_pow((double)base, (double)k);
}

/* MPT: the slopes of a power of 2, every second one first. */
static float mpt_slope(uint32_t h, uint32_t heads)
{
    uint32_t below = power_below(heads), p = below == heads ? heads : 2 * below;
    uint32_t k = p == heads ? h + 1 : 2 * h + 2 <= p ? 2 * h + 2 : 2 * (h - p / 2) + 1;
    return 1.0f / (float)fm_pow(2.0, (double)((float)k * (float)(8.0 / (double)p)));
}

static void fill_alibi(float *out, const fm_arch *a)
{
    uint32_t ld = fmi_near_ld(a);
    for (uint32_t h = 0; h < a->heads; h++) {
        float slope =
            a->sw.alibi == FM_ALIBI_BLOOM ? bloom_slope(h, a->heads) : mpt_slope(h, a->heads);
        for (uint32_t i = 0; i < ld; i++)
            out[(size_t)h * ld + i] = ((float)i - (float)(ld - 1)) * slope;
    }
}

/* ==== buckets of relative positions (MPNet, as T5) ==== */

/* In an encoder half of the buckets are for keys behind the query. Of each half (a decoder's
 * whole), half hold one distance, the others grow with its logarithm. */
static uint32_t bucket_of(int64_t distance, const fm_switches *sw)
{
    uint32_t half = sw->encoder ? sw->buckets / 2 : sw->buckets, exact = half / 2, far;
    uint32_t n = (uint32_t)(distance < 0 ? -distance : distance), behind = distance > 0 ? half : 0;
    if (n < exact)
        return behind + n;
    float log_of = (float)fm_log((double)((float)n / (float)exact));
    float share = log_of / (float)fm_log((double)sw->bucket_far / (double)exact);
    far = exact + (uint32_t)(share * (float)(half - exact));
    return behind + FM_MIN(far, half - 1);
}

static fm_status fill_buckets(float *out, const fm_arch *a, const fm_tree *tree,
                              const fm_provider *p, const char *what)
{
    float *by = NULL;
    fm_param at;
    uint32_t i = 0, ld = fmi_near_ld(a), zero = fmi_near_zero(a), n = a->sw.buckets;
    while (fm_arch_param(a, i, &at) && at.place != FM_P_BUCKETS)
        i++;
    FM_TRY(fmi_fixed_floats(&by, (uint64_t)n * a->heads, at.name, tree, p, what));
    for (uint32_t h = 0; h < a->heads; h++)
        for (uint32_t k = 0; k < ld; k++)
            out[(size_t)h * ld + k] =
                by[(size_t)bucket_of((int64_t)k - (int64_t)zero, &a->sw) * a->heads + h];
    fm_free(by);
    return FM_OK;
}

fm_status fmi_near_make(float **out, const fm_arch *a, const fm_tree *tree, const fm_provider *p,
                        const char *what)
{
    size_t n = (size_t)a->heads * fmi_near_ld(a);
    fm_status rc = FM_OK;
    *out = NULL;
    if (n == 0)
        return FM_OK;
    *out = fm_calloc(n, sizeof(float));
    if (!*out)
        return FM_ENOMEM;
    if (a->sw.alibi != FM_ALIBI_NONE)
        fill_alibi(*out, a);
    else
        rc = fill_buckets(*out, a, tree, p, what);
    if (rc != FM_OK) {
        fm_free(*out);
        *out = NULL;
    }
    return rc;
}

/* ==== xIELU ==== */

/* Reads one number of a layer's activation; *out stays where the file has none. */
static fm_status take_number(float *out, const char *param, const char *own, bool needed,
                             const fm_tree *tree, const fm_provider *p, const char *what)
{
    char name[FM_MAX_NAME_BYTES];
    const char *dot = strrchr(param, '.');
    float *x = NULL;
    fm_buf path;
    (void)snprintf(name, sizeof(name), "%.*s.%s", (int)(dot - param), param, own);
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = fm_tensor_path(&path, "tensors", name);
    bool there = rc == FM_OK && fm_tree_find(tree, fm_buf_cstr(&path));
    fm_buf_release(&path);
    if (rc != FM_OK || (!there && !needed))
        return rc;
    FM_TRY(fmi_fixed_floats(&x, 1, name, tree, p, what));
    *out = x[0];
    fm_free(x);
    return FM_OK;
}

static float softplus(float x)
{
    double e = fm_exp(-(double)(x < 0 ? -x : x)); /* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|) */
    return (float)((x > 0 ? (double)x : 0.0) + fm_log1p(e));
}

fm_status fmi_xielu_make(float out[4], const fm_arch *a, uint32_t layer, const fm_tree *tree,
                         const fm_provider *p, const char *what)
{
    fm_param at;
    uint32_t i = 0;
    while (fm_arch_param(a, i, &at) && (at.place != FM_P_ACT_P || at.layer != (int32_t)layer))
        i++;
    out[2] = 0.5f;
    out[3] = -1e-6f;
    FM_TRY(take_number(&out[0], at.name, "alpha_p", true, tree, p, what));
    FM_TRY(take_number(&out[1], at.name, "alpha_n", true, tree, p, what));
    FM_TRY(take_number(&out[2], at.name, "beta", false, tree, p, what));
    FM_TRY(take_number(&out[3], at.name, "eps", false, tree, p, what));
    out[0] = softplus(out[0]);
    out[1] = out[2] + softplus(out[1]);
    return FM_OK;
}

fm_status fmi_fixed_floats(float **out, uint64_t n, const char *name, const fm_tree *tree,
                           const fm_provider *p, const char *what)
{
    fm_buf path;
    uint64_t have = 0;
    *out = NULL;
    fm_buf_init(&path, FM_MAX_PATH_BYTES);
    fm_status rc = fm_tensor_path(&path, "tensors", name);
    const fm_entry *e = rc == FM_OK ? fm_tree_find(tree, fm_buf_cstr(&path)) : NULL;
    fm_buf_release(&path);
    if (rc == FM_OK && (!e || e->kind != FM_ENTRY_TENSOR))
        rc = fm_fail(FM_ENOTFOUND, "%s: tensor '%s' is missing", what, name);
    FM_THEN(rc, fm_shape_elems(&have, &e->shape));
    if (rc == FM_OK && have != n)
        rc = fm_fail(FM_EBASE, "%s: tensor '%s' has %llu elements, not %llu", what, name,
                     (unsigned long long)have, (unsigned long long)n);
    if (rc != FM_OK)
        return rc;
    void *raw = fm_aligned_alloc(64, (size_t)e->bytes);
    *out = fm_malloc((size_t)n * sizeof(float));
    rc = raw && *out ? p->read(p->ctx, e, raw) : FM_ENOMEM;
    FM_THEN(rc, fm_to_f32(*out, e->dtype, raw, n));
    fm_free(raw);
    if (rc == FM_OK)
        return rc;
    fm_free(*out);
    *out = NULL;
    return fm_error_prefix(rc, "%s: tensor '%s'", what, name);
}
