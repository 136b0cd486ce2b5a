/* The pool: every index once, parts fixed by count and threads, the lowest failure wins. */
#include "tests/testkit.h"

#include "store/base/os/pool.h"

#include <stdatomic.h>
#include <time.h>

enum { N = 1000 };

struct job {
    atomic_uint touched[N];
    atomic_uint calls;
    size_t begin_of[64];
    size_t fail_from; /* parts that reach this index fail */
};

static fm_status touch(void *ctx, size_t begin, size_t end, unsigned worker)
{
    struct job *j = ctx;

    atomic_fetch_add(&j->calls, 1);
    j->begin_of[worker] = begin;
    for (size_t i = begin; i < end; i++)
        atomic_fetch_add_explicit(&j->touched[i], 1, memory_order_relaxed);
    if (end > j->fail_from)
        return fm_fail(FM_ECORRUPT, "part from %zu", begin);
    return FM_OK;
}

TEST(too_many_threads_are_refused)
{
    fm_pool *p;

    tk_fails(fm_pool_new(&p, 100000), FM_ELIMIT, "100000 threads");
    assert_null(p);
    fm_pool_free(NULL);
}

TEST(a_null_pool_runs_here)
{
    struct job j = {.fail_from = SIZE_MAX};

    assert_int_equal(fm_pool_threads(NULL), 1);
    tk_ok(fm_pool_run(NULL, N, 1, touch, &j));
    assert_int_equal(j.calls, 1);
    tk_ok(fm_pool_run(NULL, 0, 1, touch, &j));
    assert_int_equal(j.calls, 1);
}

TEST(zero_threads_means_the_cpus_allowed)
{
    fm_pool *p;

    tk_ok(fm_pool_new(&p, 0));
    assert_true(fm_pool_threads(p) >= 1);
    fm_pool_free(p);
}

TEST(every_index_is_touched_once_at_any_count)
{
    fm_pool *p;

    for (unsigned threads = 1; threads <= 5; threads++) {
        tk_ok(fm_pool_new(&p, threads));
        assert_int_equal(fm_pool_threads(p), threads);
        for (size_t count = 1; count <= N; count += count < 20 ? 1 : 97) {
            struct job j = {.fail_from = SIZE_MAX};
            tk_ok(fm_pool_run(p, count, 1, touch, &j));
            for (size_t i = 0; i < N; i++)
                assert_int_equal(j.touched[i], i < count);
            assert_int_equal(j.calls, FM_MIN(threads, count));
        }
        fm_pool_free(p);
    }
}

TEST(parts_are_not_smaller_than_asked)
{
    fm_pool *p;

    tk_ok(fm_pool_new(&p, 4));
    struct job j = {.fail_from = SIZE_MAX};
    tk_ok(fm_pool_run(p, 100, 50, touch, &j));
    assert_int_equal(j.calls, 2);
    assert_int_equal(j.begin_of[1], 50);
    tk_ok(fm_pool_run(p, 99, 50, touch, &j));
    assert_int_equal(j.calls, 3);
    fm_pool_free(p);
}

TEST(the_failure_of_the_lowest_part_wins_with_its_text)
{
    fm_pool *p;

    tk_ok(fm_pool_new(&p, 4));
    for (int round = 0; round < 200; round++) {
        struct job j = {.fail_from = 300};
        tk_fails(fm_pool_run(p, N, 1, touch, &j), FM_ECORRUPT, "part from 250");
        assert_int_equal(j.calls, 4); /* a failure stops nothing */
        j.fail_from = 0;
        tk_fails(fm_pool_run(p, N, 1, touch, &j), FM_ECORRUPT, "part from 0");
        j.fail_from = SIZE_MAX;
        tk_ok(fm_pool_run(p, N, 1, touch, &j));
    }
    fm_pool_free(p);
}

TEST(many_short_runs_of_changing_width_complete)
{
    fm_pool *p;
    struct job j = {.fail_from = SIZE_MAX};
    unsigned want = 0;

    tk_ok(fm_pool_new(&p, 3));
    for (unsigned i = 0; i < 20000; i++) {
        tk_ok(fm_pool_run(p, 1 + i % 4, 1, touch, &j));
        want += FM_MIN(3, 1 + i % 4);
    }
    assert_int_equal(j.calls, want);
    fm_pool_free(p);
}

struct shared {
    atomic_uint busy[8]; /* by worker number */
    unsigned spin[8];    /* of each part; plain: rewritten between runs */
    atomic_uint calls, clashes;
};

static fm_status uneven(void *ctx, size_t begin, size_t end, unsigned worker)
{
    struct shared *s = ctx;

    if (atomic_fetch_add(&s->busy[worker], 1) != 0)
        atomic_fetch_add(&s->clashes, 1);
    for (size_t i = begin; i < end; i++)
        for (unsigned n = 0; n < s->spin[i]; n++)
            atomic_fetch_add_explicit(&s->calls, n == 0, memory_order_relaxed);
    atomic_fetch_sub(&s->busy[worker], 1);
    return FM_OK;
}

/* Parts of uneven length, sometimes after the workers went to sleep: nothing is lost or done twice,
 * a number is one thread's at a time, and the job may be rewritten at once. */
TEST(workers_that_sleep_or_come_late_lose_no_part)
{
    static const struct timespec nap = {.tv_nsec = 200000};
    struct shared s = {.calls = 0};
    fm_pool *p;
    unsigned want = 0;

    tk_ok(fm_pool_new(&p, 4));
    for (unsigned i = 0; i < 2000; i++) {
        for (unsigned part = 0; part < 8; part++)
            s.spin[part] = 1 + (i * 7 + part * 13) % 97 * (part == i % 4 ? 50 : 1);
        tk_ok(fm_pool_run(p, 1 + i % 8, 1, uneven, &s));
        want += 1 + i % 8;
        assert_int_equal(s.calls, want);
        if (i % 20 == 0)
            nanosleep(&nap, NULL);
    }
    assert_int_equal(s.clashes, 0);
    fm_pool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_many_threads_are_refused),
        cmocka_unit_test(a_null_pool_runs_here),
        cmocka_unit_test(zero_threads_means_the_cpus_allowed),
        cmocka_unit_test(every_index_is_touched_once_at_any_count),
        cmocka_unit_test(parts_are_not_smaller_than_asked),
        cmocka_unit_test(the_failure_of_the_lowest_part_wins_with_its_text),
        cmocka_unit_test(many_short_runs_of_changing_width_complete),
        cmocka_unit_test(workers_that_sleep_or_come_late_lose_no_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
