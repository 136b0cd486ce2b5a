/* ctest: card */
/* Weights that stay in the type that they are stored in give the bits of the widened ones: forward,
 * gradient of the input, rows of an embedding; any type, instruction set and number of threads. A
 * GPU, which always keeps the stored type, gives the CPU's bits. */
#include "tests/kernel/kernel_kit.h"

#include "store/base/mem.h"

static const fm_dtype all_types[] = {FM_F32,  FM_BF16, FM_F16,  FM_F8_E4M3, FM_F8_E5M2,
                                     FM_Q8_0, FM_Q4_0, FM_Q4_1, FM_Q5_0,    FM_Q5_1,
                                     FM_Q4_K, FM_Q5_K, FM_Q6_K, FM_IQ4_NL};

/* What the case's weight is made of. */
static struct {
    fm_dtype type;
    unsigned char *bytes;
    uint64_t n_bytes;
} stored;

/* Below 2 in size and finite: bit 6 of the byte that holds a float's upper exponent. */
static void tame(unsigned char *block, fm_dtype type)
{
    const uint32_t bytes = fm_dtype_get(type)->block_bytes;

    switch ((int)type) {
    case FM_F8_E4M3:
        block[0] &= 0x77u;
        break;
    case FM_Q6_K:
        block[209] &= 0xbfu;
        break;
    case FM_Q4_1:
    case FM_Q5_1:
    case FM_Q4_K:
    case FM_Q5_K:
        block[3] &= 0xbfu;
        block[1] &= 0xbfu;
        break;
    default: /* a plain type's last byte; a scale at the block's begin */
        block[bytes <= 4 ? bytes - 1 : 1] &= 0xbfu;
        break;
    }
}

/* Any bytes: all quants, signs, scales, minima. */
static void make_stored(fm_dtype type, uint32_t n, uint32_t k)
{
    fm_shape shape = {.rank = 2, .dim = {n, k}};

    stored.type = type;
    tk_ok(fm_tensor_bytes(&stored.n_bytes, type, &shape, "w"));
    stored.bytes = fm_aligned_alloc(64, stored.n_bytes);
    assert_non_null(stored.bytes);
    for (uint64_t i = 0; i < stored.n_bytes; i++)
        stored.bytes[i] = (unsigned char)(256.0 * fm_rng_uniform(11, 2, i));
    for (uint64_t i = 0; i < stored.n_bytes; i += fm_dtype_get(type)->block_bytes)
        tame(stored.bytes + i, type);
}

/* dim: m, n, k */
static void case_stored(kk *k, const uint32_t *dim)
{
    uint32_t m = dim[0], n = dim[1], kd = dim[2];
    float *x = kk_in(k, (size_t)m * kd, 0.5), *dy = kk_in(k, (size_t)m * n, 0.5);
    float *y = kk_out(k, (size_t)m * n, 1.0), *dx = kk_out(k, (size_t)m * kd, 1.0);
    float *one = kk_out(k, n, 1.0), *rows = kk_out(k, 3 * (size_t)kd, 1.0);
    int32_t *id = kk_zeros(k, 3 * sizeof *id);
    fm_weight *w;

    tk_ok(k->be->weight_new(k->be, &w, FM_ROLE_LINEAR, stored.type, n, kd, stored.bytes));
    if (k->be->weight_for_dx)
        tk_ok(k->be->weight_for_dx(k->be, w));
    k->be->linear(k->be, y, n, x, kd, w, NULL, NULL, m);
    k->be->linear(k->be, one, n, x + (size_t)(m - 1) * kd, kd, w, NULL, NULL, 1);
    for (int times = 0; times < 2; times++) /* the second takes another layout where there is one */
        k->be->linear_dx(k->be, dx, kd, dy, n, w, m, false);
    id[0] = (int32_t)n - 1;
    id[1] = (int32_t)n / 2;
    k->be->embed(k->be, rows, kd, w, id, NULL, 3);
    k->be->weight_free(k->be, w);
}

static void memory_is_what_is_stored(fm_backend *be, const uint32_t *d)
{
    fm_weight *w;

    tk_ok(be->weight_new(be, &w, FM_ROLE_LINEAR, stored.type, d[1], d[2], stored.bytes));
    assert_in_range(be->weight_bytes(w), stored.n_bytes, stored.n_bytes + 256);
    tk_ok(be->weight_for_dx(be, w));
    assert_in_range(be->weight_bytes(w), stored.n_bytes, stored.n_bytes + 256);
    be->weight_free(be, w);
}

static void check_cpu(const char *what, const uint32_t *d, const char *isa, unsigned threads)
{
    fm_pool *pool;
    fm_backend *wide, *narrow;

    tk_ok(fm_pool_new(&pool, threads));
    tk_ok(fmi_cpu_open_isa(&wide, pool, isa));
    tk_ok(fmi_cpu_open_isa(&narrow, pool, isa));
    tk_ok(narrow->keep_stored(narrow));
    assert_string_not_equal(wide->layout, narrow->layout);
    assert_string_equal(wide->kernel_class, narrow->kernel_class);
    if (stored.type != FM_F32)
        memory_is_what_is_stored(narrow, d);
    kk a = kk_run(wide, case_stored, d), b = kk_run(narrow, case_stored, d);
    kk_same_bits(&a, &b, what, "stored", threads);
    fm_free(a.result);
    fm_free(b.result);
    fm_backend_close(wide);
    fm_backend_close(narrow);
    fm_pool_free(pool);
}

static void check(fm_dtype type, const uint32_t *d, const char *isa, unsigned threads)
{
    fm_backend *card = kk_card("exact");
    char what[64];

    (void)snprintf(what, sizeof what, "%s, %u x %u x %u", fm_dtype_get(type)->name, d[0], d[1],
                   d[2]);
    make_stored(type, d[1], d[2]);
    if (card)
        kk_check_card(what, case_stored, d, card);
    else
        check_cpu(what, d, isa, threads);
    fm_free(stored.bytes);
}

TEST(every_type_gives_the_bits_of_the_wide_form)
{
    static const uint32_t dims[][3] = {
        {1, 3, 256}, {7, 33, 768}, {70, 530, 1280}, {97, 65, 512}, {4, 70, 2816}};

    for (size_t t = 0; t < FM_ARRAY_LEN(all_types); t++)
        for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
            check(all_types[t], dims[i], i % 2 ? "generic" : NULL, 1 + (unsigned)i % 3);
}

/* Types without blocks may end anywhere. */
TEST(odd_widths)
{
    static const uint32_t dims[][3] = {
        {5, 17, 19}, {66, 40, 1}, {3, 129, 523}, {1, 40, 9}, {9, 1, 530}};

    for (size_t t = 0; t < 5; t++)
        for (size_t i = 0; i < FM_ARRAY_LEN(dims); i++)
            check(all_types[t], dims[i], NULL, 1 + (unsigned)i % 2);
}

/* Every pattern of the short plain types, NaN and infinities among them. */
TEST(every_pattern_widens)
{
    enum { N = 64, K = 1024 };
    static const fm_dtype types[] = {FM_F16, FM_BF16, FM_F8_E4M3, FM_F8_E5M2};
    fm_backend *be = kk_open_exact(NULL);
    kk k = {.be = be};
    float *y = kk_in(&k, N * K, 0.0), *want = fm_calloc(N * K, sizeof *want);
    int32_t *id = kk_alloc(&k, N * sizeof *id);
    uint16_t *bytes = fm_calloc(N * K, sizeof *bytes);

    for (int32_t i = 0; i < N; i++)
        id[i] = N - 1 - i;
    for (size_t t = 0; t < FM_ARRAY_LEN(types); t++) {
        fm_weight *w;
        for (size_t i = 0; i < N * K; i++)
            if (fm_dtype_get(types[t])->block_bytes == 2)
                bytes[i] = (uint16_t)i;
            else
                ((unsigned char *)bytes)[i] = (unsigned char)(i * 7);
        tk_ok(fm_to_f32(want, types[t], bytes, N * K));
        tk_ok(be->weight_new(be, &w, FM_ROLE_LINEAR, types[t], N, K, bytes));
        be->embed(be, y, K, w, id, NULL, N);
        tk_ok(be->sync(be));
        for (size_t i = 0; i < N * K; i++) {
            float a = want[(size_t)id[i / K] * K + i % K];
            assert_true(isnan(a) ? isnan(y[i]) : memcmp(&a, &y[i], sizeof a) == 0);
        }
        be->weight_free(be, w);
    }
    kk_gather(&k);
    fm_free(k.result);
    fm_free(want);
    fm_free(bytes);
    fm_backend_close(be);
}

/* Roles of low-rank factors: float32 rows, whatever they were. */
TEST(factors_are_float32_rows)
{
    static const uint32_t dims[][2] = {{1, 256}, {37, 512}};
    fm_backend *be = kk_open_exact(NULL);

    for (size_t t = 0; t < 2 * FM_ARRAY_LEN(all_types); t++) {
        const uint32_t n = dims[t % 2][0], k = dims[t % 2][1];
        float *want = fm_calloc((size_t)n * k, sizeof *want), *got = fm_calloc((size_t)n * k, 4);
        fm_weight *w;
        make_stored(all_types[t / 2], n, k);
        tk_ok(fm_to_f32(want, stored.type, stored.bytes, (uint64_t)n * k));
        tk_ok(be->weight_new(be, &w, t % 2 ? FM_ROLE_LORA_A : FM_ROLE_LORA_B, stored.type, n, k,
                             stored.bytes));
        tk_ok(be->download(be, got, be->weight_floats(w), (size_t)n * k * sizeof *got));
        assert_memory_equal(want, got, (size_t)n * k * sizeof *got);
        be->weight_free(be, w);
        fm_free(want);
        fm_free(got);
        fm_free(stored.bytes);
    }
    fm_backend_close(be);
}

/* An image kept elsewhere serves as the weight that it was made for. */
TEST(an_image_is_the_weight)
{
    enum { N = 37, K = 512 };
    fm_backend *be = kk_open_exact(NULL);
    kk k = {.be = be};
    float *x = kk_in(&k, K, 0.5), *y = kk_in(&k, N, 0.0), *z = kk_in(&k, N, 0.0);

    for (size_t t = 0; t < FM_ARRAY_LEN(all_types); t++) {
        fm_weight *made, *mapped;
        uint64_t bytes;
        make_stored(all_types[t], N, K);
        tk_ok(be->weight_image_bytes(be, &bytes, FM_ROLE_LINEAR, stored.type, N, K));
        void *image = fm_aligned_alloc(64, bytes);
        tk_ok(be->weight_image(be, image, FM_ROLE_LINEAR, stored.type, N, K, stored.bytes));
        tk_ok(be->weight_map(be, &mapped, FM_ROLE_LINEAR, stored.type, N, K, image));
        tk_ok(be->weight_new(be, &made, FM_ROLE_LINEAR, stored.type, N, K, stored.bytes));
        assert_true(be->weight_bytes(made) >= bytes);
        be->linear(be, y, N, x, K, made, NULL, NULL, 1);
        be->linear(be, z, N, x, K, mapped, NULL, NULL, 1);
        tk_ok(be->sync(be));
        assert_memory_equal(y, z, N * sizeof *y);
        be->weight_free(be, made);
        be->weight_free(be, mapped);
        fm_free(image);
        fm_free(stored.bytes);
    }
    kk_gather(&k);
    fm_free(k.result);
    fm_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_gives_the_bits_of_the_wide_form),
        cmocka_unit_test(odd_widths),
        cmocka_unit_test(every_pattern_widens),
        cmocka_unit_test(factors_are_float32_rows),
        cmocka_unit_test(an_image_is_the_weight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
