/* The Hub's answers: no input crashes; what is read has safe names, each once, and one choice. */
#include "remote/hub/listing.h"

#include <string.h>

#include "remote/hub/address.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fmr_listing l;
    if (fmr_listing_parse(&l, fm_span_of(data, size), "fuzz") != FM_OK) {
        fm_assert(!l.file && fm_error_text()[0]);
        return 0;
    }
    for (size_t i = 0; i < l.count; i++) {
        fm_assert(fmr_hub_path_is_safe(l.file[i].name));
        fm_assert(fmr_listing_find(&l, l.file[i].name) == &l.file[i]);
        fm_assert(strlen(l.file[i].etag) == (l.file[i].lfs ? 64u : 40u));
        fm_assert(i == 0 || strcmp(l.file[i - 1].name, l.file[i].name) < 0);
    }
    if (fmr_listing_choose(&l, "fuzz") == FM_OK && l.index)
        fm_ignore(fmr_listing_choose_shards(&l, fm_span_of(data, size), "fuzz"), "either is fine");
    fmr_listing_release(&l);
    return 0;
}
