/* plain.c - LoRA, DoRA, IA3, embedding factors, biases and rows of tokens as changes of a weight,
 * and the starts of a LoRA that take a part out of it. Formulas as in PEFT 0.21 (peft/tuners: lora,
 * ia3, trainable_tokens). */
#include <math.h>
#include <string.h>

#include "store/adapt/adapt_impl.h"
#include "store/base/mem.h"

/* ==== LoRA, DoRA ==== */

enum { LORA_A, LORA_B, MAGNITUDE, MAGNITUDE_OLD, LORA_BIAS };

fm_status adt_fit_lora(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    fm_lora_spec spec;
    FM_TRY(fm_lora_spec_of(&spec, c, s->module));
    FM_TRY(adt_need(s, LORA_A, 2, spec.r, in));
    FM_TRY(adt_need(s, LORA_B, 2, out, spec.r));
    if (!s->part[MAGNITUDE])
        s->part[MAGNITUDE] = s->part[MAGNITUDE_OLD];
    s->part[MAGNITUDE_OLD] = NULL;
    s->num[0] = (double)spec.scale;
    return s->part[MAGNITUDE] ? adt_need(s, MAGNITUDE, 1, out, 0) : FM_OK;
}

fm_status adt_lora(adt_work *w)
{
    const uint64_t r = adt_dim(w->step, LORA_A, 0);

    fm_lora_merge(w->w, w->part[LORA_A], w->part[LORA_B], w->out, w->in, r, (float)w->step->num[0]);
    for (uint64_t o = 0; w->part[MAGNITUDE] && o < w->out; o++) {
        float *row = w->w + o * w->in;
        double sum = 0.0;
        for (uint64_t k = 0; k < w->in; k++)
            sum += (double)row[k] * (double)row[k];
        const float by = w->part[MAGNITUDE][o] / (float)sqrt(sum);
        for (uint64_t k = 0; k < w->in; k++)
            row[k] *= by;
    }
    return FM_OK;
}

/* ==== factors of an embedding [vocabulary, hidden] ==== */

fm_status adt_fit_embedding(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    fm_lora_spec spec;
    FM_TRY(fm_lora_spec_of(&spec, c, s->module));
    FM_TRY(adt_need(s, 0, 2, spec.r, out));
    s->num[0] = (double)spec.scale;
    return adt_need(s, 1, 2, in, spec.r);
}

fm_status adt_embedding(adt_work *w)
{
    const uint64_t r = adt_dim(w->step, 0, 0);
    const float scale = (float)w->step->num[0];

    for (uint64_t o = 0; o < w->out; o++)
        for (uint64_t k = 0; k < w->in; k++) {
            float sum = 0;
            for (uint64_t l = 0; l < r; l++)
                sum += w->part[1][k * r + l] * w->part[0][l * w->out + o];
            w->w[o * w->in + k] += scale * sum;
        }
    return FM_OK;
}

/* ==== IA3 ==== */

/* [1, in] scales inputs, [out, 1] outputs. */
fm_status adt_fit_ia3(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    (void)c;
    s->num[0] = adt_dim(s, 0, 0) == 1 && adt_dim(s, 0, 1) == in;
    return s->num[0] != 0.0 ? FM_OK : adt_need(s, 0, 2, out, 1);
}

fm_status adt_ia3(adt_work *w)
{
    for (uint64_t o = 0; o < w->out; o++)
        for (uint64_t k = 0; k < w->in; k++)
            w->w[o * w->in + k] *= w->part[0][w->step->num[0] != 0.0 ? k : o];
    return FM_OK;
}

/* ==== biases: [out] as [out, 1] ==== */

static fm_status fit_bias(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    uint64_t n = 0;

    (void)c, (void)in;
    FM_TRY(fm_shape_elems(&n, &s->part[0]->shape));
    return n == out ? FM_OK : adt_need(s, 0, 1, out, 0);
}

static fm_status fit_bias_add(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    fm_lora_spec spec;
    FM_TRY(fm_lora_spec_of(&spec, c, s->module));
    s->num[0] = (double)spec.scale;
    return fit_bias(s, c, out, in);
}

static fm_status bias_scale(adt_work *w)
{
    for (uint64_t o = 0; o < w->out; o++)
        w->w[o] *= w->part[0][o];
    return FM_OK;
}

static fm_status bias_add(adt_work *w)
{
    for (uint64_t o = 0; o < w->out; o++)
        w->w[o] += (float)w->step->num[0] * w->part[0][o];
    return FM_OK;
}

const adt_op adt_op_bias_scale = {
    .name = "bias scale 1", .flags = ADT_MERGE, .fit = fit_bias, .apply = bias_scale};
const adt_op adt_op_bias_add = {
    .name = "bias add 1", .flags = ADT_MERGE, .fit = fit_bias_add, .apply = bias_add};

/* ==== rows of tokens ==== */

/* The config's list for a module: the kind's own, or a LoRA's, for the embedding or by names. */
static const fm_json *token_list(const adt_step *s, const fm_json *config)
{
    const fm_json *all = fm_json_get(config, "trainable_token_indices");
    const size_t n = strlen(s->module);

    if (!all)
        return fm_json_get(config, "token_indices");
    for (void *it = fm_json_iter(all); it; it = fm_json_next(all, it)) {
        const size_t k = strlen(fm_json_iter_key(it));
        if (k <= n && strcmp(s->module + n - k, fm_json_iter_key(it)) == 0 &&
            (k == n || s->module[n - k - 1] == '.'))
            return fm_json_iter_value(it);
    }
    return fm_json_is(all, FM_JSON_ARRAY) ? all : NULL;
}

fm_status adt_fit_tokens(adt_step *s, const fm_json *config, uint64_t out, uint64_t in)
{
    const fm_json *list = token_list(s, config);
    const size_t n = fm_json_count(list);

    if (!fm_json_is(list, FM_JSON_ARRAY))
        return fm_fail(FM_EINVAL, "adapter_config.json: no list of tokens for '%s'", s->module);
    s->index = fm_malloc((n + 1) * sizeof *s->index);
    if (!s->index)
        return FM_ENOMEM;
    s->index_count = n;
    for (size_t i = 0; i < n; i++) {
        s->index[i] = fm_json_int(fm_json_at(list, i), -1);
        if (s->index[i] < 0 || (uint64_t)s->index[i] >= out)
            return fm_fail(FM_EBASE, "adapter_config.json: token %lld of '%s' is not one of %llu",
                           (long long)s->index[i], s->module, (unsigned long long)out);
    }
    return adt_need(s, 0, 2, n, in);
}

fm_status adt_tokens(adt_work *w)
{
    for (size_t i = 0; i < w->step->index_count; i++)
        memcpy(w->w + (uint64_t)w->step->index[i] * w->in, w->part[0] + i * w->in,
               (size_t)w->in * sizeof *w->w);
    return FM_OK;
}

/* ==== a parameter that is replaced ==== */

static fm_status fit_whole(adt_step *s, const fm_json *c, uint64_t out, uint64_t in)
{
    (void)s, (void)c, (void)out, (void)in;
    return FM_OK; /* its shape is compared with the base's by what uses it */
}

const adt_op adt_op_whole = {.name = "whole 1", .flags = ADT_WHOLE, .fit = fit_whole};

/* ==== starts: W - scale B0 A0, of a decomposition of W ==== */

fm_status adt_fit_start(adt_step *s, const fm_json *config, uint64_t out, uint64_t in)
{
    fm_lora_spec spec;
    FM_TRY(fm_lora_spec_of(&spec, config, s->module));
    if (spec.r > FM_MIN(out, in))
        return fm_fail(FM_EBASE, "'%s': a start of rank %u out of [%llu, %llu]", s->module, spec.r,
                       (unsigned long long)out, (unsigned long long)in);
    if (s->turned && s->op == &adt_op_olora)
        return fm_fail(FM_EUNSUPPORTED, "'%s': olora with fan_in_fan_out is not computed here",
                       s->module);
    s->num[0] = (double)spec.r;
    s->num[1] = (double)spec.scale;
    return FM_OK;
}

static double dot(const double *a, const double *b, uint64_t n)
{
    double sum = 0.0;
    for (uint64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Makes x [n] orthogonal to `count` unit vectors, twice for rounding, and of length 1; returns its
 * length before. */
static double against(double *x, const double *unit, uint64_t count, uint64_t n)
{
    for (int twice = 0; twice < 2; twice++)
        for (uint64_t j = 0; j < count; j++) {
            const double by = dot(unit + j * n, x, n);
            for (uint64_t i = 0; i < n; i++)
                x[i] -= by * unit[j * n + i];
        }
    const double norm = sqrt(dot(x, x, n));
    for (uint64_t i = 0; i < n; i++)
        x[i] = norm > 0.0 ? x[i] / norm : 0.0;
    return norm;
}

/* OLoRA: of W = Q R the first r columns of Q and rows of R; Q^T W gives these rows. */
fm_status adt_olora(adt_work *w)
{
    const uint64_t r = (uint64_t)w->step->num[0];
    double *q = fm_malloc((size_t)(r * w->out) * sizeof *q);
    double *rows = fm_calloc((size_t)(r * w->in), sizeof *rows);
    const bool there = q && rows;

    for (uint64_t l = 0; there && l < r; l++) {
        for (uint64_t o = 0; o < w->out; o++)
            q[l * w->out + o] = (double)w->w[o * w->in + l];
        (void)against(q + l * w->out, q, l, w->out);
    }
    for (uint64_t l = 0; there && l < r; l++)
        for (uint64_t o = 0; o < w->out; o++)
            for (uint64_t k = 0; k < w->in; k++)
                rows[l * w->in + k] += q[l * w->out + o] * (double)w->w[o * w->in + k];
    for (uint64_t o = 0; there && o < w->out; o++)
        for (uint64_t l = 0; l < r; l++)
            for (uint64_t k = 0; k < w->in; k++)
                w->w[o * w->in + k] -=
                    (float)(w->step->num[1] * q[l * w->out + o] * rows[l * w->in + k]);
    fm_free(q);
    fm_free(rows);
    return there ? FM_OK : FM_ENOMEM;
}

const adt_op adt_op_olora = {.name = "olora 1",
                             .flags = ADT_RUN | ADT_MERGE | ADT_ROUND,
                             .fit = adt_fit_start,
                             .apply = adt_olora};
