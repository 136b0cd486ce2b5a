/* pipeline_1f1b.h - a step's passes over a stage, one forward and one backward in turn
 * (params/stage.h). */
#ifndef FM_TRAIN_PIPELINE_1F1B_H
#define FM_TRAIN_PIPELINE_1F1B_H

#include "train/run/child.h"

FM_BEGIN_DECLS

/* Passes for the forwards whose backward is to come, each with a lane of every child. */
typedef struct fmt_pipeline fmt_pipeline;

/* Makes the passes, once the children are open; lane: capacity for 2 n. */
FM_CHECKED fm_status fmt_pipeline_new(fmt_pipeline **out, fmt_stage *s, fm_backend *be,
                                      fmt_child *child, size_t n, fmt_lane **lane);
void fmt_pipeline_free(fmt_pipeline *f); /* NULL is fine */
/* Computes the gradients of all shards of this rank, for the children that are at work and have
 * begun a step, and keeps the shards. Losses wait in tally. */
FM_CHECKED fm_status fmt_pipeline_step(fmt_pipeline *f, fmt_tally *tally);
/* Runs the child's current step again, alone, pass by pass, until a rank finds a tensor with a
 * number that is not finite: the first in the order of one process, the same on every rank. */
FM_CHECKED fm_status fmt_pipeline_explain(fmt_pipeline *f, fmt_child *ch, fmt_watch *watch);
/* Bytes of activations of the passes under way; *passes: their number. */
uint64_t fmt_pipeline_bytes(const fmt_pipeline *f, uint32_t *passes);

FM_END_DECLS
#endif
