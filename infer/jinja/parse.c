/* parse.c - tokens to tree: statements and bodies. */
#include "infer/jinja/jinja.h"

#include <string.h>

static fm_status body(jj_parser *p, jj_node **out, const char *const *ends, size_t n);

static fm_status end_block(jj_parser *p)
{
    if (p->t->kind != JJ_T_BLOCK_END)
        return jj_p_fail(p, "expected the end of the block");
    p->t++;
    return FM_OK;
}

/* Parses the end of a block: the word w, then the end of its tag. */
static fm_status end_word(jj_parser *p, const char *w)
{
    if (!jj_p_take_word(p, w))
        return jj_p_fail(p, "wrong end of a block");
    return end_block(p);
}

static fm_status if_statement(jj_parser *p, jj_node *n)
{
    static const char *const ends[] = {"elif", "else", "endif"};

    n->kind = JJ_N_IF;
    fm_status rc = jj_p_expression(p, &n->a);
    FM_THEN(rc, end_block(p));
    FM_THEN(rc, body(p, &n->b, ends, 3));
    if (rc < 0)
        return rc;
    if (jj_p_take_word(p, "elif")) {
        n->c = jj_p_new_node(p, JJ_N_IF);
        if (!n->c)
            return FM_ENOMEM;
        rc = jj_p_enter(p);
        FM_THEN(rc, if_statement(p, n->c));
        p->depth--;
        return rc;
    }
    if (jj_p_take_word(p, "else")) {
        rc = end_block(p);
        FM_THEN(rc, body(p, &n->c, ends + 2, 1));
    }
    return rc < 0 ? rc : end_word(p, "endif");
}

static fm_status target_list(jj_parser *p, jj_node **out, bool attr);

/* Parses a target: a name, a field of a namespace (where attr), or targets in parentheses. */
static fm_status target(jj_parser *p, jj_node **out, bool attr)
{
    jj_node *n = *out = jj_p_new_node(p, JJ_N_NAME);
    fm_status rc = n ? FM_OK : FM_ENOMEM;

    if (rc == FM_OK && jj_p_take_op(p, "(")) {
        rc = jj_p_enter(p);
        FM_THEN(rc, target_list(p, out, attr));
        p->depth--;
        return rc < 0 ? rc : jj_p_need_op(p, ")");
    }
    FM_THEN(rc, jj_p_need_name(p, &n->name));
    if (rc < 0 || !attr || !jj_p_take_op(p, "."))
        return rc;
    jj_node *field = *out = jj_p_new_node(p, JJ_N_ATTR);
    if (!field)
        return FM_ENOMEM;
    field->a = n;
    return jj_p_need_name(p, &field->name);
}

/* Parses one target, or several with commas: a TUPLE of them. */
static fm_status target_list(jj_parser *p, jj_node **out, bool attr)
{
    jj_node *one, *tuple = jj_p_new_node(p, JJ_N_TUPLE);
    fm_status rc = tuple ? target(p, &one, attr) : FM_ENOMEM;

    if (rc == FM_OK)
        *out = one;
    if (rc < 0 || !jj_p_is_op(p, ","))
        return rc;
    *out = tuple;
    rc = jj_p_add_kid(p, tuple, one);
    while (rc == FM_OK && jj_p_take_op(p, ",") && !jj_p_is_word(p, "in") &&
           (p->t->kind == JJ_T_NAME || jj_p_is_op(p, "("))) {
        rc = target(p, &one, attr);
        FM_THEN(rc, jj_p_add_kid(p, tuple, one));
    }
    return rc;
}

/* Parses what a loop runs over. An `if` here is the loop's condition; commas make a tuple. */
static fm_status iterable(jj_parser *p, jj_node **out)
{
    jj_node *tuple = jj_p_new_node(p, JJ_N_TUPLE), *item;
    fm_status rc = tuple ? jj_p_logic(p, out, true) : FM_ENOMEM;

    if (rc < 0 || !jj_p_is_op(p, ","))
        return rc;
    rc = jj_p_add_kid(p, tuple, *out);
    *out = tuple;
    while (rc == FM_OK && jj_p_take_op(p, ",") && p->t->kind != JJ_T_BLOCK_END &&
           !jj_p_is_word(p, "if")) {
        rc = jj_p_logic(p, &item, true);
        FM_THEN(rc, jj_p_add_kid(p, tuple, item));
    }
    return rc;
}

static fm_status for_statement(jj_parser *p, jj_node *n)
{
    static const char *const ends[] = {"else", "endfor"};
    jj_node *to;
    fm_status rc = target_list(p, &to, false);

    n->kind = JJ_N_FOR;
    FM_THEN(rc, jj_p_add_kid(p, n, to));
    if (rc == FM_OK && !jj_p_take_word(p, "in"))
        return jj_p_fail(p, "expected 'in'");
    FM_THEN(rc, iterable(p, &n->a));
    if (rc == FM_OK && jj_p_take_word(p, "if"))
        rc = jj_p_expression(p, &n->d);
    if (rc == FM_OK && jj_p_is_word(p, "recursive"))
        return jj_p_refuse(p, "a loop with");
    FM_THEN(rc, end_block(p));
    p->loops++;
    FM_THEN(rc, body(p, &n->b, ends, 2));
    p->loops--;
    if (rc == FM_OK && jj_p_take_word(p, "else")) {
        rc = end_block(p);
        FM_THEN(rc, body(p, &n->c, ends + 1, 1));
    }
    return rc < 0 ? rc : end_word(p, "endfor");
}

/* Parses filters over the text of a block: `|a|b` (bar) or `a|b`. */
static fm_status block_filters(jj_parser *p, jj_node **out, bool bar)
{
    *out = jj_p_new_node(p, JJ_N_CAPTURED);
    if (!*out)
        return FM_ENOMEM;
    if (!bar)
        FM_TRY(jj_p_filter(p, out));
    while (jj_p_take_op(p, "|"))
        FM_TRY(jj_p_filter(p, out));
    return FM_OK;
}

/* Parses the body of a block whose text is captured: break and continue cannot leave it. */
static fm_status own_body(jj_parser *p, jj_node **out, const char *end)
{
    const char *const ends[] = {end};
    int loops = p->loops;

    p->loops = 0;
    fm_status rc = body(p, out, ends, 1);
    p->loops = loops;
    return rc < 0 ? rc : end_word(p, end);
}

static fm_status set_statement(jj_parser *p, jj_node *n)
{
    jj_node *to;
    fm_status rc = target_list(p, &to, true);

    n->kind = JJ_N_SET;
    FM_THEN(rc, jj_p_add_kid(p, n, to));
    if (rc < 0)
        return rc;
    if (jj_p_take_op(p, "=")) {
        rc = jj_p_tuple_expression(p, &n->a);
        return rc < 0 ? rc : end_block(p);
    }
    n->kind = JJ_N_SET_BLOCK;
    if (jj_p_is_op(p, "|"))
        rc = block_filters(p, &n->a, true);
    FM_THEN(rc, end_block(p));
    return rc < 0 ? rc : own_body(p, &n->b, "endset");
}

static fm_status filter_statement(jj_parser *p, jj_node *n)
{
    n->kind = JJ_N_FILTER_BLOCK;
    FM_TRY(block_filters(p, &n->a, false));
    FM_TRY(end_block(p));
    return own_body(p, &n->b, "endfilter");
}

/* Parses a macro's parameters behind '(': names with defaults, as kids. */
static fm_status parameters(jj_parser *p, jj_node *n)
{
    bool dflt = false;

    while (!jj_p_take_op(p, ")")) {
        jj_node *param = jj_p_new_node(p, JJ_N_NAME);
        if (!param)
            return FM_ENOMEM;
        FM_TRY(jj_p_need_name(p, &param->name));
        if (jj_p_take_op(p, "=")) {
            dflt = true;
            FM_TRY(jj_p_expression(p, &param->a));
        } else if (dflt) {
            return jj_p_fail(p, "a parameter without a default behind one with");
        }
        FM_TRY(jj_p_add_kid(p, n, param));
        if (!jj_p_is_op(p, ")"))
            FM_TRY(jj_p_need_op(p, ","));
    }
    return FM_OK;
}

static fm_status macro_body(jj_parser *p, jj_node *n, const char *end)
{
    bool outer = p->caller;

    p->caller = false;
    p->macros++;
    fm_status rc = end_block(p);
    FM_THEN(rc, own_body(p, &n->b, end));
    p->macros--;
    n->fn = p->caller;
    p->caller = p->caller || outer;
    return rc;
}

static fm_status macro_statement(jj_parser *p, jj_node *n)
{
    fm_status rc = jj_p_need_name(p, &n->name);

    n->kind = JJ_N_MACRO;
    FM_THEN(rc, jj_p_need_op(p, "("));
    FM_THEN(rc, parameters(p, n));
    return rc < 0 ? rc : macro_body(p, n, "endmacro");
}

static fm_status call_statement(jj_parser *p, jj_node *n)
{
    n->kind = JJ_N_CALL_BLOCK;
    n->c = jj_p_new_node(p, JJ_N_MACRO);
    if (!n->c)
        return FM_ENOMEM;
    n->c->name = "caller";
    if (jj_p_take_op(p, "("))
        FM_TRY(parameters(p, n->c));
    FM_TRY(jj_p_postfix(p, &n->a));
    if (n->a->kind != JJ_N_CALL)
        return jj_p_fail(p, "expected a call");
    return macro_body(p, n->c, "endcall");
}

static fm_status statement(jj_parser *p, jj_node **out)
{
    static const char *const generation_end[] = {"endgeneration"};
    const char *word = "";
    jj_node *n = jj_p_new_node(p, JJ_N_BODY);
    fm_status rc = n ? jj_p_need_name(p, &word) : FM_ENOMEM;

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
    if (strcmp(word, "filter") == 0)
        return filter_statement(p, n);
    if (strcmp(word, "call") == 0)
        return call_statement(p, n);
    if (strcmp(word, "break") == 0 || strcmp(word, "continue") == 0) {
        n->kind = word[0] == 'b' ? JJ_N_BREAK : JJ_N_CONTINUE;
        return p->loops > 0 ? end_block(p) : jj_p_fail(p, "break or continue outside a loop");
    }
    if (strcmp(word, "generation") == 0) { /* transformers' mark of answers; prints its body */
        rc = end_block(p);
        FM_THEN(rc, body(p, &n->b, generation_end, 1));
        return rc < 0 ? rc : end_word(p, "endgeneration");
    }
    return fm_fail(FM_EUNSUPPORTED, "line %u: statement '%s' is not implemented", n->line, word);
}

static bool at_end(const jj_parser *p, const char *const *ends, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p->t->kind == JJ_T_BLOCK_BEGIN && p->t[1].kind == JJ_T_NAME &&
            strcmp(p->t[1].s, ends[i]) == 0)
            return true;
    return false;
}

static fm_status one(jj_parser *p, jj_node **out)
{
    if (p->t->kind == JJ_T_BLOCK_BEGIN) {
        p->t++;
        return statement(p, out);
    }
    jj_node *n = *out = jj_p_new_node(p, JJ_N_OUTPUT);
    if (!n)
        return FM_ENOMEM;
    if (p->t->kind == JJ_T_TEXT) {
        n->kind = JJ_N_TEXT;
        n->name = p->t->s;
        n->len = (p->t++)->len;
        return FM_OK;
    }
    p->t++;
    fm_status rc = jj_p_tuple_expression(p, &n->a);
    if (rc == FM_OK && p->t->kind != JJ_T_VAR_END)
        return jj_p_fail(p, "expected '}}'");
    p->t++;
    return rc;
}

/* Parses statements up to one of `ends`, whose word is then next; n 0: the whole template. */
static fm_status body(jj_parser *p, jj_node **out, const char *const *ends, size_t n)
{
    jj_node *list = jj_p_new_node(p, JJ_N_BODY);
    fm_status rc = list ? jj_p_enter(p) : FM_ENOMEM;

    *out = list;
    while (rc == FM_OK && !at_end(p, ends, n)) {
        jj_node *v;
        if (p->t->kind == JJ_T_EOF && n == 0)
            break;
        if (p->t->kind == JJ_T_EOF)
            return fm_fail(FM_EINVAL, "line %u: template ends before '%s'", list->line,
                           ends[n - 1]);
        rc = one(p, &v);
        FM_THEN(rc, jj_p_add_kid(p, list, v));
    }
    if (rc == FM_OK && n > 0)
        p->t++; /* the opening tag of the end */
    p->depth--;
    return rc;
}

fm_status jj_parse(jj_node **out, fm_arena *arena, fm_span source)
{
    jj_lexed lexed = {.tok = NULL};
    jj_parser p = {.arena = arena};
    fm_status rc = jj_lex(&lexed, arena, source);

    *out = NULL;
    p.t = lexed.tok;
    FM_THEN(rc, body(&p, out, NULL, 0));
    fm_free(lexed.tok);
    return rc;
}
