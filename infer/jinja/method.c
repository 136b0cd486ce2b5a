/* method.c - methods of mappings and lists; methods of strings are in str.c. Methods that would
 * change a list or a mapping are refused, as in transformers' sandbox. */
#include "infer/jinja/jinja.h"

#include <string.h>

static fm_status dict_items(jj_ctx *c, jj_val *out, const jj_dict *d, const char *name)
{
    fm_status rc = jj_list_new(c, out);

    for (size_t i = 0; i < d->count && rc == FM_OK; i++) {
        jj_val v = name[0] == 'k' ? d->p[i].key : d->p[i].value;
        if (name[0] == 'i') {
            rc = jj_list_new(c, &v);
            v.type = JJ_TUPLE;
            FM_THEN(rc, jj_list_push(c, v.u.list, d->p[i].key));
            FM_THEN(rc, jj_list_push(c, v.u.list, d->p[i].value));
        }
        FM_THEN(rc, jj_list_push(c, out->u.list, v));
    }
    out->type = JJ_VIEW;
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

/* A list has index(x), which prompts of evaluations use. */
static fm_status list_method(jj_ctx *c, jj_val *out, jj_val self, const char *name,
                             const jj_args *a)
{
    bool hit = false;
    fm_status rc = FM_OK;

    if (strcmp(name, "index") != 0 || a->count != 1 || a->kw_count > 0)
        return jj_error(c, FM_EUNSUPPORTED, "list method '%s' is not allowed in templates", name);
    for (size_t i = 0; rc == FM_OK && !hit && i < self.u.list->count; i++) {
        rc = jj_equal(c, &hit, self.u.list->v[i], a->pos[0]);
        *out = jj_int((int64_t)i);
    }
    return rc < 0 || hit ? rc : jj_error(c, FM_EINVAL, "value is not in the list");
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
    if (self.type == JJ_UNDEFINED)
        return jj_no_attr(c, self, name);
    return jj_error(c, FM_EUNSUPPORTED, "%s has no method '%s' in templates", jj_type_name(self),
                    name);
}
