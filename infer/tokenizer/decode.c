/* decode.c - decoders: tokens back to text.
 *
 * A decoder is a list of steps. Steps before the tokens are joined act on one token at a time and
 * depend at most on whether it is the first or the last one, so each token's bytes are computed at
 * open, once for each case; after the tokens are joined only Strip is left. So the streaming
 * decoder is the same code. Steps that would have to see the whole text are refused. One difference
 * from `tokenizers`: where a run of byte-fallback tokens is not UTF-8, `tokenizers` gives one
 * U+FFFD per byte of the run, this decoder one per ill-formed part. */
#include "infer/tokenizer/internal.h"

#include <string.h>

#include "store/base/cancel.h"

#define DECODED_MAX ((size_t)1 << 30) /* bytes of all tokens */
#define STRIP_MAX (1 << 20)

static const char field[] = "tokenizer.json: decoder";

/* ---- reading ---- */

typedef struct parse_state {
    fmi_decoder *d;
    bool joined; /* Fuse or ByteLevel came */
} parse_state;

static fm_status refuse(const char *type, const char *why)
{
    return fm_fail(FM_EUNSUPPORTED, "%s: '%s' %s is not implemented", field, type, why);
}

static fm_status take(fmi_text_part *out, const fm_json *v, const char *key, const char *dflt)
{
    const fm_json *j = fm_json_get(v, key);
    fm_span s = fm_json_str(j);

    if (fm_json_typeof(j) == FM_JSON_NULL && dflt)
        s = fm_span_str(dflt);
    if (!s.data)
        return fm_fail(FM_EINVAL, "%s: field '%s' must be a string", field, key);
    out->data = fm_strndup((const char *)s.data, s.len);
    out->len = s.len;
    return out->data ? FM_OK : FM_ENOMEM;
}

static fm_status parse_replace(fmi_decode_step *p, const fm_json *v)
{
    const fm_json *pattern = fm_json_get(v, "pattern");

    if (!fm_json_get(pattern, "String"))
        return refuse("Replace", "with a pattern that is no String");
    FM_TRY(take(&p->a, pattern, "String", NULL));
    if (p->a.len == 0)
        FM_TRY(refuse("Replace", "of an empty text"));
    return take(&p->b, v, "content", NULL);
}

static fm_status parse_strip(fmi_decode_step *p, const fm_json *v)
{
    int64_t start = fm_json_int(fm_json_get(v, "start"), 0);
    int64_t stop = fm_json_int(fm_json_get(v, "stop"), 0);
    FM_TRY(take(&p->a, v, "content", " "));
    uint32_t cp;

    if (p->a.len == 0 || fm_utf8_next((const uint8_t *)p->a.data, &cp) != p->a.len || start < 0 ||
        stop < 0 || start > STRIP_MAX || stop > STRIP_MAX)
        return fm_fail(FM_EINVAL, "%s: Strip needs a character 'content', 'start' and 'stop'",
                       field);
    p->start = (uint32_t)start;
    p->stop = (uint32_t)stop;
    return FM_OK;
}

static fm_status parse_metaspace(fmi_decode_step *p, const fm_json *v)
{
    const char *scheme = fm_json_cstr(fm_json_get(v, "prepend_scheme"), NULL);
    bool legacy = true;
    FM_TRY(fmi_need_bool(&legacy, v, "add_prefix_space", true, field));

    FM_TRY(take(&p->a, v, "replacement", "\xe2\x96\x81"));
    if (p->a.len == 0 || p->a.len > 4)
        return fm_fail(FM_EINVAL, "%s: Metaspace: 'replacement' must be one character", field);
    p->drop_first = scheme ? strcmp(scheme, "never") != 0 : legacy;
    return FM_OK;
}

static fm_status parse_ctc(fmi_decode_step *p, const fm_json *v)
{
    FM_TRY(take(&p->a, v, "pad_token", "<pad>"));

    FM_TRY(take(&p->b, v, "word_delimiter_token", "|"));
    if (p->a.len == 0 || p->b.len == 0)
        FM_TRY(refuse("CTC", "with an empty token"));
    return fmi_need_bool(&p->cleanup, v, "cleanup", true, field);
}

static fm_status parse_wordpiece(fmi_decode_step *p, const fm_json *v)
{
    FM_TRY(take(&p->a, v, "prefix", "##"));

    return fmi_need_bool(&p->cleanup, v, "cleanup", true, field);
}

static fm_status parse_bpe(fmi_decode_step *p, const fm_json *v)
{
    fm_status rc = take(&p->a, v, "suffix", "</w>");

    return rc < 0 || p->a.len > 0 ? rc : refuse("BPEDecoder", "with an empty suffix");
}

static fm_status parse_nothing(fmi_decode_step *p, const fm_json *v)
{
    (void)p;
    (void)v;
    return FM_OK;
}

static const struct {
    const char *name;
    fmi_decode_kind kind;
    fm_status (*parse)(fmi_decode_step *p, const fm_json *v);
} kinds[] = {{"Replace", FMI_DECODE_REPLACE, parse_replace},
             {"Strip", FMI_DECODE_STRIP, parse_strip},
             {"Metaspace", FMI_DECODE_METASPACE, parse_metaspace},
             {"CTC", FMI_DECODE_CTC, parse_ctc},
             {"WordPiece", FMI_DECODE_WORDPIECE, parse_wordpiece},
             {"BPEDecoder", FMI_DECODE_BPE, parse_bpe},
             {"ByteFallback", FMI_DECODE_BYTE_FALLBACK, parse_nothing},
             {"ByteLevel", FMI_DECODE_BYTE_LEVEL, parse_nothing},
             {"Fuse", FMI_DECODE_FUSE, parse_nothing}};

/* Checks that a step is possible where it stands, and sets what the streaming decoder needs. */
static fm_status place(parse_state *s, fmi_decode_step *p, const char *type)
{
    fmi_decoder *d = s->d;

    if (s->joined && p->kind == FMI_DECODE_STRIP) {
        if (d->strip)
            return refuse(type, "twice behind the joined text");
        d->strip = p;
        return FM_OK;
    }
    if (s->joined && p->kind != FMI_DECODE_FUSE)
        return refuse(type, "behind Fuse or ByteLevel");
    if (d->bytes && p->kind != FMI_DECODE_FUSE && p->kind != FMI_DECODE_STRIP)
        return refuse(type, "behind ByteFallback");
    if (p->kind == FMI_DECODE_CTC && p != d->step)
        return refuse(type, "behind another decoder");
    d->bytes = d->bytes || p->kind == FMI_DECODE_BYTE_FALLBACK;
    d->ctc = d->ctc || p->kind == FMI_DECODE_CTC;
    d->by_first = d->by_first || p->kind == FMI_DECODE_WORDPIECE ||
                  (p->kind == FMI_DECODE_METASPACE && p->drop_first);
    d->by_last = d->by_last || p->kind == FMI_DECODE_BPE;
    s->joined = s->joined || p->kind == FMI_DECODE_FUSE || p->kind == FMI_DECODE_BYTE_LEVEL;
    return FM_OK;
}

static fm_status parse_one(parse_state *s, const fm_json *v, const char *type)
{
    fmi_decoder *d = s->d;

    for (size_t i = 0; i < FM_ARRAY_LEN(kinds); i++) {
        if (strcmp(type, kinds[i].name) != 0)
            continue;
        if (d->count == FM_ARRAY_LEN(d->step))
            return fm_fail(FM_ELIMIT, "%s: more than %zu steps", field, FM_ARRAY_LEN(d->step));
        fmi_decode_step *p = &d->step[d->count++];
        p->kind = kinds[i].kind;
        fm_status rc = kinds[i].parse(p, v);
        return rc < 0 ? rc : place(s, p, type);
    }
    return fm_fail(FM_EUNSUPPORTED, "%s: type '%s' is not implemented", field, type);
}

static fm_status parse_any(parse_state *s, const fm_json *v, int depth)
{
    const char *type = fm_json_cstr(fm_json_get(v, "type"), NULL);
    const fm_json *list = fm_json_get(v, "decoders");

    if (!type)
        return fm_fail(FM_EINVAL, "%s: field 'type' must be a string", field);
    if (strcmp(type, "Sequence") != 0)
        return parse_one(s, v, type);
    if (!fm_json_is(list, FM_JSON_ARRAY) || depth > 4)
        return fm_fail(FM_EINVAL, "%s: bad Sequence", field);
    for (size_t i = 0; i < fm_json_count(list); i++)
        FM_TRY(parse_any(s, fm_json_at(list, i), depth + 1));
    return FM_OK;
}

fm_status fmi_decoder_parse(fmi_decoder *out, const fm_json *v)
{
    parse_state s = {out, false};

    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < FM_ARRAY_LEN(out->form); i++)
        fm_buf_init(&out->form[i].bytes, DECODED_MAX);
    out->join_space = fm_json_typeof(v) == FM_JSON_NULL;
    return out->join_space ? FM_OK : parse_any(&s, v, 0);
}

void fmi_decoder_release(fmi_decoder *d)
{
    for (size_t i = 0; i < d->count; i++) {
        fm_free(d->step[i].a.data);
        fm_free(d->step[i].b.data);
    }
    for (size_t i = 0; i < FM_ARRAY_LEN(d->form); i++) {
        fm_buf_release(&d->form[i].bytes);
        fm_free(d->form[i].off);
    }
    d->count = 0;
}

/* ---- one token ---- */

/* ByteLevel: a token whose characters all stand for bytes gives those bytes; any other its text. */
static void byte_level(fm_span text, fm_buf *out)
{
    size_t begin = out->len;

    for (size_t i = 0; i < text.len;) {
        uint32_t cp;
        i += fm_utf8_next(text.data + i, &cp);
        int b = fmi_char_to_byte(cp);
        if (b < 0) {
            out->len = begin;
            fm_buf_append(out, text.data, text.len);
            break;
        }
        fm_buf_u8(out, (uint8_t)b);
    }
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

    if (text.len == 0)
        return;
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

/* Removes the spaces that tokenizing English puts before punctuation and contractions. */
static void clean_up(fm_buf *out, fm_span text)
{
    static const char *const pair[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                          {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                          {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                          {" 've", "'ve"}, {" 're", "'re"}};
    fm_buf tmp;

    fm_buf_init(&tmp, DECODED_MAX);
    fm_buf_append(out, text.data, text.len);
    for (size_t i = 0; i < FM_ARRAY_LEN(pair); i++) {
        fm_buf swap = tmp;
        tmp = *out;
        *out = swap;
        fm_buf_clear(out);
        replace_all(out, fm_buf_span(&tmp), fm_span_str(pair[i][0]), fm_span_str(pair[i][1]));
    }
    fm_buf_release(&tmp);
}

static fm_span part_span(const fmi_text_part *t)
{
    return fm_span_of(t->data, t->len);
}

static void wordpiece(const fmi_decode_step *p, fm_span text, bool first, fm_buf *out)
{
    fm_span prefix = part_span(&p->a);
    fm_buf tmp;

    fm_buf_init(&tmp, DECODED_MAX);
    if (!first && fm_span_starts(text, prefix)) {
        text.data += prefix.len;
        text.len -= prefix.len;
    } else if (!first) {
        fm_buf_char(&tmp, ' ');
    }
    fm_buf_append(&tmp, text.data, text.len);
    if (p->cleanup)
        clean_up(out, fm_buf_span(&tmp));
    else
        fm_buf_append(out, tmp.data, tmp.len);
    fm_buf_release(&tmp);
}

static void ctc(const fmi_decode_step *p, fm_span text, fm_buf *out)
{
    fm_buf tmp[2];

    fm_buf_init(&tmp[0], DECODED_MAX);
    fm_buf_init(&tmp[1], DECODED_MAX);
    replace_all(&tmp[0], text, part_span(&p->a), fm_span_str(""));
    if (p->cleanup) {
        clean_up(&tmp[1], fm_buf_span(&tmp[0]));
        replace_all(out, fm_buf_span(&tmp[1]), part_span(&p->b), fm_span_str(" "));
    } else {
        fm_buf_append(out, tmp[0].data, tmp[0].len);
    }
    fm_buf_release(&tmp[0]);
    fm_buf_release(&tmp[1]);
}

static void strip(const fmi_decode_step *p, fm_span text, fm_buf *out)
{
    fm_span c = part_span(&p->a);

    for (uint32_t i = 0; i < p->start && fm_span_starts(text, c); i++) {
        text.data += c.len;
        text.len -= c.len;
    }
    for (uint32_t i = 0; i < p->stop && fm_span_ends(text, c); i++)
        text.len -= c.len;
    fm_buf_append(out, text.data, text.len);
}

static bool byte_token(fm_span text, uint8_t *byte)
{
    if (text.len != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>')
        return false;
    int hi = hex_digit(text.data[3]), lo = hex_digit(text.data[4]);
    if (hi < 0 || lo < 0)
        return false;
    *byte = (uint8_t)(hi * 16 + lo);
    return true;
}

/* Runs a step on a token. False: the result is a byte of ByteFallback, which later steps leave. */
static bool run_step(const fmi_decode_step *p, fm_span text, unsigned form, fm_buf *out)
{
    bool first = form & FMI_FORM_FIRST, last = form & FMI_FORM_LAST;
    uint8_t byte;

    switch (p->kind) {
    case FMI_DECODE_REPLACE:
        replace_all(out, text, part_span(&p->a), part_span(&p->b));
        break;
    case FMI_DECODE_METASPACE:
        replace_all(out, text, part_span(&p->a), fm_span_str(first && p->drop_first ? "" : " "));
        break;
    case FMI_DECODE_WORDPIECE:
        wordpiece(p, text, first, out);
        break;
    case FMI_DECODE_BPE:
        replace_all(out, text, part_span(&p->a), fm_span_str(last ? "" : " "));
        break;
    case FMI_DECODE_CTC:
        ctc(p, text, out);
        break;
    case FMI_DECODE_STRIP:
        strip(p, text, out);
        break;
    case FMI_DECODE_BYTE_LEVEL:
        byte_level(text, out);
        break;
    case FMI_DECODE_BYTE_FALLBACK:
        if (byte_token(text, &byte)) {
            fm_buf_u8(out, byte);
            return false;
        }
        fm_buf_append(out, text.data, text.len);
        break;
    case FMI_DECODE_FUSE:
        fm_buf_append(out, text.data, text.len);
        break;
    }
    return true;
}

/* Decodes a token. grow_left: bytes by which steps may still make tokens longer. */
static fm_status decode_token(const fmi_decoder *d, fm_span text, unsigned form, size_t *grow_left,
                              fm_buf *out)
{
    fm_buf tmp[2];
    fm_status rc = FM_OK;
    bool more = true;

    fm_buf_init(&tmp[0], DECODED_MAX);
    fm_buf_init(&tmp[1], DECODED_MAX);
    for (size_t i = 0; i < d->count && rc == FM_OK && more; i++) {
        fm_buf *b = &tmp[i & 1];
        if (&d->step[i] == d->strip)
            break; /* Strip acts on the joined text */
        fm_buf_clear(b);
        b->max = fmi_room(text.len, *grow_left);
        more = run_step(&d->step[i], text, form, b);
        fmi_grew(grow_left, text.len, b->len);
        text = fm_buf_span(b);
        rc = fm_buf_ok(b);
        if (rc == FM_ELIMIT)
            rc = fm_fail(rc,
                         "%s: step %zu of %zu makes the tokens longer by more than %d times their "
                         "length and 1 MiB",
                         field, i + 1, d->count, FMI_TOK_GROW_TIMES);
    }
    if (rc == FM_OK && text.len > 0)
        fm_buf_append(out, text.data, text.len);
    fm_buf_release(&tmp[0]);
    fm_buf_release(&tmp[1]);
    return rc < 0 ? rc : fm_buf_ok(out);
}

fm_status fmi_decoder_prepare(fmi_decoder *d, const fm_span *text, size_t count)
{
    size_t bytes = 0;

    for (size_t id = 0; id < count; id++)
        bytes += text[id].len;
    for (unsigned f = 0; f < FM_ARRAY_LEN(d->form); f++) {
        size_t grow_left = FMI_TOK_GROW_TIMES * bytes + FMI_TOK_GROW_MORE;
        if (((f & FMI_FORM_FIRST) && !d->by_first) || ((f & FMI_FORM_LAST) && !d->by_last))
            continue;
        d->form[f].off = fm_calloc(count + 1, sizeof *d->form[f].off);
        if (!d->form[f].off)
            return FM_ENOMEM;
        for (size_t id = 0; id < count; id++) {
            FM_TRY(fm_go_on());
            if (text[id].data)
                FM_TRY(decode_token(d, text[id], f, &grow_left, &d->form[f].bytes));
            d->form[f].off[id + 1] = (uint32_t)d->form[f].bytes.len;
        }
    }
    return FM_OK;
}

fm_span fmi_decoder_bytes(const fmi_decoder *d, int32_t id, bool first, bool last)
{
    unsigned f =
        (first && d->by_first ? FMI_FORM_FIRST : 0u) | (last && d->by_last ? FMI_FORM_LAST : 0u);
    const uint32_t *off = d->form[f].off;

    if (d->form[f].bytes.len == 0)
        return fm_span_of("", 0);
    return fm_span_of(d->form[f].bytes.data + off[id], off[id + 1] - off[id]);
}

fm_span fm_tokenizer_token_bytes(const fm_tokenizer *t, int32_t id)
{
    if (id < 0 || (size_t)id >= t->all.size)
        return fm_span_of("", 0);
    return fmi_decoder_bytes(&t->decoder, id, false, false);
}

/* ---- decoding and streaming ---- */

void fm_tok_stream_init(fm_tok_stream *s, const fm_tokenizer *t, bool skip_special)
{
    memset(s, 0, sizeof *s);
    s->skip_special = skip_special;
    s->strip_left = t->decoder.strip ? t->decoder.strip->start : 0;
    s->previous = -1;
}

/* Delivers whole code points of the joined text without the characters that Strip takes from its
 * ends. At the end up to `stop` such characters are kept back until another character follows. */
static void deliver(fm_tok_stream *s, const fmi_decode_step *p, fm_span text, fm_buf *out)
{
    fm_span c = p ? part_span(&p->a) : fm_span_of("", 0);
    uint32_t tail = 0;

    while (s->strip_left > 0 && text.len > 0) {
        if (!fm_span_starts(text, c)) {
            s->strip_left = 0;
            break;
        }
        text.data += c.len;
        text.len -= c.len;
        s->strip_left--;
    }
    if (!p || p->stop == 0 || text.len == 0) {
        fm_buf_append(out, text.data, text.len);
        return;
    }
    while (tail < p->stop && fm_span_ends(text, c)) {
        text.len -= c.len;
        tail++;
    }
    /* The text is only that character: the oldest of those kept back may be delivered. */
    uint32_t give = text.len > 0                     ? s->strip_held
                    : s->strip_held + tail > p->stop ? s->strip_held + tail - p->stop
                                                     : 0;
    for (uint32_t i = 0; i < give; i++)
        fm_buf_append(out, c.data, c.len);
    fm_buf_append(out, text.data, text.len);
    s->strip_held = s->strip_held - FM_MIN(give, s->strip_held) + tail;
    s->strip_held = FM_MIN(s->strip_held, p->stop);
}

/* Joins held and b: writes whole code points to out and keeps the unfinished rest in held. */
static void whole_points(fm_tok_stream *s, fm_span b, fm_buf *out)
{
    while (s->held_len > 0 && b.len > 0) {
        s->held[s->held_len++] = *b.data++;
        b.len--;
        size_t left = fm_utf8_cut(s->held, s->held_len);
        if (left == s->held_len)
            continue;
        fm_utf8_lossy(out, s->held, s->held_len - left);
        memmove(s->held, s->held + s->held_len - left, left);
        s->held_len = (uint8_t)left;
    }
    if (b.len == 0)
        return;
    size_t cut = fm_utf8_cut(b.data, b.len);
    fm_utf8_lossy(out, b.data, b.len - cut);
    memcpy(s->held, b.data + b.len - cut, cut);
    s->held_len = (uint8_t)cut;
}

static fm_status pour(fm_tok_stream *s, const fm_tokenizer *t, fm_span b, fm_buf *out)
{
    const fmi_decode_step *p = t->decoder.strip;
    fm_buf text;

    if (!p || (p->stop == 0 && s->strip_left == 0)) {
        whole_points(s, b, out);
        return fm_buf_ok(out);
    }
    fm_buf_init(&text, 0);
    whole_points(s, b, &text);
    fm_status rc = fm_buf_ok(&text);
    if (rc == FM_OK && text.len > 0)
        deliver(s, p, fm_buf_span(&text), out);
    fm_buf_release(&text);
    return rc < 0 ? rc : fm_buf_ok(out);
}

static fm_status put_token(fm_tok_stream *s, const fm_tokenizer *t, int32_t id, bool last,
                           fm_buf *out)
{
    fm_span b = fmi_decoder_bytes(&t->decoder, id, !s->any, last);
    fm_status rc = FM_OK;

    if (t->decoder.ctc && b.len == 0)
        return FM_OK; /* CTC's padding */
    if (t->decoder.join_space && s->any)
        rc = pour(s, t, fm_span_str(" "), out);
    s->any = true;
    return rc == FM_OK && b.len > 0 ? pour(s, t, b, out) : rc;
}

fm_status fm_tok_stream_push(fm_tok_stream *s, const fm_tokenizer *t, int32_t id, fm_buf *out)
{
    int32_t previous = s->previous;

    if (!fm_tokenizer_token_text(t, id).data)
        return fm_fail(FM_EINVAL, "decode: %d is no token id (vocabulary has %zu)", id,
                       fm_tokenizer_vocab_size(t));
    if (s->skip_special && fm_tokenizer_is_special(t, id))
        return FM_OK;
    if (t->decoder.ctc && id == previous)
        return FM_OK;
    s->previous = id;
    if (!t->decoder.by_last)
        return put_token(s, t, id, false, out);
    return previous >= 0 ? put_token(s, t, previous, false, out) : FM_OK;
}

fm_status fm_tok_stream_finish(fm_tok_stream *s, const fm_tokenizer *t, fm_buf *out)
{
    fm_status rc = FM_OK;

    if (t->decoder.by_last && s->previous >= 0)
        rc = put_token(s, t, s->previous, true, out);
    s->previous = -1;
    if (rc == FM_OK && s->held_len > 0)
        deliver(s, t->decoder.strip, fm_span_str("\xef\xbf\xbd"), out);
    s->held_len = 0;
    return rc < 0 ? rc : fm_buf_ok(out);
}

fm_status fm_tokenizer_decode(const fm_tokenizer *t, const int32_t *ids, size_t count,
                              bool skip_special, fm_buf *out)
{
    fm_tok_stream s;

    fm_tok_stream_init(&s, t, skip_special);
    for (size_t i = 0; i < count; i++) {
        FM_TRY(fm_tok_stream_push(&s, t, ids[i], out));
    }
    return fm_tok_stream_finish(&s, t, out);
}
