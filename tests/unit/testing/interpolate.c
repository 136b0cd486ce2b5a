/* The share of a change that can stay: borders known beforehand are found, and what is returned was
 * asked. */
#include "testing/interpolate.h"

#include <math.h>

#include "tests/testkit.h"

typedef struct world {
    double border[4]; /* passes below the first, fails up to the second, passes up to the third */
    size_t borders;
    double asked[64];
    bool passed[64];
    size_t count;
    size_t fail_at; /* the oracle's own failure */
} world;

static fm_status oracle(void *ctx, double alpha, bool *passes)
{
    world *w = ctx;
    size_t below = 0;
    if (w->fail_at && w->count + 1 == w->fail_at)
        return fm_fail(FM_EIO, "no");
    while (below < w->borders && alpha > w->border[below])
        below++;
    *passes = below % 2 == 0;
    w->asked[w->count] = alpha;
    w->passed[w->count++] = *passes;
    return FM_OK;
}

TEST(borders_are_found)
{
    for (int i = 0; i <= 1000; i++) {
        world w = {.border = {(double)i / 1000 * 0.999}, .borders = 1};
        fm_interpolation a;
        tk_ok(fm_blame_interpolate(&a, 10, oracle, &w));
        assert_true(a.found && a.alpha <= w.border[0] && a.fails > w.border[0]);
        assert_true(a.fails - a.alpha <= 1.0 / 1024 + 1e-12);
        assert_int_equal(a.runs, 12);
        assert_int_equal(a.runs, w.count);
    }
}

TEST(ends_are_told_apart)
{
    fm_interpolation a;
    world never = {.border = {-1}, .borders = 1};
    tk_ok(fm_blame_interpolate(&a, 8, oracle, &never));
    assert_true(!a.found && a.runs == 1);
    world always = {.borders = 0};
    tk_ok(fm_blame_interpolate(&a, 8, oracle, &always));
    assert_true(a.found && a.alpha >= 1 && a.fails > 1 && a.runs == 2);
}

/* Passes, fails, passes, fails: the answer is one of the borders, and was seen to pass. */
TEST(what_is_not_monotone_still_passes)
{
    for (int i = 1; i < 50; i++) {
        double first = 0.01 * i;
        world w = {.border = {first, first + 0.2, first + 0.3}, .borders = 3};
        fm_interpolation a;
        bool asked = false;
        tk_ok(fm_blame_interpolate(&a, 12, oracle, &w));
        for (size_t k = 0; k < w.count; k++)
            asked = asked || (fabs(w.asked[k] - a.alpha) < 1e-15 && w.passed[k]);
        assert_true(asked);
        bool one = fabs(a.alpha - first) < 1e-3 || fabs(a.alpha - (first + 0.3)) < 1e-3;
        assert_true(one);
    }
}

TEST(failures_pass_through)
{
    fm_interpolation a;
    for (size_t at = 1; at <= 5; at++) {
        world w = {.border = {0.3}, .borders = 1, .fail_at = at};
        tk_fails(fm_blame_interpolate(&a, 3, oracle, &w), FM_EIO, "no");
    }
    world w = {.borders = 0};
    tk_fails(fm_blame_interpolate(&a, 0, oracle, &w), FM_EINVAL, "1 to 30");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(borders_are_found),
        cmocka_unit_test(ends_are_told_apart),
        cmocka_unit_test(what_is_not_monotone_still_passes),
        cmocka_unit_test(failures_pass_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
