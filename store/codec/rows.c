/* rows.c - see rows.h. */
#include "store/codec/rows.h"

#include <string.h>

#include "store/entropy/rans.h"

enum { LONG = 1024, NO_ROW = 512 };
enum { RAW = 0, CONST = 1, RANS = 3 };

static fms_rows rows_of(size_t first, size_t each, size_t n)
{
    fms_rows g = {FM_MIN(first, n), each, 1, each - first};
    g.count += (n - g.first + each - 1) / each;
    return g;
}

fms_rows fms_rows_choose(const fms_leaf_at *at, size_t width, size_t n)
{
    uint64_t row = at->row_bytes / width, start = at->offset / width;
    if (row > FMS_ROW_MAX)
        return rows_of(LONG, LONG, n);
    if (row == 0)
        return rows_of(NO_ROW, NO_ROW, n);
    if (row < FMS_ROW_MIN) /* several whole rows make a usable length */
        row *= (FMS_ROW_MIN + row - 1) / row;
    return rows_of((size_t)(row - start % row), (size_t)row, n);
}

fm_status fms_rows_from(fms_rows *out, size_t first, size_t each, size_t n, const fm_cursor *cur)
{
    if (cur->failed || each < FMS_ROW_MIN || each > FMS_ROW_MAX || first == 0 || first > each)
        return fm_fail(FM_ECORRUPT, "coded leaf: rows of %zu elements, the first of %zu", each,
                       first);
    *out = rows_of(first, each, n);
    return FM_OK;
}

void fms_classes_put(fm_buf *out, const uint8_t *classes, size_t count)
{
    uint32_t h[256] = {0};
    for (size_t k = 0; k < count; k++)
        h[classes[k]]++;
    bool same = h[classes[0]] == count;
    size_t at = out->len;
    fm_buf_u8(out, RAW);
    fm_buf_u32(out, (uint32_t)count);
    uint8_t *to = fm_buf_extend(out, count);
    if (!to)
        return;
    size_t coded = same ? 1 : fms_rans_encode(to, count, classes, count, h);
    if (same)
        to[0] = classes[0];
    if (coded) {
        out->data[at] = same ? CONST : RANS;
        fm_put_u32(out->data + at + 1, (uint32_t)coded);
        out->len = at + 5 + coded;
    } else {
        memcpy(to, classes, count);
    }
}

fm_status fms_classes_get(uint8_t *classes, size_t count, fm_cursor *cur)
{
    uint8_t mode = fm_cursor_u8(cur);
    uint32_t len = fm_cursor_u32(cur);
    fm_span s = fm_cursor_bytes(cur, len);
    FM_TRY(fm_cursor_ok(cur, "coded leaf", "the classes of its rows"));
    if (mode == RANS)
        return fms_rans_decode(classes, count, s.data, s.len);
    if (mode == RAW && s.len == count)
        memcpy(classes, s.data, count);
    else if (mode == CONST && s.len == 1)
        memset(classes, s.data[0], count);
    else
        return fm_fail(FM_ECORRUPT, "coded leaf: classes of rows of mode %u, %zu bytes", mode,
                       s.len);
    return FM_OK;
}
