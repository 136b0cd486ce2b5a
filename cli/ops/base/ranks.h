/* ranks.h - fmstore over several ranks: --ranks N on one host, or mpirun.
 *
 * Commands that answer split every model over the ranks: rank 0 runs the command, the others
 * follow its engine. --stages S splits a model's layers into S stages of N / S neighbouring ranks
 * (mpirun numbers the ranks of a node one after another, so a stage lies inside of a node); vLLM's
 * option names are accepted: --pipeline-parallel-size for S, --tensor-parallel-size for N / S.
 * derive splits each micro-batch: every rank runs the command, rank 0 alone writes. */
#ifndef FM_OPS_RANKS_H
#define FM_OPS_RANKS_H

#include "cli/ops/ops.h"

/* Call it once the options are read: computes the member of ranks = stages * split that was not
 * given, also from the number of ranks under mpirun. FM_EINVAL: they do not agree. */
fm_status fmo_ranks_settle(fm_ops *c);
/* Whether several ranks are requested: by --ranks, or by the environment of mpirun or a rank 0. */
bool fmo_ranks_wanted(const fm_ops *c);
/* This process's rank, from the environment; the number of ranks. */
uint32_t fmo_ranks_mine(void);
uint32_t fmo_ranks_count(const fm_ops *c);
/* Makes c->comm and starts the other ranks. all_run_it: they get the whole command line. */
fm_status fmo_ranks_open(fm_ops *c, bool all_run_it);
/* Called by rank 0 of an engine to split: sends the others the options of their engines. */
fm_status fmo_ranks_tell_engine(fm_ops *c);
/* Ranks of one machine take one GPU each, from the named one on, and share GPUs if there are fewer.
 * text: buffer for the name that *device becomes. */
#define RANKS_CARD_BYTES 24
fm_status fmo_ranks_card(const fm_ops *c, const char **device, char text[RANKS_CARD_BYTES]);
/* Called by the ranks other than 0 of such an engine: their whole program. */
fm_status fmo_ranks_follow(fm_ops *c);
/* Call it at the end of the program, after the engine was freed. */
void fmo_ranks_close(fm_ops *c);

#endif
