/* regex.c - the regular expressions of tokenizer.json on PCRE2.
 *
 * The files are written for Oniguruma. Most of its syntax means the same in PCRE2; the rest is
 * rewritten here (\s \d \w \p{..} \v \u: newer Unicode, other sets) or refused by name (anchors,
 * \b, nested classes, back references), since a pattern that matches slightly differently gives
 * wrong ids without any sign. */
#include "infer/tokenizer/internal.h"

#include <string.h>

struct fmi_regex {
    fm_regex *code; /* NULL: literal */
    uint8_t *literal;
    size_t literal_len;
};

/* ---- rewriting ---- */

/* White_Space and its complement as class contents. */
#define SPACE_SET                                                                                  \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"        \
    "\\x{205f}\\x{3000}"
#define NOT_SPACE_SET                                                                              \
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"       \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"                 \
    "\\x{3001}-\\x{10ffff}"

typedef struct rewrite {
    fm_buf *out;
    const uint8_t *s;
    size_t len, pos;
    const char *field;
} rewrite;

static fm_status refuse(const rewrite *r, const char *what)
{
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: regular expression uses %s at byte %zu, which is not implemented", r->field,
                   what, r->pos);
}

static void put_extra(fm_buf *out, const char *category)
{
    uint32_t lo = 0, hi = 0;
    bool open = false;

    for (size_t i = 0; i < fmi_unicode_extra_count; i++) {
        const fmi_unicode_range *e = &fmi_unicode_extra[i];
        if (strncmp(e->category, category, strlen(category)) != 0)
            continue;
        if (open && e->lo == hi + 1) {
            hi = e->hi;
            continue;
        }
        if (open)
            fm_buf_printf(out, "\\x{%x}-\\x{%x}", lo, hi);
        lo = e->lo;
        hi = e->hi;
        open = true;
    }
    if (open)
        fm_buf_printf(out, "\\x{%x}-\\x{%x}", lo, hi);
}

static void put_category(fm_buf *out, const char *name)
{
    fm_buf_printf(out, "\\p{%s}", name);
    put_extra(out, name);
}

/* Writes the contents of \w as Oniguruma has it: letters, marks, Nd, Nl, Pc, circled and squared
 * letters, and the Latin-1 numbers. */
static void put_word(fm_buf *out)
{
    static const char *const part[] = {"L", "M", "Nd", "Nl", "Pc"};

    for (size_t i = 0; i < FM_ARRAY_LEN(part); i++)
        put_category(out, part[i]);
    fm_buf_str(out, "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"
                    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}");
}

static bool known_category(const char *name)
{
    static const char *const known[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Me", "N",  "Nd",
                                        "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                        "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};

    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (strcmp(known[i], name) == 0)
            return true;
    return false;
}

/* Rewrites \p{Name}, \P{Name}, \p{^Name}; pos is at the 'p'. */
static fm_status rewrite_property(rewrite *r, bool in_class)
{
    bool negated = r->s[r->pos] == 'P';
    char name[16];
    size_t n = 0, i = r->pos + 1;

    if (i >= r->len || r->s[i] != '{')
        return refuse(r, "\\p without braces");
    i++;
    if (i < r->len && r->s[i] == '^') {
        negated = !negated;
        i++;
    }
    while (i < r->len && r->s[i] != '}' && n < sizeof name - 1)
        name[n++] = (char)r->s[i++];
    name[n] = 0;
    if (i >= r->len || r->s[i] != '}')
        return refuse(r, "an unknown \\p{} class");
    if (negated && in_class)
        return refuse(r, "a negated \\p{} inside a class");
    if (!in_class)
        fm_buf_str(r->out, negated ? "[^" : "[");
    if (strcmp(name, "Han") == 0)
        fm_buf_str(r->out, "\\p{sc:Han}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}");
    else if (known_category(name))
        put_category(r->out, name);
    else
        return fm_fail(FM_EUNSUPPORTED, "%s: regular expression class \\p{%s} is not implemented",
                       r->field, name);
    if (!in_class)
        fm_buf_char(r->out, ']');
    r->pos = i + 1;
    return FM_OK;
}

static fm_status rewrite_set(rewrite *r, char c, bool in_class)
{
    bool negated = c == 'S' || c == 'D' || c == 'W';

    if (in_class && c == 'S') {
        fm_buf_str(r->out, NOT_SPACE_SET);
        r->pos++;
        return FM_OK;
    }
    if (in_class && negated)
        return refuse(r, "\\D or \\W inside a class");
    if (!in_class)
        fm_buf_str(r->out, negated ? "[^" : "[");
    if (c == 's' || c == 'S')
        fm_buf_str(r->out, SPACE_SET);
    else if (c == 'd' || c == 'D')
        put_category(r->out, "Nd");
    else
        put_word(r->out);
    if (!in_class)
        fm_buf_char(r->out, ']');
    r->pos++;
    return FM_OK;
}

static bool is_hex(uint8_t c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Rewrites \xHH below 0x80, \x{H..}, \uHHHH. */
static fm_status rewrite_code(rewrite *r)
{
    size_t i = r->pos + 1, begin = i, max = r->s[r->pos] == 'u' ? 4 : 2;
    bool braces = max == 2 && i < r->len && r->s[i] == '{';

    if (braces) {
        begin = ++i;
        max = 6;
    }
    while (i < r->len && i - begin < max && is_hex(r->s[i]))
        i++;
    if (i == begin || (!braces && i - begin != max) || (!braces && max == 2 && r->s[begin] >= '8'))
        return refuse(r, "an unclear code escape");
    fm_buf_str(r->out, "\\x{");
    fm_buf_append(r->out, r->s + begin, i - begin);
    fm_buf_char(r->out, '}');
    if (braces && (i >= r->len || r->s[i] != '}'))
        return refuse(r, "an unclosed \\x{");
    r->pos = i + (braces ? 1 : 0);
    return FM_OK;
}

/* Rewrites an escape; pos is at the backslash. */
static fm_status rewrite_escape(rewrite *r, bool in_class)
{
    if (++r->pos >= r->len)
        return refuse(r, "a trailing backslash");
    char c = (char)r->s[r->pos];
    if (c == 'p' || c == 'P')
        return rewrite_property(r, in_class);
    if (strchr("sSdDwW", c))
        return rewrite_set(r, c, in_class);
    if (c == 'x' || c == 'u')
        return rewrite_code(r);
    if (c == 'v')
        fm_buf_str(r->out, "\\x0b");
    else if (strchr("nrtfae", c) || (!in_class && (c == 'A' || c == 'z')) ||
             (r->s[r->pos] < 0x80 && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ", c)))
        fm_buf_printf(r->out, "\\%c", c);
    else
        return refuse(r, "an escape");
    r->pos++;
    return FM_OK;
}

static fm_status rewrite_class(rewrite *r)
{
    size_t members = 0;

    fm_buf_char(r->out, '[');
    r->pos++;
    if (r->pos < r->len && r->s[r->pos] == '^') {
        fm_buf_char(r->out, '^');
        r->pos++;
    }
    for (; r->pos < r->len && r->s[r->pos] != ']'; members++) {
        uint8_t c = r->s[r->pos];
        if (c == '[' || (c == '&' && r->pos + 1 < r->len && r->s[r->pos + 1] == '&'))
            return refuse(r, "a nested class or &&");
        if (c == '\\') {
            FM_TRY(rewrite_escape(r, true));
            continue;
        }
        fm_buf_u8(r->out, c);
        r->pos++;
    }
    if (r->pos >= r->len || members == 0)
        return refuse(r, "an empty or unclosed class");
    fm_buf_char(r->out, ']');
    r->pos++;
    return FM_OK;
}

/* Whether the group means the same in both languages. */
static bool known_group(const rewrite *r)
{
    static const char *const ok[] = {"?:", "?=", "?!", "?>", "?<=", "?<!", "?i:", "?i)"};
    size_t left = r->len - r->pos - 1;
    const uint8_t *p = r->s + r->pos + 1;

    if (left == 0 || p[0] != '?')
        return left > 0 && p[0] != '*';
    for (size_t i = 0; i < FM_ARRAY_LEN(ok); i++)
        if (left >= strlen(ok[i]) && memcmp(p, ok[i], strlen(ok[i])) == 0)
            return true;
    return false;
}

static fm_status check_plain(const rewrite *r, uint8_t c)
{
    if (c == '^' || c == '$')
        return refuse(r, "an anchor");
    if (c == '(' && !known_group(r))
        return refuse(r, "a group");
    if (c == '{' && (r->pos + 1 >= r->len || r->s[r->pos + 1] < '0' || r->s[r->pos + 1] > '9'))
        return refuse(r, "an unclear quantifier");
    if (c == '}' && r->pos + 1 < r->len && r->s[r->pos + 1] == '+')
        return refuse(r, "a quantified quantifier");
    return FM_OK;
}

fm_status fmi_regex_rewrite(fm_buf *out, fm_span pattern, const char *field)
{
    rewrite r = {out, pattern.data, pattern.len, 0, field};
    fm_status rc = FM_OK;

    if (fm_utf8_valid(pattern.data, pattern.len) != pattern.len)
        return fm_fail(FM_EINVAL, "%s: regular expression is not UTF-8", field);
    while (rc == FM_OK && r.pos < r.len) {
        uint8_t c = r.s[r.pos];
        if (c == '\\') {
            rc = rewrite_escape(&r, false);
        } else if (c == '[') {
            rc = rewrite_class(&r);
        } else {
            rc = check_plain(&r, c);
            fm_buf_u8(out, c);
            r.pos++;
        }
    }
    return rc < 0 ? rc : fm_buf_ok(out);
}

/* ---- compiling and matching ---- */

fm_status fmi_regex_check_unicode(const char *unicode, const char *field)
{
    static const char *const known[] = {"14.0.0", "15.0.0", "15.1.0", "16.0.0"};

    for (size_t i = 0; i < FM_ARRAY_LEN(known); i++)
        if (strcmp(unicode, known[i]) == 0)
            return FM_OK;
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: a regular expression of a tokenizer needs a PCRE2 with Unicode 14 to 16, "
                   "and the one installed knows Unicode %s: ids of newer characters would differ "
                   "from Hugging Face's",
                   field, unicode);
}

static fm_status compile(fmi_regex *re, fm_span pattern, const char *field)
{
    char unicode[32];
    fm_buf text;

    fm_regex_unicode(unicode);
    fm_buf_init(&text, FM_REGEX_MAX_BYTES);
    fm_status rc = fmi_regex_check_unicode(unicode, field);
    FM_THEN(rc, fmi_regex_rewrite(&text, pattern, field));
    FM_THEN(rc, fm_regex_new(&re->code, fm_buf_span(&text), FM_REGEX_OFTEN, field));
    fm_buf_release(&text);
    return rc;
}

fm_status fmi_regex_new(fmi_regex **out, fm_span pattern, bool literal, const char *field)
{
    fm_status rc;

    *out = NULL;
    if (pattern.len > FMI_TOK_PATTERN_MAX)
        return fm_fail(FM_ELIMIT, "%s: pattern of %zu bytes (at most %d)", field, pattern.len,
                       FMI_TOK_PATTERN_MAX);
    if (literal && pattern.len == 0)
        return fm_fail(FM_EINVAL, "%s: empty pattern", field);
    fmi_regex *re = fm_calloc(1, sizeof *re);
    if (!re)
        return FM_ENOMEM;
    if (literal) {
        re->literal = fm_memdup(pattern.data, pattern.len);
        re->literal_len = pattern.len;
        rc = re->literal ? FM_OK : FM_ENOMEM;
    } else {
        rc = compile(re, pattern, field);
    }
    if (rc < 0) {
        fmi_regex_free(re);
        return rc;
    }
    *out = re;
    return FM_OK;
}

void fmi_regex_free(fmi_regex *re)
{
    if (!re)
        return;
    fm_regex_free(re->code);
    fm_free(re->literal);
    fm_free(re);
}

fm_status fmi_regex_next(const fmi_regex *re, fm_regex_run *run, fm_span subject, size_t from,
                         bool *found, size_t *begin, size_t *end)
{
    *found = false;
    if (!re->code) {
        if (subject.len - from < re->literal_len)
            return FM_OK;
        const uint8_t *p =
            memmem(subject.data + from, subject.len - from, re->literal, re->literal_len);
        if (!p)
            return FM_OK;
        *begin = (size_t)(p - subject.data);
        *end = *begin + re->literal_len;
        *found = true;
        return FM_OK;
    }
    return fm_regex_next(re->code, run, subject, from, found, begin, end);
}
