/* ctest: card */
/* Products of whole numbers by Hopper's kernel on a GPU (KK_DEVICE=cuda; emulated, or a real one
 * of that kind): the bits of the CPU's mode fast and of the kernels that every GPU has; taken only
 * where a check of bits says so. */
#include "tests/kernel/product_kit.h"

#include <unistd.h>

static char log_path[] = "/tmp/fm_wide8_XXXXXX"; /* a line for each block that multiplies so */

static int begin(void **state)
{
    int fd = mkstemp(log_path);

    (void)state;
    assert_true(fd >= 0);
    close(fd);
    setenv("SIMT_WIDE_LOG", log_path, 1);
    return 0;
}
static int end(void **state)
{
    (void)state;
    return remove(log_path);
}

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

static bool is_emulated(void)
{
    const char *module = getenv("FMSTORE_CUDA_MODULE");
    return module && strstr(module, "emulated");
}

/* wide: FMSTORE_CUDA_WIDE, "192" for this kernel wherever it may. */
static fm_backend *card(const char *wide)
{
    setenv("FMSTORE_CUDA_WIDE", wide, 1);
    fm_backend *be = kk_card("fast");
    if (!be)
        skip();
    return be;
}

static void same(const float *got, const float *want, size_t n, const product_case *c)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got) != 0)
            fail_msg("%s, %u x %u x %u: %a at %zu, expected %a", fm_dtype_get(c->w.dtype)->name,
                     c->m, c->w.n, c->w.k, (double)got[i], i, (double)want[i]);
}

/* Blocks of x of every size, of zeros, and the largest that int8 meets: 127 by -128, 32 times. */
static void uneven(product_case *c)
{
    for (size_t i = 0; i < (size_t)(c->m + 3) * c->w.k; i++) {
        size_t block = i / 32;
        if (block % 5 == 1)
            c->x[i] *= ldexpf(1.0f, -(int)(block * 7 % 110));
        if (block % 5 == 2)
            c->x[i] = block % 2 ? 0.0f : -1.5f;
    }
    if (c->w.dtype == FM_Q8_0)
        for (size_t i = 0; i < (size_t)c->w.n * c->w.k / 32; i += 3)
            memset(c->w.bytes + 34 * i + 2, 0x80, 32);
}

/* The least, more tiles of k than the ring has stages, more tiles of y than there are clusters,
 * warpgroups and blocks with nothing to do. */
TEST(products_have_the_bits_of_the_cpu)
{
    static const uint32_t dims[][5] = {{17, 1, 32, 0, 0},    {205, 300, 96, 1, 1},
                                       {101, 65, 832, 0, 1}, {400, 530, 64, 1, 0},
                                       {192, 256, 32, 0, 0}, {24, 140, 224, 1, 1}};
    static const char *const orders[] = {"forward", "reverse", "5"};
    const bool own_order = getenv("SIMT_ORDER") != NULL;
    fm_backend *be = card("192"), *plain = card("0"), *cpu;

    tk_ok(fm_backend_open(&cpu, "fast", NULL));
    for (size_t i = 0; i < 2 * FM_ARRAY_LEN(dims); i++) {
        const uint32_t *d = dims[i / 2];
        product_case c =
            product_case_new(be, i % 2 ? FM_Q4_0 : FM_Q8_0, d[0], d[1], d[2], d[3], d[4]);
        size_t all = (size_t)c.m * c.w.n, before;
        float *want = random_floats(all, 1.0), *got = random_floats(all, 1.0);
        uneven(&c);
        run_product(&c, cpu, want);
        if (!own_order)
            setenv("SIMT_ORDER", orders[i % 3], 1);
        run_product(&c, be, got);
        before = blocks_so_far();
        run_product(&c, be, got);
        assert_true(!is_emulated() || blocks_so_far() > before);
        same(got, want, all, &c);
        before = blocks_so_far();
        run_product(&c, plain, got);
        assert_int_equal(blocks_so_far(), before);
        same(got, want, all, &c);
        product_case_free(&c);
        fm_free(want);
        fm_free(got);
    }
    fm_backend_close(cpu);
    plain->close(plain);
    be->close(be);
}

/* ---- lists ---- */

enum { ROWS = 230, K = 96, LIST = 6, N = 270 };

/* y [LIST][ROWS, N]: products of the same and of other rows, of both kinds and another. */
static void run_list(fm_backend *be, const matrix *w, const float *x, float *y)
{
    static const uint32_t first[LIST] = {0, 0, 9, 20, 0, 0}, m[LIST] = {200, 200, 0, 66, 5, 200};
    fm_weight *weights[LIST];
    fm_product list[LIST];

    for (int i = 0; i < LIST; i++) {
        weights[i] = weight(be, FM_ROLE_LINEAR, &w[i]);
        list[i] = (fm_product){
            .y = y + (size_t)i * ROWS * N, .ldy = N, .w = weights[i], .first = first[i], .m = m[i]};
    }
    be->products(be, x, K, K, list, LIST);
    tk_ok(be->sync(be));
    for (int i = 0; i < LIST; i++)
        be->weight_free(be, weights[i]);
}

TEST(lists_have_the_bits_of_other_kernels)
{
    static const fm_dtype types[LIST] = {FM_Q8_0, FM_Q4_0, FM_Q8_0, FM_Q8_0, FM_Q4_0, FM_BF16};
    static const uint32_t ns[LIST] = {N, 130, 16, 17, 33, 30};
    const char *const ways[] = {"0", "192", "1"};
    size_t all = (size_t)LIST * ROWS * N;
    float *want = random_floats(all, 1.0), *start = fm_memdup(want, all * sizeof *want);
    matrix w[LIST];
    fm_backend *be = card("0");
    float *x = shared_floats(be, (size_t)ROWS * K, 1.9);

    for (int i = 0; i < LIST; i++)
        w[i] = random_matrix(types[i], ns[i], K);
    x[3 * K + 5] = INFINITY;
    x[7 * K + 70] = NAN;
    for (size_t way = 0; way < FM_ARRAY_LEN(ways); way++) {
        fm_backend *by = card(ways[way]);
        float *y = shared_floats(by, all, 1.0);
        memcpy(y, start, all * sizeof *y);
        run_list(by, w, x, y);
        if (way == 0)
            memcpy(want, y, all * sizeof *y);
        assert_memory_equal(y, want, all * sizeof *y);
        shared_free(by, y);
        by->close(by);
    }
    for (int i = 0; i < LIST; i++)
        matrix_free(&w[i]);
    shared_free(be, x);
    be->close(be);
    fm_free(want);
    fm_free(start);
}

/* A GPU that looks for operands elsewhere (the emulator's): tried once, and never used. */
TEST(other_bits_are_refused)
{
    if (!is_emulated())
        skip();
    fm_backend *be = card("192"), *plain = card("0");
    product_case c = product_case_new(be, FM_Q8_0, 70, 40, 128, false, false);
    size_t all = (size_t)c.m * c.w.n, before = blocks_so_far(), after;
    float *want = random_floats(all, 1.0), *got = random_floats(all, 1.0);

    run_product(&c, plain, want);
    setenv("SIMT_WIDE", "other", 1);
    for (int time = 0; time < 2; time++) {
        run_product(&c, be, got);
        same(got, want, all, &c);
        after = blocks_so_far();
        assert_true(time == 0 ? after > before : after == before);
        before = after;
    }
    unsetenv("SIMT_WIDE");
    product_case_free(&c);
    fm_free(want);
    fm_free(got);
    plain->close(plain);
    be->close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_the_bits_of_the_cpu),
        cmocka_unit_test(lists_have_the_bits_of_other_kernels),
        cmocka_unit_test(other_bits_are_refused),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
