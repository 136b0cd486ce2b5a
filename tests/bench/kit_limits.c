/* kit_limits.c - what the machine can do: memory read rate, register-only products, oneDNN's
 * matmul. */
#include <dnnl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tests/bench/bench_kit.h"

#define TURNS 5
#define READ_BYTES ((size_t)512 << 20)
#define SLICE_BYTES ((size_t)128 << 20)
#define SLICES 16u

const char *const bk_kind_name[BK_KINDS] = {"int8", "bf16", "f32"};

/* ==== memory ==== */

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

/* The best of many short slices: other programs take a core for milliseconds at a time. One thread
 * is timed by its own clock, which then leaves them out. */
double bk_memory_gbs(fm_pool *pool)
{
    static uint64_t *data; /* kept: touching it anew costs more than reading it */
    bool alone = fm_pool_threads(pool) == 1;
    double best = INFINITY;
    if (!data) {
        data = fm_aligned_alloc((size_t)1 << 21, READ_BYTES);
        assert_non_null(data);
        (void)madvise(data, READ_BYTES, MADV_HUGEPAGE); /* the bus is measured, not the page walk */
        memset(data, 1, READ_BYTES);
    }
    for (size_t i = 0; i < SLICES; i++) {
        read_job j = {.data = data + (i * SLICE_BYTES % READ_BYTES) / sizeof(*data)};
        double t = alone ? bk_cpu_s() : bk_now_s();
        tk_ok(fm_pool_run(alone ? NULL : pool, SLICE_BYTES / 64, 1 << 12, read_part, &j));
        best = fmin(best, (alone ? bk_cpu_s() : bk_now_s()) - t);
    }
    return (double)SLICE_BYTES / best * 1e-9;
}

/* ==== registers ==== */

#define SPINS 200000u
#define CHAINS 12 /* more than latency times issue width on any of these CPUs */

typedef struct spin_job {
    double (*spin)(uint32_t n); /* operations done */
    double ops[64];
} spin_job;

#if defined(__x86_64__)
/* The sums leave by a volatile, else nothing would be computed. */
static volatile float sink;

__attribute__((target("avx512f,avx512bw,avx512vnni"))) static double spin_vnni(uint32_t n)
{
    __m512i s[CHAINS], x = _mm512_set1_epi32((int)n), y = _mm512_set1_epi8(1);
    for (int c = 0; c < CHAINS; c++)
        s[c] = _mm512_set1_epi32(c);
    for (uint32_t i = 0; i < n; i++)
        for (int c = 0; c < CHAINS; c++)
            s[c] = _mm512_dpbusd_epi32(s[c], x, y);
    for (int c = 0; c < CHAINS; c++)
        sink = (float)_mm512_reduce_add_epi32(s[c]);
    return 128.0 * CHAINS * n;
}

__attribute__((target("avx512f,avx512bf16"))) static double spin_bf16(uint32_t n)
{
    __m512 s[CHAINS];
    __m512bh x = (__m512bh)_mm512_set1_epi32((int)n), y = x;
    for (int c = 0; c < CHAINS; c++)
        s[c] = _mm512_set1_ps((float)c);
    for (uint32_t i = 0; i < n; i++)
        for (int c = 0; c < CHAINS; c++)
            s[c] = _mm512_dpbf16_ps(s[c], x, y);
    for (int c = 0; c < CHAINS; c++)
        sink = _mm512_reduce_add_ps(s[c]);
    return 64.0 * CHAINS * n;
}

__attribute__((target("avx512f"))) static double spin_fma512(uint32_t n)
{
    __m512 s[CHAINS], x = _mm512_set1_ps((float)n), y = _mm512_set1_ps(0.5f);
    for (int c = 0; c < CHAINS; c++)
        s[c] = _mm512_set1_ps((float)c);
    for (uint32_t i = 0; i < n; i++)
        for (int c = 0; c < CHAINS; c++)
            s[c] = _mm512_fmadd_ps(x, y, s[c]);
    for (int c = 0; c < CHAINS; c++)
        sink = _mm512_reduce_add_ps(s[c]);
    return 32.0 * CHAINS * n;
}

__attribute__((target("avx2,fma"))) static double spin_fma256(uint32_t n)
{
    __m256 s[CHAINS], x = _mm256_set1_ps((float)n), y = _mm256_set1_ps(0.5f);
    for (int c = 0; c < CHAINS; c++)
        s[c] = _mm256_set1_ps((float)c);
    for (uint32_t i = 0; i < n; i++)
        for (int c = 0; c < CHAINS; c++)
            s[c] = _mm256_fmadd_ps(x, y, s[c]);
    for (int c = 0; c < CHAINS; c++)
        sink = _mm256_cvtss_f32(s[c]);
    return 16.0 * CHAINS * n;
}

/* AVX2 alone: products of pairs (saturating), widened, added: what int8 costs without VNNI. */
__attribute__((target("avx2"))) static double spin_maddubs(uint32_t n)
{
    __m256i s[CHAINS], x = _mm256_set1_epi32((int)n), y = _mm256_set1_epi8(1);
    const __m256i one = _mm256_set1_epi16(1);
    for (int c = 0; c < CHAINS; c++)
        s[c] = _mm256_set1_epi32(c);
    for (uint32_t i = 0; i < n; i++)
        for (int c = 0; c < CHAINS; c++) {
            __asm__("" : "+x"(x)); /* another value for all that gcc knows: no product is shared */
            __m256i p = _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), one);
            s[c] = _mm256_add_epi32(s[c], p);
        }
    for (int c = 0; c < CHAINS; c++)
        sink = (float)_mm256_extract_epi32(s[c], 0);
    return 64.0 * CHAINS * n;
}

static double (*spin_of(int kind))(uint32_t)
{
    bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
    if (kind == BK_INT8 && wide && __builtin_cpu_supports("avx512vnni"))
        return spin_vnni;
    if (kind == BK_INT8 && __builtin_cpu_supports("avx2"))
        return spin_maddubs;
    if (kind == BK_BF16)
        return wide && __builtin_cpu_supports("avx512bf16") ? spin_bf16 : NULL;
    if (kind == BK_F32 && wide)
        return spin_fma512;
    if (kind == BK_F32 && __builtin_cpu_supports("fma"))
        return spin_fma256;
    return NULL;
}
#else
static double (*spin_of(int kind))(uint32_t)
{
    (void)kind;
    return NULL;
}
#endif

static fm_status spin_part(void *ctx, size_t begin, size_t end, unsigned worker)
{
    spin_job *j = ctx;
    for (size_t i = begin; i < end; i++)
        j->ops[worker % 64] += j->spin(SPINS);
    return FM_OK;
}

double bk_peak_gops(fm_pool *pool, int kind)
{
    spin_job j = {.spin = spin_of(kind)};
    double best = INFINITY, ops = 0;
    if (!j.spin)
        return 0;
    for (int i = 0; i < TURNS; i++) {
        double t = bk_work_s();
        memset(j.ops, 0, sizeof(j.ops));
        tk_ok(fm_pool_run(pool, (size_t)fm_pool_threads(pool) * 4, 1, spin_part, &j));
        best = fmin(best, bk_work_s() - t);
    }
    for (size_t i = 0; i < FM_ARRAY_LEN(j.ops); i++)
        ops += j.ops[i];
    return ops / best * 1e-9;
}

/* ==== oneDNN ==== */

struct bk_product {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t prim;
    dnnl_exec_arg_t arg[3];
};

static void must(dnnl_status_t rc, const char *what)
{
    if (rc == dnnl_success)
        return;
    fprintf(stderr, "oneDNN: %s: %d\n", what, (int)rc);
    exit(1);
}

static void product_memory(bk_product *p, int at, int arg, const dnnl_memory_desc_t *md)
{
    void *data = NULL;
    p->arg[at].arg = arg;
    must(dnnl_memory_create(&p->arg[at].memory, md, p->engine, DNNL_MEMORY_ALLOCATE), "memory");
    must(dnnl_memory_get_data_handle(p->arg[at].memory, &data), "memory");
    memset(data, 0x3c, dnnl_memory_desc_get_size(md)); /* a small number in every type */
}

bk_product *bk_product_open(int kind, int64_t m, int64_t n, int64_t k)
{
    static const dnnl_data_type_t of_x[BK_KINDS] = {dnnl_u8, dnnl_bf16, dnnl_f32},
                                  of_w[BK_KINDS] = {dnnl_s8, dnnl_bf16, dnnl_f32},
                                  of_y[BK_KINDS] = {dnnl_s32, dnnl_f32, dnnl_f32};
    dnnl_dims_t xd = {m, k}, wd = {k, n}, yd = {m, n};
    dnnl_memory_desc_t x, w, y;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd;
    bk_product *p = fm_calloc(1, sizeof(*p));

    assert_non_null(p);
    must(dnnl_engine_create(&p->engine, dnnl_cpu, 0), "engine");
    must(dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags), "stream");
    must(dnnl_memory_desc_init_by_tag(&x, 2, xd, of_x[kind], dnnl_ab), "x");
    must(dnnl_memory_desc_init_by_tag(&w, 2, wd, of_w[kind], dnnl_format_tag_any), "w");
    must(dnnl_memory_desc_init_by_tag(&y, 2, yd, of_y[kind], dnnl_ab), "y");
    must(dnnl_matmul_desc_init(&desc, &x, &w, NULL, &y), "matmul");
    must(dnnl_primitive_desc_create(&pd, &desc, NULL, p->engine, NULL), "matmul");
    must(dnnl_primitive_create(&p->prim, pd), "matmul");
    product_memory(p, 0, DNNL_ARG_SRC, &x);
    product_memory(p, 1, DNNL_ARG_WEIGHTS,
                   dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0));
    product_memory(p, 2, DNNL_ARG_DST, &y);
    must(dnnl_primitive_desc_destroy(pd), "matmul");
    return p;
}

void bk_product_run(bk_product *p)
{
    must(dnnl_primitive_execute(p->prim, p->stream, 3, p->arg), "matmul");
    must(dnnl_stream_wait(p->stream), "matmul");
}

double bk_product_s(bk_product *p, double turn_s)
{
    double best = INFINITY;
    for (double end = bk_now_s() + turn_s; bk_now_s() < end;) {
        double t = bk_work_s();
        bk_product_run(p);
        best = fmin(best, bk_work_s() - t);
    }
    return best;
}

void bk_product_close(bk_product *p)
{
    for (int i = 0; i < 3; i++)
        must(dnnl_memory_destroy(p->arg[i].memory), "memory");
    must(dnnl_primitive_destroy(p->prim), "matmul");
    must(dnnl_stream_destroy(p->stream), "stream");
    must(dnnl_engine_destroy(p->engine), "engine");
    fm_free(p);
}

/* The best over a layer's shape at 512 rows and a square one that hides all overheads. */
static double onednn_gops(int kind)
{
    static const int64_t shape[][3] = {{512, 1536, 576}, {512, 576, 1536}, {1024, 2048, 2048}};
    double best = 0;
    for (size_t i = 0; i < FM_ARRAY_LEN(shape); i++) {
        bk_product *p = bk_product_open(kind, shape[i][0], shape[i][1], shape[i][2]);
        double ops = 2.0 * (double)shape[i][0] * (double)shape[i][1] * (double)shape[i][2];
        bk_product_run(p);
        best = fmax(best, ops / bk_product_s(p, 0.05) * 1e-9);
        bk_product_close(p);
    }
    return best;
}

/* ==== all of them ==== */

void bk_limits_take(bk_limits *l, fm_pool *pool)
{
    l->read1_gbs = fmax(l->read1_gbs, bk_memory_gbs(NULL));
    l->read_gbs = fmax(l->read_gbs, bk_memory_gbs(pool));
    for (int kind = 0; kind < BK_KINDS; kind++) {
        l->peak[kind] = fmax(l->peak[kind], bk_peak_gops(pool, kind));
        l->onednn[kind] = fmax(l->onednn[kind], onednn_gops(kind));
    }
    bk_rest();
}

void bk_limits_print(const bk_limits *l, unsigned threads)
{
    char cpu[128];
    printf("machine: %s, %u threads, gcc %s\n", bk_cpu_name(cpu, sizeof(cpu)), threads,
           __VERSION__);
    printf("limits: memory %.1f GB/s on one thread, %.1f on %u;", l->read1_gbs, l->read_gbs,
           threads);
    for (int kind = 0; kind < BK_KINDS; kind++)
        printf(" %s %.0f GOP/s by oneDNN (registers alone %.0f)%s", bk_kind_name[kind],
               l->onednn[kind], l->peak[kind], kind + 1 < BK_KINDS ? "," : "\n");
}

const char *bk_cpu_name(char *out, size_t out_bytes)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256], model[64] = "?", family[32] = "?", number[32] = "?";
    while (f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = 0;
        const char *value = strstr(line, ": ");
        if (value && strncmp(line, "model name", 10) == 0)
            (void)snprintf(model, sizeof(model), "%.60s", value + 2);
        else if (value && strncmp(line, "cpu family", 10) == 0)
            (void)snprintf(family, sizeof(family), "%.16s", value + 2);
        else if (value && strncmp(line, "model\t", 6) == 0)
            (void)snprintf(number, sizeof(number), "%.16s", value + 2);
    }
    if (f)
        (void)fclose(f);
    (void)snprintf(out, out_bytes, "%s (family %s model %s)", model, family, number);
    return out;
}
