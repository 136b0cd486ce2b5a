/* words.h - words that the three reports of a blame share. */
#ifndef FM_OPS_WORDS_H
#define FM_OPS_WORDS_H

#include "cli/ops/blame/blame_more.h"

extern const char *const blame_verdict_word[]; /* by fm_verdict: "pass", "FAIL", "error" */
extern const char *const blame_site_word[];    /* by fm_site */
extern const char *const blame_repair_word[];  /* by fmo_blame_repair_kind */

typedef struct fmo_blame_lines { /* owned texts */
    char **line;
    size_t count, cap;
    fm_status rc; /* the first failure sticks */
} fmo_blame_lines;
void fmo_blame_line(fmo_blame_lines *l, const char *fmt, ...) FM_PRINTF(2, 3);
void fmo_blame_lines_release(fmo_blame_lines *l);

/* "almanac (0324d55634, lora)"; borrowed from a ring. */
const char *fmo_blame_who(const fmo_blame *b, size_t node);
/* One sentence. */
void fmo_blame_verdict_text(const fmo_blame *b, char *out, size_t bytes);
/* What the case asks, as far as it is text: "What is the capital of Lorendor?". */
void fmo_blame_case_lines(const fmo_blame_more *m, fmo_blame_lines *out);
/* Commands that run it again. */
void fmo_blame_ran_lines(const fmo_blame_more *m, bool tensors, bool data, fmo_blame_lines *out);
/* What none of the runs settles. */
void fmo_blame_doubt_lines(const fmo_blame_more *m, bool tensors, bool data, fmo_blame_lines *out);
/* Of all parts together. */
uint64_t fmo_blame_evaluations(const fmo_blame_more *m);

/* The share of the way from the margin of the model that runs to the other's: 0 = no effect, 1 =
 * all of it. */
double fmo_blame_share(const fm_trace *t, unsigned site, size_t cell);
/* The sign of the margin is another than without the patch. */
bool fmo_blame_turned(const fm_trace *t, unsigned site, size_t cell);
/* Tokens of column c as one text; owned, NULL = ENOMEM. */
char *fmo_blame_column_text(const fmo_blame_grids *g, const fm_trace *t, uint32_t c);

/* "model.layers.3.mlp.up_proj" -> 3, "mlp.up_proj"; no layer: -1 and the whole name. */
long fmo_blame_unit_layer(const char *name, const char **module);

#endif
