/* yaml.c - writes a value tree as YAML in blocks, for people to read and edit. */
#include <string.h>

#include "testing/foreign/foreign.h"

/* Whether text needs no quotes: letters, digits, spaces, and no word of another YAML type. */
static bool plain(fm_span s)
{
    static const char *const words[] = {"null", "Null",  "NULL",  "true",  "True",
                                        "TRUE", "false", "False", "FALSE", NULL};
    const char *t = (const char *)s.data;
    bool letter = false;
    if (s.len == 0 || s.len > 100 || t[0] == ' ' || t[0] == '-' || t[s.len - 1] == ' ')
        return false;
    for (size_t i = 0; i < s.len; i++) {
        bool alpha = (t[i] >= 'a' && t[i] <= 'z') || (t[i] >= 'A' && t[i] <= 'Z');
        letter = letter || alpha;
        if (!alpha && !(t[i] >= '0' && t[i] <= '9') && !strchr(" _-/()", t[i]))
            return false;
    }
    for (size_t i = 0; words[i]; i++)
        if (fm_span_eq_str(s, words[i]))
            return false;
    return letter && !(t[0] >= '0' && t[0] <= '9');
}

static fm_status scalar(fm_buf *out, const fm_json *v)
{
    fm_span s = fm_json_str(v);
    if (s.data && plain(s)) {
        fm_buf_append(out, s.data, s.len);
        return fm_buf_ok(out);
    }
    return fm_json_write(out, v, FM_JSON_COMPACT); /* JSON's scalars are YAML's */
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
