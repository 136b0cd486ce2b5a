/* Any bytes as a pack: the walk ends, and every record that it accepts can be asked for any leaf.
 */
#include "store/codec.h"
#include "store/pack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct seen {
    fmi_coder *coder;
    uint8_t *leaf;
} seen;

static fm_status on_record(void *ctx, uint64_t offset, const fmi_record *r)
{
    seen *s = ctx;
    (void)offset;
    uint64_t at = 0;
    for (uint32_t i = 0; i < r->leaf_count && i < 4; i++) {
        uint32_t stored = fmi_leaf_stored(r, i);
        uint8_t codec = fmi_leaf_codec(r, i);
        fmi_leaf_at where = fmi_leaf_at_of(r->dtype, &r->shape, i);
        if (!fmi_codec_needs_parent(codec))
            fm_ignore(fmi_leaf_decode(s->coder, s->leaf, fmi_leaf_bytes(r->bytes, i), codec, &where,
                                      fm_span_of(r->payload + at, stored), NULL),
                      "only crashes count");
        at += stored;
    }
    return FM_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static seen s;
    if (!s.coder) {
        if (fmi_coder_new(&s.coder) != FM_OK)
            return 0;
        s.leaf = fmi_coder_scratch(s.coder, 0);
    }
    fmi_pack_visitor v = {&s, on_record, NULL};
    fm_ignore(fmi_pack_walk(fm_span_of(data, size), "fuzz", &v), "only crashes count");
    return 0;
}
