/* regex.c - the regular expressions of tokenizer.json on PCRE2.
 *
 * The files are written for Oniguruma. Most of its syntax means the same in PCRE2; what does not is
 * rewritten here (\s \d \w \p{..} \v \u: newer Unicode, other sets) or refused by name (anchors,
 * \b, nested classes, back references), since a pattern that matches slightly differently gives
 * wrong ids without any sign. Matching is JIT compiled and bounded. */
#include "infer/tokenizer/internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

/* PCRE2 does not tell how many steps a match took, so a match begins with few and is made again with
 * ten times as many. What was in vain is counted, for all matches of a text together. */
#define MATCH_STEPS 1000u
#define MATCH_STEPS_MAX 10000000u
#define TEXT_STEPS ((size_t)100000000) /* ... and as many for each byte of the text: */
#define BYTE_STEPS 16u
#define JIT_STACK_MAX ((size_t)8 << 20)

struct fmi_regex {
    pcre2_code *code; /* NULL: literal */
    bool jit;
    uint8_t *literal;
    size_t literal_len;
};

struct fmi_regex_run {
    pcre2_general_context *gctx;
    pcre2_match_context *mctx;
    size_t steps_left;
    pcre2_match_data *md;
    pcre2_jit_stack *stack;
};

static void *door_malloc(size_t bytes, void *data)
{
    (void)data;
    return fm_malloc(bytes);
}

static void door_free(void *p, void *data)
{
    (void)data;
    fm_free(p);
}

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

/* Contents of \w as Oniguruma has it: letters, marks, Nd, Nl, Pc, circled and squared letters, and
 * the Latin-1 numbers. */
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

/* \p{Name}, \P{Name}, \p{^Name}; pos is at the 'p'. */
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

/* \xHH below 0x80, \x{H..}, \uHHHH */
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

/* pos is at the backslash. */
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
    fm_status rc = FM_OK;
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
            rc = rewrite_escape(r, true);
            if (rc < 0)
                return rc;
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

/* Groups whose meaning both languages share. */
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

    if (fmi_utf8_valid(pattern.data, pattern.len) != pattern.len)
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

static fm_status compile(fmi_regex *re, fm_span pattern, const char *field)
{
    fm_buf text;
    pcre2_general_context *gctx = pcre2_general_context_create(door_malloc, door_free, NULL);
    pcre2_compile_context *cctx = gctx ? pcre2_compile_context_create(gctx) : NULL;
    int error = 0;
    PCRE2_SIZE at = 0;
    fm_status rc = cctx ? FM_OK : FM_ENOMEM;

    fm_buf_init(&text, (size_t)1 << 20);
    if (rc == FM_OK)
        rc = fmi_regex_rewrite(&text, pattern, field);
    if (rc < 0)
        goto out;
    pcre2_set_newline(cctx, PCRE2_NEWLINE_LF);
    re->code = pcre2_compile((PCRE2_SPTR)fm_buf_cstr(&text), text.len, PCRE2_UTF | PCRE2_UCP,
                             &error, &at, cctx);
    if (!re->code && error == PCRE2_ERROR_HEAP_FAILED) {
        rc = FM_ENOMEM;
        goto out;
    }
    if (!re->code) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(error, why, sizeof why);
        rc = fm_fail(FM_EINVAL, "%s: regular expression: %s", field, (const char *)why);
        goto out;
    }
    re->jit = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE) == 0;
out:
    pcre2_compile_context_free(cctx);
    pcre2_general_context_free(gctx);
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
    pcre2_code_free(re->code);
    fm_free(re->literal);
    fm_free(re);
}

fm_status fmi_regex_run_new(fmi_regex_run **out, size_t text_bytes)
{
    fmi_regex_run *run = fm_calloc(1, sizeof *run);

    *out = NULL;
    if (!run)
        return FM_ENOMEM;
    run->gctx = pcre2_general_context_create(door_malloc, door_free, NULL);
    run->mctx = run->gctx ? pcre2_match_context_create(run->gctx) : NULL;
    run->md = run->gctx ? pcre2_match_data_create(2, run->gctx) : NULL;
    if (!run->mctx || !run->md) {
        fmi_regex_run_free(run);
        return fm_fail(FM_ENOMEM, "out of memory");
    }
    run->steps_left = TEXT_STEPS + BYTE_STEPS * text_bytes;
    *out = run;
    return FM_OK;
}

void fmi_regex_run_free(fmi_regex_run *run)
{
    if (!run)
        return;
    pcre2_jit_stack_free(run->stack);
    pcre2_match_data_free(run->md);
    pcre2_match_context_free(run->mctx);
    pcre2_general_context_free(run->gctx);
    fm_free(run);
}

static int match(const fmi_regex *re, fmi_regex_run *run, fm_span s, size_t from)
{
    if (!re->jit)
        return pcre2_match(re->code, s.data, s.len, from, PCRE2_NO_UTF_CHECK, run->md, run->mctx);
    int n = pcre2_jit_match(re->code, s.data, s.len, from, 0, run->md, run->mctx);
    if (n != PCRE2_ERROR_JIT_STACKLIMIT || run->stack)
        return n;
    /* 32 KiB of machine stack were not enough: take a real one and try once more. */
    run->stack = pcre2_jit_stack_create((size_t)64 << 10, JIT_STACK_MAX, run->gctx);
    if (!run->stack)
        return PCRE2_ERROR_NOMEMORY;
    pcre2_jit_stack_assign(run->mctx, NULL, run->stack);
    return pcre2_jit_match(re->code, s.data, s.len, from, 0, run->md, run->mctx);
}

static int match_within(const fmi_regex *re, fmi_regex_run *run, fm_span s, size_t from)
{
    for (uint32_t steps = MATCH_STEPS;; steps *= 10) {
        pcre2_set_match_limit(run->mctx, steps);
        int n = match(re, run, s, from);
        if (n != PCRE2_ERROR_MATCHLIMIT || steps >= MATCH_STEPS_MAX || steps > run->steps_left)
            return n;
        run->steps_left -= steps;
    }
}

fm_status fmi_regex_next(const fmi_regex *re, fmi_regex_run *run, fm_span subject, size_t from,
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
    int n = match_within(re, run, subject, from);
    if (n == PCRE2_ERROR_NOMATCH)
        return FM_OK;
    if (n == PCRE2_ERROR_NOMEMORY)
        return fm_fail(FM_ENOMEM, "out of memory");
    if (n < 0)
        return fm_fail(FM_ELIMIT, "tokenizer: regular expression gave up on this text (PCRE2 %d)",
                       n);
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(run->md);
    *begin = v[0];
    *end = v[1];
    *found = true;
    return FM_OK;
}
