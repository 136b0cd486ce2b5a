/* arith.c - operators on two values, as Python has them: / is always a float, // and % of whole
 * numbers round toward minus infinity, and an integer that leaves 64 bits is an error. */
#include "infer/jinja/jinja.h"

fm_status jj_bad_operands(const jj_ctx *c, const char *what, jj_val a, jj_val b)
{
    jj_val u = a.type == JJ_UNDEFINED ? a : b;

    if (u.type == JJ_UNDEFINED)
        return jj_error(c, FM_EINVAL, "'%s' is undefined", u.u.s.p ? u.u.s.p : "a value");
    return jj_error(c, FM_EINVAL, "cannot %s %s and %s", what, jj_type_name(a), jj_type_name(b));
}

static fm_status concat_text(jj_ctx *c, jj_val *out, jj_val a, jj_val b)
{
    fm_buf t;
    fm_status rc;

    fm_buf_init(&t, FM_CHAT_OUTPUT_MAX);
    rc = jj_to_text(c, &t, a);
    FM_THEN(rc, jj_to_text(c, &t, b));
    return jj_buf_str(c, out, &t, rc);
}

static fm_status concat_lists(jj_ctx *c, jj_val *out, jj_val a, jj_val b)
{
    fm_status rc = jj_list_new(c, out);

    out->type = a.type;
    for (size_t i = 0; rc == FM_OK && i < a.u.list->count; i++)
        rc = jj_list_push(c, out->u.list, a.u.list->v[i]);
    for (size_t i = 0; rc == FM_OK && i < b.u.list->count; i++)
        rc = jj_list_push(c, out->u.list, b.u.list->v[i]);
    return rc;
}

static fm_status repeat(jj_ctx *c, jj_val *out, jj_val s, int64_t times)
{
    fm_buf b;

    if (times > 0) {
        FM_TRY(jj_work_by(c, (uint64_t)times, s.u.s.n ? s.u.s.n + JJ_CHAR : 0));
    }
    fm_buf_init(&b, FM_CHAT_OUTPUT_MAX);
    for (int64_t i = 0; i < times && s.u.s.n > 0 && b.failed == FM_OK; i++)
        fm_buf_append(&b, s.u.s.p, s.u.s.n);
    return jj_buf_str(c, out, &b, FM_OK);
}

static fm_status int_op(jj_ctx *c, jj_val *out, jj_op op, int64_t a, int64_t b)
{
    int64_t r = 0;
    bool overflow = false;

    if ((op == JJ_DIV || op == JJ_FLOORDIV || op == JJ_MOD) && b == 0)
        return jj_error(c, FM_EINVAL, "division by zero");
    if (op == JJ_DIV) {
        *out = jj_float((double)a / (double)b);
        return FM_OK;
    }
    if (op == JJ_ADD)
        overflow = __builtin_add_overflow(a, b, &r);
    else if (op == JJ_SUB)
        overflow = __builtin_sub_overflow(a, b, &r);
    else if (op == JJ_MUL)
        overflow = __builtin_mul_overflow(a, b, &r);
    else if (b == -1)
        overflow = op == JJ_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &r);
    else if (op == JJ_FLOORDIV)
        r = a / b - (a % b != 0 && (a < 0) != (b < 0));
    else
        r = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    if (overflow)
        return jj_error(c, FM_ELIMIT, "integer overflow");
    *out = jj_int(r);
    return FM_OK;
}

static fm_status float_op(jj_ctx *c, jj_val *out, jj_op op, double a, double b)
{
    if (op == JJ_FLOORDIV || op == JJ_MOD)
        return jj_error(c, FM_EUNSUPPORTED, "'//' and '%%' of floats are not implemented");
    if (op == JJ_DIV && b == 0.0)
        return jj_error(c, FM_EINVAL, "division by zero");
    *out = jj_float(op == JJ_ADD ? a + b : op == JJ_SUB ? a - b : op == JJ_MUL ? a * b : a / b);
    return FM_OK;
}

fm_status jj_binary(jj_ctx *c, jj_val *out, jj_op op, jj_val a, jj_val b)
{
    bool lists = (a.type == JJ_LIST || a.type == JJ_TUPLE) && a.type == b.type;
    bool a_whole = a.type == JJ_INT || a.type == JJ_BOOL;
    bool b_whole = b.type == JJ_INT || b.type == JJ_BOOL;

    if (op == JJ_CONCAT)
        return concat_text(c, out, a, b);
    if (a_whole && b_whole)
        return int_op(c, out, op, jj_whole(a), jj_whole(b));
    if (jj_is_number(a) && jj_is_number(b))
        return float_op(c, out, op, jj_number(a), jj_number(b));
    if (op == JJ_ADD && a.type == JJ_STRING && b.type == JJ_STRING)
        return concat_text(c, out, a, b);
    if (op == JJ_ADD && lists)
        return concat_lists(c, out, a, b);
    if (op == JJ_MUL && a.type == JJ_STRING && b_whole)
        return repeat(c, out, a, jj_whole(b));
    if (op == JJ_MUL && a_whole && b.type == JJ_STRING)
        return repeat(c, out, b, jj_whole(a));
    if (op == JJ_MUL && ((jj_is_seq(a) && b_whole) || (a_whole && jj_is_seq(b))))
        return jj_error(c, FM_EUNSUPPORTED, "'*' of a list is not implemented");
    if (op == JJ_MOD && a.type == JJ_STRING)
        return jj_error(c, FM_EUNSUPPORTED, "'%%' of a string is not implemented");
    return jj_bad_operands(c, op == JJ_ADD ? "add" : "combine", a, b);
}

fm_status jj_compare_op(jj_ctx *c, bool *out, jj_op op, jj_val a, jj_val b)
{
    int order = 0;
    fm_status rc;

    if (op == JJ_EQ || op == JJ_NE) {
        rc = jj_equal(c, out, a, b);
        *out = *out == (op == JJ_EQ);
        return rc;
    }
    if (op == JJ_IN || op == JJ_NOT_IN) {
        rc = jj_contains(c, out, a, b);
        *out = *out == (op == JJ_IN);
        return rc;
    }
    if (a.type == JJ_UNDEFINED || b.type == JJ_UNDEFINED)
        return jj_bad_operands(c, "order", a, b);
    rc = jj_compare(c, &order, a, b);
    *out = op == JJ_LT   ? order < 0
           : op == JJ_LE ? order <= 0
           : op == JJ_GT ? order > 0
                         : order >= 0;
    return rc;
}
