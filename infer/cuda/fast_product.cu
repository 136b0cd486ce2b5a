/* fast_product.cu - products on tensor cores in the one order that fast.h states: which kernel a
 * product gets, and lists of them in few launches. */
#include "infer/cuda/fast_kernels.h"

#define FEW_ROWS 16u
#define JOBS_MAX 256u /* of a launch */
#define PARTS_BYTES (64u << 20)

/* ---- the host's side: which kernel, where packed rows lie ---- */

typedef void (*sum_kernel)(const fmc_job *, uint32_t);

enum { FEW_DIRECT, FEW, FEW_SPLIT, MANY_64, MANY_64_SPLIT, MANY_128, MANY_128_SPLIT, WAYS };

typedef struct way {
    sum_kernel run;
    unsigned shared_bytes, rows; /* rows of a block; 0: all */
} way;

/* Ways that nothing asks for are not compiled: x of f16 is always packed first, and only plain
 * numbers keep the rest of x. */
template <int kind> static void ways_of(way w[WAYS])
{
    constexpr bool plain = kind == FMC_BF16 || kind == FMC_F16 || kind == FMC_PAIR;
    if constexpr (kind != FMC_F16)
        w[FEW_DIRECT] = {k_fast_few<kind, 1, true, false>, fmc_ring_of<kind>::bytes, 0};
    w[FEW] = {k_fast_few<kind, 2, false, false>, fmc_ring_of<kind>::bytes, 0};
    w[MANY_64] = {k_fast_many<kind, 4, false>, many<kind, 4, false>::bytes, 64};
    w[MANY_128] = {k_fast_many<kind, 8, false>, many<kind, 8, false>::bytes, 128};
    if constexpr (plain) {
        w[FEW_SPLIT] = {k_fast_few<kind, 2, false, true>, fmc_ring_of<kind>::bytes, 0};
        w[MANY_64_SPLIT] = {k_fast_many<kind, 4, true>, many<kind, 4, true>::bytes, 64};
        w[MANY_128_SPLIT] = {k_fast_many<kind, 8, true>, many<kind, 8, true>::bytes, 128};
    }
}

typedef struct way_table {
    way of[FMC_KINDS][WAYS];
} way_table;

static const way_table *ways(void)
{
    static way_table t;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, [] {
        ways_of<FMC_BF16>(t.of[FMC_BF16]);
        ways_of<FMC_F16>(t.of[FMC_F16]);
        ways_of<FMC_PAIR>(t.of[FMC_PAIR]);
        ways_of<FMC_Q8_0>(t.of[FMC_Q8_0]);
        ways_of<FMC_Q4_0>(t.of[FMC_Q4_0]);
        ways_of<FMC_Q4_1>(t.of[FMC_Q4_1]);
        ways_of<FMC_Q4_K>(t.of[FMC_Q4_K]);
        ways_of<FMC_Q6_K>(t.of[FMC_Q6_K]);
    });
    return &t;
}

fm_status fmc_fast_product_open(fmc_device *d)
{
    const way_table *t = ways();
    for (unsigned kind = 0; kind < FMC_KINDS; kind++)
        for (unsigned i = 0; i < WAYS; i++) {
            const way *w = &t->of[kind][i];
            if (!w->run) /* static memory counts towards the 48 KiB too, so all are asked for */
                continue;
            if (w->shared_bytes > (unsigned)d->shared_max)
                return fmc_fail(FM_EUNSUPPORTED,
                                "cuda:%u: this mode needs %u bytes of shared memory for a block, "
                                "the card has %d; mode exact runs on it",
                                d->ordinal, w->shared_bytes, d->shared_max);
            cudaError_t e = cudaFuncSetAttribute(
                w->run, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)w->shared_bytes);
            if (e != cudaSuccess)
                return fmc_status(e, "shared memory of a kernel");
        }
    return FM_OK;
}

static bool is_split(const fmc_sum *s)
{
    return s->p.split && (s->kind == FMC_BF16 || s->kind == FMC_F16 || s->kind == FMC_PAIR);
}

static unsigned way_of(const fmc_sum *s)
{
    bool split = is_split(s);
    if (s->p.m <= FMC_TILE_ROWS && s->kind != FMC_F16 && !split && !s->turned)
        return FEW_DIRECT;
    if (s->p.m <= FEW_ROWS)
        return split ? FEW_SPLIT : FEW;
    if (s->p.m <= 64)
        return split ? MANY_64_SPLIT : MANY_64;
    return split ? MANY_128_SPLIT : MANY_128;
}

/* A list at work: packed rows (shared by neighbours that have the same) and jobs. */
typedef struct plan {
    fmc_device *d;
    const fmc_sum *list;
    uint32_t count, packs, pack_blocks, pack_tiles;
    fmc_pack pack[JOBS_MAX];
    uint32_t pack_of[JOBS_MAX];
    uint64_t part_at[JOBS_MAX]; /* of sums of parts in the scratch; ~0: none */
    uint64_t bytes;
} plan;

#define NONE UINT32_MAX

static uint64_t take(uint64_t *bytes, uint64_t more)
{
    uint64_t at = *bytes;
    *bytes += (more + 255) / 256 * 256;
    return at;
}

static bool packs_alike(const fmc_sum *a, const fmc_sum *b)
{
    return a->x == b->x && a->ldx == b->ldx && a->k == b->k && a->turned == b->turned &&
           a->p.rows == b->p.rows && a->p.m == b->p.m && (a->p.rows || a->p.first == b->p.first) &&
           (a->kind == FMC_F16) == (b->kind == FMC_F16) && is_split(a) == is_split(b);
}

/* Offsets stand in for addresses until the scratch is there; + 1, so that none is NULL. */
static unsigned char *offset(uint64_t at)
{
    return (unsigned char *)(uintptr_t)(at + 1);
}
static unsigned char *address(void *scratch, const void *at)
{
    return at ? (unsigned char *)scratch + ((uintptr_t)at - 1) : NULL;
}

static void plan_pack(plan *pl, uint32_t i)
{
    const fmc_sum *s = &pl->list[i];
    uint32_t tiles = fmc_ceil(s->k, FMC_TILE_K), row_tiles = fmc_ceil(s->p.m, FMC_TILE_ROWS);
    uint64_t bytes = (uint64_t)tiles * row_tiles * FMC_TILE_X;
    pl->pack_of[i] = NONE;
    if (way_of(s) == FEW_DIRECT)
        return;
    for (uint32_t j = i; j-- > 0;)
        if (pl->pack_of[j] != NONE && packs_alike(s, &pl->list[j])) {
            pl->pack_of[i] = pl->pack_of[j];
            return;
        }
    fmc_pack *p = &pl->pack[pl->packs];
    *p = {};
    p->x = s->x;
    p->ld = s->ldx;
    p->rows = s->p.rows;
    p->first = s->p.rows ? 0 : s->p.first;
    p->m = s->p.m;
    p->k = s->k;
    p->turned = s->turned;
    p->begin = pl->pack_blocks;
    p->to = offset(take(&pl->bytes, bytes));
    if (is_split(s))
        p->rest = offset(take(&pl->bytes, bytes));
    if (s->kind == FMC_F16)
        p->row_scale = (float *)(void *)offset(take(&pl->bytes, s->p.m * sizeof(float)));
    pl->pack_blocks += row_tiles;
    pl->pack_tiles = tiles > pl->pack_tiles ? tiles : pl->pack_tiles;
    pl->pack_of[i] = pl->packs++;
}

/* Blocks of a product whose parts follow one another. */
static uint64_t blocks_of(const fmc_sum *s, const way *w)
{
    uint32_t panels = fmc_ceil(s->n, FMC_OUTPUTS);
    return w->rows ? (uint64_t)fmc_ceil(panels, MANY_PANELS) * fmc_ceil(s->p.m, w->rows) : panels;
}

static void plan_parts(plan *pl, uint32_t i)
{
    const fmc_sum *s = &pl->list[i];
    const way *w = &ways()->of[s->kind][way_of(s)];
    uint64_t bytes = (uint64_t)fmc_splits(s->k) * s->p.m * s->n * sizeof(float);
    pl->part_at[i] = UINT64_MAX;
    if (w->rows && fmc_splits(s->k) > 1 && bytes <= PARTS_BYTES &&
        blocks_of(s, w) < (uint64_t)pl->d->multiprocessors)
        pl->part_at[i] = take(&pl->bytes, bytes);
}

static void run_packs(plan *pl, void *scratch)
{
    for (uint32_t i = 0; i < pl->packs; i++) {
        fmc_pack *p = &pl->pack[i];
        p->to = address(scratch, p->to);
        p->rest = address(scratch, p->rest);
        p->row_scale = (float *)(void *)address(scratch, p->row_scale);
    }
    const fmc_pack *list =
        (const fmc_pack *)fmc_args(pl->d, pl->pack, pl->packs * sizeof pl->pack[0]);
    if (list)
        FMC_RUN(pl->d, k_fast_pack, dim3(pl->pack_blocks, fmc_ceil(pl->pack_tiles, PACK_TILES)),
                FMC_THREADS, 0, list, pl->packs);
}

static fmc_job job_for(const plan *pl, uint32_t i, void *scratch)
{
    const fmc_sum *s = &pl->list[i];
    fmc_job j = {};
    j.y = s->p.y;
    j.ldy = s->p.ldy;
    j.w = s->tiles;
    j.floats = s->x;
    j.ldx = s->ldx;
    j.bias = s->p.bias;
    j.rows = s->p.rows;
    j.alpha = s->alpha;
    j.first = s->p.rows ? 0 : s->p.first;
    j.m = s->p.m;
    j.n = s->n;
    j.k = s->k;
    j.add = s->add;
    j.dense = s->dense;
    if (pl->pack_of[i] != NONE) {
        const fmc_pack *p = &pl->pack[pl->pack_of[i]];
        j.x = p->to;
        j.rest = p->rest;
        j.row_scale = p->row_scale;
    }
    if (pl->part_at[i] != UINT64_MAX)
        j.parts = (float *)(void *)((unsigned char *)scratch + pl->part_at[i]);
    return j;
}

static void add_parts(fmc_device *d, fmc_job *jobs, uint32_t count)
{
    uint32_t n = 0, blocks = 0;
    for (uint32_t i = 0; i < count; i++)
        if (jobs[i].parts) {
            jobs[n] = jobs[i];
            jobs[n++].begin = blocks;
            blocks += fmc_blocks((uint64_t)jobs[i].m * jobs[i].n, FMC_THREADS);
        }
    const fmc_job *list = n ? (const fmc_job *)fmc_args(d, jobs, n * sizeof *jobs) : NULL;
    if (list)
        FMC_RUN(d, k_fast_add_parts, blocks, FMC_THREADS, 0, list, n);
}

/* All of one kind and way in a launch. */
static void run_way(const plan *pl, fmc_kind kind, unsigned number, void *scratch)
{
    fmc_job jobs[JOBS_MAX];
    const way *w = &ways()->of[kind][number];
    uint32_t n = 0;
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < pl->count; i++) {
        const fmc_sum *s = &pl->list[i];
        if (s->p.m == 0 || s->kind != kind || way_of(s) != number)
            continue;
        jobs[n] = job_for(pl, i, scratch);
        jobs[n].begin = (uint32_t)blocks;
        blocks += blocks_of(s, w) * (jobs[n].parts ? fmc_splits(s->k) : 1);
        n++;
    }
    if (n == 0)
        return;
    if (blocks > 0x7fffffffu) {
        fmc_stick(pl->d, FM_ELIMIT, "a list of products is too large for one launch");
        return;
    }
    const fmc_job *list = (const fmc_job *)fmc_args(pl->d, jobs, n * sizeof jobs[0]);
    if (!list)
        return;
    FMC_RUN(pl->d, w->run, (unsigned)blocks, FMC_THREADS, w->shared_bytes, list, n);
    add_parts(pl->d, jobs, n);
}

static void run_slice(fmc_device *d, const fmc_sum *list, uint32_t count)
{
    static thread_local plan pl;
    unsigned char used[FMC_KINDS][WAYS] = {};
    void *scratch = NULL;
    pl = {};
    pl.d = d;
    pl.list = list;
    pl.count = count;
    for (uint32_t i = 0; i < count; i++) {
        pl.pack_of[i] = NONE;
        pl.part_at[i] = UINT64_MAX;
        if (list[i].p.m == 0)
            continue;
        used[list[i].kind][way_of(&list[i])] = 1;
        plan_pack(&pl, i);
        plan_parts(&pl, i);
    }
    if (pl.bytes > 0) {
        scratch = fmc_scratch_get(d, FMC_SCRATCH_PRODUCT, pl.bytes);
        if (!scratch)
            return;
    }
    if (pl.packs > 0)
        run_packs(&pl, scratch);
    for (unsigned kind = 0; kind < FMC_KINDS; kind++)
        for (unsigned i = 0; i < WAYS; i++)
            if (used[kind][i])
                run_way(&pl, (fmc_kind)kind, i, scratch);
}

/* Those that no other kernels and no library take, side by side. */
static void run_own(fmc_device *d, const fmc_sum *list, uint32_t count)
{
    static thread_local fmc_sum own[JOBS_MAX];
    bool taken[JOBS_MAX] = {}; /* asking may come back here: own is filled afterwards */
    uint32_t n = 0;
    fmc_thin_sums(d, list, count, taken);
    fmc_wide_sums(d, list, count, taken);
    for (uint32_t i = 0; i < count; i++)
        taken[i] = taken[i] || fmc_library_sum(d, &list[i]);
    for (uint32_t i = 0; i < count; i++)
        if (!taken[i])
            own[n++] = list[i];
    run_slice(d, own, n);
}

void fmc_add_parts(fmc_device *d, fmc_job *jobs, uint32_t count)
{
    add_parts(d, jobs, count);
}

void fmc_sums(fmc_device *d, const fmc_sum *list, uint32_t count)
{
    for (uint32_t at = 0; at < count && d->failed == FM_OK; at += JOBS_MAX)
        run_own(d, list + at, count - at < JOBS_MAX ? count - at : JOBS_MAX);
}

fmc_sum fmc_sum_of(const fm_product *p, const float *x, size_t ldx)
{
    const fmc_fast_weight *w = fmc_fast_weight_of(p->w);
    fmc_sum s = {};
    s.p = *p;
    s.kind = w->kind;
    s.tiles = w->tiles;
    s.n = w->n;
    s.k = w->k;
    s.x = x;
    s.ldx = ldx;
    s.alpha = 1.0f;
    return s;
}

static void products(fm_backend *be, const float *x, size_t ldx, uint32_t k, const fm_product *list,
                     uint32_t count)
{
    static thread_local fmc_sum sums[JOBS_MAX];
    (void)k;
    for (uint32_t at = 0; at < count; at += JOBS_MAX) {
        uint32_t n = count - at < JOBS_MAX ? count - at : JOBS_MAX;
        for (uint32_t i = 0; i < n; i++)
            sums[i] = fmc_sum_of(&list[at + i], x, ldx);
        fmc_sums(fmc_of(be), sums, n);
    }
}

static void linear(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                   const fm_weight *w, const float *bias, const int32_t *rows, uint32_t m)
{
    fm_product p = {};
    p.y = y;
    p.ldy = ldy;
    p.w = w;
    p.bias = bias;
    p.rows = rows;
    p.m = m;
    products(be, x, ldx, 0, &p, 1);
}

void fmc_fast_product_install(fm_backend *be)
{
    be->linear = linear;
    be->products = products;
}
