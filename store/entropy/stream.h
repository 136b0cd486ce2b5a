/* stream.h - entropy streams: bytes coded by the best of raw, one byte repeated, rANS and zstd-1;
 * the only user of zstd. A stream is u8 mode | u32 coded bytes | bytes; its decoded length is
 * known. */
#ifndef FM_STORE_CODEC_STREAM_H
#define FM_STORE_CODEC_STREAM_H

#include "store/base/buf.h"
#include "store/tensor.h"

FM_BEGIN_DECLS

typedef struct fms_streams fms_streams; /* zstd's contexts, buffers for two codings; one thread */
FM_CHECKED fm_status fms_streams_new(fms_streams **out);
void fms_streams_free(fms_streams *c);

/* Appends src[0..n), n <= FM_LEAF_BYTES. */
void fms_stream_encode(fms_streams *c, fm_buf *out, const uint8_t *src, size_t n);
/* Decodes the next stream of cur; FM_ECORRUPT: malformed, or it does not give n bytes. */
FM_CHECKED fm_status fms_stream_decode(fms_streams *c, uint8_t *dst, size_t n, fm_cursor *cur);

FM_END_DECLS
#endif
