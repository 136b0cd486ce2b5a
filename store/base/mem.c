/* mem.c - the only caller of malloc: a limit, a counter and injected failures.
 *
 * The arena is a chain of zeroed blocks, each twice the size of the last up to a maximum: pieces
 * are cut off the newest block and never move, so pointers stay valid until the arena is freed. */
#include "store/base/mem.h"

#include "store/base/checked.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* 64 TiB: a larger request can only come from a hostile length. */
#define MEM_MAX_BYTES ((size_t)1 << 46)

static atomic_uint_fast64_t alloc_count;
static atomic_uint_fast64_t fail_countdown; /* 0 = off */
static atomic_bool fail_forever;

void fm_mem_fail_at(uint64_t nth, bool forever)
{
    atomic_store(&fail_forever, forever);
    atomic_store(&fail_countdown, nth);
}

uint64_t fm_mem_alloc_count(void)
{
    return atomic_load_explicit(&alloc_count, memory_order_relaxed);
}

/* True when this allocation has to fail because a test requested it. */
static bool must_fail(void)
{
    atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed);
    uint_fast64_t left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
    while (left != 0) {
        uint_fast64_t next = left == 1 && atomic_load(&fail_forever) ? 1 : left - 1;
        if (atomic_compare_exchange_weak(&fail_countdown, &left, next))
            return left == 1;
    }
    return false;
}

static void *no_memory(size_t bytes)
{
    fm_fail(FM_ENOMEM, "out of memory (%zu bytes)", bytes);
    return NULL;
}

void *fm_malloc(size_t bytes)
{
    if (must_fail() || bytes > MEM_MAX_BYTES)
        return no_memory(bytes);
    void *p = malloc(bytes ? bytes : 1);
    return p ? p : no_memory(bytes);
}

void *fm_calloc(size_t count, size_t elem_bytes)
{
    uint64_t bytes;

    if (fm_mul_overflow(&bytes, count, elem_bytes))
        bytes = SIZE_MAX;
    if (must_fail() || bytes > MEM_MAX_BYTES)
        return no_memory(bytes);
    void *p = calloc(1, bytes ? bytes : 1);
    return p ? p : no_memory(bytes);
}

void *fm_realloc(void *ptr, size_t bytes)
{
    if (must_fail() || bytes > MEM_MAX_BYTES)
        return no_memory(bytes);
    void *p = realloc(ptr, bytes ? bytes : 1);
    return p ? p : no_memory(bytes);
}

void *fm_aligned_alloc(size_t align_bytes, size_t bytes)
{
    void *p = NULL;

    fm_assert(align_bytes && (align_bytes & (align_bytes - 1)) == 0);
    if (must_fail() || bytes > MEM_MAX_BYTES)
        return no_memory(bytes);
    if (posix_memalign(&p, FM_MAX(align_bytes, sizeof(void *)), bytes ? bytes : 1) != 0)
        return no_memory(bytes);
    return p;
}

void fm_free(void *ptr)
{
    free(ptr);
}

void fm_mem_trim(void)
{
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
}

#define ZEROED_HEAD 64u /* in front of the caller's bytes: the number mapped, 0 = from the heap */
#define ZEROED_MAP_MIN ((size_t)1 << 20)
#define HUGE_PAGE ((size_t)2 << 20)

static void *map_zeroed(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (bytes >= 4 * HUGE_PAGE) /* advice: where the kernel does not take it, small pages do */
        (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

void *fm_zeroed_alloc(size_t bytes)
{
    void *p = NULL;
    size_t whole = bytes + ZEROED_HEAD, mapped = bytes >= ZEROED_MAP_MIN ? whole : 0;

    if (must_fail() || bytes > MEM_MAX_BYTES)
        return no_memory(bytes);
    if (mapped)
        p = map_zeroed(mapped);
    else if (posix_memalign(&p, ZEROED_HEAD, whole) == 0)
        memset(p, 0, whole);
    if (!p)
        return no_memory(bytes);
    memcpy(p, &mapped, sizeof(mapped));
    return (char *)p + ZEROED_HEAD;
}

void fm_zeroed_free(void *ptr)
{
    size_t mapped;

    if (!ptr)
        return;
    void *p = (char *)ptr - ZEROED_HEAD;
    memcpy(&mapped, p, sizeof(mapped));
    if (mapped)
        (void)munmap(p, mapped);
    else
        free(p);
}

char *fm_strndup(const char *s, size_t len)
{
    if (len >= MEM_MAX_BYTES)
        return no_memory(len);
    char *copy = fm_malloc(len + 1);
    if (!copy)
        return NULL;
    if (len)
        memcpy(copy, s, len);
    copy[len] = '\0';
    return copy;
}

char *fm_strdup(const char *s)
{
    return fm_strndup(s, strlen(s));
}

char *fm_asprintf(const char *fmt, ...)
{
    va_list ap, again;

    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *text = n < 0 ? NULL : fm_malloc((size_t)n + 1);
    if (text)
        vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text;
}

void *fm_memdup(const void *src, size_t bytes)
{
    void *copy = fm_malloc(bytes);

    if (copy && bytes)
        memcpy(copy, src, bytes);
    return copy;
}

fm_status fm_grow(void *array_ptr, size_t *cap, size_t need, size_t elem_bytes)
{
    void *array;
    uint64_t bytes;
    size_t next = FM_MAX(*cap, 8);

    if (need <= *cap)
        return FM_OK;
    while (next < need)
        next = next > SIZE_MAX / 2 ? need : next * 2;
    if (fm_mul_overflow(&bytes, next, elem_bytes))
        bytes = SIZE_MAX;
    /* The pointer's type is not known here: copying its bytes is the one legal way to reach it. */
    memcpy(&array, array_ptr, sizeof(array));
    array = fm_realloc(array, bytes);
    if (!array)
        return FM_ENOMEM;
    memcpy(array_ptr, &array, sizeof(array));
    *cap = next;
    return FM_OK;
}

#define ARENA_ALIGN_BYTES 16
#define ARENA_FIRST_BYTES 4096
#define ARENA_BLOCK_MAX_BYTES ((size_t)1 << 20)

struct block {
    struct block *next;
    size_t used_bytes; /* bytes of bytes[] that are in use */
    size_t cap_bytes;
    size_t pad;
    uint8_t bytes[];
};
_Static_assert(sizeof(struct block) % ARENA_ALIGN_BYTES == 0, "pieces start aligned");

struct fm_arena {
    struct block *newest;
    size_t next_block_bytes;
};

fm_status fm_arena_new(fm_arena **out)
{
    *out = fm_calloc(1, sizeof(**out));
    if (!*out)
        return FM_ENOMEM;
    (*out)->next_block_bytes = ARENA_FIRST_BYTES;
    return FM_OK;
}

static struct block *add_block(fm_arena *arena, size_t need_bytes)
{
    size_t cap = FM_MAX(need_bytes, arena->next_block_bytes);
    struct block *b = fm_calloc(1, sizeof(*b) + cap);

    if (!b)
        return NULL;
    b->cap_bytes = cap;
    b->next = arena->newest;
    arena->newest = b;
    arena->next_block_bytes = FM_MIN(arena->next_block_bytes * 2, ARENA_BLOCK_MAX_BYTES);
    return b;
}

void *fm_arena_alloc(fm_arena *arena, size_t bytes)
{
    uint64_t need;

    if (bytes > MEM_MAX_BYTES || fm_align_overflow(&need, FM_MAX(bytes, 1), ARENA_ALIGN_BYTES))
        return no_memory(bytes);
    struct block *b = arena->newest;
    if (!b || b->cap_bytes - b->used_bytes < need)
        b = add_block(arena, need);
    if (!b)
        return NULL;
    void *p = b->bytes + b->used_bytes;
    b->used_bytes += need;
    return p;
}

char *fm_arena_strndup(fm_arena *arena, const char *s, size_t len)
{
    if (len >= MEM_MAX_BYTES)
        return no_memory(len);
    char *copy = fm_arena_alloc(arena, len + 1);
    if (copy && len)
        memcpy(copy, s, len);
    return copy;
}

void fm_arena_free(fm_arena *arena)
{
    if (!arena)
        return;
    for (struct block *b = arena->newest; b;) {
        struct block *next = b->next;
        free(b);
        b = next;
    }
    free(arena);
}
