/* test_many.h - the suites of several versions run as one batch: load, run, release. */
#ifndef FM_OPS_TEST_MANY_H
#define FM_OPS_TEST_MANY_H

#include "cli/ops/test/test_pick.h"
#include "cli/ops/version/version_tree.h"

/* Adds one version; a commit that was added before only gets another name, rev. */
fm_status fmo_test_many_add(fm_ops *c, fm_test_result *t, const char *rev);
/* Adds rev, and the tip of every branch that descends from it. */
fm_status fmo_test_many_descendants(fm_ops *c, fm_test_result *t, const char *rev);
/* Adds rev, and every ancestor of it. */
fm_status fmo_test_many_ancestors(fm_ops *c, fm_test_result *t, const char *rev);
/* Runs all suites of all versions. Each model is loaded once, and equal tensors are loaded once;
 * models that exceed the budget (of the engine, else half of the memory) go to another batch.
 * Results are those of single runs. Suites without a chosen case are dropped. FM_ENOTFOUND: no
 * version has a suite or case of that name, or in that slice. */
fm_status fmo_test_many_run(fm_ops *c, fm_test_result *t, const fm_test_choice *choice);

#endif
