/* replay.h - a version trained again from its recipe, and compared with what is stored. */
#ifndef FM_OPS_DERIVE_REPLAY_H
#define FM_OPS_DERIVE_REPLAY_H

#include "cli/ops/base/say.h"
#include "cli/ops/derive/objective_setup.h"

typedef struct fmo_replay_report {
    size_t tensors; /* that the training made */
    size_t differ;  /* of those and of what it leaves alone */
    fm_json *paths; /* of the first REPLAY_PATHS that differ; owned */
    bool log_same;  /* loss, gradient norm and rate of each step */
    uint32_t steps;
    double seconds;
} fmo_replay_report;
#define REPLAY_PATHS 1000u

/* A version with all that its training took. */
typedef struct fmo_replay {
    fm_ops *c;
    const char *label;
    fm_version version;
    fm_tree *tree, *parent, *expect; /* as stored; as trained on; as trained now */
    fm_json *recipe;
    fm_train_config config;
    fm_model *model;   /* of the parent */
    fm_tokenizer *own; /* PRETRAIN */
    fm_dataset *data;
    fmo_goal goal;
    fm_train_result result;
} fmo_replay;
/* Opens parent, data and goal by the recipe; the engine computes in the recipe's mode from then on.
 * label is borrowed. Errors as of fmo_replay_training; close also after a failure. */
fm_status fmo_replay_open(fmo_replay *r, fm_ops *c, const fm_oid *oid, const char *label);
void fmo_replay_close(fmo_replay *r);

/* label: for progress and errors. FM_EUNSUPPORTED: it has no recipe of a training, or this machine
 * computes in another kernel class; FM_ECORRUPT: data or parent are not those of the recipe. */
fm_status fmo_replay_training(fm_ops *c, const fm_oid *oid, const char *label,
                              fmo_replay_report *out);
void fmo_replay_report_release(fmo_replay_report *r);
bool fmo_replay_equal(const fmo_replay_report *r);
/* *yes: the version says by its recipe that a training made it. */
fm_status fmo_replay_can(fm_ops *c, const fm_oid *oid, bool *yes);

#endif
