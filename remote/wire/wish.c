/* wish.c - decides about the refs of a far side where no fmstore answers. */
#include "remote/wire/wish.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "store/base/cancel.h"

#define PAUSE_MS 20
#define HEADS "refs/heads/"
#define TAGS "refs/tags/"

bool fmr_is_no_oid(const fm_oid *oid)
{
    static const fm_oid no_oid;
    return fm_oid_eq(oid, &no_oid);
}

bool fmr_ref_is_shared(const char *name)
{
    return !fm_starts_with(name, HEADS) && !fm_starts_with(name, TAGS);
}

/* ---- results and notes ---- */

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

static fm_status bring_versions(fmr_far *f, const fm_oid *want)
{
    const fm_exchange_ask ask = {want, NULL, 1, 0};
    taking t = {f->repo, NULL};
    if (fm_exchange_has(f->repo, want))
        return FM_OK;
    fm_status rc = f->ops->git_get(f, &ask, take_git, &t);
    fm_git_intake_close(t.in);
    return rc;
}

fm_status fmr_unite(fmr_far *f, const char *name, const fm_oid *theirs, fm_oid *out)
{
    fm_repo *r = f->repo;
    fm_ref_wish here = {.name = name, .new_oid = *theirs, .any_old = true};
    FM_TRY(bring_versions(f, theirs));
    FM_TRY(fm_refs_move(r, &here, 1, true, "push"));
    if (here.status != FM_OK)
        return fm_fail(here.status, "%s: %s", name, here.text);
    FM_TRY(fm_ref_read_raw(r, out, name));
    if (fm_oid_eq(out, theirs))
        return FM_OK;
    const fm_exchange_ask ask = {out, theirs, 1, 1};
    return f->ops->git_put(f, r, &ask);
}

/* ---- one wish ---- */

fm_status fmr_wish_refuse(fm_ref_wish *w, fm_status status, const char *why)
{
    w->status = status;
    (void)snprintf(w->text, sizeof w->text, "%s", why);
    return FM_OK;
}

/* Whether the branch keeps all versions that it has there. */
static fm_status check_forward(fm_repo *here, fm_ref_wish *w, const fm_oid *now)
{
    bool forward = false;
    if (!fm_exchange_has(here, now))
        return fmr_wish_refuse(w, FM_EREFUSED,
                               "it has versions there that are not here; fetch first");
    FM_TRY(fm_is_ancestor(here, &forward, now, &w->new_oid));
    return forward ? FM_OK
                   : fmr_wish_refuse(w, FM_EREFUSED,
                                     "not a fast-forward: it would lose versions there");
}

fm_status fmr_wish_check(fm_repo *here, fm_ref_wish *w, const fm_oid *now)
{
    w->status = FM_OK;
    w->text[0] = '\0';
    if (!fm_exchange_ref_travels(w->name))
        return fmr_wish_refuse(w, FM_EREFUSED, "it is no branch, tag, note or result");
    if (fmr_ref_is_shared(w->name) && fmr_is_no_oid(&w->new_oid))
        return fmr_wish_refuse(w, FM_EREFUSED, "results and notes are merged, never deleted");
    if (!w->any_old && !fm_oid_eq(now, &w->old))
        return fmr_wish_refuse(w, FM_ECONFLICT, "it moved meanwhile; fetch, and push again");
    if (fmr_is_no_oid(now) || fmr_is_no_oid(&w->new_oid) || w->force)
        return FM_OK;
    if (fm_starts_with(w->name, TAGS))
        return fmr_wish_refuse(w, FM_EREFUSED, "the tag is there already, for another version");
    return fm_starts_with(w->name, HEADS) ? check_forward(here, w, now) : FM_OK;
}

fm_status fmr_wish_pause(unsigned tried)
{
    const unsigned most = FM_MIN(tried + 1, 16u);
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    const long ms = PAUSE_MS * (1 + (now.tv_nsec / 1000) % (long)most);
    const struct timespec wait = {0, ms * 1000000};
    (void)nanosleep(&wait, NULL);
    return fm_go_on();
}
