/* zero.h - shards of a step's gradient, and the ranks that compute them.
 *
 * A micro-batch is cut into `shards` parts of whole examples (a setting, so it is in the recipe).
 * The gradient of each part is summed on its own, over the micro-batches of a step, as a run of one
 * shard sums its whole; then parts are added in ascending order, ((g_0 + g_1) + g_2) .., one
 * rounding each. Ranks take equal numbers of neighbouring shards, so the bits are a function of the
 * recipe and not of who computes: 1 rank with 4 shards, 2 with 2 each and 4 with 1 each give the
 * same bytes. One shard is what a run without this setting is.
 *
 * Of several ranks each adds, clips and updates its stripes of the flat parameters and holds their
 * moments alone (the optimizer's state is sharded as in ZeRO-1, Rajbhandari et al. 2020); values
 * are gathered after the update. Stripes are assigned in turn, a round of one for each rank, and
 * not as one slice each: a round is complete as soon as the backward pass has left what it covers,
 * and then every rank sends to every other. They begin at multiples of the block that sum_squares
 * adds at a time, so the norm has one rank's bits too.
 *
 * Over stages (stage.h) the ranks of a stage share what that holds in the same way, in one round: a
 * stripe for each. What a stage holds is cut out of one process's floats, so blocks of the norm
 * begin anywhere in it, and every stripe's end cuts one, which all ranks then put together. The
 * round is taken behind the last backward, in pieces as long as stripes are elsewhere: beside it
 * the passes themselves use the comm. */
#ifndef FM_TRAIN_PARALLEL_H
#define FM_TRAIN_PARALLEL_H

#include "infer/comm.h"
#include "infer/parallel_plan.h"
#include "train/params/params.h"

FM_BEGIN_DECLS

#define FMT_BLOCK_FLOATS FM_TRAIN_BLOCK_FLOATS /* a block of sum_squares */

typedef struct fmt_shard_sum { /* over the targets of a shard's parts */
    double loss;
    uint64_t tokens;
} fmt_shard_sum;

typedef struct fmt_shards {
    fm_comm *comm;       /* NULL: one rank */
    uint32_t count;      /* of the whole step */
    uint32_t own, first; /* of this rank */
    /* Device: [own - 1, total] gradients that wait for the last shard's, which is g; one rank:
     * [1, total] the sum. */
    float *kept;
    float *room;        /* device: [count - own, piece] of other ranks' shards */
    fmt_shard_sum *sum; /* [count]; of this rank's in begin .., then of all */
} fmt_shards;

/* Whether the ranks divide the shards. */
FM_CHECKED fm_status fmt_shards_check(const fm_train_config *c, const fm_comm *comm,
                                      const char *name);
typedef struct fmt_stripe {
    uint64_t at, n; /* of the flat floats */
    uint64_t own;   /* where it begins among this rank's: m, v */
} fmt_stripe;
/* Which of the flat floats this rank updates; after the last add (over stages fmt_stage_keep),
 * before fmt_params_alloc. Every rank of comm calls it. */
FM_CHECKED fm_status fmt_params_share(fmt_params *ps, const fm_train_config *c, fm_comm *comm,
                                      const fm_backend *be);
uint64_t fmt_params_rounds(const fmt_params *ps);
uint64_t fmt_params_round(const fmt_params *ps, uint64_t at); /* that covers float `at` */
/* Of a stage with so many floats and ranks: the stripe, a multiple of the block. */
uint64_t fmt_stage_stripe(uint64_t total, uint32_t ranks);
/* This rank's i-th stripe, which is of round i; false: it has none there, nor later. */
bool fmt_params_stripe(const fmt_params *ps, uint64_t i, fmt_stripe *out);
/* Once ps has its memory. */
FM_CHECKED fm_status fmt_shards_open(fmt_shards *s, const fm_train_config *c, fm_comm *comm,
                                     const fmt_params *ps);
void fmt_shards_release(fmt_shards *s, fm_backend *be);

/* The i-th of this rank's shards is done: its gradient is ps->g, which is zeroed where more
 * follow. */
void fmt_shards_keep(fmt_shards *s, fmt_params *ps, uint32_t i, fmt_shard_sum sum);
/* All shards of every rank are done in what a round covers: there ps->g is the sum of all, in this
 * rank's stripe. Queued, where the wire queues. host: the caller is not the backend's thread; its
 * memory is the host's, and nothing that is queued there touches these floats. */
FM_CHECKED fm_status fmt_shards_round(fmt_shards *s, fmt_params *ps, uint64_t round, bool host);
/* All rounds, the last one first: one rank's sum too. */
FM_CHECKED fm_status fmt_shards_reduce(fmt_shards *s, fmt_params *ps);
/* Once this rank's s->sum are known: of all ranks. */
FM_CHECKED fm_status fmt_shards_total(fmt_shards *s, fmt_shard_sum *all);

/* ---- over the ranks ---- */
/* Sums of squares of a rank: one for each block of the stripes of the rank with the most. */
size_t fmt_ranks_sums(const fmt_params *ps);
/* Of this rank's sums of squares: the sum over all ranks. */
FM_CHECKED fm_status fmt_ranks_add(const fmt_params *ps, const double *sums, double *sum);
void fmt_copy_floats(fm_backend *be, float *y, const float *x, uint64_t n);
/* x [total] of which this rank has its stripes: of all, everywhere. */
FM_CHECKED fm_status fmt_ranks_gather(const fmt_params *ps, float *x);
/* own: a moment of this rank's stripes; all [total]: of all, everywhere. */
FM_CHECKED fm_status fmt_ranks_moment(const fmt_params *ps, const float *own, float *all);

FM_END_DECLS
#endif
