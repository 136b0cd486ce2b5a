/* comm.c - collectives over the stand-in and over a table that plays NCCL; peers that die,
 * differ or say nothing. The reference adds in ascending ranks by itself. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "infer/comm_launch.h"
#include "tests/kit/comm_kit.h"

TEST(test_all)
{
    for (uint32_t size = 2; size <= MOST; size++) {
        node n[MOST];
        open_nodes(n, size, 30.0);
        run_nodes(n, size, do_all);
        for (uint32_t i = 0; i < size; i++)
            if (n[i].rc != FM_OK)
                fail_msg("rank %u of %u: %s", i, size, n[i].text);
        close_nodes(n, size);
    }
}

/* What moves is what a ring moves. */
static void do_bytes(node *n)
{
    make_comm(n);
    fm_comm_stats before = fm_comm_stats_of(n->c);
    bool good = all_reduced(n, n->be, 1u << 18);
    fm_comm_stats s = fm_comm_stats_of(n->c);
    uint64_t ring = 2 * (uint64_t)(n->size - 1) * ((1u << 20) / n->size);
    good = good && s.bytes_sent - before.bytes_sent == ring &&
           s.bytes_received - before.bytes_received == ring;
    keep_text(n, good ? FM_OK : FM_ECORRUPT);
}

TEST(test_bytes)
{
    node n[4];
    open_nodes(n, 4, 30.0);
    run_nodes(n, 4, do_bytes);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(n[i].rc, FM_OK);
    close_nodes(n, 4);
}

/* ==== what goes wrong ==== */

static void do_leave(node *n) /* rank 1 dies in the middle */
{
    float *x = buffer(n->be, 100000);
    make_comm(n);
    fm_status rc = n->rc;
    for (int i = 0; i < 3 && rc == FM_OK; i++) {
        if (n->rank == 1 && i == 1) {
            fm_comm_free(n->c);
            n->c = NULL;
            break;
        }
        rc = fm_comm_all_reduce(n->c, x, 100000);
    }
    keep_text(n, rc);
    if (n->c) { /* it sticks */
        fm_status again = fm_comm_barrier(n->c);
        if (again != rc || strcmp(fm_error_text(), n->text) != 0)
            n->rc = FM_EINVAL;
        fm_comm_free(n->c); /* as a rank that ends; the others hear of it */
        n->c = NULL;
    }
    n->be->free(n->be, x);
}

/* An idle rank sees that a peer has gone. */
static void do_look(node *n)
{
    make_comm(n);
    fm_status before = n->rank == 0 ? fm_comm_check(n->c) : FM_OK;
    (void)pthread_barrier_wait(&left);
    if (n->rank == 1) {
        fm_comm_free(n->c);
        n->c = NULL;
    }
    (void)pthread_barrier_wait(&left);
    if (n->rank == 0)
        keep_text(n, before == FM_OK ? fm_comm_check(n->c) : FM_EINVAL);
}

TEST(test_look)
{
    node n[2];
    (void)pthread_barrier_init(&left, NULL, 2);
    open_nodes(n, 2, 30.0);
    run_nodes(n, 2, do_look);
    assert_int_equal(n[0].rc, FM_EIO);
    assert_non_null(strstr(n[0].text, "rank 1 is gone"));
    close_nodes(n, 2);
    (void)pthread_barrier_destroy(&left);
}

TEST(test_death)
{
    node n[3];
    open_nodes(n, 3, 0.0); /* no time limit: the connection tells */
    run_nodes(n, 3, do_leave);
    for (uint32_t i = 0; i < 3; i += 2) {
        assert_int_equal(n[i].rc, FM_EIO);
        assert_non_null(strstr(n[i].text, i ? "rank 2 of 3" : "rank 0 of 3"));
        assert_non_null(strstr(n[i].text, "is gone"));
    }
    close_nodes(n, 3);
}

/* Rank 1 does something else: other sizes, other kinds of operations, more or fewer of them. */
static fm_status other_place(node *n, uint32_t how, float *x, float *y)
{
    static const uint64_t count[][2] = {{16, 32},     {32, 16},   {16, 300000},
                                        {300000, 16}, {9, 70000}, {300000, 70000}};
    uint32_t every[MOST], mine = n->rank;
    bool other = n->rank == 1;
    if (how < FM_ARRAY_LEN(count))
        return fm_comm_all_reduce(n->c, x, count[how][other]);
    if (how == 6) /* rank 1 has nothing to do, and goes to the meeting */
        return other ? FM_OK : fm_comm_all_reduce(n->c, x, 70000);
    if (how == 7)
        return other ? fm_comm_collect(n->c, every, &mine, sizeof(mine))
                     : fm_comm_broadcast(n->c, y, 1000, 0);
    fm_status rc = fm_comm_all_reduce(n->c, x, 5);
    return rc == FM_OK && other ? fm_comm_all_reduce(n->c, x, 5) : rc;
}
#define OTHERS 9u

/* All fail by name, and go on. */
static bool differ(node *n)
{
    float *x = buffer(n->be, 300000), *y = buffer(n->be, 300000);
    bool good = true;
    for (uint32_t how = 0; how < OTHERS && good; how++) {
        fm_status rc = fm_comm_meet(n->c, other_place(n, how, x, y), 7);
        good = rc == FM_ECORRUPT && (strstr(fm_error_text(), "the ranks do not do the same") ||
                                     strstr(fm_error_text(), "did something else"));
        if (good)
            good = all_reduced(n, n->be, 1000) && fm_comm_meet(n->c, FM_OK, 8) == FM_OK;
        if (!good)
            fprintf(stderr, "rank %u, way %u: %d, %s\n", n->rank, how, rc, fm_error_text());
    }
    n->be->free(n->be, x);
    n->be->free(n->be, y);
    return good;
}

static void do_differ(node *n)
{
    make_comm(n);
    bool good =
        n->rc == FM_OK && differ(n) && fm_comm_attach(n->c, &n->hidden, NULL) == FM_OK && differ(n);
    keep_text(n, good ? FM_OK : FM_ECORRUPT);
}

TEST(test_differ)
{
    for (uint32_t size = 2; size <= 3; size++) {
        node n[3];
        open_nodes(n, size, 30.0);
        run_nodes(n, size, do_differ);
        for (uint32_t i = 0; i < size; i++)
            if (n[i].rc != FM_OK)
                fail_msg("rank %u of %u: %s", i, size, n[i].text);
        close_nodes(n, size);
    }
}

static pthread_barrier_t patience_over;

/* Patience is short only where silence is meant: a thread that is late is no fault. */
static void do_silent(node *n)
{
    fm_wire *w = n->fake;
    make_comm(n);
    w->step_timeout_s = 0.2;
    if (n->rank == 0)
        keep_text(n, fm_comm_barrier(n->c));
    (void)pthread_barrier_wait(&patience_over);
}

TEST(test_silent)
{
    node n[2];
    (void)pthread_barrier_init(&patience_over, NULL, 2);
    open_nodes(n, 2, 30.0);
    run_nodes(n, 2, do_silent);
    assert_int_equal(n[0].rc, FM_EIO);
    assert_non_null(strstr(n[0].text, "rank 1 says nothing"));
    close_nodes(n, 2);
    (void)pthread_barrier_destroy(&patience_over);
}

TEST(test_leaves)
{
    node n[3];
    (void)pthread_barrier_init(&left, NULL, 3);
    open_nodes(n, 3, 30.0);
    run_nodes(n, 3, do_leaves);
    for (uint32_t i = 0; i < 3; i++)
        if (n[i].rc != FM_OK)
            fail_msg("rank %u: %s", i, n[i].text);
    close_nodes(n, 3);
    (void)pthread_barrier_destroy(&left);
}

/* Different plans, and a peer that never comes to break off. */
static void do_same(node *n)
{
    fm_wire *w = n->fake;
    make_comm(n);
    bool good = fm_comm_meet(n->c, FM_OK, n->rank) == FM_ECORRUPT &&
                strstr(fm_error_text(), "rank 1 did something else") &&
                fm_comm_meet(n->c, FM_OK, 3) == FM_OK;
    if (n->rank == 0) {
        w->step_timeout_s = 0.2;
        fm_status rc = fm_comm_meet(n->c, fm_fail(FM_ENOMEM, "none"), 0);
        good = good && rc == FM_EIO && strstr(fm_error_text(), "breaking off");
        good = good && fm_comm_meet(n->c, FM_OK, 0) == FM_EIO && fm_comm_state(n->c) == FM_EIO;
    }
    keep_text(n, good ? FM_OK : FM_ECORRUPT);
    (void)pthread_barrier_wait(&left);
}

TEST(test_same)
{
    node n[2];
    (void)pthread_barrier_init(&left, NULL, 2);
    open_nodes(n, 2, 30.0);
    run_nodes(n, 2, do_same);
    for (uint32_t i = 0; i < 2; i++)
        if (n[i].rc != FM_OK)
            fail_msg("rank %u: %s", i, n[i].text);
    close_nodes(n, 2);
    (void)pthread_barrier_destroy(&left);
}

/* ==== a table that plays NCCL: groups run when they end, over sockets of their own ==== */

typedef struct fake_comm {
    fm_wire *wire;
    fm_move move[64];
    uint32_t moves;
    bool open;
    int ended; /* 1 aborted, 2 destroyed */
} fake_comm;

static fm_wire *second_wire[MOST];
static fake_comm *fake_of[MOST]; /* made in a thread of its own */
static _Thread_local fake_comm *fake;
static _Thread_local int fake_error, fake_busy, fake_refuses;

static int fake_id(fmc_nccl_id *id)
{
    memset(id, 0x5a, sizeof(*id));
    return fake_refuses ? 3 : FMC_NCCL_SUCCESS;
}

static int fake_init(void **comm, int size, fmc_nccl_id id, int rank)
{
    fm_wire *wire = second_wire[rank];
    if ((int)wire->size != size || (int)wire->rank != rank || id.internal[127] != 0x5a)
        return 4;
    fake_of[rank] = calloc(1, sizeof(fake_comm));
    fake_of[rank]->wire = wire;
    *comm = fake_of[rank];
    return FMC_NCCL_SUCCESS;
}

static int fake_move(void *x, size_t count, int type, int peer, void *comm, bool send)
{
    fake_comm *f = comm;
    if (!f->open || type != FMC_NCCL_INT8 || f->moves == FM_ARRAY_LEN(f->move))
        return 5;
    f->move[f->moves++] = (fm_move){(uint32_t)peer, send, x, count};
    return FMC_NCCL_SUCCESS;
}

static int fake_send(const void *x, size_t count, int type, int peer, void *comm, void *stream)
{
    return stream ? fake_move((void *)(uintptr_t)x, count, type, peer, comm, true) : 4;
}

static int fake_recv(void *x, size_t count, int type, int peer, void *comm, void *stream)
{
    return stream ? fake_move(x, count, type, peer, comm, false) : 4;
}

static int fake_start(void)
{
    fake->open = true;
    fake->moves = 0;
    return FMC_NCCL_SUCCESS;
}

static int fake_end(void)
{
    fake->open = false;
    return fake->wire->exchange(fake->wire, fake->move, fake->moves) == FM_OK ? FMC_NCCL_SUCCESS
                                                                              : 2;
}

static int fake_async(void *comm, int *result)
{
    (void)comm;
    *result = fake_error;
    return FMC_NCCL_SUCCESS;
}

static int fake_abort(void *comm)
{
    ((fake_comm *)comm)->ended = 1;
    return FMC_NCCL_SUCCESS;
}

static int fake_destroy(void *comm)
{
    ((fake_comm *)comm)->ended = 2;
    return FMC_NCCL_SUCCESS;
}

static const char *fake_text(int result)
{
    return result == 6 ? "remote process exited" : "some error";
}

static int fake_enter(uint32_t card)
{
    return card == 3 ? FMC_NCCL_SUCCESS : 4;
}

static int fake_mark_new(void **mark)
{
    *mark = calloc(1, 1);
    return 0;
}

static int fake_mark(void *mark, void *stream)
{
    return mark && stream ? 0 : 1;
}

static int fake_marked(void *mark)
{
    (void)mark;
    return !fake_busy;
}

static const fmc_nccl table = {fake_id,    fake_init,     fake_send,  fake_recv,    fake_start,
                               fake_end,   fake_async,    fake_abort, fake_destroy, fake_text,
                               fake_enter, fake_mark_new, fake_mark,  fake_marked,  free,
                               NULL,       NULL};
static int fake_stream;
static void *const fake_line = &fake_stream;
static const fmc_nccl_card fake_card = {&table, &fake_line, 3, NULL};

static bool with_nccl(node *n)
{
    fm_wire *device = NULL;
    make_comm(n);
    if (n->rc != FM_OK || fm_wire_nccl(&device, n->c, &fake_card) != FM_OK)
        return false;
    fake = fake_of[n->rank];
    return fm_comm_attach(n->c, &n->hidden, device) == FM_OK && fm_comm_device_wire(n->c) &&
           strcmp(fm_comm_wire(n->c), "nccl") == 0;
}

static void end_fake(node *n, int want, bool good)
{
    fm_comm_detach(n->c);
    good = good && fake->ended == want;
    fake->wire->close(fake->wire);
    free(fake);
    n->rc = good ? FM_OK : FM_ECORRUPT;
}

static void do_nccl(node *n)
{
    bool good = with_nccl(n) && all_reduced(n, &n->hidden, 9) &&
                all_reduced(n, &n->hidden, 50001) && scattered(n, &n->hidden, 100, false) &&
                fm_comm_settle(n->c) == FM_OK;
    end_fake(n, 2, good);
}

static void do_nccl_fails(node *n)
{
    bool good = with_nccl(n) && all_reduced(n, &n->hidden, 9);
    fake_error = 6;
    float *x = buffer(n->be, 9);
    good = good && fm_comm_all_reduce(n->c, x, 9) == FM_EIO &&
           strstr(fm_error_text(), "remote process exited") && fake->ended == 1 &&
           fm_comm_settle(n->c) == FM_EIO;
    n->be->free(n->be, x);
    fake_error = 0;
    end_fake(n, 1, good);
}

/* Rank 1 is gone with an exchange under way: rank 0's device never ends, its host connection
 * tells. */
static void do_nccl_dies(node *n)
{
    bool good = with_nccl(n) && all_reduced(n, &n->hidden, 9);
    if (n->rank == 1) {
        end_fake(n, 2, good);
        fm_comm_free(n->c);
        n->c = NULL;
        return;
    }
    fake_busy = 1;
    good = good && fm_comm_settle(n->c) == FM_EIO && strstr(fm_error_text(), "rank 1 is gone");
    end_fake(n, 1, good);
    fake_busy = 0;
}

static void do_nccl_refused(node *n)
{
    fm_wire *device = NULL;
    fake_refuses = n->rank == 0;
    make_comm(n);
    fm_status rc = fm_wire_nccl(&device, n->c, &fake_card);
    bool good = rc == FM_EIO && !device && strstr(fm_error_text(), "no id") &&
                fm_comm_barrier(n->c) == FM_OK;
    second_wire[n->rank]->close(second_wire[n->rank]);
    n->rc = good ? FM_OK : FM_ECORRUPT;
}

TEST(test_nccl)
{
    static const rank_fn run[] = {do_nccl, do_nccl_fails, do_nccl_dies, do_nccl_refused};
    for (size_t k = 0; k < FM_ARRAY_LEN(run); k++) {
        uint32_t size = k == 0 ? 3 : 2;
        node n[3];
        open_nodes(n, size, 30.0);
        tk_ok(fm_wire_threads(second_wire, size, 30.0));
        run_nodes(n, size, run[k]);
        for (uint32_t i = 0; i < size; i++)
            if (n[i].rc != FM_OK)
                fail_msg("case %zu, rank %u: %s", k, i, n[i].text);
        close_nodes(n, size);
    }
}

/* ==== a device's wire that takes its time to be given up ==== */

typedef struct slow_wire {
    fm_wire wire; /* first */
    atomic_bool dead, closed;
} slow_wire;

static void nap_ms(long ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL);
}

static fm_status slow_state(fm_wire *w)
{
    return atomic_load(&((slow_wire *)(void *)w)->dead) ? fm_fail(FM_EIO, "it was given up")
                                                        : FM_OK;
}

static fm_status slow_exchange(fm_wire *w, const fm_move *list, uint32_t n)
{
    (void)list;
    (void)n;
    return slow_state(w);
}

static fm_status slow_settled(fm_wire *w, bool *done)
{
    *done = true;
    return slow_state(w);
}

static void slow_give_up(fm_wire *w)
{
    nap_ms(300);
    atomic_store(&((slow_wire *)(void *)w)->dead, true);
}

static void slow_let_go(fm_wire *w)
{
    (void)w;
}

static void slow_close(fm_wire *w)
{
    atomic_store(&((slow_wire *)(void *)w)->closed, true);
}

/* Rank 0 hears of rank 1's failure while its watch is giving the wire up: the wire is not kept. */
static void do_given_up(node *n)
{
    slow_wire slow = {.wire = {.name = "slow",
                               .rank = n->rank,
                               .size = n->size,
                               .device = true,
                               .exchange = slow_exchange,
                               .settled = slow_settled,
                               .let_go = slow_let_go,
                               .give_up = slow_give_up,
                               .close = slow_close}};
    make_comm(n);
    bool good = n->rc == FM_OK && fm_comm_attach(n->c, &n->hidden, &slow.wire) == FM_OK;
    float *x = buffer(n->be, 9);
    good = good && fm_comm_all_reduce(n->c, x, 9) == FM_OK;
    if (n->rank == 0)
        nap_ms(100); /* its GPU is busy; the watch sees that rank 1 has left */
    fm_status rc = n->rank ? fm_fail(FM_ELIMIT, "no room on 1") : FM_OK;
    good = good && fm_comm_meet(n->c, rc, 0) == FM_ELIMIT;
    if (n->rank == 0)
        nap_ms(400);
    if (good)
        good = fm_comm_all_reduce(n->c, x, 9) == FM_OK && fm_comm_meet(n->c, FM_OK, 1) == FM_OK &&
               all_reduced(n, &n->hidden, 100) && atomic_load(&slow.closed);
    keep_text(n, good ? FM_OK : FM_ECORRUPT);
    fm_comm_free(n->c);
    n->c = NULL;
    n->be->free(n->be, x);
}

TEST(test_given_up)
{
    node n[2];
    open_nodes(n, 2, 30.0);
    run_nodes(n, 2, do_given_up);
    for (uint32_t i = 0; i < 2; i++)
        if (n[i].rc != FM_OK)
            fail_msg("rank %u: %s", i, n[i].text);
    close_nodes(n, 2);
}

/* ==== ranks as processes: this program again ==== */

static int as_rank(const char *what)
{
    node n = {.be = NULL};
    if (fm_ranks_join(&n.c, 30.0) != FM_OK || fm_backend_open(&n.be, "exact", NULL) != FM_OK) {
        fprintf(stderr, "%s\n", fm_error_text());
        return 3;
    }
    n.rank = fm_comm_rank(n.c);
    n.size = fm_comm_size(n.c);
    if (fm_comm_attach(n.c, n.be, NULL) != FM_OK)
        return 3;
    if (strcmp(what, "die") == 0 && n.rank == 1)
        (void)raise(SIGKILL);
    bool good =
        all_reduced(&n, n.be, 100) && all_reduced(&n, n.be, 70000) && fm_comm_barrier(n.c) == FM_OK;
    if (good && strcmp(what, "leave") == 0)
        good = lots(&n);
    if (!good)
        fprintf(stderr, "rank %u of %u: %s\n", n.rank, n.size, fm_error_text());
    fm_comm_free(n.c);
    fm_backend_close(n.be);
    return good ? 0 : 3;
}

static void with_processes(const char *what, fm_status want, uint32_t want_bad)
{
    char name[] = "unit_infer_comm", word[16];
    (void)snprintf(word, sizeof(word), "%s", what);
    char *argv[] = {name, word, NULL};
    fm_ranks *ranks = NULL;
    node n = {.size = 3};
    uint32_t bad = 0;
    tk_ok(fm_ranks_launch(&ranks, &n.c, 3, argv, 30.0));
    tk_ok(fm_backend_open(&n.be, "exact", NULL));
    tk_ok(fm_comm_attach(n.c, n.be, NULL));
    bool good =
        all_reduced(&n, n.be, 100) && all_reduced(&n, n.be, 70000) && fm_comm_barrier(n.c) == FM_OK;
    assert_true(good == (want == FM_OK));
    if (!good)
        assert_non_null(strstr(fm_error_text(), "is gone"));
    fm_comm_free(n.c);
    fm_backend_close(n.be);
    fm_ranks_wait(ranks, &bad);
    assert_int_equal(bad, want_bad);
}

TEST(test_processes)
{
    with_processes("go", FM_OK, 0);
    with_processes("die", FM_EIO, 2); /* the killed one, and the one that heard of it */
}

int main(int argc, char **argv)
{
    uint32_t rank, size;
    bool launched;
    fm_ranks_place(&rank, &size, &launched);
    if (launched || size > 1) /* of test_processes, or under mpirun (tests/cli/test_ranks.sh) */
        return as_rank(argc > 1 ? argv[1] : "go");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all),      cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_death),    cmocka_unit_test(test_look),
        cmocka_unit_test(test_differ),   cmocka_unit_test(test_silent),
        cmocka_unit_test(test_leaves),   cmocka_unit_test(test_same),
        cmocka_unit_test(test_nccl),     cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_processes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
