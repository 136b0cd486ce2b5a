/* A hostile tokenizer.json; what opens must encode and decode some text, and ids must be its own.
 */
#include "infer/tokenizer.h"

#include "store/base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "ab c  12\xc3\xa9\xe4\xb8\xad <s> \xf0\x9f\x9a\x80 don't\n\n x";
    fm_tokenizer *t;
    fm_ids ids = {0};
    fm_buf out;

    if (fm_tokenizer_open(&t, fm_span_of(data, size), fm_span_of(NULL, 0), "fuzz") < 0)
        return 0;
    fm_buf_init(&out, 0);
    if (fm_tokenizer_encode(t, fm_span_str(text), true, &ids) == FM_OK) {
        fm_status rc = fm_tokenizer_decode(t, ids.id, ids.count, false, &out);
        fm_assert(rc == FM_OK || rc == FM_ENOMEM);
    }
    fm_ids_release(&ids);
    fm_buf_release(&out);
    fm_tokenizer_close(t);
    return 0;
}
