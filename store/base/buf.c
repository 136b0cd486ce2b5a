/* buf.c - growable bytes with a maximum. Every append goes through fm_buf_extend. */
#include "store/base/buf.h"

#include "store/base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define BUF_FIRST_BYTES 64

static size_t max_of(const fm_buf *b)
{
    return b->max ? b->max : FM_BUF_MAX_DEFAULT; /* a zeroed struct works too */
}

void fm_buf_init(fm_buf *b, size_t max_bytes)
{
    *b = (fm_buf){.max = max_bytes ? max_bytes : FM_BUF_MAX_DEFAULT};
}

void fm_buf_release(fm_buf *b)
{
    fm_free(b->data);
    fm_buf_init(b, b->max);
}

void fm_buf_clear(fm_buf *b)
{
    b->len = 0;
    b->failed = FM_OK;
    if (b->data)
        b->data[0] = '\0';
}

/* Makes the capacity suffice for len more bytes and the NUL behind them. */
static fm_status reserve(fm_buf *b, size_t len)
{
    const size_t max = max_of(b);

    if (b->len > max || len > max - b->len || max == SIZE_MAX)
        return FM_ELIMIT;
    const size_t need = b->len + len + 1;
    if (need <= b->cap)
        return FM_OK;
    size_t cap = FM_MAX(b->cap, BUF_FIRST_BYTES);
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    cap = FM_MAX(need, FM_MIN(cap, max + 1));
    uint8_t *data = fm_realloc(b->data, cap);
    if (!data)
        return FM_ENOMEM;
    b->data = data;
    b->cap = cap;
    return FM_OK;
}

uint8_t *fm_buf_extend(fm_buf *b, size_t len)
{
    if (b->failed < 0)
        return NULL;
    b->failed = reserve(b, len);
    if (b->failed < 0)
        return NULL;
    uint8_t *at = b->data + b->len;
    b->len += len;
    b->data[b->len] = '\0';
    return at;
}

void fm_buf_append(fm_buf *b, const void *data, size_t len)
{
    uint8_t *at = fm_buf_extend(b, len);

    if (at && len)
        memcpy(at, data, len);
}

void fm_buf_str(fm_buf *b, const char *s)
{
    fm_buf_append(b, s, strlen(s));
}

void fm_buf_char(fm_buf *b, char c)
{
    fm_buf_append(b, &c, 1);
}

void fm_buf_u8(fm_buf *b, uint8_t v)
{
    fm_buf_append(b, &v, 1);
}

void fm_buf_u16(fm_buf *b, uint16_t v)
{
    uint8_t *at = fm_buf_extend(b, 2);

    if (at)
        fm_put_u16(at, v);
}

void fm_buf_u32(fm_buf *b, uint32_t v)
{
    uint8_t *at = fm_buf_extend(b, 4);

    if (at)
        fm_put_u32(at, v);
}

void fm_buf_u64(fm_buf *b, uint64_t v)
{
    uint8_t *at = fm_buf_extend(b, 8);

    if (at)
        fm_put_u64(at, v);
}

void fm_buf_printf(fm_buf *b, const char *fmt, ...)
{
    va_list ap, again;

    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    uint8_t *at = n < 0 ? NULL : fm_buf_extend(b, (size_t)n);
    if (at) /* fm_buf_extend left a byte for the NUL that vsnprintf writes */
        vsnprintf((char *)at, (size_t)n + 1, fmt, again);
    va_end(again);
}

fm_status fm_buf_ok(const fm_buf *b)
{
    if (b->failed == FM_ELIMIT)
        return fm_fail(FM_ELIMIT, "more than %zu bytes in one buffer", max_of(b));
    if (b->failed < 0)
        return fm_fail(FM_ENOMEM, "out of memory in a buffer of %zu bytes", b->len);
    return FM_OK;
}

fm_span fm_buf_span(const fm_buf *b)
{
    return fm_span_of(b->data, b->len);
}

const char *fm_buf_cstr(const fm_buf *b)
{
    return b->data ? (const char *)b->data : "";
}

char *fm_buf_take(fm_buf *b)
{
    char *text = NULL;

    fm_buf_extend(b, 0); /* an empty buffer still gives "" */
    if (b->failed == FM_OK) {
        text = (char *)b->data;
        b->data = NULL;
    }
    fm_buf_release(b);
    return text;
}
