/* mem.h - the only door to the heap. tests/layers.sh bans malloc and free everywhere else, so that
 * limits, counters and injected failures cannot be bypassed. */
#ifndef FM_BASE_MEM_H
#define FM_BASE_MEM_H

#include "store/base/error.h"

FM_BEGIN_DECLS

/* On failure all return NULL and set FM_ENOMEM's text; the caller returns FM_ENOMEM. Size 0 gives a
 * valid pointer. fm_free accepts NULL. fm_calloc checks the product for overflow. */
void *fm_malloc(size_t bytes);
void *fm_calloc(size_t count, size_t elem_bytes);
void *fm_realloc(void *ptr, size_t bytes);
void *fm_aligned_alloc(size_t align_bytes, size_t bytes); /* power of two; freed by fm_free */
char *fm_strdup(const char *s);
char *fm_strndup(const char *s, size_t len); /* copies len bytes and a NUL */
char *fm_asprintf(const char *fmt, ...) FM_PRINTF(1, 2);
void *fm_memdup(const void *src, size_t bytes);
void fm_free(void *ptr);
/* Gives freed memory back to the system, from every thread's part of the heap. To be called after
 * something large was freed; takes about a millisecond. */
void fm_mem_trim(void);

/* 64-byte aligned zeros. A large allocation takes memory where it is touched, in huge pages if the
 * system has them, so that a budget can be reserved at once. Freed by fm_zeroed_free alone. */
void *fm_zeroed_alloc(size_t bytes);
void fm_zeroed_free(void *ptr);

/* Grows *array_ptr (elements of elem_bytes) to hold at least `need` elements; doubles *cap. */
FM_CHECKED fm_status fm_grow(void *array_ptr, size_t *cap, size_t need, size_t elem_bytes);

/* Arena: many small pieces with one lifetime. One thread at a time. */
typedef struct fm_arena fm_arena;
FM_CHECKED fm_status fm_arena_new(fm_arena **out);
void *fm_arena_alloc(fm_arena *arena, size_t bytes); /* zeroed, 16-byte aligned; NULL = ENOMEM */
char *fm_arena_strndup(fm_arena *arena, const char *s, size_t len);
void fm_arena_free(fm_arena *arena);

/* Tests: the nth allocation of the process from now on (1 = the next) fails, alone or (forever)
 * with all after it; 0: none. fm_mem_alloc_count counts allocations since start. */
void fm_mem_fail_at(uint64_t nth, bool forever);
uint64_t fm_mem_alloc_count(void);

FM_END_DECLS
#endif
