/* Measures over a suite: values against figures of plain Python (formulae of Naeini 2015, Brier
 * 1950, Wilson 1927, Newcombe 1998), bounds, groups, slices, and what is refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "testing/suite/internal.h"
#include "tests/testkit.h"

static void refused(const char *measure, const char *needle)
{
    char yaml[2048];
    fm_suite *s = NULL;
    snprintf(yaml, sizeof yaml,
             "suite: s\nmeasures:\n  - {%s}\ncases:\n"
             "  - {name: a, prompt: p, expect: {contains: x}, tags: {g: f}}\n"
             "  - {name: b, prompt: p, choices: [x, y], answer: x, tags: {g: f}}\n",
             measure);
    tk_fails(fm_suite_parse(&s, fm_span_str(yaml), "f.yaml"), FM_EINVAL, needle);
    assert_non_null(strstr(fm_error_text(), "f.yaml: measures[0]"));
}

TEST(bad_measures_are_refused)
{
    refused("measure: speed, at-least: 0.5", "unknown measure 'speed'");
    refused("measure: accuracy", "'at-least' or 'at-most'");
    refused("measure: accuracy, at-least: 1.5", "'at-least' wants a number, 0 to 1");
    refused("measure: accuracy, at-least: 0", "every value keeps this bound");
    refused("measure: gap, by: g, at-most: 1", "every value keeps this bound");
    refused("measure: accuracy, at-least: 0.9, at-most: 0.8", "nothing is both");
    refused("measure: accuracy, at-least: 0.9, overr: {a: b}", "unknown key 'overr'");
    refused("measure: accuracy, at-least: 0.9, over: {a: b}", "over 0 cases");
    refused("measure: accuracy, at-least: 0.9, over: []", "'over' wants");
    refused("measure: accuracy, at-least: 0.9, min-count: 2", "over 1 cases");
    refused("measure: accuracy, at-least: 0.9, bins: 5", "'bins' says nothing");
    refused("measure: accuracy, at-least: 0.9, by: g", "go with gap and ratio");
    refused("measure: accuracy, at-least: 0.9, confidence: 95", "'confidence' wants");
    refused("measure: accuracy, at-least: 0.9, surely: 1", "'surely'");
    refused("measure: gap, at-most: 0.9", "'by' wants");
    refused("measure: gap, by: g, of: brier, at-most: 0.9", "'of' wants");
    refused("measure: gap, by: g, at-most: 0.9", "makes no two groups");
    refused("measure: gap, by: h, at-most: 0.9", "over 0 cases");
    refused("just: text", "want a mapping with 'measure'");
}

/* Eight choice cases of two groups; with the results below. */
static fm_suite *eight(const char *measures)
{
    fm_suite *s = NULL;
    char *yaml = fm_asprintf(
        "suite: s\nmeasures:\n%stemplates:\n"
        "  - {name: 'c{i}', prompt: p, choices: [x, y], answer: x, tags: {g: '{g}'}, slots: [\n"
        "     {i: 0, g: f}, {i: 1, g: f}, {i: 2, g: m}, {i: 3, g: f}, {i: 4, g: m},\n"
        "     {i: 5, g: m}, {i: 6, g: m}, {i: 7, g: f}]}\n",
        measures);
    tk_ok(fm_suite_parse(&s, fm_span_str(yaml), "f.yaml"));
    fm_free(yaml);
    return s;
}

static const bool won[8] = {1, 1, 0, 1, 0, 0, 1, 1};
static const double confidence[8] = {0.9, 0.8, 0.55, 0.65, 0.35, 0.95, 0.72, 0.41};
static const double brier[8] = {0.02, 0.08, 0.6, 0.25, 1.1, 1.805, 0.157, 0.7};
static const double nll[8] = {0.1, 0.5, 3, 0.4, 2.5, 4, 0.3, 0.9};
static const double tokens[8] = {1, 2, 3, 1, 2, 4, 1, 1};

static fm_suite_run taken(const fm_suite *s)
{
    fm_suite_run run = {.suite = s, .count = 8};
    run.result = fm_calloc(8, sizeof *run.result);
    for (size_t i = 0; i < 8; i++) {
        fm_case_result *r = &run.result[i];
        r->name = fm_suite_case_name(s, i);
        r->at = i;
        r->verdict = won[i] ? FM_PASS : FM_FAIL;
        r->answer = fm_strdup(won[i] ? "x" : "y");
        r->numbers = (fm_case_measures){NAN, confidence[i], brier[i], nll[i], tokens[i]};
    }
    tk_ok(fmv_measures_take(&run));
    return run;
}

static void value_is(const fm_measure_result *m, double value, double low, double high)
{
    tk_assert_le(fabs(m->value - value), 1e-9, m->name);
    if (!isnan(low)) {
        tk_assert_le(fabs(m->low - low), 1e-9, "low");
        tk_assert_le(fabs(m->high - high), 1e-9, "high");
    } else {
        assert_true(m->low <= m->value && m->value <= m->high && m->low < m->high);
    }
}

TEST(values_are_those_of_the_formulae)
{
    fm_suite *s = eight("  - {measure: pass-rate, at-least: 0.6}\n"
                        "  - {measure: accuracy, at-least: 0.7}\n"
                        "  - {measure: accuracy, name: sure, at-least: 0.6, surely: true}\n"
                        "  - {measure: calibration-error, at-most: 0.5}\n"
                        "  - {measure: brier, at-most: 0.5}\n"
                        "  - {measure: perplexity, at-most: 3}\n"
                        "  - {measure: gap, by: g, at-most: 0.4}\n"
                        "  - {measure: ratio, by: g, at-least: 0.2}\n"
                        "  - {measure: pass-rate, over: {g: f}, at-least: 0.9, min-count: 4}\n"
                        "  - {measure: gap, name: few, by: g, at-most: 0.8, min-count: 5}\n");
    assert_int_equal(fm_suite_measure_count(s), 10);
    fm_suite_run run = taken(s);
    const fm_measure_result *m = run.measure;
    assert_int_equal(run.measure_count, 10);
    value_is(&m[0], 0.625, 0.30574239460262737, 0.8631557141764026);
    value_is(&m[1], 0.625, 0.30574239460262737, 0.8631557141764026);
    value_is(&m[3], 0.42125, NAN, NAN);
    value_is(&m[4], 0.589, NAN, NAN);
    value_is(&m[5], 2.181472265498201, NAN, NAN);
    value_is(&m[6], 0.75, m[6].low, m[6].high);
    value_is(&m[7], 0.25, m[7].low, m[7].high);
    value_is(&m[8], 1, m[8].low, 1);
    static const fm_verdict want[10] = {FM_PASS, FM_FAIL, FM_FAIL, FM_PASS, FM_FAIL,
                                        FM_PASS, FM_FAIL, FM_PASS, FM_PASS, FM_ERROR_CASE};
    for (size_t i = 0; i < 10; i++) {
        assert_int_equal(m[i].verdict, want[i]);
        assert_int_equal(m[i].detail == NULL, want[i] == FM_PASS);
    }
    assert_string_equal(m[8].name, "pass-rate g=f");
    assert_string_equal(m[6].name, "gap of pass-rate by g");
    assert_int_equal(m[8].count, 4);
    assert_non_null(strstr(m[2].detail, "the interval is not at least 0.6: 0.625, 0.3057 to"));
    assert_non_null(strstr(m[6].detail, "f 4/4, m 1/4"));
    assert_non_null(strstr(m[9].detail, "has 4 cases, wanted are 5"));
    assert_false(fm_suite_measures_hold(&run));
    fm_json *j = fm_suite_measures_json(&run);
    assert_int_equal(fm_json_count(j), 10);
    assert_string_equal(fm_json_cstr(fm_json_get(fm_json_at(j, 1), "verdict"), ""), "fail");
    fm_json_free(j);
    fm_suite_run_release(&run);
    fm_suite_free(s);
}

/* Without a case that counts there is no value; with one group left, no gap. */
TEST(what_is_waived_leaves_no_value)
{
    fm_suite *s = eight("  - {measure: pass-rate, at-least: 0.6}\n"
                        "  - {measure: calibration-error, at-most: 0.5}\n"
                        "  - {measure: brier, at-most: 0.5}\n"
                        "  - {measure: perplexity, at-most: 3}\n"
                        "  - {measure: gap, by: g, at-most: 0.4}\n"
                        "  - {measure: ratio, by: g, at-least: 0.2}\n"
                        "  - {measure: pass-rate, name: many, at-least: 0.1, min-count: 5}\n"
                        "  - {measure: brier, name: more, at-most: 1.9, min-count: 5}\n");
    fm_suite_run run = taken(s);
    assert_int_equal(run.measure[6].verdict, FM_PASS);
    assert_int_equal(run.measure[7].verdict, FM_PASS);
    for (size_t i = 0; i < 8; i++)
        run.result[i].waived = strcmp(fm_suite_case_tag(s, i, "g"), "m") == 0;
    tk_ok(fmv_measures_take(&run));
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(run.measure[i].verdict == FM_ERROR_CASE, i >= 4);
    for (size_t i = 6; i < 8; i++)
        assert_string_equal(run.measure[i].detail,
                            "4 cases are neither waived nor flaky, wanted are 5");
    assert_non_null(strstr(run.measure[4].detail, "1 of the groups"));
    for (size_t i = 0; i < 8; i++)
        run.result[i].waived = true;
    tk_ok(fmv_measures_take(&run));
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(run.measure[i].verdict, FM_ERROR_CASE);
    assert_non_null(strstr(run.measure[1].detail, "0 cases are neither waived"));
    fm_suite_run_release(&run);
    fm_suite_free(s);
}

/* 1/4 against 3/4 by Newcombe's method 10, and at the confidence of three pairs. */
TEST(gaps_have_newcombes_interval)
{
    fm_suite *s = NULL;
    static const char tmpl[] =
        "suite: s\nmeasures: [{measure: gap, by: g, at-most: 0.9}]\ntemplates:\n"
        "  - {name: '{g}{i}', prompt: p, expect: {contains: x}, tags: {g: '{g}'}, slots: "
        "{g: [%s], i: [0, 1, 2, 3]}}\n";
    for (int groups = 2; groups <= 3; groups++) {
        char *yaml = fm_asprintf(tmpl, groups == 2 ? "f, m" : "f, m, n");
        tk_ok(fm_suite_parse(&s, fm_span_str(yaml), "f.yaml"));
        fm_free(yaml);
        fm_suite_run run = {.suite = s, .count = fm_suite_count(s)};
        run.result = fm_calloc(run.count, sizeof *run.result);
        for (size_t i = 0; i < run.count; i++)
            run.result[i].at = i;
        for (size_t i = 0; i < run.count; i++) /* f 1/4, m 3/4, n 2/4 */
            run.result[i].verdict = i % 4 < (i < 4   ? 1u
                                             : i < 8 ? 3u
                                                     : 2u)
                                        ? FM_PASS
                                        : FM_ERROR_CASE;
        tk_ok(fmv_measures_take(&run));
        if (groups == 2)
            value_is(run.measure, 0.5, -0.13548840058295153, 0.7890832680847557);
        else
            assert_true(run.measure->low < -0.2 && run.measure->high > 0.8);
        fm_suite_run_release(&run);
        fm_suite_free(s);
    }
}

TEST(what_was_not_run_flatters_no_mean)
{
    fm_suite *s = eight("  - {measure: perplexity, at-most: 3}\n"
                        "  - {measure: pass-rate, at-least: 0.6}\n"
                        "  - {measure: accuracy, at-least: 0.6}\n");
    fm_suite_run run = taken(s);
    run.result[0].verdict = FM_ERROR_CASE;
    tk_ok(fmv_measures_take(&run));
    assert_int_equal(run.measure[0].verdict, FM_ERROR_CASE);
    assert_non_null(strstr(run.measure[0].detail, "case 'c0' has no scores"));
    tk_assert_le(fabs(run.measure[1].value - 0.5), 0, "passed");
    tk_assert_le(fabs(run.measure[2].value - 0.5), 0, "right");
    fm_suite_run_release(&run);
    run = (fm_suite_run){.suite = s, .count = 1}; /* a selection has no measures */
    tk_ok(fmv_measures_take(&run));
    assert_null(run.measure);
    assert_true(fm_suite_measures_hold(&run));
    fm_suite_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_measures_are_refused),
        cmocka_unit_test(values_are_those_of_the_formulae),
        cmocka_unit_test(what_is_waived_leaves_no_value),
        cmocka_unit_test(gaps_have_newcombes_interval),
        cmocka_unit_test(what_was_not_run_flatters_no_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
