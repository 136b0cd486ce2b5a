/* txn.c - a transaction: objects go to new packs in tmp/, which the commit makes durable.
 *
 * The order of a commit is pack bytes, fsync, rename, fsync of the folder, index. A crash before
 * the rename leaves a file in tmp/ that the next open removes; a crash after it leaves a pack that
 * the next open indexes. With several packs, none needs one that is renamed later. */
#include <stdio.h>
#include <string.h>

#include "store/base/cancel.h"
#include "store/base/mem.h"
#include "store/txn/put.h"

/* ==== begin and close ====================================================================== */

/* One thread per processor, up to the number for which memory is bounded. */
static fm_status new_pool(fm_pool **out)
{
    fm_status rc = fm_pool_new(out, 0);

    if (rc != FM_OK || fm_pool_threads(*out) <= FMS_TXN_THREADS_MAX)
        return rc;
    fm_pool_free(*out);
    return fm_pool_new(out, FMS_TXN_THREADS_MAX);
}

fm_status fm_txn_begin(fm_txn **out, fm_store *s)
{
    *out = NULL;
    fm_txn *t = fm_calloc(1, sizeof *t);
    if (!t)
        return FM_ENOMEM;
    t->store = s;
    t->roll_bytes = FMS_PACK_ROLL_BYTES;
    fm_buf_init(&t->payload, 2 * FMS_PAYLOAD_HELD_MAX_BYTES);
    fm_status rc = fms_store_lease_need(s); /* before it is looked up what is stored */
    FM_THEN(rc, new_pool(&t->pool));
    if (rc != FM_OK)
        goto fail;
    t->threads = fm_pool_threads(t->pool);
    t->held_max = FMS_PAYLOAD_HELD_MAX_BYTES / FM_MAX(t->threads, 2u) * 2;
    t->held_max = FM_MAX(t->held_max, FMS_PAYLOAD_HELD_MIN_BYTES);
    rc = FM_ENOMEM;
    t->coder = fm_calloc(t->threads, sizeof(fms_coder *));
    t->slots = FM_MIN((size_t)t->threads * FMS_SLOTS_PER_THREAD, (size_t)FMS_SLOTS_MAX);
    t->slot = fm_calloc(t->slots, sizeof *t->slot);
    if (!t->coder || !t->slot)
        goto fail;
    for (size_t i = 0; i < t->slots; i++)
        fm_buf_init(&t->slot[i].coded, (size_t)4 * FM_LEAF_BYTES);
    rc = fm_map_new(&t->staged);
    FM_THEN(rc, fm_arena_new(&t->arena));
    for (unsigned i = 0; rc == FM_OK && i < t->threads; i++)
        rc = fms_store_coder(s, &t->coder[i]);
    if (rc != FM_OK)
        goto fail;
    pthread_mutex_lock(&s->mutex);
    rc = fms_store_look(s); /* once: objects that others store meanwhile may be stored twice */
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
    fms_put_drop(t);
    fms_search_free(t->search);
    for (size_t i = 0; i < t->packs; i++)
        fms_packer_release(&t->pack[i]);
    fm_free(t->pack);
    fm_free(t->queue);
    fm_pool_free(t->pool);
    for (unsigned i = 0; t->coder && i < t->threads; i++)
        fms_store_coder_return(t->store, t->coder[i]);
    fm_free(t->coder);
    for (size_t i = 0; t->slot && i < t->slots; i++) {
        fm_buf_release(&t->slot[i].coded);
        fm_free(t->slot[i].raw);
    }
    fm_free(t->slot);
    fm_map_free(t->staged);
    fm_arena_free(t->arena);
    fm_buf_release(&t->payload);
    fm_free(t);
}

/* ==== objects in memory ==================================================================== */

static fm_status hash_leaves(void *ctx, size_t begin, size_t end, unsigned worker)
{
    const fms_put *p = ctx;

    (void)worker;
    for (size_t i = begin; i < end; i++) {
        fm_span leaf;
        FM_TRY(fms_put_leaf(p, (uint32_t)i, NULL, &leaf));
        FM_TRY(fm_sha256(&p->leaf[i], leaf.data, leaf.len));
    }
    return FM_OK;
}

static fm_status identify(fm_txn *t, fms_put *p)
{
    p->leaf = fm_malloc(((size_t)p->r.leaf_count + 1) * sizeof *p->leaf);
    if (!p->leaf)
        return FM_ENOMEM;
    p->hashed = true;
    FM_TRY(fm_pool_run(t->pool, p->r.leaf_count, 1, hash_leaves, p));
    return p->r.is_blob
               ? fm_blob_id_from_leaves(&p->r.id, p->r.bytes, p->leaf)
               : fm_tensor_id_from_leaves(&p->r.id, p->r.dtype, &p->r.shape, p->r.bytes, p->leaf);
}

static fm_status check_want(const fm_digest *id, const fm_digest *want)
{
    char a[FM_HEX_CHARS + 1], b[FM_HEX_CHARS + 1];

    if (!want || fm_digest_eq(id, want))
        return FM_OK;
    fm_digest_hex(want, a);
    fm_digest_hex(id, b);
    return fm_fail(FM_ECORRUPT, "the bytes offered for object %s are those of %s", a, b);
}

static void count_known(fm_txn *t, uint64_t bytes)
{
    t->stats.objects_known++;
    t->stats.bytes_in += bytes;
}

static fm_status put_bytes(fm_txn *t, fm_digest *id_out, const fms_record *form, fm_span bytes,
                           const fm_digest *parent, const fms_guess *made, const fm_digest *want)
{
    fms_put *p = fm_calloc(1, sizeof *p);
    bool have = false;
    fm_status rc;

    if (!p)
        return FM_ENOMEM;
    p->r = *form;
    p->r.bytes = bytes.len;
    p->r.leaf_count = fms_leaf_count(bytes.len);
    p->bytes = bytes;
    p->made = made;
    rc = identify(t, p);
    const fm_digest id = p->r.id;
    FM_THEN(rc, check_want(&id, want));
    FM_THEN(rc, fms_txn_known(t, &id, &have));
    if (rc != FM_OK || have) {
        fm_free(p->leaf);
        fm_free(p);
    } else {
        rc = fms_put_add(t, p, parent);
        FM_THEN(rc, fms_put_drain(t));
    }
    if (rc == FM_OK && have)
        count_known(t, bytes.len);
    if (rc == FM_OK)
        *id_out = id;
    return rc;
}

fm_status fm_txn_put_tensor(fm_txn *t, fm_digest *id_out, fm_dtype dtype, const fm_shape *shape,
                            fm_span bytes, const fm_digest *parent, const fm_digest *want)
{
    fms_record form;
    uint64_t need;

    memset(id_out, 0, sizeof *id_out);
    FM_TRY(fm_tensor_bytes(&need, dtype, shape, "tensor"));
    if (need != bytes.len)
        return fm_fail(FM_EINVAL, "tensor: its shape needs %llu bytes, %zu were given",
                       (unsigned long long)need, bytes.len);
    memset(&form, 0, sizeof form);
    form.dtype = dtype;
    form.shape = *shape;
    return put_bytes(t, id_out, &form, bytes, parent, NULL, want);
}

/* *known: the input is stored; *alike: it has the record's dtype and shape. */
static fm_status serves(fm_txn *t, const fm_digest *id, const fms_record *form, bool *known,
                        bool *alike)
{
    fm_object_info info;
    fm_status rc = fms_txn_known(t, id, known);
    *alike = false;
    if (rc != FM_OK || !*known)
        return rc;
    rc = fm_store_info(t->store, &info, id);
    *alike = rc == FM_OK && !info.is_blob && info.dtype == form->dtype &&
             fm_shape_eq(&info.shape, &form->shape);
    return rc;
}

fm_status fms_txn_put_made(fm_txn *t, fm_digest *id_out, fm_dtype dtype, const fm_shape *shape,
                           fm_span bytes, const fms_guess *made)
{
    const fms_record form = {.dtype = dtype, .shape = *shape};
    bool all = true, parent = false;

    memset(id_out, 0, sizeof *id_out);
    for (uint32_t k = 0; all && k < made->parent_count; k++) {
        bool alike = false;
        FM_TRY(serves(t, &made->parent[k], &form, &all, &alike));
        parent = parent || (k == 0 && alike);
    }

    return put_bytes(t, id_out, &form, bytes, parent ? &made->parent[0] : NULL, all ? made : NULL,
                     NULL);
}

fm_status fm_txn_put_blob(fm_txn *t, fm_digest *id_out, fm_span bytes, const fm_digest *want)
{
    fms_record form;

    memset(id_out, 0, sizeof *id_out);
    if (bytes.len > FM_MAX_TENSOR_BYTES)
        return fm_fail(FM_ELIMIT, "blob of %zu bytes: the most is %llu", bytes.len,
                       (unsigned long long)FM_MAX_TENSOR_BYTES);
    memset(&form, 0, sizeof form);
    form.is_blob = true;
    return put_bytes(t, id_out, &form, bytes, NULL, NULL, want);
}

/* ==== offers =============================================================================== */

/* A pending object cannot be a parent yet. */
static fm_status usable(void *ctx, const fm_digest *id, bool *out)
{
    fm_txn *t = ctx;
    const fms_staged_object *o = fm_map_get(t->staged, id->b, FM_DIGEST_BYTES);

    *out = false;
    return o && o->pending ? FM_OK : fms_txn_known(t, id, out);
}

static fm_status need_search(fm_txn *t)
{
    if (t->search)
        return FM_OK;
    t->search_staged = (fms_staged){.ctx = t, .read = fms_txn_read_staged};
    const fms_search_env env = {t->store, &t->search_staged, t, usable};
    return fms_search_new(&t->search, &env);
}

fm_status fm_txn_offer(fm_txn *t, const fm_tree *tree)
{
    FM_TRY(need_search(t));
    FM_TRY(fms_search_offer(t->search, tree));
    t->stats.offers_passed_over = fms_search_passed_over(t->search);
    return FM_OK;
}

fm_status fm_txn_expect(fm_txn *t, const fm_tree *tree, const fm_provider *from)
{
    FM_TRY(need_search(t));
    return fms_search_expect(t->search, tree, from);
}

/* ==== trees ================================================================================ */

/* The tensor of parent_tree at the entry's path, or NULL where it cannot be a delta parent. */
static fm_status parent_of(fm_txn *t, const fm_tree *parent_tree, const fm_entry *e,
                           const fm_digest **out)
{
    *out = NULL;
    const fm_entry *p = parent_tree ? fm_tree_find(parent_tree, e->path) : NULL;
    if (!p || p->kind != FM_ENTRY_TENSOR || e->kind != FM_ENTRY_TENSOR || p->dtype != e->dtype ||
        !fm_shape_eq(&p->shape, &e->shape) || fm_digest_eq(&p->id, &e->id))
        return FM_OK;
    bool have;
    FM_TRY(fms_txn_known(t, &p->id, &have));
    if (have)
        *out = &p->id;
    return FM_OK;
}

static fm_status put_entry(fm_txn *t, const fm_entry *e, const fm_provider *from,
                           const fm_tree *parent_tree)
{
    const fm_digest *parent;
    bool have;
    fm_status rc = fms_txn_known(t, &e->id, &have);

    if (rc == FM_OK && have) {
        count_known(t, e->bytes);
        t->done_bytes += e->bytes;
        return FM_OK;
    }
    FM_THEN(rc, parent_of(t, parent_tree, e, &parent));
    if (rc != FM_OK)
        return fm_error_prefix(rc, "%s", e->path);
    fms_put *p = fm_calloc(1, sizeof *p);
    if (!p)
        return FM_ENOMEM;
    p->r.is_blob = e->kind == FM_ENTRY_BLOB;
    p->r.dtype = p->r.is_blob ? FM_DTYPE_NONE : e->dtype;
    p->r.shape = p->r.is_blob ? (fm_shape){0, {0}} : e->shape;
    p->r.id = e->id;
    p->r.bytes = e->bytes;
    p->r.leaf_count = fms_leaf_count(e->bytes);
    p->from = from;
    p->entry = e;
    return fms_put_add(t, p, parent);
}

/* Puts entries in the order of their paths, those that others of the tree may predict a turn
 * later. */
static fm_status put_entries(fm_txn *t, const fm_tree *tree, const fm_provider *p,
                             const fm_tree *parent_tree)
{
    fm_status rc = FM_OK;
    unsigned turns = 0;

    for (unsigned turn = 0; rc == FM_OK && turn <= turns; turn++) {
        for (size_t i = 0; rc == FM_OK && i < fm_tree_count(tree); i++) {
            const fm_entry *e = fm_tree_at(tree, i);
            if (e->kind == FM_ENTRY_FILE)
                continue;
            unsigned its = 0;
            rc = fm_go_on();
            if (rc < 0)
                break;
            rc = t->search ? fms_search_turn(&its, tree, e) : FM_OK;
            turns = FM_MAX(turns, its);
            if (rc == FM_OK && its == turn)
                rc = put_entry(t, e, p, parent_tree);
        }
        FM_THEN(rc, fms_put_drain(t));
    }
    return rc;
}

fm_status fm_txn_put_tree(fm_txn *t, const fm_tree *tree, const fm_provider *p,
                          const fm_tree *parent_tree, fm_progress_fn progress, void *ctx)
{
    t->done_bytes = t->total_bytes = 0;
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        t->total_bytes += e->kind == FM_ENTRY_FILE ? 0 : e->bytes;
    }
    t->progress = progress;
    t->progress_ctx = ctx;
    fm_status rc = parent_tree ? fm_txn_offer(t, parent_tree) : FM_OK;
    if (rc == FM_OK) {
        if (t->search)
            fms_search_put_tree(t->search, tree);
        rc = put_entries(t, tree, p, parent_tree);
        if (t->search)
            fms_search_put_tree(t->search, NULL);
    }
    if (rc == FM_OK && progress && progress(ctx, t->total_bytes, t->total_bytes))
        rc = fm_fail(FM_ECANCELLED, "stopped at the end");
    t->progress = NULL;
    if (rc != FM_OK) { /* the queue points into memory that the caller is about to free */
        t->broken = t->broken || t->queued > 0;
        fms_put_drop(t);
    }
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

/* Names the packs in the lease, so that gc protects them from before they are in place. */
static fm_status hold_packs(fm_txn *t)
{
    for (size_t i = 0; i < t->packs; i++) {
        fm_digest id;
        fm_assert(fm_digest_parse(&id, t->pack[i].name, FM_HEX_CHARS));
        FM_TRY(fms_store_hold(t->store, FMS_HOLD_PACK, id.b, 1));
    }
    return FM_OK;
}

fm_status fm_txn_commit(fm_txn *t, fm_txn_stats *stats)
{
    fm_lock *lock = NULL;
    fm_status rc = FM_OK;
    bool fresh = false;

    if (stats)
        memset(stats, 0, sizeof *stats);
    if (t->broken)
        return fm_fail(FM_EINVAL, "the transaction failed before; begin a new one");
    if (t->packs) {
        t->broken = true; /* a second commit is refused, whether this one fails or not */
        rc = fms_txn_seal(t);
        FM_THEN(rc, hold_packs(t));
        FM_THEN(rc, fm_lock_take(&lock, t->store->lock_path));
    }
    pthread_mutex_lock(&t->store->mutex);
    fresh = lock && fms_store_is_fresh(t->store); /* and stays fresh after this commit */
    pthread_mutex_unlock(&t->store->mutex);
    for (size_t i = 0; rc == FM_OK && i < t->packs; i++) {
        rc = fms_packer_place(&t->pack[i]);
        t->stats.bytes_stored += t->pack[i].offset;
    }
    pthread_mutex_lock(&t->store->mutex);
    if (rc == FM_OK && fresh)
        fms_store_mark_fresh(t->store);
    pthread_mutex_unlock(&t->store->mutex);
    fm_lock_drop(lock);
    if (rc == FM_OK && stats)
        *stats = t->stats;
    return rc;
}
