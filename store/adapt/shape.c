/* shape.c - the shapes of a step's tensors, for the formulas. */
#include "store/adapt/adapt_impl.h"

uint64_t adt_dim(const adt_step *s, size_t i, uint32_t axis)
{
    const fm_entry *e = s->part[i];
    return e && axis < e->shape.rank ? e->shape.dim[axis] : 0;
}

fm_status adt_need(const adt_step *s, size_t i, uint32_t rank, uint64_t d0, uint64_t d1)
{
    const fm_entry *e = s->part[i];
    const fm_shape want = {rank, {d0, rank > 1 ? d1 : 0}};
    char have[160], text[160];

    fm_assert(e);
    if (e->shape.rank == rank && d0 > 0 && e->shape.dim[0] == d0 &&
        (rank < 2 || (d1 > 0 && e->shape.dim[1] == d1)))
        return FM_OK;
    fm_shape_text(&e->shape, have, sizeof have);
    fm_shape_text(&want, text, sizeof text);
    return fm_fail(FM_EBASE, "adapter tensor '%s' of shape %s does not fit: %s is wanted", e->name,
                   have, text);
}
