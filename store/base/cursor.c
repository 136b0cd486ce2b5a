/* cursor.c - the bounds-checked reader. One place compares a length with what is left. */
#include "store/base/cursor.h"

#include <string.h>

fm_span fm_span_str(const char *s)
{
    return fm_span_of(s, strlen(s));
}

bool fm_span_eq(fm_span a, fm_span b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

bool fm_span_eq_str(fm_span a, const char *s)
{
    return fm_span_eq(a, fm_span_str(s));
}

bool fm_span_starts(fm_span s, fm_span head)
{
    return s.len >= head.len && fm_span_eq(fm_span_of(s.data, head.len), head);
}

bool fm_span_ends(fm_span s, fm_span tail)
{
    return s.len >= tail.len && fm_span_eq(fm_span_of(s.data + s.len - tail.len, tail.len), tail);
}

bool fm_starts_with(const char *s, const char *head)
{
    return strncmp(s, head, strlen(head)) == 0;
}

bool fm_ends_with(const char *s, const char *tail)
{
    return fm_span_ends(fm_span_str(s), fm_span_str(tail));
}

void fm_cursor_init(fm_cursor *c, fm_span bytes)
{
    *c = (fm_cursor){.data = bytes.data, .len = bytes.len};
}

fm_span fm_cursor_bytes(fm_cursor *c, uint64_t len)
{
    fm_span none = {NULL, 0};

    if (c->failed || len > c->len - c->pos) {
        c->failed = true;
        return none;
    }
    if (!c->data) /* an empty span over nothing: no arithmetic on NULL */
        return none;
    fm_span s = fm_span_of(c->data + c->pos, (size_t)len);
    c->pos += (size_t)len;
    return s;
}

void fm_cursor_skip(fm_cursor *c, uint64_t len)
{
    (void)fm_cursor_bytes(c, len);
}

uint8_t fm_cursor_u8(fm_cursor *c)
{
    fm_span s = fm_cursor_bytes(c, 1);
    return s.data ? s.data[0] : 0;
}

uint16_t fm_cursor_u16(fm_cursor *c)
{
    fm_span s = fm_cursor_bytes(c, 2);
    return s.data ? fm_get_u16(s.data) : 0;
}

uint32_t fm_cursor_u32(fm_cursor *c)
{
    fm_span s = fm_cursor_bytes(c, 4);
    return s.data ? fm_get_u32(s.data) : 0;
}

uint64_t fm_cursor_u64(fm_cursor *c)
{
    fm_span s = fm_cursor_bytes(c, 8);
    return s.data ? fm_get_u64(s.data) : 0;
}

size_t fm_cursor_left(const fm_cursor *c)
{
    return c->failed ? 0 : c->len - c->pos;
}

fm_status fm_cursor_ok(const fm_cursor *c, const char *what, const char *field)
{
    if (!c->failed)
        return FM_OK;
    return fm_fail(FM_ECORRUPT, "%s: ends in the middle of %s at byte %zu", what, field, c->pos);
}
