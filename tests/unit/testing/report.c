/* Reports of suites: counts, flips, repeats, and that hostile names and answers stay text in every
 * form. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "testing/suite/internal.h"
#include "testing/report.h"
#include "tests/testkit.h"

/* Closes a tag, an attribute, a script, a comment, a CDATA section, a Markdown cell, a TAP line. */
#define HOSTILE "</td><script>alert(1)</script>\"' onload=x --> ]]> | `x` # SKIP\nnot ok\x01\xff"

static const char yaml[] =
    "suite: s\n"
    "description: d\n"
    "gate: true\n"
    "cases:\n"
    "  - {name: a, prompt: p, expect: {contains: x}}\n"
    "  - {name: '<script>alert(1)</script>|#\"', prompt: p, expect: {contains: x}}\n"
    "  - {name: inv, kind: INV, prompt: [p, q]}\n"
    "  - {name: d, prompt: p, continuation: x, logprob-above: -1}\n";

typedef struct fixture {
    fm_suite *suite;
    fm_case_result result[2][4];
    fm_suite_run run[2];
    fm_report_column column[2];
    fm_report report;
} fixture;

static void fill(fixture *f)
{
    static char hostile[] = HOSTILE, said[] = "said", why[] = "expected contains \"x\"";
    *f = (fixture){0};
    tk_ok(fm_suite_parse(&f->suite, fm_span_str(yaml), "f.yaml"));
    for (size_t c = 0; c < 2; c++) {
        for (size_t i = 0; i < 4; i++)
            f->result[c][i] = (fm_case_result){.name = fm_suite_case_name(f->suite, i),
                                               .at = i,
                                               .output = said,
                                               .answer = said,
                                               .score = i == 3 ? -1.5 - (double)c : (double)NAN};
        f->run[c] = (fm_suite_run){.suite = f->suite, .result = f->result[c], .count = 4};
        f->column[c] = (fm_report_column){.name = c ? HOSTILE : "old",
                                          .id = "0123456789abcdef0123456789abcdef01234567",
                                          .note = HOSTILE,
                                          .run = &f->run[c],
                                          .run_count = 1,
                                          .parent = c ? 0 : SIZE_MAX};
    }
    for (size_t i = 1; i < 4; i++) {
        f->result[1][i].verdict = i == 3 ? FM_ERROR_CASE : FM_FAIL;
        f->result[1][i].output = f->result[1][i].answer = hostile;
        f->result[1][i].detail = i == 1 ? hostile : why;
    }
    f->result[0][2].verdict = FM_FAIL;
    fmv_run_count(&f->run[0]);
    fmv_run_count(&f->run[1]);
    f->report = (fm_report){.title = HOSTILE,
                            .mode = "exact",
                            .column = f->column,
                            .count = 2,
                            .shown = 1,
                            .confidence = 0.95};
}

TEST(matrix_counts_by_capability_and_kind)
{
    fixture f;
    fm_matrix m;
    fill(&f);
    f.result[1][1].flaky = true;
    tk_ok(fm_report_matrix(&m, &f.report));
    assert_int_equal(m.count, 2);
    assert_string_equal(m.row[0].capability, "s");
    assert_string_equal(m.row[0].kind, "MFT");
    assert_string_equal(m.row[1].kind, "INV");
    assert_int_equal(m.row[0].cell[0].passed, 3);
    assert_int_equal(m.row[0].cell[1].passed, 1);
    assert_int_equal(m.row[0].cell[1].flaky, 1);
    assert_int_equal(m.row[0].cell[1].errors, 1);
    assert_true(fabs(fm_matrix_share(&m.row[0].cell[1]) - 0.5) < 1e-12);
    assert_int_equal(m.row[1].cell[1].failed, 1);
    fm_matrix_release(&m);
    fm_suite_free(f.suite);
}

TEST(change_pairs_by_name_whatever_the_order)
{
    fixture f;
    fm_suite_change c;
    fm_bootstrap how = fm_bootstrap_defaults();
    fill(&f);
    fm_case_result swap = f.result[1][0];
    f.result[1][0] = f.result[1][3];
    f.result[1][3] = swap;
    tk_ok(fm_suite_change_of(&c, &f.run[0], &f.run[1], &how));
    assert_int_equal(c.pairs, 4);
    assert_int_equal(c.broken, 2);
    assert_int_equal(c.fixed, 0);
    assert_int_equal(c.both_pass, 1);
    assert_int_equal(c.flips, 2);
    assert_true(fabs(c.difference.value + 0.5) < 1e-12);
    assert_true(fabs(c.p_value - fm_mcnemar(0, 2)) < 1e-12);
    assert_string_equal(c.flip[0].now->name, "d");
    fm_suite_change_release(&c);
    f.result[1][1].flaky = true; /* one of the two that broke */
    tk_ok(fm_suite_change_of(&c, &f.run[0], &f.run[1], &how));
    assert_int_equal(c.pairs, 3);
    assert_int_equal(c.left_out, 1);
    assert_int_equal(c.broken, 1);
    fm_suite_change_release(&c);
    tk_ok(
        fm_suite_change_of(&c, &f.run[0], &f.run[0], &how)); /* nothing flips: no false certainty */
    assert_true(c.difference.high <= c.difference.low);
    fm_estimate e = fm_suite_change_interval(&c, 0.95);
    assert_true(e.low < -0.1 && e.high > 0.1);
    fm_suite_change_release(&c);
    fm_suite_free(f.suite);
}

/* Differences of 0.1, 0.2, -0.1, 0.3: of 16 ways to sign them 6 sum to 0.5 or more. */
TEST(grades_tell_of_changes_that_flip_nothing)
{
    static const double grade[2][5] = {{0.5, 0.5, 0.5, 0.5, 0.1}, {0.6, 0.7, 0.4, 0.8, 0.9}};
    fm_suite *s = NULL;
    fm_case_result result[2][5];
    fm_suite_run run[2];
    fm_suite_change c;
    fm_bootstrap how = fm_bootstrap_defaults();
    tk_ok(fm_suite_parse(
        &s,
        fm_span_str("suite: s\ntemplates:\n  - {name: 'g{i}', prompt: p, threshold: 0.1,\n"
                    "     expect: {contains: x}, slots: {i: [1, 2, 3, 4]}}\n"
                    "cases:\n  - {name: d, prompt: p, continuation: x, logprob-above: -9}\n"),
        "f.yaml"));
    for (size_t v = 0; v < 2; v++) {
        run[v] = (fm_suite_run){.suite = s, .result = result[v], .count = 5};
        for (size_t i = 0, g = 0; i < 5; i++) {
            bool graded = fm_suite_case_name(s, i)[0] == 'g';
            result[v][i] = (fm_case_result){.name = fm_suite_case_name(s, i),
                                            .at = i,
                                            .score = graded ? grade[v][g] : -(double)v};
            g += graded;
        }
    }
    tk_ok(fm_suite_change_of(&c, &run[0], &run[1], &how));
    assert_int_equal(c.flips, 0);
    assert_int_equal(c.graded, 4); /* a log-probability is no grade */
    assert_true(fabs(c.grade_change - 0.125) < 1e-12);
    assert_true(fabs(c.grade_p - 6.0 / 16) < 1e-12);
    fm_suite_change_release(&c);
    result[0][0].flaky = result[0][1].flaky = result[0][2].flaky = true;
    result[1][3].verdict = result[1][4].verdict = FM_ERROR_CASE;
    tk_ok(fm_suite_change_of(&c, &run[0], &run[1], &how));
    assert_true(c.graded <= 1);
    fm_suite_change_release(&c);
    fm_suite_free(s);
}

TEST(repeats_that_disagree_are_flaky_and_counted_apart)
{
    fixture f;
    fill(&f);
    fm_case_result again[2] = {f.result[1][1], f.result[1][0]};
    fm_suite_run more = {.suite = f.suite, .result = again, .count = 2};
    again[0].verdict = FM_PASS;
    tk_ok(fm_suite_run_repeat(&f.run[1], &more));
    tk_ok(fm_suite_run_repeat(&f.run[1], &more));
    assert_true(f.result[1][1].flaky);
    assert_int_equal(f.result[1][1].repeats, 3);
    assert_int_equal(f.result[1][1].repeats_passed, 2);
    assert_false(f.result[1][0].flaky);
    assert_int_equal(f.result[1][0].repeats_passed, 3);
    assert_int_equal(f.run[1].flaky, 1);
    assert_int_equal(f.run[1].passed, 1);
    assert_int_equal(f.run[1].failed, 1);
    assert_int_equal(f.run[1].errors, 1);
    assert_false(fm_suite_run_holds(&f.run[1]));
    f.result[1][2].waived = f.result[1][3].waived = true;
    fmv_run_count(&f.run[1]);
    assert_true(fm_suite_run_holds(&f.run[1]));
    fm_suite_free(f.suite);
}

TEST(a_repeat_that_could_not_be_asked_is_an_error)
{
    static char why[] = "the engine gave up";
    fixture f;
    fill(&f);
    fm_case_result again[1] = {f.result[1][0]};
    fm_suite_run more = {.suite = f.suite, .result = again, .count = 1};
    assert_int_equal(f.result[1][0].verdict, FM_PASS);
    f.result[1][0].detail = NULL;
    again[0].verdict = FM_ERROR_CASE;
    again[0].detail = why;
    tk_ok(fm_suite_run_repeat(&f.run[1], &more));
    assert_int_equal(f.result[1][0].verdict, FM_ERROR_CASE);
    assert_false(f.result[1][0].flaky);
    assert_string_equal(f.result[1][0].detail, why);
    again[0].verdict = FM_PASS; /* a later pass mends nothing */
    tk_ok(fm_suite_run_repeat(&f.run[1], &more));
    assert_int_equal(f.result[1][0].verdict, FM_ERROR_CASE);
    assert_false(f.result[1][0].flaky);
    assert_false(fm_suite_run_holds(&f.run[1]));
    fm_free(f.result[1][0].detail);
    fm_suite_free(f.suite);
}

TEST(joined_runs_stand_in_the_order_of_the_suite)
{
    fixture f;
    fill(&f);
    fm_suite_run run = {0},
                 more[2] = {{.suite = f.suite, .count = 1}, {.suite = f.suite, .count = 2}};
    more[0].result = fm_memdup(&f.result[1][2], sizeof f.result[1][2]);
    more[1].result = fm_memdup(&f.result[1][0], 2 * sizeof f.result[1][0]);
    tk_ok(fm_suite_run_join(&run, &more[0]));
    tk_ok(fm_suite_run_join(&run, &more[1]));
    assert_int_equal(run.count, 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(run.result[i].at, i);
    assert_int_equal(run.passed, 1);
    assert_null(more[1].result);
    fm_free(run.result);
    fm_suite_free(f.suite);
}

static size_t times(const char *text, const char *needle)
{
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, needle)); p += strlen(needle))
        n++;
    return n;
}

TEST(html_keeps_strangers_text_as_text)
{
    fixture f;
    fm_buf out, again;
    char label[] = HOSTILE;
    fm_answer_token token = {label, -0.5};
    fill(&f);
    fm_answer_tokens tokens = {&f.result[1][1], &token, 1};
    f.report.tokens = &tokens;
    f.report.token_count = 1;
    fm_buf_init(&out, 0);
    fm_buf_init(&again, 0);
    tk_ok(fm_report_html(&out, &f.report));
    const char *page = fm_buf_cstr(&out);
    assert_null(strstr(page, "<script"));
    assert_null(strstr(page, "\" onload"));
    assert_null(strstr(page, "\x01"));
    assert_null(strstr(page, "\xff"));
    assert_null(strstr(page, "http")); /* and no link at all: */
    assert_null(strstr(page, "href"));
    assert_null(strstr(page, "src="));
    assert_int_equal(times(page, "<td class=\"cell n\""), 4);
    assert_int_equal(times(page, "class=\"dot blue\""), 2);
    assert_int_equal(times(page, "class=\"tok p2\""), 1); /* exp(-0.5) = 0.61 */
    assert_int_equal(times(page, "<section class=\"case\">"), 3);
    assert_non_null(strstr(page, "&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert_true(strstr(page, "d</h3>") < strstr(page, "inv</h3>")); /* the one with a score first */
    tk_ok(fm_report_html(&again, &f.report));
    assert_int_equal(out.len, again.len);
    assert_memory_equal(out.data, again.data, out.len);
    fm_buf_release(&out);
    fm_buf_release(&again);
    fm_suite_free(f.suite);
}

/* The fields that the schema of SARIF 2.1.0 requires: log: version, runs; run: tool; tool: driver;
 * driver: name; rule: id; result: message; and the ones that viewers lean on. */
TEST(sarif_has_what_its_schema_requires)
{
    fixture f;
    fm_buf out;
    fm_json *log = NULL;
    fill(&f);
    f.result[1][1].flaky = true;
    fm_buf_init(&out, 0);
    tk_ok(fm_report_sarif(&out, &f.report));
    tk_ok(fm_json_parse(&log, fm_buf_span(&out), "sarif"));
    assert_string_equal(fm_json_cstr(fm_json_get(log, "version"), ""), "2.1.0");
    assert_int_equal(fm_json_count(fm_json_get(log, "runs")), 1);
    const fm_json *run = fm_json_at(fm_json_get(log, "runs"), 0);
    const fm_json *rules = fm_json_path(run, "tool.driver.rules");
    const fm_json *results = fm_json_get(run, "results");
    assert_string_equal(fm_json_cstr(fm_json_path(run, "tool.driver.name"), ""), "fmstore");
    assert_int_equal(fm_json_count(rules), 3);
    assert_int_equal(fm_json_count(results), 3);
    for (size_t i = 0; i < 3; i++) {
        const fm_json *r = fm_json_at(results, i), *rule = fm_json_at(rules, i);
        assert_int_equal(fm_json_int(fm_json_get(r, "ruleIndex"), -1), (int64_t)i);
        assert_string_equal(fm_json_cstr(fm_json_get(r, "ruleId"), "x"),
                            fm_json_cstr(fm_json_get(rule, "id"), "y"));
        assert_true(fm_json_cstr(fm_json_path(r, "message.text"), "")[0]);
        assert_string_equal(fm_json_cstr(fm_json_get(r, "level"), ""), "error");
        const fm_json *place = fm_json_at(fm_json_get(r, "locations"), 0);
        assert_string_equal(
            fm_json_cstr(fm_json_path(place, "physicalLocation.artifactLocation.uri"), ""),
            "suites/s.yaml");
        assert_int_equal(fm_json_count(fm_json_get(r, "suppressions")), i == 0);
    }
    fm_json_free(log);
    fm_buf_release(&out);
    fm_suite_free(f.suite);
}

TEST(markdown_and_tap_keep_their_lines)
{
    fixture f;
    fm_buf out;
    fill(&f);
    f.result[1][1].flaky = true;
    f.result[1][1].repeats = 3;
    f.result[1][1].repeats_passed = 1;
    fm_buf_init(&out, 0);
    tk_ok(fm_report_markdown(&out, &f.report));
    const char *text = fm_buf_cstr(&out);
    assert_null(strstr(text, "<script"));
    assert_int_equal(times(text, "\n| "), 3); /* head and two versions: no name made a row */
    assert_int_equal(times(text, "\n- "), 3);
    assert_int_equal(times(text, "\n- flaky "), 1);
    for (const char *row = strstr(text, "\n| "); row; row = strstr(row + 1, "\n| ")) {
        size_t bars = 0;
        for (const char *p = row + 1; *p && *p != '\n'; p++)
            bars += *p == '|' && p[-1] != '\\';
        assert_int_equal(bars, 9);
    }
    fm_buf_clear(&out);
    tk_ok(fm_report_tap(&out, &f.report));
    text = fm_buf_cstr(&out);
    assert_memory_equal(text, "TAP version 14\n1..4\nok 1 - s/a\n", 31);
    assert_int_equal(times(text, "\nnot ok "), 3);
    assert_int_equal(times(text, " # TODO flaky: 1 of 3"), 1);
    assert_int_equal(times(text, " # "), 1);
    fm_buf_release(&out);
    fm_suite_free(f.suite);
}

TEST(junit_skips_what_is_set_apart)
{
    fixture f;
    fm_buf out;
    fill(&f);
    f.result[1][1].flaky = true;
    f.result[1][1].repeats = 3;
    f.result[1][1].repeats_passed = 1;
    fm_buf_init(&out, 0);
    tk_ok(fm_report_junit(&out, &f.run[1], 1, "m"));
    const char *text = fm_buf_cstr(&out);
    assert_non_null(strstr(text, "tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"1\""));
    assert_int_equal(times(text, "<skipped message=\"flaky: 1 of 3 repeats passed\"/>"), 1);
    assert_int_equal(times(text, "<property name=\"flaky\" value=\"true\"/>"), 1);
    assert_int_equal(times(text, "<failure "), 1);
    fm_buf_release(&out);
    fm_suite_free(f.suite);
}

TEST(measures_are_told_in_every_form)
{
    static char why[] = "0.25 is below 0.5";
    fm_measure_result m[] = {{.name = HOSTILE, .value = 0.25, .low = 0.1, .high = 0.5, .count = 4},
                             {.name = "rate", .value = 0.75, .low = 0.3, .high = 0.9, .count = 4}};
    fixture f;
    fm_buf out;
    fill(&f);
    for (size_t i = 0; i < 4; i++)
        f.result[1][i].verdict = FM_PASS;
    fmv_run_count(&f.run[1]);
    f.run[1].measure = m;
    f.run[1].measure_count = 2;
    assert_true(fm_suite_run_holds(&f.run[1]));
    m[0].verdict = FM_FAIL;
    m[0].detail = why;
    assert_false(fm_suite_run_holds(&f.run[1]));
    fm_buf_init(&out, 0);
    tk_ok(fm_report_html(&out, &f.report));
    assert_int_equal(times(fm_buf_cstr(&out), "<span class=\"bad\">fail</span>"), 1);
    assert_non_null(strstr(fm_buf_cstr(&out), "0.25 (0.1 to 0.5)"));
    assert_null(strstr(fm_buf_cstr(&out), "<script"));
    fm_buf_clear(&out);
    tk_ok(fm_report_tap(&out, &f.report));
    assert_memory_equal(fm_buf_cstr(&out), "TAP version 14\n1..6\n", 20);
    assert_int_equal(times(fm_buf_cstr(&out), "\nnot ok 5 - s/measure: "), 1);
    fm_buf_clear(&out);
    tk_ok(fm_report_markdown(&out, &f.report));
    assert_int_equal(times(fm_buf_cstr(&out), "\n- measure fails s/"), 1);
    assert_int_equal(times(fm_buf_cstr(&out), "\n- measure holds s/rate: 0.75"), 1);
    fm_buf_clear(&out);
    tk_ok(fm_report_junit(&out, &f.run[1], 1, "m"));
    assert_non_null(strstr(fm_buf_cstr(&out), "tests=\"6\" failures=\"1\" errors=\"0\""));
    fm_buf_clear(&out);
    tk_ok(fm_report_sarif(&out, &f.report));
    assert_int_equal(times(fm_buf_cstr(&out), "\"ruleId\""), 1);
    assert_non_null(strstr(fm_buf_cstr(&out), why));
    fm_buf_release(&out);
    fm_suite_free(f.suite);
}

/* Every allocation fails once: the text of the error, no leak (under the sanitizers), no half
 * page. */
TEST(an_allocation_that_fails_is_reported)
{
    fm_status (*const form[])(fm_buf *, const fm_report *) = {fm_report_html, fm_report_sarif,
                                                              fm_report_markdown, fm_report_tap};
    fixture f;
    fill(&f);
    for (size_t i = 0; i < FM_ARRAY_LEN(form); i++) {
        fm_status rc = FM_ENOMEM;
        for (uint64_t nth = 1; rc == FM_ENOMEM && nth < 3000; nth++) {
            fm_buf out;
            fm_buf_init(&out, 0);
            fm_mem_fail_at(nth, false);
            rc = form[i](&out, &f.report);
            fm_mem_fail_at(0, false);
            assert_true(rc == FM_OK || rc == FM_ENOMEM);
            fm_buf_release(&out);
        }
        assert_int_equal(rc, FM_OK);
    }
    fm_suite_free(f.suite);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrix_counts_by_capability_and_kind),
        cmocka_unit_test(change_pairs_by_name_whatever_the_order),
        cmocka_unit_test(grades_tell_of_changes_that_flip_nothing),
        cmocka_unit_test(repeats_that_disagree_are_flaky_and_counted_apart),
        cmocka_unit_test(a_repeat_that_could_not_be_asked_is_an_error),
        cmocka_unit_test(joined_runs_stand_in_the_order_of_the_suite),
        cmocka_unit_test(html_keeps_strangers_text_as_text),
        cmocka_unit_test(sarif_has_what_its_schema_requires),
        cmocka_unit_test(markdown_and_tap_keep_their_lines),
        cmocka_unit_test(junit_skips_what_is_set_apart),
        cmocka_unit_test(measures_are_told_in_every_form),
        cmocka_unit_test(an_allocation_that_fails_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
