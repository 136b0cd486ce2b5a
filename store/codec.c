/* codec.c - choosing and running the codec of a leaf; the one file that knows zstd.
 *
 * An entropy stream is u8 mode | u32 coded bytes | bytes, its decoded length known from outside.
 * Planes: floats are first rotated left by one bit, so that the exponent fills one byte and the
 * sign joins the mantissa, whose noise it is. */
#include "store/codec.h"

#include <string.h>
#include <zstd.h>

#include "store/base/mem.h"
#include "store/codec_cdelta.h"
#include "store/codec_exps.h"
#include "store/codec_rans.h"
#include "store/delta.h"

enum { STREAM_RAW = 0, STREAM_CONST = 1, STREAM_ZSTD = 2, STREAM_RANS = 3, STREAM_HEAD = 5 };
enum { PLANES_PLAIN = 0, PLANES_ROTATED = 1 };
enum { MAX_UNIT = 256 };
/* Buckets are joined until they hold this many elements: a table costs about 60 bytes. */
enum { GROUP_MIN = 4096 };
enum { ZSTD_LEVEL = 1, SAMPLE_MIN = 2048 };

struct fmi_coder {
    ZSTD_CCtx *cctx;
    ZSTD_DCtx *dctx;
    uint8_t *plane;      /* FM_LEAF_BYTES: all planes of a leaf, one after the other */
    uint8_t *mixed;      /* FM_LEAF_BYTES: child XOR parent */
    uint8_t *scratch[2]; /* FM_LEAF_BYTES each, the caller's */
    fmi_cdelta *cdelta;
    fmi_exps *exps;
    uint8_t *coded; /* 2 x FM_LEAF_BYTES: one stream coded in two ways */
    fm_buf trial;
};

bool fmi_codec_needs_parent(uint8_t codec)
{
    return codec == FMI_CODEC_SAME || codec == FMI_CODEC_DELTA || codec == FMI_CODEC_XOR ||
           codec == FMI_CODEC_CDELTA;
}

const char *fmi_codec_name(uint8_t codec)
{
    static const char *const name[FMI_CODEC_COUNT] = {"raw",   "const", "planes", "bytes", "same",
                                                      "delta", "xor",   "exps",   "cdelta"};
    return codec < FMI_CODEC_COUNT ? name[codec] : "unknown";
}

fm_status fmi_coder_new(fmi_coder **out)
{
    *out = NULL;
    fmi_coder *c = fm_calloc(1, sizeof *c);
    if (!c)
        return FM_ENOMEM;
    fm_buf_init(&c->trial, (size_t)4 * FM_LEAF_BYTES);
    c->cctx = ZSTD_createCCtx();
    c->dctx = ZSTD_createDCtx();
    c->plane = fm_malloc(FM_LEAF_BYTES);
    c->mixed = fm_malloc(FM_LEAF_BYTES);
    c->scratch[0] = fm_malloc(FM_LEAF_BYTES);
    c->scratch[1] = fm_malloc(FM_LEAF_BYTES);
    c->coded = fm_malloc((size_t)2 * FM_LEAF_BYTES);
    if (!c->plane || !c->mixed || !c->scratch[0] || !c->scratch[1] || !c->coded || !c->cctx ||
        !c->dctx) {
        fmi_coder_free(c);
        return fm_fail(FM_ENOMEM, "out of memory");
    }
    fm_status rc = fmi_cdelta_new(&c->cdelta);
    if (rc == FM_OK)
        rc = fmi_exps_new(&c->exps);
    if (rc != FM_OK) {
        fmi_coder_free(c);
        return rc;
    }
    *out = c;
    return FM_OK;
}

void fmi_coder_free(fmi_coder *c)
{
    if (!c)
        return;
    ZSTD_freeCCtx(c->cctx);
    ZSTD_freeDCtx(c->dctx);
    fm_free(c->plane);
    fm_free(c->mixed);
    fm_free(c->scratch[0]);
    fm_free(c->scratch[1]);
    fm_free(c->coded);
    fmi_cdelta_free(c->cdelta);
    fmi_exps_free(c->exps);
    fm_buf_release(&c->trial);
    fm_free(c);
}

uint8_t *fmi_coder_scratch(fmi_coder *c, unsigned which)
{
    fm_assert(which < 2);
    return c->scratch[which];
}

/* ==== entropy streams ====================================================================== */

static void histogram_of(uint32_t h[256], const uint8_t *src, size_t n)
{
    uint32_t part[4][256] = {{0}}; /* four: equal neighbours would wait on one counter */
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        part[0][src[i]]++;
        part[1][src[i + 1]]++;
        part[2][src[i + 2]]++;
        part[3][src[i + 3]]++;
    }
    for (; i < n; i++)
        part[0][src[i]]++;
    for (unsigned s = 0; s < 256; s++)
        h[s] = part[0][s] + part[1][s] + part[2][s] + part[3][s];
}

/* Whether a histogram is so flat that no order-0 coder gains: the collision probability bounds
 * the entropy from below (here at 7.97 bits), and needs no logarithm. */
static bool is_flat(const uint32_t h[256], size_t n)
{
    uint64_t squares = 0; /* n <= 2^20, so at most 2^40 */
    for (unsigned s = 0; s < 256; s++)
        squares += (uint64_t)h[s] * h[s];
    return n >= 4096 && squares * 256 * 50 <= (uint64_t)n * n * 51;
}

static void put_stream(fm_buf *out, uint8_t mode, const uint8_t *data, size_t len)
{
    fm_buf_u8(out, mode);
    fm_buf_u32(out, (uint32_t)len);
    fm_buf_append(out, data, len);
}

/* zstd wins by repeats, rans by exact probabilities. Where the middle eighth of a stream shows no
 * gain by repeats, the whole is not tried: that trial would be most of the time of an import. */
static bool zstd_may_win(fmi_coder *c, uint8_t *room, const uint8_t *src, size_t n, size_t best)
{
    size_t sample = n / 8;
    if (sample < SAMPLE_MIN)
        return true;
    size_t z = ZSTD_compressCCtx(c->cctx, room, sample, src + (n - sample) / 2, sample, ZSTD_LEVEL);
    return !ZSTD_isError(z) && z < best / 8;
}

static void encode_stream(fmi_coder *c, fm_buf *out, const uint8_t *src, size_t n)
{
    uint32_t h[256];
    histogram_of(h, src, n);
    if (n > 0 && h[src[0]] == n) {
        put_stream(out, STREAM_CONST, src, 1);
        return;
    }
    if (n == 0 || is_flat(h, n)) {
        put_stream(out, STREAM_RAW, src, n);
        return;
    }
    size_t rans = fmi_rans_encode(c->coded, n, src, n, h);
    size_t best = rans ? rans : n;
    uint8_t mode = rans ? STREAM_RANS : STREAM_RAW;
    const uint8_t *data = rans ? c->coded : src;
    uint8_t *second = c->coded + rans;
    size_t z = zstd_may_win(c, second, src, n, best)
                   ? ZSTD_compressCCtx(c->cctx, second, best, src, n, ZSTD_LEVEL)
                   : best;
    if (!ZSTD_isError(z) && z < best) {
        best = z;
        mode = STREAM_ZSTD;
        data = second;
    }
    put_stream(out, mode, data, best);
}

static fm_status decode_stream(fmi_coder *c, uint8_t *dst, size_t n, fm_cursor *cur)
{
    uint8_t mode = fm_cursor_u8(cur);
    uint32_t len = fm_cursor_u32(cur);
    fm_span s = fm_cursor_bytes(cur, len);
    fm_status rc = fm_cursor_ok(cur, "coded leaf", "an entropy stream");
    if (rc != FM_OK)
        return rc;
    if (mode == STREAM_RAW && s.len == n) {
        if (n)
            memcpy(dst, s.data, n);
        return FM_OK;
    }
    if (mode == STREAM_CONST && s.len == 1) {
        memset(dst, s.data[0], n);
        return FM_OK;
    }
    if (mode == STREAM_RANS)
        return fmi_rans_decode(dst, n, s.data, s.len);
    if (mode == STREAM_ZSTD && ZSTD_decompressDCtx(c->dctx, dst, n, s.data, s.len) == n)
        return FM_OK;
    return fm_fail(FM_ECORRUPT,
                   "coded leaf: entropy stream of mode %u, %zu bytes does not give %zu", mode,
                   s.len, n);
}

/* ==== planes =============================================================================== */

static size_t unit_of(fm_dtype dtype)
{
    return dtype == FM_DTYPE_NONE ? 1 : fm_dtype_get(dtype)->block_bytes;
}

static uint8_t transform_of(fm_dtype dtype)
{
    return dtype == FM_F32 || dtype == FM_BF16 || dtype == FM_F16 ? PLANES_ROTATED : PLANES_PLAIN;
}

/* Byte b of every unit goes to dst + b * n. */
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
static void encode_planes(fmi_coder *c, fm_buf *out, fm_dtype dtype, fm_span leaf)
{
    size_t unit = unit_of(dtype), n = leaf.len / unit;
    fm_assert(unit <= MAX_UNIT);
    uint8_t transform = transform_of(dtype);
    fm_buf_u16(out, (uint16_t)unit);
    fm_buf_u8(out, transform);
    split_planes(c->plane, leaf.data, unit, n, transform);
    for (size_t b = 0; b < unit; b++)
        encode_stream(c, out, c->plane + b * n, n);
    fm_buf_append(out, leaf.data + n * unit, leaf.len - n * unit);
}

static fm_status decode_planes(fmi_coder *c, uint8_t *dst, size_t bytes, fm_span coded)
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
        fm_status rc = decode_stream(c, c->plane + b * n, n, &cur);
        if (rc != FM_OK)
            return rc;
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

/* last[g]: the highest exponent of group g. Returns the number of groups. */
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
static void encode_delta(fmi_coder *c, fm_buf *out, fm_dtype dtype, fm_span leaf,
                         const uint8_t *parent)
{
    size_t width = fmi_delta_width(dtype), n = leaf.len / width;
    uint32_t count[256];
    uint8_t *plane[FMI_DELTA_MAX_WIDTH] = {NULL};
    for (size_t b = 0; b < width; b++)
        plane[b] = c->plane + b * n;
    fmi_delta_count(count, dtype, parent, n);
    fmi_delta_split(plane, dtype, leaf.data, parent, count, n);
    uint8_t last[256];
    unsigned groups = group_exponents(last, count);
    fm_buf_u8(out, (uint8_t)(groups - 1));
    fm_buf_append(out, last, groups);
    size_t at = 0;
    for (unsigned g = 0, first = 0; g < groups; first = last[g++] + 1u) {
        size_t held = group_elems(count, first, last[g]);
        for (size_t b = 0; b < width; b++)
            encode_stream(c, out, plane[b] + at, held);
        at += held;
    }
}

static fm_status decode_delta(fmi_coder *c, uint8_t *dst, size_t bytes, fm_dtype dtype,
                              fm_span coded, const uint8_t *parent)
{
    if (!fmi_delta_applies(dtype) || bytes % fmi_delta_width(dtype))
        return fm_fail(FM_ECORRUPT, "coded leaf: a delta of this dtype or length is unknown");
    size_t width = fmi_delta_width(dtype), n = bytes / width;
    uint32_t count[256];
    uint8_t *plane[FMI_DELTA_MAX_WIDTH] = {NULL};
    for (size_t b = 0; b < width; b++)
        plane[b] = c->plane + b * n;
    fmi_delta_count(count, dtype, parent, n);
    fm_cursor cur;
    fm_cursor_init(&cur, coded);
    unsigned groups = fm_cursor_u8(&cur) + 1u;
    fm_span last = fm_cursor_bytes(&cur, groups);
    fm_status rc = fm_cursor_ok(&cur, "coded leaf", "the table of groups");
    if (rc != FM_OK)
        return rc;
    if (last.data[groups - 1] != 255)
        return fm_fail(FM_ECORRUPT, "coded leaf: the groups of a delta end at exponent %u",
                       last.data[groups - 1]);
    size_t at = 0;
    for (unsigned g = 0, first = 0; g < groups; first = last.data[g++] + 1u) {
        if (last.data[g] < first)
            return fm_fail(FM_ECORRUPT, "coded leaf: the groups of a delta are out of order");
        size_t held = group_elems(count, first, last.data[g]);
        for (size_t b = 0; b < width; b++) {
            rc = decode_stream(c, plane[b] + at, held, &cur);
            if (rc != FM_OK)
                return rc;
        }
        at += held;
    }
    if (fm_cursor_left(&cur))
        return fm_fail(FM_ECORRUPT, "coded leaf: %zu bytes after the delta", fm_cursor_left(&cur));
    const uint8_t *const joined[FMI_DELTA_MAX_WIDTH] = {plane[0], plane[1], plane[2], plane[3]};
    fmi_delta_join(dst, dtype, joined, parent, count, n);
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

/* A leaf's coded bytes so far: out from begin on, by this codec. */
typedef struct choice {
    fm_buf *out;
    size_t begin, floor; /* floor: bytes of the leaf, which raw takes */
    uint8_t codec;
    bool any; /* out holds something; else raw is the best so far */
} choice;

static size_t best_of(const choice *b)
{
    return b->any ? b->out->len - b->begin : b->floor;
}

/* Where the next codec writes: straight to out while that is empty, to save a copy. */
static fm_buf *next_room(fmi_coder *c, const choice *b)
{
    if (!b->any)
        return b->out;
    fm_buf_clear(&c->trial);
    return &c->trial;
}

/* Keeps what was written if it is the smallest so far. */
static void judge(fmi_coder *c, choice *b, uint8_t tried)
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

static void try_parent(fmi_coder *c, choice *b, const fmi_leaf_at *at, fm_span leaf,
                       const uint8_t *parent)
{
    fm_buf *to = next_room(c, b);
    if (fmi_cdelta_applies(at, leaf.len)) {
        fmi_cdelta_encode(c->cdelta, to, at, leaf, parent);
        judge(c, b, FMI_CODEC_CDELTA);
    } else if (fmi_delta_applies(at->dtype)) {
        encode_delta(c, to, at->dtype, leaf, parent);
        judge(c, b, FMI_CODEC_DELTA);
    } else {
        xor_bytes(c->mixed, leaf.data, parent, leaf.len);
        encode_planes(c, to, at->dtype, fm_span_of(c->mixed, leaf.len));
        judge(c, b, FMI_CODEC_XOR);
    }
}

static void try_alone(fmi_coder *c, choice *b, const fmi_leaf_at *at, fm_span leaf)
{
    size_t unit = unit_of(at->dtype);
    if (fmi_exps_encode(c->exps, next_room(c, b), at, leaf)) {
        judge(c, b, FMI_CODEC_EXPS);
        return;
    }
    if (unit > 1) {
        encode_planes(c, next_room(c, b), at->dtype, leaf);
        judge(c, b, FMI_CODEC_PLANES);
    }
    if (unit == 1 || unit > 8) {
        encode_stream(c, next_room(c, b), leaf.data, leaf.len);
        judge(c, b, FMI_CODEC_BYTES);
    }
}

fmi_leaf_at fmi_leaf_at_of(fm_dtype dtype, const fm_shape *shape, uint64_t i)
{
    fmi_leaf_at at = {dtype, 0, i * FM_LEAF_BYTES, false};
    if (dtype == FM_DTYPE_NONE || !shape || shape->rank == 0)
        return at;
    const fm_dtype_info *d = fm_dtype_get(dtype);
    at.row_bytes = shape->dim[shape->rank - 1] / d->block_elems * d->block_bytes;
    return at;
}

fm_status fmi_leaf_encode(fmi_coder *c, fm_buf *out, uint8_t *codec, const fmi_leaf_at *at,
                          fm_span leaf, const uint8_t *parent)
{
    fm_assert(leaf.len > 0 && leaf.len <= FM_LEAF_BYTES);
    size_t unit = unit_of(at->dtype);
    if (parent && memcmp(leaf.data, parent, leaf.len) == 0) {
        *codec = FMI_CODEC_SAME;
        return FM_OK;
    }
    if (is_constant(leaf, unit)) {
        *codec = FMI_CODEC_CONST;
        fm_buf_append(out, leaf.data, unit);
        return fm_buf_ok(out);
    }
    choice b = {out, out->len, leaf.len, FMI_CODEC_RAW, false};
    if (parent)
        try_parent(c, &b, at, leaf, parent);
    /* A delta below 60 % is below what dense floats reach alone: the second trial is spared. */
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

static fm_status decode_bytes(fmi_coder *c, uint8_t *dst, size_t bytes, fm_span coded)
{
    fm_cursor cur;
    fm_cursor_init(&cur, coded);
    fm_status rc = decode_stream(c, dst, bytes, &cur);
    if (rc == FM_OK && fm_cursor_left(&cur))
        return fm_fail(FM_ECORRUPT, "coded leaf: %zu bytes after the stream", fm_cursor_left(&cur));
    return rc;
}

fm_status fmi_leaf_decode(fmi_coder *c, uint8_t *dst, size_t dst_bytes, uint8_t codec,
                          const fmi_leaf_at *at, fm_span coded, const uint8_t *parent)
{
    fm_dtype dtype = at->dtype;
    fm_assert(dst_bytes > 0 && dst_bytes <= FM_LEAF_BYTES);
    fm_assert(parent || !fmi_codec_needs_parent(codec));
    fm_status rc;
    switch (codec) {
    case FMI_CODEC_RAW:
        if (coded.len != dst_bytes)
            return fm_fail(FM_ECORRUPT, "coded leaf: %zu raw bytes, not %zu", coded.len, dst_bytes);
        memcpy(dst, coded.data, dst_bytes);
        return FM_OK;
    case FMI_CODEC_CONST:
        return decode_const(dst, dst_bytes, coded);
    case FMI_CODEC_PLANES:
        return decode_planes(c, dst, dst_bytes, coded);
    case FMI_CODEC_BYTES:
        return decode_bytes(c, dst, dst_bytes, coded);
    case FMI_CODEC_SAME:
        if (coded.len)
            return fm_fail(FM_ECORRUPT, "coded leaf: a copy of the parent has %zu bytes",
                           coded.len);
        memcpy(dst, parent, dst_bytes);
        return FM_OK;
    case FMI_CODEC_DELTA:
        return decode_delta(c, dst, dst_bytes, dtype, coded, parent);
    case FMI_CODEC_EXPS:
        return fmi_exps_decode(c->exps, dst, dst_bytes, coded);
    case FMI_CODEC_CDELTA:
        return fmi_cdelta_decode(c->cdelta, dst, dst_bytes, dtype, coded, parent);
    case FMI_CODEC_XOR:
        rc = decode_planes(c, dst, dst_bytes, coded);
        if (rc == FM_OK)
            xor_bytes(dst, dst, parent, dst_bytes);
        return rc;
    default:
        return fm_fail(FM_EVERSION, "coded leaf: codec %u needs a newer fmstore", codec);
    }
}
