/* stage_pass.h - a pass over a stage: its rows come from one neighbour and go to the next. */
#ifndef FM_TRAIN_STAGE_PASS_H
#define FM_TRAIN_STAGE_PASS_H

#include "train/net/stage_net.h"
#include "train/pass/pass.h"

FM_BEGIN_DECLS

/* Bytes of a pass's rows between neighbours that meet at `layer`: forward all rows, back the rows
 * of lanes with something to train below the layer. */
typedef struct fmt_rows_to {
    size_t on, back;
} fmt_rows_to;
fmt_rows_to fmt_stage_rows(const fmt_pass *p, const fmt_lane *const *lane, size_t n,
                           uint32_t layer);
/* Receives the rows of the pass from the neighbour, runs them and sends them on, for passes whose
 * forwards and backwards are not interleaved with others (evaluation, explaining a step). */
FM_CHECKED fm_status fmt_stage_forward(fmt_pass *p);
FM_CHECKED fm_status fmt_stage_backward(fmt_pass *p);
/* The parts of fmt_stage_backward: head (on the last stage) and layers; tied embedding and what
 * stands before the layers. */
FM_CHECKED fm_status fmt_stage_head_and_layers(fmt_pass *p);
FM_CHECKED fm_status fmt_stage_embed(fmt_pass *p);
/* Sends to the next or the previous stage and receives from it at once; NULL or 0 bytes: nothing in
 * this direction. to, from: bytes. */
FM_CHECKED fm_status fmt_stage_swap(const fmt_stage *s, bool next, const float *send, size_t to,
                                    float *recv, size_t from);

FM_END_DECLS
#endif
