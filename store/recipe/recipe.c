/* recipe.c - the table of operations, and recipes as text for people. */
#include "store/recipe/recipe_impl.h"

#include <stdio.h>
#include <string.h>

#include "store/base/buf.h"

typedef struct op_info {
    rcp_check_fn *check;
    rcp_part_fn *part;
    rcp_touches_fn *touches;
} op_info;

static const op_info *op_of(uint16_t op)
{
    static const op_info table[FMS_OP_COUNT] = {
        [FMS_OP_CAST] = {rcp_cast_check, rcp_cast, rcp_elementwise_touches},
        [FMS_OP_LINEAR] = {rcp_linear_check, rcp_linear, rcp_elementwise_touches},
        [FMS_OP_LORA] = {rcp_lora_check, rcp_lora, rcp_lora_touches},
        [FMS_OP_GATHER] = {rcp_gather_check, rcp_gather, rcp_gather_touches},
        [FMS_OP_QUANT] = {rcp_quant_check, rcp_quant, rcp_elementwise_touches},
        [FMS_OP_ADAMW] = {rcp_adamw_check, rcp_adamw, rcp_elementwise_touches},
        [FMS_OP_TRANSPOSE] = {rcp_turn_check, rcp_turn, rcp_all_touches},
    };
    return op < FMS_OP_COUNT && table[op].check ? &table[op] : NULL;
}

fm_status fms_recipe_check(const fms_recipe *r, const fms_inputs *in)
{
    const op_info *info = op_of(r->op);
    if (!info)
        return fm_fail(FM_EVERSION, "recipe operation %u needs a newer fmstore", r->op);
    if (in->count < 1 || in->count > FMS_PARENTS_MAX || r->params.len > FMS_PARAMS_MAX)
        return rcp_refuse(r, "too many or no parents, or too many parameters");
    if (in->child.dtype == FM_DTYPE_NONE)
        return rcp_refuse(r, "a blob has none");
    for (uint32_t k = 0; k < in->count; k++)
        if (in->input[k].dtype == FM_DTYPE_NONE)
            return rcp_refuse(r, "a parent is a blob");
    return info->check(r, in);
}

uint64_t fms_recipe_touches(const fms_recipe *r, const fms_inputs *in, uint32_t k)
{
    const op_info *info = op_of(r->op);
    fm_assert(info);
    return info->touches(r, in, k);
}

fm_status fms_recipe_range(const fms_recipe *r, const fms_inputs *in, uint64_t offset, size_t bytes,
                           uint8_t *dst)
{
    const fm_dtype_info *type = fm_dtype_get(in->child.dtype);
    const op_info *info = op_of(r->op);
    rcp_part p = {.offset = offset, .bytes = bytes};
    fm_assert(info && offset <= in->child.bytes && bytes <= in->child.bytes - offset);
    if (!type->is_block) {
        fm_assert(offset % type->block_bytes == 0 && bytes % type->block_bytes == 0);
        p.first = p.offset / type->block_bytes;
        p.count = p.bytes / type->block_bytes;
    }
    return bytes ? info->part(r, in, &p, dst) : FM_OK;
}

fm_status fms_recipe_leaf(const fms_recipe *r, const fms_inputs *in, uint32_t leaf, uint8_t *dst)
{
    const uint64_t offset = (uint64_t)leaf * FM_LEAF_BYTES;
    fm_assert(offset < in->child.bytes); /* and a leaf is a whole number of plain elements */
    return fms_recipe_range(r, in, offset,
                            (size_t)FM_MIN(in->child.bytes - offset, (uint64_t)FM_LEAF_BYTES), dst);
}

/* ==== for people =========================================================================== */

static void text_linear(const fms_recipe *r, uint32_t inputs, fm_buf *b)
{
    static const char *const form[FMS_LINEAR_FORMS] = {"sum", "scaled sum", "mean", "task vectors"};
    static const char *const arith[FMS_ARITH_COUNT] = {"f32", "f32 fused", "f64", "stored dtype"};
    const unsigned f = r->mode & 127u, a = r->mode >> 8;
    fm_buf_printf(b, "%s", f < FMS_LINEAR_FORMS ? form[f] : "?");
    for (uint32_t k = 0; k < inputs && 8 * (k + 1) <= r->params.len; k++)
        fm_buf_printf(b, " %.6g", rcp_f64(r->params.data + 8 * (size_t)k));
    fm_buf_printf(b, ", %s%s", a < FMS_ARITH_COUNT ? arith[a] : "?",
                  r->mode & FMS_LINEAR_NARROW ? ", of rounded parents" : "");
}

static void text_lora(const fms_recipe *r, fm_buf *b)
{
    static const char *const step[3] = {"one rounding", "delta rounded", "each step rounded"};
    float scale = 0;
    if (r->params.len == sizeof scale) {
        const uint32_t bits = fm_get_u32(r->params.data);
        memcpy(&scale, &bits, sizeof scale);
    }
    fm_buf_printf(b, "scale %.6g, %s%s%s%s", (double)scale,
                  (r->mode & 15u) < 3 ? step[r->mode & 15u] : "?",
                  r->mode & FMS_LORA_TURNED ? ", turned" : "",
                  r->mode & FMS_LORA_NARROW_BASE ? ", W rounded" : "",
                  r->mode & FMS_LORA_NARROW_FACTORS ? ", A and B rounded" : "");
}

void fms_recipe_text(const fms_recipe *r, uint32_t inputs, char *out, size_t out_bytes)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    if (r->op == FMS_OP_LINEAR)
        text_linear(r, inputs, &b);
    else if (r->op == FMS_OP_LORA)
        text_lora(r, &b);
    else if (r->op == FMS_OP_ADAMW)
        fm_buf_printf(&b, "%s", r->mode & FMS_ADAMW_WEIGHTS ? "weights" : "second moment");
    else if (r->op == FMS_OP_GATHER && r->mode == FMS_GATHER_PIECES)
        fm_buf_printf(&b, "%zu pieces", r->params.len / FMS_PIECE_BYTES);
    snprintf(out, out_bytes, "%s", fm_buf_cstr(&b));
    fm_buf_release(&b);
}
