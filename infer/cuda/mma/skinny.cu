/* skinny.cu - products of many rows with up to 64 outputs whose operands are pairs of bf16: the
 * low-rank terms of mode bf16. Bound by the bytes of x, so x is read once, unpacked, and becomes
 * two bf16 in registers: 4 bytes an element, where packing first takes 4 + 4 + 4. Products of the
 * same x share this, up to 64 outputs together. The rounded x is also written out where a large
 * product of x reads it (fmc_sum.cores): 2 bytes more, instead of 4 + 2 by a packing kernel. x may
 * also be computed here, as silu(gate) * up. The order, and so every bit, is fast.h's. */
#include "infer/cuda/mma/tile.h"
#include "infer/cuda/find.h"
#include "infer/cuda/lanes.h"

#define THIN_OUTPUTS 64u
#define THIN_LEAST_ROWS 65u
#define THIN_TILES 4u                                   /* tiles of 8 rows of a warp */
#define THIN_ROWS (8u * THIN_TILES * FMC_THREADS / 32u) /* of a block */
#define THIN_JOBS 256u
#define THIN_PARTS_BYTES (64u << 20)
#ifndef FMC_THIN_LIST_BYTES /* most bytes of parts of a list's products together; tests set less */
#define FMC_THIN_LIST_BYTES THIN_PARTS_BYTES
#endif
#define THIN_PANELS (THIN_OUTPUTS / FMC_OUTPUTS)

/* 16 outputs of a product, those from `at` on. */
typedef struct thin_panel {
    const unsigned char *w; /* tiles of the panel */
    float *parts;           /* the product's [splits][m][n]; across: [splits][n][m] */
    uint32_t n, at;
} thin_panel;

/* The products of one x. */
typedef struct thin_job {
    const float *x, *up; /* up: as fmc_sum.up */
    size_t ldx;
    unsigned char *cores; /* as fmc_sum.cores, or NULL */
    uint32_t first, m, k;
    uint32_t begin; /* block at which it begins */
    uint32_t count;
    bool across;
    thin_panel panel[THIN_PANELS];
} thin_job;

/* Loads 32 k of a warp's rows: row g of each tile, k 2t and 2t + 1 of each eight; zeros outside. */
FMC_DEVICE void thin_load_rows(float v[THIN_TILES][8], const thin_job *p, const float *from,
                               uint32_t row, uint32_t k, bool pairs)
{
    unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (unsigned r = 0; r < THIN_TILES; r++) {
        uint32_t i = row + 8 * r + g;
        const float *x = from + (size_t)(i + p->first) * p->ldx;
#pragma unroll
        for (unsigned e = 0; e < 4; e++) {
            uint32_t at = k + 8 * e + 2 * t;
            if (pairs) {
                float2 two = make_float2(0.0f, 0.0f);
                if (i < p->m && at < p->k)
                    two = *(const float2 *)(const void *)(x + at);
                v[r][2 * e] = two.x;
                v[r][2 * e + 1] = two.y;
            } else {
#pragma unroll
                for (unsigned o = 0; o < 2; o++)
                    v[r][2 * e + o] = i < p->m && at + o < p->k ? x[at + o] : 0.0f;
            }
        }
    }
}

/* The same for x stored [k, m]: an address for each k, at which the tiles' rows are 8 apart. */
FMC_DEVICE void thin_load_lines(float v[THIN_TILES][8], const thin_job *p, const float *from,
                                uint32_t row, uint32_t k)
{
    unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    bool whole = row + 8 * THIN_TILES <= p->m && k + 32 <= p->k;
    from += row + g + p->first + (size_t)(k + 2 * t) * p->ldx;
#pragma unroll
    for (unsigned i = 0; i < 8; i++) {
        unsigned off = 8 * (i / 2) + i % 2; /* offset from k + 2t */
        const float *x = from + off * p->ldx;
        if (whole) {
#pragma unroll
            for (unsigned r = 0; r < THIN_TILES; r++)
                v[r][i] = x[8 * r];
        } else {
#pragma unroll
            for (unsigned r = 0; r < THIN_TILES; r++)
                v[r][i] = row + 8 * r + g < p->m && k + 2 * t + off < p->k ? x[8 * r] : 0.0f;
        }
    }
}

template <bool turned>
FMC_DEVICE void thin_load(float v[THIN_TILES][8], const thin_job *p, const float *from,
                          uint32_t row, uint32_t k, bool pairs)
{
    if (turned)
        thin_load_lines(v, p, from, row, k);
    else
        thin_load_rows(v, p, from, row, k, pairs);
}

/* One element of swiglu. */
FMC_DEVICE float thin_made(float gate, float up)
{
    return (gate * fmc_sigmoid(gate)) * up;
}

FMC_DEVICE float thin_rest(float v, float rounded)
{
    float rest = v - rounded;
    return isfinite(rest) ? rest : 0.0f;
}

/* Where this lane's words of row `row` are written, for half a tile of 64 k. */
FMC_DEVICE unsigned char *thin_core(const thin_job *p, uint32_t row, uint32_t half)
{
    uint32_t row8s = (p->m + FMC_TILE_ROWS - 1) / FMC_TILE_ROWS;
    return p->cores + ((size_t)(half / 2) * row8s + row / FMC_TILE_ROWS) * FMC_TILE_X +
           half % 2 * (FMC_TILE_X / 2) + threadIdx.x % 32 * 4;
}

/* Multiplies 32 k, two steps, from step 2 * half of W's tile (PAIR) on. */
template <int panels, bool writes>
FMC_DEVICE void thin_half(float acc[panels][THIN_TILES][4], const float v[THIN_TILES][8],
                          const unsigned char *const w[panels], const thin_job *p, uint32_t row,
                          uint32_t half)
{
    size_t at = (size_t)(half / 2) * 4096 + half % 2 * 1024;
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
    if (writes && p->cores) {
#pragma unroll
        for (unsigned r = 0; r < THIN_TILES; r++)
            if (row + FMC_TILE_ROWS * r < p->m) {
                unsigned char *to = thin_core(p, row + FMC_TILE_ROWS * r, half);
#pragma unroll
                for (unsigned e = 0; e < 4; e++)
                    *(uint32_t *)(void *)(to + 128 * e) = b[r][e];
            }
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

/* A block computes one part of k of THIN_ROWS rows and all outputs, into the panels' parts. */
template <int panels, bool turned, bool made>
__global__ void __launch_bounds__(FMC_THREADS, 1)
    k_fast_skinny(const thin_job *list, uint32_t count)
{
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const thin_job *job = list + fmc_find_begin(list, count);
    const thin_job p = *job; /* without its panels */
    uint32_t tiles = (p.k + FMC_TILE_K - 1) / FMC_TILE_K;
    uint32_t each = (tiles + FMC_SPLITS_MAX - 1) / FMC_SPLITS_MAX;
    each = each < 2 ? 2 : each;
    uint32_t parts = (tiles + each - 1) / each, index = blockIdx.x - p.begin, part = index % parts;
    uint32_t from = part * each, to = from + each < tiles ? from + each : tiles;
    uint32_t row = index / parts * THIN_ROWS + threadIdx.x / 32 * 8 * THIN_TILES;
    bool pairs = ((p.ldx | p.k) & 1u) == 0 && (((uintptr_t)p.x | (uintptr_t)p.up) & 7u) == 0;
    if (row >= p.m)
        return;
    const unsigned char *w[panels];
    float acc[panels][THIN_TILES][4], now[THIN_TILES][8], next[THIN_TILES][8], up[THIN_TILES][8];
#pragma unroll
    for (int j = 0; j < panels; j++)
        w[j] = job->panel[j].w + 16 * lane;
#pragma unroll
    for (int i = 0; i < panels * (int)THIN_TILES * 4; i++)
        acc[i / 4 / (int)THIN_TILES][i / 4 % (int)THIN_TILES][i % 4] = 0.0f;
    thin_load<turned>(next, &p, p.x, row, from * FMC_TILE_K, pairs);
    if (made)
        thin_load<turned>(up, &p, p.up, row, from * FMC_TILE_K, pairs);
#pragma unroll 1
    for (uint32_t half = 2 * from; half < 2 * to; half++) {
#pragma unroll
        for (unsigned i = 0; i < THIN_TILES * 8; i++)
            now[i / 8][i % 8] =
                made ? thin_made(next[i / 8][i % 8], up[i / 8][i % 8]) : next[i / 8][i % 8];
        if (half + 1 < 2 * to) {
            thin_load<turned>(next, &p, p.x, row, (half + 1) * 32, pairs);
            if (made)
                thin_load<turned>(up, &p, p.up, row, (half + 1) * 32, pairs);
        }
        thin_half<panels, !turned>(acc, now, w, &p, row, half);
    }
#pragma unroll
    for (int i = 0; i < panels * (int)THIN_TILES * 4; i++) {
        uint32_t j = (uint32_t)i / 4 / THIN_TILES, r = (uint32_t)i / 4 % THIN_TILES, q = i % 4;
        const thin_panel *to = &job->panel[j];
        uint32_t n = to->at + g + 8 * (q / 2), at = row + 8 * r + 2 * t + q % 2;
        if (n < to->n && at < p.m)
            to->parts[(size_t)part * p.m * to->n +
                      (p.across ? (size_t)n * p.m + at : (size_t)at * to->n + n)] = acc[j][r][q];
    }
}

/* ---- the host's side ---- */

bool fmc_is_skinny(const fmc_sum *s)
{
    return s->kind == FMC_PAIR && s->p.split && s->n <= THIN_OUTPUTS && s->p.m >= THIN_LEAST_ROWS &&
           !s->p.rows &&
           (uint64_t)fmc_splits(s->k) * s->p.m * s->n * sizeof(float) <= THIN_PARTS_BYTES;
}

static uint32_t panels_of(const fmc_sum *s)
{
    return fmc_ceil(s->n, FMC_OUTPUTS);
}

static bool reads_alike(const fmc_sum *a, const fmc_sum *b)
{
    return a->x == b->x && a->up == b->up && a->ldx == b->ldx && a->k == b->k &&
           a->turned == b->turned && a->across == b->across && a->p.m == b->p.m &&
           a->p.first == b->p.first && (a->cores == b->cores || !b->cores);
}

/* The job that adds the sums of parts. */
static fmc_job job_for(const fmc_sum *s, unsigned char *parts)
{
    fmc_job j = {};
    j.y = s->p.y;
    j.ldy = s->p.ldy;
    j.bias = s->p.bias;
    j.parts = (float *)(void *)parts;
    j.alpha = s->alpha;
    j.first = s->p.first;
    j.m = s->across ? s->n : s->p.m; /* an ordinary product with the sides swapped */
    j.n = s->across ? s->p.m : s->n;
    j.k = s->k;
    j.add = s->add;
    j.dense = s->dense;
    return j;
}

static void add_panels(thin_job *t, const fmc_sum *s, const fmc_job *j)
{
    uint64_t bytes = fmc_tiles_bytes(FMC_PAIR, FMC_OUTPUTS, s->k);
    for (uint32_t i = 0; i < panels_of(s); i++)
        t->panel[t->count++] = {s->tiles + i * bytes, j->parts, s->n, i * FMC_OUTPUTS};
}

static uint64_t parts_bytes(const fmc_sum *s)
{
    return ((uint64_t)fmc_splits(s->k) * s->p.m * s->n * sizeof(float) + 255) / 256 * 256;
}

typedef struct thin_list {
    thin_job job[THIN_JOBS]; /* begin: panels and the flag turned, until the launch */
    fmc_job finish[THIN_JOBS];
    uint32_t jobs, finishes;
} thin_list;

#define THIN_WAYS (4 * THIN_PANELS)

static unsigned way_of(uint32_t panels, const fmc_sum *s)
{
    return panels - 1 + (s->turned ? THIN_PANELS : 0) + (s->up ? 2 * THIN_PANELS : 0);
}

/* Launches all jobs of one variant. */
static void run_way(fmc_device *d, const thin_list *l, unsigned way)
{
    static void (*const kernels[THIN_WAYS])(const thin_job *, uint32_t) = {
        k_fast_skinny<1, false, false>, k_fast_skinny<2, false, false>,
        k_fast_skinny<3, false, false>, k_fast_skinny<4, false, false>,
        k_fast_skinny<1, true, false>,  k_fast_skinny<2, true, false>,
        k_fast_skinny<3, true, false>,  k_fast_skinny<4, true, false>,
        k_fast_skinny<1, false, true>,  k_fast_skinny<2, false, true>,
        k_fast_skinny<3, false, true>,  k_fast_skinny<4, false, true>,
        k_fast_skinny<1, true, true>,   k_fast_skinny<2, true, true>,
        k_fast_skinny<3, true, true>,   k_fast_skinny<4, true, true>};
    static thread_local thin_job jobs[THIN_JOBS];
    uint32_t n = 0, blocks = 0;
    for (uint32_t i = 0; i < l->jobs; i++) {
        if (l->job[i].begin != way)
            continue;
        jobs[n] = l->job[i];
        jobs[n++].begin = blocks;
        blocks += fmc_ceil(l->job[i].m, THIN_ROWS) * fmc_splits(l->job[i].k);
    }
    const thin_job *args = n ? (const thin_job *)fmc_args(d, jobs, n * sizeof jobs[0]) : NULL;
    if (args)
        FMC_RUN(d, kernels[way], blocks, FMC_THREADS, 0, args, n);
}

/* Plans the taken products of the list; adjacent ones of one x become one job. */
static void plan_list(thin_list *l, const fmc_sum *list, uint32_t count, const bool *taken,
                      unsigned char *parts)
{
    const fmc_sum *last = NULL;
    l->jobs = l->finishes = 0;
    for (uint32_t i = 0; i < count; i++) {
        const fmc_sum *s = &list[i];
        if (!taken[i])
            continue;
        thin_job *t = l->jobs > 0 ? &l->job[l->jobs - 1] : NULL;
        if (!t || !reads_alike(last, s) || t->count + panels_of(s) > THIN_PANELS) {
            t = &l->job[l->jobs++];
            *t = {};
            t->x = s->x;
            t->up = s->up;
            t->ldx = s->ldx;
            t->cores = s->cores;
            t->first = s->p.first;
            t->m = s->p.m;
            t->k = s->k;
            t->across = s->across;
            last = s;
        }
        l->finish[l->finishes] = job_for(s, parts);
        add_panels(t, s, &l->finish[l->finishes++]);
        t->begin = way_of(t->count, s);
        parts += parts_bytes(s);
    }
}

/* Number of products from the list's beginning whose parts fit together: at least one. */
static uint32_t fitting(const fmc_sum *list, uint32_t count, const bool *taken, uint64_t *bytes)
{
    uint32_t n = 0;
    *bytes = 0;
    for (; n < count; n++) {
        uint64_t more = taken[n] ? parts_bytes(&list[n]) : 0;
        if (*bytes > 0 && *bytes + more > FMC_THIN_LIST_BYTES)
            break;
        *bytes += more;
    }
    return n;
}

void fmc_thin_sums(fmc_device *d, const fmc_sum *list, uint32_t count, bool *taken)
{
    static thread_local thin_list l;
    for (uint32_t i = 0; i < count; i++)
        taken[i] = fmc_is_skinny(&list[i]);
    for (uint32_t at = 0, n; at < count; at += n) {
        uint64_t bytes;
        n = fitting(list + at, count - at, taken + at, &bytes);
        unsigned char *parts =
            bytes ? (unsigned char *)fmc_scratch_get(d, FMC_SCRATCH_PRODUCT, bytes) : NULL;
        if (!parts)
            continue;
        plan_list(&l, list + at, n, taken + at, parts);
        for (unsigned way = 0; way < THIN_WAYS; way++)
            run_way(d, &l, way);
        fmc_add_parts(d, l.finish, l.finishes);
    }
}
