/* test.c - tests (`x is defined`), in a table that the parser checks names against. */
#include "infer/jinja/jinja.h"

#include <string.h>

enum {
    T_DEFINED,
    T_UNDEFINED,
    T_NONE,
    T_STRING,
    T_MAPPING,
    T_ITERABLE,
    T_SEQUENCE,
    T_NUMBER,
    T_INTEGER,
    T_FLOAT,
    T_BOOLEAN,
    T_TRUE,
    T_FALSE,
    T_CALLABLE,
    T_ESCAPED,
    T_LOWER,
    T_UPPER,
    T_FILTER,
    T_TEST,
    T_EQ,
    T_NE,
    T_LT,
    T_LE,
    T_GT,
    T_GE,
    T_IN,
    T_SAMEAS,
    T_ODD,
    T_EVEN,
    T_DIVISIBLE
};

static const struct {
    const char *name;
    int test;
} tests[] = {{"defined", T_DEFINED},
             {"undefined", T_UNDEFINED},
             {"none", T_NONE},
             {"string", T_STRING},
             {"mapping", T_MAPPING},
             {"iterable", T_ITERABLE},
             {"sequence", T_SEQUENCE},
             {"number", T_NUMBER},
             {"integer", T_INTEGER},
             {"float", T_FLOAT},
             {"boolean", T_BOOLEAN},
             {"true", T_TRUE},
             {"false", T_FALSE},
             {"callable", T_CALLABLE},
             {"escaped", T_ESCAPED},
             {"lower", T_LOWER},
             {"upper", T_UPPER},
             {"filter", T_FILTER},
             {"test", T_TEST},
             {"sameas", T_SAMEAS},
             {"eq", T_EQ},
             {"equalto", T_EQ},
             {"==", T_EQ},
             {"ne", T_NE},
             {"!=", T_NE},
             {"lt", T_LT},
             {"lessthan", T_LT},
             {"<", T_LT},
             {"le", T_LE},
             {"<=", T_LE},
             {"gt", T_GT},
             {"greaterthan", T_GT},
             {">", T_GT},
             {"ge", T_GE},
             {">=", T_GE},
             {"in", T_IN},
             {"odd", T_ODD},
             {"even", T_EVEN},
             {"divisibleby", T_DIVISIBLE}};

int jj_test_find(const char *name)
{
    for (int i = 0; i < (int)FM_ARRAY_LEN(tests); i++)
        if (strcmp(tests[i].name, name) == 0)
            return i;
    return -1;
}

static bool type_test(int t, jj_val v)
{
    bool seq = v.type == JJ_STRING || jj_is_seq(v) || v.type == JJ_DICT || v.type == JJ_UNDEFINED;

    switch (t) {
    case T_DEFINED:
        return v.type != JJ_UNDEFINED;
    case T_UNDEFINED:
        return v.type == JJ_UNDEFINED;
    case T_NONE:
        return v.type == JJ_NONE;
    case T_STRING:
        return v.type == JJ_STRING;
    case T_MAPPING:
        return v.type == JJ_DICT;
    case T_ITERABLE:
        return seq || v.type == JJ_LOOP || v.type == JJ_VIEW || v.type == JJ_GEN;
    case T_SEQUENCE:
        return seq;
    case T_NUMBER:
        return jj_is_number(v);
    case T_INTEGER:
        return v.type == JJ_INT;
    case T_FLOAT:
        return v.type == JJ_FLOAT;
    case T_BOOLEAN:
        return v.type == JJ_BOOL;
    case T_TRUE:
        return v.type == JJ_BOOL && v.u.b;
    case T_FALSE:
        return v.type == JJ_BOOL && !v.u.b;
    case T_ESCAPED: /* nothing is marked up here */
        return false;
    case T_FILTER:
        return v.type == JJ_STRING && jj_filter_find(v.u.s.p) >= 0;
    case T_TEST:
        return v.type == JJ_STRING && jj_test_find(v.u.s.p) >= 0;
    default:
        return v.type == JJ_MACRO || v.type == JJ_BUILTIN || v.type == JJ_JOINER ||
               v.type == JJ_LOOP || v.type == JJ_UNDEFINED;
    }
}

static fm_status int_test(jj_ctx *c, bool *out, int t, jj_val v, jj_val by)
{
    jj_val rest, divisor = t == T_DIVISIBLE ? by : jj_int(2);
    fm_status rc = jj_is_number(v) ? FM_OK : jj_bad_operands(c, "divide", v, divisor);

    if (rc == FM_OK)
        rc = jj_binary(c, &rest, JJ_MOD, v, divisor);
    return rc < 0 ? rc : jj_equal(c, out, rest, jj_int(t == T_ODD));
}

static fm_status case_test(jj_ctx *c, bool *out, jj_val v, bool upper)
{
    fm_status rc = jj_as_text(c, &v, v);

    return rc < 0 ? rc : jj_all_case(c, out, v, upper);
}

/* Python's `is`: small values are one object each, other literals are not. */
static fm_status same(jj_ctx *c, bool *out, jj_val a, jj_val b)
{
    *out = false;
    if (a.type != b.type)
        return FM_OK;
    if (a.type == JJ_DICT || a.type == JJ_NAMESPACE)
        *out = a.u.dict == b.u.dict;
    else if (jj_is_seq(a) || a.type == JJ_VIEW || a.type == JJ_GEN)
        *out = a.u.list == b.u.list;
    else
        return jj_equal(c, out, a, b);
    return FM_OK;
}

static fm_status order_test(jj_ctx *c, bool *out, int t, jj_val v, jj_val other)
{
    int order;
    fm_status rc = jj_compare(c, &order, v, other);

    *out = t == T_LT ? order < 0 : t == T_LE ? order <= 0 : t == T_GT ? order > 0 : order >= 0;
    return rc;
}

fm_status jj_test_run(jj_ctx *c, bool *out, int fn, jj_val in, const jj_args *a)
{
    int t = tests[fn].test;
    size_t want = t >= T_EQ && t != T_ODD && t != T_EVEN ? 1 : 0;
    fm_status rc = jj_work(c, JJ_CALL);

    *out = false;
    if (rc == FM_OK && (a->count != want || a->kw_count > 0))
        return jj_error(c, FM_EINVAL, "test '%s' takes %zu arguments", tests[fn].name, want);
    if (rc < 0)
        return rc;
    if (t == T_LOWER || t == T_UPPER)
        return case_test(c, out, in, t == T_UPPER);
    if (t < T_EQ) {
        *out = type_test(t, in);
        return FM_OK;
    }
    jj_val other = jj_arg(a, 0, NULL);
    if (t == T_EQ || t == T_NE) {
        rc = jj_equal(c, out, in, other);
        *out = *out == (t == T_EQ);
        return rc;
    }
    if (t == T_SAMEAS)
        return same(c, out, in, other);
    if (t == T_IN)
        return jj_contains(c, out, in, other);
    if (t >= T_ODD)
        return int_test(c, out, t, in, other);
    return order_test(c, out, t, in, other);
}
