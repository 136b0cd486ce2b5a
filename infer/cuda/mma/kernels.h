/* kernels.h - the kernels of product.cu.
 *
 * k_fast_few, up to 16 rows: bound by the bytes of W, which each warp streams through a ring of its
 * own by cp.async (a lane reads the bytes that it copied, and its scales); the eight warps of a
 * block take the parts of k of one panel. k_fast_many: 128 outputs by 64 or 128 rows, three stages;
 * a block walks the parts of k in order, or, where that leaves multiprocessors idle, each part has
 * a block of its own and k_fast_add_parts adds them in the same order. */
#ifndef FM_INFER_CUDA_FAST_KERNELS_H
#define FM_INFER_CUDA_FAST_KERNELS_H

#include "infer/cuda/mma/int8.h"
#include "infer/cuda/mma/job.h"

#define MANY_PANELS 8u
#define PACK_TILES 16u /* of k, by one block */

/* ---- packing x ---- */

/* 2^(14 - the exponent of |largest|), or 1 where largest is not finite. */
FMC_DEVICE float power_for(float largest)
{
    uint32_t e = __float_as_uint(largest) >> 23;
    if (e >= 255u)
        return 1.0f;
    e = e < 15u ? 15u : e;
    return __uint_as_float((268u - e) << 23);
}

FMC_DEVICE float pack_value(const fmc_pack *p, size_t row, uint32_t k)
{
    if (k >= p->k)
        return 0.0f;
    return p->turned ? p->x[(size_t)k * p->ld + row] : p->x[row * p->ld + k];
}

/* Computes the scale of each of the tile's 8 rows, one warp a row. */
FMC_DEVICE void row_powers(float power[FMC_TILE_ROWS], const fmc_pack *p, uint32_t tile)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t i = tile * FMC_TILE_ROWS + warp;
    float most = 0.0f;
    if (i < p->m)
        for (uint32_t k = lane; k < p->k; k += 32)
            most = fmaxf(most, fabsf(pack_value(p, row_of(p->rows, p->first, i), k)));
    for (int by = 16; by > 0; by /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, by));
    if (lane == 0) {
        power[warp] = power_for(most);
        if (i < p->m && blockIdx.y == 0)
            p->row_scale[i] = 1.0f / power[warp];
    }
}

/* The same for rows whose scales have been computed: both are powers of two. */
FMC_DEVICE void take_powers(float power[FMC_TILE_ROWS], const fmc_pack *p, uint32_t tile)
{
    uint32_t i = tile * FMC_TILE_ROWS + threadIdx.x;
    if (threadIdx.x < FMC_TILE_ROWS)
        power[threadIdx.x] = i < p->m ? 1.0f / p->row_scale[i] : 1.0f;
}

FMC_DEVICE uint32_t pack_pair(bool f16, float a, float b)
{
    return f16 ? fmc_pack_f16(a, b) : fmc_pack_bf16(a, b);
}

/* The remainder of rounding v; 0 where it is not finite. */
FMC_DEVICE float rest_of(bool f16, float v)
{
    uint32_t r = pack_pair(f16, v, 0.0f);
    float rest = v - (f16 ? fmc_from_f16(r) : __uint_as_float(r << 16));
    return isfinite(rest) ? rest : 0.0f;
}

FMC_DEVICE void settle_pack(fmc_pack *p, uint32_t tiles)
{
    if (!p->from)
        return;
    uint32_t begin = (uint32_t)*p->from, tile = fmc_segment_tile(begin, p->nth);
    p->m = (uint32_t)*p->to_row - begin;
    p->rows += begin;
    p->to += (size_t)tile * tiles * fmc_row_tile(p->int8);
    if (p->rest)
        p->rest += (size_t)tile * tiles * fmc_row_tile(p->int8);
    if (p->row_scale)
        p->row_scale += (size_t)tile * FMC_TILE_ROWS;
}

/* Packs the block's tiles as int8. */
FMC_DEVICE void pack_int8(const fmc_pack *p, uint32_t tile, uint32_t tiles)
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, i = tile * FMC_TILE_ROWS + g;
    size_t row = i < p->m ? row_of(p->rows, p->first, i) : 0;
    for (uint32_t j = threadIdx.x / 32; j < PACK_TILES; j += blockDim.x / 32) {
        uint32_t kt = blockIdx.y * PACK_TILES + j, q[4];
        float scale[2];
        if (kt >= tiles)
            break;
        for (uint32_t b = 0; b < 2; b++) {
            float v[8];
            for (uint32_t e = 0; e < 8; e++) {
                uint32_t k = kt * FMC_TILE_K + 32 * b + fmc_k8(t, e);
                v[e] = i < p->m ? pack_value(p, row, k) : 0.0f;
            }
            scale[b] = fmc_quantise(q + 2 * b, v);
        }
        unsigned char *to = p->to + ((size_t)tile * tiles + kt) * FMC_TILE_X8;
        *(uint4 *)(void *)(to + 16 * lane) = make_uint4(q[0], q[1], q[2], q[3]);
        if (t == 0)
            *(float2 *)(void *)(to + 512 + 8 * g) = make_float2(scale[0], scale[1]);
    }
}

/* A block computes the scales of 8 rows. */
__global__ void k_fast_powers(const fmc_pack *list, uint32_t count)
{
    FMC_SHARED(float, power, [FMC_TILE_ROWS]);
    uint32_t at = 0;
    fmc_take_turn();
    while (at + 1 < count && list[at + 1].begin <= blockIdx.x)
        at++;
    fmc_pack p = list[at];
    uint32_t tile = blockIdx.x - p.begin;
    settle_pack(&p, (p.k + FMC_TILE_K - 1) / FMC_TILE_K);
    if (p.scaled && tile * FMC_TILE_ROWS < p.m)
        row_powers(power, &p, tile);
}

/* A block packs 8 rows by PACK_TILES tiles of k, chosen by blockIdx.y; warps take turns. */
__global__ void k_fast_pack(const fmc_pack *list, uint32_t count)
{
    FMC_SHARED(float, power, [FMC_TILE_ROWS]);
    uint32_t at = 0;
    fmc_take_turn();
    while (at + 1 < count && list[at + 1].begin <= blockIdx.x)
        at++;
    fmc_pack p = list[at];
    uint32_t tile = blockIdx.x - p.begin, tiles = (p.k + FMC_TILE_K - 1) / FMC_TILE_K;
    settle_pack(&p, tiles);
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, i = tile * FMC_TILE_ROWS + g;
    bool f16 = p.row_scale != NULL;
    if (blockIdx.y * PACK_TILES >= tiles || tile * FMC_TILE_ROWS >= p.m)
        return;
    if (p.int8) {
        pack_int8(&p, tile, tiles);
        return;
    }
    if (f16 && p.scaled)
        take_powers(power, &p, tile);
    else if (f16)
        row_powers(power, &p, tile);
    __syncthreads();
    float times = f16 ? power[g] : 1.0f;
    size_t row = i < p.m ? row_of(p.rows, p.first, i) : 0;
    for (uint32_t j = threadIdx.x / 32; j < PACK_TILES; j += blockDim.x / 32) {
        uint32_t kt = blockIdx.y * PACK_TILES + j;
        if (kt >= tiles)
            break;
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t r[4], rest[4];
            for (uint32_t q = 0; q < 4; q++) {
                uint32_t k = kt * FMC_TILE_K + half * 32 + 8 * q + 2 * t;
                float a = i < p.m ? pack_value(&p, row, k) * times : 0.0f;
                float b = i < p.m ? pack_value(&p, row, k + 1) * times : 0.0f;
                r[q] = pack_pair(f16, a, b);
                rest[q] = pack_pair(f16, rest_of(f16, a), rest_of(f16, b));
            }
            size_t to = ((size_t)tile * tiles + kt) * FMC_TILE_X + half * 512 + 16 * lane;
            *(uint4 *)(void *)(p.to + to) = make_uint4(r[0], r[1], r[2], r[3]);
            if (p.rest)
                *(uint4 *)(void *)(p.rest + to) = make_uint4(rest[0], rest[1], rest[2], rest[3]);
        }
    }
}

/* ---- sums ---- */

FMC_DEVICE uint32_t split_tiles(uint32_t k)
{
    uint32_t each = (tiles_of(k) + FMC_SPLITS_MAX - 1) / FMC_SPLITS_MAX;
    return each < 2 ? 2 : each;
}

/* Sets the rows of jobs that have segments, before the products are launched. */
__global__ void k_fast_settle(fmc_job *to, const fmc_job *list, uint32_t count)
{
    for (uint32_t i = (uint32_t)fmc_index(); i < count; i += (uint32_t)fmc_stride()) {
        fmc_job p = list[i];
        if (p.from) {
            uint32_t begin = (uint32_t)*p.from, tile = fmc_segment_tile(begin, p.nth);
            size_t bytes = (size_t)tile * tiles_of(p.k) * fmc_row_tile(p.int8);
            p.m = (uint32_t)*p.to - begin;
            p.rows += begin;
            p.x = p.x ? p.x + bytes : NULL;
            p.rest = p.rest ? p.rest + bytes : NULL;
            p.row_scale = p.row_scale ? p.row_scale + (size_t)tile * FMC_TILE_ROWS : NULL;
        }
        to[i] = p;
    }
}

/* One step of 16 k: W's operand (and PAIR's second) times one tile of rows. */
template <int kind>
FMC_DEVICE void step_mma(float acc[4], const uint32_t a[4], const uint32_t a2[4],
                         const uint32_t b[2], const uint32_t rest[2], bool split)
{
    fmc_mma<kind>(acc, a, b);
    if (kind == FMC_PAIR)
        fmc_mma<kind>(acc, a2, b);
    if (split)
        fmc_mma<kind>(acc, a, rest);
}

/* ---- few rows ---- */

/* With six stages of bf16, each of two blocks on a multiprocessor has 80 KB of W in flight: the
 * bytes that an H200's memory delivers in 4.4 us, requested before the kernel's turn. */
template <int kind> struct fmc_ring_of {
    static constexpr unsigned stages = fmc_tile<kind>::stage > 2048 ? 3 : 6;
    static constexpr unsigned fewer = stages == 6 && fmc_tile<kind>::stage > 1100 ? 4 : 0;
    static constexpr unsigned stage = FMC_SPLITS_MAX * fmc_tile<kind>::stage; /* for all warps */
};

/* Loads a lane's four elements of each step of the tile from unpacked x, at 2t of a row. */
FMC_DEVICE void direct_load(float v[16], const float *x, uint32_t tile, uint32_t k, bool pairs)
{
    uint32_t at = tile * FMC_TILE_K, t = threadIdx.x % 4;
    x += at;
    if (pairs && at + FMC_TILE_K <= k) {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            float2 two = *(const float2 *)(const void *)(x + 8 * i);
            v[2 * i] = two.x;
            v[2 * i + 1] = two.y;
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 16; i++)
        v[i] = at + 8 * (i / 2) + 2 * t + i % 2 < k ? x[8 * (i / 2) + i % 2] : 0.0f;
}

/* The tile in `stage` times up to two tiles of rows. */
template <int kind, int row_tiles, bool direct, bool split>
FMC_DEVICE void few_tile(float acc[row_tiles][4], const unsigned char *stage, const fmc_job *p,
                         const float xv[16], uint32_t tiles, uint32_t tile, unsigned lane)
{
    const unsigned char *body = stage + fmc_tile<kind>::head;
    fmc_lane l;
    fmc_lane_load<kind>(&l, stage, body, lane);
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        uint32_t b[row_tiles][4], rest[row_tiles][4];
#pragma unroll
        for (int r = 0; r < row_tiles; r++) {
            size_t at = ((size_t)r * tiles + tile) * FMC_TILE_X + half * 512 + 16 * lane;
            bool in = r == 0 || p->m > r * FMC_TILE_ROWS;
            uint4 none = make_uint4(0, 0, 0, 0);
            if (direct)
                for (unsigned i = 0; i < 4; i++)
                    b[r][i] = fmc_pack_bf16(xv[8 * half + 2 * i], xv[8 * half + 2 * i + 1]);
            else
                fmc_put_words(b[r], in ? fmc_words(p->x + at) : none);
            if (split)
                fmc_put_words(rest[r], in ? fmc_words(p->rest + at) : none);
        }
#pragma unroll
        for (unsigned s = 0; s < 2; s++) {
            uint32_t a[4], a2[4] = {0, 0, 0, 0};
            fmc_operand<kind>(a, &l, body, lane, 2 * half + s, false);
            if (kind == FMC_PAIR)
                fmc_operand<kind>(a2, &l, body, lane, 2 * half + s, true);
#pragma unroll
            for (int r = 0; r < row_tiles; r++)
                step_mma<kind>(acc[r], a, a2, b[r] + 2 * s, rest[r] + 2 * s, split);
        }
    }
}

template <int kind, int row_tiles, bool direct, bool split>
__global__ void __launch_bounds__(256, 2)
    k_fast_few(const fmc_job *list, uint32_t count, unsigned stages)
{
    constexpr unsigned bytes = fmc_tile<kind>::stage;
    constexpr unsigned rows = FMC_TILE_ROWS * row_tiles;
    FMC_SHARED_DYNAMIC(unsigned char, ring);
    FMC_SHARED(float, part, [FMC_SPLITS_MAX][rows][FMC_OUTPUTS + 1]);
    const fmc_job p = *job_of(list, count);
    uint32_t panel = blockIdx.x - p.begin, tiles = tiles_of(p.k), each = split_tiles(p.k);
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t from = warp * each, to = from + each < tiles ? from + each : tiles;
    unsigned char *mine = ring + warp * stages * bytes;
    float acc[row_tiles][4], xv[16], next[16];
    fmc_let_next();
    for (uint32_t i = 0; i + 1 < stages && from < to && p.m > 0; i++)
        ring_copy<kind>(mine + i * bytes, &p, panel, tiles, from + i, from + i < to, lane);
    fmc_wait_for_turn();
    if (p.m == 0)
        return;
#pragma unroll
    for (int r = 0; r < row_tiles; r++)
        acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = 0.0f;
    /* a missing row is replaced by the first: its sums are not stored */
    const float *x =
        p.floats + row_of(p.rows, p.first, lane / 4 < p.m ? lane / 4 : 0) * p.ldx + lane % 4 * 2;
    bool pairs = p.ldx % 2 == 0 && (uintptr_t)p.floats % 8 == 0;
    if (direct && from < to)
        direct_load(next, x, from, p.k, pairs);
    unsigned at = 0, free = stages - 1;
    for (uint32_t tile = from; tile < to; tile++) {
        uint32_t ahead = tile + stages - 1;
        ring_wait<fmc_ring_of<kind>::stages, fmc_ring_of<kind>::fewer>(stages);
        __syncwarp();
        ring_copy<kind>(mine + free * bytes, &p, panel, tiles, ahead, ahead < to, lane);
        if (direct) {
#pragma unroll
            for (int i = 0; i < 16; i++)
                xv[i] = next[i];
            if (tile + 1 < to)
                direct_load(next, x, tile + 1, p.k, pairs);
        }
        few_tile<kind, row_tiles, direct, split>(acc, mine + at * bytes, &p, xv, tiles, tile, lane);
        at = ring_next(at, stages);
        free = ring_next(free, stages);
    }
    uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < row_tiles; r++)
#pragma unroll
        for (unsigned i = 0; i < 4; i++)
            part[warp][8 * r + 2 * t + i % 2][g + 8 * (i / 2)] = acc[r][i];
    __syncthreads();
    uint32_t i = threadIdx.x / FMC_OUTPUTS, n = threadIdx.x % FMC_OUTPUTS;
    if (i < rows && i < p.m && panel * FMC_OUTPUTS + n < p.n) {
        float sum = part[0][i][n];
        for (uint32_t s = 1; s * each < tiles; s++)
            sum = sum + part[s][i][n];
        finish(&p, i, panel * FMC_OUTPUTS + n, sum);
    }
}

/* ---- many rows ---- */

/* 4 warps along the outputs (2 panels each), 2 along the rows (row_tiles each). */
template <int kind, int row_tiles, bool split> struct many {
    static constexpr unsigned rows = 2 * FMC_TILE_ROWS * row_tiles;
    static constexpr unsigned w_bytes = MANY_PANELS * fmc_tile<kind>::stage;
    static constexpr unsigned x_bytes = 2 * row_tiles * FMC_TILE_X;
    static constexpr unsigned stage = w_bytes + x_bytes * (split ? 2 : 1);
    /* Two where three would exceed the shared memory of a block of sm_80. */
    static constexpr unsigned stages = kind == FMC_PAIR ? 2 : 3;
};

/* The block's place in its product. */
typedef struct many_place {
    uint32_t panel, row_tile; /* the first ones */
    uint32_t panels, row_tiles, tiles;
} many_place;

/* `count` pieces of this thread, of panels (tiles of rows) first, first + step, ..: beyond `last`
 * the last one's, whose sums are not stored. No branches: it overlaps each tile's mma. */
template <unsigned step, unsigned count>
FMC_DEVICE void many_pieces(unsigned char *to, const unsigned char *from, size_t stride,
                            uint32_t first, uint32_t last)
{
#pragma unroll
    for (unsigned q = 0; q < count; q++) {
        uint32_t j = first + step * q < last ? first + step * q : last;
        fmc_copy16(to + 16 * FMC_THREADS * q, from + j * stride, true);
    }
}

template <int kind>
FMC_DEVICE void many_copy_w(unsigned char *stage, const fmc_job *p, const many_place *b,
                            uint32_t tile)
{
    constexpr unsigned pieces = fmc_tile<kind>::stage / 16, all = MANY_PANELS * pieces;
    const unsigned char *unit = fmc_unit<kind>(p->w, b->panel, b->tiles, tile);
    const size_t panel_bytes = (size_t)(fmc_unit<kind>(p->w, 1, b->tiles, 0) - p->w);
    const uint32_t last = b->panels - b->panel - 1;
    if constexpr (FMC_THREADS % pieces == 0) {
        many_pieces<FMC_THREADS / pieces, all / FMC_THREADS>(
            stage + 16 * threadIdx.x, fmc_piece<kind>(unit, tile, threadIdx.x % pieces),
            panel_bytes, threadIdx.x / pieces, last);
    } else {
#pragma unroll
        for (unsigned q = 0; q < (all + FMC_THREADS - 1) / FMC_THREADS; q++) {
            const unsigned i = threadIdx.x + q * FMC_THREADS;
            const uint32_t j = i / pieces < last ? i / pieces : last;
            if (i < all)
                fmc_copy16(stage + 16 * i,
                           fmc_piece<kind>(unit + j * panel_bytes, tile, i % pieces), true);
        }
    }
}

template <int kind, int row_tiles, bool split>
FMC_DEVICE void many_copy(unsigned char *stage, const fmc_job *p, const many_place *b,
                          uint32_t tile, bool valid)
{
    typedef many<kind, row_tiles, split> size;
    constexpr unsigned pieces = FMC_TILE_X / 16, step = FMC_THREADS / pieces;
    constexpr unsigned count = 2 * row_tiles / step;
    if (valid) {
        const size_t stride = (size_t)b->tiles * FMC_TILE_X;
        const size_t from =
            b->row_tile * stride + (size_t)tile * FMC_TILE_X + 16 * (threadIdx.x % pieces);
        unsigned char *to = stage + size::w_bytes + 16 * threadIdx.x;
        const uint32_t first = threadIdx.x / pieces, last = b->row_tiles - b->row_tile - 1;
        many_copy_w<kind>(stage, p, b, tile);
        many_pieces<step, count>(to, p->x + from, stride, first, last);
        if (split)
            many_pieces<step, count>(to + size::x_bytes, p->rest + from, stride, first, last);
    }
    fmc_copy_commit();
}

template <int kind, int row_tiles, bool split>
FMC_DEVICE void many_tile(float acc[2][row_tiles][4], const unsigned char *stage)
{
    typedef many<kind, row_tiles, split> size;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned char *w = stage + warp % 4 * 2 * fmc_tile<kind>::stage;
    const unsigned char *x = stage + size::w_bytes + warp / 4 * row_tiles * FMC_TILE_X + 16 * lane;
    fmc_lane l[2];
#pragma unroll
    for (unsigned j = 0; j < 2; j++) {
        const unsigned char *head = w + j * fmc_tile<kind>::stage;
        fmc_lane_load<kind>(&l[j], head, head + fmc_tile<kind>::head, lane);
    }
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        uint32_t a[2][2][4], a2[2][2][4];
#pragma unroll
        for (unsigned j = 0; j < 2; j++)
#pragma unroll
            for (unsigned s = 0; s < 2; s++) {
                const unsigned char *body = w + j * fmc_tile<kind>::stage + fmc_tile<kind>::head;
                fmc_operand<kind>(a[j][s], &l[j], body, lane, 2 * half + s, false);
                if (kind == FMC_PAIR)
                    fmc_operand<kind>(a2[j][s], &l[j], body, lane, 2 * half + s, true);
            }
#pragma unroll
        for (int r = 0; r < row_tiles; r++) {
            uint32_t b[4], rest[4] = {0, 0, 0, 0};
            fmc_put_words(b, fmc_words(x + r * FMC_TILE_X + half * 512));
            if (split)
                fmc_put_words(rest, fmc_words(x + size::x_bytes + r * FMC_TILE_X + half * 512));
#pragma unroll
            for (unsigned s = 0; s < 2; s++)
#pragma unroll
                for (unsigned j = 0; j < 2; j++)
                    step_mma<kind>(acc[j][r], a[j][s], a2[j][s], b + 2 * s, rest + 2 * s, split);
        }
    }
}

template <int row_tiles>
FMC_DEVICE void many_finish(const fmc_job *p, const many_place *b,
                            const float total[2][row_tiles][4], uint32_t part)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (unsigned j = 0; j < 2; j++)
#pragma unroll
        for (int r = 0; r < row_tiles; r++)
#pragma unroll
            for (unsigned q = 0; q < 4; q++) {
                uint32_t n = (b->panel + warp % 4 * 2 + j) * FMC_OUTPUTS + g + 8 * (q / 2);
                uint32_t i = (b->row_tile + warp / 4 * row_tiles + (unsigned)r) * FMC_TILE_ROWS +
                             2 * t + q % 2;
                if (n >= p->n || i >= p->m)
                    continue;
                if (p->parts)
                    p->parts[((size_t)part * p->m + i) * p->n + n] = total[j][r][q];
                else
                    finish(p, i, n, total[j][r][q]);
            }
}

template <int kind, int row_tiles, bool split>
__global__ void __launch_bounds__(256, 1)
    k_fast_many(const fmc_job *list, uint32_t count, unsigned stages)
{
    typedef many<kind, row_tiles, split> size;
    FMC_SHARED_DYNAMIC(unsigned char, ring);
    fmc_take_turn();
    const fmc_job *p = job_of(list, count); /* read from memory: registers are scarce */
    many_place b;
    uint32_t each = split_tiles(p->k), index = blockIdx.x - p->begin, part = 0;
    b.tiles = tiles_of(p->k);
    b.panels = (p->n + FMC_OUTPUTS - 1) / FMC_OUTPUTS;
    b.row_tiles = (p->m + FMC_TILE_ROWS - 1) / FMC_TILE_ROWS;
    uint32_t wide = (p->most + size::rows - 1) / size::rows, from = 0, to = b.tiles;
    b.row_tile = index % wide * 2 * row_tiles;
    index /= wide;
    if (b.row_tile >= b.row_tiles)
        return;
    if (p->parts) {
        uint32_t parts = (b.tiles + each - 1) / each;
        part = index % parts;
        index /= parts;
        from = part * each;
        to = from + each < to ? from + each : to;
    }
    b.panel = index * MANY_PANELS;
    bool busy = b.panel + threadIdx.x / 32 % 4 * 2 < b.panels &&
                b.row_tile + threadIdx.x / 128 * row_tiles < b.row_tiles;
    float acc[2][row_tiles][4], total[2][row_tiles][4];
#pragma unroll
    for (int i = 0; i < 8 * row_tiles; i++)
        acc[i / 4 / row_tiles][i / 4 % row_tiles][i % 4] = 0.0f;
    for (uint32_t i = 0; i + 1 < stages; i++)
        many_copy<kind, row_tiles, split>(ring + i * size::stage, p, &b, from + i, from + i < to);
    unsigned at = 0, free = stages - 1;
    for (uint32_t tile = from; tile < to; tile++) {
        uint32_t ahead = tile + stages - 1;
        ring_wait<size::stages>(stages);
        __syncthreads(); /* all threads see this tile, and none reads the one before */
        many_copy<kind, row_tiles, split>(ring + free * size::stage, p, &b, ahead, ahead < to);
        if (busy)
            many_tile<kind, row_tiles, split>(acc, ring + at * size::stage);
        at = ring_next(at, stages);
        free = ring_next(free, stages);
        if ((tile + 1) % each == 0 || tile + 1 == to) {
            bool first = tile - from < each;
#pragma unroll
            for (int i = 0; i < 8 * row_tiles; i++) {
                float *a = &acc[i / 4 / row_tiles][i / 4 % row_tiles][i % 4];
                float *s = &total[i / 4 / row_tiles][i / 4 % row_tiles][i % 4];
                *s = first ? *a : *s + *a;
                *a = 0.0f;
            }
        }
    }
    many_finish<row_tiles>(p, &b, total, part);
}

__global__ void k_fast_add_parts(const fmc_job *list, uint32_t count)
{
    fmc_take_turn();
    const fmc_job p = *job_of(list, count);
    uint32_t tiles = tiles_of(p.k), each = split_tiles(p.k);
    uint64_t at = (uint64_t)(blockIdx.x - p.begin) * FMC_THREADS + threadIdx.x;
    size_t all = (size_t)p.m * p.n;
    if (at >= all)
        return;
    float sum = p.parts[at];
    for (uint32_t s = 1; s * each < tiles; s++)
        sum = sum + p.parts[s * all + at];
    finish(&p, (uint32_t)(at / p.n), (uint32_t)(at % p.n), sum);
}

#endif
