/* list.c - the list of records that travel. */
#include <stdlib.h>
#include <string.h>

#include "remote/sync/sync.h"
#include "store/base/mem.h"

fm_status fmr_list_init(fmr_list *l)
{
    memset(l, 0, sizeof *l);
    return fm_map_new(&l->seen);
}

void fmr_list_release(fmr_list *l)
{
    fm_map_free(l->seen);
    fm_free(l->id);
    fm_free(l->info);
    fm_free(l->there);
    memset(l, 0, sizeof *l);
}

fm_status fmr_list_add(fmr_list *l, const fm_digest *id)
{
    if (fm_map_has(l->seen, id->b, FM_DIGEST_BYTES))
        return FM_OK;
    FM_TRY(fm_grow(&l->id, &l->id_cap, l->count + 1, sizeof *l->id));
    l->id[l->count++] = *id;
    return fm_map_put(l->seen, id->b, FM_DIGEST_BYTES, (void *)(uintptr_t)l->count, NULL);
}

fm_status fmr_list_grow_info(fmr_list *l)
{
    FM_TRY(fm_grow(&l->info, &l->info_cap, l->count + 1, sizeof *l->info));
    return fm_grow(&l->there, &l->there_cap, l->count + 1, sizeof *l->there);
}

typedef struct place {
    uint32_t depth;
    size_t at;
} place;

static int by_depth(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->depth != y->depth)
        return x->depth < y->depth ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Records that came into a bucket by several pushes have depths of their own senders, so what each
 * is coded against decides. LEVELS_MAX: a sender that lies may name a circle; the intake refuses
 * it. */
#define LEVELS_MAX 64u

static uint32_t level_above(const fmr_list *l, const place *p, const uint32_t *at_of)
{
    const fm_record_info *info = &l->info[p->at];
    uint32_t level = p->depth;
    for (uint32_t k = 0; k < info->parent_count; k++) {
        const size_t i = (size_t)(uintptr_t)fm_map_get(l->seen, info->parent[k].b, FM_DIGEST_BYTES);
        if (i > 0 && i <= l->count && l->there[i - 1])
            level = FM_MAX(level, at_of[i - 1] + 1);
    }
    return level;
}

/* Raises levels until each is greater than those of what its record is coded against. */
static fm_status set_levels(const fmr_list *l, place *p, size_t count)
{
    uint32_t *level = fm_calloc(l->count + 1, sizeof *level);
    bool changed = true;
    if (!level)
        return FM_ENOMEM;
    for (size_t i = 0; i < count; i++)
        level[p[i].at] = p[i].depth;
    for (unsigned round = 0; changed && round < LEVELS_MAX; round++) {
        changed = false;
        for (size_t i = 0; i < count; i++) {
            const uint32_t now = level_above(l, &p[i], level);
            changed = changed || now != p[i].depth;
            p[i].depth = level[p[i].at] = now;
        }
    }
    fm_free(level);
    return FM_OK;
}

fm_status fmr_list_order(const fmr_list *l, size_t **out, size_t *count)
{
    *count = 0;
    *out = fm_calloc(l->count + 1, sizeof **out);
    place *p = fm_calloc(l->count + 1, sizeof *p);
    if (!*out || !p) {
        fm_free(p);
        return FM_ENOMEM;
    }
    for (size_t i = 0; i < l->count; i++)
        if (l->there[i])
            p[(*count)++] = (place){l->info[i].depth, i};
    fm_status rc = set_levels(l, p, *count);
    qsort(p, *count, sizeof *p, by_depth);
    for (size_t i = 0; i < *count; i++)
        (*out)[i] = p[i].at;
    fm_free(p);
    return rc;
}
