/* Chains of additions in double that are added together (infer/cuda/chain.h) have the bits of one
 * addition after the other. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
extern "C" {
#include <cmocka.h>
}

#include <vector>

#include "infer/cuda/chain.h"

static uint64_t state_of_random = 88172645463325252u;

static uint64_t random_bits(void)
{
    state_of_random ^= state_of_random << 13;
    state_of_random ^= state_of_random >> 7;
    state_of_random ^= state_of_random << 17;
    return state_of_random;
}
static double uniform(void)
{
    return (double)(random_bits() >> 11) * 0x1p-53;
}

/* Joined as a tree: halves, and halves of those. */
static fmc_chain tree(const double *w, size_t n, int e)
{
    if (n == 1)
        return fmc_chain_of(w[0], e);
    return fmc_chain_join(tree(w, n / 2, e), tree(w + n / 2, n - n / 2, e));
}

static double one_by_one(double sum, const double *w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum = sum + w[i];
    return sum;
}

/* Adds w in runs of `run`; the runs that could be added together. */
static size_t compare(double sum, const std::vector<double> &w, size_t run)
{
    size_t together = 0;
    for (size_t at = 0; at < w.size(); at += run) {
        size_t n = w.size() - at < run ? w.size() - at : run;
        double want = one_by_one(sum, &w[at], n), have = sum;
        int e = fmc_chain_exponent(sum);
        bool stays = fmc_double_bits(want) < ((uint64_t)e + 1) << 52;
        bool added = fmc_chain_add(&have, tree(&w[at], n, e));
        assert_int_equal(added, stays);
        if (added)
            assert_int_equal(fmc_double_bits(have), fmc_double_bits(want));
        else
            assert_int_equal(fmc_double_bits(have), fmc_double_bits(sum));
        together += added;
        sum = want;
    }
    return together;
}

static void weights_of_a_vocabulary(void **)
{
    for (int size = 1; size <= 32; size *= 2) {
        std::vector<double> w(20000);
        for (double &x : w)
            x = exp(-(double)size * (uniform() + uniform()));
        assert_true(compare(0.0, w, 64) > w.size() / 64 - 40);
        assert_true(compare(0.0, w, FMC_CHAIN_MOST) >= 5);
    }
}

/* Numbers of a few bits, near the sum's last place: ties everywhere, on even sums and odd ones. */
static void ties(void **)
{
    for (int scale = 0; scale < 56; scale++) {
        std::vector<double> w(4096);
        for (double &x : w)
            x = ldexp((double)(random_bits() % 8), -scale);
        assert_true(compare(1.0 + (double)(random_bits() % 2) * 0x1p-52, w, 61) > 0);
    }
}

static void of_any_exponent(void **)
{
    std::vector<double> w(30000);
    for (double &x : w)
        x = ldexp(uniform(), -(int)(random_bits() % 90));
    compare(0.0, w, 64);
    for (double &x : w)
        x = ldexp(uniform(), -1000 - (int)(random_bits() % 74));
    compare(0.0, w, 64);
    compare(0x1p-1022, w, 64);
    for (double &x : w)
        x = (double)(random_bits() % 3) * 0x1p-1074;
    assert_true(compare(0.0, w, 64) > w.size() / 64 - 2); /* one exponent: no bits are lost */
}

static void zeros_change_nothing(void **)
{
    std::vector<double> w(640, 0.0);
    assert_int_equal(compare(0.0, w, 64), 10);
    assert_int_equal(compare(0x1.23456789abcdfp+5, w, 64), 10);
}

static void the_last_sum_below_a_power_of_two(void **)
{
    std::vector<double> w = {0x1p-53};
    assert_int_equal(compare(0x1.fffffffffffffp+0, w, 1), 0); /* a tie that rounds up to 2 */
    assert_int_equal(compare(0x1.ffffffffffffep+0, w, 1), 1); /* a tie that stays */
    w[0] = 0x1.8p-53;
    assert_int_equal(compare(0x1.ffffffffffffep+0, w, 1), 1);
    w[0] = 4.0;
    assert_int_equal(compare(1.0, w, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_of_a_vocabulary),
        cmocka_unit_test(ties),
        cmocka_unit_test(of_any_exponent),
        cmocka_unit_test(zeros_change_nothing),
        cmocka_unit_test(the_last_sum_below_a_power_of_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
