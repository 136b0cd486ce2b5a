/* out.h - what people and scripts see: columns, sizes, progress, JSON. Data goes to stdout, talk
 * to stderr; progress only on a terminal; colour only on a terminal and without NO_COLOR. */
#ifndef FM_CLI_OUT_H
#define FM_CLI_OUT_H

#include <stdio.h>

#include "store/base/text/json.h"

/* "1.4 MB", "98.2 kB", "512 B": powers of 1000. Static ring of buffers: up to 8 per printf. */
const char *out_bytes(uint64_t bytes);
const char *out_date(int64_t seconds); /* local "2026-11-21 09:10" */

typedef enum out_colour { OUT_PLAIN, OUT_BOLD, OUT_RED, OUT_GREEN, OUT_YELLOW, OUT_DIM } out_colour;
/* The escape sequence, or "" where colours are off. out_c(OUT_PLAIN) resets. */
const char *out_c(out_colour c);

/* Table of cells, printed with columns aligned; a cell is copied. */
typedef struct out_table out_table;
out_table *out_table_new(void);
void out_cell(out_table *t, const char *fmt, ...) FM_PRINTF(2, 3);
void out_cell_right(out_table *t, const char *fmt, ...) FM_PRINTF(2, 3);
void out_end_row(out_table *t);
void out_table_print(out_table *t, FILE *to, const char *indent); /* and frees it */
void out_table_free(out_table *t);                                /* unprinted; NULL is fine */

/* One line rewritten in place on a terminal's stderr; nothing elsewhere. */
void out_progress(const char *fmt, ...) FM_PRINTF(1, 2);
void out_progress_end(void);

/* The same as a bar with what is done, the rate and the time left: for work whose size is known. Calls
 * are cheap (ten lines a second are drawn at most); out_progress_end takes the line away. */
typedef struct out_bar {
    const char *verb; /* "storing" */
    double begun_s, drawn_s;
} out_bar;
void out_bar_begin(out_bar *b, const char *verb);
void out_bar_at(out_bar *b, uint64_t done_bytes, uint64_t total_bytes);
/* "storing [#####-----] 1.2 GB of 3.4 GB  230 MB/s  0:09 left". seconds: since it began. */
void out_bar_text(char *out, size_t bytes, const char *verb, uint64_t done_bytes,
                  uint64_t total_bytes, double seconds);

/* Pretty JSON and a newline to stdout; consumes v. */
fm_status out_json(fm_json *v);
/* Text of a stranger: what would steer the terminal or turn the writing's direction is made visible.
 * Cut at max bytes (500 at most) with an ellipsis; ring of buffers. */
const char *out_text(const char *s, size_t max);
/* ... and uncut, to stdout, with a newline behind it. */
void out_line(const char *s, size_t len);

#endif
