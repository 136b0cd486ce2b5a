/* data.h - the ranking of the guilty step's training examples, and how true it is. */
#ifndef FM_OPS_BLAME_DATA_H
#define FM_OPS_BLAME_DATA_H

#include "cli/ops/base/say.h"
#include "train/attribution.h"

struct fmo_blame;

/* What was measured of one method, by training the step again without the group. Changes are of
 * the case's margin (log p(wrong) - log p(right)): child's less that of the run without. NaN: not
 * measured. */
typedef struct fmo_blame_fidelity {
    double top, bottom; /* without its first, its last `group` examples */
    double lds; /* Spearman's correlation over the random halves: the sum of the scores of what is
                   left out with the change */
} fmo_blame_fidelity;

typedef struct fmo_blame_ranking {
    fm_attribution_kind kind;
    double *score;      /* [count] by place in the data */
    uint32_t *rank;     /* [count] likewise, from 0 */
    size_t outstanding; /* the first so many stand out from the rest */
    fmo_blame_fidelity fidelity;
} fmo_blame_ranking;

typedef struct fmo_blame_data_opts {
    const char *method; /* a name, "all", NULL: the default */
    const char *target; /* "margin", "wrong"; NULL: margin where the parent's answer passes */
    bool fidelity;
    uint64_t budget; /* trainings at most; 0: 12 */
} fmo_blame_data_opts;

typedef struct fmo_blame_data_section {
    fmo_blame_data_opts opts;
    fmo_blame_ranking ranking[FM_ATTRIBUTIONS]; /* best first: measured, else by our benchmark */
    size_t rankings, count;                 /* count: of examples */
    uint64_t evaluations;                   /* passes of one example that the scores took */
    bool right_known, checkpoints;          /* the target is a margin; the run's states were kept */
    size_t group, halves;                   /* examples of a group; random halves */
    uint32_t trainings;                     /* that were run */
    double random;                          /* change without a random group */
    double margin;                          /* of the child */
    double seconds;
} fmo_blame_data_section;

/* Order of the methods by tests/bench/bench_examples, best first. */
extern const fm_attribution_kind blame_data_order[FM_ATTRIBUTIONS];

/* Fills section->ranking's fidelity and sorts them; says the cost first. */
fm_status fmo_blame_data_fidelity(struct fmo_blame *b, const fm_attribution_in *in);
fm_json *fmo_blame_data_json(const struct fmo_blame *b);

#endif
