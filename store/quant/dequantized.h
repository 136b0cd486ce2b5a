/* dequantized.h - recognises floats that were dequantized from a GGUF block type, by their values.
 *
 * A dequantized block of 32 or 256 floats is a scale with 11 significant bits times small integers,
 * so the block can be found again: some code of the extreme value gives a float16 scale, and by it
 * every other value must be an integer. A block that was found is always dequantized and must give
 * the same bits, signs of zeros included. It need not be the original block. */
#ifndef FM_STORE_DEQUANTIZED_H
#define FM_STORE_DEQUANTIZED_H

#include "store/base/buf.h"
#include "store/tensor.h"

FM_BEGIN_DECLS

typedef struct fms_origin {
    fm_dtype type; /* the block type with the fewest bytes that fits */
} fms_origin;

/* Looks at a few blocks. dtype: of the leaf; only F32 can give true. leaf.len / 4 need not be a
 * multiple of the block: the tail is an exception. False: no such origin, found in some
 * microseconds. True: a guess that encode has to confirm. */
bool fms_origin_find(fms_origin *out, fm_dtype dtype, fm_span leaf);

/* Appends to `blocks` the leaf's whole blocks of o->type, and to `rest` the exceptions, which no
 * block gives: u32 count, then per block u32 number and its floats, then the tail's bytes. Where
 * more than one block in 16 is an exception, the types after o->type are tried in the order of
 * their bits, and o is set to the one that fits; *fits false: none does, nothing was appended.
 * Errors: FM_ENOMEM, or the buffers' limits. */
FM_CHECKED fm_status fms_origin_encode(fm_buf *blocks, fm_buf *rest, bool *fits, fms_origin *o,
                                       fm_dtype dtype, fm_span leaf);

/* The bytes of `blocks` for a leaf of leaf_bytes. */
size_t fms_origin_block_bytes(fm_dtype type, fm_dtype dtype, size_t leaf_bytes);
/* The inverse; both spans are hostile. FM_ECORRUPT names what is wrong. */
FM_CHECKED fm_status fms_origin_decode(uint8_t *dst, size_t dst_bytes, fm_dtype dtype,
                                       fm_dtype type, fm_span blocks, fm_span rest);

FM_END_DECLS
#endif
