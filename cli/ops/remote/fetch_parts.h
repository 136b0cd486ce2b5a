/* fetch_parts.h - parts of a fetch that have files of their own. */
#ifndef FM_OPS_FETCH_PARTS_H
#define FM_OPS_FETCH_PARTS_H

#include "cli/ops/base/remotes.h"

/* Brings the tensors of the tips, and of versions fewer than depth steps behind them. Before refs
 * move, so that a fetch that breaks off is gone on with. Adds to *out. */
fm_status fmo_bring_newest(fm_ops *c, fmo_remote *m, const fm_oid *tip, size_t tips, uint64_t depth,
                           fm_travel *out);
/* What fm_fetch_opts says of prune. */
fm_status fmo_prune(fm_ops *c, const fmo_remote *m, const fmo_refs *refs, const fm_fetch_opts *o,
                    bool lineage_only);

#endif
