/* stage_pass.h - a pass over a stage: its rows come from the stage before and go to the next. */
#ifndef FM_TRAIN_STAGE_PASS_H
#define FM_TRAIN_STAGE_PASS_H

#include "train/net/stage_net.h"
#include "train/pass/pass.h"

FM_BEGIN_DECLS

/* Bytes of a pass's rows that go to a neighbour: forward of all rows, back of those of lanes with
 * something to train below the layer that the neighbours meet at. */
typedef struct fmt_rows_to {
    size_t on, back;
} fmt_rows_to;
fmt_rows_to fmt_stage_rows(const fmt_pass *p, const fmt_lane *const *lane, size_t n,
                           uint32_t layer);
/* Rows of the pass come from the stage before, are run, and go on: one after the other, where no
 * backward is interleaved (what is held out, a step that is explained). */
FM_CHECKED fm_status fmt_stage_forward(fmt_pass *p);
FM_CHECKED fm_status fmt_stage_backward(fmt_pass *p);
/* The parts of it: head (of the last stage) and layers; tied embedding and rows before them. */
FM_CHECKED fm_status fmt_stage_head_and_layers(fmt_pass *p);
FM_CHECKED fm_status fmt_stage_embed(fmt_pass *p);
/* Between neighbours: sends and receives at once; a NULL or 0: nothing. to, from: bytes. */
FM_CHECKED fm_status fmt_stage_swap(const fmt_stage *s, bool next, const float *send, size_t to,
                                    float *recv, size_t from);

FM_END_DECLS
#endif
