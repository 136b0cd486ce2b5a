/* curve.c - the curve of a training as SVG and a page around it, written by hand: no script, no
 * font, no link. Colours follow the reader's scheme; nothing depends on a time, a locale or a machine. */
#include "cli/ops/derive/curve.h"

#include <math.h>
#include <string.h>

#include "store/base/text/markup.h"
#include "store/base/mem.h"

enum { WIDTH = 760, LEFT = 64, RIGHT = 744, POINTS_MAX = 600 };
enum { LOSS_TOP = 44, LOSS_BOTTOM = 264, LR_TOP = 296, LR_BOTTOM = 356, HEIGHT = 396 };

typedef struct point { /* mean over a few steps */
    double step, loss, lr;
} point;

typedef struct points {
    point *at;
    size_t count, cap;
    double loss_min, loss_max, lr_max, last_step;
} points;

/* A long log is drawn as means of neighbours; a step whose loss is no number is left out. */
static fm_status take_points(points *p, const fm_json *log)
{
    size_t n = fm_json_count(log), group = (n + POINTS_MAX - 1) / POINTS_MAX;
    *p = (points){.loss_min = INFINITY, .loss_max = -INFINITY};
    for (size_t i = 0; i < n; i += group) {
        point sum = {0};
        double have = 0;
        for (size_t k = i; k < n && k < i + group; k++) {
            const fm_json *e = fm_json_at(log, k);
            double loss = fm_json_real(fm_json_get(e, "loss"), NAN);
            if (!isfinite(loss))
                continue;
            sum.step += fm_json_real(fm_json_get(e, "step"), 0) + 1;
            sum.loss += loss;
            sum.lr += fm_json_real(fm_json_get(e, "lr"), 0);
            have++;
        }
        if (have < 1)
            continue;
        fm_status rc = fm_grow(&p->at, &p->cap, p->count + 1, sizeof *p->at);
        if (rc < 0)
            return rc;
        point mean = {sum.step / have, sum.loss / have, sum.lr / have};
        p->at[p->count++] = mean;
        p->loss_min = FM_MIN(p->loss_min, mean.loss);
        p->loss_max = FM_MAX(p->loss_max, mean.loss);
        p->lr_max = FM_MAX(p->lr_max, mean.lr);
        p->last_step = FM_MAX(p->last_step, mean.step);
    }
    return FM_OK;
}

static double x_of(const points *p, double step)
{
    double span = p->last_step > 1 ? p->last_step - 1 : 1;
    return LEFT + (step - 1) / span * (RIGHT - LEFT);
}

static double y_of(double v, double low, double high, double top, double bottom)
{
    return bottom - (v - low) / (high - low) * (bottom - top);
}

static void label(fm_buf *out, const char *anchor, double x, double y, double v)
{
    fm_buf_printf(out, "<text text-anchor=\"%s\" x=\"%.1f\" y=\"%.1f\">%.4g</text>\n", anchor, x, y,
                  v);
}

static void draw_frame(fm_buf *out, const points *p, double low, double high)
{
    double tick = fm_svg_tick(high - low, 6), steps = fm_svg_tick(FM_MAX(p->last_step, 1.0), 8);
    for (double v = ceil(low / tick) * tick; v <= high + tick * 1e-6; v += tick) {
        double y = y_of(v, low, high, LOSS_TOP, LOSS_BOTTOM);
        fm_svg_line(out, "grid", LEFT, y, RIGHT, y);
        label(out, "end", LEFT - 8, y + 4, fabs(v) < tick * 1e-6 ? 0.0 : v);
    }
    for (double v = FM_MAX(steps, 1.0); v <= p->last_step + 1e-6; v += FM_MAX(steps, 1.0)) {
        double x = x_of(p, v);
        fm_svg_line(out, "grid", x, LOSS_TOP, x, LOSS_BOTTOM);
        fm_svg_line(out, "grid", x, LR_TOP, x, LR_BOTTOM);
        label(out, "middle", x, LR_BOTTOM + 18, v);
    }
    fm_svg_line(out, "axis", LEFT, LOSS_BOTTOM, RIGHT, LOSS_BOTTOM);
    fm_svg_line(out, "axis", LEFT, LOSS_TOP, LEFT, LOSS_BOTTOM);
    fm_svg_line(out, "axis", LEFT, LR_BOTTOM, RIGHT, LR_BOTTOM);
    fm_svg_line(out, "axis", LEFT, LR_TOP, LEFT, LR_BOTTOM);
    label(out, "end", LEFT - 8, LR_TOP + 4, p->lr_max);
    label(out, "end", LEFT - 8, LR_BOTTOM + 4, 0);
    fm_buf_printf(out, "<text x=\"%d\" y=\"%d\">loss</text>\n", LEFT + 6, LOSS_TOP - 6);
    fm_buf_printf(out, "<text x=\"%d\" y=\"%d\">learning rate</text>\n", LEFT + 6, LR_TOP - 6);
    fm_buf_printf(out, "<text text-anchor=\"end\" x=\"%d\" y=\"%d\">step</text>\n", RIGHT,
                  LR_BOTTOM + 34);
}

/* smooth: the mean over that many points on both sides. */
static void draw_loss(fm_buf *out, const points *p, const char *class, size_t smooth, double low,
                      double high)
{
    fm_buf_printf(out, "<polyline class=\"%s\" points=\"", class);
    for (size_t i = 0; i < p->count; i++) {
        size_t from = i > smooth ? i - smooth : 0, to = FM_MIN(i + smooth, p->count - 1);
        double sum = 0;
        for (size_t k = from; k <= to; k++)
            sum += p->at[k].loss;
        double mean = sum / (double)(to - from + 1);
        fm_buf_printf(out, "%s%.1f,%.1f", i ? " " : "", x_of(p, p->at[i].step),
                      y_of(mean, low, high, LOSS_TOP, LOSS_BOTTOM));
    }
    fm_buf_str(out, "\"/>\n");
}

static void draw_lr(fm_buf *out, const points *p)
{
    double high = p->lr_max > 0 ? p->lr_max : 1;
    fm_buf_str(out, "<polyline class=\"lr\" points=\"");
    for (size_t i = 0; i < p->count; i++)
        fm_buf_printf(out, "%s%.1f,%.1f", i ? " " : "", x_of(p, p->at[i].step),
                      y_of(p->at[i].lr, 0, high, LR_TOP, LR_BOTTOM));
    fm_buf_str(out, "\"/>\n");
}

static const char svg_style[] =
    "<style>\n"
    "text{font:12px sans-serif;fill:#444}\n"
    ".title{font-size:14px;font-weight:bold}\n"
    ".grid{stroke:#8884;stroke-width:1}.axis{stroke:#888;stroke-width:1}\n"
    "polyline{fill:none;stroke-linejoin:round}\n"
    ".raw{stroke:#2a78d6;stroke-width:1;opacity:.4}.loss{stroke:#2a78d6;stroke-width:2}\n"
    ".lr{stroke:#c65b12;stroke-width:1.5}\n"
    "@media (prefers-color-scheme:dark){text{fill:#ccc}.raw,.loss{stroke:#6cb0ff}"
    ".lr{stroke:#ffa366}}\n"
    "</style>\n";

fm_status curve_svg(fm_buf *out, const fm_json *log, const char *title)
{
    points p;
    fm_status rc = take_points(&p, log);
    if (rc == FM_OK) {
        double pad = FM_MAX((p.loss_max - p.loss_min) * 0.05, 1e-6);
        double low = p.count ? p.loss_min - pad : 0, high = p.count ? p.loss_max + pad : 1;
        if (p.count && p.loss_min >= 0 && low < 0)
            low = 0;
        size_t smooth = p.count / 40;
        fm_buf_printf(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" role=\"img\">\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
        fm_buf_str(out, "<title>");
        fm_markup_text(out, title);
        fm_buf_printf(out, "</title>\n%s<text class=\"title\" x=\"%d\" y=\"20\">", svg_style, LEFT);
        fm_markup_text(out, title);
        fm_buf_str(out, "</text>\n");
        if (p.count)
            fm_buf_printf(out,
                          "<text text-anchor=\"end\" x=\"%d\" y=\"20\">%zu steps, loss %.4f to "
                          "%.4f</text>\n",
                          RIGHT, fm_json_count(log), p.at[0].loss, p.at[p.count - 1].loss);
        draw_frame(out, &p, low, high);
        if (smooth)
            draw_loss(out, &p, "raw", 0, low, high);
        draw_loss(out, &p, "loss", smooth, low, high);
        draw_lr(out, &p);
        fm_buf_str(out, "</svg>\n");
        rc = fm_buf_ok(out);
    }
    fm_free(p.at);
    return rc;
}

/* ---- the page ---- */

static const char page_style[] =
    "<style>\n"
    ":root{color-scheme:light dark}\n"
    "body{font:15px/1.5 sans-serif;max-width:820px;margin:2em auto;padding:0 1em;"
    "background:#fff;color:#222}\n"
    "table{border-collapse:collapse;margin:.5em 0}td,th{padding:.15em .8em .15em 0;text-align:left;"
    "vertical-align:top}\n"
    "th{font-weight:600}td.n{text-align:right}pre{overflow:auto;background:#8881;padding:.6em}\n"
    "svg{max-width:100%;height:auto}\n"
    "@media (prefers-color-scheme:dark){body{background:#16181b;color:#ddd}}\n"
    "</style>\n";

static fm_status scalar(fm_buf *out, const fm_json *v)
{
    if (fm_json_is(v, FM_JSON_STRING)) {
        fm_markup_text(out, fm_json_cstr(v, ""));
        return FM_OK;
    }
    if (fm_json_is(v, FM_JSON_REAL)) {
        fm_buf_printf(out, "%.9g", fm_json_real(v, 0));
        return FM_OK;
    }
    fm_buf text;
    fm_buf_init(&text, 0);
    fm_status rc = fm_json_write(&text, v, FM_JSON_COMPACT);
    if (rc == FM_OK)
        fm_markup_text(out, fm_buf_cstr(&text));
    fm_buf_release(&text);
    return rc;
}

static fm_status key_table(fm_buf *out, const fm_json *obj)
{
    fm_status rc = FM_OK;
    fm_buf_str(out, "<table>\n");
    for (void *it = fm_json_iter(obj); it && rc == FM_OK; it = fm_json_next(obj, it)) {
        fm_buf_str(out, "<tr><th>");
        fm_markup_text(out, fm_json_iter_key(it));
        fm_buf_str(out, "</th><td>");
        rc = scalar(out, fm_json_iter_value(it));
        fm_buf_str(out, "</td></tr>\n");
    }
    fm_buf_str(out, "</table>\n");
    return rc;
}

static fm_status sweep_table(fm_buf *out, const fm_json *sweep)
{
    const fm_json *trials = fm_json_get(sweep, "trials");
    fm_status rc = FM_OK;
    fm_buf_str(out, "<h2>Sweep</h2>\n<table>\n<tr><th>trial</th><th>settings</th><th>steps</th>"
                    "<th>loss</th><th>outcome</th></tr>\n");
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(trials); i++) {
        static const char *const keys[] = {"trial", "set", "steps", "loss", "outcome"};
        fm_buf_str(out, "<tr>");
        for (size_t k = 0; rc == FM_OK && k < FM_ARRAY_LEN(keys); k++) {
            const fm_json *v = fm_json_get(fm_json_at(trials, i), keys[k]);
            fm_buf_str(out, "<td>");
            if (v)
                rc = scalar(out, v);
            fm_buf_str(out, "</td>");
        }
        fm_buf_str(out, "</tr>\n");
    }
    fm_buf_str(out, "</table>\n");
    return rc;
}

static fm_status about(fm_buf *out, const fm_json *recipe)
{
    static const char *const keys[] = {"operation", "engine", "mode", "kernel_class"};
    fm_status rc = FM_OK;
    fm_buf_str(out, "<p>");
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(keys); i++) {
        fm_buf_printf(out, "%s%s ", i ? " &middot; " : "", keys[i]);
        rc = scalar(out, fm_json_get(recipe, keys[i]));
    }
    fm_buf_str(out, "</p>\n");
    return rc;
}

static fm_status data_part(fm_buf *out, const curve_page *page)
{
    const fm_json *data = fm_json_get(page->recipe, "data");
    fm_status rc = FM_OK;
    fm_buf_str(out, "<h2>Data</h2>\n");
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(data); i++)
        rc = key_table(out, fm_json_at(data, i));
    for (size_t i = 0; rc == FM_OK && i < fm_json_count(page->report); i++) {
        fm_buf text;
        fm_buf_init(&text, 0);
        rc = fm_json_write(&text, fm_json_at(page->report, i), FM_JSON_PRETTY);
        fm_buf_str(out, "<h3>Report</h3>\n<pre>");
        if (rc == FM_OK)
            fm_markup_text(out, fm_buf_cstr(&text));
        fm_buf_str(out, "</pre>\n");
        fm_buf_release(&text);
    }
    return rc;
}

fm_status curve_html(fm_buf *out, const curve_page *page)
{
    fm_buf_str(out,
               "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>");
    fm_markup_text(out, page->title);
    fm_buf_printf(out, "</title>\n%s</head>\n<body>\n<h1>", page_style);
    fm_markup_text(out, page->title);
    fm_buf_str(out, "</h1>\n");
    fm_status rc = about(out, page->recipe);
    if (rc == FM_OK)
        rc = curve_svg(out, page->log, page->title);
    if (rc == FM_OK && page->sweep)
        rc = sweep_table(out, page->sweep);
    fm_buf_str(out, "<h2>Settings</h2>\n");
    if (rc == FM_OK)
        rc = key_table(out, fm_json_get(page->recipe, "config"));
    if (rc == FM_OK)
        rc = data_part(out, page);
    fm_buf_str(out, page->gate_count ? "<h2>Suites</h2>\n<ul>\n" : "");
    for (size_t i = 0; i < page->gate_count; i++) {
        fm_buf_str(out, "<li>");
        fm_markup_text(out, page->gates[i]);
        fm_buf_str(out, "</li>\n");
    }
    fm_buf_str(out, page->gate_count ? "</ul>\n</body>\n</html>\n" : "</body>\n</html>\n");
    return rc == FM_OK ? fm_buf_ok(out) : rc;
}
