/* chart.c - marks of SVG, and plots with axes. */
#include "store/base/text/chart.h"

#include <math.h>
#include <string.h>

/* No CSS variables: programs that show SVG files need not support them. */
const char fm_chart_style[] =
    ":root{color-scheme:light dark;color:#1d1f23}.soft{color:#5c6370}.grid{color:#d5d8de}\n"
    ".good,.pass{color:#23794b}.bad,.FAIL{color:#c4262e}.blue{color:#2a78d6}"
    ".orange,.error{color:#c65b12}.violet{color:#7a3db8}.on{color:#fff}\n"
    "@media (prefers-color-scheme:dark){:root{color:#e3e5e8}.soft{color:#9aa1ac}"
    ".grid{color:#3a3f47}.good,.pass{color:#6fd39c}.bad,.FAIL{color:#ff7b80}.blue{color:#6cb0ff}"
    ".orange,.error{color:#ffa366}.violet{color:#c79bff}.on{color:#16181b}}\n"
    "svg{max-width:100%;height:auto}svg rect,svg circle,svg text{fill:currentColor}"
    "svg text{font:12px system-ui,sans-serif}svg .title{font-weight:600}\n"
    "svg line,svg polyline{stroke:currentColor;fill:none;stroke-linejoin:round}"
    "svg .thick{stroke-width:2}svg .guilty{stroke-width:4}svg .faint{opacity:.4}\n";

void fm_svg_open(fm_buf *out, bool file, double width, double height, const char *says)
{
    fm_buf_str(out, file ? "<svg xmlns=\"http://www.w3.org/2000/svg\"" : "<svg");
    fm_markup(out,
              " role=\"img\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\">\n"
              "<title>%s</title>\n",
              width, height, width, height, says);
    if (file)
        fm_markup(out, "<style>\n%s</style>\n", fm_chart_style);
}

void fm_svg_close(fm_buf *out, const char *caption)
{
    fm_markup(out, "</svg>\n");
    if (caption)
        fm_markup(out, "<p class=\"soft\">%s</p>\n", caption);
}

void fm_svg_line(fm_buf *out, const char *css_class, double x1, double y1, double x2, double y2)
{
    fm_markup(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
              css_class, x1, y1, x2, y2);
}

void fm_svg_rect(fm_buf *out, const char *css_class, double x, double y, double width,
                 double height)
{
    fm_markup(out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
              css_class, x, y, width, height);
}

void fm_svg_text(fm_buf *out, const char *css_class, const char *anchor, double x, double y,
                 const char *fmt, ...)
{
    va_list args;
    fm_markup(out, "<text class=\"%s\" text-anchor=\"%s\" x=\"%.1f\" y=\"%.1f\">", css_class,
              anchor, x, y);
    va_start(args, fmt);
    fm_markup_part(out, fmt, strlen(fmt), &args);
    va_end(args);
    fm_buf_str(out, "</text>\n");
}

double fm_svg_tick(double span, double most)
{
    double tick = 1e-12;
    while (span / tick > most) {
        if (span / (tick * 2) <= most)
            return tick * 2;
        if (span / (tick * 5) <= most)
            return tick * 5;
        tick *= 10;
    }
    return tick;
}

/* The coordinate of v on an axis that has low at `from` and high at `to`. */
static double place(double v, double low, double high, double from, double to)
{
    return high > low ? from + (v - low) / (high - low) * (to - from) : from;
}

double fm_plot_x(const fm_plot *p, double v)
{
    return place(v, p->x_low, p->x_high, p->left, p->right);
}

double fm_plot_y(const fm_plot *p, double v)
{
    return place(v, p->y_low, p->y_high, p->bottom, p->top);
}

/* *v = the i-th tick from low on; false: it lies beyond high. A span that is tiny compared with its
 * values has a few ticks at one place. */
static bool tick_at(double *v, unsigned i, double low, double high, double tick)
{
    *v = (ceil(low / tick) + i) * tick;
    if (fabs(*v) < tick * 1e-6)
        *v = 0;
    return i < 20 && *v <= high + tick * 1e-6;
}

void fm_plot_grid_x(fm_buf *out, const fm_plot *p, double tick)
{
    double v;
    for (unsigned i = 0; tick_at(&v, i, p->x_low, p->x_high, tick); i++) {
        const double x = fm_plot_x(p, v);
        fm_svg_line(out, "grid", x, p->top, x, p->bottom);
        fm_svg_text(out, "", "middle", x, p->bottom + 16, "%.4g", v);
    }
    fm_svg_line(out, "soft", p->left, p->bottom, p->right, p->bottom);
}

void fm_plot_grid_y(fm_buf *out, const fm_plot *p, double tick)
{
    double v;
    for (unsigned i = 0; tick_at(&v, i, p->y_low, p->y_high, tick); i++) {
        const double y = fm_plot_y(p, v);
        fm_svg_line(out, "grid", p->left, y, p->right, y);
        fm_svg_text(out, "", "end", p->left - 8, y + 4, "%.4g", v);
    }
    fm_svg_line(out, "soft", p->left, p->top, p->left, p->bottom);
}

void fm_series_of(fm_series *s, const fm_json *rows, const char *x, double first, const char *y)
{
    const size_t n = fm_json_count(rows), group = (n + FM_SERIES_MAX - 1) / FM_SERIES_MAX;
    *s = (fm_series){.y_low = INFINITY, .y_high = -INFINITY};
    for (size_t i = 0; i < n; i += group) {
        double x_sum = 0, y_sum = 0, have = 0;
        for (size_t k = i; k < n && k < i + group; k++) {
            const fm_json *row = fm_json_at(rows, k);
            const double v = fm_json_real(fm_json_get(row, y), NAN);
            if (!isfinite(v))
                continue;
            x_sum += fm_json_real(fm_json_get(row, x), 0) + first;
            y_sum += v;
            have++;
        }
        if (have < 1)
            continue;
        s->x[s->count] = x_sum / have;
        s->y[s->count] = y_sum / have;
        s->x_high = fmax(s->x_high, s->x[s->count]);
        s->y_low = fmin(s->y_low, s->y[s->count]);
        s->y_high = fmax(s->y_high, s->y[s->count]);
        s->count++;
    }
}

void fm_plot_line(fm_buf *out, const fm_plot *p, const char *css_class, const fm_series *s,
                  size_t far)
{
    fm_markup(out, "<polyline class=\"%s\" points=\"", css_class);
    for (size_t i = 0; i < s->count; i++) {
        const size_t from = i > far ? i - far : 0, to = FM_MIN(i + far, s->count - 1);
        double sum = 0;
        for (size_t k = from; k <= to; k++)
            sum += s->y[k];
        fm_markup(out, "%s%.1f,%.1f", i ? " " : "", fm_plot_x(p, s->x[i]),
                  fm_plot_y(p, sum / (double)(to - from + 1)));
    }
    fm_markup(out, "\"/>\n");
}

/* Size of the pictures in a cell of a table. */
enum { BAR = 120, BAR_HEIGHT = 16 };

void fm_chart_interval(fm_buf *out, double value, double low, double high)
{
    fm_svg_open(out, false, BAR, BAR_HEIGHT, "0 to 100 %");
    for (int i = 0; i <= 4; i++)
        fm_svg_line(out, "grid", BAR * i / 4.0, 0, BAR * i / 4.0, BAR_HEIGHT);
    fm_svg_line(out, "blue thick", BAR * low, BAR_HEIGHT / 2.0, BAR * high, BAR_HEIGHT / 2.0);
    if (!isnan(value))
        fm_markup(out, "<circle class=\"dot blue\" cx=\"%.1f\" cy=\"%d\" r=\"4.5\"/>\n",
                  BAR * value, BAR_HEIGHT / 2);
    fm_svg_close(out, NULL);
}

void fm_chart_balance(fm_buf *out, double good, double bad, double most)
{
    const double middle = BAR / 2.0, scale = most > 0 ? middle / most : 0;
    fm_svg_open(out, false, BAR, BAR_HEIGHT, "broken to the left, fixed to the right");
    fm_svg_line(out, "soft", middle, 0, middle, BAR_HEIGHT);
    if (bad > 0)
        fm_svg_rect(out, "bad", middle - bad * scale, 2, bad * scale, BAR_HEIGHT - 4);
    if (good > 0)
        fm_svg_rect(out, "good", middle, 2, good * scale, BAR_HEIGHT - 4);
    fm_svg_close(out, NULL);
}
