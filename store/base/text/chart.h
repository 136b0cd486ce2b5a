/* chart.h - the pictures of pages: SVG written by hand, same input, same bytes. Coordinates have one
 * decimal. Classes give colours that follow the reader's scheme: good, bad, soft, blue, orange,
 * violet, grid; a mark has the colour of its class. */
#ifndef FM_BASE_CHART_H
#define FM_BASE_CHART_H

#include "store/base/text/json.h"
#include "store/base/text/markup.h"

FM_BEGIN_DECLS
extern const char fm_chart_style[]; /* the part of the style sheet that pictures need */

/* A picture; says: what it is, for those who do not see it. A file of its own gets the style sheet;
 * caption may be NULL. */
void fm_svg_open(fm_buf *out, bool file, double width, double height, const char *says);
void fm_svg_close(fm_buf *out, const char *caption);

void fm_svg_line(fm_buf *out, const char *css_class, double x1, double y1, double x2, double y2);
void fm_svg_rect(fm_buf *out, const char *css_class, double x, double y, double width,
                 double height);
/* A short text at x, y, as fm_markup has it; anchor "start", "middle", "end". */
void fm_svg_text(fm_buf *out, const char *css_class, const char *anchor, double x, double y,
                 const char *fmt, ...) FM_PRINTF(6, 7);
/* 1, 2 or 5 times a power of ten, so that span has at most `most` of it. */
double fm_svg_tick(double span, double most);

/* A box of a picture into which values are drawn. */
typedef struct fm_plot {
    double left, right, top, bottom; /* in the picture */
    double x_low, x_high, y_low, y_high;
} fm_plot;
double fm_plot_x(const fm_plot *p, double v);
double fm_plot_y(const fm_plot *p, double v);
/* Lines at the multiples of tick and their values below (to the left of) the box. */
void fm_plot_grid_x(fm_buf *out, const fm_plot *p, double tick);
void fm_plot_grid_y(fm_buf *out, const fm_plot *p, double tick);

/* Points of a line. */
#define FM_SERIES_MAX 600
typedef struct fm_series {
    double x[FM_SERIES_MAX], y[FM_SERIES_MAX];
    size_t count;
    double x_high, y_low, y_high; /* from 0 on; INFINITY and -INFINITY where there is no point */
} fm_series;
/* Of an array of objects: the values of key x, `first` added, and of key y, as means of neighbours where
 * there are many; an object whose y is no number is left out. */
void fm_series_of(fm_series *s, const fm_json *rows, const char *x, double first, const char *y);
/* Through means over `far` points on both sides; 0: through the points. */
void fm_plot_line(fm_buf *out, const fm_plot *p, const char *css_class, const fm_series *s,
                  size_t far);

/* Pictures for a cell of a table. A share in [0, 1] with its interval; NaN: the interval alone. */
void fm_chart_interval(fm_buf *out, double value, double low, double high);
/* bad to the left and good to the right of a line; most: the longest bar of the table. */
void fm_chart_balance(fm_buf *out, double good, double bad, double most);
FM_END_DECLS
#endif
