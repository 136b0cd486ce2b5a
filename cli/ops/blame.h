/* blame.h - where a failure came from: the version, its tensors, its examples, its steps; and what
 * would repair it. */
#ifndef FM_OPS_BLAME_H
#define FM_OPS_BLAME_H

#include "cli/ops/ops.h"
#include "testing/blame.h"

FM_BEGIN_DECLS

/* All texts are borrowed. */
typedef struct fm_blame_request {
    const char *rev;             /* the version that fails; with fix a branch */
    const char *case_spec;       /* "SUITE/CASE" of it, or NULL and: */
    const char *prompt, *expect; /* a prompt whose answer should contain the second */
    bool raw;                    /* the prompt is plain text, not a chat message */
    /* The search through history. */
    double flip_rate;  /* how often one run says the opposite of what is true, below 0.451; 0: none
                          where the case does not sample, else it is measured */
    double confidence; /* wanted of the verdict; 0 = 0.95 */
    bool all_versions; /* every version is asked, not only those that decide */
    uint32_t max_runs; /* mixtures of each search through tensors; 0 = 400 */
    /* What is looked for in the guilty step. None of it: tensors and data (tensors alone where ranks
     * share the models). */
    bool tensors, data;
    bool trace;    /* at which layer and token the answer turns */
    bool steps;    /* at which step of the training, by kept states */
    bool rederive; /* steps: also by training again; what changes of the recipe would have done */
    bool repairs;  /* candidates, tried on all suites of the version */
    bool fix;      /* repairs, and the best one is committed; the branch moves through its gates */
    bool ranks;    /* tensors: down to the rank-one parts of adapters */
    bool shapley;  /* what each step of the history and each unit found is worth */
    uint64_t budget_s; /* of training again, in seconds; 0 = 600 */
    /* data: how the examples are ranked. */
    const char *data_method; /* a name of train/attribution.h, "all"; NULL: the default */
    const char *data_target; /* "margin", "wrong"; NULL: margin where the parent's answer passes */
    bool fidelity;           /* measure the rankings by training again without groups */
    uint64_t trainings;      /* of that, at most; 0 = 12 */
} fm_blame_request;

typedef struct fm_blame_report {
    fm_blame_class verdict;
    bool has_step; /* a step of the history made it: culprit says which */
    fm_oid culprit;
    char *sentence; /* the verdict for people; owned */
    fm_json *json;  /* all that was found, as `fmstore blame --json` prints it; owned */
} fm_blame_report;

/* Leases and asks; moves a branch with fix alone. A case that passes is a verdict, no error.
 * FM_EREFUSED: with fix, no repair could be offered or its gates failed; out is filled all the same.
 * FM_EINVAL: what does not go together; FM_ENOTFOUND: version, suite or case; FM_EUNSUPPORTED: trains,
 * where ranks share the models. The caller releases out, also after a failure. */
fm_status fm_ops_blame(fm_ops *c, const fm_blame_request *ask, fm_blame_report *out);
void fm_blame_report_release(fm_blame_report *r);

FM_END_DECLS
#endif
