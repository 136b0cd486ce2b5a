/* The heads of a pack in a bucket: any bytes, as they are and with the first head's checksum made
 * right; then the answers of S3. A place that was read lies in the pack. */
#include <string.h>

#include "remote/bucket/heads.h"
#include "remote/bucket/s3_xml.h"
#include "store/base/mem.h"
#include "store/pack/pack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_heads(fm_span text, uint64_t pack_bytes)
{
    fmr_heads h;
    fm_assert(fmr_heads_init(&h) == FM_OK);
    fm_ignore(fmr_heads_add(&h, text, 0, pack_bytes, "fuzz"), "only crashes and places count");
    for (size_t i = 0; i < fm_map_count(h.place); i++) {
        const fmr_place *p = fm_map_value_at(h.place, i);
        fm_record_info info;
        fm_assert(p->offset >= FMS_PACK_HEADER_BYTES && p->offset < pack_bytes &&
                  p->stored_bytes <= pack_bytes - p->offset);
        fmr_place_info(p, &info);
    }
    fmr_heads_release(&h);
}

static void read_xml(fm_span text)
{
    fm_buf out;
    uint64_t n;
    fm_buf_init(&out, 0);
    for (;;) {
        const fm_span item = fmr_xml_next(&text, "Key");
        if (!item.data)
            break;
        fmr_xml_text(&out, item);
        fm_ignore(fmr_xml_number(item, &n), "only crashes count");
    }
    fm_buf_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t pack_bytes = 4096;
    fm_digest sum;

    if (size < 8)
        return 0;
    memcpy(&pack_bytes, data, 8);
    data += 8;
    size -= 8;
    read_heads(fm_span_of(data, size), pack_bytes);
    read_xml(fm_span_of(data, size));
    const uint32_t head = size >= FMS_RECORD_FIXED_BYTES ? fm_get_u32(data + 8) : 0;
    if (head < FMS_RECORD_FIXED_BYTES + FM_DIGEST_BYTES || head > size)
        return 0;
    uint8_t *copy = fm_memdup(data, size);
    fm_assert(copy && fm_sha256(&sum, copy, head - FM_DIGEST_BYTES) == FM_OK);
    memcpy(copy + head - FM_DIGEST_BYTES, sum.b, sizeof sum.b);
    read_heads(fm_span_of(copy, size), pack_bytes);
    fm_free(copy);
    return 0;
}
