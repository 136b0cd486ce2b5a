/* Assertions on texts and their negations; comparison of runs; JUnit; kept results. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "testing/suite/internal.h"
#include "testing/report.h"
#include "tests/testkit.h"

static fm_status checked(bool *holds, const char *expect, const char *text, bool ignore_case,
                         fm_buf *detail)
{
    char yaml[1024];
    fm_suite *s = NULL;
    snprintf(yaml, sizeof yaml,
             "suite: s\ncases:\n  - {name: c, prompt: p, ignore-case: %s, expect: {%s}}\n",
             ignore_case ? "true" : "false", expect);
    tk_ok(fm_suite_parse(&s, fm_span_str(yaml), "f.yaml"));
    assert_int_equal(s->cases[0].assertion_count, 1);
    fm_status rc = fmv_assert_check(s->cases[0].assertion, fm_span_str(text), holds, detail);
    fm_suite_free(s);
    return rc;
}

/* The assertion holds for text as stated, and its negation does not. */
static void expect_holds(const char *assertion, const char *text, bool ignore_case, bool want)
{
    char negated[512];
    for (int n = 0; n < 2; n++) {
        bool holds = false, wanted = n ? !want : want;
        fm_buf detail;
        fm_buf_init(&detail, 0);
        snprintf(negated, sizeof negated, "%s%s", n ? "not-" : "", assertion);
        tk_ok(checked(&holds, negated, text, ignore_case, &detail));
        if (holds != wanted)
            fail_msg("%s on \"%s\": %d", negated, text, holds);
        assert_int_equal(detail.len == 0, holds);
        if (!holds)
            assert_memory_equal(fm_buf_cstr(&detail), n ? "expected not-" : "expected ",
                                n ? 13 : 9);
        fm_buf_release(&detail);
    }
}

TEST(equals_trims_both_sides)
{
    expect_holds("equals: Paris", "Paris", false, true);
    expect_holds("equals: ' Paris '", "\n Paris\t", false, true);
    expect_holds("equals: Paris", "paris", false, false);
    expect_holds("equals: Paris", "pARIS", true, true);
    expect_holds("equals: Paris", "Paris.", false, false);
    expect_holds("equals: ''", " \n", false, true);
    expect_holds("equals: ''", "x", false, false);
    expect_holds("equals: É", "é", true, false); /* ASCII alone is folded */
}

TEST(contains_and_starts_with)
{
    expect_holds("contains: Paris", "It is Paris.", false, true);
    expect_holds("contains: Paris", "It is paris.", false, false);
    expect_holds("contains: Paris", "It is PARIS.", true, true);
    expect_holds("contains: Paris", "Pari", false, false);
    expect_holds("contains: Paris", "", false, false);
    expect_holds("contains: 'x '", "x", false, false);
    expect_holds("starts-with: The", "  The end", false, true);
    expect_holds("starts-with: ' The '", "The end", false, true);
    expect_holds("starts-with: ' The '", "Then", false, false);
    expect_holds("starts-with: THE", "the end", true, true);
    expect_holds("starts-with: end", "The end", false, false);
}

TEST(regex_sees_the_text_as_it_is)
{
    expect_holds("regex: '^\\d{4}$'", "1789", false, true);
    expect_holds("regex: '^\\d{4}$'", " 1789", false, false);
    expect_holds("regex: 'par[i]s'", "in PARIS", true, true);
    expect_holds("regex: 'par[i]s'", "in PARIS", false, false);
    expect_holds("regex: '^.$'", "é", false, true); /* code points, not bytes */
    expect_holds("regex: 'É'", "é", true, true);
}

TEST(one_of_wants_one_whole_answer)
{
    expect_holds("one-of: [yes, ' no']", " no ", false, true);
    expect_holds("one-of: [yes, no]", "not", false, false);
    expect_holds("one-of: [yes, no]", "NO", true, true);
    expect_holds("one-of: [yes, no]", "", false, false);
}

TEST(json_wants_the_fields)
{
    expect_holds("json: true", " {\"a\": 1}\n", false, true);
    expect_holds("json: true", "[1, 2]", false, true);
    expect_holds("json: true", "{\"a\": 1", false, false);
    expect_holds("json: true", "", false, false);
    expect_holds("json: {}", "{\"a\": 1}", false, true);
    expect_holds("json: {}", "[]", false, false);
    expect_holds("json: {a: 1, b: x}", "{\"b\": \"x\", \"c\": 0, \"a\": 1}", false, true);
    expect_holds("json: {a: 1}", "{\"a\": \"1\"}", false, false);
    expect_holds("json: {a: {b: 1}}", "{\"a\": {\"b\": 1, \"c\": 2}}", false, false);
    expect_holds("json: {a: null}", "{}", false, false);
}

TEST(a_regex_that_gives_up_is_an_error_not_a_verdict)
{
    bool holds;
    fm_buf detail;
    fm_buf_init(&detail, 0);
    tk_fails(checked(&holds, "regex: '^(a+)+$'", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", false,
                     &detail),
             FM_ELIMIT, "gave up");
    fm_buf_release(&detail);
}

TEST(details_cut_no_code_point)
{
    fm_span s = fmv_clip(fm_span_str("aéé"), 4);
    assert_int_equal(s.len, 3);
    assert_int_equal(fmv_clip(fm_span_str("aéé"), 5).len, 5);
    assert_int_equal(fmv_clip((fm_span){NULL, 0}, 5).len, 0);
    assert_non_null(fmv_clip((fm_span){NULL, 0}, 5).data);
}

/* ---- comparison ---- */

#define MAX_CASES 2100
static fm_case_result side[2][MAX_CASES];
static char names[MAX_CASES][24];

/* The figures alone; flips are given back. */
static fm_suite_change change_of(const fm_suite_run *a, const fm_suite_run *b)
{
    fm_suite_change c;
    fm_bootstrap how = fm_bootstrap_defaults();
    tk_ok(fm_suite_change_of(&c, a, b, &how));
    fm_suite_change_release(&c);
    return c;
}

static size_t both_fail(const fm_suite_change *c)
{
    return c->pairs - c->fixed - c->broken - c->both_pass;
}

/* n pairs: the first `fixed` fail in a, the next `broken` fail in b, then one fails in both. */
static fm_suite_change compared(size_t n, size_t fixed, size_t broken)
{
    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "c%zu", i);
        bool both = i == fixed + broken;
        side[0][i] =
            (fm_case_result){.name = names[i], .verdict = i < fixed || both ? FM_FAIL : FM_PASS};
        bool lost = i >= fixed && i < fixed + broken;
        side[1][i] =
            (fm_case_result){.name = names[i], .verdict = lost || both ? FM_FAIL : FM_PASS};
    }
    fm_suite_run a = {.result = side[0], .count = n}, b = {.result = side[1], .count = n};
    fm_suite_change c = change_of(&a, &b);
    assert_int_equal(c.fixed, fixed);
    assert_int_equal(c.broken, broken);
    assert_int_equal(c.pairs, n);
    assert_int_equal(both_fail(&c), n > fixed + broken);
    return c;
}

TEST(mcnemar_is_exact)
{
    /* 2 * sum_{i<=min} C(n, i) / 2^n, by hand. */
    tk_assert_le(fabs(compared(3, 0, 0).p_value - 1), 0, "no flips");
    tk_assert_le(fabs(compared(3, 1, 0).p_value - 1), 1e-12, "1:0");
    tk_assert_le(fabs(compared(9, 0, 5).p_value - 0.0625), 1e-12, "0:5");
    tk_assert_le(fabs(compared(9, 5, 0).p_value - 0.0625), 1e-12, "5:0");
    tk_assert_le(fabs(compared(20, 2, 8).p_value - 112.0 / 1024), 1e-12, "2:8");
    tk_assert_le(fabs(compared(20, 3, 3).p_value - 1), 1e-12, "3:3");
    tk_assert_le(fabs(compared(20, 1, 9).p_value - 22.0 / 1024), 1e-12, "1:9");
    /* Beyond what 2^-n holds in a double. */
    double p = compared(2050, 1024, 1024).p_value;
    tk_assert_le(fabs(p - 1), 1e-9, "1024:1024");
    p = compared(2050, 0, 2000).p_value;
    tk_assert_le(p, 1e-300, "0:2000");
}

TEST(comparison_pairs_by_name_and_counts_errors_as_not_passed)
{
    fm_case_result a[] = {{.name = "x", .verdict = FM_PASS},
                          {.name = "y", .verdict = FM_PASS},
                          {.name = "gone", .verdict = FM_PASS}};
    fm_case_result b[] = {{.name = "new", .verdict = FM_FAIL},
                          {.name = "y", .verdict = FM_PASS},
                          {.name = "x", .verdict = FM_ERROR_CASE}};
    fm_suite_run ra = {.result = a, .count = 3}, rb = {.result = b, .count = 3};
    fm_suite_change c = change_of(&ra, &rb);
    assert_int_equal(c.broken, 1);
    assert_int_equal(c.both_pass, 1);
    assert_int_equal(c.fixed + both_fail(&c), 0);
}

/* ---- reports ---- */

TEST(junit_escapes_what_xml_cannot_hold)
{
    fm_suite suite = {.name = (char *)(uintptr_t) "s"};
    char out[] = "a<b>&\"\n\t\r\x01 \xC3\xA9 \xC3( \xEF\xBF\xBE \xED\xA0\x80 \xC0\x80",
         why[] = "because <x>";
    fm_case_result r[] = {{.name = "ok", .verdict = FM_PASS},
                          {.name = "f", .verdict = FM_FAIL, .output = out, .detail = why},
                          {.name = "e", .verdict = FM_ERROR_CASE}};
    fm_suite_run run = {.suite = &suite,
                        .result = r,
                        .count = 3,
                        .passed = 1,
                        .failed = 1,
                        .errors = 1,
                        .seconds = 0.5};
    fm_buf xml;
    fm_buf_init(&xml, 0);
    tk_ok(fm_report_junit(&xml, &run, 1, "m & m"));
    assert_string_equal(
        fm_buf_cstr(&xml),
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n"
        "  <testsuite name=\"s\" tests=\"3\" failures=\"1\" errors=\"1\" time=\"0.500\">\n"
        "    <testcase classname=\"m &amp; m\" name=\"ok\"></testcase>\n"
        "    <testcase classname=\"m &amp; m\" name=\"f\"><failure message=\"because &lt;x&gt;\">"
        "a&lt;b&gt;&amp;&quot;\n\t&#13;\xEF\xBF\xBD \xC3\xA9 \xEF\xBF\xBD( "
        "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD "
        "\xEF\xBF\xBD\xEF\xBF\xBD</failure></testcase>\n"
        "    <testcase classname=\"m &amp; m\" name=\"e\"><error message=\"\"></error></testcase>\n"
        "  </testsuite>\n</testsuites>\n");
    fm_buf_release(&xml);
}

TEST(kept_results_come_back_whole)
{
    char out[] = "o\"\n", answer[] = "a", detail[] = "d";
    fm_case_result r = {.verdict = FM_FAIL,
                        .output = out,
                        .answer = answer,
                        .detail = detail,
                        .score = -1.25},
                   back = {0};
    fm_buf text;
    fm_buf_init(&text, 0);
    tk_ok(fmv_result_encode(&text, &r));
    tk_ok(fmv_result_decode(&back, fm_buf_span(&text)));
    assert_int_equal(back.verdict, FM_FAIL);
    assert_string_equal(back.output, out);
    assert_string_equal(back.answer, answer);
    assert_string_equal(back.detail, detail);
    assert_true(back.score == -1.25 && back.cached);
    fm_free(back.output);
    fm_free(back.answer);
    fm_free(back.detail);
    r = (fm_case_result){.verdict = FM_PASS, .output = out, .score = NAN};
    back = (fm_case_result){0};
    fm_buf_clear(&text);
    tk_ok(fmv_result_encode(&text, &r));
    tk_ok(fmv_result_decode(&back, fm_buf_span(&text)));
    assert_true(isnan(back.score) && !back.detail && !back.answer);
    fm_free(back.output);
    fm_buf_release(&text);
    tk_fails(fmv_result_decode(&back, fm_span_str("{\"verdict\":\"maybe\"}")), FM_ECORRUPT,
             "maybe");
    tk_fails(fmv_result_decode(&back, fm_span_str("{\"verdict\":\"error\"}")), FM_ECORRUPT,
             "'error' is not pass or fail");
    tk_fails(fmv_result_decode(&back, fm_span_str("nonsense")), FM_ECORRUPT, "kept result");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_trims_both_sides),
        cmocka_unit_test(contains_and_starts_with),
        cmocka_unit_test(regex_sees_the_text_as_it_is),
        cmocka_unit_test(one_of_wants_one_whole_answer),
        cmocka_unit_test(json_wants_the_fields),
        cmocka_unit_test(a_regex_that_gives_up_is_an_error_not_a_verdict),
        cmocka_unit_test(details_cut_no_code_point),
        cmocka_unit_test(mcnemar_is_exact),
        cmocka_unit_test(comparison_pairs_by_name_and_counts_errors_as_not_passed),
        cmocka_unit_test(junit_escapes_what_xml_cannot_hold),
        cmocka_unit_test(kept_results_come_back_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
