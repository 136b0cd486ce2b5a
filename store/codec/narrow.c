/* narrow.c - see narrow.h. */
#include "store/codec/narrow.h"

#include <string.h>

static uint32_t load32(const uint8_t *p)
{
    return fm_get_u32(p);
}

static uint16_t to_bf16(uint32_t u)
{
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16); /* exact where the low half is zero */
}

static uint16_t to_f16(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return fm_f32_to_f16(f);
}

static uint32_t from_f16(uint16_t h)
{
    float f = fm_f16_to_f32(h);
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static bool all_bf16(const uint8_t *leaf, size_t n)
{
    uint32_t low = 0;
    for (size_t i = 0; i < n; i += 4096) { /* by pieces: a wide leaf is known after the first */
        for (size_t k = i; k < FM_MIN(i + 4096, n); k++)
            low |= load32(leaf + 4 * k);
        if (low & 0xffffu)
            return false;
    }
    return true;
}

static bool all_f16(const uint8_t *leaf, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u = load32(leaf + 4 * i);
        if (from_f16(to_f16(u)) != u)
            return false;
    }
    return true;
}

fm_dtype fms_narrow_find(const uint8_t *leaf, size_t bytes)
{
    size_t n = bytes / 4;
    if (bytes % 4 || n == 0)
        return FM_DTYPE_NONE;
    if (all_bf16(leaf, n))
        return FM_BF16;
    return all_f16(leaf, n) ? FM_F16 : FM_DTYPE_NONE;
}

void fms_narrow_to(uint8_t *dst, fm_dtype type, const uint8_t *src, size_t bytes)
{
    for (size_t i = 0; i < bytes / 4; i++) {
        uint32_t u = load32(src + 4 * i);
        fm_put_u16(dst + 2 * i, type == FM_BF16 ? to_bf16(u) : to_f16(u));
    }
}

void fms_narrow_from(uint8_t *dst, fm_dtype type, const uint8_t *src, size_t bytes)
{
    for (size_t i = 0; i < bytes / 4; i++) {
        uint16_t h = fm_get_u16(src + 2 * i);
        fm_put_u32(dst + 4 * i, type == FM_BF16 ? (uint32_t)h << 16 : from_f16(h));
    }
}
