/* grammar.h - answers that are JSON of a given schema: which tokens may come next.
 *
 * A schema is compiled once to a pushdown automaton over bytes: per subschema one deterministic
 * automaton whose edges are byte ranges or calls of another. A state of one request is a small set
 * of (automaton state, stack of returns). The mask of a step is found by walking a trie of the
 * vocabulary's byte strings; what a token does within one automaton does not depend on the stack
 * and is kept per automaton state, so that only tokens that leave it are walked again
 * (the method of XGrammar, Dong et al. 2024).
 *
 * What is written always parses and satisfies the schema; not every satisfying text can be
 * written. Chosen once, as engines for serving do:
 *  - where no type is named, values of the type that the keywords speak of (minLength: strings);
 *  - properties come in the order of the schema, undeclared ones after them and only where
 *    additionalProperties is true or a schema (absent: none, unless nothing is declared);
 *    two undeclared ones may bear the same name;
 *  - blanks: none, or one space after ',' and ':', or a newline with at most 24 spaces or 6 tabs
 *    after '{', '[', ',' and before '}', ']' (compact: none at all);
 *  - numbers have at most 15 digits, an exponent at most 2; numbers with bounds have none;
 *  - values that nothing describes nest at most FM_GRAMMAR_ANY_DEPTH deep;
 *  - values of 'enum' and 'const' are written as the schema has them (1 for 1, not 1.0);
 *  - strings under 'pattern', 'format', 'enum', 'const' and names of properties are spelled without
 *    needless escapes.
 *
 * Understood: type, properties, required, additionalProperties, items, prefixItems, minItems,
 * maxItems, minLength, maxLength, pattern, enum, const, format (date, time, date-time, uuid, ipv4,
 * email), minimum, maximum, exclusive*, anyOf, oneOf, allOf (merged), $ref within the schema,
 * recursion; annotations are skipped. Any other keyword is refused by name, and so is a oneOf of
 * which two branches may hold at once: they must differ in type, in the values of const or enum, or
 * in a member that one of them requires. */
#ifndef FM_INFER_GRAMMAR_H
#define FM_INFER_GRAMMAR_H

#include "infer/tokenizer.h"

FM_BEGIN_DECLS

#define FM_GRAMMAR_ANY_DEPTH 20
#define FM_GRAMMAR_STATES_MAX ((size_t)1 << 18) /* states of a compiled grammar */
#define FM_GRAMMAR_RULES_MAX 8192u
#define FM_GRAMMAR_REPEAT_MAX 16384u /* largest minItems, maxItems, minLength, maxLength */
#define FM_GRAMMAR_STACKS_MAX ((size_t)1 << 20)
#define FM_GRAMMAR_TOKEN_BYTES_MAX 256u /* longer tokens are never allowed */

/* Compiled schema. Its cache of masks is filled as it is used: a grammar and all its states belong
 * to one thread at a time. */
typedef struct fm_grammar fm_grammar;

/* schema is not used after return. FM_EINVAL: no schema, or nothing satisfies it; FM_EUNSUPPORTED:
 * a keyword that is not understood, with its place ("schema.properties.a: ..."); FM_ELIMIT: too
 * large. */
FM_CHECKED fm_status fm_grammar_new(fm_grammar **out, const fm_json *schema, bool compact);
/* FM_EUNSUPPORTED: this value of '$schema' names no draft whose keywords are known. */
FM_CHECKED fm_status fm_grammar_check_draft(const fm_json *uri, const char *where);
/* Any JSON object. */
FM_CHECKED fm_status fm_grammar_new_object(fm_grammar **out, bool compact);
void fm_grammar_free(fm_grammar *g); /* after its states; NULL is a no-op */
size_t fm_grammar_states(const fm_grammar *g);

/* The byte strings of a vocabulary as a trie; immutable, t may be closed before it. Special tokens
 * are not in it. FM_EUNSUPPORTED: tokens whose text depends on their neighbours (no decoder). */
typedef struct fm_token_trie fm_token_trie;
FM_CHECKED fm_status fm_token_trie_new(fm_token_trie **out, const fm_tokenizer *t);
void fm_token_trie_free(fm_token_trie *t);          /* NULL is a no-op */
size_t fm_token_trie_words(const fm_token_trie *t); /* 64-bit words of a mask */

/* One answer in the making. Borrows both; trie NULL: bytes only. */
typedef struct fm_grammar_state fm_grammar_state;
FM_CHECKED fm_status fm_grammar_state_new(fm_grammar_state **out, fm_grammar *g,
                                          const fm_token_trie *trie);
void fm_grammar_state_free(fm_grammar_state *st); /* NULL is a no-op */

/* mask[i / 64] bit i % 64: token i may come next; [fm_token_trie_words]. The mask leaves out the
 * end of text, which may come exactly when fm_grammar_complete. FM_EINVAL: no token of the
 * vocabulary may follow and the value is not complete; FM_ELIMIT: the schema is too ambiguous or
 * too deep at this place. */
FM_CHECKED fm_status fm_grammar_mask(fm_grammar_state *st, uint64_t *mask);
/* Moves the state on by a token or by bytes. FM_EINVAL: not allowed; the state is as before. */
FM_CHECKED fm_status fm_grammar_accept(fm_grammar_state *st, int32_t token);
FM_CHECKED fm_status fm_grammar_accept_bytes(fm_grammar_state *st, fm_span bytes);
bool fm_grammar_complete(const fm_grammar_state *st); /* the text so far is a whole value */
bool fm_grammar_ended(const fm_grammar_state *st);    /* and no byte can follow */

FM_END_DECLS
#endif
