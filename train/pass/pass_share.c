/* pass_share.c - saves activations only of lanes that need them.
 *
 * Rows are ordered by the lowest layer in which their lane trains, so the rows that a layer's
 * backward reads are its first ones; the others are read again only by that layer's forward. Each
 * kind of activation is therefore one segment of rows through all layers: a layer begins behind the
 * rows that the layer below saves, and the next layer's are written over its other rows. */
#include "train/pass/pass.h"

#include "store/base/mem.h"

/* How a field of a slot grows: for m rows it begins at fixed + m * per_row; a row is `wide`
 * floats. */
typedef struct column {
    uint64_t per_row, fixed, wide;
    bool there;
} column;

static float **fields(fmt_slot *s)
{
    return (float **)(void *)s;
}

/* Measures the fields on a slot of 16 rows and one of 32. */
static fm_status columns(column *c, uint64_t *total, fmt_plan_slot_fn plan, const void *ctx)
{
    fmt_slot a = {0}, b = {0};
    uint64_t at16 = 0, at32 = 0;

    plan(ctx, &a, NULL, &at32, 32);
    float *room = fm_malloc((size_t)at32 * sizeof(float) + 1);
    if (!room)
        return FM_ENOMEM;
    at32 = 0;
    plan(ctx, &a, room, &at16, 16);
    plan(ctx, &b, room, &at32, 32);
    *total = (at32 - at16) / 16;
    for (size_t k = 0; k < FMT_SLOT_FIELDS; k++) {
        c[k] = (column){.there = fields(&a)[k] != NULL};
        if (!c[k].there)
            continue;
        uint64_t of16 = (uint64_t)(fields(&a)[k] - room), of32 = (uint64_t)(fields(&b)[k] - room);
        c[k].per_row = (of32 - of16) / 16;
        c[k].fixed = of16 - 16 * c[k].per_row;
    }
    fm_free(room);
    for (size_t k = 0; k < FMT_SLOT_FIELDS; k++) {
        uint64_t next = *total;
        for (size_t j = 0; j < FMT_SLOT_FIELDS; j++)
            if (c[j].there && c[j].per_row > c[k].per_row && c[j].per_row < next)
                next = c[j].per_row;
        c[k].wide = next - c[k].per_row;
    }
    return FM_OK;
}

fm_status fmt_plan_shared(fmt_pass *p, uint32_t slots, float *base, uint64_t *at,
                          fmt_plan_slot_fn plan, const void *ctx)
{
    column c[FMT_SLOT_FIELDS];
    uint64_t total = 0, rows = 0, start = 0, m = ((uint64_t)p->cap.rows + 15) / 16 * 16;
    fm_status rc = columns(c, &total, plan, ctx);

    for (uint32_t i = 0; i < slots; i++, start += p->saved[i - 1])
        rows = FM_MAX(rows, start + m);
    start = 0;
    for (uint32_t i = 0; rc == FM_OK && base && i < slots; i++) {
        for (size_t k = 0; k < FMT_SLOT_FIELDS; k++)
            fields(&p->slot[i])[k] =
                c[k].there ? base + *at + c[k].per_row * rows + c[k].fixed + start * c[k].wide
                           : NULL;
        start += p->saved[i];
    }
    *at += total * rows;
    return rc;
}
