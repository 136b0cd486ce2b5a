/* bitnet.c - ternary weights of BitNet, as transformers' BitLinear and AutoBitLinear hold them.
 *
 * Packed: X.weight U8 [n/4, k], where bits 2 i and 2 i + 1 of row r are row r + i n/4 of the weight
 * plus 1, and X.weight_scale [1], which the ternary number is divided by (bitlinear) or multiplied
 * with (autobitlinear, offline). Online: X.weight [n, k] of floats, which become ternary by their
 * mean absolute value, with the rounding of transformers' WeightQuant. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/quant/codes.h"
#include "store/quant/plain.h"

enum { WEIGHT, SCALE };

#define HEAD ".weight"
#define TAIL ".weight_scale"
#define PER_BYTE 4u

/* ==== the config ==== */

/* Of the linear layers all but the head's are quantized: a list may name no other. */
static fm_status check_skipped(const fm_json *q, const char *what)
{
    const fm_json *list = fm_json_get(q, "modules_to_not_convert");
    if (!list || fm_json_is(list, FM_JSON_NULL))
        return FM_OK;
    if (!fm_json_is(list, FM_JSON_ARRAY) || fm_json_count(list) == 0)
        return fms_quant_refuse(what, "modules_to_not_convert", "without lm_head");
    for (size_t i = 0; i < fm_json_count(list); i++) {
        const char *name = fm_json_cstr(fm_json_at(list, i), "(no text)");
        if (strcmp(name, "lm_head") != 0)
            return fms_quant_refuse(what, "modules_to_not_convert", name);
    }
    return FM_OK;
}

fm_status fms_quant_bitnet(fms_quant *out, const fm_json *q, const char *what)
{
    static const char *const known[] = {"quant_method",      "linear_class",
                                        "quantization_mode", "modules_to_not_convert",
                                        "rms_norm_eps",      NULL};
    static const char *const off[] = {"use_rms_norm", NULL};
    const char *class = fm_json_cstr(fm_json_get(q, "linear_class"), "bitlinear");
    const char *mode = fm_json_cstr(fm_json_get(q, "quantization_mode"), "offline");
    FM_TRY(fms_quant_keys(q, known, off, what));
    FM_TRY(check_skipped(q, what));
    out->rounds = true;
    if (strcmp(class, FMS_QUANT_MADE) == 0) /* of such a view: the weights are there */
        return FM_OK;
    if (strcmp(class, "bitlinear") != 0 && strcmp(class, "autobitlinear") != 0)
        return fms_quant_refuse(what, "linear_class", class);
    if (strcmp(mode, "offline") != 0 && strcmp(mode, "online") != 0)
        return fms_quant_refuse(what, "quantization_mode", mode);
    out->form = &fms_quant_form_bitnet;
    out->bits = 2;
    if (strcmp(class, "bitlinear") == 0)
        out->ternary = FMS_TERNARY_DIVIDED;
    else
        out->ternary = strcmp(mode, "online") == 0 ? FMS_TERNARY_ONLINE : FMS_TERNARY_TIMES;
    return FM_OK;
}

/* ==== finding ==== */

/* Whether a name is of a layer: one of its parts is a number. */
static bool of_layer(const char *name)
{
    for (const char *p = strchr(name, '.'); p; p = strchr(p + 1, '.')) {
        size_t digits = strspn(p + 1, "0123456789");
        if (digits > 0 && p[1 + digits] == '.')
            return true;
    }
    return false;
}

static fm_status packed_beside(bool *out, const fms_scan *s, const fm_entry *e, const char *own)
{
    const fm_entry *w = NULL;
    *out = false;
    if (!fm_ends_with(e->name, own))
        return FM_OK;
    FM_TRY(fms_beside(&w, s, e, own, HEAD));
    *out = w && w->dtype == FM_U8;
    return FM_OK;
}

static fm_status packed_role(fms_role *out, const fms_scan *s, const fm_entry *e)
{
    bool scale = false, bias = false;
    const bool matrix = fm_ends_with(e->name, HEAD) && e->shape.rank == 2;
    FM_TRY(packed_beside(&scale, s, e, TAIL));
    FM_TRY(packed_beside(&bias, s, e, ".bias"));
    *out = matrix && e->dtype == FM_U8 ? FMS_HEAD : scale ? FMS_PART : FMS_OTHER;
    if (bias && s->q->ternary == FMS_TERNARY_TIMES) /* it would be multiplied too */
        return fm_fail(FM_EUNSUPPORTED,
                       "tensor '%s': biases of autobitlinear with quantization_mode offline are "
                       "not supported",
                       e->name);
    if (matrix && e->dtype != FM_U8 && of_layer(e->name))
        return fm_fail(FM_EUNSUPPORTED,
                       "tensor '%s' is %s; the config says that the weights of layers are packed "
                       "U8",
                       e->name, fm_dtype_get(e->dtype)->name);
    return FM_OK;
}

static fm_status role(fms_role *out, const fms_scan *s, const fm_entry *e)
{
    if (s->q->ternary != FMS_TERNARY_ONLINE)
        return packed_role(out, s, e);
    *out = fm_ends_with(e->name, HEAD) && e->shape.rank == 2 && of_layer(e->name) ? FMS_HEAD
                                                                                  : FMS_OTHER;
    return FM_OK;
}

static fm_status fill(fms_grid *g, const fm_provider *p);

static bool is_plain_float(fm_dtype d)
{
    return d == FM_F32 || d == FM_BF16 || d == FM_F16;
}

static fm_status take(fms_made *m, const fms_scan *s, const fm_entry *e)
{
    const bool online = s->q->ternary == FMS_TERNARY_ONLINE;
    m->ternary = s->q->ternary;
    m->bits = 2;
    m->kind = FMS_CODE_INT;
    (void)snprintf(m->name, sizeof(m->name), "%s", e->name);
    if (e->bytes == 0 || e->shape.dim[0] > INT32_MAX / 4 || e->shape.dim[1] > INT32_MAX ||
        (online ? !is_plain_float(e->dtype) : e->dtype != FM_U8))
        return fm_fail(FM_EBASE, "tensor '%s' is %s and no matrix of %s", e->name,
                       fm_dtype_get(e->dtype)->name, online ? "F16, BF16 or F32" : "U8");
    m->n = e->shape.dim[0] * (online ? 1 : PER_BYTE);
    m->k = e->shape.dim[1];
    m->shape = (fm_shape){2, {m->n, m->k}};
    m->groups = 1;
    m->group = m->k;
    m->rounded = e->dtype;
    if (!online) {
        FM_TRY(fms_beside(&m->part[SCALE], s, e, HEAD, TAIL));
        FM_TRY(fms_expect_floats(m, m->part[SCALE], TAIL, (fm_shape){1, {1}}));
        m->rounded = m->ternary == FMS_TERNARY_TIMES ? m->part[SCALE]->dtype : FM_F32;
    }
    return fms_grid_layout(m, s, fill);
}

/* ==== making ==== */

/* What floats are multiplied by before they are rounded to -1, 0, 1. */
static float online_scale(const float *w, uint64_t n)
{
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += fabs((double)w[i]);
    const float mean = (float)(sum / (double)n);
    return 1.0f / (mean < 1e-5f ? 1e-5f : mean);
}

static void packed(uint8_t *out, const fms_grid *g, uint64_t row)
{
    const uint64_t k = g->m->k, rows = g->m->n / PER_BYTE;
    const uint8_t *src = g->raw + row % rows * k;
    const unsigned shift = (unsigned)(2 * (row / rows));
    for (uint64_t c = 0; c < k; c++)
        out[c] = src[c] >> shift & 3u;
}

static void ternary(uint8_t *out, const fms_grid *g, uint64_t row)
{
    const uint64_t k = g->m->k;
    const float by = g->scale[g->m->n];
    for (uint64_t c = 0; c < k; c++) {
        float w;
        memcpy(&w, g->raw + 4 * (row * k + c), sizeof(w));
        const float t = rintf(w * by);
        out[c] = t >= 1.0f ? 2 : t <= -1.0f ? 0 : 1;
    }
}

/* The scale of every row is the same; behind them stands what online_scale says. */
static fm_status fill(fms_grid *g, const fm_provider *p)
{
    const fms_made *m = g->m;
    float *x = NULL, step, by = 0;
    g->zero_all = 1;
    FM_TRY(fms_part_floats(&x, p, m->part[m->ternary == FMS_TERNARY_ONLINE ? WEIGHT : SCALE]));
    if (m->ternary == FMS_TERNARY_ONLINE)
        by = online_scale(x, m->n * m->k);
    step = m->ternary == FMS_TERNARY_TIMES ? x[0] : 1.0f / (by != 0.0f ? by : x[0]);
    uint8_t small[4];
    fm_status rc = fm_from_f32(small, m->rounded, &step, 1);
    FM_THEN(rc, fm_to_f32(&step, m->rounded, small, 1));
    g->scale = fm_malloc((size_t)(m->n + 1) * sizeof(float));
    if (rc == FM_OK && !g->scale)
        rc = FM_ENOMEM;
    for (uint64_t i = 0; rc == FM_OK && i < m->n; i++)
        g->scale[i] = step;
    if (rc == FM_OK)
        g->scale[m->n] = by;
    if (m->ternary == FMS_TERNARY_ONLINE)
        g->raw = (uint8_t *)x;
    else
        fm_free(x);
    return rc;
}

static fm_status make(uint8_t *dst, const fms_made *m, const fm_provider *p, uint64_t first,
                      uint64_t rows, unsigned flags)
{
    const bool online = m->ternary == FMS_TERNARY_ONLINE;
    fms_grid g = {.m = m, .codes = online ? ternary : packed};
    fm_status rc = online ? FM_OK : fms_part_bytes(&g.raw, p, m->part[WEIGHT]);
    (void)flags; /* whole tensors are read, which checks them */
    FM_THEN(rc, fill(&g, p));
    FM_THEN(rc, fms_grid_rows(dst, &g, p, first, rows));
    fms_grid_release(&g);
    return rc;
}

/* The kind of scale is part of the identity. */
static fm_status id(fm_digest *out, const fms_made *m)
{
    char text[160];
    int n = snprintf(text, sizeof(text), "fmstore ternary weight 1\n%s %s %d\n",
                     fm_dtype_get(m->dtype)->name, fm_dtype_get(m->rounded)->name, (int)m->ternary);
    uint8_t all[sizeof(text) + 2 * sizeof(fm_digest)];
    fm_assert(n > 0 && (size_t)n < sizeof(text));
    size_t len = (size_t)n;
    memcpy(all, text, len);
    for (size_t i = 0; i <= SCALE; i++)
        if (m->part[i]) {
            memcpy(all + len, m->part[i]->id.b, sizeof(fm_digest));
            len += sizeof(fm_digest);
        }
    return fm_sha256(out, all, len);
}

const fms_quant_form fms_quant_form_bitnet = {"bitnet", role, take, id, make};
