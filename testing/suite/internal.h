/* internal.h - reading a suite, and queries on a parsed one. */
#ifndef FM_TESTING_INTERNAL_H
#define FM_TESTING_INTERNAL_H

#include "testing/assert/assert.h"
#include "testing/cases/expansion.h"

/* suite.c: whether s is 1 to 64 of a-z A-Z 0-9 - _, as names of suites and topics must be. */
bool fmv_is_name(const char *s);
/* suite.c: makes a suite from its document, which it consumes. override: case name -> document that
 * replaces the case, or NULL; a name that no case has is an error. */
fm_status fmv_suite_of_doc(fm_suite **out, fm_json *doc, const fm_json *override, const char *what);

/* suite_case.c: validates one expanded case; consumes doc. defaults: the suite's `generate`. */
fm_status fmv_case_init(fmv_case *out, fm_json *doc, const fm_json *defaults, const char *what);
void fmv_case_release(fmv_case *c);
/* case_form.c: reads `capability`, `tags`, `against`. */
fm_status fmv_form_read(fmv_case *c, const char *where);
/* pairs_read.c: reads what must hold between prompts; INV over choices has a default. */
fm_status fmv_pairs_read(fmv_case *c, const char *where);
/* Checks the suite's `generate`, which perhaps no case uses. */
fm_status fmv_check_generate(const fm_json *g, const char *where);

/* scoring.c: reads an optional number; *out stays as it is where there is none. */
fm_status fmv_read_number(double *out, const fm_json *obj, const char *key, const char *where);

/* measure_read.c: reads `measures` of the suite, after its cases. */
fm_status fmv_measures_read(fm_suite *s, const char *what);
void fmv_measures_release(fm_suite *s);
/* Whether measure m covers the case; the case's group (m->by), NULL: none. */
bool fmv_measure_covers(const fmv_measure *m, const fm_suite *s, size_t i);
const char *fmv_group_of(const fmv_measure *m, const fm_suite *s, size_t i);
/* run/measure.c: computes run->measure again; it is empty unless all cases were run. */
fm_status fmv_measures_take(fm_suite_run *run);
void fmv_measures_drop(fm_suite_run *run);

/* filters.c: reads `filter` of a case. */
fm_status fmv_filters_read(fmv_case *c, const char *where);
void fmv_filters_release(fmv_case *c);
/* scoring.c: how many of `perplexity`, `class`, `embedding` the case has; *out: which one. */
int fmv_scorings_of(const fmv_case *c, fmv_scoring *out);
fm_status fmv_scoring_read(fmv_case *c, const char *where);

/* case_form.c: "MFT", "INV" or "DIR". report/matrix.c: the capability of a case. */
const char *fmv_case_kind_name(const fm_suite *s, size_t i);
const char *fmv_case_capability(const fm_suite *s, size_t i);

/* run/repeat.c: sets the counts of a run from its results. */
void fmv_run_count(fm_suite_run *run);
/* run/compare.c: at[i] = index in a of the i-th result of b, by name; SIZE_MAX = a lacks it. */
fm_status fmv_run_pairs(size_t *at, const fm_suite_run *a, const fm_suite_run *b);

/* run/cache.c: whether the answer depends on a seed. */
bool fmv_case_samples(const fmv_case *c);
/* One case's result as JSON and back; its key is in testing.h. */
fm_status fmv_result_encode(fm_buf *out, const fm_case_result *r);
fm_status fmv_result_decode(fm_case_result *out, fm_span text);

#endif
