/* clone.c - a new repository with the branches of another one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/ops/base/remotes.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"

static fm_status prepare(fm_ops *c, const fm_clone_opts *o)
{
    FM_TRY(fm_repo_init(o->dir, o->bare));
    c->dir = o->dir;
    FM_TRY(fm_ops_lease(c, true, "a clone"));
    FM_TRY(fm_ops_remote_add(c, "origin", o->url, o->packs));
    if (o->lineage_only || o->depth)
        FM_TRY(fmo_remote_promise(c, "origin"));
    char depth[24];
    snprintf(depth, sizeof depth, "%" PRIu32, o->depth);
    return o->depth ? fm_repo_config_set(c->repo, "remote.origin.depth", depth) : FM_OK;
}

static fm_status bring(fm_ops *c, const fm_clone_opts *o, fmo_remote *m, const fmo_refs *refs,
                       fm_travel *out)
{
    const fm_fetch_opts f = {
        .name = &o->branch, .count = o->branch ? 1 : 0, .lineage_only = o->lineage_only};
    fm_status rc = fmo_fetch_from(c, m, refs, &f, out);
    if (rc == FM_OK || rc == FM_EREFUSED) {
        const fm_status moved = fmo_forward_branches(c, m, refs, &f);
        rc = moved == FM_OK ? rc : moved;
    }
    if (rc != FM_OK && rc != FM_EREFUSED)
        rc = fm_fail(rc, "%s; 'fmstore -C %s pull' goes on with what has come", fm_error_text(),
                     o->dir);
    return rc;
}

/* The remote is asked before anything is made, so that a mistyped URL leaves nothing behind. */
fm_status fm_ops_clone(fm_ops *c, const fm_clone_opts *o, fm_travel *out)
{
    fmo_remote m = {0};
    fmo_refs refs = {0};
    const fm_remote_opts how = {.url = o->url, .packs = o->packs};
    memset(out, 0, sizeof *out);
    c->stopped = false;
    if (c->repo)
        return fm_fail(FM_EINVAL, "clone: the handle has a repository already");
    fm_status rc = fm_remote_open(&m.at, &how);
    FM_THEN(rc, fmo_refs_read(&m, &refs));
    if (rc == FM_OK && o->branch) {
        char name[FMO_REF_BYTES];
        snprintf(name, sizeof name, FMO_HEADS "%.250s", o->branch);
        if (!fmo_refs_find(&refs, name))
            rc = fm_fail(FM_ENOTFOUND, "%s has no branch '%s'", fm_remote_url(m.at), o->branch);
    }
    FM_THEN(rc, prepare(c, o));
    if (rc == FM_OK) {
        m.name = fm_strdup("origin");
        rc = m.name ? bring(c, o, &m, &refs, out) : FM_ENOMEM;
    }
    fmo_refs_release(&refs);
    fmo_remote_close(&m);
    return rc;
}
