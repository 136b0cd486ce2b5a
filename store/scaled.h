/* scaled.h - a view of checkpoints with scaled 8-bit float weights in which the weights are plain.
 *
 * In such a folder "X.weight" is F8_E4M3 and a second tensor holds the scales, by which its values
 * are to be multiplied: one number, one for each row, or one for each block of rows and columns.
 * The config's quantization_config names the form:
 *
 *   quant_method         scale of X.weight       its shape for a weight [n, k]
 *   fp8                  X.weight_scale_inv      weight_block_size [r, c]: [ceil(n/r), ceil(k/c)];
 *                                                null: one number
 *   compressed-tensors   X.weight_scale          one number, [n, 1], or [ceil(n/r), ceil(k/c)] of
 *                                                block_structure [r, c]
 *   fbgemm_fp8           X.weight_scale          [n, 1]
 *   modelopt (FP8)       X.weight_scale          one number
 *
 * A plain weight is value * scale in float32, rounded to the type that the config computes in
 * ("torch_dtype", "dtype"; bfloat16 where it names none): the result of transformers with
 * dequantize=True and of compressed-tensors for a decompressed model. Scales of activations and of
 * cached keys and values belong to a rounding that is not done here; they are left out. */
#ifndef FM_STORE_SCALED_H
#define FM_STORE_SCALED_H

#include "store/tree.h"

FM_BEGIN_DECLS

typedef struct fm_scaling_config {
    const char *suffix;  /* ends a scale's name, in place of ".weight"; NULL: nothing is scaled */
    uint32_t rows, cols; /* size of a block; 0: the scale's shape gives it */
    fm_dtype dtype;      /* dtype of the plain weights: BF16, F16, F32 */
} fm_scaling_config;

/* From a config.json. FM_EUNSUPPORTED names the unsupported field of quantization_config. */
FM_CHECKED fm_status fm_scaling_config_of(fm_scaling_config *out, const fm_json *config,
                                          const char *what);

/* A tree and its provider in which the scaled weights are plain: they have the config's dtype and
 * ids of their own (a function of weight, scale and form), there are no scales, and model.json has
 * no quantization_config. Nothing is cached: a weight is computed when it is read, by rows. Where
 * nothing is scaled these are the tree and provider that were given. */
typedef struct fm_plain fm_plain;

/* tree and p are borrowed until fm_plain_close. FM_EBASE names a weight without a scale, or a scale
 * that does not fit; FM_EUNSUPPORTED an 8-bit float tensor that is not a matrix "X.weight". */
FM_CHECKED fm_status fm_plain_open(fm_plain **out, const fm_tree *tree, const fm_provider *p,
                                   const char *what);
void fm_plain_close(fm_plain *v); /* NULL is fine */
const fm_tree *fm_plain_tree(const fm_plain *v);
const fm_provider *fm_plain_provider(const fm_plain *v); /* thread-safe if p is */
bool fm_plain_scales(const fm_plain *v);                 /* something is scaled */

FM_END_DECLS
#endif
