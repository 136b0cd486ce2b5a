/* objective_setup.h - what a training objective needs beside its examples: names of the classes,
 * what is held out, the teacher. Kept in the recipe, so that a replay finds it. */
#ifndef FM_OPS_OBJECTIVE_SETUP_H
#define FM_OPS_OBJECTIVE_SETUP_H

#include "cli/ops/base/say.h"
#include "train/train.h"

typedef struct fmo_goal {
    const fm_example **held; /* [helds] */
    const char **name;       /* [names] of classes */
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
/* Into a job, borrowed. */
void fmo_goal_job(const fmo_goal *g, fm_train_job *job);
/* "teacher" and "eval_every", where they are. */
void fmo_goal_recipe(const fmo_goal *g, fm_json *recipe, fm_status *rc);
/* The same out of a recipe. */
fm_status fmo_goal_of_recipe(fmo_goal *g, fm_ops *c, const fm_dataset *data,
                             const fm_train_config *config, const fm_json *recipe);

#endif
