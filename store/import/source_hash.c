/* source_hash.c - hashes every byte of a source for its file and for its leaf in one pass: both
 * digests are computed together, which costs little more than one of them, and the mapped bytes are
 * dropped from memory at once. Files are hashed in parallel. */
#include <stdlib.h>

#include "store/base/cancel.h"
#include "store/base/os/pool.h"
#include "store/import/source_impl.h"

enum { GAP_BYTES = 1 << 20, HASH_THREADS_MAX = 8 };

typedef struct walk {
    fm_source *src;
    const src_file *file;
    fm_hasher *whole;
    uint8_t *scratch; /* one leaf, for bytes that are in another order */
} walk;

static uint64_t leaf_count(uint64_t bytes)
{
    return bytes / FM_LEAF_BYTES + (bytes % FM_LEAF_BYTES != 0);
}

static bool is_moved(const src_piece *p)
{
    return p->order.heads > 0 || p->view;
}

static void let_go(const walk *w, const uint8_t *data, uint64_t bytes)
{
    fm_map_forget(&w->file->map, (size_t)(data - w->file->map.data), (size_t)bytes);
}

/* Hashes a tensor's leaves, and for `whole` (may be NULL) its bytes in the file's order. */
static fm_status hash_leaves(walk *w, src_tensor *t, fm_hasher *whole)
{
    const src_piece *p = t->piece;
    fm_status rc = FM_OK;

    for (uint64_t i = 0; rc == FM_OK && i < leaf_count(p->bytes); i++) {
        const uint64_t at = i * FM_LEAF_BYTES;
        const size_t n = (size_t)FM_MIN(p->bytes - at, (uint64_t)FM_LEAF_BYTES);
        rc = fm_go_on();
        if (rc < 0)
            return rc;
        if (is_moved(p))
            src_piece_copy(w->scratch, p, at, n);
        const fm_span leaf = fm_span_of(is_moved(p) ? w->scratch : p->data + at, n);
        rc = whole ? fm_hasher_along(whole, fm_span_of(p->data + at, n), &p->leaf[i], leaf)
                   : fm_sha256(&p->leaf[i], leaf.data, leaf.len);
        if (whole && p->order.heads == 0) /* else its rows are still needed */
            let_go(w, p->data + at, n);
    }
    if (whole && p->order.heads > 0)
        let_go(w, p->data, p->bytes);
    return rc == FM_OK ? fm_tensor_id_from_leaves(&t->id, t->dtype, &t->shape, p->bytes, p->leaf)
                       : rc;
}

static fm_status hash_gap(walk *w, uint64_t at, uint64_t end)
{
    fm_status rc = FM_OK;

    for (; rc == FM_OK && at < end; at += GAP_BYTES) {
        const size_t n = (size_t)FM_MIN(end - at, (uint64_t)GAP_BYTES);
        rc = fm_go_on();
        FM_THEN(rc, fm_hasher_update(w->whole, w->file->map.data + at, n));
        let_go(w, w->file->map.data + at, n);
    }
    return rc;
}

static int by_place(const void *a, const void *b)
{
    const src_tensor *const *x = a, *const *y = b;
    const uint8_t *p = (*x)->piece->data, *q = (*y)->piece->data;

    return p < q ? -1 : p > q;
}

/* Lists the tensors whose bytes are contiguous in the file, in the order of the file. */
static src_tensor **tensors_in(fm_source *src, const src_file *f, size_t *count)
{
    src_tensor **list = fm_malloc((f->end_tensor - f->first_tensor + 1) * sizeof(src_tensor *));
    const uint8_t *begin = f->map.data, *end = begin + f->map.len;

    *count = 0;
    for (size_t i = f->first_tensor; list && i < f->end_tensor; i++) {
        const src_piece *p = src->tensor[i].piece;
        if (!p->view && p->bytes > 0 && p->data >= begin && p->data < end)
            list[(*count)++] = &src->tensor[i];
    }
    if (list && *count > 0)
        qsort(list, *count, sizeof(src_tensor *), by_place);
    return list;
}

static fm_status hash_file(walk *w, src_file *f)
{
    size_t count;
    src_tensor **list = tensors_in(w->src, f, &count);
    uint64_t at = 0;
    fm_status rc = list ? FM_OK : FM_ENOMEM;

    w->file = f;
    for (size_t i = 0; rc == FM_OK && i < count; i++) {
        const uint64_t begin = (uint64_t)(list[i]->piece->data - f->map.data);
        list[i]->piece->map = &f->map;
        if (begin < at) { /* shares bytes with the tensor before */
            rc = hash_leaves(w, list[i], NULL);
            continue;
        }
        rc = hash_gap(w, at, begin);
        FM_THEN(rc, hash_leaves(w, list[i], w->whole));
        at = begin + list[i]->piece->bytes;
    }
    FM_THEN(rc, hash_gap(w, at, f->map.len));
    FM_THEN(rc, fm_hasher_final(w->whole, &f->sha));
    fm_free(list);
    return rc;
}

static fm_status walk_begin(walk *w, fm_source *src)
{
    *w = (walk){.src = src, .scratch = fm_malloc(FM_LEAF_BYTES)};
    return w->scratch ? fm_hasher_new(&w->whole) : FM_ENOMEM;
}

static void walk_end(walk *w)
{
    fm_hasher_free(w->whole);
    fm_free(w->scratch);
}

static fm_status hash_files(void *ctx, size_t begin, size_t end, unsigned worker)
{
    fm_source *src = ctx;
    walk w;
    fm_status rc = walk_begin(&w, src);

    (void)worker;
    for (size_t i = begin; rc == FM_OK && i < end; i++)
        rc = hash_file(&w, src->file[i]);
    walk_end(&w);
    return rc;
}

/* Hashes the tensors that no file holds contiguously. */
static fm_status hash_others(fm_source *src)
{
    walk w;
    fm_status rc = walk_begin(&w, src);

    for (size_t i = 0; rc == FM_OK && i < src->tensor_count; i++)
        if (fm_digest_is_zero(&src->tensor[i].id))
            rc = hash_leaves(&w, &src->tensor[i], NULL);
    walk_end(&w);
    return rc;
}

fm_status src_hash_all(fm_source *src)
{
    fm_pool *pool = NULL;
    const size_t threads = FM_MIN(src->file_count, (size_t)HASH_THREADS_MAX);
    fm_status rc = fm_pool_new(&pool, (unsigned)FM_MAX(threads, (size_t)1));

    FM_THEN(rc, fm_pool_run(pool, src->file_count, 1, hash_files, src));
    fm_pool_free(pool);
    return rc == FM_OK ? hash_others(src) : rc;
}
