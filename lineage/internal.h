/* internal.h - declarations shared by the files of lineage: the handle, git objects, SQL calls.
 *
 * Of the product's files only this one includes git2.h; sqlite3.h is included by index.c alone (and
 * by store/pack/index.c). */
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
#define FML_INCOMING "refs/fmstore/incoming-" /* results being merged; the fetching pid follows */
#define FML_NOTES_REF "refs/notes/fmstore"
#define FML_LOST_PREFIX "refs/fmstore/lost/"
#define FML_MAX_REV_BYTES 512u
#define FML_MAX_REF_BYTES 200u
#define FML_MAX_MESSAGE_BYTES (1u << 20)
#define FML_MAX_RESULT_BYTES (64u << 20)
#define FML_MAX_WALK_NODES 4000000u /* objects of one tree: a bomb of nested trees ends here */
#define FML_TREE_DEPTH_MAX 1100u    /* folders in folders: more than FM_MAX_PATH_BYTES / 2 */
#define FML_REF_MODE 0100644

typedef struct fml_rows fml_rows;

struct fm_repo {
    char *path;      /* holds config, packs, lineage.git */
    char *git_path;  /* path/lineage.git */
    char *lock_path; /* the flock held while refs move */
    git_repository *git;
    git_odb *odb;           /* the handle owns one reference */
    git_odb_backend *fresh; /* in memory, owned by odb: objects of the commit being made */
    git_oid *pending;       /* ids in `fresh` */
    size_t pending_count, pending_cap;
    fm_store *store;
    fml_rows *rows; /* opened at first use */
    fm_map *promised; /* ids that remotes with lineageOnly have; NULL: not made yet */
};

/* ---- util.c ---- */
/* Fails with "<text>: <libgit2's message>" and the status that libgit2's code maps to. */
fm_status fml_git_fail(int code, const char *fmt, ...) FM_PRINTF(2, 3);
/* As fml_git_fail, but a missing or broken object is FM_ECORRUPT: the caller's input was right. */
fm_status fml_damage(int code, const char *fmt, ...) FM_PRINTF(2, 3);
/* Takes the lock that every move of a ref holds. */
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

/* ---- config.c ---- */
/* *yes: a version that a remote with lineageOnly holds (its refs here) names the object, so that
 * the remote has it. What only versions made here name is promised by nobody. */
FM_CHECKED fm_status fml_promised(fm_repo *r, const fm_digest *id, bool *yes);
/* *yes: it is promised, and not here. */
FM_CHECKED fm_status fml_elsewhere(fm_repo *r, const fm_digest *id, bool *yes);

/* ---- objects.c: new objects gather in memory and become one pack ---- */
/* Compares every pack's index with its own checksum: libgit2 follows a damaged one out of
 * bounds. */
FM_CHECKED fm_status fml_pack_indexes_check(const fm_repo *r);
FM_CHECKED fm_status fml_odb_setup(fm_repo *r);
/* Drops the object database with all that it caches and opens it again: it then has what is on
 * disk, and no more. */
FM_CHECKED fm_status fml_odb_renew(fm_repo *r);
/* Nothing happens if the object exists. */
FM_CHECKED fm_status fml_object_put(fm_repo *r, git_oid *out, git_object_t type, fm_span bytes);
/* Takes note of an object that libgit2 itself wrote into `fresh`. */
FM_CHECKED fm_status fml_object_note(fm_repo *r, const git_oid *id);
/* Names the pending objects in the lease, for gc. Call it before the write, and not under the lock
 * of refs: gc takes that lock after the leases' gate. */
FM_CHECKED fm_status fml_objects_hold(fm_repo *r);
FM_CHECKED fm_status fml_objects_write(fm_repo *r); /* durable on return */
void fml_objects_abort(fm_repo *r);                 /* keeps the current error text */
bool fml_is_pack_index(const char *name);
/* Calls fn for each object of the pack of this index, in the order of ids; libgit2's code. */
int fml_pack_each(const char *idx, git_odb_foreach_cb fn, void *ctx);
/* Writes these objects as one durable pack with its index; *name (may be NULL): its hash,
 * fm_free. */
FM_CHECKED fm_status fml_pack_write(fm_repo *r, const git_oid *id, size_t count, char **name);

/* ---- repack.c, concat.c: the number of packs is kept small ---- */
/* Called after a commit; does a bounded amount of work. force: codes all anew into one pack. */
FM_CHECKED fm_status fml_packs_repack(fm_repo *r, bool force);
/* Joins the packs of these indexes, smallest first, into one without decoding; *name: its hash. A
 * pack that shares an object with a larger one is not copied: the objects that only such packs hold
 * go to a second pack, *rest_name (NULL: none). The caller frees both names with fm_free. Each pack
 * is compared with its checksums first: FM_ECORRUPT. */
FM_CHECKED fm_status fml_packs_concat(fm_repo *r, char *const *idx, size_t count, char **name,
                                      char **rest_name);

/* Rewrites all packs as one without the objects for which drop is true; does nothing if there are
 * none. A pack with a .keep stays; with a multi-pack-index nothing is touched. Under the ref
 * lock. */
FM_CHECKED fm_status fml_packs_drop(fm_repo *r, bool (*drop)(void *ctx, const git_oid *id),
                                    void *ctx);
/* Lists every object in packs that fml_packs_drop would touch; the caller frees *out with
 * fm_free. */
FM_CHECKED fm_status fml_packed_ids(fm_repo *r, git_oid **out, size_t *count);
/* Writes all packs and the pending objects as one pack; a pending object replaces a damaged one of
 * the same id. The old packs are removed unless bad is true for an object: no sound copy is
 * left. */
FM_CHECKED fm_status fml_packs_renew(fm_repo *r, bool (*bad)(void *ctx, const git_oid *id),
                                     void *ctx);
bool fml_still_there(const fm_repo *r, const git_oid *id); /* on disk, whatever is cached */
/* Names a version in the lease, if there is a lease. FM_ENOTFOUND: gc deleted the version
 * before. */
FM_CHECKED fm_status fml_hold_commit(fm_repo *r, const git_oid *id);

/* ---- commit.c ---- */
/* Checks that the objects of a tree's pointers are stored; the lease then keeps them. */
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
/* author.c: "Name <mail>" as given, or from environment or config, or fmstore's own. fm_free. */
FM_CHECKED fm_status fml_author(char **out, fm_repo *r, const char *given);
FM_CHECKED fm_status fml_commit_clock(int64_t *out); /* SOURCE_DATE_EPOCH or the clock */
FM_CHECKED fm_status fml_version_of(fm_version *out, git_commit *commit);

/* Reads the model tree of a commit without naming it in the lease; for fm_version_tree and fsck. */
FM_CHECKED fm_status fml_tree_read(fm_repo *r, fm_tree **out, const git_commit *commit);

typedef struct fml_tree_visitor {
    /* False skips the folder; NULL: every folder is entered. */
    bool (*enter)(void *ctx, const git_oid *tree, const char *path);
    fm_status (*blob)(void *ctx, const char *path, const git_oid *id, fm_span bytes);
    void *ctx;
    uint64_t max_blob_bytes;
    fm_status absent; /* what a git object that is not here fails with; FM_OK: FM_ECORRUPT */
} fml_tree_visitor;
FM_CHECKED fm_status fml_tree_walk(fm_repo *r, const git_oid *tree, const fml_tree_visitor *v);

/* ---- message.c ---- */
bool fml_kind_known(const char *kind);
FM_CHECKED fm_status fml_message_make(fm_buf *out, const fm_commit_opts *opts);
FM_CHECKED fm_status fml_message_read(fm_version *out, const char *message);
uint32_t fml_message_encoding(const char *message); /* Fmstore-Version; 0 = a foreign commit */

/* ---- refs.c ---- */
FM_CHECKED fm_status fml_ref_name_check(const char *name); /* FM_EINVAL: no name of a ref */
/* The id that a ref holds, unpeeled; *exists is false where there is no such ref. */
FM_CHECKED fm_status fml_ref_peek(fm_repo *r, git_oid *out, bool *exists, const char *name);
/* Moves a ref under the ref lock; old NULL: it must not exist (FM_EEXISTS); old given: it must hold
 * old (FM_ECONFLICT). */
FM_CHECKED fm_status fml_ref_move(fm_repo *r, const char *name, const git_oid *to,
                                  const git_oid *old, const char *reflog);
FM_CHECKED fm_status fml_head_mend(fm_repo *r, bool *changed); /* HEAD names an existing branch */
bool fml_is_commit(fm_repo *r, const git_oid *id);

/* ---- notes.c ---- */
/* Joins another clone's notes with those here: FML_NOTES_REF then holds the union. The note of a
 * version has the lines of both: first those of the one that compares less as bytes, then what the
 * other has besides. So the outcome depends on no order and no side, its commit neither, and a note
 * that goes on where another ends stays as it is. */
FM_CHECKED fm_status fml_notes_join(fm_repo *r, const git_oid *theirs);

/* ---- exchange.c, exchange_take.c ---- */
/* The commit that an object of any kind is peeled to. FM_ENOTFOUND: not here; FM_EINVAL: none. */
FM_CHECKED fm_status fml_peel(fm_repo *r, git_oid *out, const git_oid *id);

/* ---- staging.c ---- */
void fml_staging_sweep(const fm_repo *r); /* removes the folders of processes that were killed */

/* ---- index.c: lineage.sqlite ---- */
/* Opens r->rows; makes the file if missing, or a table in memory if the repository is read-only. */
FM_CHECKED fm_status fml_rows_need(fm_repo *r);
FM_CHECKED fm_status fml_rows_drop(fm_repo *r); /* closes and deletes it */
void fml_rows_close(fml_rows *ix);
/* FM_ECORRUPT, here and in the two lists: a row is unreadable, or its value does not match its
 * sum. */
FM_CHECKED fm_status fml_rows_get(fml_rows *ix, fm_buf *out, const char *key);
/* flushed false: git does not hold the value yet. keep: an existing row stays. */
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
/* Drops the checkpoint refs of each training that does not run and whose last checkpoint is from
 * `expire` or before; kept_too: also of those that FM_CHECKPOINTS_KEPT marks. Then deletes the lock
 * files of trainings that were killed. */
FM_CHECKED fm_status fml_checkpoints_expire(fm_repo *r, int64_t expire, bool kept_too, bool dry_run,
                                            fm_gc_report *out);
/* ---- downloads.c ---- */
/* Removes what imports from a Hub left, where none runs and the last one was at `expire` or
 * before. */
FM_CHECKED fm_status fml_downloads_expire(fm_repo *r, int64_t expire);
/* ---- results.c ---- */
FM_CHECKED fm_status fml_results_sync(fm_repo *r);  /* rows of the ref that SQLite lacks */
FM_CHECKED fm_status fml_results_renew(fm_repo *r); /* SQLite made again from the ref */
/* ---- results_merge.c ---- */
/* Drops the FML_INCOMING refs of processes that are gone; gc deletes the objects behind them. */
FM_CHECKED fm_status fml_results_sweep(fm_repo *r);
bool fml_result_key_ok(const char *key);
/* As fm_results_merge from a commit that is here; from: for people. */
FM_CHECKED fm_status fml_results_join(fm_repo *r, const git_oid *theirs, const char *from);

#endif
