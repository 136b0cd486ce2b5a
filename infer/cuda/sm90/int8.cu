/* int8.cu - products of whole numbers on Hopper: the choice of products, the packing of x, the
 * check.
 *
 * Their bits are those of cuda/mma/int8.cu on every GPU: products of int8 are exact, and the chain
 * of fmaf is the same. Only the place where a GPU looks for an operand could differ; so before a
 * kind's first use its sums are compared with those of cuda/mma/int8.cu's kernels, and a kind whose
 * sums differ is never used. FMSTORE_CUDA_WIDE: 192 always uses these kernels, 0, 64, 128 never. */
#include <stdlib.h>
#include <string.h>

#include <new>

#include "infer/cuda/sm90/int8.h"

#define LEAST_ROWS 17u
#define JOBS_MAX 256u

typedef struct wide8_way {
    void (*run)(const fmc_job *, uint32_t, uint32_t);
    unsigned shared_bytes;
    fmc_kind kind;
} wide8_way;

enum { WAYS = 2 };
static const wide8_way ways[WAYS] = {
    {k_wide8<FMC_Q8_0>, wide8_size<FMC_Q8_0>::bytes, FMC_Q8_0},
    {k_wide8<FMC_Q4_0>, wide8_size<FMC_Q4_0>::bytes, FMC_Q4_0},
};

struct fmc_sm908_state {
    fmc_verdict of[WAYS];
    bool always, checking;
};

fm_status fmc_sm908_begin(fmc_device *d)
{
    const char *asked = getenv("FMSTORE_CUDA_WIDE");
    uint32_t rows = asked ? (uint32_t)strtoul(asked, NULL, 10) : 1;
    if (d->capability != 90 || d->shared_max < (int)FMC_SHARED_90 || rows == 0 || rows == 64 ||
        rows == 128)
        return FM_OK;
    for (unsigned i = 0; i < WAYS; i++) {
        fmc_cluster_of_two(ways[i].run);
        if (cudaFuncSetAttribute(ways[i].run, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)ways[i].shared_bytes) != cudaSuccess) {
            (void)cudaGetLastError(); /* built for other GPUs: the other kernels are used */
            return FM_OK;
        }
    }
    fmc_fast *f = (fmc_fast *)d->fast;
    f->wide8 = new (std::nothrow) fmc_sm908_state();
    if (!f->wide8)
        return fmc_fail(FM_ENOMEM, "out of memory");
    f->wide8->always = rows == WIDE8_ROWS;
    return FM_OK;
}

void fmc_sm908_end(fmc_device *d)
{
    fmc_fast *f = (fmc_fast *)d->fast;
    delete f->wide8;
    f->wide8 = NULL;
}

/* ---- the plan of a list ---- */

typedef struct plan {
    fmc_device *d;
    uint32_t count, packs, pack_blocks, pack_tiles;
    fmc_sum list[JOBS_MAX];
    fmc_pack pack[JOBS_MAX];
    uint32_t pack_of[JOBS_MAX];
    uint64_t to_at[JOBS_MAX]; /* offsets of packs in the scratch */
    uint64_t bytes;
} plan;

static uint32_t clusters_of(const fmc_device *d)
{
    return d->multiprocessors < 2 ? 1 : (uint32_t)d->multiprocessors / WIDE8_BLOCKS;
}

/* Tiles of y of a product; a cluster does one at a time. */
static uint64_t items_of(const fmc_sum *s)
{
    return (uint64_t)fmc_ceil(fmc_ceil(s->n, FMC_OUTPUTS), WIDE8_BLOCKS * WIDE8_PANELS) *
           fmc_ceil(s->p.m, WIDE8_ROWS);
}

static bool packs_alike(const fmc_sum *a, const fmc_sum *b)
{
    return a->x == b->x && a->ldx == b->ldx && a->k == b->k && a->p.rows == b->p.rows &&
           a->p.m == b->p.m && (a->p.rows || a->p.first == b->p.first);
}

static void plan_pack(plan *pl, uint32_t i)
{
    const fmc_sum *s = &pl->list[i];
    uint32_t tiles = fmc_ceil(s->k, FMC_TILE_K), row8s = 2 * fmc_ceil(s->p.m, 2 * FMC_TILE_ROWS);
    for (uint32_t j = i; j-- > 0;)
        if (packs_alike(s, &pl->list[j])) {
            pl->pack_of[i] = pl->pack_of[j];
            return;
        }
    uint32_t n = pl->pack_of[i] = pl->packs++;
    fmc_pack *p = &pl->pack[n];
    *p = fmc_pack_of(s, pl->pack_blocks);
    pl->to_at[n] = fmc_take(&pl->bytes, (uint64_t)tiles * row8s * WIDE8_X);
    pl->pack_blocks += row8s;
    pl->pack_tiles = tiles > pl->pack_tiles ? tiles : pl->pack_tiles;
}

static fmc_job job_for(const plan *pl, uint32_t i)
{
    const fmc_sum *s = &pl->list[i];
    fmc_job j = {};
    j.y = s->p.y;
    j.ldy = s->p.ldy;
    j.w = s->tiles;
    j.x = pl->pack[pl->pack_of[i]].to;
    j.bias = s->p.bias;
    j.rows = s->p.rows;
    j.alpha = s->alpha;
    j.first = s->p.rows ? 0 : s->p.first;
    j.m = j.most = s->p.m;
    j.n = s->n;
    j.k = s->k;
    j.int8 = true;
    j.add = s->add;
    j.dense = s->dense;
    return j;
}

/* Launches all jobs of one kind. */
static void run_way(const plan *pl, const wide8_way *w)
{
    fmc_job jobs[JOBS_MAX];
    uint32_t n = 0;
    uint64_t items = 0, most = clusters_of(pl->d);
    for (uint32_t i = 0; i < pl->count; i++) {
        if (pl->list[i].kind != w->kind)
            continue;
        jobs[n] = job_for(pl, i);
        jobs[n++].begin = (uint32_t)items;
        items += items_of(&pl->list[i]);
    }
    if (n == 0)
        return;
    if (items > 0x7fffffffu) {
        fmc_stick(pl->d, FM_ELIMIT, "a list of products is too large for one launch");
        return;
    }
    const fmc_job *list = (const fmc_job *)fmc_args(pl->d, jobs, n * sizeof jobs[0]);
    if (list)
        FMC_RUN(pl->d, w->run, WIDE8_BLOCKS * (unsigned)(items < most ? items : most),
                WIDE8_THREADS, w->shared_bytes, list, n, (uint32_t)items);
}

/* Runs a plan whose list and count are set. */
static void run_plan(plan *pl)
{
    pl->packs = pl->pack_blocks = pl->pack_tiles = 0;
    pl->bytes = 0;
    for (uint32_t i = 0; i < pl->count; i++)
        plan_pack(pl, i);
    unsigned char *scratch =
        (unsigned char *)fmc_scratch_get(pl->d, FMC_SCRATCH_PRODUCT, pl->bytes);
    if (!scratch)
        return;
    for (uint32_t i = 0; i < pl->packs; i++)
        pl->pack[i].to = scratch + pl->to_at[i];
    const fmc_pack *list =
        (const fmc_pack *)fmc_args(pl->d, pl->pack, pl->packs * sizeof pl->pack[0]);
    if (!list)
        return;
    FMC_RUN(pl->d, k_wide8_pack, dim3(pl->pack_blocks, fmc_ceil(pl->pack_tiles, WIDE8_PACK_TILES)),
            FMC_THREADS, 0, list, pl->packs);
    for (unsigned i = 0; i < WAYS; i++)
        run_way(pl, &ways[i]);
}

/* ---- the check ---- */

#define CHECK_M 205u /* reaches into a second block of rows */
#define CHECK_N 264u /* and a second block of outputs */

/* Makes floats of both signs; in a block of 32 they range from the largest down to 2^-9 of it. */
__global__ void k_wide8_telling(float *x, uint64_t all)
{
    for (uint64_t i = fmc_index(); i < all; i += fmc_stride()) {
        uint32_t h = (uint32_t)i * 2654435761u;
        h = (h ^ h >> 15) * 2246822519u;
        h = (h ^ h >> 13) * 3266489917u;
        x[i] = __uint_as_float((h & 0x80000000u) | (119u + (h >> 23) % 9) << 23 | (h & 0x7fffffu));
    }
}

__global__ void k_wide8_differ(unsigned *differ, const float *a, const float *b, uint64_t all)
{
    for (uint64_t i = fmc_index(); i < all; i += fmc_stride())
        if (__float_as_uint(a[i]) != __float_as_uint(b[i]))
            (void)atomicOr(differ, 1u);
}

/* Multiplies the first outputs of `like`'s weight with test rows by both kernels and compares.
 * room: the outcome, y of either kernel, x. */
static bool compare(fmc_device *d, const fmc_sum *like, unsigned char *room, uint32_t n)
{
    static thread_local plan pl;
    unsigned host = 1;
    uint64_t y_all = (uint64_t)CHECK_M * n, x_all = (uint64_t)CHECK_M * like->k;
    float *ours = (float *)(void *)(room + 256), *theirs = ours + y_all, *x = theirs + y_all;
    fmc_sum s = {};
    s.p.y = ours;
    s.p.ldy = n;
    s.p.m = CHECK_M;
    s.kind = like->kind;
    s.tiles = like->tiles;
    s.n = n;
    s.k = like->k;
    s.x = x;
    s.ldx = like->k;
    s.alpha = 1.0f;
    FMC_RUN(d, k_wide8_telling, fmc_blocks(x_all, FMC_THREADS), FMC_THREADS, 0, x, x_all);
    fmc_sums(d, &s, 1);
    pl.d = d;
    pl.count = 1;
    pl.list[0] = s;
    pl.list[0].p.y = theirs;
    run_plan(&pl);
    unsigned *differ = (unsigned *)(void *)room;
    if (d->failed != FM_OK || cudaMemsetAsync(differ, 0, sizeof *differ, d->stream) != cudaSuccess)
        return false;
    FMC_RUN(d, k_wide8_differ, fmc_blocks(y_all, FMC_THREADS), FMC_THREADS, 0, differ, ours, theirs,
            y_all);
    return cudaMemcpyAsync(&host, differ, sizeof host, cudaMemcpyDeviceToHost, d->stream) ==
               cudaSuccess &&
           cudaStreamSynchronize(d->stream) == cudaSuccess && host == 0;
}

static bool is_equal(fmc_device *d, fmc_sm908_state *st, const fmc_sum *s, unsigned way)
{
    uint32_t n = s->n < CHECK_N ? s->n : CHECK_N;
    uint64_t bytes = 256 + (uint64_t)CHECK_M * (2ull * n + s->k) * sizeof(float);
    unsigned char *room = NULL;
    if (st->of[way] != FMC_UNKNOWN)
        return st->of[way] == FMC_EQUAL;
    if (d->arena) /* a check waits, which a recorded step cannot */
        return false;
    fmc_enter(d);
    if (cudaMalloc((void **)&room, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    st->checking = true;
    st->of[way] = fmc_found(d, compare(d, s, room, n));
    st->checking = false;
    (void)cudaFree(room);
    return st->of[way] == FMC_EQUAL;
}

/* ---- which products ---- */

/* Compares the issue slots of a scheduler that either kernel takes, about: by the counts in
 * tests/bench/SPEED.md a unit of 16 outputs by 8 rows by 32 k takes 15.9 here and 19.8 in
 * k_int8_many (29.0 in its smaller tiles). A tile of 64 k of a block is 2 x 24 units of two warps
 * for each scheduler here, 2 x 32 or 2 x 8 units of one warp there. */
static bool pays(const fmc_device *d, const fmc_sum *s)
{
    uint64_t at_once = clusters_of(d), items = items_of(s), sms = (uint64_t)d->multiprocessors;
    uint64_t panels = fmc_ceil(s->n, FMC_OUTPUTS);
    uint64_t here = (items + at_once - 1) / at_once * 159 * 2 * 2 * (WIDE8_ROWS / 8);
    uint64_t large = (uint64_t)fmc_ceil((uint32_t)panels, 8) * fmc_ceil(s->p.m, 128);
    uint64_t small = (uint64_t)fmc_ceil((uint32_t)panels, 4) * fmc_ceil(s->p.m, 64);
    uint64_t there = (large + sms - 1) / sms * 198 * 2 * 32;
    uint64_t less = (small + sms - 1) / sms * 290 * 2 * 8;
    return here < (s->p.m > 64 && large >= sms ? there : less);
}

void fmc_sm908_sums(fmc_device *d, const fmc_sum *list, uint32_t count, bool *taken)
{
    fmc_sm908_state *st = ((fmc_fast *)d->fast)->wide8;
    static thread_local plan pl;
    uint32_t n = 0;
    if (!st || st->checking)
        return;
    pl.d = d;
    for (uint32_t i = 0; i < count && d->failed == FM_OK; i++) {
        const fmc_sum *s = &list[i];
        unsigned way = 0;
        while (way < WAYS && ways[way].kind != s->kind)
            way++;
        if (taken[i] || way == WAYS || s->p.from || s->turned || s->p.m < LEAST_ROWS ||
            !(st->always || pays(d, s)) || !is_equal(d, st, s, way))
            continue;
        taken[i] = true;
        pl.list[n++] = *s;
    }
    pl.count = n;
    if (n > 0 && d->failed == FM_OK)
        run_plan(&pl);
}
