/* attr.c - attributes and items of values. */
#include "infer/jinja/jinja.h"

#include <string.h>

static fm_status loop_attr(jj_ctx *c, jj_val *out, const jj_loop *l, const char *name)
{
    size_t n = l->items->count, i = l->index;

    if (strcmp(name, "index") == 0)
        *out = jj_int((int64_t)i + 1);
    else if (strcmp(name, "index0") == 0)
        *out = jj_int((int64_t)i);
    else if (strcmp(name, "revindex") == 0)
        *out = jj_int((int64_t)(n - i));
    else if (strcmp(name, "revindex0") == 0)
        *out = jj_int((int64_t)(n - i - 1));
    else if (strcmp(name, "first") == 0)
        *out = jj_bool(i == 0);
    else if (strcmp(name, "last") == 0)
        *out = jj_bool(i + 1 == n);
    else if (strcmp(name, "length") == 0)
        *out = jj_int((int64_t)n);
    else if (strcmp(name, "previtem") == 0)
        *out = i > 0 ? l->items->v[i - 1] : jj_undefined("loop.previtem");
    else if (strcmp(name, "nextitem") == 0)
        *out = i + 1 < n ? l->items->v[i + 1] : jj_undefined("loop.nextitem");
    else if (strcmp(name, "depth") == 0 || strcmp(name, "depth0") == 0 ||
             strcmp(name, "cycle") == 0 || strcmp(name, "changed") == 0)
        return jj_error(c, FM_EUNSUPPORTED, "loop.%s is not implemented", name);
    return FM_OK;
}

bool jj_is_method(jj_type type, const char *name)
{
    static const char *const dict[] = {"get",   "items",   "keys",    "values",
                                       "pop",   "update",  "copy",    "setdefault",
                                       "clear", "popitem", "fromkeys"};

    for (size_t i = 0; type == JJ_DICT && i < FM_ARRAY_LEN(dict); i++)
        if (strcmp(dict[i], name) == 0)
            return true;
    return false;
}

fm_status jj_no_attr(jj_ctx *c, jj_val v, const char *name)
{
    return jj_error(c, FM_EINVAL, "'%s' is undefined, so it has no '%s'",
                    v.u.s.p ? v.u.s.p : "a value", name);
}

fm_status jj_get_attr(jj_ctx *c, jj_val *out, jj_val v, const char *name)
{
    *out = jj_undefined(name);
    if (v.type == JJ_UNDEFINED)
        return jj_no_attr(c, v, name);
    if (v.type == JJ_STRING && jj_is_str_method(name))
        return jj_error(c, FM_EUNSUPPORTED, "method '%s' is used without a call", name);
    if (v.type == JJ_LOOP)
        return loop_attr(c, out, v.u.loop, name);
    if (v.type == JJ_MACRO)
        return jj_error(c, FM_EUNSUPPORTED, "a macro's '%s' is not implemented", name);
    if (v.type != JJ_DICT && v.type != JJ_NAMESPACE)
        return FM_OK;
    if (jj_is_method(v.type, name))
        return jj_error(c, FM_EUNSUPPORTED, "method '%s' is used without a call", name);
    const jj_val *hit;
    FM_TRY(jj_dict_get(c, &hit, v.u.dict, name, strlen(name)));
    if (hit)
        *out = *hit;
    return FM_OK;
}

static bool index_of(jj_val key, size_t count, size_t *out)
{
    int64_t i = key.type == JJ_BOOL ? key.u.b : key.u.i;

    if ((key.type != JJ_INT && key.type != JJ_BOOL) || i >= (int64_t)count || i < -(int64_t)count)
        return false;
    *out = (size_t)(i < 0 ? i + (int64_t)count : i);
    return true;
}

fm_status jj_get_item(jj_ctx *c, jj_val *out, jj_val v, jj_val key)
{
    size_t i;
    FM_TRY(jj_work(c, JJ_ITEM + (v.type == JJ_STRING ? 3 * v.u.s.n : 0)));
    *out = jj_undefined(key.type == JJ_STRING ? key.u.s.p : NULL);
    if (v.type == JJ_UNDEFINED)
        return jj_no_attr(c, v, key.type == JJ_STRING ? key.u.s.p : "item");
    if (jj_is_seq(v) && (key.type == JJ_INT || key.type == JJ_BOOL)) {
        if (index_of(key, v.u.list->count, &i))
            *out = v.u.list->v[i];
    } else if (v.type == JJ_STRING && key.type == JJ_STRING) {
        return FM_OK;
    } else if (v.type == JJ_STRING) {
        if (index_of(key, jj_chars(v), &i)) {
            size_t b = jj_char_offset(v, i), e = jj_char_offset(v, i + 1);
            *out = jj_str(v.u.s.p + b, e - b);
        }
    } else if (v.type == JJ_DICT) {
        bool hit = false;
        for (i = 0; !hit && i < v.u.dict->count; i++)
            FM_TRY(jj_equal(c, &hit, v.u.dict->p[i].key, key));
        if (hit)
            *out = v.u.dict->p[i - 1].value;
    } else if (key.type == JJ_STRING) {
        jj_val name = key; /* a slice of a string does not end in NUL */
        FM_TRY(jj_str_copy(c, &name, key.u.s.p, key.u.s.n));
        return jj_get_attr(c, out, v, name.u.s.p);
    }
    return FM_OK;
}

fm_status jj_attr_path(jj_ctx *c, jj_val *out, jj_val v, jj_val path)
{
    *out = v;
    if (path.type == JJ_INT)
        return jj_get_item(c, out, v, path);
    FM_TRY(jj_need_str(c, path, "attribute"));
    FM_TRY(jj_work_by(c, path.u.s.n, 2));
    for (size_t i = 0; i <= path.u.s.n;) {
        const char *dot = memchr(path.u.s.p + i, '.', path.u.s.n - i);
        size_t n = dot ? (size_t)(dot - path.u.s.p) - i : path.u.s.n - i;
        jj_val key = jj_str(path.u.s.p + i, n), in = *out;
        bool digits = n > 0 && n < 10;
        int64_t number = 0;
        for (size_t k = 0; k < n && digits; k++) {
            digits = key.u.s.p[k] >= '0' && key.u.s.p[k] <= '9';
            number = number * 10 + (key.u.s.p[k] - '0');
        }
        FM_TRY(jj_work(c, 2 * JJ_NODE));
        FM_TRY(jj_get_item(c, out, in, digits ? jj_int(number) : key));
        i += n + 1;
    }
    return FM_OK;
}
