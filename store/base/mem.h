/* mem.h - the only door to the heap. Everything else is banned from malloc and free by
 * tests/layers.sh, so that limits, counters and injected failures cannot be bypassed. */
#ifndef FM_BASE_MEM_H
#define FM_BASE_MEM_H

#include "store/base/error.h"

FM_BEGIN_DECLS

/* All return NULL after setting FM_ENOMEM's text; callers return FM_ENOMEM. Size 0 gives a
 * valid pointer. fm_free accepts NULL. fm_calloc checks the product. */
void *fm_malloc(size_t bytes);
void *fm_calloc(size_t count, size_t elem_bytes);
void *fm_realloc(void *ptr, size_t bytes);
void *fm_aligned_alloc(size_t align_bytes, size_t bytes); /* power of two; freed by fm_free */
char *fm_strdup(const char *s);
char *fm_strndup(const char *s, size_t len); /* copies len bytes and a NUL */
char *fm_asprintf(const char *fmt, ...) FM_PRINTF(1, 2);
void *fm_memdup(const void *src, size_t bytes);
void fm_free(void *ptr);
/* Gives freed memory back to the system, from every thread's part of the heap: for after something
 * large has gone. Costs about a millisecond. */
void fm_mem_trim(void);

/* 64-byte aligned zeros. Large ones take memory only where they are touched, in huge pages where the
 * system has them, so that a whole budget can be reserved at once. Freed by fm_zeroed_free alone. */
void *fm_zeroed_alloc(size_t bytes);
void fm_zeroed_free(void *ptr);

/* Grow *array (elem_bytes each) so that it holds at least need elements; doubles *cap. */
FM_CHECKED fm_status fm_grow(void *array_ptr, size_t *cap, size_t need, size_t elem_bytes);

/* Arena: many small pieces with one lifetime. Not for sharing between threads. */
typedef struct fm_arena fm_arena;
FM_CHECKED fm_status fm_arena_new(fm_arena **out);
void *fm_arena_alloc(fm_arena *arena, size_t bytes); /* zeroed, 16-byte aligned; NULL = ENOMEM */
char *fm_arena_strndup(fm_arena *arena, const char *s, size_t len);
void fm_arena_free(fm_arena *arena);

/* Tests: let the nth next allocation (1 = the very next) of the whole process fail, once or for
 * ever after; 0 switches it off. fm_mem_alloc_count counts allocations since start. */
void fm_mem_fail_at(uint64_t nth, bool forever);
uint64_t fm_mem_alloc_count(void);

FM_END_DECLS
#endif
