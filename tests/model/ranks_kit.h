/* ranks_kit.h - an engine whose models are split over ranks that are threads of the test: rank 0 is
 * the caller's, the others follow. */
#ifndef FM_TESTS_MODEL_RANKS_KIT_H
#define FM_TESTS_MODEL_RANKS_KIT_H

#include <pthread.h>
#include <stdlib.h>

#include "infer/comm/wire.h"
#include "tests/model/infer_kit.h"

#define RK_MOST 4u

typedef struct rk_rank {
    fm_wire *wire;
    fm_engine_opts opts;
    fm_provider p;
    fm_engine *e; /* its engine */
    fm_status rc;
    char text[1024];
    uint64_t replayed; /* for rk_ends */
} rk_rank;

/* Where it is set: sees the engine of each following rank before that ends. */
static void (*rk_ends)(rk_rank *r, const fm_engine *e);

typedef struct rk_ranks {
    uint32_t size;
    fm_comm *comm;
    fm_engine *e;
    rk_rank rank[RK_MOST];
    pthread_t thread[RK_MOST];
} rk_ranks;

/* With RK_CARDS=1 every rank has a GPU of its own (NULL: what the program gives). */
static inline const char *rk_card(uint32_t rank)
{
    static const char *const card[RK_MOST] = {"cuda:0", "cuda:1", "cuda:2", "cuda:3"};
    const char *on = getenv("RK_CARDS");
    return on && *on == '1' ? card[rank] : NULL;
}

/* On emulated GPUs a program takes long: this test of it alone, unless RK_ALL is set. */
static inline void rk_only(const char *name)
{
    if (rk_card(0) && !getenv("RK_ALL"))
        cmocka_set_test_filter(name);
}

static inline void *rk_follow(void *arg)
{
    rk_rank *r = arg;
    fm_comm *comm = NULL;
    fm_engine *e = NULL;
    r->rc = fm_comm_new(&comm, r->wire, NULL);
    r->opts.comm = comm;
    if (r->rc == FM_OK)
        r->rc = fm_engine_new(&e, &r->opts);
    r->e = e;
    if (r->rc == FM_OK)
        r->rc = fm_engine_follow(e, &r->p);
    (void)snprintf(r->text, sizeof(r->text), "%s", fm_error_text());
    if (rk_ends && e)
        rk_ends(r, e);
    fm_engine_free(e);
    fm_comm_free(comm);
    return NULL;
}

/* as_mpi: over a wire that does not bear messages of other sizes. */
static inline void rk_open_on(rk_ranks *k, uint32_t size, const fm_engine_opts *opts,
                              const fm_provider *p, bool as_mpi)
{
    fm_wire *wire[RK_MOST];
    assert_true(size <= RK_MOST);
    memset(k, 0, sizeof(*k));
    k->size = size;
    tk_ok(fm_wire_threads(wire, size, 60.0));
    for (uint32_t i = 0; as_mpi && i < size; i++)
        wire[i]->sized = false;
    for (uint32_t i = 1; i < size; i++) {
        k->rank[i] = (rk_rank){.wire = wire[i], .opts = *opts, .p = *p};
        k->rank[i].opts.threads = 1;
        k->rank[i].opts.device = rk_card(i);
        assert_int_equal(pthread_create(&k->thread[i], NULL, rk_follow, &k->rank[i]), 0);
    }
    tk_ok(fm_comm_new(&k->comm, wire[0], NULL));
    fm_engine_opts o = *opts;
    o.comm = k->comm;
    o.device = rk_card(0);
    tk_ok(fm_engine_new(&k->e, &o));
    if (o.device && size > 1)
        assert_string_equal(fm_comm_wire(k->comm), "nccl");
}

static inline void rk_open(rk_ranks *k, uint32_t size, const fm_engine_opts *opts,
                           const fm_provider *p)
{
    rk_open_on(k, size, opts, p, false);
}

/* Every rank ended as it should. */
static inline void rk_close(rk_ranks *k)
{
    fm_engine_free(k->e);
    fm_comm_free(k->comm);
    for (uint32_t i = 1; i < k->size; i++)
        assert_int_equal(pthread_join(k->thread[i], NULL), 0);
    for (uint32_t i = 1; i < k->size; i++)
        if (k->rank[i].rc != FM_OK)
            fail_msg("rank %u: %s", i, k->rank[i].text);
}

static inline fm_engine_opts rk_opts(const char *mode, uint32_t max_rows)
{
    fm_engine_opts o = fm_engine_defaults();
    o.threads = 1;
    o.mode = mode;
    o.max_rows = max_rows;
    o.kv_bytes_max = 64u << 20;
    return o;
}

#endif
