/* internal.h - what the files of lineage share: the handle, the door for git objects, SQL calls.
 *
 * git2.h is included here and nowhere else in the project; sqlite3.h in index.c alone. */
#ifndef FM_LINEAGE_INTERNAL_H
#define FM_LINEAGE_INTERNAL_H

#include <git2.h>

#include "lineage/lineage.h"
#include "store/base/os/io.h"
#include "store/base/map.h"
#include "store/base/mem.h"
#include "store/lease/lease.h"

#define FML_FORMAT 1   /* repository format; SCHEMA.md */
#define FML_ENCODING 1 /* trailer Fmstore-Version: how a tree is laid out */
#define FML_RESULTS_REF "refs/fmstore/results"
#define FML_INCOMING "refs/fmstore/incoming-" /* results being merged; and who fetched them */
#define FML_NOTES_REF "refs/notes/fmstore"
#define FML_LOST_PREFIX "refs/fmstore/lost/"
#define FML_MAX_REV_BYTES 512u
#define FML_MAX_REF_BYTES 200u
#define FML_MAX_MESSAGE_BYTES (1u << 20)
#define FML_MAX_RESULT_BYTES (64u << 20)
#define FML_MAX_WALK_NODES 4000000u /* objects of one tree: a bomb of nested trees ends here */
#define FML_REF_MODE 0100644

typedef struct fml_rows fml_rows;

struct fm_repo {
    char *path;      /* holds config, packs, lineage.git */
    char *git_path;  /* path/lineage.git */
    char *lock_path; /* flock of whoever moves refs */
    git_repository *git;
    git_odb *odb;           /* one reference of ours */
    git_odb_backend *fresh; /* in memory, owned by odb: objects of the commit being made */
    git_oid *pending;       /* ids in `fresh` */
    size_t pending_count, pending_cap;
    fm_store *store;
    fml_rows *rows; /* opened at first use */
};

/* ---- util.c ---- */
/* "<text>: <what libgit2 says>" with the status that git's code stands for. */
fm_status fml_git_fail(int code, const char *fmt, ...) FM_PRINTF(2, 3);
/* As fml_git_fail, but a missing or broken object is damage, not a wrong question. */
fm_status fml_damage(int code, const char *fmt, ...) FM_PRINTF(2, 3);
/* One mover of refs at a time. */
FM_CHECKED fm_status fml_ref_lock(fm_repo *r, fm_lock **out);

static inline git_oid fml_git_oid(const fm_oid *oid)
{
    git_oid g;
    git_oid_fromraw(&g, oid->b);
    return g;
}
static inline void fml_from_git(fm_oid *out, const git_oid *g)
{
    for (size_t i = 0; i < sizeof out->b; i++)
        out->b[i] = g->id[i];
}

/* ---- objects.c: new objects gather in memory and become one pack ---- */
/* Every pack's index against its own checksum: libgit2 follows a damaged one out of bounds. */
FM_CHECKED fm_status fml_pack_indexes_check(const fm_repo *r);
FM_CHECKED fm_status fml_odb_setup(fm_repo *r);
/* Nothing happens if the object exists. */
FM_CHECKED fm_status fml_object_put(fm_repo *r, git_oid *out, git_object_t type, fm_span bytes);
/* Takes note of an object that libgit2 itself wrote into `fresh`. */
FM_CHECKED fm_status fml_object_note(fm_repo *r, const git_oid *id);
/* Tells gc of them; before the write, and not under the lock of refs (gc takes that second). */
FM_CHECKED fm_status fml_objects_hold(fm_repo *r);
FM_CHECKED fm_status fml_objects_write(fm_repo *r); /* durable on return */
void fml_objects_abort(fm_repo *r);                 /* keeps the current error text */
bool fml_is_pack_index(const char *name);
/* These objects as one pack with its index, durable; *name (may be NULL): its hash. fm_free. */
FM_CHECKED fm_status fml_pack_write(fm_repo *r, const git_oid *id, size_t count, char **name);

/* ---- repack.c, concat.c: few packs ---- */
/* After a commit, by a bounded amount of work; force: all into one, coded anew. */
FM_CHECKED fm_status fml_packs_repack(fm_repo *r, bool force);
/* The packs of these indexes, smallest first, as one, copied as they are; *name: its hash. What only
 * packs hold that share objects with larger ones goes to a second, *rest_name (NULL: none). Both
 * fm_free. Each is compared with its checksums first: FM_ECORRUPT. */
FM_CHECKED fm_status fml_packs_concat(fm_repo *r, char *const *idx, size_t count, char **name,
                                      char **rest_name);

/* All packs become one without the objects that drop says; none if it says none. A multi-pack-index
 * or .keep stops it. Under the lock of refs. */
FM_CHECKED fm_status fml_packs_drop(fm_repo *r, bool (*drop)(void *ctx, const git_oid *id),
                                    void *ctx);
/* Every object in packs that fml_packs_drop would touch; fm_free. */
FM_CHECKED fm_status fml_packed_ids(fm_repo *r, git_oid **out, size_t *count);
/* All packs become one, with what is noted since; a sound object in memory stands for one on disk. The
 * old packs go unless bad says of one of their objects that no sound copy is left. */
FM_CHECKED fm_status fml_packs_renew(fm_repo *r, bool (*bad)(void *ctx, const git_oid *id),
                                     void *ctx);
bool fml_still_there(const fm_repo *r, const git_oid *id); /* on disk, whatever is cached */
/* A lease's word for a version, if there is a lease. FM_ENOTFOUND: gc was faster. */
FM_CHECKED fm_status fml_hold_commit(fm_repo *r, const git_oid *id);

/* ---- commit.c ---- */
/* The pointers of a tree are stored, and stay so while the lease lives. */
FM_CHECKED fm_status fml_check_stored(fm_repo *r, const fm_tree *tree);
typedef struct fml_commit {
    git_oid tree;
    const git_oid *parent;
    size_t parent_count;
    const char *author; /* "Name <mail>" or NULL */
    int64_t author_time, commit_time;
    const char *message; /* whole, with trailers */
} fml_commit;
FM_CHECKED fm_status fml_commit_put(fm_repo *r, git_oid *out, const fml_commit *c);
/* author.c: "Name <mail>": given, or environment, or config, or fmstore's own. fm_free. */
FM_CHECKED fm_status fml_author(char **out, fm_repo *r, const char *given);
FM_CHECKED fm_status fml_commit_clock(int64_t *out); /* SOURCE_DATE_EPOCH or the clock */
FM_CHECKED fm_status fml_version_of(fm_version *out, git_commit *commit);

/* The model tree of a commit, read as nobody's: fm_version_tree, and fsck. */
FM_CHECKED fm_status fml_tree_read(fm_repo *r, fm_tree **out, const git_commit *commit);

typedef struct fml_tree_visitor {
    /* False skips the folder. NULL: all are entered. */
    bool (*enter)(void *ctx, const git_oid *tree, const char *path);
    fm_status (*blob)(void *ctx, const char *path, const git_oid *id, fm_span bytes);
    void *ctx;
    uint64_t max_blob_bytes;
} fml_tree_visitor;
FM_CHECKED fm_status fml_tree_walk(fm_repo *r, const git_oid *tree, const fml_tree_visitor *v);

/* ---- message.c ---- */
bool fml_kind_known(const char *kind);
FM_CHECKED fm_status fml_message_make(fm_buf *out, const fm_commit_opts *opts);
FM_CHECKED fm_status fml_message_read(fm_version *out, const char *message);
uint32_t fml_message_encoding(const char *message); /* Fmstore-Version; 0 = not ours */

/* ---- refs.c ---- */
/* The id a ref holds, unpeeled; *exists false where there is none. */
FM_CHECKED fm_status fml_ref_peek(fm_repo *r, git_oid *out, bool *exists, const char *name);
/* Under the lock; old NULL = must not exist. FM_EEXISTS or FM_ECONFLICT when it has moved. */
FM_CHECKED fm_status fml_ref_move(fm_repo *r, const char *name, const git_oid *to,
                                  const git_oid *old, const char *reflog);
FM_CHECKED fm_status fml_head_mend(fm_repo *r, bool *changed); /* HEAD names a branch that is */
bool fml_is_commit(fm_repo *r, const git_oid *id);

/* ---- index.c: lineage.sqlite ---- */
/* r->rows is open on FM_OK; made if missing, in memory where the repository cannot be written. */
FM_CHECKED fm_status fml_rows_need(fm_repo *r);
FM_CHECKED fm_status fml_rows_drop(fm_repo *r); /* closes and deletes it */
void fml_rows_close(fml_rows *ix);
/* FM_ECORRUPT, here and in the two lists: unreadable, or a value that is not that of its sum. */
FM_CHECKED fm_status fml_rows_get(fml_rows *ix, fm_buf *out, const char *key);
/* flushed false: it differs from what git holds. keep: an existing row stays. */
FM_CHECKED fm_status fml_rows_put(fml_rows *ix, const char *key, fm_span value, bool flushed,
                                  bool keep);
typedef fm_status (*fml_row_fn)(void *ctx, const char *key, fm_span value);
FM_CHECKED fm_status fml_rows_unflushed(fml_rows *ix, fml_row_fn fn, void *ctx); /* by key */
FM_CHECKED fm_status fml_rows_flushed(fml_rows *ix, fml_row_fn fn, void *ctx);
FM_CHECKED fm_status fml_rows_mark_flushed(fml_rows *ix);
/* The commit of FML_RESULTS_REF that the rows agree with; "" = none. */
FM_CHECKED fm_status fml_rows_head(fml_rows *ix, char hex[41]);
FM_CHECKED fm_status fml_rows_set_head(fml_rows *ix, const char *hex);
FM_CHECKED fm_status fml_rows_check(fml_rows *ix); /* FM_ECORRUPT: SQLite's own structure */
FM_CHECKED fm_status fml_rows_begin(fml_rows *ix); /* takes SQLite's write lock */
FM_CHECKED fm_status fml_rows_commit(fml_rows *ix);
void fml_rows_rollback(fml_rows *ix); /* keeps the current error text */

/* ---- checkpoints.c ---- */
/* Those whose last state is of that time or before, unless they are trained just now; kept_too: also
 * what is marked FM_CHECKPOINTS_KEPT. Then files of dead trainings' locks. */
FM_CHECKED fm_status fml_checkpoints_expire(fm_repo *r, int64_t expire, bool kept_too, bool dry_run,
                                            fm_gc_report *out);
/* ---- results.c ---- */
FM_CHECKED fm_status fml_results_sync(fm_repo *r);  /* rows of the ref that SQLite lacks */
FM_CHECKED fm_status fml_results_renew(fm_repo *r); /* SQLite made again from the ref */
/* ---- results_merge.c ---- */
/* Drops the names of what processes that are gone had fetched; what they held is gc's. */
FM_CHECKED fm_status fml_results_sweep(fm_repo *r);
bool fml_result_key_ok(const char *key);

#endif
