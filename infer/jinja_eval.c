/* jinja_eval.c - walk the tree: expressions give values, statements write text.
 *
 * Scopes are jinja2's: a loop body and a macro have their own, `if` has not; what a loop sets is
 * gone after each pass, which is why templates use namespace(). Undefined values may be tested,
 * printed (as nothing) and iterated (as empty); anything else with them is an error. */
#include "infer/jinja.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ARGS_MAX 64

typedef enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } flow;

static fm_status eval(jj_ctx *c, jj_val *out, const jj_node *n);
static fm_status exec(jj_ctx *c, const jj_node *n, flow *f);

fm_status jj_error(const jj_ctx *c, fm_status rc, const char *fmt, ...)
{
    char text[900];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return fm_fail(rc, "line %u: %s", c->line, text);
}

/* ---- scopes ---- */

static bool lookup(const jj_ctx *c, const char *name, jj_val *out)
{
    for (const jj_scope *s = c->scope; s; s = s->parent) {
        for (size_t i = s->count; i-- > 0;) {
            if (strcmp(s->var[i].name, name) != 0)
                continue;
            *out = s->var[i].value;
            return true;
        }
    }
    return jj_builtin_find(c, name, out);
}

static fm_status assign(jj_ctx *c, const char *name, jj_val v)
{
    jj_scope *s = c->scope;

    for (size_t i = 0; i < s->count; i++) {
        if (strcmp(s->var[i].name, name) != 0)
            continue;
        s->var[i].value = v;
        return FM_OK;
    }
    if (s->count == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 4;
        jj_var *bigger = jj_alloc(c, cap * sizeof *bigger);
        if (!bigger)
            return jj_alloc_status(c);
        if (s->count)
            memcpy(bigger, s->var, s->count * sizeof *bigger);
        s->var = bigger;
        s->cap = cap;
    }
    s->var[s->count].name = name;
    s->var[s->count++].value = v;
    return FM_OK;
}

static fm_status unpack(jj_ctx *c, const jj_node *n, jj_val v)
{
    jj_val list;

    if (!n->scoped)
        return assign(c, n->kid[0]->name, v);
    fm_status rc = jj_as_list(c, &list, v);
    if (rc == FM_OK && list.u.list->count != n->kid_count)
        return jj_error(c, FM_EINVAL, "%zu names for %zu values", n->kid_count, list.u.list->count);
    for (size_t i = 0; rc == FM_OK && i < n->kid_count; i++)
        rc = assign(c, n->kid[i]->name, list.u.list->v[i]);
    return rc;
}

/* ---- comparisons ---- */

static fm_status compare_chain(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_val left, right;
    bool hit = true;
    fm_status rc = eval(c, &left, n->a);

    for (size_t i = 0; rc == FM_OK && hit && i < n->kid_count; i++) {
        rc = eval(c, &right, n->kid[i]->a);
        if (rc == FM_OK)
            rc = jj_compare_op(c, &hit, n->kid[i]->op, left, right);
        left = right;
    }
    *out = jj_bool(hit);
    return rc;
}

/* ---- slices ---- */

/* Python's slice.indices for one bound. */
static int64_t bound(jj_val v, int64_t dflt, int64_t lo, int64_t hi, int64_t count)
{
    if (v.type != JJ_INT && v.type != JJ_BOOL)
        return dflt;
    int64_t i = jj_whole(v);
    if (i < 0)
        i = i < -count ? lo : i + count;
    return i < lo ? lo : i > hi ? hi : i;
}

static bool index_like(jj_val v)
{
    return v.type == JJ_INT || v.type == JJ_BOOL || v.type == JJ_NONE;
}

static fm_status slice(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_val v, part[3] = {jj_none(), jj_none(), jj_none()}, list;
    const jj_node *node[3] = {n->b, n->c, n->d};
    fm_buf b;
    fm_status rc = eval(c, &v, n->a);

    for (int i = 0; rc == FM_OK && i < 3; i++) {
        if (node[i])
            rc = eval(c, &part[i], node[i]);
        if (rc == FM_OK && !index_like(part[i]))
            return jj_error(c, FM_EINVAL, "slice bounds must be integers");
    }
    if (rc < 0)
        return rc;
    if (v.type != JJ_STRING && v.type != JJ_LIST && v.type != JJ_TUPLE)
        return jj_error(c, FM_EINVAL, "%s cannot be sliced", jj_type_name(v));
    rc = jj_as_list(c, &list, v);
    if (rc == FM_OK)
        rc = jj_list_new(c, out);
    if (rc < 0)
        return rc;
    int64_t count = (int64_t)list.u.list->count;
    int64_t step = part[2].type == JJ_NONE ? 1 : jj_whole(part[2]);
    if (step == 0)
        return jj_error(c, FM_EINVAL, "slice step is 0");
    bool up = step > 0;
    step = FM_MAX(FM_MIN(step, count + 1), -count - 1);
    int64_t lo = up ? 0 : -1, hi = up ? count : count - 1;
    int64_t i = bound(part[0], up ? lo : hi, lo, hi, count);
    int64_t end = bound(part[1], up ? hi : lo, lo, hi, count);
    for (; rc == FM_OK && (up ? i < end : i > end); i += step)
        rc = jj_list_push(c, out->u.list, list.u.list->v[i]);
    if (v.type != JJ_STRING || rc < 0) {
        out->type = v.type;
        return rc;
    }
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (size_t k = 0; k < out->u.list->count; k++)
        fm_buf_append(&b, out->u.list->v[k].u.s.p, out->u.list->v[k].u.s.n);
    return jj_buf_str(c, out, &b);
}

/* ---- calls ---- */

static fm_status eval_args(jj_ctx *c, jj_args *a, const jj_node *n)
{
    fm_status rc = FM_OK;

    memset(a, 0, sizeof *a);
    if (n->kid_count > ARGS_MAX || n->kw_count > ARGS_MAX)
        return jj_error(c, FM_ELIMIT, "more than %d arguments", ARGS_MAX);
    if (n->kid_count + n->kw_count == 0)
        return FM_OK;
    a->pos = jj_alloc(c, (n->kid_count + n->kw_count) * sizeof *a->pos);
    if (!a->pos)
        return jj_alloc_status(c);
    a->kw_value = a->pos + n->kid_count;
    a->kw = n->kw;
    a->count = n->kid_count;
    a->kw_count = n->kw_count;
    for (size_t i = 0; rc == FM_OK && i < n->kid_count; i++)
        rc = eval(c, &a->pos[i], n->kid[i]);
    for (size_t i = 0; rc == FM_OK && i < n->kw_count; i++)
        rc = eval(c, &a->kw_value[i], n->kw_value[i]);
    return rc;
}

/* Run a body with its text caught. */
static fm_status capture(jj_ctx *c, jj_val *out, const jj_node *body)
{
    fm_buf text, *outer = c->out;
    flow f = FLOW_NEXT;

    fm_buf_init(&text, FM_CHAT_OUTPUT_MAX);
    c->out = &text;
    fm_status rc = exec(c, body, &f);
    c->out = outer;
    if (rc == FM_OK)
        return jj_buf_str(c, out, &text);
    fm_buf_release(&text);
    return rc;
}

static fm_status bind_parameters(jj_ctx *c, const jj_node *def, const jj_args *a)
{
    fm_status rc = FM_OK;
    size_t known = 0;

    if (a->count > def->kid_count)
        return jj_error(c, FM_EINVAL, "macro '%s' takes at most %zu arguments", def->name,
                        def->kid_count);
    for (size_t i = 0; rc == FM_OK && i < def->kid_count; i++) {
        const jj_node *param = def->kid[i];
        bool given = i < a->count;
        jj_val v = given ? a->pos[i] : jj_undefined(param->name);
        for (size_t k = 0; k < a->kw_count; k++) {
            if (strcmp(a->kw[k], param->name) != 0)
                continue;
            if (given)
                return jj_error(c, FM_EINVAL, "macro '%s': '%s' is given twice", def->name,
                                param->name);
            v = a->kw_value[k];
            given = true;
            known++;
        }
        if (!given && param->a)
            rc = eval(c, &v, param->a);
        if (rc == FM_OK)
            rc = assign(c, param->name, v);
    }
    if (rc == FM_OK && known != a->kw_count)
        return jj_error(c, FM_EINVAL, "macro '%s' has no such keyword argument", def->name);
    return rc;
}

static fm_status call_macro(jj_ctx *c, jj_val *out, const jj_macro *m, const jj_args *a)
{
    jj_scope scope = {.parent = m->scope}, *outer = c->scope;
    uint32_t line = c->line;

    c->scope = &scope;
    fm_status rc = bind_parameters(c, m->node, a);
    if (rc == FM_OK)
        rc = capture(c, out, m->node->b);
    c->scope = outer;
    if (rc == FM_OK)
        c->line = line;
    return rc;
}

static fm_status call(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_args a;
    jj_val f, self;
    fm_status rc;

    if (n->a->kind == JJ_N_ATTR) { /* a method, unless a mapping holds something callable there */
        rc = eval(c, &self, n->a->a);
        if (rc == FM_OK)
            rc = eval_args(c, &a, n);
        if (rc < 0)
            return rc;
        c->line = n->line;
        const jj_val *held = self.type == JJ_NAMESPACE || self.type == JJ_DICT
                                 ? jj_dict_get(self.u.dict, n->a->name, strlen(n->a->name))
                                 : NULL;
        if (held && held->type == JJ_MACRO)
            return call_macro(c, out, held->u.macro, &a);
        return jj_method(c, out, self, n->a->name, &a);
    }
    rc = eval(c, &f, n->a);
    if (rc == FM_OK)
        rc = eval_args(c, &a, n);
    if (rc < 0)
        return rc;
    c->line = n->line;
    if (f.type == JJ_MACRO)
        return call_macro(c, out, f.u.macro, &a);
    if (f.type == JJ_BUILTIN)
        return jj_builtin_call(c, out, f.u.builtin, &a);
    if (f.type == JJ_UNDEFINED)
        return jj_error(c, FM_EINVAL, "'%s' is undefined, so it cannot be called",
                        f.u.s.p ? f.u.s.p : "a value");
    return jj_error(c, FM_EINVAL, "%s cannot be called", jj_type_name(f));
}

/* ---- expressions ---- */

static fm_status literal(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_val v, k;
    fm_status rc = n->kind == JJ_N_DICT ? jj_dict_new(c, out) : jj_list_new(c, out);

    for (size_t i = 0; rc == FM_OK && i < n->kid_count; i++) {
        rc = eval(c, &v, n->kid[i]);
        if (rc < 0)
            return rc;
        if (n->kind != JJ_N_DICT) {
            rc = jj_list_push(c, out->u.list, v);
            continue;
        }
        k = v;
        rc = eval(c, &v, n->kid[++i]);
        if (rc == FM_OK)
            rc = jj_dict_put(c, out->u.dict, k, v);
    }
    if (n->kind == JJ_N_TUPLE)
        out->type = JJ_TUPLE;
    return rc;
}

static fm_status eval_binary(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_val a, b;
    fm_status rc = eval(c, &a, n->a);

    if (rc == FM_OK)
        rc = eval(c, &b, n->b);
    if (rc < 0)
        return rc;
    c->line = n->line;
    return jj_binary(c, out, n->op, a, b);
}

static fm_status eval_sign(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_val v;
    fm_status rc = eval(c, &v, n->a);

    if (rc < 0)
        return rc;
    if (!jj_is_number(v))
        return jj_bad_operands(c, "negate", v, v);
    if (n->kind == JJ_N_POS)
        *out = v;
    else if (v.type == JJ_FLOAT)
        *out = jj_float(-v.u.f);
    else
        return jj_binary(c, out, JJ_SUB, jj_int(0), v);
    return FM_OK;
}

static fm_status eval_logic(jj_ctx *c, jj_val *out, const jj_node *n)
{
    fm_status rc = eval(c, out, n->a);

    if (rc < 0)
        return rc;
    if (n->kind == JJ_N_NOT)
        *out = jj_bool(!jj_truth(*out));
    else if (n->kind == JJ_N_COND) {
        bool yes = jj_truth(*out);
        *out = jj_undefined("a condition without else");
        return yes ? eval(c, out, n->b) : n->c ? eval(c, out, n->c) : FM_OK;
    } else if (jj_truth(*out) == (n->kind == JJ_N_AND)) {
        return eval(c, out, n->b);
    }
    return FM_OK;
}

static fm_status eval_filter_or_test(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_val in;
    jj_args a;
    bool hit;
    fm_status rc = eval(c, &in, n->a);

    if (rc == FM_OK)
        rc = eval_args(c, &a, n);
    if (rc < 0)
        return rc;
    c->line = n->line;
    if (n->kind == JJ_N_FILTER)
        return jj_filter_run(c, out, n->fn, in, &a);
    rc = jj_test_run(c, &hit, n->fn, in, &a);
    *out = jj_bool(hit != n->scoped);
    return rc;
}

static fm_status eval_member(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_val base, key;
    fm_status rc = eval(c, &base, n->a);

    if (rc == FM_OK && n->kind == JJ_N_ITEM)
        rc = eval(c, &key, n->b);
    if (rc < 0)
        return rc;
    c->line = n->line;
    return n->kind == JJ_N_ATTR ? jj_get_attr(c, out, base, n->name)
                                : jj_get_item(c, out, base, key);
}

static fm_status eval_kind(jj_ctx *c, jj_val *out, const jj_node *n)
{
    switch (n->kind) {
    case JJ_N_CONST:
        *out = n->value;
        return FM_OK;
    case JJ_N_NAME:
        if (!lookup(c, n->name, out))
            *out = jj_undefined(n->name);
        return FM_OK;
    case JJ_N_CAPTURED:
        fm_assert(lookup(c, "", out));
        return FM_OK;
    case JJ_N_LIST:
    case JJ_N_TUPLE:
    case JJ_N_DICT:
        return literal(c, out, n);
    case JJ_N_ATTR:
    case JJ_N_ITEM:
        return eval_member(c, out, n);
    case JJ_N_SLICE:
        return slice(c, out, n);
    case JJ_N_CALL:
        return call(c, out, n);
    case JJ_N_FILTER:
    case JJ_N_TEST:
        return eval_filter_or_test(c, out, n);
    case JJ_N_COND:
    case JJ_N_AND:
    case JJ_N_OR:
    case JJ_N_NOT:
        return eval_logic(c, out, n);
    case JJ_N_NEG:
    case JJ_N_POS:
        return eval_sign(c, out, n);
    case JJ_N_BINARY:
        return eval_binary(c, out, n);
    case JJ_N_COMPARE:
        return compare_chain(c, out, n);
    case JJ_N_TEXT:
    case JJ_N_OUTPUT:
    case JJ_N_BODY:
    case JJ_N_IF:
    case JJ_N_FOR:
    case JJ_N_SET:
    case JJ_N_SET_ATTR:
    case JJ_N_SET_BLOCK:
    case JJ_N_MACRO:
    case JJ_N_BREAK:
    case JJ_N_CONTINUE:
        break;
    }
    return jj_error(c, FM_EUNSUPPORTED, "not an expression");
}

static fm_status enter(jj_ctx *c, const jj_node *n)
{
    c->line = n->line;
    if (c->depth >= JJ_EVAL_DEPTH)
        return jj_error(c, FM_ELIMIT, "template recurses deeper than %d", JJ_EVAL_DEPTH);
    c->depth++;
    return jj_step(c);
}

static fm_status eval(jj_ctx *c, jj_val *out, const jj_node *n)
{
    fm_status rc = enter(c, n);

    *out = jj_none();
    if (rc == FM_OK)
        rc = eval_kind(c, out, n);
    c->depth--;
    return rc;
}

/* ---- statements ---- */

/* The items that pass the loop's own condition; it sees the target, not `loop`. */
static fm_status loop_items(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_val v, all = jj_none(), keep;
    fm_status rc = eval(c, &v, n->a);

    if (rc == FM_OK)
        rc = jj_as_list(c, &all, v);
    if (rc < 0 || !n->d) {
        *out = all;
        return rc;
    }
    rc = jj_list_new(c, out);
    jj_scope scope = {.parent = c->scope};
    for (size_t i = 0; rc == FM_OK && i < all.u.list->count; i++) {
        scope.count = 0;
        c->scope = &scope;
        rc = unpack(c, n, all.u.list->v[i]);
        if (rc == FM_OK)
            rc = eval(c, &keep, n->d);
        c->scope = scope.parent;
        if (rc == FM_OK && jj_truth(keep))
            rc = jj_list_push(c, out->u.list, all.u.list->v[i]);
    }
    return rc;
}

static fm_status exec_for(jj_ctx *c, const jj_node *n, flow *f)
{
    jj_val items, loop = {.type = JJ_LOOP};
    fm_status rc = loop_items(c, &items, n);

    if (rc < 0)
        return rc;
    if (items.u.list->count == 0)
        return n->c ? exec(c, n->c, f) : FM_OK;
    loop.u.loop = jj_alloc(c, sizeof *loop.u.loop);
    if (!loop.u.loop)
        return jj_alloc_status(c);
    loop.u.loop->items = items.u.list;
    jj_scope scope = {.parent = c->scope};
    for (size_t i = 0; rc == FM_OK && i < items.u.list->count; i++) {
        flow inner = FLOW_NEXT;
        loop.u.loop->index = i;
        scope.count = 0; /* each pass starts afresh, in the same memory */
        c->scope = &scope;
        rc = assign(c, "loop", loop);
        if (rc == FM_OK)
            rc = unpack(c, n, items.u.list->v[i]);
        if (rc == FM_OK)
            rc = exec(c, n->b, &inner);
        c->scope = scope.parent;
        if (inner == FLOW_BREAK)
            break;
    }
    return rc;
}

static fm_status exec_set(jj_ctx *c, const jj_node *n)
{
    jj_val v, ns;
    fm_status rc = eval(c, &v, n->a);

    if (rc < 0)
        return rc;
    c->line = n->line;
    if (n->kind == JJ_N_SET)
        return unpack(c, n, v);
    if (!lookup(c, n->kid[0]->name, &ns) || ns.type != JJ_NAMESPACE)
        return jj_error(c, FM_EINVAL, "'%s' is no namespace, so its '%s' cannot be set",
                        n->kid[0]->name, n->name);
    return jj_dict_put(c, ns.u.dict, jj_str(n->name, strlen(n->name)), v);
}

static fm_status exec_set_block(jj_ctx *c, const jj_node *n)
{
    jj_val v;
    fm_status rc = capture(c, &v, n->b);

    if (rc == FM_OK && n->a) {
        jj_scope scope = {.parent = c->scope};
        c->scope = &scope;
        rc = assign(c, "", v); /* a name that no template can write */
        if (rc == FM_OK)
            rc = eval(c, &v, n->a);
        c->scope = scope.parent;
    }
    return rc < 0 ? rc : unpack(c, n, v);
}

static fm_status exec_macro(jj_ctx *c, const jj_node *n)
{
    jj_val v = {.type = JJ_MACRO};

    if (c->scope->parent) /* scopes of loops and macros live on the stack of the evaluation */
        return jj_error(c, FM_EUNSUPPORTED, "a macro inside a loop or macro is not implemented");
    v.u.macro = jj_alloc(c, sizeof *v.u.macro);
    if (!v.u.macro)
        return jj_alloc_status(c);
    v.u.macro->node = n;
    v.u.macro->scope = c->scope;
    return assign(c, n->name, v);
}

static fm_status exec_output(jj_ctx *c, const jj_node *n)
{
    jj_val v;
    fm_status rc = eval(c, &v, n->a);

    if (rc < 0)
        return rc;
    c->line = n->line;
    return jj_to_text(c, c->out, v);
}

static fm_status exec_body(jj_ctx *c, const jj_node *n, flow *f)
{
    fm_status rc = FM_OK;

    if (n->b) /* generation */
        return exec(c, n->b, f);
    for (size_t i = 0; rc == FM_OK && i < n->kid_count && *f == FLOW_NEXT; i++)
        rc = exec(c, n->kid[i], f);
    return rc;
}

static fm_status exec_if(jj_ctx *c, const jj_node *n, flow *f)
{
    jj_val v;
    fm_status rc = eval(c, &v, n->a);

    if (rc < 0)
        return rc;
    if (jj_truth(v))
        return exec(c, n->b, f);
    return n->c ? exec(c, n->c, f) : FM_OK;
}

static fm_status exec_kind(jj_ctx *c, const jj_node *n, flow *f)
{
    switch (n->kind) {
    case JJ_N_TEXT:
        fm_buf_append(c->out, n->name, n->len);
        return fm_buf_ok(c->out);
    case JJ_N_OUTPUT:
        return exec_output(c, n);
    case JJ_N_BODY:
        return exec_body(c, n, f);
    case JJ_N_IF:
        return exec_if(c, n, f);
    case JJ_N_FOR:
        return exec_for(c, n, f);
    case JJ_N_SET:
    case JJ_N_SET_ATTR:
        return exec_set(c, n);
    case JJ_N_SET_BLOCK:
        return exec_set_block(c, n);
    case JJ_N_MACRO:
        return exec_macro(c, n);
    case JJ_N_BREAK:
        *f = FLOW_BREAK;
        return FM_OK;
    case JJ_N_CONTINUE:
        *f = FLOW_CONTINUE;
        return FM_OK;
    case JJ_N_CONST:
    case JJ_N_NAME:
    case JJ_N_LIST:
    case JJ_N_TUPLE:
    case JJ_N_DICT:
    case JJ_N_ATTR:
    case JJ_N_ITEM:
    case JJ_N_SLICE:
    case JJ_N_CALL:
    case JJ_N_FILTER:
    case JJ_N_TEST:
    case JJ_N_COND:
    case JJ_N_AND:
    case JJ_N_OR:
    case JJ_N_NOT:
    case JJ_N_NEG:
    case JJ_N_POS:
    case JJ_N_BINARY:
    case JJ_N_COMPARE:
    case JJ_N_CAPTURED:
        break;
    }
    return jj_error(c, FM_EUNSUPPORTED, "not a statement");
}

static fm_status exec(jj_ctx *c, const jj_node *n, flow *f)
{
    fm_status rc = enter(c, n);

    if (rc == FM_OK)
        rc = exec_kind(c, n, f);
    c->depth--;
    return rc;
}

fm_status jj_set_global(jj_ctx *c, const char *name, jj_val v)
{
    return assign(c, name, v);
}

fm_status jj_exec(jj_ctx *c, const jj_node *n)
{
    flow f = FLOW_NEXT;

    return exec(c, n, &f);
}
