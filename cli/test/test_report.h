/* test_report.h - what the suites of versions gave: to the terminal, as JSON, into files. */
#ifndef FM_CLI_TEST_REPORT_H
#define FM_CLI_TEST_REPORT_H

#include "cli/test/test_many.h"
#include "testing/report.h"

typedef struct test_output {
    bool json, verbose, matrix;
    bool adjust_bh; /* Benjamini-Hochberg instead of Holm */
    size_t against; /* place of the version to compare version 0 with; SIZE_MAX: none */
    bool several;   /* versions are told one by one: an array in JSON */
    const char *junit, *sarif, *html, *markdown, *tap;
} test_output;

/* Writes the files that are asked for, then prints. */
fm_status test_report(cli *c, const test_many *t, const test_output *o);

/* test_pages.c: the table of versions, parents before children. Borrows from t. */
typedef struct test_pages {
    fm_report report;
    fm_report_column *column;
    size_t *version; /* [columns] place in t */
    char (*hex)[41];
    char **note, *title;
    fm_answer_tokens *tokens;
} test_pages;
fm_status test_pages_open(cli *c, test_pages *p, const test_many *t, const test_output *o);
fm_status test_pages_write(cli *c, test_pages *p, const test_many *t, const test_output *o);
void test_pages_release(test_pages *p);

#endif
