/* bench_gemm.c - our exact products against oneDNN's float32 matmul, same shapes, same run.
 *
 * usage: bench_gemm [threads] [seconds per figure]
 * One line a shape as CSV: which product, N, K, M, GFLOP/s of both, ratio, GB/s of weights for
 * ours. Best of many repetitions, the two taking turns, because machines are shared and clocks
 * wander. */
#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "infer/cpu/cpu.h"
#include "store/base/mem.h"
#include "store/base/pool.h"
#include "store/base/rng.h"

typedef struct peer {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t product;
    dnnl_exec_arg_t arg[3];
    dnnl_memory_t packed; /* the weight in oneDNN's own layout */
} peer;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(int rc, const char *what)
{
    if (rc != 0) {
        fprintf(stderr, "%s failed: %d %s\n", what, rc, fm_error_text());
        exit(1);
    }
}

static void peer_memory(peer *p, dnnl_memory_t *out, const dnnl_memory_desc_t *md, void *data)
{
    must(dnnl_memory_create(out, md, p->engine, data), "dnnl_memory_create");
}

/* dst[M,N] = src[M,K] w[N,K]^T with the weight reordered once, as an engine would. */
static void peer_open(peer *p, float *dst, float *src, float *w, int64_t m, int64_t n, int64_t k)
{
    dnnl_dims_t sd = {m, k}, wd = {k, n}, dd = {m, n}, wstride = {1, k};
    dnnl_memory_desc_t smd, wmd, any, dmd;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd, rd;
    dnnl_primitive_t reorder;
    dnnl_memory_t plain;

    must(dnnl_memory_desc_init_by_tag(&smd, 2, sd, dnnl_f32, dnnl_ab), "src");
    must(dnnl_memory_desc_init_by_strides(&wmd, 2, wd, dnnl_f32, wstride), "weights");
    must(dnnl_memory_desc_init_by_tag(&any, 2, wd, dnnl_f32, dnnl_format_tag_any), "any");
    must(dnnl_memory_desc_init_by_tag(&dmd, 2, dd, dnnl_f32, dnnl_ab), "dst");
    must(dnnl_matmul_desc_init(&desc, &smd, &any, NULL, &dmd), "matmul");
    must(dnnl_primitive_desc_create(&pd, &desc, NULL, p->engine, NULL), "matmul desc");
    must(dnnl_primitive_create(&p->product, pd), "matmul create");
    const dnnl_memory_desc_t *own = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    peer_memory(p, &p->packed, own, DNNL_MEMORY_ALLOCATE);
    peer_memory(p, &plain, &wmd, w);
    must(dnnl_reorder_primitive_desc_create(&rd, &wmd, p->engine, own, p->engine, NULL), "reorder");
    must(dnnl_primitive_create(&reorder, rd), "reorder create");
    dnnl_exec_arg_t ra[2] = {{DNNL_ARG_FROM, plain}, {DNNL_ARG_TO, p->packed}};
    must(dnnl_primitive_execute(reorder, p->stream, 2, ra), "reorder run");
    must(dnnl_stream_wait(p->stream), "wait");
    p->arg[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, NULL};
    p->arg[1] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, p->packed};
    p->arg[2] = (dnnl_exec_arg_t){DNNL_ARG_DST, NULL};
    peer_memory(p, &p->arg[0].memory, &smd, src);
    peer_memory(p, &p->arg[2].memory, &dmd, dst);
    dnnl_memory_destroy(plain);
    dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(rd);
    dnnl_primitive_desc_destroy(pd);
}

static void peer_run(peer *p)
{
    must(dnnl_primitive_execute(p->product, p->stream, 3, p->arg), "matmul run");
    must(dnnl_stream_wait(p->stream), "wait");
}

static void peer_shut(peer *p)
{
    for (int i = 0; i < 3; i++)
        dnnl_memory_destroy(p->arg[i].memory);
    dnnl_primitive_destroy(p->product);
}

typedef struct shape {
    uint32_t n, k;
} shape;

typedef struct bench {
    fm_backend *be;
    peer peer;
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
    double t = now_s();

    if (way == OURS)
        b->be->linear(b->be, b->y, s.n, b->x, s.k, w, NULL, NULL, m);
    else if (way == PEER)
        peer_run(&b->peer);
    else if (way == DX)
        b->be->linear_dx(b->be, b->z, s.k, b->y, s.n, w, m, false);
    else
        b->be->gemm(b->be, b->w, s.k, b->y, s.n, true, b->x, s.k, false, s.n, s.k, m, 1.0f, false);
    return now_s() - t;
}

/* The ways take turns of a few milliseconds each, not of one call: OpenMP's idle threads spin on
 * the other core for a while and would be charged to whoever comes next. */
static void run_shape(bench *b, shape s, uint32_t m)
{
    fm_weight *w;
    double best[WAYS] = {1e9, 1e9, 1e9, 1e9};
    int ways = m >= 64 ? WAYS : DX;

    must(b->be->weight_new(b->be, &w, FM_ROLE_LINEAR, FM_F32, s.n, s.k, b->w), "weight_new");
    peer_open(&b->peer, b->z, b->x, b->w, m, s.n, s.k);
    for (double end = now_s() + b->seconds * ways; now_s() < end;)
        for (int way = 0; way < ways; way++)
            for (double turn = now_s() + 0.02; now_s() < turn;)
                best[way] = FM_MIN(best[way], run_once(b, way, w, s, m));
    must(b->be->sync(b->be), "sync");
    report("linear", s, m, best[OURS], best[PEER]);
    if (ways == WAYS) {
        report("linear_dx", s, m, best[DX], best[PEER]);
        report("dw", s, m, best[DW], best[PEER]);
    }
    peer_shut(&b->peer);
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
    omp_set_num_threads((int)threads);
    must(dnnl_engine_create(&b.peer.engine, dnnl_cpu, 0), "engine");
    must(dnnl_stream_create(&b.peer.stream, b.peer.engine, dnnl_stream_default_flags), "stream");
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
