/* prune.c - deletes tracking refs whose branch the remote has no more. */
#include <stdio.h>
#include <string.h>

#include "cli/ops/remote/fetch_parts.h"
#include "store/base/mem.h"

typedef struct pruning {
    fm_ops *c;
    const fmo_remote *m;
    const fmo_refs *refs;
    bool dry_run;
    /* Tensors of what the remote's refs reach may be there alone, and be lost with its ref. */
    bool lineage_only;
    /* of one ref */
    const fm_oid *oid;
    bool needed;
} pruning;

static fm_status reaches(pruning *p, const fm_oid *from, bool *yes)
{
    *yes = false;
    return fm_exchange_has(p->c->repo, from) ? fm_is_ancestor(p->c->repo, yes, p->oid, from)
                                             : FM_OK;
}

static fm_status note_need(void *ctx, const char *name, const fm_oid *oid)
{
    pruning *p = ctx;
    if (p->needed || (!fm_starts_with(name, FMO_HEADS) && !fm_starts_with(name, FMO_TAGS)))
        return FM_OK;
    return reaches(p, oid, &p->needed);
}

/* A name here counts on it, and no other branch of the remote reaches it. */
static fm_status find_need(pruning *p)
{
    bool there = false;
    p->needed = false;
    for (size_t i = 0; p->lineage_only && i < p->refs->count && !there; i++)
        if (fm_starts_with(p->refs->ref[i].name, FMO_HEADS))
            FM_TRY(reaches(p, &p->refs->ref[i].oid, &there));
    return p->lineage_only && !there ? fm_ref_each(p->c->repo, "refs/", note_need, p) : FM_OK;
}

static fm_status prune_one(void *ctx, const char *name, const fm_oid *oid)
{
    pruning *p = ctx;
    char head[FMO_REF_BYTES];
    const size_t skip = strlen("refs/remotes/") + strlen(p->m->name) + 1;
    snprintf(head, sizeof head, FMO_HEADS "%.250s", name + skip);
    if (fmo_refs_find(p->refs, head) || strcmp(name + skip, "HEAD") == 0)
        return FM_OK;
    p->oid = oid;
    FM_TRY(find_need(p));
    if (p->needed) {
        fmo_ref_say(p->c, "kept", name, name, oid, NULL,
                    "gone there, but names here come from it, whose tensors may be missing");
        return FM_OK;
    }
    if (!p->dry_run)
        FM_TRY(fm_ref_delete(p->c->repo, name, NULL));
    fmo_ref_say(p->c, "deleted", "(none)", name, oid, NULL, NULL);
    return FM_OK;
}

/* git's config: that of the remote goes before fetch.prune. */
static bool wants_prune(fm_ops *c, const fmo_remote *m, const fm_fetch_opts *o)
{
    char *set = fmo_remote_config(c, m->name, "prune");
    if (!set)
        set = fm_repo_config(c->repo, "fetch.prune");
    const bool yes = o->prune || (set && strcmp(set, "true") == 0);
    fm_free(set);
    return yes && o->count == 0;
}

fm_status fmo_prune(fm_ops *c, const fmo_remote *m, const fmo_refs *refs, const fm_fetch_opts *o,
                    bool lineage_only)
{
    char prefix[FMO_REF_BYTES];
    pruning p = {.c = c, .m = m, .refs = refs, .dry_run = o->dry_run, .lineage_only = lineage_only};
    snprintf(prefix, sizeof prefix, "refs/remotes/%.80s/", m->name);
    return wants_prune(c, m, o) ? fm_ref_each(c->repo, prefix, prune_one, &p) : FM_OK;
}
