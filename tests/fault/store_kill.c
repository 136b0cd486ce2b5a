/* A transaction killed, or refused by the system, at every write-side call: the store opens, fsck
 * is clean, what was committed before is intact, and nothing is left in tmp/. */
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/base/math/rng.h"
#include "store/store.h"
#include "tests/testkit.h"

enum { BYTES = 300000, MAX_CALLS = 400 };

static void fill(uint8_t *p, uint64_t stream)
{
    for (size_t i = 0; i < BYTES; i++)
        p[i] = (uint8_t)fm_rng_u64(3, stream, i / 7);
}

/* Stores a tensor, a child of it, and a blob, in one transaction. */
static fm_status store_some(fm_store *s, uint64_t stream, fm_digest id[3])
{
    static uint8_t bytes[BYTES];
    fm_shape shape = {1, {BYTES / 2}};
    fill(bytes, stream);
    fm_txn *t;
    fm_status rc = fm_txn_begin(&t, s);
    if (rc != FM_OK)
        return rc;
    rc = fm_txn_put_tensor(t, &id[0], FM_BF16, &shape, fm_span_of(bytes, BYTES), NULL, NULL);
    bytes[100] ^= 1;
    if (rc == FM_OK)
        rc = fm_txn_put_tensor(t, &id[1], FM_BF16, &shape, fm_span_of(bytes, BYTES), &id[0], NULL);
    if (rc == FM_OK)
        rc = fm_txn_put_blob(t, &id[2], fm_span_of(bytes, 1000), NULL);
    if (rc == FM_OK)
        rc = fm_txn_commit(t, NULL);
    fm_txn_close(t);
    return rc;
}

static void print_fault(void *ctx, const char *text)
{
    (void)ctx;
    print_message("fault: %s\n", text);
}

static void expect_whole(const char *root, const fm_digest id[3])
{
    static uint8_t want[BYTES], got[BYTES];
    fm_store *s;
    tk_ok(fm_store_open(&s, root));
    fm_fsck_report report;
    tk_ok(fm_store_fsck(s, true, &report, print_fault, NULL));
    assert_int_equal(report.faults, 0);
    fill(want, 1);
    tk_ok(fm_store_read(s, &id[0], got, BYTES));
    assert_memory_equal(got, want, BYTES);
    want[100] ^= 1;
    tk_ok(fm_store_read(s, &id[1], got, BYTES));
    assert_memory_equal(got, want, BYTES);
    char *tmp = fm_path_join(root, "tmp");
    fm_names names;
    tk_ok(fm_list_dir(&names, tmp));
    assert_int_equal(names.count, 0);
    fm_names_release(&names);
    fm_free(tmp);
    fm_store_close(s);
}

static char *prepared(fm_digest id[3])
{
    char *root = tk_scratch();
    fm_store *s;
    tk_ok(fm_store_init(root));
    tk_ok(fm_store_open(&s, root));
    tk_ok(store_some(s, 1, id));
    fm_store_close(s);
    return root;
}

/* The child process: exit 0 when the transaction went through, 1 when it was refused. */
static void run_child(const char *root, uint64_t nth, int err)
{
    fm_store *s;
    fm_digest id[3];
    if (fm_store_open(&s, root) != FM_OK)
        _exit(2);
    fm_io_fail_at(nth, err);
    fm_status rc = store_some(s, 2 + nth, id);
    fm_store_close(s);
    _exit(rc == FM_OK ? 0 : 1);
}

static void at_every_call(int err)
{
    fm_digest id[3];
    char *root = prepared(id);
    uint64_t nth = 1;
    for (; nth < MAX_CALLS; nth++) {
        pid_t pid = fork();
        if (pid == 0)
            run_child(root, nth, err);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (err == 0)
            assert_true((WIFSIGNALED(status) && WTERMSIG(status) == 9) || WIFEXITED(status));
        else
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
        expect_whole(root, id);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            break;
    }
    assert_true(nth > 5);         /* open, writes, lock, fsync, rename, fsync of the folder */
    assert_true(nth < MAX_CALLS); /* the last run met no failure */
    fm_free(root);
}

TEST(a_kill_at_any_call_loses_nothing)
{
    at_every_call(0);
}

TEST(an_io_error_at_any_call_loses_nothing)
{
    at_every_call(EIO);
}

TEST(a_full_disk_at_any_call_loses_nothing)
{
    at_every_call(ENOSPC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kill_at_any_call_loses_nothing),
        cmocka_unit_test(an_io_error_at_any_call_loses_nothing),
        cmocka_unit_test(a_full_disk_at_any_call_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
