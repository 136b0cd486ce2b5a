/* The list of what gc condemned: any bytes; a list that was read is written and read as itself. */
#include "store/base/buf.h"
#include "store/lease/doomed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void parse(fm_span text)
{
    fms_condemned *c;
    if (fms_condemned_new(&c) != FM_OK)
        return;
    if (fms_condemned_parse(c, text, "fuzz") == FM_OK) {
        for (size_t i = 0; i < fm_map_count(c->object); i++)
            fm_assert((uintptr_t)fm_map_value_at(c->object, i) <= c->batch_count);
        for (size_t i = 0; i < fm_map_count(c->git); i++)
            fm_assert((uintptr_t)fm_map_value_at(c->git, i) <= c->batch_count);
    }
    fms_condemned_free(c);
}

/* Once as it is, and once with the sum that makes the lines be looked at. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fm_buf b;
    fm_digest sum;
    char hex[FM_HEX_CHARS + 1];
    parse(fm_span_of(data, size));
    fm_buf_init(&b, 0);
    fm_buf_append(&b, data, size);
    if (fm_sha256(&sum, data, size) == FM_OK) {
        fm_digest_hex(&sum, hex);
        fm_buf_printf(&b, "sum %s\n", hex);
        if (fm_buf_ok(&b) == FM_OK)
            parse(fm_buf_span(&b));
    }
    fm_buf_release(&b);
    return 0;
}
