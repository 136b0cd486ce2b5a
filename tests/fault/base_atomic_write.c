/* A durable replace, with each of its system calls failing or killing the process in turn: the
 * place holds the old file whole until the rename, the new one whole from then on. */
#include "tests/testkit.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLS 5   /* open, write, fsync, rename, fsync of the folder */
#define RENAMED 5 /* the call before which the new file is in place */

static const char old_text[] = "the old content";
static const char new_text[] = "the new content, which is longer";

static void assert_file(const char *path, const char *want)
{
    fm_buf b;

    fm_buf_init(&b, 0);
    tk_ok(fm_read_file(&b, path, 0));
    assert_string_equal(fm_buf_cstr(&b), want);
    fm_buf_release(&b);
}

static size_t files_in(const char *dir)
{
    fm_names names;

    tk_ok(fm_list_dir(&names, dir));
    size_t count = names.count;
    fm_names_release(&names);
    return count;
}

TEST(a_failing_call_leaves_the_old_file_and_no_temporary)
{
    static const int errors[] = {ENOSPC, EIO, EDQUOT, EROFS};
    char *dir = tk_scratch();
    char *path = fm_path_join(dir, "file");

    for (uint64_t nth = 1; nth <= CALLS; nth++)
        for (size_t i = 0; i < FM_ARRAY_LEN(errors); i++) {
            tk_ok(fm_write_file(path, old_text, strlen(old_text)));
            fm_io_fail_at(nth, errors[i]);
            tk_fails(fm_write_file(path, new_text, strlen(new_text)), FM_EIO, strerror(errors[i]));
            fm_io_fail_at(0, 0);
            assert_file(path, nth < RENAMED ? old_text : new_text);
            assert_int_equal(files_in(dir), 1);
        }
    uint64_t before = fm_io_call_count();
    tk_ok(fm_write_file(path, new_text, strlen(new_text)));
    assert_int_equal(fm_io_call_count() - before, CALLS);
    fm_free(path);
    fm_free(dir);
}

TEST(out_of_memory_from_the_system_is_told_apart)
{
    char *dir = tk_scratch();
    char *path = fm_path_join(dir, "file");

    fm_io_fail_at(1, ENOMEM);
    tk_fails(fm_write_file(path, "x", 1), FM_ENOMEM, "out of memory");
    fm_io_fail_at(0, 0);
    fm_free(path);
    fm_free(dir);
}

TEST(a_writer_repeats_its_first_error_and_never_commits)
{
    enum { BIG = 1 << 20 };
    char *dir = tk_scratch();
    char *path = fm_path_join(dir, "file");
    char *big = fm_calloc(1, BIG);
    fm_writer *w;

    tk_ok(fm_write_file(path, old_text, strlen(old_text)));
    tk_ok(fm_writer_open(&w, path, NULL));
    fm_io_fail_at(1, ENOSPC);
    tk_fails(fm_writer_write(w, big, BIG), FM_EIO, strerror(ENOSPC));
    fm_fail(FM_EINVAL, "something else");
    tk_fails(fm_writer_write(w, big, 1), FM_EIO, strerror(ENOSPC));
    tk_fails(fm_writer_pwrite(w, 0, big, 1), FM_EIO, strerror(ENOSPC));
    tk_fails(fm_writer_commit(w, NULL), FM_EIO, strerror(ENOSPC));
    fm_writer_close(w);
    assert_file(path, old_text);
    assert_int_equal(files_in(dir), 1);
    fm_free(big);
    fm_free(path);
    fm_free(dir);
}

TEST(folders_and_locks_report_a_failing_call)
{
    char *dir = tk_scratch();
    char *path = fm_path_join(dir, "a/b");
    fm_lock *lock;

    fm_io_fail_at(3, ENOSPC); /* mkdir a, fsync of its folder, mkdir a/b */
    tk_fails(fm_make_dirs(path), FM_EIO, "a/b");
    tk_ok(fm_make_dirs(path));
    fm_io_fail_at(2, EACCES);
    tk_fails(fm_remove_tree(dir), FM_EIO, "remove");
    fm_io_fail_at(1, EACCES);
    tk_fails(fm_lock_take(&lock, path), FM_EIO, "lock");
    fm_free(path);
    fm_free(dir);
}

/* Run `program write <path>` in a process of its own that kills itself at its nth call. */
static int killed_write(const char *program, const char *path, int nth)
{
    int status;
    char text[16];
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        snprintf(text, sizeof(text), "%d", nth);
        execl(program, program, "write", path, text, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

TEST(a_kill_at_any_call_leaves_a_whole_file)
{
    char *dir = tk_scratch();
    char *path = fm_path_join(dir, "file");

    for (int nth = 1; nth <= CALLS + 1; nth++) {
        tk_ok(fm_write_file(path, old_text, strlen(old_text)));
        int status = killed_write("/proc/self/exe", path, nth);
        if (nth <= CALLS)
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        assert_file(path, nth < RENAMED ? old_text : new_text);
    }
    fm_free(path);
    fm_free(dir);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failing_call_leaves_the_old_file_and_no_temporary),
        cmocka_unit_test(out_of_memory_from_the_system_is_told_apart),
        cmocka_unit_test(a_writer_repeats_its_first_error_and_never_commits),
        cmocka_unit_test(folders_and_locks_report_a_failing_call),
        cmocka_unit_test(a_kill_at_any_call_leaves_a_whole_file),
    };

    if (argc == 4 && strcmp(argv[1], "write") == 0) {
        fm_io_fail_at(strtoull(argv[3], NULL, 10), 0);
        return fm_write_file(argv[2], new_text, strlen(new_text)) == FM_OK ? 0 : 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
