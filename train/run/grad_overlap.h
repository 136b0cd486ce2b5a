/* grad_overlap.h - the exchange of gradients between ranks, in parallel with the backward pass.
 *
 * A round of stripes (params/zero.h) is exchanged as soon as the backward has left every layer that
 * it covers. All ranks take the rounds of all children in one order, found beforehand: by the layer
 * that a round waits for, the highest first, then by child, then the last round first. So it does
 * not matter which children a rank's passes hold and in what order they come; the order costs time,
 * until a round is ready on every rank, and never changes bits.
 *
 * If the comm moves memory of the host, a thread of this file exchanges and adds, and no other
 * thread uses the comm until fmt_grad_overlap_end. If the device has its own wire and a second
 * stream (fm_backend.aside), the caller queues both there. Else all rounds are taken at the end. */
#ifndef FM_TRAIN_GRAD_OVERLAP_H
#define FM_TRAIN_GRAD_OVERLAP_H

#include "train/run/child.h"

FM_BEGIN_DECLS

typedef struct fmt_grad_overlap fmt_grad_overlap;

/* Opens the exchange for n children, borrowed, the same on every rank. *out NULL: one rank. */
FM_CHECKED fm_status fmt_grad_overlap_open(fmt_grad_overlap **out, fm_comm *comm, fm_backend *be,
                                           fmt_child *child, size_t n);
/* Ends the exchange, or gives it up as other ranks do, before the ranks meet. NULL is fine. */
void fmt_grad_overlap_close(fmt_grad_overlap *b);

/* Begins a step of the children at work. Until its end no other code uses the comm. */
void fmt_grad_overlap_begin(fmt_grad_overlap *b);
/* Reports that the backward of child i's last micro-batch has left this layer (arch.layers: the
 * head). Returns an error if the exchange has failed. */
FM_CHECKED fm_status fmt_grad_overlap_left(fmt_grad_overlap *b, size_t i, uint32_t layer);
/* All gradients are done: returns when all rounds are exchanged and added, or queued. */
FM_CHECKED fm_status fmt_grad_overlap_end(fmt_grad_overlap *b);

FM_END_DECLS
#endif
