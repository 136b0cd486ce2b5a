/* fsck.c - looking at everything: each pack's frame, each record's head, that parents exist, that
 * the index agrees; in full also each file's name against its bytes and each leaf of each object.
 * What it can mend it mends in the index alone: packs are never touched. An object that does not
 * decode is marked, so that storing the same object again writes it again. */
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "store/store_priv.h"

typedef struct fsck_state {
    fm_store *s;
    bool full;
    fm_fsck_report *report;
    fm_fault_fn fault;
    void *ctx;
    fmi_coder *coder;
    const char *name; /* the pack at hand */
    uint8_t *leaf;    /* FM_LEAF_BYTES */
} fsck_state;

static void tell(fsck_state *f, const char *text)
{
    f->report->faults++;
    if (f->fault)
        f->fault(f->ctx, text);
}

static fm_status on_fault(void *ctx, const char *text)
{
    fsck_state *f = ctx;
    char line[1280];
    snprintf(line, sizeof line, "pack %s", text);
    tell(f, line);
    return FM_OK;
}

/* A fault of the world is told; trouble of our own (memory, I/O) ends the walk. */
static bool is_fault(fm_status rc)
{
    return rc == FM_ECORRUPT || rc == FM_EBASE || rc == FM_EVERSION || rc == FM_ENOTFOUND;
}

static fm_status pack_row(fsck_state *f, int64_t *row)
{
    bool known;
    uint64_t bytes = 0;
    char *path = fmi_store_pack_path(f->s, f->name);
    fm_status rc = path ? fm_file_bytes(&bytes, path) : FM_ENOMEM;
    fm_free(path);
    return rc == FM_OK ? fmi_index_put_pack(f->s->index, f->name, bytes, true, row, &known) : rc;
}

/* The index has this record at this place, or gets it. `bad` is what decoding it said. */
static fm_status agree(fsck_state *f, uint64_t offset, const fmi_record *r, bool bad)
{
    fm_store *s = f->s;
    int64_t row = 0;
    pthread_mutex_lock(&s->mutex);
    fm_status rc = fmi_index_begin(s->index);
    if (rc == FM_OK) {
        rc = pack_row(f, &row);
        bool found = false, was_bad = false;
        fmi_place place;
        for (uint32_t n = 0; rc == FM_OK && !found; n++) {
            fm_status got = fmi_index_find(s->index, &r->id, n, &place);
            if (got == FM_ENOTFOUND)
                break;
            rc = got;
            found = place.pack == row && place.offset == offset;
            was_bad = place.bad;
        }
        if (rc == FM_OK && !found) {
            rc = fmi_index_put_object(s->index, row, offset, r);
            f->report->repaired++;
        }
        if (rc == FM_OK && f->full && (bad || was_bad))
            rc = fmi_index_mark_bad(s->index, &r->id, row, offset, bad);
        fm_status ended = fmi_index_end(s->index, rc == FM_OK);
        rc = rc == FM_OK ? ended : rc;
    }
    pthread_mutex_unlock(&s->mutex);
    return rc;
}

static fm_status verify_object(fsck_state *f, const fmi_record *r)
{
    fmi_chain ch;
    fm_status rc = fmi_chain_from(&ch, f->s, r, NULL);
    if (rc != FM_OK)
        return rc;
    for (uint32_t i = 0; rc == FM_OK && f->full && i < r->leaf_count; i++) {
        rc = fmi_chain_leaf(&ch, f->coder, i, f->leaf);
        if (rc == FM_OK)
            f->report->bytes_verified += fmi_leaf_bytes(r->bytes, i);
    }
    fmi_chain_release(&ch);
    return rc;
}

static fm_status on_record(void *ctx, uint64_t offset, const fmi_record *r)
{
    fsck_state *f = ctx;
    f->report->objects++;
    fm_status rc = verify_object(f, r);
    bool bad = is_fault(rc);
    if (bad) {
        char line[1280];
        snprintf(line, sizeof line, "pack %s: at byte %llu: %s", f->name,
                 (unsigned long long)offset, fm_error_text());
        tell(f, line);
        rc = FM_OK;
    }
    return rc == FM_OK ? agree(f, offset, r, bad) : rc;
}

static fm_status check_name(fsck_state *f, fm_span pack)
{
    fm_digest d;
    fm_status rc = fm_sha256(&d, pack.data, pack.len);
    if (rc != FM_OK)
        return rc;
    char hex[FM_HEX_CHARS + 1], line[256];
    fm_digest_hex(&d, hex);
    if (strcmp(hex, f->name) == 0)
        return FM_OK;
    snprintf(line, sizeof line, "pack %s: its bytes have the SHA-256 %s", f->name, hex);
    tell(f, line);
    return FM_OK;
}

static fm_status judge_unsound(fsck_state *f)
{
    int64_t row = 0;
    bool known = false;
    pthread_mutex_lock(&f->s->mutex);
    fm_status rc = fmi_index_begin(f->s->index);
    if (rc == FM_OK) {
        rc = pack_row(f, &row);
        if (rc == FM_OK)
            rc = fmi_index_put_pack(f->s->index, f->name, 0, false, &row, &known);
        fm_status ended = fmi_index_end(f->s->index, rc == FM_OK);
        rc = rc == FM_OK ? ended : rc;
    }
    pthread_mutex_unlock(&f->s->mutex);
    return rc;
}

static fm_status check_pack(fsck_state *f, const char *path)
{
    fm_file_map map = {NULL, 0};
    fm_status rc = fm_map_file(&map, path);
    if (rc == FM_ENOTFOUND)
        return FM_OK;
    if (rc != FM_OK)
        return rc;
    f->report->packs++;
    fm_span bytes = fm_span_of(map.data, map.len);
    fmi_pack_visitor v = {f, on_record, on_fault};
    rc = fmi_pack_walk(bytes, f->name, &v);
    if (rc == FM_ECORRUPT || rc == FM_EVERSION) {
        char line[1280];
        snprintf(line, sizeof line, "pack %s", fm_error_text());
        tell(f, line);
        rc = judge_unsound(f);
    }
    if (rc == FM_OK && f->full)
        rc = check_name(f, bytes);
    fm_unmap_file(&map);
    return rc;
}

static fm_status check_packs(fsck_state *f)
{
    fm_names files = {NULL, 0};
    fm_status rc = fm_list_dir(&files, f->s->packs_dir);
    for (size_t i = 0; rc == FM_OK && i < files.count; i++) {
        char name[FM_HEX_CHARS + 1];
        if (!fmi_is_pack_name(files.name[i], name)) {
            char line[512];
            snprintf(line, sizeof line, "packs/%.256s: no pack has such a name", files.name[i]);
            tell(f, line);
            continue;
        }
        f->name = name;
        char *path = fmi_store_pack_path(f->s, name);
        rc = path ? check_pack(f, path) : FM_ENOMEM;
        fm_free(path);
    }
    fm_names_release(&files);
    return rc;
}

fm_status fm_store_fsck(fm_store *s, bool full, fm_fsck_report *out, fm_fault_fn fault, void *ctx)
{
    memset(out, 0, sizeof *out);
    fsck_state f = {s, full, out, fault, ctx, NULL, NULL, NULL};
    pthread_mutex_lock(&s->mutex);
    fm_status rc = fmi_store_refresh(s);
    pthread_mutex_unlock(&s->mutex);
    if (rc != FM_OK)
        return rc;
    rc = fmi_store_coder(s, &f.coder);
    if (rc == FM_OK) {
        f.leaf = fm_malloc(FM_LEAF_BYTES);
        rc = f.leaf ? check_packs(&f) : FM_ENOMEM;
    }
    fm_free(f.leaf);
    fmi_store_coder_return(s, f.coder);
    return rc;
}

fm_status fm_store_rebuild_index(fm_store *s)
{
    fm_names files = {NULL, 0};
    size_t unsound = 0;
    pthread_mutex_lock(&s->mutex);
    fm_status rc = fmi_index_begin(s->index);
    if (rc == FM_OK) {
        rc = fmi_index_drop_all(s->index);
        if (rc == FM_OK)
            rc = fm_list_dir(&files, s->packs_dir);
        for (size_t i = 0; rc == FM_OK && i < files.count; i++) {
            char name[FM_HEX_CHARS + 1];
            bool sound = true;
            if (fmi_is_pack_name(files.name[i], name))
                rc = fmi_store_scan_pack(s, name, &sound);
            unsound += !sound;
        }
        fm_error_state saved;
        fm_error_save(&saved);
        fm_status ended = fmi_index_end(s->index, rc == FM_OK);
        if (rc == FM_OK)
            rc = ended;
        else
            fm_error_restore(&saved);
    }
    if (rc == FM_OK)
        s->unsound_packs = unsound;
    pthread_mutex_unlock(&s->mutex);
    fm_names_release(&files);
    return rc;
}
