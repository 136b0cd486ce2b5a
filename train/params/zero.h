/* zero.h - shards of a step's gradient, and the ranks that compute them.
 *
 * A micro-batch is cut into `shards` parts of whole examples (a setting, so the recipe has it). The
 * gradient of each part is summed on its own over the micro-batches of a step, as a run with one
 * shard sums the whole; then parts are added in ascending order, ((g_0 + g_1) + g_2) .., one
 * rounding each. Ranks take equal numbers of neighbouring shards, so the bits depend on the recipe
 * and not on the number of ranks: 1 rank with 4 shards, 2 with 2 each and 4 with 1 each give the
 * same bytes. One shard gives the bytes of a run without this setting.
 *
 * With several ranks each one adds, clips and updates its stripes of the flat parameters and holds
 * the moments of these stripes alone (the optimizer's state is sharded as in ZeRO-1, Rajbhandari et
 * al. 2020); values are gathered after the update. Stripes are assigned in turn, in rounds of one
 * stripe for each rank, and not as one slice for each rank: a round is complete as soon as the
 * backward pass has left the layers that it covers, and then every rank sends to every other.
 * Stripes begin at multiples of the block that sum_squares adds at a time, so the norm also has the
 * bits of one rank.
 *
 * Over stages (stage.h) the ranks of a stage share its parameters in the same way, in one round
 * with a stripe for each rank. These parameters are cut out of one process's floats, so a block of
 * the norm may begin anywhere among them, and every end of a stripe cuts one, which all ranks then
 * put together. The round is taken after the last backward, in pieces as long as stripes are
 * elsewhere: before that the passes themselves use the comm. */
#ifndef FM_TRAIN_ZERO_H
#define FM_TRAIN_ZERO_H

#include "infer/comm.h"
#include "infer/parallel_plan.h"
#include "train/params/params.h"

FM_BEGIN_DECLS

#define FMT_BLOCK_FLOATS FM_TRAIN_BLOCK_FLOATS /* a block of sum_squares */

typedef struct fmt_shard_sum { /* Sums over the targets of a shard's parts of all micro-batches. */
    double loss;
    uint64_t tokens;
} fmt_shard_sum;

typedef struct fmt_shards {
    fm_comm *comm;       /* NULL: one rank */
    uint32_t count;      /* of the whole step */
    uint32_t own, first; /* of this rank */
    /* On the device. Several ranks: [own - 1, total], the gradients that wait for that of the last
     * shard, which is g. One rank: [1, total], the sum so far. */
    float *kept;
    float *room;        /* device: [count - own, piece] received pieces of other ranks' shards */
    fmt_shard_sum *sum; /* [count]; this rank's own shards until fmt_shards_total, then all */
} fmt_shards;

/* FM_EINVAL unless the number of shards is a multiple of the number of ranks. */
FM_CHECKED fm_status fmt_shards_check(const fm_train_config *c, const fm_comm *comm,
                                      const char *name);
typedef struct fmt_stripe {
    uint64_t at, n; /* floats at .. at + n - 1 of the flat buffers */
    uint64_t own;   /* where the stripe begins in this rank's m and v */
} fmt_stripe;
/* Chooses the stripes that this rank updates, after the last fmt_params_add (over stages after
 * fmt_stage_keep) and before fmt_params_alloc. Every rank of comm calls it. */
FM_CHECKED fm_status fmt_params_share(fmt_params *ps, const fm_train_config *c, fm_comm *comm,
                                      const fm_backend *be);
uint64_t fmt_params_rounds(const fmt_params *ps);
uint64_t fmt_params_round(const fmt_params *ps, uint64_t at); /* the round that covers float `at` */
/* Length of a stripe, a multiple of the block, of a stage with `total` floats on `ranks` ranks. */
uint64_t fmt_stage_stripe(uint64_t total, uint32_t ranks);
/* This rank's i-th stripe, in round i; false: it has no stripe in this or a later round. */
bool fmt_params_stripe(const fmt_params *ps, uint64_t i, fmt_stripe *out);
/* Call it once ps has its memory. */
FM_CHECKED fm_status fmt_shards_open(fmt_shards *s, const fm_train_config *c, fm_comm *comm,
                                     const fmt_params *ps);
void fmt_shards_release(fmt_shards *s, fm_backend *be);

/* Keeps ps->g, the gradient of this rank's i-th shard, and zeroes it where more follow. */
void fmt_shards_keep(fmt_shards *s, fmt_params *ps, uint32_t i, fmt_shard_sum sum);
/* Exchanges and adds a round, whose floats are done in all shards of every rank: this rank's stripe
 * of ps->g then is the sum of all shards. Queued where the comm queues. host: the caller is not the
 * backend's thread; buffers are in its memory, and nothing queued touches these floats. */
FM_CHECKED fm_status fmt_shards_round(fmt_shards *s, fmt_params *ps, uint64_t round, bool host);
/* Takes all rounds, the last one first; with one rank it stores the sum in ps->g. */
FM_CHECKED fm_status fmt_shards_reduce(fmt_shards *s, fmt_params *ps);
/* The sum over all shards of all ranks, once this rank's entries of s->sum are known. */
FM_CHECKED fm_status fmt_shards_total(fmt_shards *s, fmt_shard_sum *all);

/* ---- over the ranks ---- */
/* Sums of squares of a rank: one for each block of the stripes of the rank with the most. */
size_t fmt_ranks_sums(const fmt_params *ps);
/* From this rank's sums of squares: the sum over all ranks. */
FM_CHECKED fm_status fmt_ranks_add(const fmt_params *ps, const double *sums, double *sum);
void fmt_copy_floats(fm_backend *be, float *y, const float *x, uint64_t n);
/* Gathers x [total], of which this rank has its stripes, on every rank. */
FM_CHECKED fm_status fmt_ranks_gather(const fmt_params *ps, float *x);
/* Gathers a moment on every rank: own has this rank's stripes, all [total] gets everything. */
FM_CHECKED fm_status fmt_ranks_moment(const fmt_params *ps, const float *own, float *all);

FM_END_DECLS
#endif
