/* pre_tokenize.c - pre-tokenizers: cut a normalised segment into the words that the model sees.
 *
 * Each step maps every piece to pieces. ByteLevel and Metaspace write new text; the others only
 * choose new borders, so no byte is copied for them. */
#include "infer/tokenizer/internal.h"

#include <string.h>

#include "store/base/cancel.h"

static const char field[] = "tokenizer.json: pre_tokenizer";

/* GPT-2's word pattern. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| "
                                   "?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

uint32_t fmi_byte_to_char(uint8_t b)
{
    uint32_t skipped = 0;

    if ((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae)
        return b;
    /* The other 68 bytes become, in order, the characters from U+0100 on. */
    if (b <= 0x20)
        skipped = b;
    else if (b <= 0xa0)
        skipped = 33u + (b - 0x7fu);
    else
        skipped = 67;
    return 0x100 + skipped;
}

int fmi_char_to_byte(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7e) || (cp >= 0xa1 && cp <= 0xac) || (cp >= 0xae && cp <= 0xff))
        return (int)cp;
    if (cp < 0x100 || cp > 0x143)
        return -1;
    cp -= 0x100;
    if (cp <= 0x20)
        return (int)cp;
    return cp < 67 ? (int)(cp - 33 + 0x7f) : 0xad;
}

fm_status fmi_pieces_add(fmi_pieces *ps, size_t off, size_t len)
{
    if (len == 0)
        return FM_OK;
    if (ps->count % 4096 == 0)
        FM_TRY(fm_go_on());
    if (ps->count == ps->cap) {
        FM_TRY(fm_grow(&ps->p, &ps->cap, ps->count + 1, sizeof *ps->p));
    }
    ps->p[ps->count].off = off;
    ps->p[ps->count++].len = len;
    return FM_OK;
}

/* ---- reading ---- */

static fm_status parse_behavior(fmi_behavior *out, const fm_json *v)
{
    static const struct {
        const char *name;
        fmi_behavior b;
    } all[] = {{"Removed", FMI_REMOVED},
               {"Isolated", FMI_ISOLATED},
               {"MergedWithPrevious", FMI_MERGED_PREVIOUS},
               {"MergedWithNext", FMI_MERGED_NEXT},
               {"Contiguous", FMI_CONTIGUOUS}};
    const char *name = fm_json_cstr(fm_json_get(v, "behavior"), "");

    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++) {
        if (strcmp(all[i].name, name) != 0)
            continue;
        *out = all[i].b;
        return FM_OK;
    }
    return fm_fail(FM_EUNSUPPORTED, "%s: behavior '%s' is not implemented", field, name);
}

static fm_status parse_byte_level(fmi_pre *p, const fm_json *v)
{
    bool use_regex = true;
    fm_status rc = fmi_need_bool(&use_regex, v, "use_regex", true, field);

    p->kind = FMI_PRE_BYTE_LEVEL;
    FM_THEN(rc, fmi_need_bool(&p->prefix_space, v, "add_prefix_space", true, field));
    if (rc == FM_OK && use_regex)
        rc = fmi_regex_new(&p->re, fm_span_str(gpt2_pattern), false, field);
    return rc;
}

static fm_status parse_metaspace(fmi_pre *p, const fm_json *v)
{
    fm_span c = fm_json_str(fm_json_get(v, "replacement"));
    const char *scheme = fm_json_cstr(fm_json_get(v, "prepend_scheme"), NULL);
    bool legacy = true;
    fm_status rc = fmi_need_bool(&p->split, v, "split", true, field);

    p->kind = FMI_PRE_METASPACE;
    FM_THEN(rc, fmi_need_bool(&legacy, v, "add_prefix_space", true, field));
    if (rc < 0)
        return rc;
    if (!c.data)
        c = fm_span_str("\xe2\x96\x81");
    if (c.len == 0 || c.len > sizeof p->space)
        return fm_fail(FM_EINVAL, "%s: field 'replacement' must be one character", field);
    memcpy(p->space, c.data, c.len);
    p->space_len = c.len;
    if (!scheme)
        p->prepend = legacy ? FMI_PREPEND_ALWAYS : FMI_PREPEND_NEVER;
    else if (strcmp(scheme, "always") == 0)
        p->prepend = FMI_PREPEND_ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        p->prepend = FMI_PREPEND_FIRST;
    else if (strcmp(scheme, "never") == 0)
        p->prepend = FMI_PREPEND_NEVER;
    else
        return fm_fail(FM_EUNSUPPORTED, "%s: prepend_scheme '%s' is not implemented", field,
                       scheme);
    return fmi_regex_new(&p->re, fm_span_of(p->space, p->space_len), true, field);
}

static fm_status parse_fixed_length(fmi_pre *p, const fm_json *v)
{
    int64_t n = fm_json_int(fm_json_get(v, "length"), 5);

    p->kind = FMI_PRE_FIXED_LENGTH;
    if (n <= 0)
        return fm_fail(FM_EINVAL, "%s: FixedLength: field 'length' must be positive", field);
    p->length = (size_t)n;
    return FM_OK;
}

/* CharDelimiterSplit: the delimiter is one character, which is removed. */
static fm_status parse_delimiter(fmi_pre *p, const fm_json *v)
{
    fm_span c = fm_json_str(fm_json_get(v, "delimiter"));
    uint32_t cp;

    p->kind = FMI_PRE_SPLIT;
    p->behavior = FMI_REMOVED;
    if (!c.data || c.len == 0 || fm_utf8_next(c.data, &cp) != c.len)
        return fm_fail(FM_EINVAL, "%s: field 'delimiter' must be one character", field);
    return fmi_regex_new(&p->re, c, true, field);
}

static fm_status parse_one(fmi_pre *p, const fm_json *v, const char *type)
{
    static const struct {
        const char *name;
        fmi_pre_kind kind;
    } simple[] = {{"Whitespace", FMI_PRE_WHITESPACE},
                  {"WhitespaceSplit", FMI_PRE_WHITESPACE_SPLIT},
                  {"BertPreTokenizer", FMI_PRE_BERT},
                  {"UnicodeScripts", FMI_PRE_SCRIPTS}};

    for (size_t i = 0; i < FM_ARRAY_LEN(simple); i++) {
        if (strcmp(type, simple[i].name) != 0)
            continue;
        p->kind = simple[i].kind;
        return FM_OK;
    }
    if (strcmp(type, "ByteLevel") == 0)
        return parse_byte_level(p, v);
    if (strcmp(type, "Metaspace") == 0)
        return parse_metaspace(p, v);
    if (strcmp(type, "FixedLength") == 0)
        return parse_fixed_length(p, v);
    if (strcmp(type, "CharDelimiterSplit") == 0)
        return parse_delimiter(p, v);
    if (strcmp(type, "Punctuation") == 0) {
        p->kind = FMI_PRE_PUNCTUATION;
        p->behavior = FMI_ISOLATED;
        return fm_json_get(v, "behavior") ? parse_behavior(&p->behavior, v) : FM_OK;
    }
    if (strcmp(type, "Digits") == 0) {
        p->kind = FMI_PRE_DIGITS;
        return fmi_need_bool(&p->individual, v, "individual_digits", false, field);
    }
    if (strcmp(type, "Split") != 0)
        return fm_fail(FM_EUNSUPPORTED, "%s: type '%s' is not implemented", field, type);
    p->kind = FMI_PRE_SPLIT;
    FM_TRY(parse_behavior(&p->behavior, v));
    FM_TRY(fmi_need_bool(&p->invert, v, "invert", false, field));
    return fmi_pattern_parse(&p->re, fm_json_get(v, "pattern"), field);
}

static fm_status parse_any(fmi_pres *out, const fm_json *v, int depth)
{
    const char *type = fm_json_cstr(fm_json_get(v, "type"), NULL);

    if (!type)
        return fm_fail(FM_EINVAL, "%s: field 'type' must be a string", field);
    if (strcmp(type, "Sequence") == 0) {
        const fm_json *list = fm_json_get(v, "pretokenizers");
        if (!fm_json_is(list, FM_JSON_ARRAY) || depth > 4)
            return fm_fail(FM_EINVAL, "%s: bad Sequence", field);
        for (size_t i = 0; i < fm_json_count(list); i++) {
            FM_TRY(parse_any(out, fm_json_at(list, i), depth + 1));
        }
        return FM_OK;
    }
    if (out->count == FMI_TOK_STEPS_MAX)
        return fm_fail(FM_ELIMIT, "%s: more than %d steps", field, FMI_TOK_STEPS_MAX);
    return parse_one(&out->step[out->count++], v, type);
}

fm_status fmi_pres_parse(fmi_pres *out, const fm_json *v)
{
    out->count = 0;
    return fm_json_typeof(v) == FM_JSON_NULL ? FM_OK : parse_any(out, v, 0);
}

void fmi_pres_release(fmi_pres *ps)
{
    for (size_t i = 0; i < ps->count; i++)
        fmi_regex_free(ps->step[i].re);
    ps->count = 0;
}

/* ---- running ---- */

/* Gathers alternating parts of one piece and applies a behaviour to them. */
typedef struct joiner {
    fmi_pieces *out;
    fmi_behavior behavior;
    size_t off, len; /* the piece not yet given out */
    bool open, last_match;
} joiner;

static fm_status flush(joiner *j)
{
    bool was = j->open;

    j->open = false;
    return was ? fmi_pieces_add(j->out, j->off, j->len) : FM_OK;
}

/* Whether a part belongs to the open piece before it. */
static bool joins(const joiner *j, bool is_match)
{
    switch (j->behavior) {
    case FMI_MERGED_PREVIOUS:
        return is_match && !j->last_match;
    case FMI_MERGED_NEXT:
        return !is_match && j->last_match;
    case FMI_CONTIGUOUS:
        return is_match == j->last_match;
    case FMI_REMOVED:
    case FMI_ISOLATED:
        break;
    }
    return false;
}

static fm_status part(joiner *j, size_t off, size_t len, bool is_match)
{
    if (j->behavior == FMI_REMOVED && is_match)
        return FM_OK;
    if (j->behavior == FMI_ISOLATED || j->behavior == FMI_REMOVED)
        return fmi_pieces_add(j->out, off, len);
    if (j->open && joins(j, is_match)) {
        j->len += len;
        j->last_match = is_match;
        return FM_OK;
    }
    fm_status rc = flush(j);
    j->off = off;
    j->len = len;
    j->open = true;
    j->last_match = is_match;
    return rc;
}

static fm_status split_piece(const fmi_pre *p, fmi_tok_scratch *s, fmi_piece in, fmi_pieces *out)
{
    fm_span text = fm_span_of(s->a.text.data + in.off, in.len);
    joiner j = {out, p->behavior, 0, 0, false, false};
    size_t done = 0, from = 0;
    fm_status rc = FM_OK;

    while (rc == FM_OK && from <= in.len) {
        bool found;
        size_t b = 0, e = 0;
        rc = fmi_regex_next(p->re, s->run, text, from, &found, &b, &e);
        if (rc < 0 || !found)
            break;
        if (b == e) { /* an empty match is no part: search on behind the next character */
            uint32_t cp;
            from = e < in.len ? e + fm_utf8_next(text.data + e, &cp) : in.len + 1;
            continue;
        }
        if (b > done)
            rc = part(&j, in.off + done, b - done, p->invert);
        FM_THEN(rc, part(&j, in.off + b, e - b, !p->invert));
        done = from = e;
    }
    if (rc == FM_OK && done < in.len)
        rc = part(&j, in.off + done, in.len - done, p->invert);
    return rc < 0 ? rc : flush(&j);
}

typedef enum char_class { CLASS_NONE, CLASS_A, CLASS_B } char_class;

static char_class classify(const fmi_pre *p, uint32_t cp)
{
    if (p->kind == FMI_PRE_DIGITS)
        return fmi_is_numeric(cp) ? CLASS_B : CLASS_A;
    if (fmi_is_space(cp))
        return CLASS_NONE;
    if (p->kind == FMI_PRE_WHITESPACE)
        return fmi_is_word(cp) ? CLASS_A : CLASS_B;
    return p->kind == FMI_PRE_BERT && fmi_is_punctuation(cp) ? CLASS_B : CLASS_A;
}

/* Makes pieces of runs of one class; drops CLASS_NONE. */
static fm_status class_piece(const fmi_pre *p, fmi_tok_scratch *s, fmi_piece in, fmi_pieces *out)
{
    const uint8_t *text = s->a.text.data + in.off;
    size_t begin = 0;
    char_class open = CLASS_NONE;
    bool alone = p->individual || p->kind == FMI_PRE_BERT;

    for (size_t i = 0; i < in.len;) {
        uint32_t cp;
        size_t n = fm_utf8_next(text + i, &cp);
        char_class c = classify(p, cp);
        if (c != open || (c == CLASS_B && alone)) {
            if (open != CLASS_NONE)
                FM_TRY(fmi_pieces_add(out, in.off + begin, i - begin));
            begin = i;
            open = c;
        }
        i += n;
    }
    if (open != CLASS_NONE)
        FM_TRY(fmi_pieces_add(out, in.off + begin, in.len - begin));
    return FM_OK;
}

/* Every punctuation character is a match of its own. */
static fm_status punctuation_piece(const fmi_pre *p, fmi_tok_scratch *s, fmi_piece in,
                                   fmi_pieces *out)
{
    const uint8_t *text = s->a.text.data + in.off;
    joiner j = {out, p->behavior, 0, 0, false, false};
    size_t done = 0, n;

    for (size_t i = 0; i < in.len; i += n) {
        uint32_t cp;
        n = fm_utf8_next(text + i, &cp);
        if (!fmi_is_punctuation(cp))
            continue;
        if (i > done)
            FM_TRY(part(&j, in.off + done, i - done, false));
        FM_TRY(part(&j, in.off + i, n, true));
        done = i + n;
    }
    if (done < in.len)
        FM_TRY(part(&j, in.off + done, in.len - done, false));
    return flush(&j);
}

/* Begins a piece where the script changes; drops leading code points that fit any script. */
static fm_status script_piece(fmi_tok_scratch *s, fmi_piece in, fmi_pieces *out)
{
    const uint8_t *text = s->a.text.data + in.off;
    size_t begin = in.len, n;
    int last = -1;

    for (size_t i = 0; i < in.len; i += n) {
        uint32_t cp;
        n = fm_utf8_next(text + i, &cp);
        int script = fmi_script(cp);
        if (script < 0 || script == last)
            continue;
        if (last >= 0)
            FM_TRY(fmi_pieces_add(out, in.off + begin, i - begin));
        begin = i;
        last = script;
    }
    return fmi_pieces_add(out, in.off + begin, in.len - begin);
}

static fm_status fixed_piece(const fmi_pre *p, fmi_tok_scratch *s, fmi_piece in, fmi_pieces *out)
{
    const uint8_t *text = s->a.text.data + in.off;
    size_t begin = 0, chars = 0;

    for (size_t i = 0; i < in.len; i++) {
        if ((text[i] & 0xc0) == 0x80 || chars++ < p->length)
            continue;
        FM_TRY(fmi_pieces_add(out, in.off + begin, i - begin));
        begin = i;
        chars = 1;
    }
    return fmi_pieces_add(out, in.off + begin, in.len - begin);
}

/* Appends s with every byte written as its printable character. */
static void put_bytes(fm_buf *out, const uint8_t *s, size_t len)
{
    uint8_t *dst = fm_buf_extend(out, 2 * len);
    size_t n = 0;

    if (!dst)
        return;
    for (size_t i = 0; i < len; i++) {
        uint32_t c = fmi_byte_to_char(s[i]);
        if (c < 0x80) {
            dst[n++] = (uint8_t)c;
            continue;
        }
        dst[n++] = (uint8_t)(0xc0 | c >> 6);
        dst[n++] = (uint8_t)(0x80 | (c & 0x3f));
    }
    out->len -= 2 * len - n;
    out->data[out->len] = 0;
}

static fm_status grown(const fm_buf *b)
{
    return b->failed == FM_ELIMIT
               ? fm_fail(FM_ELIMIT,
                         "tokenizer: the pre-tokenizers make the text longer by more than %d times "
                         "its length and 1 MiB",
                         FMI_TOK_GROW_TIMES)
               : fm_buf_ok(b);
}

/* Rewrites the text of s->a into s->b. */
static fm_status byte_level(const fmi_pre *p, fmi_tok_scratch *s)
{
    fm_status rc = FM_OK;
    fmi_pieces cut = {.p = NULL};
    fm_buf prefixed;
    fmi_pre split = *p;

    split.behavior = FMI_ISOLATED;
    fm_buf_init(&prefixed, fmi_room(s->a.text.len, s->grow_left));
    if (p->prefix_space) {
        for (size_t i = 0; i < s->a.count; i++) {
            fmi_piece *q = &s->a.p[i];
            size_t off = prefixed.len;
            if (s->a.text.data[q->off] != ' ')
                fm_buf_char(&prefixed, ' ');
            fm_buf_append(&prefixed, s->a.text.data + q->off, q->len);
            q->off = off;
            q->len = prefixed.len - off;
        }
        rc = grown(&prefixed);
        fm_buf old = s->a.text;
        s->a.text = prefixed;
        prefixed = old;
    }
    for (size_t i = 0; i < s->a.count && rc == FM_OK; i++)
        rc = p->re ? split_piece(&split, s, s->a.p[i], &cut)
                   : fmi_pieces_add(&cut, s->a.p[i].off, s->a.p[i].len);
    for (size_t i = 0; i < cut.count && rc == FM_OK; i++) {
        size_t off = s->b.text.len;
        put_bytes(&s->b.text, s->a.text.data + cut.p[i].off, cut.p[i].len);
        rc = fmi_pieces_add(&s->b, off, s->b.text.len - off);
    }
    fm_buf_release(&prefixed);
    fm_free(cut.p);
    return rc < 0 ? rc : grown(&s->b.text);
}

static void put_metaspace(const fmi_pre *p, fm_buf *out, fm_span text, bool prepend)
{
    if (prepend && text.data[0] != ' ' &&
        !(text.len >= p->space_len && memcmp(text.data, p->space, p->space_len) == 0))
        fm_buf_append(out, p->space, p->space_len);
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] == ' ')
            fm_buf_append(out, p->space, p->space_len);
        else
            fm_buf_u8(out, text.data[i]);
    }
}

/* Replaces spaces by the replacement character, with which words begin. */
static fm_status metaspace(const fmi_pre *p, fmi_tok_scratch *s, bool first)
{
    fmi_pieces tmp = {.p = NULL};
    fmi_pre split = *p;
    fm_status rc = FM_OK;

    split.behavior = FMI_MERGED_NEXT;
    fm_buf_init(&tmp.text, fmi_room(s->a.text.len, s->grow_left));
    for (size_t i = 0; i < s->a.count && rc == FM_OK; i++) {
        fm_span text = fm_span_of(s->a.text.data + s->a.p[i].off, s->a.p[i].len);
        bool prepend = p->prepend == FMI_PREPEND_ALWAYS ||
                       (p->prepend == FMI_PREPEND_FIRST && first && s->a.p[i].off == 0);
        size_t off = tmp.text.len;
        put_metaspace(p, &tmp.text, text, prepend);
        rc = grown(&tmp.text);
        FM_THEN(rc, fmi_pieces_add(&tmp, off, tmp.text.len - off));
    }
    fm_buf old = s->a.text;
    s->a.text = tmp.text;
    for (size_t i = 0; i < tmp.count && rc == FM_OK; i++)
        rc = p->split ? split_piece(&split, s, tmp.p[i], &s->b)
                      : fmi_pieces_add(&s->b, tmp.p[i].off, tmp.p[i].len);
    tmp.text = old;
    fm_buf_release(&tmp.text);
    fm_free(tmp.p);
    if (rc < 0)
        return rc;
    fm_buf swap = s->a.text; /* the pieces in b are spans of this text */
    s->a.text = s->b.text;
    s->b.text = swap;
    return FM_OK;
}

static fm_status cut_piece(const fmi_pre *p, fmi_tok_scratch *s, fmi_piece in)
{
    switch ((int)p->kind) {
    case FMI_PRE_SPLIT:
        return split_piece(p, s, in, &s->b);
    case FMI_PRE_PUNCTUATION:
        return punctuation_piece(p, s, in, &s->b);
    case FMI_PRE_SCRIPTS:
        return script_piece(s, in, &s->b);
    case FMI_PRE_FIXED_LENGTH:
        return fixed_piece(p, s, in, &s->b);
    default:
        return class_piece(p, s, in, &s->b);
    }
}

static fm_status border_step(const fmi_pre *p, fmi_tok_scratch *s)
{
    for (size_t i = 0; i < s->a.count; i++) {
        FM_TRY(cut_piece(p, s, s->a.p[i]));
    }
    fm_buf swap = s->a.text; /* only borders change: the text stays */
    s->a.text = s->b.text;
    s->b.text = swap;
    return FM_OK;
}

fm_status fmi_pres_run(const fmi_pres *ps, fmi_tok_scratch *s, bool first)
{
    for (size_t i = 0; i < ps->count; i++) {
        const fmi_pre *p = &ps->step[i];
        size_t len = s->a.text.len;
        FM_TRY(fm_go_on());
        s->b.count = 0;
        fm_buf_clear(&s->b.text);
        s->b.text.max = fmi_room(len, s->grow_left);
        if (p->kind == FMI_PRE_BYTE_LEVEL)
            FM_TRY(byte_level(p, s));
        else if (p->kind == FMI_PRE_METASPACE)
            FM_TRY(metaspace(p, s, first));
        else
            FM_TRY(border_step(p, s));
        fmi_grew(&s->grow_left, len, s->b.text.len);
        fmi_pieces swap = s->a;
        s->a = s->b;
        s->b = swap;
    }
    return FM_OK;
}
