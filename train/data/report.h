/* report.h - declarations that the files of the report on a data set share. Inner header. */
#ifndef FM_TRAIN_REPORT_H
#define FM_TRAIN_REPORT_H

#include "train/data/dataset.h"

FM_BEGIN_DECLS

typedef struct fmt_hit { /* An example with a finding. */
    uint32_t example;
    uint32_t other; /* duplicates, conflicts: the earlier example; contaminated: the probe */
} fmt_hit;
typedef struct fmt_hits {
    fmt_hit *item;
    size_t count, cap;
} fmt_hits;

#define FMT_LENGTH_BINS 21u /* up to 16, 32, .. 16 << 20 tokens */

typedef struct fmt_report {
    const fm_dataset *d;
    const fm_tokenizer *tok;
    const fm_train_config *c;
    const fm_data_report_opts *opts;
    int32_t own_end; /* the tokenizer's end token, used where opts names none */
    const int32_t *end;
    size_t ends;
    fmt_hits truncated, no_stop, duplicates, conflicts, contaminated;
    size_t answers;      /* examples with an answer */
    size_t short_probes; /* probes that are too short to mean anything */
    size_t *per_class;   /* [classes] */
    size_t length[FMT_LENGTH_BINS];
    fm_json *findings; /* [{"level","what"}] */
    size_t errors;
} fmt_report;

FM_CHECKED fm_status fmt_hit_add(fmt_hits *list, size_t example, size_t other);
/* Fills r->contaminated and r->short_probes. */
FM_CHECKED fm_status fmt_find_probes(fmt_report *r);
/* Write the report as JSON and as lines of text; out owns both. */
FM_CHECKED fm_status fmt_report_json(fm_data_report *out, const fmt_report *r);
FM_CHECKED fm_status fmt_report_text(fm_data_report *out, const fmt_report *r);

FM_END_DECLS
#endif
