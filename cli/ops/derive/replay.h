/* replay.h - trains a version again from its recipe, and compares it with the stored one. */
#ifndef FM_OPS_DERIVE_REPLAY_H
#define FM_OPS_DERIVE_REPLAY_H

#include "cli/ops/base/say.h"
#include "cli/ops/derive/objective_setup.h"

typedef struct fmo_replay_report {
    size_t tensors; /* number that the training made */
    size_t differ;  /* tensors that differ, among all of the version */
    fm_json *paths; /* of the first REPLAY_PATHS that differ; owned */
    bool log_same;  /* loss, gradient norm and learning rate of each step are equal */
    uint32_t steps;
    double seconds;
} fmo_replay_report;
#define REPLAY_PATHS 1000u

/* A version with the inputs of its training. */
typedef struct fmo_replay {
    fm_ops *c;
    const char *label;
    fm_version version;
    fm_tree *tree, *parent, *expect; /* the stored version; its parent; the version made now */
    fm_json *recipe;
    fm_train_config config;
    fm_model *model;   /* of the parent */
    fm_tokenizer *own; /* PRETRAIN alone */
    fm_dataset *data;
    fmo_goal goal;
    fm_train_result result;
} fmo_replay;
/* Opens parent, data and objective by the recipe; from then on the engine computes in the recipe's
 * mode. label is borrowed. Errors as of fmo_replay_training; close also after a failure. */
fm_status fmo_replay_open(fmo_replay *r, fm_ops *c, const fm_oid *oid, const char *label);
void fmo_replay_close(fmo_replay *r);

/* label: for progress and errors. FM_EUNSUPPORTED: the version has no recipe of a training, or this
 * machine computes in another kernel class; FM_ECORRUPT: data or parent are not those of the
 * recipe. */
fm_status fmo_replay_training(fm_ops *c, const fm_oid *oid, const char *label,
                              fmo_replay_report *out);
void fmo_replay_report_release(fmo_replay_report *r);
bool fmo_replay_equal(const fmo_replay_report *r);
/* *yes: by its recipe, a training made the version. */
fm_status fmo_replay_can(fm_ops *c, const fm_oid *oid, bool *yes);

#endif
