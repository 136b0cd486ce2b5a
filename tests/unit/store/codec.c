/* ctest: cost=20 */
/* Codecs: every leaf comes back bit for bit, whatever codec won, and malformed bytes are refused.
 */
#include <string.h>

#include "store/base/math/rng.h"
#include "store/codec/codec.h"
#include "store/entropy/crans.h"
#include "store/entropy/rans.h"
#include "store/codec/sorted_delta.h"
#include "store/quant/quantize.h"
#include "tests/testkit.h"

static fms_coder *coder;

static int setup(void **state)
{
    (void)state;
    return fms_coder_new(&coder) == FM_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    fms_coder_free(coder);
    return 0;
}

/* Encodes with vectors and without (same bytes), decodes both ways, compares; returns the coded
 * size. */
static uint64_t row_bytes = 0, leaf_offset = 0;
static bool slow = false;
static size_t round_trip(fm_dtype dtype, const uint8_t *leaf, size_t n, const uint8_t *parent,
                         uint8_t *codec)
{
    fm_buf a, b;
    fm_buf_init(&a, 0);
    fm_buf_init(&b, 0);
    uint8_t again;
    fms_leaf_at at = {dtype, row_bytes, leaf_offset, slow};
    tk_ok(fms_leaf_encode(coder, &a, codec, &at, fm_span_of(leaf, n), parent));
    for (int level = FMS_SIMD_NONE; level <= FMS_SIMD_AVX2; level++) {
        fms_simd_limit(level);
        fm_buf_clear(&b);
        tk_ok(fms_leaf_encode(coder, &b, &again, &at, fm_span_of(leaf, n), parent));
        assert_int_equal(*codec, again);
        assert_true(fm_span_eq(fm_buf_span(&a), fm_buf_span(&b)));
    }
    uint8_t *back = fm_malloc(n);
    for (int level = FMS_SIMD_NONE; level <= FMS_SIMD_AVX512; level++) {
        fms_simd_limit(level);
        memset(back, 0x5a, n);
        tk_ok(fms_leaf_decode(coder, back, n, *codec, &at, fm_buf_span(&a), parent));
        assert_memory_equal(back, leaf, n);
    }
    assert_true(a.len <= n);
    size_t len = a.len;
    fm_free(back);
    fm_buf_release(&a);
    fm_buf_release(&b);
    return len;
}

static void fill_normal_bf16(uint8_t *p, size_t n, uint64_t stream)
{
    for (size_t i = 0; i < n; i++)
        fm_put_u16(p + 2 * i, fm_f32_to_bf16((float)(0.02 * fm_rng_normal(1, stream, i))));
}

static void noise(uint8_t *p, size_t n, uint64_t stream)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)fm_rng_u64(2, stream, i);
}

TEST(noise_is_stored_raw)
{
    uint8_t *p = fm_malloc(FM_LEAF_BYTES), codec;
    noise(p, FM_LEAF_BYTES, 1);
    assert_int_equal(round_trip(FM_DTYPE_NONE, p, FM_LEAF_BYTES, NULL, &codec), FM_LEAF_BYTES);
    assert_int_equal(codec, FMS_CODEC_RAW);
    fm_free(p);
}

TEST(constants_take_one_element)
{
    uint8_t *p = fm_malloc(FM_LEAF_BYTES), codec;
    for (size_t i = 0; i < FM_LEAF_BYTES / 4; i++)
        fm_put_u32(p + 4 * i, 0x3f800000u);
    assert_int_equal(round_trip(FM_F32, p, FM_LEAF_BYTES, NULL, &codec), 4);
    assert_int_equal(codec, FMS_CODEC_CONST);
    fm_free(p);
}

TEST(weights_in_bf16_reach_their_entropy)
{
    uint8_t *p = fm_malloc(FM_LEAF_BYTES), codec;
    fill_normal_bf16(p, FM_LEAF_BYTES / 2, 3);
    size_t len = round_trip(FM_BF16, p, FM_LEAF_BYTES, NULL, &codec);
    assert_int_equal(codec, FMS_CODEC_EXPS);
    tk_assert_le((double)len / FM_LEAF_BYTES, 0.665, "bf16 alone");
    fm_free(p);
}

TEST(a_child_costs_less_than_its_xor)
{
    size_t n = FM_LEAF_BYTES / 2;
    uint8_t *p = fm_malloc(FM_LEAF_BYTES), *c = fm_malloc(FM_LEAF_BYTES), codec;
    for (size_t i = 0; i < n; i++) {
        double w = 0.02 * fm_rng_normal(1, 4, i);
        fm_put_u16(p + 2 * i, fm_f32_to_bf16((float)w));
        fm_put_u16(c + 2 * i, fm_f32_to_bf16((float)(w + 2e-5 * fm_rng_normal(1, 5, i))));
    }
    size_t len = round_trip(FM_BF16, c, FM_LEAF_BYTES, p, &codec);
    assert_int_equal(codec, FMS_CODEC_CDELTA);
    tk_assert_le((double)len / FM_LEAF_BYTES, 0.09, "bf16 child, relative update 1e-3");
    slow = true;
    assert_true(round_trip(FM_BF16, c, FM_LEAF_BYTES, p, &codec) <= len);
    assert_int_equal(codec, FMS_CODEC_MIXED);
    slow = false;
    assert_int_equal(round_trip(FM_BF16, p, FM_LEAF_BYTES, p, &codec), 0);
    assert_int_equal(codec, FMS_CODEC_SAME);
    fm_free(p);
    fm_free(c);
}

/* A coarse update on finer weights: of each element the upper half moves by a few steps, the lower
 * stays; but for `odd` of 64, which are any bits (NaN payloads and -0.0 among them). */
static void coarse_update(uint8_t *c, uint8_t *p, size_t n, unsigned odd, uint64_t stream)
{
    for (size_t i = 0; i < n; i++) {
        const uint64_t r = fm_rng_u64(3, stream, i);
        const float w = (float)(0.02 * fm_rng_normal(1, stream, i));
        uint32_t v;
        memcpy(&v, &w, 4);
        fm_put_u32(p + 4 * i, v);
        v += (uint32_t)((r & 3) - 1) << 16;
        if ((r >> 8) % 64 < odd)
            v = (r >> 16) % 3 == 0   ? 0x80000000u
                : (r >> 16) % 3 == 1 ? 0x7f800000u | (uint32_t)(r >> 32)
                                     : (uint32_t)(r >> 32);
        fm_put_u32(c + 4 * i, v);
    }
}

TEST(low_bits_that_stay_cost_nothing)
{
    const size_t n = FM_LEAF_BYTES / 4;
    uint8_t *p = fm_malloc(FM_LEAF_BYTES), *c = fm_malloc(FM_LEAF_BYTES), codec;
    coarse_update(c, p, n, 0, 81); /* steps -1, 0, 1, 2: two bits of 32, and the carries */
    tk_assert_le((double)round_trip(FM_F32, c, 4 * n, p, &codec) / FM_LEAF_BYTES, 0.12, "coarse");
    assert_int_equal(codec, FMS_CODEC_XOR);
    for (unsigned odd = 1; odd <= 64; odd *= 2) { /* whichever is smaller, it comes back */
        const size_t bytes = 4 * (n - odd * 1000);
        const size_t len =
            round_trip(FM_F32, (coarse_update(c, p, n, odd, 81 + odd), c), bytes, p, &codec);
        assert_true(codec == FMS_CODEC_XOR || odd > 8);
        tk_assert_le((double)len / (double)bytes, 0.12 + odd / 30.0, "with odd ones");
    }
    for (size_t i = 0; i < n; i++) { /* an update that rounds to f32: low bits are noise */
        const double w = 0.02 * fm_rng_normal(1, 82, i);
        const float a = (float)w, b = (float)(w + 2e-5 * fm_rng_normal(1, 83, i));
        memcpy(p + 4 * i, &a, 4);
        memcpy(c + 4 * i, &b, 4);
    }
    round_trip(FM_F32, c, 4 * n, p, &codec);
    assert_int_equal(codec, FMS_CODEC_CDELTA);
    fm_free(p);
    fm_free(c);
}

/* Dequantized GGUF weights cost the block type's bytes, though some blocks were changed since and
 * the leaf ends within one. */
TEST(dequantized_floats_cost_their_blocks)
{
    static const fm_dtype types[] = {FM_Q8_0, FM_Q4_0, FM_Q5_1, FM_Q4_K, FM_Q6_K, FM_IQ4_NL};
    size_t n = FM_LEAF_BYTES / 4 - 100, whole = n / 256 * 256;
    float *v = fm_malloc(n * sizeof *v);
    uint8_t *blocks = fm_malloc(FM_LEAF_BYTES), codec;
    for (size_t k = 0; k < FM_ARRAY_LEN(types); k++) {
        const fm_dtype_info *d = fm_dtype_get(types[k]);
        for (size_t i = 0; i < n; i++)
            v[i] = (float)(0.02 * fm_rng_normal(1, 61, i));
        tk_ok(fm_quantize_rows(blocks, types[k], v, whole, 1, FM_QUANT_PLAIN));
        tk_ok(fm_to_f32(v, types[k], blocks, whole));
        for (size_t i = n / 9; i < n; i += n / 5)
            v[i] = 1e-3f * (float)i;
        size_t len = round_trip(FM_F32, (uint8_t *)v, 4 * n, NULL, &codec);
        assert_int_equal(codec, FMS_CODEC_BLOCKS);
        double most = (double)whole / d->block_elems * d->block_bytes + 8 * 1024 + 512;
        tk_assert_le((double)len, most, d->name);
        assert_int_not_equal(round_trip(FM_F32, (uint8_t *)v, 4 * n - 12, NULL, &codec), 0);
    }
    fm_free(v);
    fm_free(blocks);
}

/* Few changed elements anywhere: positions need no codec of their own. Of 1 in 100 by 1 to 3 steps
 * the entropy is 0.60 %. */
TEST(a_sparse_child_costs_its_entropy)
{
    size_t n = FM_LEAF_BYTES / 2;
    uint8_t *p = fm_malloc(FM_LEAF_BYTES), *c = fm_malloc(FM_LEAF_BYTES), codec;
    fill_normal_bf16(p, n, 51);
    memcpy(c, p, FM_LEAF_BYTES);
    for (size_t i = 0; i < n; i++) {
        uint64_t r = fm_rng_u64(52, 0, i);
        if (r % 100 == 0)
            fm_put_u16(c + 2 * i, (uint16_t)(fm_get_u16(c + 2 * i) + 1 + (r >> 32) % 3));
    }
    row_bytes = 2048;
    size_t len = round_trip(FM_BF16, c, FM_LEAF_BYTES, p, &codec);
    row_bytes = 0;
    tk_assert_le((double)len / FM_LEAF_BYTES, 0.0075, "1 % changed");
    fm_free(p);
    fm_free(c);
}

/* All bit patterns against shuffled bit patterns: NaN with payloads, Inf, -0.0, subnormals. */
TEST(deltas_survive_every_bit_pattern)
{
    size_t n = 65536;
    uint8_t *p = fm_malloc(4 * n), *c = fm_malloc(4 * n), codec;
    for (int width = 2; width <= 4; width += 2) {
        for (size_t i = 0; i < n; i++) {
            uint32_t v = (uint32_t)i, o = (uint32_t)(i * 40503u) & 0xffffu;
            if (width == 2) {
                fm_put_u16(p + 2 * i, (uint16_t)v);
                fm_put_u16(c + 2 * i, (uint16_t)(i % 3 ? v + 1 : o));
            } else {
                fm_put_u32(p + 4 * i, v << 16 | o);
                fm_put_u32(c + 4 * i, (i % 3 ? v << 16 | o : o << 16 | v) + 1);
            }
        }
        const fm_dtype two[] = {FM_BF16, FM_F16}, four[] = {FM_F32};
        const fm_dtype *d = width == 2 ? two : four;
        for (size_t k = 0; k < (width == 2 ? 2u : 1u); k++)
            round_trip(d[k], c, (size_t)width * n, p, &codec);
        uint32_t count[256];
        uint8_t *mem = fm_malloc(4 * n), *back = fm_malloc(4 * n);
        uint8_t *plane[4] = {mem, mem + n, mem + 2 * n, mem + 3 * n};
        const uint8_t *const joined[4] = {plane[0], plane[1], plane[2], plane[3]};
        fms_delta_count(count, d[0], p, n);
        fms_delta_split(plane, d[0], c, p, count, n);
        fms_delta_join(back, d[0], joined, p, count, n);
        assert_memory_equal(back, c, (size_t)width * n);
        fm_free(mem);
        fm_free(back);
    }
    fm_free(p);
    fm_free(c);
}

/* F32 that holds BF16 or F16 costs what that type costs; every bit pattern of it, alone and against
 * parents that are of the type and that are not. */
TEST(widened_floats_cost_the_narrow_type)
{
    size_t n = FM_LEAF_BYTES / 4;
    uint8_t *w = fm_malloc(FM_LEAF_BYTES), *p = fm_malloc(FM_LEAF_BYTES), *h = fm_malloc(2 * n);
    for (int half = 0; half < 2; half++)
        for (int any = 0; any < 2; any++) {
            for (size_t i = 0; i < n; i++) {
                float v = (float)(0.02 * fm_rng_normal(1, 31, i)), q, old;
                uint16_t b = half ? fm_f32_to_f16(v) : fm_f32_to_bf16(v);
                if (any) /* but signalling NaN of F16, which only F32 keeps */
                    b = (uint16_t)(half && (i & 0x7e00u) == 0x7c00u ? i | 0x7e00u : i);
                q = half ? fm_f16_to_f32(b) : fm_bf16_to_f32(b);
                old = v + (float)(1e-5 * fm_rng_normal(1, 32, i));
                memcpy(w + 4 * i, &q, 4);
                memcpy(p + 4 * i, &old, 4);
                fm_put_u16(h + 2 * i, b);
            }
            uint8_t codec, inner;
            fm_dtype type = half ? FM_F16 : FM_BF16;
            size_t wide = round_trip(FM_F32, w, 4 * n, NULL, &codec);
            size_t plain = round_trip(type, h, 2 * n, NULL, &inner);
            assert_int_equal(codec, FMS_CODEC_NARROW);
            assert_int_equal(wide, plain + 2);
            wide = round_trip(FM_F32, w, 4 * n, p, &codec);
            if (!any) {
                assert_int_equal(codec, FMS_CODEC_NARROW_DELTA);
                tk_assert_le((double)wide / (double)plain, 0.3, "a child in the narrow type");
            }
        }
    uint8_t codec; /* one value that is not of the type: all of it is F32 */
    w[2 * n] ^= 1;
    round_trip(FM_F32, w, 4 * n, NULL, &codec);
    assert_int_not_equal(codec, FMS_CODEC_NARROW);
    fm_free(w);
    fm_free(p);
    fm_free(h);
}

TEST(few_values_are_a_palette)
{
    uint8_t *p = fm_malloc(FM_LEAF_BYTES), codec;
    static const size_t counts[] = {2, 255, 256, 257, 4095, 4096, 4097};
    for (size_t c = 0; c < FM_ARRAY_LEN(counts); c++)
        for (size_t unit = 2; unit <= 4; unit += 2) {
            size_t n = FM_LEAF_BYTES / unit, most = unit == 2 ? 256 : 4096;
            for (size_t i = 0; i < n; i++) {
                uint32_t v = (uint32_t)(fm_rng_u64(41, c, i) % counts[c]) * 0x9e3779b1u;
                if (unit == 2)
                    fm_put_u16(p + 2 * i, (uint16_t)(v >> 16));
                else
                    fm_put_u32(p + 4 * i, v);
            }
            size_t len = round_trip(unit == 2 ? FM_BF16 : FM_F32, p, FM_LEAF_BYTES, NULL, &codec);
            assert_int_equal(codec == FMS_CODEC_PALETTE, counts[c] <= most);
            if (codec == FMS_CODEC_PALETTE)
                tk_assert_le((double)len / (double)n, counts[c] <= 256 ? 1.005 : 1.57, "palette");
        }
    fm_free(p);
}

/* Every 16-bit pattern among parents and children, rows of any length, leaves that begin within a
 * row, changes of every size. */
TEST(children_of_any_bits_and_rows_round_trip)
{
    static const uint64_t rows[] = {0, 2, 100, 256, 774, 8192, 1u << 20};
    static const size_t sizes[] = {4096, 4097, 50000, FM_LEAF_BYTES / 4};
    static const fm_dtype dtypes[] = {FM_BF16, FM_F16, FM_F32};
    uint8_t *p = fm_malloc(FM_LEAF_BYTES), *c = fm_malloc(FM_LEAF_BYTES), codec;
    for (size_t k = 0; k < FM_ARRAY_LEN(rows) * FM_ARRAY_LEN(sizes) * 3; k++) {
        size_t width = dtypes[k % 3] == FM_F32 ? 4 : 2, n = sizes[k / 3 % 4];
        for (size_t i = 0; i < n; i++) {
            uint64_t r = fm_rng_u64(21, k, i);
            uint32_t v = (uint32_t)(k & 1 ? i * 0x9e3779b1u : (r & 0x83ffffffu) | 0x3c000000u);
            uint32_t d = (uint32_t)(r >> 32) >> (i / 300 % 32);
            v = width == 2 ? v >> 16 : v;
            d = k % 5 == 0 ? (r & 15) == 0 : width == 2 ? d >> 14 : d;
            if (width == 2) {
                fm_put_u16(p + 2 * i, (uint16_t)v);
                fm_put_u16(c + 2 * i, (uint16_t)(r & 16 ? v + d : v - d));
            } else {
                fm_put_u32(p + 4 * i, v);
                fm_put_u32(c + 4 * i, r & 16 ? v + d : v - d);
            }
        }
        row_bytes = rows[k / 12];
        leaf_offset = k % 7 * FM_LEAF_BYTES;
        round_trip(dtypes[k % 3], c, n * width, p, &codec);
        round_trip(dtypes[k % 3], c, n * width, NULL, &codec);
        if (k % 12 < 6) {
            slow = true; /* never larger than the fast level, and the same bits back */
            uint8_t again;
            size_t fast_len = fms_codec_needs_parent(codec) ? 0 : n * width;
            size_t len = round_trip(dtypes[k % 3], c, n * width, p, &again);
            assert_true(fast_len == 0 || len <= fast_len);
            slow = false;
        }
    }
    row_bytes = leaf_offset = 0;
    fm_free(p);
    fm_free(c);
}

TEST(every_dtype_and_odd_size_round_trips)
{
    static const size_t sizes[] = {
        1, 2, 7, 20, 255, 4095, 4096, 65537, FM_LEAF_BYTES - 1, FM_LEAF_BYTES};
    uint8_t *p = fm_malloc(FM_LEAF_BYTES), *c = fm_malloc(FM_LEAF_BYTES), codec;
    for (unsigned d = FM_DTYPE_NONE; d < FM_DTYPE_COUNT; d++)
        for (size_t k = 0; k < FM_ARRAY_LEN(sizes); k++) {
            size_t n = sizes[k];
            size_t unit = d == FM_DTYPE_NONE ? 1 : fm_dtype_get((fm_dtype)d)->block_bytes;
            if (unit <= 8 && n % unit)
                continue; /* a leaf of a plain type holds whole elements; blocks may be cut */
            for (size_t i = 0; i < n; i++) {
                uint64_t r = fm_rng_u64(7, d * 16 + k, i);
                p[i] = (uint8_t)(r & 15);
                c[i] = (uint8_t)(p[i] + ((r >> 8) % 9 == 0));
            }
            round_trip((fm_dtype)d, c, n, NULL, &codec);
            round_trip((fm_dtype)d, c, n, p, &codec);
        }
    fm_free(p);
    fm_free(c);
}

TEST(rans_handles_skewed_and_full_alphabets)
{
    size_t n = 100000;
    uint8_t *src = fm_malloc(n), *dst = fm_malloc(2 * n), *back = fm_malloc(n);
    for (int mode = 0; mode < 4; mode++) {
        uint32_t h[256] = {0};
        for (size_t i = 0; i < n; i++) {
            uint64_t r = fm_rng_u64(9, (uint64_t)mode, i);
            src[i] = mode == 0   ? (uint8_t)(r % 50000 == 0)
                     : mode == 1 ? (uint8_t)r
                     : mode == 2 ? (uint8_t)(i < 256 ? i : 0)
                                 : (uint8_t)((r & 255) & (r >> 8 & 255) & (r >> 16 & 255));
        }
        src[0] = 1;
        for (size_t i = 0; i < n; i++)
            h[src[i]]++;
        size_t len = fms_rans_encode(dst, 2 * n, src, n, h);
        assert_true(len > 0);
        tk_ok(fms_rans_decode(back, n, dst, len));
        assert_memory_equal(back, src, n);
        tk_fails(fms_rans_decode(back, n, dst, len - 1), FM_ECORRUPT, "entropy stream");
        tk_fails(fms_rans_decode(back, n, dst, 0), FM_ECORRUPT, "entropy stream");
        assert_int_equal(fms_rans_encode(dst, len - 1, src, n, h), 0);
    }
    fm_free(src);
    fm_free(dst);
    fm_free(back);
}

/* Decoding damaged bytes gives an error or other bytes, and touches nothing beyond dst. */
TEST(damaged_leaves_never_overrun)
{
    size_t n = 20000;
    fms_leaf_at at = {FM_BF16, 0, 0, false};
    uint8_t *p = fm_malloc(n), *c = fm_malloc(n), *back = fm_malloc(n), codec;
    fill_normal_bf16(p, n / 2, 11);
    memcpy(c, p, n);
    for (size_t i = 0; i < n; i += 6)
        c[i] ^= 1;
    fm_buf a;
    fm_buf_init(&a, 0);
    for (int with_parent = 0; with_parent < 2; with_parent++) {
        const uint8_t *parent = with_parent ? p : NULL;
        fm_buf_clear(&a);
        tk_ok(fms_leaf_encode(coder, &a, &codec, &at, fm_span_of(c, n), parent));
        size_t refused = 0;
        for (size_t k = 0; k < a.len; k += 1 + a.len / 997) {
            a.data[k] ^= 0x41;
            refused +=
                fms_leaf_decode(coder, back, n, codec, &at, fm_buf_span(&a), parent) != FM_OK;
            a.data[k] ^= 0x41;
            tk_fails(fms_leaf_decode(coder, back, n, codec, &at, fm_span_of(a.data, k), parent),
                     FM_ECORRUPT, NULL);
        }
        assert_true(refused > 0);
        tk_ok(fms_leaf_decode(coder, back, n, codec, &at, fm_buf_span(&a), parent));
        assert_memory_equal(back, c, n);
    }
    fm_buf_release(&a);
    fm_free(p);
    fm_free(c);
    fm_free(back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_is_stored_raw),
        cmocka_unit_test(constants_take_one_element),
        cmocka_unit_test(weights_in_bf16_reach_their_entropy),
        cmocka_unit_test(a_child_costs_less_than_its_xor),
        cmocka_unit_test(low_bits_that_stay_cost_nothing),
        cmocka_unit_test(dequantized_floats_cost_their_blocks),
        cmocka_unit_test(a_sparse_child_costs_its_entropy),
        cmocka_unit_test(deltas_survive_every_bit_pattern),
        cmocka_unit_test(widened_floats_cost_the_narrow_type),
        cmocka_unit_test(few_values_are_a_palette),
        cmocka_unit_test(children_of_any_bits_and_rows_round_trip),
        cmocka_unit_test(every_dtype_and_odd_size_round_trips),
        cmocka_unit_test(rans_handles_skewed_and_full_alphabets),
        cmocka_unit_test(damaged_leaves_never_overrun),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
