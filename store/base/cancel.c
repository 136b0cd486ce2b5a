/* cancel.c - see cancel.h. */
#include "store/base/cancel.h"

#include <stdatomic.h>

static atomic_bool cancelled;
static atomic_int waits;

void fm_cancel(bool cancel)
{
    atomic_store_explicit(&cancelled, cancel, memory_order_relaxed);
}

void fm_cancel_wait(bool wait)
{
    atomic_fetch_add_explicit(&waits, wait ? 1 : -1, memory_order_relaxed);
}

fm_status fm_go_on(void)
{
    bool stop = atomic_load_explicit(&cancelled, memory_order_relaxed) &&
                atomic_load_explicit(&waits, memory_order_relaxed) == 0;

    return stop ? fm_fail(FM_ECANCELLED, "stopped on request") : FM_OK;
}
