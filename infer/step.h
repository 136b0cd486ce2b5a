/* step.h - what the planning of a step (step.c) and its passes (forward.c) share. */
#ifndef FM_INFER_STEP_H
#define FM_INFER_STEP_H

#include "infer/engine.h"

FM_BEGIN_DECLS

typedef struct fmi_part { /* rows [begin, begin + count) of one model; numbers inside of its
                             fmi_pass */
    fm_model *model;
    uint32_t begin, count;
    uint32_t wanted; /* of them want logits */
    uint32_t row0;   /* rows of the step before its fmi_pass */
} fmi_part;

typedef struct fmi_parts {
    const fmi_part *p;
    uint32_t n;
} fmi_parts;

typedef struct fmi_chunk { /* row lists of this step, host copy beside the device's */
    int32_t *host, *dev;
    uint32_t used;
    struct fmi_chunk *next;
} fmi_chunk;

typedef struct fmi_list {
    const fmi_chunk *c;
    uint32_t at, count;
} fmi_list;

struct fmi_step {
    fm_engine *e;
    uint32_t max_rows;
    fmi_part *run, *want; /* [max_rows] all rows, and those with logits, by model */
    uint32_t runs;
    uint32_t *order;    /* [max_rows] the caller's number of each row, passes one after another */
    uint32_t *pos;      /* [max_rows] by the caller's number */
    int32_t *logit_row; /* [max_rows] by the caller's number: row of logits or -1 */
    uint32_t *member;   /* [max_rows] scratch of grouping */
    const fm_linear **lin; /* [max_rows] likewise */
    fm_lora *lora;         /* [max_rows] likewise */
    bool *done;            /* [max_rows] likewise */
    uint32_t last_n;
    int32_t *host, *dev; /* ids, pos, slot, gather of n rows, then page tables */
    size_t ints;
    float *act; /* device activations */
    size_t act_floats;
    float *logits, *logits_host; /* [wanted, ld]; host: the same where the device is visible */
    size_t logits_floats, logits_host_floats, ld;
    uint32_t wanted;
    float *lse, *lse_host; /* [max_rows] */
    float *tap_host;
    size_t tap_floats;
    fmi_chunk *chunks, *chunk_now;
    fmi_list *lists;
    size_t list_count, list_cap;
};

/* One pass: the runs of one shape class. */
typedef struct fmi_pass {
    fmi_step *s;
    fm_engine *e;
    const fmi_geom *g;
    fmi_parts all, want;
    uint32_t row0, m;  /* first row in step order, rows */
    uint32_t want0, w; /* first row of logits, rows of them */
    uint32_t table_stride;
    const int32_t *ids, *pos, *slot, *gather, *table; /* device, of this fmi_pass */
    float *x, *xn, *q, *k, *v, *att, *o, *gate, *up;
} fmi_pass;

/* Runs a planned pass; what it computed last is s->logits rows [want0, want0 + w). */
FM_CHECKED fm_status fmi_forward(fmi_pass *p);

FM_END_DECLS
#endif
