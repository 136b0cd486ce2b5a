/* A pack that is cut while it is mapped, as by a disk that fails: an error that names the pack, not
 * the end of the process. Only raw bytes that were handed out as a view still end it. */
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/base/math/rng.h"
#include "store/exchange.h"
#include "tests/testkit.h"

enum { BYTES = 3000000, ONE_MORE = 1000 };

static uint8_t bytes[BYTES], back[BYTES];

/* coded: small numbers; raw: nothing to gain. */
static void fill(bool raw)
{
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(fm_rng_u64(9, raw, i) & (raw ? 0xff : 0x07));
}

typedef struct kept {
    char *root, *pack;
    fm_digest first, id;
} kept;

/* One pack: a small object, then a large one. */
static kept stored(bool raw)
{
    kept k = {.root = tk_scratch()};
    fm_store *s;
    fm_txn *t;
    fm_names names;
    fm_shape shape = {1, {BYTES}};
    fill(raw);
    tk_ok(fm_store_init(k.root));
    tk_ok(fm_store_open(&s, k.root));
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_blob(t, &k.first, fm_span_of(bytes, ONE_MORE), NULL));
    tk_ok(fm_txn_put_tensor(t, &k.id, FM_U8, &shape, fm_span_of(bytes, BYTES), NULL, NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    fm_store_close(s);
    char *packs = fm_path_join(k.root, "packs");
    tk_ok(fm_list_dir(&names, packs));
    assert_int_equal(names.count, 1);
    k.pack = fm_path_join(packs, names.name[0]);
    fm_names_release(&names);
    fm_free(packs);
    return k;
}

static void release(kept *k)
{
    fm_free(k->root);
    fm_free(k->pack);
}

static void cut(const kept *k)
{
    assert_int_equal(truncate(k->pack, 16384), 0);
}

static sigjmp_buf back_here;
static volatile sig_atomic_t passed_on;

static void own_handler(int number)
{
    (void)number;
    passed_on++;
    siglongjmp(back_here, 1);
}

TEST(another_mapping_is_the_programs_own_affair)
{
    struct sigaction own = {.sa_handler = own_handler}, old;
    sigemptyset(&own.sa_mask);
    sigaction(SIGBUS, &own, &old);
    kept k = stored(false);
    fm_store *s;
    tk_ok(fm_store_open(&s, k.root));
    tk_ok(fm_store_read(s, &k.id, back, BYTES));
    char *path = fm_path_join(k.root, "own");
    int fd = open(path, O_RDWR | O_CREAT, 0666);
    assert_int_equal(ftruncate(fd, 8192), 0);
    volatile uint8_t *map = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 0);
    assert_int_equal(ftruncate(fd, 0), 0);
    if (sigsetjmp(back_here, 1) == 0)
        assert_int_equal(map[5000], 0);
    assert_int_equal(passed_on, 1);
    close(fd);
    fm_free(path);
    fm_store_close(s);
    release(&k);
}

static void cut_then_read(bool raw)
{
    kept k = stored(raw);
    fm_store *s;
    tk_ok(fm_store_open(&s, k.root));
    tk_ok(fm_store_read(s, &k.first, back, ONE_MORE)); /* the pack is mapped now */
    cut(&k);
    tk_fails(fm_store_read(s, &k.id, back, BYTES), FM_ECORRUPT, fm_path_base(k.pack));
    tk_fails(fm_store_read(s, &k.id, back, BYTES), FM_ECORRUPT, NULL);
    tk_ok(fm_store_read(s, &k.first, back, ONE_MORE)); /* what is left still reads */
    assert_memory_equal(back, bytes, ONE_MORE);
    fm_span view;
    if (raw)
        tk_fails(fm_store_view(s, &k.id, &view), FM_ECORRUPT, NULL);
    fm_store_close(s);
    fm_fsck_report report;
    tk_ok(fm_store_open(&s, k.root));
    tk_ok(fm_store_fsck(s, true, &report, NULL, NULL));
    assert_true(report.faults > 0);
    fm_store_close(s);
    release(&k);
}

TEST(a_pack_cut_while_mapped_is_an_error)
{
    cut_then_read(false);
    cut_then_read(true);
}

/* A parent that can be read no more costs its child nothing: it is stored alone. */
TEST(a_child_of_a_cut_parent_is_stored)
{
    kept k = stored(false);
    fm_store *s;
    fm_txn *t;
    fm_digest child;
    fm_shape shape = {1, {BYTES}};
    tk_ok(fm_store_open(&s, k.root));
    tk_ok(fm_store_read(s, &k.first, back, ONE_MORE));
    cut(&k);
    bytes[7] ^= 1;
    tk_ok(fm_txn_begin(&t, s));
    tk_ok(fm_txn_put_tensor(t, &child, FM_U8, &shape, fm_span_of(bytes, BYTES), &k.id, NULL));
    tk_ok(fm_txn_commit(t, NULL));
    fm_txn_close(t);
    tk_ok(fm_store_read(s, &child, back, BYTES));
    assert_memory_equal(back, bytes, BYTES);
    fm_store_close(s);
    release(&k);
}

/* Zeros in place of weights that nobody compares any more would be worse than an end. */
TEST(a_view_ends_the_process)
{
    kept k = stored(true);
    fm_store *s;
    fm_span view;
    int status;
    tk_ok(fm_store_open(&s, k.root));
    tk_ok(fm_store_view(s, &k.id, &view));
    assert_non_null(view.data);
    cut(&k);
    pid_t pid = fork();
    if (pid == 0) {
        volatile uint8_t last = ((const volatile uint8_t *)view.data)[BYTES - 1];
        (void)last;
        _exit(0); /* it went on */
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
#if defined(__SANITIZE_ADDRESS__) /* whose handler was there before ours */
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
#else
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
#endif
    fm_store_close(s);
    release(&k);
}

static fm_status count_piece(void *ctx, const void *data, size_t len)
{
    (void)data;
    *(uint64_t *)ctx += len;
    return FM_OK;
}

/* What cannot be read is not sent. */
TEST(a_pack_cut_while_it_is_sent_is_an_error)
{
    kept k = stored(true);
    fm_store *s;
    fm_record_info info;
    uint64_t sent = 0;
    tk_ok(fm_store_open(&s, k.root));
    tk_ok(fm_record_info_of(s, &info, &k.id));
    cut(&k);
    tk_fails(fm_record_send(s, &info, 0, count_piece, &sent), FM_ECORRUPT, fm_path_base(k.pack));
    assert_int_equal(sent, 0);
    fm_store_close(s);
    release(&k);
}

static fm_status hand_over(void *ctx, const void *data, size_t len)
{
    return fm_intake_bytes(ctx, data, len);
}

/* So that an intake has no threads, and compares when it is asked to. */
static void on_one_cpu(void)
{
    cpu_set_t set;
    size_t cpu = 0;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    while (!CPU_ISSET(cpu, &set))
        cpu++;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    assert_int_equal(sched_setaffinity(0, sizeof set, &set), 0);
}

/* A record whose bytes cannot be read again is refused; the ones after it are not harmed. */
TEST(a_record_cut_while_it_arrives_is_an_error)
{
    kept k = stored(true), empty = {.root = tk_scratch()};
    fm_store *s, *to;
    fm_intake *in;
    fm_record_info info;
    fm_names names;
    tk_ok(fm_store_open(&s, k.root));
    tk_ok(fm_record_info_of(s, &info, &k.id));
    tk_ok(fm_store_init(empty.root));
    tk_ok(fm_store_open(&to, empty.root));
    on_one_cpu();
    tk_ok(fm_intake_open(&in, to));
    char *dir = fm_path_join(empty.root, "incoming");
    tk_ok(fm_intake_begin(in, &info, 0));
    tk_ok(fm_record_send(s, &info, 0, hand_over, in));
    tk_ok(fm_list_dir(&names, dir));
    empty.pack = fm_path_join(dir, names.name[0]);
    cut(&empty);
    fm_status rc = fm_intake_end(in);
    FM_THEN(rc, fm_intake_settle(in));
    tk_fails(rc, FM_ECORRUPT, NULL);
    tk_ok(fm_intake_begin(in, &info, 0));
    tk_ok(fm_record_send(s, &info, 0, hand_over, in));
    tk_ok(fm_intake_end(in));
    tk_ok(fm_intake_publish(in, NULL));
    fm_intake_close(in);
    tk_ok(fm_store_read(to, &k.id, back, BYTES));
    assert_memory_equal(back, bytes, BYTES);
    fm_names_release(&names);
    fm_free(dir);
    fm_store_close(to);
    fm_store_close(s);
    release(&empty);
    release(&k);
}

/* Each in a process of its own, and not under cmocka, which takes SIGBUS for itself. An assertion
 * that fails ends the process with a text all the same. */
static int alone(const char *name, void (*test)(void **state))
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        test(NULL);
        exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    printf("%s %s\n", good ? "ok    " : "FAILED", name);
    if (WIFSIGNALED(status))
        printf("       by signal %d\n", WTERMSIG(status));
    return !good;
}

#define ALONE(test) alone(#test, test)

int main(void)
{
    int failed = 0;
    failed |= ALONE(another_mapping_is_the_programs_own_affair);
    failed |= ALONE(a_pack_cut_while_mapped_is_an_error);
    failed |= ALONE(a_child_of_a_cut_parent_is_stored);
    failed |= ALONE(a_view_ends_the_process);
    failed |= ALONE(a_pack_cut_while_it_is_sent_is_an_error);
    failed |= ALONE(a_record_cut_while_it_arrives_is_an_error);
    return failed;
}
