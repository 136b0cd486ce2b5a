/* grad_overlap.h - gradients of several ranks, exchanged beside the backward pass.
 *
 * A round of stripes (params/zero.h) goes as soon as the backward has left every layer that it
 * covers. All ranks take the rounds of all children in one order, found beforehand: by the layer
 * that a round waits for, the highest first, then by child, then the last round first. So it is no
 * matter which children a rank's passes hold and in what order they come; what a round costs is
 * time until it is ready on every rank, never its bits.
 *
 * Where the comm moves the host's memory a thread of this file's own exchanges and adds, and nobody
 * else uses the comm until fmt_grad_overlap_end. Where the device has a wire of its own and a second line
 * (fm_backend.aside) the caller queues both there. Else all rounds are taken at the end. */
#ifndef FM_TRAIN_BESIDE_H
#define FM_TRAIN_BESIDE_H

#include "train/run/child.h"

FM_BEGIN_DECLS

typedef struct fmt_grad_overlap fmt_grad_overlap;

/* For n children, which it borrows; every rank has the same ones. *out NULL: one rank. */
FM_CHECKED fm_status fmt_grad_overlap_open(fmt_grad_overlap **out, fm_comm *comm, fm_backend *be,
                                           fmt_child *child, size_t n);
/* What is in hand is brought to its end, or given up with what the other ranks give up: before the
 * ranks meet. NULL is fine. */
void fmt_grad_overlap_close(fmt_grad_overlap *b);

/* A step: of the children that are at work. From here to its end nobody else uses the comm. */
void fmt_grad_overlap_begin(fmt_grad_overlap *b);
/* The backward of child i's last micro-batch has left this layer (arch.layers: the head). An error:
 * the exchange has failed. */
FM_CHECKED fm_status fmt_grad_overlap_left(fmt_grad_overlap *b, size_t i, uint32_t layer);
/* All gradients are done. All is exchanged and added, or queued, when it returns. */
FM_CHECKED fm_status fmt_grad_overlap_end(fmt_grad_overlap *b);

FM_END_DECLS
#endif
