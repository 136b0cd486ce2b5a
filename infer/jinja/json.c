/* json.c - the tojson filter as transformers defines it: Python's json.dumps with
 * ensure_ascii, indent, separators and sort_keys. */
#include "infer/jinja/jinja.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "infer/tokenizer/internal.h"

typedef struct dump {
    jj_ctx *c;
    fm_buf *out;
    bool ascii, sort;
    bool pretty;
    fm_span indent;
    fm_span item, key; /* separators */
} dump;

static void put_span(fm_buf *out, fm_span s)
{
    fm_buf_append(out, s.data, s.len);
}

static void escape_unicode(fm_buf *out, uint32_t cp)
{
    if (cp >= 0x10000)
        jj_put_hex(out, "\\u", 0xd800 + ((cp - 0x10000) >> 10), 4);
    jj_put_hex(out, "\\u", cp < 0x10000 ? cp : 0xdc00 + ((cp - 0x10000) & 0x3ff), 4);
}

static fm_status put_string(const dump *d, jj_val v)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    FM_TRY(jj_work_by(d->c, v.u.s.n, 3 * JJ_CHAR));
    fm_buf_char(d->out, '"');
    for (size_t i = 0; i < v.u.s.n;) {
        uint32_t cp;
        size_t n = fm_utf8_next((const uint8_t *)v.u.s.p + i, &cp);
        const char *hit = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
        if (hit)
            fm_buf_append(d->out, (char[]){'\\', to[hit - from]}, 2);
        else if (cp < 0x20 || (d->ascii && cp > 0x7e))
            escape_unicode(d->out, cp);
        else
            fm_buf_append(d->out, v.u.s.p + i, n);
        i += n;
    }
    fm_buf_char(d->out, '"');
    return fm_buf_ok(d->out);
}

static fm_status put_break(const dump *d, int level)
{
    if (!d->pretty)
        return FM_OK;
    fm_buf_char(d->out, '\n');
    FM_TRY(jj_work_by(d->c, (uint64_t)level, JJ_ITEM + d->indent.len));
    for (int i = 0; i < level; i++)
        put_span(d->out, d->indent);
    return FM_OK;
}

static fm_status put_scalar(const dump *d, jj_val v)
{
    if (v.type == JJ_STRING)
        return put_string(d, v);
    if (v.type == JJ_NONE)
        fm_buf_str(d->out, "null");
    else if (v.type == JJ_BOOL)
        fm_buf_str(d->out, v.u.b ? "true" : "false");
    else if (v.type == JJ_FLOAT && !isfinite(v.u.f))
        fm_buf_str(d->out, isnan(v.u.f) ? "NaN" : v.u.f > 0 ? "Infinity" : "-Infinity");
    else if (v.type == JJ_INT || v.type == JJ_FLOAT)
        return jj_to_text(d->c, d->out, v);
    else
        return jj_error(d->c, FM_EINVAL, "%s is not JSON serializable", jj_type_name(v));
    return fm_buf_ok(d->out);
}

static fm_status put_key(const dump *d, jj_val key)
{
    if (key.type == JJ_STRING)
        return put_string(d, key);
    if (key.type == JJ_TUPLE)
        return jj_error(d->c, FM_EINVAL, "a tuple cannot be a key in JSON");
    fm_buf_char(d->out, '"');
    fm_status rc = put_scalar(d, key);
    fm_buf_char(d->out, '"');
    return rc;
}

static fm_status put_value(const dump *d, jj_val v, int level);

static fm_status put_container(const dump *d, jj_val v, int level)
{
    bool dict = v.type == JJ_DICT;
    size_t n = dict ? v.u.dict->count : v.u.list->count;
    fm_status rc = FM_OK;

    fm_buf_char(d->out, dict ? '{' : '[');
    for (size_t i = 0; i < n && rc == FM_OK; i++) {
        rc = jj_work(d->c, d->item.len + d->key.len);
        if (rc == FM_OK && i > 0)
            put_span(d->out, d->item);
        FM_THEN(rc, put_break(d, level + 1));
        if (rc == FM_OK && dict) {
            rc = put_key(d, v.u.dict->p[i].key);
            put_span(d->out, d->key);
        }
        FM_THEN(rc, put_value(d, dict ? v.u.dict->p[i].value : v.u.list->v[i], level + 1));
    }
    if (rc == FM_OK && n > 0)
        rc = put_break(d, level);
    fm_buf_char(d->out, dict ? '}' : ']');
    return rc < 0 ? rc : fm_buf_ok(d->out);
}

/* Sorts the pairs by key, in Python's order; there are no equal keys. */
static fm_status sorted(const dump *d, jj_val *io)
{
    jj_val copy;
    fm_status rc = jj_dict_new(d->c, &copy);

    for (size_t i = 0; rc == FM_OK && i < io->u.dict->count; i++)
        rc = jj_dict_put(d->c, copy.u.dict, io->u.dict->p[i].key, io->u.dict->p[i].value);
    for (size_t i = 1; rc == FM_OK && i < copy.u.dict->count; i++) {
        jj_pair p = copy.u.dict->p[i];
        size_t at = i;
        for (int order = 1; at > 0; at--) {
            rc = jj_compare(d->c, &order, copy.u.dict->p[at - 1].key, p.key);
            if (rc < 0 || order <= 0)
                break;
            copy.u.dict->p[at] = copy.u.dict->p[at - 1];
        }
        copy.u.dict->p[at] = p;
    }
    *io = copy;
    return rc;
}

static fm_status put_value(const dump *d, jj_val v, int level)
{
    fm_status rc = jj_work(d->c, 2 * JJ_ITEM);

    if (rc < 0 || (v.type != JJ_DICT && v.type != JJ_LIST && v.type != JJ_TUPLE))
        return rc < 0 ? rc : put_scalar(d, v);
    if (level >= JJ_VALUE_DEPTH)
        return jj_error(d->c, FM_ELIMIT, "value nested deeper than %d", JJ_VALUE_DEPTH);
    if (v.type == JJ_DICT && d->sort)
        rc = sorted(d, &v);
    return rc < 0 ? rc : put_container(d, v, level);
}

static fm_status read_indent(dump *d, jj_val indent)
{
    static const char spaces[] = "                                                                ";

    if (indent.type == JJ_UNDEFINED || indent.type == JJ_NONE)
        return FM_OK;
    d->pretty = true;
    d->item = fm_span_str(",");
    if (indent.type == JJ_STRING && indent.u.s.n <= 64) {
        d->indent = fm_span_of(indent.u.s.p, indent.u.s.n);
        return FM_OK;
    }
    if ((indent.type != JJ_INT && indent.type != JJ_BOOL) || jj_whole(indent) > 64)
        return jj_error(d->c, FM_EINVAL, "tojson: indent must be a number up to 64 or a string");
    d->indent = fm_span_of(spaces, jj_whole(indent) > 0 ? (size_t)jj_whole(indent) : 0);
    return FM_OK;
}

static fm_status read_separators(dump *d, jj_val v)
{
    if (v.type == JJ_UNDEFINED || v.type == JJ_NONE)
        return FM_OK;
    if ((v.type != JJ_TUPLE && v.type != JJ_LIST) || v.u.list->count != 2)
        return jj_error(d->c, FM_EINVAL, "tojson: separators must be two strings");
    for (int i = 0; i < 2; i++) {
        FM_TRY(jj_need_str(d->c, v.u.list->v[i], "tojson"));
    }
    d->item = fm_span_of(v.u.list->v[0].u.s.p, v.u.list->v[0].u.s.n);
    d->key = fm_span_of(v.u.list->v[1].u.s.p, v.u.list->v[1].u.s.n);
    return FM_OK;
}

fm_status jj_tojson(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    static const char *const names[] = {"ensure_ascii", "indent", "separators", "sort_keys"};
    fm_buf b;
    dump d = {.c = c,
              .out = &b,
              .ascii = jj_truth(jj_arg(a, 0, "ensure_ascii")),
              .sort = jj_truth(jj_arg(a, 3, "sort_keys")),
              .item = fm_span_str(", "),
              .key = fm_span_str(": ")};
    FM_TRY(jj_args_check(c, a, "tojson", names, 4));

    FM_TRY(read_indent(&d, jj_arg(a, 1, "indent")));
    FM_TRY(read_separators(&d, jj_arg(a, 2, "separators")));
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    fm_status rc = put_value(&d, in, 0);
    return jj_buf_str(c, out, &b, rc);
}
