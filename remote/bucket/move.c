/* move.c - the refs of a bucket move: its manifest is replaced by compare-and-swap.
 *
 * The one who loses reads the manifest anew, looks at each wish again, and tries again with those
 * that still hold. Whether a branch goes forward is found out here, where its versions are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "remote/bucket/bucket_impl.h"
#include "store/base/cancel.h"
#include "store/base/mem.h"

#define TRIES_MAX 64u
#define PAUSE_MS 20
#define HEADS "refs/heads/"
#define TAGS "refs/tags/"

static const fm_oid no_oid;

static bool is_none(const fm_oid *oid)
{
    return fm_oid_eq(oid, &no_oid);
}

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* ---- results and notes ---- */

static bool is_shared(const char *name)
{
    return !starts(name, HEADS) && !starts(name, TAGS);
}

typedef struct taking {
    fm_repo *repo;
    fm_git_intake *in;
} taking;

static fm_status take_git(void *ctx, const void *data, size_t len)
{
    taking *t = ctx;
    if (!t->in)
        FM_TRY(fm_git_intake_open(&t->in, t->repo, 0));
    if (data)
        return fm_git_intake_bytes(t->in, data, len);
    FM_TRY(fm_git_intake_end(t->in, NULL));
    fm_git_intake_close(t->in);
    t->in = NULL;
    return FM_OK;
}

static fm_status bring_versions(fmr_bucket *b, const fm_oid *want)
{
    const fm_exchange_ask ask = {want, NULL, 1, 0};
    taking t = {b->far.repo, NULL};
    if (fm_exchange_has(b->far.repo, want))
        return FM_OK;
    fm_status rc = fmr_bucket_git_get(&b->far, &ask, take_git, &t);
    fm_git_intake_close(t.in);
    return rc;
}

/* The union of what the bucket has with what is here: made here, and pushed. */
static fm_status unite(fmr_bucket *b, const char *name, const fm_oid *theirs, fm_oid *out)
{
    fm_repo *r = b->far.repo;
    fm_ref_wish here = {.name = name, .new_oid = *theirs, .any_old = true};
    FM_TRY(bring_versions(b, theirs));
    FM_TRY(fm_refs_move(r, &here, 1, true, "push"));
    if (here.status != FM_OK)
        return fm_fail(here.status, "%s: %s", name, here.text);
    FM_TRY(fm_ref_read_raw(r, out, name));
    if (fm_oid_eq(out, theirs))
        return FM_OK;
    const fm_exchange_ask ask = {out, theirs, 1, 1};
    return fmr_bucket_git_put(&b->far, r, &ask);
}

/* ---- one wish ---- */

static fm_status refuse(fm_ref_wish *w, fm_status status, const char *why)
{
    w->status = status;
    (void)snprintf(w->text, sizeof w->text, "%s", why);
    return FM_OK;
}

/* Whether the branch keeps all versions that it has there. */
static fm_status check_forward(fmr_bucket *b, fm_ref_wish *w, const fm_oid *now)
{
    bool forward = false;
    if (!fm_exchange_has(b->far.repo, now))
        return refuse(w, FM_EREFUSED, "it has versions there that are not here; fetch first");
    FM_TRY(fm_is_ancestor(b->far.repo, &forward, now, &w->new_oid));
    return forward ? FM_OK
                   : refuse(w, FM_EREFUSED, "not a fast-forward: it would lose versions there");
}

static fm_status check(fmr_bucket *b, fm_ref_wish *w, const fm_oid *now)
{
    if (!fm_exchange_ref_travels(w->name) || strlen(w->name) > FMR_REF_NAME_MAX)
        return refuse(w, FM_EREFUSED, "it is no branch, tag, note or result");
    if (is_shared(w->name) && is_none(&w->new_oid))
        return refuse(w, FM_EREFUSED, "results and notes are merged, never deleted");
    if (!w->any_old && !fm_oid_eq(now, &w->old))
        return refuse(w, FM_ECONFLICT, "it moved meanwhile; fetch, and push again");
    if (is_none(now) || is_none(&w->new_oid) || w->force)
        return FM_OK;
    if (starts(w->name, TAGS))
        return refuse(w, FM_EREFUSED, "the tag is there already, for another version");
    return starts(w->name, HEADS) ? check_forward(b, w, now) : FM_OK;
}

typedef struct peeled {
    const fm_oid *oid;
    fm_oid *out;
} peeled;

static fm_status peel_one(void *ctx, const char *name, const fm_oid *oid, const fm_oid *commit)
{
    const peeled *p = ctx;
    (void)name;
    if (fm_oid_eq(oid, p->oid))
        *p->out = *commit;
    return FM_OK;
}

/* *changed: the manifest has it now. */
static fm_status try_wish(fmr_bucket *b, fm_ref_wish *w, bool *changed)
{
    const struct fmr_bucket_ref *ref = fmr_manifest_ref(&b->manifest, w->name);
    const fm_oid now = ref ? ref->oid : no_oid;
    fm_oid to = w->new_oid, commit = no_oid;
    w->status = FM_OK;
    w->text[0] = '\0';
    if (fm_oid_eq(&now, &w->new_oid))
        return FM_OK;
    if (is_shared(w->name) && !is_none(&now) && !is_none(&to) && fm_exchange_ref_travels(w->name)) {
        FM_TRY(unite(b, w->name, &now, &to));
        *changed = *changed || !fm_oid_eq(&to, &now);
        return fmr_manifest_set_ref(&b->manifest, w->name, &to, &commit);
    }
    FM_TRY(check(b, w, &now));
    if (w->status != FM_OK)
        return FM_OK;
    peeled p = {&to, &commit};
    if (starts(w->name, TAGS))
        FM_TRY(fm_exchange_refs(b->far.repo, peel_one, &p));
    *changed = true;
    return fmr_manifest_set_ref(&b->manifest, w->name, &to, &commit);
}

/* ---- the manifest ---- */

static fm_status add_fresh(fmr_bucket *b)
{
    const fmr_manifest *n = &b->fresh;
    for (size_t i = 0; i < n->packs; i++)
        FM_TRY(fmr_manifest_add_pack(&b->manifest, &n->pack[i]));
    for (size_t i = 0; i < n->gits; i++)
        FM_TRY(fmr_manifest_add_git(&b->manifest, &n->git[i].name, n->git[i].bytes, n->git[i].tip,
                                    n->git[i].tips));
    return FM_OK;
}

/* After a lost answer the swap may have been made all the same: then what is there is ours. */
static fm_status is_ours(fmr_bucket *b, const fm_buf *ours, bool *yes)
{
    fm_buf now;
    fm_buf_init(&now, FMR_MANIFEST_MAX);
    fm_status rc = b->door->ops->get(b->door, FMR_MANIFEST_NAME, 0, 0, &now, NULL);
    *yes = rc == FM_OK && fm_span_eq(fm_buf_span(&now), fm_buf_span(ours));
    fm_buf_release(&now);
    return rc;
}

/* *done false: another push was first, and the manifest is the one that it made. */
static fm_status swap(fmr_bucket *b, bool *done)
{
    fm_buf text;
    *done = false;
    fm_buf_init(&text, FMR_MANIFEST_MAX);
    fm_status rc = add_fresh(b);
    FM_THEN(rc, fmr_manifest_write(&b->manifest, &text));
    if (rc == FM_OK) {
        rc = b->door->ops->put(b->door, FMR_MANIFEST_NAME, fm_buf_span(&text), b->tag);
        *done = rc == FM_OK;
    }
    if (rc == FM_ECONFLICT) {
        fm_error_clear();
        rc = is_ours(b, &text, done);
        if (rc == FM_OK && !*done)
            rc = fmr_bucket_load(b);
        if (rc == FM_OK && !*done)
            rc = fmr_bucket_list(b);
    }
    fm_buf_release(&text);
    return rc;
}

/* The two who collided must not collide again. */
static fm_status pause_a_little(unsigned tried)
{
    const unsigned most = FM_MIN(tried + 1, 16u);
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    const long ms = PAUSE_MS * (1 + (now.tv_nsec / 1000) % (long)most);
    const struct timespec wait = {0, ms * 1000000};
    (void)nanosleep(&wait, NULL);
    return fm_go_on();
}

fm_status fmr_bucket_move(fmr_far *f, fm_ref_wish *wish, size_t count)
{
    fmr_bucket *b = fmr_bucket_of(f);
    fm_assert(f->repo);
    for (unsigned tried = 0; tried < TRIES_MAX; tried++) {
        bool changed = false, granted = false, done = false;
        for (size_t i = 0; i < count; i++) {
            FM_TRY(try_wish(b, &wish[i], &changed));
            granted = granted || wish[i].status == FM_OK;
        }
        /* A ref that is there already may have been mended: new packs count as well. */
        if (!changed && (!granted || b->fresh.packs + b->fresh.gits == 0))
            return FM_OK;
        FM_TRY(swap(b, &done));
        if (done)
            return FM_OK;
        FM_TRY(pause_a_little(tried));
    }
    return fm_fail(FM_ECONFLICT, "%s: others push all the time; try again", b->door->shown);
}
