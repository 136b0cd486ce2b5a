/* check.c - decodes the leaves of the record that arrives and compares them, a batch at a time.
 *
 * While some threads decode the leaves of a batch, one takes its bytes into the file's digest. A
 * record may be coded against others of the same file, which are read where they lie. */
#include "store/exchange/intake.h"

#include <stdatomic.h>
#include <string.h>

#include "store/base/cancel.h"
#include "store/base/mem.h"

#define ALONE_BYTES ((uint64_t)256 << 10) /* a batch of less is not worth waking threads */

static void note_late(fm_intake *in, fm_status rc)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(&in->info.id, hex);
    if (in->late != FM_OK)
        return;
    in->late = fm_error_prefix(rc, "record received for object %s", hex);
    fm_error_save(&in->late_text);
}

/* ==== what it is coded against ============================================================= */

static fm_status map_record(void *ctx, const fm_digest *id, fms_record *out)
{
    const fm_intake *in = ctx;
    const fms_incoming *f = &in->file;
    const uint64_t at = (uint64_t)(uintptr_t)fm_map_get(f->record, id->b, FM_DIGEST_BYTES);
    if (at == 0)
        return FM_ENOTFOUND;
    return fms_record_parse(out, fm_span_of(f->map.data + at, (size_t)(f->packer.offset - at)),
                            "a record received");
}

static fm_status missing(const fm_digest *parent)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(parent, hex);
    return fm_fail(FM_EBASE, "it is coded against %s, which is neither stored nor received", hex);
}

/* Opens the chain at the greatest depth; then what the parents are here says how deep it is. */
static fm_status open_chain(fm_intake *in)
{
    const fms_staged staged = {.ctx = in, .map = map_record};
    fms_record r = in->r;
    for (uint32_t k = 0; k < r.parent_count; k++)
        if (!fm_intake_has(in, &r.parent[k]))
            return missing(&r.parent[k]);
    r.depth = r.parent_count ? FMS_CHAIN_MAX : 0;
    FM_TRY(fms_chain_from(&in->chain, in->store, &r, &staged));
    in->has_chain = true;
    in->depth = in->r.depth;
    for (uint32_t k = 0; k < r.parent_count; k++)
        in->depth = FM_MAX(in->depth, in->chain.link[in->chain.more[0].parent[k]].depth + 1);
    in->chain.link[0].depth = in->depth;
    return FM_OK;
}

fm_status fms_check_open(fm_intake *in)
{
    fm_status rc = open_chain(in);
    if (rc == FM_OK || rc == FM_ENOMEM || rc == FM_EIO)
        return rc;
    note_late(in, rc);
    return FM_OK;
}

void fms_check_close(fm_intake *in)
{
    if (in->has_chain)
        fms_chain_release(&in->chain);
    in->has_chain = false;
}

/* ==== leaves =============================================================================== */

typedef struct batch {
    fm_intake *in;
    uint32_t first, count;
    uint64_t hash_to; /* 0: nothing is hashed */
    atomic_uint next; /* 0: the digest of the file; n: leaf first + n - 1 */
    pthread_mutex_t mutex;
    uint32_t bad; /* the lowest leaf with a fault */
    fm_status rc;
    fm_error_state text;
} batch;

static void note_bad(batch *b, uint32_t n, fm_status rc)
{
    pthread_mutex_lock(&b->mutex);
    if (b->rc == FM_OK || n < b->bad) {
        b->bad = n;
        b->rc = rc;
        fm_error_save(&b->text);
    }
    pthread_mutex_unlock(&b->mutex);
}

static fm_status run_lane(void *ctx, size_t begin, size_t end, unsigned worker)
{
    batch *b = ctx;
    fm_intake *in = b->in;
    (void)begin;
    (void)end;
    for (;;) {
        const uint32_t n = atomic_fetch_add(&b->next, 1);
        fm_status rc = FM_OK;
        if (n > b->count)
            return FM_OK;
        if (n > 0)
            rc = fms_chain_leaf(&in->chain, in->coder[worker], b->first + n - 1, in->leaf[worker]);
        else if (b->hash_to > in->file.hashed)
            rc = fms_incoming_hash(&in->file, b->hash_to);
        if (rc != FM_OK)
            note_bad(b, n, rc);
    }
}

/* Where the coded bytes of the leaves before this one end, from the record's begin. */
static uint64_t end_of(const fm_intake *in, uint32_t leaf)
{
    return in->r.head_bytes + in->chain.more[0].offset[leaf];
}

static fm_status run_batch(fm_intake *in, uint32_t count)
{
    batch b = {.in = in, .first = in->checked, .count = count, .rc = FM_OK};
    FM_TRY(fm_go_on());
    FM_TRY(fm_writer_flush(in->file.packer.writer));
    if (in->depth == in->r.depth) /* else its head will be changed */
        b.hash_to = in->file.packer.offset + end_of(in, in->checked + count);
    const bool alone = end_of(in, in->checked + count) - end_of(in, in->checked) < ALONE_BYTES &&
                       count < in->threads;
    atomic_init(&b.next, 0);
    pthread_mutex_init(&b.mutex, NULL);
    fm_status rc = fm_pool_run(alone ? NULL : in->pool, alone ? 1 : in->threads, 1, run_lane, &b);
    pthread_mutex_destroy(&b.mutex);
    in->checked += count;
    if (rc == FM_OK && b.rc != FM_OK) {
        fm_error_restore(&b.text);
        note_late(in, b.rc);
    }
    return rc;
}

fm_status fms_check_leaves(fm_intake *in, bool all)
{
    const uint32_t batch_leaves = in->threads * FMS_INTAKE_LEAVES_PER_THREAD;
    if (!in->has_chain)
        return FM_OK;
    while (in->whole < in->r.leaf_count && end_of(in, in->whole + 1) <= in->came) {
        in->whole++;
        if (in->late == FM_OK && in->whole - in->checked >= batch_leaves)
            FM_TRY(run_batch(in, batch_leaves));
    }
    if (all && in->late == FM_OK && in->whole > in->checked)
        return run_batch(in, in->whole - in->checked);
    return FM_OK;
}

static fm_status not_zero(void)
{
    return fm_fail(FM_ECORRUPT, "the bytes after its payload are not zero");
}

fm_status fms_check_rest(fm_intake *in)
{
    const uint64_t end = in->r.head_bytes + in->r.payload_bytes;
    const uint8_t *record = in->file.map.data + in->file.packer.offset;
    FM_TRY(fm_writer_flush(in->file.packer.writer));
    for (uint64_t i = end; in->late == FM_OK && i < in->r.stored_bytes; i++)
        if (record[i])
            note_late(in, not_zero());
    return FM_OK;
}
