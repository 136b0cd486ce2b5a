/* door_folder.c - a bucket in a folder: each object is a file.
 *
 * The manifest changes under a lock, which is a file beside it; its tag is its digest. A pack is
 * written to a temporary in incoming/ and renamed, so a reader sees whole objects alone. */
#include <string.h>

#include "remote/bucket/door.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"

#define LOCK_NAME "fmstore-bucket.lock"
#define INCOMING "incoming"

typedef struct folder {
    fmr_door door;
    char *dir;
} folder;

static folder *of(fmr_door *d)
{
    return (folder *)d;
}

static fm_status path_of(fmr_door *d, const char *name, char **out)
{
    *out = fm_path_join(of(d)->dir, name);
    return *out ? FM_OK : FM_ENOMEM;
}

static fm_status read_part(const char *path, uint64_t from, uint64_t bytes, fm_buf *out)
{
    uint64_t have;
    FM_TRY(fm_file_bytes(&have, path));
    if (bytes > have || from > have - bytes)
        return fm_fail(FM_ECORRUPT, "%s: has %llu bytes; bytes up to %llu were looked for", path,
                       (unsigned long long)have, (unsigned long long)(from + bytes));
    uint8_t *to = fm_buf_extend(out, (size_t)bytes);
    return to ? fm_pread_file(path, from, to, (size_t)bytes) : fm_buf_ok(out);
}

static fm_status tag_of(fm_span bytes, char tag[FMR_TAG_MAX])
{
    fm_digest d;
    FM_TRY(fm_sha256(&d, bytes.data, bytes.len));
    fm_digest_hex(&d, tag);
    return FM_OK;
}

static fm_status get(fmr_door *d, const char *name, uint64_t from, uint64_t bytes, fm_buf *out,
                     char tag[FMR_TAG_MAX])
{
    char *path;
    const size_t before = out->len;
    FM_TRY(path_of(d, name, &path));
    fm_status rc = bytes ? read_part(path, from, bytes, out) : fm_read_file(out, path, out->max);
    if (rc == FM_OK && tag)
        rc = tag_of(fm_span_of(out->data + before, out->len - before), tag);
    d->in += out->len - before;
    fm_free(path);
    return rc;
}

static fm_status compare(fmr_door *d, const char *name, const char *old)
{
    char tag[FMR_TAG_MAX] = "";
    fm_buf now;
    fm_buf_init(&now, 0);
    fm_status rc = get(d, name, 0, 0, &now, tag);
    fm_buf_release(&now);
    if (rc == FM_ENOTFOUND) {
        fm_error_clear();
        rc = FM_OK;
    }
    if (rc == FM_OK && strcmp(tag, old) != 0)
        rc = fm_fail(FM_ECONFLICT, "%s: another push changed %s first", d->shown, name);
    return rc;
}

static fm_status put_locked(fmr_door *d, const char *name, fm_span body, const char *old)
{
    char *path, *lock_path = NULL;
    fm_lock *lock = NULL;
    FM_TRY(path_of(d, name, &path));
    fm_status rc = path_of(d, LOCK_NAME, &lock_path);
    FM_THEN(rc, fm_lock_take(&lock, lock_path));
    FM_THEN(rc, compare(d, name, old));
    FM_THEN(rc, fm_write_file(path, body.data, body.len));
    fm_lock_drop(lock);
    fm_free(lock_path);
    fm_free(path);
    return rc;
}

/* The folder "packs" of "packs/x". */
static fm_status make_folder_of(fmr_door *d, const char *name)
{
    const char *slash = strrchr(name, '/');
    char *part, *dir;
    if (!slash)
        return FM_OK;
    part = fm_strndup(name, (size_t)(slash - name));
    if (!part)
        return FM_ENOMEM;
    fm_status rc = path_of(d, part, &dir);
    if (rc == FM_OK) {
        rc = fm_make_dirs(dir);
        fm_free(dir);
    }
    fm_free(part);
    return rc;
}

static fm_status put(fmr_door *d, const char *name, fm_span body, const char *old)
{
    char *path;
    d->out += body.len;
    if (old)
        return put_locked(d, name, body, old);
    FM_TRY(make_folder_of(d, name));
    FM_TRY(path_of(d, name, &path));
    fm_status rc = fm_write_file(path, body.data, body.len);
    fm_free(path);
    return rc;
}

static fm_status list(fmr_door *d, const char *name, fmr_listed_fn fn, void *ctx)
{
    fm_names names = {0};
    char *dir;
    FM_TRY(path_of(d, name, &dir));
    fm_status rc = fm_list_dir(&names, dir);
    if (rc == FM_ENOTFOUND) {
        fm_error_clear();
        rc = FM_OK;
    }
    for (size_t i = 0; rc == FM_OK && i < names.count; i++) {
        uint64_t bytes;
        char *path = fm_path_join(dir, names.name[i]), *whole = fm_path_join(name, names.name[i]);
        rc = path && whole ? fm_file_bytes(&bytes, path) : FM_ENOMEM;
        if (rc == FM_ENOTFOUND) /* a temporary that another push has renamed */
            rc = FM_OK;
        else
            FM_THEN(rc, fn(ctx, whole, bytes));
        fm_free(whole);
        fm_free(path);
    }
    fm_names_release(&names);
    fm_free(dir);
    return rc;
}

static fm_status begin(fmr_door *d, fmr_upload *u)
{
    char *dir;
    fm_writer *w = NULL;
    FM_TRY(path_of(d, INCOMING, &dir));
    fm_status rc = fm_make_dirs(dir);
    if (rc == FM_OK)
        fm_remove_dead_temps(dir);
    FM_THEN(rc, fm_writer_open(&w, NULL, dir));
    FM_THEN(rc, fm_writer_reserve(w, u->bytes));
    u->state = w;
    fm_free(dir);
    return rc;
}

/* There is one worker, so parts come in their order. */
static fm_status part(fmr_door *d, fmr_upload *u, size_t i, fm_span bytes)
{
    fm_assert(fm_writer_offset(u->state) == i * u->part_bytes);
    FM_TRY(fm_writer_write(u->state, bytes.data, bytes.len));
    fm_writer_urge(u->state);
    d->out += bytes.len;
    u->part[i].there = true;
    return FM_OK;
}

static void drop(fmr_door *d, fmr_upload *u)
{
    (void)d;
    fm_writer_close(u->state);
    u->state = NULL;
}

static fm_status finish(fmr_door *d, fmr_upload *u)
{
    char *path;
    FM_TRY(make_folder_of(d, u->name));
    FM_TRY(path_of(d, u->name, &path));
    fm_status rc = fm_writer_commit(u->state, path);
    fm_free(path);
    drop(d, u);
    return rc;
}

static fm_status again(fmr_door *d, fmr_door **out)
{
    return fmr_door_folder(out, of(d)->dir);
}

static void close_folder(fmr_door *d)
{
    fm_free(d->shown);
    fm_free(of(d)->dir);
    fm_free(d);
}

static const fmr_door_ops folder_ops = {get,    put,  list,  begin,       part,
                                        finish, drop, again, close_folder};

fm_status fmr_door_folder(fmr_door **out, const char *dir)
{
    *out = NULL;
    folder *f = fm_calloc(1, sizeof *f);
    if (!f)
        return FM_ENOMEM;
    f->door.ops = &folder_ops;
    f->door.workers = 1;
    f->door.late_names = true;
    f->door.shown = fm_strdup(dir);
    f->dir = fm_strdup(dir);
    if (!f->dir || !f->door.shown) {
        close_folder(&f->door);
        return FM_ENOMEM;
    }
    *out = &f->door;
    return FM_OK;
}
