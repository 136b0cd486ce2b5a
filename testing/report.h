/* report.h - what suites gave on versions, for people and for machines.
 *
 * A report is a table: one column per version, parents before children, and the runs of its suites
 * in it. Everything here is a function of that table: the same runs give the same bytes; no clock,
 * no locale, no link to anywhere. Names of cases and answers of models are hostile text and are
 * escaped in every format. JSON and JUnit of single runs are in testing.h. SUITES.md has the
 * forms. */
#ifndef FM_TESTING_REPORT_H
#define FM_TESTING_REPORT_H

#include "testing/stats.h"
#include "testing/testing.h"

FM_BEGIN_DECLS

/* ---- two runs of one suite (run/compare.c) ---- */
typedef struct fm_flip {
    const fm_case_result *before, *now; /* one passed, the other did not */
} fm_flip;
typedef struct fm_suite_change {
    const fm_suite_run *before, *now; /* borrowed */
    size_t pairs;                     /* cases of both that are not flaky in either */
    size_t left_out;                  /* cases of both that are */
    size_t fixed, broken, both_pass;
    double p_value, p_adjusted; /* exact two-sided McNemar; after fm_suite_changes_adjust */
    fm_estimate
        difference; /* of the pass rates over the pairs, now less before; paired bootstrap */
    size_t graded;  /* of the pairs, those whose answers have a grade in [0, 1] on both sides */
    double grade_change; /* the mean of their differences, now less before; NaN: there are none */
    double grade_p;      /* two-sided, signs of the differences permuted; NaN likewise */
    fm_flip *flip;       /* in the order of now */
    size_t flips;
} fm_suite_change;
/* A case that could not be run has not passed. Released by the next. */
FM_CHECKED fm_status fm_suite_change_of(fm_suite_change *out, const fm_suite_run *before,
                                        const fm_suite_run *now, const fm_bootstrap *how);
void fm_suite_change_release(fm_suite_change *c);
/* The difference with its interval: the bootstrap's; where every resample is alike (all pairs flip
 * one way, or none does) it would claim certainty, and Newcombe's stands instead. */
fm_estimate fm_suite_change_interval(const fm_suite_change *c, double confidence);
/* p_adjusted of all: by Holm, or by Benjamini and Hochberg. */
FM_CHECKED fm_status fm_suite_changes_adjust(fm_suite_change *c, size_t n, bool bh);

/* ---- the table ---- */
/* The tokens of an answer and how likely the model held each, for the worst cases. */
typedef struct fm_answer_token {
    char *text; /* what it adds to the answer; owned by who made it */
    double logprob;
} fm_answer_token;
typedef struct fm_answer_tokens {
    const fm_case_result *result;
    fm_answer_token *token;
    size_t count;
} fm_answer_tokens;

typedef struct fm_report_column {
    const char *name; /* of the version */
    const char *id;   /* of its commit, "" if none */
    const char *note; /* how it came to be: "lora on almanac.jsonl"; "" if unknown */
    const fm_suite_run *run;
    size_t run_count;
    size_t parent; /* the column that it came from or is compared with; SIZE_MAX: none */
} fm_report_column;
typedef struct fm_report {
    const char *title, *mode;
    const fm_report_column *column;
    size_t count;
    size_t shown;   /* the column whose cases are told one by one */
    bool adjust_bh; /* p-values by Benjamini and Hochberg, else by Holm */
    double confidence;
    const fm_answer_tokens *tokens; /* of cases of `shown` */
    size_t token_count;
} fm_report;

/* Passes of the cases of one capability and kind (MFT, INV, DIR) on each version. */
typedef struct fm_matrix_cell {
    size_t passed, failed, errors, flaky, waived, count; /* waived: of those that failed */
} fm_matrix_cell;
typedef struct fm_matrix_row {
    const char *capability; /* the case's, else its suite's name; borrowed */
    const char *kind;
    fm_matrix_cell *cell; /* [columns] */
} fm_matrix_row;
typedef struct fm_matrix {
    fm_matrix_row *row; /* in the order of their first case */
    size_t count, columns;
    fm_matrix_cell *cells;
} fm_matrix;
FM_CHECKED fm_status fm_report_matrix(fm_matrix *out, const fm_report *r);
void fm_matrix_release(fm_matrix *m);
/* Share of passes among the cases that count (neither flaky nor waived); NaN: there are none. */
double fm_matrix_share(const fm_matrix_cell *c);

/* What cases a person should look at first: of `shown`, those that did not pass, lowest score
 * first, those without a score in their order behind them; at most max. Borrowed from the runs. */
FM_CHECKED fm_status fm_report_worst(const fm_case_result **out, size_t *n, size_t max,
                                     const fm_report *r);
/* The suite of a result of `shown`, for its name. */
const fm_suite *fm_report_suite_of(const fm_report *r, const fm_case_result *result);

/* ---- forms ---- */
/* One HTML file: no script, no link; SVG with a table beside each, light and dark. */
FM_CHECKED fm_status fm_report_html(fm_buf *out, const fm_report *r);
/* SARIF 2.1.0: a rule per case, a result per failure; waived ones suppressed. Of `shown`. */
FM_CHECKED fm_status fm_report_sarif(fm_buf *out, const fm_report *r);
/* For a comment on a change: rates, flips, failing cases. */
FM_CHECKED fm_status fm_report_markdown(fm_buf *out, const fm_report *r);
/* TAP 14, one point per case of `shown`; flaky and waived ones are TODO. */
FM_CHECKED fm_status fm_report_tap(fm_buf *out, const fm_report *r);

FM_END_DECLS
#endif
