/* plan_ranks.h - prints the memory that each rank of a model or a training would hold. */
#ifndef FM_CLI_PLAN_RANKS_H
#define FM_CLI_PLAN_RANKS_H

#include "cli/base/context.h"
#include "cli/ops/derive.h"

/* serve --plan: every way to split the model over the ranks, or the one with so many stages (0: not
 * given). machine_bytes: memory that the ranks share on a host; 0: not known. */
fm_status plan_serve(cli *c, const char *rev, uint32_t ranks, uint32_t stages, uint32_t rows,
                     uint64_t machine_bytes);
/* derive --plan over ranks, printed after the plan of one process. */
void plan_train(const fm_derive_plan *d);
void plan_train_stages(const fm_stages_plan *p);

#endif
