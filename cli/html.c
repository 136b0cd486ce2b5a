/* html.c - texts of strangers into pages. */
#include "cli/html.h"

void html_text(fm_buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '<')
            fm_buf_str(out, "&lt;");
        else if (*s == '>')
            fm_buf_str(out, "&gt;");
        else if (*s == '&')
            fm_buf_str(out, "&amp;");
        else if (*s == '"')
            fm_buf_str(out, "&quot;");
        else if ((unsigned char)*s >= ' ' || *s == '\n' || *s == '\t')
            fm_buf_char(out, *s);
    }
}
