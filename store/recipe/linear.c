/* linear.c - operations element by element: casts, sums of several tensors.
 *
 * Sums are computed in double and rounded after each operation: for +, -, *, / of float32 that
 * gives the correctly rounded float32 (53 >= 2 * 24 + 2 bits), so the same code serves every
 * arithmetic, and no compiler's fusing or reordering can change its bits. */
#include <math.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/recipe/recipe_impl.h"

#define TILE 16384u

/* ==== cast ================================================================================= */

fm_status rcp_cast_check(const fms_recipe *r, const fms_inputs *in)
{
    const fm_dtype from = in->input[0].dtype, to = in->child.dtype;
    if (r->mode != 0)
        return fm_fail(FM_EVERSION, "recipe 'cast', mode %u: needs a newer fmstore", r->mode);
    if (in->count != 1 || r->params.len)
        return rcp_refuse(r, "wants one parent and no parameters");
    if (!(rcp_is_plain_float(to) || to == FM_F64) || !(rcp_widens(from) || from == FM_F64))
        return rcp_refuse(r, "is no cast between floats");
    return rcp_same_elems(&in->child, &in->input[0])
               ? FM_OK
               : rcp_refuse(r, "the elements differ in number");
}

static double quiet(double v)
{
    const uint64_t bits = 0x7ff8000000000000u;
    double nan_of_ours;
    memcpy(&nan_of_ours, &bits, sizeof bits);
    return isnan(v) ? nan_of_ours : v;
}

static void store_f64(uint8_t *dst, const double *src, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        const double v = quiet(src[i]);
        uint64_t bits;
        memcpy(&bits, &v, sizeof bits);
        fm_put_u64(dst + 8 * i, bits);
    }
}

typedef struct cast_work {
    float wide[TILE];
    double f64[TILE];
    uint8_t scratch[]; /* rcp_scratch_bytes, but at least 8 * TILE */
} cast_work;

static fm_status cast_tile(const fms_inputs *in, cast_work *w, uint64_t first, uint64_t n,
                           uint8_t *dst)
{
    const bool from64 = in->input[0].dtype == FM_F64, to64 = in->child.dtype == FM_F64;
    FM_TRY(from64 ? in->read(in->ctx, 0, first * 8, w->scratch, (size_t)n * 8)
                  : rcp_floats(in, 0, first, n, w->wide, w->scratch));
    for (uint64_t i = 0; from64 && i < n; i++) {
        w->f64[i] = rcp_f64(w->scratch + 8 * i);
        w->wide[i] = (float)w->f64[i];
    }
    for (uint64_t i = 0; !from64 && to64 && i < n; i++)
        w->f64[i] = (double)w->wide[i];
    if (to64)
        store_f64(dst, w->f64, n);
    else if (from64)
        rcp_store(dst, in->child.dtype, w->wide, n);
    else /* NaN payloads are kept, as tensor/float16.c narrows them */
        FM_TRY(fm_from_f32(dst, in->child.dtype, w->wide, n));
    return FM_OK;
}

fm_status rcp_cast(const fms_recipe *r, const fms_inputs *in, const rcp_part *p, uint8_t *dst)
{
    (void)r;
    const size_t width = fm_dtype_get(in->child.dtype)->block_bytes;
    const size_t scratch =
        FM_MAX(rcp_scratch_bytes(in->input[0].dtype, TILE), (size_t)TILE * sizeof(double));
    cast_work *w = fm_malloc(sizeof *w + scratch);
    fm_status rc = w ? FM_OK : FM_ENOMEM;
    for (uint64_t at = 0; rc == FM_OK && at < p->count; at += TILE)
        rc = cast_tile(in, w, p->first + at, FM_MIN(p->count - at, (uint64_t)TILE),
                       dst + at * width);
    fm_free(w);
    return rc;
}

/* ==== sums ================================================================================= */

fm_status rcp_linear_check(const fms_recipe *r, const fms_inputs *in)
{
    if ((r->mode & 127u) >= FMS_LINEAR_FORMS || r->mode >> 8 >= FMS_ARITH_COUNT)
        return fm_fail(FM_EVERSION, "recipe 'linear', mode %u: needs a newer fmstore", r->mode);
    if (r->params.len != 8 * (size_t)in->count)
        return rcp_refuse(r, "wants one coefficient a parent");
    if (!rcp_is_plain_float(in->child.dtype))
        return rcp_refuse(r, "gives F32, BF16 or F16 only");
    for (uint32_t k = 0; k < in->count; k++)
        if (!rcp_widens(in->input[k].dtype) || !rcp_same_elems(&in->child, &in->input[k]))
            return rcp_refuse(r, "a parent is no float tensor of as many elements");
    return FM_OK;
}

#define FORCED static inline __attribute__((always_inline))

FORCED double rounded(fms_arithmetic a, fm_dtype dtype, double v)
{
    if (a == FMS_ARITH_F64)
        return v;
    const float f = (float)v;
    return (double)(a == FMS_ARITH_STORED ? rcp_narrow(dtype, f) : f);
}

/* sum + c x, in arithmetic a. */
FORCED double add_product(fms_arithmetic a, fm_dtype dtype, double c, double x, double sum)
{
    if (a == FMS_ARITH_FUSED)
        return (double)fmaf((float)c, (float)x, (float)sum);
    return rounded(a, dtype, rounded(a, dtype, c * x) + sum);
}

typedef struct sum_work {
    const float *x[FMS_PARENTS_MAX];
    double c[FMS_PARENTS_MAX];
    uint32_t inputs;
    fm_dtype dtype;
    float *out;
    uint64_t n;
} sum_work;

FORCED double x_at(const sum_work *w, uint32_t k, uint64_t i)
{
    return (double)w->x[k][i];
}

FORCED double weighted(const sum_work *w, fms_arithmetic a, uint64_t i)
{
    double sum = rounded(a, w->dtype, w->c[0] * x_at(w, 0, i));
    for (uint32_t k = 1; k < w->inputs; k++)
        sum = add_product(a, w->dtype, w->c[k], x_at(w, k, i), sum);
    return sum;
}

FORCED double plain_sum(const sum_work *w, fms_arithmetic a, uint64_t i)
{
    double sum = x_at(w, 0, i);
    for (uint32_t k = 1; k < w->inputs; k++)
        sum = rounded(a, w->dtype, sum + x_at(w, k, i));
    return sum;
}

FORCED double task(const sum_work *w, fms_arithmetic a, uint64_t i)
{
    const double base = x_at(w, 0, i);
    if (w->inputs < 2)
        return base;
    double d = rounded(a, w->dtype, x_at(w, 1, i) - base);
    if (w->inputs == 2) /* one difference: its product may be fused with the base */
        return add_product(a, w->dtype, w->c[1], d, base);
    double sum = rounded(a, w->dtype, w->c[1] * d);
    for (uint32_t k = 2; k < w->inputs; k++) {
        d = rounded(a, w->dtype, x_at(w, k, i) - base);
        sum = add_product(a, w->dtype, w->c[k], d, sum);
    }
    return rounded(a, w->dtype, base + sum);
}

FORCED void sum_tile(const sum_work *w, unsigned form, fms_arithmetic a)
{
    for (uint64_t i = 0; i < w->n; i++) {
        double v;
        if (form == FMS_LINEAR_SUM)
            v = weighted(w, a, i);
        else if (form == FMS_LINEAR_TASK)
            v = task(w, a, i);
        else if (form == FMS_LINEAR_SCALED)
            v = rounded(a, w->dtype, plain_sum(w, a, i) * w->c[0]);
        else
            v = rounded(a, w->dtype, plain_sum(w, a, i) / w->c[0]);
        w->out[i] = (float)v;
    }
}

FORCED void sum_form(const sum_work *w, unsigned form, unsigned arithmetic)
{
    switch (arithmetic) {
    case FMS_ARITH_F32:
        sum_tile(w, form, FMS_ARITH_F32);
        break;
    case FMS_ARITH_FUSED:
        sum_tile(w, form, FMS_ARITH_FUSED);
        break;
    case FMS_ARITH_F64:
        sum_tile(w, form, FMS_ARITH_F64);
        break;
    default:
        sum_tile(w, form, FMS_ARITH_STORED);
    }
}

static void sum_any(const sum_work *w, unsigned mode)
{
    switch (mode & 127u) {
    case FMS_LINEAR_SUM:
        sum_form(w, FMS_LINEAR_SUM, mode >> 8);
        break;
    case FMS_LINEAR_SCALED:
        sum_form(w, FMS_LINEAR_SCALED, mode >> 8);
        break;
    case FMS_LINEAR_DIVIDED:
        sum_form(w, FMS_LINEAR_DIVIDED, mode >> 8);
        break;
    default:
        sum_form(w, FMS_LINEAR_TASK, mode >> 8);
    }
}

static size_t largest_scratch(const fms_inputs *in)
{
    size_t most = 0;
    for (uint32_t k = 0; k < in->count; k++)
        most = FM_MAX(most, rcp_scratch_bytes(in->input[k].dtype, TILE));
    return most;
}

fm_status rcp_linear(const fms_recipe *r, const fms_inputs *in, const rcp_part *p, uint8_t *dst)
{
    const size_t width = fm_dtype_get(in->child.dtype)->block_bytes;
    float *x = fm_malloc((size_t)(in->count + 1) * TILE * sizeof *x);
    uint8_t *scratch = fm_malloc(largest_scratch(in));
    sum_work w = {.inputs = in->count, .dtype = in->child.dtype, .out = x};
    fm_status rc = x && scratch ? FM_OK : FM_ENOMEM;
    for (uint32_t k = 0; k < in->count; k++) {
        const double c = rcp_f64(r->params.data + 8 * (size_t)k);
        w.c[k] = r->mode >> 8 == FMS_ARITH_F64 ? c : (double)(float)c;
    }
    for (uint64_t at = 0; rc == FM_OK && at < p->count; at += TILE) {
        w.n = FM_MIN(p->count - at, (uint64_t)TILE);
        for (uint32_t k = 0; rc == FM_OK && k < in->count; k++) {
            float *to = x + (size_t)(k + 1) * TILE;
            rc = rcp_floats(in, k, p->first + at, w.n, to, scratch);
            if (r->mode & FMS_LINEAR_NARROW)
                rcp_narrow_all(in->child.dtype, to, w.n);
            w.x[k] = to;
        }
        if (rc != FM_OK)
            break;
        sum_any(&w, r->mode);
        rcp_store(dst + at * width, in->child.dtype, x, w.n);
    }
    fm_free(x);
    fm_free(scratch);
    return rc;
}
