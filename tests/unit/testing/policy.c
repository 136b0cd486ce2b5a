/* Gates: which rules are refused, and what each says of outcomes. p-values are recorded ones of
 * scipy.stats.binomtest(min(b, c), b + c, 0.5). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "store/base/mem.h"
#include "testing/policy.h"
#include "tests/testkit.h"

static fm_policy policy(const char *json)
{
    fm_json *v = NULL;
    fm_policy p;
    tk_ok(fm_json_parse(&v, fm_span_str(json), "p"));
    tk_ok(fm_policy_read(&p, v, "f.yaml"));
    fm_json_free(v);
    return p;
}

static void refused(const char *json, const char *needle)
{
    fm_json *v = NULL;
    fm_policy p;
    tk_ok(fm_json_parse(&v, fm_span_str(json), "p"));
    tk_fails(fm_policy_read(&p, v, "f.yaml"), FM_EINVAL, needle);
    assert_non_null(strstr(fm_error_text(), "f.yaml"));
    fm_json_free(v);
}

/* One letter a case: p pass, f fail, e error, upper case: waived. Case i has digest i. */
static size_t cases_of(fm_policy_case *c, const char *letters)
{
    size_t n = strlen(letters);
    memset(c, 0, n * sizeof *c);
    for (size_t i = 0; i < n; i++) {
        char low = (char)(letters[i] | 0x20);
        c[i].digest.b[0] = (uint8_t)i;
        c[i].digest.b[1] = (uint8_t)(i >> 8);
        c[i].waived = letters[i] != low;
        c[i].verdict = low == 'p' ? FM_PASS : low == 'f' ? FM_FAIL : FM_ERROR_CASE;
    }
    return n;
}

/* needle NULL: the gate holds; else it fails with one line that has it. */
static fm_policy_outcome judged(const char *json, const char *now, const char *before,
                                const char *needle)
{
    static fm_policy_case a[1000], b[1000];
    fm_policy p = policy(json);
    fm_policy_outcome o;
    fm_buf why;
    fm_buf_init(&why, 0);
    fm_policy_facts f = {.now = a, .count = cases_of(a, now), .baseline_name = "parent 12345"};
    if (before) {
        f.before = b;
        f.before_count = cases_of(b, before);
    }
    tk_ok(fm_policy_judge(&o, &why, &p, &f));
    assert_int_equal(o.holds, needle == NULL);
    assert_int_equal(why.len == 0, needle == NULL);
    if (needle && !strstr(fm_buf_cstr(&why), needle))
        fail_msg("want '%s' in: %s", needle, fm_buf_cstr(&why));
    fm_buf_release(&why);
    return o;
}

TEST(rules_that_say_nothing_are_refused)
{
    refused("3", "'gate' must be true or false");
    refused("{}", "asks for nothing");
    refused("{\"treshold\": 0.5}", "unknown key 'treshold'");
    refused("{\"threshold\": 0}", "'threshold'");
    refused("{\"threshold\": 95}", "'threshold'");
    refused("{\"threshold\": \"0.9\"}", "'threshold'");
    refused("{\"min-passed\": 0}", "'min-passed'");
    refused("{\"min-passed\": 1.5}", "'min-passed'");
    refused("{\"baseline\": \"main\"}", "'baseline' must be parent, first");
    refused("{\"baseline\": \"12345\"}", "7 to 64 hex digits");
    refused("{\"allowed-regressions\": 3}", "wants a 'baseline'");
    refused("{\"threshold\": 1, \"significance\": 0.05}", "wants a 'baseline'");
    refused("{\"baseline\": \"parent\", \"allowed-regressions\": -1}", "'allowed-regressions'");
    refused("{\"baseline\": \"parent\", \"allowed-regressions\": 1.0}", "'allowed-regressions'");
    refused("{\"baseline\": \"parent\", \"significance\": 0}", "'significance'");
    refused("{\"measures\": false}", "'measures'");
    assert_false(policy("false").gate);
    assert_true(policy("true").all);
    assert_true(policy("{\"baseline\": \"1a2b3c4\"}").baseline == FM_BASELINE_ID);
}

TEST(every_case_means_every_case_that_is_not_waived)
{
    judged("true", "pppp", NULL, NULL);
    judged("true", "pppf", NULL, "3 of 4 cases passed, the gate wants every one");
    judged("true", "pppe", NULL, "3 of 4");
    fm_policy_outcome o = judged("true", "ppFEP", NULL, NULL);
    assert_int_equal(o.counted, 2);
    assert_int_equal(o.passed, 2);
    assert_int_equal(o.waived, 3);
    assert_int_equal(o.waived_passed, 1);
    judged("true", "FFF", NULL, NULL);
    judged("false", "fff", NULL, NULL);
}

TEST(shares_and_numbers_have_sharp_edges)
{
    judged("{\"threshold\": 0.95}", "pppppppppppppppppppf", NULL, NULL); /* 19 of 20 */
    judged("{\"threshold\": 0.95}", "ppppppppppppppppppff", NULL,
           "threshold: 18 of 20 cases passed, a share of 0.9; the gate wants 0.95");
    judged("{\"threshold\": 0.3333333333333333}", "pff", NULL, NULL);
    judged("{\"threshold\": 0.95}", "pppppppppF", NULL, NULL);
    judged("{\"min-passed\": 3}", "pppff", NULL, NULL);
    judged("{\"min-passed\": 3}", "ppfff", NULL, "min-passed: 2 cases passed; the gate wants 3");
    judged("{\"min-passed\": 3}", "ppFff", NULL, NULL);
    judged("{\"min-passed\": 4}", "ppFff", NULL, "3 cases passed or are waived");
}

TEST(regressions_are_pairs_that_passed_before)
{
    const char *strict = "{\"baseline\": \"parent\"}";
    judged(strict, "ffpp", "ffpp", NULL); /* what failed before is no regression */
    judged(strict, "pppp", "ffff", NULL);
    judged(strict, "fpf", NULL, NULL); /* no such version: nothing to regress from */
    fm_policy_outcome o = judged(strict, "pfep", "ppff",
                                 "regressions: 1 of 4 cases broken and 1 fixed against parent "
                                 "12345; the gate allows 0 broken");
    assert_int_equal(o.broken, 1);
    assert_int_equal(o.fixed, 1);
    judged(strict, "pFpp", "pppp", NULL);
    judged(strict, "ppppf", "pppp", NULL); /* a case that the baseline has not */
    judged("{\"baseline\": \"first\", \"allowed-regressions\": 2}", "ffpp", "pppp", NULL);
    judged("{\"baseline\": \"first\", \"allowed-regressions\": 2}", "fffp", "pppp", "allows 2");
    judged("{\"baseline\": \"first\", \"allowed-regressions\": 0.5}", "ffpp", "pppp", NULL);
    judged("{\"baseline\": \"first\", \"allowed-regressions\": 0.5}", "fffp", "pppp",
           "allows a share of 0.5");
}

TEST(pairs_are_found_by_digest_wherever_they_stand)
{
    fm_policy_case now[3], before[3];
    fm_policy_outcome o;
    fm_buf why;
    fm_policy p = policy("{\"baseline\": \"parent\"}");
    cases_of(now, "fpp");
    cases_of(before, "ppf");
    before[0].digest.b[0] = 2; /* order 2, 1, 0: what failed is case 0 */
    before[2].digest.b[0] = 0;
    fm_buf_init(&why, 0);
    fm_policy_facts f = {now, 3, before, 3, "x", NULL};
    tk_ok(fm_policy_judge(&o, &why, &p, &f));
    assert_true(o.holds);
    assert_int_equal(o.paired, 3);
    assert_int_equal(o.broken + o.fixed, 0);
    fm_buf_release(&why);
}

TEST(significance_lets_chance_pass)
{
    const char *rule = "{\"baseline\": \"parent\", \"significance\": 0.05}";
    fm_policy_outcome o = judged(rule, "fffffppp", "pppppppp", NULL);
    assert_true(fabs(o.p_value - 0.0625) < 1e-12);
    o = judged(rule, "ffffffpp", "pppppppp",
               "6 of 8 cases broken and 0 fixed against parent 12345 (McNemar p = 0.031");
    assert_true(fabs(o.p_value - 0.03125) < 1e-12);
    o = judged(rule, "ffffffffffpp", "ppppppppppff", "10 of 12 cases broken and 2 fixed");
    assert_true(fabs(o.p_value - 0.03857421875) < 1e-12);
    o = judged(rule, "fffpppppppp", "pppffffffff", NULL); /* 3 broken, 8 fixed */
    assert_true(fabs(o.p_value - 0.2265625) < 1e-12);
    o = judged(rule, "ffpppppppppp", "ppffffffffff", NULL); /* significant, to the good */
    assert_true(o.p_value < 0.05);
}

TEST(failed_measures_fail_a_gate_that_asks_for_them)
{
    fm_policy_case now[1];
    fm_policy_outcome o;
    fm_buf why;
    fm_policy p = policy("{\"measures\": true}"), other = policy("{\"threshold\": 0.5}"),
              all = policy("true");
    cases_of(now, "p");
    fm_buf_init(&why, 0);
    fm_policy_facts f = {now, 1, NULL, 0, NULL, "accuracy is 0.7, want 0.8"};
    tk_ok(fm_policy_judge(&o, &why, &p, &f));
    assert_false(o.holds);
    assert_string_equal(fm_buf_cstr(&why), "measures: accuracy is 0.7, want 0.8\n");
    fm_buf_clear(&why);
    tk_ok(fm_policy_judge(&o, &why, &other, &f));
    assert_true(o.holds);
    tk_ok(fm_policy_judge(&o, &why, &all, &f));
    assert_false(o.holds);
    f.measures_failed = NULL;
    tk_ok(fm_policy_judge(&o, &why, &p, &f));
    assert_true(o.holds);
    fm_buf_release(&why);
}

TEST(words_name_each_rule)
{
    static const char *const want[][2] = {
        {"true", "every case"},
        {"false", "nothing"},
        {"{\"threshold\": 0.95, \"min-passed\": 40}", "a share of 0.95, at least 40 cases"},
        {"{\"baseline\": \"parent\", \"allowed-regressions\": 2, \"significance\": 0.05}",
         "at most 2 broken against the parent at p <= 0.05"},
        {"{\"baseline\": \"1a2b3c4\", \"allowed-regressions\": 0.1, \"measures\": true}",
         "at most a share of 0.1 broken against 1a2b3c4, its measures"},
    };
    for (size_t i = 0; i < FM_ARRAY_LEN(want); i++) {
        fm_policy p = policy(want[i][0]);
        fm_buf b;
        fm_buf_init(&b, 0);
        tk_ok(fm_policy_words(&b, &p));
        assert_string_equal(fm_buf_cstr(&b), want[i][1]);
        fm_buf_release(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_that_say_nothing_are_refused),
        cmocka_unit_test(every_case_means_every_case_that_is_not_waived),
        cmocka_unit_test(shares_and_numbers_have_sharp_edges),
        cmocka_unit_test(regressions_are_pairs_that_passed_before),
        cmocka_unit_test(pairs_are_found_by_digest_wherever_they_stand),
        cmocka_unit_test(significance_lets_chance_pass),
        cmocka_unit_test(failed_measures_fail_a_gate_that_asks_for_them),
        cmocka_unit_test(words_name_each_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
