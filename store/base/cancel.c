/* cancel.c - see cancel.h. */
#include "store/base/cancel.h"

#include <stdatomic.h>

static atomic_bool cancelled;

void fm_cancel(bool cancel)
{
    atomic_store_explicit(&cancelled, cancel, memory_order_relaxed);
}

fm_status fm_go_on(void)
{
    return atomic_load_explicit(&cancelled, memory_order_relaxed)
               ? fm_fail(FM_ECANCELLED, "stopped on request")
               : FM_OK;
}
