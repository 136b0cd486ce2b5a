/* json_parse.c - RFC 8259, strictly, into the value tree.
 *
 * Not jansson's parser: its lexer ignores a failed allocation in the middle of a token (it aborts
 * on an assertion, or returns a shortened string), refuses integers beyond 64 bits, which real
 * tokenizer_config.json files hold, and its messages name no file. Recursive, with a depth limit
 * that jansson's own recursion (free, copy, compare) can bear too. */
#include "store/base/text/json.h"

#include "store/base/cancel.h"
#include "store/base/os/io.h"
#include "store/base/mem.h"
#include "store/base/text/utf8.h"

#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct parser {
    const uint8_t *p;
    const uint8_t *end;
    const char *what;
    size_t line;
    fm_buf scratch; /* the current token: a decoded string, or a number with its NUL */
};

static fm_status fail_at(const struct parser *s, const char *text)
{
    return fm_fail(FM_ECORRUPT, "%s: line %zu: %s", s->what, s->line, text);
}

/* ==== shared with the other files of this door ==== */

static pthread_once_t locale_once = PTHREAD_ONCE_INIT;
static locale_t c_locale; /* 0 when it could not be made; kept for the life of the process */

static void make_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

bool fms_json_real_of(double *out, const char *text)
{
    char *end;

    pthread_once(&locale_once, make_locale);
    *out = c_locale ? strtod_l(text, &end, c_locale) : strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*out);
}

/* ==== tokens ==== */

/* The next byte that is no white space, or 0 at the end. */
static uint8_t peek(struct parser *s)
{
    for (; s->p < s->end; s->p++) {
        if (*s->p == '\n')
            s->line++;
        else if (*s->p != ' ' && *s->p != '\t' && *s->p != '\r')
            return *s->p;
    }
    return 0;
}

static bool take(struct parser *s, char c)
{
    if (peek(s) != (uint8_t)c || s->p == s->end)
        return false;
    s->p++;
    return true;
}

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool hex4(uint32_t *out, struct parser *s)
{
    *out = 0;
    if (s->end - s->p < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        int d = hex_digit(*s->p++);
        if (d < 0)
            return false;
        *out = *out << 4 | (uint32_t)d;
    }
    return true;
}

static fm_status unicode_escape(struct parser *s)
{
    uint32_t code, low;
    uint8_t bytes[4];

    if (!hex4(&code, s))
        return fail_at(s, "\\u needs four hexadecimal digits");
    if (code >= 0xd800 && code <= 0xdbff) {
        if (s->end - s->p < 2 || s->p[0] != '\\' || s->p[1] != 'u')
            return fail_at(s, "lone surrogate in a string");
        s->p += 2;
        if (!hex4(&low, s) || low < 0xdc00 || low > 0xdfff)
            return fail_at(s, "lone surrogate in a string");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code <= 0xdfff) {
        return fail_at(s, "lone surrogate in a string");
    }
    fm_buf_append(&s->scratch, bytes, fm_utf8_put(bytes, code));
    return FM_OK;
}

static fm_status escape(struct parser *s) /* after the backslash */
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";

    if (s->p == s->end)
        return fail_at(s, "a string is not closed");
    const uint8_t c = *s->p++;
    if (c == 'u')
        return unicode_escape(s);
    const char *at = c ? strchr(from, c) : NULL;
    if (!at)
        return fail_at(s, "unknown escape in a string");
    fm_buf_char(&s->scratch, to[at - from]);
    return FM_OK;
}

/* Decodes the string after its opening quote into scratch. */
static fm_status string(struct parser *s)
{
    fm_buf_clear(&s->scratch);
    for (;;) {
        const uint8_t *from = s->p;
        while (s->p < s->end && *s->p != '"' && *s->p != '\\') {
            size_t len = *s->p < 0x20 ? 0 : fm_utf8_len(s->p, (size_t)(s->end - s->p));
            if (len == 0)
                return fail_at(s, *s->p < 0x20 ? "raw control character in a string"
                                               : "a string is not UTF-8");
            s->p += len;
        }
        fm_buf_append(&s->scratch, from, (size_t)(s->p - from));
        if (s->p == s->end)
            return fail_at(s, "a string is not closed");
        if (*s->p++ == '"')
            return fm_buf_ok(&s->scratch);
        FM_TRY(escape(s));
    }
}

static size_t digits(struct parser *s)
{
    const uint8_t *from = s->p;

    while (s->p < s->end && *s->p >= '0' && *s->p <= '9')
        s->p++;
    return (size_t)(s->p - from);
}

/* Moves past a number; false where the grammar is broken. */
static bool scan_number(struct parser *s, bool *is_integer)
{
    *is_integer = true;
    if (*s->p == '-')
        s->p++;
    const bool zero = s->p < s->end && *s->p == '0';
    size_t whole = digits(s);
    if (whole == 0 || (zero && whole > 1))
        return false;
    if (s->p < s->end && *s->p == '.') {
        *is_integer = false;
        s->p++;
        if (digits(s) == 0)
            return false;
    }
    if (s->p < s->end && (*s->p == 'e' || *s->p == 'E')) {
        *is_integer = false;
        s->p++;
        if (s->p < s->end && (*s->p == '+' || *s->p == '-'))
            s->p++;
        return digits(s) > 0;
    }
    return true;
}

/* False where the digits do not fit 64 bits. */
static bool integer_of(int64_t *out, const char *text)
{
    const bool negative = *text == '-';

    *out = 0;
    for (text += negative; *text; text++) {
        int d = *text - '0';
        if (__builtin_mul_overflow(*out, 10, out) ||
            __builtin_add_overflow(*out, negative ? -d : d, out))
            return false;
    }
    return true;
}

static fm_status number(fm_json **out, struct parser *s)
{
    const uint8_t *from = s->p;
    bool is_integer;
    int64_t i;
    double r;

    if (!scan_number(s, &is_integer))
        return fail_at(s, "malformed number");
    fm_buf_clear(&s->scratch);
    fm_buf_append(&s->scratch, from, (size_t)(s->p - from));
    FM_TRY(fm_buf_ok(&s->scratch));
    const char *text = fm_buf_cstr(&s->scratch);
    if (is_integer && integer_of(&i, text))
        *out = fm_json_new_int(i);
    else if (fms_json_real_of(&r, text))
        *out = fm_json_new_real(r);
    else
        return fail_at(s, "number is out of range");
    return *out ? FM_OK : FM_ENOMEM;
}

static fm_status literal(fm_json **out, struct parser *s)
{
    const size_t left = (size_t)(s->end - s->p);
    size_t len = 0;

    if (left >= 4 && memcmp(s->p, "null", 4) == 0) {
        len = 4;
        *out = fm_json_new_null();
    } else if (left >= 4 && memcmp(s->p, "true", 4) == 0) {
        len = 4;
        *out = fm_json_new_bool(true);
    } else if (left >= 5 && memcmp(s->p, "false", 5) == 0) {
        len = 5;
        *out = fm_json_new_bool(false);
    }
    if (len == 0)
        return fail_at(s, left ? "a value was expected" : "ends where a value was expected");
    s->p += len;
    return FM_OK;
}

/* ==== values ==== */

static fm_status value(fm_json **out, struct parser *s, unsigned depth);

static fm_status array(fm_json **out, struct parser *s, unsigned depth)
{
    fm_status rc = FM_OK;

    *out = fm_json_new_array();
    if (!*out)
        return FM_ENOMEM;
    if (take(s, ']'))
        return FM_OK;
    do {
        fm_json *item;
        rc = value(&item, s, depth + 1);
        if (rc >= 0)
            rc = fm_json_push(*out, item);
    } while (rc >= 0 && take(s, ','));
    if (rc >= 0 && !take(s, ']'))
        rc = fail_at(s, "',' or ']' was expected in an array");
    return rc;
}

/* Reads a key and its colon; *out is freed by the caller. */
static fm_status field_key(char **out, struct parser *s, const fm_json *object)
{
    *out = NULL;
    if (!take(s, '"'))
        return fail_at(s, "a string was expected as key");
    FM_TRY(string(s));
    const char *key = fm_buf_cstr(&s->scratch);
    if (strlen(key) != s->scratch.len)
        return fail_at(s, "a key holds a NUL character");
    if (fm_json_get(object, key))
        return fm_fail(FM_ECORRUPT, "%s: line %zu: duplicate key '%.200s'", s->what, s->line, key);
    *out = fm_strndup(key, s->scratch.len); /* the value will use scratch */
    if (!*out)
        return FM_ENOMEM;
    return take(s, ':') ? FM_OK : fail_at(s, "':' was expected behind a key");
}

static fm_status object(fm_json **out, struct parser *s, unsigned depth)
{
    fm_status rc = FM_OK;

    *out = fm_json_new_object();
    if (!*out)
        return FM_ENOMEM;
    if (take(s, '}'))
        return FM_OK;
    do {
        char *key;
        fm_json *item;
        rc = field_key(&key, s, *out);
        if (rc >= 0)
            rc = value(&item, s, depth + 1);
        if (rc >= 0)
            rc = fm_json_set(*out, key, item);
        fm_free(key);
    } while (rc >= 0 && take(s, ','));
    if (rc >= 0 && !take(s, '}'))
        rc = fail_at(s, "',' or '}' was expected in an object");
    return rc;
}

static fm_status value(fm_json **out, struct parser *s, unsigned depth)
{
    fm_status rc;

    *out = NULL;
    rc = fm_go_on();
    if (rc < 0)
        return rc;
    if (depth >= FM_JSON_MAX_DEPTH)
        return fm_fail(FM_ELIMIT, "%s: line %zu: nested deeper than %d", s->what, s->line,
                       FM_JSON_MAX_DEPTH);
    const uint8_t c = peek(s);
    if (c == '{' || c == '[' || c == '"')
        s->p++;
    if (c == '{') {
        rc = object(out, s, depth);
    } else if (c == '[') {
        rc = array(out, s, depth);
    } else if (c == '"') {
        rc = string(s);
        if (rc >= 0)
            *out = fm_json_new_strn(fm_buf_cstr(&s->scratch), s->scratch.len);
        if (rc >= 0 && !*out)
            rc = FM_ENOMEM;
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        rc = number(out, s);
    } else {
        rc = literal(out, s);
    }
    if (rc < 0) {
        fm_json_free(*out);
        *out = NULL;
    }
    return rc;
}

fm_status fm_json_parse(fm_json **out, fm_span text, const char *what)
{
    const uint8_t *data = text.data ? text.data : (const uint8_t *)"";
    struct parser s = {.p = data, .end = data + text.len, .what = what, .line = 1};

    fm_buf_init(&s.scratch, SIZE_MAX / 2); /* never more than the text itself */
    fm_status rc = value(out, &s, 0);
    if (rc >= 0) {
        peek(&s);
        if (s.p != s.end)
            rc = fail_at(&s, "more text behind the value");
    }
    fm_buf_release(&s.scratch);
    if (rc < 0) {
        fm_json_free(*out);
        *out = NULL;
    }
    return rc;
}

fm_status fm_json_parse_file(fm_json **out, const char *path, size_t max_bytes)
{
    fm_buf text;

    *out = NULL;
    fm_buf_init(&text, max_bytes);
    fm_status rc = fm_read_file(&text, path, max_bytes);
    if (rc >= 0)
        rc = fm_json_parse(out, fm_buf_span(&text), path);
    fm_buf_release(&text);
    return rc;
}
