/* apart_wrap.c - engines of this program are on a device apart: apart.h says how it is linked. */
#include "tests/apart/apart.h"

static apart_kind kind = APART_LATE;

void apart_use(apart_kind next)
{
    kind = next;
}

fm_status __wrap_fm_backend_open_on(fm_backend **out, const char *device, const char *mode,
                                    fm_pool *pool);

fm_status __wrap_fm_backend_open_on(fm_backend **out, const char *device, const char *mode,
                                    fm_pool *pool)
{
    (void)device;
    return apart_open(out, kind, mode, pool);
}
