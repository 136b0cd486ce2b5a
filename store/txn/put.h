/* put.h - objects on their way into a transaction: leaves are read, hashed and coded in batches
 * over all waiting objects, and written in order. Shared by the files of this folder.
 *
 * Memory does not grow with an object: a batch holds a few leaves per thread, and the coded leaves
 * of one object wait in memory up to a limit and beyond it in a temporary, because a record's head
 * comes before its payload. Leaves are coded alone and written in the order of their objects, so
 * the bytes of a pack depend neither on the number of threads nor on where batches end. */
#ifndef FM_STORE_PUT_H
#define FM_STORE_PUT_H

#include "store/pack/pack_writer.h"
#include "store/search/search.h"

FM_BEGIN_DECLS

/* Limits of the coded leaves in memory; the lower one where many threads have scratch memory. */
#define FMS_PAYLOAD_HELD_MIN_BYTES ((size_t)24 << 20)
#define FMS_PAYLOAD_HELD_MAX_BYTES ((size_t)96 << 20)
#define FMS_STAGED_READ_MAX_BYTES ((uint64_t)48 << 20) /* largest parent in the same transaction */
#define FMS_PACK_ROLL_BYTES ((uint64_t)2 << 30)        /* a transaction goes on in another pack */
enum { FMS_TXN_THREADS_MAX = 12, FMS_SLOTS_PER_THREAD = 4, FMS_SLOTS_MAX = 24 };

/* One object that is being put. */
typedef struct fms_put {
    fms_record r; /* form and id; parents and depth are set when it is written */
    /* The object's bytes: in memory, or leaf by leaf from a provider. */
    fm_span bytes;
    const fm_provider *from; /* NULL: in memory */
    const fm_entry *entry;
    fms_chain basis; /* where has_basis: a draft, against which the leaves are coded */
    bool has_basis;
    const fms_guess *made; /* NULL: the basis is searched for. Used by fms_put_add only */
    bool hashed;           /* leaf[] is known from the start, else set as leaves are read */
    fm_digest *leaf;
    fms_leaf_row *rows;
    uint32_t coded; /* leaves whose coded bytes are in the payload */
    uint64_t payload_bytes;
} fms_put;

/* The bytes of leaf i, not verified: the object's own memory, or read into buf (FM_LEAF_BYTES). */
FM_CHECKED fm_status fms_put_leaf(const fms_put *p, uint32_t i, uint8_t *buf, fm_span *out);

typedef struct fms_staged_object {
    uint32_t pack; /* index in fm_txn.pack */
    bool pending;  /* in the queue, not in a pack yet */
    uint64_t offset, stored_bytes;
} fms_staged_object;

typedef struct fms_slot {
    fms_put *put;
    uint32_t leaf;
    bool basis_damaged;
    uint8_t *raw; /* buffer of a leaf that was read; allocated at first use */
    fm_span bytes;
    fm_buf coded;
} fms_slot;

struct fm_txn {
    fm_store *store;
    fm_pool *pool;
    unsigned threads;
    fms_coder **coder; /* one per thread */
    fms_slot *slot;
    size_t slots;
    fms_put **queue; /* in the order of writing */
    size_t queued, queue_cap;
    uint64_t leaves_waiting;
    size_t held_max;
    fm_buf payload; /* coded leaves of queue[0] that are not in the spill */
    fm_writer *spill;
    fms_packer *pack; /* all but the last are sealed */
    size_t packs, packs_cap;
    uint64_t roll_bytes; /* FMS_PACK_ROLL_BYTES; tests set less */
    fm_map *staged;      /* id -> fms_staged_object */
    fm_arena *arena;
    fms_search *search; /* made at the first offer */
    fms_staged search_staged;
    fm_txn_stats stats;
    fm_progress_fn progress; /* NULL outside fm_txn_put_tree */
    void *progress_ctx;
    uint64_t done_bytes, total_bytes;
    bool broken; /* a failed put may have written half a record: commit is refused */
};

/* ---- put.c ---- */
/* Adds p to the queue and takes ownership of it (fm_malloc), also on failure. parent: the tensor to
 * code against, or NULL. Runs batches as they fill. */
FM_CHECKED fm_status fms_put_add(fm_txn *t, fms_put *p, const fm_digest *parent);
FM_CHECKED fm_status fms_put_drain(fm_txn *t); /* writes all of the queue */
void fms_put_drop(fm_txn *t);                  /* drops all of the queue */
/* Whether the object is in the store and not condemned, or in this transaction. */
FM_CHECKED fm_status fms_txn_known(fm_txn *t, const fm_digest *id, bool *out);

/* ---- txn.c ---- */
/* As fm_txn_put_tensor, for bytes that a known recipe over stored tensors made: they are coded
 * against it, or where it would be too deep, against its first input if that has this form. */
FM_CHECKED fm_status fms_txn_put_made(fm_txn *t, fm_digest *id_out, fm_dtype dtype,
                                      const fm_shape *shape, fm_span bytes, const fms_guess *made);

/* ---- txn_pack.c ---- */
/* Writes p, which is queue[0] with all leaves coded, as a record. */
FM_CHECKED fm_status fms_txn_write(fm_txn *t, fms_put *p);
FM_CHECKED fm_status fms_txn_seal(fm_txn *t); /* gives the last pack its footer and name */
/* The function for fms_staged.read. */
FM_CHECKED fm_status fms_txn_read_staged(void *ctx, const fm_digest *id, uint8_t **bytes,
                                         size_t *len);
/* Appends coded bytes to the payload of queue[0]; drops that payload. */
FM_CHECKED fm_status fms_payload_append(fm_txn *t, const void *data, size_t len);
void fms_payload_clear(fm_txn *t);

FM_END_DECLS
#endif
