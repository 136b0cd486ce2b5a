/* internal.h - what the tokenizer's files share, for this folder alone.
 *
 * Encoding runs over a list of pieces: spans of one text buffer. Splitting steps only make the
 * spans smaller; steps that change the text (normalizers, ByteLevel) write a new buffer. */
#ifndef FM_INFER_TOK_INTERNAL_H
#define FM_INFER_TOK_INTERNAL_H

#include "infer/tokenizer.h"
#include "store/base/mem.h"
#include "store/base/text/regex.h"
#include "store/base/text/utf8.h"

#define FMI_TOK_STEPS_MAX 32      /* normalizers, or pre-tokenizers, in one sequence */
#define FMI_TOK_PATTERN_MAX 16384 /* bytes of one regular expression */
#define FMI_TOK_TOKEN_MAX 65536   /* bytes of one vocabulary entry */
#define FMI_TOK_TEMPLATE_MAX 64   /* ids around a text */
#define FMI_TOK_PIECE_MAX 1024    /* bytes of a token in a prefix tree: bounds the work per byte */
#define FMI_TOK_PTREE_MAX ((size_t)1 << 27) /* bytes of a prefix tree */
/* Steps that change a text (normalizers, pre-tokenizers; decoders on the vocabulary) may together
 * make it longer by this much; else a few steps in a row could make a gigabyte of a
 * line. Real ones triple it. */
#define FMI_TOK_GROW_TIMES 8
#define FMI_TOK_GROW_MORE ((size_t)1 << 20)
#define FMI_SPM_SPACE "\xe2\x96\x81" /* U+2581, a space in a SentencePiece model */

/* ---- regular expressions (regex.c) ---- */
typedef struct fmi_regex fmi_regex; /* compiled; immutable */
/* literal: the pattern is plain text. `field` names it in errors. */
fm_status fmi_regex_new(fmi_regex **out, fm_span pattern, bool literal, const char *field);
void fmi_regex_free(fmi_regex *re);
/* First match in subject at or after `from`. *found false: none. subject is valid UTF-8. */
fm_status fmi_regex_next(const fmi_regex *re, fm_regex_run *run, fm_span subject, size_t from,
                         bool *found, size_t *begin, size_t *end);
/* Rewrite an Oniguruma class shorthand pattern so that PCRE2 gives the same classes. */
/* unicode: the version that PCRE2 knows. FM_EUNSUPPORTED: not one that the table makes up for. */
fm_status fmi_regex_check_unicode(const char *unicode, const char *field);
fm_status fmi_regex_rewrite(fm_buf *out, fm_span pattern, const char *field);

/* ---- Unicode facts beyond the libraries' tables (unicode.c) ---- */
typedef struct fmi_unicode_range {
    uint32_t lo, hi;
    char category[3]; /* general category, two letters */
} fmi_unicode_range;
extern const fmi_unicode_range fmi_unicode_extra[];
extern const size_t fmi_unicode_extra_count;
/* Unicode 15.0's, whatever utf8proc is installed (unicode_15.c). */
int fmi_category(uint32_t cp);   /* utf8proc_category_t */
int fmi_boundclass(uint32_t cp); /* utf8proc_boundclass_t */
uint32_t fmi_lower_15(uint32_t cp);
bool fmi_is_numeric(uint32_t cp); /* Rust's char::is_numeric: N*, Unicode 17 */
bool fmi_is_space(uint32_t cp);   /* White_Space */
bool fmi_is_word(uint32_t cp);    /* Rust regex \w: Alphabetic, M, Nd, Pc, Join_Control */
/* By the older Unicode versions that `tokenizers` uses for these (unicode_old.c). */
bool fmi_is_nonspacing(uint32_t cp);  /* Mn, for BertNormalizer */
bool fmi_is_mark(uint32_t cp);        /* M*, for StripAccents */
bool fmi_is_punctuation(uint32_t cp); /* P* and ASCII's symbols */
bool fmi_is_other(uint32_t cp);       /* Cc, Cf, Co */
bool fmi_is_inert(uint32_t cp);       /* no normal form changes or moves it */
uint32_t fmi_lower(uint32_t cp);      /* except U+0130, which becomes two code points */
int fmi_script(uint32_t cp);          /* script.c; -1: fits any script */

typedef struct fmi_ptree_key {
    fm_span text;
    int32_t token;
} fmi_ptree_key;
typedef struct fmi_ptree_node fmi_ptree_node;
typedef struct fmi_ptree {
    fmi_ptree_node *node;
    size_t count, cap;
    uint32_t first[256]; /* children of the root; 0 = none */
} fmi_ptree;

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
typedef struct fmi_tok_scratch {
    fmi_pieces a, b;
    fm_buf norm[2];
    bool first_segment; /* the segment to be normalised begins the text */
    bool head_lost;     /* the last normalisation dropped the beginning of the text */
    size_t grow_left;   /* bytes by which steps may still make the text longer */
    fm_regex_run *run;
    struct fmi_symbol *sym;
    size_t sym_cap;
    struct fmi_heap_item *heap;
    size_t heap_cap;
    struct fmi_best *best; /* Unigram */
    size_t best_cap;
    struct fmi_spm_symbol *spm_sym;
    size_t spm_sym_cap;
    struct fmi_spm_pair *spm_pair;
    size_t spm_pair_cap;
} fmi_tok_scratch;

/* Most bytes that a step may write when it reads `in` bytes. */
static inline size_t fmi_room(size_t in, size_t grow_left)
{
    return FM_MIN(in + grow_left, FM_TOK_TEXT_MAX * 4);
}
static inline void fmi_grew(size_t *grow_left, size_t in, size_t out)
{
    if (out > in)
        *grow_left -= FM_MIN(out - in, *grow_left);
}

/* ---- normalizers (normalize.c) ---- */
/* A table of replacements compiled by SentencePiece: a double array over texts, and the
 * replacements (charsmap.c). */
typedef struct fmi_charsmap fmi_charsmap;
fm_status fmi_charsmap_new(fmi_charsmap **out, fm_span bytes, const char *field);
fm_status fmi_charsmap_new_base64(fmi_charsmap **out, fm_span text, const char *field);
void fmi_charsmap_free(fmi_charsmap *m);
/* As `tokenizers` does it, by grapheme clusters. */
fm_status fmi_charsmap_normalize(const fmi_charsmap *m, fm_span in, fm_buf *out);
/* As SentencePiece does it: bytes of the longest entry that begins text (0 = none). */
size_t fmi_charsmap_longest(const fmi_charsmap *m, fm_span text, fm_span *replacement);
/* Bytes of the extended grapheme cluster that begins text (grapheme.c). */
size_t fmi_grapheme_next(fm_span text);

typedef enum fmi_norm_kind {
    FMI_NORM_NFC,
    FMI_NORM_NFD,
    FMI_NORM_NFKC,
    FMI_NORM_NFKD,
    FMI_NORM_LOWERCASE,
    FMI_NORM_PREPEND,
    FMI_NORM_REPLACE,
    FMI_NORM_STRIP,
    FMI_NORM_BYTE_LEVEL,
    FMI_NORM_NMT,
    FMI_NORM_STRIP_MARKS,      /* StripAccents */
    FMI_NORM_STRIP_NONSPACING, /* the parts of BertNormalizer */
    FMI_NORM_BERT_CLEAN,
    FMI_NORM_BERT_CHINESE,
    FMI_NORM_PRECOMPILED,
    FMI_NORM_SPM /* all of a SentencePiece model's normalising */
} fmi_norm_kind;

typedef struct fmi_norm {
    fmi_norm_kind kind;
    char *text; /* Prepend, Replace: the text to insert */
    size_t text_len;
    fmi_regex *re;
    bool left, right; /* Strip; SPM: remove_extra_whitespaces */
    fmi_charsmap *map;
    /* SPM: a space before (of every segment of a text, or of the first) or behind; spaces become
     * U+2581. */
    bool prefix, every_segment, suffix, escape;
    fmi_ptree symbols; /* SPM: texts that are left as they are */
} fmi_norm;

typedef struct fmi_norms {
    fmi_norm step[FMI_TOK_STEPS_MAX];
    size_t count;
} fmi_norms;
fm_status fmi_norms_parse(fmi_norms *out, const fm_json *v);
void fmi_norms_release(fmi_norms *ns);
/* Normalises one segment by a SentencePiece model's rules (sentencepiece_normalize.c); first: the
 * segment begins the text. */
fm_status fmi_spm_normalize(const fmi_norm *n, bool first, fm_span in, fm_buf *out);
/* Normalises in; the result lies in one of s->norm or is `in` itself. */
fm_status fmi_norms_run(const fmi_norms *ns, fmi_tok_scratch *s, fm_span in, fm_span *out);

/* ---- pre-tokenizers (pre_tokenize.c) ---- */
typedef enum fmi_pre_kind {
    FMI_PRE_SPLIT,
    FMI_PRE_DIGITS,
    FMI_PRE_BYTE_LEVEL,
    FMI_PRE_METASPACE,
    FMI_PRE_WHITESPACE,
    FMI_PRE_WHITESPACE_SPLIT,
    FMI_PRE_BERT,
    FMI_PRE_PUNCTUATION,
    FMI_PRE_SCRIPTS,
    FMI_PRE_FIXED_LENGTH
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
    size_t length; /* FixedLength */
} fmi_pre;

typedef struct fmi_pres {
    fmi_pre step[FMI_TOK_STEPS_MAX];
    size_t count;
} fmi_pres;
fm_status fmi_pres_parse(fmi_pres *out, const fm_json *v);
void fmi_pres_release(fmi_pres *ps);
/* s->a holds one piece; on return it holds the words. first: the segment starts the text. */
fm_status fmi_pres_run(const fmi_pres *ps, fmi_tok_scratch *s, bool first);
uint32_t fmi_byte_to_char(uint8_t b); /* GPT-2's printable character for a byte */
int fmi_char_to_byte(uint32_t cp);    /* the reverse; -1: no such character */

/* ---- vocabulary and prefix tree (vocab.c) ---- */
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
    bool twice_ok; /* a text may have several ids: the last one is found */
} fmi_vocab;
fm_status fmi_vocab_put(fmi_vocab *v, fm_span text, uint32_t id);
int32_t fmi_vocab_find(const fmi_vocab *v, fm_span text);
fm_span fmi_vocab_text(const fmi_vocab *v, int32_t id); /* data NULL: no such id */
void fmi_vocab_release(fmi_vocab *v);
/* Ids of <0x00> .. <0xFF>; -1 where there is none. */
void fmi_byte_ids(int32_t out[256], const fmi_vocab *v);
/* {"text": id, ...} */
fm_status fmi_vocab_parse(fmi_vocab *out, const fm_json *v);

/* Sorts the keys. Among equal texts the one with the largest token is used. */
fm_status fmi_ptree_build(fmi_ptree *t, fmi_ptree_key *key, size_t count);
void fmi_ptree_release(fmi_ptree *t);
/* The node that byte leads to from a node (0 = root); 0 = no such text. */
uint32_t fmi_ptree_step(const fmi_ptree *t, uint32_t node, uint8_t byte);
int32_t fmi_ptree_token(const fmi_ptree *t, uint32_t node); /* ending at node; -1 = none */
/* Bytes of the longest key that begins text (0 = none). */
size_t fmi_ptree_longest(const fmi_ptree *t, fm_span text, int32_t *token);

/* ---- models: BPE (bpe.c), WordPiece and WordLevel (wordpiece.c) ---- */
typedef struct fmi_bpe fmi_bpe;
fm_status fmi_bpe_new(fmi_bpe **out, const fm_json *model);
void fmi_bpe_free(fmi_bpe *m);
fm_status fmi_bpe_encode(const fmi_bpe *m, fmi_tok_scratch *s, fm_span word, fm_ids *out);

const fmi_vocab *fmi_bpe_vocab(const fmi_bpe *m);

typedef struct fmi_wordpiece fmi_wordpiece;
fm_status fmi_wordpiece_new(fmi_wordpiece **out, const fm_json *model, bool whole);
void fmi_wordpiece_free(fmi_wordpiece *m);
fm_status fmi_wordpiece_encode(const fmi_wordpiece *m, fm_span word, fm_ids *out);
const fmi_vocab *fmi_wordpiece_vocab(const fmi_wordpiece *m);

/* What a SentencePiece model file holds (sentencepiece.c). */
typedef enum fmi_piece_type {
    FMI_PIECE_NORMAL = 1,
    FMI_PIECE_UNKNOWN = 2,
    FMI_PIECE_CONTROL = 3,
    FMI_PIECE_USER = 4,
    FMI_PIECE_UNUSED = 5,
    FMI_PIECE_BYTE = 6
} fmi_piece_type;

typedef struct fmi_piece_def {
    fm_span text; /* borrowed from the file */
    float score;
    fmi_piece_type type;
} fmi_piece_def;

typedef struct fmi_pieces_model {
    fmi_piece_def *piece;
    size_t count, cap;
    int32_t unk;
    bool byte_fallback;
} fmi_pieces_model;

typedef struct fmi_unigram fmi_unigram; /* unigram.c */
fm_status fmi_unigram_new(fmi_unigram **out, const fm_json *model);
fm_status fmi_unigram_of_pieces(fmi_unigram **out, const fmi_pieces_model *p);
void fmi_unigram_free(fmi_unigram *m);
fm_status fmi_unigram_encode(const fmi_unigram *m, fmi_tok_scratch *s, fm_span word, fm_ids *out);
const fmi_vocab *fmi_unigram_vocab(const fmi_unigram *m);

typedef struct fmi_spm_bpe fmi_spm_bpe; /* sentencepiece_bpe.c */
fm_status fmi_spm_bpe_new(fmi_spm_bpe **out, const fmi_pieces_model *p);
void fmi_spm_bpe_free(fmi_spm_bpe *m);
fm_status fmi_spm_bpe_encode(const fmi_spm_bpe *m, fmi_tok_scratch *s, fm_span text, fm_ids *out);
const fmi_vocab *fmi_spm_bpe_vocab(const fmi_spm_bpe *m);

/* The model of a tokenizer: one of the four (vocab_model.c). */
typedef struct fmi_model {
    fmi_bpe *bpe;
    fmi_wordpiece *wordpiece;
    fmi_unigram *unigram;
    fmi_spm_bpe *spm_bpe;
} fmi_model;
fm_status fmi_model_parse(fmi_model *out, const fm_json *model);
void fmi_model_release(fmi_model *m);
const fmi_vocab *fmi_model_vocab(const fmi_model *m);
fm_status fmi_model_encode(const fmi_model *m, fmi_tok_scratch *s, fm_span word, fm_ids *out);

/* ---- added tokens (added.c) ---- */
typedef struct fmi_added_token {
    int32_t id;
    char *text;
    size_t len;
    char *shown; /* its decoded text: normalised where `normalized` */
    size_t shown_len;
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
fm_status fmi_added_build(fmi_added *a, const fmi_norms *ns, fmi_tok_scratch *s);
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
    size_t pos;         /* end of the last segment returned */
    size_t search;      /* where to look for the next match */
    bool plain;         /* special tokens are ordinary text */
    const size_t *mark; /* [marks] ascending: no special token lies across one of them */
    size_t marks;
    bool pending;
    fmi_segment next;
} fmi_added_scan;
/* False at the end, and early where fm_go_on fails. */
bool fmi_added_next(fmi_added_scan *scan, fmi_segment *out);
/* Whether a mark lies inside: begin < mark < end. */
bool fmi_added_marked(const fmi_added_scan *scan, size_t begin, size_t end);

/* ---- decoders (decode.c) ---- */
typedef enum fmi_decode_kind {
    FMI_DECODE_REPLACE,
    FMI_DECODE_STRIP,
    FMI_DECODE_METASPACE,
    FMI_DECODE_CTC,
    FMI_DECODE_WORDPIECE,
    FMI_DECODE_BPE,
    FMI_DECODE_BYTE_FALLBACK,
    FMI_DECODE_BYTE_LEVEL,
    FMI_DECODE_FUSE
} fmi_decode_kind;

typedef struct fmi_text_part {
    char *data;
    size_t len;
} fmi_text_part;

typedef struct fmi_decode_step {
    fmi_decode_kind kind;
    fmi_text_part a, b;   /* a: pattern, prefix, suffix, ..; b: replacement, delimiter */
    uint32_t start, stop; /* Strip */
    bool drop_first;      /* Metaspace: a first token loses its spaces */
    bool cleanup;         /* WordPiece, CTC */
} fmi_decode_step;

enum { FMI_FORM_FIRST = 1, FMI_FORM_LAST = 2 }; /* a token's bytes can depend on its place */

typedef struct fmi_decoder {
    fmi_decode_step step[16];
    size_t count;
    const fmi_decode_step *strip; /* applied to the joined text; NULL: none */
    bool join_space;              /* no decoder given: tokens joined by a space */
    bool bytes, ctc, by_first, by_last;
    struct {
        fm_buf bytes;  /* bytes of all tokens, one after another */
        uint32_t *off; /* [size + 1] */
    } form[4];
} fmi_decoder;
fm_status fmi_decoder_parse(fmi_decoder *out, const fm_json *v);
/* Decodes every token: texts by id, data NULL where there is none. */
fm_status fmi_decoder_prepare(fmi_decoder *d, const fm_span *text, size_t count);
void fmi_decoder_release(fmi_decoder *d);
fm_span fmi_decoder_bytes(const fmi_decoder *d, int32_t id, bool first, bool last);

/* ---- helpers for the parsers (util.c) ---- */
fm_status fmi_need_bool(bool *out, const fm_json *obj, const char *key, bool dflt,
                        const char *field);
/* {"String": s} or {"Regex": s}. */
fm_status fmi_pattern_parse(fmi_regex **out, const fm_json *pattern, const char *field);

struct fm_tokenizer {
    fmi_norms norms;
    fmi_pres pres;
    fmi_model model;
    fmi_vocab all; /* model's vocabulary and added tokens */
    fmi_added added;
    uint8_t *special; /* [size] 1: marked special */
    fmi_decoder decoder;
    int32_t prefix[FMI_TOK_TEMPLATE_MAX], suffix[FMI_TOK_TEMPLATE_MAX];
    size_t prefix_count, suffix_count;
    int32_t bos, eos, pad, unk;
    bool add_bos, add_eos; /* a SentencePiece model puts them around a text */
    char *chat_template;
    size_t chat_template_len;
};

/* Reads norms, decoder, added tokens and model from a SentencePiece model file (sentencepiece.c);
 * config is tokenizer_config.json or NULL. */
fm_status fmi_spm_open(fm_tokenizer *t, fm_span file, const fm_json *config);

/* Tables of code points: ascending ranges, both ends included. */
typedef struct fmi_range {
    uint32_t lo, hi;
} fmi_range;

static inline bool fmi_in_ranges(const fmi_range *t, size_t count, uint32_t cp)
{
    size_t lo = 0, hi = count;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > t[mid].hi)
            lo = mid + 1;
        else if (cp < t[mid].lo)
            hi = mid;
        else
            return true;
    }
    return false;
}
#define FMI_IN(table, cp) fmi_in_ranges(table, FM_ARRAY_LEN(table), cp)

#endif
