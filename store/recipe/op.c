/* op.c - shared by the operations of recipes: their names, and elements as floats. */
#include "store/recipe/recipe_impl.h"

#include <math.h>
#include <string.h>

const char *fms_op_name(uint16_t op)
{
    static const char *const name[FMS_OP_COUNT] = {
        [FMS_OP_NONE] = "none",   [FMS_OP_CAST] = "cast",           [FMS_OP_LINEAR] = "linear",
        [FMS_OP_LORA] = "lora",   [FMS_OP_GATHER] = "gather",       [FMS_OP_QUANT] = "quantize",
        [FMS_OP_ADAMW] = "adamw", [FMS_OP_TRANSPOSE] = "transpose",
    };
    return op < FMS_OP_COUNT && name[op] ? name[op] : "unknown";
}

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

/* The blocks that hold elements [first, first + n). */
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

/* Scratch bytes for the coded blocks of n elements; two more, since both ends may cut one. */
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

/* Which NaN arithmetic gives depends on the machine, so every NaN becomes 0x7fc00000. */
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

/* An upper bound of the input's leaves that hold the elements of one leaf of the child. */
uint64_t rcp_elementwise_touches(const fms_recipe *r, const fms_inputs *in, uint32_t k)
{
    (void)r;
    const fm_dtype_info *c = fm_dtype_get(in->child.dtype), *p = fm_dtype_get(in->input[k].dtype);
    if (!c->is_block && !p->is_block && p->block_bytes <= c->block_bytes)
        return 1; /* both sizes are powers of two, so one leaf of the input holds them */
    const uint64_t elems = (FM_LEAF_BYTES / c->block_bytes + 2) * c->block_elems;
    return (elems / p->block_elems + 2) * p->block_bytes / FM_LEAF_BYTES + 2;
}

uint64_t rcp_all_touches(const fms_recipe *r, const fms_inputs *in, uint32_t k)
{
    (void)r;
    return (in->input[k].bytes + FM_LEAF_BYTES - 1) / FM_LEAF_BYTES;
}
