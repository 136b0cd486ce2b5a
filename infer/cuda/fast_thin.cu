/* fast_thin.cu - products of many rows with up to 64 outputs whose operands are pairs of bf16: the
 * low-rank terms of mode bf16. Bound by the bytes of x, so x is read once, as it lies in memory,
 * and becomes two bf16 in registers: 4 bytes an element, where packing first is 4 + 4 + 4. The
 * order, and so every bit, is fast.h's. */
#include "infer/cuda/fast_tile.h"

#define THIN_OUTPUTS 64u
#define THIN_LEAST_ROWS 65u
#define THIN_TILES 4u                                   /* of 8 rows, of a warp */
#define THIN_ROWS (8u * THIN_TILES * FMC_THREADS / 32u) /* of a block */
#define THIN_JOBS 256u
#define THIN_PARTS_BYTES (64u << 20)

/* 32 k of a warp's rows: row g of each tile, k 2t and 2t + 1 of each eight; zeros outside. */
template <bool turned>
FMC_DEVICE void thin_load(float v[THIN_TILES][8], const fmc_job *p, uint32_t row, uint32_t k,
                          bool pairs)
{
    unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (unsigned r = 0; r < THIN_TILES; r++) {
        uint32_t i = row + 8 * r + g;
        const float *x = p->floats + (turned ? i + p->first : (size_t)(i + p->first) * p->ldx);
#pragma unroll
        for (unsigned e = 0; e < 4; e++) {
            uint32_t at = k + 8 * e + 2 * t;
            if (!turned && pairs) {
                float2 two = make_float2(0.0f, 0.0f);
                if (i < p->m && at < p->k)
                    two = *(const float2 *)(const void *)(x + at);
                v[r][2 * e] = two.x;
                v[r][2 * e + 1] = two.y;
            } else {
#pragma unroll
                for (unsigned o = 0; o < 2; o++)
                    v[r][2 * e + o] = i < p->m && at + o < p->k
                                          ? x[turned ? (size_t)(at + o) * p->ldx : at + o]
                                          : 0.0f;
            }
        }
    }
}

FMC_DEVICE float thin_rest(float v, float rounded)
{
    float rest = v - rounded;
    return isfinite(rest) ? rest : 0.0f;
}

/* 32 k, two steps: of W's tile (PAIR) from step 2 half on. */
template <int panels>
FMC_DEVICE void thin_half(float acc[panels][THIN_TILES][4], const float v[THIN_TILES][8],
                          const unsigned char *const w[panels], size_t at)
{
    uint32_t b[THIN_TILES][4], rest[THIN_TILES][4];
#pragma unroll
    for (unsigned r = 0; r < THIN_TILES; r++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++) {
            float low = v[r][2 * e], high = v[r][2 * e + 1];
            uint32_t two = b[r][e] = fmc_pack_bf16(low, high);
            rest[r][e] = fmc_pack_bf16(thin_rest(low, __uint_as_float(two << 16)),
                                       thin_rest(high, __uint_as_float(two & 0xffff0000u)));
        }
#pragma unroll
    for (unsigned s = 0; s < 2; s++)
#pragma unroll
        for (int j = 0; j < panels; j++) {
            uint32_t a[4], a2[4];
            fmc_put_words(a, fmc_words(w[j] + at + 512 * s));
            fmc_put_words(a2, fmc_words(w[j] + at + 2048 + 512 * s));
#pragma unroll
            for (unsigned r = 0; r < THIN_TILES; r++) {
                fmc_mma_bf16(acc[j][r], a, b[r] + 2 * s);
                fmc_mma_bf16(acc[j][r], a2, b[r] + 2 * s);
                fmc_mma_bf16(acc[j][r], a, rest[r] + 2 * s);
            }
        }
}

/* A block: a part of k of THIN_ROWS rows and all outputs, into p.parts [splits][m][n] (or
 * [n][m]). */
template <int panels, bool turned>
__global__ void __launch_bounds__(FMC_THREADS, 1) k_fast_thin(const fmc_job *list, uint32_t count)
{
    uint32_t job = 0, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    while (job + 1 < count && list[job + 1].begin <= blockIdx.x)
        job++;
    const fmc_job p = list[job];
    uint32_t tiles = (p.k + FMC_TILE_K - 1) / FMC_TILE_K;
    uint32_t each = (tiles + FMC_SPLITS_MAX - 1) / FMC_SPLITS_MAX;
    each = each < 2 ? 2 : each;
    uint32_t parts = (tiles + each - 1) / each, index = blockIdx.x - p.begin, part = index % parts;
    uint32_t from = part * each, to = from + each < tiles ? from + each : tiles;
    uint32_t row = index / parts * THIN_ROWS + threadIdx.x / 32 * 8 * THIN_TILES;
    bool pairs = ((p.ldx | p.k) & 1u) == 0 && ((uintptr_t)p.floats & 7u) == 0;
    if (row >= p.m)
        return;
    const unsigned char *w[panels];
    float acc[panels][THIN_TILES][4], now[THIN_TILES][8], next[THIN_TILES][8];
#pragma unroll
    for (int j = 0; j < panels; j++) { /* the last once more where there are fewer */
        uint32_t all = (p.n + FMC_OUTPUTS - 1) / FMC_OUTPUTS, panel = (uint32_t)j;
        panel = panel < all ? panel : all - 1;
        w[j] = fmc_unit<FMC_PAIR>(p.w, panel, tiles, 0) + 16 * lane;
    }
#pragma unroll
    for (int i = 0; i < panels * (int)THIN_TILES * 4; i++)
        acc[i / 4 / (int)THIN_TILES][i / 4 % (int)THIN_TILES][i % 4] = 0.0f;
    thin_load<turned>(next, &p, row, from * FMC_TILE_K, pairs);
#pragma unroll 1
    for (uint32_t half = 2 * from; half < 2 * to; half++) {
#pragma unroll
        for (unsigned i = 0; i < THIN_TILES * 8; i++)
            now[i / 8][i % 8] = next[i / 8][i % 8];
        if (half + 1 < 2 * to)
            thin_load<turned>(next, &p, row, (half + 1) * 32, pairs);
        thin_half<panels>(acc, now, w, (size_t)(half / 2) * 4096 + half % 2 * 1024);
    }
#pragma unroll
    for (int i = 0; i < panels * (int)THIN_TILES * 4; i++) {
        uint32_t j = (uint32_t)i / 4 / THIN_TILES, r = (uint32_t)i / 4 % THIN_TILES, q = i % 4;
        uint32_t n = j * FMC_OUTPUTS + g + 8 * (q / 2), at = row + 8 * r + 2 * t + q % 2;
        size_t to = p.across ? (size_t)n * p.m + at : (size_t)at * p.n + n;
        if (n < p.n && at < p.m)
            p.parts[(size_t)part * p.m * p.n + to] = acc[j][r][q];
    }
}

/* ---- the host's side ---- */

bool fmc_is_thin(const fmc_sum *s)
{
    return s->kind == FMC_PAIR && s->p.split && s->n <= THIN_OUTPUTS && s->p.m >= THIN_LEAST_ROWS &&
           !s->p.rows &&
           (uint64_t)fmc_splits(s->k) * s->p.m * s->n * sizeof(float) <= THIN_PARTS_BYTES;
}

static unsigned way_of(const fmc_sum *s)
{
    return (s->n <= 16 ? 0 : s->n <= 32 ? 1 : 2) + (s->turned ? 3u : 0u);
}

static fmc_job job_for(const fmc_sum *s, unsigned char *parts)
{
    fmc_job j = {};
    j.y = s->p.y;
    j.ldy = s->p.ldy;
    j.w = s->tiles;
    j.floats = s->x;
    j.ldx = s->ldx;
    j.bias = s->p.bias;
    j.parts = (float *)(void *)parts;
    j.alpha = s->alpha;
    j.first = s->p.first;
    j.m = s->p.m;
    j.n = s->n;
    j.k = s->k;
    j.add = s->add;
    j.dense = s->dense;
    j.across = s->across;
    return j;
}

static uint64_t parts_bytes(const fmc_sum *s)
{
    return ((uint64_t)fmc_splits(s->k) * s->p.m * s->n * sizeof(float) + 255) / 256 * 256;
}

/* All of one way in a launch. */
static void run_way(fmc_device *d, const fmc_sum *list, uint32_t count, unsigned way)
{
    static void (*const kernels[6])(const fmc_job *, uint32_t) = {
        k_fast_thin<1, false>, k_fast_thin<2, false>, k_fast_thin<4, false>,
        k_fast_thin<1, true>,  k_fast_thin<2, true>,  k_fast_thin<4, true>};
    fmc_job jobs[THIN_JOBS];
    uint64_t bytes = 0;
    uint32_t n = 0, blocks = 0;
    for (uint32_t i = 0; i < count; i++)
        if (fmc_is_thin(&list[i]) && way_of(&list[i]) == way)
            bytes += parts_bytes(&list[i]);
    if (bytes == 0)
        return;
    unsigned char *parts = (unsigned char *)fmc_scratch_get(d, FMC_SCRATCH_PRODUCT, bytes);
    if (!parts)
        return;
    for (uint32_t i = 0; i < count; i++) {
        const fmc_sum *s = &list[i];
        if (!fmc_is_thin(s) || way_of(s) != way)
            continue;
        jobs[n] = job_for(s, parts);
        jobs[n++].begin = blocks;
        blocks += fmc_ceil(s->p.m, THIN_ROWS) * fmc_splits(s->k);
        parts += parts_bytes(s);
    }
    const fmc_job *args = (const fmc_job *)fmc_args(d, jobs, n * sizeof jobs[0]);
    if (!args)
        return;
    FMC_RUN(d, kernels[way], blocks, FMC_THREADS, 0, args, n);
    for (uint32_t i = 0; i < n; i++)
        if (jobs[i].across) { /* from here on an ordinary product of the other side's */
            uint32_t m = jobs[i].m;
            jobs[i].m = jobs[i].n;
            jobs[i].n = m;
        }
    fmc_add_parts(d, jobs, n);
}

void fmc_thin_sums(fmc_device *d, const fmc_sum *list, uint32_t count, bool *taken)
{
    bool any = false;
    for (uint32_t i = 0; i < count; i++)
        any = (taken[i] = fmc_is_thin(&list[i])) || any;
    for (unsigned way = 0; way < 6 && any; way++)
        run_way(d, list, count, way);
}
