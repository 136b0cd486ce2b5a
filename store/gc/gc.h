/* gc.h - deleting what nothing reaches, and repacking: the store's half. lineage (reach.c, gc.c)
 * finds what refs, reflogs and leases reach, and deletes git's objects.
 *
 * Order of a run; README.md has the argument:
 *   open       take the gc lock; read the heads of all packs, each of which must be readable
 *   reach      mark the reached objects and all that their deltas need; each must be there, whole
 *   condemn    with the gate closed for a moment: list the unreached objects durably, with the
 *              leases of that moment; take off the list what is reached again
 *   rewrite    write new packs with the needed objects of packs that are mostly dead or are
 *              repacked; each such object is decoded and compared with its digests
 *   enter      close the gate, read the leases again, reach what they and the refs now reach
 *   remove     packs of which nothing is needed any more: index rows, then files
 *   leave      write the list without what is gone; open the gate
 * A run killed at any point leaves too much, never too little, and the next run finishes.
 *
 * A pack that cannot be read hides what its records need, so nothing is condemned or deleted while
 * there is a damaged pack, a pack of a newer fmstore, a pack that the index knows and packs/ lacks,
 * or a reached object that is in no pack. FM_ECORRUPT, or FM_EVERSION where a newer fmstore would
 * help, names the pack or the object and says what to do. With `quarantine` damaged packs are
 * accepted, and nothing is condemned. For one thread. */
#ifndef FM_STORE_GC_H
#define FM_STORE_GC_H

#include "store/lease/lease.h"
#include "store/store.h"

FM_BEGIN_DECLS

#define FMS_ROOT_NONE 0u
#define FMS_ROOT_SHARED UINT32_MAX

typedef struct fms_gc fms_gc;

typedef struct fms_gc_opts {
    bool dry_run;    /* nothing is condemned, written or removed */
    int64_t now;     /* seconds since 1970 */
    int64_t expire;  /* what was condemned until then may go; INT64_MAX: all, INT64_MIN: nothing */
    bool repack;     /* join small packs */
    bool repack_all; /* repack every pack */
    uint32_t depth;  /* longest delta chain of a repacked object; FMS_CHAIN_MAX: any */
    bool slow;       /* repacked objects are coded again with the slow level */
    /* *yes: another repository has the object, so that it may lie nowhere here; NULL: none is so.
     * Its ctx is promised_ctx. */
    fm_status (*promised)(void *ctx, const fm_digest *id, bool *yes);
    void *promised_ctx;
    bool quarantine; /* damaged packs go to quarantine/ once all reached objects are safe */
    uint64_t pack_bytes;     /* a new pack ends at this size; 0 = 2 GiB */
    fm_progress_fn progress; /* called while decoding and writing; may be NULL */
    void *ctx;
} fms_gc_opts;

typedef struct fms_gc_report {
    uint64_t objects, bytes;                 /* in the packs, each object once; on disk */
    uint64_t live_objects, live_bytes;       /* reached */
    uint64_t new_objects, new_bytes;         /* condemned by this run */
    uint64_t waiting_objects, waiting_bytes; /* condemned, grace not over */
    uint64_t held_objects, held_bytes;       /* grace over, but a running writer may use them */
    uint64_t gone_objects, gone_bytes;       /* deleted (dry run: would be deleted) */
    uint64_t stuck_objects, stuck_bytes;     /* could go, but their pack is still mostly live */
    uint64_t packs_before, packs_after, pack_bytes_before, pack_bytes_after;
    uint64_t packs_written, recoded_objects;
    uint64_t bad_objects; /* objects that do not decode: their packs stay */
    uint64_t git_new, git_gone;
    bool no_room; /* the disk was too full for the new packs: run gc again */
} fms_gc_report;

FM_CHECKED fm_status fms_gc_open(fms_gc **out, fm_store *s, const fms_gc_opts *opts);
void fms_gc_close(fms_gc *g); /* NULL is fine */

/* Marks an object as reached. root: 1 + number of the root that reaches it; objects of two roots
 * get FMS_ROOT_SHARED. FM_ECORRUPT: no pack holds it with all that it needs, new packs included. */
FM_CHECKED fm_status fms_gc_reach(fms_gc *g, const fm_digest *id, uint32_t root);
/* Keeps this run from deleting an unreached object, which something unreached that stays needs. */
FM_CHECKED fm_status fms_gc_stay(fms_gc *g, const fm_digest *id);
/* Some pack holds it with all that it is coded against. */
FM_CHECKED fm_status fms_gc_whole(fms_gc *g, const fm_digest *id, bool *out);
/* Bytes on disk of what this root alone reaches, and their number. After the reaching. */
void fms_gc_kept(const fms_gc *g, uint32_t root, uint64_t *objects, uint64_t *bytes);

/* git_ids: `count` ids of 20 bytes, of unreached objects in git's packs. */
FM_CHECKED fm_status fms_gc_condemn(fms_gc *g, const uint8_t *git_ids, size_t count);
FM_CHECKED fm_status fms_gc_rewrite(fms_gc *g);
FM_CHECKED fm_status fms_gc_enter(fms_gc *g);
/* The leases as condemn, and later enter, read them. */
const fms_leases *fms_gc_leases(const fms_gc *g);
bool fms_gc_git_condemned(const fms_gc *g, const uint8_t *id); /* by now, or by a gc before */
/* Of the leases last looked at: this git object may be deleted now, unless it is reached. */
bool fms_gc_git_goes(const fms_gc *g, const uint8_t *id);
void fms_gc_git_gone(fms_gc *g, const uint8_t *id); /* the object was deleted */
/* Takes all fms_gc_git_gone back: on a full disk git's objects could not be deleted. */
FM_CHECKED fm_status fms_gc_git_stays(fms_gc *g);
FM_CHECKED fm_status fms_gc_remove(fms_gc *g);
FM_CHECKED fm_status fms_gc_leave(fms_gc *g);
const fms_gc_report *fms_gc_result(const fms_gc *g);

FM_END_DECLS
#endif
