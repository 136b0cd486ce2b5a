/* derive_run.h - the state of a derivation: derive.c trains, derive_land.c makes the versions. */
#ifndef FM_OPS_DERIVE_RUN_H
#define FM_OPS_DERIVE_RUN_H

#include "cli/ops/derive/family.h"
#include "cli/ops/derive/objective_setup.h"
#include "cli/ops/derive/sweep.h"

enum { CONFIG_FILES = 5 }; /* files of a folder to pretrain from */

typedef struct fmo_candidate { /* the version of a unit, from the commit to the branch */
    fm_status rc;          /* FM_OK: it is good; else the reason for none, or for its refusal */
    bool made, landed;     /* made: it was tried, and rc is set */
    fm_tree *tree;
    fm_oid oid;
    fm_model *model; /* set if other units are trained on it */
    size_t child;    /* index of the child that became it */
    fm_tally tally;
    char *message;
} fmo_candidate;

typedef struct fmo_training { /* of one child */
    fm_dataset *dataset;   /* a trial may share that of the first trial */
    fm_data_report report; /* set if the child owns its dataset */
    fmo_goal goal;
    fm_train_result result;
    uint32_t came, steps; /* steps done and in all; 0: not known yet */
} fmo_training;

typedef struct fmo_derivation {
    fm_ops *c;
    fmo_family *f;
    fm_oid parent_oid;
    fm_tree *parent;             /* for PRETRAIN only model.json and tokenizer */
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
    fm_engine *judge; /* runs the gates if training is not in mode exact; NULL until needed */
    /* the jobs of the current wave, and the child of each */
    fm_train_job *job;
    size_t *job_child, jobs;
    fm_train_progress last; /* the newest step */
    size_t last_child;
    uint64_t steps_done; /* by this call */
    uint64_t stop_after; /* 0 = never */
    uint64_t eval_every;
    uint32_t plan_ranks;
    fm_status sweep_rc; /* a failure in the callback, which cannot return it */
    fm_status worst;    /* worst failure of a child; its text is kept for the end */
    fm_error_state worst_text;
} fmo_derivation;

/* The child that owns this one's data: the trials of a sweep share it if no swept key changes
 * it. */
size_t fmo_data_owner(const fmo_derivation *d, size_t child);
/* The tree, id and model on which a child is trained. */
const fm_tree *fmo_base_tree(const fmo_derivation *d, size_t child);
const fm_oid *fmo_base_oid(const fmo_derivation *d, size_t child);
const fm_model *fmo_base_model(const fmo_derivation *d, size_t child);

/* Estimates the memory and time of the current jobs. */
fm_status fmo_make_plan(fmo_derivation *d, fm_derive_plan *out);

/* Commits the version of a unit whose child is chosen, and runs its gates. */
fm_status fmo_commit_candidate(fmo_derivation *d, const fmo_unit *u, fmo_candidate *cand);
/* Moves the branch of a good candidate, once. */
void fmo_land_unit(fmo_derivation *d, size_t at);
/* Drops the checkpoints of a unit that ended with rc, if it has a commit. */
void fmo_forget_states(fmo_derivation *d, const fmo_unit *u, fm_status rc);
/* Records the failure of a child, which does not stop its siblings. The worst one is returned at
 * the end, the others are reported here as warnings. */
void fmo_come_to_nothing(fmo_derivation *d, fm_status rc);

#endif
