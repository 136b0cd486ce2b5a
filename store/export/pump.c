/* pump.c - reads segments' bytes in parts on several threads and gives them on in order, so that an
 * export holds a few megabytes whatever the tensors' sizes. */
#include "store/export/export_impl.h"

#include <string.h>

#include "store/base/mem.h"
#include "store/base/os/pool.h"
#include "store/import/source_impl.h"

enum { PART_BYTES = 2 << 20, MADE_BYTES = 8 << 20, HELD_BYTES = 64 << 20, WIDE_ELEMS = 1 << 14 };
enum { SLOTS_PER_THREAD = 2, SLOTS_MAX = 24 };

/* Bytes [skip, skip + bytes) of what is read or made from one place on: `span` bytes of an entry,
 * or `span` elements of a made weight. */
typedef struct part {
    const exp_segment *s;
    uint64_t from, span, skip, bytes;
    uint8_t *data, *more, *wide; /* buffers, reused by later batches */
    uint64_t data_cap, more_cap, wide_cap;
} part;

struct exp_pump {
    const fm_provider *p;
    unsigned flags;
    fm_pool *pool;
    part *part;
    size_t slots, used;
    uint64_t held;
    exp_factors factors; /* of the weight whose parts are queued */
    exp_sink_fn sink;
    exp_place_fn place_sink;
    void *ctx;
};

void exp_pump_free(exp_pump *m)
{
    if (!m)
        return;
    fm_pool_free(m->pool);
    for (size_t i = 0; m->part && i < m->slots; i++) {
        fm_free(m->part[i].data);
        fm_free(m->part[i].more);
        fm_free(m->part[i].wide);
    }
    fm_free(m->part);
    fm_free(m);
}

fm_status exp_pump_new(exp_pump **out, const fm_provider *p, unsigned threads_max, exp_sink_fn sink,
                       void *ctx)
{
    exp_pump *m = fm_calloc(1, sizeof *m);
    fm_status rc = m ? fm_pool_new(&m->pool, threads_max == 1 ? 1 : 0) : FM_ENOMEM;

    *out = NULL;
    if (rc == FM_OK && fm_pool_threads(m->pool) > threads_max) {
        fm_pool_free(m->pool);
        rc = fm_pool_new(&m->pool, threads_max);
    }
    if (rc == FM_OK) {
        m->p = p;
        m->sink = sink;
        m->ctx = ctx;
        m->slots = FM_MIN((size_t)fm_pool_threads(m->pool) * SLOTS_PER_THREAD, (size_t)SLOTS_MAX);
        m->part = fm_calloc(m->slots, sizeof *m->part);
        rc = m->part ? FM_OK : FM_ENOMEM;
    }
    if (rc < 0) {
        exp_pump_free(m);
        return rc;
    }
    *out = m;
    return FM_OK;
}

void exp_pump_flags(exp_pump *m, unsigned flags)
{
    m->flags = flags;
}

void exp_pump_places(exp_pump *m, exp_place_fn sink)
{
    m->place_sink = sink;
}

/* ==== parts ================================================================================ */

static fm_status need(uint8_t **data, uint64_t *cap, uint64_t bytes)
{
    if (bytes <= *cap)
        return FM_OK;
    fm_free(*data);
    *data = fm_malloc((size_t)bytes);
    *cap = *data ? bytes : 0;
    return *data ? FM_OK : FM_ENOMEM;
}

/* Bytes whose rows change places among themselves: those of a head, or all of a fused product. */
static uint64_t move_bytes(src_order order, uint64_t bytes)
{
    return order.queries > 0 ? bytes : bytes / order.heads;
}

/* The order of the rows in a part of so many bytes, which are whole moves. */
static src_order order_of_part(src_order order, uint64_t bytes, uint64_t move)
{
    return order.queries > 0 ? order : (src_order){(uint32_t)(bytes / move), 0};
}

/* A matrix whose columns become rows is made as a whole. */
static fm_status make_turned(const exp_pump *m, part *p)
{
    exp_weight wide = *p->s->made;
    const uint64_t rows = wide.base->shape.dim[0], cols = wide.base->shape.dim[1];
    const uint64_t stored = exp_stored_bytes(&wide, p->span), floats = p->span * sizeof(float);
    const uint64_t at_once = FM_MAX(exp_unit(&wide), (uint64_t)WIDE_ELEMS);

    FM_TRY(need(&p->data, &p->data_cap, FM_MAX(stored, floats)));
    FM_TRY(need(&p->more, &p->more_cap, FM_MAX(floats, exp_made_bytes(&wide, p->span))));
    FM_TRY(need(&p->wide, &p->wide_cap, at_once * sizeof(float)));
    FM_TRY(fm_entry_read_range(m->p, wide.base, 0, stored, p->data, m->flags));
    wide.dtype = FM_F32;
    FM_TRY(exp_make(p->more, (float *)(void *)p->wide, at_once, &wide, &m->factors, p->data, 0,
                    p->span));
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < cols; c++)
            memcpy(p->data + (c * rows + r) * sizeof(float),
                   p->more + (r * cols + c) * sizeof(float), sizeof(float));
    return exp_narrow(p->more, p->s->made, (float *)(void *)p->data, 0, p->span);
}

static fm_status make_rows(const exp_pump *m, part *p)
{
    const exp_weight *w = p->s->made;
    const uint64_t stored = exp_stored_bytes(w, p->span);
    const uint64_t wide = FM_MAX(exp_unit(w), (uint64_t)WIDE_ELEMS);
    const uint64_t made = exp_made_bytes(w, p->span);
    FM_TRY(need(&p->data, &p->data_cap, w->order.heads > 0 ? FM_MAX(stored, made) : stored));
    FM_TRY(need(&p->more, &p->more_cap, made));
    FM_TRY(need(&p->wide, &p->wide_cap, wide * sizeof(float)));
    const uint64_t from = p->from + w->skip;
    FM_TRY(
        fm_entry_read_range(m->p, w->base, exp_stored_bytes(w, from), stored, p->data, m->flags));
    FM_TRY(
        exp_make(p->more, (float *)(void *)p->wide, wide, w, &m->factors, p->data, from, p->span));
    if (w->order.heads > 0) {
        const uint64_t row_bytes = w->bytes / w->base->shape.dim[0];
        src_rows_to_gguf(p->data, p->more, made / row_bytes, row_bytes,
                         order_of_part(w->order, made, move_bytes(w->order, w->bytes)));
    }
    return FM_OK;
}

static fm_status make_part(const exp_pump *m, part *p)
{
    const exp_weight *w = p->s->made;
    const fm_status rc = w->turned ? make_turned(m, p) : make_rows(m, p);

    return rc == FM_OK ? rc : fm_error_prefix(rc, "tensor '%s'", w->name);
}

static fm_status read_part(const exp_pump *m, part *p)
{
    const exp_segment *s = p->s;

    if (s->literal)
        return FM_OK;
    if (s->made)
        return make_part(m, p);
    FM_TRY(need(&p->data, &p->data_cap, p->span));
    if (s->order.heads > 0)
        FM_TRY(need(&p->more, &p->more_cap, p->span));
    FM_TRY(fm_entry_read_range(m->p, s->e, p->from, p->span, p->data, m->flags));
    if (s->order.heads > 0) {
        const uint64_t row_bytes = s->e->bytes / s->e->shape.dim[0];
        src_rows_to_gguf(p->more, p->data, p->span / row_bytes, row_bytes,
                         order_of_part(s->order, p->span, move_bytes(s->order, s->e->bytes)));
    }
    return FM_OK;
}

static const uint8_t *part_data(const part *p)
{
    if (p->s->literal)
        return p->s->literal;
    return p->s->made ? (p->s->made->order.heads > 0 ? p->data : p->more)
                      : (p->s->order.heads > 0 ? p->more : p->data);
}

static fm_status read_parts(void *ctx, size_t begin, size_t end, unsigned worker)
{
    exp_pump *m = ctx;

    (void)worker;
    for (size_t i = begin; i < end; i++)
        FM_TRY(read_part(m, &m->part[i]));
    return FM_OK;
}

fm_status exp_pump_flush(exp_pump *m)
{
    fm_status rc = m->used > 0 ? fm_pool_run(m->pool, m->used, 1, read_parts, m) : FM_OK;

    for (size_t i = 0; rc == FM_OK && i < m->used; i++) {
        const part *p = &m->part[i];
        rc = m->sink(m->ctx, part_data(p) + p->skip, (size_t)p->bytes);
    }
    exp_pump_drop(m);
    return rc;
}

void exp_pump_drop(exp_pump *m)
{
    m->used = 0;
    m->held = 0;
}

/* Queues what of bytes [at, at + len) of the segment lies in [from, end). */
static fm_status add(exp_pump *m, const part *what, uint64_t at, uint64_t len, uint64_t from,
                     uint64_t end)
{
    part *p = &m->part[m->used++];

    p->s = what->s;
    p->from = what->from;
    p->span = what->span;
    p->skip = from > at ? from - at : 0;
    p->bytes = FM_MIN(len, end - at) - p->skip;
    m->held += len;
    return m->used == m->slots || m->held >= HELD_BYTES ? exp_pump_flush(m) : FM_OK;
}

/* ==== segments ============================================================================= */

/* Gives the bytes to the place sink if a file has them uncoded; *done: it did. */
static fm_status pump_place(exp_pump *m, const fm_entry *e, uint64_t offset, uint64_t bytes,
                            bool *done)
{
    fm_file_part place;
    fm_status rc = m->p->place(m->p->ctx, e, &place);

    *done = rc == FM_OK && place.path;
    if (*done)
        rc = exp_pump_flush(m);
    if (rc == FM_OK && *done)
        rc = m->place_sink(m->ctx, &place, offset, bytes);
    fm_free(place.path);
    return rc;
}

static fm_status add_entry(exp_pump *m, const exp_segment *s, uint64_t from, uint64_t end)
{
    fm_status rc = FM_OK;
    bool done = false;

    if (m->place_sink && m->p->place && end - from >= FM_LEAF_BYTES)
        rc = pump_place(m, s->e, s->from + from, end - from, &done);
    while (!done && rc == FM_OK && from < end) {
        /* Up to the end of a leaf, so that no leaf is read twice. */
        const uint64_t offset = s->from + from;
        const uint64_t len = FM_MIN(end - from, PART_BYTES - offset % PART_BYTES);
        rc = add(m, &(part){.s = s, .from = offset, .span = len}, from, len, from, end);
        from += len;
    }
    return rc;
}

static fm_status add_moved(exp_pump *m, const exp_segment *s, uint64_t from, uint64_t end)
{
    const uint64_t move = move_bytes(s->order, s->bytes);
    const uint64_t at_once = move * FM_MAX(PART_BYTES / move, (uint64_t)1);

    for (uint64_t at = from / move * move; at < end;) {
        const uint64_t len = FM_MIN(at_once, (end - at + move - 1) / move * move);
        FM_TRY(add(m, &(part){.s = s, .from = at, .span = len}, at, len, from, end));
        at += len;
    }
    return FM_OK;
}

/* Parts of whole units, with at most so many bytes as stored and as written, or of one unit. */
static fm_status add_made(exp_pump *m, const exp_segment *s, uint64_t from, uint64_t end)
{
    const exp_weight *w = s->made;
    const fm_dtype_info *to = fm_dtype_get(w->dtype);
    const uint64_t elems = w->bytes / to->block_bytes * to->block_elems;
    const uint64_t unit_elems = w->turned            ? elems
                                : w->order.heads > 0 ? move_bytes(w->order, elems)
                                                     : exp_unit(w);
    const uint64_t unit = exp_made_bytes(w, unit_elems);
    const uint64_t at_once =
        unit * FM_MAX(FM_MIN(PART_BYTES / exp_stored_bytes(w, unit_elems), MADE_BYTES / unit),
                      (uint64_t)1);

    for (uint64_t at = from / unit * unit; at < end;) {
        const uint64_t wanted = (end - at + unit - 1) / unit * unit;
        const uint64_t len = FM_MIN(at_once - at % at_once, wanted);
        const part p = {.s = s,
                        .from = at / to->block_bytes * to->block_elems,
                        .span = len / to->block_bytes * to->block_elems};
        FM_TRY(add(m, &p, at, len, from, end));
        at += len;
    }
    return FM_OK;
}

static fm_status add_merged(exp_pump *m, const exp_segment *s, uint64_t from, uint64_t end)
{
    fm_status rc = exp_pump_flush(m);

    FM_THEN(rc, exp_factors_read(&m->factors, s->made, m->p));
    FM_THEN(rc, add_made(m, s, from, end));
    FM_THEN(rc, exp_pump_flush(m));
    exp_factors_free(&m->factors);
    return rc;
}

fm_status exp_pump_add(exp_pump *m, const exp_segment *s, uint64_t from, uint64_t end)
{
    if (s->literal)
        return add(m, &(part){.s = s}, 0, s->bytes, from, end);
    if (s->made)
        return s->made->term_count > 0 ? add_merged(m, s, from, end) : add_made(m, s, from, end);
    return s->order.heads > 0 ? add_moved(m, s, from, end) : add_entry(m, s, from, end);
}
