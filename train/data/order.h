/* order.h - which examples a step takes: a function of settings, data, seed and epoch alone, so
 * that a resumed run needs no state. Epochs follow one another without a gap.
 *
 * An epoch holds each example as often as the weight of its file says: the whole part always, one
 * more with the probability of what is left, drawn for (seed, epoch, example). It is permuted for
 * (seed, epoch). A micro-batch takes `batch` examples, or with packing as many as batch *
 * max_tokens tokens hold (one that is longer, a pair, has a micro-batch to itself). With buckets
 * examples are gathered by length first: the data are cut by length into that many equal shares,
 * micro-batches are made share by share, within one epoch, and then permuted as wholes. */
#ifndef FM_TRAIN_ORDER_H
#define FM_TRAIN_ORDER_H

#include "train/train.h"

FM_BEGIN_DECLS

typedef struct fmt_order fmt_order;
/* c and d are borrowed. FM_EINVAL: there is no step. */
FM_CHECKED fm_status fmt_order_new(fmt_order **out, const fm_train_config *c, const fm_dataset *d);
void fmt_order_free(fmt_order *o); /* NULL is fine */
uint32_t fmt_order_steps(const fmt_order *o);
/* Examples of step (numbers in the data set), micro-batch by micro-batch: the k-th ends before
 * ends[k], ends[micros - 1] = count. Valid until the next call. Allocates nothing. Steps in
 * ascending order are quick; going back walks from the first again where packing, buckets or
 * weights are used. */
FM_CHECKED fm_status fmt_order_step(fmt_order *o, uint32_t step, const uint32_t **example,
                                    size_t *count, const uint32_t **ends, size_t *micros);

FM_END_DECLS
#endif
