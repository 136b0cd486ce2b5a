/* test.h - the suites of versions, asked: alone, together, or one against another. */
#ifndef FM_OPS_TEST_H
#define FM_OPS_TEST_H

#include "cli/ops/ops.h"
#include "testing/stats.h"

FM_BEGIN_DECLS

/* Suites of one version; freed by who holds it (fm_test_result_release). */
typedef struct fm_suite_set {
    fm_suite **suite;
    size_t count;
} fm_suite_set;

/* Cases of all suites of one version. */
typedef struct fm_tally {
    size_t passed, count;
    size_t waived;       /* of those that did not pass */
    size_t quarantined;  /* counted apart from those */
    size_t gates_failed; /* gate suites whose policy does not hold */
} fm_tally;

/* What a run of tests is asked for; zeros: all cases of all suites, once. */
typedef struct fm_test_choice {
    const char *suite, *case_name; /* NULL = all; case_name may be SUITE/CASE */
    const fm_words *slice;         /* "key=value", all must hold; NULL = none */
    const fm_oid *suites_of; /* every version is held to the suites of this one; NULL = its own */
    uint64_t repeat;         /* runs under other seeds, in all; 0 and 1: once */
    bool sequential;         /* stop when a suite's threshold is decided */
    double threshold;        /* of suites whose gate names no share; NaN = such are run whole */
    double alpha;            /* of that decision */
} fm_test_choice;

/* One suite on one version. */
typedef struct fm_test_part {
    size_t *pick; /* cases in the order in which they are asked; owned */
    size_t count, asked;
    bool stops; /* by rule; else all are asked at once */
    fm_sequential rule;
    fm_decision decision;
} fm_test_part;
/* Does the suite count as passed? By the decision where there is one. */
bool fm_test_part_holds(const fm_test_part *p, const fm_suite_run *run);

/* One version and what its suites gave; all owned by the result. */
typedef struct fm_tested {
    char *rev; /* as it was asked for, or the names of its branches: "a, b" */
    fm_oid oid;
    fm_oid *parent; /* its parents, role order */
    size_t parent_count;
    fm_suite_set set;   /* of its tree: those that were chosen, in the order of their names */
    fm_suite_run *run;  /* [set.count] */
    fm_test_part *part; /* [set.count] */
    fm_model *model;    /* NULL but while its batch runs */
} fm_tested;

typedef struct fm_test_result {
    fm_tested *version;
    size_t count, cap;
    size_t batches; /* that memory made necessary; 1 where all models fit */
    size_t against; /* place of the version that version 0 is compared with; SIZE_MAX: none */
    bool several;   /* several versions were asked for, or a kind of them */
    bool holds;     /* of every version that was asked for, every suite */
} fm_test_result;

typedef struct fm_test_opts {
    const char *const *rev;
    size_t revs;                 /* at least 1 */
    bool descendants, ancestors; /* of each; not both, and ancestors of one rev alone */
    const char *against;   /* one rev is held against this one, by its own suites; NULL: none */
    fm_words slice;        /* see choice.slice, which it becomes */
    fm_test_choice choice; /* threshold and alpha must be set; suites_of is found */
} fm_test_opts;
/* Leases, loads, asks, keeps outcomes and notes them on the versions. A suite that fails is no error:
 * out->holds says so. FM_ENOTFOUND: no version, or none with a suite or case of that name or in that
 * slice. FM_EINVAL: options that do not go
 * together. The caller releases out, also after a failure; releases go before fm_ops_close. */
fm_status fm_ops_test(fm_ops *c, const fm_test_opts *opts, fm_test_result *out);
void fm_test_result_release(fm_test_result *t);

FM_END_DECLS
#endif
