/* lineage.h - models as commits of a bare git repository, and what can be asked of their history.
 *
 * A version is a commit: its tree is the model tree (store/tree.h; tensors as pointer blobs, small
 * files as themselves), its parents what it was adapted from, in role order. Plain git reads it:
 * `git -C REPO/lineage.git log --graph --stat`. SCHEMA.md has the encoding and the SQL.
 * Objects in packs must be durable before a ref reaches them (invariant 1): callers commit the
 * store's transaction first; fm_version_commit checks that every pointer of the tree is stored.
 * A repository handle is used by one thread at a time. */
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
/* Bare layout in dir itself if `bare`, else in dir/.fmstore (dir is made if needed). FM_EEXISTS. */
FM_CHECKED fm_status fm_repo_init(const char *dir, bool bare);
/* dir itself, its .fmstore, or the nearest parent folder's. FM_ENOTFOUND says how to make one;
 * FM_EVERSION: written by a newer fmstore; FM_ECORRUPT names the file that is damaged. A repository
 * that cannot be written can be read. */
FM_CHECKED fm_status fm_repo_open(fm_repo **out, const char *dir);
void fm_repo_close(fm_repo *r);
fm_store *fm_repo_store(fm_repo *r);
/* A value of REPO/config, else of git's own files ("fmstore.cachemax"); NULL: unset. fm_free. */
char *fm_repo_config(fm_repo *r, const char *key);
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

/* FM_EINVAL lists the kinds there are. */
FM_CHECKED fm_status fm_kind_check(const char *kind);
/* Git's spellings: branch, tag, id or unique prefix, name~2, name^2, name@{1}, HEAD is not used.
 * FM_ENOTFOUND names it and the nearest branch name if one is close. Resolves to a commit. */
FM_CHECKED fm_status fm_rev_resolve(fm_repo *r, fm_oid *out, const char *rev);
FM_CHECKED fm_status fm_version_read(fm_repo *r, fm_version *out, const fm_oid *oid);
FM_CHECKED fm_status fm_version_tree(fm_repo *r, fm_tree **out, const fm_oid *oid);
/* Subtrees share git ids: whether one tensor or folder differs is answered by ids alone. */

typedef struct fm_commit_opts {
    const char *kind;     /* required; FM_EINVAL on an unknown kind */
    const char *message;  /* subject, then optional body */
    const fm_oid *parent; /* parent_count of them */
    uint32_t parent_count;
    const char *recipe_digest, *data_digest; /* hex or NULL */
    const char *author; /* "Name <mail>"; NULL: environment GIT_AUTHOR_NAME and _EMAIL, else
                            * config user.name and user.email, else fmstore <fmstore@localhost> */
    int64_t time;       /* 0 = now, or SOURCE_DATE_EPOCH if set */
} fm_commit_opts;
/* Writes git objects (one pack per commit, fsynced) and no ref. FM_ENOTFOUND: a pointer of the
 * tree is not in the store (names the path). */
FM_CHECKED fm_status fm_version_commit(fm_repo *r, fm_oid *out, const fm_tree *tree,
                                       const fm_commit_opts *opts);

/* ---- refs ---- */
/* Compare-and-swap. old NULL: must not exist (FM_EEXISTS). old given: must still be there
 * (FM_ECONFLICT). Of a branch, both texts say who won, and that the loser's commit is kept under
 * refs/fmstore/lost/<id>. FM_EINVAL: a name that git forbids, or that is another's folder.
 * The reflog gets the message.
 * name: "refs/heads/x", "refs/tags/x", "refs/fmstore/rejected/..." */
FM_CHECKED fm_status fm_ref_update(fm_repo *r, const char *name, const fm_oid *new_oid,
                                   const fm_oid *old, const char *reflog);
FM_CHECKED fm_status fm_ref_read(fm_repo *r, fm_oid *out, const char *name); /* FM_ENOTFOUND */
FM_CHECKED fm_status fm_ref_delete(fm_repo *r, const char *name, const fm_oid *old);
/* "heads" name valid as a branch (git's rules)? FM_EINVAL says why not. */
FM_CHECKED fm_status fm_branch_name_check(const char *name);
/* ... and fit for a new branch or tag: shown as what it is (fm_markup_shown), and no 7 or more digits that
 * could begin a version's id. Names that are there already may be otherwise. */
FM_CHECKED fm_status fm_branch_name_fit(const char *name);
typedef fm_status (*fm_ref_fn)(void *ctx, const char *name, const fm_oid *oid);
/* Names that start with prefix, sorted. An annotated tag is peeled. */
FM_CHECKED fm_status fm_ref_each(fm_repo *r, const char *prefix, fm_ref_fn fn, void *ctx);

/* States of trainings: FM_CHECKPOINTS "<run>/<step>". Who trains holds the flock of the run's file,
 * fm_checkpoint_lock (fm_free). FM_CHECKPOINTS_KEPT "<run>": a person wants them kept, so age alone
 * does not make gc drop them. run: the first FM_RUN_CHARS hex digits of what its bits depend on. */
#define FM_RUN_CHARS 20u
#define FM_CHECKPOINTS "refs/fmstore/checkpoints/"
#define FM_CHECKPOINTS_KEPT "refs/fmstore/kept/"
char *fm_checkpoint_lock(const fm_repo *r, const char *run);

/* ---- history ---- */
typedef fm_status (*fm_version_fn)(void *ctx, const fm_version *v); /* FM_ECANCELLED ends quietly */
/* Newest first, parents after children, streaming; NULL start: all branches and tags. (A foreign
 * commit that claims to be older than its own parent may be shown after it.) */
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
/* How far two tensors of one dtype and shape are apart, in double. */
typedef struct fm_tensor_change {
    uint64_t elems, changed;
    double norm_a, norm_delta, max_abs_delta, cosine; /* relative change = norm_delta / norm_a */
} fm_tensor_change;
FM_CHECKED fm_status fm_tensor_compare(const fm_provider *p, const fm_entry *a, const fm_entry *b,
                                       fm_tensor_change *out);

/* ---- results of tests ----
 * key = SHA-256 hex over all inputs (testing computes it). value: canonical JSON. Kept in
 * lineage.sqlite and as blobs "<2 hex>/<key>" of refs/fmstore/results, one commit per flush, so
 * that they travel; the SQLite copy is rebuilt from there. */
FM_CHECKED fm_status fm_result_get(fm_repo *r, fm_buf *out, const char key[65]); /* FM_ENOTFOUND */
/* FM_EINVAL: no JSON. A key that is there takes the new value. */
FM_CHECKED fm_status fm_result_put(fm_repo *r, const char key[65], fm_span value);
FM_CHECKED fm_status fm_result_flush(fm_repo *r); /* commits what was put since */
/* Joins the results of another clone: from is its folder, or a ref of this repository that holds
 * them (after a plain git fetch of refs/fmstore/results). Nothing is lost: the union, as a
 * commit of two parents. One key with two values: that of the side which renewed it since the
 * last merge; where both did, the lesser as bytes, so that clones agree whoever merges whom;
 * differ (may be NULL) is told, and the other value stays in history. What is no result there is
 * left out. */
typedef struct fm_results_merge_report {
    uint64_t theirs;          /* results that they hold */
    uint64_t added;           /* of those, new here */
    uint64_t differing;       /* keys whose values differed */
    char first_differing[65]; /* "" or one of them */
    uint64_t refused;         /* entries that are no results */
} fm_results_merge_report;
typedef fm_status (*fm_result_differ_fn)(void *ctx, const char *key, fm_span ours, fm_span theirs,
                                         bool theirs_stands);
FM_CHECKED fm_status fm_results_merge(fm_repo *r, const char *from, fm_result_differ_fn differ,
                                      void *ctx, fm_results_merge_report *out);
/* Adds a line for people to the commit's note (refs/notes/fmstore, shown by git log); a line that
 * is there is not added again. */
FM_CHECKED fm_status fm_note_add(fm_repo *r, const fm_oid *commit, const char *line);
FM_CHECKED fm_status fm_note_read(fm_repo *r, fm_buf *out, const fm_oid *commit);

/* ---- health ---- */
/* The store's fsck, then: git's packs have the bytes of their checksums; every ref reads; every
 * commit, tree, blob reachable from one reads; every pointer is in the store with the same dtype,
 * shape and size; every version opens and can be exported (fm_version_tree, fm_export_check, no
 * tensor read); results agree (lineage.sqlite is made again where they do not). What looks like a
 * fault is looked at again, with refs and gc held still, before it is told: writers may run. */
FM_CHECKED fm_status fm_repo_fsck(fm_repo *r, bool full, fm_fsck_report *out, fm_fault_fn fault,
                                  void *ctx);
/* Called once for each distinct tree of a model, after it was opened; a failure is told as a fault
 * of the version, but FM_ENOMEM and FM_ECANCELLED, which end the walk. */
typedef fm_status (*fm_fsck_version_fn)(void *ctx, const fm_version *v, const fm_tree *tree);
typedef struct fm_fsck_opts {
    bool full; /* decode every object */
    unsigned
        share; /* else, unless 0: the packs that were longest not decoded, so many percent of all
                     * bytes */
    fm_fsck_version_fn version; /* NULL: what lineage can judge alone */
    fm_fault_fn fault;
    void *ctx; /* of both */
} fm_fsck_opts;
FM_CHECKED fm_status fm_repo_fsck_as(fm_repo *r, const fm_fsck_opts *opts, fm_fsck_report *out);
/* Each pointer of each version that names an object which is missing or which fsck found damaged
 * (or a parent of it): rev is "main~2" or the beginning of an id, as people type it. */
typedef fm_status (*fm_damage_fn)(void *ctx, const char *rev, const char *path, const fm_entry *e);
FM_CHECKED fm_status fm_repo_damage(fm_repo *r, fm_damage_fn fn, void *ctx);
/* from: another repository, or a file or folder as import takes it. Sound copies of what is damaged
 * or missing are taken from there, by id; git's objects only from a repository. Run a full fsck
 * before, so that the damage is known. What the source lacks stays as it is. from may be r itself:
 * then only packs are mended that can be from their own records, which is done first anyway. */
typedef struct fm_repair_report {
    uint64_t wanted;      /* objects of the store that were damaged or missing */
    uint64_t objects;     /* of them, stored anew */
    uint64_t git_objects; /* git's, taken over */
    uint64_t packs;       /* damaged ones, whose sound records were taken */
} fm_repair_report;
FM_CHECKED fm_status fm_repo_repair(fm_repo *r, const char *from, fm_repair_report *out);
FM_CHECKED fm_status fm_repo_rebuild_index(fm_repo *r); /* store's and lineage's, from the truth */

/* ---- gc: nothing lost, nothing kept for ever (store/README.md has the argument) ---- */
/* "now", "never", "2.weeks.ago", "90 days", "2026-11-21", seconds since 1970: a time on the clock
 * `now`. INT64_MAX: everything is older; INT64_MIN: nothing is. FM_EINVAL lists the forms. */
FM_CHECKED fm_status fm_time_parse(int64_t *out, const char *text, int64_t now);

typedef struct fm_gc_opts {
    bool dry_run;      /* nothing is changed */
    const char *prune; /* condemned before that time is deleted; NULL: config gc.pruneExpire, else
                           * 2.weeks.ago */
    const char
        *reflog;     /* entries of reflogs before it go; NULL: gc.reflogExpire, else 90.days.ago */
    const char *checkpoints; /* states of trainings that do not run and had their last state before
                              * it: the names go. NULL: gc.checkpointExpire, else 2.weeks.ago, and
                              * none that are to be kept */
    bool repack;             /* small packs become few; gc alone rewrites those mostly dead */
    bool repack_all; /* every pack */
    uint32_t depth;  /* longest delta chain after repack; FM_GC_ANY_DEPTH: as it is */
    bool slow;       /* objects are coded anew with the slow level; kept if smaller */
    bool quarantine; /* packs with damaged records, whose reached objects are all sound elsewhere,
                              * go to quarantine/; refused (nothing done) while one is not */
    uint64_t pack_bytes;     /* size at which a new pack ends; 0 = 2 GiB */
    fm_progress_fn progress; /* of decoding and copying; may be NULL */
    void *ctx;
} fm_gc_opts;
#define FM_GC_ANY_DEPTH UINT32_MAX
fm_gc_opts fm_gc_defaults(void);

typedef struct fm_gc_root {
    char *name;       /* "refs/heads/x" (with its reflog), "running processes" */
    uint64_t objects; /* that it alone reaches */
    uint64_t bytes;   /* of these, on disk */
} fm_gc_root;
typedef struct fm_gc_training {
    char *subject; /* of its last state: "checkpoint of x after step 7" */
    uint64_t states, bytes;
} fm_gc_training;
typedef struct fm_gc_report {
    fm_gc_training *training; /* whose states' names were dropped; dry run: would be */
    size_t trainings, training_cap;
    fm_gc_root *root; /* of every name that was looked at */
    size_t roots;
    uint64_t versions; /* reached */
    uint64_t shared_objects, shared_bytes;
    uint64_t objects, bytes, live_objects, live_bytes; /* in packs; each object once */
    uint64_t new_objects, new_bytes;                   /* condemned by this run */
    uint64_t waiting_objects, waiting_bytes;           /* condemned, their grace not over */
    uint64_t held_objects, held_bytes; /* a process runs that may have found them stored */
    uint64_t stuck_objects,
        stuck_bytes;                   /* in packs that are still mostly live: repack frees them */
    uint64_t gone_objects, gone_bytes; /* deleted; dry run: would be */
    uint64_t packs_before, packs_after, pack_bytes_before, pack_bytes_after;
    uint64_t packs_written, recoded_objects;
    uint64_t bad_objects;       /* do not decode; their packs stay as they are: fsck */
    uint64_t git_new, git_gone; /* git objects condemned, deleted */
    uint64_t reflog_entries;    /* dropped */
    uint64_t writers;           /* leases of writers that lived */
    bool no_room; /* the disk is full: what must be written anew first is left to the next run */
} fm_gc_report;
/* Waits for another gc or repack of this repository. FM_ECORRUPT, FM_EVERSION: what a ref reaches
 * cannot be read to its end; nothing was deleted. FM_ECANCELLED: by progress; run again to finish.
 */
FM_CHECKED fm_status fm_repo_gc(fm_repo *r, const fm_gc_opts *opts, fm_gc_report *out);
void fm_gc_report_release(fm_gc_report *report);

/* ---- sizes: what a family costs against separate copies ---- */
typedef struct fm_branch_stats {
    char *name;
    uint64_t logical_bytes; /* decoded bytes of every pointer of its tree */
    uint64_t shared_bytes;  /* of those, decoded bytes also reached by another branch */
    uint64_t own_bytes;
    uint64_t own_stored; /* on disk, objects that only this branch reaches */
    uint64_t tensors, tensors_shared;
} fm_branch_stats;
typedef struct fm_repo_stats {
    fm_branch_stats *branch;
    size_t count;
    uint64_t logical_bytes;  /* sum over branches: what separate copies cost */
    uint64_t unique_bytes;   /* decoded, each object once */
    uint64_t physical_bytes; /* packs on disk */
    uint64_t git_bytes;
    fm_store_totals store;
} fm_repo_stats;
FM_CHECKED fm_status fm_repo_stats_of(fm_repo *r, fm_repo_stats *out);
void fm_repo_stats_release(fm_repo_stats *s);

FM_END_DECLS
#endif
