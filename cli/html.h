/* html.h - texts into pages and pictures. */
#ifndef FM_CLI_HTML_H
#define FM_CLI_HTML_H

#include "store/base/buf.h"

/* Text or an attribute's value: < > & " are written as entities, other control bytes than
 * newline and tab are left out. */
void html_text(fm_buf *out, const char *s);

#endif
