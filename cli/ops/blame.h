/* blame.h - finds the cause of a failure: the version, its tensors, its examples, its steps; and
 * repairs of it. */
#ifndef FM_OPS_BLAME_H
#define FM_OPS_BLAME_H

#include "cli/ops/ops.h"
#include "testing/blame.h"

FM_BEGIN_DECLS

/* All texts are borrowed. */
typedef struct fm_blame_request {
    const char *rev;             /* the version that fails; with fix a branch */
    const char *case_spec;       /* "SUITE/CASE" of rev, or NULL: prompt and expect are set */
    const char *prompt, *expect; /* a prompt, and a text that its answer should contain */
    bool raw;                    /* the prompt is plain text, not a chat message */
    /* The search through history. */
    /* the probability that one run gives the wrong verdict, below 0.451; 0: none if the case does
     * not sample, else it is measured */
    double flip_rate;
    double confidence; /* required of the verdict; 0 = 0.95 */
    bool all_versions; /* every version is run, not only those that decide */
    uint32_t max_runs; /* mixtures of each search through tensors; 0 = 400 */
    /* What to look for in the guilty step. If none is set: tensors and data (tensors alone if ranks
     * share the models). */
    bool tensors, data;
    bool trace;    /* the layer and token at which the answer turns */
    bool steps;    /* the step of the training, by kept checkpoints */
    bool rederive; /* steps: also by training again; the effect of changes to the recipe */
    bool repairs;  /* candidates, tried on all suites of the version */
    bool fix;      /* repairs, and the best one is committed; the branch moves if its gates pass */
    bool ranks;    /* tensors: down to the rank-one parts of adapters */
    bool shapley;  /* Shapley values of the history's steps and of the units found */
    uint64_t budget_s; /* for training again, in seconds; 0 = 600 */
    /* data: how the examples are ranked. */
    const char *data_method; /* a name of train/attribution.h, "all"; NULL: the default */
    const char *data_target; /* "margin", "wrong"; NULL: margin if the parent's answer passes */
    bool fidelity;           /* measure the rankings by training again without groups */
    uint64_t trainings;      /* at most so many for fidelity; 0 = 12 */
} fm_blame_request;

typedef struct fm_blame_report {
    fm_blame_class verdict;
    bool has_step; /* a step of the history caused the failure: culprit is its version */
    fm_oid culprit;
    char *sentence; /* the verdict for people; owned */
    fm_json *json;  /* all findings, as `fmstore blame --json` prints them; owned */
} fm_blame_report;

/* Takes a lease and runs the search; moves a branch only with fix. A case that passes is a verdict,
 * no error. FM_EREFUSED: with fix, no repair could be offered or its gates failed; out is filled
 * all the same. FM_EINVAL: options that exclude each other; FM_ENOTFOUND: no such version, suite or
 * case; FM_EUNSUPPORTED: training is needed, but ranks share the models. The caller releases out,
 * also after a failure. */
fm_status fm_ops_blame(fm_ops *c, const fm_blame_request *ask, fm_blame_report *out);
void fm_blame_report_release(fm_blame_report *r);

FM_END_DECLS
#endif
