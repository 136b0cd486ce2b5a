/* repack: few packs, short chains, the same objects; and what it must not trust. */
#include <stdio.h>
#include <string.h>

#include "store/base/math/rng.h"
#include "store/gc/gc.h"
#include "store/pack/pack.h"
#include "tests/testkit.h"

enum { BYTES = 60000 };

static void fill(uint8_t *p, unsigned variant)
{
    for (size_t i = 0; i < BYTES; i++)
        p[i] = (uint8_t)fm_rng_u64(4, 1, i);
    for (unsigned i = 0; i < variant * 40; i++)
        p[fm_rng_u64(5, variant, i) % BYTES & ~1ull] ^= 1;
}

static fm_store *store_at(char **root)
{
    fm_store *s;
    *root = tk_scratch();
    tk_ok(fm_store_init(*root));
    tk_ok(fm_store_open(&s, *root));
    return s;
}

/* One transaction, one tensor. */
static fm_digest put(fm_store *s, unsigned variant, const fm_digest *parent)
{
    static uint8_t bytes[BYTES];
    fm_shape shape = {1, {BYTES / 2}};
    fm_digest id;
    fm_txn *t;
    fill(bytes, variant);
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_tensor(t, &id, FM_BF16, &shape, fm_span_of(bytes, BYTES), parent, NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    return id;
}

static void expect(fm_store *s, unsigned variant, const fm_digest *id)
{
    static uint8_t want[BYTES], got[BYTES];
    fill(want, variant);
    tk_ok(fm_store_read(s, id, got, BYTES));
    assert_memory_equal(got, want, BYTES);
}

static fms_gc_report repack(fm_store *s, const fm_digest *id, size_t count, uint32_t depth)
{
    fms_gc *g;
    fms_gc_opts o = {
        .now = 1000, .expire = INT64_MAX, .repack = true, .repack_all = true, .depth = depth};
    fm_store_lease_end(s);
    tk_ok(fms_gc_open(&g, s, &o));
    for (size_t i = 0; i < count; i++)
        tk_ok(fms_gc_reach(g, &id[i], 1));
    tk_ok(fms_gc_condemn(g, NULL, 0));
    tk_ok(fms_gc_rewrite(g));
    tk_ok(fms_gc_enter(g));
    tk_ok(fms_gc_remove(g));
    tk_ok(fms_gc_leave(g));
    fms_gc_report report = *fms_gc_result(g);
    fms_gc_close(g);
    return report;
}

static fm_names packs_of(const char *root)
{
    fm_names names;
    char *dir = fm_path_join(root, "packs");
    tk_ok(fm_list_dir(&names, dir));
    fm_free(dir);
    return names;
}

static void copy_packs(const char *from, const char *to)
{
    fm_names names = packs_of(from);
    for (size_t i = 0; i < names.count; i++) {
        char *a = fm_asprintf("%s/packs/%s", from, names.name[i]);
        char *b = fm_asprintf("%s/packs/%s", to, names.name[i]);
        fm_buf bytes;
        fm_buf_init(&bytes, 0);
        tk_ok(fm_read_file(&bytes, a, 1 << 30));
        tk_ok(fm_write_file(b, bytes.data, bytes.len));
        fm_buf_release(&bytes);
        fm_free(a);
        fm_free(b);
    }
    fm_names_release(&names);
}

static uint64_t faults(fm_store *s)
{
    fm_fsck_report report;
    tk_ok(fm_store_fsck(s, true, &report, NULL, NULL));
    return report.faults;
}

TEST(chains_become_as_short_as_asked)
{
    char *root;
    fm_store *s = store_at(&root);
    fm_digest id[7];
    fm_object_info info;
    for (unsigned i = 0; i < 7; i++)
        id[i] = put(s, i, i ? &id[i - 1] : NULL);
    tk_ok(fm_store_info(s, &info, &id[6]));
    assert_int_equal(info.chain_depth, 6);
    fms_gc_report r = repack(s, id, 7, 2);
    assert_int_equal(r.packs_after, 1);
    assert_int_equal(r.recoded_objects, 4);
    for (unsigned i = 0; i < 7; i++) {
        expect(s, i, &id[i]);
        tk_ok(fm_store_info(s, &info, &id[i]));
        assert_true(info.chain_depth <= 2);
    }
    r = repack(s, id, 7, 0);
    assert_int_equal(r.packs_after, 1);
    tk_ok(fm_store_info(s, &info, &id[6]));
    assert_int_equal(info.chain_depth, 0);
    expect(s, 6, &id[6]);
    assert_int_equal(faults(s), 0);
    fm_store_close(s);
    fm_free(root);
}

TEST(the_same_packs_give_the_same_pack)
{
    char *root[2];
    fm_store *s[2];
    fm_digest id[5];
    s[0] = store_at(&root[0]);
    s[1] = store_at(&root[1]);
    for (unsigned i = 0; i < 5; i++)
        id[i] = put(s[0], i, i ? &id[0] : NULL);
    copy_packs(root[0], root[1]);
    for (int k = 0; k < 2; k++)
        repack(s[k], id, 5, FMS_CHAIN_MAX);
    fm_names a = packs_of(root[0]), b = packs_of(root[1]);
    assert_int_equal(a.count, 1);
    assert_int_equal(b.count, 1);
    assert_string_equal(a.name[0], b.name[0]);
    fm_names_release(&a);
    fm_names_release(&b);
    for (int k = 0; k < 2; k++) {
        fm_store_close(s[k]);
        fm_free(root[k]);
    }
}

/* A against B here, B against A there: folded without care, neither has a ground to stand on. */
TEST(two_objects_stored_against_each_other_stay_readable)
{
    char *root[2];
    fm_store *s[2];
    fm_digest id[2];
    s[0] = store_at(&root[0]);
    s[1] = store_at(&root[1]);
    id[0] = put(s[0], 0, NULL);
    id[1] = put(s[0], 1, &id[0]);
    id[1] = put(s[1], 1, NULL);
    id[0] = put(s[1], 0, &id[1]);
    copy_packs(root[0], root[1]);
    copy_packs(root[1], root[0]);
    for (int k = 0; k < 2; k++) {
        fm_store_close(s[k]);
        tk_ok(fm_store_open(&s[k], root[k]));
        expect(s[k], 0, &id[0]);
        expect(s[k], 1, &id[1]);
        fms_gc_report r = repack(s[k], id, 2, FMS_CHAIN_MAX);
        assert_int_equal(r.packs_before, 4);
        assert_int_equal(r.packs_after, 1);
        expect(s[k], 0, &id[0]);
        expect(s[k], 1, &id[1]);
        assert_int_equal(faults(s[k]), 0);
        fm_store_close(s[k]);
        fm_free(root[k]);
    }
}

TEST(what_does_not_decode_keeps_its_pack)
{
    char *root;
    fm_store *s = store_at(&root);
    fm_digest id[3];
    static uint8_t got[BYTES];
    for (unsigned i = 0; i < 3; i++)
        id[i] = put(s, i, NULL);
    fm_names names = packs_of(root);
    char *path = fm_asprintf("%s/packs/%s", root, names.name[1]);
    fm_buf bytes;
    fm_buf_init(&bytes, 0);
    tk_ok(fm_read_file(&bytes, path, 1 << 30));
    bytes.data[bytes.len / 2] ^= 1;
    tk_ok(fm_write_file(path, bytes.data, bytes.len));
    fm_store_close(s);
    tk_ok(fm_store_open(&s, root));
    fms_gc_report r = repack(s, id, 3, FMS_CHAIN_MAX);
    assert_int_equal(r.bad_objects, 1);
    assert_int_equal(r.packs_after, 2);
    assert_true(fm_path_exists(path));
    unsigned whole = 0;
    for (unsigned i = 0; i < 3; i++)
        whole += fm_store_read(s, &id[i], got, BYTES) == FM_OK;
    assert_int_equal(whole, 2);
    fm_buf_release(&bytes);
    fm_free(path);
    fm_names_release(&names);
    fm_store_close(s);
    fm_free(root);
}

/* A reader that has looked an object up, and mapped its pack, goes on; one that asks anew looks
 * again. */
TEST(readers_go_on_while_packs_are_replaced)
{
    char *root;
    fm_store *s = store_at(&root), *reader;
    fm_digest id[4];
    for (unsigned i = 0; i < 4; i++)
        id[i] = put(s, i, i ? &id[i - 1] : NULL);
    tk_ok(fm_store_open(&reader, root));
    expect(reader, 0, &id[0]);
    for (uint32_t depth = 3; depth-- > 0;) {
        repack(s, id, 4, depth);
        for (unsigned i = 0; i < 4; i++)
            expect(reader, i, &id[i]);
    }
    fm_store_close(reader);
    fm_store_close(s);
    fm_free(root);
}

/* What is left out is unreached, and its grace is over; a delta's ground stays. */
TEST(the_dead_are_left_out)
{
    char *root;
    fm_store *s = store_at(&root);
    fm_digest id[3];
    id[0] = put(s, 0, NULL);
    id[1] = put(s, 1, &id[0]);
    id[2] = put(s, 2, &id[0]);
    fms_gc_report r = repack(s, &id[1], 1, FMS_CHAIN_MAX);
    assert_int_equal(r.gone_objects, 1);
    assert_false(fm_store_has(s, &id[2]));
    expect(s, 1, &id[1]);
    expect(s, 0, &id[0]);
    fm_store_close(s);
    fm_free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_become_as_short_as_asked),
        cmocka_unit_test(the_same_packs_give_the_same_pack),
        cmocka_unit_test(two_objects_stored_against_each_other_stay_readable),
        cmocka_unit_test(what_does_not_decode_keeps_its_pack),
        cmocka_unit_test(readers_go_on_while_packs_are_replaced),
        cmocka_unit_test(the_dead_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
