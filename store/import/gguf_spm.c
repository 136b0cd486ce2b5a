/* gguf_spm.c - a GGUF's SentencePiece vocabulary (kinds llama, t5) as a SentencePiece model file.
 *
 * The GGUF has the pieces with scores and types and the normaliser's settings: all that the model
 * file held, so that file is written again (infer/tokenizer/sentencepiece.c has its fields). */
#include "store/import/gguf_tok.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static fm_status bad(const fm_gguf *g, const char *field, const char *why)
{
    return fm_fail(FM_ECORRUPT, "%s: field '%s' %s", fm_gguf_what(g), field, why);
}

/* ---- protobuf ---- */

static void put_varint(fm_buf *b, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        fm_buf_u8(b, (uint8_t)(v | 0x80));
    fm_buf_u8(b, (uint8_t)v);
}

static void put_number(fm_buf *b, uint32_t field, uint64_t v)
{
    put_varint(b, (uint64_t)field << 3);
    put_varint(b, v);
}

static void put_bytes(fm_buf *b, uint32_t field, fm_span bytes)
{
    put_varint(b, (uint64_t)field << 3 | 2);
    put_varint(b, bytes.len);
    fm_buf_append(b, bytes.data, bytes.len);
}

/* ---- what the pieces are ---- */

static bool is_byte_piece(fm_span s)
{
    return s.len == 6 && memcmp(s.data, "<0x", 3) == 0 && s.data[5] == '>';
}

/* The type of a piece. SentencePiece wants exactly one unknown piece; others, and unused ones,
 * become control pieces, which no text gives. Without types the texts decide. */
static int64_t piece_type(const gguf_vocab *v, uint64_t id, uint64_t unk)
{
    int64_t type = gguf_token_type(v, id);

    if (id == unk)
        return GGUF_TOKEN_UNKNOWN;
    if (!v->types && is_byte_piece(v->text[id]))
        return GGUF_TOKEN_BYTE;
    if (type == GGUF_TOKEN_UNKNOWN || type == GGUF_TOKEN_UNUSED)
        return GGUF_TOKEN_CONTROL;
    return type;
}

static fm_status find_unknown(const gguf_vocab *v, uint64_t *unk)
{
    bool found = false;
    fm_status rc = gguf_special_id(v, "tokenizer.ggml.unknown_token_id", unk, &found);

    if (rc < 0 || found)
        return rc;
    for (*unk = 0; *unk < v->tokens->count; ++*unk)
        if (gguf_token_type(v, *unk) == GGUF_TOKEN_UNKNOWN)
            return FM_OK;
    return bad(v->g, "tokenizer.ggml.unknown_token_id", "is missing, and no token is unknown");
}

static fm_status put_pieces(fm_buf *out, const gguf_vocab *v, uint64_t unk, bool *byte_fallback)
{
    const fm_gguf_kv *scores = fm_gguf_get(v->g, "tokenizer.ggml.scores");
    uint64_t bytes = 0;
    fm_buf one;

    if (!scores || scores->type != FM_GGUF_ARRAY || scores->elem != FM_GGUF_F32 ||
        scores->count != v->tokens->count)
        return bad(v->g, "tokenizer.ggml.scores", "must be a list of F32, one for each token");
    fm_buf_init(&one, 0);
    for (uint64_t i = 0; i < v->tokens->count; i++) {
        int64_t type = piece_type(v, i, unk);
        if (type < GGUF_TOKEN_NORMAL || type > GGUF_TOKEN_BYTE || v->text[i].len == 0) {
            fm_buf_release(&one);
            return fm_fail(FM_ECORRUPT,
                           "%s: field 'tokenizer.ggml.token_type': token %" PRIu64
                           " is empty or of no known type",
                           fm_gguf_what(v->g), i);
        }
        fm_buf_clear(&one);
        put_bytes(&one, 1, v->text[i]);
        put_varint(&one, 2u << 3 | 5);
        fm_buf_append(&one, scores->data.data + 4 * i, 4);
        put_number(&one, 3, (uint64_t)type);
        put_bytes(out, 1, fm_buf_span(&one));
        bytes += type == GGUF_TOKEN_BYTE;
    }
    fm_status rc = fm_buf_ok(&one);
    fm_buf_release(&one);
    if (rc == FM_OK && bytes != 0 && bytes != 256)
        return bad(v->g, "tokenizer.ggml.token_type", "must mark all 256 byte tokens or none");
    *byte_fallback = bytes == 256;
    return rc;
}

/* ---- the settings ---- */

static fm_status put_trainer(fm_buf *out, const gguf_vocab *v, const gguf_wrap *w, bool unigram,
                             bool byte_fallback)
{
    fm_buf b;
    uint64_t pad = 0;
    bool suffix = false, found = false;
    FM_TRY(fm_gguf_bool(v->g, "tokenizer.ggml.treat_whitespace_as_suffix", &suffix, &found));

    FM_TRY(gguf_special_id(v, "tokenizer.ggml.padding_token_id", &pad, &found));
    fm_buf_init(&b, 0);
    put_number(&b, 3, unigram ? 1 : 2);
    put_number(&b, 4, v->tokens->count);
    put_number(&b, 24, suffix);
    put_number(&b, 35, byte_fallback);
    if (w->bos)
        put_bytes(&b, 46, v->text[w->bos_id]);
    if (w->eos)
        put_bytes(&b, 47, v->text[w->eos_id]);
    if (found)
        put_bytes(&b, 48, v->text[pad]);
    put_bytes(out, 2, fm_buf_span(&b));
    fm_status rc = fm_buf_ok(&b);
    fm_buf_release(&b);
    return rc;
}

static fm_status put_normalizer(fm_buf *out, const fm_gguf *g)
{
    const fm_gguf_kv *map = fm_gguf_get(g, "tokenizer.ggml.precompiled_charsmap");
    bool prefix = true, extra = false, escape = true, found;
    fm_buf b;
    FM_TRY(fm_gguf_bool(g, "tokenizer.ggml.add_space_prefix", &prefix, &found));

    FM_TRY(fm_gguf_bool(g, "tokenizer.ggml.remove_extra_whitespaces", &extra, &found));
    FM_TRY(fm_gguf_bool(g, "tokenizer.ggml.escape_whitespaces", &escape, &found));
    if (map &&
        (map->type != FM_GGUF_ARRAY || (map->elem != FM_GGUF_I8 && map->elem != FM_GGUF_U8) ||
         map->data.len != map->count))
        return bad(g, "tokenizer.ggml.precompiled_charsmap", "must be a list of bytes");
    fm_buf_init(&b, 0);
    if (map && map->count > 0)
        put_bytes(&b, 2, map->data);
    put_number(&b, 3, prefix);
    put_number(&b, 4, extra);
    put_number(&b, 5, escape);
    put_bytes(out, 3, fm_buf_span(&b));
    fm_status rc = fm_buf_ok(&b);
    fm_buf_release(&b);
    return rc;
}

/* Adds the tokens found in a text before it is split: control, unknown and user-defined ones. */
static fm_status added_tokens(fm_json *config, const gguf_vocab *v, uint64_t unk)
{
    fm_json *map = fm_json_new_object();
    fm_status rc = map ? FM_OK : FM_ENOMEM;

    for (uint64_t i = 0; rc == FM_OK && i < v->tokens->count; i++) {
        int64_t type = i == unk ? GGUF_TOKEN_UNKNOWN : gguf_token_type(v, i);
        char key[24];
        if (type != GGUF_TOKEN_CONTROL && type != GGUF_TOKEN_USER && type != GGUF_TOKEN_UNKNOWN)
            continue;
        fm_json *one = fm_json_new_object();
        (void)snprintf(key, sizeof key, "%" PRIu64, i);
        rc = one ? fm_json_set(one, "content", gguf_token_str(v, i)) : FM_ENOMEM;
        FM_THEN(rc, fm_json_set(one, "special", fm_json_new_bool(type != GGUF_TOKEN_USER)));
        FM_THEN(rc, fm_json_set(map, key, fm_json_ref(one)));
        fm_json_free(one);
    }
    FM_THEN(rc, fm_json_set(config, "added_tokens_decoder", fm_json_ref(map)));
    fm_json_free(map);
    return rc;
}

fm_status gguf_put_spm(fm_source *src, const gguf_vocab *v, gguf_wrap *w, bool unigram,
                       fm_json *config)
{
    bool byte_fallback = false;
    uint64_t unk = 0;
    fm_buf out;
    fm_status rc = find_unknown(v, &unk);

    fm_buf_init(&out, 0);
    FM_THEN(rc, gguf_read_wrap(w, v, !unigram, unigram));
    FM_THEN(rc, put_pieces(&out, v, unk, &byte_fallback));
    FM_THEN(rc, put_trainer(&out, v, w, unigram, byte_fallback));
    FM_THEN(rc, put_normalizer(&out, v->g));
    FM_THEN(rc, fm_buf_ok(&out));
    FM_THEN(rc, added_tokens(config, v, unk));
    FM_THEN(rc, fm_json_set(config, "legacy", fm_json_new_bool(true)));
    FM_THEN(rc, fm_json_set(config, "tokenizer_class",
                            fm_json_new_str(unigram ? "T5Tokenizer" : "LlamaTokenizer")));
    FM_THEN(rc, src_put_copy(src, "tokenizer/tokenizer.model", fm_buf_span(&out)));
    fm_buf_release(&out);
    return rc;
}
