/* takeover.c - what killed intakes left in incoming/: whole records are compared and published, and
 * the longest cut record is kept, for the transfer to go on with.
 *
 * A file is published where it lies. Its cut record, which is last, is first copied into a file of
 * its own; so a kill in between leaves it twice, never not at all. The bytes are trusted no more
 * than if they came now: a power cut may have torn them. */
#include "store/exchange/intake.h"

#include <string.h>

#include "store/base/mem.h"
#include "store/gc/room.h"

/* Whether a file system kept the old name of a pack that was published, across a power cut. */
static fm_status is_published(const fm_intake *in, uint64_t bytes, bool *yes)
{
    const fm_span pack = fm_span_of(in->file.map.data, (size_t)bytes);
    fm_digest sum;
    char name[FM_HEX_CHARS + 1];
    *yes = false;
    if (!fms_pack_is_ended(pack))
        return FM_OK;
    FM_TRY(fm_sha256(&sum, pack.data, pack.len));
    fm_digest_hex(&sum, name);
    char *path = fms_store_pack_path(in->store, name);
    if (!path)
        return FM_ENOMEM;
    *yes = fm_path_exists(path);
    fm_free(path);
    return FM_OK;
}

static bool is_fault(fm_status rc)
{
    return fms_is_damage(rc) || rc == FM_ELIMIT;
}

/* The whole record after those that were counted. */
static fm_status take_record(fm_intake *in, const fms_record *r, const fm_record_info *info)
{
    fms_intake_arrive(in, info, r->stored_bytes);
    in->now->r = *r;
    in->now->has_head = true;
    fm_status rc = fms_check_open(in);
    FM_THEN(rc, fms_intake_whole(in));
    FM_THEN(rc, fm_intake_settle(in));
    fms_intake_rest(in);
    return rc;
}

/* FM_OK: a record was counted. A fault, or *cut: what follows is no whole record. */
static fm_status take_next(fm_intake *in, uint64_t bytes, bool *cut)
{
    const uint64_t at = in->file.packer.offset;
    const fm_span here = fm_span_of(in->file.map.data + at, (size_t)(bytes - at));
    fms_record r;
    fm_record_info info;
    uint64_t head_bytes;
    FM_TRY(fms_record_head_length(&head_bytes, here, "incoming"));
    if (head_bytes > here.len)
        return fm_fail(FM_ECORRUPT, "incoming: the head is cut");
    FM_TRY(fms_record_parse_head(&r, here, "incoming"));
    FM_TRY(fms_info_of(&info, &r));
    *cut = r.stored_bytes > here.len;
    if (!*cut)
        return take_record(in, &r, &info);
    in->cut = info;
    in->cut_bytes = here.len;
    return FM_OK;
}

/* Counts the whole records of a file, up to the first that is not. */
static fm_status take_records(fm_intake *in, uint64_t bytes)
{
    fm_status rc = FM_OK;
    bool cut = false;
    while (rc == FM_OK && !cut && in->file.packer.offset < bytes)
        rc = take_next(in, bytes, &cut);
    if (!is_fault(rc))
        return rc;
    fm_error_clear();
    return FM_OK;
}

/* Copies the cut record into a file of its own. On a full disk it is given up: it is sent again. */
static fm_status move_cut(fm_intake *in, const char *path, fms_incoming *to)
{
    if (in->cut_bytes == 0)
        return FM_OK;
    fm_status rc = fms_incoming_make(to, in->store, in->dir);
    if (rc == FM_OK) {
        rc = fm_writer_copy(to->packer.writer, path, in->file.packer.offset, in->cut_bytes);
        FM_THEN(rc, fm_writer_flush(to->packer.writer));
        if (rc != FM_OK)
            fms_incoming_close(to, false);
    }
    if (rc != FM_EIO || !fms_no_room())
        return rc;
    in->cut_bytes = 0;
    fm_error_clear();
    return FM_OK;
}

/* Publishes what was counted, and leaves in in->file what is cut, if anything. */
static fm_status settle(fm_intake *in, const char *path)
{
    fms_incoming cut;
    memset(&cut, 0, sizeof cut);
    if (in->file.packer.records == 0) {
        if (in->cut_bytes == 0)
            fms_incoming_close(&in->file, false);
        return FM_OK;
    }
    fm_status rc = move_cut(in, path, &cut);
    FM_THEN(rc, fms_incoming_drop_rest(&in->file));
    if (rc == FM_OK && in->file.fresh)
        rc = fms_incoming_publish(&in->file);
    else
        fms_incoming_close(&in->file, rc != FM_OK);
    in->file = cut;
    return rc;
}

static fm_status take_file(fm_intake *in, const char *path)
{
    uint64_t bytes;
    bool published = false;
    fm_status rc = fms_incoming_resume(&in->file, in->store, path, &bytes);
    if (rc != FM_OK) { /* its owner lives, or took it away; or it is no file of ours */
        fm_error_clear();
        return rc == FM_ENOMEM ? rc : FM_OK;
    }
    if (bytes)
        rc = is_published(in, bytes, &published);
    if (rc != FM_OK)
        return rc;
    if (bytes == 0 || published) {
        fms_incoming_close(&in->file, false);
        return FM_OK;
    }
    FM_TRY(take_records(in, bytes));
    return settle(in, path);
}

/* What is cut in one of the files. */
typedef struct remnant {
    fms_incoming file;
    uint64_t bytes;
    fm_record_info info;
} remnant;

/* Takes the cut record of in->file if it is the longest so far. */
static void keep_longest(fm_intake *in, remnant *best)
{
    const remnant found = {in->file, in->cut_bytes, in->cut};
    fms_incoming worse = found.file;
    if (found.bytes > best->bytes) {
        worse = best->file;
        *best = found;
    }
    if (fms_incoming_is_open(&worse))
        fms_incoming_close(&worse, false);
    memset(&in->file, 0, sizeof in->file);
    in->cut_bytes = 0;
}

fm_status fms_take_over(fm_intake *in)
{
    fm_names names = {NULL, 0};
    remnant best;
    memset(&best, 0, sizeof best);
    fm_status rc = fm_list_dir(&names, in->dir);
    if (rc == FM_ENOTFOUND) {
        fm_error_clear();
        rc = FM_OK;
    }
    for (size_t i = 0; rc == FM_OK && i < names.count; i++) {
        char *path = fm_path_join(in->dir, names.name[i]);
        rc = path ? take_file(in, path) : FM_ENOMEM;
        fm_free(path);
        if (rc == FM_OK)
            keep_longest(in, &best);
    }
    fm_names_release(&names);
    bool has = false;
    if (rc == FM_OK && best.bytes)
        rc = fms_intake_has(in, &best.info.id, &has);
    if (rc != FM_OK) {
        if (fms_incoming_is_open(&in->file))
            fms_incoming_close(&in->file, true);
        fms_incoming_close(&best.file, true);
        in->cut_bytes = 0;
        return rc;
    }
    if (has) { /* it came in another way since */
        fms_incoming_close(&best.file, false);
        best.bytes = 0;
    }
    in->file = best.file;
    in->cut = best.info;
    in->cut_bytes = best.bytes;
    return FM_OK;
}
