/* parallel_plan.h - what each rank of a model or of a training over several ranks holds, before it
 * runs: pure functions of sizes. */
#ifndef FM_INFER_PARALLEL_PLAN_H
#define FM_INFER_PARALLEL_PLAN_H

#include "infer/arch.h"

FM_BEGIN_DECLS

#define FM_STAGE_PLANS 64u /* stages, at most */

typedef struct fm_serve_ask {
    const fm_arch *arch;
    uint64_t weight_bytes; /* of the whole model, as the backend lays it out */
    uint64_t kv_bytes;     /* budget of pages of all ranks together */
    uint64_t memory_bytes; /* memory of all ranks together; 0: not known */
    uint32_t rows;         /* of a step */
} fm_serve_ask;

typedef struct fm_serve_plan {
    uint32_t begin[FM_STAGE_PLANS + 1]; /* stage s has layers begin[s] .. begin[s + 1] - 1 */
    /* Weights of the rank with the most; kv_bytes: a rank's part of the budget, which a GPU's
     * engine takes at once; room_bytes: buffers of exchanges; text_bytes: the budget that one rank
     * alone would need to hold as much text. */
    uint64_t weight_bytes, kv_bytes, room_bytes, text_bytes;
    uint64_t bytes; /* weights, pages and buffers of a rank */
    bool fits;      /* every rank has memory for `bytes` */
} fm_serve_plan;
/* Stages of `split` neighbours each (engine/pipeline.h). FM_EUNSUPPORTED, naming `what`: the model
 * cannot be split so. */
FM_CHECKED fm_status fm_serve_plan_of(fm_serve_plan *out, const fm_serve_ask *ask, uint32_t stages,
                                      uint32_t split, const char *what);

/* The flat parameters are split over ranks in stripes, and gradients of other ranks' shards come
 * stripe by stripe. The stripes of all shards take at most FM_TRAIN_ROOM_FLOATS floats, but at
 * least a block each. On a host's processors a stripe is at most two blocks: gradients are then
 * added while they are in the cache, in 40 % less time. */
#define FM_TRAIN_ROOM_FLOATS ((uint64_t)1 << 24)
#define FM_TRAIN_BLOCK_FLOATS ((uint64_t)65536)
/* Floats of a stripe, a multiple of the block. Every rank has at least eight stripes where the
 * blocks suffice, since a stripe is sent when the backward pass has left all that it covers. */
uint64_t fm_train_stripe(uint64_t parameters, uint32_t ranks, uint32_t shards, bool host);

typedef struct fm_train_ranks_plan {
    uint64_t parameter_bytes, gradient_bytes, moment_bytes, waiting_bytes; /* of rank 0 */
} fm_train_ranks_plan;
/* parameters: floats that train; shards: of the recipe, a multiple of the ranks; host: the device
 * is a host's processors. */
void fm_train_ranks_plan_of(fm_train_ranks_plan *out, uint64_t parameters, uint32_t ranks,
                            uint32_t shards, bool host);

FM_END_DECLS
#endif
