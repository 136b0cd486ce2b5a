/* product.cu - products on tensor cores in the order that fast.h states: the choice of the kernel,
 * and lists of products in few launches. */
#include "infer/cuda/mma/kernels.h"

#define FEW_ROWS 16u
#define JOBS_MAX 256u /* jobs of a launch */
#define PARTS_BYTES (64u << 20)

/* ---- the host's side: the choice of the kernel, the place of packed rows ---- */

template <int kind, int row_tiles, bool direct, bool split> static fmc_way few_way(void)
{
    fmc_way w = {};
    w.run = k_fast_few<kind, row_tiles, direct, split>;
    w.stages = fmc_ring_of<kind>::stages;
    w.fewer = fmc_ring_of<kind>::fewer;
    w.stage_bytes = fmc_ring_of<kind>::stage;
    w.static_bytes = /* dynamic memory begins at a multiple of 1,024 */
        (FMC_SPLITS_MAX * FMC_TILE_ROWS * row_tiles * (FMC_OUTPUTS + 1) * 4 + 1023) / 1024 * 1024;
    w.threads = FMC_THREADS;
    return w;
}

template <int kind, int row_tiles, bool split> static fmc_way many_way(void)
{
    typedef many<kind, row_tiles, split> size;
    fmc_way w = {};
    w.run = k_fast_many<kind, row_tiles, split>;
    w.stages = size::stages;
    w.stage_bytes = size::stage;
    w.rows = size::rows;
    w.panels = MANY_PANELS;
    w.threads = FMC_THREADS;
    return w;
}

/* Variants that no caller uses are not compiled: x of f16 is always packed first, and only plain
 * numbers keep the remainder of x. */
template <int kind> static void ways_of(fmc_way w[FMC_WAYS])
{
    if constexpr (kind != FMC_F16)
        w[FMC_FEW_DIRECT] = few_way<kind, 1, true, false>();
    w[FMC_FEW] = few_way<kind, 2, false, false>();
    w[FMC_MANY_64] = many_way<kind, 4, false>();
    w[FMC_MANY_128] = many_way<kind, 8, false>();
    if constexpr (fmc_plain_of<kind>::yes) {
        w[FMC_FEW_SPLIT] = few_way<kind, 2, false, true>();
        w[FMC_MANY_64_SPLIT] = many_way<kind, 4, true>();
        w[FMC_MANY_128_SPLIT] = many_way<kind, 8, true>();
    }
}

typedef struct way_table {
    fmc_way of[FMC_KINDS][FMC_WAYS];
} way_table;

static const way_table *ways(void)
{
    static way_table t;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, [] {
        ways_of<FMC_BF16>(t.of[FMC_BF16]);
        ways_of<FMC_F16>(t.of[FMC_F16]);
        ways_of<FMC_PAIR>(t.of[FMC_PAIR]);
        ways_of<FMC_Q4_1>(t.of[FMC_Q4_1]);
        ways_of<FMC_Q4_K>(t.of[FMC_Q4_K]);
        ways_of<FMC_Q6_K>(t.of[FMC_Q6_K]);
        ways_of<FMC_E4M3>(t.of[FMC_E4M3]);
        ways_of<FMC_E5M2>(t.of[FMC_E5M2]);
        for (unsigned kind = 0; kind < FMC_KINDS; kind++)
            if (fmc_is_int8((fmc_kind)kind))
                fmc_int8_ways(t.of[kind], (fmc_kind)kind);
    });
    return &t;
}

/* Dynamic shared memory of a block with that many stages. */
static unsigned shared_of(const fmc_way *w, unsigned stages)
{
    return w->fixed_bytes + stages * w->stage_bytes;
}

/* Stages that fit on the GPU; 0: not even two. */
static unsigned stages_on(const fmc_device *d, const fmc_way *w)
{
    unsigned room = (unsigned)d->shared_max, system = 1024; /* reserved for each block */
    unsigned most =
        w->fewer && 2 * (shared_of(w, w->stages) + w->static_bytes + system) > room + system
            ? w->fewer
            : w->stages;
    if (shared_of(w, most) + w->static_bytes <= room)
        return most;
    return shared_of(w, 2) + w->static_bytes <= room ? 2 : 0;
}

/* Whether a GPU may lack this kernel: the largest tile, where two stages do not fit. */
static bool may_lack(unsigned number)
{
    return number == FMC_MANY_128 || number == FMC_MANY_128_SPLIT;
}

fm_status fmc_fast_product_open(fmc_device *d)
{
    const way_table *t = ways();
    for (unsigned kind = 0; kind < FMC_KINDS; kind++)
        for (unsigned i = 0; i < FMC_WAYS; i++) {
            const fmc_way *w = &t->of[kind][i];
            unsigned stages = stages_on(d, w);
            /* static memory counts towards the 48 KiB too, so every kernel requests it */
            if (!w->run || (stages == 0 && may_lack(i)))
                continue;
            if (stages == 0)
                return fmc_fail(FM_EUNSUPPORTED,
                                "cuda:%u: this mode needs %u bytes of shared memory for a block, "
                                "the GPU has %d; mode exact runs on it",
                                d->ordinal, shared_of(w, 2) + w->static_bytes, d->shared_max);
            cudaError_t e = cudaFuncSetAttribute(
                w->run, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_of(w, stages));
            if (e != cudaSuccess)
                return fmc_status(e, "shared memory of a kernel");
        }
    return FM_OK;
}

static bool is_split(const fmc_sum *s)
{
    return s->p.split && fmc_is_plain(s->kind);
}

static uint64_t blocks_of(const fmc_sum *s, const fmc_way *w);

/* The kernel for a product of whole numbers: larger tiles cost less, but the GPU must be full. */
static unsigned int8_way_of(const fmc_device *d, const fmc_sum *s)
{
    const fmc_way *of = ways()->of[s->kind];
    uint64_t full = (uint64_t)d->multiprocessors;
    if (fmc_is_direct8(s->p.m, s->k))
        return FMC_FEW_DIRECT;
    if (s->p.m > 64 && blocks_of(s, &of[FMC_MANY_128]) >= full)
        return FMC_MANY_128;
    /* twice the speed of smaller tiles, so they pay from half the GPU on */
    return s->p.m > FEW_ROWS && 2 * blocks_of(s, &of[FMC_MANY_64]) >= full ? FMC_MANY_64 : FMC_FEW;
}

static unsigned way_of(const fmc_device *d, const fmc_sum *s)
{
    bool split = is_split(s);
    unsigned large = split ? FMC_MANY_128_SPLIT : FMC_MANY_128;
    if (fmc_is_int8(s->kind))
        return int8_way_of(d, s);
    if (s->p.m <= FMC_TILE_ROWS && s->kind != FMC_F16 && !split && !s->turned)
        return FMC_FEW_DIRECT;
    if (s->p.m <= FEW_ROWS)
        return split ? FMC_FEW_SPLIT : FMC_FEW;
    if (s->p.m <= 64 || stages_on(d, &ways()->of[s->kind][large]) == 0)
        return split ? FMC_MANY_64_SPLIT : FMC_MANY_64;
    return large;
}

/* The plan of a list: packed rows (shared by adjacent products with the same rows) and jobs. */
/* The buffer in which the segments of one list of rows are packed in ascending order. */
typedef struct packed_list {
    const fmc_sum *of; /* the product of the first segment; NULL: none yet */
    const int32_t *end;
    unsigned char *to, *rest;
    float *row_scale;
    uint32_t segments;
} packed_list;

typedef struct plan {
    fmc_device *d;
    const fmc_sum *list;
    uint32_t count, packs, pack_blocks, pack_tiles;
    fmc_pack pack[JOBS_MAX];
    uint32_t pack_of[JOBS_MAX];
    uint64_t part_at[JOBS_MAX]; /* offset of the sums of parts in the scratch; ~0: none */
    uint64_t bytes, settled_at; /* size of the scratch; offset of jobs with settled segments */
    packed_list region;
} plan;

#define NONE UINT32_MAX

static bool form_alike(const fmc_sum *a, const fmc_sum *b)
{
    return (a->kind == FMC_F16) == (b->kind == FMC_F16) && is_split(a) == is_split(b) &&
           fmc_is_int8(a->kind) == fmc_is_int8(b->kind);
}

static bool packs_alike(const fmc_sum *a, const fmc_sum *b)
{
    return a->x == b->x && a->ldx == b->ldx && a->k == b->k && a->turned == b->turned &&
           a->p.rows == b->p.rows && a->p.from == b->p.from && a->p.to == b->p.to &&
           a->p.m == b->p.m && (a->p.rows || a->p.first == b->p.first) && form_alike(a, b);
}

/* Offsets stand in for addresses until the scratch is allocated; + 1, so that none is NULL. */
static unsigned char *offset(uint64_t at)
{
    return (unsigned char *)(uintptr_t)(at + 1);
}
static unsigned char *address(void *scratch, const void *at)
{
    return at ? (unsigned char *)scratch + ((uintptr_t)at - 1) : NULL;
}

/* Reserves space for the rows of pack p, in `row_tiles` tiles of rows. */
static void take_tiles(plan *pl, const fmc_sum *s, uint64_t row_tiles, fmc_pack *p)
{
    uint64_t bytes = row_tiles * fmc_ceil(s->k, FMC_TILE_K) * fmc_row_tile(fmc_is_int8(s->kind));
    p->to = offset(fmc_take(&pl->bytes, bytes));
    if (is_split(s))
        p->rest = offset(fmc_take(&pl->bytes, bytes));
    if (s->kind == FMC_F16)
        p->row_scale = (float *)(void *)offset(
            fmc_take(&pl->bytes, row_tiles * FMC_TILE_ROWS * sizeof(float)));
}

/* Puts a segment behind the earlier ones of the same rows; one that begins before their end, or is
 * of other rows, begins a new buffer. */
static void take_segment(plan *pl, uint32_t i, fmc_pack *p)
{
    const fmc_sum *s = &pl->list[i], *of = pl->region.of;
    packed_list *r = &pl->region;
    if (!of || s->p.from < r->end || s->p.rows != of->p.rows || s->x != of->x || s->k != of->k ||
        s->ldx != of->ldx || !form_alike(s, of)) {
        take_tiles(pl, s, fmc_ceil(s->p.listed, FMC_TILE_ROWS) + pl->count - i, p);
        *r = {s, NULL, p->to, p->rest, p->row_scale, 0};
    }
    p->to = r->to;
    p->rest = r->rest;
    p->row_scale = r->row_scale;
    p->from = s->p.from;
    p->to_row = r->end = s->p.to;
    p->nth = r->segments++;
}

static void plan_pack(plan *pl, uint32_t i)
{
    const fmc_sum *s = &pl->list[i];
    uint32_t tiles = fmc_ceil(s->k, FMC_TILE_K), row_tiles = fmc_ceil(s->p.m, FMC_TILE_ROWS);
    pl->pack_of[i] = NONE;
    if (way_of(pl->d, s) == FMC_FEW_DIRECT)
        return;
    for (uint32_t j = i; j-- > 0;)
        if (pl->pack_of[j] != NONE && packs_alike(s, &pl->list[j])) {
            pl->pack_of[i] = pl->pack_of[j];
            return;
        }
    fmc_pack *p = &pl->pack[pl->packs];
    *p = fmc_pack_of(s, pl->pack_blocks);
    p->int8 = fmc_is_int8(s->kind);
    if (s->p.from)
        take_segment(pl, i, p);
    else
        take_tiles(pl, s, row_tiles, p);
    pl->pack_blocks += row_tiles;
    pl->pack_tiles = tiles > pl->pack_tiles ? tiles : pl->pack_tiles;
    pl->pack_of[i] = pl->packs++;
}

/* Blocks of a product if one block walks all parts of k. */
static uint64_t blocks_of(const fmc_sum *s, const fmc_way *w)
{
    uint32_t panels = fmc_ceil(s->n, FMC_OUTPUTS);
    return w->rows ? (uint64_t)fmc_ceil(panels, w->panels) * fmc_ceil(s->p.m, w->rows) : panels;
}

static void plan_parts(plan *pl, uint32_t i)
{
    const fmc_sum *s = &pl->list[i];
    const fmc_way *w = &ways()->of[s->kind][way_of(pl->d, s)];
    uint64_t bytes = (uint64_t)fmc_splits(s->k) * s->p.m * s->n * sizeof(float);
    pl->part_at[i] = UINT64_MAX;
    if (w->rows && !s->p.from && !fmc_is_int8(s->kind) && fmc_splits(s->k) > 1 &&
        bytes <= PARTS_BYTES && blocks_of(s, w) < (uint64_t)pl->d->multiprocessors)
        pl->part_at[i] = fmc_take(&pl->bytes, bytes);
}

static void run_packs(plan *pl, void *scratch)
{
    bool scaled = false;
    for (uint32_t i = 0; i < pl->packs; i++) {
        fmc_pack *p = &pl->pack[i];
        p->to = address(scratch, p->to);
        p->rest = address(scratch, p->rest);
        p->row_scale = (float *)(void *)address(scratch, p->row_scale);
        p->scaled = p->row_scale && pl->pack_blocks >= FMC_POWERS_LEAST &&
                    fmc_ceil(p->k, FMC_TILE_K) > PACK_TILES;
        scaled = scaled || p->scaled;
    }
    const fmc_pack *list =
        (const fmc_pack *)fmc_args(pl->d, pl->pack, pl->packs * sizeof pl->pack[0]);
    if (list && scaled)
        FMC_RUN_PDL(pl->d, k_fast_powers, pl->pack_blocks, FMC_THREADS, 0, list, pl->packs);
    if (list)
        FMC_RUN_PDL(pl->d, k_fast_pack,
                     dim3(pl->pack_blocks, fmc_ceil(pl->pack_tiles, PACK_TILES)), FMC_THREADS, 0,
                     list, pl->packs);
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
    j.m = j.most = s->p.m;
    j.from = s->p.from;
    j.to = s->p.to;
    j.int8 = fmc_is_int8(s->kind);
    j.n = s->n;
    j.k = s->k;
    j.add = s->add;
    j.dense = s->dense;
    if (pl->pack_of[i] != NONE) {
        const fmc_pack *p = &pl->pack[pl->pack_of[i]];
        j.x = p->to;
        j.rest = p->rest;
        j.row_scale = p->row_scale;
        j.nth = p->nth;
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
        FMC_RUN_PDL(d, k_fast_add_parts, blocks, FMC_THREADS, 0, list, n);
}

/* Launches all jobs of one kind and kernel. */
static void run_way(plan *pl, fmc_kind kind, unsigned number, void *scratch)
{
    fmc_job jobs[JOBS_MAX];
    const fmc_way *w = &ways()->of[kind][number];
    unsigned stages = stages_on(pl->d, w);
    uint32_t n = 0;
    uint64_t blocks = 0;
    bool segments = false;
    for (uint32_t i = 0; i < pl->count; i++) {
        const fmc_sum *s = &pl->list[i];
        if (s->p.m == 0 || s->kind != kind || way_of(pl->d, s) != number)
            continue;
        jobs[n] = job_for(pl, i, scratch);
        jobs[n].begin = (uint32_t)blocks;
        segments = segments || s->p.from;
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
    if (segments) { /* without overlap: these jobs are made by the kernel before */
        fmc_job *settled = (fmc_job *)((unsigned char *)scratch + pl->settled_at);
        pl->settled_at += (n * sizeof jobs[0] + 255) / 256 * 256;
        FMC_RUN(pl->d, k_fast_settle, 1, FMC_THREADS, 0, settled, list, n);
        FMC_RUN(pl->d, w->run, (unsigned)blocks, w->threads, shared_of(w, stages),
                (const fmc_job *)settled, n, stages);
    } else {
        FMC_RUN_PDL(pl->d, w->run, (unsigned)blocks, w->threads, shared_of(w, stages), list, n,
                     stages);
    }
    add_parts(pl->d, jobs, n);
}

static void run_slice(fmc_device *d, const fmc_sum *list, uint32_t count)
{
    static thread_local plan pl;
    unsigned char used[FMC_KINDS][FMC_WAYS] = {};
    bool segments = false;
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
        used[list[i].kind][way_of(d, &list[i])] = 1;
        plan_pack(&pl, i);
        plan_parts(&pl, i);
        segments = segments || list[i].p.from;
    }
    if (segments) /* those of each kernel are 256-byte aligned */
        pl.settled_at = fmc_take(&pl.bytes, count * sizeof(fmc_job) + 256 * FMC_KINDS * FMC_WAYS);
    if (pl.bytes > 0) {
        scratch = fmc_scratch_get(d, FMC_SCRATCH_PRODUCT, pl.bytes);
        if (!scratch)
            return;
    }
    if (pl.packs > 0)
        run_packs(&pl, scratch);
    for (unsigned kind = 0; kind < FMC_KINDS; kind++)
        for (unsigned i = 0; i < FMC_WAYS; i++)
            if (used[kind][i])
                run_way(&pl, (fmc_kind)kind, i, scratch);
}

/* Runs the products that no other kernels take, together. */
static void run_own(fmc_device *d, const fmc_sum *list, uint32_t count)
{
    static thread_local fmc_sum own[JOBS_MAX];
    bool taken[JOBS_MAX] = {}; /* the calls below may re-enter here: own is filled afterwards */
    uint32_t n = 0;
    fmc_thin_sums(d, list, count, taken);
    fmc_sm90_sums(d, list, count, taken);
    fmc_sm908_sums(d, list, count, taken);
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

/* linear stays mode exact's, which calls products with a list of one. */
void fmc_fast_product_install(fm_backend *be)
{
    be->products = products;
}
