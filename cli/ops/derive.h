/* derive.h - trains new versions from others: one child by its options, or the children of a family
 * file in one pass. Their suites run before a branch is made. */
#ifndef FM_OPS_DERIVE_H
#define FM_OPS_DERIVE_H

#include "cli/ops/test.h"
#include "train/train.h"

FM_BEGIN_DECLS

/* Which checkpoints of a training are kept. every, last, each: 0 takes the repository's config. */
typedef struct fm_keep_policy {
    uint64_t every; /* steps; 0: by time, at most about one a minute and 2 % of the time */
    uint64_t last;  /* number of the newest that stay; at least 1 */
    uint64_t each;  /* those at multiples of so many steps stay too; 0 = none */
    bool after;     /* they stay when the child has landed */
} fm_keep_policy;

/* All texts are borrowed. */
typedef struct fm_derive_opts {
    /* Either the children of a family file (docs of `fmstore derive -f`) ... */
    const char *family_file;
    /* ... or one child: */
    const char *parent;     /* REV, or NULL with config_dir: pretraining from a folder */
    const char *config_dir; /* the folder with config.json and the tokenizer */
    const char *name;       /* the branch to make */
    const char *method;     /* "lora" (NULL), "dora", "full", "ia3", "prefix", "prompt", "bitfit",
                             * "ln_tuning", "loha" and others (family.c) */
    const char *message;    /* of the commit; NULL: made from method and data */
    const char *teacher;    /* REV of the teacher of objective=distill */
    const char *eval;       /* share or file that is held out of training */
    const char *skip;       /* "3,7": records of the only file to leave out */
    fm_words data;          /* files, "a.jsonl" or "b.csv:0.5" with a weight; at least one */
    fm_words set;           /* "key=value": r, alpha, lr, steps, seed, ... */
    fm_words suites;        /* suite files to add to the version */
    /* Both: */
    const char *mode; /* "exact" or "bf16"; a family file must not name another one */
    bool no_gate;     /* land without running the suites */
    bool check_data;  /* report on the data, as a result, and end */
    bool plan;        /* fill out->plan with memory and time, and train nothing */
    bool recompute;   /* less memory, more time, same bits */
    fm_keep_policy keep;
    uint64_t eval_every;  /* steps between evaluations on held-out data; 0: at the end alone */
    uint64_t stop_after;  /* stop after so many steps, as if ui.progress had asked; 0 = never */
    const char *log_path; /* file for {"child": [{"step","loss","grad_norm","lr"}]}; or NULL */
} fm_derive_opts;

typedef struct fm_derived { /* the outcome of one wanted version */
    char *name;             /* of its branch; owned */
    fm_status status;       /* FM_OK: it was made; FM_EREFUSED: its gates failed; else an error */
    bool landed;            /* its branch is made */
    fm_oid oid;             /* of its commit (FM_OK, FM_EREFUSED) */
    fm_tally tally;         /* results of its suites */
} fm_derived;

typedef struct fm_derive_plan { /* cost of the first wave */
    size_t jobs;                /* trainings in one pass; 0: no plan was requested */
    size_t later;               /* versions of later waves */
    bool halving;               /* trials that halving would drop are counted to their end */
    uint64_t every;             /* steps between checkpoints; 0: about a minute */
    fm_plan plan;
    bool over_stages, over_ranks; /* which of the members below are set */
    fm_stages_plan stages;        /* over_stages */
    fm_train_ranks_plan of_rank;  /* over_ranks */
    uint32_t shards, rank_shards; /* over_ranks: shards of each micro-batch, and of a rank */
} fm_derive_plan;

typedef struct fm_derive_result {
    fm_derived *item; /* [count] the versions that were tried, in the order of the file */
    size_t count;
    fm_derive_plan plan;
} fm_derive_result;

/* Takes a lease, trains, commits, runs the gates, makes the branches. A child that fails does not
 * stop the others; the call returns the worst failure, and reports the others as warnings.
 * FM_EREFUSED: a gate failed (the candidate is kept under refs/fmstore/rejected/), or check_data
 * found errors. FM_ECANCELLED: stopped before the last step; nothing landed, a checkpoint is kept,
 * and the same call resumes from it. FM_EINVAL names options that exclude each other, or a wrong
 * setting. out may be NULL; else the caller releases it, also after a failure. */
fm_status fm_ops_derive(fm_ops *c, const fm_derive_opts *opts, fm_derive_result *out);
void fm_derive_result_release(fm_derive_result *r);

FM_END_DECLS
#endif
