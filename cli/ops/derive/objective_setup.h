/* objective_setup.h - inputs of a training objective other than its examples: names of the classes,
 * held-out examples, the teacher. The recipe records them for a replay. */
#ifndef FM_OPS_OBJECTIVE_SETUP_H
#define FM_OPS_OBJECTIVE_SETUP_H

#include "cli/ops/base/say.h"
#include "train/train.h"

typedef struct fmo_goal {
    const fm_example **held; /* [helds] */
    const char **name;       /* [names] names of classes */
    size_t helds;
    uint32_t names, eval_every;
    fm_oid teacher_oid;
    fm_tree *teacher; /* NULL: none */
    fm_provider provider;
} fmo_goal;

/* teacher: REV or NULL. data is borrowed. */
fm_status fmo_goal_open(fmo_goal *g, fm_ops *c, const fm_dataset *data,
                        const fm_train_config *config, const char *teacher, uint64_t eval_every);
void fmo_goal_release(fmo_goal *g);
/* Sets the inputs in a job, which borrows them. */
void fmo_goal_job(const fmo_goal *g, fm_train_job *job);
/* Writes "teacher" and "eval_every", if they are set. */
void fmo_goal_recipe(const fmo_goal *g, fm_json *recipe, fm_status *rc);
/* fmo_goal_open with the teacher and interval of a recipe. */
fm_status fmo_goal_of_recipe(fmo_goal *g, fm_ops *c, const fm_dataset *data,
                             const fm_train_config *config, const fm_json *recipe);

#endif
