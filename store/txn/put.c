/* put.c - see put.h: the queue of objects that a transaction is storing. */
#include "store/txn/put.h"

#include <string.h>

#include "store/base/mem.h"

/* ==== leaves =============================================================================== */

fm_status fms_put_leaf(const fms_put *p, uint32_t i, uint8_t *buf, fm_span *out)
{
    const uint64_t at = (uint64_t)i * FM_LEAF_BYTES;
    const size_t n = fms_leaf_bytes(p->r.bytes, i);

    *out = fm_span_of(p->from ? buf : p->bytes.data + at, n);
    return p->from ? fm_entry_read_range(p->from, p->entry, at, n, buf, FM_RANGE_UNCHECKED) : FM_OK;
}

static fm_status code_slot(fms_slot *s, fms_coder *c)
{
    fms_put *p = s->put;
    const fms_leaf_at at = fms_leaf_at_of(p->r.dtype, p->r.is_blob ? NULL : &p->r.shape, s->leaf);
    const uint8_t *basis = NULL;
    fm_status rc = FM_OK;

    if (p->has_basis) {
        uint8_t *to = fms_coder_scratch(c, 0);
        rc = fms_chain_predict(&p->basis, c, s->leaf, to);
        basis = to;
        s->basis_damaged = rc == FM_ECORRUPT;
        if (s->basis_damaged)
            return FM_OK;
    }
    fm_buf_clear(&s->coded);
    FM_THEN(rc, fms_leaf_encode(c, &s->coded, &p->rows[s->leaf].codec, &at, s->bytes, basis));
    if (rc != FM_OK)
        return rc;
    p->rows[s->leaf].digest = p->leaf[s->leaf];
    p->rows[s->leaf].stored_bytes = (uint32_t)s->coded.len;
    return FM_OK;
}

/* Puts the entry's path in front of an error, where the object comes from a tree. */
static fm_status name_entry(const fms_put *p, fm_status rc)
{
    return rc != FM_OK && p->entry ? fm_error_prefix(rc, "%s", p->entry->path) : rc;
}

/* Reads and hashes the leaves of n slots, 1 or 2. Leaves are hashed and coded from private copies:
 * a mapped file that a process writes to may change between two reads. */
static fm_status hash_slots(fms_slot *s, size_t n)
{
    fm_digest two[2];
    fm_status rc = FM_OK;

    for (size_t k = 0; rc == FM_OK && k < n; k++)
        rc = name_entry(s[k].put, fms_put_leaf(s[k].put, s[k].leaf, s[k].raw, &s[k].bytes));
    if (rc == FM_OK && n == 2 && !s[0].put->hashed && !s[1].put->hashed) {
        rc = fm_sha256_two(two, s[0].bytes, s[1].bytes);
        s[0].put->leaf[s[0].leaf] = two[0];
        s[1].put->leaf[s[1].leaf] = two[1];
        return rc;
    }
    for (size_t k = 0; rc == FM_OK && k < n; k++)
        if (!s[k].put->hashed)
            rc = fm_sha256(&s[k].put->leaf[s[k].leaf], s[k].bytes.data, s[k].bytes.len);
    return rc;
}

static fm_status code_slots(void *ctx, size_t begin, size_t end, unsigned worker)
{
    fm_txn *t = ctx;

    for (size_t k = begin; k < end; k += 2) {
        const size_t n = FM_MIN(end - k, (size_t)2);
        FM_TRY(hash_slots(&t->slot[k], n));
        for (size_t i = k; i < k + n; i++)
            FM_TRY(name_entry(t->slot[i].put, code_slot(&t->slot[i], t->coder[worker])));
    }
    return FM_OK;
}

/* ==== the queue ============================================================================ */

static void free_put(fms_put *p)
{
    if (!p)
        return;
    if (p->has_basis)
        fms_chain_release(&p->basis);
    fm_free(p->leaf);
    fm_free(p->rows);
    fm_free(p);
}

void fms_put_drop(fm_txn *t)
{
    for (size_t i = 0; i < t->queued; i++)
        free_put(t->queue[i]);
    t->queued = 0;
    t->leaves_waiting = 0;
    fms_payload_clear(t);
}

static fm_status check_id(const fms_put *p)
{
    fm_digest id;
    char a[FM_HEX_CHARS + 1], b[FM_HEX_CHARS + 1];
    fm_status rc =
        p->r.is_blob ? fm_blob_id_from_leaves(&id, p->r.bytes, p->leaf)
                     : fm_tensor_id_from_leaves(&id, p->r.dtype, &p->r.shape, p->r.bytes, p->leaf);

    if (rc != FM_OK || fm_digest_eq(&id, &p->r.id))
        return rc;
    fm_digest_hex(&p->r.id, a);
    fm_digest_hex(&id, b);
    return name_entry(
        p, fm_fail(FM_ECORRUPT, "the bytes offered for object %s are those of %s", a, b));
}

/* Sets the record's parents and recipe if a leaf is coded against them. */
static void name_basis(fms_put *p)
{
    bool used = false;

    for (uint32_t i = 0; p->has_basis && i < p->r.leaf_count; i++)
        used = used || fms_codec_needs_parent(p->rows[i].codec);
    if (!used)
        return;
    const fms_record *draft = &p->basis.link[0];
    p->r.depth = draft->depth;
    p->r.parent_count = draft->parent_count;
    memcpy(p->r.parent, draft->parent, sizeof p->r.parent);
    p->r.recipe = draft->recipe;
}

/* Writes queue[0], whose leaves are all coded. */
static fm_status finish_first(fm_txn *t)
{
    fms_put *p = t->queue[0];
    fm_status rc = p->hashed ? FM_OK : check_id(p);

    name_basis(p);
    FM_THEN(rc, fms_txn_write(t, p));
    if (rc != FM_OK)
        return rc;
    t->stats.bytes_in += p->r.bytes;
    t->stats.objects_new++;
    fms_payload_clear(t);
    free_put(p);
    t->queued--;
    memmove(t->queue, t->queue + 1, t->queued * sizeof *t->queue);
    return FM_OK;
}

static fm_status fill_slot(fms_slot *s, fms_put *p, uint32_t leaf)
{
    s->put = p;
    s->leaf = leaf;
    s->basis_damaged = false;
    if (p->from && !s->raw)
        s->raw = fm_malloc(FM_LEAF_BYTES);
    return p->from && !s->raw ? FM_ENOMEM : FM_OK;
}

/* Fills up to t->slots slots with leaves of the queue, from the first that is not coded. */
static fm_status fill_slots(fm_txn *t, size_t *out)
{
    size_t n = 0;
    fm_status rc = FM_OK;

    for (size_t q = 0; q < t->queued; q++) {
        fms_put *p = t->queue[q];
        for (uint32_t i = p->coded; rc == FM_OK && i < p->r.leaf_count && n < t->slots; i++)
            rc = fill_slot(&t->slot[n++], p, i);
    }
    *out = n;
    return rc;
}

/* A basis whose stored bytes are damaged must not lose the object, which may be hours of work: the
 * object is coded again, alone. Reads of the basis and fsck report the damage. */
static void go_alone(fm_txn *t, fms_put *p)
{
    fms_chain_release(&p->basis);
    p->has_basis = false;
    t->leaves_waiting += p->coded;
    t->done_bytes -= FM_MIN(p->r.bytes, (uint64_t)p->coded * FM_LEAF_BYTES);
    p->coded = 0;
    p->payload_bytes = 0;
    fms_payload_clear(t);
}

/* Appends a slot's coded leaf to its object, and writes the object if that was its last. *again:
 * the basis is damaged, and this slot and those after it have to be made again. */
static fm_status take_slot(fm_txn *t, const fms_slot *s, bool *again)
{
    fms_put *p = s->put;
    fm_status rc = FM_OK;

    while (rc == FM_OK && t->queue[0] != p) /* empty objects before it */
        rc = finish_first(t);
    *again = rc == FM_OK && s->basis_damaged;
    if (*again)
        go_alone(t, p);
    if (rc != FM_OK || *again)
        return rc;
    rc = fms_payload_append(t, s->coded.data, s->coded.len);
    p->payload_bytes += s->coded.len;
    t->done_bytes += fms_leaf_bytes(p->r.bytes, s->leaf);
    t->leaves_waiting--;
    return rc == FM_OK && ++p->coded == p->r.leaf_count ? finish_first(t) : rc;
}

static fm_status run_batch(fm_txn *t)
{
    size_t n;
    bool again = false;
    FM_TRY(fill_slots(t, &n));

    if (n > 0)
        FM_TRY(fm_pool_run(t->pool, n, 1, code_slots, t));
    for (size_t k = 0; !again && k < n; k++)
        FM_TRY(take_slot(t, &t->slot[k], &again));
    while (t->queued && t->queue[0]->coded == t->queue[0]->r.leaf_count)
        FM_TRY(finish_first(t));
    if (t->progress && t->progress(t->progress_ctx, t->done_bytes, t->total_bytes))
        return fm_fail(FM_ECANCELLED, "stopped after %llu of %llu bytes",
                       (unsigned long long)t->done_bytes, (unsigned long long)t->total_bytes);
    return FM_OK;
}

fm_status fms_put_drain(fm_txn *t)
{
    fm_status rc = FM_OK;

    while (rc == FM_OK && t->queued)
        rc = run_batch(t);
    t->broken = t->broken || rc != FM_OK;
    return rc;
}

/* ==== adding =============================================================================== */

fm_status fms_txn_known(fm_txn *t, const fm_digest *id, bool *out)
{
    *out = fm_map_has(t->staged, id->b, FM_DIGEST_BYTES);
    if (*out || fms_store_condemned(t->store, id))
        return FM_OK;
    return fms_store_has(t->store, id, false, out);
}

static bool is_pending(const fm_txn *t, const fm_digest *id)
{
    const fms_staged_object *o = fm_map_get(t->staged, id->b, FM_DIGEST_BYTES);

    return o && o->pending;
}

/* Opens a draft against the parent, or where that is at the depth limit, against its nearest
 * ancestor below the limit; p->has_basis: there is one. FM_EBASE: dtype or shape differ. */
static fm_status open_parent(fms_put *p, fm_txn *t, const fm_digest *parent)
{
    fms_staged staged = {.ctx = t, .read = fms_txn_read_staged};
    fms_record draft = p->r;

    draft.parent_count = 1;
    draft.parent[0] = *parent;
    for (;;) {
        const fm_digest id = draft.parent[0];
        /* An object that is written now must not need one that gc is about to delete. */
        if (fms_store_condemned(t->store, &id) && !fm_map_has(t->staged, id.b, FM_DIGEST_BYTES))
            return FM_OK;
        fm_status rc = fms_chain_open(&p->basis, t->store, &id, 0, &staged);
        if (rc != FM_OK)
            return rc;
        const fms_record r = p->basis.link[0];
        fms_chain_release(&p->basis);
        if (r.is_blob || r.dtype != p->r.dtype || !fm_shape_eq(&r.shape, &p->r.shape)) {
            char hex[FM_HEX_CHARS + 1];
            fm_digest_hex(&id, hex);
            return fm_fail(FM_EBASE, "parent %s has another dtype or shape than its child", hex);
        }
        if (r.depth < FMS_CHAIN_MAX) {
            rc = fms_chain_draft(&p->basis, t->store, &draft, &staged);
            p->has_basis = rc == FM_OK;
            return rc == FM_ELIMIT ? FM_OK : rc; /* too costly: coded alone */
        }
        if (r.recipe.op != FMS_OP_NONE)
            return FM_OK;
        draft.parent[0] = r.parent[0];
    }
}

static fm_status subject_leaf(void *ctx, uint32_t i, uint8_t *buf, fm_span *out)
{
    return fms_put_leaf(ctx, i, buf, out);
}

/* Opens what the search finds, or the parent where it finds nothing. */
static fm_status open_basis(fms_put *p, fm_txn *t, const fm_digest *parent)
{
    const fms_subject subject = {.path = p->entry ? p->entry->path : NULL,
                                 .name = p->entry ? p->entry->name : NULL,
                                 .form = {p->r.dtype, p->r.shape, p->r.bytes},
                                 .parent = parent,
                                 .ctx = p,
                                 .leaf = subject_leaf};
    fms_staged staged = {.ctx = t, .read = fms_txn_read_staged};
    fms_record draft = p->r;
    fms_guess g = {.parent_count = 0};

    if (p->made)
        g = *p->made;
    else if (t->search && p->entry && !p->r.is_blob)
        FM_TRY(fms_search_run(t->search, &subject, t->coder[0], &g));
    if (g.recipe.op == FMS_OP_NONE) {
        parent = g.parent_count ? &g.parent[0] : parent;
        return parent ? open_parent(p, t, parent) : FM_OK;
    }

    draft.recipe = g.recipe;
    draft.parent_count = g.parent_count;
    memcpy(draft.parent, g.parent, sizeof draft.parent);
    fm_status rc = fms_chain_draft(&p->basis, t->store, &draft, &staged);
    p->has_basis = rc == FM_OK;
    if (rc == FM_ELIMIT) /* its inputs need too many objects in turn */
        return parent ? open_parent(p, t, parent) : FM_OK;
    return rc;
}

static fm_status prepare(fm_txn *t, fms_put *p, const fm_digest *parent)
{
    fm_status rc = FM_OK;
    const size_t n = (size_t)p->r.leaf_count + 1;

    if (!p->leaf)
        p->leaf = fm_calloc(n, sizeof *p->leaf);
    p->rows = fm_calloc(n, sizeof *p->rows);
    if (!p->leaf || !p->rows)
        return FM_ENOMEM;
    if (parent && is_pending(t, parent))
        rc = fms_put_drain(t);
    if (rc == FM_OK && p->r.bytes > 0)
        rc = name_entry(p, open_basis(p, t, parent));
    return rc == FM_ECORRUPT ? FM_OK : rc; /* coded alone, as in go_alone */
}

static fm_status enqueue(fm_txn *t, fms_put *p)
{
    fms_staged_object *o = fm_arena_alloc(t->arena, sizeof *o);
    FM_TRY(o ? fm_grow(&t->queue, &t->queue_cap, t->queued + 1, sizeof *t->queue) : FM_ENOMEM);

    o->pending = true;
    FM_TRY(fm_map_put(t->staged, p->r.id.b, FM_DIGEST_BYTES, o, NULL));
    t->queue[t->queued++] = p;
    t->leaves_waiting += p->r.leaf_count;
    return FM_OK;
}

fm_status fms_put_add(fm_txn *t, fms_put *p, const fm_digest *parent)
{
    fm_status rc = prepare(t, p, parent);

    FM_THEN(rc, enqueue(t, p));
    if (rc != FM_OK) {
        free_put(p);
        return rc;
    }
    /* The chain of a recipe caches decoded leaves, so only one such object may wait. */
    const bool heavy = p->has_basis && p->basis.cache;
    while (rc == FM_OK && t->queued &&
           (heavy || t->leaves_waiting >= t->slots || t->queued > t->slots))
        rc = run_batch(t);
    t->broken = t->broken || rc != FM_OK;
    return rc;
}
