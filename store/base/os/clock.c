/* clock.c - see clock.h. */
#include "store/base/os/clock.h"

#include <time.h>

double fm_now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double fm_thread_cpu_s(void)
{
    struct timespec t;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0
               ? (double)t.tv_sec + (double)t.tv_nsec * 1e-9
               : 0.0;
}
