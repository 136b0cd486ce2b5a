/* data.h - the rankings of the guilty step's training examples, and their fidelity. */
#ifndef FM_OPS_BLAME_DATA_H
#define FM_OPS_BLAME_DATA_H

#include "cli/ops/base/say.h"
#include "train/attribution.h"

struct fmo_blame;

/* Measurements of one method, by training the step again without a group of examples. A change is
 * the case's margin (log p(wrong) - log p(right)) of the child less that of the run without the
 * group. NaN: not measured. */
typedef struct fmo_blame_fidelity {
    double top, bottom; /* change without the first, without the last `group` examples */
    double lds; /* over the random halves: Spearman's correlation of the sum of the scores left out
                   with the change */
} fmo_blame_fidelity;

typedef struct fmo_blame_ranking {
    fm_attribution_kind kind;
    double *score;      /* [count] by place in the data */
    uint32_t *rank;     /* [count] by place in the data; from 0 */
    size_t outstanding; /* number of the first examples that stand out from the rest */
    fmo_blame_fidelity fidelity;
} fmo_blame_ranking;

typedef struct fmo_blame_data_opts {
    const char *method; /* a name, "all", NULL: the default */
    const char *target; /* "margin", "wrong"; NULL: margin if the parent's answer passes */
    bool fidelity;
    uint64_t budget; /* most trainings; 0: 12 */
} fmo_blame_data_opts;

typedef struct fmo_blame_data_section {
    fmo_blame_data_opts opts;
    fmo_blame_ranking ranking[FM_ATTRIBUTIONS]; /* best first: measured, else by the benchmark */
    size_t rankings, count;                 /* of methods; of examples */
    uint64_t evaluations;                   /* passes of one example for the scores */
    bool right_known, checkpoints;          /* the target is a margin; the run's states were kept */
    size_t group, halves;                   /* examples of a group; number of random halves */
    uint32_t trainings;                     /* number run */
    double random;                          /* change without a random group */
    double margin;                          /* of the child */
    double seconds;
} fmo_blame_data_section;

/* Order of the methods by tests/bench/bench_examples, best first. */
extern const fm_attribution_kind blame_data_order[FM_ATTRIBUTIONS];

/* Reports the cost, measures the fidelity of b->data.ranking and sorts the rankings by it. */
fm_status fmo_blame_data_fidelity(struct fmo_blame *b, const fm_attribution_in *in);
fm_json *fmo_blame_data_json(const struct fmo_blame *b);

#endif
