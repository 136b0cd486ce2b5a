/* internal.h - how a suite is read, and what is asked of one that was. */
#ifndef FM_TESTING_INTERNAL_H
#define FM_TESTING_INTERNAL_H

#include "testing/assert/assert.h"
#include "testing/cases/expansion.h"

/* suite.c: 1 to 64 of a-z A-Z 0-9 - _, as suites and topics are called. */
bool fmv_is_name(const char *s);
/* suite.c: a suite of its document (consumed). override: case name -> document that stands for it, or
 * NULL; a name that no case has is an error. */
fm_status fmv_suite_of_doc(fm_suite **out, fm_json *doc, const fm_json *override, const char *what);

/* suite_case.c: validate one expanded case (consumes doc). defaults: the suite's `generate`. */
fm_status fmv_case_init(fmv_case *out, fm_json *doc, const fm_json *defaults, const char *what);
void fmv_case_release(fmv_case *c);
/* case_form.c: capability, tags, against. */
fm_status fmv_form_read(fmv_case *c, const char *where);
/* pairs_read.c: what holds between prompts; a default for INV over choices. */
fm_status fmv_pairs_read(fmv_case *c, const char *where);
/* The suite's `generate`, which no case may look at. */
fm_status fmv_check_generate(const fm_json *g, const char *where);

/* scoring.c: an optional number: *out stays where there is none. */
fm_status fmv_read_number(double *out, const fm_json *obj, const char *key, const char *where);

/* measure_read.c: `measures` of the suite, once its cases are there. */
fm_status fmv_measures_read(fm_suite *s, const char *what);
void fmv_measures_release(fm_suite *s);
/* Is the case among those that m is taken over? Its group (m->by); NULL: none. */
bool fmv_measure_covers(const fmv_measure *m, const fm_suite *s, size_t i);
const char *fmv_group_of(const fmv_measure *m, const fm_suite *s, size_t i);
/* run/measure.c: fills run->measure anew; there are none unless all cases were run. */
fm_status fmv_measures_take(fm_suite_run *run);
void fmv_measures_drop(fm_suite_run *run);

/* filters.c: `filter` of a case. */
fm_status fmv_filters_read(fmv_case *c, const char *where);
void fmv_filters_release(fmv_case *c);
/* scoring.c: how many of `perplexity`, `class`, `embedding` the case has; *out: which. */
int fmv_scorings_of(const fmv_case *c, fmv_scoring *out);
fm_status fmv_scoring_read(fmv_case *c, const char *where);

/* case_form.c: "MFT", "INV" or "DIR". report/matrix.c: what a case is counted under. */
const char *fmv_case_kind_name(const fm_suite *s, size_t i);
const char *fmv_case_capability(const fm_suite *s, size_t i);

/* run/repeat.c: the counts of a run, from its results. */
void fmv_run_count(fm_suite_run *run);
/* run/compare.c: at[i] = where the i-th result of b stands in a, SIZE_MAX = nowhere; by name. */
fm_status fmv_run_pairs(size_t *at, const fm_suite_run *a, const fm_suite_run *b);

/* run/cache.c: does the answer depend on a seed? */
bool fmv_case_samples(const fmv_case *c);
/* One case's result as JSON and back; key in testing.h. */
fm_status fmv_result_encode(fm_buf *out, const fm_case_result *r);
fm_status fmv_result_decode(fm_case_result *out, fm_span text);

#endif
