/* gc_priv.h - shared by gc.c, gc_packs.c and gc_rewrite.c: the packs of one moment, by object. */
#ifndef FM_STORE_GC_PRIV_H
#define FM_STORE_GC_PRIV_H

#include "store/gc/gc.h"
#include "store/pack/store_priv.h"

FM_BEGIN_DECLS

#define FMS_GC_NONE UINT32_MAX
#define FMS_GC_TROUBLE_BYTES 512

typedef enum fms_fate {
    FMS_FATE_KEEP,
    FMS_FATE_REPACK, /* its needed objects are copied, then it may go */
    FMS_FATE_GONE
} fms_fate;

typedef struct fms_gc_pack {
    char name[FM_HEX_CHARS + 1];
    fm_file_map map;
    uint64_t identity[2];
    bool sound;   /* header and footer are right */
    bool faulty;  /* a record's head is damaged */
    bool held;    /* a lease names it: not touched */
    bool damaged; /* frame, head or payload: removed only to the quarantine */
    bool written; /* by this run */
    fms_fate fate;
    uint32_t first, count; /* its records */
    uint64_t needed_bytes, dead_bytes;
} fms_gc_pack;

typedef struct fms_gc_record {
    uint32_t object, pack, next; /* next record of the same object, FMS_GC_NONE: none */
    uint32_t depth, parent_at, parent_count;
    uint64_t offset, stored_bytes;
    bool bad; /* does not decode */
    bool recipe;
} fms_gc_record;

typedef struct fms_gc_object {
    fm_digest id;
    uint32_t first; /* record */
    uint32_t root;
    uint32_t depth;        /* the least of its records: those of least depth form no circle */
    uint32_t new_depth;    /* upper bound of its depth after this run */
    uint64_t stored_bytes; /* bytes on disk of all its records */
    bool goes;             /* may be deleted now */
    bool safe;             /* in a pack that stays, decoded and compared */
    bool stay;             /* fms_gc_stay */
    bool pending;          /* in the pack that is being written */
    bool whole;            /* some record of it needs only whole objects */
} fms_gc_object;

struct fms_gc {
    fm_store *s;
    fms_gc_opts opts;
    fm_lock *lock, *gate;
    fms_gc_pack *pack;
    size_t packs, pack_cap;
    fms_gc_record *record;
    size_t records, record_cap;
    fms_gc_object *object;
    size_t objects, object_cap;
    fm_digest *parent; /* parents of all records, by parent_at */
    size_t parents, parent_cap;
    fm_map *by_id; /* id -> 1 + object */
    uint32_t *stack;
    size_t stack_cap;
    fms_condemned *condemned;
    fm_digest sum; /* digest of the list's file as this run wrote it */
    bool written;  /* this run wrote the list */
    bool looked;   /* for objects that are promised: once, however many there are */
    fms_leases leases;
    fm_map *git_gone;
    char fault[FMS_GC_TROUBLE_BYTES / 2]; /* why the last unreadable pack is so */
    char trouble[FMS_GC_TROUBLE_BYTES];   /* the first such reason, with what to do */
    bool upgrade;                         /* all unreadable packs are a newer fmstore's */
    size_t unreadable, missing;           /* packs */
    fms_gc_report report;
};

/* ---- gc_packs.c ---- */
/* Adds packs that are not in g yet, with their records and objects. FM_ECORRUPT, FM_EVERSION: one
 * cannot be read, so nothing may be condemned or deleted. */
FM_CHECKED fm_status fms_gc_look(fms_gc *g);
/* Reaches an object that a lease holds, which may not be in a pack yet. */
FM_CHECKED fm_status fms_gc_reach_held(fms_gc *g, const fm_digest *id);
void fms_gc_forget(fms_gc *g);
uint32_t fms_gc_find(const fms_gc *g, const fm_digest *id); /* object, FMS_GC_NONE */
/* Sets `goes` of each object: condemned, its batch over, not reached, not needed by one that
 * stays. */
FM_CHECKED fm_status fms_gc_settle(fms_gc *g);
bool fms_gc_batch_over(const fms_gc *g, const fms_batch *b, bool *held);
FM_CHECKED fm_status fms_gc_parse(const fms_gc *g, const fms_gc_record *rec, fms_record *out);

FM_END_DECLS
#endif
