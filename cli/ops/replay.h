/* replay.h - is a version, trained again from its recipe, the same? */
#ifndef FM_OPS_REPLAY_H
#define FM_OPS_REPLAY_H

#include "cli/ops/ops.h"

FM_BEGIN_DECLS

/* Trains rev again and compares every tensor and every step of the log; with `chain` first all first
 * parents that a training made, the oldest first. What came of each is told as the result "replayed"
 * (ops.h). *equal: all of them are the same; a difference is no error. FM_EUNSUPPORTED: no training
 * made it, or this machine computes in another kernel class; FM_ECORRUPT: data or parent are not those
 * of the recipe. Leases. */
fm_status fm_ops_replay(fm_ops *c, const char *rev, bool chain, bool *equal);

FM_END_DECLS
#endif
