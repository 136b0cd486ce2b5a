/* host_staging.c - see host_staging.h. */
#include "infer/device/host_staging.h"

#include <string.h>

#include "store/base/mem.h"

#define ROUND ((size_t)1 << 20)

void fmi_staging_init(fmi_staging *s, fm_backend *be)
{
    memset(s, 0, sizeof(*s));
    s->be = be;
    (void)pthread_mutex_init(&s->lock, NULL);
}

void fmi_staging_release(fmi_staging *s)
{
    for (size_t i = 0; i < FMI_STAGING_PIECES; i++)
        if (s->piece[i].bytes)
            s->be->host_free(s->be, s->piece[i].bytes);
    (void)pthread_mutex_destroy(&s->lock);
}

/* A free piece that is large enough, or the smallest free one, enlarged. The lock is held. */
static void *take_piece(fmi_staging *s, size_t bytes)
{
    size_t best = FMI_STAGING_PIECES, cap = (bytes + ROUND - 1) / ROUND * ROUND;
    for (size_t i = 0; i < FMI_STAGING_PIECES; i++) {
        bool fits = s->piece[i].cap >= bytes;
        if (s->piece[i].taken)
            continue;
        if (best == FMI_STAGING_PIECES || fits || s->piece[i].cap < s->piece[best].cap)
            best = i;
        if (fits)
            break;
    }
    if (best == FMI_STAGING_PIECES)
        return NULL;
    void *fresh = s->piece[best].bytes;
    if (s->piece[best].cap < bytes) {
        if (s->be->host_alloc(s->be, &fresh, cap) != FM_OK) {
            fm_error_clear(); /* plain memory works too */
            return NULL;
        }
        if (s->piece[best].bytes)
            s->be->host_free(s->be, s->piece[best].bytes);
        s->piece[best].bytes = fresh;
        s->piece[best].cap = cap;
    }
    s->piece[best].taken = true;
    return fresh;
}

void *fmi_staging_take(fmi_staging *s, size_t bytes)
{
    void *p = NULL;
    if (bytes && s->be->host_alloc && s->be->host_free && bytes <= FMI_STAGING_MOST) {
        (void)pthread_mutex_lock(&s->lock);
        p = take_piece(s, bytes);
        (void)pthread_mutex_unlock(&s->lock);
    }
    return p ? p : fm_aligned_alloc(64, bytes);
}

void fmi_staging_give(fmi_staging *s, void *bytes)
{
    bool ours = false;
    (void)pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < FMI_STAGING_PIECES && bytes && !ours; i++) {
        ours = s->piece[i].bytes == bytes;
        s->piece[i].taken = s->piece[i].taken && !ours;
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (!ours)
        fm_free(bytes);
}
