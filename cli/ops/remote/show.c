/* show.c - the branches of a remote beside what is here of them. */
#include <stdio.h>
#include <string.h>

#include "cli/ops/base/remotes.h"
#include "store/base/mem.h"

fm_status fm_ops_remote_url(fm_ops *c, const char *name, char **out)
{
    FM_TRY(fmo_remote_needed(c, name));
    *out = fmo_remote_config(c, name, "url");
    return *out ? FM_OK : FM_ENOMEM;
}

static fm_status read_here(fm_ops *c, const char *name, fm_oid *out, bool *there)
{
    fm_status rc = fm_ref_read(c->repo, out, name);
    *there = rc == FM_OK;
    if (rc == FM_ENOTFOUND) {
        fm_error_clear();
        rc = FM_OK;
    }
    return rc;
}

/* Whether a branch here of the same name has versions that the remote's lacks, and how many. */
static fm_status compare(fm_ops *c, const char *head, fm_remote_branch *b)
{
    fm_oid ours;
    FM_TRY(read_here(c, head, &ours, &b->here));
    b->counted = b->here && fm_exchange_has(c->repo, &b->version);
    return b->counted ? fm_ahead_behind(c->repo, &b->ahead, &b->behind, &ours, &b->version) : FM_OK;
}

typedef struct showing {
    fm_ops *c;
    const fmo_remote *m;
    const fmo_refs *refs;
    fm_remote_branch_fn fn;
    void *ctx;
} showing;

static fm_status show_one(const showing *s, const struct fmo_ref *ref)
{
    char seen[FMO_REF_BYTES];
    fm_oid last;
    bool tracked;
    fm_remote_branch b = {.name = ref->name + strlen(FMO_HEADS), .version = ref->oid};
    snprintf(seen, sizeof seen, "refs/remotes/%.80s/%.200s", s->m->name, b.name);
    FM_TRY(read_here(s->c, seen, &last, &tracked));
    b.state = !tracked ? "new" : fm_oid_eq(&last, &ref->oid) ? "tracked" : "moved";
    FM_TRY(compare(s->c, ref->name, &b));
    return s->fn(s->ctx, &b);
}

static fm_status show_stale(void *ctx, const char *name, const fm_oid *oid)
{
    const showing *s = ctx;
    char head[FMO_REF_BYTES];
    fm_remote_branch b = {.state = "stale", .version = *oid};
    b.name = name + strlen("refs/remotes/") + strlen(s->m->name) + 1;
    snprintf(head, sizeof head, FMO_HEADS "%.250s", b.name);
    if (fmo_refs_find(s->refs, head))
        return FM_OK;
    FM_TRY(compare(s->c, head, &b));
    return s->fn(s->ctx, &b);
}

static fm_status show_all(const showing *s)
{
    char prefix[FMO_REF_BYTES];
    for (size_t i = 0; i < s->refs->count; i++)
        if (strncmp(s->refs->ref[i].name, FMO_HEADS, strlen(FMO_HEADS)) == 0)
            FM_TRY(show_one(s, &s->refs->ref[i]));
    snprintf(prefix, sizeof prefix, "refs/remotes/%.80s/", s->m->name);
    return fm_ref_each(s->c->repo, prefix, show_stale, (void *)(uintptr_t)s);
}

fm_status fm_ops_remote_show(fm_ops *c, const char *name, fm_remote_branch_fn fn, void *ctx)
{
    fmo_remote m;
    fmo_refs refs = {0};
    const showing s = {c, &m, &refs, fn, ctx};
    FM_TRY(fmo_remote_needed(c, name));
    FM_TRY(fmo_remote_open(c, &m, name, false));
    fm_status rc = fmo_refs_read(&m, &refs);
    FM_THEN(rc, show_all(&s));
    fmo_refs_release(&refs);
    fmo_remote_close(&m);
    return rc;
}
