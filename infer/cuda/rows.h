/* rows.h - how operations on rows are split over a GPU's threads.
 *
 * Element-wise operations run over cells, four at a time where addresses allow (16-byte accesses).
 * A reduction keeps the order of lanes.h: a sum over a row is sixteen chains whose order is fixed,
 * so sixteen threads add, while the others load the row into shared memory or compute the summands.
 * A sum over rows is one chain a column: the other threads load the rows. */
#ifndef FM_INFER_CUDA_ROWS_H
#define FM_INFER_CUDA_ROWS_H

#include "infer/cuda/cuda.h"
#include "infer/cuda/lanes.h"
#include "infer/cuda/ptx.h"

/* ---- one element or four ---- */

/* A number as a type: f(w, i) of the loops below handles w.value elements from i on. */
template <int n> struct fmc_int {
    static constexpr int value = n;
};

template <int W> FMC_DEVICE void fmc_get(float (&v)[W], const float *p)
{
    if constexpr (W == 4) {
        float4 q = *(const float4 *)(const void *)p;
        v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
    } else {
        for (int j = 0; j < W; j++)
            v[j] = p[j];
    }
}
template <int W> FMC_DEVICE void fmc_put(float *p, const float (&v)[W])
{
    if constexpr (W == 4) {
        *(float4 *)(void *)p = make_float4(v[0], v[1], v[2], v[3]);
    } else {
        for (int j = 0; j < W; j++)
            p[j] = v[j];
    }
}

/* On the host: whether all these addresses allow accesses of 16 bytes. NULL counts as yes. */
static inline bool fmc_aligned(const void *a, const void *b = NULL, const void *c = NULL,
                               const void *d = NULL, const void *e = NULL)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | (uintptr_t)e) & 15u) == 0;
}
static inline bool fmc_aligned_ld(size_t a, size_t b = 0, size_t c = 0, size_t d = 0, size_t e = 0)
{
    return ((a | b | c | d | e) & 3u) == 0;
}

/* Calls f over 0 .. n-1, split over threads first, first + step, .. */
template <class I, class F> FMC_DEVICE void fmc_span(I first, I step, I n, bool wide, F f)
{
    I done = 0;
    if (wide) {
        done = n / 4 * 4;
        for (I i = 4 * first; i < done; i += 4 * step)
            f(fmc_int<4>(), i);
    }
    for (I i = done + first; i < n; i += step)
        f(fmc_int<1>(), i);
}

/* Calls f(w, row, column) over [m, n], split over the grid: fmc_cell_blocks of FMC_THREADS. */
template <class F> FMC_DEVICE void fmc_cells(uint32_t m, uint32_t n, bool wide, F f)
{
    uint32_t units = wide ? n / 4 + (n % 4 != 0) : n;
    uint64_t all = (uint64_t)m * units;
    for (uint64_t u = fmc_index(); u < all; u += fmc_stride()) {
        uint32_t row = all >> 32 ? (uint32_t)(u / units) : (uint32_t)u / units;
        uint32_t col = (uint32_t)(u - (uint64_t)row * units);
        if (!wide) {
            f(fmc_int<1>(), row, col);
        } else if (n - 4 * col >= 4) {
            f(fmc_int<4>(), row, 4 * col);
        } else {
            for (uint32_t c = 4 * col; c < n; c++)
                f(fmc_int<1>(), row, c);
        }
    }
}
static inline unsigned fmc_cell_blocks(uint32_t m, uint32_t n, bool wide)
{
    return fmc_blocks((uint64_t)m * (wide ? n / 4 + (n % 4 != 0) : n), FMC_THREADS);
}
/* Launches a kernel that runs over cells, whose last parameters are m, n, wide. RUN is FMC_RUN, or
 * FMC_RUN_PDL for a kernel that waits for its turn. */
#define FMC_CELLS(...) FMC_CELLS_BY(FMC_RUN, __VA_ARGS__)
#define FMC_CELLS_BY(RUN, d, kernel, m, n, wide, ...)                                              \
    do {                                                                                           \
        bool fmc_w = (wide);                                                                       \
        if ((m) > 0 && (n) > 0)                                                                    \
            RUN(d, kernel, fmc_cell_blocks(m, n, fmc_w), FMC_THREADS, 0, __VA_ARGS__, m, n,        \
                fmc_w);                                                                            \
    } while (0)
/* Likewise for n contiguous elements: the last parameters are n, wide. */
#define FMC_SPAN(...) FMC_SPAN_BY(FMC_RUN, __VA_ARGS__)
#define FMC_SPAN_BY(RUN, d, kernel, n, wide, ...)                                                  \
    do {                                                                                           \
        bool fmc_w = (wide);                                                                       \
        if ((n) > 0)                                                                               \
            RUN(d, kernel, fmc_blocks(fmc_w ? (n) / 4 + 1 : (n), FMC_THREADS), FMC_THREADS, 0,     \
                __VA_ARGS__, n, fmc_w);                                                            \
    } while (0)

/* ---- rotary positions ---- */

/* Elements a, b = i and i + half of a head, rotated by the row's angle, with rope's bits. */
FMC_DEVICE float fmc_turn_low(float a, float b, float c, float s)
{
    return fmaf(b, 0.0f - s, a * c);
}
FMC_DEVICE float fmc_turn_high(float a, float b, float c, float s)
{
    return fmaf(a, s, b * c);
}
/* Element d of a head of row `row`, rotated; elements from `turns` on are unchanged. */
FMC_DEVICE float fmc_turned(const float *head, uint32_t d, const fm_new_rows &r, uint32_t row)
{
    uint32_t half = r.turns / 2, i = d < half ? d : d - half;
    if (d >= r.turns)
        return head[d];
    size_t angle = (size_t)r.pos[row] * half + i;
    float a = head[i], b = head[i + half], c = r.cos[angle], s = r.sin[angle];
    return d < half ? fmc_turn_low(a, b, c, s) : fmc_turn_high(a, b, c, s);
}
/* Rotates pair i of a head, in place. */
FMC_DEVICE void fmc_turn_pair(float *head, uint32_t i, const fm_new_rows &r, uint32_t row)
{
    uint32_t half = r.turns / 2;
    size_t angle = (size_t)r.pos[row] * half + i;
    float a = head[i], b = head[i + half], c = r.cos[angle], s = r.sin[angle];
    head[i] = fmc_turn_low(a, b, c, s);
    head[i + half] = fmc_turn_high(a, b, c, s);
}

/* ---- rows: a warp or a block each ---- */

/* `room` is the number of elements of each of `arrays` arrays that fit into shared memory at once;
 * longer rows are loaded piece by piece. */
typedef struct fmc_rows {
    uint32_t m, h, room;
    bool warp, wide;
    unsigned grid, shared_bytes;
} fmc_rows;

#define FMC_ROW_STATS 16u      /* floats besides the arrays: results, by number */
#define FMC_WARP_FLOATS 1440u  /* eight warps stay below 48 KiB */
#define FMC_BLOCK_FLOATS 8192u /* 32 KiB */

static inline fmc_rows fmc_rows_of(uint32_t m, uint32_t h, uint32_t arrays, bool wide)
{
    fmc_rows r = {m, h, 0, false, wide, 0, 0};
    uint64_t padded = ((uint64_t)h + FMC_LANES - 1) / FMC_LANES * FMC_LANES;
    uint32_t groups = 1;
    r.warp = padded * arrays <= FMC_WARP_FLOATS;
    if (r.warp)
        groups = FMC_THREADS / 32;
    uint32_t most = FMC_BLOCK_FLOATS / arrays / FMC_LANES * FMC_LANES;
    r.room = padded < most ? (uint32_t)padded : most;
    r.grid = fmc_blocks(m, groups);
    r.shared_bytes = groups * (r.room * arrays + FMC_ROW_STATS) * (unsigned)sizeof(float);
    return r;
}
/* kernel<warp>(fmc_rows, ...) */
#define FMC_ROWS(...) FMC_ROWS_BY(FMC_RUN, __VA_ARGS__)
#define FMC_ROWS_BY(RUN, d, kernel, rows, ...)                                                     \
    do {                                                                                           \
        fmc_rows fmc_r = (rows);                                                                   \
        if (fmc_r.m > 0 && fmc_r.warp)                                                             \
            RUN(d, (kernel<true>), fmc_r.grid, FMC_THREADS, fmc_r.shared_bytes, fmc_r,             \
                __VA_ARGS__);                                                                      \
        else if (fmc_r.m > 0)                                                                      \
            RUN(d, (kernel<false>), fmc_r.grid, FMC_THREADS, fmc_r.shared_bytes, fmc_r,            \
                __VA_ARGS__);                                                                      \
    } while (0)

/* The threads that share a row. */
template <bool warp> struct fmc_group {
    /* Rank of this thread, size of the group; its rows are first, first + step .. */
    uint32_t rank, size, first, step;
    uint32_t room, arrays;
    float *tile, *stat; /* [arrays][room]; [FMC_ROW_STATS] */

    __device__ __forceinline__ fmc_group(float *shared, const fmc_rows &r, uint32_t arrays_)
        : room(r.room), arrays(arrays_)
    {
        uint32_t number = warp ? threadIdx.x / 32 : 0, groups = warp ? blockDim.x / 32 : 1;
        rank = warp ? threadIdx.x % 32 : threadIdx.x;
        size = warp ? 32 : blockDim.x;
        first = blockIdx.x * groups + number;
        step = gridDim.x * groups;
        tile = shared + number * (room * arrays + FMC_ROW_STATS);
        stat = tile + room * arrays;
    }
    __device__ __forceinline__ void sync() const
    {
        if (warp)
            __syncwarp();
        else
            __syncthreads();
    }
};

/* Sums over a row in the lane order: stage(w, i, to) stores the summands of the row's elements i ..
 * in array a of g.tile at a * room + to; feed(a, l) adds element a of the tile to the sums l[sums].
 * out: the folded sums, in every thread. A row of at most g.room elements stays in the tile. */
template <int sums, bool warp, class Stage, class Feed>
FMC_DEVICE void fmc_row_sums(float (&out)[sums], const fmc_group<warp> &g, const fmc_rows &r,
                             Stage stage, Feed feed)
{
    float l[sums];
    for (int j = 0; j < sums; j++)
        l[j] = 0.0f;
    for (uint32_t at = 0; at < r.h; at += g.room) {
        uint32_t n = r.h - at < g.room ? r.h - at : g.room;
        uint32_t padded = (n + FMC_LANES - 1) / FMC_LANES * FMC_LANES;
        g.sync();
        fmc_span(g.rank, g.size, n, r.wide, [&](auto w, uint32_t i) { stage(w, at + i, i); });
        for (uint32_t i = n + g.rank; i < padded; i += g.size)
            for (uint32_t a = 0; a < g.arrays; a++)
                g.tile[a * g.room + i] = 0.0f;
        g.sync();
        if (g.rank < FMC_LANES) {
#pragma unroll 32
            for (uint32_t i = g.rank; i < padded; i += FMC_LANES)
                feed(i, l);
        }
    }
    if (g.rank < 32)
        for (int j = 0; j < sums; j++) {
            float sum = fmc_fold_add_of(0xffffffffu, l[j]);
            if (g.rank == 0)
                g.stat[j] = sum;
        }
    g.sync();
    for (int j = 0; j < sums; j++)
        out[j] = g.stat[j];
}

/* Calls f(w, i, from) over the row, with the staged values at `from` of the tile: they are still
 * there, or the calling thread stages them again. */
template <bool warp, class Stage, class F>
FMC_DEVICE void fmc_row_again(const fmc_group<warp> &g, const fmc_rows &r, Stage stage, F f)
{
    for (uint32_t at = 0; at < r.h; at += g.room) {
        uint32_t n = r.h - at < g.room ? r.h - at : g.room;
        fmc_span(g.rank, g.size, n, r.wide, [&](auto w, uint32_t i) {
            if (r.h > g.room)
                stage(w, at + i, i);
            f(w, at + i, i);
        });
    }
}

/* Mean of a row and 1 / sqrt(variance + eps); if the row fits, the tile holds x - mean. One
 * array. */
template <bool warp>
FMC_DEVICE void fmc_row_moments(float &mean, float &rstd, const fmc_group<warp> &g,
                                const fmc_rows &r, const float *x, float eps)
{
    bool whole = r.h <= g.room;
    float sum[1];
    fmc_row_sums(
        sum, g, r,
        [&](auto w, uint32_t i, uint32_t to) {
            float v[w.value];
            fmc_get(v, x + i);
            fmc_put(g.tile + to, v);
        },
        [&](uint32_t at, float(&l)[1]) { l[0] = l[0] + g.tile[at]; });
    float shift = sum[0] / (float)r.h;
    fmc_row_sums(
        sum, g, r,
        [&](auto w, uint32_t i, uint32_t to) {
            float v[w.value];
            fmc_get(v, whole ? g.tile + to : x + i);
            for (int j = 0; j < w.value; j++)
                v[j] = v[j] - shift;
            fmc_put(g.tile + to, v);
        },
        [&](uint32_t at, float(&l)[1]) { l[0] = fmaf(g.tile[at], g.tile[at], l[0]); });
    mean = shift;
    rstd = 1.0f / sqrtf(sum[0] / (float)r.h + eps);
}

/* ---- rows of a vocabulary: a block each ---- */

/* Threads of a block: some half warps add, one sum each; FMC_BRINGERS compute summands. */
#define FMC_BRINGERS 512u
template <int sums> struct fmc_long {
    static constexpr uint32_t adders = (sums + 1) / 2 * 32, threads = adders + FMC_BRINGERS;
};

/* Sums over n elements in the lane order: stage(w, i, tile, to) stores the summands of elements i
 * .. in array a of the tile at a * piece + to; feed(j, tile, at, l) returns lane l of sum j after
 * the element at `at` of the tile. While one piece is added the next is computed. buf:
 * [2][arrays][piece]; stat: [sums]. out: the folded sums, in every thread. */
template <uint32_t arrays, uint32_t piece, int sums, class T, class Stage, class Feed>
FMC_DEVICE void fmc_long_sums(T (&out)[sums], T *stat, float *buf, uint32_t n, bool wide,
                              Stage stage, Feed feed)
{
    const uint32_t adders = blockDim.x - FMC_BRINGERS; /* at least fmc_long<sums>::adders */
    uint32_t chain = threadIdx.x / FMC_LANES, lane = threadIdx.x % FMC_LANES;
    bool adds = chain < (uint32_t)sums;
    float *tile = buf, *other = buf + arrays * piece;
    T l = 0;
    __syncthreads();
    for (uint32_t at = 0; at < n; at += piece) {
        uint32_t count = n - at < piece ? n - at : piece;
        uint32_t padded = (count + FMC_LANES - 1) / FMC_LANES * FMC_LANES;
        if (threadIdx.x >= adders) {
            uint32_t rank = threadIdx.x - adders;
            fmc_span(rank, FMC_BRINGERS, count, wide,
                     [&](auto w, uint32_t i) { stage(w, at + i, tile, i); });
            for (uint32_t i = count + rank; i < padded; i += FMC_BRINGERS)
                for (uint32_t a = 0; a < arrays; a++)
                    tile[a * piece + i] = 0.0f;
        }
        __syncthreads();
        if (adds) {
#pragma unroll 16
            for (uint32_t i = lane; i < padded; i += FMC_LANES)
                l = feed(chain, tile, i, l);
        }
        float *free = other;
        other = tile;
        tile = free;
    }
    if (threadIdx.x < adders) {
        T sum = fmc_fold_add_of(0xffffffffu, l);
        if (adds && lane == 0)
            stat[chain] = sum;
    }
    __syncthreads();
    for (int j = 0; j < sums; j++)
        out[j] = stat[j];
}

/* The largest of n values, without NaN, -inf if there is none; either zero may be returned. All
 * threads of the block call it; stat: [32]. */
FMC_DEVICE float fmc_block_max(const float *x, uint32_t n, bool wide, float *stat)
{
    float best = -INFINITY;
    fmc_span(threadIdx.x, blockDim.x, n, wide, [&](auto w, uint32_t i) {
        float v[w.value];
        fmc_get(v, x + i);
        for (int j = 0; j < w.value; j++)
            best = fmc_max(v[j], best);
    });
    for (int by = 16; by > 0; by /= 2)
        best = fmc_max(__shfl_xor_sync(0xffffffffu, best, by), best);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        stat[threadIdx.x / 32] = best;
    __syncthreads();
    best = stat[0];
    for (uint32_t i = 1; i < blockDim.x / 32; i++)
        best = fmc_max(stat[i], best);
    return best;
}

/* ---- columns: sums over ascending rows ---- */

#define FMC_STRIP 8u        /* columns of a block: one sector of memory */
#define FMC_STRIP_ROWS 256u /* rows loaded at a time */
#define FMC_STRIP_FLOATS (FMC_STRIP * FMC_STRIP_ROWS)

/* In the threads where chain < sums and lane < FMC_STRIP (chain = threadIdx.x / 32, lane the rest):
 * sum `chain` of column blockIdx.x * FMC_STRIP + lane over rows 0 .. m-1 ascending, from +0.
 * fetch(row, col, v[arrays]) loads a cell's numbers; feed(chain, v, l) adds them, v[a] at a *
 * FMC_STRIP_FLOATS. FMC_THREADS threads; buf: [2][arrays][FMC_STRIP_FLOATS]. */
template <int arrays, int sums, class Fetch, class Feed>
FMC_DEVICE float fmc_column_sums(float *buf, uint32_t m, uint32_t n, Fetch fetch, Feed feed)
{
    const uint32_t each = FMC_STRIP_FLOATS / FMC_THREADS, down = FMC_THREADS / FMC_STRIP;
    uint32_t lane = threadIdx.x % 32, chain = threadIdx.x / 32;
    uint32_t row = threadIdx.x / FMC_STRIP, col = blockIdx.x * FMC_STRIP + threadIdx.x % FMC_STRIP;
    float held[each][arrays], l = 0.0f;
    auto bring = [&](uint32_t at) {
#pragma unroll
        for (uint32_t k = 0; k < each; k++) {
            for (int a = 0; a < arrays; a++)
                held[k][a] = 0.0f;
            if (at + row + k * down < m && col < n)
                fetch(at + row + k * down, col, held[k]);
        }
    };
    bring(0);
    for (uint32_t at = 0; at < m; at += FMC_STRIP_ROWS) {
        float *tile = buf + (at / FMC_STRIP_ROWS % 2) * arrays * FMC_STRIP_FLOATS;
#pragma unroll
        for (uint32_t k = 0; k < each; k++)
            for (int a = 0; a < arrays; a++)
                tile[(uint32_t)a * FMC_STRIP_FLOATS + k * FMC_THREADS + threadIdx.x] = held[k][a];
        __syncthreads();
        if (m - at > FMC_STRIP_ROWS)
            bring(at + FMC_STRIP_ROWS);
        if (chain < (uint32_t)sums && lane < FMC_STRIP) {
            uint32_t rows = m - at < FMC_STRIP_ROWS ? m - at : FMC_STRIP_ROWS;
#pragma unroll 32
            for (uint32_t i = 0; i < rows; i++)
                l = feed(chain, tile + i * FMC_STRIP + lane, l);
        }
    }
    return l;
}

#endif
