/* intake.c - the receiver's side of an exchange: records that arrive, one after the other. */
#include "store/exchange/intake.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

/* ==== open and close ======================================================================= */

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
    in->now = &in->ring[0];
    in->dir = fm_path_join(s->root, FMS_INCOMING_DIR);
    fm_status rc = in->dir ? FM_OK : FM_ENOMEM;
    FM_THEN(rc, fm_store_lease(s, true, "objects of another repository"));
    FM_THEN(rc, look(s));
    FM_THEN(rc, fms_compare_start(in));
    FM_THEN(rc, fms_take_over(in));
    if (rc != FM_OK) {
        fm_intake_close(in);
        return rc;
    }
    *out = in;
    return FM_OK;
}

/* Forgets all records but those that count; their bytes stay in the file. The threads are
 * halted. */
static void forget(fm_intake *in)
{
    for (uint32_t n = 0; n <= in->waiting; n++) {
        fms_arrival *a = fms_intake_nth(in, n);
        if (a->has_chain)
            fms_chain_release(&a->chain);
        a->has_chain = a->has_head = false;
    }
    in->now = fms_intake_nth(in, 0);
    in->waiting = 0;
    in->behind = 0;
    in->state = FMS_INTAKE_IDLE;
}

void fm_intake_close(fm_intake *in)
{
    if (!in)
        return;
    const bool keep = in->file.packer.records || in->waiting || in->cut_bytes || in->now->has_head;
    fms_compare_stop(in);
    forget(in);
    fms_incoming_close(&in->file, keep);
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

fm_status fms_intake_has(fm_intake *in, const fm_digest *id, bool *out)
{
    *out = fms_incoming_is_open(&in->file) && fm_map_has(in->file.record, id->b, FM_DIGEST_BYTES);
    if (*out || fms_store_condemned(in->store, id)) /* gc may delete it: it is received again */
        return FM_OK;
    return fms_store_has(in->store, id, false, out);
}

static bool is_waiting(fm_intake *in, const fm_digest *id)
{
    for (uint32_t n = 0; n < in->waiting; n++)
        if (fm_digest_eq(&fms_intake_nth(in, n)->info.id, id))
            return true;
    return false;
}

bool fm_intake_has(fm_intake *in, const fm_digest *id)
{
    bool has;
    return is_waiting(in, id) || (fms_intake_has(in, id, &has) == FM_OK && has);
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

/* ==== records that wait for their leaves =================================================== */

fms_arrival *fms_intake_nth(fm_intake *in, uint32_t n)
{
    return &in->ring[(in->first + n) % FMS_INTAKE_RECORDS];
}

/* Where the last record ends. */
static uint64_t end_of_file(fm_intake *in)
{
    if (in->waiting == 0)
        return in->file.packer.offset;
    const fms_arrival *last = fms_intake_nth(in, in->waiting - 1);
    return last->at + last->r.stored_bytes;
}

void fms_intake_rest(fm_intake *in)
{
    fms_compare_halt(in, true);
    forget(in);
}

/* Cuts off all that does not count. Where the file cannot be cut it is closed: the next intake
 * takes over what is in it. */
static fm_status drop(fm_intake *in, fm_status why)
{
    fm_error_state text;
    fm_error_save(&text);
    const bool fills = in->state == FMS_INTAKE_FILLING || in->waiting;
    fms_intake_rest(in);
    if (fills && fms_incoming_is_open(&in->file) && fms_incoming_drop_rest(&in->file) != FM_OK)
        fms_incoming_close(&in->file, true);
    fm_error_restore(&text);
    return why;
}

static fm_status late_fault(fm_intake *in, const fms_arrival *a)
{
    (void)pthread_mutex_lock(&in->lock);
    const fm_status rc = a->late;
    if (rc != FM_OK)
        fm_error_restore(&a->late_text);
    (void)pthread_mutex_unlock(&in->lock);
    return rc;
}

/* Of the first record that waits: all its leaves were compared, or one is wrong. */
static bool is_done(fm_intake *in)
{
    const fms_arrival *a = fms_intake_nth(in, 0);
    (void)pthread_mutex_lock(&in->lock);
    const bool done = a->late != FM_OK || a->compared == a->r.leaf_count;
    (void)pthread_mutex_unlock(&in->lock);
    return done;
}

static fm_status count_first(fm_intake *in)
{
    fms_arrival *a = fms_intake_nth(in, 0);
    bool has;
    fm_status rc = late_fault(in, a);
    if (rc != FM_OK)
        return drop(in, rc);
    FM_TRY(fms_intake_has(in, &a->r.id, &has));
    (void)pthread_mutex_lock(&in->lock);
    rc = fms_incoming_count(&in->file, &a->r, !has);
    in->first = (in->first + 1) % FMS_INTAKE_RECORDS;
    in->waiting--;
    a->has_chain = a->has_head = false;
    (void)pthread_mutex_unlock(&in->lock);
    fms_chain_release(&a->chain);
    if (rc == FM_OK)
        return FM_OK;
    fms_intake_rest(in);
    fms_incoming_close(&in->file, true);
    return rc;
}

/* Counts those that are done. The first with a fault is dropped with all that follow. */
static fm_status count_done(fm_intake *in)
{
    while (in->waiting && is_done(in))
        FM_TRY(count_first(in));
    return FM_OK;
}

fm_status fm_intake_settle(fm_intake *in)
{
    if (!in->waiting)
        return FM_OK;
    FM_TRY(fms_compare_all(in));
    return count_done(in);
}

/* Also no thread looks at the file until the next record begins. */
static fm_status settle_and_halt(fm_intake *in)
{
    FM_TRY(fm_intake_settle(in));
    fms_compare_halt(in, true);
    return FM_OK;
}

/* Drops the record that arrives because of `why`, or because of an earlier one that is wrong. */
static fm_status drop_record(fm_intake *in, fm_status why)
{
    fm_error_state text;
    fm_error_save(&text);
    FM_TRY(fm_intake_settle(in));
    fm_error_restore(&text);
    return drop(in, why);
}

static bool of_the_record(fm_status rc)
{
    return rc == FM_ECORRUPT || rc == FM_ELIMIT || rc == FM_EVERSION;
}

/* A fault was found that fm_intake_end tells: the bytes that follow are not written any more. */
static fm_status doom(fm_intake *in)
{
    FM_TRY(settle_and_halt(in));
    if (in->now->has_chain)
        fms_chain_release(&in->now->chain);
    in->now->has_chain = in->now->has_head = false;
    in->behind = 0;
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

/* A file for a record of `bytes`: the open one, or where that is full a new one, and its
 * mapping. */
static fm_status need_file(fm_intake *in, uint64_t bytes)
{
    const fms_incoming *f = &in->file;
    if (fms_incoming_is_open(f) && (end_of_file(in) >= in->roll_bytes ||
                                    f->packer.records + in->waiting >= FMS_INCOMING_RECORDS_MAX))
        FM_TRY(fm_intake_publish(in, NULL));
    if (!fms_incoming_is_open(f))
        FM_TRY(fms_incoming_make(&in->file, in->store, in->dir));
    if (!fms_incoming_is_mapped(f, end_of_file(in) + bytes))
        FM_TRY(settle_and_halt(in));
    return fms_incoming_map(&in->file, end_of_file(in) + bytes);
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

void fms_intake_arrive(fm_intake *in, const fm_record_info *info, uint64_t came)
{
    (void)pthread_mutex_lock(&in->lock);
    fms_arrival *a = in->now = fms_intake_nth(in, in->waiting);
    memset(a, 0, sizeof *a);
    a->info = *info;
    a->at = end_of_file(in);
    a->came = came;
    in->halted = false;
    (void)pthread_mutex_unlock(&in->lock);
    in->state = FMS_INTAKE_FILLING;
}

fm_status fm_intake_begin(fm_intake *in, const fm_record_info *info, uint64_t offset)
{
    if (in->state != FMS_INTAKE_IDLE)
        return fm_fail(FM_EINVAL, "a record begins before the one before it has ended");
    FM_TRY(check_claims(info));
    FM_TRY(count_done(in));
    if (offset > 0)
        FM_TRY(go_on_with_cut(in, info, offset));
    else
        FM_TRY(drop_cut(in));
    if (offset == 0 && fm_intake_has(in, &info->id)) {
        in->now->info = *info;
        in->now->came = 0;
        in->state = FMS_INTAKE_PASSING;
        return FM_OK;
    }
    FM_TRY(need_file(in, info->stored_bytes));
    fms_intake_arrive(in, info, offset);
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

/* What it is coded against may be among those that wait, which then count first. */
static fm_status settle_parents(fm_intake *in)
{
    const fms_record *r = &in->now->r;
    for (uint32_t k = 0; k < r->parent_count; k++)
        if (is_waiting(in, &r->parent[k]))
            return fm_intake_settle(in);
    return FM_OK;
}

static fm_status parse_head(fm_intake *in, const char *what)
{
    fms_arrival *a = in->now;
    const uint64_t stored = a->info.stored_bytes;
    const fm_span here = fm_span_of(in->file.map.data + a->at, (size_t)FM_MIN(a->came, stored));
    fm_record_info found;
    uint64_t head_bytes;
    FM_TRY(fm_writer_flush(in->file.packer.writer));
    FM_TRY(fms_record_head_length(&head_bytes, here, what));
    if (head_bytes > stored)
        return fm_fail(FM_ECORRUPT, "%s: its head of %llu bytes is longer than the record", what,
                       (unsigned long long)head_bytes);
    if (a->came < head_bytes)
        return FM_OK;
    FM_TRY(fms_record_parse_head(&a->r, here, what));
    FM_TRY(fms_info_of(&found, &a->r));
    if (!same_info(&found, &a->info))
        return fm_fail(FM_ECORRUPT, "%s: its head is another's", what);
    a->has_head = true;
    FM_TRY(settle_parents(in));
    return fms_check_open(in);
}

fm_status fms_intake_head(fm_intake *in)
{
    char hex[FM_HEX_CHARS + 1], what[FM_HEX_CHARS + 48];
    if (in->now->has_head || in->now->came < FMS_RECORD_FIXED_BYTES)
        return FM_OK;
    fm_digest_hex(&in->now->info.id, hex);
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
    fms_arrival *a = in->now;
    if (in->state == FMS_INTAKE_IDLE)
        return no_record();
    if (len > a->info.stored_bytes - a->came) {
        fm_digest_hex(&a->info.id, hex);
        return drop_record(in, fm_fail(FM_ECORRUPT,
                                       "record received for object %s: more than its %llu bytes",
                                       hex, (unsigned long long)a->info.stored_bytes));
    }
    if (in->state == FMS_INTAKE_FILLING)
        FM_TRY(fm_writer_write(in->file.packer.writer, data, len));
    a->came += len;
    if (in->state != FMS_INTAKE_FILLING)
        return FM_OK;
    fm_status rc = fms_intake_head(in);
    if (of_the_record(rc))
        return drop_record(in, rc);
    FM_THEN(rc, fms_compare(in));
    FM_THEN(rc, count_done(in));
    return rc == FM_OK && late_fault(in, a) != FM_OK ? doom(in) : rc;
}

static fm_status cut_short(const fms_arrival *a)
{
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(&a->info.id, hex);
    return fm_fail(FM_ECORRUPT, "record received for object %s: %llu of %llu bytes came", hex,
                   (unsigned long long)a->came, (unsigned long long)a->info.stored_bytes);
}

/* Here the parents are deeper than where the record comes from: only its depth is another. */
static fm_status set_depth(fm_intake *in)
{
    fms_arrival *a = in->now;
    const size_t bytes = (size_t)a->r.head_bytes;
    uint8_t *head = fm_malloc(bytes);
    if (!head)
        return FM_ENOMEM;
    memcpy(head, in->file.map.data + a->at, bytes);
    fm_status rc = fms_record_set_depth(head, bytes, a->depth);
    FM_THEN(rc, fm_writer_pwrite(in->file.packer.writer, a->at, head, bytes));
    fm_free(head);
    (void)pthread_mutex_lock(&in->lock);
    a->r.depth = a->depth;
    (void)pthread_mutex_unlock(&in->lock);
    return rc;
}

fm_status fms_intake_whole(fm_intake *in)
{
    fms_arrival *a = in->now;
    FM_TRY(fms_compare(in));
    FM_TRY(fm_writer_flush(in->file.packer.writer));
    fms_check_rest(in);
    FM_TRY(late_fault(in, a));
    if (a->depth > a->r.depth)
        FM_TRY(set_depth(in));
    while (in->waiting + 2 >= FMS_INTAKE_RECORDS && !is_done(in))
        FM_TRY(fms_compare_some(in));
    (void)pthread_mutex_lock(&in->lock);
    in->now = fms_intake_nth(in, ++in->waiting);
    in->now->has_chain = in->now->has_head = false;
    (void)pthread_mutex_unlock(&in->lock);
    in->state = FMS_INTAKE_IDLE;
    return count_done(in);
}

fm_status fm_intake_end(fm_intake *in)
{
    if (in->state == FMS_INTAKE_IDLE)
        return no_record();
    if (in->state == FMS_INTAKE_DOOMED)
        return drop_record(in, late_fault(in, in->now));
    if (in->now->came < in->now->info.stored_bytes)
        return drop_record(in, cut_short(in->now));
    if (in->state == FMS_INTAKE_PASSING) {
        in->state = FMS_INTAKE_IDLE;
        return FM_OK;
    }
    fm_status rc = fms_intake_whole(in);
    if (rc == FM_OK || in->state == FMS_INTAKE_IDLE || rc == FM_ECANCELLED)
        return rc; /* cancelled: all of it is here, and stays for the next intake */
    return drop_record(in, rc);
}

fm_status fm_intake_publish(fm_intake *in, fm_intake_stats *stats)
{
    fm_status rc = FM_OK;
    if (stats)
        *stats = in->stats;
    if (in->state != FMS_INTAKE_IDLE)
        return fm_fail(FM_EINVAL, "a record has not ended");
    FM_TRY(settle_and_halt(in));
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
