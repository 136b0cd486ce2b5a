/* eval.c - evaluates expressions. Undefined values may be tested, printed (as nothing) and iterated
 * (as empty); any other use of them is an error. */
#include "infer/jinja/jinja.h"

/* ---- comparisons ---- */

static fm_status compare_chain(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_val left, right;
    bool hit = true;
    fm_status rc = jj_eval(c, &left, n->a);

    for (size_t i = 0; rc == FM_OK && hit && i < n->kid_count; i++) {
        rc = jj_eval(c, &right, n->kid[i]->a);
        FM_THEN(rc, jj_compare_op(c, &hit, n->kid[i]->op, left, right));
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
    FM_TRY(jj_eval(c, &v, n->a));

    for (int i = 0; i < 3; i++) {
        if (node[i])
            FM_TRY(jj_eval(c, &part[i], node[i]));
        if (!index_like(part[i]))
            return jj_error(c, FM_EINVAL, "slice bounds must be integers");
    }

    if (v.type == JJ_UNDEFINED)
        return jj_bad_operands(c, "slice", v, v);
    if (v.type != JJ_STRING && !jj_is_seq(v))
        return jj_error(c, FM_EINVAL, "%s cannot be sliced", jj_type_name(v));
    fm_status rc = jj_as_list(c, &list, v);
    FM_THEN(rc, jj_list_new(c, out));
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
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX); /* work was counted when the characters were listed */
    for (size_t k = 0; k < out->u.list->count; k++)
        fm_buf_append(&b, out->u.list->v[k].u.s.p, out->u.list->v[k].u.s.n);
    return jj_buf_str(c, out, &b, FM_OK);
}

/* ---- expressions ---- */

static fm_status literal(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_val v, k;
    fm_status rc = n->kind == JJ_N_DICT ? jj_dict_new(c, out) : jj_list_new(c, out);

    for (size_t i = 0; rc == FM_OK && i < n->kid_count; i++) {
        rc = jj_eval(c, &v, n->kid[i]);
        if (rc < 0)
            return rc;
        if (n->kind != JJ_N_DICT) {
            rc = jj_list_push(c, out->u.list, v);
            continue;
        }
        k = v;
        rc = jj_eval(c, &v, n->kid[++i]);
        FM_THEN(rc, jj_dict_put(c, out->u.dict, k, v));
    }
    if (n->kind == JJ_N_TUPLE)
        out->type = JJ_TUPLE;
    return rc;
}

static fm_status eval_binary(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_val a, b;
    FM_TRY(jj_eval(c, &a, n->a));

    FM_TRY(jj_eval(c, &b, n->b));
    c->line = n->line;
    return jj_binary(c, out, n->op, a, b);
}

static fm_status eval_sign(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_val v;
    FM_TRY(jj_eval(c, &v, n->a));
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
    FM_TRY(jj_eval(c, out, n->a));
    if (n->kind == JJ_N_NOT)
        *out = jj_bool(!jj_truth(*out));
    else if (n->kind == JJ_N_COND) {
        bool yes = jj_truth(*out);
        *out = jj_undefined("a condition without else");
        return yes ? jj_eval(c, out, n->b) : n->c ? jj_eval(c, out, n->c) : FM_OK;
    } else if (jj_truth(*out) == (n->kind == JJ_N_AND)) {
        return jj_eval(c, out, n->b);
    }
    return FM_OK;
}

static fm_status eval_filter_or_test(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_val in;
    jj_args a;
    bool hit;
    FM_TRY(jj_eval(c, &in, n->a));

    FM_TRY(jj_eval_args(c, &a, n, NULL));
    c->line = n->line;
    if (n->kind == JJ_N_FILTER)
        return jj_filter_run(c, out, n->fn, in, &a);
    fm_status rc = jj_test_run(c, &hit, n->fn, in, &a);
    *out = jj_bool(hit != n->negated);
    return rc;
}

static fm_status eval_member(jj_ctx *c, jj_val *out, const jj_node *n)
{
    jj_val base, key;
    FM_TRY(jj_eval(c, &base, n->a));

    if (n->kind == JJ_N_ITEM)
        FM_TRY(jj_eval(c, &key, n->b));
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
        return jj_lookup(c, n->name, out);
    case JJ_N_CAPTURED:
        return jj_lookup(c, "", out);
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
        return jj_call_node(c, out, n, NULL);
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
    case JJ_N_SET_BLOCK:
    case JJ_N_MACRO:
    case JJ_N_CALL_BLOCK:
    case JJ_N_FILTER_BLOCK:
    case JJ_N_BREAK:
    case JJ_N_CONTINUE:
        break;
    }
    return jj_error(c, FM_EUNSUPPORTED, "not an expression");
}

fm_status jj_enter(jj_ctx *c, const jj_node *n)
{
    c->line = n->line;
    if (c->depth >= JJ_EVAL_DEPTH)
        return jj_error(c, FM_ELIMIT, "template recurses deeper than %d", JJ_EVAL_DEPTH);
    c->depth++;
    return jj_work(c, JJ_NODE);
}

fm_status jj_eval(jj_ctx *c, jj_val *out, const jj_node *n)
{
    fm_status rc = jj_enter(c, n);

    *out = jj_none();
    FM_THEN(rc, eval_kind(c, out, n));
    c->depth--;
    return rc;
}
