/* join.h - joins the parts of a pass that the ranks of a split model computed. */
#ifndef FM_INFER_JOIN_H
#define FM_INFER_JOIN_H

#include "infer/engine/step/step.h"

FM_BEGIN_DECLS

/* x [m, hidden] summed over the ranks. */
FM_CHECKED fm_status fmi_join_ranks(fmi_pass *p, float *x);
/* Floats of a row of logits that this rank computes. */
size_t fmi_logits_here(const fmi_pass *p);
/* Gathers `here` of all ranks into rank 0's logits. With stages: pipeline.h. */
FM_CHECKED fm_status fmi_gather_logits(fmi_pass *p, const float *here, size_t ld);
/* As fmi_logits_here, for a model with a vocabulary of so many tokens. */
size_t fmi_vocab_here(const fm_engine *e, uint32_t vocab);
/* Puts the columns of rank r of the group, from [count, ld], into rows [at, at + count) of the
 * step's logits, all of model m. */
void fmi_place_logits(fmi_step *s, const fm_model *m, size_t at, uint32_t count, const float *from,
                      size_t ld, uint32_t r);
/* Applies the family's divisor and cap to rows of logits. */
void fmi_finish_logits(fmi_step *s, const fm_model *m, size_t at, uint32_t count);

FM_END_DECLS
#endif
