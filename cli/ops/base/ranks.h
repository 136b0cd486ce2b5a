/* ranks.h - fmstore over several ranks: --ranks N on one host, or mpirun.
 *
 * Commands that answer split every model over the ranks: rank 0 is the command, the others
 * follow its engine. --stages S deals a model's layers to S stages of N / S neighbouring ranks
 * (mpirun numbers the ranks of a node one after another, so a stage lies inside of a node); vLLM's
 * names are understood: --pipeline-parallel-size for S, --tensor-parallel-size for N / S. derive
 * splits each micro-batch: every rank runs the command, rank 0 alone writes. */
#ifndef FM_OPS_RANKS_H
#define FM_OPS_RANKS_H

#include "cli/ops/ops.h"

/* Once the options are read: what was left out of ranks = stages * split follows from the rest, and
 * from the number that mpirun began. FM_EINVAL: they do not agree. */
fm_status fmo_ranks_settle(fm_ops *c);
/* Ranks were asked for: by --ranks, or by whoever began this process. */
bool fmo_ranks_wanted(const fm_ops *c);
/* This process's rank, as the environment says; how many there are to be. */
uint32_t fmo_ranks_mine(void);
uint32_t fmo_ranks_count(const fm_ops *c);
/* c->comm; begins the others. They get the whole command where all run it. */
fm_status fmo_ranks_open(fm_ops *c, bool all_run_it);
/* Rank 0 of an engine that is to be split: what the others need to make theirs. */
fm_status fmo_ranks_tell_engine(fm_ops *c);
/* Ranks of one machine take one GPU each, from the named one on, and share them where there are
 * fewer. text: room for the name that *device becomes. */
#define RANKS_CARD_BYTES 24
fm_status fmo_ranks_card(const fm_ops *c, const char **device, char text[RANKS_CARD_BYTES]);
/* Ranks but 0 of such an engine: the program's whole work. */
fm_status fmo_ranks_follow(fm_ops *c);
/* At the end of the program, behind the engine. */
void fmo_ranks_close(fm_ops *c);

#endif
