/* ctest: plain again=FM_KILLS=2000 cost=30 */
/* Killed at any call, in the middle of a write, or at any time: nothing is lost. bench_crash has
 * the 10,000 points.
 *   FM_KILLS=n points (120), FM_FAULT_SEED=n of which (1). */
#include <stdlib.h>

#include "tests/fault/kit/fault_kit.h"

TEST(nothing_is_lost)
{
    const char *n = getenv("FM_KILLS"), *seed = getenv("FM_FAULT_SEED");
    fk_world w;
    fk_crashes seen;
    fk_world_make(&w);
    fk_crash(&w, seed ? strtoull(seed, NULL, 10) : 1, 0,
             n ? (unsigned)strtoul(n, NULL, 10) : fk_scaled(120), &seen);
    fk_world_free(&w);
    assert_int_equal(seen.failures, 0);
    assert_true(seen.killed > seen.points / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_lost)};
    return fk_available() ? cmocka_run_group_tests(tests, NULL, NULL) : TK_SKIP;
}
