/* ctest: store */
/* Any bytes as one record of a pack. Its checksum and its id are made right first, which no fuzzer
 * would guess: so what lies behind them (shapes, leaf tables, recipes, codecs) meets the input. */
#include <string.h>

#include "store/codec/codec.h"
#include "store/pack/pack.h"

#define MAX_INPUT_BYTES ((size_t)1 << 20)
#define MAX_LEAVES 4u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct bench {
    fms_coder *coder;
    uint8_t *leaf, *parent;
} bench;

static void mend_id(uint8_t *h, size_t head_bytes)
{
    const uint32_t leaves = fm_get_u32(h + 112);
    const uint64_t bytes = fm_get_u64(h + 96);
    fm_digest leaf[64], id;
    fm_shape shape = {h[15], {0}};
    const fm_dtype dtype = fm_dtype_parse((const char *)h + 16, strnlen((const char *)h + 16, 16));

    if (leaves > FM_ARRAY_LEN(leaf) || shape.rank > FM_MAX_RANK ||
        FMS_RECORD_FIXED_BYTES + (size_t)leaves * FMS_LEAF_ROW_BYTES + FM_DIGEST_BYTES > head_bytes)
        return;
    if (bytes > FM_MAX_TENSOR_BYTES || leaves != fms_leaf_count(bytes))
        return;
    for (uint32_t i = 0; i < leaves; i++)
        memcpy(leaf[i].b, h + FMS_RECORD_FIXED_BYTES + (size_t)i * FMS_LEAF_ROW_BYTES,
               FM_DIGEST_BYTES);
    for (uint32_t i = 0; i < shape.rank; i++)
        shape.dim[i] = fm_get_u64(h + 120 + 8 * (size_t)i);
    if (h[12] == 2 ? fm_blob_id_from_leaves(&id, bytes, leaf) == FM_OK
                   : dtype != FM_DTYPE_NONE &&
                         fm_tensor_id_from_leaves(&id, dtype, &shape, bytes, leaf) == FM_OK)
        memcpy(h + 32, id.b, FM_DIGEST_BYTES);
}

/* A pack of this record; its bytes go to out. */
static void wrap(fm_buf *out, const uint8_t *data, size_t size)
{
    const size_t body = (size + FMS_PACK_ALIGN - 1) / FMS_PACK_ALIGN * FMS_PACK_ALIGN;
    const size_t whole = FMS_PACK_HEADER_BYTES + body + FMS_PACK_FOOTER_BYTES;
    uint8_t *p = fm_buf_extend(out, whole), *h = p + FMS_PACK_HEADER_BYTES;
    fm_digest sum, heads;
    uint32_t head_bytes;

    fm_assert(p);
    memset(p, 0, whole);
    memcpy(h, data, size);
    memcpy(h,
           "\x93"
           "FMREC1\n",
           8);
    head_bytes = fm_get_u32(h + 8);
    if (head_bytes < FMS_RECORD_FIXED_BYTES + FM_DIGEST_BYTES || head_bytes > body)
        head_bytes = 256;
    mend_id(h, head_bytes);
    fm_assert(fm_sha256(&sum, h, head_bytes - FM_DIGEST_BYTES) == FM_OK);
    memcpy(h + head_bytes - FM_DIGEST_BYTES, sum.b, FM_DIGEST_BYTES);
    fm_assert(fm_sha256(&heads, sum.b, FM_DIGEST_BYTES) == FM_OK);
    fms_pack_header(p, FMS_PACK_RECIPES);
    fms_pack_footer(h + body, 1, whole, &heads);
}

static fm_status on_record(void *ctx, uint64_t offset, const fms_record *r)
{
    bench *b = ctx;
    uint64_t at = 0;

    (void)offset;
    for (uint32_t i = 0; i < r->leaf_count && i < MAX_LEAVES; i++) {
        const uint32_t stored = fms_leaf_stored(r, i);
        const fms_leaf_at where = fms_leaf_at_of(r->dtype, &r->shape, i);
        fm_ignore(fms_leaf_decode(b->coder, b->leaf, fms_leaf_bytes(r->bytes, i),
                                  fms_leaf_codec(r, i), &where, fm_span_of(r->payload + at, stored),
                                  b->parent),
                  "only crashes count");
        at += stored;
    }
    return FM_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bench b;
    const fms_pack_visitor v = {&b, on_record, NULL};
    fm_buf pack;

    if (size < 256 || size > MAX_INPUT_BYTES)
        return 0;
    if (!b.coder) {
        fm_assert(fms_coder_new(&b.coder) == FM_OK);
        b.leaf = fms_coder_scratch(b.coder, 0);
        b.parent = fms_coder_scratch(b.coder, 1);
        for (size_t i = 0; i < FM_LEAF_BYTES; i++)
            b.parent[i] = (uint8_t)(i * 7 + i / 251);
    }
    fm_buf_init(&pack, 0);
    wrap(&pack, data, size);
    fm_ignore(fms_pack_walk(fm_buf_span(&pack), "fuzz", &v), "only crashes count");
    fm_buf_release(&pack);
    return 0;
}
