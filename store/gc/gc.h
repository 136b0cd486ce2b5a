/* gc.h - deleting what nothing reaches, and folding packs: the store's half. lineage (reach.c,
 * gc.c) says what refs, reflogs and leases reach, and deletes git's objects.
 *
 * Order of a run; README.md has the argument:
 *   open       the one gc of the repository; the packs as they are now. All of them must be readable
 *   reach      what is reached, with all that its deltas need; each of it must be there, whole
 *   condemn    gate closed for a moment: what is not reached is listed durably, with the leases of
 *              that moment; what is reached again is taken off
 *   rewrite    new packs with what stays of the packs that are mostly dead, or that are folded;
 *              each object of theirs is decoded and compared with its digests
 *   enter      gate closed; leases read again. reach what they hold and what refs reach by now
 *   remove     packs of which nothing is needed any more: index rows, then files
 *   leave      the list without what is gone; gate open
 * Killed anywhere it leaves too much, never too little, and the next run finishes.
 *
 * A pack that cannot be read hides what its records stand on, so nothing is condemned or deleted
 * while there is one: a damaged pack, one of a newer fmstore, one that the index knows and packs/
 * lacks, an object that is reached and lies nowhere. FM_ECORRUPT, or FM_EVERSION where a newer
 * fmstore would do, names the pack or the object and says what to do. With `quarantine` damaged
 * packs are let pass, and then nothing is condemned.
 * For one thread. */
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
    int64_t expire;  /* what was condemned until then may go: INT64_MAX all, INT64_MIN nothing */
    bool repack;     /* small packs into few */
    bool repack_all; /* every pack */
    uint32_t depth;  /* longest delta chain that a folded object may keep; FMS_CHAIN_MAX: any */
    bool slow;       /* folded objects are coded again with the slow level */
    bool quarantine; /* packs with damage go to quarantine/, once all that is reached is safe */
    uint64_t pack_bytes;     /* a new pack ends when it has so many; 0 = 2 GiB */
    fm_progress_fn progress; /* of decoding and writing; may be NULL */
    void *ctx;
} fms_gc_opts;

typedef struct fms_gc_report {
    uint64_t objects, bytes;                 /* in the packs, each object once; on disk */
    uint64_t live_objects, live_bytes;       /* reached */
    uint64_t new_objects, new_bytes;         /* condemned by this run */
    uint64_t waiting_objects, waiting_bytes; /* condemned, grace not over */
    uint64_t held_objects, held_bytes;       /* grace over, but a writer runs that may use them */
    uint64_t gone_objects, gone_bytes;       /* deleted (dry run: would be) */
    uint64_t stuck_objects, stuck_bytes;     /* may go, but their pack is still mostly live */
    uint64_t packs_before, packs_after, pack_bytes_before, pack_bytes_after;
    uint64_t packs_written, recoded_objects;
    uint64_t bad_objects; /* do not decode: their packs stay as they are */
    uint64_t git_new, git_gone;
    bool no_room; /* for what is written before it can be removed: run gc again */
} fms_gc_report;

FM_CHECKED fm_status fms_gc_open(fms_gc **out, fm_store *s, const fms_gc_opts *opts);
void fms_gc_close(fms_gc *g); /* NULL is fine */

/* root: 1 + number of whoever reaches it; an object that two reach becomes FMS_ROOT_SHARED.
 * FM_ECORRUPT: no pack holds it with all that it needs, also after a look at packs that came since. */
FM_CHECKED fm_status fms_gc_reach(fms_gc *g, const fm_digest *id, uint32_t root);
/* Not reached, but needed by something unreached that stays: not deleted by this run. */
FM_CHECKED fm_status fms_gc_stay(fms_gc *g, const fm_digest *id);
/* Bytes on disk of what this root alone reaches, and their number. After the reaching. */
void fms_gc_kept(const fms_gc *g, uint32_t root, uint64_t *objects, uint64_t *bytes);

/* git_ids: count ids of 20 bytes of objects in git's packs that are not reached. */
FM_CHECKED fm_status fms_gc_condemn(fms_gc *g, const uint8_t *git_ids, size_t count);
FM_CHECKED fm_status fms_gc_rewrite(fms_gc *g);
FM_CHECKED fm_status fms_gc_enter(fms_gc *g);
/* Of the last look at them: condemn's, then enter's. */
const fms_leases *fms_gc_leases(const fms_gc *g);
/* Of the leases last looked at: this git object may be deleted now, unless it is reached. */
bool fms_gc_git_goes(const fms_gc *g, const uint8_t *id);
void fms_gc_git_gone(fms_gc *g, const uint8_t *id); /* it was deleted */
/* None was, for want of room: what fms_gc_git_gone said does not count. */
FM_CHECKED fm_status fms_gc_git_stays(fms_gc *g);
FM_CHECKED fm_status fms_gc_remove(fms_gc *g);
FM_CHECKED fm_status fms_gc_leave(fms_gc *g);
const fms_gc_report *fms_gc_result(const fms_gc *g);

FM_END_DECLS
#endif
