/* demand.h - tensors that come when something reads them, in a clone of the lineage alone. */
#ifndef FM_OPS_DEMAND_H
#define FM_OPS_DEMAND_H

#include "cli/ops/remote.h"

/* Lets reads of the handle's store ask the remote that has config remote.<name>.lineageOnly; once.
 * It is opened at the first miss. */
fm_status fmo_demand_begin(fm_ops *c);
void fmo_demand_end(fm_ops *c); /* before the repository is closed */
/* Brings all of a tree that is not here, in one request; nothing in a whole clone. */
fm_status fmo_demand_tree(fm_ops *c, const fm_tree *tree);

#endif
