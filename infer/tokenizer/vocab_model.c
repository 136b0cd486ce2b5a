/* vocab_model.c - one interface to the kinds of models: a word in, ids out. */
#include "infer/tokenizer/internal.h"

#include <string.h>

/* The kind of a model; files without the field 'type', which are older, show it by other fields. */
static const char *kind_of(const fm_json *model)
{
    const char *type = fm_json_cstr(fm_json_get(model, "type"), NULL);

    if (type)
        return type;
    if (fm_json_get(model, "merges"))
        return "BPE";
    return fm_json_get(model, "max_input_chars_per_word") ? "WordPiece" : "";
}

fm_status fmi_model_parse(fmi_model *out, const fm_json *model)
{
    const char *kind = kind_of(model);

    if (!fm_json_is(model, FM_JSON_OBJECT))
        return fm_fail(FM_EINVAL, "tokenizer.json: field 'model' must be an object");
    if (strcmp(kind, "BPE") == 0)
        return fmi_bpe_new(&out->bpe, model);
    if (strcmp(kind, "WordPiece") == 0)
        return fmi_wordpiece_new(&out->wordpiece, model, false);
    if (strcmp(kind, "WordLevel") == 0)
        return fmi_wordpiece_new(&out->wordpiece, model, true);
    if (strcmp(kind, "Unigram") == 0)
        return fmi_unigram_new(&out->unigram, model);
    return fm_fail(FM_EUNSUPPORTED, "tokenizer.json: model: type '%s' is not implemented", kind);
}

void fmi_model_release(fmi_model *m)
{
    fmi_bpe_free(m->bpe);
    fmi_wordpiece_free(m->wordpiece);
    fmi_unigram_free(m->unigram);
    fmi_spm_bpe_free(m->spm_bpe);
    memset(m, 0, sizeof *m);
}

const fmi_vocab *fmi_model_vocab(const fmi_model *m)
{
    if (m->unigram)
        return fmi_unigram_vocab(m->unigram);
    if (m->spm_bpe)
        return fmi_spm_bpe_vocab(m->spm_bpe);
    return m->bpe ? fmi_bpe_vocab(m->bpe) : fmi_wordpiece_vocab(m->wordpiece);
}

fm_status fmi_model_encode(const fmi_model *m, fmi_tok_scratch *s, fm_span word, fm_ids *out)
{
    if (m->unigram)
        return fmi_unigram_encode(m->unigram, s, word, out);
    if (m->spm_bpe)
        return fmi_spm_bpe_encode(m->spm_bpe, s, word, out);
    return m->bpe ? fmi_bpe_encode(m->bpe, s, word, out)
                  : fmi_wordpiece_encode(m->wordpiece, word, out);
}
