/* bench_crash - many points of what tests/fault samples: bench_crash [crash|flips|lost] [N] [SEED].
 *
 *   crash   a command of fmstore killed at a call, within a write, or at any time (10,000)
 *   lost    the machine stops, and what was not fsynced is lost, torn or out of order
 *   flips   one bit of a random byte of the repository is another (10,000)
 *
 * Prints the seed, the points, and how many lost anything; exit code 1 if any did. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fault/kit/fault_kit.h"

static const char *mode = "crash";
static unsigned points = 10000;
static uint64_t seed = 1;

TEST(all_points)
{
    fk_world w;
    unsigned failures = 0;
    fk_world_make(&w);
    if (strcmp(mode, "flips") == 0) {
        fk_flips seen;
        fk_flip(&w, seed, points, &seen);
        failures = seen.failures;
    } else if (strcmp(mode, "lost") == 0) {
        fk_losses seen;
        fk_lose(&w, seed, (points + (unsigned)w.commands) / ((unsigned)w.commands + 1), &seen);
        failures = seen.failures;
    } else {
        fk_crashes seen;
        fk_crash(&w, seed, 0, points, &seen);
        failures = seen.failures;
    }
    fk_world_free(&w);
    assert_int_equal(failures, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_points)};
    setenv("FM_BIN", FK_PROGRAM, 0);
    setenv("FM_INJECT", FK_INJECT, 0);
    mode = argc > 1 ? argv[1] : mode;
    points = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : points;
    seed = argc > 3 ? strtoull(argv[3], NULL, 10) : seed;
    if (strcmp(mode, "crash") != 0 && strcmp(mode, "flips") != 0 && strcmp(mode, "lost") != 0) {
        fprintf(stderr, "usage: bench_crash [crash|flips|lost] [N] [SEED]\n");
        return 129;
    }
    return fk_available() ? cmocka_run_group_tests(tests, NULL, NULL) : TK_SKIP;
}
