/* args.c - the arguments of filters, tests, methods and functions. */
#include "infer/jinja/jinja.h"

#include <string.h>

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
