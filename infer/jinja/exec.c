/* exec.c - runs statements: they write text, set names, and repeat. */
#include "infer/jinja/jinja.h"

#include <string.h>

/* Assigns v to a NAME, the field of a namespace, or a TUPLE of such targets. */
static fm_status assign_to(jj_ctx *c, const jj_node *to, jj_val v)
{
    jj_val list, ns;

    if (to->kind == JJ_N_NAME)
        return jj_assign(c, to->name, v);
    if (to->kind == JJ_N_ATTR) {
        FM_TRY(jj_lookup(c, to->a->name, &ns));
        if (ns.type != JJ_NAMESPACE)
            return jj_error(c, FM_EINVAL, "'%s' is no namespace, so its '%s' cannot be set",
                            to->a->name, to->name);
        return jj_dict_put(c, ns.u.dict, jj_str(to->name, strlen(to->name)), v);
    }
    FM_TRY(jj_as_list(c, &list, v));
    if (list.u.list->count != to->kid_count)
        return jj_error(c, FM_EINVAL, "%zu names for %zu values", to->kid_count,
                        list.u.list->count);
    for (size_t i = 0; i < to->kid_count; i++)
        FM_TRY(assign_to(c, to->kid[i], list.u.list->v[i]));
    return FM_OK;
}

fm_status jj_capture(jj_ctx *c, jj_val *out, const jj_node *body)
{
    fm_buf text, *outer = c->out;
    jj_scope *scope = c->scope;
    jj_flow f = JJ_NEXT;
    fm_status rc = jj_scope_enter(c, scope);

    fm_buf_init(&text, FM_CHAT_OUTPUT_MAX);
    c->out = &text;
    FM_THEN(rc, jj_run(c, body, &f));
    c->out = outer;
    c->scope = scope;
    return jj_buf_str(c, out, &text, rc);
}

/* ---- loops ---- */

/* Enters a fresh scope for one pass: the same memory again, unless a macro refers to it. */
static fm_status next_pass(jj_ctx *c, jj_scope **own, jj_scope *parent)
{
    if (*own && !(*own)->captured) {
        (*own)->count = 0;
        c->scope = *own;
        return FM_OK;
    }
    fm_status rc = jj_scope_enter(c, parent);
    *own = c->scope;
    return rc;
}

/* The items that satisfy the loop's condition, which sees the target but not `loop`. */
static fm_status loop_items(jj_ctx *c, jj_val *out, const jj_node *n, jj_val iterable)
{
    jj_val all = jj_none(), keep;
    jj_scope *outer = c->scope, *own = NULL;
    fm_status rc = jj_as_list(c, &all, iterable);

    *out = all;
    if (rc < 0 || !n->d)
        return rc;
    rc = jj_list_new(c, out);
    for (size_t i = 0; rc == FM_OK && i < all.u.list->count; i++) {
        rc = next_pass(c, &own, outer);
        FM_THEN(rc, assign_to(c, n->kid[0], all.u.list->v[i]));
        FM_THEN(rc, jj_eval(c, &keep, n->d));
        c->scope = outer;
        if (rc == FM_OK && jj_truth(keep))
            rc = jj_list_push(c, out->u.list, all.u.list->v[i]);
    }
    return rc;
}

static fm_status exec_for(jj_ctx *c, const jj_node *n, jj_flow *f)
{
    jj_val iterable, items, loop = {.type = JJ_LOOP};
    jj_scope *outer = c->scope, *own = NULL;
    jj_flow inner = JJ_NEXT;
    bool whole = false;
    fm_status rc = jj_eval(c, &iterable, n->a);

    FM_THEN(rc, loop_items(c, &items, n, iterable));
    if (rc < 0)
        return rc;
    loop.u.loop = jj_alloc(c, sizeof *loop.u.loop);
    if (!loop.u.loop)
        return jj_alloc_status(c);
    loop.u.loop->items = items.u.list;
    for (size_t i = 0; rc == FM_OK && i < items.u.list->count && inner != JJ_BREAK; i++) {
        inner = JJ_NEXT;
        loop.u.loop->index = i;
        rc = next_pass(c, &own, outer);
        FM_THEN(rc, jj_assign(c, "loop", loop));
        FM_THEN(rc, assign_to(c, n->kid[0], items.u.list->v[i]));
        FM_THEN(rc, jj_run(c, n->b, &inner));
        whole = whole || inner == JJ_NEXT;
        c->scope = outer;
    }
    /* As jinja2, else runs where no pass reached its end. */
    return rc == FM_OK && !whole && n->c ? jj_run(c, n->c, f) : rc;
}

/* ---- statements ---- */

static fm_status exec_set(jj_ctx *c, const jj_node *n)
{
    jj_val v;
    fm_status rc = jj_eval(c, &v, n->a);

    c->line = n->line;
    return rc < 0 ? rc : assign_to(c, n->kid[0], v);
}

/* The text of n's body after n's filters. */
static fm_status filtered_text(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_scope *outer = c->scope;
    fm_status rc = jj_capture(c, out, n->b);

    if (rc < 0 || !n->a)
        return rc;
    rc = jj_scope_enter(c, outer);
    FM_THEN(rc, jj_assign(c, "", *out)); /* a name that no template can write */
    FM_THEN(rc, jj_eval(c, out, n->a));
    c->scope = outer;
    return rc;
}

static fm_status exec_block(jj_ctx *c, const jj_node *n)
{
    jj_val v;
    FM_TRY(filtered_text(c, &v, n));
    return n->kind == JJ_N_SET_BLOCK ? assign_to(c, n->kid[0], v) : jj_to_text(c, c->out, v);
}

static fm_status exec_macro(jj_ctx *c, const jj_node *n)
{
    jj_val v;
    FM_TRY(jj_new_macro(c, &v, n));

    return jj_assign(c, n->name, v);
}

static fm_status exec_output(jj_ctx *c, const jj_node *n)
{
    jj_val v;
    FM_TRY(jj_eval(c, &v, n->a));
    c->line = n->line;
    return jj_to_text(c, c->out, v);
}

static fm_status exec_call(jj_ctx *c, const jj_node *n)
{
    jj_val caller, v;
    FM_TRY(jj_new_macro(c, &caller, n->c));

    FM_TRY(jj_call_node(c, &v, n->a, &caller));
    return jj_to_text(c, c->out, v);
}

static fm_status exec_body(jj_ctx *c, const jj_node *n, jj_flow *f)
{
    fm_status rc = FM_OK;

    if (n->b) { /* generation: names that it sets stay inside */
        jj_scope *outer = c->scope;
        rc = jj_scope_enter(c, outer);
        FM_THEN(rc, jj_run(c, n->b, f));
        c->scope = outer;
        return rc;
    }
    for (size_t i = 0; rc == FM_OK && i < n->kid_count && *f == JJ_NEXT; i++)
        rc = jj_run(c, n->kid[i], f);
    return rc;
}

static fm_status exec_if(jj_ctx *c, const jj_node *n, jj_flow *f)
{
    jj_val v;
    FM_TRY(jj_eval(c, &v, n->a));
    if (jj_truth(v))
        return jj_run(c, n->b, f);
    return n->c ? jj_run(c, n->c, f) : FM_OK;
}

static fm_status put_text(jj_ctx *c, const jj_node *n)
{
    FM_TRY(jj_work(c, n->len));
    fm_buf_append(c->out, n->name, n->len);
    return fm_buf_ok(c->out);
}

static fm_status exec_kind(jj_ctx *c, const jj_node *n, jj_flow *f)
{
    switch ((int)n->kind) {
    case JJ_N_TEXT:
        return put_text(c, n);
    case JJ_N_OUTPUT:
        return exec_output(c, n);
    case JJ_N_BODY:
        return exec_body(c, n, f);
    case JJ_N_IF:
        return exec_if(c, n, f);
    case JJ_N_FOR:
        return exec_for(c, n, f);
    case JJ_N_SET:
        return exec_set(c, n);
    case JJ_N_SET_BLOCK:
    case JJ_N_FILTER_BLOCK:
        return exec_block(c, n);
    case JJ_N_MACRO:
        return exec_macro(c, n);
    case JJ_N_CALL_BLOCK:
        return exec_call(c, n);
    case JJ_N_BREAK:
        *f = JJ_BREAK;
        return FM_OK;
    case JJ_N_CONTINUE:
        *f = JJ_CONTINUE;
        return FM_OK;
    default:
        return jj_error(c, FM_EUNSUPPORTED, "not a statement");
    }
}

fm_status jj_run(jj_ctx *c, const jj_node *n, jj_flow *f)
{
    fm_status rc = jj_enter(c, n);

    FM_THEN(rc, exec_kind(c, n, f));
    c->depth--;
    return rc;
}

fm_status jj_exec(jj_ctx *c, const jj_node *n)
{
    jj_flow f = JJ_NEXT;

    return jj_run(c, n, &f);
}
