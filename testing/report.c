/* report.c - a run as JSON and as JUnit XML. */
#include <math.h>
#include <string.h>

#include "store/base/markup.h"
#include "testing/internal.h"

static const char *const verdicts[] = {"pass", "fail", "error"};

static fm_status set_or_free(fm_status rc, fm_json *obj, const char *key, fm_json *value)
{
    if (rc == FM_OK)
        return fm_json_set(obj, key, value);
    fm_json_free(value);
    return rc;
}

static fm_json *case_json(const fm_case_result *r)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? FM_OK : FM_ENOMEM;
    rc = set_or_free(rc, o, "name", fm_json_new_str(r->name));
    rc = set_or_free(rc, o, "verdict", fm_json_new_str(verdicts[r->verdict]));
    rc = set_or_free(rc, o, "output", fm_json_new_str(r->output));
    if (r->answer)
        rc = set_or_free(rc, o, "answer", fm_json_new_str(r->answer));
    if (r->detail)
        rc = set_or_free(rc, o, "detail", fm_json_new_str(r->detail));
    if (!isnan(r->score))
        rc = set_or_free(rc, o, "score", fm_json_new_real(r->score));
    rc = set_or_free(rc, o, "cached", fm_json_new_bool(r->cached));
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
        rc = fm_json_push(cases, case_json(&run->result[i]));
    rc = set_or_free(rc, o, "suite", fm_json_new_str(run->suite->name));
    rc = set_or_free(rc, o, "gate", fm_json_new_bool(run->suite->policy.gate));
    rc = set_or_free(rc, o, "passed", fm_json_new_int((int64_t)run->passed));
    rc = set_or_free(rc, o, "failed", fm_json_new_int((int64_t)run->failed));
    rc = set_or_free(rc, o, "errors", fm_json_new_int((int64_t)run->errors));
    rc = set_or_free(rc, o, "seconds", fm_json_new_real(run->seconds));
    rc = set_or_free(rc, o, "cases", cases);
    if (rc == FM_OK)
        return o;
    fm_json_free(o);
    return NULL;
}

static void junit_suite(fm_buf *out, const fm_suite_run *run, const char *model_name)
{
    fm_buf_str(out, "  <testsuite name=\"");
    fm_markup_attr(out, run->suite->name);
    fm_buf_printf(out, "\" tests=\"%zu\" failures=\"%zu\" errors=\"%zu\" time=\"%.3f\">\n",
                  run->count, run->failed, run->errors, run->seconds);
    for (size_t i = 0; i < run->count; i++) {
        const fm_case_result *r = &run->result[i];
        fm_buf_str(out, "    <testcase classname=\"");
        fm_markup_attr(out, model_name);
        fm_buf_str(out, "\" name=\"");
        fm_markup_attr(out, r->name);
        fm_buf_str(out, "\">");
        if (r->verdict != FM_PASS) {
            fm_buf_printf(out, "<%s message=\"", r->verdict == FM_FAIL ? "failure" : "error");
            fm_markup_attr(out, r->detail);
            fm_buf_str(out, "\">");
            fm_markup_attr(out, r->output);
            fm_buf_printf(out, "</%s>", r->verdict == FM_FAIL ? "failure" : "error");
        }
        fm_buf_str(out, "</testcase>\n");
    }
    fm_buf_str(out, "  </testsuite>\n");
}

fm_status fm_report_junit(fm_buf *out, const fm_suite_run *runs, size_t n, const char *model_name)
{
    fm_buf_str(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for (size_t i = 0; i < n; i++)
        junit_suite(out, &runs[i], model_name);
    fm_buf_str(out, "</testsuites>\n");
    return fm_buf_ok(out);
}
