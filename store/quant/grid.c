/* grid.c - rows of weights that are codes with a scale and a zero for each group of columns. */
#include "store/quant/codes.h"
#include "store/quant/plain.h"

#include <string.h>

#include "store/base/mem.h"

uint64_t fms_parts(uint64_t n, uint64_t of)
{
    return n / of + (n % of != 0);
}

/* ==== the order of groups ==== */

static fm_status index_read(uint32_t **out, const fms_made *m, const fm_provider *p)
{
    uint8_t *raw = NULL;
    *out = fm_malloc((size_t)m->k * sizeof(uint32_t) + 1);
    fm_status rc = *out ? fms_part_bytes(&raw, p, m->part[FMS_INDEX]) : FM_ENOMEM;
    for (uint64_t c = 0; rc == FM_OK && c < m->k; c++) {
        (*out)[c] = fm_get_u32(raw + 4 * c);
        if ((*out)[c] >= m->groups)
            rc = fm_fail(FM_EBASE, "tensor '%s': column %llu is of group %d; there are %llu",
                         m->part[FMS_INDEX]->name, (unsigned long long)c, (int)(*out)[c],
                         (unsigned long long)m->groups);
    }
    fm_free(raw);
    if (rc != FM_OK) {
        fm_free(*out);
        *out = NULL;
    }
    return rc;
}

/* Sets m->group to 0 where columns of one scale are no neighbours (desc_act). */
static fm_status order_of(fms_made *m, const fm_provider *p)
{
    uint32_t *index = NULL;
    FM_TRY(m->part[FMS_INDEX] ? index_read(&index, m, p) : FM_OK);
    for (uint64_t c = 0; index && m->group && c < m->k; c++)
        if (index[c] != c / m->group)
            m->group = 0;
    fm_free(index);
    return FM_OK;
}

fm_status fms_grid_layout(fms_made *m, const fms_scan *s)
{
    const fm_plain_as as = s->as;
    FM_TRY(order_of(m, s->p));
    static const fm_dtype four[] = {FM_CODE4_128, FM_CODE4_64, FM_CODE4_32};
    static const fm_dtype eight[] = {FM_CODE8_128, FM_CODE8_64, FM_CODE8_32};
    m->dtype = m->rounded;
    for (size_t i = 0; as != FM_PLAIN_WIDE && i < FM_ARRAY_LEN(four); i++) {
        const fm_dtype layout = m->bits == 4 ? four[i] : eight[i];
        const uint64_t elems = fm_dtype_get(layout)->block_elems;
        if (m->group && m->group % elems == 0 && m->k % elems == 0) {
            m->dtype = layout;
            break;
        }
    }
    return FM_OK;
}

void fms_grid_release(fms_grid *g)
{
    fm_free(g->raw);
    fm_free(g->scale);
    fm_free(g->zero);
    fm_free(g->index);
}

static fms_code_block block_at(const fms_grid *g, uint64_t row, uint64_t col)
{
    const fms_made *m = g->m;
    const uint64_t at = row * m->groups + (g->index ? g->index[col] : col / m->group);
    return (fms_code_block){.how = (uint8_t)(m->kind | fms_code_rounding(m->rounded)),
                            .zero = g->zero ? g->zero[at] : g->zero_all,
                            .scale = g->scale[at]};
}

/* Columns from col on that lie in one group. */
static uint64_t run_of(const fms_grid *g, uint64_t col)
{
    const fms_made *m = g->m;
    const uint64_t end = g->index ? col + 1 : FM_MIN((col / m->group + 1) * m->group, m->k);
    return end - col;
}

static fm_status wide_row(uint8_t *dst, float *value, const fms_grid *g, uint64_t row,
                          const uint8_t *code)
{
    const fms_made *m = g->m;
    for (uint64_t c = 0; c < m->k;) {
        const uint64_t end = c + run_of(g, c);
        const fms_code_block b = block_at(g, row, c);
        for (; c < end; c++)
            value[c] = fms_code_value(&b, code[c]);
    }
    return fm_from_f32(dst, m->dtype, value, m->k);
}

static void code_row(uint8_t *dst, const fms_grid *g, uint64_t row, const uint8_t *code)
{
    const fm_dtype_info *info = fm_dtype_get(g->m->dtype);
    for (uint64_t c = 0; c < g->m->k; c += info->block_elems, dst += info->block_bytes) {
        const fms_code_block b = block_at(g, row, c);
        fms_code_put(dst, g->m->dtype, &b, code + c);
    }
}

fm_status fms_grid_rows(uint8_t *dst, fms_grid *g, const fm_provider *p, uint64_t first,
                        uint64_t rows)
{
    const fms_made *m = g->m;
    if (!m->group)
        FM_TRY(index_read(&g->index, m, p));
    const fm_dtype_info *info = fm_dtype_get(m->dtype);
    const size_t line = (size_t)(m->k / info->block_elems * info->block_bytes);
    uint8_t *code = fm_malloc((size_t)m->k + 8);
    float *value = fm_malloc((size_t)m->k * sizeof(float) + 1);
    fm_status rc = code && value ? FM_OK : FM_ENOMEM;
    for (uint64_t row = first; rc == FM_OK && row < first + rows; row++, dst += line) {
        g->codes(code, g, row);
        if (m->dtype >= FM_DTYPE_COUNT)
            code_row(dst, g, row, code);
        else
            rc = wide_row(dst, value, g, row, code);
    }
    fm_free(code);
    fm_free(value);
    return rc;
}
