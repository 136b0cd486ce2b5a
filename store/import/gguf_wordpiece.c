/* gguf_wordpiece.c - the BERT vocabulary of a GGUF as a tokenizer.json.
 *
 * The file has U+2581 before tokens that begin a word and nothing before continuations, where BERT
 * has nothing before the first and "##" before the others; tokens in brackets are the same. Where
 * the file does not say whether texts are lower-cased, they are, unless the vocabulary has
 * upper-case tokens, which could then never occur. */
#include "store/import/gguf_tok.h"

#include <string.h>

#define WORD_START "\xe2\x96\x81"

static bool in_brackets(fm_span s)
{
    return s.len > 1 && s.data[0] == '[' && s.data[s.len - 1] == ']';
}

/* Renames tokens as BERT writes them, in the source's arena. *cased: one has an upper-case
 * letter. */
static fm_status rename_tokens(fm_source *src, gguf_vocab *v, bool *cased)
{
    *cased = false;
    for (uint64_t i = 0; i < v->tokens->count; i++) {
        fm_span s = v->text[i];
        bool start = s.len > 3 && memcmp(s.data, WORD_START, 3) == 0;
        if (start)
            s = fm_span_of(s.data + 3, s.len - 3);
        bool kept = !start && (in_brackets(s) || gguf_token_type(v, i) == GGUF_TOKEN_CONTROL);
        size_t prefix = start || kept ? 0 : 2;
        uint8_t *text = fm_arena_alloc(src->arena, s.len + prefix + 1);
        if (!text)
            return FM_ENOMEM;
        memcpy(text, "##", prefix);
        if (s.len > 0)
            memcpy(text + prefix, s.data, s.len);
        v->text[i] = fm_span_of(text, s.len + prefix);
        for (size_t k = 0; !kept && k < s.len; k++)
            *cased = *cased || (s.data[k] >= 'A' && s.data[k] <= 'Z');
    }
    return FM_OK;
}

static fm_status parse_part(fm_json **out, const char *text)
{
    return fm_json_parse(out, fm_span_str(text), "tokenizer.json");
}

static fm_status normalizer_json(fm_json **out, const fm_gguf *g, bool cased)
{
    bool lower = !cased, strip = false, given = false;
    fm_json *o = fm_json_new_object();
    fm_status rc =
        o ? fm_gguf_bool(g, "tokenizer.ggml.normalizer.lowercase", &lower, &given) : FM_ENOMEM;

    *out = o;
    FM_THEN(rc, fm_gguf_bool(g, "tokenizer.ggml.normalizer.strip_accents", &strip, &given));
    FM_THEN(rc, fm_json_set(o, "type", fm_json_new_str("BertNormalizer")));
    FM_THEN(rc, fm_json_set(o, "clean_text", fm_json_new_bool(true)));
    FM_THEN(rc, fm_json_set(o, "handle_chinese_chars", fm_json_new_bool(true)));
    FM_THEN(rc,
            fm_json_set(o, "strip_accents", given ? fm_json_new_bool(strip) : fm_json_new_null()));
    FM_THEN(rc, fm_json_set(o, "lowercase", fm_json_new_bool(lower)));
    return rc;
}

/* The "model" object; the unknown token is found by id, else by BERT's name for it. */
static fm_status model_json(fm_json **out, const gguf_vocab *v)
{
    fm_json *o = fm_json_new_object(), *tokens = NULL;
    uint64_t unk = 0;
    bool found = false;
    fm_status rc = o ? gguf_vocab_json(&tokens, v) : FM_ENOMEM;

    *out = o;
    FM_THEN(rc, gguf_special_id(v, "tokenizer.ggml.unknown_token_id", &unk, &found));
    FM_THEN(rc, fm_json_set(o, "type", fm_json_new_str("WordPiece")));
    FM_THEN(rc,
            fm_json_set(o, "unk_token", found ? gguf_token_str(v, unk) : fm_json_new_str("[UNK]")));
    FM_THEN(rc, fm_json_set(o, "continuing_subword_prefix", fm_json_new_str("##")));
    FM_THEN(rc, fm_json_set(o, "max_input_chars_per_word", fm_json_new_int(100)));
    FM_THEN(rc, fm_json_set(o, "vocab", fm_json_ref(tokens)));
    fm_json_free(tokens);
    return rc;
}

/* Finds [CLS] and [SEP] by their own keys, else by those of bos and eos. */
static fm_status read_frame(gguf_wrap *w, const gguf_vocab *v)
{
    bool cls = false, sep = false;
    uint64_t cls_id = 0, sep_id = 0;
    fm_status rc = gguf_read_wrap(w, v, true, true);

    FM_THEN(rc, gguf_special_id(v, "tokenizer.ggml.cls_token_id", &cls_id, &cls));
    FM_THEN(rc, gguf_special_id(v, "tokenizer.ggml.seperator_token_id", &sep_id, &sep));
    if (cls) {
        w->bos = true;
        w->bos_id = cls_id;
    }
    if (sep) {
        w->eos = true;
        w->eos_id = sep_id;
    }
    return rc;
}

fm_status gguf_put_wordpiece(fm_source *src, gguf_vocab *v, gguf_wrap *w)
{
    gguf_tok_parts p = {NULL, NULL, NULL, NULL, NULL, NULL};
    bool cased = false;
    fm_status rc = rename_tokens(src, v, &cased);

    FM_THEN(rc, read_frame(w, v));
    FM_THEN(rc, gguf_added_json(&p.added, v));
    FM_THEN(rc, normalizer_json(&p.normalizer, v->g, cased));
    FM_THEN(rc, parse_part(&p.pre, "{\"type\":\"BertPreTokenizer\"}"));
    FM_THEN(rc,
            parse_part(&p.decoder, "{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}"));
    FM_THEN(rc, gguf_post_processor(&p.post, w));
    FM_THEN(rc, model_json(&p.model, v));
    FM_THEN(rc, gguf_put_parts(src, &p));
    gguf_tok_parts_free(&p);
    return rc;
}
