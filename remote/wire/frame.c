/* frame.c - writes and reads frames. */
#include "remote/wire/frame.h"

#include <string.h>

#include "store/base/mem.h"

#define HEAD_BYTES 5u
#define AHEAD_BYTES ((size_t)256 << 10)
#define GATHER_BYTES ((size_t)256 << 10)

fm_status fmr_wire_init(fmr_wire *w, const fmr_stream *stream, const char *peer)
{
    memset(w, 0, sizeof *w);
    w->stream = *stream;
    w->peer = peer;
    fm_buf_init(&w->out, GATHER_BYTES + FMR_FRAME_MAX + HEAD_BYTES);
    w->in = fm_malloc(FMR_FRAME_MAX);
    w->ahead = fm_malloc(AHEAD_BYTES);
    return w->in && w->ahead ? FM_OK : FM_ENOMEM;
}

void fmr_wire_release(fmr_wire *w)
{
    fm_buf_release(&w->out);
    fm_free(w->in);
    fm_free(w->ahead);
    w->in = w->ahead = NULL;
}

static fm_status write_out(fmr_wire *w, const void *data, size_t len)
{
    w->bytes_out += len;
    return w->stream.write(w->stream.ctx, data, len);
}

static fm_status flush(fmr_wire *w)
{
    FM_TRY(fm_buf_ok(&w->out));
    if (w->out.len == 0)
        return FM_OK;
    FM_TRY(write_out(w, w->out.data, w->out.len));
    fm_buf_clear(&w->out);
    return FM_OK;
}

fm_status fmr_send(fmr_wire *w, fmr_frame type, const void *data, size_t len)
{
    const uint8_t *p = data;
    do {
        const size_t n = FM_MIN(len, (size_t)FMR_FRAME_MAX);
        fm_buf_u32(&w->out, (uint32_t)n);
        fm_buf_u8(&w->out, (uint8_t)type);
        if (n < GATHER_BYTES)
            fm_buf_append(&w->out, p, n);
        if (w->out.len >= GATHER_BYTES || n >= GATHER_BYTES)
            FM_TRY(flush(w));
        if (n >= GATHER_BYTES) /* which is not copied */
            FM_TRY(write_out(w, p, n));
        p = n ? p + n : p;
        len -= n;
    } while (len > 0);
    return fm_buf_ok(&w->out);
}

fm_status fmr_send_buf(fmr_wire *w, fmr_frame type, const fm_buf *b)
{
    FM_TRY(fm_buf_ok(b));
    return fmr_send(w, type, b->data, b->len);
}

fm_status fmr_send_data(void *wire, const void *data, size_t len)
{
    return len ? fmr_send(wire, FMR_DATA, data, len) : FM_OK;
}

fm_status fmr_send_fail(fmr_wire *w, fm_status rc)
{
    const char *text = fm_error_text();
    uint8_t head[4];
    fm_buf b;
    if (!*text)
        text = fm_status_name(rc);
    fm_put_u32(head, (uint32_t)-rc);
    fm_buf_init(&b, 4096);
    fm_buf_append(&b, head, sizeof head);
    fm_buf_str(&b, text);
    rc = fmr_send_buf(w, FMR_FAIL, &b);
    fm_buf_release(&b);
    FM_THEN(rc, fmr_turn(w));
    return rc;
}

fm_status fmr_turn(fmr_wire *w)
{
    FM_TRY(flush(w));
    return w->stream.turn ? w->stream.turn(w->stream.ctx) : FM_OK;
}

/* Fills dst; *ended: the stream ended before its first byte. */
static fm_status fill(fmr_wire *w, uint8_t *dst, size_t len, bool *ended)
{
    size_t done = 0;
    *ended = false;
    while (done < len) {
        if (w->ahead_at == w->ahead_end) {
            const bool straight = len - done >= AHEAD_BYTES;
            size_t got;
            FM_TRY(w->stream.read(w->stream.ctx, straight ? dst + done : w->ahead,
                                  straight ? len - done : AHEAD_BYTES, &got));
            if (got == 0 && done == 0) {
                *ended = true;
                return FM_OK;
            }
            if (got == 0)
                return fm_fail(FM_EIO, "%s: the connection ended in the middle of an answer",
                               w->peer);
            w->bytes_in += got;
            if (straight) {
                done += got;
                continue;
            }
            w->ahead_at = 0;
            w->ahead_end = got;
        }
        const size_t n = FM_MIN(len - done, w->ahead_end - w->ahead_at);
        memcpy(dst + done, w->ahead + w->ahead_at, n);
        w->ahead_at += n;
        done += n;
    }
    return FM_OK;
}

static bool is_type(uint8_t t)
{
    return t == FMR_ASK || t == FMR_LIST || t == FMR_RECORD || t == FMR_DATA || t == FMR_END ||
           t == FMR_FAIL;
}

static fm_status failure(fmr_wire *w, fm_span p)
{
    char text[900];
    fm_status status = FM_EIO;
    if (p.len < 4)
        return fm_fail(FM_ECORRUPT, "%s: a failure without a status", w->peer);
    const uint32_t code = fm_get_u32(p.data);
    if (code >= 1 && code <= (uint32_t)-FM_EREFUSED)
        status = (fm_status) - (int)code;
    if (status == FM_ENOMEM || status == FM_ECANCELLED) /* there, not here */
        status = FM_EIO;
    w->told = true;
    const size_t n = FM_MIN(p.len - 4, sizeof text - 1);
    memcpy(text, p.data + 4, n);
    text[n] = '\0';
    return fm_fail(status, "%s: %s", w->peer, text);
}

fm_status fmr_receive(fmr_wire *w, bool may_end, fmr_frame *type, fm_span *payload)
{
    uint8_t head[HEAD_BYTES];
    bool ended;
    memset(type, 0, sizeof *type);
    *payload = fm_span_of(w->in, 0);
    FM_TRY(fill(w, head, sizeof head, &ended));
    if (ended && may_end)
        return FM_OK;
    if (ended)
        return fm_fail(FM_EIO, "%s: the connection ended before the answer", w->peer);
    const uint32_t len = fm_get_u32(head);
    if (len > FMR_FRAME_MAX || !is_type(head[4]))
        return fm_fail(FM_ECORRUPT, "%s: what it sends is no answer of fmstore (%02x%02x%02x%02x)",
                       w->peer, head[0], head[1], head[2], head[3]);
    FM_TRY(fill(w, w->in, len, &ended));
    if (ended)
        return fm_fail(FM_EIO, "%s: the connection ended in the middle of an answer", w->peer);
    if (len == 0 && head[4] == FMR_DATA) /* nothing would come of it, for ever */
        return fm_fail(FM_ECORRUPT, "%s: a frame of data without data", w->peer);
    *type = (fmr_frame)head[4];
    *payload = fm_span_of(w->in, len);
    return *type == FMR_FAIL ? failure(w, *payload) : FM_OK;
}

fm_status fmr_expect(fmr_wire *w, fmr_frame type, fm_span *payload)
{
    fmr_frame got;
    FM_TRY(fmr_receive(w, false, &got, payload));
    if (got != type)
        return fm_fail(FM_ECORRUPT, "%s: a frame '%c' came where '%c' is due", w->peer, (char)got,
                       (char)type);
    return FM_OK;
}
