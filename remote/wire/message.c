/* message.c - fields of the wire's messages as bytes, and back. */
#include "remote/wire/message.h"

#include <string.h>

void fmr_put_text(fm_buf *b, const char *text)
{
    const size_t n = FM_MIN(strlen(text), (size_t)UINT16_MAX);
    fm_buf_u16(b, (uint16_t)n);
    fm_buf_append(b, text, n);
}

void fmr_take_text(fm_cursor *c, char *out, size_t cap)
{
    const fm_span s = fm_cursor_bytes(c, fm_cursor_u16(c));
    out[0] = '\0';
    if (s.len >= cap || (s.len && memchr(s.data, 0, s.len))) {
        c->failed = true;
        return;
    }
    if (s.len)
        memcpy(out, s.data, s.len);
    out[s.len] = '\0';
}

void fmr_put_digest(fm_buf *b, const fm_digest *d)
{
    fm_buf_append(b, d->b, sizeof d->b);
}

void fmr_take_digest(fm_cursor *c, fm_digest *out)
{
    const fm_span s = fm_cursor_bytes(c, sizeof out->b);
    memset(out, 0, sizeof *out);
    if (s.len == sizeof out->b)
        memcpy(out->b, s.data, s.len);
}

void fmr_put_oid(fm_buf *b, const fm_oid *oid)
{
    fm_buf_append(b, oid->b, sizeof oid->b);
}

void fmr_take_oid(fm_cursor *c, fm_oid *out)
{
    const fm_span s = fm_cursor_bytes(c, sizeof out->b);
    memset(out, 0, sizeof *out);
    if (s.len == sizeof out->b)
        memcpy(out->b, s.data, s.len);
}

void fmr_put_info(fm_buf *b, bool there, const fm_record_info *info)
{
    fm_buf_u8(b, there);
    if (!there)
        return;
    fmr_put_digest(b, &info->id);
    fmr_put_digest(b, &info->head);
    fm_buf_u64(b, info->bytes);
    fm_buf_u64(b, info->stored_bytes);
    fm_buf_u8(b, (uint8_t)info->depth);
    fm_buf_u8(b, (uint8_t)info->parent_count);
    for (uint32_t i = 0; i < info->parent_count; i++)
        fmr_put_digest(b, &info->parent[i]);
}

fm_status fmr_take_info(fm_cursor *c, bool *there, fm_record_info *out)
{
    memset(out, 0, sizeof *out);
    *there = fm_cursor_u8(c) != 0;
    if (*there) {
        fmr_take_digest(c, &out->id);
        fmr_take_digest(c, &out->head);
        out->bytes = fm_cursor_u64(c);
        out->stored_bytes = fm_cursor_u64(c);
        out->depth = fm_cursor_u8(c);
        out->parent_count = fm_cursor_u8(c);
        if (out->parent_count > FM_PARENTS_MAX || (out->parent_count > 0 && out->depth == 0))
            return fm_fail(FM_ECORRUPT, "the wire: an object with %u parents at depth %u",
                           out->parent_count, out->depth);
        for (uint32_t i = 0; i < out->parent_count; i++)
            fmr_take_digest(c, &out->parent[i]);
    }
    return fm_cursor_ok(c, "the wire", "a record's description");
}

void fmr_put_wish(fm_buf *b, const fm_ref_wish *w)
{
    fmr_put_text(b, w->name);
    fmr_put_oid(b, &w->new_oid);
    fmr_put_oid(b, &w->old);
    fm_buf_u8(b, w->force);
}

fm_status fmr_take_wish(fm_cursor *c, fm_ref_wish *out, char name[FMR_NAME_MAX])
{
    memset(out, 0, sizeof *out);
    fmr_take_text(c, name, FMR_NAME_MAX);
    out->name = name;
    fmr_take_oid(c, &out->new_oid);
    fmr_take_oid(c, &out->old);
    out->force = fm_cursor_u8(c) != 0;
    return fm_cursor_ok(c, "the wire", "a ref that is to move");
}

void fmr_put_outcome(fm_buf *b, const fm_ref_wish *w)
{
    fm_buf_u32(b, (uint32_t)-w->status);
    fmr_put_text(b, w->text);
}

fm_status fmr_take_outcome(fm_cursor *c, fm_ref_wish *w)
{
    const uint32_t code = fm_cursor_u32(c);
    w->status = code <= (uint32_t)-FM_EREFUSED ? (fm_status) - (int)code : FM_EIO;
    fmr_take_text(c, w->text, sizeof w->text);
    return fm_cursor_ok(c, "the wire", "the outcome of a ref");
}
