/* method.c - methods of strings, mappings, lists and what loops and cyclers have. Methods that would
 * change a list or a mapping are refused, as in transformers' sandbox. */
#include "infer/jinja/jinja.h"

#include <math.h>
#include <string.h>

/* ---- names of methods ---- */

fm_status jj_get_attr(jj_ctx *c, jj_val *out, jj_val v, const char *name)
{
    if (v.type != JJ_STRING || !jj_is_str_method(name))
        return jj_own_attr(c, out, v, name);
    *out = jj_undefined(name);
    return jj_error(c, FM_EUNSUPPORTED, "method '%s' is used without a call", name);
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
    if (held && !jj_is_method(JJ_DICT, name))
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
        return jj_no_attr(c, self, name);
    return jj_error(c, FM_EUNSUPPORTED, "%s has no method '%s'", jj_type_name(self), name);
}
