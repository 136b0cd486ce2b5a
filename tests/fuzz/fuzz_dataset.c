/* fuzz_dataset.c - any bytes as training data: examples within their limits, or an error. */
#include "tests/unit/train_kit.h"

#include "train/train.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fm_tokenizer *tok;
    static fm_chat_template *chat;
    fm_train_config c = fm_train_defaults(FM_METHOD_LORA);
    fm_dataset *d = NULL;

    if (!tok) {
        tok = kit_tokenizer();
        chat = kit_chat();
    }
    c.max_tokens = 32;
    if (fm_dataset_open(&d, fm_span_of(data, size), "fuzz", tok, chat, &c, NULL, 0) < 0)
        return 0;
    for (size_t i = 0; i < fm_dataset_count(d); i++) {
        const fm_example *e = fm_dataset_at(d, i);
        fm_assert(e->len > 0 && e->len <= 32 && e->preview);
        for (uint32_t k = 0; k < e->len; k++)
            fm_assert(e->labels[k] == -100 || e->labels[k] == e->ids[k]);
    }
    fm_json_free(fm_dataset_manifest(d));
    fm_dataset_close(d);
    return 0;
}
