/* A hostile SentencePiece model file, alone and under the configuration of a Llama folder; what
 * opens must encode and decode some text, and ids must be its own. */
#include "infer/tokenizer.h"

#include "store/base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void exercise(const fm_tokenizer *t)
{
    static const char text[] =
        " ab  c  12\xc3\xa9\xe4\xb8\xad <s> \xf0\x9f\x9a\x80 don't\n\n x\xe2\x96\x81 ";
    fm_ids ids = {0};
    fm_buf out;

    fm_buf_init(&out, 0);
    if (fm_tokenizer_encode(t, fm_span_str(text), true, &ids) == FM_OK &&
        fm_tokenizer_encode_plain(t, fm_span_str(text), false, &ids) == FM_OK) {
        fm_status rc = fm_tokenizer_decode(t, ids.id, ids.count, false, &out);
        fm_assert(rc == FM_OK || rc == FM_ENOMEM);
    }
    fm_ids_release(&ids);
    fm_buf_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char llama[] =
        "{\"tokenizer_class\":\"LlamaTokenizer\",\"add_eos_token\":true,\"bos_token\":\"<s>\","
        "\"added_tokens_decoder\":{\"1\":{\"content\":\"<s>\",\"special\":true}}}";
    fm_tokenizer *t;

    for (int i = 0; i < 2; i++) {
        fm_span config = i ? fm_span_str(llama) : fm_span_of(NULL, 0);
        if (fm_tokenizer_open(&t, fm_span_of(data, size), config, "fuzz") < 0)
            continue;
        exercise(t);
        fm_tokenizer_close(t);
    }
    return 0;
}
