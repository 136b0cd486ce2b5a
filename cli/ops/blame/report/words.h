/* words.h - words that the three reports of a blame share. */
#ifndef FM_OPS_BLAME_REPORT_H
#define FM_OPS_BLAME_REPORT_H

#include "cli/ops/blame/blame_more.h"

extern const char *const blame_verdict_word[]; /* by fm_verdict: "pass", "FAIL", "error" */
extern const char *const blame_site_word[];    /* by fm_site */
extern const char *const blame_repair_word[];  /* by blame_repair_kind */

typedef struct blame_lines { /* owned texts */
    char **line;
    size_t count, cap;
    fm_status rc; /* the first failure sticks */
} blame_lines;
void blame_line(blame_lines *l, const char *fmt, ...) FM_PRINTF(2, 3);
void blame_lines_release(blame_lines *l);

/* "almanac (0324d55634, lora)"; borrowed from a ring. */
const char *blame_who(const blame *b, size_t node);
/* One sentence. */
void blame_verdict_text(const blame *b, char *out, size_t bytes);
/* What the case asks, as far as it is text: "What is the capital of Lorendor?". */
void blame_case_lines(const blame_more *m, blame_lines *out);
/* Commands that run it again. */
void blame_ran_lines(const blame_more *m, bool tensors, bool data, blame_lines *out);
/* What none of the runs settles. */
void blame_doubt_lines(const blame_more *m, bool tensors, bool data, blame_lines *out);
/* Of all parts together. */
uint64_t blame_evaluations(const blame_more *m);

/* The share of the way from the margin of the model that runs to the other's: 0 = no effect, 1 =
 * all of it. */
double blame_share(const fm_trace *t, unsigned site, size_t cell);
/* The sign of the margin is another than without the patch. */
bool blame_turned(const fm_trace *t, unsigned site, size_t cell);
/* Tokens of column c as one text; owned, NULL = ENOMEM. */
char *blame_column_text(const blame_grids *g, const fm_trace *t, uint32_t c);

/* "model.layers.3.mlp.up_proj" -> 3, "mlp.up_proj"; no layer: -1 and the whole name. */
long blame_unit_layer(const char *name, const char **module);

#endif
