/* gc_priv.h - what gc.c, gc_packs.c and gc_rewrite.c share: the packs of one moment, object by
 * object. */
#ifndef FM_STORE_GC_PRIV_H
#define FM_STORE_GC_PRIV_H

#include "store/gc/gc.h"
#include "store/pack/store_priv.h"

FM_BEGIN_DECLS

#define FMS_GC_NONE UINT32_MAX
#define FMS_GC_TROUBLE_BYTES 512

typedef enum fms_fate {
    FMS_FATE_KEEP,
    FMS_FATE_REPACK, /* what is needed of it is copied, then it may go */
    FMS_FATE_GONE
} fms_fate;

typedef struct fms_gc_pack {
    char name[FM_HEX_CHARS + 1];
    fm_file_map map;
    uint64_t identity[2];
    bool sound;   /* its frame is right */
    bool faulty;  /* holds a record that is not */
    bool held;    /* its owner is still at it: never touched */
    bool damaged; /* frame, head or payload: touched for the quarantine only */
    bool written; /* by this run */
    fms_fate fate;
    uint32_t first, count; /* its records */
    uint64_t needed_bytes, dead_bytes;
} fms_gc_pack;

typedef struct fms_gc_record {
    uint32_t object, pack, next; /* next record of the same object, FMS_GC_NONE: none */
    uint32_t depth, parent_at, parent_count;
    uint64_t offset, stored_bytes;
    bool bad; /* found not to decode */
    bool recipe;
} fms_gc_record;

typedef struct fms_gc_object {
    fm_digest id;
    uint32_t first; /* record */
    uint32_t root;
    uint32_t depth;        /* the least of its records; those with it never lead in a circle */
    uint32_t new_depth;    /* of its record after this run, at most */
    uint64_t stored_bytes; /* of all its records */
    bool goes;             /* may be deleted by now */
    bool safe;             /* lies, decoded and compared, where this run removes nothing */
    bool stay;             /* fms_gc_stay */
    bool pending;          /* in the pack that is being written */
    bool whole;            /* some record of it needs nothing that is not there */
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
    fm_digest *parent; /* of all records, by parent_at */
    size_t parents, parent_cap;
    fm_map *by_id; /* id -> 1 + object */
    uint32_t *stack;
    size_t stack_cap;
    fms_condemned *condemned;
    fm_digest sum; /* of the file as this run wrote it */
    bool written;  /* the file is as `sum` says */
    fms_leases leases;
    fm_map *git_gone;
    char fault[FMS_GC_TROUBLE_BYTES / 2]; /* the last pack's that cannot be read */
    char trouble[FMS_GC_TROUBLE_BYTES];   /* the first one's, with what to do */
    bool upgrade;                       /* all of them are a newer fmstore's */
    size_t unreadable, missing;         /* packs */
    fms_gc_report report;
};

/* ---- gc_packs.c ---- */
/* Fills packs, records, objects with the packs that are not in g yet. FM_ECORRUPT, FM_EVERSION: one
 * cannot be read, so that nothing may be condemned or deleted. */
FM_CHECKED fm_status fms_gc_look(fms_gc *g);
/* What a lease holds: it may be anywhere, or not there yet. */
FM_CHECKED fm_status fms_gc_reach_held(fms_gc *g, const fm_digest *id);
void fms_gc_forget(fms_gc *g);
uint32_t fms_gc_find(const fms_gc *g, const fm_digest *id); /* object, FMS_GC_NONE */
/* Says of each object whether it goes: condemned, its batch over, not reached, and nothing that
 * stays needs it. */
FM_CHECKED fm_status fms_gc_settle(fms_gc *g);
bool fms_gc_batch_over(const fms_gc *g, const fms_batch *b, bool *held);
FM_CHECKED fm_status fms_gc_parse(const fms_gc *g, const fms_gc_record *rec, fms_record *out);

FM_END_DECLS
#endif
