/* The manifest of a bucket: any bytes; one that was read is written and read as itself. */
#include <string.h>

#include "remote/bucket/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fmr_manifest m, again;
    fm_buf text, second;

    if (fmr_manifest_parse(&m, fm_span_of(data, size), "fuzz") != FM_OK)
        return 0;
    fm_buf_init(&text, 0);
    fm_buf_init(&second, 0);
    fm_assert(fmr_manifest_write(&m, &text) == FM_OK);
    fm_assert(fmr_manifest_parse(&again, fm_buf_span(&text), "fuzz") == FM_OK);
    fm_assert(fmr_manifest_write(&again, &second) == FM_OK);
    fm_assert(fm_span_eq(fm_buf_span(&text), fm_buf_span(&second)));
    fmr_manifest_release(&again);
    fmr_manifest_release(&m);
    fm_buf_release(&second);
    fm_buf_release(&text);
    return 0;
}
