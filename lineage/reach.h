/* reach.h - what refs, reflogs and leases reach: git objects and the store's. A version reaches its
 * parents, its tree, and what its recipe and its suites name by an id (named.h).
 *
 * Every git object is read at most twice: for its first root, and again when a second one makes
 * it shared; recipes and suites as often once more, for what they name. What cannot be read stops
 * the walk: who does not know what is reached must not delete. */
#ifndef FM_LINEAGE_REACH_H
#define FM_LINEAGE_REACH_H

#include "lineage/internal.h"
#include "store/gc/gc.h"

#define FML_ROOT_GRACE (UINT32_MAX - 1) /* the root of objects not reached but not deleted yet */

typedef struct fml_reach {
    fm_repo *r;
    fms_gc *gc;
    fm_map *seen;  /* git id -> root */
    fm_map *named; /* recipes, suites and their folders, read for what they name: git id -> root */
    fm_map *cut;   /* named versions that are not whole here */
    char **root;  /* names; number k is root[k - 1] */
    size_t roots, root_cap;
    int64_t reflog_expire; /* entries from then or before do not count; the newest always does */
    uint64_t versions;     /* commits with a root */
    git_oid *todo;         /* commits waiting, and trees that are named */
    size_t todo_count, todo_cap;
    unsigned depth;
} fml_reach;

FM_CHECKED fm_status fml_reach_init(fml_reach *x, fm_repo *r, fms_gc *gc, int64_t reflog_expire);
void fml_reach_release(fml_reach *x);
/* Walks from every ref, every reflog and every object named in a lease. May be called again: it
 * then walks only what is new. */
FM_CHECKED fm_status fml_reach_all(fml_reach *x);
/* Walks from one object of any kind, for FML_ROOT_GRACE; skips an object that cannot be read. */
FM_CHECKED fm_status fml_reach_grace(fml_reach *x, const git_oid *id);
bool fml_reach_has(const fml_reach *x, const git_oid *id); /* by a root, not by grace */
/* By a root or by grace. */
bool fml_reach_stays(const fml_reach *x, const git_oid *id);
/* Drops expired entries from the reflogs; under the ref lock. */
FM_CHECKED fm_status fml_reflogs_expire(fm_repo *r, int64_t expire, uint64_t *dropped);

#endif
