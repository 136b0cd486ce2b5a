/* ctest: cost=8 */
/* Damage to packs: every byte of a pack matters, is found, and costs no more than its record. */
#include <stdio.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "store/pack/pack.h"
#include "store/store.h"
#include "tests/testkit.h"

enum { OBJECTS = 4, BYTES = 3000 };

typedef struct fixture {
    char *root, *pack_path;
    fm_digest id[OBJECTS]; /* 0: bf16 parent, 1: its child, 2: blob, 3: noise */
    uint8_t bytes[OBJECTS][BYTES];
    fm_buf pack;
} fixture;

static void make(fixture *x)
{
    memset(x, 0, sizeof *x);
    x->root = tk_scratch();
    fm_store *s;
    fm_txn *t;
    tk_ok(fm_store_init(x->root));
    tk_ok(fm_store_open(&s, x->root));
    for (size_t i = 0; i < BYTES / 2; i++)
        fm_put_u16(x->bytes[0] + 2 * i, fm_f32_to_bf16((float)fm_rng_normal(1, 2, i)));
    memcpy(x->bytes[1], x->bytes[0], BYTES);
    for (size_t i = 0; i < BYTES; i += 50)
        x->bytes[1][i] ^= 3;
    memset(x->bytes[2], 'a', BYTES);
    memcpy(x->bytes[2] + 100, "some text", 9);
    for (size_t i = 0; i < BYTES; i++)
        x->bytes[3][i] = (uint8_t)fm_rng_u64(1, 3, i);
    fm_shape shape = {1, {BYTES / 2}};
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_tensor(t, &x->id[0], FM_BF16, &shape, fm_span_of(x->bytes[0], BYTES), NULL,
                            NULL));
    tk_ok(fm_txn_put_tensor(t, &x->id[1], FM_BF16, &shape, fm_span_of(x->bytes[1], BYTES),
                            &x->id[0], NULL));
    tk_ok(fm_txn_put_blob(t, &x->id[2], fm_span_of(x->bytes[2], BYTES), NULL));
    tk_ok(fm_txn_put_blob(t, &x->id[3], fm_span_of(x->bytes[3], BYTES), NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    fm_store_close(s);
    char *packs = fm_path_join(x->root, "packs");
    fm_names names;
    tk_ok(fm_list_dir(&names, packs));
    assert_int_equal(names.count, 1);
    x->pack_path = fm_path_join(packs, names.name[0]);
    fm_names_release(&names);
    fm_free(packs);
    fm_buf_init(&x->pack, 0);
    tk_ok(fm_read_file(&x->pack, x->pack_path, 1 << 24));
}

static void drop(fixture *x)
{
    fm_buf_release(&x->pack);
    fm_free(x->pack_path);
    fm_free(x->root);
}

static void forget_index(const fixture *x)
{
    static const char *const name[] = {"index.sqlite", "index.sqlite-wal", "index.sqlite-shm"};
    for (int i = 0; i < 3; i++) {
        char *path = fm_path_join(x->root, name[i]);
        tk_ok(fm_remove_file(path));
        fm_free(path);
    }
}

typedef struct faults {
    size_t count;
    char first[512];
} faults;

static void note(void *ctx, const char *text)
{
    faults *f = ctx;
    if (f->count++ == 0)
        snprintf(f->first, sizeof f->first, "%s", text);
}

/* Opens with a damaged pack; returns how many of the objects can be read. Wrong bytes never come.
 */
static size_t survivors(const fixture *x, faults *f, bool full)
{
    memset(f, 0, sizeof *f);
    forget_index(x);
    fm_store *s;
    tk_ok(fm_store_open(&s, x->root));
    size_t good = 0;
    for (int i = 0; i < OBJECTS; i++) {
        uint8_t back[BYTES];
        fm_status rc = fm_store_read(s, &x->id[i], back, BYTES);
        if (rc == FM_OK) {
            assert_memory_equal(back, x->bytes[i], BYTES);
            good++;
        } else {
            assert_true(rc == FM_ENOTFOUND || rc == FM_ECORRUPT || rc == FM_EBASE);
            assert_true(strlen(fm_error_text()) > 20);
        }
    }
    fm_fsck_report report;
    tk_ok(fm_store_fsck(s, full, &report, note, f));
    assert_int_equal(report.faults, f->count);
    fm_store_close(s);
    return good;
}

TEST(a_flipped_byte_anywhere_is_found)
{
    fixture x;
    make(&x);
    faults f;
    assert_int_equal(survivors(&x, &f, true), OBJECTS);
    assert_int_equal(f.count, 0);
    size_t tried = 0;
    for (size_t at = 0; at < x.pack.len; at += at < 600 ? 7 : 61, tried++) {
        x.pack.data[at] ^= 0x20;
        tk_ok(fm_write_file(x.pack_path, x.pack.data, x.pack.len));
        x.pack.data[at] ^= 0x20;
        size_t good = survivors(&x, &f, true);
        assert_true(f.count > 0); /* at least: the file's name is not its SHA-256 */
        bool frame = at < FMS_PACK_HEADER_BYTES || at >= x.pack.len - FMS_PACK_FOOTER_BYTES;
        /* A record costs itself; the parent's costs its child too. */
        assert_true(frame || good >= OBJECTS - 2);
    }
    assert_true(tried > 100);
    drop(&x);
}

TEST(a_cut_or_extended_pack_is_never_opened_as_good)
{
    fixture x;
    make(&x);
    faults f;
    for (size_t cut = 0; cut < x.pack.len; cut += 1 + x.pack.len / 37) {
        tk_ok(fm_write_file(x.pack_path, x.pack.data, cut));
        assert_int_equal(survivors(&x, &f, false), 0);
        assert_int_equal(f.count, 1);
        assert_non_null(strstr(f.first, "pack "));
    }
    fm_buf_append(&x.pack, x.pack.data, 64);
    tk_ok(fm_write_file(x.pack_path, x.pack.data, x.pack.len));
    assert_int_equal(survivors(&x, &f, false), 0);
    assert_non_null(strstr(f.first, "cut off or has bytes after its end"));
    drop(&x);
}

/* The repository's own format file is what refuses a newer fmstore's repository as a whole; one
 * pack with such a header (a flipped bit is enough) must not close the others. */
TEST(a_newer_pack_serves_nothing_and_is_named)
{
    fixture x;
    make(&x);
    for (int at = 8; at <= 12; at += 4) {
        x.pack.data[at] ^= 2;
        tk_ok(fm_write_file(x.pack_path, x.pack.data, x.pack.len));
        x.pack.data[at] ^= 2;
        forget_index(&x);
        fm_store *s;
        tk_ok(fm_store_open(&s, x.root));
        tk_fails(fm_store_read(s, &x.id[0], x.bytes[0], BYTES), FM_ENOTFOUND, "newer fmstore");
        fm_store_close(s);
        faults f;
        assert_int_equal(survivors(&x, &f, false), 0);
        assert_int_equal(f.count, 1);
        assert_non_null(strstr(f.first, "written by a newer fmstore"));
    }
    drop(&x);
}

/* A child whose parent's pack is gone, and a ruined object that is stored again. */
TEST(a_missing_parent_is_named_and_storing_again_repairs)
{
    fixture x;
    make(&x);
    fm_store *s;
    fm_txn *t;
    fm_digest id;
    fm_shape shape = {1, {BYTES / 2}};
    tk_ok(fm_store_open(&s, x.root));
    x.bytes[1][1] ^= 1;
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(
        fm_txn_put_tensor(t, &id, FM_BF16, &shape, fm_span_of(x.bytes[1], BYTES), &x.id[0], NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    fm_store_close(s);
    tk_ok(fm_remove_file(x.pack_path));
    tk_ok(fm_store_open(&s, x.root));
    uint8_t back[BYTES];
    char hex[FM_HEX_CHARS + 1];
    fm_digest_hex(&x.id[0], hex);
    tk_fails(fm_store_read(s, &id, back, BYTES), FM_EBASE, hex);
    fm_fsck_report report;
    faults f = {0, ""};
    tk_ok(fm_store_fsck(s, true, &report, note, &f));
    assert_int_equal(report.faults, 1);
    assert_non_null(strstr(f.first, hex));
    assert_false(fm_store_has(s, &id));

    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_tensor(t, &id, FM_BF16, &shape, fm_span_of(x.bytes[1], BYTES), NULL, NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    tk_ok(fm_store_read(s, &id, back, BYTES));
    assert_memory_equal(back, x.bytes[1], BYTES);
    fm_store_close(s);
    drop(&x);
}

/* A head needs no payload to be read, and its depth may change. */
TEST(a_head_is_read_alone)
{
    fixture x;
    fms_record whole, r;
    uint64_t n;
    make(&x);
    const fm_span first =
        fm_span_of(x.pack.data + FMS_PACK_HEADER_BYTES, x.pack.len - FMS_PACK_HEADER_BYTES);
    tk_ok(fms_record_parse(&whole, first, "whole"));
    tk_ok(fms_record_head_length(&n, fm_span_of(first.data, FMS_RECORD_FIXED_BYTES), "start"));
    assert_int_equal(n, whole.head_bytes);
    uint8_t *head = fm_memdup(first.data, (size_t)n); /* exactly: a sanitizer sees more */
    tk_ok(fms_record_parse_head(&r, fm_span_of(head, (size_t)n), "head"));
    assert_int_equal(r.stored_bytes, whole.stored_bytes);
    assert_true(fm_digest_eq(&r.id, &whole.id));
    tk_fails(fms_record_parse(&r, fm_span_of(head, (size_t)n), "head"), FM_ECORRUPT, "payload");
    tk_fails(fms_record_parse_head(&r, fm_span_of(head, (size_t)n - 1), "head"), FM_ECORRUPT,
             "leaves the pack");
    tk_fails(fms_record_head_length(&n, fm_span_of(head, FMS_RECORD_FIXED_BYTES - 1), "start"),
             FM_ECORRUPT, "no record begins");
    n = whole.stored_bytes; /* the child's, whose depth is 1 */
    const fm_span second = fm_span_of(first.data + n, first.len - (size_t)n);
    tk_ok(fms_record_parse(&whole, second, "child"));
    fm_free(head);
    head = fm_memdup(second.data, (size_t)whole.head_bytes);
    tk_ok(fms_record_set_depth(head, (size_t)whole.head_bytes, 5));
    tk_ok(fms_record_parse_head(&r, fm_span_of(head, (size_t)whole.head_bytes), "deeper"));
    assert_int_equal(whole.depth, 1);
    assert_int_equal(r.depth, 5);
    assert_true(fm_digest_eq(&r.id, &whole.id));
    fm_free(head);
    drop(&x);
}

TEST(an_end_says_where_it_is)
{
    fixture x;
    make(&x);
    assert_true(fms_pack_is_ended(fm_buf_span(&x.pack)));
    assert_false(fms_pack_is_ended(fm_span_of(x.pack.data, x.pack.len - 64)));
    assert_false(fms_pack_is_ended(fm_span_of(x.pack.data, 64)));
    x.pack.data[x.pack.len - 48] ^= 1;
    assert_false(fms_pack_is_ended(fm_buf_span(&x.pack)));
    drop(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_byte_anywhere_is_found),
        cmocka_unit_test(a_cut_or_extended_pack_is_never_opened_as_good),
        cmocka_unit_test(a_newer_pack_serves_nothing_and_is_named),
        cmocka_unit_test(a_missing_parent_is_named_and_storing_again_repairs),
        cmocka_unit_test(a_head_is_read_alone),
        cmocka_unit_test(an_end_says_where_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
