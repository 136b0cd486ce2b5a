/* store.h - the content-addressed store: packs of coded tensors and blobs, and an index.
 *
 * Layout under the repository root: packs/<sha256>.pack (append-once, self-describing),
 * index.sqlite (a cache, rebuildable by scanning), tmp/ (staging). FORMAT.md is the byte level.
 * Several processes may read and write at once. A store handle may be shared between threads for
 * reading; a transaction belongs to one thread. */
#ifndef FM_STORE_STORE_H
#define FM_STORE_STORE_H

#include "store/base/os/pool.h"
#include "store/tree.h"

FM_BEGIN_DECLS

typedef struct fm_store fm_store;
typedef struct fm_txn fm_txn;

FM_CHECKED fm_status fm_store_init(const char *root); /* root exists; FM_EEXISTS: has a store */
/* Removes dead processes' files from tmp/, makes or mends the index. FM_EVERSION: newer format. */
FM_CHECKED fm_status fm_store_open(fm_store **out, const char *root);
void fm_store_close(fm_store *s);

/* A lease tells gc that this handle is at work: until the lease ends gc deletes nothing that the
 * handle may be using (store/README.md, "Nothing lost, nothing kept for ever"). A transaction takes
 * a writer's lease by itself, and it stays until the handle is closed, so that objects that were
 * found stored are still there when the ref moves. A caller that derives a version takes one before
 * it looks at the parent. writes false: for a reader, which protects only the ids it names (lineage
 * names the versions it resolves); a writer's lease stays one. what: for people, "import of
 * atlas". */
FM_CHECKED fm_status fm_store_lease(fm_store *s, bool writes, const char *what);
void fm_store_lease_end(fm_store *s); /* no transaction may be open */

/* The object and all that its deltas need are stored, by the index: nothing is read. */
bool fm_store_has(fm_store *s, const fm_digest *id);

#define FM_PARENTS_MAX 8u

typedef struct fm_object_info {
    bool is_blob;
    fm_dtype dtype; /* tensors */
    fm_shape shape;
    uint64_t bytes;        /* decoded */
    uint64_t stored_bytes; /* on disk, with its record header */
    uint32_t chain_depth;  /* 0 = needs no parent */
    uint32_t parent_count; /* objects that it is coded against */
    fm_digest parent[FM_PARENTS_MAX];
    char codec[32]; /* summary: "raw", "planes", "delta", "several", ... */
} fm_object_info;
FM_CHECKED fm_status fm_store_info(fm_store *s, fm_object_info *out, const fm_digest *id);

/* How an object is stored: its recipe if there is one, and the leaves of each codec. */
#define FM_CODECS_MAX 32u
typedef struct fm_coding {
    char recipe[16]; /* "lora", "linear", ...; "" without one */
    char detail[96]; /* "scale 2, one rounding" */
    uint32_t codecs;
    struct fm_codec_use {
        char name[16];
        bool against; /* coded against the parent or the recipe's prediction */
        uint32_t leaves;
        uint64_t bytes, stored_bytes; /* decoded, coded */
    } codec[FM_CODECS_MAX];
} fm_coding;
FM_CHECKED fm_status fm_store_coding(fm_store *s, fm_coding *out, const fm_digest *id);
/* For a repository that holds only a part (a clone of the lineage alone): fn is called where a read
 * looks for an object that is not stored; it stores the object and returns FM_OK, and the read goes
 * on, or fails, and the read fails with its error; FM_ENOTFOUND: nobody has it. fn may be called by
 * several threads at once, and not by what it calls on the same thread. NULL: no more. */
typedef fm_status (*fm_missing_fn)(void *ctx, const fm_digest *id);
void fm_store_on_missing(fm_store *s, fm_missing_fn fn, void *ctx);
/* Calls fn once for each indexed object, ascending by id. */
FM_CHECKED fm_status fm_store_each(fm_store *s, fm_status (*fn)(void *ctx, const fm_digest *id),
                                   void *ctx);

/* dst has info.bytes bytes; every leaf is verified. FM_ENOTFOUND; FM_ECORRUPT and FM_EBASE name the
 * object, leaf or pack that is damaged, and dst is then undefined. */
FM_CHECKED fm_status fm_store_read(fm_store *s, const fm_digest *id, void *dst, uint64_t bytes);
/* Bytes [offset, offset + bytes) of the object, within its size; flags: fm_range_flags. Only the
 * leaves of this range are decoded, so memory does not grow with the object. */
FM_CHECKED fm_status fm_store_read_range(fm_store *s, const fm_digest *id, uint64_t offset,
                                         uint64_t bytes, void *dst, unsigned flags);
/* The object's bytes in a mapped pack, where all leaves are stored raw; every leaf is verified.
 * Valid while the store is open. FM_OK with out->data NULL: leaves are coded. FM_ECORRUPT,
 * FM_ENOTFOUND: as above, but fm_store_read may find a sound copy. */
FM_CHECKED fm_status fm_store_view(fm_store *s, const fm_digest *id, fm_span *out);
fm_provider fm_store_provider(fm_store *s); /* valid while open */

/* Staging. Stored objects are not written again. No reader sees anything before commit; an abort or
 * a crash leaves files in tmp/ only. parent: a tensor of the same dtype and shape to code against
 * (stored, or put earlier in this transaction), or NULL; a damaged one is not used. want: the
 * expected id, or NULL (FM_ECORRUPT: the bytes have another id). */
FM_CHECKED fm_status fm_txn_begin(fm_txn **out, fm_store *s);
FM_CHECKED fm_status fm_txn_put_tensor(fm_txn *t, fm_digest *id_out, fm_dtype dtype,
                                       const fm_shape *shape, fm_span bytes,
                                       const fm_digest *parent, const fm_digest *want);
FM_CHECKED fm_status fm_txn_put_blob(fm_txn *t, fm_digest *id_out, fm_span bytes,
                                     const fm_digest *want);
/* Puts every tensor and blob entry of tree; p gives the bytes, parent_tree (may be NULL) a delta
 * parent at the same path. progress may be NULL; returning true cancels (FM_ECANCELLED). */
typedef bool (*fm_progress_fn)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
FM_CHECKED fm_status fm_txn_put_tree(fm_txn *t, const fm_tree *tree, const fm_provider *p,
                                     const fm_tree *parent_tree, fm_progress_fn progress,
                                     void *ctx);
/* Trees whose stored tensors may be what later tensors of put_tree are coded against, or made from
 * by a recipe (search/search.h): the parent's first, then those of other branches. Copied; 64 are
 * candidates, the others are counted in offers_passed_over. put_tree offers its parent_tree
 * itself. */
FM_CHECKED fm_status fm_txn_offer(fm_txn *t, const fm_tree *tree);
/* What put_tree will be given; borrowed until then. Of what is offered from now on the nearest are
 * the candidates, however many there are, nearest first; what was offered before stays first. */
FM_CHECKED fm_status fm_txn_expect(fm_txn *t, const fm_tree *tree, const fm_provider *from);
/* Store bytes as an inline file if they fit, as a blob else, and put it at path. */
FM_CHECKED fm_status fm_txn_put_path(fm_txn *t, fm_tree *tree, const char *path, fm_span bytes);
typedef struct fm_txn_stats {
    uint64_t objects_new, objects_known;
    uint64_t bytes_in;     /* decoded bytes offered */
    uint64_t bytes_stored; /* written to the pack */
    uint64_t offers_passed_over; /* trees that were no candidates: farther than 64 others */
} fm_txn_stats;
/* Pack, fsync, rename, fsync of the folder, then the index: durable on return. An empty transaction
 * writes nothing. Before commit the store cannot read staged objects. After a put that failed while
 * writing, commit is refused (FM_EINVAL). */
FM_CHECKED fm_status fm_txn_commit(fm_txn *t, fm_txn_stats *stats);
void fm_txn_close(fm_txn *t); /* aborts unless committed; NULL is fine */

/* Checks every pack's structure, every record's head, and that the index agrees (it is mended, and
 * counted as repaired); with full also every leaf of every object and each pack's name against its
 * bytes. fault is called for each fault; FM_OK: all was checked, whatever was found. */
typedef struct fm_fsck_report {
    uint64_t packs, objects, bytes_verified, faults, repaired;
} fm_fsck_report;
typedef void (*fm_fault_fn)(void *ctx, const char *text);
FM_CHECKED fm_status fm_store_fsck(fm_store *s, bool full, fm_fsck_report *out, fm_fault_fn fault,
                                   void *ctx);
/* As without full, but decodes the packs whose last full check is oldest, at least `percent` of all
 * bytes: run each night, it reaches every pack. */
FM_CHECKED fm_status fm_store_fsck_oldest(fm_store *s, unsigned percent, fm_fsck_report *out,
                                          fm_fault_fn fault, void *ctx);
/* Makes the index anew from the packs that are there, and forgets which packs are missing. */
FM_CHECKED fm_status fm_store_rebuild_index(fm_store *s);
/* Copies the sound records of packs that are damaged or were cut off into new packs; *packs: the
 * number of packs so saved. A writer's lease must be held. */
FM_CHECKED fm_status fm_store_salvage(fm_store *s, uint64_t *packs);
/* A full check found every version whole: gc need not refuse because of missing packs. */
FM_CHECKED fm_status fm_store_forget_missing(fm_store *s);

typedef struct fm_store_totals {
    uint64_t objects, packs;
    uint64_t bytes_decoded; /* each object once */
    uint64_t bytes_packs;   /* files on disk */
} fm_store_totals;
FM_CHECKED fm_status fm_store_totals_of(fm_store *s, fm_store_totals *out);

FM_END_DECLS
#endif
