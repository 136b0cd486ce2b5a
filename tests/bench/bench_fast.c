/* bench_fast - the operations of a backend one by one, at SmolLM2's shapes, beside their limits and
 * oneDNN's matmul of the same shape in the same run.
 *
 * usage: bench_fast [--mode MODE] [--threads N] [--seconds S] [--only NAME] [--json]
 *   --mode     fast (the default) or exact
 *   --threads  1 (the default) is timed by the thread's CPU clock, which other programs disturb
 *              little; more by the wall's
 *   --seconds  of one figure (0.1); the best of its batches of calls counts
 *   --only     cases whose name holds NAME: "linear Q4_1", "lora", "attention decode"
 *
 * Up to 16 rows each call finds other weights, as a decode step does, from a set larger than any
 * cache, so that memory bounds it; beyond, a weight's reading is small beside its products. oneDNN
 * has one weight and keeps it in the cache. The limit of a case is the larger of bytes (as stored;
 * factors and pages at 2 bytes, exact at 4) over the read rate and operations over the rate that
 * oneDNN reaches on large shapes in that kind. */
#include <math.h>
#include <stdlib.h>

#include "tests/bench/bench_kit.h"

#define COLD_BYTES ((size_t)128 << 20)
#define MAX_COPIES 2048u
#define MAX_FACTORS 4096u
#define COLD_ROWS 16u
#define MAX_ROWS 512u
#define MAX_K 8192u
#define NH 9u
#define NKV 3u
#define HD 64u

typedef struct bench {
    fm_backend *be;
    fm_pool *pool;
    unsigned threads;
    double seconds;
    const char *only;
    bool json, exact;
    bk_limits limits;
    float *x, *y;
} bench;

typedef struct sample { /* one case */
    char name[64];
    double ops, bytes;
    int kind;
    double seconds, onednn; /* of a call; 0: no such product */
    double gbs;             /* memory's rate right after; other programs take a part of it */
} sample;

typedef void call_fn(bench *b, void *ctx, uint32_t turn);

/* Best seconds of a call over batches of at least a third of a millisecond. */
static double time_calls(bench *b, call_fn *call, void *ctx)
{
    double best = INFINITY, spent = 0;
    uint32_t turn = 0, batch = 1;
    while (spent < b->seconds) {
        double t = bk_work_s();
        for (uint32_t i = 0; i < batch; i++)
            call(b, ctx, turn++);
        tk_ok(b->be->sync(b->be));
        t = bk_work_s() - t;
        spent += t;
        if (t < 3e-4 && batch < 1u << 16)
            batch *= 2;
        else
            best = fmin(best, t / batch);
    }
    return best;
}

static void time_case(bench *b, sample *s, call_fn *call, void *ctx)
{
    s->seconds = time_calls(b, call, ctx);
    s->gbs = bk_memory_gbs(b->pool);
    s->seconds = fmin(s->seconds, time_calls(b, call, ctx));
}

static bool wanted(const bench *b, const char *name)
{
    return !b->only || strstr(name, b->only);
}

static void report(const bench *b, const sample *s)
{
    double by_bytes = s->bytes / (s->gbs * 1e9),
           by_ops = s->ops / (b->limits.onednn[s->kind] * 1e9);
    double limit = fmax(by_bytes, by_ops);
    if (b->json)
        printf("{\"case\":\"%s\",\"us\":%.3f,\"gops\":%.2f,\"gbs\":%.2f,\"onednn_us\":%.3f,"
               "\"limit_us\":%.3f,\"limit\":\"%s\"}\n",
               s->name, 1e6 * s->seconds, 1e-9 * s->ops / s->seconds, 1e-9 * s->bytes / s->seconds,
               1e6 * s->onednn, 1e6 * limit, by_bytes > by_ops ? "memory" : bk_kind_name[s->kind]);
    else
        printf("%-34s %10.2f us %8.1f GOP/s %6.1f GB/s  %3.0f %% of %-6s", s->name,
               1e6 * s->seconds, 1e-9 * s->ops / s->seconds, 1e-9 * s->bytes / s->seconds,
               100 * limit / s->seconds, by_bytes > by_ops ? "memory" : bk_kind_name[s->kind]);
    if (!b->json && s->onednn > 0)
        printf("  %.2f x oneDNN", s->onednn / s->seconds);
    if (!b->json)
        printf("\n");
    (void)fflush(stdout);
}

/* ==== linear ==== */

typedef struct linear {
    fm_weight *w[MAX_COPIES];
    uint32_t copies, n, k, m;
} linear;

static void call_linear(bench *b, void *ctx, uint32_t turn)
{
    const linear *l = ctx;
    b->be->linear(b->be, b->y, l->n, b->x, l->k, l->w[turn % l->copies], NULL, NULL, l->m);
}

/* Blocks whose scales are small numbers, whatever the type. */
static void *make_matrix(fm_dtype dtype, uint32_t n, uint32_t k, uint64_t *bytes)
{
    const fm_dtype_info *info = fm_dtype_get(dtype);
    fm_shape shape = {.rank = 2, .dim = {n, k}};
    tk_ok(fm_tensor_bytes(bytes, dtype, &shape, "w"));
    uint8_t *at = fm_malloc((size_t)*bytes);
    assert_non_null(at);
    for (size_t i = 0; i < *bytes; i++)
        at[i] = info->is_block ? (uint8_t)(i * 37 + i / 251) : 0x3c;
    for (size_t i = 0; info->is_block && i < *bytes; i += info->block_bytes) {
        const bool is_last = dtype == FM_Q2_K || dtype == FM_Q3_K || dtype == FM_Q6_K;
        const bool has_min = dtype == FM_Q4_1 || dtype == FM_Q4_K || dtype == FM_Q2_K;
        uint8_t *scales = at + i + (is_last ? info->block_bytes - (has_min ? 4u : 2u) : 0);
        uint16_t scale = fm_f32_to_f16(0.01f);
        if (dtype == FM_MXFP4) {
            at[i] = 120;
            continue;
        }
        memcpy(scales, &scale, sizeof(scale));
        if (has_min)
            memcpy(scales + 2, &scale, sizeof(scale));
    }
    return at;
}

static bool open_linear(bench *b, linear *l, fm_dtype dtype, uint32_t n, uint32_t k, double *bytes)
{
    uint64_t stored = 0;
    void *raw = make_matrix(dtype, n, k, &stored);
    uint32_t copies = (uint32_t)(COLD_BYTES / stored) + 1;
    *l = (linear){.n = n, .k = k};
    *bytes = b->exact ? 4.0 * n * k : (double)stored;
    for (l->copies = 0; l->copies < FM_MIN(copies, MAX_COPIES); l->copies++) {
        fm_status rc = b->be->weight_new(b->be, &l->w[l->copies], FM_ROLE_LINEAR, dtype, n, k, raw);
        if (rc < 0) {
            printf("linear %s %ux%u refused: %s\n", fm_dtype_get(dtype)->name, n, k,
                   fm_error_text());
            break;
        }
    }
    fm_free(raw);
    return l->copies > 0;
}

static void run_linear(bench *b, fm_dtype dtype, uint32_t n, uint32_t k)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 12, 16, 32, 64, 128, 512};
    static linear l;
    const char *type = fm_dtype_get(dtype)->name;
    double bytes = 0;
    for (size_t i = 0; i < FM_ARRAY_LEN(rows); i++) {
        sample s = {.kind = b->exact ? BK_F32 : dtype == FM_BF16 ? BK_BF16 : BK_INT8};
        (void)snprintf(s.name, sizeof(s.name), "linear %s %ux%u m=%u", type, n, k, rows[i]);
        if (!wanted(b, s.name))
            continue;
        if (!l.copies && !open_linear(b, &l, dtype, n, k, &bytes))
            return;
        uint32_t all = l.copies;
        l.m = rows[i];
        l.copies = l.m <= COLD_ROWS ? all : 1;
        s.ops = 2.0 * l.m * n * k;
        s.bytes = bytes;
        time_case(b, &s, call_linear, &l);
        l.copies = all;
        bk_product *p = bk_product_open(s.kind, l.m, n, k);
        s.onednn = bk_product_s(p, b->seconds / 2);
        bk_product_close(p);
        bk_rest();
        report(b, &s);
    }
    for (uint32_t c = 0; c < l.copies; c++)
        b->be->weight_free(b->be, l.w[c]);
    l.copies = 0;
}

/* ==== low-rank terms: 8 rows of 8 children, or one child's prompt ==== */

typedef struct low_rank {
    fm_weight *a[MAX_FACTORS], *b[MAX_FACTORS];
    uint32_t copies, terms, rows, n, k;
} low_rank;

static void call_lora(bench *b, void *ctx, uint32_t turn)
{
    const low_rank *l = ctx;
    fm_lora term[8];
    for (uint32_t t = 0; t < l->terms; t++) {
        uint32_t c = (turn * l->terms + t) % l->copies;
        term[t] = (fm_lora){.y = b->y,
                            .ldy = l->n,
                            .a = l->a[c],
                            .b = l->b[c],
                            .scale = 2.0f,
                            .first = t * l->rows,
                            .m = l->rows};
    }
    b->be->lora(b->be, b->x, l->k, l->k, term, l->terms);
}

static void run_lora(bench *b, uint32_t terms, uint32_t rows, uint32_t r, uint32_t n, uint32_t k)
{
    static low_rank l;
    sample s = {.kind = b->exact ? BK_F32 : BK_BF16};
    uint64_t bytes = 0;
    (void)snprintf(s.name, sizeof(s.name), "lora %ux%u r=%u, %u terms of m=%u", n, k, r, terms,
                   rows);
    if (!wanted(b, s.name))
        return;
    void *raw = make_matrix(FM_BF16, FM_MAX(n, k), r, &bytes);
    size_t cold = COLD_BYTES / 2 / (2 * (size_t)r * (n + k));
    uint32_t copies = terms * rows > COLD_ROWS ? terms : (uint32_t)FM_MIN(MAX_FACTORS, cold);
    l = (low_rank){.terms = terms, .rows = rows, .n = n, .k = k};
    for (l.copies = 0; l.copies < copies; l.copies++) {
        uint32_t c = l.copies;
        tk_ok(b->be->weight_new(b->be, &l.a[c], FM_ROLE_LORA_A, FM_BF16, r, k, raw));
        tk_ok(b->be->weight_new(b->be, &l.b[c], FM_ROLE_LORA_B, FM_BF16, n, r, raw));
    }
    s.ops = 2.0 * terms * rows * r * (n + k);
    s.bytes = (b->exact ? 4.0 : 2.0) * terms * r * (n + k);
    time_case(b, &s, call_lora, &l);
    report(b, &s);
    for (uint32_t c = 0; c < l.copies; c++) {
        b->be->weight_free(b->be, l.a[c]);
        b->be->weight_free(b->be, l.b[c]);
    }
    fm_free(raw);
}

/* ==== attention ==== */

typedef struct attend {
    fm_attn a;
    uint8_t *k, *v;
    size_t layer_bytes;
    uint32_t layers; /* as many as make the pages larger than any cache */
    int32_t *ints;
} attend;

static void call_attention(bench *b, void *ctx, uint32_t turn)
{
    attend *t = ctx;
    t->a.kv.k = t->k + t->layer_bytes * (turn % t->layers);
    t->a.kv.v = t->v + t->layer_bytes * (turn % t->layers);
    b->be->attention(b->be, &t->a);
}

/* Pages with keys and values of noise at every position. */
static void fill_pages(bench *b, attend *t, uint32_t positions)
{
    uint32_t width = NKV * HD;
    int32_t *slot = t->ints;
    for (uint32_t layer = 0; layer < t->layers; layer++) {
        fm_kv_view kv = {t->k + t->layer_bytes * layer, t->v + t->layer_bytes * layer};
        for (uint32_t at = 0; at < positions; at += MAX_ROWS) {
            uint32_t n = FM_MIN(MAX_ROWS, positions - at);
            for (uint32_t i = 0; i < n; i++)
                slot[i] = (int32_t)(at + i);
            b->be->kv_write(b->be, kv, b->x, width, b->x + width, width, slot, n, NKV, HD);
        }
    }
    tk_ok(b->be->sync(b->be));
}

/* seqs sequences of `context` positions, `rows` rows at the end of each. */
static void run_attention(bench *b, const char *what, uint32_t seqs, uint32_t rows,
                          uint32_t context)
{
    sample s = {.kind = b->exact ? BK_F32 : BK_BF16};
    uint32_t pages = (context + FM_KV_PAGE - 1) / FM_KV_PAGE, m = seqs * rows;
    attend t = {.layer_bytes = (size_t)seqs * pages * b->be->kv_page_bytes(b->be, NKV, HD)};
    (void)snprintf(s.name, sizeof(s.name), "attention %s, context %u", what, context);
    if (!wanted(b, s.name))
        return;
    t.layers = rows > 64 ? 1 : (uint32_t)FM_MIN(4096, COLD_BYTES / (2 * t.layer_bytes) + 1);
    tk_ok(b->be->alloc(b->be, (void **)&t.k, t.layer_bytes * t.layers));
    tk_ok(b->be->alloc(b->be, (void **)&t.v, t.layer_bytes * t.layers));
    tk_ok(b->be->alloc(b->be, (void **)&t.ints, (MAX_ROWS * 3 + seqs * pages) * sizeof(int32_t)));
    fill_pages(b, &t, seqs * pages * FM_KV_PAGE);
    int32_t *seq = t.ints, *pos = seq + MAX_ROWS, *table = pos + MAX_ROWS;
    for (uint32_t i = 0; i < m; i++) {
        seq[i] = (int32_t)(i / rows);
        pos[i] = (int32_t)(context - rows + i % rows);
        s.ops += 4.0 * NH * HD * (pos[i] + 1);
    }
    for (uint32_t i = 0; i < seqs * pages; i++)
        table[i] = (int32_t)i;
    t.a = (fm_attn){.out = b->y,
                    .ldo = NH * HD,
                    .q = b->x,
                    .ldq = NH * HD,
                    .table = table,
                    .table_stride = pages,
                    .seq = seq,
                    .pos = pos,
                    .m = m,
                    .nh = NH,
                    .nkv = NKV,
                    .hd = HD,
                    .scale = 0.125f};
    s.bytes = 2.0 * seqs * context * NKV * HD * (b->exact ? 4 : 2);
    time_case(b, &s, call_attention, &t);
    report(b, &s);
    b->be->free(b->be, t.k);
    b->be->free(b->be, t.v);
    b->be->free(b->be, t.ints);
}

/* ==== all ==== */

static void run_all(bench *b)
{
    static const uint32_t shape[][2] = {
        {576, 576}, {192, 576}, {1536, 576}, {576, 1536}, {49152, 576}};
    static const uint32_t larger[][2] = {{2048, 2048}, {2048, 8192}}; /* of 1B */
    static const fm_dtype type[] = {FM_Q4_1, FM_Q4_0, FM_Q8_0, FM_BF16, FM_MXFP4};
    static const fm_dtype type_256[] = {FM_Q2_K, FM_Q3_K, FM_IQ4_XS, FM_Q4_K, FM_Q6_K};
    for (size_t d = 0; d < FM_ARRAY_LEN(type); d++)
        for (size_t i = 0; i < FM_ARRAY_LEN(shape); i++)
            run_linear(b, type[d], shape[i][0], shape[i][1]);
    for (size_t d = 0; d < FM_ARRAY_LEN(type_256); d++)
        for (size_t i = 0; i < FM_ARRAY_LEN(larger); i++)
            run_linear(b, type_256[d], larger[i][0], larger[i][1]);
    for (uint32_t r = 4; r <= 64; r *= 2) {
        run_lora(b, 8, 1, r, 576, 576);
        run_lora(b, 8, 1, r, 1536, 576);
        run_lora(b, 8, 1, r, 576, 1536);
    }
    run_lora(b, 1, MAX_ROWS, 8, 576, 576);
    run_lora(b, 1, MAX_ROWS, 8, 576, 1536);
    run_attention(b, "prefill", 1, MAX_ROWS, MAX_ROWS);
    run_attention(b, "prefill", 1, MAX_ROWS, 4096);
    for (uint32_t rows = 2; rows <= 64; rows *= 2) { /* pieces of a long prompt */
        char what[24];
        (void)snprintf(what, sizeof(what), "%u rows", rows);
        run_attention(b, what, 1, rows, 4096);
    }
    run_attention(b, "decode 1", 1, 1, 64);
    run_attention(b, "decode 1", 1, 1, 512);
    run_attention(b, "decode 1", 1, 1, 4096);
    run_attention(b, "decode 8", 8, 1, 64);
    run_attention(b, "decode 8", 8, 1, 512);
    run_attention(b, "decode 8", 8, 1, 4096);
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_fast [--mode MODE] [--threads N] [--seconds S] [--only NAME] "
                    "[--json]\n");
    return 129;
}

static bool read_options(bench *b, const char **mode, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--json") == 0) {
            b->json = true;
            continue;
        }
        if (strcmp(argv[i], "--mode") == 0)
            *mode = value;
        else if (strcmp(argv[i], "--threads") == 0)
            b->threads = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0)
            b->seconds = strtod(value, NULL);
        else if (strcmp(argv[i], "--only") == 0)
            b->only = value;
        else
            return false;
        i++;
    }
    return b->threads > 0 && b->seconds > 0;
}

int main(int argc, char **argv)
{
    bench b = {.threads = 1, .seconds = 0.1};
    const char *mode = "fast";
    if (!read_options(&b, &mode, argc, argv))
        return usage();
    tk_ok(fm_pool_new(&b.pool, b.threads));
    bk_clock(b.threads);
    if (fm_backend_open(&b.be, mode, b.pool) < 0) {
        printf("refused: %s\n", fm_error_text());
        return TK_SKIP;
    }
    b.exact = strcmp(mode, "exact") == 0;
    tk_ok(b.be->alloc(b.be, (void **)&b.x, (size_t)MAX_ROWS * MAX_K * sizeof(float)));
    tk_ok(b.be->alloc(b.be, (void **)&b.y, (size_t)MAX_ROWS * 49152 * sizeof(float)));
    for (size_t i = 0; i < (size_t)MAX_ROWS * MAX_K; i++)
        b.x[i] = 0.01f * (float)((int)(i * 31 % 199) - 99);
    bk_limits_take(&b.limits, b.pool);
    if (!b.json) {
        printf("%s, %s, %s\n", b.be->mode, b.be->isa, b.be->kernel_class);
        bk_limits_print(&b.limits, b.threads);
    }
    run_all(&b);
    b.be->free(b.be, b.x);
    b.be->free(b.be, b.y);
    fm_backend_close(b.be);
    fm_pool_free(b.pool);
    return 0;
}
