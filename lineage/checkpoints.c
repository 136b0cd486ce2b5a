/* checkpoints.c - checkpoints of abandoned trainings: gc drops their refs when they are old, and
 * then treats their objects like all unreached ones.
 *
 * A training holds the flock of its run's file in tmp/ from before it looks for checkpoints until
 * its end. gc takes that flock first, and holds it while it lists, judges and drops the run's refs,
 * each by compare-and-swap: a training that runs, or has just begun, is never touched. */
#include "lineage/internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define LOCK_PREFIX "train-"
#define LOCK_SUFFIX ".lock"

char *fm_checkpoint_lock(const fm_repo *r, const char *run)
{
    return fm_asprintf("%s/tmp/" LOCK_PREFIX "%s" LOCK_SUFFIX, r->path, run);
}

typedef struct state {
    char *name;
    fm_oid oid;
} state;

typedef struct expiry {
    fm_repo *r;
    int64_t expire;
    bool dry_run, kept_too;
    fm_gc_report *out;
    state *state; /* of the run at hand */
    size_t count, cap;
} expiry;

static void forget_states(expiry *x)
{
    for (size_t i = 0; i < x->count; i++)
        fm_free(x->state[i].name);
    x->count = 0;
}

static fm_status take_state(void *ctx, const char *name, const fm_oid *oid)
{
    expiry *x = ctx;
    fm_status rc = fm_grow(&x->state, &x->cap, x->count + 1, sizeof *x->state);
    char *copy = rc == FM_OK ? fm_strdup(name) : NULL;

    if (!copy)
        return FM_ENOMEM;
    x->state[x->count++] = (state){copy, *oid};
    return FM_OK;
}

static fm_status add_run(void *ctx, const char *name, const fm_oid *oid)
{
    fm_map *runs = ctx;
    const char *run = name + strlen(FM_CHECKPOINTS), *slash = strchr(run, '/');

    (void)oid;
    if (!slash || (size_t)(slash - run) != FM_RUN_CHARS ||
        strspn(run, "0123456789abcdef") != FM_RUN_CHARS)
        return FM_OK; /* not a checkpoint's name */
    return fm_map_put(runs, run, FM_RUN_CHARS, ctx, NULL);
}

/* The time of a checkpoint: that of its commit or of its ref's file, whichever is later
 * (SOURCE_DATE_EPOCH may have dated the commit back). */
static fm_status time_of_state(const expiry *x, const state *s, int64_t *newest)
{
    fm_version v;
    struct stat st;
    char *path = fm_path_join(x->r->git_path, s->name);
    fm_status rc = path ? fm_version_read(x->r, &v, &s->oid) : FM_ENOMEM;

    if (rc == FM_OK)
        *newest = FM_MAX(*newest, v.time);
    if (rc == FM_OK && stat(path, &st) == 0)
        *newest = FM_MAX(*newest, (int64_t)st.st_mtime);
    if (rc == FM_OK)
        fm_version_release(&v);
    fm_free(path);
    return rc;
}

/* The checkpoints' bytes on disk, each object once; without the delta bases of other versions. */
static fm_status weigh(const expiry *x, uint64_t *bytes)
{
    fm_map *seen = NULL;
    fm_status rc = fm_map_new(&seen);

    *bytes = 0;
    for (size_t i = 0; rc == FM_OK && i < x->count; i++) {
        fm_tree *tree = NULL;
        rc = fm_version_tree(x->r, &tree, &x->state[i].oid);
        for (size_t k = 0; rc == FM_OK && k < fm_tree_count(tree); k++) {
            const fm_entry *e = fm_tree_at(tree, k);
            fm_object_info info;
            if (e->kind == FM_ENTRY_FILE || fm_map_has(seen, e->id.b, sizeof e->id.b))
                continue;
            rc = fm_store_info(x->r->store, &info, &e->id);
            FM_THEN(rc, fm_map_put(seen, e->id.b, sizeof e->id.b, seen, NULL));
            *bytes += rc == FM_OK ? info.stored_bytes : 0;
        }
        fm_tree_free(tree);
    }
    fm_map_free(seen);
    return rc;
}

static fm_status report_run(expiry *x)
{
    fm_gc_report *o = x->out;
    fm_version v;
    fm_gc_training t = {.states = x->count};
    fm_status rc = fm_version_read(x->r, &v, &x->state[x->count - 1].oid);

    if (rc == FM_OK) {
        t.subject = v.subject;
        v.subject = NULL;
        fm_version_release(&v);
        rc = weigh(x, &t.bytes);
    }
    FM_THEN(rc, fm_grow(&o->training, &o->training_cap, o->trainings + 1, sizeof *o->training));
    if (rc == FM_OK)
        o->training[o->trainings++] = t;
    else
        fm_free(t.subject);
    return rc;
}

static fm_status drop_states(expiry *x, const char *run)
{
    fm_oid kept;
    char name[sizeof FM_CHECKPOINTS_KEPT + FM_RUN_CHARS + 1];
    fm_status rc = FM_OK;

    for (size_t i = 0; rc == FM_OK && i < x->count; i++)
        rc = fm_ref_delete(x->r, x->state[i].name, &x->state[i].oid);
    snprintf(name, sizeof name, FM_CHECKPOINTS_KEPT "%s", run);
    if (rc == FM_OK && fm_ref_read(x->r, &kept, name) == FM_OK)
        rc = fm_ref_delete(x->r, name, &kept);
    if (rc == FM_ECONFLICT || rc == FM_ENOTFOUND) { /* moved by plain git: for the next gc */
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

static bool is_kept(const expiry *x, const char *run)
{
    fm_oid oid;
    char name[sizeof FM_CHECKPOINTS_KEPT + FM_RUN_CHARS + 1];

    snprintf(name, sizeof name, FM_CHECKPOINTS_KEPT "%s", run);
    return fm_ref_read(x->r, &oid, name) == FM_OK;
}

/* Runs under the run's lock. */
static fm_status expire_states(expiry *x, const char *run)
{
    char prefix[sizeof FM_CHECKPOINTS + FM_RUN_CHARS + 2];
    int64_t newest = INT64_MIN;

    snprintf(prefix, sizeof prefix, FM_CHECKPOINTS "%s/", run);
    fm_status rc = fm_ref_each(x->r, prefix, take_state, x);
    for (size_t i = 0; rc == FM_OK && i < x->count; i++)
        rc = time_of_state(x, &x->state[i], &newest);
    bool old = rc == FM_OK && x->count > 0 && newest <= x->expire;
    if (old && (x->kept_too || !is_kept(x, run))) {
        rc = report_run(x);
        if (rc == FM_OK && !x->dry_run)
            rc = drop_states(x, run);
    }
    forget_states(x);
    if (rc != FM_ECORRUPT && rc != FM_EVERSION)
        return rc;
    fm_error_clear(); /* an unreadable one stays; fml_reach_all reports it */
    return FM_OK;
}

/* A dry run makes no lock file where there is none. */
static fm_status expire_run(expiry *x, const char *run)
{
    fm_lock *lock = NULL;
    char *path = fm_checkpoint_lock(x->r, run);
    fm_status rc = path ? FM_OK : FM_ENOMEM;
    bool runs = false;

    if (rc == FM_OK && x->dry_run)
        runs = fm_path_exists(path) && !fm_lock_is_free(path);
    else if (rc == FM_OK)
        rc = fm_lock_try(&lock, path);
    if (rc == FM_ECONFLICT) {
        fm_error_clear();
        rc = FM_OK;
        runs = true;
    }
    if (rc == FM_OK && !runs)
        rc = expire_states(x, run);
    fm_lock_end(lock, path);
    fm_free(path);
    return rc;
}

/* Deletes the lock files of trainings that were killed. */
static fm_status sweep_locks(const fm_repo *r)
{
    char *dir = fm_path_join(r->path, "tmp");
    fm_names names = {NULL, 0};
    fm_status rc = dir ? fm_list_dir(&names, dir) : FM_ENOMEM;

    for (size_t i = 0; rc == FM_OK && i < names.count; i++) {
        const char *name = names.name[i];
        size_t n = strlen(name), end = strlen(LOCK_SUFFIX);
        fm_lock *lock = NULL;
        if (strncmp(name, LOCK_PREFIX, strlen(LOCK_PREFIX)) != 0 || n < end ||
            strcmp(name + n - end, LOCK_SUFFIX) != 0)
            continue;
        char *path = fm_path_join(dir, name);
        rc = path ? fm_lock_try(&lock, path) : FM_ENOMEM;
        fm_lock_end(lock, path);
        fm_free(path);
        if (rc == FM_ECONFLICT) {
            fm_error_clear();
            rc = FM_OK;
        }
    }
    fm_names_release(&names);
    fm_free(dir);
    return rc;
}

fm_status fml_checkpoints_expire(fm_repo *r, int64_t expire, bool kept_too, bool dry_run,
                                 fm_gc_report *out)
{
    expiry x = {.r = r, .expire = expire, .dry_run = dry_run, .kept_too = kept_too, .out = out};
    fm_map *runs = NULL;

    if (expire == INT64_MIN)
        return FM_OK;
    fm_status rc = fm_map_new(&runs);
    FM_THEN(rc, fm_ref_each(r, FM_CHECKPOINTS, add_run, runs));
    for (size_t i = 0; rc == FM_OK && i < fm_map_count(runs); i++) {
        char run[FM_RUN_CHARS + 1] = "";
        memcpy(run, fm_map_key_at(runs, i).data, FM_RUN_CHARS);
        rc = expire_run(&x, run);
    }
    if (rc == FM_OK && !dry_run)
        rc = sweep_locks(r);
    fm_map_free(runs);
    fm_free(x.state);
    return rc;
}
