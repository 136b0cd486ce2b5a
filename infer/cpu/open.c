/* open.c - opens the CPU backend of a mode. */
#include <string.h>

#include "infer/cpu/fast/fast.h"

fm_status fm_backend_open(fm_backend **out, const char *mode, fm_pool *pool)
{
    *out = NULL;
    if (strcmp(mode, "fast") == 0)
        return fmi_cpu_open_fast(out, pool, NULL);
    if (strcmp(mode, "bf16") == 0)
        return fmi_cpu_open_bf16(out, pool, NULL);
    if (strcmp(mode, "exact") != 0)
        return fm_fail(FM_EUNSUPPORTED,
                       "compute mode '%s' is not supported; exact, fast and bf16 are", mode);
    return fmi_cpu_open_isa(out, pool, NULL);
}
