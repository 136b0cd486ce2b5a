/* read_range.c - a part of a stored object: only the leaves that it touches are decoded. */
#include <string.h>

#include "store/base/mem.h"
#include "store/pack/store_priv.h"

typedef struct range_job {
    const fms_chain *chain;
    fms_coder *coder;
    uint8_t *part; /* buffer for a leaf of which only a part is wanted; made at first use */
} range_job;

static fm_status read_leaves(range_job *j, uint64_t offset, uint64_t bytes, uint8_t *dst)
{
    const fms_record *r = &j->chain->link[0];
    fm_status rc = FM_OK;

    while (rc == FM_OK && bytes > 0) {
        const uint32_t i = (uint32_t)(offset / FM_LEAF_BYTES);
        const uint64_t leaf = fms_leaf_bytes(r->bytes, i), skip = offset % FM_LEAF_BYTES;
        const uint64_t n = FM_MIN(bytes, leaf - skip);
        if (n == leaf) {
            rc = fms_chain_leaf(j->chain, j->coder, i, dst);
        } else {
            if (!j->part)
                j->part = fm_malloc(FM_LEAF_BYTES);
            rc = j->part ? fms_chain_leaf(j->chain, j->coder, i, j->part) : FM_ENOMEM;
            if (rc == FM_OK)
                memcpy(dst, j->part + skip, (size_t)n);
        }
        dst += n;
        offset += n;
        bytes -= n;
    }
    return rc;
}

/* ==== the chain that was read last ========================================================= */

/* A large object is read range by range, and opening it reads a long leaf table, so the chain of
 * the last object stays open. Threads share it. */
struct fms_recent {
    fm_digest id;
    fms_chain chain;
    uint32_t holders; /* the store counts as one; guarded by its mutex */
};

enum { RECENT_MIN_LEAVES = 8 };

static void let_go(fm_store *s, fms_recent *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&s->mutex);
    const bool last = --r->holders == 0;
    pthread_mutex_unlock(&s->mutex);
    if (!last)
        return;
    fms_chain_release(&r->chain);
    fm_free(r);
}

/* Keeps r as the last chain, in place of the old one; NULL: keeps none. */
static void keep(fm_store *s, fms_recent *r)
{
    pthread_mutex_lock(&s->mutex);
    fms_recent *old = s->recent;
    s->recent = r;
    if (r)
        r->holders++;
    pthread_mutex_unlock(&s->mutex);
    let_go(s, old);
}

void fms_store_forget_recent(fm_store *s)
{
    keep(s, NULL);
}

static fms_recent *take_recent(fm_store *s, const fm_digest *id, bool unchecked)
{
    pthread_mutex_lock(&s->mutex);
    fms_recent *r = s->recent;
    if (r && (!fm_digest_eq(&r->id, id) || r->chain.unchecked != unchecked))
        r = NULL;
    if (r)
        r->holders++;
    pthread_mutex_unlock(&s->mutex);
    return r;
}

static fm_status open_place(fm_store *s, const fm_digest *id, uint32_t nth, bool unchecked,
                            fms_recent **out)
{
    *out = nth == 0 ? take_recent(s, id, unchecked) : NULL;
    if (*out)
        return FM_OK;
    fms_recent *r = fm_calloc(1, sizeof *r);
    if (!r)
        return FM_ENOMEM;
    fm_status rc = fms_chain_open(&r->chain, s, id, nth, NULL);
    if (rc != FM_OK) {
        fm_free(r);
        return rc;
    }
    r->id = *id;
    r->holders = 1;
    r->chain.unchecked = unchecked;
    if (nth == 0 && r->chain.link[0].leaf_count >= RECENT_MIN_LEAVES)
        keep(s, r);
    *out = r;
    return FM_OK;
}

/* ==== reading ============================================================================== */

/* Drops mapped bytes that were decoded from memory: a model may be larger than it. */
static void forget_leaves(const fms_chain *ch, uint64_t offset, uint64_t bytes)
{
    const uint32_t first = (uint32_t)(offset / FM_LEAF_BYTES);
    const uint32_t end = (uint32_t)((offset + bytes - 1) / FM_LEAF_BYTES) + 1;

    for (uint32_t k = 0; k < ch->count; k++) {
        const fms_record *r = &ch->link[k];
        if (ch->more[k].owned || end > r->leaf_count)
            continue;
        const uint64_t *at = ch->more[k].offset;
        const fm_file_map map = {r->payload, (size_t)r->payload_bytes};
        fm_map_forget(&map, (size_t)at[first], (size_t)(at[end] - at[first]));
    }
}

typedef struct wanted {
    const fm_digest *id;
    uint64_t offset, bytes;
    uint8_t *dst;
    bool unchecked;
} wanted;

static fm_status read_place(fm_store *s, range_job *j, const wanted *w, uint32_t nth)
{
    fms_recent *r;
    fm_status rc = open_place(s, w->id, nth, w->unchecked, &r);

    if (rc != FM_OK)
        return rc;
    const uint64_t all = r->chain.link[0].bytes;
    j->chain = &r->chain;
    if (w->offset > all || w->bytes > all - w->offset) {
        char hex[FM_HEX_CHARS + 1];
        fm_digest_hex(w->id, hex);
        rc = fm_fail(FM_EINVAL, "object %s has %llu bytes, %llu from %llu on were asked for", hex,
                     (unsigned long long)all, (unsigned long long)w->bytes,
                     (unsigned long long)w->offset);
    }
    FM_THEN(rc, read_leaves(j, w->offset, w->bytes, w->dst));
    if (rc == FM_OK && w->bytes > 0)
        forget_leaves(&r->chain, w->offset, w->bytes);
    let_go(s, r);
    return rc;
}

/* As in fm_store_read, where one place is damaged another may be sound. */
fm_status fm_store_read_range(fm_store *s, const fm_digest *id, uint64_t offset, uint64_t bytes,
                              void *dst, unsigned flags)
{
    range_job j = {NULL, NULL, NULL};
    const wanted w = {id, offset, bytes, dst, (flags & FM_RANGE_UNCHECKED) != 0};
    FM_TRY(fms_store_coder(s, &j.coder));
    fm_error_state first;

    fm_status rc = read_place(s, &j, &w, 0);
    fm_error_save(&first);
    fm_status again = rc;
    for (uint32_t nth = 1; again == FM_ECORRUPT || again == FM_EBASE; nth++) {
        again = read_place(s, &j, &w, nth);
        if (again == FM_OK)
            rc = FM_OK;
    }
    if (rc != FM_OK)
        fm_error_restore(&first);
    fms_store_coder_return(s, j.coder);
    fm_free(j.part);
    return rc;
}

fm_status fms_store_provide_range(void *ctx, const fm_entry *e, uint64_t offset, uint64_t bytes,
                                  void *dst, unsigned flags)
{
    fm_status rc = fm_store_read_range(ctx, &e->id, offset, bytes, dst, flags);

    return rc == FM_OK ? rc : fm_error_prefix(rc, "%s", e->path);
}

/* ==== places =============================================================================== */

static bool is_raw(const fms_record *r)
{
    for (uint32_t i = 0; i < r->leaf_count; i++)
        if (fms_leaf_codec(r, i) != FMS_CODEC_RAW ||
            fms_leaf_stored(r, i) != fms_leaf_bytes(r->bytes, i))
            return false;
    return r->leaf_count > 0 && r->bytes <= r->payload_bytes;
}

/* The place of raw bytes in a pack. Errors are left to the read that follows. */
fm_status fms_store_provide_place(void *ctx, const fm_entry *e, fm_file_part *out)
{
    fm_store *s = ctx;
    fms_record r;
    fms_place at;
    fm_error_state kept;

    *out = (fm_file_part){NULL, 0, {NULL, 0}};
    if (e->kind == FM_ENTRY_FILE)
        return FM_OK;
    fm_error_save(&kept);
    const fm_status rc = fms_store_record(s, &e->id, 0, true, &r, &at);
    fm_error_restore(&kept);
    if (rc != FM_OK || r.bytes != e->bytes || !is_raw(&r))
        return FM_OK;
    pthread_mutex_lock(&s->mutex);
    const fms_open_pack *p = s->open;
    while (p && (r.payload < p->map.data || r.payload >= p->map.data + p->map.len))
        p = p->next;
    pthread_mutex_unlock(&s->mutex);
    if (!p)
        return FM_OK;
    out->path = fms_store_pack_path(s, p->name);
    out->offset = (uint64_t)(r.payload - p->map.data);
    out->data = fm_span_of(r.payload, (size_t)r.bytes);
    return out->path ? FM_OK : FM_ENOMEM;
}
