/* scope.c - the names of a rendering.
 *
 * Scopes are jinja2's: bodies of loops and macros, and blocks whose text is captured, have a
 * scope of their own, `if` has none. Names that a loop sets are gone after each pass, which is why
 * templates use namespace(). */
#include "infer/jinja/jinja.h"

#include <string.h>

fm_status jj_lookup(jj_ctx *c, const char *name, jj_val *out)
{
    for (const jj_scope *s = c->scope; s; s = s->parent) {
        FM_TRY(jj_work_by(c, s->count + 1, JJ_ITEM));
        for (size_t i = s->count; i-- > 0;) {
            if (strcmp(s->var[i].name, name) != 0)
                continue;
            *out = s->var[i].value;
            return FM_OK;
        }
    }
    if (!jj_builtin_find(c, name, out))
        *out = jj_undefined(name);
    return FM_OK;
}

fm_status jj_assign(jj_ctx *c, const char *name, jj_val v)
{
    jj_scope *s = c->scope;
    FM_TRY(jj_work_by(c, s->count + 1, JJ_ITEM));

    for (size_t i = 0; i < s->count; i++) {
        if (strcmp(s->var[i].name, name) != 0)
            continue;
        s->var[i].value = v;
        return FM_OK;
    }
    FM_TRY(jj_grow(c, &s->var, &s->cap, s->count, sizeof *s->var));

    s->var[s->count].name = name;
    s->var[s->count++].value = v;
    return FM_OK;
}

fm_status jj_scope_enter(jj_ctx *c, jj_scope *parent)
{
    jj_scope *s = jj_alloc(c, sizeof *s);

    if (!s)
        return jj_alloc_status(c);
    s->parent = parent;
    c->scope = s;
    return FM_OK;
}
