/* store_priv.h - the inside of an open store: its mapped packs, caches and delta chains, for the
 * files that read, write, check and collect. Not for other folders. */
#ifndef FM_STORE_STORE_PRIV_H
#define FM_STORE_STORE_PRIV_H

#include <pthread.h>

#include "store/base/os/guard.h"
#include "store/base/map.h"
#include "store/codec/codec.h"
#include "store/pack/index.h"
#include "store/lease/lease.h"
#include "store/store.h"

FM_BEGIN_DECLS

#define FMS_PACK_SUFFIX ".pack"

/* A pack mapped once and kept until the store is closed: records point into it. */
typedef struct fms_open_pack {
    int64_t row;
    char name[FM_HEX_CHARS + 1];
    fm_file_map map;
    struct fms_open_pack *next;
} fms_open_pack;

#define FMS_IDLE_CODERS 8

typedef struct fms_recent fms_recent; /* read_range.c */

struct fm_store {
    char *root, *packs_dir, *tmp_dir, *index_path, *lock_path;
    pthread_mutex_t mutex; /* index, open packs, idle coders */
    fms_index *index;
    fms_open_pack *open;
    fms_coder *idle[FMS_IDLE_CODERS];
    size_t idle_count;
    size_t unsound_packs; /* seen at the last look at packs/ */
    fms_lease *lease;     /* NULL: none */
    fms_recent *recent;   /* NULL: none */
    bool rescanned;       /* all packs were scanned anew because of a read: once a handle */
};

/* ---- store_lease.c ---- */
/* A writer's lease is held on FM_OK. */
FM_CHECKED fm_status fms_store_lease_need(fm_store *s);
FM_CHECKED fm_status fms_store_coder(fm_store *s, fms_coder **out); /* borrow a coder */
void fms_store_coder_return(fm_store *s, fms_coder *c);

/* Compares packs/ with the index and mends the index. The mutex must be held. */
FM_CHECKED fm_status fms_store_refresh(fm_store *s);
/* Likewise, unless the folder's time is the one at which the index agreed with it: opening need not
 * list ten thousand packs. A miss looks at all of them all the same. The mutex must be held. */
FM_CHECKED fm_status fms_store_look(fm_store *s);
bool fms_store_is_fresh(fm_store *s); /* no look is needed */
/* The index agrees with the folder as it is now; under the lock of publishing. */
void fms_store_mark_fresh(fm_store *s);
/* Fills the index anew from every pack; with `fresh`, or where SQLite cannot read it, a new file
 * takes its place. The mutex must be held. */
FM_CHECKED fm_status fms_store_rescan(fm_store *s, bool fresh);
/* Scans one pack file into the index (a transaction must be open). *sound: its frame is right. */
FM_CHECKED fm_status fms_store_scan_pack(fm_store *s, const char *name, bool *sound);
/* A pack that was just put into place. Takes the mutex. FM_ECORRUPT: it cannot be read back. */
FM_CHECKED fm_status fms_store_index_pack(fm_store *s, const char *name);
char *fms_store_pack_path(const fm_store *s, const char *name); /* fm_free */
bool fms_is_pack_name(const char *file, char name[FM_HEX_CHARS + 1]);

/* Sound and indexed, as far as is known. look: on a miss, look for other processes' packs. */
FM_CHECKED fm_status fms_store_has(fm_store *s, const fm_digest *id, bool look, bool *out);
/* The nth place of an object, parsed, FM_ENOTFOUND beyond the last. Takes the mutex. */
FM_CHECKED fm_status fms_store_record(fm_store *s, const fm_digest *id, uint32_t nth, bool look,
                                      fms_record *out, fms_place *place);

/* An object and all that its leaves are made from. link[0] is the object; each step to a parent
 * goes to a lesser depth. The leaves of recipes' inputs are kept for a while, so that one which is
 * needed piece by piece is decoded once. Threads may read through one chain at once, each with a
 * coder of its own. */
#define FMS_LINKS_MAX 64u
#define FMS_COST_MAX 4096u /* leaves decoded for one leaf, at most */

typedef struct fms_link_more {
    uint64_t *offset;                 /* of each leaf in the payload */
    uint8_t *owned;                   /* a record of an open transaction, read back */
    uint32_t parent[FMS_PARENTS_MAX]; /* numbers of links */
    fms_inputs inputs;                /* of a recipe; read and ctx are not set */
    uint64_t cost;
} fms_link_more;

typedef struct fms_leaf_cache fms_leaf_cache;

typedef struct fms_chain {
    fms_record *link;
    fms_link_more *more;
    uint32_t count;
    size_t link_cap, more_cap;
    fms_leaf_cache *cache; /* NULL: no recipe */
    bool unchecked;        /* digests of leaves are not compared: FM_RANGE_UNCHECKED */
} fms_chain;

/* Where a transaction's staged records come from; fn gives FM_ENOTFOUND for others' ids. The bytes
 * are the caller's to free. */
typedef struct fms_staged {
    void *ctx;
    fm_status (*read)(void *ctx, const fm_digest *id, uint8_t **bytes, size_t *len);
} fms_staged;

/* staged may be NULL. FM_EBASE: a parent is missing or has another dtype or shape. FM_ELIMIT: more
 * than FMS_LINKS_MAX objects or FMS_COST_MAX leaves are needed. */
FM_CHECKED fm_status fms_chain_open(fms_chain *out, fm_store *s, const fm_digest *id, uint32_t nth,
                                    const fms_staged *staged);
/* As above, for a record already in hand. */
FM_CHECKED fm_status fms_chain_from(fms_chain *out, fm_store *s, const fms_record *r,
                                    const fms_staged *staged);
/* For a record that is yet to be written: parents, recipe and form are given, depth is set here, and the
 * parameters are copied: draft->recipe points to the chain's.
 * FM_ELIMIT: a parent is at the greatest depth. Only fms_chain_predict reads it. */
FM_CHECKED fm_status fms_chain_draft(fms_chain *out, fm_store *s, fms_record *draft,
                                     const fms_staged *staged);
void fms_chain_release(fms_chain *ch);
/* Decodes leaf i of the object and checks every digest on the way. */
FM_CHECKED fm_status fms_chain_leaf(const fms_chain *ch, fms_coder *c, uint32_t i, uint8_t *dst);
/* Every leaf of a record against its digest; leaf: room for FM_LEAF_BYTES. */
FM_CHECKED fm_status fms_record_verify(fm_store *s, fms_coder *c, const fms_record *r,
                                       uint8_t *leaf);
/* What reading gave says that the repository is damaged, or newer; not that we lack memory, say. */
bool fms_is_damage(fm_status rc);

/* What leaf i of the object is coded against: its parent's, or what its recipe gives. */
FM_CHECKED fm_status fms_chain_predict(const fms_chain *ch, fms_coder *c, uint32_t i, uint8_t *dst);
/* Bytes [offset, offset + bytes) of the object; chains opened with fms_chain_keep keep leaves. */
FM_CHECKED fm_status fms_chain_range(const fms_chain *ch, fms_coder *c, uint64_t offset, void *dst,
                                     size_t bytes);
/* Keeps up to `leaves` decoded leaves from now on, for who reads many small ranges. */
FM_CHECKED fm_status fms_chain_keep(fms_chain *ch, size_t leaves);

/* ---- leaf_cache.c ---- */
FM_CHECKED fm_status fms_cache_new(fms_leaf_cache **out, size_t leaves);
void fms_cache_free(fms_leaf_cache *k);
/* A leaf that is kept is held until it is returned; out->data NULL: it is not kept. */
typedef struct fms_held_leaf {
    const uint8_t *data;
    void *slot; /* NULL: `data` is the holder's own */
} fms_held_leaf;
void fms_cache_take(fms_leaf_cache *k, uint32_t link, uint32_t leaf, fms_held_leaf *out);
/* data (fm_malloc) goes to the cache, or stays the holder's where all places are held. */
void fms_cache_add(fms_leaf_cache *k, uint32_t link, uint32_t leaf, uint8_t *data,
                   fms_held_leaf *out);
void fms_cache_return(fms_leaf_cache *k, fms_held_leaf *held);

/* The chain that ranges were read from last is let go of. */
void fms_store_forget_recent(fm_store *s);
/* fm_provider's place and range. */
FM_CHECKED fm_status fms_store_provide_place(void *ctx, const fm_entry *e, fm_file_part *out);
FM_CHECKED fm_status fms_store_provide_range(void *ctx, const fm_entry *e, uint64_t offset,
                                             uint64_t bytes, void *dst, unsigned flags);

FM_END_DECLS
#endif
