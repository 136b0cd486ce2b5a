/* gptq.c - weights of GPTQ (AutoGPTQ, GPTQModel) and of AWQ's gemm layout. Both hold the transposed
 * matrix: scales and zeros are [groups, n]. GPTQ packs codes along k, AWQ along n. */
#include "store/quant/plain.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

enum { QWEIGHT, QZEROS, SCALES };

#define HEAD ".qweight"
#define WORD 32u

static fm_status role(fms_role *out, const fms_scan *s, const fm_entry *e)
{
    static const char *const tails[] = {".qzeros", ".scales", ".g_idx", NULL};
    static const char *const heads[] = {HEAD, NULL};
    bool part = false;
    *out = fm_ends_with(e->name, HEAD) ? FMS_HEAD : FMS_OTHER;
    FM_TRY(fms_is_part(&part, s, e, tails, heads));
    if (part)
        *out = FMS_PART;
    return FM_OK;
}

/* ==== finding ==== */

static fm_status fill(fms_grid *g, const fm_provider *p);

static fm_status sizes_of(fms_made *m, const fms_scan *s, const fm_entry *e)
{
    const uint32_t per = WORD / s->q->bits;
    const bool awq = m->form == &fms_quant_form_awq;
    char shape[96];
    fm_shape_text(&e->shape, shape, sizeof(shape));
    if (e->dtype != FM_I32 || e->shape.rank != 2 || e->shape.dim[0] == 0 || e->shape.dim[1] == 0 ||
        e->shape.dim[0] > INT32_MAX || e->shape.dim[1] > INT32_MAX)
        return fm_fail(FM_EBASE, "tensor '%s' is %s %s, not I32 [%s]", e->name,
                       fm_dtype_get(e->dtype)->name, shape, awq ? "k, n/8" : "k*bits/32, n");
    m->k = e->shape.dim[0] * (awq ? 1 : per);
    m->n = e->shape.dim[1] * (awq ? per : 1);
    if (m->n % per != 0)
        return fm_fail(FM_EBASE, "tensor '%s': %llu outputs are no whole number of words", e->name,
                       (unsigned long long)m->n);
    m->shape = (fm_shape){2, {m->n, m->k}};
    m->bits = s->q->bits;
    m->plus_1 = s->q->plus_1;
    m->group = s->q->group ? s->q->group : m->k;
    m->groups = fms_parts(m->k, m->group);
    return FM_OK;
}

static fm_status take(fms_made *m, const fms_scan *s, const fm_entry *e)
{
    const uint32_t per = WORD / s->q->bits;
    (void)snprintf(m->name, sizeof(m->name), "%.*s.weight", (int)(strlen(e->name) - strlen(HEAD)),
                   e->name);
    FM_TRY(sizes_of(m, s, e));
    FM_TRY(fms_beside(&m->part[QZEROS], s, e, HEAD, ".qzeros"));
    FM_TRY(fms_beside(&m->part[SCALES], s, e, HEAD, ".scales"));
    if (m->form == &fms_quant_form_gptq)
        FM_TRY(fms_beside(&m->part[FMS_INDEX], s, e, HEAD, ".g_idx"));
    FM_TRY(fms_expect_floats(m, m->part[SCALES], ".scales", (fm_shape){2, {m->groups, m->n}}));
    FM_TRY(
        fms_expect(m, m->part[QZEROS], ".qzeros", FM_I32, (fm_shape){2, {m->groups, m->n / per}}));
    if (m->part[FMS_INDEX])
        FM_TRY(fms_expect(m, m->part[FMS_INDEX], ".g_idx", FM_I32, (fm_shape){1, {m->k}}));
    if (m->part[SCALES]->dtype != FM_F32)
        m->rounded = m->part[SCALES]->dtype;
    return fms_grid_layout(m, s, fill);
}

/* ==== making ==== */

/* AWQ: where element i of eight lies in a word. */
static const uint8_t place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/* Code i of a row of words. */
static uint8_t code_at(const uint8_t *words, const fms_made *m, uint64_t i)
{
    const uint32_t per = WORD / m->bits;
    const uint32_t at = m->form == &fms_quant_form_awq ? place[i % per] : (uint32_t)(i % per);
    return (uint8_t)(fm_get_u32(words + i / per * 4) >> (at * m->bits) & ((1u << m->bits) - 1));
}

static void gptq_codes(uint8_t *out, const fms_grid *g, uint64_t row)
{
    const fms_made *m = g->m;
    const uint32_t per = WORD / m->bits, mask = (1u << m->bits) - 1;
    const uint8_t *word = g->raw + row * 4;
    for (uint64_t c = 0; c < m->k; c += per, word += m->n * 4) {
        uint32_t x = fm_get_u32(word);
        for (uint32_t i = 0; i < per; i++, x >>= m->bits)
            out[c + i] = (uint8_t)(x & mask);
    }
}

static void awq_codes(uint8_t *out, const fms_grid *g, uint64_t row)
{
    for (uint64_t c = 0; c < g->m->k; c++)
        out[c] = code_at(g->raw + c * (g->m->n / 2), g->m, row);
}

/* Turns [groups, n] into [n, groups]. */
static fm_status scales_of(fms_grid *g, const fm_provider *p)
{
    const fms_made *m = g->m;
    float *x = NULL;
    FM_TRY(fms_part_floats(&x, p, m->part[SCALES]));
    g->scale = fm_malloc((size_t)(m->n * m->groups) * sizeof(float));
    for (uint64_t r = 0; g->scale && r < m->n; r++)
        for (uint64_t i = 0; i < m->groups; i++)
            g->scale[r * m->groups + i] = x[i * m->n + r];
    fm_free(x);
    return g->scale ? FM_OK : FM_ENOMEM;
}

/* Of GPTQ's first format a zero is stored less one, modulo the number of codes. */
static fm_status zeros_of(fms_grid *g, const fm_provider *p)
{
    const fms_made *m = g->m;
    uint8_t *raw = NULL;
    FM_TRY(fms_part_bytes(&raw, p, m->part[QZEROS]));
    g->zero = fm_malloc((size_t)(m->n * m->groups));
    for (uint64_t i = 0; g->zero && i < m->groups; i++)
        for (uint64_t r = 0; r < m->n; r++) {
            const uint32_t z = code_at(raw + i * (m->n * m->bits / 8), m, r);
            g->zero[r * m->groups + i] = (uint8_t)((z + m->plus_1) & ((1u << m->bits) - 1));
        }
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
    fms_grid g = {.m = m, .codes = m->form == &fms_quant_form_awq ? awq_codes : gptq_codes};
    fm_status rc = fms_part_bytes(&g.raw, p, m->part[QWEIGHT]);
    (void)flags; /* whole tensors are read, which checks them */
    FM_THEN(rc, fill(&g, p));
    FM_THEN(rc, fms_grid_rows(dst, &g, p, first, rows));
    fms_grid_release(&g);
    return rc;
}

const fms_quant_form fms_quant_form_gptq = {"gptq", role, take, NULL, make};
const fms_quant_form fms_quant_form_awq = {"awq", role, take, NULL, make};
