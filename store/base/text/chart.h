/* chart.h - the pictures of pages, as SVG. The same input gives the same bytes; coordinates have
 * one decimal. A mark has the colour of its CSS class (good, bad, soft, blue, orange, violet,
 * grid), which follows the viewer's light or dark scheme. */
#ifndef FM_BASE_CHART_H
#define FM_BASE_CHART_H

#include "store/base/text/json.h"
#include "store/base/text/markup.h"

FM_BEGIN_DECLS
extern const char fm_chart_style[]; /* the part of the style sheet that pictures need */

/* says: a description for screen readers. file: with the style sheet. caption may be NULL. */
void fm_svg_open(fm_buf *out, bool file, double width, double height, const char *says);
void fm_svg_close(fm_buf *out, const char *caption);

void fm_svg_line(fm_buf *out, const char *css_class, double x1, double y1, double x2, double y2);
void fm_svg_rect(fm_buf *out, const char *css_class, double x, double y, double width,
                 double height);
/* A short text at x, y, formatted by fm_markup; anchor: "start", "middle" or "end". */
void fm_svg_text(fm_buf *out, const char *css_class, const char *anchor, double x, double y,
                 const char *fmt, ...) FM_PRINTF(6, 7);
/* The distance of ticks: 1, 2 or 5 times a power of ten, with at most `most` in span. */
double fm_svg_tick(double span, double most);

/* A box of a picture into which values are drawn. */
typedef struct fm_plot {
    double left, right, top, bottom; /* in the picture */
    double x_low, x_high, y_low, y_high;
} fm_plot;
double fm_plot_x(const fm_plot *p, double v);
double fm_plot_y(const fm_plot *p, double v);
/* Grid lines at the multiples of tick, with their values below (y: to the left of) the box. */
void fm_plot_grid_x(fm_buf *out, const fm_plot *p, double tick);
void fm_plot_grid_y(fm_buf *out, const fm_plot *p, double tick);

/* Points of a line. */
#define FM_SERIES_MAX 600
typedef struct fm_series {
    double x[FM_SERIES_MAX], y[FM_SERIES_MAX];
    size_t count;
    double x_high, y_low, y_high; /* x from 0; y INFINITY and -INFINITY where there is no point */
} fm_series;
/* The points of an array of objects: the value of key x plus `first`, and the value of key y.
 * Beyond FM_SERIES_MAX objects neighbours are averaged; an object without a number y is left
 * out. */
void fm_series_of(fm_series *s, const fm_json *rows, const char *x, double first, const char *y);
/* A line through means over `far` points on both sides of each; 0: through the points. */
void fm_plot_line(fm_buf *out, const fm_plot *p, const char *css_class, const fm_series *s,
                  size_t far);

/* For a cell of a table: a share in [0, 1] with its interval; value NaN: the interval alone. */
void fm_chart_interval(fm_buf *out, double value, double low, double high);
/* For a cell: bad to the left, good to the right of a line; most: the longest bar of the table. */
void fm_chart_balance(fm_buf *out, double good, double bad, double most);
FM_END_DECLS
#endif
