/* call.c - arguments, macros, and calls of any value. */
#include "infer/jinja/jinja.h"

#include <string.h>

#define ARGS_MAX 64

/* ---- arguments ---- */

static fm_status add_keyword(jj_ctx *c, jj_args *a, const char **kw, const char *name, jj_val v)
{
    FM_TRY(jj_work_by(c, a->kw_count + 1, strlen(name) + JJ_ITEM));
    for (size_t i = 0; i < a->kw_count; i++)
        if (strcmp(kw[i], name) == 0)
            return jj_error(c, FM_EINVAL, "argument '%s' is given twice", name);
    kw[a->kw_count] = name;
    a->kw_value[a->kw_count++] = v;
    return FM_OK;
}

static fm_status add_list(jj_ctx *c, jj_args *a, jj_val more)
{
    FM_TRY(jj_as_list(c, &more, more));

    if (more.u.list->count > ARGS_MAX)
        return jj_error(c, FM_ELIMIT, "more than %d arguments", ARGS_MAX);
    for (size_t i = 0; i < more.u.list->count; i++)
        a->pos[a->count++] = more.u.list->v[i];
    return FM_OK;
}

fm_status jj_eval_args(jj_ctx *c, jj_args *a, const jj_node *n, const jj_val *caller)
{
    size_t room = n->kid_count + (n->star ? ARGS_MAX : 0), named = n->kw_count + (caller ? 1 : 0);
    jj_val v;
    fm_status rc = FM_OK;

    memset(a, 0, sizeof *a);
    if (n->kid_count > ARGS_MAX || n->kw_count > ARGS_MAX)
        return jj_error(c, FM_ELIMIT, "more than %d arguments", ARGS_MAX);
    if (room + named == 0)
        return FM_OK;
    a->pos = jj_alloc(c, (room + named) * sizeof *a->pos);
    const char **kw = jj_alloc(c, named * sizeof *kw + 1);
    if (!a->pos || !kw)
        return jj_alloc_status(c);
    a->kw_value = a->pos + room;
    a->kw = kw;
    for (; rc == FM_OK && a->count < n->kid_count; a->count++)
        rc = jj_eval(c, &a->pos[a->count], n->kid[a->count]);
    if (rc == FM_OK && n->star) {
        rc = jj_eval(c, &v, n->star);
        FM_THEN(rc, add_list(c, a, v));
    }
    for (size_t i = 0; rc == FM_OK && i < n->kw_count; i++) {
        rc = jj_eval(c, &v, n->kw_value[i]);
        FM_THEN(rc, add_keyword(c, a, kw, n->kw[i], v));
    }
    return rc < 0 || !caller ? rc : add_keyword(c, a, kw, "caller", *caller);
}

/* ---- macros ---- */

fm_status jj_new_macro(jj_ctx *c, jj_val *out, const jj_node *n)
{
    memset(out, 0, sizeof *out);
    out->type = JJ_MACRO;
    out->u.macro = jj_alloc(c, sizeof *out->u.macro);
    if (!out->u.macro)
        return jj_alloc_status(c);
    out->u.macro->node = n;
    out->u.macro->scope = c->scope;
    for (jj_scope *s = c->scope; s; s = s->parent)
        s->captured = true;
    return FM_OK;
}

static fm_status bind_parameters(jj_ctx *c, const jj_node *def, const jj_args *a)
{
    bool used[ARGS_MAX + 1] = {false}; /* one more for `caller` */
    bool caller = false;

    for (size_t i = 0; i < def->kid_count; i++) {
        const jj_node *param = def->kid[i];
        bool given = i < a->count;
        jj_val v = given ? a->pos[i] : jj_undefined(param->name);
        caller = caller || strcmp(param->name, "caller") == 0;
        FM_TRY(jj_work_by(c, a->kw_count + 1, JJ_ITEM));
        for (size_t k = 0; k < a->kw_count; k++) {
            if (strcmp(a->kw[k], param->name) != 0)
                continue;
            if (given)
                return jj_error(c, FM_EINVAL, "macro '%s': '%s' is given twice", def->name,
                                param->name);
            v = a->kw_value[k];
            given = used[k] = true;
        }
        if (!given && param->a)
            FM_TRY(jj_eval(c, &v, param->a));
        FM_TRY(jj_assign(c, param->name, v));
    }
    if (def->fn && !caller) {
        jj_val v = jj_undefined("caller");
        for (size_t k = 0; k < a->kw_count; k++)
            if (strcmp(a->kw[k], "caller") == 0) {
                v = a->kw_value[k];
                used[k] = true;
            }
        FM_TRY(jj_assign(c, "caller", v));
    }
    if (a->count > def->kid_count)
        return jj_error(c, FM_EINVAL, "macro '%s' takes at most %zu arguments", def->name,
                        def->kid_count);
    for (size_t k = 0; k < a->kw_count; k++)
        if (!used[k])
            return jj_error(c, FM_EINVAL, "macro '%s' has no keyword argument '%s'", def->name,
                            a->kw[k]);
    return FM_OK;
}

static fm_status call_macro(jj_ctx *c, jj_val *out, const jj_macro *m, const jj_args *a)
{
    jj_scope *outer = c->scope;
    uint32_t line = c->line;
    fm_status rc = jj_scope_enter(c, m->scope);

    FM_THEN(rc, bind_parameters(c, m->node, a));
    FM_THEN(rc, jj_capture(c, out, m->node->b));
    c->scope = outer;
    if (rc == FM_OK)
        c->line = line;
    return rc;
}

/* ---- calls ---- */

static fm_status call_value(jj_ctx *c, jj_val *out, jj_val f, const jj_args *a)
{
    fm_status rc = jj_enter(c, &(jj_node){.line = c->line}); /* calls nest as expressions do */

    if (rc < 0)
        goto out;
    if (f.type == JJ_MACRO)
        rc = call_macro(c, out, f.u.macro, a);
    else if (f.type == JJ_BUILTIN)
        rc = jj_builtin_call(c, out, f.u.builtin, a);
    else if (f.type == JJ_LOOP)
        rc = jj_error(c, FM_EUNSUPPORTED, "a call of the loop is not implemented");
    else if (f.type == JJ_UNDEFINED)
        rc = jj_error(c, FM_EINVAL, "'%s' is undefined, so it cannot be called",
                      f.u.s.p ? f.u.s.p : "a value");
    else
        rc = jj_error(c, FM_EINVAL, "%s cannot be called", jj_type_name(f));
out:
    c->depth--;
    return rc;
}

fm_status jj_call_node(jj_ctx *c, jj_val *out, const jj_node *n, const jj_val *caller)
{
    jj_args a;
    jj_val f = jj_none(), self = jj_none();
    bool method = n->a->kind == JJ_N_ATTR;
    FM_TRY(jj_eval(c, method ? &self : &f, method ? n->a->a : n->a));

    FM_TRY(jj_eval_args(c, &a, n, caller));
    c->line = n->line;
    if (!method)
        return call_value(c, out, f, &a);
    /* A call of a method, unless a mapping holds a callable value under that name. */
    const jj_val *held = NULL;
    if (self.type == JJ_NAMESPACE || self.type == JJ_DICT)
        FM_TRY(jj_dict_get(c, &held, self.u.dict, n->a->name, strlen(n->a->name)));

    if (held && (held->type == JJ_MACRO || held->type == JJ_BUILTIN))
        return call_value(c, out, *held, &a);
    return jj_method(c, out, self, n->a->name, &a);
}
