/* kvcache.h - pages of keys and values, layer by layer.
 *
 * A page holds FM_KV_PAGE positions of one layer: keys and values. A pool hands out pages of one
 * shape (kv heads, head size) to any layer of any model. Pages are counted: a page with several
 * holders is read by all and written by none (copy first). A pool reserves address space for the
 * whole budget once and takes memory as pages are first used, lowest first, so pages never move and
 * growing copies nothing.
 *
 * Where a model's layers are split over stages (model/stage_split.h), each stage's layers have
 * pools and a budget of their own, a lane. Every rank counts the pages of all lanes, so that all
 * ranks take and forget the same pages; only pages of the rank's own lane, `here`, have memory, the
 * others have numbers alone.
 *
 * A page may be kept, because later sequences can use its contents. A kept page without holders is
 * idle: it stays until its memory is needed, and the one that was held longest ago leaves first. */
#ifndef FM_INFER_KVCACHE_H
#define FM_INFER_KVCACHE_H

#include "infer/backend.h"

FM_BEGIN_DECLS

/* The settings of its memory, for errors. */
#define FMI_KV_SETTING "serve --kv-memory, config compute.kvMemory"

typedef struct fmi_kv fmi_kv; /* one budget over its pools */
typedef struct fmi_kv_pool fmi_kv_pool;
/* A kept page leaves: the cache must not find it any more. Called inside of fmi_kv_take. */
typedef void (*fmi_kv_forget)(void *ctx, fmi_kv_pool *p, int32_t page);

FM_CHECKED fm_status fmi_kv_new(fmi_kv **out, fm_backend *be, uint64_t bytes_max);
void fmi_kv_free(fmi_kv *kv); /* asserts that no page is held */
/* Called before the first pool: sets lanes of bytes_max each, of which `here` has memory. Without
 * this call: one lane, 0. */
FM_CHECKED fm_status fmi_kv_lanes(fmi_kv *kv, uint32_t lanes, uint32_t here);
/* Called before the first pool: the first page takes memory for the whole budget, one piece that
 * all pools share, and no page takes more. So ranks that plan alike cannot come to differ by how
 * full their devices are. */
FM_CHECKED fm_status fmi_kv_at_once(fmi_kv *kv);
void fmi_kv_on_forget(fmi_kv *kv, fmi_kv_forget forget, void *ctx);
uint64_t fmi_kv_bytes(const fmi_kv *kv); /* memory that pages have taken */
uint64_t fmi_kv_bytes_max(const fmi_kv *kv);
uint64_t fmi_kv_bytes_kept(const fmi_kv *kv); /* bytes of kept pages among these */

/* The lane's pool of this shape, made when first asked for; it lives as long as kv. */
FM_CHECKED fm_status fmi_kv_pool_of(fmi_kv *kv, fmi_kv_pool **out, uint32_t lane, uint32_t kv_heads,
                                    uint32_t head_dim);
/* Likewise for FM_KV_PAGE rows of the residual stream, f32 [FM_KV_PAGE, hidden], all in .k. It
 * takes at most an eighth of the budget. */
FM_CHECKED fm_status fmi_kv_rows_of(fmi_kv *kv, fmi_kv_pool **out, uint32_t lane, uint32_t hidden);
/* Likewise for states of recurrent layers, one a page, f32 [floats], all in .k. It takes at most
 * half of the budget. */
FM_CHECKED fm_status fmi_kv_states_of(fmi_kv *kv, fmi_kv_pool **out, uint32_t lane,
                                      uint32_t floats);
bool fmi_kv_here(const fmi_kv_pool *p);           /* its pages have memory */
uint32_t fmi_kv_pool_index(const fmi_kv_pool *p); /* its number among the pools of its kv */
uint64_t fmi_kv_page_bytes(const fmi_kv_pool *p); /* keys and values */
fm_kv_view fmi_kv_view(const fmi_kv_pool *p);     /* valid while any page of it is held */

/* Takes a page with one holder; its contents are garbage. FM_ELIMIT when the budget is used up. */
FM_CHECKED fm_status fmi_kv_take(fmi_kv_pool *p, int32_t *page);
void fmi_kv_hold(fmi_kv_pool *p, int32_t page); /* one more holder */
void fmi_kv_give(fmi_kv_pool *p, int32_t page); /* one holder less */
/* True where others would see a write: the page has several holders, or is kept. */
bool fmi_kv_shared(const fmi_kv_pool *p, int32_t page);
/* Replaces a shared page that the caller holds by a copy that only the caller holds. */
FM_CHECKED fm_status fmi_kv_writable(fmi_kv_pool *p, int32_t *page);
void fmi_kv_keep(fmi_kv_pool *p, int32_t page); /* by its holder */
bool fmi_kv_kept(const fmi_kv_pool *p, int32_t page);
/* Lets all idle pages go, as if their memory were needed. */
void fmi_kv_drop_idle(fmi_kv *kv);
/* Pages that fmi_kv_take could still hand out, idle ones included. */
uint64_t fmi_kv_room(const fmi_kv_pool *p);
/* A bound above the numbers of its pages. */
uint64_t fmi_kv_numbers(const fmi_kv_pool *p);

FM_END_DECLS
#endif
