/* checkpoints.h - states of training as commits of the repository: kept by policy, found again by
 * what the run's bits depend on, pruned by gc once their refs are gone.
 *
 * refs/fmstore/checkpoints/<run, 20 hex>/<step, 10 digits> names a commit without parents whose
 * tree is: checkpoint.json {"format","run","child","step","tokens"}, train_log.json, and p/, m/,
 * v/ with the tensors, each coded against the one before. One process at a time trains a run: a
 * lock per run. */
#ifndef FM_OPS_CHECKPOINTS_H
#define FM_OPS_CHECKPOINTS_H

#include "cli/ops/derive.h"

/* What the options leave open (every, last, each = 0) is taken from the repository's config:
 * fmstore.checkpointevery, .checkpointlast, .checkpointeach. FM_EINVAL names the value. */
fm_status fmo_checkpoints_policy_fill(fm_keep_policy *p, fm_ops *c);

typedef struct fmo_checkpoints fmo_checkpoints;
fm_status fmo_checkpoints_new(fmo_checkpoints **out, fm_ops *c, const fm_keep_policy *policy,
                              size_t children);
/* States of this run that are kept, ascending steps, evenly chosen: at most `most`, and no more
 * than max_bytes hold. Owned: fm_train_state_release each, then fm_free. *count 0: none are
 * kept. */
fm_status fmo_checkpoints_states(fm_ops *c, const fm_digest *run, size_t most, uint64_t max_bytes,
                                 fm_train_state **out, size_t *count);
void fmo_checkpoints_free(fmo_checkpoints *k); /* lets go of the runs; NULL is a no-op */
const fm_train_checkpoints *fmo_checkpoints_train(fmo_checkpoints *k);
/* For messages; borrowed. */
void fmo_checkpoints_name(fmo_checkpoints *k, size_t child, const char *name);
/* Job j of the next call of fm_train_run is child[j]; borrowed. The other functions speak of
 * children. */
void fmo_checkpoints_jobs(fmo_checkpoints *k, const size_t *child);
/* From the progress callback: how far a child has come, and whether all stop now. */
void fmo_checkpoints_step(fmo_checkpoints *k, size_t child, uint32_t step, uint32_t steps);
void fmo_checkpoints_stopping(fmo_checkpoints *k);
/* The end of each child is kept too: other children are trained after these. */
void fmo_checkpoints_at_ends(fmo_checkpoints *k, bool on);
/* The log of the state that a child was resumed from; NULL: it began anew. Borrowed. */
const fm_json *fmo_checkpoints_log(const fmo_checkpoints *k, size_t child);
/* There is a commit of the child: its states are not needed any more. */
void fmo_checkpoints_landed(fmo_checkpoints *k, size_t child);

#endif
