/* markup.h - XML and HTML in which the texts of strangers stay text; and what a terminal may show. */
#ifndef FM_BASE_MARKUP_H
#define FM_BASE_MARKUP_H

#include <stdarg.h>

#include "store/base/buf.h"

FM_BEGIN_DECLS
/* Appends markup as fmt has it, in which a text that %s brings is escaped: < > & " are references,
 * what XML 1.0 cannot hold or what is no UTF-8 is U+FFFD, and between a '<' and a '>' of fmt, where
 * it is the value of an attribute in double quotes, white space that a parser would fold is a
 * reference. %.9s: nine characters of it and an ellipsis, where it has more. NULL is no text, a NaN
 * is "-". Conversions: %s %d %u %zu %f %g %%, with precision, the last two with '+'. */
void fm_markup(fm_buf *out, const char *fmt, ...) FM_PRINTF(2, 3);
/* ... as the first len bytes of fmt have it; args moves on. */
void fm_markup_part(fm_buf *out, const char *fmt, size_t len, va_list *args);

/* The same for another form: `escape` appends what stands for a text in it, `most` characters at most. */
typedef void fm_escape(fm_buf *out, const char *text, size_t most, bool in_tag);
void fm_escaped(fm_buf *out, fm_escape *escape, const char *fmt, ...) FM_PRINTF(3, 4);

/* Bytes of the character that begins text, where a terminal shows it as what it is. 0: a control (also
 * U+0080 to U+009F), what turns the direction of writing or ends a line (U+061C, U+200E, U+200F, U+2028 to
 * U+202E, U+2066 to U+2069), or no UTF-8. */
size_t fm_markup_shown(const char *text, size_t left);
FM_END_DECLS
#endif
