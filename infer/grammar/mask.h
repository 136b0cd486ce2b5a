/* mask.h - the trie of a vocabulary and the masks kept per state, for this folder alone. */
#ifndef FM_INFER_GRAMMAR_MASK_H
#define FM_INFER_GRAMMAR_MASK_H

#include "infer/grammar/internal.h"

#define GR_SET_MAX 128u            /* configurations at a time; further ones are left out */
#define GR_MASK_WORK_MAX 50000000u /* configurations stepped for one mask */
#define GR_CACHE_MAX ((size_t)64 << 20)

typedef struct gr_trie_node {
    uint32_t end;    /* one behind the last node of its subtree, which follows it */
    uint32_t token;  /* index in order of its first token */
    uint32_t tokens; /* tokens that end here */
    uint16_t depth;  /* bytes from the root; 1 for the root's children */
    uint8_t byte;
} gr_trie_node;
typedef struct gr_piece {
    uint32_t off, len;
} gr_piece;
struct fm_token_trie {
    gr_trie_node *node;
    size_t nodes, node_cap;
    int32_t *order; /* token ids in the order of their bytes */
    size_t order_count;
    uint8_t *bytes;
    gr_piece *at; /* [vocab] into bytes; len 0: not in the trie */
    size_t vocab;
};

/* The tokens that are allowed from one state of the automaton while they stay in its rule. */
struct gr_cached {
    uint64_t *bits; /* [words] mask, or NULL: id lists the tokens */
    uint32_t *id;   /* [ids] */
    size_t ids;
    uint32_t *leave; /* [leaves] trie nodes behind which the rule may have ended */
    size_t leaves;
    size_t bytes;
};

/* Empties the kept masks (also when another trie comes). */
void gr_cache_clear(fm_grammar *g);

#endif
