/* tok_internal.h - what the tokenizer's files share. Not for others.
 *
 * Encoding runs over a list of pieces: spans of one text buffer. Splitting steps only make the
 * spans smaller; steps that change the text (normalizers, ByteLevel) write a new buffer. */
#ifndef FM_INFER_TOK_INTERNAL_H
#define FM_INFER_TOK_INTERNAL_H

#include "infer/tokenizer.h"
#include "store/base/mem.h"

#define FMI_TOK_STEPS_MAX 32      /* normalizers, or pre-tokenizers, in one sequence */
#define FMI_TOK_PATTERN_MAX 16384 /* bytes of one regular expression */
#define FMI_TOK_TOKEN_MAX 65536   /* bytes of one vocabulary entry */
#define FMI_TOK_TEMPLATE_MAX 64   /* ids around a text */

/* ---- regular expressions (tok_regex.c) ---- */
typedef struct fmi_regex fmi_regex;         /* compiled; immutable */
typedef struct fmi_regex_run fmi_regex_run; /* one caller's match state */
/* literal: the pattern is plain text. `field` names it in errors. */
fm_status fmi_regex_new(fmi_regex **out, fm_span pattern, bool literal, const char *field);
void fmi_regex_free(fmi_regex *re);
fm_status fmi_regex_run_new(fmi_regex_run **out);
void fmi_regex_run_free(fmi_regex_run *run);
/* First match in subject at or after `from`. *found false: none. subject is valid UTF-8. */
fm_status fmi_regex_next(const fmi_regex *re, fmi_regex_run *run, fm_span subject, size_t from,
                         bool *found, size_t *begin, size_t *end);
/* Rewrite an Oniguruma class shorthand pattern so that PCRE2 gives the same classes. */
fm_status fmi_regex_rewrite(fm_buf *out, fm_span pattern, const char *field);

/* ---- Unicode facts beyond the libraries' tables (tok_unicode.c) ---- */
typedef struct fmi_unicode_range {
    uint32_t lo, hi;
    char category[3]; /* general category, two letters */
} fmi_unicode_range;
extern const fmi_unicode_range fmi_unicode_extra[];
extern const size_t fmi_unicode_extra_count;
bool fmi_is_numeric(uint32_t cp); /* Rust's char::is_numeric: N*, Unicode 17 */
bool fmi_is_space(uint32_t cp);   /* White_Space */
bool fmi_is_word(uint32_t cp);    /* Rust regex \w: Alphabetic, M, Nd, Pc, Join_Control */
/* Decode one code point of valid UTF-8; returns its length. */
size_t fmi_utf8_next(const uint8_t *s, uint32_t *cp);
size_t fmi_utf8_put(uint8_t out[4], uint32_t cp);
/* Length of the longest valid prefix. */
size_t fmi_utf8_valid(const uint8_t *s, size_t len);
/* Append s with ill-formed parts replaced, one U+FFFD per maximal subpart. */
void fmi_utf8_lossy(fm_buf *out, const uint8_t *s, size_t len);
/* Bytes at s (len > 0) that begin a code point and are cut off by the end of s; 0 if none. */
size_t fmi_utf8_cut(const uint8_t *s, size_t len);

/* ---- pieces ---- */
typedef struct fmi_piece {
    size_t off, len;
} fmi_piece;

typedef struct fmi_pieces {
    fm_buf text;
    fmi_piece *p;
    size_t count, cap;
} fmi_pieces;
fm_status fmi_pieces_add(fmi_pieces *ps, size_t off, size_t len); /* drops empty ones */

/* One caller's working memory. */
typedef struct fmi_scratch {
    fmi_pieces a, b;
    fm_buf norm[2];
    fmi_regex_run *run;
    struct fmi_symbol *sym;
    size_t sym_cap;
    struct fmi_heap_item *heap;
    size_t heap_cap;
} fmi_scratch;

/* ---- normalizers (tok_norm.c) ---- */
typedef enum fmi_norm_kind {
    FMI_NORM_NFC,
    FMI_NORM_NFD,
    FMI_NORM_NFKC,
    FMI_NORM_NFKD,
    FMI_NORM_LOWERCASE,
    FMI_NORM_PREPEND,
    FMI_NORM_REPLACE,
    FMI_NORM_STRIP
} fmi_norm_kind;

typedef struct fmi_norm {
    fmi_norm_kind kind;
    char *text; /* Prepend, Replace: what is put in */
    size_t text_len;
    fmi_regex *re;
    bool left, right; /* Strip */
} fmi_norm;

typedef struct fmi_norms {
    fmi_norm step[FMI_TOK_STEPS_MAX];
    size_t count;
} fmi_norms;
fm_status fmi_norms_parse(fmi_norms *out, const fm_json *v);
void fmi_norms_release(fmi_norms *ns);
/* Normalise in; the result lies in one of s->norm or is `in` itself. */
fm_status fmi_norms_run(const fmi_norms *ns, fmi_scratch *s, fm_span in, fm_span *out);

/* ---- pre-tokenizers (tok_pre.c) ---- */
typedef enum fmi_pre_kind {
    FMI_PRE_SPLIT,
    FMI_PRE_DIGITS,
    FMI_PRE_BYTE_LEVEL,
    FMI_PRE_METASPACE,
    FMI_PRE_WHITESPACE,
    FMI_PRE_WHITESPACE_SPLIT
} fmi_pre_kind;

typedef enum fmi_behavior {
    FMI_REMOVED,
    FMI_ISOLATED,
    FMI_MERGED_PREVIOUS,
    FMI_MERGED_NEXT,
    FMI_CONTIGUOUS
} fmi_behavior;

typedef enum fmi_prepend { FMI_PREPEND_NEVER, FMI_PREPEND_FIRST, FMI_PREPEND_ALWAYS } fmi_prepend;

typedef struct fmi_pre {
    fmi_pre_kind kind;
    fmi_behavior behavior;
    fmi_regex *re;
    bool invert;
    bool individual;   /* Digits */
    bool prefix_space; /* ByteLevel */
    bool split;        /* Metaspace */
    fmi_prepend prepend;
    uint8_t space[4]; /* Metaspace's replacement character */
    size_t space_len;
} fmi_pre;

typedef struct fmi_pres {
    fmi_pre step[FMI_TOK_STEPS_MAX];
    size_t count;
} fmi_pres;
fm_status fmi_pres_parse(fmi_pres *out, const fm_json *v);
void fmi_pres_release(fmi_pres *ps);
/* s->a holds one piece; on return it holds the words. first: the segment starts the text. */
fm_status fmi_pres_run(const fmi_pres *ps, fmi_scratch *s, bool first);
uint32_t fmi_byte_to_char(uint8_t b); /* GPT-2's printable character for a byte */
int fmi_char_to_byte(uint32_t cp);    /* -1: not one of them */

/* ---- model (tok_bpe.c) ---- */
typedef struct fmi_bpe fmi_bpe;
fm_status fmi_bpe_new(fmi_bpe **out, const fm_json *model);
void fmi_bpe_free(fmi_bpe *m);
fm_status fmi_bpe_encode(const fmi_bpe *m, fmi_scratch *s, fm_span word, fm_ids *out);

/* Hash of token text to id, with the texts in one arena; ids are dense up to `size`. */
typedef struct fmi_vocab {
    uint8_t *bytes;
    size_t bytes_len, bytes_cap;
    uint32_t *off; /* [size] start in bytes */
    uint32_t *len; /* [size]; UINT32_MAX = no such id */
    size_t size, id_cap;
    uint32_t *slot; /* [slot_mask + 1] id + 1 */
    size_t slot_mask;
    size_t used;
} fmi_vocab;
fm_status fmi_vocab_put(fmi_vocab *v, fm_span text, uint32_t id);
int32_t fmi_vocab_find(const fmi_vocab *v, fm_span text);
fm_span fmi_vocab_text(const fmi_vocab *v, int32_t id); /* data NULL: no such id */
void fmi_vocab_release(fmi_vocab *v);
const fmi_vocab *fmi_bpe_vocab(const fmi_bpe *m);

/* ---- added tokens (tok_added.c) ---- */
typedef struct fmi_added_token {
    int32_t id;
    char *text;
    size_t len;
    bool special, normalized, lstrip, rstrip, single_word;
} fmi_added_token;

typedef struct fmi_trie fmi_trie;
typedef struct fmi_added {
    fmi_added_token *tok;
    size_t count, cap;
    fmi_trie *raw;        /* matched in the text as given */
    fmi_trie *normalized; /* matched in normalised text */
} fmi_added;
fm_status fmi_added_parse(fmi_added *out, const fm_json *list);
fm_status fmi_added_build(fmi_added *a, const fmi_norms *ns, fmi_scratch *s);
void fmi_added_release(fmi_added *a);
typedef struct fmi_segment {
    size_t begin, end;
    int32_t id; /* -1: text */
} fmi_segment;
/* The next segment of text from *pos on. State carries a token found behind a text segment. */
typedef struct fmi_added_scan {
    const fmi_added *added;
    const fmi_trie *trie;
    fm_span text;
    size_t pos;    /* end of what was given out */
    size_t search; /* where to look for the next match */
    bool plain;    /* special tokens are ordinary text */
    bool pending;
    fmi_segment next;
} fmi_added_scan;
bool fmi_added_next(fmi_added_scan *scan, fmi_segment *out);

/* ---- decoders (tok_decode.c) ---- */
typedef struct fmi_replace {
    char *from, *to;
    size_t from_len, to_len;
} fmi_replace;

typedef struct fmi_decoder {
    bool join_space; /* no decoder given: tokens joined by a space */
    bool byte_level;
    bool byte_fallback;
    uint8_t metaspace[4];
    size_t metaspace_len;
    fmi_replace replace[8];
    size_t replace_count;
    uint32_t strip_start; /* characters dropped at the start of the text */
    uint8_t strip_char[4];
    size_t strip_char_len;
} fmi_decoder;
fm_status fmi_decoder_parse(fmi_decoder *out, const fm_json *v);
void fmi_decoder_release(fmi_decoder *d);
/* Append the bytes that one token stands for. */
fm_status fmi_decoder_token(const fmi_decoder *d, fm_span text, fm_buf *out);

/* ---- helpers for the parsers ---- */
fm_status fmi_need_bool(bool *out, const fm_json *obj, const char *key, bool dflt,
                        const char *field);
/* {"String": s} or {"Regex": s}. */
fm_status fmi_pattern_parse(fmi_regex **out, const fm_json *pattern, const char *field);

struct fm_tokenizer {
    fmi_norms norms;
    fmi_pres pres;
    fmi_bpe *bpe;
    fmi_vocab all; /* model's vocabulary and added tokens */
    fmi_added added;
    uint8_t *special;      /* [size] 1: marked special */
    fm_buf decoded;        /* all tokens' bytes in one piece */
    uint32_t *decoded_off; /* [size + 1] */
    fmi_decoder decoder;
    int32_t prefix[FMI_TOK_TEMPLATE_MAX], suffix[FMI_TOK_TEMPLATE_MAX];
    size_t prefix_count, suffix_count;
    int32_t bos, eos, pad, unk;
    char *chat_template;
    size_t chat_template_len;
};

#endif
