/* ctest: store */
/* Byte 0 picks the codec, byte 1 the dtype, bytes 2-3 the decoded size; the rest is the coded leaf
 * (its parent being a fixed pattern), and then, as a leaf, must round-trip. */
#include <string.h>

#include "store/codec/codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(fms_coder *c, const fms_leaf_at *at, fm_span leaf, const uint8_t *parent)
{
    fm_buf out;
    fm_buf_init(&out, 0);
    uint8_t codec;
    uint8_t *back = fms_coder_scratch(c, 1);
    if (fms_leaf_encode(c, &out, &codec, at, leaf, parent) == FM_OK) {
        fm_assert(fms_leaf_decode(c, back, leaf.len, codec, at, fm_buf_span(&out), parent) ==
                  FM_OK);
        fm_assert(memcmp(back, leaf.data, leaf.len) == 0);
    }
    fm_buf_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fms_coder *c;
    static uint8_t parent[65536];
    if (size < 5)
        return 0;
    if (!c) {
        if (fms_coder_new(&c) != FM_OK)
            return 0;
        for (size_t i = 0; i < sizeof parent; i++)
            parent[i] = (uint8_t)(i * 7 + i / 251);
    }
    uint8_t codec = data[0] % FMS_CODEC_COUNT;
    fm_dtype dtype = (fm_dtype)(data[1] % FM_DTYPE_COUNT);
    size_t bytes = (size_t)fm_get_u16(data + 2) + 1;
    fms_leaf_at at = {dtype, data[1] / FM_DTYPE_COUNT * 64u, 0, data[0] >= 128};
    fm_span rest = fm_span_of(data + 4, size - 4);
    fm_ignore(fms_leaf_decode(c, fms_coder_scratch(c, 0), bytes, codec, &at, rest, parent),
              "only crashes count");
    size_t unit = dtype == FM_DTYPE_NONE ? 1 : fm_dtype_get(dtype)->block_bytes;
    rest.len = FM_MIN(rest.len, sizeof parent);
    if (unit <= 8)
        rest.len -= rest.len % unit;
    if (rest.len) {
        round_trip(c, &at, rest, NULL);
        round_trip(c, &at, rest, parent);
    }
    return 0;
}
