/* slab.c - see slab.h. */
#include "infer/model/slab.h"

#include <pthread.h>

#include "store/base/mem.h"

#define SLAB_BYTES ((size_t)32 << 20)

struct fmi_slab {
    char *room;
    size_t used, size;
    uint32_t pieces; /* pieces in use */
};

struct fmi_slabs {
    pthread_mutex_t lock;
    fmi_slab *open; /* gives the next piece; NULL: no slab yet */
};

fm_status fmi_slabs_new(fmi_slabs **out)
{
    *out = fm_calloc(1, sizeof(**out));
    if (!*out)
        return FM_ENOMEM;
    (void)pthread_mutex_init(&(*out)->lock, NULL);
    return FM_OK;
}

static void slab_free(fmi_slab *b)
{
    fm_zeroed_free(b->room);
    fm_free(b);
}

void fmi_slabs_free(fmi_slabs *s)
{
    if (!s)
        return;
    if (s->open) {
        fm_assert(s->open->pieces == 0);
        slab_free(s->open);
    }
    (void)pthread_mutex_destroy(&s->lock);
    fm_free(s);
}

static fmi_slab *slab_new(size_t size)
{
    fmi_slab *b = fm_calloc(1, sizeof(*b));
    if (!b)
        return NULL;
    b->size = size;
    b->room = fm_zeroed_alloc(size);
    if (b->room)
        return b;
    fm_free(b);
    return NULL;
}

/* A slab with space for a piece; pieces of half a slab and more get their own. The lock is held. */
static fmi_slab *slab_for(fmi_slabs *s, size_t bytes)
{
    if (bytes >= SLAB_BYTES / 2)
        return slab_new(bytes);
    if (s->open && s->open->size - s->open->used >= bytes)
        return s->open;
    fmi_slab *fresh = slab_new(SLAB_BYTES);
    if (!fresh)
        return NULL;
    if (s->open && s->open->pieces == 0)
        slab_free(s->open);
    s->open = fresh;
    return fresh;
}

void *fmi_slab_take(fmi_slabs *s, fmi_slab **of, size_t bytes)
{
    void *piece = NULL;
    size_t whole = (bytes + 63) & ~(size_t)63;
    *of = NULL;
    if (whole < bytes)
        return NULL;
    (void)pthread_mutex_lock(&s->lock);
    fmi_slab *b = slab_for(s, whole);
    if (b) {
        piece = b->room + b->used;
        b->used += whole;
        b->pieces++;
        *of = b;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return piece;
}

void fmi_slab_give(fmi_slabs *s, fmi_slab *of)
{
    if (!of)
        return;
    (void)pthread_mutex_lock(&s->lock);
    if (--of->pieces == 0 && of == s->open)
        of->used = 0; /* used anew from its beginning */
    else if (of->pieces == 0)
        slab_free(of);
    (void)pthread_mutex_unlock(&s->lock);
}
