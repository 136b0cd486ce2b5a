/* tensor.h - dtypes (block types included), shapes, tensor identity, and exact widening to float32.
 *
 * A tensor's bytes are little-endian, row-major, rows in Hugging Face order. Block types (GGUF's
 * Q4_1 and the like) pack block_elems consecutive elements of a row into block_bytes. */
#ifndef FM_STORE_TENSOR_H
#define FM_STORE_TENSOR_H

#include "store/base/math/hash.h"

FM_BEGIN_DECLS

typedef enum fm_dtype {
    FM_DTYPE_NONE = 0,
    FM_F64,
    FM_F32,
    FM_F16,
    FM_BF16,
    FM_F8_E4M3,
    FM_F8_E5M2,
    FM_I64,
    FM_I32,
    FM_I16,
    FM_I8,
    FM_U64,
    FM_U32,
    FM_U16,
    FM_U8,
    FM_BOOL,
    FM_Q8_0, /* GGUF block types, bytes exactly as GGUF lays them out */
    FM_Q4_0,
    FM_Q4_1,
    FM_Q5_0,
    FM_Q5_1,
    FM_Q4_K,
    FM_Q5_K,
    FM_Q6_K,
    FM_IQ4_NL,
    FM_Q2_K,
    FM_Q3_K,
    FM_Q8_K,
    FM_IQ1_S,
    FM_IQ1_M,
    FM_IQ2_XXS,
    FM_IQ2_XS,
    FM_IQ2_S,
    FM_IQ3_XXS,
    FM_IQ3_S,
    FM_IQ4_XS,
    FM_TQ1_0,
    FM_TQ2_0,
    FM_MXFP4,
    FM_NVFP4,
    FM_Q1_0,
    FM_Q2_0,
    FM_DTYPE_COUNT,
    /* Layouts of memory alone, which no file and no tree has: codes of 2, 4 or 8 bits with a scale
     * and a zero for each 32, 64 or 128 of them (store/quant/codes.h). */
    FM_CODE4_32 = FM_DTYPE_COUNT,
    FM_CODE4_64,
    FM_CODE4_128,
    FM_CODE8_32,
    FM_CODE8_64,
    FM_CODE8_128,
    FM_CODE2_32,
    FM_CODE2_64,
    FM_CODE2_128,
    FM_DTYPE_ALL
} fm_dtype;

#define FM_MAX_RANK 8u
#define FM_LEAF_BYTES (1u << 20) /* frozen for ever: the unit of identity */
#define FM_MAX_TENSOR_BYTES (1ull << 40)
#define FM_MAX_NAME_BYTES 512u
#define FM_MAX_TENSORS 1000000u

typedef struct fm_dtype_info {
    const char *name;     /* as safetensors spells it ("BF16"), else as GGUF does ("Q4_1") */
    uint32_t block_elems; /* 1 for plain types */
    uint32_t block_bytes;
    bool is_block;
    bool is_float; /* widens to float32 (block types do) */
} fm_dtype_info;
const fm_dtype_info *fm_dtype_get(fm_dtype dtype);     /* asserts a valid value */
fm_dtype fm_dtype_parse(const char *name, size_t len); /* FM_DTYPE_NONE when unknown */

typedef struct fm_shape {
    uint32_t rank; /* 0 = scalar, one element */
    uint64_t dim[FM_MAX_RANK];
} fm_shape;
bool fm_shape_eq(const fm_shape *a, const fm_shape *b);
/* Elements; FM_ELIMIT on overflow. */
FM_CHECKED fm_status fm_shape_elems(uint64_t *out, const fm_shape *shape);
/* Bytes of (dtype, shape). FM_EINVAL where a block type's last dimension is not a whole number of
 * blocks; FM_ELIMIT beyond FM_MAX_TENSOR_BYTES. `name` is for the error's text. */
FM_CHECKED fm_status fm_tensor_bytes(uint64_t *out, fm_dtype dtype, const fm_shape *shape,
                                     const char *name);
void fm_shape_text(const fm_shape *shape, char *out, size_t out_bytes); /* "[576, 1536]" */

/* Identity: SHA-256 over "fmstore tensor 1\n" | dtype name | '\n' | rank u32 | dims u64 LE | byte
 * count u64 | the SHA-256 of each 1 MiB leaf (the last may be short). Golden values in
 * store/FORMAT.md. For an opaque blob the text is "fmstore blob 1\n", without dtype, rank and dims.
 * leaf_out, where not NULL, receives the leaf digests: (bytes + leaf - 1) / leaf of them. */
FM_CHECKED fm_status fm_tensor_id(fm_digest *out, fm_dtype dtype, const fm_shape *shape,
                                  fm_span bytes, fm_digest *leaf_out);
FM_CHECKED fm_status fm_blob_id(fm_digest *out, fm_span bytes, fm_digest *leaf_out);
FM_CHECKED fm_status fm_tensor_id_from_leaves(fm_digest *out, fm_dtype dtype, const fm_shape *shape,
                                              uint64_t bytes, const fm_digest *leaf);
FM_CHECKED fm_status fm_blob_id_from_leaves(fm_digest *out, uint64_t bytes, const fm_digest *leaf);

/* Widens n elements to float32 exactly (block types: n a whole number of blocks), with the bits of
 * ggml's reference dequantization and of IEEE conversion. I*, U*, F64, BOOL: FM_EUNSUPPORTED. */
FM_CHECKED fm_status fm_to_f32(float *dst, fm_dtype dtype, const void *src, uint64_t n);
/* Rounds float32 to nearest even; dtype is F32, BF16 or F16. NaN stays NaN and becomes quiet. */
FM_CHECKED fm_status fm_from_f32(void *dst, fm_dtype dtype, const float *src, uint64_t n);

float fm_bf16_to_f32(uint16_t v);
uint16_t fm_f32_to_bf16(float v);
float fm_f16_to_f32(uint16_t v);
uint16_t fm_f32_to_f16(float v);

FM_END_DECLS
#endif
