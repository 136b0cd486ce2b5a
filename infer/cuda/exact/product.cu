/* product.cu - matrix products of inference in mode exact.
 *
 * Few rows (decoding): a warp has 32 outputs, a lane each, and one block of 512 k of them; its part
 * of the weight is one run of bytes, which it streams through a ring in shared memory and widens
 * there. The warps of a thread block share a panel of outputs, so that blocks of k are summed in
 * parallel and added in ascending order afterwards. Bound by the weight's bytes. More rows: tiles
 * (train_product.cu), bound by FFMA. The same bits either way. */
#include <atomic>
#include <new>
#include <vector>

#include "infer/cuda/exact/product.h"
#include "infer/cuda/ptx.h"

#define FEW_ROWS 32u    /* most rows; every ROWS_MOST rows stream the weight again */
#define FEW_LISTED 128u /* most rows of a segment, which mostly has far fewer */
#define ROWS_MOST 8u    /* sums of one lane */
#define STAGES 3        /* of a ring; two are loading while one is multiplied */
#define LORA_FEW 8u     /* up to so many rows of a term, chains are split over threads */
#define LORA_RANKS 8u   /* ranks of a thread block then */

/* ---- few rows by a weight ---- */

typedef struct few_task {
    fmc_matrix w;
    const float *x;
    float *y;
    size_t ldx, ldy;
    const int32_t *rows_x, *rows; /* row numbers of x, whose rows are 16-byte aligned, and of y */
    const int32_t *from, *to;     /* as in fm_product */
    const float *bias;
    uint32_t m;
    uint32_t slots;  /* blocks of k that a thread block's warps have at a time */
    uint32_t chunks; /* of rows */
} few_task;

/* For a type: elements of a stage of the ring, and warps of a thread block. */
template <int T> struct few_shape {
    enum {
        elems = T == FM_F32                                          ? 16
                : T == FM_BF16 || T == FM_F16                        ? 32
                : T == FM_F8_E4M3 || T == FM_F8_E5M2 || T == FM_Q8_0 ? 64
                : (int)fmc_block<T>::elems == 32                     ? 128
                                                                     : 256,
        bytes = elems / (int)fmc_block<T>::elems * (int)fmc_block<T>::bytes * 32,
        warps = elems == 256 ? 4 : 8,
        shared = warps * STAGES * bytes
    };
};

/* Multiplies eight k of MR rows of x with this lane's eight weights. */
template <int MR>
FMC_DEVICE void few_eight(float (&sum)[MR], const float *const (&x)[MR], uint32_t k,
                          const float w[8])
{
#pragma unroll
    for (int r = 0; r < MR; r++) {
        const float4 *q = (const float4 *)(const void *)(x[r] + k);
        float4 a = q[0], b = q[1];
        sum[r] = fmaf(a.x, w[0], sum[r]);
        sum[r] = fmaf(a.y, w[1], sum[r]);
        sum[r] = fmaf(a.z, w[2], sum[r]);
        sum[r] = fmaf(a.w, w[3], sum[r]);
        sum[r] = fmaf(b.x, w[4], sum[r]);
        sum[r] = fmaf(b.y, w[5], sum[r]);
        sum[r] = fmaf(b.z, w[6], sum[r]);
        sum[r] = fmaf(b.w, w[7], sum[r]);
    }
}

/* Multiplies k0 .. k1 from one stage; none beyond k1, since adding 0 * 0 turns -0 into +0. */
template <int T, int MR>
FMC_DEVICE void few_stage(float (&sum)[MR], const float *const (&x)[MR], uint32_t k0, uint32_t k1,
                          const unsigned char *stage)
{
    enum { elems = fmc_block<T>::elems, record = fmc_block<T>::bytes * 32 };
    const uint32_t lane = threadIdx.x % 32, whole = (k1 - k0) / 8 * 8;
    float w[8];
#pragma unroll 4
    for (uint32_t e = 0; e < whole; e += 8) {
        fmc_widen8<T>(w, stage + e / elems * record, lane, e % elems);
        few_eight<MR>(sum, x, k0 + e, w);
    }
    if (whole == k1 - k0)
        return;
    fmc_widen8<T>(w, stage + whole / elems * record, lane, whole % elems);
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (k0 + whole + e < k1)
#pragma unroll
            for (int r = 0; r < MR; r++)
                sum[r] = fmaf(x[r][k0 + whole + e], w[e], sum[r]);
}

/* Copies stage s of a run to the ring, as a group of copies even if there is no such stage. */
FMC_DEVICE void few_fetch(unsigned char *ring, const unsigned char *run, uint32_t bytes, uint32_t s,
                          uint32_t stage_bytes)
{
    const uint32_t begin = s * stage_bytes;
    unsigned char *to = ring + s % STAGES * stage_bytes;
    for (uint32_t i = threadIdx.x % 32 * 16; i < stage_bytes && begin + i < bytes; i += 32 * 16)
        fmc_copy16(to + i, run + begin + i, true);
    fmc_copy_commit();
}

/* One block of k, k0 .. k1, of this lane's output: from +0, ascending. */
template <int T, int MR>
FMC_DEVICE void few_block(float (&sum)[MR], const float *const (&x)[MR], const fmc_matrix *w,
                          uint32_t panel, uint32_t k0, uint32_t k1, unsigned char *ring)
{
    typedef few_shape<T> shape;
    enum { elems = fmc_block<T>::elems, record = fmc_block<T>::bytes * 32 };
    const unsigned char *run = w->image + panel * w->panel_bytes + (size_t)(k0 / elems) * record;
    const uint32_t bytes = (k1 - k0 + elems - 1) / elems * record;
    const uint32_t stages = (k1 - k0 + shape::elems - 1) / shape::elems;

#pragma unroll
    for (int r = 0; r < MR; r++)
        sum[r] = 0.0f;
    for (uint32_t s = 0; s < STAGES - 1; s++)
        few_fetch(ring, run, bytes, s, shape::bytes);
    for (uint32_t s = 0; s < stages; s++) {
        few_fetch(ring, run, bytes, s + STAGES - 1, shape::bytes);
        fmc_copy_wait<STAGES - 1>();
        __syncwarp();
        uint32_t k = k0 + s * shape::elems, end = k + shape::elems;
        few_stage<T, MR>(sum, x, k, end < k1 ? end : k1, ring + s % STAGES * shape::bytes);
        __syncwarp();
    }
}

/* Settles a task's segment; all threads call it. Copied rows of x are in the segment's order. */
FMC_DEVICE void few_settle(few_task *mine)
{
    if (!mine->from)
        return;
    const bool copied = mine->rows_x == NULL;
    __syncthreads();
    if (threadIdx.x == 0) {
        fmc_settle(mine);
        mine->rows_x = copied ? NULL : mine->rows;
    }
    __syncthreads();
}

template <int T, int MR>
__global__ void __launch_bounds__(32 * few_shape<T>::warps, 2)
    k_few(const __grid_constant__ fmc_list<few_task> list)
{
    typedef few_shape<T> shape;
    FMC_SHARED_DYNAMIC(unsigned char, rings);
    FMC_SHARED(float, part, [shape::warps][MR][32]);
    FMC_SHARED(few_task, mine, [1]);
    const uint32_t *first = fmc_first(list), at = fmc_find(first, list.count, blockIdx.x);
    const few_task *o = mine;
    fmc_read_task(mine, fmc_tasks(list) + at);
    few_settle(mine);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, k = o->w.k;
    const uint32_t unit = blockIdx.x - first[at], row0 = unit % o->chunks * MR;
    if (row0 >= o->m)
        return;
    const uint32_t panels = shape::warps / o->slots; /* panels of this thread block */
    const uint32_t panel = unit / o->chunks * panels + warp / o->slots, slot = warp % o->slots;
    const uint32_t blocks = (k + FM_K_BLOCK - 1) / FM_K_BLOCK;
    const bool works = warp / o->slots < panels && panel * FMC_PANEL < o->w.n;
    const float *x[MR];
    float sum[MR], total[MR];

#pragma unroll
    for (int r = 0; r < MR; r++) { /* rows beyond the last repeat it, and are not written */
        uint32_t i = row0 + r < o->m ? row0 + r : o->m - 1;
        x[r] = o->x + (o->rows_x ? (size_t)o->rows_x[i] : i) * o->ldx;
        total[r] = 0.0f;
    }
    for (uint32_t b0 = 0; b0 < blocks; b0 += o->slots) {
        const uint32_t k0 = (b0 + slot) * FM_K_BLOCK, end = k0 + FM_K_BLOCK;
        if (works && k0 < k) {
            unsigned char *ring = rings + warp * STAGES * shape::bytes;
            few_block<T, MR>(sum, x, &o->w, panel, k0, end < k ? end : k, ring);
#pragma unroll
            for (int r = 0; r < MR; r++)
                part[warp][r][lane] = sum[r];
        }
        __syncthreads();
        for (uint32_t s = 0; works && slot == 0 && s < o->slots && b0 + s < blocks; s++)
#pragma unroll
            for (int r = 0; r < MR; r++) {
                float p = part[warp + s][r][lane];
                total[r] = b0 + s == 0 ? p : total[r] + p;
            }
        __syncthreads();
    }
    const uint32_t j = panel * FMC_PANEL + lane;
    if (!works || slot > 0 || j >= o->w.n)
        return;
#pragma unroll
    for (int r = 0; r < MR; r++)
        if (row0 + r < o->m) {
            size_t row = o->rows ? (size_t)o->rows[row0 + r] : row0 + r;
            o->y[row * o->ldy + j] = o->bias ? total[r] + o->bias[j] : total[r];
        }
}

/* ---- low-rank terms of a few rows: t = x A^T in parts by blocks of k, then t B^T ---- */

typedef struct lora_task {
    const float *x, *a, *b; /* x, y: of row number 0; a [r, k], b [n, r] */
    float *y, *part;        /* [m, blocks of k, r] */
    size_t ldx, ldy;
    const int32_t *rows, *from, *to;
    uint32_t first, m, k, r, n;
    float scale;
    bool aligned_x, aligned_a;
} lora_task;

FMC_DEVICE size_t lora_row(const lora_task *o, uint32_t i)
{
    return o->rows ? (size_t)o->rows[i] : (size_t)o->first + i;
}

/* The 64 threads of the block copy n floats to shared memory; the caller waits for the copies. */
FMC_DEVICE void lora_fetch(float *to, const float *from, uint32_t n, bool aligned)
{
    const uint32_t quads = aligned ? n / 4 : 0;
    for (uint32_t i = threadIdx.x; i < quads; i += blockDim.x)
        fmc_copy16(to + 4 * i, from + 4 * i, true);
    for (uint32_t i = 4 * quads + threadIdx.x; i < n; i += blockDim.x)
        to[i] = from[i];
}

#define LORA_LINE (FM_K_BLOCK + 4u)

/* A thread block has a block of k, LORA_RANKS ranks, up to LORA_FEW rows; a thread one chain. */
__global__ void __launch_bounds__(64) k_lora_down(const __grid_constant__ fmc_list<lora_task> list)
{
    FMC_SHARED(float, as, [LORA_RANKS][LORA_LINE]);
    FMC_SHARED(float, xs, [LORA_FEW][LORA_LINE]);
    const uint32_t *first = fmc_first(list), at = fmc_find(first, list.count, blockIdx.x);
    lora_task o = fmc_tasks(list)[at];
    if (fmc_settle(&o))
        return;
    const uint32_t unit = blockIdx.x - first[at], blocks = (o.k + FM_K_BLOCK - 1) / FM_K_BLOCK;
    const uint32_t block = unit % blocks, rank0 = unit / blocks * LORA_RANKS;
    const uint32_t k0 = block * FM_K_BLOCK;
    const uint32_t kc = o.k - k0 < FM_K_BLOCK ? o.k - k0 : (uint32_t)FM_K_BLOCK;
    const uint32_t i = threadIdx.x / LORA_RANKS, j = threadIdx.x % LORA_RANKS;

    for (uint32_t q = 0; q < LORA_RANKS && rank0 + q < o.r; q++)
        lora_fetch(as[q], o.a + (size_t)(rank0 + q) * o.k + k0, kc, o.aligned_a);
    for (uint32_t q = 0; q < o.m; q++)
        lora_fetch(xs[q], o.x + lora_row(&o, q) * o.ldx + k0, kc, o.aligned_x);
    fmc_copy_commit();
    fmc_copy_wait<0>();
    __syncthreads();
    if (i >= o.m || rank0 + j >= o.r)
        return;
    float sum = 0.0f;
    uint32_t k = 0;
#pragma unroll 4
    for (; k + 4 <= kc; k += 4) {
        float4 x = *(const float4 *)(const void *)&xs[i][k];
        float4 a = *(const float4 *)(const void *)&as[j][k];
        sum = fmaf(x.x, a.x, sum);
        sum = fmaf(x.y, a.y, sum);
        sum = fmaf(x.z, a.z, sum);
        sum = fmaf(x.w, a.w, sum);
    }
    for (; k < kc; k++)
        sum = fmaf(xs[i][k], as[j][k], sum);
    o.part[((size_t)i * blocks + block) * o.r + rank0 + j] = sum;
}

/* A thread block has one row and 256 outputs; a thread one output. */
__global__ void __launch_bounds__(256) k_lora_up(const __grid_constant__ fmc_list<lora_task> list)
{
    FMC_SHARED(float, ts, [FM_K_BLOCK]);
    const uint32_t *first = fmc_first(list), at = fmc_find(first, list.count, blockIdx.x);
    lora_task o = fmc_tasks(list)[at];
    const uint32_t unit = blockIdx.x - first[at], blocks = (o.k + FM_K_BLOCK - 1) / FM_K_BLOCK;
    const uint32_t i = unit % o.m, n = unit / o.m * FMC_THREADS + threadIdx.x;
    if (fmc_settle(&o) || i >= o.m)
        return;
    float *y = o.y + lora_row(&o, i) * o.ldy + n;

    for (uint32_t r0 = 0; r0 < o.r; r0 += FM_K_BLOCK) {
        const uint32_t rc = o.r - r0 < FM_K_BLOCK ? o.r - r0 : (uint32_t)FM_K_BLOCK;
        __syncthreads();
        for (uint32_t j = threadIdx.x; j < rc; j += FMC_THREADS) {
            const float *p = o.part + (size_t)i * blocks * o.r + r0 + j;
            float t = p[0];
            for (uint32_t b = 1; b < blocks; b++)
                t = t + p[(size_t)b * o.r];
            ts[j] = t;
        }
        __syncthreads();
        if (n >= o.n)
            continue;
        const float *b = o.b + (size_t)n * o.r + r0;
        float sum = 0.0f;
#pragma unroll 8
        for (uint32_t j = 0; j < rc; j++)
            sum = fmaf(ts[j], b[j], sum);
        *y = *y + sum * o.scale;
    }
}

/* ---- lists ---- */

/* Cuts a list into pieces that fit one copy to the GPU; run(list, blocks) launches each. */
template <class Task, class Blocks, class Run>
static void in_groups(fmc_device *d, const std::vector<Task> &list, Blocks blocks_of, Run run)
{
    const uint32_t most = fmc_group_most(sizeof(Task)), count = (uint32_t)list.size();
    std::vector<uint32_t> first;
    for (uint32_t i = 0, n = 0; i < count; i += n) {
        first.assign(1, 0);
        for (n = 0; n < most && i + n < count; n++)
            first.push_back(first.back() + blocks_of(list[i + n]));
        fmc_list<Task> l;
        if (first.back() > 0 && fmc_list_of(&l, d, &list[i], first.data(), n))
            run(l, first.back());
    }
}

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* Types that are rare in files have fewer kernels. */
static constexpr bool is_rare(int type)
{
    return type == FM_F8_E4M3 || type == FM_F8_E5M2 || type == FM_Q5_0 || type == FM_Q5_1 ||
           type == FM_Q5_K || type == FM_IQ4_NL;
}

/* Rows that a kernel of a type takes at a time, for m rows. */
static uint32_t few_rows(int type, uint32_t m)
{
    return m == 1 ? 1 : m > 4 || is_rare(type) ? ROWS_MOST : 4;
}

/* Requests more shared memory than a kernel's default, once for each GPU. */
template <int T, int MR> static bool few_room(fmc_device *d)
{
    static std::atomic<uint64_t> asked;
    const uint64_t bit = 1ull << d->ordinal % 64;
    if (asked.load() & bit) /* static memory counts towards the 48 KiB too, so all request it */
        return true;
    fmc_enter(d);
    if (cudaFuncSetAttribute(k_few<T, MR>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             few_shape<T>::shared) != cudaSuccess) {
        (void)cudaGetLastError(); /* reported here, not again at the next launch */
        fmc_stick(d, FM_EUNSUPPORTED, "the GPU lacks the shared memory of a product");
        return false;
    }
    asked.fetch_or(bit);
    return true;
}

template <int T, int MR> static void run_few(fmc_device *d, const std::vector<few_task> &list)
{
    typedef few_shape<T> shape;
    std::vector<few_task> mine;
    for (few_task o : list) /* at most a few dozen */
        if ((int)o.w.dtype == T && few_rows(T, o.m) == MR) {
            uint32_t blocks = ceil_div(o.w.k, FM_K_BLOCK);
            o.chunks = ceil_div(o.m, MR);
            o.slots = ceil_div(blocks, ceil_div(blocks, shape::warps));
            mine.push_back(o);
        }
    if (mine.empty() || !few_room<T, MR>(d))
        return;
    in_groups(
        d, mine,
        [](const few_task &o) {
            return ceil_div(ceil_div(o.w.n, FMC_PANEL), shape::warps / o.slots) * o.chunks;
        },
        [=](const fmc_list<few_task> &l, uint32_t blocks) {
            FMC_RUN(d, (k_few<T, MR>), blocks, 32 * shape::warps, shape::shared, l);
        });
}

/* x and y point to row number 0. */
static few_task few_of(const fm_product *p, const float *x, size_t ldx)
{
    few_task o = few_task();
    size_t first = p->rows ? 0 : p->first;
    o.w = fmc_exact_weight_of(p->w)->m;
    o.x = x + first * ldx;
    o.y = p->y + first * p->ldy;
    o.ldx = ldx;
    o.ldy = p->ldy;
    o.rows_x = o.rows = p->rows;
    o.from = p->from;
    o.to = p->to;
    o.bias = p->bias;
    o.m = p->m;
    return o;
}

/* Copies rows of x that are not 16-byte aligned to a buffer where they are. */
__global__ void k_align_rows(float *dst, size_t ld, const float *x, size_t ldx, const int32_t *rows,
                             const int32_t *from, const int32_t *to, uint32_t m, uint32_t k)
{
    if (from) {
        m = (uint32_t)(*to - *from);
        rows += *from;
    }
    for (uint64_t i = fmc_index(); i < (uint64_t)m * k; i += fmc_stride()) {
        uint64_t at = i / k, row = rows ? (uint64_t)rows[at] : at;
        dst[at * ld + i % k] = x[row * ldx + i % k];
    }
}

static void align_rows(fmc_device *d, std::vector<few_task> &list)
{
    size_t floats = 0, at = 0;
    for (const few_task &o : list)
        if ((uintptr_t)o.x % 16 != 0 || o.ldx % 4 != 0)
            floats += (size_t)o.m * ((o.w.k + 3) / 4 * 4);
    float *room = floats == 0 ? NULL : (float *)fmc_scratch_get(d, FMC_SCRATCH_OTHER, floats * 4);
    for (few_task &o : list) {
        size_t ld = (o.w.k + 3) / 4 * 4;
        if (!room || ((uintptr_t)o.x % 16 == 0 && o.ldx % 4 == 0))
            continue;
        FMC_RUN(d, k_align_rows, fmc_blocks((uint64_t)o.m * o.w.k, FMC_THREADS), FMC_THREADS, 0,
                room + at, ld, o.x, o.ldx, o.rows_x, o.from, o.to, o.m, o.w.k);
        o.x = room + at;
        o.ldx = ld;
        o.rows_x = NULL;
        at += (size_t)o.m * ld;
    }
}

static void products_of(fmc_device *d, const float *x, size_t ldx, const fm_product *list,
                        uint32_t count)
{
    std::vector<few_task> few;
    std::vector<fmc_task> many;
    for (const fm_product *p = list; p < list + count; p++) {
        size_t first = p->rows ? 0 : p->first;
        const fmc_exact_weight *w = fmc_exact_weight_of(p->w);
        if (p->m > (p->from ? FEW_LISTED : FEW_ROWS)) {
            fmc_task t =
                fmc_task_of(p->y + first * p->ldy, p->ldy, fmc_rows(x + first * ldx, ldx, p->rows),
                            fmc_weight(w, false), p->m, w->m.n, w->m.k);
            t.rows = p->rows;
            t.from = p->from;
            t.to = p->to;
            t.bias = p->bias;
            many.push_back(t);
        } else if (p->m > 0) {
            few.push_back(few_of(p, x, ldx));
        }
    }
    align_rows(d, few);
#define FEW(type)                                                                                  \
    run_few<type, 1>(d, few);                                                                      \
    if constexpr (!is_rare(type))                                                                  \
        run_few<type, 4>(d, few);                                                                  \
    run_few<type, ROWS_MOST>(d, few);
    FMC_TYPES(FEW)
#undef FEW
    fmc_products_run(d, many.data(), (uint32_t)many.size());
}

static void lora_few(fmc_device *d, std::vector<lora_task> &list)
{
    size_t floats = 0;
    for (const lora_task &o : list)
        floats += (size_t)o.m * ceil_div(o.k, FM_K_BLOCK) * o.r;
    float *part =
        list.empty() ? NULL : (float *)fmc_scratch_get(d, FMC_SCRATCH_PRODUCT, floats * 4);
    if (!part)
        return;
    for (lora_task &o : list) {
        o.part = part;
        part += (size_t)o.m * ceil_div(o.k, FM_K_BLOCK) * o.r;
    }
    in_groups(
        d, list,
        [](const lora_task &o) { return ceil_div(o.k, FM_K_BLOCK) * ceil_div(o.r, LORA_RANKS); },
        [=](const fmc_list<lora_task> &l, uint32_t blocks) {
            FMC_RUN(d, k_lora_down, blocks, 64, 0, l);
        });
    in_groups(
        d, list, [](const lora_task &o) { return ceil_div(o.n, FMC_THREADS) * o.m; },
        [=](const fmc_list<lora_task> &l, uint32_t blocks) {
            FMC_RUN(d, k_lora_up, blocks, FMC_THREADS, 0, l);
        });
}

/* Terms of many rows: two lists of products, with t in between. */
static void lora_many(fmc_device *d, const float *x, size_t ldx, uint32_t k,
                      const std::vector<const fm_lora *> &list)
{
    std::vector<fmc_task> down, up;
    size_t floats = 0;
    for (const fm_lora *l : list)
        floats += ((size_t)l->m * fmc_exact_weight_of(l->a)->m.n + 3) / 4 * 4;
    float *t = list.empty() ? NULL : (float *)fmc_scratch_get(d, FMC_SCRATCH_OTHER, floats * 4);
    if (!t)
        return;
    for (const fm_lora *l : list) {
        const uint32_t r = fmc_exact_weight_of(l->a)->m.n, n = fmc_exact_weight_of(l->b)->m.n;
        size_t first = l->rows ? 0 : l->first;
        fmc_task o = fmc_task_of(t, r, fmc_rows(x + first * ldx, ldx, l->rows),
                                 fmc_rows(fmc_exact_weight_of(l->a)->floats, k, NULL), l->m, r, k);
        o.from = l->from;
        o.to = l->to;
        down.push_back(o);
        o = fmc_task_of(l->y + first * l->ldy, l->ldy, fmc_rows(t, r, NULL),
                        fmc_rows(fmc_exact_weight_of(l->b)->floats, r, NULL), l->m, n, r);
        o.rows = l->rows;
        o.from = l->from;
        o.to = l->to;
        o.alpha = l->scale;
        o.add = true;
        up.push_back(o);
        t += ((size_t)l->m * r + 3) / 4 * 4;
    }
    fmc_products_run(d, down.data(), (uint32_t)down.size());
    fmc_products_run(d, up.data(), (uint32_t)up.size());
}

static lora_task lora_of(const fm_lora *l, const float *x, size_t ldx, uint32_t k)
{
    lora_task o = lora_task();
    o.x = x;
    o.a = fmc_exact_weight_of(l->a)->floats;
    o.b = fmc_exact_weight_of(l->b)->floats;
    o.y = l->y;
    o.ldx = ldx;
    o.ldy = l->ldy;
    o.rows = l->rows;
    o.from = l->from;
    o.to = l->to;
    o.first = l->first;
    o.m = l->m;
    o.k = k;
    o.r = fmc_exact_weight_of(l->a)->m.n;
    o.n = fmc_exact_weight_of(l->b)->m.n;
    o.scale = l->scale;
    o.aligned_x = (uintptr_t)x % 16 == 0 && ldx % 4 == 0;
    o.aligned_a = (uintptr_t)o.a % 16 == 0 && k % 4 == 0;
    return o;
}

static void terms_of(fmc_device *d, const float *x, size_t ldx, uint32_t k, const fm_lora *term,
                     uint32_t terms)
{
    std::vector<lora_task> few;
    std::vector<const fm_lora *> many;
    for (const fm_lora *l = term; l < term + terms; l++)
        if (l->m > LORA_FEW)
            many.push_back(l);
        else if (l->m > 0)
            few.push_back(lora_of(l, x, ldx, k));
    lora_few(d, few);
    lora_many(d, x, ldx, k, many);
}

/* ---- operations ---- */

void fmc_op_products(fm_backend *be, const float *x, size_t ldx, uint32_t k, const fm_product *list,
                     uint32_t count)
{
    (void)k;
    try {
        products_of(fmc_of(be), x, ldx, list, count);
    } catch (const std::bad_alloc &) {
        fmc_stick(fmc_of(be), FM_ENOMEM, "out of memory for a list of products");
    }
}

void fmc_op_linear(fm_backend *be, float *y, size_t ldy, const float *x, size_t ldx,
                   const fm_weight *w, const float *bias, const int32_t *rows, uint32_t m)
{
    fm_product p = fm_product();
    p.y = y;
    p.ldy = ldy;
    p.w = w;
    p.bias = bias;
    p.rows = rows;
    p.m = m;
    be->products(be, x, ldx, 0, &p, 1); /* the slot of this mode, which knows its weights */
}

void fmc_op_lora(fm_backend *be, const float *x, size_t ldx, uint32_t k, const fm_lora *term,
                 uint32_t terms)
{
    try {
        terms_of(fmc_of(be), x, ldx, k, term, terms);
    } catch (const std::bad_alloc &) {
        fmc_stick(fmc_of(be), FM_ENOMEM, "out of memory for a list of low-rank terms");
    }
}
