/* recipe.c - the table of operations, and what they share. */
#include "store/recipe/recipe_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/buf.h"
#include "store/base/mem.h"

typedef struct op_info {
    const char *name;
    rcp_check_fn *check;
    rcp_part_fn *part;
    rcp_touches_fn *touches;
} op_info;

static const op_info *op_of(uint16_t op)
{
    static const op_info table[FMS_OP_COUNT] = {
        [FMS_OP_CAST] = {"cast", rcp_cast_check, rcp_cast, rcp_elementwise_touches},
        [FMS_OP_LINEAR] = {"linear", rcp_linear_check, rcp_linear, rcp_elementwise_touches},
        [FMS_OP_LORA] = {"lora", rcp_lora_check, rcp_lora, rcp_lora_touches},
        [FMS_OP_GATHER] = {"gather", rcp_gather_check, rcp_gather, rcp_gather_touches},
        [FMS_OP_QUANT] = {"quantize", rcp_quant_check, rcp_quant, rcp_elementwise_touches},
        [FMS_OP_ADAMW] = {"adamw", rcp_adamw_check, rcp_adamw, rcp_elementwise_touches},
        [FMS_OP_TRANSPOSE] = {"transpose", rcp_turn_check, rcp_turn, rcp_all_touches},
    };
    return op < FMS_OP_COUNT && table[op].name ? &table[op] : NULL;
}

const char *fms_op_name(uint16_t op)
{
    const op_info *info = op_of(op);
    return info ? info->name : op == FMS_OP_NONE ? "none" : "unknown";
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
    fm_assert(offset < in->child.bytes); /* a leaf is a whole number of plain elements */
    return fms_recipe_range(r, in, offset,
                            (size_t)FM_MIN(in->child.bytes - offset, (uint64_t)FM_LEAF_BYTES), dst);
}

/* ==== shared =============================================================================== */

fm_status rcp_refuse(const fms_recipe *r, const char *why)
{
    return fm_fail(FM_ECORRUPT, "recipe '%s', mode %u: %s", fms_op_name(r->op), r->mode, why);
}

bool rcp_is_plain_float(fm_dtype dtype)
{
    return dtype == FM_F32 || dtype == FM_BF16 || dtype == FM_F16;
}

bool rcp_widens(fm_dtype dtype)
{
    return dtype != FM_F64 && fm_dtype_get(dtype)->is_float;
}

bool rcp_same_elems(const fms_form *a, const fms_form *b)
{
    uint64_t x, y;
    return fm_shape_elems(&x, &a->shape) == FM_OK && fm_shape_elems(&y, &b->shape) == FM_OK &&
           x == y;
}

double rcp_f64(const uint8_t *p)
{
    uint64_t bits = fm_get_u64(p);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Blocks that elements [first, first + n) lie in. */
static void blocks_of(fm_dtype dtype, uint64_t first, uint64_t n, uint64_t *from, uint64_t *count)
{
    const uint64_t per = fm_dtype_get(dtype)->block_elems;
    *from = first / per;
    *count = n ? (first + n - 1) / per - *from + 1 : 0;
}

static size_t align16(size_t n)
{
    return (n + 15) & ~(size_t)15;
}

/* Coded blocks, then for block types their floats: those at the ends may be wanted in part. */
static size_t coded_bytes(fm_dtype dtype, uint64_t n)
{
    const fm_dtype_info *type = fm_dtype_get(dtype);
    return align16((size_t)((n / type->block_elems + 2) * type->block_bytes));
}

size_t rcp_scratch_bytes(fm_dtype dtype, uint64_t n)
{
    const fm_dtype_info *type = fm_dtype_get(dtype);
    const uint64_t floats = type->is_block ? (n / type->block_elems + 2) * type->block_elems : 0;
    return coded_bytes(dtype, n) + (size_t)floats * sizeof(float);
}

fm_status rcp_floats(const fms_inputs *in, uint32_t k, uint64_t first, uint64_t n, float *dst,
                     uint8_t *scratch)
{
    const fm_dtype dtype = in->input[k].dtype;
    const fm_dtype_info *type = fm_dtype_get(dtype);
    uint64_t from, count;
    blocks_of(dtype, first, n, &from, &count);
    fm_status rc = in->read(in->ctx, k, from * type->block_bytes, scratch,
                            (size_t)(count * type->block_bytes));
    if (rc != FM_OK || !type->is_block)
        return rc == FM_OK ? fm_to_f32(dst, dtype, scratch, n) : rc;
    float *wide = (float *)(void *)(scratch + coded_bytes(dtype, n));
    rc = fm_to_f32(wide, dtype, scratch, count * type->block_elems);
    if (rc == FM_OK)
        memcpy(dst, wide + (first - from * type->block_elems), (size_t)n * sizeof *dst);
    return rc;
}

float rcp_narrow(fm_dtype dtype, float v)
{
    if (dtype == FM_BF16)
        return fm_bf16_to_f32(fm_f32_to_bf16(v));
    return dtype == FM_F16 ? fm_f16_to_f32(fm_f32_to_f16(v)) : v;
}

void rcp_narrow_all(fm_dtype dtype, float *v, uint64_t n)
{
    for (uint64_t i = 0; dtype != FM_F32 && i < n; i++)
        v[i] = rcp_narrow(dtype, v[i]);
}

/* Which NaN arithmetic gives is the machine's choice, so it is made here. */
static uint32_t bits_of(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return isnan(v) ? 0x7fc00000u : u;
}

void rcp_store(uint8_t *dst, fm_dtype dtype, const float *src, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t u = bits_of(src[i]);
        float v;
        memcpy(&v, &u, sizeof v);
        if (dtype == FM_F32)
            fm_put_u32(dst + 4 * i, u);
        else
            fm_put_u16(dst + 2 * i, dtype == FM_BF16 ? fm_f32_to_bf16(v) : fm_f32_to_f16(v));
    }
}

/* More leaves than elements can be spread over: the parts of a leaf's elements in the input. */
uint64_t rcp_elementwise_touches(const fms_recipe *r, const fms_inputs *in, uint32_t k)
{
    (void)r;
    const fm_dtype_info *c = fm_dtype_get(in->child.dtype), *p = fm_dtype_get(in->input[k].dtype);
    if (!c->is_block && !p->is_block && p->block_bytes <= c->block_bytes)
        return 1; /* both sizes are powers of two: a leaf's elements lie within one leaf */
    const uint64_t elems = (FM_LEAF_BYTES / c->block_bytes + 2) * c->block_elems;
    return (elems / p->block_elems + 2) * p->block_bytes / FM_LEAF_BYTES + 2;
}

uint64_t rcp_all_touches(const fms_recipe *r, const fms_inputs *in, uint32_t k)
{
    (void)r;
    return (in->input[k].bytes + FM_LEAF_BYTES - 1) / FM_LEAF_BYTES;
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
