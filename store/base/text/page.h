/* page.h - the frame of every HTML page that fmstore writes, and its tables. A page depends on its
 * input alone: no script, font, link or time. It follows the viewer's light or dark scheme. */
#ifndef FM_BASE_PAGE_H
#define FM_BASE_PAGE_H

#include "store/base/text/json.h"
#include "store/base/text/markup.h"

FM_BEGIN_DECLS
/* Formats are fm_markup's. The title is also the first heading. */
void fm_page_open(fm_buf *out, const char *title, ...) FM_PRINTF(2, 3);
void fm_page_close(fm_buf *out);

/* '|' in the format separates cells; a cell that begins with '#' is a number, aligned right. */
void fm_table_open(fm_buf *out, const char *heads, ...) FM_PRINTF(2, 3);
void fm_table_row(fm_buf *out, const char *cells, ...) FM_PRINTF(2, 3);
/* A row whose last cell stays open, for a picture, until fm_row_close. */
void fm_row_open(fm_buf *out, const char *cells, ...) FM_PRINTF(2, 3);
void fm_row_close(fm_buf *out);
void fm_table_close(fm_buf *out);

/* A table of a report's JSON. columns: "head=key" separated by '|', "head" alone where the key is
 * the same, '#' before it for a number. rows: an array of objects, of which at most `most` are
 * shown, or one object. Cells of the key "outcome" have the colour of their value. */
void fm_table_of(fm_buf *out, const char *columns, const fm_json *rows, size_t most);
/* A table of an object's keys and values; a list of an array's items. */
void fm_table_of_keys(fm_buf *out, const fm_json *object);
void fm_list_of(fm_buf *out, const fm_json *array);
FM_END_DECLS
#endif
