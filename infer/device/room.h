/* room.h - a device buffer that is made anew where more is needed than it has. */
#ifndef FM_INFER_ROOM_H
#define FM_INFER_ROOM_H

#include "infer/backend.h"

FM_BEGIN_DECLS

/* At least `bytes`, or so many floats; what was in it is lost. have: what it has. */
FM_CHECKED fm_status fmi_device_room(fm_backend *be, void **buf, size_t have, size_t bytes);
FM_CHECKED fm_status fmi_float_room(fm_backend *be, float **buf, size_t *have, size_t floats);

FM_END_DECLS
#endif
