/* curve.h - pictures of a training: a curve as SVG, a page as HTML. */
#ifndef FM_OPS_CURVE_H
#define FM_OPS_CURVE_H

#include "cli/ops/base/say.h"

/* Appends a curve of log: [{"step","loss","grad_norm","lr"}]. The same input gives the same
 * bytes. */
fm_status fmo_curve_svg(fm_buf *out, const fm_json *log, const char *title);
typedef struct fmo_curve_page {
    const char *title;
    const fm_json *log, *recipe; /* recipe.json */
    const fm_json *sweep;        /* NULL: none */
    const fm_json *report;       /* array of reports on the data; NULL: none */
    const char *const *gates;    /* names of the version's suites */
    size_t gate_count;
} fmo_curve_page;
/* Appends a page that needs no other file. */
fm_status fmo_curve_html(fm_buf *out, const fmo_curve_page *page);

#endif
