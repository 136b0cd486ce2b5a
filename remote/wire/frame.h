/* frame.h - frames on a stream of bytes between two fmstores: length u32, type u8, payload.
 *
 * A message is a frame FMR_ASK, then what its operation sends, then FMR_END; the answer is frames
 * and FMR_END, or FMR_FAIL at any point, after which nothing more of the message counts. The side
 * that answers reads the whole message first, but for a failure. All integers are little-endian. */
#ifndef FM_REMOTE_WIRE_FRAME_H
#define FM_REMOTE_WIRE_FRAME_H

#include "store/base/buf.h"

FM_BEGIN_DECLS

#define FMR_FRAME_MAX ((uint32_t)1 << 20) /* of a payload */

typedef enum fmr_frame {
    FMR_ASK = 'A',  /* the operation u8, and its fields */
    FMR_LIST = 'L', /* a part of a list: whole items, one after the other */
    FMR_RECORD =
        'R', /* what follows is this record's bytes, up to the next frame of another type */
    FMR_DATA = 'D',
    FMR_END = 'E',
    FMR_FAIL = 'F', /* status u32 (negated), text */
} fmr_frame;

/* A connection; both directions are used by one thread. */
typedef struct fmr_stream {
    void *ctx;
    /* *got 0: the other side has closed. */
    fm_status (*read)(void *ctx, void *dst, size_t cap, size_t *got);
    fm_status (*write)(void *ctx, const void *data, size_t len);
    fm_status (*turn)(void *ctx); /* a message ends here: the answer is read next. May be NULL */
} fmr_stream;

typedef struct fmr_wire {
    fmr_stream stream;
    const char *peer; /* its name in errors, borrowed */
    fm_buf out;       /* frames not written yet */
    uint8_t *in;      /* the last frame's payload, FMR_FRAME_MAX */
    uint8_t *ahead;   /* bytes read and not used */
    size_t ahead_at, ahead_end;
    bool told; /* the other side has said why it failed */
    uint64_t bytes_in, bytes_out;
} fmr_wire;

FM_CHECKED fm_status fmr_wire_init(fmr_wire *w, const fmr_stream *stream, const char *peer);
void fmr_wire_release(fmr_wire *w); /* closes nothing */

/* Frames gather and go out together; data beyond FMR_FRAME_MAX goes as several. */
FM_CHECKED fm_status fmr_send(fmr_wire *w, fmr_frame type, const void *data, size_t len);
FM_CHECKED fm_status fmr_send_buf(fmr_wire *w, fmr_frame type, const fm_buf *b);
FM_CHECKED fm_status fmr_send_data(void *wire, const void *data, size_t len); /* an fm_bytes_fn */
/* The current error as FMR_FAIL, and everything out. Fails only where the stream does. */
FM_CHECKED fm_status fmr_send_fail(fmr_wire *w, fm_status rc);
FM_CHECKED fm_status fmr_turn(fmr_wire *w); /* everything out; the answer comes next */

/* The next frame; the payload is valid until the next call. FMR_FAIL is returned as that failure,
 * its text after the peer's name. FM_EIO: the stream ended. FM_ECORRUPT: a length or type that no
 * frame has. *type 0: the stream ended between two messages, where `may_end`. */
FM_CHECKED fm_status fmr_receive(fmr_wire *w, bool may_end, fmr_frame *type, fm_span *payload);
/* The next frame must be of this type. */
FM_CHECKED fm_status fmr_expect(fmr_wire *w, fmr_frame type, fm_span *payload);

FM_END_DECLS
#endif
