/* push.c - moves the refs of a git host, each by compare-and-swap.
 *
 * git's --force-with-lease is the swap: it names what the ref must hold. Whether a branch goes
 * forward is found out here before (wish.h), as with a bucket. */
#include <stdio.h>
#include <string.h>

#include "remote/githost/githost_impl.h"
#include "remote/wire/wish.h"
#include "store/base/mem.h"
#include "store/base/os/io.h"

#define TRIES_MAX 64u
#define REFS_AT_ONCE 256u /* of one command line */
#define REPORT_BYTES_MAX ((size_t)64 << 20)

typedef struct change {
    char name[256];
    fm_oid to, old;
    bool told, moved;
    char why[256];
    size_t of; /* the number of its wish */
} change;

/* ---- git push ---- */

typedef struct batch {
    change *change;
    size_t count;
} batch;

static void take_outcome(void *ctx, const char *name, bool moved, const char *why)
{
    const batch *b = ctx;
    for (size_t i = 0; i < b->count; i++) {
        change *c = &b->change[i];
        if (strcmp(c->name, name) != 0)
            continue;
        c->told = true;
        c->moved = moved;
        (void)snprintf(c->why, sizeof c->why, "%s", why);
    }
}

static void add_lease(fmr_call *c, const change *of)
{
    char old[41] = "";
    if (!fmr_is_no_oid(&of->old))
        fm_oid_hex(&of->old, old);
    fmr_call_add(c, "--force-with-lease=%s:%s", of->name, old);
}

static void add_spec(fmr_call *c, const change *of)
{
    char to[41] = "";
    if (!fmr_is_no_oid(&of->to))
        fm_oid_hex(&of->to, to);
    fmr_call_add(c, "%s:%s", to, of->name);
}

/* What the host itself says stands behind git's words, for each ref that it refused. */
static void add_words(const batch *b, const fmr_git_run *run)
{
    char said[200];
    fmr_call_words(run, true, said, sizeof said);
    for (size_t i = 0; i < b->count && said[0]; i++) {
        change *c = &b->change[i];
        const size_t had = strlen(c->why);
        if (!c->moved && had + 4 < sizeof c->why)
            (void)snprintf(c->why + had, sizeof c->why - had, "%s%s", had ? ": " : "", said);
    }
}

static fm_status push_batch(fmr_githost *h, fm_repo *from, batch *b)
{
    fmr_call c;
    fm_buf report;
    fm_staging *staging;
    FM_TRY(fm_staging_make(&staging, from));
    const char *dir = fm_staging_dir(staging);
    fm_status rc = fmr_githost_repo(dir, fm_repo_path(from), true);
    fm_buf_init(&report, REPORT_BYTES_MAX);
    fmr_call_init(&c, h, dir);
    fmr_call_add(&c, "push");
    fmr_call_add(&c, "--porcelain");
    fmr_call_add(&c, "--no-verify");
    for (size_t i = 0; i < b->count; i++)
        add_lease(&c, &b->change[i]);
    fmr_call_add(&c, "--");
    fmr_call_add(&c, "%s", h->url);
    for (size_t i = 0; i < b->count; i++)
        add_spec(&c, &b->change[i]);
    fmr_git_run run = {.answer = &report};
    FM_THEN(rc, fmr_call_run(&c, h, &run));
    bool any = false;
    if (rc == FM_OK || rc == FM_EIO) {
        fmr_push_report(fm_buf_span(&report), take_outcome, b);
        add_words(b, &run);
        for (size_t i = 0; i < b->count; i++)
            any = any || b->change[i].told;
    }
    if (rc == FM_EIO && any) /* git says of each ref what became of it */
        rc = FM_OK;
    else if (rc == FM_OK && run.code != 0 && !any)
        rc = fm_fail(FM_EIO, "%s: git push said nothing of what became of the refs", h->shown);
    fmr_call_release(&c);
    fm_buf_release(&report);
    fm_staging_end(staging);
    return rc;
}

static fm_status push_all(fmr_githost *h, fm_repo *from, change *all, size_t count)
{
    for (size_t at = 0; at < count; at += REFS_AT_ONCE) {
        batch b = {all + at, FM_MIN(count - at, (size_t)REFS_AT_ONCE)};
        FM_TRY(push_batch(h, from, &b));
    }
    return FM_OK;
}

/* ---- the packs, and versions that no branch reaches ---- */

typedef struct keeping {
    const fmr_githost *h;
    change *change;
    size_t count, cap;
} keeping;

static fm_status keep_one(void *ctx, const fm_oid *oid)
{
    keeping *k = ctx;
    char hex[41];
    for (size_t i = 0; i < k->h->refs.kept_count; i++)
        if (fm_oid_eq(&k->h->refs.kept[i], oid))
            return FM_OK;
    FM_TRY(fm_grow(&k->change, &k->cap, k->count + 1, sizeof *k->change));
    change *c = &k->change[k->count++];
    fm_oid_hex(oid, hex);
    *c = (change){.to = *oid};
    (void)snprintf(c->name, sizeof c->name, FMR_KEPT "%s", hex);
    return FM_OK;
}

/* Another push may have made the same one; then git says that it is up to date. */
static fm_status push_kept(fmr_githost *h, fm_repo *from, const fm_exchange_ask *ask)
{
    keeping k = {.h = h};
    fm_status rc = fm_exchange_named(from, ask, keep_one, &k);
    if (rc == FM_OK && k.count)
        rc = push_all(h, from, k.change, k.count);
    for (size_t i = 0; rc == FM_OK && i < k.count; i++)
        if (!k.change[i].moved)
            rc = fm_fail(FM_EREFUSED,
                         "%s: refuses %s, which versions name by its id and no branch reaches (%s)",
                         h->shown, k.change[i].name, k.change[i].why);
    fm_free(k.change);
    return rc;
}

/* git push makes the git pack; here goes what must be there before the refs. */
fm_status fmr_githost_put(fmr_far *f, fm_repo *from, const fm_exchange_ask *ask)
{
    fmr_githost *h = fmr_githost_of(f);
    if (!h->listed)
        FM_TRY(fmr_githost_list(h));
    FM_TRY(fmr_githost_bucket(h));
    FM_TRY(h->bucket->ops->move(h->bucket, NULL, 0));
    return push_kept(h, from, ask);
}

/* ---- wishes ---- */

static fm_oid now_of(const fmr_githost *h, const char *name)
{
    const struct fmr_host_ref *ref = fmr_host_refs_find(&h->refs, name);
    return ref ? ref->oid : (fm_oid){{0}};
}

/* *wanted: there is something to push. */
static fm_status decide(fmr_githost *h, fm_ref_wish *w, change *c, bool *wanted)
{
    const fm_oid now = now_of(h, w->name);
    *c = (change){.to = w->new_oid, .old = now};
    *wanted = false;
    w->status = FM_OK;
    w->text[0] = '\0';
    if (fm_oid_eq(&now, &w->new_oid))
        return FM_OK;
    if (fmr_ref_is_shared(w->name) && !fmr_is_no_oid(&now) && !fmr_is_no_oid(&w->new_oid) &&
        fm_exchange_ref_travels(w->name)) {
        FM_TRY(fmr_unite(&h->far, w->name, &now, &c->to));
    } else {
        FM_TRY(fmr_wish_check(h->far.repo, w, &now));
    }
    if (w->status == FM_OK && strlen(w->name) >= sizeof c->name)
        return fmr_wish_refuse(w, FM_EREFUSED, "its name is too long");
    *wanted = w->status == FM_OK && !fm_oid_eq(&c->to, &now);
    (void)snprintf(c->name, sizeof c->name, "%.255s", w->name);
    return FM_OK;
}

/* Of a ref that git did not move, after the host's refs were read anew. *again: another push was
 * first, and it is tried once more. */
static fm_status settle(const fmr_githost *h, fm_ref_wish *w, const change *c, bool *again)
{
    const fm_oid now = now_of(h, w->name);
    *again = !fm_oid_eq(&now, &c->old) && !fm_oid_eq(&now, &c->to) &&
             (fmr_ref_is_shared(w->name) || w->any_old);
    if (fm_oid_eq(&now, &c->to) || *again)
        return FM_OK;
    if (!fm_oid_eq(&now, &c->old))
        return fmr_wish_refuse(w, FM_ECONFLICT, "it moved meanwhile; fetch, and push again");
    return fmr_wish_refuse(w, FM_EREFUSED, c->why[0] ? c->why : "the host does not say why");
}

/* Pushes those of the wishes that are pending; those that are left are tried again. */
static fm_status try_once(fmr_githost *h, fm_ref_wish *wish, bool *pending, size_t count,
                          change *made, size_t *left)
{
    size_t n = 0, refused = 0;
    for (size_t i = 0; i < count; i++) {
        bool wanted = false;
        if (pending[i])
            FM_TRY(decide(h, &wish[i], &made[n], &wanted));
        pending[i] = false;
        made[n].of = i;
        n += wanted;
    }
    *left = 0;
    FM_TRY(push_all(h, h->far.repo, made, n));
    for (size_t i = 0; i < n; i++)
        refused += !made[i].moved;
    if (refused)
        FM_TRY(fmr_githost_list(h));
    for (size_t i = 0; i < n; i++) {
        bool again = false;
        if (!made[i].moved)
            FM_TRY(settle(h, &wish[made[i].of], &made[i], &again));
        pending[made[i].of] = again;
        *left += again;
    }
    return FM_OK;
}

fm_status fmr_githost_move(fmr_far *f, fm_ref_wish *wish, size_t count)
{
    fmr_githost *h = fmr_githost_of(f);
    bool *pending = fm_calloc(count + 1, sizeof *pending);
    change *made = fm_calloc(count + 1, sizeof *made);
    size_t left = count;
    fm_assert(f->repo);
    fm_status rc = pending && made ? FM_OK : FM_ENOMEM;
    if (rc == FM_OK && !h->listed)
        rc = fmr_githost_list(h);
    for (size_t i = 0; rc == FM_OK && i < count; i++)
        pending[i] = true;
    for (unsigned tried = 0; rc == FM_OK && left > 0; tried++) {
        if (tried == TRIES_MAX)
            rc = fm_fail(FM_ECONFLICT, "%s: others push all the time; try again", h->shown);
        if (tried > 0)
            FM_THEN(rc, fmr_wish_pause(tried));
        FM_THEN(rc, try_once(h, wish, pending, count, made, &left));
    }
    fm_free(pending);
    fm_free(made);
    h->listed = false;
    return rc;
}
