/* recipe_impl.h - shared by the operations of recipes; inside this folder only. */
#ifndef FM_STORE_RECIPE_IMPL_H
#define FM_STORE_RECIPE_IMPL_H

#include "store/recipe/recipe.h"

/* A part of the child, such as a leaf; for plain dtypes its elements are [first, first + count). */
typedef struct rcp_part {
    uint64_t offset;
    size_t bytes;
    uint64_t first, count;
} rcp_part;

typedef fm_status rcp_check_fn(const fms_recipe *r, const fms_inputs *in);
typedef fm_status rcp_part_fn(const fms_recipe *r, const fms_inputs *in, const rcp_part *p,
                              uint8_t *dst);
typedef uint64_t rcp_touches_fn(const fms_recipe *r, const fms_inputs *in, uint32_t k);

rcp_check_fn rcp_cast_check, rcp_linear_check, rcp_lora_check, rcp_gather_check, rcp_turn_check,
    rcp_quant_check, rcp_adamw_check;
rcp_part_fn rcp_cast, rcp_linear, rcp_lora, rcp_gather, rcp_turn, rcp_quant, rcp_adamw;
rcp_touches_fn rcp_elementwise_touches, rcp_lora_touches, rcp_gather_touches, rcp_all_touches;

fm_status rcp_refuse(const fms_recipe *r, const char *why); /* FM_ECORRUPT */
bool rcp_is_plain_float(fm_dtype dtype);                    /* F32, BF16, F16 */
bool rcp_widens(fm_dtype dtype);                            /* fm_to_f32 accepts it */
bool rcp_same_elems(const fms_form *a, const fms_form *b);  /* as many elements */

/* Elements [first, first + n) of input k, of any float type. scratch has rcp_scratch_bytes. */
fm_status rcp_floats(const fms_inputs *in, uint32_t k, uint64_t first, uint64_t n, float *dst,
                     uint8_t *scratch);
size_t rcp_scratch_bytes(fm_dtype dtype, uint64_t n);
/* Narrows float32 to the child's dtype (F32, BF16, F16), NaN as the one of 0x7fc00000. */
void rcp_store(uint8_t *dst, fm_dtype dtype, const float *src, uint64_t n);
float rcp_narrow(fm_dtype dtype, float v); /* rounded to F32, BF16 or F16 */
void rcp_narrow_all(fm_dtype dtype, float *v, uint64_t n);

double rcp_f64(const uint8_t *p);

#endif
