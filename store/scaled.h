/* scaled.h - checkpoints whose 8-bit float weights come with scales, seen as plain ones.
 *
 * In such a folder "X.weight" is F8_E4M3 and a tensor beside it says what its values are to be
 * multiplied by: one number, one for each row, or one for each block of rows and columns. The
 * config's quantization_config names the form:
 *
 *   quant_method         scale beside X.weight   shapes of a weight [n, k]
 *   fp8                  X.weight_scale_inv      weight_block_size [r, c]: [ceil(n/r), ceil(k/c)];
 *                                                null: one number
 *   compressed-tensors   X.weight_scale          one number, [n, 1], or [ceil(n/r), ceil(k/c)] of
 *                                                block_structure [r, c]
 *   fbgemm_fp8           X.weight_scale          [n, 1]
 *   modelopt (FP8)       X.weight_scale          one number
 *
 * A weight's value is value * scale in float32, rounded to the type that the config computes in
 * ("torch_dtype", "dtype"; bfloat16 where it says none): what transformers gives for
 * dequantize=True and compressed-tensors for a decompressed model. Scales of activations and of
 * cached keys and values stand for rounding that is not done here; they are left out. */
#ifndef FM_STORE_SCALED_H
#define FM_STORE_SCALED_H

#include "store/tree.h"

FM_BEGIN_DECLS

typedef struct fm_scaling_config {
    const char *suffix;  /* of a scale, in the place of ".weight"; NULL: nothing is scaled */
    uint32_t rows, cols; /* of a block; 0: the scale's shape says all */
    fm_dtype dtype;      /* of the values: BF16, F16, F32 */
} fm_scaling_config;

/* From a config.json. FM_EUNSUPPORTED names what of quantization_config is not read here. */
FM_CHECKED fm_status fm_scaling_config_of(fm_scaling_config *out, const fm_json *config,
                                          const char *what);

/* A tree and its provider with the scaled weights made plain: they have the config's dtype, ids of
 * their own (a function of weight, scale and form), no scales beside them; model.json has no
 * quantization_config. Nothing is kept: a weight is computed when it is read, in rows. Where
 * nothing is scaled these are the tree and provider that were given. */
typedef struct fm_plain fm_plain;

/* tree and p are borrowed until fm_plain_close. FM_EBASE names a weight without a scale, or a scale
 * that does not fit; FM_EUNSUPPORTED an 8-bit float tensor that is no matrix "X.weight". */
FM_CHECKED fm_status fm_plain_open(fm_plain **out, const fm_tree *tree, const fm_provider *p,
                                   const char *what);
void fm_plain_close(fm_plain *v); /* NULL is fine */
const fm_tree *fm_plain_tree(const fm_plain *v);
const fm_provider *fm_plain_provider(const fm_plain *v); /* thread-safe if p is */
bool fm_plain_scales(const fm_plain *v);                 /* something is scaled */

FM_END_DECLS
#endif
