/* prefix_cache.h - the cache of blocks: keys, values and residual streams of texts that were seen
 * before.
 *
 * A block is FM_KV_PAGE positions that begin at a page. Blocks form a tree by their tokens: a node
 * stands for all tokens from the beginning of a text. Tokens are compared themselves, so hashes
 * cannot confuse two texts. A node has pages, each under the key of what it was computed from
 * (model/layer_key.c): one page of K and V for each layer and each kind of model, and rows of the
 * residual stream where models part. Two models share a page exactly where their keys are equal,
 * whatever their names.
 *
 * The cache holds no pages: it keeps them (kvcache.h), so they leave when their memory is needed:
 * those of the least recently used text first, and of one text the deepest first. */
#ifndef FM_INFER_PREFIX_CACHE_H
#define FM_INFER_PREFIX_CACHE_H

#include "infer/kv/kvcache.h"
#include "store/base/math/hash.h"

FM_BEGIN_DECLS

typedef struct fmi_prefix fmi_prefix;
typedef struct fmi_node fmi_node;

FM_CHECKED fm_status fmi_prefix_new(fmi_prefix **out, fmi_kv *kv);
void fmi_prefix_free(fmi_prefix *c); /* before its kv; no node may be held */

/* After these calls so many new nodes can be made, and pages of p put, without allocating. */
FM_CHECKED fm_status fmi_prefix_expect(fmi_prefix *c, uint32_t nodes);
FM_CHECKED fm_status fmi_prefix_expect_pages(fmi_prefix *c, const fmi_kv_pool *p);
/* The node behind parent (NULL: the beginning) with these tokens; NULL: there is none. */
fmi_node *fmi_prefix_child(const fmi_prefix *c, fmi_node *parent, const int32_t *token,
                           uint32_t count);
/* The same node, made if need be; the caller holds it. */
FM_CHECKED fm_status fmi_prefix_grow(fmi_prefix *c, fmi_node **out, fmi_node *parent,
                                     const int32_t *token, uint32_t count);
void fmi_node_hold(fmi_node *n);                /* NULL is fine */
void fmi_node_drop(fmi_prefix *c, fmi_node *n); /* likewise */
fmi_node *fmi_node_parent(const fmi_node *n);
uint32_t fmi_node_tokens(const fmi_node *n); /* of its block */

/* The page under this key, not held; -1: none. */
int32_t fmi_prefix_find(const fmi_prefix *c, const fmi_kv_pool *p, const fmi_node *n,
                        const fm_digest *key);
/* Puts a page that the caller holds, of an expected pool, under a key that is not there. */
void fmi_prefix_put(fmi_prefix *c, fmi_kv_pool *p, fmi_node *n, const fm_digest *key, int32_t page);

uint64_t fmi_prefix_evictions(const fmi_prefix *c);

FM_END_DECLS
#endif
