/* version_tree.h - building a new version's tree and landing it: store, commit, gate, ref. */
#ifndef FM_OPS_VERSION_TREE_H
#define FM_OPS_VERSION_TREE_H

#include "cli/ops/version/suite_files.h"

/* Remove every entry under prefix ("source/"). */
fm_status fmo_tree_drop(fm_tree *tree, const char *prefix);
/* Copy every entry of src under prefix that dst lacks. */
fm_status fmo_tree_inherit(fm_tree *dst, const fm_tree *src, const char *prefix);
/* What tells how the parent itself was made: its sources, its data, its recipe and log. */
fm_status fmo_tree_drop_history(fm_tree *tree);
/* JSON, pretty and with a newline behind it, as a file of the tree. */
fm_status fmo_tree_put_json(fm_txn *txn, fm_tree *tree, const char *path, const fm_json *v);
/* Offers the tips of all branches to the transaction, in the order of their names: what is put may be
 * coded against their tensors. */
fm_status fmo_offer_branches(fm_ops *c, fm_txn *txn);
/* Before any work: FM_EEXISTS where the branch is there already, FM_EINVAL for a bad name. */
fm_status fmo_branch_must_be_new(fm_ops *c, const char *name);
/* recipe.json as JSON, owned; *out NULL where the tree has none. */
fm_status fmo_tree_recipe(fm_ops *c, const fm_tree *tree, fm_json **out);

/* {"id","tree","kind","parents":[...],"author","time","message","recipe","data"}; owned, NULL =
 * ENOMEM. */
fm_json *fmo_version_json(const fm_version *v);

/* The two halves of fm_ops_land, for who moves the branch later: until then only the lease of this process
 * keeps the version. */
fm_status fmo_version_candidate(fm_ops *c, const fm_landing *l, fm_oid *out, fm_tally *tally);
fm_status fmo_version_land(fm_ops *c, const fm_landing *l, const fm_oid *oid,
                           const fm_tally *tally);

/* One line on the commit, for people who look with plain git; nothing where no case was run or the
 * last line says the same. */
fm_status fmo_note_tests(fm_ops *c, const fm_oid *oid, const fm_tally *tally);
/* The last line of the note on a commit, owned; NULL where there is none. */
char *fmo_tests_note(fm_ops *c, const fm_oid *oid);

/* fm_result_cache.open: the version of that full id, of its commit or its tree. FM_EINVAL: a name,
 * with the id to write instead. */
fm_status fmo_pinned_model(void *ctx, const char *id, fm_model **out);
/* Results kept in lineage, and versions that suites name. */
fm_result_cache fmo_suite_cache(fm_ops *c);

#endif
