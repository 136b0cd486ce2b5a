/* test.h - runs the suites of versions: of one, of several, or of one against another. */
#ifndef FM_OPS_TEST_H
#define FM_OPS_TEST_H

#include "cli/ops/ops.h"
#include "testing/stats.h"

FM_BEGIN_DECLS

/* Suites of one version; in a result, fm_test_result_release frees them. */
typedef struct fm_suite_set {
    fm_suite **suite;
    size_t count;
} fm_suite_set;

/* Numbers of cases in all suites of one version. */
typedef struct fm_tally {
    size_t passed, count;
    size_t waived;       /* did not pass, but have a waiver */
    size_t quarantined;  /* not counted as waived */
    size_t gates_failed; /* gate suites whose policy does not hold */
} fm_tally;

/* Which cases to run; zeros: all cases of all suites, once. */
typedef struct fm_test_choice {
    const char *suite, *case_name; /* NULL = all; case_name may be SUITE/CASE */
    const fm_words *slice;         /* "key=value", all must hold; NULL = none */
    const fm_oid *suites_of;       /* every version runs the suites of this one; NULL = its own */
    uint64_t repeat;               /* number of runs, each with another seed; 0 and 1: once */
    bool sequential;               /* stop when a suite's threshold is decided */
    double threshold;              /* of suites without a gate; NaN = these run whole */
    double alpha;                  /* of that decision */
} fm_test_choice;

/* One suite on one version. */
typedef struct fm_test_part {
    size_t *pick; /* cases in the order in which they run; owned */
    size_t count, asked;
    bool stops; /* as rule decides; else all run at once */
    fm_sequential rule;
    fm_decision decision;
} fm_test_part;
/* Whether the suite passed: by the sequential decision if there is one. */
bool fm_test_part_holds(const fm_test_part *p, const fm_suite_run *run);

/* One version and the results of its suites; all owned by the fm_test_result. */
typedef struct fm_tested {
    char *rev; /* as the caller named it, or the names of its branches: "a, b" */
    fm_oid oid;
    fm_oid *parent; /* its parents, role order */
    size_t parent_count;
    fm_suite_set set;   /* the chosen suites, by name */
    fm_suite_run *run;  /* [set.count] */
    fm_test_part *part; /* [set.count] */
    fm_model *model;    /* NULL unless its batch runs */
} fm_tested;

typedef struct fm_test_result {
    fm_tested *version;
    size_t count, cap;
    size_t batches; /* 1 if all models fit into memory at once */
    size_t against; /* index of the version that version 0 is compared with; SIZE_MAX: none */
    bool several;   /* several versions were requested, or descendants or ancestors */
    bool holds;     /* every suite passed: of version 0 with against or ancestors, else of all */
} fm_test_result;

typedef struct fm_test_opts {
    const char *const *rev;
    size_t revs;                 /* at least 1 */
    bool descendants, ancestors; /* of each; not both, and ancestors of one rev alone */
    const char *against;   /* compare the one rev with this one, by the suites of rev; NULL: none */
    fm_words slice;        /* choice.slice is set to it */
    fm_test_choice choice; /* threshold and alpha must be set; suites_of is set by the call */
} fm_test_opts;
/* Takes a lease, loads models, runs the suites, stores the results and notes them on the versions.
 * A suite that fails is no error: out->holds is false. FM_ENOTFOUND: no such version, or no version
 * has a suite or case of that name or in that slice. FM_EINVAL: options that exclude each other.
 * The caller releases out, also after a failure, and before fm_ops_close. */
fm_status fm_ops_test(fm_ops *c, const fm_test_opts *opts, fm_test_result *out);
void fm_test_result_release(fm_test_result *t);

FM_END_DECLS
#endif
