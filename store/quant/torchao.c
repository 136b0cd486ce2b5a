/* torchao.c - integer weights of torchao, as its flattened tensor subclasses lie in safetensors:
 * Int4Tensor (two codes a byte, float zeros that are added), IntxUnpackedToInt8Tensor and
 * Int8Tensor (a code a byte, integer zeros). */
#include "store/quant/codes.h"
#include "store/quant/plain.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

enum { QDATA, SCALE, ZERO };

#define HEAD "._weight_qdata"

/* ==== the config ==== */

/* {"_type": .., "_data": WORD} -> WORD */
static const char *word_of(const fm_json *data, const char *key)
{
    return fm_json_cstr(fm_json_path(fm_json_get(data, key), "_data"), "");
}

fm_status fms_quant_torchao(fms_quant *out, const fm_json *q, const char *what)
{
    static const char *const known[] = {"quant_method",
                                        "quant_type",
                                        "modules_to_not_convert",
                                        "include_input_output_embeddings",
                                        "untie_embedding_weights",
                                        NULL};
    static const char *const off[] = {NULL};
    const fm_json *types = fm_json_get(q, "quant_type");
    const fm_json *type = fm_json_get(types, "default"), *data = fm_json_get(type, "_data");
    const char *name = fm_json_cstr(fm_json_get(type, "_type"), "(missing)");
    out->form = &fms_quant_form_torchao;
    out->bits = 8;
    FM_TRY(fms_quant_keys(q, known, off, what));
    if (fm_json_count(types) != 1)
        return fms_quant_refuse(what, "quant_type", "of several modules");
    if (strcmp(name, "Int4WeightOnlyConfig") == 0) {
        out->words = true;
        out->bits = 4;
        return strcmp(word_of(data, "int4_packing_format"), "PLAIN") == 0
                   ? FM_OK
                   : fms_quant_refuse(what, "int4_packing_format",
                                      word_of(data, "int4_packing_format"));
    }
    if (strcmp(name, "IntxWeightOnlyConfig") == 0) {
        out->bits = strcmp(word_of(data, "weight_dtype"), "int4") == 0 ? 4 : 8;
        return strcmp(word_of(data, "intx_packing_format"), "UNPACKED_TO_INT8") == 0
                   ? FM_OK
                   : fms_quant_refuse(what, "intx_packing_format",
                                      word_of(data, "intx_packing_format"));
    }
    return strcmp(name, "Int8WeightOnlyConfig") == 0 ? FM_OK
                                                     : fms_quant_refuse(what, "quant_type", name);
}

/* ==== finding ==== */

static fm_status fill(fms_grid *g, const fm_provider *p);

static fm_status role(fms_role *out, const fms_scan *s, const fm_entry *e)
{
    static const char *const tails[] = {"._weight_scale", "._weight_zero_point", NULL};
    static const char *const heads[] = {HEAD, NULL};
    bool part = false;
    *out = fm_ends_with(e->name, HEAD) ? FMS_HEAD : FMS_OTHER;
    FM_TRY(fms_is_part(&part, s, e, tails, heads));
    if (part)
        *out = FMS_PART;
    return FM_OK;
}

/* Scales are [groups, n] in an Int4Tensor, else [n, groups]. */
static fm_status groups_of(fms_made *m)
{
    const fm_entry *e = m->part[SCALE];
    const uint64_t groups = !e || e->shape.rank != 2 ? 0 : e->shape.dim[m->words ? 0 : 1];
    m->groups = groups ? groups : 1;
    m->group = fms_parts(m->k, m->groups);
    FM_TRY(fms_expect_floats(m, e, "._weight_scale",
                             m->words ? (fm_shape){2, {m->groups, m->n}}
                                      : (fm_shape){2, {m->n, m->groups}}));
    if (m->k % m->groups != 0)
        return fm_fail(FM_EBASE, "tensor '%s': %llu columns are not %llu equal groups", e->name,
                       (unsigned long long)m->k, (unsigned long long)m->groups);
    if (m->words)
        return fms_expect_floats(m, m->part[ZERO], "._weight_zero_point", e->shape);
    return m->part[ZERO] ? fms_expect(m, m->part[ZERO], "", FM_I8, e->shape) : FM_OK;
}

static fm_status take(fms_made *m, const fms_scan *s, const fm_entry *e)
{
    const fm_entry *pre = NULL;
    m->words = s->q->words;
    m->bits = s->q->bits;
    m->kind = m->words ? FMS_CODE_ADD : FMS_CODE_INT;
    (void)snprintf(m->name, sizeof(m->name), "%.*s.weight", (int)(strlen(e->name) - strlen(HEAD)),
                   e->name);
    if (e->dtype != FM_I8 || e->shape.rank != 2 || e->bytes == 0 || e->shape.dim[1] > INT32_MAX / 2)
        return fm_fail(FM_EBASE, "tensor '%s' is %s and no matrix of I8", e->name,
                       fm_dtype_get(e->dtype)->name);
    m->n = e->shape.dim[0];
    m->k = e->shape.dim[1] * (m->words ? 2 : 1);
    m->shape = (fm_shape){2, {m->n, m->k}};
    FM_TRY(fms_beside(&m->part[SCALE], s, e, HEAD, "._weight_scale"));
    FM_TRY(fms_beside(&m->part[ZERO], s, e, HEAD, "._weight_zero_point"));
    FM_TRY(fms_beside(&pre, s, e, HEAD, "._weight_act_pre_scale"));
    if (pre)
        return fm_fail(FM_EUNSUPPORTED, "tensor '%s' scales activations, which is not supported",
                       pre->name);
    FM_TRY(groups_of(m));
    return fms_grid_layout(m, s, fill);
}

/* ==== making ==== */

/* Signed codes as unsigned ones, with the middle added. */
static void pairs(uint8_t *out, const fms_grid *g, uint64_t row)
{
    const uint8_t *src = g->raw + row * (g->m->k / 2);
    for (uint64_t c = 0; c < g->m->k; c += 2) {
        out[c] = (src[c / 2] & 15) ^ 8u;
        out[c + 1] = (uint8_t)(src[c / 2] >> 4) ^ 8u;
    }
}

static void single(uint8_t *out, const fms_grid *g, uint64_t row)
{
    const uint8_t middle = (uint8_t)(1u << (g->m->bits - 1));
    for (uint64_t c = 0; c < g->m->k; c++)
        out[c] = (uint8_t)(g->raw[row * g->m->k + c] + middle);
}

/* int8 that the config says are of 4 bits. */
static fm_status check_range(const fm_entry *e, const uint8_t *raw, uint32_t bits)
{
    for (uint64_t i = 0; bits == 4 && i < e->bytes; i++)
        if ((uint8_t)(raw[i] + 8) > 15)
            return fm_fail(FM_EBASE, "tensor '%s': %d is no number of 4 bits", e->name,
                           (int)(int8_t)raw[i]);
    return FM_OK;
}

/* [groups, n] -> [n, groups] */
static fm_status turned(float **out, const fms_made *m, const fm_provider *p, const fm_entry *e)
{
    float *x = NULL;
    FM_TRY(fms_part_floats(&x, p, e));
    *out = fm_malloc((size_t)(m->n * m->groups) * sizeof(float));
    for (uint64_t r = 0; *out && r < m->n; r++)
        for (uint64_t i = 0; i < m->groups; i++)
            (*out)[r * m->groups + i] = x[i * m->n + r];
    fm_free(x);
    return *out ? FM_OK : FM_ENOMEM;
}

static fm_status fill(fms_grid *g, const fm_provider *p)
{
    const fms_made *m = g->m;
    const uint8_t middle = (uint8_t)(1u << (m->bits - 1));
    g->zero_all = middle;
    if (m->words) {
        FM_TRY(turned(&g->scale, m, p, m->part[SCALE]));
        return turned(&g->add, m, p, m->part[ZERO]);
    }
    FM_TRY(fms_part_floats(&g->scale, p, m->part[SCALE]));
    if (!m->part[ZERO])
        return FM_OK;
    FM_TRY(fms_part_bytes(&g->zero, p, m->part[ZERO]));
    FM_TRY(check_range(m->part[ZERO], g->zero, m->bits));
    for (uint64_t i = 0; i < m->part[ZERO]->bytes; i++)
        g->zero[i] = (uint8_t)(g->zero[i] + middle);
    return FM_OK;
}

static fm_status make(uint8_t *dst, const fms_made *m, const fm_provider *p, uint64_t first,
                      uint64_t rows, unsigned flags)
{
    fms_grid g = {.m = m, .codes = m->words ? pairs : single};
    fm_status rc = fms_part_bytes(&g.raw, p, m->part[QDATA]);
    (void)flags; /* whole tensors are read, which checks them */
    if (rc == FM_OK && !m->words)
        rc = check_range(m->part[QDATA], g.raw, m->bits);
    FM_THEN(rc, fill(&g, p));
    FM_THEN(rc, fms_grid_rows(dst, &g, p, first, rows));
    fms_grid_release(&g);
    return rc;
}

const fms_quant_form fms_quant_form_torchao = {"torchao", role, take, NULL, make};
