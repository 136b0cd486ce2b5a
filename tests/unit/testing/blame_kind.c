/* what kind of failure blame calls it: other forms of the case, steps taken apart, repeats that
 * disagree. */
#include <math.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "testing/blame.h"
#include "tests/testkit.h"

#define NODES 7 /* a chain, 0 the youngest; 6 is the base */

typedef struct world {
    double fail_rate[NODES]; /* of each version, flips within it */
    uint64_t answer[NODES];
    uint32_t forms_same[NODES]; /* of 8 forms */
    double chance;
    size_t needs; /* a bit per step: the culprit's step fails on the base with these */
    size_t culprit;
    bool no_mix, still; /* still: outcomes are thrown once, by rounding the rate */
    uint64_t seed, draws;
    size_t asks, mixes;
} world;

static fm_status ask(void *ctx, const fm_blame_ask *a, size_t n, fm_blame_reply *out)
{
    world *w = ctx;
    for (size_t i = 0; i < n; i++) {
        double rate = w->fail_rate[a[i].node];
        bool fails = w->still ? rate > 0.5 : fm_rng_uniform(w->seed, 1, w->draws++) < rate;
        out[i] = (fm_blame_reply){fails ? FM_FAIL : FM_PASS, fails ? w->answer[a[i].node] : 99,
                                  (double)NAN};
        w->asks++;
    }
    return FM_OK;
}

static fm_status forms(void *ctx, const size_t *node, size_t n, uint64_t wrong, fm_blame_forms *out)
{
    world *w = ctx;
    assert_int_equal(wrong, w->answer[w->culprit]);
    for (size_t i = 0; i < n; i++) {
        assert_true(node[i] > w->culprit);
        out[i] = (fm_blame_forms){8, w->forms_same[node[i]], w->chance};
    }
    return FM_OK;
}

static fm_status mix(void *ctx, const fm_blame_mix *m, size_t n, fm_blame_reply *out)
{
    world *w = ctx;
    for (size_t i = 0; i < n; i++) {
        size_t steps = 0;
        for (size_t k = 0; k < m[i].count; k++) {
            assert_true(m[i].step[k] < NODES - 1 && (k == 0 || m[i].step[k] > m[i].step[k - 1]));
            steps |= (size_t)1 << m[i].step[k];
        }
        assert_true(steps >> w->culprit & 1);
        bool fails = (steps & w->needs) == w->needs;
        if (!w->still && fm_rng_uniform(w->seed, 2, w->draws++) < 0.1)
            fails = !fails;
        out[i] = (fm_blame_reply){w->no_mix ? FM_ERROR_CASE
                                  : fails   ? FM_FAIL
                                            : FM_PASS,
                                  1, (double)NAN};
        w->mixes++;
    }
    return FM_OK;
}

static const size_t next[NODES] = {1, 2, 3, 4, 5, 6, 7};

/* Versions up to the culprit fail, the older ones pass. */
static world broken_at(size_t culprit)
{
    world w = {.culprit = culprit, .still = true, .chance = 0.02};
    for (size_t i = 0; i < NODES; i++) {
        w.fail_rate[i] = i <= culprit;
        w.answer[i] = 1;
    }
    w.needs = (size_t)1 << culprit;
    return w;
}

static fm_blame_history searched(world *w, fm_blame_opts opts, bool all_oracles)
{
    fm_blame_node nodes[NODES];
    fm_blame_history out;
    fm_blame_oracle oracle = {.ctx = w, .ask = ask};
    for (size_t i = 0; i < NODES; i++)
        nodes[i] = (fm_blame_node){&next[i], i + 1 < NODES, 0};
    if (all_oracles) {
        oracle.forms = forms;
        oracle.mix = mix;
    }
    tk_ok(fm_blame_search(&out, nodes, NODES, &oracle, &opts));
    size_t forms_asked = 0, kinds[3] = {0, 0, 0};
    for (size_t i = 0; i < out.evidence_count; i++) {
        kinds[out.evidence[i].kind]++;
        forms_asked += out.evidence[i].forms.asked;
        assert_true(out.evidence[i].round >= 1 && out.evidence[i].round <= out.rounds);
    }
    assert_int_equal(kinds[FM_BLAME_CASE], w->asks);
    assert_int_equal(kinds[FM_BLAME_MIX], w->mixes);
    assert_int_equal(out.runs, w->asks + w->mixes + forms_asked);
    return out;
}

static void expect(world w, fm_blame_class want, size_t source, const char *note)
{
    fm_blame_history h = searched(&w, (fm_blame_opts){0}, true);
    if (h.verdict != want || h.source != source || !strstr(h.note, note) || h.culprit != w.culprit)
        fail_msg("%s at %zu from %zu (%.3f) '%s', wanted %s", fm_blame_class_word(h.verdict),
                 h.culprit, h.source, h.posterior, h.note, fm_blame_class_word(want));
    fm_blame_history_release(&h);
}

TEST(older_versions_are_asked_other_forms)
{
    world w = broken_at(2);
    expect(w, FM_BLAME_INTRODUCED, SIZE_MAX, "");
    w.forms_same[3] = 5;
    expect(w, FM_BLAME_EXPOSED, 3, "");
    w.forms_same[6] = 8;
    expect(w, FM_BLAME_EXPOSED, 6, ""); /* the oldest that shows it */
    w.forms_same[3] = 1;                /* a sign, and the base has it */
    expect(w, FM_BLAME_EXPOSED, 6, "");
    w.forms_same[6] = 0;
    w.forms_same[3] = 1; /* once may be chance */
    expect(w, FM_BLAME_INTRODUCED, SIZE_MAX, "");
    w.forms_same[3] = 2; /* twice may be, or not: that is in the posterior */
    fm_blame_history h = searched(&w, (fm_blame_opts){0}, true);
    assert_int_equal(h.verdict, FM_BLAME_CANNOT_TELL);
    assert_true(h.posterior > 0.4 && h.posterior < 0.9);
    fm_blame_history_release(&h);
    w.asks = w.mixes = 0;
    w.forms_same[3] = 4;
    w.chance = 0.5; /* of two choices */
    expect(w, FM_BLAME_INTRODUCED, SIZE_MAX, "");
}

TEST(steps_are_taken_apart)
{
    world w = broken_at(1);
    w.needs = 1u << 1 | 1u << 4;
    fm_blame_history h = searched(&w, (fm_blame_opts){0}, true);
    assert_int_equal(h.verdict, FM_BLAME_INTERACTION);
    assert_int_equal(h.culprit, 1);
    assert_int_equal(h.partner_count, 1);
    assert_int_equal(h.partner[0], 4);
    fm_blame_history_release(&h);
    w = broken_at(1);
    w.needs = 1u << 1 | 1u << 2 | 1u << 5;
    h = searched(&w, (fm_blame_opts){0}, true);
    assert_int_equal(h.verdict, FM_BLAME_INTERACTION);
    assert_int_equal(h.partner_count, 2);
    assert_true(h.partner[0] == 2 && h.partner[1] == 5);
    fm_blame_history_release(&h);
    w = broken_at(1);
    w.no_mix = true;
    expect(w, FM_BLAME_INTRODUCED, SIZE_MAX, "cannot be added up");
    w = broken_at(1);
    w.needs = 1u << 6; /* nothing that is added up fails */
    expect(w, FM_BLAME_INTRODUCED, SIZE_MAX, "added up on the base do not fail");
    w = broken_at(5); /* on the base itself: nothing to take apart */
    h = searched(&w, (fm_blame_opts){0}, true);
    assert_int_equal(h.verdict, FM_BLAME_INTRODUCED);
    assert_int_equal(w.mixes, 0);
    fm_blame_history_release(&h);
}

TEST(steps_are_taken_apart_under_noise)
{
    unsigned right = 0, rounds = 40;
    for (uint64_t seed = 0; seed < rounds; seed++) {
        world w = broken_at(1);
        w.still = false;
        w.seed = seed;
        for (size_t i = 0; i < NODES; i++)
            w.fail_rate[i] = i <= 1 ? 0.9 : 0.1;
        w.needs = 1u << 1 | (seed % 2 ? 1u << 3 : 0);
        fm_blame_history h = searched(&w, (fm_blame_opts){.flip_rate = 0.1}, true);
        right += h.culprit == 1 && (seed % 2 ? h.verdict == FM_BLAME_INTERACTION &&
                                                   h.partner_count == 1 && h.partner[0] == 3
                                             : h.verdict == FM_BLAME_INTRODUCED);
        fm_blame_history_release(&h);
    }
    print_message("%u of %u right\n", right, rounds);
    assert_true(right >= 38);
}

TEST(repeats_that_disagree_are_flaky)
{
    unsigned flaky = 0, steady = 0, healthy = 0, rounds = 40;
    double rate = 0;
    for (uint64_t seed = 0; seed < rounds; seed++) {
        const fm_blame_opts stated = {.flip_rate = 0.05},
                            measured = {.flip_rate = FM_BLAME_MEASURE};
        world coin = broken_at(NODES - 1), w = broken_at(2), sound = broken_at(2);
        coin.still = w.still = sound.still = false;
        coin.seed = w.seed = sound.seed = seed;
        for (size_t i = 0; i < NODES; i++) {
            coin.fail_rate[i] = 0.5;
            w.fail_rate[i] = i <= 2 ? 0.95 : 0.05;
            sound.fail_rate[i] = 0.05;
        }
        fm_blame_history h = searched(&coin, seed % 2 ? stated : measured, false);
        flaky += h.verdict == FM_BLAME_FLAKY;
        fm_blame_history_release(&h);
        h = searched(&w, measured, false);
        steady += h.verdict == FM_BLAME_INTRODUCED && h.culprit == 2;
        rate += h.flip_rate / rounds;
        fm_blame_history_release(&h);
        h = searched(&sound, stated, false);
        healthy += h.verdict == FM_BLAME_PASSES;
        fm_blame_history_release(&h);
    }
    print_message("flaky %u, introduced %u, passes %u of %u; a rate of 0.05 is measured as %.3f\n",
                  flaky, steady, healthy, rounds, rate);
    assert_true(flaky >= 38 && steady >= 38 && healthy >= 38);
    tk_assert_le(fabs(rate - 0.075), 0.04, "measured flip rate");
}

TEST(too_few_runs_cannot_tell)
{
    world w = broken_at(2);
    fm_blame_history h = searched(&w, (fm_blame_opts){.max_runs = 3}, true);
    assert_int_equal(h.verdict, FM_BLAME_CANNOT_TELL);
    assert_int_equal(h.runs, 3);
    assert_true(h.posterior < 0.95 && strstr(h.note, "used up"));
    double sum = 0;
    for (size_t i = 0; i < NODES; i++)
        sum += h.share[i];
    tk_assert_le(fabs(sum - 1), 1e-9, "shares");
    fm_blame_history_release(&h);
}

TEST(a_round_is_no_larger_than_asked)
{
    for (uint32_t round = 1; round <= 4; round++) {
        world w = broken_at(3);
        fm_blame_history h = searched(&w, (fm_blame_opts){.round = round}, false);
        assert_int_equal(h.verdict, FM_BLAME_INTRODUCED);
        assert_int_equal(h.culprit, 3);
        for (size_t i = 0; i < h.evidence_count; i++) {
            uint32_t same = 0;
            for (size_t k = 0; k < h.evidence_count; k++)
                same += h.evidence[k].round == h.evidence[i].round;
            assert_true(same <= round);
        }
        fm_blame_history_release(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(older_versions_are_asked_other_forms),
        cmocka_unit_test(steps_are_taken_apart),
        cmocka_unit_test(steps_are_taken_apart_under_noise),
        cmocka_unit_test(repeats_that_disagree_are_flaky),
        cmocka_unit_test(too_few_runs_cannot_tell),
        cmocka_unit_test(a_round_is_no_larger_than_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
