/* prefill_budget.h - how many rows of prompts a step may take beside decoding streams.
 *
 * A step without prompts takes some time; a stream waits that long for its next token. Rows of
 * prompts make it longer. The pace lets them make it PACE_FACTOR times as long and no more, by what
 * steps were measured to take: the time without prompts is remembered, and measured anew now and
 * then; what a row of a prompt costs is taken from the mixed steps. Both are medians of a few, since
 * on a busy machine single steps say little. */
#ifndef FM_INFER_PREFILL_BUDGET_H
#define FM_INFER_PREFILL_BUDGET_H

#include "store/base/fm.h"

FM_BEGIN_DECLS

#define FMI_PACE_SAMPLES 5u

typedef struct fmi_samples {
    double v[FMI_PACE_SAMPLES];
    uint32_t n; /* ever taken */
} fmi_samples;

typedef struct fmi_prefill_budget {
    fmi_samples alone; /* seconds of a step without prompts */
    fmi_samples row;   /* seconds that a row of a prompt adds */
    uint32_t decoding; /* streams that alone was measured with */
    uint32_t since;    /* steps since then */
    double rows;       /* of prompts, for the next mixed step */
} fmi_prefill_budget;

void fmi_prefill_budget_init(fmi_prefill_budget *p);
/* Rows of prompts for a step with so many decoding streams; 0: the next step is to be measured
 * without. most where nothing decodes. */
uint32_t fmi_prefill_budget_rows(const fmi_prefill_budget *p, uint32_t decoding, uint32_t most);
/* A step took so long. */
void fmi_prefill_budget_note(fmi_prefill_budget *p, uint32_t decoding, uint32_t prompt_rows,
                             double seconds);

FM_END_DECLS
#endif
