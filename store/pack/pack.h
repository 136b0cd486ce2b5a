/* pack.h - the bytes of a pack: header, records, footer. FORMAT.md section "Packs" is the table.
 *
 * A pack is written once and named by the SHA-256 of its bytes. Each record describes itself (its
 * head has a checksum, the object's id, its leaves and how each is coded), so that the index is a
 * cache and damage to one record loses only that record. Pure functions over memory: no file is
 * opened here, so a fuzzer can call them. */
#ifndef FM_STORE_PACK_H
#define FM_STORE_PACK_H

#include "store/base/buf.h"
#include "store/recipe/recipe.h"

FM_BEGIN_DECLS

#ifndef FMS_PACK_VERSION
#define FMS_PACK_VERSION 1u /* the newest that is read, and the one that is written */
#endif
#define FMS_PACK_ALIGN 64u /* records and their payloads begin at multiples of this */
#define FMS_PACK_HEADER_BYTES 64u
#define FMS_PACK_FOOTER_BYTES 64u
#define FMS_RECORD_FIXED_BYTES 192u
#define FMS_LEAF_ROW_BYTES 40u
#define FMS_RECIPE_FIXED_BYTES 16u
#define FMS_RECIPE_BYTES_MAX                                                                       \
    (FMS_RECIPE_FIXED_BYTES + FMS_PARENTS_MAX * FM_DIGEST_BYTES + FMS_PARAMS_MAX)
#define FMS_PACK_RECIPES 1u /* a feature: records may carry recipes */
#define FMS_CHAIN_MAX 8u    /* most steps from an object to one that needs no parent */

/* One record, parsed; table and payload point into the span it was parsed from. */
typedef struct fms_record {
    bool is_blob;
    fm_dtype dtype; /* FM_DTYPE_NONE for blobs */
    fm_shape shape;
    fm_digest id;
    uint32_t parent_count; /* 1 without a recipe: a delta parent */
    fm_digest parent[FMS_PARENTS_MAX];
    fms_recipe recipe; /* op FMS_OP_NONE: none. Whether it fits the parents is not checked here */
    uint32_t depth;    /* 0 = needs no parent */
    uint32_t leaf_count;
    uint64_t bytes;         /* decoded */
    uint64_t payload_bytes; /* coded, without padding */
    uint64_t head_bytes;
    uint64_t stored_bytes; /* head, payload and padding: the distance to the next record */
    const uint8_t *table;  /* leaf_count rows of FMS_LEAF_ROW_BYTES */
    const uint8_t *payload;
} fms_record;

uint32_t fms_leaf_count(uint64_t bytes);
/* Decoded size of leaf i of an object of `bytes` bytes. */
size_t fms_leaf_bytes(uint64_t bytes, uint32_t i);
void fms_leaf_digest(const fms_record *r, uint32_t i, fm_digest *out);
uint8_t fms_leaf_codec(const fms_record *r, uint32_t i);
uint32_t fms_leaf_stored(const fms_record *r, uint32_t i);

/* Parses the record that begins at bytes.data; `bytes` may go on after it. FM_ECORRUPT names
 * `what`. Checks the head's checksum, and the id by the leaf digests, but not the payload. */
FM_CHECKED fm_status fms_record_parse(fms_record *out, fm_span bytes, const char *what);

/* The length of the head that begins with these bytes, at least FMS_RECORD_FIXED_BYTES of it.
 * FM_ECORRUPT: no head begins so. */
FM_CHECKED fm_status fms_record_head_length(uint64_t *out, fm_span start, const char *what);
/* As fms_record_parse, of a record of which no more than the head need be in `head`. */
FM_CHECKED fm_status fms_record_parse_head(fms_record *out, fm_span head, const char *what);
/* Changes the depth in a whole head, and its checksum. */
FM_CHECKED fm_status fms_record_set_depth(uint8_t *head, size_t head_bytes, uint32_t depth);

/* The row of one leaf, for writing. */
typedef struct fms_leaf_row {
    fm_digest digest;
    uint8_t codec;
    uint32_t stored_bytes;
} fms_leaf_row;
/* Appends the head of r (without reading its table, payload, head_bytes and stored_bytes). */
FM_CHECKED fm_status fms_record_head(fm_buf *out, const fms_record *r, const fms_leaf_row *rows);

/* features: 0 or FMS_PACK_RECIPES. */
void fms_pack_header(uint8_t out[FMS_PACK_HEADER_BYTES], uint32_t features);
/* heads: SHA-256 over the checksum of every record's head, in order. */
void fms_pack_footer(uint8_t out[FMS_PACK_FOOTER_BYTES], uint64_t records, uint64_t file_bytes,
                     const fm_digest *heads);

/* Walks a whole pack. on_record is called for each record, with its offset; where no sound record
 * is found on_fault is called once, and the walk goes on at the next sound record. Header and
 * footer are checked first: FM_ECORRUPT (truncated, not a pack) or FM_EVERSION, without any call.
 * The walk stops at the first callback that fails. */
typedef struct fms_pack_visitor {
    void *ctx;
    fm_status (*on_record)(void *ctx, uint64_t offset, const fms_record *r);
    fm_status (*on_fault)(void *ctx, const char *text); /* may be NULL */
} fms_pack_visitor;
FM_CHECKED fm_status fms_pack_walk(fm_span pack, const char *what, const fms_pack_visitor *v);
/* It begins as a pack does and has a footer that says where it ends; no record is looked at. */
bool fms_pack_is_ended(fm_span pack);
/* The same walk over a pack whose header or footer is damaged or cut off: both are ignored, and
 * every sound record at a multiple of FMS_PACK_ALIGN is found. */
FM_CHECKED fm_status fms_pack_salvage(fm_span pack, const char *what, const fms_pack_visitor *v);
/* *yes: the name is the bytes' SHA-256. An unreadable pack that is intact has a newer format. */
FM_CHECKED fm_status fms_pack_is_intact(fm_span pack, const char *name, bool *yes);

FM_END_DECLS
#endif
