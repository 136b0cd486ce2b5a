/* move.c - the refs of a bucket move: its manifest is replaced by compare-and-swap.
 *
 * The one who loses reads the manifest anew, looks at each wish again, and tries again with those
 * that still hold. Whether a branch goes forward is found out here, where its versions are. */
#include <string.h>

#include "remote/bucket/bucket_impl.h"
#include "remote/wire/wish.h"

#define TRIES_MAX 64u
#define TAGS "refs/tags/"

/* ---- one wish ---- */

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
    const fm_oid now = ref ? ref->oid : (fm_oid){{0}};
    fm_oid to = w->new_oid, commit = {{0}};
    w->status = FM_OK;
    w->text[0] = '\0';
    if (fm_oid_eq(&now, &w->new_oid))
        return FM_OK;
    if (fmr_ref_is_shared(w->name) && !fmr_is_no_oid(&now) && !fmr_is_no_oid(&to) &&
        fm_exchange_ref_travels(w->name)) {
        FM_TRY(fmr_unite(&b->far, w->name, &now, &to));
        *changed = *changed || !fm_oid_eq(&to, &now);
        return fmr_manifest_set_ref(&b->manifest, w->name, &to, &commit);
    }
    FM_TRY(fmr_wish_check(b->far.repo, w, &now));
    if (strlen(w->name) > FMR_REF_NAME_MAX)
        return fmr_wish_refuse(w, FM_EREFUSED, "its name is too long");
    if (w->status != FM_OK)
        return FM_OK;
    peeled p = {&to, &commit};
    if (strncmp(w->name, TAGS, strlen(TAGS)) == 0)
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

fm_status fmr_bucket_move(fmr_far *f, fm_ref_wish *wish, size_t count)
{
    fmr_bucket *b = fmr_bucket_of(f);
    fm_assert(f->repo);
    for (unsigned tried = 0; tried < TRIES_MAX; tried++) {
        /* Without wishes it is the packs alone: a git host has the refs. */
        bool changed = false, granted = count == 0, done = false;
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
        FM_TRY(fmr_wish_pause(tried));
    }
    return fm_fail(FM_ECONFLICT, "%s: others push all the time; try again", b->door->shown);
}
