/* tokenizer.h - text to token ids and back, from the tokenizer.json that Hugging Face models carry,
 * or from the SentencePiece model file of older ones.
 *
 * An importer of another format (GGUF) writes a canonical tokenizer.json, which is then read here.
 * Every field that changes an id is either done exactly as the `tokenizers` library does it or
 * refused by name with FM_EUNSUPPORTED; nothing is guessed.
 * What is supported is listed in infer/README.md. */
#ifndef FM_INFER_TOKENIZER_H
#define FM_INFER_TOKENIZER_H

#include "store/base/buf.h"
#include "store/base/text/json.h"

FM_BEGIN_DECLS

#define FM_TOK_TEXT_MAX ((size_t)1 << 28)  /* bytes of one text to encode */
#define FM_TOK_VOCAB_MAX ((size_t)1 << 22) /* largest id + 1 */

/* Growing list of token ids; zero-initialise, release after use. */
typedef struct fm_ids {
    int32_t *id;
    size_t count;
    size_t cap;
} fm_ids;
FM_CHECKED fm_status fm_ids_push(fm_ids *ids, int32_t id);
void fm_ids_release(fm_ids *ids);

typedef struct fm_tokenizer fm_tokenizer; /* immutable once open: share between threads */

/* Paths at which a tree may keep its tokenizer, best first; NULL behind the last. */
extern const char *const fm_tokenizer_paths[];

/* file: a tokenizer.json or a SentencePiece model (told apart by the first byte);
 * tokenizer_config_json may be empty (data NULL or len 0): then the names of the bos, eos, pad and
 * unk tokens are unknown. Neither text is used after return. `what` names the model in errors.
 * FM_ECORRUPT or FM_EINVAL: not a tokenizer; FM_EUNSUPPORTED: a kind that is not implemented. */
FM_CHECKED fm_status fm_tokenizer_open(fm_tokenizer **out, fm_span file,
                                       fm_span tokenizer_config_json, const char *what);
void fm_tokenizer_close(fm_tokenizer *t); /* NULL is a no-op */

/* Appends the ids of text to *out. add_special: put the template's tokens (bos, eos) around it.
 * Added tokens written out in the text ("<|im_end|>") become their ids, as Hugging Face does it;
 * use encode_plain for untrusted text, which must not be able to write them.
 * FM_EINVAL: text is not UTF-8 (the message has the offset). */
FM_CHECKED fm_status fm_tokenizer_encode(const fm_tokenizer *t, fm_span text, bool add_special,
                                         fm_ids *out);
/* The same, but special tokens in the text are ordinary text. */
FM_CHECKED fm_status fm_tokenizer_encode_plain(const fm_tokenizer *t, fm_span text,
                                               bool add_special, fm_ids *out);
/* As fm_tokenizer_encode without add_special, but special tokens that lie across one of the byte
 * offsets mark[0..marks) (ascending) are ordinary text: [b, e) with b < mark < e. */
FM_CHECKED fm_status fm_tokenizer_encode_marked(const fm_tokenizer *t, fm_span text,
                                                const size_t *mark, size_t marks, fm_ids *out);

/* Appends the text of ids; always valid UTF-8: ill-formed bytes become U+FFFD.
 * skip_special leaves out tokens marked special. FM_EINVAL: an id that is no token. */
FM_CHECKED fm_status fm_tokenizer_decode(const fm_tokenizer *t, const int32_t *ids, size_t count,
                                         bool skip_special, fm_buf *out);

/* Streaming decoder: feed ids one by one; text comes out as soon as it is whole code points. The
 * pieces joined equal fm_tokenizer_decode of all the ids. Plain state, no resources. */
typedef struct fm_tok_stream {
    uint8_t held[4]; /* the beginning of an unfinished code point */
    uint8_t held_len;
    uint32_t strip_left; /* leading characters that the decoder still has to drop */
    uint32_t strip_held; /* characters kept back that a trailing Strip may drop */
    int32_t previous;    /* the token before, or one whose text is not out yet; -1: none */
    bool skip_special;
    bool any; /* a token came through */
} fm_tok_stream;
void fm_tok_stream_init(fm_tok_stream *s, const fm_tokenizer *t, bool skip_special);
FM_CHECKED fm_status fm_tok_stream_push(fm_tok_stream *s, const fm_tokenizer *t, int32_t id,
                                        fm_buf *out);
/* The end: what is still held becomes U+FFFD. */
FM_CHECKED fm_status fm_tok_stream_finish(fm_tok_stream *s, const fm_tokenizer *t, fm_buf *out);

/* Facts. Spans are borrowed from t. */
size_t fm_tokenizer_vocab_size(const fm_tokenizer *t);               /* largest id + 1 */
fm_span fm_tokenizer_token_bytes(const fm_tokenizer *t, int32_t id); /* as decoded inside a text */
fm_span fm_tokenizer_token_text(const fm_tokenizer *t, int32_t id);  /* as in the vocabulary */
int32_t fm_tokenizer_id(const fm_tokenizer *t, fm_span token_text);  /* -1: no such token */
bool fm_tokenizer_is_special(const fm_tokenizer *t, int32_t id);
int32_t fm_tokenizer_bos(const fm_tokenizer *t); /* -1: none named */
int32_t fm_tokenizer_eos(const fm_tokenizer *t);
int32_t fm_tokenizer_pad(const fm_tokenizer *t);
int32_t fm_tokenizer_unk(const fm_tokenizer *t);
/* The chat template inside tokenizer_config.json (older folders keep it there); data NULL: none.
 * A list of named templates gives the one called "default". */
fm_span fm_tokenizer_chat_template(const fm_tokenizer *t);

FM_END_DECLS
#endif
