/* markup.c - escaping, and marks of SVG. */
#include "store/base/text/markup.h"

#include <string.h>

#include "store/base/text/json.h"

/* Bytes of the code point at p that XML 1.0 can hold, 0: it cannot, or it is no UTF-8. */
static size_t xml_char(const uint8_t *p, size_t left)
{
    size_t n = fms_json_utf8_len(p, left);
    if (n == 1 && p[0] < 0x20 && p[0] != '\n' && p[0] != '\t' && p[0] != '\r')
        return 0;
    if (n == 3 && p[0] == 0xEF && p[1] == 0xBF && p[2] >= 0xBE) /* U+FFFE, U+FFFF */
        return 0;
    if (n == 4 && (p[1] & 0xF) == 0xF && p[2] == 0xBF && p[3] >= 0xBE) /* of the other planes */
        return 0;
    return n;
}

size_t fm_markup_shown(const char *text, size_t left)
{
    const uint8_t *p = (const uint8_t *)text;
    const size_t n = left > 0 ? fms_json_utf8_len(p, left) : 0;

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

static void escaped(fm_buf *out, const char *text, bool keep_space)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t left = text ? strlen(text) : 0, n;
    for (; left; p += n, left -= n) {
        const char *ref = reference_of(*p);
        n = xml_char(p, left);
        if (n == 0) {
            fm_buf_str(out, "\xEF\xBF\xBD");
            n = 1;
        } else if (ref) {
            fm_buf_str(out, ref);
        } else if (*p < 0x20 && (!keep_space || *p == '\r')) {
            fm_buf_printf(out, "&#%u;", (unsigned)*p);
        } else {
            fm_buf_append(out, p, n);
        }
    }
}

void fm_markup_text(fm_buf *out, const char *text)
{
    escaped(out, text, true);
}

void fm_markup_attr(fm_buf *out, const char *text)
{
    escaped(out, text, false);
}

void fm_svg_line(fm_buf *out, const char *css_class, double x1, double y1, double x2, double y2)
{
    fm_buf_printf(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                  css_class, x1, y1, x2, y2);
}

void fm_svg_rect(fm_buf *out, const char *css_class, double x, double y, double width,
                 double height)
{
    fm_buf_printf(out,
                  "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
                  css_class, x, y, width, height);
}

void fm_svg_text(fm_buf *out, const char *css_class, const char *anchor, double x, double y,
                 const char *text)
{
    fm_buf_printf(out, "<text class=\"%s\" text-anchor=\"%s\" x=\"%.1f\" y=\"%.1f\">", css_class,
                  anchor, x, y);
    fm_markup_text(out, text);
    fm_buf_str(out, "</text>\n");
}

double fm_svg_tick(double span, double most)
{
    double tick = 1e-12;
    while (span / tick > most) {
        if (span / (tick * 2) <= most)
            return tick * 2;
        if (span / (tick * 5) <= most)
            return tick * 5;
        tick *= 10;
    }
    return tick;
}
