/* kvarena.h - one segment of bytes that pools of pages of different sizes share.
 *
 * The segment is cut into extents, each with one owner at most; a pool takes neighbouring extents
 * as its pages need them and puts its pages there, one behind the other, at multiples of `align`
 * from the segment's beginning. This is arithmetic alone and touches no memory, so every rank can
 * count the segments of other ranks alike. */
#ifndef FM_INFER_KVARENA_H
#define FM_INFER_KVARENA_H

#include "store/base/error.h"

FM_BEGIN_DECLS

#define FMI_EXTENTS 1024u
#define FMI_NOBODY UINT16_MAX

typedef struct fmi_arena {
    uint64_t bytes, extent; /* of the segment; of each extent but the last, which has the rest */
    uint32_t extents;
    uint16_t owner[FMI_EXTENTS]; /* FMI_NOBODY: free */
} fmi_arena;

/* A pool's part. Zero-initialise. */
typedef struct fmi_arena_pool {
    uint16_t number;       /* the pool's number in the arena */
    uint64_t align, bytes; /* of a page */
    uint64_t limit;        /* pages end at or below this offset */
    uint64_t at, end;      /* the unused rest of the extents that it took last */
} fmi_arena_pool;

void fmi_arena_init(fmi_arena *a, uint64_t bytes);
/* Takes the next page of p, which begins at *at; false: there is no space for one. */
bool fmi_arena_take(fmi_arena *a, fmi_arena_pool *p, uint64_t *at);
/* All extents of p are free again. */
void fmi_arena_drop(fmi_arena *a, fmi_arena_pool *p);
/* Pages that p could still take; gives[i]: extents of pool i count as free (NULL: no pool's). */
uint64_t fmi_arena_left(const fmi_arena *a, const fmi_arena_pool *p, const bool *gives,
                        uint32_t pools);

FM_END_DECLS
#endif
