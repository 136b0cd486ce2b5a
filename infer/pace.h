/* pace.h - how many rows of prompts a step may take beside decoding streams.
 *
 * A step without prompts takes some time; a stream waits that long for its next token. Rows of
 * prompts make it longer. The pace lets them make it PACE_FACTOR times as long and no more, by what
 * steps were measured to take: the time without prompts is remembered, and measured anew now and
 * then; the number of rows is corrected after every mixed step by how far off it was. */
#ifndef FM_INFER_PACE_H
#define FM_INFER_PACE_H

#include "store/base/fm.h"

FM_BEGIN_DECLS

typedef struct fmi_pace {
    double alone;      /* seconds of a step without prompts; 0: not measured yet */
    uint32_t decoding; /* streams that it was measured with */
    uint32_t since;    /* steps since then */
    double rows;       /* of prompts, for the next mixed step */
} fmi_pace;

void fmi_pace_init(fmi_pace *p);
/* Rows of prompts for a step with so many decoding streams; 0: the next step is to be measured
 * without. most where nothing decodes. */
uint32_t fmi_pace_rows(const fmi_pace *p, uint32_t decoding, uint32_t most);
/* A step took so long. */
void fmi_pace_note(fmi_pace *p, uint32_t decoding, uint32_t prompt_rows, double seconds);

FM_END_DECLS
#endif
