/* bench_gpu.c - a GPU against its own limits, in one run: copy bandwidth and bf16 products are
 * measured first; then decoding (recorded and replayed, as a server does), prefill, low-rank terms,
 * attention, a whole decode step, experts, loads beside decoding and a LoRA step, each as a share
 * of the time that its bytes or its operations take at those limits (gpu_work.h), and beside torch
 * where python3 has it.
 *
 * usage: bench_gpu [--json] [--tiny] [--seconds S per turn]
 * The module is FMSTORE_CUDA_MODULE's, else libfmstore-cuda.so of the build. Without a GPU: says so
 * and exits with 77. --tiny: shapes for the emulator, to see that every part runs. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/base/mem.h"
#include "tests/bench/gpu_bench.h"

#define TURNS 5

void gb_must(fm_status rc, const char *what)
{
    if (rc == FM_OK)
        return;
    fprintf(stderr, "bench_gpu: %s: %s\n", what, fm_error_text());
    exit(1);
}

/* Bytes whose second highest bit is clear: as bf16 or float16 below 2, as float32 too. */
static void fill(unsigned char *p, size_t bytes)
{
    uint64_t s = 88172645463325252u;

    for (size_t i = 0; i < bytes; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        p[i] = (unsigned char)(s >> 24) & 0xbfu;
    }
}

static unsigned char *random_bytes(size_t bytes)
{
    unsigned char *p = fm_malloc(bytes);

    if (!p)
        gb_must(FM_ENOMEM, "host memory");
    fill(p, bytes < 1u << 20 ? bytes : 1u << 20);
    for (size_t at = 1u << 20; at < bytes; at += 1u << 20)
        memcpy(p + at, p, FM_MIN(bytes - at, (size_t)1 << 20));
    return p;
}

void *gb_random(gb *g, size_t bytes)
{
    unsigned char *host = random_bytes(bytes);
    void *p;

    gb_must(g->be->alloc(g->be, &p, bytes), "device memory");
    gb_must(g->be->upload(g->be, p, host, bytes), "upload");
    fm_free(host);
    if (g->ptrs == FM_ARRAY_LEN(g->ptr))
        gb_must(FM_ELIMIT, "too many buffers");
    return g->ptr[g->ptrs++] = p;
}

float *gb_floats(gb *g, size_t n)
{
    return gb_random(g, n * sizeof(float));
}

int32_t *gb_count(gb *g, uint32_t n)
{
    int32_t *p = gb_random(g, n * sizeof *p), *host = fm_malloc(n * sizeof *host);

    if (!host)
        gb_must(FM_ENOMEM, "host memory");
    for (uint32_t i = 0; i < n; i++)
        host[i] = (int32_t)i;
    gb_must(g->be->upload(g->be, p, host, n * sizeof *p), "upload");
    fm_free(host);
    return p;
}

void gb_release(gb *g)
{
    gb_must(g->be->sync(g->be), "sync");
    while (g->ptrs > 0)
        g->be->free(g->be, g->ptr[--g->ptrs]);
}

fm_weight *gb_weight(gb *g, fm_role role, fm_dtype d, uint32_t n, uint32_t k)
{
    unsigned char *host = random_bytes((size_t)gw_weight_bytes(d, n, k));
    fm_weight *w;

    for (size_t i = 0; i < (size_t)n * k && (d == FM_F8_E4M3 || d == FM_F8_E5M2); i++)
        host[i] &= 0x9fu; /* no NaN: those would be kept as bf16 */
    gb_must(g->be->weight_new(g->be, &w, role, d, n, k, host), "a weight");
    fm_free(host);
    return w;
}

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double turn(gb *g, gb_fn fn, void *ctx, uint32_t times)
{
    double from = now_s();

    for (uint32_t i = 0; i < times; i++)
        fn(g, ctx);
    gb_must(g->be->sync(g->be), "sync");
    return (now_s() - from) / times;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double gb_time(gb *g, gb_fn fn, void *ctx)
{
    double s[TURNS], one;
    uint32_t times = 1;

    if (g->tiny)
        return turn(g, fn, ctx, 1);
    (void)turn(g, fn, ctx, 1); /* room is taken, code is loaded */
    one = turn(g, fn, ctx, 1);
    while (one * times < g->turn_s && times < 1u << 16)
        times *= 2;
    for (int i = 0; i < TURNS; i++)
        s[i] = turn(g, fn, ctx, times);
    qsort(s, TURNS, sizeof *s, compare);
    return s[TURNS / 2];
}

static void replay_once(gb *g, void *ctx)
{
    (void)ctx;
    gb_must(g->be->replay(g->be, 1), "replay");
}

double gb_time_replayed(gb *g, gb_fn fn, void *ctx)
{
    fm_backend *be = g->be;
    if (!be->record)
        return gb_time(g, fn, ctx);
    fn(g, ctx); /* room is taken */
    gb_must(be->sync(be), "sync");
    gb_must(be->record(be, 1), "record");
    fn(g, ctx);
    fm_status rc = be->recorded(be);
    if (rc == FM_EUNSUPPORTED) {
        fprintf(stderr, "bench_gpu: run as it comes: %s\n", fm_error_text());
        return gb_time(g, fn, ctx);
    }
    gb_must(rc, "recorded");
    double s = gb_time(g, replay_once, NULL);
    be->forget(be, 1);
    return s;
}

void gb_report(gb *g, const char *what, double s, double bound_s, const char *limit)
{
    if (g->json)
        printf("%s\n  {\"what\": \"%s\", \"us\": %.3f, \"bound_us\": %.3f, \"limit\": \"%s\", "
               "\"share\": %.4f}",
               g->lines ? "," : "", what, 1e6 * s, 1e6 * bound_s, limit, bound_s / s);
    else
        printf("%-52s %12.2f us  %6.1f %% of %s\n", what, 1e6 * s, 100.0 * bound_s / s, limit);
    g->lines++;
    (void)fflush(stdout);
}

/* ---- limits ---- */

typedef struct copying {
    float *y, *x;
    int32_t *row;
    uint32_t rows, n;
} copying;

static void copy_once(gb *g, void *ctx)
{
    const copying *c = ctx;
    g->be->copy_rows(g->be, c->y, c->n, c->x, c->n, c->row, c->rows, c->n);
}

static void add_once(gb *g, void *ctx)
{
    const copying *c = ctx;
    g->be->add(g->be, c->y, c->x, (uint64_t)c->rows * c->n);
}

/* Bytes read and written of a copy of 1 GiB (where the backend has no copy: of y += x). */
static void measure_bytes(gb *g)
{
    copying c = {.rows = g->tiny ? 16 : 65536, .n = g->tiny ? 64 : 4096};
    size_t n = (size_t)c.rows * c.n;
    bool copies = g->be->copy_rows != NULL;

    c.y = gb_floats(g, n);
    c.x = gb_floats(g, n);
    c.row = gb_count(g, c.rows);
    double s = gb_time(g, copies ? copy_once : add_once, &c);
    g->bytes_s = (copies ? 8.0 : 12.0) * (double)n / s;
    gb_release(g);
}

typedef struct multiplying {
    float *y, *x;
    fm_weight *w;
    uint32_t n, k, m;
} multiplying;

static void multiply_once(gb *g, void *ctx)
{
    const multiplying *p = ctx;
    g->be->linear(g->be, p->y, p->n, p->x, p->k, p->w, NULL, NULL, p->m);
}

/* The best of cuBLASLt's product, torch's and our own, 8192 x 8192 x 8192. */
static void measure_flops(gb *g)
{
    uint32_t size = g->tiny ? 128 : 8192;
    multiplying p = {.n = size, .k = size, .m = size};
    double flops = 2.0 * size * size * size, library = gb_library_s(g, size, size, size);
    char request[64];

    snprintf(request, sizeof request, "product %u %u %u", size, size, size);
    double torch = gb_torch_s(g, request), best;

    p.y = gb_floats(g, (size_t)size * size);
    p.x = gb_floats(g, (size_t)size * size);
    p.w = gb_weight(g, FM_ROLE_LINEAR, FM_BF16, size, size);
    double own = gb_time(g, multiply_once, &p);
    best = own;
    g->flops_from = "our own products";
    if (library > 0.0 && library < best) {
        best = library;
        g->flops_from = "cuBLASLt";
    }
    if (torch > 0.0 && torch < best) {
        best = torch;
        g->flops_from = "torch";
    }
    g->flops_s = flops / best;
    g->be->weight_free(g->be, p.w);
    gb_release(g);
}

static void print_limits(const gb *g, const char *card)
{
    if (g->json)
        printf("{\"card\": \"%s\", \"copy_gb_s\": %.1f, \"bf16_tflop_s\": %.2f, \"bf16_from\": "
               "\"%s\", \"figures\": [",
               card, 1e-9 * g->bytes_s, 1e-12 * g->flops_s, g->flops_from);
    else
        printf("%s\ncopy %.1f GB/s, bf16 products %.2f TFLOP/s (%s)\n", card, 1e-9 * g->bytes_s,
               1e-12 * g->flops_s, g->flops_from);
}

/* ---- the program ---- */

static fm_status told(fm_status rc, const char *text)
{
    return fm_fail(rc, "%s", text);
}

static const fm_module *open_module(void)
{
    static const fm_module_host host = {FM_MODULE_ABI, told};
    const char *path = getenv("FMSTORE_CUDA_MODULE");
    void *lib = dlopen(path ? path : GB_MODULE, RTLD_NOW | RTLD_LOCAL), *symbol;
    fm_module_get_fn get;
    uint32_t cards;

    if (!lib) {
        fprintf(stderr, "bench_gpu: no CUDA module: %s\n", dlerror());
        exit(77);
    }
    symbol = dlsym(lib, "fm_module_get");
    memcpy(&get, &symbol, sizeof get);
    const fm_module *m = get(&host);
    if (!m) {
        fprintf(stderr, "bench_gpu: the CUDA module is another version's: build both anew\n");
        exit(1);
    }
    if (m->count(&cards) != FM_OK) {
        fprintf(stderr, "bench_gpu: no GPU: %s\n", fm_error_text());
        exit(77);
    }
    return m;
}

static void run_fast(gb *g, const char *card)
{
    gb_must(g->module->open(&g->be, 0, "fast", NULL), "mode fast");
    measure_bytes(g);
    measure_flops(g);
    print_limits(g, card);
    gb_decode(g);
    gb_prefill(g);
    gb_lora(g);
    gb_attention(g);
    gb_model(g);
    gb_moe(g);
    gb_load(g);
    g->be->close(g->be);
}

static void options(gb *g, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--json") == 0) {
            g->json = true;
        } else if (strcmp(argv[i], "--tiny") == 0) {
            g->tiny = true;
        } else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            g->turn_s = strtod(argv[++i], NULL);
        } else {
            fprintf(stderr, "usage: bench_gpu [--json] [--tiny] [--seconds S]\n");
            exit(2);
        }
}

int main(int argc, char **argv)
{
    gb g = {.turn_s = 0.1};
    char card[256];

    options(&g, argc, argv);
    g.module = open_module();
    gb_must(g.module->describe(card, sizeof card, 0), "the card's name");
    run_fast(&g, card);
    gb_must(g.module->open(&g.be, 0, "bf16", NULL), "mode bf16");
    gb_train(&g);
    g.be->close(g.be);
    gb_torch_end();
    if (g.json)
        printf("\n]}\n");
    return 0;
}
