/* quant.c - a block-quantized copy of a float tensor. */
#include <string.h>

#include "store/base/mem.h"
#include "store/quant/quantize.h"
#include "store/recipe/recipe_impl.h"

#define TILE 16384u /* a multiple of every block's elements */

fm_status rcp_quant_check(const fms_recipe *r, const fms_inputs *in)
{
    if (r->mode >= FM_QUANT_VARIANTS)
        return fm_fail(FM_EVERSION, "recipe 'quantize', mode %u: needs a newer fmstore", r->mode);
    if (in->count != 1 || r->params.len)
        return rcp_refuse(r, "wants one parent and no parameters");
    if (!fm_quantize_applies(in->child.dtype) || !rcp_widens(in->input[0].dtype))
        return rcp_refuse(r, "these types are not quantized");
    return rcp_same_elems(&in->child, &in->input[0])
               ? FM_OK
               : rcp_refuse(r, "the elements differ in number");
}

/* Blocks [from, from + count) into dst. */
static fm_status quantize_blocks(const fms_recipe *r, const fms_inputs *in, uint64_t from,
                                 uint64_t count, float *wide, uint8_t *scratch, uint8_t *dst)
{
    const uint64_t per = fm_dtype_get(in->child.dtype)->block_elems;
    FM_TRY(rcp_floats(in, 0, from * per, count * per, wide, scratch));
    return fm_quantize_rows(dst, in->child.dtype, wide, count * per, 1, (fm_quant_variant)r->mode);
}

fm_status rcp_quant(const fms_recipe *r, const fms_inputs *in, const rcp_part *p, uint8_t *dst)
{
    const fm_dtype_info *type = fm_dtype_get(in->child.dtype);
    const uint64_t size = type->block_bytes, per = type->block_elems, tile = TILE / per;
    const uint64_t end = p->offset + p->bytes, last = (end + size - 1) / size;
    float *wide = fm_malloc(TILE * sizeof *wide);
    uint8_t *scratch = fm_malloc(rcp_scratch_bytes(in->input[0].dtype, TILE));
    uint8_t *blocks = fm_malloc((size_t)(tile * size));
    fm_status rc = wide && scratch && blocks ? FM_OK : FM_ENOMEM;
    for (uint64_t b = p->offset / size; rc == FM_OK && b < last; b += tile) {
        const uint64_t n = FM_MIN(last - b, tile);
        rc = quantize_blocks(r, in, b, n, wide, scratch, blocks);
        /* A leaf may begin and end within a block. */
        const uint64_t lo = FM_MAX(b * size, p->offset), hi = FM_MIN((b + n) * size, end);
        if (rc == FM_OK)
            memcpy(dst + (lo - p->offset), blocks + (lo - b * size), (size_t)(hi - lo));
    }
    fm_free(wide);
    fm_free(scratch);
    fm_free(blocks);
    return rc;
}
