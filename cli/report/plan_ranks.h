/* plan_ranks.h - what each of several ranks of a model or a training would hold, for people. */
#ifndef FM_CLI_PLAN_RANKS_H
#define FM_CLI_PLAN_RANKS_H

#include "cli/base/context.h"
#include "cli/ops/derive.h"

/* serve --plan: every way to deal the model to the ranks, or the one of these stages (0: not said).
 * machine_bytes: what the ranks share on a host; 0: not known. */
fm_status plan_serve(cli *c, const char *rev, uint32_t ranks, uint32_t stages, uint32_t rows,
                     uint64_t machine_bytes);
/* derive --plan, behind what one process takes. */
void plan_train(const fm_derive_plan *d);
void plan_train_stages(const fm_stages_plan *p);

#endif
