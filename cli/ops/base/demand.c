/* demand.c - asks the remote for what a clone of the lineage alone lacks. */
#include "cli/ops/base/demand.h"

#include <pthread.h>
#include <string.h>

#include "cli/ops/base/remotes.h"
#include "store/base/mem.h"

typedef struct fm_demand {
    fm_ops *c;
    char *name;           /* the remote; NULL: this is a whole repository */
    pthread_mutex_t lock; /* of what follows: several threads read */
    fmo_remote remote;
    bool open;
    fm_repo *repo; /* a handle of its own, which takes in what comes */
} fm_demand;

static fm_status find_name(void *ctx, const char *key, const char *value)
{
    static const char tail[] = ".lineageonly"; /* git's keys are without case */
    char **name = ctx;
    const size_t from = strlen("remote."), n = strlen(key), t = strlen(tail);
    if (*name || strcmp(value, "true") != 0 || n <= from + t || strcmp(key + n - t, tail) != 0)
        return FM_OK;
    *name = fm_strndup(key + from, n - from - t);
    return *name ? FM_OK : FM_ENOMEM;
}

static fm_status open_both(fm_demand *d)
{
    if (!d->repo)
        FM_TRY(fm_repo_open(&d->repo, fm_repo_path(d->c->repo)));
    if (d->open)
        return FM_OK;
    FM_TRY(fmo_remote_open(d->c, &d->remote, d->name, false));
    d->open = true;
    return FM_OK;
}

/* Taking in needs a writer's lease, since it passes over what is stored. A command that only reads
 * must not keep one until it ends: a server would keep gc from deleting anything that is condemned
 * meanwhile. So the lease belongs to a handle of its own, and ends once what came is durable. From
 * then on it is kept by what reaches it: a ref, or the version that the reader's lease of the
 * command's own handle names, or that of a writer, which keeps all that is condemned during it.
 * What was condemned before is brought again, as nothing condemned counts as stored for a later
 * lease (store/README.md, rule 2). Where none of these holds, an old version named by its id
 * alone, gc may delete it after its grace, and the next read brings it again. */
static fm_status bring(fm_demand *d, const fm_digest *id, size_t count, bool tell)
{
    fm_travel t;
    size_t absent = 0;
    (void)pthread_mutex_lock(&d->lock);
    fm_status rc = open_both(d);
    FM_THEN(rc, fm_remote_bring(d->remote.at, d->repo, id, count, tell ? fmo_remote_progress : NULL,
                                d->c, &absent, &t));
    if (d->repo)
        fm_store_lease_end(fm_repo_store(d->repo));
    if (rc != FM_OK && d->open) { /* a connection that failed is of no more use */
        fmo_remote_close(&d->remote);
        d->open = false;
    }
    (void)pthread_mutex_unlock(&d->lock);
    if (rc == FM_OK && absent)
        rc = fm_fail(FM_ENOTFOUND,
                     "neither this clone nor '%s' has %zu of the tensors and files "
                     "that are needed",
                     d->name, absent);
    return rc;
}

static fm_status missing(void *ctx, const fm_digest *id)
{
    return bring(ctx, id, 1, false); /* on any thread */
}

fm_status fmo_demand_begin(fm_ops *c)
{
    if (c->demand)
        return FM_OK;
    fm_demand *d = fm_calloc(1, sizeof *d);
    if (!d)
        return FM_ENOMEM;
    d->c = c;
    (void)pthread_mutex_init(&d->lock, NULL);
    c->demand = d;
    bool ours;
    fm_status rc = fm_repo_is_ours(c->repo, &ours);
    if (rc == FM_OK && ours) /* another user's config is not followed (remotes.c) */
        rc = fm_repo_config_each(c->repo, "remote.", find_name, &d->name);
    if (rc != FM_OK) {
        fmo_demand_end(c);
        return rc;
    }
    if (d->name)
        fm_store_on_missing(fm_repo_store(c->repo), missing, d);
    return FM_OK;
}

void fmo_demand_end(fm_ops *c)
{
    fm_demand *d = c->demand;
    if (!d)
        return;
    if (c->repo)
        fm_store_on_missing(fm_repo_store(c->repo), NULL, NULL);
    if (d->open)
        fmo_remote_close(&d->remote);
    fm_repo_close(d->repo);
    (void)pthread_mutex_destroy(&d->lock);
    fm_free(d->name);
    fm_free(d);
    c->demand = NULL;
}

fm_status fmo_demand_tree(fm_ops *c, const fm_tree *tree)
{
    fm_store *s = fm_repo_store(c->repo);
    size_t n = 0;
    FM_TRY(fmo_demand_begin(c));
    if (!c->demand->name)
        return FM_OK;
    fm_digest *id = fm_calloc(fm_tree_count(tree) + 1, sizeof *id);
    if (!id)
        return FM_ENOMEM;
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind != FM_ENTRY_FILE && !fm_store_has(s, &e->id))
            id[n++] = e->id;
    }
    fm_status rc = FM_OK;
    if (n) {
        fmo_ui_say(c, FM_UI_NOTE, "%zu tensors and files come from '%s'", n, c->demand->name);
        rc = bring(c->demand, id, n, true);
        fmo_ui_progress_end(c);
    }
    fm_free(id);
    return rc;
}
