/* pack.c - encoding and strict parsing of packs. All fields of a pack are checked here, so that
 * readers may trust a parsed record's lengths. */
#include "store/pack/pack.h"

#include <stdio.h>
#include <string.h>

#include "store/base/checked.h"
#include "store/base/mem.h"
#include "store/codec/codec.h"

static const uint8_t pack_magic[8] = {0x93, 'F', 'M', 'P', 'A', 'C', 'K', '\n'};
static const uint8_t record_magic[8] = {0x93, 'F', 'M', 'R', 'E', 'C', '1', '\n'};
static const uint8_t footer_magic[8] = {0x93, 'F', 'M', 'E', 'N', 'D', '1', '\n'};

enum {
    KIND_TENSOR = 1,
    KIND_BLOB = 2,
    FLAG_PARENT = 1,
    FLAG_RECIPE = 2,
    DTYPE_NAME_BYTES = 16
};

uint32_t fms_leaf_count(uint64_t bytes)
{
    fm_assert(bytes <= FM_MAX_TENSOR_BYTES);
    return (uint32_t)((bytes + FM_LEAF_BYTES - 1) / FM_LEAF_BYTES);
}

size_t fms_leaf_bytes(uint64_t bytes, uint32_t i)
{
    uint64_t at = (uint64_t)i * FM_LEAF_BYTES;
    fm_assert(at < bytes);
    return (size_t)FM_MIN(bytes - at, (uint64_t)FM_LEAF_BYTES);
}

static const uint8_t *leaf_row(const fms_record *r, uint32_t i)
{
    fm_assert(i < r->leaf_count);
    return r->table + (size_t)i * FMS_LEAF_ROW_BYTES;
}

void fms_leaf_digest(const fms_record *r, uint32_t i, fm_digest *out)
{
    memcpy(out->b, leaf_row(r, i), FM_DIGEST_BYTES);
}

uint8_t fms_leaf_codec(const fms_record *r, uint32_t i)
{
    return leaf_row(r, i)[32];
}

uint32_t fms_leaf_stored(const fms_record *r, uint32_t i)
{
    return fm_get_u32(leaf_row(r, i) + 36);
}

static uint64_t head_bytes_of(uint32_t leaf_count, uint32_t recipe_bytes)
{
    uint64_t n = FMS_RECORD_FIXED_BYTES + (uint64_t)leaf_count * FMS_LEAF_ROW_BYTES + recipe_bytes +
                 FM_DIGEST_BYTES;
    return (n + FMS_PACK_ALIGN - 1) / FMS_PACK_ALIGN * FMS_PACK_ALIGN;
}

/* ==== writing ============================================================================== */

static uint32_t recipe_bytes_of(const fms_record *r)
{
    if (r->recipe.op == FMS_OP_NONE)
        return 0;
    fm_assert(r->recipe.params.len <= FMS_PARAMS_MAX && r->parent_count <= FMS_PARENTS_MAX);
    return FMS_RECIPE_FIXED_BYTES + r->parent_count * FM_DIGEST_BYTES +
           (uint32_t)r->recipe.params.len;
}

/* u16 operation | u16 mode | u32 parents | u32 bytes of parameters | u32 0 | ids | parameters */
static void put_recipe(uint8_t *at, const fms_record *r)
{
    fm_put_u16(at, r->recipe.op);
    fm_put_u16(at + 2, r->recipe.mode);
    fm_put_u32(at + 4, r->parent_count);
    fm_put_u32(at + 8, (uint32_t)r->recipe.params.len);
    at += FMS_RECIPE_FIXED_BYTES;
    for (uint32_t k = 0; k < r->parent_count; k++, at += FM_DIGEST_BYTES)
        memcpy(at, r->parent[k].b, FM_DIGEST_BYTES);
    if (r->recipe.params.len)
        memcpy(at, r->recipe.params.data, r->recipe.params.len);
}

fm_status fms_record_head(fm_buf *out, const fms_record *r, const fms_leaf_row *rows)
{
    const uint32_t recipe_bytes = recipe_bytes_of(r);
    uint64_t head_bytes = head_bytes_of(r->leaf_count, recipe_bytes);
    uint8_t *h = fm_buf_extend(out, (size_t)head_bytes);
    if (!h)
        return fm_buf_ok(out);
    memset(h, 0, (size_t)head_bytes);
    memcpy(h, record_magic, 8);
    fm_put_u32(h + 8, (uint32_t)head_bytes);
    h[12] = r->is_blob ? KIND_BLOB : KIND_TENSOR;
    h[13] = recipe_bytes ? FLAG_RECIPE : r->parent_count ? FLAG_PARENT : 0;
    h[14] = (uint8_t)r->depth;
    h[15] = (uint8_t)r->shape.rank;
    if (!r->is_blob) {
        const char *name = fm_dtype_get(r->dtype)->name;
        memcpy(h + 16, name, strnlen(name, DTYPE_NAME_BYTES));
    }
    memcpy(h + 32, r->id.b, FM_DIGEST_BYTES);
    if (r->parent_count && !recipe_bytes)
        memcpy(h + 64, r->parent[0].b, FM_DIGEST_BYTES);
    fm_put_u64(h + 96, r->bytes);
    fm_put_u64(h + 104, r->payload_bytes);
    fm_put_u32(h + 112, r->leaf_count);
    fm_put_u32(h + 116, recipe_bytes);
    for (uint32_t i = 0; i < r->shape.rank; i++)
        fm_put_u64(h + 120 + 8 * (size_t)i, r->shape.dim[i]);
    for (uint32_t i = 0; i < r->leaf_count; i++) {
        uint8_t *row = h + FMS_RECORD_FIXED_BYTES + (size_t)i * FMS_LEAF_ROW_BYTES;
        memcpy(row, rows[i].digest.b, FM_DIGEST_BYTES);
        row[32] = rows[i].codec;
        fm_put_u32(row + 36, rows[i].stored_bytes);
    }
    if (recipe_bytes)
        put_recipe(h + FMS_RECORD_FIXED_BYTES + (size_t)r->leaf_count * FMS_LEAF_ROW_BYTES, r);
    fm_digest sum;
    FM_TRY(fm_sha256(&sum, h, (size_t)head_bytes - FM_DIGEST_BYTES));
    memcpy(h + head_bytes - FM_DIGEST_BYTES, sum.b, FM_DIGEST_BYTES);
    return FM_OK;
}

void fms_pack_header(uint8_t out[FMS_PACK_HEADER_BYTES], uint32_t features)
{
    memset(out, 0, FMS_PACK_HEADER_BYTES);
    memcpy(out, pack_magic, 8);
    fm_put_u32(out + 8, FMS_PACK_VERSION);
    fm_put_u32(out + 12, features);
}

void fms_pack_footer(uint8_t out[FMS_PACK_FOOTER_BYTES], uint64_t records, uint64_t file_bytes,
                     const fm_digest *heads)
{
    memset(out, 0, FMS_PACK_FOOTER_BYTES);
    memcpy(out, footer_magic, 8);
    fm_put_u64(out + 8, records);
    fm_put_u64(out + 16, file_bytes);
    memcpy(out + 32, heads->b, FM_DIGEST_BYTES);
}

/* ==== reading ============================================================================== */

static bool is_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

/* Parses the fixed part of a head whose checksum is right: dtype, shape, sizes. */
static fm_status parse_fixed(fms_record *r, const uint8_t *h, const char *what)
{
    if (h[12] != KIND_TENSOR && h[12] != KIND_BLOB)
        return fm_fail(FM_ECORRUPT, "%s: record kind %u is unknown", what, h[12]);
    r->is_blob = h[12] == KIND_BLOB;
    if (h[13] > FLAG_RECIPE)
        return fm_fail(FM_EVERSION, "%s: record flags 0x%02x need a newer fmstore", what, h[13]);
    r->parent_count = h[13] != 0; /* with a recipe its section has the number */
    r->depth = h[14];
    r->shape.rank = h[15];
    if (r->depth > FMS_CHAIN_MAX || (r->depth > 0) != (r->parent_count > 0))
        return fm_fail(FM_ECORRUPT, "%s: delta depth %u contradicts its parent", what, r->depth);
    if (r->shape.rank > FM_MAX_RANK || (r->is_blob && (r->shape.rank || r->parent_count)))
        return fm_fail(FM_ECORRUPT, "%s: record rank %u is out of range", what, r->shape.rank);
    memcpy(r->id.b, h + 32, FM_DIGEST_BYTES);
    if (h[13] == FLAG_PARENT)
        memcpy(r->parent[0].b, h + 64, FM_DIGEST_BYTES);
    r->bytes = fm_get_u64(h + 96);
    r->payload_bytes = fm_get_u64(h + 104);
    r->leaf_count = fm_get_u32(h + 112);
    for (uint32_t i = 0; i < r->shape.rank; i++)
        r->shape.dim[i] = fm_get_u64(h + 120 + 8 * (size_t)i);
    if (r->bytes > FM_MAX_TENSOR_BYTES || r->leaf_count != fms_leaf_count(r->bytes))
        return fm_fail(FM_ECORRUPT, "%s: %u leaves contradict %llu bytes", what, r->leaf_count,
                       (unsigned long long)r->bytes);
    if (r->is_blob)
        return FM_OK;
    const char *name = (const char *)h + 16;
    r->dtype = fm_dtype_parse(name, strnlen(name, DTYPE_NAME_BYTES));
    if (r->dtype == FM_DTYPE_NONE)
        return fm_fail(FM_EVERSION, "%s: dtype '%.16s' needs a newer fmstore", what, name);
    uint64_t bytes;
    fm_status rc = fm_tensor_bytes(&bytes, r->dtype, &r->shape, what);
    if (rc != FM_OK)
        return fm_fail(FM_ECORRUPT, "%s: dtype and shape give no valid size", what);
    if (bytes != r->bytes)
        return fm_fail(FM_ECORRUPT, "%s: shape gives %llu bytes, record says %llu", what,
                       (unsigned long long)bytes, (unsigned long long)r->bytes);
    return FM_OK;
}

static fm_status parse_recipe(fms_record *r, fm_span section, const char *what)
{
    fm_cursor c;
    fm_cursor_init(&c, section);
    r->recipe.op = fm_cursor_u16(&c);
    r->recipe.mode = fm_cursor_u16(&c);
    r->parent_count = fm_cursor_u32(&c);
    const uint32_t params = fm_cursor_u32(&c), reserved = fm_cursor_u32(&c);
    if (c.failed || r->parent_count < 1 || r->parent_count > FMS_PARENTS_MAX ||
        params > FMS_PARAMS_MAX || reserved || r->recipe.op == FMS_OP_NONE ||
        section.len != FMS_RECIPE_FIXED_BYTES + r->parent_count * FM_DIGEST_BYTES + params)
        return fm_fail(FM_ECORRUPT, "%s: the recipe of %u parents and %u parameter bytes is none",
                       what, r->parent_count, params);
    for (uint32_t k = 0; k < r->parent_count; k++)
        memcpy(r->parent[k].b, fm_cursor_bytes(&c, FM_DIGEST_BYTES).data, FM_DIGEST_BYTES);
    r->recipe.params = fm_cursor_bytes(&c, params);
    return fm_cursor_ok(&c, what, "the recipe");
}

/* Reserved bytes must be zero, so that a later version can give them a meaning. */
static fm_status check_reserved(const fms_record *r, const uint8_t *h, const char *what)
{
    const bool delta = h[13] == FLAG_PARENT;
    size_t dims = 120 + 8 * (size_t)r->shape.rank;
    size_t table_end =
        FMS_RECORD_FIXED_BYTES + (size_t)r->leaf_count * FMS_LEAF_ROW_BYTES + fm_get_u32(h + 116);
    bool zero = is_zero(h + dims, FMS_RECORD_FIXED_BYTES - dims) &&
                is_zero(h + table_end, (size_t)r->head_bytes - FM_DIGEST_BYTES - table_end) &&
                (delta || is_zero(h + 64, FM_DIGEST_BYTES)) &&
                (!r->is_blob || is_zero(h + 16, DTYPE_NAME_BYTES));
    for (uint32_t i = 0; zero && i < r->leaf_count; i++)
        zero = is_zero(leaf_row(r, i) + 33, 3);
    return zero ? FM_OK : fm_fail(FM_ECORRUPT, "%s: reserved bytes of the head are not zero", what);
}

static fm_status parse_table(const fms_record *r, const char *what)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < r->leaf_count; i++) {
        uint8_t codec = fms_leaf_codec(r, i);
        if (codec >= FMS_CODEC_COUNT)
            return fm_fail(FM_EVERSION, "%s: leaf %u: codec %u needs a newer fmstore", what, i,
                           codec);
        if (fms_codec_needs_parent(codec) && r->parent_count == 0)
            return fm_fail(FM_ECORRUPT, "%s: leaf %u is a delta, but no parent is named", what, i);
        sum += fms_leaf_stored(r, i); /* at most 2^20 leaves of 32 bits: cannot overflow */
    }
    if (sum != r->payload_bytes)
        return fm_fail(FM_ECORRUPT, "%s: leaves hold %llu bytes, record says %llu", what,
                       (unsigned long long)sum, (unsigned long long)r->payload_bytes);
    return FM_OK;
}

static fm_status check_id(const fms_record *r, const char *what)
{
    fm_digest *leaf = fm_malloc((size_t)r->leaf_count * sizeof *leaf);
    if (!leaf)
        return FM_ENOMEM;
    for (uint32_t i = 0; i < r->leaf_count; i++)
        fms_leaf_digest(r, i, &leaf[i]);
    fm_digest id;
    fm_status rc = r->is_blob ? fm_blob_id_from_leaves(&id, r->bytes, leaf)
                              : fm_tensor_id_from_leaves(&id, r->dtype, &r->shape, r->bytes, leaf);
    fm_free(leaf);
    if (rc != FM_OK)
        return rc;
    if (!fm_digest_eq(&id, &r->id))
        return fm_fail(FM_ECORRUPT, "%s: the record's id is not that of its leaves", what);
    return FM_OK;
}

fm_status fms_record_head_length(uint64_t *out, fm_span start, const char *what)
{
    *out = 0;
    if (start.len < FMS_RECORD_FIXED_BYTES || memcmp(start.data, record_magic, 8) != 0)
        return fm_fail(FM_ECORRUPT, "%s: no record begins here", what);
    const uint64_t bytes = fm_get_u32(start.data + 8);
    const uint32_t recipe_bytes = fm_get_u32(start.data + 116);
    if (bytes % FMS_PACK_ALIGN || recipe_bytes > FMS_RECIPE_BYTES_MAX ||
        bytes != head_bytes_of(fm_get_u32(start.data + 112), recipe_bytes))
        return fm_fail(FM_ECORRUPT, "%s: a record head has not %llu bytes", what,
                       (unsigned long long)bytes);
    *out = bytes;
    return FM_OK;
}

/* room: bytes that may follow the head, where the payload must end. */
static fm_status parse_record(fms_record *out, fm_span bytes, uint64_t room, const char *what)
{
    memset(out, 0, sizeof *out);
    fms_record r;
    memset(&r, 0, sizeof r);
    FM_TRY(fms_record_head_length(&r.head_bytes, bytes, what));
    if (r.head_bytes > bytes.len)
        return fm_fail(FM_ECORRUPT, "%s: record head of %llu bytes leaves the pack", what,
                       (unsigned long long)r.head_bytes);
    room = FM_MIN(room, UINT64_MAX - r.head_bytes);
    const uint32_t recipe_bytes = fm_get_u32(bytes.data + 116);
    fm_digest sum;
    FM_TRY(fm_sha256(&sum, bytes.data, (size_t)r.head_bytes - FM_DIGEST_BYTES));
    if (memcmp(sum.b, bytes.data + r.head_bytes - FM_DIGEST_BYTES, FM_DIGEST_BYTES) != 0)
        return fm_fail(FM_ECORRUPT, "%s: the record head's checksum is wrong", what);
    FM_TRY(parse_fixed(&r, bytes.data, what));
    if ((bytes.data[13] == FLAG_RECIPE) != (recipe_bytes > 0))
        return fm_fail(FM_ECORRUPT, "%s: a recipe of %u bytes contradicts the flags", what,
                       recipe_bytes);
    const size_t table_end = FMS_RECORD_FIXED_BYTES + (size_t)r.leaf_count * FMS_LEAF_ROW_BYTES;
    if (recipe_bytes)
        FM_TRY(parse_recipe(&r, fm_span_of(bytes.data + table_end, recipe_bytes), what));
    r.table = bytes.data + FMS_RECORD_FIXED_BYTES;
    r.payload = bytes.data + r.head_bytes;
    uint64_t padded;
    if (fm_align_overflow(&padded, r.payload_bytes, FMS_PACK_ALIGN) ||
        padded > FM_MAX(room, bytes.len - r.head_bytes))
        return fm_fail(FM_ECORRUPT, "%s: payload of %llu bytes leaves the pack", what,
                       (unsigned long long)r.payload_bytes);
    r.stored_bytes = r.head_bytes + padded;
    FM_TRY(check_reserved(&r, bytes.data, what));
    FM_TRY(parse_table(&r, what));
    FM_TRY(check_id(&r, what));
    *out = r;
    return FM_OK;
}

fm_status fms_record_parse(fms_record *out, fm_span bytes, const char *what)
{
    return parse_record(out, bytes, 0, what);
}

fm_status fms_record_parse_head(fms_record *out, fm_span head, const char *what)
{
    return parse_record(out, head, UINT64_MAX, what);
}

fm_status fms_record_set_depth(uint8_t *head, size_t head_bytes, uint32_t depth)
{
    fm_digest sum;

    fm_assert(depth <= FMS_CHAIN_MAX && head_bytes > FMS_RECORD_FIXED_BYTES);
    head[14] = (uint8_t)depth;
    FM_TRY(fm_sha256(&sum, head, head_bytes - FM_DIGEST_BYTES));
    memcpy(head + head_bytes - FM_DIGEST_BYTES, sum.b, FM_DIGEST_BYTES);
    return FM_OK;
}

static fm_status check_frame(fm_span pack, const char *what)
{
    if (pack.len < FMS_PACK_HEADER_BYTES + FMS_PACK_FOOTER_BYTES ||
        memcmp(pack.data, pack_magic, 8) != 0)
        return fm_fail(FM_ECORRUPT, "%s: not a pack (its first bytes are wrong)", what);
    uint32_t version = fm_get_u32(pack.data + 8);
    uint32_t features = fm_get_u32(pack.data + 12);
    if (version < 1 || version > FMS_PACK_VERSION || (features & ~FMS_PACK_RECIPES))
        return fm_fail(FM_EVERSION,
                       "%s: pack version %u, features 0x%x: written by a newer fmstore", what,
                       version, features);
    if (!is_zero(pack.data + 16, FMS_PACK_HEADER_BYTES - 16))
        return fm_fail(FM_ECORRUPT, "%s: the pack header's reserved bytes are not zero", what);
    const uint8_t *f = pack.data + pack.len - FMS_PACK_FOOTER_BYTES;
    if (pack.len % FMS_PACK_ALIGN || memcmp(f, footer_magic, 8) != 0 ||
        fm_get_u64(f + 16) != pack.len || !is_zero(f + 24, 8))
        return fm_fail(FM_ECORRUPT, "%s: the pack is cut off or has bytes after its end", what);
    return FM_OK;
}

bool fms_pack_is_ended(fm_span pack)
{
    fm_error_state kept;
    fm_error_save(&kept);
    const bool ended = check_frame(pack, "") == FM_OK;
    fm_error_restore(&kept);
    return ended;
}

/* The next offset that might hold a record after a bad one. */
static uint64_t resync(fm_span pack, uint64_t at, uint64_t end)
{
    for (at += FMS_PACK_ALIGN; at + 8 <= end; at += FMS_PACK_ALIGN)
        if (memcmp(pack.data + at, record_magic, 8) == 0)
            return at;
    return end;
}

static void where_at(char *out, size_t out_bytes, const char *what, uint64_t offset)
{
    snprintf(out, out_bytes, "%s: at byte %llu", what, (unsigned long long)offset);
}

/* A damaged head may claim a great length, over which a checksum is computed: the sum of these
 * lengths is limited, so that a hostile pack costs a small multiple of reading it. */
#define RESYNC_PACK_READS 4u
#define RESYNC_FREE_BYTES (64ull << 20)

typedef struct walk_state {
    uint64_t end; /* where the records end */
    bool recipes; /* records may have recipes */
    uint64_t records;
    uint64_t wasted_bytes; /* claimed by damaged heads */
    bool bad;
    fm_hasher *heads;
} walk_state;

static fm_status report(const fms_pack_visitor *v, const char *text)
{
    return v->on_fault ? v->on_fault(v->ctx, text) : FM_OK;
}

static fm_status give_up(const fms_pack_visitor *v, const char *place)
{
    fm_ignore(fm_fail(FM_ECORRUPT, "%s: too much is damaged; what follows is left out", place),
              "only the text is wanted");
    return report(v, fm_error_text());
}

static fm_status walk_records(fm_span pack, const char *what, const fms_pack_visitor *v,
                              walk_state *st)
{
    const uint64_t end = st->end;
    bool lost = false; /* after a bad record, until the next sound one: one report suffices */
    for (uint64_t at = FMS_PACK_HEADER_BYTES; at < end;) {
        char place[160];
        where_at(place, sizeof place, what, at);
        fms_record r;
        fm_status rc = fms_record_parse(&r, fm_span_of(pack.data + at, (size_t)(end - at)), place);
        if (rc == FM_OK && r.recipe.op != FMS_OP_NONE && !st->recipes)
            rc = fm_fail(FM_ECORRUPT, "%s: a recipe, which the pack's header does not announce",
                         place);
        if (rc == FM_ECORRUPT || rc == FM_EVERSION) {
            st->bad = true;
            rc = lost ? FM_OK : report(v, fm_error_text());
            if (rc != FM_OK)
                return rc;
            lost = true;
            st->wasted_bytes += end - at >= 12 ? fm_get_u32(pack.data + at + 8) : 0;
            if (st->wasted_bytes > RESYNC_PACK_READS * (uint64_t)pack.len + RESYNC_FREE_BYTES)
                return give_up(v, place);
            at = resync(pack, at, end);
            continue;
        }
        if (rc != FM_OK)
            return rc;
        lost = false;
        st->records++;
        FM_TRY(fm_hasher_update(st->heads, r.payload - FM_DIGEST_BYTES, FM_DIGEST_BYTES));
        FM_TRY(v->on_record(v->ctx, at, &r));
        at += r.stored_bytes;
    }
    return FM_OK;
}

fm_status fms_pack_walk(fm_span pack, const char *what, const fms_pack_visitor *v)
{
    FM_TRY(check_frame(pack, what));
    walk_state st = {.end = pack.len - FMS_PACK_FOOTER_BYTES,
                     .recipes = fm_get_u32(pack.data + 12) & FMS_PACK_RECIPES};
    fm_status rc = fm_hasher_new(&st.heads);
    FM_THEN(rc, walk_records(pack, what, v, &st));
    fm_digest sum;
    FM_THEN(rc, fm_hasher_final(st.heads, &sum));
    if (rc == FM_OK && !st.bad) {
        const uint8_t *f = pack.data + pack.len - FMS_PACK_FOOTER_BYTES;
        if (fm_get_u64(f + 8) != st.records || memcmp(f + 32, sum.b, FM_DIGEST_BYTES) != 0) {
            char place[160];
            where_at(place, sizeof place, what, pack.len - FMS_PACK_FOOTER_BYTES);
            fm_ignore(fm_fail(FM_ECORRUPT, "%s: the footer does not match the records", place),
                      "only the text is wanted");
            rc = report(v, fm_error_text());
        }
    }
    fm_hasher_free(st.heads);
    return rc;
}

fm_status fms_pack_salvage(fm_span pack, const char *what, const fms_pack_visitor *v)
{
    walk_state st = {.end = pack.len, .recipes = true};
    if (pack.len >= FMS_PACK_FOOTER_BYTES &&
        memcmp(pack.data + pack.len - FMS_PACK_FOOTER_BYTES, footer_magic, 8) == 0)
        st.end = pack.len - FMS_PACK_FOOTER_BYTES;
    fm_status rc = fm_hasher_new(&st.heads);
    FM_THEN(rc, walk_records(pack, what, v, &st));
    fm_hasher_free(st.heads);
    return rc;
}

fm_status fms_pack_is_intact(fm_span pack, const char *name, bool *yes)
{
    fm_digest sum;
    char hex[FM_HEX_CHARS + 1];
    *yes = false;
    FM_TRY(fm_sha256(&sum, pack.data, pack.len));
    fm_digest_hex(&sum, hex);
    *yes = strcmp(hex, name) == 0;
    return FM_OK;
}
