/* lease.h - leases tell gc which processes work in a repository, so that it keeps what they need.
 *
 * A writer asks "is this object stored?", writes only objects that are not, and moves a ref minutes
 * or hours later; until then nothing reaches the objects it found. Its lease shows that it lives.
 * README.md ("Nothing lost, nothing kept for ever") has the protocol and why it suffices; in short:
 *
 *   gate        leases/gate, an flock: shared while a lease begins or gets a line, exclusive while
 *               gc condemns or deletes. So gc sees a lease, or the lease begins later and sees
 *               what gc wrote.
 *   lease       leases/<32 hex>, whose flock the owner holds: a dead owner's lock is free, whatever
 *               its pid. Text, FORMAT.md section "Leases".
 *   condemned   (doomed.h) what gc found unreached. For a lease that began later these objects are
 *               not stored; for a lease that was there before, gc does not delete them until it
 *               has ended.
 *
 * One lease belongs to one store handle; its functions may be called from several threads. */
#ifndef FM_STORE_LEASE_H
#define FM_STORE_LEASE_H

#include "store/base/os/io.h"
#include "store/lease/doomed.h"
#include "store/store.h"

FM_BEGIN_DECLS

#define FMS_LEASE_NAME_CHARS 32u

typedef struct fms_lease fms_lease;

/* what: a few words for people ("import of atlas"); control bytes are replaced. writes false:
 * protects only the listed ids (a server must not keep gc from deleting anything else). */
FM_CHECKED fm_status fms_lease_begin(fms_lease **out, const char *root, bool writes,
                                     const char *what);
void fms_lease_end(fms_lease *l); /* NULL is fine; keeps the current error text */
bool fms_lease_writes(const fms_lease *l);
/* The list of the condemned when the lease began; borrowed, never NULL. */
const fms_condemned *fms_lease_condemned(const fms_lease *l);

/* Kinds of ids that gc must treat as reached while the lease lives. FMS_HOLD_PACK: a pack about to
 * be put into place, with all its objects. */
typedef enum fms_hold { FMS_HOLD_OBJECT, FMS_HOLD_PACK, FMS_HOLD_COMMIT, FMS_HOLD_GIT } fms_hold;
/* Holds `count` ids of 32 bytes (objects, packs) or 20 (git), in the file on return, each once. */
FM_CHECKED fm_status fms_lease_hold(fms_lease *l, fms_hold kind, const uint8_t *ids, size_t count);

/* Holds also what another lease of the same handle holds. */
FM_CHECKED fm_status fms_lease_inherit(fms_lease *l, const fms_lease *from);

/* ==== of an open store (pack/store_lease.c) =================================================== */

/* Whether gc condemned it before this handle's lease began: it must be stored again. */
bool fms_store_condemned(const fm_store *s, const fm_digest *id);
bool fms_store_git_condemned(const fm_store *s, const uint8_t *id);
/* From now on gc treats these as reached. Does nothing without a lease. */
FM_CHECKED fm_status fms_store_hold(fm_store *s, fms_hold kind, const uint8_t *ids, size_t count);
bool fms_store_leased(const fm_store *s, bool writes);

/* ==== gc's side ============================================================================ */

/* Takes the gate exclusively: no lease begins or gets a line until the lock is dropped. */
FM_CHECKED fm_status fms_gate_close(fm_lock **out, const char *root);

typedef struct fms_lease_seen {
    char name[FMS_LEASE_NAME_CHARS + 1];
    bool writes;
    int64_t begun; /* seconds since 1970, for people */
    char what[128];
} fms_lease_seen;
typedef struct fms_leases {
    fms_lease_seen *lease; /* leases of living processes, sorted by name */
    size_t count;
    fm_buf held[4]; /* by fms_hold: ids one after the other */
} fms_leases;
/* The gate must be closed: the leases of dead owners are removed. FM_ECORRUPT: a living lease
 * cannot be read (a newer fmstore's), so gc must not go on. */
FM_CHECKED fm_status fms_leases_read(fms_leases *out, const char *root);
void fms_leases_release(fms_leases *ls);

FM_END_DECLS
#endif
