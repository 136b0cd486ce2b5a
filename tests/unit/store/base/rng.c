/* Philox against the known answers of the Random123 library, and what is drawn from it. */
#include "tests/testkit.h"

#include "store/base/math/rng.h"

#include <math.h>

static void assert_block(fm_u32x4 x, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    assert_int_equal(x.v[0], a);
    assert_int_equal(x.v[1], b);
    assert_int_equal(x.v[2], c);
    assert_int_equal(x.v[3], d);
}

TEST(philox_gives_the_known_answers)
{
    assert_block(fm_philox(0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
    assert_block(fm_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX), 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
                 0x6d5451fd);
    assert_block(fm_philox(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u),
                 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(uniform_stays_below_one_with_the_right_moments)
{
    double sum = 0.0, squares = 0.0;
    enum { N = 200000 };

    for (uint64_t i = 0; i < N; i++) {
        double u = fm_rng_uniform(1, 2, i);
        assert_true(u >= 0.0 && u < 1.0);
        sum += u;
        squares += u * u;
    }
    tk_assert_le(fabs(sum / N - 0.5), 0.003, "mean"); /* four standard errors */
    tk_assert_le(fabs(squares / N - 1.0 / 3), 0.003, "second moment");
}

TEST(below_is_even_and_in_range)
{
    unsigned hits[7] = {0};
    const uint64_t huge = ((uint64_t)1 << 63) + 1; /* half of all draws are rejected */

    assert_int_equal(fm_rng_below(9, 9, 9, 1), 0);
    for (uint64_t i = 0; i < 70000; i++) {
        uint64_t v = fm_rng_below(4, 4, i, 7);
        assert_true(v < 7);
        hits[v]++;
        assert_true(fm_rng_below(4, 4, i, huge) < huge);
    }
    for (int i = 0; i < 7; i++)
        assert_in_range(hits[i], 9600, 10400);
}

TEST(normal_has_the_right_moments)
{
    double m[5] = {0};
    enum { N = 200000 };

    for (uint64_t i = 0; i < N; i++) {
        double x = fm_rng_normal(7, 1, i);
        assert_true(isfinite(x));
        for (int k = 1; k < 5; k++)
            m[k] += pow(x, k) / N;
    }
    tk_assert_le(fabs(m[1]), 0.01, "mean");
    tk_assert_le(fabs(m[2] - 1.0), 0.015, "variance");
    tk_assert_le(fabs(m[3]), 0.04, "skew");
    tk_assert_le(fabs(m[4] - 3.0), 0.12, "fourth moment");
}

TEST(a_permutation_holds_each_number_once_and_depends_on_its_stream)
{
    enum { N = 1000 };
    uint32_t a[N], b[N];
    bool seen[N] = {false};
    unsigned same = 0;

    fm_rng_permutation(a, 0, 1, 1);
    fm_rng_permutation(a, N, 1, 1);
    fm_rng_permutation(b, N, 1, 2);
    for (int i = 0; i < N; i++) {
        assert_true(a[i] < N && !seen[a[i]]);
        seen[a[i]] = true;
        same += a[i] == b[i];
    }
    assert_true(same < 10);
    fm_rng_permutation(b, N, 1, 1);
    assert_memory_equal(a, b, sizeof(a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(uniform_stays_below_one_with_the_right_moments),
        cmocka_unit_test(below_is_even_and_in_range),
        cmocka_unit_test(normal_has_the_right_moments),
        cmocka_unit_test(a_permutation_holds_each_number_once_and_depends_on_its_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
