/* fixed.h - what a model computes with and no training changes: the biases of attention by distance
 * (ALiBi, buckets of relative positions) and tensors that are read as they are; inside of infer,
 * and for train. */
#ifndef FM_INFER_FIXED_H
#define FM_INFER_FIXED_H

#include "infer/arch.h"

FM_BEGIN_DECLS

/* The table of fm_attn.bias: a row of fmi_near_ld numbers for each head of the whole model,
 * distance 0 at fmi_near_zero. ld 0: the family has none. */
uint32_t fmi_near_ld(const fm_arch *a);
uint32_t fmi_near_zero(const fm_arch *a);
/* *out [heads, ld]; the caller frees it by fm_free. NULL where there is none. */
FM_CHECKED fm_status fmi_near_make(float **out, const fm_arch *a, const fm_tree *tree,
                                   const fm_provider *p, const char *what);
/* fm_backend.xielu's numbers in a layer. */
FM_CHECKED fm_status fmi_xielu_make(float out[4], const fm_arch *a, uint32_t layer,
                                    const fm_tree *tree, const fm_provider *p, const char *what);
/* The n elements of a tensor as f32; the caller frees them by fm_free. */
FM_CHECKED fm_status fmi_fixed_floats(float **out, uint64_t n, const char *name,
                                      const fm_tree *tree, const fm_provider *p, const char *what);

FM_END_DECLS
#endif
