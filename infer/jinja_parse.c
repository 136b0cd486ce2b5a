/* jinja_parse.c - tokens to tree. Precedence and quirks are jinja2's: tests and filters bind
 * tighter than arithmetic, `is` takes one bare argument, `~` stands between + and *. */
#include "infer/jinja.h"

#include <string.h>

typedef struct parser {
    fm_arena *arena;
    const jj_tok *t;
    int depth;
    int loops; /* for bodies around this place, for break and continue */
} parser;

static fm_status expression(parser *p, jj_node **out);
static fm_status unary(parser *p, jj_node **out, bool with_filter);
static fm_status body(parser *p, jj_node **out, const char *const *ends, size_t n);

static fm_status fail(const parser *p, const char *why)
{
    return fm_fail(FM_EINVAL, "line %u: %s near '%.40s'", p->t->line, why,
                   p->t->kind == JJ_T_TEXT || !p->t->s ? "" : p->t->s);
}

static jj_node *new_node(parser *p, jj_kind kind)
{
    jj_node *n = fm_arena_alloc(p->arena, sizeof *n);

    if (n) {
        n->kind = kind;
        n->line = p->t->line;
    }
    return n;
}

static bool is_op(const parser *p, const char *op)
{
    return p->t->kind == JJ_T_OP && strcmp(p->t->s, op) == 0;
}

static bool is_word(const parser *p, const char *w)
{
    return p->t->kind == JJ_T_NAME && strcmp(p->t->s, w) == 0;
}

static bool take_op(parser *p, const char *op)
{
    bool hit = is_op(p, op);

    p->t += hit;
    return hit;
}

static bool take_word(parser *p, const char *w)
{
    bool hit = is_word(p, w);

    p->t += hit;
    return hit;
}

static fm_status need_op(parser *p, const char *op)
{
    if (take_op(p, op))
        return FM_OK;
    return fm_fail(FM_EINVAL, "line %u: expected '%s' near '%.40s'", p->t->line, op,
                   p->t->s ? p->t->s : "");
}

static fm_status need_name(parser *p, const char **out)
{
    *out = "";
    if (p->t->kind != JJ_T_NAME)
        return fail(p, "expected a name");
    *out = (p->t++)->s;
    return FM_OK;
}

/* Append to a growing array in the arena: capacities are powers of two, so the count tells. */
static fm_status grow(parser *p, void *array_ptr, size_t count, size_t elem)
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

static fm_status add_kid(parser *p, jj_node *n, jj_node *kid)
{
    fm_status rc = grow(p, &n->kid, n->kid_count, sizeof *n->kid);

    if (rc == FM_OK)
        n->kid[n->kid_count++] = kid;
    return rc;
}

static fm_status enter(parser *p)
{
    if (++p->depth > JJ_PARSE_DEPTH)
        return fm_fail(FM_ELIMIT, "line %u: nested deeper than %d", p->t->line, JJ_PARSE_DEPTH);
    return FM_OK;
}

/* ---- expressions ---- */

static fm_status arguments(parser *p, jj_node *call)
{
    fm_status rc = FM_OK;

    while (rc == FM_OK && !take_op(p, ")")) {
        jj_node *v;
        if (p->t->kind == JJ_T_NAME && p->t[1].kind == JJ_T_OP && strcmp(p->t[1].s, "=") == 0) {
            const char *name = p->t->s;
            p->t += 2;
            rc = expression(p, &v);
            if (rc == FM_OK)
                rc = grow(p, &call->kw, call->kw_count, sizeof *call->kw);
            if (rc == FM_OK)
                rc = grow(p, &call->kw_value, call->kw_count, sizeof *call->kw_value);
            if (rc < 0)
                return rc;
            call->kw[call->kw_count] = name;
            call->kw_value[call->kw_count++] = v;
        } else {
            if (is_op(p, "*") || is_op(p, "**") || call->kw_count > 0)
                return fail(p, "this kind of argument is not implemented");
            rc = expression(p, &v);
            if (rc == FM_OK)
                rc = add_kid(p, call, v);
        }
        if (rc == FM_OK && !is_op(p, ")"))
            rc = need_op(p, ",");
    }
    return rc;
}

/* Items up to the closing operator, as kids; pairs: key ':' value. */
static fm_status items(parser *p, jj_node *n, const char *close, bool pairs)
{
    fm_status rc = FM_OK;

    while (rc == FM_OK && !take_op(p, close)) {
        jj_node *v;
        rc = expression(p, &v);
        if (rc == FM_OK)
            rc = add_kid(p, n, v);
        if (rc == FM_OK && pairs) {
            rc = need_op(p, ":");
            if (rc == FM_OK)
                rc = expression(p, &v);
            if (rc == FM_OK)
                rc = add_kid(p, n, v);
        }
        if (rc == FM_OK && !is_op(p, close))
            rc = need_op(p, ",");
    }
    return rc;
}

/* Behind '(': a parenthesised expression or a tuple. */
static fm_status paren(parser *p, jj_node **out)
{
    jj_node *tuple = new_node(p, JJ_N_TUPLE);

    if (!tuple)
        return FM_ENOMEM;
    if (!is_op(p, ")")) {
        fm_status rc = expression(p, out);
        if (rc < 0 || take_op(p, ")"))
            return rc;
        rc = add_kid(p, tuple, *out);
        if (rc == FM_OK)
            rc = need_op(p, ",");
        if (rc < 0)
            return rc;
    }
    *out = tuple;
    return items(p, tuple, ")", false);
}

static fm_status string_const(parser *p, jj_node *n)
{
    fm_buf b;

    n->value = jj_str(p->t->s, p->t->len);
    if (p->t[1].kind != JJ_T_STRING) {
        p->t++;
        return FM_OK;
    }
    fm_buf_init(&b, FM_CHAT_SOURCE_MAX); /* neighbouring literals are one */
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

static fm_status primary(parser *p, jj_node **out)
{
    jj_node *n = new_node(p, JJ_N_CONST);

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
        }
        p->t++;
        return FM_OK;
    }
    if (take_op(p, "("))
        return paren(p, out);
    n->kind = is_op(p, "{") ? JJ_N_DICT : JJ_N_LIST;
    if (take_op(p, "["))
        return items(p, n, "]", false);
    if (take_op(p, "{"))
        return items(p, n, "}", true);
    return fail(p, "unexpected token");
}

/* Behind '[': an index or a slice. */
static fm_status subscript(parser *p, jj_node *n)
{
    jj_node **part[3] = {&n->b, &n->c, &n->d};
    int i = 0;

    n->kind = JJ_N_ITEM;
    for (;;) {
        if (!is_op(p, ":") && !is_op(p, "]")) {
            fm_status rc = expression(p, part[i]);
            if (rc < 0)
                return rc;
        }
        if (!take_op(p, ":"))
            break;
        n->kind = JJ_N_SLICE;
        if (++i > 2)
            return fail(p, "slice has too many parts");
    }
    if (n->kind == JJ_N_ITEM && !n->b)
        return fail(p, "empty subscript");
    return need_op(p, "]");
}

static fm_status postfix(parser *p, jj_node **io)
{
    fm_status rc = FM_OK;

    while (rc == FM_OK && (is_op(p, ".") || is_op(p, "[") || is_op(p, "("))) {
        jj_node *n = new_node(p, JJ_N_ATTR);
        if (!n)
            return FM_ENOMEM;
        n->a = *io;
        *io = n;
        if (take_op(p, "(")) {
            n->kind = JJ_N_CALL;
            rc = arguments(p, n);
        } else if (take_op(p, "[")) {
            rc = subscript(p, n);
        } else {
            p->t++;
            rc = need_name(p, &n->name);
        }
    }
    return rc;
}

static bool starts_bare_argument(const parser *p)
{
    if (p->t->kind == JJ_T_STRING || p->t->kind == JJ_T_INT || p->t->kind == JJ_T_FLOAT)
        return true;
    if (p->t->kind == JJ_T_NAME)
        return !is_word(p, "else") && !is_word(p, "or") && !is_word(p, "and") &&
               !is_word(p, "is") && !is_word(p, "if") && !is_word(p, "not");
    return is_op(p, "[") || is_op(p, "{");
}

/* Behind `is`. */
static fm_status test(parser *p, jj_node **io)
{
    jj_node *n = new_node(p, JJ_N_TEST), *arg;
    const char *name;
    fm_status rc;

    if (!n)
        return FM_ENOMEM;
    n->a = *io;
    *io = n;
    n->scoped = take_word(p, "not");
    rc = need_name(p, &name);
    if (rc < 0)
        return rc;
    n->fn = jj_test_find(name);
    if (n->fn < 0)
        return fm_fail(FM_EUNSUPPORTED, "line %u: test '%s' is not implemented", n->line, name);
    if (take_op(p, "("))
        return arguments(p, n);
    if (!starts_bare_argument(p))
        return FM_OK;
    rc = primary(p, &arg);
    if (rc == FM_OK)
        rc = postfix(p, &arg);
    return rc < 0 ? rc : add_kid(p, n, arg);
}

/* Behind '|' (or at the name, in a filtered block). */
static fm_status filter(parser *p, jj_node **io)
{
    jj_node *n = new_node(p, JJ_N_FILTER);
    const char *name;

    if (!n)
        return FM_ENOMEM;
    fm_status rc = need_name(p, &name);
    if (rc < 0)
        return rc;
    n->a = *io;
    *io = n;
    n->fn = jj_filter_find(name);
    if (n->fn < 0)
        return fm_fail(FM_EUNSUPPORTED, "line %u: filter '%s' is not implemented", n->line, name);
    return take_op(p, "(") ? arguments(p, n) : FM_OK;
}

static fm_status filters(parser *p, jj_node **io)
{
    fm_status rc = FM_OK;

    for (;;) {
        if (take_op(p, "|"))
            rc = filter(p, io);
        else if (take_word(p, "is"))
            rc = test(p, io);
        else if (is_op(p, "(") || ((is_op(p, ".") || is_op(p, "[")) && (*io)->kind == JJ_N_FILTER))
            rc = is_op(p, "(") ? postfix(p, io) : fail(p, "put the filtered value in parentheses");
        else
            return FM_OK;
        if (rc < 0)
            return rc;
    }
}

static fm_status unary(parser *p, jj_node **out, bool with_filter)
{
    fm_status rc = enter(p);
    bool neg = is_op(p, "-");

    *out = NULL;
    if (rc < 0)
        return rc;
    if (neg || is_op(p, "+")) {
        jj_node *n = new_node(p, neg ? JJ_N_NEG : JJ_N_POS);
        if (!n)
            return FM_ENOMEM;
        p->t++;
        rc = unary(p, &n->a, false);
        *out = n;
    } else {
        rc = primary(p, out);
        if (rc == FM_OK)
            rc = postfix(p, out);
    }
    if (rc == FM_OK && with_filter)
        rc = filters(p, out);
    p->depth--;
    return rc;
}

/* Left-associative levels of arithmetic, loosest first; ** is below them. */
static const struct level {
    const char *op[5];
    jj_op node[4];
} levels[] = {{{"+", "-", NULL}, {JJ_ADD, JJ_SUB}},
              {{"~", NULL}, {JJ_CONCAT}},
              {{"*", "/", "//", "%", NULL}, {JJ_MUL, JJ_DIV, JJ_FLOORDIV, JJ_MOD}},
              {{"**", NULL}, {JJ_POW}}};

static fm_status arithmetic(parser *p, jj_node **out, size_t level)
{
    if (level == FM_ARRAY_LEN(levels))
        return unary(p, out, true);
    fm_status rc = arithmetic(p, out, level + 1);
    while (rc == FM_OK) {
        const struct level *l = &levels[level];
        size_t i = 0;
        while (l->op[i] && !is_op(p, l->op[i]))
            i++;
        if (!l->op[i])
            return FM_OK;
        jj_node *n = new_node(p, JJ_N_BINARY);
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

static bool comparison(parser *p, jj_op *op)
{
    static const struct {
        const char *s;
        jj_op op;
    } all[] = {{"==", JJ_EQ}, {"!=", JJ_NE}, {"<", JJ_LT},
               {"<=", JJ_LE}, {">", JJ_GT},  {">=", JJ_GE}};

    for (size_t i = 0; i < FM_ARRAY_LEN(all); i++) {
        *op = all[i].op;
        if (take_op(p, all[i].s))
            return true;
    }
    *op = JJ_IN;
    if (take_word(p, "in"))
        return true;
    if (is_word(p, "not") && p->t[1].kind == JJ_T_NAME && strcmp(p->t[1].s, "in") == 0) {
        p->t += 2;
        *op = JJ_NOT_IN;
        return true;
    }
    return false;
}

static fm_status compare(parser *p, jj_node **out)
{
    jj_node *chain = NULL;
    jj_op op;
    fm_status rc = arithmetic(p, out, 0);

    while (rc == FM_OK && comparison(p, &op)) {
        jj_node *operand = new_node(p, JJ_N_POS); /* carries the operator; a is the value */
        if (!operand)
            return FM_ENOMEM;
        if (!chain) {
            chain = new_node(p, JJ_N_COMPARE);
            if (!chain)
                return FM_ENOMEM;
            chain->a = *out;
            *out = chain;
        }
        operand->op = op;
        rc = arithmetic(p, &operand->a, 0);
        if (rc == FM_OK)
            rc = add_kid(p, chain, operand);
    }
    return rc;
}

static fm_status not_expr(parser *p, jj_node **out)
{
    if (!is_word(p, "not"))
        return compare(p, out);
    jj_node *n = new_node(p, JJ_N_NOT);
    fm_status rc = n ? enter(p) : FM_ENOMEM;
    if (rc < 0)
        return rc;
    p->t++;
    *out = n;
    rc = not_expr(p, &n->a);
    p->depth--;
    return rc;
}

static fm_status logic(parser *p, jj_node **out, bool is_or)
{
    fm_status rc = is_or ? logic(p, out, false) : not_expr(p, out);

    while (rc == FM_OK && take_word(p, is_or ? "or" : "and")) {
        jj_node *n = new_node(p, is_or ? JJ_N_OR : JJ_N_AND);
        if (!n)
            return FM_ENOMEM;
        n->a = *out;
        *out = n;
        rc = is_or ? logic(p, &n->b, false) : not_expr(p, &n->b);
    }
    return rc;
}

static fm_status expression(parser *p, jj_node **out)
{
    fm_status rc = enter(p);

    *out = NULL;
    if (rc == FM_OK)
        rc = logic(p, out, true);
    while (rc == FM_OK && take_word(p, "if")) {
        jj_node *n = new_node(p, JJ_N_COND);
        if (!n)
            return FM_ENOMEM;
        n->b = *out;
        *out = n;
        rc = logic(p, &n->a, true);
        if (rc == FM_OK && take_word(p, "else"))
            rc = expression(p, &n->c);
    }
    p->depth--;
    return rc;
}

/* An expression, or several with commas between: a tuple without parentheses. */
static fm_status tuple_expression(parser *p, jj_node **out)
{
    fm_status rc = expression(p, out);

    if (rc < 0 || !is_op(p, ","))
        return rc;
    jj_node *n = new_node(p, JJ_N_TUPLE);
    if (!n)
        return FM_ENOMEM;
    rc = add_kid(p, n, *out);
    *out = n;
    while (rc == FM_OK && take_op(p, ",") && p->t->kind != JJ_T_BLOCK_END &&
           p->t->kind != JJ_T_VAR_END) {
        jj_node *v;
        rc = expression(p, &v);
        if (rc == FM_OK)
            rc = add_kid(p, n, v);
    }
    return rc;
}

/* ---- statements ---- */

static fm_status end_block(parser *p)
{
    if (p->t->kind != JJ_T_BLOCK_END)
        return fail(p, "expected the end of the block");
    p->t++;
    return FM_OK;
}

/* The word that ended a body, then its own end. */
static fm_status end_word(parser *p, const char *w)
{
    if (!take_word(p, w))
        return fail(p, "wrong end of a block");
    return end_block(p);
}

static fm_status if_statement(parser *p, jj_node *n)
{
    static const char *const ends[] = {"elif", "else", "endif"};

    n->kind = JJ_N_IF;
    fm_status rc = expression(p, &n->a);
    if (rc == FM_OK)
        rc = end_block(p);
    if (rc == FM_OK)
        rc = body(p, &n->b, ends, 3);
    if (rc < 0)
        return rc;
    if (take_word(p, "elif")) {
        n->c = new_node(p, JJ_N_IF);
        if (!n->c)
            return FM_ENOMEM;
        rc = enter(p);
        if (rc == FM_OK)
            rc = if_statement(p, n->c);
        p->depth--;
        return rc;
    }
    if (take_word(p, "else")) {
        rc = end_block(p);
        if (rc == FM_OK)
            rc = body(p, &n->c, ends + 2, 1);
    }
    return rc < 0 ? rc : end_word(p, "endif");
}

/* name, or name, name, ... (possibly in parentheses) */
static fm_status targets(parser *p, jj_node *n)
{
    bool paren = take_op(p, "(");
    fm_status rc = FM_OK;

    do {
        jj_node *t = new_node(p, JJ_N_NAME);
        if (!t)
            return FM_ENOMEM;
        rc = need_name(p, &t->name);
        if (rc == FM_OK)
            rc = add_kid(p, n, t);
        if (rc < 0)
            return rc;
        if (!take_op(p, ","))
            break;
        n->scoped = true;
    } while (p->t->kind == JJ_T_NAME && !is_word(p, "in"));
    return paren ? need_op(p, ")") : FM_OK;
}

static fm_status for_statement(parser *p, jj_node *n)
{
    static const char *const ends[] = {"else", "endfor"};
    fm_status rc = targets(p, n);

    n->kind = JJ_N_FOR;
    if (rc == FM_OK && !take_word(p, "in"))
        return fail(p, "expected 'in'");
    if (rc == FM_OK)
        rc = logic(p, &n->a, true); /* no inline if here: that is the loop's condition */
    if (rc == FM_OK && is_op(p, ",")) {
        return fm_fail(FM_EUNSUPPORTED, "line %u: put the tuple in parentheses", n->line);
    }
    if (rc == FM_OK && take_word(p, "if"))
        rc = expression(p, &n->d);
    if (rc == FM_OK && is_word(p, "recursive"))
        return fm_fail(FM_EUNSUPPORTED, "line %u: recursive loops are not implemented", n->line);
    if (rc == FM_OK)
        rc = end_block(p);
    p->loops++;
    if (rc == FM_OK)
        rc = body(p, &n->b, ends, 2);
    p->loops--;
    if (rc == FM_OK && take_word(p, "else")) {
        rc = end_block(p);
        if (rc == FM_OK)
            rc = body(p, &n->c, ends + 1, 1);
    }
    return rc < 0 ? rc : end_word(p, "endfor");
}

static fm_status set_block(parser *p, jj_node *n)
{
    static const char *const ends[] = {"endset"};
    fm_status rc = FM_OK;

    n->kind = JJ_N_SET_BLOCK;
    if (is_op(p, "|")) {
        n->a = new_node(p, JJ_N_CAPTURED);
        if (!n->a)
            return FM_ENOMEM;
        while (rc == FM_OK && take_op(p, "|"))
            rc = filter(p, &n->a);
    }
    if (rc == FM_OK)
        rc = end_block(p);
    if (rc == FM_OK)
        rc = body(p, &n->b, ends, 1);
    return rc < 0 ? rc : end_word(p, "endset");
}

static fm_status set_statement(parser *p, jj_node *n)
{
    fm_status rc = targets(p, n);

    n->kind = JJ_N_SET;
    if (rc == FM_OK && take_op(p, ".")) {
        n->kind = JJ_N_SET_ATTR;
        rc = need_name(p, &n->name);
    }
    if (rc < 0)
        return rc;
    if (n->kind == JJ_N_SET && n->kid_count == 1 && !is_op(p, "="))
        return set_block(p, n);
    rc = need_op(p, "=");
    if (rc == FM_OK)
        rc = tuple_expression(p, &n->a);
    return rc < 0 ? rc : end_block(p);
}

static fm_status macro_statement(parser *p, jj_node *n)
{
    static const char *const ends[] = {"endmacro"};
    fm_status rc = need_name(p, &n->name);
    int loops = p->loops;

    n->kind = JJ_N_MACRO;
    if (rc == FM_OK)
        rc = need_op(p, "(");
    while (rc == FM_OK && !take_op(p, ")")) {
        jj_node *param = new_node(p, JJ_N_NAME);
        if (!param)
            return FM_ENOMEM;
        rc = need_name(p, &param->name);
        if (rc == FM_OK && take_op(p, "="))
            rc = expression(p, &param->a);
        if (rc == FM_OK)
            rc = add_kid(p, n, param);
        if (rc == FM_OK && !is_op(p, ")"))
            rc = need_op(p, ",");
    }
    if (rc == FM_OK)
        rc = end_block(p);
    p->loops = 0;
    if (rc == FM_OK)
        rc = body(p, &n->b, ends, 1);
    p->loops = loops;
    return rc < 0 ? rc : end_word(p, "endmacro");
}

static fm_status statement(parser *p, jj_node **out)
{
    static const char *const generation_end[] = {"endgeneration"};
    const char *word = "";
    jj_node *n = new_node(p, JJ_N_BODY);
    fm_status rc = n ? need_name(p, &word) : FM_ENOMEM;

    *out = n;
    if (rc < 0)
        return rc;
    if (strcmp(word, "if") == 0)
        return if_statement(p, n);
    if (strcmp(word, "for") == 0)
        return for_statement(p, n);
    if (strcmp(word, "set") == 0)
        return set_statement(p, n);
    if (strcmp(word, "macro") == 0)
        return macro_statement(p, n);
    if (strcmp(word, "break") == 0 || strcmp(word, "continue") == 0) {
        n->kind = word[0] == 'b' ? JJ_N_BREAK : JJ_N_CONTINUE;
        return p->loops > 0 ? end_block(p) : fail(p, "break or continue outside a loop");
    }
    if (strcmp(word, "generation") == 0) { /* transformers marks the answers so; prints its body */
        rc = end_block(p);
        if (rc == FM_OK)
            rc = body(p, &n->b, generation_end, 1);
        return rc < 0 ? rc : end_word(p, "endgeneration");
    }
    return fm_fail(FM_EUNSUPPORTED, "line %u: statement '%s' is not implemented", n->line, word);
}

static bool at_end(const parser *p, const char *const *ends, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p->t->kind == JJ_T_BLOCK_BEGIN && p->t[1].kind == JJ_T_NAME &&
            strcmp(p->t[1].s, ends[i]) == 0)
            return true;
    return false;
}

static fm_status one(parser *p, jj_node **out)
{
    if (p->t->kind == JJ_T_BLOCK_BEGIN) {
        p->t++;
        return statement(p, out);
    }
    jj_node *n = *out = new_node(p, JJ_N_OUTPUT);
    if (!n)
        return FM_ENOMEM;
    if (p->t->kind == JJ_T_TEXT) {
        n->kind = JJ_N_TEXT;
        n->name = p->t->s;
        n->len = (p->t++)->len;
        return FM_OK;
    }
    p->t++;
    fm_status rc = tuple_expression(p, &n->a);
    if (rc == FM_OK && p->t->kind != JJ_T_VAR_END)
        return fail(p, "expected '}}'");
    p->t++;
    return rc;
}

/* Statements until one of `ends`, whose word is then next; ends NULL: the whole template. */
static fm_status body(parser *p, jj_node **out, const char *const *ends, size_t n)
{
    jj_node *list = new_node(p, JJ_N_BODY);
    fm_status rc = list ? enter(p) : FM_ENOMEM;

    *out = list;
    while (rc == FM_OK && !at_end(p, ends, n)) {
        jj_node *v;
        if (p->t->kind == JJ_T_EOF && n == 0)
            break;
        if (p->t->kind == JJ_T_EOF)
            return fm_fail(FM_EINVAL, "line %u: template ends before '%s'", list->line,
                           ends[n - 1]);
        rc = one(p, &v);
        if (rc == FM_OK)
            rc = add_kid(p, list, v);
    }
    if (rc == FM_OK && n > 0)
        p->t++; /* the block's begin */
    p->depth--;
    return rc;
}

fm_status jj_parse(jj_node **out, fm_arena *arena, fm_span source)
{
    jj_lexed lexed = {.tok = NULL};
    parser p = {.arena = arena};
    fm_status rc = jj_lex(&lexed, arena, source);

    *out = NULL;
    p.t = lexed.tok;
    if (rc == FM_OK)
        rc = body(&p, out, NULL, 0);
    fm_free(lexed.tok);
    return rc;
}
