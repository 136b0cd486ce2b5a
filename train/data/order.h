/* order.h - which examples a step takes: a function of settings, data, seed and epoch alone, so
 * that a resumed run needs no state. Epochs follow one another without a gap.
 *
 * An epoch holds each example as often as the weight of its file says: the whole part of the weight
 * always, and one more time with the probability of the rest, drawn for (seed, epoch, example). The
 * epoch is permuted for (seed, epoch). A micro-batch takes `batch` examples, or with packing as
 * many as batch * max_tokens tokens hold (a longer example, a pair, has a micro-batch of its own).
 * With buckets examples are gathered by length first: the lengths of the data are cut into that
 * many equal shares, micro-batches are made share by share in an epoch, then permuted. */
#ifndef FM_TRAIN_ORDER_H
#define FM_TRAIN_ORDER_H

#include "train/train.h"

FM_BEGIN_DECLS

typedef struct fmt_order fmt_order;
/* c and d are borrowed. FM_EINVAL: there is no step. */
FM_CHECKED fm_status fmt_order_new(fmt_order **out, const fm_train_config *c, const fm_dataset *d);
void fmt_order_free(fmt_order *o); /* NULL is fine */
uint32_t fmt_order_steps(const fmt_order *o);
/* The examples of a step (numbers in the data set), micro-batch by micro-batch: the k-th
 * micro-batch ends before ends[k], ends[micros - 1] = count. The arrays are valid until the next
 * call; a call allocates nothing. Steps in ascending order are fast; going back walks from the
 * first step again where packing, buckets or weights are used. */
FM_CHECKED fm_status fmt_order_step(fmt_order *o, uint32_t step, const uint32_t **example,
                                    size_t *count, const uint32_t **ends, size_t *micros);

FM_END_DECLS
#endif
