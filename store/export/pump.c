/* pump.c - reads entries' bytes in parts on several threads and gives them on in order, so that an
 * export holds a few megabytes whatever the tensors' sizes. */
#include "store/export/export_impl.h"

#include <string.h>

#include "store/base/mem.h"
#include "store/base/os/pool.h"
#include "store/import/source_impl.h"

enum { PART_BYTES = 2 << 20, SLOTS_PER_THREAD = 2, SLOTS_MAX = 24, THREADS_MAX = 12 };

/* A segment of an entry; heads > 0: this many whole heads, to be put in GGUF's row order. */
typedef struct part {
    const fm_entry *e;
    uint64_t offset, bytes;
    uint64_t rows, row_bytes, heads;
    uint8_t *data, *turned; /* buffers, reused by later batches */
    uint64_t data_cap, turned_cap;
} part;

struct exp_pump {
    const fm_provider *p;
    unsigned flags;
    fm_pool *pool;
    part *part;
    size_t slots, used;
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
        fm_free(m->part[i].turned);
    }
    fm_free(m->part);
    fm_free(m);
}

fm_status exp_pump_new(exp_pump **out, const fm_provider *p, exp_sink_fn sink, void *ctx)
{
    exp_pump *m = fm_calloc(1, sizeof *m);
    fm_status rc = m ? fm_pool_new(&m->pool, 0) : FM_ENOMEM;

    *out = NULL;
    if (rc == FM_OK && fm_pool_threads(m->pool) > THREADS_MAX) {
        fm_pool_free(m->pool);
        rc = fm_pool_new(&m->pool, THREADS_MAX);
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

static fm_status need(uint8_t **data, uint64_t *cap, uint64_t bytes)
{
    if (bytes <= *cap)
        return FM_OK;
    fm_free(*data);
    *data = fm_malloc((size_t)bytes);
    *cap = *data ? bytes : 0;
    return *data ? FM_OK : FM_ENOMEM;
}

static fm_status read_part(const exp_pump *m, part *p)
{
    FM_TRY(need(&p->data, &p->data_cap, p->bytes));

    if (p->heads > 0)
        FM_TRY(need(&p->turned, &p->turned_cap, p->bytes));
    FM_TRY(fm_entry_read_range(m->p, p->e, p->offset, p->bytes, p->data, m->flags));
    if (p->heads > 0)
        src_rows_to_gguf(p->turned, p->data, p->rows, p->row_bytes, (uint32_t)p->heads);
    return FM_OK;
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
        rc = m->sink(m->ctx, p->heads > 0 ? p->turned : p->data, (size_t)p->bytes);
    }
    m->used = 0;
    return rc;
}

void exp_pump_drop(exp_pump *m)
{
    m->used = 0;
}

static fm_status add(exp_pump *m, const part *segment)
{
    part *p = &m->part[m->used++];

    p->e = segment->e;
    p->offset = segment->offset;
    p->bytes = segment->bytes;
    p->rows = segment->rows;
    p->row_bytes = segment->row_bytes;
    p->heads = segment->heads;
    return m->used == m->slots ? exp_pump_flush(m) : FM_OK;
}

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

fm_status exp_pump_entry(exp_pump *m, const fm_entry *e, uint64_t offset, uint64_t bytes)
{
    fm_status rc = FM_OK;
    bool done = false;

    if (m->place_sink && m->p->place && bytes >= FM_LEAF_BYTES && e->kind != FM_ENTRY_FILE)
        rc = pump_place(m, e, offset, bytes, &done);
    while (!done && rc == FM_OK && bytes > 0) {
        /* Up to the end of a leaf, so that no leaf is read twice. */
        const uint64_t stop = (offset / PART_BYTES + 1) * PART_BYTES;
        const part p = {.e = e, .offset = offset, .bytes = FM_MIN(bytes, stop - offset)};
        rc = add(m, &p);
        offset += p.bytes;
        bytes -= p.bytes;
    }
    return rc;
}

fm_status exp_pump_rotary(exp_pump *m, const fm_entry *e, uint64_t heads)
{
    const uint64_t rows = e->shape.dim[0], row_bytes = e->bytes / rows;
    const uint64_t head_bytes = e->bytes / heads;
    const uint64_t at_once = FM_MAX(PART_BYTES / FM_MAX(head_bytes, (uint64_t)1), (uint64_t)1);

    for (uint64_t h = 0; h < heads && e->bytes > 0; h += at_once) {
        const uint64_t n = FM_MIN(at_once, heads - h);
        const part p = {.e = e,
                        .offset = h * head_bytes,
                        .bytes = n * head_bytes,
                        .rows = rows / heads * n,
                        .row_bytes = row_bytes,
                        .heads = n};
        FM_TRY(add(m, &p));
    }
    return FM_OK;
}
