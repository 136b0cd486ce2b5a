/* The cache of weights and loading beside a stepping engine: budgets, sharing, eviction, what is
 * given back when reading fails; and the same bits as alone throughout. */
#include "tests/model/serve_kit.h"

#include <malloc.h>

#define CHILDREN 50
#define TOKENS 6u

/* A stem and its children, each with a LoRA of its own; what each says alone. */
typedef struct storm {
    sk_family f; /* tree[0] is the stem */
    fm_tree *child[CHILDREN];
    float *alone[CHILDREN]; /* [TOKENS, SK_VOCAB] */
    uint64_t stem_bytes, child_bytes;
} storm;

static storm all;
static const int32_t ids[TOKENS] = {1, 40, 41, 90, 7, 120};

static fm_engine *engine(uint64_t weight_bytes_max, unsigned threads)
{
    fm_engine_opts o = fm_engine_defaults();
    fm_engine *e = NULL;
    o.threads = threads;
    o.max_rows = 16;
    o.weight_bytes_max = weight_bytes_max;
    tk_ok(fm_engine_new(&e, &o));
    return e;
}

static fm_model *load(fm_engine *e, const fm_tree *tree)
{
    fm_model *m = NULL;
    fm_provider p = ik_provider(&all.f.mem);
    tk_ok(fm_model_load(&m, e, tree, &p, "child"));
    return m;
}

static void check(fm_model *m, int child)
{
    float now[TOKENS * SK_VOCAB];
    ik_logits(m, ids, TOKENS, 4, now);
    assert_memory_equal(now, all.alone[child], sizeof(now));
}

static int setup(void **state)
{
    (void)state;
    sk_family_init(&all.f);
    for (int i = 0; i < CHILDREN; i++) {
        tk_ok(fm_tree_copy(&all.child[i], all.f.tree[0]));
        sk_lora(&all.f, all.child[i], 4, 10000 + 100 * (uint64_t)i);
        fm_engine *e = engine(0, 1);
        fm_model *m = load(e, all.child[i]);
        all.alone[i] = fm_malloc(TOKENS * SK_VOCAB * sizeof(float));
        ik_logits(m, ids, TOKENS, TOKENS, all.alone[i]);
        uint64_t with = fm_engine_stats_of(e).weight_bytes;
        fm_model *stem = load(e, all.f.tree[0]);
        fm_model_close(m);
        all.stem_bytes = fm_engine_stats_of(e).weight_bytes;
        all.child_bytes = with - all.stem_bytes;
        fm_model_close(stem);
        fm_engine_free(e);
    }
    assert_true(all.child_bytes > 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < CHILDREN; i++) {
        fm_tree_free(all.child[i]);
        fm_free(all.alone[i]);
    }
    sk_family_free(&all.f);
    return 0;
}

/* ==== budgets ==== */

TEST(a_model_beyond_the_budget_is_refused_with_numbers)
{
    fm_engine *e = engine(all.stem_bytes - 1, 1);
    fm_provider p = ik_provider(&all.f.mem);
    fm_model *m = NULL;
    char budget[64];
    (void)snprintf(budget, sizeof(budget), "budget for weights is %llu",
                   (unsigned long long)all.stem_bytes - 1);
    tk_fails(fm_model_load(&m, e, all.f.tree[0], &p, "stem"), FM_ELIMIT, budget);
    assert_null(m);
    fm_engine_stats s = fm_engine_stats_of(e);
    assert_int_equal(s.weight_bytes, s.weight_bytes_idle); /* nothing is held */
    assert_int_equal(s.weight_bytes_unshared, 0);
    assert_int_equal(s.models, 0);
    fm_engine_free(e);
}

TEST(open_models_are_never_evicted)
{
    fm_engine *e = engine(all.stem_bytes + all.child_bytes, 1);
    fm_provider p = ik_provider(&all.f.mem);
    fm_model *one = load(e, all.child[1]), *two = NULL;
    tk_fails(fm_model_load(&two, e, all.child[2], &p, "two"), FM_ELIMIT, "two: tensor");
    check(one, 1);
    fm_model_close(one);
    two = load(e, all.child[2]);
    check(two, 2);
    assert_true(fm_engine_stats_of(e).weight_evictions > 0);
    fm_model_close(two);
    fm_engine_free(e);
}

TEST(closed_models_stay_until_room_is_needed)
{
    fm_engine *e = engine(all.stem_bytes + 2 * all.child_bytes, 1);
    fm_model_close(load(e, all.child[3]));
    fm_engine_stats before = fm_engine_stats_of(e);
    assert_int_equal(before.weight_bytes_idle, all.stem_bytes + all.child_bytes);
    fm_model *m = load(e, all.child[3]);
    fm_engine_stats after = fm_engine_stats_of(e);
    assert_int_equal(after.weight_misses, before.weight_misses);
    assert_true(after.weight_hits > before.weight_hits);
    assert_int_equal(after.weight_bytes_idle, 0);
    check(m, 3);
    fm_model *n = load(e, all.child[4]);
    assert_int_equal(fm_engine_stats_of(e).weight_bytes_shared, all.stem_bytes);
    fm_model_close(m);
    fm_model_close(n);
    fm_engine_free(e);
}

/* Up to five open at a time, one replaced by a random other each round. */
static void storm_rounds(fm_engine *e, int rounds, uint64_t seed)
{
    fm_model *open[5] = {NULL};
    for (int i = 0; i < rounds; i++) {
        size_t at = (size_t)fm_rng_below(seed, 1, (uint64_t)i, 5);
        int child = (int)fm_rng_below(seed, 2, (uint64_t)i, CHILDREN);
        fm_model_close(open[at]);
        open[at] = load(e, all.child[child]);
        check(open[at], child);
        fm_engine_stats s = fm_engine_stats_of(e);
        assert_true(s.weight_bytes <= s.weight_bytes_max);
    }
    for (size_t i = 0; i < 5; i++)
        fm_model_close(open[i]);
}

TEST(a_storm_of_fifty_children_fits_a_budget_for_five)
{
    fm_engine *e = engine(all.stem_bytes + 5 * all.child_bytes, 2);
    storm_rounds(e, 150, 1);
    size_t heap = mallinfo2().uordblks;
    storm_rounds(e, 300, 2);
    size_t now = mallinfo2().uordblks;
    assert_true(now < heap + 65536); /* nothing grows */
    fm_engine_stats s = fm_engine_stats_of(e);
    assert_true(s.weight_evictions > 500);
    assert_true(s.weight_hits > 4 * s.weight_misses); /* the stem is read once */
    assert_int_equal(s.weight_bytes, s.weight_bytes_idle);
    fm_engine_free(e);
}

/* ==== reading that fails ==== */

typedef struct flaky {
    fm_provider behind;
    atomic_int reads, fail_at, fail_every; /* 0: never */
} flaky;

static fm_status flaky_read(void *ctx, const fm_entry *e, void *dst)
{
    flaky *f = ctx;
    int n = atomic_fetch_add(&f->reads, 1) + 1;
    int every = atomic_load(&f->fail_every);
    if (n == atomic_load(&f->fail_at) || (every && n % every == 0))
        return fm_fail(FM_EIO, "read %d fails", n);
    return f->behind.read(f->behind.ctx, e, dst);
}

TEST(a_read_that_fails_gives_everything_back)
{
    flaky f = {.behind = ik_provider(&all.f.mem)};
    fm_provider p = {.ctx = &f, .read = flaky_read};
    for (unsigned threads = 1; threads <= 2; threads++) {
        fm_engine *e = engine(0, 1);
        fm_status rc = FM_EIO;
        for (int nth = 1; rc != FM_OK; nth++) {
            fm_model *m = NULL;
            atomic_store(&f.reads, 0);
            atomic_store(&f.fail_at, threads == 1 ? nth : 0);
            atomic_store(&f.fail_every, threads == 1 ? 0 : 1); /* binding tries once more */
            rc = fm_model_prepare(&m, e, all.child[0], &p, "m", threads);
            fm_engine_stats s = fm_engine_stats_of(e);
            if (rc != FM_OK) {
                assert_int_equal(rc, FM_EIO);
                assert_non_null(strstr(fm_error_text(), "fails"));
                assert_int_equal(s.weights, 0);
                assert_int_equal(s.weight_bytes, 0);
            }
            fm_model_close(m);
            if (threads == 2)
                break;
            assert_true(nth < 100);
        }
        fm_engine_free(e);
    }
}

/* ==== bytes that stay where they are ==== */

static fm_status show(void *ctx, const fm_entry *e, fm_span *out)
{
    const ik_mem *m = ctx;
    *out = (fm_span){NULL, 0};
    for (size_t i = 0; i < m->count; i++)
        if (fm_digest_eq(&m->t[i].id, &e->id))
            *out = fm_span_of(m->t[i].bytes, (size_t)m->t[i].len);
    return FM_OK;
}

/* Factors and vectors in float32 are used where they lie; matrices are packed from there. */
TEST(what_can_be_used_as_stored_is_not_copied)
{
    fm_provider p = {.ctx = &all.f.mem, .read = ik_read, .view = show};
    fm_model *m = NULL;
    for (int budget = 0; budget < 2; budget++) {
        fm_engine *e = engine(budget ? all.stem_bytes + 2 * all.child_bytes : 0, 1);
        tk_ok(fm_model_load(&m, e, all.child[8], &p, "m"));
        check(m, 8);
        fm_engine_stats s = fm_engine_stats_of(e);
        assert_int_equal(s.weight_bytes, all.stem_bytes + all.child_bytes);
        assert_int_equal(s.weight_bytes_mapped, all.child_bytes + 5 * SK_HIDDEN * sizeof(float));
        fm_model_close(m);
        s = fm_engine_stats_of(e); /* what is lent is never kept: its owner may close */
        assert_int_equal(s.weight_bytes_mapped, 0);
        assert_int_equal(s.weight_bytes > 0, budget);
        m = load(e, all.child[8]);
        check(m, 8);
        fm_model_close(m);
        fm_engine_free(e);
    }
}

/* ==== threads ==== */

typedef struct loader {
    pthread_t thread;
    fm_engine *e;
    fm_provider p;
    int child, rounds;
    unsigned threads;
    atomic_int *stop;
    fm_model *model; /* of the last round */
} loader;

static void *prepare_many(void *arg)
{
    loader *l = arg;
    for (int i = 0; i < l->rounds; i++) {
        fm_status rc = FM_EIO;
        while (rc == FM_EIO) /* a flaky provider */
            rc = fm_model_prepare(&l->model, l->e, all.child[l->child + i], &l->p, "m", l->threads);
        if (rc != FM_OK || i + 1 == l->rounds)
            break;
        fm_model_close(l->model); /* never adopted */
        l->model = NULL;
    }
    return NULL;
}

static void run_loaders(fm_engine *e, loader *l, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&l[i].thread, NULL, prepare_many, &l[i]), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(pthread_join(l[i].thread, NULL), 0);
    for (size_t i = 0; i < n; i++) {
        assert_non_null(l[i].model);
        tk_ok(fm_model_adopt(l[i].model));
        check(l[i].model, l[i].child + l[i].rounds - 1);
    }
    for (size_t i = 0; i < n; i++)
        fm_model_close(l[i].model);
    assert_int_equal(fm_engine_stats_of(e).models, 0);
}

TEST(loaders_read_a_shared_tensor_once)
{
    fm_engine *e = engine(0, 1);
    flaky f = {.behind = ik_provider(&all.f.mem)};
    loader l[4];
    for (int i = 0; i < 4; i++)
        l[i] = (loader){
            .e = e, .p = {.ctx = &f, .read = flaky_read}, .child = i, .rounds = 1, .threads = 2};
    size_t stem = 0, begin, end;
    fm_tree_range(all.f.tree[0], "tensors/", &begin, &end);
    stem = end - begin;
    run_loaders(e, l, 4);
    assert_int_equal(atomic_load(&f.reads), stem + 4u * 4u);
    fm_engine_free(e);
}

TEST(failures_of_one_loader_do_not_stop_another)
{
    fm_engine *e = engine(0, 1);
    flaky f = {.behind = ik_provider(&all.f.mem), .fail_every = 9};
    loader l[4];
    for (int i = 0; i < 4; i++)
        l[i] = (loader){.e = e,
                        .p = {.ctx = &f, .read = flaky_read},
                        .child = 10 * i,
                        .rounds = 10,
                        .threads = 1u + (unsigned)i % 2};
    run_loaders(e, l, 4);
    assert_int_equal(fm_engine_stats_of(e).weights, 0);
    fm_engine_free(e);
}

/* Steps go on while other threads prepare children under a budget that makes them evict. */
TEST(models_are_prepared_beside_steps)
{
    fm_engine *e = engine(all.stem_bytes + 6 * all.child_bytes, 2);
    fm_model *mine = load(e, all.child[49]);
    loader l[2];
    for (int i = 0; i < 2; i++) {
        l[i] = (loader){.e = e,
                        .p = ik_provider(&all.f.mem),
                        .child = 20 * i,
                        .rounds = 20,
                        .threads = 1u + (unsigned)i};
        assert_int_equal(pthread_create(&l[i].thread, NULL, prepare_many, &l[i]), 0);
    }
    for (int i = 0; i < 100; i++) {
        check(mine, 49);
        if (i % 10 == 5) { /* and models come and go here as well */
            fm_model *m = load(e, all.child[41]);
            check(m, 41);
            fm_model_close(m);
        }
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(l[i].thread, NULL), 0);
        assert_non_null(l[i].model);
        tk_ok(fm_model_adopt(l[i].model));
        check(l[i].model, l[i].child + 19);
        fm_model_close(l[i].model);
    }
    fm_model_close(mine);
    fm_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_beyond_the_budget_is_refused_with_numbers),
        cmocka_unit_test(open_models_are_never_evicted),
        cmocka_unit_test(closed_models_stay_until_room_is_needed),
        cmocka_unit_test(a_storm_of_fifty_children_fits_a_budget_for_five),
        cmocka_unit_test(a_read_that_fails_gives_everything_back),
        cmocka_unit_test(what_can_be_used_as_stored_is_not_copied),
        cmocka_unit_test(loaders_read_a_shared_tensor_once),
        cmocka_unit_test(failures_of_one_loader_do_not_stop_another),
        cmocka_unit_test(models_are_prepared_beside_steps),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
