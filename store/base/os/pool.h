/* pool.h - threads that split [0, count) into fixed parts.
 *
 * The partition depends on count and the number of threads alone. Results here must not depend on
 * the number of threads, so each index is computed independently of the partition. */
#ifndef FM_BASE_POOL_H
#define FM_BASE_POOL_H

#include "store/base/error.h"

FM_BEGIN_DECLS

typedef struct fm_pool fm_pool; /* one caller at a time */
/* Computes [begin, end). A negative return stops no other part; the one of the lowest begin becomes
 * fm_pool_run's result, with its text. worker is in [0, threads). */
typedef fm_status (*fm_pool_fn)(void *ctx, size_t begin, size_t end, unsigned worker);

unsigned fm_cpus(void); /* that this process may run on */
/* threads 0: fm_cpus. 1 starts no thread. */
FM_CHECKED fm_status fm_pool_new(fm_pool **out, unsigned threads);
unsigned fm_pool_threads(const fm_pool *pool); /* NULL pool: 1 */
/* min_chunk: parts are not smaller than this. With a NULL pool the caller computes all. Workers
 * spin briefly between calls, then sleep, since a decode step makes hundreds of short calls. */
FM_CHECKED fm_status fm_pool_run(fm_pool *pool, size_t count, size_t min_chunk, fm_pool_fn fn,
                                 void *ctx);
void fm_pool_free(fm_pool *pool);

FM_END_DECLS
#endif
