/* derive_run.h - a family being derived: derive.c trains it, derive_land.c makes its versions. */
#ifndef FM_OPS_DERIVE_RUN_H
#define FM_OPS_DERIVE_RUN_H

#include "cli/ops/derive/family.h"
#include "cli/ops/derive/objective_setup.h"
#include "cli/ops/derive/sweep.h"

enum { CONFIG_FILES = 5 }; /* of a folder to pretrain from */

typedef struct fmo_candidate { /* of a unit: its version, from the commit to the branch */
    fm_status rc;          /* FM_OK: it stands; else why there is none, or none that counts */
    bool made, landed;     /* made: tried, rc says how */
    fm_tree *tree;
    fm_oid oid;
    fm_model *model; /* where others stand on it */
    size_t child;    /* which became it */
    fm_tally tally;
    char *message;
} fmo_candidate;

typedef struct fmo_training { /* of a child */
    fm_dataset *dataset;   /* a trial's may be the first trial's */
    fm_data_report report; /* of one that owns its data */
    fmo_goal goal;
    fm_train_result result;
    uint32_t came, steps; /* done and to do, as far as is known */
} fmo_training;

typedef struct fmo_derivation {
    fm_ops *c;
    fmo_family *f;
    fm_oid parent_oid;
    fm_tree *parent;             /* PRETRAIN: model.json and tokenizer alone */
    fm_model *model;             /* keeps the stem resident; NULL for PRETRAIN */
    fm_buf config[CONFIG_FILES]; /* PRETRAIN: the folder's files */
    fm_tokenizer *own_tokenizer; /* PRETRAIN */
    const fm_tokenizer *tok;
    const fm_chat_template *chat;
    fmo_training *training; /* [count] */
    fmo_candidate *cand;    /* [units] */
    fm_keep_policy policy;
    fmo_checkpoints *checkpoints;
    bool pretrain, gate, plan, recompute, check_data;
    fm_engine *judge; /* of the gates, where training is not in mode exact; NULL until needed */
    /* of the wave in hand: its jobs, and whose they are */
    fm_train_job *job;
    size_t *job_child, jobs;
    fm_train_progress last; /* the newest step */
    size_t last_child;
    uint64_t steps_done; /* of this call */
    uint64_t stop_after; /* 0 = never */
    uint64_t eval_every;
    uint32_t plan_ranks;
    fm_status sweep_rc; /* of what the callback could not say */
    fm_status worst;    /* of children that came to nothing; its text is kept for the end */
    fm_error_state worst_text;
} fmo_derivation;

/* Which child's data this one has: trials of a sweep that does not touch the data read it once. */
size_t fmo_data_owner(const fmo_derivation *d, size_t child);
/* What a child stands on. */
const fm_tree *fmo_base_tree(const fmo_derivation *d, size_t child);
const fm_oid *fmo_base_oid(const fmo_derivation *d, size_t child);
const fm_model *fmo_base_model(const fmo_derivation *d, size_t child);

/* What the jobs in hand would take. */
fm_status fmo_make_plan(fmo_derivation *d, fm_derive_plan *out);

/* The version of a unit whose child is chosen, with its gates run. */
fm_status fmo_commit_candidate(fmo_derivation *d, const fmo_unit *u, fmo_candidate *cand);
/* Moves the branch of a candidate that stands, once. */
void fmo_land_unit(fmo_derivation *d, size_t at);
/* The states of a unit that ended with rc are not needed any more, if it has a commit. */
void fmo_forget_states(fmo_derivation *d, const fmo_unit *u, fm_status rc);
/* One that fails does not hold its siblings back. The text of the worst is left for the end, the
 * others are told here as warnings. */
void fmo_come_to_nothing(fmo_derivation *d, fm_status rc);

#endif
