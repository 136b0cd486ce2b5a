/* fix.h - declarations shared by fix.c (candidates, suites), graft.c (tensors), commit.c and
 * replay_graft.c. */
#ifndef FM_OPS_BLAME_FIX_H
#define FM_OPS_BLAME_FIX_H

#include "cli/ops/blame/blame_more.h"

/* Sets one tensor of tree to a + alpha (b - a), with a the parent's (NULL: it has none) and b the
 * child's, whose path it gets. Of a low-rank term that the step added only B is scaled, A stays.
 * FM_EUNSUPPORTED: the two cannot be mixed. */
fm_status fmo_blame_graft_entry(fm_tree *tree, fmo_blame_overlay *made, const fm_entry *a,
                                const fm_entry *b, double alpha);
/* Makes k->tree and k->made: the version asked about, with the units of the repair set at alpha
 * between parent and child (0: the parent's own). FM_EUNSUPPORTED: a later step changed the units,
 * or they cannot be mixed. */
fm_status fmo_blame_graft(fmo_blame_more *m, fmo_blame_candidate *k, double alpha);
/* Finds the largest alpha below 1 at which the case passes, to 1/64; sets k->alpha, tree and
 * made. */
fm_status fmo_blame_reweight(fmo_blame_more *m, fmo_blame_candidate *k);
/* The recipe of a graft, owned; NULL = ENOMEM. */
fm_json *fmo_blame_graft_recipe(const fmo_blame_more *m, const fmo_blame_candidate *k);
/* Makes a version whose recipe's operation is "graft" again, and compares (as
 * fmo_replay_training). */
fm_status fmo_replay_graft(fm_ops *c, const fm_tree *stored, const fm_json *recipe,
                           const char *label, fmo_replay_report *out);
fm_status fmo_blame_candidate_clear(fmo_blame_more *m, fmo_blame_candidate *k);

#endif
