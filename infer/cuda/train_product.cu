/* train_product.cu - products of two matrices by tiles in shared memory: gemm, the gradients of a
 * linear layer, and every other product with more than a few rows (product.h).
 *
 * A block of 256 threads has a tile of c, a thread RM x RN sums of it in registers. Steps of k pass
 * through shared memory, k-major; what the next step needs is fetched into registers before this
 * one is multiplied. At the end of a block of 512 k the sums are added to c, where they wait: no
 * other thread has that element. Bound by the rate of FFMA where tiles are full. */
#include <vector>

#include "infer/cuda/product.h"

#define TILE_THREADS 256u
#define SIDE 16u /* threads on each side of a tile */

/* ---- operands: eight values a thread and step ---- */

/* Where this thread's eight values stand in a step of KS k by T. */
typedef struct spot {
    uint32_t i, k;
    bool along_k;      /* eight k of one i, or eight i of one k */
    const float *line; /* FMC_ROWS: the row */
} spot;

/* i0: of the tile; n: of the operand. */
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
    } else if (o->kind == FMC_WEIGHT) { /* lanes are rows of W, as its layout has them */
        s.i = i0 + t % T;
        s.k = t / T * 8;
    } else {
        s.k = t % KS;
        s.i = i0 + t / KS * 8;
    }
    return s;
}

/* n of eight floats, the rest zeros. */
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

/* The values of spot s in the step that begins at k0, for i below n and k below end; else zeros. */
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
    } else if (o->kind == FMC_WEIGHT) {
        fmc_row8(v, &o->w, s->i, k);
    } else {
        fmc_row8(v, &o->w, k, s->i);
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

/* R values of thread `at` of 16: groups of four, the groups of all threads side by side. */
template <int R> FMC_DEVICE void take(float v[R], const float *line, uint32_t at)
{
    if (R == 1) {
        v[0] = line[at];
        return;
    }
#pragma unroll
    for (int g = 0; g < R / 4; g++) {
        float4 f = *(const float4 *)(const void *)(line + g * 4 * SIDE + at * 4);
        v[4 * g] = f.x, v[4 * g + 1] = f.y, v[4 * g + 2] = f.z, v[4 * g + 3] = f.w;
    }
}
/* Which row (column) of the tile value r of thread `at` is. */
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

/* The sums of a block of k into c; they begin again at +0. */
template <int RM, int RN>
FMC_DEVICE void finish(float (&sum)[RM][RN], const fmc_task *o, uint32_t i0, uint32_t j0, bool add,
                       bool last)
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
            float *c = o->c + row * o->step_i + j * o->step_j;
            if (add)
                s = *c + s;
            if (last && o->bias)
                s = s + o->bias[j];
            *c = s;
        }
    }
}

/* The task of this block, from the card's list to shared memory. */
FMC_DEVICE void read_task(fmc_task *mine, const fmc_task *o)
{
    const uint32_t *from = (const uint32_t *)(const void *)o;
    uint32_t *to = (uint32_t *)(void *)mine;
    if (threadIdx.x < sizeof *o / 4)
        to[threadIdx.x] = from[threadIdx.x];
    __syncthreads();
}

template <int RM, int RN, int KS>
__global__ void __launch_bounds__(256, RM *RN > 16 ? 2 : 3)
    k_tile(const fmc_task *task, const uint32_t *first, uint32_t count)
{
    constexpr int TM = RM * SIDE, TN = RN * SIDE;
    FMC_SHARED(float, as, [KS][TM + 4]);
    FMC_SHARED(float, bs, [KS][TN + 4]);
    FMC_SHARED(fmc_task, mine, [1]);
    const uint32_t at = fmc_find(first, count, blockIdx.x), t = threadIdx.x;
    const fmc_task *o = mine;
    read_task(mine, task + at);
    const uint32_t tiles_m = (o->m + TM - 1) / TM, tile = blockIdx.x - first[at];
    const uint32_t i0 = tile % tiles_m * TM, j0 = tile / tiles_m * TN, k = o->k;
    const spot pa = spot_of<TM, KS>(&o->a, i0, o->m, t), pb = spot_of<TN, KS>(&o->b, j0, o->n, t);
    const bool has_a = t < TM * KS / 8, has_b = t < TN * KS / 8;
    float va[8], vb[8], sum[RM][RN];

#pragma unroll
    for (int r = 0; r < RM; r++)
#pragma unroll
        for (int q = 0; q < RN; q++)
            sum[r][q] = 0.0f;
    for (uint32_t k0 = 0; k0 <= k; k0 += KS) { /* fetches k0, multiplies the step before */
        if (k0 < k && has_a)
            fetch8(va, &o->a, &pa, o->m, k0, k);
        if (k0 < k && has_b)
            fetch8(vb, &o->b, &pb, o->n, k0, k);
        if (k0 > 0) {
#pragma unroll
            for (int kk = 0; kk < KS; kk++)
                multiply<RM, RN>(sum, as, bs, kk);
            if (k0 % FM_K_BLOCK == 0)
                finish<RM, RN>(sum, o, i0, j0, o->add || k0 > FM_K_BLOCK, k0 == k);
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
    for (uint32_t kk = 0; kk < k % KS; kk++) /* what is left of a step: no k beyond the last */
        multiply<RM, RN>(sum, as, bs, kk);
    finish<RM, RN>(sum, o, i0, j0, o->add || k > FM_K_BLOCK, true);
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

static bool is_aligned(const fmc_operand *o)
{
    return (uintptr_t)o->p % 16 == 0 && o->ld % 4 == 0;
}

/* A thin product has its long side as rows: a(i, .) b(j, .) is b(j, .) a(i, .). */
static void turn(fmc_task *t)
{
    t->a.aligned = is_aligned(&t->a);
    t->b.aligned = is_aligned(&t->b);
    if (t->m >= t->n || t->n <= SIDE || t->rows || t->bias)
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

template <int RM, int RN, int KS>
static void run_tiles(fmc_device *d, const fmc_task *list, uint32_t count)
{
    const uint32_t most = fmc_group_most(sizeof *list);
    std::vector<uint32_t> first(1 + (count < most ? count : most));
    for (uint32_t i = 0, n = 0; i < count; i += n) {
        uint64_t tiles = 0;
        for (n = 0; n < most && i + n < count; n++) {
            const fmc_task *t = &list[i + n];
            first[n] = (uint32_t)tiles;
            tiles += ((uint64_t)t->m + RM * SIDE - 1) / (RM * SIDE) *
                     (((uint64_t)t->n + RN * SIDE - 1) / (RN * SIDE));
        }
        first[n] = (uint32_t)tiles;
        const uint32_t *dev_first;
        const void *dev = fmc_group(d, list + i, sizeof *list, first.data(), n, &dev_first);
        if (dev)
            FMC_RUN(d, (k_tile<RM, RN, KS>), (unsigned)tiles, TILE_THREADS, 0,
                    (const fmc_task *)dev, dev_first, n);
    }
}

/* Large tiles where they still keep every multiprocessor busy. */
static bool is_large(const fmc_device *d, const fmc_task *t, uint32_t others)
{
    uint64_t tiles = ((uint64_t)t->m + 127) / 128 * (((uint64_t)t->n + 127) / 128);
    return t->m > 64 && t->n > 64 && tiles * others >= (uint64_t)d->multiprocessors;
}

void fmc_products_run(fmc_device *d, fmc_task *list, uint32_t count)
{
    std::vector<fmc_task> thin, small, large;
    for (uint32_t i = 0; i < count; i++) {
        fmc_task *t = &list[i];
        if (t->m == 0 || t->n == 0)
            continue;
        turn(t);
        (t->n <= SIDE ? thin : is_large(d, t, count) ? large : small).push_back(*t);
    }
    run_tiles<4, 1, 32>(d, thin.data(), (uint32_t)thin.size());
    run_tiles<4, 4, 32>(d, small.data(), (uint32_t)small.size());
    run_tiles<8, 8, 16>(d, large.data(), (uint32_t)large.size());
}

/* ---- operations ---- */

static void gemm(fm_backend *be, float *c, size_t ldc, const float *a, size_t lda, bool ta,
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

static void linear_dx(fm_backend *be, float *dx, size_t lddx, const float *dy, size_t lddy,
                      const fm_weight *w, uint32_t m, bool accumulate)
{
    fmc_task t =
        fmc_task_of(dx, lddx, fmc_rows(dy, lddy, NULL), fmc_weight(w, true), m, w->m.k, w->m.n);
    t.add = accumulate;
    fmc_products_run(fmc_of(be), &t, 1);
}

static void linear_dw(fm_backend *be, float *dw, const float *dy, size_t lddy, const float *x,
                      size_t ldx, uint32_t m, uint32_t n, uint32_t k, bool stored_kn)
{
    if (stored_kn)
        gemm(be, dw, n, x, ldx, true, dy, lddy, false, k, n, m, 1.0f, true);
    else
        gemm(be, dw, k, dy, lddy, true, x, ldx, false, n, k, m, 1.0f, true);
}

void fmc_train_product_install(fm_backend *be)
{
    be->gemm = gemm;
    be->linear_dx = linear_dx;
    be->linear_dw = linear_dw;
}
