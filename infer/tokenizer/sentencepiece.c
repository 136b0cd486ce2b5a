/* sentencepiece.c - SentencePiece model files (tokenizer.model, spiece.model): a protobuf message
 * that holds pieces with scores and the rules of normalisation.
 *
 *   ModelProto      1 pieces (SentencePiece)*   2 trainer_spec   3 normalizer_spec   5
 *   denormalizer_spec SentencePiece   1 piece (text)   2 score (float)   3 type (1 normal .. 6
 *   byte) TrainerSpec     3 model_type (1 Unigram, 2 BPE)   24 treat_whitespace_as_suffix   35
 *   byte_fallback
 *                   46 bos_piece   47 eos_piece   48 pad_piece
 *   NormalizerSpec  2 precompiled_charsmap   3 add_dummy_prefix   4 remove_extra_whitespaces
 *                   5 escape_whitespaces
 *
 * Ids are those of the sentencepiece library; what Hugging Face's Llama, Gemma and T5 tokenizers do
 * around it (added tokens, bos and eos) comes from tokenizer_config.json. Classes that renumber
 * the pieces (XLM-R, Pegasus and others) are refused by name. */
#include "infer/tokenizer/internal.h"

#include <math.h>
#include <string.h>

static const char file_name[] = "tokenizer.model";

/* ---- protobuf ---- */

typedef struct field {
    uint32_t number, wire;
    uint64_t value; /* of a varint */
    fm_span bytes;  /* of the other wire types */
} field;

static bool read_varint(fm_span *in, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; shift < 64 && in->len > 0; shift += 7) {
        uint8_t b = *in->data++;
        in->len--;
        *out |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80))
            return true;
    }
    return false;
}

/* Reads the next field of a message; *end: there is none. `what` names the message. */
static fm_status next_field(fm_span *in, field *f, bool *end, const char *what)
{
    uint64_t key, len = 0;

    *end = in->len == 0;
    if (*end)
        return FM_OK;
    memset(f, 0, sizeof *f);
    if (!read_varint(in, &key) || key >> 3 == 0 || key >> 3 > UINT32_MAX)
        return fm_fail(FM_ECORRUPT, "%s: %s: bad field number", file_name, what);
    f->number = (uint32_t)(key >> 3);
    f->wire = (uint32_t)(key & 7);
    if (f->wire == 0) {
        if (read_varint(in, &f->value))
            return FM_OK;
    } else if (f->wire == 1 || f->wire == 5 || (f->wire == 2 && read_varint(in, &len))) {
        len = f->wire == 1 ? 8 : f->wire == 5 ? 4 : len;
        if (len <= in->len) {
            f->bytes = fm_span_of(in->data, (size_t)len);
            in->data += len;
            in->len -= (size_t)len;
            return FM_OK;
        }
    }
    return fm_fail(FM_ECORRUPT, "%s: %s: field %u is cut off or of no known kind", file_name, what,
                   f->number);
}

/* ---- reading ---- */

typedef struct spec {
    fmi_pieces_model m;
    uint64_t model_type;
    bool suffix; /* treat_whitespace_as_suffix */
    bool dummy_prefix, remove_extra, escape;
    fm_span charsmap;
    fm_span name[3]; /* bos, eos, pad */
} spec;

static fm_status wrong_kind(const char *what, const char *name)
{
    return fm_fail(FM_ECORRUPT, "%s: %s.%s has the wrong kind", file_name, what, name);
}

static float float_of(fm_span b)
{
    uint32_t bits = (uint32_t)b.data[0] | (uint32_t)b.data[1] << 8 | (uint32_t)b.data[2] << 16 |
                    (uint32_t)b.data[3] << 24;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static fm_status check_piece(const fmi_piece_def *d, size_t index)
{
    if (d->text.len == 0 || d->text.len > FMI_TOK_PIECE_MAX ||
        memchr(d->text.data, 0, d->text.len) ||
        fm_utf8_valid(d->text.data, d->text.len) != d->text.len)
        return fm_fail(FM_ECORRUPT,
                       "%s: pieces[%zu].piece must be UTF-8 text of 1 to %d bytes without NUL",
                       file_name, index, FMI_TOK_PIECE_MAX);
    if (!isfinite(d->score))
        return fm_fail(FM_ECORRUPT, "%s: pieces[%zu].score is not finite", file_name, index);
    if (d->type < FMI_PIECE_NORMAL || d->type > FMI_PIECE_BYTE)
        return fm_fail(FM_ECORRUPT, "%s: pieces[%zu].type is unknown", file_name, index);
    return FM_OK;
}

static fm_status read_piece(spec *s, fm_span in)
{
    fmi_piece_def d = {fm_span_of(NULL, 0), 0, FMI_PIECE_NORMAL};
    field f;
    bool end;
    fm_status rc;

    while ((rc = next_field(&in, &f, &end, "pieces")) == FM_OK && !end) {
        if (f.number == 1 && f.wire == 2)
            d.text = f.bytes;
        else if (f.number == 2 && f.wire == 5)
            d.score = float_of(f.bytes);
        else if (f.number == 3 && f.wire == 0)
            d.type = (fmi_piece_type)FM_MIN(f.value, (uint64_t)99);
        else if (f.number <= 3)
            return wrong_kind("pieces", f.number == 1 ? "piece" : f.number == 2 ? "score" : "type");
    }
    if (rc < 0)
        return rc;
    if (s->m.count == FM_TOK_VOCAB_MAX)
        return fm_fail(FM_ELIMIT, "%s: more than %zu pieces", file_name, FM_TOK_VOCAB_MAX);
    FM_TRY(check_piece(&d, s->m.count));
    FM_TRY(fm_grow(&s->m.piece, &s->m.cap, s->m.count + 1, sizeof *s->m.piece));
    if (d.type == FMI_PIECE_UNKNOWN) {
        if (s->m.unk >= 0)
            return fm_fail(FM_ECORRUPT, "%s: pieces[%zu]: a second unknown piece", file_name,
                           s->m.count);
        s->m.unk = (int32_t)s->m.count;
    }
    s->m.piece[s->m.count++] = d;
    return FM_OK;
}

static fm_status read_trainer(spec *s, fm_span in)
{
    field f;
    bool end;
    fm_status rc;

    while ((rc = next_field(&in, &f, &end, "trainer_spec")) == FM_OK && !end) {
        bool number = f.number == 3 || f.number == 24 || f.number == 35;
        bool name = f.number >= 46 && f.number <= 48;
        if ((number && f.wire != 0) || (name && f.wire != 2))
            return wrong_kind("trainer_spec", f.number == 3    ? "model_type"
                                              : f.number == 24 ? "treat_whitespace_as_suffix"
                                              : f.number == 35 ? "byte_fallback"
                                                               : "bos_piece");
        if (f.number == 3)
            s->model_type = f.value;
        else if (f.number == 24)
            s->suffix = f.value != 0;
        else if (f.number == 35)
            s->m.byte_fallback = f.value != 0;
        else if (name)
            s->name[f.number - 46] = f.bytes;
    }
    return rc;
}

static fm_status read_normalizer(spec *s, fm_span in)
{
    static const char *const name[] = {"add_dummy_prefix", "remove_extra_whitespaces",
                                       "escape_whitespaces"};
    bool *const flag[] = {&s->dummy_prefix, &s->remove_extra, &s->escape};
    field f;
    bool end;
    fm_status rc;

    while ((rc = next_field(&in, &f, &end, "normalizer_spec")) == FM_OK && !end) {
        if (f.number == 2 && f.wire != 2)
            return wrong_kind("normalizer_spec", "precompiled_charsmap");
        if (f.number == 2)
            s->charsmap = f.bytes;
        if (f.number < 3 || f.number > 5)
            continue;
        if (f.wire != 0)
            return wrong_kind("normalizer_spec", name[f.number - 3]);
        *flag[f.number - 3] = f.value != 0;
    }
    return rc;
}

/* Refuses a denormalizer with rules, which decoding would have to use. */
static fm_status check_denormalizer(fm_span in)
{
    field f;
    bool end;
    fm_status rc;

    while ((rc = next_field(&in, &f, &end, "denormalizer_spec")) == FM_OK && !end)
        if (f.number == 2 && f.bytes.len > 0)
            return fm_fail(FM_EUNSUPPORTED,
                           "%s: denormalizer_spec.precompiled_charsmap is not implemented",
                           file_name);
    return rc;
}

static fm_status read_model(spec *s, fm_span in)
{
    field f;
    bool end;
    fm_status rc;

    while ((rc = next_field(&in, &f, &end, "model")) == FM_OK && !end) {
        if ((f.number <= 3 || f.number == 5) && f.wire != 2)
            return fm_fail(FM_ECORRUPT, "%s: field %u must be a message", file_name, f.number);
        if (f.number == 1)
            rc = read_piece(s, f.bytes);
        else if (f.number == 2)
            rc = read_trainer(s, f.bytes);
        else if (f.number == 3)
            rc = read_normalizer(s, f.bytes);
        else if (f.number == 5)
            rc = check_denormalizer(f.bytes);
        if (rc < 0)
            return rc;
    }
    if (rc < 0)
        return rc;
    if (s->m.count == 0 || s->m.unk < 0)
        return fm_fail(FM_ECORRUPT, "%s: no pieces, or none of type unknown", file_name);
    if (s->model_type != 1 && s->model_type != 2)
        return fm_fail(FM_EUNSUPPORTED,
                       "%s: trainer_spec.model_type %s is not implemented (Unigram and BPE are)",
                       file_name,
                       s->model_type == 3   ? "WORD"
                       : s->model_type == 4 ? "CHAR"
                                            : "unknown");
    return FM_OK;
}

/* ---- building the tokenizer ---- */

static fm_status build_normalizer(fm_tokenizer *t, const spec *s, bool every_segment)
{
    fmi_norm *n = &t->norms.step[t->norms.count++];
    fmi_ptree_key *key = fm_calloc(s->m.count, sizeof *key);
    size_t users = 0;
    fm_status rc = key ? FM_OK : FM_ENOMEM;

    n->kind = FMI_NORM_SPM;
    n->prefix = s->dummy_prefix && !s->suffix;
    n->suffix = s->dummy_prefix && s->suffix;
    n->every_segment = every_segment;
    n->left = n->right = s->remove_extra;
    n->escape = s->escape;
    for (size_t i = 0; rc == FM_OK && i < s->m.count; i++)
        if (s->m.piece[i].type == FMI_PIECE_USER)
            key[users++] = (fmi_ptree_key){s->m.piece[i].text, (int32_t)i};
    FM_THEN(rc, fmi_ptree_build(&n->symbols, key, users));
    if (rc == FM_OK && s->charsmap.len > 0)
        rc = fmi_charsmap_new(&n->map, s->charsmap, file_name);
    fm_free(key);
    return rc;
}

static fm_status build_decoder(fm_tokenizer *t, const spec *s)
{
    fm_json *v = NULL;
    fm_buf text;
    int strip = s->remove_extra ? 1 << 20 : s->dummy_prefix;

    fm_buf_init(&text, 0);
    fm_buf_str(&text, "{\"type\":\"Sequence\",\"decoders\":[");
    if (s->escape)
        fm_buf_str(&text, "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" FMI_SPM_SPACE
                          "\"},\"content\":\" \"},");
    if (s->m.byte_fallback)
        fm_buf_str(&text, "{\"type\":\"ByteFallback\"},");
    fm_buf_printf(&text,
                  "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":%d,"
                  "\"stop\":0}]}",
                  s->escape ? strip : 0);
    fm_status rc = fm_buf_ok(&text);
    FM_THEN(rc, fm_json_parse(&v, fm_buf_span(&text), file_name));
    FM_THEN(rc, fmi_decoder_parse(&t->decoder, v));
    fm_json_free(v);
    fm_buf_release(&text);
    return rc;
}

static fm_status push_added(fm_json *list, int64_t id, fm_span text, bool special,
                            const fm_json *flags)
{
    static const char *const copied[] = {"lstrip", "rstrip", "single_word"};
    fm_json *o = fm_json_new_object();
    fm_status rc = o ? fm_json_set(o, "id", fm_json_new_int(id)) : FM_ENOMEM;

    FM_THEN(rc, fm_json_set(o, "content", fm_json_new_strn((const char *)text.data, text.len)));
    FM_THEN(rc, fm_json_set(o, "special", fm_json_new_bool(special)));
    FM_THEN(rc, fm_json_set(o, "normalized", fm_json_new_bool(false)));
    for (size_t i = 0; rc == FM_OK && i < FM_ARRAY_LEN(copied); i++)
        rc = fm_json_set(o, copied[i],
                         fm_json_new_bool(fm_json_bool(fm_json_get(flags, copied[i]), false)));
    FM_THEN(rc, fm_json_push(list, fm_json_ref(o)));
    fm_json_free(o);
    return rc;
}

static bool decimal(const char *s, int64_t *out)
{
    *out = 0;
    for (; *s >= '0' && *s <= '9' && *out < (int64_t)FM_TOK_VOCAB_MAX; s++)
        *out = *out * 10 + (*s - '0');
    return *s == 0;
}

/* Adds the tokens of tokenizer_config.json's {"32000": {"content": ...}}. */
static fm_status push_config_tokens(fm_json *list, const fm_json *map)
{
    for (void *it = fm_json_iter(map); it; it = fm_json_next(map, it)) {
        const fm_json *one = fm_json_iter_value(it);
        fm_span text = fm_json_str(fm_json_get(one, "content"));
        int64_t id;
        if (!text.data || text.len == 0 || !decimal(fm_json_iter_key(it), &id))
            return fm_fail(FM_EINVAL,
                           "tokenizer_config.json: added_tokens_decoder: '%.40s' needs an id and "
                           "'content'",
                           fm_json_iter_key(it));
        FM_TRY(push_added(list, id, text, fm_json_bool(fm_json_get(one, "special"), false), one));
    }
    return FM_OK;
}

/* Adds T5's extra ids, which older folders only count: <extra_id_0> is the last id. */
static fm_status push_extra_ids(fm_json *list, size_t base, int64_t count)
{
    fm_status rc = FM_OK;

    for (int64_t i = 0; rc == FM_OK && i < FM_MIN(count, (int64_t)1000); i++) {
        char *text = fm_asprintf("<extra_id_%d>", (int)(count - 1 - i));
        rc = text ? push_added(list, (int64_t)base + i, fm_span_str(text), true, NULL) : FM_ENOMEM;
        fm_free(text);
    }
    return rc;
}

static fm_status build_added(fm_tokenizer *t, const spec *s, const fm_json *config, bool t5)
{
    const fm_json *map = fm_json_get(config, "added_tokens_decoder");
    fm_json *list = fm_json_new_array();
    fm_status rc = list ? FM_OK : FM_ENOMEM;

    if (fm_json_is(map, FM_JSON_OBJECT)) {
        FM_THEN(rc, push_config_tokens(list, map));
    } else {
        for (size_t i = 0; rc == FM_OK && i < s->m.count; i++)
            if (s->m.piece[i].type == FMI_PIECE_CONTROL || (int32_t)i == s->m.unk)
                rc = push_added(list, (int64_t)i, s->m.piece[i].text, true, NULL);
        if (rc == FM_OK && t5)
            rc = push_extra_ids(list, s->m.count, fm_json_int(fm_json_get(config, "extra_ids"), 0));
    }
    FM_THEN(rc, fmi_added_parse(&t->added, list));
    fm_json_free(list);
    return rc;
}

/* Whether the class of Hugging Face that wraps the file is known; others may renumber pieces. */
static fm_status known_class(const fm_json *config, bool *t5, bool *bos)
{
    static const struct {
        const char *name;
        bool t5, bos;
    } known[] = {{"LlamaTokenizer", false, true},     {"LlamaTokenizerFast", false, true},
                 {"CodeLlamaTokenizer", false, true}, {"CodeLlamaTokenizerFast", false, true},
                 {"GemmaTokenizer", false, true},     {"GemmaTokenizerFast", false, true},
                 {"T5Tokenizer", true, false},        {"T5TokenizerFast", true, false},
                 {"MT5Tokenizer", true, false}};
    const char *name = fm_json_cstr(fm_json_get(config, "tokenizer_class"), NULL);

    *t5 = *bos = false;
    for (size_t i = 0; name && i < FM_ARRAY_LEN(known); i++) {
        if (strcmp(known[i].name, name) != 0)
            continue;
        *t5 = known[i].t5;
        *bos = known[i].bos;
        return FM_OK;
    }
    return name
               ? fm_fail(FM_EUNSUPPORTED,
                         "tokenizer_config.json: tokenizer_class '%s' is not implemented for a %s; "
                         "save the model with a tokenizer.json",
                         name, file_name)
               : FM_OK;
}

static int32_t named(const spec *s, size_t which, const char *dflt)
{
    fm_span name = s->name[which].len > 0 ? s->name[which] : fm_span_str(dflt);

    for (size_t i = 0; i < s->m.count; i++)
        if (s->m.piece[i].type == FMI_PIECE_CONTROL && fm_span_eq(s->m.piece[i].text, name))
            return (int32_t)i;
    return -1;
}

static fm_status build(fm_tokenizer *t, const spec *s, const fm_json *config)
{
    static const char what[] = "tokenizer_config.json";
    bool t5, bos, eos, legacy;
    fm_status rc;

    if ((rc = known_class(config, &t5, &bos)) < 0 ||
        (rc = fmi_need_bool(&legacy, config, "legacy", true, what)) < 0 ||
        (rc = fmi_need_bool(&bos, config, "add_bos_token", bos, what)) < 0 ||
        (rc = fmi_need_bool(&eos, config, "add_eos_token", t5, what)) < 0 ||
        (rc = build_normalizer(t, s, legacy)) < 0 || (rc = build_decoder(t, s)) < 0 ||
        (rc = build_added(t, s, config, t5)) < 0)
        return rc;
    t->bos = named(s, 0, "<s>");
    t->eos = named(s, 1, "</s>");
    t->pad = named(s, 2, "<pad>");
    t->unk = s->m.unk;
    t->add_bos = bos;
    t->add_eos = eos;
    return s->model_type == 1 ? fmi_unigram_of_pieces(&t->model.unigram, &s->m)
                              : fmi_spm_bpe_new(&t->model.spm_bpe, &s->m);
}

fm_status fmi_spm_open(fm_tokenizer *t, fm_span file, const fm_json *config)
{
    spec s = {.m = {.unk = -1},
              .model_type = 1,
              .dummy_prefix = true,
              .remove_extra = true,
              .escape = true};
    fm_status rc = read_model(&s, file);

    FM_THEN(rc, build(t, &s, config));
    fm_free(s.m.piece);
    return rc;
}
