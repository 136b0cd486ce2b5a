/* backend.c - what every device shares: closing a backend, naming what it lacks. */
#include "infer/backend.h"

void fm_backend_close(fm_backend *be)
{
    if (be)
        be->close(be);
}

const char *fm_backend_lacks(const fm_backend *be, bool training)
{
    if (be->host_visible && (!be->weight_image || !be->weight_map))
        return be->weight_image ? "weight_map" : "weight_image";
#define MISSING(slot)                                                                              \
    if (!be->slot)                                                                                 \
        return #slot;
    FM_BACKEND_FORWARD(MISSING)
    if (training) {
        FM_BACKEND_TRAINING(MISSING)
    }
#undef MISSING
    return NULL;
}
