/* plan_ranks.h - what a model or a training over several ranks would take, for people. */
#ifndef FM_CLI_PLAN_RANKS_H
#define FM_CLI_PLAN_RANKS_H

#include "cli/base/context.h"
#include "infer/parallel_plan.h"
#include "train/train.h"

/* serve --plan: every way to split the model, and the best. */
fm_status plan_serve(cli *c, const char *rev, const fm_topology *t, uint32_t rows);
/* derive --plan, behind what one rank takes. */
void plan_train(const fm_plan *p, uint32_t shards, const fm_topology *t);
/* The same over stages, as t->ranks are so many times a stage's ranks. */
void plan_train_stages(const fm_stages_plan *p, const fm_topology *t);

#endif
