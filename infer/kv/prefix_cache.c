/* prefix_cache.c - see prefix_cache.h. Nodes come from slabs, and each pool has an array of entries
 * by page number, so that a step that completes a block allocates nothing. */
#include "infer/kv/prefix_cache.h"

#include <string.h>

#include "store/base/mem.h"

#define FIRST_BUCKETS 4096u
#define SLAB_NODES 256u
#define MAX_POOLS 512u

struct fmi_node {
    fmi_node *parent, *next; /* next: in its bucket, or in the free list */
    uint64_t hash;
    uint32_t refs; /* from pages, children and holders */
    uint32_t count;
    int32_t token[FM_KV_PAGE];
};

typedef struct slab {
    struct slab *next;
    fmi_node node[SLAB_NODES];
} slab;

/* The node and key of a kept page; by page number. */
typedef struct entry {
    fmi_node *node;
    fm_digest key;
    int32_t next; /* in its bucket, -1 = last */
} entry;

typedef struct shelf { /* entries of one pool */
    entry *page;       /* [fmi_kv_numbers]; NULL until first used */
    int32_t *bucket;   /* first page + 1, 0 = none; [buckets] */
    size_t buckets;    /* a power of two */
} shelf;

struct fmi_prefix {
    fmi_kv *kv;
    fmi_node **bucket; /* [buckets], a power of two */
    size_t buckets, nodes;
    fmi_node *free_node;
    size_t free_nodes;
    slab *slabs;
    shelf shelf[MAX_POOLS]; /* by fmi_kv_pool_index */
    uint64_t evictions;
};

/* ==== life ==== */

static void forget(void *ctx, fmi_kv_pool *p, int32_t page);

fm_status fmi_prefix_new(fmi_prefix **out, fmi_kv *kv)
{
    *out = NULL;
    fmi_prefix *c = fm_calloc(1, sizeof(*c));
    if (!c)
        return FM_ENOMEM;
    c->kv = kv;
    c->buckets = FIRST_BUCKETS;
    c->bucket = fm_calloc(c->buckets, sizeof(fmi_node *));
    if (!c->bucket) {
        fm_free(c);
        return FM_ENOMEM;
    }
    fmi_kv_on_forget(kv, forget, c);
    *out = c;
    return FM_OK;
}

void fmi_prefix_free(fmi_prefix *c)
{
    if (!c)
        return;
    fmi_kv_drop_idle(c->kv);
    fm_assert(c->nodes == 0);
    slab *next;
    for (slab *s = c->slabs; s; s = next) {
        next = s->next;
        fm_free(s);
    }
    for (size_t i = 0; i < MAX_POOLS; i++) {
        fm_free(c->shelf[i].page);
        fm_free(c->shelf[i].bucket);
    }
    fm_free(c->bucket);
    fm_free(c);
}

uint64_t fmi_prefix_evictions(const fmi_prefix *c)
{
    return c->evictions;
}

/* ==== nodes ==== */

fm_status fmi_prefix_expect(fmi_prefix *c, uint32_t nodes)
{
    while (c->free_nodes < nodes) {
        slab *s = fm_malloc(sizeof(*s));
        if (!s)
            return FM_ENOMEM;
        s->next = c->slabs;
        c->slabs = s;
        for (size_t i = 0; i < SLAB_NODES; i++) {
            s->node[i].next = c->free_node;
            c->free_node = &s->node[i];
        }
        c->free_nodes += SLAB_NODES;
    }
    return FM_OK;
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15ull;
    return h ^ (h >> 29);
}

static uint64_t hash_of(const fmi_node *parent, const int32_t *token, uint32_t count)
{
    uint64_t h = parent ? parent->hash : 0x1234567;
    for (uint32_t i = 0; i < count; i++)
        h = mix(h, (uint32_t)token[i]);
    return h;
}

static fmi_node *find_node(const fmi_prefix *c, uint64_t hash, const fmi_node *parent,
                           const int32_t *token, uint32_t count)
{
    for (fmi_node *n = c->bucket[hash & (c->buckets - 1)]; n; n = n->next)
        if (n->hash == hash && n->parent == parent && n->count == count &&
            memcmp(n->token, token, count * sizeof(int32_t)) == 0)
            return n;
    return NULL;
}

fmi_node *fmi_prefix_child(const fmi_prefix *c, fmi_node *parent, const int32_t *token,
                           uint32_t count)
{
    return find_node(c, hash_of(parent, token, count), parent, token, count);
}

/* A table that cannot grow still works, only slower. */
static void grow_buckets(fmi_prefix *c)
{
    size_t buckets = c->buckets * 4;
    fmi_node **fresh = fm_calloc(buckets, sizeof(fmi_node *));
    if (!fresh)
        return;
    for (size_t i = 0; i < c->buckets; i++) {
        fmi_node *next;
        for (fmi_node *n = c->bucket[i]; n; n = next) {
            next = n->next;
            n->next = fresh[n->hash & (buckets - 1)];
            fresh[n->hash & (buckets - 1)] = n;
        }
    }
    fm_free(c->bucket);
    c->bucket = fresh;
    c->buckets = buckets;
}

fm_status fmi_prefix_grow(fmi_prefix *c, fmi_node **out, fmi_node *parent, const int32_t *token,
                          uint32_t count)
{
    uint64_t hash = hash_of(parent, token, count);
    fm_assert(count > 0 && count <= FM_KV_PAGE);
    *out = find_node(c, hash, parent, token, count);
    if (!*out) {
        FM_TRY(fmi_prefix_expect(c, 1));
        if (c->nodes >= c->buckets)
            grow_buckets(c);
        fmi_node *n = c->free_node;
        c->free_node = n->next;
        c->free_nodes--;
        *n = (fmi_node){.parent = parent, .hash = hash, .count = count};
        memcpy(n->token, token, count * sizeof(int32_t));
        n->next = c->bucket[hash & (c->buckets - 1)];
        c->bucket[hash & (c->buckets - 1)] = n;
        c->nodes++;
        fmi_node_hold(parent);
        *out = n;
    }
    fmi_node_hold(*out);
    return FM_OK;
}

void fmi_node_hold(fmi_node *n)
{
    if (n)
        n->refs++;
}

void fmi_node_drop(fmi_prefix *c, fmi_node *n)
{
    while (n) {
        fm_assert(n->refs > 0);
        if (--n->refs > 0)
            return;
        fmi_node **at = &c->bucket[n->hash & (c->buckets - 1)], *parent = n->parent;
        while (*at != n)
            at = &(*at)->next;
        *at = n->next;
        n->next = c->free_node;
        c->free_node = n;
        c->free_nodes++;
        c->nodes--;
        n = parent;
    }
}

fmi_node *fmi_node_parent(const fmi_node *n)
{
    return n->parent;
}

uint32_t fmi_node_tokens(const fmi_node *n)
{
    return n->count;
}

/* ==== pages ==== */

static size_t slot_of(const shelf *s, const fmi_node *n, const fm_digest *key)
{
    return (size_t)mix(n->hash, fm_get_u64(key->b)) & (s->buckets - 1);
}

int32_t fmi_prefix_find(const fmi_prefix *c, const fmi_kv_pool *p, const fmi_node *n,
                        const fm_digest *key)
{
    uint32_t i = fmi_kv_pool_index(p);
    const shelf *s = &c->shelf[FM_MIN(i, MAX_POOLS - 1)];
    if (i >= MAX_POOLS || !s->page)
        return -1;
    int32_t at = s->bucket[slot_of(s, n, key)] - 1;
    while (at >= 0 && (s->page[at].node != n || !fm_digest_eq(&s->page[at].key, key)))
        at = s->page[at].next;
    return at;
}

fm_status fmi_prefix_expect_pages(fmi_prefix *c, const fmi_kv_pool *p)
{
    size_t pages = (size_t)fmi_kv_numbers(p), buckets = 64;
    uint32_t i = fmi_kv_pool_index(p);
    if (i >= MAX_POOLS || c->shelf[i].page)
        return FM_OK;
    while (buckets < pages)
        buckets *= 2;
    entry *page = fm_calloc(FM_MAX(pages, (size_t)1), sizeof(entry));
    int32_t *bucket = fm_calloc(buckets, sizeof(int32_t));
    if (!page || !bucket) {
        fm_free(page);
        fm_free(bucket);
        return FM_ENOMEM;
    }
    c->shelf[i] = (shelf){.page = page, .bucket = bucket, .buckets = buckets};
    return FM_OK;
}

void fmi_prefix_put(fmi_prefix *c, fmi_kv_pool *p, fmi_node *n, const fm_digest *key, int32_t page)
{
    uint32_t i = fmi_kv_pool_index(p);
    if (i >= MAX_POOLS) /* pools beyond that are not cached */
        return;
    shelf *s = &c->shelf[i];
    fm_assert(s->page);
    size_t slot = slot_of(s, n, key);
    s->page[page] = (entry){.node = n, .key = *key, .next = s->bucket[slot] - 1};
    s->bucket[slot] = page + 1;
    fmi_node_hold(n);
    fmi_kv_keep(p, page);
}

static void forget(void *ctx, fmi_kv_pool *p, int32_t page)
{
    fmi_prefix *c = ctx;
    shelf *s = &c->shelf[fmi_kv_pool_index(p)];
    entry *e = &s->page[page];
    int32_t *at = &s->bucket[slot_of(s, e->node, &e->key)];
    if (*at == page + 1) {
        *at = e->next + 1;
    } else {
        int32_t k = *at - 1;
        while (s->page[k].next != page)
            k = s->page[k].next;
        s->page[k].next = e->next;
    }
    c->evictions++;
    fmi_node_drop(c, e->node);
    e->node = NULL;
}
