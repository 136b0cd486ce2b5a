/* exchange_take.c - the receiver of a git pack.
 *
 * Bytes are looked at (pack_scan.h) before libgit2 indexes them in a folder of their own below
 * REPO/tmp. The pack moves into lineage.git once the lease names all its objects; a kill before
 * leaves the folder, which the next intake or gc removes, as no process holds its lock any more. */
#include "lineage/exchange.h"
#include "lineage/internal.h"
#include "lineage/pack_scan.h"
#include "store/base/cancel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <git2/indexer.h>
#include <git2/odb_backend.h>

#define PREFIX "git-"
#define LOCK ".lock"
#define DEFAULT_BYTES ((uint64_t)4 << 30)
#define PIECE_BYTES ((size_t)1 << 20) /* between two looks at a request to stop */
#define MAX_TRIES 1000u

struct fm_staging {
    char *dir, *lock_path;
    fm_lock *lock; /* others see by it that this process lives */
};

struct fm_git_intake {
    fm_repo *r;
    fml_pack_scan *scan;
    git_indexer *indexer;
    git_indexer_progress progress; /* libgit2 goes on by it */
    fm_staging *staging;
    const char *dir; /* of staging */
    bool failed, ended;
    git_oid *id;
    size_t count, cap;
    fm_status rc; /* of the callbacks */
};

/* ---- the folder ---- */

static bool is_lock(const char *name)
{
    const size_t n = strlen(name);

    return n > sizeof LOCK - 1 && strcmp(name + n - (sizeof LOCK - 1), LOCK) == 0;
}

/* What it cannot remove does no harm. A folder is made after its lock and goes before it: one without
 * a lock is what a program made anew that outlived its fmstore. */
static void sweep_one(const char *tmp, const char *name)
{
    const bool by_lock = is_lock(name);
    char *path = fm_path_join(tmp, name);
    char *dir = path && by_lock ? fm_strndup(path, strlen(path) - (sizeof LOCK - 1)) : NULL;
    char *lock = path && !by_lock ? fm_asprintf("%s" LOCK, path) : NULL;

    if (dir && fm_lock_is_free(path) && fm_remove_tree(dir) == FM_OK)
        fm_ignore(fm_remove_file(path), "the next sweep removes it");
    if (lock && !fm_path_exists(lock))
        fm_ignore(fm_remove_tree(path), "the next sweep removes it");
    fm_free(dir);
    fm_free(lock);
    fm_free(path);
}

void fml_intake_sweep(const fm_repo *r)
{
    char *tmp = fm_path_join(r->path, "tmp");
    fm_names names = {NULL, 0};
    fm_error_state kept;

    fm_error_save(&kept);
    if (tmp && fm_list_dir(&names, tmp) == FM_OK)
        for (size_t i = 0; i < names.count; i++)
            if (strncmp(names.name[i], PREFIX, sizeof PREFIX - 1) == 0)
                sweep_one(tmp, names.name[i]);
    fm_names_release(&names);
    fm_free(tmp);
    fm_error_restore(&kept);
}

static fm_status make_folder(fm_staging *s, const char *root)
{
    fm_status rc = FM_EEXISTS;

    for (unsigned n = 0; rc == FM_EEXISTS && n < MAX_TRIES; n++) {
        fm_free(s->dir);
        fm_free(s->lock_path);
        s->dir = fm_asprintf("%s/tmp/" PREFIX "%ld-%u", root, (long)getpid(), n);
        s->lock_path = s->dir ? fm_asprintf("%s" LOCK, s->dir) : NULL;
        rc = s->lock_path ? fm_lock_make(&s->lock, s->lock_path) : FM_ENOMEM;
    }
    return rc == FM_OK ? fm_make_dirs(s->dir) : rc;
}

fm_status fm_staging_open(fm_staging **out, fm_repo *r)
{
    fm_staging *s;

    *out = NULL;
    fml_intake_sweep(r);
    s = fm_calloc(1, sizeof *s);
    if (!s)
        return FM_ENOMEM;
    fm_status rc = make_folder(s, r->path);
    if (rc < 0)
        fm_staging_close(s);
    else
        *out = s;
    return rc;
}

const char *fm_staging_path(const fm_staging *s)
{
    return s->dir;
}

void fm_staging_close(fm_staging *s)
{
    fm_error_state kept;

    if (!s)
        return;
    fm_error_save(&kept);
    /* A program that was given the folder may still write there; then the next sweep removes it. */
    if (s->lock && fm_remove_tree(s->dir) == FM_OK)
        fm_lock_end(s->lock, s->lock_path);
    else
        fm_lock_drop(s->lock);
    fm_error_restore(&kept);
    fm_free(s->dir);
    fm_free(s->lock_path);
    fm_free(s);
}

/* ---- bytes ---- */

static int look_up(const git_indexer_progress *stats, void *ctx)
{
    fm_git_intake *in = ctx;

    (void)stats;
    in->rc = fm_go_on();
    return in->rc == FM_OK ? 0 : -1;
}

fm_status fm_git_intake_open(fm_git_intake **out, fm_repo *r, uint64_t max_bytes)
{
    git_indexer_options opts;
    fm_git_intake *in;

    *out = NULL;
    if (!r)
        return fm_fail(FM_EINVAL, "intake: no repository");
    FM_TRY(fm_store_lease(r->store, true, "an intake of versions"));
    in = fm_calloc(1, sizeof *in);
    if (!in)
        return FM_ENOMEM;
    in->r = r;
    fm_status rc = fm_staging_open(&in->staging, r);
    in->dir = rc == FM_OK ? fm_staging_path(in->staging) : NULL;
    FM_THEN(rc, fml_pack_scan_new(&in->scan, max_bytes ? max_bytes : DEFAULT_BYTES));
    int code = git_indexer_options_init(&opts, GIT_INDEXER_OPTIONS_VERSION);
    opts.progress_cb = look_up;
    opts.progress_cb_payload = in;
    if (rc == FM_OK && code == 0)
        code = git_indexer_new(&in->indexer, in->dir, 0, NULL, &opts);
    if (rc == FM_OK && code < 0)
        rc = fml_git_fail(code, "cannot begin a git pack in '%s'", in->dir);
    if (rc < 0)
        fm_git_intake_close(in);
    else
        *out = in;
    return rc;
}

static fm_status index_failed(const fm_git_intake *in, int code)
{
    return in->rc < 0 ? in->rc : fml_damage(code, "the git pack of the other side cannot be taken");
}

static fm_status append(fm_git_intake *in, fm_span bytes)
{
    FM_TRY(fml_pack_scan_bytes(in->scan, bytes));
    while (bytes.len > 0) {
        const size_t n = FM_MIN(bytes.len, PIECE_BYTES);
        FM_TRY(fm_go_on());
        int code = git_indexer_append(in->indexer, bytes.data, n, &in->progress);
        if (code < 0)
            return index_failed(in, code);
        bytes = fm_span_of(bytes.data + n, bytes.len - n);
    }
    return FM_OK;
}

fm_status fm_git_intake_bytes(fm_git_intake *in, const void *data, size_t len)
{
    if (in->failed || in->ended)
        return fm_fail(FM_EINVAL, "this intake has %s", in->failed ? "failed before" : "ended");
    fm_status rc = append(in, fm_span_of(data, len));
    in->failed = rc < 0;
    return rc;
}

/* ---- into place ---- */

static int gather_id(const git_oid *id, void *ctx)
{
    fm_git_intake *in = ctx;

    in->rc = fm_grow(&in->id, &in->cap, in->count + 1, sizeof *in->id);
    if (in->rc < 0)
        return -1;
    in->id[in->count++] = *id;
    return 0;
}

static fm_status check_chains(const fm_git_intake *in, const char *idx)
{
    fm_file_map map;
    FM_TRY(fm_map_file(&map, idx));
    fm_status rc = fml_pack_scan_chains(in->scan, fm_span_of(map.data, map.len));
    fm_unmap_file(&map);
    return rc;
}

static fm_status hold_ids(fm_git_intake *in, const char *idx)
{
    int code = fml_pack_each(idx, gather_id, in);

    if (code < 0)
        return index_failed(in, code);
    return fms_store_hold(in->r->store, FMS_HOLD_GIT, in->id[0].id, in->count);
}

/* The index first: every reader ignores one without its pack. */
static fm_status place(const fm_git_intake *in, const char *name)
{
    static const char *const ext[] = {".idx", ".pack"};
    char *from[2] = {NULL, NULL}, *to[2] = {NULL, NULL};
    fm_status rc = FM_OK;

    for (size_t i = 0; rc == FM_OK && i < 2; i++) {
        from[i] = fm_asprintf("%s/%s%s", in->dir, name, ext[i]);
        to[i] = fm_asprintf("%s/objects/pack/%s%s", in->r->git_path, name, ext[i]);
        rc = from[i] && to[i] ? FM_OK : FM_ENOMEM;
    }
    if (rc == FM_OK && !(fm_path_exists(to[0]) && fm_path_exists(to[1])))
        for (size_t i = 0; rc == FM_OK && i < 2; i++)
            rc = fm_move_file(from[i], to[i]);
    for (size_t i = 0; i < 2; i++) {
        fm_free(from[i]);
        fm_free(to[i]);
    }
    return rc;
}

static fm_status take_pack(fm_git_intake *in)
{
    int code = git_indexer_commit(in->indexer, &in->progress);

    if (code < 0)
        return index_failed(in, code);
    char *name = fm_asprintf("pack-%s", git_indexer_name(in->indexer));
    char *idx = name ? fm_asprintf("%s/%s.idx", in->dir, name) : NULL;
    fm_status rc = idx ? check_chains(in, idx) : FM_ENOMEM;
    FM_THEN(rc, hold_ids(in, idx));
    FM_THEN(rc, place(in, name));
    fm_free(idx);
    fm_free(name);
    if (rc == FM_OK && git_odb_refresh(in->r->odb) < 0)
        rc = fml_git_fail(-1, "cannot reload '%s'", in->r->git_path);
    return rc;
}

fm_status fm_git_intake_end(fm_git_intake *in, uint64_t *objects)
{
    uint32_t count = 0;

    if (in->failed || in->ended)
        return fm_fail(FM_EINVAL, "this intake has %s", in->failed ? "failed before" : "ended");
    fm_status rc = fml_pack_scan_end(in->scan, &count);
    if (rc == FM_OK && count > 0)
        rc = take_pack(in);
    in->failed = rc < 0;
    in->ended = rc == FM_OK;
    if (rc == FM_OK && objects)
        *objects = count;
    return rc;
}

void fm_git_intake_close(fm_git_intake *in)
{
    if (!in)
        return;
    git_indexer_free(in->indexer);
    fml_pack_scan_free(in->scan);
    fm_staging_close(in->staging);
    fm_free(in->id);
    fm_free(in);
}
