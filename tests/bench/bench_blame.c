/* bench_blame.c - is blame right? Faults are planted, and it is asked for them. */
#include "tests/bench/blame_bench.h"

#include <string.h>

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--damage") == 0)
        return bb_damage(argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], "--drop-adapter") == 0)
        return bb_drop_adapter(argc - 2, argv + 2);
    return EXIT_USAGE;
}
