/* comm.c - collectives over the stand-in and over a table that plays NCCL; peers that die,
 * differ or say nothing. The reference adds in ascending ranks by itself. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "infer/backend.h"
#include "infer/comm_launch.h"
#include "infer/comm_wire.h"
#include "tests/testkit.h"

#define MOST 5u

/* ==== ranks as threads ==== */

typedef struct node node;
typedef void (*rank_fn)(node *n);
struct node {
    fm_comm *c;
    fm_backend *be, hidden; /* hidden: the same, whose memory the host is not to touch */
    fm_wire *fake;          /* of the table that plays NCCL */
    rank_fn run;
    uint32_t rank, size;
    fm_status rc;
    char text[1024];
};

static void *start(void *arg)
{
    node *n = arg;
    n->run(n);
    return NULL;
}

static void open_nodes(node *all, uint32_t size, double patience_s)
{
    fm_wire *wire[MOST];
    tk_ok(fm_wire_threads(wire, size, patience_s));
    for (uint32_t i = 0; i < size; i++) {
        all[i] = (node){.rank = i, .size = size};
        tk_ok(fm_backend_open(&all[i].be, "exact", NULL));
        all[i].hidden = *all[i].be;
        all[i].hidden.host_visible = false;
        all[i].fake = wire[i];
    }
}

static void make_comm(node *n)
{
    char name[16];
    (void)snprintf(name, sizeof(name), "node%u", n->rank / 2);
    n->rc = fm_comm_new(&n->c, n->fake, name);
    n->fake = NULL;
    if (n->rc == FM_OK)
        n->rc = fm_comm_attach(n->c, n->be, NULL, false);
}

/* Each rank makes its comm in its thread, since making one tells the others. */
static void run_nodes(node *all, uint32_t size, rank_fn run)
{
    pthread_t t[MOST];
    for (uint32_t i = 0; i < size; i++) {
        all[i].run = run;
        assert_int_equal(pthread_create(&t[i], NULL, start, &all[i]), 0);
    }
    for (uint32_t i = 0; i < size; i++)
        assert_int_equal(pthread_join(t[i], NULL), 0);
}

static void close_nodes(node *all, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++) {
        fm_comm_free(all[i].c);
        fm_backend_close(all[i].be);
    }
}

static void keep_text(node *n, fm_status rc)
{
    n->rc = rc;
    (void)snprintf(n->text, sizeof(n->text), "%s", fm_error_text());
}

/* ==== values whose sum depends on its order ==== */

static float value(uint32_t rank, uint64_t i)
{
    uint32_t h = (rank * 2654435761u) ^ (uint32_t)(i * 40503u + 12345u);
    h ^= h >> 13;
    h *= 2246822519u;
    h ^= h >> 16;
    float f = (float)(h & 0xffff) / 65536.0f - 0.5f;
    return h & 0x10000 ? f * 1e4f : f * 1e-3f;
}

static float sum_of(uint32_t size, uint64_t i)
{
    float s = value(0, i);
    for (uint32_t r = 1; r < size; r++)
        s = s + value(r, i);
    return s;
}

static float *buffer(fm_backend *be, uint64_t n)
{
    void *p = NULL;
    if (be->alloc(be, &p, n * sizeof(float)) != FM_OK)
        abort();
    return p;
}

static bool all_reduced(node *n, fm_backend *be, uint64_t count)
{
    float *x = buffer(be, count + 1), *host = malloc((count + 1) * sizeof(float));
    for (uint64_t i = 0; i < count; i++)
        host[i] = value(n->rank, i);
    host[count] = 77.0f;
    bool good = be->upload(be, x, host, (count + 1) * sizeof(float)) == FM_OK &&
                fm_comm_all_reduce(n->c, x, count) == FM_OK &&
                be->download(be, host, x, (count + 1) * sizeof(float)) == FM_OK;
    for (uint64_t i = 0; i < count && good; i++) {
        float want = sum_of(n->size, i);
        good = memcmp(&want, &host[i], sizeof(float)) == 0;
    }
    good = good && host[count] > 76.0f && host[count] < 78.0f;
    be->free(be, x);
    free(host);
    return good;
}

static bool scattered(node *n, fm_backend *be, uint64_t per, bool in_place)
{
    uint64_t all = per * n->size;
    float *x = buffer(be, all), *out = in_place ? x + per * n->rank : buffer(be, per);
    for (uint64_t i = 0; i < all; i++)
        x[i] = value(n->rank, i);
    bool good = fm_comm_reduce_scatter(n->c, out, x, per) == FM_OK;
    for (uint64_t i = 0; i < per && good; i++) {
        float want = sum_of(n->size, n->rank * per + i);
        good = memcmp(&want, &out[i], sizeof(float)) == 0;
    }
    for (uint64_t i = 0; i < all && good && !in_place; i++)
        good = x[i] >= value(n->rank, i) && x[i] <= value(n->rank, i);
    float *whole = buffer(be, all);
    good = good && fm_comm_all_gather(n->c, whole, out, per) == FM_OK;
    for (uint64_t i = 0; i < all && good; i++) {
        float want = sum_of(n->size, i);
        good = memcmp(&want, &whole[i], sizeof(float)) == 0;
    }
    be->free(be, whole);
    if (!in_place)
        be->free(be, out);
    be->free(be, x);
    return good;
}

static bool passed_on(node *n, fm_backend *be)
{
    uint32_t next = (n->rank + 1) % n->size, before = (n->rank + n->size - 1) % n->size;
    float *x = buffer(be, 3), *y = buffer(be, 3);
    x[0] = x[1] = x[2] = (float)n->rank;
    const void *part[MOST] = {NULL};
    void *got[MOST] = {NULL};
    size_t out[MOST] = {0}, in[MOST] = {0};
    part[next] = x;
    out[next] = 3 * sizeof(float);
    got[before] = y;
    in[before] = 3 * sizeof(float);
    bool good = fm_comm_exchange(n->c, part, out, got, in) == FM_OK && (uint32_t)y[2] == before;
    fm_status rc = n->rank == 0   ? fm_comm_send(n->c, x, 4, 1)
                   : n->rank == 1 ? fm_comm_recv(n->c, y, 4, 0)
                                  : FM_OK;
    good = good && rc == FM_OK && (n->rank != 1 || (uint32_t)y[0] == 0);
    x[0] = n->rank == 1 ? 42.0f : 0.0f;
    good = good && fm_comm_broadcast(n->c, x, sizeof(float), 1) == FM_OK && (int)x[0] == 42;
    be->free(be, x);
    be->free(be, y);
    return good;
}

static bool told(node *n)
{
    fm_buf b;
    fm_buf_init(&b, 0);
    if (n->rank == 1)
        fm_buf_printf(&b, "a word of rank %u", n->rank);
    bool good =
        fm_comm_tell_buf(n->c, &b, 1) == FM_OK && strcmp(fm_buf_cstr(&b), "a word of rank 1") == 0;
    fm_buf_release(&b);
    uint32_t mine = n->rank * 3, every[MOST];
    good = good && fm_comm_collect(n->c, every, &mine, sizeof(mine)) == FM_OK;
    for (uint32_t i = 0; i < n->size && good; i++)
        good = every[i] == i * 3;
    fm_status bad = n->rank == 1 ? fm_fail(FM_ENOTFOUND, "no such thing") : FM_OK;
    good = good && fm_comm_agree(n->c, bad) == FM_ENOTFOUND &&
           strstr(fm_error_text(), "no such thing") && fm_comm_agree(n->c, FM_OK) == FM_OK;
    return good && fm_comm_barrier(n->c) == FM_OK;
}

static void do_all(node *n)
{
    static const uint64_t count[] = {1, 7, 16, 100, 16384, 16385, 40000, 100003};
    make_comm(n);
    bool good = n->rc == FM_OK;
    for (size_t i = 0; i < FM_ARRAY_LEN(count) && good; i++)
        good = all_reduced(n, n->be, count[i]);
    good = good && scattered(n, n->be, 5, false) && scattered(n, n->be, 30000, true) &&
           passed_on(n, n->be) && told(n);
    if (good) {
        good = fm_comm_attach(n->c, &n->hidden, NULL, false) == FM_OK &&
               all_reduced(n, &n->hidden, 100) && all_reduced(n, &n->hidden, 50001);
    }
    good = good && fm_comm_nodes(n->c) == (n->size + 1) / 2 && fm_comm_node(n->c, 1) == 0 &&
           fm_comm_link(n->c, 0, 1) == FM_LINK_HOST && fm_comm_link(n->c, 1, 1) == FM_LINK_SELF &&
           (n->size < 3 || fm_comm_link(n->c, 1, 2) == FM_LINK_NET);
    keep_text(n, n->rc);
    n->rc = good ? FM_OK : FM_ECORRUPT;
}

static void test_all(void **state)
{
    (void)state;
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

static void test_bytes(void **state)
{
    (void)state;
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

static pthread_barrier_t left;

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

static void test_look(void **state)
{
    node n[2];
    (void)state;
    (void)pthread_barrier_init(&left, NULL, 2);
    open_nodes(n, 2, 30.0);
    run_nodes(n, 2, do_look);
    assert_int_equal(n[0].rc, FM_EIO);
    assert_non_null(strstr(n[0].text, "rank 1 is gone"));
    close_nodes(n, 2);
    (void)pthread_barrier_destroy(&left);
}

static void test_death(void **state)
{
    (void)state;
    node n[3];
    open_nodes(n, 3, 0.0); /* no patience: the connection tells */
    run_nodes(n, 3, do_leave);
    for (uint32_t i = 0; i < 3; i += 2) {
        assert_int_equal(n[i].rc, FM_EIO);
        assert_non_null(strstr(n[i].text, i ? "rank 2 of 3" : "rank 0 of 3"));
        assert_non_null(strstr(n[i].text, "is gone"));
    }
    close_nodes(n, 3);
}

static void do_differ(node *n)
{
    float *x = buffer(n->be, 64);
    make_comm(n);
    keep_text(n, fm_comm_all_reduce(n->c, x, n->rank ? 32 : 16));
    n->be->free(n->be, x);
}

static void test_differ(void **state)
{
    (void)state;
    node n[2];
    open_nodes(n, 2, 30.0);
    run_nodes(n, 2, do_differ);
    bool named = false;
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_not_equal(n[i].rc, FM_OK);
        named = named || strstr(n[i].text, "the ranks do not do the same");
    }
    assert_true(named);
    close_nodes(n, 2);
}

static pthread_barrier_t patience_over;

static void do_silent(node *n)
{
    make_comm(n);
    if (n->rank == 0)
        keep_text(n, fm_comm_barrier(n->c));
    (void)pthread_barrier_wait(&patience_over);
}

static void test_silent(void **state)
{
    (void)state;
    node n[2];
    (void)pthread_barrier_init(&patience_over, NULL, 2);
    open_nodes(n, 2, 0.2);
    run_nodes(n, 2, do_silent);
    assert_int_equal(n[0].rc, FM_EIO);
    assert_non_null(strstr(n[0].text, "rank 1 says nothing"));
    close_nodes(n, 2);
    (void)pthread_barrier_destroy(&patience_over);
}

/* ==== ranks that leave ==== */

typedef struct leaving {
    uint32_t at[MOST]; /* place at which each rank leaves; PLACES: never */
    uint64_t count;    /* floats of each exchange */
} leaving;
#define PLACES 6u
static leaving leaves;

/* One of several operations of all kinds. */
static fm_status one_place(node *n, uint32_t at, float *x, float *y)
{
    uint32_t every[MOST], mine = n->rank;
    const void *part[MOST] = {NULL};
    void *got[MOST] = {NULL};
    size_t out[MOST] = {0}, in[MOST] = {0};
    switch (at) {
    case 0:
        return fm_comm_all_reduce(n->c, x, leaves.count);
    case 1: /* to rank 0 alone */
        for (uint32_t r = 1; r < n->size; r++) {
            part[0] = n->rank ? x : NULL;
            out[0] = n->rank ? leaves.count * sizeof(float) : 0;
            got[r] = n->rank ? NULL : y;
            in[r] = n->rank ? 0 : leaves.count * sizeof(float);
        }
        return fm_comm_exchange(n->c, part, out, got, in);
    case 2:
        return fm_comm_broadcast(n->c, y, leaves.count * sizeof(float), 1);
    case 3:
        return fm_comm_collect(n->c, every, &mine, sizeof(mine));
    case 4:
        return fm_comm_agree(n->c, FM_OK);
    default:
        return fm_comm_all_reduce(n->c, x, 5);
    }
}

/* All fail with the text of the lowest of the worst, and go on. */
static bool together(node *n, float *x, float *y)
{
    fm_status rc = FM_OK;
    uint32_t first = MOST;
    for (uint32_t at = 0; at < PLACES && rc == FM_OK; at++)
        rc = leaves.at[n->rank] == at ? fm_fail(FM_ELIMIT, "no room on %u", n->rank)
                                      : one_place(n, at, x, y);
    for (uint32_t r = n->size; r-- > 0;)
        first = leaves.at[r] < PLACES ? r : first;
    rc = fm_comm_meet(n->c, rc, 7);
    if (first == MOST)
        return rc == FM_OK;
    char want[32];
    (void)snprintf(want, sizeof(want), "no room on %u", first);
    for (uint32_t r = first; r < n->size; r++) /* a later one may have been stopped before */
        if (leaves.at[r] < PLACES && rc == FM_ELIMIT && !strstr(fm_error_text(), want))
            (void)snprintf(want, sizeof(want), "no room on %u", r);
    return rc == FM_ELIMIT && strstr(fm_error_text(), want);
}

static void do_leaves(node *n)
{
    static const leaving lot[] = {
        {{0, 6, 6}, 9},      {{6, 0, 6}, 70000},  {{6, 6, 1}, 70000},  {{1, 6, 6}, 300000},
        {{6, 2, 6}, 300000}, {{2, 6, 6}, 300000}, {{6, 6, 3}, 9},      {{3, 6, 6}, 70000},
        {{6, 4, 6}, 300000}, {{5, 6, 6}, 9},      {{6, 6, 5}, 300000}, {{6, 6, 6}, 300000},
        {{0, 0, 0}, 300000}, {{6, 5, 2}, 70000},  {{1, 6, 1}, 300000}, {{6, 6, 6}, 9},
    };
    float *x = buffer(n->be, 300000), *y = buffer(n->be, 300000);
    make_comm(n);
    bool good = n->rc == FM_OK;
    for (size_t i = 0; i < 2 * FM_ARRAY_LEN(lot) && good; i++) {
        if (i == FM_ARRAY_LEN(lot))
            good = fm_comm_attach(n->c, &n->hidden, NULL, false) == FM_OK;
        (void)pthread_barrier_wait(&left);
        if (n->rank == 0)
            leaves = lot[i % FM_ARRAY_LEN(lot)];
        (void)pthread_barrier_wait(&left);
        good = good && together(n, x, y) && all_reduced(n, n->be, 1000) &&
               fm_comm_check(n->c) == FM_OK;
        if (!good)
            fprintf(stderr, "lot %zu: %s\n", i, fm_error_text());
    }
    keep_text(n, good ? FM_OK : FM_ECORRUPT);
    n->be->free(n->be, x);
    n->be->free(n->be, y);
}

static void test_leaves(void **state)
{
    (void)state;
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
    make_comm(n);
    bool good = fm_comm_meet(n->c, FM_OK, n->rank) == FM_ECORRUPT &&
                strstr(fm_error_text(), "rank 1 did something else") &&
                fm_comm_meet(n->c, FM_OK, 3) == FM_OK;
    if (n->rank == 0) {
        fm_status rc = fm_comm_meet(n->c, fm_fail(FM_ENOMEM, "none"), 0);
        good = good && rc == FM_EIO && strstr(fm_error_text(), "breaking off");
        good = good && fm_comm_meet(n->c, FM_OK, 0) == FM_EIO && fm_comm_state(n->c) == FM_EIO;
    }
    keep_text(n, good ? FM_OK : FM_ECORRUPT);
    (void)pthread_barrier_wait(&left);
}

static void test_same(void **state)
{
    (void)state;
    node n[2];
    (void)pthread_barrier_init(&left, NULL, 2);
    open_nodes(n, 2, 0.2);
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
                               fake_enter, fake_mark_new, fake_mark,  fake_marked,  free};
static int fake_stream;
static const fmc_nccl_card fake_card = {&table, &fake_stream, 3, true};

static bool with_nccl(node *n)
{
    fm_wire *device = NULL;
    make_comm(n);
    if (n->rc != FM_OK || fm_wire_nccl(&device, n->c, &fake_card) != FM_OK)
        return false;
    fake = fake_of[n->rank];
    return fm_comm_attach(n->c, &n->hidden, device, true) == FM_OK &&
           fm_comm_link(n->c, 0, 1) == FM_LINK_DEVICE && strcmp(fm_comm_wire(n->c), "nccl") == 0;
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

static void test_nccl(void **state)
{
    static const rank_fn run[] = {do_nccl, do_nccl_fails, do_nccl_dies, do_nccl_refused};
    (void)state;
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
    if (fm_comm_attach(n.c, n.be, NULL, false) != FM_OK)
        return 3;
    if (strcmp(what, "die") == 0 && n.rank == 1)
        (void)raise(SIGKILL);
    bool good =
        all_reduced(&n, n.be, 100) && all_reduced(&n, n.be, 70000) && fm_comm_barrier(n.c) == FM_OK;
    if (!good)
        fprintf(stderr, "rank %u of %u: %s\n", n.rank, n.size, fm_error_text());
    fm_comm_free(n.c);
    fm_backend_close(n.be);
    return good ? 0 : 3;
}

static void with_processes(const char *what, fm_status want, uint32_t want_bad)
{
    char name[] = "unit_comm", word[16];
    (void)snprintf(word, sizeof(word), "%s", what);
    char *argv[] = {name, word, NULL};
    fm_ranks *ranks = NULL;
    node n = {.size = 3};
    uint32_t bad = 0;
    tk_ok(fm_ranks_launch(&ranks, &n.c, 3, argv, 30.0));
    tk_ok(fm_backend_open(&n.be, "exact", NULL));
    tk_ok(fm_comm_attach(n.c, n.be, NULL, false));
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

static void test_processes(void **state)
{
    (void)state;
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
        cmocka_unit_test(test_all),    cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_death),  cmocka_unit_test(test_look),
        cmocka_unit_test(test_differ), cmocka_unit_test(test_silent),
        cmocka_unit_test(test_leaves), cmocka_unit_test(test_same),
        cmocka_unit_test(test_nccl),   cmocka_unit_test(test_processes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
