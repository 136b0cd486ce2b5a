/* bench_products.c - the products of a training step in modes exact and bf16 against oneDNN's
 * matmul of the same kind and shape, and its low-rank terms against the six matmuls that they are.
 *
 * usage: bench_products [threads] [seconds per figure] [rows] [N: these weights alone, no terms]
 * CSV: GFLOP/s of both and ours as a share of oneDNN's. dx+ has weight_for_dx, dx has not; both and
 * dw are held against oneDNN's forward of the same shape. Best turns; the sides take turns of 20 ms
 * in one run. oneDNN 2.6 has bf16 from AVX-512 on: elsewhere its column is empty. */
#include <math.h>
#include <stdlib.h>

#include "infer/cpu/cpu.h"
#include "store/base/math/rng.h"
#include "tests/bench/bench_kit.h"

typedef struct shape {
    uint32_t n, k;
} shape;

enum { LINEAR, DX, DX_LAID, DW, OURS };
static const char *const way_name[OURS] = {"linear", "dx", "dx+", "dw"};

typedef struct bench {
    fm_backend *be;
    fm_weight *plain, *laid;
    float *x, *y, *z, *w;
    double seconds;
} bench;

static void must(int rc, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "%s failed: %d %s\n", what, rc, fm_error_text());
    exit(1);
}

static double run_once(const bench *b, int way, shape s, uint32_t m)
{
    double t = bk_work_s();

    if (way == LINEAR)
        b->be->linear(b->be, b->y, s.n, b->x, s.k, b->plain, NULL, NULL, m);
    else if (way == DW)
        b->be->linear_dw(b->be, b->w, b->y, s.n, b->x, s.k, m, s.n, s.k, false);
    else
        b->be->linear_dx(b->be, b->z, s.k, b->y, s.n, way == DX ? b->plain : b->laid, m, false);
    return bk_work_s() - t;
}

static void run_shape(bench *b, shape s, uint32_t m)
{
    bool bf16 = strcmp(b->be->mode, "bf16") == 0;
    bk_product *peer = NULL;
    double best[OURS] = {1e9, 1e9, 1e9, 1e9}, theirs = 1e9;

#if defined(__x86_64__)
    if (!bf16 || __builtin_cpu_supports("avx512bw"))
        peer = bk_product_open(bf16 ? BK_BF16 : BK_F32, m, s.n, s.k);
#endif
    must(b->be->weight_new(b->be, &b->plain, FM_ROLE_LINEAR, FM_F32, s.n, s.k, b->w), "weight");
    must(b->be->weight_new(b->be, &b->laid, FM_ROLE_LINEAR, FM_F32, s.n, s.k, b->w), "weight");
    must(b->be->weight_for_dx(b->be, b->laid), "weight_for_dx");
    for (double end = bk_now_s() + b->seconds * (OURS + 1); bk_now_s() < end;) {
        if (peer)
            theirs = fmin(theirs, bk_product_s(peer, 0.02));
        for (int way = 0; way < OURS; way++)
            for (double turn = bk_now_s() + 0.02; bk_now_s() < turn;)
                best[way] = fmin(best[way], run_once(b, way, s, m));
    }
    must(b->be->sync(b->be), "sync");
    for (int way = 0; way < OURS; way++) {
        double flop = 2e-9 * m * s.n * s.k;
        printf("%s,%s,%u,%u,%u,%.1f", b->be->mode, way_name[way], s.n, s.k, m, flop / best[way]);
        if (peer)
            printf(",%.1f,%.2f\n", flop / theirs, theirs / best[way]);
        else
            printf(",,\n");
    }
    (void)fflush(stdout);
    if (peer)
        bk_product_close(peer);
    b->be->weight_free(b->be, b->plain);
    b->be->weight_free(b->be, b->laid);
}

/* ---- low-rank terms: `children` of m rows each, q, k, v of one x ---- */

#define TERMS_MOST 24u
#define SIDE 576u

typedef struct thin {
    fm_term t[TERMS_MOST];
    uint32_t count;
} thin;

static void lay_out(const bench *b, thin *l, uint32_t children, uint32_t m, uint32_t r)
{
    static const uint32_t out[] = {SIDE, SIDE / 3, SIDE / 3};
    float *small = b->w, *y = b->y;

    *l = (thin){.count = 3 * children};
    for (uint32_t i = 0; i < l->count; i++) {
        fm_term *t = &l->t[i];
        *t = (fm_term){.in = SIDE, .out = out[i % 3], .r = r, .m = m, .scale = 2.0f};
        t->a = t->da = small; /* the figures are about time */
        t->b = t->db = small + r * SIDE;
        t->u = t->du = small + 2ul * r * SIDE + (size_t)i * m * r;
        t->x = b->x + (size_t)(i / 3) * m * SIDE;
        t->dx = b->z + (size_t)(i / 3) * m * SIDE;
        t->y = y + (size_t)i * m * SIDE;
        t->dy = t->y;
        t->ldx = t->lddx = t->ldy = t->lddy = SIDE;
    }
}

static double peer_terms(uint32_t m, uint32_t r, uint32_t in, uint32_t out)
{
    const uint32_t dim[][3] = {{m, r, in}, {m, out, r}, {m, r, out},
                               {m, in, r}, {r, in, m},  {out, r, m}};
    double sum = 0.0;

    for (size_t i = 0; i < FM_ARRAY_LEN(dim); i++) {
        bk_product *p = bk_product_open(BK_F32, dim[i][0], dim[i][1], dim[i][2]);
        bk_product_run(p);
        sum += bk_product_s(p, 0.03);
        bk_product_close(p);
    }
    bk_rest();
    return sum;
}

static void run_terms(bench *b, uint32_t children, uint32_t m, uint32_t r)
{
    double best[2] = {1e9, 1e9}, flop = 0.0, theirs = 0.0;
    thin l;

    lay_out(b, &l, children, m, r);
    for (uint32_t i = 0; i < l.count; i++)
        flop += 1e-9 * 2.0 * m * r * (l.t[i].in + l.t[i].out);
    for (uint32_t i = 0; i < 3; i++)
        theirs += children * peer_terms(m, r, l.t[i].in, l.t[i].out);
    for (double end = bk_now_s() + 2 * b->seconds; bk_now_s() < end;) {
        double t0 = bk_work_s();
        b->be->terms(b->be, l.t, l.count);
        double t1 = bk_work_s();
        b->be->terms_grad(b->be, l.t, l.count);
        best[0] = fmin(best[0], t1 - t0);
        best[1] = fmin(best[1], bk_work_s() - t1);
    }
    must(b->be->sync(b->be), "sync");
    printf("terms,%u,%u,%u,%.1f,%.1f,%.1f,%.2f\n", children, m, r, flop / best[0],
           2.0 * flop / best[1], 3.0 * flop / theirs, theirs / (best[0] + best[1]));
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    static const shape shapes[] = {{576, 576}, {192, 576}, {1536, 576}, {576, 1536}, {49152, 576}};
    static const uint32_t lists[][3] = {{1, 8, 8},    {1, 64, 8}, {1, 512, 8}, {1, 512, 16},
                                        {1, 512, 64}, {8, 8, 8},  {8, 32, 8},  {8, 512, 8}};
    unsigned threads = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1;
    uint32_t only = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 0;
    uint32_t m = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 512;
    bench b = {.seconds = argc > 2 ? strtod(argv[2], NULL) : 0.3};
    const size_t wide = (size_t)FM_MAX(m, 576) * 49152;
    fm_pool *pool;

    must(fm_pool_new(&pool, threads), "pool");
    bk_clock(threads);
    b.x = fm_calloc(wide / 8, sizeof(float));
    b.w = fm_calloc((size_t)49152 * 576, sizeof(float));
    b.y = fm_calloc(wide, sizeof(float));
    b.z = fm_calloc(wide / 8, sizeof(float));
    must(!(b.x && b.w && b.y && b.z), "memory");
    for (int mode = 0; mode < 2; mode++) {
        must(fm_backend_open(&b.be, mode ? "bf16" : "exact", pool), "backend");
        printf("isa,%s,class,%s,threads,%u\n", b.be->isa, b.be->kernel_class, threads);
        printf("mode,product,N,K,M,ours_gflops,onednn_gflops,share\n");
        for (size_t s = 0; s < FM_ARRAY_LEN(shapes); s++)
            if (only == 0 || only == shapes[s].n)
                run_shape(&b, shapes[s], m);
        if (mode == 0 && only == 0) {
            printf(",children,rows,rank,terms_gflops,terms_grad_gflops,onednn_gflops,share\n");
            for (size_t i = 0; i < FM_ARRAY_LEN(lists); i++)
                run_terms(&b, lists[i][0], lists[i][1], lists[i][2]);
        }
        fm_backend_close(b.be);
    }
    fm_pool_free(pool);
    return 0;
}
