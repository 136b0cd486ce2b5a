/* compressed.c - integer weights of compressed-tensors: in words of int32 (pack-quantized) or as
 * int8 (int-quantized), with a scale for the tensor, each row, or each group of a row. */
#include "store/quant/codes.h"
#include "store/quant/plain.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

enum { WEIGHT_PART, SCALE, ZERO, /* FMS_INDEX */ SHAPE = 4 };

#define PACKED ".weight_packed"
#define WEIGHT ".weight"
#define WORD 32u

/* ==== the config ==== */

static fm_status weights_of(fms_quant *out, const fm_json *w, const char *what)
{
    static const char *const known[] = {"num_bits",   "type",        "symmetric",       "strategy",
                                        "group_size", "dynamic",     "actorder",        "observer",
                                        "zp_dtype",   "scale_dtype", "observer_kwargs", NULL};
    static const char *const off[] = {"block_structure", NULL};
    const char *strategy = fm_json_cstr(fm_json_get(w, "strategy"), "");
    const char *type = fm_json_cstr(fm_json_get(w, "type"), "int");
    const int64_t bits = fm_json_int(fm_json_get(w, "num_bits"), 8);
    const int64_t group = fm_json_int(fm_json_get(w, "group_size"), 0);
    const bool grouped = strcmp(strategy, "group") == 0;
    FM_TRY(fms_quant_keys(w, known, off, what));
    if (strcmp(type, "int") != 0)
        return fms_quant_refuse(what, "config_groups with weights of type", type);
    if (bits != 4 && bits != 8)
        return fms_quant_refuse(what, "config_groups with", "num_bits other than 4 and 8");
    if (!grouped && strcmp(strategy, "channel") != 0 && strcmp(strategy, "tensor") != 0)
        return fms_quant_refuse(what, "strategy", strategy);
    if (grouped && (group < 1 || group > UINT32_MAX))
        return fm_fail(FM_EINVAL, "%s: config field 'quantization_config': group_size is %lld",
                       what, (long long)group);
    out->bits = (uint32_t)bits;
    out->group = grouped ? (uint64_t)group : 0;
    out->asymmetric = !fm_json_bool(fm_json_get(w, "symmetric"), true);
    return FM_OK;
}

fm_status fms_quant_ct(fms_quant *out, const fm_json *q, const char *what)
{
    static const char *const known[] = {"quant_method",
                                        "format",
                                        "config_groups",
                                        "ignore",
                                        "quantization_status",
                                        "kv_cache_scheme",
                                        "version",
                                        "run_compressed",
                                        "sparsity_config",
                                        "global_compression_ratio",
                                        NULL};
    static const char *const off[] = {"transform_config", NULL};
    static const char *const in_group[] = {
        "weights", "input_activations", "output_activations", "targets", "format", NULL};
    static const char *const nothing[] = {NULL};
    const fm_json *groups = fm_json_get(q, "config_groups");
    const char *format = fm_json_cstr(fm_json_get(q, "format"), "");
    const char *sparse = fm_json_cstr(fm_json_path(q, "sparsity_config.format"), "dense");
    bool first = true;
    out->form = &fms_quant_form_ct;
    FM_TRY(fms_quant_keys(q, known, off, what));
    if (strcmp(format, "pack-quantized") != 0 && strcmp(format, "int-quantized") != 0 &&
        strcmp(format, "naive-quantized") != 0)
        return fms_quant_refuse(what, "format", format);
    if (strcmp(sparse, "dense") != 0)
        return fms_quant_refuse(what, "sparsity_config.format", sparse);
    for (void *it = fm_json_iter(groups); it; it = fm_json_next(groups, it), first = false) {
        const fm_json *g = fm_json_iter_value(it);
        const fms_quant was = *out;
        FM_TRY(fms_quant_keys(g, in_group, nothing, what));
        FM_TRY(weights_of(out, fm_json_get(g, "weights"), what));
        if (!first &&
            (was.bits != out->bits || was.group != out->group || was.asymmetric != out->asymmetric))
            return fms_quant_refuse(what, "config_groups", "whose weights differ in form");
    }
    return first ? fms_quant_refuse(what, "config_groups", "that are empty") : FM_OK;
}

/* ==== finding ==== */

static fm_status fill(fms_grid *g, const fm_provider *p);

static fm_status role(fms_role *out, const fms_scan *s, const fm_entry *e)
{
    static const char *const tails[] = {".weight_scale", ".weight_zero_point", ".weight_shape",
                                        ".weight_g_idx", NULL};
    static const char *const heads[] = {PACKED, WEIGHT, NULL};
    bool part = false;
    *out = FMS_OTHER;
    FM_TRY(fms_is_part(&part, s, e, tails, heads));
    if (part || fms_of_activations(e->name))
        *out = FMS_PART;
    else if (fm_ends_with(e->name, PACKED) || (e->dtype == FM_I8 && fm_ends_with(e->name, WEIGHT)))
        *out = FMS_HEAD;
    return FM_OK;
}

/* Reads [n, k] of packed codes, which may fill their last word only in part. */
static fm_status packed_sizes(fms_made *m, const fms_scan *s, const fm_entry *e)
{
    const uint32_t per = WORD / m->bits;
    uint8_t *raw = NULL;
    FM_TRY(fms_beside(&m->part[SHAPE], s, e, PACKED, ".weight_shape"));
    const fm_entry *shape = m->part[SHAPE];
    if (!shape || (shape->dtype != FM_I64 && shape->dtype != FM_I32) || shape->shape.rank != 1 ||
        shape->shape.dim[0] != 2)
        return fm_fail(FM_EBASE, "tensor '%s' has no '.weight_shape' of two integers beside it",
                       e->name);
    FM_TRY(fms_part_bytes(&raw, s->p, shape));
    const bool wide = shape->dtype == FM_I64;
    m->n = wide ? fm_get_u64(raw) : fm_get_u32(raw);
    m->k = wide ? fm_get_u64(raw + 8) : fm_get_u32(raw + 4);
    fm_free(raw);
    if (e->dtype != FM_I32 || e->shape.rank != 2 || m->n == 0 || m->k == 0 || m->k > INT32_MAX ||
        e->shape.dim[0] != m->n || e->shape.dim[1] != fms_parts(m->k, per)) {
        char have[96];
        fm_shape_text(&e->shape, have, sizeof(have));
        return fm_fail(FM_EBASE, "tensor '%s' is %s %s; '%s' says [%llu, %llu]", e->name,
                       fm_dtype_get(e->dtype)->name, have, shape->name, (unsigned long long)m->n,
                       (unsigned long long)m->k);
    }
    return FM_OK;
}

/* One number, or [n, groups]. */
static fm_status check_scale(fms_made *m)
{
    const fm_entry *e = m->part[SCALE];
    uint64_t elems = 0;
    FM_TRY(e ? fm_shape_elems(&elems, &e->shape) : FM_OK);
    return fms_expect_floats(m, e, ".weight_scale",
                             e && elems == 1 && m->groups == 1 ? e->shape
                                                               : (fm_shape){2, {m->n, m->groups}});
}

static fm_status check_zero(const fms_made *m)
{
    const fm_entry *e = m->part[ZERO];
    if (e && e->dtype == FM_I32)
        return fms_expect(m, e, "", FM_I32,
                          (fm_shape){2, {fms_parts(m->n, WORD / m->bits), m->groups}});
    return fms_expect(m, e, ".weight_zero_point", FM_I8, m->part[SCALE]->shape);
}

static fm_status take(fms_made *m, const fms_scan *s, const fm_entry *e)
{
    m->words = fm_ends_with(e->name, PACKED);
    const char *own = m->words ? PACKED : WEIGHT;
    (void)snprintf(m->name, sizeof(m->name), "%.*s" WEIGHT, (int)(strlen(e->name) - strlen(own)),
                   e->name);
    m->bits = m->words ? s->q->bits : 8; /* as they lie */
    if (m->words)
        FM_TRY(packed_sizes(m, s, e));
    else if (e->shape.rank != 2 || e->bytes == 0 || e->shape.dim[1] > INT32_MAX)
        return fm_fail(FM_EBASE, "tensor '%s' is I8 and no matrix", e->name);
    m->shape = (fm_shape){2, {m->n, m->k}};
    if (!m->words) {
        m->shape = e->shape;
        m->n = e->shape.dim[0];
        m->k = e->shape.dim[1];
    }
    m->group = s->q->group ? s->q->group : m->k;
    m->groups = fms_parts(m->k, m->group);
    FM_TRY(fms_beside(&m->part[SCALE], s, e, own, ".weight_scale"));
    FM_TRY(fms_beside(&m->part[FMS_INDEX], s, e, own, ".weight_g_idx"));
    FM_TRY(check_scale(m));
    if (s->q->asymmetric) {
        FM_TRY(fms_beside(&m->part[ZERO], s, e, own, ".weight_zero_point"));
        FM_TRY(check_zero(m));
    }
    if (m->part[FMS_INDEX])
        FM_TRY(fms_expect(m, m->part[FMS_INDEX], "", FM_I32, (fm_shape){1, {m->k}}));
    if (m->part[SCALE]->dtype != FM_F32)
        m->rounded = m->part[SCALE]->dtype;
    return fms_grid_layout(m, s, fill);
}

/* ==== making ==== */

static void word_codes(uint8_t *out, const fms_grid *g, uint64_t row)
{
    const fms_made *m = g->m;
    const uint32_t per = WORD / m->bits, mask = (1u << m->bits) - 1;
    const uint8_t *word = g->raw + row * fms_parts(m->k, per) * 4;
    for (uint64_t c = 0; c < m->k; c++)
        out[c] = (uint8_t)(fm_get_u32(word + c / per * 4) >> (c % per * m->bits) & mask);
}

static void byte_codes(uint8_t *out, const fms_grid *g, uint64_t row)
{
    for (uint64_t c = 0; c < g->m->k; c++)
        out[c] = g->raw[row * g->m->k + c] ^ 0x80u; /* + 128 */
}

static fm_status scales_of(fms_grid *g, const fm_provider *p)
{
    const fms_made *m = g->m;
    float *x = NULL;
    FM_TRY(fms_part_floats(&x, p, m->part[SCALE]));
    if (m->part[SCALE]->shape.rank == 2 && m->part[SCALE]->shape.dim[0] == m->n) {
        g->scale = x;
        return FM_OK;
    }
    g->scale = fm_malloc((size_t)m->n * sizeof(float));
    for (uint64_t r = 0; g->scale && r < m->n; r++)
        g->scale[r] = x[0];
    fm_free(x);
    return g->scale ? FM_OK : FM_ENOMEM;
}

/* Packed zeros lie along n, shifted by as much as the codes; others are int8. */
static uint8_t zero_at(const fms_made *m, const uint8_t *raw, uint64_t row, uint64_t group)
{
    const fm_entry *e = m->part[ZERO];
    const uint32_t per = WORD / m->bits, mask = (1u << m->bits) - 1;
    if (e->dtype == FM_I32) {
        const uint32_t word = fm_get_u32(raw + (row / per * m->groups + group) * 4);
        return (uint8_t)(word >> (row % per * m->bits) & mask);
    }
    return (uint8_t)(raw[e->bytes == 1 ? 0 : row * m->groups + group] + (1u << (m->bits - 1)));
}

static fm_status zeros_of(fms_grid *g, const fm_provider *p)
{
    const fms_made *m = g->m;
    uint8_t *raw = NULL;
    g->zero_all = (uint8_t)(1u << (m->bits - 1));
    if (!m->part[ZERO])
        return FM_OK;
    FM_TRY(fms_part_bytes(&raw, p, m->part[ZERO]));
    g->zero = fm_malloc((size_t)(m->n * m->groups));
    for (uint64_t i = 0; g->zero && i < m->n * m->groups; i++)
        g->zero[i] = zero_at(m, raw, i / m->groups, i % m->groups);
    fm_free(raw);
    return g->zero ? FM_OK : FM_ENOMEM;
}

static fm_status fill(fms_grid *g, const fm_provider *p)
{
    FM_TRY(scales_of(g, p));
    return zeros_of(g, p);
}

static fm_status make(uint8_t *dst, const fms_made *m, const fm_provider *p, uint64_t first,
                      uint64_t rows, unsigned flags)
{
    fms_grid g = {.m = m, .codes = m->words ? word_codes : byte_codes};
    fm_status rc = fms_part_bytes(&g.raw, p, m->part[WEIGHT_PART]);
    (void)flags; /* whole tensors are read, which checks them */
    FM_THEN(rc, fill(&g, p));
    FM_THEN(rc, fms_grid_rows(dst, &g, p, first, rows));
    fms_grid_release(&g);
    return rc;
}

const fms_quant_form fms_quant_form_ct = {"compressed-tensors", role, take, NULL, make};
