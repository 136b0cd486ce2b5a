/* door.c - what all doors share. */
#include "remote/bucket/door.h"

#include <string.h>

#include "store/base/mem.h"

fm_status fmr_upload_init(fmr_upload *u, const char *name, uint64_t bytes, uint64_t part_bytes)
{
    memset(u, 0, sizeof *u);
    u->name = name;
    u->bytes = bytes;
    u->part_bytes = part_bytes;
    u->count = (size_t)((bytes + part_bytes - 1) / part_bytes);
    if (u->count > FMR_PARTS_MAX)
        return fm_fail(FM_ELIMIT, "an object of %llu bytes is more than a bucket takes",
                       (unsigned long long)bytes);
    u->part = fm_calloc(u->count + 1, sizeof *u->part);
    return u->part ? FM_OK : FM_ENOMEM;
}

void fmr_upload_release(fmr_upload *u)
{
    fm_free(u->id);
    fm_free(u->part);
    memset(u, 0, sizeof *u);
}

uint64_t fmr_upload_part_bytes(const fmr_upload *u, size_t i)
{
    return FM_MIN(u->part_bytes, u->bytes - i * u->part_bytes);
}
