/* grid.c - rows of weights that are codes with a scale and a zero for each group of columns. */
#include "store/quant/codes.h"
#include "store/quant/plain.h"

#include <math.h>
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

static fm_dtype codes_of(const fms_made *m)
{
    static const fm_dtype two[] = {FM_CODE2_128, FM_CODE2_64, FM_CODE2_32};
    static const fm_dtype four[] = {FM_CODE4_128, FM_CODE4_64, FM_CODE4_32};
    static const fm_dtype eight[] = {FM_CODE8_128, FM_CODE8_64, FM_CODE8_32};
    for (size_t i = 0; i < FM_ARRAY_LEN(four); i++) {
        const fm_dtype layout = m->bits == 2 ? two[i] : m->bits == 4 ? four[i] : eight[i];
        const uint64_t elems = fm_dtype_get(layout)->block_elems;
        if (m->kind != FMS_CODE_ADD && m->group && m->group % elems == 0 && m->k % elems == 0)
            return layout;
    }
    return m->rounded;
}

/* What multiplies the integers of a block. */
static float step_of(const fms_made *m, float scale)
{
    return m->kind == FMS_CODE_INT8 ? scale * FMS_CODE_127TH : scale;
}

/* Whether float16 has the number, or rounds it in its last digit alone. */
static bool is_near(float x)
{
    return fm_f16_to_f32(fm_f32_to_f16(x)) == x || (fabsf(x) >= 0x1p-14f && fabsf(x) <= 65504.0f);
}

static uint8_t zero_at(const fms_grid *g, uint64_t i)
{
    return g->m->kind == FMS_CODE_INT8 ? 128 : g->zero ? g->zero[i] : g->zero_all;
}

/* The block type of integers with float16 scales; where they do not hold these, as rounded. */
static fm_dtype integers_of(const fms_grid *g, bool q2)
{
    const fms_made *m = g->m;
    const uint32_t middle = 1u << (m->bits - 1);
    bool centred = true;
    for (uint64_t i = 0; i < m->n * m->groups; i++) {
        const float step = step_of(m, g->scale[i]);
        centred = centred && zero_at(g, i) == middle;
        const float least = (g->add ? g->add[i] : 0.0f) - step * (float)zero_at(g, i);
        if (!is_near(step) || !(fabsf(least) <= 65504.0f))
            return m->rounded;
    }
    if (m->bits == 2) /* codes 0, 1, 2 for -1, 0, 1 */
        return q2 && m->k % 256 == 0 ? FM_Q2_K : FM_Q4_0;
    if (m->bits == 4)
        return centred && !g->add ? FM_Q4_0 : FM_Q4_1;
    return centred ? FM_Q8_0 : m->rounded;
}

fm_status fms_grid_layout(fms_made *m, const fms_scan *s, fms_grid_fill fill)
{
    const bool blocks = m->kind != FMS_CODE_NF4 && m->kind != FMS_CODE_FP4;
    m->dtype = m->rounded;
    FM_TRY(order_of(m, s->p));
    if (s->as == FM_PLAIN_CODES)
        m->dtype = codes_of(m);
    const bool integers = s->as == FM_PLAIN_INTEGERS || s->as == FM_PLAIN_INTEGERS_4;
    if (!integers || !blocks || !m->group || m->group % 32 || m->k % 32)
        return FM_OK;
    fms_grid g = {.m = m};
    fm_status rc = fill(&g, s->p);
    if (rc == FM_OK)
        m->dtype = integers_of(&g, s->as == FM_PLAIN_INTEGERS);
    fms_grid_release(&g);
    return rc;
}

void fms_grid_release(fms_grid *g)
{
    fm_free(g->raw);
    fm_free(g->scale);
    fm_free(g->zero);
    fm_free(g->add);
    fm_free(g->index);
}

static fms_code_block block_at(const fms_grid *g, uint64_t row, uint64_t col)
{
    const fms_made *m = g->m;
    const uint64_t at = row * m->groups + (g->index ? g->index[col] : col / m->group);
    return (fms_code_block){.how = (uint8_t)(m->kind | fms_code_rounding(m->rounded)),
                            .zero = g->zero ? g->zero[at] : g->zero_all,
                            .scale = g->scale[at],
                            .add = g->add ? g->add[at] : 0.0f};
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

/* Ternary codes as blocks of Q2_K: sixteen scales and minima are 1, times the float16 scale. */
static void ternary_row(uint8_t *dst, const fms_grid *g, uint64_t row, const uint8_t *code)
{
    for (uint64_t c = 0; c < g->m->k; c += 256, code += 256, dst += 84) {
        const uint16_t step = fm_f32_to_f16(block_at(g, row, c).scale);
        memset(dst, 0x11, 16);
        memset(dst + 16, 0, 64);
        for (uint32_t i = 0; i < 256; i++)
            dst[16 + i / 128 * 32 + i % 32] |= (uint8_t)((code[i] & 3u) << i % 128 / 32 * 2);
        fm_put_u16(dst + 80, step);
        fm_put_u16(dst + 82, step);
    }
}

/* Blocks of 32 as GGUF has them: a float16 scale, of Q4_1 a minimum; of 4 bits elements i and
 * i + 16 share a byte. */
static void integer_row(uint8_t *dst, const fms_grid *g, uint64_t row, const uint8_t *code)
{
    const fm_dtype type = g->m->dtype;
    for (uint64_t c = 0; c < g->m->k; c += 32, code += 32) {
        const fms_code_block b = block_at(g, row, c);
        const float step = step_of(g->m, b.scale);
        fm_put_u16(dst, fm_f32_to_f16(step));
        dst += 2;
        if (type == FM_Q4_1) {
            fm_put_u16(dst, fm_f32_to_f16(b.add - step * (float)b.zero));
            dst += 2;
        }
        const unsigned more = g->m->bits == 2 ? 7 : 0; /* Q4_0 takes 8 away, not 1 */
        for (uint32_t i = 0; i < 16 && type != FM_Q8_0; i++)
            *dst++ = (uint8_t)(((code[i] + more) & 15) | (code[i + 16] + more) << 4);
        for (uint32_t i = 0; i < 32 && type == FM_Q8_0; i++)
            *dst++ = (uint8_t)(code[i] - 128);
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
        else if (m->dtype == FM_Q2_K)
            ternary_row(dst, g, row, code);
        else if (info->is_block)
            integer_row(dst, g, row, code);
        else
            rc = wide_row(dst, value, g, row, code);
    }
    fm_free(code);
    fm_free(value);
    return rc;
}
