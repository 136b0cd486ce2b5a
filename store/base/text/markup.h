/* markup.h - XML and HTML in which untrusted text stays text; what a terminal may show. */
#ifndef FM_BASE_MARKUP_H
#define FM_BASE_MARKUP_H

#include <stdarg.h>

#include "store/base/buf.h"

FM_BEGIN_DECLS
/* Appends fmt, which is markup, with its conversions replaced. The text of %s is escaped: < > & "
 * become references, and what XML 1.0 cannot hold or is not UTF-8 becomes U+FFFD; between a '<' and
 * a '>' of fmt, where %s must be the value of an attribute in double quotes, white space becomes
 * references too. %.9s: at most nine characters, then an ellipsis. NULL gives no text, a NaN "-".
 * Conversions: %s %d %u %zu %f %g %%, with precision, the last two with '+'. */
void fm_markup(fm_buf *out, const char *fmt, ...) FM_PRINTF(2, 3);
/* As fm_markup, for the first len bytes of fmt; args moves on. */
void fm_markup_part(fm_buf *out, const char *fmt, size_t len, va_list *args);

/* The same for another format: `escape` appends at most `most` characters of text, escaped. */
typedef void fm_escape(fm_buf *out, const char *text, size_t most, bool in_tag);
void fm_escaped(fm_buf *out, fm_escape *escape, const char *fmt, ...) FM_PRINTF(3, 4);

/* Length of the first character, if a terminal may show it. 0: a control character (also U+0080 to
 * U+009F), one that changes the direction of writing or ends a line (U+061C, U+200E, U+200F, U+2028
 * to U+202E, U+2066 to U+2069), or not UTF-8. */
size_t fm_markup_shown(const char *text, size_t left);
FM_END_DECLS
#endif
