/* sorted_delta.c - see sorted_delta.h. Loads go through the little-endian helpers, so alignment and
 * the byte order of the machine do not matter. */
#include "store/codec/sorted_delta.h"

#include "store/base/cursor.h"

typedef struct float_layout {
    size_t width;
    unsigned exp_shift;
    uint32_t exp_mask;
} float_layout;

static float_layout layout_of(fm_dtype dtype)
{
    if (dtype == FM_F32)
        return (float_layout){4, 23, 255};
    if (dtype == FM_BF16)
        return (float_layout){2, 7, 255};
    fm_assert(dtype == FM_F16);
    return (float_layout){2, 10, 31};
}

bool fms_delta_applies(fm_dtype dtype)
{
    return dtype == FM_F32 || dtype == FM_BF16 || dtype == FM_F16;
}

size_t fms_delta_width(fm_dtype dtype)
{
    return layout_of(dtype).width;
}

static inline uint16_t ordered16(uint16_t h)
{
    return (uint16_t)(h & 0x8000u ? ~(uint32_t)h : h | 0x8000u);
}

static inline uint16_t unordered16(uint16_t o)
{
    return (uint16_t)(o & 0x8000u ? o & 0x7fffu : ~(uint32_t)o);
}

static inline uint32_t ordered32(uint32_t h)
{
    return h & 0x80000000u ? ~h : h | 0x80000000u;
}

static inline uint32_t unordered32(uint32_t o)
{
    return o & 0x80000000u ? o & 0x7fffffffu : ~o;
}

static void starts_of(uint32_t start[256], const uint32_t count[256])
{
    uint32_t sum = 0;
    for (unsigned e = 0; e < 256; e++) {
        start[e] = sum;
        sum += count[e];
    }
}

void fms_delta_count(uint32_t count[256], fm_dtype dtype, const uint8_t *parent, size_t n)
{
    float_layout l = layout_of(dtype);
    uint32_t part[2][256] = {{0}}; /* two halves: equal neighbours would wait on one counter */
    for (size_t i = 0; i < n; i++) {
        uint32_t p =
            l.width == 2 ? (uint32_t)fm_get_u16(parent + 2 * i) : fm_get_u32(parent + 4 * i);
        part[i & 1][(p >> l.exp_shift) & l.exp_mask]++;
    }
    for (unsigned e = 0; e < 256; e++)
        count[e] = part[0][e] + part[1][e];
}

static void split16(uint8_t *const plane[], float_layout l, const uint8_t *child,
                    const uint8_t *parent, uint32_t at[256], size_t n)
{
    uint8_t *p0 = plane[0], *p1 = plane[1];
    for (size_t i = 0; i < n; i++) {
        uint32_t p = fm_get_u16(parent + 2 * i);
        uint16_t u = (uint16_t)(ordered16(fm_get_u16(child + 2 * i)) - ordered16((uint16_t)p));
        uint16_t z = (uint16_t)(((uint32_t)u << 1) ^ (u & 0x8000u ? 0xffffu : 0u));
        uint32_t k = at[(p >> l.exp_shift) & l.exp_mask]++;
        p0[k] = (uint8_t)z;
        p1[k] = (uint8_t)(z >> 8);
    }
}

static void split32(uint8_t *const plane[], float_layout l, const uint8_t *child,
                    const uint8_t *parent, uint32_t at[256], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t p = fm_get_u32(parent + 4 * i);
        uint32_t u = ordered32(fm_get_u32(child + 4 * i)) - ordered32(p);
        uint32_t z = (u << 1) ^ (u & 0x80000000u ? 0xffffffffu : 0u);
        uint32_t k = at[(p >> l.exp_shift) & l.exp_mask]++;
        plane[0][k] = (uint8_t)z;
        plane[1][k] = (uint8_t)(z >> 8);
        plane[2][k] = (uint8_t)(z >> 16);
        plane[3][k] = (uint8_t)(z >> 24);
    }
}

void fms_delta_split(uint8_t *const plane[FMS_DELTA_MAX_WIDTH], fm_dtype dtype,
                     const uint8_t *child, const uint8_t *parent, const uint32_t count[256],
                     size_t n)
{
    float_layout l = layout_of(dtype);
    uint32_t at[256];
    starts_of(at, count);
    if (l.width == 2)
        split16(plane, l, child, parent, at, n);
    else
        split32(plane, l, child, parent, at, n);
}

static void join16(uint8_t *child, float_layout l, const uint8_t *const plane[],
                   const uint8_t *parent, uint32_t at[256], size_t n)
{
    const uint8_t *p0 = plane[0], *p1 = plane[1];
    for (size_t i = 0; i < n; i++) {
        uint32_t p = fm_get_u16(parent + 2 * i);
        uint32_t k = at[(p >> l.exp_shift) & l.exp_mask]++;
        uint16_t z = (uint16_t)(p0[k] | p1[k] << 8);
        uint16_t u = (uint16_t)(((uint32_t)z >> 1) ^ (z & 1 ? 0xffffu : 0u));
        fm_put_u16(child + 2 * i, unordered16((uint16_t)(ordered16((uint16_t)p) + u)));
    }
}

static void join32(uint8_t *child, float_layout l, const uint8_t *const plane[],
                   const uint8_t *parent, uint32_t at[256], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t p = fm_get_u32(parent + 4 * i);
        uint32_t k = at[(p >> l.exp_shift) & l.exp_mask]++;
        uint32_t z = (uint32_t)plane[0][k] | (uint32_t)plane[1][k] << 8 |
                     (uint32_t)plane[2][k] << 16 | (uint32_t)plane[3][k] << 24;
        uint32_t u = (z >> 1) ^ (z & 1 ? 0xffffffffu : 0u);
        fm_put_u32(child + 4 * i, unordered32(ordered32(p) + u));
    }
}

void fms_delta_join(uint8_t *child, fm_dtype dtype, const uint8_t *const plane[FMS_DELTA_MAX_WIDTH],
                    const uint8_t *parent, const uint32_t count[256], size_t n)
{
    float_layout l = layout_of(dtype);
    uint32_t at[256];
    starts_of(at, count);
    if (l.width == 2)
        join16(child, l, plane, parent, at, n);
    else
        join32(child, l, plane, parent, at, n);
}
