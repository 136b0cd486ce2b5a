/* kvcache.h - pages of keys and values, layer by layer.
 *
 * A page holds FM_KV_PAGE positions of one layer: keys and values. A pool hands out pages of one
 * shape (kv heads, head size) to any layer of any model. Pages are counted: a page with several
 * holders is read by all and written by none (copy first). A pool reserves address space for the
 * whole budget once and takes memory as pages are first used, lowest first, so pages never move and
 * nothing is copied when it grows.
 *
 * Where a model's layers are split over stages (model/stage_split.h), each stage's layers have
 * pools and a budget of their own, a lane. Every rank counts the pages of all lanes, so that all
 * take and forget the same ones; only those of its own lane, `here`, have memory, the others have
 * numbers alone.
 *
 * A page may be kept: what it holds is of use to sequences that come later. A kept page without
 * holders is idle: it stays until its room is needed, the one that was held longest ago first. */
#ifndef FM_INFER_KVCACHE_H
#define FM_INFER_KVCACHE_H

#include "infer/backend.h"

FM_BEGIN_DECLS

typedef struct fmi_kv fmi_kv; /* one budget over its pools */
typedef struct fmi_kv_pool fmi_kv_pool;
/* A kept page leaves: whoever finds it must not any more. Called inside of fmi_kv_take. */
typedef void (*fmi_kv_forget)(void *ctx, fmi_kv_pool *p, int32_t page);

FM_CHECKED fm_status fmi_kv_new(fmi_kv **out, fm_backend *be, uint64_t bytes_max);
void fmi_kv_free(fmi_kv *kv); /* asserts that nobody holds a page */
/* Before the first pool: lanes of bytes_max each, of which `here` has memory (1 and 0 without). */
FM_CHECKED fm_status fmi_kv_lanes(fmi_kv *kv, uint32_t lanes, uint32_t here);
/* Before the first pool: with the first page memory for the whole budget is taken, one piece that
 * all pools share, and never more. So ranks that plan alike are not told apart by how full their
 * devices are. */
FM_CHECKED fm_status fmi_kv_at_once(fmi_kv *kv);
void fmi_kv_on_forget(fmi_kv *kv, fmi_kv_forget forget, void *ctx);
uint64_t fmi_kv_bytes(const fmi_kv *kv); /* memory that pages have taken */
uint64_t fmi_kv_bytes_max(const fmi_kv *kv);
uint64_t fmi_kv_bytes_kept(const fmi_kv *kv); /* of it: kept */

/* The lane's pool of this shape, made when first asked for; it lives as long as kv. */
FM_CHECKED fm_status fmi_kv_pool_of(fmi_kv *kv, fmi_kv_pool **out, uint32_t lane, uint32_t kv_heads,
                                    uint32_t head_dim);
/* Likewise for FM_KV_PAGE rows of the residual stream, f32 [FM_KV_PAGE, hidden], all in .k. It
 * takes at most an eighth of the budget. */
FM_CHECKED fm_status fmi_kv_rows_of(fmi_kv *kv, fmi_kv_pool **out, uint32_t lane, uint32_t hidden);
bool fmi_kv_here(const fmi_kv_pool *p);           /* its pages have memory */
uint32_t fmi_kv_pool_index(const fmi_kv_pool *p); /* small, its own among the pools of its kv */
uint64_t fmi_kv_page_bytes(const fmi_kv_pool *p); /* keys and values */
fm_kv_view fmi_kv_view(const fmi_kv_pool *p);     /* valid while any page of it is held */

/* A page with one holder. FM_ELIMIT when the budget is used up; what it held before is garbage. */
FM_CHECKED fm_status fmi_kv_take(fmi_kv_pool *p, int32_t *page);
void fmi_kv_hold(fmi_kv_pool *p, int32_t page); /* one more holder */
void fmi_kv_give(fmi_kv_pool *p, int32_t page); /* one holder less */
/* True where a write would be seen by others: several holders, or kept. */
bool fmi_kv_shared(const fmi_kv_pool *p, int32_t page);
/* The page, or a copy of it that only the caller holds, in exchange for his hold. */
FM_CHECKED fm_status fmi_kv_writable(fmi_kv_pool *p, int32_t *page);
void fmi_kv_keep(fmi_kv_pool *p, int32_t page); /* by its holder */
bool fmi_kv_kept(const fmi_kv_pool *p, int32_t page);
/* Lets idle pages go, as if their room were needed. */
void fmi_kv_drop_idle(fmi_kv *kv);
/* Pages that fmi_kv_take could still hand out, idle ones included. */
uint64_t fmi_kv_room(const fmi_kv_pool *p);
/* Numbers of its pages are below this. */
uint64_t fmi_kv_numbers(const fmi_kv_pool *p);

FM_END_DECLS
#endif
