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
    pthread_mutex_t mutex; /* guards index, open, idle, recent */
    fms_index *index;
    fms_open_pack *open;
    fms_coder *idle[FMS_IDLE_CODERS];
    size_t idle_count;
    size_t unsound_packs; /* at the last look at packs/ */
    fms_lease *lease;     /* NULL: none */
    fms_recent *recent;   /* NULL: none */
    fm_missing_fn missing; /* NULL: none */
    void *missing_ctx;
    bool rescanned;       /* a read had all packs scanned anew, which is done once */
};

/* ---- store_lease.c ---- */
/* Takes a writer's lease if there is none. */
FM_CHECKED fm_status fms_store_lease_need(fm_store *s);
/* ---- store.c ---- */
FM_CHECKED fm_status fms_store_coder(fm_store *s, fms_coder **out); /* borrows a coder */
void fms_store_coder_return(fm_store *s, fms_coder *c);

/* Compares packs/ with the index and mends the index. The mutex must be held. */
FM_CHECKED fm_status fms_store_refresh(fm_store *s);
/* Likewise, unless packs/ still has the time at which the index agreed with it, so that opening
 * need not list ten thousand packs. A miss compares them all the same. The mutex must be held. */
FM_CHECKED fm_status fms_store_look(fm_store *s);
bool fms_store_is_fresh(fm_store *s); /* packs/ has that time */
/* Notes that the index agrees with packs/ as it is now; store.lock must be held. */
void fms_store_mark_fresh(fm_store *s);
/* Fills the index from every pack, in a new file if `fresh` or damaged. The mutex must be held. */
FM_CHECKED fm_status fms_store_rescan(fm_store *s, bool fresh);
/* Scans a pack file into the index, which must have an open change. *sound: its frame is right. */
FM_CHECKED fm_status fms_store_scan_pack(fm_store *s, const char *name, bool *sound);
/* Indexes a pack that was just put into place. Takes the mutex. FM_ECORRUPT: it cannot be read. */
FM_CHECKED fm_status fms_store_index_pack(fm_store *s, const char *name);
char *fms_store_pack_path(const fm_store *s, const char *name); /* fm_free */
bool fms_is_pack_name(const char *file, char name[FM_HEX_CHARS + 1]);

/* *out: the object and all that it needs are indexed, none bad. look: refresh on a miss. */
FM_CHECKED fm_status fms_store_has(fm_store *s, const fm_digest *id, bool look, bool *out);
/* Parses the record at an object's nth place; FM_ENOTFOUND beyond the last. Takes the mutex. */
FM_CHECKED fm_status fms_store_record(fm_store *s, const fm_digest *id, uint32_t nth, bool look,
                                      fms_record *out, fms_place *place);

/* An object and all that its leaves are made from (delta_chain.c). link[0] is the object; a parent
 * has a lesser depth than its child. Leaves of recipes' inputs are cached, since recipes read them
 * by pieces. Threads may share a chain, each with a coder of its own. */
#define FMS_LINKS_MAX 64u
#define FMS_COST_MAX 4096u /* leaves decoded for one leaf, at most */

typedef struct fms_link_more {
    uint64_t *offset;                 /* offset of each leaf in the payload */
    uint8_t *owned;                   /* a staged record, read back; NULL: the record is mapped */
    bool staged;                      /* not stored yet */
    uint32_t parent[FMS_PARENTS_MAX]; /* indices in fms_chain.link */
    fms_inputs inputs;                /* inputs of the recipe; read and ctx are not set */
    uint64_t cost;
} fms_link_more;

typedef struct fms_leaf_cache fms_leaf_cache;

typedef struct fms_chain {
    fms_record *link;
    fms_link_more *more;
    uint32_t count;
    size_t link_cap, more_cap;
    fms_leaf_cache *cache; /* NULL: no recipe, and no fms_chain_keep */
    bool unchecked;        /* digests of leaves are not compared: FM_RANGE_UNCHECKED */
} fms_chain;

/* Gives records that are not stored yet; FM_ENOTFOUND: it is none of them. One of the two is set:
 * read gives a copy that the caller frees, map a record whose bytes stay while a chain is open. */
typedef struct fms_staged {
    void *ctx;
    fm_status (*read)(void *ctx, const fm_digest *id, uint8_t **bytes, size_t *len);
    fm_status (*map)(void *ctx, const fm_digest *id, fms_record *out);
} fms_staged;

/* staged may be NULL. FM_EBASE: a parent is missing or has another dtype or shape. FM_ELIMIT: more
 * than FMS_LINKS_MAX objects or FMS_COST_MAX leaves are needed. */
FM_CHECKED fm_status fms_chain_open(fms_chain *out, fm_store *s, const fm_digest *id, uint32_t nth,
                                    const fms_staged *staged);
/* As fms_chain_open, for a record that the caller has. */
FM_CHECKED fm_status fms_chain_from(fms_chain *out, fm_store *s, const fms_record *r,
                                    const fms_staged *staged);
/* For a record yet to be written. The draft has parents, recipe and form; its depth is set here,
 * and draft->recipe then points to the chain's copy of the parameters. FM_ELIMIT: a parent is at
 * the greatest depth. Use the chain for fms_chain_predict only. */
FM_CHECKED fm_status fms_chain_draft(fms_chain *out, fm_store *s, fms_record *draft,
                                     const fms_staged *staged);
void fms_chain_release(fms_chain *ch);
/* Decodes leaf i of the object and checks every digest on the way. */
FM_CHECKED fm_status fms_chain_leaf(const fms_chain *ch, fms_coder *c, uint32_t i, uint8_t *dst);
/* Decodes and compares every leaf of a record; leaf: a buffer of FM_LEAF_BYTES. */
FM_CHECKED fm_status fms_record_verify(fm_store *s, fms_coder *c, const fms_record *r,
                                       uint8_t *leaf);
/* Whether the status of a read means that the repository is damaged, or newer. */
bool fms_is_damage(fm_status rc);

/* Decodes what leaf i of the object is coded against: the parent's leaf, or the recipe's. */
FM_CHECKED fm_status fms_chain_predict(const fms_chain *ch, fms_coder *c, uint32_t i, uint8_t *dst);
/* Bytes [offset, offset + bytes) of the object. Needs fms_chain_keep. */
FM_CHECKED fm_status fms_chain_range(const fms_chain *ch, fms_coder *c, uint64_t offset, void *dst,
                                     size_t bytes);
/* Caches up to `leaves` decoded leaves from now on, for reads of many small ranges. */
FM_CHECKED fm_status fms_chain_keep(fms_chain *ch, size_t leaves);

/* ---- leaf_cache.c ---- */
FM_CHECKED fm_status fms_cache_new(fms_leaf_cache **out, size_t leaves);
void fms_cache_free(fms_leaf_cache *k);
/* A cached leaf is held until fms_cache_return; out->data NULL: it is not cached. */
typedef struct fms_held_leaf {
    const uint8_t *data;
    void *slot; /* NULL: the holder owns `data` */
} fms_held_leaf;
void fms_cache_take(fms_leaf_cache *k, uint32_t link, uint32_t leaf, fms_held_leaf *out);
/* Gives data (fm_malloc) to the cache, or to the holder where all slots are held. */
void fms_cache_add(fms_leaf_cache *k, uint32_t link, uint32_t leaf, uint8_t *data,
                   fms_held_leaf *out);
void fms_cache_return(fms_leaf_cache *k, fms_held_leaf *held);

/* ---- read_range.c ---- */
/* Closes the chain that ranges were read from last. */
void fms_store_forget_recent(fm_store *s);
/* The functions for fm_provider.place and .range. */
FM_CHECKED fm_status fms_store_provide_place(void *ctx, const fm_entry *e, fm_file_part *out);
FM_CHECKED fm_status fms_store_provide_range(void *ctx, const fm_entry *e, uint64_t offset,
                                             uint64_t bytes, void *dst, unsigned flags);

FM_END_DECLS
#endif
