/* ctest: plain again=FM_LOSSES=300 cost=20 */
/* The machine stops at any point and what was not fsynced is lost, torn or out of order: what was
 * there before is whole, and a command that ended has its work there. bench_crash lost has more.
 *   FM_LOSSES=n disks for each command (40), FM_FAULT_SEED=n of which (1). */
#include <stdlib.h>

#include "tests/fault/kit/fault_kit.h"

TEST(what_was_promised_is_there)
{
    const char *n = getenv("FM_LOSSES"), *seed = getenv("FM_FAULT_SEED");
    fk_world w;
    fk_losses seen;
    fk_world_make(&w);
    fk_lose(&w, seed ? strtoull(seed, NULL, 10) : 1,
            n ? (unsigned)strtoul(n, NULL, 10) : fk_scaled(40), &seen);
    fk_world_free(&w);
    assert_int_equal(seen.failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_was_promised_is_there)};
    return fk_available() ? cmocka_run_group_tests(tests, NULL, NULL) : TK_SKIP;
}
