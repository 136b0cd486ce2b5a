/* fsck.c - checks each pack's frame, each record's head, that parents exist and that the index
 * agrees; a full check also each file's name against its bytes and each leaf of each object. It
 * mends only the index and never touches a pack. An object that does not decode is marked, so that
 * storing the same object again writes it again.
 *
 * gc and repack may run at the same time: a pack goes, and a parent may go before its child. So a
 * pack that seems faulty is checked again with gc.lock held, and what is still wrong is
 * reported. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "store/base/mem.h"
#include "store/pack/store_priv.h"

typedef struct fsck_state {
    fm_store *s;
    bool full;
    fm_fsck_report *report;
    fm_fault_fn fault;
    void *ctx;
    fms_coder *coder;
    const char *name;        /* name of the current pack */
    uint64_t bytes;          /* its size */
    int64_t row;             /* its row in the index */
    uint64_t agreed, differ; /* its records that the index has right, and has not */
    uint8_t *leaf;           /* FM_LEAF_BYTES */
    fm_map *chosen;          /* names of the packs to decode; NULL: `full` decides */
    bool sure;               /* gc.lock is held, so a fault is not due to gc */
    uint64_t suspected;      /* faults of the current pack while `sure` is false */
} fsck_state;

static void tell(fsck_state *f, const char *text)
{
    f->report->faults++;
    if (f->fault)
        f->fault(f->ctx, text);
}

static void suspect(fsck_state *f, const char *text)
{
    if (f->sure)
        tell(f, text);
    else
        f->suspected++;
}

static fm_status on_fault(void *ctx, const char *text)
{
    fsck_state *f = ctx;
    char line[1280];
    snprintf(line, sizeof line, "pack %s", text);
    suspect(f, line);
    return FM_OK;
}

static fm_status compare_row(void *ctx, uint64_t offset, const fms_record *r)
{
    fsck_state *f = ctx;
    for (uint32_t nth = 0;; nth++) {
        fms_place at;
        fm_status rc = fms_index_find(f->s->index, &r->id, nth, &at);
        if (rc == FM_ENOTFOUND) {
            f->differ++;
            return FM_OK;
        }
        if (rc != FM_OK)
            return rc;
        if (at.pack != f->row || at.offset != offset)
            continue;
        bool same = at.stored_bytes == r->stored_bytes && at.parent_count == r->parent_count &&
                    memcmp(at.parent, r->parent, sizeof at.parent) == 0;
        *(same ? &f->agreed : &f->differ) += 1;
        return FM_OK;
    }
}

static fm_status settle_locked(fsck_state *f, fm_span pack)
{
    fm_store *s = f->s;
    bool known, sound;
    uint64_t rows = 0;
    fms_pack_visitor v = {f, compare_row, NULL};
    f->agreed = f->differ = 0;
    fm_status rc = fms_index_put_pack(s->index, f->name, f->bytes, true, &f->row, &known);
    FM_THEN(rc, fms_pack_walk(pack, f->name, &v));
    FM_THEN(rc, fms_index_count(s->index, f->row, &rows));
    if (rc != FM_OK || (f->differ == 0 && rows == f->agreed))
        return rc;
    f->report->repaired += FM_MAX(f->differ, (uint64_t)1);
    rc = fms_index_drop_pack(s->index, f->row);
    FM_THEN(rc, fms_store_scan_pack(s, f->name, &sound));
    return rc == FM_OK ? fms_index_put_pack(s->index, f->name, f->bytes, true, &f->row, &known)
                       : rc;
}

/* Makes the index agree with the pack: a row for each record, and no other. FM_ECORRUPT or
 * FM_EVERSION: the frame is wrong, and the index records that. */
static fm_status settle(fsck_state *f, fm_span pack)
{
    fms_index *ix = f->s->index;
    bool known;
    pthread_mutex_lock(&f->s->mutex);
    fm_status judged = FM_OK, rc = fms_index_begin(ix);
    if (rc == FM_OK) {
        fm_error_state why;
        judged = rc = settle_locked(f, pack);
        fm_error_save(&why);
        if (rc == FM_ECORRUPT || rc == FM_EVERSION)
            rc = fms_index_put_pack(ix, f->name, f->bytes, false, &f->row, &known);
        rc = fms_index_end(ix, rc);
        if (rc == FM_OK && judged != FM_OK)
            fm_error_restore(&why);
    }
    pthread_mutex_unlock(&f->s->mutex);
    return rc == FM_OK ? judged : rc;
}

static fm_status mark(fsck_state *f, uint64_t offset, const fms_record *r, bool bad)
{
    pthread_mutex_lock(&f->s->mutex);
    fm_status rc = fms_index_mark_bad(f->s->index, &r->id, f->row, offset, bad);
    pthread_mutex_unlock(&f->s->mutex);
    return rc;
}

static fm_status verify_object(fsck_state *f, const fms_record *r)
{
    fms_chain ch;
    fm_status rc = fms_chain_from(&ch, f->s, r, NULL);
    if (rc != FM_OK)
        return rc;
    for (uint32_t i = 0; rc == FM_OK && f->full && i < r->leaf_count; i++) {
        rc = fms_chain_leaf(&ch, f->coder, i, f->leaf);
        if (rc == FM_OK)
            f->report->bytes_verified += fms_leaf_bytes(r->bytes, i);
    }
    fms_chain_release(&ch);
    return rc;
}

static fm_status on_record(void *ctx, uint64_t offset, const fms_record *r)
{
    fsck_state *f = ctx;
    f->report->objects++;
    fm_status rc = verify_object(f, r);
    bool bad = fms_is_damage(rc);
    if (bad) {
        char line[1280];
        snprintf(line, sizeof line, "pack %s: at byte %llu: %s", f->name,
                 (unsigned long long)offset, fm_error_text());
        suspect(f, line);
        rc = FM_OK;
    }
    bool settled = f->full && (f->sure || !bad);
    return rc == FM_OK && settled ? mark(f, offset, r, bad) : rc;
}

static fm_status check_name(fsck_state *f, fm_span pack)
{
    fm_digest d;
    FM_TRY(fm_sha256(&d, pack.data, pack.len));
    char hex[FM_HEX_CHARS + 1], line[256];
    fm_digest_hex(&d, hex);
    if (strcmp(hex, f->name) == 0)
        return FM_OK;
    snprintf(line, sizeof line, "pack %s: its bytes have the SHA-256 %s", f->name, hex);
    suspect(f, line);
    return FM_OK;
}

static fm_status note_verified(fsck_state *f)
{
    pthread_mutex_lock(&f->s->mutex);
    fm_status rc = fms_index_verified(f->s->index, f->name, (int64_t)time(NULL));
    pthread_mutex_unlock(&f->s->mutex);
    return rc == FM_EIO ? FM_OK : rc; /* a repository that cannot be written */
}

static fm_status check_pack(fsck_state *f, const char *path)
{
    fm_file_map map = {NULL, 0};
    fm_status rc = fm_map_verified(&map, path);
    if (rc == FM_ENOTFOUND)
        return FM_OK;
    if (rc != FM_OK)
        return rc;
    f->report->packs++;
    f->bytes = map.len;
    fm_span bytes = fm_span_of(map.data, map.len);
    fms_pack_visitor v = {f, on_record, on_fault};
    rc = settle(f, bytes);
    if (rc == FM_OK) {
        rc = fms_pack_walk(bytes, f->name, &v);
    } else if (rc == FM_ECORRUPT || rc == FM_EVERSION) {
        rc = on_fault(f, fm_error_text());
    }
    if (rc == FM_OK && f->full)
        rc = check_name(f, bytes);
    if (rc == FM_OK && f->full && (f->sure || f->suspected == 0))
        rc = note_verified(f);
    fm_unmap_verified(&map);
    return rc;
}

/* Takes gc.lock. Where nothing can be written, gc cannot run either, and there is no lock. */
static fm_status keep_gc_out(const fsck_state *f, fm_lock **lock)
{
    char *path = fm_path_join(f->s->root, "gc.lock");
    fm_status rc = path ? fm_lock_take(lock, path) : FM_ENOMEM;
    fm_free(path);
    if (rc != FM_EIO)
        return rc;
    fm_error_clear();
    return FM_OK;
}

static fm_status check_pack_surely(fsck_state *f, const char *path)
{
    const fm_fsck_report before = *f->report;
    fm_lock *lock = NULL;
    f->suspected = 0;
    fm_status rc = check_pack(f, path);
    if (rc != FM_OK || f->suspected == 0)
        return rc;
    const uint64_t repaired = f->report->repaired;
    *f->report = before;
    f->report->repaired = repaired;
    rc = keep_gc_out(f, &lock);
    f->sure = true;
    FM_THEN(rc, check_pack(f, path));
    f->sure = false;
    fm_lock_drop(lock);
    return rc;
}

/* The packs that a rolling check decodes: those verified longest ago, until `want` bytes. */
typedef struct oldest {
    fm_map *chosen;
    uint64_t bytes, want;
} oldest;

static fm_status add_size(void *ctx, int64_t row, const char *name, uint64_t bytes, bool sound)
{
    (void)row;
    (void)name;
    (void)sound;
    *(uint64_t *)ctx += bytes;
    return FM_OK;
}

static fm_status choose_pack(void *ctx, int64_t row, const char *name, uint64_t bytes, bool sound)
{
    oldest *o = ctx;
    (void)row;
    (void)sound;
    if (o->bytes >= o->want)
        return FM_OK;
    o->bytes += bytes;
    return fm_map_put(o->chosen, name, strlen(name), o, NULL);
}

static fm_status choose_oldest(fsck_state *f, unsigned percent)
{
    uint64_t all = 0;
    oldest o = {.chosen = NULL};
    fm_status rc = fm_map_new(&f->chosen);
    o.chosen = f->chosen;
    pthread_mutex_lock(&f->s->mutex);
    FM_THEN(rc, fms_index_packs(f->s->index, add_size, &all));
    o.want = all / 100 * percent + all % 100 * percent / 100;
    o.want = FM_MAX(o.want, (uint64_t)1);
    FM_THEN(rc, fms_index_oldest(f->s->index, choose_pack, &o));
    pthread_mutex_unlock(&f->s->mutex);
    return rc;
}

static fm_status check_packs(fsck_state *f)
{
    fm_names files = {NULL, 0};
    fm_status rc = fm_list_dir(&files, f->s->packs_dir);
    for (size_t i = 0; rc == FM_OK && i < files.count; i++) {
        char name[FM_HEX_CHARS + 1];
        if (!fms_is_pack_name(files.name[i], name)) {
            char line[512];
            snprintf(line, sizeof line, "packs/%.256s: no pack has such a name", files.name[i]);
            tell(f, line);
            continue;
        }
        f->name = name;
        if (f->chosen)
            f->full = fm_map_has(f->chosen, name, FM_HEX_CHARS);
        char *path = fms_store_pack_path(f->s, name);
        rc = path ? check_pack_surely(f, path) : FM_ENOMEM;
        fm_free(path);
    }
    fm_names_release(&files);
    return rc;
}

/* Checks SQLite's own structure, and the list of packs. */
static fm_status check_index(fsck_state *f)
{
    fm_store *s = f->s;
    pthread_mutex_lock(&s->mutex);
    fm_status rc = fms_index_check(s->index);
    if (rc == FM_ECORRUPT) {
        tell(f, fm_error_text());
        rc = fms_store_rescan(s, true);
        f->report->repaired += rc == FM_OK;
    } else if (rc == FM_OK) {
        rc = fms_store_refresh(s);
    }
    pthread_mutex_unlock(&s->mutex);
    return rc;
}

static fm_status fsck(fm_store *s, bool full, unsigned percent, fm_fsck_report *out,
                      fm_fault_fn fault, void *ctx)
{
    memset(out, 0, sizeof *out);
    fsck_state f = {.s = s, .full = full, .report = out, .fault = fault, .ctx = ctx};
    fm_status rc = check_index(&f);
    if (rc == FM_OK && percent)
        rc = choose_oldest(&f, percent);
    FM_THEN(rc, fms_store_coder(s, &f.coder));
    if (rc == FM_OK) {
        f.leaf = fm_malloc(FM_LEAF_BYTES);
        rc = f.leaf ? check_packs(&f) : FM_ENOMEM;
    }
    fm_free(f.leaf);
    fm_map_free(f.chosen);
    fms_store_coder_return(s, f.coder);
    return rc;
}

fm_status fm_store_fsck(fm_store *s, bool full, fm_fsck_report *out, fm_fault_fn fault, void *ctx)
{
    return fsck(s, full, 0, out, fault, ctx);
}

fm_status fm_store_fsck_oldest(fm_store *s, unsigned percent, fm_fsck_report *out,
                               fm_fault_fn fault, void *ctx)
{
    return fsck(s, false, FM_MAX(FM_MIN(percent, 100u), 1u), out, fault, ctx);
}

fm_status fm_store_rebuild_index(fm_store *s)
{
    pthread_mutex_lock(&s->mutex);
    fm_status rc = fms_store_rescan(s, false);
    FM_THEN(rc, fms_index_forget_missing(s->index));
    pthread_mutex_unlock(&s->mutex);
    return rc;
}

fm_status fm_store_forget_missing(fm_store *s)
{
    pthread_mutex_lock(&s->mutex);
    fm_status rc = fms_index_forget_missing(s->index);
    pthread_mutex_unlock(&s->mutex);
    return rc == FM_EIO ? FM_OK : rc; /* a repository that cannot be written */
}
