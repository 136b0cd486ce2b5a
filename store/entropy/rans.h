/* rans.h - order-0 entropy coder of bytes: static rANS, 12-bit frequencies, four interleaved 32-bit
 * states, 16-bit words. rANS rather than Huffman, because a plane that is 95 % zeros is worth 0.3
 * bits a symbol, which no prefix code can reach. Integers only. */
#ifndef FM_STORE_CODEC_RANS_H
#define FM_STORE_CODEC_RANS_H

#include "store/base/error.h"

FM_BEGIN_DECLS

/* Codes src[0..n) by its histogram (at least two different symbols) into dst. Returns the coded
 * size, or 0 where dst_bytes do not suffice. */
size_t fms_rans_encode(uint8_t *dst, size_t dst_bytes, const uint8_t *src, size_t n,
                       const uint32_t histogram[256]);
/* FM_ECORRUPT for a malformed table, a stream that is too short or too long, a wrong end state. */
FM_CHECKED fm_status fms_rans_decode(uint8_t *dst, size_t n, const uint8_t *src, size_t src_bytes);

FM_END_DECLS
#endif
