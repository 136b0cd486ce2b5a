/* tok_decode.c - decoders: tokens back to text.
 *
 * The supported decoders all act on one token at a time but for stripping at the ends, so each
 * token's bytes are computed once at open, and decoding is concatenation. That also makes the
 * streaming decoder the same code. One difference from `tokenizers`: where a run of byte-fallback
 * tokens is not UTF-8, it gives one U+FFFD per byte of the run, this one per ill-formed part. */
#include "infer/tok_internal.h"

#include <string.h>

static const char field[] = "tokenizer.json: decoder";

static fm_status parse_replace(fmi_decoder *d, const fm_json *v)
{
    fm_span from = fm_json_str(fm_json_path(v, "pattern.String"));
    fm_span to = fm_json_str(fm_json_get(v, "content"));

    if (!from.data || from.len == 0 || !to.data)
        return fm_fail(FM_EUNSUPPORTED, "%s: Replace is implemented for a String pattern", field);
    if (d->replace_count == FM_ARRAY_LEN(d->replace))
        return fm_fail(FM_ELIMIT, "%s: more than %zu Replace steps", field,
                       FM_ARRAY_LEN(d->replace));
    fmi_replace *r = &d->replace[d->replace_count++];
    r->from = fm_strndup((const char *)from.data, from.len);
    r->to = fm_strndup((const char *)to.data, to.len);
    r->from_len = from.len;
    r->to_len = to.len;
    return r->from && r->to ? FM_OK : FM_ENOMEM;
}

static fm_status parse_strip(fmi_decoder *d, const fm_json *v, bool fused)
{
    fm_span c = fm_json_str(fm_json_get(v, "content"));
    int64_t start = fm_json_int(fm_json_get(v, "start"), -1);
    int64_t stop = fm_json_int(fm_json_get(v, "stop"), -1);

    if (!c.data || c.len == 0 || c.len > sizeof d->strip_char || start < 0 || stop < 0 ||
        start > 64 || stop > 64)
        return fm_fail(FM_EINVAL, "%s: Strip needs 'content', 'start' and 'stop'", field);
    if (!fused || d->strip_char_len || stop > 0)
        return fm_fail(FM_EUNSUPPORTED, "%s: Strip is implemented once, after Fuse, at the start",
                       field);
    memcpy(d->strip_char, c.data, c.len);
    d->strip_char_len = c.len;
    d->strip_start = (uint32_t)start;
    return FM_OK;
}

static fm_status parse_metaspace(fmi_decoder *d, const fm_json *v)
{
    fm_span c = fm_json_str(fm_json_get(v, "replacement"));
    const char *scheme = fm_json_cstr(fm_json_get(v, "prepend_scheme"), NULL);
    bool legacy = true;
    fm_status rc = fmi_need_bool(&legacy, v, "add_prefix_space", true, field);

    if (rc < 0)
        return rc;
    if (!c.data)
        c = fm_span_str("\xe2\x96\x81");
    if (c.len == 0 || c.len > sizeof d->metaspace)
        return fm_fail(FM_EINVAL, "%s: Metaspace: 'replacement' must be one character", field);
    memcpy(d->metaspace, c.data, c.len);
    d->metaspace_len = c.len;
    if (scheme ? strcmp(scheme, "never") != 0 : legacy) { /* drop one leading space */
        d->strip_start = 1;
        d->strip_char[0] = ' ';
        d->strip_char_len = 1;
    }
    return FM_OK;
}

static fm_status parse_any(fmi_decoder *d, const fm_json *v, int depth, bool *fused)
{
    const char *type = fm_json_cstr(fm_json_get(v, "type"), NULL);

    if (!type)
        return fm_fail(FM_EINVAL, "%s: field 'type' must be a string", field);
    if (strcmp(type, "Sequence") == 0) {
        const fm_json *list = fm_json_get(v, "decoders");
        if (!fm_json_is(list, FM_JSON_ARRAY) || depth > 4)
            return fm_fail(FM_EINVAL, "%s: bad Sequence", field);
        for (size_t i = 0; i < fm_json_count(list); i++) {
            fm_status rc = parse_any(d, fm_json_at(list, i), depth + 1, fused);
            if (rc < 0)
                return rc;
        }
        return FM_OK;
    }
    if (strcmp(type, "Fuse") == 0) {
        *fused = true;
        return FM_OK;
    }
    if (strcmp(type, "Strip") == 0)
        return parse_strip(d, v, *fused);
    if (*fused)
        return fm_fail(FM_EUNSUPPORTED, "%s: '%s' after Fuse is not implemented", field, type);
    if (strcmp(type, "ByteFallback") == 0) {
        d->byte_fallback = true;
        return FM_OK;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        d->byte_level = true;
        return FM_OK;
    }
    if (strcmp(type, "Metaspace") == 0)
        return parse_metaspace(d, v);
    if (strcmp(type, "Replace") == 0 && !d->byte_fallback)
        return parse_replace(d, v);
    return fm_fail(FM_EUNSUPPORTED, "%s: type '%s' is not implemented here", field, type);
}

fm_status fmi_decoder_parse(fmi_decoder *out, const fm_json *v)
{
    bool fused = false;

    memset(out, 0, sizeof *out);
    if (fm_json_typeof(v) == FM_JSON_NULL) {
        out->join_space = true;
        return FM_OK;
    }
    fm_status rc = parse_any(out, v, 0, &fused);
    if (rc < 0)
        return rc;
    if (out->byte_level + out->byte_fallback + (out->metaspace_len > 0) > 1)
        return fm_fail(FM_EUNSUPPORTED, "%s: this combination is not implemented", field);
    if (out->byte_level && (out->replace_count > 0 || out->strip_char_len > 0))
        return fm_fail(FM_EUNSUPPORTED, "%s: ByteLevel with others is not implemented", field);
    return FM_OK;
}

void fmi_decoder_release(fmi_decoder *d)
{
    for (size_t i = 0; i < d->replace_count; i++) {
        fm_free(d->replace[i].from);
        fm_free(d->replace[i].to);
    }
    d->replace_count = 0;
}

/* A token all of whose characters stand for bytes is those bytes; any other is its own text. */
static fm_status byte_level(fm_span text, fm_buf *out)
{
    size_t begin = out->len;

    for (size_t i = 0; i < text.len;) {
        uint32_t cp;
        i += fmi_utf8_next(text.data + i, &cp);
        int b = fmi_char_to_byte(cp);
        if (b < 0) {
            out->len = begin;
            fm_buf_append(out, text.data, text.len);
            break;
        }
        fm_buf_u8(out, (uint8_t)b);
    }
    return fm_buf_ok(out);
}

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void replace_all(fm_buf *out, fm_span text, fm_span from, fm_span to)
{
    size_t done = 0;

    while (done < text.len) {
        const uint8_t *p = memmem(text.data + done, text.len - done, from.data, from.len);
        if (!p)
            break;
        size_t at = (size_t)(p - text.data);
        fm_buf_append(out, text.data + done, at - done);
        fm_buf_append(out, to.data, to.len);
        done = at + from.len;
    }
    fm_buf_append(out, text.data + done, text.len - done);
}

fm_status fmi_decoder_token(const fmi_decoder *d, fm_span text, fm_buf *out)
{
    fm_buf tmp[2];
    fm_status rc = FM_OK;

    if (d->byte_level)
        return byte_level(text, out);
    fm_buf_init(&tmp[0], 0);
    fm_buf_init(&tmp[1], 0);
    for (size_t i = 0; i < d->replace_count; i++) {
        const fmi_replace *r = &d->replace[i];
        fm_buf *b = &tmp[i & 1];
        fm_buf_clear(b);
        replace_all(b, text, fm_span_of(r->from, r->from_len), fm_span_of(r->to, r->to_len));
        rc = fm_buf_ok(b);
        if (rc < 0)
            break;
        text = fm_buf_span(b);
    }
    if (rc == FM_OK && d->byte_fallback && text.len == 6 && memcmp(text.data, "<0x", 3) == 0 &&
        text.data[5] == '>' && hex_digit(text.data[3]) >= 0 && hex_digit(text.data[4]) >= 0)
        fm_buf_u8(out, (uint8_t)(hex_digit(text.data[3]) * 16 + hex_digit(text.data[4])));
    else if (rc == FM_OK && d->metaspace_len > 0)
        replace_all(out, text, fm_span_of(d->metaspace, d->metaspace_len), fm_span_str(" "));
    else if (rc == FM_OK && text.len > 0)
        fm_buf_append(out, text.data, text.len);
    fm_buf_release(&tmp[0]);
    fm_buf_release(&tmp[1]);
    return rc < 0 ? rc : fm_buf_ok(out);
}

/* ---- decoding and streaming ---- */

void fm_tok_stream_init(fm_tok_stream *s, const fm_tokenizer *t, bool skip_special)
{
    memset(s, 0, sizeof *s);
    s->skip_special = skip_special;
    s->strip_left = t->decoder.strip_start;
}

/* held + bytes -> whole code points to out, the unfinished rest to held */
static void pour(fm_tok_stream *s, const uint8_t *p, size_t len, fm_buf *out)
{
    while (s->held_len > 0 && len > 0) {
        s->held[s->held_len++] = *p++;
        len--;
        size_t left = fmi_utf8_cut(s->held, s->held_len);
        if (left == s->held_len)
            continue;
        fmi_utf8_lossy(out, s->held, s->held_len - left);
        memmove(s->held, s->held + s->held_len - left, left);
        s->held_len = (uint8_t)left;
    }
    if (len == 0)
        return;
    size_t cut = fmi_utf8_cut(p, len);
    fmi_utf8_lossy(out, p, len - cut);
    memcpy(s->held, p + len - cut, cut);
    s->held_len = (uint8_t)cut;
}

fm_status fm_tok_stream_push(fm_tok_stream *s, const fm_tokenizer *t, int32_t id, fm_buf *out)
{
    const fmi_decoder *d = &t->decoder;
    fm_span b = fm_tokenizer_token_bytes(t, id);

    if (!fm_tokenizer_token_text(t, id).data)
        return fm_fail(FM_EINVAL, "decode: %d is no token id (vocabulary has %zu)", id,
                       fm_tokenizer_vocab_size(t));
    if (s->skip_special && fm_tokenizer_is_special(t, id))
        return FM_OK;
    while (s->strip_left > 0) {
        if (b.len < d->strip_char_len || memcmp(b.data, d->strip_char, d->strip_char_len) != 0) {
            s->strip_left = b.len > 0 ? 0 : s->strip_left;
            break;
        }
        b.data += d->strip_char_len;
        b.len -= d->strip_char_len;
        s->strip_left--;
    }
    if (d->join_space && s->any)
        pour(s, (const uint8_t *)" ", 1, out);
    s->any = true;
    if (b.len > 0)
        pour(s, b.data, b.len, out);
    return fm_buf_ok(out);
}

fm_status fm_tok_stream_finish(fm_tok_stream *s, const fm_tokenizer *t, fm_buf *out)
{
    (void)t;
    if (s->held_len > 0)
        fmi_utf8_lossy(out, s->held, s->held_len);
    s->held_len = 0;
    return fm_buf_ok(out);
}

fm_status fm_tokenizer_decode(const fm_tokenizer *t, const int32_t *ids, size_t count,
                              bool skip_special, fm_buf *out)
{
    fm_tok_stream s;

    fm_tok_stream_init(&s, t, skip_special);
    for (size_t i = 0; i < count; i++) {
        fm_status rc = fm_tok_stream_push(&s, t, ids[i], out);
        if (rc < 0)
            return rc;
    }
    return fm_tok_stream_finish(&s, t, out);
}
