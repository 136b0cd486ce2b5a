/* An intake killed, or refused by the system, at every write-side call, also while it takes over
 * what one before it left: every record that had ended is stored by the next intake, the cut one
 * goes on at its byte, and the store is clean. */
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/kit/exchange_kit.h"

enum { OBJECTS = 5, BYTES = 300000, PIECE = 50000, MAX_CALLS = 400, BUFFER_BYTES = 1 << 17 };

/* What the killed process had done: shared with it. */
typedef struct progress {
    uint32_t ended;  /* records */
    uint64_t handed; /* bytes of the next one */
} progress;

typedef enum start { EMPTY, LEFTOVERS, DEEPER } start; /* what the receiver has */

static xk_store from;
static progress *done;

/* Two tensors with a child each, and a blob, in an order in which they may go. */
static int set_up(void **state)
{
    static uint8_t bytes[BYTES];
    (void)state;
    from = xk_empty();
    for (int k = 0; k < 4; k++) {
        if (k % 2 == 0)
            for (size_t i = 0; i < BYTES; i++)
                bytes[i] = (uint8_t)fm_rng_u64(3, (uint64_t)k, i);
        else
            for (size_t i = 0; i < BYTES; i += 20)
                bytes[i] ^= 1;
        xk_put(&from, k, FM_BF16, BYTES / 2, bytes, k % 2 ? k - 1 : -1, NULL);
    }
    xk_put_blob(&from, 4, bytes, 1000);
    for (int k = 0; k < OBJECTS; k++)
        tk_ok(fm_record_info_of(from.s, &from.info[k], &from.id[k]));
    done = mmap(NULL, sizeof *done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(done != MAP_FAILED);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    munmap(done, sizeof *done);
    xk_release(&from);
    return 0;
}

static fm_status hand(void *ctx, const void *data, size_t len)
{
    const uint8_t *p = data;
    for (size_t n; len > 0; p += n, len -= n) {
        n = FM_MIN(len, (size_t)PIECE);
        FM_TRY(fm_intake_bytes(ctx, p, n));
        done->handed += n;
    }
    return FM_OK;
}

/* Receives what is not here, going on with what is cut; `most`: how many records. */
static fm_status transfer(fm_store *to, uint32_t most)
{
    fm_intake *in;
    fm_digest id, head;
    uint64_t cut;
    FM_TRY(fm_intake_open(&in, to));
    fm_status rc = FM_OK;
    const bool is_cut = fm_intake_cut(in, &id, &head, &cut);
    for (uint32_t k = 0; rc == FM_OK && k < most; k++) {
        const uint64_t at = is_cut && fm_digest_eq(&id, &from.id[k]) ? cut : 0;
        if (at == 0 && fm_intake_has(in, &from.id[k])) {
            done->ended = FM_MAX(done->ended, k + 1);
            continue;
        }
        done->handed = at;
        rc = fm_intake_begin(in, &from.info[k], at);
        FM_THEN(rc, fm_record_send(from.s, &from.info[k], at, hand, in));
        FM_THEN(rc, fm_intake_end(in));
        if (rc == FM_OK) {
            done->ended = FM_MAX(done->ended, k + 1);
            done->handed = 0;
        }
    }
    if (rc == FM_OK && most == OBJECTS)
        rc = fm_intake_publish(in, NULL);
    fm_intake_close(in);
    return rc;
}

/* The child process: exit 0 when no call failed, 1 when one did, and the transfer with it or
 * not. */
static void run_child(const char *root, uint64_t nth, int err)
{
    fm_store *s;
    if (fm_store_open(&s, root) != FM_OK)
        _exit(2);
    const uint64_t calls = fm_io_call_count();
    fm_io_fail_at(nth, err);
    fm_status rc = transfer(s, OBJECTS);
    fm_store_close(s);
    _exit(rc == FM_OK && fm_io_call_count() - calls < nth ? 0 : 1);
}

/* True: no call failed any more. */
static bool broken_off(const char *root, uint64_t nth, int err)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        run_child(root, nth, err);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (err == 0)
        assert_true((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
                    (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    else
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Takes over what is there, looks at it, and finishes. */
static void expect_nothing_lost(const char *root, start what, bool cut_may_go)
{
    fm_store *s = xk_open(root);
    fm_intake *in;
    fm_digest id, head;
    uint64_t cut;
    xk_sound(s);
    tk_ok(fm_intake_open(&in, s));
    for (uint32_t k = 0; k < done->ended; k++)
        assert_true(fm_store_has(s, &from.id[k]));
    if (fm_intake_cut(in, &id, &head, &cut)) {
        assert_true(fm_digest_eq(&id, &from.id[done->ended]));
        assert_true(cut <= done->handed && cut + BUFFER_BYTES >= done->handed);
    } else if (!cut_may_go && done->ended < OBJECTS && !fm_store_has(s, &from.id[done->ended])) {
        assert_true(done->handed < BUFFER_BYTES + 384); /* not even its head was written */
    }
    fm_intake_close(in);
    tk_ok(transfer(s, OBJECTS));
    fm_store_close(s);
    s = xk_open(root);
    for (int k = what == DEEPER; k < OBJECTS; k++)
        xk_expect(&from, k, s);
    fm_object_info child;
    tk_ok(fm_store_info(s, &child, &from.id[1]));
    assert_int_equal(child.chain_depth, what == DEEPER ? 2 : 1);
    xk_sound(s);
    assert_int_equal(xk_files(root, "incoming"), 0);
    assert_int_equal(xk_files(root, "tmp"), 0);
    fm_store_close(s);
}

/* Two whole records and a part of the third. */
static void leave_some(const char *root)
{
    fm_store *s = xk_open(root);
    fm_intake *in;
    tk_ok(transfer(s, 2));
    tk_ok(fm_intake_open(&in, s)); /* which publishes them */
    tk_ok(xk_send(&from, 4, in, 0));
    xk_send_part(&from, 2, in, 200000);
    fm_intake_close(in);
    fm_store_close(s);
    done->ended = 2;
    done->handed = 200000;
}

/* The first tensor as a child, so that the depth of its own child has to be another here. */
static void store_deeper(const char *root)
{
    static uint8_t bytes[BYTES];
    xk_store to = {.s = xk_open(root)};
    tk_ok(fm_store_read(from.s, &from.id[0], bytes, BYTES));
    bytes[9] ^= 1;
    xk_put(&to, 1, FM_BF16, BYTES / 2, bytes, -1, NULL);
    bytes[9] ^= 1;
    xk_put(&to, 0, FM_BF16, BYTES / 2, bytes, 1, NULL);
    assert_true(fm_digest_eq(&to.id[0], &from.id[0]));
    fm_store_close(to.s);
    done->ended = 1;
}

static void at_every_call(int err, start what)
{
    char *scratch = tk_scratch();
    uint64_t nth = 1;
    for (bool through = false; !through; nth++) {
        char *root = fm_path_join(scratch, "repository");
        tk_ok(fm_make_dirs(root));
        tk_ok(fm_store_init(root));
        memset(done, 0, sizeof *done);
        if (what == LEFTOVERS)
            leave_some(root);
        else if (what == DEEPER)
            store_deeper(root);
        through = broken_off(root, nth, err);
        expect_nothing_lost(root, what, err == ENOSPC);
        tk_ok(fm_remove_tree(root));
        fm_free(root);
        assert_true(nth < MAX_CALLS);
    }
    fm_free(scratch);
    print_message("%u calls\n", (unsigned)nth);
    assert_true(nth > 15); /* open, writes, lease, fsync, rename, fsync of the folder */
}

TEST(a_kill_at_any_call_loses_nothing)
{
    at_every_call(0, EMPTY);
}

TEST(a_kill_while_taking_over_loses_nothing)
{
    at_every_call(0, LEFTOVERS);
}

TEST(a_kill_while_a_depth_is_changed_loses_nothing)
{
    at_every_call(0, DEEPER);
}

TEST(an_io_error_at_any_call_loses_nothing)
{
    at_every_call(EIO, EMPTY);
}

TEST(a_full_disk_while_taking_over_loses_no_whole_record)
{
    at_every_call(ENOSPC, LEFTOVERS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kill_at_any_call_loses_nothing),
        cmocka_unit_test(a_kill_while_taking_over_loses_nothing),
        cmocka_unit_test(a_kill_while_a_depth_is_changed_loses_nothing),
        cmocka_unit_test(an_io_error_at_any_call_loses_nothing),
        cmocka_unit_test(a_full_disk_while_taking_over_loses_no_whole_record),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
