/* kvarena.c - see kvarena.h. First fit: a pool goes on behind its last extent as long as the next
 * one is free, so one pool wastes nothing, several less than a page at each border. */
#include "infer/kv/kvarena.h"

#include <string.h>

#define AHEAD 16u /* a pool takes extents for so many pages at once, where they are free */

void fmi_arena_init(fmi_arena *a, uint64_t bytes)
{
    a->bytes = bytes;
    a->extent = FM_MAX(bytes / FMI_EXTENTS, (uint64_t)1);
    a->extents = (uint32_t)FM_MIN(bytes / a->extent, (uint64_t)FMI_EXTENTS);
    for (uint32_t i = 0; i < FMI_EXTENTS; i++)
        a->owner[i] = FMI_NOBODY;
}

static uint64_t begin_of(const fmi_arena *a, uint32_t i)
{
    return i == a->extents ? a->bytes : i * a->extent;
}

static uint64_t first_page(const fmi_arena_pool *p, uint64_t from)
{
    return (from + p->align - 1) / p->align * p->align;
}

static uint64_t pages_in(const fmi_arena_pool *p, uint64_t from, uint64_t end)
{
    uint64_t at = first_page(p, from);
    end = FM_MIN(end, p->limit);
    return at < end ? (end - at) / p->bytes : 0;
}

/* The extent behind those that p took last. */
static uint32_t behind(const fmi_arena *a, const fmi_arena_pool *p)
{
    return p->end == a->bytes ? a->extents : (uint32_t)(p->end / a->extent);
}

/* Gives free extents from i on to p, until AHEAD pages fit from offset `from` on. */
static void claim(fmi_arena *a, fmi_arena_pool *p, uint32_t i, uint64_t from)
{
    while (i < a->extents && a->owner[i] == FMI_NOBODY && pages_in(p, from, begin_of(a, i)) < AHEAD)
        a->owner[i++] = p->number;
    p->at = from;
    p->end = begin_of(a, i);
}

/* The end of the free extents from i on. */
static uint32_t free_end(const fmi_arena *a, uint32_t i)
{
    while (i < a->extents && a->owner[i] == FMI_NOBODY)
        i++;
    return i;
}

bool fmi_arena_take(fmi_arena *a, fmi_arena_pool *p, uint64_t *at)
{
    if (pages_in(p, p->at, p->end) == 0 && p->end > 0)
        claim(a, p, behind(a, p), p->at);
    for (uint32_t i = 0, end; pages_in(p, p->at, p->end) == 0 && i < a->extents; i = end + 1) {
        end = free_end(a, i);
        if (pages_in(p, begin_of(a, i), begin_of(a, end)) > 0)
            claim(a, p, i, begin_of(a, i));
    }
    if (pages_in(p, p->at, p->end) == 0)
        return false;
    *at = first_page(p, p->at);
    p->at = *at + p->bytes;
    return true;
}

void fmi_arena_drop(fmi_arena *a, fmi_arena_pool *p)
{
    for (uint32_t i = 0; i < a->extents; i++)
        if (a->owner[i] == p->number)
            a->owner[i] = FMI_NOBODY;
    p->at = p->end = 0;
}

static bool is_free(const fmi_arena *a, uint32_t i, const bool *gives, uint32_t pools)
{
    return a->owner[i] == FMI_NOBODY || (gives && a->owner[i] < pools && gives[a->owner[i]]);
}

uint64_t fmi_arena_left(const fmi_arena *a, const fmi_arena_pool *p, const bool *gives,
                        uint32_t pools)
{
    uint32_t own = p->end > 0 ? behind(a, p) : UINT32_MAX;
    uint64_t pages = 0;
    bool counted = p->end == 0;
    for (uint32_t i = 0, j; i < a->extents; i = j + 1) {
        for (j = i; j < a->extents && is_free(a, j, gives, pools);)
            j++;
        bool goes_on = i <= own && own < j && !counted; /* p goes on from its last page */
        pages += goes_on ? pages_in(p, p->at, begin_of(a, j))
                         : pages_in(p, begin_of(a, i), begin_of(a, j));
        counted = counted || goes_on;
    }
    return counted ? pages : pages + pages_in(p, p->at, p->end);
}
