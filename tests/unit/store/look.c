/* Opening skips the comparison of index and folder only while nothing has changed in the folder. */
#include "tests/testkit.h"

#include <stdio.h>
#include <string.h>

#include "store/pack/store_priv.h"

static fm_digest put(fm_store *s, unsigned seed)
{
    char text[64];
    fm_txn *t = NULL;
    fm_digest id;
    snprintf(text, sizeof text, "object number %u", seed);
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_blob(t, &id, fm_span_str(text), NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    return id;
}

static fm_store *store_at(char **dir)
{
    fm_store *s = NULL;
    *dir = tk_scratch();
    tk_ok(fm_store_init(*dir));
    tk_ok(fm_store_open(&s, *dir));
    return s;
}

/* The only pack of a folder. */
static char *a_pack(const char *dir)
{
    char *folder = fm_path_join(dir, "packs"), *path = NULL;
    fm_names names;
    tk_ok(fm_list_dir(&names, folder));
    assert_int_equal(names.count, 1);
    path = fm_path_join(folder, names.name[0]);
    fm_names_release(&names);
    fm_free(folder);
    return path;
}

TEST(commits_keep_it_fresh_for_all)
{
    char *dir;
    fm_store *s = store_at(&dir), *other = NULL;
    for (unsigned i = 0; i < 20; i++) {
        put(s, i);
        assert_true(fms_store_is_fresh(s));
    }
    tk_ok(fm_store_open(&other, dir));
    assert_true(fms_store_is_fresh(other));
    const fm_digest id = put(other, 100);
    assert_true(fms_store_is_fresh(s));
    assert_true(fm_store_has(s, &id));
    fm_store_close(other);
    fm_store_close(s);
    fm_free(dir);
}

/* Each in the same tick of the file system's clock as the commit before it. */
TEST(a_pack_that_goes_or_comes_is_seen)
{
    for (unsigned i = 0; i < 20; i++) {
        char *dir;
        fm_store *s = store_at(&dir);
        const fm_digest id = put(s, i);
        char *pack = a_pack(dir);
        fm_buf bytes;
        fm_buf_init(&bytes, 0);
        tk_ok(fm_read_file(&bytes, pack, 1u << 20));
        assert_true(fms_store_is_fresh(s));
        tk_ok(fm_remove_file(pack));
        assert_false(fms_store_is_fresh(s));
        fm_store_close(s);
        tk_ok(fm_store_open(&s, dir));
        assert_false(fm_store_has(s, &id));
        tk_ok(fm_write_file(pack, bytes.data, bytes.len));
        assert_false(fms_store_is_fresh(s));
        assert_true(fm_store_has(s, &id)); /* a miss looks */
        assert_true(fms_store_is_fresh(s));
        fm_store_close(s);
        fm_buf_release(&bytes);
        fm_free(pack);
        fm_free(dir);
    }
}

/* An index of before, say from a backup: it has another time. */
TEST(an_old_index_is_brought_up_to_date)
{
    char *dir, *path;
    fm_store *s = store_at(&dir);
    fm_buf old;
    put(s, 1);
    fm_store_close(s);
    path = fm_path_join(dir, "index.sqlite");
    fm_buf_init(&old, 0);
    tk_ok(fm_read_file(&old, path, 1u << 20));
    tk_ok(fm_store_open(&s, dir));
    const fm_digest id = put(s, 2);
    fm_store_close(s);
    tk_ok(fm_write_file(path, old.data, old.len));
    tk_ok(fm_store_open(&s, dir));
    fm_store_totals totals;
    tk_ok(fm_store_totals_of(s, &totals));
    assert_int_equal(totals.packs, 2);
    assert_true(fm_store_has(s, &id));
    fm_store_close(s);
    fm_buf_release(&old);
    fm_free(path);
    fm_free(dir);
}

/* A pack that is damaged may still be being copied: its bytes do not change the folder's time. */
TEST(a_damaged_pack_is_looked_at_each_time)
{
    char *dir;
    fm_store *s = store_at(&dir);
    const fm_digest id = put(s, 1);
    char *pack = a_pack(dir);
    fm_buf bytes;
    fm_buf_init(&bytes, 0);
    tk_ok(fm_read_file(&bytes, pack, 1u << 20));
    fm_store_close(s);
    tk_ok(fm_write_file(pack, bytes.data, bytes.len / 2));
    tk_ok(fm_store_open(&s, dir));
    tk_ok(fm_store_rebuild_index(s));
    assert_false(fm_store_has(s, &id));
    assert_false(fms_store_is_fresh(s));
    fm_store_close(s);
    fm_buf_release(&bytes);
    fm_free(pack);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commits_keep_it_fresh_for_all),
        cmocka_unit_test(a_pack_that_goes_or_comes_is_seen),
        cmocka_unit_test(an_old_index_is_brought_up_to_date),
        cmocka_unit_test(a_damaged_pack_is_looked_at_each_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
