/* ctest: ranks cuda_cost=10 */
/* comm.c - collectives over NCCL's stand-in (nccl.cpp) between emulated GPUs: the sums of
 * unit/infer/comm.c between threads and processes; ranks that leave, groups that fail, kernels that
 * never end, hosts that wait for their GPU: every rank fails with the same text, and the next
 * exchange is whole; what is recorded, and comes again. */
#define CK_ON_CARDS
#include <signal.h>

#include "infer/comm_launch.h"
#include "tests/kit/comm_kit.h"

static void check_all(node *n, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++)
        if (n[i].rc != FM_OK)
            fail_msg("rank %u of %u: %s", i, size, n[i].text);
}

/* A communicator is destroyed by all ranks at once. */
static void leave_comm(node *n)
{
    fm_comm_free(n->c);
    n->c = NULL;
}

static void do_all_here(node *n)
{
    do_all(n);
    if (n->rc == FM_OK && strcmp(fm_comm_wire(n->c), "nccl") != 0)
        keep_text(n, fm_fail(FM_ECORRUPT, "the wire is %s", fm_comm_wire(n->c)));
    leave_comm(n);
}

/* Ranks of one node find each other on lo, unless somebody says otherwise. */
TEST(sums_are_the_sockets)
{
    for (uint32_t size = 2; size <= 4; size++) {
        node n[MOST];
        const char *set = size == 3 ? "eth7" : NULL;
        (void)(set ? setenv("NCCL_SOCKET_IFNAME", set, 1) : unsetenv("NCCL_SOCKET_IFNAME"));
        open_nodes(n, size, 30.0);
        run_nodes(n, size, do_all_here);
        check_all(n, size);
        const char *now = getenv("NCCL_SOCKET_IFNAME"); /* two ranks a node */
        assert_string_equal(now ? now : "", set ? set : size == 2 ? "lo" : "");
        close_nodes(n, size);
    }
}

static void do_leaves_here(node *n)
{
    do_leaves(n);
    leave_comm(n);
}

TEST(ranks_that_leave)
{
    for (int together = 0; together < 2; together++) {
        node n[3];
        (void)setenv("SIMT_NCCL_TOGETHER", together ? "1" : "0", 1);
        (void)pthread_barrier_init(&left, NULL, 3);
        open_nodes(n, 3, 30.0);
        run_nodes(n, 3, do_leaves_here);
        check_all(n, 3);
        close_nodes(n, 3);
        (void)pthread_barrier_destroy(&left);
    }
}

/* ==== faults ==== */

static const char *expected;
static double time_limit;

static fm_status some_exchanges(node *n, float *x)
{
    fm_status rc = FM_OK;
    for (int i = 0; i < 5 && rc == FM_OK; i++)
        rc = fm_comm_all_reduce(n->c, x, i % 2 ? 40000 : 100);
    if (rc == FM_OK)
        rc = fm_comm_settle(n->c);
    return fm_comm_meet(n->c, rc, 0);
}

static void do_fault(node *n)
{
    fm_wire *w = n->fake;
    make_comm(n);
    fm_status rc = n->rc;
    float *x = buffer(n->be, 40000);
    w->step_timeout_s = time_limit; /* only now: a thread that is late is no fault */
    if (rc == FM_OK)
        rc = some_exchanges(n, x);
    w->step_timeout_s = 30.0;
    bool good = rc == FM_EIO && strstr(fm_error_text(), expected);
    if (!good)
        keep_text(n, fm_fail(FM_ECORRUPT, "not '%s' but %d, %s", expected, rc, fm_error_text()));
    else if (n->rc == FM_OK) /* the same ranks, whole again */
        keep_text(n, some_exchanges(n, x) == FM_OK && all_reduced(n, n->be, 50001) &&
                             strcmp(fm_comm_wire(n->c), "nccl") == 0
                         ? FM_OK
                         : fm_fail(FM_ECORRUPT, "not whole: %s", fm_error_text()));
    else
        keep_text(n, FM_OK);
    n->be->free(n->be, x);
    leave_comm(n);
}

static void fault(const char *what, const char *text)
{
    node n[3];
    expected = text;
    (void)setenv("SIMT_NCCL_FAULT", what, 1);
    open_nodes(n, 3, 30.0);
    run_nodes(n, 3, do_fault);
    for (uint32_t i = 0; i < 3; i++)
        if (n[i].rc != FM_OK)
            fail_msg("%s, rank %u: %s", what, i, n[i].text);
    close_nodes(n, 3);
    (void)unsetenv("SIMT_NCCL_FAULT");
}

TEST(faults_of_one_rank_fail_all)
{
    static const char *const place[] = {"0:1", "1:1", "2:4", "0:7", "1:7"};
    char what[32];
    time_limit = 30.0;
    (void)setenv("SIMT_NCCL_TOGETHER", "1", 1);
    for (size_t i = 0; i < FM_ARRAY_LEN(place); i++) {
        (void)snprintf(what, sizeof(what), "group:%s", place[i]);
        fault(what, "a group of sends and receives: internal error");
        (void)snprintf(what, sizeof(what), "async:%s", place[i]);
        fault(what, "an earlier exchange: remote process exited");
    }
    fault("init:0:1", "no communicator: unhandled system error");
    fault("init:2:1", "no communicator: unhandled system error");
    time_limit = 3.0; /* by so much ranks may differ in when they begin to wait */
    fault("mute:1:3", "an exchange does not end");
}

/* As many exchanges on each rank, of which one sends what nobody has asked for. */
static void do_unmet(node *n)
{
    make_comm(n);
    float *x = filled(n, n->be, 100);
    fm_status rc = n->rc;
    if (rc == FM_OK && n->rank < 2)
        rc = fm_comm_send(n->c, x, 200, n->rank + 1);
    else if (rc == FM_OK)
        rc = fm_comm_recv(n->c, x, 200, 1);
    if (rc == FM_OK && n->rank == 1)
        rc = fm_fail(FM_ELIMIT, "no room here");
    rc = fm_comm_meet(n->c, rc, 0);
    bool good = rc == FM_ELIMIT && strstr(fm_error_text(), "no room here");
    good = good && all_reduced(n, n->be, 100) && fm_comm_settle(n->c) == FM_OK &&
           strcmp(fm_comm_wire(n->c), "nccl") == 0;
    keep_text(n, good ? FM_OK : fm_fail(FM_ECORRUPT, "%d, %s", rc, fm_error_text()));
    n->be->free(n->be, x);
    leave_comm(n);
}

TEST(what_nobody_asked_for_is_gone)
{
    node n[3];
    open_nodes(n, 3, 5.0);
    run_nodes(n, 3, do_unmet);
    check_all(n, 3);
    close_nodes(n, 3);
}

/* ==== exchanges that are recorded ==== */

static fm_status two_sums(node *n, float *x)
{
    fm_status rc = fm_comm_all_reduce(n->c, x, 100);
    return rc == FM_OK ? fm_comm_all_reduce(n->c, x, 40000) : rc;
}

static fm_status record_sums(node *n, fm_script *s, uint64_t key, float *x)
{
    fm_status rc = n->be->record(n->be, key);
    if (rc != FM_OK)
        return rc;
    fm_comm_record(n->c, s);
    rc = two_sums(n, x);
    fm_comm_record(n->c, NULL);
    fm_status kept = n->be->recorded(n->be);
    return rc == FM_OK ? kept : rc;
}

/* The same sums as they come, from the same values. */
static bool same_sums(node *n, const fm_script *s, uint64_t key, float *x, float *y)
{
    float have[40000], want[40000];
    fm_status rc = FM_OK;
    for (int i = 0; i < 3 && rc == FM_OK; i++) {
        rc = fm_comm_replay(n->c, s, key);
        if (rc == FM_OK && i != 1) /* between two of them, too */
            rc = two_sums(n, y);
    }
    if (rc == FM_OK)
        rc = two_sums(n, y);
    if (rc == FM_OK)
        rc = fm_comm_settle(n->c);
    if (rc == FM_OK)
        rc = n->be->download(n->be, have, x, sizeof(have));
    if (rc == FM_OK)
        rc = n->be->download(n->be, want, y, sizeof(want));
    rc = fm_comm_meet(n->c, rc, 0);
    return rc == FM_OK && memcmp(have, want, sizeof(have)) == 0;
}

/* Rank 1 does not replay: the others hear it, and nothing that was recorded is left. */
static bool one_stays_behind(node *n, fm_script *s, float *x)
{
    uint64_t age = fm_comm_age(n->c);
    fm_status rc = n->rank == 1 ? fm_fail(FM_ELIMIT, "no room here") : FM_OK;
    if (rc == FM_OK)
        rc = fm_comm_replay(n->c, s, 1);
    if (rc == FM_OK)
        rc = fm_comm_settle(n->c);
    rc = fm_comm_meet(n->c, rc, 0);
    bool good = rc == FM_ELIMIT && strstr(fm_error_text(), "no room here");
    good = good && fm_comm_age(n->c) != age && n->be->replay(n->be, 1) == FM_ENOTFOUND;
    n->be->forget(n->be, 1);
    fm_script_release(s);
    return good && two_sums(n, x) == FM_OK; /* room for parts is made anew, too */
}

static void do_recorded(node *n)
{
    make_comm(n);
    float *x = filled(n, n->be, 40000), *y = filled(n, n->be, 40000);
    float *z = filled(n, n->be, 40000);
    fm_script s = {NULL};
    fm_status rc = n->rc;
    if (rc == FM_OK)
        rc = two_sums(n, z); /* room for parts of others is there */
    bool good = rc == FM_OK && record_sums(n, &s, 1, x) == FM_OK && s.calls == 3;
    good = good && same_sums(n, &s, 1, x, y) && one_stays_behind(n, &s, z);
    if (good) { /* z is what the others had of it */
        n->be->free(n->be, x);
        n->be->free(n->be, y);
        x = filled(n, n->be, 40000);
        y = filled(n, n->be, 40000);
    }
    good = good && record_sums(n, &s, 2, x) == FM_OK && same_sums(n, &s, 2, x, y);
    keep_text(n, good ? FM_OK : fm_fail(FM_ECORRUPT, "%d, %s", rc, fm_error_text()));
    fm_script_release(&s);
    n->be->free(n->be, x);
    n->be->free(n->be, y);
    n->be->free(n->be, z);
    leave_comm(n); /* with a recording of it */
}

TEST(recorded_exchanges_come_again)
{
    node n[3];
    for (int together = 0; together < 2; together++) {
        (void)setenv("SIMT_NCCL_TOGETHER", together ? "1" : "0", 1);
        open_nodes(n, 3, 30.0);
        run_nodes(n, 3, do_recorded);
        check_all(n, 3);
        close_nodes(n, 3);
    }
}

/* ==== hosts that wait for their GPU ==== */

static void do_stuck(node *n)
{
    make_comm(n);
    float *x = filled(n, n->be, 100), host[100];
    fm_status rc = n->rc;
    if (rc == FM_OK && n->rank == 1)
        rc = fm_fail(FM_ELIMIT, "no room here");
    else if (rc == FM_OK)
        rc = fm_comm_all_reduce(n->c, x, 100);
    if (n->rank == 0) /* does not come back before the watch has aborted */
        fm_ignore(n->be->download(n->be, host, x, sizeof(host)), "its bytes are nobody's");
    if (n->rank == 2) {
        n->be->free(n->be, x);
        x = NULL;
    }
    rc = fm_comm_meet(n->c, rc, 0);
    bool good = rc == FM_ELIMIT && strstr(fm_error_text(), "no room here");
    good = good && all_reduced(n, n->be, 100);
    keep_text(n, good ? FM_OK : fm_fail(FM_ECORRUPT, "%d, %s", rc, fm_error_text()));
    if (x)
        n->be->free(n->be, x);
    leave_comm(n);
}

TEST(hosts_that_wait_are_freed)
{
    node n[3];
    open_nodes(n, 3, 0.0);
    run_nodes(n, 3, do_stuck);
    check_all(n, 3);
    close_nodes(n, 3);
}

/* ==== processes ==== */

/* Rank 1's message to rank 2 is recorded, and so is what receives it, unless they mix. */
static bool recorded_alone(node *n, bool mix)
{
    fm_script s = {NULL};
    float *x = filled(n, n->be, 100);
    bool records = n->rank == 1 || (n->rank == 2 && !mix);
    fm_status rc = FM_OK;
    if (records && n->be->record(n->be, 1) == FM_OK)
        fm_comm_record(n->c, &s);
    if (n->rank == 1)
        rc = fm_comm_send(n->c, x, 400, 2);
    if (n->rank == 2)
        rc = fm_comm_recv(n->c, x, 400, 1);
    if (records) {
        fm_comm_record(n->c, NULL);
        rc = rc == FM_OK ? n->be->recorded(n->be) : rc;
        rc = rc == FM_OK ? fm_comm_replay(n->c, &s, 1) : rc;
    }
    if (rc == FM_OK)
        rc = fm_comm_settle(n->c);
    fm_script_release(&s);
    n->be->free(n->be, x);
    return rc == FM_OK;
}

static int as_rank(const char *what)
{
    node n = {.be = NULL};
    char card[16];
    uint32_t rank, size;
    bool launched;
    fm_ranks_place(&rank, &size, &launched);
    (void)snprintf(card, sizeof(card), "cuda:%u", rank);
    if (fm_ranks_join(&n.c, 30.0) != FM_OK ||
        fm_backend_open_on(&n.be, card, "exact", NULL) != FM_OK ||
        fm_comm_attach_device(n.c, n.be) != FM_OK) {
        fprintf(stderr, "%s\n", fm_error_text());
        return 3;
    }
    n.rank = rank;
    n.size = size;
    if (strcmp(what, "die") == 0 && rank == 1)
        (void)raise(SIGKILL);
    bool good = all_reduced(&n, n.be, 100) && all_reduced(&n, n.be, 70000);
    if (strcmp(what, "mix") == 0 || strcmp(what, "match") == 0)
        good = good && recorded_alone(&n, strcmp(what, "mix") == 0);
    good = good && fm_comm_meet(n.c, FM_OK, 1) == FM_OK;
    fm_comm_free(n.c);
    fm_backend_close(n.be);
    return good ? 0 : 3;
}

static void with_processes(const char *what, bool lives)
{
    char name[] = "comm", word[16];
    (void)snprintf(word, sizeof(word), "%s", what);
    char *argv[] = {name, word, NULL};
    fm_ranks *ranks = NULL;
    node n = {.size = 3};
    uint32_t bad = 0;
    tk_ok(fm_ranks_launch(&ranks, &n.c, 3, argv, 30.0));
    tk_ok(fm_backend_open_on(&n.be, "cuda:0", "exact", NULL));
    tk_ok(fm_comm_attach_device(n.c, n.be));
    assert_string_equal(fm_comm_wire(n.c), "nccl");
    bool good = all_reduced(&n, n.be, 100) && all_reduced(&n, n.be, 70000) &&
                fm_comm_meet(n.c, FM_OK, 1) == FM_OK;
    assert_true(good == lives);
    if (!lives) {
        assert_int_equal(fm_comm_meet(n.c, FM_OK, 1), FM_EIO);
        assert_non_null(strstr(fm_error_text(), "is gone"));
    }
    fm_comm_free(n.c);
    fm_backend_close(n.be);
    fm_ranks_wait(ranks, &bad);
    assert_int_equal(bad, lives ? 0 : 2);
}

TEST(between_processes)
{
    with_processes("go", true);
    with_processes("die", false);
    with_processes("match", true);
    with_processes("mix", false); /* the stand-in ends rank 2 */
}

int main(int argc, char **argv)
{
    uint32_t rank, size;
    bool launched;
    fm_ranks_place(&rank, &size, &launched);
    if (launched)
        return as_rank(argc > 1 ? argv[1] : "go");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(between_processes), /* first: it begins before there are threads */
        cmocka_unit_test(sums_are_the_sockets),
        cmocka_unit_test(ranks_that_leave),
        cmocka_unit_test(faults_of_one_rank_fail_all),
        cmocka_unit_test(hosts_that_wait_are_freed),
        cmocka_unit_test(what_nobody_asked_for_is_gone),
        cmocka_unit_test(recorded_exchanges_come_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
