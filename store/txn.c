/* txn.c - writing: objects are coded into one new pack in tmp/, and the commit makes it durable.
 *
 * The order of a commit is pack bytes, fsync, rename, fsync of the folder, index. A crash before
 * the rename leaves a file in tmp/ that the next open removes; a crash after it leaves a pack that
 * the next open indexes. Leaves are coded in parallel and written in order, so the same input
 * gives the same pack on any machine and any number of threads. Memory: the largest tensor, its
 * coded form, and the leaves in flight. */
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/store_priv.h"

enum { LEAVES_PER_THREAD = 4 };

typedef struct staged_object {
    fm_digest id;
    uint64_t offset, stored_bytes;
    bool is_blob;
    fm_dtype dtype;
    fm_shape shape;
} staged_object;

struct fm_txn {
    fm_store *store;
    fm_pool *pool;
    unsigned threads;
    fmi_coder **coder; /* one a thread */
    fm_buf *slot;      /* coded leaves in flight: threads * LEAVES_PER_THREAD */
    size_t slots;
    fm_writer *writer; /* NULL until the first new object */
    fm_hasher *whole, *heads;
    fm_map *staged; /* id -> staged_object */
    fm_arena *arena;
    fm_buf head;
    uint64_t offset;
    fm_txn_stats stats;
    bool broken; /* a failed put may have written half a record: commit is refused */
};

/* ==== begin and close ====================================================================== */

fm_status fm_txn_begin(fm_txn **out, fm_store *s)
{
    *out = NULL;
    fm_txn *t = fm_calloc(1, sizeof *t);
    if (!t)
        return FM_ENOMEM;
    t->store = s;
    fm_buf_init(&t->head, 0);
    fm_status rc = fmi_store_lease_need(s); /* before the first look at what is stored */
    if (rc == FM_OK)
        rc = fm_pool_new(&t->pool, 0);
    if (rc != FM_OK)
        goto fail;
    t->threads = fm_pool_threads(t->pool);
    rc = FM_ENOMEM;
    t->coder = fm_calloc(t->threads, sizeof(fmi_coder *));
    t->slot = fm_calloc((size_t)t->threads * LEAVES_PER_THREAD, sizeof *t->slot);
    if (!t->coder || !t->slot)
        goto fail;
    t->slots = (size_t)t->threads * LEAVES_PER_THREAD;
    for (size_t i = 0; i < t->slots; i++)
        fm_buf_init(&t->slot[i], (size_t)4 * FM_LEAF_BYTES);
    rc = fm_map_new(&t->staged);
    if (rc == FM_OK)
        rc = fm_arena_new(&t->arena);
    if (rc == FM_OK)
        rc = fm_hasher_new(&t->whole);
    if (rc == FM_OK)
        rc = fm_hasher_new(&t->heads);
    for (unsigned i = 0; rc == FM_OK && i < t->threads; i++)
        rc = fmi_store_coder(s, &t->coder[i]);
    if (rc != FM_OK)
        goto fail;
    pthread_mutex_lock(&s->mutex);
    rc = fmi_store_refresh(s); /* once: what others store meanwhile is stored twice, harmlessly */
    pthread_mutex_unlock(&s->mutex);
    if (rc != FM_OK)
        goto fail;
    *out = t;
    return FM_OK;
fail:
    fm_txn_close(t);
    return rc;
}

void fm_txn_close(fm_txn *t)
{
    if (!t)
        return;
    fm_writer_close(t->writer);
    fm_pool_free(t->pool);
    for (unsigned i = 0; t->coder && i < t->threads; i++)
        fmi_store_coder_return(t->store, t->coder[i]);
    fm_free(t->coder);
    for (size_t i = 0; i < t->slots; i++)
        fm_buf_release(&t->slot[i]);
    fm_free(t->slot);
    fm_hasher_free(t->whole);
    fm_hasher_free(t->heads);
    fm_map_free(t->staged);
    fm_arena_free(t->arena);
    fm_buf_release(&t->head);
    fm_free(t);
}

/* ==== writing records ====================================================================== */

static fm_status append(fm_txn *t, const void *data, size_t len)
{
    fm_status rc = fm_writer_write(t->writer, data, len);
    if (rc == FM_OK)
        rc = fm_hasher_update(t->whole, data, len);
    t->offset += len;
    return rc;
}

static fm_status start_pack(fm_txn *t)
{
    if (t->writer)
        return FM_OK;
    fm_status rc = fm_writer_open(&t->writer, NULL, t->store->tmp_dir);
    uint8_t header[FMI_PACK_HEADER_BYTES];
    fmi_pack_header(header, 0);
    return rc == FM_OK ? append(t, header, sizeof header) : rc;
}

static fm_status remember(fm_txn *t, const fmi_record *r, uint64_t offset)
{
    staged_object *o = fm_arena_alloc(t->arena, sizeof *o);
    if (!o)
        return FM_ENOMEM;
    o->id = r->id;
    o->offset = offset;
    o->stored_bytes = t->offset - offset;
    o->is_blob = r->is_blob;
    o->dtype = r->dtype;
    o->shape = r->shape;
    return fm_map_put(t->staged, o->id.b, FM_DIGEST_BYTES, o, NULL);
}

static fm_status write_record(fm_txn *t, const fmi_record *r, const fmi_leaf_row *rows,
                              const fm_buf *payload)
{
    static const uint8_t zero[FMI_PACK_ALIGN];
    fm_status rc = start_pack(t);
    if (rc != FM_OK)
        return rc;
    uint64_t offset = t->offset;
    fm_buf_clear(&t->head);
    rc = fmi_record_head(&t->head, r, rows);
    if (rc == FM_OK)
        rc = append(t, t->head.data, t->head.len);
    if (rc == FM_OK)
        rc = fm_hasher_update(t->heads, t->head.data + t->head.len - FM_DIGEST_BYTES,
                              FM_DIGEST_BYTES);
    if (rc == FM_OK && payload->len)
        rc = append(t, payload->data, payload->len);
    size_t over = payload->len % FMI_PACK_ALIGN;
    if (rc == FM_OK && over)
        rc = append(t, zero, FMI_PACK_ALIGN - over);
    return rc == FM_OK ? remember(t, r, offset) : rc;
}

static fm_status read_staged(void *ctx, const fm_digest *id, uint8_t **bytes, size_t *len)
{
    fm_txn *t = ctx;
    const staged_object *o = fm_map_get(t->staged, id->b, FM_DIGEST_BYTES);
    if (!o)
        return FM_ENOTFOUND;
    *len = (size_t)o->stored_bytes;
    *bytes = fm_malloc(*len);
    if (!*bytes)
        return FM_ENOMEM;
    return fm_writer_pread(t->writer, o->offset, *bytes, *len);
}

/* ==== coding =============================================================================== */

typedef struct put_job {
    fm_txn *t;
    fmi_record r;
    fm_span bytes;
    fm_digest *leaf;
    fmi_leaf_row *rows;
    const fmi_chain *basis; /* a draft of the record; NULL: coded alone */
    uint32_t first;         /* the leaf that slot 0 holds */
} put_job;

static fm_span leaf_span(const put_job *j, uint32_t i)
{
    return fm_span_of(j->bytes.data + (size_t)i * FM_LEAF_BYTES, fmi_leaf_bytes(j->bytes.len, i));
}

static fm_status hash_leaves(void *ctx, size_t begin, size_t end, unsigned worker)
{
    put_job *j = ctx;
    (void)worker;
    fm_status rc = FM_OK;
    for (size_t i = begin; rc == FM_OK && i < end; i++) {
        fm_span leaf = leaf_span(j, (uint32_t)i);
        rc = fm_sha256(&j->leaf[i], leaf.data, leaf.len);
    }
    return rc;
}

static fm_status code_leaves(void *ctx, size_t begin, size_t end, unsigned worker)
{
    put_job *j = ctx;
    fmi_coder *c = j->t->coder[worker];
    for (size_t k = begin; k < end; k++) {
        uint32_t i = j->first + (uint32_t)k;
        const uint8_t *parent = NULL;
        fm_status rc = FM_OK;
        if (j->basis) {
            uint8_t *to = fmi_coder_scratch(c, 0);
            rc = fmi_chain_predict(j->basis, c, i, to);
            parent = to;
        }
        fm_buf *slot = &j->t->slot[k];
        fm_buf_clear(slot);
        fmi_leaf_at at = fmi_leaf_at_of(j->r.dtype, &j->r.shape, i);
        if (rc == FM_OK)
            rc = fmi_leaf_encode(c, slot, &j->rows[i].codec, &at, leaf_span(j, i), parent);
        if (rc != FM_OK)
            return rc;
        j->rows[i].digest = j->leaf[i];
        j->rows[i].stored_bytes = (uint32_t)slot->len;
    }
    return FM_OK;
}

static fm_status code_all(put_job *j, fm_buf *payload)
{
    fm_status rc = FM_OK;
    uint32_t n = j->r.leaf_count;
    for (j->first = 0; rc == FM_OK && j->first < n;) {
        size_t batch = FM_MIN((size_t)(n - j->first), j->t->slots);
        rc = fm_pool_run(j->t->pool, batch, 1, code_leaves, j);
        for (size_t k = 0; rc == FM_OK && k < batch; k++)
            fm_buf_append(payload, j->t->slot[k].data, j->t->slot[k].len);
        if (rc == FM_OK)
            rc = fm_buf_ok(payload);
        j->first += (uint32_t)batch;
    }
    return rc;
}

/* A parent whose stored bytes are damaged must not cost its child, which may be hours of work: the
 * child is then coded alone. Who reads the parent, and fsck, speak of the damage. */
static fm_status code_against(put_job *j, const fmi_chain *basis, fm_buf *payload)
{
    j->basis = basis;
    fm_status rc = code_all(j, payload);
    if (rc == FM_ECORRUPT && basis) {
        fm_buf_clear(payload);
        j->basis = NULL;
        rc = code_all(j, payload);
    }
    return rc;
}

/* The record names its parents and recipe where a leaf makes use of them. */
static void name_basis(put_job *j)
{
    bool used = false;
    for (uint32_t i = 0; i < j->r.leaf_count; i++)
        used = used || fmi_codec_needs_parent(j->rows[i].codec);
    if (!used || !j->basis)
        return;
    const fmi_record *draft = &j->basis->link[0];
    j->r.depth = draft->depth;
    j->r.parent_count = draft->parent_count;
    memcpy(j->r.parent, draft->parent, sizeof j->r.parent);
    j->r.recipe = draft->recipe;
}

static fm_status put_new(put_job *j, const fmi_chain *basis)
{
    fm_buf payload;
    fm_buf_init(&payload, (size_t)FM_MAX_TENSOR_BYTES);
    fm_status rc = FM_ENOMEM;
    j->rows = fm_calloc((size_t)j->r.leaf_count + 1, sizeof *j->rows);
    if (j->rows)
        rc = code_against(j, basis, &payload);
    if (rc == FM_OK) {
        name_basis(j);
        j->r.payload_bytes = payload.len;
        rc = write_record(j->t, &j->r, j->rows, &payload);
    }
    fm_free(j->rows);
    j->rows = NULL;
    fm_buf_release(&payload);
    return rc;
}

/* Opens a draft against the parent, or where that is at the depth limit, its nearest ancestor above
 * it. *found false: there is none. FM_EBASE: dtype or shape differ. */
static fm_status open_parent(fmi_chain *out, put_job *j, const fm_digest *parent, bool *found)
{
    fmi_staged staged = {j->t, read_staged};
    fmi_record draft = j->r;
    draft.parent_count = 1;
    draft.parent[0] = *parent;
    *found = false;
    for (;;) {
        const fm_digest id = draft.parent[0];
        /* What gc is about to delete must not be needed by what is written now. */
        if (fmi_store_condemned(j->t->store, &id) &&
            !fm_map_has(j->t->staged, id.b, FM_DIGEST_BYTES))
            return FM_OK;
        fm_status rc = fmi_chain_open(out, j->t->store, &id, 0, &staged);
        if (rc != FM_OK)
            return rc;
        const fmi_record p = out->link[0];
        fmi_chain_release(out);
        if (p.is_blob || p.dtype != j->r.dtype || !fm_shape_eq(&p.shape, &j->r.shape)) {
            char hex[FM_HEX_CHARS + 1];
            fm_digest_hex(&id, hex);
            return fm_fail(FM_EBASE, "parent %s has another dtype or shape than its child", hex);
        }
        if (p.depth < FMI_CHAIN_MAX) {
            rc = fmi_chain_draft(out, j->t->store, &draft, &staged);
            *found = rc == FM_OK;
            return rc == FM_ELIMIT ? FM_OK : rc; /* too costly: coded alone */
        }
        if (p.recipe.op != FMI_OP_NONE)
            return FM_OK;
        draft.parent[0] = p.parent[0];
    }
}

static fm_status known(fm_txn *t, const fm_digest *id, bool *out)
{
    if (fm_map_has(t->staged, id->b, FM_DIGEST_BYTES)) {
        *out = true;
        return FM_OK;
    }
    *out = false;
    return fmi_store_condemned(t->store, id) ? FM_OK : fmi_store_has(t->store, id, false, out);
}

static fm_status check_want(const fm_digest *id, const fm_digest *want)
{
    if (!want || fm_digest_eq(id, want))
        return FM_OK;
    char a[FM_HEX_CHARS + 1], b[FM_HEX_CHARS + 1];
    fm_digest_hex(want, a);
    fm_digest_hex(id, b);
    return fm_fail(FM_ECORRUPT, "the bytes offered for object %s are those of %s", a, b);
}

static fm_status identify(put_job *j)
{
    j->leaf = fm_malloc(((size_t)j->r.leaf_count + 1) * sizeof *j->leaf);
    if (!j->leaf)
        return FM_ENOMEM;
    fm_status rc = fm_pool_run(j->t->pool, j->r.leaf_count, 1, hash_leaves, j);
    if (rc != FM_OK)
        return rc;
    return j->r.is_blob
               ? fm_blob_id_from_leaves(&j->r.id, j->r.bytes, j->leaf)
               : fm_tensor_id_from_leaves(&j->r.id, j->r.dtype, &j->r.shape, j->r.bytes, j->leaf);
}

static fm_status put_object(put_job *j, const fm_digest *parent, const fm_digest *want)
{
    fm_txn *t = j->t;
    j->r.bytes = j->bytes.len;
    j->r.leaf_count = fmi_leaf_count(j->bytes.len);
    bool have = false;
    fm_status rc = identify(j);
    if (rc == FM_OK)
        rc = check_want(&j->r.id, want);
    if (rc == FM_OK)
        rc = known(t, &j->r.id, &have);
    if (rc == FM_OK && !have) {
        fmi_chain basis;
        bool found = false;
        if (parent && j->r.bytes > 0)
            rc = open_parent(&basis, j, parent, &found);
        if (rc == FM_ECORRUPT) /* as in code_against */
            rc = FM_OK;
        if (rc == FM_OK) {
            rc = put_new(j, found ? &basis : NULL);
            t->broken = t->broken || rc != FM_OK;
            if (found)
                fmi_chain_release(&basis);
        }
    }
    fm_free(j->leaf);
    if (rc != FM_OK)
        return rc;
    t->stats.bytes_in += j->r.bytes;
    t->stats.objects_known += have;
    t->stats.objects_new += !have;
    return FM_OK;
}

fm_status fm_txn_put_tensor(fm_txn *t, fm_digest *id_out, fm_dtype dtype, const fm_shape *shape,
                            fm_span bytes, const fm_digest *parent, const fm_digest *want)
{
    memset(id_out, 0, sizeof *id_out);
    uint64_t need;
    fm_status rc = fm_tensor_bytes(&need, dtype, shape, "tensor");
    if (rc != FM_OK)
        return rc;
    if (need != bytes.len)
        return fm_fail(FM_EINVAL, "tensor: its shape needs %llu bytes, %zu were given",
                       (unsigned long long)need, bytes.len);
    put_job j;
    memset(&j, 0, sizeof j);
    j.t = t;
    j.bytes = bytes;
    j.r.dtype = dtype;
    j.r.shape = *shape;
    rc = put_object(&j, parent, want);
    if (rc == FM_OK)
        *id_out = j.r.id;
    return rc;
}

fm_status fm_txn_put_blob(fm_txn *t, fm_digest *id_out, fm_span bytes, const fm_digest *want)
{
    memset(id_out, 0, sizeof *id_out);
    if (bytes.len > FM_MAX_TENSOR_BYTES)
        return fm_fail(FM_ELIMIT, "blob of %zu bytes: the most is %llu", bytes.len,
                       (unsigned long long)FM_MAX_TENSOR_BYTES);
    put_job j;
    memset(&j, 0, sizeof j);
    j.t = t;
    j.bytes = bytes;
    j.r.is_blob = true;
    fm_status rc = put_object(&j, NULL, want);
    if (rc == FM_OK)
        *id_out = j.r.id;
    return rc;
}

/* ==== trees ================================================================================ */

/* The tensor of parent_tree at the same path, where it can serve as a delta parent. */
static fm_status parent_of(fm_txn *t, const fm_tree *parent_tree, const fm_entry *e,
                           const fm_digest **out)
{
    *out = NULL;
    const fm_entry *p = parent_tree ? fm_tree_find(parent_tree, e->path) : NULL;
    if (!p || p->kind != FM_ENTRY_TENSOR || e->kind != FM_ENTRY_TENSOR || p->dtype != e->dtype ||
        !fm_shape_eq(&p->shape, &e->shape) || fm_digest_eq(&p->id, &e->id))
        return FM_OK;
    bool have;
    fm_status rc = known(t, &p->id, &have);
    if (rc == FM_OK && have)
        *out = &p->id;
    return rc;
}

static fm_status put_entry(fm_txn *t, const fm_entry *e, const fm_provider *p,
                           const fm_tree *parent_tree, fm_buf *bytes)
{
    bool have;
    fm_status rc = known(t, &e->id, &have);
    if (rc != FM_OK)
        return rc;
    if (have) {
        t->stats.objects_known++;
        t->stats.bytes_in += e->bytes;
        return FM_OK;
    }
    fm_buf_clear(bytes);
    uint8_t *dst = fm_buf_extend(bytes, (size_t)e->bytes);
    if (!dst)
        return fm_buf_ok(bytes);
    rc = p->read(p->ctx, e, dst);
    if (rc != FM_OK)
        return rc;
    const fm_digest *parent;
    rc = parent_of(t, parent_tree, e, &parent);
    fm_digest id;
    fm_span span = fm_span_of(dst, (size_t)e->bytes);
    if (rc == FM_OK)
        rc = e->kind == FM_ENTRY_TENSOR
                 ? fm_txn_put_tensor(t, &id, e->dtype, &e->shape, span, parent, &e->id)
                 : fm_txn_put_blob(t, &id, span, &e->id);
    return rc == FM_OK ? rc : fm_error_prefix(rc, "%s", e->path);
}

fm_status fm_txn_put_tree(fm_txn *t, const fm_tree *tree, const fm_provider *p,
                          const fm_tree *parent_tree, fm_progress_fn progress, void *ctx)
{
    uint64_t total = 0, done = 0;
    size_t count = fm_tree_count(tree);
    for (size_t i = 0; i < count; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        total += e->kind == FM_ENTRY_FILE ? 0 : e->bytes;
    }
    fm_buf bytes;
    fm_buf_init(&bytes, (size_t)FM_MAX_TENSOR_BYTES);
    fm_status rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < count; i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind == FM_ENTRY_FILE)
            continue;
        rc = put_entry(t, e, p, parent_tree, &bytes);
        done += e->bytes;
        if (rc == FM_OK && progress && progress(ctx, done, total))
            rc = fm_fail(FM_ECANCELLED, "stopped after %llu of %llu bytes",
                         (unsigned long long)done, (unsigned long long)total);
    }
    fm_buf_release(&bytes);
    return rc;
}

fm_status fm_txn_put_path(fm_txn *t, fm_tree *tree, const char *path, fm_span bytes)
{
    fm_status rc = fm_tree_put_file(tree, path, bytes);
    if (rc != FM_ELIMIT)
        return rc;
    fm_digest id;
    rc = fm_txn_put_blob(t, &id, bytes, NULL);
    return rc == FM_OK ? fm_tree_put_blob(tree, path, &id, bytes.len) : rc;
}

/* ==== commit =============================================================================== */

static fm_status index_pack(fm_txn *t, const char *name)
{
    fm_store *s = t->store;
    bool sound = false;
    pthread_mutex_lock(&s->mutex);
    fm_status rc = fmi_index_begin(s->index);
    if (rc == FM_OK) {
        rc = fmi_store_scan_pack(s, name, &sound);
        if (rc == FM_OK && !sound)
            rc = fm_fail(FM_ECORRUPT, "pack %s cannot be read back after it was written", name);
        rc = fmi_index_end(s->index, rc);
    }
    pthread_mutex_unlock(&s->mutex);
    return rc;
}

static fm_status seal(fm_txn *t, char name[FM_HEX_CHARS + 1])
{
    fm_digest heads, whole;
    uint8_t footer[FMI_PACK_FOOTER_BYTES];
    fm_status rc = fm_hasher_final(t->heads, &heads);
    if (rc != FM_OK)
        return rc;
    fmi_pack_footer(footer, fm_map_count(t->staged), t->offset + sizeof footer, &heads);
    rc = append(t, footer, sizeof footer);
    if (rc == FM_OK)
        rc = fm_hasher_final(t->whole, &whole);
    if (rc == FM_OK)
        fm_digest_hex(&whole, name);
    return rc;
}

fm_status fm_txn_commit(fm_txn *t, fm_txn_stats *stats)
{
    if (stats)
        memset(stats, 0, sizeof *stats);
    if (t->broken)
        return fm_fail(FM_EINVAL, "the transaction failed before; begin a new one");
    if (!t->writer) {
        if (stats)
            *stats = t->stats;
        return FM_OK;
    }
    char name[FM_HEX_CHARS + 1];
    fm_lock *lock = NULL;
    char *path = NULL;
    t->broken = true; /* a second commit is refused, whatever comes of this one */
    fm_digest id;
    fm_status rc = seal(t, name);
    if (rc == FM_OK) { /* gc keeps off the pack from before it is there */
        fm_assert(fm_digest_parse(&id, name, FM_HEX_CHARS));
        rc = fmi_store_hold(t->store, FMI_HOLD_PACK, id.b, 1);
    }
    if (rc == FM_OK)
        rc = fm_lock_take(&lock, t->store->lock_path);
    if (rc == FM_OK) {
        path = fmi_store_pack_path(t->store, name);
        rc = path ? fm_writer_commit(t->writer, path) : FM_ENOMEM;
    }
    if (rc == FM_OK)
        rc = index_pack(t, name);
    fm_lock_drop(lock);
    fm_free(path);
    if (rc == FM_OK) {
        t->stats.bytes_stored = t->offset;
        if (stats)
            *stats = t->stats;
    }
    return rc;
}
