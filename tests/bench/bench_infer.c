/* bench_infer - prefill and decode of SmolLM2 in mode exact, beside the limits of the machine taken
 * in the same run: how fast memory is read, and how fast the `linear` operation can go.
 *
 * usage: bench_infer [THREADS]     the GGUF is found as the tests find it (FM_MODELS) */
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "infer/model.h"
#include "tests/model/infer_kit.h"

#define PREFILL 512u
#define DECODE 32u
#define CONTEXT 64u /* tokens before decoding begins */
#define REPEATS 5

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ==== limits ==== */

typedef struct read_job {
    const uint64_t *data;
    uint64_t sum[64];
} read_job;

static fm_status read_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    read_job *j = ctx;
    uint64_t s = 0;
    for (size_t i = begin; i < end; i++)
        s += j->data[8 * i]; /* one word a line: the bus is measured, not the adder */
    j->sum[worker % 64] += s;
    return FM_OK;
}

/* GB/s of reading 512 MiB, best of REPEATS. */
static double memory_rate(fm_pool *pool)
{
    size_t bytes = (size_t)512 << 20, lines = bytes / 64;
    uint64_t *data = fm_aligned_alloc(64, bytes);
    memset(data, 1, bytes);
    read_job j = {.data = data};
    double best = INFINITY;
    for (int i = 0; i < REPEATS; i++) {
        double t = now_s();
        tk_ok(fm_pool_run(pool, lines, 1 << 12, read_part, &j));
        best = fmin(best, now_s() - t);
    }
    fm_free(data);
    return (double)bytes / best * 1e-9;
}

/* GFLOP/s of `linear` at m rows of [n, k], best of REPEATS. */
static double linear_rate(fm_backend *be, uint32_t m, uint32_t n, uint32_t k)
{
    void *x = NULL, *y = NULL;
    fm_weight *w = NULL;
    float *host = fm_calloc((size_t)n * k, sizeof(float));
    for (size_t i = 0; i < (size_t)n * k; i++)
        host[i] = (float)(i % 17) * 0.01f;
    tk_ok(be->alloc(be, &x, (size_t)m * k * sizeof(float)));
    tk_ok(be->alloc(be, &y, (size_t)m * n * sizeof(float)));
    tk_ok(be->weight_new(be, &w, FM_ROLE_LINEAR, FM_F32, n, k, host));
    double best = INFINITY;
    for (int i = 0; i < REPEATS * 4; i++) {
        double t = now_s();
        be->linear(be, y, n, x, k, w, NULL, NULL, m);
        tk_ok(be->sync(be));
        best = fmin(best, now_s() - t);
    }
    be->weight_free(be, w);
    be->free(be, x);
    be->free(be, y);
    fm_free(host);
    return 2.0 * m * n * k / best * 1e-9;
}

/* ==== work ==== */

static double linear_params(const fm_arch *a)
{
    fm_param p;
    double n = 0;
    for (uint32_t i = 0; fm_arch_param(a, i, &p); i++)
        if (p.is_matrix && p.layer >= 0)
            n += (double)p.shape.dim[0] * (double)p.shape.dim[1];
    return n;
}

static double prefill_flops(const fm_arch *a, double n)
{
    double attention = 4.0 * a->layers * a->heads * a->head_dim * n * (n + 1) / 2;
    return 2 * linear_params(a) * n + 2.0 * a->vocab * a->hidden + attention;
}

static double prefill_s(fm_model *m)
{
    static fm_row row[PREFILL];
    double best = INFINITY;
    for (int r = 0; r < REPEATS; r++) {
        fm_seq *s = NULL;
        tk_ok(fm_seq_open(&s, m));
        for (uint32_t i = 0; i < PREFILL; i++)
            row[i] = (fm_row){
                .seq = s, .token = (int32_t)(i * 7919 % 49152), .want_logits = i + 1 == PREFILL};
        double t = now_s();
        tk_ok(fm_engine_step(fm_model_engine(m), row, PREFILL));
        best = fmin(best, now_s() - t);
        fm_seq_close(s);
    }
    return best;
}

/* Seconds of one step of `batch` sequences, one row each; the best of DECODE steps is noise-free
 * enough, the mean is what a user sees: the mean of the best half is given. */
static double decode_s(fm_model *const *m, uint32_t batch)
{
    fm_seq *s[16];
    static fm_row row[16 * CONTEXT];
    double took[DECODE];
    for (uint32_t b = 0; b < batch; b++) {
        tk_ok(fm_seq_open(&s[b], m[b]));
        for (uint32_t i = 0; i < CONTEXT; i++)
            row[i] = (fm_row){.seq = s[b], .token = (int32_t)(b * 100 + i)};
        tk_ok(fm_engine_step(fm_model_engine(m[0]), row, CONTEXT));
    }
    for (uint32_t t = 0; t < DECODE; t++) {
        for (uint32_t b = 0; b < batch; b++)
            row[b] = (fm_row){.seq = s[b], .token = (int32_t)(t + b), .want_logits = true};
        double from = now_s();
        tk_ok(fm_engine_step(fm_model_engine(m[0]), row, batch));
        took[t] = now_s() - from;
    }
    for (uint32_t b = 0; b < batch; b++)
        fm_seq_close(s[b]);
    for (uint32_t i = 0; i < DECODE; i++) /* insertion sort */
        for (uint32_t k = i; k > 0 && took[k] < took[k - 1]; k--) {
            double swap = took[k];
            took[k] = took[k - 1];
            took[k - 1] = swap;
        }
    double sum = 0;
    for (uint32_t i = 0; i < DECODE / 2; i++)
        sum += took[i];
    return sum / (DECODE / 2);
}

/* ==== children: rank-8 LoRAs on all linears, made of noise ==== */

static void add_lora(ik_mem *mem, fm_tree *t, const fm_arch *a, uint32_t child)
{
    static float noise[8 * 4096];
    fm_param p;
    tk_ok(fm_tree_put_file(t, "adapters/0-lora/adapter_config.json",
                           fm_span_str("{\"peft_type\":\"LORA\",\"r\":8,\"lora_alpha\":16,"
                                       "\"target_modules\":\"all-linear\"}")));
    for (uint32_t i = 0; fm_arch_param(a, i, &p); i++) {
        if (!p.is_matrix || p.layer < 0)
            continue;
        char name[256];
        int stem = (int)(strlen(p.name) - strlen(".weight"));
        for (size_t k = 0; k < FM_ARRAY_LEN(noise); k++)
            noise[k] = 1e-3f * (float)((k * 31 + i * 7 + child * 13) % 97) - 0.05f;
        (void)snprintf(name, sizeof(name), "base_model.model.%.*s.lora_A.weight", stem, p.name);
        ik_put(mem, t, "adapters/0-lora/tensors", name, noise, 2, 8, p.shape.dim[1]);
        (void)snprintf(name, sizeof(name), "base_model.model.%.*s.lora_B.weight", stem, p.name);
        ik_put(mem, t, "adapters/0-lora/tensors", name, noise, 2, p.shape.dim[0], 8);
    }
}

static fm_model *load_child(fm_engine *e, const fm_source *src, ik_mem *mem, const fm_arch *a,
                            uint32_t child)
{
    fm_tree *t = NULL;
    fm_model *m = NULL;
    tk_ok(fm_tree_copy(&t, fm_source_tree(src)));
    mem->behind[0] = fm_source_provider(src);
    mem->behind_count = 1;
    add_lora(mem, t, a, child);
    fm_provider p = ik_provider(mem);
    tk_ok(fm_model_load(&m, e, t, &p, "child"));
    fm_tree_free(t);
    ik_mem_free(mem);
    return m;
}

typedef struct limits {
    double gbs, gflops;
} limits;

/* Raised by what is seen before and after the work, since other programs share the machine. */
static void take_limits(limits *l, fm_pool *pool, fm_backend *be)
{
    l->gbs = fmax(l->gbs, memory_rate(pool));
    l->gflops = fmax(l->gflops, linear_rate(be, PREFILL, 1536, 576));
    l->gflops = fmax(l->gflops, linear_rate(be, PREFILL, 2048, 2048));
}

static double decode_children_s(fm_engine *e, const fm_source *src, fm_model *base)
{
    static ik_mem mem;
    fm_model *m[8] = {base};
    for (uint32_t c = 1; c < 8; c++)
        m[c] = load_child(e, src, &mem, fm_model_arch(base), c);
    double t = decode_s(m, 8);
    fm_engine_stats st = fm_engine_stats_of(e);
    printf("base + 7 LoRA children (r 8): %.0f MB resident for %.0f MB of models\n",
           (double)st.weight_bytes * 1e-6, (double)st.weight_bytes_unshared * 1e-6);
    for (uint32_t c = 1; c < 8; c++)
        fm_model_close(m[c]);
    return t;
}

static void bench(fm_source *src, unsigned threads)
{
    fm_pool *pool = NULL;
    fm_engine *e = ik_engine(threads, PREFILL);
    fm_backend *be = fm_engine_backend(e);
    fm_model *m = ik_model(e, src, "smollm2"), *same[8];
    limits l = {0};
    double gb = (double)fm_engine_stats_of(e).weight_bytes * 1e-9;
    for (uint32_t b = 0; b < 8; b++)
        same[b] = m;
    tk_ok(fm_pool_new(&pool, threads));
    printf("threads %u, %s, %s\n", fm_pool_threads(pool), be->isa, be->kernel_class);
    take_limits(&l, pool, be);
    double pre = prefill_s(m), one = decode_s(same, 1), eight = decode_s(same, 8);
    double family = decode_children_s(e, src, m);
    take_limits(&l, pool, be);
    double gflops = prefill_flops(fm_model_arch(m), PREFILL) / pre * 1e-9;
    printf("limits: memory %.1f GB/s, linear %.0f GFLOP/s; weights %.2f GB (f32)\n", l.gbs,
           l.gflops, gb);
    printf("prefill %u: %.0f tok/s, %.0f GFLOP/s = %.0f %% of linear\n", PREFILL, PREFILL / pre,
           gflops, 100 * gflops / l.gflops);
    printf("decode 1: %.1f tok/s, %.1f GB/s = %.0f %% of memory\n", 1 / one, gb / one,
           100 * gb / one / l.gbs);
    printf("decode 8: %.1f tok/s, %.1f GB/s = %.0f %% of memory\n", 8 / eight, gb / eight,
           100 * gb / eight / l.gbs);
    printf("decode base + 7 children: %.1f tok/s = %.0f %% of decode 8\n", 8 / family,
           100 * eight / family);
    fm_model_close(m);
    fm_engine_free(e);
    fm_pool_free(pool);
}

int main(int argc, char **argv)
{
    char *path = tk_smollm2_gguf();
    if (!path)
        return tk_skip("SmolLM2's GGUF is not on this machine");
    fm_source *src = NULL;
    tk_ok(fm_source_open(&src, path));
    fm_free(path);
    bench(src, argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0);
    fm_source_close(src);
    return 0;
}
