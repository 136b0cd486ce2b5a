/* remotes.h - shared by the operations on remotes: names, opening, what is told of a ref. */
#ifndef FM_OPS_REMOTES_H
#define FM_OPS_REMOTES_H

#include "cli/ops/base/say.h"
#include "cli/ops/remote.h"

/* A remote that is opened. */
typedef struct fmo_remote {
    char *name; /* NULL: given by its URL, so it has no refs/remotes */
    char *url, *packs; /* packs: NULL: url has all */
    fm_remote *at;
} fmo_remote;
/* given: a name, a URL, or NULL. FM_ENOTFOUND says how to add a remote. */
fm_status fmo_remote_open(fm_ops *c, fmo_remote *out, const char *given, bool write);
void fmo_remote_close(fmo_remote *m);
fm_status fmo_remote_name_check(const char *name);
fm_status fmo_remote_needed(fm_ops *c,
                            const char *name); /* FM_ENOTFOUND: no remote has this name */
/* REPO/config's remote.<name>.<key>; NULL: unset. fm_free. */
char *fmo_remote_config(fm_ops *c, const char *name, const char *key);

/* This repository holds versions without their tensors from now on, and the remote has those. */
fm_status fmo_remote_promise(fm_ops *c, const char *name);

/* The refs that a remote holds. */
typedef struct fmo_refs {
    struct fmo_ref {
        char *name;
        fm_oid oid; /* of an annotated tag: the tag's own */
    } * ref;
    size_t count, cap;
} fmo_refs;
fm_status fmo_refs_read(fmo_remote *m, fmo_refs *out);
void fmo_refs_release(fmo_refs *refs);
const struct fmo_ref *fmo_refs_find(const fmo_refs *refs, const char *name);

#define FMO_REF_BYTES 300u
#define FMO_HEADS "refs/heads/"
#define FMO_TAGS "refs/tags/"
bool fmo_oid_is_none(const fm_oid *oid);
/* "origin/x" of a tracking ref, "x" of a branch or tag. */
const char *fmo_ref_short(const char *name);
/* "new", "deleted", "up to date", "forwarded", or "forced": old is no ancestor of new_oid. Zeros:
 * none. */
const char *fmo_ref_outcome(fm_ops *c, const fm_oid *old, const fm_oid *new_oid);
/* Tells one line and one result; old or new_oid NULL: there is none. */
void fmo_ref_say(fm_ops *c, const char *outcome, const char *from, const char *to,
                 const fm_oid *old, const fm_oid *new_oid, const char *text);
bool fmo_remote_progress(void *ctx, uint64_t done, uint64_t total); /* ctx: the fm_ops */

/* Fetches and moves the refs under refs/remotes/, tags, notes and results; branches not. refs: what
 * the remote holds. */
fm_status fmo_fetch_from(fm_ops *c, fmo_remote *m, const fmo_refs *refs, const fm_fetch_opts *o,
                         fm_travel *out);
/* Makes and forwards branches after a fetch. */
fm_status fmo_forward_branches(fm_ops *c, const fmo_remote *m, const fmo_refs *refs,
                               const fm_fetch_opts *o);

#endif
