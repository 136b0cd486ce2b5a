/* remote.h - other repositories by name: clone, fetch, pull, push, as git has them.
 *
 * A remote is remote.<name>.url in REPO/config. Its branches as they were seen last are
 * refs/remotes/<name>/<branch>, "origin/x" on a command line. There is no working tree and no
 * current branch, so clone makes a branch of each of the remote's, and pull forwards each that can
 * be. Tags come with all branches; notes and results are merged by union, whichever way they go.
 *
 * What becomes of each ref is told by ui.message, and as result "ref" {"name", "outcome", "old",
 * "new", "text"}: outcome "new", "forwarded", "forced", "deleted", "kept", "refused" or "up to
 * date". FM_EREFUSED: at least one ref was refused; the others moved. */
#ifndef FM_OPS_REMOTE_H
#define FM_OPS_REMOTE_H

#include "cli/ops/ops.h"
#include "remote/remote.h"

FM_BEGIN_DECLS

/* packs: the bucket of the tensors, where url is a git host's (remote.<name>.packs); NULL: url has
 * all. FM_EEXISTS, FM_EINVAL: the name is there, or git forbids it. A path becomes absolute. */
fm_status fm_ops_remote_add(fm_ops *c, const char *name, const char *url, const char *packs);
fm_status fm_ops_remote_set_url(fm_ops *c, const char *name, const char *url, const char *packs);
fm_status fm_ops_remote_rename(fm_ops *c, const char *from,
                               const char *to);                     /* with its refs/remotes */
fm_status fm_ops_remote_remove(fm_ops *c, const char *name);        /* with its refs/remotes */
fm_status fm_ops_remote_is(fm_ops *c, const char *name, bool *yes); /* a remote has this name */
typedef fm_status (*fm_ops_remote_fn)(void *ctx, const char *name, const char *url,
                                      const char *packs); /* NULL: none */
fm_status fm_ops_remote_each(fm_ops *c, fm_ops_remote_fn fn, void *ctx);

fm_status fm_ops_remote_url(fm_ops *c, const char *name, char **out); /* fm_free */

/* A branch that the remote has, or had when it was fetched last. */
typedef struct fm_remote_branch {
    const char *name;
    const char
        *state; /* "new": never fetched; "tracked": as fetched last; "moved" since; "stale": gone */
    fm_oid version; /* stale: as fetched last */
    bool here;      /* there is a branch of that name here too */
    bool counted;   /* ... and version is here, so its versions that the other lacks are counted: */
    size_t ahead, behind; /* of the branch here, of the remote's */
} fm_remote_branch;
typedef fm_status (*fm_remote_branch_fn)(void *ctx, const fm_remote_branch *b);
fm_status fm_ops_remote_show(fm_ops *c, const char *name, fm_remote_branch_fn fn, void *ctx);

typedef struct fm_fetch_opts {
    const char *remote;        /* NULL: the only one, else origin */
    /* Branches and tags, or whole names of refs; count 0: all. Where a branch and a tag have one
     * name, the branch is meant. */
    const char *const *name;
    size_t count;
    bool dry_run; /* says what would travel, and which refs would move */
    /* Deletes refs/remotes/<remote>/x where the remote has no branch x any more; git's config
     * remote.<name>.prune and fetch.prune say so too. In a clone of the lineage alone one that
     * names here come from is kept. With names nothing is deleted. */
    bool prune;
    /* Git's objects alone, from now on (config remote.<name>.lineageOnly): tensors come when
     * something reads them. */
    bool lineage_only;
} fm_fetch_opts;
fm_status fm_ops_fetch(fm_ops *c, const fm_fetch_opts *o, fm_travel *out);
/* Fetches, makes branches that are new and forwards those that are behind; one that has versions of
 * its own is left as it is and refused. */
fm_status fm_ops_pull(fm_ops *c, const fm_fetch_opts *o, fm_travel *out);

#define FM_DEPTH_MAX 1000000u
typedef struct fm_clone_opts {
    const char *url, *dir;
    const char *packs; /* as of fm_ops_remote_add */
    bool bare;
    const char *branch; /* NULL: all */
    bool lineage_only;
    /* Not 0: lineage_only, but versions fewer than so many steps behind a branch's tip come with
     * their tensors, in later fetches too (config remote.origin.depth). */
    uint32_t depth;
} fm_clone_opts;
/* Makes the repository and the remote origin, and pulls; c must have no repository open, and has
 * this one afterwards. Where the transfer breaks off, the repository stays with what has come. */
fm_status fm_ops_clone(fm_ops *c, const fm_clone_opts *o, fm_travel *out);

typedef struct fm_push_opts {
    const char *remote; /* a name or a URL; NULL: as above */
    const char *const
        *spec; /* "x" (a branch or tag), "SRC:DST", ":DST" deletes; count 0 with all */
    size_t count;
    bool all;   /* all branches and tags */
    bool lease; /* a branch may lose versions, if it holds what was fetched last */
    bool dry_run;
} fm_push_opts;
fm_status fm_ops_push(fm_ops *c, const fm_push_opts *o, fm_travel *out);

/* fm_repo_repair, with sound copies from a remote, a URL, or as there a path. */
fm_status fm_ops_repair(fm_ops *c, const char *from, fm_repair_report *out);

/* The refs of a remote, or of a URL. */
fm_status fm_ops_ls_remote(fm_ops *c, const char *remote, fm_exchange_ref_fn fn, void *ctx);

/* Brings objects that a version's tree names and this repository lacks, of the tensors and files
 * whose path matches one of the patterns (fnmatch; count 0: all). */
fm_status fm_ops_fetch_tree(fm_ops *c, const char *remote, const fm_tree *tree,
                            const char *const *pattern, size_t count, fm_travel *out);

FM_END_DECLS
#endif
