/* blame through history on made-up graphs, and through units by made-up oracles. */
#include <string.h>

#include "testing/testing.h"
#include "tests/testkit.h"

/* ---- history ---- */

#define MAX_NODES 12

/* P = pass, F = fail, E = cannot be asked; node 0 first. */
typedef struct history {
    const char *says;
    unsigned asked[MAX_NODES];
    size_t fail_at; /* the evaluation of this node is refused; SIZE_MAX: of none */
} history;

static fm_status eval(void *ctx, size_t node, fm_verdict *v)
{
    history *h = ctx;
    h->asked[node]++;
    if (node == h->fail_at)
        return fm_fail(FM_EIO, "disk");
    *v = h->says[node] == 'P' ? FM_PASS : h->says[node] == 'F' ? FM_FAIL : FM_ERROR_CASE;
    return FM_OK;
}

static void expect_history(const fm_blame_node *nodes, const char *says, fm_blame_class want,
                           size_t culprit, bool uncertain)
{
    history h = {.says = says, .fail_at = SIZE_MAX};
    fm_blame_history out;
    size_t count = strlen(says);
    tk_ok(fm_blame_find(&out, nodes, count, eval, &h));
    if (out.verdict != want || out.uncertain != uncertain ||
        (want != FM_BLAME_PASSES && out.culprit != culprit))
        fail_msg("%s: class %d at %zu%s", says, (int)out.verdict, out.culprit,
                 out.uncertain ? ", uncertain" : "");
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(h.asked[i], 1);
        assert_int_equal(out.at[i], says[i] == 'P'   ? FM_PASS
                                    : says[i] == 'F' ? FM_FAIL
                                                     : FM_ERROR_CASE);
    }
    fm_free(out.at);
}

/* Node i has the parent i + 1. */
static const size_t next[MAX_NODES] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
static void expect_chain(const char *says, fm_blame_class want, size_t culprit, bool uncertain)
{
    fm_blame_node nodes[MAX_NODES];
    size_t count = strlen(says);
    for (size_t i = 0; i < count; i++)
        nodes[i] = (fm_blame_node){&next[i], i + 1 < count};
    expect_history(nodes, says, want, culprit, uncertain);
}

static void chains_are_told_apart(void **state)
{
    (void)state;
    expect_chain("PPP", FM_BLAME_PASSES, 0, false);
    expect_chain("PFF", FM_BLAME_PASSES, 0, false);
    expect_chain("F", FM_BLAME_INHERITED, 0, false);
    expect_chain("FFF", FM_BLAME_INHERITED, 2, false);
    expect_chain("FP", FM_BLAME_INTRODUCED, 0, false);
    expect_chain("FFFPP", FM_BLAME_INTRODUCED, 2, false);
    expect_chain("FFPF", FM_BLAME_REINTRODUCED, 1, false);
    expect_chain("FFPPPFPP", FM_BLAME_REINTRODUCED, 1, false);
}

static void unaskable_versions_are_looked_through_and_admitted(void **state)
{
    (void)state;
    expect_chain("FEP", FM_BLAME_INTRODUCED, 0, true);
    expect_chain("FFEEPP", FM_BLAME_INTRODUCED, 1, true);
    expect_chain("FEFP", FM_BLAME_INTRODUCED, 2, false); /* the gap is newer than the culprit */
    expect_chain("FEPF", FM_BLAME_REINTRODUCED, 0, true);
    expect_chain("FEF", FM_BLAME_INHERITED, 2, true);
    expect_chain("FE", FM_BLAME_INHERITED, 0, true);
    expect_chain("FPE", FM_BLAME_INTRODUCED, 0, false);
}

static void merges_pass_the_blame_to_their_failing_side(void **state)
{
    (void)state;
    /* 0 merges 1 and 2; both come from 3. */
    static const size_t both[] = {1, 2}, base[] = {3};
    const fm_blame_node diamond[] = {{both, 2}, {base, 1}, {base, 1}, {NULL, 0}};
    expect_history(diamond, "FPPP", FM_BLAME_INTRODUCED, 0, false); /* the merge itself */
    expect_history(diamond, "FPFP", FM_BLAME_INTRODUCED, 2, false);
    expect_history(diamond, "FFPP", FM_BLAME_INTRODUCED, 1, false);
    expect_history(diamond, "FFFP", FM_BLAME_INTRODUCED, 1, false);
    expect_history(diamond, "FFFF", FM_BLAME_INHERITED, 3, false);
    expect_history(diamond, "FPPF", FM_BLAME_REINTRODUCED, 0, false); /* both mended it */
    expect_history(diamond, "FPFF", FM_BLAME_REINTRODUCED, 0, false); /* one had mended it */
    expect_history(diamond, "FPEP", FM_BLAME_INTRODUCED, 0, true);
    /* Two roots: the failing one always failed, the other knows nothing of it. */
    const fm_blame_node roots[] = {{both, 2}, {NULL, 0}, {NULL, 0}};
    expect_history(roots, "FPF", FM_BLAME_INHERITED, 2, false);
    expect_history(roots, "FPP", FM_BLAME_INTRODUCED, 0, false);
}

static void a_start_that_cannot_run_is_an_error_and_errors_come_through(void **state)
{
    (void)state;
    fm_blame_node nodes[] = {{&next[0], 1}, {NULL, 0}};
    fm_blame_history out;
    history h = {.says = "EP", .fail_at = SIZE_MAX}, broken = {.says = "FP", .fail_at = 1};
    tk_fails(fm_blame_find(&out, nodes, 2, eval, &h), FM_EUNSUPPORTED, "cannot be run");
    assert_null(out.at);
    assert_int_equal(h.asked[1], 0);
    tk_fails(fm_blame_find(&out, nodes, 2, eval, &broken), FM_EIO, "disk");
    assert_null(out.at);
}

/* ---- units ---- */

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

static fm_status mixture(void *ctx, const bool *take, bool *fails)
{
    oracle *o = ctx;
    uint64_t taken = 0;
    if (++o->runs == o->refuse_at)
        return fm_fail(FM_EIO, "disk");
    for (size_t u = 0; u < UNITS; u++)
        taken |= (uint64_t)(take[u] != o->mend) << u;
    *fails = o->always;
    for (size_t i = 0; i < o->clauses; i++)
        *fails = *fails || (taken & o->clause[i]) == o->clause[i];
    *fails = (*fails && !o->never) != o->mend;
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
    tk_ok(fm_blame_units(&m, UNITS, group_of, GROUPS, mixture, o, max_runs));
    assert_int_equal(m.runs, o->runs); /* nothing is run twice without being counted */
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
        assert_int_equal(m.minimal, m.size == 4 && max > 20); /* ... and says that it may be less */
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
        bool f, is[UNITS];
        tk_ok(mixture(&o, m.take, &f));
        assert_true(f && m.sufficient && m.minimal);
        for (size_t u = 0; u < UNITS; u++)
            if (m.take[u]) {
                memcpy(is, m.take, sizeof is);
                is[u] = false;
                tk_ok(mixture(&o, is, &f));
                assert_false(f);
            }
        for (size_t u = 0; u < UNITS; u++)
            is[u] = !m.take[u];
        tk_ok(mixture(&o, is, &f));
        assert_int_equal(m.necessary, !f);
        fm_free(m.take);
    }
}

static fm_status nothing(void *ctx, const bool *take, bool *fails)
{
    (void)ctx;
    (void)take;
    *fails = false;
    return FM_OK;
}

static void no_units_and_refusing_oracles(void **state)
{
    (void)state;
    fm_minimal_set m;
    size_t group_of[UNITS] = {0};
    oracle o = {.always = true};
    tk_ok(fm_blame_units(&m, 0, group_of, 0, nothing, NULL, 10));
    assert_int_equal(m.size, 0);
    fm_free(m.take);
    for (uint32_t at = 1; at < 8; at++) {
        o = (oracle){.clause = {bit(9) | bit(33)}, .clauses = 1, .refuse_at = at};
        tk_fails(fm_blame_units(&m, UNITS, group_of, 1, mixture, &o, 400), FM_EIO, "disk");
        assert_null(m.take);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_start_that_cannot_run_is_an_error_and_errors_come_through),
        cmocka_unit_test(chains_are_told_apart),
        cmocka_unit_test(unaskable_versions_are_looked_through_and_admitted),
        cmocka_unit_test(merges_pass_the_blame_to_their_failing_side),
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
