/* csv.h - tables as RFC 4180 has them, with any separator; a line may end by LF too.
 *
 * Text behind a closing quote, a quote that is never closed and text that is not UTF-8 are refused by
 * line. Quotes inside a cell that begins without one stand for themselves, as Python's csv and pandas
 * have it. Empty lines between rows say nothing. */
#ifndef FM_STORE_CSV_H
#define FM_STORE_CSV_H

#include "store/base/buf.h"
#include "store/base/cursor.h"

FM_BEGIN_DECLS

#define FM_CSV_COLUMNS_MAX 256u
#define FM_CSV_ROW_BYTES_MAX ((size_t)64 << 20)

typedef struct fm_csv {
    fm_span s;
    size_t at;
    size_t line; /* where the next row begins, or what is wrong stands; from 1 */
    char separator;
    const char *what;
    /* The last row. */
    size_t row_line;
    size_t count;                   /* its cells */
    size_t end[FM_CSV_COLUMNS_MAX]; /* where each ends in `cells`: a NUL stands there */
    fm_buf cells;
} fm_csv;

/* A byte order mark is passed over. what: the table's name, for errors. */
void fm_csv_init(fm_csv *t, fm_span bytes, char separator, const char *what);
void fm_csv_release(fm_csv *t);
/* The next row into t; *found false: there is none. FM_ECORRUPT, FM_ELIMIT. */
FM_CHECKED fm_status fm_csv_next(fm_csv *t, bool *found);
/* Cell i of the row; behind its last byte stands a NUL. */
fm_span fm_csv_cell(const fm_csv *t, size_t i);

FM_END_DECLS
#endif
