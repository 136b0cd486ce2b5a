/* codec.h - one leaf (at most 1 MiB of decoded bytes) to coded bytes and back.
 *
 * Every leaf is coded alone, by the codec that gives the fewest bytes, or raw; so any leaf can be
 * read without its neighbours, and a child's leaf needs only the same leaf of its parent. FORMAT.md
 * section "Codecs" is the byte level. The entropy stages are zstd-1 and rANS coders of our own,
 * order-0 and with contexts: zstd's Huffman cannot spend less than one bit on a symbol, and in the
 * delta of a fine-tuned model most symbols are worth far less. */
#ifndef FM_STORE_CODEC_H
#define FM_STORE_CODEC_H

#include "store/base/buf.h"
#include "store/tensor.h"

FM_BEGIN_DECLS

/* Values are in the files: never renumber. */
typedef enum fms_codec {
    FMS_CODEC_RAW = 0,
    FMS_CODEC_CONST = 1,         /* one element, repeated */
    FMS_CODEC_PLANES = 2,        /* byte planes of the elements, each an entropy stream */
    FMS_CODEC_BYTES = 3,         /* the bytes as one entropy stream */
    FMS_CODEC_SAME = 4,          /* equal to the parent's leaf: no payload */
    FMS_CODEC_DELTA = 5,         /* ordered-integer delta, grouped by the parent's exponent */
    FMS_CODEC_XOR = 6,           /* PLANES of (child XOR parent) */
    FMS_CODEC_EXPS = 7,          /* exponents by rANS with contexts, the rest raw */
    FMS_CODEC_CDELTA = 8,        /* integer delta, contexts by the parent's exponent and by row */
    FMS_CODEC_NARROW = 9,        /* F32 whose values are BF16 or F16: the narrow leaf, coded */
    FMS_CODEC_NARROW_DELTA = 10, /* likewise, against the parent rounded to that type */
    FMS_CODEC_PALETTE = 11,      /* few different values, and indices */
    FMS_CODEC_BLOCKS = 12,       /* F32 dequantized from a GGUF block type: the blocks, coded */
    FMS_CODEC_MIXED = 13,        /* CDELTA's changes by adaptive predictions: the slow level */
    FMS_CODEC_COUNT
} fms_codec;

bool fms_codec_needs_parent(uint8_t codec);
const char *fms_codec_name(uint8_t codec); /* "raw", "const", ...; "unknown" */

/* Scratch memory, tables and zstd contexts of one thread, about 14 MiB. */
typedef struct fms_coder fms_coder;
FM_CHECKED fm_status fms_coder_new(fms_coder **out);
void fms_coder_free(fms_coder *c);
/* Two buffers of FM_LEAF_BYTES for the walk along a chain; encode and decode do not use them. */
uint8_t *fms_coder_scratch(fms_coder *c, unsigned which);

/* A leaf's place in its tensor, which a codec may use. The record holds dtype and shape, so the
 * decoder has the same; `slow` only steers the encoder's choice. */
typedef struct fms_leaf_at {
    fm_dtype dtype;     /* FM_DTYPE_NONE for blobs */
    uint64_t row_bytes; /* bytes of a row (last dimension); 0 for blobs and scalars */
    uint64_t offset;    /* the leaf's place in its tensor, a multiple of FM_LEAF_BYTES */
    bool slow;          /* codecs that decode below 0.1 GB/s may be chosen (`repack --slow`) */
} fms_leaf_at;

/* For leaf i of an object; shape may be NULL (a blob). */
fms_leaf_at fms_leaf_at_of(fm_dtype dtype, const fm_shape *shape, uint64_t i);

/* Appends the coded leaf to out. parent: the same leaf of the parent (leaf.len bytes, same dtype
 * and shape), or NULL. The same input gives the same bytes on every machine. */
FM_CHECKED fm_status fms_leaf_encode(fms_coder *c, fm_buf *out, uint8_t *codec,
                                     const fms_leaf_at *at, fm_span leaf, const uint8_t *parent);
/* dst has dst_bytes bytes, and parent as many where the codec needs one. FM_ECORRUPT: the coded
 * bytes are malformed; the caller must still compare the digest. */
FM_CHECKED fm_status fms_leaf_decode(fms_coder *c, uint8_t *dst, size_t dst_bytes, uint8_t codec,
                                     const fms_leaf_at *at, fm_span coded, const uint8_t *parent);

FM_END_DECLS
#endif
