/* fix.h - between fix.c (candidates, suites, the commit) and graft.c
 * (tensors). */
#ifndef FM_OPS_BLAME_FIX_H
#define FM_OPS_BLAME_FIX_H

#include "cli/ops/blame/blame_more.h"

/* Sets one tensor of tree between a (the parent's; NULL: it had none) and b (the child's, at
 * whose path it is). Of a tensor that the step added a low-rank term's B carries the whole, its
 * A stays. FM_EUNSUPPORTED: no values between. */
fm_status blame_graft_entry(fm_tree *tree, blame_overlay *made, const fm_entry *a,
                            const fm_entry *b, double alpha);
/* k->tree and k->made: the version asked about, the units of the repair set at alpha between parent
 * and child (0: the parent's own). FM_EUNSUPPORTED: a later step changed them, or they have no
 * values between. */
fm_status blame_graft(blame_more *m, blame_candidate *k, double alpha);
/* The largest alpha below 1 at which the case passes, to 1/64; k->alpha, tree and made. */
fm_status blame_reweight(blame_more *m, blame_candidate *k);
/* Owned; NULL = ENOMEM. */
fm_json *blame_graft_recipe(const blame_more *m, const blame_candidate *k);
/* A version whose recipe's operation is "graft", made again and compared (as replay_training). */
fm_status replay_graft(fm_ops *c, const fm_tree *stored, const fm_json *recipe, const char *label,
                       replay_report *out);
fm_status blame_candidate_clear(blame_more *m, blame_candidate *k);

#endif
