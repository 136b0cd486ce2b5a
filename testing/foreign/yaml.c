/* yaml.c - writes a value tree as YAML in blocks, for people to read and edit. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "store/base/text/utf8.h"
#include "testing/foreign/foreign.h"

/* Whether a YAML 1.1 or 1.2 reader, or another case of letters in one, takes the word for a truth
 * value or for none. */
static bool other_type(fm_span s)
{
    static const char *const words[] = {"null", "true", "false", "yes", "no",
                                        "on",   "off",  "y",     "n"};
    for (size_t i = 0; i < FM_ARRAY_LEN(words); i++)
        if (s.len == strlen(words[i]) && strncasecmp((const char *)s.data, words[i], s.len) == 0)
            return true;
    return false;
}

/* Whether text needs no quotes: letters, digits, spaces, and no word of another YAML type. Numbers
 * and dates begin with a digit, a sign or a point. */
static bool plain(fm_span s)
{
    const char *t = (const char *)s.data;
    bool letter = false;
    if (s.len == 0 || s.len > 100 || t[0] == ' ' || t[0] == '-' || t[s.len - 1] == ' ')
        return false;
    for (size_t i = 0; i < s.len; i++) {
        bool alpha = (t[i] >= 'a' && t[i] <= 'z') || (t[i] >= 'A' && t[i] <= 'Z');
        letter = letter || alpha;
        if (!alpha && !(t[i] >= '0' && t[i] <= '9') && !memchr(" _-/()", t[i], 6))
            return false;
    }
    return letter && !(t[0] >= '0' && t[0] <= '9') && !other_type(s);
}

/* Whether YAML 1.1 takes the character for a line end, or refuses it unescaped. */
static bool escaped(uint32_t cp)
{
    return (cp >= 0x7f && cp <= 0x9f) || cp == 0x2028 || cp == 0x2029 || cp == 0xfeff ||
           cp == 0xfffe || cp == 0xffff;
}

/* JSON's string; YAML reads its escapes, but leaves fewer characters as they are. */
static void put_string(fm_buf *out, fm_span json)
{
    char text[16];
    for (size_t i = 0, n; i < json.len; i += n) {
        uint32_t cp;
        n = fm_utf8_next(json.data + i, &cp);
        snprintf(text, sizeof text, "\\u%04x", (unsigned)cp);
        if (escaped(cp))
            fm_buf_str(out, text);
        else
            fm_buf_append(out, json.data + i, n);
    }
}

/* JSON's number; in YAML 1.1 one with an exponent and no point is text. */
static void put_real(fm_buf *out, fm_span json)
{
    const char *t = (const char *)json.data, *e = memchr(t, 'e', json.len);
    size_t digits = e ? (size_t)(e - t) : json.len;
    fm_buf_append(out, t, digits);
    if (!memchr(t, '.', digits))
        fm_buf_str(out, ".0");
    fm_buf_append(out, t + digits, json.len - digits);
}

static fm_status scalar(fm_buf *out, const fm_json *v)
{
    fm_span s = fm_json_str(v);
    if (s.data && plain(s)) {
        fm_buf_append(out, s.data, s.len);
        return fm_buf_ok(out);
    }
    fm_buf json;
    fm_buf_init(&json, 0);
    fm_status rc = fm_json_write(&json, v, FM_JSON_COMPACT);
    if (rc == FM_OK && fm_json_is(v, FM_JSON_REAL))
        put_real(out, fm_buf_span(&json));
    else if (rc == FM_OK)
        put_string(out, fm_buf_span(&json));
    fm_buf_release(&json);
    return rc == FM_OK ? fm_buf_ok(out) : rc;
}

static bool block(const fm_json *v)
{
    return (fm_json_is(v, FM_JSON_ARRAY) || fm_json_is(v, FM_JSON_OBJECT)) && fm_json_count(v);
}

static void indent(fm_buf *out, int depth)
{
    for (int i = 0; i < depth; i++)
        fm_buf_str(out, "  ");
}

/* first: the beginning of the value's line is already written. */
static fm_status write(fm_buf *out, const fm_json *v, int depth, bool first)
{
    bool list = fm_json_is(v, FM_JSON_ARRAY);
    fm_status rc = FM_OK;
    if (depth > 40)
        return fm_fail(FM_ELIMIT, "nested too deep");
    for (size_t i = 0; list && i < fm_json_count(v) && rc == FM_OK; i++, first = false) {
        const fm_json *x = fm_json_at(v, i);
        if (!first)
            indent(out, depth);
        fm_buf_str(out, "- ");
        rc = block(x) ? write(out, x, depth + 1, true) : scalar(out, x);
        if (!block(x))
            fm_buf_char(out, '\n');
    }
    for (void *it = list ? NULL : fm_json_iter(v); it && rc == FM_OK;
         it = fm_json_next(v, it), first = false) {
        const fm_json *x = fm_json_iter_value(it);
        fm_json *key = fm_json_new_str(fm_json_iter_key(it));
        if (!first)
            indent(out, depth);
        rc = key ? scalar(out, key) : FM_ENOMEM;
        fm_json_free(key);
        fm_buf_str(out, block(x) ? ":\n" : ": ");
        if (rc == FM_OK && block(x))
            rc = write(out, x, depth + 1, false);
        else if (rc == FM_OK)
            rc = scalar(out, x);
        if (!block(x))
            fm_buf_char(out, '\n');
    }
    return rc == FM_OK ? fm_buf_ok(out) : rc;
}

fm_status fmv_yaml_write(fm_buf *out, const fm_json *v)
{
    return write(out, v, 0, false);
}
