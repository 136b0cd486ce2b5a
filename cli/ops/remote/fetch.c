/* fetch.c - fetch and pull: objects come, then refs move, each by compare-and-swap. */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "cli/ops/base/remotes.h"
#include "store/base/map.h"
#include "store/base/mem.h"

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* ---- what is wanted ---- */

static bool is_wanted(const fm_fetch_opts *o, const char *name)
{
    if (starts(name, FMO_TAGS))
        return o->count == 0;
    if (!starts(name, FMO_HEADS))
        return true; /* notes and results */
    for (size_t i = 0; i < o->count; i++)
        if (strcmp(name + strlen(FMO_HEADS), o->branch[i]) == 0)
            return true;
    return o->count == 0;
}

static fm_status check_branches(const fmo_remote *m, const fmo_refs *refs, const fm_fetch_opts *o)
{
    for (size_t i = 0; i < o->count; i++) {
        char name[FMO_REF_BYTES];
        snprintf(name, sizeof name, FMO_HEADS "%.250s", o->branch[i]);
        if (!fmo_refs_find(refs, name))
            return fm_fail(FM_ENOTFOUND, "'%s' has no branch '%s'; 'fmstore ls-remote' lists them",
                           m->name ? m->name : fm_remote_url(m->at), o->branch[i]);
    }
    return FM_OK;
}

/* Where a ref of the remote is kept here. */
static void kept_as(char out[FMO_REF_BYTES], const fmo_remote *m, const char *name)
{
    if (starts(name, FMO_HEADS))
        snprintf(out, FMO_REF_BYTES, "refs/remotes/%.80s/%.200s", m->name,
                 name + strlen(FMO_HEADS));
    else
        snprintf(out, FMO_REF_BYTES, "%.299s", name);
}

/* ---- refs move ---- */

typedef struct moves {
    fm_ref_wish *wish;
    char (*name)[FMO_REF_BYTES];
    const struct fmo_ref **from;
    size_t count;
} moves;

static void release_moves(moves *v)
{
    fm_free(v->wish);
    fm_free(v->name);
    fm_free((void *)v->from);
}

static fm_status make_moves(fm_ops *c, const fmo_remote *m, const fmo_refs *refs,
                            const fm_fetch_opts *o, moves *v)
{
    v->wish = fm_calloc(refs->count + 1, sizeof *v->wish);
    v->name = fm_calloc(refs->count + 1, sizeof *v->name);
    v->from = fm_calloc(refs->count + 1, sizeof *v->from);
    if (!v->wish || !v->name || !v->from)
        return FM_ENOMEM;
    for (size_t i = 0; i < refs->count; i++) {
        const struct fmo_ref *ref = &refs->ref[i];
        if (!is_wanted(o, ref->name))
            continue;
        fm_ref_wish *w = &v->wish[v->count];
        kept_as(v->name[v->count], m, ref->name);
        *w = (fm_ref_wish){.name = v->name[v->count], .new_oid = ref->oid};
        w->any_old = w->force = starts(w->name, "refs/remotes/");
        fm_status rc = fm_ref_read_raw(c->repo, &w->old, w->name);
        if (rc == FM_ENOTFOUND) {
            fm_error_clear();
            memset(&w->old, 0, sizeof w->old);
        } else {
            FM_TRY(rc);
        }
        v->from[v->count++] = ref;
    }
    return FM_OK;
}

static bool is_shared(const char *name) /* merged by union: no news for people */
{
    return !starts(name, FMO_TAGS) && !starts(name, "refs/remotes/") && !starts(name, FMO_HEADS);
}

/* A tag that is here stays: a release does not move by itself. What cannot move is told, and the
 * others go on. */
static fm_status tell_moves(fm_ops *c, const moves *v)
{
    size_t refused = 0;
    for (size_t i = 0; i < v->count; i++) {
        const fm_ref_wish *w = &v->wish[i];
        const bool is_new = fmo_oid_is_none(&w->old);
        if (w->status == FM_OK && (is_shared(w->name) || fm_oid_eq(&w->old, &w->new_oid)))
            continue;
        if (w->status != FM_OK && starts(w->name, FMO_TAGS) && !is_new) {
            fmo_ref_say(c, "kept", v->from[i]->name, w->name, &w->old, NULL,
                        "the remote's is another one");
        } else if (w->status != FM_OK) {
            fmo_ref_say(c, "refused", v->from[i]->name, w->name, &w->old, &w->new_oid, w->text);
            refused++;
        } else {
            fmo_ref_say(c, is_new ? "new" : "forwarded", v->from[i]->name, w->name, &w->old,
                        &w->new_oid, NULL);
        }
    }
    return refused ? fm_fail(FM_EREFUSED, "%zu of the remote's refs could not be taken", refused)
                   : FM_OK;
}

/* Refs that the remote lists no more, and that stand in the way of one that it lists (x, x/y). */
typedef struct in_the_way {
    fm_ops *c;
    const moves *v;
} in_the_way;

static bool hides(const char *a, const char *b)
{
    const size_t n = strlen(a);
    return strncmp(a, b, n) == 0 && b[n] == '/';
}

static fm_status drop_one(void *ctx, const char *name, const fm_oid *oid)
{
    const in_the_way *w = ctx;
    bool blocks = false;
    (void)oid;
    for (size_t i = 0; i < w->v->count; i++) {
        const char *other = w->v->wish[i].name;
        if (strcmp(other, name) == 0)
            return FM_OK;
        blocks = blocks || hides(other, name) || hides(name, other);
    }
    return blocks ? fm_ref_delete(w->c->repo, name, NULL) : FM_OK;
}

static fm_status clear_way(fm_ops *c, const fmo_remote *m, const moves *v)
{
    char prefix[FMO_REF_BYTES];
    in_the_way w = {c, v};
    snprintf(prefix, sizeof prefix, "refs/remotes/%.80s/", m->name);
    return fm_ref_each(c->repo, prefix, drop_one, &w);
}

static fm_status move_refs(fm_ops *c, const fmo_remote *m, const fmo_refs *refs,
                           const fm_fetch_opts *o, bool lineage_only)
{
    moves v = {0};
    fm_status rc = make_moves(c, m, refs, o, &v);
    FM_THEN(rc, clear_way(c, m, &v));
    FM_THEN(rc, fm_refs_move(c->repo, v.wish, v.count, lineage_only, "fetch"));
    FM_THEN(rc, tell_moves(c, &v));
    release_moves(&v);
    return rc;
}

fm_status fmo_fetch_from(fm_ops *c, fmo_remote *m, const fmo_refs *refs, const fm_fetch_opts *o,
                         fm_travel *out)
{
    fm_oid *want = fm_calloc(refs->count + 1, sizeof *want);
    char *only = fmo_remote_config(c, m->name, "lineageOnly");
    fm_fetch f = {.lineage_only = o->lineage_only || (only && strcmp(only, "true") == 0),
                  .dry_run = o->dry_run,
                  .progress = fmo_remote_progress,
                  .ctx = c};
    fm_free(only);
    memset(out, 0, sizeof *out);
    if (!want)
        return FM_ENOMEM;
    for (size_t i = 0; i < refs->count; i++)
        if (is_wanted(o, refs->ref[i].name))
            want[f.wants++] = refs->ref[i].oid;
    f.want = want;
    fm_status rc = check_branches(m, refs, o);
    if (rc == FM_OK && f.lineage_only && !o->dry_run)
        rc = fmo_remote_promise(c, m->name);
    if (rc == FM_OK && f.wants)
        rc = fm_remote_fetch(m->at, c->repo, &f, out);
    fmo_ui_progress_end(c);
    if (rc == FM_OK && !o->dry_run)
        rc = move_refs(c, m, refs, o, f.lineage_only);
    fm_free(want);
    return rc;
}

/* ---- branches ---- */

/* Moves a branch as a push would: another pull that was first is no conflict. */
static fm_status move_branch(fm_ops *c, const struct fmo_ref *to, const fm_oid *old, char why[300])
{
    fm_ref_wish w = {.name = to->name, .new_oid = to->oid};
    if (old)
        w.old = *old;
    FM_TRY(
        fm_refs_move(c->repo, &w, 1, true, "pull")); /* its tensors were looked at by the fetch */
    if (w.status == FM_OK)
        fmo_ref_say(c, old ? "forwarded" : "new", to->name, to->name, old, &to->oid, NULL);
    else
        snprintf(why, 300, "%.255s", w.text);
    return FM_OK;
}

/* Forwards a branch to what was fetched; why: not empty where it could not be. */
static fm_status forward(fm_ops *c, const fmo_remote *m, const struct fmo_ref *to, char why[300])
{
    fm_oid old;
    bool behind, ahead;
    why[0] = '\0';
    fm_status rc = fm_ref_read(c->repo, &old, to->name);
    if (rc == FM_ENOTFOUND) {
        fm_error_clear();
        return move_branch(c, to, NULL, why);
    }
    FM_TRY(rc);
    if (fm_oid_eq(&old, &to->oid))
        return FM_OK;
    FM_TRY(fm_is_ancestor(c->repo, &behind, &old, &to->oid));
    if (behind)
        return move_branch(c, to, &old, why);
    FM_TRY(fm_is_ancestor(c->repo, &ahead, &to->oid, &old));
    if (!ahead)
        snprintf(why, 300,
                 "both have versions of their own; '%.80s/%.100s' names the remote's, and "
                 "'fmstore merge' joins the two",
                 m->name, fmo_ref_short(to->name));
    return FM_OK;
}

fm_status fmo_forward_branches(fm_ops *c, const fmo_remote *m, const fmo_refs *refs,
                               const fm_fetch_opts *o)
{
    size_t refused = 0;
    for (size_t i = 0; i < refs->count; i++) {
        const struct fmo_ref *ref = &refs->ref[i];
        char why[300];
        if (!starts(ref->name, FMO_HEADS) || !is_wanted(o, ref->name))
            continue;
        FM_TRY(forward(c, m, ref, why));
        if (!why[0])
            continue;
        fmo_ref_say(c, "refused", ref->name, ref->name, NULL, &ref->oid, why);
        refused++;
    }
    return refused ? fm_fail(FM_EREFUSED, "%zu branch%s left as %s", refused,
                             refused == 1 ? " is" : "es are", refused == 1 ? "it was" : "they were")
                   : FM_OK;
}

/* ---- the commands ---- */

static fm_status open_named(fm_ops *c, fmo_remote *m, const char *given)
{
    FM_TRY(fm_ops_lease(c, true, "a fetch"));
    FM_TRY(fmo_remote_open(c, m, given, false));
    if (m->name)
        return FM_OK;
    fmo_remote_close(m);
    return fm_fail(FM_EINVAL, "what is fetched needs a name to be kept under: 'fmstore remote add "
                              "NAME URL' first, or 'fmstore clone URL'");
}

static fm_status fetch(fm_ops *c, const fm_fetch_opts *o, bool pull, fm_travel *out)
{
    fmo_remote m;
    fmo_refs refs = {0};
    memset(out, 0, sizeof *out);
    c->stopped = false;
    FM_TRY(open_named(c, &m, o->remote));
    fm_status rc = fmo_refs_read(&m, &refs);
    FM_THEN(rc, fmo_fetch_from(c, &m, &refs, o, out));
    if ((rc == FM_OK || rc == FM_EREFUSED) && pull && !o->dry_run) {
        const fm_status moved = fmo_forward_branches(c, &m, &refs, o);
        rc = moved == FM_OK ? rc : moved;
    }
    fmo_refs_release(&refs);
    fmo_remote_close(&m);
    return rc;
}

fm_status fm_ops_fetch(fm_ops *c, const fm_fetch_opts *o, fm_travel *out)
{
    return fetch(c, o, false, out);
}

fm_status fm_ops_pull(fm_ops *c, const fm_fetch_opts *o, fm_travel *out)
{
    return fetch(c, o, true, out);
}

/* ---- tensors of a version whose lineage alone is here ---- */

static bool matches(const fm_entry *e, const char *const *pattern, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (fnmatch(pattern[i], e->path, 0) == 0 ||
            (e->name && fnmatch(pattern[i], e->name, 0) == 0))
            return true;
    return count == 0;
}

fm_status fm_ops_fetch_tree(fm_ops *c, const char *remote, const fm_tree *tree,
                            const char *const *pattern, size_t count, fm_travel *out)
{
    fmo_remote m;
    size_t n = 0, absent = 0;
    fm_digest *id = fm_calloc(fm_tree_count(tree) + 1, sizeof *id);
    memset(out, 0, sizeof *out);
    if (!id)
        return FM_ENOMEM;
    for (size_t i = 0; i < fm_tree_count(tree); i++) {
        const fm_entry *e = fm_tree_at(tree, i);
        if (e->kind != FM_ENTRY_FILE && matches(e, pattern, count))
            id[n++] = e->id;
    }
    fm_status rc = n || !count ? FM_OK : fm_fail(FM_ENOTFOUND, "no tensor or file has such a name");
    FM_THEN(rc, fm_ops_lease(c, true, "a fetch"));
    if (rc == FM_OK && n) {
        rc = fmo_remote_open(c, &m, remote, false);
        if (rc == FM_OK) {
            rc = fm_remote_bring(m.at, c->repo, id, n, fmo_remote_progress, c, &absent, out);
            fmo_ui_progress_end(c);
            if (rc == FM_OK && absent)
                rc = fm_fail(FM_ENOTFOUND, "%s: lacks %zu of them", fm_remote_url(m.at), absent);
            fmo_remote_close(&m);
        }
    }
    fm_free(id);
    return rc;
}
