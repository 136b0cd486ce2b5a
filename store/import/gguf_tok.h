/* gguf_tok.h - shared by the kinds of a GGUF's vocabulary; inside store only. */
#ifndef FM_STORE_GGUF_TOK_H
#define FM_STORE_GGUF_TOK_H

#include "store/import/gguf_canon.h"

/* Values of tokenizer.ggml.token_type, which are SentencePiece's. */
enum gguf_token_type {
    GGUF_TOKEN_NORMAL = 1,
    GGUF_TOKEN_UNKNOWN = 2,
    GGUF_TOKEN_CONTROL = 3,
    GGUF_TOKEN_USER = 4,
    GGUF_TOKEN_UNUSED = 5,
    GGUF_TOKEN_BYTE = 6
};

typedef struct gguf_vocab {
    const fm_gguf *g;
    const fm_gguf_kv *tokens;
    const fm_gguf_kv *types; /* NULL: all normal */
    fm_span *text;           /* by id; in the file, or renamed by the kind */
} gguf_vocab;

typedef struct gguf_wrap { /* the tokens before and after a text */
    const gguf_vocab *v;
    bool bos, eos;
    uint64_t bos_id, eos_id;
} gguf_wrap;

typedef struct gguf_tok_parts { /* parts of a tokenizer.json; normalizer, pre, post may be NULL */
    fm_json *added, *normalizer, *pre, *post, *decoder, *model;
} gguf_tok_parts;

/* FM_ECORRUPT that names the field and says why. */
fm_status gguf_bad(const fm_gguf *g, const char *field, const char *why);
int64_t gguf_token_type(const gguf_vocab *v, uint64_t id);
fm_json *gguf_token_str(const gguf_vocab *v, uint64_t id);
/* The id under key, checked. */
fm_status gguf_special_id(const gguf_vocab *v, const char *key, uint64_t *id, bool *found);
/* bos, eos: defaults where add_bos_token and add_eos_token are absent. */
fm_status gguf_read_wrap(gguf_wrap *w, const gguf_vocab *v, bool bos, bool eos);
fm_status gguf_vocab_json(fm_json **out, const gguf_vocab *v);
/* added_tokens: the control and user-defined tokens. */
fm_status gguf_added_json(fm_json **out, const gguf_vocab *v);
fm_status gguf_post_processor(fm_json **out, const gguf_wrap *w);
fm_status gguf_put_parts(fm_source *src, const gguf_tok_parts *p);
void gguf_tok_parts_free(gguf_tok_parts *p);

/* The kinds. SentencePiece's (llama, t5) become a tokenizer.model, so that scores and rules are
 * kept; config gets what the reader of that file needs. */
fm_status gguf_put_spm(fm_source *src, const gguf_vocab *v, gguf_wrap *w, bool unigram,
                       fm_json *config);
/* BERT's becomes a tokenizer.json. */
fm_status gguf_put_wordpiece(fm_source *src, gguf_vocab *v, gguf_wrap *w);

#endif
