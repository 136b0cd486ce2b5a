/* pack_scan.c - a pack is a head of 12 bytes, objects, and a SHA-1. An object is a type and size in
 * a number of any length, the place or id of its base where it is a delta, and a zlib stream. */
#include "lineage/pack_scan.h"
#include "store/base/cancel.h"

#include <inttypes.h>
#include <string.h>

#include <zlib.h>

#define HEAD_BYTES 12u
#define SHA1_BYTES 20u
#define DELTA_HEAD_BYTES 20u /* two numbers of at most 10 bytes */
#define OUT_BYTES (64u << 10)
#define MAX_NUMBER_BYTES 10u
#define BY_ID 0x80000000u
#define IDX_IDS 1032u /* where the ids begin in an index of version 2 */
#define PLACE_IS_64 0x80000000u

typedef enum step { IN_HEAD, IN_TYPE, IN_PLACE, IN_ID, IN_BODY, IN_SUM, AT_END } step;

struct fml_pack_scan {
    uint64_t max_bytes, bytes, unpacked;
    step step;
    uint8_t part[SHA1_BYTES]; /* of the head, of an id, of the sum */
    uint8_t head[HEAD_BYTES];
    size_t part_len;
    uint32_t objects, object; /* of the pack; that were begun */
    uint64_t *start;          /* where each object begins */
    uint32_t *base;           /* of each object: 1 + the number of its base, or BY_ID and ... */
    uint16_t *depth;          /* of each object: the deltas below it, by places */
    uint64_t walk;            /* the sum of these */
    size_t start_cap, base_cap, depth_cap;
    fm_buf ids; /* ... the place of its base's id here */
    /* the object at hand */
    git_object_t type;
    uint64_t size, out; /* of the stream: claimed, unpacked so far */
    uint64_t number;    /* being read */
    unsigned number_len;
    uint8_t delta[DELTA_HEAD_BYTES]; /* the first bytes of a delta */
    z_stream z;
    uint8_t room[OUT_BYTES];
};

static void *take(void *ctx, unsigned items, unsigned size)
{
    (void)ctx;
    return fm_calloc(items, size);
}

static void give(void *ctx, void *p)
{
    (void)ctx;
    fm_free(p);
}

fm_status fml_pack_scan_new(fml_pack_scan **out, uint64_t max_bytes)
{
    fml_pack_scan *s = fm_calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return FM_ENOMEM;
    s->max_bytes = max_bytes;
    fm_buf_init(&s->ids, (size_t)FML_PACK_MAX_OBJECTS * SHA1_BYTES);
    s->z.zalloc = take;
    s->z.zfree = give;
    if (inflateInit(&s->z) != Z_OK) {
        fm_free(s);
        return fm_fail(FM_ENOMEM, "zlib does not start");
    }
    *out = s;
    return FM_OK;
}

void fml_pack_scan_free(fml_pack_scan *s)
{
    if (!s)
        return;
    (void)inflateEnd(&s->z);
    fm_buf_release(&s->ids);
    fm_free(s->start);
    fm_free(s->base);
    fm_free(s->depth);
    fm_free(s);
}

static fm_status bad(const fml_pack_scan *s, const char *why)
{
    return fm_fail(FM_ECORRUPT,
                   "the git pack of the other side: object %" PRIu32 " of %" PRIu32
                   ", byte %" PRIu64 ": %s",
                   s->object, s->objects, s->bytes, why);
}

static fm_status unpacks_to(fml_pack_scan *s, uint64_t bytes)
{
    if (bytes > FML_PACK_MAX_OBJECT_BYTES)
        return fm_fail(FM_ELIMIT,
                       "the git pack of the other side: object %" PRIu32 " unpacks to %" PRIu64
                       " bytes, at most %u",
                       s->object, bytes, FML_PACK_MAX_OBJECT_BYTES);
    s->unpacked += bytes;
    if (s->unpacked / FML_PACK_UNPACKED_TIMES > s->max_bytes)
        return fm_fail(FM_ELIMIT,
                       "the git pack of the other side unpacks to more than %u times "
                       "%" PRIu64 " bytes",
                       FML_PACK_UNPACKED_TIMES, s->max_bytes);
    return FM_OK;
}

static fm_status begin_body(fml_pack_scan *s)
{
    s->step = IN_BODY;
    s->out = 0;
    FM_TRY(unpacks_to(s, s->size));
    return inflateReset(&s->z) == Z_OK ? FM_OK : bad(s, "zlib refuses");
}

static void next_object(fml_pack_scan *s)
{
    s->step = s->object == s->objects ? IN_SUM : IN_TYPE;
    s->part_len = 0;
    s->number_len = 0;
}

/* Fills s->part. True: it has n bytes. */
static bool gather(fml_pack_scan *s, fm_span *in, size_t n)
{
    const size_t take_len = FM_MIN(n - s->part_len, in->len);

    memcpy(s->part + s->part_len, in->data, take_len);
    s->part_len += take_len;
    *in = fm_span_of(in->data + take_len, in->len - take_len);
    return s->part_len == n;
}

static fm_status take_head(fml_pack_scan *s, fm_span *in)
{
    if (!gather(s, in, HEAD_BYTES))
        return FM_OK;
    memcpy(s->head, s->part, HEAD_BYTES);
    if (memcmp(s->head, "PACK\0\0\0\2", 8) != 0)
        return fm_fail(FM_ECORRUPT, "the other side sent no git pack of version 2");
    s->objects = (uint32_t)s->head[8] << 24 | (uint32_t)s->head[9] << 16 |
                 (uint32_t)s->head[10] << 8 | s->head[11];
    if (s->objects > FML_PACK_MAX_OBJECTS)
        return fm_fail(FM_ELIMIT,
                       "the git pack of the other side claims %" PRIu32 " objects, at most %u",
                       s->objects, FML_PACK_MAX_OBJECTS);
    next_object(s);
    return FM_OK;
}

static fm_status take_type(fml_pack_scan *s, uint8_t byte, uint64_t at)
{
    if (s->number_len == 0) {
        FM_TRY(fm_grow(&s->start, &s->start_cap, (size_t)s->object + 1, sizeof *s->start));
        FM_TRY(fm_grow(&s->base, &s->base_cap, (size_t)s->object + 1, sizeof *s->base));
        FM_TRY(fm_grow(&s->depth, &s->depth_cap, (size_t)s->object + 1, sizeof *s->depth));
        s->base[s->object] = 0;
        s->depth[s->object] = 0;
        s->start[s->object++] = at;
        s->type = (git_object_t)(byte >> 4 & 7);
        s->size = byte & 15;
    } else {
        if (s->number_len + 1 >= MAX_NUMBER_BYTES)
            return bad(s, "its size is no number");
        s->size |= (uint64_t)(byte & 0x7f) << (4 + 7 * (s->number_len - 1));
    }
    s->number_len++;
    if (byte & 0x80)
        return FM_OK;
    s->number_len = 0;
    s->number = 0;
    s->part_len = 0;
    if (s->type >= GIT_OBJECT_COMMIT && s->type <= GIT_OBJECT_TAG)
        return begin_body(s);
    if (s->type != GIT_OBJECT_OFS_DELTA && s->type != GIT_OBJECT_REF_DELTA)
        return bad(s, "no such kind of object");
    s->step = s->type == GIT_OBJECT_OFS_DELTA ? IN_PLACE : IN_ID;
    return FM_OK;
}

/* The number of the object that begins there, of the first `count`; `count`: none does. */
static uint32_t number_at(const fml_pack_scan *s, uint64_t at, uint32_t count)
{
    uint32_t low = 0, high = count;

    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        if (s->start[mid] == at)
            return mid;
        if (s->start[mid] < at)
            low = mid + 1;
        else
            high = mid;
    }
    return count;
}

static fm_status too_long(void)
{
    return fm_fail(FM_ELIMIT, "the git pack of the other side has a chain of more than %u deltas",
                   FML_PACK_MAX_CHAIN);
}

static fm_status take_depth(fml_pack_scan *s, uint32_t object, uint32_t base)
{
    if (s->depth[base] >= FML_PACK_MAX_CHAIN)
        return too_long();
    s->depth[object] = (uint16_t)(s->depth[base] + 1);
    s->walk += s->depth[object];
    if (s->walk > FML_PACK_CHAIN_SLACK + (uint64_t)FML_PACK_MEAN_CHAIN * s->object)
        return fm_fail(FM_ELIMIT,
                       "the git pack of the other side has chains of more than %u deltas on "
                       "average; 'git repack -adf' there makes shorter ones",
                       FML_PACK_MEAN_CHAIN);
    return FM_OK;
}

static fm_status take_place(fml_pack_scan *s, uint8_t byte)
{
    const uint64_t here = s->start[s->object - 1];

    if (s->number_len++ >= MAX_NUMBER_BYTES - 1)
        return bad(s, "the place of its base is no number");
    s->number = s->number_len == 1 ? byte & 0x7fu : (s->number + 1) << 7 | (byte & 0x7fu);
    if (byte & 0x80)
        return FM_OK;
    const uint32_t last = s->object - 1;
    const uint32_t base = s->number > here ? last : number_at(s, here - s->number, last);
    if (base == last)
        return bad(s, "its base is no object of the pack");
    s->base[last] = base + 1;
    FM_TRY(take_depth(s, last, base));
    return begin_body(s);
}

static fm_status take_id(fml_pack_scan *s)
{
    s->base[s->object - 1] = BY_ID | (uint32_t)(s->ids.len / SHA1_BYTES);
    fm_buf_append(&s->ids, s->part, SHA1_BYTES);
    FM_TRY(fm_buf_ok(&s->ids));
    return begin_body(s);
}

/* A number of a delta's head; false: it goes on beyond what is here. */
static bool delta_number(const uint8_t *p, size_t len, size_t *at, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; *at < len && shift < 63; shift += 7) {
        const uint8_t byte = p[(*at)++];
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

static fm_status end_body(fml_pack_scan *s)
{
    if (s->out != s->size)
        return bad(s, "it is shorter than it claims");
    if (s->type == GIT_OBJECT_OFS_DELTA || s->type == GIT_OBJECT_REF_DELTA) {
        const size_t len = (size_t)FM_MIN(s->out, (uint64_t)DELTA_HEAD_BYTES);
        size_t at = 0;
        uint64_t base, result;
        if (!delta_number(s->delta, len, &at, &base) || !delta_number(s->delta, len, &at, &result))
            return bad(s, "its delta has no head");
        FM_TRY(unpacks_to(s, base > FML_PACK_MAX_OBJECT_BYTES ? base : result));
    }
    next_object(s);
    return FM_OK;
}

static fm_status take_body(fml_pack_scan *s, fm_span *in)
{
    const size_t len = FM_MIN(in->len, (size_t)1 << 20);

    s->z.next_in = (z_const Bytef *)(uintptr_t)in->data;
    s->z.avail_in = (uInt)len;
    for (;;) {
        s->z.next_out = s->room;
        s->z.avail_out = OUT_BYTES;
        int code = inflate(&s->z, Z_NO_FLUSH);
        const size_t got = OUT_BYTES - s->z.avail_out;
        if (code == Z_MEM_ERROR)
            return FM_ENOMEM;
        if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
            return bad(s, "its zlib stream is damaged");
        if (s->out < DELTA_HEAD_BYTES)
            memcpy(s->delta + s->out, s->room,
                   (size_t)FM_MIN((uint64_t)got, DELTA_HEAD_BYTES - s->out));
        s->out += got;
        if (s->out > s->size)
            return bad(s, "it is longer than it claims");
        if (code == Z_STREAM_END || (s->z.avail_in == 0 && s->z.avail_out > 0)) {
            const size_t used = len - s->z.avail_in;
            *in = fm_span_of(in->data + used, in->len - used);
            return code == Z_STREAM_END ? end_body(s) : FM_OK;
        }
        if (code == Z_BUF_ERROR && got == 0)
            return bad(s, "its zlib stream does not go on");
    }
}

static fm_status take_sum(fml_pack_scan *s, fm_span *in)
{
    uint8_t sum[SHA1_BYTES];

    if (!gather(s, in, SHA1_BYTES))
        return FM_OK;
    s->step = AT_END;
    if (s->objects > 0)
        return FM_OK;
    FM_TRY(fm_sha1(sum, s->head, HEAD_BYTES));
    return memcmp(sum, s->part, SHA1_BYTES) == 0 ? FM_OK : bad(s, "the checksum is wrong");
}

static fm_status take_step(fml_pack_scan *s, fm_span *in)
{
    const uint8_t byte = in->data[0];

    switch (s->step) {
    case IN_HEAD:
        return take_head(s, in);
    case IN_TYPE:
    case IN_PLACE:
        *in = fm_span_of(in->data + 1, in->len - 1);
        return s->step == IN_TYPE ? take_type(s, byte, s->bytes) : take_place(s, byte);
    case IN_ID:
        return gather(s, in, SHA1_BYTES) ? take_id(s) : FM_OK;
    case IN_BODY:
        return take_body(s, in);
    case IN_SUM:
        return take_sum(s, in);
    case AT_END:
        break;
    }
    return bad(s, "more bytes come after the end");
}

fm_status fml_pack_scan_bytes(fml_pack_scan *s, fm_span bytes)
{
    if (bytes.len > s->max_bytes - s->bytes)
        return fm_fail(FM_ELIMIT, "the git pack of the other side is larger than %" PRIu64 " bytes",
                       s->max_bytes);
    while (bytes.len > 0) {
        const size_t before = bytes.len;
        FM_TRY(fm_go_on());
        FM_TRY(take_step(s, &bytes));
        s->bytes += before - bytes.len;
    }
    return FM_OK;
}

fm_status fml_pack_scan_end(const fml_pack_scan *s, uint32_t *objects)
{
    if (s->step != AT_END)
        return bad(s, "the pack ends here");
    *objects = s->objects;
    return FM_OK;
}

/* ---- chains ---- */

typedef struct chains {
    const fml_pack_scan *s;
    fm_span idx;
    uint16_t *depth; /* 1 + the number of deltas below each object; 0: not known yet */
} chains;

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* The number of the object of the nth id of the index. */
static uint32_t number_of(const chains *c, uint32_t nth)
{
    const size_t n = c->s->objects;
    const uint8_t *places = c->idx.data + IDX_IDS + n * (SHA1_BYTES + 4);
    uint64_t at = be32(places + (size_t)4 * nth);

    if (at & PLACE_IS_64) {
        const size_t far = n * 4 + (size_t)8 * (at & ~PLACE_IS_64);
        if (far + 8 > c->idx.len - IDX_IDS - n * (SHA1_BYTES + 4))
            return c->s->objects;
        at = (uint64_t)be32(places + far) << 32 | be32(places + far + 4);
    }
    return number_at(c->s, at, c->s->objects);
}

/* The number of an object's base; that of all objects: it has none. */
static uint32_t base_of(const chains *c, uint32_t object)
{
    const uint32_t base = c->s->base[object];
    uint32_t low = 0, high = c->s->objects;

    if (!(base & BY_ID))
        return base == 0 ? c->s->objects : base - 1;
    const uint8_t *id = c->s->ids.data + (size_t)SHA1_BYTES * (base & ~BY_ID);
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        const int order = memcmp(c->idx.data + IDX_IDS + (size_t)SHA1_BYTES * mid, id, SHA1_BYTES);
        if (order == 0)
            return number_of(c, mid);
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return c->s->objects;
}

static fm_status measure(const chains *c, uint32_t object)
{
    uint32_t below = 0, at = object;

    while (at != c->s->objects && c->depth[at] == 0 && below <= FML_PACK_MAX_CHAIN + 1) {
        at = base_of(c, at);
        below++;
    }
    if (at != c->s->objects)
        below += c->depth[at];
    if (below > FML_PACK_MAX_CHAIN + 1)
        return too_long();
    for (at = object; at != c->s->objects && c->depth[at] == 0; at = base_of(c, at))
        c->depth[at] = (uint16_t)below--;
    return FM_OK;
}

fm_status fml_pack_scan_chains(const fml_pack_scan *s, fm_span idx)
{
    chains c = {s, idx, NULL};
    fm_status rc = FM_OK;

    if (idx.len < IDX_IDS + (size_t)s->objects * (SHA1_BYTES + 8) + 2 * SHA1_BYTES)
        return bad(s, "its index is cut");
    c.depth = fm_calloc((size_t)s->objects + 1, sizeof *c.depth);
    if (!c.depth)
        return FM_ENOMEM;
    for (uint32_t i = 0; rc == FM_OK && i < s->objects; i++)
        rc = measure(&c, i);
    fm_free(c.depth);
    return rc;
}
