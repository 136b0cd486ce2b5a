/* scaled.c - weights of 8-bit floats that are multiplied by scales (scaled.h, the first table). */
#include "store/quant/plain.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

/* Elements computed at a time. */
#define RUN 4096u
#define WEIGHT ".weight"

enum { WEIGHT_PART, SCALE_PART };

/* ==== the config ==== */

static fm_status block_of(fms_quant *s, const fm_json *block, const char *what)
{
    if (fm_json_typeof(block) == FM_JSON_NULL)
        return FM_OK;
    int64_t rows = fm_json_int(fm_json_at(block, 0), 0),
            cols = fm_json_int(fm_json_at(block, 1), 0);
    if (fm_json_count(block) != 2 || rows < 1 || cols < 1 || rows > UINT32_MAX || cols > UINT32_MAX)
        return fm_fail(FM_EINVAL,
                       "%s: config field 'quantization_config': a block's size must be two "
                       "positive integers",
                       what);
    s->rows = (uint32_t)rows;
    s->cols = (uint32_t)cols;
    return FM_OK;
}

/* Every group must have 8-bit floats, and all the same block size. */
static fm_status groups_of(fms_quant *s, const fm_json *q, const char *what)
{
    const fm_json *groups = fm_json_get(q, "config_groups");
    const char *format = fm_json_cstr(fm_json_get(q, "format"), "float-quantized");
    if (strcmp(format, "float-quantized") != 0 && strcmp(format, "naive-quantized") != 0)
        return fms_quant_refuse(what, "format", format);
    const fm_json *sparse = fm_json_get(fm_json_get(q, "sparsity_config"), "format");
    if (strcmp(fm_json_cstr(sparse, "dense"), "dense") != 0)
        return fms_quant_refuse(what, "sparsity_config.format", fm_json_cstr(sparse, ""));
    for (void *it = fm_json_iter(groups); it; it = fm_json_next(groups, it)) {
        const fm_json *w = fm_json_get(fm_json_iter_value(it), "weights");
        const char *strategy = fm_json_cstr(fm_json_get(w, "strategy"), "");
        bool block = strcmp(strategy, "block") == 0;
        fms_quant one = {0};
        if (strcmp(fm_json_cstr(fm_json_get(w, "type"), ""), "float") != 0 ||
            fm_json_int(fm_json_get(w, "num_bits"), 0) != 8)
            return fms_quant_refuse(what, "config_groups", "whose weights are no 8-bit floats");
        if (!block && strcmp(strategy, "tensor") != 0 && strcmp(strategy, "channel") != 0)
            return fms_quant_refuse(what, "strategy", strategy);
        FM_TRY(block ? block_of(&one, fm_json_get(w, "block_structure"), what) : FM_OK);
        if (s->rows && block && (one.rows != s->rows || one.cols != s->cols))
            FM_TRY(fms_quant_refuse(what, "config_groups", "with blocks of several sizes"));
        if (block) {
            s->rows = one.rows;
            s->cols = one.cols;
        }
    }
    return FM_OK;
}

fm_status fms_quant_f8(fms_quant *out, const fm_json *q, const char *method, const char *what)
{
    out->form = &fms_quant_form_f8;
    out->suffix = ".weight_scale";
    if (strcmp(method, "fp8") == 0) {
        const char *fmt = fm_json_cstr(fm_json_get(q, "fmt"), "e4m3");
        out->suffix = ".weight_scale_inv";
        return strcmp(fmt, "e4m3") == 0 ? block_of(out, fm_json_get(q, "weight_block_size"), what)
                                        : fms_quant_refuse(what, "fmt", fmt);
    }
    if (strcmp(method, "compressed-tensors") == 0)
        return groups_of(out, q, what);
    const char *algo = fm_json_cstr(fm_json_get(q, "quant_algo"), "(missing)");
    return strcmp(method, "modelopt") != 0 || strcmp(algo, "FP8") == 0
               ? FM_OK
               : fms_quant_refuse(what, "quant_algo", algo);
}

/* ==== finding ==== */

static bool is_f8(const fm_entry *e)
{
    return e->dtype == FM_F8_E4M3 || e->dtype == FM_F8_E5M2;
}

static fm_status f8_role(fms_role *out, const fms_scan *s, const fm_entry *e)
{
    *out = FMS_OTHER;
    if (is_f8(e) && e->shape.rank == 2 && fm_ends_with(e->name, WEIGHT))
        *out = FMS_HEAD;
    else if (fm_ends_with(e->name, s->q->suffix) || fms_of_activations(e->name))
        *out = FMS_PART;
    else if (is_f8(e)) /* without its scale its values would be wrong */
        return fm_fail(FM_EUNSUPPORTED,
                       "tensor '%s' is %s and no matrix 'X%s': where its scale is, is not known",
                       e->name, fm_dtype_get(e->dtype)->name, WEIGHT);
    return FM_OK;
}

static fm_status scale_beside(const fm_entry **out, const fms_scan *s, const fm_entry *w)
{
    FM_TRY(fms_beside(out, s, w, WEIGHT, s->q->suffix));
    return *out ? FM_OK
                : fm_fail(FM_EBASE, "tensor '%s' is %s and has no scale '%.*s%s' beside it",
                          w->name, fm_dtype_get(w->dtype)->name,
                          (int)(strlen(w->name) - strlen(WEIGHT)), w->name, s->q->suffix);
}

/* Sets rows and cols of a block by the scale's shape. */
static fm_status fit(fms_made *s, const fms_quant *c)
{
    const fm_entry *scale = s->part[SCALE_PART];
    const fm_shape *g = &scale->shape;
    uint64_t elems = 0;
    FM_TRY(fm_shape_elems(&elems, g));
    char text[96], weight[96];

    if (s->n == 0 || s->k == 0) {
        s->rows = s->cols = 1; /* nothing to multiply */
    } else if (elems == 1) {
        s->rows = s->n;
        s->cols = s->k;
    } else if (g->dim[0] == s->n && (g->rank == 1 || (g->rank == 2 && g->dim[1] == 1))) {
        s->rows = 1;
        s->cols = s->k;
    } else if (c->rows && g->rank == 2 && g->dim[0] == fms_parts(s->n, c->rows) &&
               g->dim[1] == fms_parts(s->k, c->cols)) {
        s->rows = c->rows;
        s->cols = c->cols;
    } else {
        fm_shape_text(g, text, sizeof(text));
        fm_shape_text(&s->shape, weight, sizeof(weight));
        return fm_fail(FM_EBASE, "scale '%s' has shape %s, which does not fit a weight of %s",
                       scale->name, text, weight);
    }
    return fm_dtype_get(scale->dtype)->is_float
               ? FM_OK
               : fm_fail(FM_EUNSUPPORTED, "scale '%s' is %s, not a float", scale->name,
                         fm_dtype_get(scale->dtype)->name);
}

static fm_status f8_id(fm_digest *out, const fms_made *s)
{
    char text[128];
    int n = snprintf(text, sizeof(text), "fmstore scaled weight 1\n%s %llu %llu\n",
                     fm_dtype_get(s->dtype)->name, (unsigned long long)s->rows,
                     (unsigned long long)s->cols);
    uint8_t all[sizeof(text) + 2 * sizeof(fm_digest)];
    memcpy(all, text, (size_t)n);
    memcpy(all + n, s->part[WEIGHT_PART]->id.b, sizeof(fm_digest));
    memcpy(all + n + sizeof(fm_digest), s->part[SCALE_PART]->id.b, sizeof(fm_digest));
    return fm_sha256(out, all, (size_t)n + 2 * sizeof(fm_digest));
}

static fm_status f8_take(fms_made *m, const fms_scan *s, const fm_entry *e)
{
    (void)snprintf(m->name, sizeof(m->name), "%s", e->name);
    m->shape = e->shape;
    m->n = e->shape.dim[0];
    m->k = e->shape.dim[1];
    m->dtype = m->rounded;
    FM_TRY(scale_beside(&m->part[SCALE_PART], s, e));
    return fit(m, s->q);
}

/* ==== making ==== */

/* Multiplies x, elements [first, first + n) of the weight in float32, by their scales. */
static void multiply(float *x, const fms_made *s, const float *scale, uint64_t first, uint64_t n)
{
    const uint64_t across = fms_parts(s->k, s->cols);
    for (uint64_t i = 0; i < n;) {
        uint64_t row = (first + i) / s->k, col = (first + i) % s->k;
        uint64_t end = (col / s->cols + 1) * s->cols;
        uint64_t run = (end < s->k ? end : s->k) - col;
        float by = scale[row / s->rows * across + col / s->cols];
        for (run = run < n - i ? run : n - i; run > 0; run--, i++)
            x[i] *= by;
    }
}

/* Writes elements [first, first + n), whose F8 bytes are `raw`, to dst. */
static fm_status make_some(uint8_t *dst, const fms_made *s, const float *scale, const uint8_t *raw,
                      uint64_t first, uint64_t n)
{
    const size_t size = fm_dtype_get(s->dtype)->block_bytes;
    float x[RUN];

    for (uint64_t i = 0; i < n; i += RUN) {
        uint64_t now = n - i < RUN ? n - i : RUN;
        FM_TRY(fm_to_f32(x, s->part[WEIGHT_PART]->dtype, raw + i, now));

        multiply(x, s, scale, first + i, now);
        FM_TRY(fm_from_f32(dst + i * size, s->dtype, x, now));
    }
    return FM_OK;
}

static fm_status f8_make(uint8_t *dst, const fms_made *s, const fm_provider *p, uint64_t row,
                         uint64_t rows, unsigned flags)
{
    const fm_entry *w = s->part[WEIGHT_PART];
    const uint64_t first = row * s->k, n = rows * s->k;
    float *scale = NULL;
    uint8_t *raw = fm_aligned_alloc(64, (size_t)n);
    fm_status rc = raw ? fms_part_floats(&scale, p, s->part[SCALE_PART]) : FM_ENOMEM;
    FM_THEN(rc, n == w->bytes ? p->read(p->ctx, w, raw)
                              : fm_entry_read_range(p, w, first, n, raw, flags));
    FM_THEN(rc, make_some(dst, s, scale, raw, first, n));
    fm_free(scale);
    fm_free(raw);
    return rc;
}

const fms_quant_form fms_quant_form_f8 = {"fp8", f8_role, f8_take, f8_id, f8_make};
