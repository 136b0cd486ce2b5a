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
    FM_TRY(fm_map_put(l->seen, id->b, FM_DIGEST_BYTES, l, NULL));
    FM_TRY(fm_grow(&l->id, &l->id_cap, l->count + 1, sizeof *l->id));
    l->id[l->count++] = *id;
    return FM_OK;
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
    qsort(p, *count, sizeof *p, by_depth);
    for (size_t i = 0; i < *count; i++)
        (*out)[i] = p[i].at;
    fm_free(p);
    return FM_OK;
}
