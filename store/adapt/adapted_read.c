/* adapted_read.c - the bytes of what a view of adapted.h makes: weights with the steps of adapters
 * applied, factors, configs. */
#include <string.h>

#include "store/adapt/adapted_impl.h"
#include "store/base/mem.h"

/* Elements as floats; whole numbers (indices) as they are, if float32 holds them. */
static fm_status read_part(float **out, const fm_adapted *v, const fm_entry *e)
{
    uint64_t n = 0;
    FM_TRY(fm_shape_elems(&n, &e->shape));
    uint8_t *raw = fm_aligned_alloc(64, (size_t)FM_MAX(e->bytes, (uint64_t)1));
    float *x = *out = fm_malloc((size_t)FM_MAX(n, (uint64_t)1) * sizeof *x);
    fm_status rc = raw && x ? v->behind->read(v->behind->ctx, e, raw) : FM_ENOMEM;

    for (uint64_t i = 0; rc == FM_OK && i < n; i++) {
        if (e->dtype == FM_U8)
            x[i] = (float)raw[i];
        else if (e->dtype == FM_I16)
            x[i] = (float)(int16_t)fm_get_u16(raw + 2 * i);
        else if (e->dtype == FM_I32)
            x[i] = (float)(int32_t)fm_get_u32(raw + 4 * i);
        else if (e->dtype == FM_I64)
            x[i] = (float)(int64_t)fm_get_u64(raw + 8 * i);
        else
            break;
        if (!(x[i] >= -16777216.0f && x[i] <= 16777216.0f))
            rc = fm_fail(FM_EUNSUPPORTED, "adapter tensor '%s': an index beyond 2^24", e->name);
    }
    if (rc == FM_OK && fm_dtype_get(e->dtype)->is_float)
        rc = fm_to_f32(x, e->dtype, raw, n);
    fm_free(raw);
    return rc;
}

static fm_status with_parts(const fm_adapted *v, adt_work *w,
                            fm_status (*then)(adt_work *w, void *ctx), void *ctx)
{
    fm_status rc = FM_OK;

    for (size_t i = 0; rc == FM_OK && i < ADT_PARTS; i++)
        if (w->step->part[i])
            rc = read_part(&w->part[i], v, w->step->part[i]);
    FM_THEN(rc, then(w, ctx));
    for (size_t i = 0; i < ADT_PARTS; i++) {
        fm_free(w->part[i]);
        w->part[i] = NULL;
    }
    return rc;
}

static fm_status apply(adt_work *w, void *ctx)
{
    (void)ctx;
    return w->step->op->apply(w);
}

typedef struct factor {
    float *dst;
    bool b;
} factor;

static fm_status make_factor(adt_work *w, void *ctx)
{
    const factor *f = ctx;
    return w->step->op->factor(f->dst, w, f->b);
}

/* w [rows, cols] becomes its transpose. */
static fm_status turn(float *w, uint64_t rows, uint64_t cols)
{
    float *t = fm_malloc((size_t)(rows * cols) * sizeof *t);
    if (!t)
        return FM_ENOMEM;
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t k = 0; k < cols; k++)
            t[k * rows + i] = w[i * cols + k];
    memcpy(w, t, (size_t)(rows * cols) * sizeof *t);
    fm_free(t);
    return FM_OK;
}

/* Rounds to the base's 16-bit type, as PEFT does where a start takes a part out of the weight. */
static fm_status round_to(float *w, uint64_t n, fm_dtype dtype)
{
    uint8_t pair[2];

    for (uint64_t i = 0; (dtype == FM_BF16 || dtype == FM_F16) && i < n; i++) {
        FM_TRY(fm_from_f32(pair, dtype, &w[i], 1));
        FM_TRY(fm_to_f32(&w[i], dtype, pair, 1));
    }
    return FM_OK;
}

static fm_status apply_step(const fm_adapted *v, const adt_weight *weight, const adt_step *s,
                            float *w)
{
    const fm_shape *have = &weight->base->shape;
    const uint64_t rows = have->dim[0], cols = have->rank > 1 ? have->dim[1] : 1;
    adt_work work = {
        .step = s, .w = w, .out = s->turned ? cols : rows, .in = s->turned ? rows : cols};
    fm_status rc = s->turned ? turn(w, rows, cols) : FM_OK;

    FM_THEN(rc, with_parts(v, &work, apply, NULL));
    if (rc == FM_OK && s->turned)
        rc = turn(w, cols, rows);
    if (rc == FM_OK && s->op->flags & ADT_ROUND)
        rc = round_to(w, rows * cols, weight->base->dtype);
    return rc;
}

/* *out: the changed weight in float32. What is whole among the folded steps is where it starts. */
static fm_status make_weight(float **out, const fm_adapted *v, const adt_weight *w)
{
    const fm_entry *base = w->base;
    size_t first = 0;

    for (size_t i = 0; i < w->folded; i++)
        if (w->step[i].op->flags & ADT_WHOLE) {
            base = w->step[i].part[0];
            first = i + 1;
        }
    fm_status rc = read_part(out, v, base);
    for (size_t i = first; rc == FM_OK && i < w->folded; i++)
        rc = apply_step(v, w, &w->step[i], *out);
    return rc;
}

static fm_status make(const fm_adapted *v, const adt_made *m, void *dst)
{
    uint64_t n = 0;
    float *x = NULL;
    fm_status rc = fm_shape_elems(&n, &m->shape);

    if (m->text.len > 0) {
        memcpy(dst, m->text.data, m->text.len);
        return FM_OK;
    }
    if (rc == FM_OK && m->factor) {
        const fm_shape *have = &m->weight->base->shape;
        const bool turned = m->factor->turned;
        adt_work work = {
            .step = m->factor, .out = have->dim[turned ? 1 : 0], .in = have->dim[turned ? 0 : 1]};
        x = fm_malloc((size_t)n * sizeof *x);
        rc = x ? with_parts(v, &work, make_factor, &(factor){x, m->b}) : FM_ENOMEM;
    } else if (rc == FM_OK) {
        rc = make_weight(&x, v, m->weight);
    }
    FM_THEN(rc, fm_from_f32(dst, m->dtype, x, n));
    fm_free(x);
    return rc;
}

static const adt_made *made_of(const fm_adapted *v, const fm_entry *e)
{
    return e->kind != FM_ENTRY_FILE ? fm_map_get(v->by_id, e->id.b, sizeof e->id.b) : NULL;
}

static fm_status adapted_read(void *ctx, const fm_entry *e, void *dst)
{
    const fm_adapted *v = ctx;
    const adt_made *m = made_of(v, e);
    return m ? make(v, m, dst) : v->behind->read(v->behind->ctx, e, dst);
}

/* Parts of one weight come one after another: it is made once and kept until another is read. */
static fm_status adapted_range(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes,
                               void *dst, unsigned flags)
{
    fm_adapted *v = ctx;
    const adt_made *m = made_of(v, e);
    fm_status rc = FM_OK;

    if (!m)
        return fm_entry_read_range(v->behind, e, offset, bytes, dst, flags);
    if (offset > e->bytes || bytes > e->bytes - offset)
        return fm_fail(FM_EINVAL, "tensor '%s': bytes beyond its end", e->name);
    (void)pthread_mutex_lock(&v->lock);
    if (!v->last_bytes || !fm_digest_eq(&v->last, &e->id)) {
        fm_free(v->last_bytes);
        v->last = e->id;
        v->last_bytes = fm_malloc((size_t)e->bytes);
        rc = v->last_bytes ? make(v, m, v->last_bytes) : FM_ENOMEM;
    }
    if (rc == FM_OK) {
        memcpy(dst, v->last_bytes + offset, (size_t)bytes);
    } else {
        fm_free(v->last_bytes);
        v->last_bytes = NULL;
    }
    (void)pthread_mutex_unlock(&v->lock);
    return rc;
}

static fm_status adapted_view(void *ctx, const fm_entry *e, fm_span *out)
{
    const fm_adapted *v = ctx;
    *out = (fm_span){0};
    return made_of(v, e) || !v->behind->view ? FM_OK : v->behind->view(v->behind->ctx, e, out);
}

static fm_status adapted_place(void *ctx, const fm_entry *e, fm_file_part *out)
{
    const fm_adapted *v = ctx;
    *out = (fm_file_part){0};
    return made_of(v, e) || !v->behind->place ? FM_OK : v->behind->place(v->behind->ctx, e, out);
}

fm_provider adt_provider(fm_adapted *v)
{
    return (fm_provider){.ctx = v,
                         .read = adapted_read,
                         .view = v->behind->view ? adapted_view : NULL,
                         .range = adapted_range,
                         .place = v->behind->place ? adapted_place : NULL};
}
