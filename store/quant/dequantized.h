/* dequantized.h - floats that were dequantized from a GGUF block type, told by their values alone.
 *
 * A dequantized block of 32 or 256 floats has a scale with 11 significant bits and small integers, so
 * the block can be had back: some code of the extreme value gives a float16 scale, and with it
 * every other value must be an integer. What is found is always checked by dequantizing it: the same
 * bits, signs of zeros included. It need not be the very block that the floats came from (a block
 * of zeros has many), only one that gives them. */
#ifndef FM_STORE_ORIGIN_H
#define FM_STORE_ORIGIN_H

#include "store/base/buf.h"
#include "store/tensor.h"

FM_BEGIN_DECLS

typedef struct fms_origin {
    fm_dtype type; /* the block type with the fewest bytes that fits */
} fms_origin;

/* Looks at a few blocks. dtype: of the leaf; F32 alone, all else gives false. leaf.len / 4 need not be
 * a multiple of the block: the tail is an exception. False: no such origin, at the cost of some
 * microseconds. True is a guess that encode confirms. */
bool fms_origin_find(fms_origin *out, fm_dtype dtype, fm_span leaf);

/* Appends to `blocks` the leaf's blocks of o->type (leaf elements / block_elems, whole ones only) and to
 * `rest` what no block gives: u32 count, then per block u32 number and its floats, then the tail's
 * bytes. Where more than one block in 16 is such an exception the types after o->type in order of
 * their bytes are tried, and o is set to the one that fits; *fits false: none does, nothing was
 * appended. Errors: FM_ENOMEM, or the buffers' limits. */
FM_CHECKED fm_status fms_origin_encode(fm_buf *blocks, fm_buf *rest, bool *fits, fms_origin *o,
                                       fm_dtype dtype, fm_span leaf);

/* Bytes of `blocks` for a leaf of so many bytes. */
size_t fms_origin_block_bytes(fm_dtype type, fm_dtype dtype, size_t leaf_bytes);
/* The inverse; both spans are hostile. FM_ECORRUPT names what is wrong. */
FM_CHECKED fm_status fms_origin_decode(uint8_t *dst, size_t dst_bytes, fm_dtype dtype,
                                       fm_dtype type, fm_span blocks, fm_span rest);

FM_END_DECLS
#endif
