/* The store as its users see it: what goes in comes out, once, and survives losing its index. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/base/math/rng.h"
#include "store/pack/pack.h"
#include "store/store.h"
#include "tests/testkit.h"

static char *fresh_store(fm_store **s)
{
    char *root = tk_scratch();
    tk_ok(fm_store_init(root));
    tk_ok(fm_store_open(s, root));
    return root;
}

static fm_shape shape1(uint64_t n)
{
    fm_shape s = {1, {n}};
    return s;
}

static uint8_t *weights(size_t bytes, uint64_t stream)
{
    uint8_t *p = fm_malloc(bytes + 1);
    for (size_t i = 0; i < bytes / 2; i++)
        fm_put_u16(p + 2 * i, fm_f32_to_bf16((float)(0.02 * fm_rng_normal(1, stream, i))));
    if (bytes & 1)
        p[bytes - 1] = 7;
    return p;
}

static fm_digest put_tensor(fm_store *s, fm_dtype dtype, const fm_shape *shape, const void *bytes,
                            size_t len, const fm_digest *parent)
{
    fm_txn *t;
    fm_digest id;
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_tensor(t, &id, dtype, shape, fm_span_of(bytes, len), parent, NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    return id;
}

static void expect(fm_store *s, const fm_digest *id, const void *bytes, size_t len)
{
    uint8_t *back = fm_malloc(len + 1);
    tk_ok(fm_store_read(s, id, back, len));
    if (len)
        assert_memory_equal(back, bytes, len);
    fm_free(back);
}

TEST(bad_requests_are_refused)
{
    fm_store *s;
    char *root = fresh_store(&s);
    tk_fails(fm_store_init(root), FM_EEXISTS, root);
    fm_store *none;
    char *empty = tk_scratch();
    tk_fails(fm_store_open(&none, empty), FM_ENOTFOUND, "no repository here");
    fm_digest id, other;
    memset(&other, 1, sizeof other);
    fm_shape two = shape1(2), three = shape1(3);
    fm_txn *t;
    tk_ok(fm_txn_begin(&t, s));
    tk_fails(fm_txn_put_tensor(t, &id, FM_F32, &two, fm_span_of("1234567", 7), NULL, NULL),
             FM_EINVAL, "needs 8 bytes");
    tk_fails(fm_txn_put_tensor(t, &id, FM_F32, &two, fm_span_of("12345678", 8), NULL, &other),
             FM_ECORRUPT, "0101");
    tk_fails(fm_txn_put_tensor(t, &id, FM_F32, &two, fm_span_of("12345678", 8), &other, NULL),
             FM_ENOTFOUND, "0101");
    fm_digest parent;
    tk_ok(
        fm_txn_put_tensor(t, &parent, FM_F32, &three, fm_span_of("123456789abc", 12), NULL, NULL));
    tk_fails(fm_txn_put_tensor(t, &id, FM_F32, &two, fm_span_of("12345678", 8), &parent, NULL),
             FM_EBASE, "another dtype or shape");
    fm_txn_close(t);
    char byte;
    tk_fails(fm_store_read(s, &other, &byte, 1), FM_ENOTFOUND, "0101");
    fm_object_info info;
    tk_fails(fm_store_info(s, &info, &other), FM_ENOTFOUND, "0101");
    assert_false(fm_store_has(s, &other));
    fm_store_close(s);
    fm_free(root);
    fm_free(empty);
}

TEST(a_newer_format_is_refused_by_name)
{
    fm_store *s;
    char *root = fresh_store(&s);
    fm_store_close(s);
    char *format = fm_path_join(root, "format");
    tk_ok(fm_write_file(format, "fmstore store 2\n", 16));
    tk_fails(fm_store_open(&s, root), FM_EVERSION, "newer fmstore");
    tk_ok(fm_write_file(format, "something\n", 10));
    tk_fails(fm_store_open(&s, root), FM_ECORRUPT, "format");
    fm_free(format);
    fm_free(root);
}

TEST(every_dtype_round_trips)
{
    fm_store *s;
    char *root = fresh_store(&s);
    uint8_t *bytes = weights(1 << 20, 1);
    for (unsigned d = 1; d < FM_DTYPE_COUNT; d++) {
        const fm_dtype_info *di = fm_dtype_get((fm_dtype)d);
        fm_shape shape = {2, {3, 256}};
        size_t len = (size_t)3 * 256 / di->block_elems * di->block_bytes;
        fm_digest id = put_tensor(s, (fm_dtype)d, &shape, bytes, len, NULL), want;
        tk_ok(fm_tensor_id(&want, (fm_dtype)d, &shape, fm_span_of(bytes, len), NULL));
        assert_true(fm_digest_eq(&id, &want));
        expect(s, &id, bytes, len);
        fm_object_info info;
        tk_ok(fm_store_info(s, &info, &id));
        assert_int_equal(info.dtype, d);
        assert_true(fm_shape_eq(&info.shape, &shape));
        assert_int_equal(info.bytes, len);
        assert_false(info.is_blob || info.parent_count);
    }
    fm_free(bytes);
    fm_store_close(s);
    fm_free(root);
}

TEST(sizes_around_a_leaf_round_trip)
{
    fm_store *s;
    char *root = fresh_store(&s);
    static const size_t sizes[] = {0,
                                   1,
                                   2,
                                   63,
                                   64,
                                   65,
                                   FM_LEAF_BYTES - 1,
                                   FM_LEAF_BYTES,
                                   FM_LEAF_BYTES + 1,
                                   3 * FM_LEAF_BYTES,
                                   9 * FM_LEAF_BYTES + 17};
    uint8_t *bytes = weights(10 * FM_LEAF_BYTES, 2);
    fm_digest id[FM_ARRAY_LEN(sizes)], blob[FM_ARRAY_LEN(sizes)];
    for (size_t k = 0; k < FM_ARRAY_LEN(sizes); k++) {
        fm_shape shape = shape1(sizes[k]);
        id[k] = put_tensor(s, FM_U8, &shape, bytes, sizes[k], NULL);
        fm_txn *t;
        tk_ok(fm_txn_begin(&t, s));
        tk_ok(fm_txn_put_blob(t, &blob[k], fm_span_of(bytes, sizes[k]), NULL));
        tk_ok(fm_txn_commit(t, NULL));
        fm_txn_close(t);
    }
    fm_shape scalar = {0, {0}};
    fm_digest sid = put_tensor(s, FM_F32, &scalar, "\x00\x00\xc0\x7f", 4, NULL);
    expect(s, &sid, "\x00\x00\xc0\x7f", 4);
    for (size_t k = 0; k < FM_ARRAY_LEN(sizes); k++) {
        expect(s, &id[k], bytes, sizes[k]);
        expect(s, &blob[k], bytes, sizes[k]);
        uint8_t b;
        tk_fails(fm_store_read(s, &id[k], &b, sizes[k] + 1), FM_EINVAL, "were asked for");
    }
    fm_free(bytes);
    fm_store_close(s);
    fm_free(root);
}

/* Bytes without order are stored as they are, in several leaves; the rest is coded. */
TEST(raw_objects_can_be_seen_where_they_lie)
{
    enum { LEN = 2 * FM_LEAF_BYTES + 1000 };
    char *root = tk_scratch();
    uint8_t *bytes = fm_malloc(LEN);
    fm_shape shape = {1, {LEN}};
    fm_digest raw, flat, none;
    fm_store *s;
    fm_txn *t;
    fm_span seen;
    for (size_t i = 0; i < LEN; i++)
        bytes[i] = (uint8_t)fm_rng_u64(8, 1, i);
    memset(&none, 0x5a, sizeof none);
    tk_ok(fm_store_init(root));
    tk_ok(fm_store_open(&s, root));
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_tensor(t, &raw, FM_U8, &shape, fm_span_of(bytes, LEN), NULL, NULL));
    memset(bytes, 7, 1000);
    tk_ok(fm_txn_put_blob(t, &flat, fm_span_of(bytes, 1000), NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    tk_fails(fm_store_view(s, &none, &seen), FM_ENOTFOUND, "not in the store");
    assert_null(seen.data);
    tk_ok(fm_store_view(s, &flat, &seen));
    assert_null(seen.data);
    for (size_t i = 0; i < 1000; i++)
        bytes[i] = (uint8_t)fm_rng_u64(8, 1, i);
    tk_ok(fm_store_view(s, &raw, &seen));
    assert_int_equal(seen.len, LEN);
    assert_int_equal((uintptr_t)seen.data % 64, 0);
    assert_memory_equal(seen.data, bytes, LEN);
    size_t at = 0; /* where it lies in its file */
    fm_names packs;
    char *dir = fm_path_join(root, "packs");
    tk_ok(fm_list_dir(&packs, dir));
    assert_int_equal(packs.count, 1);
    char *path = fm_path_join(dir, packs.name[0]);
    fm_buf pack;
    fm_buf_init(&pack, 0);
    tk_ok(fm_read_file(&pack, path, 0));
    while (memcmp(pack.data + at, bytes, LEN) != 0)
        at += 64;
    fm_store_close(s);
    static const size_t hit[] = {0, FM_LEAF_BYTES, LEN - 1};
    for (size_t i = 0; i < FM_ARRAY_LEN(hit); i++) {
        pack.data[at + hit[i]] ^= 4;
        tk_ok(fm_write_file(path, pack.data, pack.len));
        tk_ok(fm_store_open(&s, root));
        tk_fails(fm_store_view(s, &raw, &seen), FM_ECORRUPT, "do not match their digest");
        assert_null(seen.data);
        fm_store_close(s);
        pack.data[at + hit[i]] ^= 4;
    }
    fm_buf_release(&pack);
    fm_names_release(&packs);
    fm_free(path);
    fm_free(dir);
    fm_free(bytes);
    fm_free(root);
}

TEST(the_same_object_is_stored_once)
{
    fm_store *s;
    char *root = fresh_store(&s);
    uint8_t *bytes = weights(3000000, 3);
    fm_shape shape = shape1(1500000);
    fm_txn_stats st;
    fm_digest id;
    for (int round = 0; round < 2; round++) {
        fm_txn *t;
        tk_ok(fm_txn_begin(&t, s));
        for (int again = 0; again < 2; again++)
            tk_ok(
                fm_txn_put_tensor(t, &id, FM_BF16, &shape, fm_span_of(bytes, 3000000), NULL, NULL));
        tk_ok(fm_txn_commit(t, &st));
        fm_txn_close(t);
        assert_int_equal(st.objects_new, round == 0 ? 1 : 0);
        assert_int_equal(st.objects_known, round == 0 ? 1 : 2);
        assert_int_equal(st.bytes_in, 6000000);
        assert_int_equal(st.bytes_stored > 0, round == 0);
    }
    fm_store_totals totals;
    tk_ok(fm_store_totals_of(s, &totals));
    assert_int_equal(totals.packs, 1);
    assert_int_equal(totals.objects, 1);
    assert_int_equal(totals.bytes_decoded, 3000000);
    fm_free(bytes);
    fm_store_close(s);
    fm_free(root);
}

TEST(an_aborted_transaction_leaves_nothing)
{
    fm_store *s;
    char *root = fresh_store(&s);
    fm_txn *t;
    fm_digest id;
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_blob(t, &id, fm_span_of("hello", 5), NULL));
    assert_false(fm_store_has(s, &id));
    fm_txn_close(t);
    assert_false(fm_store_has(s, &id));
    static const char *const folder[] = {"packs", "tmp"};
    for (int i = 0; i < 2; i++) {
        char *dir = fm_path_join(root, folder[i]);
        fm_names names;
        tk_ok(fm_list_dir(&names, dir));
        assert_int_equal(names.count, 0);
        fm_names_release(&names);
        fm_free(dir);
    }
    fm_store_close(s);
    fm_free(root);
}

/* Twelve generations: each is a delta of the one before, within the depth limit, half of them
 * inside one transaction. */
TEST(chains_of_children_stay_within_the_depth_limit)
{
    enum { GENERATIONS = 12, BYTES = 2 * 1310720 };
    fm_store *s;
    char *root = fresh_store(&s);
    uint8_t *w = weights(BYTES, 4), *kept[GENERATIONS];
    fm_shape shape = shape1(BYTES / 2);
    fm_digest id[GENERATIONS];
    fm_txn *t = NULL;
    for (int g = 0; g < GENERATIONS; g++) {
        if (g == 0 || g >= 6)
            tk_ok(fm_txn_begin(&t, s));
        tk_ok(fm_txn_put_tensor(t, &id[g], FM_BF16, &shape, fm_span_of(w, BYTES),
                                g ? &id[g - 1] : NULL, NULL));
        if (g >= 5) {
            tk_ok(fm_txn_commit(t, NULL));
            fm_txn_close(t);
        }
        kept[g] = fm_memdup(w, BYTES);
        for (size_t i = 2 * (size_t)g; i < BYTES; i += 26)
            w[i] ^= 1;
    }
    for (int g = 0; g < GENERATIONS; g++) {
        fm_object_info info;
        tk_ok(fm_store_info(s, &info, &id[g]));
        assert_true(info.chain_depth <= FMS_CHAIN_MAX);
        assert_int_equal(info.parent_count, g > 0);
        assert_true(g == 0 || info.stored_bytes < BYTES / 4);
        expect(s, &id[g], kept[g], BYTES);
        fm_free(kept[g]);
    }
    fm_fsck_report report;
    tk_ok(fm_store_fsck(s, true, &report, NULL, NULL));
    assert_int_equal(report.faults, 0);
    assert_int_equal(report.bytes_verified, (uint64_t)GENERATIONS * BYTES);
    fm_free(w);
    fm_store_close(s);
    fm_free(root);
}

TEST(a_tree_goes_in_and_its_provider_gives_it_back)
{
    fm_store *s;
    char *root = fresh_store(&s);
    uint8_t *w = weights(2000000, 5);
    fm_shape shape = shape1(1000000);
    fm_txn *t;
    fm_tree *tree;
    fm_digest id;
    tk_ok(fm_tree_new(&tree));
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_path(t, tree, "README.md", fm_span_str("small")));
    tk_ok(fm_txn_put_path(t, tree, "tokenizer/tokenizer.json", fm_span_of(w, 100000)));
    tk_ok(fm_txn_put_tensor(t, &id, FM_BF16, &shape, fm_span_of(w, 2000000), NULL, NULL));
    tk_ok(fm_tree_put_tensor(tree, "tensors/a/weight", "a.weight", FM_BF16, &shape, &id));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    assert_int_equal(fm_tree_find(tree, "README.md")->kind, FM_ENTRY_FILE);
    assert_int_equal(fm_tree_find(tree, "tokenizer/tokenizer.json")->kind, FM_ENTRY_BLOB);

    fm_store *other;
    char *other_root = fresh_store(&other);
    fm_provider from = fm_store_provider(s), to = fm_store_provider(other);
    tk_ok(fm_txn_begin(&t, other));
    tk_ok(fm_txn_put_tree(t, tree, &from, NULL, NULL, NULL));
    fm_txn_stats st;
    tk_ok(fm_txn_commit(t, &st));
    fm_txn_close(t);
    assert_int_equal(st.objects_new, 2);
    fm_buf got;
    fm_buf_init(&got, 0);
    tk_ok(fm_entry_read(&got, &to, fm_tree_find(tree, "tensors/a/weight")));
    assert_int_equal(got.len, 2000000);
    assert_memory_equal(got.data, w, 2000000);
    fm_buf_release(&got);
    tk_ok(fm_txn_begin(&t, other));
    tk_ok(fm_txn_put_tree(t, tree, &from, NULL, NULL, NULL));
    tk_ok(fm_txn_commit(t, &st));
    fm_txn_close(t);
    assert_int_equal(st.objects_new, 0);
    assert_int_equal(st.bytes_stored, 0);
    fm_store_close(s);
    fm_store_close(other);
    fm_tree_free(tree);
    fm_free(w);
    fm_free(root);
    fm_free(other_root);
}

TEST(a_lost_or_ruined_index_is_built_again)
{
    fm_store *s;
    char *root = fresh_store(&s);
    uint8_t *w = weights(400000, 6);
    fm_shape shape = shape1(200000);
    fm_digest a = put_tensor(s, FM_BF16, &shape, w, 400000, NULL);
    w[0] ^= 1;
    fm_digest b = put_tensor(s, FM_BF16, &shape, w, 400000, &a);
    fm_store_totals before, after;
    tk_ok(fm_store_totals_of(s, &before));
    tk_ok(fm_store_rebuild_index(s));
    tk_ok(fm_store_totals_of(s, &after));
    assert_memory_equal(&before, &after, sizeof before);
    fm_store_close(s);
    static const char *const suffix[] = {"index.sqlite", "index.sqlite-wal", "index.sqlite-shm"};
    for (int ruin = 0; ruin < 2; ruin++) {
        for (int i = 0; i < 3; i++) {
            char *path = fm_path_join(root, suffix[i]);
            tk_ok(fm_remove_file(path));
            if (ruin && i == 0)
                tk_ok(fm_write_file(path, "this is no database at all, is it?", 34));
            fm_free(path);
        }
        tk_ok(fm_store_open(&s, root));
        tk_ok(fm_store_totals_of(s, &after));
        assert_memory_equal(&before, &after, sizeof before);
        expect(s, &b, w, 400000);
        fm_store_close(s);
    }
    fm_free(w);
    fm_free(root);
}

TEST(another_process_s_pack_is_found)
{
    fm_store *s, *writer;
    char *root = fresh_store(&s);
    tk_ok(fm_store_open(&writer, root));
    fm_shape shape = shape1(4);
    fm_digest id = put_tensor(writer, FM_U8, &shape, "abcd", 4, NULL);
    expect(s, &id, "abcd", 4);
    assert_true(fm_store_has(s, &id));
    fm_store_close(writer);
    fm_store_close(s);
    fm_free(root);
}

TEST(two_processes_commit_at_once)
{
    enum { EACH = 20 };
    fm_store *s;
    char *root = fresh_store(&s);
    fm_store_close(s);
    pid_t pid[2];
    for (int p = 0; p < 2; p++) {
        pid[p] = fork();
        if (pid[p])
            continue;
        int failed = fm_store_open(&s, root) != FM_OK;
        for (int i = 0; !failed && i < EACH; i++) {
            fm_txn *t;
            fm_digest id;
            char text[32];
            int len = snprintf(text, sizeof text, "object %d", i / 2 * 2 + (i % 2) * (p + 1) * 100);
            failed = fm_txn_begin(&t, s) != FM_OK ||
                     fm_txn_put_blob(t, &id, fm_span_of(text, (size_t)len), NULL) != FM_OK ||
                     fm_txn_commit(t, NULL) != FM_OK;
            fm_txn_close(t);
        }
        fm_store_close(s);
        _exit(failed);
    }
    for (int p = 0; p < 2; p++) {
        int status;
        assert_int_equal(waitpid(pid[p], &status, 0), pid[p]);
        assert_int_equal(status, 0);
    }
    tk_ok(fm_store_open(&s, root));
    fm_store_totals totals;
    tk_ok(fm_store_totals_of(s, &totals));
    assert_int_equal(totals.objects, EACH / 2 + 2 * (EACH / 2));
    fm_fsck_report report;
    tk_ok(fm_store_fsck(s, true, &report, NULL, NULL));
    assert_int_equal(report.faults, 0);
    assert_int_equal(report.repaired, 0);
    fm_store_close(s);
    fm_free(root);
}

TEST(the_same_input_gives_the_same_pack)
{
    char *name[2];
    uint8_t *w = weights(5000000, 8);
    for (int k = 0; k < 2; k++) {
        fm_store *s;
        char *root = fresh_store(&s);
        fm_shape shape = shape1(2500000);
        put_tensor(s, FM_BF16, &shape, w, 5000000, NULL);
        char *dir = fm_path_join(root, "packs");
        fm_names names;
        tk_ok(fm_list_dir(&names, dir));
        assert_int_equal(names.count, 1);
        name[k] = fm_strdup(names.name[0]);
        fm_names_release(&names);
        fm_free(dir);
        fm_store_close(s);
        fm_free(root);
    }
    assert_string_equal(name[0], name[1]);
    fm_free(name[0]);
    fm_free(name[1]);
    fm_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(a_newer_format_is_refused_by_name),
        cmocka_unit_test(every_dtype_round_trips),
        cmocka_unit_test(sizes_around_a_leaf_round_trip),
        cmocka_unit_test(raw_objects_can_be_seen_where_they_lie),
        cmocka_unit_test(the_same_object_is_stored_once),
        cmocka_unit_test(an_aborted_transaction_leaves_nothing),
        cmocka_unit_test(chains_of_children_stay_within_the_depth_limit),
        cmocka_unit_test(a_tree_goes_in_and_its_provider_gives_it_back),
        cmocka_unit_test(a_lost_or_ruined_index_is_built_again),
        cmocka_unit_test(another_process_s_pack_is_found),
        cmocka_unit_test(two_processes_commit_at_once),
        cmocka_unit_test(the_same_input_gives_the_same_pack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
