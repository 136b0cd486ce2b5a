/* test_pick.h - which cases of a suite are asked, in which order, and when enough is known. */
#ifndef FM_CLI_TEST_PICK_H
#define FM_CLI_TEST_PICK_H

#include "cli/base/context.h"
#include "testing/stats.h"

/* What a run of tests is asked for; zeros: all cases of all suites, once. */
typedef struct test_choice {
    const char *suite, *case_name; /* NULL = all; case_name may be SUITE/CASE */
    const opt_list *slice;         /* "key=value", all must hold; NULL = none */
    const fm_oid *suites_of; /* every version is held to the suites of this one; NULL = its own */
    uint64_t repeat;         /* runs under other seeds, in all; 0 and 1: once */
    bool sequential;         /* stop when a suite's threshold is decided */
    double threshold;        /* of suites whose gate names no share; NaN = such are run whole */
    double alpha;            /* of that decision */
} test_choice;

/* One suite on one version. */
typedef struct test_part {
    size_t *pick; /* cases in the order in which they are asked; owned */
    size_t count, asked;
    bool stops; /* by rule; else all are asked at once */
    fm_sequential rule;
    fm_decision decision;
} test_part;

/* FM_EINVAL: a slice that is no key=value. count 0: nothing of this suite was chosen. */
fm_status test_part_open(test_part *p, const fm_suite *s, const test_choice *choice);
void test_part_release(test_part *p);
/* The cases to ask next; 0: enough is known. */
size_t test_part_next(const test_part *p, const size_t **pick);
/* After these were asked: run holds all so far. */
void test_part_look(test_part *p, const fm_suite_run *run);
/* Does the suite count as passed? By the decision where there is one. */
bool test_part_holds(const test_part *p, const fm_suite_run *run);

#endif
