/* markup.c - escaping. */
#include "store/base/text/markup.h"

#include <math.h>
#include <string.h>

#include "store/base/text/utf8.h"

/* The length of the code point at p; 0: XML 1.0 cannot hold it, or it is not UTF-8. */
static size_t xml_char(const uint8_t *p, size_t left)
{
    size_t n = fm_utf8_len(p, left);
    if (n == 1 && p[0] < 0x20 && p[0] != '\n' && p[0] != '\t' && p[0] != '\r')
        return 0;
    if (n == 3 && p[0] == 0xEF && p[1] == 0xBF && p[2] >= 0xBE) /* U+FFFE, U+FFFF */
        return 0;
    if (n == 4 && (p[1] & 0xF) == 0xF && p[2] == 0xBF &&
        p[3] >= 0xBE) /* the same in the other planes */
        return 0;
    return n;
}

size_t fm_markup_shown(const char *text, size_t left)
{
    const uint8_t *p = (const uint8_t *)text;
    const size_t n = left > 0 ? fm_utf8_len(p, left) : 0;

    if (n == 1 && (p[0] < 0x20 || p[0] == 0x7f))
        return 0;
    if (n == 2 && ((p[0] == 0xC2 && p[1] < 0xA0) || (p[0] == 0xD8 && p[1] == 0x9C)))
        return 0;
    if (n == 3 && p[0] == 0xE2 && p[1] == 0x80 &&
        (p[2] == 0x8E || p[2] == 0x8F || (p[2] >= 0xA8 && p[2] <= 0xAE)))
        return 0;
    if (n == 3 && p[0] == 0xE2 && p[1] == 0x81 && p[2] >= 0xA6 && p[2] <= 0xA9)
        return 0;
    return n;
}

static const char *reference_of(uint8_t c)
{
    switch (c) {
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '&':
        return "&amp;";
    case '"':
        return "&quot;";
    default:
        return NULL;
    }
}

static void as_xml(fm_buf *out, const char *text, size_t most, bool in_tag)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t left = text ? strlen(text) : 0, n;
    for (; left && most; p += n, left -= n, most--) {
        const char *ref = reference_of(*p);
        n = xml_char(p, left);
        if (n == 0) {
            fm_buf_str(out, "\xEF\xBF\xBD");
            n = 1;
        } else if (ref) {
            fm_buf_str(out, ref);
        } else if (*p < 0x20 && (in_tag || *p == '\r')) {
            fm_buf_printf(out, "&#%u;", (unsigned)*p);
        } else {
            fm_buf_append(out, p, n);
        }
    }
    if (left)
        fm_buf_str(out, "\xE2\x80\xA6");
}

static void real(fm_buf *out, char conversion, bool plus, int precision, double v)
{
    if (isnan(v))
        fm_buf_char(out, '-');
    else if (conversion == 'f')
        fm_buf_printf(out, plus ? "%+.*f" : "%.*f", precision, v);
    else
        fm_buf_printf(out, plus ? "%+.*g" : "%.*g", precision, v);
}

/* Appends the argument of the conversion at p, after its '%'; returns the conversion's end. */
static const char *argument(fm_buf *out, fm_escape *escape, const char *p, bool in_tag,
                            va_list *args)
{
    const bool plus = *p == '+';
    int precision = -1;
    p += plus;
    if (*p == '.')
        for (precision = 0, p++; *p >= '0' && *p <= '9'; p++)
            precision = precision * 10 + (*p - '0');
    switch (*p++) {
    case '%':
        fm_buf_char(out, '%');
        break;
    case 's':
        escape(out, va_arg(*args, const char *), precision < 0 ? SIZE_MAX : (size_t)precision,
               in_tag);
        break;
    case 'd':
        fm_buf_printf(out, "%d", va_arg(*args, int));
        break;
    case 'u':
        fm_buf_printf(out, "%u", va_arg(*args, unsigned));
        break;
    case 'z':
        fm_assert(*p++ == 'u');
        fm_buf_printf(out, "%zu", va_arg(*args, size_t));
        break;
    case 'f':
    case 'g':
        real(out, p[-1], plus, precision, va_arg(*args, double));
        break;
    default:
        fm_assert(!"a conversion that markup.h does not name");
    }
    return p;
}

static void part(fm_buf *out, fm_escape *escape, const char *fmt, size_t len, va_list *args)
{
    const char *end = fmt + len;
    bool in_tag = false;
    while (fmt < end) {
        if (*fmt == '%') {
            fmt = argument(out, escape, fmt + 1, in_tag, args);
            continue;
        }
        in_tag = *fmt == '<' || (in_tag && *fmt != '>');
        fm_buf_char(out, *fmt++);
    }
}

void fm_markup_part(fm_buf *out, const char *fmt, size_t len, va_list *args)
{
    part(out, as_xml, fmt, len, args);
}

void fm_markup(fm_buf *out, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    part(out, as_xml, fmt, strlen(fmt), &args);
    va_end(args);
}

void fm_escaped(fm_buf *out, fm_escape *escape, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    part(out, escape, fmt, strlen(fmt), &args);
    va_end(args);
}
