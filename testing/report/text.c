/* text.c - Markdown for a comment on a change, TAP 14 for test harnesses. */
#include <math.h>
#include <string.h>

#include "store/base/text/markup.h"
#include "testing/suite/internal.h"
#include "testing/report.h"

#define LISTED_MAX 50u
#define SHOWN_BYTES ((size_t)160)

/* Writes a text inside a cell or a line: on one line, with markup escaped. */
static void markdown(fm_buf *out, const char *text, size_t most, bool in_tag)
{
    fm_span s = fmv_clip(fm_span_str(text ? text : ""), FM_MIN(SHOWN_BYTES, most));
    (void)in_tag;
    for (size_t i = 0; i < s.len; i++) {
        uint8_t c = s.data[i];
        if (c < 0x20 || c == 0x7F)
            fm_buf_char(out, ' ');
        else if (c == '<' || c == '>' || c == '&')
            fm_buf_str(out, c == '<' ? "&lt;" : c == '>' ? "&gt;" : "&amp;");
        else if (strchr("\\`*_{}[]()#+-.!|~@:$", c))
            fm_buf_printf(out, "\\%c", c);
        else
            fm_buf_append(out, &c, 1);
    }
    if (text && s.len < strlen(text))
        fm_buf_str(out, "\xE2\x80\xA6");
}

static void rate_rows(fm_buf *out, const fm_report *r, const fm_report_column *c)
{
    for (size_t k = 0; k < c->run_count; k++) {
        const fm_suite_run *run = &c->run[k];
        size_t n = run->count - run->flaky - run->waived;
        fm_interval i = fm_wilson(run->passed, n, r->confidence);
        fm_escaped(out, markdown, fm_suite_is_gate(run->suite) ? "| %s | %s (gate)" : "| %s | %s",
                   c->name, fm_suite_name(run->suite));
        fm_escaped(out, markdown, " | %zu | %zu | %zu | %zu | %zu |", run->passed, run->failed,
                   run->errors, run->flaky, run->waived);
        if (n)
            fm_escaped(out, markdown, " %.1f %% (%.1f to %.1f) |\n",
                       100 * (double)run->passed / (double)n, 100 * i.low, 100 * i.high);
        else
            fm_escaped(out, markdown, " none counts |\n");
    }
}

static void listed(fm_buf *out, const fm_suite *s, const fm_case_result *r)
{
    fm_escaped(out, markdown, "- %s %s/%s",
               r->flaky                ? "flaky"
               : r->waived             ? "waived"
               : r->verdict == FM_FAIL ? "failed"
                                       : "error",
               fm_suite_name(s), r->name);
    if (r->detail)
        fm_escaped(out, markdown, ": %s", r->detail);
    fm_buf_char(out, '\n');
}

static void listed_measure(fm_buf *out, const fm_suite_run *run, const fm_measure_result *m)
{
    static const char *const words[] = {"holds", "fails", "error"};
    fm_escaped(out, markdown, "- measure %s %s/%s", words[m->verdict], fm_suite_name(run->suite),
               m->name);
    if (isfinite(m->value))
        fm_escaped(out, markdown, ": %.4g (%.4g to %.4g) over %zu cases", m->value, m->low, m->high,
                   m->count);
    if (m->detail)
        fm_escaped(out, markdown, "; %s", m->detail);
    fm_buf_char(out, '\n');
}

fm_status fm_report_markdown(fm_buf *out, const fm_report *r)
{
    const fm_report_column *c = &r->column[r->shown];
    size_t all = 0;
    fm_escaped(out, markdown,
               "## %s\n\n| Version | Suite | Passed | Failed | Errors | Flaky | Waived | Pass rate "
               "(%g %% interval) |\n|---|---|---:|---:|---:|---:|---:|---|\n",
               r->title, 100 * r->confidence);
    for (size_t i = 0; i < r->count; i++)
        rate_rows(out, r, &r->column[i]);
    for (size_t k = 0; k < c->run_count; k++)
        for (size_t i = 0; i < c->run[k].count; i++) {
            const fm_case_result *one = &c->run[k].result[i];
            if (one->verdict == FM_PASS && !one->flaky)
                continue;
            if (all++ == 0)
                fm_buf_char(out, '\n');
            if (all <= LISTED_MAX)
                listed(out, c->run[k].suite, one);
        }
    if (all > LISTED_MAX)
        fm_escaped(out, markdown, "- and %zu more\n", all - LISTED_MAX);
    for (size_t k = 0; k < c->run_count; k++)
        for (size_t i = 0; i < c->run[k].measure_count; i++) {
            if (all++ == 0)
                fm_buf_char(out, '\n');
            listed_measure(out, &c->run[k], &c->run[k].measure[i]);
        }
    return fm_buf_ok(out);
}

/* Writes a description of TAP: one line, where '#' would begin a directive. */
static void tap(fm_buf *out, const char *text, size_t most, bool in_tag)
{
    (void)in_tag;
    for (const char *p = text ? text : ""; *p && most--; p++) {
        if (*p == '#' || *p == '\\')
            fm_buf_printf(out, "\\%c", *p);
        else
            fm_buf_char(out, (unsigned char)*p < 0x20 || *p == 0x7F ? ' ' : *p);
    }
}

static void tap_case(fm_buf *out, const fm_suite *s, const fm_case_result *r, size_t n)
{
    const fm_waiver *w = fm_suite_waiver(s, r->at);
    fm_escaped(out, tap, "%s %zu - %s/%s", r->verdict == FM_PASS ? "ok" : "not ok", n,
               fm_suite_name(s), r->name);
    if (r->flaky)
        fm_escaped(out, tap, " # TODO flaky: %u of %u repeats passed", r->repeats_passed,
                   r->repeats);
    else if (r->waived && r->verdict != FM_PASS)
        fm_escaped(out, tap, " # TODO waived: %s", w ? w->reason : "");
    fm_buf_char(out, '\n');
    if (r->verdict != FM_PASS && r->detail)
        fm_escaped(out, tap, "# %s\n", r->detail);
}

static void tap_measure(fm_buf *out, const fm_suite *s, const fm_measure_result *m, size_t n)
{
    fm_escaped(out, tap, "%s %zu - %s/measure: %s\n", m->verdict == FM_PASS ? "ok" : "not ok", n,
               fm_suite_name(s), m->name);
    if (m->verdict != FM_PASS && m->detail)
        fm_escaped(out, tap, "# %s\n", m->detail);
}

fm_status fm_report_tap(fm_buf *out, const fm_report *r)
{
    const fm_report_column *c = &r->column[r->shown];
    size_t n = 0;
    for (size_t k = 0; k < c->run_count; k++)
        n += c->run[k].count + c->run[k].measure_count;
    fm_escaped(out, tap, "TAP version 14\n1..%zu\n", n);
    n = 0;
    for (size_t k = 0; k < c->run_count; k++) {
        const fm_suite_run *run = &c->run[k];
        for (size_t i = 0; i < run->count; i++)
            tap_case(out, run->suite, &run->result[i], ++n);
        for (size_t i = 0; i < run->measure_count; i++)
            tap_measure(out, run->suite, &run->measure[i], ++n);
    }
    return fm_buf_ok(out);
}
