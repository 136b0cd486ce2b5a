/* blame_more.h - what a blame adds once the guilty step is known: how likely each version finds the
 * wrong answer, at which layer and token it turns, at which step of the run, what would repair it.
 *
 * margin = log P(wrong answer) - log P(right answer), both whole, after the case's (first) prompt;
 * above 0 a version prefers the wrong one. NaN: not known. */
#ifndef FM_OPS_BLAME_MORE_H
#define FM_OPS_BLAME_MORE_H

#include "cli/ops/blame/blame.h"
#include "cli/ops/derive/replay.h"
#include "infer/trace.h"
#include "store/base/os/clock.h"

/* ---- the two answers ---- */
typedef struct fmo_blame_answers {
    char *wrong, *right;         /* NULL: not known */
    char *right_from;            /* whose answer the right one is */
    double *wrong_lp, *right_lp; /* [versions] of those that were asked; NaN */
} fmo_blame_answers;

/* ---- at which layer and token ---- */
typedef struct fmo_blame_grids {
    bool done;
    char *why_not;    /* where not done */
    char **token;     /* [common] texts of the common tokens */
    fm_trace grid[2]; /* the child with the parent's states; the parent with the child's */
    double seconds;
} fmo_blame_grids;

/* ---- at which step of the run ---- */
typedef struct fmo_blame_point {
    uint32_t step; /* steps done; 0 = the parent */
    fm_verdict verdict;
    double margin;
    bool kept; /* from a checkpoint of the repository; else trained again */
} fmo_blame_point;

typedef struct fmo_blame_ablation {
    char *what; /* "lr = 0.001 (default)" */
    bool run;   /* false: the budget did not allow it, or why says */
    char *why;
    fm_verdict verdict;
    double margin;
    double estimate_s,
        seconds; /* by the plan; measured (of trainings that shared a pass: a share) */
} fmo_blame_ablation;

typedef struct fmo_blame_steps {
    bool done;
    char *why_not;
    uint32_t steps;     /* of the run */
    size_t states_kept; /* checkpoints found */
    fmo_blame_point *point; /* ascending steps */
    size_t points, point_cap;
    uint32_t passes_at, fails_at; /* the narrowest pair found: passes after the one, fails after the
                                     other */
    bool exact;                   /* fails_at = passes_at + 1 */
    uint32_t *record; /* of the batch of step fails_at, where exact: places in the data */
    char **preview;
    uint32_t *index; /* their record numbers */
    size_t records;
    fmo_blame_ablation *ablation;
    size_t ablations, ablation_cap;
    double plan_s, seconds; /* a whole training, estimated; spent here */
} fmo_blame_steps;

/* ---- what each step of the history adds: --shapley ---- */
enum { BLAME_WORTH_MOST = 64 };
typedef struct fmo_blame_step_shapley {
    size_t node[BLAME_WORTH_MOST]; /* the steps, the youngest first */
    size_t count;                  /* fewer than 2: nothing to share out */
    bool margin;                   /* value = margin; else 1 = fails, 0 = passes */
    fm_shapley value;              /* in that order; units 0: not done */
    char *why_not;
} fmo_blame_step_shapley;

/* ---- repair ---- */
typedef enum fmo_blame_repair_kind {
    BLAME_REPAIR_REVERT,   /* units set back to the parent's */
    BLAME_REPAIR_REWEIGHT, /* units between parent and child */
    BLAME_REPAIR_DROP,     /* trained again without the examples that stand out */
    BLAME_REPAIR_FILE      /* trained again without a file */
} fmo_blame_repair_kind;

typedef struct fmo_blame_candidate {
    fmo_blame_repair_kind kind;
    char *what;
    bool whole; /* REVERT, REWEIGHT: all units of the step, not the repair set alone */
    bool run;
    char *why;   /* where not run */
    bool passes; /* the case */
    bool firm;   /* below 0, and at least half of the way back to the parent's margin */
    double margin;
    double alpha; /* REWEIGHT: share of the child's change that is left */
    double moved; /* |candidate - version| / |version - parent| over the tensors of the step */
    size_t total, passed, passed_before; /* cases of all suites of the version */
    char **breaks, **fixes; /* "suite/case" that passed and do not, that failed and pass */
    size_t break_count, fix_count, break_cap, fix_cap;
    bool offered; /* the case passes and nothing breaks */
    double seconds;
    fm_tree *tree;       /* of a candidate that was run */
    fmo_blame_overlay *made; /* its tensors; NULL: none were made */
    fm_json *recipe;
    fm_json *log; /* train_log.json, where it was trained */
} fmo_blame_candidate;

typedef struct fmo_blame_repairs {
    bool done;
    char *why_not;
    fmo_blame_candidate *item; /* best first, the offered ones before the others */
    size_t count, cap;
    char *committed; /* hex of the commit of --fix; NULL */
    double seconds;
} fmo_blame_repairs;

typedef struct fmo_blame_more {
    fmo_blame *b;
    const fm_suite_set *suites; /* of the version asked about */
    const char *rev, *case_spec;
    bool rederive;
    uint64_t budget_s; /* of training again, in seconds */
    uint32_t max_runs;
    fmo_blame_answers answers;
    fmo_blame_step_shapley worth;
    fmo_blame_grids grids;
    fmo_blame_steps steps;
    fmo_blame_repairs repairs;
    fm_engine
        *other;    /* that trains, or judges, while the other is the cli's; NULL: one does both */
    uint64_t runs; /* models that were asked here, beside the searches' */
    double seconds;
} fmo_blame_more;

/* answers: wrong, right, and how likely each version of the history finds them. */
fm_status fmo_blame_find_answers(fmo_blame_more *m);
/* log P of both answers on a model; NaN where one is not known. */
fm_status fmo_blame_answer_lps(const fmo_blame_more *m, fm_model *model, double *wrong,
                               double *right);
/* The case and its margin on a tree whose tensors may be in made (NULL: all are stored). What
 * cannot be asked is FM_ERROR_CASE. */
fm_status fmo_blame_try(fmo_blame_more *m, const fm_tree *tree, const fmo_blame_overlay *made,
                        const char *what, fm_verdict *verdict, double *margin);

/* Over the first parents from the version asked about back to their root: the root with every
 * choice of the steps that changed a tensor (or a tokenizer, an adapter) since. */
fm_status fmo_blame_shapley_steps(fmo_blame_more *m);
fm_status fmo_blame_trace(fmo_blame_more *m);
fm_status fmo_blame_find_step(fmo_blame_more *m);
fm_status fmo_blame_find_repairs(fmo_blame_more *m);
/* Commits the best candidate that is offered as a child of the version and moves branch to it.
 * FM_EREFUSED: there is none, or its gates fail. */
fm_status fmo_blame_fix(fmo_blame_more *m, const char *branch);

/* ---- reports ---- */
fm_json *fmo_blame_json(const fmo_blame_more *m, bool tensors, bool data);
/* One file that needs no other. */
fm_status fmo_blame_html(fm_buf *out, const fmo_blame_more *m, bool tensors, bool data,
                         uint64_t top);
void fmo_blame_more_release(fmo_blame_more *m);

#endif
