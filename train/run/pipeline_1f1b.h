/* pipeline_1f1b.h - a step's passes over a stage, one forward and one backward in turn
 * (params/stage.h). */
#ifndef FM_TRAIN_STAGE_RUN_H
#define FM_TRAIN_STAGE_RUN_H

#include "train/run/child.h"

FM_BEGIN_DECLS

/* A pass for each forward whose backward is to come, with a lane of every child in each. */
typedef struct fmt_pipeline fmt_pipeline;

/* Once the children are open; lane: room for 2 n. */
FM_CHECKED fm_status fmt_pipeline_new(fmt_pipeline **out, fmt_stage *s, fm_backend *be,
                                      fmt_child *child, size_t n, fmt_lane **lane);
void fmt_pipeline_free(fmt_pipeline *f); /* NULL is fine */
/* Gradients of all shards of this rank, of the children that are at work and have begun a step;
 * shards are kept. Losses wait in tally. */
FM_CHECKED fm_status fmt_pipeline_step(fmt_pipeline *f, fmt_tally *tally);
/* The child's step in hand again, alone, pass by pass, until a rank finds a tensor that is no
 * finite number: the first in the order of one process, the same on every rank. */
FM_CHECKED fm_status fmt_pipeline_explain(fmt_pipeline *f, fmt_child *ch, fmt_watch *watch);
/* Bytes of activations of the passes under way, and their number. */
uint64_t fmt_pipeline_bytes(const fmt_pipeline *f, uint32_t *passes);

FM_END_DECLS
#endif
