/* bitsandbytes.c - weights of bitsandbytes: 4-bit floats with an absmax for each block of the
 * flattened matrix, which may itself be 8-bit codes, and LLM.int8's rows of integers. */
#include "store/quant/codes.h"
#include "store/quant/plain.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

enum { WEIGHT_PART, ABSMAX, NESTED_ABSMAX, STATE = 4, NESTED_MAP };

#define WEIGHT ".weight"
#define MAX_STATE_BYTES 65536u

static fm_status role(fms_role *out, const fms_scan *s, const fm_entry *e)
{
    static const char *const tails[] = {".weight.absmax",
                                        ".weight.quant_map",
                                        ".weight.nested_absmax",
                                        ".weight.nested_quant_map",
                                        ".weight.quant_state.bitsandbytes__nf4",
                                        ".weight.quant_state.bitsandbytes__fp4",
                                        ".SCB",
                                        ".weight_format",
                                        NULL};
    static const char *const heads[] = {WEIGHT, NULL};
    static const char *const own[] = {WEIGHT, NULL};
    static const char *const signs[] = {".weight.absmax", ".SCB", NULL};
    bool is = false;
    *out = FMS_OTHER;
    FM_TRY(fms_is_part(&is, s, e, own, signs));
    if (is)
        *out = FMS_HEAD;
    FM_TRY(fms_is_part(&is, s, e, tails, heads));
    if (is)
        *out = FMS_PART;
    return FM_OK;
}

/* ==== quant_state ==== */

static fm_status state_misfit(const fms_made *m, const char *field)
{
    return fm_fail(FM_EBASE, "tensor '%s': field '%s' is missing or does not fit the weight",
                   m->part[STATE]->name, field);
}

static fm_status type_of(fms_made *m, const fm_json *o)
{
    static const struct {
        const char *name;
        fm_dtype dtype;
    } types[] = {{"float32", FM_F32}, {"float16", FM_F16}, {"bfloat16", FM_BF16}};
    const char *name = fm_json_cstr(fm_json_get(o, "dtype"), "");
    for (size_t i = 0; i < FM_ARRAY_LEN(types); i++)
        if (strcmp(types[i].name, name) == 0) {
            m->rounded = types[i].dtype;
            return FM_OK;
        }
    return state_misfit(m, "dtype");
}

static fm_status state_fields(fms_made *m, const fm_json *o)
{
    const fm_json *shape = fm_json_get(o, "shape");
    const char *type = fm_json_cstr(fm_json_get(o, "quant_type"), "");
    const int64_t n = fm_json_int(fm_json_at(shape, 0), 0),
                  k = fm_json_int(fm_json_at(shape, 1), 0);
    const int64_t block = fm_json_int(fm_json_get(o, "blocksize"), 0);
    const int64_t nested = fm_json_int(fm_json_get(o, "nested_blocksize"), 0);
    if (fm_json_count(shape) != 2 || n < 1 || k < 1 || n > INT32_MAX || k > INT32_MAX)
        return state_misfit(m, "shape");
    if (strcmp(type, "nf4") != 0 && strcmp(type, "fp4") != 0)
        return state_misfit(m, "quant_type");
    if (block < 1 || block > UINT32_MAX)
        return state_misfit(m, "blocksize");
    m->n = (uint64_t)n;
    m->k = (uint64_t)k;
    m->kind = type[0] == 'n' ? FMS_CODE_NF4 : FMS_CODE_FP4;
    m->block = (uint64_t)block;
    if (m->part[NESTED_ABSMAX]) {
        if (nested < 1 || nested > UINT32_MAX)
            return state_misfit(m, "nested_blocksize");
        if (!fm_json_is(fm_json_get(o, "nested_offset"), FM_JSON_REAL) &&
            !fm_json_is(fm_json_get(o, "nested_offset"), FM_JSON_INT))
            return state_misfit(m, "nested_offset");
        m->nested_block = (uint64_t)nested;
        m->nested_offset = (float)fm_json_real(fm_json_get(o, "nested_offset"), 0.0);
    }
    return type_of(m, o);
}

static fm_status state_of(fms_made *m, const fm_provider *p)
{
    const fm_entry *e = m->part[STATE];
    uint8_t *raw = NULL;
    fm_json *o = NULL;
    if (!e || e->dtype != FM_U8 || e->bytes > MAX_STATE_BYTES)
        return fm_fail(FM_EBASE,
                       "tensor '%s' has no 'quant_state.bitsandbytes__nf4' or '__fp4' of "
                       "bytes beside it",
                       m->part[WEIGHT_PART]->name);
    fm_status rc = fms_part_bytes(&raw, p, e);
    FM_THEN(rc, fm_json_parse(&o, fm_span_of(raw, (size_t)e->bytes), e->name));
    FM_THEN(rc, state_fields(m, o));
    fm_json_free(o);
    fm_free(raw);
    return rc;
}

/* ==== finding ==== */

static fm_status fill(fms_grid *g, const fm_provider *p);

static fm_status take_8(fms_made *m, const fm_entry *e)
{
    if (e->dtype != FM_I8 || e->shape.rank != 2 || e->shape.dim[0] == 0 || e->shape.dim[1] == 0)
        return fm_fail(FM_EBASE, "tensor '%s' has an SCB beside it and is %s, not I8 [n, k]",
                       e->name, fm_dtype_get(e->dtype)->name);
    m->n = e->shape.dim[0];
    m->k = e->shape.dim[1];
    m->bits = 8;
    m->kind = FMS_CODE_INT8;
    m->group = m->k;
    m->groups = 1;
    return fms_expect(m, m->part[ABSMAX], ".SCB", FM_F32, (fm_shape){1, {m->n}});
}

/* Blocks lie one behind another in the flattened matrix. */
static fm_status groups_of(fms_made *m)
{
    if (m->k % m->block != 0 && m->block % m->k != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "tensor '%s': blocks of %llu codes begin inside of its rows of %llu",
                       m->name, (unsigned long long)m->block, (unsigned long long)m->k);
    m->group = FM_MIN(m->block, m->k);
    m->groups = m->k / m->group;
    return FM_OK;
}

static fm_status take_4(fms_made *m, const fms_scan *s, const fm_entry *e)
{
    FM_TRY(fms_beside(&m->part[STATE], s, e, WEIGHT, ".weight.quant_state.bitsandbytes__nf4"));
    if (!m->part[STATE])
        FM_TRY(fms_beside(&m->part[STATE], s, e, WEIGHT, ".weight.quant_state.bitsandbytes__fp4"));
    FM_TRY(fms_beside(&m->part[NESTED_ABSMAX], s, e, WEIGHT, ".weight.nested_absmax"));
    FM_TRY(fms_beside(&m->part[NESTED_MAP], s, e, WEIGHT, ".weight.nested_quant_map"));
    FM_TRY(state_of(m, s->p));
    m->bits = 4;
    FM_TRY(groups_of(m));
    if (e->bytes != fms_parts(m->n * m->k, 2))
        return fm_fail(FM_EBASE, "tensor '%s' has %llu bytes; %llu x %llu codes of 4 bits are %llu",
                       e->name, (unsigned long long)e->bytes, (unsigned long long)m->n,
                       (unsigned long long)m->k, (unsigned long long)fms_parts(m->n * m->k, 2));
    const uint64_t blocks = fms_parts(m->n * m->k, m->block);
    if (!m->part[NESTED_ABSMAX])
        return fms_expect(m, m->part[ABSMAX], ".weight.absmax", FM_F32, (fm_shape){1, {blocks}});
    FM_TRY(fms_expect(m, m->part[ABSMAX], ".weight.absmax", FM_U8, (fm_shape){1, {blocks}}));
    FM_TRY(fms_expect(m, m->part[NESTED_ABSMAX], ".weight.nested_absmax", FM_F32,
                      (fm_shape){1, {fms_parts(blocks, m->nested_block)}}));
    return fms_expect(m, m->part[NESTED_MAP], ".weight.nested_quant_map", FM_F32,
                      (fm_shape){1, {256}});
}

static fm_status take(fms_made *m, const fms_scan *s, const fm_entry *e)
{
    (void)snprintf(m->name, sizeof(m->name), "%s", e->name);
    FM_TRY(fms_beside(&m->part[ABSMAX], s, e, WEIGHT, ".SCB"));
    if (m->part[ABSMAX]) {
        FM_TRY(take_8(m, e));
    } else {
        FM_TRY(fms_beside(&m->part[ABSMAX], s, e, WEIGHT, ".weight.absmax"));
        FM_TRY(take_4(m, s, e));
    }
    m->shape = (fm_shape){2, {m->n, m->k}};
    return fms_grid_layout(m, s, fill);
}

/* ==== making ==== */

/* Two codes a byte, the first in the high half. */
static void codes_4(uint8_t *out, const fms_grid *g, uint64_t row)
{
    for (uint64_t c = 0, i = row * g->m->k; c < g->m->k; c++, i++)
        out[c] = i % 2 ? g->raw[i / 2] & 15 : g->raw[i / 2] >> 4;
}

static void codes_8(uint8_t *out, const fms_grid *g, uint64_t row)
{
    for (uint64_t c = 0; c < g->m->k; c++)
        out[c] = g->raw[row * g->m->k + c] ^ 0x80u; /* + 128 */
}

/* The absmaxes of all blocks: as they are, or map[code] * nested absmax + offset. */
static fm_status absmax_of(float **out, const fms_made *m, const fm_provider *p)
{
    if (!m->part[NESTED_ABSMAX])
        return fms_part_floats(out, p, m->part[ABSMAX]);
    const uint64_t blocks = m->part[ABSMAX]->bytes;
    float *map = NULL, *scale = NULL;
    uint8_t *code = NULL;
    fm_status rc = fms_part_floats(&map, p, m->part[NESTED_MAP]);
    FM_THEN(rc, fms_part_floats(&scale, p, m->part[NESTED_ABSMAX]));
    FM_THEN(rc, fms_part_bytes(&code, p, m->part[ABSMAX]));
    if (rc == FM_OK) {
        *out = fm_malloc((size_t)blocks * sizeof(float));
        rc = *out ? FM_OK : FM_ENOMEM;
    }
    for (uint64_t i = 0; rc == FM_OK && i < blocks; i++) {
        const float x = map[code[i]] * scale[i / m->nested_block];
        (*out)[i] = x + m->nested_offset;
    }
    fm_free(map);
    fm_free(scale);
    fm_free(code);
    return rc;
}

static fm_status fill(fms_grid *g, const fm_provider *p)
{
    const fms_made *m = g->m;
    float *block = NULL;
    FM_TRY(absmax_of(&block, m, p));
    if (m->bits == 8 || m->k % m->block == 0) { /* in the order of rows already */
        g->scale = block;
        return FM_OK;
    }
    g->scale = fm_malloc((size_t)m->n * sizeof(float));
    for (uint64_t r = 0; g->scale && r < m->n; r++)
        g->scale[r] = block[r * m->k / m->block];
    fm_free(block);
    return g->scale ? FM_OK : FM_ENOMEM;
}

static fm_status make(uint8_t *dst, const fms_made *m, const fm_provider *p, uint64_t first,
                      uint64_t rows, unsigned flags)
{
    fms_grid g = {.m = m, .codes = m->bits == 4 ? codes_4 : codes_8};
    fm_status rc = fms_part_bytes(&g.raw, p, m->part[WEIGHT_PART]);
    (void)flags; /* whole tensors are read, which checks them */
    FM_THEN(rc, fill(&g, p));
    FM_THEN(rc, fms_grid_rows(dst, &g, p, first, rows));
    fms_grid_release(&g);
    return rc;
}

const fms_quant_form fms_quant_form_bnb = {"bitsandbytes", role, take, NULL, make};
