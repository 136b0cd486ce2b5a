/* facts.c - facts about an open tokenizer and its tokens. */
#include "infer/tokenizer/internal.h"

size_t fm_tokenizer_vocab_size(const fm_tokenizer *t)
{
    return t->all.size;
}

fm_span fm_tokenizer_token_text(const fm_tokenizer *t, int32_t id)
{
    return fmi_vocab_text(&t->all, id);
}

int32_t fm_tokenizer_id(const fm_tokenizer *t, fm_span token_text)
{
    return fmi_vocab_find(&t->all, token_text);
}

bool fm_tokenizer_is_special(const fm_tokenizer *t, int32_t id)
{
    return id >= 0 && (size_t)id < t->all.size && t->special[id] != 0;
}

int32_t fm_tokenizer_bos(const fm_tokenizer *t)
{
    return t->bos;
}

int32_t fm_tokenizer_eos(const fm_tokenizer *t)
{
    return t->eos;
}

int32_t fm_tokenizer_pad(const fm_tokenizer *t)
{
    return t->pad;
}

int32_t fm_tokenizer_unk(const fm_tokenizer *t)
{
    return t->unk;
}

fm_span fm_tokenizer_chat_template(const fm_tokenizer *t)
{
    return fm_span_of(t->chat_template, t->chat_template_len);
}
