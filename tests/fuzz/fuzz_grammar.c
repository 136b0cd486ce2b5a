/* A hostile schema, then bytes that walk through its grammar: the first half as they are, then as
 * choices among the tokens that the mask allows. What is accepted as a whole parses as JSON; every
 * token of a mask can be read. */
#include "infer/grammar.h"

#include <string.h>

#include "tests/kit/grammar_kit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const fm_token_trie *small_trie(void)
{
    static fm_token_trie *trie;

    if (!trie) {
        fm_tokenizer *t = gk_tokenizer();
        fm_assert(fm_token_trie_new(&trie, t) == FM_OK);
        fm_tokenizer_close(t);
    }
    return trie;
}

static void check_whole(const fm_grammar_state *st, fm_span text)
{
    fm_json *v = NULL;

    if (!fm_grammar_complete(st))
        return;
    if (fm_json_parse(&v, text, "text") < 0) /* undeclared names may come twice, see grammar.h */
        fm_assert(strstr(fm_error_text(), "duplicate"));
    fm_json_free(v);
}

/* The nth token of the mask; -1: it is empty. */
static int32_t choose(const uint64_t *mask, size_t words, size_t nth)
{
    size_t count = 0;

    for (size_t i = 0; i < words; i++)
        count += (size_t)__builtin_popcountll(mask[i]);
    nth = count ? nth % count : 0;
    for (size_t i = 0; count && i < words * 64; i++)
        if (mask[i / 64] >> (i % 64) & 1 && nth-- == 0)
            return (int32_t)i;
    return -1;
}

static void by_tokens(fm_grammar *g, fm_span choices)
{
    uint64_t mask[16];
    size_t words = fm_token_trie_words(small_trie());
    fm_grammar_state *st;

    fm_assert(words <= FM_ARRAY_LEN(mask));
    fm_assert(fm_grammar_state_new(&st, g, small_trie()) == FM_OK);
    for (size_t i = 0; i < choices.len && fm_grammar_mask(st, mask) == FM_OK; i++) {
        int32_t id = choose(mask, words, choices.data[i]);
        if (id < 0)
            break;
        fm_assert(fm_grammar_accept(st, id) == FM_OK);
    }
    fm_grammar_state_free(st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t n = end ? (size_t)(end - data) : size;
    fm_span text = fm_span_of(end ? end + 1 : data, end ? size - n - 1 : 0);
    fm_json *schema = NULL;
    fm_grammar *g = NULL;
    fm_grammar_state *st;

    if (fm_json_parse(&schema, fm_span_of(data, n), "schema") < 0)
        return 0;
    fm_status rc = fm_grammar_new(&g, schema, size & 1);
    fm_json_free(schema);
    fm_assert(rc == FM_OK || (!g && fm_error_text()[0]));
    if (rc < 0)
        return 0;
    fm_assert(fm_grammar_state_new(&st, g, NULL) == FM_OK);
    if (fm_grammar_accept_bytes(st, text) == FM_OK)
        check_whole(st, text);
    fm_grammar_state_free(st);
    by_tokens(g, text);
    fm_grammar_free(g);
    return 0;
}
