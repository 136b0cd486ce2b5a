/* Records go to a bucket and come back as they lay: packs that end where they must, uploads in
 * parts, ranges in any order, from any offset, over gaps and over the ends of requests. */
#include "remote/bucket/bucket.h"
#include "remote/bucket/bucket_impl.h"
#include "remote/remote.h"
#include "store/pack/pack.h"
#include "tests/kit/exchange_kit.h"

static xk_store from; /* every kind of record */

static int set_up(void **state)
{
    (void)state;
    from = xk_full();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    xk_release(&from);
    return 0;
}

typedef struct place {
    char *dir;
    fmr_bucket *b;
    uint64_t sent;
} place;

static fm_status count_sent(void *ctx, const void *data, size_t len)
{
    (void)data;
    *(uint64_t *)ctx += len;
    return FM_OK;
}

static fmr_bucket *open_at(const char *dir, uint64_t pack_bytes, uint64_t part_bytes)
{
    fmr_far *f;
    tk_ok(fmr_open_bucket_folder(&f, dir, FMR_WRITE));
    fmr_bucket *b = fmr_bucket_of(f);
    b->pack_bytes = pack_bytes;
    b->part_bytes = part_bytes;
    b->piece_bytes = 100001;
    return b;
}

static void put_all(place *p)
{
    static const uint64_t offset[XK_OBJECTS];
    fmr_load load = {from.s, from.info, offset, XK_OBJECTS, count_sent, &p->sent};
    p->sent = 0;
    tk_ok(p->b->far.ops->put(&p->b->far, &load));
}

/* As a move of refs does it. */
static void list_packs(fmr_bucket *b)
{
    for (size_t i = 0; i < b->fresh.packs; i++)
        tk_ok(fmr_manifest_add_pack(&b->manifest, &b->fresh.pack[i]));
    b->has_heads = false;
}

static place full_bucket(uint64_t pack_bytes, uint64_t part_bytes)
{
    place p = {.dir = tk_scratch()};
    tk_ok(fm_remote_make_bucket(p.dir));
    p.b = open_at(p.dir, pack_bytes, part_bytes);
    put_all(&p);
    list_packs(p.b);
    return p;
}

static void release(place *p)
{
    p->b->far.ops->close(&p->b->far);
    fm_free(p->dir);
}

/* ==== packs ==== */

static fm_status count_record(void *ctx, uint64_t offset, const fms_record *r)
{
    (void)offset;
    (void)r;
    ++*(size_t *)ctx;
    return FM_OK;
}

static fm_status no_fault(void *ctx, const char *text)
{
    (void)ctx;
    fail_msg("%s", text);
    return FM_OK;
}

/* Each pack is one of FORMAT.md, named by its bytes. */
static void check_packs(const place *p, size_t packs)
{
    size_t records = 0;
    assert_int_equal(p->b->fresh.packs, packs);
    for (size_t i = 0; i < packs; i++) {
        char name[FMR_OBJECT_MAX], hex[FM_HEX_CHARS + 1];
        const fms_pack_visitor v = {&records, count_record, no_fault};
        fm_file_map map;
        bool intact;
        fmr_pack_name(name, &p->b->fresh.pack[i].name);
        fm_digest_hex(&p->b->fresh.pack[i].name, hex);
        char *path = fm_path_join(p->dir, name);
        tk_ok(fm_map_file(&map, path));
        assert_int_equal(map.len, p->b->fresh.pack[i].bytes);
        tk_ok(fms_pack_is_intact(fm_span_of(map.data, map.len), hex, &intact));
        assert_true(intact);
        tk_ok(fms_pack_walk(fm_span_of(map.data, map.len), name, &v));
        fm_unmap_file(&map);
        fm_free(path);
    }
    assert_int_equal(records, XK_OBJECTS);
}

TEST(packs_end_where_they_must)
{
    uint64_t all = 0;
    for (int i = 0; i < XK_OBJECTS; i++)
        all += from.info[i].stored_bytes;
    place one = full_bucket(UINT64_MAX, 1000), each = full_bucket(1, 65536);
    assert_int_equal(one.sent, all);
    check_packs(&one, 1);
    check_packs(&each, XK_OBJECTS);
    release(&one);
    release(&each);
}

TEST(a_push_that_was_killed_finds_its_packs)
{
    place p = full_bucket((uint64_t)1 << 20, 65536);
    const size_t packs = p.b->fresh.packs;
    assert_true(packs > 2 && packs < XK_OBJECTS);
    p.b->far.ops->close(&p.b->far); /* its refs never moved: no manifest names the packs */
    char name[FMR_OBJECT_MAX];
    p.b = open_at(p.dir, (uint64_t)1 << 20, 65536);
    put_all(&p);
    assert_int_equal(p.sent, 0);
    assert_int_equal(p.b->fresh.packs, packs);
    fmr_pack_name(name, &p.b->fresh.pack[1].name);
    const uint64_t bytes = p.b->fresh.pack[1].bytes;
    p.b->far.ops->close(&p.b->far);
    char *path = fm_path_join(p.dir, name);
    tk_ok(fm_write_file(path, "cut", 3)); /* one of another size is none */
    p.b = open_at(p.dir, (uint64_t)1 << 20, 65536);
    put_all(&p);
    assert_int_equal(p.sent, bytes - FMS_PACK_HEADER_BYTES - FMS_PACK_FOOTER_BYTES);
    check_packs(&p, packs);
    fm_free(path);
    release(&p);
}

/* ==== reading ==== */

typedef struct sink {
    const fmr_ask_record *ask;
    const int *which;
    size_t next;
    fm_buf got;
    size_t absent;
} sink;

static fm_status begin(void *ctx, size_t i, bool there)
{
    sink *s = ctx;
    assert_int_equal(i, s->next);
    fm_buf_clear(&s->got);
    if (!there) {
        s->absent++;
        s->next++;
    }
    return FM_OK;
}

static fm_status bytes(void *ctx, const void *data, size_t len)
{
    sink *s = ctx;
    assert_true(len > 0);
    fm_buf_append(&s->got, data, len);
    return fm_buf_ok(&s->got);
}

static fm_status append(void *ctx, const void *data, size_t len)
{
    fm_buf_append(ctx, data, len);
    return fm_buf_ok(ctx);
}

static fm_status end(void *ctx)
{
    sink *s = ctx;
    fm_buf want;
    fm_buf_init(&want, 0);
    tk_ok(fm_record_send(from.s, &from.info[s->which[s->next]], s->ask[s->next].offset, append,
                         &want));
    assert_true(fm_span_eq(fm_buf_span(&want), fm_buf_span(&s->got)));
    fm_buf_release(&want);
    s->next++;
    return FM_OK;
}

/* Asks for these objects, the first `offset` bytes of each left out (all: UINT64_MAX). */
static size_t read_back(place *p, const int *which, size_t count, uint64_t offset, bool wrong_head)
{
    fmr_ask_record ask[XK_OBJECTS];
    sink s = {ask, which, 0, {0}, 0};
    const fmr_sink to = {&s, begin, bytes, end};
    fm_buf_init(&s.got, 0);
    for (size_t i = 0; i < count; i++) {
        const fm_record_info *info = &from.info[which[i]];
        ask[i] = (fmr_ask_record){info->id, info->head, FM_MIN(offset, info->stored_bytes)};
        if (wrong_head && i % 2)
            ask[i].head.b[0] ^= 1;
    }
    tk_ok(p->b->far.ops->get(&p->b->far, ask, count, &to));
    assert_int_equal(s.next, count);
    fm_buf_release(&s.got);
    return s.absent;
}

TEST(what_lies_there_is_described_and_comes_back)
{
    static const int all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const int back[] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
    static const int gaps[] = {0, 1, 3, 4, 6, 9, 9, 2};
    static const uint64_t packs[] = {1, (uint64_t)1 << 20, UINT64_MAX};
    for (size_t k = 0; k < FM_ARRAY_LEN(packs); k++) {
        place p = full_bucket(packs[k], 65536);
        fm_record_info info[XK_OBJECTS];
        bool there[XK_OBJECTS];
        tk_ok(p.b->far.ops->info(&p.b->far, from.id, XK_OBJECTS, info, there));
        for (int i = 0; i < XK_OBJECTS; i++) {
            assert_true(there[i]);
            assert_memory_equal(&info[i].head, &from.info[i].head, sizeof info[i].head);
            assert_int_equal(info[i].stored_bytes, from.info[i].stored_bytes);
            assert_int_equal(info[i].parent_count, from.info[i].parent_count);
        }
        static const uint64_t offsets[] = {0, 1, 100000, 100001, UINT64_MAX};
        for (size_t o = 0; o < FM_ARRAY_LEN(offsets); o++) {
            assert_int_equal(read_back(&p, all, 10, offsets[o], false), 0);
            assert_int_equal(read_back(&p, back, 10, offsets[o], false), 0);
            assert_int_equal(read_back(&p, gaps, 8, offsets[o], false), 0);
        }
        assert_int_equal(read_back(&p, all, 10, 0, true), 5);
        assert_int_equal(read_back(&p, all, 0, 0, false), 0);
        fm_digest none = from.id[0];
        none.b[5] ^= 1;
        tk_ok(p.b->far.ops->has(&p.b->far, &none, 1, there));
        assert_false(there[0]);
        release(&p);
    }
}

static fm_status fails(void *ctx, const void *data, size_t len)
{
    (void)ctx;
    (void)data;
    (void)len;
    return fm_fail(FM_ECANCELLED, "stop here");
}

TEST(a_sink_that_fails_ends_it)
{
    place p = full_bucket((uint64_t)1 << 20, 65536);
    const fmr_ask_record ask = {from.info[XK_RAW].id, from.info[XK_RAW].head, 0};
    sink s = {&ask, NULL, 0, {0}, 0};
    const fmr_sink to = {&s, begin, fails, end};
    fm_buf_init(&s.got, 0);
    tk_fails(p.b->far.ops->get(&p.b->far, &ask, 1, &to), FM_ECANCELLED, "stop here");
    release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packs_end_where_they_must),
        cmocka_unit_test(a_push_that_was_killed_finds_its_packs),
        cmocka_unit_test(what_lies_there_is_described_and_comes_back),
        cmocka_unit_test(a_sink_that_fails_ends_it),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
