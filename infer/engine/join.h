/* join.h - what the ranks of a split model have of a pass, put together. */
#ifndef FM_INFER_JOIN_H
#define FM_INFER_JOIN_H

#include "infer/engine/step/step.h"

FM_BEGIN_DECLS

/* x [m, hidden] summed over the ranks. */
FM_CHECKED fm_status fmi_join_ranks(fmi_pass *p, float *x);
/* Floats of a row of logits that this rank computes; then rank 0 puts those of all where they
 * belong. With stages: pipeline.h. */
size_t fmi_logits_here(const fmi_pass *p);
FM_CHECKED fm_status fmi_gather_logits(fmi_pass *p, const float *here, size_t ld);
/* Those of a model with a vocabulary of so many tokens: see fmi_logits_here. */
size_t fmi_vocab_here(const fm_engine *e, uint32_t vocab);
/* Columns of rank r of the group, for rows [at, at + count) of the step's logits, all of model m:
 * from [count, ld]. */
void fmi_place_logits(fmi_step *s, const fm_model *m, size_t at, uint32_t count, const float *from,
                      size_t ld, uint32_t r);
/* What a family does to them then: a divisor, a cap. */
void fmi_finish_logits(fmi_step *s, const fm_model *m, size_t at, uint32_t count);

FM_END_DECLS
#endif
