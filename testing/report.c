/* report.c - a run as JSON and as JUnit XML. */
#include <math.h>
#include <string.h>

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
    if (r->metrics)
        rc = set_or_free(rc, o, "metrics", fm_json_ref(r->metrics));
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
    rc = set_or_free(rc, o, "gate", fm_json_new_bool(run->suite->gate));
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

/* Bytes of the code point at p that XML 1.0 can hold, 0: it cannot, or it is no UTF-8. */
static size_t xml_char(const uint8_t *p, size_t left)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = p[0] < 0x80 ? 1 : p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
    uint32_t c = n == 1 ? p[0] : p[0] & (0x7Fu >> n);
    if (n > left || p[0] >= 0xF8 || (p[0] >= 0x80 && p[0] < 0xC0))
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3Fu);
    }
    bool held = c >= least[n] && c <= 0x10FFFF && !(c >= 0xD800 && c < 0xE000) &&
                (c & ~1u) != 0xFFFE && (c >= 0x20 || c == '\n' || c == '\t' || c == '\r');
    return held ? n : 0;
}

/* Text of an attribute or an element: markup escaped, white space that a parser would fold kept by
 * reference, what XML cannot hold as U+FFFD. */
static void xml_text(fm_buf *out, const char *text)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t left = text ? strlen(text) : 0, n;
    for (; left; p += n, left -= n) {
        n = xml_char(p, left);
        if (n == 0) {
            fm_buf_str(out, "\xEF\xBF\xBD");
            n = 1;
        } else if (*p == '<') {
            fm_buf_str(out, "&lt;");
        } else if (*p == '>') {
            fm_buf_str(out, "&gt;");
        } else if (*p == '&') {
            fm_buf_str(out, "&amp;");
        } else if (*p == '"') {
            fm_buf_str(out, "&quot;");
        } else if (*p < 0x20) {
            fm_buf_printf(out, "&#%u;", (unsigned)*p);
        } else {
            fm_buf_append(out, p, n);
        }
    }
}

static void junit_suite(fm_buf *out, const fm_suite_run *run, const char *model_name)
{
    fm_buf_str(out, "  <testsuite name=\"");
    xml_text(out, run->suite->name);
    fm_buf_printf(out, "\" tests=\"%zu\" failures=\"%zu\" errors=\"%zu\" time=\"%.3f\">\n",
                  run->count, run->failed, run->errors, run->seconds);
    for (size_t i = 0; i < run->count; i++) {
        const fm_case_result *r = &run->result[i];
        fm_buf_str(out, "    <testcase classname=\"");
        xml_text(out, model_name);
        fm_buf_str(out, "\" name=\"");
        xml_text(out, r->name);
        fm_buf_str(out, "\">");
        if (r->verdict != FM_PASS) {
            fm_buf_printf(out, "<%s message=\"", r->verdict == FM_FAIL ? "failure" : "error");
            xml_text(out, r->detail);
            fm_buf_str(out, "\">");
            xml_text(out, r->output);
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
