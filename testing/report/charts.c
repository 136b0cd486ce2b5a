/* charts.c - the pictures of the HTML report. Every figure that a picture shows stands in
 * it as text or in the table beside it; colour alone says nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/text/markup.h"
#include "store/base/mem.h"
#include "testing/report/page.h"

enum { NAME_CHARS = 26, LABEL = 210, CELL_W = 74, CELL_H = 26, HEAD = 96, BINS = 24 };

const char *fmv_short_text(const char *text, size_t most)
{
    static _Thread_local char ring[8][160];
    static _Thread_local unsigned turn;
    char *to = ring[turn++ % 8];
    size_t used = 0, chars = 0, len = strlen(text);
    while (used < len) {
        size_t n = fms_json_utf8_len((const uint8_t *)text + used, len - used);
        n = n ? n : 1;
        if (chars == most || used + n + 4 > sizeof ring[0])
            break;
        memcpy(to + used, text + used, n);
        used += n;
        chars++;
    }
    memcpy(to + used, used < len ? "\xE2\x80\xA6" : "", used < len ? 4 : 1);
    return to;
}

static void open_svg(fm_buf *out, const char *id, double width, double height, const char *says)
{
    fm_buf_printf(out,
                  "<div class=\"wide\"><svg id=\"%s\" xmlns=\"http://www.w3.org/2000/svg\" "
                  "viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\" "
                  "aria-label=\"",
                  id, width, height, width, height);
    fm_markup_attr(out, says);
    fm_buf_str(out, "\">\n");
}

static void close_svg(fm_buf *out)
{
    fm_buf_str(out, "</svg></div>\n");
}

/* Names of versions over their columns, slanted so that long ones do not meet. */
static void column_heads(fm_buf *out, const fm_report *r, double left, double step, double bottom)
{
    for (size_t c = 0; c < r->count; c++) {
        double x = left + ((double)c + 0.5) * step - 4;
        fm_buf_printf(out, "<text class=\"head\" transform=\"translate(%.1f %.1f) rotate(-35)\">",
                      x, bottom - 6);
        fm_markup_text(out, fmv_short_text(r->column[c].name, 14));
        fm_buf_str(out, "<title>");
        fm_markup_text(out, r->column[c].name);
        fm_buf_str(out, "</title></text>\n");
    }
}

static void matrix_cell(fm_buf *out, const fm_matrix_cell *c, double x, double y)
{
    char css[16], says[64];
    double share = fm_matrix_share(c);
    size_t counted = c->count - c->flaky - c->waived;
    snprintf(css, sizeof css, isnan(share) ? "cell none" : "cell s%d", (int)(share * 10));
    fm_svg_rect(out, css, x + 1, y + 1, CELL_W - 2, CELL_H - 2);
    if (c->count == 0)
        return;
    snprintf(says, sizeof says, "%zu/%zu%s%s", c->passed, counted, c->flaky ? " ~" : "",
             c->waived ? " w" : "");
    fm_svg_text(out, "in", "middle", x + CELL_W / 2.0, y + CELL_H / 2.0 + 4, says);
}

void fmv_chart_matrix(fm_buf *out, const fmv_page *p)
{
    const fm_matrix *m = &p->matrix;
    double width = LABEL + (double)m->columns * CELL_W + 60;
    double height = HEAD + (double)m->count * CELL_H + 8;
    open_svg(out, "matrix", width, height,
             "Passes by capability, kind and version; a table follows");
    column_heads(out, p->report, LABEL, CELL_W, HEAD);
    for (size_t i = 0; i < m->count; i++) {
        char label[200];
        double y = HEAD + (double)i * CELL_H;
        snprintf(label, sizeof label, "%s %s", fmv_short_text(m->row[i].capability, NAME_CHARS - 4),
                 m->row[i].kind);
        fm_svg_text(out, "side", "end", LABEL - 8, y + CELL_H / 2.0 + 4, label);
        for (size_t c = 0; c < m->columns; c++)
            matrix_cell(out, &m->row[i].cell[c], LABEL + (double)c * CELL_W, y);
    }
    close_svg(out);
}

fm_interval fmv_cell_interval(const fm_matrix_cell *c, double confidence)
{
    return fm_wilson(c->passed, c->count - c->flaky - c->waived, confidence);
}

void fmv_chart_rates(fm_buf *out, const fmv_page *p)
{
    const fm_report *r = p->report;
    double right = 640, height = 34 + (double)r->count * 24 + 8;
    open_svg(out, "rates", right + 90, height, "Pass rate of each version with its interval");
    for (int t = 0; t <= 4; t++) {
        char label[16];
        double x = LABEL + (right - LABEL) * t / 4.0;
        snprintf(label, sizeof label, "%d %%", t * 25);
        fm_svg_line(out, "grid", x, 24, x, height - 8);
        fm_svg_text(out, "side", "middle", x, 16, label);
    }
    for (size_t c = 0; c < r->count; c++) {
        double share = fm_matrix_share(&p->total[c]), y = 38 + (double)c * 24;
        fm_interval i = fmv_cell_interval(&p->total[c], r->confidence);
        fm_svg_text(out, "side", "end", LABEL - 8, y + 4,
                    fmv_short_text(r->column[c].name, NAME_CHARS));
        if (isnan(share))
            continue;
        char label[24];
        double scale = right - LABEL;
        fm_svg_line(out, "whisker", LABEL + i.low * scale, y, LABEL + i.high * scale, y);
        fm_buf_printf(out, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\"/>\n",
                      LABEL + share * scale, y);
        snprintf(label, sizeof label, "%.1f %%", 100 * share);
        fm_svg_text(out, "side", "start", right + 14, y + 4, label);
    }
    close_svg(out);
}

static void flips_of(const fmv_page *p, size_t column, double *up, double *down)
{
    *up = *down = 0;
    for (size_t k = 0; k < p->changes; k++)
        if (p->change_column[k] == column) {
            *up += (double)p->change[k].fixed;
            *down += (double)p->change[k].broken;
        }
}

/* Fixed above the line, broken below, one bar a version; the figures stand at the bars. */
void fmv_chart_flips(fm_buf *out, const fmv_page *p)
{
    const fm_report *r = p->report;
    double most = 1, up, down, middle = HEAD + 90, width = 60 + (double)r->count * CELL_W + 60;
    for (size_t c = 0; c < r->count; c++) {
        flips_of(p, c, &up, &down);
        most = fmax(most, fmax(up, down));
    }
    open_svg(out, "flips", width, middle + 96,
             "Cases fixed (above the line) and broken (below) from the parent to each version");
    column_heads(out, r, 60, CELL_W, HEAD);
    for (size_t c = 0; c < r->count; c++) {
        char label[24];
        double x = 60 + (double)c * CELL_W + 14, w = CELL_W - 28;
        if (r->column[c].parent == SIZE_MAX)
            continue;
        flips_of(p, c, &up, &down);
        double high = up / most * 66, low = down / most * 66;
        if (up > 0)
            fm_svg_rect(out, "fixed", x, middle - high, w, high);
        if (down > 0)
            fm_svg_rect(out, "broken", x, middle, w, low);
        snprintf(label, sizeof label, up > 0 ? "+%.0f" : "0", up);
        fm_svg_text(out, "side", "middle", x + w / 2, middle - high - 5, label);
        snprintf(label, sizeof label, down > 0 ? "\xE2\x88\x92%.0f" : "0", down);
        fm_svg_text(out, "side", "middle", x + w / 2, middle + low + 14, label);
    }
    fm_svg_line(out, "axis", 50, middle, width - 50, middle);
    close_svg(out);
}

static int by_score(const void *a, const void *b)
{
    const fmv_score *x = a, *y = b;
    return (x->score > y->score) - (x->score < y->score);
}

fm_status fmv_scores_of(fmv_score **out, size_t *n, const fm_report_column *c)
{
    size_t all = 0;
    *n = 0;
    for (size_t k = 0; k < c->run_count; k++)
        all += c->run[k].count;
    *out = fm_calloc(all, sizeof **out);
    for (size_t k = 0; *out && k < c->run_count; k++)
        for (size_t i = 0; i < c->run[k].count; i++)
            if (isfinite(c->run[k].result[i].score))
                (*out)[(*n)++] =
                    (fmv_score){c->run[k].result[i].score, c->run[k].result[i].verdict == FM_PASS};
    if (*n)
        qsort(*out, *n, sizeof **out, by_score);
    return *out ? FM_OK : FM_ENOMEM;
}

static void histogram(fm_buf *out, size_t count[BINS][2], size_t most)
{
    double w = (720.0 - 60) / BINS;
    for (int b = 0; b < BINS; b++) {
        double x = 60 + b * w + 1, bad = 90.0 * (double)count[b][0] / (double)most;
        double good = 90.0 * (double)count[b][1] / (double)most;
        if (count[b][0])
            fm_svg_rect(out, "broken", x, 104 - bad, w - 2, bad);
        if (count[b][1])
            fm_svg_rect(out, "fixed", x, 104 - bad - good, w - 2, good);
    }
}

void fmv_chart_scores(fm_buf *out, const fmv_page *p, size_t at, double low, double high)
{
    const fm_report_column *c = &p->report->column[at];
    size_t count[BINS][2] = {{0}}, most = 1;
    char id[32], label[64];
    double span = high > low ? high - low : 1, tick = fm_svg_tick(span, 8);
    for (size_t k = 0; k < c->run_count; k++)
        for (size_t i = 0; i < c->run[k].count; i++) {
            const fm_case_result *r = &c->run[k].result[i];
            if (!isfinite(r->score))
                continue;
            int bin = (int)((r->score - low) / span * BINS);
            size_t *in = count[bin < 0 ? 0 : bin >= BINS ? BINS - 1 : bin];
            in[r->verdict == FM_PASS]++;
            most = FM_MAX(most, in[0] + in[1]);
        }
    snprintf(id, sizeof id, "scores-%zu", at);
    open_svg(out, id, 740, 132, "Distribution of scores; its quartiles are in the table");
    for (double v = ceil(low / tick) * tick; v <= high + tick * 1e-6; v += tick) {
        double x = 60 + (v - low) / span * 660;
        fm_svg_line(out, "grid", x, 14, x, 104);
        snprintf(label, sizeof label, "%.4g", fabs(v) < tick * 1e-6 ? 0.0 : v);
        fm_svg_text(out, "side", "middle", x, 122, label);
    }
    histogram(out, count, most);
    fm_svg_line(out, "axis", 60, 104, 720, 104);
    snprintf(label, sizeof label, "%zu", most);
    fm_svg_text(out, "side", "end", 54, 20, label);
    close_svg(out);
}
