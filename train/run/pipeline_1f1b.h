/* pipeline_1f1b.h - a step's passes over a stage, one forward and one backward in turn
 * (params/stage.h). */
#ifndef FM_TRAIN_STAGE_RUN_H
#define FM_TRAIN_STAGE_RUN_H

#include "train/run/child.h"

FM_BEGIN_DECLS

/* A pass for each forward whose backward is to come, with a lane of every child in each. */
typedef struct fmi_flights fmi_flights;

/* Once the children are open; lane: room for 2 n. */
FM_CHECKED fm_status fmi_flights_new(fmi_flights **out, fmi_stage *s, fm_backend *be,
                                     fmi_child *child, size_t n, fmi_lane **lane);
void fmi_flights_free(fmi_flights *f); /* NULL is fine */
/* Gradients of all shards of this rank, of the children that are at work and have begun a step;
 * shards are kept. Losses wait in tally. */
FM_CHECKED fm_status fmi_flights_step(fmi_flights *f, fmi_tally *tally);
/* The child's step in hand again, alone, pass by pass, until a rank finds a tensor that is no
 * finite number: the first in the order of one process, the same on every rank. */
FM_CHECKED fm_status fmi_flights_explain(fmi_flights *f, fmi_child *ch, fmi_watch *watch);
/* Bytes of activations of the passes under way, and their number. */
uint64_t fmi_flights_bytes(const fmi_flights *f, uint32_t *passes);

FM_END_DECLS
#endif
