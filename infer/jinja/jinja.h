/* jinja.h - the Jinja2 subset that chat templates use. Private to the chat template code.
 *
 * Source -> tokens -> tree (all in the template's arena, immutable) -> evaluation (all values in
 * an arena of one rendering). A filter, test, method or statement that is not known is an error
 * with its line; nothing is skipped. Semantics are those of jinja2 with transformers' settings:
 * trim_blocks, lstrip_blocks, no autoescape, loop controls, sandbox (no mutating methods). */
#ifndef FM_INFER_JINJA_H
#define FM_INFER_JINJA_H

#include "infer/chat.h"
#include "store/base/mem.h"

#define JJ_PARSE_DEPTH 100                /* nesting of expressions and statements */
#define JJ_EVAL_DEPTH 1000                /* nested evaluations, macro calls included */
#define JJ_VALUE_DEPTH 100                /* nesting of a value that is printed or compared */
#define JJ_TOKENS_MAX 1000000             /* of one template */
#define JJ_NAME_MAX 255                   /* bytes; bounds the time to look a name up */
#define JJ_MEMORY_MAX ((size_t)256 << 20) /* of values in one rendering */
#define JJ_RANGE_MAX 100000               /* as jinja2's sandbox */

/* ---- tokens (lex.c) ---- */
typedef enum jj_tok_kind {
    JJ_T_EOF,
    JJ_T_TEXT,
    JJ_T_VAR_BEGIN,
    JJ_T_VAR_END,
    JJ_T_BLOCK_BEGIN,
    JJ_T_BLOCK_END,
    JJ_T_NAME,
    JJ_T_STRING,
    JJ_T_INT,
    JJ_T_FLOAT,
    JJ_T_OP
} jj_tok_kind;

typedef struct jj_tok {
    jj_tok_kind kind;
    uint32_t line;
    const char *s; /* text, name, string value, operator; NUL-terminated but for TEXT */
    size_t len;
    int64_t i;
    double f;
} jj_tok;

typedef struct jj_lexed {
    jj_tok *tok; /* fm_free */
    size_t count, cap;
} jj_lexed;
fm_status jj_lex(jj_lexed *out, fm_arena *arena, fm_span source);

/* ---- values (value.c) ---- */
typedef enum jj_type {
    JJ_UNDEFINED,
    JJ_NONE,
    JJ_BOOL,
    JJ_INT,
    JJ_FLOAT,
    JJ_STRING,
    JJ_LIST,
    JJ_TUPLE,
    JJ_RANGE,
    JJ_VIEW, /* the result of a mapping's keys, values, items */
    JJ_GEN,  /* a generator, from map and select: true, without length, used up once */
    JJ_DICT,
    JJ_NAMESPACE,
    JJ_LOOP,
    JJ_MACRO,
    JJ_BUILTIN
} jj_type;

typedef struct jj_list jj_list;
typedef struct jj_dict jj_dict;
typedef struct jj_loop jj_loop;
typedef struct jj_macro jj_macro;
typedef struct jj_node jj_node;
struct jj_args;

typedef struct jj_val {
    jj_type type;
    union {
        bool b;
        int64_t i;
        double f;
        struct {
            const char *p;
            size_t n;
        } s;           /* JJ_STRING; JJ_UNDEFINED: p names what was not found (or NULL) */
        jj_list *list; /* LIST, TUPLE, RANGE, VIEW, GEN */
        jj_dict *dict; /* DICT, NAMESPACE */
        jj_loop *loop;
        jj_macro *macro;
        int builtin;
    } u;
} jj_val;

struct jj_list {
    jj_val *v;
    size_t count, cap;
    size_t at; /* GEN: items used up */
};
typedef struct jj_pair {
    jj_val key, value;
} jj_pair;
struct jj_dict {
    jj_pair *p;
    size_t count, cap;
};
struct jj_loop {
    const jj_list *items;
    size_t index; /* from 0 */
};

/* One rendering. */
typedef struct jj_var {
    const char *name;
    jj_val value;
} jj_var;
typedef struct jj_scope {
    struct jj_scope *parent;
    jj_var *var;
    size_t count, cap;
    bool captured; /* a macro was defined in it or below: the scope must not be reused */
} jj_scope;
struct jj_macro {
    const jj_node *node;
    jj_scope *scope; /* where it was defined */
};
typedef struct jj_ctx {
    fm_arena *arena;
    size_t bytes;                     /* taken from arena */
    uint64_t work, work_max, look_at; /* done; limit; work at which the watch is called next */
    const fm_chat_watch *watch;       /* or NULL */
    int depth;
    uint32_t line; /* of the node being evaluated */
    fm_buf *out;
    jj_scope *scope;
    bool have_now;
    int64_t now;
} jj_ctx;

/* ---- errors, work and memory of a rendering (util.c) ---- */
fm_status jj_error(const jj_ctx *c, fm_status rc, const char *fmt, ...) FM_PRINTF(3, 4);
/* Prices in units of FM_CHAT_WORK_MAX. A byte that is copied, compared or searched: 1. */
enum {
    JJ_ITEM = 8,     /* a value that is visited or stored */
    JJ_PAIR = 14,    /* two values that are compared */
    JJ_CHAR = 8,     /* a byte of text that is decoded and classified, or written alone */
    JJ_MAP = 32,     /* a byte whose case is mapped */
    JJ_HIT = 64,     /* a part of a text that is found, after which the search begins anew */
    JJ_NODE = 48,    /* an expression or a statement */
    JJ_CALL = 160,   /* a name that is looked for in a table; a whole number that is printed */
    JJ_REAL = 15000, /* a number with a point that is read or printed */
};
/* Counts n units: FM_ELIMIT where fewer are left, FM_ECANCELLED where the watch stops the
 * rendering. Every loop whose length a template or its input decides is counted before it runs: by
 * itself or, where each round calls a function that counts at least as much, by that function. */
fm_status jj_work(jj_ctx *c, uint64_t n);
/* Counts times * each units. */
fm_status jj_work_by(jj_ctx *c, uint64_t times, uint64_t each);
/* Counts the bytes as work, but only the next jj_work ends the rendering for it. NULL with the
 * error set: ENOMEM or ELIMIT. */
void *jj_alloc(jj_ctx *c, size_t bytes);
fm_status jj_alloc_status(const jj_ctx *c);

/* ---- making and reading values (value.c) ---- */
jj_val jj_none(void);
jj_val jj_undefined(const char *name);
jj_val jj_bool(bool b);
jj_val jj_int(int64_t i);
jj_val jj_float(double f);
jj_val jj_str(const char *p, size_t n); /* borrows */
fm_status jj_str_copy(jj_ctx *c, jj_val *out, const void *p, size_t n);
/* Copies b where rc is FM_OK, and releases it. */
fm_status jj_buf_str(jj_ctx *c, jj_val *out, fm_buf *b, fm_status rc);
/* Makes space for one more element of `elem` bytes: arrays double inside the arena; the old copies
 * that they leave behind are smaller than what they hold. */
fm_status jj_grow(jj_ctx *c, void *array_ptr, size_t *cap, size_t count, size_t elem);
fm_status jj_list_new(jj_ctx *c, jj_val *out);
fm_status jj_list_push(jj_ctx *c, jj_list *l, jj_val v);
fm_status jj_dict_new(jj_ctx *c, jj_val *out);
fm_status jj_dict_put(jj_ctx *c, jj_dict *d, jj_val key, jj_val v);
/* *out NULL: absent */
fm_status jj_dict_get(jj_ctx *c, const jj_val **out, const jj_dict *d, const char *key, size_t n);
fm_status jj_from_json(jj_ctx *c, jj_val *out, const fm_json *v);

const char *jj_type_name(jj_val v);
bool jj_truth(jj_val v);
bool jj_is_number(jj_val v); /* BOOL, INT, FLOAT */
double jj_number(jj_val v);
int64_t jj_whole(jj_val v); /* BOOL or INT */
fm_status jj_equal(jj_ctx *c, bool *out, jj_val a, jj_val b);
/* <0, 0, >0 into *order; error unless both are numbers or both strings (lists: elementwise). */
fm_status jj_compare(jj_ctx *c, int *order, jj_val a, jj_val b);
fm_status jj_contains(jj_ctx *c, bool *out, jj_val needle, jj_val hay);
fm_status jj_to_text(jj_ctx *c, fm_buf *out, jj_val v); /* str() */
fm_status jj_tojson(jj_ctx *c, jj_val *out, jj_val in, const struct jj_args *a);
fm_status jj_as_list(jj_ctx *c, jj_val *out, jj_val v); /* iterate: characters, keys, items */
/* Both look at every byte; their callers count that. */
size_t jj_chars(jj_val str);                     /* code points */
size_t jj_char_offset(jj_val str, size_t index); /* byte offset of code point index */
void jj_put_hex(fm_buf *out, const char *head, uint32_t v, int digits);
/* Counts the work of finding every part in s, each search from behind the last hit, with JJ_HIT and
 * the length of part for each hit. */
fm_status jj_count_search(jj_ctx *c, jj_val s, jj_val part);
/* Finds the first place of part within s and counts the work; NULL: none. */
fm_status jj_find(jj_ctx *c, const char **out, jj_val s, jj_val part);

/* ---- tree (parse.c) ---- */
typedef enum jj_kind {
    /* statements */
    JJ_N_TEXT,
    JJ_N_OUTPUT,       /* a */
    JJ_N_BODY,         /* kid[] */
    JJ_N_IF,           /* a ? b : c */
    JJ_N_FOR,          /* kid[0] target; a iterable, b body, c else, d condition */
    JJ_N_SET,          /* kid[0] target (NAME, TUPLE of targets, ATTR of a namespace), a value */
    JJ_N_SET_BLOCK,    /* kid[0] target, b body, a filter chain over JJ_N_CAPTURED or NULL */
    JJ_N_MACRO,        /* name, parameters kid[] (name, a default), b body, fn: it names `caller` */
    JJ_N_CALL_BLOCK,   /* a call, c the MACRO of its body */
    JJ_N_FILTER_BLOCK, /* a filter chain over JJ_N_CAPTURED, b body */
    JJ_N_BREAK,
    JJ_N_CONTINUE,
    /* expressions */
    JJ_N_CONST,
    JJ_N_NAME,
    JJ_N_LIST,
    JJ_N_TUPLE,
    JJ_N_DICT,   /* kid[] alternating key, value */
    JJ_N_ATTR,   /* a.name */
    JJ_N_ITEM,   /* a[b] */
    JJ_N_SLICE,  /* a[b:c:d] */
    JJ_N_CALL,   /* a(args) */
    JJ_N_FILTER, /* a | fn(args) */
    JJ_N_TEST,   /* a is fn(args) */
    JJ_N_COND,   /* b if a else c */
    JJ_N_AND,
    JJ_N_OR,
    JJ_N_NOT,
    JJ_N_NEG,
    JJ_N_POS,
    JJ_N_BINARY,  /* op */
    JJ_N_COMPARE, /* a, then kid[], each with its op */
    JJ_N_CAPTURED /* the text of a set block */
} jj_kind;

typedef enum jj_op {
    JJ_ADD,
    JJ_SUB,
    JJ_MUL,
    JJ_DIV,
    JJ_FLOORDIV,
    JJ_MOD,
    JJ_CONCAT,
    JJ_EQ,
    JJ_NE,
    JJ_LT,
    JJ_LE,
    JJ_GT,
    JJ_GE,
    JJ_IN,
    JJ_NOT_IN
} jj_op;

struct jj_node {
    jj_kind kind;
    jj_op op;
    uint32_t line;
    bool negated;     /* TEST */
    const char *name; /* NAME, ATTR, MACRO, SET_BLOCK; TEXT: bytes */
    size_t len;       /* TEXT */
    jj_node *a, *b, *c, *d;
    jj_node **kid; /* list items; positional arguments */
    size_t kid_count;
    const char **kw; /* names of keyword arguments */
    jj_node **kw_value;
    size_t kw_count;
    jj_node *star; /* CALL, FILTER, TEST: *args */
    int fn;        /* FILTER, TEST: index into their table */
    jj_val value;
};
typedef struct jj_parser {
    fm_arena *arena;
    const jj_tok *t; /* the next token; the last one is JJ_T_EOF */
    int depth;
    int loops;   /* bodies of for around this place: allow break and continue */
    int macros;  /* macros around this place */
    bool caller; /* the macro around this place names `caller` */
} jj_parser;
fm_status jj_p_fail(const jj_parser *p, const char *why);
fm_status jj_p_refuse(const jj_parser *p, const char *what); /* "what 'the token'": unsupported */
jj_node *jj_p_new_node(jj_parser *p, jj_kind kind);          /* NULL = ENOMEM */
bool jj_p_is_op(const jj_parser *p, const char *op);
bool jj_p_is_word(const jj_parser *p, const char *w);
bool jj_p_take_op(jj_parser *p, const char *op);
bool jj_p_take_word(jj_parser *p, const char *w);
fm_status jj_p_need_op(jj_parser *p, const char *op);
fm_status jj_p_need_name(jj_parser *p, const char **out);
fm_status jj_p_add_kid(jj_parser *p, jj_node *n, jj_node *kid);
fm_status jj_p_enter(jj_parser *p); /* depth + 1; the caller takes it back */
fm_status jj_p_expression(jj_parser *p, jj_node **out);
fm_status jj_p_tuple_expression(jj_parser *p, jj_node **out);  /* commas without parentheses */
fm_status jj_p_logic(jj_parser *p, jj_node **out, bool is_or); /* without inline if */
fm_status jj_p_filter(jj_parser *p, jj_node **io);             /* at the filter's name */
fm_status jj_p_postfix(jj_parser *p, jj_node **out);           /* a primary with . [] () */
/* On failure the text has "line N: ...". */
fm_status jj_parse(jj_node **out, fm_arena *arena, fm_span source);

/* ---- arguments (args.c), attributes and items (attr.c), methods (method.c), filters (filter.c),
 * tests (test.c) ---- */
typedef struct jj_args {
    jj_val *pos;
    size_t count;
    const char *const *kw;
    jj_val *kw_value;
    size_t kw_count;
} jj_args;
/* Argument by position or keyword; undefined if neither. */
jj_val jj_arg(const jj_args *a, size_t index, const char *name);
/* Every argument must be one of names[0..n) by keyword or a position below n. */
fm_status jj_args_check(jj_ctx *c, const jj_args *a, const char *what, const char *const *names,
                        size_t n);
fm_status jj_need_str(jj_ctx *c, jj_val v, const char *what);
int jj_filter_find(const char *name); /* -1: unknown */
fm_status jj_filter_run(jj_ctx *c, jj_val *out, int fn, jj_val in, const jj_args *a);
int jj_test_find(const char *name);
fm_status jj_test_run(jj_ctx *c, bool *out, int fn, jj_val in, const jj_args *a);
/* Attribute path "a.b" or index of v; undefined where absent. */
fm_status jj_attr_path(jj_ctx *c, jj_val *out, jj_val v, jj_val path);
/* An attribute of v, undefined where absent; a method, which wants a call, is refused. */
fm_status jj_get_attr(jj_ctx *c, jj_val *out, jj_val v, const char *name);
bool jj_is_method(jj_type type, const char *name);           /* of a mapping */
fm_status jj_no_attr(jj_ctx *c, jj_val v, const char *name); /* v is undefined: an error */
fm_status jj_get_item(jj_ctx *c, jj_val *out, jj_val v, jj_val key);
fm_status jj_method(jj_ctx *c, jj_val *out, jj_val self, const char *name, const jj_args *a);
fm_status jj_trim(jj_ctx *c, jj_val *out, jj_val s, jj_val chars, bool left, bool right);
fm_status jj_replace(jj_ctx *c, jj_val *out, jj_val s, jj_val from, jj_val to, jj_val count);
fm_status jj_title(jj_ctx *c, jj_val *out, jj_val s, bool whole);

/* Operators (arith.c). */
fm_status jj_bad_operands(const jj_ctx *c, const char *what, jj_val a, jj_val b);
fm_status jj_binary(jj_ctx *c, jj_val *out, jj_op op, jj_val a, jj_val b);
fm_status jj_compare_op(jj_ctx *c, bool *out, jj_op op, jj_val a, jj_val b);

/* ---- names (scope.c) ---- */
fm_status jj_lookup(jj_ctx *c, const char *name, jj_val *out); /* undefined: not found */
fm_status jj_assign(jj_ctx *c, const char *name, jj_val v);
/* A new scope below parent becomes the present one; the caller sets the former one again. */
fm_status jj_scope_enter(jj_ctx *c, jj_scope *parent);

/* ---- evaluation (eval.c), calls (call.c), statements (exec.c) ---- */
typedef enum jj_flow { JJ_NEXT, JJ_BREAK, JJ_CONTINUE } jj_flow;
fm_status jj_enter(jj_ctx *c, const jj_node *n); /* depth + 1; the caller subtracts it again */
fm_status jj_eval(jj_ctx *c, jj_val *out, const jj_node *n);
fm_status jj_run(jj_ctx *c, const jj_node *n, jj_flow *f);
/* Runs a body in a scope of its own and returns its text in *out. */
fm_status jj_capture(jj_ctx *c, jj_val *out, const jj_node *body);
/* Evaluates the arguments of n. caller: the body of a call block, as keyword `caller`, or NULL. */
fm_status jj_eval_args(jj_ctx *c, jj_args *a, const jj_node *n, const jj_val *caller);
fm_status jj_call_node(jj_ctx *c, jj_val *out, const jj_node *n, const jj_val *caller);
fm_status jj_new_macro(jj_ctx *c, jj_val *out, const jj_node *n);

/* ---- case (case.c) ---- */
typedef enum jj_case { JJ_LOWER, JJ_UPPER, JJ_TITLE } jj_case;
/* Writes the code point at byte `at` of str, mapped for its place (a small sigma depends on its
 * neighbours); returns its bytes in str. */
size_t jj_put_case(fm_buf *out, jj_val str, size_t at, jj_case to);
fm_status jj_put_cased(jj_ctx *c, fm_buf *out, jj_val str, jj_case to); /* all of str */
fm_status jj_cased(jj_ctx *c, jj_val *out, jj_val str, jj_case to);
bool jj_is_printable(uint32_t cp);
bool jj_is_cased(uint32_t cp);

/* ---- methods of strings (str.c) ---- */
fm_status jj_str_method(jj_ctx *c, jj_val *out, jj_val s, const char *name, const jj_args *a);
bool jj_is_str_method(const char *name); /* a method of Python's str, implemented or not */
fm_status jj_lines(jj_ctx *c, jj_val *out, jj_val s);

/* ---- filters of text (filter_text.c) ---- */
typedef fm_status (*jj_filter_fn)(jj_ctx *c, jj_val *out, jj_val in, const jj_args *a);
typedef struct jj_filter {
    const char *name;
    jj_filter_fn fn;
} jj_filter;
extern const jj_filter jj_text_filters[];
extern const size_t jj_text_filter_count;

fm_status jj_gen_new(jj_ctx *c, jj_val *out); /* a generator to push to */
bool jj_is_seq(jj_val v);                     /* LIST, TUPLE, RANGE */
bool jj_builtin_find(const jj_ctx *c, const char *name, jj_val *out);
fm_status jj_builtin_call(jj_ctx *c, jj_val *out, int fn, const jj_args *a);
fm_status jj_exec(jj_ctx *c, const jj_node *n);

#endif
