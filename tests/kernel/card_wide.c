/* ctest: card cuda_cost=20 */
/* Hopper's kernels for products of many rows on a GPU (KK_DEVICE=cuda; emulated, or a real one of
 * that kind): the bits of the kernels that every GPU has, for every stored type and shape of
 * block; taken only where a check of bits says so. */
#include "tests/kernel/matrix_kit.h"

#include <dlfcn.h>
#include <unistd.h>

/* FMSTORE_CUDA_WIDE: none, and rows of a block. */
enum { NONE, BY_64, BY_128, BY_192, WAYS };
static const char *const ways[WAYS] = {"0", "64", "128", "192"};

static fm_backend *card(const char *wide, const char *mode)
{
    setenv("FMSTORE_CUDA_WIDE", wide, 1);
    return kk_card(mode);
}

/* The emulator's orders of threads and times of bulk copies; a real GPU has its own. */
static void emulate(unsigned i)
{
    static const char *const orders[] = {"forward", "reverse", "5", "forward"};
    setenv("SIMT_ORDER", orders[i % 4], 1);
    setenv("SIMT_BULK", i % 4 > 1 ? "soon" : "late", 1);
}

static bool is_emulated(void)
{
    const char *module = getenv("FMSTORE_CUDA_MODULE");
    return module && strstr(module, "emulated");
}

static char log_path[] = "/tmp/fm_wide_XXXXXX";

static fm_backend *by_way[WAYS]; /* mode fast; NULL: there is no GPU */

static int open_cards(void **state)
{
    int fd = mkstemp(log_path);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    setenv("SIMT_WIDE_LOG", log_path, 1);
    for (int way = NONE; way < WAYS; way++)
        by_way[way] = card(ways[way], "fast");
    return 0;
}
static int close_cards(void **state)
{
    (void)state;
    for (int way = NONE; way < WAYS; way++)
        if (by_way[way])
            by_way[way]->close(by_way[way]);
    return remove(log_path);
}
#define NEEDS_CARD()                                                                               \
    if (!by_way[NONE])                                                                             \
    skip()

/* Blocks that have multiplied in Hopper's way so far, on the emulated GPU. */
static size_t blocks_so_far(void)
{
    FILE *f = fopen(log_path, "r");
    size_t n = 0;

    assert_non_null(f);
    for (int c; (c = fgetc(f)) != EOF;)
        n += c == '\n';
    fclose(f);
    return n;
}

static void *shared(fm_backend *be, const void *from, size_t bytes)
{
    void *p;

    tk_ok(be->host_alloc(be, &p, bytes + 1));
    memcpy(p, from, bytes);
    return p;
}

/* Of sizes from 2^-30 to 1, so that a rounding in another place shows. */
static float *uneven_floats(size_t n)
{
    float *x = random_floats(n, 1.0);

    for (size_t i = 0; i < n; i++)
        if (i / 16 % 3 == 0)
            x[i] *= ldexpf(1.0f, -(int)(i * 7 % 31));
    return x;
}

/* ---- one product ---- */

typedef struct shape {
    uint32_t m, n, k;
    bool bias, rows, split;
    uint32_t first;
} shape;

/* y [first + m + 2, n + 3] with guards; *blocks: how many a second time took, after all checks. */
static float *run(fm_backend *be, const shape *s, const matrix *w, const float *x,
                  const float *bias, const int32_t *rows, size_t count, size_t *blocks)
{
    float *y = random_floats(count, 1.0), *got;
    float *sx = shared(be, x, (size_t)(s->first + s->m + 2) * s->k * sizeof *x);
    float *sbias = bias ? shared(be, bias, s->n * sizeof *bias) : NULL;
    int32_t *srows = rows ? shared(be, rows, s->m * sizeof *rows) : NULL;
    fm_weight *weight;

    for (size_t i = 0; i < count; i++)
        y[i] = KK_GUARD_VALUE;
    got = shared(be, y, count * sizeof *y);
    tk_ok(be->weight_new(be, &weight, FM_ROLE_LINEAR, w->dtype, w->n, w->k, w->bytes));
    const fm_product p = {.y = got,
                          .ldy = s->n + 3,
                          .w = weight,
                          .bias = sbias,
                          .first = s->first,
                          .m = s->m,
                          .rows = srows,
                          .split = s->split};
    for (int time = 0; time < (be == by_way[NONE] ? 1 : 2); time++) {
        *blocks = blocks_so_far();
        be->products(be, sx, s->k, s->k, &p, 1);
        tk_ok(be->sync(be));
        *blocks = blocks_so_far() - *blocks;
    }
    memcpy(y, got, count * sizeof *y);
    be->weight_free(be, weight);
    be->host_free(be, got);
    be->host_free(be, sx);
    be->host_free(be, sbias);
    be->host_free(be, srows);
    return y;
}

static void same(const float *got, const float *want, size_t n, const char *what, const shape *s)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got) != 0)
            fail_msg("%s, %u x %u x %u: %a at %zu, expected %a", what, s->m, s->n, s->k,
                     (double)got[i], i, (double)want[i]);
}

static void check(fm_dtype dtype, const shape *s, unsigned order)
{
    uint32_t all = s->first + s->m + 2;
    size_t count = (size_t)all * (s->n + 3), guards = 0;
    matrix w = random_matrix(dtype, s->n, s->k);
    float *x = uneven_floats((size_t)all * s->k), *bias = random_floats(s->n, 1.0), *want = NULL;
    uint32_t *rows = fm_malloc(all * sizeof *rows);

    assert_non_null(rows);
    fm_rng_permutation(rows, all, 13, ++stream_now);
    for (int way = NONE; way < WAYS; way++) {
        size_t blocks;
        emulate(way == NONE ? 0 : order + (unsigned)way);
        float *y = run(by_way[way], s, &w, x, s->bias ? bias : NULL,
                       s->rows ? (const int32_t *)rows : NULL, count, &blocks);
        if (way == NONE) {
            want = fm_memdup(y, count * sizeof *y);
            for (size_t i = 0; i < count; i++)
                guards += want[i] == KK_GUARD_VALUE;
            assert_int_equal(guards, count - (size_t)s->m * s->n);
        }
        same(y, want, count, fm_dtype_get(dtype)->name, s);
        if (is_emulated())
            assert_true(way == NONE ? blocks == 0 : blocks > 0);
        fm_free(y);
    }
    matrix_free(&w);
    fm_free(x);
    fm_free(bias);
    fm_free(want);
    fm_free(rows);
}

TEST(every_type_has_the_bits_of_mma)
{
    NEEDS_CARD();
    static const fm_dtype dtypes[] = {FM_BF16,    FM_F16,  FM_F32,  FM_F8_E4M3,
                                      FM_F8_E5M2, FM_Q4_1, FM_Q4_K, FM_Q6_K};
    for (unsigned d = 0; d < FM_ARRAY_LEN(dtypes); d++)
        for (unsigned split = 0; split < (d < 3 ? 2 : 1); split++) {
            shape wide = {70, 150, d < 3 ? 130 : 256, true, true, split, 0};
            shape odd = {140, 66, d < 3 ? 203 : 256, false, false, split, 3};
            check(dtypes[d], &wide, d + split);
            check(dtypes[d], &odd, d + split + 1);
        }
}

/* More tiles of k than a ring has stages, more tiles of y than there are clusters, the least, and a
 * k whose parts are blocks of their own. */
TEST(every_shape_has_the_bits_of_mma)
{
    NEEDS_CARD();
    static const shape shapes[] = {
        {17, 1, 1, false, false, false, 0},     {33, 65, 1300, true, false, false, 1},
        {40, 30, 1300, false, true, true, 0},   {400, 530, 72, true, true, false, 0},
        {193, 257, 129, false, false, true, 2}, {20, 7, 4500, true, true, false, 0}};
    for (unsigned i = 0; i < FM_ARRAY_LEN(shapes); i++)
        check(FM_BF16, &shapes[i], i);
    for (unsigned i = 1; i < 3;
         i++) /* scales found once here, by each block of k_fast_pack there */
        check(FM_F16, &shapes[i], i);
}

/* ---- lists ---- */

enum { ROWS = 150, K = 256, LIST = 7 };

static void run_list(fm_backend *be, const matrix *w, const float *x, float *const *y)
{
    static const uint32_t first[LIST] = {0, 0, 9, 20, 0, 5, 30},
                          m[LIST] = {130, 130, 0, 66, 5, 90, 18};
    float *sx = shared(be, x, ROWS * K * sizeof *x), *sy[LIST];
    fm_weight *weight[LIST];
    fm_product list[LIST];

    for (int i = 0; i < LIST; i++) {
        tk_ok(
            be->weight_new(be, &weight[i], FM_ROLE_LINEAR, w[i].dtype, w[i].n, w[i].k, w[i].bytes));
        sy[i] = shared(be, y[i], ROWS * w[i].n * sizeof(float));
        list[i] =
            (fm_product){.y = sy[i], .ldy = w[i].n, .w = weight[i], .first = first[i], .m = m[i]};
    }
    be->products(be, sx, K, K, list, LIST);
    tk_ok(be->sync(be));
    for (int i = 0; i < LIST; i++) {
        memcpy(y[i], sy[i], ROWS * w[i].n * sizeof(float));
        be->weight_free(be, weight[i]);
        be->host_free(be, sy[i]);
    }
    be->host_free(be, sx);
}

TEST(lists_have_the_bits_of_mma)
{
    NEEDS_CARD();
    static const fm_dtype mix[LIST] = {FM_BF16, FM_BF16, FM_BF16, FM_F32, FM_BF16, FM_Q6_K, FM_F16};
    static const uint32_t ns[LIST] = {48, 260, 16, 17, 33, 30, 100};
    matrix w[LIST];
    float *y[LIST], *want[LIST], *x = uneven_floats(ROWS * K);

    for (int i = 0; i < LIST; i++) {
        w[i] = random_matrix(mix[i], ns[i], K);
        want[i] = random_floats(ROWS * ns[i], 1.0);
    }
    for (int way = NONE; way <= WAYS; way++) { /* the last: sizes as they come */
        fm_backend *be = way < WAYS ? by_way[way] : card("1", "fast");
        for (int i = 0; i < LIST; i++)
            y[i] = fm_memdup(want[i], ROWS * ns[i] * sizeof(float));
        emulate((unsigned)way);
        run_list(be, w, x, way == NONE ? want : y);
        for (int i = 0; i < LIST; i++) {
            shape s = {ROWS, ns[i], K, false, false, false, 0};
            if (way != NONE)
                same(y[i], want[i], ROWS * ns[i], "a list", &s);
            fm_free(y[i]);
        }
        if (way == WAYS)
            be->close(be);
    }
    for (int i = 0; i < LIST; i++) {
        matrix_free(&w[i]);
        fm_free(want[i]);
    }
    fm_free(x);
}

/* ---- training ---- */

enum { M = 75, N = 140, IN = 72 };

/* Every product of mode bf16 that is not linear: turned, added to, times alpha, with pairs. */
static void run_training(const char *way, const float *a, const float *b, const matrix *w,
                         float *out /* [4][N * N] */)
{
    fm_backend *be = card(way, "bf16");
    float *sa = shared(be, a, N * N * sizeof *a), *sb = shared(be, b, N * N * sizeof *b);
    float *to = shared(be, a, 4 * N * N * sizeof *a);
    fm_weight *weight;

    tk_ok(be->weight_new(be, &weight, FM_ROLE_LINEAR, w->dtype, N, IN, w->bytes));
    be->linear_dx(be, to, IN, sa, N, weight, M, true);
    be->linear_dw(be, to + N * N, sa, N, sb, IN, M, N, IN, false);
    be->linear_dw(be, to + 2 * N * N, sa, N, sb, IN, M, N, IN, true);
    be->gemm(be, to + 3 * N * N, N, sa, N, true, sb, N, false, M, IN, 130, 0.75f, true);
    tk_ok(be->sync(be));
    memcpy(out, to, 4 * N * N * sizeof *out);
    be->weight_free(be, weight);
    be->host_free(be, sa);
    be->host_free(be, sb);
    be->host_free(be, to);
    be->close(be);
}

TEST(training_has_the_bits_of_mma)
{
    NEEDS_CARD();
    float *a = uneven_floats(4 * N * N), *b = uneven_floats(N * N);
    float *want = random_floats(4 * N * N, 1.0), *got = random_floats(4 * N * N, 1.0);
    matrix w = random_matrix(FM_BF16, N, IN);
    shape s = {M, N, IN, false, false, false, 0};

    for (int way = NONE; way < WAYS; way++) {
        emulate((unsigned)way);
        run_training(ways[way], a, b, &w, way == NONE ? want : got);
        if (way != NONE)
            same(got, want, 4 * N * N, "training", &s);
    }
    fm_free(a);
    fm_free(b);
    fm_free(want);
    fm_free(got);
    matrix_free(&w);
}

/* ---- what the check is for ---- */

/* A GPU whose wgmma rounds otherwise (the emulator's): tried once, and never used. */
TEST(other_bits_are_refused)
{
    NEEDS_CARD();
    shape s = {70, 40, 200, false, false, false, 0};
    size_t count = (size_t)(s.m + 2) * (s.n + 3), blocks;
    matrix w = random_matrix(FM_BF16, s.n, s.k);
    float *x = uneven_floats((size_t)(s.m + 2) * s.k);
    float *want;

    if (!is_emulated())
        skip();
    want = run(by_way[NONE], &s, &w, x, NULL, NULL, count, &blocks);
    emulate(0);
    for (int i = 0; i < 3; i++) {
        size_t before = blocks_so_far();
        setenv("SIMT_WIDE", i == 1 ? "other" : "same", 1);
        fm_backend *be = card("64", "fast");
        float *y = run(be, &s, &w, x, NULL, NULL, count, &blocks);
        assert_true(blocks_so_far() > before);
        assert_true(i == 1 ? blocks == 0 : blocks > 0);
        same(y, want, count, "checked", &s);
        be->close(be);
        fm_free(y);
    }
    unsetenv("SIMT_WIDE");
    matrix_free(&w);
    fm_free(x);
    fm_free(want);
}

/* The nth next allocation of an emulated GPU fails; 0: none does. */
static void allocation_fails(int number, unsigned long nth)
{
    union {
        void *object;
        void (*call)(int, int, unsigned long);
    } f = {.object =
               dlsym(dlopen(getenv("FMSTORE_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD), "simt_fail")};

    assert_non_null(f.object);
    f.call(number, 0, nth);
}

/* One thread has two GPUs: the room of a check is the GPU's whose kernels are checked. */
TEST(a_check_is_of_its_own_card)
{
    NEEDS_CARD();
    const shape s = {70, 40, 200, false, false, false, 0};
    const fm_module *module;
    fm_backend *second;
    fm_weight *weight;
    matrix w = random_matrix(FM_BF16, s.n, s.k);
    float *x = uneven_floats((size_t)s.m * s.k);
    size_t before = blocks_so_far();

    if (!is_emulated())
        skip();
    emulate(0);
    setenv("SIMT_DEVICES", "2", 1);
    setenv("FMSTORE_CUDA_WIDE", "64", 1);
    tk_ok(fm_module_cuda(&module));
    tk_ok(module->open(&second, 1, "fast", NULL));
    float *y = shared(second, x, (size_t)s.m * s.n * sizeof *y);
    float *sx = shared(second, x, (size_t)s.m * s.k * sizeof *x);
    tk_ok(second->weight_new(second, &weight, FM_ROLE_LINEAR, w.dtype, w.n, w.k, w.bytes));
    const fm_product p = {.y = y, .ldy = s.n, .w = weight, .m = s.m};
    tk_ok(second->sync(second));
    tk_ok(by_way[NONE]->sync(by_way[NONE])); /* the thread is on the first GPU */
    allocation_fails(0, 1);
    second->products(second, sx, s.k, s.k, &p, 1);
    tk_ok(second->sync(second));
    allocation_fails(0, 0);
    assert_true(blocks_so_far() > before);
    second->weight_free(second, weight);
    second->host_free(second, y);
    second->host_free(second, sx);
    second->close(second);
    unsetenv("SIMT_DEVICES");
    matrix_free(&w);
    fm_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_has_the_bits_of_mma),
        cmocka_unit_test(every_shape_has_the_bits_of_mma),
        cmocka_unit_test(lists_have_the_bits_of_mma),
        cmocka_unit_test(training_has_the_bits_of_mma),
        cmocka_unit_test(other_bits_are_refused),
        cmocka_unit_test(a_check_is_of_its_own_card),
    };
    return cmocka_run_group_tests(tests, open_cards, close_cards);
}
