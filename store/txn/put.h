/* put.h - objects on their way into a transaction: leaves are read, hashed and coded in batches over
 * all objects that wait, and written in order. What txn.c, put.c and the search for parents share.
 *
 * Memory does not grow with an object: a batch holds a few leaves a thread, and the coded leaves of
 * one object wait in memory up to a limit, in a temporary beyond, because a record's
 * head comes before its payload. Leaves are coded apart and written in order of their objects, so
 * the bytes of a pack depend neither on the number of threads nor on where batches end. */
#ifndef FM_STORE_PUT_H
#define FM_STORE_PUT_H

#include "store/pack/pack_writer.h"
#include "store/search/search.h"

FM_BEGIN_DECLS

/* Coded leaves in memory at most: fewer where many threads have scratch memory of their own. */
#define FMS_PAYLOAD_HELD_MIN_BYTES ((size_t)24 << 20)
#define FMS_PAYLOAD_HELD_MAX_BYTES ((size_t)96 << 20)
#define FMS_STAGED_READ_MAX_BYTES ((uint64_t)48 << 20) /* a parent in the same transaction */
#define FMS_PACK_ROLL_BYTES ((uint64_t)2 << 30)        /* a transaction goes on in another pack */
enum { FMS_TXN_THREADS_MAX = 12, FMS_SLOTS_PER_THREAD = 4, FMS_SLOTS_MAX = 24 };

/* One object that is being put. */
typedef struct fms_put {
    fms_record r; /* its form and id; parents and depth once it is written */
    /* Its bytes: in memory, or leaf by leaf from a provider. */
    fm_span bytes;
    const fm_provider *from; /* NULL: in memory */
    const fm_entry *entry;
    fms_chain basis; /* a draft of the record: what its leaves are coded against, where has_basis */
    bool has_basis;
    const fms_guess *made; /* NULL: what it is made of is searched for; until fms_put_add returns */
    bool hashed;           /* leaf[] is known from the start; else it fills as leaves are read */
    fm_digest *leaf;
    fms_leaf_row *rows;
    uint32_t coded; /* leaves whose coded bytes are in the payload */
    uint64_t payload_bytes;
} fms_put;

/* The bytes of leaf i, not verified: where they lie in memory, or read into buf (FM_LEAF_BYTES). */
FM_CHECKED fm_status fms_put_leaf(const fms_put *p, uint32_t i, uint8_t *buf, fm_span *out);

typedef struct fms_staged_object {
    uint32_t pack; /* of the transaction */
    bool pending;  /* not written yet */
    uint64_t offset, stored_bytes;
} fms_staged_object;

typedef struct fms_slot {
    fms_put *put;
    uint32_t leaf;
    bool basis_damaged;
    uint8_t *raw; /* a leaf that was read; made at its first use */
    fm_span bytes;
    fm_buf coded;
} fms_slot;

struct fm_txn {
    fm_store *store;
    fm_pool *pool;
    unsigned threads;
    fms_coder **coder; /* one a thread */
    fms_slot *slot;
    size_t slots;
    fms_put **queue; /* in the order of writing */
    size_t queued, queue_cap;
    uint64_t leaves_waiting;
    size_t held_max;
    fm_buf payload; /* coded leaves of queue[0], or the last of them beside a spill */
    fm_writer *spill;
    fms_packer *pack; /* all but the last are sealed */
    size_t packs, packs_cap;
    uint64_t roll_bytes; /* FMS_PACK_ROLL_BYTES; tests set less */
    fm_map *staged;      /* id -> fms_staged_object */
    fm_arena *arena;
    fms_search *search; /* made at the first offer */
    fms_staged search_staged;
    fm_txn_stats stats;
    fm_progress_fn progress; /* during a put of a tree; else NULL */
    void *progress_ctx;
    uint64_t done_bytes, total_bytes;
    bool broken; /* a failed put may have written half a record: commit is refused */
};

/* ---- put.c ---- */
/* Waits its turn. p is fm_malloc'ed and owned from now on, also on failure. parent: NULL or the
 * tensor to code against. Runs batches as they fill. */
FM_CHECKED fm_status fms_put_add(fm_txn *t, fms_put *p, const fm_digest *parent);
FM_CHECKED fm_status fms_put_drain(fm_txn *t); /* everything that waits is written */
void fms_put_drop(fm_txn *t);                  /* everything that waits is forgotten */
/* In the store, or in this transaction. */
FM_CHECKED fm_status fms_txn_known(fm_txn *t, const fm_digest *id, bool *out);

/* ---- txn.c ---- */
/* As fm_txn_put_tensor, and what the bytes are made of is known: coded against that recipe over stored
 * tensors, or where it is too deep, against its first input if that has this form. */
FM_CHECKED fm_status fms_txn_put_made(fm_txn *t, fm_digest *id_out, fm_dtype dtype,
                                      const fm_shape *shape, fm_span bytes, const fms_guess *made);

/* ---- txn_pack.c ---- */
/* queue[0] as a record; its payload is complete. */
FM_CHECKED fm_status fms_txn_write(fm_txn *t, fms_put *p);
FM_CHECKED fm_status fms_txn_seal(fm_txn *t); /* the last pack gets its footer and name */
/* fms_staged.read */
FM_CHECKED fm_status fms_txn_read_staged(void *ctx, const fm_digest *id, uint8_t **bytes,
                                         size_t *len);
/* The payload of queue[0]. */
FM_CHECKED fm_status fms_payload_append(fm_txn *t, const void *data, size_t len);
void fms_payload_clear(fm_txn *t);

FM_END_DECLS
#endif
