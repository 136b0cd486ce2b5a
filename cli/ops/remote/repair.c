/* repair.c - fsck --repair from a remote: git's objects through a clone of its lineage in
 * REPO/tmp, the store's by their ids. */
#include "cli/ops/base/remotes.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"

typedef struct damage {
    fm_digest *id;
    size_t count, cap;
} damage;

static fm_status note(void *ctx, const char *rev, const char *path, const fm_entry *e)
{
    damage *d = ctx;
    (void)rev;
    (void)path;
    FM_TRY(fm_grow(&d->id, &d->cap, d->count + 1, sizeof *d->id));
    d->id[d->count++] = e->id;
    return FM_OK;
}

static fm_status repair_git(fm_ops *c, const fmo_remote *m, fm_repair_report *out)
{
    fm_ops other = {.ui = c->ui};
    fm_travel t;
    fm_staging *folder;
    FM_TRY(fm_staging_make(&folder, c->repo));
    const fm_clone_opts o = {.url = m->url,
                             .packs = m->packs,
                             .dir = fm_staging_dir(folder),
                             .bare = true,
                             .lineage_only = true};
    fm_status rc = fm_ops_clone(&other, &o, &t);
    fm_ops_close(&other);
    FM_THEN(rc, fm_repo_repair(c->repo, fm_staging_dir(folder), out));
    fm_staging_end(folder);
    return rc;
}

static fm_status repair_store(fm_ops *c, fmo_remote *m, fm_repair_report *out)
{
    damage d = {0};
    size_t absent;
    fm_travel t;
    fm_status rc = fm_repo_damage(c->repo, note, &d);
    if (rc == FM_OK && d.count) {
        rc = fm_remote_bring(m->at, c->repo, d.id, d.count, fmo_remote_progress, c, &absent, &t);
        fmo_ui_progress_end(c);
        out->objects += rc == FM_OK ? t.objects : 0;
    }
    fm_free(d.id);
    return rc;
}

fm_status fm_ops_repair(fm_ops *c, const char *from, fm_repair_report *out)
{
    fmo_remote m;
    bool remote;
    FM_TRY(fm_ops_remote_is(c, from, &remote));
    if (!remote && fm_path_exists(from))
        return fm_repo_repair(c->repo, from, out);
    FM_TRY(fmo_remote_open(c, &m, from, false));
    fm_status rc = repair_git(c, &m, out);
    FM_THEN(rc, repair_store(c, &m, out));
    fmo_remote_close(&m);
    return rc;
}
