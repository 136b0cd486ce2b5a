/* wide.h - shared by kernels written with Hopper's instructions: the ring of stages in shared
 * memory that one warp fills by bulk copies and warpgroups multiply from.
 *
 * `full` of a stage ends a phase when its copies have arrived, `empty` when every reader has
 * released it. Either side walks the stages with an fmc_turn of its own, which starts at {0, 0} and
 * goes on as long as the block runs: fill, release and refill alternate by phases. */
#ifndef FM_INFER_CUDA_WIDE_H
#define FM_INFER_CUDA_WIDE_H

#include "infer/cuda/sm90/ptx90.h"

#define FMC_RING_STAGES 8u    /* at most */
#define FMC_SHARED_90 232448u /* most bytes of a block on these GPUs */

/* Whether the registers that one warpgroup gives back (fmc_registers_less) suffice for those that
 * `groups` others request (fmc_registers_more): else these wait for ever. A block starts with all
 * registers that it can have. */
static constexpr bool fmc_registers_fit(unsigned groups, unsigned less, unsigned more)
{
    return 65536u / ((groups + 1) * 128) / 8 * 8 * (groups + 1) >= groups * more + less;
}

typedef struct fmc_ring_bars {
    uint64_t full[FMC_RING_STAGES], empty[FMC_RING_STAGES];
} fmc_ring_bars; /* in dynamic shared memory */

typedef struct fmc_turn {
    uint32_t stage, parity;
} fmc_turn;

/* Called by one thread, before a barrier of the block. readers: arrivals that release a stage. */
FMC_DEVICE void fmc_ring_begin(fmc_ring_bars *r, uint32_t stages, uint32_t readers)
{
    for (uint32_t i = 0; i < stages; i++) {
        fmc_barrier_init(&r->full[i], 1);
        fmc_barrier_init(&r->empty[i], readers);
    }
    fmc_barrier_publish();
}
FMC_DEVICE void fmc_turn_next(fmc_turn *t, uint32_t stages)
{
    if (++t->stage == stages) {
        t->stage = 0;
        t->parity ^= 1u;
    }
}
/* Called by all lanes of the filling warp: waits until the stage may be written. One lane then
 * calls fmc_barrier_expect(&r->full[..], bytes of all copies to come), before the first. */
FMC_DEVICE void fmc_ring_wait_empty(fmc_ring_bars *r, fmc_turn t)
{
    fmc_barrier_wait(&r->empty[t.stage], t.parity ^ 1u);
}
/* Called by a reader: waits until the stage is filled. */
FMC_DEVICE void fmc_ring_wait_full(fmc_ring_bars *r, fmc_turn t)
{
    fmc_barrier_wait(&r->full[t.stage], t.parity);
}
/* Called by a reader's warp once its reads and products (fmc_sm90_wait) of the stage are done. */
FMC_DEVICE void fmc_ring_release(fmc_ring_bars *r, uint32_t stage)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        fmc_barrier_arrive(&r->empty[stage]);
}
/* The same for both blocks of a cluster of two, each of which fills the other's stage too. */
FMC_DEVICE void fmc_ring_release_both(fmc_ring_bars *r, uint32_t stage)
{
    __syncwarp();
    if (threadIdx.x % 32 < 2)
        fmc_barrier_arrive_at(&r->empty[stage], threadIdx.x % 32);
}

#endif
