/* out.h - output: columns, sizes, progress, JSON. Data goes to stdout, messages to stderr; progress
 * only to a terminal; colour only to a terminal and without NO_COLOR. */
#ifndef FM_CLI_OUT_H
#define FM_CLI_OUT_H

#include <stdio.h>

#include "store/base/text/json.h"

/* "1.4 MB", "98.2 kB", "512 B": powers of 1000. In a static ring: up to 8 per printf. */
const char *out_bytes(uint64_t bytes);
const char *out_date(int64_t seconds); /* local "2026-11-21 09:10" */

typedef enum out_colour { OUT_PLAIN, OUT_BOLD, OUT_RED, OUT_GREEN, OUT_YELLOW, OUT_DIM } out_colour;
/* The escape sequence, or "" if colours are off. out_c(OUT_PLAIN) resets. */
const char *out_c(out_colour c);

/* A table, printed with aligned columns; the texts of cells are copied. */
typedef struct out_table out_table;
out_table *out_table_new(void);
void out_cell(out_table *t, const char *fmt, ...) FM_PRINTF(2, 3);
void out_cell_right(out_table *t, const char *fmt, ...) FM_PRINTF(2, 3);
void out_end_row(out_table *t);
void out_table_print(out_table *t, FILE *to, const char *indent); /* and frees it */
void out_table_free(out_table *t); /* without printing; NULL is a no-op */

/* Rewrites one line in place if stderr is a terminal. */
void out_progress(const char *fmt, ...) FM_PRINTF(1, 2);
void out_progress_end(void);

/* A bar for work of known size: bytes done, rate, time left. Calls are cheap (it is drawn at most
 * ten times a second); out_progress_end removes the line. */
typedef struct out_bar {
    const char *verb; /* "storing" */
    double begun_s, drawn_s;
} out_bar;
void out_bar_begin(out_bar *b, const char *verb);
void out_bar_at(out_bar *b, uint64_t done_bytes, uint64_t total_bytes);
/* Writes "storing [#####-----] 1.2 GB of 3.4 GB  230 MB/s  0:09 left". seconds: time so far. */
void out_bar_text(char *out, size_t bytes, const char *verb, uint64_t done_bytes,
                  uint64_t total_bytes, double seconds);

/* Prints v as pretty JSON with a newline to stdout; consumes v. */
fm_status out_json(fm_json *v);
/* Makes hostile text safe to print: characters that control the terminal or the writing direction
 * become visible. Cut at max bytes (500 at most) with an ellipsis; in a ring of buffers. */
const char *out_text(const char *s, size_t max);
/* Prints such a text whole to stdout, with a newline. */
void out_line(const char *s, size_t len);
/* The same of a text of several lines, to any stream: its newlines stay. */
void out_lines(FILE *to, const char *s);

#endif
