/* report.c - a run as JSON and as JUnit XML. */
#include <math.h>
#include <string.h>

#include "store/base/text/markup.h"
#include "testing/suite/internal.h"

static const char *const verdicts[] = {"pass", "fail", "error"};

static fm_json *waiver_json(const fm_waiver *w)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;
    fm_json_put(&rc, o, "reason", fm_json_new_str(w ? w->reason : ""));
    if (w && w->until)
        fm_json_put(&rc, o, "until", fm_json_new_str(w->until));
    if (w && w->owner)
        fm_json_put(&rc, o, "owner", fm_json_new_str(w->owner));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

static fm_json *case_json(const fm_suite *s, const fm_case_result *r)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;
    fm_json_put(&rc, o, "name", fm_json_new_str(r->name));
    fm_json_put(&rc, o, "kind", fm_json_new_str(fmv_case_kind_name(s, r->at)));
    fm_json_put(&rc, o, "capability", fm_json_new_str(fmv_case_capability(s, r->at)));
    fm_json_put(&rc, o, "verdict", fm_json_new_str(verdicts[r->verdict]));
    fm_json_put(&rc, o, "output", fm_json_new_str(r->output));
    if (r->answer)
        fm_json_put(&rc, o, "answer", fm_json_new_str(r->answer));
    if (r->detail)
        fm_json_put(&rc, o, "detail", fm_json_new_str(r->detail));
    if (!isnan(r->score))
        fm_json_put(&rc, o, "score", fm_json_new_real(r->score));
    if (r->metrics)
        fm_json_put(&rc, o, "metrics", fm_json_ref(r->metrics));
    fm_json_put(&rc, o, "cached", fm_json_new_bool(r->cached));
    if (r->waived)
        fm_json_put(&rc, o, "waived", waiver_json(fm_suite_waiver(s, r->at)));
    if (r->repeats) {
        fm_json_put(&rc, o, "flaky", fm_json_new_bool(r->flaky));
        fm_json_put(&rc, o, "repeats", fm_json_new_int(r->repeats));
        fm_json_put(&rc, o, "repeats_passed", fm_json_new_int(r->repeats_passed));
    }
    if (r->quarantined)
        fm_json_put(&rc, o, "quarantined", fm_json_new_bool(true));
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

fm_json *fm_suite_run_json(const fm_suite_run *run)
{
    fm_json *o = fm_json_new_object(), *cases = fm_json_new_array();
    fm_status rc = o && cases ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < run->count; i++)
        rc = fm_json_push(cases, case_json(run->suite, &run->result[i]));
    fm_json_put(&rc, o, "suite", fm_json_new_str(run->suite->name));
    fm_json_put(&rc, o, "gate", fm_json_new_bool(run->suite->policy.gate));
    fm_json_put(&rc, o, "passed", fm_json_new_int((int64_t)run->passed));
    fm_json_put(&rc, o, "failed", fm_json_new_int((int64_t)run->failed));
    fm_json_put(&rc, o, "errors", fm_json_new_int((int64_t)run->errors));
    fm_json_put(&rc, o, "flaky", fm_json_new_int((int64_t)run->flaky));
    fm_json_put(&rc, o, "waived", fm_json_new_int((int64_t)run->waived));
    fm_json_put(&rc, o, "seconds", fm_json_new_real(run->seconds));
    if (run->measure_count)
        fm_json_put(&rc, o, "measures", fm_suite_measures_json(run));
    fm_json_put(&rc, o, "cases", cases);
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

/* Waived and flaky cases are skipped, with the reason, so that every reader shows them. */
static bool junit_skipped(fm_buf *out, const fm_suite *s, const fm_case_result *r)
{
    const fm_waiver *w = r->waived && r->verdict != FM_PASS ? fm_suite_waiver(s, r->at) : NULL;
    if (r->flaky)
        fm_markup(out, "<skipped message=\"flaky: %u of %u repeats passed\"/>", r->repeats_passed,
                  r->repeats);
    else if (w)
        fm_markup(out, "<skipped message=\"waived: %s\"/>", w->reason);
    return r->flaky || w;
}

static void junit_properties(fm_buf *out, const fm_case_result *r)
{
    if (r->repeats)
        fm_markup(out,
                  "<properties><property name=\"flaky\" value=\"%s\"/><property "
                  "name=\"repeats\" value=\"%u\"/><property name=\"repeats_passed\" "
                  "value=\"%u\"/></properties>",
                  r->flaky ? "true" : "false", r->repeats, r->repeats_passed);
}

static void junit_case(fm_buf *out, const fm_suite *s, const fm_case_result *r,
                       const char *model_name)
{
    const char *kind = r->verdict == FM_FAIL ? "failure" : "error";
    fm_markup(out, "    <testcase classname=\"%s\" name=\"%s\">", model_name, r->name);
    junit_properties(out, r);
    if (!junit_skipped(out, s, r) && r->verdict != FM_PASS)
        fm_markup(out, "<%s message=\"%s\">%s</%s>", kind, r->detail, r->output, kind);
    fm_markup(out, "</testcase>\n");
}

/* A measure is a test case of its own, so that a broken bound is not lost. */
static void junit_measure(fm_buf *out, const fm_measure_result *m, const char *model_name)
{
    const char *kind = m->verdict == FM_FAIL ? "failure" : "error";
    fm_markup(out, "    <testcase classname=\"%s\" name=\"measure: %s\">", model_name, m->name);
    if (m->verdict != FM_PASS)
        fm_markup(out, "<%s message=\"%s\"/>", kind, m->detail);
    fm_markup(out, "</testcase>\n");
}

static void junit_suite(fm_buf *out, const fm_suite_run *run, const char *model_name)
{
    size_t failed = 0, errors = 0, skipped = 0;
    for (size_t i = 0; i < run->count; i++) {
        const fm_case_result *r = &run->result[i];
        bool skip = r->flaky || (r->waived && r->verdict != FM_PASS);
        skipped += skip;
        failed += !skip && r->verdict == FM_FAIL;
        errors += !skip && r->verdict == FM_ERROR_CASE;
    }
    for (size_t i = 0; i < run->measure_count; i++) {
        failed += run->measure[i].verdict == FM_FAIL;
        errors += run->measure[i].verdict == FM_ERROR_CASE;
    }
    fm_markup(out, "  <testsuite name=\"%s\" tests=\"%zu\" failures=\"%zu\" errors=\"%zu\"",
              run->suite->name, run->count + run->measure_count, failed, errors);
    if (skipped)
        fm_markup(out, " skipped=\"%zu\"", skipped);
    fm_markup(out, " time=\"%.3f\">\n", run->seconds);
    for (size_t i = 0; i < run->count; i++)
        junit_case(out, run->suite, &run->result[i], model_name);
    for (size_t i = 0; i < run->measure_count; i++)
        junit_measure(out, &run->measure[i], model_name);
    fm_markup(out, "  </testsuite>\n");
}

fm_status fm_report_junit(fm_buf *out, const fm_suite_run *runs, size_t n, const char *model_name)
{
    fm_markup(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for (size_t i = 0; i < n; i++)
        junit_suite(out, &runs[i], model_name);
    fm_markup(out, "</testsuites>\n");
    return fm_buf_ok(out);
}
