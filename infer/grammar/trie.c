/* trie.c - the byte strings of a vocabulary, sorted, as a trie in preorder: a subtree is a
 * run of nodes, so walking it is a loop and leaving out a subtree is a jump. */
#include "infer/grammar/mask.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    fm_span bytes;
    int32_t id;
} entry;

static int by_bytes(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    int r = memcmp(x->bytes.data, y->bytes.data, FM_MIN(x->bytes.len, y->bytes.len));

    if (r)
        return r;
    if (x->bytes.len != y->bytes.len)
        return x->bytes.len < y->bytes.len ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static bool is_ascii(fm_span s)
{
    for (size_t i = 0; i < s.len; i++)
        if (s.data[i] >= 0x80)
            return false;
    return s.len > 0;
}

/* Checks that a token behind another adds its own bytes only: a decoder that puts spaces between
 * tokens, say, cannot be followed byte by byte. Looks at a sample of the ASCII tokens. */
static fm_status check_decoder(const fm_tokenizer *t, const entry *e, size_t count)
{
    fm_buf one, two;
    int32_t ids[2] = {-1, -1};
    fm_status rc = FM_OK;
    bool same = true;

    fm_buf_init(&one, 0);
    fm_buf_init(&two, 0);
    for (size_t i = 0; i < count && rc == FM_OK && same; i += 1 + count / 256) {
        if (!is_ascii(e[i].bytes))
            continue;
        ids[0] = ids[0] < 0 ? e[i].id : ids[0];
        ids[1] = e[i].id;
        fm_buf_clear(&one);
        fm_buf_clear(&two);
        rc = fm_tokenizer_decode(t, ids, 1, true, &one);
        FM_THEN(rc, fm_tokenizer_decode(t, ids, 2, true, &two));
        fm_buf_append(&one, e[i].bytes.data, e[i].bytes.len);
        same = fm_span_eq(fm_buf_span(&one), fm_buf_span(&two));
    }
    FM_THEN(rc, fm_buf_ok(&one));
    fm_buf_release(&one);
    fm_buf_release(&two);
    if (rc == FM_OK && !same)
        return fm_fail(FM_EUNSUPPORTED, "grammar: this tokenizer's decoder puts text between "
                                        "tokens; answers of a given form need one that does not");
    return rc;
}

static fm_status add_node(fm_token_trie *t, uint8_t byte, uint16_t depth)
{
    FM_TRY(fm_grow(&t->node, &t->node_cap, t->nodes + 1, sizeof *t->node));

    t->node[t->nodes++] =
        (gr_trie_node){.byte = byte, .depth = depth, .token = (uint32_t)t->order_count};
    return FM_OK;
}

/* Inserts the next entry in order: adds the nodes below the prefix shared with the entry before. */
static fm_status insert(fm_token_trie *t, uint32_t *open, size_t *depth, const entry *e)
{
    size_t shared = 0;

    while (shared < *depth && shared < e->bytes.len &&
           t->node[open[shared]].byte == e->bytes.data[shared])
        shared++;
    while (*depth > shared)
        t->node[open[--*depth]].end = (uint32_t)t->nodes;
    for (; *depth < e->bytes.len; ++*depth) {
        FM_TRY(add_node(t, e->bytes.data[*depth], (uint16_t)(*depth + 1)));
        open[*depth] = (uint32_t)t->nodes - 1;
    }
    gr_trie_node *last = &t->node[open[*depth - 1]];
    if (last->tokens == 0)
        last->token = (uint32_t)t->order_count;
    last->tokens++;
    t->order[t->order_count++] = e->id;
    return FM_OK;
}

static fm_status fill(fm_token_trie *t, const entry *e, size_t count)
{
    uint32_t open[FM_GRAMMAR_TOKEN_BYTES_MAX];
    size_t depth = 0, bytes = 0;

    for (size_t i = 0; i < count; i++)
        bytes += e[i].bytes.len;
    t->order = fm_calloc(count, sizeof *t->order);
    t->bytes = fm_malloc(bytes);
    t->at = fm_calloc(t->vocab, sizeof *t->at);
    if (!t->order || !t->bytes || !t->at)
        return FM_ENOMEM;
    bytes = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(t->bytes + bytes, e[i].bytes.data, e[i].bytes.len);
        t->at[e[i].id] = (gr_piece){(uint32_t)bytes, (uint32_t)e[i].bytes.len};
        bytes += e[i].bytes.len;
        FM_TRY(insert(t, open, &depth, &e[i]));
    }
    while (depth > 0)
        t->node[open[--depth]].end = (uint32_t)t->nodes;
    return FM_OK;
}

fm_status fm_token_trie_new(fm_token_trie **out, const fm_tokenizer *tok)
{
    fm_token_trie *t = fm_calloc(1, sizeof *t);
    size_t vocab = fm_tokenizer_vocab_size(tok), count = 0;
    entry *e = fm_calloc(vocab, sizeof *e);
    fm_status rc = t && e ? FM_OK : FM_ENOMEM;

    *out = NULL;
    for (size_t id = 0; rc == FM_OK && id < vocab; id++) {
        fm_span s = fm_tokenizer_token_bytes(tok, (int32_t)id);
        if (s.len > 0 && s.len <= FM_GRAMMAR_TOKEN_BYTES_MAX &&
            !fm_tokenizer_is_special(tok, (int32_t)id))
            e[count++] = (entry){s, (int32_t)id};
    }
    if (rc == FM_OK) {
        t->vocab = vocab;
        rc = check_decoder(tok, e, count);
    }
    if (rc == FM_OK) {
        qsort(e, count, sizeof *e, by_bytes);
        rc = fill(t, e, count);
    }
    fm_free(e);
    if (rc == FM_OK)
        *out = t;
    else
        fm_token_trie_free(t);
    return rc;
}

void fm_token_trie_free(fm_token_trie *t)
{
    if (!t)
        return;
    fm_free(t->node);
    fm_free(t->order);
    fm_free(t->bytes);
    fm_free(t->at);
    fm_free(t);
}

size_t fm_token_trie_words(const fm_token_trie *t)
{
    return (t->vocab + 63) / 64;
}
