/* expr.c - parses expressions. Precedence and quirks are jinja2's: tests and filters bind tighter
 * than arithmetic, `is` takes one bare argument, `~` stands between + and *. */
#include "infer/jinja/jinja.h"

#include <string.h>

static fm_status unary(jj_parser *p, jj_node **out, bool with_filter);

fm_status jj_p_fail(const jj_parser *p, const char *why)
{
    return fm_fail(FM_EINVAL, "line %u: %s near '%.40s'", p->t->line, why,
                   p->t->kind == JJ_T_TEXT || !p->t->s ? "" : p->t->s);
}

fm_status jj_p_refuse(const jj_parser *p, const char *what)
{
    return fm_fail(FM_EUNSUPPORTED, "line %u: %s '%s' is not implemented", p->t->line, what,
                   p->t->s);
}

jj_node *jj_p_new_node(jj_parser *p, jj_kind kind)
{
    jj_node *n = fm_arena_alloc(p->arena, sizeof *n);

    if (n) {
        n->kind = kind;
        n->line = p->t->line;
    }
    return n;
}

bool jj_p_is_op(const jj_parser *p, const char *op)
{
    return p->t->kind == JJ_T_OP && strcmp(p->t->s, op) == 0;
}

bool jj_p_is_word(const jj_parser *p, const char *w)
{
    return p->t->kind == JJ_T_NAME && strcmp(p->t->s, w) == 0;
}

bool jj_p_take_op(jj_parser *p, const char *op)
{
    bool hit = jj_p_is_op(p, op);

    p->t += hit;
    return hit;
}

bool jj_p_take_word(jj_parser *p, const char *w)
{
    bool hit = jj_p_is_word(p, w);

    p->t += hit;
    return hit;
}

fm_status jj_p_need_op(jj_parser *p, const char *op)
{
    if (jj_p_take_op(p, op))
        return FM_OK;
    return fm_fail(FM_EINVAL, "line %u: expected '%s' near '%.40s'", p->t->line, op,
                   p->t->s ? p->t->s : "");
}

fm_status jj_p_need_name(jj_parser *p, const char **out)
{
    *out = "";
    if (p->t->kind != JJ_T_NAME)
        return jj_p_fail(p, "expected a name");
    *out = (p->t++)->s;
    return FM_OK;
}

/* Makes space for one more element of an array in the arena. Capacities are powers of two, so the
 * count shows when it is full. */
static fm_status grow(jj_parser *p, void *array_ptr, size_t count, size_t elem)
{
    void **array = array_ptr;

    if (count != 0 && (count & (count - 1)) != 0)
        return FM_OK;
    void *bigger = fm_arena_alloc(p->arena, (count ? 2 * count : 1) * elem);
    if (!bigger)
        return FM_ENOMEM;
    if (count)
        memcpy(bigger, *array, count * elem);
    *array = bigger;
    return FM_OK;
}

fm_status jj_p_add_kid(jj_parser *p, jj_node *n, jj_node *kid)
{
    FM_TRY(grow(p, &n->kid, n->kid_count, sizeof *n->kid));

    n->kid[n->kid_count++] = kid;
    return FM_OK;
}

fm_status jj_p_enter(jj_parser *p)
{
    if (++p->depth > JJ_PARSE_DEPTH)
        return fm_fail(FM_ELIMIT, "line %u: nested deeper than %d", p->t->line, JJ_PARSE_DEPTH);
    return FM_OK;
}

static fm_status keyword(jj_parser *p, jj_node *call)
{
    const char *name = p->t->s;
    jj_node *v;

    p->t += 2;
    FM_TRY(jj_p_expression(p, &v));
    FM_TRY(grow(p, &call->kw, call->kw_count, sizeof *call->kw));
    FM_TRY(grow(p, &call->kw_value, call->kw_count, sizeof *call->kw_value));
    call->kw[call->kw_count] = name;
    call->kw_value[call->kw_count++] = v;
    return FM_OK;
}

/* Parses arguments behind '(': positional ones, *args, keywords. */
static fm_status arguments(jj_parser *p, jj_node *call)
{
    while (!jj_p_take_op(p, ")")) {
        jj_node *v;
        if (jj_p_is_op(p, "**"))
            return jj_p_refuse(p, "an argument behind");
        if (jj_p_is_op(p, "*")) {
            if (call->star)
                return jj_p_fail(p, "a second '*'");
            p->t++;
            FM_TRY(jj_p_expression(p, &call->star));
        } else if (p->t->kind == JJ_T_NAME && p->t[1].kind == JJ_T_OP &&
                   strcmp(p->t[1].s, "=") == 0) {
            FM_TRY(keyword(p, call));
        } else {
            if (call->kw_count > 0 || call->star)
                return jj_p_fail(p, "a positional argument behind keywords");
            FM_TRY(jj_p_expression(p, &v));
            FM_TRY(jj_p_add_kid(p, call, v));
        }
        if (!jj_p_is_op(p, ")"))
            FM_TRY(jj_p_need_op(p, ","));
    }
    return FM_OK;
}

/* Parses items up to the closing operator, as kids; pairs: key ':' value. */
static fm_status items(jj_parser *p, jj_node *n, const char *close, bool pairs)
{
    while (!jj_p_take_op(p, close)) {
        jj_node *v;
        FM_TRY(jj_p_expression(p, &v));
        FM_TRY(jj_p_add_kid(p, n, v));
        if (pairs) {
            FM_TRY(jj_p_need_op(p, ":"));
            FM_TRY(jj_p_expression(p, &v));
            FM_TRY(jj_p_add_kid(p, n, v));
        }
        if (!jj_p_is_op(p, close))
            FM_TRY(jj_p_need_op(p, ","));
    }
    return FM_OK;
}

/* Parses a parenthesised expression or a tuple behind its '('. */
static fm_status paren(jj_parser *p, jj_node **out)
{
    jj_node *tuple = jj_p_new_node(p, JJ_N_TUPLE);

    if (!tuple)
        return FM_ENOMEM;
    if (!jj_p_is_op(p, ")")) {
        fm_status rc = jj_p_expression(p, out);
        if (rc < 0 || jj_p_take_op(p, ")"))
            return rc;
        FM_TRY(jj_p_add_kid(p, tuple, *out));
        FM_TRY(jj_p_need_op(p, ","));
    }
    *out = tuple;
    return items(p, tuple, ")", false);
}

static fm_status string_const(jj_parser *p, jj_node *n)
{
    fm_buf b;

    n->value = jj_str(p->t->s, p->t->len);
    if (p->t[1].kind != JJ_T_STRING) {
        p->t++;
        return FM_OK;
    }
    fm_buf_init(&b, FM_CHAT_SOURCE_MAX); /* neighbouring literals are joined */
    for (; p->t->kind == JJ_T_STRING; p->t++)
        fm_buf_append(&b, p->t->s, p->t->len);
    fm_status rc = fm_buf_ok(&b);
    char *s = rc == FM_OK ? fm_arena_strndup(p->arena, fm_buf_cstr(&b), b.len) : NULL;
    n->value = jj_str(s, b.len);
    fm_buf_release(&b);
    return rc < 0 ? rc : s ? FM_OK : FM_ENOMEM;
}

static bool word_const(const char *w, jj_val *out)
{
    if (strcmp(w, "true") == 0 || strcmp(w, "True") == 0)
        *out = jj_bool(true);
    else if (strcmp(w, "false") == 0 || strcmp(w, "False") == 0)
        *out = jj_bool(false);
    else if (strcmp(w, "none") == 0 || strcmp(w, "None") == 0)
        *out = jj_none();
    else
        return false;
    return true;
}

static fm_status primary(jj_parser *p, jj_node **out)
{
    jj_node *n = jj_p_new_node(p, JJ_N_CONST);

    *out = n;
    if (!n)
        return FM_ENOMEM;
    if (p->t->kind == JJ_T_STRING)
        return string_const(p, n);
    if (p->t->kind == JJ_T_INT || p->t->kind == JJ_T_FLOAT) {
        n->value = p->t->kind == JJ_T_INT ? jj_int(p->t->i) : jj_float(p->t->f);
        p->t++;
        return FM_OK;
    }
    if (p->t->kind == JJ_T_NAME) {
        if (!word_const(p->t->s, &n->value)) {
            n->kind = JJ_N_NAME;
            n->name = p->t->s;
            p->caller = p->caller || strcmp(n->name, "caller") == 0;
            if (p->macros > 0 &&
                (strcmp(n->name, "varargs") == 0 || strcmp(n->name, "kwargs") == 0))
                return jj_p_refuse(p, "a macro's");
        }
        p->t++;
        return FM_OK;
    }
    if (jj_p_take_op(p, "("))
        return paren(p, out);
    n->kind = jj_p_is_op(p, "{") ? JJ_N_DICT : JJ_N_LIST;
    if (jj_p_take_op(p, "["))
        return items(p, n, "]", false);
    if (jj_p_take_op(p, "{"))
        return items(p, n, "}", true);
    return jj_p_fail(p, "unexpected token");
}

/* Parses an index or a slice behind its '['. */
static fm_status subscript(jj_parser *p, jj_node *n)
{
    jj_node **part[3] = {&n->b, &n->c, &n->d};
    int i = 0;

    n->kind = JJ_N_ITEM;
    for (;;) {
        if (!jj_p_is_op(p, ":") && !jj_p_is_op(p, "]")) {
            FM_TRY(jj_p_expression(p, part[i]));
        }
        if (jj_p_is_op(p, ","))
            return jj_p_refuse(p, "a key with");
        if (!jj_p_take_op(p, ":"))
            break;
        n->kind = JJ_N_SLICE;
        if (++i > 2)
            return jj_p_fail(p, "slice has too many parts");
    }
    if (n->kind == JJ_N_ITEM && !n->b)
        return jj_p_fail(p, "empty subscript");
    return jj_p_need_op(p, "]");
}

/* Parses what follows '.': a name, or a number, which is an index. */
static fm_status field(jj_parser *p, jj_node *n)
{
    if (p->t->kind != JJ_T_INT)
        return jj_p_need_name(p, &n->name);
    n->kind = JJ_N_ITEM;
    n->b = jj_p_new_node(p, JJ_N_CONST);
    if (!n->b)
        return FM_ENOMEM;
    n->b->value = jj_int((p->t++)->i);
    return FM_OK;
}

static fm_status postfix(jj_parser *p, jj_node **io)
{
    while (jj_p_is_op(p, ".") || jj_p_is_op(p, "[") || jj_p_is_op(p, "(")) {
        jj_node *n = jj_p_new_node(p, JJ_N_ATTR);
        if (!n)
            return FM_ENOMEM;
        n->a = *io;
        *io = n;
        if (jj_p_take_op(p, "(")) {
            n->kind = JJ_N_CALL;
            FM_TRY(arguments(p, n));
        } else if (jj_p_take_op(p, "[")) {
            FM_TRY(subscript(p, n));
        } else {
            p->t++;
            FM_TRY(field(p, n));
        }
    }
    return FM_OK;
}

fm_status jj_p_postfix(jj_parser *p, jj_node **out)
{
    FM_TRY(primary(p, out));

    return postfix(p, out);
}

static bool starts_bare_argument(const jj_parser *p)
{
    if (p->t->kind == JJ_T_STRING || p->t->kind == JJ_T_INT || p->t->kind == JJ_T_FLOAT)
        return true;
    if (p->t->kind == JJ_T_NAME)
        return !jj_p_is_word(p, "else") && !jj_p_is_word(p, "or") && !jj_p_is_word(p, "and") &&
               !jj_p_is_word(p, "is") && !jj_p_is_word(p, "if") && !jj_p_is_word(p, "not");
    return jj_p_is_op(p, "[") || jj_p_is_op(p, "{");
}

/* Parses a test behind `is`. */
static fm_status test(jj_parser *p, jj_node **io)
{
    jj_node *n = jj_p_new_node(p, JJ_N_TEST), *arg;
    const char *name;

    if (!n)
        return FM_ENOMEM;
    n->a = *io;
    *io = n;
    n->negated = jj_p_take_word(p, "not");
    FM_TRY(jj_p_need_name(p, &name));
    n->fn = jj_test_find(name);
    if (n->fn < 0)
        return fm_fail(FM_EUNSUPPORTED, "line %u: test '%s' is not implemented", n->line, name);
    if (jj_p_take_op(p, "("))
        return arguments(p, n);
    if (!starts_bare_argument(p))
        return FM_OK;
    FM_TRY(primary(p, &arg));
    FM_TRY(postfix(p, &arg));
    return jj_p_add_kid(p, n, arg);
}

/* Parses a filter behind '|' (in a filtered block, at its name). */
fm_status jj_p_filter(jj_parser *p, jj_node **io)
{
    jj_node *n = jj_p_new_node(p, JJ_N_FILTER);
    const char *name;

    if (!n)
        return FM_ENOMEM;
    FM_TRY(jj_p_need_name(p, &name));
    n->a = *io;
    *io = n;
    n->fn = jj_filter_find(name);
    if (n->fn < 0)
        return fm_fail(FM_EUNSUPPORTED, "line %u: filter '%s' is not implemented", n->line, name);
    return jj_p_take_op(p, "(") ? arguments(p, n) : FM_OK;
}

static fm_status filters(jj_parser *p, jj_node **io)
{
    for (;;) {
        if (jj_p_take_op(p, "|"))
            FM_TRY(jj_p_filter(p, io));
        else if (jj_p_take_word(p, "is"))
            FM_TRY(test(p, io));
        else if (jj_p_is_op(p, "(") ||
                 ((jj_p_is_op(p, ".") || jj_p_is_op(p, "[")) && (*io)->kind == JJ_N_FILTER))
            FM_TRY(jj_p_is_op(p, "(") ? postfix(p, io)
                                      : jj_p_fail(p, "put the filtered value in parentheses"));
        else
            return FM_OK;
    }
}

static fm_status unary(jj_parser *p, jj_node **out, bool with_filter)
{
    fm_status rc = jj_p_enter(p);
    bool neg = jj_p_is_op(p, "-");

    *out = NULL;
    if (rc < 0)
        return rc;
    if (neg || jj_p_is_op(p, "+")) {
        jj_node *n = jj_p_new_node(p, neg ? JJ_N_NEG : JJ_N_POS);
        if (!n)
            return FM_ENOMEM;
        p->t++;
        rc = unary(p, &n->a, false);
        *out = n;
    } else {
        rc = primary(p, out);
        FM_THEN(rc, postfix(p, out));
    }
    if (rc == FM_OK && with_filter)
        rc = filters(p, out);
    p->depth--;
    return rc;
}

/* Left-associative levels of arithmetic, loosest first. */
static const struct level {
    const char *op[5];
    jj_op node[4];
} levels[] = {{{"+", "-", NULL}, {JJ_ADD, JJ_SUB}},
              {{"~", NULL}, {JJ_CONCAT}},
              {{"*", "/", "//", "%", NULL}, {JJ_MUL, JJ_DIV, JJ_FLOORDIV, JJ_MOD}}};

static fm_status arithmetic(jj_parser *p, jj_node **out, size_t level)
{
    if (level == FM_ARRAY_LEN(levels))
        return unary(p, out, true);
    fm_status rc = arithmetic(p, out, level + 1);
    while (rc == FM_OK) {
        const struct level *l = &levels[level];
        size_t i = 0;
        while (l->op[i] && !jj_p_is_op(p, l->op[i]))
            i++;
        if (!l->op[i] && jj_p_is_op(p, "**"))
            return jj_p_refuse(p, "operator");
        if (!l->op[i])
            return FM_OK;
        jj_node *n = jj_p_new_node(p, JJ_N_BINARY);
        if (!n)
            return FM_ENOMEM;
        p->t++;
        n->op = l->node[i];
        n->a = *out;
        *out = n;
        rc = arithmetic(p, &n->b, level + 1);
    }
    return rc;
}

static bool comparison(jj_parser *p, jj_op *op)
{
    static const struct {
        const char *s;
        jj_op op;
    } all[] = {{"==", JJ_EQ}, {"!=", JJ_NE}, {"<", JJ_LT},
               {"<=", JJ_LE}, {">", JJ_GT},  {">=", JJ_GE}};

    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++) {
        *op = all[i].op;
        if (jj_p_take_op(p, all[i].s))
            return true;
    }
    *op = JJ_IN;
    if (jj_p_take_word(p, "in"))
        return true;
    if (jj_p_is_word(p, "not") && p->t[1].kind == JJ_T_NAME && strcmp(p->t[1].s, "in") == 0) {
        p->t += 2;
        *op = JJ_NOT_IN;
        return true;
    }
    return false;
}

static fm_status compare(jj_parser *p, jj_node **out)
{
    jj_node *chain = NULL;
    jj_op op;
    FM_TRY(arithmetic(p, out, 0));

    while (comparison(p, &op)) {
        jj_node *operand = jj_p_new_node(p, JJ_N_POS); /* carries the operator; a is the value */
        if (!operand)
            return FM_ENOMEM;
        if (!chain) {
            chain = jj_p_new_node(p, JJ_N_COMPARE);
            if (!chain)
                return FM_ENOMEM;
            chain->a = *out;
            *out = chain;
        }
        operand->op = op;
        FM_TRY(arithmetic(p, &operand->a, 0));
        FM_TRY(jj_p_add_kid(p, chain, operand));
    }
    return FM_OK;
}

static fm_status not_expr(jj_parser *p, jj_node **out)
{
    if (!jj_p_is_word(p, "not"))
        return compare(p, out);
    jj_node *n = jj_p_new_node(p, JJ_N_NOT);
    FM_TRY(n ? jj_p_enter(p) : FM_ENOMEM);
    p->t++;
    *out = n;
    fm_status rc = not_expr(p, &n->a);
    p->depth--;
    return rc;
}

fm_status jj_p_logic(jj_parser *p, jj_node **out, bool is_or)
{
    FM_TRY(is_or ? jj_p_logic(p, out, false) : not_expr(p, out));

    while (jj_p_take_word(p, is_or ? "or" : "and")) {
        jj_node *n = jj_p_new_node(p, is_or ? JJ_N_OR : JJ_N_AND);
        if (!n)
            return FM_ENOMEM;
        n->a = *out;
        *out = n;
        FM_TRY(is_or ? jj_p_logic(p, &n->b, false) : not_expr(p, &n->b));
    }
    return FM_OK;
}

fm_status jj_p_expression(jj_parser *p, jj_node **out)
{
    fm_status rc = jj_p_enter(p);

    *out = NULL;
    FM_THEN(rc, jj_p_logic(p, out, true));
    while (rc == FM_OK && jj_p_take_word(p, "if")) {
        jj_node *n = jj_p_new_node(p, JJ_N_COND);
        if (!n)
            return FM_ENOMEM;
        n->b = *out;
        *out = n;
        rc = jj_p_logic(p, &n->a, true);
        if (rc == FM_OK && jj_p_take_word(p, "else"))
            rc = jj_p_expression(p, &n->c);
    }
    p->depth--;
    return rc;
}

/* Parses an expression, or several with commas between: a tuple without parentheses. */
fm_status jj_p_tuple_expression(jj_parser *p, jj_node **out)
{
    fm_status rc = jj_p_expression(p, out);

    if (rc < 0 || !jj_p_is_op(p, ","))
        return rc;
    jj_node *n = jj_p_new_node(p, JJ_N_TUPLE);
    if (!n)
        return FM_ENOMEM;
    rc = jj_p_add_kid(p, n, *out);
    *out = n;
    while (rc == FM_OK && jj_p_take_op(p, ",") && p->t->kind != JJ_T_BLOCK_END &&
           p->t->kind != JJ_T_VAR_END) {
        jj_node *v;
        rc = jj_p_expression(p, &v);
        FM_THEN(rc, jj_p_add_kid(p, n, v));
    }
    return rc;
}
