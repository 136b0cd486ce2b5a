/* push.c - push: what the other side lacks goes out, then its refs move. */
#include <stdio.h>
#include <string.h>

#include "cli/ops/base/remotes.h"
#include "store/base/mem.h"

#define RESULTS "refs/fmstore/results"
#define NOTES "refs/notes/fmstore"

typedef struct pushing {
    fm_ops *c;
    const fm_push_opts *o;
    fmo_remote m;
    fmo_refs theirs;
    struct plan {
        char from[FMO_REF_BYTES], to[FMO_REF_BYTES];
    } * plan;
    fm_ref_wish *wish;
    size_t count, plan_cap, wish_cap;
    size_t settled; /* the last so many are there already */
} pushing;

static fm_status read_ours(fm_ops *c, const char *name, fm_oid *out)
{
    memset(out, 0, sizeof *out);
    fm_status rc = fm_ref_read_raw(c->repo, out, name);
    if (rc == FM_ENOTFOUND) {
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

/* With a lease the branch must hold what was fetched last. */
static fm_status expected(pushing *p, const char *to, fm_oid *old)
{
    const struct fmo_ref *ref = fmo_refs_find(&p->theirs, to);
    char seen[FMO_REF_BYTES];
    memset(old, 0, sizeof *old);
    if (p->o->lease && p->m.name && fm_starts_with(to, FMO_HEADS)) {
        snprintf(seen, sizeof seen, "refs/remotes/%.80s/%.200s", p->m.name, to + strlen(FMO_HEADS));
        return read_ours(p->c, seen, old);
    }
    if (ref)
        *old = ref->oid;
    return FM_OK;
}

static fm_status add(pushing *p, const char *from, const char *to)
{
    FM_TRY(fm_grow(&p->plan, &p->plan_cap, p->count + 1, sizeof *p->plan));
    FM_TRY(fm_grow(&p->wish, &p->wish_cap, p->count + 1, sizeof *p->wish));
    struct plan *plan = &p->plan[p->count];
    fm_ref_wish *w = &p->wish[p->count];
    memset(w, 0, sizeof *w);
    snprintf(plan->from, sizeof plan->from, "%s", from);
    snprintf(plan->to, sizeof plan->to, "%s", to);
    if (*from) {
        FM_TRY(read_ours(p->c, from, &w->new_oid));
        if (fmo_oid_is_none(&w->new_oid))
            return fm_fail(FM_ENOTFOUND, "there is no '%s' to push", fmo_ref_short(from));
    }
    if (!*from && !fmo_refs_find(&p->theirs, to))
        return fm_fail(FM_ENOTFOUND, "the remote has no '%s' to delete", fmo_ref_short(to));
    if (*from && (fm_starts_with(to, FMO_HEADS) || fm_starts_with(to, FMO_TAGS)))
        FM_TRY(fm_branch_name_fit(fmo_ref_short(to)));
    w->force =
        p->o->lease && fm_starts_with(to, FMO_HEADS); /* a release that moves is deleted first */
    FM_TRY(expected(p, to, &w->old));
    p->count++;
    return FM_OK;
}

/* The whole name of a branch, else of a tag. */
static fm_status whole_name(pushing *p, char out[FMO_REF_BYTES], const char *name, bool must_exist)
{
    fm_oid oid;
    if (fm_starts_with(name, "refs/")) {
        snprintf(out, FMO_REF_BYTES, "%s", name);
        return fm_exchange_ref_travels(out)
                   ? FM_OK
                   : fm_fail(FM_EINVAL, "'%.100s' is no branch, tag, note or result", name);
    }
    FM_TRY(fm_branch_name_check(name));
    snprintf(out, FMO_REF_BYTES, FMO_TAGS "%s", name);
    FM_TRY(read_ours(p->c, out, &oid));
    const bool is_tag = !fmo_oid_is_none(&oid) || fmo_refs_find(&p->theirs, out);
    char head[FMO_REF_BYTES];
    snprintf(head, sizeof head, FMO_HEADS "%s", name);
    FM_TRY(read_ours(p->c, head, &oid));
    if (!is_tag || !fmo_oid_is_none(&oid) || (!must_exist && fmo_refs_find(&p->theirs, head)))
        memcpy(out, head, sizeof head);
    return FM_OK;
}

static fm_status add_spec(pushing *p, const char *spec)
{
    char from[FMO_REF_BYTES] = "", to[FMO_REF_BYTES], word[FMO_REF_BYTES];
    const char *colon = strchr(spec, ':');
    const size_t n = colon ? (size_t)(colon - spec) : strlen(spec);
    if (strlen(spec) > 250 || !*spec || (colon && (!colon[1] || strchr(colon + 1, ':'))))
        return fm_fail(FM_EINVAL, "'%.100s' is none of NAME, SRC:DST and :DST", spec);
    memcpy(word, spec, n);
    word[n] = '\0';
    if (n)
        FM_TRY(whole_name(p, from, word, true));
    if (!colon)
        memcpy(to, from, sizeof to);
    else if (n && !fm_starts_with(colon + 1, "refs/")) /* as what is pushed: a branch, or a tag */
        snprintf(to, sizeof to, "%s%.250s", fm_starts_with(from, FMO_TAGS) ? FMO_TAGS : FMO_HEADS,
                 colon + 1);
    else
        FM_TRY(whole_name(p, to, colon + 1, false));
    return add(p, from, to);
}

static fm_status add_one(void *ctx, const char *name, const fm_oid *oid, const fm_oid *peeled)
{
    pushing *p = ctx;
    (void)oid;
    (void)peeled;
    if (fm_starts_with(name, FMO_HEADS) || fm_starts_with(name, FMO_TAGS))
        return add(p, name, name);
    return FM_OK;
}

/* Results and notes go along, where there are any that the other side may lack. */
static fm_status add_shared(pushing *p, const char *name)
{
    const struct fmo_ref *ref = fmo_refs_find(&p->theirs, name);
    fm_oid ours;
    FM_TRY(read_ours(p->c, name, &ours));
    if (fmo_oid_is_none(&ours) || (ref && fm_oid_eq(&ref->oid, &ours)))
        return FM_OK;
    return add(p, name, name);
}

static bool is_settled(const pushing *p, size_t i)
{
    const struct fmo_ref *ref = fmo_refs_find(&p->theirs, p->plan[i].to);
    return ref && fm_oid_eq(&ref->oid, &p->wish[i].new_oid);
}

/* Puts what is there already last. */
static void settle(pushing *p)
{
    for (size_t i = p->count; i-- > 0;) {
        if (!is_settled(p, i))
            continue;
        const size_t last = p->count - ++p->settled;
        const struct plan plan = p->plan[i];
        const fm_ref_wish wish = p->wish[i];
        p->plan[i] = p->plan[last];
        p->wish[i] = p->wish[last];
        p->plan[last] = plan;
        p->wish[last] = wish;
        p->wish[last].old = wish.new_oid;
    }
    for (size_t i = 0; i < p->count; i++)
        p->wish[i].name = p->plan[i].to;
}

static fm_status make_plan(pushing *p)
{
    if (!p->o->all && p->o->count == 0)
        return fm_fail(FM_EINVAL, "name the branches or tags to push, or say --all");
    if (p->o->all)
        FM_TRY(fm_exchange_refs(p->c->repo, add_one, p));
    for (size_t i = 0; i < p->o->count; i++)
        FM_TRY(add_spec(p, p->o->spec[i]));
    FM_TRY(fm_result_flush(p->c->repo));
    FM_TRY(add_shared(p, RESULTS));
    FM_TRY(add_shared(p, NOTES));
    settle(p);
    return FM_OK;
}

/* ---- after it ---- */

/* The branch is where we put it: origin/x says so. */
static fm_status note_seen(pushing *p, const fm_ref_wish *w)
{
    char name[FMO_REF_BYTES];
    fm_ref_wish seen = {.name = name, .new_oid = w->new_oid, .any_old = true, .force = true};
    if (!p->m.name || !fm_starts_with(w->name, FMO_HEADS))
        return FM_OK;
    snprintf(name, sizeof name, "refs/remotes/%.80s/%.200s", p->m.name,
             w->name + strlen(FMO_HEADS));
    return fm_refs_move(p->c->repo, &seen, 1, true, "push");
}

/* What the remote would say to a wish, as its refs are now. */
static void foretell(pushing *p, fm_ref_wish *w)
{
    const struct fmo_ref *ref = fmo_refs_find(&p->theirs, w->name);
    static const fm_oid none;
    const char *why = NULL;
    const bool moved = !fm_oid_eq(ref ? &ref->oid : &none, &w->old);
    if (moved && fm_starts_with(w->name, FMO_HEADS))
        why = "it moved since it was fetched: fetch and try again";
    else if (ref && fm_starts_with(w->name, FMO_TAGS) && !fmo_oid_is_none(&w->new_oid))
        why = "the tag is there and holds another version: tags do not move";
    else if (!w->force && fm_starts_with(w->name, FMO_HEADS) &&
             strcmp(fmo_ref_outcome(p->c, &w->old, &w->new_oid), "forced") == 0)
        why = "not a fast-forward: fetch and merge, or --force-with-lease";
    if (!why)
        return;
    w->status = FM_EREFUSED;
    snprintf(w->text, sizeof w->text, "%s", why);
}

static fm_status tell(pushing *p)
{
    size_t refused = 0;
    for (size_t i = 0; i < p->count; i++) {
        fm_ref_wish *w = &p->wish[i];
        const bool gone = fmo_oid_is_none(&w->new_oid);
        const bool shared =
            !fm_starts_with(w->name, FMO_HEADS) && !fm_starts_with(w->name, FMO_TAGS);
        const char *from = gone ? w->name : p->plan[i].from;
        if (p->o->dry_run && i < p->count - p->settled)
            foretell(p, w);
        if (w->status != FM_OK) {
            fmo_ref_say(p->c, "refused", from, w->name, &w->old, &w->new_oid, w->text);
            refused++;
            continue;
        }
        if (!p->o->dry_run)
            FM_TRY(note_seen(p, w));
        if (!shared)
            fmo_ref_say(p->c, fmo_ref_outcome(p->c, &w->old, &w->new_oid), from, w->name,
                        gone ? NULL : &w->old, gone ? NULL : &w->new_oid, NULL);
    }
    return refused ? fm_fail(FM_EREFUSED, "%zu of %zu refs %s refused", refused, p->count,
                             refused == 1 ? "was" : "were")
                   : FM_OK;
}

static fm_status send(pushing *p, fm_travel *out)
{
    fm_oid *theirs = fm_calloc(p->theirs.count + 1, sizeof *theirs);
    fm_push push = {.wish = p->wish,
                    .count = p->count,
                    .settled = p->settled,
                    .theirs = theirs,
                    .their_count = p->theirs.count,
                    .dry_run = p->o->dry_run,
                    .progress = fmo_remote_progress,
                    .ctx = p->c};
    if (!theirs)
        return FM_ENOMEM;
    for (size_t i = 0; i < p->theirs.count; i++)
        theirs[i] = p->theirs.ref[i].oid;
    fm_status rc = fm_remote_push(p->m.at, p->c->repo, &push, out);
    fmo_ui_progress_end(p->c);
    fm_free(theirs);
    return rc;
}

fm_status fm_ops_push(fm_ops *c, const fm_push_opts *o, fm_travel *out)
{
    pushing p = {.c = c, .o = o};
    memset(out, 0, sizeof *out);
    c->stopped = false;
    FM_TRY(fm_ops_lease(c, true, "a push"));
    fm_status rc = fmo_remote_open(c, &p.m, o->remote, true);
    if (rc == FM_OK && o->lease && !p.m.name)
        rc = fm_fail(FM_EINVAL,
                     "--force-with-lease compares with what was fetched last, so it wants "
                     "a remote's name, not a URL");
    FM_THEN(rc, fmo_refs_read(&p.m, &p.theirs));
    FM_THEN(rc, make_plan(&p));
    FM_THEN(rc, send(&p, out));
    FM_THEN(rc, tell(&p));
    fm_free(p.plan);
    fm_free(p.wish);
    fmo_refs_release(&p.theirs);
    fmo_remote_close(&p.m);
    return rc;
}
