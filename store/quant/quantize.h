/* quantize.h - float32 to GGUF's block types, bit for bit as ggml's quantizers write them.
 *
 * This is ggml's method without an importance matrix: per block a scale (and minimum), for the K
 * types by a search over candidate scales that weighs the error of each element. A block's bytes
 * depend on its own floats alone, so a leaf can be made from the same leaf's elements.
 *
 * ggml's sources do not determine the bits: a compiler that fuses a*b + c (any for AArch64, gcc for
 * x86 with -march=native) rounds once where others round twice, and a scale or a code may move by
 * one. So the arithmetic is a parameter; each variant has the same bits on every machine. Inverse:
 * fm_to_f32. */
#ifndef FM_STORE_QUANTIZE_H
#define FM_STORE_QUANTIZE_H

#include "store/tensor.h"

FM_BEGIN_DECLS

/* Values are in the files (the parameter of a recipe): never renumber. */
typedef enum fm_quant_variant {
    FM_QUANT_PLAIN = 0, /* every operation rounds: any compiler for x86-64 without FMA */
    FM_QUANT_CLANG = 1, /* a*b + c fused inside an expression: clang with FMA, any AArch64 */
    FM_QUANT_GCC = 2,   /* fused across statements and inlined calls too: gcc with FMA */
    FM_QUANT_VARIANTS
} fm_quant_variant;

/* True for Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K and IQ4_NL. */
bool fm_quantize_applies(fm_dtype type);

/* Quantizes rows * row_elems floats at src to rows * row_elems / block_elems blocks at dst, which
 * need not be aligned and must not overlap src. FM_EUNSUPPORTED: no quantizer for `type`;
 * FM_EINVAL: row_elems is not a whole number of blocks, or an unknown variant. NaN and infinity
 * give some bytes, the same on every machine. */
FM_CHECKED fm_status fm_quantize_rows(void *dst, fm_dtype type, const float *src,
                                      uint64_t row_elems, uint64_t rows, fm_quant_variant variant);

/* Those, and Q2_K, Q3_K and IQ4_XS. */
bool fm_quantize_gguf_applies(fm_dtype type);

/* Quantizes as llama-quantize does (ggml built for x86-64: nothing is fused), by an importance
 * matrix too. src: finite. importance: row_elems finite weights, each row's; NULL: none, and then a
 * block's bytes depend on its own floats alone. FM_EUNSUPPORTED, FM_EINVAL as above. */
FM_CHECKED fm_status fm_quantize_gguf(void *dst, fm_dtype type, const float *src,
                                      uint64_t row_elems, uint64_t rows, const float *importance);

/* False where a block's float16 scale or minimum is infinite or NaN: the values were too large. */
bool fm_blocks_finite(fm_dtype type, const uint8_t *blocks, uint64_t count);

FM_END_DECLS
#endif
