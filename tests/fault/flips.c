/* ctest: plain again=FM_FLIPS=4000 cost=20 */
/* A flipped bit in a pack, a git object or a ref is told by name; a flip anywhere else never gives
 * a wrong weight. bench_crash flips has the 10,000.
 *   FM_FLIPS=n flips (400), FM_FAULT_SEED=n of which (1). */
#include <stdlib.h>

#include "tests/fault/kit/fault_kit.h"

TEST(flips_are_told_and_never_read)
{
    const char *n = getenv("FM_FLIPS"), *seed = getenv("FM_FAULT_SEED");
    fk_world w;
    fk_flips seen;
    fk_world_make(&w);
    fk_flip(&w, seed ? strtoull(seed, NULL, 10) : 1,
            n ? (unsigned)strtoul(n, NULL, 10) : fk_scaled(400), &seen);
    fk_world_free(&w);
    assert_int_equal(seen.failures, 0);
    assert_true(seen.told > seen.flips / 2 && seen.read_right > seen.flips);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(flips_are_told_and_never_read)};
    return fk_available() ? cmocka_run_group_tests(tests, NULL, NULL) : TK_SKIP;
}
