/* exchange.h - versions travel between repositories as packs of git objects; what their pointers
 * name travels by store/exchange.h.
 *
 * The receiver checks everything before a ref moves: the pack's own checksums, that each new
 * version is connected (every git object that it reaches is here) and that each pointer's object
 * is stored. The ref is the only commit point; a lease keeps what arrived until then. */
#ifndef FM_LINEAGE_EXCHANGE_H
#define FM_LINEAGE_EXCHANGE_H

#include "lineage/lineage.h"

FM_BEGIN_DECLS

/* The refs that travel: refs/heads/, refs/tags/, refs/notes/fmstore and refs/fmstore/results, by
 * name; an annotated tag is not peeled: oid is what the ref holds. peeled: the commit, or zeros
 * where the ref holds it itself. */
typedef fm_status (*fm_exchange_ref_fn)(void *ctx, const char *name, const fm_oid *oid,
                                        const fm_oid *peeled);
FM_CHECKED fm_status fm_exchange_refs(fm_repo *r, fm_exchange_ref_fn fn, void *ctx);
bool fm_exchange_ref_travels(const char *name);
bool fm_exchange_has(fm_repo *r, const fm_oid *oid); /* a git object of any kind is here */
/* Whether `old` is `new_oid` or one of its ancestors; both must be commits, peeled here. */
FM_CHECKED fm_status fm_is_ancestor(fm_repo *r, bool *yes, const fm_oid *old,
                                    const fm_oid *new_oid);
/* How many versions a comes from, itself too, that b does not; and the other way round. */
FM_CHECKED fm_status fm_ahead_behind(fm_repo *r, size_t *ahead, size_t *behind, const fm_oid *a,
                                     const fm_oid *b);

/* In a clone of the lineage alone, the versions of a remote's tags, as FM_PROMISED
 * "<remote>/<tag>": it has the tensors of these too, and no tracking ref may reach them. */
#define FM_PROMISED "refs/fmstore/promised/"

/* ---- the sender ----
 * A git pack (version 2, no delta against an object outside of it) with all that `want` reaches and
 * `have` does not: commits, trees, blobs, annotated tags, and the versions that recipes and suites
 * of these name by their ids and that are here (SCHEMA.md). Those of `have` that are not here are
 * passed over; objects that both sides' common versions reach are left out. FM_ENOTFOUND: a wanted
 * id is none that a travelling ref reaches. *objects (may be NULL): how many went. The store's
 * handle gets a reader's lease, which holds the wants until it is closed. */
typedef struct fm_exchange_ask {
    const fm_oid *want, *have;
    size_t wants, haves;
} fm_exchange_ask;
FM_CHECKED fm_status fm_git_send(fm_repo *r, const fm_exchange_ask *ask,
                                 fm_status (*fn)(void *ctx, const void *data, size_t len),
                                 void *ctx, uint64_t *objects);
/* Commits for `have`: the tips of all refs, remote-tracking ones too, then older commits at growing
 * distances, at most `most` in all, newest first. The caller frees *out with fm_free. */
FM_CHECKED fm_status fm_exchange_haves(fm_repo *r, fm_oid **out, size_t *count, size_t most);
/* Calls fn once for each content id that pointers reached from ask->want name, and that is neither
 * in a pointer file that ask->have reach nor anywhere in the trees of ask->have themselves (which
 * must be here; others are passed over). FM_ENOTFOUND: a git object is missing: the wanted
 * versions are not connected. */
typedef fm_status (*fm_pointer_fn)(void *ctx, const fm_digest *id, bool is_tensor, uint64_t bytes);
FM_CHECKED fm_status fm_exchange_pointers(fm_repo *r, const fm_exchange_ask *ask, fm_pointer_fn fn,
                                          void *ctx);

/* Calls fn for each version or tree that recipes and suites of the wanted versions name by its id,
 * and that no version in the history of ask->want and ask->have is. On a plain git host no branch
 * reaches these. The store's handle gets a reader's lease, as above. */
typedef fm_status (*fm_oid_fn)(void *ctx, const fm_oid *oid);
FM_CHECKED fm_status fm_exchange_named(fm_repo *r, const fm_exchange_ask *ask, fm_oid_fn fn,
                                       void *ctx);

/* ---- the receiver ---- */
typedef struct fm_git_intake fm_git_intake;
/* Takes a writer's lease on the repository's store, and keeps it beyond the close. max_bytes: of
 * the pack, and of what its objects unpack to sixteen times as much; 0: 4 GiB. */
FM_CHECKED fm_status fm_git_intake_open(fm_git_intake **out, fm_repo *r, uint64_t max_bytes);
FM_CHECKED fm_status fm_git_intake_bytes(fm_git_intake *in, const void *data, size_t len);
/* The pack is whole and indexed, durable, held by the lease; its objects can be read. FM_ECORRUPT:
 * it is damaged, or has a delta against an object that it lacks. An empty pack is fine. */
FM_CHECKED fm_status fm_git_intake_end(fm_git_intake *in, uint64_t *objects);
void fm_git_intake_close(fm_git_intake *in); /* what was not ended leaves nothing; NULL is fine */

/* Moves refs, one after the other; each has its own outcome. */
typedef struct fm_ref_wish {
    const char *name; /* "refs/heads/x" */
    fm_oid new_oid;   /* zeros: delete it */
    fm_oid old;       /* what it must hold now; zeros: it must not exist */
    bool any_old;     /* whatever it holds now; remote-tracking refs */
    bool force;       /* a branch may lose versions; a tag may move */
    /* out */
    fm_status status; /* FM_OK: moved, or it was so already. FM_ECONFLICT: it moved meanwhile.
                       * FM_EREFUSED: not a fast-forward. FM_EBASE: objects are missing */
    char text[256];   /* why not */
} fm_ref_wish;
/* Each wanted version is checked whole first (connected, and every pointer stored), as
 * fm_version_commit does. refs/fmstore/results and refs/notes/fmstore are merged by union with what
 * is here, whatever `old` says; a union depends on neither order nor side. A branch is moved as
 * fm_ref_update does it, but a version that lost is not kept here: its sender has it. refs/remotes/
 * may be moved too; a server refuses them to others (fm_exchange_ref_travels). lineage_only:
 * objects of pointers may be missing (a partial clone). The call fails only where nothing could be
 * tried. */
FM_CHECKED fm_status fm_refs_move(fm_repo *r, fm_ref_wish *wish, size_t count, bool lineage_only,
                                  const char *reflog);

FM_END_DECLS
#endif
