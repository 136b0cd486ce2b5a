/* render.h - one training record to ids and labels. Inner header of the dataset. */
#ifndef FM_TRAIN_RENDER_H
#define FM_TRAIN_RENDER_H

#include "train/internal.h"

FM_BEGIN_DECLS

#define FMI_PREVIEW_BYTES 120u

typedef struct fmi_renderer {
    const fm_tokenizer *tok;
    const fm_chat_template *chat; /* NULL: fields are joined by newlines */
    fm_json *extra;               /* variables that templates expect */
    uint32_t max_tokens;
    bool answers_only;
    const char *what; /* file, for errors */
} fmi_renderer;

/* ids, labels, len and preview of out; the caller owns them (fmi_example_release). Everything after
 * max_tokens is cut. FM_EINVAL names record and field. */
FM_CHECKED fm_status fmi_render_record(fm_example *out, const fmi_renderer *r,
                                       const fm_json *record, size_t number);
/* A block of plain text that is tokenized already: every token counts. */
FM_CHECKED fm_status fmi_render_block(fm_example *out, const fmi_renderer *r, const int32_t *ids,
                                      size_t n);
void fmi_example_release(fm_example *e);

FM_END_DECLS
#endif
