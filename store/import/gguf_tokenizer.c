/* gguf_tokenizer.c - tokenizer.json, tokenizer_config.json and the chat template from a GGUF.
 *
 * The file has the vocabulary, the merges and the name of the pre-tokenizer, whose rules are in
 * gguf_pre.c. Ids are the positions in the list and stay so. */
#include "store/import/gguf_tok.h"

#include <inttypes.h>
#include <string.h>

#include "store/base/text/utf8.h"

#define MAX_VOCAB 4000000u

static const struct {
    const char *key, *name;
} SPECIAL[] = {
    {"tokenizer.ggml.bos_token_id", "bos_token"},
    {"tokenizer.ggml.eos_token_id", "eos_token"},
    {"tokenizer.ggml.unknown_token_id", "unk_token"},
    {"tokenizer.ggml.padding_token_id", "pad_token"},
    {"tokenizer.ggml.seperator_token_id", "sep_token"}, /* the format's own spelling */
    {"tokenizer.ggml.cls_token_id", "cls_token"},
    {"tokenizer.ggml.mask_token_id", "mask_token"},
};

/* Whether s is UTF-8 without NUL: JSON would silently get U+FFFD in place of other bytes. */
static bool is_text(fm_span s)
{
    return s.len == 0 || (!memchr(s.data, 0, s.len) && fm_utf8_valid(s.data, s.len) == s.len);
}

static fm_status need_strings(const fm_gguf *g, const char *key, const fm_gguf_kv **out)
{
    const fm_gguf_kv *kv = fm_gguf_get(g, key);

    if (!kv || kv->type != FM_GGUF_ARRAY || kv->elem != FM_GGUF_STRING || kv->count > MAX_VOCAB)
        return gguf_bad(g, key, "must be a list of texts");
    *out = kv;
    return FM_OK;
}

static fm_status read_vocab(gguf_vocab *v, const fm_gguf *g)
{
    size_t at = 0;

    memset(v, 0, sizeof *v);
    v->g = g;
    FM_TRY(need_strings(g, "tokenizer.ggml.tokens", &v->tokens));
    v->types = fm_gguf_get(g, "tokenizer.ggml.token_type");
    if (v->types && (v->types->type != FM_GGUF_ARRAY || v->types->elem != FM_GGUF_I32 ||
                     v->types->count != v->tokens->count))
        return gguf_bad(g, "tokenizer.ggml.token_type",
                        "must be a list of I32, one for each token");
    v->text = fm_calloc((size_t)v->tokens->count + 1, sizeof *v->text);
    if (!v->text)
        return FM_ENOMEM;
    for (uint64_t i = 0; i < v->tokens->count; i++) {
        v->text[i] = fm_gguf_next_string(v->tokens, &at);
        if (!is_text(v->text[i]))
            return fm_fail(FM_ECORRUPT,
                           "%s: field 'tokenizer.ggml.tokens': token %" PRIu64 " is no UTF-8 text",
                           fm_gguf_what(g), i);
    }
    return FM_OK;
}

static fm_status push_merge(fm_json *list, const gguf_vocab *v, fm_span merge)
{
    const uint8_t *space = merge.len > 0 ? memchr(merge.data, ' ', merge.len) : NULL;
    size_t left = space ? (size_t)(space - merge.data) : 0;
    fm_json *pair;
    fm_status rc;

    if (!is_text(merge) || left == 0 || left + 1 == merge.len ||
        memchr(space + 1, ' ', merge.len - left - 1))
        return gguf_bad(v->g, "tokenizer.ggml.merges", "must hold pairs of tokens with one space");
    pair = fm_json_new_array();
    rc = pair ? fm_json_push(pair, fm_json_new_strn((const char *)merge.data, left)) : FM_ENOMEM;
    FM_THEN(rc,
            fm_json_push(pair, fm_json_new_strn((const char *)space + 1, merge.len - left - 1)));
    FM_THEN(rc, fm_json_push(list, fm_json_ref(pair)));
    fm_json_free(pair);
    return rc;
}

static fm_status merges_json(fm_json **out, const gguf_vocab *v)
{
    const fm_gguf_kv *merges = NULL;
    size_t at = 0;
    fm_status rc = need_strings(v->g, "tokenizer.ggml.merges", &merges);

    *out = fm_json_new_array();
    if (!*out)
        return FM_ENOMEM;
    for (uint64_t i = 0; rc == FM_OK && i < merges->count; i++)
        rc = push_merge(*out, v, fm_gguf_next_string(merges, &at));
    return rc;
}

static fm_status model_json(fm_json **out, const gguf_vocab *v, bool ignore_merges)
{
    fm_json *o = fm_json_new_object(), *tokens = NULL, *merges = NULL;
    fm_status rc = o ? gguf_vocab_json(&tokens, v) : FM_ENOMEM;

    *out = o;
    FM_THEN(rc, merges_json(&merges, v));
    FM_THEN(rc, fm_json_set(o, "type", fm_json_new_str("BPE")));
    FM_THEN(rc, fm_json_set(o, "dropout", fm_json_new_null()));
    FM_THEN(rc, fm_json_set(o, "unk_token", fm_json_new_null()));
    FM_THEN(rc, fm_json_set(o, "continuing_subword_prefix", fm_json_new_null()));
    FM_THEN(rc, fm_json_set(o, "end_of_word_suffix", fm_json_new_null()));
    FM_THEN(rc, fm_json_set(o, "fuse_unk", fm_json_new_bool(false)));
    FM_THEN(rc, fm_json_set(o, "byte_fallback", fm_json_new_bool(false)));
    FM_THEN(rc, fm_json_set(o, "ignore_merges", fm_json_new_bool(ignore_merges)));
    FM_THEN(rc, fm_json_set(o, "vocab", fm_json_ref(tokens)));
    FM_THEN(rc, fm_json_set(o, "merges", fm_json_ref(merges)));
    fm_json_free(tokens);
    fm_json_free(merges);
    return rc;
}

/* ---- the files ---- */

static fm_status decoder_json(fm_json **out)
{
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? fm_json_set(o, "type", fm_json_new_str("ByteLevel")) : FM_ENOMEM;

    *out = o;
    FM_THEN(rc, fm_json_set(o, "add_prefix_space", fm_json_new_bool(true)));
    FM_THEN(rc, fm_json_set(o, "trim_offsets", fm_json_new_bool(true)));
    FM_THEN(rc, fm_json_set(o, "use_regex", fm_json_new_bool(true)));
    return rc;
}

static fm_status put_tokenizer(fm_source *src, const gguf_vocab *v, const char *pre_name,
                               gguf_wrap *w)
{
    gguf_tok_parts p = {NULL, NULL, NULL, NULL, NULL, NULL};
    bool ignore_merges = false;
    fm_status rc =
        gguf_pre_tokenizer(&p.pre, &p.normalizer, &ignore_merges, pre_name, fm_gguf_what(v->g));

    FM_THEN(rc, gguf_read_wrap(w, v, ignore_merges, false)); /* Llama 3 begins with BOS */
    FM_THEN(rc, gguf_added_json(&p.added, v));
    FM_THEN(rc, gguf_post_processor(&p.post, w));
    FM_THEN(rc, decoder_json(&p.decoder));
    FM_THEN(rc, model_json(&p.model, v, ignore_merges));
    FM_THEN(rc, gguf_put_parts(src, &p));
    gguf_tok_parts_free(&p);
    return rc;
}

static fm_status put_tokenizer_config(fm_source *src, const gguf_vocab *v, const gguf_wrap *w,
                                      fm_json *o)
{
    FM_TRY(fm_json_set(o, "add_bos_token", fm_json_new_bool(w->bos)));

    FM_TRY(fm_json_set(o, "add_eos_token", fm_json_new_bool(w->eos)));
    FM_TRY(fm_json_set(o, "add_prefix_space", fm_json_new_bool(false)));
    for (size_t i = 0; i < FM_ARRAY_LEN(SPECIAL); i++) {
        uint64_t id = 0;
        bool found = false;
        FM_TRY(gguf_special_id(v, SPECIAL[i].key, &id, &found));
        if (found)
            FM_TRY(fm_json_set(o, SPECIAL[i].name, gguf_token_str(v, id)));
    }
    FM_TRY(fm_json_set(o, "clean_up_tokenization_spaces", fm_json_new_bool(false)));
    if (!fm_json_get(o, "tokenizer_class"))
        FM_TRY(fm_json_set(o, "tokenizer_class", fm_json_new_str("PreTrainedTokenizerFast")));

    return src_put_json(src, "tokenizer/tokenizer_config.json", o, FM_JSON_PRETTY);
}

static fm_status put_template(fm_source *src, const fm_gguf *g)
{
    fm_span text = {NULL, 0};
    bool found = false;
    FM_TRY(fm_gguf_str(g, "tokenizer.chat_template", &text, &found));

    if (found && !is_text(text))
        FM_TRY(gguf_bad(g, "tokenizer.chat_template", "is no UTF-8 text"));
    if (found)
        FM_TRY(src_put_copy(src, "tokenizer/chat_template.jinja", text));
    return FM_OK;
}

static fm_status put_byte_level(fm_source *src, const gguf_vocab *v, gguf_wrap *w)
{
    fm_span pre = fm_span_str("default");
    bool found = false;
    fm_status rc = fm_gguf_str(v->g, "tokenizer.ggml.pre", &pre, &found);
    char *name = rc == FM_OK ? fm_strndup((const char *)pre.data, FM_MIN(pre.len, 60u)) : NULL;

    FM_THEN(rc, name ? put_tokenizer(src, v, name, w) : FM_ENOMEM);
    fm_free(name);
    return rc;
}

static fm_status put_kind(fm_source *src, fm_span model, gguf_vocab *v, gguf_wrap *w,
                          fm_json *config)
{
    if (fm_span_eq_str(model, "gpt2"))
        return put_byte_level(src, v, w);
    if (fm_span_eq_str(model, "llama"))
        return gguf_put_spm(src, v, w, false, config);
    if (fm_span_eq_str(model, "t5"))
        return gguf_put_spm(src, v, w, true, config);
    if (fm_span_eq_str(model, "bert"))
        return gguf_put_wordpiece(src, v, w);
    return fm_fail(FM_EUNSUPPORTED,
                   "%s: field 'tokenizer.ggml.model': '%.*s' is not supported "
                   "(gpt2, llama, bert and t5 are)",
                   fm_gguf_what(v->g), (int)FM_MIN(model.len, 40u), (const char *)model.data);
}

fm_status gguf_tokenizer(fm_source *src, const fm_gguf *g)
{
    fm_span model = {NULL, 0};
    bool found = false;
    gguf_vocab v = {NULL, NULL, NULL, NULL};
    gguf_wrap w = {NULL, false, false, 0, 0};
    fm_json *config = NULL;
    fm_status rc = fm_gguf_str(g, "tokenizer.ggml.model", &model, &found);

    if (rc < 0 || !found)
        return rc;
    config = fm_json_new_object();
    rc = config ? read_vocab(&v, g) : FM_ENOMEM;
    FM_THEN(rc, put_kind(src, model, &v, &w, config));
    FM_THEN(rc, put_tokenizer_config(src, &v, &w, config));
    FM_THEN(rc, put_template(src, g));
    fm_json_free(config);
    fm_free(v.text);
    return rc;
}
