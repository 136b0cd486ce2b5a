/* intake.c - the receiver's side of an exchange: records that arrive, one after the other. */
#include "store/exchange/intake.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

/* ==== open and close ======================================================================= */

/* One thread per processor, up to the number for which memory is bounded. */
static fm_status new_pool(fm_pool **out)
{
    fm_status rc = fm_pool_new(out, 0);
    if (rc != FM_OK || fm_pool_threads(*out) <= FMS_INTAKE_THREADS_MAX)
        return rc;
    fm_pool_free(*out);
    return fm_pool_new(out, FMS_INTAKE_THREADS_MAX);
}

static fm_status new_workers(fm_intake *in)
{
    FM_TRY(new_pool(&in->pool));
    in->threads = fm_pool_threads(in->pool);
    in->coder = fm_calloc(in->threads, sizeof(fms_coder *));
    in->leaf = fm_calloc(in->threads, sizeof(uint8_t *));
    if (!in->coder || !in->leaf)
        return FM_ENOMEM;
    for (unsigned i = 0; i < in->threads; i++) {
        in->leaf[i] = fm_malloc(FM_LEAF_BYTES);
        FM_TRY(in->leaf[i] ? fms_store_coder(in->store, &in->coder[i]) : FM_ENOMEM);
    }
    return FM_OK;
}

static fm_status look(fm_store *s)
{
    pthread_mutex_lock(&s->mutex);
    fm_status rc = fms_store_look(s); /* once: what others store meanwhile may be stored twice */
    pthread_mutex_unlock(&s->mutex);
    return rc;
}

fm_status fm_intake_open(fm_intake **out, fm_store *s)
{
    *out = NULL;
    fm_intake *in = fm_calloc(1, sizeof *in);
    if (!in)
        return FM_ENOMEM;
    in->store = s;
    in->roll_bytes = FMS_INCOMING_ROLL_BYTES;
    in->dir = fm_path_join(s->root, FMS_INCOMING_DIR);
    fm_status rc = in->dir ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, fm_store_lease(s, true, "objects of another repository"));
    FM_THEN(rc, look(s));
    FM_THEN(rc, new_workers(in));
    FM_THEN(rc, fms_take_over(in));
    if (rc != FM_OK) {
        fm_intake_close(in);
        return rc;
    }
    *out = in;
    return FM_OK;
}

void fm_intake_close(fm_intake *in)
{
    if (!in)
        return;
    const bool keep = in->file.packer.records || in->cut_bytes || in->has_head;
    fms_check_close(in);
    fms_incoming_close(&in->file, keep);
    fm_pool_free(in->pool);
    for (unsigned i = 0; i < in->threads; i++) {
        if (in->coder)
            fms_store_coder_return(in->store, in->coder[i]);
        if (in->leaf)
            fm_free(in->leaf[i]);
    }
    fm_free(in->coder);
    fm_free(in->leaf);
    fm_free(in->dir);
    fm_free(in);
}

/* ==== what is here ========================================================================= */

bool fm_intake_cut(const fm_intake *in, fm_digest *id, fm_digest *head, uint64_t *bytes)
{
    memset(id, 0, sizeof *id);
    memset(head, 0, sizeof *head);
    *bytes = in->cut_bytes;
    if (in->cut_bytes == 0)
        return false;
    *id = in->cut.id;
    *head = in->cut.head;
    return true;
}

bool fm_intake_has(fm_intake *in, const fm_digest *id)
{
    bool has = false;
    if (fms_incoming_is_open(&in->file) && fm_map_has(in->file.record, id->b, FM_DIGEST_BYTES))
        return true;
    if (fms_store_condemned(in->store, id)) /* gc may delete it: it is to be received again */
        return false;
    return fms_store_has(in->store, id, false, &has) == FM_OK && has;
}

/* ==== a record ============================================================================= */

static fm_status over(const fm_record_info *info, const char *what, uint64_t value)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(&info->id, hex);
    return fm_fail(FM_ELIMIT, "object %s: no record has %s %llu", hex, what,
                   (unsigned long long)value);
}

static fm_status check_claims(const fm_record_info *i)
{
    if (i->bytes > FM_MAX_TENSOR_BYTES)
        return over(i, "decoded bytes", i->bytes);
    if (i->depth > FMS_CHAIN_MAX)
        return over(i, "the depth", i->depth);
    if (i->parent_count > FMS_PARENTS_MAX)
        return over(i, "parents", i->parent_count);
    const uint64_t head_max = FMS_RECORD_FIXED_BYTES + FMS_RECIPE_BYTES_MAX +
                              (uint64_t)fms_leaf_count(i->bytes) * FMS_LEAF_ROW_BYTES +
                              FM_DIGEST_BYTES + FMS_PACK_ALIGN;
    if (i->stored_bytes % FMS_PACK_ALIGN ||
        i->stored_bytes < FMS_RECORD_FIXED_BYTES + FM_DIGEST_BYTES ||
        i->stored_bytes > head_max + FMS_INCOMING_STORED_MAX(i->bytes))
        return over(i, "for its size the stored bytes", i->stored_bytes);
    return FM_OK;
}

fm_status fms_info_of(fm_record_info *out, const fms_record *r)
{
    memset(out, 0, sizeof *out);
    out->id = r->id;
    memcpy(out->head.b, r->payload - FM_DIGEST_BYTES, FM_DIGEST_BYTES);
    out->bytes = r->bytes;
    out->stored_bytes = r->stored_bytes;
    out->depth = r->depth;
    out->parent_count = r->parent_count;
    memcpy(out->parent, r->parent, sizeof out->parent);
    return check_claims(out);
}

void fms_intake_forget(fm_intake *in)
{
    fms_check_close(in);
    in->state = FMS_INTAKE_IDLE;
    in->came = 0;
    in->has_head = false;
    in->depth = 0;
    in->whole = in->checked = 0;
    in->late = FM_OK;
}

/* Drops the record because of `why`. Where the file cannot be cut it is closed: the next intake
 * takes over the records before this one. */
static fm_status drop_record(fm_intake *in, fm_status why)
{
    fm_error_state text;
    fm_error_save(&text);
    const bool filling = in->state == FMS_INTAKE_FILLING;
    fms_intake_forget(in);
    if (filling && fms_incoming_is_open(&in->file) && fms_incoming_drop_rest(&in->file) != FM_OK)
        fms_incoming_close(&in->file, true);
    fm_error_restore(&text);
    return why;
}

static bool of_the_record(fm_status rc)
{
    return rc == FM_ECORRUPT || rc == FM_ELIMIT || rc == FM_EVERSION;
}

/* A fault was found that fm_intake_end tells: the bytes that follow are not written any more. */
static fm_status doom(fm_intake *in)
{
    fms_check_close(in);
    in->has_head = false;
    in->state = FMS_INTAKE_DOOMED;
    return fms_incoming_drop_rest(&in->file);
}

static fm_status drop_cut(fm_intake *in)
{
    if (in->cut_bytes == 0)
        return FM_OK;
    in->cut_bytes = 0;
    return fms_incoming_drop_rest(&in->file);
}

/* A file for the record: the open one, or where that is full a new one. */
static fm_status need_file(fm_intake *in)
{
    const fms_packer *p = &in->file.packer;
    if (fms_incoming_is_open(&in->file) &&
        (p->offset >= in->roll_bytes || p->records >= FMS_INCOMING_RECORDS_MAX))
        FM_TRY(fm_intake_publish(in, NULL));
    if (fms_incoming_is_open(&in->file))
        return FM_OK;
    return fms_incoming_make(&in->file, in->store, in->dir);
}

static fm_status go_on_with_cut(fm_intake *in, const fm_record_info *info, uint64_t offset)
{
    if (offset != in->cut_bytes || !fm_digest_eq(&info->id, &in->cut.id) ||
        !fm_digest_eq(&info->head, &in->cut.head))
        return fm_fail(FM_EINVAL, "byte %llu of a record of which the first bytes are not here",
                       (unsigned long long)offset);
    in->cut_bytes = 0;
    return FM_OK;
}

fm_status fm_intake_begin(fm_intake *in, const fm_record_info *info, uint64_t offset)
{
    if (in->state != FMS_INTAKE_IDLE)
        return fm_fail(FM_EINVAL, "a record begins before the one before it has ended");
    FM_TRY(check_claims(info));
    if (offset > 0)
        FM_TRY(go_on_with_cut(in, info, offset));
    else
        FM_TRY(drop_cut(in));
    fms_intake_forget(in);
    in->info = *info;
    in->came = offset;
    if (offset == 0 && fm_intake_has(in, &info->id)) {
        in->state = FMS_INTAKE_PASSING;
        return FM_OK;
    }
    FM_TRY(need_file(in));
    FM_TRY(fms_incoming_map(&in->file, in->file.packer.offset + info->stored_bytes));
    in->state = FMS_INTAKE_FILLING;
    if (offset == 0)
        return FM_OK;
    fm_status rc = fms_intake_head(in);
    return of_the_record(rc) ? drop_record(in, rc) : rc;
}

static bool same_info(const fm_record_info *a, const fm_record_info *b)
{
    return fm_digest_eq(&a->id, &b->id) && fm_digest_eq(&a->head, &b->head) &&
           a->bytes == b->bytes && a->stored_bytes == b->stored_bytes && a->depth == b->depth &&
           a->parent_count == b->parent_count &&
           memcmp(a->parent, b->parent, a->parent_count * sizeof a->parent[0]) == 0;
}

static fm_status parse_head(fm_intake *in, const char *what)
{
    const uint8_t *at = in->file.map.data + in->file.packer.offset;
    const fm_span here = fm_span_of(at, (size_t)FM_MIN(in->came, in->info.stored_bytes));
    fm_record_info found;
    uint64_t head_bytes;
    FM_TRY(fm_writer_flush(in->file.packer.writer));
    FM_TRY(fms_record_head_length(&head_bytes, here, what));
    if (head_bytes > in->info.stored_bytes)
        return fm_fail(FM_ECORRUPT, "%s: its head of %llu bytes is longer than the record", what,
                       (unsigned long long)head_bytes);
    if (in->came < head_bytes)
        return FM_OK;
    FM_TRY(fms_record_parse_head(&in->r, here, what));
    FM_TRY(fms_info_of(&found, &in->r));
    if (!same_info(&found, &in->info))
        return fm_fail(FM_ECORRUPT, "%s: its head is another's", what);
    in->has_head = true;
    return fms_check_open(in);
}

fm_status fms_intake_head(fm_intake *in)
{
    char hex[FM_HEX_CHARS + 1], what[FM_HEX_CHARS + 48];
    if (in->has_head || in->came < FMS_RECORD_FIXED_BYTES)
        return FM_OK;
    fm_digest_hex(&in->info.id, hex);
    snprintf(what, sizeof what, "record received for object %s", hex);
    return parse_head(in, what);
}

static fm_status no_record(void)
{
    return fm_fail(FM_EINVAL, "bytes of a record that has not begun");
}

fm_status fm_intake_bytes(fm_intake *in, const void *data, size_t len)
{
    char hex[FM_HEX_CHARS + 1];
    if (in->state == FMS_INTAKE_IDLE)
        return no_record();
    if (len > in->info.stored_bytes - in->came) {
        fm_digest_hex(&in->info.id, hex);
        return drop_record(in, fm_fail(FM_ECORRUPT,
                                       "record received for object %s: more than its %llu bytes",
                                       hex, (unsigned long long)in->info.stored_bytes));
    }
    if (in->state == FMS_INTAKE_FILLING)
        FM_TRY(fm_writer_write(in->file.packer.writer, data, len));
    in->came += len;
    if (in->state != FMS_INTAKE_FILLING)
        return FM_OK;
    fm_status rc = fms_intake_head(in);
    if (of_the_record(rc))
        return drop_record(in, rc);
    if (rc == FM_OK && in->has_head)
        rc = fms_check_leaves(in, false);
    return rc == FM_OK && in->late != FM_OK ? doom(in) : rc;
}

static fm_status late_fault(const fm_intake *in)
{
    fm_error_restore(&in->late_text);
    return in->late;
}

static fm_status cut_short(const fm_intake *in)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(&in->info.id, hex);
    return fm_fail(FM_ECORRUPT, "record received for object %s: %llu of %llu bytes came", hex,
                   (unsigned long long)in->came, (unsigned long long)in->info.stored_bytes);
}

/* Here the parents are deeper than where the record comes from: only its depth is another. */
static fm_status set_depth(fm_intake *in)
{
    const uint64_t at = in->file.packer.offset;
    uint8_t *head = fm_malloc((size_t)in->r.head_bytes);
    if (!head)
        return FM_ENOMEM;
    memcpy(head, in->file.map.data + at, (size_t)in->r.head_bytes);
    fm_status rc = fms_record_set_depth(head, (size_t)in->r.head_bytes, in->depth);
    FM_THEN(rc, fm_writer_pwrite(in->file.packer.writer, at, head, (size_t)in->r.head_bytes));
    fm_free(head);
    in->r.depth = in->depth;
    return rc;
}

fm_status fms_intake_whole(fm_intake *in)
{
    FM_TRY(fms_check_leaves(in, true));
    FM_TRY(fms_check_rest(in));
    if (in->late != FM_OK)
        return late_fault(in);
    if (in->depth > in->r.depth)
        FM_TRY(set_depth(in));
    const bool fresh = !fm_intake_has(in, &in->r.id);
    fm_status rc = fms_incoming_count(&in->file, &in->r, fresh);
    if (rc != FM_OK)
        fms_incoming_close(&in->file, true);
    return rc;
}

fm_status fm_intake_end(fm_intake *in)
{
    if (in->state == FMS_INTAKE_IDLE)
        return no_record();
    if (in->state == FMS_INTAKE_DOOMED)
        return drop_record(in, late_fault(in));
    if (in->came < in->info.stored_bytes)
        return drop_record(in, cut_short(in));
    if (in->state == FMS_INTAKE_PASSING) {
        fms_intake_forget(in);
        return FM_OK;
    }
    fm_status rc = fms_intake_whole(in);
    if (rc == FM_ECANCELLED) /* all of it is here, and stays for the next intake */
        return rc;
    if (rc != FM_OK)
        return drop_record(in, rc);
    fms_intake_forget(in);
    return FM_OK;
}

fm_status fm_intake_publish(fm_intake *in, fm_intake_stats *stats)
{
    fm_status rc = FM_OK;
    if (stats)
        *stats = in->stats;
    if (in->state != FMS_INTAKE_IDLE)
        return fm_fail(FM_EINVAL, "a record has not ended");
    const fms_packer *p = &in->file.packer;
    const fm_intake_stats more = {p->records, p->offset - FMS_PACK_HEADER_BYTES};
    if (!fms_incoming_is_open(&in->file) || p->records == 0)
        return FM_OK;
    rc = fms_incoming_publish(&in->file);
    if (rc == FM_OK) {
        in->stats.objects += more.objects;
        in->stats.bytes += more.bytes;
    }
    if (stats)
        *stats = in->stats;
    return rc;
}
