/* ring.h - a queue of bytes with a fixed most; its two threads share a lock of their own. */
#ifndef FM_BASE_RING_H
#define FM_BASE_RING_H

#include "store/base/error.h"

FM_BEGIN_DECLS

typedef struct fm_ring {
    size_t max; /* set by its owner */
    size_t at, len;
    uint8_t *data; /* made at the first byte */
} fm_ring;

/* Appends as much as there is room for; *put: how many bytes that is. */
FM_CHECKED fm_status fm_ring_put(fm_ring *r, const void *data, size_t len, size_t *put);
/* Takes up to cap bytes; returns how many. */
size_t fm_ring_take(fm_ring *r, void *dst, size_t cap);
void fm_ring_clear(fm_ring *r);
void fm_ring_release(fm_ring *r);

FM_END_DECLS
#endif
