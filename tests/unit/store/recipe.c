/* ctest: plain cost=10 */
/* Recipes: each operation against a plain reference, any range like the whole, hostile input. */
#include <math.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "store/quant/quantize.h"
#include "store/recipe/recipe.h"
#include "store/source.h"
#include "tests/testkit.h"

typedef struct world {
    fms_inputs in;
    uint8_t *bytes[FMS_PARENTS_MAX];
    uint8_t params[FMS_PARAMS_MAX];
    fms_recipe r;
    uint64_t reads;
} world;

static fm_status read_memory(void *ctx, uint32_t input, uint64_t offset, void *dst, size_t bytes)
{
    world *w = ctx;
    assert_true(input < w->in.count);
    assert_true(offset <= w->in.input[input].bytes && bytes <= w->in.input[input].bytes - offset);
    memcpy(dst, w->bytes[input] + offset, bytes);
    w->reads++;
    return FM_OK;
}

static fms_form form(fm_dtype dtype, uint32_t rank, uint64_t a, uint64_t b)
{
    fms_form f = {.dtype = dtype, .shape = {rank, {a, b}}};
    tk_ok(fm_tensor_bytes(&f.bytes, dtype, &f.shape, "test"));
    return f;
}

/* Every kind of bits, not only numbers. wild: NaN, infinities, subnormals too. */
static void fill(uint8_t *p, const fms_form *f, uint64_t seed, bool wild)
{
    if (wild || fm_dtype_get(f->dtype)->is_block || f->dtype == FM_F64) {
        for (uint64_t i = 0; i < f->bytes; i++)
            p[i] = (uint8_t)fm_rng_u64(seed, 7, i);
        return;
    }
    const size_t width = fm_dtype_get(f->dtype)->block_bytes;
    for (uint64_t i = 0; i < f->bytes / width; i++) {
        const float v = (float)fm_rng_normal(seed, 8, i);
        tk_ok(fm_from_f32(p + i * width, f->dtype, &v, 1));
    }
}

static world *world_of(uint16_t op, uint16_t mode, fms_form child)
{
    world *w = fm_calloc(1, sizeof *w);
    assert_non_null(w);
    w->in.child = child;
    w->in.ctx = w;
    w->in.read = read_memory;
    w->r.op = op;
    w->r.mode = mode;
    return w;
}

static void add_input(world *w, fms_form f, uint64_t seed, bool wild)
{
    uint8_t *p = fm_malloc((size_t)f.bytes);
    assert_non_null(p);
    fill(p, &f, seed, wild);
    w->bytes[w->in.count] = p;
    w->in.input[w->in.count++] = f;
}

static void set_params(world *w, const void *p, size_t len)
{
    if (len)
        memcpy(w->params, p, len);
    w->r.params = fm_span_of(w->params, len);
}

static void end(world *w)
{
    for (uint32_t k = 0; k < w->in.count; k++)
        fm_free(w->bytes[k]);
    fm_free(w);
}

/* The whole by leaves; then any ranges must say the same, in any order. */
static uint8_t *evaluate(world *w)
{
    const uint64_t bytes = w->in.child.bytes,
                   unit = fm_dtype_get(w->in.child.dtype)->is_block
                              ? 1
                              : fm_dtype_get(w->in.child.dtype)->block_bytes;
    uint8_t *whole = fm_malloc((size_t)bytes + 1), *part = fm_malloc((size_t)bytes + 1);
    assert_non_null(whole);
    assert_non_null(part);
    tk_ok(fms_recipe_check(&w->r, &w->in));
    for (uint32_t i = 0; (uint64_t)i * FM_LEAF_BYTES < bytes; i++)
        tk_ok(fms_recipe_leaf(&w->r, &w->in, i, whole + (size_t)i * FM_LEAF_BYTES));
    for (uint64_t k = 0; k < 12; k++) {
        const uint64_t at = fm_rng_below(1, 2, k, bytes / unit) * unit;
        const uint64_t n =
            fm_rng_below(1, 3, k, FM_MIN(bytes - at, (uint64_t)20000) / unit + 1) * unit;
        tk_ok(fms_recipe_range(&w->r, &w->in, at, (size_t)n, part));
        assert_memory_equal(part, whole + at, (size_t)n);
    }
    fm_free(part);
    return whole;
}

/* ==== casts ================================================================================ */

TEST(casts_are_those_of_tensor_h)
{
    static const fm_dtype from[] = {FM_F32, FM_BF16, FM_F16, FM_Q8_0, FM_Q4_1, FM_Q6_K, FM_F8_E4M3};
    static const fm_dtype to[] = {FM_F32, FM_BF16, FM_F16};
    for (size_t a = 0; a < FM_ARRAY_LEN(from); a++)
        for (size_t b = 0; b < FM_ARRAY_LEN(to); b++) {
            world *w = world_of(FMS_OP_CAST, 0, form(to[b], 2, 1300, 256));
            add_input(w, form(from[a], 2, 1300, 256), a, true);
            uint8_t *got = evaluate(w);
            const size_t n = 1300 * 256;
            float *wide = fm_malloc(n * sizeof *wide);
            uint8_t *want = fm_malloc((size_t)w->in.child.bytes);
            tk_ok(fm_to_f32(wide, from[a], w->bytes[0], n));
            tk_ok(fm_from_f32(want, to[b], wide, n));
            assert_memory_equal(got, want, (size_t)w->in.child.bytes);
            fm_free(want);
            fm_free(wide);
            fm_free(got);
            end(w);
        }
}

TEST(casts_of_f64_pin_every_nan)
{
    world *w = world_of(FMS_OP_CAST, 0, form(FM_F32, 1, 150000, 0));
    add_input(w, form(FM_F64, 1, 150000, 0), 5, true);
    fm_put_u64(w->bytes[0], 0xfff0000000000001u); /* a signalling NaN with a sign */
    fm_put_u64(w->bytes[0] + 8, 0x8000000000000000u);
    uint8_t *got = evaluate(w);
    assert_int_equal(fm_get_u32(got), 0x7fc00000);
    assert_int_equal(fm_get_u32(got + 4), 0x80000000);
    for (size_t i = 0; i < 150000; i++) {
        double v;
        memcpy(&v, w->bytes[0] + 8 * i, 8);
        const float f = (float)v;
        uint32_t bits;
        memcpy(&bits, &f, 4);
        assert_int_equal(fm_get_u32(got + 4 * i), isnan(f) ? 0x7fc00000 : bits);
    }
    fm_free(got);
    end(w);
}

TEST(quantizes_as_quantize_h_does)
{
    static const fm_dtype to[] = {FM_Q8_0, FM_Q4_0, FM_Q5_1, FM_Q6_K};
    for (size_t b = 0; b < FM_ARRAY_LEN(to); b++)
        for (uint16_t v = 0; v < FM_QUANT_VARIANTS; v++) {
            world *w = world_of(FMS_OP_QUANT, v, form(to[b], 2, 1100, 1024));
            add_input(w, form(FM_BF16, 2, 1100, 1024), b, false);
            uint8_t *got = evaluate(w); /* leaves begin within blocks of 18, 24, 34, 210 bytes */
            const size_t n = 1100 * 1024;
            float *wide = fm_malloc(n * sizeof *wide);
            uint8_t *want = fm_malloc((size_t)w->in.child.bytes);
            tk_ok(fm_to_f32(wide, FM_BF16, w->bytes[0], n));
            tk_ok(fm_quantize_rows(want, to[b], wide, 1024, 1100, (fm_quant_variant)v));
            assert_memory_equal(got, want, (size_t)w->in.child.bytes);
            fm_free(want);
            fm_free(wide);
            fm_free(got);
            end(w);
        }
}

/* ==== sums ================================================================================= */

/* A reference in float alone: volatile keeps each rounding apart. */
static float sum_f32(unsigned form_of, const float *c, const float *x, uint32_t n)
{
    volatile float s, d;
    if (form_of == FMS_LINEAR_SUM) {
        s = c[0] * x[0];
        for (uint32_t k = 1; k < n; k++) {
            d = c[k] * x[k];
            s = s + d;
        }
    } else if (form_of == FMS_LINEAR_TASK) {
        volatile float v = x[1] - x[0];
        s = c[1] * v;
        for (uint32_t k = 2; k < n; k++) {
            v = x[k] - x[0];
            d = c[k] * v;
            s = s + d;
        }
        s = x[0] + s;
    } else {
        s = x[0];
        for (uint32_t k = 1; k < n; k++)
            s = s + x[k];
        s = form_of == FMS_LINEAR_SCALED ? s * c[0] : s / c[0];
    }
    return s;
}

TEST(sums_round_as_floats_do)
{
    const double c[3] = {0.3, -1.7, 3.0};
    const float cf[3] = {0.3f, -1.7f, 3.0f};
    for (uint16_t f = 0; f < FMS_LINEAR_FORMS; f++)
        for (uint32_t n = 2; n <= 3; n++) {
            world *w = world_of(FMS_OP_LINEAR, f, form(FM_F32, 1, 300000, 0));
            for (uint32_t k = 0; k < n; k++)
                add_input(w, form(k == 1 ? FM_BF16 : FM_F32, 1, 300000, 0), 40 + k, false);
            set_params(w, c, 8 * (size_t)n);
            uint8_t *got = evaluate(w);
            for (size_t i = 0; i < 300000; i++) {
                float x[3], v;
                memcpy(&x[0], w->bytes[0] + 4 * i, 4);
                x[1] = fm_bf16_to_f32(fm_get_u16(w->bytes[1] + 2 * i));
                if (n > 2)
                    memcpy(&x[2], w->bytes[2] + 4 * i, 4);
                memcpy(&v, got + 4 * i, 4);
                assert_float_equal(v, sum_f32(f, cf, x, n), 0);
            }
            fm_free(got);
            end(w);
        }
}

TEST(fused_and_stored_arithmetic)
{
    const double c[2] = {0.7, 0.4};
    world *w = world_of(FMS_OP_LINEAR, FMS_ARITH_FUSED << 8, form(FM_F32, 1, 5000, 0));
    add_input(w, form(FM_F32, 1, 5000, 0), 1, false);
    add_input(w, form(FM_F32, 1, 5000, 0), 2, false);
    set_params(w, c, sizeof c);
    uint8_t *got = evaluate(w);
    for (size_t i = 0; i < 5000; i++) {
        float x, y, v;
        memcpy(&x, w->bytes[0] + 4 * i, 4);
        memcpy(&y, w->bytes[1] + 4 * i, 4);
        memcpy(&v, got + 4 * i, 4);
        assert_float_equal(v, fmaf(0.4f, y, 0.7f * x), 0);
    }
    fm_free(got);
    w->in.child = form(FM_BF16, 1, 5000, 0);
    w->r.mode = FMS_ARITH_STORED << 8;
    got = evaluate(w);
    for (size_t i = 0; i < 5000; i++) {
        float x, y;
        memcpy(&x, w->bytes[0] + 4 * i, 4);
        memcpy(&y, w->bytes[1] + 4 * i, 4);
        const float a = fm_bf16_to_f32(fm_f32_to_bf16(0.7f * x));
        const float b = fm_bf16_to_f32(fm_f32_to_bf16(0.4f * y));
        assert_int_equal(fm_get_u16(got + 2 * i), fm_f32_to_bf16(a + b));
    }
    fm_free(got);
    end(w);
}

TEST(wild_sums_give_one_nan)
{
    const double c[2] = {1, -1};
    for (uint16_t a = 0; a < FMS_ARITH_COUNT; a++) {
        world *w = world_of(FMS_OP_LINEAR, (uint16_t)(a << 8), form(FM_F32, 1, 60000, 0));
        add_input(w, form(FM_F32, 1, 60000, 0), 3, true);
        add_input(w, form(FM_F32, 1, 60000, 0), 4, true);
        set_params(w, c, sizeof c);
        uint8_t *got = evaluate(w);
        for (size_t i = 0; i < 60000; i++) {
            const uint32_t u = fm_get_u32(got + 4 * i);
            assert_true((u & 0x7fffffff) <= 0x7f800000 || u == 0x7fc00000);
        }
        fm_free(got);
        end(w);
    }
}

/* ==== lora ================================================================================= */

TEST(lora_is_the_merge_of_an_export)
{
    static const uint64_t shape[][3] = {
        {700, 600, 8}, {3, 300000, 2}, {300000, 3, 3}, {513, 777, 1}};
    for (size_t s = 0; s < FM_ARRAY_LEN(shape); s++)
        for (int turned = 0; turned < 2; turned++) {
            const uint64_t out = shape[s][0], inner = shape[s][1], rank = shape[s][2];
            const float scale = 1.7f;
            world *w = world_of(FMS_OP_LORA, turned ? FMS_LORA_TURNED : 0,
                                turned ? form(FM_F32, 2, inner, out) : form(FM_F32, 2, out, inner));
            add_input(w, w->in.child, 1, false);
            add_input(w, form(FM_F32, 2, rank, inner), 2, false);
            add_input(w, form(FM_F32, 2, out, rank), 3, false);
            set_params(w, &scale, 4);
            uint8_t *got = evaluate(w);
            float *plain = fm_malloc((size_t)(out * inner) * 4);
            for (uint64_t o = 0; o < out; o++)
                for (uint64_t i = 0; i < inner; i++)
                    memcpy(&plain[o * inner + i],
                           w->bytes[0] + 4 * (turned ? i * out + o : o * inner + i), 4);
            fm_lora_merge(plain, (float *)(void *)w->bytes[1], (float *)(void *)w->bytes[2], out,
                          inner, rank, scale);
            for (uint64_t o = 0; o < out; o++)
                for (uint64_t i = 0; i < inner; i++) {
                    const size_t at = (size_t)(turned ? i * out + o : o * inner + i);
                    assert_memory_equal(got + 4 * at, &plain[o * inner + i], 4);
                }
            fm_free(plain);
            fm_free(got);
            end(w);
        }
}

TEST(lora_in_bf16_rounds_where_it_says)
{
    const float scale = 2.0f / 3.0f;
    for (uint16_t mode = FMS_LORA_F32; mode <= FMS_LORA_STEPS; mode++) {
        world *w = world_of(FMS_OP_LORA, mode, form(FM_BF16, 2, 60, 50));
        add_input(w, form(FM_BF16, 2, 60, 50), 1, false);
        add_input(w, form(FM_F32, 2, 4, 50), 2, false);
        add_input(w, form(FM_BF16, 2, 60, 4), 3, false);
        set_params(w, &scale, 4);
        uint8_t *got = evaluate(w);
        for (size_t o = 0; o < 60; o++)
            for (size_t i = 0; i < 50; i++) {
                float sum = 0, a;
                for (size_t k = 0; k < 4; k++) {
                    memcpy(&a, w->bytes[1] + 4 * (k * 50 + i), 4);
                    sum = fmaf(fm_bf16_to_f32(fm_get_u16(w->bytes[2] + 2 * (o * 4 + k))), a, sum);
                }
                if (mode == FMS_LORA_STEPS)
                    sum = fm_bf16_to_f32(fm_f32_to_bf16(sum));
                float delta = sum * scale;
                if (mode != FMS_LORA_F32)
                    delta = fm_bf16_to_f32(fm_f32_to_bf16(delta));
                const float base = fm_bf16_to_f32(fm_get_u16(w->bytes[0] + 2 * (o * 50 + i)));
                assert_int_equal(fm_get_u16(got + 2 * (o * 50 + i)), fm_f32_to_bf16(base + delta));
            }
        fm_free(got);
        end(w);
    }
}

/* ==== moves ================================================================================ */

static void put_piece(uint8_t *p, uint32_t input, uint64_t from, uint64_t bytes)
{
    fm_put_u32(p, input);
    fm_put_u64(p + 4, from);
    fm_put_u64(p + 12, bytes);
}

TEST(pieces_lie_one_after_the_other)
{
    uint8_t params[4 * FMS_PIECE_BYTES];
    world *w = world_of(FMS_OP_GATHER, 0, form(FM_F32, 2, 1000, 1000));
    add_input(w, form(FM_F32, 2, 700, 1000), 1, true);
    add_input(w, form(FM_F32, 2, 300, 1000), 2, true);
    put_piece(params, 1, 40, 1199960);
    put_piece(params + 20, FMS_PIECE_ZEROS, 0, 7);
    put_piece(params + 40, 0, 0, 2800000);
    put_piece(params + 60, 1, 1199967, 33);
    set_params(w, params, sizeof params);
    uint8_t *got = evaluate(w);
    assert_memory_equal(got, w->bytes[1] + 40, 1199960);
    for (size_t i = 0; i < 7; i++)
        assert_int_equal(got[1199960 + i], 0);
    assert_memory_equal(got + 1199967, w->bytes[0], 2800000);
    assert_memory_equal(got + 3999967, w->bytes[1] + 1199967, 33);
    fm_free(got);
    end(w);
}

TEST(rotary_order_and_back)
{
    uint8_t heads[8];
    fm_put_u64(heads, 9);
    world *w = world_of(FMS_OP_GATHER, FMS_GATHER_ROTARY, form(FM_Q4_1, 2, 576, 576));
    add_input(w, form(FM_Q4_1, 2, 576, 576), 1, true);
    set_params(w, heads, 8);
    uint8_t *got = evaluate(w);
    const size_t row = 576 / 32 * 20;
    for (size_t h = 0; h < 9; h++)
        for (size_t i = 0; i < 32; i++)
            for (size_t j = 0; j < 2; j++)
                assert_memory_equal(got + (h * 64 + i * 2 + j) * row,
                                    w->bytes[0] + (h * 64 + j * 32 + i) * row, row);
    uint8_t *first = w->bytes[0];
    w->bytes[0] = got;
    w->r.mode = FMS_GATHER_UNROTARY;
    uint8_t *back = evaluate(w);
    assert_memory_equal(back, first, (size_t)w->in.child.bytes);
    fm_free(back);
    fm_free(first);
    end(w);
}

TEST(transposes_turn_the_last_two)
{
    static const uint64_t shape[][3] = {
        {1, 700, 900}, {3, 200, 300}, {1, 2, 400000}, {1, 400000, 2}, {5, 1, 77}};
    for (size_t s = 0; s < FM_ARRAY_LEN(shape); s++) {
        const uint64_t b = shape[s][0], r = shape[s][1], c = shape[s][2];
        fms_form from = {.dtype = FM_BF16, .shape = {3, {b, r, c}}, .bytes = b * r * c * 2};
        fms_form to = {.dtype = FM_BF16, .shape = {3, {b, c, r}}, .bytes = b * r * c * 2};
        world *w = world_of(FMS_OP_TRANSPOSE, 0, to);
        add_input(w, from, s, true);
        uint8_t *got = evaluate(w);
        for (uint64_t k = 0; k < b; k++)
            for (uint64_t i = 0; i < r; i++)
                for (uint64_t j = 0; j < c; j++)
                    assert_int_equal(fm_get_u16(got + 2 * ((k * c + j) * r + i)),
                                     fm_get_u16(w->bytes[0] + 2 * ((k * r + i) * c + j)));
        fm_free(got);
        end(w);
    }
}

/* ==== hostile ============================================================================== */

TEST(a_wrong_fit_is_refused_by_name)
{
    uint8_t params[2 * FMS_PIECE_BYTES];
    world *w = world_of(FMS_OP_GATHER, 0, form(FM_F32, 2, 10, 10));
    add_input(w, form(FM_F32, 2, 10, 10), 1, true);
    put_piece(params, 0, UINT64_MAX - 3, 4);
    put_piece(params + 20, 0, 0, 396);
    set_params(w, params, sizeof params);
    tk_fails(fms_recipe_check(&w->r, &w->in), FM_ECORRUPT, "outside its parent");
    put_piece(params, 0, 0, UINT64_MAX);
    set_params(w, params, sizeof params);
    tk_fails(fms_recipe_check(&w->r, &w->in), FM_ECORRUPT, "outside its parent");
    put_piece(params, FMS_PIECE_ZEROS, 0, UINT64_MAX);
    set_params(w, params, sizeof params);
    tk_fails(fms_recipe_check(&w->r, &w->in), FM_ECORRUPT, "too long");
    put_piece(params, 1, 0, 4);
    set_params(w, params, sizeof params);
    tk_fails(fms_recipe_check(&w->r, &w->in), FM_ECORRUPT, "not there");
    set_params(w, params, 19);
    tk_fails(fms_recipe_check(&w->r, &w->in), FM_ECORRUPT, "whole number");
    w->r.op = FMS_OP_LINEAR;
    tk_fails(fms_recipe_check(&w->r, &w->in), FM_ECORRUPT, "one coefficient");
    w->r.mode = 0x0400;
    tk_fails(fms_recipe_check(&w->r, &w->in), FM_EVERSION, "newer");
    w->r.op = 999;
    tk_fails(fms_recipe_check(&w->r, &w->in), FM_EVERSION, "operation 999");
    end(w);
}

/* Any operation, mode, forms and parameters: refused, or evaluated within the inputs' bounds. */
TEST(random_recipes_are_safe)
{
    static const fm_dtype dtypes[] = {FM_F32, FM_BF16, FM_F64, FM_I8, FM_Q4_0, FM_Q6_K, FM_F16};
    uint32_t sound = 0;
    for (uint64_t n = 0; n < 20000; n++) {
        const uint16_t op = (uint16_t)(fm_rng_below(9, 1, n, FMS_OP_COUNT + 1));
        uint64_t dim[2] = {fm_rng_below(9, 2, n, 9), fm_rng_below(9, 3, n, 2) * 256 + 256};
        world *w = world_of(op, (uint16_t)fm_rng_below(9, 4, n, n % 4 ? 2 : 20),
                            form(dtypes[fm_rng_below(9, 5, n, 7)], 2, dim[0], dim[1]));
        const uint64_t count = 1 + fm_rng_below(9, 6, n, 3);
        for (uint64_t k = 0; k < count; k++)
            add_input(w,
                      form(dtypes[fm_rng_below(9, 7 + k, n, 7)], 2,
                           fm_rng_below(9, 17 + k, n, 3) ? dim[0] : fm_rng_below(9, 27, n, 9),
                           dim[1]),
                      n, true);
        for (size_t i = 0; i < 64; i++)
            w->params[i] = fm_rng_below(9, 100 + i, n, 3) ? 0 : (uint8_t)fm_rng_u64(9, 200 + i, n);
        const size_t len[] = {0, 4, 8, (size_t)count * 8, (size_t)count * 20};
        w->r.params = fm_span_of(w->params, len[fm_rng_below(9, 37, n, 5)]);
        if (fms_recipe_check(&w->r, &w->in) == FM_OK) {
            uint8_t *got = w->in.child.bytes ? evaluate(w) : NULL;
            for (uint32_t k = 0; k < w->in.count; k++)
                assert_true(fms_recipe_touches(&w->r, &w->in, k) <= 24);
            fm_free(got);
            sound++;
        }
        end(w);
    }
    assert_true(sound > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts_are_those_of_tensor_h),
        cmocka_unit_test(casts_of_f64_pin_every_nan),
        cmocka_unit_test(quantizes_as_quantize_h_does),
        cmocka_unit_test(sums_round_as_floats_do),
        cmocka_unit_test(fused_and_stored_arithmetic),
        cmocka_unit_test(wild_sums_give_one_nan),
        cmocka_unit_test(lora_is_the_merge_of_an_export),
        cmocka_unit_test(lora_in_bf16_rounds_where_it_says),
        cmocka_unit_test(pieces_lie_one_after_the_other),
        cmocka_unit_test(rotary_order_and_back),
        cmocka_unit_test(transposes_turn_the_last_two),
        cmocka_unit_test(a_wrong_fit_is_refused_by_name),
        cmocka_unit_test(random_recipes_are_safe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
