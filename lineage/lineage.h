/* lineage.h - models as commits of a bare git repository, and the queries on their history.
 *
 * A version is a commit: its tree is the model tree (store/tree.h; tensors as pointer blobs, small
 * files as themselves), its parents the versions it was made from, in role order. Plain git reads
 * it: `git -C REPO/lineage.git log --graph --stat`. SCHEMA.md has the encoding and the SQL. Objects
 * in packs must be durable before a ref reaches them (invariant 1): callers commit the store's
 * transaction first; fm_version_commit checks that every pointer of the tree is stored. A
 * repository handle is used by one thread at a time. */
#ifndef FM_LINEAGE_LINEAGE_H
#define FM_LINEAGE_LINEAGE_H

#include "store/store.h"

FM_BEGIN_DECLS

typedef struct fm_repo fm_repo;

typedef struct fm_oid { /* a git object id, 20 bytes */
    uint8_t b[20];
} fm_oid;
void fm_oid_hex(const fm_oid *oid, char out[41]);
bool fm_oid_eq(const fm_oid *a, const fm_oid *b);

/* ---- repository ---- */
/* Makes the repository in dir itself if `bare`, else in dir/.fmstore; makes dir if needed.
 * FM_EEXISTS: one is there. */
FM_CHECKED fm_status fm_repo_init(const char *dir, bool bare);
/* Opens dir itself, its .fmstore, or that of the nearest folder above. FM_ENOTFOUND says how to
 * make a repository; FM_EVERSION: written by a newer fmstore; FM_ECORRUPT names the damaged file. A
 * repository on a read-only disk can be read. */
FM_CHECKED fm_status fm_repo_open(fm_repo **out, const char *dir);
/* *yes: dir itself is a repository, or its .fmstore is; folders above do not count. */
FM_CHECKED fm_status fm_repo_is(const char *dir, bool *yes);
void fm_repo_close(fm_repo *r);
fm_store *fm_repo_store(fm_repo *r);
/* The value of key ("fmstore.cachemax") in REPO/config, else in git's own files; NULL: unset. The
 * caller frees it with fm_free. */
char *fm_repo_config(fm_repo *r, const char *key);
/* Sets key in REPO/config, or removes it (value NULL; a key that is not there is fine). */
FM_CHECKED fm_status fm_repo_config_set(fm_repo *r, const char *key, const char *value);
/* Calls fn for each key of REPO/config that begins with prefix ("remote."), in the file's order. */
typedef fm_status (*fm_config_fn)(void *ctx, const char *key, const char *value);
FM_CHECKED fm_status fm_repo_config_each(fm_repo *r, const char *prefix, fm_config_fn fn,
                                         void *ctx);
/* *yes: a clone of the lineage alone (config fmstore.partial): tensors and files of its remotes'
 * versions may be missing, and are no damage. */
FM_CHECKED fm_status fm_repo_partial(fm_repo *r, bool *yes);
/* *yes: the repository's config belongs to the user who runs this (or to whom sudo stands for), or
 * git's safe.directory names the repository: programs that the config names may be run. */
FM_CHECKED fm_status fm_repo_is_ours(const fm_repo *r, bool *yes);
const char *fm_repo_path(const fm_repo *r); /* the folder that holds config, packs, lineage.git */

/* ---- versions ---- */
#define FM_MAX_PARENTS 16u
typedef struct fm_version {
    fm_oid oid;
    fm_oid tree;
    fm_oid parent[FM_MAX_PARENTS];
    uint32_t parent_count;
    char kind[16]; /* trailer Fmstore-Kind: pretrain import finetune lora ... */
    char *subject; /* first line */
    char *message; /* without trailers */
    char *author;  /* "Name <mail>" */
    int64_t time;  /* seconds since 1970 */
    char *recipe;  /* trailer Fmstore-Recipe: digest of recipe.json, or NULL */
    char *data;    /* trailer Fmstore-Data: digest of the data manifest, or NULL */
} fm_version;
void fm_version_release(fm_version *v);

/* FM_EINVAL: an unknown kind; the text lists the known ones. */
FM_CHECKED fm_status fm_kind_check(const char *kind);
/* Resolves rev to a commit. rev is written as for git: branch, tag, id or unique prefix, name~2,
 * name^2, name@{1}; HEAD is refused. FM_ENOTFOUND names rev, and a branch of a similar name. */
FM_CHECKED fm_status fm_rev_resolve(fm_repo *r, fm_oid *out, const char *rev);
FM_CHECKED fm_status fm_version_read(fm_repo *r, fm_version *out, const fm_oid *oid);
FM_CHECKED fm_status fm_version_tree(fm_repo *r, fm_tree **out, const fm_oid *oid);
/* A tree with the version's entry at path alone ("source/source.json"); the others are not read.
 * FM_ENOTFOUND: the version has none there. */
FM_CHECKED fm_status fm_version_entry(fm_repo *r, fm_tree **out, const fm_oid *oid,
                                      const char *path);
/* id: the 40 hex digits of a version, or of a version's tree, on a branch or not. */
FM_CHECKED fm_status fm_tree_of_id(fm_repo *r, fm_tree **out, const char *id);
/* Subtrees share git ids: whether one tensor or folder differs is answered by ids alone. */

typedef struct fm_commit_opts {
    const char *kind;     /* required; FM_EINVAL on an unknown kind */
    const char *message;  /* subject, then optional body */
    const fm_oid *parent; /* parent_count of them */
    uint32_t parent_count;
    const char *recipe_digest, *data_digest; /* hex or NULL */
    /* "Name <mail>"; NULL: environment GIT_AUTHOR_NAME and GIT_AUTHOR_EMAIL, else config user.name
     * and user.email, else fmstore <fmstore@localhost> */
    const char *author;
    int64_t time; /* 0 = SOURCE_DATE_EPOCH if set, else now */
} fm_commit_opts;
/* Writes git objects (one pack per commit, fsynced) and no ref. FM_ENOTFOUND names the path of a
 * pointer whose object is not in the store; in a clone of the lineage alone a remote may have
 * it. */
FM_CHECKED fm_status fm_version_commit(fm_repo *r, fm_oid *out, const fm_tree *tree,
                                       const fm_commit_opts *opts);

/* ---- refs ---- */
/* Moves a ref by compare-and-swap. old NULL: the ref must not exist (FM_EEXISTS). old given: the
 * ref must still hold it (FM_ECONFLICT). For a branch, both texts name the writer that won and say
 * that the other's commit is kept under refs/fmstore/lost/<id>. FM_EINVAL: git forbids the name, or
 * it is a folder of other names. reflog: the message of the entry. name: "refs/heads/x",
 * "refs/tags/x", "refs/fmstore/rejected/..." */
FM_CHECKED fm_status fm_ref_update(fm_repo *r, const char *name, const fm_oid *new_oid,
                                   const fm_oid *old, const char *reflog);
FM_CHECKED fm_status fm_ref_read(fm_repo *r, fm_oid *out, const char *name); /* FM_ENOTFOUND */
/* Likewise, but what the ref itself holds: an annotated tag is not peeled. */
FM_CHECKED fm_status fm_ref_read_raw(fm_repo *r, fm_oid *out, const char *name);
FM_CHECKED fm_status fm_ref_delete(fm_repo *r, const char *name, const fm_oid *old);
/* Whether git takes refs/heads/<name>. FM_EINVAL says why not. */
FM_CHECKED fm_status fm_branch_name_check(const char *name);
/* The stricter rule for new branches and tags: the name is also shown as it is written
 * (fm_markup_shown), and is not 7 or more hex digits, which could begin a version's id. */
FM_CHECKED fm_status fm_branch_name_fit(const char *name);
typedef fm_status (*fm_ref_fn)(void *ctx, const char *name, const fm_oid *oid);
/* Calls fn for each ref whose name starts with prefix, by name; an annotated tag is peeled. */
FM_CHECKED fm_status fm_ref_each(fm_repo *r, const char *prefix, fm_ref_fn fn, void *ctx);

/* A training's checkpoints are refs FM_CHECKPOINTS "<run>/<step>". The training process holds the
 * flock of the run's file, whose path is fm_checkpoint_lock (fm_free). While the ref
 * FM_CHECKPOINTS_KEPT "<run>" exists (--keep-checkpoints), gc does not drop them for their age
 * alone. run: the first FM_RUN_CHARS hex digits of a digest of all that the run's bits depend
 * on. */
#define FM_RUN_CHARS 20u
#define FM_CHECKPOINTS "refs/fmstore/checkpoints/"
#define FM_CHECKPOINTS_KEPT "refs/fmstore/kept/"
char *fm_checkpoint_lock(const fm_repo *r, const char *run);

/* ---- history ---- */
typedef fm_status (*fm_version_fn)(void *ctx, const fm_version *v); /* FM_ECANCELLED ends quietly */
/* Calls fn newest first, children before parents, without reading all of history first; NULL start:
 * all branches, those of remotes too, and tags. A foreign commit dated before its own parent may
 * come after it. */
FM_CHECKED fm_status fm_log_walk(fm_repo *r, const fm_oid *start, size_t start_count,
                                 fm_version_fn fn, void *ctx);
FM_CHECKED fm_status fm_merge_base(fm_repo *r, fm_oid *out, const fm_oid *a, const fm_oid *b);

/* ---- diff ---- */
typedef enum fm_change_kind { FM_CHANGE_ADD, FM_CHANGE_DELETE, FM_CHANGE_MODIFY } fm_change_kind;
typedef struct fm_change {
    fm_change_kind kind;
    const fm_entry *a, *b; /* borrowed from the trees; NULL where absent */
} fm_change;
typedef fm_status (*fm_change_fn)(void *ctx, const fm_change *c);
FM_CHECKED fm_status fm_diff_trees(const fm_tree *a, const fm_tree *b, fm_change_fn fn, void *ctx);
/* The difference of two tensors of one dtype and shape, computed in double. */
typedef struct fm_tensor_change {
    uint64_t elems, changed;
    double norm_a, norm_delta, max_abs_delta, cosine; /* relative change = norm_delta / norm_a */
} fm_tensor_change;
FM_CHECKED fm_status fm_tensor_compare(const fm_provider *p, const fm_entry *a, const fm_entry *b,
                                       fm_tensor_change *out);

/* ---- results of tests ----
 * key = SHA-256 hex over all inputs (testing computes it). value: canonical JSON. A result is a row
 * of lineage.sqlite and a blob "<2 hex>/<key>" of refs/fmstore/results, one commit per flush: git
 * carries the blobs to other clones, and SQLite is rebuilt from them. */
FM_CHECKED fm_status fm_result_get(fm_repo *r, fm_buf *out, const char key[65]); /* FM_ENOTFOUND */
/* Stores the value; one that the key already has is replaced. FM_EINVAL: value is not JSON. */
FM_CHECKED fm_status fm_result_put(fm_repo *r, const char key[65], fm_span value);
FM_CHECKED fm_status fm_result_flush(fm_repo *r); /* commits the results put since the last flush */
/* Joins the results of another clone: from is its folder, or a ref of this repository that holds
 * them (after a plain git fetch of refs/fmstore/results). The outcome is the union, a commit of two
 * parents. Where a key has two values, the side that renewed it since the last merge has its value
 * taken; where both renewed it, the value that compares less as bytes is taken, so that clones
 * agree in whatever order they merge; differ (may be NULL) is then called, and the other value
 * stays in history. Entries of the other clone that are no results are left out. */
typedef struct fm_results_merge_report {
    uint64_t theirs;          /* results that the other clone holds */
    uint64_t added;           /* of those, new here */
    uint64_t differing;       /* keys that both sides renewed, with different values */
    char first_differing[65]; /* one of these keys, or "" */
    uint64_t refused;         /* entries that are no results */
} fm_results_merge_report;
typedef fm_status (*fm_result_differ_fn)(void *ctx, const char *key, fm_span ours, fm_span theirs,
                                         bool theirs_stands);
FM_CHECKED fm_status fm_results_merge(fm_repo *r, const char *from, fm_result_differ_fn differ,
                                      void *ctx, fm_results_merge_report *out);
/* Adds a line to the commit's note (refs/notes/fmstore, which git log shows), once. */
FM_CHECKED fm_status fm_note_add(fm_repo *r, const fm_oid *commit, const char *line);
FM_CHECKED fm_status fm_note_read(fm_repo *r, fm_buf *out, const fm_oid *commit);

/* ---- health ---- */
/* Runs the store's fsck, then checks that git's packs match their checksums; that every ref, and
 * every commit, tree and blob reachable from one, can be read; that every pointer's object is
 * stored with the same dtype, shape and size; that every version opens and can be exported
 * (fm_version_tree, fm_export_check; no tensor is read); that lineage.sqlite agrees with git (else
 * it is made again). Writers may run: a suspected fault is checked again with refs and gc locked
 * before it is reported. */
FM_CHECKED fm_status fm_repo_fsck(fm_repo *r, bool full, fm_fsck_report *out, fm_fault_fn fault,
                                  void *ctx);
/* Called once for each distinct tree of a model, after it was opened. A failure is reported as a
 * fault of the version; FM_ENOMEM and FM_ECANCELLED end the walk instead. */
typedef fm_status (*fm_fsck_version_fn)(void *ctx, const fm_version *v, const fm_tree *tree);
typedef struct fm_fsck_opts {
    bool full; /* decode every object */
    /* else, unless 0: decode this percentage of all bytes, in the packs last decoded longest ago */
    unsigned share;
    fm_fsck_version_fn version; /* NULL: only lineage's own checks */
    fm_fault_fn fault;
    /* A recipe or a suite names a version that is not here: no fault of this repository, since it
     * may have come from another. Each id once. May be NULL. */
    fm_fault_fn absent;
    void *ctx; /* of all three */
} fm_fsck_opts;
FM_CHECKED fm_status fm_repo_fsck_as(fm_repo *r, const fm_fsck_opts *opts, fm_fsck_report *out);
/* Calls fn for each pointer of each version whose object, or one it is coded against, is missing or
 * was found damaged by fsck. rev is "main~2" or the beginning of an id: fm_rev_resolve takes it. */
typedef fm_status (*fm_damage_fn)(void *ctx, const char *rev, const char *path, const fm_entry *e);
FM_CHECKED fm_status fm_repo_damage(fm_repo *r, fm_damage_fn fn, void *ctx);
/* Replaces damaged or missing objects by sound copies, found by id in from: another repository, or
 * a file or folder as import takes it (git's objects come only from a repository). Run a full fsck
 * before, so that the damage is known. An object that from lacks stays as it is. Packs that can be
 * mended from their own records are mended first; from may be r itself to do no more than that. */
typedef struct fm_repair_report {
    uint64_t wanted;      /* objects of the store that were damaged or missing */
    uint64_t objects;     /* of them, stored anew */
    uint64_t git_objects; /* git objects copied */
    uint64_t packs;       /* damaged packs whose sound records were copied */
} fm_repair_report;
FM_CHECKED fm_status fm_repo_repair(fm_repo *r, const char *from, fm_repair_report *out);
/* An empty folder in REPO/tmp for as long as it is needed. Where its process is killed, the next
 * one that is made, or gc, removes it. */
typedef struct fm_staging fm_staging;
FM_CHECKED fm_status fm_staging_make(fm_staging **out, const fm_repo *r);
const char *fm_staging_dir(const fm_staging *s);
void fm_staging_end(fm_staging *s); /* removes it, and keeps the error; NULL is fine */
/* Makes index.sqlite again from the packs, and lineage.sqlite from git. */
FM_CHECKED fm_status fm_repo_rebuild_index(fm_repo *r);

/* ---- gc (store/README.md says why it loses nothing that a ref reaches) ---- */
/* Reads "now", "never", "2.weeks.ago", "90 days", "2026-11-21" or seconds since 1970, relative to
 * the time `now`. "now" gives INT64_MAX (everything is older), "never" INT64_MIN. FM_EINVAL lists
 * the forms. */
FM_CHECKED fm_status fm_time_parse(int64_t *out, const char *text, int64_t now);

typedef struct fm_gc_opts {
    bool dry_run; /* nothing is changed */
    /* objects condemned before it are deleted; NULL: config gc.pruneExpire, else 2.weeks.ago */
    const char *prune;
    /* older entries of reflogs are dropped; NULL: config gc.reflogExpire, else 90.days.ago */
    const char *reflog;
    /* Refs of checkpoints are dropped where the training does not run and its last checkpoint is
     * older. NULL: config gc.checkpointExpire, else 2.weeks.ago, and trainings that
     * FM_CHECKPOINTS_KEPT marks are spared. */
    const char *checkpoints;
    bool repack;     /* small packs are joined; else only mostly dead packs are rewritten */
    bool repack_all; /* every pack is rewritten */
    uint32_t depth;  /* longest delta chain after repack; FM_GC_ANY_DEPTH: no limit */
    bool slow;       /* objects are coded anew at the slow level; kept if smaller */
    /* packs with damaged records are moved to quarantine/ if every reached object of theirs is
     * sound elsewhere; if one is not, the call fails and changes nothing */
    bool quarantine;
    uint64_t pack_bytes;     /* size at which a new pack ends; 0 = 2 GiB */
    fm_progress_fn progress; /* of decoding and copying; may be NULL */
    void *ctx;
} fm_gc_opts;
#define FM_GC_ANY_DEPTH UINT32_MAX
fm_gc_opts fm_gc_defaults(void);

typedef struct fm_gc_root {
    char *name;       /* "refs/heads/x" (with its reflog), "running processes" */
    uint64_t objects; /* objects that this root alone reaches */
    uint64_t bytes;   /* of these, on disk */
} fm_gc_root;
typedef struct fm_gc_training {
    char *subject; /* of its last checkpoint: "checkpoint of x after step 7" */
    uint64_t states, bytes;
} fm_gc_training;
typedef struct fm_gc_report {
    fm_gc_training *training; /* whose checkpoint refs were dropped; dry run: would be */
    size_t trainings, training_cap;
    fm_gc_root *root; /* each ref, and the running processes */
    size_t roots;
    uint64_t versions; /* reached */
    uint64_t shared_objects, shared_bytes;
    uint64_t objects, bytes, live_objects, live_bytes; /* in packs; each object once */
    uint64_t new_objects, new_bytes;                   /* condemned by this run */
    uint64_t waiting_objects, waiting_bytes;           /* condemned, in their grace period */
    uint64_t held_objects, held_bytes; /* a running process may have found them stored */
    /* deletable, but in packs that are still mostly live: repack frees them */
    uint64_t stuck_objects, stuck_bytes;
    uint64_t gone_objects, gone_bytes; /* deleted; dry run: would be */
    uint64_t packs_before, packs_after, pack_bytes_before, pack_bytes_after;
    uint64_t packs_written, recoded_objects;
    uint64_t bad_objects;       /* that do not decode; their packs stay as they are (run fsck) */
    uint64_t git_new, git_gone; /* git objects condemned, deleted */
    uint64_t reflog_entries;    /* dropped */
    uint64_t writers;           /* leases held by running writers */
    bool no_room; /* the disk is full: packs that must be rewritten are left to the next run */
} fm_gc_report;
/* Waits for another gc or repack of this repository. FM_ECORRUPT, FM_EVERSION: an object that a ref
 * reaches cannot be read; nothing was deleted. FM_ECANCELLED: progress asked to stop; run again. */
FM_CHECKED fm_status fm_repo_gc(fm_repo *r, const fm_gc_opts *opts, fm_gc_report *out);
void fm_gc_report_release(fm_gc_report *report);

/* ---- sizes on disk, against separate copies of every branch ---- */
typedef struct fm_branch_stats {
    char *name;
    uint64_t logical_bytes; /* decoded bytes of every pointer of its tree */
    uint64_t shared_bytes;  /* of those, bytes of objects that another branch reaches too */
    uint64_t own_bytes;
    uint64_t own_stored; /* on disk, objects that only this branch reaches */
    uint64_t tensors, tensors_shared;
} fm_branch_stats;
typedef struct fm_repo_stats {
    fm_branch_stats *branch;
    size_t count;
    uint64_t logical_bytes;  /* sum over branches: the size of separate copies */
    uint64_t unique_bytes;   /* decoded, each object once */
    uint64_t physical_bytes; /* packs on disk */
    uint64_t git_bytes;
    fm_store_totals store;
} fm_repo_stats;
FM_CHECKED fm_status fm_repo_stats_of(fm_repo *r, fm_repo_stats *out);
void fm_repo_stats_release(fm_repo_stats *s);

FM_END_DECLS
#endif
