/* kernels.h - the kernels of product.cu, for sm_90a alone.
 *
 * k_wide: 128 outputs by 64, 128 or 192 rows a block. Two warpgroups have 64 outputs each, a panel
 * a warp: a tile of W is the first operand of wgmma, read or widened into registers. The second
 * operand is x, in cores of 8 rows by 8 k. A separate warp loads both through a ring by bulk
 * copies. Two blocks are a cluster, which has 256 outputs: each loads half of x into both. Clusters
 * are persistent and walk tiles of y, so the copies of the next tile overlap the end of one.
 *
 * x is packed by tiles of 64 k, in them by 8 rows, in them by 8 k: 128 bytes, a line of 16 for each
 * row. A block's part of a tile of k is then contiguous. */
#ifndef FM_INFER_CUDA_WIDE_KERNELS_H
#define FM_INFER_CUDA_WIDE_KERNELS_H

#include "infer/cuda/mma/tile.h"
#include "infer/cuda/find.h"
#include "infer/cuda/sm90/wide.h"

#define WIDE_GROUPS 2u                                  /* warpgroups that multiply */
#define WIDE_BLOCKS 2u                                  /* blocks of a cluster */
#define WIDE_PANELS (4u * WIDE_GROUPS)                  /* panels of a block */
#define WIDE_THREADS (128u * (WIDE_GROUPS + 1u))        /* the first four warps fill the ring */
#define WIDE_RUN 12u                                    /* blocks of rows that take turns at W */
#define WIDE_PACK_TILES 16u                             /* tiles of k that one block packs */
#define WIDE_REST_OF_SHARED (FMC_SHARED_90 - WIDE_BARS) /* bytes for the ring */
#define WIDE_BARS 128u
#define WIDE_FILLS 24 /* registers of threads that fill, and of those that multiply */
#define WIDE_MULTIPLIES 240
static_assert(fmc_registers_fit(WIDE_GROUPS, WIDE_FILLS, WIDE_MULTIPLIES), "registers");

/* ---- packing x ---- */

FMC_DEVICE size_t wide_row(const int32_t *rows, uint32_t first, uint32_t i)
{
    return rows ? (size_t)rows[i] : (size_t)first + i;
}

/* Loads 8 values of a row from k on, zeros outside. */
FMC_DEVICE void wide_load(float v[8], const fmc_pack *p, size_t row, uint32_t k, bool valid)
{
    const float *from = p->turned ? p->x + (size_t)k * p->ld + row : p->x + row * p->ld + k;
    if (!p->turned && valid && k + 8 <= p->k && ((uintptr_t)from & 15u) == 0) {
        float4 a = *(const float4 *)(const void *)from,
               b = *(const float4 *)(const void *)(from + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
#pragma unroll
    for (uint32_t e = 0; e < 8; e++)
        v[e] = valid && k + e < p->k ? from[p->turned ? e * p->ld : e] : 0.0f;
}

/* The powers of two that scale f16 rows to 2^14; 1 where the largest value is not finite. One warp
 * for each of the tile's 8 rows. */
FMC_DEVICE void wide_powers(float power[FMC_TILE_ROWS], const fmc_pack *p, uint32_t tile)
{
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, i = tile * FMC_TILE_ROWS + warp;
    float most = 0.0f, v[8];
    if (i < p->m)
        for (uint32_t k = 8 * lane; k < p->k; k += 256) {
            wide_load(v, p, wide_row(p->rows, p->first, i), k, true);
#pragma unroll
            for (int e = 0; e < 8; e++)
                most = fmaxf(most, fabsf(v[e]));
        }
    for (int by = 16; by > 0; by /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, by));
    uint32_t e = __float_as_uint(most) >> 23;
    if (lane == 0) {
        power[warp] = e >= 255u ? 1.0f : __uint_as_float((268u - (e < 15u ? 15u : e)) << 23);
        if (i < p->m && blockIdx.y == 0)
            p->row_scale[i] = 1.0f / power[warp];
    }
}

/* A block computes the scales of 8 rows, once for all blocks that pack them. */
__global__ void k_wide_powers(const fmc_pack *list, uint32_t count)
{
    FMC_SHARED(float, power, [FMC_TILE_ROWS]);
    uint32_t at = 0;
    fmc_take_turn();
    while (at + 1 < count && list[at + 1].begin <= blockIdx.x)
        at++;
    if (list[at].scaled)
        wide_powers(power, &list[at], blockIdx.x - list[at].begin);
}

FMC_DEVICE uint32_t wide_pair(bool f16, float a, float b)
{
    return f16 ? fmc_pack_f16(a, b) : fmc_pack_bf16(a, b);
}

/* The remainder of rounding a, whose rounded bits are r; 0 where it is not finite. */
FMC_DEVICE float wide_rest(bool f16, float a, uint32_t r)
{
    float rest = a - (f16 ? fmc_from_f16(r & 0xffffu) : __uint_as_float(r << 16));
    return isfinite(rest) ? rest : 0.0f;
}

/* A block packs 8 rows by WIDE_PACK_TILES tiles of k, chosen by blockIdx.y; warps take turns. */
__global__ void k_wide_pack(const fmc_pack *list, uint32_t count)
{
    FMC_SHARED(float, power, [FMC_TILE_ROWS]);
    uint32_t at = 0;
    fmc_take_turn();
    while (at + 1 < count && list[at + 1].begin <= blockIdx.x)
        at++;
    const fmc_pack p = list[at];
    uint32_t tile = blockIdx.x - p.begin, tiles = (p.k + FMC_TILE_K - 1) / FMC_TILE_K;
    uint32_t all = (p.m + FMC_TILE_ROWS - 1) / FMC_TILE_ROWS, lane = threadIdx.x % 32;
    uint32_t i = tile * FMC_TILE_ROWS + lane % 8;
    bool f16 = p.row_scale != NULL, valid = i < p.m;
    if (blockIdx.y * WIDE_PACK_TILES >= tiles)
        return;
    if (f16 && !p.scaled)
        wide_powers(power, &p, tile);
    __syncthreads();
    float times = 1.0f;
    if (f16 && p.scaled) /* both are powers of two */
        times = valid ? 1.0f / p.row_scale[i] : 1.0f;
    else if (f16)
        times = power[lane % 8];
    size_t row = valid ? wide_row(p.rows, p.first, i) : 0;
    for (uint32_t j = threadIdx.x / 32; j < 2 * WIDE_PACK_TILES; j += blockDim.x / 32) {
        uint32_t kt = blockIdx.y * WIDE_PACK_TILES + j / 2, core = j % 2 * 4 + lane / 8;
        uint32_t r[4], rest[4];
        float v[8];
        if (kt >= tiles)
            break;
        wide_load(v, &p, row, kt * FMC_TILE_K + 8 * core, valid);
#pragma unroll
        for (int q = 0; q < 4; q++) {
            float a = v[2 * q] * times, b = v[2 * q + 1] * times;
            r[q] = wide_pair(f16, a, b);
            rest[q] = wide_pair(f16, wide_rest(f16, a, r[q]), wide_rest(f16, b, r[q] >> 16));
        }
        size_t to = ((size_t)kt * all + tile) * FMC_TILE_X + core * 128 + lane % 8 * 16;
        *(uint4 *)(void *)(p.to + to) = make_uint4(r[0], r[1], r[2], r[3]);
        if (p.rest)
            *(uint4 *)(void *)(p.rest + to) = make_uint4(rest[0], rest[1], rest[2], rest[3]);
    }
}

/* A tail's stage is as large as that of a tile of 64 k: two steps of 16 k of B as pairs (2 KB a
 * panel) and of u, rounded values and remainder (128 bytes a row). */
#define WIDE_TAIL_STEPS 2u
#define WIDE_TAIL_ROW8 256u /* bytes of 8 rows by 16 k */

/* Offset of step `step` of 16 k of u in its pack; the remainder follows the rounded values. */
FMC_DEVICE size_t wide_tail_at(uint32_t row8s, uint32_t step, bool rest)
{
    return (2 * (size_t)step + rest) * row8s * WIDE_TAIL_ROW8;
}

/* Packs u of tails: p->to holds step after step of 16 k, of each the rounded values and then the
 * remainder by 8 rows, each of two cores. A thread has 8 k of a row. */
__global__ void k_wide_pack_tail(const fmc_pack *list, uint32_t count)
{
    const fmc_pack p = list[fmc_find_begin(list, count)];
    uint32_t row8s = (p.m + FMC_TILE_ROWS - 1) / FMC_TILE_ROWS, steps = (p.k + 15) / 16;
    uint64_t at = (uint64_t)(blockIdx.x - p.begin) * FMC_THREADS + threadIdx.x;
    uint32_t line = (uint32_t)(at % 16), step = (uint32_t)(at / 16 / row8s);
    uint32_t tile = (uint32_t)(at / 16 % row8s), i = tile * FMC_TILE_ROWS + line % 8;
    uint32_t r[4], rest[4];
    float v[8];
    if (step >= steps)
        return;
    wide_load(v, &p, i, 16 * step + line / 8 * 8, i < p.m);
#pragma unroll
    for (int q = 0; q < 4; q++) {
        r[q] = wide_pair(false, v[2 * q], v[2 * q + 1]);
        rest[q] = wide_pair(false, wide_rest(false, v[2 * q], r[q]),
                            wide_rest(false, v[2 * q + 1], r[q] >> 16));
    }
    unsigned char *to =
        p.to + wide_tail_at(row8s, step, false) + (size_t)tile * WIDE_TAIL_ROW8 + line * 16;
    *(uint4 *)(void *)to = make_uint4(r[0], r[1], r[2], r[3]);
    *(uint4 *)(void *)(to + (size_t)row8s * WIDE_TAIL_ROW8) =
        make_uint4(rest[0], rest[1], rest[2], rest[3]);
}

/* ---- the choice of a tile of y and a part of k ---- */

typedef struct wide_item {
    const fmc_job *p;                    /* read from memory: registers are scarce */
    uint32_t panel, row8;                /* the first ones of the block */
    uint32_t panels, row8s, tiles, each; /* all of the job; each: tiles of a part */
    uint32_t from, to, part;             /* tiles of k */
} wide_item;

/* WIDE_RUN blocks of rows take the blocks of outputs one after another: x stays in L2. */
template <uint32_t rows>
FMC_DEVICE wide_item wide_item_of(const fmc_job *list, uint32_t count, uint32_t number)
{
    uint32_t low = 0, high = count; /* finds the last job that begins at this item or before */
    while (high - low > 1) {
        uint32_t mid = (low + high) / 2;
        if (list[mid].begin <= number)
            low = mid;
        else
            high = mid;
    }
    wide_item it = {};
    const fmc_job *p = it.p = list + low;
    uint32_t index = number - p->begin;
    it.tiles = it.to = (p->k + FMC_TILE_K - 1) / FMC_TILE_K;
    it.each = (it.tiles + FMC_SPLITS_MAX - 1) / FMC_SPLITS_MAX;
    it.each = it.each < 2 ? 2 : it.each;
    it.panels = (p->n + FMC_OUTPUTS - 1) / FMC_OUTPUTS;
    it.row8s = (p->m + FMC_TILE_ROWS - 1) / FMC_TILE_ROWS;
    if (p->parts) {
        uint32_t parts = (it.tiles + it.each - 1) / it.each;
        it.part = index % parts;
        index /= parts;
        it.from = it.part * it.each;
        it.to = it.from + it.each < it.to ? it.from + it.each : it.to;
    }
    uint32_t wide = (p->m + rows - 1) / rows;
    uint32_t tall = (it.panels + WIDE_BLOCKS * WIDE_PANELS - 1) / (WIDE_BLOCKS * WIDE_PANELS);
    uint32_t run = index / (WIDE_RUN * tall), in = index - run * WIDE_RUN * tall;
    uint32_t left = wide - run * WIDE_RUN, size = left < WIDE_RUN ? left : WIDE_RUN;
    it.panel = (in / size * WIDE_BLOCKS + fmc_cluster_rank()) * WIDE_PANELS;
    it.row8 = (run * WIDE_RUN + in % size) * (rows / FMC_TILE_ROWS);
    return it;
}

/* ---- filling the ring ---- */

template <int kind, int rows, bool split> struct wide_size {
    static constexpr uint32_t tile = fmc_tile<kind>::stage;
    static constexpr uint32_t w_bytes = WIDE_PANELS * tile, x_bytes = rows * 2 * FMC_TILE_K;
    static constexpr uint32_t stage = w_bytes + x_bytes * (split ? 2 : 1);
    static constexpr uint32_t fit = WIDE_REST_OF_SHARED / stage;
    static constexpr uint32_t stages = fit < FMC_RING_STAGES ? fit : FMC_RING_STAGES;
    static constexpr uint32_t bytes = WIDE_BARS + stages * stage;
    static_assert(w_bytes % 128 == 0 && sizeof(fmc_ring_bars) <= WIDE_BARS && stages >= 2, "ring");
};

/* What this block loads for an item: panels, and groups of 8 rows of its half. */
typedef struct wide_share {
    uint32_t panels, row8, row8s, all8s; /* all8s: groups that arrive in this block */
} wide_share;

template <int rows> FMC_DEVICE wide_share wide_share_of(const wide_item *it)
{
    constexpr uint32_t most = rows / FMC_TILE_ROWS, half = most / WIDE_BLOCKS;
    uint32_t panels = it->panel < it->panels ? it->panels - it->panel : 0;
    uint32_t left = it->row8s - it->row8, begin = fmc_cluster_rank() * half;
    wide_share s = {panels < WIDE_PANELS ? panels : WIDE_PANELS, begin, 0,
                    left < most ? left : most};
    if (s.all8s > begin)
        s.row8s = s.all8s - begin < half ? s.all8s - begin : half;
    return s;
}

/* Fills the stages of an item's tail. */
template <int rows>
FMC_DEVICE void wide_fill_tail(const wide_item *it, const wide_share *s, fmc_ring_bars *bars,
                               unsigned char *ring, fmc_turn *t)
{
    typedef wide_size<FMC_BF16, rows, false> size;
    uint32_t lane = threadIdx.x % 32, steps = (it->p->tail_k + 15) / 16;
    uint32_t tiles = (it->p->tail_k + FMC_TILE_K - 1) / FMC_TILE_K;
    for (uint32_t step = 0; step < steps; step += WIDE_TAIL_STEPS) {
        uint32_t n = steps - step < WIDE_TAIL_STEPS ? steps - step : WIDE_TAIL_STEPS;
        unsigned char *stage = ring + t->stage * size::stage;
        uint64_t *full = &bars->full[t->stage];
        fmc_ring_wait_empty(bars, *t);
        if (lane == 0)
            fmc_barrier_expect(full, n * (s->panels * 1024 + s->all8s * 2 * WIDE_TAIL_ROW8));
        __syncwarp();
        if (lane < s->panels) {
            const unsigned char *unit =
                fmc_unit<FMC_PAIR>(it->p->tail_w, it->panel + lane, tiles, step / 4) +
                step % 4 * 512;
            unsigned char *to = stage + lane * size::tile;
            fmc_bulk_copy(to, unit, n * 512, full);
            fmc_bulk_copy(to + 1024, unit + 2048, n * 512, full);
        } else if (lane >= WIDE_PANELS && lane < WIDE_PANELS + 2 * n && s->row8s > 0) {
            uint32_t nth = lane - WIDE_PANELS; /* step and half */
            const unsigned char *from = it->p->tail_x +
                                        wide_tail_at(it->row8s, step + nth / 2, nth % 2) +
                                        (size_t)(it->row8 + s->row8) * WIDE_TAIL_ROW8;
            fmc_bulk_copy_all(stage + size::w_bytes + nth * rows * 32 + s->row8 * WIDE_TAIL_ROW8,
                              from, s->row8s * WIDE_TAIL_ROW8, full);
        }
        __syncwarp();
        fmc_turn_next(t, size::stages);
    }
}

/* The first warp's part of the kernel. */
template <int kind, int rows, bool split, bool tail>
FMC_DEVICE void wide_fill(fmc_ring_bars *bars, unsigned char *ring, const fmc_job *list,
                          uint32_t count, uint32_t items)
{
    typedef wide_size<kind, rows, split> size;
    constexpr uint32_t head = fmc_tile<kind>::head, body = fmc_tile<kind>::body;
    uint32_t lane = threadIdx.x % 32;
    fmc_turn t = {0, 0};
    for (uint32_t number = blockIdx.x / WIDE_BLOCKS; number < items;
         number += gridDim.x / WIDE_BLOCKS) {
        wide_item it = wide_item_of<rows>(list, count, number);
        wide_share s = wide_share_of<rows>(&it);
        uint32_t x_bytes = s.row8s * FMC_TILE_X, to_x = size::w_bytes + s.row8 * FMC_TILE_X;
        uint32_t come = s.panels * size::tile + s.all8s * FMC_TILE_X * (split ? 2u : 1u);
        for (uint32_t tile = it.from; tile < it.to; tile++) {
            unsigned char *stage = ring + t.stage * size::stage;
            uint64_t *full = &bars->full[t.stage];
            size_t x_at = ((size_t)tile * it.row8s + it.row8 + s.row8) * FMC_TILE_X;
            fmc_ring_wait_empty(bars, t);
            if (lane == 0)
                fmc_barrier_expect(full, come);
            __syncwarp();
            if (lane < s.panels) {
                const unsigned char *unit =
                    fmc_unit<kind>(it.p->w, it.panel + lane, it.tiles, tile);
                unsigned char *to = stage + lane * size::tile;
                if (head)
                    fmc_bulk_copy(to, unit, head, full);
                fmc_bulk_copy(to + head, unit + head + tile % fmc_tile<kind>::bodies * body, body,
                              full);
            } else if (lane == WIDE_PANELS && s.row8s > 0) {
                fmc_bulk_copy_all(stage + to_x, it.p->x + x_at, x_bytes, full);
                if (split)
                    fmc_bulk_copy_all(stage + to_x + size::x_bytes, it.p->rest + x_at, x_bytes,
                                      full);
            }
            __syncwarp();
            fmc_turn_next(&t, size::stages);
        }
        if constexpr (tail)
            wide_fill_tail<rows>(&it, &s, bars, ring, &t);
    }
}

/* ---- multiplying ---- */

/* The destination of the sums of a job's rows. */
typedef struct wide_end {
    float *y;
    size_t ld;
    const int32_t *rows;
    const float *row_scale;
    uint32_t first, m;
    float alpha, bias[2];
    bool low, high, plain, has_bias, add; /* low, high: outputs n and n + 8 exist */
} wide_end;

FMC_DEVICE wide_end wide_end_of(const wide_item *it, uint32_t n)
{
    const fmc_job *p = it->p;
    wide_end e = {};
    e.low = n < p->n;
    e.high = n + 8 < p->n;
    e.m = p->m;
    e.plain = p->parts != NULL;
    e.y = e.plain ? p->parts + (size_t)it->part * p->m * p->n + n : p->y + n;
    e.ld = e.plain ? p->n : p->ldy;
    e.rows = e.plain || p->dense ? NULL : p->rows;
    e.first = e.plain || p->dense ? 0 : p->first;
    e.row_scale = p->row_scale;
    e.alpha = p->alpha;
    e.has_bias = p->bias != NULL;
    e.bias[0] = e.has_bias && e.low ? p->bias[n] : 0.0f;
    e.bias[1] = e.has_bias && e.high ? p->bias[n + 8] : 0.0f;
    e.add = p->add && !e.plain;
    return e;
}

/* Stores a warpgroup's sums in y, or as sums of a part. Values that are added to are read for eight
 * rows at a time (four where there are a tail's sums), so that a warp waits for memory six times
 * and not for each value. + 0 stands for a tail's zeros beyond its rank. */
template <bool tail, int sums>
FMC_DEVICE void wide_finish(const wide_item *it, uint32_t panel, const float (&total)[sums],
                            const float (&tails)[sums])
{
    constexpr uint32_t batch = tail ? 4 : 8;
    const float by = tail ? it->p->tail_scale : 0.0f;
    uint32_t lane = threadIdx.x % 32;
    const wide_end e = wide_end_of(it, panel * FMC_OUTPUTS + lane / 4);
    uint32_t at0 = it->row8 * FMC_TILE_ROWS + lane % 4 * 2;
#pragma unroll
    for (uint32_t i0 = 0; i0 < sums / 2; i0 += batch) {
        float *y[batch], old[batch][2];
#pragma unroll
        for (uint32_t i = 0; i < batch; i++) {
            uint32_t at = at0 + (i0 + i) / 2 * FMC_TILE_ROWS + i % 2;
            y[i] = at < e.m ? e.y + wide_row(e.rows, e.first, at) * e.ld : NULL;
            old[i][0] = e.add && y[i] && e.low ? y[i][0] : 0.0f;
            old[i][1] = e.add && y[i] && e.high ? y[i][8] : 0.0f;
        }
#pragma unroll
        for (uint32_t i = 0; i < batch; i++) {
            uint32_t at = at0 + (i0 + i) / 2 * FMC_TILE_ROWS + i % 2;
            float scale = e.row_scale && y[i] ? e.row_scale[at] : 0.0f;
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
                float v = total[(i0 + i) / 2 * 4 + i % 2 + 2 * h];
                if (!e.plain) {
                    v = v * e.alpha;
                    v = e.row_scale ? v * scale : v;
                    v = e.has_bias ? v + e.bias[h] : v;
                    v = e.add ? old[i][h] + v : v;
                }
                if (tail)
                    v = v + (tails[(i0 + i) / 2 * 4 + i % 2 + 2 * h] + 0.0f) * by;
                if (y[i] && (h ? e.high : e.low))
                    y[i][8 * h] = v;
            }
        }
    }
}

/* Half of a tile, two steps of 16 k: a group of products. at: the stage's x and its remainder. */
template <int kind, int rows, bool split>
FMC_DEVICE void wide_half(float (&acc)[rows / 2], const fmc_lane *l, const unsigned char *body,
                          uint32_t half, uint64_t x, uint64_t rest)
{
    uint32_t lane = threadIdx.x % 32, a[2][4], a2[2][4];
#pragma unroll
    for (uint32_t s = 0; s < 2; s++) {
        fmc_operand<kind>(a[s], l, body, lane, 2 * half + s, false);
        if (kind == FMC_PAIR)
            fmc_operand<kind>(a2[s], l, body, lane, 2 * half + s, true);
    }
    fmc_sm90_fence();
#pragma unroll
    for (uint32_t s = 0; s < 2; s++) {
        uint64_t step = 16 * (2 * half + s); /* of two cores, in units of 16 bytes */
        fmc_sm90<rows, kind == FMC_F16, false>(acc, a[s], x + step);
        if (kind == FMC_PAIR)
            fmc_sm90<rows, kind == FMC_F16, false>(acc, a2[s], x + step);
        if (split)
            fmc_sm90<rows, kind == FMC_F16, false>(acc, a[s], rest + step);
    }
    fmc_sm90_commit();
}

/* Sums tiles from .. to - 1 of k, of one part, in acc. */
template <int kind, int rows, bool split>
FMC_DEVICE void wide_part(float (&acc)[rows / 2], fmc_ring_bars *bars, const unsigned char *ring,
                          fmc_turn *t, uint32_t tiles)
{
    typedef wide_size<kind, rows, split> size;
    uint32_t panel = threadIdx.x / 32 - 4, last = 0;
    uint64_t x0 = fmc_matrix(ring + size::w_bytes, 128, FMC_TILE_X);
#pragma unroll
    for (int i = 0; i < rows / 2; i++)
        acc[i] = 0.0f;
#pragma unroll 1
    for (uint32_t tile = 0; tile < tiles; tile++) {
        const unsigned char *w = ring + t->stage * size::stage + panel * size::tile;
        uint64_t x = x0 + t->stage * (size::stage / 16), rest = x + size::x_bytes / 16;
        fmc_lane l;
        fmc_ring_wait_full(bars, *t);
        fmc_lane_load<kind>(&l, w, w + fmc_tile<kind>::head, threadIdx.x % 32);
        wide_half<kind, rows, split>(acc, &l, w + fmc_tile<kind>::head, 0, x, rest);
        fmc_sm90_wait<1>(); /* the products of the tile before are done */
        if (tile > 0)
            fmc_ring_release_both(bars, last);
        wide_half<kind, rows, split>(acc, &l, w + fmc_tile<kind>::head, 1, x, rest);
        fmc_sm90_wait<1>();
        last = t->stage;
        fmc_turn_next(t, size::stages);
    }
    fmc_sm90_wait<0>();
    fmc_sm90_there(acc);
    fmc_ring_release_both(bars, last);
}

/* acc = u B^T of the item, in the order of a product of pairs. */
template <int rows>
FMC_DEVICE void wide_tail(float (&acc)[rows / 2], const wide_item *it, fmc_ring_bars *bars,
                          const unsigned char *ring, fmc_turn *t)
{
    typedef wide_size<FMC_BF16, rows, false> size;
    uint32_t panel = threadIdx.x / 32 - 4, steps = (it->p->tail_k + 15) / 16;
    uint64_t x0 = fmc_matrix(ring + size::w_bytes, 128, WIDE_TAIL_ROW8);
#pragma unroll
    for (int i = 0; i < rows / 2; i++)
        acc[i] = 0.0f;
#pragma unroll 1
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t in = step % WIDE_TAIL_STEPS, a[4], a2[4];
        const unsigned char *w =
            ring + t->stage * size::stage + panel * size::tile + 512 * in + 16 * (threadIdx.x % 32);
        uint64_t x = x0 + t->stage * (size::stage / 16) + in * (rows * 64 / 16);
        if (in == 0)
            fmc_ring_wait_full(bars, *t);
        fmc_put_words(a, fmc_words(w));
        fmc_put_words(a2, fmc_words(w + 1024));
        fmc_sm90_fence();
        fmc_sm90<rows, false, false>(acc, a, x);
        fmc_sm90<rows, false, false>(acc, a2, x);
        fmc_sm90<rows, false, false>(acc, a, x + rows * 32 / 16);
        fmc_sm90_commit();
        fmc_sm90_wait<0>();
        if (in + 1 == WIDE_TAIL_STEPS || step + 1 == steps) {
            fmc_ring_release_both(bars, t->stage);
            fmc_turn_next(t, size::stages);
        }
    }
    fmc_sm90_there(acc);
}

/* Number of stages of an item's tail. */
FMC_DEVICE uint32_t wide_tail_stages(const fmc_job *p)
{
    return (p->tail_k + 16 * WIDE_TAIL_STEPS - 1) / (16 * WIDE_TAIL_STEPS);
}

template <int kind, int rows, bool split, bool tail>
FMC_DEVICE void wide_multiply(fmc_ring_bars *bars, const unsigned char *ring, const fmc_job *list,
                              uint32_t count, uint32_t items)
{
    typedef wide_size<kind, rows, split> size;
    float acc[rows / 2], total[rows / 2];
    uint32_t warp = threadIdx.x / 32 - 4;
    fmc_turn t = {0, 0};
    for (uint32_t number = blockIdx.x / WIDE_BLOCKS; number < items;
         number += gridDim.x / WIDE_BLOCKS) {
        wide_item it = wide_item_of<rows>(list, count, number);
        if (it.panel + warp / 4 * 4 >= it.panels) { /* no outputs for this warpgroup */
            uint32_t stages = it.to - it.from + (tail ? wide_tail_stages(it.p) : 0);
            for (uint32_t i = 0; i < stages; i++) {
                fmc_ring_wait_full(bars, t);
                fmc_ring_release_both(bars, t.stage);
                fmc_turn_next(&t, size::stages);
            }
            continue;
        }
        for (uint32_t from = it.from; from < it.to; from += it.each) {
            uint32_t tiles = it.to - from < it.each ? it.to - from : it.each;
            wide_part<kind, rows, split>(acc, bars, ring, &t, tiles);
            bool first = from == it.from;
#pragma unroll
            for (int i = 0; i < rows / 2; i++)
                total[i] = first ? acc[i] : total[i] + acc[i];
        }
        if constexpr (tail)
            wide_tail<rows>(acc, &it, bars, ring, &t);
        wide_finish<tail>(&it, it.panel + warp, total, acc);
    }
}

/* tail: jobs may have a tail (bf16, not split), and none is in parts. */
template <int kind, int rows, bool split, bool tail = false>
__global__ void FMC_CLUSTER_OF_TWO __launch_bounds__(WIDE_THREADS, 1)
    k_wide(const fmc_job *list, uint32_t count, uint32_t items)
{
    typedef wide_size<kind, rows, split> size;
    FMC_SHARED_DYNAMIC(unsigned char, shared);
    fmc_ring_bars *bars = (fmc_ring_bars *)(void *)shared;
    if (threadIdx.x == 0)
        fmc_ring_begin(bars, size::stages, 4 * WIDE_GROUPS * WIDE_BLOCKS);
    fmc_cluster_sync();
    fmc_take_turn();
    if (threadIdx.x < 128) {
        fmc_registers_less<WIDE_FILLS>();
        if (threadIdx.x < 32)
            wide_fill<kind, rows, split, tail>(bars, shared + WIDE_BARS, list, count, items);
    } else {
        fmc_registers_more<WIDE_MULTIPLIES>();
        wide_multiply<kind, rows, split, tail>(bars, shared + WIDE_BARS, list, count, items);
    }
    fmc_cluster_sync();
}

#endif
