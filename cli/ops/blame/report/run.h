/* run.h - a blame from its request to its end, in parts, so that a caller can report in between. */
#ifndef FM_OPS_BLAME_RUN_H
#define FM_OPS_BLAME_RUN_H

#include "cli/ops/blame.h"
#include "cli/ops/blame/blame_more.h"

typedef struct fmo_blame_run {
    const fm_blame_request *ask;
    fmo_blame b;
    fmo_blame_more m;
    fm_suite_set set;
    fm_suite *made; /* the suite made of a prompt; NULL without */
    fm_tree *tree;
    struct { /* parts of the report; set by fmo_blame_run_history */
        bool worth, tensors, data, trace, steps, repairs;
    } parts;
    fm_status fixed; /* the outcome of ask->fix; its text is kept for fmo_blame_run_end */
    fm_error_state fixed_text;
} fmo_blame_run;

/* Finds the guilty version in the history and, for a failure, the two answers. ask is borrowed.
 * Close also after a failure. */
fm_status fmo_blame_run_history(fmo_blame_run *r, fm_ops *c, const fm_blame_request *ask);
/* _search: Shapley values of the steps, tensors, data. _explain: trace, steps, repairs, the fix. */
fm_status fmo_blame_run_search(fmo_blame_run *r);
fm_status fmo_blame_run_explain(fmo_blame_run *r);
/* Stores the results. Returns the failure of the fix, if it failed. */
fm_status fmo_blame_run_end(fmo_blame_run *r);
void fmo_blame_run_close(fmo_blame_run *r);

#endif
