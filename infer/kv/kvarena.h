/* kvarena.h - one segment of bytes that pools of pages of different sizes share: who has what.
 *
 * The segment is cut into extents, each with one owner at most; a pool takes neighbouring extents
 * as its pages need them and puts its pages there, one behind the other, at multiples of `align`
 * from the beginning of all. It is arithmetic alone: no byte is touched, so ranks count the
 * segments of others alike. */
#ifndef FM_INFER_KVARENA_H
#define FM_INFER_KVARENA_H

#include "store/base/error.h"

FM_BEGIN_DECLS

#define FMI_EXTENTS 1024u
#define FMI_NOBODY UINT16_MAX

typedef struct fmi_arena {
    uint64_t bytes, extent; /* of all; of each extent but the last, which has the rest */
    uint32_t extents;
    uint16_t owner[FMI_EXTENTS]; /* FMI_NOBODY: free */
} fmi_arena;

/* Of one pool. Begun with zeros. */
typedef struct fmi_arena_pool {
    uint16_t number;       /* its own in the arena */
    uint64_t align, bytes; /* of a page */
    uint64_t limit;        /* pages end below */
    uint64_t at, end;      /* what is left of the extents that it took last */
} fmi_arena_pool;

void fmi_arena_init(fmi_arena *a, uint64_t bytes);
/* Where the next page of p begins; false: there is no room for one. */
bool fmi_arena_take(fmi_arena *a, fmi_arena_pool *p, uint64_t *at);
/* All extents of p are free again. */
void fmi_arena_drop(fmi_arena *a, fmi_arena_pool *p);
/* Pages that p could still take; gives[i]: extents of pool i count as free (NULL: of none). */
uint64_t fmi_arena_left(const fmi_arena *a, const fmi_arena_pool *p, const bool *gives,
                        uint32_t pools);

FM_END_DECLS
#endif
