/* test_many.h - the suites of several versions run as one batch: load, run, release. */
#ifndef FM_OPS_TEST_MANY_H
#define FM_OPS_TEST_MANY_H

#include "cli/ops/test/test_pick.h"
#include "cli/ops/version/version_tree.h"

/* One version more; a commit that is there already only adds its name. rev: as people write it. */
fm_status fmo_test_many_add(fm_ops *c, fm_test_result *t, const char *rev);
/* rev, and the tip of every branch that comes from it. */
fm_status fmo_test_many_descendants(fm_ops *c, fm_test_result *t, const char *rev);
/* rev, and every version that it comes from. */
fm_status fmo_test_many_ancestors(fm_ops *c, fm_test_result *t, const char *rev);
/* Runs all suites of all versions. Models are loaded once and share what tensors they share; what
 * does not fit into the budget (of the engine, else half of the memory) makes another batch.
 * Outcomes are those of single runs. Suites of which nothing was chosen are dropped. FM_ENOTFOUND:
 * no version has a suite or case of that name, or in that slice. */
fm_status fmo_test_many_run(fm_ops *c, fm_test_result *t, const fm_test_choice *choice);

#endif
