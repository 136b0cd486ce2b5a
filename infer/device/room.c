/* room.c - see room.h. */
#include "infer/device/room.h"

fm_status fmi_device_room(fm_backend *be, void **buf, size_t have, size_t bytes)
{
    if (have >= bytes)
        return FM_OK;
    void *fresh = NULL;
    FM_TRY(be->alloc(be, &fresh, bytes));
    if (*buf)
        be->free(be, *buf);
    *buf = fresh;
    return FM_OK;
}

fm_status fmi_float_room(fm_backend *be, float **buf, size_t *have, size_t floats)
{
    void *p = *buf;
    fm_status rc = fmi_device_room(be, &p, *have * sizeof(float), floats * sizeof(float));
    *buf = p;
    if (rc == FM_OK && floats > *have)
        *have = floats;
    return rc;
}
