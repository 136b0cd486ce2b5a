/* ring.c - a queue of bytes. */
#include "store/base/ring.h"

#include <string.h>

#include "store/base/mem.h"

fm_status fm_ring_put(fm_ring *r, const void *data, size_t len, size_t *put)
{
    *put = FM_MIN(len, r->max - r->len);
    if (*put == 0)
        return FM_OK;
    if (!r->data && !(r->data = fm_malloc(r->max))) {
        *put = 0;
        return FM_ENOMEM;
    }
    const uint8_t *from = data;
    const size_t end = (r->at + r->len) % r->max, first = FM_MIN(*put, r->max - end);
    memcpy(r->data + end, from, first);
    memcpy(r->data, from + first, *put - first);
    r->len += *put;
    return FM_OK;
}

size_t fm_ring_take(fm_ring *r, void *dst, size_t cap)
{
    const size_t n = FM_MIN(cap, r->len);
    if (n == 0)
        return 0;
    const size_t first = FM_MIN(n, r->max - r->at);
    memcpy(dst, r->data + r->at, first);
    memcpy((uint8_t *)dst + first, r->data, n - first);
    r->at = (r->at + n) % r->max;
    r->len -= n;
    return n;
}

void fm_ring_clear(fm_ring *r)
{
    r->at = r->len = 0;
}

void fm_ring_release(fm_ring *r)
{
    fm_free(r->data);
    *r = (fm_ring){.max = r->max};
}
