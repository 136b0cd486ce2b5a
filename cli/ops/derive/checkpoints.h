/* checkpoints.h - states of training as commits of the repository: kept by policy, found again by a
 * digest of all that the run's bits depend on, pruned by gc once their refs are gone.
 *
 * refs/fmstore/checkpoints/<run, 20 hex>/<step, 10 digits> names a commit without parents whose
 * tree is: checkpoint.json {"format","run","child","step","tokens"}, train_log.json, and p/, m/,
 * v/ with the tensors, each coded against that of the state before. One process at a time trains a
 * run: there is a lock per run. */
#ifndef FM_OPS_CHECKPOINTS_H
#define FM_OPS_CHECKPOINTS_H

#include "cli/ops/derive.h"

/* Sets every, last and each, where they are 0, from the repository's config:
 * fmstore.checkpointevery, .checkpointlast, .checkpointeach. FM_EINVAL names a wrong value. */
fm_status fmo_checkpoints_policy_fill(fm_keep_policy *p, fm_ops *c);

typedef struct fmo_checkpoints fmo_checkpoints;
fm_status fmo_checkpoints_new(fmo_checkpoints **out, fm_ops *c, const fm_keep_policy *policy,
                              size_t children);
/* Loads kept states of this run, evenly chosen, by ascending steps: at most `most`, and at most
 * max_bytes, but at least one. The caller calls fm_train_state_release on each, then fm_free.
 * *count 0: none are kept. */
fm_status fmo_checkpoints_states(fm_ops *c, const fm_digest *run, size_t most, uint64_t max_bytes,
                                 fm_train_state **out, size_t *count);
void fmo_checkpoints_free(fmo_checkpoints *k); /* releases the runs' locks; NULL is a no-op */
const fm_train_checkpoints *fmo_checkpoints_train(fmo_checkpoints *k);
/* Sets a child's name for messages; borrowed. */
void fmo_checkpoints_name(fmo_checkpoints *k, size_t child, const char *name);
/* Job j of the next call of fm_train_run is child[j]; borrowed. The other functions take a child's
 * index. */
void fmo_checkpoints_jobs(fmo_checkpoints *k, const size_t *child);
/* The progress callback reports here how far a child has come, and that all stop now. */
void fmo_checkpoints_step(fmo_checkpoints *k, size_t child, uint32_t step, uint32_t steps);
void fmo_checkpoints_stopping(fmo_checkpoints *k);
/* Whether the last state of each child is written too: other waves are trained after it. */
void fmo_checkpoints_at_ends(fmo_checkpoints *k, bool on);
/* The log of the state that a child was resumed from; NULL: it began anew. Borrowed. */
const fm_json *fmo_checkpoints_log(const fmo_checkpoints *k, size_t child);
/* Call it when the child is committed: its states are dropped, or kept as the policy says. */
void fmo_checkpoints_landed(fmo_checkpoints *k, size_t child);

#endif
