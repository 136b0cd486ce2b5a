/* staging.c - folders in REPO/tmp beside their locks: a process that is killed gives up its lock,
 * and the next that makes a folder, or gc, removes both. */
#include "lineage/internal.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "git-"
#define LOCK ".lock"
#define MAX_TRIES 1000u

struct fm_staging {
    char *dir, *lock_path;
    fm_lock *lock; /* others see by it that this process lives */
};

static bool is_lock(const char *name)
{
    const size_t n = strlen(name);

    return n > sizeof LOCK - 1 && strcmp(name + n - (sizeof LOCK - 1), LOCK) == 0;
}

/* What it cannot remove does no harm. A folder is made after its lock and goes before it: one
 * without a lock is what a program made anew that outlived its fmstore. */
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

void fml_staging_sweep(const fm_repo *r)
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

static fm_status make_folder(fm_staging *s, const fm_repo *r)
{
    fm_status rc = FM_EEXISTS;

    for (unsigned n = 0; rc == FM_EEXISTS && n < MAX_TRIES; n++) {
        fm_free(s->dir);
        fm_free(s->lock_path);
        s->dir = fm_asprintf("%s/tmp/" PREFIX "%ld-%u", r->path, (long)getpid(), n);
        s->lock_path = s->dir ? fm_asprintf("%s" LOCK, s->dir) : NULL;
        rc = s->lock_path ? fm_lock_make(&s->lock, s->lock_path) : FM_ENOMEM;
    }
    return rc == FM_OK ? fm_make_dirs(s->dir) : rc;
}

fm_status fm_staging_make(fm_staging **out, const fm_repo *r)
{
    fm_staging *s = fm_calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return FM_ENOMEM;
    fml_staging_sweep(r);
    fm_status rc = make_folder(s, r);
    if (rc < 0)
        fm_staging_end(s);
    else
        *out = s;
    return rc;
}

const char *fm_staging_dir(const fm_staging *s)
{
    return s->dir;
}

void fm_staging_end(fm_staging *s)
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
