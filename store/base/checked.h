/* checked.h - arithmetic that reports overflow: true means overflow, as with the builtins. */
#ifndef FM_BASE_CHECKED_H
#define FM_BASE_CHECKED_H

#include "store/base/fm.h"

static inline bool fm_add_overflow(uint64_t *out, uint64_t a, uint64_t b)
{
    return __builtin_add_overflow(a, b, out);
}
static inline bool fm_mul_overflow(uint64_t *out, uint64_t a, uint64_t b)
{
    return __builtin_mul_overflow(a, b, out);
}
/* Rounds v up to a multiple of align (a power of two). */
static inline bool fm_align_overflow(uint64_t *out, uint64_t v, uint64_t align)
{
    if (__builtin_add_overflow(v, align - 1, out))
        return true;
    *out &= ~(align - 1);
    return false;
}

#endif
