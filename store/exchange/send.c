/* send.c - the sender's side of an exchange: which record of an object goes, and its bytes. */
#include <string.h>

#include "store/exchange.h"
#include "store/pack/store_priv.h"

#define PIECE_BYTES ((uint64_t)1 << 20)
#define PAGE_BYTES 4096u
#define PLACES_MAX 64u /* records of one object that are looked at */

static fm_digest head_of(const fms_record *r)
{
    fm_digest head;
    memcpy(head.b, r->payload - FM_DIGEST_BYTES, FM_DIGEST_BYTES);
    return head;
}

static fm_status parents_stored(fm_store *s, const fms_record *r, bool *yes)
{
    *yes = true;
    for (uint32_t k = 0; *yes && k < r->parent_count; k++)
        FM_TRY(fms_store_has(s, &r->parent[k], false, yes));
    return FM_OK;
}

/* Takes the sound record of least depth whose parents are all stored. Chains are made of such
 * records, so its depth is greater than those which this function gives for its parents. */
static fm_status best_record(fm_store *s, const fm_digest *id, fms_record *out, bool *found)
{
    fm_status rc = FM_OK;
    *found = false;
    memset(out, 0, sizeof *out);
    for (uint32_t nth = 0; rc == FM_OK && nth < PLACES_MAX; nth++) {
        fms_record r;
        fms_place place;
        bool whole;
        rc = fms_store_record(s, id, nth, nth == 0, &r, &place);
        if (rc == FM_ECORRUPT || rc == FM_EVERSION) { /* of this place alone */
            rc = FM_OK;
            continue;
        }
        if (rc != FM_OK || place.bad) /* sound places come first */
            break;
        rc = parents_stored(s, &r, &whole);
        if (rc == FM_OK && whole && (!*found || r.depth < out->depth)) {
            *out = r;
            *found = true;
        }
    }
    return rc == FM_ENOTFOUND ? FM_OK : rc;
}

static fm_status not_here(const fm_digest *id)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(id, hex);
    return fm_fail(FM_ENOTFOUND,
                   "object %s is not in the store, or neither it nor what it is coded against is "
                   "known to be sound: run fsck",
                   hex);
}

fm_status fm_record_info_of(fm_store *s, fm_record_info *out, const fm_digest *id)
{
    fms_record r;
    bool found;
    memset(out, 0, sizeof *out);
    FM_TRY(best_record(s, id, &r, &found));
    if (!found)
        return not_here(id);
    out->id = r.id;
    out->head = head_of(&r);
    out->bytes = r.bytes;
    out->stored_bytes = r.stored_bytes;
    out->depth = r.depth;
    out->parent_count = r.parent_count;
    memcpy(out->parent, r.parent, sizeof out->parent);
    return FM_OK;
}

static fm_status find_record(fm_store *s, const fm_record_info *info, fms_record *r)
{
    char hex[FM_HEX_CHARS + 1];
    fm_status rc = FM_OK;
    for (uint32_t nth = 0; rc == FM_OK && nth < PLACES_MAX; nth++) {
        fms_place place;
        fm_digest head;
        rc = fms_store_record(s, &info->id, nth, nth == 0, r, &place);
        if (rc == FM_ECORRUPT || rc == FM_EVERSION) {
            rc = FM_OK;
            continue;
        }
        if (rc != FM_OK)
            break;
        head = head_of(r);
        if (fm_digest_eq(&head, &info->head) && r->stored_bytes == info->stored_bytes)
            return FM_OK;
    }
    if (rc != FM_OK && rc != FM_ENOTFOUND)
        return rc;
    fm_digest_hex(&info->id, hex);
    return fm_fail(FM_ENOTFOUND, "object %s is not stored in that record any more: ask anew", hex);
}

/* Reads a byte of each page, so that a page which cannot be read is known before it is sent. */
static fm_status touch(const fm_record_info *info, const uint8_t *data, size_t len)
{
    volatile uint8_t sum = 0;
    for (size_t i = 0; i < len; i += PAGE_BYTES)
        sum = (uint8_t)(sum ^ data[i]);
    sum = (uint8_t)(sum ^ data[len - 1]);
    const char *path = fm_map_failed(data);
    char hex[FM_HEX_CHARS + 1];
    if (!path)
        return FM_OK;
    fm_digest_hex(&info->id, hex);
    return fm_fail(FM_ECORRUPT, "object %s: %s was cut since it was opened, or its disk fails", hex,
                   path);
}

fm_status fm_record_send(fm_store *s, const fm_record_info *info, uint64_t offset, fm_bytes_fn fn,
                         void *ctx)
{
    fms_record r;
    if (offset > info->stored_bytes)
        return fm_fail(FM_EINVAL, "byte %llu of a record that has %llu", (unsigned long long)offset,
                       (unsigned long long)info->stored_bytes);
    FM_TRY(find_record(s, info, &r));
    const uint8_t *bytes = r.payload - r.head_bytes;
    while (offset < r.stored_bytes) {
        const size_t n = (size_t)FM_MIN(r.stored_bytes - offset, PIECE_BYTES);
        FM_TRY(touch(info, bytes + offset, n));
        FM_TRY(fn(ctx, bytes + offset, n));
        offset += n;
    }
    return FM_OK;
}
