/* prefill_budget.h - how many rows of prompts a step may take together with decoding streams.
 *
 * A decoding stream waits for its next token as long as a step takes, and rows of prompts make the
 * step longer. The budget allows so many that the step takes at most PACE_FACTOR times its time
 * without prompts. Both numbers are measured: the time without prompts now and then, the time that
 * a row of a prompt adds in the mixed steps. Each is the median of a few samples, since on a busy
 * machine single steps say little. */
#ifndef FM_INFER_PREFILL_BUDGET_H
#define FM_INFER_PREFILL_BUDGET_H

#include "store/base/fm.h"

FM_BEGIN_DECLS

#define FMI_PACE_SAMPLES 5u

typedef struct fmi_samples {
    double v[FMI_PACE_SAMPLES];
    uint32_t n; /* samples ever taken */
} fmi_samples;

typedef struct fmi_prefill_budget {
    fmi_samples alone; /* seconds of a step without prompts */
    fmi_samples row;   /* seconds that a row of a prompt adds */
    uint32_t decoding; /* streams in the steps that `alone` was measured on */
    uint32_t since;    /* steps since then */
    double rows;       /* rows of prompts for the next mixed step */
} fmi_prefill_budget;

void fmi_prefill_budget_init(fmi_prefill_budget *p);
/* Rows of prompts for a step with so many decoding streams; 0: the next step is to be measured
 * without prompts. Where nothing decodes: most. */
uint32_t fmi_prefill_budget_rows(const fmi_prefill_budget *p, uint32_t decoding, uint32_t most);
/* Takes the measured time of a step. */
void fmi_prefill_budget_note(fmi_prefill_budget *p, uint32_t decoding, uint32_t prompt_rows,
                             double seconds);

FM_END_DECLS
#endif
