/* csv.h - tables in the format of RFC 4180, with any separator; a line may also end with LF alone.
 *
 * Text behind a closing quote, a quote that is never closed and text that is not UTF-8 are refused
 * by line. Quotes inside a cell that begins without one stand for themselves, as Python's csv and
 * pandas have it. Empty lines between rows are skipped. */
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
    size_t line; /* line of the next row or of the error; from 1 */
    char separator;
    const char *what;
    /* The last row. */
    size_t row_line;
    size_t count;                   /* its cells */
    size_t end[FM_CSV_COLUMNS_MAX]; /* where each cell ends in `cells`: there is a NUL */
    fm_buf cells;
} fm_csv;

/* A byte order mark is skipped. what: the table's name, for errors. */
void fm_csv_init(fm_csv *t, fm_span bytes, char separator, const char *what);
void fm_csv_release(fm_csv *t);
/* Reads the next row into t; *found false: there is none. FM_ECORRUPT, FM_ELIMIT. */
FM_CHECKED fm_status fm_csv_next(fm_csv *t, bool *found);
/* Cell i of the row; a NUL follows its last byte. */
fm_span fm_csv_cell(const fm_csv *t, size_t i);

FM_END_DECLS
#endif
