/* train_product.cu - products of two matrices by tiles in shared memory: gemm, the gradients of a
 * linear layer, and every other product with more than a few rows (product.h).
 *
 * A block of 256 threads has a tile of c, a thread RM x RN of its sums in registers. Steps of k
 * pass through shared memory, k-major; the operands of the next step are loaded into registers
 * before this one is multiplied. At the end of a block of 512 k the sums are added to c: no other
 * thread has those elements. Bound by the rate of FFMA where tiles are full. */
#include <new>
#include <vector>

#include "infer/cuda/exact/product.h"

#define TILE_THREADS 256u
#define SIDE 16u                   /* threads on each side of a tile */
#define SPLIT_BELOW 2u             /* with fewer tiles a multiprocessor, k is split over blocks */
#define SPLIT_BYTES (256ull << 20) /* most bytes of sums of parts */

/* ---- operands: eight values for each thread and step ---- */

/* The place of this thread's eight values in a step of KS k by T. */
typedef struct spot {
    uint32_t i, k;
    bool along_k;      /* true: eight k of one i; false: eight i of one k */
    const float *line; /* FMC_ROWS: the row */
} spot;

/* i0: first i of the tile; n: number of i of the operand. */
template <int T, int KS>
FMC_DEVICE spot spot_of(const fmc_operand *o, uint32_t i0, uint32_t n, uint32_t t)
{
    spot s;
    s.along_k = o->kind == FMC_ROWS || o->kind == FMC_WEIGHT;
    s.line = NULL;
    if (o->kind == FMC_ROWS) {
        s.i = i0 + t / (KS / 8);
        s.k = t % (KS / 8) * 8;
        if (s.i < n)
            s.line = o->p + (o->rows ? (size_t)o->rows[s.i] : s.i) * o->ld;
    } else if (o->kind == FMC_COLUMNS) {
        s.k = t / (T / 8);
        s.i = i0 + t % (T / 8) * 8;
    } else if (o->kind == FMC_WEIGHT) { /* lanes are rows of W, as in its layout */
        s.i = i0 + t % T;
        s.k = t / T * 8;
    } else {
        s.k = t % KS;
        s.i = i0 + t / KS * 8;
    }
    return s;
}

/* Loads n of eight floats, the rest zeros. */
FMC_DEVICE void load8(float v[8], const float *p, uint32_t n, bool aligned)
{
    if (n >= 8 && aligned) {
        const float4 *q = (const float4 *)(const void *)p;
        float4 a = q[0], b = q[1];
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
        for (uint32_t e = 0; e < 8; e++)
            v[e] = e < n ? p[e] : 0.0f;
    }
}

/* The values of spot s in the step that begins at k0, for i below n and k below end; else zeros.
 * stored: o may be a weight. */
template <bool stored>
FMC_DEVICE void fetch8(float v[8], const fmc_operand *o, const spot *s, uint32_t n, uint32_t k0,
                       uint32_t end)
{
    const uint32_t k = k0 + s->k;
    if (s->i >= n || k >= end) {
#pragma unroll
        for (int e = 0; e < 8; e++)
            v[e] = 0.0f;
    } else if (o->kind == FMC_ROWS) {
        load8(v, s->line + k, end - k, o->aligned);
    } else if (o->kind == FMC_COLUMNS) {
        load8(v, o->p + k * o->ld + s->i, n - s->i, o->aligned);
    } else if (stored) {
        const bool turned = o->kind == FMC_WEIGHT_T;
        fmc_row8(v, &o->w, turned ? k : s->i, turned ? s->i : k);
    }
}

template <int T>
FMC_DEVICE void put8(float (*to)[T + 4], const spot *s, uint32_t i0, const float v[8])
{
    if (s->along_k) {
#pragma unroll
        for (int e = 0; e < 8; e++)
            to[s->k + e][s->i - i0] = v[e];
    } else {
        float4 *line = (float4 *)(void *)&to[s->k][s->i - i0];
        line[0] = make_float4(v[0], v[1], v[2], v[3]);
        line[1] = make_float4(v[4], v[5], v[6], v[7]);
    }
}

/* ---- a tile ---- */

/* Reads R values of thread `at` of 16, in groups of four, adjacent for all threads. */
template <int R> FMC_DEVICE void take(float v[R], const float *line, uint32_t at)
{
    if constexpr (R == 1) {
        v[0] = line[at];
    } else {
#pragma unroll
        for (int g = 0; g < R / 4; g++) {
            float4 f = *(const float4 *)(const void *)(line + g * 4 * SIDE + at * 4);
            v[4 * g] = f.x, v[4 * g + 1] = f.y, v[4 * g + 2] = f.z, v[4 * g + 3] = f.w;
        }
    }
}
/* The row (column) of the tile that value r of thread `at` has. */
template <int R> FMC_DEVICE uint32_t place(uint32_t at, uint32_t r)
{
    return R == 1 ? at : r / 4 * 4 * SIDE + at * 4 + r % 4;
}

template <int RM, int RN>
FMC_DEVICE void multiply(float (&sum)[RM][RN], float (*as)[RM * SIDE + 4],
                         float (*bs)[RN * SIDE + 4], uint32_t kk)
{
    float a[RM], b[RN];
    take<RM>(a, as[kk], threadIdx.x / SIDE);
    take<RN>(b, bs[kk], threadIdx.x % SIDE);
#pragma unroll
    for (int r = 0; r < RM; r++)
#pragma unroll
        for (int q = 0; q < RN; q++)
            sum[r][q] = fmaf(a[r], b[q], sum[r][q]);
}

/* What is done with the sums at the end of a block of k: they are added to c, with the bias after
 * the last block, or kept apart. */
typedef struct ending {
    float *part; /* [m, n] of this block; NULL: c */
    bool add, last;
} ending;

/* The ending of the block of k that ends at k. */
FMC_DEVICE ending ending_of(const fmc_task *o, float *part, uint32_t k, bool last)
{
    ending e;
    e.part = part;
    e.add = !part && (o->add || k > FM_K_BLOCK);
    e.last = !part && last;
    return e;
}

/* Stores the sums, which begin again at +0. */
template <int RM, int RN>
FMC_DEVICE void finish(float (&sum)[RM][RN], const fmc_task *o, uint32_t i0, uint32_t j0, ending e)
{
#pragma unroll
    for (int r = 0; r < RM; r++) {
        uint32_t i = i0 + place<RM>(threadIdx.x / SIDE, r);
        size_t row = i < o->m && o->rows ? (size_t)o->rows[i] : i;
#pragma unroll
        for (int q = 0; q < RN; q++) {
            uint32_t j = j0 + place<RN>(threadIdx.x % SIDE, q);
            float s = sum[r][q] * o->alpha;
            sum[r][q] = 0.0f;
            if (i >= o->m || j >= o->n)
                continue;
            float *c =
                e.part ? e.part + (size_t)i * o->n + j : o->c + row * o->step_i + j * o->step_j;
            if (e.add)
                s = *c + s;
            if (e.last && o->bias)
                s = s + o->bias[j];
            *c = s;
        }
    }
}

/* Sets the task's rows from its segment. All threads call it after all have read m. */
FMC_DEVICE void settle(fmc_task *mine)
{
    if (!mine->from)
        return;
    __syncthreads();
    if (threadIdx.x == 0) {
        const int32_t begin = *mine->from;
        mine->m = (uint32_t)(*mine->to - begin);
        if (mine->rows)
            mine->rows += begin;
        if (mine->a.rows)
            mine->a.rows += begin;
    }
    __syncthreads();
}

template <int RM, int RN, int KS>
__global__ void __launch_bounds__(256, 2) k_tile(const __grid_constant__ fmc_list<fmc_task> list)
{
    constexpr int TM = RM * SIDE, TN = RN * SIDE;
    FMC_SHARED(float, as, [KS][TM + 4]);
    FMC_SHARED(float, bs, [KS][TN + 4]);
    FMC_SHARED(fmc_task, mine, [1]);
    const uint32_t *first = fmc_first(list), at = fmc_find(first, list.count, blockIdx.x),
                   t = threadIdx.x;
    const fmc_task *o = mine;
    fmc_read_task(mine, fmc_tasks(list) + at);
    const uint32_t blocks = o->part ? (o->k + FM_K_BLOCK - 1) / FM_K_BLOCK : 1;
    const uint32_t tiles_m = (o->m + TM - 1) / TM, unit = blockIdx.x - first[at];
    const uint32_t tile = unit / blocks, begin = unit % blocks * FM_K_BLOCK;
    const uint32_t i0 = tile % tiles_m * TM, j0 = tile / tiles_m * TN;
    settle(mine);
    if (i0 >= o->m)
        return;
    const uint32_t k = o->part && o->k - begin > FM_K_BLOCK ? begin + FM_K_BLOCK : o->k;
    float *part = o->part ? o->part + (size_t)(unit % blocks) * o->m * o->n : NULL;
    const spot pa = spot_of<TM, KS>(&o->a, i0, o->m, t), pb = spot_of<TN, KS>(&o->b, j0, o->n, t);
    const bool has_a = t < TM * KS / 8, has_b = t < TN * KS / 8;
    float va[8], vb[8], sum[RM][RN];

#pragma unroll
    for (int r = 0; r < RM; r++)
#pragma unroll
        for (int q = 0; q < RN; q++)
            sum[r][q] = 0.0f;
    for (uint32_t k0 = begin; k0 <= k; k0 += KS) { /* loads k0, multiplies the step before */
        if (k0 < k && has_a)
            fetch8<false>(va, &o->a, &pa, o->m, k0, k);
        if (k0 < k && has_b)
            fetch8<true>(vb, &o->b, &pb, o->n, k0, k);
        if (k0 > begin) {
#pragma unroll
            for (int kk = 0; kk < KS; kk++)
                multiply<RM, RN>(sum, as, bs, kk);
            if (k0 % FM_K_BLOCK == 0)
                finish<RM, RN>(sum, o, i0, j0, ending_of(o, part, k0, k0 == k));
            __syncthreads();
        }
        if (k0 < k && has_a)
            put8<TM>(as, &pa, i0, va);
        if (k0 < k && has_b)
            put8<TN>(bs, &pb, j0, vb);
        __syncthreads();
    }
    if (k % FM_K_BLOCK == 0)
        return;
    for (uint32_t kk = 0; kk < k % KS; kk++) /* the rest of a step: no k beyond the last */
        multiply<RM, RN>(sum, as, bs, kk);
    finish<RM, RN>(sum, o, i0, j0, ending_of(o, part, k, true));
}

/* Adds blocks of k that were kept apart, in ascending order; then as finish. */
__global__ void __launch_bounds__(256) k_fold(const __grid_constant__ fmc_list<fmc_task> list)
{
    const uint32_t *first = fmc_first(list), at = fmc_find(first, list.count, blockIdx.x);
    const fmc_task *o = fmc_tasks(list) + at;
    const uint64_t all = (uint64_t)o->m * o->n, blocks = (o->k + FM_K_BLOCK - 1) / FM_K_BLOCK;
    const uint64_t e = (uint64_t)(blockIdx.x - first[at]) * FMC_THREADS + threadIdx.x;
    if (!o->part || e >= all)
        return;
    const uint32_t i = (uint32_t)(e / o->n), j = (uint32_t)(e % o->n);
    float *c = o->c + (o->rows ? (size_t)o->rows[i] : i) * o->step_i + j * o->step_j;
    float s = o->add ? *c + o->part[e] : o->part[e];
    for (uint64_t b = 1; b < blocks; b++)
        s = s + o->part[b * all + e];
    *c = o->bias ? s + o->bias[j] : s;
}

/* ---- lists ---- */

const void *fmc_group(fmc_device *d, const void *tasks, size_t each, const uint32_t *first,
                      uint32_t count, const uint32_t **first_out)
{
    size_t bytes = (each * count + 15) / 16 * 16, all = bytes + (count + 1) * sizeof *first;
    std::vector<unsigned char> host(all);
    memcpy(host.data(), tasks, each * count);
    memcpy(host.data() + bytes, first, (count + 1) * sizeof *first);
    const unsigned char *dev = (const unsigned char *)fmc_args(d, host.data(), all);
    *first_out = dev ? (const uint32_t *)(const void *)(dev + bytes) : NULL;
    return dev;
}

static bool is_weight(const fmc_operand *o)
{
    return o->kind == FMC_WEIGHT || o->kind == FMC_WEIGHT_T;
}

static bool is_aligned(const fmc_operand *o)
{
    return (uintptr_t)o->p % 16 == 0 && o->ld % 4 == 0;
}

/* A thin product has its long side as rows: a(i, .) b(j, .) is b(j, .) a(i, .). Weights stay b. */
static void turn(fmc_task *t)
{
    t->a.aligned = is_aligned(&t->a);
    t->b.aligned = is_aligned(&t->b);
    if (t->m > SIDE || t->n <= t->m || t->rows || t->from || t->bias || is_weight(&t->b))
        return;
    fmc_operand a = t->a;
    size_t step = t->step_i;
    uint32_t m = t->m;
    t->a = t->b;
    t->b = a;
    t->step_i = t->step_j;
    t->step_j = step;
    t->m = t->n;
    t->n = m;
}

static uint64_t blocks_of_k(const fmc_task *t)
{
    return ((uint64_t)t->k + FM_K_BLOCK - 1) / FM_K_BLOCK;
}

static uint64_t tiles_of(const fmc_task *t, uint32_t tm, uint32_t tn)
{
    return ((uint64_t)t->m + tm - 1) / tm * (((uint64_t)t->n + tn - 1) / tn);
}

/* Whether a task's k may be split: not for segments, which have enough tiles together. */
static bool in_blocks(const fmc_task *t)
{
    return blocks_of_k(t) > 1 && !t->from;
}

/* Where tiles are too few to keep the GPU busy, blocks of k are computed in parallel and added
 * afterwards: more work for memory, the same bits. True if any task of the list is split. */
static bool split(fmc_device *d, fmc_task *list, uint32_t count, uint64_t tiles)
{
    uint64_t floats = 0, at = 0;
    if (tiles >= SPLIT_BELOW * (uint64_t)d->multiprocessors)
        return false;
    for (uint32_t i = 0; i < count; i++)
        floats += in_blocks(&list[i]) ? blocks_of_k(&list[i]) * list[i].m * list[i].n : 0;
    if (floats == 0 || floats * sizeof(float) > SPLIT_BYTES)
        return false;
    float *part = (float *)fmc_scratch_get(d, FMC_SCRATCH_PRODUCT, floats * sizeof(float));
    for (uint32_t i = 0; part && i < count; i++)
        if (in_blocks(&list[i])) {
            list[i].part = part + at;
            at += blocks_of_k(&list[i]) * list[i].m * list[i].n;
        }
    return part != NULL;
}

/* Where each task's work items begin, and the end; blocks of k kept apart count as items. */
static std::vector<uint32_t> begins(const fmc_task *list, uint32_t count, uint32_t tm, uint32_t tn)
{
    std::vector<uint32_t> first(1, 0);
    for (uint32_t i = 0; i < count; i++)
        first.push_back((uint32_t)(first.back() + tiles_of(&list[i], tm, tn) *
                                                      (list[i].part ? blocks_of_k(&list[i]) : 1)));
    return first;
}

template <int RM, int RN, int KS> static void run_tiles(fmc_device *d, std::vector<fmc_task> &list)
{
    const uint32_t most = fmc_group_most(sizeof(fmc_task)), tm = RM * SIDE, tn = RN * SIDE;
    for (uint32_t i = 0, n = 0; i < list.size(); i += n) {
        fmc_list<fmc_task> l;
        n = list.size() - i < most ? (uint32_t)list.size() - i : most;
        bool apart = split(d, &list[i], n, begins(&list[i], n, tm, tn).back());
        std::vector<uint32_t> first = begins(&list[i], n, tm, tn);
        if (fmc_list_of(&l, d, &list[i], first.data(), n))
            FMC_RUN(d, (k_tile<RM, RN, KS>), first.back(), TILE_THREADS, 0, l);
        for (uint32_t t = 0; apart && t < n; t++) /* work items of the fold: 256 elements */
            first[t + 1] =
                first[t] + fmc_blocks((uint64_t)list[i + t].m * list[i + t].n, FMC_THREADS);
        if (apart && fmc_list_of(&l, d, &list[i], first.data(), n))
            FMC_RUN(d, k_fold, first.back(), FMC_THREADS, 0, l);
    }
}

/* Whether large tiles still keep every multiprocessor busy. */
static bool is_large(const fmc_device *d, const fmc_task *t, uint32_t others)
{
    return t->m > 64 && t->n > 64 && tiles_of(t, 128, 128) * others >= (uint64_t)d->multiprocessors;
}

static void run_list(fmc_device *d, fmc_task *list, uint32_t count)
{
    std::vector<fmc_task> thin, small, large;
    for (uint32_t i = 0; i < count; i++) {
        fmc_task *t = &list[i];
        if (t->m == 0 || t->n == 0 || t->k == 0)
            continue;
        turn(t);
        (t->n <= SIDE ? thin : is_large(d, t, count) ? large : small).push_back(*t);
    }
    run_tiles<4, 1, 32>(d, thin);
    run_tiles<4, 4, 32>(d, small);
    run_tiles<8, 8, 16>(d, large);
}

void fmc_products_run(fmc_device *d, fmc_task *list, uint32_t count)
{
    try {
        run_list(d, list, count);
    } catch (const std::bad_alloc &) {
        fmc_stick(d, FM_ENOMEM, "out of memory for a list of products");
    }
}

/* ---- operations ---- */

void fmc_op_gemm(fm_backend *be, float *c, size_t ldc, const float *a, size_t lda, bool ta,
                 const float *b, size_t ldb, bool tb, uint32_t m, uint32_t n, uint32_t k,
                 float alpha, bool accumulate)
{
    fmc_operand oa = ta ? fmc_columns(a, lda) : fmc_rows(a, lda, NULL);
    fmc_operand ob = tb ? fmc_rows(b, ldb, NULL) : fmc_columns(b, ldb);
    fmc_task t = fmc_task_of(c, ldc, oa, ob, m, n, k);
    t.alpha = alpha;
    t.add = accumulate;
    fmc_products_run(fmc_of(be), &t, 1);
}

void fmc_op_linear_dx(fm_backend *be, float *dx, size_t lddx, const float *dy, size_t lddy,
                      const fm_weight *weight, uint32_t m, bool accumulate)
{
    const fmc_exact_weight *w = fmc_exact_weight_of(weight);
    fmc_task t =
        fmc_task_of(dx, lddx, fmc_rows(dy, lddy, NULL), fmc_weight(w, true), m, w->m.k, w->m.n);
    t.add = accumulate;
    fmc_products_run(fmc_of(be), &t, 1);
}

void fmc_op_linear_dw(fm_backend *be, float *dw, const float *dy, size_t lddy, const float *x,
                      size_t ldx, uint32_t m, uint32_t n, uint32_t k, bool stored_kn)
{
    if (stored_kn)
        fmc_op_gemm(be, dw, n, x, ldx, true, dy, lddy, false, k, n, m, 1.0f, true);
    else
        fmc_op_gemm(be, dw, k, dy, lddy, true, x, ldx, false, n, k, m, 1.0f, true);
}
