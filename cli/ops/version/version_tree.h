/* version_tree.h - builds a new version's tree and lands it: store, commit, gate, ref. */
#ifndef FM_OPS_VERSION_TREE_H
#define FM_OPS_VERSION_TREE_H

#include "cli/ops/version/suite_files.h"

/* Removes every entry under prefix ("source/"). */
fm_status fmo_tree_drop(fm_tree *tree, const char *prefix);
/* Copies every entry of src under prefix that dst lacks. */
fm_status fmo_tree_inherit(fm_tree *dst, const fm_tree *src, const char *prefix);
/* Removes the record of how the parent itself was made: its sources, data, recipe and log. */
fm_status fmo_tree_drop_history(fm_tree *tree);
/* Writes v as pretty JSON with a final newline into a file of the tree. */
fm_status fmo_tree_put_json(fm_txn *txn, fm_tree *tree, const char *path, const fm_json *v);
/* Offers the tips of all branches to the transaction, by name: new objects may be coded against
 * their tensors. */
fm_status fmo_offer_branches(fm_ops *c, fm_txn *txn);
/* Check before any work. FM_EEXISTS: the branch exists; FM_EINVAL: a bad name. */
fm_status fmo_branch_must_be_new(fm_ops *c, const char *name);
/* Reads recipe.json, owned; *out is NULL if the tree has none. */
fm_status fmo_tree_recipe(fm_ops *c, const fm_tree *tree, fm_json **out);

/* {"id","tree","kind","parents":[...],"author","time","message","recipe","data"}; owned, NULL =
 * ENOMEM. */
fm_json *fmo_version_json(const fm_version *v);

/* The two halves of fm_ops_land, for callers that move the branch later: until then only this
 * process's lease keeps the version. */
fm_status fmo_version_candidate(fm_ops *c, const fm_landing *l, fm_oid *out, fm_tally *tally);
fm_status fmo_version_land(fm_ops *c, const fm_landing *l, const fm_oid *oid,
                           const fm_tally *tally);

/* Notes the tally as one line on the commit, visible in plain git; nothing if no case ran or the
 * note's last line is the same. */
fm_status fmo_note_tests(fm_ops *c, const fm_oid *oid, const fm_tally *tally);
/* The last line of the note on a commit, owned; NULL if there is none. */
char *fmo_tests_note(fm_ops *c, const fm_oid *oid);

/* fm_result_cache.open: loads the version of a full commit or tree id. FM_EINVAL: id is a name; the
 * text has the id to write instead. */
fm_status fmo_pinned_model(void *ctx, const char *id, fm_model **out);
/* The cache of results in lineage, which also opens the versions that suites name. */
fm_result_cache fmo_suite_cache(fm_ops *c);

#endif
