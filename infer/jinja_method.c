/* jinja_method.c - attributes, items, methods of strings and mappings, and global functions.
 * Methods that would change a list or a mapping are refused, as in transformers' sandbox. */
#include "infer/jinja.h"

#include <string.h>

#include "infer/tok_internal.h"

jj_val jj_arg(const jj_args *a, size_t index, const char *name)
{
    if (index < a->count)
        return a->pos[index];
    for (size_t i = 0; name && i < a->kw_count; i++)
        if (strcmp(a->kw[i], name) == 0)
            return a->kw_value[i];
    return jj_undefined(NULL);
}

fm_status jj_args_check(jj_ctx *c, const jj_args *a, const char *what, const char *const *names,
                        size_t n)
{
    if (a->count > n)
        return jj_error(c, FM_EINVAL, "%s takes at most %zu arguments", what, n);
    for (size_t i = 0; i < a->kw_count; i++) {
        size_t k = 0;
        while (k < n && strcmp(names[k], a->kw[i]) != 0)
            k++;
        if (k == n || k < a->count)
            return jj_error(c, FM_EUNSUPPORTED, "%s: argument '%s' is not implemented", what,
                            a->kw[i]);
    }
    return FM_OK;
}

fm_status jj_need_str(jj_ctx *c, jj_val v, const char *what)
{
    if (v.type == JJ_STRING)
        return FM_OK;
    if (v.type == JJ_UNDEFINED && v.u.s.p)
        return jj_error(c, FM_EINVAL, "'%s' is undefined", v.u.s.p);
    return jj_error(c, FM_EINVAL, "%s needs a string, not %s", what, jj_type_name(v));
}

/* ---- attributes and items ---- */

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
    else if (strcmp(name, "depth") == 0 || strcmp(name, "depth0") == 0)
        *out = jj_int(name[5] ? 0 : 1); /* counts recursive loops only */
    else if (strcmp(name, "previtem") == 0)
        *out = i > 0 ? l->items->v[i - 1] : jj_undefined("loop.previtem");
    else if (strcmp(name, "nextitem") == 0)
        *out = i + 1 < n ? l->items->v[i + 1] : jj_undefined("loop.nextitem");
    else
        return jj_error(c, FM_EUNSUPPORTED, "loop.%s is not implemented", name);
    return FM_OK;
}

static bool is_method(jj_type type, const char *name)
{
    static const char *const dict[] = {"get",   "items",   "keys",    "values",
                                       "pop",   "update",  "copy",    "setdefault",
                                       "clear", "popitem", "fromkeys"};

    for (size_t i = 0; type == JJ_DICT && i < FM_ARRAY_LEN(dict); i++)
        if (strcmp(dict[i], name) == 0)
            return true;
    return false;
}

static fm_status undefined_base(jj_ctx *c, jj_val v, const char *name)
{
    return jj_error(c, FM_EINVAL, "'%s' is undefined, so it has no '%s'",
                    v.u.s.p ? v.u.s.p : "a value", name);
}

fm_status jj_get_attr(jj_ctx *c, jj_val *out, jj_val v, const char *name)
{
    *out = jj_undefined(name);
    if (v.type == JJ_UNDEFINED)
        return undefined_base(c, v, name);
    if (v.type == JJ_LOOP)
        return loop_attr(c, out, v.u.loop, name);
    if (v.type != JJ_DICT && v.type != JJ_NAMESPACE)
        return FM_OK;
    if (is_method(v.type, name))
        return jj_error(c, FM_EUNSUPPORTED, "method '%s' is used without a call", name);
    const jj_val *hit = jj_dict_get(v.u.dict, name, strlen(name));
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

    *out = jj_undefined(key.type == JJ_STRING ? key.u.s.p : NULL);
    if (v.type == JJ_UNDEFINED)
        return undefined_base(c, v, key.type == JJ_STRING ? key.u.s.p : "item");
    if (v.type == JJ_LIST || v.type == JJ_TUPLE) {
        if (index_of(key, v.u.list->count, &i))
            *out = v.u.list->v[i];
    } else if (v.type == JJ_STRING) {
        if (index_of(key, jj_chars(v), &i)) {
            size_t b = jj_char_offset(v, i), e = jj_char_offset(v, i + 1);
            *out = jj_str(v.u.s.p + b, e - b);
        }
    } else if (v.type == JJ_DICT) {
        for (i = 0; i < v.u.dict->count; i++) {
            if (!jj_equal(v.u.dict->p[i].key, key, 0))
                continue;
            *out = v.u.dict->p[i].value;
            break;
        }
    } else if (key.type == JJ_STRING) {
        jj_val name = key; /* a slice of a string does not end in NUL */
        fm_status rc = jj_str_copy(c, &name, key.u.s.p, key.u.s.n);
        return rc < 0 ? rc : jj_get_attr(c, out, v, name.u.s.p);
    }
    return FM_OK;
}

fm_status jj_attr_path(jj_ctx *c, jj_val *out, jj_val v, jj_val path)
{
    fm_status rc = FM_OK;

    *out = v;
    if (path.type == JJ_INT)
        return jj_get_item(c, out, v, path);
    rc = jj_need_str(c, path, "attribute");
    for (size_t i = 0; rc == FM_OK && i <= path.u.s.n;) {
        const char *dot = memchr(path.u.s.p + i, '.', path.u.s.n - i);
        size_t n = dot ? (size_t)(dot - path.u.s.p) - i : path.u.s.n - i;
        jj_val key = jj_str(path.u.s.p + i, n), in = *out;
        bool digits = n > 0 && n < 10;
        int64_t number = 0;
        for (size_t k = 0; k < n && digits; k++) {
            digits = key.u.s.p[k] >= '0' && key.u.s.p[k] <= '9';
            number = number * 10 + (key.u.s.p[k] - '0');
        }
        rc = jj_get_item(c, out, in, digits ? jj_int(number) : key);
        i += n + 1;
    }
    return rc;
}

/* ---- strings ---- */

static bool in_set(jj_val chars, uint32_t cp)
{
    const uint8_t *p = (const uint8_t *)chars.u.s.p;

    if (chars.type != JJ_STRING) /* Python also strips the separators U+001C to U+001F */
        return fmi_is_space(cp) || (cp >= 0x1c && cp <= 0x1f);
    for (size_t i = 0; i < chars.u.s.n;) {
        uint32_t have;
        i += fmi_utf8_next(p + i, &have);
        if (have == cp)
            return true;
    }
    return false;
}

fm_status jj_trim(jj_ctx *c, jj_val *out, jj_val s, jj_val chars, bool left, bool right)
{
    const uint8_t *p = (const uint8_t *)s.u.s.p;
    size_t b = 0, e = s.u.s.n;
    uint32_t cp;

    if (chars.type != JJ_STRING && chars.type != JJ_UNDEFINED && chars.type != JJ_NONE)
        return jj_error(c, FM_EINVAL, "strip needs a string, not %s", jj_type_name(chars));
    while (left && b < e) {
        size_t n = fmi_utf8_next(p + b, &cp);
        if (!in_set(chars, cp))
            break;
        b += n;
    }
    while (right && e > b) {
        size_t k = e - 1;
        while (k > b && (p[k] & 0xc0) == 0x80)
            k--;
        fmi_utf8_next(p + k, &cp);
        if (!in_set(chars, cp))
            break;
        e = k;
    }
    *out = jj_str(s.u.s.p + b, e - b);
    return FM_OK;
}

fm_status jj_replace(jj_ctx *c, jj_val *out, jj_val s, jj_val from, jj_val to, jj_val count)
{
    int64_t left = count.type == JJ_INT ? count.u.i : -1;
    size_t i = 0;
    fm_buf b;

    fm_status rc = jj_need_str(c, from, "replace");
    if (rc == FM_OK)
        rc = jj_need_str(c, to, "replace");
    if (rc < 0)
        return rc;
    if (from.u.s.n == 0)
        return jj_error(c, FM_EUNSUPPORTED, "replace of an empty string is not implemented");
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    while (left != 0 && i < s.u.s.n) {
        const char *hit = memmem(s.u.s.p + i, s.u.s.n - i, from.u.s.p, from.u.s.n);
        if (!hit)
            break;
        fm_buf_append(&b, s.u.s.p + i, (size_t)(hit - s.u.s.p) - i);
        fm_buf_append(&b, to.u.s.p, to.u.s.n);
        i = (size_t)(hit - s.u.s.p) + from.u.s.n;
        left--;
    }
    fm_buf_append(&b, s.u.s.p + i, s.u.s.n - i);
    return jj_buf_str(c, out, &b);
}

/* whole: str.title (a capital after every non-letter); else only the first character. */
fm_status jj_title(jj_ctx *c, jj_val *out, jj_val s, bool whole)
{
    fm_buf b;
    bool start = true;

    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; i < s.u.s.n;) {
        uint32_t cp;
        size_t n = fmi_utf8_next((const uint8_t *)s.u.s.p + i, &cp);
        jj_val one = jj_str(s.u.s.p + i, n);
        if (start)
            jj_upper(&b, one);
        else
            jj_lower(&b, one);
        start = whole && (!fmi_is_word(cp) || fmi_is_numeric(cp) || cp == '_');
        i += n;
    }
    return jj_buf_str(c, out, &b);
}

static fm_status split_on(jj_ctx *c, jj_list *list, jj_val s, jj_val sep, int64_t max)
{
    size_t i = 0;
    fm_status rc = FM_OK;

    if (sep.u.s.n == 0)
        return jj_error(c, FM_EINVAL, "split needs a separator that is not empty");
    while (rc == FM_OK && max-- != 0) {
        const char *hit = memmem(s.u.s.p + i, s.u.s.n - i, sep.u.s.p, sep.u.s.n);
        if (!hit)
            break;
        rc = jj_list_push(c, list, jj_str(s.u.s.p + i, (size_t)(hit - s.u.s.p) - i));
        i = (size_t)(hit - s.u.s.p) + sep.u.s.n;
    }
    return rc < 0 ? rc : jj_list_push(c, list, jj_str(s.u.s.p + i, s.u.s.n - i));
}

static fm_status split_spaces(jj_ctx *c, jj_list *list, jj_val s, int64_t max)
{
    jj_val rest = s, none = jj_none();
    fm_status rc = jj_trim(c, &rest, rest, none, true, false);

    while (rc == FM_OK && rest.u.s.n > 0) {
        size_t e = 0;
        if (max-- == 0)
            return jj_list_push(c, list, rest);
        while (e < rest.u.s.n) {
            uint32_t cp;
            size_t n = fmi_utf8_next((const uint8_t *)rest.u.s.p + e, &cp);
            if (in_set(none, cp))
                break;
            e += n;
        }
        rc = jj_list_push(c, list, jj_str(rest.u.s.p, e));
        if (rc == FM_OK)
            rc = jj_trim(c, &rest, jj_str(rest.u.s.p + e, rest.u.s.n - e), none, true, false);
    }
    return rc;
}

static fm_status split(jj_ctx *c, jj_val *out, jj_val s, const jj_args *a)
{
    static const char *const names[] = {"sep", "maxsplit"};
    jj_val sep = jj_arg(a, 0, "sep"), max = jj_arg(a, 1, "maxsplit");
    int64_t n = max.type == JJ_INT ? max.u.i : -1;
    fm_status rc = jj_args_check(c, a, "split", names, 2);

    if (rc == FM_OK)
        rc = jj_list_new(c, out);
    if (rc < 0)
        return rc;
    if (sep.type == JJ_STRING)
        return split_on(c, out->u.list, s, sep, n);
    if (sep.type != JJ_NONE && sep.type != JJ_UNDEFINED)
        return jj_error(c, FM_EINVAL, "split needs a string, not %s", jj_type_name(sep));
    return split_spaces(c, out->u.list, s, n);
}

static bool affix(jj_val s, jj_val part, bool front)
{
    if (part.type != JJ_STRING || part.u.s.n > s.u.s.n)
        return false;
    const char *at = front ? s.u.s.p : s.u.s.p + s.u.s.n - part.u.s.n;
    return memcmp(at, part.u.s.p, part.u.s.n) == 0;
}

/* startswith, endswith: one string or a tuple of them */
static fm_status has_affix(jj_ctx *c, jj_val *out, jj_val s, jj_val part, bool front)
{
    bool hit = affix(s, part, front);

    if (part.type == JJ_TUPLE) {
        for (size_t i = 0; i < part.u.list->count && !hit; i++)
            hit = affix(s, part.u.list->v[i], front);
    } else if (part.type != JJ_STRING) {
        return jj_need_str(c, part, front ? "startswith" : "endswith");
    }
    *out = jj_bool(hit);
    return FM_OK;
}

static fm_status find_in(jj_ctx *c, jj_val *out, jj_val s, jj_val part, bool count)
{
    fm_status rc = jj_need_str(c, part, count ? "count" : "find");
    int64_t n = 0;

    if (rc < 0)
        return rc;
    if (part.u.s.n == 0)
        return jj_error(c, FM_EUNSUPPORTED, "searching an empty string is not implemented");
    for (size_t i = 0; i < s.u.s.n;) {
        const char *hit = memmem(s.u.s.p + i, s.u.s.n - i, part.u.s.p, part.u.s.n);
        if (!hit)
            break;
        if (!count) {
            *out = jj_int((int64_t)jj_chars(jj_str(s.u.s.p, (size_t)(hit - s.u.s.p))));
            return FM_OK;
        }
        n++;
        i = (size_t)(hit - s.u.s.p) + part.u.s.n;
    }
    *out = jj_int(count ? n : -1);
    return FM_OK;
}

static fm_status join_strings(jj_ctx *c, jj_val *out, jj_val sep, jj_val list)
{
    jj_val items;
    fm_buf b;
    fm_status rc = jj_as_list(c, &items, list);

    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t i = 0; rc == FM_OK && i < items.u.list->count; i++) {
        jj_val v = items.u.list->v[i];
        rc = jj_need_str(c, v, "join");
        if (rc < 0)
            break;
        if (i > 0)
            fm_buf_append(&b, sep.u.s.p, sep.u.s.n);
        fm_buf_append(&b, v.u.s.p, v.u.s.n);
    }
    if (rc == FM_OK)
        return jj_buf_str(c, out, &b);
    fm_buf_release(&b);
    return rc;
}

static bool all_of(jj_val s, bool (*fn)(uint32_t))
{
    for (size_t i = 0; i < s.u.s.n;) {
        uint32_t cp;
        i += fmi_utf8_next((const uint8_t *)s.u.s.p + i, &cp);
        if (!fn(cp))
            return false;
    }
    return s.u.s.n > 0;
}

static bool ascii_digit(uint32_t cp)
{
    return cp >= '0' && cp <= '9';
}

static fm_status string_method(jj_ctx *c, jj_val *out, jj_val s, const char *name, const jj_args *a)
{
    jj_val first = jj_arg(a, 0, NULL);
    fm_buf b;

    if (strcmp(name, "split") == 0)
        return split(c, out, s, a);
    if (a->kw_count > 0)
        return jj_error(c, FM_EUNSUPPORTED, "string.%s with keywords is not implemented", name);
    if (strcmp(name, "strip") == 0 && a->count <= 1)
        return jj_trim(c, out, s, first, true, true);
    if (strcmp(name, "lstrip") == 0 && a->count <= 1)
        return jj_trim(c, out, s, first, true, false);
    if (strcmp(name, "rstrip") == 0 && a->count <= 1)
        return jj_trim(c, out, s, first, false, true);
    if (strcmp(name, "startswith") == 0 && a->count == 1)
        return has_affix(c, out, s, first, true);
    if (strcmp(name, "endswith") == 0 && a->count == 1)
        return has_affix(c, out, s, first, false);
    if (strcmp(name, "replace") == 0 && (a->count == 2 || a->count == 3))
        return jj_replace(c, out, s, first, a->pos[1], jj_arg(a, 2, NULL));
    if ((strcmp(name, "find") == 0 || strcmp(name, "count") == 0) && a->count == 1)
        return find_in(c, out, s, first, name[0] == 'c');
    if (strcmp(name, "join") == 0 && a->count == 1)
        return join_strings(c, out, s, first);
    if (strcmp(name, "title") == 0 || strcmp(name, "capitalize") == 0)
        return jj_title(c, out, s, name[0] == 't');
    if (strcmp(name, "isdigit") == 0) {
        *out = jj_bool(all_of(s, ascii_digit));
        return FM_OK;
    }
    if (strcmp(name, "isspace") == 0) {
        *out = jj_bool(all_of(s, fmi_is_space));
        return FM_OK;
    }
    bool upper = strcmp(name, "upper") == 0;
    if (!upper && strcmp(name, "lower") != 0)
        return jj_error(c, FM_EUNSUPPORTED, "string method '%s' is not implemented so", name);
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    if (upper)
        jj_upper(&b, s);
    else
        jj_lower(&b, s);
    return jj_buf_str(c, out, &b);
}

/* ---- mappings ---- */

static fm_status dict_items(jj_ctx *c, jj_val *out, const jj_dict *d, const char *name)
{
    fm_status rc = jj_list_new(c, out);

    for (size_t i = 0; i < d->count && rc == FM_OK; i++) {
        jj_val v = name[0] == 'k' ? d->p[i].key : d->p[i].value;
        if (name[0] == 'i') {
            rc = jj_list_new(c, &v);
            v.type = JJ_TUPLE;
            if (rc == FM_OK)
                rc = jj_list_push(c, v.u.list, d->p[i].key);
            if (rc == FM_OK)
                rc = jj_list_push(c, v.u.list, d->p[i].value);
        }
        if (rc == FM_OK)
            rc = jj_list_push(c, out->u.list, v);
    }
    return rc;
}

static fm_status dict_method(jj_ctx *c, jj_val *out, jj_val self, const char *name,
                             const jj_args *a)
{
    if (a->count == 0 &&
        (strcmp(name, "items") == 0 || strcmp(name, "keys") == 0 || strcmp(name, "values") == 0))
        return dict_items(c, out, self.u.dict, name);
    if (strcmp(name, "get") != 0 || a->count < 1 || a->count > 2 || a->kw_count > 0)
        return jj_error(c, FM_EUNSUPPORTED, "mapping method '%s' is not implemented so", name);
    *out = a->count == 2 ? a->pos[1] : jj_none();
    for (size_t i = 0; i < self.u.dict->count; i++)
        if (jj_equal(self.u.dict->p[i].key, a->pos[0], 0))
            *out = self.u.dict->p[i].value;
    return FM_OK;
}

static fm_status list_method(jj_ctx *c, jj_val *out, jj_val self, const char *name,
                             const jj_args *a)
{
    int64_t n = 0;

    if (a->count != 1 || (strcmp(name, "index") != 0 && strcmp(name, "count") != 0))
        return jj_error(c, FM_EUNSUPPORTED, "list method '%s' is not allowed in templates", name);
    for (size_t i = 0; i < self.u.list->count; i++) {
        if (!jj_equal(self.u.list->v[i], a->pos[0], 0))
            continue;
        if (name[0] == 'i') {
            *out = jj_int((int64_t)i);
            return FM_OK;
        }
        n++;
    }
    *out = jj_int(n);
    return name[0] == 'c' ? FM_OK : jj_error(c, FM_EINVAL, "value is not in the list");
}

fm_status jj_method(jj_ctx *c, jj_val *out, jj_val self, const char *name, const jj_args *a)
{
    *out = jj_none();
    if (self.type == JJ_STRING)
        return string_method(c, out, self, name, a);
    if (self.type == JJ_DICT)
        return dict_method(c, out, self, name, a);
    if (self.type == JJ_LIST || self.type == JJ_TUPLE)
        return list_method(c, out, self, name, a);
    if (self.type == JJ_UNDEFINED)
        return undefined_base(c, self, name);
    return jj_error(c, FM_EUNSUPPORTED, "%s has no method '%s'", jj_type_name(self), name);
}
