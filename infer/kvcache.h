/* kvcache.h - pages of keys and values, one pool per cache shape.
 *
 * A page holds FM_KV_PAGE positions of one sequence in every layer. Sequences of models with the
 * same (layers, kv heads, head size) draw from one pool, since their pages are interchangeable. A
 * pool's arrays are contiguous per layer (the backend addresses them by page number) and grow by
 * doubling within one budget for all pools; pages given back are reused, never shrunk away, except
 * that a pool with nothing in use is dropped when another one needs the room. */
#ifndef FM_INFER_KVCACHE_H
#define FM_INFER_KVCACHE_H

#include "infer/backend.h"

FM_BEGIN_DECLS

typedef struct fmi_kv fmi_kv;
typedef struct fmi_kv_pool fmi_kv_pool;

FM_CHECKED fm_status fmi_kv_new(fmi_kv **out, fm_backend *be, uint64_t bytes_max);
void fmi_kv_free(fmi_kv *kv);
uint64_t fmi_kv_bytes(const fmi_kv *kv);
uint64_t fmi_kv_bytes_max(const fmi_kv *kv);

/* The pool of this shape, made when first asked for; it lives as long as kv. */
FM_CHECKED fm_status fmi_kv_pool_of(fmi_kv *kv, fmi_kv_pool **out, uint32_t layers,
                                    uint32_t kv_heads, uint32_t head_dim);
uint64_t fmi_kv_page_bytes(const fmi_kv_pool *p); /* over all layers */
/* FM_ELIMIT when the budget is used up. */
FM_CHECKED fm_status fmi_kv_take(fmi_kv_pool *p, int32_t *page);
void fmi_kv_give(fmi_kv_pool *p, int32_t page);
/* Pages that fmi_kv_take could still hand out. */
uint64_t fmi_kv_room(const fmi_kv_pool *p);
fm_kv_view fmi_kv_layer(const fmi_kv_pool *p, uint32_t layer); /* valid until the next take */

FM_END_DECLS
#endif
