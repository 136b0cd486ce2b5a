/* gguf_words.c - the files of tokenizer/ as GGUF's fields: tokens, their types, merges or scores,
 * special tokens and the chat template. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/export/gguf_impl.h"
#include "store/import/gguf_tok.h"

enum { SPM_UNIGRAM = 1, SPM_BPE = 2 };

typedef struct words {
    const fm_view *v;
    fm_json *json;    /* tokenizer.json; NULL: there is none */
    fm_json *config;  /* tokenizer_config.json; NULL: there is none */
    fm_buf model;     /* tokenizer.model, where spm */
    bool spm, pieces; /* of SentencePiece; WordPiece's */
    fm_span *text;    /* by id; data NULL: none of this id */
    int32_t *type;
    float *score;
    uint64_t count; /* rows of the embedding */
    bool prefix;    /* a space goes before a text; no byte-level rule has it */
    fm_arena *arena;
} words;

fm_status exp_read_json(fm_json **out, const fm_view *v, const char *path)
{
    const fm_entry *e = fm_tree_find(v->tree, path);
    fm_buf text;

    *out = NULL;
    if (!e)
        return FM_OK;
    fm_buf_init(&text, 0);
    fm_status rc = fm_entry_read(&text, v->p, e);
    FM_THEN(rc, fm_json_parse(out, fm_buf_span(&text), path));
    fm_buf_release(&text);
    return rc;
}

static fm_status set_token(words *w, int64_t id, fm_span text, int32_t type, float score)
{
    if (id < 0 || (uint64_t)id >= w->count)
        return fm_fail(FM_EUNSUPPORTED,
                       "tokenizer: token '%.*s' has id %" PRId64 ", the embedding has %" PRIu64
                       " rows; a GGUF has no token without one",
                       (int)FM_MIN(text.len, 60u), (const char *)text.data, id, w->count);
    w->text[id] = text;
    w->type[id] = type;
    w->score[id] = score;
    return FM_OK;
}

/* ---- added tokens ---- */

/* Tokens that some models add without the mark of a special one. */
static bool looks_special(fm_span s)
{
    static const char *const whole[] = {"<pad>", "<mask>", "<2mass>", "[@BOS@]"};
    static const char *const frame[][2] = {
        {"<|", "|>"}, {"<\xef\xbd\x9c", "\xef\xbd\x9c>"}, {"<unused", ">"}};

    for (size_t i = 0; i < FM_ARRAY_LEN(whole); i++)
        if (fm_span_eq_str(s, whole[i]))
            return true;
    for (size_t i = 0; i < FM_ARRAY_LEN(frame); i++) {
        const size_t a = strlen(frame[i][0]), b = strlen(frame[i][1]);
        if (s.len >= a + b && memcmp(s.data, frame[i][0], a) == 0 &&
            memcmp(s.data + s.len - b, frame[i][1], b) == 0)
            return true;
    }
    return false;
}

/* The text with U+2581 as spaces: llama.cpp looks for user-defined tokens in the text as it is. */
static fm_status with_spaces(fm_span *s, words *w)
{
    static const char mark[] = "\xe2\x96\x81";
    uint8_t *copy = fm_arena_alloc(w->arena, s->len + 1);
    size_t n = 0;

    if (!copy)
        return FM_ENOMEM;
    for (size_t i = 0; i < s->len; i++)
        if (s->len - i >= 3 && memcmp(s->data + i, mark, 3) == 0) {
            copy[n++] = ' ';
            i += 2;
        } else {
            copy[n++] = s->data[i];
        }
    *s = fm_span_of(copy, n);
    return FM_OK;
}

static fm_status add_added(words *w, int64_t id, const fm_json *token)
{
    fm_span text = fm_json_str(fm_json_get(token, "content"));
    const bool special = fm_json_bool(fm_json_get(token, "special"), false);

    if (!text.data)
        return fm_fail(FM_EUNSUPPORTED, "tokenizer: added token %" PRId64 " has no 'content'", id);
    if (w->spm && id >= 0 && (uint64_t)id < w->count && w->type[id] == GGUF_TOKEN_UNKNOWN)
        return FM_OK; /* special as well, and the only one of its kind */
    if (special || looks_special(text))
        return set_token(w, id, text, GGUF_TOKEN_CONTROL, -1000);
    FM_TRY(with_spaces(&text, w));
    return set_token(w, id, text, GGUF_TOKEN_USER, -1000);
}

static fm_status add_all_added(words *w)
{
    const fm_json *list = fm_json_get(w->json, "added_tokens");
    const fm_json *map = fm_json_get(w->config, "added_tokens_decoder");

    for (void *it = w->spm ? fm_json_iter(map) : NULL; it; it = fm_json_next(map, it)) {
        int64_t id = 0;
        for (const char *p = fm_json_iter_key(it); *p >= '0' && *p <= '9' && id < 1 << 30; p++)
            id = id * 10 + (*p - '0');
        FM_TRY(add_added(w, id, fm_json_iter_value(it)));
    }
    if (w->spm && map)
        return FM_OK;
    for (size_t i = 0; i < fm_json_count(list); i++)
        FM_TRY(add_added(w, fm_json_int(fm_json_path(fm_json_at(list, i), "id"), -1),
                         fm_json_at(list, i)));
    return FM_OK;
}

/* Ids that no token has. */
static fm_status fill_gaps(words *w)
{
    for (uint64_t i = 0; i < w->count; i++) {
        char text[32];
        if (w->text[i].data)
            continue;
        const int n = snprintf(text, sizeof text, "[PAD%" PRIu64 "]", i);
        const char *copy = fm_arena_strndup(w->arena, text, (size_t)n);
        if (!copy)
            return FM_ENOMEM;
        FM_TRY(set_token(w, (int64_t)i, fm_span_str(copy), GGUF_TOKEN_UNUSED, -10000));
    }
    return FM_OK;
}

/* ---- byte-level BPE ---- */

static fm_status put_merge(fm_buf *out, const fm_json *merge)
{
    const fm_span whole = fm_json_str(merge);
    const fm_span part[2] = {fm_json_str(fm_json_at(merge, 0)), fm_json_str(fm_json_at(merge, 1))};

    if (whole.data) {
        ggw_text(out, whole);
        return FM_OK;
    }
    if (!part[0].data || !part[1].data || memchr(part[0].data, ' ', part[0].len) ||
        memchr(part[1].data, ' ', part[1].len))
        return fm_fail(FM_EUNSUPPORTED, "tokenizer/tokenizer.json: field 'model.merges' must hold "
                                        "pairs of tokens without spaces");
    fm_buf_u64(out, part[0].len + 1 + part[1].len);
    fm_buf_append(out, part[0].data, part[0].len);
    fm_buf_char(out, ' ');
    fm_buf_append(out, part[1].data, part[1].len);
    return FM_OK;
}

static fm_status put_merges(ggw_fields *f, const words *w)
{
    const fm_json *merges = fm_json_path(w->json, "model.merges");

    ggw_list(f, "tokenizer.ggml.merges", FM_GGUF_STRING, fm_json_count(merges));
    for (size_t i = 0; i < fm_json_count(merges); i++)
        FM_TRY(put_merge(&f->bytes, fm_json_at(merges, i)));
    return FM_OK;
}

static fm_status read_bpe(words *w, const char **pre)
{
    const fm_json *model = fm_json_get(w->json, "model"), *vocab = fm_json_get(model, "vocab");
    const char *type = fm_json_cstr(fm_json_get(model, "type"), "BPE");

    if (strcmp(type, "BPE") != 0 || fm_json_bool(fm_json_get(model, "byte_fallback"), false) ||
        !fm_json_is(vocab, FM_JSON_OBJECT))
        return fm_fail(FM_EUNSUPPORTED,
                       "tokenizer/tokenizer.json: field 'model': a tokenizer of type '%.40s'%s "
                       "cannot be written as GGUF; a byte-level BPE can, and any SentencePiece BPE "
                       "whose tokenizer.model is there",
                       type, strcmp(type, "BPE") == 0 ? " with byte_fallback" : "");
    *pre = gguf_pre_name(fm_json_get(w->json, "pre_tokenizer"), fm_json_get(w->json, "normalizer"),
                         fm_json_bool(fm_json_get(model, "ignore_merges"), false));
    if (!*pre)
        return fm_fail(FM_EUNSUPPORTED,
                       "tokenizer/tokenizer.json: fields 'pre_tokenizer', 'normalizer' and "
                       "'model.ignore_merges' are no rules to which llama.cpp has a name; export "
                       "with --format hf");
    for (void *it = fm_json_iter(vocab); it; it = fm_json_next(vocab, it))
        FM_TRY(set_token(w, fm_json_int(fm_json_iter_value(it), -1),
                         fm_span_str(fm_json_iter_key(it)), GGUF_TOKEN_NORMAL, 0));
    return FM_OK;
}

/* ---- WordPiece ---- */

static bool is_wordpiece(const words *w)
{
    const fm_json *model = fm_json_get(w->json, "model");
    return strcmp(fm_json_cstr(fm_json_get(model, "type"), ""), "WordPiece") == 0;
}

static fm_status read_wordpiece(words *w)
{
    const fm_json *model = fm_json_get(w->json, "model"), *vocab = fm_json_get(model, "vocab");
    const char *next = fm_json_cstr(fm_json_get(model, "continuing_subword_prefix"), "##");
    const char *rules = fm_json_cstr(fm_json_path(w->json, "pre_tokenizer.type"), "");
    const char *normal = fm_json_cstr(fm_json_path(w->json, "normalizer.type"), "");

    if (strcmp(next, "##") != 0 || strcmp(rules, "BertPreTokenizer") != 0 ||
        strcmp(normal, "BertNormalizer") != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "tokenizer/tokenizer.json: fields 'pre_tokenizer', 'normalizer' and "
                       "'model.continuing_subword_prefix' are not those of BERT, which a GGUF's "
                       "WordPiece has; export with --format hf");
    for (void *it = fm_json_iter(vocab); it; it = fm_json_next(vocab, it))
        FM_TRY(set_token(w, fm_json_int(fm_json_iter_value(it), -1),
                         fm_span_str(fm_json_iter_key(it)), GGUF_TOKEN_NORMAL, 0));
    return FM_OK;
}

static fm_status rename_pieces(words *w)
{
    for (uint64_t i = 0; i < w->count; i++)
        if (w->type[i] != GGUF_TOKEN_CONTROL)
            FM_TRY(ggw_phantom(&w->text[i], w->arena));
    return FM_OK;
}

static void put_normalizer(ggw_fields *f, const words *w)
{
    const fm_json *n = fm_json_get(w->json, "normalizer"), *strip = fm_json_get(n, "strip_accents");

    ggw_bool(f, "tokenizer.ggml.normalizer.lowercase",
             fm_json_bool(fm_json_get(n, "lowercase"), true));
    if (fm_json_is(strip, FM_JSON_BOOL)) /* else as lower case */
        ggw_bool(f, "tokenizer.ggml.normalizer.strip_accents", fm_json_bool(strip, false));
    ggw_bool(f, "tokenizer.ggml.add_sep_token", false);
}

/* ---- SentencePiece ---- */

/* One field of a message of protocol buffers. */
typedef struct field {
    uint64_t number, value; /* value: of a number; the bits of a float */
    fm_span bytes;          /* of a text or message */
} field;

static bool varint(fm_span *s, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; s->len > 0 && shift < 64; shift += 7) {
        const uint8_t b = s->data[0];
        *s = fm_span_of(s->data + 1, s->len - 1);
        *out |= (uint64_t)(b & 127) << shift;
        if (b < 128)
            return true;
    }
    return false;
}

/* Takes a field off the front; false: the message is damaged. */
static bool next_field(fm_span *s, field *f)
{
    uint64_t tag, n = 0;

    *f = (field){0, 0, {NULL, 0}};
    if (!varint(s, &tag))
        return false;
    f->number = tag >> 3;
    if ((tag & 7) == 0)
        return varint(s, &f->value);
    if ((tag & 7) == 2 && !varint(s, &n))
        return false;
    n = (tag & 7) == 1 ? 8 : (tag & 7) == 5 ? 4 : n;
    if (((tag & 7) != 1 && (tag & 7) != 2 && (tag & 7) != 5) || n > s->len)
        return false;
    f->bytes = fm_span_of(s->data, (size_t)n);
    for (size_t i = 0; (tag & 7) == 5 && i < 4; i++)
        f->value |= (uint64_t)s->data[i] << 8 * i;
    *s = fm_span_of(s->data + n, s->len - (size_t)n);
    return true;
}

static fm_status damaged(void)
{
    return fm_fail(FM_ECORRUPT, "tokenizer/tokenizer.model: is no SentencePiece model");
}

static fm_status add_piece(words *w, int64_t id, fm_span piece)
{
    fm_span text = fm_span_of((const uint8_t *)"", 0);
    int32_t type = GGUF_TOKEN_NORMAL;
    float score = 0;
    field f;

    while (piece.len > 0) {
        if (!next_field(&piece, &f))
            return damaged();
        if (f.number == 1)
            text = f.bytes;
        if (f.number == 3)
            type = (int32_t)f.value;
        if (f.number == 2) {
            const uint32_t bits = (uint32_t)f.value;
            memcpy(&score, &bits, sizeof score);
        }
    }
    return set_token(w, id, text, type == GGUF_TOKEN_USER ? GGUF_TOKEN_NORMAL : type, score);
}

/* Of a settings message the number of one field. */
static fm_status setting(uint64_t *out, fm_span message, uint64_t number)
{
    field f;

    while (message.len > 0) {
        if (!next_field(&message, &f))
            return damaged();
        if (f.number == number)
            *out = f.value;
    }
    return FM_OK;
}

static fm_status read_spm(words *w)
{
    fm_span all = fm_buf_span(&w->model);
    uint64_t kind = SPM_UNIGRAM, prefix = 1;
    int64_t id = 0;
    field f;

    while (all.len > 0) {
        if (!next_field(&all, &f))
            return damaged();
        if (f.number == 1)
            FM_TRY(add_piece(w, id++, f.bytes));
        if (f.number == 2)
            FM_TRY(setting(&kind, f.bytes, 3));
        if (f.number == 3)
            FM_TRY(setting(&prefix, f.bytes, 3));
    }
    if (kind != SPM_BPE)
        return fm_fail(FM_EUNSUPPORTED, "tokenizer/tokenizer.model: is no BPE model; of "
                                        "SentencePiece's kinds a decoder's GGUF holds that alone");
    w->prefix = prefix != 0;
    return FM_OK;
}

/* ---- the fields ---- */

static void put_lists(ggw_fields *f, const words *w)
{
    ggw_list(f, "tokenizer.ggml.tokens", FM_GGUF_STRING, w->count);
    for (uint64_t i = 0; i < w->count; i++)
        ggw_text(&f->bytes, w->text[i]);
    if (w->spm) {
        ggw_list(f, "tokenizer.ggml.scores", FM_GGUF_F32, w->count);
        for (uint64_t i = 0; i < w->count; i++)
            ggw_float(&f->bytes, w->score[i]);
    }
    ggw_list(f, "tokenizer.ggml.token_type", FM_GGUF_I32, w->count);
    for (uint64_t i = 0; i < w->count; i++)
        fm_buf_u32(&f->bytes, (uint32_t)w->type[i]);
}

/* "x_token" of tokenizer_config.json, a text or an object with one. BERT's texts begin and end with
 * its classifier's and separator's. */
static fm_span config_token(const words *w, const char *name)
{
    char key[32];
    snprintf(key, sizeof key, "%s_token", name);
    const fm_json *v = fm_json_get(w->config, key);
    const fm_span text = fm_json_str(fm_json_is(v, FM_JSON_OBJECT) ? fm_json_get(v, "content") : v);
    if (!text.data && strcmp(name, "bos") == 0)
        return config_token(w, "cls");
    return !text.data && strcmp(name, "eos") == 0 ? config_token(w, "sep") : text;
}

static bool special_id(int64_t *out, const words *w, const ggw_model *m, const char *name)
{
    const fm_span text = config_token(w, name);
    char key[32];

    snprintf(key, sizeof key, "%s_token_id", name);
    *out = fm_json_int(fm_json_get(m->config, key), -1);
    for (uint64_t i = 0; text.data && i < w->count; i++)
        if (w->text[i].len == text.len && memcmp(w->text[i].data, text.data, text.len) == 0) {
            *out = (int64_t)i;
            break;
        }
    return *out >= 0 && (uint64_t)*out < w->count;
}

/* Whether the template of one text begins (ends) with this token; *said: there is a post-processor,
 * so it says so. */
static bool frames(const fm_json *post, const char *end, fm_span token, bool *said)
{
    const fm_json *list = fm_json_get(post, "processors");
    bool yes = false;

    for (size_t i = 0; i < (list ? fm_json_count(list) : 1); i++) {
        const fm_json *one = list ? fm_json_at(list, i) : post;
        const char *type = fm_json_cstr(fm_json_get(one, "type"), "");
        const fm_json *steps = fm_json_get(one, "single");
        const size_t n = fm_json_count(steps);
        if (strcmp(type, "ByteLevel") == 0)
            *said = true;
        if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0)
            return *said = true;
        if (strcmp(type, "TemplateProcessing") != 0 || n < 2)
            continue;
        const fm_span id = fm_json_str(fm_json_path(
            fm_json_at(steps, strcmp(end, "bos") == 0 ? 0 : n - 1), "SpecialToken.id"));
        *said = *said || id.data;
        yes = yes || (id.data && token.data && id.len == token.len &&
                      memcmp(id.data, token.data, id.len) == 0);
    }
    return yes;
}

/* The post-processor decides, then tokenizer_config.json, then what such tokenizers do. */
static bool adds(const words *w, const char *end)
{
    char key[32];
    bool said = false;
    const bool yes =
        frames(fm_json_get(w->json, "post_processor"), end, config_token(w, end), &said);

    snprintf(key, sizeof key, "add_%s_token", end);
    return said ? yes
                : fm_json_bool(fm_json_get(w->config, key), w->spm && strcmp(end, "bos") == 0);
}

static void put_special(ggw_fields *f, const words *w, const ggw_model *m)
{
    static const char *const names[][2] = {
        {"bos", "tokenizer.ggml.bos_token_id"},     {"eos", "tokenizer.ggml.eos_token_id"},
        {"unk", "tokenizer.ggml.unknown_token_id"}, {"sep", "tokenizer.ggml.seperator_token_id"},
        {"pad", "tokenizer.ggml.padding_token_id"}, {"cls", "tokenizer.ggml.cls_token_id"},
        {"mask", "tokenizer.ggml.mask_token_id"}};
    int64_t id = 0;

    for (size_t i = 0; i < FM_ARRAY_LEN(names); i++)
        if (special_id(&id, w, m, names[i][0]))
            ggw_u32(f, names[i][1], (uint64_t)id);
    ggw_bool(f, "tokenizer.ggml.add_bos_token", adds(w, "bos"));
    ggw_bool(f, "tokenizer.ggml.add_eos_token", adds(w, "eos"));
    ggw_bool(f, "tokenizer.ggml.add_space_prefix", w->prefix);
}

/* The template: a file of its own, else tokenizer_config.json's, of several the default. */
static fm_status put_template(ggw_fields *f, const words *w)
{
    const fm_entry *e = fm_tree_find(w->v->tree, "tokenizer/chat_template.jinja");
    const fm_json *v = fm_json_get(w->config, "chat_template");
    fm_json *file = NULL;
    fm_buf text;
    fm_status rc = FM_OK;

    fm_buf_init(&text, 0);
    if (e) {
        rc = fm_entry_read(&text, w->v->p, e);
        if (rc == FM_OK)
            ggw_str(f, "tokenizer.chat_template", fm_buf_span(&text));
        fm_buf_release(&text);
        return rc;
    }
    if (!v)
        rc = exp_read_json(&file, w->v, "tokenizer/chat_template.json");
    if (file)
        v = fm_json_get(file, "chat_template");
    for (size_t i = 0; fm_json_is(v, FM_JSON_ARRAY) && i < fm_json_count(v); i++)
        if (strcmp(fm_json_cstr(fm_json_get(fm_json_at(v, i), "name"), ""), "default") == 0)
            v = fm_json_get(fm_json_at(v, i), "template");
    if (fm_json_is(v, FM_JSON_STRING))
        ggw_str(f, "tokenizer.chat_template", fm_json_str(v));
    fm_json_free(file);
    return rc;
}

static fm_status put_all(ggw_fields *f, words *w, const ggw_model *m)
{
    const char *pre = "default";

    w->count = m->vocab;
    w->text = fm_calloc((size_t)w->count + 1, sizeof *w->text);
    w->type = fm_calloc((size_t)w->count + 1, sizeof *w->type);
    w->score = fm_calloc((size_t)w->count + 1, sizeof *w->score);
    if (!w->text || !w->type || !w->score)
        return FM_ENOMEM;
    w->pieces = !w->spm && is_wordpiece(w);
    FM_TRY(w->spm ? read_spm(w) : w->pieces ? read_wordpiece(w) : read_bpe(w, &pre));
    FM_TRY(add_all_added(w));
    FM_TRY(fill_gaps(w));
    if (w->pieces)
        FM_TRY(rename_pieces(w));
    ggw_str(f, "tokenizer.ggml.model", fm_span_str(w->spm ? "llama" : w->pieces ? "bert" : "gpt2"));
    ggw_str(f, "tokenizer.ggml.pre", fm_span_str(pre));
    put_lists(f, w);
    if (w->pieces)
        put_normalizer(f, w);
    else if (!w->spm)
        FM_TRY(put_merges(f, w));
    put_special(f, w, m);
    return put_template(f, w);
}

fm_status ggw_tokenizer_fields(ggw_fields *f, const fm_view *v, const ggw_model *m)
{
    const fm_entry *spm = fm_tree_find(v->tree, "tokenizer/tokenizer.model");
    words w = {.v = v, .spm = spm != NULL};

    fm_buf_init(&w.model, 0);
    fm_status rc = fm_arena_new(&w.arena);
    FM_THEN(rc, exp_read_json(&w.json, v, "tokenizer/tokenizer.json"));
    FM_THEN(rc, exp_read_json(&w.config, v, "tokenizer/tokenizer_config.json"));
    if (spm)
        FM_THEN(rc, fm_entry_read(&w.model, v->p, spm));
    if (rc == FM_OK && (w.json || spm))
        rc = put_all(f, &w, m);
    fm_free(w.text);
    fm_free(w.type);
    fm_free(w.score);
    fm_buf_release(&w.model);
    fm_json_free(w.json);
    fm_json_free(w.config);
    fm_arena_free(w.arena);
    return rc;
}
