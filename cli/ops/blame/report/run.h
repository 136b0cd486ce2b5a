/* run.h - a blame from its request to its end, in parts between which a report can be told. */
#ifndef FM_OPS_BLAME_RUN_H
#define FM_OPS_BLAME_RUN_H

#include "cli/ops/blame.h"
#include "cli/ops/blame/blame_more.h"

typedef struct fmo_blame_run {
    const fm_blame_request *ask;
    fmo_blame b;
    fmo_blame_more m;
    fm_suite_set set;
    fm_suite *made; /* of a prompt */
    fm_tree *tree;
    struct { /* of the report; after fmo_blame_run_history */
        bool worth, tensors, data, trace, steps, repairs;
    } parts;
    fm_status fixed; /* what came of ask->fix; its text is kept for fmo_blame_run_end */
    fm_error_state fixed_text;
} fmo_blame_run;

/* Which version: history and, of a failure, its two answers. ask is borrowed. Close also after a
 * failure. */
fm_status fmo_blame_run_history(fmo_blame_run *r, fm_ops *c, const fm_blame_request *ask);
/* Worth of the steps, tensors, data; then what trains and patches, and the fix. */
fm_status fmo_blame_run_search(fmo_blame_run *r);
fm_status fmo_blame_run_explain(fmo_blame_run *r);
/* Keeps the outcomes. A fix that failed is told only here. */
fm_status fmo_blame_run_end(fmo_blame_run *r);
void fmo_blame_run_close(fmo_blame_run *r);

#endif
