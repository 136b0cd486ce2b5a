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
#define FMI_PAYLOAD_HELD_MIN_BYTES ((size_t)24 << 20)
#define FMI_PAYLOAD_HELD_MAX_BYTES ((size_t)96 << 20)
#define FMI_STAGED_READ_MAX_BYTES ((uint64_t)48 << 20) /* a parent in the same transaction */
#define FMI_PACK_ROLL_BYTES ((uint64_t)2 << 30)        /* a transaction goes on in another pack */
enum { FMI_TXN_THREADS_MAX = 12, FMI_SLOTS_PER_THREAD = 4, FMI_SLOTS_MAX = 24 };

/* One object that is being put. */
typedef struct fmi_put {
    fmi_record r; /* its form and id; parents and depth once it is written */
    /* Its bytes: in memory, or leaf by leaf from a provider. */
    fm_span bytes;
    const fm_provider *from; /* NULL: in memory */
    const fm_entry *entry;
    fmi_chain basis; /* a draft of the record: what its leaves are coded against, where has_basis */
    bool has_basis;
    const fmi_guess *made; /* NULL: what it is made of is searched for; until fmi_put_add returns */
    bool hashed;           /* leaf[] is known from the start; else it fills as leaves are read */
    fm_digest *leaf;
    fmi_leaf_row *rows;
    uint32_t coded; /* leaves whose coded bytes are in the payload */
    uint64_t payload_bytes;
} fmi_put;

/* The bytes of leaf i, not verified: where they lie in memory, or read into buf (FM_LEAF_BYTES). */
FM_CHECKED fm_status fmi_put_leaf(const fmi_put *p, uint32_t i, uint8_t *buf, fm_span *out);

typedef struct fmi_staged_object {
    uint32_t pack; /* of the transaction */
    bool pending;  /* not written yet */
    uint64_t offset, stored_bytes;
} fmi_staged_object;

typedef struct fmi_slot {
    fmi_put *put;
    uint32_t leaf;
    bool basis_damaged;
    uint8_t *raw; /* a leaf that was read; made at its first use */
    fm_span bytes;
    fm_buf coded;
} fmi_slot;

struct fm_txn {
    fm_store *store;
    fm_pool *pool;
    unsigned threads;
    fmi_coder **coder; /* one a thread */
    fmi_slot *slot;
    size_t slots;
    fmi_put **queue; /* in the order of writing */
    size_t queued, queue_cap;
    uint64_t leaves_waiting;
    size_t held_max;
    fm_buf payload; /* coded leaves of queue[0], or the last of them beside a spill */
    fm_writer *spill;
    fmi_packer *pack; /* all but the last are sealed */
    size_t packs, packs_cap;
    uint64_t roll_bytes; /* FMI_PACK_ROLL_BYTES; tests set less */
    fm_map *staged;      /* id -> fmi_staged_object */
    fm_arena *arena;
    fmi_search *search; /* made at the first offer */
    fmi_staged search_staged;
    fm_txn_stats stats;
    fm_progress_fn progress; /* during a put of a tree; else NULL */
    void *progress_ctx;
    uint64_t done_bytes, total_bytes;
    bool broken; /* a failed put may have written half a record: commit is refused */
};

/* ---- put.c ---- */
/* Waits its turn. p is fm_malloc'ed and owned from now on, also on failure. parent: NULL or the
 * tensor to code against. Runs batches as they fill. */
FM_CHECKED fm_status fmi_put_add(fm_txn *t, fmi_put *p, const fm_digest *parent);
FM_CHECKED fm_status fmi_put_drain(fm_txn *t); /* everything that waits is written */
void fmi_put_drop(fm_txn *t);                  /* everything that waits is forgotten */
/* In the store, or in this transaction. */
FM_CHECKED fm_status fmi_txn_known(fm_txn *t, const fm_digest *id, bool *out);

/* ---- txn.c ---- */
/* As fm_txn_put_tensor, and what the bytes are made of is known: coded against that recipe over stored
 * tensors, or where it is too deep, against its first input if that has this form. */
FM_CHECKED fm_status fmi_txn_put_made(fm_txn *t, fm_digest *id_out, fm_dtype dtype,
                                      const fm_shape *shape, fm_span bytes, const fmi_guess *made);

/* ---- txn_pack.c ---- */
/* queue[0] as a record; its payload is complete. */
FM_CHECKED fm_status fmi_txn_write(fm_txn *t, fmi_put *p);
FM_CHECKED fm_status fmi_txn_seal(fm_txn *t); /* the last pack gets its footer and name */
/* fmi_staged.read */
FM_CHECKED fm_status fmi_txn_read_staged(void *ctx, const fm_digest *id, uint8_t **bytes,
                                         size_t *len);
/* The payload of queue[0]. */
FM_CHECKED fm_status fmi_payload_append(fm_txn *t, const void *data, size_t len);
void fmi_payload_clear(fm_txn *t);

FM_END_DECLS
#endif
