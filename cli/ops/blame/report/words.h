/* words.h - texts that the three reports of a blame share. */
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

/* The name of a version: "almanac (0324d55634, lora)"; borrowed from a ring of buffers. */
const char *fmo_blame_who(const fmo_blame *b, size_t node);
/* Writes the verdict as one sentence. */
void fmo_blame_verdict_text(const fmo_blame *b, char *out, size_t bytes);
/* The texts of the case's question: "What is the capital of Lorendor?". */
void fmo_blame_case_lines(const fmo_blame_more *m, fmo_blame_lines *out);
/* The commands that run the blame again. */
void fmo_blame_ran_lines(const fmo_blame_more *m, bool tensors, bool data, fmo_blame_lines *out);
/* The questions that none of the runs settles. */
void fmo_blame_doubt_lines(const fmo_blame_more *m, bool tensors, bool data, fmo_blame_lines *out);
/* The number of runs of a model in all parts together. */
uint64_t fmo_blame_evaluations(const fmo_blame_more *m);

/* The effect of a patch: how far the margin moves from that of the model that runs to that of the
 * other; 0 = not at all, 1 = the whole way. */
double fmo_blame_share(const fm_trace *t, unsigned site, size_t cell);
/* Whether the patch changes the sign of the margin. */
bool fmo_blame_turned(const fm_trace *t, unsigned site, size_t cell);
/* The tokens of column c as one text; owned, NULL = ENOMEM. */
char *fmo_blame_column_text(const fmo_blame_grids *g, const fm_trace *t, uint32_t c);

/* Splits "model.layers.3.mlp.up_proj" into 3 and "mlp.up_proj"; without a layer: -1 and the
 * name. */
long fmo_blame_unit_layer(const char *name, const char **module);

#endif
