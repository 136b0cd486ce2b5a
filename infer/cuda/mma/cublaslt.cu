/* cublaslt.cu - cuBLASLt for many rows of bf16, where it gives our own bits.
 *
 * A product is cut into the same parts of k as ours, each one call that adds to the sums before
 * (beta 1), with one algorithm for each (n, k) and no split of k inside. Whether its sums are ours
 * is not written anywhere, so it is tried: at the first product of a weight's shape, random rows in
 * two numbers and at two offsets must come out with equal bits, else that shape stays with our own
 * kernels for good. W by rows is made anew for each call (n k x 4 bytes of traffic), which many rows
 * pay for. The library is opened by name at run time: nothing needs it. */
#include "infer/cuda/mma/cublaslt.h"

#include "infer/cuda/mma/tile.h"

#include <new>

#define LIBRARY_ROWS 512u /* fewer do not pay for W by rows */
#define CHECK_ROWS 600u
#define CHECK_AT 37u
#define CHECK_BYTES (1ull << 30)
#define SHAPES 64u

typedef struct verdict {
    uint32_t n, k;
    bool equal;
} verdict;

struct fmc_library_state {
    fmc_library *library;
    verdict shape[SHAPES];
    uint32_t shapes;
    bool checking;
};

/* ---- the door: cuBLASLt ---- */

#if defined(__CUDACC__)
#include <cublasLt.h>
#include <dlfcn.h>
#include <string.h>

#define WORKSPACE ((size_t)32 << 20)
#define PLANS 64u
#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)

typedef struct lt_plan {
    uint32_t n, k;
    cublasLtMatmulAlgo_t algo;
} lt_plan;

struct fmc_library {
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtMatmulDescInit_internal) desc_init;
    decltype(&cublasLtMatrixLayoutInit_internal) layout_init;
    decltype(&cublasLtMatmulPreferenceInit_internal) pref_init;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set;
    decltype(&cublasLtMatmulPreferenceSetAttribute) pref_set;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    decltype(&cublasLtMatmul) matmul;
    cublasLtHandle_t handle;
    void *workspace;
    lt_plan plan[PLANS];
    uint32_t plans;
};

template <class F> static bool find(void *lib, const char *name, F *slot)
{
    void *symbol = dlsym(lib, name);
    memcpy(slot, &symbol, sizeof symbol);
    return symbol != NULL;
}

static bool find_all(fmc_library *l, void *lib)
{
    return find(lib, "cublasLtCreate", &l->create) && find(lib, "cublasLtDestroy", &l->destroy) &&
           find(lib, "cublasLtMatmulDescInit_internal", &l->desc_init) &&
           find(lib, "cublasLtMatrixLayoutInit_internal", &l->layout_init) &&
           find(lib, "cublasLtMatmulPreferenceInit_internal", &l->pref_init) &&
           find(lib, "cublasLtMatmulDescSetAttribute", &l->desc_set) &&
           find(lib, "cublasLtMatmulPreferenceSetAttribute", &l->pref_set) &&
           find(lib, "cublasLtMatmulAlgoGetHeuristic", &l->heuristic) &&
           find(lib, "cublasLtMatmul", &l->matmul);
}

fmc_library *fmc_library_open(void)
{
    void *lib = dlopen("libcublasLt.so." TEXT_OF(CUBLAS_VER_MAJOR), RTLD_NOW | RTLD_LOCAL);
    fmc_library *l = lib ? new (std::nothrow) fmc_library() : NULL;
    if (!l)
        return NULL;
    if (!find_all(l, lib) || l->create(&l->handle) != CUBLAS_STATUS_SUCCESS) {
        delete l;
        return NULL;
    }
    if (cudaMalloc(&l->workspace, WORKSPACE) != cudaSuccess) {
        (void)cudaGetLastError();
        fmc_library_close(l);
        return NULL;
    }
    return l;
}

void fmc_library_close(fmc_library *l)
{
    if (!l)
        return;
    (void)cudaFree(l->workspace);
    (void)l->destroy(l->handle);
    delete l;
}

/* By columns: y^T [n, m] = w [n, k] x^T. */
typedef struct lt_shape {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t w, x, y;
} lt_shape;

static bool describe(fmc_library *l, lt_shape *s, const fmc_library_call *c)
{
    cublasOperation_t turned = CUBLAS_OP_T;
    return l->desc_init(&s->desc, sizeof s->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
               CUBLAS_STATUS_SUCCESS &&
           l->desc_set(&s->desc, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned) ==
               CUBLAS_STATUS_SUCCESS &&
           l->layout_init(&s->w, sizeof s->w, CUDA_R_16BF, c->k, c->n, (int64_t)c->ldw) ==
               CUBLAS_STATUS_SUCCESS &&
           l->layout_init(&s->x, sizeof s->x, CUDA_R_16BF, c->k, c->m, (int64_t)c->ldx) ==
               CUBLAS_STATUS_SUCCESS &&
           l->layout_init(&s->y, sizeof s->y, CUDA_R_32F, c->n, c->m, (int64_t)c->ldy) ==
               CUBLAS_STATUS_SUCCESS;
}

/* The library's first choice for 4,096 rows, without a split of k. */
static const lt_plan *plan_of(fmc_library *l, const fmc_library_call *c)
{
    fmc_library_call many = *c;
    cublasLtMatmulPreferenceOpaque_t pref;
    cublasLtMatmulHeuristicResult_t best;
    size_t room = WORKSPACE;
    uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    lt_shape s;
    int got = 0;
    for (uint32_t i = 0; i < l->plans; i++)
        if (l->plan[i].n == c->n && l->plan[i].k == c->k)
            return &l->plan[i];
    many.m = 4096;
    if (l->plans == PLANS || !describe(l, &s, &many) ||
        l->pref_init(&pref, sizeof pref) != CUBLAS_STATUS_SUCCESS ||
        l->pref_set(&pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room) !=
            CUBLAS_STATUS_SUCCESS ||
        l->pref_set(&pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof none) !=
            CUBLAS_STATUS_SUCCESS ||
        l->heuristic(l->handle, &s.desc, &s.w, &s.x, &s.y, &s.y, &pref, 1, &best, &got) !=
            CUBLAS_STATUS_SUCCESS ||
        got < 1)
        return NULL;
    lt_plan *p = &l->plan[l->plans++];
    p->n = c->n;
    p->k = c->k;
    p->algo = best.algo;
    return p;
}

bool fmc_library_run(fmc_library *l, cudaStream_t stream, const fmc_library_call *c)
{
    const float one = 1.0f, beta = c->add ? 1.0f : 0.0f;
    const lt_plan *p = plan_of(l, c);
    lt_shape s;
    return p && describe(l, &s, c) &&
           l->matmul(l->handle, &s.desc, &one, c->w, &s.w, c->x, &s.x, &beta, c->y, &s.y, c->y,
                     &s.y, &p->algo, l->workspace, WORKSPACE, stream) == CUBLAS_STATUS_SUCCESS;
}
#endif

/* ---- operands by rows ---- */

/* Four elements of a row of W a thread. */
__global__ void k_library_rows(uint16_t *to, const unsigned char *tiles, uint32_t k, uint64_t all)
{
    uint32_t quads = (k + 3) / 4, steps = (k + FMC_TILE_K - 1) / FMC_TILE_K * 4;
    for (uint64_t i = fmc_index(); i < all; i += fmc_stride()) {
        uint32_t row = (uint32_t)(i / quads), at = (uint32_t)(i % quads) * 4;
        for (uint32_t e = 0; e < 4 && at + e < k; e += 2) {
            uint32_t j = at + e, lane = row % 8 * 4 + j % 8 / 2;
            uint32_t reg = row % 16 / 8 + j % 16 / 8 * 2;
            uint32_t pair =
                fmc_word(tiles + ((size_t)(row / 16) * steps + j / 16) * 512 + 16 * lane + 4 * reg);
            to[(size_t)row * k + j] = (uint16_t)pair;
            if (j + 1 < k)
                to[(size_t)row * k + j + 1] = (uint16_t)(pair >> 16);
        }
    }
}

__global__ void k_library_x(uint16_t *to, const float *x, size_t ldx, const int32_t *rows,
                            uint32_t first, uint32_t k, uint64_t all)
{
    for (uint64_t i = fmc_index(); i < all; i += fmc_stride()) {
        uint32_t at = (uint32_t)(i / k);
        size_t row = rows ? (size_t)rows[at] : (size_t)first + at;
        to[i] = (uint16_t)fmc_pack_bf16(x[row * ldx + i % k], 0.0f);
    }
}

/* What fast.h's products do with their sums. */
__global__ void k_library_finish(const float *sum, float *y, size_t ldy, const float *bias,
                                 const int32_t *rows, uint32_t first, uint32_t n, float alpha,
                                 bool add, uint64_t all)
{
    for (uint64_t i = fmc_index(); i < all; i += fmc_stride()) {
        uint32_t at = (uint32_t)(i / n), j = (uint32_t)(i % n);
        float *to = y + (rows ? (size_t)rows[at] : (size_t)first + at) * ldy + j;
        float v = sum[i] * alpha;
        if (bias)
            v = v + bias[j];
        *to = add ? *to + v : v;
    }
}

static uint64_t padded(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* false: refused or failed; y is then to be computed again. */
static bool run(fmc_device *d, fmc_library *l, const fmc_sum *s)
{
    uint64_t w_all = (uint64_t)s->n * s->k, x_all = (uint64_t)s->p.m * s->k;
    uint64_t y_all = (uint64_t)s->p.m * s->n;
    unsigned char *room = (unsigned char *)fmc_scratch_get(
        d, FMC_SCRATCH_PRODUCT, padded(2 * w_all) + padded(2 * x_all) + 4 * y_all);
    if (!room)
        return false;
    uint16_t *w = (uint16_t *)(void *)room, *x = (uint16_t *)(void *)(room + padded(2 * w_all));
    float *sum = (float *)(void *)(room + padded(2 * w_all) + padded(2 * x_all));
    uint64_t quads = (uint64_t)s->n * fmc_ceil(s->k, 4);
    FMC_RUN(d, k_library_rows, fmc_blocks(quads, FMC_THREADS), FMC_THREADS, 0, w, s->tiles, s->k,
            quads);
    FMC_RUN(d, k_library_x, fmc_blocks(x_all, FMC_THREADS), FMC_THREADS, 0, x, s->x, s->ldx,
            s->p.rows, s->p.rows ? 0 : s->p.first, s->k, x_all);
    uint32_t each = fmc_split_tiles(s->k) * FMC_TILE_K;
    for (uint32_t k = 0; k < s->k; k += each) {
        fmc_library_call c = {};
        c.x = x + k;
        c.w = w + k;
        c.ldx = c.ldw = s->k;
        c.ldy = c.n = s->n;
        c.y = sum;
        c.m = s->p.m;
        c.k = s->k - k < each ? s->k - k : each;
        c.add = k > 0;
        if (d->failed != FM_OK || !fmc_library_run(l, d->stream, &c))
            return false;
    }
    FMC_RUN(d, k_library_finish, fmc_blocks(y_all, FMC_THREADS), FMC_THREADS, 0, sum, s->p.y,
            s->p.ldy, s->p.bias, s->p.rows, s->p.rows ? 0 : s->p.first, s->n, s->alpha, s->add,
            y_all);
    return d->failed == FM_OK;
}

/* ---- the check ---- */

__global__ void k_library_random(float *x, uint64_t all)
{
    for (uint64_t i = fmc_index(); i < all; i += fmc_stride()) {
        uint32_t h = (uint32_t)i * 2654435761u;
        h = (h ^ h >> 15) * 2246822519u;
        h = (h ^ h >> 13) * 3266489917u;
        x[i] = (float)(int32_t)(h ^ h >> 16) * 0x1p-31f;
    }
}

__global__ void k_library_differ(unsigned *differ, const float *a, const float *b, uint64_t all)
{
    for (uint64_t i = fmc_index(); i < all; i += fmc_stride())
        if (__float_as_uint(a[i]) != __float_as_uint(b[i]))
            (void)atomicOr(differ, 1u);
}

/* Rows first .. first + m of x by both, and whether they agree. */
static bool agree(fmc_device *d, fmc_library_state *st, fmc_sum *s, float *ours, float *theirs,
                  unsigned *differ)
{
    uint64_t all = (uint64_t)s->p.m * s->n;
    unsigned host = 1;
    s->p.y = theirs - s->p.first * s->p.ldy;
    if (!run(d, st->library, s))
        return false;
    s->p.y = ours - s->p.first * s->p.ldy;
    fmc_sums(d, s, 1);
    if (d->failed != FM_OK || cudaMemsetAsync(differ, 0, sizeof *differ, d->stream) != cudaSuccess)
        return false;
    FMC_RUN(d, k_library_differ, fmc_blocks(all, FMC_THREADS), FMC_THREADS, 0, differ, ours, theirs,
            all);
    return cudaMemcpyAsync(&host, differ, sizeof host, cudaMemcpyDeviceToHost, d->stream) ==
               cudaSuccess &&
           cudaStreamSynchronize(d->stream) == cudaSuccess && host == 0;
}

static bool check(fmc_device *d, fmc_library_state *st, const fmc_sum *like)
{
    uint64_t x_all = (uint64_t)CHECK_ROWS * like->k, y_all = (uint64_t)CHECK_ROWS * like->n;
    void *room = NULL;
    bool equal = false;
    fmc_enter(d);
    if (8 * y_all > CHECK_BYTES || cudaMalloc(&room, padded(4 * x_all) + 8 * y_all + 256)) {
        (void)cudaGetLastError();
        return false;
    }
    float *x = (float *)room, *ours = x + padded(4 * x_all) / 4, *theirs = ours + y_all;
    fmc_sum s = {};
    s.kind = like->kind;
    s.tiles = like->tiles;
    s.n = like->n;
    s.k = s.ldx = like->k;
    s.x = x;
    s.p.ldy = like->n;
    s.alpha = 1.0f;
    s.p.m = CHECK_ROWS;
    FMC_RUN(d, k_library_random, fmc_blocks(x_all, FMC_THREADS), FMC_THREADS, 0, x, x_all);
    st->checking = true;
    equal = agree(d, st, &s, ours, theirs, (unsigned *)(void *)(theirs + y_all));
    s.p.first = CHECK_AT;
    s.p.m = LIBRARY_ROWS;
    equal = equal && agree(d, st, &s, ours, theirs, (unsigned *)(void *)(theirs + y_all));
    st->checking = false;
    (void)cudaFree(room);
    return equal;
}

static bool is_equal(fmc_device *d, fmc_library_state *st, const fmc_sum *s)
{
    for (uint32_t i = 0; i < st->shapes; i++)
        if (st->shape[i].n == s->n && st->shape[i].k == s->k)
            return st->shape[i].equal;
    if (st->shapes == SHAPES || d->arena) /* a check waits, which a recorded step cannot */
        return false;
    verdict v = {s->n, s->k, check(d, st, s)};
    st->shape[st->shapes++] = v;
    return v.equal;
}

/* ---- what the products ask ---- */

fm_status fmc_library_begin(fmc_device *d)
{
    fmc_fast *f = (fmc_fast *)d->fast;
    fmc_library *l = fmc_library_open();
    if (!l)
        return FM_OK;
    f->library = new (std::nothrow) fmc_library_state();
    if (!f->library) {
        fmc_library_close(l);
        return fmc_fail(FM_ENOMEM, "out of memory");
    }
    f->library->library = l;
    return FM_OK;
}

void fmc_library_end(fmc_device *d)
{
    fmc_fast *f = (fmc_fast *)d->fast;
    if (f->library)
        fmc_library_close(f->library->library);
    delete f->library;
    f->library = NULL;
}

bool fmc_library_sum(fmc_device *d, const fmc_sum *s)
{
    fmc_library_state *st = ((fmc_fast *)d->fast)->library;
    if (!st || st->checking || s->kind != FMC_BF16 || s->p.split || s->turned || s->dense ||
        s->p.m < LIBRARY_ROWS || s->n % 8 || s->k % 8)
        return false;
    return is_equal(d, st, s) && run(d, st->library, s);
}
