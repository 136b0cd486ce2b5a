/* bench_train.c - one LoRA step of SmolLM2 (f32, batch 4 x 128) against the time that its matrix
 * products alone would take.
 *
 * usage: bench_train [threads] [steps]     1 thread is timed by the CPU's clock, which a busy
 *                                          machine does not disturb; more by the wall's
 * FLOPs of a step: 4 N D for the linear layers (forward, and the gradient of the input; frozen
 * weights have none) and 4 V H R for the head. Limits taken between the steps, in the same run: our
 * own `linear`, and oneDNN's f32 matmul, on the same shapes with the same rows. */
#include <omp.h>
#include <stdlib.h>
#include <time.h>

#include "tests/bench/bench_kit.h"
#include "train/train.h"

#define BATCH 4u
#define TOKENS 128u
#define SHAPES 5u

typedef struct product {  /* one linear layer on the rows of a step */
    uint32_t n, k, times; /* times: how often a forward has it */
    uint32_t m;
    fm_weight *w;
    bk_product *theirs;
    double ours, peer; /* best seconds */
} product;

typedef struct bench {
    fm_backend *be;
    product p[SHAPES];
    float *x, *y, *w;
    double step, mark; /* best step, end of the pause before this one */
    uint32_t steps;
} bench;

static clockid_t clock_id = CLOCK_MONOTONIC;

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(clock_id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(int rc, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "%s: %d %s\n", what, rc, fm_error_text());
    exit(1);
}

static void measure(bench *b, product *p)
{
    for (int i = 0; i < 6; i++) {
        double t = now_s();
        bk_product_run(p->theirs);
        t = now_s() - t;
        p->peer = t < p->peer ? t : p->peer;
    }
    bk_rest();
    for (int i = 0; i < 6; i++) {
        double t = now_s();
        b->be->linear(b->be, b->y, p->n, b->x, p->k, p->w, NULL, NULL, p->m);
        must(b->be->sync(b->be), "linear");
        t = now_s() - t;
        p->ours = t < p->ours ? t : p->ours;
    }
}

static bool between_steps(void *ctx, const fm_train_progress *p, size_t n, bool *drop)
{
    (void)n;
    (void)drop;
    bench *b = ctx;
    double t = now_s() - b->mark;

    if (p->step > 0 && t < b->step)
        b->step = t;
    printf("step %u: %.3f s, loss %.4f\n", p->step, t, p->loss);
    for (size_t i = 0; i < SHAPES; i++)
        measure(b, &b->p[i]);
    b->mark = now_s();
    return false;
}

static void open_products(bench *b, const fm_arch *a, uint32_t rows)
{
    uint32_t kv = a->kv_heads * a->head_dim;
    const product shape[SHAPES] = {{.n = a->hidden, .k = a->hidden, .times = 2 * a->layers},
                                   {.n = kv, .k = a->hidden, .times = 2 * a->layers},
                                   {.n = a->inter, .k = a->hidden, .times = 2 * a->layers},
                                   {.n = a->hidden, .k = a->inter, .times = a->layers},
                                   {.n = a->vocab, .k = a->hidden, .times = 1}};
    size_t widest = (size_t)rows * a->vocab;

    b->x = fm_calloc((size_t)rows * a->inter, sizeof(float));
    b->y = fm_calloc(widest, sizeof(float));
    b->w = fm_calloc((size_t)a->vocab * a->hidden, sizeof(float));
    must(!(b->x && b->y && b->w), "memory");
    for (size_t i = 0; i < SHAPES; i++) {
        b->p[i] = shape[i];
        b->p[i].m = rows;
        b->p[i].ours = b->p[i].peer = 1e9;
        must(b->be->weight_new(b->be, &b->p[i].w, FM_ROLE_LINEAR, FM_F32, shape[i].n, shape[i].k,
                               b->w),
             "weight");
        b->p[i].theirs = bk_product_open(BK_F32, rows, shape[i].n, shape[i].k);
    }
}

static void report(const bench *b)
{
    double flops = 0.0;
    double ours = 0.0;
    double peer = 0.0;

    for (size_t i = 0; i < SHAPES; i++) {
        const product *p = &b->p[i];
        flops += 4.0 * p->m * p->n * p->k * p->times;
        ours += 2.0 * p->ours * p->times;
        peer += 2.0 * p->peer * p->times;
    }
    printf("step %.3f s, %.0f tokens/s, %.1f GFLOP at %.0f GFLOP/s\n", b->step,
           BATCH * TOKENS / b->step, 1e-9 * flops, 1e-9 * flops / b->step);
    printf("products alone: ours %.3f s (%.0f GFLOP/s), oneDNN %.3f s (%.0f GFLOP/s)\n", ours,
           1e-9 * flops / ours, peer, 1e-9 * flops / peer);
    printf("the step runs at %.0f %% of our products' rate, %.0f %% of oneDNN's\n",
           100.0 * ours / b->step, 100.0 * peer / b->step);
}

static void run(bench *b, fm_engine *e, const fm_source *src)
{
    fm_train_job j = {.name = "bench",
                      .config = fm_train_defaults(FM_METHOD_LORA),
                      .parent = fm_source_tree(src)};
    fm_provider p = fm_source_provider(src);
    size_t n = (size_t)b->steps * BATCH * TOKENS;
    int32_t *ids = fm_malloc(n * sizeof(int32_t));
    fm_train_result r;

    must(!ids, "memory");
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(i * 7919u % 40000u) + 100;
    j.config.steps = b->steps;
    j.config.max_tokens = TOKENS;
    j.batch_ids = j.batch_labels = ids;
    b->mark = now_s();
    must(fm_train_run(e, &p, &j, 1, &r, between_steps, b), "train");
    fm_train_result_release(&r);
    fm_free(ids);
}

int main(int argc, char **argv)
{
    char *path = tk_smollm2_gguf();
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    fm_source *src = NULL;
    fm_arch arch;
    bench b = {.step = 1e9, .steps = 6};

    if (!path)
        return tk_skip("SmolLM2's GGUF is not on this machine (FM_MODELS)");
    o.threads = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
    b.steps = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 6;
    if (o.threads > 0)
        omp_set_num_threads((int)o.threads);
    if (o.threads == 1)
        clock_id = CLOCK_PROCESS_CPUTIME_ID;
    must(fm_engine_new(&e, &o), "engine");
    must(fm_source_open(&src, path), path);
    must(fm_arch_of_tree(&arch, fm_source_tree(src), path), path);
    b.be = fm_engine_backend(e);
    printf("backend %s %s\n", b.be->name, b.be->isa);
    open_products(&b, &arch, BATCH * (TOKENS - 1));
    run(&b, e, src);
    report(&b);
    for (size_t i = 0; i < SHAPES; i++)
        b.be->weight_free(b.be, b.p[i].w);
    fm_source_close(src);
    fm_engine_free(e);
    fm_free(path);
    return 0;
}
