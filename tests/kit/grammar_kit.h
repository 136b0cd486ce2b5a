/* grammar_kit.h - a tokenizer for tests of grammars: every byte, and tokens that cross the parts of
 * a value. */
#ifndef FM_TESTS_KIT_GRAMMAR_H
#define FM_TESTS_KIT_GRAMMAR_H

#include "infer/tokenizer.h"
#include "tests/testkit.h"

static inline void gk_put_token(fm_json *vocab, const char *text, int *id)
{
    fm_buf b;

    fm_buf_init(&b, 0);
    for (const char *p = text; *p; p++) { /* printable ASCII is itself, a space is U+0120 */
        if (*p == ' ' || *p == '\n')
            fm_buf_str(&b, *p == ' ' ? "\xc4\xa0" : "\xc4\x8a");
        else
            fm_buf_char(&b, *p);
    }
    if (!fm_json_get(vocab, fm_buf_cstr(&b)))
        tk_ok(fm_json_set(vocab, fm_buf_cstr(&b), fm_json_new_int((*id)++)));
    fm_buf_release(&b);
}

/* GPT-2's printable character of a byte: itself, or one of U+0100.. in order. */
static inline void gk_put_byte(fm_json *vocab, unsigned byte, unsigned *next, int *id)
{
    bool self = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    unsigned cp = self ? byte : 0x100 + (*next)++;
    char s[3] = {(char)(cp < 0x80 ? cp : 0xc0 | cp >> 6), (char)(cp < 0x80 ? 0 : 0x80 | (cp & 63)),
                 0};

    tk_ok(fm_json_set(vocab, s, fm_json_new_int((*id)++)));
}

static inline fm_tokenizer *gk_tokenizer(void)
{
    static const char *const more[] = {
        "{\"",  "\":",   "\": \"", "\", \"", "\"}",   "\"},",       "\"]",    "],",    "]}",
        "}}",   "{}",    "[]",     "true",   "false", "null",       " true",  " 1",    "12",
        "100",  "-1",    "0.",     ".5",     "e1",    "name",       "\"name", "value", "abc",
        "\\n",  "\\\"",  "\\u00",  ", ",     ": ",    ",\n  ",      "\n}",    "\n  ",  "a\"",
        "1}",   "1,",    "5]",     "12]}",   "tru",   "e,",         "e}",     "l}",    "ll",
        "\"a",  "b\":",  "},{",    "\",\"",  "[1",    "kind\": \"", "rect\"", "\xc3",  "  ",
        "    ", "2024-", "-02",    "Z\"",    "99",    "00"};
    fm_json *o, *vocab = fm_json_new_object(), *model = NULL;
    fm_tokenizer *t;
    fm_buf text;
    unsigned next = 0;
    int id = 0;

    tk_ok(fm_json_set(vocab, "</s>", fm_json_new_int(id++)));
    for (unsigned b = 0; b < 256; b++)
        gk_put_byte(vocab, b, &next, &id);
    for (size_t i = 0; i < FM_ARRAY_LEN(more); i++)
        if ((uint8_t)more[i][0] < 0x80)
            gk_put_token(vocab, more[i], &id);
    tk_ok(fm_json_parse(
        &o,
        fm_span_str("{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{"
                    "\"id\":0,\"content\":\"</s>\",\"single_word\":false,\"lstrip\":false,"
                    "\"rstrip\":false,\"normalized\":false,\"special\":true}],\"normalizer\":null,"
                    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                    "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,"
                    "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
                    "\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\","
                    "\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
                    "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,"
                    "\"ignore_merges\":false,\"merges\":[]}}"),
        "tokenizer"));
    model = fm_json_ref(fm_json_get(o, "model"));
    tk_ok(fm_json_set(model, "vocab", vocab));
    fm_buf_init(&text, 0);
    tk_ok(fm_json_write(&text, o, FM_JSON_COMPACT));
    tk_ok(fm_tokenizer_open(&t, fm_buf_span(&text), fm_span_of(NULL, 0), "small"));
    fm_buf_release(&text);
    fm_json_free(model);
    fm_json_free(o);
    return t;
}

#endif
