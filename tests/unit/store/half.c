/* Conversions against an oracle in double arithmetic that shares nothing with the code. */
#include "tests/testkit.h"

#include <math.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "store/tensor.h"

/* Value of a small float format: sign, exp bits, fraction bits, bias; NaN and inf apart. */
static double decode(unsigned v, int exp_bits, int frac_bits, int bias)
{
    const unsigned frac = v & ((1u << frac_bits) - 1);
    const int exp = (int)(v >> frac_bits & ((1u << exp_bits) - 1));
    const double sign = v >> (exp_bits + frac_bits) & 1 ? -1 : 1;
    if (exp == 0)
        return sign * ldexp((double)frac, 1 - bias - frac_bits);
    return sign * ldexp((double)(frac + (1u << frac_bits)), exp - bias - frac_bits);
}

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* x rounded to frac_bits with minimum exponent, by rint in double (ties to even). */
static double round_to(double x, int frac_bits, int min_exp)
{
    int e = 0;
    if (x == 0)
        return x;
    (void)frexp(x, &e);
    e = e - 1 < min_exp ? min_exp : e - 1;
    return ldexp(rint(ldexp(x, frac_bits - e)), e - frac_bits);
}

TEST(integers_do_not_widen)
{
    float f;
    int32_t i = 1;
    tk_fails(fm_to_f32(&f, FM_I32, &i, 1), FM_EUNSUPPORTED, "I32");
    tk_fails(fm_to_f32(&f, FM_F64, &i, 1), FM_EUNSUPPORTED, "F64");
    tk_fails(fm_from_f32(&i, FM_Q4_0, &f, 1), FM_EUNSUPPORTED, "Q4_0");
    tk_fails(fm_to_f32(&f, FM_Q8_0, &i, 31), FM_EINVAL, "Q8_0");
}

TEST(every_float16_widens_exactly_and_back)
{
    for (unsigned v = 0; v < 65536; v++) {
        const float f = fm_f16_to_f32((uint16_t)v);
        if ((v & 0x7c00) == 0x7c00 && (v & 0x3ff)) {
            assert_true(isnan(f));
            assert_int_equal(fm_f32_to_f16(f), v | 0x200);
            continue;
        }
        if ((v & 0x7fff) == 0x7c00)
            assert_true(isinf(f) && !signbit(f) == !(v >> 15));
        else
            assert_true((double)f == decode(v, 5, 10, 15));
        assert_int_equal(fm_f32_to_f16(f), v);
    }
}

TEST(every_bfloat16_widens_exactly_and_back)
{
    for (unsigned v = 0; v < 65536; v++) {
        const float f = fm_bf16_to_f32((uint16_t)v);
        assert_int_equal(bits(f), v << 16);
        assert_int_equal(fm_f32_to_bf16(f), isnan(f) ? v | 0x40 : v);
    }
}

TEST(narrowing_rounds_to_nearest_even)
{
    for (uint64_t i = 0; i < 400000; i++) {
        uint32_t u = (uint32_t)fm_rng_u64(7, 1, i);
        float f;
        if (i % 2) /* half of them near float16's range, a quarter exact ties */
            u = (u & 0x8fffffffu) | 0x30000000u;
        if (i % 4 == 3)
            u = (u & ~0x1fffu) | 0x1000u;
        memcpy(&f, &u, sizeof f);
        if (isnan(f) || isinf(f))
            continue;
        const double h = round_to((double)f, 10, -14), b = round_to((double)f, 7, -126);
        const float hf = fm_f16_to_f32(fm_f32_to_f16(f)), bf = fm_bf16_to_f32(fm_f32_to_bf16(f));
        if (fabs(h) > 65504)
            assert_true(isinf(hf));
        else
            assert_true((double)hf == h);
        if (fabs(b) > 3.3895313892515355e38)
            assert_true(isinf(bf));
        else
            assert_true((double)bf == b);
    }
}

TEST(not_a_number_stays_one)
{
    const uint32_t hidden = 0x7f800001u; /* the payload lies in bits that are cut off */
    float f;
    memcpy(&f, &hidden, sizeof f);
    assert_true(isnan(fm_bf16_to_f32(fm_f32_to_bf16(f))));
    assert_true(isnan(fm_f16_to_f32(fm_f32_to_f16(f))));
}

TEST(float8_widens_exactly)
{
    for (unsigned v = 0; v < 256; v++) {
        const uint8_t byte = (uint8_t)v;
        float f;
        tk_ok(fm_to_f32(&f, FM_F8_E4M3, &byte, 1));
        if ((v & 127) == 127)
            assert_true(isnan(f));
        else
            assert_true((double)f == decode(v, 4, 3, 7));
        tk_ok(fm_to_f32(&f, FM_F8_E5M2, &byte, 1));
        if ((v & 0x7c) != 0x7c)
            assert_true((double)f == decode(v, 5, 2, 15));
        else
            assert_true(v & 3 ? isnan(f) : isinf(f));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_do_not_widen),
        cmocka_unit_test(every_float16_widens_exactly_and_back),
        cmocka_unit_test(every_bfloat16_widens_exactly_and_back),
        cmocka_unit_test(narrowing_rounds_to_nearest_even),
        cmocka_unit_test(not_a_number_stays_one),
        cmocka_unit_test(float8_widens_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
