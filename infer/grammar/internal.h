/* internal.h - what the files of the grammar share, for this folder alone.
 *
 * Compiling: each rule (a subschema that is reached by a call) is written as a nondeterministic
 * automaton by functions that take its states `in` and `out`, made deterministic, and appended to
 * the grammar. Rules never begin with a call, so calling never loops. */
#ifndef FM_INFER_GRAMMAR_INTERNAL_H
#define FM_INFER_GRAMMAR_INTERNAL_H

#include "infer/grammar.h"
#include "store/base/mem.h"

#define GR_NFA_MAX 400000u    /* states of one rule before it is made deterministic */
#define GR_WORK_MAX 10000000u /* units of work of one compilation */
#define GR_INLINE_DEPTH 64    /* $ref, allOf, anyOf within one another without a value between */
#define GR_DIGITS 15          /* decimal digits that a double always tells apart */
#define GR_NONE UINT32_MAX

/* ---- the automaton (nfa.c) ---- */
typedef struct gr_edge {
    uint32_t to;
    uint8_t lo, hi;
} gr_edge;
typedef struct gr_call {
    uint32_t rule, to;
} gr_call;
typedef struct gr_state {
    uint32_t edge, call; /* first of its edges and calls */
    uint32_t edges, calls;
    bool final, live;
} gr_state;

typedef struct gr_cached gr_cached;
struct fm_grammar {
    gr_state *state;
    gr_edge *edge;
    gr_call *call;
    uint32_t *start; /* [rules] */
    size_t states, states_cap, edges, edges_cap, calls, calls_cap, rules, rules_cap;
    /* Masks kept per state, for one trie (mask.c). */
    const fm_token_trie *trie;
    gr_cached **cached; /* [states] */
    size_t cached_bytes;
};

typedef struct gr_nfa_edge {
    uint32_t to, next; /* next edge of the same state, GR_NONE: last */
    uint32_t rule;     /* of a call; else GR_NONE */
    uint16_t lo, hi;   /* bytes; lo > hi: empty move */
} gr_nfa_edge;

typedef struct gr_range {
    uint32_t lo, hi; /* code points, both included */
} gr_range;
typedef struct gr_set { /* ascending ranges, with gaps between them */
    gr_range *r;
    size_t count, cap;
} gr_set;

typedef enum gr_rule_kind {
    GR_SCHEMA,
    GR_ANY,
    GR_OBJECT,
    GR_STRING,
    GR_CHAR,
    GR_BLANK /* depth 1: also one space */
} gr_rule_kind;
typedef struct gr_rule {
    gr_rule_kind kind;
    int depth;             /* GR_ANY, GR_OBJECT */
    const fm_json *schema; /* GR_SCHEMA; borrowed from the root or from `owned` */
    char *text;            /* canonical text: equal schemas are one rule */
    char *where;
} gr_rule;
typedef struct gr_builder {
    fm_grammar *g;
    const fm_json *root;
    bool compact;
    gr_rule *rule;
    size_t rules, rules_cap;
    fm_json **owned; /* merged schemas */
    size_t owned_count, owned_cap;
    const char *where; /* place in the schema of the rule being written */
    uint64_t work;
    int depth;
    /* The automaton of the rule being written. */
    uint32_t *head; /* [nodes] first edge */
    size_t nodes, nodes_cap;
    gr_nfa_edge *nfa;
    size_t nfa_count, nfa_cap;
} gr_builder;

fm_status gr_work(gr_builder *b, uint64_t units);
fm_status gr_node(gr_builder *b, uint32_t *out);
fm_status gr_empty(gr_builder *b, uint32_t in, uint32_t out);
fm_status gr_bytes(gr_builder *b, uint32_t in, uint32_t out, unsigned lo, unsigned hi);
fm_status gr_text(gr_builder *b, uint32_t in, uint32_t out, fm_span text);
fm_status gr_call_to(gr_builder *b, uint32_t in, uint32_t out, uint32_t rule);
/* Appends the rule written between `in` and `out` to the grammar as rule number `rule`. */
fm_status gr_determinize(gr_builder *b, uint32_t rule, uint32_t in, uint32_t out);
/* Takes out states from which no text ends. FM_EINVAL: nothing satisfies rule 0. */
fm_status gr_trim(gr_builder *b);

/* ---- characters of JSON strings, patterns (chars.c, regex.c) ---- */
fm_status gr_set_add(gr_set *s, uint32_t lo, uint32_t hi);
fm_status gr_set_invert(gr_set *s); /* within all code points */
bool gr_set_has(const gr_set *s, uint32_t cp);
void gr_set_release(gr_set *s);
/* One character out of set, as it is spelled inside a JSON string; plain: never escaped. */
fm_status gr_chars(gr_builder *b, uint32_t in, uint32_t out, const gr_set *set, bool plain);
fm_status gr_any_char(gr_builder *b, uint32_t in, uint32_t out); /* any spelling */
/* A string that satisfies the pattern, without the quotes. */
fm_status gr_pattern(gr_builder *b, uint32_t in, uint32_t out, fm_span pattern);
/* The name of an undeclared property, with its quotes: any but those of `names` (an object). */
fm_status gr_other_name(gr_builder *b, uint32_t in, uint32_t out, const fm_json *names);

/* ---- numbers (number.c) ---- */
fm_status gr_number(gr_builder *b, uint32_t in, uint32_t out, const fm_json *schema, bool integer);

/* ---- parts of values (value.c) ---- */
fm_status gr_new_rule(gr_builder *b, gr_rule r, const char *where, uint32_t *out);
fm_status gr_built_in(gr_builder *b, gr_rule_kind kind, int depth, uint32_t *out);
fm_status gr_own(gr_builder *b, fm_json *v); /* consumed; NULL = ENOMEM */
fm_status gr_str(gr_builder *b, uint32_t in, uint32_t out, const char *s);
/* A newline with its indentation, or one space. */
fm_status gr_some_blanks(gr_builder *b, uint32_t in, uint32_t out, bool space);
/* Optional blanks: none, one space, or (lines) a newline with its indentation. Written as a call,
 * since they stand in many places. */
fm_status gr_blanks(gr_builder *b, uint32_t in, uint32_t out, bool space, bool lines);
fm_status gr_json_text(gr_builder *b, uint32_t in, uint32_t out, const fm_json *v);
fm_status gr_count_of(const gr_builder *b, const fm_json *schema, const char *key, uint32_t absent,
                      uint32_t *out);
fm_status gr_string(gr_builder *b, uint32_t in, uint32_t out, const fm_json *schema);
fm_status gr_any_string(gr_builder *b, uint32_t in, uint32_t out);
fm_status gr_any_value(gr_builder *b, uint32_t in, uint32_t out, int depth);
/* {...} (braces) or [...] of values of the depth below; depth 0: empty ones only. */
fm_status gr_any_container(gr_builder *b, uint32_t in, uint32_t out, bool braces, int depth);

/* ---- schemas (schema.c, merge.c, apart.c) ---- */
fm_status gr_refuse(const gr_builder *b, const char *key);
bool gr_is_annotation(const char *key);
/* A schema for what satisfies both x and y; *out is owned by b. */
fm_status gr_merge(gr_builder *b, const fm_json **out, const fm_json *x, const fm_json *y);
fm_status gr_resolve(gr_builder *b, const fm_json **out, const fm_json *schema); /* its $ref */
/* schema without `key` and annotations; *some: anything is left. */
fm_status gr_without(gr_builder *b, const fm_json **out, const fm_json *schema, const char *key,
                     bool *some);
/* The type that the keywords speak of where none is named, or NULL. */
const char *gr_implied_type(const fm_json *schema);
/* apart.c: nothing that is written for branch i, as `written`, satisfies another one of the list.
 * FM_EUNSUPPORTED: that could not be shown. */
fm_status gr_check_one_of(gr_builder *b, const fm_json *written, const fm_json *list, size_t i);

#endif
