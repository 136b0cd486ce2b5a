/* normalize.c - normalizers: what happens to a text before it is split. */
#include "infer/tokenizer/internal.h"

#include <string.h>
#include <utf8proc.h>

#include "store/base/cancel.h"

#define PART_BYTES ((size_t)1 << 18)

static fm_status take_text(fmi_norm *n, const fm_json *v, const char *key)
{
    fm_span s = fm_json_str(fm_json_get(v, key));

    if (!s.data)
        return fm_fail(FM_EINVAL, "tokenizer.json: normalizer: field '%s' must be a string", key);
    n->text = fm_strndup((const char *)s.data, s.len);
    n->text_len = s.len;
    return n->text ? FM_OK : FM_ENOMEM;
}

static fm_status parse_one(fmi_norm *n, const fm_json *v, const char *type)
{
    static const struct {
        const char *name;
        fmi_norm_kind kind;
    } simple[] = {{"NFC", FMI_NORM_NFC},
                  {"NFD", FMI_NORM_NFD},
                  {"NFKC", FMI_NORM_NFKC},
                  {"NFKD", FMI_NORM_NFKD},
                  {"Lowercase", FMI_NORM_LOWERCASE},
                  {"Nmt", FMI_NORM_NMT},
                  {"ByteLevel", FMI_NORM_BYTE_LEVEL},
                  {"StripAccents", FMI_NORM_STRIP_MARKS}};
    static const char field[] = "tokenizer.json: normalizer";

    for (size_t i = 0; i < FM_ARRAY_LEN(simple); i++) {
        if (strcmp(type, simple[i].name) != 0)
            continue;
        n->kind = simple[i].kind;
        return FM_OK;
    }
    if (strcmp(type, "Precompiled") == 0) {
        fm_span s = fm_json_str(fm_json_get(v, "precompiled_charsmap"));
        n->kind = FMI_NORM_PRECOMPILED;
        if (!s.data)
            return fm_fail(FM_EINVAL, "%s: field 'precompiled_charsmap' must be a string", field);
        return fmi_charsmap_new_base64(&n->map, s, field);
    }
    if (strcmp(type, "Prepend") == 0) {
        n->kind = FMI_NORM_PREPEND;
        return take_text(n, v, "prepend");
    }
    if (strcmp(type, "Replace") == 0) {
        n->kind = FMI_NORM_REPLACE;
        FM_TRY(fmi_pattern_parse(&n->re, fm_json_get(v, "pattern"), field));
        return take_text(n, v, "content");
    }
    if (strcmp(type, "Strip") == 0) {
        n->kind = FMI_NORM_STRIP;
        FM_TRY(fmi_need_bool(&n->left, v, "strip_left", true, field));
        return fmi_need_bool(&n->right, v, "strip_right", true, field);
    }
    return fm_fail(FM_EUNSUPPORTED, "%s: type '%s' is not implemented", field, type);
}

/* Adds a step; NULL where there are too many. */
static fmi_norm *add_step(fmi_norms *out)
{
    if (out->count < FMI_TOK_STEPS_MAX)
        return &out->step[out->count++];
    (void)fm_fail(FM_ELIMIT, "tokenizer.json: more than %d normalizers", FMI_TOK_STEPS_MAX);
    return NULL;
}

/* BertNormalizer: each of its parts becomes a step. */
static fm_status parse_bert(fmi_norms *out, const fm_json *v)
{
    static const char field[] = "tokenizer.json: normalizer";
    bool clean, chinese, lower, strip;
    fm_status rc;

    if ((rc = fmi_need_bool(&clean, v, "clean_text", true, field)) < 0 ||
        (rc = fmi_need_bool(&chinese, v, "handle_chinese_chars", true, field)) < 0 ||
        (rc = fmi_need_bool(&lower, v, "lowercase", true, field)) < 0 ||
        (rc = fmi_need_bool(&strip, v, "strip_accents", lower, field)) < 0)
        return rc;
    const struct {
        bool on;
        fmi_norm_kind kind;
    } part[] = {{clean, FMI_NORM_BERT_CLEAN},
                {chinese, FMI_NORM_BERT_CHINESE},
                {strip, FMI_NORM_NFD},
                {strip, FMI_NORM_STRIP_NONSPACING},
                {lower, FMI_NORM_LOWERCASE}};
    for (size_t i = 0; i < FM_ARRAY_LEN(part); i++) {
        if (!part[i].on)
            continue;
        fmi_norm *n = add_step(out);
        if (!n)
            return FM_ELIMIT;
        n->kind = part[i].kind;
    }
    return FM_OK;
}

static fm_status parse_any(fmi_norms *out, const fm_json *v, int depth)
{
    const char *type = fm_json_cstr(fm_json_get(v, "type"), NULL);

    if (!type)
        return fm_fail(FM_EINVAL, "tokenizer.json: normalizer: field 'type' must be a string");
    if (strcmp(type, "Sequence") == 0) {
        const fm_json *list = fm_json_get(v, "normalizers");
        if (!fm_json_is(list, FM_JSON_ARRAY) || depth > 4)
            return fm_fail(FM_EINVAL, "tokenizer.json: normalizer: bad Sequence");
        for (size_t i = 0; i < fm_json_count(list); i++) {
            FM_TRY(parse_any(out, fm_json_at(list, i), depth + 1));
        }
        return FM_OK;
    }
    if (strcmp(type, "BertNormalizer") == 0)
        return parse_bert(out, v);
    fmi_norm *step = add_step(out);
    return step ? parse_one(step, v, type) : FM_ELIMIT;
}

fm_status fmi_norms_parse(fmi_norms *out, const fm_json *v)
{
    out->count = 0;
    return fm_json_typeof(v) == FM_JSON_NULL ? FM_OK : parse_any(out, v, 0);
}

void fmi_norms_release(fmi_norms *ns)
{
    for (size_t i = 0; i < ns->count; i++) {
        fm_free(ns->step[i].text);
        fmi_regex_free(ns->step[i].re);
        fmi_charsmap_free(ns->step[i].map);
        fmi_ptree_release(&ns->step[i].symbols);
    }
    ns->count = 0;
}

static bool all_ascii(fm_span s)
{
    for (size_t i = 0; i < s.len; i++)
        if (s.data[i] >= 0x80)
            return false;
    return true;
}

/* utf8proc sorts marks by exchanging neighbours, which takes quadratic time for a long run: runs
 * longer than this are sorted before. */
#define LONG_RUN 64

/* The combining class; 1 for starters that decompose to marks, since they belong to runs too. */
static unsigned mark_class(uint32_t cp)
{
    if (cp < 0x300)
        return 0;
    if (cp == 0xf73 || cp == 0xf75 || cp == 0xf81)
        return 1;
    return (unsigned)utf8proc_get_property((utf8proc_int32_t)cp)->combining_class;
}

static bool has_long_run(fm_span in)
{
    size_t run = 0, n;

    for (size_t i = 0; i < in.len; i += n) {
        uint32_t cp;
        n = fm_utf8_next(in.data + i, &cp);
        run = mark_class(cp) != 0 ? run + 1 : 0;
        if (run > LONG_RUN)
            return true;
    }
    return false;
}

/* Writes a run of marks sorted by class, keeping their order inside of a class (counting sort).
 * Marks that decompose to marks of two classes are decomposed. */
static fm_status put_run(fm_span run, fm_buf *out)
{
    size_t at[257] = {0}, count = 0, n;
    uint32_t *cps = fm_malloc((run.len + 1) * 2 * sizeof *cps);
    uint32_t *sorted = fm_malloc((run.len + 1) * 2 * sizeof *sorted);

    for (size_t i = 0; cps && sorted && i < run.len; i += n) {
        uint32_t cp;
        n = fm_utf8_next(run.data + i, &cp);
        bool two = cp == 0xf73 || cp == 0xf75 || cp == 0xf81;
        if (two)
            cps[count++] = 0xf71;
        cps[count++] = two ? cp - 1 : cp;
    }
    for (size_t i = 0; i < count; i++)
        at[mark_class(cps[i]) + 1]++;
    for (size_t i = 1; i < FM_ARRAY_LEN(at); i++)
        at[i] += at[i - 1];
    for (size_t i = 0; i < count; i++)
        sorted[at[mark_class(cps[i])]++] = cps[i];
    for (size_t i = 0; i < count; i++) {
        uint8_t b[4];
        fm_buf_append(out, b, fm_utf8_put(b, sorted[i]));
    }
    bool ok = cps && sorted;
    fm_free(cps);
    fm_free(sorted);
    return ok ? fm_buf_ok(out) : FM_ENOMEM;
}

static fm_status order_runs(fm_span in, fm_buf *out)
{
    size_t begin = 0, n;
    bool marks = false;

    for (size_t i = 0; i <= in.len; i += n) {
        uint32_t cp = 0;
        n = i < in.len ? fm_utf8_next(in.data + i, &cp) : 1;
        bool mark = i < in.len && mark_class(cp) != 0;
        if (mark == marks && i < in.len)
            continue;
        fm_span part = fm_span_of(in.data + begin, i - begin);
        if (marks)
            FM_TRY(put_run(part, out));
        else
            fm_buf_append(out, part.data, part.len);
        begin = i;
        marks = mark;
    }
    return fm_buf_ok(out);
}

/* A normal form by utf8proc. */
static fm_status form_ordered(unsigned opt, fm_span in, fm_buf *out)
{
    utf8proc_int32_t *cps = NULL;

    if (all_ascii(in)) {
        fm_buf_append(out, in.data, in.len);
        return fm_buf_ok(out);
    }
    utf8proc_ssize_t n =
        utf8proc_decompose(in.data, (utf8proc_ssize_t)in.len, NULL, 0, (utf8proc_option_t)opt);
    if (n >= 0) {
        /* reencode writes UTF-8 (up to 4 bytes each and a NUL) over the code points. */
        cps = fm_malloc(((size_t)n + 2) * sizeof *cps);
        if (!cps)
            return FM_ENOMEM;
        n = utf8proc_decompose(in.data, (utf8proc_ssize_t)in.len, cps, n, (utf8proc_option_t)opt);
    }
    if (n >= 0)
        n = utf8proc_reencode(cps, n, (utf8proc_option_t)opt);
    if (n < 0) {
        fm_free(cps);
        return fm_fail(FM_EINVAL, "tokenizer: normalizer: %s", utf8proc_errmsg(n));
    }
    fm_buf_append(out, cps, (size_t)n);
    fm_free(cps);
    return fm_buf_ok(out);
}

static fm_status form_part(unsigned opt, fm_span in, fm_buf *out)
{
    if (has_long_run(in)) {
        fm_buf ordered;
        fm_buf_init(&ordered, FM_TOK_TEXT_MAX * 4);
        fm_status rc = order_runs(in, &ordered);
        FM_THEN(rc, form_ordered(opt, fm_buf_span(&ordered), out));
        fm_buf_release(&ordered);
        return rc;
    }
    return form_ordered(opt, in, out);
}

/* Whether a long text may be cut before cp: ASCII and these ideographs begin a character, and
 * compose with nothing before them. */
static bool begins_part(uint32_t cp)
{
    return cp < 0x80 || (cp >= 0x4e00 && cp <= 0x9fff);
}

/* Code points that the older Unicode does not know, or Unicode 15, are starters there that neither
 * decompose nor compose: what lies between them is normalised by itself. So are the parts of a long
 * text, between which a request to stop is seen. */
static fm_status unicode_form(fmi_norm_kind kind, fm_span in, fm_buf *out)
{
    unsigned opt = UTF8PROC_STABLE;
    size_t done = 0, n;
    fm_status rc = FM_OK;

    opt |= kind == FMI_NORM_NFC || kind == FMI_NORM_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (kind == FMI_NORM_NFKC || kind == FMI_NORM_NFKD)
        opt |= UTF8PROC_COMPAT;
    for (size_t i = 0; i < in.len && rc == FM_OK; i += n) {
        uint32_t cp;
        n = fm_utf8_next(in.data + i, &cp);
        if (i - done >= PART_BYTES && begins_part(cp)) {
            rc = fm_go_on();
            FM_THEN(rc, form_part(opt, fm_span_of(in.data + done, i - done), out));
            done = i;
        }
        if (rc < 0 || !fmi_is_inert(cp))
            continue;
        rc = form_part(opt, fm_span_of(in.data + done, i - done), out);
        fm_buf_append(out, in.data + i, n);
        done = i + n;
    }
    return rc < 0 ? rc : form_part(opt, fm_span_of(in.data + done, in.len - done), out);
}

/* CJK ideographs as BERT's first code counted them. */
static bool is_chinese(uint32_t cp)
{
    return (cp >= 0x3400 && cp <= 0x4dbf) || (cp >= 0x4e00 && cp <= 0x9fff) ||
           (cp >= 0xf900 && cp <= 0xfaff) || (cp >= 0x20000 && cp <= 0x2a6df) ||
           (cp >= 0x2a700 && cp <= 0x2b81f) || (cp >= 0x2b920 && cp <= 0x2ceaf) ||
           (cp >= 0x2f800 && cp <= 0x2fa1f);
}

/* Code points that the Nmt rules of SentencePiece drop, and those that become a space. */
static bool nmt_drops(uint32_t cp)
{
    return (cp >= 1 && cp <= 8) || cp == 0xb || (cp >= 0xe && cp <= 0x1f) || cp == 0x7f ||
           cp == 0x8f || cp == 0x9f;
}

static bool nmt_space(uint32_t cp)
{
    return cp == 9 || cp == 0xa || cp == 0xc || cp == 0xd || cp == 0x1680 ||
           (cp >= 0x200b && cp <= 0x200f) || cp == 0x2028 || cp == 0x2029 || cp == 0x2581 ||
           cp == 0xfeff || cp == 0xfffd;
}

typedef enum verdict { KEEP, DROP, SPACE, SURROUND } verdict;

static verdict judge(fmi_norm_kind kind, uint32_t cp)
{
    bool control = cp == 0 || cp == 0xfffd;

    switch ((int)kind) {
    case FMI_NORM_BERT_CLEAN:
        if (cp == '\t' || cp == '\n' || cp == '\r')
            return SPACE;
        return control || fmi_is_other(cp) ? DROP : fmi_is_space(cp) ? SPACE : KEEP;
    case FMI_NORM_BERT_CHINESE:
        return is_chinese(cp) ? SURROUND : KEEP;
    case FMI_NORM_NMT:
        return nmt_drops(cp) ? DROP : nmt_space(cp) ? SPACE : KEEP;
    case FMI_NORM_STRIP_MARKS:
        return fmi_is_mark(cp) ? DROP : KEEP;
    default:
        return fmi_is_nonspacing(cp) ? DROP : KEEP;
    }
}

/* Normalizers that decide code point by code point. */
static fm_status filter(fmi_norm_kind kind, fmi_tok_scratch *s, fm_span in, fm_buf *out)
{
    size_t n, next = 0;

    for (size_t i = 0; i < in.len; i += n) {
        uint32_t cp;
        FM_TRY(fm_go_on_at(i, &next));
        n = fm_utf8_next(in.data + i, &cp);
        verdict v = judge(kind, cp);
        s->head_lost = s->head_lost || (i == 0 && v == DROP);
        if (v == SPACE || v == SURROUND)
            fm_buf_char(out, ' ');
        if (v == KEEP || v == SURROUND)
            fm_buf_append(out, in.data + i, n);
        if (v == SURROUND)
            fm_buf_char(out, ' ');
    }
    return fm_buf_ok(out);
}

static fm_status byte_level(fm_span in, fm_buf *out)
{
    for (size_t i = 0, next = 0; i < in.len; i++) {
        uint8_t b[4];
        FM_TRY(fm_go_on_at(i, &next));
        fm_buf_append(out, b, fm_utf8_put(b, fmi_byte_to_char(in.data[i])));
    }
    return fm_buf_ok(out);
}

static fm_status lowercase(fm_span in, fm_buf *out)
{
    for (size_t i = 0, next = 0; i < in.len;) {
        uint32_t cp;
        uint8_t b[4];
        FM_TRY(fm_go_on_at(i, &next));
        i += fm_utf8_next(in.data + i, &cp);
        if (cp == 0x130) { /* the only letter whose lower case is two code points */
            fm_buf_append(out, "i\xcc\x87", 3);
            continue;
        }
        fm_buf_append(out, b, fm_utf8_put(b, fmi_lower(cp)));
    }
    return fm_buf_ok(out);
}

static fm_status replace(const fmi_norm *n, fmi_tok_scratch *s, fm_span in, fm_buf *out)
{
    size_t done = 0, from = 0;

    while (from <= in.len) {
        bool found;
        size_t b, e;
        FM_TRY(fmi_regex_next(n->re, s->run, in, from, &found, &b, &e));
        if (!found)
            break;
        if (b == e) /* empty matches are not implemented */
            return fm_fail(FM_EUNSUPPORTED,
                           "tokenizer.json: normalizer: Replace pattern matches an empty text");
        s->head_lost = s->head_lost || (b == 0 && n->text_len == 0);
        fm_buf_append(out, in.data + done, b - done);
        fm_buf_append(out, n->text, n->text_len);
        done = from = e;
    }
    fm_buf_append(out, in.data + done, in.len - done);
    return fm_buf_ok(out);
}

static fm_status strip(const fmi_norm *n, fmi_tok_scratch *s, fm_span in, fm_buf *out)
{
    size_t b = 0, e = in.len;
    uint32_t cp;

    while (n->left && b < e) {
        size_t len = fm_utf8_next(in.data + b, &cp);
        if (!fmi_is_space(cp))
            break;
        b += len;
    }
    while (n->right && e > b) {
        size_t p = e - 1;
        while (p > b && (in.data[p] & 0xc0) == 0x80)
            p--;
        fm_utf8_next(in.data + p, &cp);
        if (!fmi_is_space(cp))
            break;
        e = p;
    }
    s->head_lost = s->head_lost || b > 0;
    fm_buf_append(out, in.data + b, e - b);
    return fm_buf_ok(out);
}

static fm_status run_one(const fmi_norm *n, fmi_tok_scratch *s, fm_span in, fm_buf *out)
{
    switch (n->kind) {
    case FMI_NORM_NFC:
    case FMI_NORM_NFD:
    case FMI_NORM_NFKC:
    case FMI_NORM_NFKD:
        return unicode_form(n->kind, in, out);
    case FMI_NORM_LOWERCASE:
        return lowercase(in, out);
    case FMI_NORM_PREPEND:
        if (in.len > 0)
            fm_buf_append(out, n->text, n->text_len);
        fm_buf_append(out, in.data, in.len);
        return fm_buf_ok(out);
    case FMI_NORM_REPLACE:
        return replace(n, s, in, out);
    case FMI_NORM_STRIP:
        return strip(n, s, in, out);
    case FMI_NORM_BYTE_LEVEL:
        return byte_level(in, out);
    case FMI_NORM_PRECOMPILED:
        return fmi_charsmap_normalize(n->map, in, out);
    case FMI_NORM_SPM:
        return fmi_spm_normalize(n, s->first_segment, in, out);
    case FMI_NORM_NMT:
    case FMI_NORM_STRIP_MARKS:
    case FMI_NORM_STRIP_NONSPACING:
    case FMI_NORM_BERT_CLEAN:
    case FMI_NORM_BERT_CHINESE:
        return filter(n->kind, s, in, out);
    }
    return fm_fail(FM_EUNSUPPORTED, "tokenizer: unknown normalizer");
}

static fm_status too_long(fmi_norm_kind kind, size_t step, size_t steps)
{
    static const char *const name[] = {
        [FMI_NORM_NFC] = "NFC",
        [FMI_NORM_NFD] = "NFD",
        [FMI_NORM_NFKC] = "NFKC",
        [FMI_NORM_NFKD] = "NFKD",
        [FMI_NORM_LOWERCASE] = "Lowercase",
        [FMI_NORM_PREPEND] = "Prepend",
        [FMI_NORM_REPLACE] = "Replace",
        [FMI_NORM_BYTE_LEVEL] = "ByteLevel",
        [FMI_NORM_BERT_CHINESE] = "BertNormalizer",
        [FMI_NORM_PRECOMPILED] = "Precompiled",
        [FMI_NORM_SPM] = "SentencePiece's",
    };
    const char *which = (size_t)kind < FM_ARRAY_LEN(name) ? name[kind] : NULL;

    return fm_fail(FM_ELIMIT,
                   "tokenizer: normalizer %s (step %zu of %zu) makes the text longer by more than "
                   "%d times its length and 1 MiB",
                   which ? which : "?", step, steps, FMI_TOK_GROW_TIMES);
}

fm_status fmi_norms_run(const fmi_norms *ns, fmi_tok_scratch *s, fm_span in, fm_span *out)
{
    *out = in;
    s->head_lost = false;
    for (size_t i = 0; i < ns->count; i++) {
        fm_buf *b = &s->norm[i & 1];
        fm_buf_clear(b);
        b->max = fmi_room(out->len, s->grow_left);
        fm_status rc = fm_go_on();
        FM_THEN(rc, run_one(&ns->step[i], s, *out, b));
        if (b->failed == FM_ELIMIT)
            return too_long(ns->step[i].kind, i + 1, ns->count);
        if (rc < 0)
            return rc;
        fmi_grew(&s->grow_left, out->len, b->len);
        *out = fm_span_of(fm_buf_cstr(b), b->len); /* data is never NULL: steps may add to it */
    }
    return FM_OK;
}
