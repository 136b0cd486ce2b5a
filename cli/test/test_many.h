/* test_many.h - the suites of several versions run as one batch: load, run, release. */
#ifndef FM_CLI_TEST_MANY_H
#define FM_CLI_TEST_MANY_H

#include "cli/test/test_pick.h"
#include "cli/version/version_tree.h"

/* One version and what its suites gave. */
typedef struct tested {
    char *rev; /* as it was asked for, or the names of its branches: "a, b"; owned */
    fm_oid oid;
    fm_oid *parent; /* its parents, role order; owned */
    size_t parent_count;
    suite_set set;     /* of its tree: those that were chosen, in the order of their names */
    fm_suite_run *run; /* [set.count] after test_many_run; owned */
    test_part *part;   /* [set.count]; owned */
    fm_model *model;   /* open while its batch runs */
} tested;

typedef struct test_many {
    tested *version;
    size_t count, cap;
    size_t batches; /* that memory made necessary; 1 where all models fit */
} test_many;

/* One version more; a commit that is there already only adds its name. rev: as people write it. */
fm_status test_many_add(cli *c, test_many *t, const char *rev);
/* rev, and the tip of every branch that comes from it. */
fm_status test_many_descendants(cli *c, test_many *t, const char *rev);
/* rev, and every version that it comes from. */
fm_status test_many_ancestors(cli *c, test_many *t, const char *rev);
/* Runs all suites of all versions. Models are loaded once and share what tensors they share; what
 * does not fit into the budget (of the engine, else half of the memory) makes another batch.
 * Outcomes are those of single runs. Suites of which nothing was chosen are dropped. FM_ENOTFOUND:
 * no version has a suite or case of that name, or in that slice. */
fm_status test_many_run(cli *c, test_many *t, const test_choice *choice);
void test_many_release(test_many *t);

#endif
