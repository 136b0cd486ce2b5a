/* palette.c - see palette.h. An open-addressed table of the values, at most a quarter
 * full; values are put in order before they are numbered. */
#include "store/codec/palette.h"

#include <stdlib.h>
#include <string.h>

#include "store/base/mem.h"

enum { MOST_2 = 256, MOST_4 = 4096, SLOTS = 16384 };

struct fms_palette {
    size_t count;
    uint32_t value[MOST_4];
    uint32_t key[SLOTS];
    uint16_t index[SLOTS]; /* + 1; 0: free */
};

fm_status fms_palette_new(fms_palette **out)
{
    *out = fm_calloc(1, sizeof **out);
    return *out ? FM_OK : FM_ENOMEM;
}

void fms_palette_free(fms_palette *p)
{
    fm_free(p);
}

static size_t most_of(size_t unit)
{
    return unit == 2 ? MOST_2 : MOST_4;
}

static uint32_t load(const uint8_t *p, size_t unit, size_t i)
{
    return unit == 2 ? fm_get_u16(p + 2 * i) : fm_get_u32(p + 4 * i);
}

/* The slot that holds v, or the free slot where it belongs. */
static size_t slot_of(const fms_palette *p, uint32_t v)
{
    size_t k = (v * 0x9e3779b1u) >> 18;
    while (p->index[k] && p->key[k] != v)
        k = (k + 1) % SLOTS;
    return k;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

size_t fms_palette_find(fms_palette *p, const uint8_t *leaf, size_t unit, size_t n)
{
    memset(p->index, 0, sizeof p->index);
    p->count = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t v = load(leaf, unit, i);
        size_t k = slot_of(p, v);
        if (p->index[k])
            continue;
        if (p->count == most_of(unit))
            return 0;
        p->key[k] = v;
        p->index[k] = 1;
        p->value[p->count++] = v;
    }
    qsort(p->value, p->count, sizeof *p->value, compare);
    for (size_t j = 0; j < p->count; j++)
        p->index[slot_of(p, p->value[j])] = (uint16_t)(j + 1);
    return p->count;
}

void fms_palette_index(const fms_palette *p, uint8_t *plane, const uint8_t *leaf, size_t unit,
                       size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned j = p->index[slot_of(p, load(leaf, unit, i))] - 1u;
        plane[i] = (uint8_t)j;
        if (p->count > 256)
            plane[n + i] = (uint8_t)(j >> 8);
    }
}

void fms_palette_put(const fms_palette *p, fm_buf *out, size_t unit)
{
    fm_buf_u16(out, (uint16_t)(p->count - 1));
    for (size_t j = 0; j < p->count; j++)
        if (unit == 2)
            fm_buf_u16(out, (uint16_t)p->value[j]);
        else
            fm_buf_u32(out, p->value[j]);
}

fm_status fms_palette_get(fms_palette *p, size_t *count, size_t unit, fm_cursor *cur)
{
    p->count = *count = fm_cursor_u16(cur) + 1u;
    if (cur->failed || p->count > most_of(unit))
        return fm_fail(FM_ECORRUPT, "coded leaf: a palette of %zu values", p->count);
    for (size_t j = 0; j < p->count; j++) {
        p->value[j] = unit == 2 ? fm_cursor_u16(cur) : fm_cursor_u32(cur);
        if (cur->failed || (j > 0 && p->value[j] <= p->value[j - 1]))
            return fm_fail(FM_ECORRUPT, "coded leaf: value %zu of its palette is out of order", j);
    }
    return FM_OK;
}

fm_status fms_palette_apply(const fms_palette *p, uint8_t *dst, const uint8_t *plane, size_t unit,
                            size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t j = plane[i];
        if (p->count > 256)
            j |= (size_t)plane[n + i] << 8;
        if (j >= p->count)
            return fm_fail(FM_ECORRUPT, "coded leaf: index %zu into a palette of %zu", j, p->count);
        if (unit == 2)
            fm_put_u16(dst + 2 * i, (uint16_t)p->value[j]);
        else
            fm_put_u32(dst + 4 * i, p->value[j]);
    }
    return FM_OK;
}
