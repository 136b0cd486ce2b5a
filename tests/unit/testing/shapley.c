/* Shapley values of games whose values are known, and against all orders. */
#include <math.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "testing/blame.h"
#include "tests/testkit.h"

#define MOST 12

typedef struct game {
    enum { ADDITIVE, UNANIMITY, GLOVES, RANDOM, BROKEN } kind;
    size_t units;
    uint64_t round;
    uint32_t runs;
    bool seen[1 << MOST];
} game;

static double worth(const game *g, size_t set)
{
    double sum = 0;
    size_t left = 0, right = 0;
    switch (g->kind) {
    case ADDITIVE:
        for (size_t u = 0; u < g->units; u++)
            sum += set >> u & 1 ? (double)u + 0.5 : 0;
        return sum - 2;
    case UNANIMITY: /* units 0, 2 and 3 together, or nothing */
        return (set & 13) == 13;
    case GLOVES: /* a pair of a left (0, 1) and a right glove (the others) is worth 1 */
        for (size_t u = 0; u < g->units; u++)
            *(u < 2 ? &left : &right) += set >> u & 1;
        return (double)FM_MIN(left, right);
    case RANDOM:
        return fm_rng_normal(5, g->round, set);
    case BROKEN:
        return set ? (double)NAN : 0;
    }
    return 0;
}

static fm_status value(void *ctx, const bool *take, size_t n, double *out)
{
    game *g = ctx;
    for (size_t i = 0; i < n; i++) {
        size_t set = 0;
        for (size_t u = 0; u < g->units; u++)
            set |= (size_t)take[i * g->units + u] << u;
        if (g->seen[set])
            fail_msg("coalition %zu is valued twice", set);
        g->seen[set] = true;
        g->runs++;
        out[i] = worth(g, set);
    }
    return FM_OK;
}

static fm_shapley valued(game *g, fm_shapley_opts opts)
{
    fm_shapley s;
    memset(g->seen, 0, sizeof g->seen);
    g->runs = 0;
    tk_ok(fm_shapley_values(&s, g->units, value, g, &opts));
    assert_int_equal(s.runs, g->runs);
    double sum = 0;
    for (size_t u = 0; u < g->units; u++)
        sum += s.value[u];
    tk_assert_le(fabs(sum - (s.whole - s.nothing)), 1e-9, "values add up");
    return s;
}

static void near(double got, double want)
{
    tk_assert_le(fabs(got - want), 1e-12, "a Shapley value");
}

TEST(closed_forms_are_met)
{
    game add = {.kind = ADDITIVE, .units = 6}, all = {.kind = UNANIMITY, .units = 5};
    game gloves = {.kind = GLOVES, .units = 3};
    fm_shapley s = valued(&add, (fm_shapley_opts){0});
    assert_true(s.exact && s.runs == 64);
    for (size_t u = 0; u < 6; u++)
        near(s.value[u], (double)u + 0.5);
    near(s.nothing, -2);
    fm_shapley_release(&s);
    s = valued(&all, (fm_shapley_opts){0});
    for (size_t u = 0; u < 5; u++)
        near(s.value[u], 13 >> u & 1 ? 1.0 / 3 : 0);
    fm_shapley_release(&s);
    s = valued(&gloves, (fm_shapley_opts){0}); /* two left gloves, one right one: 1/6, 1/6, 4/6 */
    near(s.value[0], 1.0 / 6);
    near(s.value[1], 1.0 / 6);
    near(s.value[2], 4.0 / 6);
    fm_shapley_release(&s);
}

/* All orders, one by one. */
static void orders(const game *g, size_t set, double share, double *out)
{
    size_t left = g->units - (size_t)__builtin_popcountll(set);
    for (size_t u = 0; u < g->units; u++) {
        size_t with = set | (size_t)1 << u;
        if (with == set)
            continue;
        out[u] += share / (double)left * (worth(g, with) - worth(g, set));
        orders(g, with, share / (double)left, out);
    }
}

TEST(random_games_agree_with_all_orders)
{
    for (uint64_t round = 0; round < 20; round++) {
        game g = {.kind = RANDOM, .units = 1 + round % 7, .round = round};
        double want[MOST] = {0};
        orders(&g, 0, 1, want);
        fm_shapley s = valued(&g, (fm_shapley_opts){0});
        for (size_t u = 0; u < g.units; u++)
            near(s.value[u], want[u]);
        fm_shapley_release(&s);
    }
}

/* A 95 % interval holds the value about as often as it says; more runs make it narrower. */
TEST(sampled_intervals_hold)
{
    size_t inside = 0, of = 0;
    double wide = 0, narrow = 0;
    for (uint64_t round = 0; round < 40; round++) {
        game g = {.kind = RANDOM, .units = 10, .round = round};
        fm_shapley all = valued(&g, (fm_shapley_opts){.exact_max = 10, .max_runs = 2000});
        assert_true(all.exact);
        fm_shapley few = valued(&g, (fm_shapley_opts){.max_runs = 150, .seed = round});
        assert_true(!few.exact && few.runs <= 150 && few.permutations >= 14);
        fm_shapley more = valued(&g, (fm_shapley_opts){.max_runs = 500, .seed = round});
        for (size_t u = 0; u < 10; u++) {
            inside += few.low[u] <= all.value[u] && all.value[u] <= few.high[u];
            inside += more.low[u] <= all.value[u] && all.value[u] <= more.high[u];
            of += 2;
            wide += few.high[u] - few.low[u];
            narrow += more.high[u] - more.low[u];
        }
        fm_shapley_release(&all);
        fm_shapley_release(&few);
        fm_shapley_release(&more);
    }
    print_message("%zu of %zu intervals hold, %.2f wide, with more runs %.2f\n", inside, of,
                  wide / 400, narrow / 400);
    assert_true(inside * 100 >= of * 92 && narrow < wide * 0.7);
}

/* Two pairs of orders: Student's t of one degree of freedom is tan(pi (p - 1/2)). */
TEST(intervals_of_two_pairs_are_as_wide_as_student_says)
{
    double half[2];
    for (int i = 0; i < 2; i++) {
        game g = {.kind = RANDOM, .units = 12, .round = 7};
        fm_shapley s = valued(
            &g, (fm_shapley_opts){.max_runs = 47, .seed = 3, .confidence = i ? 0.999 : 0.95});
        assert_int_equal(s.permutations, 4);
        half[i] = s.high[0] - s.value[0];
        fm_shapley_release(&s);
    }
    double want = tan(M_PI * 0.4995) / tan(M_PI * 0.475);
    tk_assert_le(fabs(half[1] / half[0] / want - 1), 1e-9, "ratio of the widths");
}

TEST(additive_games_have_no_spread)
{
    game g = {.kind = ADDITIVE, .units = 12};
    fm_shapley s = valued(&g, (fm_shapley_opts){.max_runs = 120});
    assert_false(s.exact);
    for (size_t u = 0; u < 12; u++) {
        tk_assert_le(fabs(s.value[u] - (double)u - 0.5), 1e-9, "a value");
        tk_assert_le(s.high[u] - s.low[u], 1e-6, "an interval");
    }
    fm_shapley_release(&s);
}

TEST(bounds_are_kept)
{
    game g = {.kind = BROKEN, .units = 3};
    fm_shapley s;
    const fm_shapley_opts opts = {0}, few = {.max_runs = 5};
    tk_fails(fm_shapley_values(&s, 3, value, &g, &opts), FM_EINVAL, "nan");
    assert_null(s.value);
    tk_fails(fm_shapley_values(&s, 10, value, &g, &few), FM_EINVAL, "20 runs at least");
    g = (game){.kind = ADDITIVE, .units = 0};
    tk_ok(fm_shapley_values(&s, 0, value, &g, &opts));
    near(s.whole, -2);
    fm_shapley_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_forms_are_met),
        cmocka_unit_test(random_games_agree_with_all_orders),
        cmocka_unit_test(sampled_intervals_hold),
        cmocka_unit_test(intervals_of_two_pairs_are_as_wide_as_student_says),
        cmocka_unit_test(additive_games_have_no_spread),
        cmocka_unit_test(bounds_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
