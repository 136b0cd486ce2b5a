/* page.h - the HTML report in its parts: html.c (page, tables), charts.c
 * (pictures). */
#ifndef FM_TESTING_REPORT_PAGE_H
#define FM_TESTING_REPORT_PAGE_H

#include "testing/suite/internal.h"
#include "testing/report.h"

typedef struct fmv_page {
    const fm_report *report;
    fm_matrix matrix;
    fm_matrix_cell *total;   /* [columns] of all cases */
    fm_suite_change *change; /* per column and suite that has a parent column; by column */
    size_t *change_column;   /* [changes] */
    size_t changes;
} fmv_page;

fm_interval fmv_cell_interval(const fm_matrix_cell *c, double confidence);
/* "long na…": at most `most` characters of a text; ring of 8 buffers. */
const char *fmv_short_text(const char *text, size_t most);

/* Each appends an <svg> that names itself for those who cannot see it. */
void fmv_chart_matrix(fm_buf *out, const fmv_page *p);
void fmv_chart_rates(fm_buf *out, const fmv_page *p);
void fmv_chart_flips(fm_buf *out, const fmv_page *p);
/* Of the finite scores of column at; [low, high] is the common range of all columns. */
void fmv_chart_scores(fm_buf *out, const fmv_page *p, size_t at, double low, double high);

/* The finite scores of a column, sorted; owned. */
typedef struct fmv_score {
    double score;
    bool pass;
} fmv_score;
fm_status fmv_scores_of(fmv_score **out, size_t *n, const fm_report_column *c);

#endif
