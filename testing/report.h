/* report.h - reports on runs of suites on versions, for people and for machines.
 *
 * A report is a table: one column per version, parents before children, with the runs of its
 * suites. Everything here is a function of that table: the same runs give the same bytes; no clock,
 * no locale, no link. Names of cases and answers of models are hostile text and are escaped in
 * every format. JSON and JUnit of single runs are in testing.h. SUITES.md has the formats. */
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
    size_t pairs;                     /* cases in both runs that are flaky in neither */
    size_t left_out;                  /* cases in both runs that are flaky in one */
    size_t fixed, broken, both_pass;
    double p_value, p_adjusted; /* exact McNemar; set by fm_suite_changes_adjust */
    fm_estimate difference;     /* of the pass rates, now less before; paired bootstrap */
    size_t graded;              /* pairs whose answers have a grade in [0, 1] on both sides */
    double grade_change; /* mean difference of these grades, now less before; NaN: there are none */
    double grade_p;      /* its p-value, by permuting signs; NaN likewise */
    fm_flip *flip;       /* in the order of `now` */
    size_t flips;
} fm_suite_change;
/* Compares two runs; *out must be released. A case that could not be run has not passed. */
FM_CHECKED fm_status fm_suite_change_of(fm_suite_change *out, const fm_suite_run *before,
                                        const fm_suite_run *now, const fm_bootstrap *how);
void fm_suite_change_release(fm_suite_change *c);
/* The difference with its interval: the bootstrap's. Where every resample is alike (all pairs flip
 * one way, or no pair flips) the bootstrap would claim certainty, and Newcombe's is returned. */
fm_estimate fm_suite_change_interval(const fm_suite_change *c, double confidence);
/* Sets p_adjusted of all changes: by Holm, or by Benjamini and Hochberg. */
FM_CHECKED fm_status fm_suite_changes_adjust(fm_suite_change *c, size_t n, bool bh);

/* ---- the table ---- */
/* The tokens of an answer with the model's log-probability of each, for the worst cases. */
typedef struct fm_answer_token {
    char *text; /* what the token adds to the answer; owned by the caller */
    double logprob;
} fm_answer_token;
typedef struct fm_answer_tokens {
    const fm_case_result *result;
    fm_answer_token *token;
    size_t count;
} fm_answer_tokens;

typedef struct fm_report_column {
    const char *name; /* name of the version */
    const char *id;   /* id of its commit, "" if none */
    const char *note; /* how the version was made: "lora on almanac.jsonl"; "" if unknown */
    const fm_suite_run *run;
    size_t run_count;
    size_t parent; /* column of its parent or baseline; SIZE_MAX: none */
} fm_report_column;
typedef struct fm_report {
    const char *title, *mode;
    const fm_report_column *column;
    size_t count;
    size_t shown;   /* the column whose cases are listed one by one */
    bool adjust_bh; /* adjust p-values by Benjamini and Hochberg, else by Holm */
    double confidence;
    const fm_answer_tokens *tokens; /* tokens of cases of `shown` */
    size_t token_count;
} fm_report;

/* Outcomes of the cases of one capability and kind (MFT, INV, DIR) on each version. */
typedef struct fm_matrix_cell {
    size_t passed, failed, errors, flaky, waived, count; /* waived: cases among those that failed */
} fm_matrix_cell;
typedef struct fm_matrix_row {
    const char *capability; /* the case's capability, else its suite's name; borrowed */
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

/* The cases of `shown` to look at first: those that did not pass or are flaky, lowest score first,
 * cases without a score last, equal ones by name; at most max. Borrowed from the runs. */
FM_CHECKED fm_status fm_report_worst(const fm_case_result **out, size_t *n, size_t max,
                                     const fm_report *r);
/* The suite of a result of `shown`. */
const fm_suite *fm_report_suite_of(const fm_report *r, const fm_case_result *result);

/* ---- formats ---- */
/* One HTML file: no script, no link; each SVG has a table next to it; light and dark. */
FM_CHECKED fm_status fm_report_html(fm_buf *out, const fm_report *r);
/* SARIF 2.1.0 of `shown`: a rule per case, a result per failure; waived failures are suppressed. */
FM_CHECKED fm_status fm_report_sarif(fm_buf *out, const fm_report *r);
/* Markdown for a comment on a change: rates, flips, failing cases. */
FM_CHECKED fm_status fm_report_markdown(fm_buf *out, const fm_report *r);
/* TAP 14, one point per case of `shown`; flaky and waived cases are TODO. */
FM_CHECKED fm_status fm_report_tap(fm_buf *out, const fm_report *r);

FM_END_DECLS
#endif
