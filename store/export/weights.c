/* weights.c - makes weights that are not written as they are stored: widened, merged, rounded. */
#include "store/export/export_impl.h"

#include <float.h>
#include <math.h>

#include "store/base/mem.h"
#include "store/quant/quantize.h"

/* *out: n floats, freed by fm_free. */
static fm_status read_f32(float **out, const fm_entry *e, const fm_provider *p)
{
    uint64_t n = 0;
    fm_buf raw;
    fm_status rc = fm_shape_elems(&n, &e->shape);

    *out = NULL;
    fm_buf_init(&raw, (size_t)FM_MAX_TENSOR_BYTES);
    FM_THEN(rc, fm_entry_read(&raw, p, e));
    if (rc == FM_OK) {
        *out = fm_malloc((size_t)n * sizeof **out);
        rc = *out ? fm_to_f32(*out, e->dtype, raw.data, n) : FM_ENOMEM;
    }
    fm_buf_release(&raw);
    if (rc < 0) {
        fm_free(*out);
        *out = NULL;
        rc = fm_error_prefix(rc, "tensor '%s'", e->name);
    }
    return rc;
}

void exp_factors_free(exp_factors *f)
{
    for (size_t i = 0; f->a && f->b && i < f->count; i++) {
        fm_free(f->a[i]);
        fm_free(f->b[i]);
    }
    fm_free(f->a);
    fm_free(f->b);
    *f = (exp_factors){NULL, NULL, 0};
}

fm_status exp_factors_read(exp_factors *out, const exp_weight *w, const fm_provider *p)
{
    const size_t n = w->term_count;

    *out = (exp_factors){fm_calloc(n, sizeof *out->a), fm_calloc(n, sizeof *out->b), n};
    fm_status rc = out->a && out->b ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < n; i++) {
        rc = read_f32(&out->a[i], w->term[i].a, p);
        FM_THEN(rc, read_f32(&out->b[i], w->term[i].b, p));
    }
    if (rc < 0)
        exp_factors_free(out);
    return rc;
}

uint64_t exp_unit(const exp_weight *w)
{
    return w->term_count > 0 || w->importance ? w->base->shape.dim[w->base->shape.rank - 1]
                                              : FM_MAX(fm_dtype_get(w->base->dtype)->block_elems,
                                                       fm_dtype_get(w->dtype)->block_elems);
}

uint64_t exp_stored_bytes(const exp_weight *w, uint64_t n)
{
    const fm_dtype_info *from = fm_dtype_get(w->base->dtype);
    return n / from->block_elems * from->block_bytes;
}

uint64_t exp_made_bytes(const exp_weight *w, uint64_t n)
{
    const fm_dtype_info *to = fm_dtype_get(w->dtype);
    return n / to->block_elems * to->block_bytes;
}

/* Rows by their weights; element `first` begins a row. */
static fm_status quantize_rows(uint8_t *out, const exp_weight *w, const float *wide, uint64_t first,
                               uint64_t n)
{
    const fm_shape *s = &w->shape;
    const uint64_t row = s->dim[s->rank - 1], rows = s->dim[s->rank - 2]; /* of a matrix */

    for (uint64_t at = 0; at < n; at += row) {
        const float *by = w->importance + (s->rank > 2 ? (first + at) / row / rows * row : 0);
        FM_TRY(fm_quantize_gguf(out + exp_made_bytes(w, at), w->dtype, wide + at, row, 1, by));
    }
    return FM_OK;
}

/* llama-quantize refuses what is not finite, and scales that float16 does not hold. */
fm_status exp_narrow(uint8_t *out, const exp_weight *w, const float *wide, uint64_t first,
                     uint64_t n)
{
    const fm_dtype_info *to = fm_dtype_get(w->dtype);
    uint64_t bad = 0;

    if (!fm_dtype_get(w->dtype)->is_block)
        return fm_from_f32(out, w->dtype, wide, n);
    for (uint64_t i = 0; i < n; i++)
        bad += !(fabsf(wide[i]) <= FLT_MAX);
    if (bad > 0)
        return fm_fail(
            FM_EUNSUPPORTED,
            "holds NaN or infinity, which %s's blocks cannot; choose --dtype F32, F16 or "
            "BF16",
            to->name);
    FM_TRY(w->importance ? quantize_rows(out, w, wide, first, n)
                         : fm_quantize_gguf(out, w->dtype, wide, n, 1, NULL));
    if (!fm_blocks_finite(w->dtype, out, n / to->block_elems))
        return fm_fail(FM_EUNSUPPORTED,
                       "holds values beyond what %s's blocks reach; choose --dtype F32 or BF16",
                       to->name);
    return FM_OK;
}

fm_status exp_make(uint8_t *out, float *wide, uint64_t wide_elems, const exp_weight *w,
                   const exp_factors *f, const uint8_t *stored, uint64_t first, uint64_t n)
{
    const uint64_t in = w->term_count > 0 ? w->base->shape.dim[1] : 1, unit = exp_unit(w);
    const uint64_t at_once = wide_elems / unit * unit;

    for (uint64_t at = 0; at < n; at += at_once) {
        const uint64_t now = FM_MIN(at_once, n - at);
        FM_TRY(fm_to_f32(wide, w->base->dtype, stored + exp_stored_bytes(w, at), now));
        for (size_t i = 0; i < w->term_count; i++) {
            const uint64_t r = w->term[i].a->shape.dim[0];
            fm_lora_merge(wide, f->a[i], f->b[i] + (first + at) / in * r, now / in, in, r,
                          w->term[i].scale);
        }
        for (uint64_t i = 0; w->plus_1 && i < now; i++)
            wide[i] += 1.0f;
        uint8_t *to = out + exp_made_bytes(w, at);
        FM_TRY(exp_narrow(to, w, wide, first + at, now));
    }
    return FM_OK;
}
