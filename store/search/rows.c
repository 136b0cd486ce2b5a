/* rows.c - does the tensor consist of other tensors' rows? Vocabularies that grew or shrank,
 * fused and split projections, GGUF's rotary order, other shapes of the same bytes, transposes.
 *
 * Rows are compared by a 64-bit hash; a collision would cost bytes and nothing else. */
#include <stdlib.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/search/search_impl.h"

#define PARTS_MAX FMS_PARENTS_MAX
#define NEAR_MAX 32u /* tensors of the same layer to probe */
#define PROBES 8u
#define READ_MAX (256ull << 20)
#define ROWS_MAX (1u << 20)

/* ==== hashes of rows ======================================================================= */

static uint64_t hash_row(const uint8_t *p, size_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ n;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        h = (h ^ fm_get_u64(p + i)) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    for (; i < n; i++)
        h = (h ^ p[i]) * 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 29;
}

typedef struct row_list {
    uint64_t *hash;
    uint32_t rows;
} row_list;

/* From a hash to the first row that has it; open addressing, 0 = empty. */
typedef struct row_map {
    uint32_t *slot; /* 1 + number in all[] */
    uint32_t mask;
    const uint64_t *all;
} row_map;

static fm_status map_rows(row_map *m, const uint64_t *all, uint32_t count)
{
    uint32_t size = 64;
    while (size < 2 * count)
        size *= 2;
    m->slot = fm_calloc(size, sizeof *m->slot);
    m->mask = size - 1;
    m->all = all;
    if (!m->slot)
        return FM_ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = (uint32_t)all[i] & m->mask;
        while (m->slot[at] && all[m->slot[at] - 1] != all[i])
            at = (at + 1) & m->mask;
        if (!m->slot[at])
            m->slot[at] = i + 1;
    }
    return FM_OK;
}

static uint32_t find_row(const row_map *m, uint64_t hash) /* UINT32_MAX: none */
{
    uint32_t at = (uint32_t)hash & m->mask;
    while (m->slot[at] && m->all[m->slot[at] - 1] != hash)
        at = (at + 1) & m->mask;
    return m->slot[at] - 1; /* 0 - 1: none */
}

/* ==== the search's own work ================================================================ */

typedef struct rows_work {
    fms_search *s;
    uint64_t row_bytes;
    row_list child;
    row_map child_map;
    uint32_t part[PARTS_MAX]; /* sources */
    row_list of[PARTS_MAX];
    uint32_t parts;
    uint64_t read_bytes, read_rows;
    uint8_t *row;
} rows_work;

static uint64_t rows_of(const fms_form *f)
{
    return f->shape.rank ? f->shape.dim[0] : 0;
}

static bool same_rows(const rows_work *w, fm_dtype dtype, const fm_shape *shape, uint64_t bytes)
{
    const uint64_t rows = shape->rank ? shape->dim[0] : 0;
    return dtype == w->s->subject->form.dtype && rows && bytes / rows == w->row_bytes;
}

static fm_status hash_child(rows_work *w)
{
    const fms_subject *sub = w->s->subject;
    const uint64_t rows = rows_of(&sub->form);
    uint8_t *buf = fm_malloc(FM_LEAF_BYTES);
    uint64_t row = 0;
    size_t have = 0;
    fm_status rc = FM_OK;
    w->child.hash = fm_malloc((size_t)rows * sizeof(uint64_t));
    if (!buf || !w->child.hash)
        rc = FM_ENOMEM;
    for (uint32_t i = 0; rc == FM_OK && i < fms_leaf_count(sub->form.bytes); i++) {
        fm_span leaf;
        rc = sub->leaf(sub->ctx, i, buf, &leaf);
        for (size_t at = 0; rc == FM_OK && at < leaf.len;) { /* a row may span two leaves */
            const size_t n = FM_MIN(leaf.len - at, (size_t)w->row_bytes - have);
            memcpy(w->row + have, leaf.data + at, n);
            at += n;
            have += n;
            if (have == w->row_bytes) {
                w->child.hash[row++] = hash_row(w->row, have);
                have = 0;
            }
        }
    }
    w->child.rows = (uint32_t)row;
    fm_free(buf);
    return rc == FM_OK ? map_rows(&w->child_map, w->child.hash, w->child.rows) : rc;
}

/* Looks for some rows of the source in the tensor; *hit: one was found. */
static fm_status probe(rows_work *w, uint32_t source, bool *hit)
{
    const uint64_t rows = rows_of(&w->s->source[source].form);

    *hit = false;
    for (uint64_t k = 0; k < PROBES && !*hit; k++) {
        const uint64_t row = (rows - 1) * k / (PROBES - 1);
        FM_TRY(src_read(w->s, source, row * w->row_bytes, w->row, (size_t)w->row_bytes));
        *hit = find_row(&w->child_map, hash_row(w->row, (size_t)w->row_bytes)) != UINT32_MAX;
    }
    return FM_OK;
}

static fm_status hash_part(rows_work *w, uint32_t source, row_list *out)
{
    const uint64_t rows = rows_of(&w->s->source[source].form);
    fm_status rc = FM_OK;
    out->hash = fm_malloc((size_t)rows * sizeof(uint64_t));
    out->rows = (uint32_t)rows;
    if (!out->hash)
        return FM_ENOMEM;
    for (uint64_t r = 0; rc == FM_OK && r < rows; r++) {
        rc = src_read(w->s, source, r * w->row_bytes, w->row, (size_t)w->row_bytes);
        out->hash[r] = hash_row(w->row, (size_t)w->row_bytes);
    }
    return rc;
}

static fm_status add_part(rows_work *w, uint32_t source)
{
    const fms_form *f = &w->s->source[source].form;
    bool hit = false;
    for (uint32_t k = 0; k < w->parts; k++)
        if (w->part[k] == source)
            return FM_OK;
    if (w->parts == PARTS_MAX || w->read_bytes + f->bytes > READ_MAX ||
        w->read_rows + rows_of(f) > ROWS_MAX || w->s->source[source].depth >= FMS_CHAIN_MAX)
        return FM_OK;
    fm_status rc = probe(w, source, &hit);
    if (rc != FM_OK || !hit)
        return rc;
    w->read_bytes += f->bytes;
    w->read_rows += rows_of(f);
    w->part[w->parts++] = source;
    return hash_part(w, source, &w->of[w->parts - 1]);
}

/* ==== which tensors ======================================================================== */

/* The first part of the path that is a number, which is the layer's. */
static fm_span layer_of(const char *path)
{
    for (const char *p = path; *p;) {
        const size_t n = strcspn(p, "/"), digits = strspn(p, "0123456789");
        if (digits == n && n > 0)
            return fm_span_of(p, n);
        p += n + (p[n] == '/');
    }
    return fm_span_of("", 0);
}

static fm_status add_near(rows_work *w)
{
    fms_search *s = w->s;
    const fm_span layer = layer_of(s->subject->path);
    uint32_t probed = 0;

    for (uint32_t t = 0; t < s->trees && probed < NEAR_MAX; t++) {
        size_t begin, end;
        fm_tree_range(s->tree[t], "tensors/", &begin, &end);
        for (size_t i = begin; i < end && probed < NEAR_MAX; i++) {
            const fm_entry *e = fm_tree_at(s->tree[t], i);
            uint32_t at;
            if (e->kind != FM_ENTRY_TENSOR || !same_rows(w, e->dtype, &e->shape, e->bytes) ||
                !fm_span_eq(layer_of(e->path), layer))
                continue;
            const uint32_t before = s->sources;
            FM_TRY(src_open(s, &e->id, &at));
            probed += s->sources > before;
            if (at != UINT32_MAX)
                FM_TRY(add_part(w, at));
        }
    }
    return FM_OK;
}

/* ==== pieces =============================================================================== */

static void put_piece(fm_buf *b, uint32_t input, uint64_t from, uint64_t bytes)
{
    fm_buf_u32(b, input);
    fm_buf_u64(b, from);
    fm_buf_u64(b, bytes);
}

typedef struct run {
    uint32_t part; /* FMS_PIECE_ZEROS: no part has these rows */
    uint32_t row;
    uint32_t rows;
} run;

/* A part's row that equals row i of the child: the one after `last` if it does, else any. */
static run locate(const rows_work *w, const row_map *all, uint32_t i, const run *last)
{
    const uint64_t h = w->child.hash[i];
    if (last->part < w->parts && last->row + last->rows < w->of[last->part].rows &&
        w->of[last->part].hash[last->row + last->rows] == h)
        return (run){last->part, last->row + last->rows, 1};
    uint32_t at = find_row(all, h);
    if (at == UINT32_MAX)
        return (run){FMS_PIECE_ZEROS, 0, 1};
    uint32_t part = 0;
    while (at >= w->of[part].rows)
        at -= w->of[part++].rows;
    return (run){part, at, 1};
}

static bool follows(const run *last, const run *next)
{
    return last->part == next->part &&
           (last->part == FMS_PIECE_ZEROS || last->row + last->rows == next->row);
}

/* Appends a run as a piece. The parts that are used get the numbers 0, 1, ... in the recipe. */
static void emit(const rows_work *w, fm_buf *b, const run *r, uint32_t *number, uint32_t *used,
                 uint32_t *source)
{
    if (r->part == FMS_PIECE_ZEROS) {
        put_piece(b, FMS_PIECE_ZEROS, 0, r->rows * w->row_bytes);
        return;
    }
    if (number[r->part] == UINT32_MAX) {
        number[r->part] = *used;
        source[(*used)++] = w->part[r->part];
    }
    put_piece(b, number[r->part], r->row * w->row_bytes, r->rows * w->row_bytes);
}

static fm_status try_pieces(rows_work *w, const row_map *all)
{
    uint32_t number[PARTS_MAX], source[PARTS_MAX] = {0}, used = 0, missing = 0;
    fm_buf b;
    memset(number, 0xff, sizeof number);
    fm_buf_init(&b, FMS_PARAMS_MAX);
    run last = {FMS_PIECE_ZEROS, 0, 0};
    for (uint32_t i = 0; i < w->child.rows; i++) {
        const run next = locate(w, all, i, &last);
        missing += next.part == FMS_PIECE_ZEROS;
        if (last.rows && follows(&last, &next)) {
            last.rows++;
            continue;
        }
        if (last.rows)
            emit(w, &b, &last, number, &used, source);
        last = next;
    }
    emit(w, &b, &last, number, &used, source);
    fm_status rc = FM_OK;
    if (b.failed == FM_ENOMEM)
        rc = FM_ENOMEM;
    else if (b.failed == FM_OK && used > 0 && missing < w->child.rows / 4 * 3) {
        const fms_recipe r = {FMS_OP_GATHER, FMS_GATHER_PIECES, fm_buf_span(&b)};
        rc = src_try(w->s, &r, source, used, NULL);
    }
    fm_buf_release(&b);
    return rc;
}

static fm_status join_and_try(rows_work *w)
{
    row_map all = {NULL, 0, NULL};
    uint64_t *hash = fm_malloc((size_t)w->read_rows * sizeof *hash);
    size_t at = 0;
    if (!hash)
        return FM_ENOMEM;
    for (uint32_t k = 0; k < w->parts; k++) {
        memcpy(hash + at, w->of[k].hash, w->of[k].rows * sizeof *hash);
        at += w->of[k].rows;
    }
    fm_status rc = map_rows(&all, hash, (uint32_t)at);
    FM_THEN(rc, try_pieces(w, &all));
    fm_free(all.slot);
    fm_free(hash);
    return rc;
}

static fm_status by_rows(fms_search *s)
{
    const fms_form *c = &s->subject->form;
    const uint64_t rows = rows_of(c);
    if (rows < 2 || rows > ROWS_MAX || c->bytes > READ_MAX || c->shape.rank < 2)
        return FM_OK;
    rows_work w = {.s = s, .row_bytes = c->bytes / rows};
    w.row = fm_malloc((size_t)w.row_bytes);
    fm_status rc = w.row ? hash_child(&w) : FM_ENOMEM;
    for (uint32_t i = 0; rc == FM_OK && i < s->path_sources; i++)
        if (same_rows(&w, s->source[i].form.dtype, &s->source[i].form.shape,
                      s->source[i].form.bytes))
            rc = add_part(&w, i);
    FM_THEN(rc, add_near(&w));
    if (rc == FM_OK && w.parts)
        rc = join_and_try(&w);
    for (uint32_t k = 0; k < w.parts; k++)
        fm_free(w.of[k].hash);
    fm_free(w.child.hash);
    fm_free(w.child_map.slot);
    fm_free(w.row);
    return rc;
}

/* ==== the same bytes in another form ======================================================= */

static fm_status try_whole(fms_search *s, uint32_t at, uint64_t bytes)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    const uint64_t rest = s->subject->form.bytes - bytes;
    put_piece(&b, 0, 0, bytes);
    if (rest)
        put_piece(&b, FMS_PIECE_ZEROS, 0, rest);
    const fms_recipe r = {FMS_OP_GATHER, FMS_GATHER_PIECES, fm_buf_span(&b)};
    fm_status rc = fm_buf_ok(&b);
    FM_THEN(rc, src_try(s, &r, &at, 1, NULL));
    fm_buf_release(&b);
    return rc;
}

static bool turned(const fm_shape *a, const fm_shape *b)
{
    fm_shape t = *a;
    if (a->rank < 2 || a->rank != b->rank)
        return false;
    t.dim[t.rank - 2] = a->dim[t.rank - 1];
    t.dim[t.rank - 1] = a->dim[t.rank - 2];
    return fm_shape_eq(&t, b);
}

fm_status src_same_bytes(fms_search *s, const fm_entry *e)
{
    const fms_form *c = &s->subject->form;
    uint32_t at;
    if (e->dtype != c->dtype)
        return FM_OK;
    fm_status rc = src_open(s, &e->id, &at);
    if (rc != FM_OK || at == UINT32_MAX)
        return rc;
    if (e->bytes == c->bytes)
        rc = try_whole(s, at, c->bytes);
    else if (e->shape.rank && c->shape.rank == e->shape.rank && /* rows appended or cut off */
             e->bytes / FM_MAX(e->shape.dim[0], (uint64_t)1) ==
                 c->bytes / FM_MAX(c->shape.dim[0], (uint64_t)1))
        rc = try_whole(s, at, FM_MIN(e->bytes, c->bytes));
    const fms_recipe r = {.op = FMS_OP_TRANSPOSE};
    if (rc == FM_OK && turned(&e->shape, &c->shape) && e->bytes <= READ_MAX / 4)
        rc = src_try(s, &r, &at, 1, NULL);
    return rc;
}

/* Tries square matrices transposed, and rows in GGUF's rotary order. */
static fm_status by_order(fms_search *s)
{
    static const uint64_t head_dim[] = {64, 128, 32, 80, 96, 256, 16};
    const fms_form *c = &s->subject->form;

    for (uint32_t i = 0; i < s->path_sources; i++) {
        const fms_form *f = &s->source[i].form;
        if (f->dtype != c->dtype || !fm_shape_eq(&f->shape, &c->shape) || c->shape.rank < 1)
            continue;
        fms_recipe r = {.op = FMS_OP_TRANSPOSE};
        if (turned(&f->shape, &c->shape) && f->bytes <= READ_MAX / 4)
            FM_TRY(src_try(s, &r, &i, 1, NULL));
        for (size_t h = 0; h < FM_ARRAY_LEN(head_dim); h++) {
            uint8_t params[8];
            if (c->shape.dim[0] % head_dim[h])
                continue;
            fm_put_u64(params, c->shape.dim[0] / head_dim[h]);
            r = (fms_recipe){FMS_OP_GATHER, FMS_GATHER_ROTARY, fm_span_of(params, 8)};
            FM_TRY(src_try(s, &r, &i, 1, NULL));
            r.mode = FMS_GATHER_UNROTARY;
            FM_TRY(src_try(s, &r, &i, 1, NULL));
        }
    }
    return FM_OK;
}

/* For a tensor with nothing at its path: tensors of the same layer under other names. */
static fm_status by_form(fms_search *s)
{
    const fm_span layer = layer_of(s->subject->path);

    for (uint32_t t = 0, tried = 0; t < s->trees && tried < 8; t++) {
        size_t begin, end;
        fm_tree_range(s->tree[t], "tensors/", &begin, &end);
        for (size_t i = begin; i < end && tried < 8; i++) {
            const fm_entry *e = fm_tree_at(s->tree[t], i);
            uint32_t at;
            const bool same = fm_shape_eq(&e->shape, &s->subject->form.shape);
            if (e->kind != FM_ENTRY_TENSOR || e->dtype != s->subject->form.dtype ||
                e->bytes != s->subject->form.bytes || !fm_span_eq(layer_of(e->path), layer))
                continue;
            tried++;
            FM_TRY(same ? src_open(s, &e->id, &at) : src_same_bytes(s, e));
            const fms_recipe none = {.op = FMS_OP_NONE};
            if (same && at != UINT32_MAX)
                FM_TRY(src_try(s, &none, &at, 1, NULL));
        }
    }
    return FM_OK;
}

fm_status src_rows(fms_search *s)
{
    if (!s->subject->path)
        return FM_OK;
    FM_TRY(by_order(s));
    if (s->path_sources == 0)
        FM_TRY(by_form(s));
    if (s->best.count == 0 || s->best.bits > 0.05)
        FM_TRY(by_rows(s));
    return FM_OK;
}
