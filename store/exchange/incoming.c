/* incoming.c - a file of incoming/: header, records, and when it is published a footer.
 *
 * The order of publishing is that of every pack: bytes, fsync, the name in the lease, rename, fsync
 * of the folder, index. Its header always announces recipes, since it is written first. */
#include "store/exchange/intake.h"

#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"

bool fms_incoming_is_open(const fms_incoming *f)
{
    return f->packer.writer != NULL;
}

/* Everything but the writer. */
static fm_status prepare(fms_incoming *f, fm_store *s)
{
    memset(f, 0, sizeof *f);
    f->packer.store = s;
    f->packer.features = FMS_PACK_RECIPES;
    fm_buf_init(&f->packer.head, 0);
    FM_TRY(fm_hasher_new(&f->packer.whole));
    FM_TRY(fm_hasher_new(&f->packer.heads));
    FM_TRY(fm_hasher_new(&f->counted));
    return fm_map_new(&f->record);
}

/* Hashes the header, after which the first record begins. */
static fm_status begin_records(fms_incoming *f, const uint8_t *header)
{
    FM_TRY(fm_hasher_update(f->packer.whole, header, FMS_PACK_HEADER_BYTES));
    f->hashed = f->packer.offset = FMS_PACK_HEADER_BYTES;
    return FM_OK;
}

fm_status fms_incoming_make(fms_incoming *f, fm_store *s, const char *dir)
{
    uint8_t header[FMS_PACK_HEADER_BYTES];
    fms_pack_header(header, FMS_PACK_RECIPES);
    fm_status rc = prepare(f, s);
    FM_THEN(rc, fm_make_dirs(dir));
    FM_THEN(rc, fm_writer_open(&f->packer.writer, NULL, dir));
    FM_THEN(rc, fm_writer_write(f->packer.writer, header, sizeof header));
    FM_THEN(rc, begin_records(f, header));
    if (rc != FM_OK)
        fms_incoming_close(f, false);
    else
        fm_writer_keep(f->packer.writer, true);
    return rc;
}

fm_status fms_incoming_resume(fms_incoming *f, fm_store *s, const char *path, uint64_t *bytes)
{
    uint8_t header[FMS_PACK_HEADER_BYTES];
    fms_pack_header(header, FMS_PACK_RECIPES);
    *bytes = 0;
    fm_status rc = prepare(f, s);
    FM_THEN(rc, fm_writer_resume(&f->packer.writer, path));
    if (rc == FM_OK)
        *bytes = fm_writer_offset(f->packer.writer);
    if (rc == FM_OK && *bytes >= sizeof header) {
        rc = fms_incoming_map(f, *bytes);
        if (rc == FM_OK && memcmp(f->map.data, header, sizeof header) != 0)
            *bytes = 0;
    } else {
        *bytes = 0;
    }
    FM_THEN(rc, begin_records(f, header));
    if (rc != FM_OK)
        fms_incoming_close(f, true);
    return rc;
}

bool fms_incoming_is_mapped(const fms_incoming *f, uint64_t end)
{
    return end <= f->map.len && !fm_map_failed(f->map.data); /* else zeros stand in it */
}

fm_status fms_incoming_map(fms_incoming *f, uint64_t end)
{
    if (fms_incoming_is_mapped(f, end))
        return FM_OK;
    end = FM_MAX(end, FMS_INCOMING_ROLL_BYTES); /* room for the records that follow */
    fm_unmap_verified(&f->map);
    return fm_map_written(&f->map, f->packer.writer, (size_t)end);
}

fm_status fms_incoming_hash(fms_incoming *f, uint64_t end)
{
    FM_TRY(fm_hasher_update(f->packer.whole, f->map.data + f->hashed, (size_t)(end - f->hashed)));
    f->hashed = end;
    return FM_OK;
}

fm_status fms_incoming_count(fms_incoming *f, const fms_record *r, bool fresh)
{
    const uint64_t at = f->packer.offset;
    FM_TRY(fm_map_put(f->record, r->id.b, FM_DIGEST_BYTES, (void *)(uintptr_t)at, NULL));
    FM_TRY(fm_hasher_update(f->packer.heads, f->map.data + at + r->head_bytes - FM_DIGEST_BYTES,
                            FM_DIGEST_BYTES));
    f->packer.offset += r->stored_bytes;
    f->packer.records++;
    f->fresh += fresh;
    return FM_OK;
}

fm_status fms_incoming_drop_rest(fms_incoming *f)
{
    if (f->hashed > f->packer.offset) {
        FM_TRY(fm_hasher_copy(f->packer.whole, f->counted));
        f->hashed = f->packer.offset;
    }
    return fm_writer_cut(f->packer.writer, f->packer.offset);
}

/* Names the pack in the lease before it is in place, so that gc protects it. */
static fm_status hold(const fms_packer *p)
{
    fm_digest name;
    fm_assert(fm_digest_parse(&name, p->name, FM_HEX_CHARS));
    return fms_store_hold(p->store, FMS_HOLD_PACK, name.b, 1);
}

static fm_status place(fms_packer *p)
{
    fm_store *s = p->store;
    fm_lock *lock = NULL;
    FM_TRY(fm_lock_take(&lock, s->lock_path));
    pthread_mutex_lock(&s->mutex);
    const bool fresh = fms_store_is_fresh(s); /* and stays fresh after this pack */
    pthread_mutex_unlock(&s->mutex);
    fm_status rc = fms_packer_place(p);
    pthread_mutex_lock(&s->mutex);
    if (rc == FM_OK && fresh)
        fms_store_mark_fresh(s);
    pthread_mutex_unlock(&s->mutex);
    fm_lock_drop(lock);
    return rc;
}

fm_status fms_incoming_publish(fms_incoming *f)
{
    fm_status rc = fms_incoming_hash(f, f->packer.offset);
    FM_THEN(rc, fms_packer_seal(&f->packer));
    FM_THEN(rc, hold(&f->packer));
    FM_THEN(rc, place(&f->packer));
    fms_incoming_close(f,
                       rc != FM_OK); /* what could not be published, the next intake takes over */
    return rc;
}

void fms_incoming_close(fms_incoming *f, bool keep)
{
    fm_unmap_verified(&f->map);
    if (f->packer.writer)
        fm_writer_keep(f->packer.writer, keep);
    fms_packer_release(&f->packer);
    fm_hasher_free(f->counted);
    fm_map_free(f->record);
    memset(f, 0, sizeof *f);
}

/* ==== gc =================================================================================== */

static fm_status sweep_one(const char *path, int64_t until)
{
    int64_t changed;
    fm_writer *w;
    fm_status rc = fm_file_time(&changed, path);
    if (rc == FM_OK && changed / 1000000000 > until)
        return FM_OK;
    FM_THEN(rc, fm_writer_resume(&w, path));
    if (rc != FM_OK) /* its owner lives, or took it away; or it is no file of ours */
        return rc == FM_ENOMEM ? rc : FM_OK;
    fm_writer_keep(w, false);
    fm_writer_close(w);
    return FM_OK;
}

fm_status fms_incoming_sweep(const char *root, int64_t until)
{
    fm_names names = {NULL, 0};
    char *dir = fm_path_join(root, FMS_INCOMING_DIR);
    fm_status rc = dir ? fm_list_dir(&names, dir) : FM_ENOMEM;
    if (rc == FM_ENOTFOUND) /* nothing ever came */
        rc = FM_OK;
    for (size_t i = 0; rc == FM_OK && i < names.count; i++) {
        char *path = fm_path_join(dir, names.name[i]);
        rc = path ? sweep_one(path, until) : FM_ENOMEM;
        fm_free(path);
    }
    fm_names_release(&names);
    fm_free(dir);
    return rc;
}
