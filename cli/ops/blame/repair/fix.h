/* fix.h - between fix.c (candidates, suites, the commit) and graft.c
 * (tensors). */
#ifndef FM_OPS_BLAME_FIX_H
#define FM_OPS_BLAME_FIX_H

#include "cli/ops/blame/blame_more.h"

/* Sets one tensor of tree between a (the parent's; NULL: it had none) and b (the child's, at
 * whose path it is). Of a tensor that the step added a low-rank term's B carries the whole, its
 * A stays. FM_EUNSUPPORTED: no values between. */
fm_status fmo_blame_graft_entry(fm_tree *tree, fmo_blame_overlay *made, const fm_entry *a,
                                const fm_entry *b, double alpha);
/* k->tree and k->made: the version asked about, the units of the repair set at alpha between parent
 * and child (0: the parent's own). FM_EUNSUPPORTED: a later step changed them, or they have no
 * values between. */
fm_status fmo_blame_graft(fmo_blame_more *m, fmo_blame_candidate *k, double alpha);
/* The largest alpha below 1 at which the case passes, to 1/64; k->alpha, tree and made. */
fm_status fmo_blame_reweight(fmo_blame_more *m, fmo_blame_candidate *k);
/* Owned; NULL = ENOMEM. */
fm_json *fmo_blame_graft_recipe(const fmo_blame_more *m, const fmo_blame_candidate *k);
/* A version whose recipe's operation is "graft", made again and compared (as fmo_replay_training). */
fm_status fmo_replay_graft(fm_ops *c, const fm_tree *stored, const fm_json *recipe,
                           const char *label, fmo_replay_report *out);
fm_status fmo_blame_candidate_clear(fmo_blame_more *m, fmo_blame_candidate *k);

#endif
