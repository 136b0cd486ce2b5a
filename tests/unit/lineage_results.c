/* lineage_results.c - results are found again, travel in git, and outlive lineage.sqlite. */
#include "tests/unit/lineage_kit.h"

static void key_of(char key[65], unsigned i)
{
    snprintf(key, 65, "%02x%062u", i * 7 % 256, i);
}

static void put(fm_repo *r, unsigned i, const char *value)
{
    char key[65];

    key_of(key, i);
    tk_ok(fm_result_put(r, key, fm_span_str(value)));
}

static void assert_result(fm_repo *r, unsigned i, const char *value)
{
    char key[65];
    fm_buf b;

    key_of(key, i);
    fm_buf_init(&b, 0);
    tk_ok(fm_result_get(r, &b, key));
    assert_string_equal(fm_buf_cstr(&b), value);
    fm_buf_release(&b);
}

static void assert_no_result(fm_repo *r, unsigned i)
{
    char key[65];
    fm_buf b;

    key_of(key, i);
    fm_buf_init(&b, 0);
    tk_fails(fm_result_get(r, &b, key), FM_ENOTFOUND, "no result");
    fm_buf_release(&b);
}

static void assert_clean(fm_repo *r)
{
    fm_fsck_report report;

    tk_ok(fm_repo_fsck(r, true, &report, NULL, NULL));
    assert_int_equal(report.faults, 0);
}

static void bad_arguments_are_refused(void **state)
{
    char *dir, key[65], bad[65] = "abc", escape[65] = "../../x";
    fm_repo *r = kit_repo(&dir);
    fm_oid a = kit_branch(r, "main", NULL, 0), nobody = {{4}};
    fm_buf b;

    (void)state;
    fm_buf_init(&b, 0);
    key_of(key, 1);
    tk_fails(fm_result_put(NULL, key, fm_span_str("1")), FM_EINVAL, NULL);
    tk_fails(fm_result_put(r, NULL, fm_span_str("1")), FM_EINVAL, NULL);
    tk_fails(fm_result_put(r, bad, fm_span_str("1")), FM_EINVAL, "64");
    tk_fails(fm_result_put(r, key, fm_span_str("{")), FM_EINVAL, "result");
    tk_fails(fm_result_get(r, &b, escape), FM_EINVAL, "64");
    tk_fails(fm_result_flush(NULL), FM_EINVAL, NULL);
    tk_fails(fm_note_add(r, &a, "two\nlines"), FM_EINVAL, "one line");
    tk_fails(fm_note_add(r, &a, NULL), FM_EINVAL, NULL);
    tk_fails(fm_note_add(r, &nobody, "x"), FM_ENOTFOUND, "no version 0400");
    tk_fails(fm_note_read(r, &b, &a), FM_ENOTFOUND, "no note");
    tk_fails(fm_note_read(r, &b, NULL), FM_EINVAL, NULL);
    fm_buf_release(&b);
    kit_close(r, dir);
}

static void a_result_is_found_before_and_after_a_flush(void **state)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid first, second;

    (void)state;
    assert_no_result(r, 1);
    tk_ok(fm_result_flush(r)); /* nothing to write */
    tk_fails(fm_ref_read(r, &first, "refs/fmstore/results"), FM_ENOTFOUND, NULL);
    for (unsigned i = 0; i < 100; i++)
        put(r, i, "{\"pass\":true}");
    assert_result(r, 99, "{\"pass\":true}");
    tk_ok(fm_result_flush(r));
    tk_ok(fm_ref_read(r, &first, "refs/fmstore/results"));
    put(r, 5, "{\"pass\":true}"); /* the same again is nothing new */
    tk_ok(fm_result_flush(r));
    tk_ok(fm_ref_read(r, &second, "refs/fmstore/results"));
    assert_true(fm_oid_eq(&first, &second));
    put(r, 5, "{\"pass\":false}");
    tk_ok(fm_result_flush(r));
    assert_result(r, 5, "{\"pass\":false}");
    assert_clean(r);
    kit_close(r, dir);
}

static void remove_sqlite(const char *dir)
{
    static const char *const end[] = {"", "-wal", "-shm"};
    char path[512];

    for (size_t i = 0; i < FM_ARRAY_LEN(end); i++) {
        snprintf(path, sizeof path, "%s/lineage.sqlite%s", dir, end[i]);
        tk_ok(fm_remove_file(path));
    }
}

static void a_lost_or_broken_sqlite_is_made_again(void **state)
{
    char *dir, path[512], junk[5000];
    fm_repo *r = kit_repo(&dir);

    (void)state;
    for (unsigned i = 0; i < 30; i++)
        put(r, i, "[1,2]");
    tk_ok(fm_result_flush(r));
    fm_repo_close(r);
    remove_sqlite(dir);
    tk_ok(fm_repo_open(&r, dir));
    assert_result(r, 17, "[1,2]");
    assert_clean(r);
    fm_repo_close(r);
    remove_sqlite(dir);
    memset(junk, 'j', sizeof junk);
    snprintf(path, sizeof path, "%s/lineage.sqlite", dir);
    tk_ok(fm_write_file(path, junk, sizeof junk));
    tk_ok(fm_repo_open(&r, dir));
    assert_result(r, 18, "[1,2]");
    tk_ok(fm_repo_rebuild_index(r));
    assert_result(r, 19, "[1,2]");
    put(r, 40, "7");
    tk_ok(fm_result_flush(r));
    assert_clean(r);
    kit_close(r, dir);
}

static void two_handles_join_by_union(void **state)
{
    char *dir;
    fm_repo *r = kit_repo(&dir), *other = NULL;

    (void)state;
    tk_ok(fm_repo_open(&other, dir));
    put(r, 1, "1");
    tk_ok(fm_result_flush(r));
    put(other, 2, "2");
    tk_ok(fm_result_flush(other));
    put(r, 3, "3");
    tk_ok(fm_result_flush(r));
    fm_repo_close(other);
    fm_repo_close(r);
    remove_sqlite(dir);
    tk_ok(fm_repo_open(&r, dir));
    assert_result(r, 1, "1");
    assert_result(r, 2, "2");
    assert_result(r, 3, "3");
    assert_clean(r);
    kit_close(r, dir);
}

static void notes_gather_lines(void **state)
{
    char *dir;
    fm_repo *r = kit_repo(&dir);
    fm_oid a = kit_branch(r, "main", NULL, 0), b = kit_branch(r, "next", &a, 1);
    fm_buf text;

    (void)state;
    fm_buf_init(&text, 0);
    tk_ok(fm_note_add(r, &a, "suite facts: 12 of 12"));
    tk_ok(fm_note_add(r, &b, "suite facts: 11 of 12"));
    tk_ok(fm_note_add(r, &a, "suite tone: 3 of 3"));
    tk_ok(fm_note_add(r, &a, "suite facts: 12 of 12"));
    tk_ok(fm_note_read(r, &text, &a));
    assert_string_equal(fm_buf_cstr(&text), "suite facts: 12 of 12\nsuite tone: 3 of 3\n");
    fm_buf_clear(&text);
    tk_ok(fm_note_read(r, &text, &b));
    assert_string_equal(fm_buf_cstr(&text), "suite facts: 11 of 12\n");
    assert_clean(r);
    fm_buf_release(&text);
    kit_close(r, dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(a_result_is_found_before_and_after_a_flush),
        cmocka_unit_test(two_handles_join_by_union),
        cmocka_unit_test(notes_gather_lines),
        cmocka_unit_test(a_lost_or_broken_sqlite_is_made_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
