/* land.h - lands a finished tree on a branch, in the only safe order: commit, gates, ref; and the
 * suites that serve as gates. */
#ifndef FM_OPS_LAND_H
#define FM_OPS_LAND_H

#include "cli/ops/test.h"

FM_BEGIN_DECLS

/* A tree to land as a version; all borrowed. The store's transaction must be committed already, and
 * the handle leased for writing (fm_ops_lease). */
typedef struct fm_landing {
    const char *branch;       /* the name to move */
    const fm_oid *expect_old; /* NULL: the branch must be new */
    const fm_tree *tree;
    fm_commit_opts commit;
    bool gate;  /* run the suites that the tree carries first */
    bool quiet; /* no result "landed" */
} fm_landing;
/* Commits, runs the gates, moves the branch by compare-and-swap; result "landed". FM_EREFUSED: a
 * gate failed, the candidate is kept under refs/fmstore/rejected/<branch>/<id>. FM_ECONFLICT: the
 * branch has moved meanwhile. */
fm_status fm_ops_land(fm_ops *c, const fm_landing *l, fm_oid *out);
/* Runs the gates alone: all suites that version oid carries in tree on its model, and suites whose
 * gate has a baseline on that baseline too. Writes a note per suite, failing case, waiver and
 * broken rule, which begins with label, "child-a". FM_OK also if gates fail: out->gates_failed
 * counts them. */
fm_status fm_ops_gate(fm_ops *c, const fm_oid *oid, const fm_tree *tree, const char *label,
                      fm_tally *out);

/* Checks a user's suite file and adds it to the tree as suites/<its name>.yaml, or as
 * suites/<name>.<topic>.yaml if it changes a suite. FM_EINVAL names file and line. */
fm_status fm_ops_add_suite(fm_txn *txn, fm_tree *tree, const char *path);
/* Reads the suites of a version with their changes applied and expired waivers removed; tree NULL:
 * the version's own. The caller frees them. */
fm_status fm_ops_suites(fm_ops *c, const fm_oid *at, const fm_tree *tree, fm_suite_set *out);
void fm_suite_set_free(fm_suite_set *s);

FM_END_DECLS
#endif
