/* product.cu - products of many rows on Hopper's tensor cores, where they give the bits of mma.
 *
 * The order of a product is cuda/mma/fast.h's. No document states whether wgmma rounds inside a
 * step of 16 k as mma does, so it is tested: before a kernel's first use its sums of chosen rows
 * (cancelling, subnormal, of one size and of many) are compared with those of cuda/mma/product.cu's
 * kernels, and a kernel that differs in a bit is never used. FMSTORE_CUDA_WIDE=0 uses none; 64, 128
 * or 192: only the kernels of so many rows a block. */
#include <stdlib.h>
#include <string.h>

#include <new>

#include "infer/cuda/sm90/kernels.h"

#define LEAST_ROWS 17u
#define JOBS_MAX 256u
#define PARTS_BYTES (64u << 20)

/* ---- the kernels ---- */

typedef void (*wide_kernel)(const fmc_job *, uint32_t, uint32_t);

enum { ROWS_64, ROWS_128, ROWS_192, SIZES };
static const uint32_t rows_of[SIZES] = {64, 128, 192};

typedef struct way {
    wide_kernel run; /* NULL: none */
    unsigned shared_bytes;
} way;

#define KERNELS (FMC_KINDS * 2 * SIZES)

typedef struct way_table {
    way of[FMC_KINDS][2][SIZES]; /* [1]: split */
    way tailed[SIZES];           /* of bf16, not split, with tails; numbered behind the others */
} way_table;

template <int kind, int rows, bool split> static way one_way(void)
{
    return {k_wide<kind, rows, split>, wide_size<kind, rows, split>::bytes};
}

template <int rows> static way tailed_way(void)
{
    return {k_wide<FMC_BF16, rows, false, true>, wide_size<FMC_BF16, rows, false>::bytes};
}

/* Split rows of F8 weights are left to the kernels for all GPUs. */
template <int kind> static void ways_of(way_table *t)
{
    constexpr bool plain = kind == FMC_BF16 || kind == FMC_F16 || kind == FMC_PAIR;
    t->of[kind][0][ROWS_64] = one_way<kind, 64, false>();
    t->of[kind][0][ROWS_128] = one_way<kind, 128, false>();
    t->of[kind][0][ROWS_192] = one_way<kind, 192, false>();
    if constexpr (plain) {
        t->of[kind][1][ROWS_64] = one_way<kind, 64, true>();
        t->of[kind][1][ROWS_128] = one_way<kind, 128, true>();
        t->of[kind][1][ROWS_192] = one_way<kind, 192, true>();
    }
}

static const way_table *ways(void)
{
    static way_table t;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, [] {
        ways_of<FMC_BF16>(&t);
        ways_of<FMC_F16>(&t);
        ways_of<FMC_PAIR>(&t);
        ways_of<FMC_E4M3>(&t);
        ways_of<FMC_E5M2>(&t);
        ways_of<FMC_Q4_1>(&t);
        ways_of<FMC_Q4_K>(&t);
        ways_of<FMC_Q6_K>(&t);
        t.tailed[ROWS_64] = tailed_way<64>();
        t.tailed[ROWS_128] = tailed_way<128>();
        t.tailed[ROWS_192] = tailed_way<192>();
    });
    return &t;
}

struct fmc_sm90_state {
    fmc_verdict of[FMC_KINDS][2][SIZES], tailed[SIZES];
    uint32_t only; /* rows of a block; 0: any */
    bool checking;
};

fm_status fmc_sm90_begin(fmc_device *d)
{
    const char *asked = getenv("FMSTORE_CUDA_WIDE");
    const way_table *t = ways();
    fmc_fast *f = (fmc_fast *)d->fast;
    if (d->capability != 90 || d->shared_max < (int)FMC_SHARED_90 ||
        (asked && strcmp(asked, "0") == 0))
        return FM_OK;
    for (unsigned i = 0; i < KERNELS + SIZES; i++) {
        const way *w = i < KERNELS ? &t->of[0][0][0] + i : &t->tailed[i - KERNELS];
        if (w->run)
            fmc_cluster_of_two(w->run);
        if (w->run && cudaFuncSetAttribute(w->run, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)w->shared_bytes) != cudaSuccess) {
            (void)cudaGetLastError(); /* built for other GPUs: the other kernels are used */
            return FM_OK;
        }
    }
    f->wide = new (std::nothrow) fmc_sm90_state();
    if (!f->wide)
        return fmc_fail(FM_ENOMEM, "out of memory");
    f->wide->only = asked ? (uint32_t)strtoul(asked, NULL, 10) : 0;
    return FM_OK;
}

void fmc_sm90_end(fmc_device *d)
{
    fmc_fast *f = (fmc_fast *)d->fast;
    delete f->wide;
    f->wide = NULL;
}

static bool is_split(const fmc_sum *s)
{
    return s->p.split && fmc_is_plain(s->kind);
}

/* Tiles of y of a product; a cluster does one at a time. */
static uint64_t items_of(const fmc_sum *s, unsigned size)
{
    return (uint64_t)fmc_ceil(fmc_ceil(s->n, FMC_OUTPUTS), WIDE_BLOCKS * WIDE_PANELS) *
           fmc_ceil(s->p.m, rows_of[size]);
}

static uint32_t clusters_of(const fmc_device *d)
{
    return d->multiprocessors < 2 ? 1 : (uint32_t)d->multiprocessors / WIDE_BLOCKS;
}

static uint64_t parts_bytes(const fmc_sum *s)
{
    return (uint64_t)fmc_splits(s->k) * s->p.m * s->n * sizeof(float);
}

/* Cycles of a tile of 64 k in a block, the largest of: 4 steps of rows / 2 for each working
 * warpgroup and each product of a step; widening quants (counted in tests/bench/SPEED.md); the
 * copies at 40 bytes a cycle. */
static uint64_t tile_cycles(const fmc_sum *s, unsigned size)
{
    uint64_t groups = s->n <= 4 * FMC_OUTPUTS ? 1 : WIDE_GROUPS;
    uint64_t products = 1u + (s->kind == FMC_PAIR) + is_split(s);
    uint64_t multiply = groups * 2 * rows_of[size] * products;
    uint64_t widen = fmc_is_plain(s->kind) ? 0 : groups * (s->kind == FMC_Q6_K ? 340 : 250);
    uint64_t bytes = fmc_tiles_bytes(s->kind, FMC_OUTPUTS, 256) / 4 * WIDE_PANELS +
                     (uint64_t)rows_of[size] / WIDE_BLOCKS * 128 * (is_split(s) ? 2 : 1);
    uint64_t most = multiply > widen ? multiply : widen;
    return most > bytes / 40 ? most : bytes / 40;
}

/* Estimated cycles of a product that runs alone. In parts: with their sums at 2,000 bytes a cycle,
 * and one more launch. */
static uint64_t cycles_of(const fmc_device *d, const fmc_sum *s, unsigned size, bool in_parts)
{
    uint64_t items = items_of(s, size), at_once = clusters_of(d), tile = tile_cycles(s, size);
    uint64_t end = 8ull * rows_of[size]; /* storing a tile's sums */
    if (!in_parts)
        return (items + at_once - 1) / at_once * (tile * fmc_ceil(s->k, FMC_TILE_K) + end);
    items *= fmc_splits(s->k);
    return (items + at_once - 1) / at_once * (tile * fmc_split_tiles(s->k) + end) +
           parts_bytes(s) / 1000 + 4000;
}

static bool may_part(const fmc_sum *s)
{
    return s->tail.r == 0 && fmc_splits(s->k) > 1 && parts_bytes(s) <= PARTS_BYTES;
}

static unsigned size_of(const fmc_device *d, uint32_t only, const fmc_sum *s)
{
    unsigned best = ROWS_64;
    uint64_t least = UINT64_MAX;
    for (unsigned size = 0; size < SIZES; size++)
        for (unsigned parts = 0; parts < 2; parts++) {
            if (only == rows_of[size])
                return size;
            uint64_t cycles =
                parts && !may_part(s) ? UINT64_MAX : cycles_of(d, s, size, parts != 0);
            if (cycles < least) {
                best = size;
                least = cycles;
            }
        }
    return best;
}

/* ---- the plan of a list ---- */

#define NONE UINT32_MAX

/* Whether parts of k run in blocks of their own. */
typedef enum parting { PARTS_AS_COUNTED, PARTS_NEVER, PARTS_ALWAYS } parting;

typedef struct plan {
    fmc_device *d;
    parting parts;
    uint32_t count, packs, pack_blocks, pack_tiles, tails, tail_blocks;
    fmc_sum list[JOBS_MAX];
    unsigned size[JOBS_MAX];
    fmc_pack pack[JOBS_MAX];
    uint32_t pack_of[JOBS_MAX];
    uint64_t to_at[JOBS_MAX], rest_at[JOBS_MAX], scale_at[JOBS_MAX]; /* offsets of packs */
    uint64_t part_at[JOBS_MAX];                                      /* of parts; ~0: none */
    fmc_pack tail[JOBS_MAX];                                         /* u of products with a tail */
    uint64_t tail_at[JOBS_MAX];                                      /* offsets of the tails */
    uint64_t bytes;
} plan;

static bool packs_alike(const fmc_sum *a, const fmc_sum *b)
{
    return a->x == b->x && a->ldx == b->ldx && a->k == b->k && a->turned == b->turned &&
           a->p.rows == b->p.rows && a->p.m == b->p.m && (a->p.rows || a->p.first == b->p.first) &&
           (a->kind == FMC_F16) == (b->kind == FMC_F16) && is_split(a) == is_split(b);
}

static void plan_pack(plan *pl, uint32_t i)
{
    const fmc_sum *s = &pl->list[i];
    uint32_t tiles = fmc_ceil(s->k, FMC_TILE_K), row8s = fmc_ceil(s->p.m, FMC_TILE_ROWS);
    uint64_t bytes = fmc_cores_bytes(s->p.m, s->k);
    pl->pack_of[i] = NONE;
    if (s->cores)
        return;
    for (uint32_t j = i; j-- > 0;)
        if (pl->pack_of[j] != NONE && packs_alike(s, &pl->list[j])) {
            pl->pack_of[i] = pl->pack_of[j];
            return;
        }
    uint32_t n = pl->pack_of[i] = pl->packs++;
    fmc_pack *p = &pl->pack[n];
    *p = fmc_pack_of(s, pl->pack_blocks);
    pl->to_at[n] = fmc_take(&pl->bytes, bytes);
    pl->rest_at[n] = is_split(s) ? fmc_take(&pl->bytes, bytes) : UINT64_MAX;
    pl->scale_at[n] =
        s->kind == FMC_F16 ? fmc_take(&pl->bytes, s->p.m * sizeof(float)) : UINT64_MAX;
    pl->pack_blocks += row8s;
    pl->pack_tiles = tiles > pl->pack_tiles ? tiles : pl->pack_tiles;
}

static void plan_tail(plan *pl, uint32_t i)
{
    const fmc_sum *s = &pl->list[i];
    uint64_t units = (uint64_t)fmc_ceil(s->tail.r, 16) * fmc_ceil(s->p.m, FMC_TILE_ROWS);
    if (s->tail.r == 0)
        return;
    fmc_pack *p = &pl->tail[pl->tails++];
    *p = {};
    p->x = s->tail.u;
    p->ld = p->k = s->tail.r;
    p->m = s->p.m;
    p->begin = pl->tail_blocks;
    pl->tail_at[i] = fmc_take(&pl->bytes, 2 * WIDE_TAIL_ROW8 * units);
    pl->tail_blocks += fmc_blocks(16 * units, FMC_THREADS);
}

/* items: those of the whole list; k is cut where the list would leave multiprocessors idle. */
static void plan_parts(plan *pl, uint32_t i, uint64_t items)
{
    const fmc_sum *s = &pl->list[i];
    unsigned size = pl->size[i];
    pl->part_at[i] = UINT64_MAX;
    bool pays = items < clusters_of(pl->d) &&
                cycles_of(pl->d, s, size, true) < cycles_of(pl->d, s, size, false);
    if (may_part(s) && (pl->parts == PARTS_ALWAYS || (pl->parts != PARTS_NEVER && pays)))
        pl->part_at[i] = fmc_take(&pl->bytes, parts_bytes(s));
}

static void run_tails(plan *pl, unsigned char *scratch)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < pl->count; i++)
        if (pl->list[i].tail.r > 0)
            pl->tail[n++].to = scratch + pl->tail_at[i];
    const fmc_pack *list =
        n ? (const fmc_pack *)fmc_args(pl->d, pl->tail, n * sizeof pl->tail[0]) : NULL;
    if (list)
        FMC_RUN(pl->d, k_wide_pack_tail, pl->tail_blocks, FMC_THREADS, 0, list, n);
}

static void run_packs(plan *pl, unsigned char *scratch)
{
    bool scaled = false;
    if (pl->packs == 0)
        return;
    for (uint32_t i = 0; i < pl->packs; i++) {
        fmc_pack *p = &pl->pack[i];
        p->to = scratch + pl->to_at[i];
        if (pl->rest_at[i] != UINT64_MAX)
            p->rest = scratch + pl->rest_at[i];
        if (pl->scale_at[i] != UINT64_MAX)
            p->row_scale = (float *)(void *)(scratch + pl->scale_at[i]);
        p->scaled = p->row_scale && fmc_ceil(p->k, FMC_TILE_K) > WIDE_PACK_TILES;
        scaled = scaled || p->scaled;
    }
    const fmc_pack *list =
        (const fmc_pack *)fmc_args(pl->d, pl->pack, pl->packs * sizeof pl->pack[0]);
    if (list && scaled)
        FMC_RUN_PDL(pl->d, k_wide_powers, pl->pack_blocks, FMC_THREADS, 0, list, pl->packs);
    if (list)
        FMC_RUN_PDL(pl->d, k_wide_pack,
                     dim3(pl->pack_blocks, fmc_ceil(pl->pack_tiles, WIDE_PACK_TILES)), FMC_THREADS,
                     0, list, pl->packs);
}

static fmc_job job_for(const plan *pl, uint32_t i, unsigned char *scratch)
{
    const fmc_sum *s = &pl->list[i];
    fmc_job j = {};
    j.y = s->p.y;
    j.ldy = s->p.ldy;
    j.w = s->tiles;
    j.x = s->cores;
    if (!s->cores) {
        const fmc_pack *p = &pl->pack[pl->pack_of[i]];
        j.x = p->to;
        j.rest = p->rest;
        j.row_scale = p->row_scale;
    }
    if (s->tail.r > 0) {
        j.tail_x = scratch + pl->tail_at[i];
        j.tail_w = s->tail.tiles;
        j.tail_k = s->tail.r;
        j.tail_scale = s->tail.scale;
    }
    j.bias = s->p.bias;
    j.rows = s->p.rows;
    j.alpha = s->alpha;
    j.first = s->p.rows ? 0 : s->p.first;
    j.m = s->p.m;
    j.n = s->n;
    j.k = s->k;
    j.add = s->add;
    j.dense = s->dense;
    if (pl->part_at[i] != UINT64_MAX)
        j.parts = (float *)(void *)(scratch + pl->part_at[i]);
    return j;
}

static unsigned kernel_of(const fmc_sum *s, unsigned size)
{
    return s->tail.r > 0 ? KERNELS + size : ((unsigned)s->kind * 2 + is_split(s)) * SIZES + size;
}

/* Launches all jobs of one kernel. */
static void run_way(const plan *pl, unsigned kernel, unsigned char *scratch)
{
    fmc_job jobs[JOBS_MAX];
    const way_table *t = ways();
    const way *w = kernel < KERNELS ? &t->of[0][0][0] + kernel : &t->tailed[kernel - KERNELS];
    uint32_t n = 0;
    uint64_t items = 0, most = clusters_of(pl->d);
    for (uint32_t i = 0; i < pl->count; i++) {
        const fmc_sum *s = &pl->list[i];
        if (kernel_of(s, pl->size[i]) != kernel)
            continue;
        jobs[n] = job_for(pl, i, scratch);
        jobs[n].begin = (uint32_t)items;
        items += items_of(s, pl->size[i]) * (jobs[n].parts ? fmc_splits(s->k) : 1);
        n++;
    }
    if (n == 0)
        return;
    if (items > 0x7fffffffu) {
        fmc_stick(pl->d, FM_ELIMIT, "a list of products is too large for one launch");
        return;
    }
    const fmc_job *list = (const fmc_job *)fmc_args(pl->d, jobs, n * sizeof jobs[0]);
    if (!list)
        return;
    FMC_RUN_PDL(pl->d, w->run, WIDE_BLOCKS * (unsigned)(items < most ? items : most), WIDE_THREADS,
                 w->shared_bytes, list, n, (uint32_t)items);
    fmc_add_parts(pl->d, jobs, n);
}

/* Runs a plan whose list, sizes and count are set. */
static void run_plan(plan *pl)
{
    pl->packs = pl->pack_blocks = pl->pack_tiles = pl->tails = pl->tail_blocks = 0;
    pl->bytes = 0;
    unsigned char used[KERNELS + SIZES] = {};
    uint64_t items = 0;
    for (uint32_t i = 0; i < pl->count; i++) {
        const fmc_sum *s = &pl->list[i];
        items += items_of(s, pl->size[i]);
        used[kernel_of(s, pl->size[i])] = 1;
    }
    for (uint32_t i = 0; i < pl->count; i++) {
        plan_pack(pl, i);
        plan_tail(pl, i);
        plan_parts(pl, i, items);
    }
    unsigned char *scratch =
        (unsigned char *)fmc_scratch_get(pl->d, FMC_SCRATCH_PRODUCT, pl->bytes);
    if (!scratch)
        return;
    run_packs(pl, scratch);
    run_tails(pl, scratch);
    for (unsigned i = 0; i < KERNELS + SIZES; i++)
        if (used[i])
            run_way(pl, i, scratch);
}

/* ---- the check ---- */

#define CHECK_N 136u /* reaches into both blocks of a cluster */
#define CHECK_K 328u /* three parts; more tiles than some rings have stages */
#define CHECK_R 40u  /* two stages of a tail, the second not full */

FMC_DEVICE uint32_t wide_hash(uint32_t a, uint32_t b)
{
    uint32_t h = a * 2654435761u ^ b * 2246822519u;
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    return h ^ h >> 16;
}

/* Bits of a float of a test row, alike within 16 k: of one size, of sizes 2^80 apart, in pairs that
 * cancel or nearly do, so small that products are subnormal or 0, powers of two. */
FMC_DEVICE uint32_t wide_telling(uint32_t row, uint32_t k)
{
    uint32_t h = wide_hash(row, k), pair = wide_hash(row, k / 2 + 0x10000u);
    uint32_t style = row % 8 == 5 ? 3 : wide_hash(row + 77u, k / 16) % 5, sign = h & 0x80000000u;
    switch (style) {
    case 0:
        return sign | (127u - (h >> 23) % 4) << 23 | (h & 0x7fffffu);
    case 1:
        return sign | (87u + (h >> 23) % 81) << 23 | (h & 0x7fffffu);
    case 2:
        return (k & 1u) << 31 | 127u << 23 | ((pair & 0x7f0000u) + (h % 8 == 0 ? 0x10000u : 0u));
    case 3:
        return sign | ((h >> 23) % 3 == 0 ? 0u : 60u + (h >> 25) % 8) << 23 | (h & 0x7fffffu);
    default:
        return sign | (127u - (h >> 23) % 2 * 12) << 23;
    }
}

__global__ void k_wide_telling_rows(uint32_t *x, uint32_t k, uint64_t all)
{
    for (uint64_t i = fmc_index(); i < all; i += fmc_stride())
        x[i] = wide_telling((uint32_t)(i / k), (uint32_t)(i % k));
}

/* Fills tiles of two-byte elements, one word at a time. f16: exponents of 5 bits. */
__global__ void k_wide_telling_tiles(uint32_t *w, bool f16, uint64_t words)
{
    for (uint64_t i = fmc_index(); i < words; i += fmc_stride()) {
        uint32_t row = 1000u + (uint32_t)i % 32, two[2];
        for (uint32_t e = 0; e < 2; e++) {
            uint32_t bits = wide_telling(row, 2 * (uint32_t)(i / 32) + e);
            uint32_t exponent = bits >> 23 & 255u, sign = bits >> 31 << 15;
            if (exponent != 127u)
                exponent = exponent % 29;
            else
                exponent = 15;
            two[e] = f16 ? sign | exponent << 10 | (bits >> 13 & 1023u) : bits >> 16;
        }
        if (wide_hash((uint32_t)i, 3) % 4 == 0) /* pairs of x cancel */
            two[1] = two[0];
        w[i] = two[0] | two[1] << 16;
    }
}

__global__ void k_wide_differ(unsigned *differ, const float *a, const float *b, uint64_t all)
{
    for (uint64_t i = fmc_index(); i < all; i += fmc_stride())
        if (__float_as_uint(a[i]) != __float_as_uint(b[i]))
            (void)atomicOr(differ, 1u);
}

typedef struct check_room {
    float *x, *ours, *theirs;
    unsigned char *tiles;
    float *u;            /* u of a tail, or NULL */
    unsigned char *tail; /* its tiles */
    unsigned *differ;
} check_room;

/* Whether s has the sums of r->ours by a kernel of that size too. */
static bool is_same(fmc_device *d, const fmc_sum *s, const check_room *r, unsigned size,
                    parting parts)
{
    static thread_local plan pl;
    uint64_t all = (uint64_t)s->p.m * s->n;
    unsigned host = 1;
    pl.d = d;
    pl.parts = parts;
    pl.count = 1;
    pl.list[0] = *s;
    pl.list[0].p.y = r->theirs;
    pl.size[0] = size;
    run_plan(&pl);
    if (d->failed != FM_OK ||
        cudaMemsetAsync(r->differ, 0, sizeof *r->differ, d->stream) != cudaSuccess)
        return false;
    FMC_RUN(d, k_wide_differ, fmc_blocks(all, FMC_THREADS), FMC_THREADS, 0, r->differ, r->ours,
            r->theirs, all);
    return cudaMemcpyAsync(&host, r->differ, sizeof host, cudaMemcpyDeviceToHost, d->stream) ==
               cudaSuccess &&
           cudaStreamSynchronize(d->stream) == cudaSuccess && host == 0;
}

/* Gives s a tail of test numbers, and adds it to r->ours, the sums without it. */
static void tell_tail(fmc_device *d, fmc_sum *s, const check_room *r)
{
    uint64_t u_all = (uint64_t)s->p.m * CHECK_R;
    uint64_t words = fmc_tiles_bytes(FMC_PAIR, s->n, CHECK_R) / 4;
    fmc_sum t = *s;
    FMC_RUN(d, k_wide_telling_rows, fmc_blocks(u_all, FMC_THREADS), FMC_THREADS, 0,
            (uint32_t *)(void *)r->u, CHECK_R, u_all);
    FMC_RUN(d, k_wide_telling_tiles, fmc_blocks(words, FMC_THREADS), FMC_THREADS, 0,
            (uint32_t *)(void *)r->tail, false, words);
    t.p.split = t.add = true;
    t.kind = FMC_PAIR;
    t.tiles = r->tail;
    t.k = CHECK_R;
    t.x = r->u;
    t.ldx = CHECK_R;
    t.alpha = 0.75f;
    fmc_sums(d, &t, 1);
    s->tail = {r->u, r->tail, CHECK_R, t.alpha};
}

/* like: a product of the kind to be tested. Its own tiles are used where they are blocks of quants
 * (whose elements are rounded to bf16 once more), else tiles of test numbers. */
static bool compare(fmc_device *d, const fmc_sum *like, const check_room *r, unsigned size,
                    uint32_t n, uint32_t k)
{
    fmc_sum s = {};
    uint64_t x_all = (uint64_t)(rows_of[size] - 3) * k;
    uint64_t words = fmc_tiles_bytes(like->kind, n, k) / 4;
    s.p.ldy = n;
    s.p.m = rows_of[size] - 3;
    s.p.split = like->p.split;
    s.p.y = r->ours;
    s.kind = like->kind;
    s.tiles = r->tiles ? r->tiles : like->tiles;
    s.n = n;
    s.k = k;
    s.x = r->x;
    s.ldx = k;
    s.alpha = 1.0f;
    FMC_RUN(d, k_wide_telling_rows, fmc_blocks(x_all, FMC_THREADS), FMC_THREADS, 0,
            (uint32_t *)(void *)r->x, k, x_all);
    if (r->tiles)
        FMC_RUN(d, k_wide_telling_tiles, fmc_blocks(words, FMC_THREADS), FMC_THREADS, 0,
                (uint32_t *)(void *)r->tiles, like->kind == FMC_F16, words);
    fmc_sums(d, &s, 1);
    if (r->u)
        tell_tail(d, &s, r);
    return is_same(d, &s, r, size, PARTS_NEVER) && is_same(d, &s, r, size, PARTS_ALWAYS);
}

static fmc_verdict check(fmc_device *d, fmc_sm90_state *st, const fmc_sum *like, unsigned size)
{
    bool tailed = like->tail.r > 0;
    bool plain = like->kind == FMC_BF16 || like->kind == FMC_F16 || like->kind == FMC_PAIR;
    uint32_t n = plain || like->n > CHECK_N ? CHECK_N : like->n, k = plain ? CHECK_K : like->k;
    uint64_t y_bytes = (uint64_t)rows_of[size] * n * 4, at = 256;
    uint64_t x = fmc_take(&at, (uint64_t)rows_of[size] * k * 4), ours = fmc_take(&at, y_bytes);
    uint64_t theirs = fmc_take(&at, y_bytes);
    uint64_t tiles = fmc_take(&at, plain ? fmc_tiles_bytes(like->kind, n, k) : 0);
    uint64_t u = fmc_take(&at, tailed ? (uint64_t)rows_of[size] * CHECK_R * 4 : 0);
    uint64_t tail = fmc_take(&at, tailed ? fmc_tiles_bytes(FMC_PAIR, n, CHECK_R) : 0);
    unsigned char *room = NULL;
    fmc_enter(d);
    if (cudaMalloc((void **)&room, at) != cudaSuccess) {
        (void)cudaGetLastError();
        return FMC_UNKNOWN;
    }
    check_room r = {(float *)(void *)(room + x),
                    (float *)(void *)(room + ours),
                    (float *)(void *)(room + theirs),
                    plain ? room + tiles : NULL,
                    tailed ? (float *)(void *)(room + u) : NULL,
                    room + tail,
                    (unsigned *)(void *)room};
    st->checking = true;
    fmc_verdict found = fmc_found(d, compare(d, like, &r, size, n, k));
    st->checking = false;
    (void)cudaFree(room);
    return found;
}

static bool is_equal(fmc_device *d, fmc_sm90_state *st, const fmc_sum *s, unsigned size)
{
    fmc_verdict *v = s->tail.r > 0 ? &st->tailed[size] : &st->of[s->kind][is_split(s)][size];
    if (*v == FMC_UNKNOWN) {
        if (d->arena) /* a check waits, which a recorded step cannot */
            return false;
        *v = check(d, st, s, size);
    }
    return *v == FMC_EQUAL;
}

void fmc_sm90_sums(fmc_device *d, const fmc_sum *list, uint32_t count, bool *taken)
{
    fmc_sm90_state *st = ((fmc_fast *)d->fast)->wide;
    static thread_local plan pl;
    uint32_t n = 0;
    if (!st || st->checking)
        return;
    pl.d = d;
    for (uint32_t i = 0; i < count && d->failed == FM_OK; i++) {
        const fmc_sum *s = &list[i];
        unsigned size = size_of(d, st->only, s);
        if (taken[i] || s->p.from || s->p.m < LEAST_ROWS ||
            !ways()->of[s->kind][is_split(s)][size].run || !is_equal(d, st, s, size))
            continue;
        taken[i] = true;
        pl.list[n] = *s;
        pl.size[n++] = size;
    }
    pl.count = n;
    if (n > 0 && d->failed == FM_OK)
        run_plan(&pl);
}

bool fmc_sm90_takes(fmc_device *d, const fmc_sum *list, uint32_t count)
{
    fmc_sm90_state *st = ((fmc_fast *)d->fast)->wide;
    uint64_t items = 0;
    if (!st || st->checking)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const fmc_sum *s = &list[i];
        unsigned size = size_of(d, st->only, s);
        if (d->failed != FM_OK || s->kind != FMC_BF16 || is_split(s) || s->turned || s->p.rows ||
            s->p.from || s->p.m < LEAST_ROWS || !is_equal(d, st, s, size))
            return false;
        items += items_of(s, size);
    }
    return st->only || items >= clusters_of(d);
}
