/* weights.c - writes planned weights by segments of rows: as stored, or widened, merged,
 * rounded. */
#include "store/export/export_impl.h"

#include "store/base/mem.h"

enum { SEGMENT_ELEMS = 1 << 20 };

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

/* One weight that is not written as it is stored. */
typedef struct made_weight {
    const exp_weight *w;
    float **a, **b; /* factors of each term */
    float *wide;    /* a segment as float32 */
    uint8_t *raw;   /* the segment as it is stored, then as it is written */
} made_weight;

static void made_free(made_weight *m)
{
    for (size_t i = 0; m->a && m->b && i < m->w->term_count; i++) {
        fm_free(m->a[i]);
        fm_free(m->b[i]);
    }
    fm_free(m->a);
    fm_free(m->b);
    fm_free(m->wide);
    fm_free(m->raw);
}

static fm_status made_open(made_weight *m, const exp_weight *w, const fm_provider *p,
                           uint64_t elems_at_once)
{
    const size_t n = w->term_count + 1;

    m->w = w;
    m->a = fm_calloc(n, sizeof *m->a);
    m->b = fm_calloc(n, sizeof *m->b);
    m->wide = fm_malloc((size_t)elems_at_once * sizeof *m->wide);
    m->raw = fm_malloc((size_t)elems_at_once * sizeof(double));
    if (!m->a || !m->b || !m->wide || !m->raw)
        return FM_ENOMEM;
    for (size_t i = 0; i < w->term_count; i++) {
        FM_TRY(read_f32(&m->a[i], w->term[i].a, p));
        FM_TRY(read_f32(&m->b[i], w->term[i].b, p));
    }
    return FM_OK;
}

/* Writes elements [at, at + n), which are whole rows where there are terms. */
static fm_status made_segment(made_weight *m, const fm_provider *p, uint64_t at, uint64_t n,
                              fm_writer *file)
{
    const exp_weight *w = m->w;
    const fm_dtype_info *from = fm_dtype_get(w->base->dtype), *to = fm_dtype_get(w->dtype);
    const uint64_t in = w->term_count > 0 ? w->base->shape.dim[1] : 1;
    FM_TRY(fm_entry_read_range(p, w->base, at / from->block_elems * from->block_bytes,
                               n / from->block_elems * from->block_bytes, m->raw, 0));

    FM_TRY(fm_to_f32(m->wide, w->base->dtype, m->raw, n));
    for (size_t i = 0; i < w->term_count; i++) {
        const uint64_t r = w->term[i].a->shape.dim[0];
        fm_lora_merge(m->wide, m->a[i], m->b[i] + at / in * r, n / in, in, r, w->term[i].scale);
    }
    FM_TRY(fm_from_f32(m->raw, w->dtype, m->wide, n));
    return fm_writer_write(file, m->raw, (size_t)(n * to->block_bytes));
}

static fm_status write_made(const exp_weight *w, const fm_provider *p, fm_writer *file)
{
    const fm_shape *s = &w->base->shape;
    const uint64_t row = s->rank > 1 ? FM_MAX(s->dim[s->rank - 1], (uint64_t)1)
                                     : fm_dtype_get(w->base->dtype)->block_elems;
    const uint64_t at_once = row * FM_MAX(SEGMENT_ELEMS / row, (uint64_t)1);
    made_weight m = {0};
    uint64_t n = 0;
    fm_status rc = fm_shape_elems(&n, s);

    FM_THEN(rc, made_open(&m, w, p, at_once));
    for (uint64_t at = 0; rc == FM_OK && at < n; at += at_once)
        rc = made_segment(&m, p, at, FM_MIN(at_once, n - at), file);
    made_free(&m);
    return rc == FM_OK ? rc : fm_error_prefix(rc, "tensor '%s'", w->name);
}

static fm_status take(void *ctx, const uint8_t *data, size_t len)
{
    return fm_writer_write(ctx, data, len);
}

static fm_status write_body(fm_writer *file, const fm_st_item *items, size_t count,
                            const fm_provider *p)
{
    exp_pump *pump = NULL;
    fm_status rc = exp_pump_new(&pump, p, take, file);

    for (size_t i = 0; rc == FM_OK && i < count; i++) {
        const exp_weight *w = items[i].user;
        if (w->dtype == w->base->dtype && w->term_count == 0) {
            rc = exp_pump_entry(pump, w->base, 0, w->base->bytes);
            continue;
        }
        rc = exp_pump_flush(pump);
        FM_THEN(rc, write_made(w, p, file));
    }
    FM_THEN(rc, exp_pump_flush(pump));
    exp_pump_free(pump);
    return rc;
}

fm_status exp_write_weights(const char *path, const exp_weight *weights, size_t count,
                            const fm_provider *p)
{
    fm_st_item *items = fm_calloc(count + 1, sizeof *items);
    fm_writer *file = NULL;
    uint64_t bytes = 0;
    fm_buf head;
    fm_status rc = items ? FM_OK : FM_ENOMEM;

    fm_buf_init(&head, 0);
    for (size_t i = 0; rc == FM_OK && i < count; i++)
        items[i] =
            (fm_st_item){weights[i].name, weights[i].dtype, weights[i].base->shape, &weights[i]};
    FM_THEN(rc, fm_st_header(&head, items, count));
    FM_THEN(rc, fm_writer_open(&file, path, NULL));
    for (size_t i = 0; i < count; i++)
        bytes += weights[i].bytes;
    FM_THEN(rc, fm_writer_reserve(file, head.len + bytes));
    FM_THEN(rc, fm_writer_write(file, head.data, head.len));
    FM_THEN(rc, write_body(file, items, count, p));
    FM_THEN(rc, fm_writer_commit(file, NULL));
    fm_writer_close(file);
    fm_buf_release(&head);
    fm_free(items);
    return rc;
}
