/* kill_main.c - the program, which kills itself at its FM_KILL_AT-th call that changes files: what
 * test_kill.sh and test_checkpoint.sh run. The program that users get has no such switch. */
#include <stdlib.h>

#include "store/base/os/io.h"

int fmstore_main(int argc, char **argv); /* cli/main.c, built with -Dmain=fmstore_main */

int main(int argc, char **argv)
{
    const char *text = getenv("FM_KILL_AT");
    const unsigned long long n = text ? strtoull(text, NULL, 10) : 0;
    if (n > 0)
        fm_io_fail_at(n, 0);
    return fmstore_main(argc, argv);
}
