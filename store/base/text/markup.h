/* markup.h - texts of strangers inside XML and HTML, on terminals, and the few marks that our
 * pictures are made of.
 *
 * Pictures are SVG written by hand, same input, same bytes: no time, no locale but "C", no machine.
 * Coordinates have one decimal. Colours are classes, so that a page can follow the reader's
 * scheme. */
#ifndef FM_BASE_MARKUP_H
#define FM_BASE_MARKUP_H

#include "store/base/buf.h"

FM_BEGIN_DECLS
/* Appends text (NULL: nothing) so that it stays text: < > & " escaped, what XML 1.0 cannot hold or
 * what is no UTF-8 as U+FFFD. */
void fm_markup_text(fm_buf *out, const char *text);
/* ... as the value of a quoted attribute: white space that a parser would fold by reference. */
void fm_markup_attr(fm_buf *out, const char *text);

/* Bytes of the character that begins text, where a terminal shows it as what it is. 0: a control (also
 * U+0080 to U+009F), what turns the direction of writing or ends a line (U+061C, U+200E, U+200F, U+2028 to
 * U+202E, U+2066 to U+2069), or no UTF-8. */
size_t fm_markup_shown(const char *text, size_t left);

void fm_svg_line(fm_buf *out, const char *css_class, double x1, double y1, double x2, double y2);
void fm_svg_rect(fm_buf *out, const char *css_class, double x, double y, double width,
                 double height);
/* A short text at x, y; anchor "start", "middle", "end". */
void fm_svg_text(fm_buf *out, const char *css_class, const char *anchor, double x, double y,
                 const char *text);
/* 1, 2 or 5 times a power of ten, so that span has at most `most` of it. */
double fm_svg_tick(double span, double most);
FM_END_DECLS
#endif
