/* ctest: card */
/* decode.c - what a step of few rows is made of on a GPU (KK_DEVICE=cuda; emulated or real):
 * operations in one launch, kernels that begin before their turn, and how many launches. */
#include "tests/kernel/kernel_kit.h"
#include "tests/kernel/matrix_kit.h"

#include <dlfcn.h>

#include "tests/model/infer_kit.h"

static fm_backend *card_of(const char *mode)
{
    fm_backend *be = kk_card(mode);
    if (!be)
        skip();
    return be;
}

/* ---- operations in one ---- */

static const char *mode_of(uint32_t number)
{
    return number ? "fast" : "exact";
}

static float *copy_of(kk *k, const float *x, size_t n)
{
    float *c = kk_alloc(k, n * sizeof *c);
    memcpy(c, x, n * sizeof *c);
    return c;
}

TEST(add_and_norm_has_the_bits_of_both)
{
    static const uint32_t dims[][2] = {{1, 64},   {3, 1440}, {9, 577},  {2, 4096},
                                       {2, 8192}, {2, 8203}, {1, 9000}, {40, 33}};
    for (uint32_t mode = 0; mode < 2; mode++)
        for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++) {
            uint32_t m = dims[i][0], h = dims[i][1];
            size_t n = (size_t)m * h;
            kk k = {.be = card_of(mode_of(mode))};
            fm_backend *be = k.be;
            float *x = kk_in(&k, n, 3), *branch = kk_in(&k, n, 1), *gain = kk_in(&k, h, 2);
            float *y = kk_in(&k, n, 1), *x2 = copy_of(&k, x, n), *y2 = kk_in(&k, n, 1);
            be->add(be, x, branch, n);
            be->rmsnorm(be, y, x, gain, NULL, m, h, h, 1e-5f);
            be->add_rmsnorm(be, y2, x2, branch, gain, m, h, 1e-5f);
            tk_ok(be->sync(be));
            assert_memory_equal(x2, x, n * sizeof *x);
            assert_memory_equal(y2, y, n * sizeof *y);
            kk_gather(&k);
            fm_free(k.result);
            be->close(be);
        }
}

typedef struct heads {
    uint32_t m, nh, nkv, hd, turns, pad;
} heads;

/* Rows at shuffled places of shuffled pages; all of the pages is compared. */
static void check_keep(const char *mode, const heads *t)
{
    kk k = {.be = card_of(mode)};
    fm_backend *be = k.be;
    size_t ldq = t->nh * t->hd + t->pad, ldk = t->nkv * t->hd + t->pad, pages = t->m / 32 + 2;
    size_t page = be->kv_page_bytes(be, t->nkv, t->hd);
    float *cos = kk_in(&k, (size_t)t->m * t->turns / 2, 1),
          *sin = kk_in(&k, (size_t)t->m * t->turns / 2, 1);
    float *q = kk_in(&k, t->m * ldq, 2), *key = kk_in(&k, t->m * ldk, 2);
    float *v = kk_in(&k, t->m * ldk, 2);
    float *q2 = copy_of(&k, q, t->m * ldq), *key2 = copy_of(&k, key, t->m * ldk);
    int32_t *pos = kk_shuffled(&k, t->m), *slot = kk_shuffled(&k, (uint32_t)pages * 32);
    fm_kv_view kv[2];
    for (int i = 0; i < 2; i++)
        kv[i] = (fm_kv_view){kk_zeros(&k, pages * page), kk_zeros(&k, pages * page)};
    for (uint32_t h = 0; h < t->nh; h++)
        be->rope(be, q + h * t->hd, ldq, pos, cos, sin, t->m, 1, t->turns, false, false);
    for (uint32_t h = 0; h < t->nkv; h++)
        be->rope(be, key + h * t->hd, ldk, pos, cos, sin, t->m, 1, t->turns, false, false);
    be->kv_write(be, kv[0], key, ldk, v, ldk, slot, t->m, t->nkv, t->hd);
    const fm_new_rows rows = {kv[1], q2,  key2, v,    ldq,   ldk,    ldk,   slot,
                              pos,   cos, sin,  t->m, t->nh, t->nkv, t->hd, t->turns};
    be->keep_rows(be, &rows);
    tk_ok(be->sync(be));
    assert_memory_equal(q2, q, t->m * ldq * sizeof *q);
    assert_memory_equal(kv[1].k, kv[0].k, pages * page);
    assert_memory_equal(kv[1].v, kv[0].v, pages * page);
    kk_gather(&k);
    fm_free(k.result);
    be->close(be);
}

TEST(kept_rows_have_the_bits_of_three_operations)
{
    static const heads dims[] = {
        {1, 4, 2, 32, 32, 0},  {5, 6, 3, 20, 20, 4},   {33, 8, 1, 64, 64, 0}, {40, 2, 2, 10, 4, 1},
        {3, 12, 4, 96, 24, 0}, {300, 2, 1, 16, 16, 0}, {270, 2, 2, 16, 8, 3}};
    for (uint32_t mode = 0; mode < 2; mode++)
        for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
            check_keep(mode_of(mode), &dims[i]);
}

/* ---- kernels that begin before their turn ---- */

enum { H = 256, INTER = 256, NH = 4, NKV = 2, HD = 64, RANK = 8, LAYERS = 2, PAGES = 9 };

typedef struct layer {
    fm_weight *q, *k, *v, *o, *gate, *up, *down, *a, *b;
    fm_kv_view kv;
} layer;

typedef struct stream {
    fm_backend *be;
    layer of[LAYERS];
    uint32_t m;
    float *x, *xn, *q, *k, *v, *att, *o, *gate, *up, *gain, *cos, *sin;
    int32_t *slot, *pos, *seq, *table;
} stream;

static fm_weight *matrix_of(kk *k, fm_dtype type, fm_role role, uint32_t n, uint32_t in)
{
    fm_weight *w;
    matrix a = random_matrix(type, n, in);
    tk_ok(k->be->weight_new(k->be, &w, role, type, n, in, a.bytes));
    matrix_free(&a);
    return w;
}

/* A layer as a server's: products, low-rank terms on some rows, attention over pages. */
static void run_layer(const stream *s, const layer *l)
{
    fm_backend *be = s->be;
    uint32_t m = s->m;
    const fm_product qkv[] = {{.y = s->q, .ldy = NH * HD, .w = l->q, .m = m},
                              {.y = s->k, .ldy = NKV * HD, .w = l->k, .m = m},
                              {.y = s->v, .ldy = NKV * HD, .w = l->v, .m = m}};
    const fm_product o = {.y = s->o, .ldy = H, .w = l->o, .m = m};
    const fm_product both[] = {{.y = s->gate, .ldy = INTER, .w = l->gate, .m = m},
                               {.y = s->up, .ldy = INTER, .w = l->up, .m = m}};
    const fm_product down = {.y = s->o, .ldy = H, .w = l->down, .m = m};
    const fm_lora term = {
        .y = s->q, .ldy = NH * HD, .a = l->a, .b = l->b, .scale = 0.5f, .m = m / 2 + 1};
    const fm_new_rows rows = {l->kv,  s->q,   s->k,   s->v, NH * HD, NKV * HD, NKV * HD, s->slot,
                              s->pos, s->cos, s->sin, m,    NH,      NKV,      HD,       HD};
    const fm_attn att = {.out = s->att,
                         .ldo = NH * HD,
                         .q = s->q,
                         .ldq = NH * HD,
                         .kv = l->kv,
                         .table = s->table,
                         .table_stride = PAGES,
                         .seq = s->seq,
                         .pos = s->pos,
                         .m = m,
                         .nh = NH,
                         .nkv = NKV,
                         .hd = HD,
                         .scale = 0.1f};
    be->products(be, s->xn, H, H, qkv, 3);
    be->lora(be, s->xn, H, H, &term, 1);
    be->keep_rows(be, &rows);
    be->attention(be, &att);
    be->products(be, s->att, NH * HD, NH * HD, &o, 1);
    be->add_rmsnorm(be, s->xn, s->x, s->o, s->gain, m, H, 1e-5f);
    be->products(be, s->xn, H, H, both, 2);
    be->swiglu(be, s->gate, s->gate, s->up, (uint64_t)m * INTER);
    be->products(be, s->gate, INTER, INTER, &down, 1);
    be->add_rmsnorm(be, s->xn, s->x, s->o, s->gain, m, H, 1e-5f);
}

static void open_stream(stream *s, kk *k, fm_dtype type, uint32_t m)
{
    fm_backend *be = k->be;
    size_t page = be->kv_page_bytes(be, NKV, HD);
    stream_now = 0; /* the same weights each time */
    *s = (stream){.be = be, .m = m};
    for (int i = 0; i < LAYERS; i++)
        s->of[i] = (layer){matrix_of(k, type, FM_ROLE_LINEAR, NH * HD, H),
                           matrix_of(k, type, FM_ROLE_LINEAR, NKV * HD, H),
                           matrix_of(k, type, FM_ROLE_LINEAR, NKV * HD, H),
                           matrix_of(k, type, FM_ROLE_LINEAR, H, NH * HD),
                           matrix_of(k, type, FM_ROLE_LINEAR, INTER, H),
                           matrix_of(k, type, FM_ROLE_LINEAR, INTER, H),
                           matrix_of(k, type, FM_ROLE_LINEAR, H, INTER),
                           matrix_of(k, FM_F32, FM_ROLE_LORA_A, RANK, H),
                           matrix_of(k, FM_F32, FM_ROLE_LORA_B, NH * HD, RANK),
                           {kk_zeros(k, m * PAGES * page), kk_zeros(k, m * PAGES * page)}};
    s->x = kk_in(k, (size_t)m * H, 1);
    s->xn = kk_in(k, (size_t)m * H, 1);
    s->q = kk_in(k, (size_t)m * NH * HD, 1);
    s->k = kk_in(k, (size_t)m * NKV * HD, 1);
    s->v = kk_in(k, (size_t)m * NKV * HD, 1);
    s->att = kk_in(k, (size_t)m * NH * HD, 1);
    s->o = kk_in(k, (size_t)m * H, 1);
    s->gate = kk_in(k, (size_t)m * INTER, 1);
    s->up = kk_in(k, (size_t)m * INTER, 1);
    s->gain = kk_in(k, H, 1);
    s->cos = kk_in(k, (size_t)PAGES * FM_KV_PAGE * HD / 2, 1);
    s->sin = kk_in(k, (size_t)PAGES * FM_KV_PAGE * HD / 2, 1);
    s->slot = kk_zeros(k, m * sizeof(int32_t));
    s->pos = kk_zeros(k, m * sizeof(int32_t));
    s->seq = kk_zeros(k, m * sizeof(int32_t));
    s->table = kk_zeros(k, m * PAGES * sizeof(int32_t));
    for (uint32_t i = 0; i < m; i++) {
        s->seq[i] = (int32_t)i;
        s->pos[i] = i % 2 ? 3 : 270; /* one part of positions, and two */
        for (uint32_t p = 0; p < PAGES; p++)
            s->table[i * PAGES + p] = (int32_t)(p * m + i);
        s->slot[i] =
            s->table[i * PAGES + (uint32_t)s->pos[i] / FM_KV_PAGE] * FM_KV_PAGE + s->pos[i] % 32;
    }
}

/* Two runs of the recorded layers; x and xn afterwards are the caller's. */
static float *run_stream(fm_dtype type, uint32_t m, const char *soon)
{
    if (soon)
        setenv("FMSTORE_CUDA_PDL", soon, 1);
    kk k = {.be = card_of("fast")};
    unsetenv("FMSTORE_CUDA_PDL");
    fm_backend *be = k.be;
    stream s;
    open_stream(&s, &k, type, m);
    for (int i = 0; i < LAYERS; i++) /* scratch gets its size */
        run_layer(&s, &s.of[i]);
    tk_ok(be->sync(be));
    tk_ok(be->record(be, 1));
    for (int i = 0; i < LAYERS; i++)
        run_layer(&s, &s.of[i]);
    tk_ok(be->recorded(be)); /* it runs */
    tk_ok(be->replay(be, 1));
    tk_ok(be->sync(be));
    size_t n = (size_t)m * H;
    float *out = fm_malloc(2 * n * sizeof *out);
    memcpy(out, s.x, n * sizeof *out);
    memcpy(out + n, s.xn, n * sizeof *out);
    for (int i = 0; i < LAYERS; i++) {
        const layer *l = &s.of[i];
        fm_weight *const all[] = {l->q, l->k, l->v, l->o, l->gate, l->up, l->down, l->a, l->b};
        for (size_t w = 0; w < FM_ARRAY_LEN(all); w++)
            be->weight_free(be, all[w]);
    }
    kk_gather(&k);
    fm_free(k.result);
    be->close(be);
    return out;
}

/* Of the emulator; 0 on a real GPU. */
static unsigned long count_of(const char *name)
{
    void *module = dlopen(getenv("FMSTORE_CUDA_MODULE"), RTLD_NOW);
    unsigned long (*count)(void) = NULL;
    assert_non_null(module);
    *(void **)(void *)&count = dlsym(module, name);
    return count ? count() : 0;
}

TEST(kernels_that_begin_early_leave_no_trace)
{
    static const struct {
        fm_dtype type;
        uint32_t m;
    } cases[] = {{FM_BF16, 1}, {FM_BF16, 12}, {FM_BF16, 20}, {FM_Q8_0, 12}, {FM_Q4_K, 1}};
    if (!getenv("KK_DEVICE"))
        skip();
    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++) {
        size_t bytes = 2 * (size_t)cases[i].m * H * sizeof(float);
        float *want = run_stream(cases[i].type, cases[i].m, "0");
        unsigned long before = count_of("simt_early");
        float *got = run_stream(cases[i].type, cases[i].m, NULL);
        if (count_of("simt_kernels")) /* two runs of layers of ten kernels and more */
            assert_true(count_of("simt_early") - before > 2 * LAYERS * 4);
        assert_memory_equal(got, want, bytes);
        fm_free(want);
        fm_free(got);
    }
}

/* ---- launches ---- */

/* Kernels of an answer of so many tokens to `asks` requests at once, in mode fast. */
static unsigned long launches(uint32_t asks, uint32_t tokens)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    fm_source *src = NULL;
    fm_gen_request q[8];
    fm_gen_result r[8];
    int32_t prompt[8][4];

    o.threads = 1;
    o.max_rows = 64;
    o.device = "cuda";
    o.mode = "fast";
    tk_ok(fm_engine_new(&e, &o));
    char *path = tk_source("examples/atlas/base");
    tk_ok(fm_source_open(&src, path));
    fm_free(path);
    fm_model *m = ik_model(e, src, "atlas");
    for (uint32_t i = 0; i < asks; i++) {
        for (uint32_t t = 0; t < 4; t++)
            prompt[i][t] = (int32_t)(20 + 40 * i + 7 * t);
        q[i] = (fm_gen_request){.model = m,
                                .prompt = prompt[i],
                                .prompt_len = 4,
                                .max_new = tokens,
                                .ignore_eos = true};
        fm_sample_defaults(&q[i].sampling);
        q[i].sampling.temperature = 0.0f;
    }
    unsigned long before = count_of("simt_kernels");
    tk_ok(fm_generate(e, q, asks, r));
    unsigned long n = count_of("simt_kernels") - before;
    for (uint32_t i = 0; i < asks; i++)
        fm_gen_result_release(&r[i]);
    fm_model_close(m);
    fm_source_close(src);
    fm_engine_free(e);
    return n;
}

/* A layer: products of q, k, v; of o; of gate and up; of down; keep_rows, attention, add_rmsnorm
 * twice, swiglu. */
#define OF_A_LAYER 9u
#define ATLAS_LAYERS 6u
/* Ids of tokens that were picked, embedding, first norm, a copy of final states, head (which keeps
 * what rounding takes of its rows, so they are packed: two), choice of the token. */
#define OF_THE_ENDS 7u

TEST(a_step_has_so_many_launches)
{
    if (!getenv("KK_DEVICE") || !count_of("simt_kernels"))
        skip();
    for (uint32_t asks = 1; asks <= 5; asks += 4) {
        unsigned long few = launches(asks, 4), more = launches(asks, 6);
        print_message("%u streams: %lu launches a step\n", asks, (more - few) / 2);
        assert_int_equal(more - few, 2 * (ATLAS_LAYERS * OF_A_LAYER + OF_THE_ENDS));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(add_and_norm_has_the_bits_of_both),
        cmocka_unit_test(kept_rows_have_the_bits_of_three_operations),
        cmocka_unit_test(kernels_that_begin_early_leave_no_trace),
        cmocka_unit_test(a_step_has_so_many_launches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
