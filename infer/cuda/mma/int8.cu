/* int8.cu - kernels of products of whole numbers (int8.h).
 *
 * k_int8_few, 8 or 32 rows a block: for few rows, and where larger tiles leave the GPU idle. The
 * eight warps of a block take a panel's tiles in turn, each through a ring of its own; after a
 * round their dot products are in shared memory, and one thread for each sum adds them in order.
 * k_int8_many: sums stay with their thread, which walks all k. Neither cuts k. */
#include "infer/cuda/mma/int8.h"
#include "infer/cuda/mma/job.h"

/* ---- few rows ---- */

/* A round: each warp has `each` tiles, one after another. With few rows there is space for two,
 * which share the work besides mma. */
template <int kind, int row_tiles> struct few8 {
    static constexpr unsigned rows = FMC_TILE_ROWS * row_tiles;
    static constexpr unsigned each = row_tiles == 1 ? 2 : 1;          /* tiles of a warp */
    static constexpr unsigned tiles = 8 * each, blocks = 2 * tiles;   /* of 64, 32 k */
    static constexpr unsigned w_bytes = each * fmc_tile<kind>::stage; /* of a warp */
    static constexpr unsigned stages = w_bytes > 2000 ? 3 : w_bytes > 1000 ? 4 : 6;
    /* Two pairs of floats between rows avoid bank conflicts. */
    static constexpr unsigned row_pairs = FMC_OUTPUTS + 2;
    static constexpr unsigned round_bytes = 8 * blocks * rows * row_pairs;
    static constexpr unsigned sums =
        row_tiles > 2 ? row_tiles / 2 : 1; /* sums of a thread, 16 rows apart */
};

/* Where a lane finds x: quants of row g, scales of rows 2t and 2t + 1, of the next tile. Rows from
 * m on do not exist. */
typedef struct few8_x {
    const unsigned char *q, *scale;
    uint32_t q_tile, scale_tile; /* bytes from tile to tile */
    bool in, first, second;
} few8_x;

/* Addresses at tile 0; q: 64 bytes a row, scale: 8 bytes a row. */
FMC_DEVICE few8_x few8_at(const unsigned char *q, const unsigned char *scale, uint32_t q_tile,
                          uint32_t scale_tile, uint32_t m)
{
    unsigned lane = threadIdx.x % 32, t = lane % 4;
    few8_x x = {q + 16 * lane, scale + 16 * t, q_tile,       scale_tile,
                lane / 4 < m,  2 * t < m,      2 * t + 1 < m};
    return x;
}

FMC_DEVICE void few8_skip(few8_x *x, uint32_t tiles)
{
    x->q += (size_t)tiles * x->q_tile;
    x->scale += (size_t)tiles * x->scale_tile;
}

/* Quantises all rows of x into shared memory: m rows of each tile, then their scales. */
FMC_DEVICE few8_x few8_quantise(unsigned char *to, const fmc_job *p, uint32_t tiles)
{
    unsigned lane = threadIdx.x % 32, t = lane % 4;
    uint32_t blocks = 2 * tiles, all = p->m * blocks;
    unsigned char *scales = to + (size_t)64 * p->m * tiles;
    for (uint32_t at = threadIdx.x / 32 * 8; at < all; at += 8 * 8) {
        uint32_t u = at + lane / 4, i = u < all ? u / blocks : 0, b = u - i * blocks, q[2];
        const float *row = p->floats + row_of(p->rows, p->first, i) * p->ldx;
        bool in = u < all && 32 * b < p->k;
        float v[8];
        for (uint32_t e = 0; e < 8; e++)
            v[e] = in ? row[32 * b + fmc_k8(t, e)] : 0.0f;
        float scale = fmc_quantise(q, v);
        if (u < all) {
            uint32_t of_tile = b / 2 * p->m + i;
            *(uint2 *)(void *)(to + of_tile * 64 + 16 * t + 8 * (b % 2)) = make_uint2(q[0], q[1]);
            if (t == 0)
                *(float *)(void *)(scales + of_tile * 8 + 4 * (b % 2)) = scale;
        }
    }
    __syncthreads();
    return few8_at(to, scales, 64 * p->m, 8 * p->m, p->m);
}

/* A lane's part of a tile of rows: quants of row g, both blocks' scales of rows 2t, 2t + 1. */
typedef struct few8_rows {
    uint32_t q[4];
    float2 scale[2];
} few8_rows;

FMC_DEVICE float2 pair_at(const unsigned char *at, bool in)
{
    return in ? *(const float2 *)(const void *)at : make_float2(0.0f, 0.0f);
}

/* Loads from the next tile, or from `on` bytes further on. */
FMC_DEVICE void few8_fetch(few8_rows *to, const few8_x *x, size_t on, bool in)
{
    to->q[0] = to->q[1] = to->q[2] = to->q[3] = 0;
    if (in && x->in)
        fmc_put_words(to->q, fmc_words(x->q + on));
    to->scale[0] = pair_at(x->scale + on, in && x->first);
    to->scale[1] = pair_at(x->scale + on + 8, in && x->second);
}

/* Loads one tile of rows for both of a warp's tiles, of which `left` exist. */
FMC_DEVICE void few8_fetch_two(few8_rows to[2], const few8_x *x, uint32_t left)
{
    few8_x second = *x;
    few8_skip(&second, 1);
    few8_fetch(&to[0], x, 0, left > 0);
    few8_fetch(&to[1], &second, 0, left > 1);
}

/* Multiplies one tile of W with the rows: stores the dot products, each with the product of its
 * scales, among those of the round from the tile's first block on. */
template <int kind, int row_tiles>
FMC_DEVICE void few8_tile(float2 *pair, const unsigned char *stage, const few8_rows x[row_tiles],
                          uint32_t m)
{
    typedef few8<kind, row_tiles> size;
    unsigned lane = threadIdx.x % 32;
    fmc_lane8 l;
    fmc_lane8_load<kind>(&l, stage, stage + fmc_tile<kind>::head, lane);
    pair += lane % 4 * 2 * size::row_pairs + lane / 4;
#pragma unroll
    for (unsigned r = 0; r < row_tiles; r++) {
        if (m <= r * FMC_TILE_ROWS)
            break;
#pragma unroll
        for (unsigned b = 0; b < 2; b++) {
            uint32_t a[4];
            int32_t d[4];
            fmc_operand8<kind>(a, &l, b);
            fmc_mma_s8(d, a, x[r].q + 2 * b, fmc_dot_of<kind>::start);
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                float scale = b ? x[r].scale[i % 2].y : x[r].scale[i % 2].x;
                pair[(b * size::rows + 8 * r + i % 2) * size::row_pairs + 8 * (i / 2)] =
                    make_float2(fmc_dot<kind>(d[i]), l.scale[i / 2][b] * scale);
            }
        }
    }
}

/* A warp's position in the tiles of W. */
typedef struct few8_w {
    const unsigned char *at; /* of the tiles to be copied next */
    uint32_t tile, tiles;
} few8_w;

template <int kind, int row_tiles> FMC_DEVICE void few8_copy(unsigned char *stage, few8_w *w)
{
    typedef few8<kind, row_tiles> size;
    constexpr unsigned bytes = fmc_tile<kind>::stage;
    unsigned lane = threadIdx.x % 32;
    static_assert(fmc_tile<kind>::head == 0, "tiles lie one after another");
    if (w->tile < w->tiles) { /* the tile behind the last one may be another panel's, or none */
        uint32_t there = size::each == 1 || w->tile + 1 < w->tiles ? size::w_bytes : bytes;
#pragma unroll
        for (unsigned i = lane; i < size::w_bytes / 16; i += 32)
            if (size::each == 1 || 16 * i < there)
                fmc_copy16(stage + 16 * i, w->at + 16 * i, true);
    }
    fmc_copy_commit();
    w->at += size::tiles * bytes;
    w->tile += size::tiles;
}

/* Adds the blocks of a round to one sum, in order. */
template <int kind, int row_tiles>
FMC_DEVICE float few8_chain(float sum, const float2 *pair, uint32_t blocks, uint32_t i, uint32_t n)
{
    typedef few8<kind, row_tiles> size;
#pragma unroll 8
    for (uint32_t b = 0; b < blocks; b++) {
        float2 d = pair[(b * size::rows + i) * size::row_pairs + n];
        sum = fmaf(d.x, d.y, sum);
    }
    return sum;
}

template <int kind, int row_tiles>
__global__ void __launch_bounds__(256, 2)
    k_int8_few(const fmc_job *list, uint32_t count, unsigned stages)
{
    typedef few8<kind, row_tiles> size;
    FMC_SHARED_DYNAMIC(unsigned char, room);
    const fmc_job p = *job_of(list, count);
    float2 *round = (float2 *)(void *)(room + 8 * stages * size::w_bytes); /* x follows */
    uint32_t index = blockIdx.x - p.begin, groups = (p.most + size::rows - 1) / size::rows;
    uint32_t panel = index / groups, row = index % groups * size::rows, tiles = tiles_of(p.k);
    uint32_t m = p.m - row < size::rows ? p.m - row : size::rows; /* rows of this block */
    unsigned warp = threadIdx.x / 32, at = 0, free = stages - 1;
    unsigned char *mine = room + warp * stages * size::w_bytes;
    float2 *pair = round + warp * size::each * 2 * size::rows * size::row_pairs;
    uint32_t i = threadIdx.x / FMC_OUTPUTS, n = threadIdx.x % FMC_OUTPUTS,
             first = warp * size::each;
    size_t rows = (size_t)tiles * FMC_TILE_X8; /* packed: bytes from a tile of rows to the next */
    few8_x x;
    few8_w w = {fmc_unit<kind>(p.w, panel, tiles, first), first, tiles};
    few8_rows now[row_tiles > 2 ? row_tiles : 2], next[2];
    float sum[size::sums] = {};
    fmc_let_next();
    for (uint32_t j = 0; j + 1 < stages && row < p.m; j++)
        few8_copy<kind, row_tiles>(mine + j * size::w_bytes, &w);
    fmc_wait_for_turn();
    if (row >= p.m)
        return;
    if (p.x) {
        const unsigned char *packed = p.x + row / FMC_TILE_ROWS * rows;
        x = few8_at(packed, packed + 512, FMC_TILE_X8, FMC_TILE_X8, FMC_TILE_ROWS);
    } else {
        x = few8_quantise((unsigned char *)round + size::round_bytes, &p, tiles);
    }
    few8_skip(&x, first);
    if (row_tiles == 1)
        few8_fetch_two(next, &x, first < tiles ? tiles - first : 0);
    for (uint32_t from = 0; from < tiles; from += size::tiles) {
        uint32_t tile = from + first, left = tile < tiles ? tiles - tile : 0; /* tiles left */
#pragma unroll
        for (int r = 0; r < row_tiles && row_tiles > 1; r++)
            few8_fetch(&now[r], &x, r * rows, left > 0 && m > r * FMC_TILE_ROWS);
        ring_wait<size::stages>(stages);
        __syncwarp();
        few8_copy<kind, row_tiles>(mine + free * size::w_bytes, &w);
        few8_skip(&x, size::tiles);
        if (row_tiles == 1) {
            now[0] = next[0];
            now[1] = next[1];
            few8_fetch_two(next, &x, left > size::tiles ? left - size::tiles : 0);
        }
#pragma unroll
        for (unsigned u = 0; u < size::each; u++)
            if (u < left)
                few8_tile<kind, row_tiles>(pair + u * 2 * size::rows * size::row_pairs,
                                           mine + at * size::w_bytes + u * fmc_tile<kind>::stage,
                                           now + u, m);
        __syncthreads();
        uint32_t blocks = 2 * (tiles - from) < size::blocks ? 2 * (tiles - from) : size::blocks;
#pragma unroll
        for (unsigned j = 0; j < size::sums; j++)
            if (i + 16 * j < m && i < size::rows)
                sum[j] = few8_chain<kind, row_tiles>(sum[j], round, blocks, i + 16 * j, n);
        __syncthreads(); /* the next round writes to the same place */
        at = ring_next(at, stages);
        free = ring_next(free, stages);
    }
#pragma unroll
    for (unsigned j = 0; j < size::sums; j++)
        if (i + 16 * j < m && i < size::rows && panel * FMC_OUTPUTS + n < p.n)
            finish(&p, row + i + 16 * j, panel * FMC_OUTPUTS + n, sum[j]);
}

/* ---- many rows ---- */

/* 2 x 2 warps, each with `panels` panels by row_tiles tiles of rows. */
template <int kind, int panels_, int row_tiles> struct many8 {
    static constexpr unsigned panels = 2 * panels_, tiles = 2 * row_tiles; /* of a block */
    static constexpr unsigned w_bytes = panels * fmc_tile<kind>::stage;
    static constexpr unsigned stage = w_bytes + tiles * FMC_TILE_X8;
    static constexpr unsigned stages = 3, threads = 128;
};

/* The block's place in its product. */
typedef struct many8_place {
    uint32_t panel, row_tile; /* the first ones */
    uint32_t panels, row_tiles, tiles;
} many8_place;

template <int kind, int panels, int row_tiles>
FMC_DEVICE void many8_copy(unsigned char *stage, const fmc_job *p, const many8_place *b,
                           uint32_t tile, bool valid)
{
    typedef many8<kind, panels, row_tiles> size;
    constexpr unsigned pieces = fmc_tile<kind>::stage / 16, x_pieces = FMC_TILE_X8 / 16;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (valid) {
#pragma unroll 1
        for (unsigned j = warp; j < size::panels; j += size::threads / 32) {
            bool in = b->panel + j < b->panels;
            const unsigned char *unit =
                fmc_unit<kind>(p->w, in ? b->panel + j : b->panel, b->tiles, tile);
#pragma unroll
            for (unsigned i = lane; i < pieces; i += 32)
                fmc_copy16(stage + 16 * (j * pieces + i), fmc_piece<kind>(unit, tile, i), in);
        }
#pragma unroll 1
        for (unsigned j = warp; j < size::tiles; j += size::threads / 32) {
            bool in = b->row_tile + j < b->row_tiles;
            const unsigned char *rows =
                p->x +
                ((size_t)(in ? b->row_tile + j : b->row_tile) * b->tiles + tile) * FMC_TILE_X8;
#pragma unroll
            for (unsigned i = lane; i < x_pieces; i += 32)
                fmc_copy16(stage + size::w_bytes + 16 * (j * x_pieces + i), rows + 16 * i, in);
        }
    }
    fmc_copy_commit();
}

FMC_DEVICE void many8_floats(float to[4], const unsigned char *at)
{
    float4 v = *(const float4 *)(const void *)at;
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}

template <int kind, int panels, int row_tiles>
FMC_DEVICE void many8_tile(float sum[panels][row_tiles][4], const unsigned char *stage)
{
    typedef many8<kind, panels, row_tiles> size;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
    const unsigned char *w = stage + warp % 2 * panels * fmc_tile<kind>::stage;
    const unsigned char *x = stage + size::w_bytes + warp / 2 * row_tiles * FMC_TILE_X8;
    fmc_lane8 l[panels];
#pragma unroll
    for (int j = 0; j < panels; j++) {
        const unsigned char *head = w + j * fmc_tile<kind>::stage;
        fmc_lane8_load<kind>(&l[j], head, head + fmc_tile<kind>::head, lane);
    }
#pragma unroll
    for (unsigned b = 0; b < 2; b++) {
        uint32_t a[panels][4];
#pragma unroll
        for (int j = 0; j < panels; j++)
            fmc_operand8<kind>(a[j], &l[j], b);
#pragma unroll
        for (int r = 0; r < row_tiles; r++) {
            const unsigned char *rows = x + r * FMC_TILE_X8;
            uint2 q2 = *(const uint2 *)(const void *)(rows + 16 * lane + 8 * b);
            uint32_t q[2] = {q2.x, q2.y};
            float s[4]; /* [row 2t, 2t + 1][block] */
            many8_floats(s, rows + 512 + 16 * t);
#pragma unroll
            for (int j = 0; j < panels; j++) {
                int32_t d[4];
                fmc_mma_s8(d, a[j], q, fmc_dot_of<kind>::start);
#pragma unroll
                for (unsigned i = 0; i < 4; i++) {
                    float *to = &sum[j][r][i];
                    *to = fmaf(fmc_dot<kind>(d[i]), l[j].scale[i / 2][b] * s[2 * (i % 2) + b], *to);
                }
            }
        }
    }
}

template <int kind, int panels, int row_tiles>
__global__ void __launch_bounds__(128, 2)
    k_int8_many(const fmc_job *list, uint32_t count, unsigned stages)
{
    typedef many8<kind, panels, row_tiles> size;
    FMC_SHARED_DYNAMIC(unsigned char, ring);
    fmc_take_turn();
    const fmc_job *p = job_of(list, count);
    many8_place b;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, at = 0, free = stages - 1;
    uint32_t index = blockIdx.x - p->begin;
    b.tiles = tiles_of(p->k);
    b.panels = (p->n + FMC_OUTPUTS - 1) / FMC_OUTPUTS;
    b.row_tiles = (p->m + FMC_TILE_ROWS - 1) / FMC_TILE_ROWS;
    uint32_t wide = (p->most + FMC_TILE_ROWS * size::tiles - 1) / (FMC_TILE_ROWS * size::tiles);
    b.row_tile = index % wide * size::tiles;
    b.panel = index / wide * size::panels;
    if (b.row_tile >= b.row_tiles)
        return;
    bool busy =
        b.panel + warp % 2 * panels < b.panels && b.row_tile + warp / 2 * row_tiles < b.row_tiles;
    float sum[panels][row_tiles][4];
#pragma unroll
    for (int i = 0; i < 4 * panels * row_tiles; i++)
        sum[i / 4 / row_tiles][i / 4 % row_tiles][i % 4] = 0.0f;
    for (uint32_t i = 0; i + 1 < stages; i++)
        many8_copy<kind, panels, row_tiles>(ring + i * size::stage, p, &b, i, i < b.tiles);
    for (uint32_t tile = 0; tile < b.tiles; tile++) {
        uint32_t ahead = tile + stages - 1;
        ring_wait<size::stages>(stages);
        __syncthreads(); /* all threads see this tile, and none reads the one before */
        many8_copy<kind, panels, row_tiles>(ring + free * size::stage, p, &b, ahead,
                                            ahead < b.tiles);
        if (busy)
            many8_tile<kind, panels, row_tiles>(sum, ring + at * size::stage);
        at = ring_next(at, stages);
        free = ring_next(free, stages);
    }
#pragma unroll
    for (int i = 0; i < 4 * panels * row_tiles; i++) {
        int j = i / 4 / row_tiles, r = i / 4 % row_tiles;
        unsigned q = (unsigned)i % 4;
        uint32_t n =
            (b.panel + warp % 2 * panels + (unsigned)j) * FMC_OUTPUTS + lane / 4 + 8 * (q / 2);
        uint32_t row = (b.row_tile + warp / 2 * row_tiles + (unsigned)r) * FMC_TILE_ROWS +
                       lane % 4 * 2 + q % 2;
        if (n < p->n && row < p->m)
            finish(p, row, n, sum[j][r][q]);
    }
}

/* ---- the host's side ---- */

template <int kind, int row_tiles> static fmc_way few_way(bool direct)
{
    typedef few8<kind, row_tiles> size;
    fmc_way w = {};
    w.run = k_int8_few<kind, row_tiles>;
    w.stages = size::stages;
    w.stage_bytes = 8 * size::w_bytes;
    w.fixed_bytes = size::round_bytes + (direct ? FMC_DIRECT8_ELEMENTS / 64 * 72 : 0);
    w.threads = FMC_THREADS;
    w.rows = size::rows;
    w.panels = 1;
    return w;
}

template <int kind, int panels, int row_tiles> static fmc_way many_way(void)
{
    typedef many8<kind, panels, row_tiles> size;
    fmc_way w = {};
    w.run = k_int8_many<kind, panels, row_tiles>;
    w.stages = size::stages;
    w.stage_bytes = size::stage;
    w.rows = FMC_TILE_ROWS * size::tiles;
    w.panels = size::panels;
    w.threads = size::threads;
    return w;
}

template <int kind> static void ways_of(fmc_way way[FMC_WAYS])
{
    way[FMC_FEW_DIRECT] = few_way<kind, 1>(true);
    way[FMC_FEW] = few_way<kind, 4>(false);
    way[FMC_MANY_64] = many_way<kind, 2, 4>();
    way[FMC_MANY_128] = many_way<kind, 4, 8>();
}

void fmc_int8_ways(fmc_way way[FMC_WAYS], fmc_kind kind)
{
    if (kind == FMC_Q8_0)
        ways_of<FMC_Q8_0>(way);
    else if (kind == FMC_Q4_0)
        ways_of<FMC_Q4_0>(way);
}
