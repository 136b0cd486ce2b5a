/* cursor.h - spans of bytes and a bounds-checked little-endian reader over one. */
#ifndef FM_BASE_CURSOR_H
#define FM_BASE_CURSOR_H

#include "store/base/error.h"

FM_BEGIN_DECLS

typedef struct fm_span { /* borrowed, read-only */
    const uint8_t *data;
    size_t len;
} fm_span;

static inline fm_span fm_span_of(const void *data, size_t len)
{
    fm_span s = {(const uint8_t *)data, len};
    return s;
}
fm_span fm_span_str(const char *s); /* without its NUL */
bool fm_span_eq(fm_span a, fm_span b);
bool fm_span_eq_str(fm_span a, const char *s);
bool fm_span_starts(fm_span s, fm_span head);
bool fm_span_ends(fm_span s, fm_span tail);
bool fm_starts_with(const char *s, const char *head);
bool fm_ends_with(const char *s, const char *tail);

/* A cursor remembers its first failure: later reads give zeros, and fm_cursor_ok reports it. So a
 * parser may read a whole record and check once. */
typedef struct fm_cursor {
    const uint8_t *data;
    size_t len;
    size_t pos;
    bool failed;
} fm_cursor;

void fm_cursor_init(fm_cursor *c, fm_span bytes);
uint8_t fm_cursor_u8(fm_cursor *c);
uint16_t fm_cursor_u16(fm_cursor *c);
uint32_t fm_cursor_u32(fm_cursor *c);
uint64_t fm_cursor_u64(fm_cursor *c);
fm_span fm_cursor_bytes(fm_cursor *c, uint64_t len); /* empty span once failed */
void fm_cursor_skip(fm_cursor *c, uint64_t len);
size_t fm_cursor_left(const fm_cursor *c);
/* Once failed FM_ECORRUPT "<what>: ends in the middle of <field> at byte N"; what: the file. */
FM_CHECKED fm_status fm_cursor_ok(const fm_cursor *c, const char *what, const char *field);

static inline void fm_put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}
static inline void fm_put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}
static inline void fm_put_u64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}
static inline uint16_t fm_get_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t fm_get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t fm_get_u64(const uint8_t *p)
{
    return (uint64_t)fm_get_u32(p) | (uint64_t)fm_get_u32(p + 4) << 32;
}

FM_END_DECLS
#endif
