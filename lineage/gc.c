/* gc.c - deletes unreached objects: the part that knows git, and the order of a run.
 *
 * Git objects are deleted first, then those of the store: a run that is killed in between leaves
 * bytes that the next run finds, and no version without its bytes. */
#include "lineage/reach.h"
#include "store/exchange/sweep.h"
#include "store/gc/room.h"

#include <string.h>
#include <time.h>

typedef struct gc_run {
    fm_repo *r;
    const fm_gc_opts *opts;
    int64_t now, prune, reflog, checkpoints;
    fms_gc *gc;
    fml_reach reach;
    git_oid *packed; /* objects in git's packs */
    size_t packed_count;
    git_oid *garbage; /* those of packed that no root reaches */
    size_t garbage_count;
    bool no_room; /* the disk is too full to write git's new pack */
} gc_run;

fm_gc_opts fm_gc_defaults(void)
{
    return (fm_gc_opts){.depth = FM_GC_ANY_DEPTH};
}

static fm_status time_of(gc_run *g, int64_t *out, const char *given, const char *key,
                         const char *fallback)
{
    char *set = given ? NULL : fm_repo_config(g->r, key);
    fm_status rc = fm_time_parse(out, given ? given : set ? set : fallback, g->now);

    if (rc < 0 && !given)
        rc = fm_error_prefix(rc, "config %s", key);
    fm_free(set);
    return rc;
}

static fm_status is_promised(void *ctx, const fm_digest *id, bool *yes)
{
    return fml_promised(ctx, id, yes);
}

static fm_status open_store(gc_run *g)
{
    const fm_gc_opts *o = g->opts;
    fms_gc_opts so = {.dry_run = o->dry_run,
                      .promised = is_promised,
                      .promised_ctx = g->r,
                      .now = g->now,
                      .expire = g->prune,
                      .repack = o->repack || o->repack_all,
                      .repack_all = o->repack_all,
                      .depth = o->depth,
                      .slow = o->slow,
                      .pack_bytes = o->pack_bytes,
                      .quarantine = o->quarantine,
                      .progress = o->progress,
                      .ctx = o->ctx};
    return fms_gc_open(&g->gc, g->r->store, &so);
}

/* Garbage that stays (its grace period runs, or a writer holds it) must keep all that it
 * reaches. */
static fm_status reach_grace(gc_run *g)
{
    for (size_t i = 0; i < g->garbage_count; i++)
        if (!fms_gc_git_goes(g->gc, g->garbage[i].id))
            FM_TRY(fml_reach_grace(&g->reach, &g->garbage[i]));
    return FM_OK;
}

static fm_status mark(gc_run *g)
{
    size_t n = 0;
    fm_status rc = fml_reach_all(&g->reach);

    FM_THEN(rc, fml_packed_ids(g->r, &g->packed, &g->packed_count));
    for (size_t i = 0; rc == FM_OK && i < g->packed_count; i++)
        if (!fml_reach_stays(&g->reach, &g->packed[i]))
            g->packed[n++] = g->packed[i];
    g->garbage = g->packed;
    g->garbage_count = rc == FM_OK ? n : 0;
    return rc;
}

static bool goes(void *ctx, const git_oid *id)
{
    gc_run *g = ctx;

    if (fml_reach_stays(&g->reach, id) || !fms_gc_git_goes(g->gc, id->id))
        return false;
    fms_gc_git_gone(g->gc, id->id);
    return true;
}

/* True: the disk is full, and nothing was written. */
static bool for_want_of_room(fm_status rc)
{
    if (rc == FM_OK || rc == FM_ENOMEM || !fms_no_room())
        return false;
    fm_error_clear();
    return true;
}

static fm_status drop_git(gc_run *g)
{
    if (!g->opts->dry_run)
        return fml_packs_drop(g->r, goes, g);
    for (size_t i = 0; i < g->garbage_count; i++)
        (void)goes(g, &g->garbage[i]);
    return FM_OK;
}

/* Runs with the leases' gate closed and refs locked: nothing becomes reached any more. */
static fm_status delete_inside(gc_run *g)
{
    fm_lock *lock = NULL;
    fm_status rc = fms_gc_enter(g->gc);

    FM_THEN(rc, fml_ref_lock(g->r, &lock));
    FM_THEN(rc, fml_reach_all(&g->reach));
    FM_THEN(rc, reach_grace(g));
    FM_THEN(rc, drop_git(g));
    bool late = for_want_of_room(rc); /* retried below with the space of the removed packs */
    if (late)
        rc = fms_gc_git_stays(g->gc);
    FM_THEN(rc, fms_gc_remove(g->gc));
    if (rc == FM_OK && late)
        rc = drop_git(g);
    if (late && for_want_of_room(rc)) {
        g->no_room = true;
        rc = fms_gc_git_stays(g->gc);
    }
    fm_lock_drop(lock);
    return rc == FM_OK ? fms_gc_leave(g->gc) : rc;
}

static fm_status expire_reflogs(gc_run *g, uint64_t *dropped)
{
    fm_lock *lock = NULL;

    if (g->opts->dry_run || g->reflog == INT64_MIN)
        return FM_OK;
    fm_status rc = fml_ref_lock(g->r, &lock);
    FM_THEN(rc, fml_reflogs_expire(g->r, g->reflog, dropped));
    fm_lock_drop(lock);
    return for_want_of_room(rc) ? FM_OK : rc; /* an expired entry keeps nothing, even in the log */
}

static fm_status expire_checkpoints(const gc_run *g, fm_gc_report *out)
{
    fm_status rc = fml_checkpoints_expire(g->r, g->checkpoints, g->opts->checkpoints != NULL,
                                          g->opts->dry_run, out);
    return for_want_of_room(rc) ? FM_OK : rc;
}

static fm_status fill_roots(const gc_run *g, fm_gc_report *out)
{
    const fml_reach *x = &g->reach;

    fms_gc_kept(g->gc, FMS_ROOT_SHARED, &out->shared_objects, &out->shared_bytes);
    out->root = fm_calloc(x->roots + 1, sizeof *out->root);
    if (!out->root)
        return FM_ENOMEM;
    for (size_t i = 0; i < x->roots; i++) {
        fm_gc_root *k = &out->root[i];
        k->name = fm_strdup(x->root[i]);
        if (!k->name)
            return FM_ENOMEM;
        out->roots++;
        fms_gc_kept(g->gc, (uint32_t)i + 1, &k->objects, &k->bytes);
    }
    return FM_OK;
}

static fm_status fill(const gc_run *g, fm_gc_report *out)
{
    const fms_gc_report *s = fms_gc_result(g->gc);

    out->versions = g->reach.versions;
    out->objects = s->objects;
    out->bytes = s->bytes;
    out->live_objects = s->live_objects;
    out->live_bytes = s->live_bytes;
    out->new_objects = s->new_objects;
    out->new_bytes = s->new_bytes;
    out->waiting_objects = s->waiting_objects;
    out->waiting_bytes = s->waiting_bytes;
    out->held_objects = s->held_objects;
    out->held_bytes = s->held_bytes;
    out->stuck_objects = s->stuck_objects;
    out->stuck_bytes = s->stuck_bytes;
    out->gone_objects = s->gone_objects;
    out->gone_bytes = s->gone_bytes;
    out->packs_before = s->packs_before;
    out->packs_after = s->packs_after;
    out->pack_bytes_before = s->pack_bytes_before;
    out->pack_bytes_after = s->pack_bytes_after;
    out->packs_written = s->packs_written;
    out->recoded_objects = s->recoded_objects;
    out->bad_objects = s->bad_objects;
    out->git_new = s->git_new;
    out->git_gone = s->git_gone;
    out->no_room = s->no_room || g->no_room;
    for (size_t i = 0; i < fms_gc_leases(g->gc)->count; i++)
        out->writers += fms_gc_leases(g->gc)->lease[i].writes;
    return fill_roots(g, out);
}

static fm_status refuse_damage(void *ctx, const char *rev, const char *path, const fm_entry *e)
{
    (void)ctx;
    (void)e;
    return fm_fail(FM_ECORRUPT,
                   "%s:%s is damaged and has no sound copy: packs with damage stay where they are",
                   rev, path);
}

static fm_status run(gc_run *g, fm_gc_report *out)
{
    fm_status rc = g->opts->quarantine ? fm_repo_damage(g->r, refuse_damage, NULL) : FM_OK;

    FM_THEN(rc, open_store(g));
    if (rc == FM_OK && !g->opts->dry_run) {
        fml_staging_sweep(g->r);
        rc = fml_results_sweep(g->r);
        FM_THEN(rc, fms_incoming_sweep(g->r->path, g->prune));
    }
    FM_THEN(rc, expire_checkpoints(g, out));
    if (rc == FM_OK && !g->opts->dry_run)
        rc = fml_downloads_expire(g->r, g->prune);
    FM_THEN(rc, fml_reach_init(&g->reach, g->r, g->gc, g->reflog));
    FM_THEN(rc, mark(g));
    FM_THEN(rc,
            fms_gc_condemn(g->gc, g->garbage_count ? g->garbage[0].id : NULL, g->garbage_count));
    if (rc == FM_OK) /* only after the walk found all that is reached */
        rc = expire_reflogs(g, &out->reflog_entries);
    FM_THEN(rc, reach_grace(g));
    FM_THEN(rc, fms_gc_rewrite(g->gc));
    FM_THEN(rc, delete_inside(g));
    if (rc == FM_OK && !g->opts->dry_run) { /* codes what commits only joined */
        rc = fml_packs_repack(g->r, true);
        rc = for_want_of_room(rc) ? FM_OK : rc;
    }
    return rc == FM_OK ? fill(g, out) : rc;
}

fm_status fm_repo_gc(fm_repo *r, const fm_gc_opts *opts, fm_gc_report *out)
{
    gc_run g = {.r = r, .opts = opts, .now = (int64_t)time(NULL)};
    fm_status rc;

    if (!out)
        return fm_fail(FM_EINVAL, "gc: a report is needed");
    memset(out, 0, sizeof *out);
    if (!r || !opts)
        return fm_fail(FM_EINVAL, "gc: a repository and options are needed");
    rc = time_of(&g, &g.prune, opts->prune, "gc.pruneExpire", "2.weeks.ago");
    FM_THEN(rc, time_of(&g, &g.reflog, opts->reflog, "gc.reflogExpire", "90.days.ago"));
    FM_THEN(rc,
            time_of(&g, &g.checkpoints, opts->checkpoints, "gc.checkpointExpire", "2.weeks.ago"));
    if (rc == FM_OK && !opts->dry_run)
        fms_room_let_go(r->path);
    FM_THEN(rc, run(&g, out));
    fml_reach_release(&g.reach);
    fms_gc_close(g.gc);
    fm_free(g.packed);
    if (!opts->dry_run)
        fms_room_reserve(r->path, FMS_ROOM_BYTES +
                                      FMS_ROOM_OBJECT_BYTES * (out->live_objects + g.packed_count));
    if (rc < 0)
        fm_gc_report_release(out);
    return rc;
}

void fm_gc_report_release(fm_gc_report *report)
{
    if (!report)
        return;
    for (size_t i = 0; i < report->roots; i++)
        fm_free(report->root[i].name);
    fm_free(report->root);
    for (size_t i = 0; i < report->trainings; i++)
        fm_free(report->training[i].subject);
    fm_free(report->training);
    memset(report, 0, sizeof *report);
}
