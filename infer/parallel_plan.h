/* parallel_plan.h - what a model over several ranks takes, before it runs: pure functions of
 * sizes and a topology. Times are of bandwidths and rates that were measured or declared;
 * nothing is run here. */
#ifndef FM_INFER_PARALLEL_PLAN_H
#define FM_INFER_PARALLEL_PLAN_H

#include "infer/arch.h"
#include "infer/comm.h"
#include "infer/infer.h"

FM_BEGIN_DECLS

/* Ranks of `nodes` equal nodes; neighbours share a node. Inside of a node each rank has its own
 * way to each other (one that all share, as a host's memory, is `shared`); a node has one way to
 * the others. */
typedef struct fm_topology {
    uint32_t ranks, nodes;
    fm_link inside;                         /* DEVICE, BUS or HOST */
    bool shared;                            /* ranks of a node share its link, processors, memory */
    double inside_bytes_s, net_bytes_s;     /* one way, of a rank; of a node */
    double inside_latency_s, net_latency_s; /* of an exchange */
    double memory_bytes_s, flops_s;         /* of a rank's device: reading weights; products */
    uint64_t memory_bytes;                  /* of a rank's device; 0: not known */
} fm_topology;

/* Ranks of this host that share it; usual rates. */
fm_topology fm_topology_here(uint32_t ranks);
/* memory_bytes_s and flops_s as the engine's own products have them, in a tenth of a second. */
FM_CHECKED fm_status fm_topology_measure(fm_topology *t, fm_engine *e);
/* "ranks=8,nodes=2,link=nvlink,link-gb=450,net-gb=25,memory-gib=80,memory-gb=3350,tflops=400":
 * what is left out is as it was in *t, or what is usual for the link. FM_EINVAL names the key. */
FM_CHECKED fm_status fm_topology_parse(fm_topology *t, const char *text);

/* An exchange in which every rank sends bytes to every other of its group of `size` neighbours:
 * what crosses each link (of the busiest rank, or of a node for the network), and its time. */
typedef struct fm_traffic {
    uint64_t bytes[FM_LINKS];
    double seconds[FM_LINKS];
} fm_traffic;
void fm_traffic_exchange(fm_traffic *sum, const fm_topology *t, uint32_t size, uint64_t bytes);
/* comm/comm.c's all_reduce of n floats over such a group. */
void fm_traffic_all_reduce(fm_traffic *sum, const fm_topology *t, uint32_t size, uint64_t n);

/* Every rank of such a group sends bytes to its first one. */
void fmi_traffic_gather(fm_traffic *sum, const fm_topology *t, uint32_t size, uint64_t bytes);
/* Of one copy over a link: n bytes of each of `senders` ranks that share a node, over the network
 * or inside of it. */
void fmi_traffic_send(fm_traffic *sum, const fm_topology *t, uint32_t senders, uint64_t bytes,
                      bool network);
double fmi_traffic_seconds(const fm_traffic *x);

typedef struct fm_serve_ask {
    const fm_arch *arch;
    uint64_t weight_bytes; /* of the whole model, as the backend lays it out */
    uint64_t kv_bytes;     /* budget of pages, of all ranks of a model together */
    uint32_t rows;         /* decode rows of a step */
} fm_serve_ask;

/* Every replica is stages of `split` neighbours each (engine/pipeline.h); ranks / (stages split) of
 * them answer side by side. Rows of a step pass in `pieces`, as the engine cuts them: with c the
 * time of a piece in the busiest stage and equal stages, pieces c is work and (stages - 1) c
 * waiting. */
typedef struct fm_serve_plan {
    uint32_t stages, split, replicas;
    char refused[200];                      /* why this model cannot be dealt so; empty: it can */
    uint32_t layers;                        /* of the stage with the most */
    uint32_t heads, kv_heads, inter, vocab; /* of a rank */
    /* Of the rank with the most, and their sum. kv_bytes: its part of the budget, which a card's
     * engine takes at once; text_bytes: what pages of one rank for as much text would take. */
    uint64_t weight_bytes, kv_bytes, room_bytes, bytes, text_bytes;
    bool fits;             /* in the device's memory, where that is known */
    uint32_t pieces, hops; /* hops: stages that begin on another node than the one before */
    uint32_t exchanges;    /* of the busiest rank, of a step */
    fm_traffic traffic;    /* of a step */
    double compute_s, comm_s, wait_s, step_s; /* of the busiest stage; their sum */
    double bubble;                            /* wait_s of step_s */
    double rows_s;                            /* of all replicas */
} fm_serve_plan;
void fm_serve_plan_of(fm_serve_plan *out, const fm_serve_ask *ask, const fm_topology *t,
                      uint32_t stages, uint32_t split);
/* The one with the most rows a second among those that fit; the smallest memory where none does.
 * all [most]: stages and split ascending powers of two, or what takes all ranks, whose product
 * divides the ranks; FM_SERVE_PLANS suffice. */
#define FM_SERVE_PLANS 64u
uint32_t fm_serve_plan_best(fm_serve_plan *all, uint32_t most, uint32_t *best,
                            const fm_serve_ask *ask, const fm_topology *t);

/* The flat parameters are dealt to ranks in stripes, and gradients of other ranks' shards come
 * stripe by stripe. All shards' stripes are at most FM_TRAIN_ROOM_FLOATS floats where a block for each
 * leaves that; on a host's processors two blocks each: what comes is added while it is in the
 * cache, 40 % less time. */
#define FM_TRAIN_ROOM_FLOATS ((uint64_t)1 << 24)
#define FM_TRAIN_BLOCK_FLOATS ((uint64_t)65536)
/* Floats of a stripe, a multiple of the block: so many that every rank has eight of them where the
 * blocks suffice, since a stripe goes when the backward pass has left all that it covers. */
uint64_t fm_train_stripe(uint64_t parameters, uint32_t ranks, uint32_t shards, bool host);

typedef struct fm_train_ranks_plan {
    uint64_t parameter_bytes, gradient_bytes, moment_bytes, waiting_bytes; /* of rank 0 */
    fm_traffic traffic;                                                    /* of a step */
    double compute_s, comm_s, step_s; /* compute: one rank's share of the step */
    double faster;                    /* than one rank */
} fm_train_ranks_plan;
/* parameters: floats that train; shards: of the recipe, a multiple of the ranks; batch_s, update_s:
 * forward and backward of the whole step, and the update, of one rank alone. */
void fm_train_ranks_plan_of(fm_train_ranks_plan *out, uint64_t parameters, uint32_t shards,
                            double batch_s, double update_s, const fm_topology *t);

FM_END_DECLS
#endif
