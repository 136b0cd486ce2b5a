/* fetch.c - fetch and pull: objects come, then refs move, each by compare-and-swap. */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "cli/ops/remote/fetch_parts.h"
#include "store/base/mem.h"

/* ---- what is wanted ---- */

/* A word is a ref's whole name, or a branch's, else a tag's. */
static bool is_named(const fmo_refs *refs, const char *word, const char *name)
{
    char head[FMO_REF_BYTES];
    if (strcmp(word, name) == 0)
        return true;
    if (fm_starts_with(name, FMO_HEADS))
        return strcmp(word, name + strlen(FMO_HEADS)) == 0;
    if (strcmp(word, name + strlen(FMO_TAGS)) != 0)
        return false;
    snprintf(head, sizeof head, FMO_HEADS "%.250s", word);
    return !fmo_refs_find(refs, head);
}

static bool is_wanted(const fm_fetch_opts *o, const fmo_refs *refs, const char *name)
{
    if (o->count == 0 || (!fm_starts_with(name, FMO_HEADS) && !fm_starts_with(name, FMO_TAGS)))
        return true; /* notes and results go along */
    for (size_t i = 0; i < o->count; i++)
        if (is_named(refs, o->name[i], name))
            return true;
    return false;
}

static fm_status check_names(const fmo_remote *m, const fmo_refs *refs, const fm_fetch_opts *o)
{
    for (size_t i = 0; i < o->count; i++) {
        bool there = false;
        for (size_t k = 0; k < refs->count && !there; k++) {
            const char *name = refs->ref[k].name;
            there = (fm_starts_with(name, FMO_HEADS) || fm_starts_with(name, FMO_TAGS)) &&
                    is_named(refs, o->name[i], name);
        }
        if (!there)
            return fm_fail(FM_ENOTFOUND,
                           "'%s' has no branch or tag '%s'; 'fmstore ls-remote' lists them",
                           m->name ? m->name : fm_remote_url(m->at), o->name[i]);
    }
    return FM_OK;
}

/* Where a ref of the remote is kept here. */
static void kept_as(char out[FMO_REF_BYTES], const fmo_remote *m, const char *name)
{
    if (fm_starts_with(name, FMO_HEADS))
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

static bool is_shared(const char *name) /* merged by union: no news for people */
{
    return !fm_starts_with(name, FMO_TAGS) && !fm_starts_with(name, "refs/remotes/") &&
           !fm_starts_with(name, FMO_HEADS);
}

/* What the ref here has, so nothing is to be brought or moved. */
static bool is_settled(fm_ops *c, const fm_ref_wish *w)
{
    bool yes = fm_oid_eq(&w->old, &w->new_oid);
    if (!yes && is_shared(w->name) && fm_exchange_has(c->repo, &w->old) &&
        fm_exchange_has(c->repo, &w->new_oid) &&
        fm_is_ancestor(c->repo, &yes, &w->new_oid, &w->old) != FM_OK) {
        fm_error_clear(); /* the fetch says what is missing */
        yes = false;
    }
    return yes;
}

static fm_status read_or_none(fm_ops *c, fm_oid *out, const char *name)
{
    fm_status rc = fm_ref_read_raw(c->repo, out, name);
    if (rc != FM_ENOTFOUND)
        return rc;
    fm_error_clear();
    memset(out, 0, sizeof *out);
    return FM_OK;
}

/* all: also refs that hold already what the remote's do. */
static fm_status make_moves(fm_ops *c, const fmo_remote *m, const fmo_refs *refs,
                            const fm_fetch_opts *o, bool all, moves *v)
{
    v->wish = fm_calloc(refs->count + 1, sizeof *v->wish);
    v->name = fm_calloc(refs->count + 1, sizeof *v->name);
    v->from = fm_calloc(refs->count + 1, sizeof *v->from);
    if (!v->wish || !v->name || !v->from)
        return FM_ENOMEM;
    for (size_t i = 0; i < refs->count; i++) {
        const struct fmo_ref *ref = &refs->ref[i];
        if (!is_wanted(o, refs, ref->name))
            continue;
        fm_ref_wish *w = &v->wish[v->count];
        kept_as(v->name[v->count], m, ref->name);
        *w = (fm_ref_wish){.name = v->name[v->count], .new_oid = ref->oid};
        w->any_old = w->force = fm_starts_with(w->name, "refs/remotes/");
        FM_TRY(read_or_none(c, &w->old, w->name));
        if (all || !is_settled(c, w))
            v->from[v->count++] = ref;
    }
    return FM_OK;
}

/* A tag that is here stays: a release does not move by itself. What cannot move is told, and the
 * others go on. In a dry run nothing was tried, and no branch of the remote's can be refused. */
static fm_status tell_moves(fm_ops *c, const moves *v, bool dry_run)
{
    size_t refused = 0;
    for (size_t i = 0; i < v->count; i++) {
        const fm_ref_wish *w = &v->wish[i];
        const bool stays = fm_starts_with(w->name, FMO_TAGS) && !fmo_oid_is_none(&w->old);
        if (fm_oid_eq(&w->old, &w->new_oid) || (w->status == FM_OK && is_shared(w->name)))
            continue;
        if (stays && (dry_run || w->status != FM_OK)) {
            fmo_ref_say(c, "kept", v->from[i]->name, w->name, &w->old, NULL,
                        "the remote's is another one");
        } else if (w->status != FM_OK) {
            fmo_ref_say(c, "refused", v->from[i]->name, w->name, &w->old, &w->new_oid, w->text);
            refused++;
        } else {
            fmo_ref_say(c, fmo_ref_outcome(c, &w->old, &w->new_oid), v->from[i]->name, w->name,
                        &w->old, &w->new_oid, NULL);
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
    for (size_t i = 0; i < w->v->count; i++) {
        const char *other = w->v->wish[i].name;
        if (strcmp(other, name) == 0)
            return FM_OK;
        blocks = blocks || hides(other, name) || hides(name, other);
    }
    if (!blocks)
        return FM_OK;
    FM_TRY(fm_ref_delete(w->c->repo, name, NULL));
    fmo_ref_say(w->c, "deleted", "(none)", name, oid, NULL, NULL);
    return FM_OK;
}

static fm_status clear_way(fm_ops *c, const fmo_remote *m, const moves *v)
{
    char prefix[FMO_REF_BYTES];
    in_the_way w = {c, v};
    snprintf(prefix, sizeof prefix, "refs/remotes/%.80s/", m->name);
    return fm_ref_each(c->repo, prefix, drop_one, &w);
}

static fm_status move_refs(fm_ops *c, const fmo_remote *m, moves *v, bool lineage_only)
{
    FM_TRY(clear_way(c, m, v));
    FM_TRY(fm_refs_move(c->repo, v->wish, v->count, lineage_only, "fetch"));
    return tell_moves(c, v, false);
}

/* ---- tags whose tensors the remote has alone ---- */

/* A promise lasts as long as the tag is here, so that no name of one is in the way of another. */
static fm_status drop_promise(void *ctx, const char *name, const fm_oid *oid)
{
    fm_ops *c = ctx;
    char tag[FMO_REF_BYTES];
    fm_oid here;
    (void)oid;
    snprintf(tag, sizeof tag, FMO_TAGS "%.250s", strchr(name + strlen(FM_PROMISED), '/') + 1);
    FM_TRY(read_or_none(c, &here, tag));
    return fmo_oid_is_none(&here) ? fm_ref_delete(c->repo, name, NULL) : FM_OK;
}

static fm_status promise_tag(fm_ops *c, const fmo_remote *m, const struct fmo_ref *ref)
{
    char name[FMO_REF_BYTES];
    fm_oid ours, version, old;
    FM_TRY(read_or_none(c, &ours, ref->name));
    if (!fm_oid_eq(&ours, &ref->oid))
        return FM_OK; /* another one has the name here */
    FM_TRY(fm_ref_read(c->repo, &version, ref->name));
    snprintf(name, sizeof name, FM_PROMISED "%.80s/%.180s", m->name, ref->name + strlen(FMO_TAGS));
    FM_TRY(read_or_none(c, &old, name));
    if (fm_oid_eq(&old, &version))
        return FM_OK;
    return fm_ref_update(c->repo, name, &version, fmo_oid_is_none(&old) ? NULL : &old, "fetch");
}

static fm_status promise_tags(fm_ops *c, const fmo_remote *m, const fmo_refs *refs,
                              const fm_fetch_opts *o)
{
    char prefix[FMO_REF_BYTES];
    snprintf(prefix, sizeof prefix, FM_PROMISED "%.80s/", m->name);
    FM_TRY(fm_ref_each(c->repo, prefix, drop_promise, c));
    for (size_t i = 0; i < refs->count; i++)
        if (fm_starts_with(refs->ref[i].name, FMO_TAGS) && is_wanted(o, refs, refs->ref[i].name))
            FM_TRY(promise_tag(c, m, &refs->ref[i]));
    return FM_OK;
}

/* ---- a fetch ---- */

static fm_status depth_of(fm_ops *c, const fmo_remote *m, const fm_fetch_opts *o, uint64_t *depth)
{
    char *key = fm_asprintf("remote.%s.depth", m->name);
    *depth = 0;
    fm_status rc = key ? FM_OK : FM_ENOMEM;
    if (!o->lineage_only && !o->dry_run)
        FM_THEN(rc, fm_ops_config_uint(c, key, "versions", 0, FM_DEPTH_MAX, depth));
    fm_free(key);
    return rc;
}

static fm_status bring(fm_ops *c, fmo_remote *m, const fm_fetch_opts *o, fm_fetch *f, moves *v,
                       fm_travel *out)
{
    fm_oid *want = fm_calloc(v->count + 1, sizeof *want),
           *tip = fm_calloc(v->count + 1, sizeof *tip);
    size_t tips = 0;
    uint64_t depth;
    if (!want || !tip) {
        fm_free(want);
        fm_free(tip);
        return FM_ENOMEM;
    }
    for (size_t i = 0; i < v->count; i++) {
        want[f->wants++] = v->wish[i].new_oid;
        if (fm_starts_with(v->from[i]->name, FMO_HEADS))
            tip[tips++] = v->wish[i].new_oid;
    }
    f->want = want;
    fm_status rc = depth_of(c, m, o, &depth);
    if (rc == FM_OK && f->lineage_only && !o->dry_run)
        rc = fmo_remote_promise(c, m->name);
    FM_THEN(rc, fm_remote_fetch(m->at, c->repo, f, out));
    if (rc == FM_OK && f->lineage_only && depth)
        rc = fmo_bring_newest(c, m, tip, tips, depth, out);
    fmo_ui_progress_end(c);
    FM_THEN(rc, o->dry_run ? tell_moves(c, v, true) : move_refs(c, m, v, f->lineage_only));
    fm_free(want);
    fm_free(tip);
    return rc;
}

fm_status fmo_fetch_from(fm_ops *c, fmo_remote *m, const fmo_refs *refs, const fm_fetch_opts *o,
                         fm_travel *out)
{
    moves v = {0};
    bool partial;
    char *only = fmo_remote_config(c, m->name, "lineageOnly");
    fm_fetch f = {.lineage_only = o->lineage_only || (only && strcmp(only, "true") == 0),
                  .dry_run = o->dry_run,
                  .progress = fmo_remote_progress,
                  .ctx = c};
    fm_free(only);
    memset(out, 0, sizeof *out);
    FM_TRY(check_names(m, refs, o));
    FM_TRY(fm_repo_partial(c->repo, &partial));
    /* A ref here reaches nothing that is missing; where the tensors of some were left out, a fetch
     * of all of them brings those. */
    fm_status rc = make_moves(c, m, refs, o, partial && !f.lineage_only, &v);
    FM_THEN(rc, bring(c, m, o, &f, &v, out));
    if ((rc == FM_OK || rc == FM_EREFUSED) && f.lineage_only && !o->dry_run) {
        const fm_status promised = promise_tags(c, m, refs, o);
        rc = promised == FM_OK ? rc : promised;
    }
    if (rc == FM_OK || rc == FM_EREFUSED) {
        const fm_status pruned = fmo_prune(c, m, refs, o, f.lineage_only);
        rc = pruned == FM_OK ? rc : pruned;
    }
    release_moves(&v);
    return rc;
}

/* ---- branches ---- */

/* Moves a branch as a push would: another pull that was first is no conflict. */
static fm_status move_branch(fm_ops *c, const struct fmo_ref *to, const fm_oid *old, bool dry_run,
                             char why[300])
{
    fm_ref_wish w = {.name = to->name, .new_oid = to->oid};
    if (old)
        w.old = *old;
    if (!dry_run) /* its tensors were looked at by the fetch */
        FM_TRY(fm_refs_move(c->repo, &w, 1, true, "pull"));
    if (w.status == FM_OK)
        fmo_ref_say(c, old ? "forwarded" : "new", to->name, to->name, old, &to->oid, NULL);
    else
        snprintf(why, 300, "%.255s", w.text);
    return FM_OK;
}

/* Forwards a branch to what was fetched; why: not empty where it could not be. */
static fm_status forward(fm_ops *c, const fmo_remote *m, const struct fmo_ref *to, bool dry_run,
                         char why[300])
{
    fm_oid old;
    bool behind, ahead;
    why[0] = '\0';
    fm_status rc = fm_ref_read(c->repo, &old, to->name);
    if (rc == FM_ENOTFOUND) {
        fm_error_clear();
        return move_branch(c, to, NULL, dry_run, why);
    }
    FM_TRY(rc);
    if (fm_oid_eq(&old, &to->oid))
        return FM_OK;
    FM_TRY(fm_is_ancestor(c->repo, &behind, &old, &to->oid));
    if (behind)
        return move_branch(c, to, &old, dry_run, why);
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
        if (!fm_starts_with(ref->name, FMO_HEADS) || !is_wanted(o, refs, ref->name))
            continue;
        FM_TRY(forward(c, m, ref, o->dry_run, why));
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
    if ((rc == FM_OK || rc == FM_EREFUSED) && pull) {
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
