/* land.h - from a finished tree to a branch that points at it, in the only safe order: commit, gates,
 * ref. And the suites that gates are. */
#ifndef FM_OPS_LAND_H
#define FM_OPS_LAND_H

#include "cli/ops/test.h"

FM_BEGIN_DECLS

/* What is to become a version; borrowed. The store's transaction must be committed already, and the
 * handle leased for writing (fm_ops_lease). */
typedef struct fm_landing {
    const char *branch;       /* the name to move */
    const fm_oid *expect_old; /* NULL: the branch must be new */
    const fm_tree *tree;
    fm_commit_opts commit;
    bool gate;  /* run the suites that the tree carries first */
    bool quiet; /* what landed is not told */
} fm_landing;
/* Commits, runs the gates, moves the branch by compare-and-swap; result "landed". FM_EREFUSED: a gate
 * failed, the candidate is kept under refs/fmstore/rejected/<branch>/<id>. FM_ECONFLICT: the branch
 * has moved meanwhile. */
fm_status fm_ops_land(fm_ops *c, const fm_landing *l, fm_oid *out);
/* The gates alone: all suites that version oid carries in tree on its model, and the suites whose gate
 * has a baseline on that version too; notes a line per suite, failing case, waiver and broken rule.
 * label: for these, "child-a". FM_OK also where one fails: out->gates_failed. */
fm_status fm_ops_gate(fm_ops *c, const fm_oid *oid, const fm_tree *tree, const char *label,
                      fm_tally *out);

/* A suite file of the user's, checked, into the tree: suites/<its name>.yaml, or
 * suites/<name>.<topic>.yaml of what changes one. FM_EINVAL names file and line. */
fm_status fm_ops_add_suite(fm_txn *txn, fm_tree *tree, const char *path);
/* The suites of a version with their changes and the ends of waivers; tree NULL: its own. The caller
 * frees them. */
fm_status fm_ops_suites(fm_ops *c, const fm_oid *at, const fm_tree *tree, fm_suite_set *out);
void fm_suite_set_free(fm_suite_set *s);

FM_END_DECLS
#endif
