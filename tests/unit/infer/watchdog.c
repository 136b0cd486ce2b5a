/* watchdog.c - a step that does not end is told of once, from another thread, and cannot end
 * meanwhile; one that ends in time is not. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "infer/engine/watchdog.h"
#include "tests/testkit.h"

static atomic_int told, inside;
static char heard[160];

static void nap_ms(long ms)
{
    const struct timespec t = {.tv_nsec = ms * 1000000};
    (void)nanosleep(&t, NULL);
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void hung(void *ctx, const char *text)
{
    assert_ptr_equal(ctx, &told);
    atomic_store(&inside, 1);
    (void)snprintf(heard, sizeof(heard), "%s", text);
    nap_ms(100);
    atomic_store(&inside, 0);
    atomic_fetch_add(&told, 1);
}

TEST(a_step_that_does_not_end)
{
    fmi_watchdog *p = NULL;
    tk_ok(fmi_watchdog_new(&p, 0.3, "rank 1 of 2, cuda:1"));
    fmi_watchdog_begin(p); /* nobody hears yet */
    nap_ms(400);
    fmi_watchdog_end(p);
    fmi_watchdog_hung(p, hung, &told);
    double longest = 0;
    for (int i = 0; i < 12; i++) { /* many short ones are not a long one */
        double began = now_s();
        fmi_watchdog_begin(p);
        nap_ms(30);
        fmi_watchdog_end(p);
        longest = FM_MAX(longest, now_s() - began);
    }
    assert_true(atomic_load(&told) == 0 || longest > 0.3); /* on a busy machine one may be long */
    int before = atomic_load(&told);
    fmi_watchdog_begin(p);
    fmi_watchdog_begin(p);
    nap_ms(80);
    fmi_watchdog_end(p);
    while (!atomic_load(&inside))
        nap_ms(1);
    fmi_watchdog_end(p); /* waits for who is told */
    assert_int_equal(atomic_load(&inside), 0);
    assert_int_equal(atomic_load(&told), before + 1);
    assert_string_equal(heard, "rank 1 of 2, cuda:1: a step does not end within 0.3 s (config "
                               "compute.stepTimeout)");
    fmi_watchdog_begin(p); /* the next one is another one */
    while (atomic_load(&told) == before + 1)
        nap_ms(5);
    fmi_watchdog_end(p);
    fmi_watchdog_free(p);
    fmi_watchdog_begin(NULL);
    fmi_watchdog_end(NULL);
    fmi_watchdog_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_that_does_not_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
