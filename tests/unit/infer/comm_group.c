/* comm_group.c - some ranks of a comm as a comm of their own: sums in ascending order of members,
 * beside other groups and between operations of the whole; what fails in one fails in both. The
 * reference adds by itself. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "infer/backend.h"
#include "infer/comm/wire.h"
#include "store/base/mem.h"
#include "tests/testkit.h"

#define RANKS 5u

typedef struct node {
    uint32_t rank;
    fm_wire *wire;
    fm_backend *be, hidden; /* hidden: the same, whose memory the host is not to touch */
    bool good;
    char text[1024];
} node;

static float value(uint32_t rank, uint64_t i)
{
    uint32_t h = (rank * 2654435761u) ^ (uint32_t)(i * 40503u + 12345u);
    h ^= h >> 13;
    h *= 2246822519u;
    h ^= h >> 16;
    float f = (float)(h & 0xffff) / 65536.0f - 0.5f;
    return h & 0x10000 ? f * 1e4f : f * 1e-3f;
}

static bool sums(fm_comm *c, fm_backend *be, uint32_t rank, const uint32_t *member, uint32_t size,
                 uint64_t n)
{
    void *x = NULL;
    float *host = fm_malloc(n * sizeof(float));
    bool good = host && be->alloc(be, &x, n * sizeof(float)) == FM_OK;
    for (uint64_t i = 0; good && i < n; i++)
        host[i] = value(rank, i);
    good = good && be->upload(be, x, host, n * sizeof(float)) == FM_OK &&
           fm_comm_all_reduce(c, x, n) == FM_OK &&
           be->download(be, host, x, n * sizeof(float)) == FM_OK;
    for (uint64_t i = 0; good && i < n; i++) {
        float want = value(member[0], i);
        for (uint32_t r = 1; r < size; r++)
            want = want + value(member[r], i);
        good = memcmp(&want, &host[i], sizeof(want)) == 0;
    }
    if (x)
        be->free(be, x);
    fm_free(host);
    return good;
}

static bool talks(fm_comm *c, uint32_t rank, const uint32_t *member, uint32_t size)
{
    uint32_t mine = rank * 7, all[RANKS], word = rank;
    bool good = fm_comm_collect(c, all, &mine, sizeof(mine)) == FM_OK;
    for (uint32_t i = 0; good && i < size; i++)
        good = all[i] == member[i] * 7;
    good = good && fm_comm_tell(c, &word, sizeof(word), size - 1) == FM_OK;
    return good && word == member[size - 1] && fm_comm_settle(c) == FM_OK;
}

/* Ranks 0, 2, 4 and 1, 3: as many sums as they like, then the whole again. */
static void *run_groups(void *arg)
{
    static const uint32_t even[] = {0, 2, 4}, odd[] = {1, 3}, all[] = {0, 1, 2, 3, 4};
    static const uint64_t count[] = {1, 100, 16385, 50001};
    node *n = arg;
    const uint32_t *member = n->rank % 2 ? odd : even, size = n->rank % 2 ? 2 : 3;
    const uint32_t wrong[] = {4, 2}, others[] = {(n->rank + 1) % RANKS};
    fm_comm *c = NULL, *g = NULL, *alone = NULL;
    fm_backend *be = n->rank < 3 ? &n->hidden : n->be;
    n->good = fm_comm_new(&c, n->wire, n->rank < 2 ? "a" : "b") == FM_OK;
    n->good = n->good && fm_comm_attach(c, be, NULL) == FM_OK &&
              fm_comm_group(&g, c, be, wrong, 2) == FM_EINVAL &&
              fm_comm_group(&g, c, be, others, 1) == FM_EINVAL &&
              fm_comm_group(&g, c, be, member, size) == FM_OK &&
              fm_comm_group(&alone, c, be, &n->rank, 1) == FM_OK;
    n->good = n->good && fm_comm_size(g) == size && member[fm_comm_rank(g)] == n->rank &&
              fm_comm_size(alone) == 1 && fm_comm_rank(alone) == 0;
    uint64_t before = n->good ? fm_comm_stats_of(c).bytes_sent : 0;
    for (size_t i = 0; n->good && i < FM_ARRAY_LEN(count); i++)
        n->good = sums(g, be, n->rank, member, size, count[i]) &&
                  (n->rank % 2 || sums(g, be, n->rank, member, size, 33)) &&
                  sums(alone, be, n->rank, &n->rank, 1, count[i]);
    n->good = n->good && talks(g, n->rank, member, size) && sums(c, be, n->rank, all, RANKS, 777) &&
              fm_comm_nodes(c) == 2 && fm_comm_stats_of(c).bytes_sent > before;
    (void)snprintf(n->text, sizeof(n->text), "%s", fm_error_text());
    fm_comm_free(alone);
    fm_comm_free(g);
    fm_comm_free(c);
    return NULL;
}

/* Rank 2 leaves: its neighbour in the group hears of it there, and its comm has failed too. */
static void *run_loss(void *arg)
{
    static const uint32_t pair[] = {0, 2};
    node *n = arg;
    fm_comm *c = NULL, *g = NULL;
    n->good = fm_comm_new(&c, n->wire, NULL) == FM_OK;
    n->good = n->good && fm_comm_attach(c, n->be, NULL) == FM_OK;
    if (n->good && n->rank != 1)
        n->good = fm_comm_group(&g, c, n->be, pair, 2) == FM_OK;
    if (n->good && n->rank == 0) {
        uint32_t x = 0, all[RANKS];
        n->good = fm_comm_collect(g, all, &x, sizeof(x)) == FM_EIO &&
                  strstr(fm_error_text(), "rank 2 is gone") && fm_comm_check(c) == FM_EIO &&
                  strstr(fm_error_text(), "rank 2 is gone");
    }
    (void)snprintf(n->text, sizeof(n->text), "%s", fm_error_text());
    fm_comm_free(g);
    fm_comm_free(c);
    return NULL;
}

static void run_all(uint32_t size, void *(*run)(void *))
{
    fm_wire *wire[RANKS];
    node n[RANKS];
    pthread_t t[RANKS];
    tk_ok(fm_wire_threads(wire, size, 30.0));
    for (uint32_t i = 0; i < size; i++) {
        n[i] = (node){.rank = i, .wire = wire[i]};
        tk_ok(fm_backend_open(&n[i].be, "exact", NULL));
        n[i].hidden = *n[i].be;
        n[i].hidden.host_visible = false;
        assert_int_equal(pthread_create(&t[i], NULL, run, &n[i]), 0);
    }
    for (uint32_t i = 0; i < size; i++)
        assert_int_equal(pthread_join(t[i], NULL), 0);
    for (uint32_t i = 0; i < size; i++) {
        if (!n[i].good)
            fail_msg("rank %u: %s", i, n[i].text);
        fm_backend_close(n[i].be);
    }
}

TEST(groups_add_in_order)
{
    run_all(RANKS, run_groups);
}

TEST(a_lost_member_is_known)
{
    run_all(3, run_loss);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(groups_add_in_order),
                                       cmocka_unit_test(a_lost_member_is_known)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
