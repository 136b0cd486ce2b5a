/* jinja_filter.c - filters, in a table that the parser checks names against. */
#include "infer/jinja.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef fm_status (*filter_fn)(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a);

#define NAMES(...) ((const char *const[]){__VA_ARGS__})

static fm_status no_args(jj_ctx *c, const jj_args *a, const char *what)
{
    return jj_args_check(c, a, what, NULL, 0);
}

/* Filters of text accept any value and work on its str(). */
static fm_status as_text(jj_ctx *c, jj_val *out, jj_val in)
{
    fm_buf b;

    if (in.type == JJ_STRING) {
        *out = in;
        return FM_OK;
    }
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    fm_status rc = jj_to_text(c, &b, in);
    if (rc == FM_OK)
        return jj_buf_str(c, out, &b);
    fm_buf_release(&b);
    return rc;
}

/* ---- text ---- */

static fm_status f_trim(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s;
    fm_status rc = jj_args_check(c, a, "trim", NAMES("chars"), 1);

    if (rc == FM_OK)
        rc = as_text(c, &s, in);
    return rc < 0 ? rc : jj_trim(c, out, s, jj_arg(a, 0, "chars"), true, true);
}

static fm_status change_case(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a, bool upper)
{
    jj_val s;
    fm_buf b;
    fm_status rc = no_args(c, a, upper ? "upper" : "lower");

    if (rc == FM_OK)
        rc = as_text(c, &s, in);
    if (rc < 0)
        return rc;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    if (upper)
        jj_upper(&b, s);
    else
        jj_lower(&b, s);
    return jj_buf_str(c, out, &b);
}

static fm_status f_upper(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return change_case(c, out, in, a, true);
}

static fm_status f_lower(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return change_case(c, out, in, a, false);
}

static fm_status f_capitalize(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s;
    fm_status rc = no_args(c, a, "capitalize");

    if (rc == FM_OK)
        rc = as_text(c, &s, in);
    return rc < 0 ? rc : jj_title(c, out, s, false);
}

/* Unlike str.title, the filter starts words behind blanks and brackets only. */
static fm_status f_title(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s;
    fm_buf b;
    bool start = true;
    fm_status rc = no_args(c, a, "title");

    if (rc == FM_OK)
        rc = as_text(c, &s, in);
    if (rc < 0)
        return rc;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; i < s.u.s.n;) {
        size_t n = 1;
        while (i + n < s.u.s.n && (s.u.s.p[i + n] & 0xc0) == 0x80)
            n++;
        if (start)
            jj_upper(&b, jj_str(s.u.s.p + i, n));
        else
            jj_lower(&b, jj_str(s.u.s.p + i, n));
        start = s.u.s.p[i] && strchr("-({[< \t\r\n\v\f", s.u.s.p[i]);
        i += n;
    }
    return jj_buf_str(c, out, &b);
}

static fm_status f_replace(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s;
    fm_status rc = jj_args_check(c, a, "replace", NAMES("old", "new", "count"), 3);

    if (rc == FM_OK)
        rc = as_text(c, &s, in);
    return rc < 0 ? rc
                  : jj_replace(c, out, s, jj_arg(a, 0, "old"), jj_arg(a, 1, "new"),
                               jj_arg(a, 2, "count"));
}

static fm_status f_string(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    fm_status rc = no_args(c, a, "string");

    return rc < 0 ? rc : as_text(c, out, in);
}

static fm_status f_tojson(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val indent = jj_arg(a, 1, "indent"), ascii = jj_arg(a, 0, "ensure_ascii");
    fm_buf b;
    fm_status rc = jj_args_check(c, a, "tojson", NAMES("ensure_ascii", "indent"), 2);

    if (rc < 0)
        return rc;
    if (jj_truth(ascii))
        return jj_error(c, FM_EUNSUPPORTED, "tojson with ensure_ascii is not implemented");
    if (indent.type == JJ_INT && (indent.u.i < 0 || indent.u.i > 64))
        return jj_error(c, FM_EINVAL, "tojson: indent must be between 0 and 64");
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    rc = jj_tojson(c, &b, in, indent.type == JJ_INT ? (int)indent.u.i : -1, 0);
    if (rc == FM_OK)
        return jj_buf_str(c, out, &b);
    fm_buf_release(&b);
    return rc;
}

static fm_status f_indent(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val s, width = jj_arg(a, 0, "width");
    bool first = jj_truth(jj_arg(a, 1, "first")), blank = jj_truth(jj_arg(a, 2, "blank"));
    fm_buf b;
    fm_status rc = jj_args_check(c, a, "indent", NAMES("width", "first", "blank"), 3);
    jj_val pad =
        jj_str("                                                                ",
               width.type == JJ_INT && width.u.i >= 0 && width.u.i <= 64 ? (size_t)width.u.i : 4);

    if (rc == FM_OK)
        rc = as_text(c, &s, in);
    if (rc < 0)
        return rc;
    if (width.type == JJ_STRING)
        pad = width;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    bool line_start = first;
    for (size_t i = 0; i < s.u.s.n; i++) {
        if (line_start && (blank || s.u.s.p[i] != '\n' || i == 0))
            fm_buf_append(&b, pad.u.s.p, pad.u.s.n);
        fm_buf_char(&b, s.u.s.p[i]);
        line_start = s.u.s.p[i] == '\n';
    }
    return jj_buf_str(c, out, &b);
}

static fm_status f_safe(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return f_string(c, out, in, a); /* nothing is escaped here */
}

/* ---- numbers ---- */

/* A decimal number as Python's int or, failing that, float reads it; false: neither. */
static fm_status text_number(jj_ctx *c, jj_val in, bool *found, bool *is_int, int64_t *i, double *d)
{
    jj_val t = in;
    char *end;
    fm_status rc = jj_trim(c, &t, in, jj_none(), true, true);

    *found = *is_int = false;
    if (rc == FM_OK)
        rc = jj_str_copy(c, &t, t.u.s.p, t.u.s.n);
    if (rc < 0 || t.u.s.n == 0 || strpbrk(t.u.s.p, "xXpP"))
        return rc;
    *i = strtoll(t.u.s.p, &end, 10);
    *is_int = *end == 0 && t.u.s.n < 19;
    *d = strtod(t.u.s.p, &end);
    *found = *end == 0;
    return FM_OK;
}

static fm_status f_int(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val dflt = jj_arg(a, 0, "default");
    bool found = in.type == JJ_FLOAT, is_int = in.type == JJ_BOOL || in.type == JJ_INT;
    int64_t i = in.type == JJ_BOOL ? in.u.b : in.u.i;
    double d = in.type == JJ_FLOAT ? in.u.f : 0.0;
    fm_status rc = jj_args_check(c, a, "int", NAMES("default"), 1);

    if (rc == FM_OK && in.type == JJ_STRING)
        rc = text_number(c, in, &found, &is_int, &i, &d);
    *out = dflt.type == JJ_UNDEFINED ? jj_int(0) : dflt;
    if (is_int)
        *out = jj_int(i);
    else if (found && fabs(d) < 9e18)
        *out = jj_int((int64_t)d);
    return rc;
}

static fm_status f_float(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val dflt = jj_arg(a, 0, "default");
    bool found = jj_is_number(in), is_int;
    int64_t i;
    double d = found ? jj_number(in) : 0.0;
    fm_status rc = jj_args_check(c, a, "float", NAMES("default"), 1);

    if (rc == FM_OK && in.type == JJ_STRING)
        rc = text_number(c, in, &found, &is_int, &i, &d);
    *out = found || dflt.type == JJ_UNDEFINED ? jj_float(found ? d : 0.0) : dflt;
    return rc;
}

static fm_status f_abs(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    fm_status rc = no_args(c, a, "abs");

    if (rc == FM_OK && !jj_is_number(in))
        return jj_error(c, FM_EINVAL, "abs of %s", jj_type_name(in));
    if (in.type == JJ_FLOAT)
        *out = jj_float(fabs(in.u.f));
    else if (in.type == JJ_BOOL)
        *out = jj_int(in.u.b);
    else if (in.u.i == INT64_MIN)
        return jj_error(c, FM_ELIMIT, "integer overflow");
    else
        *out = jj_int(in.u.i < 0 ? -in.u.i : in.u.i);
    return rc;
}

/* Half to even on the exact binary value, as Python's round. */
static fm_status f_round(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val precision = jj_arg(a, 0, "precision"), method = jj_arg(a, 1, "method");
    int64_t p = precision.type == JJ_INT ? precision.u.i : 0;
    fm_status rc = jj_args_check(c, a, "round", NAMES("precision", "method"), 2);
    fm_buf b;

    if (rc < 0)
        return rc;
    if (!jj_is_number(in) || p < 0 || p > 15)
        return jj_error(c, FM_EINVAL, "round needs a number and a precision from 0 to 15");
    bool common = method.type != JJ_STRING || strcmp(method.u.s.p, "common") == 0;
    if (!common) {
        double scale = pow(10.0, (double)p), v = jj_number(in) * scale;
        bool ceil_it = strcmp(method.u.s.p, "ceil") == 0;
        *out = jj_float((ceil_it ? ceil(v) : floor(v)) / scale);
        return FM_OK;
    }
    if (in.type != JJ_FLOAT) {
        *out = in;
        return FM_OK;
    }
    fm_buf_init(&b, 512);
    fm_buf_printf(&b, "%.*f", (int)p, in.u.f);
    *out = jj_float(strtod(fm_buf_cstr(&b), NULL));
    fm_buf_release(&b);
    return FM_OK;
}

/* ---- anything ---- */

static fm_status f_default(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val dflt = jj_arg(a, 0, "default_value");
    bool boolean = jj_truth(jj_arg(a, 1, "boolean"));
    fm_status rc = jj_args_check(c, a, "default", NAMES("default_value", "boolean"), 2);

    if (dflt.type == JJ_UNDEFINED && a->count == 0)
        dflt = jj_str("", 0);
    *out = in.type == JJ_UNDEFINED || (boolean && !jj_truth(in)) ? dflt : in;
    return rc;
}

static fm_status f_length(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    fm_status rc = no_args(c, a, "length");

    if (rc < 0)
        return rc;
    if (in.type == JJ_STRING)
        *out = jj_int((int64_t)jj_chars(in));
    else if (in.type == JJ_LIST || in.type == JJ_TUPLE)
        *out = jj_int((int64_t)in.u.list->count);
    else if (in.type == JJ_DICT)
        *out = jj_int((int64_t)in.u.dict->count);
    else if (in.type == JJ_UNDEFINED)
        *out = jj_int(0);
    else
        return jj_error(c, FM_EINVAL, "length of %s", jj_type_name(in));
    return FM_OK;
}

static fm_status f_items(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_args none = {.count = 0};
    fm_status rc = no_args(c, a, "items");

    if (rc < 0)
        return rc;
    if (in.type == JJ_UNDEFINED)
        return jj_list_new(c, out);
    if (in.type != JJ_DICT)
        return jj_error(c, FM_EINVAL, "items of %s", jj_type_name(in));
    return jj_method(c, out, in, "items", &none);
}

/* ---- lists ---- */

static fm_status f_list(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val v;
    fm_status rc = no_args(c, a, "list");

    if (rc == FM_OK)
        rc = jj_as_list(c, &v, in);
    if (rc == FM_OK)
        rc = jj_list_new(c, out);
    for (size_t i = 0; rc == FM_OK && i < v.u.list->count; i++)
        rc = jj_list_push(c, out->u.list, v.u.list->v[i]);
    return rc;
}

static fm_status end_of(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a, bool last)
{
    jj_val v;
    fm_status rc = no_args(c, a, last ? "last" : "first");

    if (rc == FM_OK)
        rc = jj_as_list(c, &v, in);
    if (rc < 0)
        return rc;
    size_t n = v.u.list->count;
    *out = n == 0 ? jj_undefined("an item of an empty list") : v.u.list->v[last ? n - 1 : 0];
    return FM_OK;
}

static fm_status f_first(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return end_of(c, out, in, a, false);
}

static fm_status f_last(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return end_of(c, out, in, a, true);
}

static fm_status f_reverse(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val v;
    fm_buf b;
    fm_status rc = no_args(c, a, "reverse");

    if (rc == FM_OK)
        rc = jj_as_list(c, &v, in);
    if (rc == FM_OK)
        rc = jj_list_new(c, out);
    for (size_t i = 0; rc == FM_OK && i < v.u.list->count; i++)
        rc = jj_list_push(c, out->u.list, v.u.list->v[v.u.list->count - 1 - i]);
    if (rc < 0 || in.type != JJ_STRING)
        return rc;
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; i < out->u.list->count; i++)
        fm_buf_append(&b, out->u.list->v[i].u.s.p, out->u.list->v[i].u.s.n);
    return jj_buf_str(c, out, &b);
}

static fm_status f_join(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val list, sep = jj_arg(a, 0, "d"), attr = jj_arg(a, 1, "attribute");
    fm_buf b;
    fm_status rc = jj_args_check(c, a, "join", NAMES("d", "attribute"), 2);

    if (rc == FM_OK)
        rc = jj_as_list(c, &list, in);
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; rc == FM_OK && i < list.u.list->count; i++) {
        jj_val v = list.u.list->v[i];
        if (i > 0 && sep.type != JJ_UNDEFINED)
            rc = jj_to_text(c, &b, sep);
        if (rc == FM_OK && attr.type != JJ_UNDEFINED)
            rc = jj_attr_path(c, &v, list.u.list->v[i], attr);
        if (rc == FM_OK)
            rc = jj_to_text(c, &b, v);
    }
    if (rc == FM_OK)
        return jj_buf_str(c, out, &b);
    fm_buf_release(&b);
    return rc;
}

static jj_args tail(const jj_args *a, size_t n)
{
    jj_args t = {.pos = a->count > n ? a->pos + n : NULL, .count = a->count - n};

    return t;
}

static fm_status f_map(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val list, attr = jj_arg(a, 99, "attribute"), dflt = jj_arg(a, 99, "default");
    int fn = -1;
    fm_status rc = jj_as_list(c, &list, in);

    if (attr.type == JJ_UNDEFINED) {
        if (a->count == 0 || a->pos[0].type != JJ_STRING || a->kw_count > 0)
            return jj_error(c, FM_EINVAL, "map needs attribute= or the name of a filter");
        fn = jj_filter_find(a->pos[0].u.s.p);
        if (fn < 0)
            return jj_error(c, FM_EUNSUPPORTED, "filter '%s' is not implemented", a->pos[0].u.s.p);
    }
    if (rc == FM_OK)
        rc = jj_list_new(c, out);
    for (size_t i = 0; rc == FM_OK && i < list.u.list->count; i++) {
        jj_args rest = tail(a, fn < 0 ? 0 : 1);
        jj_val v;
        if (fn < 0) {
            rc = jj_attr_path(c, &v, list.u.list->v[i], attr);
            if (rc == FM_OK && v.type == JJ_UNDEFINED && dflt.type != JJ_UNDEFINED)
                v = dflt;
        } else {
            rc = jj_filter_run(c, &v, fn, list.u.list->v[i], &rest);
        }
        if (rc == FM_OK)
            rc = jj_list_push(c, out->u.list, v);
    }
    return rc;
}

/* select, reject (by_attr false), selectattr, rejectattr */
static fm_status pick(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a, bool by_attr, bool want)
{
    jj_val list;
    size_t at = by_attr ? 1 : 0;
    int fn = -1;
    fm_status rc = jj_as_list(c, &list, in);

    if (rc == FM_OK && (a->kw_count > 0 || a->count < at))
        return jj_error(c, FM_EINVAL, "select or reject: bad arguments");
    if (rc == FM_OK && a->count > at) {
        if (a->pos[at].type != JJ_STRING || (fn = jj_test_find(a->pos[at].u.s.p)) < 0)
            return jj_error(c, FM_EUNSUPPORTED, "select or reject: test is not implemented");
    }
    jj_args rest = tail(a, FM_MIN(at + 1, a->count));
    if (rc == FM_OK)
        rc = jj_list_new(c, out);
    for (size_t i = 0; rc == FM_OK && i < list.u.list->count; i++) {
        jj_val v = list.u.list->v[i];
        if (by_attr)
            rc = jj_attr_path(c, &v, list.u.list->v[i], a->pos[0]);
        bool hit = jj_truth(v);
        if (rc == FM_OK && fn >= 0)
            rc = jj_test_run(c, &hit, fn, v, &rest);
        if (rc == FM_OK && hit == want)
            rc = jj_list_push(c, out->u.list, list.u.list->v[i]);
    }
    return rc;
}

static fm_status f_select(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return pick(c, out, in, a, false, true);
}

static fm_status f_reject(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return pick(c, out, in, a, false, false);
}

static fm_status f_selectattr(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return pick(c, out, in, a, true, true);
}

static fm_status f_rejectattr(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return pick(c, out, in, a, true, false);
}

/* Stable insertion by (key, order); every comparison counts as a step, so it is bounded. */
static fm_status sort_by(jj_ctx *c, jj_list *list, jj_list *keys, bool fold, bool reverse)
{
    for (size_t i = 1; i < list->count; i++) {
        jj_val v = list->v[i], k = keys->v[i];
        size_t at = i;
        for (; at > 0; at--) {
            int order;
            fm_status rc = jj_compare(c, &order, keys->v[at - 1], k, fold);
            if (rc < 0)
                return rc;
            if (reverse ? order >= 0 : order <= 0)
                break;
            list->v[at] = list->v[at - 1];
            keys->v[at] = keys->v[at - 1];
        }
        list->v[at] = v;
        keys->v[at] = k;
    }
    return FM_OK;
}

/* The keys that sort, unique, min, max, sum look at: items or one attribute of them. */
static fm_status keys_of(jj_ctx *c, jj_val *out, jj_val list, jj_val attr)
{
    fm_status rc = jj_list_new(c, out);

    for (size_t i = 0; rc == FM_OK && i < list.u.list->count; i++) {
        jj_val v = list.u.list->v[i];
        if (attr.type != JJ_UNDEFINED && attr.type != JJ_NONE)
            rc = jj_attr_path(c, &v, list.u.list->v[i], attr);
        if (rc == FM_OK)
            rc = jj_list_push(c, out->u.list, v);
    }
    return rc;
}

static fm_status f_sort(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_args none = {.count = 0};
    jj_val keys;
    fm_status rc = jj_args_check(c, a, "sort", NAMES("reverse", "case_sensitive", "attribute"), 3);

    if (rc == FM_OK)
        rc = f_list(c, out, in, &none);
    if (rc == FM_OK)
        rc = keys_of(c, &keys, *out, jj_arg(a, 2, "attribute"));
    return rc < 0 ? rc
                  : sort_by(c, out->u.list, keys.u.list, !jj_truth(jj_arg(a, 1, "case_sensitive")),
                            jj_truth(jj_arg(a, 0, "reverse")));
}

static fm_status f_dictsort(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_args none = {.count = 0};
    jj_val keys, by = jj_arg(a, 1, "by");
    fm_status rc = jj_args_check(c, a, "dictsort", NAMES("case_sensitive", "by", "reverse"), 3);

    if (rc == FM_OK)
        rc = f_items(c, out, in, &none);
    bool value = by.type == JJ_STRING && strcmp(by.u.s.p, "value") == 0;
    if (rc == FM_OK)
        rc = keys_of(c, &keys, *out, jj_int(value ? 1 : 0));
    return rc < 0 ? rc
                  : sort_by(c, out->u.list, keys.u.list, !jj_truth(jj_arg(a, 0, "case_sensitive")),
                            jj_truth(jj_arg(a, 2, "reverse")));
}

static fm_status f_unique(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val list, keys, seen;
    bool fold = !jj_truth(jj_arg(a, 0, "case_sensitive"));
    fm_status rc = jj_args_check(c, a, "unique", NAMES("case_sensitive", "attribute"), 2);

    if (rc == FM_OK)
        rc = jj_as_list(c, &list, in);
    if (rc == FM_OK)
        rc = keys_of(c, &keys, list, jj_arg(a, 1, "attribute"));
    if (rc == FM_OK)
        rc = jj_list_new(c, &seen);
    if (rc == FM_OK)
        rc = jj_list_new(c, out);
    for (size_t i = 0; rc == FM_OK && i < list.u.list->count; i++) {
        jj_val k = keys.u.list->v[i];
        bool dup = false;
        for (size_t s = 0; rc == FM_OK && s < seen.u.list->count && !dup; s++) {
            int order = 1;
            jj_val other = seen.u.list->v[s];
            if (fold && k.type == JJ_STRING && other.type == JJ_STRING)
                rc = jj_compare(c, &order, k, other, true);
            else
                rc = jj_step(c);
            dup = order == 0 || jj_equal(k, other, 0);
        }
        if (rc < 0 || dup)
            continue;
        rc = jj_list_push(c, seen.u.list, k);
        if (rc == FM_OK)
            rc = jj_list_push(c, out->u.list, list.u.list->v[i]);
    }
    return rc;
}

static fm_status extreme(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a, int want)
{
    jj_val list, keys;
    size_t best = 0;
    fm_status rc = jj_args_check(c, a, "min or max", NAMES("case_sensitive", "attribute"), 2);

    if (rc == FM_OK)
        rc = jj_as_list(c, &list, in);
    if (rc == FM_OK)
        rc = keys_of(c, &keys, list, jj_arg(a, 1, "attribute"));
    if (rc < 0)
        return rc;
    *out = jj_undefined("an item of an empty list");
    for (size_t i = 1; i < list.u.list->count; i++) {
        int order;
        rc = jj_compare(c, &order, keys.u.list->v[i], keys.u.list->v[best],
                        !jj_truth(jj_arg(a, 0, "case_sensitive")));
        if (rc < 0)
            return rc;
        if (order * want > 0)
            best = i;
    }
    if (list.u.list->count > 0)
        *out = list.u.list->v[best];
    return FM_OK;
}

static fm_status f_min(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return extreme(c, out, in, a, -1);
}

static fm_status f_max(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    return extreme(c, out, in, a, 1);
}

static fm_status f_sum(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a)
{
    jj_val list, keys, start = jj_arg(a, 1, "start");
    double real = jj_is_number(start) ? jj_number(start) : 0.0;
    int64_t whole = start.type == JJ_INT ? start.u.i : 0;
    bool is_real = start.type == JJ_FLOAT;
    fm_status rc = jj_args_check(c, a, "sum", NAMES("attribute", "start"), 2);

    if (rc == FM_OK)
        rc = jj_as_list(c, &list, in);
    if (rc == FM_OK)
        rc = keys_of(c, &keys, list, jj_arg(a, 0, "attribute"));
    for (size_t i = 0; rc == FM_OK && i < keys.u.list->count; i++) {
        jj_val v = keys.u.list->v[i];
        if (!jj_is_number(v))
            return jj_error(c, FM_EINVAL, "sum of %s", jj_type_name(v));
        is_real = is_real || v.type == JJ_FLOAT;
        real += jj_number(v);
        if (v.type != JJ_FLOAT &&
            __builtin_add_overflow(whole, v.type == JJ_BOOL ? v.u.b : v.u.i, &whole))
            return jj_error(c, FM_ELIMIT, "integer overflow");
    }
    *out = is_real ? jj_float(real) : jj_int(whole);
    return rc;
}

static const struct {
    const char *name;
    filter_fn fn;
} filters[] = {{"trim", f_trim},
               {"length", f_length},
               {"count", f_length},
               {"upper", f_upper},
               {"lower", f_lower},
               {"tojson", f_tojson},
               {"join", f_join},
               {"default", f_default},
               {"d", f_default},
               {"first", f_first},
               {"last", f_last},
               {"list", f_list},
               {"string", f_string},
               {"int", f_int},
               {"float", f_float},
               {"map", f_map},
               {"select", f_select},
               {"selectattr", f_selectattr},
               {"reject", f_reject},
               {"rejectattr", f_rejectattr},
               {"replace", f_replace},
               {"items", f_items},
               {"dictsort", f_dictsort},
               {"unique", f_unique},
               {"indent", f_indent},
               {"safe", f_safe},
               {"capitalize", f_capitalize},
               {"title", f_title},
               {"reverse", f_reverse},
               {"sort", f_sort},
               {"sum", f_sum},
               {"min", f_min},
               {"max", f_max},
               {"abs", f_abs},
               {"round", f_round}};

int jj_filter_find(const char *name)
{
    for (int i = 0; i < (int)FM_ARRAY_LEN(filters); i++)
        if (strcmp(filters[i].name, name) == 0)
            return i;
    return -1;
}

fm_status jj_filter_run(jj_ctx *c, jj_val *out, int fn, jj_val in, const jj_args *a)
{
    fm_status rc = jj_step(c);

    *out = jj_none();
    return rc < 0 ? rc : filters[fn].fn(c, out, in, a);
}
