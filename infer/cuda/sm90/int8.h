/* int8.h - the kernels of int8.cu, for sm_90a alone: products of whole numbers
 * (cuda/mma/int8.h) by wgmma, 128 outputs by 192 rows a block, in clusters of two as kernels.h has
 * them, with the bits of cuda/mma/int8.cu's.
 *
 * A product of wgmma is one block of 32 k. Its sums begin at the whole number whose bits are a
 * float's (fmc_dot_of). Resetting them would take an issue slot each, while products are free: a
 * product with -x returns them to the start, exactly. So shared memory holds x with both signs. A
 * warpgroup has 64 outputs by twice 96 rows: float work on one half overlaps the products of the
 * other.
 *
 * x is packed by tiles of 64 k, in them by 8 rows, WIDE8_X bytes: four cores of 8 rows by 16 k, the
 * same of -x, then scales. Two groups of 8 rows share their scales: the first group's bytes hold
 * those of block 0 for all 16 rows, the second group's those of block 1, as rows 2t, 2t + 1, 2t +
 * 8, 2t + 9 for each t. */
#ifndef FM_INFER_CUDA_WIDE_INT8_H
#define FM_INFER_CUDA_WIDE_INT8_H

#include "infer/cuda/mma/int8.h"
#include "infer/cuda/mma/job.h"
#include "infer/cuda/sm90/wide.h"

#define WIDE8_X 1088u      /* bytes of 8 rows by 64 k */
#define WIDE8_MINUS 512u   /* offset of -x */
#define WIDE8_SCALES 1024u /* offset of the scales */
#define WIDE8_ROWS 192u
#define WIDE8_HALF 12u  /* groups of 8 rows of a half, and those that a block of a cluster loads */
#define WIDE8_PANELS 8u /* panels of a block */
#define WIDE8_BLOCKS 2u /* blocks of a cluster */
#define WIDE8_THREADS 384u
#define WIDE8_RUN 12u /* blocks of rows that take turns at W */
#define WIDE8_BARS 128u
#define WIDE8_PACK_TILES 16u /* tiles of k that one block packs */

/* ---- packing x ---- */

FMC_DEVICE uint32_t wide8_minus(uint32_t four)
{
    return (0x80808080u - (four & 0x7f7f7f7fu)) ^ (~four & 0x80808080u);
}

/* A block packs 8 rows by WIDE8_PACK_TILES tiles of k, chosen by blockIdx.y; a warp 32 k. */
__global__ void k_wide8_pack(const fmc_pack *list, uint32_t count)
{
    uint32_t at = 0;
    while (at + 1 < count && list[at + 1].begin <= blockIdx.x)
        at++;
    const fmc_pack p = list[at];
    uint32_t tile = blockIdx.x - p.begin, tiles = tiles_of(p.k);
    uint32_t all = (p.m + 15) / 16 * 2, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t i = tile * FMC_TILE_ROWS + g;
    const float *x = p.x + (i < p.m ? row_of(p.rows, p.first, i) : 0) * p.ld;
    for (uint32_t j = threadIdx.x / 32; j < 2 * WIDE8_PACK_TILES; j += blockDim.x / 32) {
        uint32_t kt = blockIdx.y * WIDE8_PACK_TILES + j / 2, b = j % 2, q[2];
        float v[8];
        if (kt >= tiles)
            break;
#pragma unroll
        for (uint32_t e = 0; e < 8; e++) {
            uint32_t k = kt * FMC_TILE_K + 32 * b + fmc_k8(t, e);
            v[e] = i < p.m && k < p.k ? x[k] : 0.0f;
        }
        float scale = fmc_quantise(q, v);
        size_t of_tile = (size_t)kt * all + tile;
        unsigned char *to = p.to + of_tile * WIDE8_X + 256 * b + 16 * g + 4 * t;
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            *(uint32_t *)(void *)(to + 128 * h) = q[h];
            *(uint32_t *)(void *)(to + WIDE8_MINUS + 128 * h) = wide8_minus(q[h]);
        }
        unsigned char *scales = p.to + (of_tile - tile % 2 + b) * WIDE8_X + WIDE8_SCALES;
        if (t == 0)
            *(float *)(void *)(scales + 16 * (g / 2) + 8 * (tile % 2) + 4 * (g % 2)) = scale;
    }
}

/* ---- the choice of a tile of y ---- */

typedef struct wide8_item {
    const fmc_job *p;
    uint32_t panel, panels, row8, row8s, tiles; /* panels, row8s: of the job */
} wide8_item;

FMC_DEVICE wide8_item wide8_item_of(const fmc_job *list, uint32_t count, uint32_t number)
{
    uint32_t low = 0, high = count; /* finds the last job that begins at this item or before */
    while (high - low > 1) {
        uint32_t mid = (low + high) / 2;
        if (list[mid].begin <= number)
            low = mid;
        else
            high = mid;
    }
    const fmc_job *p = list + low;
    wide8_item it = {
        p, 0, (p->n + FMC_OUTPUTS - 1) / FMC_OUTPUTS, 0, (p->m + 15) / 16 * 2, tiles_of(p->k)};
    uint32_t index = number - p->begin, wide = (p->m + WIDE8_ROWS - 1) / WIDE8_ROWS;
    uint32_t tall = (it.panels + WIDE8_BLOCKS * WIDE8_PANELS - 1) / (WIDE8_BLOCKS * WIDE8_PANELS);
    uint32_t run = index / (WIDE8_RUN * tall), in = index - run * WIDE8_RUN * tall;
    uint32_t left = wide - run * WIDE8_RUN, size = left < WIDE8_RUN ? left : WIDE8_RUN;
    it.panel = (in / size * WIDE8_BLOCKS + fmc_cluster_rank()) * WIDE8_PANELS;
    it.row8 = (run * WIDE8_RUN + in % size) * 2 * WIDE8_HALF;
    return it;
}

/* ---- filling the ring ---- */

template <int kind> struct wide8_size {
    static constexpr uint32_t tile = fmc_tile<kind>::stage;
    static constexpr uint32_t w_bytes = WIDE8_PANELS * tile, x_bytes = 2 * WIDE8_HALF * WIDE8_X;
    static constexpr uint32_t stage = w_bytes + x_bytes;
    static constexpr uint32_t fit = (FMC_SHARED_90 - WIDE8_BARS) / stage;
    static constexpr uint32_t stages = fit < FMC_RING_STAGES ? fit : FMC_RING_STAGES;
    static constexpr uint32_t bytes = WIDE8_BARS + stages * stage;
    static_assert(fmc_tile<kind>::head == 0 && w_bytes % 128 == 0, "tiles of W");
    static_assert(sizeof(fmc_ring_bars) <= WIDE8_BARS && stages >= 2, "ring");
};

/* The first warp's part of the kernel. */
template <int kind>
FMC_DEVICE void wide8_fill(fmc_ring_bars *bars, unsigned char *ring, const fmc_job *list,
                           uint32_t count, uint32_t items)
{
    typedef wide8_size<kind> size;
    uint32_t lane = threadIdx.x % 32, mine = fmc_cluster_rank() * WIDE8_HALF;
    fmc_turn t = {0, 0};
    for (uint32_t number = blockIdx.x / WIDE8_BLOCKS; number < items;
         number += gridDim.x / WIDE8_BLOCKS) {
        const wide8_item it = wide8_item_of(list, count, number);
        uint32_t panels = it.panel < it.panels ? it.panels - it.panel : 0;
        uint32_t all8s = it.row8s - it.row8, row8s = 0; /* groups: arriving here; loaded here */
        panels = panels < WIDE8_PANELS ? panels : WIDE8_PANELS;
        all8s = all8s < 2 * WIDE8_HALF ? all8s : 2 * WIDE8_HALF;
        if (all8s > mine)
            row8s = all8s - mine < WIDE8_HALF ? all8s - mine : WIDE8_HALF;
        for (uint32_t tile = 0; tile < it.tiles; tile++) {
            unsigned char *stage = ring + t.stage * size::stage;
            uint64_t *full = &bars->full[t.stage];
            fmc_ring_wait_empty(bars, t);
            if (lane == 0)
                fmc_barrier_expect(full, panels * size::tile + all8s * WIDE8_X);
            __syncwarp();
            if (lane < panels)
                fmc_bulk_copy(stage + lane * size::tile,
                              fmc_unit<kind>(it.p->w, it.panel + lane, it.tiles, tile), size::tile,
                              full);
            else if (lane == WIDE8_PANELS && row8s > 0)
                fmc_bulk_copy_all(stage + size::w_bytes + mine * WIDE8_X,
                                  it.p->x + ((size_t)tile * it.row8s + it.row8 + mine) * WIDE8_X,
                                  row8s * WIDE8_X, full);
            __syncwarp();
            fmc_turn_next(&t, size::stages);
        }
    }
}

/* ---- multiplying ---- */

/* 64 outputs by 96 rows of a warpgroup. */
typedef struct wide8_half {
    int32_t dot[48]; /* start, or start + the dot products of a block of 32 k */
    float sum[48];
} wide8_half;

/* Adds the products of a block of 32 k to their chains. scales: x's, at this lane's. */
template <int kind>
FMC_DEVICE void wide8_chain(wide8_half *h, const unsigned char *scales, const float (&w)[2])
{
#pragma unroll
    for (int r = 0; r < (int)WIDE8_HALF; r += 2) {
        float4 s4 = *(const float4 *)(const void *)(scales + r * WIDE8_X);
        float s[4] = {s4.x, s4.y, s4.z, s4.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int at = 4 * r + i;
            h->sum[at] =
                fmaf(fmc_dot<kind>(h->dot[at]), w[i / 2 % 2] * s[i / 4 * 2 + i % 2], h->sum[at]);
        }
    }
}

/* A warp's operands of a tile of 64 k: quants and scales of W, and the addresses of x. */
typedef struct wide8_tile {
    fmc_lane8 l;
    const unsigned char *scales; /* of x, for this lane, block 0 of the first half */
    uint32_t x;                  /* lower word of fmc_matrix: block 0 of the first half */
} wide8_tile;

#define WIDE8_ON (WIDE8_HALF * WIDE8_X) /* from a half of x to the other */

template <int kind>
FMC_DEVICE void wide8_load(wide8_tile *w, const unsigned char *ring, uint32_t stage)
{
    typedef wide8_size<kind> size;
    const unsigned char *at = ring + stage * size::stage;
    fmc_lane8_load<kind>(&w->l, NULL, at + (threadIdx.x / 32 - 4) * size::tile, threadIdx.x % 32);
    w->scales = at + size::w_bytes + WIDE8_SCALES + threadIdx.x % 4 * 16;
    uint32_t x = (uint32_t)fmc_matrix(at + size::w_bytes, 128, WIDE8_X);
    w->x = __shfl_sync(0xffffffffu, x, 0); /* tells ptxas that all lanes have the same value */
}

FMC_DEVICE uint64_t wide8_matrix(uint32_t x, uint32_t bytes)
{
    return (uint64_t)(WIDE8_X / 16) << 32 | (x + bytes / 16);
}

/* A block of 32 k: its first operand, and the scales and addresses of its tile. */
typedef struct wide8_block {
    uint32_t a[4];
    float w[2];
    const unsigned char *scales;
    uint32_t x;
} wide8_block;

template <int kind> FMC_DEVICE void wide8_block_of(wide8_block *to, const wide8_tile *w, unsigned b)
{
    fmc_operand8<kind>(to->a, &w->l, b);
    to->w[0] = w->l.scale[0][b];
    to->w[1] = w->l.scale[1][b];
    to->scales = w->scales + b * WIDE8_X;
    to->x = w->x + b * (256 / 16);
}

/* Goes on to the next block from one whose products of the first half are chained and those of the
 * other have arrived. No product is in flight before and after. */
template <int kind>
FMC_DEVICE void wide8_step(wide8_half *low, wide8_half *high, const wide8_block *old,
                           const wide8_block *next)
{
    fmc_sm90_fence();
    fmc_sm90_s8(low->dot, old->a, wide8_matrix(old->x, WIDE8_MINUS));
    fmc_sm90_s8(low->dot, next->a, wide8_matrix(next->x, 0));
    fmc_sm90_commit();
    __syncwarp(); /* else ptxas moves the chain before the products that it is to overlap */
    wide8_chain<kind>(high, old->scales + WIDE8_ON, old->w);
    fmc_sm90_fence();
    fmc_sm90_s8(high->dot, old->a, wide8_matrix(old->x, WIDE8_MINUS + WIDE8_ON));
    fmc_sm90_s8(high->dot, next->a, wide8_matrix(next->x, WIDE8_ON));
    fmc_sm90_commit();
    fmc_sm90_wait<1>();
    fmc_sm90_there(low->dot);
    wide8_chain<kind>(low, next->scales, next->w);
    fmc_sm90_wait<0>();
    fmc_sm90_there(high->dot);
}

template <int kind> FMC_DEVICE void wide8_first(wide8_half *low, wide8_half *high, wide8_block *b)
{
#pragma unroll
    for (int i = 0; i < 48; i++) {
        low->dot[i] = high->dot[i] = fmc_dot_of<kind>::start;
        low->sum[i] = high->sum[i] = 0.0f;
    }
    fmc_sm90_fence();
    fmc_sm90_s8(low->dot, b->a, wide8_matrix(b->x, 0));
    fmc_sm90_commit();
    fmc_sm90_wait<0>();
    fmc_sm90_there(low->dot);
    fmc_sm90_fence(); /* with one fence for both, ptxas never overlaps two products */
    fmc_sm90_s8(high->dot, b->a, wide8_matrix(b->x, WIDE8_ON));
    fmc_sm90_commit();
    wide8_chain<kind>(low, b->scales, b->w);
    fmc_sm90_wait<0>();
    fmc_sm90_there(high->dot);
}

/* Both halves of a tile of y over all k. */
template <int kind>
FMC_DEVICE void wide8_tile_of_y(wide8_half *low, wide8_half *high, fmc_ring_bars *bars,
                                const unsigned char *ring, fmc_turn *t, uint32_t tiles)
{
    typedef wide8_size<kind> size;
    wide8_tile tile;
    wide8_block even, odd;
    fmc_ring_wait_full(bars, *t);
    wide8_load<kind>(&tile, ring, t->stage);
    wide8_block_of<kind>(&even, &tile, 0);
    wide8_first<kind>(low, high, &even);
#pragma unroll 1
    while (true) {
        uint32_t now = t->stage;
        wide8_block_of<kind>(&odd, &tile, 1);
        wide8_step<kind>(low, high, &even, &odd);
        fmc_turn_next(t, size::stages);
        if (--tiles == 0) {
            wide8_chain<kind>(high, odd.scales + WIDE8_ON, odd.w);
            fmc_ring_release_both(bars, now);
            return;
        }
        fmc_ring_wait_full(bars, *t);
        wide8_load<kind>(&tile, ring, t->stage);
        wide8_block_of<kind>(&even, &tile, 0);
        wide8_step<kind>(low, high, &odd, &even);
        fmc_ring_release_both(bars, now);
    }
}

/* finish() of cuda/mma/job.h, with what rows share read once. */
FMC_DEVICE void wide8_finish(const wide8_item *it, uint32_t row8, const float (&sum)[48])
{
    const fmc_job *p = it->p;
    uint32_t lane = threadIdx.x % 32;
    uint32_t n = (it->panel + threadIdx.x / 32 - 4) * FMC_OUTPUTS + lane / 4;
    uint32_t at = row8 * FMC_TILE_ROWS + lane % 4 * 2, m = p->m;
    bool low = n < p->n, high = n + 8 < p->n, add = p->add, has_bias = p->bias != NULL;
    float bias[2] = {has_bias && low ? p->bias[n] : 0.0f, has_bias && high ? p->bias[n + 8] : 0.0f};
    float *to = p->y + n, alpha = p->alpha;
    size_t ld = p->ldy;
    const int32_t *rows = p->dense ? NULL : p->rows;
    uint32_t first = p->dense ? 0 : p->first;
#pragma unroll
    for (uint32_t i = 0; i < 24; i++) {
        uint32_t row = at + i / 2 * FMC_TILE_ROWS + i % 2;
        float *y = to + (row < m ? row_of(rows, first, row) : 0) * ld;
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            float v = sum[i / 2 * 4 + i % 2 + 2 * h] * alpha;
            if (has_bias)
                v = v + bias[h];
            if (row < m && (h ? high : low))
                y[8 * h] = add ? y[8 * h] + v : v;
        }
    }
}

template <int kind>
FMC_DEVICE void wide8_multiply(fmc_ring_bars *bars, const unsigned char *ring, const fmc_job *list,
                               uint32_t count, uint32_t items)
{
    typedef wide8_size<kind> size;
    wide8_half low, high;
    fmc_turn t = {0, 0};
    for (uint32_t number = blockIdx.x / WIDE8_BLOCKS; number < items;
         number += gridDim.x / WIDE8_BLOCKS) {
        const wide8_item it = wide8_item_of(list, count, number);
        if (it.panel + (threadIdx.x / 128 - 1) * 4 >= it.panels) { /* no outputs here */
            for (uint32_t tile = 0; tile < it.tiles; tile++) {
                fmc_ring_wait_full(bars, t);
                fmc_ring_release_both(bars, t.stage);
                fmc_turn_next(&t, size::stages);
            }
            continue;
        }
        wide8_tile_of_y<kind>(&low, &high, bars, ring, &t, it.tiles);
        wide8_finish(&it, it.row8, low.sum);
        wide8_finish(&it, it.row8 + WIDE8_HALF, high.sum);
    }
}

template <int kind>
__global__ void FMC_CLUSTER_OF_TWO __launch_bounds__(WIDE8_THREADS, 1)
    k_wide8(const fmc_job *list, uint32_t count, uint32_t items)
{
    typedef wide8_size<kind> size;
    FMC_SHARED_DYNAMIC(unsigned char, shared);
    fmc_ring_bars *bars = (fmc_ring_bars *)(void *)shared;
    if (threadIdx.x == 0)
        fmc_ring_begin(bars, size::stages, 8 * WIDE8_BLOCKS);
    fmc_cluster_sync();
    if (threadIdx.x < 128) {
        fmc_registers_less<24>();
        if (threadIdx.x < 32)
            wide8_fill<kind>(bars, shared + WIDE8_BARS, list, count, items);
    } else {
        fmc_registers_more<240>();
        wide8_multiply<kind>(bars, shared + WIDE8_BARS, list, count, items);
    }
    fmc_cluster_sync();
}

#endif
