/* bench_gemm.c - our exact products against oneDNN's float32 matmul, same shapes, same run.
 *
 * usage: bench_gemm [threads] [seconds per figure]
 * One line a shape as CSV: which product, N, K, M, GFLOP/s of both, ratio, GB/s of weights for
 * ours. Best of many repetitions, the two taking turns, because machines are shared and clocks
 * wander. */
#include <stdlib.h>

#include "infer/cpu/cpu.h"
#include "store/base/math/rng.h"
#include "tests/bench/bench_kit.h"

static void must(int rc, const char *what)
{
    if (rc != 0) {
        fprintf(stderr, "%s failed: %d %s\n", what, rc, fm_error_text());
        exit(1);
    }
}

typedef struct shape {
    uint32_t n, k;
} shape;

typedef struct bench {
    fm_backend *be;
    bk_product *peer;
    double seconds;
    float *x, *w, *y, *z;
} bench;

static void report(const char *what, shape s, uint32_t m, double ours, double theirs)
{
    double flop = 2.0 * m * s.n * s.k;

    printf("%s,%u,%u,%u,%.1f,%.1f,%.2f,%.1f\n", what, s.n, s.k, m, 1e-9 * flop / ours,
           1e-9 * flop / theirs, theirs / ours, 4e-9 * s.n * s.k / ours);
    fflush(stdout);
}

enum { OURS, PEER, DX, DW, WAYS };

static double run_once(bench *b, int way, const fm_weight *w, shape s, uint32_t m)
{
    double t = bk_work_s();

    if (way == OURS)
        b->be->linear(b->be, b->y, s.n, b->x, s.k, w, NULL, NULL, m);
    else if (way == PEER)
        bk_product_run(b->peer);
    else if (way == DX)
        b->be->linear_dx(b->be, b->z, s.k, b->y, s.n, w, m, false);
    else
        b->be->gemm(b->be, b->w, s.k, b->y, s.n, true, b->x, s.k, false, s.n, s.k, m, 1.0f, false);
    return bk_work_s() - t;
}

/* The ways take turns of a few milliseconds each, not of one call: OpenMP's idle threads spin on
 * the other core for a while and would be charged to whoever comes next. */
static void run_shape(bench *b, shape s, uint32_t m)
{
    fm_weight *w;
    double best[WAYS] = {1e9, 1e9, 1e9, 1e9};
    int ways = m >= 64 ? WAYS : DX;

    must(b->be->weight_new(b->be, &w, FM_ROLE_LINEAR, FM_F32, s.n, s.k, b->w), "weight_new");
    b->peer = bk_product_open(BK_F32, m, s.n, s.k);
    for (double end = bk_now_s() + b->seconds * ways; bk_now_s() < end;)
        for (int way = 0; way < ways; way++)
            for (double turn = bk_now_s() + 0.02; bk_now_s() < turn;)
                best[way] = FM_MIN(best[way], run_once(b, way, w, s, m));
    must(b->be->sync(b->be), "sync");
    report("linear", s, m, best[OURS], best[PEER]);
    if (ways == WAYS) {
        report("linear_dx", s, m, best[DX], best[PEER]);
        report("dw", s, m, best[DW], best[PEER]);
    }
    bk_product_close(b->peer);
    b->be->weight_free(b->be, w);
}

int main(int argc, char **argv)
{
    const shape shapes[] = {{576, 576}, {192, 576}, {1536, 576}, {576, 1536}, {49152, 576}};
    const uint32_t rows[] = {1, 8, 64, 512};
    unsigned threads = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 2;
    bench b = {.seconds = argc > 2 ? strtod(argv[2], NULL) : 0.3};
    size_t biggest = (size_t)49152 * 576;
    fm_pool *pool;

    must(fm_pool_new(&pool, threads), "pool");
    must(fmi_cpu_open_isa(&b.be, pool, argc > 3 ? argv[3] : NULL), "backend");
    bk_clock(threads);
    b.x = fm_calloc(512 * 1536, sizeof(float));
    b.w = fm_calloc(biggest, sizeof(float));
    b.y = fm_calloc((size_t)512 * 49152, sizeof(float));
    b.z = fm_calloc((size_t)512 * 49152, sizeof(float));
    for (size_t i = 0; i < (size_t)512 * 1536; i++)
        b.x[i] = (float)(fm_rng_uniform(1, 0, i) - 0.5);
    printf("isa,%s,threads,%u\nproduct,N,K,M,ours_gflops,onednn_gflops,ratio,weights_GBps\n",
           b.be->isa, threads);
    for (size_t s = 0; s < FM_ARRAY_LEN(shapes); s++)
        for (size_t r = 0; r < FM_ARRAY_LEN(rows); r++)
            run_shape(&b, shapes[s], rows[r]);
    fm_backend_close(b.be);
    fm_pool_free(pool);
    return 0;
}
