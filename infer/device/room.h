/* room.h - grows a device buffer. */
#ifndef FM_INFER_ROOM_H
#define FM_INFER_ROOM_H

#include "infer/backend.h"

FM_BEGIN_DECLS

/* Replaces *buf by a larger buffer where `have` is less than what is needed; its contents are lost
 * then. fmi_float_room counts in floats and updates *have. */
FM_CHECKED fm_status fmi_device_room(fm_backend *be, void **buf, size_t have, size_t bytes);
FM_CHECKED fm_status fmi_float_room(fm_backend *be, float **buf, size_t *have, size_t floats);

FM_END_DECLS
#endif
