/* Floats that came out of block types: found, kept as blocks, given back bit for bit; and those
 * that did not: refused. */
#include "tests/testkit.h"

#include <math.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "store/quant/dequantized.h"
#include "store/quant/quantize.h"

enum { N = 256 * 96 };
static const fm_dtype TYPE[] = {FM_Q8_0, FM_Q4_0, FM_Q4_1, FM_Q5_0,  FM_Q5_1,
                                FM_Q4_K, FM_Q5_K, FM_Q6_K, FM_IQ4_NL};

typedef struct pair {
    fm_buf blocks, rest;
    fms_origin o;
    bool fits;
} pair;

/* What a model's weights become: rows of their own scales, quantized and dequantized. */
static void weights(float *y, fm_dtype type, uint64_t seed)
{
    uint8_t *blocks = fm_malloc(N * 2);
    for (size_t i = 0; i < N; i++)
        y[i] = (float)(fm_rng_normal(seed, 0, i) * (1.0 + (double)(i / 512 % 7)) * 0.01);
    tk_ok(fm_quantize_rows(blocks, type, y, N, 1, FM_QUANT_PLAIN));
    tk_ok(fm_to_f32(y, type, blocks, N));
    fm_free(blocks);
}

/* Found or not, and back again. */
static pair encode(const float *y, size_t bytes)
{
    pair p = {.fits = false};
    fm_buf_init(&p.blocks, 0);
    fm_buf_init(&p.rest, 0);
    if (!fms_origin_find(&p.o, FM_F32, fm_span_of(y, bytes)))
        return p;
    tk_ok(fms_origin_encode(&p.blocks, &p.rest, &p.fits, &p.o, FM_F32, fm_span_of(y, bytes)));
    if (p.fits) {
        uint8_t *back = fm_malloc(bytes + 1);
        back[bytes] = 42;
        assert_int_equal(p.blocks.len, fms_origin_block_bytes(p.o.type, FM_F32, bytes));
        tk_ok(fms_origin_decode(back, bytes, FM_F32, p.o.type, fm_buf_span(&p.blocks),
                                fm_buf_span(&p.rest)));
        assert_memory_equal(back, y, bytes);
        assert_int_equal(back[bytes], 42);
        fm_free(back);
    }
    return p;
}

static void release(pair *p)
{
    fm_buf_release(&p->blocks);
    fm_buf_release(&p->rest);
}

TEST(every_type_is_found_at_its_own_size)
{
    float *y = fm_malloc(N * sizeof *y);
    for (size_t t = 0; t < FM_ARRAY_LEN(TYPE); t++)
        for (uint64_t seed = 0; seed < 4; seed++) {
            weights(y, TYPE[t], seed);
            pair p = encode(y, N * sizeof *y);
            assert_true(p.fits);
            assert_int_equal(p.o.type, TYPE[t]);
            assert_int_equal(p.rest.len, 4);
            release(&p);
        }
    fm_free(y);
}

/* Blocks of zeros of either sign, of both, of one value; subnormal scales; a tail that is no
 * block. */
TEST(awkward_blocks_come_back)
{
    float *y = fm_malloc(N * sizeof *y);
    for (size_t t = 0; t < FM_ARRAY_LEN(TYPE); t++) {
        weights(y, TYPE[t], 9);
        for (size_t i = 0; i < 256; i++) {
            y[i] = 0.0f;
            y[256 * 3 + i] = -0.0f;
            y[256 * 40 + i] = i % 3 ? 0.0f : -0.0f;
            y[256 * 50 + i] = 0.25f;
            y[256 * 51 + i] = -0.75f;
            y[256 * 60 + i] = (float)((int)(i % 9) - 4) * 0x1p-24f;
        }
        pair p = encode(y, N * sizeof *y - 20);
        assert_true(p.fits);
        release(&p);
    }
    fm_free(y);
}

TEST(altered_blocks_are_exceptions)
{
    static const uint32_t odd[] = {0x7fc00001, 0xff800000, 0x3f8ccccd, 0x00000001};
    float *y = fm_malloc(N * sizeof *y);
    for (size_t t = 0; t < FM_ARRAY_LEN(TYPE); t++) {
        const uint32_t per = fm_dtype_get(TYPE[t])->block_elems;
        weights(y, TYPE[t], 3);
        for (size_t k = 0; k < 4; k++) /* none where the probes look */
            memcpy(&y[(6 + 2 * k) * 256 + 300], &odd[k], 4);
        pair p = encode(y, N * sizeof *y);
        assert_true(p.fits);
        assert_int_equal(p.o.type, TYPE[t]);
        assert_int_equal(fm_get_u32(p.rest.data), 4);
        assert_int_equal(p.rest.len, 4 + 4 * (4 + per * sizeof(float)));
        release(&p);
    }
    fm_free(y);
}

TEST(what_has_no_origin_is_refused)
{
    float *y = fm_malloc(N * sizeof *y);
    fms_origin o;
    for (size_t i = 0; i < N; i++)
        y[i] = (float)fm_rng_normal(1, 0, i);
    const fm_span leaf = fm_span_of(y, N * sizeof *y);
    assert_false(fms_origin_find(&o, FM_F32, leaf));
    assert_false(fms_origin_find(&o, FM_BF16, leaf));
    assert_false(fms_origin_find(&o, FM_F32, fm_span_of(y, 0)));
    for (size_t i = 0; i < N; i++) /* bfloat16 in float32 */
        y[i] = fm_bf16_to_f32(fm_f32_to_bf16(y[i]));
    assert_false(fms_origin_find(&o, FM_F32, leaf));
    for (size_t i = 0; i < N; i++) { /* any bits */
        const uint32_t u = (uint32_t)fm_rng_u64(2, 0, i);
        memcpy(&y[i], &u, 4);
    }
    pair p = encode(y, N * sizeof *y);
    assert_false(p.fits);
    release(&p);
    weights(y, FM_Q4_0, 5); /* blocks where the probes look, nothing elsewhere */
    for (size_t i = 0; i < N; i++)
        y[i] += i / 256 % 6 == 5 ? 1e-3f : 0.0f;
    p = encode(y, N * sizeof *y);
    assert_false(p.fits);
    release(&p);
    fm_free(y);
}

TEST(hostile_bytes_are_refused)
{
    float *y = fm_malloc(N * sizeof *y);
    uint8_t *dst = fm_malloc(N * sizeof *y);
    const size_t bytes = N * sizeof *y - 8;
    weights(y, FM_Q4_1, 3);
    y[300] = 3.3f;
    pair p = encode(y, bytes);
    assert_true(p.fits);
    const fm_span b = fm_buf_span(&p.blocks), r = fm_buf_span(&p.rest);
    for (size_t cut = 0; cut < r.len; cut++)
        tk_fails(fms_origin_decode(dst, bytes, FM_F32, FM_Q4_1, b, fm_span_of(r.data, cut)),
                 FM_ECORRUPT, "exceptions");
    tk_fails(fms_origin_decode(dst, bytes, FM_F32, FM_Q4_1, fm_span_of(b.data, b.len - 1), r),
             FM_ECORRUPT, "Q4_1");
    tk_fails(fms_origin_decode(dst, bytes, FM_F32, FM_Q4_0, b, r), FM_ECORRUPT, "Q4_0");
    tk_fails(fms_origin_decode(dst, bytes, FM_F32, FM_F16, b, r), FM_ECORRUPT, "F16");
    tk_fails(fms_origin_decode(dst, bytes, FM_BF16, FM_Q4_1, b, r), FM_ECORRUPT, "BF16");
    fm_put_u32(p.rest.data + 4, N / 32);
    tk_fails(fms_origin_decode(dst, bytes, FM_F32, FM_Q4_1, b, r), FM_ECORRUPT, "exception");
    release(&p);
    fm_free(y);
    fm_free(dst);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_found_at_its_own_size),
        cmocka_unit_test(awkward_blocks_come_back),
        cmocka_unit_test(altered_blocks_are_exceptions),
        cmocka_unit_test(what_has_no_origin_is_refused),
        cmocka_unit_test(hostile_bytes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
