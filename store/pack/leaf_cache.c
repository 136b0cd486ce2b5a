/* leaf_cache.c - a cache of decoded leaves; the least recently used one is dropped first.
 *
 * A recipe reads its inputs in pieces (a row of each, a column's element of every row), and several
 * threads read the same leaf of an adapter: the leaf is decoded once. Two threads that miss at once
 * both decode it, which costs only time. */
#include "store/base/mem.h"
#include "store/pack/store_priv.h"

typedef struct slot {
    uint32_t link, leaf;
    uint32_t holders;
    uint64_t used; /* when it was last taken */
    uint8_t *data; /* NULL: empty */
} slot;

struct fms_leaf_cache {
    pthread_mutex_t mutex;
    size_t max;
    uint64_t clock;
    slot slot[];
};

fm_status fms_cache_new(fms_leaf_cache **out, size_t leaves)
{
    fms_leaf_cache *k = fm_calloc(1, sizeof *k + leaves * sizeof(slot));
    *out = k;
    if (!k)
        return FM_ENOMEM;
    pthread_mutex_init(&k->mutex, NULL);
    k->max = leaves;
    return FM_OK;
}

void fms_cache_free(fms_leaf_cache *k)
{
    if (!k)
        return;
    for (size_t i = 0; i < k->max; i++)
        fm_free(k->slot[i].data);
    pthread_mutex_destroy(&k->mutex);
    fm_free(k);
}

static slot *find(fms_leaf_cache *k, uint32_t link, uint32_t leaf)
{
    for (size_t i = 0; i < k->max; i++)
        if (k->slot[i].data && k->slot[i].link == link && k->slot[i].leaf == leaf)
            return &k->slot[i];
    return NULL;
}

static void hold(fms_leaf_cache *k, slot *s, fms_held_leaf *out)
{
    s->holders++;
    s->used = ++k->clock;
    *out = (fms_held_leaf){s->data, s};
}

void fms_cache_take(fms_leaf_cache *k, uint32_t link, uint32_t leaf, fms_held_leaf *out)
{
    *out = (fms_held_leaf){NULL, NULL};
    pthread_mutex_lock(&k->mutex);
    slot *s = find(k, link, leaf);
    if (s)
        hold(k, s, out);
    pthread_mutex_unlock(&k->mutex);
}

/* An empty slot, or the least recently used one that no thread holds. */
static slot *make_room(fms_leaf_cache *k)
{
    slot *best = NULL;
    for (size_t i = 0; i < k->max; i++) {
        slot *s = &k->slot[i];
        if (!s->data)
            return s;
        if (!s->holders && (!best || s->used < best->used))
            best = s;
    }
    if (best)
        fm_free(best->data);
    return best;
}

void fms_cache_add(fms_leaf_cache *k, uint32_t link, uint32_t leaf, uint8_t *data,
                   fms_held_leaf *out)
{
    *out = (fms_held_leaf){data, NULL};
    pthread_mutex_lock(&k->mutex);
    slot *s = find(k, link, leaf);
    if (s) { /* another thread was quicker */
        fm_free(data);
        hold(k, s, out);
    } else if ((s = make_room(k)) != NULL) {
        *s = (slot){.link = link, .leaf = leaf, .data = data};
        hold(k, s, out);
    }
    pthread_mutex_unlock(&k->mutex);
}

void fms_cache_return(fms_leaf_cache *k, fms_held_leaf *held)
{
    slot *s = held->slot;
    if (s) {
        pthread_mutex_lock(&k->mutex);
        s->holders--;
        pthread_mutex_unlock(&k->mutex);
    } else {
        fm_free((void *)(uintptr_t)held->data);
    }
    *held = (fms_held_leaf){NULL, NULL};
}
