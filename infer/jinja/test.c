/* test.c - tests (`x is defined`), and their table, by which the parser checks names. */
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
    T_ODD,
    T_EVEN,
    T_COMPARE /* with an argument, by the operator `op` */
};

static const struct {
    const char *name;
    int test;
    jj_op op;
} tests[] = {{"defined", T_DEFINED, 0},     {"undefined", T_UNDEFINED, 0},
             {"none", T_NONE, 0},           {"string", T_STRING, 0},
             {"mapping", T_MAPPING, 0},     {"iterable", T_ITERABLE, 0},
             {"sequence", T_SEQUENCE, 0},   {"number", T_NUMBER, 0},
             {"integer", T_INTEGER, 0},     {"float", T_FLOAT, 0},
             {"boolean", T_BOOLEAN, 0},     {"true", T_TRUE, 0},
             {"false", T_FALSE, 0},         {"odd", T_ODD, 0},
             {"even", T_EVEN, 0},           {"eq", T_COMPARE, JJ_EQ},
             {"equalto", T_COMPARE, JJ_EQ}, {"==", T_COMPARE, JJ_EQ},
             {"ne", T_COMPARE, JJ_NE},      {"!=", T_COMPARE, JJ_NE},
             {"lt", T_COMPARE, JJ_LT},      {"<", T_COMPARE, JJ_LT},
             {"le", T_COMPARE, JJ_LE},      {"<=", T_COMPARE, JJ_LE},
             {"gt", T_COMPARE, JJ_GT},      {">", T_COMPARE, JJ_GT},
             {"ge", T_COMPARE, JJ_GE},      {">=", T_COMPARE, JJ_GE},
             {"in", T_COMPARE, JJ_IN}};

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
    default: /* T_FALSE */
        return v.type == JJ_BOOL && !v.u.b;
    }
}

static fm_status parity_test(jj_ctx *c, bool *out, jj_val v, bool odd)
{
    jj_val rest;
    FM_TRY(jj_is_number(v) ? FM_OK : jj_bad_operands(c, "divide", v, jj_int(2)));

    FM_TRY(jj_binary(c, &rest, JJ_MOD, v, jj_int(2)));
    return jj_equal(c, out, rest, jj_int(odd));
}

fm_status jj_test_run(jj_ctx *c, bool *out, int fn, jj_val in, const jj_args *a)
{
    int t = tests[fn].test;
    size_t want = t == T_COMPARE ? 1 : 0;
    fm_status rc = jj_work(c, JJ_CALL);

    *out = false;
    if (rc == FM_OK && (a->count != want || a->kw_count > 0))
        return jj_error(c, FM_EINVAL, "test '%s' takes %zu arguments", tests[fn].name, want);
    if (rc < 0)
        return rc;
    if (t == T_COMPARE)
        return jj_compare_op(c, out, tests[fn].op, in, a->pos[0]);
    if (t == T_ODD || t == T_EVEN)
        return parity_test(c, out, in, t == T_ODD);
    *out = type_test(t, in);
    return FM_OK;
}
