/* codec.c - choosing and running the codec of a leaf.
 *
 * Planes: floats are first rotated left by one bit, so that the exponent fills one byte and the
 * sign joins the mantissa, whose noise it is. */
#include "store/codec/codec.h"

#include <string.h>

#include "store/base/mem.h"
#include "store/codec/cdelta.h"
#include "store/codec/exponents.h"
#include "store/codec/mixed.h"
#include "store/codec/narrow.h"
#include "store/codec/palette.h"
#include "store/entropy/stream.h"
#include "store/codec/sorted_delta.h"
#include "store/quant/dequantized.h"

enum { PLANES_PLAIN = 0, PLANES_ROTATED = 1 };
enum { NARROW_BF16 = 1, NARROW_F16 = 2 };
enum { SMALL_LEAF = 65536 }; /* bytes; below it planes are tried after exponents */
enum { MAX_UNIT = 256 };
/* Buckets are joined until they hold this many elements: a table costs about 60 bytes. */
enum { GROUP_MIN = 4096 };

struct fms_coder {
    fms_streams *streams;
    uint8_t *plane;      /* FM_LEAF_BYTES: all planes of a leaf, one after the other */
    uint8_t *mixed;      /* FM_LEAF_BYTES: child XOR parent */
    uint8_t *scratch[2]; /* FM_LEAF_BYTES each, for callers: fms_coder_scratch */
    fms_cdelta *cdelta;
    fms_exponents *exps;
    fms_mixed *mixed_bits; /* the slow level; made when first needed */
    fms_palette *palette;
    uint8_t *narrow[2]; /* a leaf, or its blocks, and its parent in a narrower type */
    fm_buf trial, blocks, rest;
};

bool fms_codec_needs_parent(uint8_t codec)
{
    return codec == FMS_CODEC_SAME || codec == FMS_CODEC_DELTA || codec == FMS_CODEC_XOR ||
           codec == FMS_CODEC_CDELTA || codec == FMS_CODEC_NARROW_DELTA || codec == FMS_CODEC_MIXED;
}

const char *fms_codec_name(uint8_t codec)
{
    static const char *const name[FMS_CODEC_COUNT] = {
        "raw",  "const",  "planes", "bytes",        "same",    "delta",  "xor",
        "exps", "cdelta", "narrow", "narrow-delta", "palette", "blocks", "mixed"};
    return codec < FMS_CODEC_COUNT ? name[codec] : "unknown";
}

fm_status fms_coder_new(fms_coder **out)
{
    *out = NULL;
    fms_coder *c = fm_calloc(1, sizeof *c);
    if (!c)
        return FM_ENOMEM;
    fm_buf_init(&c->trial, (size_t)4 * FM_LEAF_BYTES);
    fm_buf_init(&c->blocks, (size_t)2 * FM_LEAF_BYTES);
    fm_buf_init(&c->rest, (size_t)2 * FM_LEAF_BYTES);
    c->plane = fm_malloc(FM_LEAF_BYTES);
    c->mixed = fm_malloc(FM_LEAF_BYTES);
    c->scratch[0] = fm_malloc(FM_LEAF_BYTES);
    c->scratch[1] = fm_malloc(FM_LEAF_BYTES);
    c->narrow[0] = fm_malloc(FM_LEAF_BYTES);
    c->narrow[1] = c->narrow[0] ? c->narrow[0] + FM_LEAF_BYTES / 2 : NULL;
    if (!c->plane || !c->mixed || !c->scratch[0] || !c->scratch[1] || !c->narrow[0]) {
        fms_coder_free(c);
        return fm_fail(FM_ENOMEM, "out of memory");
    }
    fm_status rc = fms_cdelta_new(&c->cdelta);
    FM_THEN(rc, fms_exponents_new(&c->exps));
    FM_THEN(rc, fms_streams_new(&c->streams));
    FM_THEN(rc, fms_palette_new(&c->palette));
    if (rc != FM_OK) {
        fms_coder_free(c);
        return rc;
    }
    *out = c;
    return FM_OK;
}

void fms_coder_free(fms_coder *c)
{
    if (!c)
        return;
    fms_streams_free(c->streams);
    fms_palette_free(c->palette);
    fm_free(c->plane);
    fm_free(c->mixed);
    fm_free(c->scratch[0]);
    fm_free(c->scratch[1]);
    fm_free(c->narrow[0]);
    fms_cdelta_free(c->cdelta);
    fms_exponents_free(c->exps);
    fms_mixed_free(c->mixed_bits);
    fm_buf_release(&c->trial);
    fm_buf_release(&c->blocks);
    fm_buf_release(&c->rest);
    fm_free(c);
}

uint8_t *fms_coder_scratch(fms_coder *c, unsigned which)
{
    fm_assert(which < 2);
    return c->scratch[which];
}

/* ==== planes =============================================================================== */

static size_t unit_of(fm_dtype dtype)
{
    const size_t bytes = dtype == FM_DTYPE_NONE ? 1 : fm_dtype_get(dtype)->block_bytes;
    return bytes <= MAX_UNIT ? bytes : 4; /* Q8_K's 292 bytes, which no file of weights has */
}

static uint8_t transform_of(fm_dtype dtype)
{
    return dtype == FM_F32 || dtype == FM_BF16 || dtype == FM_F16 ? PLANES_ROTATED : PLANES_PLAIN;
}

/* Byte b of every element goes to dst + b * n. */
static void split_planes(uint8_t *dst, const uint8_t *src, size_t unit, size_t n, uint8_t transform)
{
    if (transform == PLANES_ROTATED && unit == 2) {
        for (size_t i = 0; i < n; i++) {
            uint16_t v = fm_get_u16(src + 2 * i);
            v = (uint16_t)(v << 1 | v >> 15);
            dst[i] = (uint8_t)v;
            dst[n + i] = (uint8_t)(v >> 8);
        }
        return;
    }
    if (transform == PLANES_ROTATED) {
        for (size_t i = 0; i < n; i++) {
            uint32_t v = fm_get_u32(src + 4 * i);
            v = v << 1 | v >> 31;
            for (size_t b = 0; b < 4; b++)
                dst[b * n + i] = (uint8_t)(v >> (8 * b));
        }
        return;
    }
    for (size_t b = 0; b < unit; b++)
        for (size_t i = 0; i < n; i++)
            dst[b * n + i] = src[i * unit + b];
}

static void join_planes(uint8_t *dst, const uint8_t *src, size_t unit, size_t n, uint8_t transform)
{
    if (transform == PLANES_ROTATED && unit == 2) {
        for (size_t i = 0; i < n; i++) {
            uint16_t v = (uint16_t)(src[i] | src[n + i] << 8);
            fm_put_u16(dst + 2 * i, (uint16_t)(v >> 1 | v << 15));
        }
        return;
    }
    if (transform == PLANES_ROTATED) {
        for (size_t i = 0; i < n; i++) {
            uint32_t v = (uint32_t)src[i] | (uint32_t)src[n + i] << 8 |
                         (uint32_t)src[2 * n + i] << 16 | (uint32_t)src[3 * n + i] << 24;
            fm_put_u32(dst + 4 * i, v >> 1 | v << 31);
        }
        return;
    }
    for (size_t b = 0; b < unit; b++)
        for (size_t i = 0; i < n; i++)
            dst[i * unit + b] = src[b * n + i];
}

/* u16 unit | u8 transform | unit streams | the bytes beyond the last whole unit */
static void encode_planes(fms_coder *c, fm_buf *out, fm_dtype dtype, fm_span leaf)
{
    size_t unit = unit_of(dtype), n = leaf.len / unit;
    fm_assert(unit <= MAX_UNIT);
    uint8_t transform = transform_of(dtype);
    fm_buf_u16(out, (uint16_t)unit);
    fm_buf_u8(out, transform);
    split_planes(c->plane, leaf.data, unit, n, transform);
    for (size_t b = 0; b < unit; b++)
        fms_stream_encode(c->streams, out, c->plane + b * n, n);
    fm_buf_append(out, leaf.data + n * unit, leaf.len - n * unit);
}

static fm_status decode_planes(fms_coder *c, uint8_t *dst, size_t bytes, fm_span coded)
{
    fm_cursor cur;
    fm_cursor_init(&cur, coded);
    size_t unit = fm_cursor_u16(&cur);
    uint8_t transform = fm_cursor_u8(&cur);
    bool sane = transform == PLANES_PLAIN ? unit >= 1 && unit <= MAX_UNIT
                                          : transform == PLANES_ROTATED && (unit == 2 || unit == 4);
    if (cur.failed || !sane)
        return fm_fail(FM_ECORRUPT, "coded leaf: planes of unit %zu, transform %u are unknown",
                       unit, transform);
    size_t n = bytes / unit;
    for (size_t b = 0; b < unit; b++) {
        FM_TRY(fms_stream_decode(c->streams, c->plane + b * n, n, &cur));
    }
    join_planes(dst, c->plane, unit, n, transform);
    size_t tail = bytes - n * unit;
    if (fm_cursor_left(&cur) != tail)
        return fm_fail(FM_ECORRUPT, "coded leaf: %zu bytes after the planes, not %zu",
                       fm_cursor_left(&cur), tail);
    if (tail)
        memcpy(dst + n * unit, coded.data + cur.pos, tail);
    return FM_OK;
}

/* ==== delta ================================================================================ */

/* Sets last[g] to the highest exponent of group g; returns the number of groups. */
static unsigned group_exponents(uint8_t last[256], const uint32_t count[256])
{
    unsigned groups = 0;
    uint64_t held = 0;
    for (unsigned e = 0; e < 256; e++) {
        held += count[e];
        if (held >= GROUP_MIN || e == 255) {
            if (held < GROUP_MIN && groups > 0)
                groups--; /* too few left: they join the group before */
            last[groups++] = (uint8_t)e;
            held = 0;
        }
    }
    return groups;
}

static size_t group_elems(const uint32_t count[256], unsigned first, unsigned last)
{
    size_t n = 0;
    for (unsigned e = first; e <= last; e++)
        n += count[e];
    return n;
}

/* u8 groups-1 | u8 highest exponent of each (the last is 255) | per group: width streams */
static void encode_delta(fms_coder *c, fm_buf *out, fm_dtype dtype, fm_span leaf,
                         const uint8_t *parent)
{
    size_t width = fms_delta_width(dtype), n = leaf.len / width;
    uint32_t count[256];
    uint8_t *plane[FMS_DELTA_MAX_WIDTH] = {NULL};
    for (size_t b = 0; b < width; b++)
        plane[b] = c->plane + b * n;
    fms_delta_count(count, dtype, parent, n);
    fms_delta_split(plane, dtype, leaf.data, parent, count, n);
    uint8_t last[256];
    unsigned groups = group_exponents(last, count);
    fm_buf_u8(out, (uint8_t)(groups - 1));
    fm_buf_append(out, last, groups);
    size_t at = 0;
    for (unsigned g = 0, first = 0; g < groups; first = last[g++] + 1u) {
        size_t held = group_elems(count, first, last[g]);
        for (size_t b = 0; b < width; b++)
            fms_stream_encode(c->streams, out, plane[b] + at, held);
        at += held;
    }
}

static fm_status decode_delta(fms_coder *c, uint8_t *dst, size_t bytes, fm_dtype dtype,
                              fm_span coded, const uint8_t *parent)
{
    if (!fms_delta_applies(dtype) || bytes % fms_delta_width(dtype))
        return fm_fail(FM_ECORRUPT, "coded leaf: a delta of this dtype or length is unknown");
    size_t width = fms_delta_width(dtype), n = bytes / width;
    uint32_t count[256];
    uint8_t *plane[FMS_DELTA_MAX_WIDTH] = {NULL};
    for (size_t b = 0; b < width; b++)
        plane[b] = c->plane + b * n;
    fms_delta_count(count, dtype, parent, n);
    fm_cursor cur;
    fm_cursor_init(&cur, coded);
    unsigned groups = fm_cursor_u8(&cur) + 1u;
    fm_span last = fm_cursor_bytes(&cur, groups);
    FM_TRY(fm_cursor_ok(&cur, "coded leaf", "the table of groups"));
    if (last.data[groups - 1] != 255)
        return fm_fail(FM_ECORRUPT, "coded leaf: the groups of a delta end at exponent %u",
                       last.data[groups - 1]);
    size_t at = 0;
    for (unsigned g = 0, first = 0; g < groups; first = last.data[g++] + 1u) {
        if (last.data[g] < first)
            return fm_fail(FM_ECORRUPT, "coded leaf: the groups of a delta are out of order");
        size_t held = group_elems(count, first, last.data[g]);
        for (size_t b = 0; b < width; b++) {
            FM_TRY(fms_stream_decode(c->streams, plane[b] + at, held, &cur));
        }
        at += held;
    }
    if (fm_cursor_left(&cur))
        return fm_fail(FM_ECORRUPT, "coded leaf: %zu bytes after the delta", fm_cursor_left(&cur));
    const uint8_t *const joined[FMS_DELTA_MAX_WIDTH] = {plane[0], plane[1], plane[2], plane[3]};
    fms_delta_join(dst, dtype, joined, parent, count, n);
    return FM_OK;
}

/* ==== the choice =========================================================================== */

static void xor_bytes(uint8_t *dst, const uint8_t *a, const uint8_t *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = a[i] ^ b[i];
}

static bool is_constant(fm_span leaf, size_t unit)
{
    return leaf.len > unit && leaf.len % unit == 0 &&
           memcmp(leaf.data, leaf.data + unit, leaf.len - unit) == 0;
}

/* The best coding of a leaf so far: the bytes of out from begin on, by this codec. */
typedef struct choice {
    fm_buf *out;
    size_t begin, floor; /* floor: bytes of the leaf, the size of raw */
    uint8_t codec;
    bool any; /* out holds a coding; else raw is the best so far */
} choice;

static size_t best_of(const choice *b)
{
    return b->any ? b->out->len - b->begin : b->floor;
}

/* The buffer for the next codec: out itself while it holds no coding, which saves a copy. */
static fm_buf *next_room(fms_coder *c, const choice *b)
{
    if (!b->any)
        return b->out;
    fm_buf_clear(&c->trial);
    return &c->trial;
}

/* Keeps the coding that was just written if it is the smallest so far. */
static void judge(fms_coder *c, choice *b, uint8_t tried)
{
    if (!b->any) {
        if (b->out->failed == FM_OK && b->out->len - b->begin < b->floor) {
            b->any = true;
            b->codec = tried;
        } else if (b->out->failed == FM_OK) {
            b->out->len = b->begin;
        }
    } else if (c->trial.failed == FM_OK && c->trial.len < best_of(b)) {
        b->out->len = b->begin;
        fm_buf_append(b->out, c->trial.data, c->trial.len);
        b->codec = tried;
    }
}

static void try_xor(fms_coder *c, choice *b, const fms_leaf_at *at, fm_span leaf,
                    const uint8_t *parent)
{
    fm_buf *to = next_room(c, b);
    xor_bytes(c->mixed, leaf.data, parent, leaf.len);
    encode_planes(c, to, at->dtype, fm_span_of(c->mixed, leaf.len));
    judge(c, b, FMS_CODEC_XOR);
}

/* Whether in a sample of F32 at least half of the changed elements kept their low 16 bits, as after
 * a coarser update of finer weights. A difference of integers spends a tail on these bits, XOR gets
 * a plane of zeros. Arithmetic that rounds keeps them once in 65,536. */
static bool low_bits_stay(fm_dtype dtype, fm_span leaf, const uint8_t *parent)
{
    enum { SPOTS = 64, EACH = 16 };
    size_t n = leaf.len / 4, changed = 0, stayed = 0;
    if (dtype != FM_F32 || n < (size_t)SPOTS * EACH)
        return false;
    for (size_t k = 0; k < SPOTS; k++)
        for (size_t i = (n - EACH) * k / (SPOTS - 1), end = i + EACH; i < end; i++) {
            uint32_t x = fm_get_u32(leaf.data + 4 * i) ^ fm_get_u32(parent + 4 * i);
            changed += x != 0;
            stayed += x != 0 && (x & 0xffff) == 0;
        }
    return changed > 0 && 2 * stayed >= changed;
}

static void try_parent(fms_coder *c, choice *b, const fms_leaf_at *at, fm_span leaf,
                       const uint8_t *parent)
{
    fm_buf *to = next_room(c, b);
    if (fms_cdelta_applies(at, leaf.len)) {
        fms_cdelta_encode(c->cdelta, to, at, leaf, parent);
        judge(c, b, FMS_CODEC_CDELTA);
        if (at->slow && (c->mixed_bits || fms_mixed_new(&c->mixed_bits) == FM_OK)) {
            to = next_room(c, b);
            fms_mixed_encode(c->mixed_bits, c->cdelta, to, at, leaf, parent);
            judge(c, b, FMS_CODEC_MIXED);
        }
    } else if (fms_delta_applies(at->dtype)) {
        encode_delta(c, to, at->dtype, leaf, parent);
        judge(c, b, FMS_CODEC_DELTA);
    }
    if (!fms_delta_applies(at->dtype) || low_bits_stay(at->dtype, leaf, parent))
        try_xor(c, b, at, leaf, parent);
}

static void try_alone(fms_coder *c, choice *b, const fms_leaf_at *at, fm_span leaf)
{
    size_t unit = unit_of(at->dtype);
    if (fms_exponents_encode(c->exps, next_room(c, b), at, leaf)) {
        judge(c, b, FMS_CODEC_EXPS);
        if (leaf.len >= SMALL_LEAF) /* with few elements the classes cost more than they save */
            return;
    }
    if (unit > 1) {
        encode_planes(c, next_room(c, b), at->dtype, leaf);
        judge(c, b, FMS_CODEC_PLANES);
    }
    if (unit == 1 || unit > 8) {
        fms_stream_encode(c->streams, next_room(c, b), leaf.data, leaf.len);
        judge(c, b, FMS_CODEC_BYTES);
    }
}

/* u16 values - 1 | values, ascending | stream of low index bytes | beyond 256 values one of high */
static void try_palette(fms_coder *c, choice *b, const fms_leaf_at *at, fm_span leaf)
{
    size_t unit = unit_of(at->dtype), n = leaf.len / unit;
    if ((unit != 2 && unit != 4) || leaf.len % unit)
        return;
    size_t count = fms_palette_find(c->palette, leaf.data, unit, n);
    if (!count)
        return;
    fm_buf *to = next_room(c, b);
    fms_palette_put(c->palette, to, unit);
    fms_palette_index(c->palette, c->plane, leaf.data, unit, n);
    for (size_t k = 0; k < (count > 256 ? 2u : 1u); k++)
        fms_stream_encode(c->streams, to, c->plane + k * n, n);
    judge(c, b, FMS_CODEC_PALETTE);
}

static fm_status decode_palette(fms_coder *c, uint8_t *dst, size_t bytes, fm_dtype dtype,
                                fm_span coded)
{
    size_t unit = unit_of(dtype), n = bytes / unit, count = 0;
    if ((unit != 2 && unit != 4) || bytes % unit)
        return fm_fail(FM_ECORRUPT, "coded leaf: a palette of this dtype or length is unknown");
    fm_cursor cur;
    fm_cursor_init(&cur, coded);
    FM_TRY(fms_palette_get(c->palette, &count, unit, &cur));
    for (size_t k = 0; k < (count > 256 ? 2u : 1u); k++)
        FM_TRY(fms_stream_decode(c->streams, c->plane + k * n, n, &cur));
    if (fm_cursor_left(&cur))
        return fm_fail(FM_ECORRUPT, "coded leaf: %zu bytes after the palette's indices",
                       fm_cursor_left(&cur));
    return fms_palette_apply(c->palette, dst, c->plane, unit, n);
}

fms_leaf_at fms_leaf_at_of(fm_dtype dtype, const fm_shape *shape, uint64_t i)
{
    fms_leaf_at at = {dtype, 0, i * FM_LEAF_BYTES, false};
    if (dtype == FM_DTYPE_NONE || !shape || shape->rank == 0)
        return at;
    const fm_dtype_info *d = fm_dtype_get(dtype);
    at.row_bytes = shape->dim[shape->rank - 1] / d->block_elems * d->block_bytes;
    return at;
}

/* u8 type | u8 codec | the narrower leaf, coded */
static fm_status encode_narrow(fms_coder *c, fm_buf *out, uint8_t *codec, const fms_leaf_at *at,
                               fm_dtype type, fm_span leaf, const uint8_t *parent)
{
    const fms_leaf_at inner = {type, at->row_bytes / 2, at->offset / 2, at->slow};
    size_t begin = out->len;
    uint8_t how = 0;
    fm_buf_u8(out, type == FM_BF16 ? NARROW_BF16 : NARROW_F16);
    fm_buf_u8(out, 0);
    fms_narrow_to(c->narrow[0], type, leaf.data, leaf.len);
    if (parent)
        fms_narrow_to(c->narrow[1], type, parent, leaf.len);
    FM_TRY(fms_leaf_encode(c, out, &how, &inner, fm_span_of(c->narrow[0], leaf.len / 2),
                           parent ? c->narrow[1] : NULL));
    out->data[begin + 1] = how;
    *codec = fms_codec_needs_parent(how) ? FMS_CODEC_NARROW_DELTA : FMS_CODEC_NARROW;
    return FM_OK;
}

static fm_status decode_narrow(fms_coder *c, uint8_t *dst, size_t bytes, uint8_t codec,
                               const fms_leaf_at *at, fm_span coded, const uint8_t *parent)
{
    fm_cursor cur;
    fm_cursor_init(&cur, coded);
    uint8_t kind = fm_cursor_u8(&cur), how = fm_cursor_u8(&cur);
    bool inside = codec == FMS_CODEC_NARROW_DELTA;
    if (cur.failed || bytes % 4 || (kind != NARROW_BF16 && kind != NARROW_F16) ||
        how == FMS_CODEC_NARROW || how == FMS_CODEC_NARROW_DELTA ||
        fms_codec_needs_parent(how) != inside)
        return fm_fail(FM_ECORRUPT, "coded leaf: type %u, codec %u within a wider leaf", kind, how);
    fm_dtype type = kind == NARROW_BF16 ? FM_BF16 : FM_F16;
    const fms_leaf_at inner = {type, at->row_bytes / 2, at->offset / 2, false};
    if (inside)
        fms_narrow_to(c->narrow[1], type, parent, bytes);
    fm_span rest = fm_span_of(coded.data + cur.pos, fm_cursor_left(&cur));
    FM_TRY(fms_leaf_decode(c, c->narrow[0], bytes / 2, how, &inner, rest,
                           inside ? c->narrow[1] : NULL));
    fms_narrow_from(dst, type, c->narrow[0], bytes);
    return FM_OK;
}

/* ggml's numbers of the block types that fms_origin_find may give. */
static const struct {
    uint8_t number;
    fm_dtype type;
} block_types[] = {{2, FM_Q4_0},  {3, FM_Q4_1},  {6, FM_Q5_0},  {7, FM_Q5_1},   {8, FM_Q8_0},
                   {12, FM_Q4_K}, {13, FM_Q5_K}, {14, FM_Q6_K}, {20, FM_IQ4_NL}};

/* u8 type | u8 codec | u32 bytes of exceptions | exceptions | coded leaf of blocks. *fits: done. */
static fm_status encode_blocks(fms_coder *c, fm_buf *out, const fms_leaf_at *at, fm_span leaf,
                               bool *fits)
{
    fms_origin o;
    *fits = false;
    if (!fms_origin_find(&o, at->dtype, leaf))
        return FM_OK;
    fm_buf_clear(&c->blocks);
    fm_buf_clear(&c->rest);
    fm_status rc = fms_origin_encode(&c->blocks, &c->rest, fits, &o, at->dtype, leaf);
    if (rc != FM_OK || !*fits)
        return rc;
    size_t begin = out->len, k = 0;
    while (k < FM_ARRAY_LEN(block_types) && block_types[k].type != o.type)
        k++;
    *fits = k < FM_ARRAY_LEN(block_types) && c->blocks.len > 0 && c->blocks.len <= FM_LEAF_BYTES &&
            c->blocks.len + c->rest.len + 64 < leaf.len / 2;
    if (!*fits)
        return FM_OK;
    uint8_t how = 0;
    const fms_leaf_at inner = {o.type, 0, 0, at->slow};
    fm_buf_u8(out, block_types[k].number);
    fm_buf_u8(out, 0);
    fm_buf_u32(out, (uint32_t)c->rest.len);
    fm_buf_append(out, c->rest.data, c->rest.len);
    rc = fms_leaf_encode(c, out, &how, &inner, fm_buf_span(&c->blocks), NULL);
    if (rc == FM_OK)
        out->data[begin + 1] = how;
    return rc;
}

static fm_status decode_blocks(fms_coder *c, uint8_t *dst, size_t bytes, fm_dtype dtype,
                               fm_span coded)
{
    fm_cursor cur;
    fm_cursor_init(&cur, coded);
    uint8_t number = fm_cursor_u8(&cur), how = fm_cursor_u8(&cur);
    uint32_t rest_bytes = fm_cursor_u32(&cur);
    fm_span rest = fm_cursor_bytes(&cur, rest_bytes);
    FM_TRY(fm_cursor_ok(&cur, "coded leaf", "the exceptions of its blocks"));
    size_t k = 0;
    while (k < FM_ARRAY_LEN(block_types) && block_types[k].number != number)
        k++;
    bool known = k < FM_ARRAY_LEN(block_types) && dtype == FM_F32 && how != FMS_CODEC_NARROW &&
                 how != FMS_CODEC_BLOCKS && !fms_codec_needs_parent(how);
    size_t need = known ? fms_origin_block_bytes(block_types[k].type, dtype, bytes) : 0;
    if (need == 0 || need > FM_LEAF_BYTES)
        return fm_fail(FM_ECORRUPT, "coded leaf: blocks of type %u in codec %u", number, how);
    const fms_leaf_at inner = {block_types[k].type, 0, 0, false};
    fm_span left = fm_span_of(coded.data + cur.pos, fm_cursor_left(&cur));
    FM_TRY(fms_leaf_decode(c, c->narrow[0], need, how, &inner, left, NULL));
    return fms_origin_decode(dst, bytes, dtype, block_types[k].type, fm_span_of(c->narrow[0], need),
                             rest);
}

fm_status fms_leaf_encode(fms_coder *c, fm_buf *out, uint8_t *codec, const fms_leaf_at *at,
                          fm_span leaf, const uint8_t *parent)
{
    fm_assert(leaf.len > 0 && leaf.len <= FM_LEAF_BYTES);
    size_t unit = unit_of(at->dtype);
    if (parent && memcmp(leaf.data, parent, leaf.len) == 0) {
        *codec = FMS_CODEC_SAME;
        return FM_OK;
    }
    if (is_constant(leaf, unit)) {
        *codec = FMS_CODEC_CONST;
        fm_buf_append(out, leaf.data, unit);
        return fm_buf_ok(out);
    }
    if (at->dtype == FM_F32) {
        fm_dtype type = fms_narrow_find(leaf.data, leaf.len);
        if (type != FM_DTYPE_NONE)
            return encode_narrow(c, out, codec, at, type, leaf, parent);
        bool fits = false;
        *codec = FMS_CODEC_BLOCKS;
        fm_status rc = encode_blocks(c, out, at, leaf, &fits);
        if (rc != FM_OK || fits)
            return rc;
    }
    choice b = {out, out->len, leaf.len, FMS_CODEC_RAW, false};
    if (parent)
        try_parent(c, &b, at, leaf, parent);
    /* A delta below 60 % of the leaf is smaller than dense floats get alone: no second trial. */
    if (best_of(&b) > leaf.len / 10 * 6)
        try_palette(c, &b, at, leaf);
    if (best_of(&b) > leaf.len / 10 * 6)
        try_alone(c, &b, at, leaf);
    if (!b.any)
        fm_buf_append(out, leaf.data, leaf.len);
    *codec = b.codec;
    return fm_buf_ok(out);
}

static fm_status decode_const(uint8_t *dst, size_t bytes, fm_span coded)
{
    if (coded.len == 0 || coded.len > MAX_UNIT || bytes % coded.len)
        return fm_fail(FM_ECORRUPT, "coded leaf: a constant of %zu bytes", coded.len);
    for (size_t at = 0; at < bytes; at += coded.len)
        memcpy(dst + at, coded.data, coded.len);
    return FM_OK;
}

static fm_status decode_bytes(fms_coder *c, uint8_t *dst, size_t bytes, fm_span coded)
{
    fm_cursor cur;
    fm_cursor_init(&cur, coded);
    FM_TRY(fms_stream_decode(c->streams, dst, bytes, &cur));
    if (fm_cursor_left(&cur))
        return fm_fail(FM_ECORRUPT, "coded leaf: %zu bytes after the stream", fm_cursor_left(&cur));
    return FM_OK;
}

fm_status fms_leaf_decode(fms_coder *c, uint8_t *dst, size_t dst_bytes, uint8_t codec,
                          const fms_leaf_at *at, fm_span coded, const uint8_t *parent)
{
    fm_dtype dtype = at->dtype;
    fm_assert(dst_bytes > 0 && dst_bytes <= FM_LEAF_BYTES);
    fm_assert(parent || !fms_codec_needs_parent(codec));
    fm_status rc;
    switch (codec) {
    case FMS_CODEC_RAW:
        if (coded.len != dst_bytes)
            return fm_fail(FM_ECORRUPT, "coded leaf: %zu raw bytes, not %zu", coded.len, dst_bytes);
        memcpy(dst, coded.data, dst_bytes);
        return FM_OK;
    case FMS_CODEC_CONST:
        return decode_const(dst, dst_bytes, coded);
    case FMS_CODEC_PLANES:
        return decode_planes(c, dst, dst_bytes, coded);
    case FMS_CODEC_BYTES:
        return decode_bytes(c, dst, dst_bytes, coded);
    case FMS_CODEC_SAME:
        if (coded.len)
            return fm_fail(FM_ECORRUPT, "coded leaf: a copy of the parent has %zu bytes",
                           coded.len);
        memcpy(dst, parent, dst_bytes);
        return FM_OK;
    case FMS_CODEC_DELTA:
        return decode_delta(c, dst, dst_bytes, dtype, coded, parent);
    case FMS_CODEC_NARROW:
    case FMS_CODEC_NARROW_DELTA:
        return decode_narrow(c, dst, dst_bytes, codec, at, coded, parent);
    case FMS_CODEC_MIXED:
        rc = c->mixed_bits ? FM_OK : fms_mixed_new(&c->mixed_bits);
        return rc == FM_OK ? fms_mixed_decode(c->mixed_bits, c->cdelta, dst, dst_bytes, dtype,
                                              coded, parent)
                           : rc;
    case FMS_CODEC_BLOCKS:
        return decode_blocks(c, dst, dst_bytes, dtype, coded);
    case FMS_CODEC_PALETTE:
        return decode_palette(c, dst, dst_bytes, dtype, coded);
    case FMS_CODEC_EXPS:
        return fms_exponents_decode(c->exps, dst, dst_bytes, coded);
    case FMS_CODEC_CDELTA:
        return fms_cdelta_decode(c->cdelta, dst, dst_bytes, dtype, coded, parent);
    case FMS_CODEC_XOR:
        rc = decode_planes(c, dst, dst_bytes, coded);
        if (rc == FM_OK)
            xor_bytes(dst, dst, parent, dst_bytes);
        return rc;
    default:
        return fm_fail(FM_EVERSION, "coded leaf: codec %u needs a newer fmstore", codec);
    }
}
