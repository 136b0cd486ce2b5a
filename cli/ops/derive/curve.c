/* curve.c - draws the curve of a training as SVG and writes a page around it. */
#include "cli/ops/derive/curve.h"

#include <math.h>

#include "store/base/text/chart.h"
#include "store/base/text/page.h"

enum { WIDTH = 760, HEIGHT = 412, LEFT = 64, RIGHT = 744 };

/* Draws the loss, as a faint line, and its moving average, as a thick one, above the learning
 * rate. */
static void draw(fm_buf *out, bool file, const fm_json *log, const char *title)
{
    fm_series loss, rate;
    fm_series_of(&loss, log, "step", 1, "loss");
    fm_series_of(&rate, log, "step", 1, "lr");
    const double pad = fmax((loss.y_high - loss.y_low) * 0.05, 1e-6);
    fm_plot upper = {LEFT, RIGHT, 44, 264, 1, fmax(loss.x_high, 2), 0, 1};
    if (loss.count) {
        upper.y_low = loss.y_low < 0 ? loss.y_low - pad : fmax(loss.y_low - pad, 0);
        upper.y_high = loss.y_high + pad;
    }
    const fm_plot lower = {LEFT, RIGHT,        312, 372,
                           1,    upper.x_high, 0,   rate.y_high > 0 ? rate.y_high : 1};
    const double steps = fmax(fm_svg_tick(upper.x_high - 1, 8), 1);
    const size_t far = loss.count / 40;
    fm_svg_open(out, file, WIDTH, HEIGHT, title);
    fm_svg_text(out, "title", "start", LEFT, 20, "%s", title);
    if (loss.count)
        fm_svg_text(out, "side", "end", RIGHT, 20, "%zu steps, loss %.4f to %.4f",
                    fm_json_count(log), loss.y[0], loss.y[loss.count - 1]);
    fm_plot_grid_x(out, &upper, steps);
    fm_plot_grid_y(out, &upper, fm_svg_tick(upper.y_high - upper.y_low, 6));
    fm_plot_grid_x(out, &lower, steps);
    fm_plot_grid_y(out, &lower, lower.y_high);
    fm_svg_text(out, "side", "start", LEFT + 6, upper.top - 6, "loss");
    fm_svg_text(out, "side", "start", LEFT + 6, lower.top - 6, "learning rate");
    fm_svg_text(out, "side", "end", RIGHT, lower.bottom + 34, "step");
    if (far)
        fm_plot_line(out, &upper, "raw blue faint", &loss, 0);
    fm_plot_line(out, &upper, "loss blue thick", &loss, far);
    fm_plot_line(out, &lower, "lr orange", &rate, 0);
    fm_svg_close(out, NULL);
}

fm_status fmo_curve_svg(fm_buf *out, const fm_json *log, const char *title)
{
    draw(out, true, log, title);
    return fm_buf_ok(out);
}

/* ---- the page ---- */

static void about(fm_buf *out, const fm_json *recipe)
{
    static const char *const keys[] = {"operation", "engine", "device", "mode", "kernel_class"};
    fm_markup(out, "<p>");
    for (size_t i = 0; i < FM_ARRAY_LEN(keys); i++)
        fm_markup(out, "%s%s %s", i ? " \xC2\xB7 " : "", keys[i],
                  fm_json_cstr(fm_json_get(recipe, keys[i]), ""));
    fm_markup(out, "</p>\n");
}

fm_status fmo_curve_html(fm_buf *out, const fmo_curve_page *page)
{
    const fm_json *data = fm_json_get(page->recipe, "data");
    fm_page_open(out, "%s", page->title);
    about(out, page->recipe);
    draw(out, false, page->log, page->title);
    if (page->sweep) {
        fm_markup(out, "<h2>Sweep</h2>\n");
        fm_table_of(out, "trial|settings=set|steps|loss|outcome",
                    fm_json_get(page->sweep, "trials"), SIZE_MAX);
    }
    fm_markup(out, "<h2>Settings</h2>\n");
    fm_table_of_keys(out, fm_json_get(page->recipe, "config"));
    fm_markup(out, "<h2>Data</h2>\n");
    for (size_t i = 0; i < fm_json_count(data); i++)
        fm_table_of_keys(out, fm_json_at(data, i));
    for (size_t i = 0; i < fm_json_count(page->report); i++) {
        fm_markup(out, "<h3>Report</h3>\n");
        fm_table_of_keys(out, fm_json_at(page->report, i));
    }
    if (page->gate_count) {
        fm_markup(out, "<h2>Suites</h2>\n<ul>\n");
        for (size_t i = 0; i < page->gate_count; i++)
            fm_markup(out, "<li>%s</li>\n", page->gates[i]);
        fm_markup(out, "</ul>\n");
    }
    fm_page_close(out);
    return fm_buf_ok(out);
}
