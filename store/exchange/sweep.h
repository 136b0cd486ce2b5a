/* sweep.h - what killed intakes left, and no intake took over: for gc. */
#ifndef FM_STORE_EXCHANGE_SWEEP_H
#define FM_STORE_EXCHANGE_SWEEP_H

#include "store/base/error.h"

FM_BEGIN_DECLS

#define FMS_INCOMING_DIR "incoming"

/* Removes files of incoming/ whose owner is dead and whose last change was not after `until`
 * (seconds since 1970). What cannot be removed stays. */
FM_CHECKED fm_status fms_incoming_sweep(const char *root, int64_t until);

FM_END_DECLS
#endif
