/* blame_more.h - the parts of a blame after the guilty step is known: each version's probability of
 * the wrong answer, the layer and token at which it turns, the step of the run, repairs.
 *
 * margin = log P(wrong answer) - log P(right answer), of whole answers after the case's (first)
 * prompt; above 0 a version prefers the wrong one. NaN: not known. */
#ifndef FM_OPS_BLAME_MORE_H
#define FM_OPS_BLAME_MORE_H

#include "cli/ops/blame/blame.h"
#include "cli/ops/derive/replay.h"
#include "infer/trace.h"
#include "store/base/os/clock.h"

/* ---- the two answers ---- */
typedef struct fmo_blame_answers {
    char *wrong, *right;         /* NULL: not known */
    char *right_from;            /* name of the version that gave the right one */
    double *wrong_lp, *right_lp; /* [versions] log P; NaN if the version was not run */
} fmo_blame_answers;

/* ---- at which layer and token ---- */
typedef struct fmo_blame_grids {
    bool done;
    char *why_not;    /* the reason if not done */
    char **token;     /* [common] texts of the tokens that both answers share */
    fm_trace grid[2]; /* the child with the parent's states; the parent with the child's */
    double seconds;
} fmo_blame_grids;

/* ---- at which step of the run ---- */
typedef struct fmo_blame_point {
    uint32_t step; /* steps done; 0 = the parent */
    fm_verdict verdict;
    double margin;
    bool kept; /* a checkpoint of the repository; else a state of a new training */
} fmo_blame_point;

typedef struct fmo_blame_ablation {
    char *what; /* "lr = 0.001 (default)" */
    bool run;   /* it was trained and judged */
    char *why;  /* the reason if not; NULL: not requested */
    fm_verdict verdict;
    double margin;
    double estimate_s, seconds; /* by the plan; measured (trainings of one pass share its time) */
} fmo_blame_ablation;

typedef struct fmo_blame_steps {
    bool done;
    char *why_not;
    uint32_t steps;         /* of the run */
    size_t states_kept;     /* checkpoints found */
    fmo_blame_point *point; /* ascending steps */
    size_t points, point_cap;
    uint32_t passes_at, fails_at; /* the narrowest pair: steps after which the case passes, fails */
    bool exact;                   /* fails_at = passes_at + 1 */
    uint32_t *record; /* if exact: the examples of step fails_at, by place in the data */
    char **preview;
    uint32_t *index; /* their record numbers */
    size_t records;
    fmo_blame_ablation *ablation;
    size_t ablations, ablation_cap;
    double plan_s, seconds; /* estimate of a whole training; time spent here */
} fmo_blame_steps;

/* ---- Shapley values of the history's steps: --shapley ---- */
enum { BLAME_WORTH_MOST = 64 };
typedef struct fmo_blame_step_shapley {
    size_t node[BLAME_WORTH_MOST]; /* the steps, the youngest first */
    size_t count;                  /* fewer than 2: no values are computed */
    bool margin;                   /* value = margin; else 1 = fails, 0 = passes */
    fm_shapley value;              /* in the order of node; units 0: not done */
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
    char *why;   /* the reason if not run */
    bool passes; /* the case passes */
    bool firm;   /* margin is below 0, and at least half of the way back to the parent's */
    double margin;
    double alpha; /* REWEIGHT: share of the child's change that stays */
    double moved; /* |candidate - version| / |version - parent| over the tensors of the step */
    size_t total, passed, passed_before; /* cases of all suites of the version */
    char **breaks, **fixes; /* "suite/case" that passed before and now fail; the reverse */
    size_t break_count, fix_count, break_cap, fix_cap;
    bool offered; /* the case passes and no other case breaks */
    double seconds;
    fm_tree *tree;           /* of a candidate that was run */
    fmo_blame_overlay *made; /* its computed tensors; NULL: none */
    fm_json *recipe;
    fm_json *log; /* train_log.json, if it was trained */
} fmo_blame_candidate;

typedef struct fmo_blame_repairs {
    bool done;
    char *why_not;
    fmo_blame_candidate *item; /* best first, the offered ones before the others */
    size_t count, cap;
    char *committed; /* hex id of the commit of --fix; NULL: none */
    double seconds;
} fmo_blame_repairs;

typedef struct fmo_blame_more {
    fmo_blame *b;
    const fm_suite_set *suites; /* of the version asked about */
    const char *rev, *case_spec;
    bool rederive;
    uint64_t budget_s; /* for training again, in seconds */
    uint32_t max_runs;
    fmo_blame_answers answers;
    fmo_blame_step_shapley worth;
    fmo_blame_grids grids;
    fmo_blame_steps steps;
    fmo_blame_repairs repairs;
    /* the engine of the training's mode, swapped with c->engine to train; NULL: one does both */
    fm_engine *other;
    uint64_t runs; /* runs of a model by these parts, not counted by the searches */
    double seconds;
} fmo_blame_more;

/* Fills m->answers: the wrong and the right one, and log P of both on each version of the
 * history. */
fm_status fmo_blame_find_answers(fmo_blame_more *m);
/* log P of both answers on a model; NaN where one is not known. */
fm_status fmo_blame_answer_lps(const fmo_blame_more *m, fm_model *model, double *wrong,
                               double *right);
/* Runs the case on a tree whose tensors may be in made (NULL: all are stored), and computes the
 * margin. *verdict is FM_ERROR_CASE if the tree cannot be run. */
fm_status fmo_blame_try(fmo_blame_more *m, const fm_tree *tree, const fmo_blame_overlay *made,
                        const char *what, fm_verdict *verdict, double *margin);

/* Computes the Shapley values of the steps from the root to the version asked about, by first
 * parents, that changed a tensor (or a tokenizer, an adapter). */
fm_status fmo_blame_shapley_steps(fmo_blame_more *m);
fm_status fmo_blame_trace(fmo_blame_more *m);
fm_status fmo_blame_find_step(fmo_blame_more *m);
fm_status fmo_blame_find_repairs(fmo_blame_more *m);
/* Commits the best offered candidate as a child of the version and moves branch to it. FM_EREFUSED:
 * none is offered, or its gates fail. */
fm_status fmo_blame_fix(fmo_blame_more *m, const char *branch);

/* ---- reports ---- */
fm_json *fmo_blame_json(const fmo_blame_more *m, bool tensors, bool data);
/* Writes a page that needs no other file. */
fm_status fmo_blame_html(fm_buf *out, const fmo_blame_more *m, bool tensors, bool data,
                         uint64_t top);
void fmo_blame_more_release(fmo_blame_more *m);

#endif
