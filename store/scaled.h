/* scaled.h - a view of quantized checkpoints in which the weights are plain.
 *
 * The config's quantization_config names the form. Weights of 8-bit floats: "X.weight" is F8_E4M3
 * and a second tensor holds the scales, by which its values are to be multiplied: one number, one
 * for each row, or one for each block of rows and columns.
 *
 *   quant_method         scale of X.weight       its shape for a weight [n, k]
 *   fp8                  X.weight_scale_inv      weight_block_size [r, c]: [ceil(n/r), ceil(k/c)];
 *                                                null: one number
 *   compressed-tensors   X.weight_scale          one number, [n, 1], or [ceil(n/r), ceil(k/c)] of
 *                                                block_structure [r, c]
 *   fbgemm_fp8           X.weight_scale          [n, 1]
 *   modelopt (FP8)       X.weight_scale          one number
 *
 * Codes of 4 or 8 bits, from which several tensors make the weight [n, k]; g scales a row:
 *
 *   gptq                 X.qweight I32 [k*bits/32, n], X.qzeros I32 [g, n*bits/32], X.scales
 *                        [g, n], X.g_idx I32 [k] (it may be absent): (code - zero) * scale, where
 *                        a zero is stored less one but in format gptq_v2
 *   awq (gemm, 4 bits)   X.qweight I32 [k, n/8], X.qzeros I32 [g, n/8], X.scales [g, n], the eight
 *                        codes of a word in the order 0 2 4 6 1 3 5 7: (code - zero) * scale
 *   bitsandbytes         4 bits: X.weight [n*k/2, 1], X.weight.absmax,
 *                        X.weight.quant_state.bitsandbytes__nf4 (or __fp4), where absmax is
 *                        quantized too X.weight.nested_absmax, .nested_quant_map: table[code] *
 *                        absmax of each blocksize codes. 8 bits: X.weight I8 [n, k], X.SCB [n]:
 *                        code * SCB * (1 / 127)
 *   compressed-tensors   int, 4 or 8 bits: X.weight_packed I32 [n, ceil(k*bits/32)],
 *                        X.weight_shape, or X.weight I8 [n, k]; X.weight_scale [n, g] or one
 *                        number; X.weight_zero_point: (code - zero) * scale
 *   torchao              Int4Tensor: X._weight_qdata I8 [n, k/2], X._weight_scale, _zero_point [g,
 *                        n]: code * scale + zero. Others: I8 [n, k], scale and zero_point [n, g]:
 *                        (code - zero) * scale
 *   mxfp4                X_blocks U8 [.., n, k/32, 16], X_scales U8 [.., n, k/32]: X [.., n, k] of
 *                        4-bit floats times powers of two (a view's MXFP4)
 *
 * A plain weight is the product in float32, rounded to a type. Of F8: the type that the config
 * computes in ("torch_dtype", "dtype"; bfloat16 where it names none), the result of transformers
 * with dequantize=True and of compressed-tensors for a decompressed model. Of gptq, awq and
 * compressed-tensors' int: the type of the scales (of F32 scales that of the config). Of
 * bitsandbytes: the type in quant_state, of 8 bits and of torchao that of the config. These are the
 * weights that the libraries make. Scales of activations and of cached keys and values belong to a
 * rounding that is not done here; they are left out. */
#ifndef FM_STORE_SCALED_H
#define FM_STORE_SCALED_H

#include "store/tree.h"

FM_BEGIN_DECLS

/* The types that the weights of a view have. */
typedef enum fm_plain_as {
    FM_PLAIN_WIDE,     /* F32, F16 or BF16 (mxfp4: MXFP4), which files can have */
    FM_PLAIN_CODES,    /* FM_CODE4_*, FM_CODE8_* with the same values where a row is whole blocks of
                        * one scale; else as FM_PLAIN_WIDE */
    FM_PLAIN_INTEGERS, /* for products of integers: Q4_0, Q4_1, Q8_0 where codes are integers, a row
                        * is whole blocks of 32 of one scale, and float16 has the scales (those of
                        * F32 rounded); else as FM_PLAIN_WIDE. Values are not rounded behind the
                        * product; of Q4_1 zero * scale is rounded to float16 */
    FM_PLAIN_INTEGERS_4, /* likewise, for devices without Q2_K, which ternary weights are above */
} fm_plain_as;

/* FM_EUNSUPPORTED names the unsupported field of a config.json's quantization_config. */
FM_CHECKED fm_status fm_plain_config_check(const fm_json *config, const char *what);

/* A tree and its provider in which the quantized weights are plain: they have a type as above and
 * ids of their own (a function of the tensors that they are made of and of the form), the tensors
 * that they are made of are not there, and model.json has no quantization_config. Nothing is
 * cached: a weight is computed when it is read, by rows; for rows of codes their whole tensor is
 * read. Where nothing is quantized these are the tree and provider that were given. */
typedef struct fm_plain fm_plain;

/* tree and p are borrowed until fm_plain_close. FM_EBASE names a weight without a scale, or a
 * tensor that does not fit it; FM_EUNSUPPORTED an 8-bit float tensor that is not a matrix
 * "X.weight". Reads small tensors from p that say how codes are ordered. */
FM_CHECKED fm_status fm_plain_open_as(fm_plain **out, const fm_tree *tree, const fm_provider *p,
                                      const char *what, fm_plain_as as);
/* As FM_PLAIN_WIDE. */
FM_CHECKED fm_status fm_plain_open(fm_plain **out, const fm_tree *tree, const fm_provider *p,
                                   const char *what);
void fm_plain_close(fm_plain *v); /* NULL is fine */
const fm_tree *fm_plain_tree(const fm_plain *v);
const fm_provider *fm_plain_provider(const fm_plain *v);  /* thread-safe if p is */
bool fm_plain_scales(const fm_plain *v);                  /* something is quantized */
bool fm_plain_made(const fm_plain *v, const fm_entry *e); /* e is a weight that the view makes */

FM_END_DECLS
#endif
