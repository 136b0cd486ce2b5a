/* Files: errors name the path, writers publish whole files or nothing. */
#include "tests/testkit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char *dir; /* the scratch folder of this program */

static char *at(const char *name)
{
    char *path = fm_path_join(dir, name);
    assert_non_null(path);
    return path;
}

static int make_dir(void **state)
{
    (void)state;
    dir = tk_scratch();
    return 0;
}

static int drop_dir(void **state)
{
    (void)state;
    fm_free(dir);
    return 0;
}

static void assert_file(const char *path, const char *want)
{
    fm_buf b;

    fm_buf_init(&b, 0);
    tk_ok(fm_read_file(&b, path, 0));
    assert_string_equal(fm_buf_cstr(&b), want);
    fm_buf_release(&b);
}

static size_t files_in(const char *path)
{
    fm_names names;

    tk_ok(fm_list_dir(&names, path));
    size_t count = names.count;
    fm_names_release(&names);
    return count;
}

TEST(missing_files_are_not_found_by_name)
{
    char *path = at("nothing/here");
    fm_file_map map;
    fm_names names;
    fm_writer *w;
    fm_buf b;
    uint64_t n;

    fm_buf_init(&b, 0);
    tk_fails(fm_map_file(&map, path), FM_ENOTFOUND, "nothing/here");
    tk_fails(fm_read_file(&b, path, 0), FM_ENOTFOUND, "nothing/here");
    tk_fails(fm_pread_file(path, 0, &n, 1), FM_ENOTFOUND, "nothing/here");
    tk_fails(fm_file_bytes(&n, path), FM_ENOTFOUND, "nothing/here");
    tk_fails(fm_list_dir(&names, path), FM_ENOTFOUND, "nothing/here");
    tk_fails(fm_write_file(path, "x", 1), FM_ENOTFOUND, "nothing/here");
    tk_fails(fm_writer_open(&w, NULL, NULL), FM_EINVAL, NULL);
    assert_null(w);
    tk_ok(fm_remove_file(path));
    tk_ok(fm_remove_tree(path));
    assert_false(fm_path_exists(path));
    fm_free(path);
}

TEST(folders_are_no_files)
{
    fm_file_map map;
    fm_buf b;
    uint64_t n;

    fm_buf_init(&b, 0);
    tk_fails(fm_map_file(&map, dir), FM_EIO, "not a regular file");
    tk_fails(fm_file_bytes(&n, dir), FM_EIO, "not a regular file");
    tk_fails(fm_read_file(&b, dir, 0), FM_EIO, NULL);
    fm_buf_release(&b);
}

TEST(what_is_written_reads_back)
{
    char *path = at("a");
    fm_file_map map;
    uint64_t n;
    char two[3] = {0};

    tk_ok(fm_write_file(path, "hello", 5));
    assert_file(path, "hello");
    tk_ok(fm_write_file(path, "bye", 3));
    assert_file(path, "bye");
    tk_ok(fm_map_file(&map, path));
    assert_int_equal(map.len, 3);
    assert_memory_equal(map.data, "bye", 3);
    fm_unmap_file(&map);
    fm_unmap_file(&map);
    tk_ok(fm_file_bytes(&n, path));
    assert_int_equal(n, 3);
    tk_ok(fm_pread_file(path, 1, two, 2));
    assert_string_equal(two, "ye");
    tk_fails(fm_pread_file(path, 2, two, 2), FM_ECORRUPT, "ends at byte 3");
    tk_fails(fm_pread_file(path, UINT64_MAX, two, 2), FM_EINVAL, NULL);
    fm_free(path);
}

TEST(empty_files_map_and_read_as_nothing)
{
    char *path = at("empty");
    fm_file_map map;

    tk_ok(fm_write_file(path, NULL, 0));
    tk_ok(fm_map_file(&map, path));
    assert_int_equal(map.len, 0);
    fm_unmap_file(&map);
    assert_file(path, "");
    fm_free(path);
}

TEST(reading_appends_and_stops_at_the_limit)
{
    char *path = at("limit");
    fm_buf b;

    tk_ok(fm_write_file(path, "12345", 5));
    fm_buf_init(&b, 0);
    fm_buf_str(&b, "x");
    tk_ok(fm_read_file(&b, path, 5));
    assert_string_equal(fm_buf_cstr(&b), "x12345");
    tk_fails(fm_read_file(&b, path, 4), FM_ELIMIT, "larger than 4 bytes");
    assert_string_equal(fm_buf_cstr(&b), "x12345");
    fm_buf_release(&b);
    fm_buf_init(&b, 4); /* the buffer's own maximum holds as well */
    tk_fails(fm_read_file(&b, path, 0), FM_ELIMIT, NULL);
    fm_buf_release(&b);
    fm_buf_init(&b, 5);
    tk_ok(fm_read_file(&b, path, 0));
    assert_int_equal(b.max, 5);
    fm_buf_release(&b);
    fm_free(path);
}

TEST(a_writer_streams_large_and_small_pieces_in_order)
{
    enum { BIG = 300000 };
    char *path = at("stream");
    char *big = fm_malloc(BIG);
    fm_writer *w;
    fm_file_map map;

    memset(big, 'b', BIG);
    tk_ok(fm_writer_open(&w, path, NULL));
    for (int i = 0; i < 50000; i++)
        tk_ok(fm_writer_write(w, "abcdefg", 7));
    tk_ok(fm_writer_write(w, big, BIG));
    tk_ok(fm_writer_write(w, NULL, 0));
    tk_ok(fm_writer_write(w, "end", 3));
    assert_int_equal(fm_writer_offset(w), 350000 + BIG + 3);
    tk_ok(fm_writer_pwrite(w, 350000 + BIG, "END", 3)); /* over bytes that were still buffered */
    tk_ok(fm_writer_pwrite(w, 0, "HEAD", 4));
    assert_int_equal(fm_writer_offset(w), 350000 + BIG + 3);
    assert_false(fm_path_exists(path));
    tk_ok(fm_writer_commit(w, NULL));
    tk_fails(fm_writer_write(w, "x", 1), FM_EINVAL, "already committed");
    tk_fails(fm_writer_commit(w, NULL), FM_EINVAL, "already committed");
    fm_writer_close(w);
    tk_ok(fm_map_file(&map, path));
    assert_int_equal(map.len, 350000 + BIG + 3);
    assert_memory_equal(map.data, "HEADefgabcdefg", 14);
    assert_memory_equal(map.data + 350000 - 2, "fgbbb", 5);
    assert_memory_equal(map.data + map.len - 4, "bEND", 4);
    fm_unmap_file(&map);
    fm_free(big);
    fm_free(path);
}

TEST(a_writer_that_is_closed_early_leaves_nothing)
{
    char *folder = at("early");
    char *path = fm_path_join(folder, "x");
    fm_writer *w;
    fm_names names;
    char want[64];

    tk_ok(fm_make_dirs(folder));
    tk_ok(fm_writer_open(&w, path, NULL));
    tk_ok(fm_list_dir(&names, folder));
    assert_int_equal(names.count, 1);
    snprintf(want, sizeof(want), "tmp-%ld-", (long)getpid()); /* the owner can be told */
    assert_memory_equal(names.name[0], want, strlen(want));
    fm_names_release(&names);
    fm_fail(FM_EIO, "the reason");
    fm_writer_close(w);
    assert_string_equal(fm_error_text(), "the reason");
    fm_writer_close(NULL);
    assert_int_equal(files_in(folder), 0);
    fm_free(path);
    fm_free(folder);
}

static char *only_file(const char *folder)
{
    fm_names names;

    tk_ok(fm_list_dir(&names, folder));
    assert_int_equal(names.count, 1);
    char *path = fm_path_join(folder, names.name[0]);
    fm_names_release(&names);
    return path;
}

TEST(a_kept_temporary_is_gone_on_with)
{
    char *folder = at("kept"), *path = at("whole");
    fm_writer *w, *other;
    fm_file_map map;

    tk_ok(fm_make_dirs(folder));
    tk_ok(fm_writer_open(&w, NULL, folder));
    fm_writer_keep(w, true);
    tk_ok(fm_writer_write(w, "abc", 3));
    char *temp = only_file(folder);
    assert_string_equal(fm_writer_temp(w), temp);
    tk_fails(fm_writer_resume(&other, temp), FM_ECONFLICT, "held by another");
    fm_writer_close(w);
    assert_file(temp, "abc");
    tk_ok(fm_writer_resume(&w, temp));
    assert_int_equal(fm_writer_offset(w), 3);
    tk_ok(fm_writer_write(w, "defgh", 5));
    tk_ok(fm_writer_map(&map, w, 100000)); /* more than there is */
    tk_ok(fm_writer_flush(w));
    assert_memory_equal(map.data, "abcdefgh", 8);
    fm_unmap_file(&map);
    tk_ok(fm_writer_write(w, "ijk", 3));
    tk_fails(fm_writer_cut(w, 12), FM_EINVAL, "beyond");
    tk_ok(fm_writer_cut(w, 9)); /* in what is not written yet */
    tk_ok(fm_writer_cut(w, 5));
    assert_int_equal(fm_writer_offset(w), 5);
    fm_writer_close(w);
    assert_file(temp, "abcde");
    tk_ok(fm_writer_resume(&w, temp));
    tk_ok(fm_writer_write(w, "z", 1));
    tk_ok(fm_writer_commit(w, path));
    assert_null(fm_writer_temp(w));
    fm_writer_close(w);
    assert_file(path, "abcdez");
    assert_int_equal(files_in(folder), 0);
    tk_fails(fm_writer_resume(&w, temp), FM_ENOTFOUND, temp);
    tk_fails(fm_writer_resume(&w, folder), FM_EIO, folder);
    tk_ok(fm_write_file(temp, "abc", 3));
    tk_ok(fm_writer_resume(&w, temp));
    fm_writer_keep(w, false);
    fm_writer_close(w);
    assert_int_equal(files_in(folder), 0);
    fm_free(temp);
    fm_free(path);
    fm_free(folder);
}

TEST(the_name_may_be_decided_at_commit)
{
    char *tmp = at("staging");
    char *path = at("late");
    fm_writer *w;

    tk_ok(fm_make_dirs(tmp));
    tk_ok(fm_writer_open(&w, NULL, tmp));
    tk_ok(fm_writer_write(w, "x", 1));
    tk_fails(fm_writer_commit(w, NULL), FM_EINVAL, "a path is needed");
    tk_ok(fm_writer_commit(w, path));
    fm_writer_close(w);
    assert_file(path, "x");
    assert_int_equal(files_in(tmp), 0);
    fm_free(path);
    fm_free(tmp);
}

TEST(folders_are_made_listed_in_order_and_removed)
{
    static const char *const names_of[] = {"b", "a", "B", "\xc3\xa9"};
    char *deep = at("tree/x//y/");
    char *tree = at("tree");
    fm_names names;

    tk_ok(fm_make_dirs(deep));
    tk_ok(fm_make_dirs(deep));
    assert_true(fm_path_is_dir(deep));
    for (size_t i = 0; i < FM_ARRAY_LEN(names_of); i++) {
        char *f = fm_path_join(deep, names_of[i]);
        tk_ok(fm_write_file(f, "", 0));
        tk_fails(fm_make_dirs(f), FM_EIO, names_of[i]);
        fm_free(f);
    }
    tk_ok(fm_list_dir(&names, deep));
    assert_int_equal(names.count, 4);
    assert_string_equal(names.name[0], "B");
    assert_string_equal(names.name[1], "a");
    assert_string_equal(names.name[3], "\xc3\xa9");
    fm_names_release(&names);
    tk_ok(fm_fsync_dir(tree));
    tk_ok(fm_remove_tree(tree));
    assert_false(fm_path_exists(tree));
    fm_free(deep);
    fm_free(tree);
}

TEST(removing_a_tree_does_not_follow_links)
{
    char *kept = at("kept");
    char *tree = at("linked");
    char *file = fm_path_join(kept, "file");
    char *to = fm_path_join(tree, "link");

    tk_ok(fm_make_dirs(kept));
    tk_ok(fm_make_dirs(tree));
    tk_ok(fm_write_file(file, "x", 1));
    assert_int_equal(symlink(kept, to), 0);
    tk_ok(fm_remove_tree(tree));
    assert_file(file, "x");
    assert_int_equal(symlink("/nowhere", tree), 0);
    assert_true(fm_path_exists(tree)); /* a broken link is there */
    tk_ok(fm_remove_tree(tree));
    assert_false(fm_path_exists(tree));
    fm_free(to);
    fm_free(file);
    fm_free(tree);
    fm_free(kept);
}

TEST(a_file_has_a_second_name)
{
    char *from = at("first"), *to = at("second"), *copy = at("copy");
    uint64_t a[2], b[2];

    tk_ok(fm_write_file(from, "bytes", 5));
    tk_ok(fm_link_file(from, to));
    tk_ok(fm_file_identity(a, from));
    tk_ok(fm_file_identity(b, to));
    assert_memory_equal(a, b, sizeof a);
    tk_fails(fm_link_file(from, to), FM_EEXISTS, "second");
    fm_io_fail_at(1, EXDEV); /* as on another file system */
    tk_ok(fm_link_file(from, copy));
    fm_io_fail_at(0, 0);
    tk_ok(fm_file_identity(b, copy));
    assert_true(a[1] != b[1]);
    tk_ok(fm_remove_file(from));
    assert_file(to, "bytes");
    assert_file(copy, "bytes");
    tk_ok(fm_remove_file(to));
    tk_fails(fm_link_file(from, to), FM_ENOTFOUND, "first");
    fm_free(from);
    fm_free(to);
    fm_free(copy);
}

TEST(paths_join_with_one_slash)
{
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}};

    for (size_t i = 0; i < FM_ARRAY_LEN(cases); i++) {
        char *p = fm_path_join(cases[i][0], cases[i][1]);
        assert_string_equal(p, cases[i][2]);
        fm_free(p);
    }
    assert_string_equal(fm_path_base("a/b.c"), "b.c");
    assert_string_equal(fm_path_base("b.c"), "b.c");
    assert_string_equal(fm_path_base("a/"), "");
}

TEST(a_lock_is_taken_dropped_and_taken_again)
{
    char *path = at("lock");
    fm_lock *lock;

    for (int i = 0; i < 2; i++) {
        tk_ok(fm_lock_take(&lock, path));
        fm_lock_drop(lock);
    }
    fm_lock_drop(NULL);
    assert_true(fm_path_exists(path));
    tk_fails(fm_lock_take(&lock, "/nowhere/at/all"), FM_ENOTFOUND, "/nowhere/at/all");
    assert_null(lock);
    fm_free(path);
}

TEST(a_lock_is_tried_without_waiting_and_ended_with_its_file)
{
    char *path = at("try");
    fm_lock *lock, *other;

    tk_ok(fm_lock_try(&lock, path));
    tk_fails(fm_lock_try(&other, path), FM_ECONFLICT, "another process");
    assert_null(other);
    tk_ok(
        fm_remove_file(path)); /* as if its holder were just ending: the old file counts no more */
    tk_ok(fm_lock_try(&other, path));
    fm_lock_drop(lock);
    tk_fails(fm_lock_try(&lock, path), FM_ECONFLICT, "another process");
    fm_lock_end(other, path);
    assert_false(fm_path_exists(path));
    tk_ok(fm_lock_try(&lock, path));
    fm_lock_end(lock, path);
    fm_lock_end(NULL, path);
    tk_fails(fm_lock_try(&lock, "/nowhere/at/all"), FM_ENOTFOUND, "/nowhere/at/all");
    fm_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_files_are_not_found_by_name),
        cmocka_unit_test(folders_are_no_files),
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(empty_files_map_and_read_as_nothing),
        cmocka_unit_test(reading_appends_and_stops_at_the_limit),
        cmocka_unit_test(a_writer_streams_large_and_small_pieces_in_order),
        cmocka_unit_test(a_writer_that_is_closed_early_leaves_nothing),
        cmocka_unit_test(a_kept_temporary_is_gone_on_with),
        cmocka_unit_test(the_name_may_be_decided_at_commit),
        cmocka_unit_test(folders_are_made_listed_in_order_and_removed),
        cmocka_unit_test(removing_a_tree_does_not_follow_links),
        cmocka_unit_test(a_file_has_a_second_name),
        cmocka_unit_test(paths_join_with_one_slash),
        cmocka_unit_test(a_lock_is_taken_dropped_and_taken_again),
        cmocka_unit_test(a_lock_is_tried_without_waiting_and_ended_with_its_file),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
