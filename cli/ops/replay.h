/* replay.h - trains a version again from its recipe and compares the two. */
#ifndef FM_OPS_REPLAY_H
#define FM_OPS_REPLAY_H

#include "cli/ops/ops.h"

FM_BEGIN_DECLS

/* Takes a lease, trains rev again and compares every tensor and every step of the log; with `chain`
 * it begins with all first parents that a training made, the oldest first. The outcome of each is
 * the result "replayed" (ops.h). *equal: all are the same; a difference is no error.
 * FM_EUNSUPPORTED: no training made rev, or this machine computes in another kernel class;
 * FM_ECORRUPT: data or parent are not those of the recipe. */
fm_status fm_ops_replay(fm_ops *c, const char *rev, bool chain, bool *equal);

FM_END_DECLS
#endif
