/* reach.h - what refs, reflogs and leases reach: git objects and the store's.
 *
 * Every git object is read at most twice: for its first root, and again when a second one makes
 * it shared. What cannot be read stops the walk: who does not know what is reached must not
 * delete. */
#ifndef FM_LINEAGE_REACH_H
#define FM_LINEAGE_REACH_H

#include "lineage/internal.h"
#include "store/gc/gc.h"

#define FML_ROOT_GRACE (UINT32_MAX - 1) /* not reached, but not deleted yet either */

typedef struct fml_reach {
    fm_repo *r;
    fms_gc *gc;
    fm_map *seen; /* git id -> root */
    char **root;  /* names; number k is root[k - 1] */
    size_t roots, root_cap;
    int64_t reflog_expire; /* entries of that time or before do not count; the newest always does */
    uint64_t versions;     /* commits with a root */
    git_oid *todo;         /* commits waiting */
    size_t todo_count, todo_cap;
    unsigned depth;
} fml_reach;

FM_CHECKED fm_status fml_reach_init(fml_reach *x, fm_repo *r, fms_gc *gc, int64_t reflog_expire);
void fml_reach_release(fml_reach *x);
/* From every ref, every reflog and what leases hold. May be called again: only what is new is
 * walked. */
FM_CHECKED fm_status fml_reach_all(fml_reach *x);
/* From one object of any kind, as of FML_ROOT_GRACE; one that cannot be read is passed over. */
FM_CHECKED fm_status fml_reach_grace(fml_reach *x, const git_oid *id);
bool fml_reach_has(const fml_reach *x, const git_oid *id); /* by a root, not by grace */
/* By a root or by grace. */
bool fml_reach_stays(const fml_reach *x, const git_oid *id);
/* Drops expired entries from the reflogs; under the ref lock. */
FM_CHECKED fm_status fml_reflogs_expire(fm_repo *r, int64_t expire, uint64_t *dropped);

#endif
