/* Elementary functions against long double, and their bits against a recorded digest: the digest
 * must hold for every compiler, option and CPU, or recorded recipes no longer replay. */
#include "tests/testkit.h"

#include "store/base/math/detmath.h"
#include "store/base/math/hash.h"
#include "store/base/math/rng.h"

#include <math.h>
#include <stdio.h>

#define LIMIT 2.3e-16 /* relative, a shade over one ulp; the header promises 4e-16 */

static void note(double *worst, double got, long double want)
{
    double d = want == 0.0L ? fabs(got) : (double)fabsl(((long double)got - want) / want);

    if (!(d <= *worst))
        *worst = d;
}

/* x in [lo, hi), the i-th of a fixed pseudo-random sequence. */
static double draw(double lo, double hi, uint64_t stream, uint64_t i)
{
    return lo + (hi - lo) * fm_rng_uniform(11, stream, i);
}

TEST(limits_give_infinities_zeros_and_nans)
{
    double s, c;

    assert_true(fm_exp(1000.0) == (double)INFINITY);
    assert_true(fm_exp((double)INFINITY) == (double)INFINITY);
    assert_true(fm_exp(-1000.0) == 0.0 && fm_exp(-(double)INFINITY) == 0.0);
    assert_true(isnan(fm_exp((double)NAN)) && isnan(fm_log((double)NAN)));
    assert_true(fm_exp(709.7827128933840) < (double)INFINITY);
    assert_true(fm_exp(709.8) == (double)INFINITY);
    assert_true(fm_exp(-745.0) == 0x1p-1074 && fm_exp(-745.2) == 0.0);
    assert_true(fm_log(0.0) == -(double)INFINITY && isnan(fm_log(-1.0)));
    assert_true(fm_log((double)INFINITY) == (double)INFINITY);
    assert_true(fm_pow(0.0, 2.0) == 0.0 && fm_pow(0.0, -2.0) == (double)INFINITY);
    assert_true(isnan(fm_pow(-2.0, 2.0)) && isnan(fm_pow((double)NAN, 2.0)));
    assert_true(fm_pow(5.0, 0.0) == 1.0 && fm_pow(1.0, 1e300) == 1.0);
    assert_true(fm_pow(10.0, 400.0) == (double)INFINITY && fm_pow(10.0, -400.0) == 0.0);
    assert_true(fm_pow(2.0, 1e300) == (double)INFINITY && fm_pow(2.0, -1e300) == 0.0);
    fm_sincos(&s, &c, (double)INFINITY);
    assert_true(isnan(s) && isnan(c));
    fm_sincos(&s, &c, 1.1e9);
    assert_true(isnan(s) && isnan(c));
}

TEST(exact_cases_are_exact)
{
    double s, c;

    assert_true(fm_exp(0.0) == 1.0 && fm_log(1.0) == 0.0);
    for (int i = -1000; i < 1000; i++)
        assert_true(fm_pow(2.0, i) == ldexp(1.0, i));
    for (int i = 1; i < 15; i++)
        assert_true(fm_pow(10.0, i) == (double)powl(10.0L, i));
    fm_sincos(&s, &c, 0.0);
    assert_true(s == 0.0 && c == 1.0);
}

TEST(exp_and_log_are_within_an_ulp)
{
    double e = 0.0, near = 0.0, l = 0.0, l1 = 0.0;

    for (uint64_t i = 0; i < 200000; i++) {
        double x = draw(-708.0, 709.0, 0, i);
        note(&e, fm_exp(x), expl((long double)x));
        x = draw(-1.0, 1.0, 1, i);
        note(&near, fm_exp(x), expl((long double)x));
        x = fm_exp(draw(-700.0, 700.0, 2, i));
        note(&l, fm_log(x), logl((long double)x));
        x = draw(0.5, 2.0, 3, i);
        note(&l1, fm_log(x), logl((long double)x));
    }
    printf("exp %.3g, near 0 %.3g, log %.3g, near 1 %.3g\n", e, near, l, l1);
    tk_assert_le(e, LIMIT, "exp");
    tk_assert_le(near, LIMIT, "exp near 0");
    tk_assert_le(l, LIMIT, "log");
    tk_assert_le(l1, LIMIT, "log near 1");
    note(&l, fm_log(0x1p-1074), logl(0x1p-1074L));
    tk_assert_le(l, LIMIT, "log of a subnormal");
}

TEST(log1p_keeps_what_one_plus_x_rounds_away)
{
    double worst = 0.0;

    for (uint64_t i = 0; i < 200000; i++) {
        double size = fm_exp(draw(-80.0, -0.001, 13, i)), x = i & 1 ? -size : size;
        note(&worst, fm_log1p(x), log1pl((long double)x));
    }
    for (uint64_t i = 0; i < 20000; i++) {
        double x = fm_exp(draw(0.0, 700.0, 14, i));
        note(&worst, fm_log1p(x), log1pl((long double)x));
    }
    printf("log1p %.3g\n", worst);
    tk_assert_le(worst, 2 * LIMIT, "log1p");
    assert_true(fm_log1p(0.0) == 0.0 && fm_log1p(-1.0) == -(double)INFINITY);
    assert_true(isnan(fm_log1p(-1.5)) && isnan(fm_log1p((double)NAN)));
    assert_true(fm_log1p((double)INFINITY) == (double)INFINITY);
}

TEST(pow_is_within_an_ulp)
{
    double rope = 0.0, wide = 0.0;

    for (uint64_t i = 0; i < 100000; i++) {
        double x = draw(-1.0, 0.0, 4, i);
        double base = i & 1 ? 10000.0 : draw(1e3, 1e7, 5, i);
        note(&rope, fm_pow(base, x), powl((long double)base, (long double)x));
        base = fm_exp(draw(-7.0, 7.0, 6, i));
        x = draw(-100.0, 100.0, 7, i);
        note(&wide, fm_pow(base, x), powl((long double)base, (long double)x));
    }
    printf("pow rotary %.3g, wide %.3g\n", rope, wide);
    tk_assert_le(rope, LIMIT, "pow, rotary tables");
    tk_assert_le(wide, LIMIT, "pow, wide");
}

TEST(sincos_is_within_an_ulp)
{
    static const double reach[] = {1.0, 7.0, 1e3, 1e6, 1e9};
    double worst = 0.0;

    for (size_t k = 0; k < FM_ARRAY_LEN(reach); k++)
        for (uint64_t i = 0; i < 50000; i++) {
            double x = draw(-reach[k], reach[k], 8 + k, i);
            double s, c;
            if (i & 1) /* right beside a multiple of pi/2, where reduction loses most */
                x = (double)(roundl((long double)x / 1.57079632679489661923L) *
                             1.57079632679489661923L);
            fm_sincos(&s, &c, x);
            long double ws = sinl((long double)x), wc = cosl((long double)x);
            note(&worst, s, ws);
            note(&worst, c, wc);
        }
    printf("sincos %.3g\n", worst);
    tk_assert_le(worst, LIMIT, "sincos");
}

TEST(the_bits_are_the_recorded_ones)
{
    fm_hasher *h;
    fm_digest d;
    char hex[FM_HEX_CHARS + 1];

    tk_ok(fm_hasher_new(&h));
    for (uint64_t i = 0; i < 20000; i++) {
        double v[6] = {fm_exp(draw(-700.0, 700.0, 20, i)), fm_log(draw(0.0, 1e6, 21, i)),
                       fm_pow(draw(0.0, 100.0, 22, i), draw(-50.0, 50.0, 23, i))};
        fm_sincos(&v[3], &v[4], draw(-1e6, 1e6, 24, i));
        v[5] = fm_rng_normal(3, 5, i);
        tk_ok(fm_hasher_update(h, v, sizeof(v)));
    }
    tk_ok(fm_hasher_final(h, &d));
    fm_hasher_free(h);
    fm_digest_hex(&d, hex);
    assert_string_equal(hex, "97f75a5f0f32127cd3002adffa5c19738d07cd4f3395ba7fbafaa28cb2d27bf6");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_give_infinities_zeros_and_nans),
        cmocka_unit_test(exact_cases_are_exact),
        cmocka_unit_test(exp_and_log_are_within_an_ulp),
        cmocka_unit_test(log1p_keeps_what_one_plus_x_rounds_away),
        cmocka_unit_test(pow_is_within_an_ulp),
        cmocka_unit_test(sincos_is_within_an_ulp),
        cmocka_unit_test(the_bits_are_the_recorded_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
