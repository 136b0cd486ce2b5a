/* html.c - the report as one HTML file: pictures, and a table with the same figures beside
 * each. No script, no link, no font from elsewhere; the reader's colour scheme decides. */
#include <math.h>
#include <string.h>

#include "store/base/text/markup.h"
#include "store/base/mem.h"
#include "testing/report/page.h"

#define WORST_MAX 12u
#define FLIPS_MAX 200u  /* rows of the table of flips */
#define CASES_MAX 2000u /* rows of the table of all cases */
#define DRAWS_MAX                                                                                  \
    ((size_t)200000000) /* of the bootstraps of a page: a long lineage has fewer each */

static const char style[] =
    "<style>\n"
    ":root{color-scheme:light dark;--paper:#fff;--ink:#1d1f23;--soft:#5c6370;--rule:#d5d8de;"
    "--code:#f3f4f6;--good:#2f9e5b;--bad:#d64545;--dot:#2a6fc4}\n"
    "@media (prefers-color-scheme:dark){:root{--paper:#16181b;--ink:#e3e5e8;--soft:#9aa1ac;"
    "--rule:#3a3f47;--code:#22252a;--good:#43b872;--bad:#e86a6a;--dot:#6cb0ff}}\n"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1040px;margin:2em auto;padding:0 1em;"
    "background:var(--paper);color:var(--ink);overflow-wrap:break-word}\n"
    "h1{font-size:1.5em}h2{font-size:1.15em;margin:1.8em 0 .4em}p.soft,.soft{color:var(--soft)}\n"
    "table{border-collapse:collapse;margin:.5em 0}th,td{padding:.2em .9em .2em 0;text-align:left;"
    "vertical-align:top;border-bottom:1px solid var(--rule)}td.n,th.n{text-align:right}\n"
    "th,td.n{white-space:nowrap}.t{overflow-wrap:anywhere;min-width:5em}"
    "code{white-space:pre-wrap}\n"
    ".wide{overflow-x:auto}details{margin:.4em 0}summary{cursor:pointer;color:var(--soft)}\n"
    "pre{white-space:pre-wrap;background:var(--code);padding:.5em .7em;margin:.3em 0}\n"
    "svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .in{fill:#111;font-weight:600}\n"
    "svg .grid{stroke:var(--rule)}svg .axis{stroke:var(--soft)}\n"
    "svg .whisker{stroke:var(--dot);stroke-width:2}svg .dot{fill:var(--dot)}\n"
    "svg .fixed{fill:var(--good)}svg .broken{fill:var(--bad)}svg .none{fill:var(--rule)}\n"
    "svg .s0{fill:#e5484d}svg .s1{fill:#e8644f}svg .s2{fill:#eb7d51}svg .s3{fill:#ee9554}"
    "svg .s4{fill:#f1ad57}svg .s5{fill:#f2c25c}svg .s6{fill:#dcc35f}svg .s7{fill:#c0c164}"
    "svg .s8{fill:#a3be69}svg .s9{fill:#83ba6f}svg .s10{fill:#57b374}\n"
    ".tok{border-bottom:3px solid var(--good);white-space:pre-wrap}.tok.p0{border-color:var(--bad)}"
    ".tok.p1{border-color:#e0913a}.tok.p2{border-color:#c9b23c}.v-pass{color:var(--good)}"
    ".v-fail,.v-error{color:var(--bad)}.v-flaky,.v-waived{color:var(--soft)}\n"
    "</style>\n";

/* What a case is told as: its verdict, unless it is set apart. */
static const char *told(const fm_case_result *r)
{
    static const char *const verdicts[] = {"pass", "fail", "error"};
    if (r->flaky)
        return "flaky";
    return r->waived && r->verdict != FM_PASS ? "waived" : verdicts[r->verdict];
}

static void cell(fm_buf *out, const char *text)
{
    fm_buf_str(out, "<td class=\"t\">");
    fm_markup_text(out, text);
    fm_buf_str(out, "</td>");
}

static void verdict_cell(fm_buf *out, const fm_case_result *r)
{
    fm_buf_printf(out, "<td class=\"v-%s\">%s", told(r), told(r));
    if (r->repeats)
        fm_buf_printf(out, " (%u of %u passed)", r->repeats_passed, r->repeats);
    fm_buf_str(out, "</td>");
}

static void versions_table(fm_buf *out, const fmv_page *p)
{
    const fm_report *r = p->report;
    fm_buf_printf(
        out,
        "<div class=\"wide\"><table "
        "id=\"versions\"><tr><th>Version</th><th>Commit</th><th>From</th>"
        "<th class=\"n\">Passed</th><th class=\"n\">Failed</th><th class=\"n\">Errors</th>"
        "<th class=\"n\">Flaky</th><th class=\"n\">Waived</th><th>Pass rate "
        "(%g %% interval)</th></tr>\n",
        100 * r->confidence);
    for (size_t c = 0; c < r->count; c++) {
        const fm_matrix_cell *t = &p->total[c];
        fm_interval i = fmv_cell_interval(t, r->confidence);
        fm_buf_str(out, "<tr>");
        cell(out, r->column[c].name);
        fm_buf_printf(out, "<td><code>%.10s</code></td>", r->column[c].id);
        cell(out, r->column[c].note);
        fm_buf_printf(out,
                      "<td class=\"n\">%zu</td><td class=\"n\">%zu</td><td class=\"n\">%zu</td>"
                      "<td class=\"n\">%zu</td><td class=\"n\">%zu</td>",
                      t->passed, t->failed, t->errors, t->flaky, t->waived);
        if (isnan(fm_matrix_share(t)))
            fm_buf_str(out, "<td>none counts</td></tr>\n");
        else
            fm_buf_printf(out, "<td>%.1f %% (%.1f to %.1f)</td></tr>\n", 100 * fm_matrix_share(t),
                          100 * i.low, 100 * i.high);
    }
    fm_buf_str(out, "</table></div>\n");
}

static void matrix_table(fm_buf *out, const fmv_page *p)
{
    const fm_report *r = p->report;
    fm_buf_str(out, "<details><summary>The same as a table</summary><div class=\"wide\"><table "
                    "id=\"matrix-table\"><tr><th>Capability</th><th>Kind</th>");
    for (size_t c = 0; c < r->count; c++) {
        fm_buf_str(out, "<th class=\"n\">");
        fm_markup_text(out, r->column[c].name);
        fm_buf_str(out, "</th>");
    }
    fm_buf_str(out, "</tr>\n");
    for (size_t i = 0; i < p->matrix.count; i++) {
        const fm_matrix_row *row = &p->matrix.row[i];
        fm_buf_str(out, "<tr>");
        cell(out, row->capability);
        cell(out, row->kind);
        for (size_t c = 0; c < r->count; c++) {
            const fm_matrix_cell *m = &row->cell[c];
            if (m->count == 0) {
                fm_buf_str(out, "<td class=\"n\">not asked</td>");
                continue;
            }
            fm_buf_printf(out, "<td class=\"n\">%zu of %zu", m->passed,
                          m->count - m->flaky - m->waived);
            if (m->flaky)
                fm_buf_printf(out, ", %zu flaky", m->flaky);
            if (m->waived)
                fm_buf_printf(out, ", %zu waived", m->waived);
            fm_buf_str(out, "</td>");
        }
        fm_buf_str(out, "</tr>\n");
    }
    fm_buf_str(out, "</table></div></details>\n");
}

static void change_row(fm_buf *out, const fmv_page *p, size_t k)
{
    const fm_report *r = p->report;
    const fm_suite_change *c = &p->change[k];
    size_t column = p->change_column[k];
    const fm_estimate d = fm_suite_change_interval(c, r->confidence);
    fm_buf_str(out, "<tr>");
    cell(out, r->column[r->column[column].parent].name);
    cell(out, r->column[column].name);
    cell(out, fm_suite_name(c->now->suite));
    fm_buf_printf(out,
                  "<td class=\"n\">%zu</td><td class=\"n\">%zu</td><td class=\"n\">%zu</td>"
                  "<td class=\"n\">%+.1f (%+.1f to %+.1f)</td><td class=\"n\">%.3g</td>"
                  "<td class=\"n\">%.3g</td></tr>\n",
                  c->pairs, c->fixed, c->broken, 100 * d.value, 100 * d.low, 100 * d.high,
                  c->p_value, c->p_adjusted);
}

static void flip_rows(fm_buf *out, const fmv_page *p)
{
    size_t shown = 0, all = 0;
    fm_buf_str(out, "<details><summary>Which cases</summary><table id=\"flipped\"><tr><th>Version"
                    "</th><th>Case</th><th></th><th>Before</th><th>Now</th></tr>\n");
    for (size_t k = 0; k < p->changes; k++)
        for (size_t i = 0; i < p->change[k].flips; i++, all++) {
            const fm_flip *f = &p->change[k].flip[i];
            bool is = f->now->verdict == FM_PASS;
            if (shown == FLIPS_MAX)
                continue;
            shown++;
            fm_buf_str(out, "<tr>");
            cell(out, p->report->column[p->change_column[k]].name);
            fm_buf_printf(out, "<td>%s/", fm_suite_name(p->change[k].now->suite));
            fm_markup_text(out, f->now->name);
            fm_buf_printf(out, "</td><td class=\"v-%s\">%s</td>", is ? "pass" : "fail",
                          is ? "fixed" : "broken");
            cell(out, f->before->output);
            cell(out, f->now->output);
            fm_buf_str(out, "</tr>\n");
        }
    fm_buf_str(out, "</table>");
    if (shown < all)
        fm_buf_printf(out, "<p class=\"soft\">%zu more are in the JSON report.</p>", all - shown);
    fm_buf_str(out, "</details>\n");
}

static void flips_part(fm_buf *out, const fmv_page *p)
{
    if (!p->changes)
        return;
    fm_buf_str(out, "<h2>Flips between versions</h2>\n");
    fmv_chart_flips(out, p);
    fm_buf_printf(out,
                  "<div class=\"wide\"><table id=\"changes\"><tr><th>From</th><th>To</th><th>Suite"
                  "</th><th class=\"n\">Pairs</th><th class=\"n\">Fixed</th><th class=\"n\">Broken"
                  "</th><th class=\"n\">Difference in points (%g %%)</th><th class=\"n\">McNemar p"
                  "</th><th class=\"n\">adjusted</th></tr>\n",
                  100 * p->report->confidence);
    for (size_t k = 0; k < p->changes; k++)
        change_row(out, p, k);
    fm_buf_str(out, "</table></div>\n");
    flip_rows(out, p);
}

/* The common range of all finite scores; false: there are none. */
static bool score_range(const fm_report *r, double *low, double *high)
{
    *low = (double)INFINITY;
    *high = -(double)INFINITY;
    for (size_t c = 0; c < r->count; c++)
        for (size_t k = 0; k < r->column[c].run_count; k++)
            for (size_t i = 0; i < r->column[c].run[k].count; i++) {
                double s = r->column[c].run[k].result[i].score;
                if (isfinite(s)) {
                    *low = fmin(*low, s);
                    *high = fmax(*high, s);
                }
            }
    return *low <= *high;
}

static fm_status scores_part(fm_buf *out, const fmv_page *p)
{
    const fm_report *r = p->report;
    double low, high;
    fm_status rc = FM_OK;
    if (!score_range(r, &low, &high))
        return FM_OK;
    fm_buf_str(out, "<h2>Scores</h2>\n<p class=\"soft\">Log-probabilities and leads of the cases "
                    "that have one; green passed.</p>\n");
    for (size_t c = 0; rc == FM_OK && c < r->count; c++) {
        fmv_score *s;
        size_t n;
        rc = fmv_scores_of(&s, &n, &r->column[c]);
        if (rc == FM_OK && n) {
            fm_buf_str(out, "<h3>");
            fm_markup_text(out, r->column[c].name);
            fm_buf_str(out, "</h3>\n");
            fmv_chart_scores(out, p, c, low, high);
            fm_buf_printf(out,
                          "<table><tr><th>Cases</th><th>Least</th><th>Quartiles</th><th>Most</th>"
                          "</tr><tr><td>%zu</td><td>%.3f</td><td>%.3f, %.3f, %.3f</td><td>%.3f</td>"
                          "</tr></table>\n",
                          n, s[0].score, s[(n - 1) / 4].score, s[(n - 1) / 2].score,
                          s[3 * (n - 1) / 4].score, s[n - 1].score);
        }
        fm_free(s);
    }
    return rc;
}

static void measures_part(fm_buf *out, const fm_report *r)
{
    static const char *const words[] = {"pass", "fail", "error"};
    size_t rows = 0;
    for (size_t c = 0; c < r->count; c++)
        for (size_t k = 0; k < r->column[c].run_count; k++)
            for (size_t i = 0; i < r->column[c].run[k].measure_count; i++) {
                const fm_measure_result *m = &r->column[c].run[k].measure[i];
                if (rows++ == 0)
                    fm_buf_str(out,
                               "<h2>Measures</h2>\n<div class=\"wide\"><table id=\"measures\">"
                               "<tr><th>Version</th><th>Suite</th><th>Measure</th><th></th>"
                               "<th class=\"n\">Value (interval)</th><th class=\"n\">Cases</th>"
                               "<th></th></tr>\n");
                fm_buf_str(out, "<tr>");
                cell(out, r->column[c].name);
                cell(out, fm_suite_name(r->column[c].run[k].suite));
                cell(out, m->name);
                fm_buf_printf(out, "<td class=\"v-%s\">%s</td><td class=\"n\">", words[m->verdict],
                              words[m->verdict]);
                if (isfinite(m->value))
                    fm_buf_printf(out, "%.4g (%.4g to %.4g)", m->value, m->low, m->high);
                fm_buf_printf(out, "</td><td class=\"n\">%zu</td>", m->count);
                cell(out, m->detail);
                fm_buf_str(out, "</tr>\n");
            }
    fm_buf_str(out, rows ? "</table></div>\n" : "");
}

static const fm_answer_tokens *tokens_of(const fm_report *r, const fm_case_result *result)
{
    for (size_t i = 0; i < r->token_count; i++)
        if (r->tokens[i].result == result)
            return &r->tokens[i];
    return NULL;
}

static void token_part(fm_buf *out, const fm_answer_tokens *t)
{
    fm_buf_str(out, "<p class=\"tokens\">");
    for (size_t i = 0; i < t->count; i++) {
        double p = exp(t->token[i].logprob);
        fm_buf_printf(out, "<span class=\"tok p%d\" title=\"%.4f\">",
                      p < 0.1   ? 0
                      : p < 0.5 ? 1
                      : p < 0.9 ? 2
                                : 3,
                      p);
        fm_markup_text(out, t->token[i].text);
        fm_buf_str(out, "</span>");
    }
    fm_buf_str(out,
               "</p>\n<details><summary>Probability of each token</summary><table><tr><th>Token"
               "</th><th class=\"n\">Probability</th></tr>\n");
    for (size_t i = 0; i < t->count; i++) {
        fm_buf_str(out, "<tr><td><code>");
        fm_markup_text(out, t->token[i].text);
        fm_buf_printf(out, "</code></td><td class=\"n\">%.4f</td></tr>\n",
                      exp(t->token[i].logprob));
    }
    fm_buf_str(out, "</table></details>\n");
}

static fm_status worst_part(fm_buf *out, const fmv_page *p)
{
    const fm_report *r = p->report;
    const fm_case_result *worst[WORST_MAX];
    size_t n;
    fm_status rc = fm_report_worst(worst, &n, WORST_MAX, r);
    if (rc < 0)
        return rc;
    fm_buf_str(out, "<h2>Worst cases of ");
    fm_markup_text(out, r->column[r->shown].name);
    fm_buf_str(out, n ? "</h2>\n" : "</h2>\n<p>Every case passed.</p>\n");
    for (size_t i = 0; i < n; i++) {
        const fm_suite *s = fm_report_suite_of(r, worst[i]);
        const fm_answer_tokens *t = tokens_of(r, worst[i]);
        fm_buf_printf(out, "<section class=\"case\"><h3><span class=\"v-%s\">%s</span> %s/",
                      told(worst[i]), told(worst[i]), fm_suite_name(s));
        fm_markup_text(out, worst[i]->name);
        fm_buf_str(out, "</h3>\n<p>");
        fm_markup_text(out, worst[i]->detail);
        fm_buf_str(out, "</p>\n<pre>");
        fm_markup_text(out, worst[i]->output);
        fm_buf_str(out, "</pre>\n");
        if (t)
            token_part(out, t);
        fm_buf_str(out, "</section>\n");
    }
    return FM_OK;
}

static void cases_part(fm_buf *out, const fmv_page *p)
{
    const fm_report_column *c = &p->report->column[p->report->shown];
    size_t rows = 0, all = 0;
    fm_buf_str(out, "<h2>All cases of ");
    fm_markup_text(out, c->name);
    fm_buf_str(out, "</h2>\n<details><summary>As a table</summary><table id=\"cases\"><tr><th>Case"
                    "</th><th>Verdict</th><th class=\"n\">Score</th><th>Answer</th></tr>\n");
    for (size_t k = 0; k < c->run_count; k++)
        for (size_t i = 0; i < c->run[k].count; i++, all++) {
            const fm_case_result *r = &c->run[k].result[i];
            if (rows == CASES_MAX)
                continue;
            rows++;
            fm_buf_printf(out, "<tr><td>%s/", fm_suite_name(c->run[k].suite));
            fm_markup_text(out, r->name);
            fm_buf_str(out, "</td>");
            verdict_cell(out, r);
            if (isfinite(r->score))
                fm_buf_printf(out, "<td class=\"n\">%.3f</td>", r->score);
            else
                fm_buf_str(out, "<td></td>");
            cell(out, r->output);
            fm_buf_str(out, "</tr>\n");
        }
    fm_buf_str(out, "</table></details>\n");
    if (rows < all)
        fm_buf_printf(out, "<p class=\"soft\">%zu more are in the JSON report.</p>\n", all - rows);
}

static void page_release(fmv_page *p)
{
    for (size_t k = 0; k < p->changes; k++)
        fm_suite_change_release(&p->change[k]);
    fm_free(p->change);
    fm_free(p->change_column);
    fm_free(p->total);
    fm_matrix_release(&p->matrix);
}

/* Each column's suites against the same ones of its parent column; p-values adjusted over all. */
static fm_status take_changes(fmv_page *p)
{
    const fm_report *r = p->report;
    size_t cap = 0, cases = 0;
    fm_bootstrap how = fm_bootstrap_defaults();
    fm_status rc = FM_OK;
    how.confidence = r->confidence;
    for (size_t c = 0; c < r->count; c++) {
        cap += r->column[c].run_count;
        for (size_t k = 0; k < r->column[c].run_count; k++)
            cases += r->column[c].run[k].count;
    }
    if (cases > DRAWS_MAX / how.resamples)
        how.resamples = (uint32_t)FM_MAX(DRAWS_MAX / cases, (size_t)200);
    p->change = fm_calloc(cap, sizeof *p->change);
    p->change_column = fm_calloc(cap, sizeof *p->change_column);
    if (!p->change || !p->change_column)
        return FM_ENOMEM;
    for (size_t c = 0; c < r->count; c++) {
        const fm_report_column *now = &r->column[c];
        const fm_report_column *from = now->parent == SIZE_MAX ? NULL : &r->column[now->parent];
        for (size_t k = 0; rc == FM_OK && from && k < now->run_count; k++)
            for (size_t j = 0; rc == FM_OK && j < from->run_count; j++) {
                if (strcmp(fm_suite_name(now->run[k].suite), fm_suite_name(from->run[j].suite)) !=
                    0)
                    continue;
                rc = fm_suite_change_of(&p->change[p->changes], &from->run[j], &now->run[k], &how);
                p->change_column[p->changes] = c;
                p->changes += rc == FM_OK;
            }
    }
    return rc == FM_OK ? fm_suite_changes_adjust(p->change, p->changes, r->adjust_bh) : rc;
}

static fm_status open_page(fmv_page *p, const fm_report *r)
{
    *p = (fmv_page){.report = r};
    fm_status rc = fm_report_matrix(&p->matrix, r);
    if (rc == FM_OK && !(p->total = fm_calloc(r->count, sizeof *p->total)))
        rc = FM_ENOMEM;
    for (size_t i = 0; rc == FM_OK && i < p->matrix.count; i++)
        for (size_t c = 0; c < r->count; c++) {
            const fm_matrix_cell *m = &p->matrix.row[i].cell[c];
            p->total[c].passed += m->passed;
            p->total[c].failed += m->failed;
            p->total[c].errors += m->errors;
            p->total[c].flaky += m->flaky;
            p->total[c].waived += m->waived;
            p->total[c].count += m->count;
        }
    return rc == FM_OK ? take_changes(p) : rc;
}

fm_status fm_report_html(fm_buf *out, const fm_report *r)
{
    fmv_page p;
    fm_status rc = open_page(&p, r);
    if (rc == FM_OK) {
        fm_buf_str(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                        "<meta name=\"viewport\" content=\"width=device-width\">\n<title>");
        fm_markup_text(out, r->title);
        fm_buf_printf(out, "</title>\n%s</head>\n<body>\n<h1>", style);
        fm_markup_text(out, r->title);
        fm_buf_printf(out, "</h1>\n<p class=\"soft\">%zu version%s, compute mode %s.</p>\n",
                      r->count, r->count == 1 ? "" : "s", r->mode);
        versions_table(out, &p);
        fmv_chart_rates(out, &p);
        fm_buf_str(out, "<h2>Capabilities</h2>\n");
        fmv_chart_matrix(out, &p);
        matrix_table(out, &p);
        measures_part(out, r);
        flips_part(out, &p);
        rc = scores_part(out, &p);
    }
    if (rc == FM_OK)
        rc = worst_part(out, &p);
    if (rc == FM_OK) {
        cases_part(out, &p);
        fm_buf_str(out, "</body>\n</html>\n");
        rc = fm_buf_ok(out);
    }
    page_release(&p);
    return rc;
}
