/* merge.h - merges several versions into one: weighted average or task arithmetic
 * (store/merge.h). */
#ifndef FM_OPS_MERGE_H
#define FM_OPS_MERGE_H

#include "cli/ops/land.h"
#include "store/merge.h"

FM_BEGIN_DECLS

/* All texts and arrays are borrowed. */
typedef struct fm_merge_opts {
    const char *const *rev; /* [count] */
    size_t count;           /* 2 to FM_PARENTS_MAX */
    const char *name;       /* the branch to make */
    fm_merge_method method;
    const double *weight; /* [count]; NULL: 1 each. An average divides by their sum */
    double lambda;        /* FM_MERGE_TASK: factor of each difference, not 0 */
    const char *base;     /* FM_MERGE_TASK: REV that differences are from; NULL: the merge base */
    const char *message;  /* of the commit; NULL: made from the names */
    fm_words suites;      /* suite files to add to those of the parents */
    bool no_gate;         /* land without running the suites */
} fm_merge_opts;

typedef struct fm_merge_result {
    fm_oid oid;
    fm_merge_stats stats;
} fm_merge_result;

/* "average", "task-arithmetic". */
const char *fm_merge_method_name(fm_merge_method m);

/* Takes a lease, merges weights and suites, commits with a recipe, runs the gates, makes the
 * branch. The versions must have the same architecture and tokenizer (FM_EBASE names the
 * difference). FM_EREFUSED: a gate failed, the candidate is kept under refs/fmstore/rejected/. *out
 * is filled in after FM_OK and FM_EREFUSED. */
fm_status fm_ops_merge(fm_ops *c, const fm_merge_opts *opts, fm_merge_result *out);

FM_END_DECLS
#endif
