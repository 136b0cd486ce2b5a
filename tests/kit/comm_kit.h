/* comm_kit.h - ranks that are threads of a test, each with a backend (on a GPU of its own where
 * CK_ON_CARDS is defined), what they do together and where they leave. The reference adds in
 * ascending ranks by itself. */
#ifndef FM_TESTS_KIT_COMM_H
#define FM_TESTS_KIT_COMM_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "infer/backend.h"
#include "infer/comm/wire.h"
#include "tests/testkit.h"

static pthread_barrier_t left;

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

static void open_nodes(node *all, uint32_t size, double step_timeout_s)
{
    fm_wire *wire[MOST];
    tk_ok(fm_wire_threads(wire, size, step_timeout_s));
    for (uint32_t i = 0; i < size; i++) {
        all[i] = (node){.rank = i, .size = size};
#if defined(CK_ON_CARDS)
        char card[16];
        (void)snprintf(card, sizeof(card), "cuda:%u", i);
        tk_ok(fm_backend_open_on(&all[i].be, card, "exact", NULL));
#else
        tk_ok(fm_backend_open(&all[i].be, "exact", NULL));
#endif
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
#if defined(CK_ON_CARDS)
    if (n->rc == FM_OK)
        n->rc = fm_comm_attach_device(n->c, n->be);
#else
    if (n->rc == FM_OK)
        n->rc = fm_comm_attach(n->c, n->be, NULL);
#endif
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

static float *filled(node *n, fm_backend *be, uint64_t count)
{
    float *x = buffer(be, count), *host = malloc(count * sizeof(float));
    for (uint64_t i = 0; i < count; i++)
        host[i] = value(n->rank, i);
    if (be->upload(be, x, host, count * sizeof(float)) != FM_OK)
        abort();
    free(host);
    return x;
}

/* Whether x is the sums from `at` on, or (own) this rank's values. */
static bool is_sum(node *n, fm_backend *be, const float *x, uint64_t count, uint64_t at, bool own)
{
    float *host = malloc(count * sizeof(float));
    bool good = be->download(be, host, x, count * sizeof(float)) == FM_OK;
    for (uint64_t i = 0; i < count && good; i++) {
        float want = own ? value(n->rank, at + i) : sum_of(n->size, at + i);
        good = memcmp(&want, &host[i], sizeof(float)) == 0;
    }
    free(host);
    return good;
}

static bool scattered(node *n, fm_backend *be, uint64_t per, bool in_place)
{
    uint64_t all = per * n->size;
    float *x = filled(n, be, all), *out = in_place ? x + per * n->rank : buffer(be, per);
    float *whole = buffer(be, all);
    bool good = fm_comm_reduce_scatter(n->c, out, x, per) == FM_OK &&
                is_sum(n, be, out, per, n->rank * per, false) &&
                (in_place || is_sum(n, be, x, all, 0, true)) &&
                fm_comm_all_gather(n->c, whole, out, per) == FM_OK &&
                is_sum(n, be, whole, all, 0, false);
    be->free(be, whole);
    if (!in_place)
        be->free(be, out);
    be->free(be, x);
    return good;
}

static bool is_float(fm_backend *be, const float *x, float want)
{
    float have;
    return be->download(be, &have, x, sizeof(have)) == FM_OK &&
           memcmp(&have, &want, sizeof(want)) == 0;
}

static bool passed_on(node *n, fm_backend *be)
{
    uint32_t next = (n->rank + 1) % n->size, before = (n->rank + n->size - 1) % n->size;
    float *x = buffer(be, 3), *y = buffer(be, 3);
    float host[3] = {(float)n->rank, (float)n->rank, (float)n->rank};
    const void *part[MOST] = {NULL};
    void *got[MOST] = {NULL};
    size_t out[MOST] = {0}, in[MOST] = {0};
    part[next] = x;
    out[next] = 3 * sizeof(float);
    got[before] = y;
    in[before] = 3 * sizeof(float);
    bool good = be->upload(be, x, host, sizeof(host)) == FM_OK &&
                fm_comm_exchange(n->c, part, out, got, in) == FM_OK &&
                is_float(be, y + 2, (float)before);
    fm_status rc = n->rank == 0   ? fm_comm_send(n->c, x, 4, 1)
                   : n->rank == 1 ? fm_comm_recv(n->c, y, 4, 0)
                                  : FM_OK;
    good = good && rc == FM_OK && (n->rank != 1 || is_float(be, y, 0.0f));
    host[0] = n->rank == 1 ? 42.0f : 0.0f;
    good = good && be->upload(be, x, host, 4) == FM_OK &&
           fm_comm_broadcast(n->c, x, sizeof(float), 1) == FM_OK && is_float(be, x, 42.0f);
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
#if !defined(CK_ON_CARDS)
    if (good) {
        good = fm_comm_attach(n->c, &n->hidden, NULL) == FM_OK && all_reduced(n, &n->hidden, 100) &&
               all_reduced(n, &n->hidden, 50001);
    }
#endif
    good = good && fm_comm_nodes(n->c) == (n->size + 1) / 2 && fm_comm_node(n->c, 1) == 0 &&
           (n->size < 3 || fm_comm_node(n->c, 2) == 1);
    keep_text(n, n->rc);
    n->rc = good ? FM_OK : FM_ECORRUPT;
}

/* ==== ranks that leave ==== */

typedef struct leaving {
    uint32_t at[3]; /* place at which each rank leaves; PLACES: never */
    uint64_t count; /* floats of each exchange */
} leaving;
#define PLACES 6u

/* One of several operations of all kinds. */
static fm_status one_place(node *n, uint32_t at, uint64_t count, float *x, float *y)
{
    uint32_t every[MOST], mine = n->rank;
    const void *part[MOST] = {NULL};
    void *got[MOST] = {NULL};
    size_t out[MOST] = {0}, in[MOST] = {0};
    switch (at) {
    case 0:
        return fm_comm_all_reduce(n->c, x, count);
    case 1: /* to rank 0 alone */
        for (uint32_t r = 1; r < n->size; r++) {
            part[0] = n->rank ? x : NULL;
            out[0] = n->rank ? count * sizeof(float) : 0;
            got[r] = n->rank ? NULL : y;
            in[r] = n->rank ? 0 : count * sizeof(float);
        }
        return fm_comm_exchange(n->c, part, out, got, in);
    case 2:
        return fm_comm_broadcast(n->c, y, count * sizeof(float), 1);
    case 3:
        return fm_comm_collect(n->c, every, &mine, sizeof(mine));
    case 4:
        return fm_comm_agree(n->c, FM_OK);
    default:
        return fm_comm_all_reduce(n->c, x, 5);
    }
}

/* Every rank has the text of one of those that left, and the same one. */
static bool same_text(node *n)
{
    char mine[128] = "", all[MOST][128];
    const char *text = strstr(fm_error_text(), "no room on");
    (void)snprintf(mine, sizeof(mine), "%s", text ? text : "none");
    bool same = fm_comm_collect(n->c, all, mine, sizeof(mine)) == FM_OK;
    for (uint32_t r = 1; r < n->size && same; r++)
        same = strcmp(all[r], all[0]) == 0;
    return same;
}

/* All fail with the text of one that left, and go on. */
static bool together(node *n, const leaving *l, float *x, float *y)
{
    fm_status rc = FM_OK;
    bool some = false, named = false;
    for (uint32_t at = 0; at < PLACES && rc == FM_OK; at++)
        rc = n->rank < 3 && l->at[n->rank] == at ? fm_fail(FM_ELIMIT, "no room on %u", n->rank)
                                                 : one_place(n, at, l->count, x, y);
    rc = fm_comm_meet(n->c, rc, 7);
    for (uint32_t r = 0; r < 3 && r < n->size; r++) {
        char want[32];
        (void)snprintf(want, sizeof(want), "no room on %u", r);
        some = some || l->at[r] < PLACES;
        named = named || (l->at[r] < PLACES && strstr(fm_error_text(), want));
    }
    return some ? rc == FM_ELIMIT && named && same_text(n) : rc == FM_OK;
}

/* Of three ranks; further ones stay. */
static const leaving lot[] = {
    {{0, 6, 6}, 9},      {{6, 0, 6}, 70000},  {{6, 6, 1}, 70000},  {{1, 6, 6}, 300000},
    {{6, 2, 6}, 300000}, {{2, 6, 6}, 300000}, {{6, 6, 3}, 9},      {{3, 6, 6}, 70000},
    {{6, 4, 6}, 300000}, {{5, 6, 6}, 9},      {{6, 6, 5}, 300000}, {{6, 6, 6}, 300000},
    {{0, 0, 0}, 300000}, {{6, 5, 2}, 70000},  {{1, 6, 1}, 300000}, {{6, 6, 6}, 9},
};

/* All lots, one after another. Sums are read before the next lot begins anywhere: a rank that
 * leaves it takes the device's wire from those that still wait for their part of the one before. */
static bool lots(node *n)
{
    float *x = buffer(n->be, 300000), *y = buffer(n->be, 300000);
    bool good = true;
    for (size_t i = 0; i < FM_ARRAY_LEN(lot) && good; i++) {
        const char *what = !together(n, &lot[i], x, y)      ? "not together"
                           : !all_reduced(n, n->be, 1000)   ? "other sums"
                           : fm_comm_barrier(n->c) != FM_OK ? "no barrier"
                           : fm_comm_check(n->c) != FM_OK   ? "the check"
                                                            : NULL;
        if (what)
            fprintf(stderr, "rank %u, lot %zu: %s: %s\n", n->rank, i, what, fm_error_text());
        good = !what;
    }
    n->be->free(n->be, x);
    n->be->free(n->be, y);
    return good;
}

static void do_leaves(node *n)
{
    make_comm(n);
    bool good = n->rc == FM_OK && lots(n);
#if !defined(CK_ON_CARDS)
    good = good && fm_comm_attach(n->c, &n->hidden, NULL) == FM_OK && lots(n);
#endif
    keep_text(n, good ? FM_OK : FM_ECORRUPT);
}

#endif
