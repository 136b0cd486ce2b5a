/* tensor.c - the table of dtypes, shape arithmetic, and tensor and blob identity.
 *
 * The id is a hash of leaf hashes, not of all bytes at once: a leaf can then be verified when it is
 * first read, and a storage chunk of any whole number of leaves keeps the same id. */
#include "store/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/base/checked.h"
#include "store/base/cancel.h"
#include "store/base/mem.h"

#define FM_Q_K_ELEMS 256u

static const fm_dtype_info DTYPES[FM_DTYPE_ALL] = {
    [FM_DTYPE_NONE] = {"none", 1, 1, false, false},
    [FM_F64] = {"F64", 1, 8, false, true},
    [FM_F32] = {"F32", 1, 4, false, true},
    [FM_F16] = {"F16", 1, 2, false, true},
    [FM_BF16] = {"BF16", 1, 2, false, true},
    [FM_F8_E4M3] = {"F8_E4M3", 1, 1, false, true},
    [FM_F8_E5M2] = {"F8_E5M2", 1, 1, false, true},
    [FM_I64] = {"I64", 1, 8, false, false},
    [FM_I32] = {"I32", 1, 4, false, false},
    [FM_I16] = {"I16", 1, 2, false, false},
    [FM_I8] = {"I8", 1, 1, false, false},
    [FM_U64] = {"U64", 1, 8, false, false},
    [FM_U32] = {"U32", 1, 4, false, false},
    [FM_U16] = {"U16", 1, 2, false, false},
    [FM_U8] = {"U8", 1, 1, false, false},
    [FM_BOOL] = {"BOOL", 1, 1, false, false},
    [FM_Q8_0] = {"Q8_0", 32, 34, true, true},
    [FM_Q4_0] = {"Q4_0", 32, 18, true, true},
    [FM_Q4_1] = {"Q4_1", 32, 20, true, true},
    [FM_Q5_0] = {"Q5_0", 32, 22, true, true},
    [FM_Q5_1] = {"Q5_1", 32, 24, true, true},
    [FM_Q4_K] = {"Q4_K", FM_Q_K_ELEMS, 144, true, true},
    [FM_Q5_K] = {"Q5_K", FM_Q_K_ELEMS, 176, true, true},
    [FM_Q6_K] = {"Q6_K", FM_Q_K_ELEMS, 210, true, true},
    [FM_IQ4_NL] = {"IQ4_NL", 32, 18, true, true},
    [FM_Q2_K] = {"Q2_K", FM_Q_K_ELEMS, 84, true, true},
    [FM_Q3_K] = {"Q3_K", FM_Q_K_ELEMS, 110, true, true},
    [FM_Q8_K] = {"Q8_K", FM_Q_K_ELEMS, 292, true, true},
    [FM_IQ1_S] = {"IQ1_S", FM_Q_K_ELEMS, 50, true, true},
    [FM_IQ1_M] = {"IQ1_M", FM_Q_K_ELEMS, 56, true, true},
    [FM_IQ2_XXS] = {"IQ2_XXS", FM_Q_K_ELEMS, 66, true, true},
    [FM_IQ2_XS] = {"IQ2_XS", FM_Q_K_ELEMS, 74, true, true},
    [FM_IQ2_S] = {"IQ2_S", FM_Q_K_ELEMS, 82, true, true},
    [FM_IQ3_XXS] = {"IQ3_XXS", FM_Q_K_ELEMS, 98, true, true},
    [FM_IQ3_S] = {"IQ3_S", FM_Q_K_ELEMS, 110, true, true},
    [FM_IQ4_XS] = {"IQ4_XS", FM_Q_K_ELEMS, 136, true, true},
    [FM_TQ1_0] = {"TQ1_0", FM_Q_K_ELEMS, 54, true, true},
    [FM_TQ2_0] = {"TQ2_0", FM_Q_K_ELEMS, 66, true, true},
    [FM_MXFP4] = {"MXFP4", 32, 17, true, true},
    [FM_NVFP4] = {"NVFP4", 64, 36, true, true},
    [FM_Q1_0] = {"Q1_0", 128, 18, true, true},
    [FM_Q2_0] = {"Q2_0", 64, 18, true, true},
    [FM_CODE4_32] = {"C4/32", 32, 22, true, true},
    [FM_CODE4_64] = {"C4/64", 64, 38, true, true},
    [FM_CODE4_128] = {"C4/128", 128, 70, true, true},
    [FM_CODE8_32] = {"C8/32", 32, 38, true, true},
    [FM_CODE8_64] = {"C8/64", 64, 70, true, true},
    [FM_CODE8_128] = {"C8/128", 128, 134, true, true},
    [FM_CODE2_32] = {"C2/32", 32, 14, true, true},
    [FM_CODE2_64] = {"C2/64", 64, 22, true, true},
    [FM_CODE2_128] = {"C2/128", 128, 38, true, true},
};

const fm_dtype_info *fm_dtype_get(fm_dtype dtype)
{
    fm_assert(dtype > FM_DTYPE_NONE && dtype < FM_DTYPE_ALL);
    return &DTYPES[dtype];
}

fm_dtype fm_dtype_parse(const char *name, size_t len)
{
    for (int i = FM_DTYPE_NONE + 1; i < FM_DTYPE_COUNT; i++)
        if (strlen(DTYPES[i].name) == len && memcmp(DTYPES[i].name, name, len) == 0)
            return (fm_dtype)i;
    return FM_DTYPE_NONE;
}

bool fm_shape_eq(const fm_shape *a, const fm_shape *b)
{
    if (a->rank != b->rank)
        return false;
    for (uint32_t i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i])
            return false;
    return true;
}

/* A zero dimension makes the product zero, but strides of the others must not overflow either. */
fm_status fm_shape_elems(uint64_t *out, const fm_shape *shape)
{
    uint64_t n = 1;
    bool empty = false;

    *out = 0;
    if (shape->rank > FM_MAX_RANK)
        return fm_fail(FM_ELIMIT, "a shape of rank %" PRIu32 ", the limit is %u", shape->rank,
                       FM_MAX_RANK);
    for (uint32_t i = 0; i < shape->rank; i++) {
        if (shape->dim[i] == 0) {
            empty = true;
            continue;
        }
        if (fm_mul_overflow(&n, n, shape->dim[i]))
            return fm_fail(FM_ELIMIT, "a shape whose elements overflow 64 bits");
    }
    *out = empty ? 0 : n;
    return FM_OK;
}

fm_status fm_tensor_bytes(uint64_t *out, fm_dtype dtype, const fm_shape *shape, const char *name)
{
    const fm_dtype_info *info = fm_dtype_get(dtype);
    uint64_t elems = 0, bytes = 0;
    char text[160];
    fm_status rc = fm_shape_elems(&elems, shape);

    *out = 0;
    if (rc < 0)
        return fm_error_prefix(rc, "tensor '%s'", name);
    if (info->is_block) {
        uint64_t row = shape->rank > 0 ? shape->dim[shape->rank - 1] : 1;
        if (row % info->block_elems != 0) {
            fm_shape_text(shape, text, sizeof text);
            return fm_fail(FM_EINVAL,
                           "tensor '%s': rows of shape %s are no whole number of %s blocks of %u",
                           name, text, info->name, info->block_elems);
        }
    }
    if (fm_mul_overflow(&bytes, elems / info->block_elems, info->block_bytes) ||
        bytes > FM_MAX_TENSOR_BYTES) {
        fm_shape_text(shape, text, sizeof text);
        return fm_fail(FM_ELIMIT, "tensor '%s': %s of shape %s is beyond %llu bytes", name,
                       info->name, text, FM_MAX_TENSOR_BYTES);
    }
    *out = bytes;
    return FM_OK;
}

void fm_shape_text(const fm_shape *shape, char *out, size_t out_bytes)
{
    size_t at = 0;
    uint32_t rank = FM_MIN(shape->rank, FM_MAX_RANK);

    if (out_bytes == 0)
        return;
    out[0] = '\0';
    for (uint32_t i = 0; i <= rank && at < out_bytes; i++) {
        int n;
        if (i == rank)
            n = snprintf(out + at, out_bytes - at, "%s]", rank == 0 ? "[" : "");
        else
            n = snprintf(out + at, out_bytes - at, "%s%" PRIu64, i == 0 ? "[" : ", ",
                         shape->dim[i]);
        if (n < 0)
            return;
        at += (size_t)n;
    }
}

static uint64_t leaf_count(uint64_t bytes)
{
    return bytes / FM_LEAF_BYTES + (bytes % FM_LEAF_BYTES != 0);
}

/* Hashes the header; the leaf digests come after it. shape NULL: a blob. */
static fm_status id_begin(fm_hasher *h, fm_dtype dtype, const fm_shape *shape, uint64_t bytes)
{
    uint8_t head[128];
    size_t at = 0;

    if (shape) {
        static const char tag[] = "fmstore tensor 1\n";
        const char *name = fm_dtype_get(dtype)->name;
        size_t name_len = strlen(name);
        fm_assert(shape->rank <= FM_MAX_RANK);
        memcpy(head, tag, sizeof tag - 1);
        at = sizeof tag - 1;
        memcpy(head + at, name, name_len);
        at += name_len;
        head[at++] = '\n';
        fm_put_u32(head + at, shape->rank);
        at += 4;
        for (uint32_t i = 0; i < shape->rank; i++, at += 8)
            fm_put_u64(head + at, shape->dim[i]);
    } else {
        static const char tag[] = "fmstore blob 1\n";
        memcpy(head, tag, sizeof tag - 1);
        at = sizeof tag - 1;
    }
    fm_put_u64(head + at, bytes);
    return fm_hasher_update(h, head, at + 8);
}

static fm_status id_of_leaves(fm_digest *out, fm_dtype dtype, const fm_shape *shape, uint64_t bytes,
                              const fm_digest *leaf)
{
    fm_hasher *h = NULL;
    fm_status rc = fm_hasher_new(&h);

    memset(out, 0, sizeof *out);
    FM_THEN(rc, id_begin(h, dtype, shape, bytes));
    for (uint64_t i = 0; rc == FM_OK && i < leaf_count(bytes); i++)
        rc = fm_hasher_update(h, leaf[i].b, FM_DIGEST_BYTES);
    FM_THEN(rc, fm_hasher_final(h, out));
    fm_hasher_free(h);
    return rc;
}

static fm_status id_of_bytes(fm_digest *out, fm_dtype dtype, const fm_shape *shape, fm_span bytes,
                             fm_digest *leaf_out)
{
    fm_hasher *h = NULL;
    fm_status rc = fm_hasher_new(&h);

    memset(out, 0, sizeof *out);
    FM_THEN(rc, id_begin(h, dtype, shape, bytes.len));
    for (uint64_t i = 0; rc == FM_OK && i < leaf_count(bytes.len); i++) {
        uint64_t at = i * FM_LEAF_BYTES;
        fm_digest leaf;
        rc = fm_go_on();
        FM_THEN(rc,
                fm_sha256(&leaf, bytes.data + at, FM_MIN(bytes.len - at, (uint64_t)FM_LEAF_BYTES)));
        FM_THEN(rc, fm_hasher_update(h, leaf.b, FM_DIGEST_BYTES));
        if (leaf_out)
            leaf_out[i] = leaf;
    }
    FM_THEN(rc, fm_hasher_final(h, out));
    fm_hasher_free(h);
    return rc;
}

fm_status fm_tensor_id(fm_digest *out, fm_dtype dtype, const fm_shape *shape, fm_span bytes,
                       fm_digest *leaf_out)
{
    return id_of_bytes(out, dtype, shape, bytes, leaf_out);
}

fm_status fm_blob_id(fm_digest *out, fm_span bytes, fm_digest *leaf_out)
{
    return id_of_bytes(out, FM_DTYPE_NONE, NULL, bytes, leaf_out);
}

fm_status fm_tensor_id_from_leaves(fm_digest *out, fm_dtype dtype, const fm_shape *shape,
                                   uint64_t bytes, const fm_digest *leaf)
{
    return id_of_leaves(out, dtype, shape, bytes, leaf);
}

fm_status fm_blob_id_from_leaves(fm_digest *out, uint64_t bytes, const fm_digest *leaf)
{
    return id_of_leaves(out, FM_DTYPE_NONE, NULL, bytes, leaf);
}
