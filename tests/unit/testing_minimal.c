/* minimal sets of units, from made-up oracles. */
#include <math.h>
#include <string.h>

#include "store/base/rng.h"
#include "testing/blame.h"
#include "tests/testkit.h"

#define UNITS 64
#define GROUPS 8

/* Fails when any of the clauses has all of its units (bits) from the child. */
typedef struct oracle {
    uint64_t clause[3];
    size_t clauses;
    bool always, never;
    bool mend; /* take = set back to the parent; looked for is a child that passes */
    uint32_t runs, refuse_at;
} oracle;

static bool holds(const oracle *o, const bool *take)
{
    uint64_t taken = 0;
    for (size_t u = 0; u < UNITS; u++)
        taken |= (uint64_t)(take[u] != o->mend) << u;
    bool fails = o->always;
    for (size_t i = 0; i < o->clauses; i++)
        fails = fails || (taken & o->clause[i]) == o->clause[i];
    return (fails && !o->never) != o->mend;
}

static fm_status mixture(void *ctx, const fm_mixture *mix, size_t n, fm_mixture_reply *out)
{
    oracle *o = ctx;
    for (size_t i = 0; i < n; i++) {
        if (++o->runs == o->refuse_at)
            return fm_fail(FM_EIO, "disk");
        out[i] = (fm_mixture_reply){.fails = holds(o, mix[i].take), .score = (double)NAN};
    }
    return FM_OK;
}

static uint64_t bits(const bool *take)
{
    uint64_t out = 0;
    for (size_t u = 0; u < UNITS; u++)
        out |= (uint64_t)take[u] << u;
    return out;
}

static uint64_t bit(unsigned u)
{
    return (uint64_t)1 << u;
}

static fm_minimal_set searched(oracle *o, uint32_t max_runs)
{
    size_t group_of[UNITS];
    fm_minimal_set m;
    for (size_t u = 0; u < UNITS; u++)
        group_of[u] = u / (UNITS / GROUPS);
    const fm_blame_units units = {.count = UNITS, .levels = 1, .group_of = {group_of}};
    const fm_minimal_opts opts = {.max_runs = FM_MAX(max_runs, 1u)};
    tk_ok(fm_blame_minimal(&m, &units, mixture, o, &opts));
    assert_int_equal(m.runs, o->runs); /* nothing is run twice without being counted */
    assert_true(m.posterior == 1);
    assert_true(m.runs <= FM_MAX(max_runs, 3u));
    assert_int_equal(m.size, (size_t)__builtin_popcountll(bits(m.take)));
    return m;
}

static void one_unit_is_found_in_few_runs(void **state)
{
    (void)state;
    for (unsigned u = 0; u < UNITS; u++) {
        oracle o = {.clause = {bit(u)}, .clauses = 1};
        fm_minimal_set m = searched(&o, 400);
        assert_int_equal(bits(m.take), bit(u));
        assert_true(m.sufficient && m.necessary && m.minimal);
        assert_true(m.runs <= 18); /* 3 ends, 2 halves at each of 6 levels, and the odd one */
        fm_free(m.take);
    }
}

static void a_conjunction_across_groups_is_found_whole(void **state)
{
    (void)state;
    oracle o = {.clause = {bit(3) | bit(41)}, .clauses = 1};
    fm_minimal_set m = searched(&o, 400);
    assert_int_equal(bits(m.take), bit(3) | bit(41));
    assert_true(m.sufficient && m.necessary && m.minimal);
    assert_true(m.runs < 100);
    fm_free(m.take);
    o = (oracle){.clause = {bit(3) | bit(41)}, .clauses = 1, .mend = true};
    m = searched(&o, 400);
    assert_true(bits(m.take) == bit(3) || bits(m.take) == bit(41)); /* either one breaks it */
    assert_true(m.sufficient && !m.necessary && m.minimal);
    fm_free(m.take);
}

static void a_second_cause_is_admitted_and_the_repair_cuts_both(void **state)
{
    (void)state;
    oracle o = {.clause = {bit(5), bit(50) | bit(51)}, .clauses = 2};
    fm_minimal_set m = searched(&o, 400);
    assert_true(bits(m.take) == bit(5) || bits(m.take) == (bit(50) | bit(51)));
    assert_true(m.sufficient && !m.necessary && m.minimal);
    fm_free(m.take);
    o = (oracle){.clause = {bit(5), bit(50) | bit(51)}, .clauses = 2, .mend = true};
    m = searched(&o, 400);
    assert_true(bits(m.take) == (bit(5) | bit(50)) || bits(m.take) == (bit(5) | bit(51)));
    assert_true(m.sufficient && m.minimal);
    fm_free(m.take);
}

static void all_units_may_be_needed(void **state)
{
    (void)state;
    oracle o = {.clause = {UINT64_MAX}, .clauses = 1};
    fm_minimal_set m = searched(&o, 1000);
    assert_int_equal(m.size, UNITS);
    assert_true(m.sufficient && m.necessary && m.minimal);
    assert_true(m.runs < 4 * UNITS);
    fm_free(m.take);
}

static void used_up_runs_are_admitted(void **state)
{
    (void)state;
    for (uint32_t max = 0; max < 60; max++) {
        oracle o = {.clause = {bit(3) | bit(17) | bit(41) | bit(63)}, .clauses = 1};
        fm_minimal_set m = searched(&o, max);
        assert_int_equal(bits(m.take) & o.clause[0], o.clause[0]); /* still fails ... */
        assert_true(m.sufficient && m.necessary);
        assert_true(!m.minimal || m.size == 4); /* ... and says that it may be less */
        assert_true(m.minimal || max < 50);
        fm_free(m.take);
    }
}

static void ends_that_are_not_as_said_are_admitted(void **state)
{
    (void)state;
    oracle o = {.always = true}, p = {.never = true};
    fm_minimal_set m = searched(&o, 400); /* the parent fails too */
    assert_int_equal(m.size, 0);
    assert_true(m.sufficient && !m.necessary && m.runs == 2);
    fm_free(m.take);
    m = searched(&p, 400); /* the child passes */
    assert_int_equal(m.size, UNITS);
    assert_true(!m.sufficient && !m.minimal && m.runs == 2);
    fm_free(m.take);
}

/* Any failing set that the search ends with is 1-minimal, and the flags are what runs say. */
static void random_causes_give_one_minimal_sets(void **state)
{
    (void)state;
    uint64_t x = 88172645463325252u;
    for (int round = 0; round < 300; round++) {
        oracle o = {.clauses = 1 + (size_t)round % 3, .mend = round % 2 == 1};
        for (size_t i = 0; i < o.clauses; i++)
            for (int k = 0; k <= round % 4; k++) {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                o.clause[i] |= bit((unsigned)(x >> 58));
            }
        fm_minimal_set m = searched(&o, 1000);
        bool is[UNITS];
        assert_true(holds(&o, m.take) && m.sufficient && m.minimal);
        for (size_t u = 0; u < UNITS; u++)
            if (m.take[u]) {
                memcpy(is, m.take, sizeof is);
                is[u] = false;
                assert_false(holds(&o, is));
            }
        for (size_t u = 0; u < UNITS; u++)
            is[u] = !m.take[u];
        assert_int_equal(m.necessary, !holds(&o, is));
        fm_free(m.take);
    }
}

static fm_status nothing(void *ctx, const fm_mixture *mix, size_t n, fm_mixture_reply *out)
{
    (void)ctx;
    (void)mix;
    memset(out, 0, n * sizeof *out);
    return FM_OK;
}

static void no_units_and_refusing_oracles(void **state)
{
    (void)state;
    fm_minimal_set m;
    size_t group_of[UNITS] = {0};
    oracle o = {.never = true};
    const fm_blame_units none = {.count = 0};
    const fm_blame_units units = {.count = UNITS, .levels = 1, .group_of = {group_of}};
    const fm_minimal_opts opts = {.max_runs = 400}, wrong = {.flip_rate = 0.5};
    tk_ok(fm_blame_minimal(&m, &none, nothing, NULL, &opts));
    assert_int_equal(m.size, 0);
    fm_free(m.take);
    tk_fails(fm_blame_minimal(&m, &units, mixture, &o, &wrong), FM_EINVAL, "flip rate");
    for (uint32_t at = 1; at < 8; at++) {
        o = (oracle){.clause = {bit(9) | bit(33)}, .clauses = 1, .refuse_at = at};
        tk_fails(fm_blame_minimal(&m, &units, mixture, &o, &opts), FM_EIO, "disk");
        assert_null(m.take);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_units_and_refusing_oracles),
        cmocka_unit_test(one_unit_is_found_in_few_runs),
        cmocka_unit_test(a_conjunction_across_groups_is_found_whole),
        cmocka_unit_test(a_second_cause_is_admitted_and_the_repair_cuts_both),
        cmocka_unit_test(all_units_may_be_needed),
        cmocka_unit_test(used_up_runs_are_admitted),
        cmocka_unit_test(ends_that_are_not_as_said_are_admitted),
        cmocka_unit_test(random_causes_give_one_minimal_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
