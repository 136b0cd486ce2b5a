/* derive.h - new versions, trained from others: one child by its settings, or a family of them from a
 * file, in one pass. Their suites run before a branch is made. */
#ifndef FM_OPS_DERIVE_H
#define FM_OPS_DERIVE_H

#include "cli/ops/test.h"
#include "train/train.h"

FM_BEGIN_DECLS

/* Which states of a training are kept. What is 0 comes from the repository's config. */
typedef struct fm_keep_policy {
    uint64_t every; /* steps; 0: by time, at most about one a minute and 2 % of the time */
    uint64_t last;  /* the newest so many stay; at least 1 */
    uint64_t each;  /* besides them those whose step is a multiple; 0 = none */
    bool after;     /* also when the child has landed */
} fm_keep_policy;

/* All texts are borrowed. */
typedef struct fm_derive_opts {
    /* Either the children of a family file (docs of `fmstore derive -f`) ... */
    const char *family_file;
    /* ... or one child: */
    const char *parent;     /* REV, or NULL with config_dir: pretraining from a folder */
    const char *config_dir; /* with config.json and the tokenizer */
    const char *name;       /* the branch to make */
    const char *method;     /* "lora" (NULL), "dora", "full", "ia3", "prefix", "prompt", "bitfit" */
    const char *message;    /* of the commit; NULL: made of method and data */
    const char *teacher;    /* REV that objective=distill follows */
    const char *eval;       /* share or file that is held out of training */
    const char *skip;       /* "3,7": records of the only file to leave out */
    fm_words data;          /* files, "a.jsonl" or "b.csv:0.5" with a weight; at least one */
    fm_words set;           /* "key=value": r, alpha, lr, steps, seed, ... */
    fm_words suites;        /* files, hung on it */
    /* Both: */
    const char *mode;     /* "exact" or "bf16"; a family file must not say another one */
    bool no_gate;         /* land without running the suites */
    bool check_data;      /* tell the report on the data, as a result, and end */
    bool plan;            /* say in out->plan what it would take, and train nothing */
    bool recompute;       /* less memory, more time, same bits */
    fm_keep_policy keep;
    uint64_t eval_every;  /* steps between looks at what is held out; 0: at the end alone */
    uint64_t stop_after;  /* steps, then as if ui.progress had said so; 0 = never */
    const char *log_path; /* file for {"child": [{"step","loss","grad_norm","lr"}]}; or NULL */
} fm_derive_opts;

typedef struct fm_derived { /* a version that was to be */
    char *name;             /* of its branch; owned */
    fm_status status; /* FM_OK: it stands; FM_EREFUSED: its gates failed; else why there is none */
    bool landed;      /* its branch is made */
    fm_oid oid;       /* where it was committed (FM_OK, FM_EREFUSED) */
    fm_tally tally;   /* of its suites */
} fm_derived;

typedef struct fm_derive_plan { /* of the first wave */
    size_t jobs;                /* trainings in one pass; 0: none was asked for */
    size_t later;               /* versions that stand on these */
    bool halving;               /* trials that halving drops are counted to their end */
    uint64_t every;             /* steps between kept states; 0: about a minute */
    fm_plan plan;
    bool over_stages, over_ranks; /* of these the following are: */
    fm_stages_plan stages;        /* over_stages */
    fm_train_ranks_plan of_rank;  /* over_ranks */
    uint32_t shards, rank_shards; /* over_ranks: of each micro-batch, of a rank */
} fm_derive_plan;

typedef struct fm_derive_result {
    fm_derived *item; /* [count] in the order of the file; of those that were tried */
    size_t count;
    fm_derive_plan plan;
} fm_derive_result;

/* Leases, trains, commits, runs the gates, makes the branches. Of several children one that fails does
 * not hold the others back; the worst failure is what is returned, the others are warnings.
 * FM_EREFUSED: a gate failed (the candidate is kept under refs/fmstore/rejected/), or check_data found
 * errors. FM_ECANCELLED: stopped before the last step; nothing landed, a checkpoint is kept, the same
 * call goes on from there. FM_EINVAL: options that do not go together, or a wrong setting, named.
 * out may be NULL; else the caller releases it, also after a failure. */
fm_status fm_ops_derive(fm_ops *c, const fm_derive_opts *opts, fm_derive_result *out);
void fm_derive_result_release(fm_derive_result *r);

FM_END_DECLS
#endif
