/* adapted.h - a view of a version in which adapters are part of the weights.
 *
 * An engine adds low-rank terms, scales, biases and virtual positions to a model while it runs;
 * what any other adapter does to a weight is computed here, once, in float32, as PEFT computes it:
 *
 *   kind                         effect on a weight W [out, in]
 *   loha, lokr, randlora         W + scale D, D made of products of small factors
 *   fourierft, shira, miss       W + D, D of a few coefficients, elements or rows that repeat
 *   oft, boft, hra               W R, R orthogonal (boft: rows scaled too)
 *   trainable_tokens             some rows of the embedding are others, in a LoRA too
 *   ln_tuning                    norms are others
 *   lora of pissa, olora         W - B0 A0, the part that PEFT takes out of W when it loads
 *   adalora, vera, vblora        W + scale B A, B and A made of what is stored: a LoRA in the view
 *   p_tuning                     virtual positions: a prompt in the view
 *
 * A weight that was changed has an id of its own, a function of its inputs' ids and of the formula,
 * and what lies below the change on the same weight is part of it. It is computed when it is read.
 * What is left of an adapter stands in the view as "lora", "dora", "ia3", "prefix" or "prompt". */
#ifndef FM_STORE_ADAPTED_H
#define FM_STORE_ADAPTED_H

#include "store/tree.h"

FM_BEGIN_DECLS

typedef enum fm_adapted_use {
    FM_ADAPTED_RUN,   /* for an engine, which adds the terms that it knows itself; weights in F32 */
    FM_ADAPTED_MERGE, /* for an export: all that changes a weight, but plain LoRA terms */
} fm_adapted_use;

/* The version's tree and provider in that form; those that were given where nothing is to be done.
 */
typedef struct fm_adapted fm_adapted;

/* tree and p are borrowed until fm_adapted_close. dtype: of weights that a merge makes, NONE: as
 * they are stored (block types: F32). FM_EBASE names a tensor that does not fit its module;
 * FM_EUNSUPPORTED what is not computed here. what: for messages. */
FM_CHECKED fm_status fm_adapted_open(fm_adapted **out, const fm_tree *tree, const fm_provider *p,
                                     fm_adapted_use use, fm_dtype dtype, const char *what);
void fm_adapted_close(fm_adapted *v); /* NULL is fine */
const fm_tree *fm_adapted_tree(const fm_adapted *v);
const fm_provider *fm_adapted_provider(const fm_adapted *v); /* thread-safe if p is */

FM_END_DECLS
#endif
