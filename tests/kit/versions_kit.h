/* versions_kit.h - versions sent from one repository to another, and packs made by hand. */
#ifndef FM_TESTS_KIT_VERSIONS_H
#define FM_TESTS_KIT_VERSIONS_H

#include "lineage/exchange.h"
#include "tests/kit/lineage_kit.h"

static inline fm_status kit_gather(void *ctx, const void *data, size_t len)
{
    fm_buf_append(ctx, data, len);
    return fm_buf_ok(ctx);
}

/* Sends want without what have reaches; returns the number of objects. */
static inline uint64_t kit_send(fm_repo *from, fm_buf *out, const fm_oid *want, size_t wants,
                                const fm_oid *have, size_t haves)
{
    const fm_exchange_ask ask = {want, have, wants, haves};
    uint64_t objects = 0;

    fm_buf_init(out, 0);
    tk_ok(fm_git_send(from, &ask, kit_gather, out, &objects));
    return objects;
}

/* In pieces of `piece` bytes. */
static inline fm_status kit_take(fm_repo *to, fm_span pack, size_t piece)
{
    fm_git_intake *in = NULL;
    uint64_t objects = 0;
    fm_status rc = fm_git_intake_open(&in, to, 0);

    for (size_t at = 0; rc == FM_OK && at < pack.len; at += piece)
        rc = fm_git_intake_bytes(in, pack.data + at, FM_MIN(piece, pack.len - at));
    if (rc == FM_OK)
        rc = fm_git_intake_end(in, &objects);
    fm_git_intake_close(in);
    return rc;
}

static inline fm_ref_wish kit_wish(const char *name, const fm_oid *to, const fm_oid *old)
{
    fm_ref_wish w = {.name = name};

    if (to)
        w.new_oid = *to;
    if (old)
        w.old = *old;
    return w;
}

/* The wish's own outcome. */
static inline fm_status kit_move(fm_repo *r, fm_ref_wish *w)
{
    tk_ok(fm_refs_move(r, w, 1, false, "push"));
    return w->status;
}

/* All of `name` at `from` goes to `to`, which has its objects already. */
static inline void kit_carry(fm_repo *from, fm_repo *to, const char *name)
{
    fm_oid at, old = {{0}}, *have = NULL;
    size_t haves = 0;
    fm_buf pack;
    fm_ref_wish w;

    tk_ok(fm_ref_read(from, &at, name));
    tk_ok(fm_exchange_haves(to, &have, &haves, 64));
    kit_send(from, &pack, &at, 1, have, haves);
    tk_ok(kit_take(to, fm_buf_span(&pack), pack.len));
    if (fm_ref_read(to, &old, name) != FM_OK)
        memset(&old, 0, sizeof old);
    w = kit_wish(name, &at, &old);
    if (kit_move(to, &w) != FM_OK)
        print_message("%s\n", w.text);
    assert_int_equal(w.status, FM_OK);
    fm_buf_release(&pack);
    fm_free(have);
}

/* ---- packs by hand ---- */

static inline void kit_pack_begin(fm_buf *b, uint32_t objects)
{
    const uint8_t head[12] = {'P',
                              'A',
                              'C',
                              'K',
                              0,
                              0,
                              0,
                              2,
                              (uint8_t)(objects >> 24),
                              (uint8_t)(objects >> 16),
                              (uint8_t)(objects >> 8),
                              (uint8_t)objects};

    fm_buf_init(b, 0);
    fm_buf_append(b, head, sizeof head);
}

/* The head of an object: type and claimed size. */
static inline void kit_pack_head(fm_buf *b, unsigned type, uint64_t size)
{
    uint8_t byte = (uint8_t)(type << 4 | (size & 15));

    for (size >>= 4; size > 0; size >>= 7) {
        fm_buf_u8(b, byte | 0x80);
        byte = size & 0x7f;
    }
    fm_buf_u8(b, byte);
}

/* A zlib stream of one stored block, at most 65,535 bytes. */
static inline void kit_pack_body(fm_buf *b, const void *data, size_t len)
{
    const uint8_t *p = data;
    uint32_t low = 1, high = 0;

    fm_buf_u8(b, 0x78);
    fm_buf_u8(b, 0x01);
    fm_buf_u8(b, 1);
    fm_buf_u16(b, (uint16_t)len);
    fm_buf_u16(b, (uint16_t)~len);
    fm_buf_append(b, data, len);
    for (size_t i = 0; i < len; i++) {
        low = (low + p[i]) % 65521;
        high = (high + low) % 65521;
    }
    fm_buf_u8(b, (uint8_t)(high >> 8));
    fm_buf_u8(b, (uint8_t)high);
    fm_buf_u8(b, (uint8_t)(low >> 8));
    fm_buf_u8(b, (uint8_t)low);
}

static inline void kit_pack_object(fm_buf *b, unsigned type, const void *data, size_t len)
{
    kit_pack_head(b, type, len);
    kit_pack_body(b, data, len);
}

static inline void kit_pack_end(fm_buf *b)
{
    uint8_t sum[20];

    tk_ok(fm_sha1(sum, b->data, b->len));
    fm_buf_append(b, sum, sizeof sum);
    tk_ok(fm_buf_ok(b));
}

#endif
