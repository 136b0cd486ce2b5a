/* lineage_repo.c - a repository is made, found from below, and refused when it is newer. */
#include <sys/stat.h>
#include <unistd.h>

#include "tests/kit/lineage_kit.h"

TEST(bad_arguments_are_refused)
{
    fm_repo *r = (fm_repo *)1;

    tk_fails(fm_repo_init(NULL, true), FM_EINVAL, "no folder");
    tk_fails(fm_repo_init("", false), FM_EINVAL, "no folder");
    tk_fails(fm_repo_open(&r, NULL), FM_EINVAL, "no folder");
    assert_null(r);
    tk_fails(fm_repo_open(&r, "/nonexistent/x"), FM_ENOTFOUND, "is no folder");
    fm_repo_close(NULL);
}

TEST(a_folder_without_one_says_how_to_make_it)
{
    char *dir = tk_scratch();
    fm_repo *r = NULL;

    tk_fails(fm_repo_open(&r, dir), FM_ENOTFOUND, "fmstore init");
    fm_free(dir);
}

TEST(a_bare_repository_has_the_layout_of_the_design)
{
    static const char *const part[] = {"config", "lineage.git/HEAD", "packs", "tmp", "cache"};
    char *dir, path[512];
    fm_repo *r = kit_repo(&dir);

    for (size_t i = 0; i < FM_ARRAY_LEN(part); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, part[i]);
        assert_true(fm_path_exists(path));
    }
    assert_non_null(fm_repo_store(r));
    tk_fails(fm_repo_init(dir, true), FM_EEXISTS, "already holds");
    kit_close(r, dir);
}

TEST(it_is_found_from_a_folder_below)
{
    char *dir = tk_scratch(), below[512], want[512];
    fm_repo *r = NULL;

    tk_ok(fm_repo_init(dir, false));
    snprintf(below, sizeof below, "%s/a/b", dir);
    snprintf(want, sizeof want, "%s/.fmstore", dir);
    tk_ok(fm_make_dirs(below));
    tk_ok(fm_repo_open(&r, below));
    assert_string_equal(fm_repo_path(r), want);
    fm_repo_close(r);
    tk_ok(fm_repo_open(&r, want));
    fm_repo_close(r);
    fm_free(dir);
}

static void set_config(const char *dir, const char *text)
{
    char path[512];

    snprintf(path, sizeof path, "%s/config", dir);
    tk_ok(fm_write_file(path, text, strlen(text)));
}

TEST(a_newer_format_is_refused_and_nothing_is_written)
{
    char *dir, path[512];
    fm_repo *r = kit_repo(&dir);

    fm_repo_close(r);
    set_config(dir, "[fmstore]\n\tformat = 2\n");
    snprintf(path, sizeof path, "%s/index.sqlite", dir);
    tk_ok(fm_remove_file(path));
    tk_fails(fm_repo_open(&r, dir), FM_EVERSION, "format 2");
    assert_null(r);
    assert_false(fm_path_exists(path));
    set_config(dir, "[fmstore]\n\tformat = 0\n");
    tk_fails(fm_repo_open(&r, dir), FM_ECORRUPT, "at least 1");
    set_config(dir, "[core]\n");
    tk_fails(fm_repo_open(&r, dir), FM_ECORRUPT, "fmstore.format");
    set_config(dir, "[fmstore\n");
    tk_fails(fm_repo_open(&r, dir), FM_ECORRUPT, "fmstore.format");
    fm_free(dir);
}

TEST(an_init_that_was_killed_can_be_run_again)
{
    char *dir, path[512];
    fm_repo *r = kit_repo(&dir);

    fm_repo_close(r);
    snprintf(path, sizeof path, "%s/config", dir);
    tk_ok(fm_remove_file(path));
    tk_fails(fm_repo_open(&r, dir), FM_ENOTFOUND, "fmstore init");
    tk_ok(fm_repo_init(dir, true));
    tk_ok(fm_repo_open(&r, dir));
    kit_close(r, dir);
}

TEST(init_reports_what_the_system_refuses)
{
    char *dir = tk_scratch(), path[512];

    snprintf(path, sizeof path, "%s/file", dir);
    tk_ok(fm_write_file(path, "x", 1));
    tk_fails(fm_repo_init(path, false), FM_EIO, NULL);
    fm_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(a_folder_without_one_says_how_to_make_it),
        cmocka_unit_test(a_bare_repository_has_the_layout_of_the_design),
        cmocka_unit_test(it_is_found_from_a_folder_below),
        cmocka_unit_test(a_newer_format_is_refused_and_nothing_is_written),
        cmocka_unit_test(an_init_that_was_killed_can_be_run_again),
        cmocka_unit_test(init_reports_what_the_system_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
