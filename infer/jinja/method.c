/* method.c - attributes, items, methods of strings and mappings, and global functions.
 * Methods that would change a list or a mapping are refused, as in transformers' sandbox. */
#include "infer/jinja/jinja.h"

#include <math.h>
#include <string.h>

#include "infer/tokenizer/internal.h"

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
        *out = jj_int(l->depth + (name[5] ? 0 : 1)); /* counts recursive loops only */
    else if (strcmp(name, "previtem") == 0)
        *out = i > 0 ? l->items->v[i - 1] : jj_undefined("loop.previtem");
    else if (strcmp(name, "nextitem") == 0)
        *out = i + 1 < n ? l->items->v[i + 1] : jj_undefined("loop.nextitem");
    else if (strcmp(name, "cycle") == 0 || strcmp(name, "changed") == 0)
        return jj_error(c, FM_EUNSUPPORTED, "loop.%s is used without a call", name);
    return FM_OK;
}

static fm_status macro_attr(jj_ctx *c, jj_val *out, const jj_macro *m, const char *name)
{
    fm_status rc = FM_OK;

    if (strcmp(name, "name") == 0) {
        *out = jj_str(m->node->name, strlen(m->node->name));
    } else if (strcmp(name, "arguments") == 0) {
        rc = jj_list_new(c, out);
        out->type = JJ_TUPLE;
        for (size_t i = 0; rc == FM_OK && i < m->node->kid_count; i++)
            rc = jj_list_push(c, out->u.list,
                              jj_str(m->node->kid[i]->name, strlen(m->node->kid[i]->name)));
    } else if (strcmp(name, "caller") == 0) {
        *out = jj_bool(m->node->fn & JJ_USES_CALLER);
    } else if (strcmp(name, "catch_varargs") == 0) {
        *out = jj_bool(m->node->fn & JJ_USES_VARARGS);
    } else if (strcmp(name, "catch_kwargs") == 0) {
        *out = jj_bool(m->node->fn & JJ_USES_KWARGS);
    }
    return rc;
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
    if (v.type == JJ_MACRO)
        return macro_attr(c, out, v.u.macro, name);
    if (v.type == JJ_CYCLER && strcmp(name, "current") == 0)
        *out = v.u.list->v[v.u.list->at % v.u.list->count];
    if (v.type == JJ_TUPLE && v.u.list->label) /* of groupby */
        *out = strcmp(name, "grouper") == 0 ? v.u.list->v[0]
               : strcmp(name, "list") == 0  ? v.u.list->v[1]
                                            : *out;
    if (v.type == JJ_STRING && jj_is_str_method(name))
        return jj_error(c, FM_EUNSUPPORTED, "method '%s' is used without a call", name);
    if (v.type != JJ_DICT && v.type != JJ_NAMESPACE)
        return FM_OK;
    if (is_method(v.type, name))
        return jj_error(c, FM_EUNSUPPORTED, "method '%s' is used without a call", name);
    const jj_val *hit;
    fm_status rc = jj_dict_get(c, &hit, v.u.dict, name, strlen(name));
    if (rc == FM_OK && hit)
        *out = *hit;
    return rc;
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
    fm_status rc = jj_work(c, JJ_ITEM + (v.type == JJ_STRING ? 3 * v.u.s.n : 0));

    if (rc < 0)
        return rc;
    *out = jj_undefined(key.type == JJ_STRING ? key.u.s.p : NULL);
    if (v.type == JJ_UNDEFINED)
        return undefined_base(c, v, key.type == JJ_STRING ? key.u.s.p : "item");
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
        for (i = 0; rc == FM_OK && !hit && i < v.u.dict->count; i++)
            rc = jj_equal(c, &hit, v.u.dict->p[i].key, key);
        if (rc == FM_OK && hit)
            *out = v.u.dict->p[i - 1].value;
    } else if (key.type == JJ_STRING) {
        jj_val name = key; /* a slice of a string does not end in NUL */
        rc = jj_str_copy(c, &name, key.u.s.p, key.u.s.n);
        return rc < 0 ? rc : jj_get_attr(c, out, v, name.u.s.p);
    }
    return rc;
}

fm_status jj_attr_path(jj_ctx *c, jj_val *out, jj_val v, jj_val path)
{
    fm_status rc = FM_OK;

    *out = v;
    if (path.type == JJ_INT)
        return jj_get_item(c, out, v, path);
    rc = jj_need_str(c, path, "attribute");
    if (rc == FM_OK)
        rc = jj_work_by(c, path.u.s.n, 2);
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
        rc = jj_work(c, 2 * JJ_NODE);
        if (rc == FM_OK)
            rc = jj_get_item(c, out, in, digits ? jj_int(number) : key);
        i += n + 1;
    }
    return rc;
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
    out->type = JJ_VIEW;
    if (rc == FM_OK)
        out->u.list->label = name[0] == 'k'   ? "dict_keys"
                             : name[0] == 'v' ? "dict_values"
                                              : "dict_items";
    return rc;
}

static fm_status dict_copy(jj_ctx *c, jj_val *out, const jj_dict *d)
{
    fm_status rc = jj_dict_new(c, out);

    for (size_t i = 0; i < d->count && rc == FM_OK; i++)
        rc = jj_dict_put(c, out->u.dict, d->p[i].key, d->p[i].value);
    return rc;
}

static fm_status dict_method(jj_ctx *c, jj_val *out, jj_val self, const char *name,
                             const jj_args *a)
{
    const jj_val *held;
    fm_status rc = jj_dict_get(c, &held, self.u.dict, name, strlen(name));

    if (rc < 0)
        return rc;
    if (a->count + a->kw_count == 0 &&
        (strcmp(name, "items") == 0 || strcmp(name, "keys") == 0 || strcmp(name, "values") == 0))
        return dict_items(c, out, self.u.dict, name);
    if (a->count + a->kw_count == 0 && strcmp(name, "copy") == 0)
        return dict_copy(c, out, self.u.dict);
    if (held && !is_method(JJ_DICT, name))
        return jj_error(c, FM_EINVAL, "%s cannot be called", jj_type_name(*held));
    if (strcmp(name, "get") != 0 || a->count < 1 || a->count > 2 || a->kw_count > 0)
        return jj_error(c, FM_EUNSUPPORTED, "mapping method '%s' is not implemented so", name);
    if (a->pos[0].type == JJ_LIST || a->pos[0].type == JJ_DICT)
        return jj_error(c, FM_EINVAL, "%s cannot be a key", jj_type_name(a->pos[0]));
    *out = a->count == 2 ? a->pos[1] : jj_none();
    for (size_t i = 0; rc == FM_OK && i < self.u.dict->count; i++) {
        bool hit;
        rc = jj_equal(c, &hit, self.u.dict->p[i].key, a->pos[0]);
        if (hit)
            *out = self.u.dict->p[i].value;
    }
    return rc;
}

static fm_status list_copy(jj_ctx *c, jj_val *out, const jj_list *l)
{
    fm_status rc = jj_list_new(c, out);

    for (size_t i = 0; rc == FM_OK && i < l->count; i++)
        rc = jj_list_push(c, out->u.list, l->v[i]);
    return rc;
}

static fm_status list_method(jj_ctx *c, jj_val *out, jj_val self, const char *name,
                             const jj_args *a)
{
    int64_t n = 0;

    if (self.type == JJ_LIST && strcmp(name, "copy") == 0 && a->count + a->kw_count == 0)
        return list_copy(c, out, self.u.list);
    if (a->count != 1 || (strcmp(name, "index") != 0 && strcmp(name, "count") != 0))
        return jj_error(c, FM_EUNSUPPORTED, "list method '%s' is not allowed in templates", name);
    for (size_t i = 0; i < self.u.list->count; i++) {
        bool hit;
        fm_status rc = jj_equal(c, &hit, self.u.list->v[i], a->pos[0]);
        if (rc < 0)
            return rc;
        if (!hit)
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

static fm_status loop_method(jj_ctx *c, jj_val *out, jj_loop *l, const char *name, const jj_args *a)
{
    jj_val seen;
    bool same = false;

    if (strcmp(name, "cycle") == 0 && a->kw_count == 0) {
        if (a->count == 0)
            return jj_error(c, FM_EINVAL, "no items for cycling given");
        *out = a->pos[l->index % a->count];
        return FM_OK;
    }
    if (strcmp(name, "changed") != 0 || a->kw_count > 0)
        return jj_error(c, FM_EINVAL, "the loop has no method '%s'", name);
    fm_status rc = jj_list_new(c, &seen);
    for (size_t i = 0; rc == FM_OK && i < a->count; i++)
        rc = jj_list_push(c, seen.u.list, a->pos[i]);
    if (rc == FM_OK && l->any_changed)
        rc = jj_equal(c, &same, l->changed, seen);
    if (rc < 0)
        return rc;
    *out = jj_bool(!same);
    l->changed = seen;
    l->any_changed = true;
    return FM_OK;
}

static fm_status cycler_method(jj_ctx *c, jj_val *out, jj_list *l, const char *name,
                               const jj_args *a)
{
    if (a->count + a->kw_count > 0)
        return jj_error(c, FM_EINVAL, "a cycler's methods take no arguments");
    if (strcmp(name, "next") == 0) {
        *out = l->v[l->at++ % l->count];
    } else if (strcmp(name, "reset") == 0) {
        l->at = 0;
        *out = jj_none();
    } else {
        return jj_error(c, FM_EINVAL, "a cycler has no method '%s'", name);
    }
    return FM_OK;
}

fm_status jj_method(jj_ctx *c, jj_val *out, jj_val self, const char *name, const jj_args *a)
{
    fm_status rc = jj_work(c, JJ_CALL);

    *out = jj_none();
    if (rc < 0)
        return rc;
    if (self.type == JJ_STRING)
        return jj_str_method(c, out, self, name, a);
    if (self.type == JJ_DICT)
        return dict_method(c, out, self, name, a);
    if (jj_is_seq(self))
        return list_method(c, out, self, name, a);
    if (self.type == JJ_LOOP)
        return loop_method(c, out, self.u.loop, name, a);
    if (self.type == JJ_CYCLER)
        return cycler_method(c, out, self.u.list, name, a);
    if (self.type == JJ_FLOAT && strcmp(name, "is_integer") == 0 && a->count == 0) {
        *out = jj_bool(self.u.f - floor(self.u.f) == 0.0);
        return FM_OK;
    }
    if (self.type == JJ_UNDEFINED)
        return undefined_base(c, self, name);
    return jj_error(c, FM_EUNSUPPORTED, "%s has no method '%s'", jj_type_name(self), name);
}
