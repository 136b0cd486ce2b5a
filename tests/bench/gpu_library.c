/* gpu_library.c - cuBLASLt as the peer: opened at run time, by hand, because headers of CUDA stay
 * below infer/. Prototypes and numbers are those of its reference (cublasLt.h of CUDA 12 and
 * 13). */
#include <dlfcn.h>
#include <string.h>

#include "tests/bench/gpu_bench.h"

enum { R_32F = 0, R_16BF = 14, COMPUTE_32F = 68, TRANSA = 3, MAX_WORKSPACE = 1 };
#define WORKSPACE ((size_t)64 << 20)
#define ALGORITHMS 8

typedef struct result {
    uint64_t algo[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} result;

typedef struct library {
    void *handle;
    int (*create)(void **handle);
    int (*desc_create)(void **desc, int compute, int scale);
    int (*desc_set)(void *desc, int attr, const void *value, size_t bytes);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
    int (*pref_create)(void **pref);
    int (*pref_set)(void *pref, int attr, const void *value, size_t bytes);
    int (*heuristic)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref,
                     int want, result *out, int *got);
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *la,
                  const void *b, void *lb, const void *beta, const void *c, void *lc, void *d,
                  void *ld, const void *algo, void *workspace, size_t bytes, void *stream);
    int (*synchronize)(void);
} library;

static bool find(void *lib, const char *name, void *slot, size_t bytes)
{
    void *symbol = dlsym(lib, name);

    memcpy(slot, &symbol, bytes);
    return symbol != NULL;
}

static bool open_library(library *l)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    void *lib = NULL, *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    for (size_t i = 0; i < FM_ARRAY_LEN(names) && !lib && driver; i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
#define FIND(from, name, slot) find(from, name, &l->slot, sizeof l->slot)
    return lib && FIND(lib, "cublasLtCreate", create) &&
           FIND(lib, "cublasLtMatmulDescCreate", desc_create) &&
           FIND(lib, "cublasLtMatmulDescSetAttribute", desc_set) &&
           FIND(lib, "cublasLtMatrixLayoutCreate", layout_create) &&
           FIND(lib, "cublasLtMatmulPreferenceCreate", pref_create) &&
           FIND(lib, "cublasLtMatmulPreferenceSetAttribute", pref_set) &&
           FIND(lib, "cublasLtMatmulAlgoGetHeuristic", heuristic) &&
           FIND(lib, "cublasLtMatmul", matmul) && FIND(driver, "cuCtxSynchronize", synchronize) &&
           l->create(&l->handle) == 0;
#undef FIND
}

typedef struct product {
    const library *l;
    void *desc, *w, *x, *y; /* layouts, by columns: y^T = w x^T */
    void *w_at, *x_at, *y_at, *workspace;
    const result *algo;
    bool failed;
} product;

static void run(gb *g, void *ctx)
{
    product *p = ctx;
    const float one = 1.0f, zero = 0.0f;

    (void)g;
    if (p->l->matmul(p->l->handle, p->desc, &one, p->w_at, p->w, p->x_at, p->x, &zero, p->y_at,
                     p->y, p->y_at, p->y, p->algo->algo, p->workspace, WORKSPACE, NULL) != 0 ||
        p->l->synchronize() != 0)
        p->failed = true;
}

static bool describe(product *p, const library *l, uint32_t m, uint32_t n, uint32_t k)
{
    const int transposed = 1;

    return l->desc_create(&p->desc, COMPUTE_32F, R_32F) == 0 &&
           l->desc_set(p->desc, TRANSA, &transposed, sizeof transposed) == 0 &&
           l->layout_create(&p->w, R_16BF, k, n, k) == 0 &&
           l->layout_create(&p->x, R_16BF, k, m, k) == 0 &&
           l->layout_create(&p->y, R_32F, n, m, n) == 0;
}

double gb_library_s(gb *g, uint32_t m, uint32_t n, uint32_t k)
{
    static library l;
    static int state; /* 0: not looked for yet, 1: there, 2: not */
    result results[ALGORITHMS];
    const size_t room = WORKSPACE;
    void *pref;
    int got = 0;
    uint32_t from = g->ptrs;
    double best = 0.0;
    product p = {.l = &l};

    if (state == 0)
        state = open_library(&l) ? 1 : 2;
    if (state == 2 || !describe(&p, &l, m, n, k) || l.pref_create(&pref) != 0 ||
        l.pref_set(pref, MAX_WORKSPACE, &room, sizeof room) != 0 ||
        l.heuristic(l.handle, p.desc, p.w, p.x, p.y, p.y, pref, ALGORITHMS, results, &got) != 0)
        return 0.0;
    p.w_at = gb_random(g, (size_t)n * k * 2);
    p.x_at = gb_random(g, (size_t)m * k * 2);
    p.y_at = gb_random(g, (size_t)m * n * 4);
    p.workspace = gb_random(g, WORKSPACE);
    for (int i = 0; i < got; i++) {
        p.algo = &results[i];
        p.failed = results[i].state != 0;
        double s = p.failed ? 0.0 : gb_time(g, run, &p);
        if (!p.failed && (best == 0.0 || s < best))
            best = s;
    }
    while (g->ptrs > from)
        g->be->free(g->be, g->ptr[--g->ptrs]);
    return best;
}
