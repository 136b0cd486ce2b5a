/* slab.h - memory for packed weights, side by side in segments of huge pages.
 *
 * A decode step streams every weight once, and tensors of small models are smaller than a huge
 * page. Stored one behind another in huge pages they are read at the memory's rate; in pages of 4
 * KiB at 60 to 75 % of it (tests/bench/SPEED.md). A slab goes back to the system (the newest one is
 * used anew) when its last piece is given back; a piece given back before that is not used again.
 * May be called from any thread. */
#ifndef FM_INFER_SLAB_H
#define FM_INFER_SLAB_H

#include "store/base/error.h"

FM_BEGIN_DECLS

typedef struct fmi_slab fmi_slab;
typedef struct fmi_slabs fmi_slabs;

FM_CHECKED fm_status fmi_slabs_new(fmi_slabs **out);
void fmi_slabs_free(fmi_slabs *s); /* NULL is fine; all pieces are given back */
/* A piece of `bytes`, 64-byte aligned, and the slab to give it back to; NULL: no memory. */
void *fmi_slab_take(fmi_slabs *s, fmi_slab **of, size_t bytes);
void fmi_slab_give(fmi_slabs *s, fmi_slab *of); /* NULL is fine */

FM_END_DECLS
#endif
