/* mxfp4.c - weights in the microscaling format of 4-bit floats, as gpt-oss' folders hold them. */
#include "store/quant/mxfp4.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/quant/plain.h"

enum { BLOCKS, SCALES };

#define HEAD "_blocks"
#define CODES 32u
#define HALF 16u

void fms_mxfp4_join(uint8_t *dst, const uint8_t *blocks, const uint8_t *scales, uint64_t n)
{
    uint8_t code[CODES];
    for (uint64_t b = 0; b < n; b++, dst += 1 + HALF, blocks += HALF) {
        for (unsigned i = 0; i < HALF; i++) {
            code[2 * i] = blocks[i] & 15;
            code[2 * i + 1] = blocks[i] >> 4;
        }
        dst[0] = scales[b];
        for (unsigned i = 0; i < HALF; i++)
            dst[1 + i] = (uint8_t)(code[i] | code[i + HALF] << 4);
    }
}

static fm_status role(fms_role *out, const fms_scan *s, const fm_entry *e)
{
    static const char *const tails[] = {"_scales", NULL}, *const heads[] = {HEAD, NULL};
    bool part = false;
    *out = fm_ends_with(e->name, HEAD) ? FMS_HEAD : FMS_OTHER;
    FM_TRY(fms_is_part(&part, s, e, tails, heads));
    if (part)
        *out = FMS_PART;
    return FM_OK;
}

static fm_status take(fms_made *m, const fms_scan *s, const fm_entry *e)
{
    char shape[96];
    const uint32_t rank = e->shape.rank;
    fm_shape scales = e->shape;
    fm_shape_text(&e->shape, shape, sizeof(shape));
    if (e->dtype != FM_U8 || rank < 3 || e->shape.dim[rank - 1] != HALF || e->bytes == 0 ||
        e->shape.dim[rank - 2] > UINT32_MAX)
        return fm_fail(FM_EBASE, "tensor '%s' is %s %s, not U8 [.., n, k/32, 16]", e->name,
                       fm_dtype_get(e->dtype)->name, shape);
    (void)snprintf(m->name, sizeof(m->name), "%.*s", (int)(strlen(e->name) - strlen(HEAD)),
                   e->name);
    scales.rank = rank - 1;
    scales.dim[rank - 1] = 0;
    m->shape = scales;
    m->k = m->shape.dim[rank - 2] *= CODES;
    m->n = e->bytes / HALF * CODES / m->k;
    m->dtype = FM_MXFP4;
    FM_TRY(fms_beside(&m->part[SCALES], s, e, HEAD, "_scales"));
    return fms_expect(m, m->part[SCALES], "_scales", FM_U8, scales);
}

static fm_status make(uint8_t *dst, const fms_made *m, const fm_provider *p, uint64_t first,
                      uint64_t rows, unsigned flags)
{
    const uint64_t line = m->k / CODES, n = rows * line;
    uint8_t *blocks = fm_malloc((size_t)(n * HALF)), *scales = fm_malloc((size_t)n);
    fm_status rc = blocks && scales ? FM_OK : FM_ENOMEM;
    FM_THEN(rc,
            fm_entry_read_range(p, m->part[BLOCKS], first * line * HALF, n * HALF, blocks, flags));
    FM_THEN(rc, fm_entry_read_range(p, m->part[SCALES], first * line, n, scales, flags));
    if (rc == FM_OK)
        fms_mxfp4_join(dst, blocks, scales, n);
    fm_free(blocks);
    fm_free(scales);
    return rc;
}

const fms_quant_form fms_quant_form_mxfp4 = {"mxfp4", role, take, NULL, make};
