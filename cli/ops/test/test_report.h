/* test_report.h - results of the suites of versions: comparison, JSON, files. */
#ifndef FM_OPS_TEST_REPORT_H
#define FM_OPS_TEST_REPORT_H

#include "cli/ops/test/test_many.h"
#include "testing/report.h"

typedef struct fmo_test_output {
    bool json, verbose, matrix;
    bool adjust_bh; /* Benjamini-Hochberg instead of Holm */
    const char *junit, *sarif, *html, *markdown, *tap;
} fmo_test_output;

/* The changes between two versions, suite by suite; the caller releases them, but not after a
 * failure. */
typedef struct fmo_test_changes {
    fm_suite_change *at;
    size_t count;
} fmo_test_changes;
fm_status fmo_test_changes_of(fmo_test_changes *ch, const fm_tested *was, const fm_tested *is,
                              bool bh);
void fmo_test_changes_release(fmo_test_changes *ch);
/* The results as JSON, owned; NULL = ENOMEM. ch: given if t->against is set. */
fm_json *fmo_test_json(const fm_test_result *t, const fmo_test_output *o,
                       const fmo_test_changes *ch);
#define TEST_CONFIDENCE 0.95
#define TEST_ALPHA 0.05 /* for the smallest difference that the cases can show */
#define TEST_POWER 0.8

/* test_pages.c: the table of versions, parents before children. Borrows from t. */
typedef struct fmo_test_pages {
    fm_report report;
    fm_report_column *column;
    size_t *version; /* [columns] index in t->version */
    char (*hex)[41];
    char **note, *title;
    fm_answer_tokens *tokens;
} fmo_test_pages;
fm_status fmo_test_pages_open(fm_ops *c, fmo_test_pages *p, const fm_test_result *t,
                              const fmo_test_output *o);
fm_status fmo_test_pages_write(fm_ops *c, fmo_test_pages *p, const fm_test_result *t,
                               const fmo_test_output *o);
void fmo_test_pages_release(fmo_test_pages *p);

#endif
