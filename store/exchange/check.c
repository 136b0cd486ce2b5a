/* check.c - what a record that arrives is coded against, and what follows its leaves. A record may
 * be coded against others of the same file, which are read where they lie. */
#include "store/exchange/intake.h"

#include <string.h>

void fms_check_late(fm_intake *in, fms_arrival *a, uint32_t leaf, fm_status rc)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(&a->info.id, hex);
    rc = fm_error_prefix(rc, "record received for object %s", hex);
    (void)pthread_mutex_lock(&in->lock);
    if (a->late == FM_OK || leaf < a->bad) {
        a->late = rc;
        a->bad = leaf;
        fm_error_save(&a->late_text);
    }
    (void)pthread_mutex_unlock(&in->lock);
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

static fm_status too_deep(const fm_digest *parent)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(parent, hex);
    return fm_fail(FM_EBASE,
                   "it is coded against %s, which is made in %u steps here already: 'fmstore "
                   "repack --depth 4' in this repository makes it less",
                   hex, FMS_CHAIN_MAX);
}

/* The least depth of a parent's records: another record, shallower, would do. */
static fm_status check_depth(fm_intake *in, const fm_digest *parent)
{
    fms_record r;
    fms_place place;
    fm_status rc = map_record(in, parent, &r);
    uint32_t least = rc == FM_OK ? r.depth : FMS_CHAIN_MAX;
    bool more = rc == FM_ENOTFOUND;
    for (uint32_t nth = 0; more && least == FMS_CHAIN_MAX; nth++) {
        rc = fms_store_record(in->store, parent, nth, false, &r, &place);
        more = rc == FM_OK;
        least = more ? r.depth : least;
    }
    if (rc != FM_OK && rc != FM_ENOTFOUND)
        return rc;
    return least < FMS_CHAIN_MAX ? FM_OK : too_deep(parent);
}

/* Opens the chain at the greatest depth; then what the parents are here says how deep it is. */
static fm_status open_chain(fm_intake *in, fms_chain *chain, uint32_t *depth)
{
    const fms_staged staged = {.ctx = in, .map = map_record};
    fms_record r = in->now->r;
    for (uint32_t k = 0; k < r.parent_count; k++) {
        bool has;
        FM_TRY(fms_intake_has(in, &r.parent[k], &has));
        FM_TRY(has ? check_depth(in, &r.parent[k]) : missing(&r.parent[k]));
    }
    r.depth = r.parent_count ? FMS_CHAIN_MAX : 0;
    FM_TRY(fms_chain_from(chain, in->store, &r, &staged));
    chain->own_unchecked = true;
    *depth = in->now->r.depth;
    for (uint32_t k = 0; k < r.parent_count; k++)
        *depth = FM_MAX(*depth, chain->link[chain->more[0].parent[k]].depth + 1);
    chain->link[0].depth = *depth;
    return FM_OK;
}

fm_status fms_check_open(fm_intake *in)
{
    uint32_t depth;
    fm_status rc = open_chain(in, &in->now->chain, &depth);
    if (rc == FM_ENOMEM || rc == FM_EIO)
        return rc;
    if (rc != FM_OK) {
        fms_check_late(in, in->now, 0, rc);
        return FM_OK;
    }
    (void)pthread_mutex_lock(&in->lock);
    in->now->depth = depth;
    in->now->has_chain = true;
    (void)pthread_mutex_unlock(&in->lock);
    return FM_OK;
}

void fms_check_rest(fm_intake *in)
{
    const fms_record *r = &in->now->r;
    const uint8_t *record = in->file.map.data + in->now->at;
    for (uint64_t i = r->head_bytes + r->payload_bytes; i < r->stored_bytes; i++) {
        if (!record[i])
            continue;
        fms_check_late(in, in->now, r->leaf_count,
                       fm_fail(FM_ECORRUPT, "the bytes after its payload are not zero"));
        return;
    }
}
