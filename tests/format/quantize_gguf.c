/* What llama-quantize's ggml makes of awkward floats in every type that export writes, without an
 * importance matrix and with one (golden/make_quantize_gguf.py). */
#include "tests/testkit.h"

#include <string.h>

#include "store/base/math/rng.h"
#include "store/quant/quantize_impl.h"

static const fm_dtype TYPE[] = {FM_Q4_0, FM_Q4_1, FM_Q5_0, FM_Q5_1, FM_Q8_0,   FM_Q2_K,
                                FM_Q3_K, FM_Q4_K, FM_Q5_K, FM_Q6_K, FM_IQ4_NL, FM_IQ4_XS};

static size_t bytes_of(fm_dtype type, size_t elems)
{
    return elems / fm_dtype_get(type)->block_elems * fm_dtype_get(type)->block_bytes;
}

static void check_blocks(fm_dtype type, const uint8_t *got, const uint8_t *want, size_t bytes,
                         const char *how)
{
    const size_t block = fm_dtype_get(type)->block_bytes;
    for (size_t b = 0; b < bytes; b += block)
        if (memcmp(got + b, want + b, block) != 0)
            fail_msg("%s %s: block %zu differs", fm_dtype_get(type)->name, how, b / block);
}

/* The portable loops, which a CPU with AVX2 does not take. */
static void portable(uint8_t *dst, fm_dtype type, const float *src, uint64_t elems, const float *by)
{
    if (type == FM_Q2_K || type == FM_Q3_K)
        fms_quantize_low_base(dst, type, src, elems, by);
    else if (type == FM_IQ4_XS)
        fms_quantize_iq4_xs_base(dst, type, src, elems, by);
    else if (type == FM_IQ4_NL || (by && fm_dtype_get(type)->block_elems == 32))
        fms_weighted_32_base(dst, type, src, elems, by);
    else if (by)
        fms_weighted_k_base(dst, type, src, elems, by);
    else if (fm_dtype_get(type)->block_elems == 32)
        fms_quantize_32_base(dst, type, src, elems / 32, FM_QUANT_PLAIN);
    else
        fms_quantize_k_base(dst, type, src, elems / 256, FM_QUANT_PLAIN);
}

TEST(every_type_has_ggmls_bits_with_weights_and_without)
{
    char *path = tk_source("tests/format/golden/quantize_gguf.bin");
    fm_buf file;
    fm_buf_init(&file, 0);
    tk_ok(fm_read_file(&file, path, 1 << 20));
    const uint32_t rows = fm_get_u32(file.data), cols = fm_get_u32(file.data + 4);
    float *x = fm_malloc(rows * cols * sizeof *x), *w = fm_malloc(cols * sizeof *w);
    memcpy(x, file.data + 8, rows * cols * sizeof *x);
    memcpy(w, file.data + 8 + rows * cols * sizeof *x, cols * sizeof *w);
    size_t at = 8 + (rows + 1) * cols * sizeof *x;
    for (size_t t = 0; t < FM_ARRAY_LEN(TYPE); t++)
        for (int by = 0; by < 2; by++) {
            const size_t bytes = bytes_of(TYPE[t], rows * cols);
            uint8_t *got = fm_malloc(bytes);
            tk_ok(fm_quantize_gguf(got, TYPE[t], x, cols, rows, by ? w : NULL));
            check_blocks(TYPE[t], got, file.data + at, bytes, by ? "with weights" : "alone");
            for (uint32_t r = 0; r < rows && !(by && TYPE[t] == FM_Q8_0); r++)
                portable(got + r * (bytes / rows), TYPE[t], x + r * cols, cols, by ? w : NULL);
            check_blocks(TYPE[t], got, file.data + at, bytes, "by the portable loops");
            fm_free(got);
            at += bytes;
        }
    assert_int_equal(at, file.len);
    fm_free(x);
    fm_free(w);
    fm_buf_release(&file);
    fm_free(path);
}

/* Any finite floats, and rows that end within a group of eight blocks. */
TEST(any_floats_give_the_same_bytes_either_way_and_none_outside)
{
    enum { COLS = 11 * 256, N = COLS + 32 };
    float *x = fm_malloc(N * sizeof *x), *w = fm_malloc(N * sizeof *w);
    uint8_t *fast = fm_malloc(N * 4), *slow = fm_malloc(N * 4);
    for (size_t i = 0; i < N; i++) {
        const uint32_t u = (uint32_t)fm_rng_u64(8, 0, i);
        memcpy(x + i, &u, 4);
        x[i] = isfinite(x[i]) ? x[i] : 0.0f;
        w[i] = (float)fm_rng_uniform(8, 1, i);
    }
    for (size_t t = 0; t < FM_ARRAY_LEN(TYPE); t++)
        for (int by = 0; by < 2 && !(by && TYPE[t] == FM_Q8_0); by++) {
            const uint64_t n = fm_dtype_get(TYPE[t])->block_elems == 32 ? N : COLS;
            const size_t bytes = bytes_of(TYPE[t], n);
            fast[bytes] = 42;
            tk_ok(fm_quantize_gguf(fast, TYPE[t], x, n, 1, by ? w : NULL));
            assert_int_equal(fast[bytes], 42);
            portable(slow, TYPE[t], x, n, by ? w : NULL);
            check_blocks(TYPE[t], fast, slow, bytes,
                         by ? "of any floats, weighted" : "of any floats");
        }
    fm_free(x);
    fm_free(w);
    fm_free(fast);
    fm_free(slow);
}

TEST(what_it_cannot_do_is_refused)
{
    uint8_t out[512];
    float x[256] = {0};
    assert_true(fm_quantize_gguf_applies(FM_IQ4_XS));
    assert_false(fm_quantize_gguf_applies(FM_IQ3_S));
    tk_fails(fm_quantize_gguf(out, FM_IQ3_S, x, 256, 1, NULL), FM_EUNSUPPORTED, "IQ3_S");
    tk_fails(fm_quantize_gguf(out, FM_F16, x, 256, 1, NULL), FM_EUNSUPPORTED, "F16");
    tk_fails(fm_quantize_gguf(out, FM_Q2_K, x, 32, 8, NULL), FM_EINVAL, "Q2_K");
    /* A scale that float16 does not hold is told. */
    for (size_t t = 0; t < FM_ARRAY_LEN(TYPE); t++)
        for (int big = 0; big < 2; big++) {
            for (size_t i = 0; i < 256; i++)
                x[i] = big && i == 77 ? 1e10f : (float)i;
            tk_ok(fm_quantize_gguf(out, TYPE[t], x, 256, 1, NULL));
            assert_true(fm_blocks_finite(TYPE[t], out, 256 / fm_dtype_get(TYPE[t])->block_elems) ==
                        !big);
        }
    /* What recipes may name is not more than it was. */
    assert_false(fm_quantize_applies(FM_Q2_K) || fm_quantize_applies(FM_Q3_K) ||
                 fm_quantize_applies(FM_IQ4_XS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_has_ggmls_bits_with_weights_and_without),
        cmocka_unit_test(any_floats_give_the_same_bytes_either_way_and_none_outside),
        cmocka_unit_test(what_it_cannot_do_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
