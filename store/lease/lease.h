/* lease.h - who is at work in a repository, so that gc keeps off what they are about to use.
 *
 * A writer asks "is this object stored?", writes only what is not, and moves a ref minutes or hours
 * later; until then nothing reaches what it found. A lease says that it lives. README.md ("Nothing
 * lost, nothing kept for ever") has the protocol and why it is enough; in short:
 *
 *   gate        leases/gate, an flock: shared while a lease begins or gets a line, exclusive while
 *               gc condemns or deletes. So a lease is seen by gc, or it begins after and sees what
 *               gc wrote.
 *   lease       leases/<32 hex>, its flock held by the owner: a dead owner's lock is free, whatever
 *               its pid. Text, FORMAT.md section "Leases".
 *   condemned   (doomed.h) what gc found unreached. To a lease that began later these objects are
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

#define FMI_LEASE_NAME_CHARS 32u

typedef struct fmi_lease fmi_lease;

/* what: one word or a few for people ("import of atlas"), control bytes are replaced. writes false:
 * only the listed ids are protected (a server that must not keep gc from ending). */
FM_CHECKED fm_status fmi_lease_begin(fmi_lease **out, const char *root, bool writes,
                                     const char *what);
void fmi_lease_end(fmi_lease *l); /* NULL is fine; keeps the current error text */
bool fmi_lease_writes(const fmi_lease *l);
/* What was condemned when the lease began; borrowed, never NULL. */
const fmi_condemned *fmi_lease_condemned(const fmi_lease *l);

/* Ids that gc must treat as reached while the lease lives. FMI_HOLD_PACK: a pack about to be put
 * into place, with all that it holds. Written before the return, each id once. */
typedef enum fmi_hold { FMI_HOLD_OBJECT, FMI_HOLD_PACK, FMI_HOLD_COMMIT, FMI_HOLD_GIT } fmi_hold;
/* ids: count ids of 32 bytes (objects, packs) or 20 (git), one after the other. */
FM_CHECKED fm_status fmi_lease_hold(fmi_lease *l, fmi_hold kind, const uint8_t *ids, size_t count);

/* Takes over what another lease of the same handle holds. */
FM_CHECKED fm_status fmi_lease_inherit(fmi_lease *l, const fmi_lease *from);

/* ==== of an open store (pack/store_lease.c) =================================================== */

/* gc found it unreached before this handle's lease began: not to be counted on, store it again. */
bool fmi_store_condemned(const fm_store *s, const fm_digest *id);
bool fmi_store_git_condemned(const fm_store *s, const uint8_t *id);
/* From now on gc takes these for reached. Nothing happens without a lease. */
FM_CHECKED fm_status fmi_store_hold(fm_store *s, fmi_hold kind, const uint8_t *ids, size_t count);
bool fmi_store_leased(const fm_store *s, bool writes);

/* ==== gc's side ============================================================================ */

/* Exclusive: no lease begins or gets a line until it is dropped. */
FM_CHECKED fm_status fmi_gate_close(fm_lock **out, const char *root);

typedef struct fmi_lease_seen {
    char name[FMI_LEASE_NAME_CHARS + 1];
    bool writes;
    int64_t begun; /* seconds since 1970, for people */
    char what[128];
} fmi_lease_seen;
typedef struct fmi_leases {
    fmi_lease_seen *lease; /* of the living, sorted by name */
    size_t count;
    fm_buf held[4]; /* by fmi_hold: ids one after the other */
} fmi_leases;
/* The gate must be closed: files of dead owners are removed. A living lease that cannot be read
 * (a newer fmstore's) is FM_ECORRUPT: gc must not go on. */
FM_CHECKED fm_status fmi_leases_read(fmi_leases *out, const char *root);
void fmi_leases_release(fmi_leases *ls);

FM_END_DECLS
#endif
