/* wordpiece.c - WordPiece: the longest token that begins the word, then the longest continuation
 * behind it, and so on; a word that cannot be covered in this way becomes the unknown token as a
 * whole. Also WordLevel, where a word is a token or unknown. */
#include "infer/tokenizer/internal.h"

#include <string.h>

struct fmi_wordpiece {
    fmi_vocab vocab;
    fmi_ptree begin, inside; /* tokens as they are; continuations without their prefix */
    bool whole;              /* WordLevel */
    int32_t unk;             /* -1: the vocabulary has none */
    char unk_text[64];
    size_t chars_max;
};

/* Builds a tree of the tokens that begin with prefix, without the prefix. */
static fm_status build_tree(fmi_ptree *out, const fmi_vocab *v, fm_span prefix)
{
    fmi_ptree_key *key = fm_calloc(v->size, sizeof *key);
    size_t n = 0;

    if (!key)
        return FM_ENOMEM;
    for (size_t id = 0; id < v->size; id++) {
        fm_span t = fmi_vocab_text(v, (int32_t)id);
        if (!t.data || t.len <= prefix.len || memcmp(t.data, prefix.data, prefix.len) != 0)
            continue;
        key[n++] =
            (fmi_ptree_key){fm_span_of(t.data + prefix.len, t.len - prefix.len), (int32_t)id};
    }
    fm_status rc = fmi_ptree_build(out, key, n);
    fm_free(key);
    return rc;
}

static fm_status parse(fmi_wordpiece *m, const fm_json *model)
{
    fm_span prefix = fm_json_str(fm_json_get(model, "continuing_subword_prefix"));
    const char *unk = fm_json_cstr(fm_json_get(model, "unk_token"), m->whole ? "<unk>" : "[UNK]");
    int64_t max = fm_json_int(fm_json_get(model, "max_input_chars_per_word"), 100);
    FM_TRY(fmi_vocab_parse(&m->vocab, fm_json_get(model, "vocab")));
    if (max < 0)
        return fm_fail(FM_EINVAL, "tokenizer.json: model.max_input_chars_per_word is negative");
    m->chars_max = (size_t)max;
    m->unk = fmi_vocab_find(&m->vocab, fm_span_str(unk));
    memcpy(m->unk_text, unk, FM_MIN(strlen(unk), sizeof m->unk_text - 1));
    if (m->whole)
        return FM_OK;
    if (!prefix.data)
        prefix = fm_span_str("##");
    FM_TRY(build_tree(&m->begin, &m->vocab, fm_span_str("")));
    return build_tree(&m->inside, &m->vocab, prefix);
}

fm_status fmi_wordpiece_new(fmi_wordpiece **out, const fm_json *model, bool whole)
{
    fmi_wordpiece *m = fm_calloc(1, sizeof *m);

    *out = NULL;
    if (!m)
        return FM_ENOMEM;
    m->whole = whole;
    fm_status rc = parse(m, model);
    if (rc < 0) {
        fmi_wordpiece_free(m);
        return rc;
    }
    *out = m;
    return FM_OK;
}

void fmi_wordpiece_free(fmi_wordpiece *m)
{
    if (!m)
        return;
    fmi_vocab_release(&m->vocab);
    fmi_ptree_release(&m->begin);
    fmi_ptree_release(&m->inside);
    fm_free(m);
}

const fmi_vocab *fmi_wordpiece_vocab(const fmi_wordpiece *m)
{
    return &m->vocab;
}

static fm_status unknown(const fmi_wordpiece *m, fm_ids *out)
{
    if (m->unk < 0)
        return fm_fail(FM_EINVAL,
                       "tokenizer.json: model.unk_token '%s' is not in the vocabulary, and the "
                       "text needs it",
                       m->unk_text);
    return fm_ids_push(out, m->unk);
}

static bool too_long(const fmi_wordpiece *m, fm_span word)
{
    size_t chars = 0;

    for (size_t i = 0; i < word.len; i++)
        chars += (word.data[i] & 0xc0) != 0x80;
    return chars > m->chars_max;
}

fm_status fmi_wordpiece_encode(const fmi_wordpiece *m, fm_span word, fm_ids *out)
{
    size_t before = out->count, at = 0;

    if (m->whole) {
        int32_t id = fmi_vocab_find(&m->vocab, word);
        return id >= 0 ? fm_ids_push(out, id) : unknown(m, out);
    }
    if (too_long(m, word))
        return unknown(m, out);
    while (at < word.len) {
        int32_t id = -1;
        size_t n = fmi_ptree_longest(at == 0 ? &m->begin : &m->inside,
                                     fm_span_of(word.data + at, word.len - at), &id);
        if (n == 0) {
            out->count = before;
            return unknown(m, out);
        }
        FM_TRY(fm_ids_push(out, id));
        at += n;
    }
    return FM_OK;
}
