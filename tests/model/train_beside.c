/* train_beside.c - gradients go to the other ranks while the backward pass is at work below them:
 * as many rounds as the layers that it has left complete, and no more; in one order for all ranks,
 * whatever the order of their passes; sums as always. */
#include <stdatomic.h>

#include "store/base/mem.h"
#include "store/source.h"
#include "tests/model/ranks_kit.h"
#include "tests/model/train_kit.h"
#include "train/run/grad_overlap.h"

#define RANKS 2u
#define CHILDREN 2u

static atomic_uint exchanges; /* of all ranks, but for what the kit itself exchanges */
static fm_status (*plain_exchange)(fm_wire *w, const fm_move *list, uint32_t n);

static fm_status counted(fm_wire *w, const fm_move *list, uint32_t n)
{
    atomic_fetch_add(&exchanges, 1);
    return plain_exchange(w, list, n);
}

typedef struct rank {
    fm_wire *wire;
    uint32_t number;
    pthread_barrier_t *all;
    fm_status rc;
    unsigned early, late, wrong; /* exchanges while layers were missing; in all; sums */
    unsigned want_early, want_all, second, want_second;
} rank;

static float noise(uint32_t shard, size_t child, uint64_t i)
{
    uint64_t x = (i * 0x9E3779B97F4A7C15u) ^ ((shard + 3 * child) * 0xD1B54A32D192ED03u);
    x ^= x >> 29;
    return (float)((double)(x % 2000003) / 1000001.5 - 1.0);
}

/* By its name: the final norm and layers from `layer` on are behind the backward. */
static bool is_done(const char *name, unsigned layer)
{
    unsigned n;
    if (sscanf(name, "model.layers.%u.", &n) == 1)
        return n >= layer;
    return strcmp(name, "model.norm.weight") == 0;
}

/* Rounds that hold nothing but parameters that are done. */
static unsigned rounds_done(const fmt_params *ps, unsigned layer)
{
    unsigned done = 0;
    uint64_t per = ps->stripe * RANKS;
    for (uint64_t q = 0; q < fmt_params_rounds(ps); q++) {
        bool all = true;
        for (size_t k = 0; k < ps->count; k++) {
            const fmt_param *p = &ps->item[k];
            bool in = p->at < (q + 1) * per && p->at + p->n > q * per;
            all = all && (!in || is_done(p->name, layer));
        }
        done += all;
    }
    return done;
}

static fm_status build(fmt_child *ch, fm_engine *e, const fm_model *m, fm_comm *comm)
{
    fm_backend *be = fm_engine_backend(e);
    fm_train_config c = fm_train_defaults(FM_METHOD_FULL);
    fm_param param;
    c.shards = RANKS;
    fm_status rc = fmt_net_init(&ch->net, be, fm_model_arch(m), NULL);
    for (uint32_t i = 0; rc == FM_OK && fm_arch_param(&ch->net.arch, i, &param); i++)
        rc = fmt_net_train(&ch->net, &ch->ps, param.name, &param.shape, param.name);
    if (rc == FM_OK)
        rc = fmt_params_share(&ch->ps, &c, comm, be);
    if (rc == FM_OK)
        rc = fmt_params_alloc(&ch->ps, be, false);
    ch->at_work = true;
    return rc == FM_OK ? fmt_shards_open(&ch->shards, &c, comm, &ch->ps) : rc;
}

static void fill(const rank *r, fmt_child *ch, size_t child)
{
    for (uint64_t i = 0; i < ch->ps.total; i++)
        ch->ps.g[i] = noise(r->number, child, i);
}

static unsigned wrong_sums(fmt_child *ch, size_t child)
{
    unsigned wrong = 0;
    fmt_stripe s;
    for (uint64_t q = 0; fmt_params_stripe(&ch->ps, q, &s); q++)
        for (uint64_t i = s.at; i < s.at + s.n; i++) {
            float want = noise(0, child, i) + noise(1, child, i);
            wrong += memcmp(&want, &ch->ps.g[i], sizeof(want)) != 0;
        }
    return wrong;
}

/* Until so many, and a moment longer: more would come then. */
static unsigned wait_for(unsigned want)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    for (int i = 0; i < 5000 && atomic_load(&exchanges) < want; i++)
        (void)nanosleep(&nap, NULL);
    for (int i = 0; i < 20; i++)
        (void)nanosleep(&nap, NULL);
    return atomic_load(&exchanges);
}

static fm_status first_step(rank *r, fmt_grad_overlap *b, fmt_child *ch)
{
    const uint32_t layers = ch[0].net.arch.layers, half = layers / 2;
    fm_status rc = FM_OK;
    for (size_t i = 0; i < CHILDREN; i++) {
        fill(r, &ch[i], i);
        r->want_early += RANKS * rounds_done(&ch[i].ps, half);
        r->want_all += RANKS * (unsigned)fmt_params_rounds(&ch[i].ps);
    }
    (void)pthread_barrier_wait(r->all);
    if (r->number == 0)
        atomic_store(&exchanges, 0);
    (void)pthread_barrier_wait(r->all);
    fmt_grad_overlap_begin(b);
    /* One rank's children share a pass, the other one's go one after another, the second first. */
    for (uint32_t l = layers + 1; r->number == 0 && l-- > half;)
        for (size_t i = 0; i < CHILDREN && rc == FM_OK; i++)
            rc = fmt_grad_overlap_left(b, i, l);
    for (size_t i = CHILDREN; r->number == 1 && i-- > 0;)
        for (uint32_t l = layers + 1; l-- > half && rc == FM_OK;)
            rc = fmt_grad_overlap_left(b, i, l);
    r->early = wait_for(r->want_early);
    (void)pthread_barrier_wait(r->all);
    if (rc == FM_OK)
        rc = fmt_grad_overlap_end(b);
    (void)pthread_barrier_wait(r->all);
    r->late = atomic_load(&exchanges);
    for (size_t i = 0; i < CHILDREN; i++)
        r->wrong += wrong_sums(&ch[i], i);
    return rc;
}

/* One child is not at work any more: nothing of it goes. */
static fm_status second_step(rank *r, fmt_grad_overlap *b, fmt_child *ch)
{
    fill(r, &ch[0], 0);
    ch[0].at_work = true;
    ch[1].at_work = false;
    r->want_second = r->late + RANKS * (unsigned)fmt_params_rounds(&ch[0].ps);
    (void)pthread_barrier_wait(r->all);
    fmt_grad_overlap_begin(b);
    fm_status rc = fmt_grad_overlap_end(b);
    (void)pthread_barrier_wait(r->all);
    r->second = atomic_load(&exchanges);
    r->wrong += wrong_sums(&ch[0], 0) + wrong_sums(&ch[1], 1);
    return rc;
}

static fm_status steps(rank *r, fm_engine *e, const fm_model *m, fm_comm *comm)
{
    fmt_child ch[CHILDREN] = {{0}};
    fmt_grad_overlap *b = NULL;
    fm_backend *be = fm_engine_backend(e);
    fm_status rc = FM_OK;
    for (size_t i = 0; i < CHILDREN && rc == FM_OK; i++)
        rc = build(&ch[i], e, m, comm);
    if (rc == FM_OK)
        rc = fmt_grad_overlap_open(&b, comm, be, ch, CHILDREN);
    if (rc == FM_OK)
        rc = first_step(r, b, ch);
    if (rc == FM_OK)
        rc = second_step(r, b, ch);
    fmt_grad_overlap_close(b);
    for (size_t i = 0; i < CHILDREN; i++) {
        fmt_shards_release(&ch[i].shards, be);
        fmt_params_release(&ch[i].ps);
        fmt_net_release(&ch[i].net);
    }
    return rc;
}

static void *work(void *arg)
{
    rank *r = arg;
    char *path = tk_source("examples/atlas/base");
    fm_source *src = NULL;
    fm_comm *comm = NULL;
    fm_engine *e = NULL;
    fm_model *m = NULL;
    fm_engine_opts o = rk_opts("exact", 64);
    r->rc = fm_source_open(&src, path);
    if (r->rc == FM_OK)
        r->rc = fm_comm_new(&comm, r->wire, NULL);
    o.comm = comm;
    o.comm_splits_batches = true;
    if (r->rc == FM_OK)
        r->rc = fm_engine_new(&e, &o);
    fm_provider p = fm_source_provider(src);
    if (r->rc == FM_OK)
        r->rc = fm_model_load(&m, e, fm_source_tree(src), &p, "atlas");
    if (r->rc == FM_OK)
        r->rc = steps(r, e, m, comm);
    fm_model_close(m);
    fm_engine_free(e);
    fm_comm_free(comm);
    fm_source_close(src);
    fm_free(path);
    return NULL;
}

TEST(rounds_go_beside)
{
    fm_wire *wire[RANKS];
    pthread_t thread[RANKS];
    pthread_barrier_t all;
    rank r[RANKS];
    tk_ok(fm_wire_threads(wire, RANKS, 60.0));
    assert_int_equal(pthread_barrier_init(&all, NULL, RANKS), 0);
    plain_exchange = wire[0]->exchange;
    for (uint32_t i = 0; i < RANKS; i++) {
        wire[i]->exchange = counted;
        r[i] = (rank){.wire = wire[i], .number = i, .all = &all};
        assert_int_equal(pthread_create(&thread[i], NULL, work, &r[i]), 0);
    }
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    (void)pthread_barrier_destroy(&all);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(r[i].rc, FM_OK);
        assert_true(r[i].want_early >= 2 * RANKS && r[i].want_early < r[i].want_all);
        assert_int_equal(r[i].early, r[i].want_early);
        assert_int_equal(r[i].late, r[i].want_all);
        assert_int_equal(r[i].second, r[i].want_second);
        assert_int_equal(r[i].wrong, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rounds_go_beside)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
