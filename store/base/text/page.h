/* page.h - the frame of every page that we write, and its tables. A page is a function of what is
 * given: no script, no font, no link, no time. It follows the reader's scheme, light or dark. */
#ifndef FM_BASE_PAGE_H
#define FM_BASE_PAGE_H

#include "store/base/text/json.h"
#include "store/base/text/markup.h"

FM_BEGIN_DECLS
/* Formats are fm_markup's. The title is the first heading, too. */
void fm_page_open(fm_buf *out, const char *title, ...) FM_PRINTF(2, 3);
void fm_page_close(fm_buf *out);

/* Cells stand between '|' of the format; one that begins with '#' is a number and stands to the
 * right. */
void fm_table_open(fm_buf *out, const char *heads, ...) FM_PRINTF(2, 3);
void fm_table_row(fm_buf *out, const char *cells, ...) FM_PRINTF(2, 3);
/* A row whose last cell is still open, for a picture. */
void fm_row_open(fm_buf *out, const char *cells, ...) FM_PRINTF(2, 3);
void fm_row_close(fm_buf *out);
void fm_table_close(fm_buf *out);

/* Of JSON that a report has made. Columns of a table: "head=key", "head" alone where the key is the
 * same, '#' before it for a number; rows: an array of objects, `most` of them at most, or one object. A key "outcome"
 * gives its cells the colour of the word in it. */
void fm_table_of(fm_buf *out, const char *columns, const fm_json *rows, size_t most);
/* Keys and values of an object; items of an array as a list. */
void fm_table_of_keys(fm_buf *out, const fm_json *object);
void fm_list_of(fm_buf *out, const fm_json *array);
FM_END_DECLS
#endif
