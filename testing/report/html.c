/* html.c - the report as one HTML file. Every figure of a picture also stands as text; colour alone
 * carries no information. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/math/detmath.h"
#include "store/base/mem.h"
#include "store/base/text/chart.h"
#include "store/base/text/page.h"
#include "testing/report.h"
#include "testing/suite/internal.h"

#define WORST_MAX 12u
#define FLIPS_MAX 200u  /* rows of the table of flips */
#define CASES_MAX 2000u /* rows of the table of all cases */
#define DRAWS_MAX                                                                                  \
    ((size_t)200000000) /* most draws of a page's bootstraps: each has fewer in a long lineage */
enum { BINS = 24 };     /* bins of a histogram */

typedef struct page {
    const fm_report *report;
    fm_matrix matrix;
    fm_matrix_cell *total;   /* [columns] sums over all cases */
    fm_suite_change *change; /* one a suite of a column with a parent, by column */
    size_t *change_column;   /* [changes] */
    size_t changes;
} page;

/* The word for a case (its verdict, unless it is flaky or waived) and its colour. */
static const char *told(const fm_case_result *r, const char **colour)
{
    static const char *const verdicts[] = {"pass", "fail", "error"};
    const bool apart = r->flaky || (r->waived && r->verdict != FM_PASS);
    *colour = apart ? "soft" : r->verdict == FM_PASS ? "good" : "bad";
    return r->flaky ? "flaky" : apart ? "waived" : verdicts[r->verdict];
}

static void versions_part(fm_buf *out, const page *p)
{
    const fm_report *r = p->report;
    fm_markup(out, "<p class=\"soft\" id=\"versions\">%zu version%s, compute mode %s.</p>\n",
              r->count, r->count == 1 ? "" : "s", r->mode);
    fm_table_open(out,
                  "Version|#Commit|From|#Passed|#Failed|#Errors|#Flaky|#Waived|"
                  "#Pass rate, %% (%g %% interval)|0 to 100 %%",
                  100 * r->confidence);
    for (size_t c = 0; c < r->count; c++) {
        const fm_matrix_cell *t = &p->total[c];
        const double share = fm_matrix_share(t);
        const fm_interval i = fm_wilson(t->passed, t->count - t->flaky - t->waived, r->confidence);
        fm_row_open(out, "%s|#%.10s|%s|#%zu|#%zu|#%zu|#%zu|#%zu|#%.1f (%.1f to %.1f)",
                    r->column[c].name, r->column[c].id, r->column[c].note, t->passed, t->failed,
                    t->errors, t->flaky, t->waived, 100 * share, 100 * i.low, 100 * i.high);
        fm_chart_interval(out, share, i.low, i.high);
        fm_row_close(out);
    }
    fm_table_close(out);
}

/* A cell coloured from red over yellow to green. */
static void matrix_cell(fm_buf *out, const fm_matrix_cell *m)
{
    const double share = fm_matrix_share(m);
    if (m->count == 0) {
        fm_markup(out, "<td class=\"n\">not asked</td>");
        return;
    }
    if (isnan(share))
        fm_markup(out, "<td class=\"n\">");
    else
        fm_markup(out, "<td class=\"cell n\" style=\"background:hsl(%.0f 60%% 60%%)\">",
                  140 * share * share);
    fm_markup(out, "%zu of %zu", m->passed, m->count - m->flaky - m->waived);
    if (m->flaky)
        fm_markup(out, ", %zu flaky", m->flaky);
    if (m->waived)
        fm_markup(out, ", %zu waived", m->waived);
    fm_markup(out, "</td>");
}

static void matrix_part(fm_buf *out, const page *p)
{
    const fm_report *r = p->report;
    fm_markup(out, "<h2 id=\"matrix\">Capabilities</h2>\n<div class=\"wide\"><table>\n"
                   "<tr><th>Capability</th><th>Kind</th>");
    for (size_t c = 0; c < r->count; c++)
        fm_markup(out, "<th class=\"n head\">%s</th>", r->column[c].name);
    fm_markup(out, "</tr>\n");
    for (size_t i = 0; i < p->matrix.count; i++) {
        const fm_matrix_row *row = &p->matrix.row[i];
        fm_markup(out, "<tr><td>%s</td><td>%s</td>", row->capability, row->kind);
        for (size_t c = 0; c < r->count; c++)
            matrix_cell(out, &row->cell[c]);
        fm_markup(out, "</tr>\n");
    }
    fm_table_close(out);
}

/* ---- flips ---- */

static void flips_of(const page *p, size_t column, double *up, double *down)
{
    *up = *down = 0;
    for (size_t k = 0; k < p->changes; k++)
        if (p->change_column[k] == column) {
            *up += (double)p->change[k].fixed;
            *down += (double)p->change[k].broken;
        }
}

static void flips_table(fm_buf *out, const page *p)
{
    const fm_report *r = p->report;
    double most = 1, up, down;
    for (size_t c = 0; c < r->count; c++) {
        flips_of(p, c, &up, &down);
        most = fmax(most, fmax(up, down));
    }
    fm_table_open(out, "From|To|#Broken|#Fixed|Broken and fixed");
    for (size_t c = 0; c < r->count; c++)
        if (r->column[c].parent != SIZE_MAX) {
            flips_of(p, c, &up, &down);
            fm_row_open(out, "%s|%s|#%.0f|#%.0f", r->column[r->column[c].parent].name,
                        r->column[c].name, down, up);
            fm_chart_balance(out, up, down, most);
            fm_row_close(out);
        }
    fm_table_close(out);
}

static void changes_table(fm_buf *out, const page *p)
{
    const fm_report *r = p->report;
    fm_table_open(out,
                  "From|To|Suite|#Pairs|#Fixed|#Broken|#Difference in points (%g %%)|#McNemar p|"
                  "#adjusted",
                  100 * r->confidence);
    for (size_t k = 0; k < p->changes; k++) {
        const fm_suite_change *c = &p->change[k];
        const fm_report_column *to = &r->column[p->change_column[k]];
        const fm_estimate d = fm_suite_change_interval(c, r->confidence);
        fm_table_row(out, "%s|%s|%s|#%zu|#%zu|#%zu|#%+.1f (%+.1f to %+.1f)|#%.3g|#%.3g",
                     r->column[to->parent].name, to->name, fm_suite_name(c->now->suite), c->pairs,
                     c->fixed, c->broken, 100 * d.value, 100 * d.low, 100 * d.high, c->p_value,
                     c->p_adjusted);
    }
    fm_table_close(out);
}

/* Ends a table in <details> that shows `most` rows. */
static void close_details(fm_buf *out, size_t most, size_t all)
{
    fm_table_close(out);
    if (most < all)
        fm_markup(out, "<p class=\"soft\">%zu more are in the JSON report.</p>\n", all - most);
    fm_markup(out, "</details>\n");
}

static void flips_part(fm_buf *out, const page *p)
{
    size_t all = 0;
    if (!p->changes)
        return;
    fm_markup(out, "<h2 id=\"flips\">Flips between versions</h2>\n");
    flips_table(out, p);
    changes_table(out, p);
    fm_markup(out, "<details id=\"flipped\"><summary>Which cases</summary>\n");
    fm_table_open(out, "Version|Case||Before|Now");
    for (size_t k = 0; k < p->changes; k++)
        for (size_t i = 0; i < p->change[k].flips; i++) {
            const fm_flip *f = &p->change[k].flip[i];
            const bool is = f->now->verdict == FM_PASS;
            if (all++ < FLIPS_MAX)
                fm_table_row(out, "%s|%s/%s|<span class=\"%s\">%s</span>|%s|%s",
                             p->report->column[p->change_column[k]].name,
                             fm_suite_name(p->change[k].now->suite), f->now->name,
                             is ? "good" : "bad", is ? "fixed" : "broken", f->before->output,
                             f->now->output);
        }
    close_details(out, FLIPS_MAX, all);
}

/* ---- scores ---- */

typedef struct score {
    size_t column;
    double score;
    bool pass;
} score;

static int by_column_and_score(const void *a, const void *b)
{
    const score *x = a, *y = b;
    if (x->column != y->column)
        return x->column < y->column ? -1 : 1;
    return (x->score > y->score) - (x->score < y->score);
}

/* The finite scores of all columns, sorted; owned. */
static fm_status scores_of(score **out, size_t *n, const page *p)
{
    const fm_report *r = p->report;
    size_t all = 0;
    for (size_t c = 0; c < r->count; c++)
        all += p->total[c].count;
    *n = 0;
    if (!(*out = fm_calloc(all, sizeof **out)))
        return FM_ENOMEM;
    for (size_t c = 0; c < r->count; c++)
        for (size_t k = 0; k < r->column[c].run_count; k++)
            for (size_t i = 0; i < r->column[c].run[k].count; i++) {
                const fm_case_result *one = &r->column[c].run[k].result[i];
                if (isfinite(one->score))
                    (*out)[(*n)++] = (score){c, one->score, one->verdict == FM_PASS};
            }
    if (*n)
        qsort(*out, *n, sizeof **out, by_column_and_score);
    return FM_OK;
}

/* A histogram over the common range of all columns. */
static void histogram(fm_buf *out, const score *s, size_t n, double low, double high)
{
    const fm_plot plot = {60, 720, 14, 104, low, high > low ? high : low + 1, 0, 1};
    const double w = (plot.right - plot.left) / BINS;
    size_t count[BINS][2] = {{0}}, most = 1;
    for (size_t i = 0; i < n; i++) {
        const double place = (s[i].score - low) / (plot.x_high - low) * BINS;
        size_t *in = count[FM_MIN((size_t)place, (size_t)BINS - 1)];
        in[s[i].pass]++;
        most = FM_MAX(most, in[0] + in[1]);
    }
    fm_svg_open(out, false, 740, 132, "Distribution of scores; its quartiles are in the table");
    fm_plot_grid_x(out, &plot, fm_svg_tick(plot.x_high - low, 8));
    for (size_t b = 0; b < BINS; b++) {
        const double x = plot.left + (double)b * w + 1;
        const double bad = 90.0 * (double)count[b][0] / (double)most;
        const double good = 90.0 * (double)count[b][1] / (double)most;
        if (count[b][0])
            fm_svg_rect(out, "bad", x, plot.bottom - bad, w - 2, bad);
        if (count[b][1])
            fm_svg_rect(out, "good", x, plot.bottom - bad - good, w - 2, good);
    }
    fm_svg_text(out, "side", "end", 54, 20, "%zu", most);
    fm_svg_close(out, NULL);
}

static fm_status scores_part(fm_buf *out, const page *p)
{
    score *all;
    size_t count;
    double low = (double)INFINITY, high = -(double)INFINITY;
    FM_TRY(scores_of(&all, &count, p));
    for (size_t i = 0; i < count; i++) {
        low = fmin(low, all[i].score);
        high = fmax(high, all[i].score);
    }
    if (count)
        fm_markup(out, "<h2 id=\"scores\">Scores</h2>\n<p class=\"soft\">Log-probabilities and "
                       "leads of the cases that have one; green passed.</p>\n");
    for (size_t from = 0, n; from < count; from += n) {
        const score *s = all + from;
        for (n = 1; from + n < count && s[n].column == s->column;)
            n++;
        fm_markup(out, "<h3>%s</h3>\n", p->report->column[s->column].name);
        histogram(out, s, n, low, high);
        fm_table_open(out, "#Cases|#Least|#Quartiles|#Most");
        fm_table_row(out, "#%zu|#%.3f|#%.3f, %.3f, %.3f|#%.3f", n, s[0].score, s[(n - 1) / 4].score,
                     s[(n - 1) / 2].score, s[3 * (n - 1) / 4].score, s[n - 1].score);
        fm_table_close(out);
    }
    fm_free(all);
    return FM_OK;
}

static void measures_part(fm_buf *out, const fm_report *r)
{
    static const char *const words[] = {"pass", "fail", "error"};
    size_t rows = 0;
    for (size_t c = 0; c < r->count; c++)
        for (size_t k = 0; k < r->column[c].run_count; k++)
            for (size_t i = 0; i < r->column[c].run[k].measure_count; i++) {
                const fm_measure_result *m = &r->column[c].run[k].measure[i];
                if (rows++ == 0) {
                    fm_markup(out, "<h2 id=\"measures\">Measures</h2>\n");
                    fm_table_open(out, "Version|Suite|Measure||#Value (interval)|#Cases|");
                }
                fm_table_row(out,
                             "%s|%s|%s|<span class=\"%s\">%s</span>|#%.4g (%.4g to %.4g)|#%zu|%s",
                             r->column[c].name, fm_suite_name(r->column[c].run[k].suite), m->name,
                             m->verdict == FM_PASS ? "good" : "bad", words[m->verdict], m->value,
                             m->low, m->high, m->count, m->detail);
            }
    if (rows)
        fm_table_close(out);
}

/* ---- cases ---- */

static const fm_answer_tokens *tokens_of(const fm_report *r, const fm_case_result *result)
{
    for (size_t i = 0; i < r->token_count; i++)
        if (r->tokens[i].result == result)
            return &r->tokens[i];
    return NULL;
}

static void token_part(fm_buf *out, const fm_answer_tokens *t)
{
    fm_markup(out, "<p class=\"tokens\">");
    for (size_t i = 0; i < t->count; i++) {
        const double p = fm_exp(t->token[i].logprob);
        fm_markup(out, "<span class=\"tok p%d\" title=\"%.4f\">%s</span>",
                  (p >= 0.1) + (p >= 0.5) + (p >= 0.9), p, t->token[i].text);
    }
    fm_markup(out, "</p>\n<details><summary>Probability of each token</summary>\n");
    fm_table_open(out, "Token|#Probability");
    for (size_t i = 0; i < t->count; i++)
        fm_table_row(out, "<code>%s</code>|#%.4f", t->token[i].text, fm_exp(t->token[i].logprob));
    close_details(out, t->count, t->count);
}

static fm_status worst_part(fm_buf *out, const fm_report *r)
{
    const fm_case_result *worst[WORST_MAX];
    const char *colour;
    size_t n;
    FM_TRY(fm_report_worst(worst, &n, WORST_MAX, r));
    fm_markup(out, "<h2 id=\"worst\">Worst cases of %s</h2>\n", r->column[r->shown].name);
    if (n == 0)
        fm_markup(out, "<p>Every case passed.</p>\n");
    for (size_t i = 0; i < n; i++) {
        const fm_answer_tokens *t = tokens_of(r, worst[i]);
        const char *word = told(worst[i], &colour);
        fm_markup(out,
                  "<section class=\"case\"><h3><span class=\"%s\">%s</span> %s/%s</h3>\n"
                  "<p>%s</p>\n<pre>%s</pre>\n",
                  colour, word, fm_suite_name(fm_report_suite_of(r, worst[i])), worst[i]->name,
                  worst[i]->detail, worst[i]->output);
        if (t)
            token_part(out, t);
        fm_markup(out, "</section>\n");
    }
    return FM_OK;
}

static void case_row(fm_buf *out, const fm_suite *s, const fm_case_result *r)
{
    const char *colour, *word = told(r, &colour);
    fm_markup(out, "<tr><td>%s/%s</td><td><span class=\"%s\">%s</span>", fm_suite_name(s), r->name,
              colour, word);
    if (r->repeats)
        fm_markup(out, " (%u of %u passed)", r->repeats_passed, r->repeats);
    fm_markup(out, "</td><td class=\"n\">%.3f</td><td>%s</td></tr>\n",
              isfinite(r->score) ? r->score : (double)NAN, r->output);
}

static void cases_part(fm_buf *out, const fm_report_column *c)
{
    size_t all = 0;
    fm_markup(out,
              "<h2 id=\"cases\">All cases of %s</h2>\n<details><summary>As a table</summary>\n",
              c->name);
    fm_table_open(out, "Case|Verdict|#Score|Answer");
    for (size_t k = 0; k < c->run_count; k++)
        for (size_t i = 0; i < c->run[k].count; i++)
            if (all++ < CASES_MAX)
                case_row(out, c->run[k].suite, &c->run[k].result[i]);
    close_details(out, CASES_MAX, all);
}

/* ---- the page ---- */

static void release(page *p)
{
    for (size_t k = 0; k < p->changes; k++)
        fm_suite_change_release(&p->change[k]);
    fm_free(p->change);
    fm_free(p->change_column);
    fm_free(p->total);
    fm_matrix_release(&p->matrix);
}

/* Compares each column's suites with those of its parent column; p-values are adjusted over all. */
static fm_status take_changes(page *p)
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

static fm_status open_page(page *p, const fm_report *r)
{
    *p = (page){.report = r};
    FM_TRY(fm_report_matrix(&p->matrix, r));
    if (!(p->total = fm_calloc(r->count, sizeof *p->total)))
        FM_TRY(FM_ENOMEM);
    for (size_t i = 0; i < p->matrix.count; i++)
        for (size_t c = 0; c < r->count; c++) {
            const fm_matrix_cell *m = &p->matrix.row[i].cell[c];
            p->total[c].passed += m->passed;
            p->total[c].failed += m->failed;
            p->total[c].errors += m->errors;
            p->total[c].flaky += m->flaky;
            p->total[c].waived += m->waived;
            p->total[c].count += m->count;
        }
    return take_changes(p);
}

fm_status fm_report_html(fm_buf *out, const fm_report *r)
{
    page p;
    fm_status rc = open_page(&p, r);
    if (rc == FM_OK) {
        fm_page_open(out, "%s", r->title);
        versions_part(out, &p);
        matrix_part(out, &p);
        measures_part(out, r);
        flips_part(out, &p);
        rc = scores_part(out, &p);
    }
    FM_THEN(rc, worst_part(out, r));
    if (rc == FM_OK) {
        cases_part(out, &r->column[r->shown]);
        fm_page_close(out);
        rc = fm_buf_ok(out);
    }
    release(&p);
    return rc;
}
