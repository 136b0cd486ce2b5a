/* lex.c - template source to tokens, with jinja2's whitespace rules: trim_blocks (drops a newline
 * behind a block or comment), lstrip_blocks (drops blanks before one at the start of a line), '-'
 * strips all, '+' keeps all; one newline at the very end of the template is dropped. */
#include "infer/jinja/jinja.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "infer/tokenizer/internal.h"

typedef struct lexer {
    jj_lexed *out;
    fm_arena *arena;
    const char *s;
    size_t len, pos;
    uint32_t line;
    bool line_start; /* the next text begins a line */
} lexer;

static fm_status fail(const lexer *x, const char *why)
{
    return fm_fail(FM_EINVAL, "line %u: %s", x->line, why);
}

static fm_status push(lexer *x, jj_tok_kind kind, const char *s, size_t len, jj_tok **out)
{
    if (x->out->count >= JJ_TOKENS_MAX)
        return fm_fail(FM_ELIMIT, "line %u: template has more than %d tokens", x->line,
                       JJ_TOKENS_MAX);
    FM_TRY(fm_grow(&x->out->tok, &x->out->cap, x->out->count + 1, sizeof *x->out->tok));
    jj_tok *t = &x->out->tok[x->out->count++];
    memset(t, 0, sizeof *t);
    t->kind = kind;
    t->line = x->line;
    t->s = s;
    t->len = len;
    if (out)
        *out = t;
    return FM_OK;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= 9 && c <= 13);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name(char c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c);
}

static char at(const lexer *x, size_t ahead)
{
    return x->pos + ahead < x->len ? x->s[x->pos + ahead] : 0;
}

static void advance(lexer *x, size_t n)
{
    for (size_t i = 0; i < n && x->pos < x->len; i++)
        if (x->s[x->pos++] == '\n')
            x->line++;
}

static void skip_spaces(lexer *x)
{
    while (x->pos < x->len && is_space(x->s[x->pos]))
        advance(x, 1);
}

/* Pushes a text of n bytes, shortened by the whitespace rule of the tag behind it: sign is the
 * tag's '-' or '+', variable means {{ }}. Moves behind the text. */
static fm_status push_text(lexer *x, size_t n, char sign, bool variable)
{
    const char *begin = x->s + x->pos;
    size_t keep = n, bol = n;

    while (bol > 0 && begin[bol - 1] != '\n')
        bol--;
    if (sign == '-') {
        while (keep > 0 && is_space(begin[keep - 1]))
            keep--;
    } else if (sign != '+' && !variable && (bol > 0 || x->line_start)) {
        while (keep > bol && is_space(begin[keep - 1]))
            keep--;
        if (keep != bol)
            keep = n;
    }
    fm_status rc = keep > 0 ? push(x, JJ_T_TEXT, begin, keep, NULL) : FM_OK;
    if (n > 0)
        x->line_start = begin[n - 1] == '\n';
    advance(x, n);
    return rc;
}

/* Reads the text up to the next tag. */
static fm_status text(lexer *x)
{
    const char *begin = x->s + x->pos;
    size_t n = 0, left = x->len - x->pos;

    while (n < left && !(begin[n] == '{' && n + 1 < left && strchr("{%#", begin[n + 1])))
        n++;
    if (n == left)
        return push_text(x, n, '+', true);
    return push_text(x, n, n + 2 < left ? begin[n + 2] : 0, begin[n + 1] == '{');
}

/* Moves behind a closing tag. sign: the character before "%}"; trim: of blocks and comments. */
static void close_tag(lexer *x, char sign, bool trim)
{
    advance(x, 2);
    x->line_start = false;
    if (sign == '-') {
        size_t before = x->pos;
        skip_spaces(x);
        x->line_start = x->pos > before && x->s[x->pos - 1] == '\n';
    } else if (trim && sign != '+' && at(x, 0) == '\n') {
        advance(x, 1);
        x->line_start = true;
    }
}

static fm_status comment(lexer *x)
{
    advance(x, 2);
    if (at(x, 0) == '-' && at(x, 1) != '#')
        advance(x, 1);
    while (x->pos < x->len && !(at(x, 0) == '#' && at(x, 1) == '}'))
        advance(x, 1);
    if (x->pos >= x->len)
        return fail(x, "comment is not closed");
    close_tag(x, x->s[x->pos - 1], true);
    return FM_OK;
}

static int hex(char c)
{
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Decodes \xHH \uHHHH \UHHHHHHHH, with p at the letter. Returns characters read, 0 = malformed. */
static size_t code_escape(const char *p, size_t left, char *dst, size_t *put)
{
    size_t digits = p[0] == 'x' ? 2 : p[0] == 'u' ? 4 : 8;
    uint32_t cp = 0;

    if (left < digits + 1)
        return 0;
    for (size_t i = 1; i <= digits; i++) {
        if (hex(p[i]) < 0)
            return 0;
        cp = cp << 4 | (uint32_t)hex(p[i]);
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        return 0;
    *put = fm_utf8_put((uint8_t *)dst, cp);
    return digits + 1;
}

/* Decodes Python's escapes; an unknown one stays as it is, with its backslash. */
static fm_status unescape(lexer *x, const char *p, size_t n, char *dst, size_t *len)
{
    static const char from[] = "ntrabfv\\'\"", to[] = "\n\t\r\a\b\f\v\\'\"";
    size_t k = 0;

    for (size_t i = 0; i < n; i++) {
        if (p[i] != '\\' || i + 1 == n) {
            dst[k++] = p[i];
            continue;
        }
        char e = p[++i];
        const char *hit = strchr(from, e);
        if (e == 'x' || e == 'u' || e == 'U') {
            size_t put = 0, took = code_escape(p + i, n - i, dst + k, &put);
            if (took == 0)
                return fail(x, "malformed escape in a string");
            k += put;
            i += took - 1;
        } else if (e == 'N' || (e >= '0' && e <= '7')) {
            return fm_fail(FM_EUNSUPPORTED, "line %u: the escape '\\%c' is not implemented",
                           x->line, e);
        } else if (e == '\n') {
            continue;
        } else if (e && hit) {
            dst[k++] = to[hit - from];
        } else {
            dst[k++] = '\\';
            dst[k++] = e;
        }
    }
    *len = k;
    return FM_OK;
}

static fm_status string(lexer *x)
{
    char quote = x->s[x->pos];
    size_t n = 1;
    jj_tok *t;

    while (x->pos + n < x->len && at(x, n) != quote)
        n += at(x, n) == '\\' ? 2 : 1;
    if (x->pos + n >= x->len)
        return fail(x, "string is not closed");
    char *dst = fm_arena_alloc(x->arena, n + 1);
    size_t len = 0;
    if (!dst)
        return FM_ENOMEM;
    fm_status rc = unescape(x, x->s + x->pos + 1, n - 1, dst, &len);
    FM_THEN(rc, push(x, JJ_T_STRING, dst, len, &t));
    advance(x, n + 1);
    return rc;
}

static size_t digits_at(const lexer *x, size_t from)
{
    size_t n = 0;

    while (is_digit(at(x, from + n)))
        n++;
    return n;
}

/* Reads a decimal number, a float with a point or an exponent; no other bases, no underscores. */
static fm_status number(lexer *x)
{
    bool indexed = x->pos > 0 && x->s[x->pos - 1] == '.'; /* a.0.1: no float */
    size_t n = digits_at(x, 0), more = !indexed && at(x, n) == '.' ? digits_at(x, n + 1) : 0;
    bool real = more > 0;
    char tmp[64];
    jj_tok *t = NULL;

    n += more ? 1 + more : 0;
    if (!indexed && (at(x, n) | 32) == 'e') {
        size_t sign = at(x, n + 1) == '-' || at(x, n + 1) == '+';
        more = digits_at(x, n + 1 + sign);
        real = real || more > 0;
        n += more ? 1 + sign + more : 0;
    }
    if (n >= sizeof tmp || is_name(at(x, n)))
        return fail(x, "number is not understood: only decimal ones of 64 bits are");
    memcpy(tmp, x->s + x->pos, n);
    tmp[n] = 0;
    errno = 0;
    int64_t whole = real ? 0 : strtoll(tmp, NULL, 10);
    if (errno || (!real && tmp[0] == '0' && strspn(tmp, "0") != n))
        return fail(x, "number is not understood: only decimal ones of 64 bits are");
    fm_status rc = push(x, real ? JJ_T_FLOAT : JJ_T_INT, "", 0, &t);
    if (rc < 0 || !t)
        return rc;
    t->i = whole;
    t->f = real ? strtod(tmp, NULL) : 0;
    advance(x, n);
    return FM_OK;
}

/* Reads a name. The text behind {% raw %} is no template, so raw is refused before that is read. */
static fm_status name(lexer *x, bool statement)
{
    size_t n = 0;

    while (is_name(at(x, n)))
        n++;
    if (statement && n == 3 && memcmp(x->s + x->pos, "raw", 3) == 0)
        return fm_fail(FM_EUNSUPPORTED, "line %u: statement 'raw' is not implemented", x->line);
    if (n > JJ_NAME_MAX)
        return fm_fail(FM_ELIMIT, "line %u: a name of more than %d bytes", x->line, JJ_NAME_MAX);
    char *s = fm_arena_strndup(x->arena, x->s + x->pos, n);
    fm_status rc = s ? push(x, JJ_T_NAME, s, n, NULL) : FM_ENOMEM;
    advance(x, n);
    return rc;
}

static fm_status operator_token(lexer *x)
{
    static const char *const ops[] = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "/",
                                      "*",  "%",  "~",  "(",  ")",  "[",  "]", "{", "}",
                                      "<",  ">",  "=",  ".",  ":",  "|",  ","};

    for (size_t i = 0; i < FM_ARRAY_LEN(ops); i++) {
        size_t n = strlen(ops[i]);
        if (x->len - x->pos < n || memcmp(x->s + x->pos, ops[i], n) != 0)
            continue;
        fm_status rc = push(x, JJ_T_OP, ops[i], n, NULL);
        advance(x, n);
        return rc;
    }
    return fm_fail(FM_EINVAL, "line %u: unexpected character '%c'", x->line, at(x, 0));
}

/* Reads the inside of {{ }} or {% %}. A dict literal's brace does not end a variable tag. */
static fm_status tag(lexer *x, bool block)
{
    const char end = block ? '%' : '}';
    int braces = 0;
    fm_status rc = push(x, block ? JJ_T_BLOCK_BEGIN : JJ_T_VAR_BEGIN, "", 0, NULL);

    advance(x, at(x, 2) == '-' || at(x, 2) == '+' ? 3 : 2);
    while (rc == FM_OK) {
        skip_spaces(x);
        if (x->pos >= x->len)
            return fail(x, "tag is not closed");
        char c = at(x, 0);
        size_t sign = (c == '-' || c == '+') && at(x, 1) == end && at(x, 2) == '}' ? 1 : 0;
        if (braces == 0 && at(x, sign) == end && at(x, sign + 1) == '}') {
            rc = push(x, block ? JJ_T_BLOCK_END : JJ_T_VAR_END, "", 0, NULL);
            advance(x, sign);
            close_tag(x, sign ? c : 0, block);
            return rc;
        }
        braces += c == '{' ? 1 : c == '}' ? -1 : 0;
        if (c == '"' || c == '\'')
            rc = string(x);
        else if (is_digit(c))
            rc = number(x);
        else if (is_name(c))
            rc = name(x, block && x->out->tok[x->out->count - 1].kind == JJ_T_BLOCK_BEGIN);
        else
            rc = operator_token(x);
    }
    return rc;
}

/* Replaces \r\n and \r by \n and drops one final newline. */
static fm_status prepare(lexer *x, fm_span source)
{
    char *s = fm_arena_alloc(x->arena, source.len + 1);
    size_t n = 0;

    if (!s)
        return FM_ENOMEM;
    for (size_t i = 0; i < source.len; i++) {
        char c = (char)source.data[i];
        if (c == '\r' && i + 1 < source.len && source.data[i + 1] == '\n')
            continue;
        s[n++] = c == '\r' ? '\n' : c;
    }
    if (n > 0 && s[n - 1] == '\n')
        n--;
    x->s = s;
    x->len = n;
    return FM_OK;
}

fm_status jj_lex(jj_lexed *out, fm_arena *arena, fm_span source)
{
    lexer x = {.out = out, .arena = arena, .line = 1, .line_start = true};
    fm_status rc = prepare(&x, source);

    while (rc == FM_OK && x.pos < x.len) {
        rc = text(&x);
        if (rc < 0 || x.pos >= x.len)
            break;
        if (at(&x, 1) == '#')
            rc = comment(&x);
        else
            rc = tag(&x, at(&x, 1) == '%');
    }
    return rc < 0 ? rc : push(&x, JJ_T_EOF, "", 0, NULL);
}
