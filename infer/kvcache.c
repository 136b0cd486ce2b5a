/* kvcache.c - see kvcache.h. Growth copies pages on the device; a failure on the way leaves larger
 * arrays in some layers and the old page count, which is harmless. */
#include "infer/kvcache.h"

#include "store/base/mem.h"

#define FIRST_PAGES 8u

struct fmi_kv_pool {
    fmi_kv *kv;
    fmi_kv_pool *next;
    uint32_t layers, kv_heads, head_dim;
    size_t page_bytes; /* of K, or of V, in one layer */
    fm_kv_view *layer; /* [layers] */
    uint64_t pages, in_use;
    int32_t *free_page; /* stack of pages - in_use */
};

struct fmi_kv {
    fm_backend *be;
    uint64_t bytes, bytes_max;
    fmi_kv_pool *pools;
};

fm_status fmi_kv_new(fmi_kv **out, fm_backend *be, uint64_t bytes_max)
{
    *out = fm_calloc(1, sizeof(**out));
    if (!*out)
        return FM_ENOMEM;
    (*out)->be = be;
    (*out)->bytes_max = bytes_max;
    return FM_OK;
}

static void drop_pages(fmi_kv_pool *p)
{
    fm_backend *be = p->kv->be;
    for (uint32_t l = 0; l < p->layers; l++) {
        be->free(be, p->layer[l].k);
        be->free(be, p->layer[l].v);
        p->layer[l] = (fm_kv_view){NULL, NULL};
    }
    p->kv->bytes -= p->pages * fmi_kv_page_bytes(p);
    p->pages = 0;
}

void fmi_kv_free(fmi_kv *kv)
{
    if (!kv)
        return;
    fmi_kv_pool *next;
    for (fmi_kv_pool *p = kv->pools; p; p = next) {
        next = p->next;
        fm_assert(p->in_use == 0); /* sequences are closed before their engine */
        drop_pages(p);
        fm_free(p->layer);
        fm_free(p->free_page);
        fm_free(p);
    }
    fm_free(kv);
}

uint64_t fmi_kv_bytes(const fmi_kv *kv)
{
    return kv->bytes;
}

uint64_t fmi_kv_bytes_max(const fmi_kv *kv)
{
    return kv->bytes_max;
}

fm_status fmi_kv_pool_of(fmi_kv *kv, fmi_kv_pool **out, uint32_t layers, uint32_t kv_heads,
                         uint32_t head_dim)
{
    *out = NULL;
    for (fmi_kv_pool *p = kv->pools; p; p = p->next)
        if (p->layers == layers && p->kv_heads == kv_heads && p->head_dim == head_dim) {
            *out = p;
            return FM_OK;
        }
    fmi_kv_pool *p = fm_calloc(1, sizeof(*p));
    if (!p)
        return FM_ENOMEM;
    p->layer = fm_calloc(layers, sizeof(fm_kv_view));
    if (!p->layer) {
        fm_free(p);
        return FM_ENOMEM;
    }
    p->kv = kv;
    p->layers = layers;
    p->kv_heads = kv_heads;
    p->head_dim = head_dim;
    p->page_bytes = kv->be->kv_page_bytes(kv->be, kv_heads, head_dim);
    p->next = kv->pools;
    kv->pools = p;
    *out = p;
    return FM_OK;
}

uint64_t fmi_kv_page_bytes(const fmi_kv_pool *p)
{
    return (uint64_t)p->page_bytes * 2 * p->layers;
}

/* A larger array with the first `pages` pages of *array in it. */
static fm_status regrow(fmi_kv_pool *p, void **array, uint64_t pages)
{
    fm_backend *be = p->kv->be;
    void *fresh = NULL;
    fm_status rc = be->alloc(be, &fresh, (size_t)pages * p->page_bytes);
    if (rc != FM_OK)
        return rc;
    if (p->pages) {
        size_t floats = p->page_bytes / sizeof(float);
        be->copy_rows(be, fresh, floats, *array, floats, NULL, (uint32_t)p->pages,
                      (uint32_t)floats);
        rc = be->sync(be);
    }
    if (rc != FM_OK) {
        be->free(be, fresh);
        return rc;
    }
    be->free(be, *array);
    *array = fresh;
    return FM_OK;
}

static uint64_t growable(const fmi_kv_pool *p)
{
    uint64_t spare = p->kv->bytes_max;
    for (const fmi_kv_pool *o = p->kv->pools; o; o = o->next)
        if (o->in_use || o == p)
            spare -= FM_MIN(spare, o->pages * fmi_kv_page_bytes(o));
    return spare / fmi_kv_page_bytes(p);
}

static fm_status grow(fmi_kv_pool *p)
{
    uint64_t more = FM_MIN(growable(p), FM_MAX(p->pages, FIRST_PAGES));
    more = FM_MIN(more, (uint64_t)(INT32_MAX / FM_KV_PAGE) - p->pages);
    if (more == 0)
        return fm_fail(FM_ELIMIT, "KV cache: all of its %llu bytes are in use",
                       (unsigned long long)p->kv->bytes_max);
    uint64_t need = more * fmi_kv_page_bytes(p), pages = p->pages + more;
    for (fmi_kv_pool *o = p->kv->pools; o && p->kv->bytes + need > p->kv->bytes_max; o = o->next)
        if (o != p && !o->in_use)
            drop_pages(o);
    int32_t *list = fm_realloc(p->free_page, (size_t)pages * sizeof(int32_t));
    if (!list)
        return FM_ENOMEM;
    p->free_page = list;
    for (uint32_t l = 0; l < p->layers; l++) {
        fm_status rc = regrow(p, &p->layer[l].k, pages);
        if (rc == FM_OK)
            rc = regrow(p, &p->layer[l].v, pages);
        if (rc != FM_OK)
            return rc;
    }
    for (uint64_t i = 0; i < more; i++) /* lowest page on top of the stack */
        p->free_page[i] = (int32_t)(pages - 1 - i);
    p->pages = pages;
    p->kv->bytes += need;
    return FM_OK;
}

fm_status fmi_kv_take(fmi_kv_pool *p, int32_t *page)
{
    *page = -1;
    if (p->in_use == p->pages) {
        fm_status rc = grow(p);
        if (rc != FM_OK)
            return rc;
    }
    *page = p->free_page[p->pages - p->in_use - 1];
    p->in_use++;
    return FM_OK;
}

void fmi_kv_give(fmi_kv_pool *p, int32_t page)
{
    fm_assert(p->in_use > 0);
    p->in_use--;
    p->free_page[p->pages - p->in_use - 1] = page;
}

uint64_t fmi_kv_room(const fmi_kv_pool *p)
{
    return p->pages - p->in_use + growable(p);
}

fm_kv_view fmi_kv_layer(const fmi_kv_pool *p, uint32_t layer)
{
    return p->layer[layer];
}
