/* ggml's own quantizers, as three compilers build them, on models' weights and on awkward blocks
 * (golden/make_quantize.py); and what holds for any input. */
#include "tests/testkit.h"

#include <stdio.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "store/quant/quantize_impl.h"

static const fm_dtype TYPE[] = {FM_Q8_0, FM_Q4_0, FM_Q4_1, FM_Q5_0,  FM_Q5_1,
                                FM_Q4_K, FM_Q5_K, FM_Q6_K, FM_IQ4_NL};
static fm_buf file;
static float *source;
static uint32_t count;

static int load(void **state)
{
    char *path = tk_source("tests/format/golden/quantize.bin");
    (void)state;
    fm_buf_init(&file, 0);
    tk_ok(fm_read_file(&file, path, 1 << 20));
    count = fm_get_u32(file.data);
    source = fm_malloc(count * sizeof *source);
    memcpy(source, file.data + 4, count * sizeof *source);
    fm_free(path);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    fm_buf_release(&file);
    fm_free(source);
    return 0;
}

static size_t bytes_of(fm_dtype type, size_t elems)
{
    return elems / fm_dtype_get(type)->block_elems * fm_dtype_get(type)->block_bytes;
}

TEST(every_type_and_variant_has_ggmls_bits)
{
    size_t at = 4 + count * sizeof(float);
    for (size_t t = 0; t < FM_ARRAY_LEN(TYPE); t++) {
        const fm_dtype_info *info = fm_dtype_get(TYPE[t]);
        const size_t bytes = bytes_of(TYPE[t], count);
        uint8_t *got = fm_malloc(bytes);
        for (int v = 0; v < FM_QUANT_VARIANTS; v++, at += bytes) {
            tk_ok(fm_quantize_rows(got, TYPE[t], source, count, 1, (fm_quant_variant)v));
            for (size_t b = 0; b < bytes; b += info->block_bytes)
                if (memcmp(got + b, file.data + at + b, info->block_bytes) != 0)
                    fail_msg("%s variant %d: block %zu differs", info->name, v,
                             b / info->block_bytes);
        }
        fm_free(got);
    }
    assert_int_equal(at, file.len);
}

/* The same bytes by the portable loops, many blocks at once and one at a time; none outside. */
static void check_ways(fm_dtype type, const float *x, uint64_t n, fm_quant_variant v)
{
    const fm_dtype_info *info = fm_dtype_get(type);
    const size_t bytes = bytes_of(type, n);
    uint8_t *all = fm_malloc(bytes + 1), *slow = fm_malloc(bytes), one[210];
    all[bytes] = 42;
    tk_ok(fm_quantize_rows(all, type, x, n, 1, v));
    assert_int_equal(all[bytes], 42);
    if (info->block_elems == 32)
        fms_quantize_32_base(slow, type, x, n / 32, v);
    else
        fms_quantize_k_base(slow, type, x, n / 256, v);
    assert_memory_equal(slow, all, bytes);
    for (size_t b = 0; b < n / info->block_elems; b++) {
        tk_ok(fm_quantize_rows(one, type, x + b * info->block_elems, info->block_elems, 1, v));
        assert_memory_equal(one, all + b * info->block_bytes, info->block_bytes);
    }
    fm_free(all);
    fm_free(slow);
}

/* Any 32 bits as floats, NaN and infinities too. */
TEST(any_bits_give_the_same_bytes_every_way)
{
    enum { N = 32 * 256 };
    float *x = fm_malloc(N * sizeof *x);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < N; i++) {
            uint32_t u = (uint32_t)fm_rng_u64(5, (uint64_t)round, i);
            u = round == 0 || i % 5 ? u : u | 0x7f800000u; /* many NaN and infinities */
            u = round < 2 ? u : u & 0x80ffffffu;           /* subnormals and the smallest */
            memcpy(x + i, &u, 4);
        }
        for (size_t t = 0; t < FM_ARRAY_LEN(TYPE); t++)
            for (int v = 0; v < FM_QUANT_VARIANTS; v++)
                check_ways(TYPE[t], x, N, (fm_quant_variant)v);
    }
    fm_free(x);
}

/* Codes of a block that came out of the type are found again wherever the scale is. */
TEST(quantizing_what_was_dequantized_changes_no_q8_0_code)
{
    enum { N = 4096 };
    float x[N], back[N];
    uint8_t first[N / 32 * 34], second[N / 32 * 34];
    for (size_t i = 0; i < N; i++)
        x[i] = (float)fm_rng_uniform(6, 0, i) - 0.5f;
    tk_ok(fm_quantize_rows(first, FM_Q8_0, x, N, 1, FM_QUANT_PLAIN));
    tk_ok(fm_to_f32(back, FM_Q8_0, first, N));
    tk_ok(fm_quantize_rows(second, FM_Q8_0, back, 32, N / 32, FM_QUANT_PLAIN));
    assert_memory_equal(first, second, sizeof first);
}

TEST(what_it_cannot_do_is_refused)
{
    uint8_t out[256];
    assert_false(fm_quantize_applies(FM_F32));
    assert_false(fm_quantize_applies(FM_U8));
    tk_fails(fm_quantize_rows(out, FM_F16, source, 32, 1, FM_QUANT_PLAIN), FM_EUNSUPPORTED, "F16");
    tk_fails(fm_quantize_rows(out, FM_Q4_0, source, 31, 1, FM_QUANT_PLAIN), FM_EINVAL, "31");
    tk_fails(fm_quantize_rows(out, FM_Q4_K, source, 32, 1, FM_QUANT_PLAIN), FM_EINVAL, "Q4_K");
    tk_fails(fm_quantize_rows(out, FM_Q4_0, source, 32, 1, FM_QUANT_VARIANTS), FM_EINVAL,
             "variant");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_variant_has_ggmls_bits),
        cmocka_unit_test(any_bits_give_the_same_bytes_every_way),
        cmocka_unit_test(quantizing_what_was_dequantized_changes_no_q8_0_code),
        cmocka_unit_test(what_it_cannot_do_is_refused),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
