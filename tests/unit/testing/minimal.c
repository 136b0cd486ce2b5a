/* minimal sets of units, from made-up oracles. */
#include <math.h>
#include <string.h>

#include "store/base/math/rng.h"
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
        for (size_t k = 0; k < i; k++) /* nothing twice in a round */
            assert_true(mix[k].repeat != mix[i].repeat ||
                        memcmp(mix[k].take, mix[i].take, UNITS * sizeof(bool)) != 0);
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

TEST(one_unit_is_found_in_few_runs)
{
    for (unsigned u = 0; u < UNITS; u++) {
        oracle o = {.clause = {bit(u)}, .clauses = 1};
        fm_minimal_set m = searched(&o, 400);
        assert_int_equal(bits(m.take), bit(u));
        assert_true(m.sufficient && m.necessary && m.minimal);
        assert_true(m.runs <= 18); /* 3 ends, 2 halves at each of 6 levels, and the odd one */
        fm_free(m.take);
    }
}

TEST(a_conjunction_across_groups_is_found_whole)
{
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

TEST(a_second_cause_is_admitted_and_the_repair_cuts_both)
{
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

TEST(all_units_may_be_needed)
{
    oracle o = {.clause = {UINT64_MAX}, .clauses = 1};
    fm_minimal_set m = searched(&o, 1000);
    assert_int_equal(m.size, UNITS);
    assert_true(m.sufficient && m.necessary && m.minimal);
    assert_true(m.runs < 4 * UNITS);
    fm_free(m.take);
}

TEST(used_up_runs_are_admitted)
{
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

TEST(ends_that_are_not_as_said_are_admitted)
{
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
TEST(random_causes_give_one_minimal_sets)
{
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

/* ---- every set function on few units, against brute force ---- */

#define SMALL 10

typedef struct lattice {
    bool fails[1 << SMALL];
    double score[1 << SMALL];
    size_t units;
    double flip;
    uint64_t seed, draws;
    uint32_t runs;
} lattice;

static size_t number(const lattice *l, const bool *take)
{
    size_t set = 0;
    for (size_t u = 0; u < l->units; u++)
        set |= (size_t)take[u] << u;
    return set;
}

static fm_status looked_up(void *ctx, const fm_mixture *mix, size_t n, fm_mixture_reply *out)
{
    lattice *l = ctx;
    for (size_t i = 0; i < n; i++) {
        size_t set = number(l, mix[i].take);
        bool flips = fm_rng_uniform(l->seed, 3, l->draws++) < l->flip;
        out[i] = (fm_mixture_reply){.fails = l->fails[set] != flips, .score = l->score[set]};
        l->runs++;
    }
    return FM_OK;
}

/* Up to three causes of up to three units each; what is not monotone also flips at random. */
static void random_lattice(lattice *l, uint64_t round, bool monotone)
{
    uint64_t at = 0;
    size_t cause[3], causes = 1 + fm_rng_below(11, round, at++, 3);
    *l = (lattice){.units = 2 + fm_rng_below(11, round, at++, SMALL - 1), .seed = round};
    size_t all = (size_t)1 << l->units;
    for (size_t i = 0; i < causes; i++) {
        cause[i] = 0;
        for (size_t k = fm_rng_below(11, round, at++, 3) + 1; k > 0; k--)
            cause[i] |= (size_t)1 << fm_rng_below(11, round, at++, l->units);
    }
    for (size_t set = 0; set < all; set++) {
        l->score[set] = (double)NAN;
        for (size_t i = 0; i < causes; i++)
            l->fails[set] = l->fails[set] || (set & cause[i]) == cause[i];
        if (!monotone && set && set != all - 1 && fm_rng_below(11, round, 1000 + set, 4) == 0)
            l->fails[set] = !l->fails[set];
    }
}

static size_t least_failing(const lattice *l)
{
    size_t least = l->units;
    for (size_t set = 0; set < (size_t)1 << l->units; set++)
        if (l->fails[set])
            least = FM_MIN(least, (size_t)__builtin_popcountll(set));
    return least;
}

/* Sufficient is sufficient and minimal is minimal, whatever the function; monotone or not. */
static void expect_true_claims(const lattice *l, const fm_minimal_set *m)
{
    size_t set = number(l, m->take), all = ((size_t)1 << l->units) - 1;
    assert_true(m->sufficient && m->minimal && l->fails[set]);
    for (size_t u = 0; u < l->units; u++)
        if (m->take[u])
            assert_false(l->fails[set & ~((size_t)1 << u)]);
    assert_int_equal(m->necessary, !l->fails[all & ~set]);
}

TEST(lattices_agree_with_brute_force)
{
    for (int monotone = 0; monotone < 2; monotone++) {
        uint64_t runs = 0, all = 0, size = 0, least = 0, most_over = 0;
        for (uint64_t round = 0; round < 1500; round++) {
            lattice l;
            fm_minimal_set m;
            random_lattice(&l, round, monotone);
            size_t half[SMALL];
            for (size_t u = 0; u < l.units; u++)
                half[u] = u >= l.units / 2;
            const fm_blame_units units = {.count = l.units, .levels = 1, .group_of = {half}};
            const fm_minimal_opts opts = {.batch = 1 + (uint32_t)(round % 3)};
            tk_ok(fm_blame_minimal(&m, &units, looked_up, &l, &opts));
            expect_true_claims(&l, &m);
            assert_int_equal(m.runs, l.runs);
            runs += m.runs;
            all += (uint64_t)1 << l.units;
            size += m.size;
            least += least_failing(&l);
            most_over = FM_MAX(most_over, m.size - least_failing(&l));
            fm_free(m.take);
        }
        print_message(
            "%s: %.3f units, the least possible %.3f, at most %llu more; %.1f runs of %.1f\n",
            monotone ? "monotone" : "any", (double)size / 1500, (double)least / 1500,
            (unsigned long long)most_over, (double)runs / 1500, (double)all / 1500);
        assert_true(runs * 8 < all && size * 2 < least * 3);
    }
}

/* The claims hold as often as their posterior says. */
TEST(noise_is_outlasted)
{
    for (double flip = 0.05; flip < 0.11; flip += 0.05) {
        unsigned right = 0, rounds = 200;
        uint64_t runs = 0;
        for (uint64_t round = 0; round < rounds; round++) {
            lattice l;
            fm_minimal_set m;
            random_lattice(&l, round, true);
            l.flip = flip;
            const fm_blame_units units = {.count = l.units};
            const fm_minimal_opts opts = {.flip_rate = flip};
            tk_ok(fm_blame_minimal(&m, &units, looked_up, &l, &opts));
            size_t set = number(&l, m.take), all = ((size_t)1 << l.units) - 1;
            bool true_claims =
                m.sufficient && m.minimal && l.fails[set] && m.necessary == !l.fails[all & ~set];
            for (size_t u = 0; u < l.units; u++)
                true_claims = true_claims && !(m.take[u] && l.fails[set & ~((size_t)1 << u)]);
            right += true_claims;
            runs += m.runs;
            fm_free(m.take);
        }
        print_message("flip %.2f: %u of %u sets as claimed, %.1f runs\n", flip, right, rounds,
                      (double)runs / rounds);
        assert_true(right >= rounds * 95 / 100);
    }
}

/* Scores and sizes of changes say where to look first. */
TEST(hints_save_runs)
{
    uint32_t blind = 0, scored = 0, weighed = 0;
    for (uint64_t round = 0; round < 200; round++) {
        lattice l = {.units = SMALL};
        double effect[SMALL], sum = 0;
        bool heavy[SMALL];
        fm_minimal_set m;
        for (size_t u = 0; u < SMALL; u++) {
            heavy[u] = fm_rng_below(13, round, u, 4) == 0;
            effect[u] = heavy[u] ? 3 : 0.2 * fm_rng_uniform(13, round, 100 + u);
            sum += effect[u];
        }
        for (size_t set = 0; set < 1 << SMALL; set++) {
            l.score[set] = 0.85 * sum;
            for (size_t u = 0; u < SMALL; u++)
                l.score[set] -= set >> u & 1 ? effect[u] : 0;
            l.fails[set] = l.score[set] < 0;
        }
        const double *weights[2] = {NULL, effect};
        for (int k = 0; k < 3; k++) {
            lattice now = l;
            for (size_t set = 0; k != 1 && set < 1 << SMALL; set++)
                now.score[set] = (double)NAN;
            const fm_blame_units units = {.count = SMALL, .weight = weights[k == 2]};
            const fm_minimal_opts opts = {0};
            tk_ok(fm_blame_minimal(&m, &units, looked_up, &now, &opts));
            expect_true_claims(&now, &m);
            *(k == 0 ? &blind : k == 1 ? &scored : &weighed) += m.runs;
            fm_free(m.take);
        }
    }
    print_message("%u runs, %u with scores, %u with sizes\n", blind, scored, weighed);
    assert_true(scored < blind && weighed < blind);
}

static fm_status some_cannot(void *ctx, const fm_mixture *mix, size_t n, fm_mixture_reply *out)
{
    oracle *o = ctx;
    for (size_t i = 0; i < n; i++)
        out[i] = (fm_mixture_reply){.fails = true, /* must not be read */
                                    .unasked = mix[i].take[1] && !mix[i].take[2],
                                    .score = (double)NAN};
    for (size_t i = 0; i < n; i++)
        if (!out[i].unasked)
            out[i].fails = holds(o, mix[i].take);
    return FM_OK;
}

TEST(what_cannot_be_asked_proves_nothing)
{
    fm_minimal_set m;
    oracle o = {.clause = {bit(1)}, .clauses = 1};
    const fm_blame_units units = {.count = UNITS};
    const fm_minimal_opts opts = {0};
    tk_ok(fm_blame_minimal(&m, &units, some_cannot, &o, &opts));
    assert_int_equal(bits(m.take), bit(1) | bit(2)); /* 1 alone cannot be asked */
    assert_true(m.sufficient && m.minimal && m.necessary);
    fm_free(m.take);
}

static fm_status nothing(void *ctx, const fm_mixture *mix, size_t n, fm_mixture_reply *out)
{
    (void)ctx;
    (void)mix;
    memset(out, 0, n * sizeof *out);
    return FM_OK;
}

TEST(no_units_and_refusing_oracles)
{
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
        cmocka_unit_test(lattices_agree_with_brute_force),
        cmocka_unit_test(noise_is_outlasted),
        cmocka_unit_test(hints_save_runs),
        cmocka_unit_test(what_cannot_be_asked_proves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
