/* Weights that stay in the type that they are stored in give the bits of the widened ones: forward,
 * gradient of the input, rows of an embedding; any type, instruction set and number of threads. */
#include "infer/cpu/cpu.h"
#include "store/base/mem.h"
#include "store/base/rng.h"
#include "store/quantize.h"
#include "tests/testkit.h"

typedef struct sides {
    float *y, *dx, *row; /* [m, n], [m, k], [k] */
} sides;

static void *stored_bytes(fm_dtype type, uint32_t n, uint32_t k, uint64_t *bytes)
{
    fm_shape shape = {.rank = 2, .dim = {n, k}};
    float *w = fm_calloc((size_t)n * k, sizeof *w);
    for (size_t i = 0; i < (size_t)n * k; i++)
        w[i] = (float)fm_rng_uniform(11, 2, i) - 0.5f;
    tk_ok(fm_tensor_bytes(bytes, type, &shape, "w"));
    void *out = fm_aligned_alloc(64, *bytes);
    if (fm_quantize_applies(type))
        tk_ok(fm_quantize_rows(out, type, w, k, n, FM_QUANT_PLAIN));
    else
        tk_ok(fm_from_f32(out, type, w, (uint64_t)n * k));
    fm_free(w);
    return out;
}

static float *values(size_t n, uint64_t stream)
{
    float *x = fm_calloc(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)fm_rng_uniform(5, stream, i) - 0.5f;
    return x;
}

static sides run(fm_backend *be, fm_dtype type, const void *bytes, const uint32_t *d)
{
    uint32_t m = d[0], n = d[1], k = d[2];
    sides s = {fm_calloc((size_t)m * n, 4), fm_calloc((size_t)m * k, 4), fm_calloc(k, 4)};
    float *x = values((size_t)m * k, 1), *dy = values((size_t)m * n, 2);
    int32_t id = (int32_t)n - 1;
    fm_weight *w;

    tk_ok(be->weight_new(be, &w, FM_ROLE_LINEAR, type, n, k, bytes));
    tk_ok(be->weight_for_dx(be, w));
    be->linear(be, s.y, n, x, k, w, NULL, NULL, m);
    for (int times = 0; times < 2; times++) /* the second takes another layout where there is one */
        be->linear_dx(be, s.dx, k, dy, n, w, m, false);
    be->embed(be, s.row, k, w, &id, NULL, 1);
    tk_ok(be->sync(be));
    be->weight_free(be, w);
    fm_free(x);
    fm_free(dy);
    return s;
}

static void check(fm_dtype type, const uint32_t *d, const char *isa, unsigned threads)
{
    uint64_t bytes;
    void *stored = stored_bytes(type, d[1], d[2], &bytes);
    fm_pool *pool;
    fm_backend *wide, *narrow;
    fm_weight *w;

    tk_ok(fm_pool_new(&pool, threads));
    tk_ok(fmi_cpu_open_isa(&wide, pool, isa));
    tk_ok(fmi_cpu_open_isa(&narrow, pool, isa));
    tk_ok(narrow->keep_stored(narrow));
    assert_string_not_equal(wide->layout, narrow->layout);
    assert_string_equal(wide->kernel_class, narrow->kernel_class);
    tk_ok(narrow->weight_new(narrow, &w, FM_ROLE_LINEAR, type, d[1], d[2], stored));
    assert_in_range(narrow->weight_bytes(w), bytes, bytes + 256);
    tk_ok(narrow->weight_for_dx(narrow, w));
    assert_in_range(narrow->weight_bytes(w), bytes, bytes + 256);
    narrow->weight_free(narrow, w);
    sides a = run(wide, type, stored, d), b = run(narrow, type, stored, d);
    assert_memory_equal(a.y, b.y, (size_t)d[0] * d[1] * 4);
    assert_memory_equal(a.dx, b.dx, (size_t)d[0] * d[2] * 4);
    assert_memory_equal(a.row, b.row, (size_t)d[2] * 4);
    float *all[] = {a.y, a.dx, a.row, b.y, b.dx, b.row};
    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++)
        fm_free(all[i]);
    fm_backend_close(wide);
    fm_backend_close(narrow);
    fm_pool_free(pool);
    fm_free(stored);
}

static void every_type_gives_the_bits_of_the_wide_form(void **state)
{
    static const fm_dtype types[] = {FM_BF16, FM_F16,  FM_Q8_0, FM_Q4_0, FM_Q4_1,  FM_Q5_0,
                                     FM_Q5_1, FM_Q4_K, FM_Q5_K, FM_Q6_K, FM_IQ4_NL};
    static const uint32_t dims[][3] = {{1, 3, 256}, {7, 33, 768}, {70, 530, 1280}, {97, 65, 512}};

    (void)state;
    for (size_t t = 0; t < FM_ARRAY_LEN(types); t++)
        for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
            check(types[t], dims[i], i % 2 ? "generic" : NULL, 1 + (unsigned)i % 3);
}

/* Types without blocks may end anywhere. */
static void odd_widths(void **state)
{
    static const uint32_t dims[][3] = {{5, 17, 19}, {66, 40, 1}, {3, 129, 523}};

    (void)state;
    for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++) {
        check(FM_BF16, dims[i], NULL, 2);
        check(FM_F16, dims[i], NULL, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_gives_the_bits_of_the_wide_form),
        cmocka_unit_test(odd_widths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
